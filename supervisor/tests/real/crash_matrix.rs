//! SIGKILL to the supervisor, and separately to the wrapper, at both sides of every system call that marks a step of
//! spawn, close and reap. A step of the product's enums without a point fails, and so does a point that is not
//! reached. A neighbour's tree and processes with half of the marker must survive every run.

use crate::common::{Client, Host, Identity, agent, eventually, is_alive, kill, pids_of, script};
use crate::crash::Decoy;
use crate::fixtures::with_prefix;
use crate::scenarios::UNRESPONSIVE;
use crate::trace::{Role, Side, TracePoint, Tracer, kill_supervisor};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Graces, LeaseInfo, LeaseState, RefusalCode, Request, Spawn};
use acp_supervisor::core::escalation::EscalationPhase;
use acp_supervisor::core::reap_plan::ReapStage;
use acp_supervisor::lease::spawn::SpawnStep;
use acp_testkit::ability::Ability;
use acp_testkit::skip_unless;
use rustix::process::Signal;
use std::time::{Duration, Instant};

const GRACES: Graces = Graces { eof_ms: 30, term_ms: 100, kill_ms: 2_000 };
const SYNC: &str = "sync supervisor.db-wal";
/// Maximum time until a point is reached.
const REACH_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of trees until a wrapper reaches a point before the supervisor kills it, and the time for each but the last.
const WRAPPER_TRIES: u32 = 4;
const LATE_WRAPPER: Duration = Duration::from_secs(10);

use Role::{Adapter, Starting, Supervisor, Wrapper};
use Side::{Entry, Exit};
const BOTH: &[Side] = &[Entry, Exit];

/// Trace point of a step: role, call, count, and sides at which to kill.
type Point<S> = (S, Role, &'static str, u32, &'static [Side]);

const SPAWN: &[Point<SpawnStep>] = &[
    (SpawnStep::Reserve, Supervisor, SYNC, 1, BOTH),
    (SpawnStep::Prepare, Supervisor, "link", 1, BOTH),
    (SpawnStep::Prepare, Supervisor, "describe", 1, BOTH),
    (SpawnStep::Start, Supervisor, "fork", 1, &[Exit]),
    (SpawnStep::Start, Starting, "exec", 1, &[Entry]),
    (SpawnStep::Start, Wrapper, "exec", 1, &[Exit]),
    (SpawnStep::Start, Supervisor, "open", 1, BOTH),
    (SpawnStep::Start, Wrapper, "setsid", 1, BOTH),
    (SpawnStep::Hello, Supervisor, "send", 1, BOTH),
    (SpawnStep::Hello, Wrapper, "receive", 1, &[Exit]),
    (SpawnStep::Hello, Wrapper, "fork", 1, BOTH),
    (SpawnStep::Hello, Wrapper, "send", 1, BOTH),
    (SpawnStep::Hello, Supervisor, "receive", 1, &[Exit]),
    (SpawnStep::Verify, Supervisor, "open", 2, BOTH),
    (SpawnStep::Bind, Supervisor, SYNC, 2, BOTH),
    (SpawnStep::Go, Supervisor, "send", 2, BOTH),
    (SpawnStep::Go, Wrapper, "receive", 2, &[Exit]),
    (SpawnStep::Go, Wrapper, "go", 1, BOTH),
    (SpawnStep::Go, Adapter, "exec", 1, BOTH),
    (SpawnStep::Go, Wrapper, "send", 2, BOTH),
    (SpawnStep::Go, Supervisor, "receive", 2, &[Exit]),
    (SpawnStep::Go, Supervisor, SYNC, 3, BOTH),
];

/// End of a tree that ignores SIGTERM, by its wrapper.
const CLOSE: &[Point<EscalationPhase>] = &[
    (EscalationPhase::Running, Supervisor, SYNC, 1, BOTH),
    (EscalationPhase::Eof, Supervisor, "close pipe", 1, BOTH),
    (EscalationPhase::Term, Supervisor, "signal 15", 1, BOTH),
    (EscalationPhase::Term, Supervisor, "signal 18", 1, BOTH),
    (EscalationPhase::Term, Wrapper, "signal 15", 1, BOTH),
    (EscalationPhase::Term, Wrapper, "signal 18", 1, BOTH),
    (EscalationPhase::Term, Wrapper, "signal 9", 1, BOTH),
    (EscalationPhase::Term, Wrapper, "exit", 1, &[Entry]),
    (EscalationPhase::Over, Supervisor, SYNC, 2, BOTH),
    (EscalationPhase::Over, Supervisor, "remove", 1, BOTH),
];

/// End of a tree by the supervisor after the wrapper was killed.
const KILL: &[Point<EscalationPhase>] = &[
    (EscalationPhase::Running, Supervisor, SYNC, 1, BOTH),
    (EscalationPhase::Kill, Supervisor, "open", 1, BOTH),
    (EscalationPhase::Kill, Supervisor, "signal 9", 1, BOTH),
    (EscalationPhase::Over, Supervisor, SYNC, 2, BOTH),
];

/// A tree that survives SIGKILL.
const STUCK: &[Point<EscalationPhase>] = &[(EscalationPhase::Stuck, Supervisor, SYNC, 2, BOTH)];

/// End of a tree left behind by an earlier supervisor.
const REAP: &[Point<ReapStage>] = &[
    (ReapStage::Examine, Supervisor, "open", 1, BOTH),
    (ReapStage::Record, Supervisor, SYNC, 1, BOTH),
    (ReapStage::Term, Supervisor, "signal 15", 1, BOTH),
    (ReapStage::Term, Supervisor, "signal 18", 1, BOTH),
    (ReapStage::Kill, Supervisor, "signal 9", 1, BOTH),
    (ReapStage::Settle, Supervisor, SYNC, 2, BOTH),
    (ReapStage::Settle, Supervisor, "remove", 1, BOTH),
];

/// Reap on R1, where one write kills the cgroup. (In a close, wrapper or subreaper may be faster than the write.)
const REAP_GROUP: &[Point<ReapStage>] = &[
    (ReapStage::Record, Supervisor, SYNC, 1, BOTH),
    (ReapStage::Term, Supervisor, "signal 15", 1, BOTH),
    (ReapStage::Kill, Supervisor, "end group", 1, BOTH),
    (ReapStage::Settle, Supervisor, SYNC, 2, BOTH),
];

fn trace_points<S>(points: &[Point<S>]) -> Vec<TracePoint> {
    let each = points.iter().flat_map(|(_, role, call_name, nth, sides)| {
        let of = |side: &Side| TracePoint {
            role: *role,
            call_name: (*call_name).to_owned(),
            side: *side,
            nth: *nth,
        };
        sides.iter().map(of).collect::<Vec<_>>()
    });
    each.collect()
}

/// A supervisor under test, with foreign processes that must survive.
struct Rig {
    host: Host,
    identity: Identity,
    supervisor: Option<i32>,
    _other_host: Host,
    neighbour_lease: LeaseInfo,
    neighbour: Client,
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor {
            kill_supervisor(supervisor);
        }
    }
}

impl Rig {
    /// Starts on R2: on R1 one write to `cgroup.kill` replaces the signals.
    async fn new() -> Self {
        Self::at_level("R2").await.unwrap()
    }

    /// Starts on this containment level, if the machine has it.
    async fn at_level(rung: &str) -> Option<Self> {
        let other_host = Host::new();
        let mut neighbour = other_host.gateway().connect().await;
        let neighbour_lease = neighbour.spawn(&agent(&["sleep", "300"])).await;
        let config = "reap_term_ms = 100\nreap_kill_ms = 2000\ncrash_backoff_ms = 0\ncrashes_max = 0";
        let host = Host::prepare(&format!("rung = \"{rung}\"\n{config}"));
        if rung == "R1" && host.group.is_none() {
            return None;
        }
        let identity = host.gateway();
        Some(Self { host, identity, supervisor: None, _other_host: other_host, neighbour_lease, neighbour })
    }

    /// Starts the supervisor, unless it runs, as the child of another process: its tracer would reap its own child.
    /// The dead one may hold the state directory until its last thread has ended and its last child has called exec.
    fn start(&mut self) {
        let prefix = ["sh", "-c", "\"$@\" & exec 2> /dev/null; wait $!", "sh"];
        if self.supervisor.is_some() {
            return;
        }
        let mut ready = serde_json::Value::Null;
        eventually("the state directory is free", || {
            ready = self.host.launch(with_prefix(&prefix, &self.host.command()));
            ready["code"] != "STATE_DIR_LOCKED"
        });
        assert_eq!(ready["event"], "ready", "{ready}");
        self.supervisor = Some(i32::try_from(ready["pid"].as_i64().unwrap()).unwrap());
    }

    fn kill_supervisor(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            kill_supervisor(supervisor);
            eventually("the supervisor is dead", || !is_alive(supervisor));
        }
    }

    /// Starts a traced supervisor and a gateway whose record is on disk.
    async fn traced(&mut self) -> (Client, Tracer) {
        self.start();
        let gateway = self.identity.connect().await;
        eventually("the gateway is on disk", || self.host.has_gateway(self.identity.id));
        (gateway, Tracer::attach(self.supervisor.unwrap()))
    }

    /// Starts a supervisor that is traced from its first instruction.
    fn start_traced(&mut self, at: &TracePoint) -> Tracer {
        let file = self.host.dir.path().join("pid");
        let stopped =
            "sh -c 'echo $$ > \"$0\"; kill -STOP $$; exec \"$@\"' \"$0\" \"$@\" & exec 2> /dev/null; wait $!";
        let mut command = with_prefix(&["sh", "-c", stopped, file.to_str().unwrap()], &self.host.command());
        let child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        self.host.adopt(child);
        let mut pid = 0;
        eventually("the supervisor is stopped", || {
            pid = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
            std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
        });
        std::fs::remove_file(&file).unwrap();
        self.supervisor = Some(pid);
        let tracer = Tracer::attach(pid);
        tracer.arm(Some((at.clone(), Supervisor)));
        kill(pid, Signal::CONT);
        tracer
    }

    /// Asserts after the supervisor's death that a lease names every active process, and the next supervisor ends them.
    fn check_after_supervisor_death(
        &mut self,
        tracer: Tracer,
        spec: &Spawn,
        decoys: &[Decoy],
        at: &TracePoint,
    ) {
        let supervisor = self.supervisor.take().unwrap();
        eventually("the supervisor is dead", || !is_alive(supervisor));
        self.check_named(spec.lease_id, decoys, at);
        let left = |pid: &i32| !decoys.iter().any(|decoy| decoy.pid() == *pid);
        self.start();
        eventually("no process of the tree runs", || !pids_of(spec.lease_id).iter().any(left));
        tracer.finish();
        // A spawn killed before its reservation has no lease.
        let ended = |lease: &(String, String, String)| ["closed", "lost"].contains(&lease.0.as_str());
        eventually("the lease has ended", || {
            self.host.find_row(spec.lease_id).is_none_or(|lease| ended(&lease))
        });
        self.check_foreign(decoys, at);
    }

    /// Asserts after the wrapper's death that the supervisor lives and has ended the tree.
    fn check_after_wrapper_death(&self, spec: &Spawn, decoys: &[Decoy], at: &TracePoint) {
        self.host.await_ended(spec.lease_id);
        let left = |pid: &i32| !decoys.iter().any(|decoy| decoy.pid() == *pid);
        assert!(!pids_of(spec.lease_id).iter().any(left), "process left at {at:?}");
        assert!(self.supervisor.is_some_and(is_alive), "the supervisor died at {at:?}");
        self.check_foreign(decoys, at);
    }

    /// Spawns a tree and waits until it runs and its lease is open on disk.
    async fn spawn(&self, gateway: &mut Client, spec: &Spawn) -> LeaseInfo {
        let info = gateway.spawn(spec).await;
        // Decoy, wrapper, adapter and its sleep, escaped child and its sleep.
        eventually("the tree is there", || pids_of(spec.lease_id).len() >= 6);
        self.host.await_settled(spec.lease_id);
        info
    }

    /// I2: every process is named by a lease, or is a wrapper or an adapter before exec.
    fn check_named(&self, lease_id: LeaseId, decoys: &[Decoy], at: &TracePoint) {
        let is_inert = |pid: &i32| {
            // An exiting process has no program.
            std::fs::read_link(format!("/proc/{pid}/exe"))
                .map_or(true, |exe| exe.to_string_lossy().contains("/acp-wrapper"))
        };
        let living = pids_of(lease_id).into_iter().filter(|pid| !decoys.iter().any(|d| d.pid() == *pid));
        let active: Vec<i32> = living.filter(|pid| !is_inert(pid) && is_alive(*pid)).collect();
        if !active.is_empty() {
            let row = self.host.find_row(lease_id).map(|(state, ..)| state);
            let named = row.as_deref().is_some_and(|state| ["bound", "open", "closing"].contains(&state));
            assert!(named && self.host.is_bound(lease_id), "{active:?} run without a lease: {row:?} {at:?}");
        }
    }

    /// I3: no foreign process was killed.
    fn check_foreign(&self, decoys: &[Decoy], at: &TracePoint) {
        assert!(decoys.iter().all(|decoy| is_alive(decoy.pid())), "a foreign process was killed at {at:?}");
        let pids = [self.neighbour_lease.wrapper_pid.unwrap(), self.neighbour_lease.adapter_pid.unwrap()];
        assert_eq!(pids_of(self.neighbour_lease.lease_id), pids, "the neighbour's tree changed at {at:?}");
    }

    async fn check_neighbour(&mut self) {
        assert_eq!(self.neighbour.leases().await[0].state, LeaseState::Open);
    }

    /// Processes with the right lease or the right gateway, never both.
    fn decoys(&self, lease_id: LeaseId) -> [Decoy; 2] {
        [Decoy::new(lease_id, GatewayInstanceId::mint()), Decoy::new(LeaseId::mint(), self.identity.id)]
    }
}

fn spec_ignoring_sigterm() -> Spawn {
    Spawn { graces: GRACES, ..script(UNRESPONSIVE) }
}

/// I1: the adapter runs only after the bound lease is durable.
fn check_order(log: &[TracePoint]) {
    let exec = log.iter().position(|i| i.role == Adapter && i.call_name == "exec" && i.side == Entry);
    let bound =
        log.iter().position(|i| i.role == Supervisor && i.call_name == SYNC && i.side == Exit && i.nth == 2);
    if let Some(exec) = exec {
        assert!(
            bound.is_some_and(|bound| bound < exec),
            "the adapter ran before its lease was bound: {log:?}"
        );
    }
}

#[tokio::test]
async fn supervisor_killed_at_any_spawn_step_leaves_nothing() {
    skip_unless!(Ability::Ptrace);
    assert!(SpawnStep::ALL.iter().all(|step| SPAWN.iter().any(|point| point.0 == *step)));
    let mut rig = Rig::new().await;
    for at in trace_points(SPAWN) {
        let (mut gateway, tracer) = rig.traced().await;
        let spec = spec_ignoring_sigterm();
        let decoys = rig.decoys(spec.lease_id);
        tracer.arm(Some((at.clone(), Supervisor)));
        gateway.send(Request::Spawn(spec.clone())).await;
        assert!(tracer.await_hit(REACH_TIMEOUT), "{at:?} was not reached: {:?}", tracer.log());
        check_order(&tracer.log());
        rig.check_after_supervisor_death(tracer, &spec, &decoys, &at);
    }
    rig.check_neighbour().await;
}

#[tokio::test]
async fn wrapper_killed_at_any_spawn_step_leaves_nothing() {
    skip_unless!(Ability::Ptrace);
    let mut rig = Rig::new().await;
    let (mut gateway, tracer) = rig.traced().await;
    // The wrapper exists from its exec on.
    let from = SPAWN.iter().position(|point| point.1 == Wrapper).unwrap();
    for at in trace_points(&SPAWN[from..]) {
        // The rows of the lease before are on disk.
        gateway.await_all_ended().await;
        let spec = spec_ignoring_sigterm();
        let decoys = rig.decoys(spec.lease_id);
        tracer.arm(Some((at.clone(), Wrapper)));
        let id = gateway.send(Request::Spawn(spec.clone())).await;
        assert!(tracer.await_hit(REACH_TIMEOUT), "{at:?} was not reached: {:?}", tracer.log());
        check_order(&tracer.log());
        rig.check_named(spec.lease_id, &decoys, &at);
        let spawned = gateway.reply(id).await;
        println!("{at:?}: {:?}", spawned.map(drop).map_err(|refusal| refusal.message));
        rig.check_after_wrapper_death(&spec, &decoys, &at);
    }
    rig.kill_supervisor();
    tracer.finish();
    rig.check_neighbour().await;
}

/// The adapter is killed before Hello, before Go, and right after: the spawn is refused, or the exit status arrives.
#[tokio::test]
async fn adapter_killed_around_hello_and_go_is_reported() {
    skip_unless!(Ability::Ptrace);
    let mut rig = Rig::new().await;
    let (mut gateway, tracer) = rig.traced().await;
    // Columns: call, side, expected success of the spawn; both are possible after Hello.
    for (call_name, side, want) in [
        ("fork", Exit, Some(false)),
        ("send", Entry, Some(false)),
        ("send", Exit, None),
        ("go", Entry, Some(true)),
        ("go", Exit, Some(true)),
    ] {
        let at = TracePoint { role: Wrapper, call_name: call_name.to_owned(), side, nth: 1 };
        let spec = spec_ignoring_sigterm();
        let decoys = rig.decoys(spec.lease_id);
        tracer.arm(Some((at.clone(), Adapter)));
        let id = gateway.send(Request::Spawn(spec.clone())).await;
        assert!(tracer.await_hit(REACH_TIMEOUT), "{at:?} was not reached: {:?}", tracer.log());
        let spawned = gateway.reply(id).await;
        assert!(want.is_none_or(|want| want == spawned.is_ok()), "{at:?}: {spawned:?}");
        let began = match spawned {
            Ok(_) => {
                gateway.attach(spec.lease_id, 0).await;
                let (status, end) = gateway.await_exit(spec.lease_id).await;
                assert_eq!((status, end), (ExitStatus::Signaled(Signal::KILL.as_raw()), 0), "{at:?}");
                true
            }
            Err(refusal) => {
                assert_eq!(refusal.code, RefusalCode::SpawnFailed, "{at:?}: {refusal:?}");
                false
            }
        };
        rig.check_after_wrapper_death(&spec, &decoys, &at);
        let (state, reason, _) = rig.host.row(spec.lease_id);
        // A wrapper that reports a missing adapter may be false, so that lease is lost.
        assert!(state == "closed" || !began, "{at:?}: {state}, {reason}");
    }
    rig.kill_supervisor();
    tracer.finish();
    rig.check_neighbour().await;
}

/// Kills `victim` at each of these points of the end of a tree, which `begin` or a close request starts.
async fn close_matrix(points: &[Point<EscalationPhase>], victim: Role, begin: fn(&LeaseInfo) -> bool) {
    let mut rig = Rig::new().await;
    let mut traced = None;
    for at in trace_points(points) {
        let (mut gateway, tracer) = match traced.take() {
            Some(traced) => traced,
            None => rig.traced().await,
        };
        let mut tries = if victim == Wrapper { WRAPPER_TRIES } else { 1 };
        let (spec, decoys) = loop {
            let spec = spec_ignoring_sigterm();
            let decoys = rig.decoys(spec.lease_id);
            let info = rig.spawn(&mut gateway, &spec).await;
            tracer.arm(Some((at.clone(), victim)));
            if begin(&info) {
                gateway.send(Request::CloseLease { lease_id: spec.lease_id, reason: "test".into() }).await;
            }
            tries -= 1;
            if tracer.await_hit(if tries == 0 { REACH_TIMEOUT } else { LATE_WRAPPER }) {
                break (spec, decoys);
            }
            assert!(tries > 0, "{at:?} was not reached: {:?}", tracer.log());
            // On a busy machine the wrapper was late, and the supervisor ended it with the tree.
            rig.check_after_wrapper_death(&spec, &decoys, &at);
        };
        if victim == Supervisor {
            rig.check_after_supervisor_death(tracer, &spec, &decoys, &at);
        } else {
            rig.check_after_wrapper_death(&spec, &decoys, &at);
            traced = Some((gateway, tracer));
        }
    }
    rig.kill_supervisor();
    if let Some((_, tracer)) = traced {
        tracer.finish();
    }
    rig.check_neighbour().await;
}

#[tokio::test]
async fn supervisor_killed_at_any_close_step_leaves_nothing() {
    skip_unless!(Ability::Ptrace);
    let covered =
        |phase: &EscalationPhase| [CLOSE, KILL, STUCK].iter().any(|all| all.iter().any(|p| p.0 == *phase));
    assert!(EscalationPhase::ALL.iter().all(covered));
    close_matrix(CLOSE, Supervisor, |_| true).await;
}

#[tokio::test]
async fn wrapper_killed_at_any_close_step_leaves_nothing() {
    skip_unless!(Ability::Ptrace);
    // In the last phase the wrapper has ended.
    let living = CLOSE.iter().position(|point| point.0 == EscalationPhase::Over).unwrap();
    close_matrix(&CLOSE[..living], Wrapper, |_| true).await;
}

/// The wrapper is killed first, then the supervisor while it kills the tree.
#[tokio::test]
async fn supervisor_killed_during_tree_kill_leaves_nothing() {
    skip_unless!(Ability::Ptrace);
    close_matrix(KILL, Supervisor, |info| {
        kill(info.wrapper_pid.unwrap(), Signal::KILL);
        false
    })
    .await;
}

/// SIGKILL does not end the tree. The lease stays closing in the next supervisor until the tree is gone.
#[tokio::test]
async fn supervisor_killed_with_unkillable_tree_keeps_lease_closing() {
    skip_unless!(Ability::Ptrace, Ability::Root, Ability::CgroupFreezer);
    let mut rig = Rig::new().await;
    rig.host.config = "reap_term_ms = 100\nreap_kill_ms = 300\nreap_every_ms = 200".to_owned();
    for at in trace_points(STUCK) {
        let (mut gateway, tracer) = rig.traced().await;
        let spec = Spawn { graces: Graces { kill_ms: 200, ..GRACES }, ..spec_ignoring_sigterm() };
        let decoys = rig.decoys(spec.lease_id);
        let info = rig.spawn(&mut gateway, &spec).await;
        let frozen = FrozenCgroup::new(info.adapter_pid.unwrap());
        tracer.arm(Some((at.clone(), Supervisor)));
        gateway.send(Request::CloseLease { lease_id: spec.lease_id, reason: "test".into() }).await;
        assert!(tracer.await_hit(REACH_TIMEOUT), "{at:?} was not reached: {:?}", tracer.log());
        let supervisor = rig.supervisor.take().unwrap();
        eventually("the supervisor is dead", || !is_alive(supervisor));
        rig.start();
        assert!(is_alive(info.adapter_pid.unwrap()));
        let (state, reason, _) = rig.host.row(spec.lease_id);
        assert_eq!(state, "closing", "a lease with living processes is not closed");
        assert!(reason.contains(&info.adapter_pid.unwrap().to_string()), "no survivor in: {reason}");
        drop(frozen);
        rig.check_after_wrapper_death(&spec, &decoys, &at);
        tracer.finish();
    }
    rig.check_neighbour().await;
}

/// A process in a frozen cgroup of version 1, where no signal takes effect. Dropping the value thaws it.
struct FrozenCgroup(std::path::PathBuf);

impl FrozenCgroup {
    fn new(pid: i32) -> Self {
        let home = acp_testkit::ability::cgroup_freezer_home().unwrap();
        let frozen = Self(home.join(format!("acp-matrix-{pid}")));
        std::fs::create_dir(&frozen.0).unwrap();
        std::fs::write(frozen.0.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(frozen.0.join("freezer.state"), "FROZEN").unwrap();
        let state = || std::fs::read_to_string(frozen.0.join("freezer.state")).unwrap();
        eventually("the cgroup is frozen", || state().trim() == "FROZEN");
        frozen
    }
}

impl Drop for FrozenCgroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        // The cgroup can be removed after its last process.
        let until = Instant::now() + crate::common::TIMEOUT;
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

#[tokio::test]
async fn supervisor_killed_at_any_reap_step_leaves_nothing() {
    skip_unless!(Ability::Ptrace);
    assert!(ReapStage::ALL.iter().all(|stage| REAP.iter().any(|point| point.0 == *stage)));
    reap_matrix(Rig::new().await, REAP).await;
}

#[tokio::test]
async fn supervisor_killed_during_cgroup_reap_leaves_nothing() {
    skip_unless!(Ability::Ptrace);
    let Some(rig) = Rig::at_level("R1").await else { return };
    reap_matrix(rig, REAP_GROUP).await;
}

/// Kills a supervisor at each of these points while it reaps a tree.
async fn reap_matrix(mut rig: Rig, points: &[Point<ReapStage>]) {
    for at in trace_points(points) {
        rig.start();
        let mut gateway = rig.identity.connect().await;
        let spec = spec_ignoring_sigterm();
        let decoys = rig.decoys(spec.lease_id);
        let info = rig.spawn(&mut gateway, &spec).await;
        // The tree is left for the next supervisor.
        kill(info.wrapper_pid.unwrap(), Signal::STOP);
        rig.kill_supervisor();
        kill(info.wrapper_pid.unwrap(), Signal::KILL);
        let tracer = rig.start_traced(&at);
        assert!(tracer.await_hit(REACH_TIMEOUT), "{at:?} was not reached: {:?}", tracer.log());
        rig.check_after_supervisor_death(tracer, &spec, &decoys, &at);
    }
    rig.check_neighbour().await;
}
