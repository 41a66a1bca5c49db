//! Agents that a caller names by their command.

use crate::client::{Client, said};
use acp_tests::house::{House, Plan, scripted};
use serde_json::json;

/// Command of the scripted agent, with its words in quotes.
fn command_of(house: &House, quote: char) -> String {
    let words = scripted(&house.world, &[], "ask").command;
    words.iter().map(|word| format!("{quote}{word}{quote}")).collect::<Vec<_>>().join(" ")
}

/// Where commands are allowed, the same words are the same agent: its session is found again, also by a gateway that was
/// killed, and by no name.
#[test]
fn command_is_an_agent_where_it_is_allowed() {
    let mut house = Plan::flags(&[]).gateway("[acpx]\nallow_commands = true").build();
    let (command, spelled) = (command_of(&house, '\''), command_of(&house, '"'));
    let key = {
        let client = Client::new(&house).with_agent(None);
        let ensure = |command: &str| client.with(&["--agent", command], &["sessions", "ensure"]).ok().json();
        let first = ensure(&command);
        let again = ensure(&spelled);
        assert_eq!((&first["created"], &again["created"]), (&json!(true), &json!(false)));
        assert_eq!(first["id"], again["id"]);
        assert_ne!(
            json!(Client::new(&house).ensure()),
            first["id"],
            "a configured agent has its own session"
        );
        let lines = client.with(&["--agent", &command], &["prompt", "say one"]).ok().lines();
        assert_eq!(said(&lines), "one");
        let both = Client::new(&house).with(&["--agent", &command], &["status"]);
        assert_eq!((both.code, both.error_code().as_str()), (Some(2), "USAGE"), "{both:?}");
        let open = client.with(&["--agent", "agent 'x"], &["status"]);
        assert_eq!((open.code, open.error_code().as_str()), (Some(2), "USAGE"), "{open:?}");
        let missing = client.with(&["--agent", "/nowhere/agent"], &["exec", "hi"]);
        assert_eq!((missing.code, missing.error_code().as_str()), (Some(1), "RUNTIME"), "{missing:?}");
        assert!(missing.error()["message"].to_string().contains("/nowhere/agent"), "{missing:?}");
        first["id"].as_str().unwrap_or_default().to_owned()
    };
    house.lease(&key).kill_adapter();
    house.restart_gateway();
    {
        let client = Client::new(&house).with_agent(None);
        let lines = client.with(&["--agent", &command], &["prompt", "say two"]).ok().lines();
        assert_eq!(said(&lines), "two");
        let lines = client.with(&["--agent", &spelled], &["exec", "say three"]).ok().lines();
        assert_eq!(said(&lines), "three");
    }
    house.end();
}
