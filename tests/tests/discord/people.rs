//! Authorization of prompts and approvals by user and by role, and the refusals.

use crate::stage::{Ground, Stage, labels, texts};
use acp_tests::fake_discord::core::model::Id;
use acp_tests::wait::{LONG, SOON, until};
use serde_json::json;

/// Roles: the crew may prompt, leads may also approve.
struct Roles {
    crew: Id,
    lead: Id,
}

fn staged() -> (Stage, Roles) {
    let mut made = None;
    let stage = Stage::on(&[], |Ground { fake, guild, .. }| {
        let role = |name: &str| fake.add_role(*guild, name, false, &[]);
        let roles = Roles { crew: role("crew"), lead: role("lead") };
        let account = format!("allowed_roles = [\"{}\"]\napprover_roles = [\"{}\"]", roles.crew, roles.lead);
        made = Some(roles);
        account
    });
    (stage, made.unwrap_or_else(|| panic!("the configuration closure ran")))
}

#[test]
fn current_roles_decide_who_may_prompt_and_approve() {
    let (mut stage, roles) = staged();
    let eve = stage.eve;
    let thread = stage.spawn();
    stage.exchange(thread, "say one", &["one"]);
    let said = stage.private_answer(&stage.command(eve, stage.channel, "acp sessions", &[]));
    for part in [eve.to_string().as_str(), "allowed_users", "allowed_roles"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let early = stage.fake.post(eve, thread, "say nobody yet");
    stage.was_read(thread, early);
    // Crew: may prompt, and not approve.
    stage.fake.give_role(stage.guild, eve, roles.crew, true);
    stage.fake.post(eve, thread, "permission Delete everything");
    let asked = stage.said(thread, "Delete everything");
    let shown = labels(&asked);
    let said = stage.private_answer(&stage.press(eve, &asked, &shown[0]));
    for part in ["Next: ", "approver_users", "approver_roles"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(labels(&stage.message(asked.id, thread)), shown, "it can still be answered");
    let typed = stage.answer(&stage.command(eve, thread, "acp allow", &[]));
    assert!(typed.contains("approver_roles"), "{typed}");
    // Lead: approves a request in somebody else's session, with the same button.
    stage.fake.give_role(stage.guild, eve, roles.lead, true);
    stage.press(eve, &asked, &shown[0]);
    let answered = stage.shows(&asked, "Answered: ");
    assert!(answered.content.contains("eve"), "{}", answered.content);
    until(SOON, "turn ended", || stage.house.agent_events("turn_end").len() == 2);
    // Neither any more.
    stage.fake.give_role(stage.guild, eve, roles.lead, false);
    stage.fake.give_role(stage.guild, eve, roles.crew, false);
    let late = stage.fake.post(eve, thread, "say nobody again");
    stage.was_read(thread, late);
    let said = stage.private_answer(&stage.command(eve, thread, "acp cancel", &[]));
    assert!(said.contains("may not use"), "{said}");
    // Messages of an outage are authorized with the current roles of their authors.
    stage.house.kill_gateway();
    stage.fake.give_role(stage.guild, eve, roles.crew, true);
    stage.fake.post(eve, thread, "say by role");
    stage.house.start_gateway();
    until(SOON, "answer shown", || stage.finals(thread).last().is_some_and(|it| it == "by role"));
    let heard =
        ["say nobody yet", "say nobody again", "say by role"].map(|it| stage.house.prompts_received(it));
    assert_eq!(heard, [0, 0, 1], "what was refused stays refused");
    stage.end();
}

/// Edits by a user who may no longer prompt do not change a queued prompt, neither live nor by backfill.
#[test]
fn edit_by_revoked_user_does_not_change_queued_prompt() {
    let (mut stage, roles) = staged();
    let busy = "say Begun.\nwait_cancel";
    stage.fake.give_role(stage.guild, stage.eve, roles.crew, true);
    let thread = stage.spawn();
    stage.begin_turn(thread, busy);
    let waits = stage.fake.post(stage.eve, thread, "say first");
    stage.reacted(waits, thread, "⏳");
    stage.was_read(thread, waits);
    stage.fake.edit(waits, "say second");
    let log = |words: &str| stage.house.gateway_log().contains(words);
    until(SOON, "edit processed", || log("edit processed"));
    stage.fake.give_role(stage.guild, stage.eve, roles.crew, false);
    stage.fake.edit(waits, "say third");
    until(SOON, "unauthorized edit ignored", || log("edit by unauthorized author ignored"));
    stage.house.kill_gateway();
    stage.fake.edit(waits, "say fourth");
    stage.house.start_gateway();
    // Each process has a log of its own.
    let words = "edit by unauthorized author ignored";
    until(LONG, "edit ignored", || stage.house.gateway_log().contains(words));
    stage.is_there();
    stage.command(stage.ann, thread, "acp cancel", &[]);
    until(LONG, "answer shown", || stage.finals(thread).contains(&"second".to_owned()));
    let heard = ["say first", "say second", "say third", "say fourth"];
    assert_eq!(heard.map(|text| stage.house.prompts_received(text)), [0, 1, 0, 0]);
    stage.end();
}

/// Setting of an account that serves another server.
const OTHER: &str = "guilds = [\"5\"]";

/// Stage whose account serves its server alone, with a thread, and the setting.
fn with_named_server() -> (Stage, u64, String) {
    let mut named = String::new();
    let stage = Stage::on(&[], |ground| {
        named = format!("guilds = [\"{}\"]", ground.guild);
        named.clone()
    });
    let thread = stage.spawn();
    (stage, thread, named)
}

fn commands_removed(stage: &Stage) {
    let has_none = || stage.fake.commands().iter().all(|it| it.application_id != stage.bot.application);
    until(SOON, "commands removed from unserved server", has_none);
}

/// Messages in a server that is not configured are ignored, both live and by backfill.
#[test]
fn backfill_ignores_servers_not_configured() {
    let (mut stage, thread, named) = with_named_server();
    stage.exchange(thread, "say one", &["one"]);
    stage.house.kill_gateway();
    stage.replace_in_config(&named, OTHER);
    stage.fake.post(stage.ann, thread, "say elsewhere");
    stage.house.start_gateway();
    commands_removed(&stage);
    let still = stage.fake.post(stage.ann, thread, "say elsewhere still");
    stage.was_read(thread, still);
    stage.replace_in_config(OTHER, &named);
    stage.reload_accounts();
    stage.exchange(thread, "say two", &["one", "two"]);
    let heard = ["say elsewhere", "say elsewhere still"].map(|text| stage.house.prompts_received(text));
    assert_eq!(heard, [0, 0], "{:#?}", texts(&stage.told(thread)));
    stage.end();
}

/// In a server that is no longer configured the commands are removed, buttons are refused, and pending requests stay
/// pending.
#[test]
fn button_in_unconfigured_server_is_refused() {
    let (stage, thread, named) = with_named_server();
    stage.fake.post(stage.ann, thread, "permission Delete everything");
    let asked = stage.said(thread, "Delete everything");
    let shown = labels(&asked);
    stage.replace_in_config(&named, OTHER);
    stage.reload();
    commands_removed(&stage);
    for who in [stage.boss, stage.ann, stage.eve] {
        let said = stage.private_answer(&stage.press(who, &asked, &shown[0]));
        assert_eq!(said, "This gateway does not serve this server.");
    }
    assert_eq!(stage.house.agent_events("turn_end").len(), 0, "nobody has answered");
    assert_eq!(labels(&stage.message(asked.id, thread)), shown, "it can still be answered");
    // Served again, the same button counts.
    stage.replace_in_config(OTHER, &named);
    stage.reload();
    stage.is_there();
    stage.press(stage.boss, &asked, &shown[0]);
    assert!(stage.shows(&asked, "Answered: ").content.contains("boss"));
    until(SOON, "turn ended", || stage.house.agent_events("turn_end").len() == 1);
    stage.end();
}

/// Users in `approver_users` may prompt without being in `allowed_users`.
#[test]
fn approver_may_also_prompt() {
    let (stage, _) = staged();
    let thread = stage.spawn();
    stage.fake.post(stage.boss, thread, "say from the boss");
    stage.answers(thread, &["from the boss"]);
    let session = [("session", json!(stage.key(thread)))];
    let said = stage.answer(&stage.command(stage.boss, thread, "acp close", &session));
    assert!(said.contains("ACP_NOT_OWNER") && said.contains("Next: "), "{said}");
    stage.end();
}
