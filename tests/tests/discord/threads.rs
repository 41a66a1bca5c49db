//! Threads that people archive, unarchive, make inaccessible or delete.

use crate::stage::Stage;
use acp_tests::wait::{SOON, until};

#[test]
fn archived_thread_parks_binding_until_unarchived() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.begin_turn(thread, "sleep 3000\nsay two");
    stage.fake.archive(thread, true);
    stage.binding_becomes(SOON, thread, "parked");
    until(SOON, "turn ended", || stage.house.agent_events("turn_end").len() == 2);
    assert_eq!(stage.finals(thread), ["one"], "only a person unarchives it");
    stage.fake.archive(thread, false);
    stage.answers(thread, &["one", "two"]);
    stage.exchange(thread, "say three", &["one", "two", "three"]);
    stage.end();
}

#[test]
fn deleted_thread_ends_its_session() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    let key = stage.key(thread);
    stage.exchange(thread, "say one", &["one"]);
    stage.fake.delete_channel(thread);
    until(SOON, "session closed", || stage.session_state(&key) == "closed");
    stage.end();
}

/// D3: lost access ends no session and loses no answer, because it may return.
#[test]
fn lost_and_restored_access_loses_no_answer() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.begin_turn(thread, "sleep 2000\nsay two");
    stage.fake.deny(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    until(SOON, "turn ended", || stage.house.agent_events("turn_end").len() == 2);
    until(SOON, "delivery refused", || stage.house.gateway_log().contains("part refused; retrying"));
    stage.fake.allow(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    stage.answers(thread, &["one", "two"]);
    stage.exchange(thread, "say three", &["one", "two", "three"]);
    stage.end();
}
