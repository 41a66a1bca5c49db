//! Idle timeouts and maximum ages: computes the earliest one and its source.
//!
//! A *binding* may have an idle timeout and a maximum age; a *session* may have an idle timeout; the process
//! of an idle *agent* may be ended, while the session stays and continues with the next prompt. Running and
//! queued runs protect all of them: a busy session has no deadline. A timeout of 0 is off.
//! Source: seed 000 "TTL policy", design §6 "Bindings and delivery".

use crate::policy::TimeoutPolicy;
use crate::rows::BindingRow;
use acp_shared::ids::BindingId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Configured timeouts, in milliseconds; 0 is off. Each binding stores its own since creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Idle time after which a session is closed.
    pub session_ms: u64,
    /// Idle time after which the agent's process is ended; the session stays.
    pub runtime_ms: u64,
}

/// Kind of a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimeoutKind {
    /// Idle timeout of a binding.
    BindingIdle,
    /// Maximum age of a binding.
    BindingMaxAge,
    /// Idle timeout of the session.
    Session,
    /// Idle timeout of the agent's process.
    Runtime,
}

/// State of a session, as input for the timeouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeoutInput {
    /// True if a run is running or queued, or the agent is starting.
    pub busy: bool,
    /// True if the agent's process can be ended without loss: it runs, and the conversation is resumable.
    pub agent_may_end: bool,
    /// Time of the last activity of a person or the agent.
    pub last_activity_at_ms: u64,
    /// Active bindings of the session.
    pub bindings: Vec<BindingRow>,
}

/// Deadline of one timeout. The earliest deadline of a session is the effective one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Expiry {
    /// Time of the deadline, milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Kind of the timeout.
    pub source: TimeoutKind,
    /// Length of the timeout, in milliseconds.
    pub window_ms: u64,
    /// Binding of the timeout; `None` for timeouts of a session or process.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>)]
    pub binding_id: Option<BindingId>,
}

impl Timeouts {
    /// Returns the timeouts of a policy.
    pub fn of(ttl: &TimeoutPolicy) -> Self {
        Self { session_ms: ttl.session_ms.value.unwrap_or(0), runtime_ms: ttl.runtime_ms.value.unwrap_or(0) }
    }

    /// Returns the deadlines of all timeouts that are on, earliest first. Empty while the session is busy.
    pub fn all(&self, subject: &TimeoutInput) -> Vec<Expiry> {
        if subject.busy {
            return Vec::new();
        }
        let mut found: Vec<Expiry> = subject.bindings.iter().flat_map(of_binding).collect();
        found.extend(expiry(subject.last_activity_at_ms, self.session_ms, TimeoutKind::Session, None));
        if subject.agent_may_end {
            found.extend(expiry(subject.last_activity_at_ms, self.runtime_ms, TimeoutKind::Runtime, None));
        }
        found.sort_by_key(|expiry| (expiry.at_ms, expiry.source));
        found
    }

    /// Returns the effective deadline: the earliest one.
    pub fn effective(&self, subject: &TimeoutInput) -> Option<Expiry> {
        self.all(subject).into_iter().next()
    }
}

/// Returns the deadlines of one binding.
fn of_binding(row: &BindingRow) -> impl Iterator<Item = Expiry> + use<> {
    let id = Some(row.binding_id);
    let window = |since_ms, window_ms: Option<u64>, kind| expiry(since_ms, window_ms.unwrap_or(0), kind, id);
    let idle = window(row.last_activity_at_ms, row.idle_ms, TimeoutKind::BindingIdle);
    idle.into_iter().chain(window(row.bound_at_ms, row.max_age_ms, TimeoutKind::BindingMaxAge))
}

fn expiry(
    since_ms: u64,
    window_ms: u64,
    source: TimeoutKind,
    binding_id: Option<BindingId>,
) -> Option<Expiry> {
    (window_ms > 0).then(|| Expiry {
        at_ms: since_ms.saturating_add(window_ms),
        source,
        window_ms,
        binding_id,
    })
}

impl Expiry {
    /// Returns the reason of the end, for the conversation and the journal.
    pub fn reason(&self) -> String {
        let window = format_duration(self.window_ms);
        match self.source {
            TimeoutKind::BindingIdle => format!("no activity here for {window}, the idle timeout"),
            TimeoutKind::BindingMaxAge => format!("bound here for {window}, the maximum age"),
            TimeoutKind::Session => format!("session unused for {window}, the session timeout"),
            TimeoutKind::Runtime => format!("agent idle for {window}"),
        }
    }

    /// Describes for people what ends `when`, and the timeout.
    pub fn describe(&self, when: &str) -> String {
        let window = format_duration(self.window_ms);
        match self.source {
            TimeoutKind::BindingIdle => {
                format!("the binding ends {when} unless it is used (idle timeout, {window})")
            }
            TimeoutKind::BindingMaxAge => {
                format!("the binding ends {when}, used or not (maximum age, {window})")
            }
            TimeoutKind::Session => {
                format!("the session ends {when} unless it is used (idle timeout, {window})")
            }
            TimeoutKind::Runtime => format!(
                "the agent's process ends {when} unless it is used; the session stays (idle timeout, {window})"
            ),
        }
    }
}

/// Formats a duration for people: `1h30m`, `2d`, `45s`, `300ms`.
pub fn format_duration(ms: u64) -> String {
    let parts = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let mut left = ms;
    let mut out = String::new();
    for (unit, size) in parts {
        let count = left / size;
        left %= size;
        if count > 0 {
            out.push_str(&format!("{count}{unit}"));
        }
    }
    if out.is_empty() { "0s".to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(idle_ms: Option<u64>, max_age_ms: Option<u64>) -> BindingRow {
        let (bound_at_ms, last_activity_at_ms) = (1_000, 5_000);
        BindingRow { bound_at_ms, last_activity_at_ms, idle_ms, max_age_ms, ..crate::tests::binding() }
    }

    fn subject(bindings: Vec<BindingRow>) -> TimeoutInput {
        TimeoutInput { busy: false, agent_may_end: true, last_activity_at_ms: 6_000, bindings }
    }

    const fn windows(session_ms: u64, runtime_ms: u64) -> Timeouts {
        Timeouts { session_ms, runtime_ms }
    }

    /// The effective timeout is the minimum of all, with its kind; 0 is off.
    #[test]
    fn effective_timeout_is_earliest_with_source() {
        use TimeoutKind as S;
        let table = [
            ("all off", windows(0, 0), None, None, None),
            ("session alone", windows(100, 0), None, None, Some((6_100, S::Session))),
            ("runtime alone", windows(0, 100), None, None, Some((6_100, S::Runtime))),
            ("runtime before session", windows(200, 100), None, None, Some((6_100, S::Runtime))),
            ("session wins a tie", windows(100, 100), None, None, Some((6_100, S::Session))),
            ("idle", windows(0, 0), Some(50), None, Some((5_050, S::BindingIdle))),
            ("idle is off", windows(0, 0), Some(0), None, None),
            ("age", windows(0, 0), None, Some(4_200), Some((5_200, S::BindingMaxAge))),
            ("age is off", windows(0, 0), None, Some(0), None),
            ("idle before age", windows(0, 0), Some(100), Some(5_000), Some((5_100, S::BindingIdle))),
            ("age before idle", windows(0, 0), Some(5_000), Some(100), Some((1_100, S::BindingMaxAge))),
            ("all on", windows(900, 800), Some(700), Some(9_999), Some((5_700, S::BindingIdle))),
        ];
        for (name, windows, idle, age, want) in table {
            let found = windows.effective(&subject(vec![clock(idle, age)]));
            assert_eq!(found.map(|expiry| (expiry.at_ms, expiry.source)), want, "{name}");
        }
    }

    #[test]
    fn busy_session_has_no_timeouts() {
        let on = windows(1, 1);
        let busy = TimeoutInput { busy: true, ..subject(vec![clock(Some(1), Some(1))]) };
        assert_eq!(on.all(&busy), []);
        assert_eq!(on.all(&TimeoutInput { busy: false, ..busy }).len(), 4);
    }

    #[test]
    fn unresumable_agent_has_no_idle_timeout() {
        let on = windows(0, 1);
        assert_eq!(on.effective(&TimeoutInput { agent_may_end: false, ..subject(Vec::new()) }), None);
    }

    #[test]
    fn earliest_binding_timeout_is_named() {
        let (late, early) = (clock(Some(500), None), clock(Some(100), None));
        let want = Some(early.binding_id);
        let found = windows(0, 0).effective(&subject(vec![late, early]));
        assert_eq!(found.and_then(|expiry| expiry.binding_id), want);
    }

    #[test]
    fn maximum_timeout_does_not_overflow() {
        let found = windows(u64::MAX, 0).effective(&subject(Vec::new()));
        assert_eq!(found.map(|expiry| expiry.at_ms), Some(u64::MAX));
    }

    #[test]
    fn expiry_reason_names_the_limit() {
        let reason = |source, window_ms| Expiry { at_ms: 0, source, window_ms, binding_id: None }.reason();
        assert_eq!(reason(TimeoutKind::BindingIdle, 86_400_000), "no activity here for 1d, the idle timeout");
        assert_eq!(reason(TimeoutKind::BindingMaxAge, 5_400_000), "bound here for 1h30m, the maximum age");
        assert_eq!(reason(TimeoutKind::Session, 2_500), "session unused for 2s500ms, the session timeout");
        assert_eq!(reason(TimeoutKind::Runtime, 0), "agent idle for 0s");
    }
}
