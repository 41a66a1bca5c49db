//! First step of an actor, and deadlines while its agent is out of reach.

use super::turn::RunOutcome;
use super::{Actor, ActorEffect, StepOutput};
use crate::failure::Failure;
use crate::recovery::{self, RecoveryAction, Repair};
use crate::rows::RunMode;
use crate::run::{RunEvent, RunState};
use crate::session::{SessionEvent, SessionState};
use acp_shared::codes::Code;

impl Actor {
    /// Records that the saved backend state could not be restored, so further output of this process cannot
    /// be parsed.
    pub fn mark_backend_state_lost(&mut self) {
        self.backend_state_lost = true;
    }

    /// First step of a restored actor: resumes according to the recovery plan for its rows.
    pub(super) fn on_started(&mut self, out: &mut StepOutput) {
        if self.session.state == SessionState::Cancelling {
            self.timers.cancel_ms = Some(out.now_ms + self.limits.cancel_ms);
        }
        if self.current().is_some() {
            self.timers.silent_ms = Some(out.now_ms + self.limits.silent_ms);
            self.arm_turn_timer();
        }
        match recovery::recovery_action(self.recovery_facts()) {
            // A queued prompt is a reason to retry after an error.
            RecoveryAction::Start if self.session.state == SessionState::Error => {
                self.session_event(SessionEvent::Retried, out);
            }
            RecoveryAction::Rest | RecoveryAction::Start | RecoveryAction::Attach => {}
            RecoveryAction::SpawnAgain | RecoveryAction::Open => self.arm_opening_timer(out),
            RecoveryAction::Continue => self.arm_reconcile_timer(out),
            RecoveryAction::Drain if self.session.state == SessionState::Closed => {
                self.close_lease("session closed", out)
            }
            RecoveryAction::Drain => self.arm_reconcile_timer(out),
            RecoveryAction::GiveUp => self.end_runs_without_lease(out),
            RecoveryAction::Repair(repair) => self.repair_rows(repair, out),
        }
        if std::mem::take(&mut self.backend_state_lost) && self.lease.is_some() {
            self.on_backend_state_lost(out);
        }
        self.resume_agent_requests(out);
    }

    /// Facts from the rows that select the recovery step.
    fn recovery_facts(&self) -> recovery::RecoveryFacts {
        let waits =
            |mode: RunMode| self.runs.iter().any(|run| run.state == RunState::Queued && run.mode == mode);
        recovery::RecoveryFacts {
            state: self.session.state,
            lease: self.lease.as_ref().map(|lease| lease.row.usage),
            running: self.current().is_some(),
            queued: waits(RunMode::Prompt),
            steers: waits(RunMode::Steer),
        }
    }

    /// Repairs a combination of rows that no transaction of the gateway produces.
    fn repair_rows(&mut self, repair: Repair, out: &mut StepOutput) {
        out.effects.push(ActorEffect::Log(format!("inconsistent rows repaired: {repair:?}")));
        match repair {
            Repair::CancelRuns => {
                for run_id in self.runs.iter().map(|run| run.run_id).collect::<Vec<_>>() {
                    self.end_run(run_id, RunEvent::Cancelled, RunOutcome::cancelled(), out);
                }
                self.close_lease("session closed", out);
            }
            Repair::Idle => {
                self.session_event(SessionEvent::TurnEnded, out);
                if self.lease.is_none() {
                    self.end_runs_without_lease(out);
                }
            }
            Repair::FailRun => {
                let failure = Failure::of(Code::Uncertain).detail("UNCERTAIN").origin("gateway");
                if let Some(run_id) = self.current_id() {
                    self.end_run(run_id, RunEvent::Failed, RunOutcome::Failed(failure), out);
                }
                self.close_lease("the turn had no consistent state", out);
            }
        }
    }

    /// Invalidates the look-up after each step, since programs are installed and directories moved at any
    /// time. A start that waits for its look-up has the time limit for opening a session.
    pub(super) fn arm_lookup_timer(&mut self, out: &StepOutput) {
        self.profile.is_looked_up = false;
        if self.awaits_lookup() {
            self.timers.init_ms.get_or_insert(out.now_ms + self.profile.init_ms);
        } else if self.lease.is_none() {
            self.timers.init_ms = None;
        }
    }

    /// Arms the deadline after which a running turn fails if its agent stays out of reach.
    pub(super) fn arm_reconcile_timer(&mut self, out: &StepOutput) {
        if self.current().is_some() && self.timers.reconcile_ms.is_none() {
            self.timers.reconcile_ms = Some(out.now_ms + self.limits.reconcile_ms);
        }
    }
}
