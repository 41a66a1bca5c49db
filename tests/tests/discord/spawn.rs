//! Where `/acp spawn` binds: a new thread, this conversation or nothing; from channels and threads, by slash command and
//! by text.

use crate::stage::{Stage, texts};
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::house::AGENT;
use acp_tests::wait::{LONG, SOON, eventually, until};
use serde_json::{Value, json};

const FROM_MESSAGE: &str = "POST /channels/{}/messages/{}/threads";

/// Spawns by slash command and returns the reply.
fn by_form(stage: &Stage, channel: u64, more: &[(&str, Value)]) -> String {
    let cwd = stage.house.world.dir("work/project").display().to_string();
    let options = [&[("agent", json!(AGENT)), ("cwd", json!(cwd))], more].concat();
    stage.answer(&stage.command(stage.ann, channel, "acp spawn", &options))
}

/// Spawns by text and returns the bot's next message that contains `part`.
fn by_text(stage: &Stage, channel: u64, more: &str, part: &str) -> String {
    let cwd = stage.house.world.dir("work/project").display().to_string();
    let before = stage.told(channel).len();
    stage.fake.post(stage.ann, channel, &format!("/acp spawn {AGENT} --cwd {cwd} {more}"));
    eventually(SOON, part, || {
        let told = texts(&stage.told(channel)).split_off(before);
        told.into_iter().find(|text| text.contains(part))
    })
}

fn thread(stage: &Stage) -> u64 {
    let last = stage.fake.threads_of(stage.channel).into_iter().max_by_key(|thread| thread.id);
    last.map_or_else(|| panic!("no thread"), |thread| thread.id)
}

fn works(stage: &Stage, at: u64, text: &str) {
    stage.fake.post(stage.ann, at, &format!("say {text}"));
    until(SOON, "answer shown", || stage.finals(at).contains(&text.to_owned()));
    assert_eq!(stage.house.prompts_received(&format!("say {text}")), 1, "{text}");
}

/// In a channel: a new thread that the reply links to, the channel itself, or nothing.
#[test]
fn spawn_in_channel_binds_new_thread_channel_or_nothing() {
    let stage = Stage::new(&[], "");
    for form in [true, false] {
        let before = stage.fake.threads_of(stage.channel).len();
        let said = match form {
            true => by_form(&stage, stage.channel, &[("label", json!("by form"))]),
            false => by_text(&stage, stage.channel, "--label 'by text' --thread auto", "is bound to"),
        };
        let made = thread(&stage);
        assert!(said.contains(&format!("<#{made}>")), "{said}");
        assert_eq!(stage.fake.threads_of(stage.channel).len(), before + 1);
        works(&stage, made, if form { "form" } else { "text" });
        // Bound to nothing: the spawner still owns the session.
        let said = match form {
            true => by_form(&stage, stage.channel, &[("thread", json!("off"))]),
            false => by_text(&stage, stage.channel, "--bind off", "bound to no conversation"),
        };
        assert_eq!(stage.fake.threads_of(stage.channel).len(), before + 1, "{said}");
        let key = said.split("session ").nth(1).and_then(|rest| rest.split(',').next());
        let key = key.unwrap_or_else(|| panic!("{said}")).to_owned();
        let own = stage.fake.make_thread(stage.ann, stage.channel, "a talk", None);
        let said = stage.answer(&stage.command(stage.ann, own, "focus", &[("session", json!(key))]));
        assert!(said.contains("is bound here"), "{said}");
        works(&stage, own, if form { "focused by form" } else { "focused by text" });
    }
    let said = by_text(&stage, stage.channel, "--thread here --bind here", "--thread and --bind");
    assert!(said.contains("use only one of them"), "{said}");
    // The channel itself: its messages are prompts from then on.
    let said = by_form(&stage, stage.channel, &[("thread", json!("here"))]);
    assert!(said.contains("is bound here"), "{said}");
    works(&stage, stage.channel, "in the channel");
    let said = by_text(&stage, stage.channel, "--bind here", "Next: ");
    assert!(said.contains("is bound to") && said.contains("/unfocus"), "{said}");
    stage.end();
}

/// In a thread no thread is created: the thread is bound if it is free; otherwise the reply names its session.
#[test]
fn spawn_in_thread_binds_that_thread_once() {
    let stage = Stage::new(&[], "");
    for (number, more) in ["", "--thread here", "--bind here"].into_iter().enumerate() {
        let own = stage.fake.make_thread(stage.ann, stage.channel, "a talk", None);
        let count = stage.fake.threads_of(stage.channel).len();
        let said = match number {
            0 => by_form(&stage, own, &[]),
            _ => by_text(&stage, own, more, "is bound here"),
        };
        assert!(said.contains("is bound here"), "{said}");
        works(&stage, own, &format!("thread {number}"));
        for again in ["--thread auto", "--thread here"] {
            let said = by_text(&stage, own, again, "Next: ");
            assert!(said.contains("is bound to agent:") && said.contains("/unfocus"), "{said}");
        }
        works(&stage, own, &format!("still there {number}"));
        assert_eq!(stage.fake.threads_of(stage.channel).len(), count);
    }
    let db = stage.house.world.journal(acp_tests::house::GATEWAY);
    let count = db.query_row("SELECT count(*) FROM acp_sessions", [], |row| row.get::<_, i64>(0));
    assert_eq!(count, Ok(3), "refused spawns start no session");
    drop(db);
    stage.end();
}

/// H13: the response to the thread's creation is lost, or the gateway is killed between starter and thread. There is one
/// starter and one thread (160004), and it is bound.
#[test]
fn thread_is_created_once_despite_losses_and_kills() {
    let mut stage = Stage::new(&[], "");
    stage.fake.rest_fault(FROM_MESSAGE, When::Next(1), RestFate::LostAfter);
    by_form(&stage, stage.channel, &[]);
    works(&stage, thread(&stage), "after a loss");
    assert_eq!(stage.fake.threads_of(stage.channel).len(), 1);
    for (number, fate) in
        [RestFate::StallBefore { ms: None }, RestFate::StallAfter { ms: None }].into_iter().enumerate()
    {
        let seen = stage.fake.tally().rest_faults.values().sum::<u64>();
        stage.fake.rest_fault(FROM_MESSAGE, When::Next(1), fate);
        let cwd = stage.house.world.dir("work/project").display().to_string();
        let options = [("agent", json!(AGENT)), ("cwd", json!(cwd))];
        stage.command(stage.ann, stage.channel, "acp spawn", &options);
        until(SOON, "thread requested", || stage.fake.tally().rest_faults.values().sum::<u64>() > seen);
        stage.house.restart_gateway();
        until(SOON, "thread created", || stage.fake.threads_of(stage.channel).len() == number + 2);
        works(&stage, thread(&stage), &format!("after a kill {number}"));
    }
    let starters = texts(&stage.told(stage.channel));
    let starters = starters.iter().filter(|text| text.contains("is bound here")).count();
    assert_eq!((starters, stage.fake.threads_of(stage.channel).len()), (3, 3));
    stage.end();
}

/// At the limit of threads (160006) the reply says so, and the thread is bound once there is room.
#[test]
fn thread_creation_is_retried_when_server_has_room() {
    let mut stage = Stage::new(&[], "");
    let first = stage.spawn();
    stage.fake.configure(json!({"active_threads_max": 1}));
    let said = by_form(&stage, stage.channel, &[]);
    assert!(said.contains("160006") && said.contains("retries automatically"), "{said}");
    works(&stage, first, "meanwhile");
    stage.fake.configure(json!({"active_threads_max": 2}));
    // Creation is retried every half minute and at a start.
    stage.house.restart_gateway();
    until(LONG, "thread created", || stage.fake.threads_of(stage.channel).len() == 2);
    works(&stage, thread(&stage), "at last");
    stage.end();
}

#[test]
fn thread_name_fits_for_any_session_label() {
    let stage = Stage::new(&[], "");
    for label in ["ä".repeat(90), "👩‍🚀".repeat(40), "x".repeat(60)] {
        let said = by_form(&stage, stage.channel, &[("label", json!(label))]);
        if said.contains("is bound to") {
            let name = stage.fake.channel(thread(&stage)).name;
            assert!((1..=100).contains(&name.encode_utf16().count()), "{name}");
            assert!(label.starts_with(&name), "{name}");
        } else {
            assert!(said.contains("Next: "), "it says why, and what to do: {said}");
        }
    }
    assert!(!stage.fake.threads_of(stage.channel).is_empty());
    stage.end();
}
