//! Error messages of failing commands, and processes that remain after a failure.

use acp_tests::cli::{RunningCommand, run};
use acp_tests::house::{GATEWAY, House, Plan, scripted};
use acp_tests::wait::{LONG, SOON, spin_until, until};
use acp_tests::world::{Agent, GATEWAY_DB, World};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::time::Instant;

/// `up` with a database that cannot be opened reports the reason, ends the supervisor that it had started, and changes
/// nothing.
#[test]
fn failed_up_leaves_no_process() {
    let world = World::new();
    let text = "this is no database, whatever its name says";
    let db = world.write(&format!("home/{GATEWAY_DB}"), text);
    let dir = world.path("home").canonicalize().unwrap();
    let output = world.cli("home", &["up"]);
    assert_eq!(output.code, Some(1), "{output:#?}");
    let error = output.error();
    let message = error["message"].as_str().unwrap();
    assert_eq!(error["code"], "ACP_STORE_UNAVAILABLE");
    assert!(message.contains(dir.to_str().unwrap()) && message.contains("not a database"), "{message}");
    assert_eq!(fs::read_to_string(&db).unwrap(), text);
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// Ctrl-C while `up` waits for its supervisor ends the supervisor too.
#[test]
fn interrupted_up_leaves_no_process() {
    for _ in 0..3 {
        let world = World::new();
        let up = RunningCommand::start(&mut world.gateway_verb("home", &["up"]));
        // The gateway, and what will be its supervisor.
        until(LONG, "supervisor started", || world.processes().len() >= 2);
        assert!(up.signal(Signal::INT));
        let output = up.finish(LONG);
        assert_eq!(output.code, Some(0), "{output:#?}");
        assert_eq!(world.processes(), [], "nothing is left alive");
    }
}

/// Ctrl-C ends `up` at once while its supervisor does not answer, with the supervisor.
#[test]
fn interrupted_up_does_not_wait_for_its_supervisor() {
    let world = World::new();
    let up = RunningCommand::start(&mut world.gateway_verb("home", &["up"]));
    let supervisor = spin_until(LONG, "supervisor started", || {
        world.processes().into_iter().find(|process| process.argv.iter().any(|arg| arg == "serve"))
    });
    assert!(world.open_process(&supervisor).unwrap().signal(Signal::STOP));
    let start = Instant::now();
    assert!(up.signal(Signal::INT));
    let output = up.finish(LONG);
    assert_eq!(output.code, Some(0), "{output:#?}");
    assert!(start.elapsed() < SOON / 2, "it took {:?}", start.elapsed());
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// An `up` that cannot use what answers at the socket ends the supervisor that it had started.
#[test]
fn up_with_an_unusable_supervisor_leaves_no_process() {
    let world = World::new();
    let socket = world.dir("home/supervisor").join("impostor.sock");
    let impostor = UnixListener::bind(&socket).unwrap();
    let args = ["up", "--supervisor-socket", socket.to_str().unwrap()];
    let up = RunningCommand::start(&mut world.gateway_verb("home", &args));
    let mut asked = impostor.accept().unwrap().0;
    // First there is no answer, so that `up` starts a supervisor.
    while !world.path("home/supervisor/supervisor.log").exists() {
        drop(asked);
        asked = impostor.accept().unwrap().0;
    }
    // The supervisor gets the path, and `up` one byte that is no message.
    fs::remove_file(&socket).unwrap();
    asked.write_all(&[0, 0, 0, 1, 0xc1]).unwrap();
    let output = up.finish(LONG);
    assert_eq!(
        (output.code, output.error_code().as_str()),
        (Some(1), "ACP_BACKEND_UNAVAILABLE"),
        "{output:#?}"
    );
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// The failure names the command that shows standard error, and quotes nothing of standard error itself.
#[test]
fn agent_exit_at_initialize_names_the_logs_command() {
    let world = World::new();
    let mute = Agent {
        command: ["/bin/sh", "-c", "read hello; echo 'set MUTE_API_KEY first' >&2; exit 3"]
            .map(str::to_owned)
            .to_vec(),
        ..scripted(&world, &[], "ask")
    };
    let house = Plan::default().build_in(world, &BTreeMap::from([("mute", mute)]));
    // Several times: standard error and the exit arrive over different pipes in any order.
    for n in 0..5 {
        let key = house.world.spawn(GATEWAY, "mute", &format!("work/{n}"));
        let output = house.cli(&["prompt", &key, "hello"]);
        assert_eq!((output.code, output.error_code().as_str()), (Some(1), "ACP_SESSION_INIT_FAILED"));
        let message = output.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("(exit code 3)") && !message.contains("MUTE_API_KEY"), "{message}");
        assert!(message.contains(&format!("`acp-gateway logs {key}`")), "{message}");
        until(LONG, "line in the log", || {
            let lines = house.cli(&["logs", &key]).ok().lines();
            lines.iter().any(|line| line["from"] == "agent" && line["text"] == "set MUTE_API_KEY first")
        });
    }
    house.end();
}

/// Refusals name the next step.
#[test]
fn refused_agent_error_names_the_next_step() {
    let world = World::new();
    let gone = Agent { command: vec!["/nonexistent/agent".to_owned()], ..scripted(&world, &[], "ask") };
    let house = Plan::default().build_in(world, &BTreeMap::from([("gone", gone)]));
    for (agent, want) in [
        (&["--agent", "gone"][..], "/nonexistent/agent (agents.gone.command)"),
        (&["--agent", "gon"], "Did you mean gone? `acp-gateway agents --all`"),
        (&[], "name one, as in `--agent demo`"),
    ] {
        let output = house.cli(&[&["sessions", "spawn"], agent].concat());
        assert_eq!((output.code, output.error_code().as_str()), (Some(1), "ACP_AGENT_NOT_ALLOWED"));
        let message = output.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(want), "{want:?} is not in {message:?}");
    }
    house.end();
}

/// A history written to a file has both sides of the conversation, in order.
#[test]
fn history_in_file_has_prompts_and_answers() {
    let (house, key) = House::new(&[]).with_session();
    let _ = house.prompt(&key, "say forty two");
    let _ = house.prompt(&key, "say the end");
    let said = run(&mut house.plain(&["sessions", "history", &key]), LONG).ok();
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(lines, ["> say forty two", "forty two", "> say the end", "the end"], "{said:#?}");
    house.end();
}

/// `agents` and `doctor` repeat `--state-dir` and `--config` in the commands that they advise.
#[test]
fn advised_commands_repeat_given_paths() {
    let world = World::new();
    let config = world.write("home.toml", "").to_string_lossy().into_owned();
    let own = format!("acp-gateway --state-dir {}", world.path("home").display());
    let doctor = world.cli("home", &["doctor", "--config", &config]);
    assert!(
        doctor.stdout.contains(&format!("not running: start it with `{own} up --config {config}`")),
        "{doctor:?}"
    );
    let agents = world.cli("home", &["agents", "test", "demo"]);
    let message = agents.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&format!("`{own} up`")), "{message}");
    let mut listed = world.command("acp-gateway");
    listed.arg("--state-dir").arg(world.path("home")).args(["agents", "--config", &config]);
    let listed = run(&mut listed, LONG).ok().stdout;
    assert!(listed.contains(&format!("{own} agents --all --config {config}")), "{listed}");
}
