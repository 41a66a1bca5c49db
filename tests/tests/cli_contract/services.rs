//! Services: start, readiness, discovery and shutdown.

use acp_tests::cli::{RunningCommand, run};
use acp_tests::house::{AGENT, GATEWAY, House, scripted};
use acp_tests::processes::{self, ProcessHandle};
use acp_tests::scrape::get;
use acp_tests::service::Service;
use acp_tests::story::{check_chunks, check_turn, chunks};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::World;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Maximum duration of an unblocked shutdown on a busy machine with two cores.
const PROMPT: Duration = Duration::from_secs(5);

fn with_agent(name: &str) -> World {
    let world = World::new();
    world.configure(name, "", &BTreeMap::from([(AGENT, scripted(&world, &[], "ask"))]));
    world
}

fn pid(service: &Service, name: &str) -> i32 {
    let pid = service.ready[name].as_i64().unwrap_or_else(|| panic!("no {name} in {}", service.ready));
    i32::try_from(pid).unwrap()
}

fn socket(service: &Service, name: &str) -> PathBuf {
    PathBuf::from(service.ready[name].as_str().unwrap_or_else(|| panic!("no {name} in {}", service.ready)))
}

/// Ends `up` with Ctrl-C.
fn interrupt(up: Service) {
    assert!(up.signal(Signal::INT));
    assert_eq!(up.wait(LONG), Some(0));
}

#[test]
fn health_is_ready_only_while_the_supervisor_answers() {
    let mut house = House::new(&[]);
    let socket = house.gateway().socket();
    let health = || {
        let view = get(&socket, "/v1/health");
        (view["ok"].as_bool(), view["ready"].as_bool())
    };
    until(SOON, "gateway ready", || health() == (Some(true), Some(true)));
    house.kill_supervisor();
    until(SOON, "gateway live and not ready", || health() == (Some(true), Some(false)));
    house.start_supervisor();
    until(LONG, "gateway ready again", || health() == (Some(true), Some(true)));
    house.end();
}

/// `serve` prints one ready line with pid and socket, its sockets are private, and SIGTERM shuts it down.
#[test]
fn serve_prints_ready_line() {
    let house = House::new(&[]);
    for (service, pid) in
        [(house.supervisor(), house.supervisor().pid()), (house.gateway(), house.gateway().pid())]
    {
        assert_eq!(service.ready["event"], "ready");
        assert_eq!(service.ready["pid"], pid);
        let socket = service.socket();
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "nobody else: {mode:o} {}", socket.display());
        let dir = std::fs::metadata(socket.parent().unwrap()).unwrap().permissions().mode();
        assert_eq!(dir & 0o077, 0, "nobody else: {dir:o}");
    }
    assert_eq!(
        house.gateway().socket().parent(),
        Some(house.world.path(GATEWAY).canonicalize().unwrap().as_path())
    );
    let _ = house.spawn();
    house.end();
}

/// A gateway that is started before its supervisor reports that it waits, and waits.
#[test]
fn a_gateway_waits_for_its_supervisor() {
    let world = with_agent(GATEWAY);
    let socket = world.path("supervisor/supervisor.sock").to_string_lossy().into_owned();
    let config = world.path("gateway.toml").to_string_lossy().into_owned();
    let serve = ["serve", "--config", &config, "--supervisor-socket", &socket];
    let command = world.gateway_verb(GATEWAY, &serve);
    let log = world.path("waiting.log");
    let mut shell = std::process::Command::new("sh");
    // Standard error goes to a file that can be read while the gateway runs.
    shell.args(["-c", "exec \"$@\" 2>\"$LOG\"", "sh"]).arg(command.get_program()).args(command.get_args());
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.env("LOG", &log).current_dir(world.path("work"));
    let mut waiting = RunningCommand::start(&mut shell);
    until(SOON, "gateway logs that it waits", || {
        let text = std::fs::read_to_string(&log);
        text.is_ok_and(|text| text.to_lowercase().contains("waiting for the supervisor"))
    });
    let supervisor = world.supervisor();
    let ready = waiting.event(SOON).unwrap();
    assert_eq!((&ready["event"], &ready["pid"]), (&"ready".into(), &waiting.pid().into()));
    let key = world.spawn(GATEWAY, AGENT, "work/project");
    check_turn(&world.prompt(GATEWAY, &key, "hello"), "end_turn");
    assert!(waiting.signal(Signal::TERM));
    assert_eq!(waiting.finish(LONG).code, Some(0));
    assert_eq!(supervisor.terminate(LONG), Some(0));
}

/// A gateway that still waits can be ended.
#[test]
fn a_waiting_gateway_ends_on_sigterm() {
    let world = with_agent(GATEWAY);
    let mut waiting =
        world.follow(GATEWAY, &["serve", "--supervisor-socket", "/nonexistent/supervisor.sock"]);
    until(SOON, "gateway socket created", || world.path("gateway/gateway.sock").exists());
    assert!(waiting.signal(Signal::TERM));
    while waiting.line(LONG).is_some() {}
    assert_eq!(waiting.finish(LONG).code, Some(0));
}

/// A second service on the same state directory is refused, and the first one is not affected.
#[test]
fn a_second_service_on_the_same_state_is_refused() {
    let (house, key) = House::new(&[]).with_session();
    let socket = house.socket().to_string_lossy().into_owned();
    for verb in ["serve", "up"] {
        let second = house.cli(&[verb, "--supervisor-socket", &socket]);
        assert_eq!(second.code, Some(1), "{second:?}");
        let message = second.error()["message"].as_str().unwrap_or_default().to_owned();
        assert!(
            message.contains(&house.gateway().pid().to_string()),
            "the message names the owner's pid: {message}"
        );
    }
    let mut command = house.world.command("acp-supervisor");
    command.arg("serve").arg("--state-dir").arg(house.world.path("supervisor")).arg("--json");
    let second = run(&mut command, SOON);
    assert_eq!((second.code, second.error_code().as_str()), (Some(1), "STATE_DIR_LOCKED"));
    check_turn(&house.prompt(&key, "still here"), "end_turn");
    house.end();
}

/// SIGTERM during a turn: the gateway shuts down, the agent continues, and the next gateway takes the turn over.
#[test]
fn gateway_shutdown_during_turn_loses_no_output() {
    let world = with_agent(GATEWAY);
    let supervisor = world.supervisor();
    let gateway = world.gateway(GATEWAY, &supervisor.socket());
    let key = world.spawn(GATEWAY, AGENT, "work/project");
    let mut turn = world.follow(GATEWAY, &["prompt", &key, "chunks 200 pace_ms=10"]);
    let mut events = turn.events_until(SOON, |event| event["type"] == "text_delta");
    assert_eq!(gateway.terminate(LONG), Some(0));
    let gateway = world.gateway(GATEWAY, &supervisor.socket());
    events.extend(turn.finish(LONG).ok().lines());
    check_turn(&events, "end_turn");
    check_chunks(&chunks(&events), 200, 16);
    assert_eq!(gateway.terminate(LONG), Some(0));
    assert_eq!(supervisor.terminate(LONG), Some(0));
    assert_eq!(world.processes(), []);
}

/// `up` prints one ready line for both services; Ctrl-C ends both and leaves no process.
#[test]
fn up_starts_everything_and_ctrl_c_ends_it() {
    let world = with_agent("home");
    let up = world.up("home");
    assert_eq!(pid(&up, "gateway_pid"), up.pid());
    let supervisor = pid(&up, "supervisor_pid");
    let sid = processes::read(supervisor).unwrap().sid;
    assert_eq!(sid, supervisor, "H17: the supervisor is a session of its own, out of reach of Ctrl-C");
    assert_eq!(world.leases(&socket(&up, "supervisor_socket")).len(), 0);
    let key = world.spawn("home", AGENT, "work/project");
    check_turn(&world.prompt("home", &key, "hello"), "end_turn");
    let mut turn =
        world.follow("home", &["prompt", &key, "spawn_setsid\nignore_term\nchunks 100000 pace_ms=10"]);
    let _ = turn.events_until(SOON, |event| event["text"].as_str().is_some_and(|t| t.starts_with("000002")));
    interrupt(up);
    turn.kill9();
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// A supervisor that `up` started outlives a SIGKILL of the gateway, and the next `up` finds it.
#[test]
fn up_finds_the_surviving_supervisor() {
    let world = with_agent("home");
    let up = world.up("home");
    let supervisor = pid(&up, "supervisor_pid");
    let key = world.spawn("home", AGENT, "work/project");
    let mut turn = world.follow("home", &["prompt", &key, "chunks 300 pace_ms=10"]);
    let mut events = turn.events_until(SOON, |event| event["type"] == "text_delta");
    up.kill9();
    assert!(processes::is_alive(supervisor));
    let up = world.up("home");
    assert_eq!(pid(&up, "supervisor_pid"), supervisor);
    events.extend(turn.finish(LONG).ok().lines());
    check_turn(&events, "end_turn");
    check_chunks(&chunks(&events), 300, 16);
    assert_eq!(up.terminate(LONG), Some(0));
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// If the supervisor of `up` was killed, the next `up` starts another one, and the session continues.
#[test]
fn up_replaces_a_supervisor_that_is_gone() {
    let world = with_agent("home");
    let up = world.up("home");
    let key = world.spawn("home", AGENT, "work/project");
    check_turn(&world.prompt("home", &key, "one"), "end_turn");
    let supervisor = ProcessHandle::open(pid(&up, "supervisor_pid")).unwrap();
    let old = supervisor.pid;
    up.kill9();
    assert!(supervisor.kill());
    until(LONG, "agents gone", || world.processes().is_empty());
    let up = world.up("home");
    assert_ne!(pid(&up, "supervisor_pid"), old);
    check_turn(&world.prompt("home", &key, "two"), "end_turn");
    interrupt(up);
    assert_eq!(world.processes(), []);
}

/// H17: `up` does not end a supervisor that other gateways use.
#[test]
fn up_does_not_end_supervisor_in_use_by_others() {
    let world = with_agent("home");
    world.configure("guest", "", &BTreeMap::from([(AGENT, scripted(&world, &[], "ask"))]));
    let up = world.up("home");
    let (supervisor, shared) = (pid(&up, "supervisor_pid"), socket(&up, "supervisor_socket"));
    let guest = world.gateway("guest", &shared);
    let key = world.spawn("guest", AGENT, "work/guest");
    check_turn(&world.prompt("guest", &key, "hello"), "end_turn");
    let lease = world.living_lease(&shared, &key).unwrap();
    interrupt(up);
    assert!(processes::is_alive(supervisor), "the guest's supervisor goes on");
    assert_eq!(world.living_lease(&shared, &key).map(|now| now.adapter_pid()), Some(lease.adapter_pid()));
    check_turn(&world.prompt("guest", &key, "still here"), "end_turn");
    let _ = world.cli("guest", &["sessions", "close", &key]).ok();
    assert_eq!(guest.terminate(LONG), Some(0));
    // The supervisor is unused now: the next `up` finds it and ends it.
    until(LONG, "guest agent gone", || lease.processes().is_empty());
    let up = world.up("home");
    assert_eq!(pid(&up, "supervisor_pid"), supervisor);
    interrupt(up);
    assert_eq!(world.processes(), []);
}

/// H17: `up` uses a supervisor of another state directory and never ends it.
#[test]
fn up_never_ends_a_supervisor_of_another_state_directory() {
    let world = with_agent("home");
    let supervisor = world.supervisor();
    let socket = supervisor.socket().to_string_lossy().into_owned();
    let config = world.path("home.toml").to_string_lossy().into_owned();
    let args = ["up", "--config", &config, "--supervisor-socket", &socket];
    let up = world.start_command(world.gateway_verb("home", &args));
    assert_eq!(pid(&up, "supervisor_pid"), supervisor.pid());
    let key = world.spawn("home", AGENT, "work/project");
    check_turn(&world.prompt("home", &key, "hello"), "end_turn");
    interrupt(up);
    assert!(processes::is_alive(supervisor.pid()));
    assert_eq!(supervisor.terminate(LONG), Some(0));
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// An open chat and open streams do not delay the shutdown after Ctrl-C on `up`.
#[test]
fn up_ends_promptly_with_open_streams() {
    let world = with_agent("home");
    let up = world.up("home");
    let key = world.spawn("home", AGENT, "work/project");
    let mut turn = world.follow("home", &["prompt", &key, "chunks 100000 pace_ms=10"]);
    let _ = turn.events_until(SOON, |event| event["type"] == "text_delta");
    let cwd = world.dir("work/chat").to_string_lossy().into_owned();
    let args = ["chat", "--agent", AGENT, "--cwd", &cwd];
    let (mut chat, mut typing) = RunningCommand::start_piped(&mut world.gateway_verb("home", &args));
    typing.write_all(b"chunks 100000 pace_ms=10\n").unwrap();
    let _ = chat.events_until(SOON, |event| event["type"] == "text_delta");
    let mut follower = world.follow("home", &["sessions", "history", &key, "--follow"]);
    let start = Instant::now();
    interrupt(up);
    let took = start.elapsed();
    assert!(took < PROMPT, "it took {took:?}");
    for client in [&mut turn, &mut chat, &mut follower] {
        client.kill9();
    }
    assert_eq!(world.processes(), [], "nothing is left alive");
}
