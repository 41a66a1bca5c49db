//! Checks of stored leases at start. A row with impossible pids is quarantined. If several leases name one
//! process, all but the lease that owns the process are quarantined.

use crate::core::lease::{BoundProcesses, Lease, PidScope, ProcessRecord, ScopeRelation};
use acp_shared::protocol::LeaseState;
use std::collections::{BTreeMap, HashSet};

/// Identity of the loading supervisor.
#[derive(Debug, Clone, Copy)]
pub struct SupervisorIdentity<'a> {
    /// Scope of the supervisor.
    pub scope: &'a PidScope,
    /// Pids of the supervisor and its ancestors.
    pub ancestry: &'a HashSet<i32>,
}

/// Returns why a recorded tree is impossible; `None` if it is plausible. Before a lease is bound, its wrapper
/// is verified to lead a session and its adapter to lead a process group.
fn fault(bound: &BoundProcesses, supervisor: i32) -> Option<&'static str> {
    let pids = [bound.wrapper.pid, bound.adapter.pid, bound.pgid, bound.sid];
    if pids.into_iter().any(|pid| pid <= 1) {
        return Some("it names a pid that no lease can have");
    }
    if pids.contains(&supervisor) {
        return Some("it names the supervisor that spawned it");
    }
    if bound.wrapper.pid == bound.adapter.pid {
        return Some("it names one process as wrapper and as adapter");
    }
    if bound.pgid != bound.adapter.pid || bound.sid != bound.wrapper.pid {
        return Some("its group or session is not that of its own processes");
    }
    None
}

/// Quarantines untrusted leases in index. `now` returns the current process of a pid. Returns the changed
/// leases.
pub fn quarantine_invalid(
    leases: &mut Vec<Lease>,
    own: SupervisorIdentity<'_>,
    at_ms: u64,
    now: impl Fn(i32) -> Option<ProcessRecord>,
) -> Vec<Lease> {
    let mut changed = Vec::new();
    // Of several rows with one id the last one counts.
    let last: BTreeMap<_, _> = leases.iter().enumerate().map(|(index, l)| (l.lease_id, index)).collect();
    let mut index = 0;
    leases.retain(|lease| {
        index += 1;
        last.get(&lease.lease_id) == Some(&(index - 1))
    });
    // Lost leases are examined again later; closed ones are not.
    for lease in leases.iter_mut().filter(|l| l.state != LeaseState::Closed) {
        let Some(bound) = lease.bound else { continue };
        let ours = |pid: &i32| own.ancestry.contains(pid);
        let here = lease.scope.relation_to(own.scope) == ScopeRelation::Here;
        // The pid of an ended lease may belong to this supervisor by now.
        let itself =
            here && !lease.state.is_ended() && [bound.wrapper.pid, bound.adapter.pid].iter().any(ours);
        let why = fault(&bound, lease.supervisor.pid)
            .or(itself.then_some("it names this supervisor or an ancestor of it"));
        if let Some(why) = why {
            lease.quarantine(why, at_ms);
            changed.push(lease.clone());
        }
    }
    for index in duplicate_pids(leases, own.scope, now) {
        if let Some(lease) = leases.get_mut(index) {
            let why = "a newer lease names the same process, and its process is the running one";
            lease.quarantine(why, at_ms);
            changed.push(lease.clone());
        }
    }
    changed
}

/// Returns the indexes of running leases whose processes provably belong to another lease. If the process
/// with a shared pid belongs to none of them, each lease is verified separately later.
fn duplicate_pids(
    leases: &[Lease],
    scope: &PidScope,
    now: impl Fn(i32) -> Option<ProcessRecord>,
) -> Vec<usize> {
    let mut by_pid: BTreeMap<i32, Vec<(usize, ProcessRecord)>> = BTreeMap::new();
    for (index, lease) in leases.iter().enumerate() {
        if let Some(bound) = lease.bound.filter(|_| !lease.state.is_ended()) {
            if lease.scope.relation_to(scope) != ScopeRelation::Here {
                continue;
            }
            for process in [bound.wrapper, bound.adapter] {
                by_pid.entry(process.pid).or_default().push((index, process));
            }
        }
    }
    let mut wrong: Vec<usize> = Vec::new();
    for (pid, named) in by_pid.into_iter().filter(|(_, named)| named.len() > 1) {
        let live = now(pid);
        // Only the inode is proof: start times are not unique and change between clocks. Without inodes,
        // verification by environment decides later.
        let matches = |process: &ProcessRecord| {
            process.inode.is_some() && live.is_some_and(|live| live.inode == process.inode)
        };
        let right = named.iter().filter(|(_, p)| matches(p)).map(|(index, _)| *index).next_back();
        if let Some(right) = right {
            wrong.extend(named.iter().map(|(index, _)| *index).filter(|index| *index != right));
        }
    }
    wrong.sort_unstable();
    wrong.dedup();
    wrong
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::core::lease::fixture;

    const OWN: i32 = 50;

    fn tree(wrapper: i32, adapter: i32, inode: u64) -> Lease {
        let record = |pid| ProcessRecord { pid, start_ticks: 5, inode: Some(inode) };
        let (pgid, sid) = (adapter, wrapper);
        let bound = BoundProcesses { wrapper: record(wrapper), adapter: record(adapter), pgid, sid };
        Lease { state: LeaseState::Open, bound: Some(bound), ..fixture::lease() }
    }

    fn quarantine(mut leases: Vec<Lease>, now: impl Fn(i32) -> Option<ProcessRecord>) -> (Vec<Lease>, usize) {
        let line = HashSet::from([OWN, 1]);
        let scope = fixture::lease().scope;
        let changed =
            quarantine_invalid(&mut leases, SupervisorIdentity { scope: &scope, ancestry: &line }, 9, now);
        (leases, changed.len())
    }

    #[test]
    fn lease_with_impossible_pids_is_lost_and_cleared() {
        let mut other_group = tree(100, 101, 1);
        other_group.bound.as_mut().unwrap().pgid = 77;
        let mut other_session = tree(100, 101, 1);
        other_session.bound.as_mut().unwrap().sid = 77;
        for (name, lease) in [
            ("0", tree(0, 101, 1)),
            ("init", tree(1, 101, 1)),
            ("negative", tree(-5, 101, 1)),
            ("adapter 1", tree(100, 1, 1)),
            ("supervisor", tree(OWN, 101, 1)),
            ("supervisor as adapter", tree(100, OWN, 1)),
            ("wrapper is adapter", tree(100, 100, 1)),
            ("another group", other_group),
            ("another session", other_session),
        ] {
            let (leases, changed) = quarantine(vec![lease], |_| None);
            assert_eq!((changed, leases[0].state, leases[0].bound), (1, LeaseState::Lost, None), "{name}");
            assert!(leases[0].state_reason.starts_with("quarantined"), "{name}");
            assert!(leases[0].last_evidence_json.as_ref().unwrap().contains("wrapper_pid"), "{name}");
        }
        // A lost lease is checked too, but the supervisor may have reused its pid.
        for (wrapper, changed) in [(1, 1), (OWN, 0)] {
            let lost = Lease { state: LeaseState::Lost, ended_at_ms: Some(3), ..tree(wrapper, 101, 1) };
            let lost = Lease { supervisor: ProcessRecord { pid: 60, ..lost.supervisor }, ..lost };
            let (leases, quarantined) = quarantine(vec![lost], |_| None);
            assert_eq!(
                (quarantined, leases[0].state, leases[0].ended_at_ms),
                (changed, LeaseState::Lost, Some(3))
            );
        }
        // Pids of another boot cannot be those of this supervisor.
        let mut earlier = tree(OWN, 101, 1);
        earlier.scope.boot_id = "earlier".into();
        earlier.supervisor.pid = 60;
        let (leases, changed) = quarantine(vec![tree(100, 101, 1), earlier], |_| None);
        assert_eq!(changed, 0);
        assert!(leases.iter().all(|l| l.state == LeaseState::Open && l.bound.is_some()));
    }

    #[test]
    fn conflicting_leases_keep_the_one_with_matching_process() {
        let running = |inode| move |pid| Some(ProcessRecord { pid, start_ticks: 5, inode: Some(inode) });
        let three = || vec![tree(100, 101, 1), tree(100, 201, 2), tree(301, 100, 3)];
        for (inode, right) in [(1, 0), (2, 1), (3, 2)] {
            let (leases, changed) = quarantine(three(), running(inode));
            assert_eq!(changed, 2);
            for (index, lease) in leases.iter().enumerate() {
                assert_eq!(lease.state == LeaseState::Open, index == right, "{inode}: {index}");
            }
        }
        // Without a matching process each lease is verified separately.
        assert_eq!(quarantine(three(), running(9)).1, 0);
        assert_eq!(quarantine(three(), |_| None).1, 0);
    }

    #[test]
    fn duplicate_lease_id_keeps_later_row() {
        let (first, mut second) = (tree(100, 101, 1), tree(200, 201, 2));
        second.lease_id = first.lease_id;
        let (leases, _) = quarantine(vec![first, second.clone()], |_| None);
        assert_eq!(leases, [second]);
    }
}
