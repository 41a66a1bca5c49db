//! Connections over TCP with mutual TLS: connecting as a gateway, listening as a supervisor. The frames are those of the
//! local socket.

use super::{Conn, ConnError, Peer, framed};
use crate::identity::Identity;
use crate::tls::{ClientTls, Fingerprint, ServerTls, identity_of, pinned_client};
use rustix::net::sockopt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream as ClientStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, CommonState, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tokio_util::either::Either;

/// Silence before the kernel probes the other side …
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// … pause between two probes …
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// … and maximum number of probes without an answer.
const KEEPALIVE_PROBES: u32 = 3;
/// Maximum time without an answer to sent bytes or probes, in milliseconds.
const USER_TIMEOUT_MS: u32 = 30_000;

/// Address of a supervisor on another machine.
#[derive(Debug, Clone)]
pub struct TlsEndpoint {
    /// `host:port`; the name is resolved at each connection.
    pub address: String,
    /// URI name that the supervisor's certificate must have, `acp://PLANE/host/NAME`.
    pub identity: String,
    /// Credentials of this side.
    pub config: Arc<ClientTls>,
}

/// Sets the options of both sides: small frames leave at once, and a cut is noticed within 30 seconds.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?)
}

/// Returns the identity in the certificate of the other side, whose chain is verified.
fn peer_identity(state: &CommonState) -> Result<Identity, String> {
    let certificate = state.peer_certificates().and_then(<[_]>::first);
    identity_of(certificate.ok_or_else(|| "it has no certificate".to_owned())?)
}

fn conn<In, Out>(stream: TlsStream<TcpStream>, name: String) -> Conn<In, Out> {
    let (read, write) = tokio::io::split(stream);
    framed(Either::Right(read), Either::Right(write), Peer::Remote { name })
}

/// Reads changed files and builds a configuration, off the threads that serve connections: a disk may hang.
async fn off_thread<T: Send + 'static>(build: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(build).await.map_err(io::Error::other)
}

async fn connect_tls(address: &str, config: Arc<ClientConfig>) -> io::Result<ClientStream<TcpStream>> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot connect to {address}: {error}")))?;
    tune(&stream)?;
    // Only a placeholder: the name is not sent, and the verifier does not compare it.
    let name = ServerName::IpAddress(stream.peer_addr()?.ip().into());
    let connecting = TlsConnector::from(config).connect(name, stream);
    connecting.await.map_err(|error| io::Error::new(error.kind(), format!("TLS with {address}: {error}")))
}

/// Connects to the server whose certificate has this fingerprint, without a certificate of the own side.
///
/// # Errors
/// No process listens there, or the server has another certificate.
pub async fn connect_pinned<In, Out>(
    address: &str,
    expected: Fingerprint,
) -> Result<Conn<In, Out>, ConnError> {
    let config = pinned_client(expected).map_err(io::Error::other)?;
    let stream = connect_tls(address, Arc::new(config)).await?;
    Ok(conn(stream.into(), address.to_owned()))
}

pub(super) async fn connect<In, Out>(endpoint: &TlsEndpoint) -> Result<Conn<In, Out>, ConnError> {
    let TlsEndpoint { address, identity, config } = endpoint;
    let failed = |kind: ErrorKind, why: String| io::Error::new(kind, format!("TLS with {address}: {why}"));
    let config = Arc::clone(config);
    let config = off_thread(move || config.config()).await?;
    let stream = connect_tls(address, config).await?;
    let found =
        peer_identity(stream.get_ref().1).map_err(|why| failed(ErrorKind::InvalidData, why))?.to_string();
    if found != *identity {
        let why =
            format!("the certificate is that of {found}, not of {identity}; correct the address or the name");
        return Err(failed(ErrorKind::InvalidData, why).into());
    }
    Ok(conn(stream.into(), found))
}

/// Listening TCP socket for gateways on other machines.
#[derive(Debug)]
pub struct TlsListener(TcpListener);

impl TlsListener {
    /// Listens at an address; port 0 stands for any free port.
    ///
    /// # Errors
    /// The address is in use or not one of this machine.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self)
    }

    /// Creates a listener from a socket that an earlier program of this process opened.
    ///
    /// # Errors
    /// The descriptor is not a listening TCP socket, or cannot be registered with the runtime.
    pub fn inherited(socket: OwnedFd) -> io::Result<Self> {
        let listener = std::net::TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Self)
    }

    /// Returns a duplicate descriptor of the socket. While one is open, new connections wait in the backlog.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }

    /// Returns the address with the port in use.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Accepts the next TCP connection, whose handshake is still to come. Cancel-safe.
    ///
    /// # Errors
    /// As `accept(2)`; the listener remains usable.
    pub async fn accept(&self) -> io::Result<AcceptedStream> {
        let (stream, address) = self.0.accept().await?;
        Ok(AcceptedStream { stream, address })
    }
}

/// Accepted TCP connection of an unknown peer.
#[derive(Debug)]
pub struct AcceptedStream {
    stream: TcpStream,
    address: SocketAddr,
}

impl AcceptedStream {
    /// Returns the address of the peer.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Does the TLS handshake. The caller limits its time. The peer has a valid certificate of the CA with exactly one
    /// identity; who it may be is the caller's decision.
    ///
    /// # Errors
    /// [`ConnError::Io`] with the reason.
    pub async fn handshake<In, Out>(self, tls: &Arc<ServerTls>) -> Result<Conn<In, Out>, ConnError> {
        tune(&self.stream)?;
        let tls = Arc::clone(tls);
        let config = off_thread(move || tls.config()).await?;
        let stream = TlsAcceptor::from(config).accept(self.stream).await?;
        let found =
            peer_identity(stream.get_ref().1).map_err(|why| io::Error::new(ErrorKind::InvalidData, why))?;
        Ok(conn(stream.into(), found.to_string()))
    }

    /// Does the TLS handshake with a peer that needs no certificate. The caller limits its time.
    ///
    /// # Errors
    /// [`ConnError::Io`] with the reason.
    pub async fn handshake_anonymous<In, Out>(
        self,
        config: Arc<ServerConfig>,
    ) -> Result<Conn<In, Out>, ConnError> {
        tune(&self.stream)?;
        let stream = TlsAcceptor::from(config).accept(self.stream).await?;
        Ok(conn(stream.into(), self.address.to_string()))
    }
}
