//! Sending side of a connection. Replies and notices go into a bounded queue that never blocks the sender;
//! output has a short queue of its own, so that a flood of output cannot delay a reply (H18).

use crate::sys;
use acp_shared::protocol::{Notice, Refusal, RefusalCode, Reply, ToClient};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Maximum number of queued replies and notices of one connection; one more ends it, because its peer does
/// not read.
const CONTROL_QUEUED_MAX: usize = 8192;
/// Maximum size of queued replies of one connection, in bytes; exceeding it ends the connection too. Tails
/// are large.
const CONTROL_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Maximum number of queued output pieces of one connection.
const OUTPUT_QUEUED_MAX: usize = 4;

/// Id of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Sending side of one connection.
#[derive(Debug, Clone)]
pub struct ConnectionHandle {
    id: ConnectionId,
    control: mpsc::Sender<ToClient>,
    output: mpsc::Sender<Notice>,
    in_flight: Arc<AtomicUsize>,
    queued_bytes: Arc<AtomicUsize>,
    /// Time of the last received message, milliseconds since the boot of this machine.
    received_ms: Arc<AtomicU64>,
    end: CancellationToken,
}

/// Queues for the task that writes to the socket.
#[derive(Debug)]
pub struct OutgoingQueues {
    /// Replies and notices.
    pub control: mpsc::Receiver<ToClient>,
    /// Pieces of output.
    pub output: mpsc::Receiver<Notice>,
    in_flight: Arc<AtomicUsize>,
    queued_bytes: Arc<AtomicUsize>,
    /// Cancelled when the connection has to end.
    pub end: CancellationToken,
}

/// Returns the counted size of a queued message, in bytes. Small messages count 0: the queue length limits
/// them.
fn queued_size(message: &ToClient) -> usize {
    const LEASE_BYTES: usize = 1024;
    match message {
        ToClient::Reply { result: Ok(Reply::Tail(tail)), .. } => tail.bytes.len(),
        ToClient::Reply { result: Ok(Reply::Files(Ok(reply))), .. } => reply.bytes(),
        ToClient::Reply { result: Ok(Reply::SessionLog(piece)), .. } => piece.bytes.len(),
        ToClient::Reply { result: Ok(Reply::Leases(leases)), .. } => leases.len() * LEASE_BYTES,
        ToClient::Reply { .. }
        | ToClient::Welcome(_)
        | ToClient::Refused(_)
        | ToClient::RolledBack(_)
        | ToClient::Notice(_) => 0,
    }
}

impl OutgoingQueues {
    /// Records that a message was written to the socket and is no longer buffered.
    pub fn record_sent(&self, message: &ToClient) {
        self.queued_bytes.fetch_sub(queued_size(message), Ordering::Relaxed);
    }

    /// Records that a reply was written to the socket: its request is no longer in flight.
    pub fn record_answered(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionHandle {
    /// Creates both sides of a new connection.
    #[must_use]
    pub fn new(id: ConnectionId) -> (Self, OutgoingQueues) {
        let (control, control_out) = mpsc::channel(CONTROL_QUEUED_MAX);
        let (output, output_out) = mpsc::channel(OUTPUT_QUEUED_MAX);
        let (in_flight, queued_bytes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let end = CancellationToken::new();
        let link = Self {
            id,
            control,
            output,
            in_flight: Arc::clone(&in_flight),
            queued_bytes: Arc::clone(&queued_bytes),
            received_ms: Arc::new(AtomicU64::new(sys::since_boot_ms())),
            end: end.clone(),
        };
        (link, OutgoingQueues { control: control_out, output: output_out, in_flight, queued_bytes, end })
    }

    /// Returns the id of the connection.
    #[must_use]
    pub const fn id(&self) -> ConnectionId {
        self.id
    }

    /// Returns the queue for output pieces.
    #[must_use]
    pub const fn output(&self) -> &mpsc::Sender<Notice> {
        &self.output
    }

    /// Returns the token that is cancelled when the connection has to end, or has ended.
    #[must_use]
    pub const fn end(&self) -> &CancellationToken {
        &self.end
    }

    /// Records that a message was received.
    pub fn record_received(&self) {
        self.received_ms.store(sys::since_boot_ms(), Ordering::Relaxed);
    }

    /// Returns the time since the last received message, suspension of this machine included, in milliseconds.
    #[must_use]
    pub fn silent_ms(&self) -> u64 {
        sys::since_boot_ms().saturating_sub(self.received_ms.load(Ordering::Relaxed))
    }

    /// Registers a request. Returns `None` if too many requests are unanswered.
    #[must_use]
    pub fn register_request(&self, id: u64, in_flight_max: usize) -> Option<Responder> {
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= in_flight_max {
            return None;
        }
        Some(Responder { link: self.clone(), id, answered: false })
    }

    /// Queues a message. Ends the connection if its peer does not read.
    pub fn send(&self, message: ToClient) {
        let bytes = queued_size(&message);
        let over = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > CONTROL_BYTES_MAX;
        if over || matches!(self.control.try_send(message), Err(mpsc::error::TrySendError::Full(_))) {
            tracing::warn!(connection = self.id.0, "client does not read; connection closed");
            self.end.cancel();
        }
    }

    /// Queues a refusal; the connection ends after everything queued before is written.
    pub fn refuse(&self, refusal: Refusal) {
        self.send(ToClient::Refused(refusal));
    }
}

/// Obligation to answer one request. If dropped without an answer, it sends an internal error.
#[derive(Debug)]
pub struct Responder {
    link: ConnectionHandle,
    id: u64,
    answered: bool,
}

impl Responder {
    /// Returns the connection of the request.
    #[must_use]
    pub const fn link(&self) -> &ConnectionHandle {
        &self.link
    }

    /// Sends the answer.
    pub fn answer(mut self, result: Result<Reply, Refusal>) {
        self.answered = true;
        self.link.send(ToClient::Reply { id: self.id, result });
    }

    /// Sends a refusal.
    pub fn refuse(self, code: RefusalCode, message: impl Into<String>) {
        self.answer(Err(Refusal::new(code, message)));
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            let refusal =
                Refusal::new(RefusalCode::Internal, "the supervisor dropped this request; try again");
            self.link.send(ToClient::Reply { id: self.id, result: Err(refusal) });
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_shared::files::{FilesError, FilesReply, Inspection};
    use acp_shared::protocol::{LogPiece, Tail};

    #[test]
    fn unread_large_replies_end_connection() {
        let (connection, mut outgoing) = ConnectionHandle::new(ConnectionId(1));
        let tail =
            |bytes: usize| Ok(Reply::Tail(Tail { bytes: vec![0; bytes], truncated: true, exit: None }));
        let answer = |bytes| connection.register_request(1, 100).unwrap().answer(tail(bytes));
        // A reading client gets any number of replies.
        for _ in 0..4 {
            answer(CONTROL_BYTES_MAX);
            let message = outgoing.control.try_recv().unwrap();
            outgoing.record_sent(&message);
        }
        answer(CONTROL_BYTES_MAX);
        assert!(!connection.end().is_cancelled());
        answer(1);
        assert!(connection.end().is_cancelled());
    }

    #[test]
    fn large_replies_are_counted_by_size() {
        let text = "x".repeat(100);
        let inspection = Inspection { text: Some(text.clone()), ..Inspection::default() };
        let piece = LogPiece { offset: 0, bytes: vec![0; 100], end: 100 };
        for reply in [
            Reply::Files(Ok(FilesReply::Text(text.clone()))),
            Reply::Files(Ok(FilesReply::Inspected(inspection))),
            Reply::Files(Ok(FilesReply::Directories(vec![Ok(text.clone()), Err(FilesError::Denied)]))),
            Reply::Files(Ok(FilesReply::Directory { path: text.clone(), roots: vec![] })),
            Reply::Files(Ok(FilesReply::Programs(vec![None, Some(text.clone())]))),
            Reply::SessionLog(piece),
        ] {
            assert_eq!(queued_size(&ToClient::Reply { id: 1, result: Ok(reply.clone()) }), 100, "{reply:?}");
        }
    }
}
