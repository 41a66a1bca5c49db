//! What every driver needs: the system, the store, the configuration, and the way to the owner.

use crate::config::Config;
use crate::core::ladder::Holding;
use crate::core::lease::{Lease, ProcessRecord, Scope};
use crate::core::retain::Clocks;
use crate::core::tenant::Tenant;
use crate::core::tree;
use crate::core::verify::Guard;
use crate::launchdir::WrapperRoot;
use crate::owner::Event;
use crate::relay::Limits;
use crate::relay::budget::Budget;
use crate::relay::spools::Spools;
use crate::session_logs::SessionLogs;
use crate::store::Store;
use crate::sys::linux::Linux;
use crate::sys::{Abilities, Offspring, Sys};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::log_limit::RefusalLog;
use rustix::process::Rlimit;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Shared by all tasks of one supervisor.
#[derive(Debug)]
pub struct Context<S: Sys = Linux> {
    /// The system.
    pub sys: Arc<S>,
    /// What it can do.
    pub abilities: Abilities,
    /// How it holds its trees.
    pub holding: Holding,
    /// The lease store.
    pub store: Store,
    /// The configuration.
    pub config: Config,
    /// How the agents of some gateways run.
    pub tenants: Vec<Tenant>,
    /// Where wrappers are started.
    pub wrapper_root: WrapperRoot,
    /// The state directory.
    pub state_dir: PathBuf,
    /// This supervisor, as leases record it.
    pub me: ProcessRecord,
    /// Where it runs.
    pub scope: Scope,
    /// This supervisor and its ancestors, when it started.
    pub own_line: HashSet<i32>,
    /// Roots of the living leases: none of them is signalled for another's sake.
    pub roots: Mutex<HashSet<i32>>,
    /// The memory that the relays of each gateway share.
    pub budgets: Mutex<HashMap<GatewayInstanceId, Weak<Budget>>>,
    /// What ended agents said, on disk.
    pub spools: Spools,
    /// Standard error of agents, on disk.
    pub logs: SessionLogs,
    /// Children that this supervisor started and has not collected.
    pub children: Mutex<Children>,
    /// The limit on open files that wrappers get, which is the one this supervisor was started with.
    pub descriptors: Rlimit,
    /// The log of refusals.
    pub refusals: RefusalLog,
    /// To the owner.
    pub events: mpsc::Sender<Event>,
    /// Looks at processes that somebody asked for: few at a time, so that ending trees never waits behind them.
    pub looks: Semaphore,
    /// When it started.
    pub started: Instant,
    /// What the wall clock said then, milliseconds since the Unix epoch.
    pub wall_at_start_ms: u64,
}

/// The children of a supervisor that it holds.
#[derive(Debug, Default)]
pub struct Children {
    /// Those that it started and has not collected.
    pub held: HashSet<i32>,
    /// Threads that start one just now: it may be there already, and its number is not known yet.
    starting: HashSet<i32>,
}

impl<S: Sys> Context<S> {
    /// Milliseconds since this supervisor started; never goes back.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// What all clocks say, for what is kept for a time.
    #[must_use]
    pub fn clocks(&self) -> Clocks {
        Clocks { now_ms: self.now_ms(), wall_ms: wall_ms(), wall_at_start_ms: self.wall_at_start_ms }
    }

    /// The instant of a [`Context::now_ms`] time.
    #[must_use]
    pub fn instant(&self, at_ms: u64) -> Instant {
        // Far enough is never: an instant cannot be arbitrarily late.
        const FAR_MS: u64 = 365 * 24 * 3_600 * 1_000;
        self.started + Duration::from_millis(at_ms.min(FAR_MS))
    }

    /// The sizes that the relays of a gateway work with.
    #[must_use]
    pub fn limits(&self, gateway: GatewayInstanceId) -> Limits {
        let mut budgets = self.budgets.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let budget = budgets.get(&gateway).and_then(Weak::upgrade).unwrap_or_else(|| {
            let new = Arc::new(Budget::new(self.config.gateway_bytes_max));
            budgets.retain(|_, budget| budget.strong_count() > 0);
            budgets.insert(gateway, Arc::downgrade(&new));
            new
        });
        Limits::new(&self.config, self.spools.shelf(gateway), budget)
    }

    /// Who is never signalled for the sake of a lease whose own root is `own`.
    #[must_use]
    pub fn guard(&self, own: Option<i32>) -> Guard {
        let mut other_roots = self.roots.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if let Some(pid) = own {
            other_roots.remove(&pid);
        }
        // Looked up each time: an ancestor that has ended since the start leaves its number to others.
        Guard { own_line: self.sys.own_line(), other_roots }
    }

    /// Whether a process belongs to a tree under care here. One whose line cannot be followed counts as one.
    #[must_use]
    pub fn is_under_care(&self, pid: i32) -> bool {
        const TRIES_MAX: u32 = 3;
        let group = self.sys.open(pid).ok().and_then(|handle| self.sys.glance(&handle).cgroup);
        if group.is_some_and(|group| self.holding.subtree.is_of_a_lease(&group)) {
            return true;
        }
        let mut roots = self.roots.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if self.abilities.subreaper {
            // Whatever is below this process comes from one of those trees.
            roots.insert(self.me.pid);
        }
        let below = || tree::is_below(pid, &roots, |pid| self.sys.parent(pid));
        (0..TRIES_MAX).find_map(|_| below()).unwrap_or(true)
    }

    /// Names the root of a living lease.
    pub fn add_root(&self, pid: i32) {
        self.roots.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(pid);
    }

    /// A root is gone.
    pub fn remove_root(&self, pid: i32) {
        self.roots.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&pid);
    }

    fn children(&self) -> MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a child, from this thread, so that at no instant it could be taken for a stray. A program on a disk that
    /// does not answer holds up nobody else.
    ///
    /// # Errors
    /// As `start`.
    pub fn start_child(&self, start: impl FnOnce() -> std::io::Result<i32>) -> std::io::Result<i32> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.children().starting.insert(thread);
        let started = start();
        let mut children = self.children();
        children.starting.remove(&thread);
        children.held.extend(started.as_ref().ok());
        started
    }

    /// A child that an earlier image of this process started is under care here.
    pub fn keep_child(&self, pid: i32) {
        self.children().held.insert(pid);
    }

    /// A child was collected, or nobody holds it any more.
    pub fn forget_child(&self, pid: i32) {
        self.children().held.remove(&pid);
    }

    /// Whether this process has any child, one that it started or a stray.
    #[must_use]
    pub fn has_children(&self) -> bool {
        !self.children().held.is_empty() || !self.sys.children().is_empty()
    }

    /// Children that this supervisor does not hold. Those of a thread that starts one just now are left for later.
    #[must_use]
    pub fn strays(&self) -> Vec<i32> {
        // Held while the list is read: meanwhile nobody begins to start one, and no number that is held comes free.
        let children = self.children();
        let stray = |child: &Offspring| {
            !children.held.contains(&child.pid) && !children.starting.contains(&child.thread)
        };
        self.sys.children().into_iter().filter(stray).map(|child| child.pid).collect()
    }

    /// Has removed what was made on disk and in the tree of control groups for a lease that has ended, where it holds
    /// up nobody. Who wants to may wait for it.
    pub fn leave_nothing(&self, lease: &Lease) -> JoinHandle<()> {
        let (sys, root) = (Arc::clone(&self.sys), self.wrapper_root.clone());
        let leaf = self.holding.subtree.recorded(lease).own().cloned().filter(|_| lease.scope == self.scope);
        let (gateway, lease_id) = (lease.gateway, lease.lease_id);
        tokio::spawn(async move {
            if let Some(leaf) = leaf
                && let Err(error) = Arc::clone(&sys).aside(move |sys| sys.remove_group(&leaf)).await
            {
                tracing::warn!(%lease_id, %error, "the control group of a lease stays");
            }
            let Ok(slot) = root.disk().slot().await else { return };
            let removed = sys.aside(move |_| {
                root.remove(gateway, lease_id);
                drop(slot);
                Ok(())
            });
            // It has said why it could not.
            drop(removed.await);
        })
    }

    /// Before the end: says what was left unsaid, and waits until work on disks that nobody waited for is done, but not
    /// for one that hangs.
    pub async fn settle(&self) {
        self.refusals.flush();
        tokio::join!(
            self.wrapper_root.disk().settle(),
            self.spools.disk().settle(),
            self.logs.disk().settle()
        );
    }

    /// Returns true if a refusal may be logged now (see [`RefusalLog::may_log`]).
    #[must_use]
    pub fn may_log(&self, uid: u32, reason: &'static str) -> bool {
        self.refusals.may_log(uid, reason)
    }

    /// Tells the owner.
    pub async fn tell(&self, event: Event) {
        if self.events.send(event).await.is_err() {
            tracing::debug!("the owner has ended");
        }
    }

    /// Runs something that reads many files on a thread of its own.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&S) -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<T> {
        Arc::clone(&self.sys).aside(work).await
    }

    /// As [`Context::blocking`], for what a client asked for: few at a time, in order.
    ///
    /// # Errors
    /// As `work`.
    pub async fn blocking_in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&S) -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<T> {
        let turn = self.looks.acquire().await.map_err(std::io::Error::other)?;
        let result = self.blocking(work).await;
        drop(turn);
        result
    }

    /// What this system says about where it runs, once more.
    #[must_use]
    pub fn here(&self) -> Option<Scope> {
        self.sys.here()
    }
}

/// Milliseconds since the Unix epoch, for records that people read.
#[must_use]
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
