//! The actor against a small world in memory: a database that is a list of rows, a supervisor that keeps streams,
//! and an agent that answers prompts. The gateway may be killed between any two effects; at the end everything
//! was said once, in order, and every prompt arrived once.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap is a failed test")]

mod asking;
mod attacks;
mod cases;
mod host;
mod letters;
mod lives;
mod lookups;
mod machines;
mod permissions;
mod phases;
mod queued;
mod settings;
mod world;

use super::*;
use proptest::prelude::*;
use world::World;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Kill the gateway at any effect, any number of times: nothing is lost and nothing is twice.
    #[test]
    fn a_kill_between_any_two_effects_loses_and_repeats_nothing(
        prompts in 1usize..4,
        chunks in 0usize..7,
        cut in 1usize..40,
        kills in prop::collection::vec(0usize..60, 0..6),
    ) {
        let mut world = World::new(chunks, cut);
        let mut kills = kills.into_iter();
        world.boot(kills.next());
        for n in 0..prompts {
            world.prompt(&format!("prompt {n}"));
            while !world.settle() {
                world.boot(kills.next());
            }
        }
        while !world.settle() {
            world.boot(None);
        }
        world.check(prompts, chunks);
    }
}
