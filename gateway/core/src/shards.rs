//! Shards of a Discord application, the range of them that one gateway serves, and the times at which their sessions may be
//! identified.
//!
//! Discord sends the events of a guild to the sessions of the shard `(guild id >> 22) % of`, and direct messages to shard 0
//! (gateway documentation, "Sharding").

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Maximum number of shards of an application.
pub const OF_MAX: u32 = 10_000;
/// Maximum number of shards that one gateway serves.
pub const SERVED_MAX: u32 = 64;
/// Time between two identify slots of a bucket: five seconds (gateway documentation, "Session Start Limit"), and the one in which
/// a slot is valid.
pub const SLOT_INTERVAL_MS: u64 = 6_000;
/// Bounds of the time until Discord resets the number of sessions.
const RESET_MS: (u64, u64) = (10_000, 86_400_000);
/// Lowest bit of the time in an id.
const TIME_SHIFT: u32 = 22;

/// Range of shards: from `from` up to, but not including, `to`, of `of` in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { from = 0, to = 16, of = 64 }")]
pub struct ShardRange {
    /// First shard.
    pub from: u32,
    /// Shard after the last one.
    pub to: u32,
    /// Number of shards of the application.
    pub of: u32,
}

impl ShardRange {
    /// Returns the error message of an invalid range.
    pub fn problem(&self) -> Option<String> {
        let Self { from, to, of } = *self;
        if !(1..=OF_MAX).contains(&of) {
            return Some(format!("of = {of} is out of bounds; allowed: 1 to {OF_MAX}"));
        }
        if from >= to || to > of {
            return Some(format!(
                "from = {from}, to = {to}, of = {of} is no range: it needs from < to <= of"
            ));
        }
        (self.count() > SERVED_MAX).then(|| {
            let count = self.count();
            format!("from = {from}, to = {to} are {count} shards; one gateway serves at most {SERVED_MAX}")
        })
    }

    /// Number of shards in the range.
    pub const fn count(&self) -> u32 {
        self.to.saturating_sub(self.from)
    }

    /// Numbers of the shards in the range.
    pub const fn shards(&self) -> Range<u32> {
        self.from..self.to
    }

    /// True if the range has all shards of the application.
    pub const fn is_whole(&self) -> bool {
        self.from == 0 && self.to == self.of
    }

    /// Returns the shard of a guild, or of direct messages (`None`).
    pub fn shard_of(&self, guild: Option<u64>) -> u32 {
        let shard = guild.map_or(0, |guild| (guild >> TIME_SHIFT) % u64::from(self.of.max(1)));
        u32::try_from(shard).unwrap_or(u32::MAX)
    }

    /// Returns the reason if a guild, or direct messages (`None`), belong to another gateway.
    pub fn refusal(&self, guild: Option<u64>) -> Option<String> {
        let shard = self.shard_of(guild);
        if self.shards().contains(&shard) {
            return None;
        }
        let what =
            guild.map_or_else(|| "direct messages belong".to_owned(), |id| format!("server {id} belongs"));
        Some(format!(
            "{what} to shard {shard}, and this gateway serves {self}: the gateway whose range has shard {shard} answers there"
        ))
    }

    /// True if a guild, or direct messages, belong to both ranges; `of` may differ.
    pub fn overlaps(&self, other: &Self) -> bool {
        // A number with remainders i and j by two divisors exists if these are equal by the divisors' common divisor.
        let divisor = common_divisor(self.of, other.of).max(1);
        self.shards().any(|one| other.shards().any(|two| one % divisor == two % divisor))
    }

    /// Returns this range's share of a budget of the whole application; at least 1.
    pub fn part_of(&self, budget: u32) -> u32 {
        let part = u64::from(budget) * u64::from(self.count()) / u64::from(self.of.max(1));
        u32::try_from(part).unwrap_or(budget).max(1)
    }
}

/// Formats the range with inclusive bounds: `shards 0 to 15 of 64`.
impl fmt::Display for ShardRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, of, .. } = self;
        match self.to.saturating_sub(1) {
            last if last <= *from => write!(f, "shard {from} of {of}"),
            last => write!(f, "shards {from} to {last} of {of}"),
        }
    }
}

/// Sessions of an application that may still be identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionBudget {
    /// Their number.
    pub remaining: u64,
    /// Time until Discord resets that number.
    pub reset_ms: u64,
}

/// Decision on a request for an identify slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotDecision {
    /// The session may be identified now. The next slot of the bucket begins after [`SLOT_INTERVAL_MS`].
    Taken {
        /// Sessions that may be identified after this one.
        left: SessionBudget,
    },
    /// Another session of the bucket was identified just now.
    Later {
        /// Time until the next slot, at most [`SLOT_INTERVAL_MS`].
        wait_ms: u64,
        /// True if the next slot is to be set to that time: the stored one is impossible.
        is_impossible: bool,
    },
    /// All sessions of the day are identified.
    Spent {
        /// Time until Discord resets the number.
        wait_ms: u64,
    },
}

/// Decides on a request for an identify slot, by what is `counted` over all gateways, what Discord `reported` to this one, and
/// the time until the next slot of the bucket, if there was one before.
pub fn decide_slot(
    counted: Option<SessionBudget>,
    reported: SessionBudget,
    next_ms: Option<u64>,
) -> SlotDecision {
    // A reset further away was written by a clock that ran ahead.
    let counted = counted.filter(|counted| (1..=RESET_MS.1).contains(&counted.reset_ms));
    let SessionBudget { remaining, reset_ms } = counted.map_or_else(
        || SessionBudget { reset_ms: reported.reset_ms.clamp(RESET_MS.0, RESET_MS.1), ..reported },
        |counted| SessionBudget { remaining: counted.remaining.min(reported.remaining), ..counted },
    );
    let Some(remaining) = remaining.checked_sub(1) else { return SlotDecision::Spent { wait_ms: reset_ms } };
    match next_ms.unwrap_or(0) {
        0 => SlotDecision::Taken { left: SessionBudget { remaining, reset_ms } },
        // The clock was set back, or is that of another server: the stored time would block the bucket until the clock reaches it.
        wait_ms => SlotDecision::Later {
            wait_ms: wait_ms.min(SLOT_INTERVAL_MS),
            is_impossible: wait_ms > SLOT_INTERVAL_MS,
        },
    }
}

const fn common_divisor(mut one: u32, mut other: u32) -> u32 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn range(from: u32, to: u32, of: u32) -> ShardRange {
        ShardRange { from, to, of }
    }

    #[test]
    fn mistakes_of_ranges_are_named() {
        for (range, want) in [
            (range(0, 1, 1), None),
            (range(3, 16, 64), None),
            (range(0, 64, 10_000), None),
            (range(0, 1, 0), Some("of = 0 is out of bounds")),
            (range(0, 1, 10_001), Some("allowed: 1 to 10000")),
            (range(2, 2, 4), Some("from < to <= of")),
            (range(3, 2, 4), Some("from < to <= of")),
            (range(0, 5, 4), Some("from < to <= of")),
            (range(0, 65, 100), Some("65 shards")),
        ] {
            let found = range.problem();
            assert_eq!(found.is_some(), want.is_some(), "{range:?}: {found:?}");
            assert!(want.is_none_or(|want| found.unwrap_or_default().contains(want)), "{range:?}");
        }
    }

    /// An id as Discord makes them, and the extremes.
    #[test]
    fn guild_belongs_to_the_shard_of_its_time() {
        for (guild, of, shard) in [
            (Some(197_038_439_483_310_086), 16, 2),
            (Some((5 << 22) | 0x3F_FFFF), 4, 1),
            (Some(u64::MAX), 5, 3),
            (Some(0), 7, 0),
            (None, 7, 0),
        ] {
            assert_eq!(range(0, 1, of).shard_of(guild), shard, "{guild:?} {of}");
        }
    }

    #[test]
    fn refusal_names_shard_and_range() {
        let guild = Some(3 << 22);
        let why = range(0, 2, 4).refusal(guild).unwrap();
        for part in ["server 12582912", "shard 3,", "shards 0 to 1 of 4"] {
            assert!(why.contains(part), "{part}: {why}");
        }
        assert_eq!(range(3, 4, 4).refusal(guild), None);
        let why = range(1, 2, 2).refusal(None).unwrap();
        assert!(
            why.contains("direct messages") && why.contains("shard 0,") && why.contains("shard 1 of 2"),
            "{why}"
        );
    }

    #[test]
    fn budget_is_divided_by_shards() {
        for (range, want) in [
            (range(0, 1, 1), 40),
            (range(0, 16, 64), 10),
            (range(0, 1, 2), 20),
            (range(0, 1, 3), 13),
            (range(0, 1, 64), 1),
            (range(0, 1, 10_000), 1),
        ] {
            assert_eq!(range.part_of(40), want, "{range}");
        }
    }

    #[test]
    fn slot_depends_on_the_budget_and_the_bucket() {
        const DAY: u64 = 86_400_000;
        let budget = |(remaining, reset_ms)| SessionBudget { remaining, reset_ms };
        let taken = |remaining, reset_ms| SlotDecision::Taken { left: budget((remaining, reset_ms)) };
        let later = |wait_ms, is_impossible| SlotDecision::Later { wait_ms, is_impossible };
        let spent = |wait_ms| SlotDecision::Spent { wait_ms };
        for (counted, reported, next_ms, want) in [
            // The report counts where nothing is counted, with a possible time.
            (None, (5, 60_000), None, taken(4, 60_000)),
            (None, (5, 0), Some(0), taken(4, 10_000)),
            (None, (5, u64::MAX), None, taken(4, DAY)),
            (None, (0, 60_000), None, spent(60_000)),
            // The lower number counts, until the counted reset.
            (Some((3, 900)), (5, 60_000), None, taken(2, 900)),
            (Some((9, DAY)), (5, 60_000), None, taken(4, DAY)),
            (Some((0, 900)), (5, 60_000), None, spent(900)),
            (Some((9, 900)), (0, 60_000), None, spent(900)),
            // The counted number has been reset, or its time is impossible.
            (Some((0, 0)), (5, 60_000), None, taken(4, 60_000)),
            (Some((0, DAY + 1)), (5, 60_000), None, taken(4, 60_000)),
            // The bucket is busy, or its time is impossible; a spent number is said first.
            (None, (5, 60_000), Some(1), later(1, false)),
            (None, (5, 60_000), Some(6_000), later(6_000, false)),
            (None, (5, 60_000), Some(6_001), later(6_000, true)),
            (Some((0, 900)), (5, 60_000), Some(u64::MAX), spent(900)),
        ] {
            let found = decide_slot(counted.map(budget), budget(reported), next_ms);
            assert_eq!(found, want, "{counted:?} {reported:?} {next_ms:?}");
        }
    }

    fn any_range() -> impl Strategy<Value = ShardRange> {
        (1_u32..30).prop_flat_map(|of| {
            (0..of).prop_flat_map(move |from| (from + 1..=of).prop_map(move |to| range(from, to, of)))
        })
    }

    proptest! {
        /// Of ranges that divide the shards, exactly one has a guild, and the budget of all is not exceeded, apart from the
        /// minimum of each.
        #[test]
        fn each_guild_has_one_range(of in 1_u32..60, cuts in prop::collection::btree_set(0_u32..60, 0..6), guild: Option<u64>) {
            let mut ends: Vec<u32> = cuts.into_iter().filter(|cut| *cut > 0 && *cut < of).collect();
            ends.push(of);
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let ranges: Vec<ShardRange> = starts.zip(&ends).map(|(from, to)| range(from, *to, of)).collect();
            prop_assert_eq!(ranges.iter().filter(|it| it.refusal(guild).is_none()).count(), 1);
            let spent: u32 = ranges.iter().map(|it| it.part_of(40)).filter(|part| *part > 1).sum();
            prop_assert!(spent <= 40);
            for (index, one) in ranges.iter().enumerate() {
                prop_assert_eq!(ranges.iter().position(|other| one.overlaps(other)), Some(index));
            }
        }

        /// Two ranges overlap exactly if there is a guild of both.
        #[test]
        fn ranges_overlap_where_they_share_a_guild(one in any_range(), other in any_range()) {
            let guilds = (0..u64::from(one.of) * u64::from(other.of)).map(|time| Some(time << TIME_SHIFT));
            let is_shared = |guild: Option<u64>| one.refusal(guild).is_none() && other.refusal(guild).is_none();
            prop_assert_eq!(one.overlaps(&other), guilds.chain([None]).any(is_shared));
            prop_assert_eq!(one.overlaps(&other), other.overlaps(&one));
        }
    }
}
