//! One test for each decision of an actor.

use super::world::{World, prompt_request};
use super::*;
use crate::event::EventKind as K;
use crate::failure::Failure;
use crate::request::CloseRequest;
use crate::rows::RunMode;
use crate::session::SessionState;
use acp_shared::codes::Code;
use acp_shared::ids::IdempotencyKey;
use acp_shared::protocol::RefusalCode;

pub(super) fn ready() -> World {
    let mut world = World::new(1, 1000);
    world.boot(None);
    assert!(world.settle());
    assert_eq!(world.rows.session.state, SessionState::Idle);
    world
}

/// Returns the same world in a mode without questions.
pub(super) fn approving() -> World {
    let mut world = ready();
    world.rows.session.options.permission = crate::rows::PermissionMode::ApproveAll;
    world.boot(None);
    assert!(world.settle());
    world
}

pub(super) fn prompt(world: &mut World, text: &str) -> Result<RunId, Failure> {
    ask(world, prompt_request(text)).map(|accepted| accepted.run_id)
}

pub(super) fn ask(
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
    world.rows.runs.iter().find(|run| run.run_id == run_id).unwrap().state
}

pub(super) fn lease(world: &World) -> acp_shared::ids::LeaseId {
    world.rows.session.lease_id.unwrap()
}

#[test]
fn a_turn_goes_from_prompt_to_done() {
    let mut world = ready();
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(world.kinds(), [K::Status, K::Prompt, K::AgentMessage, K::Done]);
    assert_eq!(run_state(&world, run), RunState::Completed);
    assert_eq!(world.stdin(), ["init -\n", "prompt prompt a\n"]);
}

#[test]
fn prompts_wait_for_each_other_and_the_queue_is_bounded() {
    let mut world = ready();
    let first = prompt(&mut world, "Thello").unwrap();
    let second = ask(&mut world, prompt_request("prompt b")).unwrap();
    assert_eq!(second.queued_behind, 1);
    for _ in 0..2 {
        prompt(&mut world, "prompt c").unwrap();
    }
    assert_eq!(code(prompt(&mut world, "prompt d")), Code::LimitReached);
    assert_eq!(code(prompt(&mut world, &"x".repeat(1001))), Code::LimitReached);
    assert_eq!(run_state(&world, second.run_id), RunState::Queued);
    world.say("D\n");
    assert_eq!(run_state(&world, first), RunState::Completed);
    assert_eq!(run_state(&world, second.run_id), RunState::Completed);
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

#[test]
fn cancel_reaches_the_agent_once_and_never_its_process() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let queued = prompt(&mut world, "prompt b").unwrap();
    world.command(ActorCommand::Cancel(Some(queued))).unwrap();
    assert_eq!(run_state(&world, queued), RunState::Cancelled);
    world.command(ActorCommand::Cancel(None)).unwrap();
    assert_eq!(run_state(&world, run), RunState::Cancelled);
    assert_eq!(world.stdin().iter().filter(|text| *text == "cancel\n").count(), 1);
    assert!(world.processes[&lease(&world)].exit.is_none());
    let nothing = world.command(ActorCommand::Cancel(None)).unwrap();
    assert_eq!(nothing, CommandReply::Cancel(crate::request::CancelResult { run_id: None, state: None }));
}

#[test]
fn a_cancel_that_the_agent_ignores_ends_its_process() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    // The agent stops reading: the cancel is accepted but not answered.
    world.deaf = true;
    world.command(ActorCommand::Cancel(None)).unwrap();
    assert_eq!(run_state(&world, run), RunState::Running);
    world.now_ms = world.actor.as_ref().unwrap().deadline_ms().unwrap();
    world.input(ActorInput::Tick);
    assert_eq!(run_state(&world, run), RunState::Cancelled);
    assert_eq!(world.rows.session.lease_id, None);
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

#[test]
fn close_in_a_turn_is_prompt_and_final() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let queued = prompt(&mut world, "prompt b").unwrap();
    world.command(ActorCommand::Close(CloseRequest::new("enough"))).unwrap();
    assert_eq!(world.rows.session.state, SessionState::Closed);
    assert_eq!(run_state(&world, run), RunState::Cancelled);
    assert_eq!(run_state(&world, queued), RunState::Cancelled);
    assert_eq!(world.rows.session.lease_id, None, "its process has ended");
    assert_eq!(world.kinds().last(), Some(&K::Closed), "no event follows the close");
    assert_eq!(code(prompt(&mut world, "prompt c")), Code::SessionClosed);
    world.command(ActorCommand::Close(CloseRequest::new("again"))).unwrap();
}

#[test]
fn an_agent_that_ends_in_a_turn_fails_the_run_and_is_resumed_by_the_next() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    world.exit(lease(&world), ExitStatus::Signaled(9));
    assert!(world.settle());
    assert_eq!(run_state(&world, run), RunState::Failed);
    assert_eq!(world.rows.session.last_error.clone().unwrap().detail_code.as_deref(), Some("AGENT_EXITED"));
    let next = prompt(&mut world, "prompt b").unwrap();
    assert_eq!(run_state(&world, next), RunState::Completed);
    assert!(world.stdin().contains(&"init session-1\n".to_owned()), "{:?}", world.stdin());
}

#[test]
fn output_of_a_dead_agent_is_read_to_its_end_before_the_run_fails() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let id = lease(&world);
    world.processes.get_mut(&id).unwrap().stdout.extend(b"Tlast\nD\n");
    world.exit(id, ExitStatus::Exited(0));
    world.boot(None);
    assert!(world.settle());
    assert_eq!(
        run_state(&world, run),
        RunState::Completed,
        "H1: output before the end of the process is read"
    );
}

#[test]
fn a_conversation_that_cannot_be_resumed_is_never_replaced_silently() {
    let mut world = ready();
    world.say("Runresumable\n");
    world.exit(lease(&world), ExitStatus::Exited(1));
    assert!(world.settle());
    assert_eq!(code(prompt(&mut world, "prompt a")), Code::ResumeUnavailable);
    let request = crate::request::PromptRequest { new_conversation: true, ..prompt_request("prompt b") };
    let run = ask(&mut world, request).unwrap().run_id;
    assert_eq!(run_state(&world, run), RunState::Completed);
    assert_eq!(world.stdin().iter().filter(|text| *text == "init -\n").count(), 2);
}

#[test]
fn an_agent_that_does_not_open_in_time_is_an_error_that_the_next_prompt_tries_again() {
    let mut world = World::new(1, 1000);
    world.deaf = true;
    world.boot(None);
    assert!(world.settle());
    let run = prompt(&mut world, "prompt a").unwrap();
    world.now_ms = world.actor.as_ref().unwrap().deadline_ms().unwrap();
    world.input(ActorInput::Tick);
    assert_eq!(world.rows.session.state, SessionState::Error);
    assert_eq!(run_state(&world, run), RunState::Failed);
    world.deaf = false;
    let next = prompt(&mut world, "prompt b").unwrap();
    assert_eq!(run_state(&world, next), RunState::Completed);
}

#[test]
fn a_spawn_that_is_refused_fails_what_waits_with_the_reason() {
    let mut world = World::new(1, 1000);
    world.refuse_spawn = Some((RefusalCode::SpawnFailed, None));
    world.boot(None);
    assert!(world.settle());
    assert_eq!(world.rows.session.state, SessionState::Error);
    assert_eq!(world.rows.session.lease_id, None);
    let failure = world.rows.session.last_error.clone().unwrap();
    assert_eq!(
        (failure.code, failure.detail_code.as_deref()),
        (Code::SessionInitFailed, Some("SPAWN_FAILED"))
    );
}

#[test]
fn a_spawn_that_must_wait_is_asked_again() {
    let mut world = World::new(1, 1000);
    world.refuse_spawn = Some((RefusalCode::SessionBusy, Some(300)));
    world.boot(None);
    assert!(world.settle());
    assert_eq!(world.rows.session.state, SessionState::Creating);
    world.refuse_spawn = None;
    world.now_ms += 300;
    world.input(ActorInput::Tick);
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

#[test]
fn a_permission_waits_is_answered_once_and_expires_with_its_turn() {
    let mut world = ready();
    let run = prompt(&mut world, "P").unwrap();
    let id = world.rows.permissions.values().next().unwrap().permission_id();
    let answer = |option: &str| ActorCommand::AnswerPermission {
        permission_id: id.clone(),
        option_id: option.to_owned(),
        by: "somebody".to_owned(),
    };
    assert_eq!(code(world.command(answer("maybe"))), Code::Usage);
    world.command(answer("yes")).unwrap();
    assert_eq!(code(world.command(answer("no"))), Code::Usage, "the first answer wins");
    assert!(world.stdin().iter().any(|text| text.contains("selected") && text.contains("yes")));
    world.say("P\n");
    assert_eq!(world.rows.permissions.len(), 1);
    world.command(ActorCommand::Cancel(Some(run))).unwrap();
    assert_eq!(world.rows.permissions.len(), 0, "H4: an open question does not outlive its turn");
    let settled = world.kinds().iter().filter(|kind| **kind == K::PermissionSettled).count();
    assert_eq!(settled, 2);
}

#[test]
fn a_permission_without_an_answer_takes_the_configured_outcome() {
    let mut world = ready();
    prompt(&mut world, "P").unwrap();
    world.now_ms += 10_000;
    world.input(ActorInput::Tick);
    assert_eq!(world.rows.permissions.len(), 0);
    assert!(world.stdin().iter().any(|text| text.contains("selected") && text.contains("no")));
}

#[test]
fn nobody_to_ask_fails_the_run_when_the_session_says_so() {
    let mut world = ready();
    world.rows.session.options.non_interactive = crate::rows::NonInteractive::Fail;
    world.boot(None);
    assert!(world.settle());
    let request = crate::request::PromptRequest { interactive: false, ..prompt_request("P") };
    let run = ask(&mut world, request).unwrap().run_id;
    let row = world.rows.runs.iter().find(|row| row.run_id == run).unwrap();
    assert_eq!(row.state, RunState::Failed);
    assert_eq!(row.error.clone().unwrap().code, Code::PermissionPromptUnavailable);
}

#[test]
fn a_request_of_the_agent_is_performed_answered_once_and_again_after_a_restart() {
    let mut world = approving();
    prompt(&mut world, "Wtext").unwrap();
    let (at, again) = world.performed[0];
    assert!(!again);
    world.boot(None);
    assert!(world.settle());
    assert_eq!(world.performed[1], (at, true), "H3: a request that was not answered is served again");
    world.input(ActorInput::RequestDone { at, outcome: Ok("{}".to_owned()) });
    world.input(ActorInput::RequestDone { at, outcome: Ok("{}".to_owned()) });
    assert_eq!(world.stdin().iter().filter(|text| text.starts_with("answer")).count(), 1);
    world.boot(None);
    assert!(world.settle());
    assert_eq!(world.performed.len(), 2);
}

#[test]
fn a_steer_goes_into_the_running_turn() {
    let mut world = ready();
    prompt(&mut world, "Thello").unwrap();
    let request = crate::request::PromptRequest { mode: RunMode::Steer, ..prompt_request("left a bit") };
    let accepted = ask(&mut world, request).unwrap();
    assert!(accepted.steered);
    assert!(world.stdin().contains(&"steer left a bit\n".to_owned()));
}

#[test]
fn a_supervisor_that_is_ahead_of_us_means_a_gap_and_the_end_of_the_lease() {
    let mut world = ready();
    let id = lease(&world);
    let backup = world.rows.clone();
    prompt(&mut world, "Thello").unwrap();
    world.rows = backup;
    world.boot(None);
    assert!(world.settle());
    assert!(world.kinds().contains(&K::Gap), "H7");
    assert!(world.processes[&id].exit.is_some());
    assert_eq!(world.rows.session.lease_id, None);
}

#[test]
fn a_kill_while_a_lost_state_is_noticed_leaves_no_process_behind() {
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
        let gaps = world.kinds().iter().filter(|kind| **kind == K::Gap).count();
        assert!((1..=2).contains(&gaps), "{gaps} gaps, killed after {fuse} effects");
    }
}

#[test]
fn a_line_longer_than_the_ring_is_committed_in_pieces() {
    let mut world = World::new(1, 10_000);
    world.boot(None);
    assert!(world.settle());
    let run = prompt(&mut world, "Thello").unwrap();
    let long = "x".repeat(200_000);
    let id = lease(&world);
    world.say(&format!("T{long}"));
    assert!(world.processes[&id].acked() > 100_000, "H2: an unfinished line can be acknowledged");
    world.boot(None);
    assert!(world.settle());
    world.say("\nD\n");
    assert_eq!(run_state(&world, run), RunState::Completed);
    let said = world.rows.events.iter().find(|event| event.payload.len() > 1000).unwrap();
    assert_eq!(said.payload, long);
}

#[test]
fn a_line_over_the_limit_ends_the_lease_with_a_typed_error() {
    let mut world = World::new(1, 100_000);
    world.boot(None);
    assert!(world.settle());
    let run = prompt(&mut world, "Thello").unwrap();
    world.say(&"x".repeat((1 << 20) + 1));
    let row = world.rows.runs.iter().find(|row| row.run_id == run).unwrap();
    assert_eq!(row.error.clone().unwrap().code, Code::ProtocolError);
    assert_eq!(world.rows.session.lease_id, None, "the lease is drained and released");
}

/// The remaining output of an ended agent is read only up to the line over the limit, since the rest starts
/// mid-line.
#[test]
fn nothing_is_read_after_a_line_over_the_limit_of_an_agent_that_has_ended() {
    let mut world = World::new(1, 100_000);
    world.boot(None);
    assert!(world.settle());
    prompt(&mut world, "Thello").unwrap();
    let process = world.processes.get_mut(&lease(&world)).unwrap();
    let rest =
        format!("T\"before\"\n{}\nT\"{}\"\nT\"after\"\n", "x".repeat((1 << 20) + 1), "y".repeat(150_000));
    process.stdout.extend(rest.bytes());
    process.exit = Some(ExitStatus::Signaled(9));
    world.boot(None);
    assert!(world.settle());
    assert_eq!(
        world.kinds(),
        [K::Status, K::Prompt, K::AgentMessage, K::AgentMessage, K::Error, K::Status, K::Status]
    );
    assert_eq!(world.rows.session.lease_id, None, "the lease is drained and released");
}

/// A restarted gateway reads no output after the line over the limit, since it would start mid-line.
#[test]
fn nothing_is_read_after_a_line_over_the_limit_by_the_next_gateway() {
    let mut world = World::new(1, 100_000);
    world.boot(None);
    assert!(world.settle());
    prompt(&mut world, "Thello").unwrap();
    world.unending = true;
    world.say(&"x".repeat((1 << 20) + 1));
    let before = world.kinds();
    let process = world.processes.get_mut(&lease(&world)).unwrap();
    process.stdout.extend(b"half a line\"\nT\"after\"\n");
    world.boot(None);
    assert!(world.settle());
    assert_eq!(world.kinds(), before);
}

#[test]
fn a_prompt_that_provably_never_arrived_is_put_back() {
    let mut world = ready();
    let id = lease(&world);
    world.stuck = true;
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(run_state(&world, run), RunState::Running);
    world.exit(id, ExitStatus::Signaled(9));
    world.stuck = false;
    assert!(world.settle());
    assert_eq!(run_state(&world, run), RunState::Completed, "H6");
    assert_eq!(world.stdin().iter().filter(|text| *text == "prompt prompt a\n").count(), 1);
}

#[test]
fn a_prompt_of_unknown_fate_fails_as_uncertain() {
    let mut world = ready();
    let id = lease(&world);
    world.stuck = true;
    let run = prompt(&mut world, "prompt a").unwrap();
    world.processes.remove(&id);
    world.stuck = false;
    world.input(ActorInput::Lease(LeaseEvent::Unknown));
    let row = world.rows.runs.iter().find(|row| row.run_id == run).unwrap();
    assert_eq!((row.state, row.error.clone().unwrap().code), (RunState::Failed, Code::Uncertain), "H6");
}

#[test]
fn an_idle_agent_is_asked_whether_it_is_there_and_ended_when_it_is_not() {
    let mut world = ready();
    let id = lease(&world);
    for _ in 0..2 {
        world.now_ms = world.actor.as_ref().unwrap().deadline_ms().unwrap();
        world.input(ActorInput::Tick);
    }
    assert_eq!(world.stdin().iter().filter(|text| *text == "ping\n").count(), 2);
    assert!(world.processes[&id].exit.is_none());
    world.deaf = true;
    for _ in 0..2 {
        world.now_ms = world.actor.as_ref().unwrap().deadline_ms().unwrap();
        world.input(ActorInput::Tick);
    }
    assert_eq!(world.rows.session.lease_id, None);
    world.deaf = false;
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(run_state(&world, run), RunState::Completed, "resumed by the next prompt");
}
