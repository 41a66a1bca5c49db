//! REST requests to Discord. Each result tells how much is known about the outcome.
//!
//! A request waits in the queue (`queue`), is sent (`wire`), and is retried if a repetition is harmless. The
//! decisions on the way are made in [`crate::core`].
#![deny(clippy::indexing_slicing)]

mod application;
mod channels;
mod counters;
mod fault;
mod interactions;
mod lookup;
mod messages;
pub mod model;
mod queue;
mod settings;
mod webhooks;
mod wire;

pub use channels::{ARCHIVE_MINUTES, Change};
pub use counters::{Counts, Waits};
pub use fault::{Fault, Rejection};
pub use lookup::{Lookup, Search};
pub use messages::{History, Posted, Proof};
pub use settings::Settings;
pub use webhooks::Webhook;
pub use wire::CannotStart;

use crate::core::base::Base;
use crate::core::echo::Echoes;
use crate::core::errors::{Asked, Meaning, meaning};
use crate::core::gate::{Became, Counted, Gate, OLD_EDITS};
use crate::core::headers::{self, Said};
use crate::core::ids::Snowflake;
use crate::core::message::Payload;
use crate::core::route::{Nature, Route};
use crate::core::schedule::{Job, Priority, Sequence};
use acp_shared::redact::Secret;
use bytes::Bytes;
use counters::Counters;
use queue::{Held, Queue, Waiter};
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use wire::{Exchange, Wire};

/// Maximum number of 429 responses to one request. Each retry waits for the rate limiter.
const REFUSALS_MAX: u32 = 5;
/// Maximum number of archived threads to remember.
const AWAY_MAX: usize = 10_000;
/// Minimum upload rate to expect, in bytes per second. Extends the timeout of requests with files.
const UPLOAD_BYTES_PER_S: u64 = 128 * 1024;

/// Priority and maximum wait of a request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Purpose of the request.
    pub priority: Priority,
    /// Maximum wait in the queue. A request whose rate limit lasts longer fails at once with
    /// [`Fault::Limited`].
    pub patience: Duration,
}

impl Turn {
    /// Creates a turn of this priority, with a maximum wait.
    #[must_use]
    pub const fn new(priority: Priority, patience: Duration) -> Self {
        Self { priority, patience }
    }
}

/// Turn of reads, which have no channel order: only rate limits delay them.
const READ: Turn = Turn::new(Priority::Notice, Duration::from_secs(20));

/// Client for Discord's REST API. Clones share one queue and one set of rate limits.
#[derive(Clone)]
pub struct Rest(Arc<Inner>);

struct Inner {
    settings: Settings,
    wire: Wire,
    queue: Queue,
    counters: Arc<Counters>,
    echoes: Mutex<Echoes>,
    /// Webhooks that no longer exist, by id and token; an id without a token stands for all its tokens.
    dead: Mutex<HashSet<(Snowflake, Option<Secret>)>>,
    /// Threads archived by a person: no new messages are sent to them.
    away: watch::Sender<BTreeSet<Snowflake>>,
}

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rest({})", self.0.settings.base.text())
    }
}

/// One request with its parameters.
struct Call {
    route: Route,
    payload: Option<Payload>,
    turn: Turn,
    lane: Option<Snowflake>,
    sequence: Option<Sequence>,
    old_edit: bool,
}

impl Call {
    const fn new(route: Route, turn: Turn) -> Self {
        Self { route, payload: None, turn, lane: None, sequence: None, old_edit: false }
    }

    const fn read(route: Route) -> Self {
        Self::new(route, READ)
    }

    /// Orders the request among the writes to this channel.
    fn lane(self, channel: Snowflake) -> Self {
        Self { lane: Some(channel), ..self }
    }

    fn sequence(self, sequence: Sequence) -> Self {
        Self { sequence: Some(sequence), ..self }
    }

    fn json(self, body: Value) -> Self {
        self.payload(Payload::json(body))
    }

    fn payload(self, payload: Payload) -> Self {
        Self { payload: Some(payload), ..self }
    }

    fn counted(&self) -> Counted {
        Counted {
            route: self.route.name,
            major: self.route.major.clone(),
            global: self.route.is_global(),
            bot: self.route.is_bot(),
            old_edit: self.old_edit,
        }
    }
}

/// Next step after an exchange.
enum Next {
    Done(Bytes),
    Failed(Fault),
    /// Refused with status 429: wait for the rate limiter and retry.
    Wait(Said),
    /// Failed in a way that may pass, and a repetition is harmless: retry.
    Repeat {
        became: Became,
        then: Fault,
    },
}

impl Rest {
    /// Creates a client. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`CannotStart`] if the token or the user agent cannot stand in an HTTP header, or there is no HTTP
    /// client.
    pub fn new(settings: Settings) -> Result<Self, CannotStart> {
        let wire = Wire::new(&settings)?;
        let counters = Arc::new(Counters::default());
        let gate = Gate::new(settings.per_second, settings.refusals);
        let queue = Queue::new(gate, settings.queue, Arc::clone(&counters));
        let (echoes, dead) = (Mutex::default(), Mutex::default());
        let away = watch::Sender::default();
        Ok(Self(Arc::new(Inner { settings, wire, queue, counters, echoes, dead, away })))
    }

    /// Base URL of Discord.
    #[must_use]
    pub fn base(&self) -> &Base {
        &self.0.settings.base
    }

    /// Replaces the bot's token. Requests resume if they had stopped because Discord refused the old one.
    ///
    /// # Errors
    /// [`CannotStart`] if the token is malformed; the old one stays in use.
    pub fn set_token(&self, token: &Secret) -> Result<(), CannotStart> {
        self.0.wire.set_token(token)?;
        self.0.queue.authorize();
        Ok(())
    }

    /// Records the nonce of a bot message seen on the websocket: proof that the message was sent.
    pub fn echo(&self, nonce: &str, message: Snowflake) {
        self.0.echoes.lock().unwrap_or_else(PoisonError::into_inner).hear(nonce, message);
    }

    fn echoed(&self, nonce: &str) -> Option<Snowflake> {
        self.0.echoes.lock().unwrap_or_else(PoisonError::into_inner).find(nonce)
    }

    /// Records that a person archived a thread (`is_away`), or that the thread was unarchived. A queued
    /// message would unarchive it again, so messages to an archived thread fail unsent with
    /// [`Meaning::Archived`].
    pub fn put_away(&self, thread: Snowflake, is_away: bool) {
        self.0.away.send_if_modified(|away| {
            if !is_away {
                return away.remove(&thread);
            }
            let is_new = away.insert(thread);
            if away.len() > AWAY_MAX {
                // Drops the oldest thread. A message sent there unarchives it, which is the lesser evil.
                away.pop_first();
            }
            is_new
        });
    }

    /// Waits until a request may be sent.
    async fn turn(&self, call: &Call, waiter: Waiter) -> Result<Held, Fault> {
        let Some(thread) = call.lane.filter(|_| call.route.says_something()) else {
            return waiter.turn().await;
        };
        let mut away = self.0.away.subscribe();
        tokio::select! {
            biased;
            // Fails only if the sender is dropped; this branch is then disabled.
            Ok(()) = async { away.wait_for(|away| away.contains(&thread)).await.map(drop) } => {
                let why = "somebody put the thread away".to_owned();
                Err(Fault::not_sent(call.route.name, Meaning::Archived, why))
            }
            held = waiter.turn() => held,
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.queue.with_now(self.0.counters.snapshot())
    }

    /// Performs a request, with retries, and counts its outcome.
    async fn call(&self, call: Call) -> Result<Bytes, Fault> {
        let name = call.route.name;
        let result = self.turns(&call).await;
        let outcome = result.as_ref().err().map_or("done", Fault::as_str);
        self.0.counters.ended(name, outcome);
        if let Err(fault @ Fault::Rejected(_)) = &result {
            tracing::debug!(route = name, why = %fault, "a request to Discord was not carried out");
        }
        result
    }

    async fn turns(&self, call: &Call) -> Result<Bytes, Fault> {
        let inner = &self.0;
        let give_up_at = inner.queue.now() + call.turn.patience;
        let mut waiter = inner.queue.join(Job {
            lane: call.lane,
            priority: call.turn.priority,
            sequence: call.sequence,
            give_up_at,
            counted: call.counted(),
        })?;
        let (mut attempts, mut refusals) = (0, 0);
        loop {
            let mut held = self.turn(call, waiter).await?;
            let within = self.within(call, give_up_at);
            let exchange = inner.wire.exchange(&call.route, call.payload.as_ref(), within).await;
            waiter = match self.next(call, exchange, &mut held) {
                Next::Done(body) => return Ok(body),
                Next::Failed(fault) => return Err(fault),
                Next::Wait(said) => {
                    refusals += 1;
                    let retry_after = said.too_many.map_or(inner.settings.pause, |limit| limit.retry_after);
                    let of_old = said.too_many.is_some_and(|limit| limit.code == Some(OLD_EDITS));
                    held.answered(said);
                    // Edits of old messages have a limit for the whole channel: the caller waits.
                    if refusals >= REFUSALS_MAX || of_old {
                        return Err(Fault::Limited { retry_after });
                    }
                    self.again(call, held, give_up_at)?
                }
                Next::Repeat { became, then } => {
                    attempts += 1;
                    held.became(&became);
                    if attempts >= inner.settings.attempts {
                        return Err(then);
                    }
                    // The channel stays reserved meanwhile, so a write that happens twice keeps its position.
                    tokio::time::sleep(inner.settings.pause * 2_u32.saturating_pow(attempts - 1)).await;
                    self.again(call, held, give_up_at)?
                }
            };
        }
    }

    fn again(&self, call: &Call, held: Held, give_up_at: Duration) -> Result<Waiter, Fault> {
        self.0.counters.again(call.route.name);
        held.again(call.route.name, give_up_at)
    }

    /// Timeout of a response, longer for requests with files. The first response to an interaction must
    /// arrive before its own deadline, later it is useless.
    fn within(&self, call: &Call, give_up_at: Duration) -> Duration {
        let whole = self.0.settings.whole;
        match call.route.name {
            "interaction_callback" => give_up_at.saturating_sub(self.0.queue.now()).min(whole),
            _ => {
                let files = call.payload.iter().flat_map(|payload| &payload.files);
                let bytes: u64 = files.map(|file| file.bytes.len() as u64).sum();
                whole + Duration::from_secs(bytes / UPLOAD_BYTES_PER_S)
            }
        }
    }

    fn next(&self, call: &Call, exchange: Exchange, held: &mut Held) -> Next {
        let Route { name, nature, asked, .. } = call.route;
        let repeat = |became: Became, why: String| match nature {
            Nature::Create => {
                let then = Fault::Uncertain { why };
                (became, then, false)
            }
            Nature::Same => (became, Fault::Uncertain { why }, true),
            // A read changes nothing, so it is certainly without effect.
            Nature::Read => (became, Fault::not_sent(name, Meaning::Temporary, why), true),
        };
        let (became, then, harmless) = match exchange {
            Exchange::NotSent { why } => {
                let then = Fault::not_sent(name, Meaning::NotSent, why);
                (Became::Unused, then, nature != Nature::Create)
            }
            Exchange::Lost { why } => repeat(Became::Lost, why),
            Exchange::Answer { said, body } => match said.status {
                200..300 => {
                    held.answered(said);
                    return Next::Done(body);
                }
                429 => {
                    if let Some(limit) = said.too_many {
                        self.0.counters.limited(limit.scope);
                        tracing::debug!(route = name, ?limit, "Discord takes no more of these for now");
                    }
                    return Next::Wait(said);
                }
                500.. => {
                    let why = format!("Discord answered with status {}", said.status);
                    repeat(Became::Answered(said), why)
                }
                status => {
                    let refusal = headers::refusal(&body);
                    let meaning = meaning(asked, status, refusal.code);
                    if status == 401 && call.route.is_bot() {
                        tracing::error!(
                            "Discord does not take the bot's token: no further requests are made"
                        );
                    }
                    held.answered(said);
                    return Next::Failed(Fault::refused(name, status, refusal, meaning));
                }
            },
        };
        if harmless {
            return Next::Repeat { became, then };
        }
        held.became(&became);
        Next::Failed(then)
    }

    /// Performs a request with a JSON response.
    async fn json(&self, call: Call) -> Result<Value, Fault> {
        let (name, nature) = (call.route.name, call.route.nature);
        let body = self.call(call).await?;
        serde_json::from_slice(&body).map_err(|_| unreadable(name, nature, "it is no JSON"))
    }
}

/// Creates the fault of a successful request whose response cannot be parsed. A write was executed with an
/// unknown result.
fn unreadable(route: &'static str, nature: Nature, why: &str) -> Fault {
    let why = format!("the answer to {route} could not be read: {why}");
    match nature {
        Nature::Read => Fault::not_sent(route, Meaning::Temporary, why),
        Nature::Same | Nature::Create => Fault::Uncertain { why },
    }
}

/// True if a refusal of a webhook request means that the webhook no longer exists.
const fn is_dead(asked: Asked, meaning: Meaning) -> bool {
    matches!((asked, meaning), (Asked::Webhook, Meaning::Gone(crate::core::errors::What::Webhook)))
}
