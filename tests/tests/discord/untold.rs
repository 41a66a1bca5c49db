//! Conversations that refuse the bot's messages, and messages that arrive there meanwhile.

use crate::stage::{Stage, texts, untagged};
use acp_tests::fake_discord::core::faults::{EventFate, RestFate, When};
use acp_tests::house::GATEWAY;
use acp_tests::wait::{LONG, until};

const BUSY: &str = "say Begun.\nwait_cancel";

/// Waits until every message is handled and replied to.
fn settled(stage: &Stage) {
    until(LONG, "every reply is sent", || {
        let db = stage.house.world.journal(GATEWAY);
        let sql = "SELECT count(*) FROM acp_inbox WHERE state = 'received'";
        db.query_row(sql, [], |row| row.get::<_, i64>(0)).is_ok_and(|left| left == 0)
    });
}

/// Discord refuses messages in one thread: prompts, deletions and commands there still work, other threads continue, and
/// every reply is sent once afterwards.
#[test]
fn thread_refusing_messages_blocks_nothing_else() {
    let stage = Stage::new(&[], "");
    let [thread, other] = [stage.spawn(), stage.spawn()];
    stage.begin_turn(thread, BUSY);
    let create = format!("POST /channels/{thread}/messages");
    stage.fake.rest_fault(&create, When::Chance(1.0), RestFate::ErrorBefore { status: 503 });
    let [withdrawn, _kept] = ["say withdrawn", "say kept"].map(|text| {
        let id = stage.fake.post(stage.ann, thread, text);
        stage.reacted(id, thread, "⏳");
        id
    });
    stage.fake.delete(withdrawn);
    until(LONG, "deletion processed", || stage.house.gateway_log().contains("deletion processed"));
    stage.exchange(other, "say elsewhere", &["elsewhere"]);
    stage.fake.post(stage.ann, thread, "/acp cancel");
    until(LONG, "next turn running", || stage.house.prompts_received("say kept") == 1);
    until(LONG, "turn ended", || stage.house.agent_events("turn_end").len() == 3);
    let replies = ["queued behind 1", "queued behind 2", "was asked to stop"];
    let told = texts(&stage.told(thread));
    let is_reply = |text: &String| replies.iter().any(|part| text.contains(part));
    assert!(!told.iter().any(is_reply), "replies cannot be sent there: {told:#?}");
    stage.fake.clear_faults();
    until(LONG, "answer shown", || stage.finals(thread).iter().any(|text| text == "kept"));
    settled(&stage);
    let mut told: Vec<String> =
        texts(&stage.told(thread)).iter().map(|text| untagged(text).to_owned()).collect();
    for part in replies {
        assert_eq!(told.iter().filter(|text| text.contains(part)).count(), 1, "{part}: {told:#?}");
    }
    let count = told.len();
    told.sort();
    told.dedup();
    assert_eq!(told.len(), count, "no message is sent twice: {told:#?}");
    assert_eq!(stage.house.prompts_received("say withdrawn"), 0);
    stage.end();
}

/// A message without event, posted right after the message that creates a static binding: backfill reads it although it
/// is older than the binding.
#[test]
fn message_right_after_first_bound_message_is_not_lost() {
    let stage = Stage::new(&[], "");
    stage.bind_channel();
    let lock = stage.locked();
    stage.fake.post(stage.ann, stage.channel, "say one");
    stage.fake.event_fault("MESSAGE_CREATE", When::Next(1), EventFate::Drop);
    stage.fake.post(stage.ann, stage.channel, "say two");
    assert_eq!(stage.fake.tally().event_faults.get("drop"), Some(&1));
    drop(lock);
    stage.answers(stage.channel, &["one", "two"]);
    assert_eq!(["say one", "say two"].map(|text| stage.house.prompts_received(text)), [1, 1]);
    stage.end();
}
