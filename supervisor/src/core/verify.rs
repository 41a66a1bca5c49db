//! Verification of process identity: a pure function of a lease's record and current evidence.
//!
//! A recorded fact that cannot be read now gives [`Verdict::Unknown`], unless there is stronger proof (the
//! same pidfs inode, an own child that was never reaped, or the control group of the lease). Only
//! [`Verdict::Owned`] contains a [`Verified`], only this module (and its [`legacy`] part) creates one, and
//! only a [`Verified`] process can be signalled.

pub mod legacy;

use crate::core::cgroup::is_within;
use crate::core::lease::{PidScope, ProcessRecord, ScopeRelation};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::{ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID};
use std::collections::HashSet;

/// Id of the open process handle through which evidence was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HandleId(pub u64);

/// Proof that the process behind one handle belongs to a lease. Only this module creates values of this type.
#[derive(Debug, PartialEq, Eq)]
pub struct Verified {
    handle: HandleId,
}

impl Verified {
    /// Returns the verified handle; the proof is valid for no other.
    #[must_use]
    pub const fn handle(&self) -> HandleId {
        self.handle
    }
}

/// Life state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// Running, sleeping or stopped.
    Running,
    /// Dead but not reaped yet.
    Zombie,
    /// No such process.
    Gone,
    /// State unreadable.
    Unreadable,
}

/// Lease marker in the environment of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marker {
    /// Both variables occur exactly once.
    Pair {
        /// Lease id.
        lease: String,
        /// Gateway instance id.
        gateway: String,
    },
    /// At least one of the variables is missing.
    Missing,
    /// A variable occurs twice. This is no evidence, since programs disagree on which one counts.
    Ambiguous,
    /// The environment is unreadable.
    Unreadable,
}

impl Marker {
    /// Parses the marker from the NUL-separated text of `/proc/PID/environ`. Names must match exactly.
    #[must_use]
    pub fn parse(environ: &[u8]) -> Self {
        let find = |name: &str| {
            let mut values = environ.split(|b| *b == 0).filter_map(|entry| {
                let (key, value) = entry.split_at_checked(name.len())?;
                let value = value.strip_prefix(b"=")?;
                (key == name.as_bytes()).then_some(value)
            });
            (values.next(), values.next().is_some())
        };
        match (find(ENV_LEASE_ID), find(ENV_GATEWAY_INSTANCE_ID)) {
            ((_, true), _) | (_, (_, true)) => Self::Ambiguous,
            ((Some(lease), false), (Some(gateway), false)) => Self::Pair {
                lease: String::from_utf8_lossy(lease).into_owned(),
                gateway: String::from_utf8_lossy(gateway).into_owned(),
            },
            ((None, false), _) | (_, (None, false)) => Self::Missing,
        }
    }

    /// True if the marker names this lease and this gateway.
    #[must_use]
    pub fn names(&self, lease_id: LeaseId, gateway: GatewayInstanceId) -> bool {
        matches!(self, Self::Pair { lease, gateway: of }
            if *lease == lease_id.to_string() && *of == gateway.to_string())
    }
}

/// Current facts about one process, all read through one handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// Process handle; `None` if no process could be opened.
    pub handle: Option<HandleId>,
    /// Examined pid.
    pub pid: i32,
    /// Scope in which pids are valid here; `None` if unreadable.
    pub scope: Option<PidScope>,
    /// Life state of the process.
    pub life: ProcessState,
    /// Start time, in clock ticks since boot.
    pub start_ticks: Option<u64>,
    /// Parent process id.
    pub ppid: Option<i32>,
    /// Process group.
    pub pgid: Option<i32>,
    /// Session.
    pub sid: Option<i32>,
    /// pidfs inode.
    pub inode: Option<u64>,
    /// Lease marker in the environment.
    pub marker: Marker,
    /// Executable file.
    pub exe: Option<String>,
    /// Control group (v2).
    pub cgroup: Option<String>,
    /// True if the process is a child of this supervisor, never reaped, with a handle opened at its creation.
    pub own_child: bool,
}

/// Recorded identity of one process of a lease.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// Recorded process.
    pub process: ProcessRecord,
    /// Scope in which the recorded pid is valid.
    pub scope: &'a PidScope,
    /// Lease id.
    pub lease_id: LeaseId,
    /// Gateway of the lease.
    pub gateway: GatewayInstanceId,
    /// Control group that was created for the lease, if any.
    pub cgroup: Option<&'a str>,
}

impl Claim<'_> {
    /// True if the process is in the control group of the lease, which holds no other processes.
    fn is_in_cgroup(&self, now: &Evidence) -> bool {
        self.cgroup.zip(now.cgroup.as_deref()).is_some_and(|(leaf, group)| is_within(group, leaf))
    }
}

/// Processes excluded from all signals, regardless of evidence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SignalGuard {
    /// This process and its ancestors.
    pub own_ancestry: HashSet<i32>,
    /// Roots of the other leases.
    pub other_roots: HashSet<i32>,
}

impl SignalGuard {
    /// Returns why this pid is never signalled; `None` if it may be.
    #[must_use]
    pub fn forbids(&self, pid: i32) -> Option<&'static str> {
        if pid <= 1 {
            return Some("no lease can have this pid");
        }
        if self.own_ancestry.contains(&pid) {
            return Some("it is the supervisor or an ancestor of it");
        }
        self.other_roots.contains(&pid).then_some("it is the root of another lease")
    }
}

/// Conclusion from the evidence.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The process of the lease, which is running.
    Owned(Verified),
    /// The pid belongs to another process now.
    NotOurs(&'static str),
    /// The process of the lease is dead.
    Gone(&'static str),
    /// Undecidable; the process is left alone.
    Unknown(&'static str),
}

impl Verdict {
    /// Returns the name used in reports.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Owned(_) => "owned",
            Self::NotOurs(_) => "not_ours",
            Self::Gone(_) => "gone",
            Self::Unknown(_) => "unknown",
        }
    }

    /// Returns the reason, as text.
    #[must_use]
    pub const fn why(&self) -> &'static str {
        match self {
            Self::Owned(_) => "the record matches the running processes",
            Self::NotOurs(why) | Self::Gone(why) | Self::Unknown(why) => why,
        }
    }
}

/// The start time of a process differs between time namespaces, so neither equal nor different start times
/// are evidence.
const OTHER_CLOCK: &str =
    "its start time was recorded in another time namespace, and there is no inode to compare";

/// Result of comparing scope, pid and process identity alone.
enum IdentityMatch {
    Same,
    SameTicks,
    Gone(&'static str),
    Other(&'static str),
    Elsewhere(&'static str),
    Unknown(&'static str),
}

/// Compares a recorded process to the evidence. `proven`: stronger proof of ownership exists and replaces
/// recorded facts that cannot be read now.
fn identity(recorded: ProcessRecord, scope: &PidScope, now: &Evidence, proven: bool) -> IdentityMatch {
    let Some(here) = &now.scope else {
        return IdentityMatch::Unknown("boot id or pid namespace cannot be read");
    };
    match scope.relation_to(here) {
        ScopeRelation::Here => {}
        ScopeRelation::EarlierBoot => return IdentityMatch::Gone("the machine has been rebooted since"),
        ScopeRelation::Elsewhere(why) => return IdentityMatch::Elsewhere(why),
    }
    if recorded.pid != now.pid {
        return IdentityMatch::Other("another pid was examined");
    }
    match now.life {
        ProcessState::Gone => return IdentityMatch::Gone("there is no such process"),
        ProcessState::Unreadable if now.inode.is_none() => {
            return IdentityMatch::Unknown("the process cannot be read");
        }
        ProcessState::Running | ProcessState::Zombie | ProcessState::Unreadable => {}
    }
    match (recorded.inode, now.inode) {
        (Some(then), Some(now)) if then == now => return IdentityMatch::Same,
        (Some(_), Some(_)) => {
            return IdentityMatch::Other("the pid was reused by another process (pidfs inode)");
        }
        (Some(_), None) if proven => return IdentityMatch::Same,
        (Some(_), None) => {
            return IdentityMatch::Unknown("a pidfs inode was recorded and cannot be read now");
        }
        (None, _) => {}
    }
    match now.start_ticks {
        _ if proven && !scope.shares_clock(here) => IdentityMatch::Same,
        _ if !scope.shares_clock(here) => IdentityMatch::Unknown(OTHER_CLOCK),
        None if proven => IdentityMatch::Same,
        None => IdentityMatch::Unknown("the start time cannot be read"),
        Some(ticks) if ticks != recorded.start_ticks => {
            IdentityMatch::Other("the pid was reused by another process (start time)")
        }
        Some(_) if now.own_child => IdentityMatch::Same,
        Some(_) => IdentityMatch::SameTicks,
    }
}

fn owned(now: &Evidence, guard: &SignalGuard) -> Verdict {
    if now.life == ProcessState::Zombie {
        return Verdict::Gone("it is a zombie");
    }
    if let Some(why) = guard.forbids(now.pid) {
        return Verdict::NotOurs(why);
    }
    now.handle
        .map_or(Verdict::Unknown("there is no handle to it"), |handle| Verdict::Owned(Verified { handle }))
}

/// Decides whether the current process with a recorded pid is the recorded process of the lease.
#[must_use]
pub fn verify(claim: &Claim<'_>, now: &Evidence, guard: &SignalGuard) -> Verdict {
    let in_group = claim.is_in_cgroup(now);
    match identity(claim.process, claim.scope, now, now.own_child || in_group) {
        IdentityMatch::Gone(why) => Verdict::Gone(why),
        IdentityMatch::Other(why) | IdentityMatch::Elsewhere(why) => Verdict::NotOurs(why),
        IdentityMatch::Unknown(why) => Verdict::Unknown(why),
        IdentityMatch::Same => owned(now, guard),
        IdentityMatch::SameTicks if now.life == ProcessState::Zombie => Verdict::Gone("it is a zombie"),
        IdentityMatch::SameTicks if !in_group && claim.cgroup.is_some() => Verdict::Unknown(
            "it was not found in the control group of the lease, and there is no inode to compare",
        ),
        // Pid and start time are not unique: without an inode the environment must match too. If the
        // environment has no clear marker, the control group decides.
        IdentityMatch::SameTicks => match &now.marker {
            Marker::Missing | Marker::Ambiguous | Marker::Unreadable if in_group => owned(now, guard),
            marker if marker.names(claim.lease_id, claim.gateway) => owned(now, guard),
            Marker::Pair { .. } => Verdict::NotOurs("its environment names another lease"),
            Marker::Missing => Verdict::NotOurs("its environment names no lease"),
            Marker::Ambiguous => Verdict::Unknown("its environment names leases twice"),
            Marker::Unreadable => {
                Verdict::Unknown("its environment cannot be read, and there is no inode to compare")
            }
        },
    }
}

/// Returns why the recorded process is not proved dead; `None` if it is. A process that fails to prove that
/// it belongs to the lease (for example, without a marker) is not thereby proved to be another one.
#[must_use]
pub fn doubt(claim: &Claim<'_>, now: &Evidence) -> Option<&'static str> {
    match identity(claim.process, claim.scope, now, false) {
        IdentityMatch::Gone(_) | IdentityMatch::Other(_) => None,
        IdentityMatch::Same | IdentityMatch::SameTicks if now.life == ProcessState::Zombie => None,
        IdentityMatch::Elsewhere(why) | IdentityMatch::Unknown(why) => Some(why),
        IdentityMatch::Same => Some("its process is running; only verified leases are signalled"),
        IdentityMatch::SameTicks => {
            Some("a process with its pid and start time runs, but is not proved to be its own")
        }
    }
}

/// Relation through which a process without a record of its own was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership<'a> {
    /// Found as the child of a verified process that was still running after the evidence was read.
    ChildOf(i32),
    /// Found by its environment. A process older than the tree has only a copy of the marker.
    Marked {
        /// Start time of the tree's root, in clock ticks since boot of the current clock; `None` if unknown.
        since_ticks: Option<u64>,
    },
    /// Found in the control group of the lease or below.
    InCgroup(&'a str),
}

/// Reason for an unknown verdict: the marker names the lease but may be a copy.
const UNKNOWN_AGE: &str = "the age of its tree was recorded in another time namespace, so its own marker \
                           cannot be distinguished from a copy";

/// Decides whether a process belongs to the tree of a lease.
#[must_use]
pub fn verify_member(
    lease_id: LeaseId,
    gateway: GatewayInstanceId,
    membership: Membership<'_>,
    now: &Evidence,
    guard: &SignalGuard,
) -> Verdict {
    match now.life {
        ProcessState::Gone => return Verdict::Gone("there is no such process"),
        ProcessState::Zombie => return Verdict::Gone("it is a zombie"),
        ProcessState::Unreadable => return Verdict::Unknown("the process cannot be read"),
        ProcessState::Running => {}
    }
    let proven = match membership {
        Membership::ChildOf(_) if now.ppid.is_none() => {
            return Verdict::Unknown("its parent cannot be read");
        }
        Membership::ChildOf(parent) => now.ppid == Some(parent),
        Membership::Marked { .. } if !now.marker.names(lease_id, gateway) => false,
        Membership::Marked { since_ticks: None } => return Verdict::Unknown(UNKNOWN_AGE),
        Membership::Marked { since_ticks: Some(since) } => {
            now.start_ticks.is_some_and(|ticks| ticks >= since)
        }
        Membership::InCgroup(leaf) => now.cgroup.as_deref().is_some_and(|group| is_within(group, leaf)),
    };
    if proven { owned(now, guard) } else { Verdict::NotOurs("nothing proves that it belongs to the lease") }
}

/// Life state of the supervisor that spawned a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnerState {
    /// Verified dead: its processes are orphans.
    Dead,
    /// Alive, and responsible for the lease.
    Alive,
    /// Undecidable: the lease is left alone.
    Unknown,
}

/// Evaluates the evidence about the supervisor that a lease names.
#[must_use]
pub fn spawner_state(supervisor: ProcessRecord, scope: &PidScope, now: &Evidence) -> SpawnerState {
    match identity(supervisor, scope, now, now.own_child) {
        IdentityMatch::Gone(_) => SpawnerState::Dead,
        IdentityMatch::Other(_) => SpawnerState::Dead,
        IdentityMatch::Elsewhere(_) | IdentityMatch::Unknown(_) => SpawnerState::Unknown,
        IdentityMatch::Same | IdentityMatch::SameTicks if now.life == ProcessState::Zombie => {
            SpawnerState::Dead
        }
        IdentityMatch::Same | IdentityMatch::SameTicks => SpawnerState::Alive,
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
