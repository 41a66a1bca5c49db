//! Personas: each answer is there once and whole despite losses, and the bot sends it where no webhook works.

use crate::stage::{Stage, texts, without_footer};
use acp_tests::fake_agent::chunk_text;
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::fake_discord::core::model::{Id, Message};
use acp_tests::house::{AGENT, GATEWAY, Plan};
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::GATEWAY_DB;
use serde_json::{Value, json};
use std::path::Path;

const ON: &str = "personas = true";
const EXECUTE: &str = "POST /webhooks/{}/{}";

fn is_answer(message: &Message) -> bool {
    without_footer(&message.content, AGENT).is_some()
}

/// Author name of each answer in a thread: the webhook's user name, `None` for the bot.
fn names(stage: &Stage, thread: Id) -> Vec<Option<String>> {
    stage.told(thread).into_iter().filter(is_answer).map(|it| it.username).collect()
}

fn named(count: usize) -> Vec<Option<String>> {
    vec![Some(AGENT.to_owned()); count]
}

/// Posts message `number` and checks that every message so far is answered once.
fn answered(stage: &Stage, thread: Id, number: usize) {
    stage.fake.post(stage.ann, thread, &format!("say {number}"));
    let want: Vec<String> = (1..=number).map(|number| number.to_string()).collect();
    let want: Vec<&str> = want.iter().map(String::as_str).collect();
    stage.answers(thread, &want);
}

fn executed(stage: &Stage, status: u16) -> u64 {
    stage.fake.tally().requests.get(&format!("{EXECUTE} {status}")).copied().unwrap_or_default()
}

/// Answers carry the agent's name; all other messages are the bot's. Sessions of one channel share its webhook, also
/// after a restart. Webhook messages are never prompts, not even in an unbound thread.
#[test]
fn persona_messages_carry_agent_name_and_are_no_prompts() {
    let (mut stage, thread) = Stage::new(&[], ON).with_thread();
    answered(&stage, thread, 1);
    let other = stage.spawn_of(stage.agent, &[("label", json!("my own"))]);
    answered(&stage, other, 1);
    assert_eq!(names(&stage, thread), named(1));
    assert_eq!(names(&stage, other), [Some("my own".to_owned())]);
    stage.restart_gateway();
    answered(&stage, thread, 2);
    assert_eq!(names(&stage, thread), named(2));
    let hooks = stage.fake.webhooks();
    assert_eq!(hooks.len(), 1, "{hooks:?}");
    // A webhook message after an unbind is no prompt, and the farewell is the bot's.
    stage.answer(&stage.command(stage.ann, thread, "unfocus", &[]));
    let path = format!("/webhooks/{}/{}?wait=true&thread_id={thread}", hooks[0].id, hooks[0].token);
    let echo = json!({"content": "say an echo", "allowed_mentions": {"parse": []}});
    let said = eventually(SOON, "message shown", || {
        let said = stage.fake.rest(&stage.bot.token, "POST", &path, Some(&echo));
        Some(said.unwrap_or_else(|e| panic!("{e}"))).filter(|said| said.status != 429)
    });
    assert_eq!(said.status, 200);
    let key = stage.key(thread);
    stage.answer(&stage.command(stage.ann, thread, "focus", &[("session", json!(key))]));
    answered(&stage, thread, 3);
    assert_eq!((names(&stage, thread), stage.fake.webhooks().len()), (named(3), 1), "D5");
    let heard: Vec<Value> =
        stage.house.agent_events("prompt").into_iter().map(|it| it["text"].clone()).collect();
    assert_eq!(heard, ["say 1", "say 1", "say 2", "say 3"]);
    for message in stage.told(thread).iter().filter(|it| !is_answer(it)) {
        assert!(message.username.is_none() || message.content == "say an echo", "{message:?}");
    }
    stage.end();
}

/// An answer of several messages is sent under the persona, whole and in order.
#[test]
fn long_answer_is_sent_whole_under_persona() {
    let (stage, thread) = Stage::new(&[], ON).with_thread();
    let before = stage.told(thread).len();
    stage.fake.post(stage.ann, thread, "chunks 100 size=60");
    until(SOON, "answer shown", || names(&stage, thread).len() == 1);
    let told = stage.told(thread);
    let parts: Vec<&Message> = told[before..].iter().filter(|it| it.webhook_id.is_some()).collect();
    assert!(parts.len() > 2, "{:#?}", texts(&told));
    assert!(parts.iter().all(|it| it.username.as_deref() == Some(AGENT)), "{parts:#?}");
    let said: String = parts.iter().map(|it| it.content.as_str()).collect();
    let said = without_footer(&said, AGENT).unwrap_or_else(|| panic!("{said}"));
    let want: String = (1..=100).map(|number| chunk_text(number, 60)).collect();
    // Spaces at the borders of messages may be lost.
    let letters = |text: &str| text.split_whitespace().collect::<String>();
    assert_eq!(letters(said), letters(&want));
    stage.end();
}

/// Neither a lost response nor a message that arrives seconds later is duplicated, by webhook or bot.
#[test]
fn persona_message_with_lost_response_appears_once() {
    let (stage, thread) = Stage::new(&[], ON).with_thread();
    let fates = [RestFate::LostAfter, RestFate::ErrorAfter { status: 502 }, RestFate::Late { ms: 4_000 }];
    for (number, fate) in fates.into_iter().enumerate() {
        stage.fake.rest_fault(EXECUTE, When::Next(1), fate);
        answered(&stage, thread, number + 1);
    }
    stage.fake.clear_faults();
    answered(&stage, thread, 4);
    assert_eq!(names(&stage, thread), named(4));
    stage.end();
}

/// A message that the webhook certainly refused is sent by the bot at once.
#[test]
fn message_refused_by_webhook_is_sent_by_bot() {
    let (stage, thread) = Stage::new(&[], ON).with_thread();
    answered(&stage, thread, 1);
    stage.fake.rest_fault(EXECUTE, When::Next(1), RestFate::ErrorBefore { status: 400 });
    answered(&stage, thread, 2);
    answered(&stage, thread, 3);
    assert_eq!(names(&stage, thread), [&named(1)[..], &[None], &named(1)].concat());
    // After a missing permission the webhook is not tried again soon.
    stage.fake.rest_fault(EXECUTE, When::Next(1), RestFate::ErrorBefore { status: 403 });
    answered(&stage, thread, 4);
    answered(&stage, thread, 5);
    assert_eq!(names(&stage, thread)[3..], [None, None]);
    stage.end();
}

/// Personas are optional: a stalled webhook request does not block answers.
#[test]
fn bot_answers_when_webhook_list_stalls() {
    let stage = Stage::new(&[], ON);
    let threads = [(); 3].map(|()| stage.spawn());
    let forever = RestFate::StallBefore { ms: None };
    stage.fake.rest_fault("GET /channels/{}/webhooks", When::Chance(1.0), forever);
    for text in ["say 1", "say 2"] {
        for thread in threads {
            stage.fake.post(stage.ann, thread, text);
        }
    }
    let is_told = |thread: &Id| names(&stage, *thread) == [None, None];
    until(LONG, "all answers shown", || threads.iter().all(is_told));
    stage.fake.clear_faults();
    stage.end();
}

/// A temporary refusal creates no second webhook: a channel can have fifteen.
#[test]
fn refused_but_listed_webhook_is_not_created_again() {
    let (stage, thread) = Stage::new(&[], ON).with_thread();
    answered(&stage, thread, 1);
    stage.fake.rest_fault(EXECUTE, When::Next(1), RestFate::ErrorBefore { status: 401 });
    answered(&stage, thread, 2);
    answered(&stage, thread, 3);
    assert_eq!(names(&stage, thread), [&named(1)[..], &[None, None]].concat());
    assert_eq!(stage.fake.webhooks().len(), 1);
    stage.end();
}

/// The gateway is killed between the stored message and its receipt.
#[test]
fn kill_between_persona_message_and_receipt_repeats_nothing() {
    let (mut stage, thread) = Stage::new(&[], ON).with_thread();
    answered(&stage, thread, 1);
    stage.fake.rest_fault(EXECUTE, When::Next(1), RestFate::StallAfter { ms: None });
    stage.fake.post(stage.ann, thread, "say 2");
    until(SOON, "message stored", || names(&stage, thread).len() == 2);
    stage.house.kill_gateway();
    stage.fake.clear_faults();
    stage.house.start_gateway();
    stage.is_there();
    answered(&stage, thread, 3);
    assert_eq!(names(&stage, thread), named(3));
    stage.end();
}

/// Moves the webhook attempt of the pending part back by a minute. No gateway has the database open.
#[expect(clippy::disallowed_methods, reason = "by hand, while no gateway runs")]
fn a_minute_ago(file: &Path) {
    let db = rusqlite::Connection::open(file).unwrap_or_else(|e| panic!("{e}"));
    // The part is already uncertain if the kill was late.
    let sql = "UPDATE acp_delivery_part SET persona_at = persona_at - 61000 WHERE state IN ('sending', 'uncertain')";
    assert_eq!(db.execute(sql, []), Ok(1));
}

/// The gateway is killed before Discord handles the request: once it can no longer arrive, the bot sends the message.
#[test]
fn message_lost_by_kill_is_sent_by_bot_later() {
    let (mut stage, thread) = Stage::new(&[], ON).with_thread();
    answered(&stage, thread, 1);
    stage.fake.rest_fault(EXECUTE, When::Next(1), RestFate::StallBefore { ms: None });
    stage.fake.post(stage.ann, thread, "say 2");
    until(SOON, "webhook request pending", || !stage.fake.tally().rest_faults.is_empty());
    stage.house.kill_gateway();
    stage.fake.clear_faults();
    a_minute_ago(&stage.house.world.path(GATEWAY).join(GATEWAY_DB));
    stage.house.start_gateway();
    stage.is_there();
    answered(&stage, thread, 3);
    assert_eq!(names(&stage, thread), [&named(1)[..], &[None], &named(1)].concat());
    stage.end();
}

/// A rotated token is read again after one refusal; a deleted webhook is created again after one refusal.
#[test]
fn rotated_webhook_token_is_found_and_deleted_webhook_recreated() {
    let (stage, thread) = Stage::new(&[], ON).with_thread();
    answered(&stage, thread, 1);
    let hook = stage.fake.webhooks()[0].id;
    stage.fake.rotate_webhook(hook);
    answered(&stage, thread, 2);
    assert_eq!((executed(&stage, 401), stage.fake.webhooks().len()), (1, 1));
    stage.fake.delete_webhook(hook);
    answered(&stage, thread, 3);
    answered(&stage, thread, 4);
    assert_eq!(names(&stage, thread), named(4));
    assert_eq!(executed(&stage, 404), 1, "one that is gone is not asked again");
    let alive: Vec<Id> =
        stage.fake.webhooks().into_iter().filter(|hook| hook.alive).map(|hook| hook.id).collect();
    assert!(alive.len() == 1 && alive != [hook], "{alive:?}");
    stage.end();
}

/// Without the permission the bot answers and `doctor` names the fix; with it personas return.
#[test]
fn bot_answers_without_webhook_permission_and_doctor_reports_it() {
    let stage = Stage::new(&[], ON);
    stage.fake.deny(stage.bot.user, stage.channel, &["MANAGE_WEBHOOKS"]);
    let thread = stage.spawn();
    answered(&stage, thread, 1);
    answered(&stage, thread, 2);
    assert_eq!(names(&stage, thread), [None, None]);
    let asked = |stage: &Stage| {
        let asked = |(route, count): (&String, &u64)| route.contains("{}/webhooks").then_some(*count);
        stage.fake.tally().requests.iter().filter_map(asked).sum::<u64>()
    };
    assert_eq!(asked(&stage), 1, "it is not asked for with each answer");
    let log = stage.house.gateway_log();
    assert_eq!(log.matches("webhook unavailable; agents send as the bot").count(), 1, "{log}");
    let doctor = || stage.house.cli(&["doctor"]).stdout;
    until(SOON, "doctor reports the problem", || doctor().contains("in 1 channels agents post as the bot"));
    stage.fake.allow(stage.bot.user, stage.channel, &["MANAGE_WEBHOOKS"]);
    until(SOON, "doctor reports no problem", || !doctor().contains("agents post as the bot"));
    answered(&stage, thread, 3);
    assert_eq!(names(&stage, thread), [&[None, None], &named(1)[..]].concat());
    stage.end();
}

/// The files of a directory, with what is in them.
fn files(dir: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        match kind {
            Ok(kind) if kind.is_dir() => files(&path, found),
            Ok(kind) if kind.is_file() => {
                found.extend(std::fs::read(&path).ok().map(|bytes| (path.display().to_string(), bytes)));
            }
            _ => {}
        }
    }
}

/// The webhook token permits posting: it is in no log, file or list.
#[test]
fn webhook_token_appears_in_no_log_or_file() {
    let traced = |toml: &str| toml.replace("level = \"info\"", "level = \"trace\"");
    let stage = Stage::of(AGENT, |_| ON.to_owned(), |toml| Plan::flags(&[]).gateway(&traced(toml)).build());
    let thread = stage.spawn();
    answered(&stage, thread, 1);
    let mut tokens = vec![stage.fake.webhooks()[0].token.clone()];
    stage.fake.rotate_webhook(stage.fake.webhooks()[0].id);
    answered(&stage, thread, 2);
    stage.fake.rest_fault(EXECUTE, When::Next(1), RestFate::LostAfter);
    answered(&stage, thread, 3);
    tokens.push(stage.fake.webhooks()[0].token.clone());
    assert!(tokens[0] != tokens[1] && tokens.iter().all(|token| token.len() == 64));
    let lists = [&["sessions", "list", "--json"][..], &["doctor"]].map(|args| stage.house.cli(args).stdout);
    let mut found = vec![("the log".to_owned(), stage.house.gateway_log().into_bytes())];
    found.extend(lists.into_iter().map(|text| ("a list".to_owned(), text.into_bytes())));
    files(&stage.house.world.path(""), &mut found);
    assert!(found.iter().any(|(name, _)| name.ends_with(GATEWAY_DB)), "nothing was looked at");
    assert!(stage.house.gateway_log().contains(" DEBUG "), "the log says little");
    for (name, bytes) in found {
        for token in &tokens {
            let is_in = bytes.windows(token.len()).any(|part| part == token.as_bytes());
            assert!(!is_in, "the token is in {name}");
        }
    }
    stage.end();
}
