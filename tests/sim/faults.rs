//! Frequency of faults in a seed.

use crate::sim::chat::OutputFault;
use crate::sim::rng::SeededRng;

/// Frequencies of faults: once in so many times, or as a weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct FaultRates {
    /// The gateway is killed once in so many effects, or half as often.
    pub(super) crash: usize,
    /// The room misbehaves once in so many calls.
    pub(super) room: usize,
    /// A sleeping room wakes once in so many opportunities.
    pub(super) sleep: usize,
    /// Permanent fault of one conversation.
    pub(super) fate: Option<OutputFault>,
    /// Weight of deaths at the supervisor.
    pub(super) deaths: usize,
    /// Weight of failing commits.
    pub(super) commits: usize,
}

/// Permanent faults, of which some seeds have one.
const FATES: [OutputFault; 3] = [OutputFault::Refused, OutputFault::Unknown, OutputFault::NoFiles];

impl FaultRates {
    /// Picks the frequencies of a seed.
    pub(super) fn of(chance: &mut SeededRng) -> Self {
        let often = |chance: &mut SeededRng, often: usize, seldom: usize| {
            if chance.one_in(2) { often } else { seldom }
        };
        Self {
            // Rare crashes let turns end and be delivered; frequent ones test the recovery.
            crash: *chance.pick(&[60, 250, 1_000]).unwrap_or(&250),
            fate: FATES.get(chance.below(7)).copied(),
            room: often(chance, 4, 12),
            deaths: often(chance, 2, 1),
            commits: often(chance, 1, 0),
            sleep: if chance.one_in(4) { 20 } else { 1 },
        }
    }
}
