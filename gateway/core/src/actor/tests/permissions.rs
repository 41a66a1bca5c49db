//! Adverse cases of permission requests: repeated, late or unrelated answers, outdated questions, and a
//! gateway killed in between (design §6 "Permissions", §9 H4).

use super::cases::{ask, prompt, ready, ready_with, run_state};
use super::world::{World, answer_command, prompt_request};
use super::*;
use crate::event::EventKind as K;
use crate::request::PromptRequest;
use crate::rows::{NonInteractive, PermissionMode};
use crate::session::SessionState;
use acp_shared::codes::Code;
use serde_json::json;

/// Returns a turn that waits for the answer to one question, and the question's id.
fn asked() -> (World, RunId, String) {
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

/// Answers that the agents received, in order.
fn heard(world: &World) -> Vec<&'static str> {
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
fn of_two_answers_the_first_wins_wherever_the_gateway_dies() {
    for (before, between) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut world, run, id) = asked();
        if before {
            world.restart();
            assert_eq!(pending(&world), [id.as_str()], "the same question");
        }
        assert_eq!(answer(&mut world, &id, "no"), Ok(()));
        if between {
            world.restart();
        }
        assert_eq!(answer(&mut world, &id, "yes"), Err(NOT_PENDING.to_owned()));
        assert_eq!((heard(&world), settled(&world)), (vec!["no"], 1), "{before} {between}");
        assert_eq!(run_state(&world, run), RunState::Running, "the turn continues");
    }
}

/// The journal holds the deadline of a question and the name of the chosen option, for display in
/// conversations.
#[test]
fn the_journal_says_until_when_and_with_which_option() {
    let (mut world, _, id) = asked();
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
fn two_answers_in_one_breath_are_one() {
    let (mut world, _, id) = asked();
    for option in ["yes", "no"] {
        world.push(answer_command(&id, option));
    }
    assert!(world.settle());
    assert_eq!((heard(&world), settled(&world)), (vec!["yes"], 1));
}

#[test]
fn an_option_that_the_agent_did_not_offer_answers_nothing() {
    let (mut world, _, id) = asked();
    for option in ["", "maybe", "YES", "allow_once", "yes "] {
        let got = answer(&mut world, &id, option);
        assert_eq!(got, Err("PERMISSION_OPTION_UNKNOWN".to_owned()), "{option:?}");
    }
    assert_eq!((heard(&world), pending(&world)), (vec![], vec![id]));
}

#[test]
fn an_answer_after_the_end_of_what_it_was_for_is_refused() {
    type End = fn(&mut World, RunId);
    let cancel: End = |world, run| {
        world.deaf = true;
        world.command(ActorCommand::Cancel(Some(run))).unwrap();
    };
    let close: End = |world, _| {
        world.unending = true;
        world.close();
    };
    let die: End = |world, _| {
        world.end(ExitStatus::Signaled(9));
    };
    let take_time: End = |world, _| {
        world.advance(10_000);
    };
    let finish: End = |world, _| world.say("D\n");
    for (what, end, says) in [
        ("cancel", cancel, Some("cancelled")),
        ("close", close, Some("cancelled")),
        // No process is left to receive the answer.
        ("death", die, None),
        ("deadline", take_time, Some("no")),
        ("end of the turn", finish, Some("cancelled")),
    ] {
        for again in [false, true] {
            let (mut world, run, id) = asked();
            end(&mut world, run);
            if again {
                world.restart();
            }
            assert_eq!(pending(&world), [] as [String; 0], "{what}");
            assert_eq!(answer(&mut world, &id, "yes"), Err(NOT_PENDING.to_owned()), "{what}");
            assert_eq!(settled(&world), 1, "{what}");
            match says {
                Some(word) => assert_eq!(heard(&world), [word], "{what}"),
                None => assert!(!heard(&world).contains(&"yes"), "{what}"),
            }
        }
    }
}

#[test]
fn an_answer_after_the_deadline_is_late_even_when_the_clock_was_not_looked_at_yet() {
    for again in [false, true] {
        let (mut world, _, id) = asked();
        world.now_ms = world.rows.permissions.values().next().unwrap().deadline_at_ms.unwrap();
        if again {
            world.restart();
        }
        assert_eq!(answer(&mut world, &id, "yes"), Err(NOT_PENDING.to_owned()));
        assert_eq!((heard(&world), settled(&world)), (vec!["no"], 1));
    }
}

#[test]
fn the_moment_before_the_deadline_is_in_time() {
    let (mut world, _, id) = asked();
    world.now_ms = world.rows.permissions.values().next().unwrap().deadline_at_ms.unwrap() - 1;
    assert_eq!(answer(&mut world, &id, "yes"), Ok(()));
    assert_eq!(heard(&world), ["yes"]);
}

#[test]
fn what_is_asked_after_a_stop_is_cancelled_at_once_and_never_approved() {
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
            (world.deaf, world.unending) = (true, true);
            if close {
                world.close();
            } else {
                world.command(ActorCommand::Cancel(Some(run))).unwrap();
            }
            world.say("P\n");
            assert_eq!(pending(&world), [] as [String; 0], "{mode:?} {close}");
            // A closed session sends no answer; its agent ends.
            let want: &[&str] = if close { &[] } else { &["cancelled"] };
            assert_eq!(heard(&world), want, "{mode:?} {close}");
        }
    }
}

#[test]
fn an_answer_for_a_process_that_has_ended_is_refused_before_its_last_words_are_read() {
    let (mut world, _, id) = asked();
    world.tell_end_and_disconnect(b"Tlast\n", ExitStatus::Signaled(9));
    assert_eq!(pending(&world), [id.as_str()], "the end is known, but its output is not drained yet");
    assert_eq!(answer(&mut world, &id, "yes"), Err(NOT_PENDING.to_owned()));
    world.input(ActorInput::Lease(LeaseEvent::Connected));
    assert_eq!(pending(&world), [] as [String; 0]);
    assert_eq!(settled(&world), 1);
}

#[test]
fn an_answer_for_the_process_before_does_not_reach_the_next() {
    let (mut world, run, old) = asked();
    world.end(ExitStatus::Signaled(9));
    assert_eq!(run_state(&world, run), RunState::Failed);
    prompt(&mut world, "P").unwrap();
    let new = pending(&world);
    assert_eq!(new.len(), 1);
    assert_ne!(new[0], old);
    assert_eq!(answer(&mut world, &old, "yes"), Err(NOT_PENDING.to_owned()));
    world.restart();
    assert_eq!(answer(&mut world, &old, "yes"), Err(NOT_PENDING.to_owned()));
    assert_eq!(pending(&world), new);
    assert!(!heard(&world).contains(&"yes"));
}

#[test]
fn nobody_to_ask_fails_the_run_once_however_often_the_agent_asks() {
    let mut world = ready_with(|options| options.non_interactive = NonInteractive::Fail);
    world.deaf = true;
    let request = PromptRequest { interactive: false, ..prompt_request("Thello") };
    let run = ask(&mut world, request).unwrap().run_id;
    world.say("P\nP\nP\n");
    assert_eq!(world.rows.session.state, SessionState::Cancelling);
    world.say("D\n");
    assert_eq!(run_state(&world, run), RunState::Failed);
    assert_eq!(heard(&world), ["cancelled"; 3]);
}

#[test]
fn a_thousand_questions_are_a_thousand_answers_in_their_order() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    world.say(&"P\n".repeat(1_000));
    let ids = pending(&world);
    assert_eq!(ids.len(), 1_000);
    for id in ids.iter().take(500) {
        assert_eq!(answer(&mut world, id, "yes"), Ok(()));
    }
    world.restart();
    assert_eq!(pending(&world).len(), 500);
    world.command(ActorCommand::Cancel(Some(run))).unwrap();
    let said = heard(&world);
    assert_eq!(said.len(), 1_000);
    assert!(said.iter().take(500).all(|word| *word == "yes"));
    assert!(said.iter().skip(500).all(|word| *word == "cancelled"));
    assert_eq!((pending(&world).len(), settled(&world)), (0, 1_000));
}
