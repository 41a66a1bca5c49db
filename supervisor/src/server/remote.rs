//! Connections of gateways on other machines, over TCP with mutual TLS. After the TLS handshake they are served as those
//! of the local socket.

use super::{ACCEPT_PAUSE, HandshakeSlot, HandshakeTable, connection};
use crate::config::{Config, ConfigError};
use crate::context::Context;
use crate::relay::connection::{ConnectionHandle, ConnectionId, OutgoingQueues};
use acp_shared::backoff::Backoff;
use acp_shared::conn::{AcceptedStream, ConnError, TlsListener};
use acp_shared::identity::{Holder, Identity};
use acp_shared::protocol::{HELLO_BYTES_MAX, ToClient, ToSupervisor};
use acp_shared::report::with_causes;
use acp_shared::tls::ServerTls;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// User id in the log limit of peers that are not known yet.
pub(super) const UNKNOWN_UID: u32 = u32::MAX;
/// Pauses between attempts to listen.
const BIND_BACKOFF: Backoff = Backoff::new(1_000, 30_000);

/// Reason why gateways on other machines cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// A key is missing.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file of mutual TLS cannot be used.
    #[error("cannot listen for gateways on other machines: {0}")]
    Tls(String),
    /// The address cannot be used.
    #[error("cannot listen for gateways on other machines: listen = {listen}")]
    Listen {
        /// Configured address.
        listen: SocketAddr,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
}

/// Listening address and credentials of this host.
#[derive(Debug, Clone)]
pub(crate) struct RemoteAddress {
    pub(crate) listen: SocketAddr,
    pub(crate) tls: Arc<ServerTls>,
}

impl RemoteAddress {
    /// Reads the credentials, if an address is configured. Also returns the identity of this host.
    pub(crate) fn load(config: &Config) -> Result<Option<(Self, Identity)>, RemoteError> {
        let Some((listen, [cert, key, ca])) = config.remote()? else { return Ok(None) };
        let tls = ServerTls::load(cert, key, ca).map_err(|error| RemoteError::Tls(format!("tls_{error}")))?;
        match tls.identity().parse::<Identity>() {
            Ok(host) if host.holder == Holder::Host => Ok(Some((Self { listen, tls: Arc::new(tls) }, host))),
            _ => {
                let (name, cert) = (tls.identity(), cert.display());
                Err(RemoteError::Tls(format!(
                    "tls_cert = {cert}: names {name}; a host is acp://PLANE/host/NAME"
                )))
            }
        }
    }

    /// Listens. The port is in the log, since the configuration may ask for any free one.
    pub(crate) async fn bind(&self) -> Result<TlsListener, RemoteError> {
        let failed = |source| RemoteError::Listen { listen: self.listen, source };
        let listener = TlsListener::bind(self.listen).await.map_err(failed)?;
        let address = listener.address().map_err(failed)?;
        tracing::info!(%address, host = self.tls.identity(), "listening for gateways on other machines");
        Ok(listener)
    }

    /// Listens, unless this machine does not have the address yet: at boot, the network may come later than the gateways
    /// of this machine.
    pub(crate) async fn bind_at_start(&self) -> Result<Option<TlsListener>, RemoteError> {
        match self.bind().await {
            Err(RemoteError::Listen { source, .. }) if source.kind() == ErrorKind::AddrNotAvailable => {
                Ok(None)
            }
            bound => bound.map(Some),
        }
    }

    /// Listens as soon as the address can be used: a supervisor that has agents must not end because of it.
    async fn bind_when_possible(&self) -> TlsListener {
        let mut backoff = BIND_BACKOFF;
        loop {
            match self.bind().await {
                Ok(listener) => return listener,
                Err(error) => {
                    tracing::error!(error = with_causes(&error), "cannot listen yet; retrying")
                }
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }
}

/// Returns a number for the network that an address belongs to. Handshakes are limited for each, so that one network
/// cannot displace the others.
fn network_of(address: IpAddr) -> u32 {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            (u32::from(a) << 16 | u32::from(b)) ^ (u32::from(c) << 16 | u32::from(d)).rotate_left(7)
        }
    }
}

/// Accepts connections until the task is aborted. Handshakes have a table of their own: they cannot displace those of
/// the local socket. `listener` is missing after an upgrade, and if the address could not be used at the start.
pub(crate) async fn serve(
    context: Arc<Context>,
    remote: RemoteAddress,
    listener: Option<TlsListener>,
    ids: Arc<AtomicU64>,
) {
    let listener = match listener {
        Some(listener) => listener,
        None => remote.bind_when_possible().await,
    };
    let waiting = HandshakeTable::default();
    loop {
        let incoming = match listener.accept().await {
            Ok(incoming) => incoming,
            Err(error) => {
                if context.may_log(UNKNOWN_UID, "accept failed") {
                    tracing::warn!(%error, "cannot accept a connection of another machine");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (link, outgoing) = ConnectionHandle::new(ConnectionId(ids.fetch_add(1, Ordering::Relaxed)));
        let network = network_of(incoming.address().ip());
        let (place, displaced) = HandshakeSlot::take(&waiting, Some(network), &link);
        if displaced && context.may_log(UNKNOWN_UID, "too many handshakes") {
            tracing::warn!(address = %incoming.address(), "too many connections in the handshake; oldest closed");
        }
        let (context, tls) = (Arc::clone(&context), Arc::clone(&remote.tls));
        tokio::spawn(async move {
            let (id, address) = (link.id(), incoming.address());
            if let Err(error) = encrypted(&context, incoming, &tls, link, outgoing, place).await {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(connection = id.0, %address, error, "connection ended");
            }
        });
        // Let the new task read an arrived message before further connections can displace it.
        tokio::task::yield_now().await;
    }
}

/// Does the TLS handshake, then serves the connection. One deadline is for both handshakes.
async fn encrypted(
    context: &Arc<Context>,
    incoming: AcceptedStream,
    tls: &Arc<ServerTls>,
    link: ConnectionHandle,
    outgoing: OutgoingQueues,
    place: HandshakeSlot,
) -> Result<(), ConnError> {
    let (address, end) = (incoming.address(), link.end().clone());
    let within = Duration::from_millis(context.config.handshake_ms);
    let deadline = Instant::now() + within;
    let shaken = tokio::select! {
        shaken = tokio::time::timeout_at(deadline, incoming.handshake::<ToSupervisor, ToClient>(tls)) => {
            shaken.unwrap_or(Err(ConnError::Timeout(within)))
        }
        () = end.cancelled() => Err(ConnError::Closed),
    };
    let mut client = match shaken {
        Ok(client) => client,
        Err(error) => {
            if context.may_log(UNKNOWN_UID, "TLS handshake failed") {
                tracing::warn!(%address, error = with_causes(&error), "connection of another machine refused");
            }
            return Err(error);
        }
    };
    client.receiver.limit(HELLO_BYTES_MAX);
    connection(context, client, link, outgoing, place, deadline).await
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn addresses_of_one_network_share_a_limit() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:2:1::1"));
    }
}
