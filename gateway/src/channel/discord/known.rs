//! What is known of Discord just now: who the bot is, which conversations are threads, when somebody last spoke there.
//! A cache: what is not in here is asked for.

use acp_discord::core::ids::Snowflake;
use acp_discord::core::intake::Identity;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most conversations that are remembered; beyond that it begins anew.
const PLACES_MAX: usize = 20_000;
const MINUTE_MS: u64 = 60_000;

/// What is known.
#[derive(Debug, Default)]
pub(super) struct Known {
    facts: Mutex<Facts>,
}

/// Where a conversation is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spot {
    /// The channel of a thread; `None` for what is a channel itself.
    pub(super) parent: Option<Snowflake>,
    /// The server, as far as it is known.
    pub(super) guild: Option<Snowflake>,
}

#[derive(Debug, Default)]
struct Facts {
    me: Option<Snowflake>,
    application: Option<Snowflake>,
    spots: HashMap<Snowflake, Spot>,
    /// Bound conversations that the bot was refused when it last looked.
    shut: BTreeSet<Snowflake>,
    /// The last message of a conversation, whoever said it.
    last: HashMap<Snowflake, Snowflake>,
}

impl Known {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn me(&self) -> Option<Snowflake> {
        self.facts().me
    }

    /// The bot said who it is.
    pub(super) fn is_me(&self, me: Snowflake, application: Snowflake) {
        let mut facts = self.facts();
        (facts.me, facts.application) = (Some(me), Some(application));
    }

    /// Who the bot is, once it has said so.
    pub(super) fn identity(&self) -> Option<Identity> {
        let facts = self.facts();
        let (me, application) = (facts.me?, facts.application?);
        Some(Identity { me, application, webhooks: BTreeSet::new(), hear_bots: false })
    }

    /// A conversation is a thread of that channel, or a channel itself, in a server. A server that is not said this
    /// time is the one that was known before.
    pub(super) fn is_at(&self, id: Snowflake, parent: Option<Snowflake>, guild: Option<Snowflake>) {
        let mut facts = self.facts();
        if facts.spots.len() >= PLACES_MAX {
            facts.spots.clear();
        }
        let before = facts.spots.get(&id).and_then(|spot| spot.guild);
        facts.spots.insert(id, Spot { parent, guild: guild.or(before) });
    }

    /// Where a conversation is, if that is known.
    pub(super) fn spot(&self, id: Snowflake) -> Option<Spot> {
        self.facts().spots.get(&id).copied()
    }

    /// The channel of a thread.
    pub(super) fn parent(&self, id: Snowflake) -> Option<Snowflake> {
        self.spot(id)?.parent
    }

    /// The bot was let in or refused when it looked at a bound conversation. Whether that is new.
    pub(super) fn is_shut(&self, id: Snowflake, shut: bool) -> bool {
        let mut facts = self.facts();
        if shut { facts.shut.insert(id) } else { facts.shut.remove(&id) }
    }

    /// Bound conversations that the bot was refused when it last looked.
    pub(super) fn shut(&self) -> BTreeSet<Snowflake> {
        self.facts().shut.clone()
    }

    /// Somebody spoke.
    pub(super) fn spoke(&self, channel: Snowflake, message: Snowflake) {
        let mut facts = self.facts();
        if facts.last.len() >= PLACES_MAX {
            facts.last.clear();
        }
        let last = facts.last.entry(channel).or_insert(message);
        *last = (*last).max(message);
    }

    /// When somebody last spoke there, in milliseconds of the Unix epoch.
    pub(super) fn last_ms(&self, channel: Snowflake) -> Option<u64> {
        self.facts().last.get(&channel).map(|id| id.made_at_ms())
    }
}

/// Whether a person put a thread away, rather than Discord after its time of silence: Discord never does that sooner.
pub(super) const fn by_person(last_ms: u64, now_ms: u64, auto_archive_minutes: u64) -> bool {
    now_ms.saturating_sub(last_ms) < auto_archive_minutes.saturating_mul(MINUTE_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d12_a_thread_that_was_silent_long_enough_was_put_away_by_nobody() {
        let hour = 60 * MINUTE_MS;
        for (silent_ms, minutes, want) in
            [(hour - 1, 60, true), (hour, 60, false), (0, 60, true), (24 * hour, 1_440, false), (0, 0, false)]
        {
            assert_eq!(by_person(1_000, 1_000 + silent_ms, minutes), want, "{silent_ms} {minutes}");
        }
    }

    #[test]
    fn the_last_word_only_goes_forward() {
        let known = Known::default();
        assert_eq!(known.last_ms(Snowflake(1)), None);
        let (early, late) = (Snowflake::from_ms(1_500_000_000_000), Snowflake::from_ms(1_600_000_000_000));
        known.spoke(Snowflake(1), late);
        known.spoke(Snowflake(1), early);
        assert_eq!(known.last_ms(Snowflake(1)), Some(1_600_000_000_000));
    }

    #[test]
    fn where_something_is_stays_known() {
        let known = Known::default();
        let some = |id| Some(Snowflake(id));
        known.is_at(Snowflake(1), some(9), some(7));
        known.is_at(Snowflake(1), some(9), None);
        known.is_at(Snowflake(2), None, None);
        let spot = |parent, guild| Some(Spot { parent, guild });
        let seen = [1, 2, 3].map(|id| known.spot(Snowflake(id)));
        assert_eq!(seen, [spot(some(9), some(7)), spot(None, None), None]);
        let told = [(1, true), (1, true), (1, false), (1, false)]
            .map(|(id, shut)| known.is_shut(Snowflake(id), shut));
        assert_eq!((told, known.shut()), ([true, false, true, false], BTreeSet::new()));
    }
}
