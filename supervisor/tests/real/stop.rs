//! The orderly end of a tree, and of the supervisor.

use crate::common::{Host, agent, eventually, kill, marked, runs, script};
use crate::start::{STUBBORN, on_each_rung};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Graces, LeaseState, Notice, RefusalCode, Reply, Request, Spawn};
use rustix::process::Signal;

async fn on_stubborn_tree(rung: &str) {
    let Some((_host, mut gateway)) = Host::serving_on(rung).await else { return };
    let spec = gateway.start_attached(script(STUBBORN)).await;
    gateway.read(spec.lease_id, 0, 3).await;
    eventually("the grandchild is there", || marked(spec.lease_id).len() >= 4);
    gateway.close(spec.lease_id).await;
    gateway.close(spec.lease_id).await;
    let (status, end) = gateway.exited(spec.lease_id).await;
    assert_eq!((status, end), (ExitStatus::Signaled(9), 3));
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert!(marked(spec.lease_id).is_empty());
    gateway.close(spec.lease_id).await;
}

async fn on_leftovers(rung: &str) {
    let Some((_host, mut gateway)) = Host::serving_on(rung).await else { return };
    let spec = gateway.start(script("setsid sleep 300 & exit 3")).await;
    let reason = gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert_eq!(reason, "the adapter ended: exit code 3");
    assert!(marked(spec.lease_id).is_empty());
    assert_eq!(gateway.leases().await.remove(0).exit, Some(ExitStatus::Exited(3)));
}

async fn on_killed_wrapper(rung: &str) {
    let Some((host, mut gateway)) = Host::serving_on(rung).await else { return };
    let (spec, info) = gateway.start_known(script(STUBBORN)).await;
    gateway.attach(spec.lease_id, 0).await;
    gateway.read(spec.lease_id, 0, 3).await;
    eventually("the grandchild is there", || marked(spec.lease_id).len() >= 4);
    kill(info.wrapper_pid.unwrap(), Signal::KILL);
    let reason = gateway.state(spec.lease_id, LeaseState::Lost).await;
    assert!(reason.starts_with("its wrapper ended without a report"), "{reason}");
    assert!(marked(spec.lease_id).is_empty());
    assert!(runs(host.pid()));
}

async fn on_sigterm(rung: &str) {
    let Some(mut host) = Host::on(rung) else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let (cat, stubborn) = (gateway.start(agent(&["cat"])).await, gateway.start(script(STUBBORN)).await);
    assert_eq!(host.stop(), Some(0));
    assert!(marked(cat.lease_id).is_empty() && marked(stubborn.lease_id).is_empty());
    assert!(!host.socket().exists());
    host.start();
    let mut gateway = identity.connect().await;
    assert!(gateway.leases().await.iter().all(|l| l.state == LeaseState::Closed));
}

async fn on_second_signal(rung: &str) {
    let Some((mut host, mut gateway)) = Host::serving_on(rung).await else { return };
    let mut spec = script(STUBBORN);
    spec.graces.eof_ms = 200_000;
    gateway.spawn(&spec).await;
    kill(host.pid(), Signal::INT);
    gateway.state(spec.lease_id, LeaseState::Closing).await;
    kill(host.pid(), Signal::INT);
    assert_eq!(host.wait(), Some(0));
    assert!(marked(spec.lease_id).is_empty());
}

async fn on_shutdown(rung: &str) {
    let Some(mut host) = Host::on(rung) else { return };
    let (mine, theirs) = (host.gateway(), host.gateway());
    let (mut a, mut b) = (mine.connect().await, theirs.connect().await);
    let (of_a, of_b) = (agent(&["cat"]), agent(&["cat"]));
    a.spawn(&of_a).await;
    b.spawn(&of_b).await;
    let here = host.state_dir().to_str().unwrap().to_owned();
    let down = |state_dir: &str| Request::Shutdown { state_dir: state_dir.to_owned() };
    assert_eq!(a.call(down("/tmp")).await.unwrap_err().code, RefusalCode::NotAuthorised);
    assert_eq!(a.call(down(&here)).await.unwrap_err().code, RefusalCode::InUse);
    b.end(of_b.lease_id).await;
    assert_eq!(a.call(down(&here)).await, Ok(Reply::Done));
    assert_eq!(host.wait(), Some(0));
    assert!(marked(of_a.lease_id).is_empty());
}

#[tokio::test]
async fn a_shutdown_that_is_repeated_is_no_hurry() {
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
    assert!(file.exists(), "the agent was not given time to end by itself");
}

#[tokio::test]
async fn leases_of_a_gateway_that_stays_away_are_closed_after_the_grace() {
    let host = Host::with_config("detached_grace_ms = 600");
    let (mut away, other) = (host.gateway(), host.gateway());
    let (mut gateway, mut watcher) = (away.connect().await, other.connect().await);
    let (spec, kept) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&spec).await;
    watcher.spawn(&kept).await;
    drop(gateway);
    eventually("the lease ends", || marked(spec.lease_id).is_empty());
    assert_eq!(marked(kept.lease_id).len(), 2);
    away.epoch = 2;
    let mut gateway = away.connect().await;
    let info = gateway.leases().await.remove(0);
    assert_eq!(info.state_reason, "its gateway did not reconnect");
    // A short absence changes nothing.
    drop(watcher);
    let mut watcher = other.connect().await;
    assert!(
        matches!(watcher.call(Request::ListLeases { detail: false }).await, Ok(Reply::Leases(l)) if l[0].state == LeaseState::Open)
    );
    assert!(!watcher.notices.iter().any(|n| matches!(n, Notice::LeaseChanged { .. })));
}

/// A gateway that starts and ends agents all day fills neither memory nor disk; what is not acknowledged stays.
#[tokio::test]
async fn ended_leases_are_kept_up_to_a_number() {
    let (_host, mut gateway) = Host::serving("ended_per_gateway_max = 2\ncrash_backoff_ms = 0").await;
    let mut ids = Vec::new();
    for text in ["echo unread", "true", "true", "true", "true"] {
        let spec = gateway.start(script(text)).await;
        gateway.state(spec.lease_id, LeaseState::Closed).await;
        ids.push(spec.lease_id);
    }
    let want = [ids[0], ids[3], ids[4]];
    let mut left = async || gateway.leases().await.iter().map(|l| l.lease_id).collect::<Vec<_>>();
    let until = std::time::Instant::now() + crate::common::DEADLINE;
    while left().await != want {
        assert!(std::time::Instant::now() < until, "{:?}", left().await);
    }
}

on_each_rung! {
    #[tokio::test] async fn what_ignores_everything_is_killed_with_its_escaped_grandchild = on_stubborn_tree,
    #[tokio::test] async fn an_agent_that_ends_by_itself_is_closed_with_its_leftovers = on_leftovers,
    #[tokio::test]
    async fn a_wrapper_that_is_killed_takes_its_tree_along_and_the_lease_is_lost = on_killed_wrapper,
    #[tokio::test] async fn sigterm_ends_every_lease_and_then_the_supervisor = on_sigterm,
    #[tokio::test] async fn a_second_signal_leaves_no_grace = on_second_signal,
    #[tokio::test] async fn shutdown_is_for_the_own_state_directory_and_never_over_others = on_shutdown,
}
