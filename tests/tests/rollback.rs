//! Rolled-back databases beside living agents: they are detected and refused until the operator accepts the loss or
//! restores a newer database.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::cli::RunningCommand;
use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::story::{check_answer, check_chunks, check_turn, chunks};
use acp_tests::wait::{LONG, SOON, eventually, until, wait_until_instant};
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Detached grace of agents without a gateway, in milliseconds.
const GRACE_MS: u64 = 1_500;
const FILES: [&str; 2] = ["gateway.db", "gateway.db-wal"];

fn house() -> House {
    Plan::flags(&[]).supervisor(&format!("detached_grace_ms = {GRACE_MS}\n")).build()
}

fn state(house: &House) -> PathBuf {
    house.world.path(GATEWAY)
}

/// Copies the database of a gateway that does not run.
fn keep(house: &House, name: &str) -> PathBuf {
    let kept = house.world.dir(name);
    for file in FILES {
        std::fs::copy(state(house).join(file), kept.join(file)).unwrap();
    }
    kept
}

/// Puts a copy in the place of the database of a gateway that does not run.
fn put(house: &House, kept: &Path) {
    let _ = std::fs::remove_file(state(house).join("gateway.db-shm"));
    for file in FILES {
        std::fs::copy(kept.join(file), state(house).join(file)).unwrap();
    }
}

fn last_event(house: &House) -> i64 {
    let sql = "SELECT coalesce(max(event_id), 0) FROM acp_events";
    house.world.journal(GATEWAY).query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Starts a gateway that refuses to serve.
fn start_refused(house: &House) -> RunningCommand {
    start_refused_at(house, house.socket())
}

/// Starts a gateway with a supervisor at `socket`, which refuses to serve.
fn start_refused_at(house: &House, socket: &Path) -> RunningCommand {
    let started = house.follow(&["serve", "--supervisor-socket", socket.to_str().unwrap()]);
    until(SOON, "the gateway refuses to serve", || {
        let answer = house.cli(&["sessions", "list"]);
        assert_ne!(answer.code, Some(0), "it serves: {answer:#?}");
        answer.error()["detail_code"] == "ROLLED_BACK"
    });
    started
}

fn refusal(house: &House) -> String {
    house.cli(&["sessions", "list"]).error()["message"].as_str().unwrap().to_owned()
}

fn states(house: &House, key: &str) -> Vec<(String, Value)> {
    let shown = house.verb(&["sessions", "show", key]);
    let runs = shown["runs"].as_array().unwrap_or_else(|| panic!("{shown}"));
    runs.iter().map(|run| (run["state"].as_str().unwrap().to_owned(), run["error"]["code"].clone())).collect()
}

/// H7: after the accepted loss the journal records the gap, the agent is ended, and the session continues with the
/// agent's own memory.
#[test]
fn older_copy_is_refused_and_agent_lives_until_loss_is_accepted() {
    let mut house = house();
    let key = house.spawn();
    let lease = house.lease(&key);
    let mut running = house.follow(&["prompt", &key, "chunks 100000 pace_ms=5"]);
    let _ = running.events_until(SOON, |event| event["type"] == "text_delta");
    let mut waiting = house.follow(&["prompt", &key, "say later"]);
    until(SOON, "the second prompt waits", || {
        states(&house, &key).iter().any(|(state, _)| state == "queued")
    });
    house.kill_gateway();
    running.kill9();
    waiting.kill9();
    let kept = keep(&house, "older");
    let before = last_event(&house);
    house.start_gateway();
    until(SOON, "more events journaled", || last_event(&house) > before + 50);
    house.kill_gateway();
    put(&house, &kept);

    let killed = Instant::now();
    let mut refusing = start_refused(&house);
    let said = refusal(&house);
    for says in ["was rolled back", "1 living agents are kept until 2", "store accept-loss", "store restore"]
    {
        assert!(said.contains(says), "{says}: {said}");
    }
    let doctor = house.cli(&["doctor"]);
    assert_eq!(doctor.code, Some(1));
    assert!(
        doctor.stdout.contains("refuses to serve") && doctor.stdout.contains("kept until"),
        "{doctor:#?}"
    );
    let shown = house.world.supervisor_cli(house.socket(), &["status"]).ok().stdout;
    assert!(shown.contains("was rolled back") && shown.contains("kept until"), "{shown}");
    assert_eq!(house.cli(&["store", "accept-loss"]).error()["detail_code"], "STORE_LOCKED");
    // Refused starts do not raise the epoch until it is accepted.
    for _ in 0..3 {
        refusing.kill9();
        refusing = start_refused(&house);
    }
    wait_until_instant(killed + Duration::from_millis(2 * GRACE_MS));
    assert_eq!(house.lease_by_id(lease.id()).adapter_pid(), lease.adapter_pid());
    assert_eq!(house.lease_by_id(lease.id()).state(), "open", "its agent is kept");

    // A refused database is not served without a supervisor either.
    refusing.kill9();
    let nobody = house.world.write("nobody.sock", "");
    refusing = start_refused_at(&house, &nobody);
    assert!(refusal(&house).contains("refused this database before"), "{}", refusal(&house));
    refusing.kill9();
    refusing = start_refused(&house);

    assert!(refusing.signal(Signal::TERM));
    assert_eq!(refusing.finish(LONG).code, Some(0), "a gateway that refuses ends in order");
    let accepted = house.verb(&["store", "accept-loss"]);
    assert_eq!(accepted["uncertain"], 1, "{accepted}");
    assert!(accepted["known_event_id"].as_i64() > accepted["event_id"].as_i64(), "{accepted}");
    house.start_gateway();
    house.wait_for_lease_end(&lease);
    until(SOON, "both turns ended", || states(&house, &key).iter().all(|(state, _)| state == "failed"));
    let uncertain = states(&house, &key).into_iter().filter(|(_, code)| code == "ACP_UNCERTAIN").count();
    assert_eq!(uncertain, 2, "{:?}", states(&house, &key));
    let gap = eventually(SOON, "gap journaled", || {
        house.history(&key).into_iter().find(|event| event["type"] == "gap")
    });
    assert!(gap["text"].as_str().is_some_and(|text| text.contains("backup")), "{gap}");
    check_answer(&house.prompt(&key, "say again"), ["again"]);
    assert_eq!(house.received("session/resume").len(), 1, "with the agent's own memory");
    for text in ["chunks 100000 pace_ms=5", "say again"] {
        assert_eq!(house.prompts_received(text), 1, "{text}");
    }
    // The loss was accepted once: the next start is an ordinary one.
    house.stop_gateway();
    house.start_gateway();
    let _ = house.prompt(&key, "say once more");
    assert_eq!(house.cli(&["store", "accept-loss"]).error()["detail_code"], "STORE_LOCKED");
    house.end();
}

/// The first advice of a refusal: the copy had the epoch of the newest database when it was refused.
#[test]
fn newest_database_is_accepted_after_refusal_of_an_older_copy() {
    let mut house = house();
    let key = house.spawn();
    house.kill_gateway();
    let older = keep(&house, "older");
    house.start_gateway();
    check_answer(&house.prompt(&key, "say kept"), ["kept"]);
    house.kill_gateway();
    let newest = keep(&house, "newest");
    put(&house, &older);
    start_refused(&house).kill9();
    put(&house, &newest);
    house.start_gateway();
    check_answer(&house.prompt(&key, "say again"), ["again"]);
    let answers = house.history(&key).iter().filter(|event| event["text"] == "kept").count();
    assert_eq!(answers, 1);
    house.end();
}

/// A database that went back in time is served without a supervisor, and writes past the recorded event. The
/// supervisor refuses it all the same, and the gateway stops serving.
#[test]
fn older_copy_that_was_served_without_a_supervisor_is_refused() {
    let mut house = house();
    let key = house.spawn();
    let _ = house.prompt(&key, "say before");
    let lease = house.lease(&key);
    house.kill_gateway();
    let kept = keep(&house, "older");
    house.start_gateway();
    for _ in 0..3 {
        let _ = house.prompt(&key, "say lost");
    }
    let recorded = last_event(&house);
    house.kill_gateway();
    put(&house, &kept);
    // An agent that lives would be ahead of the database too.
    house.wait_for_lease_end(&lease);

    let absent = house.world.path("absent");
    let socket = absent.join(house.socket().file_name().unwrap()).to_string_lossy().into_owned();
    let config = house.world.path("gateway.toml").to_string_lossy().into_owned();
    let serve = || {
        let serving = house.follow(&["serve", "--supervisor-socket", &socket, "--config", &config]);
        until(LONG, "the gateway serves", || house.cli(&["sessions", "list"]).code == Some(0));
        serving
    };
    let mut serving = serve();
    until(LONG, "more events than were recorded", || {
        assert_eq!(house.cli(&["prompt", &key, "say more", "--no-wait"]).code, Some(0));
        last_event(&house) > recorded
    });
    // A later start has an epoch above the recorded one, and finds the new events.
    for _ in 0..2 {
        serving.kill9();
        serving = serve();
    }
    std::os::unix::fs::symlink(house.socket().parent().unwrap(), &absent).unwrap();
    let ended = serving.finish(LONG);
    assert_eq!(ended.error()["detail_code"], "ROLLED_BACK", "{ended:#?}");
    start_refused(&house).kill9();
    let _ = house.verb(&["store", "accept-loss"]);
    house.start_gateway();
    check_answer(&house.prompt(&key, "say again"), ["again"]);
    house.end();
}

#[test]
fn damaged_wal_is_refused_and_newest_files_are_accepted() {
    let mut house = house();
    let key = house.spawn();
    let lease = house.lease(&key);
    // Never idle, so that the newest events are only in the WAL.
    let mut running = house.follow(&["prompt", &key, "chunks 1500 pace_ms=10 size=20"]);
    let _ = running.events_until(SOON, |event| event["type"] == "text_delta");
    let before = last_event(&house);
    until(SOON, "agent output journaled", || last_event(&house) > before + 100);
    house.kill_gateway();
    running.kill9();
    let kept = keep(&house, "newest");
    let log = state(&house).join("gateway.db-wal");
    let length = std::fs::metadata(&log).unwrap().len();
    assert!(length > 50_000, "the newest events stand in the log");
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 3] = [
        ("cut", |log| std::fs::File::options().write(true).open(log).unwrap().set_len(4_000).unwrap()),
        ("deleted", |log| std::fs::remove_file(log).unwrap()),
        ("overwritten", |log| {
            let mut bytes = std::fs::read(log).unwrap();
            bytes.iter_mut().skip(32).step_by(50).for_each(|byte| *byte ^= 0x5a);
            std::fs::write(log, bytes).unwrap();
        }),
    ];
    for (name, damage) in damages {
        put(&house, &kept);
        damage(&log);
        let mut refusing = start_refused(&house);
        let said = refusal(&house);
        assert!(said.contains("its last event is"), "{name}: {said}");
        refusing.kill9();
    }
    put(&house, &kept);
    house.start_gateway();
    until(LONG, "turn ended", || states(&house, &key).iter().all(|(state, _)| state == "completed"));
    assert_eq!(house.lease(&key).adapter_pid(), lease.adapter_pid(), "its agent was not touched");
    let history = house.history(&key);
    check_chunks(&chunks(&history), 1500, 20);
    check_turn(&house.prompt(&key, "say after"), "end_turn");
    house.end();
}

#[test]
fn restored_backup_is_accepted_as_loss() {
    let mut house = house();
    let key = house.spawn();
    let _ = house.prompt(&key, "say before");
    let file = house.world.path("backup.db");
    let _ = house.verb(&["store", "backup", file.to_str().unwrap()]);
    house.kill_gateway();
    let oldest = keep(&house, "oldest");
    for text in ["say one", "say two"] {
        house.start_gateway();
        let _ = house.prompt(&key, text);
        house.kill_gateway();
    }
    put(&house, &oldest);
    let mut refusing = start_refused(&house);
    refusing.kill9();
    let _ = house.verb(&["store", "restore", file.to_str().unwrap()]);
    house.start_gateway();
    check_answer(&house.prompt(&key, "say again"), ["again"]);
    house.end();
}

/// Neither the replaced database nor a refusal tells how often the gateway was started since.
#[test]
fn backup_of_an_earlier_start_is_accepted_although_the_replaced_database_is_gone() {
    let mut house = house();
    let key = house.spawn();
    let _ = house.prompt(&key, "say before");
    let file = house.world.path("backup.db");
    let _ = house.verb(&["store", "backup", file.to_str().unwrap()]);
    for _ in 0..3 {
        house.restart_gateway();
        let _ = house.prompt(&key, "say lost");
    }
    house.kill_gateway();
    for name in FILES.iter().copied().chain(["gateway.db-shm"]) {
        let _ = std::fs::remove_file(state(&house).join(name));
    }
    let _ = house.verb(&["store", "restore", file.to_str().unwrap()]);
    house.start_gateway();
    check_answer(&house.prompt(&key, "say again"), ["again"]);
    house.end();
}
