//! How long what nobody uses lives: the effective minimum of all windows, and where it comes from.
//!
//! Three clocks can run out. A *binding* may have an idle window and a maximum age; a *session* may have a window
//! of its own; an *agent process* may be ended when it was idle, while its session stays and goes on with the next
//! prompt. What runs or waits protects all of them: a busy session has no deadline. A window of 0 is off.
//! Source: seed 000 "TTL policy", design §6 "Bindings and delivery".

use crate::core::policy::Ttl;
use crate::core::rows::BindingRow;
use acp_shared::ids::BindingId;
use serde::{Deserialize, Serialize};

/// The windows that configuration gives, in milliseconds; 0 is never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Windows {
    /// A session that nobody used this long is closed.
    pub(crate) session_ms: u64,
    /// An agent that had nothing to do this long is ended; its session stays.
    pub(crate) runtime_ms: u64,
    /// Idle window of a binding that has none of its own.
    pub(crate) binding_idle_ms: u64,
    /// Maximum age of a binding that has none of its own.
    pub(crate) binding_max_age_ms: u64,
}

/// Which window ends first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// The idle window of a binding.
    BindingIdle,
    /// The maximum age of a binding.
    BindingMaxAge,
    /// The session's own window.
    Session,
    /// The window of the agent's process.
    Runtime,
}

/// The clock of one binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BindingClock {
    /// Which one.
    pub(crate) binding_id: BindingId,
    /// When it began.
    pub(crate) bound_at_ms: u64,
    /// When somebody last spoke through it, or its session answered.
    pub(crate) last_activity_at_ms: u64,
    /// Its own idle window; `None` takes the configured one, 0 is off.
    pub(crate) idle_ms: Option<u64>,
    /// Its own maximum age, in the same way.
    pub(crate) max_age_ms: Option<u64>,
}

impl From<&BindingRow> for BindingClock {
    fn from(row: &BindingRow) -> Self {
        Self {
            binding_id: row.binding_id,
            bound_at_ms: row.bound_at_ms,
            last_activity_at_ms: row.last_activity_at_ms,
            idle_ms: row.idle_ms,
            max_age_ms: row.max_age_ms,
        }
    }
}

/// What is known of a session when its windows are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    /// Whether a run runs or waits, or the agent is being started.
    pub(crate) busy: bool,
    /// Whether its agent could be ended without a loss: it runs, and its conversation can be resumed.
    pub(crate) agent_may_end: bool,
    /// When somebody or the agent last said something.
    pub(crate) last_activity_at_ms: u64,
    /// Its active bindings.
    pub(crate) bindings: Vec<BindingClock>,
}

/// A window that will end: the effective one is the earliest of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Expiry {
    /// When, milliseconds since the Unix epoch.
    pub(crate) at_ms: u64,
    /// Which window.
    pub(crate) source: Source,
    /// How long that window is.
    pub(crate) window_ms: u64,
    /// Whose window it is, for those of bindings.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) binding_id: Option<BindingId>,
}

impl Windows {
    /// The windows that policy gives. Bindings carry their own since they were made.
    pub(crate) fn of(ttl: &Ttl) -> Self {
        Self {
            session_ms: ttl.session_ms.value.unwrap_or(0),
            runtime_ms: ttl.runtime_ms.value.unwrap_or(0),
            ..Self::default()
        }
    }

    /// Every window of a subject that is on, the earliest end first. None while it is busy.
    pub(crate) fn all(&self, subject: &Subject) -> Vec<Expiry> {
        if subject.busy {
            return Vec::new();
        }
        let mut found: Vec<Expiry> =
            subject.bindings.iter().flat_map(|clock| self.of_binding(clock)).collect();
        found.extend(expiry(subject.last_activity_at_ms, self.session_ms, Source::Session, None));
        if subject.agent_may_end {
            found.extend(expiry(subject.last_activity_at_ms, self.runtime_ms, Source::Runtime, None));
        }
        found.sort_by_key(|expiry| (expiry.at_ms, expiry.source));
        found
    }

    /// The effective window: the one that ends first, with its source.
    pub(crate) fn effective(&self, subject: &Subject) -> Option<Expiry> {
        self.all(subject).into_iter().next()
    }

    /// The windows of one binding that are on: its own, or else the configured ones.
    fn of_binding(&self, clock: &BindingClock) -> impl Iterator<Item = Expiry> + use<> {
        let idle_ms = clock.idle_ms.unwrap_or(self.binding_idle_ms);
        let max_age_ms = clock.max_age_ms.unwrap_or(self.binding_max_age_ms);
        let id = Some(clock.binding_id);
        let idle = expiry(clock.last_activity_at_ms, idle_ms, Source::BindingIdle, id);
        let max_age = expiry(clock.bound_at_ms, max_age_ms, Source::BindingMaxAge, id);
        idle.into_iter().chain(max_age)
    }
}

fn expiry(since_ms: u64, window_ms: u64, source: Source, binding_id: Option<BindingId>) -> Option<Expiry> {
    (window_ms > 0).then(|| Expiry {
        at_ms: since_ms.saturating_add(window_ms),
        source,
        window_ms,
        binding_id,
    })
}

impl Expiry {
    /// Why something ended, for the conversation and for the record.
    pub(crate) fn reason(&self) -> String {
        let window = span(self.window_ms);
        match self.source {
            Source::BindingIdle => format!("nothing was said here for {window}, the idle limit"),
            Source::BindingMaxAge => format!("it was bound here for {window}, the maximum age"),
            Source::Session => format!("it was not used for {window}, the limit of sessions"),
            Source::Runtime => format!("it had nothing to do for {window}"),
        }
    }
}

/// A time span for people: `1h30m`, `2d`, `45s`, `300ms`.
pub(crate) fn span(ms: u64) -> String {
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

    fn clock(idle_ms: Option<u64>, max_age_ms: Option<u64>) -> BindingClock {
        BindingClock {
            binding_id: BindingId::mint(),
            bound_at_ms: 1_000,
            last_activity_at_ms: 5_000,
            idle_ms,
            max_age_ms,
        }
    }

    fn subject(bindings: Vec<BindingClock>) -> Subject {
        Subject { busy: false, agent_may_end: true, last_activity_at_ms: 6_000, bindings }
    }

    fn windows(session_ms: u64, runtime_ms: u64, binding_idle_ms: u64, binding_max_age_ms: u64) -> Windows {
        Windows { session_ms, runtime_ms, binding_idle_ms, binding_max_age_ms }
    }

    /// The effective window is the minimum of all, and says which it is; 0 is off, a window of the binding's own
    /// goes before the configured one.
    #[test]
    fn d02_the_effective_window_is_the_earliest_with_its_source() {
        use Source as S;
        let table = [
            ("nothing is on", windows(0, 0, 0, 0), None, None, None),
            ("session alone", windows(100, 0, 0, 0), None, None, Some((6_100, S::Session))),
            ("runtime alone", windows(0, 100, 0, 0), None, None, Some((6_100, S::Runtime))),
            ("runtime before session", windows(200, 100, 0, 0), None, None, Some((6_100, S::Runtime))),
            ("session wins a tie", windows(100, 100, 0, 0), None, None, Some((6_100, S::Session))),
            ("configured idle", windows(0, 0, 100, 0), None, None, Some((5_100, S::BindingIdle))),
            ("own idle", windows(0, 0, 100, 0), Some(50), None, Some((5_050, S::BindingIdle))),
            ("own idle is off", windows(0, 0, 100, 0), Some(0), None, None),
            ("configured age", windows(0, 0, 0, 9_000), None, None, Some((10_000, S::BindingMaxAge))),
            ("own age", windows(0, 0, 0, 9_000), None, Some(4_200), Some((5_200, S::BindingMaxAge))),
            ("own age is off", windows(0, 0, 0, 9_000), None, Some(0), None),
            ("idle before age", windows(0, 0, 0, 0), Some(100), Some(5_000), Some((5_100, S::BindingIdle))),
            ("age before idle", windows(0, 0, 0, 0), Some(5_000), Some(100), Some((1_100, S::BindingMaxAge))),
            ("all on", windows(900, 800, 700, 0), None, Some(9_999), Some((5_700, S::BindingIdle))),
        ];
        for (name, windows, idle, age, want) in table {
            let found = windows.effective(&subject(vec![clock(idle, age)]));
            assert_eq!(found.map(|expiry| (expiry.at_ms, expiry.source)), want, "{name}");
        }
    }

    #[test]
    fn d11_what_runs_protects_every_window() {
        let on = windows(1, 1, 1, 1);
        let busy = Subject { busy: true, ..subject(vec![clock(Some(1), Some(1))]) };
        assert_eq!(on.all(&busy), []);
        assert_eq!(on.all(&Subject { busy: false, ..busy }).len(), 4);
    }

    #[test]
    fn an_agent_whose_conversation_would_be_lost_is_not_ended() {
        let on = windows(0, 1, 0, 0);
        assert_eq!(on.effective(&Subject { agent_may_end: false, ..subject(Vec::new()) }), None);
    }

    #[test]
    fn of_several_bindings_the_earliest_is_named() {
        let (late, early) = (clock(Some(500), None), clock(Some(100), None));
        let found = windows(0, 0, 0, 0).effective(&subject(vec![late, early]));
        assert_eq!(found.and_then(|expiry| expiry.binding_id), Some(early.binding_id));
    }

    #[test]
    fn a_window_without_end_never_comes() {
        let found = windows(u64::MAX, 0, 0, 0).effective(&subject(Vec::new()));
        assert_eq!(found.map(|expiry| expiry.at_ms), Some(u64::MAX));
    }

    #[test]
    fn d02_people_read_which_limit_it_was() {
        let say = |source, window_ms| Expiry { at_ms: 0, source, window_ms, binding_id: None }.reason();
        assert_eq!(say(Source::BindingIdle, 86_400_000), "nothing was said here for 1d, the idle limit");
        assert_eq!(say(Source::BindingMaxAge, 5_400_000), "it was bound here for 1h30m, the maximum age");
        assert_eq!(say(Source::Session, 2_500), "it was not used for 2s500ms, the limit of sessions");
        assert_eq!(say(Source::Runtime, 0), "it had nothing to do for 0s");
    }
}
