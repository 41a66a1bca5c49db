//! Cache of facts about Discord: identity of the bot, location of conversations, last activity. Missing facts
//! are requested from Discord.

use super::reads::Came;
use acp_discord::core::event::Event;
use acp_discord::core::ids::Snowflake;
use acp_discord::core::intake::BotIdentity;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Maximum number of cached conversations; at the limit the cache is cleared.
const PLACES_MAX: usize = 20_000;
const MINUTE_MS: u64 = 60_000;
/// Period in which an optional feature is not attempted again after a refusal for a missing permission: each
/// refusal counts, and too many of them block all requests of the bot.
const REFUSED_MS: u64 = 10 * MINUTE_MS;

/// Number of conversations without write permission from which on the whole channel counts as denied.
const DENIED_MIN: usize = 3;
/// First and longest interval between write attempts in such a channel, in milliseconds.
const DENIED_MS: (u64, u64) = (2_000, 60_000);

/// Channel with conversations that the bot may not write to.
#[derive(Debug)]
struct Denied {
    /// The first [`DENIED_MIN`] of these conversations; more add no information.
    conversations: BTreeSet<Snowflake>,
    /// Time of the next attempt in any of these conversations, in milliseconds since the Unix epoch.
    next_ms: u64,
    pause_ms: u64,
}

/// Optional feature of messages with a separate Discord permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Sign {
    /// Reactions.
    Reaction,
    /// Typing indicator.
    Typing,
    /// File attachments.
    Files,
    /// Names of agents, which need a webhook.
    Persona,
}

/// Shared cache.
#[derive(Debug, Default)]
pub(super) struct Known {
    facts: Mutex<Facts>,
    /// Notified when `Facts::news` changes.
    told: Notify,
}

/// Findings about conversations that the event loop has not processed yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Deleted conversations.
    pub(super) gone: Vec<Snowflake>,
    /// Results of backfills.
    pub(super) came: Vec<(Snowflake, Came)>,
}

/// Location of a conversation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spot {
    /// Parent channel of a thread; `None` for a channel.
    pub(super) parent: Option<Snowflake>,
    /// Server, if known.
    pub(super) guild: Option<Snowflake>,
}

/// Scope of a permission change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A channel with its threads.
    Channel(Snowflake),
    /// A whole server.
    Guild(Snowflake),
}

#[derive(Debug, Default)]
struct Facts {
    me: Option<Snowflake>,
    application: Option<Snowflake>,
    /// Webhooks for messages under agents' names.
    webhooks: BTreeSet<Snowflake>,
    /// Servers of which the bot is a member.
    guilds: BTreeSet<Snowflake>,
    spots: HashMap<Snowflake, Spot>,
    /// Bound conversations marked as inaccessible.
    shut: BTreeSet<Snowflake>,
    /// Members of `shut` that were marked without a request.
    assumed: BTreeSet<Snowflake>,
    /// Last message of each conversation, by any author.
    last: HashMap<Snowflake, Snowflake>,
    /// End of the period without an optional feature in a channel and its threads, after a refusal.
    refused: HashMap<(Snowflake, Sign), u64>,
    /// Channels that the bot currently may not write to.
    denied: HashMap<Snowflake, Denied>,
    /// Conversations with an archive state checked since the last loss of events.
    looked_at: HashSet<Snowflake>,
    news: News,
    /// Number of starts and interruptions of the event stream.
    eras: u64,
    /// True if the event stream is connected.
    is_hearing: bool,
}

impl Known {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn me(&self) -> Option<Snowflake> {
        self.facts().me
    }

    /// Records the identity of the bot.
    pub(super) fn is_me(&self, me: Snowflake, application: Snowflake) {
        let mut facts = self.facts();
        (facts.me, facts.application) = (Some(me), Some(application));
    }

    /// Returns the identity of the bot, once known.
    pub(super) fn identity(&self) -> Option<BotIdentity> {
        let facts = self.facts();
        let (me, application) = (facts.me?, facts.application?);
        Some(BotIdentity { me, application, webhooks: facts.webhooks.clone(), accepts_bots: false })
    }

    /// Records a webhook as ours: messages through the webhook come back as echoes.
    pub(super) fn speaks_through(&self, webhook: Snowflake) {
        self.facts().webhooks.insert(webhook);
    }

    /// Records the servers that a shard reported (shard number, number of shards). Replaces earlier servers
    /// of the shard.
    pub(super) fn is_in(&self, guilds: &[Snowflake], (shard, count): (u64, u64)) {
        let is_its = |guild: &Snowflake| (guild.0 >> 22) % count.max(1) == shard;
        let mut facts = self.facts();
        facts.guilds.retain(|guild| !is_its(guild));
        facts.guilds.extend(guilds);
    }

    /// Records that the bot is a member of a server or has left.
    pub(super) fn joined(&self, guild: Snowflake, is_there: bool) {
        let mut facts = self.facts();
        if is_there {
            facts.guilds.insert(guild);
        } else {
            facts.guilds.remove(&guild);
        }
    }

    /// Returns the servers of the bot, as far as reported.
    pub(super) fn guilds(&self) -> BTreeSet<Snowflake> {
        self.facts().guilds.clone()
    }

    /// Drops all cached data of a deleted conversation.
    pub(super) fn forget(&self, at: Snowflake) {
        let mut facts = self.facts();
        let channel = facts.spots.remove(&at).and_then(|spot| spot.parent).unwrap_or(at);
        if let Some(denied) = facts.denied.get_mut(&channel) {
            denied.conversations.remove(&at);
            if denied.conversations.is_empty() {
                facts.denied.remove(&channel);
            }
        }
        facts.shut.remove(&at);
        facts.assumed.remove(&at);
        facts.last.remove(&at);
        facts.looked_at.remove(&at);
    }

    /// Records the location of a conversation. `None` as server keeps the server known before.
    pub(super) fn is_at(&self, id: Snowflake, parent: Option<Snowflake>, guild: Option<Snowflake>) {
        let mut facts = self.facts();
        if facts.spots.len() >= PLACES_MAX {
            facts.spots.clear();
        }
        let before = facts.spots.get(&id).and_then(|spot| spot.guild);
        facts.spots.insert(id, Spot { parent, guild: guild.or(before) });
    }

    /// Returns the location of a conversation, if known.
    pub(super) fn spot(&self, id: Snowflake) -> Option<Spot> {
        self.facts().spots.get(&id).copied()
    }

    /// Returns the parent channel of a thread.
    pub(super) fn parent(&self, id: Snowflake) -> Option<Snowflake> {
        self.spot(id)?.parent
    }

    /// Records whether the bot was refused access to a bound conversation. Returns true on a change.
    pub(super) fn is_shut(&self, id: Snowflake, shut: bool) -> bool {
        let mut facts = self.facts();
        facts.assumed.remove(&id);
        if shut { facts.shut.insert(id) } else { facts.shut.remove(&id) }
    }

    /// Marks a bound conversation as inaccessible because its siblings in the channel were refused; not
    /// verified by a request.
    pub(super) fn is_taken_for_shut(&self, id: Snowflake) {
        let mut facts = self.facts();
        if facts.shut.insert(id) {
            facts.assumed.insert(id);
        }
    }

    /// True if a request for this very conversation was refused.
    pub(super) fn was_refused(&self, id: Snowflake) -> bool {
        let facts = self.facts();
        facts.shut.contains(&id) && !facts.assumed.contains(&id)
    }

    /// Returns the bound conversations marked as inaccessible.
    pub(super) fn shut(&self) -> BTreeSet<Snowflake> {
        self.facts().shut.clone()
    }

    /// True if the conversation is marked as inaccessible.
    pub(super) fn was_shut(&self, id: Snowflake) -> bool {
        self.facts().shut.contains(&id)
    }

    /// Records a message of a conversation.
    pub(super) fn spoke(&self, channel: Snowflake, message: Snowflake) {
        let mut facts = self.facts();
        if facts.last.len() >= PLACES_MAX {
            facts.last.clear();
        }
        let last = facts.last.entry(channel).or_insert(message);
        *last = (*last).max(message);
    }

    /// True if a write to a conversation may be attempted. In a denied channel a single conversation is tried
    /// now and then: each refusal counts towards a ban of the IP address.
    pub(super) fn may_try(&self, at: Snowflake, now_ms: u64) -> bool {
        let channel = self.parent(at).unwrap_or(at);
        let mut facts = self.facts();
        let Some(denied) = facts.denied.get_mut(&channel) else { return true };
        if denied.conversations.len() < DENIED_MIN {
            return true;
        }
        if now_ms < denied.next_ms {
            return false;
        }
        denied.next_ms = now_ms.saturating_add(denied.pause_ms);
        denied.pause_ms = (denied.pause_ms * 2).min(DENIED_MS.1);
        true
    }

    /// Records the result of a write to a conversation.
    pub(super) fn tried(&self, at: Snowflake, is_denied: bool) {
        let channel = self.parent(at).unwrap_or(at);
        let mut facts = self.facts();
        if is_denied {
            if facts.denied.len() >= PLACES_MAX {
                facts.denied.clear();
            }
            let new = || Denied { conversations: BTreeSet::new(), next_ms: 0, pause_ms: DENIED_MS.0 };
            let denied = facts.denied.entry(channel).or_insert_with(new);
            if denied.conversations.len() < DENIED_MIN {
                denied.conversations.insert(at);
            }
        } else {
            facts.denied.remove(&channel);
        }
    }

    /// Records that a response reported the conversation as deleted: a deletion event may never arrive.
    pub(super) fn turned_out_gone(&self, at: Snowflake) {
        self.facts().news.gone.push(at);
        self.told.notify_one();
    }

    /// Records the result of a backfill.
    pub(super) fn came(&self, at: Snowflake, came: Came) {
        self.facts().news.came.push((at, came));
        self.told.notify_one();
    }

    /// Waits for news and returns the news.
    pub(super) async fn news(&self) -> News {
        loop {
            let news = std::mem::take(&mut self.facts().news);
            if news != News::default() {
                return news;
            }
            self.told.notified().await;
        }
    }

    /// Updates the state of the event stream. Each change invalidates all archive checks: changes of threads
    /// during an interruption have no event, and after a resume the checks made meanwhile may be outdated.
    pub(super) fn hear(&self, event: &Event) {
        match event {
            Event::Ready(_) | Event::Resumed => self.hears(Some(true)),
            Event::Disconnected { .. } | Event::Failed(_) => self.hears(Some(false)),
            Event::Gap { .. } => self.hears(None),
            _ => {}
        }
    }

    /// Records that the event stream begins, ends, or (`None`) has a gap.
    pub(super) fn hears(&self, is_hearing: Option<bool>) {
        let mut facts = self.facts();
        facts.looked_at.clear();
        facts.eras += 1;
        facts.is_hearing = is_hearing.unwrap_or(facts.is_hearing);
    }

    /// Returns the number of the current uninterrupted period of events; `None` while disconnected. Call
    /// before an archive check.
    pub(super) fn era(&self) -> Option<u64> {
        let facts = self.facts();
        facts.is_hearing.then_some(facts.eras)
    }

    /// True if the archive state of a conversation is known: checked, with uninterrupted events ever since.
    pub(super) fn is_followed(&self, at: Snowflake) -> bool {
        self.facts().looked_at.contains(&at)
    }

    /// Records a successful archive check. Ignored if events were interrupted since `era`.
    pub(super) fn looked(&self, at: Snowflake, era: Option<u64>) {
        if era.is_none() || era != self.era() {
            return;
        }
        let mut facts = self.facts();
        if facts.looked_at.len() >= PLACES_MAX {
            facts.looked_at.clear();
        }
        facts.looked_at.insert(at);
    }

    /// Invalidates the archive check of a conversation.
    pub(super) fn is_lost_sight_of(&self, at: Snowflake) {
        self.facts().looked_at.remove(&at);
    }

    /// True if an optional feature may be attempted in a conversation; `now_ms` is in Unix milliseconds.
    pub(super) fn may_show(&self, sign: Sign, at: Snowflake, now_ms: u64) -> bool {
        let channel = self.parent(at).unwrap_or(at);
        self.facts().refused.get(&(channel, sign)).is_none_or(|until| *until <= now_ms)
    }

    /// Records that an optional feature was refused for a missing permission. Threads have the permissions of
    /// their channel.
    pub(super) fn may_not_show(&self, sign: Sign, at: Snowflake, now_ms: u64) {
        let channel = self.parent(at).unwrap_or(at);
        let mut facts = self.facts();
        facts.refused.retain(|_, until| *until > now_ms);
        facts.refused.insert((channel, sign), now_ms.saturating_add(REFUSED_MS));
    }

    /// Returns the number of channels in which an optional feature is not attempted.
    pub(super) fn without(&self, sign: Sign, now_ms: u64) -> usize {
        let facts = self.facts();
        facts.refused.iter().filter(|((_, of), until)| *of == sign && **until > now_ms).count()
    }

    /// Records a change of permissions: refused actions in this scope may be attempted at once.
    pub(super) fn rights_changed(&self, at: Place) {
        let mut facts = self.facts();
        let Facts { spots, refused, denied, .. } = &mut *facts;
        let is_meant = |channel: Snowflake| match at {
            Place::Channel(id) => channel == id,
            Place::Guild(guild) => spots.iter().any(|(id, spot)| {
                spot.guild == Some(guild) && (*id == channel || spot.parent == Some(channel))
            }),
        };
        refused.retain(|(channel, _), _| !is_meant(*channel));
        denied.retain(|channel, _| !is_meant(*channel));
    }

    /// Returns the time of the last activity in a conversation, in milliseconds since the Unix epoch.
    pub(super) fn last_ms(&self, channel: Snowflake) -> Option<u64> {
        self.facts().last.get(&channel).map(|id| id.created_at_ms())
    }
}

/// True if a person archived a thread, and not Discord after inactivity: Discord never archives earlier.
/// `last_ms` is the last activity (message or unarchiving) and `archived_ms` the time of archiving, both in
/// milliseconds since the Unix epoch by Discord's clock, so the delay of the event does not matter.
pub(super) const fn by_person(last_ms: u64, archived_ms: u64, auto_archive_minutes: u64) -> bool {
    archived_ms.saturating_sub(last_ms) < auto_archive_minutes.saturating_mul(MINUTE_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use acp_discord::core::event::{GapCause, ReadyEvent, User};

    #[test]
    fn d12_a_thread_that_was_silent_long_enough_was_put_away_by_nobody() {
        let hour = 60 * MINUTE_MS;
        for (silent_ms, minutes, want) in
            [(hour - 1, 60, true), (hour, 60, false), (0, 60, true), (24 * hour, 1_440, false), (0, 0, false)]
        {
            assert_eq!(by_person(1_000, 1_000 + silent_ms, minutes), want, "{silent_ms} {minutes}");
        }
        assert!(by_person(1_000, 999, 60), "a word that crossed it");
    }

    #[test]
    fn a_look_counts_as_long_as_events_come_in() {
        let ready = || {
            let me = User { id: Snowflake(1), name: "helper".to_owned(), display_name: None, bot: true };
            let session = "s".to_owned();
            Event::Ready(ReadyEvent {
                me,
                application: Snowflake(2),
                session,
                shard: (0, 1),
                guilds: Vec::new(),
            })
        };
        let lost = || Event::Disconnected { why: "the connection broke".to_owned() };
        let hole = || Event::Gap { why: GapCause::Skipped, lost: 1 };
        let at = Snowflake(7);
        for (before, during, want) in [
            (vec![], vec![], false),
            (vec![ready()], vec![], true),
            (vec![ready()], vec![Event::Unknown { kind: "X".to_owned() }], true),
            (vec![ready()], vec![lost()], false),
            (vec![ready()], vec![lost(), Event::Resumed], false),
            (vec![ready()], vec![hole()], false),
            (vec![ready(), lost()], vec![], false),
            (vec![ready(), lost()], vec![Event::Resumed], false),
            (vec![ready(), lost(), Event::Resumed], vec![], true),
            (vec![ready(), hole()], vec![], true),
            (vec![lost(), hole()], vec![], false),
        ] {
            let known = Known::default();
            before.iter().for_each(|event| known.hear(event));
            let era = known.era();
            during.iter().for_each(|event| known.hear(event));
            known.looked(at, era);
            assert_eq!(known.is_followed(at), want, "{before:?} {during:?}");
            known.hear(&lost());
            assert!(!known.is_followed(at));
        }
    }

    #[test]
    fn a_sign_that_is_not_allowed_is_tried_again_after_a_while() {
        let known = Known::default();
        let [channel, thread, other] = [1, 2, 3].map(Snowflake);
        known.is_at(thread, Some(channel), None);
        known.may_not_show(Sign::Reaction, thread, 1_000);
        let shown = |now_ms| {
            [channel, thread, other].map(|at| {
                (known.may_show(Sign::Reaction, at, now_ms), known.may_show(Sign::Typing, at, now_ms))
            })
        };
        assert_eq!(shown(1_000), [(false, true), (false, true), (true, true)]);
        assert_eq!(shown(1_000 + REFUSED_MS), [(true, true); 3]);
    }

    #[test]
    fn where_rights_changed_what_was_refused_may_be_tried() {
        let [guild, channel, thread, other] = [9, 1, 2, 3].map(Snowflake);
        for (at, here, there) in [
            (Place::Channel(channel), true, false),
            (Place::Channel(other), false, true),
            (Place::Guild(guild), true, false),
            (Place::Guild(Snowflake(8)), false, false),
        ] {
            let known = Known::default();
            known.is_at(thread, Some(channel), Some(guild));
            [thread, other].into_iter().for_each(|at| known.may_not_show(Sign::Files, at, 1_000));
            known.rights_changed(at);
            let may = [thread, other].map(|at| known.may_show(Sign::Files, at, 1_000));
            assert_eq!(may, [here, there], "{at:?}");
        }
    }

    #[test]
    fn in_a_channel_that_is_denied_one_tries_for_all() {
        let known = Known::default();
        let threads = [11, 12, 13, 14].map(Snowflake);
        threads.iter().for_each(|thread| known.is_at(*thread, Some(Snowflake(1)), None));
        let tries = |now_ms| threads.iter().filter(|thread| known.may_try(**thread, now_ms)).count();
        for thread in threads.iter().take(DENIED_MIN) {
            assert_eq!(tries(0), 4, "it may be the thread alone");
            known.tried(*thread, true);
        }
        let all: Vec<usize> = (0..15).map(|second| tries(second * 1_000)).collect();
        assert_eq!(all, [1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!(known.may_try(Snowflake(2), 15_000), "another channel");
        known.tried(threads[3], false);
        assert_eq!(tries(15_000), 4);
    }

    /// The data on denied conversations is bounded and removed with the conversations.
    #[test]
    fn what_is_denied_is_bounded_and_goes_with_its_conversation() {
        let known = Known::default();
        let channel = Snowflake(1);
        let threads: Vec<Snowflake> = (10..60).map(Snowflake).collect();
        for thread in &threads {
            known.is_at(*thread, Some(channel), None);
            known.tried(*thread, true);
        }
        let kept =
            |known: &Known| known.facts().denied.get(&channel).map(|denied| denied.conversations.len());
        assert_eq!(kept(&known), Some(DENIED_MIN));
        threads.iter().for_each(|thread| known.forget(*thread));
        assert_eq!((kept(&known), known.spot(threads[0])), (None, None));
        for id in 0..=u64::try_from(PLACES_MAX).unwrap_or_default() {
            known.tried(Snowflake(1_000 + id), true);
        }
        assert!(known.facts().denied.len() <= PLACES_MAX);
    }

    #[test]
    fn the_servers_of_a_bot_are_those_that_its_shards_named_last() {
        let known = Known::default();
        let [even, odd, more] = [2_u64 << 22, 3 << 22, 4 << 22].map(Snowflake);
        known.is_in(&[even], (0, 2));
        known.is_in(&[odd], (1, 2));
        known.joined(more, true);
        assert_eq!(known.guilds(), BTreeSet::from([even, odd, more]));
        known.is_in(&[more], (0, 2));
        known.joined(odd, false);
        assert_eq!(known.guilds(), BTreeSet::from([more]), "left while it did not listen");
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
