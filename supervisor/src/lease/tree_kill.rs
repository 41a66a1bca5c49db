//! Search for the process tree of a lease, and its end: each process is opened, its evidence is read through
//! the handle, [`crate::core::verify`] decides, and signals are sent through the same handle.

use crate::core::cgroup::{
    CgroupSubtree, KillMethod, LeaseCgroup, RecordedCgroup, UnknownCgroup, how_to_kill,
};
use crate::core::lease::{BoundProcesses, Lease, PidScope, ProcessRecord, ScopeRelation};
use crate::core::tree::{Proc, descendants, marker_candidates};
use crate::core::verify::{
    Claim, Evidence, Marker, Membership, ProcessState, SignalGuard, Verdict, Verified, doubt, verify,
    verify_member,
};
use crate::sys::{OpenError, OpenProcess, Signal, SignalError, Sys};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Properties of a lease by which its processes are found.
#[derive(Debug, Clone)]
pub struct TreeQuery {
    /// Id of the lease.
    pub lease_id: LeaseId,
    /// Gateway of the lease.
    pub gateway: GatewayInstanceId,
    /// Scope in which its pids are valid.
    pub scope: PidScope,
    /// Recorded processes of the tree, if it was bound.
    pub bound: Option<BoundProcesses>,
    /// Start time of the root of the tree, or of the supervisor that spawned it, on the clock of `scope`. No
    /// process of the tree is older.
    not_before_ticks: u64,
    /// Cgroup that was created for the lease.
    pub leaf: Option<LeaseCgroup>,
    /// Recorded cgroup, if not recognised as the cgroup of the lease.
    pub unknown_cgroup: Option<UnknownCgroup>,
    /// Processes verified by the previous search. A process that lost its parent since then, and whose
    /// environment is unreadable, is still identified by its record.
    pub known: Vec<ProcessRecord>,
}

impl TreeQuery {
    /// Creates the query for a lease.
    #[must_use]
    pub fn of(lease: &Lease, subtree: &CgroupSubtree) -> Self {
        let (leaf, unknown_cgroup) = match subtree.recorded(lease) {
            RecordedCgroup::Nothing => (None, None),
            RecordedCgroup::Own(leaf) => (Some(leaf), None),
            RecordedCgroup::Unknown(unknown_cgroup) => (None, Some(unknown_cgroup)),
        };
        Self {
            lease_id: lease.lease_id,
            gateway: lease.gateway,
            scope: lease.scope.clone(),
            bound: lease.bound,
            not_before_ticks: lease.bound.map_or(lease.supervisor.start_ticks, |b| b.wrapper.start_ticks),
            leaf,
            unknown_cgroup,
            known: lease.last_evidence_json.as_deref().map(parse_known_processes).unwrap_or_default(),
        }
    }

    /// Returns the earliest possible start time of the tree's processes, in clock ticks of this system;
    /// `None` if it was recorded by another clock.
    pub fn since_ticks<S: Sys>(&self, sys: &S) -> Option<u64> {
        let one_clock = sys.current_scope().is_some_and(|here| self.scope.shares_clock(&here));
        one_clock.then_some(self.not_before_ticks)
    }

    /// Returns the claim of the lease about one of its processes.
    #[must_use]
    pub fn claim(&self, process: ProcessRecord) -> Claim<'_> {
        Claim {
            process,
            scope: &self.scope,
            lease_id: self.lease_id,
            gateway: self.gateway,
            cgroup: self.leaf.as_ref().map(LeaseCgroup::path),
        }
    }
}

/// Verified process of the tree.
#[derive(Debug)]
pub struct TreeMember<H> {
    /// Pid, for display.
    pub pid: i32,
    /// Name, for display.
    pub name: String,
    /// Identity of the process, if its start time can be read.
    record: Option<ProcessRecord>,
    handle: Arc<H>,
    proof: Verified,
    leads_group: bool,
    /// True for the wrapper: while it lives, orphans of the tree are reparented to it and can be found.
    is_root: bool,
}

/// Process of a tree in the recorded evidence.
#[derive(serde::Serialize, serde::Deserialize)]
struct ProcessJson {
    pid: i32,
    name: String,
    start_ticks: Option<u64>,
    inode: Option<u64>,
}

/// Returns the processes of a lease's recorded evidence; none if it cannot be parsed.
fn parse_known_processes(json: &str) -> Vec<ProcessRecord> {
    #[derive(serde::Deserialize)]
    struct Record {
        tree: Vec<ProcessJson>,
    }
    let seen = serde_json::from_str::<Record>(json).map(|record| record.tree).unwrap_or_default();
    let record = |seen: ProcessJson| {
        Some(ProcessRecord { pid: seen.pid, start_ticks: seen.start_ticks?, inode: seen.inode })
    };
    seen.into_iter().filter_map(record).collect()
}

/// Result of a search for a tree.
#[derive(Debug)]
pub struct TreeScan<H> {
    /// Verified processes, parents before children.
    pub members: Vec<TreeMember<H>>,
    /// Processes that were verified before and cannot be verified now: the next search checks them again.
    pub unverified: Vec<ProcessRecord>,
    /// Children of verified processes that cannot be read.
    pub unread: Vec<i32>,
    /// Reason why the tree cannot be determined completely.
    pub unknown: Option<&'static str>,
    /// Reason why a recorded process is neither proved dead nor proved to belong to the lease.
    pub doubt: Option<&'static str>,
}

impl<H> Default for TreeScan<H> {
    fn default() -> Self {
        Self { members: Vec::new(), unverified: Vec::new(), unread: Vec::new(), unknown: None, doubt: None }
    }
}

impl<H> TreeScan<H> {
    /// Returns the processes to kill, parents before children. The wrapper is excluded while other processes
    /// of the tree are, or may be, alive.
    pub fn kill_targets(&self) -> impl DoubleEndedIterator<Item = &TreeMember<H>> {
        let spares_root = self.members.iter().any(|m| !m.is_root) || !self.unread.is_empty();
        self.members.iter().filter(move |m| !(spares_root && m.is_root))
    }

    /// Returns the handles.
    pub fn handles(&self) -> impl Iterator<Item = Arc<H>> {
        self.members.iter().map(|m| Arc::clone(&m.handle))
    }

    /// Returns the pids, children first.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        self.members.iter().rev().map(|m| m.pid).collect()
    }

    /// Describes the processes that survived SIGKILL, with pid and name, including those that cannot be read
    /// now.
    #[must_use]
    pub fn survivors(&self) -> String {
        let named = self.kill_targets().map(|m| format!("{} ({})", m.pid, m.name));
        let unread = self.unverified.iter().map(|r| r.pid).chain(self.unread.iter().copied());
        let unread = unread.map(|pid| format!("{pid} (cannot be read)"));
        named.chain(unread).collect::<Vec<_>>().join(", ")
    }

    /// Returns the records for the next search.
    fn records(&self) -> Vec<ProcessRecord> {
        self.members.iter().filter_map(|m| m.record).chain(self.unverified.iter().copied()).collect()
    }

    /// Returns the evidence as JSON, for the lease record.
    #[must_use]
    pub fn json(&self, at_ms: u64) -> String {
        let seen = |m: &TreeMember<H>| ProcessJson {
            pid: m.pid,
            name: m.name.clone(),
            start_ticks: m.record.map(|r| r.start_ticks),
            inode: m.record.and_then(|r| r.inode),
        };
        let unverified = |record: &ProcessRecord| ProcessJson {
            pid: record.pid,
            name: String::new(),
            start_ticks: Some(record.start_ticks),
            inode: record.inode,
        };
        let tree: Vec<_> =
            self.members.iter().map(seen).chain(self.unverified.iter().map(unverified)).collect();
        serde_json::json!({ "at_ms": at_ms, "tree": tree, "unknown": self.unknown }).to_string()
    }

    /// True if the tree is verified gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.members.is_empty() && self.unknown.is_none()
    }
}

/// Reads the full evidence of a process. The returned handle is the one that the evidence was read through.
pub fn read_evidence<S: Sys>(sys: &S, pid: i32) -> (Option<Arc<S::Handle>>, Evidence) {
    read_evidence_with(sys, pid, |handle| sys.evidence(handle))
}

/// Reads the evidence of a process without its environment, if its lease is known by other means.
pub fn read_kernel_evidence<S: Sys>(sys: &S, pid: i32) -> (Option<Arc<S::Handle>>, Evidence) {
    read_evidence_with(sys, pid, |handle| sys.kernel_evidence(handle))
}

/// Reads the evidence of a recorded process; without its environment if the inode identifies it.
fn read_recorded_process<S: Sys>(sys: &S, process: ProcessRecord) -> (Option<Arc<S::Handle>>, Evidence) {
    read_evidence_with(sys, process.pid, |handle| {
        let told = process.inode.is_some() && handle.inode().is_some();
        if told { sys.kernel_evidence(handle) } else { sys.evidence(handle) }
    })
}

fn read_evidence_with<S: Sys>(
    sys: &S,
    pid: i32,
    read: impl FnOnce(&S::Handle) -> Evidence,
) -> (Option<Arc<S::Handle>>, Evidence) {
    let nothing = |life| Evidence {
        handle: None,
        pid,
        scope: sys.current_scope(),
        life,
        start_ticks: None,
        ppid: None,
        pgid: None,
        sid: None,
        inode: None,
        marker: Marker::Unreadable,
        exe: None,
        cgroup: None,
        own_child: false,
    };
    match sys.open(pid) {
        Ok(handle) => {
            let evidence = read(&handle);
            (Some(handle), evidence)
        }
        Err(OpenError::Gone) => (None, nothing(ProcessState::Gone)),
        Err(OpenError::Io(_)) => (None, nothing(ProcessState::Unreadable)),
    }
}

/// Reason if the cgroup has only exiting processes, which have not ended yet.
const DYING: &str = "a process in its control group is dying but not yet gone";

/// Reason if the recorded cgroup is not the one that the supervisor of this state directory creates for the
/// lease.
const UNKNOWN_CGROUP: &str =
    "its recorded control group is not recognised and holds processes; end them, or move them out of it";
const UNKNOWN_CGROUP_UNREAD: &str = "its recorded control group is not recognised and cannot be read";

struct TreeSearch<'a, S: Sys> {
    sys: &'a S,
    target: &'a TreeQuery,
    guard: &'a SignalGuard,
    names: HashMap<i32, &'a Proc>,
    found: TreeScan<S::Handle>,
    seen: HashSet<i32>,
    /// As [`TreeQuery::since_ticks`]; set from the wrapper if it was identified by its inode under another
    /// clock.
    since_ticks: Option<u64>,
    /// True if start times read here are on the clock of the record.
    one_clock: bool,
}

impl<S: Sys> TreeSearch<'_, S> {
    fn check_root(&mut self, process: ProcessRecord) {
        let (handle, evidence) = read_recorded_process(self.sys, process);
        let verdict = self.verify_recorded(process, &evidence);
        // A recorded process leads its own group; the kernel checks it if it is unreadable here.
        let leads_group = evidence.pgid.is_none_or(|pgid| pgid == process.pid);
        self.record(&evidence, handle, leads_group, verdict);
    }

    /// Verifies the evidence against the record. For a verdict of "not ours", notes doubt about the identity.
    fn verify_recorded(&mut self, process: ProcessRecord, evidence: &Evidence) -> Verdict {
        let claim = self.target.claim(process);
        let verdict = verify(&claim, evidence, self.guard);
        if matches!(verdict, Verdict::NotOurs(_)) {
            self.found.doubt = self.found.doubt.or(doubt(&claim, evidence));
        }
        verdict
    }

    /// Checks a process verified by an earlier search. The record does not say if the process led a group of
    /// the lease.
    fn check_known(&mut self, process: ProcessRecord) {
        let (handle, evidence) = read_recorded_process(self.sys, process);
        let verdict = self.verify_recorded(process, &evidence);
        if matches!(verdict, Verdict::Unknown(_)) {
            self.found.unverified.push(process);
        }
        self.record(&evidence, handle, false, verdict);
    }

    fn check_member(&mut self, pid: i32, membership: Membership<'_>) {
        let (handle, evidence) = match membership {
            Membership::Marked { .. } => read_evidence(self.sys, pid),
            Membership::ChildOf(_) | Membership::InCgroup(_) => read_kernel_evidence(self.sys, pid),
        };
        if let Membership::ChildOf(parent) = membership {
            // The parent's pid identifies the verified parent only if it was not reaped until now.
            let parent = self.found.members.iter().find(|m| m.pid == parent);
            if !parent.is_some_and(|m| self.sys.is_unreaped(&m.handle)) {
                return;
            }
        }
        let verdict =
            verify_member(self.target.lease_id, self.target.gateway, membership, &evidence, self.guard);
        if matches!((&verdict, membership), (Verdict::Unknown(_), Membership::ChildOf(_)))
            && !self.found.unread.contains(&pid)
        {
            self.found.unread.push(pid);
        }
        // A group led by a descendant has only processes of the tree. A marker alone does not prove this.
        let leads_group = !matches!(membership, Membership::Marked { .. }) && evidence.pgid == Some(pid);
        self.record(&evidence, handle, leads_group, verdict);
    }

    fn record(&mut self, now: &Evidence, handle: Option<Arc<S::Handle>>, leads: bool, verdict: Verdict) {
        match (verdict, handle) {
            (Verdict::Owned(proof), Some(handle)) => {
                let pid = now.pid;
                self.seen.insert(pid);
                let name = self.names.get(&pid).map(|p| p.name.clone()).unwrap_or_default();
                // The start time of a hidden process is unreadable, and that of another clock is wrong: then
                // the inode alone identifies the process.
                let start_ticks = now.start_ticks.filter(|_| self.one_clock).or(now.inode.map(|_| 0));
                let record =
                    start_ticks.map(|start_ticks| ProcessRecord { pid, start_ticks, inode: now.inode });
                let is_root = self.target.bound.is_some_and(|bound| bound.wrapper.pid == pid);
                if is_root && !self.one_clock {
                    self.since_ticks = now.start_ticks;
                }
                let member = TreeMember { pid, name, record, handle, proof, leads_group: leads, is_root };
                self.found.members.push(member);
            }
            (Verdict::Unknown(why), _) => self.found.unknown = self.found.unknown.or(Some(why)),
            (Verdict::Owned(_) | Verdict::NotOurs(_) | Verdict::Gone(_), _) => {}
        }
    }

    fn scan_cgroup(&mut self, leaf: &LeaseCgroup) {
        match self.sys.group_members(leaf) {
            Ok(members) => {
                for pid in &members.pids {
                    if !self.seen.contains(pid) {
                        self.check_member(*pid, Membership::InCgroup(leaf.path()));
                    }
                }
                if members.populated && members.pids.is_empty() {
                    self.found.unknown = self.found.unknown.or(Some(DYING));
                }
            }
            Err(error) => {
                tracing::debug!(%error, group = leaf.path(), "cannot read cgroup");
                self.found.unknown = self.found.unknown.or(Some("its control group cannot be read"));
            }
        }
    }

    fn scan_descendants(&mut self, snapshot: &[Proc]) {
        let roots: Vec<i32> = self.found.members.iter().map(|m| m.pid).collect();
        for (pid, parent) in descendants(snapshot, &roots) {
            if !self.seen.contains(&pid) {
                self.check_member(pid, Membership::ChildOf(parent));
            }
        }
        if self.sys.may_hide_processes() {
            self.scan_hidden_children();
        }
    }

    /// Searches for children that the process list hides, and their descendants.
    fn scan_hidden_children(&mut self) {
        let mut next = 0;
        while let Some(member) = self.found.members.get(next) {
            next += 1;
            let (parent, children) = (member.pid, self.sys.children_of(&member.handle));
            for pid in children {
                if !self.seen.contains(&pid) {
                    self.check_member(pid, Membership::ChildOf(parent));
                }
            }
        }
    }

    /// Checks the recorded but unrecognised cgroup. Its processes are not signalled; while it has any, their
    /// membership in the tree is unknown.
    fn scan_unknown_cgroup(&mut self, unknown_cgroup: &UnknownCgroup) {
        match self.sys.group_populated(unknown_cgroup) {
            Ok(false) => {}
            Ok(true) => self.found.unknown = self.found.unknown.or(Some(UNKNOWN_CGROUP)),
            Err(error) => {
                tracing::debug!(%error, group = unknown_cgroup.path(), "cannot read cgroup");
                self.found.unknown = self.found.unknown.or(Some(UNKNOWN_CGROUP_UNREAD));
            }
        }
    }
}

/// Finds the remaining processes of a tree: recorded processes, their descendants, and processes with its
/// marker. `marked` (from [`markers`]) avoids reading every environment again for each lease.
pub fn find<S: Sys>(
    sys: &S,
    target: &TreeQuery,
    guard: &SignalGuard,
    snapshot: &[Proc],
    marked: &[i32],
) -> TreeScan<S::Handle> {
    let since_ticks = target.since_ticks(sys);
    let mut search = TreeSearch {
        sys,
        target,
        guard,
        names: snapshot.iter().map(|p| (p.pid, p)).collect(),
        found: TreeScan::default(),
        seen: HashSet::new(),
        since_ticks,
        one_clock: since_ticks.is_some(),
    };
    match sys.current_scope() {
        Some(here) if target.scope.relation_to(&here) == ScopeRelation::Here => {}
        // Pids of the lease are not valid here: verify would reject each of them.
        Some(_) => return search.found,
        None => {
            search.found.unknown = Some("boot id or pid namespace cannot be read");
            return search.found;
        }
    }
    for process in target.bound.iter().flat_map(|b| [b.wrapper, b.adapter]) {
        search.check_root(process);
    }
    search.scan_descendants(snapshot);
    for process in &target.known {
        if !search.seen.contains(&process.pid) {
            search.check_known(*process);
        }
    }
    if let Some(leaf) = &target.leaf {
        search.scan_cgroup(leaf);
    }
    if let Some(unknown_cgroup) = &target.unknown_cgroup {
        search.scan_unknown_cgroup(unknown_cgroup);
    }
    for pid in marked {
        if !search.seen.contains(pid) {
            search.check_member(*pid, Membership::Marked { since_ticks: search.since_ticks });
        }
    }
    search.scan_descendants(snapshot);
    search.found
}

/// Returns the running processes with a lease marker, by lease.
#[must_use]
pub fn markers<S: Sys>(sys: &S, snapshot: &[Proc], not_before_ticks: u64) -> HashMap<String, Vec<i32>> {
    let mut by_lease: HashMap<String, Vec<i32>> = HashMap::new();
    let pids = marker_candidates(snapshot, not_before_ticks);
    for (pid, marker) in pids.iter().zip(sys.peek_markers(&pids)) {
        if let Marker::Pair { lease, .. } = marker {
            by_lease.entry(lease).or_default().push(*pid);
        }
    }
    by_lease
}

/// Searches the tree of one lease in a fresh snapshot.
///
/// # Errors
/// The process list cannot be read.
pub fn find_now<S: Sys>(sys: &S, target: &TreeQuery, guard: &SignalGuard) -> io::Result<TreeScan<S::Handle>> {
    let snapshot = sys.snapshot()?;
    let marked = markers(sys, &snapshot, target.since_ticks(sys).unwrap_or(0));
    let marked = marked.get(&target.lease_id.to_string()).map(Vec::as_slice).unwrap_or_default();
    Ok(find(sys, target, guard, &snapshot, marked))
}

/// Sends a signal to every verified process, children first. SIGKILL is sent to whole groups if the leader is
/// verified, and to the wrapper only if nothing else of the tree was found: a process forked at that moment
/// must not lose the parent that identifies it. Returns the processes that could not be signalled, with the
/// reason.
pub fn signal_all<S: Sys>(sys: &S, found: &TreeScan<S::Handle>, signal: Signal) -> Vec<(i32, &'static str)> {
    match signal {
        Signal::Kill => signal_each(sys, found.kill_targets().rev(), signal),
        Signal::Term | Signal::Cont | Signal::Stop => signal_each(sys, found.members.iter().rev(), signal),
    }
}

fn signal_each<'a, S: Sys>(
    sys: &S,
    members: impl Iterator<Item = &'a TreeMember<S::Handle>>,
    signal: Signal,
) -> Vec<(i32, &'static str)> {
    let mut failed = Vec::new();
    for member in members {
        if signal == Signal::Kill && member.leads_group {
            // The kernel kills a group atomically, even one that forks quickly. Processes outside of it are
            // signalled one by one.
            drop(sys.signal_group(&member.handle, &member.proof, signal));
        }
        match sys.signal(&member.handle, &member.proof, signal) {
            Ok(()) | Err(SignalError::Gone) => {}
            Err(SignalError::Foreign) => failed.push((member.pid, "it belongs to another user")),
            Err(SignalError::WrongProof) => {
                failed.push((member.pid, "it is not the process that was verified"))
            }
            Err(SignalError::Io(_)) => failed.push((member.pid, "the kernel refused")),
        }
    }
    failed
}

/// Maximum wait of one round for an empty cgroup. The kernel needs a few milliseconds for a tree of some
/// size.
const GROUP_WAIT: Duration = Duration::from_millis(100);

/// Sends SIGKILL to the whole cgroup of a lease, if it has one that contains no other processes (H21).
pub fn kill_group<S: Sys>(sys: &S, target: &TreeQuery, guard: &SignalGuard, wait: Duration) {
    if sys.current_scope().as_ref() != Some(&target.scope) {
        return;
    }
    let members = target.leaf.as_ref().and_then(|leaf| sys.group_members(leaf).ok());
    let listed = members.as_ref().map(|m| m.pids.as_slice());
    match how_to_kill(target.leaf.as_ref(), listed, guard) {
        KillMethod::Group(cleared) => {
            if let Err(error) = sys.kill_group(&cleared, wait) {
                tracing::warn!(
                    lease_id = %target.lease_id,
                    %error,
                    "cgroup.kill failed; killing processes one by one"
                );
            }
        }
        KillMethod::Walk(why) => {
            tracing::debug!(lease_id = %target.lease_id, why, "killing processes one by one")
        }
    }
}

/// Sends SIGKILL to the processes that the process list alone attributes to the tree. Environments are read
/// later: a process whose environment read hangs delays nothing.
fn kill_listed<S: Sys>(sys: &S, target: &mut TreeQuery, guard: &SignalGuard) -> io::Result<()> {
    let found = find(sys, target, guard, &sys.snapshot()?, &[]);
    // A process with a marker may exist as well: the wrapper is spared until that is known.
    let spared = found.members.iter().position(|m| m.is_root);
    signal_each(
        sys,
        found.members.iter().enumerate().rev().filter(|(at, _)| Some(*at) != spared).map(|(_, m)| m),
        Signal::Kill,
    );
    target.known = found.records();
    Ok(())
}

/// Kills a tree until two consecutive searches find nothing, in at most `rounds_max` rounds.
///
/// # Errors
/// The process list cannot be read; nothing was signalled in that round.
pub fn kill<S: Sys>(
    sys: &S,
    target: &TreeQuery,
    guard: &SignalGuard,
    rounds_max: u32,
) -> io::Result<TreeScan<S::Handle>> {
    let mut empty = 0;
    let target = &mut target.clone();
    kill_group(sys, target, guard, GROUP_WAIT);
    kill_listed(sys, target, guard)?;
    let mut found = find_now(sys, target, guard)?;
    for _ in 0..rounds_max {
        if found.is_gone() {
            empty += 1;
            if empty == 2 {
                break;
            }
        } else {
            empty = 0;
            // Processes that lose their parent by this are found again by their records.
            target.known = found.records();
            for (pid, why) in signal_all(sys, &found, Signal::Kill) {
                tracing::warn!(lease_id = %target.lease_id, pid, why, "cannot kill process");
            }
            kill_group(sys, target, guard, GROUP_WAIT);
        }
        found = find_now(sys, target, guard)?;
    }
    Ok(found)
}
