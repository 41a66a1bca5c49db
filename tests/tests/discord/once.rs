//! Slash commands and clicks run once or not at all, and the user learns which: with losses, kills and outages between
//! reservation and acknowledgement.

use crate::stage::{Stage, labels};
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::fake_discord::core::model::message_flag::LOADING;
use acp_tests::fake_discord::core::model::{Id, Interaction};
use acp_tests::house::GATEWAY;
use acp_tests::wait::{SOON, until};
use serde_json::json;

const CALLBACK: &str = "POST /interactions/{}/{}/callback";
const BUSY: &str = "say Begun.\nwait_cancel";
const EDIT: &str = "PATCH /webhooks/{}/{}/messages/@original";
const LOST: &str = "`/acp cancel` of “ann” was executed, but its reply may not have been delivered.";
const TOLD: &str = "`/acp cancel` of “ann” was executed late.";

fn busy() -> (Stage, Id) {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.begin_turn(thread, BUSY);
    (stage, thread)
}

/// Uses `/acp cancel` without waiting for the acknowledgement.
fn cancel(stage: &Stage, thread: Id) -> Interaction {
    let used = stage.fake.command(stage.ann, thread, &stage.bot, "acp cancel", &[]);
    used.unwrap_or_else(|e| panic!("{e}"))
}

/// Inbox state of an interaction.
fn state(stage: &Stage, used: &Interaction) -> Option<String> {
    let sql = "SELECT state FROM acp_inbox WHERE message_id = ?1";
    stage.house.world.journal(GATEWAY).query_row(sql, [used.id.to_string()], |row| row.get(0)).ok()
}

fn is_stopped(stage: &Stage) -> bool {
    !stage.house.agent_events("turn_end").is_empty()
}

/// Waits until an interaction is settled.
fn settled(stage: &Stage, used: &Interaction) {
    until(SOON, "command settled", || state(stage, used).as_deref() == Some("routed"));
}

/// Waits until the turn is stopped and the thread has one notice with this text.
fn is_told(stage: &Stage, thread: Id, words: &str) {
    until(SOON, "turn stopped", || is_stopped(stage));
    stage.said(thread, words);
    stage.fake.post(stage.ann, thread, "say next");
    until(SOON, "next message answered", || stage.finals(thread).last().is_some_and(|it| it == "next"));
    let told = stage.told(thread).iter().filter(|it| it.content.contains("`/acp cancel` of “ann”")).count();
    assert_eq!(told, 1);
}

/// A kill between reservation and acknowledgement: the next process runs the command and posts a notice, because the user
/// saw it fail.
#[test]
fn reserved_command_runs_once_after_kill() {
    let (mut stage, thread) = busy();
    stage.fake.rest_fault(CALLBACK, When::Next(1), RestFate::StallBefore { ms: None });
    let used = cancel(&stage, thread);
    until(SOON, "command stored", || state(&stage, &used).is_some());
    assert!(!is_stopped(&stage), "the command does not run before it is acknowledged");
    stage.house.kill_gateway();
    stage.fake.clear_faults();
    stage.house.start_gateway();
    is_told(&stage, thread, TOLD);
    settled(&stage, &used);
    stage.end();
}

/// A kill between the command and its reply: it does not run again, and the thread gets a notice with the outcome.
#[test]
fn finished_command_is_reported_after_kill() {
    let (mut stage, thread) = busy();
    stage.fake.rest_fault(EDIT, When::Next(1), RestFate::StallBefore { ms: None });
    let used = stage.command(stage.ann, thread, "acp cancel", &[]);
    until(SOON, "turn stopped", || is_stopped(&stage));
    until(SOON, "reply pending", || stage.fake.tally().rest_faults.values().sum::<u64>() == 1);
    assert_eq!(state(&stage, &used).as_deref(), Some("received"), "the reply was not sent");
    stage.house.kill_gateway();
    stage.fake.clear_faults();
    stage.house.start_gateway();
    is_told(&stage, thread, LOST);
    settled(&stage, &used);
    let ends = stage.house.agent_events("turn_end").len();
    assert_eq!(ends, 2, "it was done once: the next turn ran to its end");
    stage.end();
}

/// A refused reply is posted in the thread by the same process.
#[test]
fn refused_reply_is_posted_in_the_thread() {
    let (stage, thread) = busy();
    stage.fake.rest_fault(EDIT, When::Next(1), RestFate::ErrorBefore { status: 400 });
    let used = stage.command(stage.ann, thread, "acp cancel", &[]);
    is_told(&stage, thread, LOST);
    settled(&stage, &used);
    let original = stage.fake.interaction(used.id).original_id;
    until(SOON, "loading reply removed", || {
        let all = stage.fake.whole_transcript();
        !all.iter().any(|it| Some(it.id) == original && it.flags & LOADING != 0 && it.deleted_ms.is_none())
    });
    stage.end();
}

/// A reply with unknown outcome is repeated, because repeating the edit shows it once. It is not posted in the thread, and
/// its buttons are removed when its turn begins.
#[test]
fn reply_with_lost_receipt_is_repeated_and_loses_its_buttons() {
    let (stage, thread) = busy();
    stage.fake.rest_fault(EDIT, When::Next(3), RestFate::LostAfter);
    let used = stage.command(stage.ann, thread, "acp steer", &[("text", json!("say steered"))]);
    let said = stage.answer(&used);
    assert!(said.contains("queued"), "{said}");
    let original = stage.fake.interaction(used.id).original_id.unwrap_or_else(|| panic!("no answer"));
    assert_eq!(labels(&stage.message(original, thread)), ["Drop"]);
    settled(&stage, &used);
    stage.command(stage.ann, thread, "acp cancel", &[]);
    until(SOON, "buttons removed", || labels(&stage.message(original, thread)).is_empty());
    assert!(stage.told(thread).iter().all(|it| !it.content.contains("may not have been delivered")));
    stage.end();
}

/// An acknowledgement with unknown outcome: the reserved command runs once, and the thread gets a notice.
#[test]
fn command_with_lost_acknowledgement_runs_once() {
    for fate in [RestFate::LostAfter, RestFate::LostBefore] {
        let (stage, thread) = busy();
        stage.fake.rest_fault(CALLBACK, When::Next(1), fate);
        let used = cancel(&stage, thread);
        is_told(&stage, thread, TOLD);
        let original = stage.fake.interaction(used.id).original_id;
        let all = stage.fake.whole_transcript();
        let thinks =
            |id: Id| all.iter().any(|it| it.id == id && it.flags & LOADING != 0 && it.deleted_ms.is_none());
        assert!(!original.is_some_and(thinks), "{fate:?}: nothing is left that still works on it");
        stage.end();
    }
}

/// Discord provably did not accept the acknowledgement: the user sees a failure, and the command does not run.
#[test]
fn command_with_failed_acknowledgement_does_not_run() {
    let (stage, thread) = busy();
    stage.fake.rest_fault(CALLBACK, When::Next(1), RestFate::ErrorBefore { status: 400 });
    let used = cancel(&stage, thread);
    until(SOON, "command refused", || state(&stage, &used).as_deref() == Some("refused"));
    assert!(!is_stopped(&stage) && stage.fake.interaction(used.id).answered.is_none());
    stage.answer(&stage.command(stage.ann, thread, "acp cancel", &[]));
    until(SOON, "turn stopped", || is_stopped(&stage));
    stage.end();
}

/// A command that cannot be reserved in time is refused and does not run later.
#[test]
fn command_without_reservation_is_refused_in_time() {
    let (stage, thread) = busy();
    let lock = stage.locked();
    let used = stage.command(stage.ann, thread, "acp cancel", &[]);
    let said = stage.private_answer(&used);
    assert!(said.contains("nothing was done") && said.contains("Try again"), "{said}");
    drop(lock);
    let again = stage.command(stage.ann, thread, "acp cancel", &[]);
    stage.answer(&again);
    until(SOON, "turn stopped", || is_stopped(&stage));
    settled(&stage, &again);
    assert_eq!(state(&stage, &used), None);
    stage.end();
}
