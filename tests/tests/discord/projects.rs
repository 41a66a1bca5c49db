//! Projects: channels in which a message opens a thread with a session of its own; `allowed_channels` and
//! `require_mention`.

use crate::stage::{Stage, texts};
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::fake_discord::core::model::Id;
use acp_tests::house::AGENT;
use acp_tests::wait::{SOON, eventually, until};
use serde_json::json;

const HISTORY: &str = "GET /channels/{}/messages";
const FROM_MESSAGE: &str = "POST /channels/{}/messages/{}/threads";

/// Stage whose channel is a project with additional keys; spawns elsewhere are off. The project is added by a reload.
fn with_project(more: &str) -> Stage {
    add_project(stage_without_spawns(), more)
}

/// As [`with_project`], in a channel with a message of before.
fn with_project_after(more: &str, text: &str) -> Stage {
    let stage = stage_without_spawns();
    stage.fake.post(stage.ann, stage.channel, text);
    add_project(stage, more)
}

fn stage_without_spawns() -> Stage {
    Stage::new(&[], "[channels.discord.accounts.main.thread_bindings]\nspawn_acp_sessions = false\n")
}

fn add_project(stage: Stage, more: &str) -> Stage {
    let entry = format!(
        "[[channels.discord.projects]]\nchannel = \"{}\"\nagent = \"{AGENT}\"\ncwd = \"{}\"\n{more}\n",
        stage.channel,
        stage.house.world.dir("work/project").display()
    );
    stage.replace_in_config("[log]", &format!("{entry}[log]"));
    stage.reload_accounts();
    stage
}

fn threads(stage: &Stage) -> usize {
    stage.fake.threads_of(stage.channel).len()
}

/// Posts a prompt in the channel and waits for the answer in the thread that it opens. The thread has the id of the message.
fn ask(stage: &Stage, text: &str) -> Id {
    let message = stage.fake.post(stage.ann, stage.channel, &format!("say {text}"));
    answered(stage, message, text);
    message
}

fn answered(stage: &Stage, message: Id, text: &str) {
    until(SOON, "thread opened", || stage.fake.threads_of(stage.channel).iter().any(|it| it.id == message));
    stage.answers(message, &[text]);
    assert_eq!(stage.house.prompts_received(&format!("say {text}")), 1, "{text}");
}

/// Each message opens a thread from itself, with its own session in the directory and mode of the project. The channel
/// gets no message of the bot. `/acp spawn` takes the project's values and works only there.
#[test]
fn message_in_project_opens_thread_with_its_own_session() {
    let stage = with_project("permission = \"deny-all\"");
    let first = ask(&stage, "one");
    let second = ask(&stage, "two");
    stage.exchange(first, "say more", &["one", "more"]);
    stage.reacted(first, stage.channel, "✅");
    let starters = [first, second].map(|thread| stage.said(thread, "is bound here, in ").content);
    let keys = starters.each_ref().map(|text| {
        let key = text.split("session ").nth(1).and_then(|rest| rest.split(',').next());
        key.unwrap_or_else(|| panic!("{text}")).to_owned()
    });
    assert_ne!(keys[0], keys[1]);
    let shown = stage.house.verb(&["sessions", "show", &keys[0]]);
    assert_eq!(shown["permission"], "deny-all", "{shown}");
    assert!(starters[0].contains(shown["cwd"].as_str().unwrap_or("no cwd")), "{starters:?}");
    assert_eq!(stage.fake.channel(second).name, "say two");
    assert!(stage.told(stage.channel).is_empty());
    // People who may not talk to agents open no thread, and neither do threads below the channel.
    stage.fake.post(stage.eve, stage.channel, "say eve");
    let own = stage.fake.make_thread(stage.ann, stage.channel, "a talk", None);
    stage.fake.post(stage.ann, own, "say aside");
    ask(&stage, "three");
    assert_eq!((threads(&stage), stage.told(own).len()), (4, 0));
    // Spawns take the project's values, and are allowed in its channel only.
    let said = stage.answer(&stage.command(stage.ann, stage.channel, "acp spawn", &[]));
    assert!(said.contains(AGENT) && said.contains("is bound to"), "{said}");
    let elsewhere = stage.fake.add_channel(stage.guild, "elsewhere");
    let said = stage.answer(&stage.command(stage.ann, elsewhere, "acp spawn", &[]));
    assert!(said.contains("spawn_acp_sessions"), "{said}");
    stage.end();
}

/// One thread, session and prompt for a message: if responses are lost, if the gateway is killed before or after the thread's
/// creation, and if the message was posted while it was away.
#[test]
fn project_thread_is_opened_once_despite_losses_and_kills() {
    let mut stage = with_project("");
    stage.fake.rest_fault(FROM_MESSAGE, When::Next(1), RestFate::LostAfter);
    ask(&stage, "lost");
    for (text, fate) in
        [("before", RestFate::StallBefore { ms: None }), ("after", RestFate::StallAfter { ms: None })]
    {
        let seen = stage.fake.tally().rest_faults.values().sum::<u64>();
        stage.fake.rest_fault(FROM_MESSAGE, When::Next(1), fate);
        let message = stage.fake.post(stage.ann, stage.channel, &format!("say {text}"));
        until(SOON, "thread requested", || stage.fake.tally().rest_faults.values().sum::<u64>() > seen);
        stage.house.restart_gateway();
        answered(&stage, message, text);
        let starters = texts(&stage.told(message));
        let starters = starters.iter().filter(|text| text.contains("is bound here")).count();
        assert_eq!(starters, 1, "{text}");
    }
    stage.house.kill_gateway();
    let away = stage.fake.post(stage.ann, stage.channel, "say away");
    stage.house.start_gateway();
    answered(&stage, away, "away");
    assert_eq!(threads(&stage), 4);
    let db = stage.house.world.journal(acp_tests::house::GATEWAY);
    let count = db.query_row("SELECT count(*) FROM acp_sessions", [], |row| row.get::<_, i64>(0));
    assert_eq!(count, Ok(4));
    drop(db);
    stage.end();
}

/// A channel is read from the time at which it became a project, also before it has an accepted message: what was posted
/// before, or was ignored, opens no thread, and what was posted while the gateway was away opens one, once.
#[test]
fn project_is_read_from_its_beginning_after_an_absence() {
    let mut stage = with_project_after("require_mention = true", "say past");
    let mention = |text: &str| format!("<@{}> say {text}", stage.bot.user);
    let (first, lost, late) = (mention("first"), mention("lost"), mention("late"));
    until(SOON, "mark set", || mark_of(&stage).is_some());
    stage.fake.post(stage.ann, stage.channel, "say ignored");
    stage.house.kill_gateway();
    stage.fake.post(stage.ann, stage.channel, "say ignored too");
    let message = stage.fake.post(stage.ann, stage.channel, &first);
    stage.house.start_gateway();
    answered(&stage, message, "first");
    // Killed while it reads.
    stage.house.kill_gateway();
    let message = stage.fake.post(stage.ann, stage.channel, &lost);
    stage.fake.rest_fault(HISTORY, When::Next(1), RestFate::StallAfter { ms: None });
    let faults = || stage.fake.tally().rest_faults.values().sum::<u64>();
    let seen = faults();
    stage.house.start_gateway();
    until(SOON, "channel read", || faults() > seen);
    stage.house.restart_gateway();
    answered(&stage, message, "lost");
    // The mark follows ignored messages too.
    let ignored = stage.fake.post(stage.ann, stage.channel, "say nothing");
    stage.house.restart_gateway();
    until(SOON, "mark advanced", || mark_of(&stage).is_some_and(|mark| mark >= ignored.to_string()));
    // A loss of access hides messages that have no event either.
    stage.fake.deny(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    let message = stage.fake.post(stage.ann, stage.channel, &late);
    stage.fake.allow(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    answered(&stage, message, "late");
    assert_eq!(threads(&stage), 3);
    for text in ["past", "ignored", "ignored too", "nothing"] {
        assert_eq!(stage.house.prompts_received(&format!("say {text}")), 0, "{text}");
    }
    stage.end();
}

/// Backfill mark of the project's channel.
fn mark_of(stage: &Stage) -> Option<String> {
    let db = stage.house.world.journal(acp_tests::house::GATEWAY);
    let key = format!("project_mark:discord:main:{}", stage.channel);
    db.query_row("SELECT value FROM acp_meta WHERE key = ?1", [key], |row| row.get(0)).ok()
}

/// The mention is no part of the prompt. In the thread no mention is needed.
#[test]
fn only_mentions_open_threads_where_required() {
    let stage = with_project("require_mention = true");
    stage.fake.post(stage.ann, stage.channel, "say nothing");
    let mention = format!("<@{}> say hello", stage.bot.user);
    let message = stage.fake.post(stage.ann, stage.channel, &mention);
    answered(&stage, message, "hello");
    stage.exchange(message, "say more", &["hello", "more"]);
    assert_eq!((threads(&stage), stage.house.prompts_received("say nothing")), (1, 0));
    stage.end();
}

/// With `require_mention` of the account a thread needs mentions too, except for commands. Other channels than those of
/// `allowed_channels` are not served, their threads included.
#[test]
fn account_may_require_mentions_and_be_limited_to_channels() {
    let stage = Stage::on(&[], |ground| {
        format!("require_mention = true\nallowed_channels = [\"{}\"]\n", ground.channel)
    });
    let thread = stage.spawn();
    stage.fake.post(stage.ann, thread, "say nothing");
    stage.exchange(thread, &format!("<@{}> say hello", stage.bot.user), &["hello"]);
    assert_eq!(stage.house.prompts_received("say nothing"), 0);
    stage.fake.post(stage.ann, thread, "/acp status");
    stage.said(thread, "permission");
    let elsewhere = stage.fake.add_channel(stage.guild, "elsewhere");
    let below = stage.fake.make_thread(stage.ann, elsewhere, "a talk", None);
    for at in [elsewhere, below] {
        let options = [("agent", json!(AGENT)), ("thread", json!("here"))];
        let said = stage.private_answer(&stage.command(stage.ann, at, "acp spawn", &options));
        assert!(said.contains("does not serve this channel"), "{said}");
        stage.fake.post(stage.ann, at, "/acp help");
    }
    stage.fake.post(stage.ann, thread, "/acp help");
    stage.said(thread, "/acp spawn");
    // Only the private replies.
    assert_eq!((stage.told(elsewhere).len(), stage.told(below).len()), (1, 1));
    stage.end();
}

/// The text about a missing sign-in comes once, though both the session and its prompt fail.
#[test]
fn missing_sign_in_is_told_once() {
    let stage = Stage::new(&["--auth-required"], "");
    let stage = add_project(stage, "");
    stage.fake.post(stage.ann, stage.channel, "say hello");
    let thread = eventually(SOON, "a thread is opened", || stage.fake.threads_of(stage.channel).pop()).id;
    let count = |part: &str| texts(&stage.told(thread)).iter().filter(|text| text.contains(part)).count();
    until(SOON, "the sign-in is named", || count("Any key will do") > 0);
    stage.fake.post(stage.ann, thread, "/acp status");
    // The status repeats the last error.
    until(SOON, "the status is shown", || count("last error") > 0);
    assert_eq!(count("The agent needs you to sign in first"), 2, "{:?}", texts(&stage.told(thread)));
    assert_eq!(count("The turn failed"), 1, "{:?}", texts(&stage.told(thread)));
    stage.end();
}
