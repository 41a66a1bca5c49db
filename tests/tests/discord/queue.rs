//! Queued messages while the agent is busy.

use crate::stage::{Stage, labels};
use acp_tests::wait::{SOON, until};
use serde_json::json;

#[test]
fn queued_prompts_can_be_steered_dropped_edited_and_deleted() {
    let (stage, thread) = Stage::new(&["--steer"], "").with_thread();
    stage.begin_turn(thread, "say Begun.\nwait_cancel");
    let queued = |text: &str, number: usize| {
        let id = stage.fake.post(stage.ann, thread, text);
        stage.reacted(id, thread, "⏳");
        let waits = || stage.told(thread).into_iter().filter(|it| labels(it).contains(&"Drop".to_owned()));
        until(SOON, "queue notice shown", || waits().count() == number);
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
    until(SOON, "queue buttons removed", || labels(&stage.message(gone.id, thread)).is_empty());
    stage.command(stage.ann, thread, "acp cancel", &[]);
    until(SOON, "edited message answered", || stage.finals(thread).contains(&"after".to_owned()));
    stage.answer(&stage.command(stage.ann, thread, "acp steer", &[("text", json!("say more"))]));
    let heard = |text: &str| stage.house.prompts_received(text);
    assert_eq!(["say dropped", "say before", "say deleted"].map(heard), [0, 0, 0]);
    assert_eq!(heard("say after"), 1);
    stage.end();
}
