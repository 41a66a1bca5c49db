//! Tokens, intents and allow-lists that change while the gateway runs: a reload applies them, and pending messages are
//! neither lost nor duplicated.

use crate::stage::{Stage, texts};
use acp_tests::fake_discord::client::BotHandle;
use acp_tests::fake_discord::core::gateway::intent;
use acp_tests::fake_discord::core::stage::SocketAct;
use acp_tests::runbook::{Operator, Section};
use acp_tests::wait::{SOON, until};

fn doctor_says(stage: &Stage, part: &str) {
    until(SOON, part, || stage.doctor("main").contains(part));
}

#[test]
fn reload_applies_new_token_and_pending_answers_come_once() {
    const SLOW: &str = "sleep 2500\nsay two";
    let (mut stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.begin_turn(thread, SLOW);
    stage.fake.set_token(stage.bot.user, "another-token");
    until(SOON, "turn ended", || stage.house.agent_events("turn_end").len() == 2);
    doctor_says(&stage, "Discord refuses the token");
    // The old token is not used again, and a reload without a new token only tries it once more.
    stage.reload();
    until(SOON, "configuration reloaded", || stage.house.gateway_log().contains("configuration reloaded"));
    stage.fake.post(stage.ann, thread, "say three");
    assert_eq!(stage.finals(thread), ["one"]);
    let refused = |stage: &Stage| stage.fake.tally().invalid;
    assert!(refused(&stage) < 10, "{}", refused(&stage));
    stage.bot = BotHandle { token: "another-token".to_owned(), ..stage.bot };
    stage.write_token("another-token");
    stage.reload();
    stage.answers(thread, &["one", "two", "three"]);
    stage.is_there();
    doctor_says(&stage, "main: connected");
    stage.exchange(thread, "say four", &["one", "two", "three", "four"]);
    for text in [SLOW, "say three", "say four"] {
        assert_eq!(stage.house.prompts_received(text), 1, "{text}");
    }
    let log = stage.house.gateway_log();
    assert!(!log.contains("another-token") && !log.contains("discord-token"), "D14");
    stage.end();
}

#[test]
fn silent_bot_is_repaired_by_the_runbook() {
    let (mut stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.fake.set_token(stage.bot.user, "another-token");
    stage.fake.post(stage.ann, thread, "say two");
    doctor_says(&stage, "Discord refuses the token");
    let operator = Operator::of(&stage.house);
    let mut page = Section::read("Discord: the connection");
    let doctor = operator.run(&page.take("G doctor"), &[]);
    assert_eq!(doctor.code, Some(1), "{doctor:#?}");
    assert!(doctor.stdout.contains("Discord refuses the token: reset it"), "{doctor:#?}");
    stage.bot = BotHandle { token: "another-token".to_owned(), ..stage.bot };
    stage.write_token("another-token");
    assert_eq!(page.take("systemctl reload"), "systemctl reload acp-gateway@USER");
    stage.reload();
    let doctor = page.take("G doctor");
    until(SOON, "doctor finds the account connected", || {
        operator.run(&doctor, &[]).stdout.contains("main: connected")
    });
    page.end();
    stage.answers(thread, &["one", "two"]);
    stage.end();
}

/// Without the Message Content intent `doctor` names the setting; after it is enabled, a reload is enough.
#[test]
fn missing_intent_is_explained_and_fixed_by_reload() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.fake.set_privileged_intents(stage.bot.user, 0);
    stage.fake.sockets(None, SocketAct::InvalidSession { resumable: false });
    doctor_says(&stage, "4014");
    let line = stage.doctor("main");
    for part in ["developer portal", "Privileged Gateway Intents", "Message Content Intent", "reload"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    stage.fake.post(stage.ann, thread, "say two");
    stage.fake.set_privileged_intents(stage.bot.user, intent::MESSAGE_CONTENT);
    stage.reload();
    stage.is_there();
    stage.answers(thread, &["one", "two"]);
    doctor_says(&stage, "main: connected");
    stage.end();
}

/// A changed allow-list applies to the next message.
#[test]
fn reload_applies_changed_allow_list() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    let early = stage.fake.post(stage.eve, thread, "say too early");
    stage.was_read(thread, early);
    let let_in = |from: u64, to: u64| {
        let users = |id: u64| format!("allowed_users = [\"{id}\"]");
        stage.replace_in_config(&users(from), &users(to));
        stage.reload_accounts();
    };
    let is_refused = || {
        let said = stage.private_answer(&stage.command(stage.ann, stage.channel, "acp sessions", &[]));
        said.contains("may not use")
    };
    let_in(stage.ann, stage.eve);
    assert!(is_refused(), "the new list is not used");
    stage.fake.post(stage.ann, thread, "say shut out");
    stage.fake.post(stage.eve, thread, "say let in");
    stage.answers(thread, &["let in"]);
    let_in(stage.eve, stage.ann);
    assert!(!is_refused(), "the old list is not used again");
    stage.exchange(thread, "say back", &["let in", "back"]);
    assert_eq!(["say too early", "say shut out"].map(|text| stage.house.prompts_received(text)), [0, 0]);
    assert_eq!(texts(&stage.told(thread)).iter().filter(|text| text.contains("may not")).count(), 0);
    stage.end();
}
