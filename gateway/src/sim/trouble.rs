//! How much goes wrong in a seed.

use super::chance::Chance;
use super::room::Fate;

/// How often what happens, against everything else: once in so many times, or by weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trouble {
    /// The gateway dies once in so many effects, or half as often.
    pub(super) crash: usize,
    /// The room does not answer well once in so many calls.
    pub(super) room: usize,
    /// Once asleep, the room wakes once in so many times that it could.
    pub(super) sleep: usize,
    /// What gets through nowhere in one of the conversations.
    pub(super) fate: Option<Fate>,
    /// The weight of what dies at the supervisor's.
    pub(super) deaths: usize,
    /// The weight of commits that fail.
    pub(super) commits: usize,
}

impl Trouble {
    /// What this seed has of it.
    pub(super) fn of(chance: &mut Chance) -> Self {
        let often = |chance: &mut Chance, often: usize, seldom: usize| {
            if chance.one_in(2) { often } else { seldom }
        };
        Self {
            // Where it comes seldom turns end and are told, where it comes often all of it is taken up again.
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
