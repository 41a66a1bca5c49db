//! One connection as the rest of the program sees it: replies and news go into a bounded queue that never waits,
//! output goes through a short one of its own, so that a flood of it never starves a reply (H18).

use acp_shared::protocol::{Notice, Refusal, RefusalCode, Reply, ToClient};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Replies and news that wait for one connection; one more ends it, since its peer does not read.
const CONTROL_QUEUED_MAX: usize = 8192;
/// Bytes of such replies that wait for one connection; one more ends it too. A tail is large.
const CONTROL_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Pieces of output that wait for one connection.
const OUTPUT_QUEUED_MAX: usize = 4;

/// Numbers connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// The sending side of one connection.
#[derive(Debug, Clone)]
pub struct Link {
    id: LinkId,
    control: mpsc::Sender<ToClient>,
    output: mpsc::Sender<Notice>,
    in_flight: Arc<AtomicUsize>,
    queued_bytes: Arc<AtomicUsize>,
    end: CancellationToken,
}

/// What the task that writes to the socket takes from.
#[derive(Debug)]
pub struct Outgoing {
    /// Replies and news.
    pub control: mpsc::Receiver<ToClient>,
    /// Pieces of output.
    pub output: mpsc::Receiver<Notice>,
    in_flight: Arc<AtomicUsize>,
    queued_bytes: Arc<AtomicUsize>,
    /// Cancelled when the connection has to end.
    pub end: CancellationToken,
}

/// What a queued message holds in memory, in bytes; what is small and counted anyway is nothing.
fn weight(message: &ToClient) -> usize {
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

impl Outgoing {
    /// A message is on the socket: it is no longer held for the peer.
    pub fn sent(&self, message: &ToClient) {
        self.queued_bytes.fetch_sub(weight(message), Ordering::Relaxed);
    }

    /// A reply is on the socket: its request no longer counts.
    pub fn answered(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Link {
    /// Both sides of a new connection.
    #[must_use]
    pub fn new(id: LinkId) -> (Self, Outgoing) {
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
            end: end.clone(),
        };
        (link, Outgoing { control: control_out, output: output_out, in_flight, queued_bytes, end })
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> LinkId {
        self.id
    }

    /// Where pieces of output go.
    #[must_use]
    pub const fn output(&self) -> &mpsc::Sender<Notice> {
        &self.output
    }

    /// Cancelled when the connection has to end, or has ended.
    #[must_use]
    pub const fn end(&self) -> &CancellationToken {
        &self.end
    }

    /// Takes in one request, unless too many are unanswered.
    #[must_use]
    pub fn begin(&self, id: u64, in_flight_max: usize) -> Option<Responder> {
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= in_flight_max {
            return None;
        }
        Some(Responder { link: self.clone(), id, answered: false })
    }

    /// Queues a message. A connection whose peer does not read is ended.
    pub fn tell(&self, message: ToClient) {
        let bytes = weight(&message);
        let over = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > CONTROL_BYTES_MAX;
        if over || matches!(self.control.try_send(message), Err(mpsc::error::TrySendError::Full(_))) {
            tracing::warn!(link = self.id.0, "the peer does not read; its connection is ended");
            self.end.cancel();
        }
    }

    /// Says why and ends the connection, once what was queued before is written.
    pub fn refuse(&self, refusal: Refusal) {
        self.tell(ToClient::Refused(refusal));
    }
}

/// The duty to answer one request. Dropped without an answer it says that something went wrong inside.
#[derive(Debug)]
pub struct Responder {
    link: Link,
    id: u64,
    answered: bool,
}

impl Responder {
    /// The connection that asked.
    #[must_use]
    pub const fn link(&self) -> &Link {
        &self.link
    }

    /// Answers.
    pub fn answer(mut self, result: Result<Reply, Refusal>) {
        self.answered = true;
        self.link.tell(ToClient::Reply { id: self.id, result });
    }

    /// Answers with a refusal.
    pub fn refuse(self, code: RefusalCode, message: impl Into<String>) {
        self.answer(Err(Refusal::new(code, message)));
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            let refusal =
                Refusal::new(RefusalCode::Internal, "the supervisor dropped this request; try again");
            self.link.tell(ToClient::Reply { id: self.id, result: Err(refusal) });
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
    fn large_replies_that_nobody_reads_end_the_connection() {
        let (link, mut outgoing) = Link::new(LinkId(1));
        let tail =
            |bytes: usize| Ok(Reply::Tail(Tail { bytes: vec![0; bytes], truncated: true, exit: None }));
        let answer = |bytes| link.begin(1, 100).unwrap().answer(tail(bytes));
        // One that reads gets as many as it wants.
        for _ in 0..4 {
            answer(CONTROL_BYTES_MAX);
            let message = outgoing.control.try_recv().unwrap();
            outgoing.sent(&message);
        }
        answer(CONTROL_BYTES_MAX);
        assert!(!link.end().is_cancelled());
        answer(1);
        assert!(link.end().is_cancelled());
    }

    #[test]
    fn each_large_reply_is_weighed() {
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
            assert_eq!(weight(&ToClient::Reply { id: 1, result: Ok(reply.clone()) }), 100, "{reply:?}");
        }
    }
}
