//! One supervisor on a faked machine with virtual time, with a real store and real launch directories.
//!
//! Virtual time advances when no task is ready. The runtime does not know the store's thread, so it must not move
//! the clock.

use crate::kernel::{EARLIER_SUPERVISOR, Kernel, SUPERVISOR, SentSignal, Task, TermAction, environ};
use crate::sys::FakeSys;
use acp_shared::ids::{GatewayInstanceId, LeaseId, SessionKey};
use acp_shared::protocol::{Graces, LeaseKind, LeaseState, ReapLine, Refusal, Spawn};
use acp_supervisor::config::Config;
use acp_supervisor::context::Context;
use acp_supervisor::context::event::Event;
use acp_supervisor::core::admission::ClientUser;
use acp_supervisor::core::cgroup::CgroupSubtree;
use acp_supervisor::core::containment::{CgroupLimits, Containment, select_level};
use acp_supervisor::core::lease::{BoundProcesses, Lease, ProcessRecord};
use acp_supervisor::core::quarantine::{self, SupervisorIdentity};
use acp_supervisor::core::retention::{Clocks, EndTime, LostFinding, due_ms, may_be_removed};
use acp_supervisor::lease::pause::PauseRequest;
use acp_supervisor::lease::reaper::{self, ReaperContext};
use acp_supervisor::lease::spawn::SpawnRequest;
use acp_supervisor::lease::task::{self, LeaseCmd};
use acp_supervisor::relay::Relay;
use acp_supervisor::relay::session_logs::SessionLogs;
use acp_supervisor::relay::spool_dir::SpoolDir;
use acp_supervisor::store::{STORE_FILE, Store};
use acp_supervisor::sys::launch_dir::WrapperRoot;
use acp_supervisor::sys::{OpenProcess, Signal, Sys};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

/// Step of the virtual clock.
const STEP: Duration = Duration::from_millis(10);
/// Maximum virtual time of a wait.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Graces of spawned leases.
pub(crate) const GRACES: Graces = Graces { eof_ms: 100, term_ms: 200, kill_ms: 400 };
/// Wall clock at the start of a test, in milliseconds since the Unix epoch.
pub(crate) const WALL_MS: u64 = 1_800_000_000_000;
/// Time from SIGTERM to SIGKILL when reaping.
pub(crate) const REAP_TERM_MS: u64 = 300;

/// Processes of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) lease: LeaseId,
    pub(crate) gateway: GatewayInstanceId,
    pub(crate) wrapper: i32,
    pub(crate) adapter: i32,
    /// Child of the adapter, in its group.
    pub(crate) child: i32,
}

impl Tree {
    pub(crate) fn pids(&self) -> [i32; 3] {
        [self.wrapper, self.adapter, self.child]
    }
}

/// A supervisor on its machine.
pub(crate) struct Sim {
    pub(crate) sys: Arc<FakeSys>,
    pub(crate) context: Arc<Context<FakeSys>>,
    /// Latest rows from the drivers.
    pub(crate) leases: Vec<Lease>,
    /// Refused spawns.
    pub(crate) refusals: HashMap<LeaseId, Refusal>,
    /// Relays of running leases, kept alive.
    pub(crate) relays: HashMap<LeaseId, Relay>,
    /// Leases with survivors.
    pub(crate) stuck: Vec<LeaseId>,
    /// Latest findings about lost leases.
    pub(crate) lost_findings: HashMap<LeaseId, LostFinding>,
    commands: HashMap<LeaseId, mpsc::Sender<LeaseCmd>>,
    events: mpsc::Receiver<Event>,
    dir: TempDir,
    /// A running job of the blocking pool stops the runtime from moving the clock.
    _clock_stopped: std::sync::mpsc::SyncSender<()>,
}

impl Sim {
    /// Machine with all abilities.
    pub(crate) async fn new() -> Self {
        Self::with_kernel(|_| {}).await
    }

    /// Prepares the machine before the supervisor starts.
    pub(crate) async fn with_kernel(prepare: impl FnOnce(&mut Kernel)) -> Self {
        Self::with_kernel_and_state(prepare, |_| {})
    }

    /// Prepares the machine and the state directory before the supervisor starts.
    pub(crate) fn with_kernel_and_state(
        prepare: impl FnOnce(&mut Kernel),
        store: impl FnOnce(&Path),
    ) -> Self {
        let (hold, held) = std::sync::mpsc::sync_channel::<()>(0);
        tokio::task::spawn_blocking(move || held.recv());
        let mut kernel = Kernel::new();
        prepare(&mut kernel);
        let (abilities, me) = (kernel.abilities, kernel.record(SUPERVISOR));
        let sys = Arc::new(FakeSys::new(kernel));
        let dir = tempfile::tempdir().unwrap();
        store(dir.path());
        let (store, _, loaded) = Store::open(dir.path()).unwrap();
        let (events, queue) = mpsc::channel(4096);
        let config = Config { reap_term_ms: REAP_TERM_MS, reap_kill_ms: 500, ..Config::default() };
        let containment = Containment {
            rung: select_level(&abilities, config.rung).unwrap(),
            subtree: CgroupSubtree::new("/", "sim"),
            limits: CgroupLimits::default(),
        };
        let context = Arc::new(Context {
            tenants: Vec::new(),
            own_ancestry: sys.own_ancestry(),
            abilities,
            containment,
            store,
            config,
            wrapper_root: WrapperRoot::prepare(&dir.path().join("wrappers"), Path::new("/bin/true")).unwrap(),
            state_dir: dir.path().to_owned(),
            me,
            scope: sys.current_scope().unwrap_or_else(|| panic!("no scope at the start")),
            roots: Default::default(),
            budgets: Default::default(),
            spools: SpoolDir::new(&dir.path().join("spool"), 1 << 20),
            logs: SessionLogs::new(&dir.path().join("logs"), 1 << 20),
            children: Default::default(),
            descriptors: rustix::process::getrlimit(rustix::process::Resource::Nofile),
            refusals: acp_shared::log_limit::RefusalLog::default(),
            events,
            inspections: Semaphore::new(2),
            started: Instant::now(),
            wall_at_start_ms: WALL_MS,
            sys: Arc::clone(&sys),
        });
        Self {
            sys,
            context,
            leases: loaded.leases,
            refusals: HashMap::new(),
            relays: HashMap::new(),
            stuck: Vec::new(),
            lost_findings: HashMap::new(),
            commands: HashMap::new(),
            events: queue,
            dir,
            _clock_stopped: hold,
        }
    }

    /// Locks the machine.
    pub(crate) fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.sys.kernel()
    }

    pub(crate) fn state_dir(&self) -> &Path {
        self.dir.path()
    }

    // ---- time ----

    /// Runs all ready tasks, then advances the clock by one step.
    async fn step(&self) {
        for _ in 0..3 {
            // All earlier requests to the store's thread are answered.
            drop(self.context.store.flush().await);
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
        tokio::time::advance(STEP).await;
    }

    /// Advances time until `work` is done.
    pub(crate) async fn run_until_done<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let since = Instant::now();
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.step() => assert!(since.elapsed() < TIMEOUT, "timeout"),
            }
        }
    }

    /// Advances time.
    pub(crate) async fn advance(&mut self, ms: u64) {
        let until = Instant::now() + Duration::from_millis(ms);
        while Instant::now() < until {
            self.step().await;
            self.process_events();
        }
    }

    /// Advances time until a condition holds.
    pub(crate) async fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            assert!(since.elapsed() < TIMEOUT, "timeout: {what}; {:?}; {:?}", self.leases, self.kernel());
            self.step().await;
            self.process_events();
        }
    }

    /// Applies the events of the drivers.
    fn process_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Spawned { lease, result, crashed: _ } => {
                    let id = lease.lease_id;
                    self.update_row(lease);
                    match result {
                        Ok(relay) => drop(self.relays.insert(id, relay)),
                        Err(refusal) => drop(self.refusals.insert(id, refusal)),
                    }
                }
                Event::Changed { lease, stuck } => {
                    if stuck {
                        self.stuck.push(lease.lease_id);
                    }
                    self.update_row(lease);
                }
                _ => {}
            }
        }
    }

    fn update_row(&mut self, lease: Lease) {
        match self.leases.iter_mut().find(|l| l.lease_id == lease.lease_id) {
            Some(row) => *row = lease,
            None => self.leases.push(lease),
        }
    }

    // ---- leases of an earlier supervisor ----

    /// A lease left behind with its whole tree by a dead supervisor.
    pub(crate) async fn orphan(&mut self, state: LeaseState) -> Tree {
        let tree = self.create_tree();
        let lease = self.row(&tree, state);
        self.save(lease).await;
        tree
    }

    /// A tree of an earlier supervisor, without a lease.
    pub(crate) fn create_tree(&self) -> Tree {
        let wrapper = self.kernel().free_pid();
        let tree = self.create_foreign_tree(wrapper, GatewayInstanceId::mint());
        self.kernel().owned.insert(tree.lease);
        tree
    }

    /// A tree with this wrapper pid that must not be signalled.
    pub(crate) fn create_foreign_tree(&self, wrapper: i32, gateway: GatewayInstanceId) -> Tree {
        let lease = LeaseId::mint();
        let mut kernel = self.kernel();
        kernel.create(wrapper, 1, "acp-wrapper");
        kernel.edit(wrapper, |t| {
            (t.tree, t.environ, t.subreaper) = (Some(lease), environ(lease, gateway), true);
        });
        let adapter = kernel.fork(wrapper, "agent");
        kernel.setpgid(adapter);
        kernel.edit(adapter, |t| t.dies_with_parent = true);
        let child = kernel.fork(adapter, "tool");
        Tree { lease, gateway, wrapper, adapter, child }
    }

    /// Row that the earlier supervisor recorded for a tree.
    pub(crate) fn row(&self, tree: &Tree, state: LeaseState) -> Lease {
        let kernel = self.kernel();
        let named = state != LeaseState::Reserved;
        let bound = named.then(|| BoundProcesses {
            wrapper: kernel.record(tree.wrapper),
            adapter: kernel.record(tree.adapter),
            pgid: tree.adapter,
            sid: tree.wrapper,
        });
        let supervisor = ProcessRecord {
            pid: EARLIER_SUPERVISOR,
            start_ticks: 99_000,
            inode: kernel.record(SUPERVISOR).inode.map(|_| 49_000),
        };
        let now = kernel.now_ms();
        drop(kernel);
        Lease { supervisor, bound, state, ..self.blank(tree.lease, tree.gateway, now) }
    }

    fn blank(&self, lease_id: LeaseId, gateway: GatewayInstanceId, now_ms: u64) -> Lease {
        Lease {
            lease_id,
            gateway,
            owner_uid: 1000,
            session_key: SessionKey::parse("agent:demo:acp:1").unwrap(),
            kind: LeaseKind::Agent,
            graces: GRACES,
            wrapper_root: "/w".into(),
            wrapper_path: "/w/acp-wrapper".into(),
            supervisor: self.context.me,
            scope: self.context.scope.clone(),
            bound: None,
            command_hash: "aa".into(),
            spec_hash: "bb".into(),
            cgroup_path: None,
            rung: "R2".into(),
            started_at_ms: now_ms,
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

    /// Stores a row.
    pub(crate) async fn save(&mut self, lease: Lease) {
        self.run_until_done(self.context.store.save_lease(&lease)).await.unwrap();
        self.update_row(lease);
    }

    /// Changes a stored row.
    pub(crate) async fn rewrite(&mut self, tree: &Tree, change: impl FnOnce(&mut Lease)) {
        let mut lease = self.lease(tree).clone();
        change(&mut lease);
        self.save(lease).await;
    }

    /// Row of a tree.
    pub(crate) fn lease(&self, tree: &Tree) -> &Lease {
        self.lease_by_id(tree.lease)
    }

    /// Row of a lease.
    pub(crate) fn lease_by_id(&self, id: LeaseId) -> &Lease {
        let row = self.leases.iter().find(|l| l.lease_id == id);
        row.unwrap_or_else(|| panic!("no lease {id}"))
    }

    /// State of a tree's lease.
    pub(crate) fn state(&self, tree: &Tree) -> LeaseState {
        self.lease(tree).state
    }

    /// True if the whole tree runs and got no signal.
    pub(crate) fn is_untouched(&self, tree: &Tree) -> bool {
        let kernel = self.kernel();
        tree.pids().iter().all(|pid| kernel.is_running(*pid))
            && !kernel.sent.iter().any(|s| tree.pids().contains(&s.pid))
    }

    /// Signals sent to a process, in order.
    pub(crate) fn signals_to(&self, pid: i32) -> Vec<Signal> {
        self.kernel().sent.iter().filter(|s| s.pid == pid).map(|s| s.signal).collect()
    }

    /// Pids that got a signal, in order.
    pub(crate) fn receivers(&self, signal: Signal) -> Vec<i32> {
        self.kernel().sent.iter().filter(|s| s.signal == signal).map(|s| s.pid).collect()
    }

    /// All signals sent.
    pub(crate) fn sent(&self) -> Vec<SentSignal> {
        self.kernel().sent.clone()
    }

    /// Quarantines and reaps like a starting supervisor, and compares the rows on disk with the result.
    pub(crate) async fn reap(&mut self) -> Vec<ReapLine> {
        self.try_reap().await.unwrap_or_else(|e| panic!("cannot reap: {e}"))
    }

    /// Like [`Sim::reap`], with its error.
    pub(crate) async fn try_reap(&mut self) -> std::io::Result<Vec<ReapLine>> {
        let own = SupervisorIdentity { scope: &self.context.scope, ancestry: &self.context.own_ancestry };
        let now = |pid| self.sys.open(pid).ok()?.record();
        for lease in quarantine::quarantine_invalid(&mut self.leases, own, 1, now) {
            self.run_until_done(self.context.store.save_lease(&lease)).await.unwrap();
        }
        let lines = self.sweep(|l| !l.state.is_ended()).await;
        for lease in &self.stored_rows().await {
            assert_eq!(lease.state, self.lease_by_id(lease.lease_id).state, "the row on disk");
        }
        lines
    }

    /// Sweeps the selected leases.
    pub(crate) async fn sweep(&mut self, which: impl Fn(&Lease) -> bool) -> std::io::Result<Vec<ReapLine>> {
        let mut left: Vec<Lease> = self.leases.iter().filter(|l| which(l)).cloned().collect();
        let context = Arc::clone(&self.context);
        let reaped = self.run_until_done(reaper::reap(&context, &mut left)).await;
        for lease in left {
            self.update_row(lease);
        }
        let reaped = reaped?;
        self.lost_findings.extend(reaped.lost_findings);
        Ok(reaped.lines)
    }

    /// Sweeps the lost leases.
    pub(crate) async fn sweep_lost(&mut self) -> Vec<ReapLine> {
        self.sweep(|l| l.state == LeaseState::Lost).await.unwrap()
    }

    /// Removes expired rows after this time, with a wall clock set off by `set_ms`.
    pub(crate) async fn expire_after(&mut self, after_ms: u64, set_ms: i64) {
        let wall_ms = (WALL_MS + after_ms).saturating_add_signed(set_ms);
        let clocks = Clocks { now_ms: after_ms, wall_ms, wall_at_start_ms: WALL_MS };
        let keep_ms = self.context.config.retention_ms;
        let over = |l: &Lease| {
            let due = l.ended_at_ms.map(|at| due_ms(EndTime::Before(at), keep_ms, &clocks));
            due.is_some_and(|due| due <= after_ms)
                && may_be_removed(l, self.lost_findings.get(&l.lease_id).copied())
        };
        let ids: Vec<LeaseId> = self.leases.iter().filter(|l| over(l)).map(|l| l.lease_id).collect();
        self.run_until_done(self.context.store.delete_leases(ids.clone())).await.unwrap();
        self.leases.retain(|l| !ids.contains(&l.lease_id));
        assert_eq!(self.stored_rows().await.len(), self.leases.len(), "the rows on disk");
    }

    /// Reports planned actions and asserts that none is taken.
    pub(crate) fn dry_run(&self) -> Vec<ReapLine> {
        let before = self.sent();
        let lines =
            reaper::dry_run(self.sys.as_ref(), &self.leases, &ReaperContext::of(&self.context)).unwrap();
        assert_eq!(self.sent(), before, "a dry run signals no process");
        lines
    }

    /// Rows on disk, read from a copy of the store.
    pub(crate) async fn stored_rows(&self) -> Vec<Lease> {
        drop(self.run_until_done(self.context.store.flush()).await);
        Store::open(self.copy().path()).unwrap().2.leases
    }

    /// Copies the store's files as after a crash at this instant.
    pub(crate) fn copy(&self) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(self.dir.path()).unwrap().flatten() {
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
            }
        }
        copy
    }

    /// Runs SQL on the store without its checks.
    #[expect(clippy::disallowed_methods, reason = "the test damages the file outside of the store")]
    pub(crate) fn damage(&self, sql: &str) {
        let connection = rusqlite::Connection::open(self.dir.path().join(STORE_FILE)).unwrap();
        connection.pragma_update(None, "ignore_check_constraints", true).unwrap();
        connection.execute_batch(sql).unwrap();
    }

    // ---- leases of this supervisor ----

    /// Starts an agent and waits for the result of the spawn.
    pub(crate) async fn spawn(&mut self) -> LeaseId {
        let id = self.start_spawn();
        self.until("the spawn is answered", |s| s.relays.contains_key(&id) || s.refusals.contains_key(&id))
            .await;
        id
    }

    /// Starts an agent.
    pub(crate) fn start_spawn(&mut self) -> LeaseId {
        let (lease_id, gateway) = (LeaseId::mint(), GatewayInstanceId::mint());
        let now = self.kernel().now_ms();
        let lease = self.blank(lease_id, gateway, now);
        let spec = Spawn {
            lease_id,
            session_key: lease.session_key.clone(),
            kind: LeaseKind::Agent,
            argv: vec!["agent".into()],
            env: Vec::new(),
            cwd: "/".into(),
            roots: Vec::new(),
            graces: GRACES,
        };
        let user = ClientUser { uid: lease.owner_uid, gid: 0, cell: None };
        let (commands, queue) = mpsc::channel(16);
        self.commands.insert(lease_id, commands);
        tokio::spawn(task::run(Arc::clone(&self.context), lease, SpawnRequest { spec, user }, queue));
        lease_id
    }

    /// Tree of a running lease, with a tool below the adapter.
    pub(crate) fn with_tool(&self, id: LeaseId) -> Tree {
        let lease = self.lease_by_id(id);
        let bound = lease.bound.unwrap_or_else(|| panic!("{id} has no recorded processes"));
        let child = self.kernel().fork(bound.adapter.pid, "tool");
        let gateway = lease.gateway;
        Tree { lease: id, gateway, wrapper: bound.wrapper.pid, adapter: bound.adapter.pid, child }
    }

    /// Requests the end of a lease.
    pub(crate) async fn close(&self, id: LeaseId) {
        self.send_command(id, LeaseCmd::Close { reason: "asked".into() }).await;
    }

    pub(crate) async fn send_command(&self, id: LeaseId, command: LeaseCmd) {
        let commands = self.commands.get(&id).unwrap_or_else(|| panic!("no task of {id}"));
        drop(commands.send(command).await);
    }

    /// Exports the task of a lease, and imports it after a pause.
    pub(crate) async fn hand_over(&mut self, id: LeaseId, away_ms: u64) {
        let (pause, paused, decide) = PauseRequest::new();
        self.send_command(id, LeaseCmd::Pause(pause)).await;
        self.run_until_done(paused).await.unwrap();
        let (to, frozen) = tokio::sync::oneshot::channel();
        decide.send(to).unwrap_or_else(|_| panic!("{id} has ended"));
        let (lease, state) = self.run_until_done(frozen).await.unwrap();
        self.advance(away_ms).await;
        let (commands, queue) = mpsc::channel(16);
        self.commands.insert(id, commands);
        let relay = self.relays.get(&id).unwrap().clone();
        tokio::spawn(task::resume(Arc::clone(&self.context), lease, state, relay, queue));
    }

    /// Waits until a lease has this state.
    pub(crate) async fn await_state(&mut self, id: LeaseId, state: LeaseState) {
        let what = format!("{id} is {state}");
        self.until(&what, |s| s.leases.iter().any(|l| l.lease_id == id && l.state == state)).await;
    }

    /// Makes a whole tree ignore SIGTERM.
    pub(crate) fn ignore_sigterm(&self, tree: &Tree) {
        self.edit_all(tree, |t| t.on_term = TermAction::Ignores);
    }

    /// Changes every process of a tree.
    pub(crate) fn edit_all(&self, tree: &Tree, change: impl Fn(&mut Task)) {
        let mut kernel = self.kernel();
        for pid in tree.pids() {
            kernel.edit(pid, &change);
        }
    }
}

impl Drop for Sim {
    /// Asserts that no foreign process was signalled, and every scripted event happened.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let kernel = self.kernel();
        assert_eq!(kernel.violations, Vec::<String>::new(), "signals to foreign processes");
        assert!(kernel.has_no_pending_script(), "a scripted event is pending");
        for pid in [1, SUPERVISOR] {
            assert!(kernel.is_running(pid), "{pid} is gone");
        }
    }
}
