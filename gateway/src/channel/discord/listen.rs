//! The loop over what happens on Discord, in its order. Nothing in here waits for anything but the next event and the
//! list of what is bound: messages go into lanes, interactions into tasks of their own.

use super::lanes::{Job, Lanes};
use super::line::Line;
use super::{DISCORD, Inner, registration};
use crate::channel::{Inbox, Place};
use crate::store::now_ms;
use acp_discord::core::event::{Click, Command, Event, Message, Ready};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::intake::{Taken, take};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Interactions that are worked on at once.
const INTERACTIONS_MAX: usize = 64;
/// Pause before the list of what is bound is read again.
const AGAIN: Duration = Duration::from_millis(500);

/// How often it is looked whether the bot is let in again where it was refused, and at how many conversations: each
/// look counts among the refusals that Discord forgives, and not everybody who lets it in again is told of.
const LOOK: (Duration, usize) = (Duration::from_secs(20), 4);

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

struct Ear {
    inner: Arc<Inner>,
    inbox: Arc<dyn Inbox>,
    lanes: Lanes,
    tasks: JoinSet<()>,
    places: Arc<Semaphore>,
    /// Conversations that were bound when that was last looked at.
    bound: BTreeSet<Snowflake>,
    /// Servers that are out of reach.
    gone: BTreeSet<Snowflake>,
    /// The last conversation of those that are shut to the bot that was looked at.
    looked: Snowflake,
}

impl Ear {
    fn new(inner: Arc<Inner>, inbox: Arc<dyn Inbox>) -> Self {
        Self {
            lanes: Lanes::new(Arc::clone(&inner), Arc::clone(&inbox)),
            inner,
            inbox,
            tasks: JoinSet::new(),
            places: Arc::new(Semaphore::new(INTERACTIONS_MAX)),
            bound: BTreeSet::new(),
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
        let mut look = tokio::time::interval(LOOK.0);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            while self.tasks.try_join_next().is_some() {}
            tokio::select! {
                biased;
                // The sender lives as long as this.
                _ = renewed.changed() => self.renew(&mut line).await,
                event = line.next() => self.hear_one(event).await,
                _ = look.tick() => self.look_again().await,
                losses = inner.known.losses() => {
                    for channel in losses {
                        self.gone(channel, "Discord does not know it any more").await;
                    }
                }
            }
        }
    }

    async fn hear_one(&mut self, event: Event) {
        self.inner.pulse.hear(&event, now_ms());
        self.take(event).await;
    }

    /// Takes up what a reload changed. Another token wants another connection, and one that failed for good is tried
    /// again: somebody may have mended what was wrong (D7). What the old one had brought is taken first: clicks, commands
    /// and edits are told by nobody again.
    async fn renew(&mut self, line: &mut Line) {
        let inner = Arc::clone(&self.inner);
        if line.is_no_use_with(&inner.settings().token) || inner.pulse.has_failed() {
            line.end();
            while let Some(event) = line.last().await {
                self.hear_one(event).await;
            }
            tracing::info!(account = inner.account, "the connection to Discord is begun anew");
            inner.pulse.begins();
            inner.registered.begin_anew();
            *line = Line::open(&inner);
        } else {
            inner.registered.look();
        }
    }

    /// Looks again at some of those conversations that the bot was refused.
    async fn look_again(&mut self) {
        let shut = self.inner.known.shut();
        if shut.is_empty() {
            return;
        }
        let places = self.places_of().await;
        for id in shut.difference(&self.bound) {
            self.inner.known.is_shut(*id, false);
        }
        let after = shut.range((Bound::Excluded(self.looked), Bound::Unbounded));
        let next: Vec<Snowflake> = after.chain(shut.range(..=self.looked)).copied().take(LOOK.1).collect();
        self.looked = next.last().copied().unwrap_or(Snowflake(0));
        self.read(places, |id| next.contains(&id));
    }

    async fn take(&mut self, event: Event) {
        match event {
            Event::Ready(ready) => self.ready(ready).await,
            Event::Gap { why, lost } => {
                tracing::warn!(?why, lost, "events of Discord were missed");
                self.read_again().await;
            }
            Event::Message(message) => self.message(message).await,
            Event::MessageEdited(edit) => {
                if self.is_bound(edit.channel).await {
                    self.put(edit.channel, Job::Edited(edit));
                }
            }
            Event::MessagesDeleted { channel, ids } => {
                if self.is_bound(channel).await {
                    ids.into_iter().for_each(|id| self.put(channel, Job::Deleted(id)));
                }
            }
            Event::Command(command) => self.apart(Asked::Command(command)),
            Event::Click(click) => self.apart(Asked::Click(click)),
            Event::Autocomplete(command) => self.apart(Asked::Suggestions(command)),
            Event::ThreadCreated(thread) => self.inner.known.is_at(thread.id, thread.parent, thread.guild),
            Event::ThreadChanged(thread) => {
                self.inner.known.is_at(thread.id, thread.parent, thread.guild);
                if self.is_bound(thread.id).await {
                    if self.inner.known.shut().contains(&thread.id) {
                        let places = self.places_of().await;
                        self.read(places, |id| id == thread.id);
                    }
                    let auto_archive_minutes = thread.auto_archive_minutes;
                    self.put(thread.id, Job::Thread { is_archived: thread.archived, auto_archive_minutes });
                }
            }
            Event::ThreadDeleted { id, .. } => self.gone(id, "the thread was deleted").await,
            Event::ChannelDeleted(id) => self.channel_gone(id).await,
            Event::Disconnected { why } => tracing::warn!(why, "the connection to Discord was lost"),
            Event::Alarm(text) => tracing::error!("Discord: {text}"),
            Event::Unknown { kind } => tracing::info!(kind, "an event of Discord that nobody here knows"),
            Event::Failed(failure) => {
                tracing::error!(account = self.inner.account, "Discord is not served any more: {failure}");
            }
            // That the bot sees its threads no more, or again, is told in no other way.
            Event::ChannelChanged(id) => {
                let (places, inner) = (self.places_of().await, Arc::clone(&self.inner));
                self.read(places, |at| at == id || inner.known.parent(at) == Some(id));
            }
            Event::GuildGone { id, outage } => self.guild_gone(id, outage).await,
            // Each server comes once after a start, when everything is read anyway.
            Event::GuildBack(id) => {
                self.inner.known.joined(id, true);
                self.inner.registered.look();
                if self.gone.remove(&id) {
                    self.read_guild(id).await;
                }
            }
            Event::RightsChanged(id) => self.read_guild(id).await,
            Event::Resumed | Event::ModalSubmit(_) => {}
        }
    }

    async fn read_guild(&mut self, guild: Snowflake) {
        let (places, inner) = (self.places_of().await, Arc::clone(&self.inner));
        self.read(places, |at| inner.known.spot(at).and_then(|spot| spot.guild) == Some(guild));
    }

    async fn channel_gone(&mut self, id: Snowflake) {
        let places = self.places_of().await;
        let parent = id.to_string();
        for place in places {
            let at = &place.conversation;
            if at.parent_conversation_id.as_deref() == Some(&parent)
                && let Ok(thread) = at.conversation_id.parse()
            {
                self.gone(thread, "its channel was deleted").await;
            }
        }
        self.gone(id, "the channel was deleted").await;
    }

    /// What is bound in a server that the bot was thrown out of ends; what is out of order for a while stays (D3).
    async fn guild_gone(&mut self, guild: Snowflake, outage: bool) {
        tracing::warn!(%guild, outage, "a server of Discord is out of reach");
        self.gone.insert(guild);
        if outage {
            return;
        }
        self.inner.known.joined(guild, false);
        for place in self.places_of().await {
            if let Ok(id) = place.conversation.conversation_id.parse::<Snowflake>()
                && self.inner.known.spot(id).and_then(|spot| spot.guild) == Some(guild)
            {
                self.gone(id, "the bot was taken out of the server").await;
            }
        }
    }

    fn put(&mut self, channel: Snowflake, job: Job) {
        self.lanes.put(&mut self.tasks, channel, job);
    }

    async fn gone(&mut self, channel: Snowflake, why: &str) {
        if self.is_bound(channel).await {
            self.put(channel, Job::Gone(why.to_owned()));
        }
    }

    async fn ready(&mut self, ready: Ready) {
        tracing::info!(
            account = self.inner.account,
            bot = ready.me.name,
            guilds = ready.guilds.len(),
            "Discord is there"
        );
        self.inner.known.is_me(ready.me.id, ready.application);
        self.inner.known.is_in(&ready.guilds, ready.shard);
        self.inner.registered.look();
        self.read_again().await;
    }

    /// Everything that is bound is read from where it was read last; what comes by meanwhile waits for that (H8).
    async fn read_again(&mut self) {
        let places = self.listed().await;
        self.read(places, |_| true);
    }

    /// Reads those of these conversations that are meant.
    fn read(&mut self, places: Vec<Place>, is_meant: impl Fn(Snowflake) -> bool) {
        for place in places {
            if let Ok(channel) = place.conversation.conversation_id.parse()
                && is_meant(channel)
            {
                self.put(channel, Job::Missed(place));
            }
        }
    }

    /// The bound conversations. One that was bound since is read once from its beginning on: after that each message
    /// moves its mark, and what was refused is not judged anew after a start (H8).
    async fn places_of(&mut self) -> Vec<Place> {
        let before = std::mem::take(&mut self.bound);
        let places = self.listed().await;
        self.read(places.clone(), |at| !before.contains(&at));
        places
    }

    /// The bound conversations. Without them nothing can be told apart: they are asked for until they are known.
    async fn listed(&mut self) -> Vec<Place> {
        loop {
            match self.inbox.bound(DISCORD.to_owned(), self.inner.account.clone()).await {
                Some(places) => {
                    self.bound = places
                        .iter()
                        .filter_map(|place| place.conversation.conversation_id.parse().ok())
                        .collect();
                    return places;
                }
                None => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    async fn is_bound(&mut self, channel: Snowflake) -> bool {
        if self.inner.is_configured(channel) == Some(true) {
            return true;
        }
        if !self.bound.contains(&channel) {
            // It may have been bound since.
            self.places_of().await;
        }
        self.bound.contains(&channel)
    }

    /// What is said in a conversation that is bound to nothing is none of ours, unless it is a command.
    async fn message(&mut self, message: Box<Message>) {
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
            Taken::Said => {
                let is_command = crate::core::command::parse(&message.text).is_some();
                if is_command || self.is_bound(channel).await {
                    self.put(channel, Job::Message(message));
                } else if self.inner.is_configured(channel).is_none() {
                    self.put(channel, Job::Unsure(message));
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
