//! `up --detach`, `down`, `status` and `logs --service`.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::cli::{Output, RunningCommand};
use acp_tests::house::{AGENT, House, scripted};
use acp_tests::processes::{self, ProcessHandle};
use acp_tests::story::check_turn;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{GATEWAY_DB, World};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Maximum duration of an unblocked shutdown on a busy machine with two cores.
const PROMPT: Duration = Duration::from_secs(5);

/// World with a configuration `home.toml`, which is passed to `up`.
fn with_agent() -> World {
    let world = World::new();
    world.configure("home", "", &BTreeMap::from([(AGENT, scripted(&world, &[], "ask"))]));
    world
}

fn up(world: &World) -> Value {
    up_with(world, &[]).ok().json()
}

fn up_with(world: &World, args: &[&str]) -> Output {
    let config = world.path("home.toml").to_string_lossy().into_owned();
    world.cli("home", &[&["up", "-d", "--config", &config], args].concat())
}

fn kill(process: &Value) {
    assert!(ProcessHandle::open(pid(process)).unwrap().kill());
}

fn pid(value: &Value) -> i32 {
    i32::try_from(value.as_i64().unwrap_or_else(|| panic!("no pid: {value}"))).unwrap()
}

/// `up -d` returns when both services are ready; a second one changes nothing; `status` and `logs` describe them; `down` ends
/// both, also when nothing runs any more.
#[test]
fn detached_up_runs_until_down() {
    let world = with_agent();
    let ready = up(&world);
    let (gateway, supervisor) = (pid(&ready["gateway_pid"]), pid(&ready["supervisor_pid"]));
    assert_eq!(ready["already_running"], false, "{ready}");
    assert_eq!(processes::read(gateway).unwrap().sid, gateway, "out of reach of the terminal");
    let shown = acp_tests::cli::run(
        world.command("acp-gateway").args(["up", "-d", "--state-dir"]).arg(world.path("home")),
        acp_tests::wait::LONG,
    );
    assert!(shown.stdout.contains("\nNext:\n") && !shown.stdout.contains("another terminal"), "{shown:#?}");
    let again = up(&world);
    assert_eq!((&again["already_running"], pid(&again["gateway_pid"])), (&true.into(), gateway));
    let second = world.cli("home", &["up"]);
    assert_eq!((second.code, second.error_code().as_str()), (Some(1), "ACP_STORE_UNAVAILABLE"));
    assert!(second.error()["message"].as_str().unwrap().contains(&format!("pid {gateway}")), "{second:?}");
    let key = world.spawn("home", AGENT, "work/project");
    check_turn(&world.prompt("home", &key, "hello"), "end_turn");
    let status = world.cli("home", &["status"]).ok().json();
    assert_eq!((&status["ok"], &status["gateway"]["started_by"]), (&true.into(), &"up".into()));
    assert_eq!(pid(&status["supervisor"]["pid"]), supervisor);
    assert_eq!(status["sessions"]["idle"], 1, "{status}");
    let lines = world.cli("home", &["logs", "--service", "-n", "1000"]).ok().lines();
    for (from, text) in [("gateway", "gateway started"), ("supervisor", "supervisor ready")] {
        let is = |line: &&Value| line["from"] == from && line["text"].as_str().unwrap().contains(text);
        assert!(lines.iter().any(|line| is(&line)), "{text}: {lines:?}");
    }
    let down = world.cli("home", &["down"]).ok().json();
    assert_eq!((pid(&down["gateway_pid"]), pid(&down["supervisor_pid"])), (gateway, supervisor));
    assert_eq!(world.processes(), [], "nothing is left alive");
    let down = world.cli("home", &["down"]).ok().json();
    assert_eq!((&down["gateway_pid"], &down["supervisor_pid"]), (&Value::Null, &Value::Null));
    let status = world.cli("home", &["status"]);
    assert_eq!((status.code, &status.json()["ok"]), (Some(1), &false.into()));
}

/// SIGHUP applies a new log level to a gateway in the background, and in the foreground.
#[test]
fn log_level_of_detached_up_is_reloaded() {
    let world = with_agent();
    check_reload(&world, pid(&up(&world)["gateway_pid"]));
    let world = with_agent();
    check_reload(&world, world.up("home").pid());
}

fn check_reload(world: &World, gateway: i32) {
    let gateway = ProcessHandle::open(gateway).unwrap();
    let mut log = world.follow("home", &["logs", "--service=gateway", "--follow"]);
    let text = std::fs::read_to_string(world.path("home.toml")).unwrap();
    world.write("home.toml", &format!("[log]\nlevel = \"debug\"\n{text}"));
    assert!(gateway.signal(Signal::HUP));
    let reloaded = |line: &Value| line["text"].as_str().is_some_and(|text| text.contains("keys applied"));
    let _ = log.events_until(LONG, reloaded);
    let key = world.spawn("home", AGENT, "work/project");
    check_turn(&world.prompt("home", &key, "hello"), "end_turn");
    let debug = |line: &Value| line["text"].as_str().is_some_and(|text| text.contains("DEBUG"));
    let _ = log.events_until(LONG, debug);
    assert!(log.signal(Signal::INT));
    assert_eq!(log.finish(SOON).code, Some(0), "Ctrl-C ends the follower");
    let _ = world.cli("home", &["down"]).ok();
    assert_eq!(world.processes(), []);
}

/// After a SIGKILL of the gateway its supervisor and agents go on; `status` says so, and `down` ends them.
#[test]
fn down_ends_what_a_killed_gateway_left() {
    let world = with_agent();
    let ready = up(&world);
    let key = world.spawn("home", AGENT, "work/project");
    check_turn(&world.prompt("home", &key, "hello"), "end_turn");
    kill(&ready["gateway_pid"]);
    let status = || world.cli("home", &["status"]);
    until(SOON, "gateway gone", || status().json()["detail"] == "not running");
    assert_eq!((status().code, &status().json()["supervisor"]["pid"]), (Some(1), &ready["supervisor_pid"]));
    let start = Instant::now();
    let down = world.cli("home", &["down"]).ok().json();
    let took = start.elapsed();
    assert!(took < PROMPT, "it took {took:?}");
    assert_eq!((&down["gateway_pid"], &down["supervisor_pid"]), (&Value::Null, &ready["supervisor_pid"]));
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// After a kill of the gateway, the supervisor at another socket is still the one of this state directory: `status`, `init` and
/// `down` find it, and `up` does not start another one.
#[test]
fn surviving_supervisor_at_another_socket_is_found() {
    let world = with_agent();
    let socket = world.path("home/supervisor/other.sock").to_string_lossy().into_owned();
    let ready = up_with(&world, &["--supervisor-socket", &socket]).ok().json();
    kill(&ready["gateway_pid"]);
    let refused = up_with(&world, &[]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let message = refused.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&format!("--supervisor-socket {socket}")), "{message}");
    let status = world.cli("home", &["status"]).json();
    assert_eq!(status["supervisor"]["pid"], ready["supervisor_pid"], "{status}");
    let init = world.cli("home", &["init", "--yes", "--agent", "demo"]);
    let message = init.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("its supervisor runs without a gateway"), "{message}");
    let down = world.cli("home", &["down"]).ok().json();
    assert_eq!(down["supervisor_pid"], ready["supervisor_pid"]);
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// Without flags both programs mean the same state directory of the user.
#[test]
fn supervisor_of_up_is_found_without_flags() {
    if rustix::process::geteuid().is_root() && Path::new("/var/lib/acp-supervisor").is_dir() {
        println!("SKIPPED: this machine has a supervisor of the system, which root means without flags");
        return;
    }
    let world = World::new();
    let run_here = |program: &str, args: &[&str]| {
        let mut command = world.command(program);
        command.env("XDG_STATE_HOME", world.dir("xdg")).env_remove("ACP_GATEWAY_STATE_DIR");
        acp_tests::cli::run(command.args(args), LONG).ok()
    };
    let ready = run_here("acp-gateway", &["up", "-d", "--json"]).json();
    let status = run_here("acp-supervisor", &["status", "--json"]).json();
    assert_eq!(status["pid"], ready["supervisor_pid"], "{status}");
    let down = run_here("acp-gateway", &["down", "--json"]).json();
    assert_eq!(down["supervisor_pid"], ready["supervisor_pid"], "{down}");
}

/// `up -d` does not report success while the supervisor of the running gateway is gone.
#[test]
fn detached_up_names_a_missing_supervisor() {
    let world = with_agent();
    let ready = up(&world);
    kill(&ready["supervisor_pid"]);
    let again = up_with(&world, &[]);
    assert_eq!((again.code, again.error_code().as_str()), (Some(1), "ACP_BACKEND_UNAVAILABLE"), "{again:?}");
    let message = again.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("supervisor") && message.contains(" down`"), "{message}");
    let _ = world.cli("home", &["down"]).ok();
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// Of several `up -d` at once one starts the gateway, and the others wait for it.
#[test]
fn concurrent_detached_ups_share_one_gateway() {
    let world = with_agent();
    let config = world.path("home.toml").to_string_lossy().into_owned();
    let args = ["up", "-d", "--config", &config];
    let ups: Vec<RunningCommand> = (0..3).map(|_| world.follow("home", &args)).collect();
    let ready: Vec<Value> = ups.into_iter().map(|up| up.finish(LONG).ok().json()).collect();
    assert_eq!(ready.iter().filter(|ready| ready["already_running"] == false).count(), 1, "{ready:?}");
    assert!(ready.iter().all(|one| one["gateway_pid"] == ready[0]["gateway_pid"]), "{ready:?}");
    let _ = world.cli("home", &["down"]).ok();
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// `down` succeeds beside a supervisor that `up` did not start, and fails beside one that `up` started and others use.
#[test]
fn down_names_a_supervisor_that_it_keeps() {
    let world = with_agent();
    let foreign = world.supervisor();
    let socket = foreign.socket().to_string_lossy().into_owned();
    let ready = up_with(&world, &["--supervisor-socket", &socket]).ok().json();
    assert_eq!(ready["supervisor_pid"], foreign.pid());
    let down = world.cli("home", &["down"]).ok().json();
    assert_eq!((&down["gateway_pid"], &down["supervisor_pid"]), (&ready["gateway_pid"], &Value::Null));
    assert!(down["kept"].as_str().unwrap().contains(&format!("pid {}", foreign.pid())), "{down}");
    assert_eq!(foreign.terminate(LONG), Some(0));
    world.configure("guest", "", &BTreeMap::from([(AGENT, scripted(&world, &[], "ask"))]));
    let ready = up(&world);
    let guest = world.gateway("guest", &world.path("home/supervisor/supervisor.sock"));
    let key = world.spawn("guest", AGENT, "work/guest");
    check_turn(&world.prompt("guest", &key, "hello"), "end_turn");
    let down = world.cli("home", &["down"]);
    assert_eq!((down.code, &down.json()["gateway_pid"]), (Some(1), &ready["gateway_pid"]), "{down:?}");
    assert!(down.json()["kept"].as_str().unwrap().contains("other gateways"), "{down:?}");
    let _ = world.cli("guest", &["sessions", "close", &key]).ok();
    assert_eq!(guest.terminate(LONG), Some(0));
    let down = world.cli("home", &["down"]).ok().json();
    assert_eq!(down["supervisor_pid"], ready["supervisor_pid"]);
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// `down` does not take a supervisor that does not answer for one that has ended.
#[test]
fn down_reports_a_supervisor_that_does_not_answer() {
    let world = with_agent();
    let ready = up(&world);
    kill(&ready["gateway_pid"]);
    let supervisor = ProcessHandle::open(pid(&ready["supervisor_pid"])).unwrap();
    assert!(supervisor.signal(Signal::STOP));
    let down = world.cli("home", &["down"]);
    assert_eq!(down.code, Some(1), "{down:?}");
    let message = down.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("a supervisor still holds"), "{message}");
    assert!(supervisor.signal(Signal::CONT));
    let _ = world.cli("home", &["down"]).ok();
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// `down` leaves a gateway alone that `up` did not start.
#[test]
fn down_refuses_a_gateway_of_serve() {
    let (house, key) = House::new(&[]).with_session();
    let down = house.cli(&["down"]);
    assert_eq!(down.code, Some(1), "{down:?}");
    let message = down.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&house.gateway().pid().to_string()), "{message}");
    check_turn(&house.prompt(&key, "still here"), "end_turn");
    house.end();
}

/// A start in the background that fails reports the reason of the gateway and leaves no process.
#[test]
fn failed_detached_up_leaves_no_process() {
    let world = World::new();
    let _ = world.write(&format!("home/{GATEWAY_DB}"), "this is no database");
    let output = world.cli("home", &["up", "-d"]);
    assert_eq!((output.code, output.error_code().as_str()), (Some(1), "ACP_STORE_UNAVAILABLE"), "{output:?}");
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// SIGKILL of `init` ends the gateway that it started for its test, with the supervisor.
#[test]
fn killed_init_leaves_no_process() {
    let world = World::new();
    let args = ["init", "--yes", "--agent", "demo"];
    let mut init = RunningCommand::start(&mut world.gateway_verb("home", &args));
    // `init`, its gateway, and the supervisor of that.
    until(LONG, "gateway started", || world.path("home/gateway.sock").exists());
    init.kill9();
    until(LONG, "no process left", || world.processes().is_empty());
}

/// `up` in the foreground ends when its terminal is closed.
#[test]
fn closed_terminal_ends_up() {
    let world = World::new();
    let up = world.gateway_verb("home", &["up"]);
    let mut script = Command::new("script");
    let words = std::iter::once(up.get_program()).chain(up.get_args());
    let line = words.map(|word| format!("'{}'", word.to_string_lossy())).collect::<Vec<_>>().join(" ");
    script.args(["--quiet", "--command", &line, "/dev/null"]).current_dir(world.path("work"));
    script.env_clear().envs(up.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut terminal = RunningCommand::start(&mut script);
    until(LONG, "gateway ready", || world.cli("home", &["status"]).code == Some(0));
    terminal.kill9();
    until(LONG, "no process left", || world.processes().is_empty());
}
