//! Many chunks through npm's acpx while the gateway does not read.

use crate::npm::{close, house};
use acp_tests::house::House;
use acp_tests::story::{check_history, chunks};
use acp_tests::wait::{LONG, until};
use rustix::process::Signal;
use std::fs;
use std::path::Path;

/// Number of chunks of a turn.
const CHUNKS: u64 = 20_000;
/// Size of the supervisor's ring, so that it is full long before the end of the turn.
const RING_BYTES: u64 = 256 * 1024;
/// Maximum memory of the bridge without the pages of files, in KiB.
const BRIDGE_KIB: u64 = 2 * 1024;
/// Maximum growth of the supervisor's memory, in KiB.
const SUPERVISOR_KIB: u64 = 2 * 1024;

/// Value of a line of `/proc/PID/status`, in KiB.
fn status(pid: i32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_else(|e| panic!("{pid}: {e}"));
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no {name} of {pid}"))
}

/// Peak memory of a process without the pages of files, in KiB.
fn peak(pid: i32) -> u64 {
    status(pid, "VmHWM").saturating_sub(status(pid, "RssFile"))
}

/// Number of ended turns in the journals of acpx below a directory.
fn ended_turns(dir: &Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let count = |path: &Path| match path.to_string_lossy().ends_with(".stream.ndjson") {
        true => fs::read_to_string(path).unwrap_or_default().matches("\"turn_result\"").count(),
        false if path.is_dir() && !path.is_symlink() => ended_turns(path),
        false => 0,
    };
    entries.filter_map(|entry| Some(count(&entry.ok()?.path()))).sum()
}

/// Starts a turn and waits until the gateway has read some of it.
fn begin(house: &House, key: &str) {
    let accepted = house.cli(&["prompt", key, &format!("chunks {CHUNKS}"), "--no-wait"]);
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
}

/// Checks that all chunks of the last turn arrived once, in order.
fn check(house: &House, key: &str, turns: usize) {
    let state = || house.verb(&["sessions", "show", key])["state"].clone();
    until(LONG, "turn ended", || state() == "idle");
    let history = house.history(key);
    check_history(&history);
    assert_eq!(history.iter().filter(|event| event["type"] == "done").count(), turns);
    let said = chunks(&history).concat();
    let one: String = (1..=CHUNKS).map(|n| acp_tests::fake_agent::chunk_text(n, 16)).collect();
    assert!(said == one.repeat(turns), "{} of {} bytes", said.len(), one.len() * turns);
}

#[test]
#[ignore = "needs npm's acpx: make test-foreign"]
fn chunks_wait_in_bounded_memory_for_a_stopped_and_a_killed_gateway() {
    let mut house = house(&format!("ring_bytes_max = {RING_BYTES}\n"));
    let key = house.spawn();
    let lease = house.lease(&key);
    let (bridge, supervisor) = (lease.adapter_pid(), house.supervisor().pid());
    let before = peak(supervisor);

    begin(&house, &key);
    until(LONG, "first chunk", || !chunks(&house.history(&key)).is_empty());
    assert!(house.gateway().signal(Signal::STOP));
    until(LONG, "acpx has ended the turn", || ended_turns(&house.world.path("")) == 1);
    assert!(house.gateway().signal(Signal::CONT));
    check(&house, &key, 1);

    begin(&house, &key);
    let first = |house: &House| chunks(&house.history(&key)).concat().len() > 16 * 20_000;
    until(LONG, "first chunk of the second turn", || first(&house));
    house.kill_gateway();
    until(LONG, "acpx has ended the turn", || ended_turns(&house.world.path("")) == 2);
    house.start_gateway();
    check(&house, &key, 2);

    let (of_bridge, of_supervisor) = (peak(bridge), peak(supervisor));
    eprintln!("bridge: {of_bridge} KiB; supervisor: {before} KiB before, {of_supervisor} KiB at most");
    assert!(of_bridge <= BRIDGE_KIB, "bridge: {of_bridge} KiB");
    assert!(of_supervisor <= before + SUPERVISOR_KIB, "supervisor: {before} to {of_supervisor} KiB");
    close(&house, &key, &lease);
    house.end();
}
