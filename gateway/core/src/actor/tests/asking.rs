//! Certainty that the agent asks before it acts: kept, and reported where the permission mode promises more.

use super::decisions::{prompt, ready};
use super::world::World;
use super::*;
use crate::backend::AskGuarantee;
use crate::options::Setting;
use crate::rows::PermissionMode;

fn reports(world: &World) -> usize {
    world.rows.events.iter().filter(|event| event.payload.contains("asking_not_ensured")).count()
}

#[test]
fn unensured_asking_is_reported_once_before_first_turn() {
    let mut world = ready();
    world.emit("Kunknown\n");
    assert_eq!((reports(&world), world.rows.session.options.asking), (1, Some(AskGuarantee::Unknown)));
    world.restart();
    world.emit("Kunknown\n");
    prompt(&mut world, "Thello").unwrap();
    assert_eq!(reports(&world), 1, "the state survives a restart");
    world.emit("Kensured\nKunknown\n");
    assert_eq!(reports(&world), 2, "the loss is reported once more");
}

#[test]
fn unensured_asking_is_reported_with_modes_that_ask() {
    for (asking, mode, want) in [
        ("unknown", PermissionMode::Ask, 1),
        ("unknown", PermissionMode::ApproveReads, 1),
        ("never", PermissionMode::Ask, 1),
        ("unknown", PermissionMode::DenyAll, 0),
        ("unknown", PermissionMode::ApproveAll, 0),
        ("ensured", PermissionMode::Ask, 0),
    ] {
        let mut world = ready();
        world.command(ActorCommand::Set(Setting::Permission(PermissionMode::ApproveAll))).unwrap();
        world.emit(&format!("K{asking}\n"));
        assert_eq!(reports(&world), 0, "approve-all promises no questions: {asking}");
        world.command(ActorCommand::Set(Setting::Permission(mode))).unwrap();
        assert_eq!(reports(&world), want, "{asking} {mode:?}");
    }
}
