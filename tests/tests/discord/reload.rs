//! Reload of an account's slash commands and token while users write.

use crate::stage::{Stage, texts};
use acp_tests::fake_discord::client::BotHandle;
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::fake_discord::core::model::Id;
use acp_tests::wait::{SOON, until};
use std::collections::BTreeSet;

/// Where commands of a guild are put.
const PUT_GUILD: &str = "PUT /applications/{}/guilds/{}/commands";

/// Places of the bot's commands, without a guild that it left.
fn places(stage: &Stage, left: Option<Id>) -> BTreeSet<Option<Id>> {
    let own = stage.fake.commands().into_iter().filter(|it| it.application_id == stage.bot.application);
    own.map(|command| command.guild_id).filter(|guild| guild.is_none() || *guild != left).collect()
}

fn stand(stage: &Stage, left: Option<Id>, want: &[Option<Id>]) {
    let want: BTreeSet<Option<Id>> = want.iter().copied().collect();
    let deadline = std::time::Instant::now() + SOON;
    until(2 * SOON, "commands registered as configured", || {
        places(stage, left) == want || std::time::Instant::now() > deadline
    });
    assert_eq!(places(stage, left), want, "{}", stage.house.gateway_log());
}

/// Puts other guilds into the configuration.
fn name_guilds(stage: &Stage, from: &[Id], to: &[Id]) {
    let text = |ids: &[Id]| {
        let ids: Vec<String> = ids.iter().map(|id| format!("\"{id}\"")).collect();
        format!("guilds = [{}]", ids.join(", "))
    };
    stage.replace_in_config(&text(from), &text(to));
}

/// Registration of commands is retried until it succeeds, and commands are removed where they are no longer configured:
/// after a reload and after a start with another list. A guild that the bot has left is no failure.
#[test]
fn slash_commands_are_registered_where_configured() {
    let mut other = 0;
    let failing = RestFate::ErrorBefore { status: 500 };
    let mut stage = Stage::on(&[], |ground| {
        other = ground.fake.add_guild("other");
        ground.fake.rest_fault(PUT_GUILD, When::Next(3), failing);
        format!("guilds = [\"{}\"]", ground.guild)
    });
    let guild = stage.guild;
    stand(&stage, None, &[Some(guild)]);
    stage.fake.add_member(other, stage.bot.user);
    // Another guild: both registration and removal are retried.
    stage.fake.rest_fault(PUT_GUILD, When::Next(5), failing);
    name_guilds(&stage, &[guild], &[other]);
    stage.reload();
    stand(&stage, None, &[Some(other)]);
    // The bot has left the other guild.
    stage.fake.remove_member(other, stage.bot.user);
    name_guilds(&stage, &[other], &[guild]);
    stage.reload();
    stand(&stage, Some(other), &[Some(guild)]);
    until(SOON, "no warning about slash commands", || !stage.doctor("main").contains("slash commands"));
    let doctor = stage.doctor("main");
    assert!(doctor.contains("main: connected"), "{doctor}");
    // A start with another list finds the registrations of the previous process.
    stage.house.kill_gateway();
    name_guilds(&stage, &[guild], &[]);
    stage.house.start_gateway();
    stand(&stage, Some(other), &[None]);
    stage.end();
}

/// The token is reset repeatedly while users write: each message is answered once and in order.
#[test]
fn messages_during_token_renewal_are_answered_once() {
    let (mut stage, thread) = Stage::new(&[], "").with_thread();
    let mut said: Vec<String> = Vec::new();
    for round in 0..3 {
        let mut say = |stage: &Stage, when: &str| {
            said.push(format!("{round} {when}"));
            stage.fake.post(stage.ann, thread, &format!("say {round} {when}"));
        };
        let token = format!("token-{round}");
        let read = |stage: &Stage| stage.house.gateway_log().matches("configuration reloaded").count();
        let before = read(&stage);
        say(&stage, "before");
        stage.fake.set_token(stage.bot.user, &token);
        say(&stage, "between");
        stage.write_token(&token);
        say(&stage, "with the token");
        stage.reload();
        say(&stage, "at once after");
        stage.bot = BotHandle { token, ..stage.bot };
        until(SOON, "configuration reloaded", || read(&stage) > before);
        say(&stage, "after");
    }
    let want: Vec<&str> = said.iter().map(String::as_str).collect();
    stage.answers(thread, &want);
    for text in &said {
        assert_eq!(stage.house.prompts_received(&format!("say {text}")), 1, "{text}");
    }
    // A command in an unbound conversation is answered once too.
    stage.is_there();
    stage.fake.post(stage.ann, stage.channel, "/acp help");
    let answered = |stage: &Stage| {
        texts(&stage.told(stage.channel)).iter().filter(|text| text.starts_with("Commands:")).count()
    };
    until(SOON, "command answered", || answered(&stage) > 0);
    stage.end_and_look(|_| {});
}
