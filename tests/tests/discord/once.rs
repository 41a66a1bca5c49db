//! Slash commands and clicks are done once or not at all, and whoever asked is told which: whatever is lost, killed or away
//! between their being kept and being acknowledged.

use crate::stage::Stage;
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::fake_discord::core::model::message_flag::LOADING;
use acp_tests::fake_discord::core::model::{Id, Interaction};
use acp_tests::house::GATEWAY;
use acp_tests::wait::{SOON, until};

const CALLBACK: &str = "POST /interactions/{}/{}/callback";
const BUSY: &str = "say Begun.\nwait_cancel";
const TOLD: &str = "`/acp cancel` of ann could only be done now.";

fn busy() -> (Stage, Id) {
    let stage = Stage::new(&[], "");
    let thread = stage.spawn();
    stage.fake.post(stage.ann, thread, BUSY);
    until(SOON, "the turn runs", || stage.house.prompts_received(BUSY) == 1);
    (stage, thread)
}

/// Somebody stops the turn, and nobody need have heard it.
fn cancel(stage: &Stage, thread: Id) -> Interaction {
    let used = stage.fake.command(stage.ann, thread, &stage.bot, "acp cancel", &[]);
    used.unwrap_or_else(|e| panic!("{e}"))
}

/// What the inbox holds of an interaction.
fn state(stage: &Stage, used: &Interaction) -> Option<String> {
    let sql = "SELECT state FROM acp_inbox WHERE message_id = ?1";
    stage.house.world.journal(GATEWAY).query_row(sql, [used.id.to_string()], |row| row.get(0)).ok()
}

fn is_stopped(stage: &Stage) -> bool {
    !stage.house.agent_events("turn_end").is_empty()
}

/// The turn is stopped and the thread is told so once, not as an answer to the command.
fn is_told_once(stage: &Stage, thread: Id) {
    until(SOON, "the turn is stopped", || is_stopped(stage));
    stage.said(thread, TOLD);
    stage.fake.post(stage.ann, thread, "say next");
    until(SOON, "the next one is answered", || stage.finals(thread).last().is_some_and(|it| it == "next"));
    let told = stage.told(thread).iter().filter(|it| it.content.contains("could only be done now")).count();
    assert_eq!(told, 1);
}

/// A kill between the commit and the acknowledgement: the next process does it, and says so where whoever asked saw it
/// fail.
#[test]
fn c14_r_a_command_that_was_kept_is_done_once_after_a_kill() {
    let (mut stage, thread) = busy();
    stage.fake.rest_fault(CALLBACK, When::Next(1), RestFate::StallBefore { ms: None });
    let used = cancel(&stage, thread);
    until(SOON, "it is kept", || state(&stage, &used).is_some());
    assert!(!is_stopped(&stage), "nothing is done before it is acknowledged");
    stage.house.kill_gateway();
    stage.fake.clear_faults();
    stage.house.start_gateway();
    is_told_once(&stage, thread);
    assert_eq!(state(&stage, &used).as_deref(), Some("routed"));
    stage.end();
}

/// Nobody knows whether Discord heard: it was kept, so it is done, once, and the thread is told.
#[test]
fn c14_r_a_command_whose_acknowledgement_is_lost_is_done_once() {
    for fate in [RestFate::LostAfter, RestFate::LostBefore] {
        let (stage, thread) = busy();
        stage.fake.rest_fault(CALLBACK, When::Next(1), fate);
        let used = cancel(&stage, thread);
        is_told_once(&stage, thread);
        let original = stage.fake.interaction(used.id).original_id;
        let all = stage.fake.whole_transcript();
        let thinks =
            |id: Id| all.iter().any(|it| it.id == id && it.flags & LOADING != 0 && it.deleted_ms.is_none());
        assert!(!original.is_some_and(thinks), "{fate:?}: nothing is left that still works on it");
        stage.end();
    }
}

/// Discord provably did not hear: whoever asked sees that it failed, and so it did.
#[test]
fn c14_r_a_command_that_could_not_be_acknowledged_is_not_done() {
    let (stage, thread) = busy();
    stage.fake.rest_fault(CALLBACK, When::Next(1), RestFate::ErrorBefore { status: 400 });
    let used = cancel(&stage, thread);
    until(SOON, "it is taken back", || state(&stage, &used).as_deref() == Some("refused"));
    assert!(!is_stopped(&stage) && stage.fake.interaction(used.id).answered.is_none());
    let again = stage.command(stage.ann, thread, "acp cancel", &[]);
    stage.answer(&again);
    until(SOON, "the turn is stopped", || is_stopped(&stage));
    stage.end();
}

/// What cannot be kept in time is not called taken, and is not done later either.
#[test]
fn c14_r_a_command_that_cannot_be_kept_is_refused_in_time() {
    let (stage, thread) = busy();
    let lock = stage.locked();
    let used = stage.command(stage.ann, thread, "acp cancel", &[]);
    let said = stage.private_answer(&used);
    assert!(said.contains("nothing was done") && said.contains("Try again"), "{said}");
    drop(lock);
    let again = stage.command(stage.ann, thread, "acp cancel", &[]);
    stage.answer(&again);
    until(SOON, "the turn is stopped", || is_stopped(&stage));
    assert_eq!([&used, &again].map(|it| state(&stage, it)), [None, Some("routed".to_owned())]);
    stage.end();
}
