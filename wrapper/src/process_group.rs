//! The adapter and the orphaned processes reparented to the wrapper: reaping, and signals to all of them.
//!
//! The dead adapter stays a zombie until no other process is alive. Its pid, which is also its process group
//! id, can therefore not be reused while the group is signalled.

use crate::{sys, tree};
use acp_shared::launch::ExitStatus;
use nix::libc;

/// State of the adapter process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AdapterState {
    /// Running, or blocked before exec.
    Runs,
    /// Dead but not reaped; its pid cannot be reused.
    Zombie,
    /// Reaped; its pid may belong to another process.
    Reaped,
}

/// Processes below the wrapper.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    pid: i32,
    adapter: AdapterState,
    status: ExitStatus,
}

impl ProcessTree {
    /// Creates a tree of one process: the forked adapter, which leads its own process group.
    pub(crate) const fn new(pid: i32) -> Self {
        Self { pid, adapter: AdapterState::Runs, status: ExitStatus::Unknown }
    }

    /// Returns the exit status of the adapter; `None` while it runs.
    pub(crate) fn exit(&self) -> Option<ExitStatus> {
        (self.adapter != AdapterState::Runs).then_some(self.status)
    }

    /// Reaps all dead children, except the adapter while others are alive. Returns true if no process is
    /// alive.
    pub(crate) fn reap(&mut self) -> bool {
        loop {
            match self.adapter {
                AdapterState::Zombie if self.reap_others() => return false,
                AdapterState::Zombie => {
                    self.adapter = AdapterState::Reaped;
                    if let Ok(Some(status)) = sys::reap(self.pid) {
                        self.status = status;
                    }
                }
                AdapterState::Runs | AdapterState::Reaped => match sys::peek_dead_child() {
                    // No children: nothing is left below the wrapper, because the wrapper is the subreaper.
                    Err(_) => {
                        self.adapter = AdapterState::Reaped;
                        return true;
                    }
                    Ok(None) => return self.adapter == AdapterState::Reaped && only_traced_zombies(),
                    Ok(Some((pid, status))) if pid == self.pid && self.adapter == AdapterState::Runs => {
                        self.adapter = AdapterState::Zombie;
                        self.status = status;
                    }
                    Ok(Some((pid, _))) => drop(sys::reap(pid)),
                },
            }
        }
    }

    /// Records the death of the adapter, known from its pidfd. It may not be waitable yet: a tracer gets its
    /// status first.
    pub(crate) fn adapter_is_dead(&mut self) {
        if self.adapter == AdapterState::Runs {
            self.adapter = AdapterState::Zombie;
            if let Ok(Some(status)) = sys::peek_child(self.pid) {
                self.status = status;
            }
        }
    }

    /// Reaps the children other than the adapter one by one. Returns true while one of them is alive.
    fn reap_others(&self) -> bool {
        let mut live = false;
        for pid in tree::own_children() {
            if pid != self.pid && sys::reap(pid) == Ok(None) {
                live |= tree::Stat::of(pid).is_some_and(tree::Stat::is_alive);
            }
        }
        live
    }

    /// Sends a signal to the adapter's process group.
    pub(crate) fn forward(&self, signal: i32) {
        if self.adapter != AdapterState::Reaped {
            sys::signal_group_of_unreaped(self.pid, signal);
        }
    }

    /// Sends SIGTERM and SIGCONT to all processes.
    pub(crate) fn term(&self) {
        self.forward(libc::SIGTERM);
        self.forward(libc::SIGCONT);
        tree::term_all((self.adapter != AdapterState::Reaped).then_some(self.pid));
    }

    /// Sends SIGKILL to all processes. The group comes first: the kernel signals it atomically, so its
    /// members cannot escape by forking.
    pub(crate) fn kill(&self) {
        self.forward(libc::SIGKILL);
        tree::kill_all();
    }
}

/// True if there are children and all of them are zombies held by a tracer.
fn only_traced_zombies() -> bool {
    let pids = tree::own_children();
    !pids.is_empty() && pids.iter().all(|pid| tree::Stat::of(*pid).is_some_and(|stat| !stat.is_alive()))
}
