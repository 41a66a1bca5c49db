//! An agent runs as the gateway's user and can find its socket; its commands are refused (H9). The supervisor's own tests
//! check the same for the supervisor.

use acp_tests::house::{GATEWAY, House};
use std::process::Command;

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
