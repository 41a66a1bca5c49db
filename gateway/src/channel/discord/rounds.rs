//! What the loop over events does beside them: it keeps in mind which conversations are bound, and has those read of
//! which something may have been missed. The database is asked aside, so that no event waits for it; what cannot be told
//! apart meanwhile waits in its lane.

use super::DISCORD;
use super::bound::Bound;
use super::lanes::Job;
use super::listen::Ear;
use super::reads::{Scope, Spot, Todo};
use crate::channel::Place;
use acp_discord::core::ids::Snowflake;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// First and longest pause before it is looked again what is bound, while that cannot be read.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));
/// How many conversations that are shut are looked at in one go: each look counts among the refusals that Discord
/// forgives, and not everybody who lets the bot in again is told of.
const LOOK_MAX: usize = 4;

/// How often bindings had changed before it was looked what is bound, and what was found.
pub(super) type Listing = (u64, Vec<Place>);

/// What is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// A channel, and its threads with it.
    Channel(Snowflake),
    /// A server: the bot was taken out of it.
    Guild(Snowflake),
}

impl Ear {
    /// The time of rounds.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// When a round is due; none as long as it is not known what is bound: it comes with that.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = self.reads.due().filter(|_| self.bound.is_known());
        due.map(|due| self.started + due)
    }

    /// Something may have been missed.
    pub(super) fn want(&mut self, scope: Scope) {
        self.reads.want(scope, self.now());
        if !self.bound.is_known() {
            self.list();
        }
    }

    /// Whether a conversation is to be read before what is said there now.
    pub(super) fn speaks(&mut self, at: Snowflake) -> bool {
        let spot = self.spot(at, None);
        self.reads.speaks(&spot)
    }

    /// Whether a conversation is bound; none when nobody knows just now.
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

    /// Looks what is bound, aside, and until that can be read. One look at a time: what changes meanwhile is looked at
    /// after it.
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

    /// It is known what is bound. One that was bound since is read once from its beginning on: what was said while it
    /// was being bound may have been taken for nobody's.
    pub(super) fn listed(&mut self, (as_of, places): Listing) {
        let before = std::mem::replace(&mut self.bound, Bound::new(as_of, &places));
        // Before a session has begun nothing can be taken up, and then everything is read.
        if self.inner.known.identity().is_some() {
            for id in self.bound.since(&before) {
                self.lanes.read(&mut self.tasks, id);
            }
        }
        self.finish();
        self.round();
    }

    /// Something is not there any more: what was bound there ends, once it is known what that is.
    pub(super) fn end(&mut self, ended: Ended) {
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
                    Ended::Channel(channel) if id == channel => "the channel was deleted",
                    Ended::Channel(channel) if spot.parent == Some(channel) => "its channel was deleted",
                    Ended::Guild(guild) if spot.guild == Some(guild) => "the bot was taken out of the server",
                    Ended::Channel(_) | Ended::Guild(_) => continue,
                };
                self.put(id, Job::Gone(why.to_owned()));
            }
        }
    }

    fn spot(&self, id: Snowflake, parent: Option<Snowflake>) -> Spot {
        let is_shut = self.inner.known.was_shut(id);
        match self.inner.known.spot(id) {
            Some(known) => Spot { id, parent: known.parent, guild: known.guild, is_shut },
            None => Spot { id, parent, guild: None, is_shut },
        }
    }

    /// Has read what is due.
    pub(super) fn round(&mut self) {
        if !self.bound.is_known() {
            return;
        }
        let spots: Vec<Spot> = self.bound.all().map(|(id, parent)| self.spot(id, parent)).collect();
        let todo = self.reads.round(self.now(), &spots);
        self.act(todo);
    }

    pub(super) fn act(&mut self, todo: Todo) {
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

    /// Looks again at some of those conversations that the bot was refused.
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
