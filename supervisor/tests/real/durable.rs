//! Durability of the lease store over crashes, and damaged stores.

use crate::common::{Host, agent, eventually, is_alive, pids_of, report, script};
use crate::crash::Decoy;
use crate::scenarios::{UNRESPONSIVE, await_gone, await_unresponsive};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{LeaseState, RefusalCode, Request, Spawn};
use std::path::PathBuf;

fn file(host: &Host, suffix: &str) -> PathBuf {
    host.state_dir().join(format!("supervisor.db{suffix}"))
}

/// Removes the store's files, if they exist.
fn remove_store(host: &Host) {
    for suffix in ["", "-wal", "-shm"] {
        drop(std::fs::remove_file(file(host, suffix)));
    }
}

/// Host that crashed after these spawns, with all trees gone.
async fn crashed_host(specs: &[Spawn]) -> Host {
    let (mut host, mut gateway) = Host::with_gateway().await;
    gateway.spawn_all(specs).await;
    host.crash();
    await_gone(specs);
    host
}

/// Id, state and reason of every lease of a running supervisor.
fn leases(host: &Host) -> Vec<(String, String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let list = host.json(&["leases", "list"]);
    let list = list.as_array().unwrap().iter();
    list.map(|l| (text(&l["lease_id"]), text(&l["state"]), text(&l["state_reason"]))).collect()
}

fn has_lease(host: &Host, id: LeaseId) -> bool {
    leases(host).iter().any(|(lease, _, _)| *lease == id.to_string())
}

#[tokio::test]
async fn records_before_torn_tail_are_used() {
    let spec = agent(&["cat"]);
    for tail in ["torn", "half a record", "zeroes", "garbage"] {
        let mut host = crashed_host(std::slice::from_ref(&spec)).await;
        let wal = std::fs::read(file(&host, "-wal")).unwrap();
        let torn = match tail {
            "torn" => wal[..wal.len() - 1].to_vec(),
            "half a record" => wal[..wal.len() - 3_000].to_vec(),
            "zeroes" => [&wal[..], &[0; 9_000]].concat(),
            _ => [&wal[..], &[0xa5; 9_000]].concat(),
        };
        std::fs::write(file(&host, "-wal"), torn).unwrap();
        host.start();
        assert!(has_lease(&host, spec.lease_id), "{tail}");
    }
    let mut host = crashed_host(std::slice::from_ref(&spec)).await;
    host.rows().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let whole = std::fs::read(file(&host, "")).unwrap();
    std::fs::write(file(&host, ""), [&whole[..], &[0; 10_000]].concat()).unwrap();
    host.start();
    assert!(has_lease(&host, spec.lease_id), "zeroes after the file");
}

#[tokio::test]
async fn damaged_store_is_refused() {
    let spec = agent(&["cat"]);
    for damage in ["empty", "garbage", "cut off", "overwritten", "gone but for its log"] {
        let mut host = crashed_host(std::slice::from_ref(&spec)).await;
        let kept = std::fs::read(file(&host, "-wal")).unwrap();
        host.rows().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        let mut bytes = std::fs::read(file(&host, "")).unwrap();
        match damage {
            "empty" => bytes.clear(),
            "garbage" => bytes = vec![0xa5; 8_192],
            "cut off" => bytes.truncate(bytes.len() / 2),
            "overwritten" => bytes[4_096..8_192].fill(0xa5),
            _ => std::fs::write(file(&host, "-wal"), kept).unwrap(),
        }
        if damage == "gone but for its log" {
            std::fs::remove_file(file(&host, "")).unwrap();
        } else {
            std::fs::write(file(&host, ""), &bytes).unwrap();
        }
        let output = host.command().output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{damage}: {output:?}");
        let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(error["code"], "STORE_DAMAGED", "{damage}: {error}");
        assert!(error["message"].as_str().unwrap().contains("move it away"), "{error}");
        if file(&host, "").exists() {
            assert!(std::fs::read(file(&host, "")).unwrap() == bytes, "{damage}: the file is not changed");
        }
        // The remedy of the error helps, and the forgotten lease is reported.
        remove_store(&host);
        host.start();
        assert!(host.warnings().contains(&spec.lease_id.to_string()), "{damage}: {}", host.warnings());
    }
}

#[tokio::test]
async fn impossible_rows_are_quarantined() {
    let decoy = Decoy::new(LeaseId::mint(), GatewayInstanceId::mint());
    let decoy_pid = decoy.pid();
    let own = i32::try_from(std::process::id()).unwrap();
    let specs: Vec<Spawn> = (0..7).map(|_| agent(&["cat"])).collect();
    let mut host = crashed_host(&specs).await;
    let connection = host.rows();
    connection.pragma_update(None, "ignore_check_constraints", true).unwrap();
    let changes = [
        "wrapper_pid = 0, sid = 0".to_owned(),
        "wrapper_pid = 1, sid = 1".into(),
        "adapter_pid = -7, pgid = -7".into(),
        format!("wrapper_pid = {own}, sid = {own}"),
        "state = 'frozen'".into(),
        format!("pgid = {decoy_pid}"),
    ];
    for (change, spec) in changes.iter().zip(&specs) {
        let change = format!("UPDATE leases SET {change} WHERE lease_id = ?1");
        assert_eq!(connection.execute(&change, [spec.lease_id.to_string()]).unwrap(), 1);
    }
    drop(connection);
    host.start();
    let now = leases(&host);
    assert_eq!(now.len(), specs.len());
    for (spec, change) in specs.iter().zip(&changes) {
        let (_, state, reason) = now.iter().find(|(id, _, _)| *id == spec.lease_id.to_string()).unwrap();
        assert_eq!(state, "lost", "{change}");
        assert!(reason.starts_with("quarantined"), "{change}: {reason}");
    }
    let sound = now.iter().find(|(id, _, _)| *id == specs[6].lease_id.to_string()).unwrap();
    assert!(!sound.2.contains("quarantined"), "{sound:?}");
    assert!(is_alive(decoy_pid));
}

#[tokio::test]
async fn deleted_or_replaced_store_is_rewritten() {
    let (mut host, mut gateway) = Host::serving("reap_every_ms = 200\nreap_term_ms = 300").await;
    let (first, second, third) = (agent(&["cat"]), agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&first).await;
    remove_store(&host);
    eventually("the store is rewritten", || file(&host, "").exists());
    gateway.spawn(&second).await;
    assert!(host.warnings().contains("written again"), "{}", host.warnings());
    std::fs::write(file(&host, ".other"), b"not even a database").unwrap();
    std::fs::rename(file(&host, ".other"), file(&host, "")).unwrap();
    gateway.spawn(&third).await;
    assert!(
        std::fs::read(file(&host, ".replaced")).unwrap() == b"not even a database",
        "the foreign file was lost"
    );
    assert_eq!(pids_of(first.lease_id).len(), 2, "a process was signalled");
    host.restart_after_crash();
    for spec in [first, second, third] {
        assert!(has_lease(&host, spec.lease_id));
    }
}

#[tokio::test]
async fn crash_during_checkpoint_leaves_one_version() {
    let specs: Vec<Spawn> = (0..8).map(|_| agent(&["cat"])).collect();
    let mut host = crashed_host(&specs).await;
    let (before, log) =
        (std::fs::read(file(&host, "")).unwrap(), std::fs::read(file(&host, "-wal")).unwrap());
    host.rows().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let after = std::fs::read(file(&host, "")).unwrap();
    assert!(before != after);
    let pages = after.len() / 4_096;
    for done in 0..=pages {
        // The log stays whole until the last page is synced.
        let part = [&after[..done * 4_096], before.get(done * 4_096..).unwrap_or_default()].concat();
        std::fs::write(file(&host, ""), part).unwrap();
        std::fs::write(file(&host, "-wal"), &log).unwrap();
        drop(std::fs::remove_file(file(&host, "-shm")));
        host.start();
        assert_eq!(leases(&host).len(), specs.len(), "after {done} of {pages} pages");
        host.crash();
    }
}

#[tokio::test]
async fn crash_during_store_rewrite_leaves_one_version() {
    let spec = agent(&["cat"]);
    for remaining in ["half a copy", "a copy without its name", "a copy and another file"] {
        let mut host = crashed_host(std::slice::from_ref(&spec)).await;
        let part = file(&host, ".part");
        host.rows().execute("VACUUM INTO ?1", [part.to_str().unwrap()]).unwrap();
        match remaining {
            "half a copy" => {
                let whole = std::fs::read(&part).unwrap();
                std::fs::write(&part, &whole[..whole.len() / 2]).unwrap();
            }
            "a copy without its name" => {
                std::fs::rename(&part, file(&host, ".new")).unwrap();
                remove_store(&host);
            }
            _ => {
                std::fs::rename(&part, file(&host, ".new")).unwrap();
                std::fs::write(file(&host, ""), b"another file").unwrap();
            }
        }
        host.start();
        assert!(has_lease(&host, spec.lease_id), "{remaining}");
        assert!(!file(&host, ".part").exists() && !file(&host, ".new").exists(), "{remaining}");
    }
}

#[tokio::test]
async fn second_supervisor_on_same_state_is_refused() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    let output = host.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["code"], "STATE_DIR_LOCKED");
    assert!(error["message"].as_str().unwrap().contains(&format!("(pid {})", host.pid())), "{error}");
    // The first supervisor, its tree and its socket are unchanged.
    assert_eq!(pids_of(spec.lease_id).len(), 2);
    assert_eq!(host.json(&["status"])["pid"], host.pid());
    host.restart_after_crash();
}

/// Kills wrapper and supervisor of a tree and returns the remaining processes.
pub(crate) async fn orphan_tree(host: &mut Host, spec: &Spawn, closing: bool) -> Vec<i32> {
    let mut gateway = host.gateway().connect().await;
    let info = gateway.spawn(spec).await;
    await_unresponsive(spec.lease_id);
    host.await_settled(spec.lease_id);
    if closing {
        gateway.close(spec.lease_id).await;
        gateway.state(spec.lease_id, LeaseState::Closing).await;
    }
    host.crash_with_wrapper(&info);
    // The adapter dies with the wrapper. Processes in other sessions remain; their sleeps end.
    let (wrapper, adapter) = (info.wrapper_pid.unwrap(), info.adapter_pid.unwrap());
    eventually("wrapper and adapter are gone", || !is_alive(wrapper) && !is_alive(adapter));
    let shell = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "sh")
    };
    let shells = || pids_of(spec.lease_id).into_iter().filter(shell).collect::<Vec<i32>>();
    // The grandchild may still be before exec.
    eventually("the grandchild is a shell", || !shells().is_empty());
    shells()
}

#[tokio::test]
async fn newer_store_is_read_without_signals() {
    let mut host = Host::new();
    let spec = script(UNRESPONSIVE);
    let remaining = orphan_tree(&mut host, &spec, false).await;
    let version: i64 = host.rows().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    host.rows().execute_batch("PRAGMA user_version = 99; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let before = std::fs::read(file(&host, "")).unwrap();

    host.start();
    let id = spec.lease_id.to_string();
    let status = host.json(&["status"]);
    assert!(status["read_only"].as_str().unwrap().contains("newer version"), "{status}");
    assert_eq!(leases(&host)[0].1, "open");
    assert!(host.cli(&["leases", "show", &id]).status.success());
    // The exit code reports a tree that differs from the record.
    let output = host.cli(&["leases", "verify", &id, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let evidence: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let evidence = &evidence["data"];
    assert!(!evidence["tree"].as_array().unwrap().is_empty(), "{evidence}");
    let output = host.cli(&["leases", "reap", "--yes", "--json"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("STORE_UNAVAILABLE"), "{output:?}");
    let mut gateway = host.gateway().connect().await;
    let close = Request::CloseLease { lease_id: spec.lease_id, reason: "test".into() };
    for body in [Request::Spawn(agent(&["cat"])), close, Request::Release { lease_id: spec.lease_id }] {
        let refusal = gateway.call(body).await.unwrap_err();
        assert_eq!(refusal.code, RefusalCode::StoreUnavailable);
        assert!(refusal.message.contains("newer version"), "{refusal:?}");
    }
    assert!(remaining.iter().all(|pid| is_alive(*pid)), "a process was signalled");
    assert_eq!(host.stop(), Some(0));
    assert!(remaining.iter().all(|pid| is_alive(*pid)), "a process was signalled at the stop");
    assert!(std::fs::read(file(&host, "")).unwrap() == before, "the store was written");

    host.rows().pragma_update(None, "user_version", version).unwrap();
    host.start();
    assert!(!remaining.iter().any(|pid| is_alive(*pid)), "processes remain");
}

#[tokio::test]
async fn closing_lease_is_closed_after_verification() {
    let mut host = Host::new();
    let mut spec = script(UNRESPONSIVE);
    spec.graces.eof_ms = 20_000;
    let remaining = orphan_tree(&mut host, &spec, true).await;
    host.start();
    assert!(!remaining.iter().any(|pid| is_alive(*pid)));
    let (_, state, reason) = leases(&host).remove(0);
    assert_eq!((state.as_str(), reason.as_str()), ("closed", "its tree is gone"));
}

/// Kills the supervisor after 0 to 24 replies: every acknowledged lease is stored.
#[tokio::test]
async fn acknowledged_concurrent_spawns_survive_crashes() {
    let mut host = Host::new();
    let identity = host.gateway();
    let mut replied = Vec::new();
    for killed_after in 0..25 {
        let mut gateway = identity.connect().await;
        let specs: Vec<Spawn> = (0..25).map(|_| agent(&["true"])).collect();
        let sent = gateway.send_spawns(&specs).await;
        for (id, spec) in sent.into_iter().zip(&specs).take(killed_after) {
            gateway.reply(id).await.unwrap();
            replied.push(spec.lease_id);
        }
        host.restart_after_crash();
    }
    let known: std::collections::HashSet<String> = leases(&host).into_iter().map(|(id, _, _)| id).collect();
    let lost: Vec<_> = replied.iter().filter(|id| !known.contains(&id.to_string())).collect();
    assert!(lost.is_empty(), "{lost:?} of {}", replied.len());
}

/// Number of commits in the current generation of the log.
fn commits(log: &[u8]) -> usize {
    let read_u32 = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let (page, salt) = (read_u32(8) as usize, (read_u32(16), read_u32(20)));
    let frames = (32..log.len().saturating_sub(page + 23)).step_by(page + 24);
    frames.filter(|at| (read_u32(at + 8), read_u32(at + 12)) == salt && read_u32(at + 4) != 0).count()
}

#[tokio::test]
async fn heavy_hundred_concurrent_spawns_share_syncs() {
    let (host, mut gateway) = Host::with_gateway().await;
    let log = || std::fs::read(file(&host, "-wal")).unwrap();
    gateway.spawn(&agent(&["cat"])).await;
    let (before, generation) = (commits(&log()), log()[12..24].to_vec());
    let specs: Vec<Spawn> = (0..100).map(|_| agent(&["cat"])).collect();
    let sent = gateway.send_spawns(&specs).await;
    for id in sent {
        gateway.reply(id).await.unwrap();
    }
    assert_eq!(log()[12..24], generation, "the log was restarted, so commits are not counted");
    let count = commits(&log()) - before;
    report(&format!("{count} commits for 100 concurrent spawns (300 rows)"));
    assert!(count < 150, "{count} commits: 200 is one for each reservation and binding");
}
