//! Shared context of all tasks: the system, the store, the configuration, and the channel to the owner with
//! its [events](event).

pub mod event;

use crate::config::Config;
use crate::context::event::Event;
use crate::core::containment::Containment;
use crate::core::lease::{Lease, PidScope, ProcessRecord};
use crate::core::retention::Clocks;
use crate::core::tenant::Tenant;
use crate::core::tree;
use crate::core::verify::SignalGuard;
use crate::relay::RelayLimits;
use crate::relay::budget::ByteBudget;
use crate::relay::session_logs::SessionLogs;
use crate::relay::spool_dir::SpoolDir;
use crate::store::Store;
use crate::sys::launch_dir::WrapperRoot;
use crate::sys::linux::Linux;
use crate::sys::{KernelFeatures, Sys, UnreapedChild};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::log_limit::RefusalLog;
use parking_lot::Mutex;
use rustix::process::Rlimit;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// State shared by all tasks of one supervisor.
#[derive(Debug)]
pub struct Context<S: Sys = Linux> {
    /// System interface.
    pub sys: Arc<S>,
    /// Probed kernel features.
    pub abilities: KernelFeatures,
    /// Containment of process trees.
    pub containment: Containment,
    /// The lease store.
    pub store: Store,
    /// Configuration.
    pub config: Config,
    /// Settings for the agents of some gateways.
    pub tenants: Vec<Tenant>,
    /// Directory from which wrappers are started.
    pub wrapper_root: WrapperRoot,
    /// The state directory.
    pub state_dir: PathBuf,
    /// Process record of this supervisor, as stored in leases.
    pub me: ProcessRecord,
    /// Scope of this supervisor: boot and namespaces.
    pub scope: PidScope,
    /// Pids of this supervisor and its ancestors at start.
    pub own_ancestry: HashSet<i32>,
    /// Root pids of the living leases. Reaping one lease never signals the root of another.
    pub roots: Mutex<HashSet<i32>>,
    /// Memory budget shared by the relays of each gateway.
    pub budgets: Mutex<HashMap<GatewayInstanceId, Weak<ByteBudget>>>,
    /// Output of ended agents, on disk.
    pub spools: SpoolDir,
    /// Standard error of agents, on disk.
    pub logs: SessionLogs,
    /// Children that this supervisor started and has not reaped.
    pub children: Mutex<Children>,
    /// Open files limit for wrappers: the limit that this supervisor was started with.
    pub descriptors: Rlimit,
    /// Rate-limited log of refusals.
    pub refusals: RefusalLog,
    /// Channel to the owner.
    pub events: mpsc::Sender<Event>,
    /// Limits concurrent process inspections for clients, so that they cannot delay the end of trees.
    pub inspections: Semaphore,
    /// Start of this supervisor.
    pub started: Instant,
    /// Wall clock time at the start, milliseconds since the Unix epoch.
    pub wall_at_start_ms: u64,
}

/// Children known to the supervisor.
#[derive(Debug, Default)]
pub struct Children {
    /// Children that were started and not yet reaped.
    pub registered: HashSet<i32>,
    /// Threads that are starting a child: the child may already exist, but its pid is not known yet.
    starting: HashSet<i32>,
}

impl<S: Sys> Context<S> {
    /// Returns the time since the start of this supervisor, in milliseconds; monotonic.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the current time on all clocks, for retention.
    #[must_use]
    pub fn clocks(&self) -> Clocks {
        Clocks { now_ms: self.now_ms(), wall_ms: wall_ms(), wall_at_start_ms: self.wall_at_start_ms }
    }

    /// Converts a [`Context::now_ms`] time to an instant.
    #[must_use]
    pub fn instant(&self, at_ms: u64) -> Instant {
        // Limit for the addition, which fails for instants too far in the future.
        const FAR_MS: u64 = 365 * 24 * 3_600 * 1_000;
        self.started + Duration::from_millis(at_ms.min(FAR_MS))
    }

    /// Returns the buffer limits for the relays of a gateway.
    #[must_use]
    pub fn limits(&self, gateway: GatewayInstanceId) -> RelayLimits {
        let mut budgets = self.budgets.lock();
        let budget = budgets.get(&gateway).and_then(Weak::upgrade).unwrap_or_else(|| {
            let new = Arc::new(ByteBudget::new(self.config.gateway_bytes_max));
            budgets.retain(|_, budget| budget.strong_count() > 0);
            budgets.insert(gateway, Arc::downgrade(&new));
            new
        });
        RelayLimits::new(&self.config, self.spools.gateway_spools(gateway), budget)
    }

    /// Returns the processes that must not be signalled for a lease whose own root is `own`.
    #[must_use]
    pub fn guard(&self, own: Option<i32>) -> SignalGuard {
        let mut other_roots = self.roots.lock().clone();
        if let Some(pid) = own {
            other_roots.remove(&pid);
        }
        // Read again for each call: the pid of an ancestor that has ended may be reused.
        SignalGuard { own_ancestry: self.sys.own_ancestry(), other_roots }
    }

    /// True if a process belongs to the tree of a lease. Also true if its ancestors cannot be determined.
    #[must_use]
    pub fn is_lease_process(&self, pid: i32) -> bool {
        const TRIES_MAX: u32 = 3;
        let group = self.sys.open(pid).ok().and_then(|handle| self.sys.kernel_evidence(&handle).cgroup);
        if group.is_some_and(|group| self.containment.subtree.is_of_a_lease(&group)) {
            return true;
        }
        let mut roots = self.roots.lock().clone();
        if self.abilities.subreaper {
            // All descendants of a subreaper belong to one of those trees.
            roots.insert(self.me.pid);
        }
        let below = || tree::is_below(pid, &roots, |pid| self.sys.parent(pid));
        (0..TRIES_MAX).find_map(|_| below()).unwrap_or(true)
    }

    /// Registers the root of a living lease.
    pub fn add_root(&self, pid: i32) {
        self.roots.lock().insert(pid);
    }

    /// Unregisters a root.
    pub fn remove_root(&self, pid: i32) {
        self.roots.lock().remove(&pid);
    }

    /// Starts a child from the current thread, in a way that it cannot be mistaken for an orphan. A slow disk
    /// under the program blocks only this call.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn start_child(&self, start: impl FnOnce() -> std::io::Result<i32>) -> std::io::Result<i32> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.children.lock().starting.insert(thread);
        let started = start();
        let mut children = self.children.lock();
        children.starting.remove(&thread);
        children.registered.extend(started.as_ref().ok());
        started
    }

    /// Registers a child that an earlier program of this process started.
    pub fn track_child(&self, pid: i32) {
        self.children.lock().registered.insert(pid);
    }

    /// Unregisters a child that was reaped or is no longer managed.
    pub fn release_child(&self, pid: i32) {
        self.children.lock().registered.remove(&pid);
    }

    /// True if this process has any child, either registered or an orphan.
    #[must_use]
    pub fn has_children(&self) -> bool {
        !self.children.lock().registered.is_empty() || !self.sys.children().is_empty()
    }

    /// Returns the orphans: children that are not registered. Children of a thread that is just starting one
    /// are left for a later call.
    #[must_use]
    pub fn orphans(&self) -> Vec<i32> {
        // Keep the lock while the list is read: meanwhile no start can begin, and no registered pid is freed.
        let children = self.children.lock();
        let stray = |child: &UnreapedChild| {
            !children.registered.contains(&child.pid) && !children.starting.contains(&child.thread)
        };
        self.sys.children().into_iter().filter(stray).map(|child| child.pid).collect()
    }

    /// Removes the launch directory and cgroup of an ended lease in the background. Await the handle to be
    /// sure that it is done.
    pub fn spawn_cleanup(&self, lease: &Lease) -> JoinHandle<()> {
        let (sys, root) = (Arc::clone(&self.sys), self.wrapper_root.clone());
        let leaf =
            self.containment.subtree.recorded(lease).own().cloned().filter(|_| lease.scope == self.scope);
        let (gateway, lease_id) = (lease.gateway, lease.lease_id);
        tokio::spawn(async move {
            if let Some(leaf) = leaf
                && let Err(error) = Arc::clone(&sys).run_blocking(move |sys| sys.remove_group(&leaf)).await
            {
                tracing::warn!(%lease_id, %error, "cannot remove cgroup of lease");
            }
            let Ok(slot) = root.disk().slot().await else { return };
            let removed = sys.run_blocking(move |_| {
                root.remove(gateway, lease_id);
                drop(slot);
                Ok(())
            });
            // Errors are already logged.
            drop(removed.await);
        })
    }

    /// Prepares for the end of the process: logs suppressed refusals, and waits for background disk work. A
    /// hanging disk is not waited for.
    pub async fn finish_disk_work(&self) {
        self.refusals.flush();
        tokio::join!(
            self.wrapper_root.disk().wait_idle(),
            self.spools.disk().wait_idle(),
            self.logs.disk().wait_idle()
        );
    }

    /// Returns true if a refusal may be logged now (see [`RefusalLog::may_log`]).
    #[must_use]
    pub fn may_log(&self, uid: u32, reason: &'static str) -> bool {
        self.refusals.may_log(uid, reason)
    }

    /// Sends an event to the owner.
    pub async fn send_event(&self, event: Event) {
        if self.events.send(event).await.is_err() {
            tracing::debug!("event dropped; owner task has ended");
        }
    }

    /// Runs blocking work, such as reading many files, on a blocking thread.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&S) -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<T> {
        Arc::clone(&self.sys).run_blocking(work).await
    }

    /// Runs blocking work for a client, in order and with limited concurrency.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn blocking_limited<T: Send + 'static>(
        &self,
        work: impl FnOnce(&S) -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<T> {
        let turn = self.inspections.acquire().await.map_err(std::io::Error::other)?;
        let result = self.blocking(work).await;
        drop(turn);
        result
    }

    /// Reads the current scope of this process.
    #[must_use]
    pub fn current_scope(&self) -> Option<PidScope> {
        self.sys.current_scope()
    }
}

/// Returns the wall clock time in milliseconds since the Unix epoch, for records that people read.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "decisions use the supervisor's own clock; records show this one"
)]
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
