//! Answers in the conversation that asked, and in others of the same session.
use super::*;
use crate::event::prompt_payload;
use crate::rows::ConversationRef;

fn at(account: &str, id: &str) -> ConversationRef {
    ConversationRef::new("console", account, id)
}

/// Returns the final message of a run with this prompt row, as shown in a conversation.
fn told(prompt: &str, here: &ConversationRef, answer: &str, kind: EventKind, payload: Value) -> String {
    let run = run_id(1);
    let mut journal = Journal::default();
    journal.say(run, answer).push(Some(run), kind, payload);
    let mut digest = RunDigest::new(RunMode::Prompt, true, style()).for_conversation(here, prompt);
    digest.add(K::AgentMessage, &journal.rows[0].payload);
    render_row(binding(), &style(), &journal.rows[1], RenderData::Run(&digest)).remove(0).text
}

#[test]
fn only_the_conversation_that_asked_is_told_the_answer_without_a_heading() {
    let asked =
        |author: &str, at: Option<&ConversationRef>| prompt_payload("hi", RunMode::Prompt, author, at);
    let room = at("a", "room");
    let by_ann = "Asked by “ann” in another conversation:\n\nhello";
    for (prompt, here, want) in [
        (asked("ann", Some(&room)), at("a", "room"), "hello"),
        (asked("ann", Some(&room)), at("a", "side"), by_ann),
        (asked("ann", Some(&room)), at("b", "room"), by_ann),
        (asked("", Some(&room)), at("a", "side"), "Asked in another conversation:\n\nhello"),
        // Prompts from the API, or from a version that did not record the conversation.
        (asked("ann", None), at("a", "side"), "hello"),
        (String::new(), at("a", "side"), "hello"),
    ] {
        assert_eq!(told(&prompt, &here, "hello", K::Done, json!({"stop_reason": "end_turn"})), want);
    }
    let failed = json!({"code": "ACP_TURN_FAILED", "message": "No."});
    let text = told(&asked("ann", Some(&room)), &at("a", "side"), "", K::Error, failed);
    assert!(text.starts_with("Asked by “ann” in another conversation:\n\nThe turn failed"), "{text}");
}
