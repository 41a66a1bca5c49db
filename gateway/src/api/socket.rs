//! Socket of the local API: peer check, connection limit and timeouts.

use crate::api::ApiLimits;
use crate::api::connection_slots::ConnectionSlots;
use crate::api::extract::ApiError;
use crate::api::http::{Admission, Gate, HEAD_BYTES_MAX, HttpServer, REFUSED_MS, drain};
use crate::api::peer_ancestry::{self, EnvironmentCheck, ProcFs, foreign_ancestry};
use crate::metrics::Metrics;
use acp_core::principal::Principal;
use acp_shared::codes::Code;
use acp_shared::log_limit::RefusalLog;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Name of this listener in metrics.
const UNIX: &str = "unix";
/// Reason for the refusal of an agent, for logs.
const AN_AGENT: &str = "an agent";
/// Length of the kernel's queue of connections that are not accepted yet.
const BACKLOG: i32 = 128;
/// Pause after an error of `accept` (such as running out of file descriptors), in milliseconds.
const ACCEPT_PAUSE_MS: u64 = 100;
/// Maximum number of refused connections answered at the same time. Others are closed without a response.
const REFUSED_MAX: usize = 64;
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
    metrics: Metrics,
}

impl ApiListener {
    /// Listens at `path`, with mode 0600 from the start. The caller holds the lock of the directory; a socket
    /// left by an earlier process is replaced atomically, so that clients always find one.
    ///
    /// # Errors
    /// As [`bind_unix`].
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        Ok(Self { listener: bind_unix(path, 0o600)?, path: path.to_owned(), metrics: Metrics::default() })
    }

    /// Counts connections and refusals in these metrics.
    pub(crate) fn with_metrics(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Serves until `ending` is cancelled; then lets open requests finish for a short time, and removes the
    /// socket's file.
    pub(crate) async fn serve(self, router: Router, limits: ApiLimits, ending: CancellationToken) {
        let path = self.path.clone();
        self.answer(router, limits, ending).await;
        remove_socket(&path);
    }

    /// As [`ApiListener::serve`], but leaves the socket's file to the caller.
    pub(crate) async fn answer(self, router: Router, limits: ApiLimits, ending: CancellationToken) {
        let Self { listener, metrics, .. } = self;
        let server = Arc::new(PeerServer::new(HttpServer { router, limits }, metrics, ending.clone()));
        let accept = move |cx: &mut Context<'_>| listener.poll_accept(cx);
        accept_until(accept, &server.log, &ending, |(stream, _), tasks| server.accept(stream, tasks)).await;
        server.log.flush();
    }
}

/// Removes the file of a socket that is no longer served.
pub(crate) fn remove_socket(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(%error, path = %path.display(), "cannot remove the socket");
    }
}

/// Listens at `path`. A socket that exists there is replaced atomically.
///
/// # Errors
/// The path is too long for a socket, a file that is no socket exists there, or the socket cannot be
/// created.
pub(super) fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    if std::fs::symlink_metadata(path).is_ok_and(|meta| !meta.file_type().is_socket()) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is not a socket exists there"));
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
    // On Linux, the mode of the socket, without the umask, becomes the mode of the file that `bind` creates.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &address)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    std::fs::rename(&fresh, path)?;
    UnixListener::from_std(std::os::unix::net::UnixListener::from(socket))
}

/// Accepts connections until `ending` is cancelled; then closes the listener, and lets open requests finish for a short
/// time.
pub(super) async fn accept_until<S>(
    accept: impl Fn(&mut Context<'_>) -> Poll<io::Result<S>>,
    log: &RefusalLog,
    ending: &CancellationToken,
    mut handle: impl FnMut(S, &TaskTracker),
) {
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = ending.cancelled() => break,
            accepted = std::future::poll_fn(&accept) => accepted,
        };
        match accepted {
            Ok(connection) => handle(connection, &tasks),
            Err(error) => {
                if log.may_log(rustix::process::geteuid().as_raw(), "accept failed") {
                    tracing::warn!(%error, "cannot accept a connection");
                }
                tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
            }
        }
    }
    drop(accept);
    tasks.close();
    if tokio::time::timeout(Duration::from_millis(DRAIN_MS), tasks.wait()).await.is_err() {
        tracing::warn!("requests still open at shutdown");
    }
}

/// Admits the gateway's own user and root; other users, the error, get no response. `None` for a peer that is gone.
fn admit(stream: &UnixStream) -> Option<Result<Peer, Peer>> {
    let peer = match stream.peer_cred() {
        Ok(cred) => Peer { uid: cred.uid(), pid: cred.pid() },
        Err(error) => {
            tracing::warn!(%error, "reading peer credentials failed");
            return None;
        }
    };
    if peer.uid == rustix::process::geteuid().as_raw() || peer.uid == 0 {
        return Some(Ok(peer));
    }
    Some(Err(peer))
}

/// Gate of a connection on the local socket: its requests are those of the user at the other end.
struct PeerGate {
    peer: Peer,
    principal: Principal,
}

impl Gate for PeerGate {
    fn admit(&self, request: &mut Request) -> Admission {
        request.extensions_mut().insert(self.peer);
        request.extensions_mut().insert(self.principal.clone());
        Admission::granted()
    }
}

/// Decides about accepted connections, and serves them. Peers are checked when they connect; a later transfer
/// of the connection to another process is not detected.
struct PeerServer {
    server: HttpServer,
    metrics: Metrics,
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
    fn new(server: HttpServer, metrics: Metrics, ending: CancellationToken) -> Self {
        let own = Arc::new(peer_ancestry::own_ancestry(&ProcFs));
        Self {
            slots: ConnectionSlots::new(server.limits.connections_max),
            server,
            metrics,
            ending,
            refused: Arc::new(Semaphore::new(REFUSED_MAX)),
            checked: Arc::new(Semaphore::new(CHECKED_MAX)),
            log: RefusalLog::default(),
            environments: EnvironmentCheck::new(Arc::clone(&own)),
            own,
        }
    }

    /// Serves or refuses a connection in a task. Never waits.
    fn accept(self: &Arc<Self>, stream: UnixStream, tasks: &TaskTracker) {
        let peer = match admit(&stream) {
            Some(Ok(peer)) => peer,
            Some(Err(peer)) => return self.log_refusal(peer, "another user"),
            None => return,
        };
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
                        Some(pid) => server.environments.is_agent_process(ProcFs, &ancestry, pid).await,
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
        let (slot, displaced) = self.slots.take(None);
        if displaced {
            self.metrics.api_refused(UNIX, "too_many_connections");
            if self.log.may_log(peer.uid, "too many connections") {
                let limits = self.server.limits;
                tracing::warn!(limits.connections_max, "too many connections; least active one closed");
            }
        }
        let _open = self.metrics.api_connection(UNIX);
        let socket = match watch(&stream) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%error, "cannot watch a connection");
                return;
            }
        };
        let gate = Arc::new(PeerGate { peer, principal: Principal::of_local_user(peer.name()) });
        self.server.serve(stream, gate, slot, true, closed(&socket), &self.ending).await;
    }

    /// Answers a refused connection in a task, unless too many are being answered.
    fn refuse(&self, stream: UnixStream, peer: Peer, reason: &'static str, tasks: &TaskTracker) {
        self.log_refusal(peer, reason);
        if let Ok(place) = Arc::clone(&self.refused).try_acquire_owned() {
            let answering = refuse(stream, self.server.limits.body_bytes_max);
            drop(tasks.spawn(async move {
                answering.await;
                drop(place);
            }));
        }
    }

    fn log_refusal(&self, peer: Peer, reason: &'static str) {
        self.metrics.api_refused(UNIX, reason);
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
        drain(request.map(Body::new), body_bytes_max).await;
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
pub(super) fn watch(stream: &UnixStream) -> io::Result<UnixStream> {
    UnixStream::from_std(stream.as_fd().try_clone_to_owned()?.into())
}

/// Waits until the peer has closed both directions. A peer that has only finished writing still reads.
pub(super) async fn closed(socket: &UnixStream) {
    while let Ok(ready) = socket.ready(Interest::WRITABLE).await {
        if ready.is_write_closed() {
            return;
        }
        // Clears the readiness, so that the loop waits for the next change.
        let _ = socket.try_io(Interest::WRITABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }
}
