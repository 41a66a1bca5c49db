//! Whose process is this? A pure function from what a lease recorded and what the system says now.
//!
//! What was recorded and cannot be read now is [`Verdict::Unknown`], unless a stronger proof stands in for it (the
//! same pidfs inode, an own child that was never reaped, or the control group of the lease). Only [`Verdict::Owned`]
//! carries a [`Verified`], only this module (and its [`legacy`] part) makes one, and only a [`Verified`] can be
//! signalled.

pub mod legacy;

use crate::core::cgroup::is_within;
use crate::core::lease::{Place, ProcessRecord, Scope};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::{ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID};
use std::collections::HashSet;

/// Which open process handle a piece of evidence was read through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HandleId(pub u64);

/// Proof that the process behind one handle is ours. Made by this module alone.
#[derive(Debug, PartialEq, Eq)]
pub struct Verified {
    handle: HandleId,
}

impl Verified {
    /// The handle that was verified; the proof is good for no other.
    #[must_use]
    pub const fn handle(&self) -> HandleId {
        self.handle
    }
}

/// Whether a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It runs, sleeps or is stopped.
    Running,
    /// It is dead and waits to be reaped by its parent.
    Zombie,
    /// There is no such process.
    Gone,
    /// The system does not say.
    Unreadable,
}

/// What the environment of a process says about its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marker {
    /// Both variables, once each.
    Pair {
        /// The lease.
        lease: String,
        /// The gateway.
        gateway: String,
    },
    /// At least one of the two is missing.
    Missing,
    /// One of them occurs twice: no evidence, since programs disagree on which one counts.
    Ambiguous,
    /// The environment cannot be read.
    Unreadable,
}

impl Marker {
    /// Reads the marker from `/proc/PID/environ`: NUL-separated, compared exactly.
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

    /// Whether both variables name this lease and this gateway.
    #[must_use]
    pub fn names(&self, lease_id: LeaseId, gateway: GatewayInstanceId) -> bool {
        matches!(self, Self::Pair { lease, gateway: of }
            if *lease == lease_id.to_string() && *of == gateway.to_string())
    }
}

/// What the system says now about one process, all of it read through one handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The handle; `None` when there was nothing to open.
    pub handle: Option<HandleId>,
    /// The number that was looked at.
    pub pid: i32,
    /// Where numbers have their meaning here; `None` when that cannot be read.
    pub scope: Option<Scope>,
    /// Whether it runs.
    pub life: Life,
    /// When it started, in clock ticks since boot.
    pub start_ticks: Option<u64>,
    /// Its parent.
    pub ppid: Option<i32>,
    /// Its process group.
    pub pgid: Option<i32>,
    /// Its session.
    pub sid: Option<i32>,
    /// Its inode in pidfs.
    pub inode: Option<u64>,
    /// What its environment says.
    pub marker: Marker,
    /// The file it was started from.
    pub exe: Option<String>,
    /// Its control group (v2).
    pub cgroup: Option<String>,
    /// It is a child of this supervisor that was never reaped, and the handle was opened when it was made.
    pub own_child: bool,
}

/// What a lease recorded about one of its processes.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The process.
    pub process: ProcessRecord,
    /// Where its number has its meaning.
    pub scope: &'a Scope,
    /// The lease.
    pub lease_id: LeaseId,
    /// Its gateway.
    pub gateway: GatewayInstanceId,
    /// The control group that was made for the lease, if one was.
    pub cgroup: Option<&'a str>,
}

impl Claim<'_> {
    /// Whether the process is in the group of the lease, where nothing else is put.
    fn holds(&self, now: &Evidence) -> bool {
        self.cgroup.zip(now.cgroup.as_deref()).is_some_and(|(leaf, group)| is_within(group, leaf))
    }
}

/// Processes that are never signalled, whatever the evidence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guard {
    /// This process and its ancestors.
    pub own_line: HashSet<i32>,
    /// Roots of the other leases.
    pub other_roots: HashSet<i32>,
}

impl Guard {
    /// Why this number is never signalled, if it is not.
    #[must_use]
    pub fn forbids(&self, pid: i32) -> Option<&'static str> {
        if pid <= 1 {
            return Some("the number is no process of ours");
        }
        if self.own_line.contains(&pid) {
            return Some("it is the supervisor or an ancestor of it");
        }
        self.other_roots.contains(&pid).then_some("it is the root of another lease")
    }
}

/// What follows from the evidence.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the process of the lease, and it runs.
    Owned(Verified),
    /// The number belongs to something else now.
    NotOurs(&'static str),
    /// The process of the lease is dead.
    Gone(&'static str),
    /// It cannot be told; nothing is done to it.
    Unknown(&'static str),
}

impl Verdict {
    /// The name in reports.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Owned(_) => "owned",
            Self::NotOurs(_) => "not_ours",
            Self::Gone(_) => "gone",
            Self::Unknown(_) => "unknown",
        }
    }

    /// Why, in words.
    #[must_use]
    pub const fn why(&self) -> &'static str {
        match self {
            Self::Owned(_) => "what was recorded agrees with what runs",
            Self::NotOurs(why) | Self::Gone(why) | Self::Unknown(why) => why,
        }
    }
}

/// In another time namespace the start time of the very same process is another one: neither that two agree nor that
/// they differ says anything.
const OTHER_CLOCK: &str =
    "its start time was recorded in another time namespace, and there is no inode to go by";

/// Compares identities alone: where, which number, which process behind it.
enum Identity {
    Same,
    SameTicks,
    Gone(&'static str),
    Other(&'static str),
    Elsewhere(&'static str),
    Unknown(&'static str),
}

/// `proven`: something stronger than what is compared here says that it is ours, and stands in for what was recorded
/// and cannot be read now.
fn identity(recorded: ProcessRecord, scope: &Scope, now: &Evidence, proven: bool) -> Identity {
    let Some(here) = &now.scope else { return Identity::Unknown("boot id or pid namespace cannot be read") };
    match scope.seen_from(here) {
        Place::Here => {}
        Place::EarlierBoot => return Identity::Gone("the machine was started anew since"),
        Place::Elsewhere(why) => return Identity::Elsewhere(why),
    }
    if recorded.pid != now.pid {
        return Identity::Other("another number was looked at");
    }
    match now.life {
        Life::Gone => return Identity::Gone("there is no such process"),
        Life::Unreadable if now.inode.is_none() => {
            return Identity::Unknown("the process cannot be read");
        }
        Life::Running | Life::Zombie | Life::Unreadable => {}
    }
    match (recorded.inode, now.inode) {
        (Some(then), Some(now)) if then == now => return Identity::Same,
        (Some(_), Some(_)) => {
            return Identity::Other("the number was given to another process (pidfs inode)");
        }
        (Some(_), None) if proven => return Identity::Same,
        (Some(_), None) => return Identity::Unknown("a pidfs inode was recorded and cannot be read now"),
        (None, _) => {}
    }
    match now.start_ticks {
        _ if proven && !scope.shares_clock(here) => Identity::Same,
        _ if !scope.shares_clock(here) => Identity::Unknown(OTHER_CLOCK),
        None if proven => Identity::Same,
        None => Identity::Unknown("the start time cannot be read"),
        Some(ticks) if ticks != recorded.start_ticks => {
            Identity::Other("the number was given to another process (start time)")
        }
        Some(_) if now.own_child => Identity::Same,
        Some(_) => Identity::SameTicks,
    }
}

fn owned(now: &Evidence, guard: &Guard) -> Verdict {
    if now.life == Life::Zombie {
        return Verdict::Gone("it is dead and only waits to be reaped");
    }
    if let Some(why) = guard.forbids(now.pid) {
        return Verdict::NotOurs(why);
    }
    now.handle
        .map_or(Verdict::Unknown("there is no handle on it"), |handle| Verdict::Owned(Verified { handle }))
}

/// Whether the process that a lease recorded is the one that is there now.
#[must_use]
pub fn verify(claim: &Claim<'_>, now: &Evidence, guard: &Guard) -> Verdict {
    let in_group = claim.holds(now);
    match identity(claim.process, claim.scope, now, now.own_child || in_group) {
        Identity::Gone(why) => Verdict::Gone(why),
        Identity::Other(why) | Identity::Elsewhere(why) => Verdict::NotOurs(why),
        Identity::Unknown(why) => Verdict::Unknown(why),
        Identity::Same => owned(now, guard),
        Identity::SameTicks if now.life == Life::Zombie => {
            Verdict::Gone("it is dead and only waits to be reaped")
        }
        Identity::SameTicks if !in_group && claim.cgroup.is_some() => Verdict::Unknown(
            "it is not seen in the control group of the lease, and there is no inode to go by",
        ),
        // Number and start time are not unique: without an inode the environment must agree too. What it does not
        // say, the control group does.
        Identity::SameTicks => match &now.marker {
            Marker::Missing | Marker::Ambiguous | Marker::Unreadable if in_group => owned(now, guard),
            marker if marker.names(claim.lease_id, claim.gateway) => owned(now, guard),
            Marker::Pair { .. } => Verdict::NotOurs("its environment names another lease"),
            Marker::Missing => Verdict::NotOurs("its environment names no lease"),
            Marker::Ambiguous => Verdict::Unknown("its environment names leases twice"),
            Marker::Unreadable => {
                Verdict::Unknown("its environment cannot be read, and there is no inode to go by")
            }
        },
    }
}

/// Why it is not proved that the recorded process is dead, if it is not. That a process does not prove to be ours
/// (its environment names nobody, say) is no proof that it is another one.
#[must_use]
pub fn doubt(claim: &Claim<'_>, now: &Evidence) -> Option<&'static str> {
    match identity(claim.process, claim.scope, now, false) {
        Identity::Gone(_) | Identity::Other(_) => None,
        Identity::Same | Identity::SameTicks if now.life == Life::Zombie => None,
        Identity::Elsewhere(why) | Identity::Unknown(why) => Some(why),
        Identity::Same => Some("its process runs, and is never signalled"),
        Identity::SameTicks => {
            Some("a process with its number and start time runs, and does not prove to be its own")
        }
    }
}

/// How a process that no lease names came to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kin<'a> {
    /// Found as the child of a verified process, which still ran after the evidence was read.
    ChildOf(i32),
    /// Found by its environment. One that is older than the tree can only have a copy of it.
    Marked {
        /// When the root of the tree started, in clock ticks since boot as they are read here; `None` where that
        /// cannot be told.
        since_ticks: Option<u64>,
    },
    /// Found in the control group of the lease, or below it.
    InCgroup(&'a str),
}

/// Its marker names the lease, and may be a copy.
const UNKNOWN_AGE: &str = "the age of its tree was recorded in another time namespace, and does not tell its own marker from a copy";

/// Whether a process belongs to the tree of a lease.
#[must_use]
pub fn verify_member(
    lease_id: LeaseId,
    gateway: GatewayInstanceId,
    kin: Kin<'_>,
    now: &Evidence,
    guard: &Guard,
) -> Verdict {
    match now.life {
        Life::Gone => return Verdict::Gone("there is no such process"),
        Life::Zombie => return Verdict::Gone("it is dead and only waits to be reaped"),
        Life::Unreadable => return Verdict::Unknown("the process cannot be read"),
        Life::Running => {}
    }
    let proven = match kin {
        Kin::ChildOf(_) if now.ppid.is_none() => return Verdict::Unknown("its parent cannot be read"),
        Kin::ChildOf(parent) => now.ppid == Some(parent),
        Kin::Marked { .. } if !now.marker.names(lease_id, gateway) => false,
        Kin::Marked { since_ticks: None } => return Verdict::Unknown(UNKNOWN_AGE),
        Kin::Marked { since_ticks: Some(since) } => now.start_ticks.is_some_and(|ticks| ticks >= since),
        Kin::InCgroup(leaf) => now.cgroup.as_deref().is_some_and(|group| is_within(group, leaf)),
    };
    if proven { owned(now, guard) } else { Verdict::NotOurs("nothing proves that it belongs to the lease") }
}

/// Whether the supervisor that spawned a lease still lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// It is verified dead: what it left behind are orphans.
    Dead,
    /// It lives: the lease is its business.
    Alive,
    /// It cannot be told: the lease is left alone.
    Unknown,
}

/// Looks at the supervisor that a lease names.
#[must_use]
pub fn holder(supervisor: ProcessRecord, scope: &Scope, now: &Evidence) -> Holder {
    match identity(supervisor, scope, now, now.own_child) {
        Identity::Gone(_) => Holder::Dead,
        Identity::Other(_) => Holder::Dead,
        Identity::Elsewhere(_) | Identity::Unknown(_) => Holder::Unknown,
        Identity::Same | Identity::SameTicks if now.life == Life::Zombie => Holder::Dead,
        Identity::Same | Identity::SameTicks => Holder::Alive,
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
