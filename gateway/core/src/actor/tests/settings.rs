//! Changes of an agent's own settings: answered after the agent's answer, stored only if the agent took them.

use super::decisions::ready;
use super::*;
use crate::actor::settings::ANSWER_MS;
use crate::agent_settings::OptionChange;
use crate::backend::BackendStep;
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

fn last(world: &World) -> Option<&Result<CommandReply, Failure>> {
    world.replies.iter().find(|(ticket, _)| *ticket == world.next_ticket).map(|(_, answered)| answered)
}

#[test]
fn setting_reply_follows_the_agent_answer() {
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
fn unanswered_setting_times_out_and_is_kept_if_accepted_later() {
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
    world.emit("Syes\n");
    assert_eq!(world.rows.session.options.mode_id.as_deref(), Some("mute"));
}

#[test]
fn setting_answered_after_restart_is_kept() {
    let mut world = ready();
    world.push(mode("mute"));
    assert!(world.settle());
    world.restart();
    world.emit("Syes\n");
    assert_eq!(world.rows.session.options.mode_id.as_deref(), Some("mute"));
}

#[test]
fn setting_fails_if_the_agent_exits() {
    let mut world = ready();
    world.push(effort("mute"));
    assert!(world.settle());
    world.end_process(ExitStatus::Exited(1));
    assert_eq!(detail(last(&world).unwrap()), Some("AGENT_EXITED"));
    assert_eq!(world.rows.session.options.config, []);
}

#[test]
fn setting_without_agent_applies_at_next_start_unless_refused() {
    let mut world = ready();
    world.emit("Mplan\n");
    world.end_process(ExitStatus::Exited(0));
    assert_eq!(detail(&world.command(mode("yolo"))), Some("OPTION_REFUSED"), "not one of those reported");
    let waits = result(world.command(effort("low")));
    assert!(!waits.is_applied && waits.text.contains("\"effort\" = \"low\""), "{waits:?}");
    assert_eq!(world.rows.session.options.config, [("effort".to_owned(), "low".to_owned())]);
    let option = OptionChange::Config { id: "effort".to_owned(), value: "low".to_owned() };
    let actor = world.actor.as_mut().unwrap();
    let ctx = StepContext { now_ms: 1, fresh_lease: acp_shared::ids::LeaseId::mint(), fresh_token: None };
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
fn preset_settings_are_not_stored_as_user_choice() {
    let mut world = ready();
    let actor = world.actor.as_mut().unwrap();
    let ctx = StepContext { now_ms: 1, fresh_lease: acp_shared::ids::LeaseId::mint(), fresh_token: None };
    let mut out = StepOutput::new(&ctx, &actor.session);
    let option = OptionChange::Mode("ask".to_owned());
    let text = "taken".to_owned();
    actor.on_backend_steps(
        vec![BackendStep::OptionAnswered { option, is_own: false, is_taken: true, text }],
        &mut out,
    );
    assert_eq!(actor.session().options.mode_id, None);
}
