//! Live areas of chats, at several sizes.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::cli::chat::editor::Editor;
use crate::cli::chat::state::OutgoingMessage;
use crate::cli::chat::transcript::Transcript;
use acp_shared::ids::IdempotencyKey;
use serde_json::json;

fn chat(events: &[serde_json::Value]) -> ChatState {
    let dir = tempfile::tempdir().unwrap();
    let editor = Editor::new(&dir.path().join("history"));
    let mut chat = ChatState::new(Transcript::new("chat", 79), editor, "/work".to_owned());
    for event in events {
        chat.transcript.event(event);
    }
    chat
}

fn prompt(run: &str, text: &str) -> serde_json::Value {
    json!({"type": "prompt", "run_id": run, "text": text, "mode": "prompt", "created_at_ms": 0})
}

fn texts(area: &LiveArea) -> Vec<String> {
    area.lines.iter().map(StyledLine::text).collect()
}

#[test]
fn idle_chat_shows_input_and_hint() {
    let mut chat = chat(&[]);
    chat.editor.paste("hello");
    let area = live_area(&chat, 0, 80, 24);
    assert_eq!(texts(&area)[1], "> hello");
    assert_eq!((area.lines.len(), area.cursor), (3, (1, 7)));
    assert!(texts(&area)[2].contains("/acp help"));
}

#[test]
fn running_turn_shows_tools_plan_spinner_and_queue() {
    let tool = json!({"type": "tool_call", "tool_call_id": "t", "title": "Read a", "status": "in_progress"});
    let plan = json!({"type": "plan", "entries": [{"content": "step", "status": "in_progress"}]});
    let text = json!({"type": "text_delta", "stream": "output", "text": "an *open* block"});
    let area = live_area(&chat(&[prompt("a", "go"), prompt("b", "next"), tool, plan, text]), 5_200, 80, 24);
    let rows = texts(&area);
    let want = [
        "",
        "an open block",
        "",
        "◐ Read a (in_progress)",
        "▸ step",
        "⠹ working · 5 s",
        "queued: next",
        "> ",
    ];
    assert_eq!(rows[..8], want);
    assert_eq!(area.cursor, (7, 2));
}

#[test]
fn lost_gateway_is_named_with_the_messages_that_wait() {
    let mut chat = chat(&[]);
    chat.away_since_ms = Some(1_000);
    let message = OutgoingMessage { key: IdempotencyKey::mint(), text: "kept".to_owned(), is_answer: false };
    chat.outgoing.push_back(message);
    let rows = texts(&live_area(&chat, 4_000, 80, 24));
    assert_eq!(rows[1..3], ["⠋ reconnecting to the gateway · 3 s", "kept, sent once: kept"]);
}

#[test]
fn question_shows_numbered_options() {
    let asked = json!({"type": "permission", "permission_id": "l:1", "title": "t",
        "options": [{"option_id": "y", "name": "Yes"}, {"option_id": "n", "name": "No"}]});
    let mut chat = chat(&[prompt("a", "go"), asked]);
    chat.selected = Some(1);
    let rows = texts(&live_area(&chat, 0, 80, 24));
    assert_eq!(
        rows[1..5],
        [
            "⠋ waiting for your answer · 0 s",
            "  1. Yes",
            "› 2. No",
            "  Answer with a number, or with arrows and Enter",
        ]
    );
}

#[test]
fn every_area_fits_the_terminal() {
    let long = json!({"type": "text_delta", "stream": "output", "text": "word ".repeat(400)});
    let mut chat = chat(&[prompt("a", "go"), prompt("b", &"long ".repeat(50)), long]);
    chat.editor.paste(&"line\n".repeat(30));
    for (width, rows) in [(80, 24), (120, 40), (30, 6), (10, 3), (5, 1)] {
        let area = live_area(&chat, 0, width, rows);
        assert!(area.lines.len() <= rows.saturating_sub(1).max(3), "{width}x{rows}: {:#?}", texts(&area));
        assert!(
            area.lines.iter().all(|line| line.width() <= width.max(11)),
            "{width}x{rows}: {:#?}",
            texts(&area)
        );
        assert!(area.cursor.0 < area.lines.len(), "{width}x{rows}");
    }
}
