//! Retention of ended leases, and sweeps of lost leases (H23).

use crate::common::{Host, agent, eventually, is_alive, pids_of, script};
use crate::durable::orphan_tree;
use crate::scenarios::{UNRESPONSIVE, refusal_of};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseState, RefusalCode, Request};

const CONFIG: &str = "reap_term_ms = 200\nreap_every_ms = 200\nretention_ms = 300";

/// Changes the database while no supervisor runs.
fn change(host: &Host, sql: &str) {
    let connection = host.rows();
    connection.pragma_update(None, "ignore_check_constraints", true).unwrap();
    assert!(connection.execute(sql, []).unwrap() > 0, "{sql}");
}

fn lease(host: &Host, id: LeaseId) -> Option<serde_json::Value> {
    let list = host.json(&["leases", "list"]);
    list.as_array().unwrap().iter().find(|l| l["lease_id"] == id.to_string()).cloned()
}

/// Killed supervisor and the remaining processes of a tree whose wrapper was killed too.
async fn crash_with_remaining_tree(host: &mut Host) -> (LeaseId, Vec<i32>) {
    let spec = script(UNRESPONSIVE);
    let remaining = orphan_tree(host, &spec, false).await;
    (spec.lease_id, remaining)
}

#[tokio::test]
async fn rediscovered_tree_of_lost_lease_is_ended() {
    let mut host = Host::with_config("reap_term_ms = 200\nreap_every_ms = 200");
    let (id, remaining) = crash_with_remaining_tree(&mut host).await;
    change(&host, "UPDATE leases SET state = 'lost', ended_at_ms = 1, state_reason = 'judged once'");
    host.start();
    eventually("the tree is ended", || !remaining.iter().any(|pid| is_alive(*pid)));
    eventually("the lease is closed", || lease(&host, id).is_some_and(|l| l["state"] == "closed"));
}

#[tokio::test]
async fn lost_lease_expires_only_when_proved_gone() {
    let (mut host, mut gateway) = Host::serving(CONFIG).await;
    let spec = gateway.start(agent(&["cat"])).await;
    host.crash();
    eventually("the tree is gone", || pids_of(spec.lease_id).is_empty());
    // From this namespace the end of the tree is not proved.
    change(&host, "UPDATE leases SET pidns = pidns + 1, state = 'lost', ended_at_ms = 1");
    host.start();
    eventually("the reason is shown", || {
        lease(&host, spec.lease_id).unwrap()["state_reason"].to_string().contains("not proved gone")
    });
    eventually("a warning is shown", || host.warnings().contains("not proved gone"));
    let doctor = host.cli(&["doctor"]);
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("not proved gone"), "{doctor:?}");
    // In the recorded pid namespace the lease is proved gone: its supervisor is dead and none of its processes exists.
    assert_eq!(host.stop(), Some(0));
    change(&host, "UPDATE leases SET pidns = pidns - 1");
    host.start();
    eventually("the lease is removed", || lease(&host, spec.lease_id).is_none());
}

#[tokio::test]
async fn stale_lease_is_lost_and_expires_after_retention() {
    let config = "reap_term_ms = 200\nreap_every_ms = 200\nretention_ms = 4000";
    let (mut host, mut gateway) = Host::serving(config).await;
    let spec = gateway.start(agent(&["cat"])).await;
    host.crash();
    eventually("the tree is gone", || pids_of(spec.lease_id).is_empty());
    host.start();
    assert_eq!(lease(&host, spec.lease_id).unwrap()["state"], "lost");
    eventually("the lease is removed", || lease(&host, spec.lease_id).is_none());
}

#[tokio::test]
async fn damaged_home_is_kept_and_reported() {
    let mut host = Host::new();
    let (sound, damaged) = (host.gateway(), host.gateway());
    drop((sound.connect().await, damaged.connect().await));
    // Homes are stored after the handshake.
    assert_eq!(host.stop(), Some(0));
    change(&host, &format!("UPDATE homes SET uid = -5 WHERE gateway_instance_id = '{}'", damaged.id));
    change(&host, "INSERT INTO homes VALUES ('no id', 1, '', 1, 1, 1, NULL, 0, NULL)");
    host.start();
    let warnings = host.warnings();
    assert!(warnings.contains(&damaged.id.to_string()) && warnings.contains("no id"), "{warnings}");
    sound.connect().await;
    let refusal = refusal_of(damaged.try_connect().await);
    assert_eq!(refusal.code, RefusalCode::StoreUnavailable);
    assert!(refusal.message.contains("DELETE FROM homes"), "{refusal:?}");
    assert_eq!(host.stop(), Some(0));
    change(&host, &format!("DELETE FROM homes WHERE gateway_instance_id = '{}'", damaged.id));
    host.start();
    damaged.connect().await;
}

#[tokio::test]
async fn only_spools_without_lease_are_removed() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(script("echo output; exec sleep 300")).await;
    gateway.close_and_wait(spec.lease_id).await;
    assert_eq!(host.stop(), Some(0));
    let spool = host.state_dir().join("spool");
    let of = |id: &str, rest: &str| spool.join(format!("{id}{rest}"));
    let (unknown, known) = (LeaseId::mint().to_string(), spec.lease_id.to_string());
    let orphan = of(&unknown, ".7.out");
    let kept = [of(&unknown, ".out"), of(&unknown, ".x.out"), of("notes", ".7.out"), of(&known, ".900.out")];
    for file in kept.iter().chain([&orphan]) {
        std::fs::write(file, b"bytes").unwrap();
    }
    host.start();
    assert!(!orphan.exists(), "a spool without a lease remains");
    assert!(kept.iter().all(|file| file.exists()), "{kept:?}");
}

#[tokio::test]
async fn orderly_stop_leaves_one_store_file() {
    let mut host = Host::new();
    let spec = agent(&["cat"]);
    host.gateway().connect().await.spawn(&spec).await;
    assert_eq!(host.stop(), Some(0));
    for suffix in ["-wal", "-shm"] {
        assert!(!host.state_dir().join(format!("supervisor.db{suffix}")).exists(), "{suffix}");
    }
    host.start();
    assert_eq!(lease(&host, spec.lease_id).unwrap()["state"], "closed");
}

#[tokio::test]
async fn peer_reason_is_truncated_and_escaped() {
    let (host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    let reason = format!("\u{1b}[2J\nbecause {}", "x".repeat(100_000));
    gateway.call(Request::CloseLease { lease_id: spec.lease_id, reason }).await.unwrap();
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    let lease = lease(&host, spec.lease_id).unwrap();
    let reason = lease["state_reason"].as_str().unwrap();
    assert!(reason.len() <= 500 && reason.contains("because xxx"), "{reason}");
    assert!(!reason.chars().any(char::is_control), "{reason:?}");
}
