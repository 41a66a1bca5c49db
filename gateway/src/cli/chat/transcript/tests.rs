//! Events of a session as lines.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;

fn transcript() -> Transcript {
    Transcript::new("chat", 40)
}

fn feed(transcript: &mut Transcript, events: &[Value]) -> Vec<String> {
    for event in events {
        transcript.event(event);
    }
    transcript.take_printed().iter().map(StyledLine::text).collect()
}

fn prompt(run: &str, text: &str) -> Value {
    json!({"type": "prompt", "run_id": run, "text": text, "mode": "prompt", "author": "ann", "created_at_ms": 1_000,
           "asked_in": {"channel": "console", "conversation_id": "chat"}})
}

fn text(text: &str) -> Value {
    json!({"type": "text_delta", "stream": "output", "text": text})
}

#[test]
fn output_of_an_unknown_turn_is_not_part_of_another() {
    let mut late = text("of the turn before\n\n");
    late["run_id"] = json!("a");
    let mut transcript = transcript();
    assert_eq!(feed(&mut transcript, &[prompt("b", "go"), late.clone()]), ["> go"]);
    let mut resumed = super::Transcript::new("chat", 40);
    resumed.resume("a", "long ago", 0);
    let lines = feed(&mut resumed, &[late, text("next")]);
    assert_eq!(lines, ["> long ago", "", "of the turn before"]);
}

fn done(run: &str) -> Value {
    json!({"type": "done", "run_id": run, "stop_reason": "end_turn", "created_at_ms": 13_500})
}

#[test]
fn turn_is_prompt_answer_and_duration() {
    let mut transcript = transcript();
    let lines = feed(&mut transcript, &[prompt("r", "hi\nthere"), text("one\n\ntw")]);
    assert_eq!(lines, ["> hi", "  there", "", "one"]);
    assert_eq!(transcript.pending_text(), "tw");
    let lines = feed(&mut transcript, &[text("o"), done("r")]);
    assert_eq!(lines, ["", "two", "", "─ 12 s"]);
    assert!(transcript.turns.is_empty());
}

#[test]
fn queued_prompt_is_printed_when_its_turn_begins() {
    let mut transcript = transcript();
    let lines = feed(&mut transcript, &[prompt("a", "first"), prompt("b", "second")]);
    assert_eq!((lines, transcript.turns.len()), (vec!["> first".to_owned()], 2));
    let lines = feed(&mut transcript, &[text("x"), done("a")]);
    assert_eq!(lines, ["", "x", "", "─ 12 s", "", "> second"]);
    // A queued prompt that is cancelled is never printed as running.
    feed(&mut transcript, &[prompt("c", "third")]);
    let cancelled = json!({"type": "done", "run_id": "c", "stop_reason": "cancelled"});
    assert_eq!(feed(&mut transcript, &[cancelled]), ["", "[ended: cancelled]"]);
    assert_eq!(transcript.running().unwrap().text, "second");
}

#[test]
fn prompt_of_another_client_names_its_author() {
    let mut other = prompt("r", "hi");
    other["asked_in"]["conversation_id"] = json!("elsewhere");
    assert_eq!(feed(&mut transcript(), &[other]), ["ann> hi"]);
}

#[test]
fn tool_call_is_printed_at_its_end_with_its_diff() {
    let mut transcript = transcript();
    let call = json!({"type": "tool_call", "tool_call_id": "t", "title": "Edit a.txt", "kind": "edit", "status": "pending"});
    let update = json!({"type": "tool_call_update", "tool_call_id": "t", "status": "completed", "content":
        [{"type": "diff", "path": "/w/a.txt", "oldText": "one\n", "newText": "two\n"}]});
    let lines = feed(&mut transcript, &[prompt("r", "go"), text("now"), call]);
    assert_eq!(lines, ["> go", "", "now"]);
    assert_eq!(transcript.running().unwrap().tools[0].title(), "Edit a.txt");
    let lines = feed(&mut transcript, &[update]);
    assert_eq!(lines[..2], ["", "✓ Edit a.txt"]);
    assert!(lines.iter().any(|line| line.trim() == "-one"), "{lines:#?}");
    assert!(lines.iter().any(|line| line.trim() == "+two"), "{lines:#?}");
    let failed = json!({"type": "tool_call_update", "tool_call_id": "u", "title": "Run", "status": "failed"});
    assert_eq!(feed(&mut transcript, &[failed, done("r")]), ["✗ Run (failed)", "", "─ 12 s · 1 tool"]);
}

#[test]
fn plan_changes_in_place_and_is_printed_at_the_end() {
    let plan = |status: &str| json!({"type": "plan", "entries": [{"content": "a", "status": status}, {"content": "b"}]});
    let mut transcript = transcript();
    feed(&mut transcript, &[prompt("r", "go")]);
    assert_eq!(feed(&mut transcript, &[plan("pending"), plan("in_progress")]), Vec::<String>::new());
    let shown = plan_lines(transcript.running().unwrap().plan.as_ref().unwrap(), 6);
    assert_eq!(shown.iter().map(StyledLine::text).collect::<Vec<_>>(), ["▸ a", "○ b"]);
    assert_eq!(feed(&mut transcript, &[plan("completed"), done("r")]), ["", "✓ a", "○ b", "", "─ 12 s"]);
    let long = json!([{"content": "1", "status": "completed"}, {"content": "2", "status": "completed"}, {"content": "3"}]);
    let shown: Vec<String> = plan_lines(&long, 2).iter().map(StyledLine::text).collect();
    assert_eq!(shown, ["✓ 2", "○ 3"]);
}

#[test]
fn thoughts_are_shown_on_demand() {
    let thought = |text: &str| json!({"type": "text_delta", "stream": "thought", "text": text});
    let mut transcript = transcript();
    assert_eq!(feed(&mut transcript, &[prompt("r", "go"), thought("hm\n")]), ["> go"]);
    assert!(transcript.running().unwrap().is_thinking);
    transcript.toggle_thoughts();
    assert_eq!(feed(&mut transcript, &[thought("so\n")]), ["", "  hm", "  so"]);
    assert_eq!(feed(&mut transcript, &[text("x\n\ny")]), ["", "x"]);
    assert!(!transcript.running().unwrap().is_thinking);
}

#[test]
fn permission_request_waits_as_question_until_settled() {
    let mut transcript = transcript();
    let asked = json!({"type": "permission", "permission_id": "l:5", "title": "Bash",
        "tool_call": {"rawInput": {"command": "echo hi"}},
        "options": [{"option_id": "y", "name": "Yes", "kind": "allow_once"}, {"option_id": "n", "name": "No"}]});
    let lines = feed(&mut transcript, &[prompt("r", "go"), asked.clone(), asked]);
    assert_eq!(lines, ["> go", "", "[the agent asks: Bash]", "    echo hi"]);
    let question = transcript.questions.front().unwrap();
    assert_eq!((question.options, question.lines.len()), (2, 2));
    assert!(question.lines[0].starts_with("1. Yes"), "{question:?}");
    let settled =
        json!({"type": "permission_settled", "permission_id": "l:5", "option_id": "y", "by": "ann"});
    assert_eq!(feed(&mut transcript, &[settled]), ["[permission: y (ann)]"]);
    assert!(transcript.questions.is_empty());
}

#[test]
fn changes_shown_with_a_permission_request_are_not_repeated() {
    let diff = |new: &str| json!([{"type": "diff", "path": "/w/a.txt", "oldText": "one\n", "newText": new}]);
    let asked = |id: &str| {
        json!({"type": "permission", "permission_id": id, "title": "Edit a.txt",
            "tool_call": {"toolCallId": id, "kind": "edit", "content": diff("two\n")},
            "options": [{"option_id": "y", "name": "Yes", "kind": "allow_once"}]})
    };
    let ended = |id: &str, new: &str| {
        json!({"type": "tool_call_update", "tool_call_id": id, "title": "Edit a.txt", "kind": "edit",
            "status": "completed", "content": diff(new)})
    };
    let has = |lines: &[String], text: &str| lines.iter().any(|line| line.trim() == text);
    let mut transcript = transcript();
    let lines = feed(&mut transcript, &[prompt("r", "go"), asked("t")]);
    assert!(has(&lines, "+two"), "{lines:#?}");
    assert_eq!(feed(&mut transcript, &[ended("t", "two\n")]), ["", "✓ Edit a.txt"]);
    // Other changes than those that were allowed, and calls that nobody was asked about.
    let lines = feed(&mut transcript, &[asked("u"), ended("u", "three\n")]);
    assert!(has(&lines, "+two") && has(&lines, "+three"), "{lines:#?}");
    let lines = feed(&mut transcript, &[ended("v", "two\n")]);
    assert!(has(&lines, "+two"), "{lines:#?}");
}

#[test]
fn control_sequences_of_the_agent_are_escaped() {
    let mut transcript = transcript();
    let tool =
        json!({"type": "tool_call", "tool_call_id": "t", "title": "a\u{1b}[2Jb", "status": "completed"});
    let failed = json!({"type": "error", "run_id": "r", "message": "\u{1b}]52;c;Q\u{7}", "code": "RUNTIME"});
    let lines = feed(&mut transcript, &[prompt("r", "\u{1b}[2J"), text("\u{9b}2J\n\n"), tool, failed]);
    assert!(
        lines.len() > 4 && !lines.iter().any(|line| line.contains(['\u{1b}', '\u{9b}', '\u{7}'])),
        "{lines:#?}"
    );
}

#[test]
fn durations_have_two_units() {
    for (ms, want) in [(0, "0 s"), (59_999, "59 s"), (61_000, "1 min 1 s"), (3_660_000, "1 h 1 min")] {
        assert_eq!(elapsed(ms), want);
    }
}

#[test]
fn long_thoughts_are_kept_without_their_beginning() {
    let mut transcript = transcript();
    feed(&mut transcript, &[prompt("r", "go")]);
    let piece = "é".repeat(10_000) + "\n";
    let thought = json!({"type": "text_delta", "stream": "thought", "text": piece, "run_id": "r"});
    for _ in 0..100 {
        transcript.event(&thought);
        assert!(transcript.thoughts.len() <= THOUGHT_BYTES_MAX);
    }
    transcript.toggle_thoughts();
    let lines = transcript.take_printed();
    let first = lines.iter().map(StyledLine::text).find(|line| !line.is_empty()).unwrap_or_default();
    assert_eq!(first.trim(), CUT_MARK.trim());
}
