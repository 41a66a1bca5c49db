//! Agents that keep dying: how long the next start of one waits, and when it is not tried at all for a while.
//!
//! A crash is a start that failed, or an end that nobody had asked for of an agent that had run for less than
//! [`Limits::stable_ms`]. An orderly end is none, and a longer run wipes the slate clean. The first crash costs
//! nothing; from the second on the next start waits, twice as long each time, up to a limit; and
//! [`Limits::crashes_max`] of them within [`Limits::window_ms`] are a loop, which waits until the first of those has
//! left the window. After a whole window without a crash all is forgotten. The waits are exact: one gateway asks for one agent, there is no herd to scatter.
//!
//! All of it is in memory. A supervisor that was started anew knows of no crash, as it holds no agent; one that was
//! upgraded in place gets it handed over, as it does its agents (H14).

use crate::config::Config;
use crate::core::lease::Lease;
use acp_shared::ids::GatewayInstanceId;
use acp_shared::protocol::LeaseKind;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// How patient a supervisor is with an agent. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The wait after the second crash in a row; it doubles with each further one.
    pub base_ms: u64,
    /// The longest such wait.
    pub cap_ms: u64,
    /// Crashes are counted over this time.
    pub window_ms: u64,
    /// So many of them within the window are a loop; 0: none ever is.
    pub crashes_max: u64,
    /// An agent that ran for so long was well.
    pub stable_ms: u64,
}

impl Limits {
    /// As configured.
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

/// Which agent: the same argv under the same gateway.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// Whose.
    pub gateway: GatewayInstanceId,
    /// The hash of its argv.
    pub command_hash: String,
}

impl Agent {
    /// The agent of a lease; what an agent runs in a terminal may fail as it likes.
    #[must_use]
    pub fn of(lease: &Lease) -> Option<Self> {
        let command_hash = lease.command_hash.clone();
        (lease.kind == LeaseKind::Agent).then_some(Self { gateway: lease.gateway, command_hash })
    }
}

/// How one run of an agent went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It never ran.
    StartFailed,
    /// It ended, and nobody had asked for it.
    Died {
        /// After so long.
        ran_ms: u64,
    },
    /// It was asked to end.
    Closed {
        /// After so long.
        ran_ms: u64,
    },
}

/// An agent that is not started just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Its crashes in a row.
    pub crashes: u32,
    /// When it may be tried again, from now, in milliseconds.
    pub retry_after_ms: u64,
    /// It is a loop: the intensity limit is reached.
    pub looping: bool,
}

impl Held {
    /// What happened, and when it goes on.
    #[must_use]
    pub fn in_words(&self) -> String {
        let seconds = self.retry_after_ms.div_ceil(1_000);
        let what = if self.looping { ": a crash loop" } else { "" };
        format!(
            "crashed {} times in a row{what}; it is started again in {seconds} s at the earliest",
            self.crashes
        )
    }
}

/// Agents that are remembered for each gateway; the one that was well for the longest time is forgotten first.
const AGENTS_PER_GATEWAY_MAX: usize = 256;
/// Crashes of one agent whose times are kept, at most.
const KEPT_MAX: usize = 4_096;

/// What is known of every agent that crashed lately.
#[derive(Debug, Clone)]
pub struct Backoff {
    limits: Limits,
    crashes: BTreeMap<Agent, Crashes>,
}

/// What is known of one agent that crashed lately.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crashes {
    /// Without a good run in between.
    pub in_a_row: u32,
    /// When, on the supervisor's clock, oldest first: as many as make a loop.
    pub at_ms: VecDeque<u64>,
}

impl Backoff {
    /// Nothing has crashed yet.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self { limits, crashes: BTreeMap::new() }
    }

    /// Whether an agent may be started now.
    ///
    /// # Errors
    /// [`Held`]: it crashed too lately, or too often.
    pub fn may_start(&self, now_ms: u64, agent: &Agent) -> Result<(), Held> {
        let Some(crashes) = self.crashes.get(agent) else { return Ok(()) };
        let Some(last) = crashes.at_ms.back().filter(|at| !self.has_left(now_ms, **at)) else {
            return Ok(());
        };
        let recent = || crashes.at_ms.iter().filter(|at| !self.has_left(now_ms, **at));
        let looping = self.limits.crashes_max > 0 && recent().count() as u64 >= self.limits.crashes_max;
        // The window must hold one less than make a loop.
        let loop_ends =
            recent().next().filter(|_| looping).map_or(0, |at| at.saturating_add(self.limits.window_ms));
        let until = last.saturating_add(self.wait_ms(crashes.in_a_row)).max(loop_ends);
        if until <= now_ms {
            return Ok(());
        }
        Err(Held { crashes: crashes.in_a_row, retry_after_ms: until - now_ms, looping })
    }

    /// Takes note of how a run went.
    pub fn on(&mut self, now_ms: u64, agent: &Agent, outcome: Outcome) {
        let (crashed, ran_ms) = match outcome {
            Outcome::StartFailed => (true, 0),
            Outcome::Died { ran_ms } => (ran_ms < self.limits.stable_ms, ran_ms),
            Outcome::Closed { ran_ms } => (false, ran_ms),
        };
        if ran_ms >= self.limits.stable_ms {
            self.crashes.remove(agent);
        }
        if !crashed {
            return;
        }
        let keep = self.keep();
        let crashes = self.crashes.entry(agent.clone()).or_default();
        crashes.in_a_row = crashes.in_a_row.saturating_add(1);
        crashes.at_ms.push_back(now_ms);
        while crashes.at_ms.len() > keep {
            crashes.at_ms.pop_front();
        }
        self.forget(now_ms, agent.gateway);
    }

    /// The agents that are not started now, for people.
    pub fn held(&self, now_ms: u64) -> impl Iterator<Item = (&Agent, Held)> {
        self.crashes.keys().filter_map(move |agent| Some((agent, self.may_start(now_ms, agent).err()?)))
    }

    /// Everything that is known, for another image of the same supervisor.
    #[must_use]
    pub fn crashes(&self) -> Vec<(Agent, Crashes)> {
        self.crashes.iter().map(|(agent, crashes)| (agent.clone(), crashes.clone())).collect()
    }

    /// Takes what an earlier image knew, whatever its limits were.
    pub fn recall(&mut self, known: Vec<(Agent, Crashes)>) {
        let keep = self.keep();
        self.crashes.extend(known.into_iter().map(|(agent, mut crashes)| {
            crashes.at_ms.drain(..crashes.at_ms.len().saturating_sub(keep));
            (agent, crashes)
        }));
    }

    fn has_left(&self, now_ms: u64, at_ms: u64) -> bool {
        at_ms.saturating_add(self.limits.window_ms) <= now_ms
    }

    /// The wait after so many crashes in a row.
    fn wait_ms(&self, crashes: u32) -> u64 {
        let Some(doublings) = crashes.checked_sub(2) else { return 0 };
        let factor = 1u64.checked_shl(doublings).unwrap_or(u64::MAX);
        self.limits.base_ms.saturating_mul(factor).min(self.limits.cap_ms)
    }

    /// How many crashes of one agent are worth remembering: more of them change no answer.
    fn keep(&self) -> usize {
        usize::try_from(self.limits.crashes_max).unwrap_or(usize::MAX).clamp(1, KEPT_MAX)
    }

    fn forget(&mut self, now_ms: u64, gateway: GatewayInstanceId) {
        let window_ms = self.limits.window_ms;
        let lately = |c: &Crashes| c.at_ms.back().is_some_and(|at| at.saturating_add(window_ms) > now_ms);
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
    use super::*;
    use std::fmt::Write;

    const LIMITS: Limits =
        Limits { base_ms: 1_000, cap_ms: 60_000, window_ms: 300_000, crashes_max: 10, stable_ms: 60_000 };

    fn agent(command_hash: &str) -> Agent {
        static GATEWAY: std::sync::OnceLock<GatewayInstanceId> = std::sync::OnceLock::new();
        Agent { gateway: *GATEWAY.get_or_init(GatewayInstanceId::mint), command_hash: command_hash.into() }
    }

    /// An agent that dies at once is started again as soon as that is allowed, by a clock that only this test moves.
    fn table() -> String {
        let (mut backoff, agent) = (Backoff::new(LIMITS), agent("a"));
        let mut text = String::from("start     at s  waited s  crashes in a row  why it waited\n");
        let mut now_ms = 0;
        for start in 1..=16 {
            let held = backoff.may_start(now_ms, &agent).err();
            let (waited, crashes) = held.as_ref().map_or((0, 0), |h| (h.retry_after_ms, h.crashes));
            let why = match &held {
                None => "-",
                Some(held) if held.looping => "loop",
                Some(_) => "back-off",
            };
            now_ms += waited;
            assert_eq!(backoff.may_start(now_ms, &agent), Ok(()), "{start}");
            writeln!(
                text,
                "{start:>5}  {:>7.1}  {:>8.1}  {crashes:>16}  {why}",
                seconds(now_ms),
                seconds(waited)
            )
            .ok();
            now_ms += 100;
            backoff.on(now_ms, &agent, Outcome::Died { ran_ms: 100 });
        }
        text
    }

    fn seconds(ms: u64) -> f64 {
        std::time::Duration::from_millis(ms).as_secs_f64()
    }

    #[test]
    fn the_table_of_waits() {
        assert_eq!(table(), include_str!("backoff.table.txt"), "\n{}", table());
    }

    #[test]
    fn what_counts_as_a_crash() {
        for (name, outcomes, held) in [
            ("nothing happened", vec![], false),
            ("one crash costs nothing", vec![Outcome::StartFailed], false),
            ("two do", vec![Outcome::StartFailed, Outcome::Died { ran_ms: 5 }], true),
            ("orderly ends are none", vec![Outcome::Closed { ran_ms: 5 }; 20], false),
            (
                "an orderly end forgives nothing",
                vec![Outcome::StartFailed, Outcome::Closed { ran_ms: 5 }, Outcome::StartFailed],
                true,
            ),
            (
                "a long run forgives all",
                vec![Outcome::StartFailed, Outcome::Died { ran_ms: 60_000 }, Outcome::StartFailed],
                false,
            ),
            (
                "so does one that was closed",
                vec![Outcome::StartFailed, Outcome::Closed { ran_ms: 60_000 }, Outcome::StartFailed],
                false,
            ),
            ("just too short", vec![Outcome::StartFailed, Outcome::Died { ran_ms: 59_999 }], true),
        ] {
            let (mut backoff, agent) = (Backoff::new(LIMITS), agent("a"));
            for outcome in outcomes {
                backoff.on(7, &agent, outcome);
            }
            assert_eq!(backoff.may_start(8, &agent).is_err(), held, "{name}");
            assert_eq!(backoff.held(8).count(), usize::from(held), "{name}");
        }
    }

    #[test]
    fn agents_and_gateways_are_kept_apart() {
        let mut backoff = Backoff::new(LIMITS);
        let (a, b) = (agent("a"), agent("b"));
        let elsewhere = Agent { gateway: GatewayInstanceId::mint(), ..a.clone() };
        for _ in 0..3 {
            backoff.on(0, &a, Outcome::StartFailed);
        }
        assert!(backoff.may_start(1, &a).is_err());
        assert_eq!((backoff.may_start(1, &b), backoff.may_start(1, &elsewhere)), (Ok(()), Ok(())));
    }

    #[test]
    fn another_image_knows_what_this_one_knew() {
        let (mut backoff, agent) = (Backoff::new(LIMITS), agent("a"));
        for crash in 0..12 {
            backoff.on(crash, &agent, Outcome::StartFailed);
        }
        let told = serde_json::to_vec(&backoff.crashes()).unwrap_or_default();
        let recalled = |limits| {
            let mut next = Backoff::new(limits);
            next.recall(serde_json::from_slice(&told).unwrap_or_default());
            next
        };
        let held = backoff.may_start(13, &agent);
        assert!(held.is_err());
        assert_eq!(recalled(LIMITS).may_start(13, &agent), held);
        // With other limits it answers as if they had held from the beginning.
        let strict = Limits { crashes_max: 3, ..LIMITS };
        let mut from_the_beginning = Backoff::new(strict);
        for crash in 0..12 {
            from_the_beginning.on(crash, &agent, Outcome::StartFailed);
        }
        assert_eq!(recalled(strict).may_start(13, &agent), from_the_beginning.may_start(13, &agent));
    }

    #[test]
    fn it_can_be_switched_off_and_stays_small() {
        let none = Limits { base_ms: 0, crashes_max: 0, ..LIMITS };
        let mut backoff = Backoff::new(none);
        for crash in 0..1_000 {
            backoff.on(crash, &agent("a"), Outcome::StartFailed);
        }
        assert_eq!(backoff.may_start(1_000, &agent("a")), Ok(()));
        for number in 0..1_000 {
            backoff.on(1_000, &agent(&number.to_string()), Outcome::StartFailed);
        }
        assert_eq!(backoff.crashes.len(), AGENTS_PER_GATEWAY_MAX);
        backoff.on(10_000_000, &agent("z"), Outcome::StartFailed);
        assert_eq!(backoff.crashes.len(), 1, "what has left the window is forgotten");
    }
}
