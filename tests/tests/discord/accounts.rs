//! Several bots in one gateway, each with its own token and allow-list: no bot reads or answers for another.

use crate::stage::{Ground, Stage, texts, write_token};
use acp_tests::fake_discord::client::BotHandle;
use acp_tests::fake_discord::core::model::{Id, Message};
use acp_tests::wait::{SOON, eventually, until};
use serde_json::json;
use std::mem::swap;

/// Configuration of a second account, `second`, for these users.
fn account(ground: &Ground<'_>, token: &str, people: &[Id]) -> String {
    let file = write_token(ground.dir, "second-token", token);
    let people: Vec<String> = people.iter().map(|id| format!("\"{id}\"")).collect();
    format!(
        "[channels.discord.accounts.second]\ntoken_file = \"{}\"\nbase_url = \"{}\"\nallowed_users = [{}]\n",
        file.display(),
        ground.fake.url(),
        people.join(", ")
    )
}

/// Messages of a bot in a channel.
fn said_by(stage: &Stage, bot: &BotHandle, channel: Id) -> Vec<Message> {
    let all = stage.fake.transcript(channel);
    all.into_iter().filter(|message| message.author_id == bot.user).collect()
}

/// Stage with a second bot, which is connected and has its commands. `people` may use it.
fn two_bots(people: impl FnOnce(&Ground<'_>) -> Vec<Id>) -> (Stage, BotHandle) {
    let mut other = None;
    let stage = Stage::on(&[], |ground| {
        other = Some(ground.fake.add_bot(ground.guild, "second", "second-token"));
        account(ground, "second-token", &people(ground))
    });
    let other = other.unwrap_or_else(|| panic!("the configuration closure ran"));
    until(SOON, "second bot ready", || {
        let commands = stage.fake.commands();
        stage.fake.is_connected(other.user)
            && commands.iter().any(|it| it.application_id == other.application && it.body["name"] == "acp")
    });
    (stage, other)
}

#[test]
fn two_bots_in_one_gateway_stay_separate() {
    let (mut stage, mut other) = two_bots(|ground| vec![ground.ann, ground.eve]);
    // Each bot has its own thread in one channel that both see.
    let first = stage.spawn();
    swap(&mut stage.bot, &mut other);
    stage.ann = std::mem::replace(&mut stage.eve, stage.ann);
    let second = stage.spawn();
    let (eve, ann) = (stage.ann, stage.eve);
    stage.fake.post(eve, second, "say of the second");
    stage.answers(second, &["of the second"]);
    swap(&mut stage.bot, &mut other);
    (stage.ann, stage.eve) = (ann, eve);
    stage.fake.post(ann, first, "say of the first");
    stage.answers(first, &["of the first"]);
    // Each bot accepts only its own users.
    stage.fake.post(eve, first, "say eve in the first");
    // A typed command is handled by the bot of that thread; in an unbound channel by one of them.
    stage.fake.post(ann, first, "/acp status");
    let status = stage.said(first, "running turn");
    assert!(status.content.contains(&stage.key(first)), "{}", status.content);
    stage.fake.post(ann, stage.channel, "/acp help");
    let answered = |stage: &Stage| {
        let said = texts(&stage.fake.transcript(stage.channel));
        said.iter().filter(|text| text.starts_with("Commands:")).count()
    };
    until(SOON, "command answered", || answered(&stage) > 0);
    // After a kill each bot reads its own missed messages only.
    stage.house.kill_gateway();
    stage.fake.post(ann, first, "say missed by the first");
    stage.fake.post(eve, second, "say missed by the second");
    stage.house.start_gateway();
    stage.answers(first, &["of the first", "missed by the first"]);
    swap(&mut stage.bot, &mut other);
    stage.answers(second, &["of the second", "missed by the second"]);
    swap(&mut stage.bot, &mut other);
    let strange = [said_by(&stage, &other, first), said_by(&stage, &stage.bot, second)].concat();
    assert_eq!(texts(&strange), [""; 0], "neither speaks in the other one's thread");
    assert_eq!(stage.house.prompts_received("say eve in the first"), 0);
    let told = texts(&stage.fake.transcript(stage.channel));
    assert_eq!(answered(&stage), 1, "one of them answers: {told:#?}");
    stage.end();
}

/// A typed command in a thread whose bot lost its read permission: the other bot refuses it. With the permission back,
/// the first bot handles new commands, and not the refused one.
#[test]
fn command_for_bot_without_access_is_answered_by_other_bot() {
    let (mut stage, mut other) = two_bots(|ground| vec![ground.ann]);
    swap(&mut stage.bot, &mut other);
    let thread = stage.spawn();
    stage.exchange(thread, "say one", &["one"]);
    swap(&mut stage.bot, &mut other);
    stage.fake.deny(other.user, stage.channel, &["VIEW_CHANNEL"]);
    until(SOON, "second bot without access", || stage.doctor("second").contains("cannot be read"));
    let refused = stage.fake.post(stage.ann, thread, "/acp status");
    let said = stage.said(thread, "does not receive its messages");
    for part in ["\"second\"", "Nothing was done", "Next: "] {
        assert!(said.content.contains(part), "{part}: {}", said.content);
    }
    stage.fake.allow(other.user, stage.channel, &["VIEW_CHANNEL"]);
    until(SOON, "second bot with access", || !stage.doctor("second").contains("cannot be read"));
    stage.was_read(thread, refused);
    stage.fake.post(stage.ann, thread, "/acp help");
    let commands = |bot: &BotHandle| {
        let said = texts(&said_by(&stage, bot, thread));
        said.iter().filter(|text| text.starts_with("Commands:") || text.contains("running turn")).count()
    };
    until(SOON, "command answered", || commands(&other) > 0);
    assert_eq!((commands(&other), commands(&stage.bot)), (1, 0));
    stage.end();
}

#[test]
fn refused_token_of_one_account_leaves_others_running() {
    let mut stage = Stage::on(&[], |ground| account(ground, "no-bots-token", &[ground.ann]));
    let thread = stage.spawn();
    stage.exchange(thread, "say one", &["one"]);
    let lines = eventually(SOON, "doctor reports both accounts", || {
        let output = stage.house.cli(&["doctor"]).stdout;
        let of = |account: &str| output.lines().find(|line| line.contains(account)).map(str::to_owned);
        Some((of("main: ")?, of("second: ")?)).filter(|(_, second)| second.contains("token"))
    });
    assert!(lines.0.contains("main: connected"), "{lines:?}");
    assert!(lines.1.contains("Reset Token"), "it says what to do: {lines:?}");
    stage.house.kill_gateway();
    stage.fake.post(stage.ann, thread, "say two");
    stage.house.start_gateway();
    stage.answers(thread, &["one", "two"]);
    let refused = || stage.fake.tally().requests.get("GET /gateway/bot 401").copied();
    let before = refused();
    stage.exchange(thread, "say three", &["one", "two", "three"]);
    assert_eq!(refused(), before, "it is not asked again");
    stage.end();
}

/// Autocomplete suggests only sessions of the user.
#[test]
fn suggestions_hide_sessions_of_other_users() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    let key = stage.key(thread);
    for (who, count) in [(stage.ann, 1), (stage.boss, 0), (stage.eve, 0)] {
        let shown = stage.suggestions(who, stage.channel, "focus", ("session", ""));
        let values: Vec<&str> = shown.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, vec![key.as_str(); count], "{who}");
    }
    let said = stage.answer(&stage.command(stage.boss, stage.channel, "focus", &[("session", json!(key))]));
    assert!(said.contains("ACP_NOT_OWNER") && said.contains("Next: "), "{said}");
    stage.end();
}
