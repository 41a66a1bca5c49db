//! The socket of the local API: who may connect, how many, and how long they may dawdle.

use crate::error::Failure;
use crate::http::answer::Refused;
use crate::http::places::{ConnectionPlace, Places};
use crate::http::stall::Stall;
use crate::http::{ApiLimits, kin};
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

/// Connections that the kernel holds before they are accepted.
const BACKLOG: i32 = 128;
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// After an error of `accept` that is not the client's (no file descriptors left), wait this long.
const ACCEPT_PAUSE_MS: u64 = 100;
/// Refused connections that are answered at one time. Further ones are closed without an answer.
const REFUSED_MAX: usize = 64;
/// Deadline for a refused connection to send its request and read the answer.
const REFUSED_MS: u64 = 2_000;
/// How long open requests may take when the gateway ends.
const DRAIN_MS: u64 = 2_000;

/// Who connected, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Effective user id.
    pub(crate) uid: u32,
    /// Process id at that time; for people.
    pub(crate) pid: Option<i32>,
}

impl Peer {
    /// The user's name, or number.
    pub(crate) fn name(&self) -> String {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(self.uid));
        user.ok().flatten().map_or_else(|| format!("uid {}", self.uid), |user| user.name)
    }
}

/// A bound socket. Its file is removed when the gateway ends in order, while the state directory's lock is held.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: UnixListener,
    path: PathBuf,
}

impl Bound {
    /// Listens at `path`, mode 0600 from the first instant on. The caller holds the lock of the directory; a
    /// socket that an earlier process left is replaced in one step, so that clients never find none.
    ///
    /// # Errors
    /// The path is too long for a socket, something else than a socket is in the way, or it cannot be made.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        if std::fs::symlink_metadata(path).is_ok_and(|meta| !meta.file_type().is_socket()) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file in the way"));
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
                format!("the path of a socket may have 107 bytes, {} is longer", fresh.display()),
            )
        })?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // On Linux the mode of the socket is the mode of the file that bind makes.
        rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(0o600))?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        std::fs::rename(&fresh, path)?;
        let listener = UnixListener::from_std(std::os::unix::net::UnixListener::from(socket))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Serves until `ending` is cancelled; then open requests get a moment, and the socket's file goes.
    pub(crate) async fn serve(self, router: Router, limits: ApiLimits, ending: CancellationToken) {
        let places = Places::new(limits.connections_max);
        let refused = Arc::new(Semaphore::new(REFUSED_MAX));
        let log = RefusalLog::default();
        let tasks = TaskTracker::new();
        let own = kin::own_line(&kin::Proc);
        loop {
            let accepted = tokio::select! {
                () = ending.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
                    continue;
                }
            };
            let Some(peer) = admit(&stream, &log) else { continue };
            if is_an_agents(&stream, peer, &own) {
                if log.may_log(peer.uid, "an agent") {
                    tracing::warn!(uid = peer.uid, pid = peer.pid, reason = "an agent", "connection refused");
                }
                if let Ok(slot) = Arc::clone(&refused).try_acquire_owned() {
                    let answering = refuse(stream, limits.body_bytes_max);
                    tasks.spawn(async move {
                        answering.await;
                        drop(slot);
                    });
                }
                continue;
            }
            let (place, displaced) = places.take();
            if displaced && log.may_log(peer.uid, "too many connections") {
                tracing::warn!(limits.connections_max, "too many connections; the least active one is ended");
            }
            tasks.spawn(connection(stream, peer, router.clone(), limits, (place, ending.clone())));
        }
        log.flush();
        tasks.close();
        if tokio::time::timeout(Duration::from_millis(DRAIN_MS), tasks.wait()).await.is_err() {
            tracing::warn!("some requests were still open when the gateway ended");
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, "cannot remove the socket");
        }
    }
}

/// Own user and root; nobody else gets an answer.
fn admit(stream: &UnixStream, log: &RefusalLog) -> Option<Peer> {
    let peer = match stream.peer_cred() {
        Ok(cred) => Peer { uid: cred.uid(), pid: cred.pid() },
        Err(error) => {
            tracing::warn!(%error, "the kernel does not say who connects");
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

/// Whether it comes out of an agent's tree (H9). Looked at when it connects: what it hands its connection to later is
/// its own affair.
fn is_an_agents(stream: &UnixStream, peer: Peer, own: &HashSet<i32>) -> bool {
    let Some(pid) = peer.pid else { return false };
    let process = kin::pidfd(stream);
    kin::is_an_agents(&kin::Proc, own, pid) || process.as_ref().is_some_and(kin::has_ended)
}

/// The answer to every request of a process of an agent.
fn for_an_agent() -> Response {
    let text = "The gateway does not take orders from the agents in its care. Ask from a shell of your own.";
    Refused::of(Code::PermissionDenied, text).into_response()
}

/// Reads one request to its end, refuses it, and closes. Closing with unread input would reset the
/// connection before the client has read the answer.
pub(super) async fn refuse(stream: UnixStream, body_bytes_max: usize) {
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| async move {
        let mut body = Limited::new(request.into_body(), body_bytes_max);
        while let Some(Ok(_)) = body.frame().await {}
        Ok::<_, Infallible>(for_an_agent())
    });
    let within = Duration::from_millis(REFUSED_MS);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(within)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .half_close(true);
    let serving = http.serve_connection(TokioIo::new(stream), service);
    // The deadline ends clients that do not read the answer.
    drop(tokio::time::timeout(within, serving).await);
}

/// A second handle to the socket of a connection, to notice when the peer has closed it.
fn watch(stream: &UnixStream) -> io::Result<UnixStream> {
    UnixStream::from_std(stream.as_fd().try_clone_to_owned()?.into())
}

/// Waits until the peer has closed both directions. A peer that has only finished writing still reads.
async fn closed(socket: &UnixStream) {
    while let Ok(ready) = socket.ready(Interest::WRITABLE).await {
        if ready.is_write_closed() {
            return;
        }
        // Clears the readiness, so that the next change is waited for.
        let _ = socket.try_io(Interest::WRITABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }
}

/// Returns true for a stream of events.
fn is_stream(answer: &Response) -> bool {
    let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

fn too_many_streams() -> Response {
    let failure = Failure::new(
        Code::LimitReached,
        "too many event streams are open; end some, or raise \
                                                    limits.connections_max",
    );
    Refused::from(failure.origin("gateway").retryable()).into_response()
}

async fn connection(
    stream: UnixStream,
    peer: Peer,
    router: Router,
    limits: ApiLimits,
    (place, ending): (Arc<ConnectionPlace>, CancellationToken),
) {
    let at = Arc::clone(&place);
    let socket = match watch(&stream) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(%error, "cannot watch a connection");
            return;
        }
    };
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let request: Request = request.map(axum::body::Body::new);
        let (inner, at) = (TowerToHyperService::new(router.clone()), Arc::clone(&at));
        at.begin();
        async move {
            let answer = hyper::service::Service::call(&inner, request).await?;
            if !is_stream(&answer) {
                at.answered();
            } else if !at.stream() {
                at.answered();
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
    let stream = Stall::new(stream, Duration::from_millis(limits.stall_ms));
    let serving = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = place.end().cancelled() => return,
        () = closed(&socket) => return,
        () = ending.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke");
    }
}
