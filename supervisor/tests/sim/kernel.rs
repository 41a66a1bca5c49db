//! Faked kernel: a process table with the rules of the real one, events at virtual times, and a strict signal log.
//! Handles and log refer to serial numbers, which are never reused; pids are.

use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::{ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID, ExitStatus};
use acp_supervisor::core::lease::{NsInit, PidScope, ProcessRecord};
use acp_supervisor::core::verify::Marker;
use acp_supervisor::sys::{KernelFeatures, Signal};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// Pid of the supervisor under test.
pub(crate) const SUPERVISOR: i32 = 500;
/// Pid of the previous supervisor.
pub(crate) const EARLIER_SUPERVISOR: i32 = 400;
/// Milliseconds per clock tick.
const TICK_MS: u64 = 10;
/// Uptime of the machine at the start of a test, in ticks.
const AGE_TICKS: u64 = 100_000;

/// Identity of a process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Serial(pub(crate) u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskState {
    Running,
    /// SIGTERM stays pending until SIGCONT.
    Stopped,
    /// Every signal stays pending.
    Uninterruptible,
    Zombie,
}

/// Effect of SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TermAction {
    Dies,
    Ignores,
    /// Handled by the process, as a wrapper does.
    Caught,
}

/// One process. `tree` is the owning lease; evidence cannot change it.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) serial: Serial,
    pub(crate) pid: i32,
    pub(crate) ppid: i32,
    pub(crate) pgid: i32,
    /// Creator of the process group. The group outlives its leader, and its id may be reused.
    pub(crate) group: Serial,
    pub(crate) sid: i32,
    pub(crate) start_ticks: u64,
    pub(crate) inode: u64,
    pub(crate) uid: u32,
    pub(crate) state: TaskState,
    pub(crate) pending: Vec<Signal>,
    pub(crate) on_term: TermAction,
    pub(crate) caught: u32,
    pub(crate) environ: Vec<u8>,
    pub(crate) environ_secret: bool,
    /// Hidden by `/proc` (hidepid).
    pub(crate) hidden: bool,
    /// Held by a tracer, so it cannot be reaped.
    pub(crate) traced: bool,
    /// Killed with its parent.
    pub(crate) dies_with_parent: bool,
    pub(crate) subreaper: bool,
    /// Reaps its children at once.
    pub(crate) reaps: bool,
    pub(crate) threads: Vec<i32>,
    pub(crate) exe: String,
    pub(crate) name: String,
    pub(crate) status: ExitStatus,
    pub(crate) tree: Option<LeaseId>,
}

/// A signal that reached a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SentSignal {
    pub(crate) at_ms: u64,
    pub(crate) pid: i32,
    pub(crate) signal: Signal,
    pub(crate) serial: Serial,
}

/// A call with a scripted event after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Snapshot,
    Open(i32),
    Evidence(i32),
    Signalled(i32, Signal),
}

type Script = Box<dyn FnOnce(&mut Kernel) + Send>;

/// The faked machine.
pub(crate) struct Kernel {
    tasks: BTreeMap<i32, Task>,
    next_serial: u64,
    next_pid: i32,
    began: Instant,
    pub(crate) scope: Option<PidScope>,
    pub(crate) abilities: KernelFeatures,
    /// Uid of the supervisor; 0 may signal every process.
    pub(crate) uid: u32,
    pub(crate) list_fails: bool,
    /// A pidfd reports the parent of a hidden process.
    pub(crate) pidfd_info: bool,
    /// Error of every wait for a child.
    pub(crate) collect_fails: Option<rustix::io::Errno>,
    /// Paths of populated cgroups.
    pub(crate) populated_groups: HashSet<String>,
    /// Number of signals sent before each read of environments.
    pub(crate) environs_read_at: Vec<usize>,
    /// Leases whose processes may be signalled; any other signal is a violation.
    pub(crate) owned: HashSet<LeaseId>,
    pub(crate) sent: Vec<SentSignal>,
    pub(crate) violations: Vec<String>,
    events: Vec<(u64, Script)>,
    hooks: VecDeque<(Call, Script)>,
    /// Number of reads of the process list.
    pub(crate) list_reads: u32,
    /// Number of released adapters.
    pub(crate) releases: u32,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("tasks", &self.tasks).field("sent", &self.sent).finish_non_exhaustive()
    }
}

/// Environment of a process of a lease.
pub(crate) fn environ(lease: LeaseId, gateway: GatewayInstanceId) -> Vec<u8> {
    format!("PATH=/bin\0{ENV_LEASE_ID}={lease}\0{ENV_GATEWAY_INSTANCE_ID}={gateway}\0").into_bytes()
}

/// Locks the machine after running the events that are due.
pub(crate) fn lock(kernel: &Mutex<Kernel>) -> MutexGuard<'_, Kernel> {
    let mut kernel = kernel.lock().unwrap_or_else(PoisonError::into_inner);
    kernel.catch_up();
    kernel
}

impl Kernel {
    /// Machine with an init process and the supervisor under test.
    pub(crate) fn new() -> Self {
        let abilities = KernelFeatures {
            signals: true,
            pidfd: true,
            pidfs_inode: true,
            pidfd_group: true,
            scm_pidfd: false,
            proc_list: true,
            subreaper: true,
            ..KernelFeatures::NONE
        };
        let mut kernel = Self {
            tasks: BTreeMap::new(),
            next_serial: 1,
            next_pid: 1_000,
            began: Instant::now(),
            scope: None,
            abilities,
            uid: 1000,
            list_fails: false,
            pidfd_info: true,
            collect_fails: None,
            populated_groups: HashSet::new(),
            environs_read_at: Vec::new(),
            owned: HashSet::new(),
            sent: Vec::new(),
            violations: Vec::new(),
            events: Vec::new(),
            hooks: VecDeque::new(),
            list_reads: 0,
            releases: 0,
        };
        kernel.create(1, 0, "init");
        kernel.create(SUPERVISOR, 1, "acp-supervisor");
        kernel.edit(SUPERVISOR, |t| (t.subreaper, t.reaps) = (true, false));
        let init = kernel.task(1);
        let init = NsInit { start_ticks: Some(init.start_ticks), inode: Some(init.inode) };
        kernel.scope = Some(PidScope { boot_id: "boot".into(), pidns: 7, timens: Some(3), init });
        kernel
    }

    /// Milliseconds since the start of the test.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Start time of a process created now.
    pub(crate) fn now_ticks(&self) -> u64 {
        AGE_TICKS + self.now_ms() / TICK_MS
    }

    /// Schedules a script in virtual time; the next call from outside runs it.
    pub(crate) fn schedule(&mut self, after_ms: u64, script: impl FnOnce(&mut Self) + Send + 'static) {
        self.events.push((self.now_ms() + after_ms, Box::new(script)));
    }

    /// Runs a script right after the next call of this kind.
    pub(crate) fn run_after(&mut self, call: Call, script: impl FnOnce(&mut Self) + Send + 'static) {
        self.hooks.push_back((call, Box::new(script)));
    }

    /// Runs the scripts that are due.
    pub(crate) fn catch_up(&mut self) {
        loop {
            let now = self.now_ms();
            let due = |(_, (at, _)): &(usize, &(u64, Script))| *at <= now;
            let next = self.events.iter().enumerate().filter(due).min_by_key(|(_, (at, _))| *at);
            let Some(index) = next.map(|(index, _)| index) else { return };
            let (_, script) = self.events.remove(index);
            script(self);
        }
    }

    /// Runs the script for a call.
    pub(crate) fn run_hooks(&mut self, call: Call) {
        if let Some(index) = self.hooks.iter().position(|(of, _)| *of == call)
            && let Some((_, script)) = self.hooks.remove(index)
        {
            script(self);
        }
    }

    /// True if no script is pending.
    pub(crate) fn has_no_pending_script(&self) -> bool {
        self.events.is_empty() && self.hooks.is_empty()
    }

    // ---- processes ----

    /// Process with this pid.
    pub(crate) fn get(&self, pid: i32) -> Option<&Task> {
        self.tasks.get(&pid)
    }

    /// Process with this pid; panics without one.
    pub(crate) fn task(&self, pid: i32) -> &Task {
        self.get(pid).unwrap_or_else(|| panic!("no process {pid}"))
    }

    /// All processes.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values()
    }

    /// Process with this serial number, unless reaped.
    pub(crate) fn by_serial(&self, serial: Serial) -> Option<&Task> {
        self.tasks.values().find(|t| t.serial == serial)
    }

    /// True if a process with this pid runs.
    pub(crate) fn is_running(&self, pid: i32) -> bool {
        self.get(pid).is_some_and(|t| t.state != TaskState::Zombie)
    }

    /// Changes a process.
    pub(crate) fn edit(&mut self, pid: i32, change: impl FnOnce(&mut Task)) {
        change(self.tasks.get_mut(&pid).unwrap_or_else(|| panic!("no process {pid}")));
    }

    /// Record of a process, as a lease stores it.
    pub(crate) fn record(&self, pid: i32) -> ProcessRecord {
        let task = self.task(pid);
        let inode = Some(task.inode).filter(|_| self.abilities.pidfd && self.abilities.pidfs_inode);
        ProcessRecord { pid, start_ticks: task.start_ticks, inode }
    }

    /// Returns an unused pid.
    pub(crate) fn free_pid(&mut self) -> i32 {
        while self.is_taken(self.next_pid) {
            self.next_pid += 1;
        }
        self.next_pid
    }

    /// A pid stays in use while a process, thread, group or session has it.
    fn is_taken(&self, pid: i32) -> bool {
        self.tasks.values().any(|t| t.pid == pid || t.pgid == pid || t.sid == pid || t.threads.contains(&pid))
    }

    /// Creates a foreign process in its own session with this pid.
    pub(crate) fn create(&mut self, pid: i32, ppid: i32, name: &str) -> Serial {
        assert!(!self.is_taken(pid), "pid {pid} is in use");
        let serial = Serial(self.next_serial);
        self.next_serial += 1;
        let task = Task {
            serial,
            pid,
            ppid,
            pgid: pid,
            group: serial,
            sid: pid,
            start_ticks: self.now_ticks(),
            inode: 50_000 + serial.0,
            uid: self.uid,
            state: TaskState::Running,
            pending: Vec::new(),
            on_term: TermAction::Dies,
            caught: 0,
            environ: b"PATH=/bin\0".to_vec(),
            environ_secret: false,
            hidden: false,
            traced: false,
            dies_with_parent: false,
            subreaper: false,
            reaps: true,
            threads: Vec::new(),
            exe: format!("/usr/bin/{name}"),
            name: name.to_owned(),
            status: ExitStatus::Unknown,
            tree: None,
        };
        self.tasks.insert(pid, task);
        serial
    }

    /// Forks: the child inherits group, session, user, environment and tree.
    pub(crate) fn fork(&mut self, parent: i32, name: &str) -> i32 {
        let pid = self.free_pid();
        let of = self.task(parent).clone();
        self.create(pid, parent, name);
        self.edit(pid, |t| {
            (t.pgid, t.group, t.sid, t.uid) = (of.pgid, of.group, of.sid, of.uid);
            (t.environ, t.tree) = (of.environ, of.tree);
        });
        pid
    }

    /// Puts a process into its own group.
    pub(crate) fn setpgid(&mut self, pid: i32) {
        self.edit(pid, |t| (t.pgid, t.group) = (t.pid, t.serial));
    }

    /// Puts a process into its own session.
    pub(crate) fn setsid(&mut self, pid: i32) {
        self.setpgid(pid);
        self.edit(pid, |t| t.sid = t.pid);
    }

    /// Ends a process. Its children go to the nearest living subreaper, or to init.
    pub(crate) fn exit(&mut self, pid: i32, status: ExitStatus) {
        if !self.is_running(pid) {
            return;
        }
        let adopter = self.adopter(self.task(pid).ppid);
        self.edit(pid, |t| {
            (t.state, t.status) = (TaskState::Zombie, status);
            t.pending.clear();
        });
        let children: Vec<i32> = self.tasks.values().filter(|t| t.ppid == pid).map(|t| t.pid).collect();
        for child in children {
            self.edit(child, |t| t.ppid = adopter);
            if self.task(child).dies_with_parent {
                self.deliver(child, Signal::Kill);
            }
            self.reap_if_parent_reaps(child);
        }
        self.reap_if_parent_reaps(pid);
    }

    fn adopter(&self, mut at: i32) -> i32 {
        while let Some(task) = self.get(at) {
            if task.subreaper && task.state != TaskState::Zombie {
                return at;
            }
            at = task.ppid;
        }
        1
    }

    /// Reaps a zombie whose parent reaps at once.
    fn reap_if_parent_reaps(&mut self, pid: i32) {
        let Some(task) = self.get(pid) else { return };
        let collected =
            task.state == TaskState::Zombie && !task.traced && self.get(task.ppid).is_none_or(|p| p.reaps);
        if collected {
            self.reap(pid);
        }
    }

    /// Reaps a zombie, which frees its pid.
    pub(crate) fn reap(&mut self, pid: i32) {
        assert_eq!(self.task(pid).state, TaskState::Zombie, "reaped a living process");
        self.tasks.remove(&pid);
    }

    /// Ends a process and reuses its pid in the same tick.
    pub(crate) fn replace_with_foreign(&mut self, pid: i32) {
        let ticks = self.task(pid).start_ticks;
        self.exit(pid, ExitStatus::Exited(0));
        if self.get(pid).is_some() {
            self.reap(pid);
        }
        self.create(pid, 1, "foreign");
        self.edit(pid, |t| t.start_ticks = ticks);
    }

    /// Ends all processes of a tree without a signal.
    pub(crate) fn exit_tree(&mut self, tree: LeaseId) {
        let pids: Vec<i32> = self.tasks.values().filter(|t| t.tree == Some(tree)).map(|t| t.pid).collect();
        for pid in pids {
            self.exit(pid, ExitStatus::Exited(0));
        }
    }

    /// Running processes of a tree.
    pub(crate) fn alive(&self, tree: LeaseId) -> Vec<i32> {
        let of = |t: &&Task| t.tree == Some(tree) && t.state != TaskState::Zombie;
        self.tasks.values().filter(of).map(|t| t.pid).collect()
    }

    // ---- signals ----

    /// True if the supervisor's user may signal the process.
    pub(crate) fn may_signal(&self, pid: i32) -> bool {
        self.uid == 0 || self.task(pid).uid == self.uid
    }

    /// Logs and checks a signal of the supervisor, then delivers it.
    pub(crate) fn signal(&mut self, pid: i32, signal: Signal) {
        let (serial, tree, name) = {
            let task = self.task(pid);
            (task.serial, task.tree, task.name.clone())
        };
        let at_ms = self.now_ms();
        self.sent.push(SentSignal { at_ms, pid, signal, serial });
        if !tree.is_some_and(|tree| self.owned.contains(&tree)) {
            self.violations
                .push(format!("{signal:?} at {at_ms} ms to {pid} ({name}), a process of no lease"));
        }
        self.deliver(pid, signal);
        self.run_hooks(Call::Signalled(pid, signal));
    }

    /// Applies the effect of a signal.
    pub(crate) fn deliver(&mut self, pid: i32, signal: Signal) {
        let task = self.task(pid).clone();
        match (task.state, signal) {
            (TaskState::Zombie, _) => {}
            (TaskState::Uninterruptible, _) | (TaskState::Stopped, Signal::Term) => {
                self.edit(pid, |t| t.pending.push(signal));
            }
            (TaskState::Stopped | TaskState::Running, Signal::Kill) => {
                self.exit(pid, ExitStatus::Signaled(9))
            }
            (TaskState::Stopped, Signal::Cont) => self.resume(pid),
            (TaskState::Running, Signal::Stop) => self.edit(pid, |t| t.state = TaskState::Stopped),
            (TaskState::Running, Signal::Cont) | (TaskState::Stopped, Signal::Stop) => {}
            (TaskState::Running, Signal::Term) => match task.on_term {
                TermAction::Dies => self.exit(pid, ExitStatus::Signaled(15)),
                TermAction::Ignores => {}
                TermAction::Caught => self.edit(pid, |t| t.caught += 1),
            },
        }
    }

    /// Resumes a process and delivers its pending signals.
    pub(crate) fn resume(&mut self, pid: i32) {
        let mut pending = Vec::new();
        self.edit(pid, |t| {
            t.state = TaskState::Running;
            pending = std::mem::take(&mut t.pending);
        });
        for signal in pending {
            if self.is_running(pid) {
                self.deliver(pid, signal);
            }
        }
    }

    /// Detaches the tracer.
    pub(crate) fn untrace(&mut self, pid: i32) {
        self.edit(pid, |t| t.traced = false);
        self.reap_if_parent_reaps(pid);
    }

    // ---- reads ----

    pub(crate) fn record_environ_read(&mut self) {
        self.environs_read_at.push(self.sent.len());
    }

    /// Marker of a process as the supervisor can read it.
    pub(crate) fn marker(&self, pid: i32) -> Marker {
        match self.get(pid) {
            Some(task) if !task.hidden && !task.environ_secret && task.state != TaskState::Zombie => {
                Marker::parse(&task.environ)
            }
            Some(_) | None => Marker::Unreadable,
        }
    }
}
