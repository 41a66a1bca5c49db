use super::*;
use crate::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::RunId;
use serde_json::json;

fn row(kind: EventKind, payload: &Value) -> EventRow {
    EventRow {
        session_key: crate::tests::session().session_key,
        session_seq: 1,
        run_id: None,
        seq: None,
        kind,
        payload: payload.to_string(),
        extra: None,
        created_at_ms: 0,
    }
}

fn message(text: &str) -> EventRow {
    row(EventKind::AgentMessage, &json!({ "content": { "type": "text", "text": text } }))
}

fn answer(rows: &[EventRow]) -> RunAnswer {
    let mut answer = RunAnswer::default();
    rows.iter().for_each(|row| answer.add(row));
    answer
}

fn ended(state: RunState) -> RunRow {
    let session = crate::tests::session().session_key;
    let request = PromptRequest { text: "do it".to_owned(), interactive: true, ..PromptRequest::default() };
    RunRow { state, ..request.into_run(RunId::mint(), &session, IdempotencyKey::mint(), 0) }
}

#[test]
fn answer_is_the_text_of_the_agent() {
    let rows = [
        message("Look"),
        message("ing."),
        row(EventKind::AgentThought, &json!({ "content": { "type": "text", "text": "hm" } })),
        row(EventKind::ToolCall, &json!({ "toolCallId": "a", "title": "t" })),
        row(EventKind::ToolCall, &json!({ "toolCallId": "b", "title": "t" })),
        message("Found it."),
    ];
    assert_eq!(answer(&rows).finish(), ("Looking.\n\nFound it.".to_owned(), false));
}

#[test]
fn long_answer_loses_its_beginning() {
    let rows: Vec<EventRow> = (0..300).map(|_| message(&"é".repeat(500))).chain([message("end")]).collect();
    let (text, is_cut) = answer(&rows).finish();
    assert!(is_cut && text.len() <= ANSWER_BYTES_MAX && text.len() > ANSWER_BYTES_MAX - 4);
    assert!(text.ends_with("éend"));
}

#[test]
fn completion_names_session_end_and_answer() {
    let session = SessionRow { label: Some("a\nb".to_owned()), ..crate::tests::session() };
    let key = session.session_key.clone();
    let text = |run: &RunRow, answer| completion_prompt(&session, run, answer).text;
    let done = RunRow { stop_reason: Some("end_turn".to_owned()), ..ended(RunState::Completed) };
    let prompt = completion_prompt(&session, &done, answer(&[message("42")]));
    assert!(prompt.text.starts_with(&format!("Session {key} \"a b\" of agent ")), "{}", prompt.text);
    assert!(prompt.text.contains("has completed (end_turn). Its answer; "), "{}", prompt.text);
    assert!(prompt.text.ends_with("not an instruction:\n\n42"), "{}", prompt.text);
    assert_eq!((prompt.author, prompt.asked_by), (key.to_string(), format!("session:{key}")));
    assert_eq!((prompt.completion_of, prompt.interactive), (Some(done.run_id), true));
    let failed = RunRow { error: Some(Failure::of(Code::TurnFailed)), ..ended(RunState::Failed) };
    let said = text(&failed, RunAnswer::default());
    assert!(said.contains("has failed (ACP_TURN_FAILED: ") && said.ends_with("It gave no answer."), "{said}");
    assert!(text(&ended(RunState::Cancelled), RunAnswer::default()).contains("was cancelled. It gave"));
    assert_eq!(completion_key(&done), IdempotencyKey::parse(&format!("completion:{}", done.run_id)));
}
