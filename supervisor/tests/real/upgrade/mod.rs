//! The planned restart (H14, case 72): another program goes on in the same process, and nobody notices.

mod broken;
mod kept;

use crate::common::{Client, Host, Identity, agent, eventually, kill, marked, runs, script, terminal};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Graces, LeaseState, Notice, RefusalCode, Reply, Request, Tail};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

/// Prints numbered lines of ten bytes: `count` of them, with a pause after each hundred.
fn counting(count: usize) -> String {
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

/// The supervisor's descriptors once nobody is connected any more.
fn settled(host: &Host, want: usize) {
    eventually("no descriptor remains", || descriptors(host) <= want);
}

/// Connects again as a gateway does: until it is let in.
pub(crate) async fn again(identity: &Identity) -> Client {
    loop {
        if let Ok(client) = identity.try_connect().await {
            return client;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reads a lease's output from `from` on and acknowledges it, over however many connections that takes.
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

    /// One piece, if one comes soon. Whatever is sent again or skipped fails the test.
    async fn piece(&mut self) {
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
            None => self.attach_again().await,
        }
    }

    /// On a new connection; the next upgrade may break that one too before it has attached.
    async fn attach_again(&mut self) {
        let offset = self.all.len() as u64;
        loop {
            self.client = again(&self.identity).await;
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
async fn a_turn_goes_on_over_an_upgrade() {
    const LINES: usize = 10_000;
    let (host, identity, mut gateway) = Host::with_identity().await;
    let (spec, info) = gateway.start_known(script(&counting(LINES))).await;
    let supervisor = gateway.welcome.supervisor_id.clone();
    let before = descriptors(&host);
    let mut reader = Reader::start(&identity, gateway, spec.lease_id).await;
    while reader.all.len() < LINES {
        reader.piece().await;
    }
    let mut command = host.cli_command(&["upgrade", "--json"]);
    let upgrading = std::thread::spawn(move || command.output().unwrap());
    while reader.all.len() < LINES * 10 {
        reader.piece().await;
    }
    let output = upgrading.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    let done: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(done["data"]["leases"], 1, "{done}");
    crate::schema::check(&done);
    assert!(reader.all == lines(1, LINES));
    assert!(reader.connections >= 2, "the upgrade came after the turn");
    assert_eq!(reader.client.welcome.supervisor_id, supervisor, "gateways see the same supervisor");
    assert_eq!(reader.client.welcome.pid, host.pid());
    // The same agent, which can still be spoken to, closed, and is collected.
    let now = reader.client.leases().await.remove(0);
    assert_eq!(
        (now.state, now.adapter_pid, now.wrapper_pid),
        (LeaseState::Open, info.adapter_pid, info.wrapper_pid)
    );
    host.verified(spec.lease_id, "owned");
    assert_eq!(host.json(&["status"])["warnings"], serde_json::json!([]));
    reader.client.input(spec.lease_id, 1, b"hello").await.unwrap();
    assert_eq!(reader.client.read(spec.lease_id, LINES as u64 * 10, 5).await, b"hello");
    settled(&host, before);
    reader.client.close(spec.lease_id).await;
    assert_eq!(reader.client.exited(spec.lease_id).await.0, ExitStatus::Exited(0));
    reader.client.state(spec.lease_id, LeaseState::Closed).await;
    assert!(marked(spec.lease_id).is_empty());
}

#[tokio::test]
async fn input_that_is_half_in_the_pipe_is_written_once() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let flag = host.dir.path().join("read");
    let spec = script(&format!("until [ -e {} ]; do sleep 0.05; done; exec cat", flag.display()));
    gateway.spawn(&spec).await;
    let id = spec.lease_id;
    assert_eq!(gateway.input(id, 1, b"first\n").await, Ok(Reply::Written { seq: 1 }));
    // More than a pipe holds: the second message is in it in part, the third waits.
    let large: Vec<u8> = (0..200_000).map(|i| b'a' + u8::try_from(i % 23).unwrap()).collect();
    gateway.send(Request::Input { lease_id: id, seq: 2, bytes: large.clone() }).await;
    gateway.send(Request::Input { lease_id: id, seq: 3, bytes: b"third\n".to_vec() }).await;
    while gateway.attach(id, 0).await.stdin_accepted < 3 {}
    upgrade(&host);

    let mut gateway = again(&identity).await;
    let attached = gateway.attach(id, 0).await;
    assert_eq!((attached.stdin_written, attached.stdin_accepted), (1, 3));
    // The numbers keep their hashes, and what was accepted is known.
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
async fn an_end_goes_on_where_it_was() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let mut spec = script("trap '' TERM; echo up; while :; do sleep 0.1; done");
    spec.graces = Graces { eof_ms: 300, term_ms: 3_000, kill_ms: 5_000 };
    let info = gateway.spawn(&spec).await;
    gateway.attach(spec.lease_id, 0).await;
    gateway.read(spec.lease_id, 0, 3).await;
    let asked = std::time::Instant::now();
    gateway.close(spec.lease_id).await;
    gateway.state(spec.lease_id, LeaseState::Closing).await;
    upgrade(&host);
    assert!(runs(info.adapter_pid.unwrap()), "its grace period has not expired");
    let mut gateway = again(&identity).await;
    assert_eq!(gateway.attach(spec.lease_id, 3).await.state, LeaseState::Closing);
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert!(
        asked.elapsed() >= Duration::from_millis(3_250),
        "the grace period was shortened: {:?}",
        asked.elapsed()
    );
    assert!(
        asked.elapsed() < Duration::from_secs(12),
        "the grace period started again: {:?}",
        asked.elapsed()
    );
    assert!(marked(spec.lease_id).is_empty());
}

#[tokio::test]
async fn what_an_ended_lease_said_is_still_there() {
    let config = "ring_bytes_max = 8192\nreap_term_ms = 300";
    let (host, identity, mut gateway) = Host::serving_identity(config).await;
    let long = gateway.start(script("seq -w 1 9999; echo last words >&2; exit 7")).await;
    let short = gateway.start(script("echo bye; exit 3")).await;
    gateway.attach(long.lease_id, 0).await;
    gateway.read(long.lease_id, 0, 8192).await;
    gateway.ack(long.lease_id, 5_000).await;
    while gateway.leases().await.iter().any(|lease| lease.state != LeaseState::Closed) {}
    upgrade(&host);
    let mut gateway = again(&identity).await;
    let attached = gateway.attach(long.lease_id, 5_000).await;
    assert_eq!(
        (attached.state, attached.stdout_base, attached.stdout_eof),
        (LeaseState::Closed, 5_000, true)
    );
    let want: String = (1..=9_999).map(|i| format!("{i:04}\n")).collect();
    let all = gateway.read_and_ack(long.lease_id, 5_000, want.len() - 5_000).await;
    assert!(all == want.as_bytes()[5_000..]);
    assert_eq!(gateway.exited(long.lease_id).await, (ExitStatus::Exited(7), 49_995));
    gateway.log_with(&long.session_key, "| last words\n").await;
    gateway.attach(short.lease_id, 0).await;
    assert_eq!(gateway.read(short.lease_id, 0, 4).await, b"bye\n");
    assert_eq!(gateway.exited(short.lease_id).await.0, ExitStatus::Exited(3));
}

#[tokio::test]
async fn terminals_go_on_and_ended_ones_are_remembered() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let parent = gateway.start(agent(&["cat"])).await;
    let (flag, done) = (host.dir.path().join("go"), terminal(&parent, "seq 1 1000; exit 4", 8));
    let text = format!("echo one; until [ -e {} ]; do sleep 0.05; done; echo two; exit 5", flag.display());
    let running = terminal(&parent, &text, 100);
    gateway.spawn(&done).await;
    gateway.exited(done.lease_id).await;
    gateway.state(done.lease_id, LeaseState::Closed).await;
    gateway.spawn(&running).await;
    while gateway.tail(running.lease_id).await.bytes != b"one\n" {}
    upgrade(&host);
    let mut gateway = again(&identity).await;
    let want = Tail { bytes: b"99\n1000\n".to_vec(), truncated: true, exit: Some(ExitStatus::Exited(4)) };
    let mut want_whole = want.clone();
    want_whole.bytes = b"9\n1000\n".to_vec();
    let got = gateway.tail(done.lease_id).await;
    assert!(got == want || got == want_whole, "{got:?}");
    assert_eq!(gateway.tail(running.lease_id).await.bytes, b"one\n");
    std::fs::write(&flag, "").unwrap();
    assert_eq!(gateway.exited(running.lease_id).await.0, ExitStatus::Exited(5), "its gateway is notified");
    assert_eq!(gateway.tail(running.lease_id).await.bytes, b"one\ntwo\n");
    gateway.end(parent.lease_id).await;
}

#[tokio::test]
async fn a_gateway_that_is_away_has_its_grace() {
    let host = Host::with_config("detached_grace_ms = 3000\nreap_term_ms = 300");
    let (here, away) = (host.gateway(), host.gateway());
    let (mut gateway, mut other) = (here.connect().await, away.connect().await);
    let (kept, lost) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&kept).await;
    other.spawn(&lost).await;
    drop(other);
    upgrade(&host);
    let mut gateway = again(&here).await;
    assert!(!marked(lost.lease_id).is_empty(), "its grace period has not expired");
    eventually("the leases of the disconnected gateway are closed", || marked(lost.lease_id).is_empty());
    assert_eq!(marked(kept.lease_id).len(), 2);
    assert_eq!(gateway.attach(kept.lease_id, 0).await.state, LeaseState::Open);
}

#[tokio::test]
async fn spawns_on_their_way_are_waited_for() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let specs: Vec<_> = (0..8).map(|_| agent(&["cat"])).collect();
    gateway.send_spawns(&specs).await;
    upgrade(&host);
    // What was refused meanwhile is tried again, under the same ids: no tree is started twice or without a lease.
    for spec in &specs {
        let spawn = async || again(&identity).await.call(Request::Spawn(spec.clone())).await;
        while !matches!(spawn().await, Ok(Reply::Spawned(_))) {}
        assert_eq!(marked(spec.lease_id).len(), 2, "one wrapper, one agent");
    }
    let mut gateway = again(&identity).await;
    assert!(gateway.leases().await.iter().all(|lease| lease.state == LeaseState::Open));
}

#[tokio::test]
async fn a_wrapper_that_dies_in_the_pause_is_noticed() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let (dies, lives) = (script("trap '' TERM; sleep 300 & wait"), agent(&["cat"]));
    let info = gateway.spawn(&dies).await;
    gateway.spawn(&lives).await;
    // The trial runs while everything goes on, the proof in the pause: its second run kills the wrapper.
    let text = format!(
        "[ -e $0.1 ] && kill -9 {}; touch $0.1; exec {} \"$@\"",
        info.wrapper_pid.unwrap(),
        binary().display()
    );
    let output = host.cli(&["upgrade", "--json", "--program", program(&host, &text).to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let mut gateway = again(&identity).await;
    eventually("its tree is ended", || marked(dies.lease_id).is_empty());
    while !gateway.attach(dies.lease_id, 0).await.state.is_ended() {}
    assert_eq!(gateway.attach(dies.lease_id, 0).await.state, LeaseState::Lost);
    assert_eq!(marked(lives.lease_id).len(), 2);
}

fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_acp-supervisor"))
}

/// A program of the shell beside the state directory.
fn program(host: &Host, text: &str) -> PathBuf {
    let path = host.dir.path().join(format!("program-{}", acp_shared::ids::LeaseId::mint()));
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn try_upgrade(host: &Host, to: &Path) -> Output {
    host.cli(&["upgrade", "--json", "--program", to.to_str().unwrap()])
}

/// An upgrade that fails and says so.
fn assert_failed(output: &Output, what: &str, told: &str) {
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &error["code"]),
        (Some(1), &"UPGRADE_FAILED".into()),
        "{what}: {error}"
    );
    assert!(error["message"].as_str().unwrap().contains(told), "{what}: {error}");
}

#[tokio::test]
async fn ten_upgrades_in_a_row_under_load() {
    const LINES: usize = 20_000;
    let (host, identity, mut gateway) = Host::with_identity().await;
    let (loud, quiet) = (gateway.start(script(&counting(LINES))).await, gateway.start(agent(&["cat"])).await);
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
        reader.piece().await;
    }
    upgrading.join().unwrap();
    assert!(reader.all == lines(1, LINES));
    assert!(reader.connections > 5, "{}", reader.connections);
    settled(&host, before);
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let resumed = String::from_utf8_lossy(&arguments).matches("--resume-from-fd").count();
    assert_eq!(resumed, 1, "arguments do not grow");
}

/// At most `max`, or how many there are: those of the command that just ended may still be there.
fn descriptors_of(pid: i32, max: usize) -> usize {
    let mut count = usize::MAX;
    eventually("descriptors are closed", || {
        count = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        count <= max
    });
    count.max(max)
}

#[tokio::test]
async fn nothing_of_a_handover_reaches_an_agent() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    gateway.spawn(&agent(&["cat"])).await;
    upgrade(&host);
    let mut gateway = again(&identity).await;
    let (_, info) = gateway.start_known(agent(&["cat"])).await;
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
    assert_eq!((memory(info.wrapper_pid.unwrap()), memory(host.pid())), (0, 0), "the memory file is gone");
}

#[tokio::test]
async fn the_lock_and_the_end_stay_what_they_were() {
    let (mut host, identity, mut gateway) = Host::with_identity().await;
    let spec = gateway.start(agent(&["cat"])).await;
    upgrade(&host);
    let output = host.command().output().unwrap();
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["code"], "STATE_DIR_LOCKED");
    // An admin of another state directory is refused, and a gateway.
    let mut gateway = again(&identity).await;
    let body = Request::Upgrade { program: None, state_dir: host.state_dir().to_string_lossy().into_owned() };
    assert_eq!(gateway.call(body).await.unwrap_err().code, RefusalCode::NotAuthorised);
    let socket = host.socket();
    let args = ["--socket", socket.to_str().unwrap(), "upgrade", "--json", "--state-dir", "/nonexistent"];
    let output = std::process::Command::new(binary()).args(args).output().unwrap();
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["code"], "NOT_AUTHORISED", "{error}");
    // SIGTERM still ends it in order.
    assert_eq!(host.stop(), Some(0));
    assert!(marked(spec.lease_id).is_empty());
}

#[tokio::test]
async fn an_end_that_is_asked_for_meanwhile_comes() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    // The proof, in the pause, has the supervisor asked to end. Then the shell, which would take the signal, makes
    // room for the program itself.
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
    assert!(marked(spec.lease_id).is_empty());
}

#[tokio::test]
async fn a_crash_after_an_upgrade_leaves_nothing() {
    let (mut host, identity, mut gateway) = Host::with_identity().await;
    let spec = script("trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 300' & sleep 300");
    let info = gateway.spawn(&spec).await;
    upgrade(&host);
    // A wrapper alone, under the new image: a subreaper still.
    let other = agent(&["cat"]);
    let mut gateway = again(&identity).await;
    let second = gateway.spawn(&other).await;
    kill(second.wrapper_pid.unwrap(), Signal::KILL);
    eventually("its tree is ended", || marked(other.lease_id).is_empty());
    assert!(runs(info.wrapper_pid.unwrap()));
    host.crash();
    eventually("the tree is gone", || marked(spec.lease_id).is_empty());
    host.start();
    assert_eq!(host.json(&["leases", "show", &spec.lease_id.to_string()])["state"], "lost");
}
