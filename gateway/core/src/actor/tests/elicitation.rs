//! Elicitations: pending rows like permission requests, with their own answers.

use super::decisions::{prompt, ready, ready_with, run_state, submit};
use super::world::{World, prompt_request};
use super::*;
use crate::elicitation::ElicitationAnswer;
use crate::event::EventKind as K;
use crate::options::Setting;
use crate::request::PromptRequest;
use crate::rows::{NonInteractive, PermissionMode};
use acp_shared::codes::Code;
use serde_json::{Value, json};

const CHOICE: &str = r#"{"mode":"form","message":"Which?","sessionId":"s","requestedSchema":{"properties":{"how":{"type":"string","enum":["slow","fast"]}},"required":["how"]}}"#;
const FORM: &str = r#"{"mode":"form","message":"Who?","sessionId":"s","requestedSchema":{"properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":18}},"required":["name"]}}"#;
const PAGE: &str =
    r#"{"mode":"url","message":"Sign in","url":"https://a.example/x","elicitationId":"p1","requestId":1}"#;

/// Turn that waits for the answer to a question, and the id of its row.
fn asked(params: &str) -> (World, RunId, String) {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    world.emit(&format!("E{params}\n"));
    let id = pending(&world).remove(0);
    (world, run, id)
}

fn pending(world: &World) -> Vec<String> {
    world.rows.permissions.values().map(PermissionRow::permission_id).collect()
}

/// Answers a question; returns code and text of a refusal.
fn answer(world: &mut World, id: &str, answer: QuestionAnswer) -> Result<(), (String, String)> {
    let (permission_id, by) = (id.to_owned(), super::world::voter("ann"));
    let refused = world.command(ActorCommand::AnswerPermission { permission_id, answer, by }).err();
    refused.map_or(Ok(()), |failure| {
        assert_eq!(failure.code, Code::Usage);
        Err((failure.detail_code.unwrap_or_default(), failure.message))
    })
}

fn option(id: &str) -> QuestionAnswer {
    QuestionAnswer::Option(id.to_owned())
}

fn accept(content: Value) -> QuestionAnswer {
    let Value::Object(content) = content else { panic!("{content}") };
    QuestionAnswer::Elicitation(ElicitationAnswer::Accept { content })
}

/// Results that were sent to the agent, in order.
fn results(world: &World) -> Vec<Value> {
    let result = |line: &String| {
        let text = line.strip_prefix("answer Ok(")?.trim_end().strip_suffix(')')?;
        serde_json::from_str(&serde_json::from_str::<String>(text).ok()?).ok()
    };
    world.stdin().iter().filter_map(result).collect()
}

fn settled(world: &World) -> Vec<Value> {
    let rows = world.rows.events.iter().filter(|event| event.kind == K::PermissionSettled);
    rows.map(|event| serde_json::from_str(&event.payload).unwrap()).collect()
}

#[test]
fn answers_reach_the_agent_as_actions() {
    use ElicitationAnswer::{Cancel, Decline};
    let fast = json!({ "action": "accept", "content": { "how": "fast" } });
    let ann = json!({ "action": "accept", "content": { "name": "Ann", "age": 20 } });
    let (declined, cancelled) = (json!({ "action": "decline" }), json!({ "action": "cancel" }));
    for (params, given, want, option_id) in [
        (CHOICE, option("choice-2"), &fast, json!("choice-2")),
        (CHOICE, accept(json!({ "how": "fast" })), &fast, json!("choice-2")),
        (FORM, accept(json!({ "name": "Ann", "age": 20 })), &ann, json!("accept")),
        (FORM, option("decline"), &declined, json!("decline")),
        (FORM, QuestionAnswer::Elicitation(Decline), &declined, json!("decline")),
        (FORM, QuestionAnswer::Elicitation(Cancel), &cancelled, json!(null)),
        (PAGE, option("accept"), &json!({ "action": "accept" }), json!("accept")),
    ] {
        for restarts in [false, true] {
            let (mut world, run, id) = asked(params);
            if restarts {
                world.restart();
                assert_eq!(pending(&world), [id.as_str()], "the same question");
            }
            assert_eq!(answer(&mut world, &id, given.clone()), Ok(()));
            if restarts {
                world.restart();
            }
            let late = answer(&mut world, &id, option("decline")).unwrap_err();
            assert_eq!(late.0, "PERMISSION_NOT_PENDING");
            assert_eq!(results(&world), std::slice::from_ref(want), "{params}");
            let settled = settled(&world);
            assert_eq!(settled.len(), 1);
            assert_eq!((&settled[0]["option_id"], &settled[0]["action"]), (&option_id, &want["action"]));
            assert_eq!(settled[0]["by"], "ann");
            assert!(!settled[0].to_string().contains("Ann"), "typed values stay out of the journal");
            assert_eq!(run_state(&world, run), RunState::Running, "the turn continues");
        }
    }
}

#[test]
fn invalid_answers_name_the_field_and_leave_the_question_open() {
    let (mut world, _, id) = asked(FORM);
    for (given, code, text) in [
        (accept(json!({})), "ELICITATION_INVALID", "Field \"name\": a value is required."),
        (accept(json!({ "name": 1 })), "ELICITATION_INVALID", "Field \"name\": must be a text."),
        (
            accept(json!({ "name": "A", "age": 3 })),
            "ELICITATION_INVALID",
            "Field \"age\": must be at least 18.",
        ),
        (
            accept(json!({ "name": "A", "x": 3 })),
            "ELICITATION_INVALID",
            "Field \"x\": the form has no such field.",
        ),
    ] {
        assert_eq!(answer(&mut world, &id, given), Err((code.to_owned(), text.to_owned())));
    }
    for unknown in ["accept", "choice-1", "", "allow_once"] {
        assert_eq!(answer(&mut world, &id, option(unknown)).unwrap_err().0, "PERMISSION_OPTION_UNKNOWN");
    }
    assert_eq!((results(&world), pending(&world)), (vec![], vec![id.clone()]));
    assert_eq!(answer(&mut world, &id, accept(json!({ "name": "A" }))), Ok(()));
}

#[test]
fn permission_request_takes_no_form_answer() {
    let mut world = ready();
    prompt(&mut world, "P").unwrap();
    let id = pending(&world).remove(0);
    let refused = answer(&mut world, &id, accept(json!({ "name": "A" }))).unwrap_err();
    assert_eq!(refused.0, "PERMISSION_OPTION_UNKNOWN");
    assert_eq!(pending(&world), [id]);
}

#[test]
fn unattended_elicitation_is_declined_in_every_mode() {
    for mode in [
        PermissionMode::Ask,
        PermissionMode::ApproveAll,
        PermissionMode::ApproveReads,
        PermissionMode::DenyAll,
    ] {
        for non_interactive in [NonInteractive::Deny, NonInteractive::Fail] {
            let mut world = ready_with(|options| {
                options.permission = mode;
                options.non_interactive = non_interactive;
            });
            // Between turns there is nobody to ask.
            world.emit(&format!("E{CHOICE}\n"));
            let request = PromptRequest { interactive: false, ..prompt_request("Thello") };
            let run = submit(&mut world, request).unwrap().run_id;
            world.emit(&format!("E{FORM}\nE{PAGE}\n"));
            assert_eq!(results(&world), vec![json!({ "action": "decline" }); 3], "{mode:?}");
            assert_eq!(pending(&world), [] as [String; 0]);
            assert!(
                settled(&world).iter().all(|row| row["without"] == "policy" && row["action"] == "decline")
            );
            assert_eq!(run_state(&world, run), RunState::Running, "the turn goes on");
        }
    }
}

#[test]
fn attended_elicitation_is_asked_in_every_mode() {
    for mode in [
        PermissionMode::Ask,
        PermissionMode::ApproveAll,
        PermissionMode::ApproveReads,
        PermissionMode::DenyAll,
    ] {
        let mut world = ready_with(|options| options.permission = mode);
        prompt(&mut world, "Thello").unwrap();
        world.emit(&format!("E{CHOICE}\n"));
        assert_eq!(pending(&world).len(), 1, "{mode:?}");
        world.command(ActorCommand::Set(Setting::Permission(PermissionMode::DenyAll))).unwrap();
        assert_eq!(pending(&world).len(), 1, "a mode answers for nobody");
    }
}

#[test]
fn ended_elicitation_is_cancelled_and_takes_no_answer() {
    type End = fn(&mut World, RunId);
    let cancel: End = |world, run| {
        world.ignores_input = true;
        world.command(ActorCommand::Cancel(Some(run))).unwrap();
    };
    let close: End = |world, _| {
        world.ignores_close = true;
        world.close();
    };
    let die: End = |world, _| world.end_process(ExitStatus::Signaled(9));
    let expire: End = |world, _| world.advance(10_000);
    let finish: End = |world, _| world.emit("D\n");
    for (case, end, is_heard) in [
        ("cancel", cancel, true),
        ("close", close, true),
        ("death", die, false),
        ("deadline", expire, true),
        ("end of the turn", finish, true),
    ] {
        for restarts in [false, true] {
            let (mut world, run, id) = asked(FORM);
            end(&mut world, run);
            if restarts {
                world.restart();
            }
            assert_eq!(pending(&world), [] as [String; 0], "{case}");
            let late = answer(&mut world, &id, accept(json!({ "name": "A" }))).unwrap_err();
            assert_eq!(late.0, "PERMISSION_NOT_PENDING", "{case}");
            assert_eq!(settled(&world).len(), 1, "{case}");
            if is_heard {
                assert_eq!(results(&world), [json!({ "action": "cancel" })], "{case}");
            }
        }
    }
}

#[test]
fn deadline_fails_no_run() {
    let mut world = ready_with(|options| options.non_interactive = NonInteractive::Fail);
    let run = prompt(&mut world, "Thello").unwrap();
    world.emit(&format!("E{CHOICE}\n"));
    world.advance(10_000);
    assert_eq!(
        (results(&world), run_state(&world, run)),
        (vec![json!({ "action": "cancel" })], RunState::Running)
    );
}

#[test]
fn journal_holds_the_question_and_its_options() {
    let (world, _, id) = asked(CHOICE);
    let row = world.rows.events.iter().find(|event| event.kind == K::Permission).unwrap();
    let payload: Value = serde_json::from_str(&row.payload).unwrap();
    assert_eq!(payload["permission_id"], id.as_str());
    assert_eq!(payload["params"], serde_json::from_str::<Value>(CHOICE).unwrap(), "as received");
    assert_eq!(payload["form"]["mode"], "form");
    assert_eq!(payload["form"]["fields"][0]["name"], "how");
    let ids: Vec<&str> = payload["form"]["options"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["optionId"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["choice-1", "choice-2", "decline"]);
    assert!(payload["deadline_at_ms"].is_u64());
}
