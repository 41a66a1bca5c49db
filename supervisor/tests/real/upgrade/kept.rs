//! What an upgrade carries on beside streams and trees: how trees are held, and what is known of agents that crashed.

use super::{again, upgrade};
use crate::common::{Host, agent, eventually, marked, script};
use crate::rig_groups::{members, put};
use acp_shared::protocol::{LeaseState, RefusalCode, Request};
use std::process::Command;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_control_group_is_carried_on() {
    let Some(mut host) = Host::on("R1") else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let spec = gateway.start(script("trap '' TERM; while :; do sleep 1; done")).await;
    let groups = || host.group.as_ref().unwrap().below();
    let (leaf, before) = (host.group.as_ref().unwrap().leaf(spec.lease_id).unwrap(), groups());
    // The rung was decided at start, whatever the configuration says now.
    let other = host.config.replace("\"R1\"", "\"R2\"");
    std::fs::write(host.dir.path().join("supervisor.toml"), other).unwrap();
    upgrade(&host);
    assert_eq!(groups(), before, "no group is made or removed");
    assert_eq!(host.json(&["status"])["rung"], "R1");
    let mut gateway = again(&identity).await;
    let next = agent(&["cat"]);
    assert_eq!(gateway.spawn(&next).await.rung, "R1");
    assert!(members(&host.group.as_ref().unwrap().leaf(next.lease_id).unwrap()).len() == 2);
    // Nothing but cgroup.kill ends this one: it is no part of the tree, and names no lease.
    let mut stranger = Command::new("sleep").arg("300").spawn().unwrap();
    put(&leaf, i32::try_from(stranger.id()).unwrap());
    gateway.attach(spec.lease_id, 0).await;
    gateway.end(spec.lease_id).await;
    eventually("the whole group was killed", || stranger.try_wait().unwrap().is_some());
    assert!(!leaf.exists() && marked(spec.lease_id).is_empty());
    assert_eq!(host.stop(), Some(0));
    assert_eq!(
        host.group.as_ref().unwrap().below(),
        Vec::<std::path::PathBuf>::new(),
        "all groups are removed"
    );
}

/// One crash before the upgrade and one after it are two in a row; and a run that began before it is as short as it
/// was, however long the supervisor has run.
#[tokio::test]
async fn crashes_are_not_forgotten() {
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
    eventually("the supervisor has run for long", || started.elapsed() > STABLE);
    let second = start();
    gateway.spawn(&second).await;
    upgrade(&host);
    let mut gateway = again(&identity).await;
    assert_eq!(gateway.attach(second.lease_id, 0).await.state, LeaseState::Open);
    std::fs::write(&dies, "").unwrap();
    gateway.state(second.lease_id, LeaseState::Closed).await;
    let refusal = gateway.call(Request::Spawn(start())).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::CrashLoop, "{refusal:?}");
    assert!(refusal.message.contains("crashed 2 times in a row"), "{refusal:?}");
}
