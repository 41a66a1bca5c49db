//! Kills of gateway, supervisor and Discord during a turn.

use crate::stage::Stage;
use acp_tests::house::GATEWAY;
use acp_tests::wait::{SOON, until};

const SLOW: &str = "say begun\nsleep 3000\nsay -ended";

fn begin() -> (Stage, u64) {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.fake.post(stage.ann, thread, SLOW);
    // The beginning must be journaled: a supervisor kill loses unread output.
    let key = stage.key(thread);
    let is_kept = || stage.house.history(&key).iter().any(|row| row["text"] == "begun");
    until(SOON, "beginning of the turn journaled", is_kept);
    (stage, thread)
}

/// H8: messages of the outage are read, each once, and the running turn continues.
#[test]
fn killed_gateway_resumes_turn_and_reads_missed_messages() {
    let (mut stage, thread) = begin();
    stage.house.kill_gateway();
    let missed: Vec<u64> =
        (1..=3).map(|number| stage.fake.post(stage.ann, thread, &format!("say missed {number}"))).collect();
    stage.house.start_gateway();
    stage.is_there();
    let all = ["one", "begun-ended", "missed 1", "missed 2", "missed 3"];
    stage.answers(thread, &all);
    stage.exchange(thread, "say last", &[&all[..], &["last"]].concat());
    for text in ["say one", SLOW, "say missed 1", "say missed 2", "say missed 3", "say last"] {
        assert_eq!(stage.house.prompts_received(text), 1, "{text}");
    }
    missed.into_iter().for_each(|id| stage.reacted(id, thread, "✅"));
    stage.end();
}

/// Shutdown as at an update: messages posted at any moment around it are answered once, at the latest after it.
#[test]
fn gateway_shutdown_loses_no_message() {
    const ROUNDS: i64 = 6;
    let mut stage = Stage::new(&[], "");
    let threads = [(); 3].map(|()| stage.spawn());
    let text = |round: i64| format!("say round {round}");
    for round in 0..ROUNDS {
        for thread in threads {
            stage.fake.post(stage.ann, thread, &text(round));
        }
        // A later moment in each round: from no effect of the messages to most of them.
        until(SOON, "enough rows written", || {
            let db = stage.house.world.journal(GATEWAY);
            let sql = "SELECT (SELECT count(*) FROM acp_inbox) + (SELECT count(*) FROM acp_delivery_part)";
            let want = 3 + 6 * round + round;
            db.query_row(sql, [], |row| row.get::<_, i64>(0)).is_ok_and(|count| count >= want)
        });
        stage.house.stop_gateway();
        stage.house.start_gateway();
        stage.is_there();
        let all: Vec<String> = (0..=round).map(|round| format!("round {round}")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        threads.iter().for_each(|thread| stage.answers(*thread, &all));
    }
    for round in 0..ROUNDS {
        assert_eq!(stage.house.prompts_received(&text(round)), threads.len(), "{}", text(round));
    }
    stage.end();
}

/// Agents end with their supervisor: the failed turn is announced once, and the session continues.
#[test]
fn supervisor_kill_fails_only_the_running_turn() {
    let (mut stage, thread) = begin();
    stage.house.kill_supervisor();
    stage.fake.post(stage.ann, thread, "say meanwhile");
    stage.house.start_supervisor();
    until(SOON, "next message answered", || stage.finals(thread).last().is_some_and(|it| it == "meanwhile"));
    let finals = stage.finals(thread);
    assert_eq!((finals.len(), finals[0].as_str()), (3, "one"), "{finals:#?}");
    assert!(finals[1].starts_with("begun") && finals[1].contains("The turn failed"), "{finals:#?}");
    assert_eq!(stage.house.prompts_received(SLOW), 1, "it is not tried again");
    assert_eq!(stage.house.prompts_received("say meanwhile"), 1);
    stage.end();
}

#[test]
fn discord_outage_repeats_and_loses_no_message() {
    let (mut stage, thread) = begin();
    stage.fake.kill();
    until(SOON, "turn ended", || stage.house.agent_events("turn_end").len() == 2);
    stage.fake.restart();
    stage.fake.post(stage.ann, thread, "say meanwhile");
    stage.is_there();
    stage.answers(thread, &["one", "begun-ended", "meanwhile"]);
    assert_eq!(stage.house.prompts_received("say meanwhile"), 1);
    stage.end();
}
