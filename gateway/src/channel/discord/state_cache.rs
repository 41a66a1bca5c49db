//! Cache of facts about Discord: identity of the bot, location of conversations, last activity. Missing facts
//! are requested from Discord.

use crate::channel::discord::archive_state::ArchiveState;
use acp_discord::core::event::{Event, ShardId};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message_filter::BotIdentity;
use acp_shared::backoff::Backoff;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use tokio::sync::Notify;

/// Maximum number of cached conversations; at the limit the cache is cleared.
const CONVERSATIONS_MAX: usize = 20_000;
const MINUTE_MS: u64 = 60_000;
/// Period in which an optional feature is not attempted again after a refusal for a missing permission: each
/// refusal counts, and too many of them block all requests of the bot.
const REFUSED_MS: u64 = 10 * MINUTE_MS;

/// Number of conversations without access from which on the whole channel counts as denied.
const DENIED_MIN: usize = 3;
/// Intervals between attempts in such a channel.
const DENIED_BACKOFF: Backoff = Backoff::new(2_000, 60_000);

/// Kind of access to a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Access {
    /// Reading the history.
    Read,
    /// Sending messages.
    Write,
}

/// Channel with conversations that the bot may not read or write.
#[derive(Debug)]
struct DeniedChannel {
    /// The first [`DENIED_MIN`] of these conversations; more add no information.
    conversations: BTreeSet<Snowflake>,
    /// Time of the next attempt in any of these conversations, in milliseconds since the Unix epoch.
    next_ms: u64,
    backoff: Backoff,
}

/// Optional feature of messages with a separate Discord permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum OptionalFeature {
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
pub(super) struct StateCache {
    state: Mutex<CacheState>,
    /// Notified when `CacheState::events` changes.
    changed: Notify,
}

/// Findings about conversations that the event loop has not processed yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CacheEvents {
    /// Deleted conversations.
    pub(super) deleted: Vec<Snowflake>,
    /// Archive states read by requests.
    pub(super) archive_states: Vec<(Snowflake, ArchiveState)>,
}

/// Location of a conversation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ConversationLocation {
    /// Parent channel of a thread; `None` for a channel.
    pub(super) parent: Option<Snowflake>,
    /// Server, if known.
    pub(super) guild: Option<Snowflake>,
}

/// Scope of a permission change or of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventScope {
    /// A channel with its threads.
    Channel(Snowflake),
    /// A whole server.
    Guild(Snowflake),
}

#[derive(Debug, Default)]
struct CacheState {
    me: Option<Snowflake>,
    application: Option<Snowflake>,
    /// Webhooks for messages under agents' names.
    webhooks: BTreeSet<Snowflake>,
    /// Servers of which the bot is a member.
    guilds: BTreeSet<Snowflake>,
    locations: HashMap<Snowflake, ConversationLocation>,
    /// Bound conversations marked as inaccessible.
    inaccessible: BTreeSet<Snowflake>,
    /// Members of `inaccessible` that were marked without a request.
    assumed: BTreeSet<Snowflake>,
    /// Last message of each conversation, by any author.
    last_messages: HashMap<Snowflake, Snowflake>,
    /// End of the period without an optional feature in a channel and its threads, after a refusal.
    denied_features: HashMap<(Snowflake, OptionalFeature), u64>,
    /// Channels that the bot currently may not read or write.
    denied_channels: HashMap<(Snowflake, Access), DeniedChannel>,
    /// Conversations with an archive state checked since the last loss of events.
    archive_checked: HashSet<Snowflake>,
    /// Conversations with a request for the archive state in progress and no event since it began.
    archive_reads: HashSet<Snowflake>,
    events: CacheEvents,
    /// Number of starts and interruptions of the event stream.
    stream_epoch: u64,
    /// True if the event stream is connected.
    is_connected: bool,
}

impl StateCache {
    pub(super) fn me(&self) -> Option<Snowflake> {
        self.state.lock().me
    }

    /// Records the identity of the bot.
    pub(super) fn set_identity(&self, me: Snowflake, application: Snowflake) {
        let mut state = self.state.lock();
        (state.me, state.application) = (Some(me), Some(application));
    }

    /// Returns the identity of the bot, once known.
    pub(super) fn identity(&self) -> Option<BotIdentity> {
        let state = self.state.lock();
        let (me, application) = (state.me?, state.application?);
        Some(BotIdentity { me, application, webhooks: state.webhooks.clone(), accepts_bots: false })
    }

    /// Records a webhook as ours: messages through the webhook come back as echoes.
    pub(super) fn add_own_webhook(&self, webhook: Snowflake) {
        self.state.lock().webhooks.insert(webhook);
    }

    /// Records the servers that a shard reported. Replaces earlier servers of the shard.
    pub(super) fn set_guilds(&self, guilds: &[Snowflake], shard: ShardId) {
        let is_its = |guild: &Snowflake| (guild.0 >> 22) % shard.count.max(1) == shard.number;
        let mut state = self.state.lock();
        state.guilds.retain(|guild| !is_its(guild));
        state.guilds.extend(guilds);
    }

    /// Records that the bot is a member of a server or has left.
    pub(super) fn set_membership(&self, guild: Snowflake, is_there: bool) {
        let mut state = self.state.lock();
        if is_there {
            state.guilds.insert(guild);
        } else {
            state.guilds.remove(&guild);
        }
    }

    /// Returns the servers of the bot, as far as reported.
    pub(super) fn guilds(&self) -> BTreeSet<Snowflake> {
        self.state.lock().guilds.clone()
    }

    /// Drops all cached data of a deleted conversation.
    pub(super) fn remove_conversation(&self, at: Snowflake) {
        let mut state = self.state.lock();
        let channel = state.locations.remove(&at).and_then(|spot| spot.parent).unwrap_or(at);
        state.denied_channels.retain(|(of, _), denied| {
            let is_its = *of == channel && denied.conversations.remove(&at);
            !is_its || !denied.conversations.is_empty()
        });
        state.inaccessible.remove(&at);
        state.assumed.remove(&at);
        state.last_messages.remove(&at);
        state.archive_checked.remove(&at);
    }

    /// Records the location of a conversation. `None` as server keeps the server known before.
    pub(super) fn set_location(&self, id: Snowflake, parent: Option<Snowflake>, guild: Option<Snowflake>) {
        let mut state = self.state.lock();
        if state.locations.len() >= CONVERSATIONS_MAX {
            state.locations.clear();
        }
        let before = state.locations.get(&id).and_then(|spot| spot.guild);
        state.locations.insert(id, ConversationLocation { parent, guild: guild.or(before) });
    }

    /// Returns the location of a conversation, if known.
    pub(super) fn location(&self, id: Snowflake) -> Option<ConversationLocation> {
        self.state.lock().locations.get(&id).copied()
    }

    /// Returns the parent channel of a thread.
    pub(super) fn parent(&self, id: Snowflake) -> Option<Snowflake> {
        self.location(id)?.parent
    }

    /// Records whether the bot was refused access to a bound conversation. Returns true on a change.
    pub(super) fn set_inaccessible(&self, id: Snowflake, is_inaccessible: bool) -> bool {
        let mut state = self.state.lock();
        state.assumed.remove(&id);
        if is_inaccessible { state.inaccessible.insert(id) } else { state.inaccessible.remove(&id) }
    }

    /// Marks a bound conversation as inaccessible because its siblings in the channel were refused.
    pub(super) fn assume_inaccessible(&self, id: Snowflake) {
        let mut state = self.state.lock();
        if state.inaccessible.insert(id) {
            state.assumed.insert(id);
        }
    }

    /// True if a request for this very conversation was refused.
    pub(super) fn was_access_refused(&self, id: Snowflake) -> bool {
        let state = self.state.lock();
        state.inaccessible.contains(&id) && !state.assumed.contains(&id)
    }

    /// Returns the bound conversations marked as inaccessible.
    pub(super) fn inaccessible(&self) -> BTreeSet<Snowflake> {
        self.state.lock().inaccessible.clone()
    }

    /// True if the conversation is marked as inaccessible.
    pub(super) fn is_inaccessible(&self, id: Snowflake) -> bool {
        self.state.lock().inaccessible.contains(&id)
    }

    /// Records a message of a conversation.
    pub(super) fn record_message(&self, channel: Snowflake, message: Snowflake) {
        let mut state = self.state.lock();
        if state.last_messages.len() >= CONVERSATIONS_MAX {
            state.last_messages.clear();
        }
        let last = state.last_messages.entry(channel).or_insert(message);
        *last = (*last).max(message);
    }

    /// True if an access to a conversation may be attempted. In a denied channel a single conversation is tried
    /// now and then: each refusal counts towards a ban of the IP address.
    pub(super) fn should_attempt(&self, access: Access, at: Snowflake, now_ms: u64) -> bool {
        let channel = self.parent(at).unwrap_or(at);
        let mut state = self.state.lock();
        let Some(denied) = state.denied_channels.get_mut(&(channel, access)) else { return true };
        if denied.conversations.len() < DENIED_MIN {
            return true;
        }
        if now_ms < denied.next_ms {
            return false;
        }
        denied.next_ms = now_ms.saturating_add(denied.backoff.next_ms());
        true
    }

    /// Records the result of an access to a conversation.
    pub(super) fn record_access(&self, access: Access, at: Snowflake, is_denied: bool) {
        let channel = self.parent(at).unwrap_or(at);
        let mut state = self.state.lock();
        if is_denied {
            if state.denied_channels.len() >= CONVERSATIONS_MAX {
                state.denied_channels.clear();
            }
            let new =
                || DeniedChannel { conversations: BTreeSet::new(), next_ms: 0, backoff: DENIED_BACKOFF };
            let denied = state.denied_channels.entry((channel, access)).or_insert_with(new);
            if denied.conversations.len() < DENIED_MIN {
                denied.conversations.insert(at);
            }
        } else {
            state.denied_channels.remove(&(channel, access));
        }
    }

    /// Records that a response reported the conversation as deleted: a deletion event may never arrive.
    pub(super) fn report_deleted(&self, at: Snowflake) {
        self.state.lock().events.deleted.push(at);
        self.changed.notify_one();
    }

    /// Waits for findings and returns them.
    pub(super) async fn next_events(&self) -> CacheEvents {
        loop {
            let events = std::mem::take(&mut self.state.lock().events);
            if events != CacheEvents::default() {
                return events;
            }
            self.changed.notified().await;
        }
    }

    /// Updates the state of the event stream. Each change invalidates all archive checks: changes of threads
    /// during an interruption have no event, and after a resume the checks made meanwhile may be outdated.
    pub(super) fn on_event(&self, event: &Event) {
        match event {
            Event::Ready(_) | Event::Resumed => self.set_connected(Some(true)),
            Event::Disconnected { .. } | Event::Failed(_) => self.set_connected(Some(false)),
            Event::Gap { .. } => self.set_connected(None),
            _ => {}
        }
    }

    /// Records that the event stream begins, ends, or (`None`) has a gap.
    pub(super) fn set_connected(&self, is_connected: Option<bool>) {
        let mut state = self.state.lock();
        state.archive_checked.clear();
        state.stream_epoch += 1;
        state.is_connected = is_connected.unwrap_or(state.is_connected);
    }

    /// Returns the number of the current uninterrupted period of events; `None` while disconnected.
    pub(super) fn stream_epoch(&self) -> Option<u64> {
        let state = self.state.lock();
        state.is_connected.then_some(state.stream_epoch)
    }

    /// Records that a request for the archive state begins. Returns the current period of events.
    pub(super) fn begin_archive_read(&self, at: Snowflake) -> Option<u64> {
        self.state.lock().archive_reads.insert(at);
        self.stream_epoch()
    }

    /// Records an event of a conversation: a request in progress may show an older archive state.
    pub(super) fn cancel_archive_read(&self, at: Snowflake) {
        self.state.lock().archive_reads.remove(&at);
    }

    /// Records that a request for the archive state succeeded. Returns false if an event made the result
    /// doubtful.
    pub(super) fn end_archive_read(&self, at: Snowflake, epoch: Option<u64>) -> bool {
        let is_current = self.state.lock().archive_reads.remove(&at) || self.has_archive_state(at);
        if is_current {
            self.record_archive_check(at, epoch);
        }
        is_current
    }

    /// Reports an archive state read by a request to the conversation worker.
    pub(super) fn report_archive_state(&self, at: Snowflake, archive: ArchiveState) {
        self.state.lock().events.archive_states.push((at, archive));
        self.changed.notify_one();
    }

    /// Ends the mark of all inaccessible conversations that are no longer bound.
    pub(super) fn retain_inaccessible(&self, is_bound: impl Fn(Snowflake) -> bool) {
        let mut state = self.state.lock();
        state.inaccessible.retain(|id| is_bound(*id));
        state.assumed.retain(|id| is_bound(*id));
    }

    /// True if the archive state of a conversation is known: checked, with uninterrupted events ever since.
    pub(super) fn has_archive_state(&self, at: Snowflake) -> bool {
        self.state.lock().archive_checked.contains(&at)
    }

    /// Records a successful archive check. Ignored if events were interrupted since `epoch` was read.
    pub(super) fn record_archive_check(&self, at: Snowflake, epoch: Option<u64>) {
        if epoch.is_none() || epoch != self.stream_epoch() {
            return;
        }
        let mut state = self.state.lock();
        if state.archive_checked.len() >= CONVERSATIONS_MAX {
            state.archive_checked.clear();
        }
        state.archive_checked.insert(at);
    }

    /// Invalidates the archive check of a conversation.
    pub(super) fn invalidate_archive_state(&self, at: Snowflake) {
        self.state.lock().archive_checked.remove(&at);
    }

    /// True if an optional feature may be attempted in a conversation; `now_ms` is in Unix milliseconds.
    pub(super) fn is_allowed(&self, feature: OptionalFeature, at: Snowflake, now_ms: u64) -> bool {
        let channel = self.parent(at).unwrap_or(at);
        self.state.lock().denied_features.get(&(channel, feature)).is_none_or(|until| *until <= now_ms)
    }

    /// Records that an optional feature was refused for a missing permission. Threads have the permissions of
    /// their channel.
    pub(super) fn deny(&self, feature: OptionalFeature, at: Snowflake, now_ms: u64) {
        let channel = self.parent(at).unwrap_or(at);
        let mut state = self.state.lock();
        state.denied_features.retain(|_, until| *until > now_ms);
        state.denied_features.insert((channel, feature), now_ms.saturating_add(REFUSED_MS));
    }

    /// Returns the number of channels in which an optional feature is not attempted.
    pub(super) fn denied_count(&self, feature: OptionalFeature, now_ms: u64) -> usize {
        let state = self.state.lock();
        state.denied_features.iter().filter(|((_, of), until)| *of == feature && **until > now_ms).count()
    }

    /// Records a change of permissions: refused actions in this scope may be attempted at once, reads by one
    /// conversation of a channel first.
    pub(super) fn on_permissions_changed(&self, at: EventScope) {
        let mut state = self.state.lock();
        let CacheState { locations, denied_features, denied_channels, .. } = &mut *state;
        let is_meant = |channel: Snowflake| match at {
            EventScope::Channel(id) => channel == id,
            EventScope::Guild(guild) => locations.iter().any(|(id, spot)| {
                spot.guild == Some(guild) && (*id == channel || spot.parent == Some(channel))
            }),
        };
        denied_features.retain(|(channel, _), _| !is_meant(*channel));
        denied_channels.retain(|(channel, access), _| *access == Access::Read || !is_meant(*channel));
        for ((channel, _), denied) in denied_channels {
            // A conversation with a new right is tried immediately.
            denied.next_ms = if is_meant(*channel) { 0 } else { denied.next_ms };
        }
    }

    /// Returns the time of the last activity in a conversation, in milliseconds since the Unix epoch.
    pub(super) fn last_message_ms(&self, channel: Snowflake) -> Option<u64> {
        self.state.lock().last_messages.get(&channel).map(|id| id.created_at_ms())
    }
}

/// True if a person archived a thread, and not Discord after inactivity: Discord never archives earlier.
/// `last_ms` is the last activity (message or unarchiving) and `archived_ms` the time of archiving, both in
/// milliseconds since the Unix epoch by Discord's clock, so the delay of the event does not matter.
pub(super) const fn is_archived_by_person(last_ms: u64, archived_ms: u64, auto_archive_minutes: u64) -> bool {
    archived_ms.saturating_sub(last_ms) < auto_archive_minutes.saturating_mul(MINUTE_MS)
}

#[cfg(test)]
#[path = "state_cache_tests.rs"]
mod tests;
