//! Conversation workers: one queue and one worker per conversation. Messages are processed in order, and
//! after a gap only once the backfill is complete (H8).
//!
//! Discord may fail to report a message, without any sign of this. So events never advance the mark: once no
//! more messages arrive, the conversation is read from the mark on, and only this read advances the mark. A
//! message without an event is found together with the next message, or with the next websocket session.

use super::Inner;
use super::again::{Attempt as _, again};
use super::backfill::{Behind, LOOK, MISSED, remember};
use super::interactions::shown;
use super::known::Spot;
use super::lately::Lately;
use super::looks::Shelf;
use super::mailbox::{Mailbox, Next, Put};
use super::owed::{Look, Looked, Owed};
use crate::channel::{Attachment, AttachmentContent, ConversationRef, Inbound, Inbox, Offered, Placed};
use crate::core::command;
use acp_discord::core::event::{Attachment as File, Message, MessageEdit};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::intake::{MessageClass, classify_message};
use acp_discord::rest::RestError;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// Maximum number of jobs in one queue. Jobs beyond that are read from Discord again.
const WAITING_MAX: usize = 256;
/// Idle time after which a worker ends.
const IDLE: Duration = Duration::from_secs(300);
/// First and longest pause between attempts to read or commit.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Maximum size of a downloaded file, in bytes, and the timeout of the download.
const FILE_MAX: (u64, Duration) = (8 * 1024 * 1024, Duration::from_secs(20));

/// Job for one conversation.
pub(super) enum Job {
    /// New message.
    Message(Box<Message>),
    /// Job for a conversation that may be unbound: the worker first determines whether a binding exists, or
    /// the configuration binds the parent channel. Holds a permit of the limit for such jobs.
    Unsure(Box<Job>, OwnedSemaphorePermit),
    /// Edited message.
    Edited(MessageEdit),
    /// Deleted message.
    Deleted(Snowflake),
    /// Archive state of the thread.
    Thread(Shelf),
    /// End of the conversation, with the reason.
    Gone(String),
}

impl Job {
    /// Returns the message from which a backfill restores this job. `None` for changes, which Discord reports
    /// once, and for commands, which a backfill does not read in unbound conversations.
    fn is_read_from(&self) -> Option<Snowflake> {
        match self {
            Self::Message(message) => command::parse(&message.text).is_none().then_some(message.id),
            Self::Unsure(job, _) => job.is_read_from(),
            Self::Edited(_) | Self::Deleted(_) | Self::Thread(_) | Self::Gone(_) => None,
        }
    }
}

/// Conversation workers of one account.
pub(super) struct Lanes {
    inner: Arc<Inner>,
    inbox: Arc<dyn Inbox>,
    lanes: HashMap<Snowflake, Arc<Mailbox<Job>>>,
}

impl Lanes {
    pub(super) fn new(inner: Arc<Inner>, inbox: Arc<dyn Inbox>) -> Self {
        Self { inner, inbox, lanes: HashMap::new() }
    }

    /// Adds a job to the queue of a conversation. Never waits.
    pub(super) fn put(&mut self, tasks: &mut tokio::task::JoinSet<()>, channel: Snowflake, job: Job) {
        let mut job = job;
        let from = job.is_read_from();
        while let Put::Closed(back) = self.open(tasks, channel).put(job, from) {
            job = back;
        }
    }

    /// Requests a backfill for a message dropped at a limit; effective only if the conversation proves to be
    /// bound.
    pub(super) fn miss(
        &mut self,
        tasks: &mut tokio::task::JoinSet<()>,
        channel: Snowflake,
        message: Snowflake,
    ) {
        while !self.open(tasks, channel).miss(message) {}
    }

    /// Requests a backfill of a conversation before all other jobs. Repeated requests lead to one backfill.
    pub(super) fn read(&mut self, tasks: &mut tokio::task::JoinSet<()>, channel: Snowflake) {
        while !self.open(tasks, channel).read() {}
    }

    /// Returns the queue of a conversation. Starts a worker if none is running.
    fn open(&mut self, tasks: &mut tokio::task::JoinSet<()>, channel: Snowflake) -> &Mailbox<Job> {
        if self.lanes.get(&channel).is_none_or(|lane| lane.is_closed()) {
            self.lanes.retain(|_, lane| !lane.is_closed());
        }
        let (inner, inbox) = (&self.inner, &self.inbox);
        self.lanes.entry(channel).or_insert_with(|| {
            let mailbox = Arc::new(Mailbox::new(WAITING_MAX));
            let lane = Lane {
                inner: Arc::clone(inner),
                inbox: Arc::clone(inbox),
                channel,
                mailbox: Arc::clone(&mailbox),
                behind: Behind::default(),
                owed: Owed::default(),
                left: None,
                lately: Lately::default(),
                turned_away: BTreeSet::new(),
                missed: None,
            };
            tasks.spawn(lane.run());
            mailbox
        })
    }
}

/// Worker of one conversation.
pub(super) struct Lane {
    pub(super) inner: Arc<Inner>,
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) channel: Snowflake,
    pub(super) mailbox: Arc<Mailbox<Job>>,
    /// Messages passed in from events that no history read has covered yet.
    pub(super) behind: Behind,
    /// Pending checks.
    pub(super) owed: Owed,
    /// Messages whose turn has not begun and that still have to be compared with their current text; `None`:
    /// all.
    pub(super) left: Option<BTreeSet<Snowflake>>,
    /// Ids of messages with an event during the last 10 s.
    pub(super) lately: Lately,
    /// Messages of people not on the allow-list: checked once during the life of the worker, even if received
    /// again.
    turned_away: BTreeSet<Snowflake>,
    /// First message rejected by the full queue, until a backfill from this message is complete.
    pub(super) missed: Option<Snowflake>,
}

/// Action of a worker without jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Run a check.
    Look(Look),
    /// Read the history, to find messages without events.
    Read,
    /// End the worker.
    End,
}

impl Drop for Lane {
    fn drop(&mut self) {
        // The next job starts another worker.
        self.mailbox.abandon();
    }
}

impl Lane {
    async fn run(mut self) {
        let mailbox = Arc::clone(&self.mailbox);
        loop {
            let (at, due) = self.due(Instant::now());
            match (tokio::time::timeout_at(at, mailbox.next()).await, due) {
                (Ok(Next::Job(job)), _) => self.work(job).await,
                (Ok(Next::Read(from)), _) => self.catch_up(from).await,
                // New jobs interrupt checks and history reads.
                (Err(_), Due::Look(look)) => self.look(look).await,
                (Err(_), Due::Read) => self.read_on(LOOK, mailbox.arrives()).await,
                // The bot has no access, and only this worker knows the start of the backfill.
                (Err(_), Due::End) if self.missed.is_some() => self.catch_up(None).await,
                (Err(_), Due::End) if mailbox.close() => return,
                (Err(_), Due::End) => {}
            }
        }
    }

    /// Returns the next action if no job arrives, and the time for it.
    fn due(&self, now: Instant) -> (Instant, Due) {
        let look = self.owed.next().map(|(at, look)| (at, Due::Look(look)));
        let read = self.behind.due().map(|at| (at, Due::Read));
        let end = (now + IDLE, Due::End);
        [look, read].into_iter().flatten().min().map_or(end, |due| due.min(end))
    }

    /// Runs one pending check; interrupted by new jobs.
    async fn look(&mut self, look: Look) {
        let mailbox = Arc::clone(&self.mailbox);
        let looked = match look {
            Look::Waiting => self.look_at_waiting(mailbox.arrives()).await,
            Look::Thread => self.look_at_thread(mailbox.arrives()).await,
        };
        match looked {
            Ok(Looked::Done) => self.owed.done(look),
            Ok(Looked::Partly) => self.owed.failed(look, Instant::now()),
            // The check runs again after the new jobs.
            Ok(Looked::Interrupted) => {}
            Err(fault) => {
                let is_for_good =
                    self.refused(&fault).await.is_some() || Err(fault.clone()).later().is_none();
                tracing::info!(%fault, ?look, is_for_good, thread_id = %self.channel, "a look failed");
                if is_for_good {
                    self.owed.done(look);
                } else {
                    self.owed.failed(look, Instant::now());
                }
            }
        }
    }

    async fn work(&mut self, job: Job) {
        let job = match job {
            Job::Unsure(job, place) => {
                let is_ours = self.turns_out_ours().await;
                drop(place);
                if !is_ours {
                    return;
                }
                *job
            }
            job => job,
        };
        match job {
            Job::Unsure(..) => {}
            Job::Message(message) => {
                // A new message unarchives the thread.
                self.inner.rest.set_archived(self.channel, false);
                if self.bring(&message).await {
                    self.behind.brought(message.id, Instant::now());
                }
                self.lately.told(message.id, Instant::now());
                if self.behind.is_long() {
                    self.read_on(MISSED, std::future::pending()).await;
                }
            }
            Job::Edited(edit) => self.edited(edit).await,
            Job::Deleted(id) => self.deleted(id).await,
            Job::Thread(shelf) => self.thread(&shelf).await,
            Job::Gone(why) => {
                self.owed = Owed::default();
                self.gone(why).await;
            }
        }
    }

    /// Returns true if messages of this conversation are for agents. Waits until known: the number of waiting
    /// jobs is limited, and the rest is read from Discord.
    async fn turns_out_ours(&self) -> bool {
        let mut pause = PAUSE.0;
        loop {
            match self.inbox.place(self.inner.at(self.channel, None)).await {
                Placed::At(_) => return true,
                Placed::Nowhere => return self.inner.turns_out_configured(self.channel).await,
                Placed::Unknown => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Returns the reference of the conversation, with the parent channel if known.
    pub(super) fn here(&self) -> ConversationRef {
        self.inner.at(self.channel, self.inner.known.parent(self.channel))
    }

    /// Passes in a message, with retries until accepted or refused. Returns false if the bot's identity is
    /// unknown yet.
    pub(super) async fn bring(&mut self, message: &Message) -> bool {
        if self.turned_away.contains(&message.id) {
            return true;
        }
        let Some(identity) = self.inner.known.identity() else { return false };
        match classify_message(&identity, message) {
            MessageClass::User => {}
            MessageClass::Own { nonce, message } => {
                if let Some(nonce) = nonce {
                    self.inner.rest.record_sent_nonce(&nonce, message);
                }
                return true;
            }
            MessageClass::System | MessageClass::Bot => return true,
        }
        let settings = self.inner.settings();
        let door = &settings.door;
        if !door.serves(message.guild) || !door.admits(&message.author) {
            tracing::info!(author = %message.author.user.id, thread_id = %self.channel, "somebody who may not speaks");
            remember(&mut self.turned_away, message.id);
            return true;
        }
        let parent = self.inner.parent_of(self.channel).await;
        let inbound = Inbound {
            author_id: message.author.user.id.to_string(),
            approves: door.approves(&message.author),
            attachments: self.files(&message.attachments).await,
            ..Inbound::new(
                self.inner.at(self.channel, parent),
                message.id.to_string(),
                shown(&message.author),
                message.text.clone(),
            )
        };
        if inbound.text.trim().is_empty() && inbound.attachments.is_empty() {
            tracing::warn!(
                thread_id = %self.channel,
                "a message without text: turn on the Message Content intent (Developer Portal, Bot)"
            );
            return true;
        }
        let offer = || self.inbox.offer(inbound.clone());
        if let Offered::Refused { why } = again("a message", self.channel, offer).await {
            tracing::info!(why, message = %message.id, "a message was refused");
        }
        true
    }

    /// Downloads files, only from Discord's own hosts or from the configured host.
    async fn files(&self, files: &[File]) -> Vec<Attachment> {
        let mut out = Vec::new();
        for file in files.iter().take(crate::core::files::FILES_MAX + 1) {
            let content = match self.fetch(file).await {
                Ok(bytes) => AttachmentContent::Bytes(bytes),
                Err(why) => AttachmentContent::LeftOut { bytes: file.size, why },
            };
            let mime = file.mime.clone().unwrap_or_default();
            out.push(Attachment { name: file.name.clone(), mime, content });
        }
        out
    }

    async fn fetch(&self, file: &File) -> Result<Vec<u8>, String> {
        if file.size > FILE_MAX.0 {
            return Err(format!("a file may have {} bytes", FILE_MAX.0));
        }
        let url = reqwest::Url::parse(&file.url).map_err(|_| "its address cannot be read".to_owned())?;
        if !self.inner.may_fetch(&url) {
            return Err("it is not at Discord".to_owned());
        }
        let none = || "it could not be fetched".to_owned();
        let client = reqwest::Client::builder()
            .timeout(FILE_MAX.1)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|_| none())?;
        let mut answer = client.get(url).send().await.map_err(|_| none())?;
        if !answer.status().is_success() {
            return Err(format!("{} (status {})", none(), answer.status().as_u16()));
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|_| none())? {
            if bytes.len() + chunk.len() > usize::try_from(FILE_MAX.0).unwrap_or(usize::MAX) {
                return Err("it is longer than it was said to be".to_owned());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

impl Inner {
    fn may_fetch(&self, url: &reqwest::Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        if self.base.is_official() {
            let own = ["cdn.discordapp.com", "media.discordapp.net"];
            return url.scheme() == "https" && own.contains(&host);
        }
        let base = reqwest::Url::parse(self.base.as_str()).ok();
        base.is_some_and(|base| base.host_str() == Some(host) && base.scheme() == url.scheme())
    }

    /// Returns whether the configuration binds a conversation or the parent channel; `None` if unknown.
    pub(super) fn is_configured(&self, channel: Snowflake) -> Option<bool> {
        let settings = self.settings();
        let configured = &settings.configured;
        if configured.is_empty() || configured.contains(&channel) {
            return Some(!configured.is_empty());
        }
        let parent = self.known.parent(channel);
        let is_known = parent.is_some() || self.known.spot(channel).is_some();
        is_known.then(|| parent.is_some_and(|parent| configured.contains(&parent)))
    }

    /// Like `is_configured`, with requests to Discord until known; false if Discord refuses.
    pub(super) async fn turns_out_configured(&self, channel: Snowflake) -> bool {
        let mut pause = PAUSE.0;
        loop {
            if let Some(known) = self.is_configured(channel) {
                return known;
            }
            match self.rest.channel(channel).await {
                Ok(found) => {
                    let parent = found.parent_id.filter(|_| found.is_thread());
                    self.known.is_at(channel, parent, found.guild_id);
                }
                Err(fault) if Err(fault.clone()).later().is_none() => {
                    tracing::warn!(%fault, thread_id = %channel, "it is not known what this conversation hangs from");
                    return false;
                }
                Err(_) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
        }
    }

    /// Returns the parent channel of a thread; one request if unknown.
    pub(super) async fn parent_of(&self, channel: Snowflake) -> Option<Snowflake> {
        match self.known.spot(channel) {
            Some(spot) => spot.parent,
            None => self.look_up(channel).await.ok()?.parent,
        }
    }

    /// Returns the server of a conversation; one request if unknown.
    pub(super) async fn guild_of(&self, channel: Snowflake) -> Result<Option<Snowflake>, RestError> {
        match self.known.spot(channel).and_then(|spot| spot.guild) {
            Some(guild) => Ok(Some(guild)),
            None => Ok(self.look_up(channel).await?.guild),
        }
    }

    pub(super) async fn look_up(&self, channel: Snowflake) -> Result<Spot, RestError> {
        let found = self.rest.channel(channel).await?;
        let parent = found.parent_id.filter(|_| found.is_thread());
        self.known.is_at(channel, parent, found.guild_id);
        Ok(Spot { parent, guild: found.guild_id })
    }
}
