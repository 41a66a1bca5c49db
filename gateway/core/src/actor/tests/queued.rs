//! Changes to queued messages.

use super::decisions::{code, opening, prompt, ready, run_state};
use super::*;
use crate::event::EventKind as K;
use crate::request::{QueueEdit, QueueEditResult};
use acp_shared::codes::Code;

fn change(world: &mut World, run_id: RunId, change: QueueEdit) -> Result<QueueEditResult, Failure> {
    match world.command(ActorCommand::Queued { run_id, change })? {
        CommandReply::Queued(now) => Ok(now),
        other => panic!("{other:?}"),
    }
}

#[test]
fn queued_prompt_can_be_dropped_reworded_and_steered() {
    let mut world = ready();
    let running = prompt(&mut world, "Thello").unwrap();
    let [dropped, reworded, steered] =
        ["one", "two", "three"].map(|text| prompt(&mut world, &format!("prompt {text}")).unwrap());
    let reword = || QueueEdit::Reword("prompt again".to_owned());
    for edit in [QueueEdit::Drop, reword(), QueueEdit::Steer] {
        let got = change(&mut world, running, edit).unwrap();
        assert_eq!(got, QueueEditResult::TooLate, "a running run cannot be changed");
    }
    assert_eq!(change(&mut world, dropped, QueueEdit::Drop).unwrap(), QueueEditResult::Done);
    assert_eq!(run_state(&world, dropped), RunState::Cancelled);
    assert_eq!(change(&mut world, dropped, QueueEdit::Drop).unwrap(), QueueEditResult::TooLate, "once");
    assert_eq!(change(&mut world, reworded, reword()).unwrap(), QueueEditResult::Done);
    let events = world.kinds().len();
    assert_eq!(change(&mut world, reworded, reword()).unwrap(), QueueEditResult::Done);
    assert_eq!(world.kinds().len(), events, "the same text again writes no event");
    assert_eq!(change(&mut world, steered, QueueEdit::Steer).unwrap(), QueueEditResult::Done);
    assert!(world.stdin().contains(&"steer prompt three\n".to_owned()), "{:?}", world.stdin());
    assert_eq!(change(&mut world, steered, QueueEdit::Drop).unwrap(), QueueEditResult::TooLate);
    world.emit("D\n");
    let prompts: Vec<String> =
        world.stdin().into_iter().filter(|text| text.starts_with("prompt prompt")).collect();
    assert_eq!(prompts, ["prompt prompt again\n"]);
    let journaled: Vec<bool> = ["prompt_reworded", "prompt_steered"]
        .iter()
        .map(|status| {
            world.rows.events.iter().any(|row| row.kind == K::Status && row.payload.contains(status))
        })
        .collect();
    assert_eq!(journaled, [true, true], "both changes are journaled");
}

#[test]
fn steer_without_turn_leaves_the_prompt_queued() {
    let mut world = opening();
    let waits = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(change(&mut world, waits, QueueEdit::Steer).unwrap(), QueueEditResult::Unsteerable);
    assert_eq!(run_state(&world, waits), RunState::Queued);
    let long = QueueEdit::Reword("x".repeat(world.limits.prompt_bytes_max + 1));
    assert_eq!(code(change(&mut world, waits, long)), Code::LimitReached);
    let events = world.kinds().len();
    assert_eq!(change(&mut world, RunId::mint(), QueueEdit::Drop).unwrap(), QueueEditResult::TooLate);
    assert_eq!(world.kinds().len(), events);
}

#[test]
fn reworded_prompt_survives_restart() {
    let mut world = ready();
    prompt(&mut world, "Thello").unwrap();
    let reworded = prompt(&mut world, "prompt old").unwrap();
    change(&mut world, reworded, QueueEdit::Reword("prompt new".to_owned())).unwrap();
    world.restart();
    world.emit("D\n");
    assert!(world.stdin().contains(&"prompt prompt new\n".to_owned()), "{:?}", world.stdin());
    assert!(!world.stdin().iter().any(|text| text.contains("old")), "{:?}", world.stdin());
}
