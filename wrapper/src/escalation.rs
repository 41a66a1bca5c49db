//! Escalation of signals, as a pure state machine. Time is passed in as milliseconds of a monotonic clock.
//!
//! `Held` (the adapter waits before exec) → `Running` → `Terming` (SIGTERM was sent) → `Killing` (SIGKILL was
//! sent, and is repeated) → `Over`. The machine never goes back: a second stop request changes nothing.

use acp_shared::backoff::Backoff;

/// Pauses between two rounds of SIGKILL.
const KILL_BACKOFF: Backoff = Backoff::new(10, 160);

/// Time limits of the steps, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EscalationTimes {
    /// From SIGTERM to SIGKILL.
    pub(crate) term_ms: u64,
    /// From the first SIGKILL until the wrapper gives up on survivors.
    pub(crate) sweep_ms: u64,
}

/// Event for the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EscalationInput {
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
pub(crate) enum EscalationAction {
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
pub(crate) enum EscalationPhase {
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
        /// Pauses after the next repetitions.
        backoff: Backoff,
    },
    /// The escalation is finished.
    Over,
}

impl EscalationPhase {
    /// Returns the next state and the action for an event at `now_ms`.
    pub(crate) const fn on(
        self,
        input: EscalationInput,
        now_ms: u64,
        graces: EscalationTimes,
    ) -> (Self, EscalationAction) {
        match (self, input) {
            (Self::Over, _) => (self, EscalationAction::Wait),
            (_, EscalationInput::TreeEmpty) => (Self::Over, EscalationAction::Finish),
            (Self::Held, EscalationInput::Released) => (Self::Running, EscalationAction::Wait),
            // The adapter has not called exec yet, so it needs no time to clean up.
            (Self::Held, EscalationInput::Stop | EscalationInput::AdapterExited) => {
                Self::kill(now_ms, now_ms.saturating_add(graces.sweep_ms), KILL_BACKOFF)
            }
            (Self::Running, EscalationInput::Stop | EscalationInput::AdapterExited) => {
                (Self::Terming { until_ms: now_ms.saturating_add(graces.term_ms) }, EscalationAction::Term)
            }
            (Self::Terming { until_ms }, EscalationInput::Tick) if now_ms >= until_ms => {
                Self::kill(now_ms, now_ms.saturating_add(graces.sweep_ms), KILL_BACKOFF)
            }
            (Self::Killing { until_ms, .. }, EscalationInput::Tick) if now_ms >= until_ms => {
                (Self::Over, EscalationAction::Finish)
            }
            (Self::Killing { until_ms, next_ms, backoff }, EscalationInput::Tick) if now_ms >= next_ms => {
                Self::kill(now_ms, until_ms, backoff)
            }
            (Self::Held, EscalationInput::Tick)
            | (Self::Running, EscalationInput::Released | EscalationInput::Tick)
            | (
                Self::Terming { .. } | Self::Killing { .. },
                EscalationInput::Released
                | EscalationInput::Stop
                | EscalationInput::AdapterExited
                | EscalationInput::Tick,
            ) => (self, EscalationAction::Wait),
        }
    }

    const fn kill(now_ms: u64, until_ms: u64, mut backoff: Backoff) -> (Self, EscalationAction) {
        let next_ms = now_ms.saturating_add(backoff.next_ms());
        (Self::Killing { until_ms, next_ms, backoff }, EscalationAction::Kill)
    }

    /// Returns the time of the next relevant [`EscalationInput::Tick`]; `None` if only other events matter.
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

    const GRACES: EscalationTimes = EscalationTimes { term_ms: 1000, sweep_ms: 500 };
    const KILLING: EscalationPhase = {
        let mut backoff = KILL_BACKOFF;
        backoff.next_ms();
        EscalationPhase::Killing { until_ms: 600, next_ms: 110, backoff }
    };

    #[test]
    fn transitions_match_table() {
        let terming = EscalationPhase::Terming { until_ms: 1100 };
        use EscalationInput::{AdapterExited, Released, Stop, Tick, TreeEmpty};
        use EscalationPhase::{Held, Over, Running};
        for (phase, input, want) in [
            (Held, Released, (Running, EscalationAction::Wait)),
            (Held, Stop, (KILLING, EscalationAction::Kill)),
            (Held, AdapterExited, (KILLING, EscalationAction::Kill)),
            (Held, TreeEmpty, (Over, EscalationAction::Finish)),
            (Held, Tick, (Held, EscalationAction::Wait)),
            (Running, Released, (Running, EscalationAction::Wait)),
            (Running, Stop, (terming, EscalationAction::Term)),
            (Running, AdapterExited, (terming, EscalationAction::Term)),
            (Running, TreeEmpty, (Over, EscalationAction::Finish)),
            (Running, Tick, (Running, EscalationAction::Wait)),
            (terming, Released, (terming, EscalationAction::Wait)),
            (terming, Stop, (terming, EscalationAction::Wait)),
            (terming, AdapterExited, (terming, EscalationAction::Wait)),
            (terming, TreeEmpty, (Over, EscalationAction::Finish)),
            (terming, Tick, (terming, EscalationAction::Wait)),
            (KILLING, Released, (KILLING, EscalationAction::Wait)),
            (KILLING, Stop, (KILLING, EscalationAction::Wait)),
            (KILLING, AdapterExited, (KILLING, EscalationAction::Wait)),
            (KILLING, TreeEmpty, (Over, EscalationAction::Finish)),
            (KILLING, Tick, (KILLING, EscalationAction::Wait)),
            (Over, Stop, (Over, EscalationAction::Wait)),
            (Over, AdapterExited, (Over, EscalationAction::Wait)),
            (Over, TreeEmpty, (Over, EscalationAction::Wait)),
            (Over, Tick, (Over, EscalationAction::Wait)),
            (Over, Released, (Over, EscalationAction::Wait)),
        ] {
            assert_eq!(phase.on(input, 100, GRACES), want, "{phase:?} {input:?}");
        }
    }

    #[test]
    fn unkillable_tree_is_given_up_after_sweep() {
        let (mut phase, mut step) = EscalationPhase::Running.on(EscalationInput::Stop, 100, GRACES);
        let mut steps = vec![(100, step)];
        while let Some(at_ms) = phase.deadline_ms() {
            (phase, step) = phase.on(EscalationInput::Tick, at_ms, GRACES);
            steps.push((at_ms, step));
        }
        let kills = [1100, 1110, 1130, 1170, 1250, 1410, 1570].map(|at_ms| (at_ms, EscalationAction::Kill));
        let (first, last) = ((100, EscalationAction::Term), (1600, EscalationAction::Finish));
        assert_eq!(steps, [&[first][..], &kills, &[last]].concat());
    }

    #[test]
    fn zero_grace_kills_at_once() {
        let none = EscalationTimes { term_ms: 0, sweep_ms: 0 };
        let (phase, step) = EscalationPhase::Running.on(EscalationInput::Stop, 7, none);
        assert_eq!((phase.deadline_ms(), step), (Some(7), EscalationAction::Term));
        let (phase, step) = phase.on(EscalationInput::Tick, 7, none);
        assert_eq!((phase.deadline_ms(), step), (Some(7), EscalationAction::Kill));
        assert_eq!(
            phase.on(EscalationInput::Tick, 7, none),
            (EscalationPhase::Over, EscalationAction::Finish)
        );
    }

    #[test]
    fn maximal_graces_do_not_overflow() {
        let endless = EscalationTimes { term_ms: u64::MAX, sweep_ms: u64::MAX };
        let (phase, _) = EscalationPhase::Running.on(EscalationInput::Stop, 5, endless);
        assert_eq!(phase.deadline_ms(), Some(u64::MAX));
        let (phase, _) = EscalationPhase::Held.on(EscalationInput::Stop, 5, endless);
        assert_eq!(phase.deadline_ms(), Some(15));
    }
}
