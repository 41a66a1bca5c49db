//! Metrics of channels connected to an external service. The channel maintains them; they are copied at
//! scrape time.

use super::{ChannelMetric, CounterFamily, GaugeFamily, Labels, add, labels, set_total};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::{AtomicU64, Ordering};

type SecondsFamily = Family<Labels, Counter<f64, AtomicU64>>;

/// Metrics by channel and account.
#[derive(Debug, Clone)]
pub(super) struct ChannelFamilies {
    connected: GaugeFamily,
    shards: GaugeFamily,
    authorized: GaugeFamily,
    waiting: GaugeFamily,
    under_way: GaugeFamily,
    sessions: CounterFamily,
    gaps: CounterFamily,
    dropped: CounterFamily,
    strange: CounterFamily,
    requests: CounterFamily,
    retries: CounterFamily,
    limits: CounterFamily,
    turns: CounterFamily,
    waited: SecondsFamily,
}

impl ChannelFamilies {
    pub(super) fn register(all: &mut Registry) -> Self {
        let waited = SecondsFamily::default();
        let text = "Total time that requests waited in the queue, by priority";
        all.register_with_unit("channel_request_wait", text, Unit::Seconds, waited.clone());
        Self {
            connected: add(all, "channel_connected", "1 while the account receives events"),
            shards: add(all, "channel_shards", "Shards of the account in this process, by state"),
            authorized: add(all, "channel_authorized", "1 until the service refuses the account's token"),
            sessions: add(all, "channel_sessions", "Sessions with the service, by step"),
            gaps: add(all, "channel_gaps", "Gaps in the event stream"),
            dropped: add(all, "channel_events_dropped", "Events dropped because a queue was full"),
            strange: add(all, "channel_events_strange", "Events that could not be parsed"),
            requests: add(all, "channel_requests", "Requests, by kind and outcome"),
            retries: add(all, "channel_request_retries", "Repeated requests"),
            limits: add(all, "channel_rate_limits", "Rate limit responses, by scope"),
            turns: add(all, "channel_request_turns", "Requests that left the queue, by priority"),
            waited,
            waiting: add(all, "channel_requests_waiting", "Queued requests"),
            under_way: add(all, "channel_requests_under_way", "Requests in progress"),
        }
    }

    /// Creates the series of an account whose labels are known beforehand.
    pub(super) fn create_account(&self, channel: &str, account: &str) {
        let with = |name: &'static str, word: &str| {
            labels([("channel", channel), ("account", account), (name, word)])
        };
        for scope in ["user", "global", "shared", "address"] {
            drop(self.limits.get_or_create_owned(&with("scope", scope)));
        }
        for priority in ["permission", "final", "notice", "card", "reaction", "typing", "look"] {
            drop(self.turns.get_or_create_owned(&with("priority", priority)));
            drop(self.waited.get_or_create_owned(&with("priority", priority)));
        }
    }

    /// Sets one metric of an account.
    pub(super) fn set(&self, channel: &str, account: &str, figure: &ChannelMetric, value: u64) {
        let own = [("channel", channel), ("account", account)];
        let with = |name: &'static str, word: &str| labels([own[0], own[1], (name, word)]);
        let level = |levels: &GaugeFamily| {
            levels.get_or_create_owned(&labels(own)).set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let count =
            |counts: &CounterFamily, which: Labels| set_total(&counts.get_or_create_owned(&which), value);
        match figure {
            ChannelMetric::Connected => level(&self.connected),
            ChannelMetric::Shards(state) => {
                let number = self.shards.get_or_create_owned(&with("state", state));
                number.set(i64::try_from(value).unwrap_or(i64::MAX));
            }
            ChannelMetric::Authorized => level(&self.authorized),
            ChannelMetric::RequestsWaiting => level(&self.waiting),
            ChannelMetric::RequestsUnderWay => level(&self.under_way),
            ChannelMetric::Gaps => count(&self.gaps, labels(own)),
            ChannelMetric::EventsDropped => count(&self.dropped, labels(own)),
            ChannelMetric::EventsStrange => count(&self.strange, labels(own)),
            ChannelMetric::Sessions(what) => count(&self.sessions, with("what", what)),
            ChannelMetric::Requests(kind, outcome) => {
                let which = labels([own[0], own[1], ("kind", kind), ("outcome", outcome)]);
                count(&self.requests, which);
            }
            ChannelMetric::Retries(kind) => count(&self.retries, with("kind", kind)),
            ChannelMetric::RateLimits(scope) => count(&self.limits, with("scope", scope)),
            ChannelMetric::Turns(priority) => count(&self.turns, with("priority", priority)),
            ChannelMetric::WaitedMs(priority) => {
                // Only this function writes the value, and a sum of waits never decreases.
                let waited = self.waited.get_or_create_owned(&with("priority", priority));
                waited.inner().store(super::seconds(value).to_bits(), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn account_metrics_are_scraped_with_labels() {
        let metrics = Metrics::default();
        let all = [
            (ChannelMetric::Connected, "connected", ""),
            (ChannelMetric::Shards("connected"), "shards", ",state=\"connected\""),
            (ChannelMetric::Authorized, "authorized", ""),
            (ChannelMetric::Sessions("begun"), "sessions_total", ",what=\"begun\""),
            (ChannelMetric::Gaps, "gaps_total", ""),
            (ChannelMetric::EventsDropped, "events_dropped_total", ""),
            (ChannelMetric::EventsStrange, "events_strange_total", ""),
            (
                ChannelMetric::Requests("create_message", "done"),
                "requests_total",
                ",kind=\"create_message\",outcome=\"done\"",
            ),
            (ChannelMetric::Retries("typing"), "request_retries_total", ",kind=\"typing\""),
            (ChannelMetric::RateLimits("shared"), "rate_limits_total", ",scope=\"shared\""),
            (ChannelMetric::Turns("final"), "request_turns_total", ",priority=\"final\""),
            (ChannelMetric::WaitedMs("final"), "request_wait_seconds_total", ",priority=\"final\""),
            (ChannelMetric::RequestsWaiting, "requests_waiting", ""),
            (ChannelMetric::RequestsUnderWay, "requests_under_way", ""),
        ];
        for _ in 0..2 {
            for ((metric, ..), value) in all.iter().zip(1..) {
                metrics.channel("discord", "main", metric, value);
            }
        }
        let text = metrics.render();
        for ((metric, name, labels), value) in all.iter().zip(1_u64..) {
            let value =
                if *name == "request_wait_seconds_total" { "0.012".to_owned() } else { value.to_string() };
            let line = format!("acp_channel_{name}{{channel=\"discord\",account=\"main\"{labels}}} {value}");
            assert!(text.contains(&format!("\n{line}\n")), "{metric:?}: {text}");
        }
        let series = text.lines().filter(|line| line.starts_with("acp_channel_")).count();
        assert_eq!(series, all.len());
    }
}
