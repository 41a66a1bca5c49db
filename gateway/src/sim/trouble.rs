//! Frequency of faults in a seed.

use super::chance::Chance;
use super::room::Fate;

/// Frequencies of faults: once in so many times, or as a weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trouble {
    /// The gateway is killed once in so many effects, or half as often.
    pub(super) crash: usize,
    /// The room misbehaves once in so many calls.
    pub(super) room: usize,
    /// A sleeping room wakes once in so many opportunities.
    pub(super) sleep: usize,
    /// Permanent fault of one conversation.
    pub(super) fate: Option<Fate>,
    /// Weight of deaths at the supervisor.
    pub(super) deaths: usize,
    /// Weight of failing commits.
    pub(super) commits: usize,
}

impl Trouble {
    /// Picks the frequencies of a seed.
    pub(super) fn of(chance: &mut Chance) -> Self {
        let often = |chance: &mut Chance, often: usize, seldom: usize| {
            if chance.one_in(2) { often } else { seldom }
        };
        Self {
            // Rare crashes let turns end and be delivered; frequent ones test the recovery.
            crash: *chance.pick(&[60, 250, 1_000]).unwrap_or(&250),
            fate: chance
                .pick(&[
                    Some(Fate::Refused),
                    Some(Fate::Unknown),
                    Some(Fate::NoFiles),
                    None,
                    None,
                    None,
                    None,
                ])
                .copied()
                .flatten(),
            room: often(chance, 4, 12),
            deaths: often(chance, 2, 1),
            commits: often(chance, 1, 0),
            sleep: if chance.one_in(4) { 20 } else { 1 },
        }
    }
}
