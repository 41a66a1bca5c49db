//! The permission mode governs file and terminal requests: no effect without permission, no question twice.

use super::files::said;
use acp_tests::cli::{RunningCommand, run};
use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::story::{check_turn, chunks};
use acp_tests::wait::{LONG, SOON, eventually};
use serde_json::{Value, json};
use std::fs;

fn pending(house: &House, key: &str) -> Vec<Value> {
    let list = house.verb(&["permissions", "list", key]);
    list.as_array().unwrap_or_else(|| panic!("not an array: {list}")).clone()
}

/// Waits for the only pending permission request.
fn question(house: &House, key: &str) -> Value {
    let list = eventually(SOON, "permission pending", || Some(pending(house, key)).filter(|l| !l.is_empty()));
    assert_eq!(list.len(), 1, "{list:?}");
    list[0].clone()
}

fn answer(house: &House, key: &str, question: &Value, option: &str) {
    let id = question["permission_id"].as_str().unwrap_or_else(|| panic!("no id: {question}"));
    let _ = house.verb(&["permissions", "answer", key, id, option]);
}

fn ask(house: &House, key: &str, script: &str) -> RunningCommand {
    house.follow(&["prompt", "--interactive", key, script])
}

/// Effects in the events: effect, outcome and reason.
fn effects(events: &[Value]) -> Vec<String> {
    let of_host = events.iter().filter(|event| event["type"] == "host_request");
    let word = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
    of_host.map(|event| ["effect", "outcome", "reason"].map(|name| word(event, name)).join(" ")).collect()
}

#[test]
fn deny_all_reads_writes_and_runs_nothing() {
    let (house, key) = Plan::flags(&[]).permission("deny-all").build().with_session();
    fs::write(house.cwd().join("there.txt"), "there").unwrap();
    let script =
        "fs_read there.txt\nfs_write new.txt x\nfs_write there.txt x\nterminal touch made\nsay alive";
    let events = ask(&house, &key, script).finish(LONG).ok().lines();
    let said = chunks(&events);
    assert_eq!(said.len(), 5, "{said:?}");
    assert!(said[..4].iter().all(|line| line.contains("error -32003")), "{said:?}");
    let left: Vec<_> = fs::read_dir(house.cwd()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["there.txt"], "no file was created and no shell ran");
    assert_eq!(fs::read_to_string(house.cwd().join("there.txt")).unwrap(), "there");
    let want = ["read refused mode", "write refused mode", "write refused mode", "run refused mode"];
    assert_eq!(effects(&events), want);
    let told = run(&mut house.plain(&["sessions", "history", &key]), LONG).ok();
    let lines: Vec<&str> = told.stderr.lines().filter(|line| line.starts_with("[host] ")).collect();
    let file = |name: &str| house.cwd().join(name).display().to_string();
    let want = [
        format!("[host] read {}: refused", file("there.txt")),
        format!("[host] write {}: refused", file("new.txt")),
        format!("[host] write {}: refused", file("there.txt")),
        "[host] run touch made: refused".to_owned(),
    ];
    assert_eq!(lines, want);
    house.end();
}

/// With approve-all nobody is asked: conversations and chats tell what was done, also at the default settings.
#[test]
fn effects_without_a_question_are_shown_in_conversations() {
    let (house, key) = House::with_approve_all(&[]).with_session();
    let (mut chat, typing) =
        RunningCommand::start_piped(&mut house.plain(&["chat", &key, "--conversation", "room"]));
    let bound = chat.line(LONG).unwrap();
    assert!(bound.contains("is bound here"), "{bound}");
    let _ = house.say("room", "1", "fs_write new.txt x\nfs_read new.txt\nterminal touch made\nsay finished");
    let file = house.cwd().join("new.txt").display().to_string();
    let mut seen = Vec::new();
    while !seen.iter().any(|line: &String| line.contains("finished")) {
        seen.push(chat.line(LONG).unwrap_or_else(|| panic!("the chat ended: {seen:#?}")));
    }
    for line in [format!("[host: write {file}: allowed]"), "[host: run touch made: allowed]".to_owned()] {
        assert!(seen.contains(&line), "{line}: {seen:#?}");
    }
    let answer = eventually(SOON, "answer in the conversation", || {
        let db = house.world.journal(GATEWAY);
        let sql = "SELECT text FROM console_message WHERE conversation_id = 'room' AND text LIKE '%finished%' AND kind <> 'person'";
        db.query_row(sql, [], |row| row.get::<_, String>(0)).ok()
    });
    for line in [format!("[host] write {file}: allowed"), "[host] run touch made: allowed".to_owned()] {
        assert!(answer.lines().any(|told| told == line), "{line}: {answer}");
    }
    assert!(!answer.contains("[host] read"), "{answer}");
    drop(typing);
    assert_eq!(chat.finish(LONG).code, Some(0));
    house.end();
}

#[test]
fn ask_mode_reads_without_asking_and_asks_before_write_and_command() {
    let (house, key) = House::new(&[]).with_session();
    fs::write(house.cwd().join("there.txt"), "old\n").unwrap();
    let turn =
        ask(&house, &key, "fs_read there.txt\nfs_write there.txt new\nterminal echo ran >made\nsay after");
    let first = question(&house, &key);
    let target = house.cwd().join("there.txt").to_string_lossy().into_owned();
    assert_eq!(first["title"], json!(format!("Write {target}")));
    assert_eq!((&first["kind"], &first["subject"]), (&json!("edit"), &json!(target)));
    let change = &first["tool_call"]["content"][0];
    assert_eq!((&change["oldText"], &change["newText"]), (&json!("old\n"), &json!("new")));
    assert_eq!(fs::read_to_string(&target).unwrap(), "old\n", "not written before it is allowed");
    answer(&house, &key, &first, "allow_once");
    let second = eventually(SOON, "next permission pending", || {
        pending(&house, &key).into_iter().find(|it| it["permission_id"] != first["permission_id"])
    });
    assert_eq!(second["subject"], "echo ran >made");
    assert!(!house.cwd().join("made").exists(), "no shell runs before it is allowed");
    answer(&house, &key, &second, "reject_once");
    let events = turn.finish(LONG).ok().lines();
    check_turn(&events, "end_turn");
    let said = chunks(&events);
    let want = ["fs_read: old\n", "fs_write: ok", "terminal: terminal/create error -32003", "after"];
    assert_eq!(said, want);
    assert_eq!(fs::read_to_string(&target).unwrap(), "new");
    assert!(!house.cwd().join("made").exists());
    assert_eq!(effects(&events), ["read allowed mode", "write allowed answer", "run refused answer"]);
    house.end();
}

#[test]
fn permission_asked_by_agent_covers_the_host_request() {
    let (house, key) = House::new(&[]).with_session();
    for (script, option, said) in [
        ("tool ask_write a.txt x", "allow_once", vec!["permission: selected allow_once", "fs_write: ok"]),
        ("tool ask_write a.txt y", "reject_once", vec!["permission: selected reject_once"]),
    ] {
        let turn = ask(&house, &key, script);
        let own = question(&house, &key);
        answer(&house, &key, &own, option);
        let events = turn.finish(LONG).ok().lines();
        assert_eq!(chunks(&events), said);
        assert_eq!(events.iter().filter(|event| event["type"] == "permission").count(), 1, "asked once");
    }
    assert_eq!(fs::read_to_string(house.cwd().join("a.txt")).unwrap(), "x");
    house.end();
}

/// The request's title is only `Bash`; the command stands in the earlier tool call.
#[test]
fn permission_request_shows_details_of_earlier_tool_call() {
    let (house, key) = House::new(&[]).with_session();
    let turn = ask(&house, &key, "tool ask_run echo hi >made");
    let own = question(&house, &key);
    assert_eq!((&own["title"], &own["subject"]), (&json!("Bash"), &json!("echo hi >made")));
    assert_eq!(own["kind"], "execute");
    let listed = run(&mut house.plain(&["permissions", "list", &key]), LONG).ok().stdout;
    for word in ["Bash", "echo hi >made", "allow_once (allow once)", "reject_always (reject always)"] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
    let show = run(&mut house.plain(&["sessions", "show", &key]), LONG).ok().stdout;
    assert!(show.contains("\npending permission request: Bash: echo hi >made ("), "{show}");
    answer(&house, &key, &own, "allow_once");
    let events = turn.finish(LONG).ok().lines();
    assert_eq!(chunks(&events)[0], "permission: selected allow_once");
    assert_eq!(events.iter().filter(|event| event["type"] == "permission").count(), 1, "asked once");
    assert_eq!(fs::read_to_string(house.cwd().join("made")).unwrap(), "hi\n");
    house.end();
}

/// OpenCode writes the file itself and reports the content afterwards.
#[test]
fn unchanged_write_needs_no_permission() {
    let (house, key) = House::new(&[]).with_session();
    assert_eq!(said(&house, &key, "tool write a.txt x\nfs_write a.txt x"), ["fs_write: ok"]);
    let events = house.history(&key);
    assert_eq!(effects(&events), ["write allowed unchanged"]);
    house.end();
}

/// The gateway is killed while a request is pending and again after the answer: asked once, written once.
#[test]
fn host_permission_request_survives_gateway_kills() {
    let (mut house, key) = House::new(&[]).with_session();
    for (n, option) in ["allow_once", "reject_once", "allow_always"].iter().enumerate() {
        let name = format!("{n}.txt");
        let turn = ask(&house, &key, &format!("fs_write {name} x"));
        let first = question(&house, &key);
        house.restart_gateway();
        assert_eq!(question(&house, &key)["permission_id"], first["permission_id"], "the same question");
        assert!(!house.cwd().join(&name).exists(), "nothing is written before the answer");
        answer(&house, &key, &first, option);
        house.restart_gateway();
        let events = turn.finish(LONG).ok().lines();
        check_turn(&events, "end_turn");
        let asked = events.iter().filter(|event| event["type"] == "permission").count();
        assert_eq!(asked, 1, "asked once");
        let is_allowed = *option != "reject_once";
        // The kill may have come between the start of the write and its answer (H3).
        let written = fs::read_to_string(house.cwd().join(&name)).ok();
        match chunks(&events)[..] {
            ["fs_write: ok"] => assert!(is_allowed && written.as_deref() == Some("x"), "{option}"),
            ["fs_write: error -32003"] => assert!(!is_allowed && written.is_none(), "{option}"),
            ["fs_write: error -32603"] => assert!(is_allowed, "{option}"),
            ref other => panic!("{option}: {other:?}"),
        }
    }
    // The last answer is a grant for writes of this session and survives restarts.
    let turn = ask(&house, &key, "fs_write more.txt x\nterminal true");
    let run = question(&house, &key);
    assert_eq!(run["kind"], "execute");
    answer(&house, &key, &run, "reject_once");
    assert_eq!(chunks(&turn.finish(LONG).ok().lines())[0], "fs_write: ok");
    let _ = house.verb(&["sessions", "set", &key, "--permission", "ask"]);
    let turn = ask(&house, &key, "fs_write last.txt x");
    let again = question(&house, &key);
    answer(&house, &key, &again, "reject_once");
    assert_eq!(chunks(&turn.finish(LONG).ok().lines()), ["fs_write: error -32003"]);
    house.end();
}

/// Unattended sessions with `approve-reads` or `ask` allow reads only.
#[test]
fn unattended_sessions_allow_reads_only() {
    for mode in ["approve-reads", "ask"] {
        let (house, key) = Plan::flags(&[]).permission(mode).build().with_session();
        fs::write(house.cwd().join("there.txt"), "there").unwrap();
        let said = said(&house, &key, "fs_read there.txt\nfs_write new.txt x\nterminal touch made");
        let want = ["fs_read: there", "fs_write: error -32003", "terminal: terminal/create error -32003"];
        assert_eq!(said, want, "{mode}");
        let left: Vec<_> =
            fs::read_dir(house.cwd()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["there.txt"], "{mode}");
        house.end();
    }
}
