//! An agent runs as the gateway's user and can find its socket; its commands are refused (H9). The supervisor's own tests
//! check the same for the supervisor.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_testkit::ability::Ability;
use acp_testkit::processes::KillOnDrop;
use acp_testkit::skip_unless;
use acp_tests::house::{GATEWAY, House};
use acp_tests::world::repository;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| format!("'{}'", word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Output of a shell command of the agent.
fn tool(house: &House, key: &str, command: &str) -> String {
    let events = house.prompt(key, &format!("tool run {command}"));
    events.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn agent_commands_to_its_own_gateway_are_refused() {
    let (house, key) = House::new(&[]).with_session();
    let before = house.verb(&["sessions", "list"]);
    let list = line(&house.world.gateway_verb(GATEWAY, &["sessions", "list"]));
    let close = line(&house.world.gateway_verb(GATEWAY, &["sessions", "close", &key]));
    let out = house.world.path("said");
    let escaped = format!(
        "(setsid env -i {list} > {0} 2>&1 &) & while ! [ -s {0} ]; do sleep 0.05; done; cat {0}",
        out.display()
    );
    for command in [format!("{list} 2>&1"), format!("{close} 2>&1"), escaped] {
        let said = tool(&house, &key, &command);
        assert!(said.contains("refuses requests from processes of its agents"), "{command}\n{said}");
    }
    // A person of the same user is served, and nothing was changed.
    assert_eq!(house.verb(&["sessions", "list"])[0]["session_key"], before[0]["session_key"]);
    house.end();
}

/// The memory of a peer is locked for ever, so that its environment cannot be read: others are served meanwhile, and the
/// peer is refused in time. The process is built from `tests/faults/hung_environ.c`.
#[test]
fn peer_whose_environment_hangs_is_refused_and_delays_nobody() {
    skip_unless!(Ability::Root);
    let house = House::new(&[]);
    let program = house.world.path("hung_environ");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(&program);
    compiler.arg(repository().join("tests/faults/hung_environ.c"));
    assert!(compiler.status().unwrap().success(), "the program compiles");
    let mut peer = Command::new(&program);
    peer.arg(house.world.dir("hung")).arg(house.world.path(GATEWAY).join("gateway.sock"));
    let mut peer = KillOnDrop(peer.stdout(Stdio::piped()).spawn().unwrap());
    let mut output = BufReader::new(peer.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    if line.is_empty() && peer.wait().unwrap().code() == Some(77) {
        println!("skipped: a file system that never answers a write");
        return;
    }
    assert_eq!(line, "connected\n");
    for _ in 0..3 {
        assert_eq!(house.cli(&["sessions", "list"]).code, Some(0));
    }
    let mut response = String::new();
    output.read_to_string(&mut response).unwrap();
    assert!(response.contains("whose environment cannot be read"), "{response}");
    house.end();
}
