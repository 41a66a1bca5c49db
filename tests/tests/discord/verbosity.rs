//! Verbosity of a thread, as its users choose it.

use crate::stage::Stage;
use acp_tests::wait::{SOON, until};
use serde_json::json;

/// A turn with a text, a tool call and enough time for a card.
const TURN: &str = "say Begun.\ntool run true\nsleep 3000\nsay Over.";

fn choose(stage: &Stage, thread: u64, level: &str) {
    let said = stage.answer(&stage.command(stage.ann, thread, "acp verbosity", &[("level", json!(level))]));
    assert!(said.contains(&format!("/acp verbosity is {level}")), "{said}");
}

#[test]
fn thread_shows_chosen_verbosity() {
    let (mut stage, thread) = Stage::new(&[], "").with_thread();
    for (number, level) in (1..).zip(["full", "compact", "none"]) {
        choose(&stage, thread, level);
        if level == "compact" {
            // The setting is stored with the conversation.
            stage.restart_gateway();
        }
        let before = stage.told(thread).len();
        stage.fake.post(stage.ann, thread, TURN);
        let said = || stage.told(thread).into_iter().skip(before).map(|it| it.content).collect::<Vec<_>>();
        let card = || said().into_iter().find(|text| text.starts_with("Working"));
        match level {
            "full" => until(SOON, "full card shown", || {
                card().is_some_and(|text| text.contains("Begun.") && text.contains("\n["))
            }),
            "compact" => {
                until(SOON, "card shown", || card().is_some_and(|text| text.contains("1 tool call")))
            }
            _ => {}
        }
        if level != "full" {
            assert!(card().is_none_or(|text| !text.contains("Begun.")), "{:#?}", said());
        }
        until(SOON, "answer shown", || stage.finals(thread).len() == number);
        let answer = stage.finals(thread).pop().unwrap_or_default();
        assert_eq!(answer.contains("\n["), level == "full", "a line for the tool call: {answer}");
        assert_eq!(said().len(), if level == "none" { 1 } else { 2 }, "{:#?}", said());
    }
    stage.end();
}
