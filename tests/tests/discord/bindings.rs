//! Bindings on Discord: by users, by configuration, with timeouts, and where they are not allowed.

use crate::stage::{Stage, texts};
use acp_tests::house::AGENT;
use acp_tests::wait::{LONG, SOON, until};
use serde_json::json;

/// Two sessions of one channel answer concurrently: each in its own thread, and none in the channel.
#[test]
fn two_sessions_of_one_channel_answer_only_in_their_threads() {
    let stage = Stage::new(&[], "");
    let threads = [stage.spawn(), stage.spawn()];
    let before = texts(&stage.told(stage.channel));
    for round in 0..3 {
        for (number, thread) in threads.iter().enumerate() {
            stage.fake.post(stage.ann, *thread, &format!("sleep 300\nsay {round} of {number}"));
        }
    }
    for (number, thread) in threads.iter().enumerate() {
        let want: Vec<String> = (0..3).map(|round| format!("{round} of {number}")).collect();
        stage.answers(*thread, &want.iter().map(String::as_str).collect::<Vec<_>>());
    }
    assert_eq!(texts(&stage.told(stage.channel)), before, "the channel gets no message");
    stage.end();
}

/// Where spawns may not bind, a spawn is refused with the next step, and no thread is created.
#[test]
fn spawn_without_binding_right_creates_no_thread() {
    let stage = Stage::new(&[], "thread_bindings = { spawn_acp_sessions = false }");
    let before = stage.told(stage.channel).len();
    let used = stage.command(stage.ann, stage.channel, "acp spawn", &[("agent", json!(AGENT))]);
    let said = stage.answer(&used);
    assert!(said.contains("spawn_acp_sessions") && said.contains("Next: "), "{said}");
    assert_eq!(stage.fake.threads_of(stage.channel).len(), 0);
    assert!(stage.told(stage.channel).len() <= before + 1, "at most the reply");
    let options = [("agent", json!(AGENT)), ("thread", json!("off"))];
    let said = stage.answer(&stage.command(stage.ann, stage.channel, "acp spawn", &options));
    assert!(said.contains("bound to no conversation"), "{said}");
    stage.end();
}

#[test]
fn idle_timeout_set_by_command_ends_binding_with_notice() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    let said = stage.answer(&stage.command(stage.ann, thread, "session max-age", &[("time", json!("2h"))]));
    assert!(said.contains("/session max-age is 2h"), "{said}");
    let refused = stage.answer(&stage.command(stage.boss, thread, "session idle", &[("time", json!("off"))]));
    assert!(refused.contains("ACP_NOT_OWNER"), "{refused}");
    let said = stage.answer(&stage.command(stage.ann, thread, "session idle", &[("time", json!("2s"))]));
    assert!(said.contains("/session idle is 2s"), "{said}");
    let count = stage.told(thread).len();
    until(LONG, "farewell shown", || stage.told(thread).len() > count);
    let farewell = texts(&stage.told(thread)).split_off(count).join("\n");
    assert!(farewell.contains("2s") && farewell.contains("/acp spawn"), "{farewell}");
    stage.fake.post(stage.ann, thread, "say too late");
    stage.fake.post(stage.ann, thread, "/acp sessions");
    until(SOON, "command answered", || stage.told(thread).len() > count + 1);
    assert_eq!(stage.house.prompts_received("say too late"), 0);
    stage.end();
}

/// A static binding added by a reload applies to the next message; a thread joins the session of its channel.
#[test]
fn static_binding_added_by_reload_works_from_first_message() {
    let stage = Stage::new(&[], "");
    stage.fake.post(stage.ann, stage.channel, "say not yet");
    // When this is answered, the message before it has been handled.
    stage.fake.post(stage.ann, stage.channel, "/acp sessions");
    until(SOON, "command answered", || !stage.told(stage.channel).is_empty());
    stage.bind_channel();
    stage.exchange(stage.channel, "say one", &["one"]);
    let thread = stage.fake.make_thread(stage.ann, stage.channel, "a talk", None);
    stage.exchange(thread, "say two", &["two"]);
    assert_eq!(stage.house.received("session/new").len(), 1, "the thread joins its channel's session");
    let said = stage.answer(&stage.command(stage.ann, stage.channel, "unfocus", &[]));
    assert!(said.contains("configuration"), "{said}");
    assert_eq!(stage.house.prompts_received("say not yet"), 0);
    stage.end();
}
