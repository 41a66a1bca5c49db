//! A faked kernel: a process table that obeys the rules of the real one that matter here, events at virtual times,
//! and a strict log of signals. Each process has a serial number that is never used again, which handles and the
//! log go by; its pid may be given to another process once it has been reaped.

use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::{ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID, ExitStatus};
use acp_supervisor::core::lease::{NsInit, PidScope, ProcessRecord};
use acp_supervisor::core::verify::Marker;
use acp_supervisor::sys::{KernelFeatures, Signal};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// The supervisor under test.
pub(crate) const ME: i32 = 500;
/// The pid that the supervisor before it had.
pub(crate) const EARLIER: i32 = 400;
/// What the kernel counts start times in, milliseconds a tick.
const TICK_MS: u64 = 10;
/// The age of the machine when a test begins, in ticks.
const AGE_TICKS: u64 = 100_000;

/// Which process, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Serial(pub(crate) u64);

/// What a process does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// Takes no SIGTERM until it is continued.
    Stopped,
    /// In the kernel: takes no signal at all until it comes out.
    Uninterruptible,
    Zombie,
}

/// What SIGTERM does to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnTerm {
    Dies,
    Ignores,
    /// Its own code decides; a wrapper's does.
    Caught,
}

/// One process. `tree` is the truth about whose it is, which no evidence can forge.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) serial: Serial,
    pub(crate) pid: i32,
    pub(crate) ppid: i32,
    pub(crate) pgid: i32,
    /// Who made its group: a group outlives its leader, and its number may come again.
    pub(crate) group: Serial,
    pub(crate) sid: i32,
    pub(crate) start_ticks: u64,
    pub(crate) inode: u64,
    pub(crate) uid: u32,
    pub(crate) state: State,
    pub(crate) pending: Vec<Signal>,
    pub(crate) on_term: OnTerm,
    pub(crate) caught: u32,
    pub(crate) environ: Vec<u8>,
    pub(crate) environ_secret: bool,
    /// `/proc` shows nothing of it to us (hidepid).
    pub(crate) hidden: bool,
    /// A tracer keeps it from being collected.
    pub(crate) traced: bool,
    /// Its death follows that of its parent.
    pub(crate) dies_with_parent: bool,
    pub(crate) subreaper: bool,
    /// Whether it collects its dead children at once.
    pub(crate) reaps: bool,
    pub(crate) threads: Vec<i32>,
    pub(crate) exe: String,
    pub(crate) name: String,
    pub(crate) status: ExitStatus,
    pub(crate) tree: Option<LeaseId>,
}

/// A signal that reached a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) at_ms: u64,
    pub(crate) pid: i32,
    pub(crate) signal: Signal,
    pub(crate) serial: Serial,
}

/// A call after which something may be scripted to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Snapshot,
    Open(i32),
    Evidence(i32),
    Signalled(i32, Signal),
}

type Script = Box<dyn FnOnce(&mut Kernel) + Send>;

/// The machine.
pub(crate) struct Kernel {
    tasks: BTreeMap<i32, Task>,
    next_serial: u64,
    next_pid: i32,
    began: Instant,
    pub(crate) scope: Option<PidScope>,
    pub(crate) abilities: KernelFeatures,
    /// Our own user; 0 may signal everybody.
    pub(crate) uid: u32,
    pub(crate) list_fails: bool,
    /// A pidfd tells the parent of a process that `/proc` hides.
    pub(crate) pidfd_info: bool,
    /// Why no child can be waited for.
    pub(crate) collect_fails: Option<rustix::io::Errno>,
    /// Control groups that hold something.
    pub(crate) populated_groups: HashSet<String>,
    /// How many signals had been sent each time that environments were read.
    pub(crate) environs_read_at: Vec<usize>,
    /// Leases whose processes may be signalled. A signal to any other process is a violation.
    pub(crate) ours: HashSet<LeaseId>,
    pub(crate) sent: Vec<Sent>,
    pub(crate) violations: Vec<String>,
    events: Vec<(u64, Script)>,
    hooks: VecDeque<(Call, Script)>,
    /// How often the process list was read.
    pub(crate) lists: u32,
    /// How many adapters were let go.
    pub(crate) execs: u32,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("tasks", &self.tasks).field("sent", &self.sent).finish_non_exhaustive()
    }
}

/// The environment of a process of a lease.
pub(crate) fn environ(lease: LeaseId, gateway: GatewayInstanceId) -> Vec<u8> {
    format!("PATH=/bin\0{ENV_LEASE_ID}={lease}\0{ENV_GATEWAY_INSTANCE_ID}={gateway}\0").into_bytes()
}

/// The machine, with everything that is due by now.
pub(crate) fn lock(kernel: &Mutex<Kernel>) -> MutexGuard<'_, Kernel> {
    let mut kernel = kernel.lock().unwrap_or_else(PoisonError::into_inner);
    kernel.catch_up();
    kernel
}

impl Kernel {
    /// A machine with an init process and the supervisor under test.
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
            ours: HashSet::new(),
            sent: Vec::new(),
            violations: Vec::new(),
            events: Vec::new(),
            hooks: VecDeque::new(),
            lists: 0,
            execs: 0,
        };
        kernel.place(1, 0, "init");
        kernel.place(ME, 1, "acp-supervisor");
        kernel.edit(ME, |t| (t.subreaper, t.reaps) = (true, false));
        let init = kernel.task(1);
        let init = NsInit { start_ticks: Some(init.start_ticks), inode: Some(init.inode) };
        kernel.scope = Some(PidScope { boot_id: "boot".into(), pidns: 7, timens: Some(3), init });
        kernel
    }

    /// Milliseconds since the test began.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The tick that a process which starts now gets.
    pub(crate) fn now_ticks(&self) -> u64 {
        AGE_TICKS + self.now_ms() / TICK_MS
    }

    /// Has something happen after so long in virtual time, seen by the next call from outside.
    pub(crate) fn in_ms(&mut self, after_ms: u64, script: impl FnOnce(&mut Self) + Send + 'static) {
        self.events.push((self.now_ms() + after_ms, Box::new(script)));
    }

    /// Has something happen right after the next call of this kind.
    pub(crate) fn after(&mut self, call: Call, script: impl FnOnce(&mut Self) + Send + 'static) {
        self.hooks.push_back((call, Box::new(script)));
    }

    /// Runs what is due.
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

    /// Runs what was scripted for after a call.
    pub(crate) fn done(&mut self, call: Call) {
        if let Some(index) = self.hooks.iter().position(|(of, _)| *of == call)
            && let Some((_, script)) = self.hooks.remove(index)
        {
            script(self);
        }
    }

    /// Whether all that was scripted has happened.
    pub(crate) fn script_is_over(&self) -> bool {
        self.events.is_empty() && self.hooks.is_empty()
    }

    // ---- processes ----

    /// The process that has a number now.
    pub(crate) fn get(&self, pid: i32) -> Option<&Task> {
        self.tasks.get(&pid)
    }

    /// The process that has a number now; it must be there.
    pub(crate) fn task(&self, pid: i32) -> &Task {
        self.get(pid).unwrap_or_else(|| panic!("no process {pid}"))
    }

    /// All processes.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values()
    }

    /// The process behind a handle, if it was not reaped.
    pub(crate) fn by_serial(&self, serial: Serial) -> Option<&Task> {
        self.tasks.values().find(|t| t.serial == serial)
    }

    /// Whether somebody runs under this number.
    pub(crate) fn runs(&self, pid: i32) -> bool {
        self.get(pid).is_some_and(|t| t.state != State::Zombie)
    }

    /// Changes a process.
    pub(crate) fn edit(&mut self, pid: i32, change: impl FnOnce(&mut Task)) {
        change(self.tasks.get_mut(&pid).unwrap_or_else(|| panic!("no process {pid}")));
    }

    /// What a lease would record of a process.
    pub(crate) fn record(&self, pid: i32) -> ProcessRecord {
        let task = self.task(pid);
        let inode = Some(task.inode).filter(|_| self.abilities.pidfd && self.abilities.pidfs_inode);
        ProcessRecord { pid, start_ticks: task.start_ticks, inode }
    }

    /// A number that nobody has.
    pub(crate) fn free_pid(&mut self) -> i32 {
        while self.is_taken(self.next_pid) {
            self.next_pid += 1;
        }
        self.next_pid
    }

    /// A number is not given out while a process, a thread, a group or a session has it.
    fn is_taken(&self, pid: i32) -> bool {
        self.tasks.values().any(|t| t.pid == pid || t.pgid == pid || t.sid == pid || t.threads.contains(&pid))
    }

    /// Starts a process of nobody's tree in a session of its own, under a number that must be free.
    pub(crate) fn place(&mut self, pid: i32, ppid: i32, name: &str) -> Serial {
        assert!(!self.is_taken(pid), "the pid {pid} is not free");
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
            state: State::Running,
            pending: Vec::new(),
            on_term: OnTerm::Dies,
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

    /// Forks: the child inherits group, session, user, environment and whose tree it is of.
    pub(crate) fn fork(&mut self, parent: i32, name: &str) -> i32 {
        let pid = self.free_pid();
        let of = self.task(parent).clone();
        self.place(pid, parent, name);
        self.edit(pid, |t| {
            (t.pgid, t.group, t.sid, t.uid) = (of.pgid, of.group, of.sid, of.uid);
            (t.environ, t.tree) = (of.environ, of.tree);
        });
        pid
    }

    /// Gives a process a group of its own.
    pub(crate) fn setpgid(&mut self, pid: i32) {
        self.edit(pid, |t| (t.pgid, t.group) = (t.pid, t.serial));
    }

    /// Gives a process a session of its own.
    pub(crate) fn setsid(&mut self, pid: i32) {
        self.setpgid(pid);
        self.edit(pid, |t| t.sid = t.pid);
    }

    /// A process ends. Its children go to the nearest subreaper above it, or to init.
    pub(crate) fn exit(&mut self, pid: i32, status: ExitStatus) {
        if !self.runs(pid) {
            return;
        }
        let heir = self.heir(self.task(pid).ppid);
        self.edit(pid, |t| {
            (t.state, t.status) = (State::Zombie, status);
            t.pending.clear();
        });
        let children: Vec<i32> = self.tasks.values().filter(|t| t.ppid == pid).map(|t| t.pid).collect();
        for child in children {
            self.edit(child, |t| t.ppid = heir);
            if self.task(child).dies_with_parent {
                self.deliver(child, Signal::Kill);
            }
            self.settle(child);
        }
        self.settle(pid);
    }

    fn heir(&self, mut at: i32) -> i32 {
        while let Some(task) = self.get(at) {
            if task.subreaper && task.state != State::Zombie {
                return at;
            }
            at = task.ppid;
        }
        1
    }

    /// A zombie whose parent collects at once is gone.
    fn settle(&mut self, pid: i32) {
        let Some(task) = self.get(pid) else { return };
        let collected =
            task.state == State::Zombie && !task.traced && self.get(task.ppid).is_none_or(|p| p.reaps);
        if collected {
            self.reap(pid);
        }
    }

    /// Collects a zombie: its number is free.
    pub(crate) fn reap(&mut self, pid: i32) {
        assert_eq!(self.task(pid).state, State::Zombie, "only dead processes are reaped");
        self.tasks.remove(&pid);
    }

    /// The process ends and its number goes to a stranger at once, in the same tick.
    pub(crate) fn give_away(&mut self, pid: i32) {
        let ticks = self.task(pid).start_ticks;
        self.exit(pid, ExitStatus::Exited(0));
        if self.get(pid).is_some() {
            self.reap(pid);
        }
        self.place(pid, 1, "stranger");
        self.edit(pid, |t| t.start_ticks = ticks);
    }

    /// Every process of these trees ends without a signal.
    pub(crate) fn vanish(&mut self, tree: LeaseId) {
        let pids: Vec<i32> = self.tasks.values().filter(|t| t.tree == Some(tree)).map(|t| t.pid).collect();
        for pid in pids {
            self.exit(pid, ExitStatus::Exited(0));
        }
    }

    /// The running processes of a tree.
    pub(crate) fn alive(&self, tree: LeaseId) -> Vec<i32> {
        let of = |t: &&Task| t.tree == Some(tree) && t.state != State::Zombie;
        self.tasks.values().filter(of).map(|t| t.pid).collect()
    }

    // ---- signals ----

    /// Whether our user may signal this process.
    pub(crate) fn may_signal(&self, pid: i32) -> bool {
        self.uid == 0 || self.task(pid).uid == self.uid
    }

    /// A signal of the supervisor under test reaches a process: it is logged and judged.
    pub(crate) fn signal(&mut self, pid: i32, signal: Signal) {
        let (serial, tree, name) = {
            let task = self.task(pid);
            (task.serial, task.tree, task.name.clone())
        };
        let at_ms = self.now_ms();
        self.sent.push(Sent { at_ms, pid, signal, serial });
        if !tree.is_some_and(|tree| self.ours.contains(&tree)) {
            self.violations.push(format!("{signal:?} at {at_ms} ms to {pid} ({name}), which is of no lease"));
        }
        self.deliver(pid, signal);
        self.done(Call::Signalled(pid, signal));
    }

    /// What a signal does.
    pub(crate) fn deliver(&mut self, pid: i32, signal: Signal) {
        let task = self.task(pid).clone();
        match (task.state, signal) {
            (State::Zombie, _) => {}
            (State::Uninterruptible, _) | (State::Stopped, Signal::Term) => {
                self.edit(pid, |t| t.pending.push(signal));
            }
            (State::Stopped | State::Running, Signal::Kill) => self.exit(pid, ExitStatus::Signaled(9)),
            (State::Stopped, Signal::Cont) => self.resume(pid),
            (State::Running, Signal::Stop) => self.edit(pid, |t| t.state = State::Stopped),
            (State::Running, Signal::Cont) | (State::Stopped, Signal::Stop) => {}
            (State::Running, Signal::Term) => match task.on_term {
                OnTerm::Dies => self.exit(pid, ExitStatus::Signaled(15)),
                OnTerm::Ignores => {}
                OnTerm::Caught => self.edit(pid, |t| t.caught += 1),
            },
        }
    }

    /// A stopped process goes on, or one comes out of the kernel: what waited for it is delivered.
    pub(crate) fn resume(&mut self, pid: i32) {
        let mut pending = Vec::new();
        self.edit(pid, |t| {
            t.state = State::Running;
            pending = std::mem::take(&mut t.pending);
        });
        for signal in pending {
            if self.runs(pid) {
                self.deliver(pid, signal);
            }
        }
    }

    /// A tracer lets go.
    pub(crate) fn untrace(&mut self, pid: i32) {
        self.edit(pid, |t| t.traced = false);
        self.settle(pid);
    }

    // ---- what is read ----

    /// Somebody reads environments.
    pub(crate) fn reads_environs(&mut self) {
        self.environs_read_at.push(self.sent.len());
    }

    /// What the environment of a process says to us.
    pub(crate) fn marker(&self, pid: i32) -> Marker {
        match self.get(pid) {
            Some(task) if !task.hidden && !task.environ_secret && task.state != State::Zombie => {
                Marker::parse(&task.environ)
            }
            Some(_) | None => Marker::Unreadable,
        }
    }
}
