//! Memory of a gateway during and after a flood by one agent.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::wait::{LONG, until};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// Largest resident memory during the flood of one session, in KiB.
const PEAK_KIB: u64 = 128 * 1024;
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

/// Floods a gateway with an agent's scripted output, and returns peak and remaining memory in KiB.
fn flood(name: &str, script: &str) -> (u64, u64) {
    let (house, key) = Plan::flags(&[]).build().with_session();
    let _ = house.prompt(&key, "say warm");
    reader(&house, &key);
    let before = status(&house, "RssAnon");
    std::fs::write(format!("/proc/{}/clear_refs", house.gateway().pid()), "5").unwrap();
    assert_eq!(house.cli(&["prompt", &key, script, "--no-wait"]).code, Some(0));
    until(10 * LONG, "turn ended", || {
        let state = house.verb(&["sessions", "show", &key])["state"].clone();
        state != "running" && state != "starting"
    });
    let peak = status(&house, "VmHWM");
    until(LONG, "memory released", || {
        status(&house, "RssAnon") <= before + KEPT_KIB || std::env::var_os("ACP_MEMORY_FIGURES").is_some()
    });
    let kept = status(&house, "RssAnon");
    println!("{name}: {before} KiB before, {peak} KiB at most, {kept} KiB afterwards");
    house.end();
    (peak, kept)
}

fn check(name: &str, script: &str) {
    let (peak, _) = flood(name, script);
    let is_measured = std::env::var_os("ACP_MEMORY_FIGURES").is_some();
    assert!(is_measured || peak <= PEAK_KIB, "{name}: {peak} KiB at most, {PEAK_KIB} KiB allowed");
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
