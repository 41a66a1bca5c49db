//! Metrics of the gateway. `docs/manual/metrics.md` explains each one.
//!
//! Used by all other modules: events are counted where they happen. Values that can be read from the database
//! or a connection are read at scrape time (see `crate::ops::metrics_endpoint`).

mod actors;
mod channel_metric;
mod channels;
mod stalled;
pub(crate) mod transitions;

pub(crate) use actors::{ActorHeartbeat, ActorWatch};
pub use channel_metric::ChannelMetric;
pub(crate) use stalled::BlockedItems;

use acp_store::histograms;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Content type of the text from [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Value of the label `code` for success.
pub(crate) const OK: &str = "OK";

/// Time that one operation of an actor may take before the actor counts as stuck.
pub(crate) const STUCK: Duration = Duration::from_secs(30);

type Labels = Vec<(&'static str, String)>;
type CounterFamily = Family<Labels, Counter>;
type GaugeFamily = Family<Labels, Gauge>;
type HistogramFamily = Family<Labels, Histogram, fn() -> Histogram>;

/// Creates a histogram from a hundredth of a second to an hour, for queues, turns and deliveries.
fn long_times() -> Histogram {
    let steps =
        [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];
    Histogram::new(steps)
}

/// All metrics of the gateway. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    spawns: CounterFamily,
    runs: CounterFamily,
    queue_wait: HistogramFamily,
    turn: HistogramFamily,
    projection: HistogramFamily,
    restarts: CounterFamily,
    evictions: Counter,
    stale: CounterFamily,
    stale_removed: CounterFamily,
    routes: CounterFamily,
    lookups: CounterFamily,
    attempts: CounterFamily,
    retries: CounterFamily,
    rate_limits: CounterFamily,
    rejections: CounterFamily,
    line_faults: CounterFamily,
    levels: ScrapedGauges,
    channels: channels::ChannelFamilies,
    actors: ActorWatch,
    blocked_items: BlockedItems,
}

/// Metrics that are read at scrape time.
#[derive(Debug, Clone, Default)]
pub(crate) struct ScrapedGauges {
    /// Sessions that are not closed, by state.
    pub(crate) sessions: GaugeFamily,
    /// Queued runs.
    pub(crate) queued: Gauge,
    /// Inbox messages that are not settled.
    pub(crate) inbox: Gauge,
    /// Undelivered parts.
    pub(crate) parts: Gauge,
    /// Active bindings to a closed or missing session.
    pub(crate) stale: Gauge,
    /// Live actors.
    pub(crate) actors: Gauge,
    /// Actors that are stuck on one input.
    pub(crate) stuck: Gauge,
    /// 1 if the supervisor is connected.
    pub(crate) connected: Gauge,
    /// Connections made to the supervisor.
    pub(crate) connections: Counter,
    /// 1 if commits succeed.
    pub(crate) writable: Gauge,
    /// 1 until an integrity check finds damage.
    pub(crate) sound: Gauge,
    /// Size of the database file, in bytes.
    pub(crate) database_bytes: Gauge,
    /// Size of the write-ahead log, in bytes.
    pub(crate) log_bytes: Gauge,
    /// Commits.
    pub(crate) commits: Counter,
    /// Transactions in commits.
    pub(crate) transactions: Counter,
    /// Transactions that were rolled back individually.
    pub(crate) rollbacks: Counter,
    /// Transaction groups that failed to commit.
    pub(crate) groups_lost: Counter,
    /// Checkpoints of the write-ahead log.
    pub(crate) checkpoints: Counter,
}

/// Copies a counter maintained elsewhere. The value never decreases.
pub(crate) fn set_total(counter: &Counter, value: u64) {
    counter.inner().fetch_max(value, Ordering::Relaxed);
}

impl Metrics {
    /// Creates all metrics. `group_sizes` and `commit_seconds` are histograms that the store fills.
    pub(crate) fn new(group_sizes: Histogram, commit_seconds: Histogram) -> Self {
        let times = || HistogramFamily::new_with_constructor(long_times as fn() -> Histogram);
        let mut inner = Inner {
            registry: Registry::with_prefix("acp"),
            spawns: CounterFamily::default(),
            runs: CounterFamily::default(),
            queue_wait: times(),
            turn: times(),
            projection: times(),
            restarts: CounterFamily::default(),
            evictions: Counter::default(),
            stale: CounterFamily::default(),
            stale_removed: CounterFamily::default(),
            routes: CounterFamily::default(),
            lookups: CounterFamily::default(),
            attempts: CounterFamily::default(),
            retries: CounterFamily::default(),
            rate_limits: CounterFamily::default(),
            rejections: CounterFamily::default(),
            line_faults: CounterFamily::default(),
            levels: ScrapedGauges::default(),
            channels: channels::ChannelFamilies::default(),
            actors: ActorWatch::default(),
            blocked_items: BlockedItems::default(),
        };
        inner.register_events();
        inner.register_levels();
        inner.channels.register(&mut inner.registry);
        inner.register_store(group_sizes, commit_seconds);
        Self { inner: Arc::new(inner) }
    }

    /// Returns the text for a scrape.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.inner.registry);
        text
    }

    /// Returns the metrics that are set at scrape time.
    pub(crate) fn gauges(&self) -> &ScrapedGauges {
        &self.inner.levels
    }

    /// Returns the watchdog of actors.
    pub(crate) fn actors(&self) -> &ActorWatch {
        &self.inner.actors
    }

    /// Returns the failures that persist until the database is repaired.
    pub(crate) fn blocked_items(&self) -> &BlockedItems {
        &self.inner.blocked_items
    }

    /// Counts the opening of a session by its agent: [`OK`], or the error code.
    pub(crate) fn spawn(&self, backend: &str, code: &str) {
        self.inner.spawns.get_or_create_owned(&labels([("backend", backend), ("code", code)])).inc();
    }

    /// Records the time that a run waited in the queue.
    pub(crate) fn run_started(&self, backend: &str, waited_ms: u64) {
        let times = self.inner.queue_wait.get_or_create_owned(&labels([("backend", backend)]));
        times.observe(seconds(waited_ms));
    }

    /// Counts an ended run: `completed`, `failed` or `cancelled`. Records the duration of its turn, if it had
    /// one.
    pub(crate) fn run_ended(&self, backend: &str, outcome: &str, code: &str, turn_ms: Option<u64>) {
        let which = labels([("backend", backend), ("outcome", outcome), ("code", code)]);
        self.inner.runs.get_or_create_owned(&which).inc();
        if let Some(turn_ms) = turn_ms {
            let which = labels([("backend", backend), ("outcome", outcome)]);
            self.inner.turn.get_or_create_owned(&which).observe(seconds(turn_ms));
        }
    }

    /// Records the time from a journal row to the delivery of its part.
    pub(crate) fn delivered(&self, channel: &str, after_ms: u64) {
        self.inner.projection.get_or_create_owned(&labels([("channel", channel)])).observe(seconds(after_ms));
    }

    /// Counts an attempt to deliver a part: `sent`, `rejected`, `again`, `limited` or `uncertain`.
    pub(crate) fn delivery_attempt(&self, channel: &str, outcome: &str) {
        let which = labels([("channel", channel), ("outcome", outcome)]);
        self.inner.attempts.get_or_create_owned(&which).inc();
        if outcome == "limited" {
            self.inner.rate_limits.get_or_create_owned(&labels([("channel", channel)])).inc();
        }
    }

    /// Counts a retry of a delivery.
    pub(crate) fn delivery_retry(&self, channel: &str) {
        self.inner.retries.get_or_create_owned(&labels([("channel", channel)])).inc();
    }

    /// Sets a metric reported by a channel for one of its accounts.
    pub(crate) fn channel(&self, channel: &str, account: &str, figure: &ChannelMetric, value: u64) {
        self.inner.channels.set(channel, account, figure, value);
    }

    /// Counts a line of an agent that was `repaired` or `malformed`.
    pub(crate) fn line_fault(&self, backend: &str, outcome: &str) {
        self.inner
            .line_faults
            .get_or_create_owned(&labels([("backend", backend), ("outcome", outcome)]))
            .inc();
    }

    /// Counts the restart of an actor, by reason.
    pub(crate) fn actor_restarted(&self, reason: &str) {
        self.inner.restarts.get_or_create_owned(&labels([("reason", reason)])).inc();
    }

    /// Counts an idle actor that was dropped until its next use.
    pub(crate) fn actor_evicted(&self) {
        self.inner.evictions.inc();
    }

    /// Counts a message in a conversation with a stale binding.
    pub(crate) fn stale_binding(&self, channel: &str) {
        self.inner.stale.get_or_create_owned(&labels([("channel", channel)])).inc();
    }

    /// Counts the removal of a stale binding: `inbound` or `start`.
    pub(crate) fn stale_removed(&self, channel: &str, when: &str) {
        let which = labels([("channel", channel), ("when", when)]);
        self.inner.stale_removed.get_or_create_owned(&which).inc();
    }

    /// Counts a route lookup, `inbound` or `outbound`: `bound`, `unbound` or `refused`, with the reason.
    pub(crate) fn route(&self, direction: &str, outcome: &str, reason: &str) {
        let which = labels([("direction", direction), ("outcome", outcome), ("reason", reason)]);
        self.inner.routes.get_or_create_owned(&which).inc();
    }

    /// Counts a lookup of an idempotency key for `verb`: `fresh`, `replay` or `conflict`.
    pub(crate) fn idempotency(&self, verb: &str, result: &str) {
        let which = labels([("verb", verb), ("result", result)]);
        self.inner.lookups.get_or_create_owned(&which).inc();
    }

    /// Counts a command or message that a full queue refused.
    pub(crate) fn mailbox_full(&self, lane: &str) {
        self.inner.rejections.get_or_create_owned(&labels([("lane", lane)])).inc();
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(histograms::sizes(), histograms::short_times())
    }
}

impl Inner {
    fn register_events(&mut self) {
        let all = &mut self.registry;
        all.register("spawns", "Spawns of sessions, by result code", self.spawns.clone());
        all.register("runs", "Ended runs, by outcome and code", self.runs.clone());
        let text = "Time from the acceptance of a run to its turn";
        all.register_with_unit("run_queue_wait", text, Unit::Seconds, self.queue_wait.clone());
        let text = "Duration of turns";
        all.register_with_unit("run_turn", text, Unit::Seconds, self.turn.clone());
        let text = "Time from a journal row to the part that shows it in a conversation";
        all.register_with_unit("delivery_projection", text, Unit::Seconds, self.projection.clone());
        all.register("actor_restarts", "Rebuilt actors, by reason", self.restarts.clone());
        all.register("actor_evictions", "Idle actors that were dropped", self.evictions.clone());
        let text = "Messages in conversations with a stale binding";
        all.register("stale_binding_detections", text, self.stale.clone());
        let text = "Stale bindings that were removed";
        all.register("stale_binding_removals", text, self.stale_removed.clone());
        all.register("routes", "Routing decisions, by outcome and reason", self.routes.clone());
        let text = "Lookups of idempotency keys, by verb and result";
        all.register("idempotency_lookups", text, self.lookups.clone());
        let text = "Attempts to send a part to a conversation, by outcome";
        all.register("delivery_attempts", text, self.attempts.clone());
        all.register("delivery_retries", "Repeated attempts to send a part", self.retries.clone());
        let text = "Attempts deferred by a rate limit of the channel";
        all.register("delivery_rate_limits", text, self.rate_limits.clone());
        let text = "Commands and messages refused because a queue was full";
        all.register("mailbox_rejections", text, self.rejections.clone());
        let text = "Output lines of agents that were repaired or are not messages";
        all.register("agent_line_faults", text, self.line_faults.clone());
    }

    fn register_levels(&mut self) {
        let (all, now) = (&mut self.registry, &self.levels);
        all.register("sessions", "Sessions that are not closed, by state", now.sessions.clone());
        all.register("runs_queued", "Queued runs", now.queued.clone());
        all.register("inbox_waiting", "Received messages without an outcome", now.inbox.clone());
        all.register("delivery_parts_waiting", "Parts that are not sent yet", now.parts.clone());
        all.register("stale_bindings", "Active bindings that are stale", now.stale.clone());
        all.register("actors", "Live actors", now.actors.clone());
        all.register("actors_stuck", "Actors busy with one step for 30 seconds or more", now.stuck.clone());
        all.register("supervisor_connected", "1 while the supervisor is connected", now.connected.clone());
        let text = "Connections made to the supervisor";
        all.register("supervisor_connections", text, now.connections.clone());
    }

    fn register_store(&mut self, group_sizes: Histogram, commit_seconds: Histogram) {
        let (all, now) = (&mut self.registry, &self.levels);
        all.register("store_writable", "1 while commits succeed", now.writable.clone());
        now.sound.set(1);
        all.register("store_sound", "1 until damage is found", now.sound.clone());
        let text = "Size of the database file";
        all.register_with_unit("store_database", text, Unit::Bytes, now.database_bytes.clone());
        all.register_with_unit(
            "store_log",
            "Size of the write-ahead log",
            Unit::Bytes,
            now.log_bytes.clone(),
        );
        all.register("store_commits", "Commits", now.commits.clone());
        all.register("store_transactions", "Transactions in commits", now.transactions.clone());
        all.register("store_rollbacks", "Transactions rolled back alone", now.rollbacks.clone());
        all.register("store_groups_lost", "Group commits that failed", now.groups_lost.clone());
        all.register("store_checkpoints", "Checkpoints of the write-ahead log", now.checkpoints.clone());
        all.register("store_group_transactions", "Number of transactions per commit", group_sizes);
        let text = "Duration of commits, including their transactions";
        all.register_with_unit("store_commit", text, Unit::Seconds, commit_seconds);
    }
}

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}
