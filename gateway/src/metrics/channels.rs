//! Metrics of channels connected to an external service. The channel maintains them; they are copied at
//! scrape time.

use super::{ChannelMetric, CounterFamily, GaugeFamily, Labels, labels, set_total};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::{AtomicU64, Ordering};

type SecondsFamily = Family<Labels, Counter<f64, AtomicU64>>;

/// Metrics by channel and account.
#[derive(Debug, Clone, Default)]
pub(super) struct ChannelFamilies {
    connected: GaugeFamily,
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
    pub(super) fn register(&self, all: &mut Registry) {
        let text = "1 while the account receives events";
        all.register("channel_connected", text, self.connected.clone());
        let text = "1 until the service refuses the account's token";
        all.register("channel_authorized", text, self.authorized.clone());
        let text = "Sessions with the service, by step";
        all.register("channel_sessions", text, self.sessions.clone());
        all.register("channel_gaps", "Gaps in the event stream", self.gaps.clone());
        all.register(
            "channel_events_dropped",
            "Events dropped because a queue was full",
            self.dropped.clone(),
        );
        all.register("channel_events_strange", "Events that could not be parsed", self.strange.clone());
        all.register("channel_requests", "Requests, by kind and outcome", self.requests.clone());
        all.register("channel_request_retries", "Repeated requests", self.retries.clone());
        all.register("channel_rate_limits", "Rate limit responses, by scope", self.limits.clone());
        all.register(
            "channel_request_turns",
            "Requests that left the queue, by priority",
            self.turns.clone(),
        );
        let text = "Total time that requests waited in the queue, by priority";
        all.register_with_unit("channel_request_wait", text, Unit::Seconds, self.waited.clone());
        all.register("channel_requests_waiting", "Queued requests", self.waiting.clone());
        all.register("channel_requests_under_way", "Requests in progress", self.under_way.clone());
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

    /// Complete scrape output of an account after two updates.
    #[test]
    fn every_figure_of_an_account_is_scraped_under_its_name() {
        let metrics = Metrics::default();
        let all = [
            (ChannelMetric::Connected, "channel_connected{channel=\"discord\",account=\"main\"} 1"),
            (ChannelMetric::Authorized, "channel_authorized{channel=\"discord\",account=\"main\"} 2"),
            (
                ChannelMetric::Sessions("begun"),
                "channel_sessions_total{channel=\"discord\",account=\"main\",what=\"begun\"} 3",
            ),
            (ChannelMetric::Gaps, "channel_gaps_total{channel=\"discord\",account=\"main\"} 4"),
            (
                ChannelMetric::EventsDropped,
                "channel_events_dropped_total{channel=\"discord\",account=\"main\"} 5",
            ),
            (
                ChannelMetric::EventsStrange,
                "channel_events_strange_total{channel=\"discord\",account=\"main\"} 6",
            ),
            (
                ChannelMetric::Requests("create_message", "done"),
                "channel_requests_total{channel=\"discord\",account=\"main\",kind=\"create_message\",outcome=\"done\"} 7",
            ),
            (
                ChannelMetric::Retries("typing"),
                "channel_request_retries_total{channel=\"discord\",account=\"main\",kind=\"typing\"} 8",
            ),
            (
                ChannelMetric::RateLimits("shared"),
                "channel_rate_limits_total{channel=\"discord\",account=\"main\",scope=\"shared\"} 9",
            ),
            (
                ChannelMetric::Turns("final"),
                "channel_request_turns_total{channel=\"discord\",account=\"main\",priority=\"final\"} 10",
            ),
            (
                ChannelMetric::WaitedMs("final"),
                "channel_request_wait_seconds_total{channel=\"discord\",account=\"main\",priority=\"final\"} 0.011",
            ),
            (
                ChannelMetric::RequestsWaiting,
                "channel_requests_waiting{channel=\"discord\",account=\"main\"} 12",
            ),
            (
                ChannelMetric::RequestsUnderWay,
                "channel_requests_under_way{channel=\"discord\",account=\"main\"} 13",
            ),
        ];
        for _ in 0..2 {
            for ((figure, _), value) in all.iter().zip(1..) {
                metrics.channel("discord", "main", figure, value);
            }
        }
        let text = metrics.render();
        for (figure, line) in &all {
            assert!(text.contains(&format!("\nacp_{line}\n")), "{figure:?}: {text}");
        }
        let series = text.lines().filter(|line| line.starts_with("acp_channel_")).count();
        assert_eq!(series, all.len());
    }
}
