//! Why something was not done: a code for programs, words for people, and when to try again.

use serde::{Deserialize, Serialize};

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Refusal {
    /// The kind of refusal, for programs.
    pub code: RefusalCode,
    /// What happened and what to do next, for people.
    pub message: String,
    /// When it makes sense to try again, in milliseconds; `None` when it does not.
    pub retry_after_ms: Option<u64>,
}

impl Refusal {
    /// A refusal that trying again will not change.
    #[must_use]
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after_ms: None }
    }

    /// The same, worth another try after `ms` milliseconds.
    #[must_use]
    pub fn retry_after(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }
}

macro_rules! refusal_codes {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// The kinds of refusal. Append-only.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum RefusalCode { $($(#[$doc])+ $name,)+ }

        impl RefusalCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name in logs and JSON.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

refusal_codes! {
    /// No common protocol version.
    VersionUnsupported = "VERSION_UNSUPPORTED",
    /// The peer's user may not connect, or may not do this.
    NotAuthorised = "NOT_AUTHORISED",
    /// The instance id belongs to another user.
    InstanceOfOtherUser = "INSTANCE_OF_OTHER_USER",
    /// A living connection of this gateway exists.
    InstanceBusy = "INSTANCE_BUSY",
    /// A newer connection of this gateway took over.
    EpochStale = "EPOCH_STALE",
    /// The gateway's state directory is a copy of another one.
    CloneDetected = "CLONE_DETECTED",
    /// No such lease, or none that the client may see.
    LeaseUnknown = "LEASE_UNKNOWN",
    /// The lease id is taken by a different spawn.
    LeaseConflict = "LEASE_CONFLICT",
    /// The session has another agent lease whose tree is not gone yet (H5).
    SessionBusy = "SESSION_BUSY",
    /// The lease has ended.
    LeaseEnded = "LEASE_ENDED",
    /// A queue is full; the row stays with the sender (H18).
    Busy = "BUSY",
    /// A repeated input number with other bytes (H7).
    SeqConflict = "SEQ_CONFLICT",
    /// An input number that leaves a gap.
    SeqGap = "SEQ_GAP",
    /// An offset outside of what is kept.
    OffsetUnavailable = "OFFSET_UNAVAILABLE",
    /// A limit on size or number.
    TooLarge = "TOO_LARGE",
    /// The adapter could not be started.
    SpawnFailed = "SPAWN_FAILED",
    /// A cap on leases or connections is reached.
    QuotaExceeded = "QUOTA_EXCEEDED",
    /// The agent keeps crashing; wait.
    CrashLoop = "CRASH_LOOP",
    /// The lease store cannot be written: nothing was done.
    StoreUnavailable = "STORE_UNAVAILABLE",
    /// The supervisor is ending.
    ShuttingDown = "SHUTTING_DOWN",
    /// Other gateways have leases here.
    InUse = "IN_USE",
    /// The message makes no sense at this point.
    BadRequest = "BAD_REQUEST",
    /// A fault of the supervisor; its log says more.
    Internal = "INTERNAL",
    /// Process trees cannot be held on this machine: nothing is started.
    RungUnavailable = "RUNG_UNAVAILABLE",
    /// Another program cannot take over: this one goes on.
    UpgradeFailed = "UPGRADE_FAILED",
    /// The gateway's database went back in time.
    RolledBack = "ROLLED_BACK",
}

impl std::fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
