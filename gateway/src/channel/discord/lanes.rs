//! Messages of conversations, each conversation in its own lane: in their order, and after a gap not before what was
//! missed was read (H8).
//!
//! Discord may never tell of a message, and nothing shows that. So what it tells of moves no mark: the conversation is
//! read from the mark on, once nothing more has come for a moment, and only what was read moves it. A message that
//! nobody told of is found with the next one, or with the next session of events.

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
use acp_discord::core::event::{Attachment as File, Edit, Message};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::intake::{Taken, take};
use acp_discord::rest::Fault;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// Things that may wait in one lane. What does not fit is read again from Discord.
const WAITING_MAX: usize = 256;
/// How long a lane with nothing in it stays.
const IDLE: Duration = Duration::from_secs(300);
/// First and longest pause before what could not be read or kept is tried again.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// The longest file that is fetched, in bytes, and how long that may take.
const FILE_MAX: (u64, Duration) = (8 * 1024 * 1024, Duration::from_secs(20));

/// Something for one conversation.
pub(super) enum Job {
    /// Somebody wrote.
    Message(Box<Message>),
    /// This happened where it must be asked first whether the conversation is bound, or the configuration binds what it
    /// hangs from. With its place among those that may wait for that.
    Unsure(Box<Job>, OwnedSemaphorePermit),
    /// Somebody changed what they wrote.
    Edited(Edit),
    /// A message is gone.
    Deleted(Snowflake),
    /// It is a thread that is put away or not.
    Thread(Shelf),
    /// It is not there any more.
    Gone(String),
}

impl Job {
    /// The message from which on a read brings this back, if one does: what is changed is told once, and so is a command
    /// where nothing is bound.
    fn is_read_from(&self) -> Option<Snowflake> {
        match self {
            Self::Message(message) => command::parse(&message.text).is_none().then_some(message.id),
            Self::Unsure(job, _) => job.is_read_from(),
            Self::Edited(_) | Self::Deleted(_) | Self::Thread(_) | Self::Gone(_) => None,
        }
    }
}

/// The lanes of one account.
pub(super) struct Lanes {
    inner: Arc<Inner>,
    inbox: Arc<dyn Inbox>,
    lanes: HashMap<Snowflake, Arc<Mailbox<Job>>>,
}

impl Lanes {
    pub(super) fn new(inner: Arc<Inner>, inbox: Arc<dyn Inbox>) -> Self {
        Self { inner, inbox, lanes: HashMap::new() }
    }

    /// Puts something into a lane. Never waits.
    pub(super) fn put(&mut self, tasks: &mut tokio::task::JoinSet<()>, channel: Snowflake, job: Job) {
        let mut job = job;
        let from = job.is_read_from();
        while let Put::Closed(back) = self.open(tasks, channel).put(job, from) {
            job = back;
        }
    }

    /// There is no room for a message anywhere: the conversation is read from it on, should it turn out to be ours.
    pub(super) fn miss(
        &mut self,
        tasks: &mut tokio::task::JoinSet<()>,
        channel: Snowflake,
        message: Snowflake,
    ) {
        while !self.open(tasks, channel).miss(message) {}
    }

    /// Has a conversation read from its mark on, before anything else that waits there. However often that is said
    /// until it begins, it is read once.
    pub(super) fn read(&mut self, tasks: &mut tokio::task::JoinSet<()>, channel: Snowflake) {
        while !self.open(tasks, channel).read() {}
    }

    /// The lane of a conversation; another one where it has ended.
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

/// One conversation.
pub(super) struct Lane {
    pub(super) inner: Arc<Inner>,
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) channel: Snowflake,
    pub(super) mailbox: Arc<Mailbox<Job>>,
    /// What was brought since the mark without being read.
    pub(super) behind: Behind,
    /// What is to be looked at once nothing waits.
    pub(super) owed: Owed,
    /// Of the messages whose turn has not begun, those that are still to be compared with what they say now; none: all.
    pub(super) left: Option<BTreeSet<Snowflake>>,
    /// Of which messages events told a moment ago.
    pub(super) lately: Lately,
    /// The messages of people who may not speak: they are judged once, however often they come while this lives.
    turned_away: BTreeSet<Snowflake>,
    /// The first message that there was no room for, until the conversation was read from there.
    pub(super) missed: Option<Snowflake>,
}

/// What a lane does when nothing comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// It looks at something.
    Look(Look),
    /// It reads whether it brought everything.
    Read,
    /// It ends.
    End,
}

impl Drop for Lane {
    fn drop(&mut self) {
        // However it ends: what comes next begins another one.
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
                // What comes meanwhile is not kept waiting by what nobody waits for.
                (Err(_), Due::Look(look)) => self.look(look).await,
                (Err(_), Due::Read) => self.read_on(LOOK, mailbox.arrives()).await,
                // The bot may not read here: nobody else remembers from where on it is to be read.
                (Err(_), Due::End) if self.missed.is_some() => self.catch_up(None).await,
                (Err(_), Due::End) if mailbox.close() => return,
                (Err(_), Due::End) => {}
            }
        }
    }

    /// What is done when nothing comes until then.
    fn due(&self, now: Instant) -> (Instant, Due) {
        let look = self.owed.next().map(|(at, look)| (at, Due::Look(look)));
        let read = self.behind.due().map(|at| (at, Due::Read));
        let end = (now + IDLE, Due::End);
        [look, read].into_iter().flatten().min().map_or(end, |due| due.min(end))
    }

    /// Looks at something that is owed, unless something else comes.
    async fn look(&mut self, look: Look) {
        let mailbox = Arc::clone(&self.mailbox);
        let looked = match look {
            Look::Waiting => self.look_at_waiting(mailbox.arrives()).await,
            Look::Thread => self.look_at_thread(mailbox.arrives()).await,
        };
        match looked {
            Ok(Looked::Done) => self.owed.done(look),
            Ok(Looked::Partly) => self.owed.failed(look, Instant::now()),
            // It is the next thing to be done after what came.
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
                // Whoever writes takes it out.
                self.inner.rest.put_away(self.channel, false);
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

    /// Whether what is said here is for agents after all. Waits until that is known: of what waits meanwhile there is
    /// so much and no more, and the rest is read from Discord.
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

    /// The conversation, as far as it is known where it is.
    pub(super) fn here(&self) -> ConversationRef {
        self.inner.at(self.channel, self.inner.known.parent(self.channel))
    }

    /// Brings a message until it is kept or refused; whether it is dealt with.
    pub(super) async fn bring(&mut self, message: &Message) -> bool {
        if self.turned_away.contains(&message.id) {
            return true;
        }
        let Some(identity) = self.inner.known.identity() else { return false };
        match take(&identity, message) {
            Taken::Said => {}
            Taken::Echo { nonce, message } => {
                if let Some(nonce) = nonce {
                    self.inner.rest.echo(&nonce, message);
                }
                return true;
            }
            Taken::System | Taken::Bot => return true,
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

    /// Fetches files, as far as they may be: from Discord's own hosts, or from the configured one.
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
        if self.base.is_discords() {
            let own = ["cdn.discordapp.com", "media.discordapp.net"];
            return url.scheme() == "https" && own.contains(&host);
        }
        let base = reqwest::Url::parse(self.base.text()).ok();
        base.is_some_and(|base| base.host_str() == Some(host) && base.scheme() == url.scheme())
    }

    /// Whether the configuration binds a conversation, or the channel that it hangs from; `None` when that is not known.
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

    /// The same, asked for until it is known. Where it may not be asked for it is none.
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

    /// The channel of a thread; asked for once where it is not known.
    pub(super) async fn parent_of(&self, channel: Snowflake) -> Option<Snowflake> {
        match self.known.spot(channel) {
            Some(spot) => spot.parent,
            None => self.look_up(channel).await.ok()?.parent,
        }
    }

    /// The server of a conversation; asked for once where it is not known.
    pub(super) async fn guild_of(&self, channel: Snowflake) -> Result<Option<Snowflake>, Fault> {
        match self.known.spot(channel).and_then(|spot| spot.guild) {
            Some(guild) => Ok(Some(guild)),
            None => Ok(self.look_up(channel).await?.guild),
        }
    }

    pub(super) async fn look_up(&self, channel: Snowflake) -> Result<Spot, Fault> {
        let found = self.rest.channel(channel).await?;
        let parent = found.parent_id.filter(|_| found.is_thread());
        self.known.is_at(channel, parent, found.guild_id);
        Ok(Spot { parent, guild: found.guild_id })
    }
}
