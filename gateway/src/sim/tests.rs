//! Ten thousand seeds, fresh ones, and the planted bugs.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::ear;
use super::life;
use super::plants::Plant;
use super::reach;
use super::stage::{Broken, EFFECTS_MIN, Stage, Tally};
use crate::aside;
use crate::config::load::Loaded;
use crate::store::by_hand::Hand;

/// Seeds in each of the ten tests. `SIM_SEEDS=1000` plays ten thousand in all, and asks that they reach everything.
const SEEDS: u64 = 20;
/// From so many seeds on a test must reach everything by itself.
const REACH_FROM: u64 = 1_000;
/// Seeds that nobody has played before.
const FRESH: u64 = 20;
/// Within so many seeds a planted bug must be found.
const FOUND_WITHIN: u64 = 150;
const SESSIONS_MIN: usize = 3;
/// Lines of a run that failed.
const LINES: usize = 2_000;

/// Everything that seeds share.
struct Theatre {
    hand: Hand,
    config: Loaded,
}

impl Theatre {
    fn new() -> Self {
        aside::by_hand::stay_here();
        Self { hand: Hand::new(), config: life::config() }
    }

    fn play(&mut self, seed: u64, plant: Option<Plant>, aloud: bool) -> (Result<Tally, Broken>, Vec<String>) {
        drop(ear::listen(aloud));
        let stage = Stage::new(&mut self.hand, &self.config, seed, plant);
        let mut played = stage.play();
        let heard = ear::listen(false);
        if let Ok(tally) = &mut played {
            tally.reached.extend(heard.moves);
        }
        (played, heard.lines.unwrap_or_default())
    }

    /// Plays a seed in which everything must hold.
    fn must_hold(&mut self, seed: u64) -> Tally {
        // Aloud, so that the very run that failed can be read: in another one tasks may be woken in another order.
        let (played, lines) = self.play(seed, None, true);
        match played {
            Ok(tally) => tally,
            Err(Broken(why)) => {
                let last = lines.iter().rev().take(LINES).rev().cloned().collect::<Vec<_>>().join("\n");
                panic!("seed {seed} (SIM_SEED={seed} plays it again): {why}\n{last}\n{why}");
            }
        }
    }

    /// Plays these seeds; what they came to together.
    fn all_hold(&mut self, seeds: impl Iterator<Item = u64>) -> Tally {
        let mut all = Tally::default();
        for seed in seeds {
            let tally = self.must_hold(seed);
            assert!(tally.effects >= EFFECTS_MIN, "seed {seed} has {} effects only", tally.effects);
            assert!(tally.sessions >= SESSIONS_MIN, "seed {seed} has {} sessions only", tally.sessions);
            all.effects += tally.effects;
            all.lives += tally.lives;
            all.reached.extend(tally.reached);
        }
        all
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn thousand(which: u64) {
    let begun = std::time::Instant::now();
    let count = number("SIM_SEEDS").unwrap_or(SEEDS);
    let tally = Theatre::new().all_hold((which * count)..((which + 1) * count));
    eprintln!("{count} seeds, {} effects, {} lives, {:?}", tally.effects, tally.lives, begun.elapsed());
    let missing = reach::missing(&tally.reached);
    if count >= REACH_FROM {
        assert!(missing.is_empty(), "not reached: {missing:#?}");
    } else {
        eprintln!("reached: {:#?}\nnot reached: {missing:#?}", tally.reached);
    }
}

macro_rules! thousands {
    ($($name:ident = $which:literal,)+) => {$(
        #[test]
        #[ignore = "it finds things that are not settled yet: see `mod.rs`"]
        fn $name() {
            thousand($which);
        }
    )+};
}

thousands! {
    seeds_0 = 0,
    seeds_1 = 1,
    seeds_2 = 2,
    seeds_3 = 3,
    seeds_4 = 4,
    seeds_5 = 5,
    seeds_6 = 6,
    seeds_7 = 7,
    seeds_8 = 8,
    seeds_9 = 9,
}

/// Others each time; `SIM_FRESH` gives the first one.
#[test]
#[ignore = "it finds things that are not settled yet: see `mod.rs`"]
fn seeds_fresh() {
    use std::time::{SystemTime, UNIX_EPOCH};
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let first = number("SIM_FRESH").unwrap_or(u64::from(now.subsec_nanos()) << 20 | now.as_secs() & 0xf_ffff);
    eprintln!("SIM_FRESH={first}");
    Theatre::new().all_hold((0..FRESH).map(|n| first.wrapping_add(n)));
}

/// `SIM_SEED=n` plays one seed and prints all of it.
#[test]
fn replay() {
    let Some(seed) = number("SIM_SEED") else { return };
    let (played, lines) = Theatre::new().play(seed, None, true);
    for line in lines {
        eprintln!("{line}");
    }
    played.unwrap();
}

fn is_found(plant: Plant) {
    let mut theatre = Theatre::new();
    for seed in 0..FOUND_WITHIN {
        if let Err(Broken(why)) = theatre.play(seed, Some(plant), false).0 {
            eprintln!("{plant:?}: seed {seed}: {why}");
            return;
        }
    }
    panic!("{plant:?} is not found within {FOUND_WITHIN} seeds");
}

macro_rules! plants {
    ($($name:ident = $plant:ident,)+) => {
        $(
            #[test]
            fn $name() {
                is_found(Plant::$plant);
            }
        )+

        #[test]
        fn every_plant_has_its_test() {
            let tested = [$(Plant::$plant),+];
            assert!(Plant::ALL.iter().all(|plant| tested.contains(plant)));
        }
    };
}

plants! {
    found_ack_before_commit = AckBeforeCommit,
    found_checkpoint_before_send = CheckpointBeforeSend,
    found_a_replayed_key_that_acts = ReplayedKeyActs,
    found_a_fallback_route = Fallback,
    found_a_number_used_again = SeqAgain,
    found_a_prompt_handed_over_twice = InputTwice,
    found_a_nonce_that_is_ignored = NonceIgnored,
    found_a_lost_row_of_the_outbox = OutboxRowLost,
    found_a_run_that_ends_twice = CompletedTwice,
    found_a_superseded_actor_that_writes = SupersededWrites,
    found_a_dead_lease_that_is_not_drained = DeadLeaseNotDrained,
    found_a_process_that_is_not_ended = LeaseNotClosed,
    found_a_message_that_is_forgotten = InboxRowLost,
}
