//! The loop over what happens on Discord, in its order. Nothing in here waits for anything but the next event: messages
//! go into lanes, interactions into tasks of their own, and what is bound is looked up aside ([`super::rounds`]).

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
use acp_discord::core::event::{Click, Command, Event, Message, Ready};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::intake::{Taken, take};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Interactions that are worked on at once.
const INTERACTIONS_MAX: usize = 64;
/// Messages, and changes to them, of which it is not known yet whether they are ours.
const UNSURE_MAX: usize = 4_096;
/// How often it is looked whether the bot is let in again where it was refused.
const LOOK: Duration = Duration::from_secs(20);

/// Listens until it is dropped.
pub(super) async fn listen(inner: Arc<Inner>, inbox: Arc<dyn Inbox>) {
    let line = Line::open(&inner);
    Ear::new(inner, inbox).hear(line).await;
}

/// What somebody waits for an answer to.
enum Asked {
    Command(Box<Command>),
    Click(Box<Click>),
    Suggestions(Box<Command>),
}

/// Who listens.
pub(super) struct Ear {
    pub(super) inner: Arc<Inner>,
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) lanes: Lanes,
    pub(super) tasks: JoinSet<()>,
    places: Arc<Semaphore>,
    /// What is bound, as far as it is remembered, and how often that has changed.
    pub(super) bound: Bound,
    pub(super) changes: watch::Receiver<u64>,
    /// At most one look at what is bound now.
    pub(super) listings: JoinSet<Listing>,
    /// What ended, to be done once it is known what is bound now.
    pub(super) ended: Vec<Ended>,
    /// What is to be read again.
    pub(super) reads: Reads,
    pub(super) started: Instant,
    unsure: Arc<Semaphore>,
    /// Servers that are out of reach.
    gone: BTreeSet<Snowflake>,
    /// The last conversation of those that are shut to the bot that was looked at.
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
        // They may have changed since the line was begun.
        renewed.mark_changed();
        self.tasks.spawn(registration::keep(Arc::clone(&inner)));
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            while self.tasks.try_join_next().is_some() {}
            let due = self.due();
            tokio::select! {
                biased;
                // The sender lives as long as this.
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

    /// Takes up what a reload changed. Another token wants another connection, and one that failed for good is tried
    /// again: somebody may have mended what was wrong (D7). What the old one had brought is taken first: clicks, commands
    /// and edits are told by nobody again.
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

    /// What turned out while something was done.
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
            // That the bot sees its threads no more, or again, is told in no other way.
            Event::ChannelChanged(id) => {
                self.inner.known.rights_changed(known::Place::Channel(id));
                self.want(Scope::Channel(id));
            }
            Event::GuildGone { id, outage } => {
                tracing::warn!(guild = %id, outage, "a server of Discord is out of reach");
                self.gone.insert(id);
                // What is out of order for a while stays (D3).
                if !outage {
                    self.inner.known.joined(id, false);
                    self.end(Ended::Guild(id));
                }
            }
            // Each server comes once after a start, when everything is read anyway.
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

    /// Somebody changed what they said. Where too much waits to be told apart it is found with what a session of events
    /// has looked at, if it matters.
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

    fn ready(&mut self, ready: Ready) {
        tracing::info!(
            account = self.inner.account,
            bot = ready.me.name,
            guilds = ready.guilds.len(),
            "Discord is there"
        );
        self.inner.known.is_me(ready.me.id, ready.application);
        self.inner.known.is_in(&ready.guilds, ready.shard);
        self.inner.registered.look();
        // Everything that is bound is read from where it was read last; what comes by meanwhile waits for that (H8).
        self.want(Scope::All);
    }

    /// What is said in a conversation that is bound to nothing is none of ours, unless it is a command.
    fn message(&mut self, message: Box<Message>) {
        let channel = message.channel;
        self.inner.known.spoke(channel, message.id);
        let Some(identity) = self.inner.known.identity() else { return };
        match take(&identity, &message) {
            Taken::Echo { nonce, message } => {
                if let Some(nonce) = nonce {
                    self.inner.rest.echo(&nonce, message);
                }
            }
            Taken::System | Taken::Bot => {}
            Taken::Said => self.said(message),
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

    /// Works on an interaction aside, if there is room.
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
