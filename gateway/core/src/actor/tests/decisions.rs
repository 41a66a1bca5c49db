//! One test for each decision of an actor.

use super::world::{World, prompt_request};
use super::*;
use crate::event::EventKind as K;
use crate::failure::Failure;
use crate::session::SessionState;
use acp_shared::codes::Code;
use acp_shared::ids::IdempotencyKey;
use acp_shared::protocol::RefusalCode;

pub(super) fn ready() -> World {
    let world = ready_in_pieces(1000);
    assert_eq!(world.rows.session.state, SessionState::Idle);
    world
}

pub(super) fn ready_with(change: impl FnOnce(&mut crate::rows::SessionOptions)) -> World {
    let mut world = ready();
    change(&mut world.rows.session.options);
    world.restart();
    world
}

pub(super) fn approving() -> World {
    ready_with(|options| options.permission = crate::rows::PermissionMode::ApproveAll)
}

pub(super) fn opening() -> World {
    started(|world| world.ignores_input = true)
}

/// Returns a gateway that was started in a changed world.
pub(super) fn started(change: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(1, 1000);
    change(&mut world);
    world.restart();
    world
}

/// Returns a session whose processes write in pieces of this size.
pub(super) fn ready_in_pieces(chunk_bytes: usize) -> World {
    let mut world = World::new(1, chunk_bytes);
    world.restart();
    world
}

pub(super) fn refused(code: RefusalCode, retry_after_ms: Option<u64>) -> World {
    started(|world| world.refuse_spawn = Some((code, retry_after_ms)))
}

pub(super) fn prompt(world: &mut World, text: &str) -> Result<RunId, Failure> {
    submit(world, prompt_request(text)).map(|accepted| accepted.run_id)
}

pub(super) fn submit(
    world: &mut World,
    request: crate::request::PromptRequest,
) -> Result<crate::request::PromptAccepted, Failure> {
    let run_id = RunId::mint();
    let key = IdempotencyKey::mint();
    match world.command(ActorCommand::Prompt { run_id, request, key, caps: None })? {
        CommandReply::Prompt(accepted) => Ok(accepted),
        other => panic!("{other:?}"),
    }
}

pub(super) fn code<T: std::fmt::Debug>(result: Result<T, Failure>) -> Code {
    result.unwrap_err().code
}

pub(super) fn run_state(world: &World, run_id: RunId) -> RunState {
    world.run(run_id).state
}

pub(super) fn lease(world: &World) -> acp_shared::ids::LeaseId {
    world.rows.session.lease_id.unwrap()
}

#[test]
fn prompt_runs_to_done() {
    let mut world = ready();
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(world.kinds(), [K::Status, K::Prompt, K::AgentMessage, K::Done]);
    assert_eq!(run_state(&world, run), RunState::Completed);
    assert_eq!(world.stdin(), ["init -\n", "prompt prompt a\n"]);
}

#[test]
fn ignored_cancel_ends_the_process() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    // The agent stops reading: the cancel is accepted but not answered.
    world.ignores_input = true;
    world.command(ActorCommand::Cancel(None)).unwrap();
    assert_eq!(run_state(&world, run), RunState::Running);
    world.advance_to_deadline();
    assert_eq!(run_state(&world, run), RunState::Cancelled);
    assert_eq!(world.rows.session.lease_id, None);
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

#[test]
fn agent_exit_fails_the_run_and_next_prompt_resumes() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    world.end_process(ExitStatus::Signaled(9));
    assert_eq!(run_state(&world, run), RunState::Failed);
    assert_eq!(world.rows.session.last_error.clone().unwrap().detail_code.as_deref(), Some("AGENT_EXITED"));
    let next = prompt(&mut world, "prompt b").unwrap();
    assert_eq!(run_state(&world, next), RunState::Completed);
    assert!(world.stdin().contains(&"init session-1\n".to_owned()), "{:?}", world.stdin());
}

#[test]
fn output_of_dead_agent_is_drained_before_the_run_fails() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let id = lease(&world);
    world.processes.get_mut(&id).unwrap().stdout.extend(b"Tlast\nD\n");
    world.exit(id, ExitStatus::Exited(0));
    world.restart();
    let got = run_state(&world, run);
    assert_eq!(got, RunState::Completed, "H1: output before the end of the process is read");
}

#[test]
fn start_timeout_is_an_error_and_next_prompt_retries() {
    let mut world = opening();
    let run = prompt(&mut world, "prompt a").unwrap();
    world.advance_to_deadline();
    assert_eq!(world.rows.session.state, SessionState::Error);
    assert_eq!(run_state(&world, run), RunState::Failed);
    world.ignores_input = false;
    let next = prompt(&mut world, "prompt b").unwrap();
    assert_eq!(run_state(&world, next), RunState::Completed);
}

#[test]
fn refused_spawn_fails_the_session_with_reason() {
    let world = refused(RefusalCode::SpawnFailed, None);
    assert_eq!(world.rows.session.state, SessionState::Error);
    assert_eq!(world.rows.session.lease_id, None);
    let failure = world.rows.session.last_error.clone().unwrap();
    let want = (Code::SessionInitFailed, Some("SPAWN_FAILED"));
    assert_eq!((failure.code, failure.detail_code.as_deref()), want);
}

#[test]
fn busy_spawn_is_retried() {
    let mut world = refused(RefusalCode::SessionBusy, Some(300));
    assert_eq!(world.rows.session.state, SessionState::Creating);
    world.refuse_spawn = None;
    world.advance(300);
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

#[test]
fn agent_request_is_answered_once_and_served_again_after_restart() {
    let mut world = approving();
    prompt(&mut world, "Wtext").unwrap();
    let (at, again) = world.performed[0];
    assert!(!again);
    world.restart();
    assert_eq!(world.performed[1], (at, true), "H3: a request that was not answered is served again");
    world.input(ActorInput::RequestDone { at, outcome: Ok("{}".to_owned()) });
    world.input(ActorInput::RequestDone { at, outcome: Ok("{}".to_owned()) });
    assert_eq!(world.count_stdin("answer"), 1);
    world.restart();
    assert_eq!(world.performed.len(), 2);
}

#[test]
fn supervisor_ahead_of_database_is_a_gap_and_ends_the_lease() {
    let mut world = ready();
    let id = lease(&world);
    let backup = world.rows.clone();
    prompt(&mut world, "Thello").unwrap();
    world.rows = backup;
    world.restart();
    assert!(world.kinds().contains(&K::Gap), "H7");
    assert!(world.processes[&id].exit.is_some());
    assert_eq!(world.rows.session.lease_id, None);
}

#[test]
fn kill_during_rollback_detection_leaves_no_process() {
    for fuse in 0..12 {
        let mut world = ready();
        let id = lease(&world);
        let backup = world.rows.clone();
        prompt(&mut world, "Thello").unwrap();
        world.rows = backup;
        world.boot(Some(fuse));
        while !world.settle() {
            world.boot(None);
        }
        assert!(world.processes[&id].exit.is_some(), "H7, killed after {fuse} effects");
        assert_eq!(world.rows.session.lease_id, None);
        let gaps = world.count(K::Gap);
        assert!((1..=2).contains(&gaps), "{gaps} gaps, killed after {fuse} effects");
    }
}

#[test]
fn long_line_is_committed_in_pieces() {
    let mut world = ready_in_pieces(10_000);
    let run = prompt(&mut world, "Thello").unwrap();
    let long = "x".repeat(200_000);
    let id = lease(&world);
    world.emit(&format!("T{long}"));
    assert!(world.processes[&id].acked > 100_000, "H2: an unfinished line can be acknowledged");
    world.restart();
    world.emit("\nD\n");
    assert_eq!(run_state(&world, run), RunState::Completed);
    let event = world.rows.events.iter().find(|row| row.payload.len() > 1000).unwrap();
    assert_eq!(event.payload, long);
}

#[test]
fn line_over_limit_ends_lease_with_typed_error() {
    let mut world = ready_in_pieces(100_000);
    let run = prompt(&mut world, "Thello").unwrap();
    world.emit(&"x".repeat((1 << 20) + 1));
    let row = world.run(run);
    assert_eq!(row.error.clone().unwrap().code, Code::ProtocolError);
    assert_eq!(world.rows.session.lease_id, None, "the lease is drained and released");
}

/// The remaining output of an ended agent is read only up to the line over the limit, since the rest starts
/// mid-line.
#[test]
fn output_after_line_over_limit_of_ended_agent_is_not_read() {
    let mut world = ready_in_pieces(100_000);
    prompt(&mut world, "Thello").unwrap();
    let process = world.processes.get_mut(&lease(&world)).unwrap();
    let rest =
        format!("T\"before\"\n{}\nT\"{}\"\nT\"after\"\n", "x".repeat((1 << 20) + 1), "y".repeat(150_000));
    process.stdout.extend(rest.bytes());
    process.exit = Some(ExitStatus::Signaled(9));
    world.restart();
    let want = [K::Status, K::Prompt, K::AgentMessage, K::AgentMessage, K::Error, K::Status, K::Status];
    assert_eq!(world.kinds(), want);
    assert_eq!(world.rows.session.lease_id, None, "the lease is drained and released");
}

/// A restarted gateway reads no output after the line over the limit, since it would start mid-line.
#[test]
fn output_after_line_over_limit_is_not_read_after_restart() {
    let mut world = ready_in_pieces(100_000);
    prompt(&mut world, "Thello").unwrap();
    world.ignores_close = true;
    world.emit(&"x".repeat((1 << 20) + 1));
    let before = world.kinds();
    let process = world.processes.get_mut(&lease(&world)).unwrap();
    process.stdout.extend(b"half a line\"\nT\"after\"\n");
    world.restart();
    assert_eq!(world.kinds(), before);
}

#[test]
fn undelivered_prompt_is_requeued() {
    let mut world = ready();
    let id = lease(&world);
    world.is_input_blocked = true;
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(run_state(&world, run), RunState::Running);
    world.exit(id, ExitStatus::Signaled(9));
    world.is_input_blocked = false;
    assert!(world.settle());
    assert_eq!(run_state(&world, run), RunState::Completed, "H6");
    assert_eq!(world.count_stdin("prompt prompt a\n"), 1);
}

#[test]
fn prompt_with_unknown_delivery_is_uncertain() {
    let mut world = ready();
    let id = lease(&world);
    world.is_input_blocked = true;
    let run = prompt(&mut world, "prompt a").unwrap();
    world.processes.remove(&id);
    world.is_input_blocked = false;
    world.input(ActorInput::Lease(LeaseEvent::Unknown));
    let row = world.run(run);
    assert_eq!((row.state, row.error.clone().unwrap().code), (RunState::Failed, Code::Uncertain), "H6");
}

#[test]
fn turn_behind_an_exited_bridge_is_uncertain() {
    for (is_proxy, code, detail) in
        [(true, Code::Uncertain, "BRIDGE_EXITED"), (false, Code::TurnFailed, "AGENT_EXITED")]
    {
        let mut world = started(|world| world.is_proxy = is_proxy);
        let run = prompt(&mut world, "Thello").unwrap();
        world.end_process(ExitStatus::Signaled(9));
        let error = world.run(run).error.clone().unwrap();
        assert_eq!((error.code, error.detail_code.as_deref()), (code, Some(detail)));
        assert_eq!(world.count_stdin("prompt Thello\n"), 1, "a prompt is never sent twice");
    }
}

#[test]
fn unresponsive_idle_agent_is_ended_by_probe() {
    let mut world = ready();
    let id = lease(&world);
    for _ in 0..2 {
        world.advance_to_deadline();
    }
    assert_eq!(world.count_stdin("ping\n"), 2);
    assert!(world.processes[&id].exit.is_none());
    world.ignores_input = true;
    for _ in 0..2 {
        world.advance_to_deadline();
    }
    assert_eq!(world.rows.session.lease_id, None);
    world.ignores_input = false;
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(run_state(&world, run), RunState::Completed, "resumed by the next prompt");
}
