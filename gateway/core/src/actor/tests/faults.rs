//! Adverse cases: a gateway killed between a commit and its acts, missing events of the supervisor, and
//! agents that end at the worst moment.

use super::decisions::{
    approving, code, lease, opening, prompt, ready, ready_in_pieces, ready_with, refused, run_state, started,
    submit,
};
use super::world::{World, prompt_request};
use super::*;
use crate::backend::AgentRequestKind;
use crate::event::EventKind as K;
use crate::request::PromptRequest;
use crate::rows::{NonInteractive, RunMode};
use crate::session::SessionState;
use acp_shared::codes::Code;
use acp_shared::protocol::{Attached, LeaseState, RefusalCode};

fn steer(world: &mut World, text: &str) -> RunId {
    let accepted = submit(world, PromptRequest { mode: RunMode::Steer, ..prompt_request(text) }).unwrap();
    assert!(accepted.steered);
    accepted.run_id
}

fn failed_with(world: &World, run_id: RunId) -> Code {
    let row = world.run(run_id);
    assert_eq!(row.state, RunState::Failed);
    row.error.clone().unwrap().code
}

#[test]
fn reset_survives_kill_before_close_is_sent() {
    let mut world = ready();
    world.ignores_close = true;
    world.command(ActorCommand::NewConversation).unwrap();
    world.ignores_close = false;
    world.restart();
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(run_state(&world, run), RunState::Completed);
    assert_eq!(world.count_stdin("init -\n"), 2, "a new conversation");
}

#[test]
fn reset_during_turn_cancels_it_and_unblocks_the_queue() {
    let mut world = ready();
    let old = prompt(&mut world, "Thello").unwrap();
    world.ignores_close = true;
    world.command(ActorCommand::NewConversation).unwrap();
    assert_eq!(run_state(&world, old), RunState::Cancelled);
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(run_state(&world, run), RunState::Queued);
    world.ignores_close = false;
    world.restart();
    assert_eq!(run_state(&world, run), RunState::Completed);
}

#[test]
fn late_ready_of_ending_agent_restores_no_conversation() {
    let mut world = ready();
    world.end_process(ExitStatus::Exited(0));
    (world.ignores_input, world.ignores_close) = (true, true);
    let run = prompt(&mut world, "prompt a").unwrap();
    world.command(ActorCommand::NewConversation).unwrap();
    world.emit("Rsession-1\n");
    let id = &world.rows.session.agent_session_id;
    assert_eq!(*id, None, "a late answer does not restore the old conversation");
    (world.ignores_input, world.ignores_close) = (false, false);
    world.end_process(ExitStatus::Exited(0));
    assert_eq!(run_state(&world, run), RunState::Completed);
    assert_eq!(world.count_stdin("init -\n"), 2);
}

#[test]
fn agent_over_limit_is_ended_after_restart() {
    let mut world = ready_in_pieces(100_000);
    prompt(&mut world, "Thello").unwrap();
    world.ignores_close = true;
    world.emit(&"x".repeat((1 << 20) + 1));
    world.ignores_close = false;
    world.restart();
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(run_state(&world, run), RunState::Completed, "never stuck between error and a living process");
}

/// State after the supervisor reported the end of the process and the connection broke before the last
/// output.
fn exit_reported_before_last_output() -> (World, RunId) {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    world.report_end_and_disconnect(b"Tlast\nD\n", ExitStatus::Exited(0));
    assert_eq!(run_state(&world, run), RunState::Running);
    (world, run)
}

#[test]
fn reported_exit_is_drained_on_next_connection() {
    let (mut world, run) = exit_reported_before_last_output();
    world.input(ActorInput::Lease(LeaseEvent::Connected));
    assert_eq!(run_state(&world, run), RunState::Completed, "H1");
    assert_eq!(world.rows.session.lease_id, None);
}

#[test]
fn reported_exit_with_lost_output_ends_the_run() {
    for news in [LeaseEvent::Unknown, LeaseEvent::OffsetGone] {
        let (mut world, run) = exit_reported_before_last_output();
        world.input(ActorInput::Lease(news));
        assert_eq!(run_state(&world, run), RunState::Failed);
        assert_eq!(world.rows.session.lease_id, None);
    }
}

#[test]
fn consecutive_terminal_requests_get_separate_leases() {
    let mut world = approving();
    prompt(&mut world, "Thello").unwrap();
    world.emit("Cone\nCtwo\nCthree\n");
    let create = |row: &&AgentRequestRow| matches!(row.request.what, AgentRequestKind::TerminalCreate { .. });
    let mut intents: Vec<_> =
        world.rows.requests.values().filter(create).filter_map(|row| row.intent.clone()).collect();
    intents.sort();
    intents.dedup();
    assert_eq!(intents.len(), 3, "H16: the terminal's id is its lease");
    assert!(intents.iter().all(|id| acp_shared::ids::LeaseId::parse(id).is_ok()));
}

#[test]
fn steer_fails_with_its_agent() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let steer_run = steer(&mut world, "left");
    world.end_process(ExitStatus::Signaled(9));
    assert_eq!(run_state(&world, run), RunState::Failed);
    assert_eq!(failed_with(&world, steer_run), Code::TurnFailed);
}

#[test]
fn undelivered_steer_becomes_a_prompt() {
    let mut world = ready();
    prompt(&mut world, "Thello").unwrap();
    world.is_input_blocked = true;
    let steer_run = steer(&mut world, "prompt left");
    world.exit(lease(&world), ExitStatus::Signaled(9));
    world.is_input_blocked = false;
    assert!(world.settle());
    assert_eq!(run_state(&world, steer_run), RunState::Completed, "H6, H11");
}

#[test]
fn unwritten_input_is_confirmed_on_next_connection() {
    let mut world = ready();
    world.is_input_blocked = true;
    let run = prompt(&mut world, "prompt a").unwrap();
    world.is_input_blocked = false;
    world.input(ActorInput::Disconnected);
    let end = world.processes[&lease(&world)].stdout.len() as u64;
    let attached = Attached {
        state: LeaseState::Open,
        stdout_base: end,
        stdout_end: end,
        stdout_eof: false,
        stdin_written: 1,
        stdin_accepted: 2,
        exit: None,
    };
    world.input(ActorInput::Lease(LeaseEvent::Attached(attached)));
    assert_eq!(run_state(&world, run), RunState::Completed, "its confirmation went to the old connection");
}

#[test]
fn busy_attach_is_retried() {
    let mut world = started(|world| world.refuse_attach = true);
    world.advance_to_deadline();
    assert_eq!(world.rows.session.state, SessionState::Creating);
    world.refuse_attach = false;
    world.advance_to_deadline();
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

#[test]
fn run_without_approver_keeps_its_failure_when_agent_exits() {
    let mut world = ready_with(|options| options.non_interactive = NonInteractive::Fail);
    let request = PromptRequest { interactive: false, ..prompt_request("Thello") };
    let run = submit(&mut world, request).unwrap().run_id;
    world.ignores_input = true;
    world.emit("P\n");
    assert_eq!(world.rows.session.state, SessionState::Cancelling);
    world.end_process(ExitStatus::Exited(1));
    assert_eq!(failed_with(&world, run), Code::PermissionPromptUnavailable);
}

#[test]
fn closed_session_writes_no_further_events() {
    let mut world = ready();
    prompt(&mut world, "Thello").unwrap();
    world.ignores_input = true;
    world.close();
    world.end_process(ExitStatus::Exited(1));
    assert_eq!(world.rows.session.lease_id, None);
    assert_eq!(world.kinds().last(), Some(&K::Closed));

    let mut world = refused(RefusalCode::SpawnFailed, None);
    world.close();
    assert_eq!(world.rows.session.lease_id, None);
    assert_eq!(world.kinds().last(), Some(&K::Closed));
}

#[test]
fn session_with_removed_agent_can_be_closed() {
    let mut world = ready();
    world.end_process(ExitStatus::Exited(0));
    world.removed = true;
    world.restart();
    assert_eq!(code(prompt(&mut world, "prompt a")), Code::AgentNotAllowed);
    world.close();
    assert_eq!(world.rows.session.state, SessionState::Closed);
}

#[test]
fn queued_run_fails_if_agent_was_removed() {
    let mut world = refused(RefusalCode::SessionBusy, Some(300));
    let run = prompt(&mut world, "prompt a").unwrap();
    world.rows.lease = None;
    world.rows.session.lease_id = None;
    world.removed = true;
    world.restart();
    assert_eq!(failed_with(&world, run), Code::AgentNotAllowed);
    assert!(world.processes.is_empty());
}

#[test]
fn agent_that_never_reads_answers_is_ended() {
    let mut world = ready_in_pieces(1_000);
    let run = prompt(&mut world, "Thello").unwrap();
    world.is_input_blocked = true;
    world.emit(&"?\n".repeat(5_000));
    assert_eq!(failed_with(&world, run), Code::ProtocolError);
    assert_eq!(world.rows.session.lease_id, None);
}

#[test]
fn agent_with_closed_stdin_is_ended() {
    let mut world = ready();
    world.is_input_blocked = true;
    let run = prompt(&mut world, "prompt a").unwrap();
    world.input(ActorInput::Lease(LeaseEvent::InputRefused { seq: 2, code: RefusalCode::LeaseEnded }));
    world.is_input_blocked = false;
    assert!(world.settle());
    assert_ne!(run_state(&world, run), RunState::Running, "no run waits for an agent that accepts no input");
}

#[test]
fn turn_without_lease_after_adopt_is_uncertain() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let steer_run = steer(&mut world, "left");
    world.rows.lease = None;
    world.rows.session.lease_id = None;
    world.restart();
    assert_eq!(
        (failed_with(&world, run), failed_with(&world, steer_run)),
        (Code::Uncertain, Code::Uncertain)
    );
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

#[test]
fn option_set_during_start_reaches_the_agent() {
    let mut world = opening();
    world.push(ActorCommand::Set(crate::options::Setting::Mode("ask".to_owned())));
    assert!(world.settle());
    assert!(world.stdin().iter().any(|text| text.starts_with("set ")), "{:?}", world.stdin());
}
