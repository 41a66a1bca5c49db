//! Refusals of requests: a code for programs, a message for people, and a retry delay.

use serde::{Deserialize, Serialize};

/// Refusal of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Refusal {
    /// The kind of refusal, for programs.
    pub code: RefusalCode,
    /// Failure and next step, for people.
    pub message: String,
    /// Delay after which a retry makes sense, in milliseconds; `None` if a retry does not help.
    pub retry_after_ms: Option<u64>,
}

impl Refusal {
    /// Creates a refusal that a retry will not change.
    #[must_use]
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after_ms: None }
    }

    /// Sets the retry delay to `ms` milliseconds.
    #[must_use]
    pub fn retry_after(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }
}

crate::named! {
    /// Codes of refusals, named as in logs and JSON. Append-only.
    #[derive(Serialize, Deserialize)]
    pub enum RefusalCode {
        /// No common protocol version.
        VersionUnsupported = "VERSION_UNSUPPORTED",
        /// The peer's user may not connect, or may not send this request.
        NotAuthorised = "NOT_AUTHORISED",
        /// The instance id belongs to another user.
        InstanceOfOtherUser = "INSTANCE_OF_OTHER_USER",
        /// Another connection of this gateway is still alive.
        InstanceBusy = "INSTANCE_BUSY",
        /// A newer connection of this gateway took over.
        EpochStale = "EPOCH_STALE",
        /// The gateway's state directory is a copy of another one.
        CloneDetected = "CLONE_DETECTED",
        /// No such lease, or none that is visible to the client.
        LeaseUnknown = "LEASE_UNKNOWN",
        /// The lease id is already used by a different spawn.
        LeaseConflict = "LEASE_CONFLICT",
        /// The session has another agent lease whose tree is not gone yet (H5).
        SessionBusy = "SESSION_BUSY",
        /// The lease has ended.
        LeaseEnded = "LEASE_ENDED",
        /// A queue is full; the sender keeps its message and retries (H18).
        Busy = "BUSY",
        /// A repeated input number with other bytes (H7).
        SeqConflict = "SEQ_CONFLICT",
        /// An input number that leaves a gap.
        SeqGap = "SEQ_GAP",
        /// An offset outside of the kept output.
        OffsetUnavailable = "OFFSET_UNAVAILABLE",
        /// A size or count is over its limit.
        TooLarge = "TOO_LARGE",
        /// The adapter could not be started.
        SpawnFailed = "SPAWN_FAILED",
        /// A limit on leases or connections is reached.
        QuotaExceeded = "QUOTA_EXCEEDED",
        /// The agent keeps crashing; retry later.
        CrashLoop = "CRASH_LOOP",
        /// The lease store cannot be written: nothing was done.
        StoreUnavailable = "STORE_UNAVAILABLE",
        /// The supervisor is ending.
        ShuttingDown = "SHUTTING_DOWN",
        /// Other gateways have leases in this supervisor.
        InUse = "IN_USE",
        /// The message is not valid at this point.
        BadRequest = "BAD_REQUEST",
        /// Internal error of the supervisor; details are in its log.
        Internal = "INTERNAL",
        /// This machine has no usable containment level: nothing is started.
        RungUnavailable = "RUNG_UNAVAILABLE",
        /// The new program cannot take over; this one keeps running.
        UpgradeFailed = "UPGRADE_FAILED",
        /// The gateway's database is older than the supervisor's record of it.
        RolledBack = "ROLLED_BACK",
    }
}
