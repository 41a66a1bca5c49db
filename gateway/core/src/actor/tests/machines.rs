//! Every transition of the two state machines, accepted or refused, is reported with `from`, `event` and
//! `to`.

use super::decisions::{opening, prompt, ready, run_state, started};
use super::world::{World, prompt_request};
use super::*;
use crate::run::RunEvent;
use crate::session::{SessionEvent, SessionState};
use crate::transition::Transition;
use acp_shared::ids::LeaseId;
use std::collections::BTreeSet;

fn context() -> StepContext {
    StepContext { now_ms: 1, fresh_lease: LeaseId::mint(), fresh_token: None }
}

#[test]
fn session_events_are_accepted_or_refused_and_reported() {
    let mut world = ready();
    let actor = world.actor.as_mut().unwrap();
    for from in SessionState::ALL {
        for event in SessionEvent::ALL {
            actor.session.state = from;
            let mut out = StepOutput::new(&context(), &actor.session);
            actor.session_event(event, &mut out);
            let reported = match from.on(event) {
                Some(to) => Transition::Session { from, event, to, code: None },
                None => Transition::Refused { run_id: None, from: from.as_str(), event: event.as_str() },
            };
            assert_eq!(out.transitions, [reported]);
            assert_eq!(actor.session.state, from.on(event).unwrap_or(from));
            assert!(out.writes.is_empty() && out.effects.is_empty(), "a transition alone writes nothing");
        }
    }
}

#[test]
fn run_events_are_accepted_or_refused_and_reported() {
    let mut world = ready();
    prompt(&mut world, "prompt a").unwrap();
    let run = world.rows.runs[0].clone();
    for from in RunState::ALL {
        for event in RunEvent::ALL {
            let mut row = RunRow { state: from, ..run.clone() };
            let mut out = StepOutput::new(&context(), &world.rows.session);
            let moved = out.run_event(&mut row, event);
            assert_eq!(row.state, from.on(event).unwrap_or(from));
            match from.on(event) {
                // The caller reports the move after it has filled in the row.
                Some(_) => assert_eq!((moved, out.transitions.len()), (Some(from), 0)),
                None => {
                    let (run_id, from, event) = (Some(run.run_id), from.as_str(), event.as_str());
                    let want = (None, vec![Transition::Refused { run_id, from, event }]);
                    assert_eq!((moved, out.transitions), want);
                }
            }
        }
    }
}

fn faulted() -> World {
    let mut world = opening();
    let run = prompt(&mut world, "prompt a").unwrap();
    world.advance_to_deadline();
    assert_eq!((world.rows.session.state, run_state(&world, run)), (SessionState::Error, RunState::Failed));
    world.ignores_input = false;
    world
}

fn close(world: &mut World) {
    world.close();
}

fn sessions_using_every_transition() -> Vec<World> {
    let mut plain = ready();
    prompt(&mut plain, "prompt a").unwrap();
    close(&mut plain);

    let mut retried = faulted();
    prompt(&mut retried, "prompt b").unwrap();
    let mut renewed = faulted();
    renewed.command(ActorCommand::NewConversation).unwrap();
    let mut closed_in_error = faulted();
    close(&mut closed_in_error);

    let mut unopened = opening();
    let queued = prompt(&mut unopened, "prompt a").unwrap();
    unopened.command(ActorCommand::Cancel(Some(queued))).unwrap();
    close(&mut unopened);

    let mut stopped = ready();
    prompt(&mut stopped, "Thello").unwrap();
    stopped.command(ActorCommand::Cancel(None)).unwrap();

    let mut broken = started(|world| world.limits.line_bytes_max = 64);
    broken.emit(&format!("T{}", "x".repeat(100)));

    let mut died = ready();
    prompt(&mut died, "Thello").unwrap();
    died.end_process(ExitStatus::Signaled(9));

    let mut put_back = ready();
    put_back.is_input_blocked = true;
    prompt(&mut put_back, "prompt a").unwrap();
    put_back.is_input_blocked = false;
    put_back.end_process(ExitStatus::Signaled(9));

    let mut steered = ready();
    prompt(&mut steered, "Thello").unwrap();
    let steer = crate::request::PromptRequest { mode: crate::rows::RunMode::Steer, ..prompt_request("left") };
    let run_id = super::decisions::submit(&mut steered, steer).unwrap().run_id;
    let session = steered.rows.session.clone();
    let mut out = StepOutput::new(&context(), &session);
    steered.actor.as_mut().unwrap().on_steered(run_id, true, &mut out);
    steered.transitions.extend(out.transitions);

    vec![plain, retried, renewed, closed_in_error, unopened, stopped, broken, died, put_back, steered]
}

/// Transitions that no session uses, because the turn ends first in the same transaction. They are in the
/// table for rows of a damaged database.
const NOT_TAKEN: [&str; 4] = [
    "running faulted error",
    "running closed closed",
    "cancelling faulted error",
    "cancelling closed closed",
];

#[test]
fn sessions_report_every_transition() {
    let (mut sessions, mut runs) = (BTreeSet::new(), BTreeSet::new());
    for world in sessions_using_every_transition() {
        for transition in world.transitions {
            match transition {
                Transition::Session { from, event, to, .. } => {
                    assert_eq!(from.on(event), Some(to));
                    sessions.insert(format!("{from} {event} {to}"));
                }
                Transition::Run(run) => match (run.from, run.event) {
                    (Some(from), Some(event)) => {
                        assert_eq!(from.on(event), Some(run.to));
                        runs.insert(format!("{from} {event} {}", run.to));
                    }
                    reported => {
                        assert_eq!(
                            (reported, run.to),
                            ((None, None), RunState::Queued),
                            "a new run is queued"
                        )
                    }
                },
                refused @ Transition::Refused { .. } => panic!("{refused:?}"),
            }
        }
    }
    let edge =
        |from: SessionState, event: SessionEvent| from.on(event).map(|to| format!("{from} {event} {to}"));
    let table = SessionState::ALL
        .into_iter()
        .flat_map(|from| SessionEvent::ALL.into_iter().filter_map(move |event| edge(from, event)));
    let want: BTreeSet<String> = table.filter(|edge| !NOT_TAKEN.contains(&edge.as_str())).collect();
    assert_eq!(sessions, want);
    let edge = |from: RunState, event: RunEvent| from.on(event).map(|to| format!("{from} {event} {to}"));
    let table = RunState::ALL
        .into_iter()
        .flat_map(|from| RunEvent::ALL.into_iter().filter_map(move |event| edge(from, event)));
    assert_eq!(runs, table.collect::<BTreeSet<_>>());
}

/// `error -> idle`: a new conversation clears the failure, and the next prompt works.
#[test]
fn new_conversation_clears_the_error() {
    let mut world = faulted();
    world.command(ActorCommand::NewConversation).unwrap();
    assert_eq!((world.rows.session.state, &world.rows.session.last_error), (SessionState::Idle, &None));
    assert_eq!(world.processes.len(), 1, "no process is started before a prompt");
    let run = prompt(&mut world, "prompt b").unwrap();
    assert_eq!(run_state(&world, run), RunState::Completed);
    let mut world = faulted();
    world.command(ActorCommand::NewConversation).unwrap();
    world.ignores_input = true;
    prompt(&mut world, "prompt b").unwrap();
    world.advance_to_deadline();
    assert_eq!(world.rows.session.state, SessionState::Error);
}
