//! Connections between clients and supervisors: listening, connecting, typed frames in both directions, and the handshake.
//! They are local sockets, or TCP with mutual TLS ([`tcp`](TlsEndpoint)).
//!
//! Local sockets come from `interprocess` (never under an abstract name, whose mode the kernel ignores). Frames are
//! split by tokio-util's length-delimited codec with the same limit as [`crate::wire`].

use crate::protocol::{
    FRAME_BYTES_MAX, Hello, Marks, OUTPUT_BYTES_MAX, Refusal, RefusalCode, Reply, Request, Rollback,
    ToClient, ToSupervisor, VERSION_MAX, VERSION_MIN, Welcome,
};
use crate::wire::{self, WireError};
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use interprocess::local_socket::tokio::{Listener as LocalListener, Stream as LocalStream};
use interprocess::local_socket::traits::StreamCommon;
use interprocess::local_socket::traits::tokio::{Listener as _, Stream as _};
use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName};
use interprocess::os::unix::local_socket::ListenerOptionsExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, ReadHalf, WriteHalf};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};
use tokio_util::either::Either;

mod tcp;

pub use tcp::{AcceptedStream, TlsEndpoint, TlsListener, connect_pinned};

/// Error of a connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnError {
    /// The socket failed.
    #[error("the socket failed")]
    Io(#[from] io::Error),
    /// The peer sent a frame that is not a valid message.
    #[error("the peer violated the protocol")]
    Wire(#[from] WireError),
    /// The peer refused the connection or the request.
    #[error(transparent)]
    Refused(Refusal),
    /// The supervisor has newer state of this gateway than the gateway's database.
    #[error("{}", .0.refusal)]
    RolledBack(Box<Rollback>),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer did not answer in time.
    #[error("the peer did not answer within {0:?}")]
    Timeout(Duration),
    /// The peer sent a message that is not valid at this point of the protocol.
    #[error("unexpected reply of the peer")]
    OutOfTurn,
}

impl ConnError {
    /// True if the peer closed the connection without a message. A supervisor with too many connections in
    /// the handshake does so with the oldest one.
    fn is_cut_off(&self) -> bool {
        match self {
            Self::Closed => true,
            Self::Io(error) => {
                matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
            }
            _ => false,
        }
    }
}

/// Address of a supervisor.
#[derive(Debug, Clone)]
pub enum Endpoint {
    /// Local socket at this path.
    Socket(PathBuf),
    /// TCP with mutual TLS.
    Tls(TlsEndpoint),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Tls(endpoint) => write!(f, "{} at {}", endpoint.identity, endpoint.address),
        }
    }
}

impl From<&Path> for Endpoint {
    fn from(path: &Path) -> Self {
        Self::Socket(path.to_owned())
    }
}

impl From<&PathBuf> for Endpoint {
    fn from(path: &PathBuf) -> Self {
        Self::Socket(path.clone())
    }
}

impl From<&Self> for Endpoint {
    fn from(endpoint: &Self) -> Self {
        endpoint.clone()
    }
}

/// Identity of the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// Process of this machine, as reported by the kernel (`SO_PEERCRED`).
    Local {
        /// Process id at the time of connecting. Informational only: it may be reused.
        pid: Option<i32>,
        /// Effective user id.
        uid: u32,
        /// Effective group id.
        gid: u32,
    },
    /// Holder of a certificate of the configured CA.
    Remote {
        /// URI name of the certificate ([`crate::identity`]).
        name: String,
    },
}

/// Both directions of one connection.
#[derive(Debug)]
pub struct Conn<In, Out> {
    /// Receiver of incoming messages.
    pub receiver: Receiver<In>,
    /// Sender of outgoing messages.
    pub sender: Sender<Out>,
    /// Identity of the peer process.
    pub peer: Peer,
}

/// Receiving half of a connection.
#[derive(Debug)]
pub struct Receiver<In> {
    frames: FramedRead<Either<OwnedReadHalf, ReadHalf<TlsStream<TcpStream>>>, LengthDelimitedCodec>,
    message: PhantomData<fn() -> In>,
}

/// Sending half of a connection.
#[derive(Debug)]
pub struct Sender<Out> {
    frames: FramedWrite<Either<OwnedWriteHalf, WriteHalf<TlsStream<TcpStream>>>, LengthDelimitedCodec>,
    message: PhantomData<fn(Out)>,
}

/// Maximum number of attempts of [`Client::open`] when the peer cuts the connection off, and the pause
/// between two attempts.
const OPEN_TRIES: u32 = 10;
const OPEN_PAUSE: Duration = Duration::from_millis(20);

/// Capacity above which an empty write buffer is freed, in bytes; well above the frames of an agent's output.
/// The decoder frees its read buffer itself.
const WRITE_BUFFER_BYTES_KEPT: usize = 4 * OUTPUT_BYTES_MAX;

fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().big_endian().max_frame_length(FRAME_BYTES_MAX).new_codec()
}

impl<In> Receiver<In> {
    /// Sets the maximum frame length, checked on the frame header. The initial limit is [`FRAME_BYTES_MAX`].
    pub fn limit(&mut self, bytes_max: usize) {
        self.frames.decoder_mut().set_max_frame_length(bytes_max);
    }

    /// Returns the number of received bytes of messages that are not complete.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.frames.read_buffer().len()
    }

    /// Reads and drops at most `bytes_max` bytes, or all bytes until the peer closes the connection.
    ///
    /// # Errors
    /// [`ConnError::Io`] for a broken socket.
    pub async fn discard(&mut self, bytes_max: u64) -> Result<(), ConnError> {
        let mut rest = self.frames.get_mut().take(bytes_max);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
        Ok(())
    }
}

impl<In: DeserializeOwned> Receiver<In> {
    /// Receives the next message. Returns `None` if the peer closed the connection between two messages.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`ConnError::Io`] for a broken socket or frame, [`ConnError::Wire`] for a frame that is not a valid
    /// message. The connection cannot be used after either.
    pub async fn recv(&mut self) -> Result<Option<In>, ConnError> {
        match self.frames.next().await {
            None => Ok(None),
            // A TLS peer ended without a last record, for example by the death of the process.
            Some(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ConnError::Closed),
            Some(frame) => Ok(Some(wire::decode(&frame?)?)),
        }
    }
}

impl<Out: Serialize> Sender<Out> {
    /// Puts a message into the write buffer; writes to the socket only when the buffer is full.
    ///
    /// # Errors
    /// [`ConnError::Wire`] for a message over the limit, [`ConnError::Io`] for a broken socket.
    pub async fn feed(&mut self, message: &Out) -> Result<(), ConnError> {
        let bytes = wire::encode(message, FRAME_BYTES_MAX)?;
        Ok(self.frames.feed(Bytes::from(bytes)).await?)
    }

    /// Writes the buffered messages to the socket.
    ///
    /// # Errors
    /// [`ConnError::Io`] for a broken socket.
    pub async fn flush(&mut self) -> Result<(), ConnError> {
        SinkExt::<Bytes>::flush(&mut self.frames).await?;
        let buffer = self.frames.write_buffer_mut();
        if buffer.capacity() > WRITE_BUFFER_BYTES_KEPT {
            *buffer = BytesMut::new();
        }
        Ok(())
    }

    /// Writes a message and flushes the buffer.
    ///
    /// # Errors
    /// As [`Sender::feed`].
    pub async fn send(&mut self, message: &Out) -> Result<(), ConnError> {
        self.feed(message).await?;
        self.flush().await
    }
}

fn framed<In, Out>(
    read: Either<OwnedReadHalf, ReadHalf<TlsStream<TcpStream>>>,
    write: Either<OwnedWriteHalf, WriteHalf<TlsStream<TcpStream>>>,
    peer: Peer,
) -> Conn<In, Out> {
    Conn {
        receiver: Receiver { frames: FramedRead::new(read, codec()), message: PhantomData },
        sender: Sender { frames: FramedWrite::new(write, codec()), message: PhantomData },
        peer,
    }
}

fn conn<In, Out>(stream: LocalStream) -> Result<Conn<In, Out>, ConnError> {
    let creds = stream.peer_creds()?;
    let missing = || io::Error::other("the kernel does not report the user of the peer");
    let peer = Peer::Local {
        pid: creds.pid(),
        uid: creds.euid().ok_or_else(missing)?,
        gid: creds.egid().ok_or_else(missing)?,
    };
    let LocalStream::UdSocket(stream) = stream;
    let (read, write) = UnixStream::from(stream).into_split();
    Ok(framed(Either::Left(read), Either::Left(write), peer))
}

/// Listening socket. Dropping the listener does not remove the socket file: only the process that holds the
/// lock of the state directory removes the file, so an ending process cannot remove the file of its
/// successor.
#[derive(Debug)]
pub struct Listener(LocalListener);

impl Listener {
    /// Listens at `path` with file mode `mode`. The mode is never wider, not even briefly. The caller holds
    /// the lock of the directory; a socket file of an earlier process is removed.
    ///
    /// # Errors
    /// The path is too long for a socket, the path is not a socket, or the socket cannot be created.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        match std::fs::symlink_metadata(path) {
            Ok(meta) => {
                if !meta.file_type().is_socket() {
                    return Err(io::Error::new(
                        io::ErrorKind::AlreadyExists,
                        "the path exists and is not a socket",
                    ));
                }
                std::fs::remove_file(path)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let name = path.to_fs_name::<GenericFilePath>()?;
        let options = ListenerOptions::new().name(name).reclaim_name(false).mode(mode);
        let listener = options.create_tokio()?;
        // The umask can only remove bits from `mode`; this call restores them.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        Ok(Self(listener))
    }

    /// Returns a duplicate descriptor of the socket. While one is open, new connections wait in the backlog
    /// although no process accepts.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        let LocalListener::UdSocket(listener) = &self.0;
        listener.as_fd().try_clone_to_owned()
    }

    /// Creates a listener from a socket that another program opened and passed on.
    ///
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub fn inherited(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self(LocalListener::UdSocket(socket.try_into()?)))
    }

    /// Accepts the next connection. Cancel-safe.
    ///
    /// # Errors
    /// As `accept(2)`; the listener remains usable.
    pub async fn accept<In, Out>(&self) -> Result<Conn<In, Out>, ConnError> {
        conn(self.0.accept().await?)
    }
}

/// Connects to a supervisor.
///
/// # Errors
/// No process listens there, the path is not a socket, or the TLS handshake failed: a certificate is not valid, or the
/// supervisor is not the expected one.
pub async fn connect<In, Out>(endpoint: impl Into<Endpoint>) -> Result<Conn<In, Out>, ConnError> {
    match endpoint.into() {
        Endpoint::Socket(path) => {
            let name = path.to_fs_name::<GenericFilePath>()?;
            conn(LocalStream::connect(name).await?)
        }
        Endpoint::Tls(endpoint) => tcp::connect(&endpoint).await,
    }
}

/// Chooses the protocol version for a client: the newest version that both sides support.
///
/// # Errors
/// [`RefusalCode::VersionUnsupported`] if there is no common version; the text says which side to upgrade.
pub fn negotiate(hello: &Hello) -> Result<u16, Refusal> {
    negotiate_within(hello, VERSION_MIN..=VERSION_MAX)
}

/// Chooses the version as [`negotiate`] does, for a supervisor that supports these versions.
///
/// # Errors
/// As [`negotiate`].
pub fn negotiate_within(hello: &Hello, supported: RangeInclusive<u16>) -> Result<u16, Refusal> {
    let (min, max) = supported.into_inner();
    let version = hello.version_max.min(max);
    if version >= hello.version_min.max(min) {
        return Ok(version);
    }
    let who = if hello.version_max < min { "client" } else { "supervisor (acp-supervisor upgrade)" };
    Err(Refusal::new(
        RefusalCode::VersionUnsupported,
        format!(
            "this supervisor speaks protocol {min} to {max}, the client {} to {}: upgrade the {who}",
            hello.version_min, hello.version_max
        ),
    ))
}

/// Opens a connection as a client: sends `hello` and waits for the supervisor's answer.
///
/// # Errors
/// [`ConnError::Refused`] with the supervisor's reason, [`ConnError::Timeout`] after `deadline`, and the
/// errors of the socket.
pub async fn open(
    endpoint: impl Into<Endpoint>,
    hello: Hello,
    deadline: Duration,
) -> Result<(Conn<ToClient, ToSupervisor>, Welcome), ConnError> {
    open_with(endpoint.into(), hello, None, deadline).await
}

/// Opens a connection as a gateway of version 2: sends `marks` after `hello`.
///
/// # Errors
/// As [`open`]; [`ConnError::RolledBack`] when the marks are behind the recorded ones.
pub async fn open_gateway(
    endpoint: impl Into<Endpoint>,
    hello: Hello,
    marks: Marks,
    deadline: Duration,
) -> Result<(Conn<ToClient, ToSupervisor>, Welcome), ConnError> {
    open_with(endpoint.into(), hello, Some(marks), deadline).await
}

async fn open_with(
    endpoint: Endpoint,
    hello: Hello,
    marks: Option<Marks>,
    deadline: Duration,
) -> Result<(Conn<ToClient, ToSupervisor>, Welcome), ConnError> {
    let handshake = async {
        let mut conn = connect::<ToClient, ToSupervisor>(endpoint).await?;
        conn.sender.feed(&ToSupervisor::Hello(hello)).await?;
        if let Some(marks) = marks {
            conn.sender.feed(&ToSupervisor::Marks(marks)).await?;
        }
        // A refusing supervisor may close before it reads the marks: read its answer before reporting `sent`.
        let sent = conn.sender.flush().await;
        match conn.receiver.recv().await? {
            Some(ToClient::Welcome(welcome)) => sent.map(|()| (conn, welcome)),
            Some(ToClient::Refused(refusal)) => Err(ConnError::Refused(refusal)),
            Some(ToClient::RolledBack(rollback)) => Err(ConnError::RolledBack(Box::new(rollback))),
            Some(ToClient::Reply { .. } | ToClient::Notice(_)) => Err(ConnError::OutOfTurn),
            None => Err(sent.err().unwrap_or(ConnError::Closed)),
        }
    };
    tokio::time::timeout(deadline, handshake).await.unwrap_or(Err(ConnError::Timeout(deadline)))
}

/// Client with one request at a time, for admin commands. Notices received while waiting for a reply are
/// dropped.
#[derive(Debug)]
pub struct Client {
    conn: Conn<ToClient, ToSupervisor>,
    welcome: Welcome,
    next_id: u64,
    deadline: Duration,
}

impl Client {
    /// Connects. `deadline` limits the handshake and each later request.
    ///
    /// # Errors
    /// As [`open`].
    pub async fn open(
        endpoint: impl Into<Endpoint>,
        hello: Hello,
        deadline: Duration,
    ) -> Result<Self, ConnError> {
        let endpoint = endpoint.into();
        let mut tries = OPEN_TRIES;
        let (conn, welcome) = loop {
            tries -= 1;
            match open(&endpoint, hello.clone(), deadline).await {
                Err(error) if tries > 0 && error.is_cut_off() => tokio::time::sleep(OPEN_PAUSE).await,
                other => break other?,
            }
        };
        Ok(Self { conn, welcome, next_id: 1, deadline })
    }

    /// Connects as a gateway of version 2, with its marks.
    ///
    /// # Errors
    /// As [`open_gateway`].
    pub async fn open_gateway(
        endpoint: impl Into<Endpoint>,
        hello: Hello,
        marks: Marks,
        deadline: Duration,
    ) -> Result<Self, ConnError> {
        let (conn, welcome) = open_gateway(endpoint, hello, marks, deadline).await?;
        Ok(Self { conn, welcome, next_id: 1, deadline })
    }

    /// Returns the supervisor's answer to the Hello.
    #[must_use]
    pub const fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// [`ConnError::Refused`] with the supervisor's reason, [`ConnError::Timeout`], and the errors of the socket.
    pub async fn call(&mut self, body: Request) -> Result<Reply, ConnError> {
        let id = self.next_id;
        self.next_id += 1;
        let deadline = self.deadline;
        let answer = async {
            self.conn.sender.send(&ToSupervisor::Request { id, body }).await?;
            loop {
                match self.conn.receiver.recv().await? {
                    Some(ToClient::Reply { id: got, result }) if got == id => {
                        return result.map_err(ConnError::Refused);
                    }
                    Some(ToClient::Refused(refusal)) => return Err(ConnError::Refused(refusal)),
                    Some(ToClient::Welcome(_) | ToClient::RolledBack(_)) => return Err(ConnError::OutOfTurn),
                    Some(ToClient::Reply { .. } | ToClient::Notice(_)) => {}
                    None => return Err(ConnError::Closed),
                }
            }
        };
        tokio::time::timeout(deadline, answer).await.unwrap_or(Err(ConnError::Timeout(deadline)))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[tokio::test]
    async fn large_message_leaves_small_buffers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = Listener::bind(&path, 0o600).unwrap();
        let (client, server) =
            tokio::join!(connect::<String, String>(&path), listener.accept::<String, String>());
        let (Conn { mut sender, .. }, Conn { mut receiver, .. }) = (client.unwrap(), server.unwrap());
        for message in ["x".repeat(12 << 20), "short".to_owned()] {
            let (sent, received) = tokio::join!(sender.send(&message), receiver.recv());
            sent.unwrap();
            assert!(received.unwrap().as_ref() == Some(&message));
        }
        assert!(sender.frames.write_buffer().capacity() <= WRITE_BUFFER_BYTES_KEPT);
        assert!(receiver.frames.read_buffer().capacity() <= WRITE_BUFFER_BYTES_KEPT);
    }
}
