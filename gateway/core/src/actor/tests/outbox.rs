//! Bounds of what the gateway keeps for an agent that sends requests and does not read the answers.

use super::decisions::{approving, prompt};
use super::*;
use crate::host::{ANSWER_BYTES_MAX, too_long_answer};
use acp_shared::codes::Code;

/// Number of files that were read so far.
fn reads(world: &World) -> usize {
    world.performed.len()
}

/// Answers the request that was carried out last.
fn finish(world: &mut World, bytes: usize) {
    let (at, _) = *world.performed.last().unwrap();
    world.input(ActorInput::RequestDone { at, outcome: Ok("x".repeat(bytes)) });
}

fn reading(files: usize) -> (World, RunId) {
    let mut world = approving();
    let run = prompt(&mut world, "Thello").unwrap();
    world.is_input_blocked = true;
    world.emit(&"G/w/f\n".repeat(files));
    (world, run)
}

#[test]
fn files_are_read_one_at_a_time() {
    let (mut world, _) = reading(3);
    for done in 1..=3 {
        assert_eq!(reads(&world), done);
        finish(&mut world, 1);
    }
    assert_eq!(reads(&world), 3);
}

#[test]
fn no_file_is_read_while_answers_wait_for_the_agent() {
    let (mut world, run) = reading(3);
    finish(&mut world, 2 * 1024 * 1024);
    assert_eq!(reads(&world), 1);
    world.is_input_blocked = false;
    world.restart();
    assert_eq!(reads(&world), 2, "the agent has read the first answer");
    assert_eq!(world.run(run).state, RunState::Running);
}

#[test]
fn read_in_progress_is_forgotten_with_its_lease() {
    let (mut world, _) = reading(2);
    world.is_input_blocked = false;
    world.end_process(ExitStatus::Exited(0));
    prompt(&mut world, "G/w/f").unwrap();
    assert_eq!(reads(&world), 2, "at the same offset or not, the next agent's file is read");
}

#[test]
fn agent_with_too_many_unread_answer_bytes_is_ended() {
    let (mut world, run) = reading(0);
    world.emit("W/w/a x\nW/w/b x\n");
    for (at, _) in world.performed.clone() {
        assert_eq!(world.run(run).state, RunState::Running);
        world.input(ActorInput::RequestDone { at, outcome: Ok("x".repeat(ANSWER_BYTES_MAX - 1)) });
    }
    let error = world.run(run).error.clone().unwrap();
    assert_eq!((error.code, world.rows.session.lease_id), (Code::ProtocolError, None), "{}", error.message);
}

#[test]
fn answer_above_the_limit_becomes_an_error() {
    for (bytes, is_error) in [(ANSWER_BYTES_MAX, false), (ANSWER_BYTES_MAX + 1, true)] {
        let (mut world, _) = reading(1);
        world.is_input_blocked = false;
        finish(&mut world, bytes);
        let error = format!("answer Err({:?})", too_long_answer());
        assert_eq!(world.stdin().iter().any(|text| text.trim_end() == error), is_error, "{bytes}");
    }
}
