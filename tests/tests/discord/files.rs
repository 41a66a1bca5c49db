//! Long answers and diffs as files: whole and once, also if the gateway is killed between a message with a file and its
//! receipt; and as messages where Discord refuses files.

use crate::stage::{CREATE, Stage};
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::fake_discord::core::model::{Id, Message};
use acp_tests::wait::{SOON, eventually, until};
use serde_json::json;

/// About 24,000 characters of the demo agent, and a file write.
const LONG: &str = "stream 400 size 60\nwrite notes.txt Something new";
const CHUNKS: usize = 400;

/// Spawns the demo agent with `approve-all` in a thread.
fn spawn(stage: &Stage) -> Id {
    stage.spawn_of("demo", &[("permission", json!("approve-all"))])
}

/// Messages with files in a thread.
fn with_files(stage: &Stage, thread: Id) -> Vec<Message> {
    stage.told(thread).into_iter().filter(|message| !message.attachments.is_empty()).collect()
}

/// File names and contents of a message.
fn contents(stage: &Stage, message: &Message) -> Vec<(String, String)> {
    let of = |id: Id| String::from_utf8(stage.fake.file(id)).unwrap_or_else(|e| panic!("{e}"));
    message.attachments.iter().map(|file| (file.filename.clone(), of(file.id))).collect()
}

/// Checks that a message has the whole answer and the diff.
fn is_whole(stage: &Stage, message: &Message) {
    let files = contents(stage, message);
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["answer.md", "turn.diff"], "{}", message.content);
    assert_eq!(numbers(&files[0].1), (1..=CHUNKS).collect::<Vec<_>>());
    assert!(files[0].1.contains("Wrote notes.txt."), "the end of it is there too");
    let diff = &files[1].1;
    assert!(diff.starts_with("--- ") && diff.contains("\n+++ b/") && diff.contains("/notes.txt\n"), "{diff}");
    assert!(diff.contains("\n+Something new\n"), "{diff}");
    assert!(
        message.content.starts_with("chunk 1.") && message.content.contains("answer.md has the whole answer")
    );
}

fn numbers(text: &str) -> Vec<usize> {
    let number = |line: &str| line.strip_prefix("chunk ")?.trim_end_matches('.').parse().ok();
    text.lines().filter_map(number).collect()
}

/// Numbers of the chunks in the messages of a thread after the first `from` ones.
fn told(stage: &Stage, thread: Id, from: usize) -> Vec<usize> {
    stage.told(thread).iter().skip(from).flat_map(|message| numbers(&message.content)).collect()
}

#[test]
fn long_answer_is_one_file_across_gateway_kills() {
    let mut stage = Stage::new(&[], "");
    let thread = spawn(&stage);
    stage.fake.post(stage.ann, thread, LONG);
    let first = eventually(SOON, "answer shown", || with_files(&stage, thread).pop());
    is_whole(&stage, &first);
    assert!(contents(&stage, &first)[1].1.starts_with("--- /dev/null\n"), "the file was not there");
    // The gateway is killed between the stored message and its receipt.
    stage.fake.rest_fault(CREATE, When::Next(1), RestFate::StallAfter { ms: Some(20_000) });
    stage.fake.post(stage.ann, thread, "stream 400 size 60\nwrite notes.txt Something else");
    until(SOON, "message stored, receipt held", || {
        stage.fake.tally().rest_faults.contains_key("stall_after")
    });
    stage.restart_gateway();
    // The gateway is killed before Discord stores the message: it is created again.
    stage.fake.clear_faults();
    stage.fake.rest_fault(CREATE, When::Next(1), RestFate::StallBefore { ms: Some(20_000) });
    stage.fake.post(stage.ann, thread, LONG);
    until(SOON, "message request held", || stage.fake.tally().rest_faults.contains_key("stall_before"));
    stage.house.kill_gateway();
    stage.fake.clear_faults();
    stage.house.start_gateway();
    stage.is_there();
    stage.fake.post(stage.ann, thread, "over");
    stage.said(thread, "over\n-# demo");
    let all = with_files(&stage, thread);
    assert_eq!(all.len(), 3, "{all:#?}");
    is_whole(&stage, &all[2]);
    let changed = &contents(&stage, &all[1])[1].1;
    assert!(changed.contains("\n-Something new\n") && changed.contains("\n+Something else\n"), "{changed}");
    stage.end();
}

/// A missing permission for files is found out once, not with each answer, until permissions change. Without permission
/// to send, the answer waits with its file.
#[test]
fn missing_permission_decides_between_messages_and_waiting() {
    let stage = Stage::new(&[], "");
    let thread = spawn(&stage);
    let bot = stage.bot.user;
    let last = |thread| told(&stage, thread, 0).last().copied();
    let refused = || stage.fake.tally().refusals.get(&format!("{CREATE} 50013")).copied().unwrap_or_default();
    stage.fake.deny(bot, stage.channel, &["ATTACH_FILES"]);
    for count in [300, 310] {
        let before = stage.told(thread).len();
        stage.fake.post(stage.ann, thread, &format!("stream {count} size 60"));
        until(2 * SOON, "whole answer as messages", || last(thread) == Some(count));
        assert_eq!(told(&stage, thread, before), (1..=count).collect::<Vec<_>>());
    }
    assert_eq!((refused(), with_files(&stage, thread).len()), (1, 0), "{:?}", stage.fake.tally());
    // Files may be attached again, and nothing may be written.
    stage.fake.deny(bot, stage.channel, &["SEND_MESSAGES_IN_THREADS"]);
    stage.fake.allow(bot, stage.channel, &["ATTACH_FILES"]);
    let before = stage.told(thread).len();
    // When this event is handled, the permission change is known.
    stage.was_read(thread, stage.fake.post(stage.eve, thread, "meanwhile"));
    stage.fake.post(stage.ann, thread, LONG);
    // The missing permission is known by then.
    until(2 * SOON, "delivery refused", || {
        stage.house.gateway_log().contains("part refused; retrying session_key")
    });
    stage.fake.allow(bot, stage.channel, &["SEND_MESSAGES_IN_THREADS"]);
    let message = eventually(3 * SOON, "message with file shown", || with_files(&stage, thread).pop());
    is_whole(&stage, &message);
    assert_eq!(stage.told(thread).len(), before + 1, "one message with the file");
    stage.end();
}

/// Nothing is lost if files are too large (40005).
#[test]
fn answer_is_split_into_messages_when_files_are_refused() {
    let stage = Stage::new(&[], "");
    let thread = spawn(&stage);
    stage.fake.configure(json!({"file_max": 1_000}));
    let before = stage.told(thread).len();
    stage.fake.post(stage.ann, thread, "stream 300 size 60");
    until(2 * SOON, "whole answer as messages", || told(&stage, thread, before).last() == Some(&300));
    assert_eq!(told(&stage, thread, before), (1..=300).collect::<Vec<_>>());
    assert!(with_files(&stage, thread).is_empty());
    stage.end();
}
