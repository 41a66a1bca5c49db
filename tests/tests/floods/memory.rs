//! Memory of a gateway during and after a flood by one agent.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::story::chunks;
use acp_tests::wait::{LONG, until};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// Largest resident memory during the flood of one session without the pages of files, which are those of the program, in
/// KiB.
const PEAK_KIB: u64 = 92 * 1024;
/// Maximum growth of anonymous memory after a flood, in KiB.
const KEPT_KIB: u64 = 24 * 1024;

/// Value of a line of the gateway's `/proc/PID/status`, in KiB.
fn status(house: &House, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", house.gateway().pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Reads and discards a session's event stream.
fn reader(house: &House, key: &str) {
    let mut stream = UnixStream::connect(house.world.path(GATEWAY).join("gateway.sock")).unwrap();
    let head =
        format!("GET /v1/sessions/{key}/events HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
    });
}

/// Runs a script that floods a gateway, and returns the house and its session. The peak memory is checked.
fn flood(name: &str, script: &str) -> (House, String) {
    let (house, key) = Plan::flags(&[]).permission("approve-all").build().with_session();
    std::fs::write(house.cwd().join("large"), "0123456789abcde\n".repeat(600_000)).unwrap();
    let _ = house.prompt(&key, "say warm");
    reader(&house, &key);
    let before = status(&house, "RssAnon");
    std::fs::write(format!("/proc/{}/clear_refs", house.gateway().pid()), "5").unwrap();
    assert_eq!(house.cli(&["prompt", &key, script, "--no-wait"]).code, Some(0));
    until(10 * LONG, "turn ended", || {
        let state = house.verb(&["sessions", "show", &key])["state"].clone();
        state != "running" && state != "starting"
    });
    let peak = status(&house, "VmHWM") - status(&house, "RssFile");
    let is_measured = std::env::var_os("ACP_MEMORY_FIGURES").is_some();
    until(LONG, "memory released", || is_measured || status(&house, "RssAnon") <= before + KEPT_KIB);
    let kept = status(&house, "RssAnon");
    println!("{name}: {before} KiB before, {peak} KiB at most, {kept} KiB afterwards");
    assert!(is_measured || peak <= PEAK_KIB, "{name}: {peak} KiB at most, {PEAK_KIB} KiB allowed");
    (house, key)
}

fn check(name: &str, script: &str) {
    flood(name, script).0.end();
}

/// Runs a script that floods a gateway with file requests, and returns the agent's message about their results.
fn results(name: &str, script: &str) -> Vec<String> {
    let (house, key) = flood(name, script);
    let history = house.history(&key);
    let said = chunks(&history).into_iter().filter(|said| *said != "warm").map(str::to_owned).collect();
    house.end();
    said
}

#[test]
fn heavy_endless_line_is_bounded() {
    check("a line of 1 GiB", "endless_line 1073741824");
}

#[test]
fn heavy_longest_lines_are_bounded() {
    check("lines of 12 MB", &"long_line 12500000\n".repeat(6));
}

#[test]
fn heavy_long_titles_are_bounded() {
    check("titles of 4 MB", "titles 20 4000000");
}

#[test]
fn heavy_many_updates_are_bounded() {
    let count = std::env::var("ACP_MEMORY_UPDATES").unwrap_or_else(|_| "50000".to_owned());
    check(&format!("{count} updates"), &format!("chunks {count} size=16"));
}

#[test]
fn heavy_reads_of_an_agent_that_does_not_read_are_bounded_and_answered_later() {
    assert_eq!(results("20 reads of 9.6 MB", "reads 20 8000 large"), ["reads: 20 of 20"]);
}

#[test]
fn heavy_longest_writes_are_bounded() {
    let said = results("12 writes of 12 MB", "writes 12 12000000 written");
    assert!(said.len() == 1 && said[0].ends_with(" of 12"), "{said:?}");
    assert_ne!(said, ["writes: 0 of 12"]);
}
