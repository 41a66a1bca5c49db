//! The verbs of the first minutes, with the real services and the demo agent: `init`, and mistakes that a newcomer makes.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::cli::{Output, RunningCommand, run};
use acp_tests::house::House;
use acp_tests::pty::Pty;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::World;
use rustix::process::Signal;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

/// Command line of `init` in a world, with its own PATH.
fn init(world: &World, args: &[&str]) -> Command {
    let mut command = world.command("acp-gateway");
    command.arg("init").arg("--state-dir").arg(world.path("state")).args(args);
    command.env("PATH", format!("{}:/usr/bin:/bin", world.dir("bin").display()));
    command
}

/// Runs `init` with these answers on standard input.
fn answer(world: &World, args: &[&str], answers: &str) -> Output {
    let (running, mut stdin) = RunningCommand::start_piped(&mut init(world, args));
    stdin.write_all(answers.as_bytes()).unwrap();
    drop(stdin);
    running.finish(LONG)
}

fn config(world: &World) -> String {
    std::fs::read_to_string(world.path("state/gateway.toml")).unwrap_or_default()
}

/// The configuration is written and private, the demo agent answers in a gateway that is started for it, and nothing of it is
/// left running. `up` uses the file, and an existing one is not overwritten.
#[test]
fn init_writes_configuration_and_tests_agent() {
    let world = World::new();
    let project = world.dir("work/project").display().to_string();
    let flags = ["--yes", "--cwd", &project, "--agent", "demo", "--permission-mode", "approve-reads"];
    let done = run(&mut init(&world, &flags), LONG).ok();
    assert!(done.stdout.contains("demo answered: ") && done.stdout.contains("discord setup"), "{done:#?}");
    until(SOON, "no process left", || world.processes().is_empty());
    let file = world.path("state/gateway.toml");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = config(&world);
    for part in
        ["default_agent = \"demo\"", &format!("default_cwd = \"{project}\""), "mode = \"approve-reads\""]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let again = run(&mut init(&world, &flags), LONG);
    assert_eq!((again.code, config(&world)), (Some(2), text.clone()));
    assert!(again.stderr.contains("--force"), "{again:#?}");
    // The files are those of a later `up`, in which a session needs no agent and no mode.
    let up = world.up("state");
    let socket = world.path("state");
    let mut spawn = world.command("acp-gateway");
    spawn.args(["sessions", "spawn", "--json", "--state-dir"]).arg(&socket);
    let key = run(&mut spawn, LONG).ok().json()["session_key"].as_str().unwrap().to_owned();
    let mut show = world.command("acp-gateway");
    show.args(["sessions", "show", &key, "--json", "--state-dir"]).arg(&socket);
    let shown = run(&mut show, LONG).ok().json();
    assert_eq!(
        (shown["agent"].as_str(), shown["permission"].as_str()),
        (Some("demo"), Some("approve-reads"))
    );
    // A gateway that runs already is used, and goes on.
    let forced = run(&mut init(&world, &[&flags[..], &["--force"]].concat()), LONG).ok();
    assert!(forced.stdout.contains("demo answered: "), "{forced:#?}");
    assert_eq!(std::fs::read_to_string(world.path("state/gateway.toml.old")).unwrap(), text);
    assert_eq!(up.terminate(LONG), Some(0));
}

/// Questions show what they take; a wrong answer is explained and asked again; the end of the input is an error.
#[test]
fn init_asks_for_what_no_flag_sets() {
    let world = World::new();
    let project = world.dir("work/project").display().to_string();
    let none = answer(&world, &["--no-test"], "");
    assert_eq!((none.code, config(&world)), (Some(2), String::new()), "{none:#?}");
    assert!(none.stderr.contains("Working directory") && none.stderr.contains("--yes"), "{none:#?}");
    let answers = format!("/nowhere/at/all\n{project}\nnobody\nclaud\n\nnever\n\n");
    let done = answer(&world, &["--no-test"], &answers).ok();
    for part in [
        "/nowhere/at/all is not a directory",
        "no agent is called \"nobody\"",
        "no agent is called \"claud\". Did you mean claude?",
        "\"never\" is not a mode",
    ] {
        assert!(done.stderr.contains(part), "{part}: {done:#?}");
    }
    let text = config(&world);
    for part in ["default_agent = \"demo\"", &format!("default_cwd = \"{project}\""), "mode = \"ask\""] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A found agent that cannot answer is named with the reason; the configuration stays, and nothing runs on.
#[test]
fn init_reports_agent_that_does_not_answer() {
    let world = World::new();
    let program = world.write("bin/goose", "#!/bin/sh\nexit 7\n");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let failed = run(&mut init(&world, &["--yes"]), LONG);
    assert_eq!(failed.code, Some(1), "{failed:#?}");
    for part in ["the configuration is written, but", "up -d", "agents test goose", "agents login goose"] {
        assert!(failed.stderr.contains(part), "{part}: {failed:#?}");
    }
    assert!(config(&world).contains("default_agent = \"goose\""), "{}", config(&world));
    until(SOON, "no process left", || world.processes().is_empty());
}

/// Whoever waits for an agent that is fetched or starts slowly sees for what.
#[test]
fn init_at_a_terminal_announces_the_test_before_it_runs() {
    let world = World::new();
    let program = world.write("bin/goose", "#!/bin/sh\nexec sleep 600\n");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut init = Pty::start(&mut init(&world, &["--yes"]), 80, 24);
    let screen = init.until("Testing goose with one turn");
    assert!(screen.contains("(mode 0600)") && !screen.contains("error"), "{screen}");
    init.interrupt();
    let screen = init.until("Interrupted; the configuration is written.");
    assert!(screen.contains("agents test goose"), "{screen}");
    assert_eq!(init.exit_code(), Some(130));
    until(SOON, "no process left", || world.processes().is_empty());
}

#[test]
fn interrupted_question_says_that_nothing_was_written() {
    let world = World::new();
    let (running, stdin) = RunningCommand::start_piped(&mut init(&world, &[]));
    until(SOON, "signals are handled", || handles_interrupts(running.pid()));
    assert!(running.signal(Signal::INT));
    let ended = running.finish(LONG);
    drop(stdin);
    assert_eq!((ended.code, config(&world)), (Some(130), String::new()), "{ended:#?}");
    assert!(ended.stderr.contains("Interrupted; nothing was written."), "{ended:#?}");
}

/// True if a process has a handler for SIGINT.
fn handles_interrupts(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (Signal::INT.as_raw() - 1)) != 0)
}

/// A text that is no token is not sent; an address without Discord is named as such.
#[test]
fn discord_setup_explains_wrong_token_and_unreachable_discord() {
    let world = World::new();
    let setup = |args: &[&str], typed: &str| {
        let mut command = world.command("acp-gateway");
        command.args(["discord", "setup", "--state-dir"]).arg(world.path("state")).args(args);
        let (running, mut stdin) = RunningCommand::start_piped(&mut command);
        stdin.write_all(typed.as_bytes()).unwrap();
        drop(stdin);
        running.finish(LONG)
    };
    let wrong = setup(&[], "nonsense\n");
    assert_eq!(wrong.code, Some(2), "{wrong:#?}");
    for part in ["three parts separated by dots", "no answer to", "--token-file"] {
        assert!(wrong.stderr.contains(part), "{part}: {wrong:#?}");
    }
    let file = world.write("nonsense.token", "nonsense\n").display().to_string();
    let wrong = setup(&["--token-file", &file], "");
    assert!(wrong.stderr.contains(&format!("{file}: the token does not have")), "{wrong:#?}");
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
    let away = setup(&["--token-file", &file, "--base-url", &format!("http://{closed}")], "");
    assert_eq!(away.code, Some(1), "{away:#?}");
    assert!(away.stderr.contains("Discord cannot be reached from this machine"), "{away:#?}");
}

/// Verbs that lack a session or an agent name the command that helps.
#[test]
fn missing_session_or_agent_is_answered_with_the_next_command() {
    let house = House::new(&[]);
    for (args, want) in [
        (&["prompt", "hello"][..], "`acp-gateway sessions spawn --agent NAME` starts one here"),
        (&["chat", "hello"], "`acp-gateway sessions list --all` shows all sessions"),
        (&["sessions", "spawn"], "`--agent demo`"),
    ] {
        let failed = run(house.plain(args).current_dir(house.world.dir("work/project")), LONG);
        assert!(failed.code != Some(0) && failed.stderr.contains(want), "{args:?}: {failed:#?}");
    }
    house.end();
}
