//! Adverse cases: a gateway killed between a commit and its acts, missing events of the supervisor, and
//! agents that end at the worst moment.

use super::cases::{
    approving, ask, code, lease, opening, prompt, ready, ready_in_pieces, ready_with, refused, run_state,
    started,
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
    let accepted = ask(world, PromptRequest { mode: RunMode::Steer, ..prompt_request(text) }).unwrap();
    assert!(accepted.steered);
    accepted.run_id
}

fn failed_with(world: &World, run_id: RunId) -> Code {
    let row = world.run(run_id);
    assert_eq!(row.state, RunState::Failed);
    row.error.clone().unwrap().code
}

#[test]
fn a_reset_is_not_undone_by_a_death_before_the_process_was_told() {
    let mut world = ready();
    world.unending = true;
    world.command(ActorCommand::NewConversation).unwrap();
    world.unending = false;
    world.restart();
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(run_state(&world, run), RunState::Completed);
    assert_eq!(world.heard_times("init -\n"), 2, "a new conversation");
}

#[test]
fn a_reset_in_a_turn_leaves_nothing_of_the_old_turn_in_the_way() {
    let mut world = ready();
    let old = prompt(&mut world, "Thello").unwrap();
    world.unending = true;
    world.command(ActorCommand::NewConversation).unwrap();
    assert_eq!(run_state(&world, old), RunState::Cancelled);
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(run_state(&world, run), RunState::Queued);
    world.unending = false;
    world.restart();
    assert_eq!(run_state(&world, run), RunState::Completed);
}

#[test]
fn an_agent_that_is_being_ended_does_not_bring_its_conversation_back() {
    let mut world = ready();
    world.end(ExitStatus::Exited(0));
    (world.deaf, world.unending) = (true, true);
    let run = prompt(&mut world, "prompt a").unwrap();
    world.command(ActorCommand::NewConversation).unwrap();
    world.say("Rsession-1\n");
    let id = &world.rows.session.agent_session_id;
    assert_eq!(*id, None, "a late answer does not restore the old conversation");
    (world.deaf, world.unending) = (false, false);
    world.end(ExitStatus::Exited(0));
    assert_eq!(run_state(&world, run), RunState::Completed);
    assert_eq!(world.heard_times("init -\n"), 2);
}

#[test]
fn an_agent_that_broke_a_limit_is_ended_after_a_death_too() {
    let mut world = ready_in_pieces(100_000);
    prompt(&mut world, "Thello").unwrap();
    world.unending = true;
    world.say(&"x".repeat((1 << 20) + 1));
    world.unending = false;
    world.restart();
    let run = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(run_state(&world, run), RunState::Completed, "never stuck between error and a living process");
}

/// State after the supervisor reported the end of the process and the connection broke before the last
/// output.
fn told_of_the_end_and_cut_off() -> (World, RunId) {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    world.tell_end_and_disconnect(b"Tlast\nD\n", ExitStatus::Exited(0));
    assert_eq!(run_state(&world, run), RunState::Running);
    (world, run)
}

#[test]
fn an_end_that_was_announced_is_read_to_its_end_on_the_next_connection() {
    let (mut world, run) = told_of_the_end_and_cut_off();
    world.input(ActorInput::Lease(LeaseEvent::Connected));
    assert_eq!(run_state(&world, run), RunState::Completed, "H1");
    assert_eq!(world.rows.session.lease_id, None);
}

#[test]
fn an_end_whose_last_words_are_gone_is_an_end_all_the_same() {
    for news in [LeaseEvent::Unknown, LeaseEvent::OffsetGone] {
        let (mut world, run) = told_of_the_end_and_cut_off();
        world.input(ActorInput::Lease(news));
        assert_eq!(run_state(&world, run), RunState::Failed);
        assert_eq!(world.rows.session.lease_id, None);
    }
}

#[test]
fn two_terminals_asked_for_in_one_breath_are_two() {
    let mut world = approving();
    prompt(&mut world, "Thello").unwrap();
    world.say("Cone\nCtwo\nCthree\n");
    let create = |row: &&AgentRequestRow| matches!(row.request.what, AgentRequestKind::TerminalCreate { .. });
    let mut intents: Vec<_> =
        world.rows.requests.values().filter(create).filter_map(|row| row.intent.clone()).collect();
    intents.sort();
    intents.dedup();
    assert_eq!(intents.len(), 3, "H16: the terminal's id is its lease");
    assert!(intents.iter().all(|id| acp_shared::ids::LeaseId::parse(id).is_ok()));
}

#[test]
fn a_steer_does_not_outlive_the_agent_that_had_it() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let word = steer(&mut world, "left");
    world.end(ExitStatus::Signaled(9));
    assert_eq!(run_state(&world, run), RunState::Failed);
    assert_eq!(failed_with(&world, word), Code::TurnFailed);
}

#[test]
fn a_steer_that_provably_never_arrived_becomes_a_turn() {
    let mut world = ready();
    prompt(&mut world, "Thello").unwrap();
    world.stuck = true;
    let word = steer(&mut world, "prompt left");
    world.exit(lease(&world), ExitStatus::Signaled(9));
    world.stuck = false;
    assert!(world.settle());
    assert_eq!(run_state(&world, word), RunState::Completed, "H6, H11");
}

#[test]
fn what_was_accepted_and_not_written_is_asked_after_on_the_next_connection() {
    let mut world = ready();
    world.stuck = true;
    let run = prompt(&mut world, "prompt a").unwrap();
    world.stuck = false;
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
fn an_attach_that_is_refused_for_now_is_asked_again() {
    let mut world = started(|world| world.refuse_attach = true);
    world.wait();
    assert_eq!(world.rows.session.state, SessionState::Creating);
    world.refuse_attach = false;
    world.wait();
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

#[test]
fn a_run_that_fails_for_want_of_somebody_to_ask_fails_so_even_when_its_agent_ends() {
    let mut world = ready_with(|options| options.non_interactive = NonInteractive::Fail);
    let request = PromptRequest { interactive: false, ..prompt_request("Thello") };
    let run = ask(&mut world, request).unwrap().run_id;
    world.deaf = true;
    world.say("P\n");
    assert_eq!(world.rows.session.state, SessionState::Cancelling);
    world.end(ExitStatus::Exited(1));
    assert_eq!(failed_with(&world, run), Code::PermissionPromptUnavailable);
}

#[test]
fn nothing_is_said_after_a_session_is_closed() {
    let mut world = ready();
    prompt(&mut world, "Thello").unwrap();
    world.deaf = true;
    world.close();
    world.end(ExitStatus::Exited(1));
    assert_eq!(world.rows.session.lease_id, None);
    assert_eq!(world.kinds().last(), Some(&K::Closed));

    let mut world = refused(RefusalCode::SpawnFailed, None);
    world.close();
    assert_eq!(world.rows.session.lease_id, None);
    assert_eq!(world.kinds().last(), Some(&K::Closed));
}

#[test]
fn a_session_whose_agent_was_removed_can_still_be_closed() {
    let mut world = ready();
    world.end(ExitStatus::Exited(0));
    world.removed = true;
    world.restart();
    assert_eq!(code(prompt(&mut world, "prompt a")), Code::AgentNotAllowed);
    world.close();
    assert_eq!(world.rows.session.state, SessionState::Closed);
}

#[test]
fn what_waits_for_an_agent_that_was_removed_fails_with_the_reason() {
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
fn an_agent_that_asks_and_never_reads_is_ended() {
    let mut world = ready_in_pieces(1_000);
    let run = prompt(&mut world, "Thello").unwrap();
    world.stuck = true;
    world.say(&"?\n".repeat(5_000));
    assert_eq!(failed_with(&world, run), Code::ProtocolError);
    assert_eq!(world.rows.session.lease_id, None);
}

#[test]
fn an_agent_that_closed_its_standard_input_is_ended() {
    let mut world = ready();
    world.stuck = true;
    let run = prompt(&mut world, "prompt a").unwrap();
    world.input(ActorInput::Lease(LeaseEvent::InputRefused { seq: 2, code: RefusalCode::LeaseEnded }));
    world.stuck = false;
    assert!(world.settle());
    assert_ne!(run_state(&world, run), RunState::Running, "no run waits for an agent that accepts no input");
}

#[test]
fn a_turn_whose_lease_was_taken_away_by_adopt_ends() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let word = steer(&mut world, "left");
    world.rows.lease = None;
    world.rows.session.lease_id = None;
    world.restart();
    assert_eq!((failed_with(&world, run), failed_with(&world, word)), (Code::Uncertain, Code::Uncertain));
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

#[test]
fn an_option_that_is_set_while_the_agent_starts_reaches_it() {
    let mut world = opening();
    world.push(ActorCommand::Set(crate::options::Setting::Mode("ask".to_owned())));
    assert!(world.settle());
    assert!(world.stdin().iter().any(|text| text.starts_with("set ")), "{:?}", world.stdin());
}
