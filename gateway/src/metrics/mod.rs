//! What the gateway counts and measures, in the words of its operators. `packaging/doc/metrics.md` explains each one.
//!
//! Below everything else: whoever sees something happen counts it here. What a look at the database or at a connection
//! can tell is not counted as it happens but read when somebody asks (see `crate::scrape`).

mod actors;
mod channels;
mod figure;
mod troubles;

pub(crate) use actors::{ActorWatch, Pulse};
pub use figure::Figure;
pub(crate) use troubles::Troubles;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Of what [`Metrics::render`] returns.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The value of `code` where nothing went wrong.
pub(crate) const OK: &str = "OK";

type Labels = Vec<(&'static str, String)>;
type Counts = Family<Labels, Counter>;
type Levels = Family<Labels, Gauge>;
type Times = Family<Labels, Histogram, fn() -> Histogram>;

/// Buckets from a hundredth of a second to an hour: queues, turns and deliveries.
fn long_times() -> Histogram {
    let steps =
        [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];
    Histogram::new(steps)
}

/// Buckets from a tenth of a millisecond to ten seconds: commits.
pub(crate) fn short_times() -> Histogram {
    let steps = [
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    ];
    Histogram::new(steps)
}

/// Buckets for how many things were done at once.
pub(crate) fn sizes() -> Histogram {
    Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0])
}

/// Everything that is counted. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    spawns: Counts,
    runs: Counts,
    queue_wait: Times,
    turn: Times,
    projection: Times,
    restarts: Counts,
    evictions: Counter,
    stale: Counts,
    stale_removed: Counts,
    routes: Counts,
    lookups: Counts,
    attempts: Counts,
    retries: Counts,
    rate_limits: Counts,
    rejections: Counts,
    line_faults: Counts,
    levels: Now,
    channels: channels::OfChannels,
    actors: ActorWatch,
    troubles: Troubles,
}

/// What is read when somebody asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Now {
    /// Sessions that are not closed, by state.
    pub(crate) sessions: Levels,
    /// Runs that wait for their turn.
    pub(crate) queued: Gauge,
    /// Messages that something is still to be done about.
    pub(crate) inbox: Gauge,
    /// Parts on their way into conversations.
    pub(crate) parts: Gauge,
    /// Active bindings whose session is closed or gone.
    pub(crate) stale: Gauge,
    /// Actors that live.
    pub(crate) actors: Gauge,
    /// Actors that have been at one thing for too long.
    pub(crate) stuck: Gauge,
    /// Whether the supervisor is connected.
    pub(crate) connected: Gauge,
    /// Connections to the supervisor so far.
    pub(crate) connections: Counter,
    /// Whether commits go through.
    pub(crate) writable: Gauge,
    /// Whether no look through the pages has found damage.
    pub(crate) sound: Gauge,
    /// Size of the database.
    pub(crate) database_bytes: Gauge,
    /// Size of its log.
    pub(crate) log_bytes: Gauge,
    /// Commits.
    pub(crate) commits: Counter,
    /// Transactions in them.
    pub(crate) transactions: Counter,
    /// Transactions that were rolled back alone.
    pub(crate) rollbacks: Counter,
    /// Groups that could not be committed.
    pub(crate) groups_lost: Counter,
    /// Checkpoints of the log.
    pub(crate) checkpoints: Counter,
}

/// Sets a counter that is kept elsewhere. It never goes back.
pub(crate) fn keep(counter: &Counter, value: u64) {
    counter.inner().fetch_max(value, Ordering::Relaxed);
}

impl Metrics {
    /// A fresh set. `group_sizes` and `commit_seconds` are what the store measures by itself.
    pub(crate) fn new(group_sizes: Histogram, commit_seconds: Histogram) -> Self {
        let times = || Times::new_with_constructor(long_times as fn() -> Histogram);
        let mut inner = Inner {
            registry: Registry::with_prefix("acp"),
            spawns: Counts::default(),
            runs: Counts::default(),
            queue_wait: times(),
            turn: times(),
            projection: times(),
            restarts: Counts::default(),
            evictions: Counter::default(),
            stale: Counts::default(),
            stale_removed: Counts::default(),
            routes: Counts::default(),
            lookups: Counts::default(),
            attempts: Counts::default(),
            retries: Counts::default(),
            rate_limits: Counts::default(),
            rejections: Counts::default(),
            line_faults: Counts::default(),
            levels: Now::default(),
            channels: channels::OfChannels::default(),
            actors: ActorWatch::default(),
            troubles: Troubles::default(),
        };
        inner.register_events();
        inner.register_levels();
        inner.channels.register(&mut inner.registry);
        inner.register_store(group_sizes, commit_seconds);
        Self { inner: Arc::new(inner) }
    }

    /// The text that a scrape gets.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.inner.registry);
        text
    }

    /// What is read when somebody asks.
    pub(crate) fn now(&self) -> &Now {
        &self.inner.levels
    }

    /// The actors that live, and what they are at.
    pub(crate) fn actors(&self) -> &ActorWatch {
        &self.inner.actors
    }

    /// What cannot go on until somebody repairs the database.
    pub(crate) fn troubles(&self) -> &Troubles {
        &self.inner.troubles
    }

    /// A session came to life with its agent ([`OK`]), or did not, with the code that says why.
    pub(crate) fn spawn(&self, backend: &str, code: &str) {
        self.inner.spawns.get_or_create_owned(&labels([("backend", backend), ("code", code)])).inc();
    }

    /// A run left the queue after that long.
    pub(crate) fn run_started(&self, backend: &str, waited_ms: u64) {
        let times = self.inner.queue_wait.get_or_create_owned(&labels([("backend", backend)]));
        times.observe(seconds(waited_ms));
    }

    /// A run ended: `completed`, `failed` or `cancelled`; after a turn of that long, if it had one.
    pub(crate) fn run_ended(&self, backend: &str, outcome: &str, code: &str, turn_ms: Option<u64>) {
        let which = labels([("backend", backend), ("outcome", outcome), ("code", code)]);
        self.inner.runs.get_or_create_owned(&which).inc();
        if let Some(turn_ms) = turn_ms {
            let which = labels([("backend", backend), ("outcome", outcome)]);
            self.inner.turn.get_or_create_owned(&which).observe(seconds(turn_ms));
        }
    }

    /// A part stands in a conversation, that long after the journal had it.
    pub(crate) fn delivered(&self, channel: &str, after_ms: u64) {
        self.inner.projection.get_or_create_owned(&labels([("channel", channel)])).observe(seconds(after_ms));
    }

    /// A part was tried once: `sent`, `rejected`, `again`, `limited` or `uncertain`.
    pub(crate) fn delivery_attempt(&self, channel: &str, outcome: &str) {
        let which = labels([("channel", channel), ("outcome", outcome)]);
        self.inner.attempts.get_or_create_owned(&which).inc();
        if outcome == "limited" {
            self.inner.rate_limits.get_or_create_owned(&labels([("channel", channel)])).inc();
        }
    }

    /// A part is tried once more.
    pub(crate) fn delivery_retry(&self, channel: &str) {
        self.inner.retries.get_or_create_owned(&labels([("channel", channel)])).inc();
    }

    /// A number that a channel keeps of one of its accounts.
    pub(crate) fn channel(&self, channel: &str, account: &str, figure: &Figure, value: u64) {
        self.inner.channels.set(channel, account, figure, value);
    }

    /// Counts a line of an agent that was `repaired` or `malformed`.
    pub(crate) fn line_fault(&self, backend: &str, outcome: &str) {
        self.inner
            .line_faults
            .get_or_create_owned(&labels([("backend", backend), ("outcome", outcome)]))
            .inc();
    }

    /// An actor was made again, and why.
    pub(crate) fn actor_restarted(&self, reason: &str) {
        self.inner.restarts.get_or_create_owned(&labels([("reason", reason)])).inc();
    }

    /// A quiet actor was dropped until somebody asks for it.
    pub(crate) fn actor_evicted(&self) {
        self.inner.evictions.inc();
    }

    /// Somebody spoke in a conversation whose binding leads nowhere.
    pub(crate) fn stale_binding(&self, channel: &str) {
        self.inner.stale.get_or_create_owned(&labels([("channel", channel)])).inc();
    }

    /// A binding that led nowhere was removed: `inbound` or `start`.
    pub(crate) fn stale_removed(&self, channel: &str, when: &str) {
        let which = labels([("channel", channel), ("when", when)]);
        self.inner.stale_removed.get_or_create_owned(&which).inc();
    }

    /// A destination was looked for, `inbound` or `outbound`: `bound`, `unbound` or `refused`, and why.
    pub(crate) fn route(&self, direction: &str, outcome: &str, reason: &str) {
        let which = labels([("direction", direction), ("outcome", outcome), ("reason", reason)]);
        self.inner.routes.get_or_create_owned(&which).inc();
    }

    /// A key was looked up for `verb`: `fresh`, `replay` or `conflict`.
    pub(crate) fn idempotency(&self, verb: &str, result: &str) {
        let which = labels([("verb", verb), ("result", result)]);
        self.inner.lookups.get_or_create_owned(&which).inc();
    }

    /// Something was turned away because `lane` was full.
    pub(crate) fn mailbox_full(&self, lane: &str) {
        self.inner.rejections.get_or_create_owned(&labels([("lane", lane)])).inc();
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(sizes(), short_times())
    }
}

impl Inner {
    fn register_events(&mut self) {
        let all = &mut self.registry;
        all.register("spawns", "Sessions that got their agent, or did not, by code", self.spawns.clone());
        all.register("runs", "Runs that ended, by outcome and code", self.runs.clone());
        let text = "Time from a run's acceptance to its turn";
        all.register_with_unit("run_queue_wait", text, Unit::Seconds, self.queue_wait.clone());
        let text = "Time from the beginning of a turn to its end";
        all.register_with_unit("run_turn", text, Unit::Seconds, self.turn.clone());
        let text = "Time from a journal row to the part that shows it in a conversation";
        all.register_with_unit("delivery_projection", text, Unit::Seconds, self.projection.clone());
        all.register("actor_restarts", "Actors that were made again, by reason", self.restarts.clone());
        all.register("actor_evictions", "Quiet actors that were dropped", self.evictions.clone());
        let text = "Messages in conversations whose binding leads nowhere";
        all.register("stale_binding_detections", text, self.stale.clone());
        let text = "Bindings that led nowhere and were removed";
        all.register("stale_binding_removals", text, self.stale_removed.clone());
        all.register("routes", "Destinations looked for, by outcome and reason", self.routes.clone());
        let text = "Idempotency keys looked up, by verb and result";
        all.register("idempotency_lookups", text, self.lookups.clone());
        let text = "Attempts to bring a part into a conversation, by outcome";
        all.register("delivery_attempts", text, self.attempts.clone());
        all.register("delivery_retries", "Attempts that were not a part's first", self.retries.clone());
        let text = "Attempts that a channel put off because of its rate limit";
        all.register("delivery_rate_limits", text, self.rate_limits.clone());
        let text = "Commands and messages turned away because a queue was full";
        all.register("mailbox_rejections", text, self.rejections.clone());
        let text = "Lines of agents that were repaired, or are no messages";
        all.register("agent_line_faults", text, self.line_faults.clone());
    }

    fn register_levels(&mut self) {
        let (all, now) = (&mut self.registry, &self.levels);
        all.register("sessions", "Sessions that are not closed, by state", now.sessions.clone());
        all.register("runs_queued", "Runs that wait for their turn", now.queued.clone());
        all.register("inbox_waiting", "Messages that are not settled", now.inbox.clone());
        all.register("delivery_parts_waiting", "Parts on their way", now.parts.clone());
        all.register("stale_bindings", "Active bindings that lead nowhere", now.stale.clone());
        all.register("actors", "Actors that live", now.actors.clone());
        all.register("actors_stuck", "Actors at one thing for 30 seconds or more", now.stuck.clone());
        all.register("supervisor_connected", "1 while the supervisor is connected", now.connected.clone());
        let text = "Connections made to the supervisor";
        all.register("supervisor_connections", text, now.connections.clone());
    }

    fn register_store(&mut self, group_sizes: Histogram, commit_seconds: Histogram) {
        let (all, now) = (&mut self.registry, &self.levels);
        all.register("store_writable", "1 while commits go through", now.writable.clone());
        now.sound.set(1);
        all.register("store_sound", "1 until damage is found", now.sound.clone());
        let text = "Size of the database's file";
        all.register_with_unit("store_database", text, Unit::Bytes, now.database_bytes.clone());
        all.register_with_unit("store_log", "Size of its log", Unit::Bytes, now.log_bytes.clone());
        all.register("store_commits", "Commits", now.commits.clone());
        all.register("store_transactions", "Transactions in commits", now.transactions.clone());
        all.register("store_rollbacks", "Transactions rolled back alone", now.rollbacks.clone());
        all.register("store_groups_lost", "Groups that could not be committed", now.groups_lost.clone());
        all.register("store_checkpoints", "Checkpoints of the log", now.checkpoints.clone());
        all.register("store_group_transactions", "Transactions in each commit", group_sizes);
        let text = "Time that a commit took, its transactions included";
        all.register_with_unit("store_commit", text, Unit::Seconds, commit_seconds);
    }
}

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}
