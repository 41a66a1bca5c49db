//! What is known of Discord just now: who the bot is, which conversations are threads, when somebody last spoke there.
//! A cache: what is not in here is asked for.

use super::reads::Came;
use acp_discord::core::event::Event;
use acp_discord::core::ids::Snowflake;
use acp_discord::core::intake::Identity;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The most conversations that are remembered; beyond that it begins anew.
const PLACES_MAX: usize = 20_000;
const MINUTE_MS: u64 = 60_000;
/// How long nothing is asked for that was refused for want of a permission: each refusal counts, and so many of them
/// stop every request of the bot.
const REFUSED_MS: u64 = 10 * MINUTE_MS;

/// From so many conversations of one channel on that may not be written to, it is the channel.
const DENIED_MIN: usize = 3;
/// First and longest time between two tries in such a channel, in milliseconds.
const DENIED_MS: (u64, u64) = (2_000, 60_000);

/// A channel of which conversations may not be written to.
#[derive(Debug)]
struct Denied {
    /// The first [`DENIED_MIN`] of them: more say nothing more.
    conversations: BTreeSet<Snowflake>,
    /// When one of them is tried next, in milliseconds of the Unix epoch.
    next_ms: u64,
    pause_ms: u64,
}

/// What is shown beside the text of messages, as far as it takes a permission of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Sign {
    /// Reactions.
    Reaction,
    /// The sign of work.
    Typing,
    /// Files of messages.
    Files,
    /// The names of agents, which take a webhook.
    Persona,
}

/// What is known.
#[derive(Debug, Default)]
pub(super) struct Known {
    facts: Mutex<Facts>,
    /// There is something to be told.
    told: Notify,
}

/// What turned out about conversations, and nobody was told of yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Those that are gone.
    pub(super) gone: Vec<Snowflake>,
    /// What reading them came to.
    pub(super) came: Vec<(Snowflake, Came)>,
}

/// Where a conversation is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spot {
    /// The channel of a thread; `None` for what is a channel itself.
    pub(super) parent: Option<Snowflake>,
    /// The server, as far as it is known.
    pub(super) guild: Option<Snowflake>,
}

/// Where something changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In a channel and its threads.
    Channel(Snowflake),
    /// In a whole server.
    Guild(Snowflake),
}

#[derive(Debug, Default)]
struct Facts {
    me: Option<Snowflake>,
    application: Option<Snowflake>,
    /// Webhooks that agents speak through.
    webhooks: BTreeSet<Snowflake>,
    /// Servers that the bot is in.
    guilds: BTreeSet<Snowflake>,
    spots: HashMap<Snowflake, Spot>,
    /// Bound conversations that the bot was refused when it last looked.
    shut: BTreeSet<Snowflake>,
    /// Those of them in which nobody has asked.
    assumed: BTreeSet<Snowflake>,
    /// The last message of a conversation, whoever said it.
    last: HashMap<Snowflake, Snowflake>,
    /// Until when a sign is not shown in a channel and its threads: Discord did not allow it.
    refused: HashMap<(Snowflake, Sign), u64>,
    /// Channels that the bot may not write to just now.
    denied: HashMap<Snowflake, Denied>,
    /// Conversations that were looked at since something was last missed.
    looked_at: HashSet<Snowflake>,
    news: News,
    /// How often the stream of events began or broke.
    eras: u64,
    /// Whether that stream is there.
    is_hearing: bool,
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
        Some(Identity { me, application, webhooks: facts.webhooks.clone(), hear_bots: false })
    }

    /// A webhook is ours: what it says comes back to us.
    pub(super) fn speaks_through(&self, webhook: Snowflake) {
        self.facts().webhooks.insert(webhook);
    }

    /// A shard (its number, and how many there are) said in which servers the bot is, of those that are that shard's.
    pub(super) fn is_in(&self, guilds: &[Snowflake], (shard, count): (u64, u64)) {
        let is_its = |guild: &Snowflake| (guild.0 >> 22) % count.max(1) == shard;
        let mut facts = self.facts();
        facts.guilds.retain(|guild| !is_its(guild));
        facts.guilds.extend(guilds);
    }

    /// The bot joined a server, or is there still; or it has left.
    pub(super) fn joined(&self, guild: Snowflake, is_there: bool) {
        let mut facts = self.facts();
        if is_there {
            facts.guilds.insert(guild);
        } else {
            facts.guilds.remove(&guild);
        }
    }

    /// Servers that the bot is in, as far as it was told.
    pub(super) fn guilds(&self) -> BTreeSet<Snowflake> {
        self.facts().guilds.clone()
    }

    /// A conversation is not there any more: nothing of it is kept.
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
        facts.assumed.remove(&id);
        if shut { facts.shut.insert(id) } else { facts.shut.remove(&id) }
    }

    /// A bound conversation is taken to be shut, since others of its channel are: nobody has asked there.
    pub(super) fn is_taken_for_shut(&self, id: Snowflake) {
        let mut facts = self.facts();
        if facts.shut.insert(id) {
            facts.assumed.insert(id);
        }
    }

    /// Whether the bot was refused in a conversation itself when it last looked.
    pub(super) fn was_refused(&self, id: Snowflake) -> bool {
        let facts = self.facts();
        facts.shut.contains(&id) && !facts.assumed.contains(&id)
    }

    /// Bound conversations that the bot was refused when it last looked.
    pub(super) fn shut(&self) -> BTreeSet<Snowflake> {
        self.facts().shut.clone()
    }

    /// Whether the bot was refused there when it last looked.
    pub(super) fn was_shut(&self, id: Snowflake) -> bool {
        self.facts().shut.contains(&id)
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

    /// Whether it is worth a try to write to a conversation. Where a whole channel is denied, one of its conversations
    /// tries now and then: each refusal counts towards the ban of the address.
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

    /// A conversation was written to, or may not be.
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

    /// A request was answered with a word that this conversation does not exist: its event may never come.
    pub(super) fn turned_out_gone(&self, at: Snowflake) {
        self.facts().news.gone.push(at);
        self.told.notify_one();
    }

    /// Reading a conversation came to something.
    pub(super) fn came(&self, at: Snowflake, came: Came) {
        self.facts().news.came.push((at, came));
        self.told.notify_one();
    }

    /// Waits until something has turned out.
    pub(super) async fn news(&self) -> News {
        loop {
            let news = std::mem::take(&mut self.facts().news);
            if news != News::default() {
                return news;
            }
            self.told.notified().await;
        }
    }

    /// Takes note of what became of the stream of events. With it all looks are forgotten: what happened to a thread while
    /// it was broken is told by nobody, unless it is resumed, and then the looks made meanwhile may be too old.
    pub(super) fn hear(&self, event: &Event) {
        match event {
            Event::Ready(_) | Event::Resumed => self.hears(Some(true)),
            Event::Disconnected { .. } | Event::Failed(_) => self.hears(Some(false)),
            Event::Gap { .. } => self.hears(None),
            _ => {}
        }
    }

    /// The stream of events begins, ends, or (`None`) has a hole.
    pub(super) fn hears(&self, is_hearing: Option<bool>) {
        let mut facts = self.facts();
        facts.looked_at.clear();
        facts.eras += 1;
        facts.is_hearing = is_hearing.unwrap_or(facts.is_hearing);
    }

    /// Since which beginning events come in without a hole; `None` while they do not. To be asked for before a look.
    pub(super) fn era(&self) -> Option<u64> {
        let facts = self.facts();
        facts.is_hearing.then_some(facts.eras)
    }

    /// Whether all that happened to a conversation is known: it was looked at, and events came in ever since.
    pub(super) fn is_followed(&self, at: Snowflake) -> bool {
        self.facts().looked_at.contains(&at)
    }

    /// A look at a conversation succeeded. It counts if events came in since before it was begun.
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

    /// Something happened to a conversation that could not be looked at.
    pub(super) fn is_lost_sight_of(&self, at: Snowflake) {
        self.facts().looked_at.remove(&at);
    }

    /// Whether a sign may be tried in a conversation. Times are milliseconds of the Unix epoch.
    pub(super) fn may_show(&self, sign: Sign, at: Snowflake, now_ms: u64) -> bool {
        let channel = self.parent(at).unwrap_or(at);
        self.facts().refused.get(&(channel, sign)).is_none_or(|until| *until <= now_ms)
    }

    /// A sign was refused for want of a permission, which a thread has from its channel.
    pub(super) fn may_not_show(&self, sign: Sign, at: Snowflake, now_ms: u64) {
        let channel = self.parent(at).unwrap_or(at);
        let mut facts = self.facts();
        facts.refused.retain(|_, until| *until > now_ms);
        facts.refused.insert((channel, sign), now_ms.saturating_add(REFUSED_MS));
    }

    /// In how many channels a sign is not tried.
    pub(super) fn without(&self, sign: Sign, now_ms: u64) -> usize {
        let facts = self.facts();
        facts.refused.iter().filter(|((_, of), until)| *of == sign && **until > now_ms).count()
    }

    /// What the bot may do in some places is not what it was: what was refused there may be tried at once.
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

    /// When somebody last spoke there, in milliseconds of the Unix epoch.
    pub(super) fn last_ms(&self, channel: Snowflake) -> Option<u64> {
        self.facts().last.get(&channel).map(|id| id.made_at_ms())
    }
}

/// Whether a person put a thread away, rather than Discord after its time of silence: Discord never does that sooner.
/// When something last happened there (a word, or that it was taken out), and when it was put away: both in milliseconds
/// of the Unix epoch by Discord's clock, however late that is heard of.
pub(super) const fn by_person(last_ms: u64, archived_ms: u64, auto_archive_minutes: u64) -> bool {
    archived_ms.saturating_sub(last_ms) < auto_archive_minutes.saturating_mul(MINUTE_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use acp_discord::core::event::{Gap, Ready, User};

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
            let me = User { id: Snowflake(1), name: "helper".to_owned(), shown: None, bot: true };
            let session = "s".to_owned();
            Event::Ready(Ready { me, application: Snowflake(2), session, shard: (0, 1), guilds: Vec::new() })
        };
        let lost = || Event::Disconnected { why: "the connection broke".to_owned() };
        let hole = || Event::Gap { why: Gap::Skipped, lost: 1 };
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

    /// What is remembered of conversations that may not be written to is bounded, and goes with them.
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
