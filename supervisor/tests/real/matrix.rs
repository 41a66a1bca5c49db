//! Case 71: SIGKILL to the supervisor, and separately to the wrapper, at both sides of every system call that marks
//! a step of spawn, close and reap. The steps are the product's own enums; a step without a point fails, and so does

//! a point that is not reached. In each run a neighbour's tree and processes with half of the right marker look on.

use crate::common::{Client, Host, Identity, agent, eventually, kill, marked, runs, script};
use crate::crash::Decoy;
use crate::ground::under;
use crate::start::STUBBORN;
use crate::trace::{Instance, Role, Side, Tracer, end};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Graces, LeaseInfo, LeaseState, RefusalCode, Request, Spawn};
use acp_supervisor::core::escalation::EscalationPhase;
use acp_supervisor::core::reap_plan::ReapStage;
use acp_supervisor::lease::spawn::SpawnStep;
use acp_testkit::ability::Ability;
use acp_testkit::possible;
use rustix::process::Signal;
use std::time::{Duration, Instant};

const GRACES: Graces = Graces { eof_ms: 30, term_ms: 100, kill_ms: 2_000 };
const SYNC: &str = "sync supervisor.db-wal";
/// How long a point may take to be reached.
const REACH: Duration = Duration::from_secs(60);

use Role::{Adapter, Starting, Supervisor, Wrapper};
use Side::{Entry, Exit};
const BOTH: &[Side] = &[Entry, Exit];

/// Where a step shows: whose system call, which, the how manieth, and the sides at which to kill.
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

/// The end of a tree that ignores everything, by its wrapper.
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

/// The same after the wrapper was killed: the supervisor does it.
const KILL: &[Point<EscalationPhase>] = &[
    (EscalationPhase::Running, Supervisor, SYNC, 1, BOTH),
    (EscalationPhase::Kill, Supervisor, "open", 1, BOTH),
    (EscalationPhase::Kill, Supervisor, "signal 9", 1, BOTH),
    (EscalationPhase::Over, Supervisor, SYNC, 2, BOTH),
];

/// The same when SIGKILL does not end the tree.
const STUCK: &[Point<EscalationPhase>] = &[(EscalationPhase::Stuck, Supervisor, SYNC, 2, BOTH)];

/// The end of a tree that an earlier supervisor left behind.
const REAP: &[Point<ReapStage>] = &[
    (ReapStage::Examine, Supervisor, "open", 1, BOTH),
    (ReapStage::Record, Supervisor, SYNC, 1, BOTH),
    (ReapStage::Term, Supervisor, "signal 15", 1, BOTH),
    (ReapStage::Term, Supervisor, "signal 18", 1, BOTH),
    (ReapStage::Kill, Supervisor, "signal 9", 1, BOTH),
    (ReapStage::Settle, Supervisor, SYNC, 2, BOTH),
    (ReapStage::Settle, Supervisor, "remove", 1, BOTH),
];

/// The same on R1, where one write ends the group. (In a close, wrapper or subreaper may be faster than that write.)
const REAP_GROUP: &[Point<ReapStage>] = &[
    (ReapStage::Record, Supervisor, SYNC, 1, BOTH),
    (ReapStage::Term, Supervisor, "signal 15", 1, BOTH),
    (ReapStage::Kill, Supervisor, "end group", 1, BOTH),
    (ReapStage::Settle, Supervisor, SYNC, 2, BOTH),
];

fn instances<S>(points: &[Point<S>]) -> Vec<Instance> {
    let each = points.iter().flat_map(|(_, role, what, nth, sides)| {
        let of = |side: &Side| Instance { role: *role, what: (*what).to_owned(), side: *side, nth: *nth };
        sides.iter().map(of).collect::<Vec<_>>()
    });
    each.collect()
}

/// A supervisor to be killed, and those who must not notice.
struct Rig {
    host: Host,
    identity: Identity,
    supervisor: Option<i32>,
    _neighbour: Host,
    theirs: LeaseInfo,
    neighbours: Client,
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor {
            end(supervisor);
        }
    }
}

impl Rig {
    /// On R2, whose signals are the points: on R1 one write to `cgroup.kill` may leave nobody to signal.
    async fn new() -> Self {
        Self::on("R2").await.unwrap()
    }

    /// On this rung, if there is one here.
    async fn on(rung: &str) -> Option<Self> {
        let neighbour = Host::new();
        let mut neighbours = neighbour.gateway().connect().await;
        let theirs = neighbours.spawn(&agent(&["sleep", "300"])).await;
        let config = "reap_term_ms = 100\nreap_kill_ms = 2000\ncrash_backoff_ms = 0\ncrashes_max = 0";
        let host = Host::idle(&format!("rung = \"{rung}\"\n{config}"));
        if rung == "R1" && host.group.is_none() {
            return None;
        }
        let identity = host.gateway();
        Some(Self { host, identity, supervisor: None, _neighbour: neighbour, theirs, neighbours })
    }

    /// Starts the supervisor, unless it runs, as the child of another process: a traced child of the tracer's own
    /// process would be reaped by its tracer.
    ///
    /// The dead one may hold the state directory a moment longer: until its last thread, and a child of it that has
    /// not called exec yet, have let go.
    fn start(&mut self) {
        let prefix = ["sh", "-c", "\"$@\" & exec 2> /dev/null; wait $!", "sh"];
        if self.supervisor.is_some() {
            return;
        }
        let mut ready = serde_json::Value::Null;
        eventually("the state directory is free", || {
            ready = self.host.launch(under(&prefix, &self.host.command()));
            ready["code"] != "STATE_DIR_LOCKED"
        });
        assert_eq!(ready["event"], "ready", "{ready}");
        self.supervisor = Some(i32::try_from(ready["pid"].as_i64().unwrap()).unwrap());
    }

    fn end(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            end(supervisor);
            eventually("the supervisor is dead", || !runs(supervisor));
        }
    }

    /// A traced supervisor that runs, and a gateway that it knows already.
    async fn traced(&mut self) -> (Client, Tracer) {
        self.start();
        let gateway = self.identity.connect().await;
        eventually("the gateway is on disk", || self.host.knows(self.identity.id));
        (gateway, Tracer::attach(self.supervisor.unwrap()))
    }

    /// Starts a supervisor that is traced from its first instruction on.
    fn start_traced(&mut self, at: &Instance) -> Tracer {
        let file = self.host.dir.path().join("pid");
        let stopped =
            "sh -c 'echo $$ > \"$0\"; kill -STOP $$; exec \"$@\"' \"$0\" \"$@\" & exec 2> /dev/null; wait $!";
        let mut command = under(&["sh", "-c", stopped, file.to_str().unwrap()], &self.host.command());
        let child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        self.host.hold(child);
        let mut pid = 0;
        eventually("it waits to be traced", || {
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

    /// After the supervisor's death: what lives is inert or named by a lease, and nothing of it stays.
    fn check_the_dead(&mut self, tracer: Tracer, spec: &Spawn, decoys: &[Decoy], at: &Instance) {
        let supervisor = self.supervisor.take().unwrap();
        eventually("the supervisor is dead", || !runs(supervisor));
        self.check_named(spec.lease_id, decoys, at);
        let left = |pid: &i32| !decoys.iter().any(|decoy| decoy.pid() == *pid);
        self.start();
        eventually("no process of the tree runs", || !marked(spec.lease_id).iter().any(left));
        tracer.finish();
        // Before it was durable there is none.
        let ended = |lease: &(String, String, String)| ["closed", "lost"].contains(&lease.0.as_str());
        eventually("the lease has ended", || self.host.find(spec.lease_id).is_none_or(|lease| ended(&lease)));
        self.check_bystanders(decoys, at);
    }

    /// After the wrapper's death: its supervisor lives on and leaves nothing of the tree.
    fn check_the_rest(&self, spec: &Spawn, decoys: &[Decoy], at: &Instance) {
        self.host.ended(spec.lease_id);
        let left = |pid: &i32| !decoys.iter().any(|decoy| decoy.pid() == *pid);
        assert!(!marked(spec.lease_id).iter().any(left), "something is left at {at:?}");
        assert!(self.supervisor.is_some_and(runs), "the supervisor died at {at:?}");
        self.check_bystanders(decoys, at);
    }

    /// A tree that runs, with its lease open on disk.
    async fn spawn(&self, gateway: &mut Client, spec: &Spawn) -> LeaseInfo {
        let info = gateway.spawn(spec).await;
        // Beside the decoy: wrapper, adapter and its sleep, escapee and its sleep.
        eventually("the tree is there", || marked(spec.lease_id).len() >= 6);
        self.host.settled(spec.lease_id);
        info
    }

    /// I2: who runs is a wrapper, or an adapter before exec, which can do nothing but end; or a lease names its tree.
    fn check_named(&self, lease_id: LeaseId, decoys: &[Decoy], at: &Instance) {
        let is_inert = |pid: &i32| {
            // One that is just ending has no program any more.
            std::fs::read_link(format!("/proc/{pid}/exe"))
                .map_or(true, |exe| exe.to_string_lossy().contains("/acp-wrapper"))
        };
        let living = marked(lease_id).into_iter().filter(|pid| !decoys.iter().any(|d| d.pid() == *pid));
        let active: Vec<i32> = living.filter(|pid| !is_inert(pid) && runs(*pid)).collect();
        if !active.is_empty() {
            let row = self.host.find(lease_id).map(|(state, ..)| state);
            let named = row.as_deref().is_some_and(|state| ["bound", "open", "closing"].contains(&state));
            assert!(named && self.host.is_bound(lease_id), "{active:?} run without a lease: {row:?} {at:?}");
        }
    }

    /// I3, and the other tenant: nobody else was touched.
    fn check_bystanders(&self, decoys: &[Decoy], at: &Instance) {
        assert!(decoys.iter().all(|decoy| runs(decoy.pid())), "a bystander was killed at {at:?}");
        let theirs = [self.theirs.wrapper_pid.unwrap(), self.theirs.adapter_pid.unwrap()];
        assert_eq!(marked(self.theirs.lease_id), theirs, "the neighbour's tree was touched at {at:?}");
    }

    async fn check_the_neighbour(&mut self) {
        assert_eq!(self.neighbours.leases().await[0].state, LeaseState::Open);
    }

    /// Processes with the right lease or the right gateway, never both.
    fn decoys(&self, lease_id: LeaseId) -> [Decoy; 2] {
        [Decoy::new(lease_id, GatewayInstanceId::mint()), Decoy::new(LeaseId::mint(), self.identity.id)]
    }
}

fn stubborn() -> Spawn {
    Spawn { graces: GRACES, ..script(STUBBORN) }
}

/// I1: the program of the adapter runs only after the bound lease is durable.
fn check_order(log: &[Instance]) {
    let exec = log.iter().position(|i| i.role == Adapter && i.what == "exec" && i.side == Entry);
    let bound =
        log.iter().position(|i| i.role == Supervisor && i.what == SYNC && i.side == Exit && i.nth == 2);
    if let Some(exec) = exec {
        assert!(
            bound.is_some_and(|bound| bound < exec),
            "the adapter ran before its lease was bound: {log:?}"
        );
    }
}

#[tokio::test]
async fn the_supervisor_is_killed_at_each_step_of_a_spawn() {
    possible!(Ability::Ptrace);
    assert!(SpawnStep::ALL.iter().all(|step| SPAWN.iter().any(|point| point.0 == *step)));
    let mut rig = Rig::new().await;
    for at in instances(SPAWN) {
        let (mut gateway, tracer) = rig.traced().await;
        let spec = stubborn();
        let decoys = rig.decoys(spec.lease_id);
        tracer.arm(Some((at.clone(), Supervisor)));
        gateway.send(Request::Spawn(spec.clone())).await;
        assert!(tracer.await_hit(REACH), "{at:?} was not reached: {:?}", tracer.log());
        check_order(&tracer.log());
        rig.check_the_dead(tracer, &spec, &decoys, &at);
    }
    rig.check_the_neighbour().await;
}

#[tokio::test]
async fn the_wrapper_is_killed_at_each_step_of_a_spawn() {
    possible!(Ability::Ptrace);
    let mut rig = Rig::new().await;
    let (mut gateway, tracer) = rig.traced().await;
    // From its first instruction on: before that there is no wrapper.
    let from = SPAWN.iter().position(|point| point.1 == Wrapper).unwrap();
    for at in instances(&SPAWN[from..]) {
        // What was posted for the one before is on disk.
        gateway.all_ended().await;
        let spec = stubborn();
        let decoys = rig.decoys(spec.lease_id);
        tracer.arm(Some((at.clone(), Wrapper)));
        let id = gateway.send(Request::Spawn(spec.clone())).await;
        assert!(tracer.await_hit(REACH), "{at:?} was not reached: {:?}", tracer.log());
        check_order(&tracer.log());
        rig.check_named(spec.lease_id, &decoys, &at);
        let spawned = gateway.reply(id).await;
        println!("{at:?}: {:?}", spawned.map(drop).map_err(|refusal| refusal.message));
        rig.check_the_rest(&spec, &decoys, &at);
    }
    rig.end();
    tracer.finish();
    rig.check_the_neighbour().await;
}

/// The adapter dies by itself before the wrapper says that it is there, before it is let go, and in that moment: the
/// spawn is refused, or its status arrives.
#[tokio::test]
async fn the_adapter_is_killed_before_the_hello_and_before_go() {
    possible!(Ability::Ptrace);
    let mut rig = Rig::new().await;
    let (mut gateway, tracer) = rig.traced().await;
    // What is still refused, and what has started: once the hello is out, either may be first.
    for (what, side, want) in [
        ("fork", Exit, Some(false)),
        ("send", Entry, Some(false)),
        ("send", Exit, None),
        ("go", Entry, Some(true)),
        ("go", Exit, Some(true)),
    ] {
        let at = Instance { role: Wrapper, what: what.to_owned(), side, nth: 1 };
        let spec = stubborn();
        let decoys = rig.decoys(spec.lease_id);
        tracer.arm(Some((at.clone(), Adapter)));
        let id = gateway.send(Request::Spawn(spec.clone())).await;
        assert!(tracer.await_hit(REACH), "{at:?} was not reached: {:?}", tracer.log());
        let spawned = gateway.reply(id).await;
        assert!(want.is_none_or(|want| want == spawned.is_ok()), "{at:?}: {spawned:?}");
        let began = match spawned {
            Ok(_) => {
                gateway.attach(spec.lease_id, 0).await;
                let (status, end) = gateway.exited(spec.lease_id).await;
                assert_eq!((status, end), (ExitStatus::Signaled(Signal::KILL.as_raw()), 0), "{at:?}");
                true
            }
            Err(refusal) => {
                assert_eq!(refusal.code, RefusalCode::SpawnFailed, "{at:?}: {refusal:?}");
                false
            }
        };
        rig.check_the_rest(&spec, &decoys, &at);
        let (state, reason, _) = rig.host.row(spec.lease_id);
        // Who names an adapter that is not there may be no wrapper of ours: that lease is lost.
        assert!(state == "closed" || !began, "{at:?}: {state}, {reason}");
    }
    rig.end();
    tracer.finish();
    rig.check_the_neighbour().await;
}

/// Kills `victim` at each of these points of the end of a tree. `begin` asks for it.
async fn close_matrix(points: &[Point<EscalationPhase>], victim: Role, begin: fn(&LeaseInfo) -> bool) {
    let mut rig = Rig::new().await;
    let mut traced = None;
    for at in instances(points) {
        let (mut gateway, tracer) = match traced.take() {
            Some(traced) => traced,
            None => rig.traced().await,
        };
        let spec = stubborn();
        let decoys = rig.decoys(spec.lease_id);
        let info = rig.spawn(&mut gateway, &spec).await;
        tracer.arm(Some((at.clone(), victim)));
        if begin(&info) {
            gateway.send(Request::CloseLease { lease_id: spec.lease_id, reason: "test".into() }).await;
        }
        assert!(tracer.await_hit(REACH), "{at:?} was not reached: {:?}", tracer.log());
        if victim == Supervisor {
            rig.check_the_dead(tracer, &spec, &decoys, &at);
        } else {
            rig.check_the_rest(&spec, &decoys, &at);
            traced = Some((gateway, tracer));
        }
    }
    rig.end();
    if let Some((_, tracer)) = traced {
        tracer.finish();
    }
    rig.check_the_neighbour().await;
}

#[tokio::test]
async fn the_supervisor_is_killed_at_each_step_of_a_close() {
    possible!(Ability::Ptrace);
    let covered =
        |phase: &EscalationPhase| [CLOSE, KILL, STUCK].iter().any(|all| all.iter().any(|p| p.0 == *phase));
    assert!(EscalationPhase::ALL.iter().all(covered));
    close_matrix(CLOSE, Supervisor, |_| true).await;
}

#[tokio::test]
async fn the_wrapper_is_killed_at_each_step_of_a_close() {
    possible!(Ability::Ptrace);
    // When it is over there is no wrapper any more.
    let living = CLOSE.iter().position(|point| point.0 == EscalationPhase::Over).unwrap();
    close_matrix(&CLOSE[..living], Wrapper, |_| true).await;
}

/// Both die: the wrapper first, then the supervisor while it does the wrapper's work.
#[tokio::test]
async fn the_supervisor_is_killed_while_it_kills_a_tree() {
    possible!(Ability::Ptrace);
    close_matrix(KILL, Supervisor, |info| {
        kill(info.wrapper_pid.unwrap(), Signal::KILL);
        false
    })
    .await;
}

/// A tree that not even SIGKILL ends, as one whose disk does not answer: the supervisor is killed when it has said
/// so. The lease stays closing until the tree is gone, whoever looks after it.
#[tokio::test]
async fn the_supervisor_is_killed_when_it_is_stuck() {
    possible!(Ability::Ptrace, Ability::Root, Ability::CgroupFreezer);
    let mut rig = Rig::new().await;
    rig.host.config = "reap_term_ms = 100\nreap_kill_ms = 300\nreap_every_ms = 200".to_owned();
    for at in instances(STUCK) {
        let (mut gateway, tracer) = rig.traced().await;
        let spec = Spawn { graces: Graces { kill_ms: 200, ..GRACES }, ..stubborn() };
        let decoys = rig.decoys(spec.lease_id);
        let info = rig.spawn(&mut gateway, &spec).await;
        let frozen = Frozen::new(info.adapter_pid.unwrap());
        tracer.arm(Some((at.clone(), Supervisor)));
        gateway.send(Request::CloseLease { lease_id: spec.lease_id, reason: "test".into() }).await;
        assert!(tracer.await_hit(REACH), "{at:?} was not reached: {:?}", tracer.log());
        let supervisor = rig.supervisor.take().unwrap();
        eventually("the supervisor is dead", || !runs(supervisor));
        rig.start();
        assert!(runs(info.adapter_pid.unwrap()));
        let (state, reason, _) = rig.host.row(spec.lease_id);
        assert_eq!(state, "closing", "a lease with living processes is not closed");
        assert!(reason.contains(&info.adapter_pid.unwrap().to_string()), "the survivor is named: {reason}");
        drop(frozen);
        rig.check_the_rest(&spec, &decoys, &at);
        tracer.finish();
    }
    rig.check_the_neighbour().await;
}

/// A process that takes no signal, in a cgroup of version 1. It is thawed with the value.
struct Frozen(std::path::PathBuf);

impl Frozen {
    fn new(pid: i32) -> Self {
        let home = acp_testkit::ability::cgroup_freezer_home().unwrap();
        let frozen = Self(home.join(format!("acp-matrix-{pid}")));
        std::fs::create_dir(&frozen.0).unwrap();
        std::fs::write(frozen.0.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(frozen.0.join("freezer.state"), "FROZEN").unwrap();
        let state = || std::fs::read_to_string(frozen.0.join("freezer.state")).unwrap();
        eventually("it is frozen", || state().trim() == "FROZEN");
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        // It can be removed when the last process in it is dead.
        let until = Instant::now() + crate::common::DEADLINE;
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

#[tokio::test]
async fn the_supervisor_is_killed_at_each_step_of_a_reap() {
    possible!(Ability::Ptrace);
    assert!(ReapStage::ALL.iter().all(|stage| REAP.iter().any(|point| point.0 == *stage)));
    reap_matrix(Rig::new().await, REAP).await;
}

#[tokio::test]
async fn the_supervisor_is_killed_while_it_reaps_a_group() {
    possible!(Ability::Ptrace);
    let Some(rig) = Rig::on("R1").await else { return };
    reap_matrix(rig, REAP_GROUP).await;
}

/// Kills a supervisor at each of these points of the end of a tree that an earlier one left behind.
async fn reap_matrix(mut rig: Rig, points: &[Point<ReapStage>]) {
    for at in instances(points) {
        rig.start();
        let mut gateway = rig.identity.connect().await;
        let spec = stubborn();
        let decoys = rig.decoys(spec.lease_id);
        let info = rig.spawn(&mut gateway, &spec).await;
        // Nobody cleans up: what is left is for the next supervisor.
        kill(info.wrapper_pid.unwrap(), Signal::STOP);
        rig.end();
        kill(info.wrapper_pid.unwrap(), Signal::KILL);
        let tracer = rig.start_traced(&at);
        assert!(tracer.await_hit(REACH), "{at:?} was not reached: {:?}", tracer.log());
        rig.check_the_dead(tracer, &spec, &decoys, &at);
    }
    rig.check_the_neighbour().await;
}
