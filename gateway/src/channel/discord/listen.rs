//! Event loop of the Discord adapter. Handles events in order and waits for nothing but the next event:
//! messages go to conversation workers, interactions to tasks of their own, and a background task reads the
//! bindings ([`super::rounds`]).

use super::Inner;
use super::bound::Bound;
use super::known;
use super::known::News;
use super::lanes::{Job, Lanes};
use super::line::Line;
use super::looks::Shelf;
use super::reads::{Reads, Scope};
use super::registration;
use super::rounds::{Ended, Listing};
use crate::channel::Inbox;
use crate::store::now_ms;
use acp_discord::core::event::{Click, Event, Message, ReadyEvent, SlashCommand};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::intake::{MessageClass, classify_message};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Maximum number of concurrent interactions.
const INTERACTIONS_MAX: usize = 64;
/// Maximum number of waiting messages and changes of which it is unknown whether the conversation is bound.
const UNSURE_MAX: usize = 4_096;
/// Interval between attempts to read inaccessible conversations.
const LOOK: Duration = Duration::from_secs(20);

/// Runs the event loop until dropped.
pub(super) async fn listen(inner: Arc<Inner>, inbox: Arc<dyn Inbox>) {
    let line = Line::open(&inner);
    Ear::new(inner, inbox).hear(line).await;
}

/// Interaction of a person who waits for a response.
enum Asked {
    Command(Box<SlashCommand>),
    Click(Box<Click>),
    Suggestions(Box<SlashCommand>),
}

/// State of the event loop.
pub(super) struct Ear {
    pub(super) inner: Arc<Inner>,
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) lanes: Lanes,
    pub(super) tasks: JoinSet<()>,
    places: Arc<Semaphore>,
    /// Cache of bindings, and the binding counter.
    pub(super) bound: Bound,
    pub(super) changes: watch::Receiver<u64>,
    /// Task for reading the bindings; at most one.
    pub(super) listings: JoinSet<Listing>,
    /// Deleted channels and servers, processed after the next read of the bindings.
    pub(super) ended: Vec<Ended>,
    /// Schedule of backfills.
    pub(super) reads: Reads,
    pub(super) started: Instant,
    unsure: Arc<Semaphore>,
    /// Servers that are currently unavailable.
    gone: BTreeSet<Snowflake>,
    /// Last inaccessible conversation that was retried.
    pub(super) looked: Snowflake,
}

impl Ear {
    fn new(inner: Arc<Inner>, inbox: Arc<dyn Inbox>) -> Self {
        Self {
            lanes: Lanes::new(Arc::clone(&inner), Arc::clone(&inbox)),
            changes: inbox.bindings_changed(),
            inner,
            inbox,
            tasks: JoinSet::new(),
            places: Arc::new(Semaphore::new(INTERACTIONS_MAX)),
            bound: Bound::default(),
            listings: JoinSet::new(),
            ended: Vec::new(),
            reads: Reads::default(),
            started: Instant::now(),
            unsure: Arc::new(Semaphore::new(UNSURE_MAX)),
            gone: BTreeSet::new(),
            looked: Snowflake(0),
        }
    }

    async fn hear(mut self, mut line: Line) {
        let inner = Arc::clone(&self.inner);
        let mut renewed = self.inner.settings.subscribe();
        // The settings may have changed since the connection was opened.
        renewed.mark_changed();
        self.tasks.spawn(registration::keep(Arc::clone(&inner)));
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            while self.tasks.try_join_next().is_some() {}
            let due = self.due();
            tokio::select! {
                biased;
                // The sender lives as long as `self`.
                _ = renewed.changed() => self.renew(&mut line).await,
                Some(Ok(listing)) = self.listings.join_next() => self.listed(listing),
                Ok(()) = self.changes.changed() => self.list(),
                news = inner.known.news() => self.heed(news),
                event = line.next() => self.hear_one(event),
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.round(),
                _ = look.tick() => self.look_again(),
            }
        }
    }

    fn hear_one(&mut self, event: Event) {
        self.inner.pulse.hear(&event, now_ms());
        self.inner.known.hear(&event);
        self.take(event);
    }

    /// Applies a configuration reload. A changed token requires a new connection, and a permanent failure is
    /// retried, since the cause may have been fixed (D7). Events of the old connection are processed first:
    /// Discord does not repeat clicks, commands and edits.
    async fn renew(&mut self, line: &mut Line) {
        let inner = Arc::clone(&self.inner);
        if line.is_no_use_with(&inner.settings().token) || inner.pulse.has_failed() {
            line.end();
            while let Some(event) = line.last().await {
                self.hear_one(event);
            }
            tracing::info!(account = inner.account, "the connection to Discord is begun anew");
            inner.pulse.begins();
            inner.known.hears(Some(false));
            inner.registered.begin_anew();
            *line = Line::open(&inner);
        } else {
            inner.registered.look();
        }
    }

    /// Processes deletions found by requests, and results of backfills.
    fn heed(&mut self, news: News) {
        for channel in news.gone {
            self.gone(channel, "Discord does not know it any more");
        }
        for (channel, came) in news.came {
            let todo = self.reads.came(self.now(), channel, came);
            self.act(todo);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Ready(ready) => self.ready(ready),
            Event::Gap { why, lost } => {
                tracing::warn!(?why, lost, "events of Discord were missed");
                self.want(Scope::All);
            }
            Event::Message(message) => self.message(message),
            Event::MessageEdited(edit) => {
                self.changed(edit.channel, Job::Edited(edit));
            }
            Event::MessagesDeleted { channel, ids } => {
                ids.into_iter().for_each(|id| self.changed(channel, Job::Deleted(id)));
            }
            Event::Command(command) => self.apart(Asked::Command(command)),
            Event::Click(click) => self.apart(Asked::Click(click)),
            Event::Autocomplete(command) => self.apart(Asked::Suggestions(command)),
            Event::ThreadCreated(thread) => self.inner.known.is_at(thread.id, thread.parent, thread.guild),
            Event::ThreadChanged(thread) => {
                self.inner.known.is_at(thread.id, thread.parent, thread.guild);
                if self.is_bound(thread.id) != Some(false) {
                    if self.inner.known.was_shut(thread.id) {
                        self.lanes.read(&mut self.tasks, thread.id);
                    }
                    self.put(thread.id, Job::Thread(Shelf::from(&thread)));
                }
            }
            Event::ThreadDeleted { id, .. } => self.gone(id, "the thread was deleted"),
            Event::ChannelDeleted(id) => self.end(Ended::Channel(id)),
            Event::Disconnected { why } => tracing::warn!(why, "the connection to Discord was lost"),
            Event::Alarm(text) => tracing::error!("Discord: {text}"),
            Event::Unknown { kind } => tracing::info!(kind, "an event of Discord that nobody here knows"),
            Event::Failed(failure) => {
                tracing::error!(account = self.inner.account, "Discord is not served any more: {failure}");
            }
            // Discord reports the loss and return of access to threads in no other way.
            Event::ChannelChanged(id) => {
                self.inner.known.rights_changed(known::Place::Channel(id));
                self.want(Scope::Channel(id));
            }
            Event::GuildGone { id, outage } => {
                tracing::warn!(guild = %id, outage, "a server of Discord is out of reach");
                self.gone.insert(id);
                // An outage does not end bindings (D3).
                if !outage {
                    self.inner.known.joined(id, false);
                    self.end(Ended::Guild(id));
                }
            }
            // Each server is reported once after a start, when everything is read anyway.
            Event::GuildBack(id) => {
                self.inner.known.joined(id, true);
                self.inner.registered.look();
                if self.gone.remove(&id) {
                    self.want(Scope::Guild(id));
                }
            }
            Event::RightsChanged(id) => {
                self.inner.known.rights_changed(known::Place::Guild(id));
                self.want(Scope::Guild(id));
            }
            Event::Resumed | Event::ModalSubmit(_) => {}
        }
    }

    pub(super) fn put(&mut self, channel: Snowflake, job: Job) {
        self.lanes.put(&mut self.tasks, channel, job);
    }

    /// Queues an edit or deletion. If too many unclassified changes wait, a backfill is queued instead,
    /// followed by a comparison of all messages whose turn has not begun.
    fn changed(&mut self, channel: Snowflake, job: Job) {
        match self.is_bound(channel) {
            Some(true) => self.put(channel, job),
            Some(false) => {}
            None => match Arc::clone(&self.unsure).try_acquire_owned() {
                Ok(place) => self.put(channel, Job::Unsure(Box::new(job), place)),
                Err(_) => self.lanes.read(&mut self.tasks, channel),
            },
        }
    }

    fn gone(&mut self, channel: Snowflake, why: &str) {
        if self.is_bound(channel) != Some(false) {
            self.put(channel, Job::Gone(why.to_owned()));
        }
    }

    fn ready(&mut self, ready: ReadyEvent) {
        tracing::info!(
            account = self.inner.account,
            bot = ready.me.name,
            guilds = ready.guilds.len(),
            "Discord is there"
        );
        self.inner.known.is_me(ready.me.id, ready.application);
        self.inner.known.is_in(&ready.guilds, ready.shard);
        self.inner.registered.look();
        // All bound conversations are read from the mark on; new messages wait meanwhile (H8).
        self.want(Scope::All);
    }

    /// Handles a message. Messages in unbound conversations are ignored, except for commands.
    fn message(&mut self, message: Box<Message>) {
        let channel = message.channel;
        self.inner.known.spoke(channel, message.id);
        let Some(identity) = self.inner.known.identity() else { return };
        match classify_message(&identity, &message) {
            MessageClass::Own { nonce, message } => {
                if let Some(nonce) = nonce {
                    self.inner.rest.record_sent_nonce(&nonce, message);
                }
            }
            MessageClass::System | MessageClass::Bot => {}
            MessageClass::User => self.said(message),
        }
    }

    fn said(&mut self, message: Box<Message>) {
        let channel = message.channel;
        let bound = self.is_bound(channel);
        if bound != Some(false) && self.speaks(channel) {
            self.lanes.read(&mut self.tasks, channel);
        }
        let is_command = crate::core::command::parse(&message.text).is_some();
        if is_command || bound == Some(true) {
            self.put(channel, Job::Message(message));
        } else if bound.is_none() || self.inner.is_configured(channel).is_none() {
            match Arc::clone(&self.unsure).try_acquire_owned() {
                Ok(place) => self.put(channel, Job::Unsure(Box::new(Job::Message(message)), place)),
                Err(_) => {
                    tracing::warn!(thread_id = %channel, "too much waits to be told apart: what is ours is read later");
                    self.lanes.miss(&mut self.tasks, channel, message.id);
                }
            }
        }
    }

    /// Handles an interaction in a task of its own, if the limit permits.
    fn apart(&mut self, asked: Asked) {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            tracing::warn!("too many clicks and commands at once: one is left to Discord's own words");
            return;
        };
        let (inner, inbox) = (Arc::clone(&self.inner), Arc::clone(&self.inbox));
        self.tasks.spawn(async move {
            match asked {
                Asked::Command(command) => inner.command(inbox.as_ref(), *command).await,
                Asked::Click(click) => inner.click(inbox.as_ref(), *click).await,
                Asked::Suggestions(command) => inner.autocomplete(inbox.as_ref(), *command).await,
            }
            drop(place);
        });
    }
}

#[cfg(test)]
#[path = "listen_tests.rs"]
mod tests;
