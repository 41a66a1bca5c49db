//! REST requests to Discord. Each result tells how much is known about the outcome.
//!
//! A request waits in the queue (`queue`), is sent (`wire`), and is retried if a repetition is harmless. The
//! decisions on the way are made in [`crate::core`].
#![deny(clippy::indexing_slicing)]

mod application;
mod channels;
mod counters;
mod error;
mod find_sent_message;
mod http;
mod interactions;
mod messages;
pub mod model;
mod queue;
mod settings;
mod webhooks;

pub use counters::{RestCounts, WaitTimes};
pub use error::{Rejection, RestError};
pub use find_sent_message::{SentMessageLookup, SentMessageSearch};
pub use http::ClientSetupError;
pub use messages::{History, Proof, SentMessage};
pub use settings::{PER_SECOND, RestSettings};
pub use webhooks::Webhook;

use crate::core::endpoint::{RetrySafety, Route};
use crate::core::errors::{RejectionKind, classify_rejection};
use crate::core::headers::{self, ResponseMeta};
use crate::core::ids::Snowflake;
use crate::core::message::RequestPayload;
use crate::core::rate_limiter::{OLD_EDITS_CODE, RateLimitParams, RateLimiter, RequestOutcome};
use crate::core::request_scheduler::{Priority, ScheduledRequest, Sequence};
use crate::core::sent_nonces::SentNonces;
use acp_shared::redact::Secret;
use bytes::Bytes;
use counters::Counters;
use http::{HttpClient, HttpOutcome};
use parking_lot::Mutex;
use queue::{InFlightRequest, RequestQueue, Waiter};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Maximum number of 429 responses to one request. Each retry waits for the rate limiter.
const RATE_LIMIT_RESPONSES_MAX: u32 = 5;
/// Maximum number of archived threads to remember.
const ARCHIVED_MAX: usize = 10_000;
/// Minimum upload rate to expect, in bytes per second. Extends the timeout of requests with files.
const UPLOAD_BYTES_PER_S: u64 = 128 * 1024;

/// Priority and maximum wait of a request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// Purpose of the request.
    pub priority: Priority,
    /// Maximum wait in the queue. A request whose rate limit lasts longer fails at once with
    /// [`RestError::Limited`].
    pub max_wait: Duration,
}

impl QueueOptions {
    /// Creates options with this priority and maximum wait.
    #[must_use]
    pub const fn new(priority: Priority, max_wait: Duration) -> Self {
        Self { priority, max_wait }
    }
}

/// Queue options of reads, which have no channel order: only rate limits delay them.
const READ_OPTIONS: QueueOptions = QueueOptions::new(Priority::Notice, Duration::from_secs(20));

/// Client for Discord's REST API. Clones share one queue and one set of rate limits.
#[derive(Clone)]
pub struct RestClient(Arc<Inner>);

struct Inner {
    settings: RestSettings,
    http: HttpClient,
    queue: RequestQueue,
    counters: Arc<Counters>,
    sent_nonces: Mutex<SentNonces>,
    /// Webhooks that no longer exist, by id and token; an id without a token stands for all its tokens.
    dead: Mutex<HashSet<(Snowflake, Option<Secret>)>>,
    /// Threads archived by a person: no new messages are sent to them.
    archived: watch::Sender<BTreeSet<Snowflake>>,
}

impl std::fmt::Debug for RestClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rest({})", self.0.settings.base.as_str())
    }
}

/// One request with its parameters.
struct Call {
    route: Route,
    payload: Option<RequestPayload>,
    options: QueueOptions,
    channel: Option<Snowflake>,
    sequence: Option<Sequence>,
    old_edit: bool,
}

impl Call {
    const fn new(route: Route, options: QueueOptions) -> Self {
        Self { route, payload: None, options, channel: None, sequence: None, old_edit: false }
    }

    const fn read(route: Route) -> Self {
        Self::new(route, READ_OPTIONS)
    }

    /// Orders the request among the writes to this channel.
    fn channel(self, channel: Snowflake) -> Self {
        Self { channel: Some(channel), ..self }
    }

    fn sequence(self, sequence: Sequence) -> Self {
        Self { sequence: Some(sequence), ..self }
    }

    fn json(self, body: Value) -> Self {
        self.payload(RequestPayload::json(body))
    }

    fn payload(self, payload: RequestPayload) -> Self {
        Self { payload: Some(payload), ..self }
    }

    fn rate_limit_params(&self) -> RateLimitParams {
        RateLimitParams {
            route: self.route.name,
            major: self.route.major.clone(),
            global: self.route.is_global(),
            bot: self.route.is_bot(),
            old_edit: self.old_edit,
        }
    }
}

/// Next step after an exchange.
enum AttemptResult {
    Done(Bytes),
    Failed(RestError),
    /// Refused with status 429: wait for the rate limiter and retry.
    Wait(ResponseMeta),
    /// Failed in a way that may pass, and a repetition is harmless: retry.
    Repeat {
        outcome: RequestOutcome,
        error: RestError,
    },
}

impl RestClient {
    /// Creates a client. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ClientSetupError`] if the token cannot stand in an HTTP header, or there is no HTTP client.
    pub fn new(settings: RestSettings) -> Result<Self, ClientSetupError> {
        let http = HttpClient::new(&settings)?;
        let counters = Arc::new(Counters::default());
        let limiter = RateLimiter::new(settings.per_second, settings.max_invalid_requests);
        let queue = RequestQueue::new(limiter, settings.queue, Arc::clone(&counters));
        let (sent_nonces, dead) = (Mutex::default(), Mutex::default());
        let archived = watch::Sender::default();
        Ok(Self(Arc::new(Inner { settings, http, queue, counters, sent_nonces, dead, archived })))
    }

    /// Replaces the bot's token. Requests resume if they had stopped because Discord refused the old one.
    ///
    /// # Errors
    /// [`ClientSetupError`] if the token is malformed; the old one stays in use.
    pub fn set_token(&self, token: &Secret) -> Result<(), ClientSetupError> {
        self.0.http.set_token(token)?;
        self.0.queue.authorize();
        Ok(())
    }

    /// Sets the maximum number of requests per second.
    pub fn set_per_second(&self, per_second: u32) {
        self.0.queue.set_per_second(per_second);
    }

    /// Records the nonce of a bot message seen on the websocket: proof that the message was sent.
    pub fn record_sent_nonce(&self, nonce: &str, message: Snowflake) {
        self.0.sent_nonces.lock().record(nonce, message);
    }

    fn find_sent_nonce(&self, nonce: &str) -> Option<Snowflake> {
        self.0.sent_nonces.lock().find(nonce)
    }

    /// Records that a person archived a thread (`is_archived`), or that the thread was unarchived. A queued
    /// message would unarchive it again, so messages to an archived thread fail unsent with
    /// [`RejectionKind::Archived`].
    pub fn set_archived(&self, thread: Snowflake, is_archived: bool) {
        self.0.archived.send_if_modified(|archived| {
            if !is_archived {
                return archived.remove(&thread);
            }
            let is_new = archived.insert(thread);
            if archived.len() > ARCHIVED_MAX {
                // Drops the oldest thread. A message sent there unarchives it, which is the lesser evil.
                archived.pop_first();
            }
            is_new
        });
    }

    /// Waits until a request may be sent.
    async fn wait_to_send(&self, call: &Call, waiter: Waiter) -> Result<InFlightRequest, RestError> {
        let Some(thread) = call.channel.filter(|_| call.route.posts_message()) else {
            return waiter.wait().await;
        };
        let mut archived = self.0.archived.subscribe();
        tokio::select! {
            biased;
            // Fails only if the sender is dropped; this branch is then disabled.
            Ok(()) = async { archived.wait_for(|archived| archived.contains(&thread)).await.map(drop) } => {
                let why = "the thread was archived".to_owned();
                Err(RestError::not_sent(call.route.name, RejectionKind::Archived, why))
            }
            in_flight = waiter.wait() => in_flight,
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> RestCounts {
        self.0.queue.with_current_values(self.0.counters.snapshot())
    }

    /// Performs a request, with retries, and counts its outcome.
    async fn call(&self, call: Call) -> Result<Bytes, RestError> {
        let name = call.route.name;
        let result = self.send_with_retries(&call).await;
        let outcome = result.as_ref().err().map_or("done", RestError::as_str);
        self.0.counters.count_finished(name, outcome);
        if let Err(fault @ RestError::Rejected(_)) = &result {
            tracing::debug!(route = name, why = %fault, "Discord request rejected");
        }
        result
    }

    async fn send_with_retries(&self, call: &Call) -> Result<Bytes, RestError> {
        let inner = &self.0;
        let give_up_at = inner.queue.now() + call.options.max_wait;
        let mut waiter = inner.queue.join(ScheduledRequest {
            channel: call.channel,
            priority: call.options.priority,
            sequence: call.sequence,
            give_up_at,
            params: call.rate_limit_params(),
        })?;
        let (mut attempts, mut refusals) = (0, 0);
        let mut backoff = inner.settings.retry_backoff;
        loop {
            let mut in_flight = self.wait_to_send(call, waiter).await?;
            let response_timeout = self.response_timeout(call, give_up_at);
            let exchange = inner.http.send(&call.route, call.payload.as_ref(), response_timeout).await;
            waiter = match self.classify_exchange(call, exchange, &mut in_flight) {
                AttemptResult::Done(body) => return Ok(body),
                AttemptResult::Failed(fault) => return Err(fault),
                AttemptResult::Wait(meta) => {
                    refusals += 1;
                    let retry_after =
                        meta.too_many.map_or_else(|| backoff.next_pause(), |limit| limit.retry_after);
                    let of_old = meta.too_many.is_some_and(|limit| limit.code == Some(OLD_EDITS_CODE));
                    in_flight.report_response(meta);
                    // Edits of old messages have a limit for the whole channel: the caller waits.
                    if refusals >= RATE_LIMIT_RESPONSES_MAX || of_old {
                        return Err(RestError::Limited { retry_after });
                    }
                    self.requeue(call, in_flight, give_up_at)?
                }
                AttemptResult::Repeat { outcome, error } => {
                    attempts += 1;
                    in_flight.report(&outcome);
                    if attempts >= inner.settings.attempts {
                        return Err(error);
                    }
                    // The channel stays reserved meanwhile, so a write that happens twice keeps its position.
                    tokio::time::sleep(backoff.next_pause()).await;
                    self.requeue(call, in_flight, give_up_at)?
                }
            };
        }
    }

    fn requeue(
        &self,
        call: &Call,
        in_flight: InFlightRequest,
        give_up_at: Duration,
    ) -> Result<Waiter, RestError> {
        self.0.counters.count_retry(call.route.name);
        in_flight.requeue(call.route.name, give_up_at)
    }

    /// Timeout of a response, longer for requests with files. The first response to an interaction must
    /// arrive before its own deadline, later it is useless.
    fn response_timeout(&self, call: &Call, give_up_at: Duration) -> Duration {
        let whole = self.0.settings.request_timeout;
        match call.route.name {
            "interaction_callback" => give_up_at.saturating_sub(self.0.queue.now()).min(whole),
            _ => {
                let files = call.payload.iter().flat_map(|payload| &payload.files);
                let bytes: u64 = files.map(|file| file.bytes.len() as u64).sum();
                whole + Duration::from_secs(bytes / UPLOAD_BYTES_PER_S)
            }
        }
    }

    fn classify_exchange(
        &self,
        call: &Call,
        exchange: HttpOutcome,
        in_flight: &mut InFlightRequest,
    ) -> AttemptResult {
        let Route { name, retry_safety, request_kind, .. } = call.route;
        let repeat = |outcome: RequestOutcome, why: String| match retry_safety {
            RetrySafety::Create => {
                let error = RestError::Uncertain { why };
                (outcome, error, false)
            }
            RetrySafety::Idempotent => (outcome, RestError::Uncertain { why }, true),
            // A read changes nothing, so it is certainly without effect.
            RetrySafety::ReadOnly => {
                (outcome, RestError::not_sent(name, RejectionKind::Temporary, why), true)
            }
        };
        let (outcome, error, harmless) = match exchange {
            HttpOutcome::NotSent { why } => {
                let error = RestError::not_sent(name, RejectionKind::NotSent, why);
                (RequestOutcome::NotSent, error, retry_safety != RetrySafety::Create)
            }
            HttpOutcome::Lost { why } => repeat(RequestOutcome::Lost, why),
            HttpOutcome::Response { meta, body } => match meta.status {
                200..300 => {
                    in_flight.report_response(meta);
                    return AttemptResult::Done(body);
                }
                429 => {
                    if let Some(limit) = meta.too_many {
                        self.0.counters.count_rate_limited(limit.scope);
                        tracing::debug!(route = name, ?limit, "Discord rate limit hit");
                    }
                    return AttemptResult::Wait(meta);
                }
                500.. => {
                    let why = format!("Discord answered with status {}", meta.status);
                    repeat(RequestOutcome::Responded(meta), why)
                }
                status => {
                    let refusal = headers::read_refusal(&body);
                    let kind = classify_rejection(request_kind, status, refusal.code);
                    if status == 401 && call.route.is_bot() {
                        tracing::error!("Discord rejected the bot token; requests stopped");
                    }
                    in_flight.report_response(meta);
                    return AttemptResult::Failed(RestError::refused(name, status, refusal, kind));
                }
            },
        };
        if harmless {
            return AttemptResult::Repeat { outcome, error };
        }
        in_flight.report(&outcome);
        AttemptResult::Failed(error)
    }

    /// Performs a read and parses its response.
    async fn fetch<T: DeserializeOwned>(&self, route: Route) -> Result<T, RestError> {
        let name = route.name;
        model::parse(name, RetrySafety::ReadOnly, self.json(Call::read(route)).await?)
    }

    /// Performs a request with a JSON response.
    async fn json(&self, call: Call) -> Result<Value, RestError> {
        let (name, retry_safety) = (call.route.name, call.route.retry_safety);
        let body = self.call(call).await?;
        serde_json::from_slice(&body).map_err(|_| unreadable(name, retry_safety, "it is not JSON"))
    }
}

/// Creates the error of a successful request whose response cannot be parsed. A write was executed with an
/// unknown result.
fn unreadable(route: &'static str, retry_safety: RetrySafety, why: &str) -> RestError {
    let why = format!("the response to {route} could not be read: {why}");
    match retry_safety {
        RetrySafety::ReadOnly => RestError::not_sent(route, RejectionKind::Temporary, why),
        RetrySafety::Idempotent | RetrySafety::Create => RestError::Uncertain { why },
    }
}
