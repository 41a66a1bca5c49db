//! Kills of supervisors and wrappers: nothing outlives its lease, and foreign processes survive.

use crate::common::{Host, agent, eventually, is_alive, kill, pids_of, script};
use crate::scenarios::{UNRESPONSIVE, at_each_level, await_gone, await_unresponsive};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{LeaseState, RefusalCode, Request, Spawn};
use acp_testkit::processes::{KillOnDrop, status_field};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::process::Command;

/// A foreign process with the marker of a lease.
pub(crate) struct Decoy(KillOnDrop);

impl Decoy {
    pub(crate) fn new(lease: LeaseId, gateway: GatewayInstanceId) -> Self {
        let mut command = Command::new("sleep");
        command.arg("3600").env("OPENCLAW_ACPX_LEASE_ID", lease.to_string());
        Self(KillOnDrop(command.env("OPENCLAW_GATEWAY_INSTANCE_ID", gateway.to_string()).spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.pid()
    }
}

async fn check_killed_supervisor(level: &str) {
    let Some((mut host, mut gateway)) = Host::serving_at_level(level).await else { return };
    let specs = [agent(&["cat"]), script(UNRESPONSIVE)];
    gateway.spawn_all(&specs).await;
    await_unresponsive(specs[1].lease_id);
    host.crash();
    await_gone(&specs);
    host.start();
    let leases = host.json(&["leases", "list"]);
    for lease in leases.as_array().unwrap() {
        assert_eq!(lease["state"], "lost", "{lease}");
    }
    // A process of somebody else that cannot be read while it starts leaves the proof to a later sweep.
    eventually("both trees are proved gone", || {
        let _ = host.cli(&["leases", "reap", "--yes"]);
        let figures = String::from_utf8(host.cli(&["metrics"]).stdout).unwrap();
        let has = |line: &str| figures.lines().any(|found| found == line);
        has("acp_supervisor_leases{state=\"lost\"} 2") && has("acp_supervisor_leases_unproved 0")
    });
}

async fn check_killed_supervisor_and_wrapper(level: &str) {
    let Some(mut host) = Host::at_level(level) else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let (spec, info) = gateway.spawn_unresponsive().await;
    let before = pids_of(spec.lease_id);
    // The wrapper is stopped, so that it cannot end the tree.
    host.crash_with_wrapper(&info);
    let remaining = pids_of(spec.lease_id);
    assert!(!remaining.is_empty(), "all of {before:?} have ended");
    let foreign = Decoy::new(spec.lease_id, GatewayInstanceId::mint());
    let other = Decoy::new(LeaseId::mint(), identity.id);

    host.start();
    let gone = remaining.iter().all(|pid| !is_alive(*pid));
    assert!(gone, "processes remain after the start");
    assert!(is_alive(foreign.pid()) && is_alive(other.pid()), "a foreign process was killed");
    let mut gateway = identity.connect().await;
    let info = gateway.leases().await.remove(0);
    assert_eq!((info.state, info.state_reason.as_str()), (LeaseState::Closed, "its tree is gone"));
}

/// The wrapper was stopped and could not end its tree.
async fn check_stopped_wrapper(level: &str) {
    let Some(mut host) = Host::at_level(level) else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let (plain, unresponsive) = (agent(&["sleep", "300"]), script(UNRESPONSIVE));
    let infos = [gateway.spawn(&plain).await, gateway.spawn(&unresponsive).await];
    await_unresponsive(unresponsive.lease_id);
    for info in &infos {
        kill(info.wrapper_pid.unwrap(), Signal::STOP);
    }
    host.crash();
    assert!(
        infos.iter().all(|info| is_alive(info.wrapper_pid.unwrap()) && is_alive(info.adapter_pid.unwrap()))
    );
    host.start();
    for spec in [&plain, &unresponsive] {
        assert_eq!(pids_of(spec.lease_id), [0; 0], "processes remain after the start");
    }
    let leases = identity.connect().await.leases().await;
    assert!(leases.iter().all(|l| l.state == LeaseState::Closed), "{leases:?}");
}

async fn check_copied_state_directory(level: &str) {
    let Some(mut host) = Host::at_level(level) else { return };
    let (mut identity, mut gateway) = host.connect_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    let mut copy = Host::with_config("reap_every_ms = 200");
    copy.crash();
    host.await_settled(spec.lease_id);
    host.copy_state(&copy);
    copy.start();
    assert_eq!(pids_of(spec.lease_id).len(), 2);
    let lines = copy.json(&["leases", "reap", "--dry-run"]);
    assert_eq!(lines[0]["action"], "leave", "{lines}");
    assert_eq!(lines[0]["why"], "the supervisor that spawned it lives");
    assert!(copy.cli(&["leases", "reap", "--yes"]).status.success());
    assert_eq!(pids_of(spec.lease_id).len(), 2);

    // The copy refuses requests for the lease.
    identity.socket = copy.socket();
    let mut client_of_copy = identity.connect().await;
    let lease_id = spec.lease_id;
    for body in [Request::Spawn(spec), Request::Attach { lease_id, from_offset: 0 }] {
        assert_eq!(client_of_copy.call(body).await.unwrap_err().code, RefusalCode::SessionBusy);
    }
    // After the supervisor's death the copy sweeps the lease unasked.
    host.crash();
    // Either the wrapper or the copy ends the tree.
    eventually("the copy reports that the lease has ended", || {
        let state = copy.json(&["leases", "list"])[0]["state"].clone();
        state == "lost" || state == "closed"
    });
    assert!(pids_of(lease_id).is_empty());
}

async fn check_unmarked_orphan(level: &str) {
    let Some((host, mut gateway)) = Host::serving_at_level(level).await else { return };
    let file = host.dir.path().join("pid");
    let path = file.to_str().unwrap();
    let spec = script(&format!(
        "setsid env -i sh -c 'echo $$ > {path}.tmp; mv {path}.tmp {path}; trap \"\" TERM; sleep 300; :' & sleep 300"
    ));
    let info = gateway.spawn(&spec).await;
    eventually("the orphan exists", || file.exists());
    let orphan: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    assert!(is_alive(orphan) && !pids_of(spec.lease_id).contains(&orphan));
    kill(info.wrapper_pid.unwrap(), Signal::KILL);
    gateway.state(spec.lease_id, LeaseState::Lost).await;
    eventually("the orphan is gone", || !is_alive(orphan));
    eventually("the orphan is reaped", || !std::path::Path::new(&format!("/proc/{orphan}")).exists());
    // Other leases are not affected.
    let other = gateway.start(agent(&["cat"])).await;
    assert_eq!(pids_of(other.lease_id).len(), 2);
}

async fn check_lost_lease(level: &str) {
    let Some(mut host) = Host::at_level(level) else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    gateway.input(spec.lease_id, 1, b"x").await.unwrap();
    host.restart_after_crash();
    let mut gateway = identity.connect().await;
    let request = Request::Attach { lease_id: spec.lease_id, from_offset: 0 };
    assert_eq!(gateway.call(request).await.unwrap_err().code, RefusalCode::LeaseEnded);
    assert_eq!(gateway.leases().await.remove(0).exit, None);
}

async fn check_supervisor_killed_in_spawns(level: &str) {
    let Some(mut host) = Host::at_level(level) else { return };
    let identity = host.gateway();
    for round in 0..12u64 {
        let mut gateway = identity.connect().await;
        let specs: Vec<_> =
            (0..6).map(|i| if i % 2 == 0 { agent(&["cat"]) } else { script(UNRESPONSIVE) }).collect();
        gateway.send_spawns(&specs).await;
        // Half of the rounds kill after a spawn has started, however slow the machine is.
        if round >= 6 {
            let begun = |spec: &Spawn| !pids_of(spec.lease_id).is_empty();
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

async fn check_wrappers_killed_in_spawns(level: &str) {
    let Some((host, mut gateway)) = Host::serving_at_level(level).await else { return };
    for round in 0..20u64 {
        let spec = script(UNRESPONSIVE);
        let id = gateway.send(Request::Spawn(spec.clone())).await;
        tokio::time::sleep(std::time::Duration::from_millis(round * 2)).await;
        let path = format!("{}/acp-wrapper", spec.lease_id);
        for pid in pids_of(spec.lease_id) {
            let Ok(pidfd) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) else { continue };
            let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let is_child = status_field(pid, "PPid").is_some_and(|ppid| ppid == host.pid().to_string());
            if exe.to_string_lossy().contains(&path) && is_child {
                // The supervisor may end a failed spawn first.
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
        let spawned = gateway.reply(id).await.is_ok();
        if spawned && !pids_of(spec.lease_id).is_empty() {
            gateway.close(spec.lease_id).await;
        }
        eventually("no process of the tree runs", || pids_of(spec.lease_id).is_empty());
    }
    gateway.await_all_ended().await;
}

at_each_level! {
    #[tokio::test] async fn killed_supervisor_leaves_no_process = check_killed_supervisor,
    #[tokio::test]
    async fn next_start_ends_tree_of_killed_supervisor_and_wrapper = check_killed_supervisor_and_wrapper,
    #[tokio::test]
    async fn stopped_wrapper_of_dead_supervisor_is_reaped_with_tree = check_stopped_wrapper,
    #[tokio::test]
    async fn copied_state_directory_reaps_nothing_of_living_supervisor = check_copied_state_directory,
    #[tokio::test] async fn orphan_without_marker_is_killed_with_its_wrapper = check_unmarked_orphan,
    #[tokio::test] async fn lost_lease_reports_no_exit_status = check_lost_lease,
    #[tokio::test]
    async fn supervisor_killed_during_spawns_leaves_nothing = check_supervisor_killed_in_spawns,
    #[tokio::test]
    async fn wrappers_killed_during_spawn_leave_nothing = check_wrappers_killed_in_spawns,
}
