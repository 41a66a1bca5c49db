//! What an actor wants committed: the rows of one transaction, all or nothing.

use crate::core::event::EventKind;
use crate::core::rows::{AgentRequestRow, LeaseRow, LeaseUse, OutboxRow, PermissionRow, RunRow, SessionRow};
use acp_shared::ids::{BindingId, IdempotencyKey, LeaseId, RunId, SessionKey};

/// How many sessions may be in use once another one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caps {
    /// In all.
    pub(crate) sessions_max: u64,
    /// In the session's account.
    pub(crate) account: Option<AccountCap>,
}

/// How many sessions of one account may be in use. A session belongs to the account that it was first bound in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccountCap {
    /// The channel.
    pub(crate) channel: String,
    /// The account.
    pub(crate) account_id: String,
    /// How many.
    pub(crate) sessions_max: u64,
}

/// One row to write. A transaction is a `Vec<Write>`, applied in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    /// Append to the journal; the store adds the time. The numbers must follow the last ones without a gap, or
    /// the transaction fails.
    Event {
        /// Next number of the session.
        session_seq: u64,
        /// The run, with the next number in it.
        run: Option<(RunId, u64)>,
        /// How to read the payload.
        kind: EventKind,
        /// JSON text.
        payload: String,
    },
    /// Insert or update the session's row.
    Session(Box<SessionRow>),
    /// Insert or update a run's row; its text and identity stay as inserted.
    Run(Box<RunRow>),
    /// A run that waits says something else from now on. Fails when it does not wait any more.
    Reword {
        /// The run.
        run_id: RunId,
        /// What it says.
        text: String,
    },
    /// Insert a lease row, before the supervisor hears of it (H5).
    NewLease(Box<LeaseRow>),
    /// A lease's streams moved on.
    LeaseProgress {
        /// The lease.
        lease_id: LeaseId,
        /// First stdout byte that is not committed now.
        stdout_offset: u64,
        /// Number of the next stdin message.
        next_stdin_seq: u64,
        /// The link's state at that offset, when it changed.
        link_state: Option<String>,
    },
    /// What is known of a lease changed.
    LeaseUse {
        /// The lease.
        lease_id: LeaseId,
        /// What is known now.
        usage: LeaseUse,
    },
    /// A piece of an unfinished line (H2).
    Tail {
        /// The lease.
        lease_id: LeaseId,
        /// Offset of its first byte.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Nothing more of a lease's output is read.
    LeaseBroken {
        /// The lease.
        lease_id: LeaseId,
    },
    /// The unfinished line is finished: its pieces go.
    TailClear {
        /// The lease.
        lease_id: LeaseId,
    },
    /// A message to the agent, committed before it is sent.
    Outbox(Box<OutboxRow>),
    /// Messages up to this number are in the pipe; their bytes may be dropped.
    Written {
        /// The lease.
        lease_id: LeaseId,
        /// The highest such number.
        through_seq: u64,
    },
    /// Insert or update a request of the agent.
    Request(Box<AgentRequestRow>),
    /// Insert or update a permission request.
    Permission(Box<PermissionRow>),
    /// Remember the answer to a command (I5). Fails when the key has one already.
    Idempotency {
        /// What the key is for, e.g. `prompt:<session key>`.
        scope: String,
        /// The key.
        key: IdempotencyKey,
        /// Digest of what was asked, so that another question under the same key is recognised.
        fingerprint: String,
        /// The answer, JSON text.
        result: String,
    },
    /// The session is used. If it rests, this wakes it, and the transaction fails where as many as may be are in use.
    Wake(Caps),
    /// End every binding of the session.
    EndBindings {
        /// Why.
        reason: String,
    },
    /// End one binding that ran out, unless somebody used it meanwhile: then the transaction fails.
    ExpireBinding {
        /// Which one.
        binding_id: BindingId,
        /// When it was last used, as far as is known.
        last_activity_at_ms: u64,
        /// Why.
        reason: String,
    },
    /// Somebody or the agent spoke: the idle windows of the session's bindings begin anew.
    TouchBindings {
        /// When, milliseconds since the Unix epoch.
        at_ms: u64,
    },
}

/// Everything an actor was in the middle of, as the store finds it after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The session.
    pub(crate) session: SessionRow,
    /// Its lease in use.
    pub(crate) lease: Option<LeaseRow>,
    /// Pieces of the unfinished line, in order: offset and bytes.
    pub(crate) tail: Vec<(u64, Vec<u8>)>,
    /// Runs that have not ended, in the order they were accepted.
    pub(crate) runs: Vec<RunRow>,
    /// Messages of the lease that are not known to be written, in order.
    pub(crate) outbox: Vec<OutboxRow>,
    /// Requests of the lease's agent that are not answered, in order.
    pub(crate) requests: Vec<AgentRequestRow>,
    /// Permissions of the lease's agent that are pending, in order.
    pub(crate) permissions: Vec<PermissionRow>,
}

/// Who may write: an actor that was superseded can no longer commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fence {
    /// The session.
    pub(crate) session_key: SessionKey,
    /// The actor's epoch; the database holds the newest one.
    pub(crate) epoch: u64,
}
