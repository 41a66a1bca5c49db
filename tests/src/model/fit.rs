//! Costs from measured totals.

/// Steps of the iteration, many more than three costs need.
const STEPS: usize = 20_000;

/// Finds the costs, none of them negative, for which the counts of each run best explain its total: the least squares of the
/// relative errors.
#[must_use]
pub fn fit<const N: usize>(runs: &[([f64; N], f64)]) -> [f64; N] {
    let mut costs = [0.0; N];
    for step in 0..STEPS * N {
        let one = step % N;
        let (mut with, mut of) = (0.0, 0.0);
        for (counts, total) in runs.iter().filter(|(_, total)| *total > 0.0) {
            let others: f64 = (0..N).filter(|it| *it != one).map(|it| counts[it] * costs[it]).sum();
            let count = counts[one] / total;
            with += count * (1.0 - others / total);
            of += count * count;
        }
        costs[one] = if of > 0.0 { (with / of).max(0.0) } else { 0.0 };
    }
    costs
}
