//! The contract between gateway and supervisor: every message, on one page.
//!
//! # Version history
//! - **1**: Hello/Welcome, Spawn, Attach, Input, Ack, Tail, CloseLease, Release, ListLeases, Verify, Reap, Status,
//!   Shutdown, Upgrade; notices Output, Exited, LeaseChanged.
//! - **2**: a gateway sends Marks right after Hello, and acting requests with its epoch (Act); AckSynced in place of
//!   Ack; RolledBack; Files; SessionLog in place of the `stderr_tail` of Exited, which is empty. Version 1 is still
//!   spoken with gateways that know no other.
//!
//! # Rules
//! Enums are append-only: bincode writes a variant by its position, so an inserted one would silently turn one
//! message into another. The golden bytes in `tests/golden.rs` hold the positions. No recursive types, no
//! element types of size zero, no `serde` attributes that need a self-describing format (see [`crate::wire`]).
//!
//! There is no Cancel here. Cancelling a turn is ACP between gateway and agent and touches no process.
//!
//! A connection starts with [`ToSupervisor::Hello`], which a gateway of version 2 follows up with
//! [`ToSupervisor::Marks`] unasked; the supervisor answers [`ToClient::Welcome`], or [`ToClient::Refused`] or
//! [`ToClient::RolledBack`] and closes. After that, requests and replies are matched by number, in any order, and
//! notices come when they come.

use crate::files::{FilesError, FilesReply, FilesRequest};
use crate::ids::{GatewayInstanceId, LeaseId, SessionKey, StartId};
use crate::launch::ExitStatus;
use crate::redact::Secret;
pub use crate::refusal::{Refusal, RefusalCode};
pub use crate::report::{EvidenceFact, EvidenceReport, LastUpgrade, ReapLine, Status};
use serde::{Deserialize, Serialize};

/// The oldest protocol version that this build speaks.
pub const VERSION_MIN: u16 = 1;
/// The newest protocol version that this build speaks.
pub const VERSION_MAX: u16 = 2;
/// The oldest version in which a gateway sends [`Marks`] and [`ToSupervisor::Act`].
pub const VERSION_MARKS: u16 = 2;
/// The largest frame, in bytes: one agent line of 32 MiB and its envelope.
pub const FRAME_BYTES_MAX: usize = 33 * 1024 * 1024;
/// Largest [`Hello`], in bytes: until it is read, anybody may be at the other end.
pub const HELLO_BYTES_MAX: usize = 64 * 1024;
/// Largest [`Marks`], in bytes: room for tens of thousands of leases.
pub const MARKS_BYTES_MAX: usize = 1024 * 1024;
/// The largest piece of output in one [`Notice::Output`], in bytes.
pub const OUTPUT_BYTES_MAX: usize = 256 * 1024;

/// From a client (a gateway or the admin CLI) to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSupervisor {
    /// Opens the connection.
    Hello(Hello),
    /// Asks for something; answered by a reply with the same number.
    Request {
        /// Chosen by the client, unique among its unanswered requests.
        id: u64,
        /// What is asked.
        body: Request,
    },
    /// Durable progress of a gateway, right after its Hello. Since version 2.
    Marks(Marks),
    /// A request of a gateway that changes something ([`Request::acts`]); answered like [`ToSupervisor::Request`].
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

/// From the supervisor to a client.
#[expect(clippy::large_enum_variant, reason = "a message is moved once, from the socket to its handler")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// The connection is open.
    Welcome(Welcome),
    /// The connection is not opened, or is ended; the supervisor closes it.
    Refused(Refusal),
    /// Answers a request.
    Reply {
        /// The number of the request.
        id: u64,
        /// The answer, or why there is none.
        result: Result<Reply, Refusal>,
    },
    /// News about a lease of this client.
    Notice(Notice),
    /// The gateway is not let in because its database went back in time; the supervisor closes the connection. Since
    /// version 2.
    RolledBack(Rollback),
}

/// Who connects, and what it speaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest version the client speaks.
    pub version_min: u16,
    /// Newest version the client speaks.
    pub version_max: u16,
    /// Optional abilities of the client, by name; unknown ones are ignored.
    pub features: Vec<String>,
    /// As whom it connects.
    pub role: Role,
    /// What the supervisor wrote into a file that only those who may connect can read (H9).
    pub secret: Option<Secret>,
}

/// As whom a client connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A gateway: sees and commands its own leases only.
    Gateway {
        /// The installation.
        instance_id: GatewayInstanceId,
        /// Grows with every start of the gateway; the newest one fences off older connections (H5).
        epoch: u64,
        /// Where its state lives, so that a copied state directory is recognised.
        home: Home,
    },
    /// A person at the admin CLI: sees every lease. Root, the supervisor's own user and the admin group.
    Admin,
}

/// Where a gateway's state directory is: another value under the same instance id is a copy of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// `/etc/machine-id`, or empty where there is none.
    pub machine_id: String,
    /// Device number of the state directory.
    pub dev: u64,
    /// Inode number of the state directory.
    pub ino: u64,
}

/// Durable progress of a gateway: what its database holds on disk at the time of connecting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// Random id of this start of the gateway. The same epoch under another start id comes from a database that went
    /// back in time.
    pub start_id: StartId,
    /// Highest event id that is synced; 0 before the first event.
    pub event_id: u64,
    /// First output byte that is not yet committed, for each agent lease that has not ended in the database.
    pub offsets: Vec<(LeaseId, u64)>,
    /// The operator accepted the loss of newer data: marks behind the recorded ones replace them, provided that the
    /// epoch is above the recorded one.
    pub accepts_loss: bool,
}

/// The recorded progress of a gateway whose database is behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// Values that are behind, and the next step for the operator.
    pub refusal: Refusal,
    /// Highest epoch on record.
    pub epoch: u64,
    /// Highest event id on record.
    pub event_id: u64,
    /// Living agents of the gateway.
    pub agents: u64,
    /// Until when they are kept while the operator decides, milliseconds since the Unix epoch.
    pub kept_until_ms: u64,
}

/// The supervisor's answer to [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version both will speak: the newest that both know.
    pub version: u16,
    /// Optional abilities of the supervisor, by name.
    pub features: Vec<String>,
    /// The supervisor's pid, for people.
    pub pid: i32,
    /// Made anew at each start of the supervisor: leases of an earlier one are not served by this one.
    pub supervisor_id: String,
    /// Output bytes that the supervisor sends of one lease beyond what was acknowledged (H18).
    pub credit_bytes: u64,
}

/// What a client may ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Start a process tree under a new lease. Idempotent by lease id. Answered by [`Reply::Spawned`].
    Spawn(Spawn),
    /// Receive the lease's output from `from_offset` on, as notices. Answered by [`Reply::Attached`].
    Attach {
        /// Which lease.
        lease_id: LeaseId,
        /// The first byte wanted: the client's committed offset.
        from_offset: u64,
    },
    /// Write one message to the adapter's standard input, once. Answered by [`Reply::Written`] when its last
    /// byte is in the pipe. A repeated number with the same bytes is a no-op with the same answer.
    Input {
        /// Which lease.
        lease_id: LeaseId,
        /// Number of the message, from 1, without gaps.
        seq: u64,
        /// The message, its newline included.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Everything before `offset` is committed: the supervisor may forget it. Answered by [`Reply::Done`].
    Ack {
        /// Which lease.
        lease_id: LeaseId,
        /// First byte that is not yet committed.
        offset: u64,
    },
    /// The kept output of a terminal. Answered by [`Reply::Tail`].
    Tail {
        /// Which lease.
        lease_id: LeaseId,
    },
    /// End the process tree in the orderly way: EOF, SIGTERM, SIGKILL, each with its grace; its terminals
    /// first. Answered by [`Reply::Closing`] at once; the end is [`Notice::LeaseChanged`]. Idempotent.
    CloseLease {
        /// Which lease.
        lease_id: LeaseId,
        /// Why, for the record.
        reason: String,
    },
    /// Nothing more is wanted of an ended lease: its kept output may go. Answered by [`Reply::Done`].
    Release {
        /// Which lease.
        lease_id: LeaseId,
    },
    /// The leases that the client may see. Answered by [`Reply::Leases`].
    ListLeases {
        /// Look at the living trees too: memory and number of processes.
        detail: bool,
    },
    /// Evidence about one lease beside what its record says. Answered by [`Reply::Evidence`].
    Verify {
        /// Which lease.
        lease_id: LeaseId,
    },
    /// End verified orphans, or only say what would be done. Admin only. Answered by [`Reply::Reaped`].
    Reap {
        /// Only say it.
        dry_run: bool,
    },
    /// How the supervisor is. Answered by [`Reply::Status`].
    Status,
    /// End the supervisor, unless others use it (H17). Answered by [`Reply::Done`] before it ends.
    Shutdown {
        /// The state directory that the caller believes is the supervisor's; another one is refused.
        state_dir: String,
    },
    /// Put another program in the place of this one without ending a lease (H14). Answered by [`Reply::Done`]
    /// when the new program has proved that it can go on, before connections are dropped. Refused as Shutdown is.
    Upgrade {
        /// Absolute path of the program; by default the one that this supervisor was started from.
        program: Option<String>,
        /// The state directory that the caller believes is the supervisor's; another one is refused.
        state_dir: String,
    },
    /// As [`Request::Ack`], for output whose events are synced up to `event_id`. Answered by [`Reply::Done`]. Since
    /// version 2.
    AckSynced {
        /// Which lease.
        lease_id: LeaseId,
        /// First byte that is not yet committed.
        offset: u64,
        /// Highest event id that is synced.
        event_id: u64,
    },
    /// Read, write or look up files as the lease's user does. Answered by [`Reply::Files`]. Since version 2.
    Files(FilesRequest),
    /// A piece of the log of a session: what its agents wrote to standard error, without configured secrets.
    /// Answered by [`Reply::SessionLog`]. Since version 2.
    SessionLog {
        /// Which session of the client.
        session_key: SessionKey,
        /// Position of the first line.
        from: LogFrom,
        /// Bytes of the piece at most; it never has more than [`OUTPUT_BYTES_MAX`].
        bytes_max: u64,
    },
}

impl Request {
    /// Returns true for requests that change a lease: a gateway sends them as [`ToSupervisor::Act`].
    #[must_use]
    pub const fn acts(&self) -> bool {
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
            | Self::SessionLog { .. } => false,
        }
    }
}

/// Position of a piece of a session log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogFrom {
    /// At this offset. An offset before the first byte that is kept, or behind the end (the log was removed and begun
    /// again), stands for the first byte that is kept.
    Offset(u64),
    /// At the first line that begins within so many bytes before the end.
    End(u64),
}

/// What to start.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    /// Minted and committed by the gateway beforehand.
    pub lease_id: LeaseId,
    /// The session it serves.
    pub session_key: SessionKey,
    /// What it is.
    pub kind: LeaseKind,
    /// Program and arguments; never a shell line.
    pub argv: Vec<String>,
    /// The whole environment; the two lease variables are added.
    pub env: Vec<(String, String)>,
    /// Absolute working directory.
    pub cwd: String,
    /// Absolute directories that the session works in: where the tree may write if writing is confined.
    pub roots: Vec<String>,
    /// How long each step of an orderly end may take.
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

/// What a lease is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseKind {
    /// A coding agent: stdout is relayed with offsets and back-pressure, stdin is numbered.
    Agent,
    /// A command that an agent runs (H16): stdout and stderr share one pipe, the last bytes are kept, no
    /// back-pressure; it ends with its parent.
    Terminal {
        /// The agent's lease.
        parent_lease_id: LeaseId,
        /// How many bytes of output are kept.
        output_bytes_max: u64,
    },
}

/// How long each step of an orderly end may take, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graces {
    /// From end of file on stdin to SIGTERM.
    pub eof_ms: u64,
    /// From SIGTERM to SIGKILL.
    pub term_ms: u64,
    /// From SIGKILL to naming the survivors.
    pub kill_ms: u64,
}

impl Default for Graces {
    fn default() -> Self {
        Self { eof_ms: 2_000, term_ms: 3_000, kill_ms: 5_000 }
    }
}

/// Answers to requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The tree runs (or ran already, when the request was a repetition).
    Spawned(LeaseInfo),
    /// Output follows as notices, from the offset that was asked.
    Attached(Attached),
    /// The message is in the pipe.
    Written {
        /// Its number.
        seq: u64,
    },
    /// Done; nothing to tell.
    Done,
    /// The kept output of a terminal.
    Tail(Tail),
    /// The end has begun, or had happened.
    Closing {
        /// The lease's state now.
        state: LeaseState,
    },
    /// The leases that the client may see, oldest first.
    Leases(Vec<LeaseInfo>),
    /// Evidence beside record.
    Evidence(EvidenceReport),
    /// What was, or would be, done about each lease.
    Reaped(Vec<ReapLine>),
    /// How the supervisor is.
    Status(Status),
    /// Result of a file request. Since version 2.
    Files(Result<FilesReply, FilesError>),
    /// A piece of a session log.
    SessionLog(LogPiece),
}

/// A piece of a session log, in whole lines. The next one begins at `offset` plus the length of `bytes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPiece {
    /// Offset of the first byte.
    pub offset: u64,
    /// The lines.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// Offset behind the last byte of the log.
    pub end: u64,
}

/// Where a lease's streams stand (H7: a client that finds itself behind these has lost its own state).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// State of the lease.
    pub state: LeaseState,
    /// First output byte still kept.
    pub stdout_base: u64,
    /// One past the last output byte received from the adapter so far.
    pub stdout_end: u64,
    /// Whether the adapter's output has ended, so that `stdout_end` is final.
    pub stdout_eof: bool,
    /// Highest number of an input message that is wholly written.
    pub stdin_written: u64,
    /// Highest number of an input message that was accepted; above `stdin_written` only while writing.
    pub stdin_accepted: u64,
    /// How the adapter ended, once it has.
    pub exit: Option<ExitStatus>,
}

/// What a terminal has printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    /// The last bytes of it, at most `output_bytes_max`.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// Whether earlier bytes were dropped.
    pub truncated: bool,
    /// How the command ended, once it has.
    pub exit: Option<ExitStatus>,
}

/// Life of a lease. `reserved → bound → open → closing → closed`, and `lost` from any of the first four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LeaseState {
    /// The lease is durable; no process is known.
    Reserved,
    /// Both pids are durable; the adapter is blocked before exec.
    Bound,
    /// The adapter runs.
    Open,
    /// The tree is being ended, or a survivor is still there.
    Closing,
    /// The tree is verified gone.
    Closed,
    /// The tree is gone, or cannot be proved ours, without an orderly end.
    Lost,
}

impl LeaseState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Reserved, Self::Bound, Self::Open, Self::Closing, Self::Closed, Self::Lost];

    /// The name in databases and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Bound => "bound",
            Self::Open => "open",
            Self::Closing => "closing",
            Self::Closed => "closed",
            Self::Lost => "lost",
        }
    }

    /// Whether nothing more will happen to the process tree.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Closed | Self::Lost)
    }
}

impl std::fmt::Display for LeaseState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One lease as people and programs see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// The lease.
    pub lease_id: LeaseId,
    /// Whose it is.
    pub gateway_instance_id: GatewayInstanceId,
    /// The user that the gateway ran as.
    pub owner_uid: u32,
    /// The session it serves.
    pub session_key: SessionKey,
    /// What it is for.
    pub kind: LeaseKind,
    /// Where it is in its life.
    pub state: LeaseState,
    /// Why it is there, in words; empty when there is nothing to say.
    pub state_reason: String,
    /// Pid of the wrapper, once bound.
    pub wrapper_pid: Option<i32>,
    /// Pid of the adapter, once bound.
    pub adapter_pid: Option<i32>,
    /// Process group of the adapter, once bound.
    pub pgid: Option<i32>,
    /// Session of the wrapper, once bound.
    pub sid: Option<i32>,
    /// The file that the wrapper was started from.
    pub wrapper_path: String,
    /// SHA-256 of the argument vector, in hex.
    pub command_hash: String,
    /// Which rung of the supervision ladder holds the tree (`R1` … `R4`).
    pub rung: String,
    /// When it was reserved, milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// How the adapter ended, once it has.
    pub exit: Option<ExitStatus>,
    /// One past the last output byte received.
    pub stdout_end: u64,
    /// First output byte not yet acknowledged.
    pub stdout_acked: u64,
    /// Highest input number written.
    pub stdin_written: u64,
    /// Resident memory of the tree in bytes, when asked of a living one.
    pub memory_bytes: Option<u64>,
    /// How many processes the tree has, when asked of a living one.
    pub tree_size: Option<u64>,
    /// Output and input that the supervisor holds of it, in bytes, in memory and on disk.
    pub buffered_bytes: u64,
    /// The control group of the tree, where there is one.
    pub cgroup_path: Option<String>,
}

/// News about a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A piece of the adapter's output.
    Output {
        /// Which lease.
        lease_id: LeaseId,
        /// Offset of its first byte.
        offset: u64,
        /// The bytes, at most [`OUTPUT_BYTES_MAX`].
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The adapter ended and its output is complete: nothing follows `end_offset`.
    Exited {
        /// Which lease.
        lease_id: LeaseId,
        /// How it ended.
        status: ExitStatus,
        /// One past the last output byte there will ever be.
        end_offset: u64,
        /// Highest input number wholly written.
        stdin_written: u64,
        /// Empty since version 2: standard error is in the log of the session.
        stderr_tail: String,
    },
    /// A lease changed its state.
    LeaseChanged {
        /// Which lease.
        lease_id: LeaseId,
        /// The new state.
        state: LeaseState,
        /// Why, in words.
        reason: String,
    },
}
