//! Conversation workers: one queue and one worker per conversation. Messages are processed in order, and
//! after a gap only once the backfill is complete (H8).
//!
//! Discord may fail to report a message, without any sign of this. So events never advance the mark: when the
//! queue is empty, the conversation is read from the mark on, and only this read advances the mark. A message
//! without an event is found together with the next message, or with the next websocket session.

use super::Inner;
use super::interactions::display_name;
use crate::channel::discord::archive_state::ArchiveState;
use crate::channel::discord::retry::{RETRY_BACKOFF, Retryable as _, retry_until_done};
use crate::channel::discord::state_cache::ConversationLocation;
use crate::channel::discord::worker_queue::{ConversationQueue, EnqueueOutcome, QueueItem};
use crate::channel::{
    Attachment, AttachmentContent, BindingLookup, ConversationRef, Inbound, InboundPort, IntakeOutcome,
};
use acp_core::command;
use acp_discord::core::event::{Attachment as File, Message, MessageEdit};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message_filter::{MessageClass, classify_message};
use acp_discord::rest::RestError;
use acp_shared::backoff::Backoff;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// Maximum number of jobs in one queue. Jobs beyond that are read from Discord again.
const JOBS_MAX: usize = 256;
/// Idle time after which a worker ends.
const IDLE: Duration = Duration::from_secs(300);
/// Time after a message until the history is read.
const READ_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of remembered messages. Messages beyond that are passed in again, without effect, or checked
/// again.
const REMEMBERED_MAX: usize = 10_000;
/// Maximum size of a downloaded file, in bytes, and the timeout of the download.
const FILE_MAX: (u64, Duration) = (8 * 1024 * 1024, Duration::from_secs(20));

/// Job for one conversation.
pub(super) enum ConversationJob {
    /// New message.
    Message(Box<Message>),
    /// Job for a conversation that may be unbound: the worker first determines whether a binding exists, or
    /// the configuration binds the parent channel. Holds a permit of the limit for such jobs.
    Unclassified(Box<ConversationJob>, OwnedSemaphorePermit),
    /// Edited message.
    Edited(MessageEdit),
    /// Deleted message.
    Deleted(Snowflake),
    /// Archive state of the thread.
    Thread(ArchiveState),
    /// End of the conversation, with the reason.
    Gone(String),
}

impl ConversationJob {
    /// Returns the message from which a backfill restores this job. `None` for changes, which Discord reports
    /// once, and for commands, which a backfill does not read in unbound conversations.
    fn backfill_start(&self) -> Option<Snowflake> {
        match self {
            Self::Message(message) => command::parse(&message.text).is_none().then_some(message.id),
            Self::Unclassified(job, _) => job.backfill_start(),
            Self::Edited(_) | Self::Deleted(_) | Self::Thread(_) | Self::Gone(_) => None,
        }
    }
}

/// Conversation workers of one account.
pub(super) struct ConversationWorkers {
    inner: Arc<Inner>,
    inbox: Arc<dyn InboundPort>,
    queues: HashMap<Snowflake, Arc<ConversationQueue<ConversationJob>>>,
}

impl ConversationWorkers {
    pub(super) fn new(inner: Arc<Inner>, inbox: Arc<dyn InboundPort>) -> Self {
        Self { inner, inbox, queues: HashMap::new() }
    }

    /// Adds a job to the queue of a conversation. Never waits.
    pub(super) fn enqueue(
        &mut self,
        tasks: &mut tokio::task::JoinSet<()>,
        channel: Snowflake,
        job: ConversationJob,
    ) {
        let mut job = job;
        let from = job.backfill_start();
        while let EnqueueOutcome::Closed(back) = self.open(tasks, channel).enqueue(job, from) {
            job = back;
        }
    }

    /// Requests a backfill for a message dropped at a limit; effective only if the conversation proves to be
    /// bound.
    pub(super) fn request_backfill_from(
        &mut self,
        tasks: &mut tokio::task::JoinSet<()>,
        channel: Snowflake,
        message: Snowflake,
    ) {
        while !self.open(tasks, channel).request_backfill_from(message) {}
    }

    /// Requests a backfill of a conversation before all other jobs. Repeated requests lead to one backfill.
    pub(super) fn request_backfill(&mut self, tasks: &mut tokio::task::JoinSet<()>, channel: Snowflake) {
        while !self.open(tasks, channel).request_backfill() {}
    }

    /// Returns the queue of a conversation. Starts a worker if none is running.
    fn open(
        &mut self,
        tasks: &mut tokio::task::JoinSet<()>,
        channel: Snowflake,
    ) -> &ConversationQueue<ConversationJob> {
        if self.queues.get(&channel).is_none_or(|queue| queue.is_closed()) {
            self.queues.retain(|_, queue| !queue.is_closed());
        }
        let (inner, inbox) = (&self.inner, &self.inbox);
        self.queues.entry(channel).or_insert_with(|| {
            let queue = Arc::new(ConversationQueue::new(JOBS_MAX));
            let worker = ConversationWorker {
                inner: Arc::clone(inner),
                inbox: Arc::clone(inbox),
                channel,
                queue: Arc::clone(&queue),
                read_at: None,
                idle_backoff: RETRY_BACKOFF,
                last_edit: None,
                seen: BTreeSet::new(),
                missed: None,
                project_limit: None,
            };
            tasks.spawn(worker.run());
            queue
        })
    }
}

/// Worker of one conversation.
pub(super) struct ConversationWorker {
    pub(super) inner: Arc<Inner>,
    pub(super) inbox: Arc<dyn InboundPort>,
    pub(super) channel: Snowflake,
    pub(super) queue: Arc<ConversationQueue<ConversationJob>>,
    /// Time of the next read of the history without a gap; `None` if no read is necessary.
    pub(super) read_at: Option<Instant>,
    /// Pauses between failed reads of this kind.
    pub(super) idle_backoff: Backoff,
    /// Last message with an event about an edit, and the time of the event.
    pub(super) last_edit: Option<(Snowflake, Instant)>,
    /// Messages passed in or refused: the allow-list is checked once during the life of the worker, even if a
    /// message is received again.
    pub(super) seen: BTreeSet<Snowflake>,
    /// First message rejected by the full queue, until a backfill from this message is complete.
    pub(super) missed: Option<Snowflake>,
    /// Lower limit of a backfill of a project's channel, from its first attempt on until it ends.
    pub(super) project_limit: Option<Snowflake>,
}

impl Drop for ConversationWorker {
    fn drop(&mut self) {
        // The next job starts another worker.
        self.queue.force_close();
    }
}

impl ConversationWorker {
    async fn run(mut self) {
        let queue = Arc::clone(&self.queue);
        loop {
            let at = self.read_at.unwrap_or_else(|| Instant::now() + IDLE);
            match tokio::time::timeout_at(at, queue.next()).await {
                Ok(QueueItem::Job(job)) => self.process(job).await,
                Ok(QueueItem::Backfill(from)) => self.backfill(from).await,
                // New jobs interrupt the read.
                Err(_) if self.read_at.is_some() => self.read_when_idle(queue.wait_nonempty()).await,
                // The bot has no access, and only this worker knows the start of the backfill.
                Err(_) if self.missed.is_some() => self.backfill(None).await,
                Err(_) if queue.close() => return,
                Err(_) => {}
            }
        }
    }

    async fn process(&mut self, job: ConversationJob) {
        let job = match job {
            ConversationJob::Unclassified(job, place) => {
                let is_ours = self.resolve_binding().await;
                drop(place);
                if !is_ours {
                    return;
                }
                *job
            }
            job => job,
        };
        match job {
            ConversationJob::Unclassified(..) => {}
            ConversationJob::Message(message) => {
                // A new message unarchives the thread.
                self.inner.rest.set_archived(self.channel, false);
                if self.submit_message(&message).await {
                    self.read_at.get_or_insert_with(|| Instant::now() + READ_DELAY);
                }
            }
            ConversationJob::Edited(edit) => self.on_message_edited(edit).await,
            ConversationJob::Deleted(id) => self.on_message_deleted(id).await,
            ConversationJob::Thread(archive) => self.on_archive_state(&archive).await,
            ConversationJob::Gone(why) => self.on_conversation_gone(why).await,
        }
    }

    /// Returns true if messages of this conversation are for agents. Waits until known: the number of waiting
    /// jobs is limited, and the rest is read from Discord.
    async fn resolve_binding(&self) -> bool {
        let mut backoff = RETRY_BACKOFF;
        loop {
            match self.inbox.lookup_binding(self.inner.at(self.channel, None)).await {
                BindingLookup::Bound(_) => return true,
                BindingLookup::Unbound => {
                    return self.inner.is_project(self.channel)
                        || self.inner.resolve_static_binding(self.channel).await;
                }
                BindingLookup::Unknown => tokio::time::sleep(backoff.next_pause()).await,
            }
        }
    }

    /// Returns the reference of the conversation, with the parent channel if known.
    pub(super) fn conversation_ref(&self) -> ConversationRef {
        self.inner.at(self.channel, self.inner.cache.parent(self.channel))
    }

    /// Passes in a message once, with retries until accepted or refused. Returns false if the bot's identity is
    /// unknown yet.
    pub(super) async fn submit_message(&mut self, message: &Message) -> bool {
        if self.seen.contains(&message.id) {
            return true;
        }
        let is_done = self.offer_message(message).await;
        if is_done {
            self.seen.insert(message.id);
            if self.seen.len() > REMEMBERED_MAX {
                self.seen.pop_first();
            }
        }
        is_done
    }

    async fn offer_message(&self, message: &Message) -> bool {
        let Some(identity) = self.inner.cache.identity() else { return false };
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
        let access = &settings.access;
        if !access.is_guild_allowed(message.guild) || !access.is_allowed(&message.author) {
            tracing::info!(
                author = %message.author.user.id,
                thread_id = %self.channel,
                "message by unauthorized author ignored"
            );
            return true;
        }
        if !self.inner.is_channel_allowed(self.channel).await {
            tracing::info!(thread_id = %self.channel, "message outside of allowed_channels ignored");
            return true;
        }
        if self.needs_mention(message).await && !message.mentions(identity.me) {
            tracing::debug!(thread_id = %self.channel, "message without a mention ignored");
            return true;
        }
        let parent = self.inner.parent_of(self.channel).await;
        let inbound = Inbound {
            author_id: message.author.user.id.to_string(),
            approves: access.approval_scope(&message.author),
            attachments: self.files(&message.attachments).await,
            ..Inbound::new(
                self.inner.at(self.channel, parent),
                message.id.to_string(),
                display_name(&message.author),
                without_mention(&message.text, identity.me),
            )
        };
        if inbound.text.trim().is_empty() && inbound.attachments.is_empty() {
            tracing::warn!(
                thread_id = %self.channel,
                hint = "turn on the Message Content intent (Developer Portal, Bot)",
                "message without text ignored"
            );
            return true;
        }
        let offer = || self.inbox.offer(inbound.clone());
        if let IntakeOutcome::Refused { why } = retry_until_done("message", self.channel, offer).await {
            tracing::info!(why, message_id = %message.id, "message refused");
        }
        true
    }

    /// True if a message is for agents only if it mentions the bot: as configured for the account, or for a
    /// project in a channel that is not bound itself. Waits until the binding is known.
    async fn needs_mention(&self, message: &Message) -> bool {
        if command::parse(&message.text).is_some() {
            return false;
        }
        let settings = self.inner.settings();
        if settings.require_mention && message.guild.is_some() {
            return true;
        }
        if settings.projects.get(&self.channel) != Some(&true) {
            return false;
        }
        let mut backoff = RETRY_BACKOFF;
        loop {
            match self.inbox.lookup_binding(self.inner.at(self.channel, None)).await {
                BindingLookup::Bound(_) => return false,
                BindingLookup::Unbound => return true,
                BindingLookup::Unknown => tokio::time::sleep(backoff.next_pause()).await,
            }
        }
    }

    /// Downloads files, only from Discord's own hosts or from the configured host.
    async fn files(&self, files: &[File]) -> Vec<Attachment> {
        let mut out = Vec::new();
        for file in files.iter().take(acp_core::files::FILES_MAX + 1) {
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
                return Err("the file is larger than Discord announced".to_owned());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

/// Returns the text without a mention of the bot at its beginning. A command after a mention stays text for the
/// agent, since another bot may be the one that executes commands there.
pub(super) fn without_mention(text: &str, me: Snowflake) -> String {
    let rest =
        [format!("<@{me}>"), format!("<@!{me}>")].iter().find_map(|it| text.trim_start().strip_prefix(it));
    let rest = rest.map(str::trim_start).filter(|rest| command::parse(rest).is_none());
    rest.unwrap_or(text).to_owned()
}

impl Inner {
    /// True if messages in a channel open threads.
    pub(super) fn is_project(&self, channel: Snowflake) -> bool {
        self.settings().projects.contains_key(&channel)
    }

    /// True if the account serves a conversation. Requests the parent channel until known; false if Discord
    /// refuses.
    pub(super) async fn is_channel_allowed(&self, channel: Snowflake) -> bool {
        let settings = self.settings();
        if settings.access.is_channel_allowed(channel, None) {
            return true;
        }
        let mut backoff = RETRY_BACKOFF;
        loop {
            match self.location_of(channel).await {
                Ok(spot) => return settings.access.is_channel_allowed(channel, spot.parent),
                Err(fault) if Err::<(), _>(fault.clone()).retry_reason().is_none() => {
                    tracing::warn!(%fault, thread_id = %channel, "conversation lookup failed; treated as not allowed");
                    return false;
                }
                Err(_) => tokio::time::sleep(backoff.next_pause()).await,
            }
        }
    }

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
    pub(super) fn has_static_binding(&self, channel: Snowflake) -> Option<bool> {
        let settings = self.settings();
        let configured = &settings.static_bindings;
        if configured.is_empty() || configured.contains(&channel) {
            return Some(!configured.is_empty());
        }
        let parent = self.cache.parent(channel);
        let is_known = parent.is_some() || self.cache.location(channel).is_some();
        is_known.then(|| parent.is_some_and(|parent| configured.contains(&parent)))
    }

    /// Like `has_static_binding`, with requests to Discord until known; false if Discord refuses.
    pub(super) async fn resolve_static_binding(&self, channel: Snowflake) -> bool {
        let mut backoff = RETRY_BACKOFF;
        loop {
            if let Some(known) = self.has_static_binding(channel) {
                return known;
            }
            match self.fetch_location(channel).await {
                Ok(_) => {}
                Err(fault) if Err::<(), _>(fault.clone()).retry_reason().is_none() => {
                    tracing::warn!(
                        %fault,
                        thread_id = %channel,
                        "conversation lookup failed; treated as not statically bound"
                    );
                    return false;
                }
                Err(_) => tokio::time::sleep(backoff.next_pause()).await,
            }
        }
    }

    /// Returns the parent channel of a thread; one request if unknown.
    pub(super) async fn parent_of(&self, channel: Snowflake) -> Option<Snowflake> {
        self.location_of(channel).await.ok()?.parent
    }

    /// Returns the location of a conversation; one request if unknown.
    pub(super) async fn location_of(&self, channel: Snowflake) -> Result<ConversationLocation, RestError> {
        match self.cache.location(channel) {
            Some(spot) => Ok(spot),
            None => self.fetch_location(channel).await,
        }
    }

    /// Returns the reason if a conversation belongs to a shard of another gateway. One request if its server is unknown, and
    /// none without a range of shards.
    pub(super) async fn conversation_refusal(&self, channel: Snowflake) -> Result<Option<String>, RestError> {
        let settings = self.settings();
        if settings.access.shards.is_none() {
            return Ok(None);
        }
        Ok(settings.access.shard_refusal(self.guild_of(channel).await?))
    }

    /// Returns the server of a conversation; one request if unknown.
    pub(super) async fn guild_of(&self, channel: Snowflake) -> Result<Option<Snowflake>, RestError> {
        match self.cache.location(channel).and_then(|spot| spot.guild) {
            Some(guild) => Ok(Some(guild)),
            None => Ok(self.fetch_location(channel).await?.guild),
        }
    }

    async fn fetch_location(&self, channel: Snowflake) -> Result<ConversationLocation, RestError> {
        let found = self.rest.channel(channel).await?;
        let parent = found.parent_id.filter(|_| found.is_thread());
        self.cache.set_location(channel, parent, found.guild_id);
        Ok(ConversationLocation { parent, guild: found.guild_id })
    }
}
