//! Escalation of signals, as a pure state machine. Time is passed in as milliseconds of a monotonic clock.
//!
//! `Held` (the adapter waits before exec) → `Running` → `Terming` (SIGTERM was sent) → `Killing` (SIGKILL was
//! sent, and is repeated) → `Over`. The machine never goes back: a second stop request changes nothing.

/// First pause between two rounds of SIGKILL, in milliseconds; it doubles up to [`PAUSE_MAX_MS`].
const PAUSE_FIRST_MS: u64 = 10;
/// Maximum pause between two rounds of SIGKILL, in milliseconds.
const PAUSE_MAX_MS: u64 = 160;

/// Time limits of the steps, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Graces {
    /// From SIGTERM to SIGKILL.
    pub(crate) term_ms: u64,
    /// From the first SIGKILL until the wrapper gives up on survivors.
    pub(crate) sweep_ms: u64,
}

/// Event for the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// The adapter was released and calls exec now.
    Released,
    /// The wrapper received SIGTERM, or the supervisor is gone.
    Stop,
    /// The adapter ended.
    AdapterExited,
    /// No process of the tree is alive.
    TreeEmpty,
    /// Time passed, or something else woke the loop.
    Tick,
}

/// Action that follows from an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Wait,
    /// Send SIGTERM and SIGCONT to the whole tree.
    Term,
    /// Send SIGKILL to the whole tree.
    Kill,
    /// Send the last message and exit.
    Finish,
}

/// State of the escalation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The adapter is blocked before exec.
    Held,
    /// The adapter was released.
    Running,
    /// SIGTERM was sent.
    Terming {
        /// Time at which SIGKILL follows.
        until_ms: u64,
    },
    /// SIGKILL was sent.
    Killing {
        /// Time at which the wrapper gives up on survivors.
        until_ms: u64,
        /// Time at which SIGKILL is repeated.
        next_ms: u64,
        /// Pause after the next repetition.
        pause_ms: u64,
    },
    /// The escalation is finished.
    Over,
}

impl Phase {
    /// Returns the next state and the action for an event at `now_ms`.
    pub(crate) const fn on(self, input: Input, now_ms: u64, graces: Graces) -> (Self, Step) {
        match (self, input) {
            (Self::Over, _) => (self, Step::Wait),
            (_, Input::TreeEmpty) => (Self::Over, Step::Finish),
            (Self::Held, Input::Released) => (Self::Running, Step::Wait),
            // The adapter has not called exec yet, so it needs no time to clean up.
            (Self::Held, Input::Stop | Input::AdapterExited) => Self::kill(now_ms, graces),
            (Self::Running, Input::Stop | Input::AdapterExited) => {
                (Self::Terming { until_ms: now_ms.saturating_add(graces.term_ms) }, Step::Term)
            }
            (Self::Terming { until_ms }, Input::Tick) if now_ms >= until_ms => Self::kill(now_ms, graces),
            (Self::Killing { until_ms, .. }, Input::Tick) if now_ms >= until_ms => (Self::Over, Step::Finish),
            (Self::Killing { until_ms, next_ms, pause_ms }, Input::Tick) if now_ms >= next_ms => {
                let next_ms = now_ms.saturating_add(pause_ms);
                let pause_ms = if pause_ms >= PAUSE_MAX_MS { PAUSE_MAX_MS } else { pause_ms * 2 };
                (Self::Killing { until_ms, next_ms, pause_ms }, Step::Kill)
            }
            (Self::Held, Input::Tick)
            | (Self::Running, Input::Released | Input::Tick)
            | (
                Self::Terming { .. } | Self::Killing { .. },
                Input::Released | Input::Stop | Input::AdapterExited | Input::Tick,
            ) => (self, Step::Wait),
        }
    }

    const fn kill(now_ms: u64, graces: Graces) -> (Self, Step) {
        let phase = Self::Killing {
            until_ms: now_ms.saturating_add(graces.sweep_ms),
            next_ms: now_ms.saturating_add(PAUSE_FIRST_MS),
            pause_ms: PAUSE_FIRST_MS * 2,
        };
        (phase, Step::Kill)
    }

    /// Returns the time of the next relevant [`Input::Tick`]; `None` if only other events matter.
    pub(crate) const fn deadline_ms(self) -> Option<u64> {
        match self {
            Self::Held | Self::Running | Self::Over => None,
            Self::Terming { until_ms } => Some(until_ms),
            Self::Killing { until_ms, next_ms, .. } => {
                Some(if next_ms < until_ms { next_ms } else { until_ms })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACES: Graces = Graces { term_ms: 1000, sweep_ms: 500 };
    const KILLING: Phase = Phase::Killing { until_ms: 600, next_ms: 110, pause_ms: 20 };

    #[test]
    fn every_phase_and_input() {
        let terming = Phase::Terming { until_ms: 1100 };
        use Input::{AdapterExited, Released, Stop, Tick, TreeEmpty};
        use Phase::{Held, Over, Running};
        for (phase, input, want) in [
            (Held, Released, (Running, Step::Wait)),
            (Held, Stop, (KILLING, Step::Kill)),
            (Held, AdapterExited, (KILLING, Step::Kill)),
            (Held, TreeEmpty, (Over, Step::Finish)),
            (Held, Tick, (Held, Step::Wait)),
            (Running, Released, (Running, Step::Wait)),
            (Running, Stop, (terming, Step::Term)),
            (Running, AdapterExited, (terming, Step::Term)),
            (Running, TreeEmpty, (Over, Step::Finish)),
            (Running, Tick, (Running, Step::Wait)),
            (terming, Released, (terming, Step::Wait)),
            (terming, Stop, (terming, Step::Wait)),
            (terming, AdapterExited, (terming, Step::Wait)),
            (terming, TreeEmpty, (Over, Step::Finish)),
            (terming, Tick, (terming, Step::Wait)),
            (KILLING, Released, (KILLING, Step::Wait)),
            (KILLING, Stop, (KILLING, Step::Wait)),
            (KILLING, AdapterExited, (KILLING, Step::Wait)),
            (KILLING, TreeEmpty, (Over, Step::Finish)),
            (KILLING, Tick, (KILLING, Step::Wait)),
            (Over, Stop, (Over, Step::Wait)),
            (Over, AdapterExited, (Over, Step::Wait)),
            (Over, TreeEmpty, (Over, Step::Wait)),
            (Over, Tick, (Over, Step::Wait)),
            (Over, Released, (Over, Step::Wait)),
        ] {
            assert_eq!(phase.on(input, 100, GRACES), want, "{phase:?} {input:?}");
        }
    }

    #[test]
    fn a_tree_that_does_not_die_is_given_up_in_time() {
        let (mut phase, mut step) = Phase::Running.on(Input::Stop, 100, GRACES);
        let mut steps = vec![(100, step)];
        while let Some(at_ms) = phase.deadline_ms() {
            (phase, step) = phase.on(Input::Tick, at_ms, GRACES);
            steps.push((at_ms, step));
        }
        let kills = [1100, 1110, 1130, 1170, 1250, 1410, 1570].map(|at_ms| (at_ms, Step::Kill));
        let mut want = vec![(100, Step::Term)];
        want.extend(kills);
        want.push((1600, Step::Finish));
        assert_eq!(steps, want);
    }

    #[test]
    fn no_grace_at_all() {
        let none = Graces { term_ms: 0, sweep_ms: 0 };
        let (phase, step) = Phase::Running.on(Input::Stop, 7, none);
        assert_eq!((phase.deadline_ms(), step), (Some(7), Step::Term));
        let (phase, step) = phase.on(Input::Tick, 7, none);
        assert_eq!((phase.deadline_ms(), step), (Some(7), Step::Kill));
        assert_eq!(phase.on(Input::Tick, 7, none), (Phase::Over, Step::Finish));
    }

    #[test]
    fn graces_without_end_do_not_overflow() {
        let endless = Graces { term_ms: u64::MAX, sweep_ms: u64::MAX };
        let (phase, _) = Phase::Running.on(Input::Stop, 5, endless);
        assert_eq!(phase.deadline_ms(), Some(u64::MAX));
        let (phase, _) = Phase::Held.on(Input::Stop, 5, endless);
        assert_eq!(phase.deadline_ms(), Some(15));
    }
}
