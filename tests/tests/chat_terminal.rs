//! `chat` at a terminal: real pseudo-terminals, and the screens that a person sees.

use acp_tests::house::{AGENT, GATEWAY, House};
use acp_tests::pty::Pty;
use acp_tests::wait::{LONG, until};
use acp_tests::world::repository;
use std::os::unix::fs::PermissionsExt as _;

const MANUAL: &str = "docs/manual/chat.md";
/// Text that the demo agent echoes in the screens of the manual.
const SHOWN_MARKDOWN: &str = "\
# Result
The *demo agent* echoes **Markdown**:

- `code` in a list
- [a link](https://example.org)

A paragraph is wrapped at the width of the terminal: 80 columns in the first picture of the manual, and 120 columns in the second one.

| column | value |
|---|--:|
| one | 1 |
| two | 22 |";
const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";

fn chat_of(house: &House, args: &[&str], columns: u16, rows: u16) -> Pty {
    let mut command = house.plain(&[&["chat"], args].concat());
    Pty::start(command.current_dir(house.world.dir("work/project")), columns, rows)
}

fn leave(mut chat: Pty) {
    chat.write(CTRL_D);
    assert_eq!(chat.exit_code(), Some(0), "{}", chat.screen());
    assert!(chat.is_cooked());
}

/// Prompts of a session in its journal.
fn prompts(house: &House, key: &str) -> Vec<String> {
    let rows = house.world.history(GATEWAY, key);
    let prompts = rows.iter().filter(|row| row["type"] == "prompt");
    prompts.filter_map(|row| row["text"].as_str()).map(str::to_owned).collect()
}

/// Key of the newest session.
fn newest(house: &House) -> String {
    let sessions = house.verb(&["sessions", "list"]);
    sessions[0]["session_key"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn keys_that_arrive_together_are_handled_at_once() {
    let house = House::new(&[]);
    let mut chat = chat_of(&house, &["--agent", "demo"], 80, 24);
    chat.write("help\r");
    chat.until("I am the demo agent");
    // A paste is one message, whatever it contains.
    chat.write("\u{1b}[200~first line\nsecond line\u{1b}[201~");
    let screen = chat.until("second line");
    assert!(screen.contains("> first line\n  second line"), "{screen}");
    chat.write("\r");
    let key = newest(&house);
    until(LONG, "pasted text is one prompt", || {
        prompts(&house, &key).last().is_some_and(|text| text == "first line\nsecond line")
    });
    // Commands work while a turn runs, another prompt is queued, and Ctrl-C cancels.
    // Slow, so that the reply is on the screen for some time.
    chat.write("stream 1000000 pace 200\r");
    chat.until("chunk 5");
    chat.write("/acp sta\t\r");
    chat.until("state: running");
    chat.write("afterwards\r");
    chat.until("queued: afterwards");
    chat.write(CTRL_C);
    chat.until("[ended: cancelled]");
    chat.until("> afterwards");
    until(LONG, "the queued prompt has its turn", || chat.screen().matches("afterwards").count() >= 2);
    let history = house.world.path(GATEWAY).join("chat_history");
    let mode = history.metadata().unwrap_or_else(|e| panic!("{e}")).permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    leave(chat);
    house.end();
}

#[test]
fn permission_request_is_answered_with_keys() {
    let house = House::new(&[]);
    let mut chat = chat_of(&house, &["--agent", "demo"], 80, 24);
    chat.write("write notes.txt hello\r");
    let screen = chat.until("Answer with a number");
    assert!(screen.contains("notes.txt"), "{screen}");
    // Enter alone chooses nothing.
    chat.write("\r");
    chat.write("\u{1b}[B");
    chat.until("› 1. ");
    assert!(!house.cwd().join("notes.txt").exists());
    chat.write("\r");
    chat.until("[permission: ");
    until(LONG, "file written", || house.cwd().join("notes.txt").exists());
    leave(chat);
    house.end();
}

#[test]
fn message_typed_while_the_gateway_is_away_is_sent_once() {
    let mut house = House::new(&[]);
    let mut chat = chat_of(&house, &["--agent", "demo"], 80, 24);
    chat.write("before\r");
    chat.until("─ ");
    let key = newest(&house);
    house.kill_gateway();
    chat.until("reconnecting to the gateway");
    chat.write("typed meanwhile\r");
    chat.until("kept, sent once: typed meanwhile");
    house.start_gateway();
    chat.screen_with("answer to the kept message", |screen| {
        screen.matches("typed meanwhile").count() == 2 && !screen.contains("reconnecting")
    });
    assert_eq!(prompts(&house, &key), ["before", "typed meanwhile"]);
    leave(chat);
    house.end();
}

#[test]
fn attached_chat_shows_header_and_last_turns() {
    let house = House::new(&[]);
    let mut chat = chat_of(&house, &["--agent", "demo"], 80, 24);
    for (turns, text) in (1..).zip(["one", "two", "three"]) {
        chat.write(&format!("say {text}\r"));
        chat.screen_with(text, |screen| screen.matches("\n─ ").count() == turns);
    }
    let key = newest(&house);
    leave(chat);
    let mut chat = chat_of(&house, &[&key], 80, 24);
    let screen = chat.screen_with("last turns", |screen| screen.matches("say three").count() == 2);
    assert!(screen.contains("agent      demo") && screen.contains(&key), "{screen}");
    assert!(screen.contains("say two") && !screen.contains("say one"), "{screen}");
    // A session spawned here works in the chat's directory.
    chat.write("/unfocus\r");
    chat.until("> /unfocus");
    chat.write("/acp spawn demo --label second\r");
    let screen = chat.until("second (agent:demo:acp:");
    let cwd = house.cwd().to_string_lossy().into_owned();
    let view = house.verb(&["sessions", "show", &newest(&house)]);
    assert_eq!(view["cwd"], cwd.as_str(), "{screen}");
    leave(chat);
    house.end();
}

/// No text of an agent reaches the terminal as a control sequence.
#[test]
fn agent_control_sequences_never_reach_the_terminal() {
    let house = House::new(&[]);
    let mut chat = chat_of(&house, &["--agent", AGENT], 100, 30);
    chat.write("say clear \\u001b[2J clip \\u001b]52;c;QUJD\\u0007 c1 \\u009b2J turn \\u202e end\r");
    let screen = chat.until("\\u{202e} end");
    assert!(screen.contains("\\u{1b}]52;c;QUJD\\u{7} c1 \\u{9b}2J"), "{screen}");
    chat.write("permission again\\n  1. Do nothing \\u001b[2J\r");
    let screen = chat.until("Answer with a number");
    assert!(screen.contains("[the agent asks: again   1. Do nothing  [2J]"), "{screen}");
    chat.write("1");
    chat.until("permission: selected allow_once");
    let written = chat.written();
    for acts in ["\u{1b}[2J", "\u{1b}]", "\u{7}", "\u{9b}", "\u{202e}"] {
        assert!(!written.contains(acts), "{acts:?}");
    }
    leave(chat);
    house.end();
}

/// Replaces what differs between two runs by text of the same length.
fn normalized(screen: &str, key: &str) -> String {
    let id = key.rsplit(':').next().unwrap_or_default();
    let fixed: String =
        "01a2b3c4-d5e6-7f80-9a1b-2c3d4e5f6071".chars().cycle().take(id.chars().count()).collect();
    let line = |line: &str| match line.strip_prefix("─ ") {
        Some(rest) => format!("─ 0 s{}", rest.split_once(" s").map_or("", |(_, rest)| rest)),
        None => line.replace(id, &fixed),
    };
    let screen: Vec<String> = screen.lines().map(line).collect();
    screen.join("\n")
}

/// The screens of the manual are those of a real chat.
#[test]
fn screens_of_the_manual_are_real() {
    let house = House::new(&[]);
    let manual =
        std::fs::read_to_string(repository().join(MANUAL)).unwrap_or_else(|e| panic!("{MANUAL}: {e}"));
    let mut differing = Vec::new();
    for columns in [80, 120] {
        let mut chat = chat_of(&house, &["--agent", "demo", "--cwd", "/tmp"], columns, 60);
        chat.until("Ctrl-D leaves");
        let key = newest(&house);
        chat.write(&format!("\u{1b}[200~{SHOWN_MARKDOWN}\u{1b}[201~\r"));
        chat.until("─ ");
        chat.write("\u{1b}[200~plan\ntool\u{1b}[201~\r");
        chat.screen_with("end of the second turn", |screen| screen.matches("\n─ ").count() == 2);
        chat.write("permission\r");
        chat.until("Answer with a number");
        let screen = chat.screen_with("waiting", |screen| {
            screen.contains("waiting for your answer · 0 s") && !screen.contains("sending: ")
        });
        let spinner = |c: char| if ('\u{2800}'..='\u{28ff}').contains(&c) { '⠋' } else { c };
        let screen: String = normalized(&screen, &key).chars().map(spinner).collect();
        if !manual.contains(&screen) {
            differing.push(format!("{columns} columns:\n```text\n{screen}\n```"));
        }
        chat.write("1");
        chat.until("[permission: ");
        leave(chat);
    }
    assert!(differing.is_empty(), "{MANUAL} does not have these screens:\n{}", differing.join("\n"));
    house.end();
}

#[test]
fn chat_is_suspended_with_control_z_and_redrawn() {
    let house = House::new(&[]);
    let mut chat = chat_of(&house, &["--agent", "demo"], 80, 24);
    chat.write("half a line");
    chat.until("> half a line");
    chat.write("\u{1a}");
    until(LONG, "the chat is stopped, the terminal restored", || chat.is_stopped() && chat.is_cooked());
    chat.resume();
    until(LONG, "raw mode again", || !chat.is_cooked());
    chat.write(" and the rest\r");
    chat.until("> half a line and the rest");
    let key = newest(&house);
    until(LONG, "the whole line is sent", || {
        prompts(&house, &key).last().is_some_and(|text| text == "half a line and the rest")
    });
    leave(chat);
    house.end();
}

#[test]
fn question_notifies_on_the_desktop_without_the_agents_control_sequences() {
    let house = House::new(&[]);
    let mut chat = chat_of(&house, &["--agent", AGENT, "--notify", "desktop"], 80, 24);
    chat.write("permission now \\u001b\\\\ \\u0007 then\r");
    chat.until("Answer with a number");
    until(LONG, "a notification", || chat.written().contains("\u{1b}]9;acp-gateway: the agent asks: now"));
    let written = chat.written();
    let (_, rest) = written.split_once("\u{1b}]9;").unwrap_or_default();
    let text = rest.split('\u{1b}').next().unwrap_or_default();
    assert!(text.contains("then") && !text.contains('\u{7}'), "{text:?}");
    chat.write("1");
    chat.until("permission: selected");
    leave(chat);
    // Off is the default.
    let mut chat = chat_of(&house, &["--agent", AGENT], 80, 24);
    chat.write("permission quiet\r");
    chat.until("Answer with a number");
    chat.write("1");
    chat.until("permission: selected");
    assert!(!chat.written().contains("\u{1b}]") && !chat.written().contains('\u{7}'));
    leave(chat);
    house.end();
}
