//! In-place upgrade (H14): hands all volatile state of a running supervisor to the next program image in the
//! same process. Pid, children, open descriptors and the subreaper attribute survive `execve`; the rest is
//! passed in a sealed memory file.
//!
//! ```text
//! Request::Upgrade ─ trial of the new program ─ no spawn in flight ─ lease tasks pause ─ clients disconnected
//!    ─ relays and lease tasks exported ─ memory file ─ proof by the new program that the file is readable
//!    ─ execve ─ Handover ─ import
//!               └ on failure: the same values are imported in this image
//! ```
//! Both the new image and an old one that could not leave continue with `Owner::import`. No pipe is read or
//! written between the export of its relay and the import; data that arrives meanwhile stays in the pipe.
//!
//! The records are JSON without unknown fields, followed by binary data, and not bincode, because the two
//! programs have different versions. A newer program can give a new field a default value. An older one
//! rejects unknown fields instead of misreading them.
//!
//! This file has the records; [`image`] writes and reads them, [`dry_run`] is the trial, [`exec`] replaces the
//! program, and [`export`] and [`import`] convert the owner.

pub(crate) mod dry_run;
pub(crate) mod exec;
pub(crate) mod export;
pub(crate) mod image;
pub(crate) mod import;

pub(crate) use exec::{ResumeError, exec_previous, number, resume, without_handover_args};
pub(crate) use export::{ExportedState, HandoverResources, Upgrade};
pub(crate) use import::{ImportedState, InheritableResources};

use crate::core::admission::Installation;
use crate::core::backoff::{AgentKey, CrashRecord};
use crate::core::containment::{Containment, KernelFeatures};
use crate::core::lease::Lease;
use crate::files::SurvivingHelper;
use crate::lease::pause::TaskState;
use crate::relay::RelayState;
use crate::sys::inherited_fd::HandoverFd;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Supervisor-wide part of the handover.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SupervisorState {
    /// Process id, which is unchanged by `execve`.
    pub(crate) pid: i32,
    /// Package version of the writer.
    pub(crate) version: String,
    /// Supervisor id. Kept, because gateways assume that a supervisor with another id does not have their
    /// leases.
    pub(crate) supervisor_id: String,
    /// Start time of the supervisor in nanoseconds of the monotonic clock, the origin of all its times.
    pub(crate) started_ns: u64,
    /// Time of the export, on the same clock.
    pub(crate) frozen_ns: u64,
    /// Kernel features and subreaper state, which are still valid on the same machine and in the same
    /// process.
    pub(crate) abilities: KernelFeatures,
    /// Containment settings: decided once and kept, whatever the configuration says now.
    pub(crate) holding: Containment,
    /// Soft and hard limits on open files that the supervisor was started with.
    pub(crate) descriptors: (Option<u64>, Option<u64>),
    /// Warnings for the operator.
    pub(crate) warnings: Vec<String>,
    /// Lock of the state directory. A `flock` belongs to the open file and is kept with the descriptor.
    pub(crate) lock: HandoverFd,
    /// Listening socket. Clients that connect meanwhile wait in the kernel.
    pub(crate) listener: HandoverFd,
    /// Path of the socket if an image of this process created the file. The last image removes it.
    pub(crate) to_remove: Option<PathBuf>,
    /// Previous program, for the case that the next one cannot start.
    pub(crate) left: HandoverFd,
    /// Reason why the next program could not start, after such a failure.
    #[serde(default)]
    pub(crate) failed: Option<String>,
    /// Records of the known gateways.
    pub(crate) installations: Vec<Installation>,
    /// Start of each gateway's absence, on the supervisor's clock.
    pub(crate) detached_at_ms: Vec<(GatewayInstanceId, u64)>,
    /// Time since then that the machine was suspended. Omitted if empty, for older images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) suspended_ms: Vec<(GatewayInstanceId, u64)>,
    /// Grace of the absences of remote cells, as promised to them. Omitted if empty, for older images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) grace_ms: Vec<(GatewayInstanceId, u64)>,
    /// End of the time for which agents of rolled-back gateways are kept, on the supervisor's clock.
    #[serde(default)]
    pub(crate) kept_until_ms: Vec<(GatewayInstanceId, u64)>,
    /// Crash records of agents.
    #[serde(default)]
    pub(crate) crashes: Vec<(AgentKey, CrashRecord)>,
    /// Number of stop requests received meanwhile.
    pub(crate) stops: u32,
    /// File helpers that did not end in time. Omitted if empty, for older images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) helpers: Vec<SurvivingHelper>,
    /// Wall clock at the start of the supervisor.
    #[serde(default)]
    pub(crate) wall_at_start_ms: Option<u64>,
    /// End times of leases whose end this supervisor has seen, on the supervisor's clock.
    #[serde(default)]
    pub(crate) ended_seen_ms: Option<Vec<(LeaseId, u64)>>,
}

/// Handover of one lease.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EntryState {
    /// Row of the lease.
    pub(crate) lease: Lease,
    /// True if a process of the tree survives SIGKILL.
    pub(crate) stuck: bool,
    /// Deadline and reason of a requested end that waits for terminals.
    pub(crate) close_at_ms: Option<(u64, String)>,
    /// Time at which the adapter began to run, on the supervisor's clock.
    #[serde(default)]
    pub(crate) open_since_ms: u64,
    /// State of the lease task while it is running.
    pub(crate) task: Option<TaskState>,
    /// State of the relay while output is kept.
    pub(crate) relay: Option<RelayState>,
}

/// Complete handover.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) head: SupervisorState,
    pub(crate) entries: Vec<EntryState>,
}

impl Handover {
    /// Returns all descriptors in the handover.
    pub(crate) fn descriptors_mut(&mut self) -> Vec<&mut HandoverFd> {
        let mut all = vec![&mut self.head.lock, &mut self.head.listener, &mut self.head.left];
        for entry in &mut self.entries {
            all.extend(entry.task.as_mut().and_then(|task| task.control.as_mut()));
            all.extend(entry.relay.iter_mut().flat_map(RelayState::descriptors_mut));
        }
        all
    }

    /// Returns the number of running process trees.
    pub(crate) fn living_leases(&self) -> usize {
        self.entries.iter().filter(|entry| entry.task.is_some()).count()
    }
}
