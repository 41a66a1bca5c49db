//! Starts that wait for the look-up of their program and directories.

use super::decisions::{code, prompt, ready, run_state};
use super::lifecycle::count_status;
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

/// Returns a session whose agent's start may download its program and has written nothing yet.
fn fetching() -> (World, RunId) {
    let (mut world, run_id) = awaiting_lookup();
    world.ignores_input = true;
    configure(&mut world, Ok(AgentProfile { is_looked_up: true, may_fetch: true, ..profile() }));
    (world, run_id)
}

#[test]
fn download_is_reported_and_does_not_count_against_opening() {
    let (mut world, run_id) = fetching();
    let begun = world.now_ms;
    for (reports, after_ms) in [(1, 5_000), (2, 35_000), (3, 65_000)] {
        world.advance_to_deadline();
        assert_eq!((world.now_ms - begun, count_status(&world, "agent_fetched")), (after_ms, reports));
    }
    let last = world.rows.events.last().map(|event| event.payload.to_string()).unwrap_or_default();
    assert!(last.contains("1m5s so far, at most 10m"), "{last}");
    world.emit("Rsession-1\n");
    assert_eq!(run_state(&world, run_id), RunState::Running);
    world.advance(31_000);
    assert_eq!(count_status(&world, "agent_fetched"), 3, "no report after the first line");
}

#[test]
fn download_goes_on_over_a_restart_of_the_gateway() {
    let (mut world, run_id) = fetching();
    world.rows.lease.as_mut().unwrap().spawn.argv = vec!["/usr/bin/npx".to_owned()];
    world.restart();
    world.advance(120_000);
    assert_eq!(run_state(&world, run_id), RunState::Queued, "the time limit is that of a download");
    assert_eq!(count_status(&world, "agent_fetched"), 1);
}

#[test]
fn start_of_a_download_is_committed_at_once_and_others_with_the_next_write() {
    for (may_fetch, want) in [(true, LeaseStatus::Open), (false, LeaseStatus::Intended)] {
        let (mut world, run_id) = awaiting_lookup();
        world.ignores_input = true;
        configure(&mut world, Ok(AgentProfile { is_looked_up: true, may_fetch, ..profile() }));
        let usage = |world: &World| world.rows.lease.as_ref().unwrap().usage;
        assert_eq!(usage(&world), want);
        world.emit("Rsession-1\n");
        assert_eq!((usage(&world), run_state(&world, run_id)), (LeaseStatus::Ready, RunState::Running));
    }
}

#[test]
fn download_counts_from_the_start_of_the_process() {
    let (mut world, run_id) = awaiting_lookup();
    world.refuse_spawn = Some((acp_shared::protocol::RefusalCode::Busy, None));
    configure(&mut world, Ok(AgentProfile { is_looked_up: true, may_fetch: true, ..profile() }));
    let begun = world.now_ms;
    while run_state(&world, run_id) == RunState::Queued {
        world.advance_to_deadline();
    }
    assert_eq!((world.now_ms - begun, count_status(&world, "agent_fetched")), (profile().init_ms, 0));
}

#[test]
fn endless_download_fails() {
    let (mut world, run_id) = fetching();
    let begun = world.now_ms;
    while run_state(&world, run_id) == RunState::Queued {
        world.advance_to_deadline();
    }
    assert_eq!(world.now_ms - begun, 600_000);
    let error = world.run(run_id).error.clone().unwrap();
    assert_eq!(error.detail_code.as_deref(), Some("INIT_TIMEOUT"));
    assert!(error.message.contains("10m"), "{}", error.message);
}
