//! The ACP server at `/acp` and `/acp/{agent}`: streamable HTTP and WebSocket on the same path. Each client has a
//! connection; its streams are cursors over the journals of the sessions that it has opened.

mod attach;
mod calls;
mod connection;
mod http;
mod message_io;
mod permissions;
mod settings;
mod stream;
#[cfg(test)]
mod tests;
mod websocket;

use crate::api::Api;
use crate::api::extract::BodyRoom;
use crate::metrics::Metrics;
use crate::session::service::Service;
use acp_core::northbound::voting::QuestionKind;
use acp_core::permission::Voters;
use acp_core::principal::Principal;
use acp_shared::ids::{AgentName, SessionKey, random_hex};
use axum::Router;
use axum::routing::get;
use connection::Connection;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Maximum size of a message of a client, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Limits and timeouts of the ACP server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcpLimits {
    /// Maximum number of connections. One principal may have three quarters of them.
    pub(crate) connections_max: usize,
    /// Time after which a connection without activity ends, in milliseconds.
    pub(crate) idle_ms: u64,
    /// Interval of heartbeats on a silent stream, in milliseconds.
    pub(crate) heartbeat_ms: u64,
    /// Time without a sign of life after which a WebSocket is closed, in milliseconds.
    pub(crate) dead_ms: u64,
    /// Time limit for receiving a message, in milliseconds.
    pub(crate) body_ms: u64,
    /// Maximum size of the answers of all connections that wait for their clients, in bytes.
    pub(crate) unread_bytes_max: usize,
}

impl Default for AcpLimits {
    fn default() -> Self {
        Self {
            connections_max: 1_024,
            idle_ms: 30 * 60_000,
            heartbeat_ms: 15_000,
            dead_ms: 45_000,
            body_ms: 10_000,
            unread_bytes_max: 256 * 1024 * 1024,
        }
    }
}

/// State shared by all connections.
pub(crate) struct AcpServer {
    service: Arc<dyn Service>,
    limits: AcpLimits,
    metrics: Metrics,
    /// Cancelled when the gateway stops.
    ending: CancellationToken,
    connections: Mutex<HashMap<String, Arc<Connection>>>,
    /// Room for large messages. A message keeps it until it is handled.
    room: BodyRoom,
}

/// Error for a connection too many.
struct TooManyConnections;

impl AcpServer {
    fn new(api: &Api, limits: AcpLimits, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            service: Arc::clone(&api.service),
            limits,
            metrics,
            ending: api.ending.clone(),
            connections: Mutex::default(),
            room: api.room.clone(),
        })
    }

    fn is_enabled(&self) -> bool {
        self.service.config().config.northbound.acp
    }

    fn detach_grace_ms(&self) -> u64 {
        self.service.config().config.northbound.detach_grace_ms
    }

    /// Creates a connection for a principal.
    fn connect(
        self: &Arc<Self>,
        principal: Principal,
        agent: Option<AgentName>,
    ) -> Result<Arc<Connection>, TooManyConnections> {
        let mut connections = self.connections.lock();
        let max = self.limits.connections_max;
        let own = connections.values().filter(|open| open.principal().id == principal.id).count();
        if connections.len() >= max || own >= max - max / 4 {
            drop(connections);
            self.metrics.client_ended("too_many");
            tracing::warn!(
                connections_max = max,
                principal = principal.id,
                "acp connection refused: too many"
            );
            return Err(TooManyConnections);
        }
        let connection = Connection::start(self, random_hex(), principal, agent);
        connections.insert(connection.id().to_owned(), Arc::clone(&connection));
        Ok(connection)
    }

    /// Returns the connection with this id, if this principal made it.
    fn find(&self, id: &str, principal: &Principal) -> Option<Arc<Connection>> {
        let connections = self.connections.lock();
        connections.get(id).filter(|found| found.is_of(principal)).cloned()
    }

    fn remove(&self, id: &str) {
        self.connections.lock().remove(id);
    }

    /// Ends the connection with the most unread bytes if all connections together have too many.
    fn bound_unread(&self) {
        let all: Vec<_> = self.connections.lock().values().cloned().collect();
        let unread = all.iter().map(|connection| (connection.state().unsent_bytes(), connection));
        let unread: Vec<_> = unread.collect();
        let bytes: usize = unread.iter().map(|(bytes, _)| bytes).sum();
        if bytes > self.limits.unread_bytes_max
            && let Some((_, connection)) = unread.iter().max_by_key(|(bytes, _)| *bytes)
        {
            tracing::warn!(bytes, "acp clients do not read; the one with the most unread bytes is ended");
            connection.end("unread");
        }
    }

    /// True if a connection has opened the session.
    fn is_open(&self, session: &SessionKey) -> bool {
        let all: Vec<_> = self.connections.lock().values().cloned().collect();
        all.iter().any(|connection| connection.state().has_session(session))
    }

    /// True if another connection can answer a question of the session; any one of this kind without an id.
    fn has_other_voter(
        &self,
        session: &SessionKey,
        permission_id: &str,
        kind: QuestionKind,
        voters: &Voters,
        but: &Connection,
    ) -> bool {
        let all: Vec<_> = self.connections.lock().values().cloned().collect();
        let mut others = all.iter().filter(|other| other.id() != but.id());
        others.any(|other| other.state().has_vote(session, permission_id, kind, voters))
    }
}

/// Router of the ACP server.
pub(crate) fn router(api: &Api, limits: AcpLimits, metrics: Metrics) -> Router {
    let server = AcpServer::new(api, limits, metrics);
    let methods = || get(http::get).post(http::post).delete(http::delete);
    Router::new()
        .route("/acp", methods())
        .route("/acp/{agent}", methods())
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(server)
}
