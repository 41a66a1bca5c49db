//! Starts that wait for the look-up of their program and directories.

use super::decisions::{code, prompt, ready, run_state};
use super::world::{World, profile, prompt_request};
use super::*;
use crate::failure::Failure;
use crate::session::SessionState;
use acp_shared::codes::Code;
use acp_shared::ids::IdempotencyKey;

/// Returns an idle session whose next start waits for its look-up, and the run that requires the start.
fn awaiting_lookup() -> (World, RunId) {
    let mut world = ready();
    let lease = world.rows.session.lease_id.unwrap();
    world.exit(lease, ExitStatus::Exited(0));
    assert!(world.settle());
    assert!(world.actor.as_ref().unwrap().is_quiet());
    world.inspections_hang = true;
    let run_id = prompt(&mut world, "prompt a").unwrap();
    assert!(world.actor.as_ref().unwrap().awaits_lookup());
    (world, run_id)
}

fn configure(world: &mut World, profile: Result<AgentProfile, Failure>) {
    world.actor.as_mut().unwrap().configure(profile, ActorLimits::default());
    world.input(ActorInput::LookedUp);
}

#[test]
fn agent_starts_only_after_lookup() {
    let (mut world, run_id) = awaiting_lookup();
    world.input(ActorInput::Lease(LeaseEvent::Connected));
    assert_eq!((world.rows.session.lease_id, run_state(&world, run_id)), (None, RunState::Queued));
    configure(&mut world, Ok(profile()));
    assert_eq!(world.rows.session.lease_id, None, "configuration alone starts nothing");
    configure(&mut world, Ok(AgentProfile { is_looked_up: true, ..profile() }));
    assert_eq!(run_state(&world, run_id), RunState::Completed);
}

#[test]
fn lookup_is_valid_for_one_start() {
    let mut world = ready();
    world.inspections_hang = true;
    let lease = world.rows.session.lease_id.unwrap();
    configure(&mut world, Ok(AgentProfile { is_looked_up: true, ..profile() }));
    world.exit(lease, ExitStatus::Exited(0));
    assert!(world.settle());
    prompt(&mut world, "prompt a").unwrap();
    assert!(world.actor.as_ref().unwrap().awaits_lookup());
}

#[test]
fn queued_run_fails_without_program() {
    let (mut world, run_id) = awaiting_lookup();
    configure(&mut world, Err(Failure::of(Code::AgentNotAllowed)));
    assert_eq!(run_state(&world, run_id), RunState::Failed);
    let error = world.rows.runs.last().unwrap().error.clone().unwrap();
    assert_eq!((error.code, world.rows.session.state), (Code::AgentNotAllowed, SessionState::Error));
    let command = |run_id| ActorCommand::Prompt {
        run_id,
        request: prompt_request("again"),
        key: IdempotencyKey::mint(),
        caps: None,
    };
    assert_eq!(code(world.command(command(RunId::mint()))), Code::AgentNotAllowed);
}

#[test]
fn unanswered_lookup_times_out_unless_cancelled() {
    let (mut world, run_id) = awaiting_lookup();
    let deadline = world.deadline_ms().unwrap();
    assert_eq!(deadline, world.now_ms + profile().init_ms);
    world.now_ms = deadline;
    world.input(ActorInput::Tick);
    let error = world.run(run_id).error.clone().unwrap();
    let detail = error.detail_code.as_deref();
    assert_eq!((error.code, detail), (Code::BackendUnavailable, Some("NOT_STARTED")));

    let (mut world, run_id) = awaiting_lookup();
    world.command(ActorCommand::Cancel(Some(run_id))).unwrap();
    assert_eq!(run_state(&world, run_id), RunState::Cancelled);
    assert_eq!(world.deadline_ms(), None, "no deadline is armed");
}
