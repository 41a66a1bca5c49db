//! Samples and their statistics.

use std::time::Duration;

/// Repeated measurements of one quantity.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    /// Adds a value.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Percentile by nearest rank; NaN without values.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
        sorted.get(rank).copied().unwrap_or(f64::NAN)
    }

    /// Sum of the values.
    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Number of values.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Range of the values, relative to the median.
    pub(crate) fn spread(&self) -> f64 {
        (self.percentile(100) - self.percentile(0)) / self.median()
    }

    /// Median of the values.
    pub(crate) fn median(&self) -> f64 {
        self.percentile(50)
    }

    /// 90th percentile.
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

/// Converts a duration to milliseconds, with their fraction.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

/// Converts a count.
pub(crate) fn count(value: impl TryInto<u32>) -> f64 {
    f64::from(value.try_into().unwrap_or(u32::MAX))
}

/// Rate per second.
pub(crate) fn per_second(number: usize, time: Duration) -> f64 {
    count(number) / time.as_secs_f64()
}
