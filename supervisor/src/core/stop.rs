//! Shutdown of one process tree: end of file, SIGTERM, SIGKILL, each with its own grace, then reporting of
//! survivors. The machine only ever escalates.

use acp_shared::protocol::Graces;
use serde::{Deserialize, Serialize};

/// Time that the wrapper gets beyond its own grace before the supervisor kills the tree, in milliseconds.
pub const WRAPPER_HEADSTART_MS: u64 = 400;
/// Interval of sweeps while the tree is being killed, in milliseconds.
pub const SWEEP_MS: u64 = 100;
/// Interval of sweeps for a lease with survivors, in milliseconds.
pub const SURVIVOR_SWEEP_MS: u64 = 5_000;

/// Input of the shutdown machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The end was requested.
    Begin,
    /// The adapter exited; the wrapper is cleaning up.
    AdapterGone,
    /// The wrapper exited without a report.
    WrapperGone,
    /// Skip the remaining graces.
    Hurry,
    /// Time passed.
    Tick,
    /// The whole tree is verified gone.
    TreeGone,
}

/// Action to perform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Close the adapter's standard input.
    CloseStdin,
    /// SIGTERM and SIGCONT to the verified wrapper, which passes them on.
    Terminate,
    /// SIGKILL to every verified process of the tree, then check whether the tree is gone.
    Kill,
    /// Report the survivors; the lease stays closing.
    NameSurvivors,
    /// The lease is closed.
    Finish,
}

/// Phase of the shutdown, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// No end was requested.
    Running,
    /// Standard input is closed.
    Eof,
    /// SIGTERM was sent.
    Term,
    /// SIGKILL is being sent.
    Kill,
    /// Some process survives SIGKILL.
    Stuck,
    /// The tree is gone.
    Over,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Self; 6] = [Self::Running, Self::Eof, Self::Term, Self::Kill, Self::Stuck, Self::Over];
}

/// Shutdown state of one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    graces: Graces,
    phase: Phase,
    deadline_ms: u64,
    sweep_ms: u64,
}

impl Stop {
    /// Creates the state of a running tree.
    #[must_use]
    pub const fn new(graces: Graces) -> Self {
        Self { graces, phase: Phase::Running, deadline_ms: u64::MAX, sweep_ms: u64::MAX }
    }

    /// Returns the current phase.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns when the next [`Input::Tick`] is due; `None` if none is.
    #[must_use]
    pub fn wake_at_ms(&self) -> Option<u64> {
        match self.phase {
            Phase::Running | Phase::Over => None,
            Phase::Eof | Phase::Term => Some(self.deadline_ms),
            Phase::Kill => Some(self.deadline_ms.min(self.sweep_ms)),
            Phase::Stuck => Some(self.sweep_ms),
        }
    }

    /// Processes one input and returns the actions to perform.
    pub fn step(&mut self, now_ms: u64, input: Input) -> Vec<Action> {
        if self.phase == Phase::Over {
            return Vec::new();
        }
        match input {
            Input::TreeGone => {
                self.phase = Phase::Over;
                vec![Action::Finish]
            }
            Input::Begin if self.phase == Phase::Running => {
                self.enter(Phase::Eof, now_ms.saturating_add(self.graces.eof_ms));
                vec![Action::CloseStdin]
            }
            Input::AdapterGone if self.phase < Phase::Term => {
                self.enter(Phase::Term, self.term_deadline(now_ms));
                vec![Action::CloseStdin]
            }
            Input::WrapperGone | Input::Hurry if self.phase < Phase::Kill => {
                let mut actions = vec![Action::CloseStdin];
                actions.extend(self.kill(now_ms));
                actions
            }
            Input::Tick => self.tick(now_ms),
            Input::Begin | Input::AdapterGone | Input::WrapperGone | Input::Hurry => Vec::new(),
        }
    }

    fn tick(&mut self, now_ms: u64) -> Vec<Action> {
        match self.phase {
            Phase::Running | Phase::Over => Vec::new(),
            Phase::Eof if now_ms >= self.deadline_ms => {
                self.enter(Phase::Term, self.term_deadline(now_ms));
                vec![Action::Terminate]
            }
            Phase::Term if now_ms >= self.deadline_ms => self.kill(now_ms),
            Phase::Kill if now_ms >= self.deadline_ms => {
                self.enter(Phase::Stuck, u64::MAX);
                self.sweep_ms = now_ms.saturating_add(SURVIVOR_SWEEP_MS);
                vec![Action::Kill, Action::NameSurvivors]
            }
            Phase::Kill if now_ms >= self.sweep_ms => {
                self.sweep_ms = now_ms.saturating_add(SWEEP_MS);
                vec![Action::Kill]
            }
            Phase::Stuck if now_ms >= self.sweep_ms => {
                self.sweep_ms = now_ms.saturating_add(SURVIVOR_SWEEP_MS);
                vec![Action::Kill]
            }
            Phase::Eof | Phase::Term | Phase::Kill | Phase::Stuck => Vec::new(),
        }
    }

    const fn term_deadline(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add(self.graces.term_ms).saturating_add(WRAPPER_HEADSTART_MS)
    }

    fn kill(&mut self, now_ms: u64) -> Vec<Action> {
        self.enter(Phase::Kill, now_ms.saturating_add(self.graces.kill_ms));
        self.sweep_ms = now_ms.saturating_add(SWEEP_MS);
        vec![Action::Kill]
    }

    const fn enter(&mut self, phase: Phase, deadline_ms: u64) {
        self.phase = phase;
        self.deadline_ms = deadline_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GRACES: Graces = Graces { eof_ms: 10, term_ms: 100, kill_ms: 1_000 };
    const TERM_END: u64 = 10 + 100 + WRAPPER_HEADSTART_MS;

    fn run(steps: &[(u64, Input)]) -> Vec<(u64, Vec<Action>)> {
        let mut stop = Stop::new(GRACES);
        steps
            .iter()
            .map(|(now, input)| (*now, stop.step(*now, *input)))
            .filter(|(_, a)| !a.is_empty())
            .collect()
    }

    #[test]
    fn escalates_in_order() {
        assert_eq!(
            run(&[
                (0, Input::Tick),
                (0, Input::Begin),
                (5, Input::Begin),
                (9, Input::Tick),
                (10, Input::Tick),
                (TERM_END - 1, Input::Tick),
                (TERM_END, Input::Tick),
                (TERM_END + SWEEP_MS, Input::Tick),
                (TERM_END + 1_000, Input::Tick),
                (TERM_END + 1_000 + SURVIVOR_SWEEP_MS, Input::Tick),
                (90_000, Input::TreeGone),
                (90_001, Input::TreeGone),
                (90_002, Input::Begin),
            ]),
            [
                (0, vec![Action::CloseStdin]),
                (10, vec![Action::Terminate]),
                (TERM_END, vec![Action::Kill]),
                (TERM_END + SWEEP_MS, vec![Action::Kill]),
                (TERM_END + 1_000, vec![Action::Kill, Action::NameSurvivors]),
                (TERM_END + 1_000 + SURVIVOR_SWEEP_MS, vec![Action::Kill]),
                (90_000, vec![Action::Finish]),
            ]
        );
    }

    #[test]
    fn an_adapter_that_ends_is_cleaned_up_by_its_wrapper_first() {
        assert_eq!(
            run(&[(0, Input::AdapterGone), (50, Input::Begin), (499, Input::Tick), (500, Input::Tick)]),
            [(0, vec![Action::CloseStdin]), (500, vec![Action::Kill])]
        );
    }

    #[test]
    fn a_wrapper_that_vanishes_leaves_no_grace() {
        for input in [Input::WrapperGone, Input::Hurry] {
            assert_eq!(
                run(&[(0, Input::Begin), (1, input), (2, input)]),
                [(0, vec![Action::CloseStdin]), (1, vec![Action::CloseStdin, Action::Kill])]
            );
        }
    }

    proptest! {
        #[test]
        fn never_goes_back_and_always_wakes_again(inputs in prop::collection::vec((0u64..400, 0usize..6), 0..60)) {
            let all = [Input::Begin, Input::AdapterGone, Input::WrapperGone, Input::Hurry, Input::Tick, Input::TreeGone];
            let mut stop = Stop::new(GRACES);
            let (mut now, mut finished) = (0, 0);
            for (pass, index) in inputs {
                now += pass;
                let before = stop.phase();
                let actions = stop.step(now, all[index]);
                prop_assert!(stop.phase() >= before);
                finished += actions.iter().filter(|a| **a == Action::Finish).count();
                let waits = !matches!(stop.phase(), Phase::Running | Phase::Over);
                prop_assert_eq!(stop.wake_at_ms().is_some(), waits);
                prop_assert!(stop.wake_at_ms().is_none_or(|at| at < u64::MAX));
            }
            prop_assert_eq!(finished, usize::from(stop.phase() == Phase::Over));
        }
    }
}
