//! Series that exist from the start with the value 0. A rule over a series that appears with its first event would
//! miss that event: `rate` and `increase` need an earlier sample.

use super::{CounterFamily, HistogramFamily, Inner, Labels, Metrics, OK, labels};
use acp_core::backend::LineFault;
use acp_shared::codes::Code;
use acp_shared::protocol::RefusalCode;

/// Outcomes of an ended run.
const RUN_OUTCOMES: [&str; 3] = ["completed", "failed", "cancelled"];
/// Verbs of requests with an idempotency key.
const VERBS: [&str; 10] =
    ["spawn", "prompt", "cancel", "queued", "close", "release", "label", "new", "option", "permission"];
/// Results of a lookup of an idempotency key.
const LOOKUP_RESULTS: [&str; 3] = ["fresh", "replay", "conflict"];
/// Outcomes of an attempt to deliver a part.
const ATTEMPT_OUTCOMES: [&str; 6] = ["sent", "again", "limited", "uncertain", "files_refused", "rejected"];
/// Queues that can be full.
const QUEUES: [&str; 3] = ["mailbox", "urgent", "inbox"];
/// Reasons to rebuild an actor.
const RESTART_REASONS: [&str; 9] = [
    "commit_failed",
    "disk_full",
    "store_damaged",
    "store_unreadable",
    "store_missing",
    "store_gone",
    "store_read_only",
    "superseded",
    "panicked",
];
/// Routing decisions: direction, outcome, reason.
const ROUTES: [(&str, &str, &[&str]); 6] = [
    ("inbound", "bound", &["active-binding"]),
    ("inbound", "unbound", &["no-binding", "binding-ended"]),
    (
        "inbound",
        "refused",
        &[
            "binding-ending",
            "binding-expired",
            "binding-pending",
            "session-closed",
            "session-missing",
            "adapter-unavailable",
        ],
    ),
    ("outbound", "bound", &["single-active-binding", "requester-match", "requester-parent-match"]),
    ("outbound", "unbound", &["no-active-binding"]),
    (
        "outbound",
        "refused",
        &[
            "missing-target-session",
            "invalid-requester",
            "session-closed",
            "session-missing",
            "ambiguous-without-requester",
            "ambiguous-below-requester",
            "no-requester-match",
            "adapter-unavailable",
        ],
    ),
];
/// Listeners of the API.
const LISTENERS: [&str; 3] = ["unix", "tcp", "proxy"];
/// Refusals of the API: listener and reasons.
const API_REFUSALS: [(&str, &[&str]); 4] = [
    (
        "unix",
        &[
            "an agent",
            "another user",
            "too many connections to check",
            "environment unreadable in time",
            "too_many_connections",
        ],
    ),
    (
        "tcp",
        &[
            "foreign_host",
            "foreign_origin",
            "no_token",
            "bad_token",
            "revoked_token",
            "tls",
            "too_many_connections",
        ],
    ),
    ("proxy", &["foreign_host", "foreign_origin", "foreign_user", "no_name", "too_many_connections"]),
    ("any", &["scope", "agent"]),
];
/// Reasons for the end of an ACP client's connection.
const CLIENT_ENDS: [&str; 7] =
    ["deleted", "no_streams", "idle", "socket_closed", "revoked", "unread", "too_many"];

impl Metrics {
    /// Creates the series of the gateway itself and of this backend.
    pub(super) fn create_initial(&self, backend: &str) {
        let inner = &*self.inner;
        inner.create_backend(backend);
        for verb in VERBS {
            create(&inner.lookups, LOOKUP_RESULTS.map(|result| labels([("verb", verb), ("result", result)])));
        }
        create(&inner.rejections, QUEUES.map(|queue| labels([("queue", queue)])));
        create(&inner.restarts, RESTART_REASONS.map(|reason| labels([("reason", reason)])));
        for (direction, outcome, reasons) in ROUTES {
            let route =
                |reason: &&str| labels([("direction", direction), ("outcome", outcome), ("reason", reason)]);
            create(&inner.routes, reasons.iter().map(route));
        }
        for listener in LISTENERS {
            create(&inner.listeners.connections, [labels([("listener", listener)])]);
            drop(inner.listeners.open.get_or_create_owned(&labels([("listener", listener)])));
        }
        for (listener, reasons) in API_REFUSALS {
            let refusal = |reason: &&str| labels([("listener", listener), ("reason", reason)]);
            create(&inner.listeners.refusals, reasons.iter().map(refusal));
        }
        create(&inner.clients.resumes, ["stream", "session"].map(|of| labels([("of", of)])));
        create(&inner.clients.ends, CLIENT_ENDS.map(|reason| labels([("reason", reason)])));
    }

    /// Creates the series of a channel.
    pub(crate) fn create_channel(&self, channel: &str) {
        let inner = &*self.inner;
        let own = labels([("channel", channel)]);
        create_times(&inner.projection, [own.clone()]);
        for family in [&inner.retries, &inner.rate_limits, &inner.stale] {
            create(family, [own.clone()]);
        }
        let attempt = |outcome: &str| labels([("channel", channel), ("outcome", outcome)]);
        create(&inner.attempts, ATTEMPT_OUTCOMES.map(attempt));
        let removal = |when: &str| labels([("channel", channel), ("when", when)]);
        create(&inner.stale_removed, ["start", "inbound"].map(removal));
    }
}

impl Metrics {
    /// Creates the series of an account of a channel.
    pub(crate) fn create_account(&self, channel: &str, account: &str) {
        self.inner.channels.create_account(channel, account);
    }
}

impl Inner {
    fn create_backend(&self, backend: &str) {
        let code = |code: &str| labels([("backend", backend), ("code", code)]);
        create(&self.spawns, [OK].into_iter().chain(Code::ALL.map(Code::as_str)).map(code));
        create(&self.spawn_refusals, RefusalCode::ALL.map(|refusal| code(refusal.as_str())));
        let run =
            |outcome: &str, code: &str| labels([("backend", backend), ("outcome", outcome), ("code", code)]);
        create(&self.runs, [run("completed", OK), run("cancelled", OK)]);
        create(&self.runs, Code::ALL.map(|code| run("failed", code.as_str())));
        create_times(&self.queue_wait, [labels([("backend", backend)])]);
        let of = |outcome: &str| labels([("backend", backend), ("outcome", outcome)]);
        create_times(&self.turn, RUN_OUTCOMES.map(of));
        create(&self.line_faults, LineFault::ALL.map(|fault| of(fault.as_str())));
    }
}

fn create(family: &CounterFamily, all: impl IntoIterator<Item = Labels>) {
    for labels in all {
        drop(family.get_or_create_owned(&labels));
    }
}

fn create_times(family: &HistogramFamily, all: impl IntoIterator<Item = Labels>) {
    for labels in all {
        drop(family.get_or_create_owned(&labels));
    }
}
