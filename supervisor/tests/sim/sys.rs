//! The faked kernel as a [`Sys`].

use crate::kernel::{Call, Kernel, SUPERVISOR, Serial, Task, TaskState, lock};
use crate::wrapper::{self, Behavior};
use acp_shared::launch::ExitStatus;
use acp_supervisor::core::cgroup::UnknownCgroup;
use acp_supervisor::core::lease::{PidScope, ProcessRecord};
use acp_supervisor::core::tree::{Proc, parse_stat};
use acp_supervisor::core::verify::{Evidence, HandleId, Marker, ProcessState, Verified};
use acp_supervisor::sys::{OpenError, OpenProcess, Signal, SignalError, Sys, UnreapedChild};
use rustix::process::Rlimit;
use std::collections::HashSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The faked system.
#[derive(Debug)]
pub(crate) struct FakeSys {
    kernel: Arc<Mutex<Kernel>>,
    next_handle: AtomicU64,
    /// Behaviour of the wrappers that the supervisor starts.
    pub(crate) wrapper: Mutex<Behavior>,
}

/// Handle of a process, by its serial number.
#[derive(Debug)]
pub(crate) struct FakeHandle {
    id: HandleId,
    pid: i32,
    serial: Serial,
    pidfd: bool,
    dir: bool,
    own_child: bool,
    kernel: Arc<Mutex<Kernel>>,
}

impl FakeHandle {
    fn stat(&self, kernel: &Kernel) -> Option<Proc> {
        let task = kernel.by_serial(self.serial)?;
        (self.dir && !task.hidden).then(|| stat_of(task))?
    }
}

/// Formats the kernel's text, so that the product's parser reads it.
fn stat_of(task: &Task) -> Option<Proc> {
    let state = match task.state {
        TaskState::Running => 'S',
        TaskState::Stopped => 'T',
        TaskState::Uninterruptible => 'D',
        TaskState::Zombie => 'Z',
    };
    let Task { pid, name, ppid, pgid, sid, start_ticks, .. } = task;
    let stat = format!(
        "{pid} ({name}) {state} {ppid} {pgid} {sid} 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {start_ticks} 1000 42\n"
    );
    parse_stat(stat.as_bytes())
}

impl OpenProcess for FakeHandle {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn record(&self) -> Option<ProcessRecord> {
        let start_ticks = self.stat(&lock(&self.kernel))?.start_ticks;
        Some(ProcessRecord { pid: self.pid, start_ticks, inode: self.inode() })
    }

    fn inode(&self) -> Option<u64> {
        let kernel = lock(&self.kernel);
        let shown = self.pidfd && kernel.abilities.pidfs_inode;
        // The inode stays readable while the descriptor is open.
        shown.then_some(50_000 + self.serial.0)
    }

    fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl FakeSys {
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self {
            kernel: Arc::new(Mutex::new(kernel)),
            next_handle: AtomicU64::new(1),
            wrapper: Mutex::new(Behavior::default()),
        }
    }

    /// Locks the machine.
    pub(crate) fn kernel(&self) -> MutexGuard<'_, Kernel> {
        lock(&self.kernel)
    }

    /// Takes the machine for another supervisor.
    pub(crate) fn kernel_of(&self) -> Kernel {
        std::mem::replace(&mut *self.kernel(), Kernel::new())
    }

    fn open_as(&self, kernel: &Kernel, pid: i32, own_child: bool) -> Result<Arc<FakeHandle>, OpenError> {
        let abilities = kernel.abilities;
        // Without pidfds a thread id opens a directory of its process, as in the real /proc.
        let of_thread = || kernel.tasks().find(|t| t.threads.contains(&pid));
        let found = match kernel.get(pid) {
            None if !abilities.pidfd => of_thread(),
            found => found,
        };
        let task = found.filter(|_| pid > 0).ok_or(OpenError::Gone)?;
        if !abilities.pidfd && task.hidden {
            // Not visible in /proc, but a signal is refused: the process exists.
            return Err(OpenError::Io(io::ErrorKind::NotFound.into()));
        }
        let id = HandleId(self.next_handle.fetch_add(1, Ordering::Relaxed));
        Ok(Arc::new(FakeHandle {
            id,
            pid,
            serial: task.serial,
            pidfd: abilities.pidfd,
            dir: !task.hidden,
            own_child,
            kernel: Arc::clone(&self.kernel),
        }))
    }

    /// Process that a signal through this handle reaches.
    fn target(kernel: &Kernel, handle: &FakeHandle, proof: &Verified) -> Result<Option<i32>, SignalError> {
        if proof.handle() != handle.id {
            return Err(SignalError::WrongProof);
        }
        Ok(kernel.by_serial(handle.serial).map(|t| t.pid))
    }
}

impl Sys for FakeSys {
    type Handle = FakeHandle;

    fn current_scope(&self) -> Option<PidScope> {
        self.kernel().scope.clone()
    }

    fn open(&self, pid: i32) -> Result<Arc<FakeHandle>, OpenError> {
        let mut kernel = self.kernel();
        let opened = self.open_as(&kernel, pid, false);
        kernel.run_hooks(Call::Open(pid));
        opened
    }

    fn kernel_evidence(&self, handle: &FakeHandle) -> Evidence {
        let inode = handle.inode();
        let mut kernel = self.kernel();
        let stat = handle.stat(&kernel);
        let task = kernel.by_serial(handle.serial);
        // A pidfd may report the parent of a hidden process.
        let by_pidfd = task.filter(|_| stat.is_none() && handle.pidfd && kernel.pidfd_info);
        let life = match (handle.pidfd, task, &stat) {
            (_, None, _) | (false, _, None) => ProcessState::Gone,
            (_, _, Some(stat)) if stat.zombie => ProcessState::Zombie,
            (_, _, Some(_)) => ProcessState::Running,
            (true, Some(task), None) if task.state == TaskState::Zombie => ProcessState::Zombie,
            (true, Some(_), None) if by_pidfd.is_some() => ProcessState::Running,
            (true, Some(_), None) => ProcessState::Unreadable,
        };
        let visible = task.filter(|t| handle.dir && !t.hidden);
        let evidence = Evidence {
            handle: Some(handle.id),
            pid: handle.pid,
            scope: kernel.scope.clone(),
            life,
            start_ticks: stat.as_ref().map(|s| s.start_ticks),
            ppid: stat.as_ref().map(|s| s.ppid).or(by_pidfd.map(|t| t.ppid)),
            pgid: stat.as_ref().map(|s| s.pgid),
            sid: stat.as_ref().map(|s| s.sid),
            inode,
            marker: Marker::Unreadable,
            exe: visible.map(|t| t.exe.clone()),
            cgroup: None,
            own_child: handle.own_child,
        };
        kernel.run_hooks(Call::Evidence(handle.pid));
        evidence
    }

    fn marker(&self, handle: &FakeHandle) -> Marker {
        let mut kernel = self.kernel();
        kernel.record_environ_read();
        let task = kernel.by_serial(handle.serial).filter(|t| handle.dir && !t.hidden);
        task.map_or(Marker::Unreadable, |t| kernel.marker(t.pid))
    }

    fn peek_markers(&self, pids: &[i32]) -> Vec<Marker> {
        let mut kernel = self.kernel();
        kernel.record_environ_read();
        pids.iter().map(|pid| kernel.marker(*pid)).collect()
    }

    fn is_unreaped(&self, handle: &FakeHandle) -> bool {
        self.kernel().by_serial(handle.serial).is_some()
    }

    fn snapshot(&self) -> io::Result<Vec<Proc>> {
        let mut kernel = self.kernel();
        kernel.list_reads += 1;
        if kernel.list_fails {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        let list = kernel.tasks().filter(|t| !t.hidden).filter_map(stat_of).collect();
        kernel.run_hooks(Call::Snapshot);
        Ok(list)
    }

    fn signal(&self, handle: &FakeHandle, proof: &Verified, signal: Signal) -> Result<(), SignalError> {
        let mut kernel = self.kernel();
        let pid = Self::target(&kernel, handle, proof)?.ok_or(SignalError::Gone)?;
        if !kernel.may_signal(pid) {
            return Err(SignalError::Foreign);
        }
        kernel.signal(pid, signal);
        Ok(())
    }

    fn signal_group(&self, handle: &FakeHandle, proof: &Verified, signal: Signal) -> Result<(), SignalError> {
        let mut kernel = self.kernel();
        Self::target(&kernel, handle, proof)?;
        if !kernel.abilities.pidfd_group || !handle.pidfd {
            return Err(SignalError::Io(io::ErrorKind::InvalidInput.into()));
        }
        let members: Vec<(i32, Serial)> =
            kernel.tasks().filter(|t| t.group == handle.serial).map(|t| (t.pid, t.serial)).collect();
        if members.is_empty() {
            return Err(SignalError::Gone);
        }
        let mut reached = false;
        for (pid, serial) in members {
            // An earlier member's death may have killed this one.
            if kernel.by_serial(serial).is_some() && kernel.may_signal(pid) {
                kernel.signal(pid, signal);
                reached = true;
            }
        }
        if reached { Ok(()) } else { Err(SignalError::Foreign) }
    }

    fn own_ancestry(&self) -> HashSet<i32> {
        let kernel = self.kernel();
        std::iter::successors(Some(SUPERVISOR), |pid| Some(kernel.get(*pid)?.ppid))
            .take_while(|pid| *pid > 0)
            .collect()
    }

    fn parent(&self, pid: i32) -> Option<i32> {
        let kernel = self.kernel();
        kernel.get(pid).filter(|t| !t.hidden || kernel.pidfd_info).map(|t| t.ppid)
    }

    fn may_hide_processes(&self) -> bool {
        self.kernel().tasks().any(|t| t.hidden)
    }

    fn children_of(&self, handle: &FakeHandle) -> Vec<i32> {
        let kernel = self.kernel();
        let shown = kernel.by_serial(handle.serial).filter(|t| handle.dir && !t.hidden);
        let of = |parent: &Task| kernel.tasks().filter(|t| t.ppid == parent.pid).map(|t| t.pid).collect();
        shown.map(of).unwrap_or_default()
    }

    fn start(&self, command: &mut Command, control: &OwnedFd) -> io::Result<i32> {
        let script = *self.wrapper.lock().unwrap_or_else(PoisonError::into_inner);
        wrapper::start(&self.kernel, script, command, control)
    }

    fn limit_open_files(&self, pid: i32, _: Rlimit) -> io::Result<()> {
        self.kernel().get(pid).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open_child(&self, pid: i32) -> Result<Arc<FakeHandle>, OpenError> {
        if self.wrapper.lock().unwrap_or_else(PoisonError::into_inner).no_descriptors {
            return Err(OpenError::Io(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error())));
        }
        self.open_as(&self.kernel(), pid, true)
    }

    fn try_reap(&self, child: &FakeHandle) -> io::Result<Option<ExitStatus>> {
        let mut kernel = self.kernel();
        if let Some(errno) = kernel.collect_fails {
            return Err(errno.into());
        }
        let task = kernel.by_serial(child.serial).filter(|t| t.ppid == SUPERVISOR);
        let task =
            task.ok_or_else(|| io::Error::from_raw_os_error(rustix::io::Errno::CHILD.raw_os_error()))?;
        if task.state != TaskState::Zombie || task.traced {
            return Ok(None);
        }
        let (pid, status) = (task.pid, task.status);
        kernel.reap(pid);
        Ok(Some(status))
    }

    fn children(&self) -> Vec<UnreapedChild> {
        let kernel = self.kernel();
        // The supervisor's own threads are not simulated.
        kernel
            .tasks()
            .filter(|t| t.ppid == SUPERVISOR)
            .map(|t| UnreapedChild { thread: SUPERVISOR, pid: t.pid })
            .collect()
    }

    fn group_populated(&self, strange: &UnknownCgroup) -> io::Result<bool> {
        Ok(self.kernel().populated_groups.contains(strange.path()))
    }

    fn reap_orphan(&self, pid: i32) -> io::Result<bool> {
        let handle = self.open_as(&self.kernel(), pid, true).map_err(io::Error::other)?;
        Ok(self.try_reap(&handle)?.is_some())
    }

    /// Runs at once, without virtual time.
    async fn run_blocking<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        work(&self)
    }
}
