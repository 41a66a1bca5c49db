//! The verbs of the first minutes: `init`, with the real services and the demo agent.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::cli::{Output, RunningCommand, run};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::World;
use std::io::Write as _;
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
    let answers = format!("/nowhere/at/all\n{project}\nnobody\n\nnever\n\n");
    let done = answer(&world, &["--no-test"], &answers).ok();
    for part in
        ["/nowhere/at/all is not a directory", "no agent is called \"nobody\"", "\"never\" is not a mode"]
    {
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
    assert!(failed.stderr.contains("the configuration is written, but"), "{failed:#?}");
    assert!(config(&world).contains("default_agent = \"goose\""), "{}", config(&world));
    until(SOON, "no process left", || world.processes().is_empty());
}
