//! Text of agents is data: invalid text is repaired, and control sequences are never executed.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::cli::{RunningCommand, run};
use acp_tests::house::{GATEWAY, House};
use acp_tests::scrape::Scrape;
use acp_tests::story::{check_answer, check_failed, check_history, check_turn, chunks};
use acp_tests::wait::LONG;
use std::io::Write as _;

/// Escapes of an agent that clear the screen, set the title, write the clipboard and turn the text around.
const HOSTILE: &str = "clear \\u001b[2J title \\u001b]0;pwned\\u0007 clip \\u001b]52;c;QUJD\\u0007 c1 \\u009b2J bidi \
                       \\u202e end";

fn assert_harmless(shown: &str) {
    let own = ["\u{1b}[2m", "\u{1b}[2;3m", "\u{1b}[0m"];
    let rest = own.iter().fold(shown.to_owned(), |text, own| text.replace(own, ""));
    let acts = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\r' | '\t')) || ('\u{202a}'..='\u{202e}').contains(&c)
    };
    assert!(!rest.contains(acts), "{rest:?}");
    assert!(
        shown.contains("\\u{1b}]52;c;QUJD") && shown.contains("\\u{202e} end"),
        "the escapes are shown as text: {shown:?}"
    );
}

/// An emoji that is split between two chunks is whole for every reader, also if the gateway is killed between the two;
/// a half without a partner becomes a replacement character.
#[test]
fn emoji_split_between_chunks_is_joined() {
    let (mut house, key) = House::new(&[]).with_session();
    // A chat follows the session.
    let (mut chat, typing) = RunningCommand::start_piped(&mut house.plain(&["chat", &key]));
    assert!(chat.line(LONG).is_some_and(|line| line.contains(&key)), "the chat names its session");
    check_answer(
        &house.prompt(&key, "say kept 1 file \\ud83d\nsay \\ude00 all fine"),
        ["kept 1 file ", "😀 all fine"],
    );

    let lost = house.prompt(&key, "say a \\ud83d\nplan \\ude00\nsay \\ude00 b\nsay c \\ud83d");
    check_turn(&lost, "end_turn");
    assert_eq!(chunks(&lost), ["a ", "\u{fffd}", "\u{fffd} b", "c ", "\u{fffd}"]);

    let mut turn = house.follow(&["prompt", &key, "say over \\ud83d\nsleep 3000\nsay \\ude80 a kill"]);
    let mut killed = turn.events_until(LONG, |event| event["text"] == "over ");
    house.restart_gateway();
    killed.extend(turn.finish(LONG).ok().lines());
    check_turn(&killed, "end_turn");
    assert_eq!(chunks(&killed).concat(), "over 🚀 a kill");

    // A half that is pending when the agent dies is delivered.
    let died = house.cli(&["prompt", &key, "say last \\ud83d\ncrash"]);
    assert_eq!(chunks(&died.lines()), ["last ", "\u{fffd}"]);

    let mut seen = String::new();
    while !seen.contains("last \u{fffd}") {
        seen.push_str(&chat.line(LONG).unwrap_or_else(|| panic!("the chat ended: {seen}")));
    }
    assert!(seen.contains("kept 1 file 😀 all fine") && seen.contains("over 🚀 a kill"), "{seen}");
    drop(typing);
    assert_eq!(chat.finish(LONG).code, Some(0));
    check_history(&house.history(&key));
    let words = run(&mut house.plain(&["sessions", "history", &key]), LONG).ok().stdout;
    for text in ["kept 1 file 😀 all fine", "over 🚀 a kill", "last \u{fffd}"] {
        assert!(words.contains(text), "{text} in {words}");
    }
    house.end();
}

/// Invalid UTF-8, numbers outside of a double's range and excessive nesting are replaced and counted.
#[test]
fn invalid_agent_output_is_repaired_and_counted() {
    let (house, key) = House::new(&[]).with_session();
    let before = Scrape::fetch(&house.world.path(GATEWAY).join("gateway.sock"));
    let series =
        |outcome: &str| format!("acp_agent_line_faults_total{{backend=\"direct\",outcome=\"{outcome}\"}}");
    assert_eq!(before.value(&series("repaired")) + before.value(&series("malformed")), 0.0);
    let deep = format!("{}1e999{}", "[".repeat(200), "]".repeat(200));
    let call = |id: &str, input: &str| {
        format!(
            "raw {{\"sessionUpdate\":\"tool_call\",\"toolCallId\":\"{id}\",\"title\":\"{id}\",\"rawInput\":{input}}}"
        )
    };
    let script =
        format!("bad_utf8\n{}\n{}\nbad_json\nsay after", call("deep", &deep), call("far", "{\"n\":1e999}"));
    let events = house.prompt(&key, &script);
    check_answer(&events, ["cut \u{fffd}", "after"]);
    let input = |title: &str| {
        let call = events.iter().find(|event| event["title"] == title);
        call.unwrap_or_else(|| panic!("no {title}: {events:#?}"))["arguments_text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(input("deep").contains("nested too deeply"), "{}", input("deep"));
    assert_eq!(input("far"), "{\"n\":\"1e999\"}");
    let after = Scrape::fetch(&house.world.path(GATEWAY).join("gateway.sock"));
    assert_eq!((after.value(&series("repaired")), after.value(&series("malformed"))), (3.0, 1.0));
    house.end();
}

/// A permission request with a split emoji and line breaks in its texts is shown on one line each and can be answered.
#[test]
fn permission_texts_with_line_breaks_are_shown_on_one_line() {
    let (house, key) = House::new(&[]).with_session();
    let script = "option_name allow_once Yes \\ude00\\n  2. No, never\\u001b[2J\n\
                  permission rm \\ud83d\\n  1. Do nothing\\u202e\nsay after";
    let mut turn = house.follow(&["prompt", &key, script, "--interactive"]);
    let mut events = turn.events_until(LONG, |event| event["type"] == "permission");
    let list = house.verb(&["permissions", "list", &key]);
    assert_eq!(list[0]["title"], "rm \u{fffd}   1. Do nothing\\u{202e}", "{list}");
    assert_eq!(list[0]["options"][0]["name"], "Yes \u{fffd}   2. No, never [2J", "{list}");
    let words = run(&mut house.plain(&["permissions", "list", &key]), LONG).ok().stdout;
    assert_eq!(words.lines().count(), 2, "{words}");

    let id = list[0]["permission_id"].as_str().unwrap();
    assert_eq!(house.cli(&["permissions", "answer", &key, id, "reject_once"]).code, Some(0));
    events.extend(turn.finish(LONG).ok().lines());
    check_turn(&events, "end_turn");
    assert_eq!(chunks(&events), ["permission: selected reject_once", "after"]);

    // The same in a chat, where every line of the script is a prompt.
    let (mut chat, mut typing) = RunningCommand::start_piped(&mut house.plain(&["chat", &key]));
    typing.write_all(b"permission again\\n  1. Do nothing \\ud83d\n").unwrap();
    let mut seen = Vec::new();
    while !seen.iter().any(|line: &String| line.contains("Answer with a number.")) {
        seen.push(chat.line(LONG).unwrap_or_else(|| panic!("it ended: {seen:#?}")));
    }
    let asked: Vec<&String> = seen.iter().filter(|line| line.contains("the agent asks")).collect();
    assert_eq!(asked, ["[the agent asks: again   1. Do nothing \u{fffd}]"], "{seen:#?}");
    assert_eq!(seen.iter().filter(|line| line.starts_with("  1. ")).count(), 1, "{seen:#?}");
    typing.write_all(b"1\n").unwrap();
    drop(typing);
    let rest = chat.finish(LONG).ok().stdout;
    assert!(rest.contains("permission: selected allow_once"), "{rest}");
    house.end();
}

/// No text of an agent reaches a terminal as a control sequence, neither in a prompt nor in a history.
#[test]
fn agent_control_sequences_never_reach_the_terminal() {
    let (house, key) = House::new(&[]).with_session();
    let script = format!(
        "say {HOSTILE}\nthought {HOSTILE}\nplan {HOSTILE}\ntool run true # {HOSTILE}\nmode {HOSTILE}\n\
         error_data -32603 \"{HOSTILE}\""
    );
    let shown = run(&mut house.in_terminal(&["prompt", &key, &script]), LONG);
    assert_harmless(&shown.stdout);
    assert!(shown.stdout.contains("Internal error: clear"), "{shown:#?}");
    for verb in [["sessions", "history"], ["sessions", "show"], ["permissions", "list"]] {
        let shown = run(&mut house.in_terminal(&[verb[0], verb[1], &key]), LONG).ok();
        if verb[1] == "history" {
            assert_harmless(&shown.stdout);
        }
        assert!(!shown.stdout.contains(['\u{7}', '\u{9b}', '\u{202e}']), "{verb:?}: {shown:#?}");
    }
    // Programs get JSON that means the same.
    let json = run(&mut house.in_terminal(&["sessions", "history", &key, "--json"]), LONG).ok();
    assert!(!json.stdout.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{json:#?}");
    assert!(chunks(&json.lines())[0].contains("\u{1b}]52;c;QUJD\u{7} c1 \u{9b}2J bidi \u{202e} end"));
    house.end();
}

/// The `data` of an agent's error is part of the error message, on one line.
#[test]
fn error_data_of_agent_is_part_of_the_error_message() {
    let (house, key) = House::new(&[]).with_session();
    let script = "error_data -32603 \"Configuration value not found: GOOSE_PROVIDER\\n[tool] nothing\"";
    let events = house.cli(&["prompt", &key, script]).lines();
    let error = check_failed(&events, "ACP_TURN_FAILED");
    let want = "Internal error: Configuration value not found: GOOSE_PROVIDER [tool] nothing (-32603)";
    assert!(error["message"].as_str().unwrap().contains(want), "{error}");
    house.end();
}
