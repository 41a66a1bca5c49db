//! Driver of one shard: performs the instructions of its state machine ([`crate::core::shard`]).

use super::connection::{Connection, Received};
use super::payload::{self, ShardIdentity};
use super::{Clock, SessionSettings};
use crate::core::close_codes::FatalGatewayError;
use crate::core::connect_rate::IdentifyPace;
use crate::core::decode::{DecodeError, DecodedEvent};
use crate::core::event::{Event, GapCause};
use crate::core::shard::{CLOSE_NORMAL, Disconnect, Frame, OutgoingPayload, Output, Reconnect, Shard};
use crate::websocket::event_intake::{EventIntake, ShardState};
use crate::websocket::gateway_info::{self, GatewayLookup};
use crate::websocket::identify_slot::{SessionLimits, wait_for_slot};
use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time for which reported limits are used for identify slots.
const REPORT_VALID: Duration = Duration::from_secs(60);

/// Wait for an identify slot; `None` while there is nothing to wait for.
type SlotWait = Option<Pin<Box<dyn Future<Output = Result<(), (String, u64)>> + Send>>>;

/// State shared by all shards of a bot.
#[derive(Clone)]
pub(super) struct SharedState {
    pub(super) settings: SessionSettings,
    pub(super) client: reqwest::Client,
    pub(super) stop: CancellationToken,
    pub(super) intake: Arc<EventIntake>,
    pub(super) pace: Arc<Mutex<IdentifyPace>>,
    pub(super) clock: Clock,
}

/// Driver of one shard.
pub(super) struct Driver {
    shared: SharedState,
    shard: Shard,
    identity: ShardIdentity,
    /// Gateway address; `None` if it must be requested.
    url: Option<String>,
    /// Limits of new sessions, as reported with the address.
    limits: SessionLimits,
    /// Time of that report.
    reported: Instant,
    /// Permission to identify a session. Held until IDENTIFY is sent, so that shards identify one after the other.
    permit: Option<OwnedMutexGuard<IdentifyPace>>,
}

/// Input of the loop over a connection.
enum Input {
    Received(Received),
    /// The deadline of the shard.
    Due,
    /// The end of the wait for an identify slot.
    Slot(Result<(), (String, u64)>),
}

/// End of a connection.
enum ConnectionEnd {
    Stopped,
    Failed(FatalGatewayError),
    Lost(Reconnect),
}

impl Driver {
    /// The driver of shard `number` of `shards`, with the address of the gateway and the limits reported with it.
    pub(super) fn new(
        shared: SharedState,
        number: u32,
        shards: u32,
        (url, limits): (String, SessionLimits),
    ) -> Self {
        let SessionSettings { token, base, ready_timeout, .. } = shared.settings.clone();
        let ready_timeout_ms = u64::try_from(ready_timeout.as_millis()).unwrap_or(u64::MAX);
        let identity = ShardIdentity { token, shard: number, shards };
        shared.intake.record_shard(number, ShardState::Connecting);
        let shard = Shard::new(number, base, ready_timeout_ms, shared.settings.slots.is_some());
        Self { shard, identity, url: Some(url), limits, reported: Instant::now(), permit: None, shared }
    }

    /// Runs one connection after the other until the driver is stopped.
    ///
    /// # Errors
    /// [`FatalGatewayError`] if a new connection would end in the same way.
    pub(super) async fn run(mut self) -> Result<(), FatalGatewayError> {
        let stop = self.shared.stop.clone();
        let mut pause = Duration::ZERO;
        loop {
            let ready = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                ready = self.prepare(pause) => ready,
            };
            let lost = match self.serve(&ready?).await {
                ConnectionEnd::Stopped => return Ok(()),
                ConnectionEnd::Failed(failure) => return Err(failure),
                ConnectionEnd::Lost(lost) => lost,
            };
            pause = Duration::from_millis(lost.after_ms);
            if lost.needs_url {
                self.url = None;
            }
            if !lost.keeps_permit {
                self.permit = None;
            }
            self.report(lost.why, pause, lost.resume);
        }
    }

    fn report(&self, why: String, pause: Duration, resume: bool) {
        let (shard, pause_ms) = (self.identity.shard, pause.as_millis());
        if resume && pause.is_zero() {
            tracing::info!(shard, why, "gateway connection lost; resuming");
        } else {
            tracing::warn!(shard, why, pause_ms, resume, "gateway connection lost");
        }
        self.shared.intake.record_shard(shard, ShardState::Lost(why.clone()));
        self.shared.intake.put(Event::Disconnected { why });
    }

    /// Waits for the pause, and gets the address and the permission for the next connection.
    async fn prepare(&mut self, pause: Duration) -> Result<String, FatalGatewayError> {
        tokio::time::sleep(pause).await;
        self.request_url().await?;
        if !self.shard.can_resume() {
            self.acquire_permit().await;
            self.request_url().await?;
        }
        let url = self.shard.resume_url().map(ToOwned::to_owned).or_else(|| self.url.clone());
        Ok(url.unwrap_or_default())
    }

    /// Requests the address of the gateway until there is one.
    async fn request_url(&mut self) -> Result<(), FatalGatewayError> {
        while self.url.is_none() {
            let sessions = u32::from(!self.shard.can_resume());
            match gateway_info::gateway(&self.shared.client, &self.shared.settings, Some(sessions)).await {
                GatewayLookup::Available { url, limits, .. } => {
                    (self.url, self.limits, self.reported) = (Some(url), limits, Instant::now());
                }
                GatewayLookup::Failed(failure) => return Err(failure),
                GatewayLookup::RetryLater { why, after } => {
                    let pause = after.max(Duration::from_millis(self.shard.record_failure()));
                    self.report(why, pause, self.shard.can_resume());
                    tokio::time::sleep(pause).await;
                }
            }
        }
        Ok(())
    }

    /// Waits for the permission to identify. An identify slot needs limits that were reported recently: else the address is to be
    /// requested again.
    async fn acquire_permit(&mut self) {
        if self.permit.is_none() {
            let mut pace = Arc::clone(&self.shared.pace).lock_owned().await;
            let wait = pace.until_next(self.shared.clock.now());
            tokio::time::sleep(Duration::from_millis(wait)).await;
            self.permit = Some(pace);
        }
        if self.shared.settings.slots.is_some() && self.reported.elapsed() >= REPORT_VALID {
            self.url = None;
        }
    }

    /// Opens a connection and runs its protocol to the end.
    async fn serve(&mut self, url: &str) -> ConnectionEnd {
        let stop = self.shared.stop.clone();
        self.shard.begin_connection(self.shared.clock.now());
        let opened = tokio::select! {
            () = stop.cancelled() => return ConnectionEnd::Stopped,
            () = self.due() => Err("timed out".to_owned()),
            opened = Connection::open(url) => opened,
        };
        let mut connection = match opened {
            Ok(connection) => connection,
            Err(why) => return self.end_connection(Disconnect::NotConnected(why)),
        };
        let mut slot: SlotWait = None;
        loop {
            let input = tokio::select! {
                () = stop.cancelled() => {
                    connection.close(CLOSE_NORMAL).await;
                    return ConnectionEnd::Stopped;
                }
                () = self.due() => Input::Due,
                received = connection.next() => Input::Received(received),
                ended = wait_for(&mut slot) => Input::Slot(ended),
            };
            let now = self.shared.clock.now();
            let outputs = match input {
                Input::Due => self.shard.tick(now),
                Input::Received(Received::Text(text)) => {
                    self.shard.frame(now, payload::decode(&text), chance())
                }
                Input::Received(Received::NoText) => self.shard.frame(now, Frame::Unreadable, chance()),
                Input::Received(Received::End(end)) => return self.end_connection(end),
                Input::Slot(ended) => {
                    slot = None;
                    self.shard.slot_ended(now, ended)
                }
            };
            for output in outputs {
                match output {
                    Output::Event { kind, read } => self.accept(&kind, read),
                    Output::Gap(lost) => self.shared.intake.gap(GapCause::Skipped, lost),
                    Output::WaitForSlot => slot = self.begin_slot_wait(),
                    Output::Send(payload) => {
                        if let Err(end) = self.send(&mut connection, &payload).await {
                            return self.end_connection(end);
                        }
                    }
                    Output::Reconnect(lost) => {
                        if let Some(code) = lost.close {
                            connection.close(code).await;
                        }
                        return ConnectionEnd::Lost(lost);
                    }
                }
            }
        }
    }

    /// Passes on an event, and records the start of a session.
    fn accept(&self, kind: &str, read: Result<DecodedEvent, DecodeError>) {
        if let Ok(DecodedEvent::Events(events)) = &read
            && matches!(events.first(), Some(Event::Ready(_) | Event::Resumed))
        {
            self.shared.intake.record_shard(self.identity.shard, ShardState::Up);
        }
        self.shared.intake.accept(kind, read);
    }

    /// Begins to wait for an identify slot.
    fn begin_slot_wait(&self) -> SlotWait {
        let slots = Arc::clone(self.shared.settings.slots.as_ref()?);
        Some(Box::pin(wait_for_slot(slots, self.identity.shard, self.limits)))
    }

    fn end_connection(&mut self, end: Disconnect) -> ConnectionEnd {
        match self.shard.connection_ended(self.shared.clock.now(), end) {
            Ok(lost) => ConnectionEnd::Lost(lost),
            Err(failure) => ConnectionEnd::Failed(failure),
        }
    }

    /// Waits for the deadline of the shard.
    async fn due(&self) {
        match self.shard.deadline() {
            Some(at) => self.shared.clock.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    async fn send(
        &mut self,
        connection: &mut Connection,
        payload: &OutgoingPayload,
    ) -> Result<(), Disconnect> {
        let sent = connection.send(self.identity.encode(payload)).await;
        if *payload == OutgoingPayload::Identify {
            // Counted whether or not it was received.
            self.shared.intake.record_identify();
            let count = self.permit.take().and_then(|mut pace| pace.record_identify(self.shared.clock.now()));
            count.into_iter().for_each(EventIntake::alarm);
        }
        sent
    }
}

/// Waits for an identify slot, or forever. Cancel safe.
async fn wait_for(slot: &mut SlotWait) -> Result<(), (String, u64)> {
    match slot {
        Some(slot) => slot.await,
        None => std::future::pending().await,
    }
}

/// Returns a random number from 0 up to 1, from the random keys of the standard library's hash maps.
fn chance() -> f64 {
    let drawn = RandomState::new().build_hasher().finish();
    let drawn = u32::try_from(drawn >> 32).unwrap_or_default();
    f64::from(drawn) / (f64::from(u32::MAX) + 1.0)
}
