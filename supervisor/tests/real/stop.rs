//! Orderly end of a tree and of the supervisor.

use crate::common::{Host, agent, eventually, is_alive, kill, pids_of, script};
use crate::scenarios::{UNRESPONSIVE, at_each_level, await_unresponsive};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Graces, LeaseState, Notice, RefusalCode, Reply, Request, Spawn};
use rustix::process::Signal;

async fn check_unresponsive_tree(level: &str) {
    let Some((_host, mut gateway)) = Host::serving_at_level(level).await else { return };
    let spec = gateway.spawn_attached(script(UNRESPONSIVE)).await;
    gateway.read(spec.lease_id, 0, 3).await;
    await_unresponsive(spec.lease_id);
    gateway.close(spec.lease_id).await;
    gateway.close(spec.lease_id).await;
    let (status, end) = gateway.await_exit(spec.lease_id).await;
    assert_eq!((status, end), (ExitStatus::Signaled(9), 3));
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert!(pids_of(spec.lease_id).is_empty());
    gateway.close(spec.lease_id).await;
}

async fn check_remaining_processes(level: &str) {
    let Some((_host, mut gateway)) = Host::serving_at_level(level).await else { return };
    let spec = gateway.start(script("setsid sleep 300 & exit 3")).await;
    let reason = gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert_eq!(reason, "the adapter ended: exit code 3");
    assert!(pids_of(spec.lease_id).is_empty());
    assert_eq!(gateway.leases().await.remove(0).exit, Some(ExitStatus::Exited(3)));
}

async fn check_killed_wrapper(level: &str) {
    let Some((host, mut gateway)) = Host::serving_at_level(level).await else { return };
    let (spec, info) = gateway.spawn_with_info(script(UNRESPONSIVE)).await;
    gateway.attach(spec.lease_id, 0).await;
    gateway.read(spec.lease_id, 0, 3).await;
    await_unresponsive(spec.lease_id);
    kill(info.wrapper_pid.unwrap(), Signal::KILL);
    let reason = gateway.state(spec.lease_id, LeaseState::Lost).await;
    assert!(reason.starts_with("its wrapper ended without a report"), "{reason}");
    assert!(pids_of(spec.lease_id).is_empty());
    assert!(is_alive(host.pid()));
}

async fn check_sigterm(level: &str) {
    let Some(mut host) = Host::at_level(level) else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let (cat, unresponsive) =
        (gateway.start(agent(&["cat"])).await, gateway.start(script(UNRESPONSIVE)).await);
    assert_eq!(host.stop(), Some(0));
    assert!(pids_of(cat.lease_id).is_empty() && pids_of(unresponsive.lease_id).is_empty());
    assert!(!host.socket().exists());
    host.start();
    let mut gateway = identity.connect().await;
    assert!(gateway.leases().await.iter().all(|l| l.state == LeaseState::Closed));
}

async fn check_second_signal(level: &str) {
    let Some((mut host, mut gateway)) = Host::serving_at_level(level).await else { return };
    let mut spec = script(UNRESPONSIVE);
    spec.graces.eof_ms = 200_000;
    gateway.spawn(&spec).await;
    kill(host.pid(), Signal::INT);
    gateway.state(spec.lease_id, LeaseState::Closing).await;
    kill(host.pid(), Signal::INT);
    assert_eq!(host.wait(), Some(0));
    assert!(pids_of(spec.lease_id).is_empty());
}

async fn check_shutdown(level: &str) {
    let Some(mut host) = Host::at_level(level) else { return };
    let (first, second) = (host.gateway(), host.gateway());
    let (mut a, mut b) = (first.connect().await, second.connect().await);
    let (of_a, of_b) = (agent(&["cat"]), agent(&["cat"]));
    a.spawn(&of_a).await;
    b.spawn(&of_b).await;
    let here = host.state_dir().to_str().unwrap().to_owned();
    let down = |state_dir: &str| Request::Shutdown { state_dir: state_dir.to_owned() };
    assert_eq!(a.call(down("/tmp")).await.unwrap_err().code, RefusalCode::NotAuthorised);
    assert_eq!(a.call(down(&here)).await.unwrap_err().code, RefusalCode::InUse);
    b.close_and_wait(of_b.lease_id).await;
    assert_eq!(a.call(down(&here)).await, Ok(Reply::Done));
    assert_eq!(host.wait(), Some(0));
    assert!(pids_of(of_a.lease_id).is_empty());
}

#[tokio::test]
async fn repeated_shutdown_keeps_graces() {
    let (mut host, mut gateway) = Host::serving("").await;
    let file = host.dir.path().join("in order");
    let script = format!("cat; sleep 0.5; echo > '{}'", file.display());
    let spec = Spawn {
        graces: Graces { eof_ms: 10_000, term_ms: 10_000, kill_ms: 10_000 },
        ..agent(&["sh", "-c", &script])
    };
    gateway.spawn(&spec).await;
    let state_dir = host.state_dir().to_str().unwrap().to_owned();
    for _ in 0..2 {
        assert_eq!(gateway.call(Request::Shutdown { state_dir: state_dir.clone() }).await, Ok(Reply::Done));
    }
    assert_eq!(host.wait(), Some(0));
    assert!(file.exists(), "the agent was killed within its grace");
}

#[tokio::test]
async fn leases_of_absent_gateway_close_after_grace() {
    let host = Host::with_config("detached_grace_ms = 600");
    let (mut away, other) = (host.gateway(), host.gateway());
    let (mut gateway, mut watcher) = (away.connect().await, other.connect().await);
    let (spec, kept) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&spec).await;
    watcher.spawn(&kept).await;
    drop(gateway);
    eventually("the lease ends", || pids_of(spec.lease_id).is_empty());
    assert_eq!(pids_of(kept.lease_id).len(), 2);
    away.epoch = 2;
    let mut gateway = away.connect().await;
    let info = gateway.leases().await.remove(0);
    assert_eq!(info.state_reason, "its gateway did not reconnect");
    // A short absence has no effect.
    drop(watcher);
    let mut watcher = other.connect().await;
    assert!(
        matches!(watcher.call(Request::ListLeases { detail: false }).await, Ok(Reply::Leases(l)) if l[0].state == LeaseState::Open)
    );
    assert!(!watcher.notices.iter().any(|n| matches!(n, Notice::LeaseChanged { .. })));
}

/// Released and read leases are removed; unread output is kept.
#[tokio::test]
async fn number_of_ended_leases_is_bounded() {
    let (_host, mut gateway) = Host::serving("ended_per_gateway_max = 2\ncrash_backoff_ms = 0").await;
    let mut ids = Vec::new();
    for text in ["echo unread", "true", "true", "true", "true"] {
        let spec = gateway.start(script(text)).await;
        gateway.state(spec.lease_id, LeaseState::Closed).await;
        ids.push(spec.lease_id);
    }
    let want = [ids[0], ids[3], ids[4]];
    let mut left = async || gateway.leases().await.iter().map(|l| l.lease_id).collect::<Vec<_>>();
    let until = std::time::Instant::now() + crate::common::TIMEOUT;
    while left().await != want {
        assert!(std::time::Instant::now() < until, "{:?}", left().await);
    }
}

at_each_level! {
    #[tokio::test] async fn tree_ignoring_signals_is_killed_with_escaped_grandchild = check_unresponsive_tree,
    #[tokio::test] async fn agent_exit_closes_lease_and_ends_remaining_processes = check_remaining_processes,
    #[tokio::test]
    async fn killed_wrapper_ends_tree_and_loses_lease = check_killed_wrapper,
    #[tokio::test] async fn sigterm_ends_leases_then_supervisor = check_sigterm,
    #[tokio::test] async fn second_signal_skips_graces = check_second_signal,
    #[tokio::test] async fn shutdown_needs_own_state_directory_and_no_other_gateway = check_shutdown,
}
