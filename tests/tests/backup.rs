//! A backup taken during ten running turns and restored under another supervisor: it is consistent and usable there, and
//! the original is not disturbed.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::cli::run;
use acp_tests::house::{AGENT, GATEWAY, House};
use acp_tests::invariants;
use acp_tests::story::{check_chunks, check_turn, chunks};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{bin, open_read_only, repository};
use rusqlite::Connection;
use std::os::unix::fs::PermissionsExt as _;

/// Sessions, and chunks of the turn of each.
const SESSIONS: usize = 10;
const CHUNKS: u64 = 400;
const PACE_MS: u64 = 25;
/// State directory that the backup is restored into.
const ELSEWHERE: &str = "elsewhere";

fn count(db: &Connection, sql: &str) -> i64 {
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Starts ten sessions in ten conversations, each with a long turn, and returns their keys.
fn ten_that_talk(house: &House) -> Vec<String> {
    let say = |room: usize, id: &str, text: &str| house.say(&format!("room-{room}"), id, text);
    let mut keys = Vec::new();
    for room in 0..SESSIONS {
        let cwd = house.world.dir(&format!("work/room-{room}"));
        let spawned = say(room, "spawn", &format!("/acp spawn {AGENT} --cwd {}", cwd.display()));
        keys.push(spawned["session_key"].as_str().unwrap_or_else(|| panic!("{spawned}")).to_owned());
    }
    for room in 0..SESSIONS {
        let told = say(room, "talk", &format!("chunks {CHUNKS} pace_ms={PACE_MS} size=20"));
        assert_eq!(told["outcome"], "prompted", "{told}");
    }
    let talking = "SELECT count(DISTINCT run_id) FROM acp_events WHERE kind = 'agent_message'";
    until(LONG, "all turns streaming", || count(&house.world.journal(GATEWAY), talking) == SESSIONS as i64);
    keys
}

/// Every agent lease: id, state, wrapper and adapter pid.
fn agents(house: &House) -> Vec<(String, String, i32, i32)> {
    let what = |lease: &acp_tests::lease::Lease| {
        (lease.id().to_owned(), lease.state().to_owned(), lease.wrapper_pid(), lease.adapter_pid())
    };
    let mut all: Vec<_> = house.leases().iter().map(what).collect();
    all.sort();
    all
}

/// Acceptance point 3.
#[test]
fn heavy_backup_of_ten_running_sessions_works_in_another_state_directory() {
    let house = House::new(&[]);
    let world = &house.world;
    let keys = ten_that_talk(&house);
    let before = agents(&house);
    assert!(before.len() == SESSIONS && before.iter().all(|(_, state, ..)| state == "open"), "{before:?}");

    let file = world.path("backup.db");
    let made = house.verb(&["store", "backup", file.to_str().unwrap()]);
    assert_eq!(made["broken"].as_array().map(Vec::len), Some(0), "{made}");
    let backup = open_read_only(&file);
    invariants::check(&backup);
    let running = "SELECT count(*) FROM acp_runs WHERE state = 'running'";
    assert_eq!(count(&backup, running), SESSIONS as i64, "the backup was taken during every turn");

    // Elsewhere: another state directory, another supervisor.
    let _ = run(&mut world.gateway_verb(ELSEWHERE, &["store", "restore", file.to_str().unwrap()]), LONG).ok();
    let _ = run(&mut world.gateway_verb(ELSEWHERE, &["adopt"]), LONG).ok();
    std::fs::copy(world.path("gateway.toml"), world.path("elsewhere.toml")).unwrap();
    let other = world.dir("other-supervisor");
    let supervisor =
        world.start_service("acp-supervisor", &["serve", "--state-dir", other.to_str().unwrap(), "--json"]);
    let twin = world.gateway(ELSEWHERE, &supervisor.socket());
    until(LONG, "interrupted turns failed with one final message each", || {
        let journal = world.journal(ELSEWHERE);
        let told = "SELECT count(*) FROM acp_runs r WHERE state = 'failed' AND (SELECT count(*) FROM acp_delivery_part p \
                    WHERE p.run_id = r.run_id AND p.kind = 'final' AND p.state = 'sent') = 1";
        count(&journal, told) == SESSIONS as i64
    });
    for key in &keys {
        check_turn(&world.prompt(ELSEWHERE, key, "say it goes on"), "end_turn");
    }
    assert_eq!(world.leases(&supervisor.socket()).len(), SESSIONS, "its agents are under its own supervisor");
    let report = world.cli(ELSEWHERE, &["store", "check"]).ok().json();
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(twin.terminate(LONG), Some(0));
    invariants::check(&world.journal(ELSEWHERE));
    assert_eq!(supervisor.terminate(LONG), Some(0));

    // The original keeps its agents, and every turn ends.
    assert_eq!(agents(&house), before, "the agents of the original are untouched");
    until(LONG, "original turns ended", || count(&world.journal(GATEWAY), running) == 0);
    for key in &keys {
        check_chunks(&chunks(&house.history(key)), CHUNKS, 20);
    }
    let sent = "SELECT count(*) FROM acp_delivery_part WHERE kind = 'final' AND state = 'sent'";
    until(SOON, "every answer is delivered", || count(&world.journal(GATEWAY), sent) >= SESSIONS as i64);
    house.end();
}

/// The command of the unit works as its user would run it, twice in a day.
#[test]
fn backup_unit_writes_and_replaces_a_private_backup() {
    let (house, _) = House::new(&[]).with_session();
    let unit = repository().join("packaging/systemd/acp-gateway-backup@.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/bin/sh -c ")).unwrap();
    let backups = house.world.dir("backups");
    let state = house.world.path(GATEWAY);
    let script = line
        .trim_matches('\'')
        .replace("%%", "%")
        .replace("$$", "$")
        .replace("/usr/bin/acp-gateway", &bin("acp-gateway").to_string_lossy())
        .replace("/var/lib/acp-gateway-backup/%i", &backups.to_string_lossy())
        .replace("/var/lib/acp-gateway/%i", &state.to_string_lossy());
    assert!(!script.contains("%i"), "{script}");
    for _ in 0..2 {
        let output = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let files: Vec<_> = std::fs::read_dir(&backups).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    let copy = open_read_only(file);
    assert_eq!(count(&copy, "SELECT count(*) FROM acp_sessions"), 1);
    house.end();
}
