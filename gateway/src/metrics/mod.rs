//! Metrics of the gateway. `docs/manual/metrics.md` explains each one.
//!
//! Used by all other modules: events are counted where they happen. Values that can be read from the database
//! or a connection are read at scrape time (see `crate::ops::metrics_endpoint`).

mod actors;
mod channel_metric;
mod channels;
mod clients;
mod initial;
mod listeners;
mod stalled;
mod supervisor;
pub(crate) mod transitions;

pub(crate) use actors::{ActorHeartbeat, ActorWatch};
pub use channel_metric::ChannelMetric;
pub(crate) use stalled::BlockedItems;

use acp_core::runtime::direct;
use acp_store::histograms;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};
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
    spawn_refusals: CounterFamily,
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
    journal_pruned: Counter,
    journal_last_prune: Gauge,
    levels: ScrapedGauges,
    listeners: listeners::ListenerFamilies,
    clients: clients::ClientFamilies,
    channels: channels::ChannelFamilies,
    supervisor: supervisor::SupervisorFamilies,
    actors: ActorWatch,
    blocked_items: BlockedItems,
}

/// Metrics that are read at scrape time.
#[derive(Debug, Clone)]
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
    /// 1 for each host with a connected supervisor.
    pub(crate) hosts: GaugeFamily,
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
    /// Free space on the disk of the state directory, in bytes.
    pub(crate) disk_free_bytes: Gauge,
    /// Size of the disk of the state directory, in bytes.
    pub(crate) disk_size_bytes: Gauge,
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
        let mut registry = Registry::with_prefix("acp");
        let all = &mut registry;
        all.register("store_group_transactions", "Number of transactions per commit", group_sizes);
        let text = "Duration of commits, including their transactions";
        all.register_with_unit("store_commit", text, Unit::Seconds, commit_seconds);
        let inner = Inner {
            spawns: add(all, "spawns", "Spawns of sessions, by result code"),
            spawn_refusals: add(
                all,
                "spawn_refusals",
                "Starts of agents that the supervisor refused, by its code",
            ),
            runs: add(all, "runs", "Ended runs, by outcome and code"),
            queue_wait: add_times(all, "run_queue_wait", "Time from the acceptance of a run to its turn"),
            turn: add_times(all, "run_turn", "Duration of turns"),
            projection: add_times(
                all,
                "delivery_projection",
                "Time from a journal row to the part that shows it in a conversation",
            ),
            restarts: add(all, "actor_restarts", "Rebuilt actors, by reason"),
            evictions: add(all, "actor_evictions", "Idle actors that were dropped"),
            stale: add(all, "stale_binding_detections", "Messages in conversations with a stale binding"),
            stale_removed: add(all, "stale_binding_removals", "Stale bindings that were removed"),
            routes: add(all, "routes", "Routing decisions, by outcome and reason"),
            lookups: add(all, "idempotency_lookups", "Lookups of idempotency keys, by verb and result"),
            attempts: add(all, "delivery_attempts", "Attempts to send a part to a conversation, by outcome"),
            retries: add(all, "delivery_retries", "Repeated attempts to send a part"),
            rate_limits: add(all, "delivery_rate_limits", "Attempts deferred by a rate limit of the channel"),
            rejections: add(
                all,
                "mailbox_rejections",
                "Commands and messages refused because a queue was full",
            ),
            line_faults: add(
                all,
                "agent_line_faults",
                "Output lines of agents that were repaired or are not messages",
            ),
            journal_pruned: add(all, "journal_pruned_rows", "Rows of the journal that retention deleted"),
            journal_last_prune: add_seconds(
                all,
                "journal_last_prune_timestamp",
                "Time of the last pass of retention over the journal",
            ),
            levels: ScrapedGauges::register(all),
            listeners: listeners::ListenerFamilies::register(all),
            clients: clients::ClientFamilies::register(all),
            channels: channels::ChannelFamilies::register(all),
            supervisor: supervisor::SupervisorFamilies::register(all),
            actors: ActorWatch::default(),
            blocked_items: BlockedItems::default(),
            registry,
        };
        inner.levels.sound.set(1);
        let metrics = Self { inner: Arc::new(inner) };
        metrics.create_initial(direct::ID);
        metrics
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
        count(&self.inner.spawns, [("backend", backend), ("code", code)]);
    }

    /// Counts a start of an agent that the supervisor refused with this code.
    pub(crate) fn spawn_refused(&self, backend: &str, code: &str) {
        count(&self.inner.spawn_refusals, [("backend", backend), ("code", code)]);
    }

    /// Records the time that a run waited in the queue.
    pub(crate) fn run_started(&self, backend: &str, waited_ms: u64) {
        observe(&self.inner.queue_wait, [("backend", backend)], waited_ms);
    }

    /// Counts an ended run: `completed`, `failed` or `cancelled`. Records the duration of its turn, if it had
    /// one.
    pub(crate) fn run_ended(&self, backend: &str, outcome: &str, code: &str, turn_ms: Option<u64>) {
        count(&self.inner.runs, [("backend", backend), ("outcome", outcome), ("code", code)]);
        if let Some(turn_ms) = turn_ms {
            observe(&self.inner.turn, [("backend", backend), ("outcome", outcome)], turn_ms);
        }
    }

    /// Records the time from a journal row to the delivery of its part.
    pub(crate) fn delivered(&self, channel: &str, after_ms: u64) {
        observe(&self.inner.projection, [("channel", channel)], after_ms);
    }

    /// Counts an attempt to deliver a part: `sent`, `rejected`, `again`, `limited` or `uncertain`.
    pub(crate) fn delivery_attempt(&self, channel: &str, outcome: &str) {
        count(&self.inner.attempts, [("channel", channel), ("outcome", outcome)]);
        if outcome == "limited" {
            count(&self.inner.rate_limits, [("channel", channel)]);
        }
    }

    /// Counts a retry of a delivery.
    pub(crate) fn delivery_retry(&self, channel: &str) {
        count(&self.inner.retries, [("channel", channel)]);
    }

    /// Sets a metric reported by a channel for one of its accounts.
    pub(crate) fn channel(&self, channel: &str, account: &str, figure: &ChannelMetric, value: u64) {
        self.inner.channels.set(channel, account, figure, value);
    }

    /// Counts a line of an agent that was `repaired` or `malformed`.
    pub(crate) fn line_fault(&self, backend: &str, outcome: &str) {
        count(&self.inner.line_faults, [("backend", backend), ("outcome", outcome)]);
    }

    /// Counts rows that a pass of retention deleted from the journal, and records the time of the pass.
    pub(crate) fn journal_pruned(&self, rows: u64, now_ms: u64) {
        self.inner.journal_pruned.inc_by(rows);
        self.inner.journal_last_prune.set(i64::try_from(now_ms / 1_000).unwrap_or(i64::MAX));
    }

    /// Counts the restart of an actor, by reason.
    pub(crate) fn actor_restarted(&self, reason: &str) {
        count(&self.inner.restarts, [("reason", reason)]);
    }

    /// Counts an idle actor that was dropped until its next use.
    pub(crate) fn actor_evicted(&self) {
        self.inner.evictions.inc();
    }

    /// Counts a message in a conversation with a stale binding.
    pub(crate) fn stale_binding(&self, channel: &str) {
        count(&self.inner.stale, [("channel", channel)]);
    }

    /// Counts the removal of a stale binding: `inbound` or `start`.
    pub(crate) fn stale_removed(&self, channel: &str, when: &str) {
        count(&self.inner.stale_removed, [("channel", channel), ("when", when)]);
    }

    /// Counts a route lookup, `inbound` or `outbound`: `bound`, `unbound` or `refused`, with the reason.
    pub(crate) fn route(&self, direction: &str, outcome: &str, reason: &str) {
        count(&self.inner.routes, [("direction", direction), ("outcome", outcome), ("reason", reason)]);
    }

    /// Counts a lookup of an idempotency key for `verb`: `fresh`, `replay` or `conflict`.
    pub(crate) fn idempotency(&self, verb: &str, result: &str) {
        count(&self.inner.lookups, [("verb", verb), ("result", result)]);
    }

    /// Counts a command or message that a full queue refused.
    pub(crate) fn mailbox_full(&self, queue: &str) {
        count(&self.inner.rejections, [("queue", queue)]);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(histograms::sizes(), histograms::short_times())
    }
}

impl ScrapedGauges {
    fn register(all: &mut Registry) -> Self {
        Self {
            sessions: add(all, "sessions", "Sessions that are not closed, by state"),
            queued: add(all, "runs_queued", "Queued runs"),
            inbox: add(all, "inbox_waiting", "Received messages without an outcome"),
            parts: add(all, "delivery_parts_waiting", "Parts that are not sent yet"),
            stale: add(all, "stale_bindings", "Active bindings that are stale"),
            actors: add(all, "actors", "Live actors"),
            stuck: add(all, "actors_stuck", "Actors busy with one step for 30 seconds or more"),
            connected: add(all, "supervisor_connected", "1 while the supervisor is connected"),
            hosts: add(all, "host_connected", "1 while the supervisor of the host is connected"),
            connections: add(all, "supervisor_connections", "Connections made to the supervisor"),
            writable: add(all, "store_writable", "1 while commits succeed"),
            sound: add(all, "store_sound", "1 until damage is found"),
            database_bytes: add_bytes(all, "store_database", "Size of the database file"),
            log_bytes: add_bytes(all, "store_log", "Size of the write-ahead log"),
            disk_free_bytes: add_bytes(all, "disk_free", "Free space on the disk of the state directory"),
            disk_size_bytes: add_bytes(all, "disk_size", "Size of the disk of the state directory"),
            commits: add(all, "store_commits", "Commits"),
            transactions: add(all, "store_transactions", "Transactions in commits"),
            rollbacks: add(all, "store_rollbacks", "Transactions rolled back alone"),
            groups_lost: add(all, "store_groups_lost", "Group commits that failed"),
            checkpoints: add(all, "store_checkpoints", "Checkpoints of the write-ahead log"),
        }
    }
}

/// Registers a new metric under this name.
fn add<M: Metric + Clone + Default>(all: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    all.register(name, help, metric.clone());
    metric
}

fn add_times(all: &mut Registry, name: &str, help: &str) -> HistogramFamily {
    let metric = HistogramFamily::new_with_constructor(long_times);
    all.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

fn add_bytes(all: &mut Registry, name: &str, help: &str) -> Gauge {
    let metric = Gauge::default();
    all.register_with_unit(name, help, Unit::Bytes, metric.clone());
    metric
}

fn add_seconds(all: &mut Registry, name: &str, help: &str) -> Gauge {
    let metric = Gauge::default();
    all.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

/// Something open, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenCount(Gauge);

impl OpenCount {
    fn of(open: Gauge) -> Self {
        open.inc();
        Self(open)
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counts one event under these labels.
fn count<const N: usize>(family: &CounterFamily, pairs: [(&'static str, &str); N]) {
    family.get_or_create_owned(&labels(pairs)).inc();
}

/// Records a time under these labels.
fn observe<const N: usize>(family: &HistogramFamily, pairs: [(&'static str, &str); N], ms: u64) {
    family.get_or_create_owned(&labels(pairs)).observe(seconds(ms));
}

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}
