//! What people do with a thread as a thread: put it away, take it out, take it from the bot, delete it.

use crate::stage::Stage;
use acp_tests::wait::{SOON, until};

/// What a session's thread is in, by our own words: that a binding rests shows nowhere on Discord.
fn state(stage: &Stage, thread: u64) -> String {
    let sql = "SELECT status FROM acp_bindings WHERE thread_id = ?1";
    let db = stage.house.world.journal(acp_tests::house::GATEWAY);
    db.query_row(sql, [thread.to_string()], |row| row.get(0)).unwrap_or_else(|e| format!("{e}"))
}

fn becomes(stage: &Stage, thread: u64, want: &str) {
    until(SOON, want, || state(stage, thread) == want);
}

#[test]
fn archived_thread_parks_binding_until_unarchived() {
    let stage = Stage::new(&[], "");
    let thread = stage.spawn();
    stage.fake.post(stage.ann, thread, "say one");
    stage.answers(thread, &["one"]);
    stage.fake.post(stage.ann, thread, "sleep 3000\nsay two");
    until(SOON, "the turn runs", || stage.house.prompts_received("sleep 3000\nsay two") == 1);
    stage.fake.archive(thread, true);
    becomes(&stage, thread, "parked");
    until(SOON, "the turn ends", || stage.house.agent_events("turn_end").len() == 2);
    assert_eq!(stage.finals(thread), ["one"], "nothing takes it out but a person");
    stage.fake.archive(thread, false);
    stage.answers(thread, &["one", "two"]);
    stage.fake.post(stage.ann, thread, "say three");
    stage.answers(thread, &["one", "two", "three"]);
    stage.end();
}

#[test]
fn deleted_thread_ends_its_session() {
    let stage = Stage::new(&[], "");
    let thread = stage.spawn();
    let key = stage.key(thread);
    stage.fake.post(stage.ann, thread, "say one");
    stage.answers(thread, &["one"]);
    stage.fake.delete_channel(thread);
    until(SOON, "the session ends", || stage.house.verb(&["sessions", "show", &key])["state"] == "closed");
    stage.end();
}

/// D3: what is forbidden now may be allowed again; nothing ends by it, and nothing is lost.
#[test]
fn lost_and_restored_access_loses_no_answer() {
    let stage = Stage::new(&[], "");
    let thread = stage.spawn();
    stage.fake.post(stage.ann, thread, "say one");
    stage.answers(thread, &["one"]);
    stage.fake.post(stage.ann, thread, "sleep 2000\nsay two");
    until(SOON, "the turn runs", || stage.house.prompts_received("sleep 2000\nsay two") == 1);
    stage.fake.deny(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    until(SOON, "the turn ends", || stage.house.agent_events("turn_end").len() == 2);
    until(SOON, "it is refused", || stage.house.gateway_log().contains("part refused; retrying"));
    stage.fake.allow(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    stage.answers(thread, &["one", "two"]);
    stage.fake.post(stage.ann, thread, "say three");
    stage.answers(thread, &["one", "two", "three"]);
    stage.end();
}
