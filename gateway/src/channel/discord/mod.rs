//! Discord adapter: translates between the channel port and the `acp-discord` package. Makes no decisions
//! about sessions.
//!
//! Input of people becomes an [`crate::channel::Inbound`]: messages ([`workers`]), slash commands and clicks
//! ([`interactions`]). Output of the gateway becomes requests ([`render`]). State that must survive a restart
//! is in the gateway's database; the adapter holds only caches.

mod allow_list;
mod archive_state;
mod backfill;
mod backfill_rounds;
mod backfill_schedule;
mod binding_cache;
mod command_definitions;
mod command_registration;
mod connection;
mod edits;
mod event_loop;
mod forms;
mod health;
mod identify_slots;
mod interaction_response;
mod interactions;
mod render;
mod retry;
pub(crate) mod settings;
pub(crate) mod setup;
mod state_cache;
mod webhooks;
mod worker_queue;
mod workers;

use crate::channel::{
    BoxFuture, Capabilities, ChannelAdapter, ChannelHealth, ChannelProperties, ConversationRef, EditOutcome,
    InboundPort, LookupOutcome, MessageLimit, OpenChildOutcome, Outgoing, SendOutcome, Signal,
    UnboundDestination, Unit,
};
use acp_discord::core::base_url::BaseUrl;
use acp_discord::core::errors::{RejectionKind, ResourceKind};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message::NewMessage;
use acp_discord::core::message_match::SentMessageQuery;
use acp_discord::core::request_scheduler::Priority;
use acp_discord::rest::{
    self, ClientSetupError, QueueOptions, RestClient, RestError, SentMessage, SentMessageSearch,
};
use acp_discord::websocket;
use acp_shared::clock::Clock;
use acp_store::cell::plane::Plane;
use render::AttachmentState;
use retry::Retryable as _;
pub(crate) use settings::AccountSettings;
use state_cache::{Access, OptionalFeature, StateCache};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use webhooks::Webhooks;

/// Channel name in conversations.
pub(crate) const DISCORD: &str = "discord";
/// Maximum size of a message, in UTF-16 units: below Discord's 2,000 characters, with a margin for other ways
/// of counting.
const MESSAGE_UNITS_MAX: usize = 1_900;
/// Maximum size of a file, in bytes: Discord's limit without a paid upgrade.
const FILE_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// Maximum wait of a message for the rate limiter; the gateway retries later.
const RATE_LIMIT_WAIT: Duration = Duration::from_secs(30);
/// The same for signals, which are worthless a moment later.
const SIGNAL_RATE_LIMIT_WAIT: Duration = Duration::from_secs(8);
/// Period in which a message can be edited freely, in milliseconds: after an hour Discord applies a separate
/// rate limit.
const EDIT_WINDOW_MS: u64 = 50 * 60_000;
/// Inactivity after which Discord archives a thread, in minutes: the longest available value, so that no
/// binding outlives its thread (D12).
const ARCHIVE_MINUTES: u64 = 10_080;
/// Search window for messages with an unknown time of first send, in milliseconds.
const LOOKUP_WINDOW_MS: u64 = 24 * 60 * 60_000;
/// Maximum lead of the local clock over Discord's clock, in milliseconds.
const CLOCK_SKEW_MS: u64 = 60_000;

/// Adapter of one bot. Clones share state.
#[derive(Debug, Clone)]
pub(crate) struct Discord {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    account: String,
    /// Live settings.
    settings: watch::Sender<Arc<AccountSettings>>,
    /// Address of Discord; fixed for the lifetime of the adapter.
    base: BaseUrl,
    rest: RestClient,
    clock: Clock,
    /// Plane of the cell's database; `None` for a control plane in a file.
    plane: Option<Plane>,
    counts: Arc<websocket::SessionCounters>,
    cache: StateCache,
    webhooks: Webhooks,
    connection_health: health::ConnectionHealth,
    registration: command_registration::CommandRegistration,
    /// Permits for replies waiting for a retry.
    retry_permits: Semaphore,
    /// Permits for the first pages of backfills.
    backfill_permits: Semaphore,
}

impl Discord {
    /// Creates the adapter of an account. Requires a tokio runtime; makes no request before `listen` or
    /// `send`.
    ///
    /// # Errors
    /// [`ClientSetupError`] if the token or the address is unusable.
    pub(crate) fn new(
        account: String,
        settings: AccountSettings,
        clock: Clock,
        plane: Option<Plane>,
    ) -> Result<Self, ClientSetupError> {
        let (base, token) = (settings.base.clone(), settings.token.clone());
        let per_second = settings.per_second();
        let rest_settings = rest::RestSettings { per_second, ..rest::RestSettings::new(base, token, clock) };
        let rest = RestClient::new(rest_settings)?;
        let inner = Inner {
            account,
            base: settings.base.clone(),
            settings: watch::Sender::new(Arc::new(settings)),
            rest,
            clock,
            plane,
            counts: Arc::default(),
            cache: StateCache::default(),
            webhooks: Webhooks::default(),
            connection_health: health::ConnectionHealth::default(),
            registration: command_registration::CommandRegistration::default(),
            retry_permits: Semaphore::new(interaction_response::PENDING_RETRIES_MAX),
            backfill_permits: Semaphore::new(backfill::CONCURRENT_MAX),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the address of Discord. Another address needs a new adapter, since the bot is a different one.
    pub(crate) fn base(&self) -> &BaseUrl {
        &self.inner.base
    }

    /// Applies new settings except for the address. A changed token is used at once, and a token that Discord
    /// refused before is tried again (D7).
    ///
    /// # Errors
    /// [`ClientSetupError`] if the token is unusable; the old settings remain.
    pub(crate) fn apply_settings(&self, next: AccountSettings) -> Result<(), ClientSetupError> {
        let inner = &self.inner;
        if inner.settings().token != next.token || inner.rest.counts().unauthorized {
            inner.rest.set_token(&next.token)?;
        }
        inner.rest.set_per_second(next.per_second());
        inner.settings.send_replace(Arc::new(next));
        Ok(())
    }
}

impl Inner {
    /// Returns the live settings.
    fn settings(&self) -> Arc<AccountSettings> {
        Arc::clone(&self.settings.borrow())
    }

    fn at(&self, channel: Snowflake, parent: Option<Snowflake>) -> ConversationRef {
        ConversationRef {
            channel: DISCORD.to_owned(),
            account_id: self.account.clone(),
            conversation_id: channel.to_string(),
            parent_conversation_id: parent.map(|id| id.to_string()),
        }
    }

    /// Returns the user id of the bot: as reported by the websocket, or else from a request.
    async fn me(&self) -> Result<Snowflake, RestError> {
        match self.cache.me() {
            Some(me) => Ok(me),
            None => self.rest.me().await,
        }
    }

    async fn send(&self, to: &ConversationRef, message: &Outgoing) -> SendOutcome {
        let since = Instant::now();
        let channel = match id(&to.conversation_id) {
            Ok(channel) => channel,
            Err(why) => return SendOutcome::Rejected { why, again: false },
        };
        let new = NewMessage { nonce: message.nonce.clone(), body: render::message_body(message) };
        let denied = || {
            let why = "the bot currently may not write to threads of this channel".to_owned();
            SendOutcome::Rejected { why, again: true }
        };
        // A webhook may write where the bot may not, if no request by the bot is needed first.
        let is_by_webhook = message.persona.is_some() && self.cache.has_archive_state(channel);
        if !is_by_webhook && !self.cache.should_attempt(Access::Write, channel, self.clock.wall_ms()) {
            return denied();
        }
        let files = if message.files.is_empty() {
            AttachmentState::None
        } else {
            AttachmentState::Some { may_write: None }
        };
        if files != AttachmentState::None
            && !self.cache.is_allowed(OptionalFeature::Files, channel, self.clock.wall_ms())
        {
            let why = "the bot may not attach files here, as an earlier attempt showed".to_owned();
            return SendOutcome::FilesRefused { why, again: false };
        }
        if let Err(fault) = self.ensure_archive_state(channel).await {
            self.record_send_result(channel, Err(&fault), AttachmentState::None);
            // Nothing was sent, with files or without.
            return render::send_outcome(Err(fault), &message.nonce, AttachmentState::None);
        }
        match self.conversation_refusal(channel).await {
            Ok(None) => {}
            Ok(Some(why)) => return SendOutcome::Rejected { why, again: true },
            Err(fault) => return render::send_outcome(Err(fault), &message.nonce, AttachmentState::None),
        }
        if let Some(name) = &message.persona
            && let Some(outcome) = self.send_via_webhook(channel, message, name, since).await
        {
            return outcome;
        }
        if is_by_webhook && !self.cache.should_attempt(Access::Write, channel, self.clock.wall_ms()) {
            return denied();
        }
        let turn = QueueOptions::new(render::priority(message), RATE_LIMIT_WAIT);
        let result = self.rest.create_message(channel, &new, turn).await;
        let files = match &result {
            Err(fault) if files != AttachmentState::None && render::is_missing_permission(fault) => {
                AttachmentState::Some { may_write: self.may_write(channel).await }
            }
            _ => files,
        };
        self.record_send_result(channel, result.as_ref(), files);
        render::send_outcome(result, &message.nonce, files)
    }

    /// Updates the cache with the result of a send and the state of its files.
    fn record_send_result(
        &self,
        channel: Snowflake,
        result: Result<&SentMessage, &RestError>,
        files: AttachmentState,
    ) {
        match result.map_err(RestError::rejection_kind) {
            Ok(posted) => {
                self.cache.record_access(Access::Write, channel, false);
                self.cache.record_message(channel, posted.id);
            }
            Err(Some(RejectionKind::Forbidden))
                if files == (AttachmentState::Some { may_write: Some(true) }) =>
            {
                self.cache.record_access(Access::Write, channel, false);
                self.cache.deny(OptionalFeature::Files, channel, self.clock.wall_ms());
            }
            Err(Some(RejectionKind::Forbidden | RejectionKind::LostAccess)) => {
                self.cache.record_access(Access::Write, channel, true)
            }
            Err(Some(RejectionKind::Gone(ResourceKind::Channel))) => self.cache.report_deleted(channel),
            Err(_) => {}
        }
    }

    /// Determines whether the bot may write in a conversation, after Discord refused a message for an
    /// unspecified missing permission. Uses the typing indicator, which requires the permission to write.
    /// `None` if unknown.
    async fn may_write(&self, channel: Snowflake) -> Option<bool> {
        match self.rest.typing(channel).await {
            Ok(()) => Some(true),
            Err(fault) => match fault.rejection_kind() {
                Some(RejectionKind::Forbidden | RejectionKind::LostAccess) => Some(false),
                _ => None,
            },
        }
    }

    async fn lookup(&self, to: &ConversationRef, message: &Outgoing) -> LookupOutcome {
        let channel = match id(&to.conversation_id) {
            Ok(channel) => channel,
            Err(why) => return LookupOutcome::Unknown { why },
        };
        let later = |why: String| LookupOutcome::Later { why, retry_after_ms: render::RETRY_AFTER_MS };
        let me = match self.me().await {
            Ok(me) => me,
            Err(fault) => return later(fault.to_string()),
        };
        // Messages by our webhooks are searched only if the message may have been sent under a name.
        let through = match &message.persona {
            None => None,
            Some(_) => match self.application().await {
                Ok(application) => Some(application),
                Err(fault) => return later(fault.to_string()),
            },
        };
        let now = self.clock.wall_ms();
        let search = SentMessageSearch {
            channel,
            first_attempt_ms: message.not_before_ms.unwrap_or(now.saturating_sub(LOOKUP_WINDOW_MS)),
            skew_ms: CLOCK_SKEW_MS,
            query: SentMessageQuery {
                me,
                nonce: message.nonce.clone(),
                content: message.tagged(),
                attachments: message.files.iter().map(|file| file.bytes.len() as u64).collect(),
                button: render::card_button_id(message),
                known: message.others.iter().filter_map(|id| id.parse().ok()).collect(),
                application: through,
            },
        };
        match self.rest.lookup(&search).await {
            rest::SentMessageLookup::Found(id) => LookupOutcome::Found { message_id: id.to_string() },
            rest::SentMessageLookup::Absent => LookupOutcome::Absent,
            rest::SentMessageLookup::Unknown { why } => LookupOutcome::Unknown { why },
            rest::SentMessageLookup::Later { why } => later(why),
        }
    }

    /// Creates a thread: from the message of a person, then the starter is sent there; else the starter is sent
    /// to the channel, and the thread is created from it. A retry finds both again (H13).
    async fn open_child(&self, parent: &ConversationRef, starter: &Outgoing) -> OpenChildOutcome {
        if let Ok(channel) = id(&parent.conversation_id) {
            match self.conversation_refusal(channel).await {
                Ok(None) => {}
                Ok(Some(why)) => return OpenChildOutcome::Rejected { why, again: false },
                Err(fault) => {
                    let again = Err::<(), _>(fault.clone()).retry_reason().is_some();
                    return OpenChildOutcome::Rejected { why: fault.to_string(), again };
                }
            }
        }
        let Some(origin) = &starter.origin else {
            let message_id = match self.send_starter(parent, starter).await {
                Ok(message_id) => message_id,
                Err(outcome) => return outcome,
            };
            return self.open_thread(parent, &message_id, &starter.text).await;
        };
        let opened = self.open_thread(parent, &origin.message_id, &origin.title).await;
        let OpenChildOutcome::Made { conversation_id } = &opened else { return opened };
        let parent_conversation_id = Some(parent.conversation_id.clone());
        let thread = ConversationRef {
            conversation_id: conversation_id.clone(),
            parent_conversation_id,
            ..parent.clone()
        };
        self.send_starter(&thread, starter).await.err().unwrap_or(opened)
    }

    /// Sends the first message of a session and returns its id.
    async fn send_starter(
        &self,
        to: &ConversationRef,
        starter: &Outgoing,
    ) -> Result<String, OpenChildOutcome> {
        match self.send(to, starter).await {
            SendOutcome::Sent { message_id } => Ok(message_id),
            SendOutcome::Rejected { why, again } | SendOutcome::FilesRefused { why, again } => {
                Err(OpenChildOutcome::Rejected { why, again })
            }
            SendOutcome::Limited { retry_after_ms } => {
                let why = format!("rate limited for {retry_after_ms} ms");
                Err(OpenChildOutcome::Rejected { why, again: true })
            }
            SendOutcome::Uncertain { why } => match self.lookup(to, starter).await {
                LookupOutcome::Found { message_id } => Ok(message_id),
                LookupOutcome::Absent | LookupOutcome::Unknown { .. } | LookupOutcome::Later { .. } => {
                    Err(OpenChildOutcome::Uncertain { why })
                }
            },
        }
    }

    /// Creates a thread from a message of the channel; an existing one counts as created.
    async fn open_thread(&self, parent: &ConversationRef, message_id: &str, title: &str) -> OpenChildOutcome {
        let (channel, message) = match (id(&parent.conversation_id), id(message_id)) {
            (Ok(channel), Ok(message)) => (channel, message),
            (Err(why), _) => return OpenChildOutcome::Rejected { why, again: false },
            (Ok(_), Err(_)) => {
                let why = "the message to start the thread from was deleted".to_owned();
                return OpenChildOutcome::Rejected { why, again: false };
            }
        };
        let name = render::thread_name(title);
        let turn = QueueOptions::new(Priority::Final, RATE_LIMIT_WAIT);
        match self.rest.thread_from_message(channel, message, &name, ARCHIVE_MINUTES, turn).await {
            Ok(started) => {
                self.cache.set_location(started.id, Some(channel), started.guild);
                self.cache.record_archive_check(started.id, self.cache.stream_epoch());
                OpenChildOutcome::Made { conversation_id: started.id.to_string() }
            }
            Err(RestError::Rejected(rejection)) => {
                // A missing permission is final here: the binding is given up, and the log has the reason.
                let again = rejection.is_retryable() && rejection.kind != RejectionKind::Forbidden;
                OpenChildOutcome::Rejected { why: rejection.to_string(), again }
            }
            Err(fault) => OpenChildOutcome::Uncertain { why: fault.to_string() },
        }
    }

    async fn edit(&self, to: &ConversationRef, message_id: &str, message: &Outgoing) -> EditOutcome {
        let (channel, edited) = match (id(&to.conversation_id), id(message_id)) {
            (Ok(channel), Ok(edited)) => (channel, edited),
            (Err(why), _) | (_, Err(why)) => return EditOutcome::Gone { why },
        };
        let body = render::body(&message.text, &message.actions);
        let turn = QueueOptions::new(Priority::Card, RATE_LIMIT_WAIT);
        render::edit_outcome(self.rest.edit_message(channel, edited, &body, turn).await)
    }

    /// Shows a signal, best effort: failures are ignored.
    async fn signal(&self, to: &ConversationRef, signal: &Signal) {
        let Ok(channel) = id(&to.conversation_id) else { return };
        let (message_id, emoji, before) = match signal {
            Signal::Working => {
                return self.show_feature(OptionalFeature::Typing, channel, self.rest.typing(channel)).await;
            }
            Signal::Received { message_id } => (message_id, "👀", None),
            Signal::Queued { message_id } => (message_id, "⏳", None),
            Signal::Done { message_id } => (message_id, "✅", Some(["👀", "⏳"])),
            Signal::Failed { message_id } => (message_id, "❌", Some(["👀", "⏳"])),
        };
        let Ok(message) = id(message_id) else { return };
        let added = self.rest.add_reaction(channel, message, emoji, SIGNAL_RATE_LIMIT_WAIT);
        self.show_feature(OptionalFeature::Reaction, channel, added).await;
        for emoji in before.into_iter().flatten() {
            let removed = self.rest.remove_reaction(channel, message, emoji, SIGNAL_RATE_LIMIT_WAIT);
            self.show_feature(OptionalFeature::Reaction, channel, removed).await;
        }
    }

    /// Runs the request of an optional feature, unless Discord refused this feature there recently.
    async fn show_feature(
        &self,
        sign: OptionalFeature,
        at: Snowflake,
        request: impl Future<Output = Result<(), RestError>>,
    ) {
        if !self.cache.is_allowed(sign, at, self.clock.wall_ms()) {
            return;
        }
        let refused = request.await.err().and_then(|fault| fault.rejection_kind());
        if matches!(refused, Some(RejectionKind::Forbidden | RejectionKind::LostAccess)) {
            self.cache.deny(sign, at, self.clock.wall_ms());
        }
    }
}

/// Parses a Discord id.
fn id(text: &str) -> Result<Snowflake, String> {
    text.parse().map_err(|_| format!("{text:?} is not a Discord id"))
}

impl ChannelAdapter for Discord {
    fn id(&self) -> &'static str {
        DISCORD
    }

    fn account_id(&self) -> &str {
        &self.inner.account
    }

    /// Threads are bound themselves; for a channel a thread is created, unless the request is for the channel
    /// itself.
    fn capabilities(&self, at: &ConversationRef) -> Capabilities {
        let is_thread = at.parent_conversation_id.is_some()
            || id(&at.conversation_id).is_ok_and(|id| self.inner.cache.parent(id).is_some());
        Capabilities { here: true, child: !is_thread, child_first: !is_thread }
    }

    fn unavailable_reason(&self, at: &ConversationRef) -> Option<String> {
        self.inner.unavailable_reason(id(&at.conversation_id).ok()?)
    }

    fn properties(&self) -> ChannelProperties {
        ChannelProperties {
            receives_own_messages: false,
            shares_conversations: true,
            file_bytes_max: Some(FILE_BYTES_MAX),
            can_signal: true,
            edit_window_ms: Some(EDIT_WINDOW_MS),
            buttons_max: render::BUTTONS_MAX,
            renders_markdown: true,
            has_footer: true,
            can_edit: true,
            ..ChannelProperties::new(
                MessageLimit::new(Unit::Utf16, MESSAGE_UNITS_MAX),
                UnboundDestination::Ignore,
            )
        }
    }

    fn send<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        Box::pin(self.inner.send(to, message))
    }

    fn has_personas(&self, at: &ConversationRef) -> bool {
        self.inner.has_personas(at)
    }

    fn lookup<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        Box::pin(self.inner.lookup(to, message))
    }

    fn open_child<'a>(
        &'a self,
        parent: &'a ConversationRef,
        starter: &'a Outgoing,
    ) -> BoxFuture<'a, OpenChildOutcome> {
        Box::pin(self.inner.open_child(parent, starter))
    }

    fn edit<'a>(
        &'a self,
        to: &'a ConversationRef,
        message_id: &'a str,
        message: &'a Outgoing,
    ) -> BoxFuture<'a, EditOutcome> {
        Box::pin(self.inner.edit(to, message_id, message))
    }

    fn approvers(&self) -> Option<String> {
        self.inner.settings().access.approvers.mentions()
    }

    fn mention(&self, at: &ConversationRef) -> String {
        match id(&at.conversation_id) {
            Ok(channel) => format!("<#{channel}>"),
            Err(_) => at.conversation_id.clone(),
        }
    }

    fn health(&self) -> Option<ChannelHealth> {
        Some(self.inner.health())
    }

    fn signal<'a>(&'a self, to: &'a ConversationRef, signal: &'a Signal) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.signal(to, signal))
    }

    fn listen(&self, inbox: Arc<dyn InboundPort>) -> BoxFuture<'_, ()> {
        Box::pin(event_loop::listen(Arc::clone(&self.inner), inbox))
    }
}
