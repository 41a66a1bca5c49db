//! What was said to be durable is there after any crash, and what cannot be believed is never acted on.

use crate::common::{Host, agent, eventually, marked, runs, say, script};
use crate::crash::Decoy;
use crate::start::{STUBBORN, await_gone};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{LeaseState, RefusalCode, Request, Spawn};
use std::path::PathBuf;

fn file(host: &Host, suffix: &str) -> PathBuf {
    host.state_dir().join(format!("supervisor.db{suffix}"))
}

/// Removes the store with its log, as far as they are there.
fn remove_store(host: &Host) {
    for suffix in ["", "-wal", "-shm"] {
        drop(std::fs::remove_file(file(host, suffix)));
    }
}

/// A supervisor that crashed after these were spawned, and whose wrappers are gone.
async fn crashed(specs: &[Spawn]) -> Host {
    let (mut host, mut gateway) = Host::with_gateway().await;
    gateway.spawn_all(specs).await;
    host.crash();
    await_gone(specs);
    host
}

/// Every lease that a running supervisor knows: id, state and reason.
fn leases(host: &Host) -> Vec<(String, String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let list = host.json(&["leases", "list"]);
    let list = list.as_array().unwrap().iter();
    list.map(|l| (text(&l["lease_id"]), text(&l["state"]), text(&l["state_reason"]))).collect()
}

fn has(host: &Host, id: LeaseId) -> bool {
    leases(host).iter().any(|(lease, _, _)| *lease == id.to_string())
}

#[tokio::test]
async fn records_before_a_torn_tail_are_used() {
    let spec = agent(&["cat"]);
    for tail in ["torn", "half a record", "zeroes", "garbage"] {
        let mut host = crashed(std::slice::from_ref(&spec)).await;
        let wal = std::fs::read(file(&host, "-wal")).unwrap();
        let torn = match tail {
            "torn" => wal[..wal.len() - 1].to_vec(),
            "half a record" => wal[..wal.len() - 3_000].to_vec(),
            "zeroes" => [&wal[..], &[0; 9_000]].concat(),
            _ => [&wal[..], &[0xa5; 9_000]].concat(),
        };
        std::fs::write(file(&host, "-wal"), torn).unwrap();
        host.start();
        assert!(has(&host, spec.lease_id), "{tail}");
    }
    let mut host = crashed(std::slice::from_ref(&spec)).await;
    host.rows().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let whole = std::fs::read(file(&host, "")).unwrap();
    std::fs::write(file(&host, ""), [&whole[..], &[0; 10_000]].concat()).unwrap();
    host.start();
    assert!(has(&host, spec.lease_id), "zeroes after the file");
}

#[tokio::test]
async fn a_damaged_store_is_refused_and_never_taken_for_an_empty_one() {
    let spec = agent(&["cat"]);
    for damage in ["empty", "garbage", "cut off", "overwritten", "gone but for its log"] {
        let mut host = crashed(std::slice::from_ref(&spec)).await;
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
        // What the message says to do helps, and what is forgotten is said.
        remove_store(&host);
        host.start();
        assert!(host.warnings().contains(&spec.lease_id.to_string()), "{damage}: {}", host.warnings());
    }
}

#[tokio::test]
async fn rows_that_cannot_be_are_quarantined() {
    let decoy = Decoy::new(LeaseId::mint(), GatewayInstanceId::mint());
    let decoy_pid = decoy.pid();
    let own = i32::try_from(std::process::id()).unwrap();
    let specs: Vec<Spawn> = (0..7).map(|_| agent(&["cat"])).collect();
    let mut host = crashed(&specs).await;
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
    assert!(runs(decoy_pid));
}

#[tokio::test]
async fn a_store_that_is_deleted_or_replaced_is_written_anew() {
    let (mut host, mut gateway) = Host::serving("reap_every_ms = 200\nreap_term_ms = 300").await;
    let (first, second, third) = (agent(&["cat"]), agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&first).await;
    remove_store(&host);
    eventually("it is written again without a request", || file(&host, "").exists());
    gateway.spawn(&second).await;
    assert!(host.warnings().contains("written again"), "{}", host.warnings());
    std::fs::write(file(&host, ".other"), b"not even a database").unwrap();
    std::fs::rename(file(&host, ".other"), file(&host, "")).unwrap();
    gateway.spawn(&third).await;
    assert!(
        std::fs::read(file(&host, ".replaced")).unwrap() == b"not even a database",
        "the other file is kept"
    );
    assert_eq!(marked(first.lease_id).len(), 2, "no process was signalled");
    host.restart_after_crash();
    for spec in [first, second, third] {
        assert!(has(&host, spec.lease_id));
    }
}

#[tokio::test]
async fn a_crash_at_any_page_of_a_checkpoint_leaves_one_version() {
    let specs: Vec<Spawn> = (0..8).map(|_| agent(&["cat"])).collect();
    let mut host = crashed(&specs).await;
    let (before, log) =
        (std::fs::read(file(&host, "")).unwrap(), std::fs::read(file(&host, "-wal")).unwrap());
    host.rows().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let after = std::fs::read(file(&host, "")).unwrap();
    assert!(before != after);
    let pages = after.len() / 4_096;
    for done in 0..=pages {
        // The log is whole until the last page is synced.
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
async fn a_crash_while_the_store_is_written_anew_leaves_one_version() {
    let spec = agent(&["cat"]);
    for left in ["half a copy", "a copy without its name", "a copy beside another file"] {
        let mut host = crashed(std::slice::from_ref(&spec)).await;
        let part = file(&host, ".part");
        host.rows().execute("VACUUM INTO ?1", [part.to_str().unwrap()]).unwrap();
        match left {
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
        assert!(has(&host, spec.lease_id), "{left}");
        assert!(!file(&host, ".part").exists() && !file(&host, ".new").exists(), "{left}");
    }
}

#[tokio::test]
async fn a_second_supervisor_on_the_same_state_is_refused() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    let output = host.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["code"], "STATE_DIR_LOCKED");
    assert!(error["message"].as_str().unwrap().contains(&format!("(pid {})", host.pid())), "{error}");
    // The first one and its tree notice nothing, its socket is still its own.
    assert_eq!(marked(spec.lease_id).len(), 2);
    assert_eq!(host.json(&["status"])["pid"], host.pid());
    host.restart_after_crash();
}

/// What is left of a tree whose wrapper and supervisor were killed.
pub(crate) async fn orphaned(host: &mut Host, spec: &Spawn, closing: bool) -> Vec<i32> {
    let mut gateway = host.gateway().connect().await;
    let info = gateway.spawn(spec).await;
    eventually("the grandchild is there", || marked(spec.lease_id).len() >= 4);
    host.settled(spec.lease_id);
    if closing {
        gateway.close(spec.lease_id).await;
        gateway.state(spec.lease_id, LeaseState::Closing).await;
    }
    host.crash_with_wrapper(&info);
    // The adapter goes with its wrapper; what has left its session stays, but for the sleeps that it waits for.
    let (wrapper, adapter) = (info.wrapper_pid.unwrap(), info.adapter_pid.unwrap());
    eventually("wrapper and adapter are gone", || !runs(wrapper) && !runs(adapter));
    let shell = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "sh")
    };
    let shells = || marked(spec.lease_id).into_iter().filter(shell).collect::<Vec<i32>>();
    // It may have been counted while it was still becoming one.
    eventually("the grandchild is a shell", || !shells().is_empty());
    shells()
}

#[tokio::test]
async fn with_a_newer_store_it_looks_and_signals_nothing() {
    let mut host = Host::new();
    let spec = script(STUBBORN);
    let left = orphaned(&mut host, &spec, false).await;
    let version: i64 = host.rows().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    host.rows().execute_batch("PRAGMA user_version = 99; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let before = std::fs::read(file(&host, "")).unwrap();

    host.start();
    let id = spec.lease_id.to_string();
    let status = host.json(&["status"]);
    assert!(status["read_only"].as_str().unwrap().contains("newer version"), "{status}");
    assert_eq!(leases(&host)[0].1, "open");
    assert!(host.cli(&["leases", "show", &id]).status.success());
    // Its wrapper is gone and what it left runs on: not as recorded, which the exit code says.
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
    assert!(left.iter().all(|pid| runs(*pid)), "nothing was signalled");
    assert_eq!(host.stop(), Some(0));
    assert!(left.iter().all(|pid| runs(*pid)), "no process was signalled at the end");
    assert!(std::fs::read(file(&host, "")).unwrap() == before, "nothing was written");

    host.rows().pragma_update(None, "user_version", version).unwrap();
    host.start();
    assert!(!left.iter().any(|pid| runs(*pid)), "the newer version ends the remaining processes");
}

#[tokio::test]
async fn a_lease_found_closing_is_closed_after_verification() {
    let mut host = Host::new();
    let mut spec = script(STUBBORN);
    spec.graces.eof_ms = 20_000;
    let left = orphaned(&mut host, &spec, true).await;
    host.start();
    assert!(!left.iter().any(|pid| runs(*pid)));
    let (_, state, reason) = leases(&host).remove(0);
    assert_eq!((state.as_str(), reason.as_str()), ("closed", "its tree is gone"));
}

/// Kills after each of 25 answers: whatever was said to run is on record.
#[tokio::test]
async fn of_25_concurrent_writes_none_that_was_answered_is_lost() {
    let mut host = Host::new();
    let identity = host.gateway();
    let mut answered = Vec::new();
    for killed_after in 0..25 {
        let mut gateway = identity.connect().await;
        let specs: Vec<Spawn> = (0..25).map(|_| agent(&["true"])).collect();
        let sent = gateway.send_spawns(&specs).await;
        for (id, spec) in sent.into_iter().zip(&specs).take(killed_after) {
            gateway.reply(id).await.unwrap();
            answered.push(spec.lease_id);
        }
        host.restart_after_crash();
    }
    let known: std::collections::HashSet<String> = leases(&host).into_iter().map(|(id, _, _)| id).collect();
    let lost: Vec<_> = answered.iter().filter(|id| !known.contains(&id.to_string())).collect();
    assert!(lost.is_empty(), "{lost:?} of {}", answered.len());
}

/// Commits in the log: frames that end one, of the generation that the log's header names.
fn commits(log: &[u8]) -> usize {
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let (page, salt) = (number(8) as usize, (number(16), number(20)));
    let frames = (32..log.len().saturating_sub(page + 23)).step_by(page + 24);
    frames.filter(|at| (number(at + 8), number(at + 12)) == salt && number(at + 4) != 0).count()
}

#[tokio::test]
async fn heavy_a_hundred_concurrent_spawns_share_their_syncs() {
    let (host, mut gateway) = Host::with_gateway().await;
    let log = || std::fs::read(file(&host, "-wal")).unwrap();
    gateway.spawn(&agent(&["cat"])).await;
    let (before, generation) = (commits(&log()), log()[12..24].to_vec());
    let specs: Vec<Spawn> = (0..100).map(|_| agent(&["cat"])).collect();
    let sent = gateway.send_spawns(&specs).await;
    for id in sent {
        gateway.reply(id).await.unwrap();
    }
    assert_eq!(log()[12..24], generation, "the log did not start again: every commit of it is counted");
    let made = commits(&log()) - before;
    say(&format!("{made} commits for 100 concurrent spawns (300 rows)"));
    assert!(made < 150, "{made} commits: 200 would be one for each RESERVED and each BOUND");
}
