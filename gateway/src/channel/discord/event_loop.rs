//! Event loop of the Discord adapter. Handles events in order and waits for nothing but the next event:
//! messages go to conversation workers, interactions to tasks of their own, and a background task reads the
//! bindings ([`crate::channel::discord::backfill_rounds`]).

use crate::channel::InboundPort;
use crate::channel::discord::Inner;
use crate::channel::discord::archive_state::ArchiveState;
use crate::channel::discord::backfill_rounds::BindingSnapshot;
use crate::channel::discord::backfill_schedule::{BackfillSchedule, BackfillScope};
use crate::channel::discord::binding_cache::BindingCache;
use crate::channel::discord::command_registration;
use crate::channel::discord::connection::EventConnection;
use crate::channel::discord::state_cache::{CacheEvents, EventScope};
use crate::channel::discord::workers::{ConversationJob, ConversationWorkers};
use acp_discord::core::event::{Click, Event, Message, ReadyEvent, SlashCommand, Submission};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message_filter::{MessageClass, classify_message};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Maximum number of concurrent interactions.
const INTERACTIONS_MAX: usize = 64;
/// Maximum number of waiting messages and changes of which it is unknown whether the conversation is bound.
const UNCLASSIFIED_MAX: usize = 4_096;
/// Interval between attempts to read some inaccessible conversations.
const RETRY_INTERVAL: Duration = Duration::from_secs(20);

/// Runs the event loop until dropped.
pub(super) async fn listen(inner: Arc<Inner>, inbox: Arc<dyn InboundPort>) {
    let connection = EventConnection::connect(&inner);
    EventLoop::new(inner, inbox).run(connection).await;
}

/// Interaction of a person who waits for a response.
enum InteractionRequest {
    Command(Box<SlashCommand>),
    Click(Box<Click>),
    Submit(Box<Submission>),
    Suggestions(Box<SlashCommand>),
}

/// State of the event loop.
pub(super) struct EventLoop {
    pub(super) inner: Arc<Inner>,
    pub(super) inbox: Arc<dyn InboundPort>,
    pub(super) workers: ConversationWorkers,
    pub(super) tasks: JoinSet<()>,
    interaction_permits: Arc<Semaphore>,
    /// Cache of bindings, and the binding counter.
    pub(super) bindings: BindingCache,
    pub(super) binding_changes: watch::Receiver<u64>,
    /// Task for reading the bindings; at most one.
    pub(super) binding_reads: JoinSet<BindingSnapshot>,
    /// Deleted channels and servers, processed after the next read of the bindings.
    pub(super) removed_scopes: Vec<EventScope>,
    /// Schedule of backfills.
    pub(super) schedule: BackfillSchedule,
    pub(super) started: Instant,
    unclassified_permits: Arc<Semaphore>,
    /// Servers that are currently unavailable.
    unavailable_guilds: BTreeSet<Snowflake>,
}

impl EventLoop {
    fn new(inner: Arc<Inner>, inbox: Arc<dyn InboundPort>) -> Self {
        Self {
            workers: ConversationWorkers::new(Arc::clone(&inner), Arc::clone(&inbox)),
            binding_changes: inbox.binding_change_counter(),
            inner,
            inbox,
            tasks: JoinSet::new(),
            interaction_permits: Arc::new(Semaphore::new(INTERACTIONS_MAX)),
            bindings: BindingCache::default(),
            binding_reads: JoinSet::new(),
            removed_scopes: Vec::new(),
            schedule: BackfillSchedule::default(),
            started: Instant::now(),
            unclassified_permits: Arc::new(Semaphore::new(UNCLASSIFIED_MAX)),
            unavailable_guilds: BTreeSet::new(),
        }
    }

    async fn run(mut self, mut connection: EventConnection) {
        let inner = Arc::clone(&self.inner);
        let mut reloads = self.inner.settings.subscribe();
        // The settings may have changed since the connection was opened.
        reloads.mark_changed();
        self.tasks.spawn(command_registration::run(Arc::clone(&inner)));
        let mut retry_timer = tokio::time::interval(RETRY_INTERVAL);
        retry_timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            while self.tasks.try_join_next().is_some() {}
            let due = self.next_round_at();
            tokio::select! {
                biased;
                // The sender lives as long as `self`.
                _ = reloads.changed() => self.apply_settings(&mut connection).await,
                Some(Ok(snapshot)) = self.binding_reads.join_next() => self.on_bindings_read(snapshot),
                Ok(()) = self.binding_changes.changed() => self.read_bindings(),
                events = inner.cache.next_events() => self.on_cache_events(events),
                event = connection.next() => self.on_event(event),
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.start_due_backfills(),
                _ = retry_timer.tick() => self.request_backfill(BackfillScope::Inaccessible),
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        let guild = event.conversation_guild();
        if let Some(why) = guild.and_then(|guild| self.inner.settings().access.shard_refusal(guild)) {
            tracing::warn!(account = self.inner.account, why, "Discord event of another shard ignored");
            return;
        }
        self.inner.connection_health.on_event(&event, self.inner.clock.wall_ms());
        self.inner.cache.on_event(&event);
        self.dispatch(event);
    }

    /// Applies a configuration reload. A changed token or range of shards requires a new connection, and a permanent failure is
    /// retried, since the cause may have been fixed (D7). Events of the old connection are processed first:
    /// Discord does not repeat clicks, commands and edits.
    async fn apply_settings(&mut self, connection: &mut EventConnection) {
        let inner = Arc::clone(&self.inner);
        if connection.is_unusable_with(&inner.settings()) || inner.connection_health.has_failed() {
            connection.close();
            while let Some(event) = connection.drain().await {
                self.on_event(event);
            }
            tracing::info!(account = inner.account, "Discord connection restarting");
            inner.connection_health.mark_connecting();
            inner.cache.set_connected(Some(false));
            inner.registration.reset();
            *connection = EventConnection::connect(&inner);
        } else {
            inner.registration.notify();
            if inner.cache.identity().is_some() {
                self.backfill_projects();
            }
        }
    }

    /// Processes what requests found: deletions and archive states.
    fn on_cache_events(&mut self, events: CacheEvents) {
        for channel in events.deleted {
            self.on_conversation_gone(channel, "the channel no longer exists on Discord");
        }
        for (channel, archive) in events.archive_states {
            if self.is_bound(channel) != Some(false) {
                self.enqueue(channel, ConversationJob::Thread(archive));
            }
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Ready(ready) => self.on_ready(ready),
            Event::Gap { why, lost } => {
                tracing::warn!(?why, lost, "Discord events missed; backfill requested");
                self.request_backfill(BackfillScope::All);
            }
            Event::Message(message) => self.on_message(message),
            Event::MessageEdited(edit) => {
                self.enqueue_change(edit.channel, ConversationJob::Edited(edit));
            }
            Event::MessagesDeleted { channel, ids } => {
                ids.into_iter().for_each(|id| self.enqueue_change(channel, ConversationJob::Deleted(id)));
            }
            Event::Command(command) => self.spawn_interaction(InteractionRequest::Command(command)),
            Event::Click(click) => self.spawn_interaction(InteractionRequest::Click(click)),
            Event::Submit(submission) => self.spawn_interaction(InteractionRequest::Submit(submission)),
            Event::Autocomplete(command) => self.spawn_interaction(InteractionRequest::Suggestions(command)),
            Event::ThreadCreated(thread) => {
                self.inner.cache.set_location(thread.id, thread.parent, thread.guild)
            }
            Event::ThreadChanged(thread) => {
                self.inner.cache.set_location(thread.id, thread.parent, thread.guild);
                self.inner.cache.cancel_archive_read(thread.id);
                if self.is_bound(thread.id) != Some(false) {
                    if self.inner.cache.is_inaccessible(thread.id) {
                        self.backfill_accessible(thread.id);
                    }
                    self.enqueue(thread.id, ConversationJob::Thread(ArchiveState::from(&thread)));
                }
            }
            Event::ThreadDeleted(id) => self.on_conversation_gone(id, "the thread was deleted"),
            Event::ChannelDeleted(id) => self.remove_scope(EventScope::Channel(id)),
            Event::Failed(failure) => {
                tracing::error!(account = self.inner.account, %failure, "Discord account failed permanently");
            }
            // Discord reports the loss and return of access to threads in no other way.
            Event::ChannelChanged(id) => {
                self.inner.cache.on_permissions_changed(EventScope::Channel(id));
                self.request_backfill(BackfillScope::Channel(id));
            }
            Event::GuildGone { id, outage } => {
                tracing::warn!(guild = %id, outage, "Discord server unavailable");
                self.unavailable_guilds.insert(id);
                // An outage does not end bindings (D3).
                if !outage {
                    self.inner.cache.set_membership(id, false);
                    self.remove_scope(EventScope::Guild(id));
                }
            }
            // Each server is reported once after a start, when everything is read anyway.
            Event::GuildBack(id) => {
                self.inner.cache.set_membership(id, true);
                self.inner.registration.notify();
                if self.unavailable_guilds.remove(&id) {
                    self.request_backfill(BackfillScope::Guild(id));
                }
            }
            Event::RightsChanged(id) => {
                self.inner.cache.on_permissions_changed(EventScope::Guild(id));
                self.request_backfill(BackfillScope::Guild(id));
            }
            // The connection itself logs its loss.
            Event::Resumed | Event::Disconnected { .. } => {}
        }
    }

    pub(super) fn enqueue(&mut self, channel: Snowflake, job: ConversationJob) {
        self.workers.enqueue(&mut self.tasks, channel, job);
    }

    /// Queues an edit or deletion. If too many unclassified changes wait, a backfill is queued instead, which
    /// fetches the messages whose turn has not begun.
    fn enqueue_change(&mut self, channel: Snowflake, job: ConversationJob) {
        match self.is_bound(channel) {
            Some(true) => self.enqueue(channel, job),
            Some(false) => {}
            None => match Arc::clone(&self.unclassified_permits).try_acquire_owned() {
                Ok(place) => self.enqueue(channel, ConversationJob::Unclassified(Box::new(job), place)),
                Err(_) => self.workers.request_backfill(&mut self.tasks, channel),
            },
        }
    }

    fn on_conversation_gone(&mut self, channel: Snowflake, why: &str) {
        if self.is_bound(channel) != Some(false) {
            self.enqueue(channel, ConversationJob::Gone(why.to_owned()));
        }
    }

    fn on_ready(&mut self, ready: ReadyEvent) {
        tracing::info!(
            account = self.inner.account,
            bot = ready.me.name,
            guilds = ready.guilds.len(),
            "Discord connected"
        );
        self.inner.cache.set_identity(ready.me.id, ready.application);
        self.inner.cache.set_guilds(&ready.guilds, ready.shard);
        self.inner.registration.notify();
        // Bound conversations and projects' channels are read from the mark on; new messages wait meanwhile (H8).
        self.request_backfill(BackfillScope::All);
    }

    /// Requests a backfill of the channels in which messages open threads: that of a new project gets its mark.
    fn backfill_projects(&mut self) {
        for channel in self.inner.settings().projects.keys() {
            self.workers.request_backfill(&mut self.tasks, *channel);
        }
    }

    /// Handles a message. Messages in unbound conversations are ignored, except for commands.
    fn on_message(&mut self, message: Box<Message>) {
        let channel = message.channel;
        self.inner.cache.record_message(channel, message.id);
        // The message unarchived the thread.
        self.inner.cache.cancel_archive_read(channel);
        let Some(identity) = self.inner.cache.identity() else { return };
        match classify_message(&identity, &message) {
            MessageClass::Own { nonce, message } => {
                if let Some(nonce) = nonce {
                    self.inner.rest.record_sent_nonce(&nonce, message);
                }
            }
            MessageClass::System | MessageClass::Bot => {}
            MessageClass::User => self.on_user_message(message),
        }
    }

    fn on_user_message(&mut self, message: Box<Message>) {
        let channel = message.channel;
        let bound = self.is_bound(channel);
        let is_read = bound != Some(false) || self.inner.is_project(channel);
        if is_read && self.needs_backfill_first(channel) {
            self.backfill_accessible(channel);
        }
        let is_command = acp_core::command::parse(&message.text).is_some();
        if is_command || bound == Some(true) || self.inner.is_project(channel) {
            self.enqueue(channel, ConversationJob::Message(message));
        } else if bound.is_none() || self.inner.has_static_binding(channel).is_none() {
            match Arc::clone(&self.unclassified_permits).try_acquire_owned() {
                Ok(place) => self.enqueue(
                    channel,
                    ConversationJob::Unclassified(Box::new(ConversationJob::Message(message)), place),
                ),
                Err(_) => {
                    tracing::warn!(thread_id = %channel, "too many unclassified events; backfill requested");
                    self.workers.request_backfill_from(&mut self.tasks, channel, message.id);
                }
            }
        }
    }

    /// Handles an interaction in a task of its own, if the limit permits.
    fn spawn_interaction(&mut self, asked: InteractionRequest) {
        let Ok(place) = Arc::clone(&self.interaction_permits).try_acquire_owned() else {
            tracing::warn!("too many concurrent interactions; interaction not answered");
            return;
        };
        let (inner, inbox) = (Arc::clone(&self.inner), Arc::clone(&self.inbox));
        self.tasks.spawn(async move {
            match asked {
                InteractionRequest::Command(command) => inner.command(inbox.as_ref(), *command).await,
                InteractionRequest::Click(click) => inner.click(inbox.as_ref(), *click).await,
                InteractionRequest::Submit(submission) => {
                    inner.submit_form(inbox.as_ref(), *submission).await
                }
                InteractionRequest::Suggestions(command) => {
                    inner.autocomplete(inbox.as_ref(), *command).await
                }
            }
            drop(place);
        });
    }
}

#[cfg(test)]
#[path = "event_loop_tests.rs"]
mod tests;
