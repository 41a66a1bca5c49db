//! Responses about leases, checks of the installation, and settled permission requests.

use crate::api::PermissionView;
use crate::rows::{PermissionRow, PermissionState, ResolvedBy};
use acp_shared::ids::{LeaseId, SessionKey};
use acp_shared::protocol::{EvidenceReport, LeaseInfo, LeaseKind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/hosts`: a machine that runs agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Name; `local` is the gateway's machine.
    pub name: String,
    /// Socket or address of its supervisor.
    pub address: String,
    /// True while its supervisor answers.
    pub connected: bool,
    /// Description for people; the reason if it is not connected.
    pub detail: String,
    /// Labels for `agents.NAME.host_labels`.
    pub labels: Vec<String>,
    /// Number of living agents of all gateways at the last reading; 0 if only the gateway's machine runs agents.
    pub agents: u64,
    /// Memory of the machine, in bytes; 0 if it is unknown.
    pub memory_bytes: u64,
}

/// `GET /v1/leases`: a process tree that a supervisor holds for the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseView {
    /// Id of the lease.
    #[schema(value_type = String)]
    pub lease_id: LeaseId,
    /// Session that the lease serves.
    #[schema(value_type = String)]
    pub session_key: SessionKey,
    /// Host of the process tree; `local` is the gateway's machine.
    pub host: String,
    /// `agent` or `terminal`.
    pub kind: String,
    /// Lease of the agent that opened the terminal; absent for an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub parent_lease_id: Option<LeaseId>,
    /// `reserved`, `bound`, `open`, `closing`, `closed` or `lost`.
    pub state: String,
    /// Reason of the state; may be empty.
    pub state_reason: String,
    /// Pid of the wrapper; null before it is bound.
    pub wrapper_pid: Option<i32>,
    /// Pid of the agent or the terminal's command; null before it is bound.
    pub adapter_pid: Option<i32>,
    /// Containment level of the tree: `R1`, `R2` or `R3`.
    pub rung: String,
    /// Control group of the tree; null without one.
    pub cgroup_path: Option<String>,
    /// Time of the start, milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// Resident memory of a living tree, in bytes.
    pub memory_bytes: Option<u64>,
    /// Number of processes of a living tree.
    pub tree_size: Option<u64>,
    /// Output and input that the supervisor holds, in bytes.
    pub buffered_bytes: u64,
}

impl LeaseView {
    /// Creates the description of a lease on this host.
    #[must_use]
    pub fn new(info: LeaseInfo, host: String) -> Self {
        let (kind, parent_lease_id) = match info.kind {
            LeaseKind::Agent => ("agent", None),
            LeaseKind::Terminal { parent_lease_id, .. } => ("terminal", Some(parent_lease_id)),
        };
        Self {
            lease_id: info.lease_id,
            session_key: info.session_key,
            host,
            kind: kind.to_owned(),
            parent_lease_id,
            state: info.state.to_string(),
            state_reason: info.state_reason,
            wrapper_pid: info.wrapper_pid,
            adapter_pid: info.adapter_pid,
            rung: info.rung,
            cgroup_path: info.cgroup_path,
            started_at_ms: info.started_at_ms,
            memory_bytes: info.memory_bytes,
            tree_size: info.tree_size,
            buffered_bytes: info.buffered_bytes,
        }
    }
}

/// `GET /v1/leases/{id}`: the record of a lease and the current state of its processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvidenceView {
    /// The lease.
    pub lease: LeaseView,
    /// Each recorded fact with its value now.
    pub facts: Vec<FactView>,
    /// `owned`, `gone`, `not_ours` or `unknown`.
    pub verdict: String,
    /// Reason of the verdict.
    pub why: String,
    /// Processes of the tree.
    pub tree: Vec<ProcessView>,
}

/// Recorded fact about a process, and its value now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FactView {
    /// `wrapper` or `adapter`.
    pub subject: String,
    /// Name of the fact.
    pub name: String,
    /// Recorded value; may be empty.
    pub recorded: String,
    /// Current value; empty if it cannot be read.
    pub live: String,
    /// True if both are equal; null if one is missing.
    pub agrees: Option<bool>,
}

/// Process of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessView {
    /// Process id.
    pub pid: i32,
    /// Name of its program.
    pub name: String,
}

impl EvidenceView {
    /// Creates the description of a lease on this host, and of its processes.
    #[must_use]
    pub fn new(report: EvidenceReport, host: String) -> Self {
        let facts = report.facts.into_iter().map(|fact| FactView {
            subject: fact.subject,
            name: fact.name,
            recorded: fact.recorded,
            live: fact.live,
            agrees: fact.agrees,
        });
        Self {
            lease: LeaseView::new(report.lease, host),
            facts: facts.collect(),
            verdict: report.verdict,
            why: report.why,
            tree: report.tree.into_iter().map(|(pid, name)| ProcessView { pid, name }).collect(),
        }
    }
}

/// `GET /v1/doctor`: a check of the installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckView {
    /// Subject of the check.
    pub name: String,
    /// `ok`, `note` or `failed`.
    pub verdict: String,
    /// Finding; for a failure also the next step.
    pub detail: String,
}

/// `GET /v1/audit`: a settled permission request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    /// Session of the request.
    #[schema(value_type = String)]
    pub session_key: SessionKey,
    /// The request as it was asked.
    #[serde(flatten)]
    pub permission: PermissionView,
    /// `answered`, or `expired` if it ended without an answer.
    #[schema(value_type = String)]
    pub state: PermissionState,
    /// Id of the chosen option; null without one.
    pub option_id: Option<String>,
    /// Name of the chosen option.
    pub option_name: Option<String>,
    /// Person who answered; null without one.
    pub by: Option<String>,
    /// Cause of a settlement without a person, such as `policy` or `deadline`.
    pub without: Option<String>,
}

impl From<PermissionRow> for AuditView {
    fn from(row: PermissionRow) -> Self {
        let (by, without) = match &row.resolved_by {
            Some(ResolvedBy::Person(name)) => (Some(name.clone()), None),
            Some(ResolvedBy::Auto(cause)) => (None, Some(cause.to_string())),
            None => (None, None),
        };
        Self {
            session_key: row.session_key.clone(),
            state: row.state,
            option_id: row.option_id.clone(),
            option_name: row.option_name(),
            by,
            without,
            permission: row.into(),
        }
    }
}
