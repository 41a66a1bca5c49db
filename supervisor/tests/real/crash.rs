//! Nothing outlives its lease, whatever is killed; and nothing else is touched.

use crate::common::{Host, agent, eventually, kill, marked, runs, script};
use crate::start::{STUBBORN, await_gone, on_each_rung};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{LeaseState, RefusalCode, Request, Spawn};
use acp_testkit::processes::{Killed, status_field};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::process::Command;

/// A process that says it belongs to a lease, as one of another gateway would.
pub(crate) struct Decoy(Killed);

impl Decoy {
    pub(crate) fn new(lease: LeaseId, gateway: GatewayInstanceId) -> Self {
        let mut command = Command::new("sleep");
        command.arg("3600").env("OPENCLAW_ACPX_LEASE_ID", lease.to_string());
        Self(Killed(command.env("OPENCLAW_GATEWAY_INSTANCE_ID", gateway.to_string()).spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.pid()
    }
}

async fn on_killed_supervisor(rung: &str) {
    let Some((mut host, mut gateway)) = Host::serving_on(rung).await else { return };
    let specs = [agent(&["cat"]), script(STUBBORN)];
    gateway.spawn_all(&specs).await;
    eventually("the grandchild is there", || marked(specs[1].lease_id).len() >= 4);
    host.crash();
    await_gone(&specs);
    host.start();
    let leases = host.json(&["leases", "list"]);
    for lease in leases.as_array().unwrap() {
        assert_eq!(lease["state"], "lost", "{lease}");
    }
}

async fn on_killed_supervisor_and_wrapper(rung: &str) {
    let Some(mut host) = Host::on(rung) else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let (spec, info) = gateway.spawn_stubborn().await;
    let before = marked(spec.lease_id);
    // The wrapper first, held still, so that it cannot clean up.
    host.crash_with_wrapper(&info);
    let left = marked(spec.lease_id);
    assert!(!left.is_empty(), "of {before:?} escapees remain");
    let foreign = Decoy::new(spec.lease_id, GatewayInstanceId::mint());
    let other = Decoy::new(LeaseId::mint(), identity.id);

    host.start();
    let gone = left.iter().all(|pid| !runs(*pid));
    assert!(gone, "everything is gone before the first connection");
    assert!(runs(foreign.pid()) && runs(other.pid()), "foreign processes are alive");
    let mut gateway = identity.connect().await;
    let info = gateway.leases().await.remove(0);
    assert_eq!((info.state, info.state_reason.as_str()), (LeaseState::Closed, "its tree is gone"));
}

/// The whole tree is there when the next supervisor starts: the wrapper was stopped and could not clean up.
async fn on_stopped_wrapper(rung: &str) {
    let Some(mut host) = Host::on(rung) else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let (plain, stubborn) = (agent(&["sleep", "300"]), script(STUBBORN));
    let infos = [gateway.spawn(&plain).await, gateway.spawn(&stubborn).await];
    eventually("the grandchild is there", || marked(stubborn.lease_id).len() >= 4);
    for info in &infos {
        kill(info.wrapper_pid.unwrap(), Signal::STOP);
    }
    host.crash();
    assert!(infos.iter().all(|info| runs(info.wrapper_pid.unwrap()) && runs(info.adapter_pid.unwrap())));
    host.start();
    for spec in [&plain, &stubborn] {
        assert_eq!(marked(spec.lease_id), [0; 0], "nothing is left before the first connection");
    }
    let leases = identity.connect().await.leases().await;
    assert!(leases.iter().all(|l| l.state == LeaseState::Closed), "{leases:?}");
}

async fn on_copied_state_directory(rung: &str) {
    let Some(mut host) = Host::on(rung) else { return };
    let (mut identity, mut gateway) = host.connect_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    let mut copy = Host::with_config("reap_every_ms = 200");
    copy.crash();
    host.settled(spec.lease_id);
    host.copy_state(&copy);
    copy.start();
    assert_eq!(marked(spec.lease_id).len(), 2);
    let lines = copy.json(&["leases", "reap", "--dry-run"]);
    assert_eq!(lines[0]["action"], "leave", "{lines}");
    assert_eq!(lines[0]["why"], "the supervisor that spawned it lives");
    assert!(copy.cli(&["leases", "reap", "--yes"]).status.success());
    assert_eq!(marked(spec.lease_id).len(), 2);

    // Who asks the copy for that lease gets an answer.
    identity.socket = copy.socket();
    let mut astray = identity.connect().await;
    let lease_id = spec.lease_id;
    for body in [Request::Spawn(spec), Request::Attach { lease_id, from_offset: 0 }] {
        assert_eq!(astray.call(body).await.unwrap_err().code, RefusalCode::SessionBusy);
    }
    // Once its supervisor is dead the lease is swept without anybody's asking.
    host.crash();
    // Its wrapper ends the tree, or the copy does what is left of that: whoever is first.
    eventually("the copy reports that the lease has ended", || {
        let state = copy.json(&["leases", "list"])[0]["state"].clone();
        state == "lost" || state == "closed"
    });
    assert!(marked(lease_id).is_empty());
}

async fn on_unmarked_stray(rung: &str) {
    let Some((host, mut gateway)) = Host::serving_on(rung).await else { return };
    let file = host.dir.path().join("pid");
    let path = file.to_str().unwrap();
    let spec = script(&format!(
        "setsid env -i sh -c 'echo $$ > {path}.tmp; mv {path}.tmp {path}; trap \"\" TERM; sleep 300; :' & sleep 300"
    ));
    let info = gateway.spawn(&spec).await;
    eventually("the orphan exists", || file.exists());
    let stray: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    assert!(runs(stray) && !marked(spec.lease_id).contains(&stray));
    kill(info.wrapper_pid.unwrap(), Signal::KILL);
    gateway.state(spec.lease_id, LeaseState::Lost).await;
    eventually("the orphan is gone", || !runs(stray));
    eventually("the orphan is reaped", || !std::path::Path::new(&format!("/proc/{stray}")).exists());
    // Other leases were never in danger.
    let other = gateway.start(agent(&["cat"])).await;
    assert_eq!(marked(other.lease_id).len(), 2);
}

async fn on_lost_lease(rung: &str) {
    let Some(mut host) = Host::on(rung) else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    gateway.input(spec.lease_id, 1, b"x").await.unwrap();
    host.restart_after_crash();
    let mut gateway = identity.connect().await;
    let request = Request::Attach { lease_id: spec.lease_id, from_offset: 0 };
    assert_eq!(gateway.call(request).await.unwrap_err().code, RefusalCode::LeaseEnded);
    assert_eq!(gateway.leases().await.remove(0).exit, None);
}

/// Kills at many instants of many spawns: whatever step each of them is at, nothing stays.
async fn on_supervisor_killed_in_spawns(rung: &str) {
    let Some(mut host) = Host::on(rung) else { return };
    let identity = host.gateway();
    for round in 0..12u64 {
        let mut gateway = identity.connect().await;
        let specs: Vec<_> =
            (0..6).map(|i| if i % 2 == 0 { agent(&["cat"]) } else { script(STUBBORN) }).collect();
        gateway.send_spawns(&specs).await;
        // However slow the machine is, half of them are killed with something begun.
        if round >= 6 {
            let begun = |spec: &Spawn| !marked(spec.lease_id).is_empty();
            eventually("one of them has started", || specs.iter().any(begun));
        }
        tokio::time::sleep(std::time::Duration::from_millis(round % 6 * 10)).await;
        host.crash();
        await_gone(&specs);
        host.start();
    }
    let leases = host.json(&["leases", "list"]);
    assert!(!leases.as_array().unwrap().is_empty());
    for lease in leases.as_array().unwrap() {
        assert!(["lost", "closed"].contains(&lease["state"].as_str().unwrap()), "{lease}");
    }
    let wrappers =
        std::fs::read_dir(host.state_dir().join("wrappers").join(identity.id.to_string())).unwrap();
    assert_eq!(wrappers.count(), 0, "launch directories are removed");
}

async fn on_wrappers_killed_in_spawns(rung: &str) {
    let Some((host, mut gateway)) = Host::serving_on(rung).await else { return };
    for round in 0..20u64 {
        let spec = script(STUBBORN);
        let id = gateway.send(Request::Spawn(spec.clone())).await;
        tokio::time::sleep(std::time::Duration::from_millis(round * 2)).await;
        let path = format!("{}/acp-wrapper", spec.lease_id);
        for pid in marked(spec.lease_id) {
            let Ok(pidfd) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) else { continue };
            let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let is_child = status_field(pid, "PPid").is_some_and(|ppid| ppid == host.pid().to_string());
            if exe.to_string_lossy().contains(&path) && is_child {
                // The supervisor may end a failed spawn first.
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
        let spawned = gateway.reply(id).await.is_ok();
        if spawned && !marked(spec.lease_id).is_empty() {
            gateway.close(spec.lease_id).await;
        }
        eventually("no process of the tree runs", || marked(spec.lease_id).is_empty());
    }
    gateway.all_ended().await;
}

on_each_rung! {
    #[tokio::test] async fn a_killed_supervisor_leaves_no_process = on_killed_supervisor,
    #[tokio::test]
    async fn a_killed_supervisor_and_wrapper_leave_work_for_the_next_start = on_killed_supervisor_and_wrapper,
    #[tokio::test]
    async fn a_stopped_wrapper_of_a_dead_supervisor_is_reaped_with_its_tree = on_stopped_wrapper,
    #[tokio::test]
    async fn a_copied_state_directory_reaps_nothing_of_a_living_supervisor = on_copied_state_directory,
    #[tokio::test] async fn a_stray_without_a_marker_is_killed_when_its_wrapper_dies = on_unmarked_stray,
    #[tokio::test] async fn what_is_not_known_of_a_lost_lease_is_not_said = on_lost_lease,
    #[tokio::test]
    async fn a_supervisor_killed_at_any_instant_of_a_spawn_leaves_nothing = on_supervisor_killed_in_spawns,
    #[tokio::test]
    async fn wrappers_killed_at_any_instant_of_a_spawn_leave_nothing = on_wrappers_killed_in_spawns,
}
