//! End of the agent's process, with the effects on session, turn and steers (H1, H6).

use super::turn::RunOutcome;
use super::{Actor, ActorEffect, LeaseEnd, StepOutput};
use crate::backend::InputKind;
use crate::failure::Failure;
use crate::rows::{AutoResolution, LeaseStatus, RunMode};
use crate::run::RunEvent;
use crate::session::{SessionEvent, SessionState};
use crate::transition::Transition;
use crate::writes::Write;
use acp_shared::codes::Code;
use acp_shared::ids::RunId;
use acp_shared::launch::ExitStatus;
use serde_json::json;

/// Maximum number of requeues of a prompt that provably never arrived; then the run fails.
const REQUEUES_MAX: u32 = 2;

impl Actor {
    /// Ends the runs of a lease that was taken away by `adopt`, or whose agent is ahead of the database, as
    /// uncertain.
    pub(super) fn end_runs_without_lease(&mut self, out: &mut StepOutput) {
        if let Some(run_id) = self.current_id() {
            self.end_turn_without_agent(run_id, PromptDelivery::Uncertain, ExitStatus::Unknown, out);
        }
        let steers = self.runs.iter().filter(|run| run.mode == RunMode::Steer);
        for run_id in steers.map(|run| run.run_id).collect::<Vec<_>>() {
            self.end_steer_without_agent(run_id, PromptDelivery::Uncertain, ExitStatus::Unknown, out);
        }
    }

    /// Marks the lease as ended: no output follows beyond what was received.
    pub(super) fn on_unknown(&mut self) {
        let Some(lease) = &mut self.lease else { return };
        if let Some(end) = &mut lease.ended {
            end.end_offset = end.end_offset.min(lease.lines.next_offset());
        } else {
            lease.ended = Some(LeaseEnd {
                status: ExitStatus::Unknown,
                end_offset: lease.lines.next_offset(),
                stdin_written: None,
            });
        }
    }

    /// Ends the lease once all output of its process was read, and ends its turn and steers (H1, H6).
    pub(super) fn end_lease_if_drained(&mut self, out: &mut StepOutput) {
        let Some(lease) = &self.lease else { return };
        let Some(end) = lease.ended.clone() else { return };
        if !lease.row.broken && lease.lines.next_offset() < end.end_offset {
            return;
        }
        let (was_asked, opening) = (lease.closing, lease.row.usage != LeaseStatus::Ready);
        let held = self.backend.ended();
        self.mark_backend_dirty();
        self.on_backend_steps(held, out);
        let is_closed = self.session.state == SessionState::Closed;
        let delivery = |run_id, kind| (run_id, self.prompt_delivery(kind, &end));
        let prompt = self.current_id().map(|run_id| delivery(run_id, InputKind::Prompt { run_id }));
        let steers: Vec<(RunId, PromptDelivery)> = self
            .runs
            .iter()
            .filter(|run| run.mode == RunMode::Steer)
            .map(|run| delivery(run.run_id, InputKind::Steer { run_id: run.run_id }))
            .collect();
        self.write_progress(out);
        self.release_lease(out);
        let (status, log) = (end.status, self.log_hint());
        match prompt {
            Some((run_id, delivery)) => self.end_turn_without_agent(run_id, delivery, status, out),
            None if is_closed || was_asked => {}
            None if opening => {
                let text = format!("The agent exited before it opened a session ({status}). {log}");
                let failure =
                    Failure::new(Code::SessionInitFailed, text).detail("AGENT_EXITED").origin("agent");
                self.fail_session(&failure, out);
            }
            None => {
                let text = format!("The agent exited ({status}). {log}");
                self.report(json!({ "status": "agent_exited", "text": text }), out);
            }
        }
        for (run_id, delivery) in steers {
            self.end_steer_without_agent(run_id, delivery, status, out);
        }
    }

    /// Names the command that shows standard error to an operator. Standard error may hold secrets, so no
    /// line of it is sent to a conversation.
    fn log_hint(&self) -> String {
        format!("Its standard error: `acp-gateway logs {}`.", self.session.session_key)
    }

    fn prompt_delivery(&self, kind: InputKind, end: &LeaseEnd) -> PromptDelivery {
        let Some(lease) = &self.lease else { return PromptDelivery::Uncertain };
        match lease.outbox.iter().find(|row| row.kind == kind) {
            None => PromptDelivery::Arrived,
            Some(row) => match end.stdin_written {
                Some(written) if written < row.seq => PromptDelivery::NeverArrived,
                Some(_) => PromptDelivery::Arrived,
                None => PromptDelivery::Uncertain,
            },
        }
    }

    fn end_turn_without_agent(
        &mut self,
        run_id: RunId,
        delivery: PromptDelivery,
        status: ExitStatus,
        out: &mut StepOutput,
    ) {
        if self.session.state == SessionState::Cancelling {
            self.finish_cancelled(run_id, out);
            return;
        }
        let failure = match delivery {
            PromptDelivery::NeverArrived if self.requeues < REQUEUES_MAX => {
                self.requeue(run_id, out);
                return;
            }
            PromptDelivery::Arrived if self.backend.is_proxy() => {
                let text = format!(
                    "{} The bridge to it exited ({status}). {}",
                    Code::Uncertain.text(),
                    self.log_hint()
                );
                Failure::new(Code::Uncertain, text).detail("BRIDGE_EXITED")
            }
            PromptDelivery::NeverArrived | PromptDelivery::Arrived => {
                let text = format!(
                    "The agent exited during the turn ({status}). The turn was not retried: check what it \
                     did before you send the prompt again. {}",
                    self.log_hint()
                );
                Failure::new(Code::TurnFailed, text).detail("AGENT_EXITED")
            }
            PromptDelivery::Uncertain => Failure::of(Code::Uncertain).detail("UNCERTAIN"),
        };
        self.session.last_error = Some(failure.clone());
        self.end_run(run_id, RunEvent::Failed, RunOutcome::Failed(failure.origin("agent").retryable()), out);
    }

    /// Ends a steer whose agent exited before reporting the outcome (H6, H11).
    fn end_steer_without_agent(
        &mut self,
        run_id: RunId,
        delivery: PromptDelivery,
        status: ExitStatus,
        out: &mut StepOutput,
    ) {
        let failure = match delivery {
            PromptDelivery::NeverArrived => {
                self.on_steered(run_id, false, out);
                return;
            }
            PromptDelivery::Arrived => {
                let text = format!(
                    "The agent exited before it reported whether it accepted this message ({status})."
                );
                Failure::new(Code::TurnFailed, text).detail("AGENT_EXITED")
            }
            PromptDelivery::Uncertain => Failure::of(Code::Uncertain).detail("UNCERTAIN"),
        };
        self.end_run(run_id, RunEvent::Failed, RunOutcome::Failed(failure.origin("agent").retryable()), out);
    }

    fn requeue(&mut self, run_id: RunId, out: &mut StepOutput) {
        let Some(run) = self.runs.iter_mut().find(|run| run.run_id == run_id) else { return };
        if let Some(from) = out.run_event(run, RunEvent::Requeued) {
            run.started_at_ms = None;
            out.transitions.push(Transition::run(Some(from), Some(RunEvent::Requeued), run));
            out.writes.push(Write::Run(Box::new(run.clone())));
            self.requeues += 1;
            self.timers.turn_ms = None;
            self.timers.reconcile_ms = None;
            self.session_event(SessionEvent::TurnEnded, out);
        }
    }

    pub(super) fn release_lease(&mut self, out: &mut StepOutput) {
        self.resolve_all_requests(None, AutoResolution::LeaseEnded, out);
        self.fail_options(out);
        let Some(lease) = self.lease.take() else { return };
        let lease_id = lease.row.lease_id;
        out.writes.push(Write::LeaseStatus { lease_id, usage: LeaseStatus::Ended });
        out.effects.push(ActorEffect::Release { lease_id });
        self.session.lease_id = None;
        self.timers.init_ms = None;
        self.timers.close_ms = None;
        self.timers.retry_ms = None;
    }

    /// Puts the session into its error state: fails the running and all queued runs.
    pub(super) fn fail_session(&mut self, failure: &Failure, out: &mut StepOutput) {
        if self.session.state == SessionState::Closed {
            return;
        }
        if failure.code == Code::ResumeUnavailable {
            self.session.resumable = false;
        }
        self.session.last_error = Some(failure.clone());
        let runs_before = self.runs.len();
        if let Some(run_id) = self.current_id() {
            self.end_run(run_id, RunEvent::Failed, RunOutcome::Failed(failure.clone()), out);
        }
        self.fail_queue(failure, out);
        let mut payload = json!({ "status": "agent_failed", "text": failure.message, "code": failure.code });
        // Conversations show the failure with these runs.
        let failed_runs = runs_before.saturating_sub(self.runs.len());
        if failed_runs > 0 {
            payload["failed_runs"] = failed_runs.into();
        }
        if let Some(text) = &failure.conversation_text {
            payload["conversation_text"] = text.as_str().into();
        }
        self.report(payload, out);
        if self.session.state != SessionState::Error {
            self.session_event(SessionEvent::Faulted, out);
        }
    }
}

/// Delivery of a prompt to an agent that ended (H6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PromptDelivery {
    /// The last byte was never written to the pipe.
    NeverArrived,
    /// The whole prompt was written to the pipe.
    Arrived,
    /// Unknown.
    Uncertain,
}
