//! `chat` of a script: a conversation in a pipe, with the built-in demo agent.

use acp_tests::cli::{RunningCommand, output_text, run, stop_reason};
use acp_tests::house::{AGENT, GATEWAY, House};
use acp_tests::story::chunks;
use acp_tests::wait::{LONG, SOON, until};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write as _;
use std::process::{ChildStdin, Command};

/// A chat whose input the test writes.
struct Chat {
    out: RunningCommand,
    typing: Option<ChildStdin>,
}

impl Chat {
    /// Starts a chat with JSON output.
    fn with(house: &House, agent: &str) -> Self {
        let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
        Self::start(&mut house.world.gateway_verb(GATEWAY, &["chat", "--agent", agent, "--cwd", &cwd]))
    }

    fn start(command: &mut Command) -> Self {
        let (out, typing) = RunningCommand::start_piped(command);
        Self { out, typing: Some(typing) }
    }

    fn write(&mut self, text: &str) {
        let typing = self.typing.as_mut().unwrap_or_else(|| panic!("the chat's input is closed"));
        typing.write_all(text.as_bytes()).and_then(|()| typing.flush()).unwrap();
    }

    /// Closes the chat's input.
    fn hang_up(&mut self) {
        self.typing = None;
    }

    fn until(&mut self, is: impl Fn(&Value) -> bool) -> Vec<Value> {
        self.out.events_until(LONG, is)
    }

    fn line_with(&mut self, what: &str) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let Some(line) = self.out.line(LONG) else { panic!("{what:?} never came: {seen:#?}") };
            let found = line.contains(what);
            seen.push(line);
            if found {
                return seen;
            }
        }
    }
}

fn is_done(event: &Value) -> bool {
    event["type"] == "done"
}

/// Key of the session that the chat is bound to.
fn session(events: &[Value]) -> String {
    let found = events.iter().find_map(|event| event["session_key"].as_str());
    found.unwrap_or_else(|| panic!("no session: {events:#?}")).to_owned()
}

/// Checks that the demo agent's chunks came once and in order.
fn check_stream(events: &[Value], count: usize) {
    let came: String = chunks(events).concat();
    let want: Vec<String> = (1..=count).map(|n| format!("chunk {n}")).collect();
    assert_eq!(came.lines().collect::<Vec<_>>(), want);
}

fn state(house: &House, key: &str) -> String {
    house.verb(&["sessions", "show", key])["state"].as_str().unwrap_or_default().to_owned()
}

/// Piped input: prompts in order and a command; the end of the input ends the chat.
#[test]
fn piped_chat_sends_lines_in_order() {
    let house = House::new(&[]);
    let mut chat = Chat::with(&house, "demo");
    chat.write("hello there\nstream 5\n/acp status\n");
    chat.hang_up();
    let events = chat.out.finish(LONG).ok().lines();
    let key = session(&events);
    let ends: Vec<usize> = (0..events.len()).filter(|at| is_done(&events[*at])).collect();
    assert_eq!(ends.len(), 2, "{events:#?}");
    assert_eq!(output_text(&events[..ends[0]]), "hello there");
    check_stream(&events[ends[0]..ends[1]], 5);
    let status = events.iter().rev().find(|event| event["type"] == "said").unwrap();
    let text = status["text"].as_str().unwrap_or_default();
    assert!(text.contains(&key) && text.contains("state: idle"), "{status}");
    // The session stays when the chat is over.
    assert_eq!(state(&house, &key), "idle");
    house.end();
}

/// Without `--json`: plain text, and a permission request is answered by the number of an option.
#[test]
fn chat_answers_permission_by_option_number() {
    let house = House::new(&[]);
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let mut chat = Chat::start(&mut house.plain(&["chat", "--agent", "demo", "--cwd", &cwd]));
    chat.write("permission\n");
    let asked = chat.line_with("Answer with a number.");
    let options: Vec<&String> = asked.iter().filter(|line| line.starts_with("  1. ")).collect();
    assert_eq!(options.len(), 1, "{asked:#?}");
    let first = options[0].trim_start_matches("  1. ").to_owned();
    chat.write("1\n");
    let answered = chat.line_with("[Answered: ");
    assert!(answered.iter().any(|line| line.contains(&first)), "{answered:#?}");
    chat.write("that was it\n");
    chat.hang_up();
    let rest = chat.out.finish(LONG).ok().stdout;
    assert!(rest.contains("that was it"), "{rest}");
    assert!(!rest.contains("[failed"), "{rest}");
    house.end();
}

/// A chat that begins while a permission request is pending shows it before a number can answer it, however it comes
/// to the session.
#[test]
fn attached_chat_shows_the_pending_permission_request() {
    let (house, key) = House::new(&[]).with_session();
    // The first chat binds its conversation, the second one finds it bound.
    for verb in [&["chat", key.as_str(), "--conversation", "room"][..], &["chat", "--conversation", "room"]] {
        let mut turn = house.follow(&["prompt", "--interactive", &key, "tool ask_run echo hi >made"]);
        let _ = turn.events_until(LONG, |event| event["type"] == "permission");
        let mut chat = Chat::start(&mut house.plain(verb));
        let shown = chat.line_with("Answer with a number.");
        let asked: Vec<&String> = shown.iter().filter(|line| line.contains("the agent asks")).collect();
        assert_eq!(asked, ["[the agent asks: Bash]"], "{shown:#?}");
        for part in ["    echo hi >made", "  1. "] {
            assert!(shown.iter().any(|line| line.starts_with(part)), "{part}: {shown:#?}");
        }
        chat.write("1\n");
        let _ = chat.line_with("[Answered: ");
        let events = turn.finish(LONG).ok().lines();
        assert_eq!(chunks(&events)[0], "permission: selected allow_once");
        chat.hang_up();
        assert_eq!(chat.out.finish(LONG).code, Some(0));
    }
    house.end();
}

/// The reply to `/focus` shows what a command of the conversation could allow from then on.
#[test]
fn focus_reply_shows_the_pending_permission_request() {
    let (house, key) = House::new(&[]).with_session();
    let mut turn = house.follow(&["prompt", "--interactive", &key, "tool ask_run echo hi >made"]);
    let _ = turn.events_until(LONG, |event| event["type"] == "permission");
    let bound = house.say("room", "1", &format!("/focus {key}"));
    let text = bound["text"].as_str().unwrap_or_default();
    assert!(text.contains("is bound here"), "{bound}");
    assert!(text.contains("\nThe agent waits for permission:\n- Bash (id "), "{bound}");
    assert!(text.contains("\n    echo hi >made\n  1. "), "{bound}");
    let denied = house.say("room", "2", "/acp deny");
    assert!(denied["text"].as_str().is_some_and(|text| text.starts_with("Answered: ")), "{denied}");
    assert_eq!(chunks(&turn.finish(LONG).ok().lines())[0], "permission: selected reject_once");
    house.end();
}

/// The gateway is killed twice during a stream: the chat reconnects and shows each chunk once.
#[test]
fn chat_continues_across_gateway_kills() {
    const CHUNKS: usize = 300;
    let mut house = House::new(&[]);
    let mut chat = Chat::with(&house, "demo");
    chat.write(&format!("stream {CHUNKS} pace 20\n"));
    let mut events =
        chat.until(|event| event["text"].as_str().is_some_and(|text| text.contains("chunk 20\n")));
    for marker in ["chunk 100\n", ""] {
        house.restart_gateway();
        if !marker.is_empty() {
            let more = chat.until(|event| event["text"].as_str().is_some_and(|text| text.contains(marker)));
            events.extend(more);
        }
    }
    events.extend(chat.until(is_done));
    check_stream(&events, CHUNKS);
    assert_eq!(stop_reason(&events).as_deref(), Some("end_turn"));
    let key = session(&events);
    // The conversation continues and can be closed from the chat.
    chat.write("still there?\n/acp close\n");
    let events = chat.until(|event| event["type"] == "closed");
    assert_eq!(output_text(&events), "still there?");
    assert_eq!(state(&house, &key), "closed");
    chat.hang_up();
    assert_eq!(chat.out.finish(LONG).code, Some(0));
    house.end();
}

/// Ctrl-C cancels a running turn, and leaves the chat if no turn runs. The session stays open.
#[test]
fn ctrl_c_cancels_the_turn_and_then_leaves() {
    let house = House::new(&[]);
    let mut chat = Chat::with(&house, "demo");
    chat.write("stream 1000000 pace 20\n");
    let mut events =
        chat.until(|event| event["text"].as_str().is_some_and(|text| text.contains("chunk 3\n")));
    assert!(chat.out.signal(Signal::INT));
    events.extend(chat.until(is_done));
    assert_eq!(stop_reason(&events).as_deref(), Some("cancelled"));
    let key = session(&events);
    until(SOON, "session idle", || state(&house, &key) == "idle");
    // The chat still works.
    chat.write("hello\n");
    assert_eq!(output_text(&chat.until(is_done)), "hello");
    assert!(chat.out.signal(Signal::INT));
    assert_eq!(chat.out.finish(SOON).code, Some(0));
    assert_eq!(state(&house, &key), "idle");
    house.end();
}

/// If the agent does not end a cancelled turn, the second Ctrl-C leaves the chat at once.
#[test]
fn second_ctrl_c_leaves_chat_while_turn_runs() {
    let house = House::new(&[]);
    let mut chat = Chat::with(&house, AGENT);
    chat.write("say started\nno_reply\n");
    // A script is one message for each line: the second one is the turn that never ends.
    let mut events = chat.until(is_done);
    let key = session(&events);
    until(SOON, "turn running", || house.prompts_received("no_reply") == 1);
    until(SOON, "session running", || state(&house, &key) == "running");
    events.extend(chat.until(|event| event["type"] == "said" && event["outcome"] == "prompted"));
    assert!(chat.out.signal(Signal::INT));
    let _ = chat.until(|event| event["type"] == "said" && event["outcome"] == "command");
    assert!(chat.out.signal(Signal::INT));
    assert_eq!(chat.out.finish(SOON).code, Some(0));
    let closed = house.verb(&["sessions", "close", &key]);
    assert_eq!(closed["state"], "closed", "{closed}");
    house.end();
}

/// A chat with an unknown agent fails with the reason.
#[test]
fn chat_that_cannot_start_reports_the_reason() {
    let house = House::new(&[]);
    let none = house.cli(&["chat", "--agent", "nobody"]);
    assert_ne!(none.code, Some(0), "{none:#?}");
    let refused = none.lines().into_iter().find(|line| line["outcome"] == "refused");
    let refused = refused.unwrap_or_else(|| panic!("{none:#?}"));
    assert_eq!(refused["failure"]["code"], "ACP_AGENT_NOT_ALLOWED", "{refused}");
    let words = run(&mut house.plain(&["chat", "--agent", "nobody"]), LONG);
    assert!(words.stdout.contains("Unknown agent nobody."), "{words:#?}");
    house.end();
}
