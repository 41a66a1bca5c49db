//! Ancestry of peer processes (H9): an agent runs as the gateway's user, but must not approve its own
//! requests or prompt other sessions. This is no security boundary: a process of the same user can have its
//! commands run by another process.
//!
//! The process list shows most agents. Only for other peers the environment of the peer and its ancestors is
//! read, on few threads and with a time limit: it lies in their memory, and a read waits for them.

use acp_shared::launch::{ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID, WRAPPER_FILE};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Maximum number of ancestors followed.
const GENERATIONS_MAX: usize = 256;
/// Maximum number of attempts to follow an ancestry that changes in the meantime.
const TRIES_MAX: u32 = 3;
/// Process name of the supervisor: all its descendants belong to leases.
const SUPERVISOR: &str = "acp-supervisor";
/// Maximum size of `/proc/PID/stat`, in bytes: 52 numbers and a name. The kernel returns it with one read.
const STAT_BYTES_MAX: usize = 2_048;
/// Size of most environments, in bytes.
const ENVIRON_BYTES: usize = 8 * 1024;
/// Maximum size of an environment that is searched, in bytes.
const ENVIRON_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Maximum number of threads that read environments. One whose read hangs stays until the process ends.
const THREADS_MAX: usize = 16;
/// Time limit for the environments of one peer and its ancestors.
const ENVIRONMENT_WAIT: Duration = Duration::from_secs(2);
/// Interval of checks whether an environment is still being read for another peer.
const READING_POLL: Duration = Duration::from_millis(10);

/// Process in an ancestry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessInfo {
    /// Process id of the parent.
    parent: i32,
    /// Process name as stored by the kernel.
    name: String,
}

/// Source of process information.
pub(crate) trait ProcessTable {
    /// Returns a process, if it exists. Never waits.
    fn process(&self, pid: i32) -> Option<ProcessInfo>;

    /// True if the environment of a process names a lease; `None` if it cannot be read. May hang.
    fn has_lease_marker(&self, pid: i32) -> Option<bool>;
}

/// Process information from `/proc`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcFs;

impl ProcessTable for ProcFs {
    fn process(&self, pid: i32) -> Option<ProcessInfo> {
        let mut stat = [0; STAT_BYTES_MAX];
        let read = std::fs::File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut stat).ok()?;
        let stat = String::from_utf8_lossy(stat.get(..read)?);
        // The name may contain any character, including parentheses; it ends at the last one.
        let (head, tail) = stat.rsplit_once(')')?;
        let parent = tail.split_ascii_whitespace().nth(1)?.parse().ok()?;
        let name = head.split_once('(').map(|(_, name)| name.to_owned())?;
        Some(ProcessInfo { parent, name })
    }

    fn has_lease_marker(&self, pid: i32) -> Option<bool> {
        let mut environ = Vec::with_capacity(ENVIRON_BYTES);
        let file = std::fs::File::open(format!("/proc/{pid}/environ")).ok()?;
        file.take(ENVIRON_BYTES_MAX).read_to_end(&mut environ).ok()?;
        Some(names_lease(&environ))
    }
}

fn names_lease(environ: &[u8]) -> bool {
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

/// Returns a process and its ancestors that are not ours. `None` if the process list shows that they belong
/// to a lease, or if the ancestry cannot be determined. Never waits.
pub(crate) fn foreign_ancestry(table: &impl ProcessTable, own: &HashSet<i32>, pid: i32) -> Option<Vec<i32>> {
    (0..TRIES_MAX).find_map(|_| follow(table, own, pid)).flatten()
}

/// Follows an ancestry once; `None` if it breaks.
fn follow(table: &impl ProcessTable, own: &HashSet<i32>, pid: i32) -> Option<Option<Vec<i32>>> {
    let (mut ancestry, mut at) = (Vec::new(), pid);
    while ancestry.len() < GENERATIONS_MAX {
        if at <= 1 || own.contains(&at) {
            return Some(Some(ancestry));
        }
        let process = table.process(at)?;
        if process.name == SUPERVISOR || process.name == WRAPPER_FILE {
            return Some(None);
        }
        ancestry.push(at);
        at = process.parent;
    }
    Some(None)
}

/// True if a process is `root` or descends from it. False if that cannot be determined. Never waits.
pub(crate) fn descends_from(table: &impl ProcessTable, root: i32, pid: i32) -> bool {
    let found = (0..TRIES_MAX).find_map(|_| {
        let mut at = pid;
        for _ in 0..GENERATIONS_MAX {
            if at == root {
                return Some(true);
            }
            if at <= 1 {
                return Some(false);
            }
            at = table.process(at)?.parent;
        }
        Some(false)
    });
    found == Some(true)
}

/// True if a process, whose foreign ancestry was this one, descends from a lease, or if its ancestry cannot be
/// determined. `None` if an environment is being read by another thread. May hang.
fn is_agent_process(
    table: &impl ProcessTable,
    own: &HashSet<i32>,
    reading: &Mutex<HashSet<i32>>,
    mut ancestry: Vec<i32>,
    pid: i32,
) -> Option<bool> {
    for _ in 0..TRIES_MAX {
        for pid in &ancestry {
            if !reading.lock().insert(*pid) {
                return None;
            }
            let is_marked = table.has_lease_marker(*pid) == Some(true);
            reading.lock().remove(pid);
            if is_marked {
                return Some(true);
            }
        }
        // Another process may have had one of these ids when its environment was read.
        let Some(after) = foreign_ancestry(table, own, pid) else { return Some(true) };
        if after == ancestry {
            return Some(false);
        }
        ancestry = after;
    }
    Some(true)
}

/// Check for a reader thread. Returns the permit of the check, which the thread releases once it is idle.
type Reading = Box<dyn FnOnce() -> OwnedSemaphorePermit + Send>;

/// Threads that read environments, kept for the next peer. Not the runtime's pool: the end of the gateway would
/// wait for a read that hangs.
#[derive(Debug, Default)]
struct ReaderThreads {
    idle: Mutex<Vec<mpsc::SyncSender<Reading>>>,
}

impl ReaderThreads {
    /// Hands work to an idle thread, or to a new one.
    fn run(self: &Arc<Self>, reading: Reading) -> io::Result<()> {
        let idle = self.idle.lock().pop();
        match idle {
            Some(thread) => thread.send(reading).or_else(|error| self.start(error.0)),
            None => self.start(reading),
        }
    }

    fn start(self: &Arc<Self>, first: Reading) -> io::Result<()> {
        let pool = Arc::downgrade(self);
        let run = move || {
            let mut next = Ok(first);
            while let Ok(reading) = next {
                let place = reading();
                let Some(pool) = pool.upgrade() else { return };
                // Each channel transfers one check, so a send never waits.
                let (sender, readings) = mpsc::sync_channel(1);
                pool.idle.lock().push(sender);
                drop((place, pool));
                next = readings.recv();
            }
        };
        std::thread::Builder::new().name("peer environ".to_owned()).spawn(run).map(drop)
    }
}

/// Checks the environments of peers.
#[derive(Debug, Clone)]
pub(crate) struct EnvironmentCheck {
    own: Arc<HashSet<i32>>,
    places: Arc<Semaphore>,
    threads: Arc<ReaderThreads>,
    /// Processes whose environment is being read, each by one thread: one that hangs holds no other thread.
    reading: Arc<Mutex<HashSet<i32>>>,
}

impl EnvironmentCheck {
    /// Creates the check of a gateway with this ancestry.
    pub(crate) fn new(own: Arc<HashSet<i32>>) -> Self {
        let places = Arc::new(Semaphore::new(THREADS_MAX));
        Self { own, places, threads: Arc::default(), reading: Arc::default() }
    }

    /// True if a process, whose foreign ancestry was this one, descends from a lease. `None` if that takes too
    /// long.
    pub(crate) async fn is_agent_process(
        &self,
        table: impl ProcessTable + Clone + Send + 'static,
        ancestry: &[i32],
        pid: i32,
    ) -> Option<bool> {
        let checked = async {
            loop {
                let is_free = !ancestry.iter().any(|pid| self.reading.lock().contains(pid));
                if is_free && let Some(answer) = self.read(table.clone(), ancestry.to_vec(), pid).await {
                    return answer;
                }
                tokio::time::sleep(READING_POLL).await;
            }
        };
        tokio::time::timeout(ENVIRONMENT_WAIT, checked).await.ok()
    }

    /// Checks on a reader thread; `None` if an environment is being read by another one.
    async fn read(
        &self,
        table: impl ProcessTable + Send + 'static,
        ancestry: Vec<i32>,
        pid: i32,
    ) -> Option<bool> {
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        let (answer, answered) = oneshot::channel();
        let (own, reading) = (Arc::clone(&self.own), Arc::clone(&self.reading));
        let check = move || {
            let _ = answer.send(is_agent_process(&table, &own, &reading, ancestry, pid));
            place
        };
        self.threads.run(Box::new(check)).ok()?;
        answered.await.ok()?
    }
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

    /// Processes, and whether their environment names a lease; a read of the environment of a process in
    /// `hung` never returns.
    #[derive(Clone, Default)]
    struct FakeProcesses {
        list: HashMap<i32, (ProcessInfo, Option<bool>)>,
        hung: HashSet<i32>,
        read: Arc<Mutex<Vec<i32>>>,
    }

    impl ProcessTable for FakeProcesses {
        fn process(&self, pid: i32) -> Option<ProcessInfo> {
            self.list.get(&pid).map(|(process, _)| process.clone())
        }

        fn has_lease_marker(&self, pid: i32) -> Option<bool> {
            self.read.lock().push(pid);
            if self.hung.contains(&pid) {
                loop {
                    std::thread::park();
                }
            }
            self.list.get(&pid)?.1
        }
    }

    fn process_list() -> FakeProcesses {
        let p = |parent, name: &str, marked| (ProcessInfo { parent, name: name.into() }, marked);
        let list = HashMap::from([
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
            (29, p(28, "sh", Some(false))),
            (30, p(99, "sh", Some(false))),
            (40, p(11, "acp-gateway", Some(false))),
            (41, p(12, "helper", Some(false))),
            (50, p(50, "loop", Some(false))),
        ]);
        FakeProcesses { list, ..FakeProcesses::default() }
    }

    const OWN: [i32; 3] = [12, 11, 10];

    #[test]
    fn agents_are_recognised_by_process_list_or_environment() {
        for (name, pid, by_list, want) in [
            ("a sibling of the gateway", 40, false, false),
            ("a child of the gateway", 41, false, false),
            ("the login process", 10, false, false),
            ("an agent", 22, true, true),
            ("a grandchild without markers, adopted by the wrapper", 23, true, true),
            ("adopted by the supervisor after the death of its wrapper", 24, true, true),
            ("the wrapper of another user", 25, true, true),
            ("below a wrapper that hides its environment", 27, true, true),
            ("marked, and adopted by init", 28, false, true),
            ("a child of a marked process", 29, false, true),
            ("a missing parent", 30, true, true),
            ("a parent cycle", 50, true, true),
            ("a missing process", 60, true, true),
        ] {
            let (processes, own) = (process_list(), HashSet::from(OWN));
            assert_eq!(foreign_ancestry(&processes, &own, pid).is_none(), by_list, "{name}");
            let ancestry = foreign_ancestry(&processes, &own, pid);
            let is_agent = ancestry
                .is_none_or(|a| is_agent_process(&processes, &own, &Mutex::default(), a, pid).unwrap());
            assert_eq!(is_agent, want, "{name}");
            assert_eq!(processes.read.lock().is_empty(), by_list || pid == 10, "{name}");
        }
    }

    #[test]
    fn descent_from_a_wrapper_is_followed_and_refused_where_unknown() {
        for (name, pid, want) in [
            ("the wrapper itself", 21, true),
            ("its agent", 22, true),
            ("its shell", 23, true),
            ("adopted by the supervisor", 24, false),
            ("the wrapper of another lease", 25, false),
            ("the gateway", 12, false),
            ("init", 1, false),
            ("a process outside of this namespace", 0, false),
            ("a missing parent", 30, false),
            ("a parent cycle", 50, false),
            ("a missing process", 60, false),
        ] {
            assert_eq!(descends_from(&process_list(), 21, pid), want, "{name}");
        }
        assert!(!descends_from(&process_list(), 1, 60));
    }

    #[test]
    fn overlong_ancestry_is_followed_once() {
        assert_eq!(follow(&process_list(), &HashSet::from(OWN), 50), Some(None));
    }

    #[tokio::test]
    async fn hung_environment_delays_only_its_own_peer() {
        const PEERS: usize = 2 * THREADS_MAX;
        let check = EnvironmentCheck::new(Arc::new(HashSet::from(OWN)));
        let mut hung = FakeProcesses { hung: HashSet::from([41]), ..process_list() };
        let ask = async |processes: &FakeProcesses, pids: Vec<i32>| {
            let own = HashSet::from(OWN);
            let ancestries =
                pids.into_iter().map(|pid| (foreign_ancestry(processes, &own, pid).unwrap(), pid));
            let ancestries: Vec<_> = ancestries.collect();
            let asked = ancestries.iter().map(|(a, pid)| check.is_agent_process(processes.clone(), a, *pid));
            futures_util::future::join_all(asked).await
        };
        assert_eq!(ask(&hung, vec![41; PEERS]).await, [None; PEERS]);
        assert_eq!(ask(&hung, vec![41, 40, 28]).await, [None, Some(false), Some(true)]);
        let threads = hung.read.lock().iter().filter(|pid| **pid == 41).count();
        assert_eq!(threads, 1, "a hung process holds one thread");
        for pid in (100..).take(THREADS_MAX - 1) {
            hung.list.insert(pid, hung.list[&41].clone());
            hung.hung.insert(pid);
        }
        let others = ask(&hung, (100..).take(THREADS_MAX - 1).collect()).await;
        assert_eq!(others, [None; THREADS_MAX - 1]);
        assert_eq!(ask(&hung, vec![40]).await, [None], "the number of threads is bounded");
    }

    #[tokio::test]
    async fn concurrent_peers_of_one_process_are_all_answered() {
        const PEERS: usize = 2 * THREADS_MAX;
        let check = EnvironmentCheck::new(Arc::new(HashSet::from(OWN)));
        let ancestry = foreign_ancestry(&process_list(), &HashSet::from(OWN), 29).unwrap();
        let asked = (0..PEERS).map(|_| check.is_agent_process(process_list(), &ancestry, 29));
        assert_eq!(futures_util::future::join_all(asked).await, [Some(true); PEERS]);
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
            assert_eq!(names_lease(environ), want);
        }
    }

    #[test]
    fn own_process_is_not_an_agent() {
        let own = own_ancestry(&ProcFs);
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(own.contains(&me));
        assert_eq!(foreign_ancestry(&ProcFs, &own, me), Some(Vec::new()));
    }
}
