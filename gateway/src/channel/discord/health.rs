//! Health of an account in words and numbers: last state of the websocket, and results of the requests.

use super::Inner;
use crate::channel::discord::state_cache::OptionalFeature;
use crate::channel::{ChannelHealth, ChannelMetric};
use acp_core::shards::ShardRange;
use acp_core::time_format::format_utc;
use acp_discord::core::close_codes;
use acp_discord::core::errors::RejectionKind;
use acp_discord::core::event::Event;
use acp_discord::core::ids::Snowflake;
use acp_discord::core::permissions::invite_url;
use acp_discord::rest::RestCounts;
use acp_discord::websocket::{SessionCounts, ShardState};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Close code of a websocket whose token Discord refuses.
const INVALID_TOKEN: u16 = 4004;

/// Maximum number of disconnected shards in a report.
const SHARDS_NAMED_MAX: usize = 3;

/// Last state of the websocket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum ConnectionState {
    /// No event yet.
    #[default]
    Connecting,
    /// Events arrive.
    Up,
    /// Connection lost; a new one is being opened.
    Lost(String),
    /// Connection failed for good, perhaps because Discord refused the token.
    Failed { why: String, by_token: bool },
}

#[derive(Debug, Clone, Default)]
struct HealthState {
    link: ConnectionState,
    /// Start of the last session in milliseconds since the Unix epoch, name of the bot, number of servers.
    ready: Option<(u64, String, usize)>,
}

/// Current state of the connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionHealth(Mutex<HealthState>);

impl ConnectionHealth {
    /// Updates the state from an event received at `now_ms`.
    pub(super) fn on_event(&self, event: &Event, now_ms: u64) {
        let mut facts = self.0.lock();
        facts.link = match event {
            Event::Ready(ready) => {
                facts.ready = Some((now_ms, ready.me.name.clone(), ready.guilds.len()));
                ConnectionState::Up
            }
            Event::Resumed => ConnectionState::Up,
            Event::Disconnected { why } => ConnectionState::Lost(why.clone()),
            Event::Failed(failure) => {
                let by_token = failure.cause == close_codes::close_code(INVALID_TOKEN).cause;
                ConnectionState::Failed { why: failure.to_string(), by_token }
            }
            _ => return,
        };
    }

    /// True if the connection failed for good.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.0.lock().link, ConnectionState::Failed { .. })
    }

    /// True if events arrive.
    pub(super) fn is_up(&self) -> bool {
        self.0.lock().link == ConnectionState::Up
    }

    /// Marks the start of another connection.
    pub(super) fn mark_connecting(&self) {
        self.0.lock().link = ConnectionState::Connecting;
    }

    fn now(&self) -> HealthState {
        self.0.lock().clone()
    }
}

impl Inner {
    /// Returns the reason if the bot receives no messages from a conversation.
    pub(super) fn unavailable_reason(&self, at: Snowflake) -> Option<String> {
        let guild = self.cache.location(at).and_then(|spot| spot.guild);
        if let Some(why) = guild.and_then(|guild| self.settings().access.shard_refusal(Some(guild))) {
            return Some(why);
        }
        let is_there = |guild| {
            self.cache.guilds().contains(&guild) && self.settings().access.is_guild_allowed(Some(guild))
        };
        if !self.connection_health.is_up() {
            return Some("its bot is not connected to Discord".to_owned());
        }
        if self.cache.was_access_refused(at) {
            return Some(
                "its bot may not read this conversation (View Channel, Read Message History)".to_owned(),
            );
        }
        let is_elsewhere = guild.is_some_and(|guild| !is_there(guild));
        is_elsewhere.then(|| "its bot is not in this server, or does not serve it".to_owned())
    }

    /// Returns the current health.
    pub(super) fn health(&self) -> ChannelHealth {
        let (facts, requests, events) =
            (self.connection_health.now(), self.rest.counts(), self.counts.snapshot());
        let (ok, mut words) = status_texts(&facts);
        let shards = self.settings().access.shards;
        words.extend(shards_text(shards, &events.shards));
        let ok = ok && shards_up(&events.shards) == events.shards.len();
        if !self.base.is_official() {
            words.push(format!("base URL {}, not Discord's own address", self.base.as_str()));
        }
        words.extend(inaccessible_text(self.cache.inaccessible().len()));
        let has_names = self.settings().personas;
        words.extend(nameless_text(if has_names {
            self.cache.denied_count(OptionalFeature::Persona, self.clock.wall_ms())
        } else {
            0
        }));
        words.extend(self.registration.problems());
        let held = held_texts(&requests);
        let ok = ok && held.is_empty();
        words.extend(held);
        words.extend(refused_text(&requests, self.cache.identity().map(|known| known.application)));
        let up = facts.link == ConnectionState::Up;
        let refused =
            requests.unauthorized || matches!(facts.link, ConnectionState::Failed { by_token: true, .. });
        ChannelHealth { ok, details: words.join("; "), figures: figures(up, !refused, &requests, &events) }
    }
}

/// Returns whether the connection is up, and a description.
fn status_texts(facts: &HealthState) -> (bool, Vec<String>) {
    let (ok, word) = match &facts.link {
        ConnectionState::Connecting => (false, "not connected yet".to_owned()),
        ConnectionState::Up => (true, "connected".to_owned()),
        ConnectionState::Lost(why) => (false, format!("reconnecting: {why}")),
        ConnectionState::Failed { why, .. } => (false, why.clone()),
    };
    let ready = facts.ready.as_ref().map(|(at_ms, bot, servers)| {
        format!("last session as {bot} in {servers} servers since {}", format_utc(*at_ms))
    });
    (ok, [Some(word), ready].into_iter().flatten().collect())
}

/// Describes the shards of a gateway that has several, or a part of those of its application.
fn shards_text(range: Option<ShardRange>, shards: &BTreeMap<u32, ShardState>) -> Option<String> {
    if range.is_none() && shards.len() < 2 {
        return None;
    }
    let up = shards_up(shards);
    let what = range.map_or_else(|| format!("{} shards", shards.len()), |range| range.to_string());
    let others = shards.iter().filter_map(|(number, state)| match state {
        ShardState::Up => None,
        ShardState::Connecting => Some(format!("shard {number} is not connected yet")),
        ShardState::Lost(why) => Some(format!("shard {number} is reconnecting: {why}")),
    });
    let more = (shards.len() - up).checked_sub(SHARDS_NAMED_MAX).filter(|more| *more > 0);
    let words = std::iter::once(format!("{what}, {up} connected")).chain(others.take(SHARDS_NAMED_MAX));
    Some(words.chain(more.map(|more| format!("{more} more"))).collect::<Vec<_>>().join("; "))
}

/// Returns the number of connected shards.
fn shards_up(shards: &BTreeMap<u32, ShardState>) -> usize {
    shards.values().filter(|state| **state == ShardState::Up).count()
}

/// Returns the reasons why no requests are made.
fn held_texts(requests: &RestCounts) -> Vec<String> {
    let unauthorized = requests.unauthorized.then(|| {
        "Discord refuses the token: reset it (Developer Portal, Bot), store the new one where the \
         configuration expects it, and reload the gateway (SIGHUP, or `systemctl reload`); pending \
         messages are sent then"
            .to_owned()
    });
    let shut = requests.blocked_for.map(|left| {
        format!(
            "requests are paused for {} seconds: Discord refused too many; see acp_channel_requests_total",
            left.as_secs().max(1)
        )
    });
    unauthorized.into_iter().chain(shut).collect()
}

/// Describes the bound conversations that the bot cannot read.
fn inaccessible_text(count: usize) -> Option<String> {
    (count > 0).then(|| {
        format!(
            "{count} bound conversations cannot be read: give the bot View Channel and Read Message History \
             there; their messages are not lost until their bindings end"
        )
    })
}

/// Describes the channels in which agents should speak under their own names but cannot.
fn nameless_text(count: usize) -> Option<String> {
    (count > 0).then(|| {
        format!(
            "in {count} channels agents post as the bot, because it has no usable webhook there: give it \
             Manage Webhooks, or delete a webhook where there are fifteen; the log names the channels"
        )
    })
}

/// Describes the permissions that Discord found missing since the start.
fn refused_text(requests: &RestCounts, application: Option<Snowflake>) -> Option<String> {
    let of = |kind: RejectionKind| {
        let kinds = requests.requests.iter().filter(move |((_, outcome), _)| *outcome == kind.as_str());
        kinds.map(|((route, _), _)| *route).collect::<Vec<_>>()
    };
    let kinds = [of(RejectionKind::Forbidden), of(RejectionKind::LostAccess)].concat();
    let what = kinds.join(", ");
    let then =
        application.map_or("see docs/manual/discord.md".to_owned(), |id| format!("open {}", invite_url(id)));
    (!kinds.is_empty()).then(|| {
        format!(
            "requests refused for a missing permission since the start: {what}; {then}, and check which \
             permissions the channel denies to the bot's role"
        )
    })
}

/// Returns the metrics of the account.
fn figures(
    up: bool,
    authorized: bool,
    requests: &RestCounts,
    events: &SessionCounts,
) -> Vec<(ChannelMetric, u64)> {
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let shards_up = shards_up(&events.shards);
    let mut all = vec![
        (ChannelMetric::Connected, u64::from(up)),
        (ChannelMetric::Shards("connected"), count(shards_up)),
        (ChannelMetric::Shards("disconnected"), count(events.shards.len() - shards_up)),
        (ChannelMetric::Authorized, u64::from(authorized)),
        (ChannelMetric::Sessions("asked"), events.identifies),
        (ChannelMetric::Sessions("begun"), events.readies),
        (ChannelMetric::Sessions("resumed"), events.resumes),
        (ChannelMetric::Gaps, events.gaps),
        (ChannelMetric::EventsDropped, events.dropped),
        (ChannelMetric::EventsStrange, events.unrecognized.values().sum::<u64>() + requests.unreadable),
        (ChannelMetric::RequestsWaiting, count(requests.waiting)),
        (ChannelMetric::RequestsUnderWay, count(requests.in_flight)),
    ];
    let RestCounts { requests, retries, limited, waits, .. } = requests;
    all.extend(requests.iter().map(|((route, outcome), n)| (ChannelMetric::Requests(route, outcome), *n)));
    all.extend(retries.iter().map(|(route, n)| (ChannelMetric::Retries(route), *n)));
    all.extend(limited.iter().map(|(scope, n)| (ChannelMetric::RateLimits(scope.as_str()), *n)));
    for (priority, waits) in waits {
        let total = u64::try_from(waits.total.as_millis()).unwrap_or(u64::MAX);
        all.push((ChannelMetric::Turns(priority.as_str()), waits.count));
        all.push((ChannelMetric::WaitedMs(priority.as_str()), total));
    }
    all
}

#[cfg(test)]
pub(super) mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_discord::core::event::{ReadyEvent, ShardId, User};
    use std::time::Duration;

    pub(in crate::channel::discord) fn ready() -> Event {
        let me = User { id: Snowflake(1), name: "helper".to_owned(), display_name: None, bot: true };
        let guilds = vec![Snowflake(5), Snowflake(6)];
        let (application, session) = (Snowflake(2), "s".to_owned());
        Event::Ready(ReadyEvent { me, application, session, shard: ShardId::ONLY, guilds })
    }

    #[test]
    fn status_shows_last_connection_event() {
        let lost = || Event::Disconnected { why: "the network is down".to_owned() };
        let fatal = || Event::Failed(close_codes::fatal_error(4014).unwrap());
        let last = "last session as helper in 2 servers since 2026-06-24T00:00:00Z";
        for (events, ok, wants) in [
            (vec![], false, vec!["not connected yet"]),
            (vec![ready()], true, vec!["connected", last]),
            (vec![ready(), lost()], false, vec!["reconnecting: the network is down", last]),
            (vec![ready(), lost(), Event::Resumed], true, vec!["connected", last]),
            (vec![fatal()], false, vec!["code 4014", "Message Content Intent"]),
            (vec![ready(), Event::GuildBack(Snowflake(5))], true, vec!["connected"]),
        ] {
            let pulse = ConnectionHealth::default();
            events.iter().for_each(|event| pulse.on_event(event, 1_782_259_200_000));
            let (is_ok, words) = status_texts(&pulse.now());
            let words = words.join("; ");
            assert_eq!(is_ok, ok, "{words}");
            assert!(wants.iter().all(|want| words.contains(want)), "{words}");
        }
    }

    #[test]
    fn shards_are_shown_with_their_range_and_connections() {
        const THREE: &str = "3 shards, 0 connected; shard 0 is not connected yet; shard 1 is not connected yet; \
            shard 2 is not connected yet";
        let connecting = |count| (0..count).map(|number| (number, ShardState::Connecting)).collect();
        let range = Some(ShardRange { from: 2, to: 4, of: 8 });
        let one = BTreeMap::from([(0, ShardState::Up)]);
        let two = BTreeMap::from([(2, ShardState::Up), (3, ShardState::Lost("no slot".to_owned()))]);
        for (range, shards, want) in [
            (None, &one, None),
            (None, &two, Some("2 shards, 1 connected; shard 3 is reconnecting: no slot")),
            (range, &two, Some("shards 2 to 3 of 8, 1 connected; shard 3 is reconnecting: no slot")),
            (range, &BTreeMap::new(), Some("shards 2 to 3 of 8, 0 connected")),
            (Some(ShardRange { from: 0, to: 1, of: 2 }), &one, Some("shard 0 of 2, 1 connected")),
            (None, &connecting(3), Some(THREE)),
            (None, &connecting(5), Some(&format!("{THREE}; 2 more").replace("3 shards", "5 shards"))),
        ] {
            assert_eq!(shards_text(range, shards).as_deref(), want);
        }
    }

    #[test]
    fn blocked_requests_are_reported_with_next_step() {
        let mut counts = RestCounts::default();
        assert_eq!((held_texts(&counts), refused_text(&counts, None)), (vec![], None));
        counts.requests.insert(("create_message", "done"), 4);
        counts.requests.insert(("add_reaction", "forbidden"), 2);
        counts.requests.insert(("messages", "lost_access"), 1);
        let words = refused_text(&counts, Some(Snowflake(5))).unwrap();
        assert!(words.contains(": add_reaction, messages; open https://"), "{words}");
        assert!(words.contains("client_id=5&"), "{words}");
        counts.unauthorized = true;
        counts.blocked_for = Some(Duration::from_millis(200));
        let words = held_texts(&counts).join("; ");
        assert!(words.contains("reset it") && words.contains("for 1 seconds"), "{words}");
        assert_eq!((inaccessible_text(0), nameless_text(0)), (None, None));
        assert!(nameless_text(1).unwrap().contains("Manage Webhooks"));
        assert!(
            inaccessible_text(2).unwrap().starts_with("2 bound conversations cannot be read: give the bot")
        );
    }

    #[test]
    fn every_count_has_its_metric() {
        let mut counts = RestCounts { waiting: 3, in_flight: 2, unreadable: 4, ..RestCounts::default() };
        counts.requests.insert(("create_message", "done"), 4);
        counts.retries.insert("create_message", 1);
        counts.limited.insert(acp_discord::core::headers::RateLimitScope::Shared, 6);
        let waits =
            acp_discord::rest::WaitTimes { count: 2, total: Duration::from_millis(70), ..Default::default() };
        counts.waits.insert(acp_discord::core::request_scheduler::Priority::Final, waits);
        let mut events = SessionCounts {
            identifies: 9,
            readies: 8,
            resumes: 7,
            gaps: 5,
            dropped: 11,
            ..SessionCounts::default()
        };
        events.shards =
            BTreeMap::from([(3, ShardState::Up), (4, ShardState::Up), (5, ShardState::Connecting)]);
        events.unrecognized.insert("A".to_owned(), 6);
        events.unrecognized.insert("B".to_owned(), 6);
        let want = [
            (ChannelMetric::Connected, 1),
            (ChannelMetric::Shards("connected"), 2),
            (ChannelMetric::Shards("disconnected"), 1),
            (ChannelMetric::Authorized, 1),
            (ChannelMetric::Sessions("asked"), 9),
            (ChannelMetric::Sessions("begun"), 8),
            (ChannelMetric::Sessions("resumed"), 7),
            (ChannelMetric::Gaps, 5),
            (ChannelMetric::EventsDropped, 11),
            (ChannelMetric::EventsStrange, 16),
            (ChannelMetric::RequestsWaiting, 3),
            (ChannelMetric::RequestsUnderWay, 2),
            (ChannelMetric::Requests("create_message", "done"), 4),
            (ChannelMetric::Retries("create_message"), 1),
            (ChannelMetric::RateLimits("shared"), 6),
            (ChannelMetric::Turns("final"), 2),
            (ChannelMetric::WaitedMs("final"), 70),
        ];
        assert_eq!(figures(true, true, &counts, &events), want);
    }
}
