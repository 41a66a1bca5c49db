//! Supervisor client: reconnects when the connection breaks, has one writer, matches replies by request
//! number, and queues output for the reader of its lease.
//!
//! Reading never blocks (H18): replies go to their callers, notices to the feed of their lease, which is
//! bounded by the supervisor's flow control.

use acp_shared::backoff::Backoff;
use acp_shared::conn::{self, ConnError, Endpoint};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{
    Hello, Home, Marks, Notice, Refusal, RefusalCode, Reply, Request, Role, Rollback, ToClient, ToSupervisor,
    VERSION_MARKS, VERSION_MAX, VERSION_MIN, Welcome,
};
use acp_shared::redact::Secret;
use acp_store::GatewayIdentity;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Maximum number of requests queued for the writer.
const REQUESTS_MAX: usize = 1024;
/// Deadline for the response to Hello, in milliseconds.
const HELLO_MS: u64 = 10_000;
/// Silence in one of both directions after which the supervisor is pinged, in milliseconds …
const PING_AFTER_MS: u64 = 5_000;
/// … and further silence after which the connection is given up as hanging, in milliseconds.
const PONG_TIMEOUT_MS: u64 = 15_000;
/// Request number reserved for pings.
const PING_ID: u64 = 0;
/// Delays before a reconnect.
const RECONNECT_BACKOFF: Backoff = Backoff::new(50, 2_000);

/// Failure of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// The supervisor refused the request.
    #[error(transparent)]
    Refused(Refusal),
    /// The connection broke; the request may or may not have arrived.
    #[error("the supervisor does not answer")]
    Disconnected,
}

/// Durable progress of this gateway for the handshake. Errors are reasons in words.
pub(crate) trait DurableProgress: Send + Sync {
    /// Returns the progress to send with a Hello.
    fn marks(&self) -> BoxFuture<'_, Result<Marks, String>>;

    /// Records that the supervisor has admitted this start, on the connection with this number. Called before anything else is
    /// sent.
    fn admitted(&self, connection: u64) -> BoxFuture<'_, Result<(), String>>;
}

/// Status of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SupervisorStatus {
    /// Not connected yet, and not refused either.
    Connecting,
    /// Not connected, since an earlier connection of this gateway is still open; retried soon.
    Busy(String),
    /// Not connected, with the reason.
    Down(String),
    /// Not connected: the supervisor has a newer state of this gateway than its database.
    RolledBack(Box<Rollback>),
    /// Connected. The generation grows with every connection.
    Up {
        /// Number of the connection.
        generation: u64,
        /// Welcome message of the supervisor.
        welcome: Box<Welcome>,
    },
}

impl SupervisorStatus {
    /// True if connected.
    pub(crate) const fn is_up(&self) -> bool {
        self.generation().is_some()
    }

    /// Reason why it is not connected; empty if none is known yet.
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Busy(why) | Self::Down(why) => why,
            Self::RolledBack(rollback) => &rollback.refusal.message,
            Self::Connecting | Self::Up { .. } => "",
        }
    }

    /// Number of the connection; `None` if not connected.
    pub(crate) const fn generation(&self) -> Option<u64> {
        match self {
            Self::Up { generation, .. } => Some(*generation),
            Self::Connecting | Self::Busy(_) | Self::Down(_) | Self::RolledBack(_) => None,
        }
    }
}

/// Receiver of one lease's notices, in the order sent by the supervisor. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct LeaseFeed {
    lease_id: LeaseId,
    shared: Arc<ClientShared>,
    queue: Arc<FeedQueue>,
}

#[derive(Debug, Default)]
struct FeedQueue {
    items: Mutex<VecDeque<Notice>>,
    ready: Notify,
}

impl LeaseFeed {
    /// Returns all items since the last call; waits for at least one. Safe to cancel.
    pub(crate) async fn next(&self) -> VecDeque<Notice> {
        loop {
            let items = std::mem::take(&mut *self.queue.items.lock());
            if !items.is_empty() {
                return items;
            }
            self.queue.ready.notified().await;
        }
    }

    /// Drops queued items: after a reconnect the supervisor sends them again.
    pub(crate) fn clear(&self) {
        self.queue.items.lock().clear();
    }
}

impl Drop for LeaseFeed {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if state.feeds.get(&self.lease_id).is_some_and(|queue| Arc::ptr_eq(queue, &self.queue)) {
            state.feeds.remove(&self.lease_id);
        }
    }
}

type CallResult = Result<Reply, CallError>;

#[derive(Debug, Default)]
struct ClientState {
    next_id: u64,
    generation: u64,
    waiting: HashMap<u64, oneshot::Sender<CallResult>>,
    feeds: HashMap<LeaseId, Arc<FeedQueue>>,
}

#[derive(Debug)]
struct ClientShared {
    state: Mutex<ClientState>,
    status: watch::Sender<SupervisorStatus>,
    /// Time of the loss of the last connection, or else of the start.
    lost_at: Mutex<Duration>,
    /// Clock of that time: [`boot_time`], or that of a simulation.
    time: fn() -> Duration,
}

impl ClientShared {
    fn new(status: SupervisorStatus, time: fn() -> Duration) -> Arc<Self> {
        let status = watch::Sender::new(status);
        Arc::new(Self { state: Mutex::default(), status, lost_at: Mutex::new(time()), time })
    }
}

/// Time since the boot of this machine, with the time in which it was suspended.
pub(crate) fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Handle of the connection. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SupervisorClient {
    shared: Arc<ClientShared>,
    requests: mpsc::Sender<(u64, Request)>,
}

impl SupervisorClient {
    /// Connects to the supervisor at `endpoint`, and reconnects until `stop` is cancelled. The secret is read for
    /// each connection, since the supervisor may be started later; TLS needs none.
    pub(crate) fn start(
        endpoint: Endpoint,
        secret: Option<PathBuf>,
        hello: Hello,
        progress: Box<dyn DurableProgress>,
        stop: CancellationToken,
    ) -> Self {
        Self::start_with(endpoint, secret, hello, progress, stop, PingTimes::DEFAULT)
    }

    /// Like `start`, with these times of pings.
    fn start_with(
        endpoint: Endpoint,
        secret: Option<PathBuf>,
        hello: Hello,
        progress: Box<dyn DurableProgress>,
        stop: CancellationToken,
        ping_times: PingTimes,
    ) -> Self {
        let (requests, queue) = mpsc::channel(REQUESTS_MAX);
        let shared = ClientShared::new(SupervisorStatus::Connecting, boot_time);
        let driver = ConnectionDriver {
            endpoint,
            secret,
            hello,
            progress,
            shared: Arc::clone(&shared),
            queue,
            ping_times,
        };
        tokio::spawn(async move {
            tokio::select! {
                () = driver.run() => {}
                () = stop.cancelled() => {}
            }
        });
        Self { shared, requests }
    }

    /// Creates a client of a supervisor that cannot be reached, for this reason.
    pub(crate) fn unreachable(why: String) -> Self {
        let shared = ClientShared::new(SupervisorStatus::Down(why), boot_time);
        Self { shared, requests: mpsc::channel(1).0 }
    }

    /// Returns a receiver of the connection status.
    pub(crate) fn status(&self) -> watch::Receiver<SupervisorStatus> {
        self.shared.status.subscribe()
    }

    /// Returns the number of connections so far, which is that of the newest one.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.state.lock().generation
    }

    /// Returns the time since the loss of the last connection, or without one since the start: an earlier process has sent
    /// nothing since then. `None` while connected.
    pub(crate) fn away_for(&self) -> Option<Duration> {
        if self.shared.status.borrow().is_up() {
            return None;
        }
        // Read after the status: the time of a loss is set before it.
        let lost_at = *self.shared.lost_at.lock();
        Some((self.shared.time)().saturating_sub(lost_at))
    }

    /// Returns the reason why the supervisor cannot be used; `None` if it can.
    pub(crate) fn outage(&self) -> Option<String> {
        match &*self.shared.status.borrow() {
            SupervisorStatus::Up { .. } => None,
            SupervisorStatus::Connecting => Some("the supervisor does not answer yet".to_owned()),
            SupervisorStatus::Busy(why) | SupervisorStatus::Down(why) => {
                Some(format!("the supervisor does not answer ({why})"))
            }
            SupervisorStatus::RolledBack(_) => {
                Some("the supervisor refuses a database that went back in time".to_owned())
            }
        }
    }

    /// Subscribes to a lease's notices. A lease has one reader.
    pub(crate) fn feed(&self, lease_id: LeaseId) -> LeaseFeed {
        let queue = Arc::<FeedQueue>::default();
        self.shared.state.lock().feeds.insert(lease_id, Arc::clone(&queue));
        LeaseFeed { lease_id, shared: Arc::clone(&self.shared), queue }
    }

    /// Sends a request, in order with earlier ones, and returns the receiver of its response. The request is
    /// sent on the current connection or not at all: one that waited for queue space until after a reconnect
    /// would be executed twice, since its caller repeats it there.
    pub(crate) async fn send(&self, body: Request) -> oneshot::Receiver<CallResult> {
        let (answer, receiver) = oneshot::channel();
        let mut status = self.shared.status.subscribe();
        let connection = status.borrow_and_update().generation();
        if connection.is_none() {
            drop(answer.send(Err(CallError::Disconnected)));
            return receiver;
        }
        let is_other = |status: &SupervisorStatus| status.generation() != connection;
        let place = tokio::select! {
            biased;
            place = self.requests.reserve() => place.ok(),
            _ = status.wait_for(is_other) => None,
        };
        let mut state = self.shared.state.lock();
        let Some(place) = place.filter(|_| !is_other(&self.shared.status.borrow())) else {
            drop(answer.send(Err(CallError::Disconnected)));
            return receiver;
        };
        state.next_id += 1;
        let id = state.next_id;
        state.waiting.insert(id, answer);
        place.send((id, body));
        receiver
    }

    /// Sends a request and waits for the response.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the supervisor's reason; [`CallError::Disconnected`] if the connection
    /// breaks before the response.
    pub(crate) async fn call(&self, body: Request) -> CallResult {
        self.send(body).await.await.unwrap_or(Err(CallError::Disconnected))
    }

    /// True if a supervisor with this feature answers.
    pub(crate) fn has_feature(&self, name: &str) -> bool {
        match &*self.status().borrow() {
            SupervisorStatus::Up { welcome, .. } => welcome.features.iter().any(|feature| feature == name),
            _ => false,
        }
    }
}

type SupervisorConnection = conn::Conn<ToClient, ToSupervisor>;

/// Times of pings, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct PingTimes {
    /// Silence before a ping.
    ping_after_ms: u64,
    /// Time to respond.
    pong_timeout_ms: u64,
}

impl PingTimes {
    const DEFAULT: Self = Self { ping_after_ms: PING_AFTER_MS, pong_timeout_ms: PONG_TIMEOUT_MS };
}

struct ConnectionDriver {
    endpoint: Endpoint,
    secret: Option<PathBuf>,
    hello: Hello,
    progress: Box<dyn DurableProgress>,
    shared: Arc<ClientShared>,
    queue: mpsc::Receiver<(u64, Request)>,
    ping_times: PingTimes,
}

impl ConnectionDriver {
    async fn run(mut self) {
        let mut backoff = RECONNECT_BACKOFF;
        loop {
            match self.open().await {
                Ok((connection, welcome)) => {
                    backoff.reset();
                    let why = self.serve(connection, welcome).await;
                    self.set_down(SupervisorStatus::Down(why));
                }
                Err(status) => self.set_down(status),
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }

    async fn open(&self) -> Result<(SupervisorConnection, Welcome), SupervisorStatus> {
        let hello = Hello { secret: self.secret.as_deref().and_then(secret), ..self.hello.clone() };
        let marks = self.progress.marks().await.map_err(SupervisorStatus::Down)?;
        let opened = conn::open_gateway(&self.endpoint, hello, marks, Duration::from_millis(HELLO_MS)).await;
        let opened = opened.map_err(|error| match error {
            ConnError::RolledBack(rollback) => SupervisorStatus::RolledBack(rollback),
            ConnError::Refused(refusal) if refusal.code == RefusalCode::InstanceBusy => {
                SupervisorStatus::Busy(refusal.message)
            }
            other => SupervisorStatus::Down(describe(&other)),
        })?;
        let connection = self.shared.state.lock().generation + 1;
        self.progress.admitted(connection).await.map_err(SupervisorStatus::Down)?;
        Ok(opened)
    }

    fn epoch(&self) -> Option<u64> {
        match self.hello.role {
            Role::Gateway { epoch, .. } => Some(epoch),
            Role::Admin => None,
        }
    }

    /// Serves one connection; returns the reason of its end.
    async fn serve(&mut self, connection: SupervisorConnection, welcome: Welcome) -> String {
        let conn::Conn { mut receiver, mut sender, .. } = connection;
        // Requests from before this connection were answered with `Disconnected` and must not be sent now.
        while self.queue.try_recv().is_ok() {}
        self.set_up(welcome);
        let shared = Arc::clone(&self.shared);
        let (heard, sent) = (AtomicU64::new(0), AtomicU64::new(0));
        let ping = Notify::new();
        let epoch = self.epoch();
        let read = async {
            loop {
                match receiver.recv().await {
                    Ok(Some(message)) => {
                        heard.fetch_add(1, Ordering::Relaxed);
                        if let Some(why) = shared.deliver(message) {
                            return why;
                        }
                    }
                    Ok(None) => return "the supervisor closed the connection".to_owned(),
                    Err(error) => return describe(&error),
                }
            }
        };
        let write = async {
            loop {
                let next = tokio::select! {
                    next = self.queue.recv() => next,
                    () = ping.notified() => Some((PING_ID, Request::Status)),
                };
                let Some((id, body)) = next else { return "the gateway is shutting down".to_owned() };
                sent.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = sender.feed(&message(epoch, id, body)).await {
                    return describe(&error);
                }
                while let Ok((id, body)) = self.queue.try_recv() {
                    if let Err(error) = sender.feed(&message(epoch, id, body)).await {
                        return describe(&error);
                    }
                }
                if let Err(error) = sender.flush().await {
                    return describe(&error);
                }
            }
        };
        let watch = watch_silence(self.ping_times, &heard, &sent, &ping);
        // Biased: received data is processed before a timeout is declared.
        tokio::select! {
            biased;
            why = read => why,
            why = write => why,
            why = watch => why,
        }
    }

    fn set_up(&self, welcome: Welcome) {
        let generation = {
            let mut state = self.shared.state.lock();
            state.generation += 1;
            state.generation
        };
        tracing::info!(
            supervisor_pid = welcome.pid,
            version = welcome.version,
            endpoint = %self.endpoint,
            "connected to the supervisor"
        );
        self.shared.status.send_replace(SupervisorStatus::Up { generation, welcome: Box::new(welcome) });
    }

    fn set_down(&self, status: SupervisorStatus) {
        let was_up = self.shared.status.borrow().is_up();
        let changed = *self.shared.status.borrow() != status;
        let why = status.reason();
        if was_up {
            *self.shared.lost_at.lock() = (self.shared.time)();
            tracing::warn!(why, endpoint = %self.endpoint, "supervisor connection lost");
        } else if changed {
            tracing::info!(why, endpoint = %self.endpoint, "waiting for the supervisor");
        }
        let waiting = {
            let mut state = self.shared.state.lock();
            self.shared.status.send_replace(status);
            std::mem::take(&mut state.waiting)
        };
        for (_, answer) in waiting {
            drop(answer.send(Err(CallError::Disconnected)));
        }
    }
}

impl ClientShared {
    /// Dispatches one message; returns a reason if the connection is unusable.
    fn deliver(&self, message: ToClient) -> Option<String> {
        match message {
            ToClient::Reply { id, result } => {
                let waiting = self.state.lock().waiting.remove(&id);
                if let Some(answer) = waiting {
                    drop(answer.send(result.map_err(CallError::Refused)));
                }
                None
            }
            ToClient::Notice(notice) => {
                self.notice(notice);
                None
            }
            ToClient::Refused(refusal) => Some(refusal.to_string()),
            ToClient::Welcome(_) | ToClient::RolledBack(_) => {
                Some("the supervisor sent an unexpected message".to_owned())
            }
        }
    }

    fn notice(&self, mut notice: Notice) {
        // An old supervisor also sends the end of stderr, which may contain secrets.
        if let Notice::Exited { stderr_tail, .. } = &mut notice {
            stderr_tail.clear();
        }
        let (Notice::Output { lease_id, .. }
        | Notice::Exited { lease_id, .. }
        | Notice::LeaseChanged { lease_id, .. }) = &notice;
        let queue = self.state.lock().feeds.get(lease_id).map(Arc::clone);
        if let Some(queue) = queue {
            queue.items.lock().push_back(notice);
            queue.ready.notify_one();
        }
    }
}

/// Pings the supervisor after a silence in one of both directions: one of another machine closes a connection on which
/// nothing arrives. Returns the reason of the end if it does not answer.
async fn watch_silence(times: PingTimes, heard: &AtomicU64, sent: &AtomicU64, ping: &Notify) -> String {
    let PingTimes { ping_after_ms, pong_timeout_ms } = times;
    let counts = || (heard.load(Ordering::Relaxed), sent.load(Ordering::Relaxed));
    let mut last = counts();
    loop {
        tokio::time::sleep(Duration::from_millis(ping_after_ms)).await;
        let before = std::mem::replace(&mut last, counts());
        if before.0 != last.0 && before.1 != last.1 {
            continue;
        }
        ping.notify_one();
        tokio::time::sleep(Duration::from_millis(pong_timeout_ms)).await;
        if counts().0 == last.0 {
            return format!("the supervisor hangs: it sent nothing for {pong_timeout_ms} ms after a request");
        }
    }
}

/// Builds the message of a request: modifying requests carry the gateway's epoch.
const fn message(epoch: Option<u64>, id: u64, body: Request) -> ToSupervisor {
    match epoch {
        Some(epoch) if body.changes_lease() => ToSupervisor::Act { id, epoch, body },
        Some(_) | None => ToSupervisor::Request { id, body },
    }
}

/// Builds the Hello. The gateway role requires the marks of protocol 2.
pub(crate) fn hello(role: Role) -> Hello {
    let version_min = match role {
        Role::Gateway { .. } => VERSION_MARKS,
        Role::Admin => VERSION_MIN,
    };
    Hello { version_min, version_max: VERSION_MAX, features: Vec::new(), role, secret: None }
}

/// Builds the role of the gateway with this identity and state directory.
pub(crate) fn gateway_role(identity: &GatewayIdentity) -> Role {
    let home = &identity.home;
    Role::Gateway {
        instance_id: identity.instance_id,
        epoch: identity.epoch,
        home: Home { machine_id: home.machine_id.clone(), dev: home.dev, ino: home.ino },
    }
}

/// Like `hello`, with the secret next to the supervisor's socket, if this user may read it.
pub(crate) fn hello_at(socket: &Path, role: Role) -> Hello {
    Hello { secret: secret(&default_secret_path(socket)), ..hello(role) }
}

/// Returns the path of the secret that a supervisor requires from its own user (H9).
pub(crate) fn default_secret_path(socket: &Path) -> PathBuf {
    socket.with_file_name("secret")
}

/// Reads a secret, if this user may. The supervisor decides if one is required.
fn secret(file: &Path) -> Option<Secret> {
    let text = std::fs::read_to_string(file).ok()?;
    Some(Secret::new(text.trim().to_owned()))
}

fn describe(error: &ConnError) -> String {
    match error {
        ConnError::Refused(refusal) if refusal.code == RefusalCode::VersionUnsupported => format!(
            "{}; to replace an older supervisor while its agents keep running, install the new program and \
             run `acp-supervisor upgrade`",
            refusal.message
        ),
        ConnError::Refused(refusal) => refusal.message.clone(),
        ConnError::Io(source) => format!("the socket failed: {source}"),
        ConnError::Wire(source) => format!("the supervisor violated the protocol: {source}"),
        ConnError::Closed | ConnError::Timeout(_) | ConnError::OutOfTurn | ConnError::RolledBack(_) => {
            error.to_string()
        }
    }
}

#[cfg(test)]
pub(crate) mod simulated;

#[cfg(test)]
mod tests;
