//! Socket of the local API: peer check, connection limit and timeouts.

use crate::api::ApiLimits;
use crate::api::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::api::extract::ApiError;
use crate::api::peer_ancestry::{self, EnvironmentCheck, ProcFs, foreign_ancestry};
use crate::api::write_timeout::WriteTimeout;
use acp_core::failure::Failure;
use acp_core::principal::Principal;
use acp_shared::codes::Code;
use acp_shared::log_limit::RefusalLog;
use axum::Router;
use axum::extract::Request;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Reason for the refusal of an agent, for logs.
const AN_AGENT: &str = "an agent";
/// Length of the kernel's queue of connections that are not accepted yet.
const BACKLOG: i32 = 128;
/// Maximum size of a request's head, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Pause after an error of `accept` (such as running out of file descriptors), in milliseconds.
const ACCEPT_PAUSE_MS: u64 = 100;
/// Maximum number of refused connections answered at the same time. Others are closed without a response.
const REFUSED_MAX: usize = 64;
/// Time limit for a refused connection to send its request and read the response, in milliseconds.
const REFUSED_MS: u64 = 2_000;
/// Maximum number of peers whose environment is being checked. Others are closed without a response.
const CHECKED_MAX: usize = 512;
/// Time limit for open requests when the gateway stops, in milliseconds.
const DRAIN_MS: u64 = 2_000;

/// Peer of a connection, as reported by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Effective user id.
    pub(crate) uid: u32,
    /// Process id at the time of the connection, for logs.
    pub(crate) pid: Option<i32>,
}

impl Peer {
    /// Returns the user's name, or the number if it has none.
    pub(crate) fn name(&self) -> String {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(self.uid));
        user.ok().flatten().map_or_else(|| format!("uid {}", self.uid), |user| user.name)
    }
}

/// Listening socket. Its file is removed when the gateway stops in order, while it holds the lock of the
/// state directory.
#[derive(Debug)]
pub(crate) struct ApiListener {
    listener: UnixListener,
    path: PathBuf,
}

impl ApiListener {
    /// Listens at `path`, with mode 0600 from the start. The caller holds the lock of the directory; a socket
    /// left by an earlier process is replaced atomically, so that clients always find one.
    ///
    /// # Errors
    /// The path is too long for a socket, a file that is no socket exists there, or the socket cannot be
    /// created.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        if std::fs::symlink_metadata(path).is_ok_and(|meta| !meta.file_type().is_socket()) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a file that is not a socket exists there",
            ));
        }
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(".new");
        let fresh = PathBuf::from(fresh);
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let address = SocketAddrUnix::new(&fresh).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the path of a socket may have at most 107 bytes, {} is longer", fresh.display()),
            )
        })?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // On Linux, the mode of the socket becomes the mode of the file that `bind` creates.
        rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(0o600))?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        std::fs::rename(&fresh, path)?;
        let listener = UnixListener::from_std(std::os::unix::net::UnixListener::from(socket))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Serves until `ending` is cancelled; then lets open requests finish for a short time, and removes the
    /// socket's file.
    pub(crate) async fn serve(self, router: Router, limits: ApiLimits, ending: CancellationToken) {
        let tasks = TaskTracker::new();
        let server = Arc::new(PeerServer::new(router, limits, ending.clone()));
        loop {
            let accepted = tokio::select! {
                () = ending.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => server.accept(stream, &tasks),
                Err(error) => {
                    if server.log.may_log(rustix::process::geteuid().as_raw(), "accept failed") {
                        tracing::warn!(%error, "cannot accept a connection");
                    }
                    tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
                }
            }
        }
        server.log.flush();
        tasks.close();
        if tokio::time::timeout(Duration::from_millis(DRAIN_MS), tasks.wait()).await.is_err() {
            tracing::warn!("requests still open at shutdown");
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, "cannot remove the socket");
        }
    }
}

/// Admits the gateway's own user and root; other users get no response.
fn admit(stream: &UnixStream, log: &RefusalLog) -> Option<Peer> {
    let peer = match stream.peer_cred() {
        Ok(cred) => Peer { uid: cred.uid(), pid: cred.pid() },
        Err(error) => {
            tracing::warn!(%error, "reading peer credentials failed");
            return None;
        }
    };
    if peer.uid == rustix::process::geteuid().as_raw() || peer.uid == 0 {
        return Some(peer);
    }
    const REASON: &str = "another user";
    if log.may_log(peer.uid, REASON) {
        tracing::warn!(uid = peer.uid, pid = peer.pid, reason = REASON, "connection refused");
    }
    None
}

/// Decides about accepted connections, and serves them. Peers are checked when they connect; a later transfer
/// of the connection to another process is not detected.
struct PeerServer {
    router: Router,
    limits: ApiLimits,
    ending: CancellationToken,
    slots: ConnectionSlots,
    refused: Arc<Semaphore>,
    checked: Arc<Semaphore>,
    log: RefusalLog,
    /// This process and its ancestors.
    own: Arc<HashSet<i32>>,
    environments: EnvironmentCheck,
}

impl PeerServer {
    fn new(router: Router, limits: ApiLimits, ending: CancellationToken) -> Self {
        let own = Arc::new(peer_ancestry::own_ancestry(&ProcFs));
        Self {
            router,
            limits,
            ending,
            slots: ConnectionSlots::new(limits.connections_max),
            refused: Arc::new(Semaphore::new(REFUSED_MAX)),
            checked: Arc::new(Semaphore::new(CHECKED_MAX)),
            log: RefusalLog::default(),
            environments: EnvironmentCheck::new(Arc::clone(&own)),
            own,
        }
    }

    /// Serves or refuses a connection in a task. Never waits.
    fn accept(self: &Arc<Self>, stream: UnixStream, tasks: &TaskTracker) {
        let Some(peer) = admit(&stream, &self.log) else { return };
        // The pidfd is opened first: if the process has not ended by the end of the check, its id was not reused.
        let process = peer_ancestry::pidfd(&stream);
        let ancestry = peer.pid.map_or(Some(Vec::new()), |pid| foreign_ancestry(&ProcFs, &self.own, pid));
        let server = Arc::clone(self);
        match (ancestry, Arc::clone(&self.checked).try_acquire_owned()) {
            (None, _) => self.refuse(stream, peer, AN_AGENT, tasks),
            (Some(_), Err(_)) => self.log_refusal(peer, "too many connections to check"),
            (Some(ancestry), Ok(place)) => {
                let tasks_of_peer = tasks.clone();
                drop(tasks.spawn(async move {
                    let is_agent = match peer.pid.filter(|_| !ancestry.is_empty()) {
                        None => Some(false),
                        Some(pid) => server.environments.is_agent_process(ProcFs, pid).await,
                    };
                    drop(place);
                    match is_agent {
                        Some(false) if !process.as_ref().is_some_and(peer_ancestry::has_ended) => {
                            server.serve(stream, peer).await;
                        }
                        Some(_) => server.refuse(stream, peer, AN_AGENT, &tasks_of_peer),
                        None => server.refuse(stream, peer, "environment unreadable in time", &tasks_of_peer),
                    }
                }));
            }
        }
    }

    async fn serve(&self, stream: UnixStream, peer: Peer) {
        let (slot, displaced) = self.slots.take();
        if displaced && self.log.may_log(peer.uid, "too many connections") {
            let limits = self.limits;
            tracing::warn!(limits.connections_max, "too many connections; least active one closed");
        }
        let ending = self.ending.clone();
        connection(stream, peer, self.router.clone(), self.limits, slot, ending).await;
    }

    /// Answers a refused connection in a task, unless too many are being answered.
    fn refuse(&self, stream: UnixStream, peer: Peer, reason: &'static str, tasks: &TaskTracker) {
        self.log_refusal(peer, reason);
        if let Ok(place) = Arc::clone(&self.refused).try_acquire_owned() {
            let answering = refuse(stream, self.limits.body_bytes_max);
            drop(tasks.spawn(async move {
                answering.await;
                drop(place);
            }));
        }
    }

    fn log_refusal(&self, peer: Peer, reason: &'static str) {
        if self.log.may_log(peer.uid, reason) {
            tracing::warn!(uid = peer.uid, pid = peer.pid, reason, "connection refused");
        }
    }
}

/// Response to every request of an agent's process.
fn agent_refusal() -> Response {
    let text = "The gateway refuses requests from processes of its agents, and from processes whose environment \
         cannot be read. Use a shell that no agent started.";
    ApiError::of(Code::PermissionDenied, text).into_response()
}

/// Reads one request to its end, refuses it, and closes. Closing with unread input would reset the connection
/// before the client has read the response.
pub(super) async fn refuse(stream: UnixStream, body_bytes_max: usize) {
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| async move {
        let mut body = Limited::new(request.into_body(), body_bytes_max);
        while let Some(Ok(_)) = body.frame().await {}
        Ok::<_, Infallible>(agent_refusal())
    });
    let within = Duration::from_millis(REFUSED_MS);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(within)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .half_close(true);
    let serving = http.serve_connection(TokioIo::new(stream), service);
    // The time limit also ends clients that do not read the response.
    drop(tokio::time::timeout(within, serving).await);
}

/// Duplicates the socket of a connection, to notice when the peer closes it.
fn watch(stream: &UnixStream) -> io::Result<UnixStream> {
    UnixStream::from_std(stream.as_fd().try_clone_to_owned()?.into())
}

/// Waits until the peer has closed both directions. A peer that has only finished writing still reads.
async fn closed(socket: &UnixStream) {
    while let Ok(ready) = socket.ready(Interest::WRITABLE).await {
        if ready.is_write_closed() {
            return;
        }
        // Clears the readiness, so that the loop waits for the next change.
        let _ = socket.try_io(Interest::WRITABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }
}

/// True for a stream of events.
fn is_stream(answer: &Response) -> bool {
    let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

fn too_many_streams() -> Response {
    let failure = Failure::new(
        Code::LimitReached,
        "too many event streams are open; close some, or raise limits.connections_max",
    );
    ApiError::from(failure.origin("gateway").retryable()).into_response()
}

async fn connection(
    stream: UnixStream,
    peer: Peer,
    router: Router,
    limits: ApiLimits,
    slot: Arc<ConnectionSlot>,
    ending: CancellationToken,
) {
    let at = Arc::clone(&slot);
    let socket = match watch(&stream) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(%error, "cannot watch a connection");
            return;
        }
    };
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(Principal::of_local_user(peer.name()));
        let request: Request = request.map(axum::body::Body::new);
        let (inner, at) = (TowerToHyperService::new(router.clone()), Arc::clone(&at));
        at.begin_request();
        async move {
            let answer = hyper::service::Service::call(&inner, request).await?;
            if !is_stream(&answer) {
                at.end_request();
            } else if !at.stream() {
                at.end_request();
                return Ok(too_many_streams());
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.head_ms))
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(true);
    let stream = WriteTimeout::new(stream, Duration::from_millis(limits.stall_ms));
    let serving = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::pin!(serving);
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = slot.end().cancelled() => return,
        () = closed(&socket) => return,
        () = ending.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection failed");
    }
}
