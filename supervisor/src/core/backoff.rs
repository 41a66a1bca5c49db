//! Restart backoff of agents that crash repeatedly.
//!
//! A crash is a failed start, or an unrequested exit of an agent that had run for less than
//! [`CrashLimits::stable_ms`]. A requested exit is not a crash, and a longer run resets the counter. The first
//! crash causes no delay. From the second on the next start is delayed, twice as long each time, up to a
//! maximum. [`CrashLimits::crashes_max`] crashes within [`CrashLimits::window_ms`] are a crash loop: no start until the
//! oldest of them has left the window. After a whole window without a crash the record is dropped. The delays
//! have no jitter: each agent is started by one gateway only, so there is no thundering herd.
//!
//! All state is in memory. A restarted supervisor has no crash records, as it has no agents; an in-place
//! upgrade hands them over together with the agents (H14).

use crate::config::Config;
use crate::core::lease::Lease;
use acp_shared::ids::GatewayInstanceId;
use acp_shared::protocol::LeaseKind;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Limits of restarts. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashLimits {
    /// Delay after the second crash in a row; doubles with each further crash.
    pub base_ms: u64,
    /// Maximum delay.
    pub cap_ms: u64,
    /// Time window in which crashes are counted.
    pub window_ms: u64,
    /// Number of crashes within the window that make a crash loop; 0 disables loop detection.
    pub crashes_max: u64,
    /// Run time after which an agent counts as stable.
    pub stable_ms: u64,
}

impl CrashLimits {
    /// Returns the configured limits.
    #[must_use]
    pub const fn of(config: &Config) -> Self {
        Self {
            base_ms: config.crash_backoff_ms,
            cap_ms: config.crash_backoff_max_ms,
            window_ms: config.crash_window_ms,
            crashes_max: config.crashes_max,
            stable_ms: config.stable_after_ms,
        }
    }
}

/// Identity of an agent: gateway and argv hash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentKey {
    /// Gateway of the agent.
    pub gateway: GatewayInstanceId,
    /// Hash of the argv.
    pub command_hash: String,
}

impl AgentKey {
    /// Returns the agent of a lease; `None` for terminals, whose commands may fail without consequences.
    #[must_use]
    pub fn of(lease: &Lease) -> Option<Self> {
        let command_hash = lease.command_hash.clone();
        (lease.kind == LeaseKind::Agent).then_some(Self { gateway: lease.gateway, command_hash })
    }
}

/// Outcome of one run of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    /// The start failed.
    StartFailed,
    /// The agent exited without a request.
    Died {
        /// Run time in milliseconds.
        ran_ms: u64,
    },
    /// The agent was asked to exit.
    Closed {
        /// Run time in milliseconds.
        ran_ms: u64,
    },
}

/// Delay of an agent that may not be started now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartDelay {
    /// Number of crashes in a row.
    pub crashes: u32,
    /// Time until the next allowed start, in milliseconds.
    pub retry_after_ms: u64,
    /// True if the crash-loop limit is reached.
    pub looping: bool,
}

impl StartDelay {
    /// Describes the crashes and the time of the next start.
    #[must_use]
    pub fn describe(&self) -> String {
        let seconds = self.retry_after_ms.div_ceil(1_000);
        let what = if self.looping { ": a crash loop" } else { "" };
        format!(
            "crashed {} times in a row{what}; it is started again in {seconds} s at the earliest",
            self.crashes
        )
    }
}

/// Maximum number of agents remembered per gateway; the agent with the oldest last crash is dropped first.
const AGENTS_PER_GATEWAY_MAX: usize = 256;
/// Maximum number of crash times kept per agent.
const KEPT_MAX: usize = 4_096;

/// Crash records of all agents that crashed within the window.
#[derive(Debug, Clone)]
pub struct CrashBackoff {
    limits: CrashLimits,
    crashes: BTreeMap<AgentKey, CrashRecord>,
}

/// Crash record of one agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrashRecord {
    /// Number of crashes since the last stable run.
    pub in_a_row: u32,
    /// Times of the latest crashes on the supervisor's clock, oldest first, at most as many as make a loop.
    pub at_ms: VecDeque<u64>,
}

impl CrashBackoff {
    /// Creates an empty record.
    #[must_use]
    pub const fn new(limits: CrashLimits) -> Self {
        Self { limits, crashes: BTreeMap::new() }
    }

    /// Checks whether an agent may be started now.
    ///
    /// # Errors
    /// [`StartDelay`] if the backoff or the crash-loop delay has not passed.
    pub fn may_start(&self, now_ms: u64, agent: &AgentKey) -> Result<(), StartDelay> {
        let Some(crashes) = self.crashes.get(agent) else { return Ok(()) };
        let Some(last) = crashes.at_ms.back().filter(|at| !self.has_left(now_ms, **at)) else {
            return Ok(());
        };
        let recent = || crashes.at_ms.iter().filter(|at| !self.has_left(now_ms, **at));
        let looping = self.limits.crashes_max > 0 && recent().count() as u64 >= self.limits.crashes_max;
        // The loop ends when the oldest counted crash leaves the window.
        let loop_ends =
            recent().next().filter(|_| looping).map_or(0, |at| at.saturating_add(self.limits.window_ms));
        let until = last.saturating_add(self.wait_ms(crashes.in_a_row)).max(loop_ends);
        if until <= now_ms {
            return Ok(());
        }
        Err(StartDelay { crashes: crashes.in_a_row, retry_after_ms: until - now_ms, looping })
    }

    /// Records the outcome of a run.
    pub fn record_run(&mut self, now_ms: u64, agent: &AgentKey, outcome: RunOutcome) {
        let (crashed, ran_ms) = match outcome {
            RunOutcome::StartFailed => (true, 0),
            RunOutcome::Died { ran_ms } => (ran_ms < self.limits.stable_ms, ran_ms),
            RunOutcome::Closed { ran_ms } => (false, ran_ms),
        };
        if ran_ms >= self.limits.stable_ms {
            self.crashes.remove(agent);
        }
        if !crashed {
            return;
        }
        let keep = self.crash_times_max();
        let crashes = self.crashes.entry(agent.clone()).or_default();
        crashes.in_a_row = crashes.in_a_row.saturating_add(1);
        crashes.at_ms.push_back(now_ms);
        while crashes.at_ms.len() > keep {
            crashes.at_ms.pop_front();
        }
        self.forget(now_ms, agent.gateway);
    }

    /// Iterates over the agents that may not be started now, for reports.
    pub fn delayed_agents(&self, now_ms: u64) -> impl Iterator<Item = (&AgentKey, StartDelay)> {
        self.crashes.keys().filter_map(move |agent| Some((agent, self.may_start(now_ms, agent).err()?)))
    }

    /// Returns all records, for handover to the next program image.
    #[must_use]
    pub fn crashes(&self) -> Vec<(AgentKey, CrashRecord)> {
        self.crashes.iter().map(|(agent, crashes)| (agent.clone(), crashes.clone())).collect()
    }

    /// Imports the records of an earlier program image, trimmed to the current limits.
    pub fn restore(&mut self, known: Vec<(AgentKey, CrashRecord)>) {
        let keep = self.crash_times_max();
        self.crashes.extend(known.into_iter().map(|(agent, mut crashes)| {
            crashes.at_ms.drain(..crashes.at_ms.len().saturating_sub(keep));
            (agent, crashes)
        }));
    }

    fn has_left(&self, now_ms: u64, at_ms: u64) -> bool {
        at_ms.saturating_add(self.limits.window_ms) <= now_ms
    }

    /// Returns the delay after this many crashes in a row.
    fn wait_ms(&self, crashes: u32) -> u64 {
        let Some(doublings) = crashes.checked_sub(2) else { return 0 };
        let factor = 1u64.checked_shl(doublings).unwrap_or(u64::MAX);
        self.limits.base_ms.saturating_mul(factor).min(self.limits.cap_ms)
    }

    /// Number of crash times to keep per agent: more of them would not change any decision.
    fn crash_times_max(&self) -> usize {
        usize::try_from(self.limits.crashes_max).unwrap_or(usize::MAX).clamp(1, KEPT_MAX)
    }

    fn forget(&mut self, now_ms: u64, gateway: GatewayInstanceId) {
        let window_ms = self.limits.window_ms;
        let lately = |c: &CrashRecord| c.at_ms.back().is_some_and(|at| at.saturating_add(window_ms) > now_ms);
        self.crashes.retain(|_, crashes| lately(crashes));
        let of_gateway = || self.crashes.iter().filter(|(agent, _)| agent.gateway == gateway);
        if of_gateway().count() <= AGENTS_PER_GATEWAY_MAX {
            return;
        }
        let oldest =
            of_gateway().min_by_key(|(_, c)| c.at_ms.back().copied()).map(|(agent, _)| agent.clone());
        if let Some(agent) = oldest {
            self.crashes.remove(&agent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RunOutcome::{Closed, Died, StartFailed};
    use super::*;
    use std::fmt::Write;

    const LIMITS: CrashLimits = CrashLimits {
        base_ms: 1_000,
        cap_ms: 60_000,
        window_ms: 300_000,
        crashes_max: 10,
        stable_ms: 60_000,
    };

    fn agent(command_hash: &str) -> AgentKey {
        static GATEWAY: std::sync::OnceLock<GatewayInstanceId> = std::sync::OnceLock::new();
        AgentKey { gateway: *GATEWAY.get_or_init(GatewayInstanceId::mint), command_hash: command_hash.into() }
    }

    /// Table of the delays of an agent that always crashes at once.
    fn table() -> String {
        let (mut backoff, agent) = (CrashBackoff::new(LIMITS), agent("a"));
        let mut text = String::from("start     at s  waited s  crashes in a row  why it waited\n");
        let mut now_ms = 0;
        for start in 1..=16 {
            let delay = backoff.may_start(now_ms, &agent).err();
            let (waited, crashes) = delay.as_ref().map_or((0, 0), |h| (h.retry_after_ms, h.crashes));
            let why = match &delay {
                None => "-",
                Some(delay) if delay.looping => "loop",
                Some(_) => "back-off",
            };
            now_ms += waited;
            assert_eq!(backoff.may_start(now_ms, &agent), Ok(()), "{start}");
            let (at_s, waited_s) = (seconds(now_ms), seconds(waited));
            writeln!(text, "{start:>5}  {at_s:>7.1}  {waited_s:>8.1}  {crashes:>16}  {why}").ok();
            now_ms += 100;
            backoff.record_run(now_ms, &agent, Died { ran_ms: 100 });
        }
        text
    }

    fn seconds(ms: u64) -> f64 {
        std::time::Duration::from_millis(ms).as_secs_f64()
    }

    #[test]
    fn backoff_delays_match_table() {
        assert_eq!(table(), include_str!("backoff.table.txt"), "\n{}", table());
    }

    #[test]
    fn crashes_are_distinguished_from_orderly_ends() {
        for (name, outcomes, delay) in [
            ("no crash", vec![], false),
            ("one crash", vec![StartFailed], false),
            ("two crashes", vec![StartFailed, Died { ran_ms: 5 }], true),
            ("orderly ends", vec![Closed { ran_ms: 5 }; 20], false),
            ("orderly end between crashes", vec![StartFailed, Closed { ran_ms: 5 }, StartFailed], true),
            ("crash after a long run", vec![StartFailed, Died { ran_ms: 60_000 }, StartFailed], false),
            ("close after a long run", vec![StartFailed, Closed { ran_ms: 60_000 }, StartFailed], false),
            ("run just too short", vec![StartFailed, Died { ran_ms: 59_999 }], true),
        ] {
            let (mut backoff, agent) = (CrashBackoff::new(LIMITS), agent("a"));
            for outcome in outcomes {
                backoff.record_run(7, &agent, outcome);
            }
            assert_eq!(backoff.may_start(8, &agent).is_err(), delay, "{name}");
            assert_eq!(backoff.delayed_agents(8).count(), usize::from(delay), "{name}");
        }
    }

    #[test]
    fn agents_and_gateways_are_kept_apart() {
        let mut backoff = CrashBackoff::new(LIMITS);
        let (a, b) = (agent("a"), agent("b"));
        let elsewhere = AgentKey { gateway: GatewayInstanceId::mint(), ..a.clone() };
        for _ in 0..3 {
            backoff.record_run(0, &a, StartFailed);
        }
        assert!(backoff.may_start(1, &a).is_err());
        assert_eq!((backoff.may_start(1, &b), backoff.may_start(1, &elsewhere)), (Ok(()), Ok(())));
    }

    #[test]
    fn crash_counts_survive_handover() {
        let (mut backoff, agent) = (CrashBackoff::new(LIMITS), agent("a"));
        for crash in 0..12 {
            backoff.record_run(crash, &agent, StartFailed);
        }
        let exported = serde_json::to_vec(&backoff.crashes()).unwrap_or_default();
        let restored = |limits| {
            let mut next = CrashBackoff::new(limits);
            next.restore(serde_json::from_slice(&exported).unwrap_or_default());
            next
        };
        let delay = backoff.may_start(13, &agent);
        assert!(delay.is_err());
        assert_eq!(restored(LIMITS).may_start(13, &agent), delay);
        // With other limits the result is that of these limits from the start.
        let lower = CrashLimits { crashes_max: 3, ..LIMITS };
        let mut expected = CrashBackoff::new(lower);
        for crash in 0..12 {
            expected.record_run(crash, &agent, StartFailed);
        }
        assert_eq!(restored(lower).may_start(13, &agent), expected.may_start(13, &agent));
    }

    #[test]
    fn backoff_can_be_disabled_and_is_bounded() {
        let none = CrashLimits { base_ms: 0, crashes_max: 0, ..LIMITS };
        let mut backoff = CrashBackoff::new(none);
        for crash in 0..1_000 {
            backoff.record_run(crash, &agent("a"), StartFailed);
        }
        assert_eq!(backoff.may_start(1_000, &agent("a")), Ok(()));
        for number in 0..1_000 {
            backoff.record_run(1_000, &agent(&number.to_string()), StartFailed);
        }
        assert_eq!(backoff.crashes.len(), AGENTS_PER_GATEWAY_MAX);
        backoff.record_run(10_000_000, &agent("z"), StartFailed);
        assert_eq!(backoff.crashes.len(), 1, "crashes outside of the window are removed");
    }
}
