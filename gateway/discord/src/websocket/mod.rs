//! Gateway connections: one websocket for each shard, its session, and its events in order.
//!
//! The protocol is decided in [`crate::core::shard`] and performed by `shard` over a `connection`: HELLO,
//! then RESUME or IDENTIFY, heartbeats, and a reconnect after each end. Every connection has
//! [`READY_TIMEOUT`] to READY or RESUMED, and again after a wait for an identify slot; otherwise it is ended, and a new session is
//! identified. `ask` requests the gateway address, and [`BaseUrl::check_gateway_url`] checks it, also for RESUME. The event
//! consumer cannot delay a heartbeat: the queue (`pipe`) is bounded and drops.
//!
//! Shards: as many as the service recommends, or those of [`SessionSettings::shards`], each as a task; they identify one
//! after the other ([`IdentifyPace`]). Programs that share an application also take identify slots ([`IdentifySlots`]): after
//! HELLO, and directly before IDENTIFY, so that a slot is never held while something else is waited for.

mod connection;
mod event_channel;
mod event_intake;
mod gateway_info;
mod identify_slot;
mod payload;
mod shard;

pub use event_channel::{EventReceiver, EventSender, event_channel};
pub use event_intake::{SessionCounters, SessionCounts, ShardState};
pub use identify_slot::{IdentifySlot, IdentifySlots, SLOT_VALID, SessionLimits, SlotFuture};

use crate::core::base_url::{BaseUrl, BaseUrlError};
use crate::core::close_codes::FatalGatewayError;
use crate::core::connect_rate::{CONNECT_BACKOFF, IdentifyPace};
use crate::core::event::Event;
use acp_shared::redact::Secret;
use event_intake::EventIntake;
use gateway_info::GatewayLookup;
use shard::{Driver, SharedState};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time from the start of a connection to READY or RESUMED.
pub const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Settings of the connection of one bot.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// The bot's token.
    pub token: Secret,
    /// Address of Discord.
    pub base: BaseUrl,
    /// Time from the start of a connection to READY or RESUMED: [`READY_TIMEOUT`], or less in a test.
    pub ready_timeout: Duration,
    /// Counters of the connection.
    pub counts: Arc<SessionCounters>,
    /// Shards of this connection; `None` for all, as many as Discord recommends.
    pub shards: Option<ShardSet>,
    /// Identify slots that other programs share; `None` if there are no others.
    pub slots: Option<Arc<dyn IdentifySlots>>,
}

/// Shards of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSet {
    /// Numbers of the shards.
    pub numbers: Range<u32>,
    /// Number of shards of the application.
    pub count: u32,
}

impl ShardSet {
    fn len(&self) -> u32 {
        self.numbers.end.saturating_sub(self.numbers.start)
    }
}

/// Monotonic clock of the protocol, in milliseconds since its start.
#[derive(Debug, Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn now(self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    async fn sleep_until(self, at_ms: u64) {
        tokio::time::sleep(Duration::from_millis(at_ms.saturating_sub(self.now()))).await;
    }
}

/// Keeps the sessions of a bot until `stop`, until the other end of `sink` is dropped, or until a new
/// connection would be of no use. Puts events into `sink` without waiting.
///
/// # Errors
/// [`FatalGatewayError`], which is also sent as [`Event::Failed`].
pub async fn run(
    settings: SessionSettings,
    stop: CancellationToken,
    sink: EventSender,
) -> Result<(), FatalGatewayError> {
    let stop = stop.child_token();
    let shards = serve(settings, stop.clone(), sink.clone());
    tokio::pin!(shards);
    let result = tokio::select! {
        result = &mut shards => result,
        () = sink.closed() => {
            stop.cancel();
            shards.await
        }
    };
    if let Err(failure) = &result {
        sink.put(Event::Failed(failure.clone()));
    }
    result
}

/// Starts the shards and waits until all have ended. If one ends, the others are stopped.
async fn serve(
    settings: SessionSettings,
    stop: CancellationToken,
    sink: EventSender,
) -> Result<(), FatalGatewayError> {
    let client = gateway_info::client(&settings.base).map_err(base_url_failure)?;
    let intake = Arc::new(EventIntake::new(sink, Arc::clone(&settings.counts)));
    intake.clear_shards();
    let first = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        first = ask_first(&client, &settings, &intake) => first,
    };
    let (url, shards, limits) = first?;
    let pace = Arc::new(Mutex::new(IdentifyPace::with_shards(shards.len())));
    let clock = Clock(Instant::now());
    let shared = SharedState { settings, client, stop: stop.clone(), intake, pace, clock };
    let mut tasks = JoinSet::new();
    for number in shards.numbers {
        tasks.spawn(Driver::new(shared.clone(), number, shards.count, (url.clone(), limits)).run());
    }
    let mut result = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.unwrap_or_else(|error| Err(task_failure(&error)));
        stop.cancel();
        result = result.and(ended);
    }
    result
}

/// Requests the gateway address and the number of shards until there is a response.
async fn ask_first(
    client: &reqwest::Client,
    settings: &SessionSettings,
    intake: &EventIntake,
) -> Result<(String, ShardSet, SessionLimits), FatalGatewayError> {
    let configured = settings.shards.as_ref().map(ShardSet::len);
    // With identify slots, each session is counted when it is identified.
    let sessions = settings.slots.as_ref().map_or(configured, |_| Some(1));
    let mut backoff = CONNECT_BACKOFF;
    loop {
        let (why, after) = match gateway_info::gateway(client, settings, sessions).await {
            GatewayLookup::Available { url, shards, limits } => {
                let all = || ShardSet { numbers: 0..shards, count: shards };
                return Ok((url, settings.shards.clone().unwrap_or_else(all), limits));
            }
            GatewayLookup::Failed(failure) => return Err(failure),
            GatewayLookup::RetryLater { why, after } => (why, after),
        };
        let pause = after.max(backoff.next_pause());
        tracing::warn!(why, pause_ms = pause.as_millis(), "gateway address lookup failed; retrying");
        intake.put(Event::Disconnected { why });
        tokio::time::sleep(pause).await;
    }
}

fn task_failure(error: &JoinError) -> FatalGatewayError {
    let remedy = "Restart the gateway, and report this error with the log.".to_owned();
    FatalGatewayError { code: None, cause: format!("a task of the connection ended: {error}"), remedy }
}

/// Creates the failure for a refused address.
fn base_url_failure(refused: BaseUrlError) -> FatalGatewayError {
    let remedy =
        "Correct the base URL, or remove it to use Discord itself; then restart the gateway.".to_owned();
    FatalGatewayError { code: None, cause: refused.to_string(), remedy }
}
