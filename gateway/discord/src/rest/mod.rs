//! Requests to Discord, each with an outcome that says what is known of it.
//!
//! A request waits for its turn (`queue`), is made (`wire`) and, where a repetition does no harm, made again.
//! Whatever is decided on the way is decided in [`crate::core`].
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

/// How often a request is made that is refused for now. Each time it waits for as long as it was told.
const REFUSALS_MAX: u32 = 5;
/// Threads that are known to be put away.
const AWAY_MAX: usize = 10_000;
/// How much of a file is on its way in a second, at least.
const UPLOAD_BYTES_PER_S: u64 = 128 * 1024;

/// How a request waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// What it is for.
    pub priority: Priority,
    /// How long it may wait. What would wait longer is [`Fault::Limited`] at once.
    pub patience: Duration,
}

impl Turn {
    /// For this, and for no longer than that.
    #[must_use]
    pub const fn new(priority: Priority, patience: Duration) -> Self {
        Self { priority, patience }
    }
}

/// Reads wait for nobody's turn but their budget's.
const READ: Turn = Turn::new(Priority::Notice, Duration::from_secs(20));

/// Discord's requests. Copies are the same thing: one queue, one set of budgets.
#[derive(Clone)]
pub struct Rest(Arc<Inner>);

struct Inner {
    settings: Settings,
    wire: Wire,
    queue: Queue,
    counters: Arc<Counters>,
    echoes: Mutex<Echoes>,
    /// Webhooks that are not there any more, by id and token; an id without a token stands for all of its tokens.
    dead: Mutex<HashSet<(Snowflake, Option<Secret>)>>,
    /// Threads that somebody put away: nothing new is said there.
    away: watch::Sender<BTreeSet<Snowflake>>,
}

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rest({})", self.0.settings.base.text())
    }
}

/// One request, with all that it needs.
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

    /// In the line of those who write to a channel.
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

/// What to do after an exchange.
enum Next {
    Done(Bytes),
    Failed(Fault),
    /// Refused for now: it waits once more.
    Wait(Said),
    /// Nobody knows, and a repetition does no harm.
    Repeat {
        became: Became,
        then: Fault,
    },
}

impl Rest {
    /// Makes requests in this way. Needs a runtime of tokio around it.
    ///
    /// # Errors
    /// The token or the settings cannot be used.
    pub fn new(settings: Settings) -> Result<Self, CannotStart> {
        let wire = Wire::new(&settings)?;
        let counters = Arc::new(Counters::default());
        let gate = Gate::new(settings.per_second, settings.refusals);
        let queue = Queue::new(gate, settings.queue, Arc::clone(&counters));
        let (echoes, dead) = (Mutex::default(), Mutex::default());
        let away = watch::Sender::default();
        Ok(Self(Arc::new(Inner { settings, wire, queue, counters, echoes, dead, away })))
    }

    /// Where Discord is.
    #[must_use]
    pub fn base(&self) -> &Base {
        &self.0.settings.base
    }

    /// Uses another token from now on. After a refused one, requests go on.
    ///
    /// # Errors
    /// The token cannot be one; the old one stays.
    pub fn set_token(&self, token: &Secret) -> Result<(), CannotStart> {
        self.0.wire.set_token(token)?;
        self.0.queue.authorize();
        Ok(())
    }

    /// A message of ours was seen on the websocket, with its nonce: proof that it was sent.
    pub fn echo(&self, nonce: &str, message: Snowflake) {
        self.0.echoes.lock().unwrap_or_else(PoisonError::into_inner).hear(nonce, message);
    }

    fn echoed(&self, nonce: &str) -> Option<Snowflake> {
        self.0.echoes.lock().unwrap_or_else(PoisonError::into_inner).find(nonce)
    }

    /// Somebody put a thread away, or it was taken out again. A message that waits for its turn there would take it out:
    /// it is given back as [`Meaning::Archived`], unsent.
    pub fn put_away(&self, thread: Snowflake, is_away: bool) {
        self.0.away.send_if_modified(|away| {
            if !is_away {
                return away.remove(&thread);
            }
            let is_new = away.insert(thread);
            if away.len() > AWAY_MAX {
                // The oldest one. What is said there takes it out again, which is the lesser evil.
                away.pop_first();
            }
            is_new
        });
    }

    /// Waits for the turn of a request.
    async fn turn(&self, call: &Call, waiter: Waiter) -> Result<Held, Fault> {
        let Some(thread) = call.lane.filter(|_| call.route.says_something()) else {
            return waiter.turn().await;
        };
        let mut away = self.0.away.subscribe();
        tokio::select! {
            biased;
            // An error: there is nobody left who could tell.
            Ok(()) = async { away.wait_for(|away| away.contains(&thread)).await.map(drop) } => {
                let why = "somebody put the thread away".to_owned();
                Err(Fault::not_sent(call.route.name, Meaning::Archived, why))
            }
            held = waiter.turn() => held,
        }
    }

    /// What was counted until now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.queue.with_now(self.0.counters.snapshot())
    }

    /// Makes a request, and says what became of it.
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
                    // Edits of old messages have a budget for the whole channel: nothing waits for it here.
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
                    // Nobody else writes to the channel meanwhile: what is written twice stays where it is.
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

    /// How long the answer may take: longer for files, which are on their way for a while. The first answer to an
    /// interaction is in time or of no use.
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
            // What only reads changed nothing.
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

    /// Makes a request whose answer is JSON.
    async fn json(&self, call: Call) -> Result<Value, Fault> {
        let (name, nature) = (call.route.name, call.route.nature);
        let body = self.call(call).await?;
        serde_json::from_slice(&body).map_err(|_| unreadable(name, nature, "it is no JSON"))
    }
}

/// A success whose answer cannot be read: of what was made, nobody knows what it is.
fn unreadable(route: &'static str, nature: Nature, why: &str) -> Fault {
    let why = format!("the answer to {route} could not be read: {why}");
    match nature {
        Nature::Read => Fault::not_sent(route, Meaning::Temporary, why),
        Nature::Same | Nature::Create => Fault::Uncertain { why },
    }
}

/// Whether what is asked of a webhook means that it is not there any more.
const fn is_dead(asked: Asked, meaning: Meaning) -> bool {
    matches!((asked, meaning), (Asked::Webhook, Meaning::Gone(crate::core::errors::What::Webhook)))
}
