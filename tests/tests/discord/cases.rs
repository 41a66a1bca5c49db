//! Cases of the source document that only Discord has: the bot's own messages, other bots and webhooks, and lost access
//! without an event.

use crate::stage::{Stage, texts};
use acp_tests::fake_discord::client::BotHandle;
use acp_tests::fake_discord::core::faults::{EventFate, When};
use acp_tests::fake_discord::core::model::Id;
use acp_tests::wait::{LONG, SOON, eventually, until};
use serde_json::{Value, json};

/// Sends a request that must succeed.
fn asked(stage: &Stage, bot: &BotHandle, path: &str, body: &Value) -> Value {
    // The bot's budget is shared with the gateway.
    let answer = eventually(SOON, path, || {
        let answer = stage.fake.rest(&bot.token, "POST", path, Some(body));
        Some(answer.unwrap_or_else(|e| panic!("{path}: {e}"))).filter(|answer| answer.status != 429)
    });
    assert!((200..300).contains(&answer.status), "{path}: {}", answer.status);
    if answer.body.is_empty() { Value::Null } else { answer.json() }
}

/// Posts a prompt-like line from every non-person: another bot, webhooks of both bots, and the bot itself.
fn noise(stage: &Stage, other: &BotHandle, thread: Id, number: usize) {
    let line =
        |who: &str| json!({"content": format!("say from {who} {number}"), "allowed_mentions": {"parse": []}});
    asked(stage, other, &format!("/channels/{thread}/messages"), &line("a bot"));
    for (bot, who) in [(other, "a webhook"), (&stage.bot, "our webhook")] {
        let name = json!({"name": format!("hook {number}")});
        let hook = asked(stage, bot, &format!("/channels/{}/webhooks", stage.channel), &name);
        let [id, token] = ["id", "token"].map(|name| hook[name].as_str().unwrap_or_default());
        let path = format!("/webhooks/{id}/{token}?wait=true&thread_id={thread}");
        asked(stage, bot, &path, &line(who));
    }
    let nonce = format!("outside {number}");
    let own = json!({"content": format!("say from ourselves {number}"), "nonce": nonce, "enforce_nonce": true,
        "allowed_mentions": {"parse": []}});
    asked(stage, &stage.bot, &format!("/channels/{thread}/messages"), &own);
    // A system message of Discord.
    stage.fake.rename(thread, &format!("say renamed {number}"));
}

/// Only people prompt: with live events, with backfill, and after unbinding and a restart.
#[test]
fn messages_of_bots_and_webhooks_are_never_prompts() {
    let mut stage = Stage::new(&[], "");
    let other = stage.fake.add_bot(stage.guild, "other", "other-token");
    let thread = stage.spawn();
    stage.exchange(thread, "say one", &["one"]);
    noise(&stage, &other, thread, 1);
    stage.exchange(thread, "say two", &["one", "two"]);
    stage.house.kill_gateway();
    noise(&stage, &other, thread, 2);
    stage.fake.post(stage.ann, thread, "say three");
    stage.house.start_gateway();
    stage.is_there();
    stage.answers(thread, &["one", "two", "three"]);
    let key = stage.key(thread);
    stage.answer(&stage.command(stage.ann, thread, "unfocus", &[]));
    noise(&stage, &other, thread, 3);
    stage.restart_gateway();
    noise(&stage, &other, thread, 4);
    stage.answer(&stage.command(stage.ann, thread, "focus", &[("session", json!(key))]));
    noise(&stage, &other, thread, 5);
    stage.exchange(thread, "say four", &["one", "two", "three", "four"]);
    let heard: Vec<Value> =
        stage.house.agent_events("prompt").into_iter().map(|it| it["text"].clone()).collect();
    assert_eq!(heard, ["say one", "say two", "say three", "say four"]);
    // The noise has no nonce, so that the stage's checks of the bot's messages do not apply.
    stage.house.end();
}

/// Lost access to a channel: no session ends, `doctor` reports it, and messages are read after access returns.
#[test]
fn messages_during_lost_access_are_read_after_access_returns() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    // By channel permissions, by role permissions, and without an event when access returns.
    for (number, scope, is_told) in
        [(2, stage.channel, true), (3, stage.guild, true), (4, stage.channel, false)]
    {
        stage.fake.deny(stage.bot.user, scope, &["VIEW_CHANNEL"]);
        until(SOON, "doctor reports the problem", || {
            stage.house.cli(&["doctor"]).stdout.contains("1 bound conversations cannot be read")
        });
        stage.fake.post(stage.ann, thread, &format!("say hidden {number}"));
        if !is_told {
            for event in ["CHANNEL_UPDATE", "THREAD_LIST_SYNC"] {
                stage.fake.event_fault(event, When::Chance(1.0), EventFate::Drop);
            }
        }
        stage.fake.allow(stage.bot.user, scope, &["VIEW_CHANNEL"]);
        until(LONG, "hidden message answered", || stage.finals(thread).contains(&format!("hidden {number}")));
        stage.fake.post(stage.ann, thread, &format!("say seen {number}"));
        until(SOON, "next message answered", || stage.finals(thread).contains(&format!("seen {number}")));
    }
    stage.fake.clear_faults();
    stage.answers(thread, &["one", "hidden 2", "seen 2", "hidden 3", "seen 3", "hidden 4", "seen 4"]);
    until(SOON, "doctor reports no problem", || {
        !stage.house.cli(&["doctor"]).stdout.contains("cannot be read")
    });
    stage.end();
}

/// The deletion of a thread without access sends no event: it is found after access returns.
#[test]
fn thread_deleted_without_access_ends_its_session() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    let key = stage.key(thread);
    stage.exchange(thread, "say one", &["one"]);
    stage.fake.deny(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    until(SOON, "lost access logged", || stage.house.gateway_log().contains("bound conversation unreadable"));
    let state = || stage.house.verb(&["sessions", "show", &key])["state"].clone();
    assert_ne!(state(), "closed", "a refusal ends nothing");
    stage.fake.delete_channel(thread);
    stage.fake.allow(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    until(LONG, "session closed", || state() == "closed");
    stage.end();
}

/// Removal from a server ends its sessions; an outage of the server does not.
#[test]
fn server_outage_keeps_sessions_and_leaving_the_server_ends_them() {
    use acp_tests::fake_discord::core::stage::Order;
    let (stage, thread) = Stage::new(&[], "").with_thread();
    let key = stage.key(thread);
    stage.exchange(thread, "say one", &["one"]);
    let guild = stage.guild;
    let _: Value = stage.fake.order(&Order::GuildOutage { guild, begins: true });
    until(SOON, "server outage logged", || stage.house.gateway_log().contains("Discord server unavailable"));
    let _: Value = stage.fake.order(&Order::GuildOutage { guild, begins: false });
    stage.exchange(thread, "say two", &["one", "two"]);
    stage.fake.remove_member(guild, stage.bot.user);
    until(SOON, "session closed", || stage.session_state(&key) == "closed");
    assert_eq!(texts(&stage.told(thread)).iter().filter(|text| text.contains("closed")).count(), 0);
    stage.house.end();
}
