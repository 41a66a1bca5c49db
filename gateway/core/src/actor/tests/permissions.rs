//! Adverse cases of permission requests: repeated, late or unrelated answers, outdated questions, and a
//! gateway killed in between (design §6 "Permissions", §9 H4).

use super::decisions::{prompt, ready, ready_with, run_state, started, submit};
use super::world::{World, answer_command, prompt_request, voter};
use super::*;
use crate::event::EventKind as K;
use crate::permission::{Voter, Voting};
use crate::request::PromptRequest;
use crate::rows::{NonInteractive, PermissionMode, RunPermissions};
use crate::session::SessionState;
use acp_shared::codes::Code;
use serde_json::json;

/// Returns a turn that waits for the answer to one question, and the question's id.
fn pending_question() -> (World, RunId, String) {
    let mut world = ready();
    let run = prompt(&mut world, "P").unwrap();
    let id = pending(&world);
    assert_eq!(id.len(), 1);
    (world, run, id[0].clone())
}

fn pending(world: &World) -> Vec<String> {
    world.rows.permissions.values().map(PermissionRow::permission_id).collect()
}

/// Answers a question; returns the detail code of a refusal.
fn answer(world: &mut World, id: &str, option: &str) -> Result<(), String> {
    let refused = world.command(answer_command(id, option)).err();
    refused.map_or(Ok(()), |failure| {
        assert_eq!(failure.code, Code::Usage);
        Err(failure.detail_code.unwrap_or_default())
    })
}

const NOT_PENDING: &str = "PERMISSION_NOT_PENDING";

fn answers(world: &World) -> Vec<&'static str> {
    let word = |text: &String| match () {
        () if !text.starts_with("answer") => None,
        () if text.contains("yes") => Some("yes"),
        () if text.contains("no") => Some("no"),
        () if text.contains("cancelled") => Some("cancelled"),
        () => panic!("{text}"),
    };
    world.stdin().iter().filter_map(word).collect()
}

fn settled(world: &World) -> usize {
    world.count(K::PermissionSettled)
}

#[test]
fn first_answer_wins_across_restarts() {
    for (before, between) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut world, run, id) = pending_question();
        if before {
            world.restart();
            assert_eq!(pending(&world), [id.as_str()], "the same question");
        }
        assert_eq!(answer(&mut world, &id, "no"), Ok(()));
        if between {
            world.restart();
        }
        assert_eq!(answer(&mut world, &id, "yes"), Err(NOT_PENDING.to_owned()));
        assert_eq!((answers(&world), settled(&world)), (vec!["no"], 1), "{before} {between}");
        assert_eq!(run_state(&world, run), RunState::Running, "the turn continues");
    }
}

/// The journal holds the deadline of a question and the name of the chosen option, for display in
/// conversations.
#[test]
fn journal_has_deadline_and_chosen_option() {
    let (mut world, _, id) = pending_question();
    let deadline = world.rows.permissions.values().next().and_then(|row| row.deadline_at_ms);
    answer(&mut world, &id, "yes").unwrap();
    let payload = |of: K| {
        let row = world.rows.events.iter().rfind(|event| event.kind == of).unwrap();
        serde_json::from_str::<serde_json::Value>(&row.payload).unwrap()
    };
    assert!(deadline.is_some() && payload(K::Permission)["deadline_at_ms"].as_u64() == deadline);
    let settled = payload(K::PermissionSettled);
    assert_eq!((&settled["option_id"], &settled["option_name"]), (&json!("yes"), &json!("yes")));
}

#[test]
fn concurrent_answers_count_once() {
    let (mut world, _, id) = pending_question();
    for option in ["yes", "no"] {
        world.push(answer_command(&id, option));
    }
    assert!(world.settle());
    assert_eq!((answers(&world), settled(&world)), (vec!["yes"], 1));
}

#[test]
fn unoffered_option_is_refused() {
    let (mut world, _, id) = pending_question();
    for option in ["", "maybe", "YES", "allow_once", "yes "] {
        let got = answer(&mut world, &id, option);
        assert_eq!(got, Err("PERMISSION_OPTION_UNKNOWN".to_owned()), "{option:?}");
    }
    assert_eq!((answers(&world), pending(&world)), (vec![], vec![id]));
}

#[test]
fn late_answer_is_refused() {
    type End = fn(&mut World, RunId);
    let cancel: End = |world, run| {
        world.ignores_input = true;
        world.command(ActorCommand::Cancel(Some(run))).unwrap();
    };
    let close: End = |world, _| {
        world.ignores_close = true;
        world.close();
    };
    let die: End = |world, _| {
        world.end_process(ExitStatus::Signaled(9));
    };
    let expire: End = |world, _| {
        world.advance(10_000);
    };
    let finish: End = |world, _| world.emit("D\n");
    for (case, end, answer_word) in [
        ("cancel", cancel, Some("cancelled")),
        ("close", close, Some("cancelled")),
        // No process is left to receive the answer.
        ("death", die, None),
        ("deadline", expire, Some("no")),
        ("end of the turn", finish, Some("cancelled")),
    ] {
        for restarts in [false, true] {
            let (mut world, run, id) = pending_question();
            end(&mut world, run);
            if restarts {
                world.restart();
            }
            assert_eq!(pending(&world), [] as [String; 0], "{case}");
            assert_eq!(answer(&mut world, &id, "yes"), Err(NOT_PENDING.to_owned()), "{case}");
            assert_eq!(settled(&world), 1, "{case}");
            match answer_word {
                Some(word) => assert_eq!(answers(&world), [word], "{case}"),
                None => assert!(!answers(&world).contains(&"yes"), "{case}"),
            }
        }
    }
}

#[test]
fn answer_after_deadline_is_refused_before_the_tick() {
    for restarts in [false, true] {
        let (mut world, _, id) = pending_question();
        world.now_ms = world.rows.permissions.values().next().unwrap().deadline_at_ms.unwrap();
        if restarts {
            world.restart();
        }
        assert_eq!(answer(&mut world, &id, "yes"), Err(NOT_PENDING.to_owned()));
        assert_eq!((answers(&world), settled(&world)), (vec!["no"], 1));
    }
}

#[test]
fn answer_just_before_the_deadline_is_accepted() {
    let (mut world, _, id) = pending_question();
    world.now_ms = world.rows.permissions.values().next().unwrap().deadline_at_ms.unwrap() - 1;
    assert_eq!(answer(&mut world, &id, "yes"), Ok(()));
    assert_eq!(answers(&world), ["yes"]);
}

#[test]
fn questions_of_stopping_turn_are_cancelled() {
    for mode in [
        PermissionMode::Ask,
        PermissionMode::ApproveAll,
        PermissionMode::ApproveReads,
        PermissionMode::DenyAll,
    ] {
        for close in [false, true] {
            let mut world = ready_with(|options| {
                options.permission = mode;
                options.non_interactive = NonInteractive::Fail;
            });
            let run = prompt(&mut world, "Thello").unwrap();
            (world.ignores_input, world.ignores_close) = (true, true);
            if close {
                world.close();
            } else {
                world.command(ActorCommand::Cancel(Some(run))).unwrap();
            }
            world.emit("P\n");
            assert_eq!(pending(&world), [] as [String; 0], "{mode:?} {close}");
            // A closed session sends no answer; its agent ends.
            let want: &[&str] = if close { &[] } else { &["cancelled"] };
            assert_eq!(answers(&world), want, "{mode:?} {close}");
        }
    }
}

#[test]
fn answer_for_ended_process_is_refused_before_the_drain() {
    let (mut world, _, id) = pending_question();
    world.report_end_and_disconnect(b"Tlast\n", ExitStatus::Signaled(9));
    assert_eq!(pending(&world), [id.as_str()], "the end is known, but its output is not drained yet");
    assert_eq!(answer(&mut world, &id, "yes"), Err(NOT_PENDING.to_owned()));
    world.input(ActorInput::Lease(LeaseEvent::Connected));
    assert_eq!(pending(&world), [] as [String; 0]);
    assert_eq!(settled(&world), 1);
}

#[test]
fn answer_for_previous_process_is_refused() {
    let (mut world, run, old) = pending_question();
    world.end_process(ExitStatus::Signaled(9));
    assert_eq!(run_state(&world, run), RunState::Failed);
    prompt(&mut world, "P").unwrap();
    let new = pending(&world);
    assert_eq!(new.len(), 1);
    assert_ne!(new[0], old);
    assert_eq!(answer(&mut world, &old, "yes"), Err(NOT_PENDING.to_owned()));
    world.restart();
    assert_eq!(answer(&mut world, &old, "yes"), Err(NOT_PENDING.to_owned()));
    assert_eq!(pending(&world), new);
    assert!(!answers(&world).contains(&"yes"));
}

#[test]
fn repeated_questions_without_approver_fail_the_run_once() {
    let mut world = ready_with(|options| options.non_interactive = NonInteractive::Fail);
    world.ignores_input = true;
    let request = PromptRequest { interactive: false, ..prompt_request("Thello") };
    let run = submit(&mut world, request).unwrap().run_id;
    world.emit("P\nP\nP\n");
    assert_eq!(world.rows.session.state, SessionState::Cancelling);
    world.emit("D\n");
    assert_eq!(run_state(&world, run), RunState::Failed);
    assert_eq!(answers(&world), ["cancelled"; 3]);
}

#[test]
fn settings_of_a_run_are_refused_if_the_process_decides_permissions() {
    let mut world = started(|world| world.decides = true);
    world.rows.session.options.permission = PermissionMode::Ask;
    world.restart();
    let run = |mode, non_interactive| PromptRequest {
        permissions: RunPermissions { mode, non_interactive },
        ..prompt_request("prompt a")
    };
    for (mode, policy) in [(Some(PermissionMode::DenyAll), None), (None, Some(NonInteractive::Fail))] {
        let refused = submit(&mut world, run(mode, policy)).unwrap_err();
        assert_eq!((refused.code, refused.detail_code.as_deref()), (Code::Usage, Some("NOT_SUPPORTED")));
    }
    // To such a process, `ask` and `approve-reads` are the same.
    let same = run(Some(PermissionMode::ApproveReads), Some(NonInteractive::Deny));
    let done = submit(&mut world, same.clone()).unwrap().run_id;
    assert_eq!(run_state(&world, done), RunState::Completed);
    // The session's mode was changed while the run waited.
    world.is_input_blocked = true;
    let first = submit(&mut world, same.clone()).unwrap().run_id;
    let second = submit(&mut world, same).unwrap().run_id;
    world.rows.session.options.permission = PermissionMode::ApproveAll;
    world.is_input_blocked = false;
    world.restart();
    assert_ne!(first, second);
    assert_eq!(world.run(second).error.clone().unwrap().detail_code.as_deref(), Some("NOT_SUPPORTED"));
}

#[test]
fn settings_of_a_run_override_those_of_its_session() {
    let permissions = |mode, non_interactive| RunPermissions { mode, non_interactive };
    for (own, want, state) in [
        (permissions(Some(PermissionMode::ApproveAll), None), "yes", RunState::Completed),
        (permissions(Some(PermissionMode::DenyAll), None), "no", RunState::Completed),
        (permissions(None, Some(NonInteractive::Fail)), "cancelled", RunState::Failed),
        (permissions(None, None), "no", RunState::Completed),
    ] {
        let mut world = ready_with(|options| {
            (options.permission, options.non_interactive) = (PermissionMode::Ask, NonInteractive::Deny);
        });
        world.ignores_input = true;
        let request = PromptRequest { interactive: false, permissions: own, ..prompt_request("Thello") };
        let run = submit(&mut world, request).unwrap().run_id;
        // The settings are those of the run after a restart, too.
        world.restart();
        world.emit("P\n");
        world.emit("D\n");
        assert_eq!((answers(&world), run_state(&world, run)), (vec![want], state), "{own:?}");
        assert_eq!(world.rows.session.options.permission, PermissionMode::Ask);
    }
}

#[test]
fn excluded_voter_is_refused_and_the_question_stays() {
    for voting in Voting::ALL {
        let mut world = ready_with(|options| options.voting = voting);
        let request = PromptRequest { asked_by: "token:user".to_owned(), ..prompt_request("P") };
        submit(&mut world, request).unwrap();
        // The sender of a prompt and the rule survive a restart.
        world.restart();
        let id = pending(&world)[0].clone();
        let mut answer = |by: Voter| {
            let (permission_id, answer) = (id.clone(), QuestionAnswer::Option("yes".to_owned()));
            world.command(ActorCommand::AnswerPermission { permission_id, answer, by }).err()
        };
        let (sender, here) = (voter("user"), Voter { is_local: true, ..voter("other") });
        let (excluded, admitted) = match voting {
            Voting::First => (None, voter("other")),
            Voting::Local => (Some(sender), here),
            Voting::Owner => (Some(here), sender),
        };
        if let Some(excluded) = excluded {
            let refused = answer(excluded).unwrap();
            let detail = refused.detail_code.as_deref();
            assert_eq!((refused.code, detail), (Code::PermissionDenied, Some("PERMISSION_NOT_A_VOTER")));
        }
        assert_eq!(answer(admitted), None, "{voting}");
        assert_eq!((pending(&world).len(), settled(&world)), (0, 1));
    }
}

#[test]
fn thousand_questions_are_answered_in_order() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    world.emit(&"P\n".repeat(1_000));
    let ids = pending(&world);
    assert_eq!(ids.len(), 1_000);
    for id in ids.iter().take(500) {
        assert_eq!(answer(&mut world, id, "yes"), Ok(()));
    }
    world.restart();
    assert_eq!(pending(&world).len(), 500);
    world.command(ActorCommand::Cancel(Some(run))).unwrap();
    let received = answers(&world);
    assert_eq!(received.len(), 1_000);
    assert!(received.iter().take(500).all(|word| *word == "yes"));
    assert!(received.iter().skip(500).all(|word| *word == "cancelled"));
    assert_eq!((pending(&world).len(), settled(&world)), (0, 1_000));
}
