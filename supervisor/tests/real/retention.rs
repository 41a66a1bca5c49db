//! What is kept of leases that have ended, and for how long; what is lost is looked at again (H23).

use crate::common::{Host, agent, eventually, marked, runs, script};
use crate::durable::orphaned;
use crate::start::{STUBBORN, refused};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseState, RefusalCode, Request};

const QUICK: &str = "reap_term_ms = 200\nreap_every_ms = 200\nretention_ms = 300";

/// Changes the store's file while no supervisor runs.
fn change(host: &Host, sql: &str) {
    let connection = host.rows();
    connection.pragma_update(None, "ignore_check_constraints", true).unwrap();
    assert!(connection.execute(sql, []).unwrap() > 0, "{sql}");
}

fn lease(host: &Host, id: LeaseId) -> Option<serde_json::Value> {
    let list = host.json(&["leases", "list"]);
    list.as_array().unwrap().iter().find(|l| l["lease_id"] == id.to_string()).cloned()
}

/// A supervisor that was killed, and what is left of a tree whose wrapper was killed too.
async fn left_behind(host: &mut Host) -> (LeaseId, Vec<i32>) {
    let spec = script(STUBBORN);
    let left = orphaned(host, &spec, false).await;
    (spec.lease_id, left)
}

#[tokio::test]
async fn a_lost_lease_whose_tree_is_there_is_found_again_and_ended() {
    let mut host = Host::with_config("reap_term_ms = 200\nreap_every_ms = 200");
    let (id, left) = left_behind(&mut host).await;
    change(&host, "UPDATE leases SET state = 'lost', ended_at_ms = 1, state_reason = 'judged once'");
    host.start();
    eventually("its tree is ended", || !left.iter().any(|pid| runs(*pid)));
    eventually("it is closed", || lease(&host, id).is_some_and(|l| l["state"] == "closed"));
}

#[tokio::test]
async fn a_lost_lease_expires_when_it_is_proved_gone_and_not_before() {
    let (mut host, mut gateway) = Host::serving(QUICK).await;
    let spec = gateway.start(agent(&["cat"])).await;
    host.crash();
    eventually("the tree is gone", || marked(spec.lease_id).is_empty());
    // Seen from this namespace, nothing proves that it is gone.
    change(&host, "UPDATE leases SET pidns = pidns + 1, state = 'lost', ended_at_ms = 1");
    host.start();
    eventually("the reason for keeping it is shown", || {
        lease(&host, spec.lease_id).unwrap()["state_reason"].to_string().contains("not proved gone")
    });
    eventually("a warning is shown", || host.warnings().contains("not proved gone"));
    let doctor = host.cli(&["doctor"]);
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("not proved gone"), "{doctor:?}");
    // One that is looked at where it was recorded is: its supervisor is dead, and nothing of its tree is there.
    assert_eq!(host.stop(), Some(0));
    change(&host, "UPDATE leases SET pidns = pidns - 1");
    host.start();
    eventually("the lease is removed", || lease(&host, spec.lease_id).is_none());
}

#[tokio::test]
async fn a_stale_lease_without_a_process_is_lost_and_forgotten_after_its_time() {
    let config = "reap_term_ms = 200\nreap_every_ms = 200\nretention_ms = 4000";
    let (mut host, mut gateway) = Host::serving(config).await;
    let spec = gateway.start(agent(&["cat"])).await;
    host.crash();
    eventually("the tree is gone", || marked(spec.lease_id).is_empty());
    host.start();
    assert_eq!(lease(&host, spec.lease_id).unwrap()["state"], "lost");
    eventually("the lease is removed", || lease(&host, spec.lease_id).is_none());
}

#[tokio::test]
async fn a_damaged_home_is_kept_named_and_not_believed() {
    let mut host = Host::new();
    let (sound, damaged) = (host.gateway(), host.gateway());
    drop((sound.connect().await, damaged.connect().await));
    // Homes are written behind the handshake.
    assert_eq!(host.stop(), Some(0));
    change(&host, &format!("UPDATE homes SET uid = -5 WHERE gateway_instance_id = '{}'", damaged.id));
    change(&host, "INSERT INTO homes VALUES ('no id', 1, '', 1, 1, 1, NULL, 0, NULL)");
    host.start();
    let told = host.warnings();
    assert!(told.contains(&damaged.id.to_string()) && told.contains("no id"), "{told}");
    sound.connect().await;
    let refusal = refused(damaged.try_connect().await);
    assert_eq!(refusal.code, RefusalCode::StoreUnavailable);
    assert!(refusal.message.contains("DELETE FROM homes"), "{refusal:?}");
    assert_eq!(host.stop(), Some(0));
    change(&host, &format!("DELETE FROM homes WHERE gateway_instance_id = '{}'", damaged.id));
    host.start();
    damaged.connect().await;
}

#[tokio::test]
async fn a_spool_without_a_row_is_removed_and_nothing_else() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(script("echo said; exec sleep 300")).await;
    gateway.end(spec.lease_id).await;
    assert_eq!(host.stop(), Some(0));
    let spool = host.state_dir().join("spool");
    let of = |id: &str, rest: &str| spool.join(format!("{id}{rest}"));
    let (nobodys, known) = (LeaseId::mint().to_string(), spec.lease_id.to_string());
    let orphan = of(&nobodys, ".7.out");
    let kept = [of(&nobodys, ".out"), of(&nobodys, ".x.out"), of("notes", ".7.out"), of(&known, ".900.out")];
    for file in kept.iter().chain([&orphan]) {
        std::fs::write(file, b"bytes").unwrap();
    }
    host.start();
    assert!(!orphan.exists(), "files without a lease are removed");
    assert!(kept.iter().all(|file| file.exists()), "{kept:?}");
}

#[tokio::test]
async fn after_an_orderly_end_the_store_is_one_file() {
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
async fn what_a_peer_gives_as_a_reason_is_cut_and_harmless() {
    let (host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    let reason = format!("\u{1b}[2J\nbecause {}", "x".repeat(100_000));
    gateway.call(Request::CloseLease { lease_id: spec.lease_id, reason }).await.unwrap();
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    let lease = lease(&host, spec.lease_id).unwrap();
    let said = lease["state_reason"].as_str().unwrap();
    assert!(said.len() <= 500 && said.contains("because xxx"), "{said}");
    assert!(!said.chars().any(char::is_control), "{said:?}");
}
