//! Streams of a connection: cursors over the journals of its sessions. A batch is read when the socket can take it, so
//! that a slow reader costs one batch of memory.

use super::AcpServer;
use super::attach;
use super::calls::Caller;
use super::connection::Connection;
use crate::metrics::OpenCount;
use acp_core::failure::Failure;
use acp_core::northbound::connection::{StreamScope, StreamTicket};
use acp_core::northbound::frames::Frame;
use acp_core::northbound::message::{ReplyError, notification_frame};
use acp_core::northbound::session_view::{RowsTaken, SessionView};
use acp_shared::ids::SessionKey;
use futures_util::future::select_all;
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Maximum number of rows in a batch.
const BATCH_ROWS: u32 = 512;
/// Approximate maximum size of a batch, in bytes.
const BATCH_BYTES: usize = 256 * 1024;

/// Time for which the frames of a session wait until the client opens a stream for it, in milliseconds: a few round trips.
const LATE_STREAM_MS: u64 = 2_000;

/// Result of a read.
#[derive(Debug)]
pub(super) enum Batch {
    /// Frames to send.
    Frames(Vec<Frame>),
    /// Nothing for a while; a sign of life is due.
    Heartbeat,
}

/// Reader of one stream. The stream closes when it is dropped.
pub(super) struct StreamReader {
    server: Arc<AcpServer>,
    connection: Arc<Connection>,
    ticket: StreamTicket,
    changed: watch::Receiver<u64>,
    rows: HashMap<SessionKey, watch::Receiver<u64>>,
    /// Ends of the waits for streams that the client may open.
    late: HashMap<SessionKey, Instant>,
    is_over: bool,
    _open: OpenCount,
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.connection.close_stream(&self.ticket);
    }
}

impl StreamReader {
    pub(super) fn new(server: &Arc<AcpServer>, connection: &Arc<Connection>, ticket: StreamTicket) -> Self {
        connection.opened_stream();
        // A replaced stream of this scope ends now.
        connection.wake();
        Self {
            server: Arc::clone(server),
            changed: connection.watch(),
            connection: Arc::clone(connection),
            ticket,
            rows: HashMap::new(),
            late: HashMap::new(),
            is_over: false,
            _open: server.metrics.client_stream(),
        }
    }

    /// Waits for the next batch; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<Batch> {
        loop {
            if self.is_over || self.connection.ended().is_cancelled() {
                return None;
            }
            self.changed.borrow_and_update();
            let frames = self.read().await?;
            self.connection.note_progress();
            if !frames.is_empty() {
                self.connection.touch();
                return Some(Batch::Frames(frames));
            }
            if self.wait().await {
                self.connection.touch();
                return Some(Batch::Heartbeat);
            }
        }
    }

    /// Reads what is there. `None` if a newer stream has replaced this one.
    async fn read(&mut self) -> Option<Vec<Frame>> {
        let mut out = Vec::new();
        let routed = {
            let mut state = self.connection.state();
            if !state.is_open(&self.ticket) {
                return None;
            }
            // Together: the answer that opens a session goes before its first row.
            state.take_own(&self.ticket.scope, &mut out);
            self.late.retain(|key, _| state.is_waiting(key));
            state.routed_to(&self.ticket.scope)
        };
        self.rows.retain(|key, _| routed.iter().any(|(routed, _)| routed == key));
        for (session, after) in routed {
            let rows =
                self.rows.entry(session.clone()).or_insert_with(|| self.server.service.watch(&session));
            rows.borrow_and_update();
            if let Err(failure) = self.read_session(&session, after, &mut out).await {
                self.fail_session(&session, failure, &mut out);
            }
            if out.iter().map(|frame| frame.json.len()).sum::<usize>() >= BATCH_BYTES {
                // The rest is read next.
                self.connection.wake();
                break;
            }
        }
        if self.ticket.scope == StreamScope::Connection {
            let end = Instant::now() + Duration::from_millis(LATE_STREAM_MS);
            for key in self.connection.state().waiting_sessions() {
                self.late.entry(key).or_insert(end);
            }
        }
        Some(out)
    }

    async fn read_session(
        &self,
        session: &SessionKey,
        after: u64,
        out: &mut Vec<Frame>,
    ) -> Result<(), Failure> {
        let rows =
            self.server.service.events_after(session, Some(after), BATCH_ROWS, BATCH_BYTES).await?.rows;
        let before = out.len();
        let (taken, cursor) = {
            let mut state = self.connection.state();
            let taken = state.take_rows(&self.ticket, session, after, &rows, out);
            (taken, state.session(session).map_or(after, |view| view.cursor()))
        };
        self.leave_skipped(session);
        if taken == RowsTaken::Loaded {
            let (result, pending) = attach::loaded(&self.server, session, cursor).await?;
            let finished = self.connection.state().finish_load(&self.ticket, session, &result, &pending, out);
            self.connection.after_push(finished);
            self.leave_skipped(session);
        } else if !rows.is_empty() && out.len() == before && taken == RowsTaken::All {
            // Rows without frames: more may follow at once.
            self.connection.wake();
        }
        Ok(())
    }

    /// Leaves questions that the client cannot show to other clients, or settles them if there are none.
    fn leave_skipped(&self, session: &SessionKey) {
        let skipped = self.connection.state().session(session).map(SessionView::take_skipped);
        for permission_id in skipped.unwrap_or_default() {
            let is_local = self.connection.principal().local;
            let (server, connection) = (Arc::clone(&self.server), Arc::clone(&self.connection));
            let caller = Caller { server, connection, is_local };
            let session = session.clone();
            tokio::spawn(async move { caller.abstain(&session, &permission_id).await });
        }
    }

    /// Tells the client that a session cannot be read, and closes it on this connection.
    fn fail_session(&mut self, session: &SessionKey, failure: Failure, out: &mut Vec<Frame>) {
        tracing::warn!(session_key = %session, %failure, "acp stream failed");
        let error = ReplyError::from(&failure);
        let params = json!({ "sessionId": session, "error": {
            "code": error.code, "message": error.message, "data": error.data,
        } });
        let json = notification_frame("_acphost/stream_error", &params.to_string());
        out.push(Frame { id: None, json });
        let mut state = self.connection.state();
        let detached = state.detach(session);
        drop(state);
        self.connection.after_push(detached);
        self.is_over = matches!(self.ticket.scope, StreamScope::Session(_));
    }

    /// Waits until there may be more. Returns true after a silence.
    async fn wait(&mut self) -> bool {
        let heartbeat = Duration::from_millis(self.server.limits.heartbeat_ms);
        let rows: Vec<_> = self.rows.values_mut().map(|rows| Box::pin(rows.changed())).collect();
        let rows = async {
            if rows.is_empty() {
                std::future::pending::<()>().await;
            }
            let (changed, _, _) = select_all(rows).await;
            if changed.is_err() {
                // The gateway stops.
                std::future::pending::<()>().await;
            }
        };
        let late = self.late.iter().min_by_key(|(_, end)| **end);
        let late = async {
            let Some((key, end)) = late else { return std::future::pending().await };
            sleep_until(*end).await;
            self.connection.state().stop_waiting(key);
        };
        tokio::select! {
            () = self.connection.ended().cancelled() => false,
            () = late => false,
            _ = self.changed.changed() => false,
            () = rows => false,
            () = tokio::time::sleep(heartbeat) => true,
        }
    }
}
