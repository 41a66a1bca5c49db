//! Queued messages while the agent is busy, and stopping a turn.

use crate::stage::{Stage, labels};
use acp_tests::wait::{SOON, until};
use serde_json::json;

const LIVE: &str = "[acp.stream]\ndelivery_mode = \"live\"\nmin_interval_ms = 500\ncoalesce_idle_ms = 750\n";

#[test]
fn stop_button_cancels_turn() {
    let (stage, thread) = Stage::new(&[], LIVE).with_thread();
    stage.fake.post(stage.ann, thread, "say Begun.\nwait_cancel");
    let card = stage.said(thread, "Begun.");
    assert_eq!(labels(&card), ["Stop"]);
    stage.press(stage.ann, &card, "Stop");
    let folded = stage.shows(&card, "Cancelled");
    assert!(labels(&folded).is_empty(), "{folded:?}");
    stage.fake.post(stage.ann, thread, "say next");
    until(SOON, "the next one is answered", || stage.finals(thread).last().is_some_and(|it| it == "next"));
    stage.end();
}

#[test]
fn queued_prompts_can_be_steered_dropped_edited_and_deleted() {
    let (stage, thread) = Stage::new(&["--steer"], "").with_thread();
    stage.begin_turn(thread, "say Begun.\nwait_cancel");
    let queued = |text: &str, number: usize| {
        let id = stage.fake.post(stage.ann, thread, text);
        stage.reacted(id, thread, "⏳");
        let waits = || stage.told(thread).into_iter().filter(|it| labels(it).contains(&"Drop".to_owned()));
        until(SOON, "it is said that it waits", || waits().count() == number);
        (id, waits().next_back().unwrap_or_else(|| panic!("{text} waits")))
    };
    let (_, dropped) = queued("say dropped", 1);
    assert_eq!(labels(&dropped), ["Steer now", "Drop"]);
    stage.press(stage.ann, &dropped, "Drop");
    stage.shows(&dropped, "dropped");
    let (_, steered) = queued("say steered", 1);
    stage.press(stage.ann, &steered, "Steer now");
    stage.shows(&steered, "It was sent into the running turn.");
    let (changed, _) = queued("say before", 1);
    stage.fake.edit(changed, "say after");
    let (deleted, gone) = queued("say deleted", 2);
    stage.fake.delete(deleted);
    until(SOON, "it waits no more", || labels(&stage.message(gone.id, thread)).is_empty());
    stage.command(stage.ann, thread, "acp cancel", &[]);
    until(SOON, "the changed one is answered", || stage.finals(thread).contains(&"after".to_owned()));
    let steered = stage.command(stage.ann, thread, "acp steer", &[("text", json!("say more"))]);
    stage.answer(&steered);
    let heard = |text: &str| stage.house.prompts_received(text);
    assert_eq!(["say dropped", "say before", "say deleted"].map(heard), [0, 0, 0]);
    assert_eq!(heard("say after"), 1);
    stage.end();
}
