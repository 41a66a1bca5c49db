//! Enrolment by token: real commands at the gateway and on the new host, and everything that may stand between them.

use crate::plane::{Cable, address_of};
use acp_shared::conn::{Conn, connect_pinned};
use acp_shared::enrol::{CertificateRequest, EnrolToken, GatewayMessage, HostMessage, REQUEST_BYTES_MAX};
use acp_shared::redact::Secret;
use acp_shared::tls::{ClientTls, ServerTls};
use acp_tests::cli::{Output, RunningCommand, run};
use acp_tests::house::{AGENT, GATEWAY, scripted};
use acp_tests::story::check_turn;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::World;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const WAITING: &str = "acp-supervisor enrol --gateway ";

/// A running `hosts enrol`, and what it printed.
struct Waiting {
    command: RunningCommand,
    gateway: String,
    token: String,
}

impl Waiting {
    fn start(world: &World, gateway: &str, host: &str, more: &[&str]) -> Self {
        let args = [&["hosts", "enrol", host, "--listen", "127.0.0.1:0"], more].concat();
        let mut command = world.follow(gateway, &args);
        let event = command.event(LONG).unwrap();
        assert_eq!(event["event"], "waiting", "{event}");
        let text = |key: &str| event[key].as_str().unwrap().to_owned();
        Self { gateway: text("gateway"), token: text("token"), command }
    }

    /// Command of a new host with this token.
    fn host(&self, world: &World, dir: &str) -> Command {
        enrol(world, dir, &self.gateway, &self.token)
    }

    /// Waits for the end, and returns the last line.
    fn end(self) -> (Option<i32>, Value) {
        let output = self.command.finish(LONG);
        (output.code, output.lines().pop().unwrap_or_default())
    }
}

fn enrol(world: &World, dir: &str, gateway: &str, token: &str) -> Command {
    let mut command = world.command("acp-supervisor");
    command.args(["enrol", "--json", "--gateway", gateway, "--token", token, "--dir"]).arg(world.path(dir));
    command
}

/// Name in the host's certificate; `None` without files. Panics if they do not fit together.
fn enrolled_as(world: &World, dir: &str) -> Option<String> {
    let path = |name: &str| world.path(dir).join("tls").join(name);
    path("").exists().then(|| {
        let tls = ServerTls::load(&path("host.crt"), &path("host.key"), &path("ca.crt")).unwrap();
        tls.identity().to_owned()
    })
}

fn message(output: &Output) -> String {
    let lines = output.lines();
    lines.last().and_then(|line| line["message"].as_str()).unwrap_or_default().to_owned()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn session_runs_on_a_host_that_was_enrolled_by_token() {
    let world = World::new();
    let cwd = world.dir("work/project").display().to_string();
    // As people run it: the first lines are the command for the new host and the token, the last ones are configuration.
    let mut command = world.command("acp-gateway");
    command
        .args(["hosts", "enrol", "big1", "--listen", "127.0.0.1:0", "--state-dir"])
        .arg(world.path(GATEWAY));
    let mut waiting = RunningCommand::start(&mut command);
    let line = waiting.line(LONG).unwrap();
    let gateway = line.strip_prefix(WAITING).unwrap_or_else(|| panic!("{line}"));
    let token = &waiting.line(LONG).unwrap();
    let mut there = enrol(&world, "big1-etc", gateway, token);
    there.args(["--listen", "127.0.0.1:0"]);
    if rustix::process::geteuid().is_root() {
        there.args(["--run-as-user", "root"]);
    }
    let enrolled = run(&mut there, LONG).ok().json();
    assert_eq!(
        (&enrolled["identity"], &enrolled["cell"]),
        (&"acp://acp/host/big1".into(), &"acp://acp/cell/main".into())
    );
    let printed = waiting.finish(LONG).ok();
    assert!(!printed.stdout.contains(token), "the token is printed once");
    assert_eq!(mode(&world.path("big1-etc/tls/host.key")), 0o600);
    for name in ["ca.key", "cell.key"] {
        assert_eq!(mode(&world.path(GATEWAY).join("tls").join(name)), 0o600, "{name}");
    }

    let config = world.path("big1-etc/supervisor.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("run_as_user", "allow_root = true\nrun_as_user")).unwrap();
    let (state, config) = (world.path("big1").display().to_string(), config.display().to_string());
    let checks = world
        .command("acp-supervisor")
        .args(["doctor", "--json", "--config", &config, "--state-dir", &state])
        .output();
    let checks = String::from_utf8(checks.unwrap().stdout).unwrap();
    assert!(checks.contains("acp://acp/host/big1, valid until"), "{checks}");
    let host = world
        .start_service("acp-supervisor", &["serve", "--state-dir", &state, "--config", &config, "--json"]);
    let address = address_of(&host).to_string();

    let remote = &printed.stdout[printed.stdout.find("[remote]").unwrap()..];
    assert!(remote.contains("127.0.0.1:7420"), "{remote}");
    let toml = format!("[supervisor]\nenabled = false\n{}", remote.replace("127.0.0.1:7420", &address));
    let agent = scripted(&world, &[], "approve-all");
    world.configure(GATEWAY, &toml, &BTreeMap::from([(AGENT, agent)]));
    let service = world.gateway(GATEWAY, &world.path("no-supervisor.sock"));
    let verb = |args: &[&str]| world.cli(GATEWAY, args).ok().json();
    let spawned = verb(&["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd, "--wait", "0"]);
    let key = spawned["session_key"].as_str().unwrap();
    check_turn(&world.prompt(GATEWAY, key, "hello"), "end_turn");
    assert_eq!(verb(&["sessions", "show", key])["host"], "big1");

    // Renewal: another certificate for the same name, used at once.
    let before = std::fs::read(world.path("big1-etc/tls/host.crt")).unwrap();
    let again = Waiting::start(&world, GATEWAY, "big1", &[]);
    let renewed = run(&mut again.host(&world, "big1-etc"), LONG).ok().json();
    assert_eq!(renewed["config"], Value::Null, "the configuration stays");
    assert_eq!(again.end().1["is_installed"], true);
    assert_ne!(std::fs::read(world.path("big1-etc/tls/host.crt")).unwrap(), before);
    service.kill9();
    let service = world.gateway(GATEWAY, &world.path("no-supervisor.sock"));
    check_turn(&world.prompt(GATEWAY, key, "after the renewal"), "end_turn");
    drop(verb(&["sessions", "close", key]));
    until(LONG, "the agent has ended", || world.living_lease(&host.socket(), key).is_none());
    assert_eq!(service.terminate(LONG), Some(0));
    assert_eq!(host.terminate(LONG), Some(0));
    assert_eq!(world.processes(), [], "no process is left");
}

#[test]
fn one_host_gets_the_name_that_the_gateway_chose() {
    let world = World::new();
    let big1 = Waiting::start(&world, "gw", "big1", &["--plane", "p"]);
    let big2 = Waiting::start(&world, "gw", "big2", &[]);
    let other = Waiting::start(&world, "other-gw", "big1", &[]);
    for (name, gateway, token) in [
        ("token of another name", &big1.gateway, big2.token.as_str()),
        ("server with another certificate", &other.gateway, &big1.token),
        ("secret of another token", &big1.gateway, &spliced(&big1.token, &big2.token)),
        ("no token", &big1.gateway, "acp-enrol-x"),
    ] {
        let output = run(&mut enrol(&world, "stranger", gateway, token), LONG);
        assert!(output.code.is_some_and(|code| code == 1 || code == 2), "{name}: {output:?}");
        assert_eq!(enrolled_as(&world, "stranger"), None, "{name}");
        assert!(!world.path("stranger/tls.new").exists(), "{name}: nothing is left");
    }

    // A relay that passes bytes on sees nothing, and two hosts with one token cannot both win.
    let cable = Cable::to(big1.gateway.parse().unwrap());
    let over = cable.address.to_string();
    let racing: Vec<RunningCommand> = ["one", "two"]
        .iter()
        .map(|dir| RunningCommand::start(&mut enrol(&world, dir, &over, &big1.token)))
        .collect();
    let codes: Vec<Option<i32>> = racing.into_iter().map(|command| command.finish(LONG).code).collect();
    let names = ["one", "two"].map(|dir| enrolled_as(&world, dir));
    assert!(codes == [Some(0), Some(1)] || codes == [Some(1), Some(0)], "{codes:?}");
    assert_eq!(names.iter().flatten().collect::<Vec<_>>(), ["acp://p/host/big1"], "{names:?}");
    let (gateway, token) = (big1.gateway.clone(), big1.token.clone());
    let (code, end) = big1.end();
    assert_eq!(
        (code, &end["event"], &end["is_installed"]),
        (Some(0), &"enrolled".into(), &true.into()),
        "{end}"
    );
    let used = run(&mut enrol(&world, "three", &gateway, &token), LONG);
    assert!(used.code == Some(1) && message(&used).contains("cannot connect"), "{used:?}");
    assert_eq!(enrolled_as(&world, "three"), None);

    assert_eq!(run(&mut big2.host(&world, "three"), LONG).ok().json()["identity"], "acp://p/host/big2");
    drop(big2.end());
    // Another plane with the same host: nothing is replaced without a word.
    let output = run(&mut other.host(&world, "three"), LONG);
    assert!(output.code == Some(1) && message(&output).contains("has another CA"), "{output:?}");
    assert_eq!(enrolled_as(&world, "three").as_deref(), Some("acp://p/host/big2"));
    drop(other.end());
}

/// Token with the fingerprint of one and the secret of another.
fn spliced(fingerprint: &str, secret: &str) -> String {
    let head = fingerprint.split_once('.').unwrap().0;
    format!("{head}.{}", secret.split_once('.').unwrap().1)
}

/// Sends one message to a waiting command, as anybody could who knows its certificate. Returns the answer, if there is one.
async fn answer_to(waiting: &Waiting, message: &HostMessage) -> Option<GatewayMessage> {
    let token: EnrolToken = waiting.token.parse().unwrap();
    let mut conn: Conn<GatewayMessage, HostMessage> =
        connect_pinned(&waiting.gateway, token.fingerprint).await.unwrap();
    // A refused message may close the connection while it is written.
    let _ = conn.sender.send(message).await;
    conn.receiver.recv().await.ok().flatten()
}

#[test]
fn hostile_and_slow_requests_do_not_use_the_token_up() {
    let world = World::new();
    let waiting = Waiting::start(&world, "gw", "big1", &[]);
    let token: EnrolToken = waiting.token.parse().unwrap();
    let request = |secret: Secret, key: usize| {
        HostMessage::Request(CertificateRequest { secret, public_key: vec![4; key], proof: vec![1; 70] })
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, message, want) in [
        ("wrong secret", request(Secret::new("guess".to_owned()), 65), Some("is not that of this enrolment")),
        ("no secret", request(Secret::default(), 65), Some("is not that of this enrolment")),
        ("no key", request(token.secret.clone(), 0), Some("is not signed with its key")),
        ("key of another", request(token.secret.clone(), 65), Some("is not signed with its key")),
        ("oversized", request(token.secret.clone(), REQUEST_BYTES_MAX), None),
        ("confirmation without a certificate", HostMessage::Installed, None),
    ] {
        let answer = runtime.block_on(answer_to(&waiting, &message));
        match (answer, want) {
            (Some(GatewayMessage::Refused(text)), Some(want)) => {
                assert!(text.contains(want), "{name}: {text}")
            }
            (None, None) => {}
            (answer, _) => panic!("{name}: {answer:?}"),
        }
    }
    let mut plain = TcpStream::connect(&waiting.gateway).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("HTTP"), "{rest:?}");

    // More than it serves at a time; each says nothing, and is closed in time.
    let silent: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(&waiting.gateway).unwrap()).collect();
    let enrolled = run(&mut waiting.host(&world, "etc"), LONG).ok().json();
    assert_eq!(enrolled["identity"], "acp://acp/host/big1");
    assert_eq!(waiting.end().0, Some(0));
    drop(silent);
}

#[test]
fn token_ends_with_its_time_and_with_the_command() {
    let world = World::new();
    let expiring = Waiting::start(&world, "gw", "big1", &["--valid-for", "1s"]);
    let (gateway, token) = (expiring.gateway.clone(), expiring.token.clone());
    let (code, end) = expiring.end();
    assert!(code == Some(1) && end["message"].as_str().unwrap().contains("has expired"), "{end}");
    let stopped = Waiting::start(&world, "gw", "big1", &[]);
    assert!(stopped.command.signal(rustix::process::Signal::INT));
    let both = [(gateway, token), (stopped.gateway.clone(), stopped.token.clone())];
    let (code, end) = stopped.end();
    assert!(
        code == Some(1) && end["message"].as_str().unwrap().contains("no certificate was issued"),
        "{end}"
    );
    for (gateway, token) in both {
        let late = run(&mut enrol(&world, "etc", &gateway, &token), LONG);
        assert!(late.code == Some(1) && message(&late).contains("nothing here was changed"), "{late:?}");
    }
    assert_eq!(enrolled_as(&world, "etc"), None);
}

#[test]
fn killed_enrolment_leaves_all_or_nothing() {
    let world = World::new();
    // The gateway's command, killed while it makes the CA: the keys that it wrote are used by the next one.
    let step = Duration::from_millis(4);
    for n in 0..12 {
        let mut command = world.follow("gw", &["hosts", "enrol", "big1", "--listen", "127.0.0.1:0"]);
        std::thread::sleep(step * n);
        command.kill9();
    }
    let waiting = Waiting::start(&world, "gw", "big1", &[]);
    let path = |name: &str| -> PathBuf { world.path("gw").join("tls").join(name) };
    assert!(ClientTls::load(&path("cell.crt"), &path("cell.key"), &path("ca.crt")).is_ok());
    let ca = std::fs::read(path("ca.crt")).unwrap();
    drop(run(&mut waiting.host(&world, "etc"), LONG).ok());
    drop(waiting.end());

    // The host's command, killed anywhere: the pair in place is a working one, the former or the new one.
    let started = Instant::now();
    let waiting = Waiting::start(&world, "gw", "big1", &[]);
    drop(run(&mut waiting.host(&world, "timed"), LONG).ok());
    drop(waiting.end());
    let whole = started.elapsed();
    for n in 0..12 {
        let waiting = Waiting::start(&world, "gw", "big1", &[]);
        let mut host = RunningCommand::start(&mut waiting.host(&world, "etc"));
        std::thread::sleep(whole * n / 16);
        host.kill9();
        assert_eq!(enrolled_as(&world, "etc").as_deref(), Some("acp://acp/host/big1"), "kill {n}");
        drop(waiting);
    }
    let last = Waiting::start(&world, "gw", "big1", &[]);
    drop(run(&mut last.host(&world, "etc"), LONG).ok());
    let names = std::fs::read_dir(world.path("etc")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["supervisor.toml", "tls"]);
    assert_eq!(std::fs::read(path("ca.crt")).unwrap(), ca, "the CA stays");
    until(SOON, "no process is left", || world.processes().is_empty());
}
