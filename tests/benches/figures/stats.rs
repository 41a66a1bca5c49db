//! Samples and what is said of them.

use std::time::Duration;

/// Values of one thing, measured again and again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    /// One more value.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The value below which `percent` of the values lie, one of them (nearest rank); NaN when there is none.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
        sorted.get(rank).copied().unwrap_or(f64::NAN)
    }

    /// All values together.
    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// How many there are.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// From the smallest to the largest, as a part of the one in the middle.
    pub(crate) fn spread(&self) -> f64 {
        (self.percentile(100) - self.percentile(0)) / self.median()
    }

    /// The value in the middle.
    pub(crate) fn median(&self) -> f64 {
        self.percentile(50)
    }

    /// The value that nine of ten do not exceed.
    pub(crate) fn p90(&self) -> f64 {
        self.percentile(90)
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Extend<f64> for Sample {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, values: I) {
        self.0.extend(values);
    }
}

impl IntoIterator for Sample {
    type Item = f64;
    type IntoIter = std::vec::IntoIter<f64>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Milliseconds, with their fraction.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

/// So many in that time, for each second.
pub(crate) fn per_second(count: usize, time: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / time.as_secs_f64()
}
