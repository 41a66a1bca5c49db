//! Local sockets: listening, connecting, typed frames in both directions, and the handshake.
//!
//! `interprocess` makes the sockets (never under an abstract name, whose mode the kernel ignores); frames are cut by tokio-util's
//! length-delimited codec with the same limit as [`crate::wire`].

use crate::protocol::{
    FRAME_BYTES_MAX, Hello, Marks, Refusal, RefusalCode, Reply, Request, Rollback, ToClient, ToSupervisor,
    VERSION_MAX, VERSION_MIN, Welcome,
};
use crate::wire::{self, WireError};
use bytes::Bytes;
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
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

/// Why a connection ended or could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnError {
    /// The socket failed.
    #[error("the socket failed")]
    Io(#[from] io::Error),
    /// The peer sent what is no message.
    #[error("the peer broke the protocol")]
    Wire(#[from] WireError),
    /// The peer refused.
    #[error(transparent)]
    Refused(Refusal),
    /// The supervisor knows more of this gateway than its database does.
    #[error("{}", .0.refusal)]
    RolledBack(Box<Rollback>),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer did not answer in time.
    #[error("the peer did not answer within {0:?}")]
    Timeout(Duration),
    /// The peer answered with something else.
    #[error("the peer answered out of turn")]
    OutOfTurn,
}

impl ConnError {
    /// Whether the other side ended the connection without a word, as a supervisor does with the oldest of too many
    /// connections in the handshake.
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

/// Who is at the other end, as the kernel says (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id at the time of connecting; for people, never for decisions.
    pub pid: Option<i32>,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// Both directions of one connection.
#[derive(Debug)]
pub struct Conn<In, Out> {
    /// Messages that arrive.
    pub receiver: Receiver<In>,
    /// Messages that leave.
    pub sender: Sender<Out>,
    /// Who is at the other end.
    pub peer: Peer,
}

/// The receiving half.
#[derive(Debug)]
pub struct Receiver<In> {
    frames: FramedRead<OwnedReadHalf, LengthDelimitedCodec>,
    message: PhantomData<fn() -> In>,
}

/// The sending half.
#[derive(Debug)]
pub struct Sender<Out> {
    frames: FramedWrite<OwnedWriteHalf, LengthDelimitedCodec>,
    message: PhantomData<fn(Out)>,
}

/// How often [`Client::open`] tries when its connection is cut off, and the pause between two tries.
const OPEN_TRIES: u32 = 10;
const OPEN_PAUSE: Duration = Duration::from_millis(20);

fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().big_endian().max_frame_length(FRAME_BYTES_MAX).new_codec()
}

impl<In> Receiver<In> {
    /// Refuses later frames of more than `bytes_max` bytes, by their header. A new receiver takes [`FRAME_BYTES_MAX`].
    pub fn limit(&mut self, bytes_max: usize) {
        self.frames.decoder_mut().set_max_frame_length(bytes_max);
    }

    /// Reads and drops at most `bytes_max` bytes, or all until the peer closes.
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
    /// The next message; `None` when the peer closed between messages. Safe to cancel.
    ///
    /// # Errors
    /// [`ConnError::Io`] for a broken socket or frame, [`ConnError::Wire`] for a frame that is no message. The
    /// connection cannot be used after either.
    pub async fn recv(&mut self) -> Result<Option<In>, ConnError> {
        match self.frames.next().await {
            None => Ok(None),
            Some(frame) => Ok(Some(wire::decode(&frame?)?)),
        }
    }
}

impl<Out: Serialize> Sender<Out> {
    /// Puts a message into the buffer, writing only when that is full.
    ///
    /// # Errors
    /// [`ConnError::Wire`] for a message over the limit, [`ConnError::Io`] for a broken socket.
    pub async fn feed(&mut self, message: &Out) -> Result<(), ConnError> {
        let bytes = wire::encode(message, FRAME_BYTES_MAX)?;
        Ok(self.frames.feed(Bytes::from(bytes)).await?)
    }

    /// Writes what is in the buffer.
    ///
    /// # Errors
    /// [`ConnError::Io`] for a broken socket.
    pub async fn flush(&mut self) -> Result<(), ConnError> {
        Ok(SinkExt::<Bytes>::flush(&mut self.frames).await?)
    }

    /// Writes a message and the buffer.
    ///
    /// # Errors
    /// As [`Sender::feed`].
    pub async fn send(&mut self, message: &Out) -> Result<(), ConnError> {
        self.feed(message).await?;
        self.flush().await
    }
}

fn conn<In, Out>(stream: LocalStream) -> Result<Conn<In, Out>, ConnError> {
    let creds = stream.peer_creds()?;
    let missing = || io::Error::other("the kernel does not say who the peer is");
    let peer = Peer {
        pid: creds.pid(),
        uid: creds.euid().ok_or_else(missing)?,
        gid: creds.egid().ok_or_else(missing)?,
    };
    let LocalStream::UdSocket(stream) = stream;
    let (read, write) = UnixStream::from(stream).into_split();
    Ok(Conn {
        receiver: Receiver { frames: FramedRead::new(read, codec()), message: PhantomData },
        sender: Sender { frames: FramedWrite::new(write, codec()), message: PhantomData },
        peer,
    })
}

/// A listening socket. Its file stays when it is dropped: whoever holds the state directory's lock removes it,
/// so that an ending process can never remove its successor's.
#[derive(Debug)]
pub struct Listener(LocalListener);

impl Listener {
    /// Listens at `path` with file mode `mode` (never wider, not for a moment). The caller holds the
    /// lock of the directory; a socket file left by an earlier process is removed.
    ///
    /// # Errors
    /// The path is too long for a socket, is something else than a socket, or cannot be created.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        match std::fs::symlink_metadata(path) {
            Ok(meta) => {
                if !meta.file_type().is_socket() {
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file in the way"));
                }
                std::fs::remove_file(path)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let name = path.to_fs_name::<GenericFilePath>()?;
        let options = ListenerOptions::new().name(name).reclaim_name(false).mode(mode);
        let listener = options.create_tokio()?;
        // The umask has taken bits away from `mode`, never added any: now they are given back.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        Ok(Self(listener))
    }

    /// Another descriptor of the socket: who connects while nobody accepts waits, as long as one is open.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        let LocalListener::UdSocket(listener) = &self.0;
        listener.as_fd().try_clone_to_owned()
    }

    /// Listens on a socket that another program made and handed over.
    ///
    /// # Errors
    /// The socket cannot be waited for.
    pub fn inherited(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self(LocalListener::UdSocket(socket.try_into()?)))
    }

    /// The next connection. Safe to cancel.
    ///
    /// # Errors
    /// As `accept(2)`; the listener can go on.
    pub async fn accept<In, Out>(&self) -> Result<Conn<In, Out>, ConnError> {
        conn(self.0.accept().await?)
    }
}

/// Connects to the socket at `path`.
///
/// # Errors
/// Nobody listens there, or the path is no socket.
pub async fn connect<In, Out>(path: &Path) -> Result<Conn<In, Out>, ConnError> {
    let name = path.to_fs_name::<GenericFilePath>()?;
    conn(LocalStream::connect(name).await?)
}

/// Chooses the version to speak with a client: the newest that both know.
///
/// # Errors
/// [`RefusalCode::VersionUnsupported`] when there is none; the text says which side is too old.
pub fn negotiate(hello: &Hello) -> Result<u16, Refusal> {
    negotiate_within(hello, (VERSION_MIN, VERSION_MAX))
}

/// The same for a supervisor that speaks the versions from `min` to `max`.
///
/// # Errors
/// As [`negotiate`].
pub fn negotiate_within(hello: &Hello, (min, max): (u16, u16)) -> Result<u16, Refusal> {
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

/// Opens a connection as a client: sends `hello` and waits for the answer.
///
/// # Errors
/// [`ConnError::Refused`] with the supervisor's reason, [`ConnError::Timeout`] after `deadline`, and the
/// errors of the socket.
pub async fn open(
    path: &Path,
    hello: Hello,
    deadline: Duration,
) -> Result<(Conn<ToClient, ToSupervisor>, Welcome), ConnError> {
    open_with(path, hello, None, deadline).await
}

/// The same as a gateway of version 2: sends `marks` after `hello`.
///
/// # Errors
/// As [`open`]; [`ConnError::RolledBack`] when the marks are behind the recorded ones.
pub async fn open_gateway(
    path: &Path,
    hello: Hello,
    marks: Marks,
    deadline: Duration,
) -> Result<(Conn<ToClient, ToSupervisor>, Welcome), ConnError> {
    open_with(path, hello, Some(marks), deadline).await
}

async fn open_with(
    path: &Path,
    hello: Hello,
    marks: Option<Marks>,
    deadline: Duration,
) -> Result<(Conn<ToClient, ToSupervisor>, Welcome), ConnError> {
    let handshake = async {
        let mut conn = connect::<ToClient, ToSupervisor>(path).await?;
        conn.sender.feed(&ToSupervisor::Hello(hello)).await?;
        if let Some(marks) = marks {
            conn.sender.feed(&ToSupervisor::Marks(marks)).await?;
        }
        // A supervisor that refuses the Hello may close before it has read the rest: its reason is read first.
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

/// One question at a time: what an admin command needs. Notices that come in between are dropped.
#[derive(Debug)]
pub struct Client {
    conn: Conn<ToClient, ToSupervisor>,
    welcome: Welcome,
    next_id: u64,
    deadline: Duration,
}

impl Client {
    /// Connects; every step, now and later, must answer within `deadline`.
    ///
    /// # Errors
    /// As [`open`].
    pub async fn open(path: &Path, hello: Hello, deadline: Duration) -> Result<Self, ConnError> {
        let mut tries = OPEN_TRIES;
        let (conn, welcome) = loop {
            tries -= 1;
            match open(path, hello.clone(), deadline).await {
                Err(error) if tries > 0 && error.is_cut_off() => tokio::time::sleep(OPEN_PAUSE).await,
                other => break other?,
            }
        };
        Ok(Self { conn, welcome, next_id: 1, deadline })
    }

    /// The same as a gateway of version 2, with its marks.
    ///
    /// # Errors
    /// As [`open_gateway`].
    pub async fn open_gateway(
        path: &Path,
        hello: Hello,
        marks: Marks,
        deadline: Duration,
    ) -> Result<Self, ConnError> {
        let (conn, welcome) = open_gateway(path, hello, marks, deadline).await?;
        Ok(Self { conn, welcome, next_id: 1, deadline })
    }

    /// What the supervisor said of itself.
    #[must_use]
    pub const fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Asks and waits for the answer.
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
