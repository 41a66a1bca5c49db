//! Bindings and backfills in the event loop: keeps the cache of bound conversations current, and starts
//! backfills of conversations that may have missed events. A background task reads the database so that
//! events never wait; unclassified messages wait in the conversation queue.

use super::DISCORD;
use crate::channel::BoundConversation;
use crate::channel::discord::backfill_schedule::{BackfillScope, BackfillTarget};
use crate::channel::discord::binding_cache::BindingCache;
use crate::channel::discord::event_loop::EventLoop;
use crate::channel::discord::retry::RETRY_BACKOFF;
use crate::channel::discord::state_cache::{Access, EventScope};
use crate::channel::discord::workers::ConversationJob;
use acp_discord::core::ids::Snowflake;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Bindings of the account, as read from the store.
#[derive(Debug)]
pub(super) struct BindingSnapshot {
    /// Binding counter before the query.
    as_of: u64,
    /// Bound conversations.
    bound: Vec<BoundConversation>,
}

impl EventLoop {
    /// Returns the time base of the backfill schedule.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the time of the next round. `None` while the bindings are unknown: reading them starts a
    /// round.
    pub(super) fn next_round_at(&self) -> Option<Instant> {
        let due = self.schedule.due().filter(|_| self.bindings.is_known());
        due.map(|due| self.started + due)
    }

    /// Schedules a backfill of a scope that may have missed events.
    pub(super) fn request_backfill(&mut self, scope: BackfillScope) {
        self.schedule.request_backfill(scope, self.now());
        if !self.bindings.is_known() {
            self.read_bindings();
        }
    }

    /// True if a conversation needs a backfill before the new message is processed.
    pub(super) fn needs_backfill_first(&mut self, at: Snowflake) -> bool {
        let target = self.backfill_target(at, None);
        self.schedule.on_message(&target)
    }

    /// Returns whether a conversation is bound; `None` if unknown at the moment.
    pub(super) fn is_bound(&mut self, channel: Snowflake) -> Option<bool> {
        if self.inner.has_static_binding(channel) == Some(true) {
            return Some(true);
        }
        let bound = self.bindings.has(channel, *self.binding_changes.borrow());
        if bound.is_none() {
            self.read_bindings();
        }
        bound
    }

    /// Reads the bindings in a background task, with retries. Only one task runs at a time; a change
    /// meanwhile starts another one afterwards.
    pub(super) fn read_bindings(&mut self) {
        if !self.binding_reads.is_empty() {
            return;
        }
        let as_of = *self.binding_changes.borrow_and_update();
        let (inbox, account) = (Arc::clone(&self.inbox), self.inner.account.clone());
        self.binding_reads.spawn(async move {
            let mut backoff = RETRY_BACKOFF;
            loop {
                if let Some(bound) = inbox.bound_conversations(DISCORD.to_owned(), account.clone()).await {
                    return BindingSnapshot { as_of, bound };
                }
                tokio::time::sleep(backoff.next_pause()).await;
            }
        });
    }

    /// Applies the bindings that were read. A newly bound conversation is read once from the beginning of the
    /// binding: messages that arrived meanwhile may have been dropped as unbound.
    pub(super) fn on_bindings_read(&mut self, snapshot: BindingSnapshot) {
        let BindingSnapshot { as_of, bound } = snapshot;
        let before = std::mem::replace(&mut self.bindings, BindingCache::new(as_of, &bound));
        // Before the first session nothing can be processed, and the session start schedules a full backfill.
        if self.inner.cache.identity().is_some() {
            for id in self.bindings.since(&before) {
                self.workers.request_backfill(&mut self.tasks, id);
            }
        }
        self.remove_bindings();
        self.start_due_backfills();
    }

    /// Ends the bindings in a removed channel or server, once the current bindings are known.
    pub(super) fn remove_scope(&mut self, ended: EventScope) {
        self.removed_scopes.push(ended);
        self.remove_bindings();
    }

    fn remove_bindings(&mut self) {
        if !self.bindings.is_fresh(*self.binding_changes.borrow()) {
            return self.read_bindings();
        }
        for ended in std::mem::take(&mut self.removed_scopes) {
            let all: Vec<(Snowflake, Option<Snowflake>)> = self.bindings.all().collect();
            for (id, parent) in all {
                let target = self.backfill_target(id, parent);
                let why = match ended {
                    EventScope::Channel(channel) if id == channel => "the channel was deleted",
                    EventScope::Channel(channel) if target.parent == Some(channel) => {
                        "its channel was deleted"
                    }
                    EventScope::Guild(guild) if target.guild == Some(guild) => {
                        "the bot was taken out of the server"
                    }
                    EventScope::Channel(_) | EventScope::Guild(_) => continue,
                };
                self.enqueue(id, ConversationJob::Gone(why.to_owned()));
            }
        }
    }

    fn backfill_target(&self, id: Snowflake, parent: Option<Snowflake>) -> BackfillTarget {
        let is_inaccessible = self.inner.cache.is_inaccessible(id);
        match self.inner.cache.location(id) {
            Some(known) => BackfillTarget { id, parent: known.parent, guild: known.guild, is_inaccessible },
            None => BackfillTarget { id, parent, guild: None, is_inaccessible },
        }
    }

    /// Starts the backfills that are due.
    pub(super) fn start_due_backfills(&mut self) {
        if !self.bindings.is_known() {
            return;
        }
        let counter = *self.binding_changes.borrow();
        let settings = self.inner.settings();
        let is_read =
            |id| self.bindings.has(id, counter) != Some(false) || settings.projects.contains_key(&id);
        self.inner.cache.retain_inaccessible(is_read);
        // A project's channel may be bound itself.
        let projects = settings.projects.keys().map(|id| (*id, None));
        let unbound = projects.filter(|(id, _)| self.bindings.has(*id, counter) != Some(true));
        let targets: Vec<BackfillTarget> =
            self.bindings.all().chain(unbound).map(|(id, parent)| self.backfill_target(id, parent)).collect();
        for id in self.schedule.due_targets(self.now(), &targets) {
            self.workers.request_backfill(&mut self.tasks, id);
        }
    }

    /// Starts the backfill of a conversation with an event, which proves that the bot has access.
    pub(super) fn backfill_accessible(&mut self, id: Snowflake) {
        self.inner.cache.record_access(Access::Read, id, false);
        self.workers.request_backfill(&mut self.tasks, id);
    }
}
