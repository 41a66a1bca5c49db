//! Buckets of the histograms in `/metrics`.

use prometheus_client::metrics::histogram::Histogram;

/// Creates a histogram from a tenth of a millisecond to ten seconds, for commits.
pub fn short_times() -> Histogram {
    let steps = [
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    ];
    Histogram::new(steps)
}

/// Creates a histogram of batch sizes.
pub fn sizes() -> Histogram {
    Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0])
}
