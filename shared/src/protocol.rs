//! Contract between gateway and supervisor: all messages of the protocol.
//!
//! # Version history
//! - **1**: Hello/Welcome, Spawn, Attach, Input, Ack, Tail, CloseLease, Release, ListLeases, Verify, Reap, Status,
//!   Shutdown, Upgrade; notices Output, Exited, LeaseChanged.
//! - **2**: a gateway sends Marks right after Hello, and acting requests with its epoch (Act); AckSynced in place of
//!   Ack; RolledBack; Files; SessionLog in place of the `stderr_tail` of Exited, which is empty. Version 1 is
//!   still supported for older gateways.
//! - **Features**: a supervisor names them in its Welcome. [`crate::figures::FEATURE`]: Figures;
//!   [`crate::files::LIST_FEATURE`]: lists of directories; [`crate::private_home::FEATURE`]: private home directories.
//!
//! # Rules
//! Enums are append-only: bincode writes a variant by its position, so an inserted one would silently turn one
//! message into another. The golden bytes in `tests/golden.rs` hold the positions. No recursive types, no
//! element types of size zero, no `serde` attributes that need a self-describing format (see [`crate::wire`]).
//!
//! There is no Cancel here. Cancelling a turn is ACP between gateway and agent and touches no process.
//!
//! A connection starts with [`ToSupervisor::Hello`]; a gateway of version 2 sends [`ToSupervisor::Marks`]
//! right after it. The supervisor answers [`ToClient::Welcome`], or [`ToClient::Refused`] or
//! [`ToClient::RolledBack`] and closes. After that, requests and replies are matched by number, in any order;
//! notices may arrive at any time.

use crate::figures::Figure;
use crate::files::{FilesError, FilesReply, FilesRequest};
use crate::ids::{GatewayInstanceId, LeaseId, SessionKey, StartId};
use crate::launch::ExitStatus;
use crate::redact::Secret;
pub use crate::refusal::{Refusal, RefusalCode};
pub use crate::report::{EvidenceFact, EvidenceReport, LastUpgrade, ReapLine, Status};
use serde::{Deserialize, Serialize};

/// Oldest protocol version that this build supports.
pub const VERSION_MIN: u16 = 1;
/// Newest protocol version that this build supports.
pub const VERSION_MAX: u16 = 2;
/// Oldest version in which a gateway sends [`Marks`] and [`ToSupervisor::Act`].
pub const VERSION_MARKS: u16 = 2;
/// Maximum size of a frame, in bytes: one agent line of 32 MiB and its envelope.
pub const FRAME_BYTES_MAX: usize = 33 * 1024 * 1024;
/// Maximum size of a [`Hello`], in bytes. Small, because the peer is not authenticated before it.
pub const HELLO_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of [`Marks`], in bytes: enough for tens of thousands of leases.
pub const MARKS_BYTES_MAX: usize = 1024 * 1024;
/// Maximum size of the output in one [`Notice::Output`], in bytes.
pub const OUTPUT_BYTES_MAX: usize = 256 * 1024;

/// Messages from a client (a gateway or the admin CLI) to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSupervisor {
    /// Opens the connection.
    Hello(Hello),
    /// Request; answered by a reply with the same number.
    Request {
        /// Chosen by the client, unique among its unanswered requests.
        id: u64,
        /// The request.
        body: Request,
    },
    /// Durable progress of a gateway, right after its Hello. Since version 2.
    Marks(Marks),
    /// A request of a gateway that changes something ([`Request::changes_lease`]); answered like [`ToSupervisor::Request`].
    /// Since version 2.
    Act {
        /// Chosen by the client, unique among its unanswered requests.
        id: u64,
        /// The gateway's epoch; refused with [`RefusalCode::EpochStale`] below the highest one seen.
        epoch: u64,
        /// The request.
        body: Request,
    },
}

/// Messages from the supervisor to a client.
#[expect(clippy::large_enum_variant, reason = "a message is moved once, from the socket to its handler")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// The connection is open.
    Welcome(Welcome),
    /// The connection is refused or ended; the supervisor closes it.
    Refused(Refusal),
    /// Reply to a request.
    Reply {
        /// The number of the request.
        id: u64,
        /// The answer, or the refusal.
        result: Result<Reply, Refusal>,
    },
    /// Event of a lease of this client.
    Notice(Notice),
    /// The gateway is refused because its database is older than the supervisor's record of it; the
    /// supervisor closes the connection. Since version 2.
    RolledBack(Rollback),
}

/// First message of a client: identity and supported versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest version that the client supports.
    pub version_min: u16,
    /// Newest version that the client supports.
    pub version_max: u16,
    /// Optional features of the client, by name; unknown names are ignored.
    pub features: Vec<String>,
    /// Role of the client.
    pub role: Role,
    /// Content of a file of the supervisor that only authorized users can read (H9).
    pub secret: Option<Secret>,
}

/// Role of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Gateway: sees and controls its own leases only.
    Gateway {
        /// The installation.
        instance_id: GatewayInstanceId,
        /// Start number of the gateway; the highest one fences off older connections (H5).
        epoch: u64,
        /// Location of its state, to detect a copied state directory.
        home: Home,
    },
    /// Admin CLI: sees all leases. Allowed for root, the supervisor's own user and the admin group.
    Admin,
}

/// Location of a gateway's state directory. Another location with the same instance id indicates a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// Content of `/etc/machine-id`; empty if the file does not exist.
    pub machine_id: String,
    /// Device number of the state directory.
    pub dev: u64,
    /// Inode number of the state directory.
    pub ino: u64,
}

/// Durable progress of a gateway: values on disk in its database when it connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// Random id of this start of the gateway. The same epoch with another start id means that the database
    /// was restored to an older state.
    pub start_id: StartId,
    /// Highest event id that is synced; 0 before the first event.
    pub event_id: u64,
    /// First output byte that is not yet committed, for each agent lease that has not ended in the database, and
    /// for the newest ended ones.
    pub offsets: Vec<(LeaseId, u64)>,
    /// The operator accepted the loss of newer data: marks behind the recorded ones replace them if the epoch
    /// is above the recorded one.
    pub accepts_loss: bool,
}

/// Recorded progress of a gateway with an older database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// Refusal that lists the values behind the record, and the next step for the operator.
    pub refusal: Refusal,
    /// Highest epoch on record.
    pub epoch: u64,
    /// Highest event id on record.
    pub event_id: u64,
    /// Number of living agents of the gateway.
    pub agents: u64,
    /// Time until which the agents are kept while the operator decides, milliseconds since the Unix epoch.
    pub kept_until_ms: u64,
}

/// The supervisor's answer to [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Version used on this connection: the newest one that both sides support.
    pub version: u16,
    /// Optional features of the supervisor, by name.
    pub features: Vec<String>,
    /// Pid of the supervisor, informational.
    pub pid: i32,
    /// Random id of this supervisor start. Leases of an earlier start are not served by this one.
    pub supervisor_id: String,
    /// Flow-control credit for each lease: output bytes sent beyond the acknowledged offset (H18).
    pub credit_bytes: u64,
}

/// Requests of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Start a process tree for a new lease. Idempotent by lease id. Answered by [`Reply::Spawned`].
    Spawn(Spawn),
    /// Receive the lease's output as notices, starting at `from_offset`. Answered by [`Reply::Attached`].
    Attach {
        /// Lease to attach to.
        lease_id: LeaseId,
        /// First byte to send: the client's committed offset.
        from_offset: u64,
    },
    /// Write one message to the adapter's standard input, exactly once. Answered by [`Reply::Written`] when
    /// its last byte is in the pipe. A repeated number with the same bytes is a no-op with the same answer.
    Input {
        /// Lease of the adapter.
        lease_id: LeaseId,
        /// Number of the message, from 1, without gaps.
        seq: u64,
        /// Message bytes, including the newline.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Acknowledge the output before `offset` as committed, to be discarded. Answered by [`Reply::Done`].
    Ack {
        /// Lease of the output.
        lease_id: LeaseId,
        /// First byte that is not yet committed.
        offset: u64,
    },
    /// Return the kept output of a terminal. Answered by [`Reply::Tail`].
    Tail {
        /// Lease of the terminal.
        lease_id: LeaseId,
    },
    /// End the process tree with grace periods: EOF, SIGTERM, SIGKILL; its terminals first. Answered at once
    /// by [`Reply::Closing`]; [`Notice::LeaseChanged`] reports the end. Idempotent.
    CloseLease {
        /// Lease to close.
        lease_id: LeaseId,
        /// Reason, for the record.
        reason: String,
    },
    /// Discard the kept output of an ended lease: the client no longer needs it. Answered by [`Reply::Done`].
    Release {
        /// Lease to release.
        lease_id: LeaseId,
    },
    /// List the leases that the client may see. Answered by [`Reply::Leases`].
    ListLeases {
        /// Also inspect living trees: memory and number of processes.
        detail: bool,
    },
    /// Compare the record of a lease with current evidence. Answered by [`Reply::Evidence`].
    Verify {
        /// Lease to verify.
        lease_id: LeaseId,
    },
    /// End verified orphans, or only report what would be done. Admin only. Answered by [`Reply::Reaped`].
    Reap {
        /// Only report.
        dry_run: bool,
    },
    /// Report the state of the supervisor. Answered by [`Reply::Status`].
    Status,
    /// End the supervisor, unless other gateways use it (H17). Answered by [`Reply::Done`] before it ends.
    Shutdown {
        /// Expected state directory of the supervisor; the request is refused if it differs.
        state_dir: String,
    },
    /// Replace the supervisor's program without ending a lease (H14). Answered by [`Reply::Done`] after the
    /// new program passed its checks, before connections are dropped. Refused as Shutdown is.
    Upgrade {
        /// Absolute path of the new program; by default the path that this supervisor was started from.
        program: Option<String>,
        /// Expected state directory of the supervisor; the request is refused if it differs.
        state_dir: String,
    },
    /// Acknowledge output like [`Request::Ack`]; its events are synced up to `event_id`. Answered by
    /// [`Reply::Done`]. Since version 2.
    AckSynced {
        /// Lease of the output.
        lease_id: LeaseId,
        /// First byte that is not yet committed.
        offset: u64,
        /// Highest event id that is synced.
        event_id: u64,
    },
    /// Read, write or look up files as the user of the lease. Answered by [`Reply::Files`]. Since version 2.
    Files(FilesRequest),
    /// Return a piece of a session log: standard error of the session's agents, with configured secrets
    /// redacted. Answered by [`Reply::SessionLog`]. Since version 2.
    SessionLog {
        /// Session of the client.
        session_key: SessionKey,
        /// Position of the first line.
        from: LogFrom,
        /// Maximum size of the piece, in bytes; at most [`OUTPUT_BYTES_MAX`] is returned.
        bytes_max: u64,
    },
    /// Report figures for metrics; a gateway gets those of its own leases. Answered by [`Reply::Figures`]. Only for a
    /// supervisor with the feature [`crate::figures::FEATURE`].
    Figures,
}

impl Request {
    /// True for requests that change a lease. A gateway sends these as [`ToSupervisor::Act`].
    #[must_use]
    pub const fn changes_lease(&self) -> bool {
        match self {
            Self::Spawn(_)
            | Self::Attach { .. }
            | Self::Input { .. }
            | Self::Ack { .. }
            | Self::AckSynced { .. }
            | Self::CloseLease { .. }
            | Self::Release { .. }
            | Self::Files(_) => true,
            Self::Tail { .. }
            | Self::ListLeases { .. }
            | Self::Verify { .. }
            | Self::Reap { .. }
            | Self::Status
            | Self::Shutdown { .. }
            | Self::Upgrade { .. }
            | Self::SessionLog { .. }
            | Self::Figures => false,
        }
    }
}

/// Position of a piece of a session log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogFrom {
    /// At this offset. An offset before the first kept byte, or behind the end (the log was removed and
    /// started again), stands for the first kept byte.
    Offset(u64),
    /// At the first line that starts within this number of bytes before the end.
    End(u64),
}

/// Parameters of a new lease.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    /// Lease id, created and committed by the gateway beforehand.
    pub lease_id: LeaseId,
    /// Session that the lease serves.
    pub session_key: SessionKey,
    /// Kind of the lease.
    pub kind: LeaseKind,
    /// Program and arguments; not interpreted by a shell.
    pub argv: Vec<String>,
    /// Complete environment; the supervisor adds the two lease variables.
    pub env: Vec<(String, String)>,
    /// Absolute working directory.
    pub cwd: String,
    /// Absolute directories that the session works in. If writes are confined, the tree may write only there. One that
    /// begins with `~/` stands for a private home directory below the home directory of the agents' user
    /// ([`crate::private_home`]); if writes are confined, it is created. Only for a supervisor with the feature
    /// [`crate::private_home::FEATURE`].
    pub roots: Vec<String>,
    /// Grace periods of a close.
    pub graces: Graces,
}

impl std::fmt::Debug for Spawn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spawn")
            .field("lease_id", &self.lease_id)
            .field("session_key", &self.session_key)
            .field("kind", &self.kind)
            .field("program", &self.argv.first())
            .field("env", &crate::redact::EnvNames(&self.env))
            .field("cwd", &self.cwd)
            .field("roots", &self.roots)
            .field("graces", &self.graces)
            .finish_non_exhaustive()
    }
}

/// Purpose of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseKind {
    /// Coding agent: stdout is relayed with offsets and back-pressure, stdin messages are numbered.
    Agent,
    /// Command started by an agent (H16): stdout and stderr share one pipe, only the last bytes are kept,
    /// without back-pressure; ends with its parent.
    Terminal {
        /// Lease of the agent.
        parent_lease_id: LeaseId,
        /// Number of output bytes kept.
        output_bytes_max: u64,
    },
}

/// Grace periods of a close, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graces {
    /// From end of file on stdin to SIGTERM.
    pub eof_ms: u64,
    /// From SIGTERM to SIGKILL.
    pub term_ms: u64,
    /// From SIGKILL to reporting the survivors.
    pub kill_ms: u64,
}

impl Graces {
    /// Returns the time of a whole close, in milliseconds.
    #[must_use]
    pub const fn total_ms(&self) -> u64 {
        self.eof_ms.saturating_add(self.term_ms).saturating_add(self.kill_ms)
    }
}

impl Default for Graces {
    fn default() -> Self {
        Self { eof_ms: 2_000, term_ms: 3_000, kill_ms: 5_000 }
    }
}

/// Answers to requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The tree runs. Also the answer to a repeated request for a running tree.
    Spawned(LeaseInfo),
    /// Attached; output follows as notices from the requested offset.
    Attached(Attached),
    /// The message is written to the pipe.
    Written {
        /// Number of the message.
        seq: u64,
    },
    /// Done, without a result.
    Done,
    /// Kept output of a terminal.
    Tail(Tail),
    /// The lease is closing, or had ended before.
    Closing {
        /// Current state of the lease.
        state: LeaseState,
    },
    /// Leases that the client may see, oldest first.
    Leases(Vec<LeaseInfo>),
    /// Comparison of recorded and current evidence.
    Evidence(EvidenceReport),
    /// Action for each lease, done or only planned.
    Reaped(Vec<ReapLine>),
    /// State of the supervisor.
    Status(Status),
    /// Result of a file request. Since version 2.
    Files(Result<FilesReply, FilesError>),
    /// A piece of a session log.
    SessionLog(LogPiece),
    /// Figures for metrics.
    Figures(Vec<Figure>),
}

/// Piece of a session log, in whole lines. The next one begins at `offset` plus the length of `bytes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPiece {
    /// Offset of the first byte.
    pub offset: u64,
    /// The lines.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// Offset behind the last byte of the whole log.
    pub end: u64,
}

/// Stream positions of a lease. H7: a client whose own offsets are behind these has lost state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// State of the lease.
    pub state: LeaseState,
    /// Offset of the first output byte still kept.
    pub stdout_base: u64,
    /// One past the last output byte received from the adapter so far.
    pub stdout_end: u64,
    /// True if the adapter's output has ended; then `stdout_end` is final.
    pub stdout_eof: bool,
    /// Highest number of an input message that is completely written.
    pub stdin_written: u64,
    /// Highest number of an input message that was accepted; above `stdin_written` only while writing.
    pub stdin_accepted: u64,
    /// Exit status of the adapter, if it has ended.
    pub exit: Option<ExitStatus>,
}

/// Output of a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    /// The last bytes of the output, at most `output_bytes_max`.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// True if earlier bytes were dropped.
    pub truncated: bool,
    /// Exit status of the command, if it has ended.
    pub exit: Option<ExitStatus>,
}

crate::named! {
    /// State of a lease, named as in databases and JSON. `reserved → bound → open → closing → closed`, and `lost`
    /// from any of the first four.
    #[derive(Hash, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum LeaseState {
        /// The lease is durable; no process is known yet.
        Reserved = "reserved",
        /// Both pids are durable; the adapter is blocked before exec.
        Bound = "bound",
        /// The adapter runs.
        Open = "open",
        /// The tree is being ended, or has survivors.
        Closing = "closing",
        /// The tree is verified to be gone.
        Closed = "closed",
        /// The tree is gone without an orderly end, or its ownership cannot be proved.
        Lost = "lost",
    }
}

impl LeaseState {
    /// True if nothing more happens to the process tree.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Closed | Self::Lost)
    }
}

/// Public description of a lease, for users and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// Id of the lease.
    pub lease_id: LeaseId,
    /// Gateway that owns the lease.
    pub gateway_instance_id: GatewayInstanceId,
    /// The user that the gateway ran as.
    pub owner_uid: u32,
    /// Session that the lease serves.
    pub session_key: SessionKey,
    /// Kind of the lease.
    pub kind: LeaseKind,
    /// State of the lease.
    pub state: LeaseState,
    /// Reason of the state, as text; may be empty.
    pub state_reason: String,
    /// Pid of the wrapper, once bound.
    pub wrapper_pid: Option<i32>,
    /// Pid of the adapter, once bound.
    pub adapter_pid: Option<i32>,
    /// Process group of the adapter, once bound.
    pub pgid: Option<i32>,
    /// Session of the wrapper, once bound.
    pub sid: Option<i32>,
    /// Path of the wrapper's executable.
    pub wrapper_path: String,
    /// SHA-256 of the argument vector, in hex.
    pub command_hash: String,
    /// Containment level of the tree (`R1` … `R4`).
    pub rung: String,
    /// Time of the reservation, milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// Exit status of the adapter, if it has ended.
    pub exit: Option<ExitStatus>,
    /// Offset one past the last received output byte.
    pub stdout_end: u64,
    /// Offset of the first output byte not yet acknowledged.
    pub stdout_acked: u64,
    /// Highest number of a written input message.
    pub stdin_written: u64,
    /// Resident memory of the tree, in bytes. Only in detailed lists, for a living tree.
    pub memory_bytes: Option<u64>,
    /// Number of processes of the tree. Only in detailed lists, for a living tree.
    pub tree_size: Option<u64>,
    /// Output and input buffered by the supervisor in memory and on disk, in bytes.
    pub buffered_bytes: u64,
    /// Path of the tree's cgroup, if it has one.
    pub cgroup_path: Option<String>,
}

/// Event of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A piece of the adapter's output.
    Output {
        /// Lease of the output.
        lease_id: LeaseId,
        /// Offset of its first byte.
        offset: u64,
        /// The bytes, at most [`OUTPUT_BYTES_MAX`].
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The adapter ended and its output is complete: no output follows `end_offset`.
    Exited {
        /// Lease of the adapter.
        lease_id: LeaseId,
        /// Exit status of the adapter.
        status: ExitStatus,
        /// Offset one past the last output byte; final.
        end_offset: u64,
        /// Highest number of a completely written input message.
        stdin_written: u64,
        /// Empty since version 2: standard error is in the session log.
        stderr_tail: String,
    },
    /// The state of a lease changed.
    LeaseChanged {
        /// Lease that changed.
        lease_id: LeaseId,
        /// The new state.
        state: LeaseState,
        /// Reason, as text.
        reason: String,
    },
}
