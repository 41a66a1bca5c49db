//! Ancestry of peer processes (H9): an agent runs as the gateway's user, but must not approve its own
//! requests or prompt other sessions. This is no security boundary: a process of the same user can have its
//! commands run by another process.

use acp_shared::launch::{ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID, WRAPPER_FILE};
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};

/// Maximum number of ancestors followed.
const GENERATIONS_MAX: usize = 4_096;
/// Maximum number of attempts to follow an ancestry that changes in the meantime.
const TRIES_MAX: u32 = 3;
/// Process name of the supervisor: all its descendants belong to leases.
const SUPERVISOR: &str = "acp-supervisor";

/// Process in an ancestry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessInfo {
    /// Process id of the parent.
    parent: i32,
    /// Process name as stored by the kernel.
    name: String,
    /// True if the environment names a lease; `None` if it cannot be read.
    marked: Option<bool>,
}

/// Source of process information.
pub(crate) trait ProcessTable {
    /// Returns a process, if it exists.
    fn process(&self, pid: i32) -> Option<ProcessInfo>;
}

/// Process information from `/proc`.
pub(crate) struct ProcFs;

impl ProcessTable for ProcFs {
    fn process(&self, pid: i32) -> Option<ProcessInfo> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name may contain any character, including parentheses; it ends at the last one.
        let (head, tail) = stat.rsplit_once(')')?;
        let parent = tail.split_ascii_whitespace().nth(1)?.parse().ok()?;
        let name = head.split_once('(').map(|(_, name)| name.to_owned())?;
        let environ = std::fs::read(format!("/proc/{pid}/environ")).ok();
        Some(ProcessInfo { parent, name, marked: environ.map(|bytes| has_lease_marker(&bytes)) })
    }
}

fn has_lease_marker(environ: &[u8]) -> bool {
    let is = |entry: &[u8], name: &str| {
        entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
    };
    environ.split(|b| *b == 0).any(|e| is(e, ENV_LEASE_ID) || is(e, ENV_GATEWAY_INSTANCE_ID))
}

/// Returns this process and its ancestors, whose properties a peer may share without being an agent.
pub(crate) fn own_ancestry(table: &impl ProcessTable) -> HashSet<i32> {
    let mut own = HashSet::new();
    let mut pid = i32::try_from(std::process::id()).unwrap_or(1);
    while pid > 0 && own.insert(pid) {
        pid = table.process(pid).map_or(0, |process| process.parent);
    }
    own
}

/// True if a process descends from a lease, or if its ancestry cannot be determined.
pub(crate) fn is_agent_process(table: &impl ProcessTable, own: &HashSet<i32>, pid: i32) -> bool {
    (0..TRIES_MAX).find_map(|_| descends_from_lease(table, own, pid)).unwrap_or(true)
}

fn descends_from_lease(table: &impl ProcessTable, own: &HashSet<i32>, pid: i32) -> Option<bool> {
    let mut at = pid;
    for _ in 0..GENERATIONS_MAX {
        if at <= 1 || own.contains(&at) {
            return Some(false);
        }
        let process = table.process(at)?;
        // A wrapper with an unreadable environment is recognised by name; any other one by environment.
        let named = process.name == SUPERVISOR || (process.name == WRAPPER_FILE && process.marked.is_none());
        if named || process.marked == Some(true) {
            return Some(true);
        }
        at = process.parent;
    }
    None
}

/// Returns a pidfd of the process behind a connection, if the kernel supports it: the process id may be
/// reused.
pub(crate) fn pidfd(socket: &impl AsFd) -> Option<OwnedFd> {
    nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::PeerPidfd).ok()
}

/// True if the process of a pidfd has ended, so that its process id is no longer valid.
pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::collections::HashMap;

    struct FakeProcesses(HashMap<i32, ProcessInfo>);

    impl ProcessTable for FakeProcesses {
        fn process(&self, pid: i32) -> Option<ProcessInfo> {
            self.0.get(&pid).cloned()
        }
    }

    #[test]
    fn processes_below_a_wrapper_are_agents() {
        let p = |parent, name: &str, marked| ProcessInfo { parent, name: name.into(), marked };
        let processes = FakeProcesses(HashMap::from([
            (10, p(1, "sshd", None)),
            (11, p(10, "bash", Some(false))),
            (12, p(11, "acp-gateway", Some(false))),
            (20, p(12, "acp-supervisor", Some(false))),
            (21, p(20, "acp-wrapper", Some(true))),
            (22, p(21, "agent", Some(true))),
            (23, p(21, "sh", Some(false))),
            (24, p(20, "escapee", Some(false))),
            (25, p(20, "acp-wrapper", None)),
            (26, p(1, "acp-wrapper", None)),
            (27, p(26, "sh", Some(false))),
            (28, p(1, "curl", Some(true))),
            (30, p(99, "sh", Some(false))),
            (40, p(11, "acp-gateway", Some(false))),
            (41, p(12, "helper", Some(false))),
            (50, p(50, "loop", Some(false))),
        ]));
        let own = HashSet::from([12, 11, 10]);
        for (name, pid, want) in [
            ("a sibling of the gateway", 40, false),
            ("a child of the gateway", 41, false),
            ("the login process", 10, false),
            ("an agent", 22, true),
            ("a grandchild without markers, adopted by the wrapper", 23, true),
            ("adopted by the supervisor after the death of its wrapper", 24, true),
            ("the wrapper of another user", 25, true),
            ("below a wrapper that hides its environment", 27, true),
            ("marked, and adopted by init", 28, true),
            ("a missing parent", 30, true),
            ("a parent cycle", 50, true),
            ("a missing process", 60, true),
        ] {
            assert_eq!(is_agent_process(&processes, &own, pid), want, "{name}");
        }
    }

    #[test]
    fn lease_marker_is_found_in_environment() {
        for (environ, want) in [
            (&b"A=1\0OPENCLAW_ACPX_LEASE_ID=x\0"[..], true),
            (b"OPENCLAW_GATEWAY_INSTANCE_ID=\0", true),
            (b"XOPENCLAW_ACPX_LEASE_ID=x\0", false),
            (b"OPENCLAW_ACPX_LEASE_IDX=x\0", false),
            (b"", false),
        ] {
            assert_eq!(has_lease_marker(environ), want);
        }
    }

    #[test]
    fn own_process_is_not_an_agent() {
        let own = own_ancestry(&ProcFs);
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(own.contains(&me));
        assert!(!is_agent_process(&ProcFs, &own, me));
    }
}
