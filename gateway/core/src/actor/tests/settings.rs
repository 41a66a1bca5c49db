//! Changes of an agent's own settings: answered after the agent's answer, stored only if the agent took them.

use super::cases::ready;
use super::*;
use crate::actor::settings::ANSWER_MS;
use crate::backend::{BackendStep, OptionChange};
use crate::options::Setting;
use crate::request::SettingResult;
use acp_shared::codes::Code;

fn mode(mode: &str) -> ActorCommand {
    ActorCommand::Set(Setting::Mode(mode.to_owned()))
}

fn effort(value: &str) -> ActorCommand {
    ActorCommand::Set(Setting::Config { id: "effort".to_owned(), value: value.to_owned() })
}

fn result(answered: Result<CommandReply, Failure>) -> SettingResult {
    match answered {
        Ok(CommandReply::Session(now)) => now.setting.unwrap(),
        other => panic!("{other:?}"),
    }
}

fn detail(answered: &Result<CommandReply, Failure>) -> Option<&str> {
    answered.as_ref().err().and_then(|failure| failure.detail_code.as_deref())
}

/// Returns the reply to the last pushed command.
fn last(world: &World) -> Option<&Result<CommandReply, Failure>> {
    world.replies.iter().find(|(ticket, _)| *ticket == world.next_ticket).map(|(_, answered)| answered)
}

#[test]
fn a_change_is_answered_with_the_agents_answer() {
    let mut world = ready();
    let want = SettingResult { is_applied: true, text: "the agent says yes".to_owned() };
    assert_eq!(result(world.command(mode("plan"))), want);
    let refused = world.command(mode("bad")).unwrap_err();
    assert_eq!((refused.code, refused.detail_code.as_deref()), (Code::Usage, Some("OPTION_REFUSED")));
    assert_eq!(refused.message, "the agent says no");
    assert_eq!(world.rows.session.options.mode_id.as_deref(), Some("plan"), "a refused mode is not kept");
    assert_eq!(detail(&world.command(effort("bad"))), Some("OPTION_REFUSED"));
    assert_eq!(world.rows.session.options.config, []);
}

#[test]
fn a_change_without_an_answer_is_said_to_have_none_and_kept_when_the_agent_takes_it_later() {
    let mut world = ready();
    world.push(mode("mute"));
    assert!(world.settle());
    assert_eq!(last(&world), None, "no reply is sent before the agent has answered");
    assert_eq!(world.rows.session.options.mode_id, None);
    let deadline = world.now_ms + ANSWER_MS;
    assert!(world.deadline_ms().unwrap() <= deadline, "a deadline is armed");
    world.now_ms = deadline;
    world.input(ActorInput::Tick);
    let answered = last(&world).unwrap().clone();
    let want = (Code::Timeout, Some("OPTION_UNANSWERED"));
    assert_eq!((answered.unwrap_err().code, detail(last(&world).unwrap())), want);
    world.say("Syes\n");
    assert_eq!(world.rows.session.options.mode_id.as_deref(), Some("mute"));
}

#[test]
fn what_the_agent_answers_after_a_restart_of_the_gateway_is_kept_too() {
    let mut world = ready();
    world.push(mode("mute"));
    assert!(world.settle());
    world.restart();
    world.say("Syes\n");
    assert_eq!(world.rows.session.options.mode_id.as_deref(), Some("mute"));
}

#[test]
fn a_change_whose_agent_ends_fails_and_is_not_kept() {
    let mut world = ready();
    world.push(effort("mute"));
    assert!(world.settle());
    world.end(ExitStatus::Exited(1));
    assert_eq!(detail(last(&world).unwrap()), Some("AGENT_EXITED"));
    assert_eq!(world.rows.session.options.config, []);
}

#[test]
fn without_an_agent_a_change_waits_for_its_next_start_and_is_dropped_if_refused_there() {
    let mut world = ready();
    world.say("Mplan\n");
    world.end(ExitStatus::Exited(0));
    assert_eq!(detail(&world.command(mode("yolo"))), Some("OPTION_REFUSED"), "not one of those reported");
    let waits = result(world.command(effort("low")));
    assert!(!waits.is_applied && waits.text.contains("\"effort\" = \"low\""), "{waits:?}");
    assert_eq!(world.rows.session.options.config, [("effort".to_owned(), "low".to_owned())]);
    let option = OptionChange::Config { id: "effort".to_owned(), value: "low".to_owned() };
    let actor = world.actor.as_mut().unwrap();
    let ctx = StepContext { now_ms: 1, fresh_lease: acp_shared::ids::LeaseId::mint() };
    let mut out = StepOutput::new(&ctx, &actor.session);
    let refused = |option| BackendStep::OptionAnswered {
        option,
        is_own: false,
        is_taken: false,
        text: "the agent says no".to_owned(),
    };
    actor.on_backend_steps(vec![refused(option)], &mut out);
    assert_eq!(actor.session().options.config, []);
}

#[test]
fn what_a_preset_sets_is_not_kept_as_a_persons_wish() {
    let mut world = ready();
    let actor = world.actor.as_mut().unwrap();
    let ctx = StepContext { now_ms: 1, fresh_lease: acp_shared::ids::LeaseId::mint() };
    let mut out = StepOutput::new(&ctx, &actor.session);
    let option = OptionChange::Mode("ask".to_owned());
    let text = "taken".to_owned();
    actor.on_backend_steps(
        vec![BackendStep::OptionAnswered { option, is_own: false, is_taken: true, text }],
        &mut out,
    );
    assert_eq!(actor.session().options.mode_id, None);
}
