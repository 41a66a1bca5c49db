//! State that survives an upgrade besides streams and trees: containment levels and crash counts.

use super::{reconnect, upgrade};
use crate::common::{Host, agent, eventually, pids_of, script};
use crate::test_cgroup::{add_process, members};
use acp_shared::protocol::{LeaseState, RefusalCode, Request};
use std::process::Command;
use std::time::{Duration, Instant};

#[tokio::test]
async fn cgroup_survives_upgrade() {
    let Some(mut host) = Host::at_level("R1") else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let spec = gateway.start(script("trap '' TERM; while :; do sleep 1; done")).await;
    let groups = || host.group.as_ref().unwrap().descendants();
    let (leaf, before) = (host.group.as_ref().unwrap().leaf(spec.lease_id).unwrap(), groups());
    // The level chosen at the start stays, whatever the configuration says now.
    let other = host.config.replace("\"R1\"", "\"R2\"");
    std::fs::write(host.dir.path().join("supervisor.toml"), other).unwrap();
    upgrade(&host);
    assert_eq!(groups(), before, "the cgroups changed");
    assert_eq!(host.json(&["status"])["rung"], "R1");
    let mut gateway = reconnect(&identity).await;
    let next = agent(&["cat"]);
    assert_eq!(gateway.spawn(&next).await.rung, "R1");
    assert!(members(&host.group.as_ref().unwrap().leaf(next.lease_id).unwrap()).len() == 2);
    // A process outside of the tree without marker: only cgroup.kill ends it.
    let mut foreign = Command::new("sleep").arg("300").spawn().unwrap();
    add_process(&leaf, i32::try_from(foreign.id()).unwrap());
    gateway.attach(spec.lease_id, 0).await;
    gateway.close_and_wait(spec.lease_id).await;
    eventually("the whole cgroup is killed", || foreign.try_wait().unwrap().is_some());
    assert!(!leaf.exists() && pids_of(spec.lease_id).is_empty());
    assert_eq!(host.stop(), Some(0));
    assert_eq!(
        host.group.as_ref().unwrap().descendants(),
        Vec::<std::path::PathBuf>::new(),
        "cgroups remain"
    );
}

/// A crash before and one after the upgrade are two in a row. A run across the upgrade has its own length, not the
/// supervisor's.
#[tokio::test]
async fn crash_counts_survive_upgrade() {
    const STABLE: Duration = Duration::from_secs(10);
    let host = Host::with_config("stable_after_ms = 10000\ncrash_backoff_ms = 60000");
    let started = Instant::now();
    let (identity, mut gateway) = host.connect_gateway().await;
    let (runs, dies) = (host.dir.path().join("runs"), host.dir.path().join("dies"));
    let text = format!(
        "[ -e {} ] || exit 1; until [ -e {} ]; do sleep 0.05; done; exit 1",
        runs.display(),
        dies.display()
    );
    let start = || script(&text);
    let first = start();
    gateway.spawn(&first).await;
    gateway.state(first.lease_id, LeaseState::Closed).await;
    std::fs::write(&runs, "").unwrap();
    eventually("the supervisor has run long enough", || started.elapsed() > STABLE);
    let second = start();
    gateway.spawn(&second).await;
    upgrade(&host);
    let mut gateway = reconnect(&identity).await;
    assert_eq!(gateway.attach(second.lease_id, 0).await.state, LeaseState::Open);
    std::fs::write(&dies, "").unwrap();
    gateway.state(second.lease_id, LeaseState::Closed).await;
    let refusal = gateway.call(Request::Spawn(start())).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::CrashLoop, "{refusal:?}");
    assert!(refusal.message.contains("crashed 2 times in a row"), "{refusal:?}");
}
