//! A lease: one process tree under care, and the machine of its life.
//!
//! `reserved → bound → open → closing → closed`, and `lost` from the first four; what is lost closes when its tree is
//! found again after all. The whole table is printed by `lease.table.txt`, which a test compares.

use acp_shared::ids::{GatewayInstanceId, LeaseId, SessionKey};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Graces, LeaseInfo, LeaseKind, LeaseState};
use serde::{Deserialize, Serialize};

/// What can happen to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEvent {
    /// Both pids are known and verified.
    Bind,
    /// The adapter has called exec.
    Run,
    /// The end was asked for, or the adapter ended, or the start failed, or a tree that was lost is found and ended.
    Close,
    /// The whole tree is verified gone.
    Gone,
    /// The tree vanished without an orderly end, or cannot be proved ours.
    Lose,
}

impl LeaseEvent {
    /// Every event.
    pub const ALL: [Self; 5] = [Self::Bind, Self::Run, Self::Close, Self::Gone, Self::Lose];
}

/// A transition that the machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a lease that is {from} cannot take {event:?}")]
pub struct Illegal {
    /// The state it was in.
    pub from: LeaseState,
    /// What was to happen.
    pub event: LeaseEvent,
}

/// The machine.
///
/// # Errors
/// [`Illegal`] for a pair that the table does not have; the lease stays as it was.
pub const fn on(state: LeaseState, event: LeaseEvent) -> Result<LeaseState, Illegal> {
    use LeaseEvent::{Bind, Close, Gone, Lose, Run};
    use LeaseState::{Bound, Closed, Closing, Lost, Open, Reserved};
    let illegal = Err(Illegal { from: state, event });
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

/// How a lease ends of which nothing is left: in order where its end had begun, lost where it vanished before that, or
/// where a process runs that could be its own and does not prove it. `vanished`: its wrapper ended without a word.
#[must_use]
pub const fn ending(state: LeaseState, vanished: bool, doubtful: bool) -> LeaseEvent {
    match state {
        LeaseState::Closing if !vanished && !doubtful => LeaseEvent::Gone,
        LeaseState::Closing
        | LeaseState::Reserved
        | LeaseState::Bound
        | LeaseState::Open
        | LeaseState::Closed
        | LeaseState::Lost => LeaseEvent::Lose,
    }
}

/// What identifies one process on this machine, as it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessRecord {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Its inode in pidfs, unique until the next boot, where the kernel has it.
    pub inode: Option<u64>,
}

/// Where process numbers have their meaning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Inode of the pid namespace.
    pub pidns: u64,
    /// Inode of the time namespace, whose clock start times are read by: `/proc/PID/stat` shows them by the reader's,
    /// not by the process's own. `None` where the kernel has none, and in rows from before it was recorded.
    #[serde(default)]
    pub timens: Option<u64>,
    /// The first process of the pid namespace: inodes of namespaces are used again when one has ended.
    pub init: NsInit,
}

/// What tells the first process of a pid namespace from that of another one; what could not be read is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NsInit {
    /// When it started, in clock ticks since boot.
    pub start_ticks: Option<u64>,
    /// Its inode in pidfs.
    pub inode: Option<u64>,
}

impl NsInit {
    /// Whether both can be of one process. Where they share no fact, nothing speaks against it: start times of two
    /// clocks are none.
    fn may_be(self, other: Self, one_clock: bool) -> bool {
        let ticks = self.start_ticks.zip(other.start_ticks).filter(|_| one_clock);
        match (self.inode.zip(other.inode), ticks) {
            (Some((then, now)), _) | (None, Some((then, now))) => then == now,
            (None, None) => true,
        }
    }
}

/// Where a recorded [`Scope`] lies, seen from the one that this program runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The same: recorded numbers mean what they meant.
    Here,
    /// Before the machine was started anew: nothing of it lives.
    EarlierBoot,
    /// In another pid namespace: its numbers mean nothing here.
    Elsewhere(&'static str),
}

impl Scope {
    /// Why nothing of it can live any more, where that is certain: seen from `here`, its boot or its pid namespace is
    /// over. An unreadable record proves nothing.
    #[must_use]
    pub fn is_over(&self, here: &Self) -> Option<&'static str> {
        if self.boot_id.is_empty() || here.boot_id.is_empty() {
            return None;
        }
        if self.boot_id != here.boot_id {
            return Some("the machine was started anew since");
        }
        // The number of a namespace comes again only when the one before has ended, with all that was in it.
        let other_init = self.init.inode.zip(here.init.inode).is_some_and(|(then, now)| then != now);
        (self.pidns == here.pidns && other_init).then_some("its pid namespace has ended since")
    }

    /// Whether start times that were read in both are of one clock: of one time namespace, or of a kernel that has
    /// none. A row that does not say which is of an unknown clock where the kernel has them: it fails closed, until
    /// the process is gone or the machine is started anew. The number of a namespace comes again only when the one
    /// before has ended, and with it the tree whose wrapper and supervisor were in it.
    #[must_use]
    pub fn shares_clock(&self, here: &Self) -> bool {
        self.timens == here.timens
    }

    /// Where this scope lies.
    #[must_use]
    pub fn seen_from(&self, here: &Self) -> Place {
        if self.boot_id != here.boot_id {
            return Place::EarlierBoot;
        }
        if self.pidns != here.pidns {
            return Place::Elsewhere("it was recorded in another pid namespace");
        }
        if !self.init.may_be(here.init, self.shares_clock(here)) {
            return Place::Elsewhere("it was recorded in a pid namespace that has ended since");
        }
        Place::Here
    }
}

/// The tree that a bound lease names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// The wrapper, root of the tree.
    pub wrapper: ProcessRecord,
    /// The adapter.
    pub adapter: ProcessRecord,
    /// The adapter's process group.
    pub pgid: i32,
    /// The wrapper's session.
    pub sid: i32,
}

/// One row of the lease table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// The lease.
    pub lease_id: LeaseId,
    /// Whose it is.
    pub gateway: GatewayInstanceId,
    /// The user that the gateway ran as.
    pub owner_uid: u32,
    /// The session it serves.
    pub session_key: SessionKey,
    /// What it is for.
    pub kind: LeaseKind,
    /// How long each step of its end may take.
    pub graces: Graces,
    /// The directory under which wrappers are started.
    pub wrapper_root: String,
    /// The file that its wrapper is started from.
    pub wrapper_path: String,
    /// The supervisor that spawned it.
    pub supervisor: ProcessRecord,
    /// Where all the pids of this row have their meaning.
    pub scope: Scope,
    /// The tree, once it is known.
    pub bound: Option<Bound>,
    /// SHA-256 of the argument vector, in hex.
    pub command_hash: String,
    /// SHA-256 of the whole spawn request, in hex: a repetition must match it.
    pub spec_hash: String,
    /// The control group of the tree, where there is one.
    pub cgroup_path: Option<String>,
    /// Which rung of the ladder holds the tree.
    pub rung: String,
    /// When it was reserved, milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// When it ended, milliseconds since the Unix epoch.
    pub ended_at_ms: Option<u64>,
    /// Where it is in its life.
    pub state: LeaseState,
    /// Why, in words.
    pub state_reason: String,
    /// What was last seen of its tree, as JSON.
    pub last_evidence_json: Option<String>,
    /// How the adapter ended.
    pub exit: Option<ExitStatus>,
    /// First byte of output that is kept (in the spool, once the lease has ended).
    pub stdout_base: u64,
    /// One past the last byte of output received.
    pub stdout_end: u64,
    /// Highest input number wholly written.
    pub stdin_written: u64,
    /// The gateway wants nothing more of it.
    pub released: bool,
}

impl Lease {
    /// Moves the lease and records why.
    ///
    /// # Errors
    /// [`Illegal`]; nothing is changed.
    pub fn apply(&mut self, event: LeaseEvent, reason: &str) -> Result<(), Illegal> {
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

    /// Says why it is as it is.
    pub fn explain(&mut self, reason: &str) {
        self.state_reason = harmless(reason);
    }

    /// Puts a lease out of use whose record cannot be trusted: it is lost, and names no process any more, so that
    /// none is signalled for its sake. What was recorded of its processes stays to be read.
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

    /// Whether it was put out of use without a look at its processes.
    #[must_use]
    pub fn is_quarantined(&self) -> bool {
        self.state == LeaseState::Lost && self.state_reason.starts_with(QUARANTINED)
    }

    /// The agent's lease that this terminal belongs to.
    #[must_use]
    pub const fn parent(&self) -> Option<LeaseId> {
        match &self.kind {
            LeaseKind::Agent => None,
            LeaseKind::Terminal { parent_lease_id, .. } => Some(*parent_lease_id),
        }
    }

    /// The row as people and programs see it.
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
/// What a reason says before it names those that outlived SIGKILL.
pub const UNENDED: &str = "SIGKILL did not end";
/// The longest reason that is kept, in bytes.
pub const REASON_BYTES_MAX: usize = 500;

/// A reason, whoever gave it, as it is kept: of bounded length, on one line, without orders to a terminal.
#[must_use]
pub fn harmless(reason: &str) -> String {
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

    /// Every state against every event, one line each.
    fn table() -> String {
        let mut text = String::new();
        for state in LeaseState::ALL {
            for event in LeaseEvent::ALL {
                let to = on(state, event).map_or("-", LeaseState::as_str);
                text.push_str(&format!("{:<9} {:<6} {to}\n", state.as_str(), format!("{event:?}")));
            }
        }
        text
    }

    #[test]
    fn the_whole_machine_is_written_down() {
        assert_eq!(table(), include_str!("lease.table.txt"));
    }

    #[test]
    fn closed_is_final_and_lost_only_ends_once_more() {
        for event in LeaseEvent::ALL {
            let closed = Illegal { from: LeaseState::Closed, event };
            assert_eq!(on(LeaseState::Closed, event), Err(closed));
            assert_eq!(
                on(LeaseState::Lost, event).ok(),
                (event == LeaseEvent::Close).then_some(LeaseState::Closing)
            );
        }
    }

    #[test]
    fn what_is_found_again_has_not_ended() {
        let mut lease = Lease { state: LeaseState::Lost, ended_at_ms: Some(5), ..fixture::lease() };
        lease.apply(LeaseEvent::Close, "found again").unwrap();
        assert_eq!((lease.state, lease.ended_at_ms), (LeaseState::Closing, None));
    }

    #[test]
    fn every_end_is_decided_in_one_place() {
        for state in LeaseState::ALL {
            for (vanished, doubtful) in [(false, false), (true, false), (false, true), (true, true)] {
                let in_order = state == LeaseState::Closing && !vanished && !doubtful;
                let want = if in_order { LeaseEvent::Gone } else { LeaseEvent::Lose };
                assert_eq!(ending(state, vanished, doubtful), want, "{state} {vanished} {doubtful}");
            }
        }
    }

    #[test]
    fn a_reason_is_cut_and_harmless() {
        assert_eq!(harmless("its agent ended"), "its agent ended");
        assert_eq!(harmless("a\u{1b}[2Jb\n\u{9b}c\u{7f}é"), "a\\u{1b}[2Jb\\n\\u{9b}c\\u{7f}é");
        let long = harmless(&"é".repeat(REASON_BYTES_MAX));
        assert_eq!((long.len(), long.chars().all(|c| c == 'é')), (REASON_BYTES_MAX, true));
        let escapes = harmless(&"\u{1b}".repeat(REASON_BYTES_MAX));
        assert!(escapes.len() <= REASON_BYTES_MAX && escapes.ends_with("\\u{1b}"), "no escape is cut in two");
    }

    #[test]
    fn c12_c13_s_first_processes_are_compared_by_one_clock_or_by_their_inodes() {
        let here = Scope {
            boot_id: "boot".into(),
            pidns: 7,
            timens: Some(3),
            init: NsInit { start_ticks: Some(1), inode: Some(3) },
        };
        let other = NsInit { start_ticks: Some(2), inode: None };
        for (name, timens, init, is_here) in [
            ("another start time by the same clock", Some(3), other, false),
            ("another start time by another clock", Some(4), other, true),
            ("another start time by a clock that is not on record", None, other, true),
            ("the same inode", Some(4), NsInit { inode: Some(3), ..other }, true),
            ("another inode", Some(4), NsInit { inode: Some(2), ..other }, false),
        ] {
            let scope = Scope { timens, init, ..here.clone() };
            assert_eq!(scope.seen_from(&here) == Place::Here, is_here, "{name}");
        }
    }

    #[test]
    fn h23_s_only_another_boot_or_an_ended_namespace_proves_an_end_by_itself() {
        let init = |inode| NsInit { start_ticks: Some(1), inode };
        let here = Scope { boot_id: "boot".into(), pidns: 7, timens: Some(3), init: init(Some(3)) };
        for (name, scope, over) in [
            ("the same", here.clone(), false),
            ("another boot", Scope { boot_id: "other".into(), ..here.clone() }, true),
            ("a boot that cannot be read", Scope { boot_id: String::new(), ..here.clone() }, false),
            ("another namespace, which may live", Scope { pidns: 8, ..here.clone() }, false),
            ("one that ended", Scope { init: init(Some(2)), ..here.clone() }, true),
            ("one whose first process is not known", Scope { init: init(None), ..here.clone() }, false),
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

    /// An agent's lease in scope `boot`/7, reserved.
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
            scope: Scope { boot_id: "boot".into(), pidns: 7, timens: Some(3), init: NsInit::default() },
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
