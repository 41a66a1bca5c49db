//! Messages of conversations, each conversation in its own lane: in their order, and after a gap not before what was
//! missed was read (H8).
//!
//! Discord may never tell of a message, and nothing shows that. So what it tells of moves no mark: the conversation is
//! read from the mark on, once nothing more has come for a moment, and only what was read moves it. A message that
//! nobody told of is found with the next one, or with the next session of events.

use super::Inner;
use super::interactions::shown;
use super::known::{Spot, by_person};
use crate::channel::{Attachment, AttachmentContent, Change, Inbound, Inbox, Offered, Place};
use crate::store::now_ms;
use acp_discord::core::errors::{Meaning, What};
use acp_discord::core::event::{Attachment as File, Edit, Message};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::intake::{Taken, take};
use acp_discord::core::route::Page;
use acp_discord::rest::Fault;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Things that may wait in one lane. What does not fit is read again from Discord.
const WAITING_MAX: usize = 256;
/// How long a lane with nothing in it stays.
const IDLE: Duration = Duration::from_secs(300);
/// How long nothing more has come before a conversation is read after a message.
const QUIET: Duration = Duration::from_secs(2);
/// Messages of one page.
const PAGE: u8 = 100;
/// First and longest pause before what could not be read or kept is tried again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// The longest file that is fetched, in bytes, and how long that may take.
const FILE_MAX: (u64, Duration) = (8 * 1024 * 1024, Duration::from_secs(20));

/// Something for one conversation.
pub(super) enum Job {
    /// Somebody wrote.
    Message(Box<Message>),
    /// Somebody wrote where it must be asked first whether the configuration binds what the conversation hangs from.
    Unsure(Box<Message>),
    /// Somebody changed what they wrote.
    Edited(Edit),
    /// A message is gone.
    Deleted(Snowflake),
    /// Something may have been missed: what is there is read.
    Missed(Place),
    /// It is a thread that is put away or not; the minutes after which Discord does that.
    Thread { is_archived: bool, auto_archive_minutes: u64 },
    /// It is not there any more.
    Gone(String),
}

/// The lanes of one account.
pub(super) struct Lanes {
    inner: Arc<Inner>,
    inbox: Arc<dyn Inbox>,
    lanes: HashMap<Snowflake, (mpsc::Sender<Job>, Arc<AtomicBool>)>,
}

impl Lanes {
    pub(super) fn new(inner: Arc<Inner>, inbox: Arc<dyn Inbox>) -> Self {
        Self { inner, inbox, lanes: HashMap::new() }
    }

    /// Puts something into a lane. Never waits.
    pub(super) fn put(&mut self, tasks: &mut tokio::task::JoinSet<()>, channel: Snowflake, job: Job) {
        let mut job = job;
        for _ in 0..2 {
            if let Some((lane, has_missed)) = self.lanes.get(&channel) {
                match lane.try_send(job) {
                    Ok(()) => return,
                    Err(mpsc::error::TrySendError::Full(_)) => {
                        has_missed.store(true, Ordering::SeqCst);
                        return;
                    }
                    Err(mpsc::error::TrySendError::Closed(back)) => job = back,
                }
            }
            let (lane, jobs) = mpsc::channel(WAITING_MAX);
            let has_missed = Arc::new(AtomicBool::new(false));
            let work = Lane {
                inner: Arc::clone(&self.inner),
                inbox: Arc::clone(&self.inbox),
                channel,
                has_missed: Arc::clone(&has_missed),
                brought: BTreeSet::new(),
            };
            tasks.spawn(work.run(jobs));
            self.lanes.insert(channel, (lane, has_missed));
            self.lanes.retain(|_, (lane, _)| !lane.is_closed());
        }
    }
}

/// One conversation.
struct Lane {
    inner: Arc<Inner>,
    inbox: Arc<dyn Inbox>,
    channel: Snowflake,
    /// Something did not fit into the lane.
    has_missed: Arc<AtomicBool>,
    /// What was brought since the mark without being read.
    brought: BTreeSet<Snowflake>,
}

impl Lane {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        loop {
            let is_behind = !self.brought.is_empty();
            let patience = if is_behind { QUIET } else { IDLE };
            match tokio::time::timeout(patience, jobs.recv()).await {
                Ok(Some(job)) => self.work(job).await,
                Err(_) if is_behind => self.read_on().await,
                Ok(None) | Err(_) => return,
            }
            if jobs.is_empty()
                && self.has_missed.swap(false, Ordering::SeqCst)
                && let Some(place) = self.inner.place(self.inbox.as_ref(), self.channel).await
            {
                self.work(Job::Missed(place)).await;
            }
        }
    }

    async fn work(&mut self, job: Job) {
        let job = match job {
            Job::Unsure(message) if self.inner.turns_out_configured(self.channel).await => {
                Job::Message(message)
            }
            job => job,
        };
        let at = || self.inner.at(self.channel, self.inner.known.parent(self.channel));
        match job {
            Job::Unsure(_) => {}
            Job::Message(message) => {
                // Whoever writes takes it out.
                self.inner.rest.put_away(self.channel, false);
                if self.bring(&message).await {
                    self.brought.insert(message.id);
                }
                if self.brought.len() >= usize::from(PAGE) {
                    self.read_on().await;
                }
            }
            Job::Edited(edit) => {
                let is_own =
                    edit.author.as_ref().is_some_and(|author| Some(author.id) == self.inner.known.me());
                if let (Some(text), false, true) = (edit.text, is_own, edit.by_author) {
                    let amended = self.inbox.edited(at(), edit.id.to_string(), text).await;
                    tracing::debug!(message = %edit.id, ?amended, "a message was edited");
                }
            }
            Job::Deleted(id) => {
                let amended = self.inbox.deleted(at(), id.to_string()).await;
                tracing::debug!(message = %id, ?amended, "a message was deleted");
            }
            Job::Missed(place) => self.catch_up(place).await,
            Job::Thread { is_archived, auto_archive_minutes } => {
                self.thread(is_archived, auto_archive_minutes).await;
            }
            Job::Gone(why) => self.gone(why).await,
        }
    }

    async fn gone(&self, why: String) {
        let changed = self.inbox.changed(self.inner.at(self.channel, None), Change::Gone { why }).await;
        // Nothing of it is remembered.
        self.inner.rest.put_away(self.channel, false);
        self.inner.known.forget(self.channel);
        tracing::info!(thread_id = %self.channel, ?changed, "a conversation of Discord is gone");
    }

    async fn thread(&self, is_archived: bool, auto_archive_minutes: u64) {
        let change = if is_archived {
            let last_ms = match self.inner.known.last_ms(self.channel) {
                Some(last_ms) => Some(last_ms),
                None => self.last_said().await,
            };
            // Unknown: Discord does it far more often, and then the next answer takes it out again.
            let by_person = last_ms.is_some_and(|last| by_person(last, now_ms(), auto_archive_minutes));
            self.inner.rest.put_away(self.channel, by_person);
            Change::Archived { by_person }
        } else {
            self.inner.rest.put_away(self.channel, false);
            Change::Unarchived
        };
        self.inbox.changed(self.inner.at(self.channel, None), change).await;
    }

    async fn last_said(&self) -> Option<u64> {
        let channel = self.inner.rest.channel(self.channel).await.ok()?;
        Some(channel.last_message_id.unwrap_or(self.channel).made_at_ms())
    }

    /// Brings a message until it is kept or refused; whether it is dealt with.
    async fn bring(&self, message: &Message) -> bool {
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
        if !door.serves(message.guild) {
            return true;
        }
        if !door.admits(&message.author) {
            tracing::info!(author = %message.author.user.id, thread_id = %self.channel, "somebody who may not speaks");
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
        let mut pause = PAUSE.0;
        loop {
            match self.inbox.offer(inbound.clone()).await {
                Offered::Taken(_) => return true,
                Offered::Refused { why } => {
                    tracing::info!(why, message = %message.id, "a message was refused");
                    return true;
                }
                Offered::Later { why } => {
                    tracing::warn!(why, message = %message.id, "a message waits");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
        }
    }

    /// Reads what may have been missed, and brings it. Later messages wait for that in the lane.
    async fn catch_up(&mut self, place: Place) {
        let mut pause = PAUSE.0;
        let mut mark = mark_of(&place);
        loop {
            match self.read_from(&mut mark).await {
                Ok(()) => break,
                Err(fault) => match fault.meaning() {
                    Some(Meaning::Gone(What::Channel)) => return self.gone(fault.to_string()).await,
                    Some(Meaning::LostAccess | Meaning::Forbidden) => {
                        // D3: it may be given again. The mark stays, and the next look reads from there.
                        if self.inner.known.is_shut(self.channel, true) {
                            tracing::warn!(
                                thread_id = %self.channel,
                                %fault,
                                "the bot cannot read a bound conversation: give it View Channel and Read Message History"
                            );
                        }
                        return;
                    }
                    _ => {
                        tracing::warn!(thread_id = %self.channel, %fault, "what was missed is read later");
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(PAUSE.1);
                    }
                },
            }
        }
        self.look_at_thread().await;
    }

    /// Reads what came since the mark, for what nobody told of. What cannot be read now is read with the next message.
    async fn read_on(&mut self) {
        let Some(place) = self.inner.place(self.inbox.as_ref(), self.channel).await else {
            self.brought.clear();
            return;
        };
        if let Err(fault) = self.read_from(&mut mark_of(&place)).await {
            tracing::info!(thread_id = %self.channel, %fault, "the conversation is read later");
            self.brought.clear();
        }
    }

    /// Brings everything after a mark, page by page, and moves it. What was brought before is not brought again.
    async fn read_from(&mut self, mark: &mut Snowflake) -> Result<(), Fault> {
        loop {
            let mut page = self.inner.rest.messages(self.channel, Page::After(*mark), PAGE).await?;
            page.sort_by_key(|message| message.id);
            let (count, last) = (page.len(), page.last().map(|message| message.id));
            page.iter().for_each(|message| self.inner.known.spoke(self.channel, message.id));
            page.retain(|message| !self.brought.remove(&message.id));
            self.complete(&mut page).await?;
            for message in &page {
                self.bring(message).await;
            }
            if let Some(last) = last {
                *mark = last;
                let at = self.inner.at(self.channel, self.inner.known.parent(self.channel));
                self.inbox.caught_up(at, last.to_string()).await;
            }
            if count < usize::from(PAGE) {
                if self.inner.known.is_shut(self.channel, false) {
                    tracing::info!(thread_id = %self.channel, "the bot reads a bound conversation again");
                }
                self.brought.clear();
                return Ok(());
            }
        }
    }

    /// What an event says of a message and the answer to a request does not: in which server it is, and which roles
    /// its author has there.
    async fn complete(&self, page: &mut [Message]) -> Result<(), Fault> {
        if page.is_empty() {
            return Ok(());
        }
        let Some(guild) = self.inner.guild_of(self.channel).await? else { return Ok(()) };
        let by_role = self.inner.settings().door.names_roles();
        let mut known: HashMap<Snowflake, Vec<Snowflake>> = HashMap::new();
        for message in page {
            message.guild = message.guild.or(Some(guild));
            let author = &mut message.author;
            if !by_role || author.user.bot || message.webhook.is_some() || !author.roles.is_empty() {
                continue;
            }
            let roles = match known.get(&author.user.id) {
                Some(roles) => roles.clone(),
                None => self.roles(guild, author.user.id).await?,
            };
            known.insert(author.user.id, roles.clone());
            author.roles = roles;
        }
        Ok(())
    }

    /// The roles of somebody; none for who is not there any more.
    async fn roles(&self, guild: Snowflake, user: Snowflake) -> Result<Vec<Snowflake>, Fault> {
        match self.inner.rest.member(guild, user).await {
            Ok(member) => Ok(member.roles),
            Err(Fault::Rejected(why)) if !why.again() => Ok(Vec::new()),
            Err(fault) => Err(fault),
        }
    }

    /// What happened to the thread meanwhile is told by nobody either.
    async fn look_at_thread(&self) {
        let Ok(channel) = self.inner.rest.channel(self.channel).await else { return };
        let parent = channel.parent_id.filter(|_| channel.is_thread());
        self.inner.known.is_at(self.channel, parent, channel.guild_id);
        if let Some(state) = channel.thread_metadata {
            self.thread(state.archived, state.auto_archive_duration).await;
        }
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

/// From where on a conversation is to be read.
fn mark_of(place: &Place) -> Snowflake {
    let since = Snowflake::from_ms(place.bound_at_ms);
    place.backfilled_through.as_deref().and_then(|id| id.parse().ok()).unwrap_or(since)
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

    /// The same, asked for where it is not known. When nobody says it for a while it is none.
    async fn turns_out_configured(&self, channel: Snowflake) -> bool {
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
                Err(fault) if pause > PAUSE.1 => {
                    tracing::warn!(%fault, thread_id = %channel, "it is not known what this conversation hangs from");
                    return false;
                }
                Err(_) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
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
    async fn guild_of(&self, channel: Snowflake) -> Result<Option<Snowflake>, Fault> {
        match self.known.spot(channel).and_then(|spot| spot.guild) {
            Some(guild) => Ok(Some(guild)),
            None => Ok(self.look_up(channel).await?.guild),
        }
    }

    async fn look_up(&self, channel: Snowflake) -> Result<Spot, Fault> {
        let found = self.rest.channel(channel).await?;
        let parent = found.parent_id.filter(|_| found.is_thread());
        self.known.is_at(channel, parent, found.guild_id);
        Ok(Spot { parent, guild: found.guild_id })
    }

    /// A bound conversation.
    pub(super) async fn place(&self, inbox: &dyn Inbox, channel: Snowflake) -> Option<Place> {
        let places = inbox.bound(super::DISCORD.to_owned(), self.account.clone()).await?;
        let id = channel.to_string();
        places.into_iter().find(|place| place.conversation.conversation_id == id)
    }
}
