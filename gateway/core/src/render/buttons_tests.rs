use super::*;
use crate::backend::AgentRequest;
use crate::backend::{AgentRequestKind, PermissionOption};
use crate::rows::AutoResolution;
use acp_shared::ids::{LeaseId, SessionKey};
use serde_json::json;

fn run_id() -> RunId {
    RunId::parse("01890a5d-ac96-774b-bcce-b30200000001").unwrap()
}

fn action_of(command: &str, label: &str, style: ButtonStyle) -> MessageButton {
    MessageButton { command: command.to_owned(), label: label.to_owned(), style }
}

/// Buttons follow the agent's options in order: the command is what a person would type, the kind decides the
/// style.
#[test]
fn permission_buttons_follow_agent_options() {
    let lease = LeaseId::mint();
    let id = format!("{lease}:{}", u64::MAX);
    let payload = json!({"permission_id": id, "params": {"options": [
        {"optionId": "a", "name": "Allow", "kind": "allow_once"},
        {"optionId": "b", "name": "Always\nallow", "kind": "allow_always"},
        {"optionId": "c", "kind": "reject_once"},
        {"optionId": "d", "name": "Never", "kind": "reject_always"},
        {"optionId": "e", "name": "Ask later", "kind": "x"},
        {"kind": "allow_once"},
        {"optionId": "f", "name": "  "},
        {"optionId": "g", "name": "Last", "kind": null},
    ]}});
    let asks = permission_buttons(&payload, 25).unwrap();
    assert_eq!(asks.about, ButtonSubject::Permission(id.clone()));
    let command = |number: u32| format!("/acp answer {id} {number}");
    let want = [
        action_of(&command(1), "Allow", ButtonStyle::Success),
        action_of(&command(2), "Always allow", ButtonStyle::Primary),
        action_of(&command(3), "c (reject once)", ButtonStyle::Danger),
        action_of(&command(4), "Never (reject always)", ButtonStyle::Danger),
        action_of(&command(5), "Ask later", ButtonStyle::Secondary),
        action_of(&command(8), "Last", ButtonStyle::Secondary),
    ];
    assert_eq!(asks.actions, want);
    let many: Vec<Value> =
        (0..40).map(|n| json!({"optionId": n.to_string(), "name": "x".repeat(500)})).collect();
    let asks = permission_buttons(&json!({"permission_id": id, "params": {"options": many}}), 25).unwrap();
    assert_eq!(asks.actions.len(), 25);
    for action in asks.actions {
        let is_short = action.command.len() <= COMMAND_BYTES_MAX && action.label.chars().count() <= 80;
        assert!(is_short, "{action:?}");
    }
}

/// A message without buttons keeps its permission as subject, so that it is edited after the resolution.
#[test]
fn unsuitable_options_have_no_buttons() {
    let options = json!({"options": [{"optionId": "a", "name": "Allow"}]});
    let long = "x".repeat(90);
    for (payload, buttons, about) in [
        (json!({"permission_id": long, "params": options}), 25, Some(long.as_str())),
        (json!({"permission_id": "p", "params": options}), 0, Some("p")),
        (json!({"permission_id": "p", "params": {"options": []}}), 25, Some("p")),
        (json!({"permission_id": "p"}), 25, Some("p")),
        (json!({"permission_id": "a b", "params": options}), 25, None),
        (json!({"permission_id": "", "params": options}), 25, None),
        (json!({"params": options}), 25, None),
    ] {
        let about = about.map(|id| ButtonSubject::Permission(id.to_owned()));
        let want = about.map(|about| ButtonGroup { about, actions: Vec::new() });
        assert_eq!(permission_buttons(&payload, buttons), want, "{payload}");
    }
}

#[test]
fn card_and_queue_buttons_name_their_run() {
    let (run, id) = (run_id(), run_id().to_string());
    let stop = action_of(&format!("/acp cancel --run {id}"), "Stop", ButtonStyle::Danger);
    assert_eq!(card_buttons(run), [stop]);
    let steer = action_of(&format!("/acp steer --run {id}"), "Steer now", ButtonStyle::Primary);
    let drop = action_of(&format!("/acp drop {id}"), "Drop", ButtonStyle::Secondary);
    let both = ButtonGroup { about: ButtonSubject::Queued(run), actions: vec![steer, drop.clone()] };
    assert_eq!(queued_buttons(run, true), both);
    assert_eq!(queued_buttons(run, false).actions, [drop]);
}

#[test]
fn button_commands_are_valid() {
    use crate::command::{ChatCommand, SessionAction, parse};
    let id = format!("{}:7", LeaseId::mint());
    let asked = json!({"permission_id": id, "params": {"options": [{"optionId": "a", "name": "A"}]}});
    let mut actions = permission_buttons(&asked, 25).unwrap().actions;
    actions.extend(card_buttons(run_id()));
    actions.extend(queued_buttons(run_id(), true).actions);
    let read: Vec<Option<ChatCommand>> = actions.iter().map(|action| parse(&action.command)).collect();
    let acts = read.into_iter().map(|command| match command {
        Some(ChatCommand::On { target: None, act }) => act,
        other => panic!("{other:?}"),
    });
    use SessionAction::{CancelRun, Drop, SteerRun};
    assert!(acts.skip(1).eq([CancelRun(run_id()), SteerRun(run_id()), Drop(run_id())]));
}

fn permission(state: PermissionState, option_id: Option<&str>, by: Option<ResolvedBy>) -> PermissionRow {
    let options =
        vec![PermissionOption { id: "y".into(), name: "Yes, once".into(), kind: "allow_once".into() }];
    let what = AgentRequestKind::Permission { title: "Write".into(), tool_kind: None, options };
    PermissionRow {
        lease_id: LeaseId::mint(),
        session_key: SessionKey::parse("agent:demo:acp:1").unwrap(),
        request: AgentRequest {
            at: 7,
            run_id: None,
            method: "m".into(),
            params: "{}".into(),
            what,
            is_recalled: false,
            voters: crate::permission::Voters::Anyone,
        },
        state,
        option_id: option_id.map(str::to_owned),
        resolved_by: by,
        created_at_ms: 1,
        deadline_at_ms: None,
    }
}

#[test]
fn resolved_message_shows_its_outcome() {
    use PermissionState as P;
    use RunMode::{Prompt, Steer};
    use RunState as R;
    let asked = "The agent asks for a permission: Write\n1. Yes, once\n\
        Answer with /acp allow, /acp deny or …\nWaits for an answer · id x";
    let pending = permission(P::Pending, None, None);
    let yes = permission(P::Answered, Some("y"), Some(ResolvedBy::Person("ann".to_owned())));
    let unknown_option = permission(P::Answered, Some("z"), None);
    let expired = permission(P::Expired, None, Some(ResolvedBy::Auto(AutoResolution::Deadline)));
    let head = "The agent asks for a permission: Write\n1. Yes, once\n";
    for (state_of_subject, want) in [
        (SubjectState::Permission(&pending), None),
        (SubjectState::Permission(&yes), Some("Answered: “Yes, once” (by “ann”).")),
        (SubjectState::Permission(&unknown_option), Some("Answered: “z” (by unknown).")),
        (SubjectState::Permission(&expired), Some("Nobody answered in time: refused.")),
        (SubjectState::Gone, Some("It no longer exists.")),
    ] {
        let want = want.map(|want| format!("{head}{want}"));
        assert_eq!(text_after_resolution(asked, state_of_subject, false), want, "{state_of_subject:?}");
    }
    for (state_of_subject, want) in [
        (SubjectState::Run(Prompt, R::Queued), None),
        (SubjectState::Run(Steer, R::Queued), None),
        (SubjectState::Run(Prompt, R::Running), Some("It has started.")),
        (SubjectState::Run(Prompt, R::Completed), Some("It has started.")),
        (SubjectState::Run(Prompt, R::Cancelled), Some("It was dropped or cancelled.")),
        (SubjectState::Run(Steer, R::Completed), Some("It was sent into the running turn.")),
        (SubjectState::Run(Steer, R::Failed), Some("It could not be sent into the running turn.")),
    ] {
        let want = want.map(|want| format!("Queued.\n{want}"));
        assert_eq!(text_after_resolution("Queued.", state_of_subject, false), want, "{state_of_subject:?}");
    }
}
