//! Tests of the actor with an in-memory model: a database as a list of rows, a supervisor with streams, and
//! an agent that answers prompts. The gateway may be killed between any two effects; in the end every output
//! was journaled once, in order, and every prompt arrived once.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap is a failed test")]

mod asking;
mod decisions;
mod elicitation;
mod faults;
mod host;
pub(crate) mod letter_machine;
mod lifecycle;
mod lookups;
mod machines;
mod outbox;
mod permissions;
mod phases;
mod queued;
mod secrets;
mod settings;
mod world;

use super::*;
use proptest::prelude::*;
use world::World;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn kill_between_any_effects_loses_and_repeats_nothing(
        prompts in 1usize..4,
        chunks in 0usize..7,
        chunk_bytes in 1usize..40,
        kills in prop::collection::vec(0usize..60, 0..6),
    ) {
        let mut world = World::new(chunks, chunk_bytes);
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
        world.assert_delivered_once(prompts, chunks);
    }
}
