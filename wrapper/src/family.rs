//! The adapter and whoever was orphaned below the wrapper: reaping, and signals to all of them.
//!
//! The dead adapter stays a zombie until nobody else lives. So its number, which is also the number of its process
//! group, cannot become anybody else's while the group is signalled.

use crate::{sys, tree};
use acp_shared::launch::ExitStatus;
use nix::libc;

/// What has become of the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Adapter {
    /// It runs, or is blocked before exec.
    Runs,
    /// It is dead and holds its number.
    Zombie,
    /// Its number may be anybody's.
    Reaped,
}

/// The processes under the wrapper.
#[derive(Debug)]
pub(crate) struct Family {
    pid: i32,
    adapter: Adapter,
    status: ExitStatus,
}

impl Family {
    /// A family of one: the forked adapter, which leads its own group.
    pub(crate) const fn new(pid: i32) -> Self {
        Self { pid, adapter: Adapter::Runs, status: ExitStatus::Unknown }
    }

    /// How the adapter ended; `None` while it runs.
    pub(crate) fn exit(&self) -> Option<ExitStatus> {
        (self.adapter != Adapter::Runs).then_some(self.status)
    }

    /// Reaps whoever is dead, except the adapter while others live. True when nobody lives any more.
    pub(crate) fn reap(&mut self) -> bool {
        loop {
            match self.adapter {
                Adapter::Zombie if self.others_live() => return false,
                Adapter::Zombie => {
                    self.adapter = Adapter::Reaped;
                    if let Ok(Some(status)) = sys::reap(self.pid) {
                        self.status = status;
                    }
                }
                Adapter::Runs | Adapter::Reaped => match sys::peek_dead_child() {
                    // No child at all: nobody is below the wrapper, for it is the subreaper.
                    Err(_) => {
                        self.adapter = Adapter::Reaped;
                        return true;
                    }
                    Ok(None) => return self.adapter == Adapter::Reaped && only_traced_zombies(),
                    Ok(Some((pid, status))) if pid == self.pid && self.adapter == Adapter::Runs => {
                        self.adapter = Adapter::Zombie;
                        self.status = status;
                    }
                    Ok(Some((pid, _))) => drop(sys::reap(pid)),
                },
            }
        }
    }

    /// The adapter is dead for sure, though it may not be waited for yet: a tracer gets its status first.
    pub(crate) fn adapter_is_dead(&mut self) {
        if self.adapter == Adapter::Runs {
            self.adapter = Adapter::Zombie;
            if let Ok(Some(status)) = sys::peek_child(self.pid) {
                self.status = status;
            }
        }
    }

    /// Reaps the children other than the adapter one by one; true while one of them lives.
    fn others_live(&self) -> bool {
        let mut live = false;
        for pid in tree::own_children() {
            if pid != self.pid && sys::reap(pid) == Ok(None) {
                live |= tree::Stat::of(pid).is_some_and(tree::Stat::is_alive);
            }
        }
        live
    }

    /// Passes a signal on to the adapter's group.
    pub(crate) fn forward(&self, signal: i32) {
        if self.adapter != Adapter::Reaped {
            sys::signal_group_of_unreaped(self.pid, signal);
        }
    }

    /// SIGTERM and SIGCONT to everybody.
    pub(crate) fn term(&self) {
        self.forward(libc::SIGTERM);
        self.forward(libc::SIGCONT);
        tree::term_all((self.adapter != Adapter::Reaped).then_some(self.pid));
    }

    /// SIGKILL to everybody. The group comes first: the kernel signals it at once, so it cannot outrun that by forking.
    pub(crate) fn kill(&self) {
        self.forward(libc::SIGKILL);
        tree::kill_all();
    }
}

/// Whether there are children, and all of them are dead: zombies that a tracer has not let go.
fn only_traced_zombies() -> bool {
    let pids = tree::own_children();
    !pids.is_empty() && pids.iter().all(|pid| tree::Stat::of(*pid).is_some_and(|stat| !stat.is_alive()))
}
