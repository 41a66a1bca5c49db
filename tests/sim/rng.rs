//! Reproducible random numbers.

/// Random number generator, determined by its seed.
#[derive(Debug, Clone)]
pub(super) struct SeededRng(u64);

impl SeededRng {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number (SplitMix64).
    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns one of `0..n`; 0 if `n` is 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        let n = u64::try_from(n).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % n).unwrap_or(0)
    }

    /// True once in `n` times; never for 0.
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.below(n) == 0
    }

    /// Picks an element with equal probability.
    pub(super) fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }

    /// Picks an element with probability proportional to its weight.
    pub(super) fn weighted<T: Copy>(&mut self, all: &[(usize, T)]) -> Option<T> {
        let mut at = self.below(all.iter().map(|(weight, _)| weight).sum());
        for (weight, one) in all {
            if at < *weight {
                return Some(*one);
            }
            at -= weight;
        }
        None
    }
}
