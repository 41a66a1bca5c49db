//! Database writes of an actor: the rows of one transaction, all or nothing.

use crate::event::EventKind;
use crate::rows::{AgentRequestRow, LeaseRow, LeaseStatus, OutboxRow, PermissionRow, RunRow, SessionRow};
use acp_shared::ids::{BindingId, IdempotencyKey, LeaseId, RunId, SessionKey};

/// Limits on the sessions in use, checked before one more session comes into use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionLimits {
    /// Maximum of all sessions.
    pub sessions_max: u64,
    /// Limit of the session's account.
    pub account: Option<AccountLimit>,
}

/// Limit on the sessions in use of one account. A session belongs to the account of its first binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountLimit {
    /// Channel of the account.
    pub channel: String,
    /// Id of the account.
    pub account_id: String,
    /// Maximum number of sessions.
    pub sessions_max: u64,
}

/// One database write. A transaction is a `Vec<Write>`, applied in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Append to the journal; the store adds the time. The numbers must follow the last ones without a gap,
    /// or the transaction fails.
    Event {
        /// Next number within the session.
        session_seq: u64,
        /// Run with the next number within the run.
        run: Option<(RunId, u64)>,
        /// Kind of the row; determines the format of the payload.
        kind: EventKind,
        /// Payload, JSON text.
        payload: String,
        /// See [`NewEvent::extra`](crate::event::NewEvent::extra).
        extra: Option<String>,
    },
    /// Insert or update the session's row.
    Session(Box<SessionRow>),
    /// Insert or update a run's row; its text and identity stay as inserted.
    Run(Box<RunRow>),
    /// Replace the text of a queued run. Fails if the run has left the queue.
    Reword {
        /// The run.
        run_id: RunId,
        /// New text.
        text: String,
    },
    /// Insert a lease row, before the spawn request to the supervisor (H5).
    NewLease(Box<LeaseRow>),
    /// Update the positions of a lease's streams.
    LeaseProgress {
        /// The lease.
        lease_id: LeaseId,
        /// First stdout byte that is not committed.
        stdout_offset: u64,
        /// Number of the next stdin message.
        next_stdin_seq: u64,
        /// Backend state at that offset, if changed.
        link_state: Option<String>,
    },
    /// Update the state of a lease.
    LeaseStatus {
        /// The lease.
        lease_id: LeaseId,
        /// New state.
        usage: LeaseStatus,
    },
    /// Store a piece of an unfinished line (H2).
    Tail {
        /// The lease.
        lease_id: LeaseId,
        /// Offset of the first byte.
        offset: u64,
        /// Content of the piece.
        bytes: Vec<u8>,
    },
    /// Mark the output of a lease as unusable; further output is discarded.
    LeaseBroken {
        /// The lease.
        lease_id: LeaseId,
    },
    /// Delete the pieces of a line that is now complete.
    TailClear {
        /// The lease.
        lease_id: LeaseId,
    },
    /// Insert a message to the agent, committed before the send.
    Outbox(Box<OutboxRow>),
    /// Mark messages up to this number as written to the pipe; the store may drop their bytes.
    Written {
        /// The lease.
        lease_id: LeaseId,
        /// Highest written number.
        through_seq: u64,
    },
    /// Insert or update a request of the agent.
    Request(Box<AgentRequestRow>),
    /// Insert or update a permission request.
    Permission(Box<PermissionRow>),
    /// Store the result of a command under a key (I5). Fails if the key already has a result.
    Idempotency {
        /// Scope of the key, e.g. `prompt:<session key>`.
        scope: String,
        /// The key.
        key: IdempotencyKey,
        /// Digest of the request; detects a different request under the same key.
        fingerprint: String,
        /// Result, JSON text.
        result: String,
    },
    /// Mark the completion of another session's run as a prompt of this session. Fails if it is not due.
    Completion {
        /// Run that has ended.
        run_id: RunId,
    },
    /// Bring the session into use. Fails if the session was not in use and a limit is reached.
    Wake(SessionLimits),
    /// Fail if a conversation is bound to the session.
    RequireUnbound,
    /// End every binding of the session.
    EndBindings {
        /// Reason of the end.
        reason: String,
    },
    /// End one expired binding. The transaction fails if the binding was used in the meantime.
    ExpireBinding {
        /// The binding.
        binding_id: BindingId,
        /// Last known activity, milliseconds since the Unix epoch.
        last_activity_at_ms: u64,
        /// Reason of the end.
        reason: String,
    },
    /// Restart the idle timeouts of the session's bindings after activity of a person or the agent.
    TouchBindings {
        /// Time of the activity, milliseconds since the Unix epoch.
        at_ms: u64,
    },
}

/// State of a session's actor, as read from the database after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorSnapshot {
    /// The session.
    pub session: SessionRow,
    /// Lease in use, if any.
    pub lease: Option<LeaseRow>,
    /// Pieces of the unfinished line, in order: offset and bytes.
    pub tail: Vec<(u64, Vec<u8>)>,
    /// Unfinished runs, in order of acceptance.
    pub runs: Vec<RunRow>,
    /// Messages to the lease without a confirmed write, in order.
    pub outbox: Vec<OutboxRow>,
    /// Unanswered requests of the lease's agent, in order.
    pub requests: Vec<AgentRequestRow>,
    /// Pending permission requests of the lease's agent, in order.
    pub permissions: Vec<PermissionRow>,
}

/// Condition of a write: the actor must not be superseded by a newer one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorFence {
    /// The session.
    pub session_key: SessionKey,
    /// Epoch of the actor; the database holds the newest epoch.
    pub epoch: u64,
}
