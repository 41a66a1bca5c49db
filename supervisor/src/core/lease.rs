//! Lease: one supervised process tree, and its state machine.
//!
//! `reserved → bound → open → closing → closed`, and `lost` from the first four. A lost lease is closed when
//! its tree is found again and ended. A test compares the whole table with `lease.table.txt`.

use acp_shared::ids::{GatewayInstanceId, LeaseId, SessionKey};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Graces, LeaseInfo, LeaseKind, LeaseState};
use serde::{Deserialize, Serialize};

/// Event of the lease state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEvent {
    /// Both pids are known and verified.
    Bind,
    /// The adapter has called exec.
    Run,
    /// An end was requested, the adapter exited, the start failed, or the tree of a lost lease was found and
    /// ended.
    Close,
    /// The whole tree is verified to be gone.
    Gone,
    /// The tree vanished without an orderly end, or cannot be proved to belong to the lease.
    Lose,
}

impl LeaseEvent {
    /// All events.
    pub const ALL: [Self; 5] = [Self::Bind, Self::Run, Self::Close, Self::Gone, Self::Lose];
}

/// Error: transition that the state machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a lease in state {from} does not accept {event:?}")]
pub struct TransitionError {
    /// State before the event.
    pub from: LeaseState,
    /// Rejected event.
    pub event: LeaseEvent,
}

/// Returns the state after an event.
///
/// # Errors
/// [`TransitionError`] for a pair that is not in the table.
pub const fn on(state: LeaseState, event: LeaseEvent) -> Result<LeaseState, TransitionError> {
    use LeaseEvent::{Bind, Close, Gone, Lose, Run};
    use LeaseState::{Bound, Closed, Closing, Lost, Open, Reserved};
    let illegal = Err(TransitionError { from: state, event });
    match (state, event) {
        (Reserved, Bind) => Ok(Bound),
        (Bound, Run) => Ok(Open),
        (Reserved | Bound | Open | Closing | Lost, Close) => Ok(Closing),
        (Closing, Gone) => Ok(Closed),
        (Reserved | Bound | Open | Closing, Lose) => Ok(Lost),
        (Reserved, Run | Gone)
        | (Bound, Bind | Gone)
        | (Open, Bind | Run | Gone)
        | (Closing, Bind | Run)
        | (Closed, Bind | Run | Close | Gone | Lose)
        | (Lost, Bind | Run | Gone | Lose) => illegal,
    }
}

/// Process tree of which no process is left, as far as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedTree {
    /// All processes are accounted for.
    Accounted,
    /// The wrapper exited without a report.
    Vanished,
    /// A running process could belong to the tree but does not prove it.
    Doubtful,
}

/// Returns the event that ends a lease of which no process is left: `Gone` if the lease was closing in order,
/// `Lose` if the tree ended earlier or is not accounted for.
#[must_use]
pub const fn ending_event(state: LeaseState, tree: EndedTree) -> LeaseEvent {
    match (state, tree) {
        (LeaseState::Closing, EndedTree::Accounted) => LeaseEvent::Gone,
        (LeaseState::Closing, EndedTree::Vanished | EndedTree::Doubtful)
        | (
            LeaseState::Reserved
            | LeaseState::Bound
            | LeaseState::Open
            | LeaseState::Closed
            | LeaseState::Lost,
            _,
        ) => LeaseEvent::Lose,
    }
}

/// Recorded identity of one process on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessRecord {
    /// Process id.
    pub pid: i32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// pidfs inode, unique until the next boot; `None` if the kernel has none.
    pub inode: Option<u64>,
}

/// Boot and namespaces in which recorded pids and start times are valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PidScope {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Inode of the pid namespace.
    pub pidns: u64,
    /// Inode of the time namespace of the process that read the start times: `/proc/PID/stat` shows them by
    /// the reader's clock, not the process's own. `None` if the kernel has no time namespaces, and in rows of
    /// older versions.
    #[serde(default)]
    pub timens: Option<u64>,
    /// First process of the pid namespace. Needed because inodes of ended namespaces are reused.
    pub init: NsInit,
}

/// Identity of the first process of a pid namespace. Fields that could not be read are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NsInit {
    /// Start time, in clock ticks since boot.
    pub start_ticks: Option<u64>,
    /// pidfs inode.
    pub inode: Option<u64>,
}

impl NsInit {
    /// True unless a fact known for both differs. Start times are compared only if both were read with one
    /// clock.
    fn may_equal(self, other: Self, one_clock: bool) -> bool {
        let ticks = self.start_ticks.zip(other.start_ticks).filter(|_| one_clock);
        match (self.inode.zip(other.inode), ticks) {
            (Some((then, now)), _) | (None, Some((then, now))) => then == now,
            (None, None) => true,
        }
    }
}

/// Relation of a recorded [`PidScope`] to the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScopeRelation {
    /// The same scope: recorded pids are still valid.
    Here,
    /// An earlier boot: no recorded process is alive.
    EarlierBoot,
    /// Another pid namespace: recorded pids are meaningless here.
    Elsewhere(&'static str),
}

impl PidScope {
    /// Returns why no recorded process can be alive, if that is certain: the boot or the pid namespace has
    /// ended. An unreadable record proves nothing.
    #[must_use]
    pub fn is_over(&self, here: &Self) -> Option<&'static str> {
        if self.boot_id.is_empty() || here.boot_id.is_empty() {
            return None;
        }
        if self.boot_id != here.boot_id {
            return Some("the machine has been rebooted since");
        }
        // The inode of a namespace is reused only after the namespace has ended with all its processes.
        let other_init = self.init.inode.zip(here.init.inode).is_some_and(|(then, now)| then != now);
        (self.pidns == here.pidns && other_init).then_some("its pid namespace has ended since")
    }

    /// True if start times read in both scopes use the same clock: one time namespace, or a kernel without
    /// time namespaces. A row without a recorded time namespace does not match a kernel that has them;
    /// verification then fails closed until the process is gone or the machine reboots. Inode reuse is
    /// harmless: the inode of a time namespace is reused only after the namespace has ended, and with it the
    /// wrapper and the supervisor of the row.
    #[must_use]
    pub fn shares_clock(&self, here: &Self) -> bool {
        self.timens == here.timens
    }

    /// Returns the relation of this recorded scope to the current one.
    #[must_use]
    pub fn relation_to(&self, here: &Self) -> ScopeRelation {
        if self.boot_id != here.boot_id {
            return ScopeRelation::EarlierBoot;
        }
        if self.pidns != here.pidns {
            return ScopeRelation::Elsewhere("it was recorded in another pid namespace");
        }
        if !self.init.may_equal(here.init, self.shares_clock(here)) {
            return ScopeRelation::Elsewhere("it was recorded in a pid namespace that has ended since");
        }
        ScopeRelation::Here
    }
}

/// Process tree of a bound lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundProcesses {
    /// Wrapper, the root of the tree.
    pub wrapper: ProcessRecord,
    /// Adapter process.
    pub adapter: ProcessRecord,
    /// Process group of the adapter.
    pub pgid: i32,
    /// Session of the wrapper.
    pub sid: i32,
}

/// Row of the lease table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Lease id.
    pub lease_id: LeaseId,
    /// Gateway that owns the lease.
    pub gateway: GatewayInstanceId,
    /// User id of the gateway.
    pub owner_uid: u32,
    /// Session that the lease serves.
    pub session_key: SessionKey,
    /// Kind of lease: agent or terminal.
    pub kind: LeaseKind,
    /// Maximum time of each step of the shutdown.
    pub graces: Graces,
    /// Directory under which wrappers are started.
    pub wrapper_root: String,
    /// Executable of the wrapper.
    pub wrapper_path: String,
    /// Supervisor that spawned the lease.
    pub supervisor: ProcessRecord,
    /// Scope in which all pids of this row are valid.
    pub scope: PidScope,
    /// Process tree, once known.
    pub bound: Option<BoundProcesses>,
    /// SHA-256 of the argument vector, in hex.
    pub command_hash: String,
    /// SHA-256 of the whole spawn request, in hex. A repeated request must match.
    pub spec_hash: String,
    /// Control group of the tree, if the containment level uses one.
    pub cgroup_path: Option<String>,
    /// Containment level of the tree.
    pub rung: String,
    /// Reservation time, milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// End time, milliseconds since the Unix epoch.
    pub ended_at_ms: Option<u64>,
    /// State of the lease.
    pub state: LeaseState,
    /// Reason for the state, as text.
    pub state_reason: String,
    /// Latest evidence about the tree, as JSON.
    pub last_evidence_json: Option<String>,
    /// Exit status of the adapter.
    pub exit: Option<ExitStatus>,
    /// First output byte that is kept (in the spool, once the lease has ended).
    pub stdout_base: u64,
    /// One past the last output byte received.
    pub stdout_end: u64,
    /// Highest input number that was completely written.
    pub stdin_written: u64,
    /// True if the gateway has released the lease and its output.
    pub released: bool,
}

impl Lease {
    /// Applies an event and records the reason.
    ///
    /// # Errors
    /// [`TransitionError`]; the lease is unchanged.
    pub fn apply(&mut self, event: LeaseEvent, reason: &str) -> Result<(), TransitionError> {
        let to = on(self.state, event)?;
        if to != self.state || self.state_reason.is_empty() {
            self.explain(reason);
        }
        if !to.is_ended() {
            self.ended_at_ms = None;
        }
        self.state = to;
        Ok(())
    }

    /// Sets the reason of the state.
    pub fn explain(&mut self, reason: &str) {
        self.state_reason = sanitize_reason(reason);
    }

    /// Takes a lease with an untrusted record out of use: sets the state to lost and removes its pids, so
    /// that no process is signalled because of this row. The recorded pids are preserved in the evidence.
    pub fn quarantine(&mut self, why: &str, at_ms: u64) {
        if let Some(bound) = self.bound.take() {
            let (wrapper, adapter) = (bound.wrapper.pid, bound.adapter.pid);
            self.last_evidence_json = Some(format!(
                r#"{{"quarantined":{{"wrapper_pid":{wrapper},"adapter_pid":{adapter},"pgid":{},"sid":{}}}}}"#,
                bound.pgid, bound.sid
            ));
        }
        self.explain(&format!("{QUARANTINED}, nothing is signalled for it: {why}"));
        self.state = LeaseState::Lost;
        self.ended_at_ms = self.ended_at_ms.or(Some(at_ms));
    }

    /// True if the lease was taken out of use without an examination of its processes.
    #[must_use]
    pub fn is_quarantined(&self) -> bool {
        self.state == LeaseState::Lost && self.state_reason.starts_with(QUARANTINED)
    }

    /// Returns the agent's lease that a terminal belongs to.
    #[must_use]
    pub const fn parent(&self) -> Option<LeaseId> {
        match &self.kind {
            LeaseKind::Agent => None,
            LeaseKind::Terminal { parent_lease_id, .. } => Some(*parent_lease_id),
        }
    }

    /// Returns the description for clients and reports.
    #[must_use]
    pub fn info(&self) -> LeaseInfo {
        LeaseInfo {
            lease_id: self.lease_id,
            gateway_instance_id: self.gateway,
            owner_uid: self.owner_uid,
            session_key: self.session_key.clone(),
            kind: self.kind.clone(),
            state: self.state,
            state_reason: self.state_reason.clone(),
            wrapper_pid: self.bound.map(|b| b.wrapper.pid),
            adapter_pid: self.bound.map(|b| b.adapter.pid),
            pgid: self.bound.map(|b| b.pgid),
            sid: self.bound.map(|b| b.sid),
            wrapper_path: self.wrapper_path.clone(),
            command_hash: self.command_hash.clone(),
            rung: self.rung.clone(),
            started_at_ms: self.started_at_ms,
            exit: self.exit,
            stdout_end: self.stdout_end,
            stdout_acked: self.stdout_base,
            stdin_written: self.stdin_written,
            memory_bytes: None,
            tree_size: None,
            buffered_bytes: 0,
            cgroup_path: self.cgroup_path.clone(),
        }
    }
}

const QUARANTINED: &str = "quarantined";
/// Prefix of a reason that lists survivors of SIGKILL.
pub const UNENDED: &str = "SIGKILL did not end";
/// Maximum length of a stored reason, in bytes.
pub const REASON_BYTES_MAX: usize = 500;

/// Makes a reason safe to store and print: one line, no control characters, at most `REASON_BYTES_MAX`
/// bytes.
#[must_use]
pub fn sanitize_reason(reason: &str) -> String {
    let mut safe = String::new();
    for c in reason.chars() {
        let from = safe.len();
        if c.is_control() {
            safe.extend(c.escape_default())
        } else {
            safe.push(c)
        }
        if safe.len() > REASON_BYTES_MAX {
            safe.truncate(from);
            break;
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    /// Result of every event in every state.
    fn table() -> String {
        let mut text = String::new();
        for state in LeaseState::ALL {
            for event in LeaseEvent::ALL {
                let to = on(state, event).map_or_else(
                    |error| {
                        assert_eq!(error, TransitionError { from: state, event });
                        "-"
                    },
                    LeaseState::as_str,
                );
                text.push_str(&format!("{:<9} {:<6} {to}\n", state.as_str(), format!("{event:?}")));
            }
        }
        text
    }

    #[test]
    fn lease_transitions_match_table() {
        assert_eq!(table(), include_str!("lease.table.txt"));
    }

    #[test]
    fn rediscovered_lease_has_no_end_time() {
        let mut lease = Lease { state: LeaseState::Lost, ended_at_ms: Some(5), ..fixture::lease() };
        lease.apply(LeaseEvent::Close, "found again").unwrap();
        assert_eq!((lease.state, lease.ended_at_ms), (LeaseState::Closing, None));
    }

    #[test]
    fn ending_event_depends_on_state_and_evidence() {
        for state in LeaseState::ALL {
            for tree in [EndedTree::Accounted, EndedTree::Vanished, EndedTree::Doubtful] {
                let in_order = state == LeaseState::Closing && tree == EndedTree::Accounted;
                let want = if in_order { LeaseEvent::Gone } else { LeaseEvent::Lose };
                assert_eq!(ending_event(state, tree), want, "{state} {tree:?}");
            }
        }
    }

    #[test]
    fn lease_reason_is_truncated_and_escaped() {
        assert_eq!(sanitize_reason("its agent ended"), "its agent ended");
        assert_eq!(sanitize_reason("a\u{1b}[2Jb\n\u{9b}c\u{7f}é"), "a\\u{1b}[2Jb\\n\\u{9b}c\\u{7f}é");
        let long = sanitize_reason(&"é".repeat(REASON_BYTES_MAX));
        assert_eq!((long.len(), long.chars().all(|c| c == 'é')), (REASON_BYTES_MAX, true));
        let escapes = sanitize_reason(&"\u{1b}".repeat(REASON_BYTES_MAX));
        assert!(escapes.len() <= REASON_BYTES_MAX && escapes.ends_with("\\u{1b}"), "an escape was cut");
    }

    #[test]
    fn init_is_compared_by_same_clock_or_inode() {
        let here = PidScope {
            boot_id: "boot".into(),
            pidns: 7,
            timens: Some(3),
            init: NsInit { start_ticks: Some(1), inode: Some(3) },
        };
        let other = NsInit { start_ticks: Some(2), inode: None };
        for (name, timens, init, is_here) in [
            ("other start time, same clock", Some(3), other, false),
            ("other start time, other clock", Some(4), other, true),
            ("other start time, unrecorded clock", None, other, true),
            ("the same inode", Some(4), NsInit { inode: Some(3), ..other }, true),
            ("another inode", Some(4), NsInit { inode: Some(2), ..other }, false),
        ] {
            let scope = PidScope { timens, init, ..here.clone() };
            assert_eq!(scope.relation_to(&here) == ScopeRelation::Here, is_here, "{name}");
        }
    }

    #[test]
    fn other_boot_or_ended_namespace_proves_end() {
        let init = |inode| NsInit { start_ticks: Some(1), inode };
        let here = PidScope { boot_id: "boot".into(), pidns: 7, timens: Some(3), init: init(Some(3)) };
        for (name, scope, over) in [
            ("same scope", here.clone(), false),
            ("another boot", PidScope { boot_id: "other".into(), ..here.clone() }, true),
            ("unreadable boot", PidScope { boot_id: String::new(), ..here.clone() }, false),
            ("another namespace", PidScope { pidns: 8, ..here.clone() }, false),
            ("ended namespace", PidScope { init: init(Some(2)), ..here.clone() }, true),
            ("namespace with unknown init", PidScope { init: init(None), ..here.clone() }, false),
        ] {
            assert_eq!(scope.is_over(&here).is_some(), over, "{name}");
        }
    }
}

#[cfg(test)]
pub(crate) mod fixture {
    //! A lease for tables.
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    /// Reserved lease of an agent in scope `boot`/7.
    pub(crate) fn lease() -> Lease {
        Lease {
            lease_id: LeaseId::mint(),
            gateway: GatewayInstanceId::mint(),
            owner_uid: 1000,
            session_key: SessionKey::parse("agent:demo:acp:1").unwrap(),
            kind: LeaseKind::Agent,
            graces: Graces::default(),
            wrapper_root: "/w".into(),
            wrapper_path: "/w/acp-wrapper".into(),
            supervisor: ProcessRecord { pid: 50, start_ticks: 1, inode: Some(2) },
            scope: PidScope { boot_id: "boot".into(), pidns: 7, timens: Some(3), init: NsInit::default() },
            bound: None,
            command_hash: "aa".into(),
            spec_hash: "bb".into(),
            cgroup_path: None,
            rung: "R2".into(),
            started_at_ms: 1,
            ended_at_ms: None,
            state: LeaseState::Reserved,
            state_reason: String::new(),
            last_evidence_json: None,
            exit: None,
            stdout_base: 0,
            stdout_end: 0,
            stdin_written: 0,
            released: false,
        }
    }
}
