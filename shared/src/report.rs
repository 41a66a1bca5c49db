//! Reports of the supervisor for people: evidence about leases, what a reap does, the supervisor's own state, and
//! errors with their causes.

use crate::ids::{GatewayInstanceId, LeaseId};
use crate::protocol::{LeaseInfo, LeaseState};
use serde::{Deserialize, Serialize};

/// Returns an error and its causes as one text.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Comparison of a lease's record with current evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceReport {
    /// The lease.
    pub lease: LeaseInfo,
    /// One line for each recorded fact.
    pub facts: Vec<EvidenceFact>,
    /// Verdict: `owned`, `not_ours`, `gone` or `unknown`.
    pub verdict: String,
    /// Reason of the verdict.
    pub why: String,
    /// Living processes of the tree: pid and name.
    pub tree: Vec<(i32, String)>,
}

/// Recorded fact and its current value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceFact {
    /// Process of the fact: `wrapper` or `adapter`.
    pub subject: String,
    /// Name of the fact: `boot_id`, `start_ticks`, `pidfs_inode` …
    pub name: String,
    /// Recorded value; empty when nothing was recorded.
    pub recorded: String,
    /// Current value; empty when it cannot be read.
    pub live: String,
    /// The two values are equal; `None` when one of them is missing.
    pub agrees: Option<bool>,
}

/// Action of a reap for one lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReapLine {
    /// The lease.
    pub lease_id: LeaseId,
    /// Its state before.
    pub state: LeaseState,
    /// `signal`, `mark_lost`, `mark_closed` or `leave`.
    pub action: String,
    /// Pids to be signalled.
    pub pids: Vec<i32>,
    /// Reason of the action.
    pub why: String,
}

/// State of the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Process id of the supervisor.
    pub pid: i32,
    /// Package version of the supervisor.
    pub version: String,
    /// Random id of this start.
    pub supervisor_id: String,
    /// State directory of the supervisor.
    pub state_dir: String,
    /// Time of its start, milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// Containment level in use.
    pub rung: String,
    /// Containment levels that this machine does not support, each with the reason and the remedy.
    pub rungs_missing: Vec<(String, String)>,
    /// Kernel features by name, as probed at start.
    pub abilities: Vec<(String, bool)>,
    /// Leases by state.
    pub leases: Vec<(LeaseState, u64)>,
    /// Connected gateways, each with the number of its living leases.
    pub gateways: Vec<(GatewayInstanceId, u64)>,
    /// Output bytes held in rings and spools.
    pub buffered_bytes: u64,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
    /// Reason for being read-only, if it is.
    pub read_only: Option<String>,
    /// Time of the last sweep over leases without a task, milliseconds since the Unix epoch.
    pub swept_at_ms: Option<u64>,
    /// Outcome of the last upgrade, if there was one.
    pub last_upgrade: Option<LastUpgrade>,
}

/// Outcome of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastUpgrade {
    /// Time at which this program took over, milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Version before the upgrade.
    pub from_version: String,
    /// Version after the upgrade; empty if unknown.
    pub to_version: String,
    /// Number of process trees handed over.
    pub leases: u64,
    /// Duration without any relayed input or output, in milliseconds.
    pub pause_ms: u64,
    /// Reason of a failed upgrade; the old program keeps running then.
    pub error: Option<String>,
}
