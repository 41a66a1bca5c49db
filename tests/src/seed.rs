//! Reproducible random choices: the seed is printed, and `ACP_TEST_SEED` replays it.

use std::time::Duration;

/// Environment variable that replays a run.
pub const ENV_SEED: &str = "ACP_TEST_SEED";

/// A random number generator. Not for secrets.
#[derive(Debug, Clone)]
pub struct Seed {
    state: u64,
}

impl Seed {
    /// A seed from the environment, or a fresh one; printed in either case, so that a failure can be replayed.
    ///
    /// # Panics
    /// When the value in the environment is not a number.
    #[must_use]
    pub fn new() -> Self {
        let state = match std::env::var(ENV_SEED) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{ENV_SEED}={text:?} is not a number")),
            Err(_) => uuid::Uuid::new_v4().as_u64_pair().0 >> 16,
        };
        eprintln!("{ENV_SEED}={state}");
        Self { state }
    }

    /// Creates a generator with this seed; nothing is printed.
    #[must_use]
    pub const fn from_number(state: u64) -> Self {
        Self { state }
    }

    /// Derives another generator: numbers drawn from one do not change the other.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self { state: self.number() }
    }

    /// The next number (splitmix64).
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.number() % bound }
    }

    /// A time below `bound`, to the nanosecond.
    pub fn time_below(&mut self, bound: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Default for Seed {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |state| {
            let mut seed = Seed { state };
            (0..8).map(|_| seed.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        let mut seed = Seed { state: 1 };
        assert!((0..1000).all(|_| seed.time_below(Duration::from_millis(3)) < Duration::from_millis(3)));
    }
}
