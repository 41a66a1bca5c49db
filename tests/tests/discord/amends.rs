//! Deleted and edited messages and archived threads while the gateway cannot receive events, read or commit.

use crate::stage::Stage;
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::fake_discord::core::model::Id;
use acp_tests::fake_discord::core::stage::SocketAct;
use acp_tests::house::GATEWAY;
use acp_tests::wait::{LONG, SOON, until};
use serde_json::json;

const BUSY: &str = "say Begun.\nwait_cancel";
const TWO_HOURS_MS: u64 = 2 * 3_600_000;

fn turns_over(stage: &Stage, count: usize) {
    until(LONG, "turns ended", || stage.house.agent_events("turn_end").len() == count);
}

fn becomes(stage: &Stage, thread: Id, want: &str) {
    // The gateway may wait before it reconnects.
    stage.binding_becomes(LONG, thread, want);
}

/// A locked store loses no change: deleted messages are not prompted, and edited ones are prompted with their new text.
#[test]
fn message_deleted_while_store_is_locked_is_not_prompted() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.begin_turn(thread, BUSY);
    let [withdrawn, changed] = ["say withdrawn", "say before"].map(|text| {
        let id = stage.fake.post(stage.ann, thread, text);
        stage.reacted(id, thread, "⏳");
        // The message itself must not wait for the store.
        stage.was_read(thread, id);
        id
    });
    let lock = stage.locked();
    stage.fake.delete(withdrawn);
    stage.fake.edit(changed, "say after");
    until(LONG, "change deferred", || stage.house.gateway_log().contains("deferred kind=\"deletion\""));
    drop(lock);
    until(LONG, "both changes processed", || {
        let log = stage.house.gateway_log();
        // The change waited behind the deletion, in their order.
        log.contains("deletion processed") && log.contains("edit processed")
    });
    stage.command(stage.ann, thread, "acp cancel", &[]);
    until(SOON, "edited message answered", || stage.finals(thread).contains(&"after".to_owned()));
    let heard = ["say withdrawn", "say before", "say after"].map(|text| stage.house.prompts_received(text));
    assert_eq!(heard, [0, 0, 1]);
    stage.end();
}

/// Edits and deletions that could not be stored are found after a kill, as long as the turn has not begun.
#[test]
fn message_deleted_around_a_kill_is_not_prompted() {
    let (mut stage, thread) = Stage::new(&[], "").with_thread();
    stage.begin_turn(thread, BUSY);
    let texts = ["say withdrawn", "say before", "say kept", "say gone", "say early"];
    let [withdrawn, before, _kept, gone, early] = texts.map(|text| {
        let id = stage.fake.post(stage.ann, thread, text);
        stage.reacted(id, thread, "⏳");
        id
    });
    // Prompted by a slash command: there is no message to compare with.
    stage.answer(&stage.command(stage.ann, thread, "acp steer", &[("text", json!("say beside"))]));
    let typed = stage.fake.post(stage.ann, thread, "/acp steer say typed");
    stage.reacted(typed, thread, "⏳");
    // Otherwise the deletion would wait behind the message.
    stage.was_read(thread, typed);
    let lock = stage.locked();
    stage.fake.delete(withdrawn);
    stage.fake.edit(before, "say after");
    until(LONG, "change deferred", || stage.house.gateway_log().contains("deferred kind=\"deletion\""));
    stage.house.kill_gateway();
    drop(lock);
    stage.fake.delete(gone);
    stage.fake.edit(early, "say late");
    stage.house.start_gateway();
    stage.is_there();
    let waiting = || {
        let db = stage.house.world.journal(GATEWAY);
        let sql = "SELECT prompt FROM acp_runs WHERE state = 'queued' ORDER BY rowid";
        let mut rows = db.prepare(sql).unwrap_or_else(|e| panic!("{e}"));
        let texts = rows.query_map([], |row| row.get::<_, String>(0)).and_then(Iterator::collect);
        texts.unwrap_or_else(|e| panic!("{e}"))
    };
    let want = ["say after", "say kept", "say late", "say beside", "say typed"];
    until(LONG, "the queue has the current texts", || -> bool { Vec::<String>::eq(&waiting(), &want) });
    stage.command(stage.ann, thread, "acp cancel", &[]);
    let finals = want.map(|text| text.trim_start_matches("say "));
    until(LONG, "all texts answered", || {
        finals.iter().all(|text| stage.finals(thread).iter().any(|it| it == text))
    });
    let heard = ["say withdrawn", "say before", "say gone", "say early"]
        .map(|text| stage.house.prompts_received(text));
    assert_eq!(heard, [0; 4]);
    assert_eq!(want.map(|text| stage.house.prompts_received(text)), [1; 5]);
    stage.end();
}

/// The deletion of a thread while the store is locked is not lost.
#[test]
fn thread_deleted_while_store_is_locked_ends_its_session() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    let key = stage.key(thread);
    let lock = stage.locked();
    stage.fake.delete_channel(thread);
    until(LONG, "change deferred", || stage.house.gateway_log().contains("deferred kind=\"conversation\""));
    drop(lock);
    until(LONG, "session closed", || stage.session_state(&key) == "closed");
    stage.end();
}

/// Archiving during an outage is attributed by its time: the answer unarchives a thread that Discord archived for
/// inactivity; a thread that a person archived is parked. By the gateway's clock both were silent for seconds.
#[test]
fn missed_archiving_is_attributed_by_its_time() {
    let mut stage = Stage::new(&[], "");
    let [silent, left] = [stage.spawn(), stage.spawn()];
    for thread in [silent, left] {
        stage.fake.change(thread, json!({"auto_archive_duration": 60}));
        stage.fake.post(stage.ann, thread, "sleep 3000\nsay done");
    }
    until(SOON, "all turns running", || stage.house.prompts_received("sleep 3000\nsay done") == 2);
    stage.house.kill_gateway();
    stage.fake.advance(TWO_HOURS_MS);
    assert!(stage.is_archived(silent) && stage.is_archived(left), "Discord archives inactive threads");
    let last = stage.fake.post(stage.eve, left, "I put this away");
    stage.fake.archive(left, true);
    stage.house.start_gateway();
    stage.is_there();
    stage.was_read(left, last);
    becomes(&stage, left, "parked");
    stage.answers(silent, &["done"]);
    turns_over(&stage, 2);
    assert!(!stage.is_archived(silent) && stage.is_archived(left));
    assert_eq!(stage.finals(left), Vec::<String>::new(), "only a person unarchives it");
    stage.fake.archive(left, false);
    stage.answers(left, &["done"]);
    stage.end();
}

/// Nothing is sent to a thread whose state cannot be read: a person may have archived it meanwhile.
#[test]
fn failed_thread_check_holds_delivery_back() {
    let (mut stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.begin_turn(thread, "sleep 2000\nsay two");
    stage.house.kill_gateway();
    stage.fake.archive(thread, true);
    stage.fake.rest_fault("GET /channels/{}", When::Chance(1.0), RestFate::ErrorBefore { status: 503 });
    stage.house.start_gateway();
    turns_over(&stage, 2);
    until(LONG, "delivery refused or parked", || {
        stage.house.gateway_log().contains("part refused; retrying")
    });
    assert!(stage.is_archived(thread), "it stays archived");
    stage.fake.clear_faults();
    becomes(&stage, thread, "parked");
    assert!(stage.is_archived(thread) && stage.finals(thread) == ["one"]);
    stage.fake.archive(thread, false);
    stage.answers(thread, &["one", "two"]);
    stage.end();
}

/// Archiving during a broken event connection is noticed before the next delivery.
#[test]
fn thread_archived_during_disconnect_parks_its_binding() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.begin_turn(thread, "sleep 4000\nsay two");
    // REST requests work, but no gateway session can begin.
    stage.fake.refuse_sessions(1_000);
    stage.fake.sockets(None, SocketAct::Reset);
    until(SOON, "connection loss logged", || stage.house.gateway_log().contains("Discord connection lost"));
    stage.fake.archive(thread, true);
    turns_over(&stage, 2);
    until(LONG, "delivery refused or parked", || {
        let log = stage.house.gateway_log();
        // The thread may have been parked before the answer was ready.
        log.contains("part refused; retrying") || log.contains("is_parked=true")
    });
    assert!(stage.is_archived(thread) && stage.finals(thread) == ["one"]);
    stage.fake.refuse_sessions(0);
    becomes(&stage, thread, "parked");
    stage.fake.archive(thread, false);
    stage.answers(thread, &["one", "two"]);
    stage.end();
}
