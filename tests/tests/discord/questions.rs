//! Permission requests in a thread: the planned action, the approvers, and the outcome, once.

use crate::stage::{LIVE, Stage, labels};
use acp_tests::fake_discord::core::model::message_flag::EPHEMERAL;
use acp_tests::fake_discord::core::model::{Id, Message};
use acp_tests::wait::{SOON, until};
use serde_json::json;

/// Public messages that show the outcome of a permission request.
fn ends(stage: &Stage, thread: Id) -> Vec<Id> {
    let says = ["nswered", "Closed without an answer", "is resolved"];
    let told = stage.told(thread).into_iter();
    let public = told.filter(|it| it.flags & EPHEMERAL == 0);
    public.filter(|it| says.iter().any(|part| it.content.contains(part))).map(|it| it.id).collect()
}

fn is_over(stage: &Stage, asked: &Message, says: &str) {
    let shown = stage.shows(asked, says);
    assert!(!shown.content.contains("Waits for"), "{}", shown.content);
    until(SOON, "buttons removed", || labels(&stage.message(asked.id, asked.channel_id)).is_empty());
}

/// Answered by button, slash command, typed command and command line, or cancelled: the request shows its outcome, once.
#[test]
fn permission_outcome_is_shown_once_for_every_way_to_answer() {
    let (stage, thread) = Stage::new(&[], LIVE).with_thread();
    let key = stage.key(thread);
    let mut asked_for = Vec::new();
    for (number, says) in (1..).zip([
        "Answered: “allow once” (by “boss”).",
        "Answered: “reject once” (by “boss”).",
        "Answered: “allow always” (by “boss”).",
        "Answered: “reject once” (by “",
        "Closed without an answer (the turn was stopped).",
    ]) {
        stage.fake.post(stage.ann, thread, &format!("say On it. \npermission Step {number}"));
        let asked = stage.said(thread, &format!("**Step {number}** (execute)"));
        // The request shows its approvers, deadline and id, and does not repeat its buttons as text.
        let waits = format!("\n-# Waits for an answer of <@{}>, within 10m · id ", stage.boss);
        assert!(asked.content.contains(&waits) && !asked.content.contains("1. "), "{}", asked.content);
        assert_eq!(labels(&asked), ["allow once", "allow always", "reject once", "reject always"]);
        stage.said(thread, "Waiting for a permission");
        let id = asked.content.rsplit_once(" id ").map(|(_, id)| id.to_owned()).unwrap_or_default();
        match number {
            1 => drop(stage.press(stage.boss, &asked, "allow once")),
            2 => drop(stage.command(stage.boss, thread, "acp deny", &[])),
            3 => drop(stage.fake.post(stage.boss, thread, &format!("/acp answer {id} 2"))),
            4 => {
                let pending = stage.house.verb(&["permissions", "list", &key]);
                let id = pending[0]["permission_id"].as_str().unwrap_or_else(|| panic!("{pending}"));
                drop(stage.house.cli(&["permissions", "answer", &key, id, "reject_once"]).ok());
            }
            _ => drop(stage.command(stage.ann, thread, "acp cancel", &[])),
        }
        is_over(&stage, &asked, says);
        asked_for.push(asked.id);
        until(SOON, "turn ended", || stage.finals(thread).len() == number);
    }
    assert_eq!(ends(&stage, thread), asked_for, "each once");
    until(SOON, "all buttons removed", || stage.told(thread).iter().all(|it| labels(it).is_empty()));
    stage.end();
}

/// An unanswered request shows the timeout as its outcome; its deadline is shown from the beginning.
#[test]
fn unanswered_permission_request_shows_timeout() {
    let (stage, thread) = Stage::new(&[], "[permission]\ntimeout_ms = 3000\n").with_thread();
    stage.fake.post(stage.ann, thread, "permission Step 1");
    let asked = stage.said(thread, "Step 1");
    is_over(&stage, &asked, "Nobody answered in time: “reject once”.");
    until(SOON, "turn ended", || stage.finals(thread).len() == 1);
    assert_eq!(ends(&stage, thread), [asked.id]);
    stage.end();
}

/// A prompt queued by command has a button while it waits; a dropped or started one has none.
#[test]
fn queued_prompt_loses_drop_button_when_turn_begins() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    let turn = "say Begun.\nwait_cancel";
    stage.begin_turn(thread, turn);
    let queued = |text: &str| {
        let used = stage.command(stage.ann, thread, "acp steer", &[("text", json!(text))]);
        let said = stage.answer(&used);
        assert!(said.contains("queued as a prompt behind"), "{said}");
        let id = stage.fake.interaction(used.id).original_id.unwrap_or_else(|| panic!("{said}"));
        let message = stage.message(id, thread);
        assert_eq!(labels(&message), ["Drop"]);
        message
    };
    let dropped = queued("say never");
    stage.press(stage.ann, &dropped, "Drop");
    let shown = stage.shows(&dropped, "It was dropped");
    assert!(labels(&shown).is_empty(), "{shown:?}");
    let next = "say Again.\nwait_cancel";
    let begun = queued(next);
    stage.command(stage.ann, thread, "acp cancel", &[]);
    until(SOON, "next turn running", || stage.house.prompts_received(next) == 1);
    let shown = stage.shows(&begun, "It has started.");
    assert!(labels(&shown).is_empty(), "{shown:?}");
    until(SOON, "first turn answered", || stage.finals(thread).len() == 1);
    stage.command(stage.ann, thread, "acp cancel", &[]);
    until(SOON, "turns ended", || stage.finals(thread).len() == 2);
    stage.end();
}
