//! The loop over what happens on Discord, in its order. Nothing in here waits for anything but the next event and the
//! list of what is bound: messages go into lanes, interactions into tasks of their own.

use super::lanes::{Job, Lanes};
use super::slash::specs;
use super::{DISCORD, Inner};
use crate::channel::Inbox;
use crate::store::now_ms;
use acp_discord::core::commands::registration;
use acp_discord::core::event::{Click, Command, Event, Message, Ready};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::intake::{Taken, take};
use acp_discord::session::{self, Events};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Events that may wait; what comes then is a gap, and is read again.
const EVENTS_MAX: usize = 4_096;
/// Interactions that are worked on at once.
const INTERACTIONS_MAX: usize = 64;
/// Pause before the list of what is bound is read again.
const AGAIN: Duration = Duration::from_millis(500);

/// Listens until it is dropped.
pub(super) async fn listen(inner: Arc<Inner>, inbox: Arc<dyn Inbox>) {
    if inner.settings.door.allowed.is_empty() && inner.settings.door.approvers.is_empty() {
        tracing::warn!(
            account = inner.account,
            "nobody may speak to agents here: name users or roles in channels.discord.accounts.{}.allowed_users",
            inner.account
        );
    }
    let stop = CancellationToken::new();
    let _ends_with_this = stop.clone().drop_guard();
    let (sink, events) = session::pipe(EVENTS_MAX);
    let settings = session::Settings {
        token: inner.settings.token.clone(),
        base: inner.settings.base.clone(),
        direct_messages: false,
        shards: None,
        counts: Arc::clone(&inner.counts),
    };
    tokio::spawn(session::run(settings, stop, sink));
    let lanes = Lanes::new(Arc::clone(&inner), Arc::clone(&inbox));
    let ear = Ear {
        inner,
        inbox,
        lanes,
        tasks: JoinSet::new(),
        places: Arc::new(Semaphore::new(INTERACTIONS_MAX)),
        bound: BTreeSet::new(),
        is_registered: false,
    };
    ear.hear(events).await;
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
    is_registered: bool,
}

impl Ear {
    async fn hear(mut self, mut events: Events) {
        let inner = Arc::clone(&self.inner);
        loop {
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event else { break };
                    while self.tasks.try_join_next().is_some() {}
                    self.inner.pulse.hear(&event, now_ms());
                    self.take(event).await;
                }
                losses = inner.known.losses() => {
                    for channel in losses {
                        self.gone(channel, "Discord does not know it any more").await;
                    }
                }
            }
        }
        // It failed for good, which is in the log: what is under way goes on.
        while self.tasks.join_next().await.is_some() {}
        std::future::pending::<()>().await;
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
            Event::ThreadCreated(thread) => self.inner.known.is_thread(thread.id, thread.parent),
            Event::ThreadChanged(thread) => {
                self.inner.known.is_thread(thread.id, thread.parent);
                if self.is_bound(thread.id).await {
                    let auto_archive_minutes = thread.auto_archive_minutes;
                    self.put(thread.id, Job::Thread { is_archived: thread.archived, auto_archive_minutes });
                }
            }
            Event::ThreadDeleted { id, .. } => self.gone(id, "the thread was deleted").await,
            Event::ChannelDeleted(id) => {
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
            Event::Disconnected { why } => tracing::warn!(why, "the connection to Discord was lost"),
            Event::Alarm(text) => tracing::error!("Discord: {text}"),
            Event::Unknown { kind } => tracing::info!(kind, "an event of Discord that nobody here knows"),
            Event::Failed(failure) => {
                tracing::error!(account = self.inner.account, "Discord is not served any more: {failure}");
            }
            // What may have become invisible or visible with it is seen when something is asked for there.
            Event::Resumed
            | Event::ModalSubmit(_)
            | Event::ChannelChanged(_)
            | Event::GuildGone { .. }
            | Event::GuildBack(_) => {}
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
        if !std::mem::replace(&mut self.is_registered, true) {
            let (inner, application) = (Arc::clone(&self.inner), ready.application);
            self.tasks.spawn(async move { register(&inner, application).await });
        }
        self.read_again().await;
    }

    /// Everything that is bound is read from where it was read last; what comes by meanwhile waits for that (H8).
    async fn read_again(&mut self) {
        for place in self.places_of().await {
            if let Ok(channel) = place.conversation.conversation_id.parse() {
                self.put(channel, Job::Missed(place));
            }
        }
    }

    /// The bound conversations. Without them nothing can be told apart: they are asked for until they are known.
    async fn places_of(&mut self) -> Vec<crate::channel::Place> {
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

/// Tells Discord which slash commands there are.
async fn register(inner: &Inner, application: Snowflake) {
    let commands = match registration(&specs()) {
        Ok(serde_json::Value::Array(commands)) => commands,
        Ok(_) => return,
        Err(broken) => {
            tracing::error!(?broken, "the slash commands cannot be registered");
            return;
        }
    };
    let guilds: Vec<Option<Snowflake>> = match inner.settings.door.guilds.is_empty() {
        true => vec![None],
        false => inner.settings.door.guilds.iter().copied().map(Some).collect(),
    };
    for guild in guilds {
        if let Err(fault) = inner.rest.put_commands(application, guild, &commands).await {
            tracing::warn!(%fault, ?guild, "the slash commands were not registered; text commands work all the same");
        }
    }
}
