//! One client's connection: takes its messages in order, and ends when it is unused. Its end only detaches:
//! turns go on.

use super::AcpServer;
use super::calls;
use crate::api::extract::TakenRoom;
use crate::api::tokens::TokenLease;
use crate::metrics::{Metrics, OpenCount};
use acp_core::northbound::connection::{ConnectionState, StreamTicket};
use acp_core::northbound::frames::QueueFull;
use acp_core::northbound::voting::{Vote, VoteStep};
use acp_core::principal::Principal;
use acp_shared::ids::{AgentName, SessionKey};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum number of messages that wait for the worker.
const INBOX_MAX: usize = 16;
/// Maximum number of calls of a connection that are executed concurrently with the messages.
const CALLS_MAX: usize = 32;
/// Interval at which a connection checks whether it is still used, in milliseconds.
const CHECK_MS: u64 = 1_000;

/// Message of a client.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Text of the message.
    pub(super) body: Bytes,
    /// Session in the header of the request.
    pub(super) session_header: Option<String>,
    /// True if the kernel reports a peer on this machine for the request.
    pub(super) is_local: bool,
    /// Room of a large message.
    pub(super) _room: Option<TakenRoom>,
}

/// Use of a connection.
#[derive(Debug)]
struct Activity {
    /// Last message, heartbeat or event.
    last: Instant,
    /// Time since no stream is open; `None` while one is.
    without_streams: Option<Instant>,
}

/// See the module.
pub(super) struct Connection {
    id: String,
    principal: Principal,
    agent: Option<AgentName>,
    state: Mutex<ConnectionState>,
    activity: Mutex<Activity>,
    inbox: mpsc::Sender<Incoming>,
    /// Changes when a stream may have something to send.
    changed: watch::Sender<u64>,
    /// Changes when a stream has taken rows.
    progress: watch::Sender<u64>,
    /// Places of calls that are executed concurrently with the messages.
    pub(super) calls: Arc<Semaphore>,
    end: CancellationToken,
    metrics: Metrics,
    _open: OpenCount,
}

impl Connection {
    /// Creates a connection and starts its worker.
    pub(super) fn start(
        server: &Arc<AcpServer>,
        id: String,
        principal: Principal,
        agent: Option<AgentName>,
    ) -> Arc<Self> {
        let (inbox, incoming) = mpsc::channel(INBOX_MAX);
        let now = Instant::now();
        let connection = Arc::new(Self {
            id,
            state: Mutex::new(ConnectionState::new(principal.clone())),
            principal,
            agent,
            activity: Mutex::new(Activity { last: now, without_streams: Some(now) }),
            inbox,
            changed: watch::Sender::new(0),
            progress: watch::Sender::new(0),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            end: server.ending.child_token(),
            metrics: server.metrics.clone(),
            _open: server.metrics.client(),
        });
        tokio::spawn(work(Arc::clone(server), Arc::clone(&connection), incoming));
        connection
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Part of the id for logs: the whole id is a secret of the client.
    fn log_id(&self) -> &str {
        self.id.get(..8).unwrap_or_default()
    }

    pub(super) const fn principal(&self) -> &Principal {
        &self.principal
    }

    pub(super) const fn agent(&self) -> Option<&AgentName> {
        self.agent.as_ref()
    }

    /// True if this principal made the connection, and may do and see the same as then.
    pub(super) fn is_of(&self, principal: &Principal) -> bool {
        let rights = |of: &Principal| (of.id.clone(), of.scope, of.agents.clone(), of.acts_for.clone());
        rights(&self.principal) == rights(principal)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock()
    }

    /// Cancelled at the end of the connection.
    pub(super) const fn ended(&self) -> &CancellationToken {
        &self.end
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn watch_progress(&self) -> watch::Receiver<u64> {
        self.progress.subscribe()
    }

    /// Applies an answer to a permission request; `None` if the client was not asked.
    pub(super) fn vote(&self, permission_id: &str, vote: Vote) -> Option<(SessionKey, VoteStep)> {
        let mut state = self.state();
        let session = state.session_of_question(permission_id)?;
        let step = state.session(&session)?.ballot().vote(permission_id, vote);
        Some((session, step))
    }

    /// Wakes the streams.
    pub(super) fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn note_progress(&self) {
        self.progress.send_modify(|count| *count += 1);
    }

    /// Counts as use of the connection.
    pub(super) fn touch(&self) {
        self.activity.lock().last = Instant::now();
    }

    /// Takes a message, in order. Returns false if the connection has ended.
    pub(super) async fn receive(&self, incoming: Incoming) -> bool {
        self.touch();
        tokio::select! {
            () = self.end.cancelled() => false,
            sent = self.inbox.send(incoming) => sent.is_ok(),
        }
    }

    /// Adds a frame behind the rows of a session, or to the connection.
    pub(super) fn push(&self, session: Option<&SessionKey>, frame: String) {
        let pushed = self.state().push(session, frame);
        self.after_push(pushed);
    }

    /// Wakes the streams after frames were added; ends a connection whose client reads none.
    pub(super) fn after_push(&self, pushed: Result<(), QueueFull>) {
        match pushed {
            Ok(()) => self.wake(),
            Err(full) => {
                tracing::warn!(connection = self.log_id(), error = %full, "acp client does not read");
                self.end("unread");
            }
        }
    }

    /// Ends the connection, for a reason in metrics and logs.
    pub(super) fn end(&self, reason: &'static str) {
        if !self.end.is_cancelled() {
            self.metrics.client_ended(reason);
            tracing::info!(connection = self.log_id(), reason, "acp connection ended");
            self.end.cancel();
        }
    }

    /// Ends the connection together with the token that made it.
    pub(super) fn end_with(self: &Arc<Self>, lease: Option<TokenLease>) {
        let Some(lease) = lease else { return };
        let connection = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                () = connection.end.cancelled() => {}
                () = lease.ended() => connection.end("revoked"),
            }
        });
    }

    pub(super) fn opened_stream(&self) {
        let mut activity = self.activity.lock();
        *activity = Activity { last: Instant::now(), without_streams: None };
    }

    pub(super) fn close_stream(&self, ticket: &StreamTicket) {
        let mut state = self.state();
        state.close_stream(ticket);
        let has_streams = state.has_streams();
        drop(state);
        if !has_streams {
            self.activity.lock().without_streams = Some(Instant::now());
        }
        // Another stream may carry the sessions now.
        self.wake();
    }

    /// Returns the reason why the connection is unused.
    fn unused(&self, grace: Duration, idle: Duration) -> Option<&'static str> {
        let activity = self.activity.lock();
        if activity.without_streams.is_some_and(|since| since.max(activity.last).elapsed() >= grace) {
            return Some("no_streams");
        }
        (activity.last.elapsed() >= idle).then_some("idle")
    }
}

/// Executes the messages of a connection in order, until its end.
async fn work(server: Arc<AcpServer>, connection: Arc<Connection>, mut incoming: mpsc::Receiver<Incoming>) {
    let idle = Duration::from_millis(server.limits.idle_ms);
    loop {
        let grace = Duration::from_millis(server.detach_grace_ms());
        let check = grace.min(idle).min(Duration::from_millis(CHECK_MS));
        tokio::select! {
            biased;
            () = connection.end.cancelled() => break,
            message = incoming.recv() => match message {
                Some(message) => calls::handle(&server, &connection, message).await,
                None => break,
            },
            () = tokio::time::sleep(check) => {
                if let Some(reason) = connection.unused(grace, idle) {
                    connection.end(reason);
                }
            }
        }
    }
    server.remove(connection.id());
    connection.end.cancel();
}
