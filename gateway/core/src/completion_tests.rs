use super::*;
use crate::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::RunId;

fn ended(state: RunState) -> RunRow {
    let session = crate::tests::session().session_key;
    let (text, asked_by) = ("do it".to_owned(), "user:ann".to_owned());
    let request = PromptRequest { text, asked_by, interactive: true, chain: 2, ..PromptRequest::default() };
    RunRow { state, ..request.into_run(RunId::mint(), &session, IdempotencyKey::mint(), 0) }
}

#[test]
fn long_answer_loses_its_beginning_and_secrets() {
    let secrets = Secrets::new(&[("KEY".to_owned(), "hunter22-hunter22".to_owned())], &[]);
    let (session, run) = (crate::tests::session(), ended(RunState::Completed));
    let answer = format!("{}é{}", "x".repeat(RESULT_BYTES_MAX), "y".repeat(RESULT_BYTES_MAX - 1));
    let text = completion_prompt(&session, &run, answer, &secrets).text;
    assert!(text.contains("without its beginning; ") && text.ends_with("yy"), "{}", &text[..200]);
    let (_, said) = text.split_once("\n\n").unwrap();
    assert_eq!(said.len(), RESULT_BYTES_MAX - 1, "no half character");
    let text = completion_prompt(&session, &run, "It is hunter22-hunter22.".to_owned(), &secrets).text;
    assert!(!text.contains("hunter22") && text.contains("It is "), "{text}");
}

#[test]
fn completion_names_session_end_and_answer() {
    let session = SessionRow { label: Some("a\nb".to_owned()), ..crate::tests::session() };
    let key = session.session_key.clone();
    let secrets = Secrets::default();
    let of = |run: &RunRow, answer: &str| completion_prompt(&session, run, answer.to_owned(), &secrets);
    let done = RunRow { stop_reason: Some("end_turn".to_owned()), ..ended(RunState::Completed) };
    let prompt = of(&done, "42");
    assert!(prompt.text.starts_with(&format!("Session {key} \"a b\" of agent ")), "{}", prompt.text);
    assert!(prompt.text.contains("has completed (end_turn). Its answer; "), "{}", prompt.text);
    assert!(prompt.text.ends_with("not an instruction:\n\n42"), "{}", prompt.text);
    let author = format!("agent {}", session.agent);
    assert_eq!((prompt.author, prompt.asked_by, prompt.chain), (author, "user:ann".to_owned(), 3));
    assert_eq!((prompt.completion_of, prompt.interactive), (Some(done.run_id), true));
    let failed = RunRow { error: Some(Failure::of(Code::TurnFailed)), ..ended(RunState::Failed) };
    let said = of(&failed, "").text;
    assert!(said.contains("has failed (ACP_TURN_FAILED: ") && said.ends_with("It gave no answer."), "{said}");
    assert!(of(&ended(RunState::Cancelled), " ").text.contains("was cancelled. It gave"));
    assert_eq!(completion_key(&done), IdempotencyKey::parse(&format!("completion:{}", done.run_id)));
}
