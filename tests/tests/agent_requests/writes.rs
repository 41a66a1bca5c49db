//! H3: requests in flight when the gateway dies. Reads are repeated; writes never are.

use acp_tests::house::{GATEWAY, House};
use acp_tests::processes::ProcessHandle;
use acp_tests::seed::Seed;
use acp_tests::story::{check_turn, chunks};
use acp_tests::wait::{LONG, SOON, spin_until, until, wait_until_instant};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// State of a file: inode, modification time and content.
type Now = Option<(u64, i64, String)>;

fn now(path: &Path) -> Now {
    let content = fs::read_to_string(path).ok()?;
    let meta = fs::metadata(path).ok()?;
    Some((meta.ino(), meta.mtime_nsec(), content))
}

/// Number of the agent's requests with this state in the journal.
fn requests(house: &House, state: &str) -> i64 {
    let sql = "SELECT count(*) FROM acp_agent_request WHERE state = ?1";
    house.world.journal(GATEWAY).query_row(sql, [state], |row| row.get(0)).unwrap_or(0)
}

/// Another process changes the file after the write; the restarted gateway must not write again.
#[test]
fn heavy_write_is_never_repeated_after_gateway_kill() {
    let mut seed = Seed::new();
    let (mut house, key) = House::with_approve_all(&[]).with_session();
    let _ = house.prompt(&key, "warm up");
    let target = house.cwd().join("target.txt");
    let (mut between, mut before, mut answered) = (0, 0, 0);
    for n in 0..24 {
        let content = format!("content {n} {}", "x".repeat(2000));
        let old = now(&target);
        let turn = house.follow(&["prompt", &key, &format!("fs_write target.txt {content}")]);
        if n % 3 == 2 {
            // At a random moment around the write.
            until(SOON, "prompt received", || house.agent_events("prompt").len() == n + 2);
            wait_until_instant(Instant::now() + seed.time_below(Duration::from_millis(20)));
        } else {
            // The file is written, and the gateway is stopped before it can answer.
            let gateway = ProcessHandle::open(house.gateway().pid()).unwrap();
            spin_until(SOON, "the file is written", || {
                fs::read(&target).is_ok_and(|found| found == content.as_bytes()).then_some(())
            });
            assert!(gateway.signal(Signal::STOP));
        }
        house.kill_gateway();
        let started = requests(&house, "started") == 1;
        let written = now(&target).filter(|(_, _, found)| *found == content);
        let theirs = format!("somebody else's {n}");
        match (&written, started) {
            (Some(_), true) => between += 1,
            (Some(_), false) => answered += 1,
            (None, _) => before += 1,
        }
        let others = written.is_some() && n % 2 == 0;
        if others {
            fs::write(&target, &theirs).unwrap();
        }
        let left = now(&target);
        house.start_gateway();
        let events = turn.finish(LONG).ok().lines();
        check_turn(&events, "end_turn");
        let said = chunks(&events).concat();
        let after = now(&target);
        match (written.is_some(), others, started) {
            (true, false, _) => {
                assert_eq!(after, left, "round {n}: written once");
                assert_eq!(said, "fs_write: ok", "round {n}: the agent gets success for the finished write");
            }
            (true, true, true) => {
                assert_eq!(after, left, "round {n}: what somebody else wrote stays");
                assert!(said.starts_with("fs_write: error -"), "round {n}: the outcome is unknown: {said}");
            }
            (true, true, false) => {
                assert_eq!(after, left, "round {n}: what somebody else wrote stays");
                assert_eq!(said, "fs_write: ok", "round {n}: it was answered before");
            }
            // The write was begun when the gateway died: the supervisor finishes it, it is not repeated, and the
            // agent gets success if the content is in the file.
            (false, _, true) if said == "fs_write: ok" => {
                assert_eq!(after.map(|(_, _, found)| found).as_deref(), Some(content.as_str()), "round {n}");
            }
            (false, _, true) => {
                assert_eq!(after, old, "round {n}: not written after the restart");
                assert!(said.starts_with("fs_write: error -"), "round {n}: {said}");
            }
            // The request was not recorded: it runs now, once.
            (false, _, false) => {
                assert_eq!(said, "fs_write: ok", "round {n}");
                assert_eq!(after.map(|(_, _, found)| found).as_deref(), Some(content.as_str()), "round {n}");
            }
        }
    }
    eprintln!("killed before the write: {before}, between write and answer: {between}, after: {answered}");
    assert!(between > 0, "no kill hit the moment between a write and its answer");
    house.end();
}

/// Reads have no effect: they are repeated, and each request is answered once.
#[test]
fn heavy_reads_in_flight_are_answered_after_a_restart() {
    let mut seed = Seed::new();
    let (mut house, key) = House::with_approve_all(&[]).with_session();
    let _ = house.prompt(&key, "warm up");
    let content = "0123456789abcdef".repeat(4096);
    fs::write(house.cwd().join("big.txt"), &content).unwrap();
    for round in 1..=6_usize {
        let script = format!("# {round}\n{}", "fs_read big.txt\n".repeat(25));
        let turn = house.follow(&["prompt", &key, &script]);
        until(SOON, "prompt received", || house.prompts_received(&script) == 1);
        for _ in 0..2 {
            wait_until_instant(Instant::now() + seed.time_below(Duration::from_millis(60)));
            house.restart_gateway();
        }
        let events = turn.finish(LONG).ok().lines();
        check_turn(&events, "end_turn");
        let said = chunks(&events);
        assert_eq!(said.len(), 25, "one answer for each");
        assert!(said.iter().all(|line| line.strip_prefix("fs_read: ") == Some(&content)), "with the content");
    }
    house.end();
}
