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
pub enum EscalationInput {
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
pub enum EscalationAction {
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
pub enum EscalationPhase {
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

impl EscalationPhase {
    /// All phases, in order.
    pub const ALL: [Self; 6] = [Self::Running, Self::Eof, Self::Term, Self::Kill, Self::Stuck, Self::Over];
}

/// Shutdown state of one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Escalation {
    graces: Graces,
    phase: EscalationPhase,
    deadline_ms: u64,
    sweep_ms: u64,
}

impl Escalation {
    /// Creates the state of a running tree.
    #[must_use]
    pub const fn new(graces: Graces) -> Self {
        Self { graces, phase: EscalationPhase::Running, deadline_ms: u64::MAX, sweep_ms: u64::MAX }
    }

    /// Returns the current phase.
    #[must_use]
    pub const fn phase(&self) -> EscalationPhase {
        self.phase
    }

    /// Returns when the next [`EscalationInput::Tick`] is due; `None` if none is.
    #[must_use]
    pub fn wake_at_ms(&self) -> Option<u64> {
        match self.phase {
            EscalationPhase::Running | EscalationPhase::Over => None,
            EscalationPhase::Eof | EscalationPhase::Term => Some(self.deadline_ms),
            EscalationPhase::Kill => Some(self.deadline_ms.min(self.sweep_ms)),
            EscalationPhase::Stuck => Some(self.sweep_ms),
        }
    }

    /// Processes one input and returns the actions to perform.
    pub fn step(&mut self, now_ms: u64, input: EscalationInput) -> Vec<EscalationAction> {
        if self.phase == EscalationPhase::Over {
            return Vec::new();
        }
        match input {
            EscalationInput::TreeGone => {
                self.phase = EscalationPhase::Over;
                vec![EscalationAction::Finish]
            }
            EscalationInput::Begin if self.phase == EscalationPhase::Running => {
                self.enter(EscalationPhase::Eof, now_ms.saturating_add(self.graces.eof_ms));
                vec![EscalationAction::CloseStdin]
            }
            EscalationInput::AdapterGone if self.phase < EscalationPhase::Term => {
                self.enter(EscalationPhase::Term, self.term_deadline(now_ms));
                vec![EscalationAction::CloseStdin]
            }
            EscalationInput::WrapperGone | EscalationInput::Hurry if self.phase < EscalationPhase::Kill => {
                let mut actions = vec![EscalationAction::CloseStdin];
                actions.extend(self.kill(now_ms));
                actions
            }
            EscalationInput::Tick => self.tick(now_ms),
            EscalationInput::Begin
            | EscalationInput::AdapterGone
            | EscalationInput::WrapperGone
            | EscalationInput::Hurry => Vec::new(),
        }
    }

    fn tick(&mut self, now_ms: u64) -> Vec<EscalationAction> {
        match self.phase {
            EscalationPhase::Running | EscalationPhase::Over => Vec::new(),
            EscalationPhase::Eof if now_ms >= self.deadline_ms => {
                self.enter(EscalationPhase::Term, self.term_deadline(now_ms));
                vec![EscalationAction::Terminate]
            }
            EscalationPhase::Term if now_ms >= self.deadline_ms => self.kill(now_ms),
            EscalationPhase::Kill if now_ms >= self.deadline_ms => {
                self.enter(EscalationPhase::Stuck, u64::MAX);
                self.sweep_ms = now_ms.saturating_add(SURVIVOR_SWEEP_MS);
                vec![EscalationAction::Kill, EscalationAction::NameSurvivors]
            }
            EscalationPhase::Kill if now_ms >= self.sweep_ms => {
                self.sweep_ms = now_ms.saturating_add(SWEEP_MS);
                vec![EscalationAction::Kill]
            }
            EscalationPhase::Stuck if now_ms >= self.sweep_ms => {
                self.sweep_ms = now_ms.saturating_add(SURVIVOR_SWEEP_MS);
                vec![EscalationAction::Kill]
            }
            EscalationPhase::Eof | EscalationPhase::Term | EscalationPhase::Kill | EscalationPhase::Stuck => {
                Vec::new()
            }
        }
    }

    const fn term_deadline(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add(self.graces.term_ms).saturating_add(WRAPPER_HEADSTART_MS)
    }

    fn kill(&mut self, now_ms: u64) -> Vec<EscalationAction> {
        self.enter(EscalationPhase::Kill, now_ms.saturating_add(self.graces.kill_ms));
        self.sweep_ms = now_ms.saturating_add(SWEEP_MS);
        vec![EscalationAction::Kill]
    }

    const fn enter(&mut self, phase: EscalationPhase, deadline_ms: u64) {
        self.phase = phase;
        self.deadline_ms = deadline_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::EscalationAction::{CloseStdin, Finish, Kill, NameSurvivors, Terminate};
    use super::EscalationInput::{AdapterGone, Begin, Hurry, Tick, TreeGone, WrapperGone};
    use super::*;
    use proptest::prelude::*;

    const GRACES: Graces = Graces { eof_ms: 10, term_ms: 100, kill_ms: 1_000 };
    const TERM_END: u64 = 10 + 100 + WRAPPER_HEADSTART_MS;

    fn run(steps: &[(u64, EscalationInput)]) -> Vec<(u64, Vec<EscalationAction>)> {
        let mut stop = Escalation::new(GRACES);
        steps
            .iter()
            .map(|(now, input)| (*now, stop.step(*now, *input)))
            .filter(|(_, a)| !a.is_empty())
            .collect()
    }

    #[test]
    fn stop_escalates_in_order() {
        assert_eq!(
            run(&[
                (0, Tick),
                (0, Begin),
                (5, Begin),
                (9, Tick),
                (10, Tick),
                (TERM_END - 1, Tick),
                (TERM_END, Tick),
                (TERM_END + SWEEP_MS, Tick),
                (TERM_END + 1_000, Tick),
                (TERM_END + 1_000 + SURVIVOR_SWEEP_MS, Tick),
                (90_000, TreeGone),
                (90_001, TreeGone),
                (90_002, Begin),
            ]),
            [
                (0, vec![CloseStdin]),
                (10, vec![Terminate]),
                (TERM_END, vec![Kill]),
                (TERM_END + SWEEP_MS, vec![Kill]),
                (TERM_END + 1_000, vec![Kill, NameSurvivors]),
                (TERM_END + 1_000 + SURVIVOR_SWEEP_MS, vec![Kill]),
                (90_000, vec![Finish]),
            ]
        );
    }

    #[test]
    fn wrapper_cleans_up_after_adapter_exit_first() {
        assert_eq!(
            run(&[(0, AdapterGone), (50, Begin), (499, Tick), (500, Tick)]),
            [(0, vec![CloseStdin]), (500, vec![Kill])]
        );
    }

    #[test]
    fn lost_wrapper_skips_grace() {
        for input in [WrapperGone, Hurry] {
            assert_eq!(
                run(&[(0, Begin), (1, input), (2, input)]),
                [(0, vec![CloseStdin]), (1, vec![CloseStdin, Kill])]
            );
        }
    }

    proptest! {
        #[test]
        fn stop_never_goes_back_and_always_wakes_again(inputs in prop::collection::vec((0u64..400, 0usize..6), 0..60)) {
            let all = [Begin,AdapterGone,WrapperGone,Hurry,Tick,TreeGone];
            let mut stop = Escalation::new(GRACES);
            let (mut now, mut finished) = (0, 0);
            for (pass, index) in inputs {
                now += pass;
                let before = stop.phase();
                let actions = stop.step(now, all[index]);
                prop_assert!(stop.phase() >= before);
                finished += actions.iter().filter(|a| **a == Finish).count();
                let waits = !matches!(stop.phase(), EscalationPhase::Running | EscalationPhase::Over);
                prop_assert_eq!(stop.wake_at_ms().is_some(), waits);
                prop_assert!(stop.wake_at_ms().is_none_or(|at| at < u64::MAX));
            }
            prop_assert_eq!(finished, usize::from(stop.phase() == EscalationPhase::Over));
        }
    }
}
