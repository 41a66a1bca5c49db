//! Sections of the runbook, followed: each test breaks something and types the commands of the page.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::house::{AGENT, GATEWAY, House, Plan, scripted};
use acp_tests::runbook::{Operator, Section};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{GATEWAY_DB, World};
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::time::Duration;

#[test]
fn backend_outage_is_found_and_ended() {
    let world = World::new();
    let broken = world.path("broken");
    let mut agent = scripted(&world, &[], "ask");
    let program = agent.command.remove(0);
    let script = format!(
        "[ ! -e '{}' ] || {{ echo no licence >&2; exit 3; }}; exec '{program}' \"$@\"",
        broken.display()
    );
    agent.command.splice(0..0, ["/bin/sh".to_owned(), "-c".to_owned(), script, "agent".to_owned()]);
    std::fs::write(&broken, "").unwrap();
    let house = Plan::default().build_in(world, &BTreeMap::from([(AGENT, agent)]));
    let key = house.spawn();
    until(SOON, "session failed", || house.verb(&["sessions", "show", &key])["state"] == "error");
    let mut page = Section::read("No session can be started: the backend is unavailable");
    let operator = Operator::of(&house);
    let words = [("KEY", key.as_str())];
    let run = |line: String| operator.run(&line, &words);
    let doctor = run(page.take("G doctor")).ok();
    assert!(doctor.stdout.contains("backend"), "{doctor:#?}");
    let shown = run(page.take("G sessions show")).ok();
    assert!(shown.stdout.contains("exit code 3"), "{shown:#?}");
    let log = run(page.take("G logs")).ok();
    assert!(log.stdout.contains("no licence"), "{log:#?}");
    std::fs::remove_file(&broken).unwrap();
    let _ = run(page.take("G prompt")).ok();
    assert_eq!(house.prompts_received("go on"), 1);
    page.end();
    house.end();
}

#[test]
fn damaged_database_is_replaced_by_its_backup() {
    let (mut house, key) = House::new(&[]).with_session();
    let file = house.world.path("work/backup.db").to_string_lossy().into_owned();
    let operator = Operator::of(&house);
    let mut page = Section::read("Backup and restore");
    let backup = page.take("G store backup").replace("/backup/acp-$(date +%F).db", &file);
    let _ = operator.run(&backup, &[]).ok();
    page.end();
    house.kill_gateway();
    let db = house.world.path(GATEWAY).join(GATEWAY_DB);
    let mut bytes = std::fs::read(&db).unwrap();
    bytes.iter_mut().skip(4096).step_by(7).for_each(|byte| *byte ^= 0x5a);
    std::fs::write(&db, &bytes).unwrap();
    let _ = std::fs::remove_file(house.world.path("gateway/gateway.db-wal"));
    let mut page = Section::read("The database is damaged, or gone");
    let words = [("FILE", file.as_str())];
    let run = |line: String| operator.run(&line, &words);
    assert_eq!(run(page.take("G store check")).code, Some(1));
    let _ = run(page.take("G store sessions"));
    let _ = run(page.take("G store restore")).ok();
    let _ = run(page.take("G store check")).ok();
    page.end();
    house.start_gateway();
    let _ = house.prompt(&key, "say b");
    house.end();
}

/// Closes all sessions without their bindings, as the gateway itself never does.
#[expect(clippy::disallowed_methods, reason = "the test damages what the store would protect")]
fn close_sessions(house: &House) {
    let db = Connection::open(house.world.path(GATEWAY).join(GATEWAY_DB)).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    db.execute_batch("UPDATE acp_sessions SET state = 'closed'").unwrap();
}

#[test]
fn stale_binding_is_named_and_ended() {
    let house = House::new(&[]);
    let cwd = house.world.dir("work/project");
    let spawned = house.say("room", "1", &format!("/acp spawn {AGENT} --cwd {}", cwd.display()));
    let key = spawned["session_key"].as_str().unwrap();
    close_sessions(&house);
    let operator = Operator::of(&house);
    let mut page = Section::read("A conversation leads nowhere: stale bindings");
    let words = [("KEY", key)];
    let run = |line: String| operator.run(&line, &words);
    let doctor = run(page.take("G doctor"));
    assert_eq!(doctor.code, Some(1), "{doctor:#?}");
    assert!(doctor.stdout.contains(&format!("console/default/room -> {key}")), "{doctor:#?}");
    let _ = run(page.take("G sessions unbind")).ok();
    let doctor = run(page.take("G doctor"));
    assert!(doctor.stdout.contains("no stale bindings"), "{doctor:#?}");
    page.end();
}

#[test]
fn absent_supervisor_is_found_and_started() {
    let (mut house, key) = House::new(&[]).with_session();
    house.kill_supervisor();
    let operator = Operator::of(&house);
    let mut page = Section::read("The supervisor is away");
    let status = operator.run(&page.take("S status"), &[]);
    assert_eq!(status.code, Some(3), "{status:#?}");
    let doctor = operator.run(&page.take("G doctor"), &[]);
    assert_eq!(doctor.code, Some(1), "{doctor:#?}");
    assert!(doctor.stdout.contains("not connected to its supervisor"), "{doctor:#?}");
    assert_eq!(page.take("systemctl start"), "systemctl start acp-supervisor");
    house.start_supervisor();
    let _ = operator.run(&page.take("S status"), &[]).ok();
    let healthy = page.take("G doctor");
    until(LONG, "doctor finds nothing", || operator.run(&healthy, &[]).code == Some(0));
    page.end();
    let _ = house.prompt(&key, "say again");
    house.end();
}
