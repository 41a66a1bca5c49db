//! Connections to the socket of a gateway. A request takes the one whose last response was read to its end, if there is one.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;

/// Maximum wait for a place in the socket's backlog.
pub(super) const BACKLOG_WAIT: Duration = Duration::from_secs(5);

/// Reason why an attempt failed without a response.
pub(super) enum AttemptError {
    /// The socket does not exist.
    Absent,
    /// The connection was refused, or broke before the response was complete.
    Broken(String),
}

/// Connects. While the socket's backlog is full, waits in the kernel, which lets clients in one after the other:
/// attempts with pauses could find the backlog full each time.
pub(in crate::api) async fn connect(path: &Path) -> io::Result<UnixStream> {
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        connected => return connected,
    }
    let address = SocketAddrUnix::new(path)?;
    let waiting = tokio::task::spawn_blocking(move || {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(BACKLOG_WAIT))?;
        rustix::net::connect(&socket, &address)?;
        let stream = std::os::unix::net::UnixStream::from(socket);
        stream.set_nonblocking(true)?;
        Ok::<_, io::Error>(stream)
    });
    UnixStream::from_std(waiting.await.map_err(io::Error::other)??)
}

/// Connections to one socket.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    socket: PathBuf,
    /// Idle connection: its last response was read to the end.
    idle: Arc<Mutex<Option<SendRequest<Full<Bytes>>>>>,
}

impl Connections {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket, idle: Arc::default() }
    }

    /// Path of the socket.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(&self, connection: SendRequest<Full<Bytes>>) {
        *self.idle.lock() = Some(connection);
    }

    /// Sends a request on the idle connection, or on a new one. A request that the idle one did not send is not lost.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(SendRequest<Full<Bytes>>, Response<Incoming>), AttemptError> {
        let broken = |error: hyper::Error| AttemptError::Broken(error.to_string());
        let idle = self.idle.lock().take();
        if let Some(mut connection) = idle
            && connection.ready().await.is_ok()
        {
            match connection.try_send_request(request).await {
                Ok(response) => return Ok((connection, response)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(broken(error.into_error())),
                },
            }
        }
        let mut connection = self.open().await?;
        let response = connection.send_request(request).await.map_err(broken)?;
        Ok((connection, response))
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>, AttemptError> {
        let stream = connect(&self.socket).await.map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                AttemptError::Absent
            } else {
                AttemptError::Broken(error.to_string())
            }
        })?;
        let opened = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = opened.map_err(|error| AttemptError::Broken(error.to_string()))?;
        // The task ends with the connection: when its sender is dropped, and the response's body read or dropped.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }
}
