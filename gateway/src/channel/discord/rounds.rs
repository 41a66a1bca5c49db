//! Bindings and backfills in the event loop: keeps the cache of bound conversations current, and starts
//! backfills of conversations that may have missed events. A background task reads the database so that
//! events never wait; unclassified messages wait in the conversation queue.

use super::DISCORD;
use super::bound::BindingCache;
use super::lanes::ConversationJob;
use super::listen::EventLoop;
use super::reads::{BackfillActions, BackfillScope, BackfillTarget};
use crate::channel::Place;
use acp_discord::core::ids::Snowflake;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// First and longest pause between attempts to read the bindings.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));
/// Maximum number of inaccessible conversations that are retried at once: each retry counts towards Discord's
/// limit of refusals, and Discord does not report every restored permission.
const LOOK_MAX: usize = 4;

/// Binding counter before the query, and the bound conversations.
pub(super) type BindingSnapshot = (u64, Vec<Place>);

/// Removed channel or server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovedScope {
    /// A channel with its threads.
    Channel(Snowflake),
    /// A server from which the bot was removed.
    Guild(Snowflake),
}

impl EventLoop {
    /// Returns the time base of the backfill schedule.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the time of the next round. `None` while the bindings are unknown: reading them starts a
    /// round.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = self.reads.due().filter(|_| self.bound.is_known());
        due.map(|due| self.started + due)
    }

    /// Schedules a backfill of a scope that may have missed events.
    pub(super) fn want(&mut self, scope: BackfillScope) {
        self.reads.want(scope, self.now());
        if !self.bound.is_known() {
            self.list();
        }
    }

    /// True if a conversation needs a backfill before the new message is processed.
    pub(super) fn speaks(&mut self, at: Snowflake) -> bool {
        let spot = self.spot(at, None);
        self.reads.speaks(&spot)
    }

    /// Returns whether a conversation is bound; `None` if unknown at the moment.
    pub(super) fn is_bound(&mut self, channel: Snowflake) -> Option<bool> {
        if self.inner.is_configured(channel) == Some(true) {
            return Some(true);
        }
        let bound = self.bound.has(channel, *self.changes.borrow());
        if bound.is_none() {
            self.list();
        }
        bound
    }

    /// Reads the bindings in a background task, with retries. Only one task runs at a time; a change
    /// meanwhile starts another one afterwards.
    pub(super) fn list(&mut self) {
        if !self.listings.is_empty() {
            return;
        }
        let as_of = *self.changes.borrow_and_update();
        let (inbox, account) = (Arc::clone(&self.inbox), self.inner.account.clone());
        self.listings.spawn(async move {
            let mut pause = AGAIN.0;
            loop {
                if let Some(places) = inbox.bound(DISCORD.to_owned(), account.clone()).await {
                    return (as_of, places);
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(AGAIN.1);
            }
        });
    }

    /// Applies the bindings that were read. A newly bound conversation is read once from the beginning of the
    /// binding: messages that arrived meanwhile may have been dropped as unbound.
    pub(super) fn listed(&mut self, (as_of, places): BindingSnapshot) {
        let before = std::mem::replace(&mut self.bound, BindingCache::new(as_of, &places));
        // Before the first session nothing can be processed, and the session start schedules a full backfill.
        if self.inner.known.identity().is_some() {
            for id in self.bound.since(&before) {
                self.lanes.read(&mut self.tasks, id);
            }
        }
        self.finish();
        self.round();
    }

    /// Ends the bindings in a removed channel or server, once the current bindings are known.
    pub(super) fn end(&mut self, ended: RemovedScope) {
        self.ended.push(ended);
        self.finish();
    }

    fn finish(&mut self) {
        if !self.bound.is_fresh(*self.changes.borrow()) {
            return self.list();
        }
        for ended in std::mem::take(&mut self.ended) {
            let all: Vec<(Snowflake, Option<Snowflake>)> = self.bound.all().collect();
            for (id, parent) in all {
                let spot = self.spot(id, parent);
                let why = match ended {
                    RemovedScope::Channel(channel) if id == channel => "the channel was deleted",
                    RemovedScope::Channel(channel) if spot.parent == Some(channel) => {
                        "its channel was deleted"
                    }
                    RemovedScope::Guild(guild) if spot.guild == Some(guild) => {
                        "the bot was taken out of the server"
                    }
                    RemovedScope::Channel(_) | RemovedScope::Guild(_) => continue,
                };
                self.put(id, ConversationJob::Gone(why.to_owned()));
            }
        }
    }

    fn spot(&self, id: Snowflake, parent: Option<Snowflake>) -> BackfillTarget {
        let is_shut = self.inner.known.was_shut(id);
        match self.inner.known.spot(id) {
            Some(known) => BackfillTarget { id, parent: known.parent, guild: known.guild, is_shut },
            None => BackfillTarget { id, parent, guild: None, is_shut },
        }
    }

    /// Starts the backfills that are due.
    pub(super) fn round(&mut self) {
        if !self.bound.is_known() {
            return;
        }
        let spots: Vec<BackfillTarget> = self.bound.all().map(|(id, parent)| self.spot(id, parent)).collect();
        let todo = self.reads.round(self.now(), &spots);
        self.act(todo);
    }

    pub(super) fn act(&mut self, todo: BackfillActions) {
        if !todo.shut.is_empty() {
            tracing::warn!(
                conversations = todo.shut.len(),
                "the bot was refused in conversations of the same channel: these are looked at again now and then"
            );
        }
        for id in todo.shut {
            self.inner.known.is_taken_for_shut(id);
        }
        for id in todo.read {
            self.lanes.read(&mut self.tasks, id);
        }
    }

    /// Starts backfills of some inaccessible conversations, to find restored permissions.
    pub(super) fn look_again(&mut self) {
        let shut = self.inner.known.shut();
        if self.bound.is_fresh(*self.changes.borrow()) {
            for id in shut.iter().filter(|id| self.bound.has(**id, *self.changes.borrow()) == Some(false)) {
                self.inner.known.is_shut(*id, false);
            }
        } else {
            self.list();
        }
        let after = shut.range((Excluded(self.looked), Unbounded));
        let next: Vec<Snowflake> = after.chain(shut.range(..=self.looked)).copied().take(LOOK_MAX).collect();
        self.looked = next.last().copied().unwrap_or(Snowflake(0));
        for id in next {
            self.lanes.read(&mut self.tasks, id);
        }
    }
}
