//! Conversation workers: one queue and one worker per conversation. Messages are processed in order, and
//! after a gap only once the backfill is complete (H8).
//!
//! Discord may fail to report a message, without any sign of this. So events never advance the mark: once no
//! more messages arrive, the conversation is read from the mark on, and only this read advances the mark. A
//! message without an event is found together with the next message, or with the next websocket session.

use super::Inner;
use super::backfill::{BACKFILL_BUDGET, IDLE_BUDGET, UnverifiedMessages, remember};
use super::interactions::display_name;
use crate::channel::discord::archive_state::ArchiveState;
use crate::channel::discord::pending_checks::{CheckKind, CheckOutcome, PendingChecks};
use crate::channel::discord::recent_events::RecentEvents;
use crate::channel::discord::retry::{Retryable as _, retry_until_done};
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
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// Maximum number of jobs in one queue. Jobs beyond that are read from Discord again.
const JOBS_MAX: usize = 256;
/// Idle time after which a worker ends.
const IDLE: Duration = Duration::from_secs(300);
/// First and longest pause between attempts to read or commit.
pub(super) const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
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
                unverified: UnverifiedMessages::default(),
                pending_checks: PendingChecks::default(),
                uncompared: None,
                recent_events: RecentEvents::default(),
                rejected: BTreeSet::new(),
                missed: None,
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
    /// Messages passed in from events that no history read has covered yet.
    pub(super) unverified: UnverifiedMessages,
    /// Pending checks.
    pub(super) pending_checks: PendingChecks,
    /// Messages whose turn has not begun and that still have to be compared with their current text; `None`:
    /// all.
    pub(super) uncompared: Option<BTreeSet<Snowflake>>,
    /// Ids of messages with an event during the last 10 s.
    pub(super) recent_events: RecentEvents,
    /// Messages of people not on the allow-list: checked once during the life of the worker, even if received
    /// again.
    rejected: BTreeSet<Snowflake>,
    /// First message rejected by the full queue, until a backfill from this message is complete.
    pub(super) missed: Option<Snowflake>,
}

/// Action of a worker without jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum IdleAction {
    /// Run a check.
    RunCheck(CheckKind),
    /// Read the history, to find messages without events.
    VerifyHistory,
    /// End the worker.
    End,
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
            let (at, due) = self.next_idle_action(Instant::now());
            match (tokio::time::timeout_at(at, queue.next()).await, due) {
                (Ok(QueueItem::Job(job)), _) => self.process(job).await,
                (Ok(QueueItem::Backfill(from)), _) => self.backfill(from).await,
                // New jobs interrupt checks and history reads.
                (Err(_), IdleAction::RunCheck(look)) => self.run_check(look).await,
                (Err(_), IdleAction::VerifyHistory) => {
                    self.verify_history(IDLE_BUDGET, queue.wait_nonempty()).await
                }
                // The bot has no access, and only this worker knows the start of the backfill.
                (Err(_), IdleAction::End) if self.missed.is_some() => self.backfill(None).await,
                (Err(_), IdleAction::End) if queue.close() => return,
                (Err(_), IdleAction::End) => {}
            }
        }
    }

    /// Returns the next action if no job arrives, and the time for it.
    fn next_idle_action(&self, now: Instant) -> (Instant, IdleAction) {
        let look = self.pending_checks.next().map(|(at, look)| (at, IdleAction::RunCheck(look)));
        let read = self.unverified.next_read_at().map(|at| (at, IdleAction::VerifyHistory));
        let end = (now + IDLE, IdleAction::End);
        [look, read].into_iter().flatten().min().map_or(end, |due| due.min(end))
    }

    /// Runs one pending check; interrupted by new jobs.
    async fn run_check(&mut self, look: CheckKind) {
        let queue = Arc::clone(&self.queue);
        let looked = match look {
            CheckKind::Waiting => self.check_queued_edits(queue.wait_nonempty()).await,
            CheckKind::Thread => self.check_archive_state(queue.wait_nonempty()).await,
        };
        match looked {
            Ok(CheckOutcome::Done) => self.pending_checks.remove(look),
            Ok(CheckOutcome::Partly) => self.pending_checks.record_failure(look, Instant::now()),
            // The check runs again after the new jobs.
            Ok(CheckOutcome::Interrupted) => {}
            Err(fault) => {
                let is_for_good = self.handle_permanent_fault(&fault).await.is_some()
                    || Err(fault.clone()).retry_reason().is_none();
                tracing::info!(
                    %fault,
                    check = ?look,
                    is_permanent = is_for_good,
                    thread_id = %self.channel,
                    "conversation check failed"
                );
                if is_for_good {
                    self.pending_checks.remove(look);
                } else {
                    self.pending_checks.record_failure(look, Instant::now());
                }
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
                    self.unverified.record(message.id, Instant::now());
                }
                self.recent_events.record(message.id, Instant::now());
                if self.unverified.is_over_threshold() {
                    self.verify_history(BACKFILL_BUDGET, std::future::pending()).await;
                }
            }
            ConversationJob::Edited(edit) => self.on_message_edited(edit).await,
            ConversationJob::Deleted(id) => self.on_message_deleted(id).await,
            ConversationJob::Thread(archive) => self.on_archive_state(&archive).await,
            ConversationJob::Gone(why) => {
                self.pending_checks = PendingChecks::default();
                self.on_conversation_gone(why).await;
            }
        }
    }

    /// Returns true if messages of this conversation are for agents. Waits until known: the number of waiting
    /// jobs is limited, and the rest is read from Discord.
    async fn resolve_binding(&self) -> bool {
        let mut pause = BACKOFF.0;
        loop {
            match self.inbox.lookup_binding(self.inner.at(self.channel, None)).await {
                BindingLookup::Bound(_) => return true,
                BindingLookup::Unbound => return self.inner.resolve_static_binding(self.channel).await,
                BindingLookup::Unknown => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    /// Returns the reference of the conversation, with the parent channel if known.
    pub(super) fn conversation_ref(&self) -> ConversationRef {
        self.inner.at(self.channel, self.inner.cache.parent(self.channel))
    }

    /// Passes in a message, with retries until accepted or refused. Returns false if the bot's identity is
    /// unknown yet.
    pub(super) async fn submit_message(&mut self, message: &Message) -> bool {
        if self.rejected.contains(&message.id) {
            return true;
        }
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
            remember(&mut self.rejected, message.id);
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
                message.text.clone(),
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
        let mut pause = BACKOFF.0;
        loop {
            if let Some(known) = self.has_static_binding(channel) {
                return known;
            }
            match self.rest.channel(channel).await {
                Ok(found) => {
                    let parent = found.parent_id.filter(|_| found.is_thread());
                    self.cache.set_location(channel, parent, found.guild_id);
                }
                Err(fault) if Err(fault.clone()).retry_reason().is_none() => {
                    tracing::warn!(
                        %fault,
                        thread_id = %channel,
                        "conversation lookup failed; treated as not statically bound"
                    );
                    return false;
                }
                Err(_) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(BACKOFF.1);
                }
            }
        }
    }

    /// Returns the parent channel of a thread; one request if unknown.
    pub(super) async fn parent_of(&self, channel: Snowflake) -> Option<Snowflake> {
        match self.cache.location(channel) {
            Some(spot) => spot.parent,
            None => self.fetch_location(channel).await.ok()?.parent,
        }
    }

    /// Returns the server of a conversation; one request if unknown.
    pub(super) async fn guild_of(&self, channel: Snowflake) -> Result<Option<Snowflake>, RestError> {
        match self.cache.location(channel).and_then(|spot| spot.guild) {
            Some(guild) => Ok(Some(guild)),
            None => Ok(self.fetch_location(channel).await?.guild),
        }
    }

    pub(super) async fn fetch_location(&self, channel: Snowflake) -> Result<ConversationLocation, RestError> {
        let found = self.rest.channel(channel).await?;
        let parent = found.parent_id.filter(|_| found.is_thread());
        self.cache.set_location(channel, parent, found.guild_id);
        Ok(ConversationLocation { parent, guild: found.guild_id })
    }
}
