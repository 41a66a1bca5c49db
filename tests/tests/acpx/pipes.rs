//! Standard streams that are closed, full or endless: the outcome is told where that is possible, and turns and sessions
//! end as always.

use crate::client::Client;
use acp_tests::cli::{RunningCommand, run};
use acp_tests::house::House;
use acp_tests::wait::{LONG, SOON, until};
use serde_json::json;
use std::process::Command;

fn is_quiet(house: &House) -> bool {
    house.verb(&["sessions", "list"]) == json!([])
}

/// Starts a command through a shell, which redirects its streams.
fn redirected(command: &Command, redirection: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(command.get_current_dir().unwrap_or_else(|| std::path::Path::new("/")));
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {redirection}"));
    shell.arg(command.get_program()).args(command.get_args());
    shell
}

/// A full disk under standard output is a failure, told on standard error unless it has to stay empty.
#[test]
fn full_output_fails_the_command_and_ends_the_session() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    for (flags, says) in [
        (&["--format", "json", "--json-strict"][..], false),
        (&["--format", "json"], true),
        (&["--format", "text"], true),
        (&["--format", "quiet"], true),
    ] {
        for args in [&["exec", "say hello"][..], &["status"]] {
            let output = run(&mut redirected(&client.command(flags, args), ">/dev/full"), LONG);
            assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{output:?}");
            assert_eq!(output.stderr.contains("cannot write to standard output"), says, "{output:?}");
        }
    }
    until(LONG, "the sessions are closed", || is_quiet(&house));
    house.end();
}

/// A reader that goes away ends the client; the turn and the session of `exec` end as always.
#[test]
fn closed_output_leaves_the_turn_to_its_end() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let strict = ["--format", "json", "--json-strict"];
    let command = client.command(&strict, &["exec", "say one\nsleep 200\nsay two\nsleep 200\nsay three"]);
    let mut head = redirected(&command, "2>&1 | head -n 1");
    assert_eq!(run(&mut head, LONG).ok().lines().len(), 1);
    until(LONG, "the session is closed", || is_quiet(&house));
    assert_eq!(house.agent_events("prompt").len(), 1);
    // Closed from the start.
    for redirection in [">&-", ">&- 2>&-", "<&- >&- 2>&-"] {
        let output =
            run(&mut redirected(&client.command(&strict, &["exec", "say hello"]), redirection), LONG);
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{output:?}");
    }
    until(LONG, "the sessions are closed", || is_quiet(&house));
    assert_eq!(house.prompts_received("say hello"), 3);
    house.end();
}

/// Standard input is read up to a limit, and not at all where the prompt is given as words.
#[test]
fn endless_input_is_refused_or_not_read() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let strict = ["--format", "json", "--json-strict"];
    for args in [&["exec"][..], &["exec", "--file", "-"], &["exec", "--file", "/dev/zero"]] {
        let output = run(&mut redirected(&client.command(&strict, args), "</dev/zero"), LONG);
        assert_eq!((output.code, output.error_code().as_str()), (Some(2), "USAGE"), "{output:?}");
    }
    let empty = run(&mut redirected(&client.command(&strict, &["exec"]), "<&-"), LONG);
    assert_eq!((empty.code, empty.error_code().as_str()), (Some(2), "USAGE"), "{empty:?}");
    let (words, _open) = RunningCommand::start_piped(&mut client.command(&strict, &["exec", "say words"]));
    let _ = words.finish(LONG).ok();
    // Without words it waits for the end of the input, and a signal ends it.
    let (waiting, open) = RunningCommand::start_piped(&mut client.command(&strict, &["exec"]));
    assert!(waiting.signal(rustix::process::Signal::INT));
    assert_eq!(waiting.finish(SOON).code, None);
    drop(open);
    assert_eq!(house.agent_events("prompt").len(), 1);
    house.end();
}
