//! Untrusted text of agents in conversations: it has no effect, and omissions are visible.

use super::*;
use crate::render::event_text::UNREADABLE;

const HOSTILE: &str = "a\u{1b}[2J\u{9b}b\u{202e}c\r\nd";
const SHOWN_TEXT: &str = "a\\u{1b}[2J\\u{9b}b\\u{202e}c\nd";
const SHOWN_LINE: &str = "a [2J b\\u{202e}c  d";

#[test]
fn control_and_direction_characters_are_escaped_in_every_part() {
    let run = run_id(1);
    let mut shown = style();
    shown.tags.extend(["tool_call", "plan", "agent_thought_chunk"].map(|tag| (tag.to_owned(), true)));
    let mut journal = Journal::default();
    journal.push(Some(run), K::AgentThought, json!({"content": {"type": "text", "text": HOSTILE}}));
    journal.append_text(run, HOSTILE);
    journal.push(Some(run), K::ToolCall, json!({"toolCallId": "1", "title": HOSTILE, "kind": "edit"}));
    let plan = json!({"entries": [{"content": HOSTILE, "status": "in_progress"}]});
    journal.push(Some(run), K::Plan, plan);
    journal.push(Some(run), K::Error, json!({"code": "ACP_TURN_FAILED", "message": HOSTILE}));
    journal.push(None, K::Status, json!({"status": "noise", "text": HOSTILE}));
    journal.push(None, K::Closed, json!({"reason": HOSTILE}));
    let texts: Vec<String> = journal.texts_in(&shown).into_iter().map(|(_, text)| text).collect();
    let [last, status, closed] = &texts[..] else { panic!("{texts:#?}") };
    let begin =
        format!("> {SHOWN_LINE}\n\n{SHOWN_TEXT}\n\n[edit] {SHOWN_LINE}\nPlan, 0 of 1 done: {SHOWN_LINE}");
    assert!(
        last.starts_with(&begin) && last.contains(&format!("failed (ACP_TURN_FAILED): {SHOWN_TEXT}")),
        "{last}"
    );
    assert_eq!(status, SHOWN_TEXT);
    assert!(closed.contains(&format!("({SHOWN_LINE})")), "{closed}");
}

#[test]
fn unreadable_rows_are_reported() {
    let run = run_id(1);
    let mut journal = Journal::default();
    journal.append_text(run, "before").append_text(run, "x").append_text(run, "after");
    journal.push(None, K::Permission, json!({})).push(None, K::Status, json!({}));
    journal.done(run, "end_turn");
    for at in [1, 3, 4] {
        "{damaged".clone_into(&mut journal.rows[at].payload);
    }
    let texts = journal.texts();
    let notice = |number: u64| (PartKind::Error, unreadable_row(number));
    let answer = format!("before\n\n{UNREADABLE}\n\nafter");
    assert_eq!(texts, [notice(4), notice(5), (PartKind::Final, answer)]);
}
