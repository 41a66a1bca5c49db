//! Planned restart (H14): another program takes over in the same process without loss.

mod failures;
mod retained_state;

use crate::common::{Client, Host, Identity, agent, eventually, is_alive, kill, pids_of, script, terminal};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Graces, LeaseState, Notice, RefusalCode, Reply, Request, Tail};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

/// Shell command that prints `count` numbered lines of ten bytes, with a pause after each hundred.
fn counting_script(count: usize) -> String {
    format!(
        "i=0; while [ $i -lt {count} ]; do i=$((i+1)); printf '%09d\\n' $i; [ $((i % 100)) = 0 ] && sleep 0.01; done; exec cat"
    )
}

fn lines(from: usize, to: usize) -> Vec<u8> {
    (from..=to).flat_map(|i| format!("{i:09}\n").into_bytes()).collect()
}

fn upgrade(host: &Host) -> serde_json::Value {
    let done = host.json(&["upgrade"]);
    assert_eq!(done["error"], serde_json::Value::Null, "{done}");
    done
}

pub(crate) fn descriptors(host: &Host) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", host.pid())).unwrap().count()
}

/// Waits until at most `want` descriptors are open.
fn await_descriptors(host: &Host, want: usize) {
    eventually("no descriptor remains", || descriptors(host) <= want);
}

/// Connects, and retries until accepted.
pub(crate) async fn reconnect(identity: &Identity) -> Client {
    loop {
        if let Ok(client) = identity.try_connect().await {
            return client;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reads and acknowledges the output of a lease over any number of connections.
struct Reader {
    identity: Identity,
    client: Client,
    lease: acp_shared::ids::LeaseId,
    all: Vec<u8>,
    connections: u32,
}

impl Reader {
    async fn start(identity: &Identity, mut client: Client, lease: acp_shared::ids::LeaseId) -> Self {
        client.attach(lease, 0).await;
        Self { identity: identity.clone(), client, lease, all: Vec::new(), connections: 1 }
    }

    /// Reads one notice, if one arrives soon. Asserts that no output is repeated or skipped.
    async fn read_notice(&mut self) {
        let soon = tokio::time::timeout(Duration::from_millis(50), self.client.try_notice());
        let Ok(notice) = soon.await else { return };
        match notice {
            Some(Notice::Output { lease_id, offset, bytes }) if lease_id == self.lease => {
                assert_eq!(offset, self.all.len() as u64, "output out of order");
                self.all.extend(bytes);
                let offset = self.all.len() as u64;
                self.client.try_send(Request::Ack { lease_id, offset }).await;
            }
            Some(_) => {}
            None => self.reattach().await,
        }
    }

    /// Attaches on a new connection; retries if another upgrade breaks it first.
    async fn reattach(&mut self) {
        let offset = self.all.len() as u64;
        loop {
            self.client = reconnect(&self.identity).await;
            self.connections += 1;
            let attach = Request::Attach { lease_id: self.lease, from_offset: offset };
            match self.client.try_call(attach).await {
                Some(Ok(Reply::Attached(attached))) => {
                    return assert_eq!(attached.stdout_base, offset);
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }
}

#[tokio::test]
async fn turn_continues_during_upgrade() {
    const LINES: usize = 10_000;
    let (host, identity, mut gateway) = Host::with_identity().await;
    let (spec, info) = gateway.spawn_with_info(script(&counting_script(LINES))).await;
    let supervisor = gateway.welcome.supervisor_id.clone();
    let before = descriptors(&host);
    let mut reader = Reader::start(&identity, gateway, spec.lease_id).await;
    while reader.all.len() < LINES {
        reader.read_notice().await;
    }
    let mut command = host.cli_command(&["upgrade", "--json"]);
    let upgrading = std::thread::spawn(move || command.output().unwrap());
    while reader.all.len() < LINES * 10 {
        reader.read_notice().await;
    }
    let output = upgrading.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    let done: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(done["data"]["leases"], 1, "{done}");
    crate::schema::check(&done);
    assert!(reader.all == lines(1, LINES));
    assert!(reader.connections >= 2, "no reconnection during the turn");
    assert_eq!(reader.client.welcome.supervisor_id, supervisor, "the supervisor id changed");
    assert_eq!(reader.client.welcome.pid, host.pid());
    // The same agent accepts input, is closed and reaped.
    let now = reader.client.leases().await.remove(0);
    assert_eq!(
        (now.state, now.adapter_pid, now.wrapper_pid),
        (LeaseState::Open, info.adapter_pid, info.wrapper_pid)
    );
    host.assert_verdict(spec.lease_id, "owned");
    assert_eq!(host.json(&["status"])["warnings"], serde_json::json!([]));
    reader.client.input(spec.lease_id, 1, b"hello").await.unwrap();
    assert_eq!(reader.client.read(spec.lease_id, LINES as u64 * 10, 5).await, b"hello");
    await_descriptors(&host, before);
    reader.client.close(spec.lease_id).await;
    assert_eq!(reader.client.await_exit(spec.lease_id).await.0, ExitStatus::Exited(0));
    reader.client.state(spec.lease_id, LeaseState::Closed).await;
    assert!(pids_of(spec.lease_id).is_empty());
}

#[tokio::test]
async fn partially_written_input_is_written_once() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let flag = host.dir.path().join("read");
    let spec = script(&format!("until [ -e {} ]; do sleep 0.05; done; exec cat", flag.display()));
    gateway.spawn(&spec).await;
    let id = spec.lease_id;
    assert_eq!(gateway.input(id, 1, b"first\n").await, Ok(Reply::Written { seq: 1 }));
    // More than a pipe holds: the second message is partly written, the third waits.
    let large: Vec<u8> = (0..200_000).map(|i| b'a' + u8::try_from(i % 23).unwrap()).collect();
    gateway.send(Request::Input { lease_id: id, seq: 2, bytes: large.clone() }).await;
    gateway.send(Request::Input { lease_id: id, seq: 3, bytes: b"third\n".to_vec() }).await;
    while gateway.attach(id, 0).await.stdin_accepted < 3 {}
    upgrade(&host);

    let mut gateway = reconnect(&identity).await;
    let attached = gateway.attach(id, 0).await;
    assert_eq!((attached.stdin_written, attached.stdin_accepted), (1, 3));
    // Accepted input numbers keep their hashes.
    assert_eq!(gateway.input(id, 1, b"other\n").await.unwrap_err().code, RefusalCode::SeqConflict);
    assert_eq!(gateway.input(id, 1, b"first\n").await, Ok(Reply::Written { seq: 1 }));
    assert_eq!(gateway.input(id, 3, b"thirst\n").await.unwrap_err().code, RefusalCode::SeqConflict);
    assert_eq!(gateway.input(id, 5, b"x").await.unwrap_err().code, RefusalCode::SeqGap);
    std::fs::write(&flag, "").unwrap();
    assert_eq!(gateway.input(id, 2, &large).await, Ok(Reply::Written { seq: 2 }));
    assert_eq!(gateway.input(id, 3, b"third\n").await, Ok(Reply::Written { seq: 3 }));
    let want = [&b"first\n"[..], &large, b"third\n"].concat();
    assert!(gateway.read(id, 0, want.len()).await == want);
}

#[tokio::test]
async fn escalation_continues_after_upgrade() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let mut spec = script("trap '' TERM; echo up; while :; do sleep 0.1; done");
    spec.graces = Graces { eof_ms: 300, term_ms: 3_000, kill_ms: 5_000 };
    let info = gateway.spawn(&spec).await;
    gateway.attach(spec.lease_id, 0).await;
    gateway.read(spec.lease_id, 0, 3).await;
    let since = std::time::Instant::now();
    gateway.close(spec.lease_id).await;
    gateway.state(spec.lease_id, LeaseState::Closing).await;
    upgrade(&host);
    assert!(is_alive(info.adapter_pid.unwrap()), "killed within its grace");
    let mut gateway = reconnect(&identity).await;
    assert_eq!(gateway.attach(spec.lease_id, 3).await.state, LeaseState::Closing);
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert!(
        since.elapsed() >= Duration::from_millis(3_250),
        "the grace period was shortened: {:?}",
        since.elapsed()
    );
    assert!(
        since.elapsed() < Duration::from_secs(12),
        "the grace period started again: {:?}",
        since.elapsed()
    );
    assert!(pids_of(spec.lease_id).is_empty());
}

#[tokio::test]
async fn output_of_ended_lease_survives_upgrade() {
    let config = "ring_bytes_max = 8192\nreap_term_ms = 300";
    let (host, identity, mut gateway) = Host::serving_identity(config).await;
    let long = gateway.start(script("seq -w 1 9999; echo stderr >&2; exit 7")).await;
    let short = gateway.start(script("echo bye; exit 3")).await;
    gateway.attach(long.lease_id, 0).await;
    gateway.read(long.lease_id, 0, 8192).await;
    gateway.ack(long.lease_id, 5_000).await;
    while gateway.leases().await.iter().any(|lease| lease.state != LeaseState::Closed) {}
    upgrade(&host);
    let mut gateway = reconnect(&identity).await;
    let attached = gateway.attach(long.lease_id, 5_000).await;
    assert_eq!(
        (attached.state, attached.stdout_base, attached.stdout_eof),
        (LeaseState::Closed, 5_000, true)
    );
    let want: String = (1..=9_999).map(|i| format!("{i:04}\n")).collect();
    let all = gateway.read_and_ack(long.lease_id, 5_000, want.len() - 5_000).await;
    assert!(all == want.as_bytes()[5_000..]);
    assert_eq!(gateway.await_exit(long.lease_id).await, (ExitStatus::Exited(7), 49_995));
    gateway.log_with(&long.session_key, "| stderr\n").await;
    gateway.attach(short.lease_id, 0).await;
    assert_eq!(gateway.read(short.lease_id, 0, 4).await, b"bye\n");
    assert_eq!(gateway.await_exit(short.lease_id).await.0, ExitStatus::Exited(3));
}

#[tokio::test]
async fn terminals_survive_upgrade() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let parent = gateway.start(agent(&["cat"])).await;
    let (flag, done) = (host.dir.path().join("go"), terminal(&parent, "seq 1 1000; exit 4", 8));
    let text = format!("echo one; until [ -e {} ]; do sleep 0.05; done; echo two; exit 5", flag.display());
    let running = terminal(&parent, &text, 100);
    gateway.spawn(&done).await;
    gateway.await_exit(done.lease_id).await;
    gateway.state(done.lease_id, LeaseState::Closed).await;
    gateway.spawn(&running).await;
    while gateway.tail(running.lease_id).await.bytes != b"one\n" {}
    upgrade(&host);
    let mut gateway = reconnect(&identity).await;
    let want = Tail { bytes: b"99\n1000\n".to_vec(), truncated: true, exit: Some(ExitStatus::Exited(4)) };
    let mut want_whole = want.clone();
    want_whole.bytes = b"9\n1000\n".to_vec();
    let got = gateway.tail(done.lease_id).await;
    assert!(got == want || got == want_whole, "{got:?}");
    assert_eq!(gateway.tail(running.lease_id).await.bytes, b"one\n");
    std::fs::write(&flag, "").unwrap();
    assert_eq!(gateway.await_exit(running.lease_id).await.0, ExitStatus::Exited(5), "exit of the terminal");
    assert_eq!(gateway.tail(running.lease_id).await.bytes, b"one\ntwo\n");
    gateway.close_and_wait(parent.lease_id).await;
}

#[tokio::test]
async fn absent_gateway_keeps_grace_after_upgrade() {
    let host = Host::with_config("detached_grace_ms = 3000\nreap_term_ms = 300");
    let (here, away) = (host.gateway(), host.gateway());
    let (mut gateway, mut other) = (here.connect().await, away.connect().await);
    let (kept, lost) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&kept).await;
    other.spawn(&lost).await;
    drop(other);
    upgrade(&host);
    let mut gateway = reconnect(&here).await;
    assert!(!pids_of(lost.lease_id).is_empty(), "closed within its grace");
    eventually("the leases of the disconnected gateway are closed", || pids_of(lost.lease_id).is_empty());
    assert_eq!(pids_of(kept.lease_id).len(), 2);
    assert_eq!(gateway.attach(kept.lease_id, 0).await.state, LeaseState::Open);
}

#[tokio::test]
async fn upgrade_waits_for_pending_spawns() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let specs: Vec<_> = (0..8).map(|_| agent(&["cat"])).collect();
    gateway.send_spawns(&specs).await;
    upgrade(&host);
    // Refused spawns are retried with the same ids: no tree starts twice or without a lease.
    for spec in &specs {
        let spawn = async || reconnect(&identity).await.call(Request::Spawn(spec.clone())).await;
        while !matches!(spawn().await, Ok(Reply::Spawned(_))) {}
        assert_eq!(pids_of(spec.lease_id).len(), 2, "one wrapper, one agent");
    }
    let mut gateway = reconnect(&identity).await;
    assert!(gateway.leases().await.iter().all(|lease| lease.state == LeaseState::Open));
}

#[tokio::test]
async fn wrapper_death_during_pause_is_detected() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let (dying, living) = (script("trap '' TERM; sleep 300 & wait"), agent(&["cat"]));
    let info = gateway.spawn(&dying).await;
    gateway.spawn(&living).await;
    // The trial runs before the pause, the second check in it; the second run kills the wrapper.
    let text = format!(
        "[ -e $0.1 ] && kill -9 {}; touch $0.1; exec {} \"$@\"",
        info.wrapper_pid.unwrap(),
        binary().display()
    );
    let output = host.cli(&["upgrade", "--json", "--program", program(&host, &text).to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let mut gateway = reconnect(&identity).await;
    eventually("the tree is ended", || pids_of(dying.lease_id).is_empty());
    while !gateway.attach(dying.lease_id, 0).await.state.is_ended() {}
    assert_eq!(gateway.attach(dying.lease_id, 0).await.state, LeaseState::Lost);
    assert_eq!(pids_of(living.lease_id).len(), 2);
}

fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_acp-supervisor"))
}

/// Shell script as a program, next to the state directory.
fn program(host: &Host, text: &str) -> PathBuf {
    let path = host.dir.path().join(format!("program-{}", acp_shared::ids::LeaseId::mint()));
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn try_upgrade(host: &Host, to: &Path) -> Output {
    host.cli(&["upgrade", "--json", "--program", to.to_str().unwrap()])
}

/// Asserts that an upgrade failed with this message.
fn assert_failed(output: &Output, what: &str, message: &str) {
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &error["code"]),
        (Some(1), &"UPGRADE_FAILED".into()),
        "{what}: {error}"
    );
    assert!(error["message"].as_str().unwrap().contains(message), "{what}: {error}");
}

#[tokio::test]
async fn ten_upgrades_under_load_lose_nothing() {
    const LINES: usize = 20_000;
    let (host, identity, mut gateway) = Host::with_identity().await;
    let (loud, quiet) =
        (gateway.start(script(&counting_script(LINES))).await, gateway.start(agent(&["cat"])).await);
    gateway.input(quiet.lease_id, 1, b"x").await.unwrap();
    let before = descriptors(&host);
    let pid = host.pid();
    let mut reader = Reader::start(&identity, gateway, loud.lease_id).await;
    let mut command = host.cli_command(&["upgrade", "--json"]);
    let upgrading = std::thread::spawn(move || {
        for round in 0..10 {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{round}: {output:?}");
            assert_eq!(descriptors_of(pid, before + 2), before + 2, "descriptors grow");
        }
    });
    while reader.all.len() < LINES * 10 || !upgrading.is_finished() {
        reader.read_notice().await;
    }
    upgrading.join().unwrap();
    assert!(reader.all == lines(1, LINES));
    assert!(reader.connections > 5, "{}", reader.connections);
    await_descriptors(&host, before);
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let resumed = String::from_utf8_lossy(&arguments).matches("--resume-from-fd").count();
    assert_eq!(resumed, 1, "arguments do not grow");
}

/// Waits until at most `max` descriptors are open, since those of the last command close late.
fn descriptors_of(pid: i32, max: usize) -> usize {
    let mut count = usize::MAX;
    eventually("descriptors are closed", || {
        count = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        count <= max
    });
    count.max(max)
}

#[tokio::test]
async fn handover_leaks_no_descriptor_to_agents() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    gateway.spawn(&agent(&["cat"])).await;
    upgrade(&host);
    let mut gateway = reconnect(&identity).await;
    let (_, info) = gateway.spawn_with_info(agent(&["cat"])).await;
    let open = |pid: i32| {
        let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let mut all: Vec<_> = all.map(|e| e.file_name()).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(open(info.adapter_pid.unwrap()), ["0", "1", "2"]);
    let memory = |pid: i32| {
        let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let links = all.filter_map(|e| std::fs::read_link(e.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("acp-handover")).count()
    };
    assert_eq!((memory(info.wrapper_pid.unwrap()), memory(host.pid())), (0, 0), "the memory file is open");
}

#[tokio::test]
async fn lock_and_sigterm_work_after_upgrade() {
    let (mut host, identity, mut gateway) = Host::with_identity().await;
    let spec = gateway.start(agent(&["cat"])).await;
    upgrade(&host);
    let output = host.command().output().unwrap();
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["code"], "STATE_DIR_LOCKED");
    // A gateway, and an admin of another state directory, are refused.
    let mut gateway = reconnect(&identity).await;
    let body = Request::Upgrade { program: None, state_dir: host.state_dir().to_string_lossy().into_owned() };
    assert_eq!(gateway.call(body).await.unwrap_err().code, RefusalCode::NotAuthorised);
    let socket = host.socket();
    let args = ["--socket", socket.to_str().unwrap(), "upgrade", "--json", "--state-dir", "/nonexistent"];
    let output = std::process::Command::new(binary()).args(args).output().unwrap();
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["code"], "NOT_AUTHORISED", "{error}");
    // SIGTERM still stops the supervisor in order.
    assert_eq!(host.stop(), Some(0));
    assert!(pids_of(spec.lease_id).is_empty());
}

#[tokio::test]
async fn sigterm_during_upgrade_takes_effect() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    // The check in the pause sends SIGTERM to the supervisor. Then the real program replaces the script, which would
    // take the signal.
    let real = binary();
    let text = format!(
        "if [ -e $0.1 ]; then kill -TERM {}; ln -s {} $0.2; mv $0.2 $0; fi; touch $0.1; exec {} \"$@\"",
        host.pid(),
        real.display(),
        real.display()
    );
    let to = program(&host, &text);
    let _ = try_upgrade(&host, &to);
    assert_eq!(host.wait(), Some(0));
    assert!(pids_of(spec.lease_id).is_empty());
}

#[tokio::test]
async fn crash_after_upgrade_leaves_nothing() {
    let (mut host, identity, mut gateway) = Host::with_identity().await;
    let spec = script("trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 300' & sleep 300");
    let info = gateway.spawn(&spec).await;
    upgrade(&host);
    // The wrapper is killed under the new program, which is still a subreaper.
    let other = agent(&["cat"]);
    let mut gateway = reconnect(&identity).await;
    let second = gateway.spawn(&other).await;
    kill(second.wrapper_pid.unwrap(), Signal::KILL);
    eventually("the tree is ended", || pids_of(other.lease_id).is_empty());
    assert!(is_alive(info.wrapper_pid.unwrap()));
    host.crash();
    eventually("the tree is gone", || pids_of(spec.lease_id).is_empty());
    host.start();
    assert_eq!(host.json(&["leases", "show", &spec.lease_id.to_string()])["state"], "lost");
}
