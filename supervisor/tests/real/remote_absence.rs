//! The promise of a host: agents of a remote cell have ended some time after the last message of its gateway.

use crate::common::{Client, Identity, TIMEOUT, agent, eventually, is_alive, kill};
use crate::remote::{OTHER_CELL, RemoteHost, Start};
use crate::scenarios::refusal_of;
use acp_shared::conn::ConnError;
use acp_shared::figures;
use acp_shared::protocol::{RefusalCode, Reply, Request};
use acp_testkit::disk_fault::DiskFault;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Returns the promise of the host to this client, in seconds.
async fn promise(client: &mut Client) -> u64 {
    let Ok(Reply::Figures(all)) = client.call(Request::Figures).await else { panic!("no figures") };
    all.iter().find(|figure| figure.name == figures::DETACHED_GRACE).unwrap().value
}

#[tokio::test]
async fn grace_begins_with_the_last_message() {
    let remote = RemoteHost::new("remote_silence_ms = 2_500\ndetached_grace_ms = 2_500");
    let mut client = remote.gateway().connect().await.unwrap();
    let info = client.spawn(&agent(&["cat"])).await;
    let last = Instant::now();
    // The connection stays open: nothing but the silence ends it.
    eventually("the agent ends", || !is_alive(info.adapter_pid.unwrap()));
    assert!(last.elapsed() < Duration::from_secs(5), "{:?}", last.elapsed());
    assert!(remote.host.log().contains("remote gateway timed out"));
}

#[tokio::test]
async fn connections_without_a_request_do_not_prolong_the_grace() {
    let remote = RemoteHost::new("detached_grace_ms = 1_000");
    let start = remote.gateway();
    let mut client = start.connect().await.unwrap();
    let info = client.spawn(&agent(&["cat"])).await;
    drop(client);
    let until = Instant::now() + TIMEOUT;
    // Each takes the place of the one before, or comes after its end.
    let mut before = None;
    while is_alive(info.adapter_pid.unwrap()) {
        assert!(Instant::now() < until, "handshakes alone keep the agent");
        before = start.connect().await.ok();
    }
    drop(before);
}

#[tokio::test]
async fn messages_that_waited_for_a_stopped_supervisor_are_not_served() {
    let remote = RemoteHost::new("remote_silence_ms = 1_500");
    let mut client = remote.gateway().connect().await.unwrap();
    client.call(Request::Status).await.unwrap();
    kill(remote.host.pid(), Signal::STOP);
    let stopped = Instant::now();
    client.try_send(Request::Status).await.unwrap();
    eventually("the silence is over", || stopped.elapsed() > Duration::from_millis(3_200));
    kill(remote.host.pid(), Signal::CONT);
    eventually("it is given up", || remote.host.log().contains("remote gateway timed out"));
    let ended = client.conn.receiver.recv().await;
    assert!(!matches!(ended, Ok(Some(_))), "nothing is answered: {ended:?}");
}

#[tokio::test]
async fn new_configuration_does_not_prolong_the_grace() {
    let mut remote = RemoteHost::new("detached_grace_ms = 2_000");
    let mut client = remote.gateway().connect().await.unwrap();
    let info = client.spawn(&agent(&["cat"])).await;
    remote.host.config =
        remote.host.config.replace("detached_grace_ms = 2_000", "detached_grace_ms = 900_000");
    drop(remote.host.command());
    assert_eq!(remote.host.json(&["upgrade"])["error"], serde_json::Value::Null);
    eventually("the agent ends after the promised grace", || !is_alive(info.adapter_pid.unwrap()));
}

#[tokio::test]
async fn promise_bounds_the_end_of_the_agents() {
    let remote = RemoteHost::new("remote_silence_ms = 4_000\ndetached_grace_ms = 60_000");
    let (mut client, mut other) =
        (remote.gateway().connect().await.unwrap(), remote.gateway().connect().await.unwrap());
    // 60 s, twice 4 s, and 5 s until the owner looks.
    assert_eq!(promise(&mut client).await, 73);
    let mut spec = agent(&["cat"]);
    (spec.graces.eof_ms, spec.graces.term_ms, spec.graces.kill_ms) = (7_000, 8_000, 5_000);
    client.spawn(&spec).await;
    assert_eq!(promise(&mut client).await, 73 + 20);
    let mut terminal = crate::common::terminal(&spec, "exec cat", 4_096);
    (terminal.graces.eof_ms, terminal.graces.term_ms, terminal.graces.kill_ms) = (1_000, 2_000, 3_000);
    client.spawn(&terminal).await;
    // A terminal has no end of input to wait for; its agent waits one second more than its graces.
    assert_eq!(promise(&mut client).await, 73 + 20 + 6);
    assert_eq!(promise(&mut other).await, 73, "agents of other gateways do not count");
    client.close(spec.lease_id).await;
}

/// A cell whose epoch is not on disk is refused; a gateway of this machine is admitted to end its leases.
#[tokio::test]
async fn remote_cell_is_refused_if_its_epoch_cannot_be_recorded() {
    let mut remote = RemoteHost::prepare("");
    let disk = DiskFault::build(remote.host.dir.path());
    let mut command = remote.host.command();
    disk.preload(&mut command);
    let log = std::fs::File::create(remote.host.dir.path().join("log")).unwrap();
    command.env("RUST_LOG", "info").stderr(log);
    remote.host.start_as(command);
    let start = remote.gateway();
    drop(start.connect().await.unwrap());
    let local = remote.host.gateway();
    drop(local.connect().await);
    disk.set("sync");
    let refusal = refusal_of(Start { epoch: 2, ..start }.connect().await);
    assert_eq!(refusal.code, RefusalCode::StoreUnavailable, "{refusal:?}");
    assert!(refusal.message.contains("cannot be recorded"), "{refusal:?}");
    drop(Identity { epoch: 2, ..local }.connect().await);
}

/// Cells whose agents run as one user have limits of their own, and do not make room at each other's cost.
#[tokio::test]
async fn cells_of_one_user_do_not_displace_each_other() {
    let remote = RemoteHost::new("gateways_per_user_max = 1\nconnections_per_user_max = 1");
    let other = remote.gateway_of(&remote.ca.issue("other", &[OTHER_CELL]));
    let first = Start { epoch: 5, ..other };
    drop(first.connect().await.unwrap());
    let _connected = remote.gateway().connect().await.unwrap();
    let _local = remote.host.gateway().connect().await;
    let older = Start { epoch: 4, ..first.clone() };
    match older.connect().await {
        Err(ConnError::RolledBack(rollback)) => assert_eq!(rollback.refusal.code, RefusalCode::RolledBack),
        other => panic!("the record of the other cell is gone: {:?}", other.err()),
    }
    first.connect().await.unwrap();
}
