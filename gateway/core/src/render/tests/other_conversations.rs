//! Answers in the conversation of the prompt, and in other conversations of the session.
use super::*;
use crate::event::prompt_payload;
use crate::rows::ConversationRef;

fn at(account: &str, id: &str) -> ConversationRef {
    ConversationRef::new("console", account, id)
}

/// Returns the final message of a run with this prompt row, as shown in a conversation.
fn final_text(prompt: &str, here: &ConversationRef, answer: &str, kind: EventKind, payload: Value) -> String {
    let run = run_id(1);
    let mut journal = Journal::default();
    journal.append_text(run, answer).push(Some(run), kind, payload);
    let mut digest = RunDigest::new(RunMode::Prompt, true, style()).for_conversation(here, prompt);
    digest.add(K::AgentMessage, &journal.rows[0].payload);
    render_row(binding(), &style(), &journal.rows[1], RenderData::Run(&digest)).remove(0).text
}

#[test]
fn answer_in_another_conversation_names_the_asker() {
    let prompt_row =
        |author: &str, at: Option<&ConversationRef>| prompt_payload("hi", RunMode::Prompt, author, at);
    let room = at("a", "room");
    let by_ann = "Asked by “ann” in another conversation:\n\nhello";
    for (prompt, here, want) in [
        (prompt_row("ann", Some(&room)), at("a", "room"), "hello"),
        (prompt_row("ann", Some(&room)), at("a", "side"), by_ann),
        (prompt_row("ann", Some(&room)), at("b", "room"), by_ann),
        (prompt_row("", Some(&room)), at("a", "side"), "Asked in another conversation:\n\nhello"),
        // Prompts from the API, or from a version that did not record the conversation.
        (prompt_row("ann", None), at("a", "side"), "hello"),
        (String::new(), at("a", "side"), "hello"),
    ] {
        assert_eq!(final_text(&prompt, &here, "hello", K::Done, json!({"stop_reason": "end_turn"})), want);
    }
    let failed = json!({"code": "ACP_TURN_FAILED", "message": "No."});
    let text = final_text(&prompt_row("ann", Some(&room)), &at("a", "side"), "", K::Error, failed);
    assert!(text.starts_with("Asked by “ann” in another conversation:\n\nThe turn failed"), "{text}");
}
