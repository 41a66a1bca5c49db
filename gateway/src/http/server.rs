//! The socket of the local API: who may connect, how many, and how long they may dawdle.

use crate::http::{ApiLimits, kin};
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
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
        let places = Arc::new(Semaphore::new(limits.connections_max));
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
            let Some(peer) = admit(&stream) else { continue };
            if is_an_agents(&stream, peer, &own) {
                tracing::warn!(uid = peer.uid, pid = peer.pid, "an agent was turned away");
                tasks.spawn(turn_away(stream, "403 Forbidden", AN_AGENT));
                continue;
            }
            match Arc::clone(&places).try_acquire_owned() {
                Err(_) => {
                    tracing::warn!(connections_max = limits.connections_max, "too many connections");
                    tasks.spawn(turn_away(stream, "503 Service Unavailable", TOO_MANY));
                }
                Ok(place) => {
                    let serving = connection(stream, peer, router.clone(), limits, ending.clone());
                    tasks.spawn(async move {
                        serving.await;
                        drop(place);
                    });
                }
            }
        }
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
fn admit(stream: &UnixStream) -> Option<Peer> {
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
    tracing::warn!(uid = peer.uid, pid = peer.pid, "a foreign user was turned away");
    None
}

/// Whether it comes out of an agent's tree (H9). Looked at when it connects: what it hands its connection to later is
/// its own affair.
fn is_an_agents(stream: &UnixStream, peer: Peer, own: &HashSet<i32>) -> bool {
    let Some(pid) = peer.pid else { return false };
    let process = kin::pidfd(stream);
    kin::is_an_agents(&kin::Proc, own, pid) || process.as_ref().is_some_and(kin::has_ended)
}

const TOO_MANY: &str = r#"{"type":"error","code":"ACP_LIMIT_REACHED","message":"too many connections","origin":"gateway","retryable":true}"#;
const AN_AGENT: &str = r#"{"type":"error","code":"PERMISSION_DENIED","message":"The gateway does not take orders from the agents in its care. Ask from a shell of your own.","origin":"gateway","retryable":false}"#;

async fn turn_away(mut stream: UnixStream, status: &str, body: &str) {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let writing = stream.write_all(head.as_bytes());
    // A client that does not even read this is left alone.
    let _ = tokio::time::timeout(Duration::from_secs(1), writing).await;
}

async fn connection(
    stream: UnixStream,
    peer: Peer,
    router: Router,
    limits: ApiLimits,
    ending: CancellationToken,
) {
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let request: Request = request.map(axum::body::Body::new);
        let inner = TowerToHyperService::new(router.clone());
        async move { hyper::service::Service::call(&inner, request).await }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.head_ms))
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(false);
    let serving = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = ending.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke");
    }
}
