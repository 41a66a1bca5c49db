//! Commands, the queue of runs, and the lifecycle of a turn.

use super::input::{ActorCommand, CommandReply, IdempotencyRecord, Ticket};
use super::{Actor, StepOutput};
use crate::backend::{INPUT_BYTES_MAX, SubmitParams, prompt_too_long};
use crate::event::{self, EventKind};
use crate::failure::Failure;
use crate::jsonrpc;
use crate::request::{CancelResult, PromptAccepted, PromptRequest};
use crate::rows::{AutoResolution, RunMode};
use crate::run::{RunEvent, RunState};
use crate::session::{SessionEvent, SessionState};
use crate::transition::Transition;
use crate::writes::{SessionLimits, Write};
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, RunId};
use serde_json::json;

impl Actor {
    pub(super) fn on_command(
        &mut self,
        ticket: Ticket,
        command: ActorCommand,
        keyed: Option<IdempotencyRecord>,
        out: &mut StepOutput,
    ) {
        let result = match command {
            ActorCommand::Prompt { run_id, request, key, caps } => {
                self.on_prompt(run_id, request, key, caps, keyed, out)
            }
            ActorCommand::Cancel(run) => Ok(self.on_cancel(run, keyed, out)),
            ActorCommand::Queued { run_id, change } => self.on_queued(run_id, change, keyed, out),
            ActorCommand::Close(request) => self.on_close(&request, keyed, out),
            ActorCommand::Expire { expiry, seen_ms, closes } => {
                Ok(self.on_expire(&expiry, seen_ms, closes, out))
            }
            ActorCommand::Release { by } => self.on_release(&by, keyed, out),
            ActorCommand::Label(label) => self.on_label(label, keyed, out),
            ActorCommand::NewConversation => self.on_new_conversation(keyed, out),
            ActorCommand::Set(setting) => {
                self.on_setting(ticket, &setting, keyed, out);
                return;
            }
            ActorCommand::AnswerPermission { permission_id, answer, by } => {
                self.on_answer_permission(&permission_id, answer, by, keyed, out)
            }
        };
        out.reply(ticket, result);
    }

    fn on_prompt(
        &mut self,
        run_id: RunId,
        request: PromptRequest,
        key: IdempotencyKey,
        caps: Option<Box<SessionLimits>>,
        keyed: Option<IdempotencyRecord>,
        out: &mut StepOutput,
    ) -> Result<CommandReply, Failure> {
        self.check_prompt(&request)?;
        out.writes.extend(caps.map(|caps| Write::Wake(*caps)));
        out.writes.extend(request.completion_of.map(|run_id| Write::Completion { run_id }));
        if request.new_conversation {
            self.reset_conversation(out);
        }
        let after_seq = self.session.last_session_seq;
        let steers = request.mode == RunMode::Steer && self.current().is_some() && self.backend.can_steer();
        let mode = if steers { RunMode::Steer } else { RunMode::Prompt };
        let payload =
            event::prompt_payload(&request.text, mode, &request.author, request.asked_in.as_deref());
        let request = PromptRequest { mode, ..request };
        let mut run = request.into_run(run_id, &self.session.session_key, key, out.now_ms);
        out.run(&run);
        out.event(&mut self.session, Some(&mut run), EventKind::Prompt, payload);
        out.transitions.push(Transition::run(None, None, &run));
        self.session.last_activity_at_ms = out.now_ms;
        let queued_behind = self.runs.iter().filter(|run| run.mode == RunMode::Prompt).count() as u64;
        let submit = SubmitParams { run_id, text: run.text.clone(), files: run.files.clone(), steer: true };
        self.runs.push_back(run);
        if steers {
            let steps = self.backend.submit(&submit);
            self.on_backend_steps(steps, out);
        } else if self.session.state == SessionState::Error {
            self.session_event(SessionEvent::Retried, out);
        }
        out.writes.push(Write::TouchBindings { at_ms: out.now_ms });
        let accepted = PromptAccepted { run_id, after_seq, queued_behind, steered: steers };
        out.remember(keyed, &accepted);
        Ok(CommandReply::Prompt(accepted))
    }

    fn check_prompt(&self, request: &PromptRequest) -> Result<(), Failure> {
        if self.session.state == SessionState::Closed {
            return Err(Failure::of(Code::SessionClosed));
        }
        self.check_size(&request.text)?;
        self.check_run_permissions(request.permissions)?;
        if self.runs.len() >= self.limits.queue_runs_max {
            let max = self.limits.queue_runs_max;
            let text =
                format!("{max} prompts are already running or queued. Wait for one to end, or cancel one.");
            return Err(Failure::new(Code::LimitReached, text).retryable());
        }
        if let Some(failure) = self.profile.refused.as_ref().filter(|_| self.lease.is_none()) {
            return Err(failure.clone());
        }
        if !request.new_conversation && self.conversation_is_lost() {
            return Err(Failure::of(Code::ResumeUnavailable).origin("agent"));
        }
        Ok(())
    }

    /// Checks that a text fits into a prompt.
    ///
    /// # Errors
    /// `ACP_LIMIT_REACHED` if the text is too long.
    pub(super) fn check_size(&self, text: &str) -> Result<(), Failure> {
        if text.len() > self.limits.prompt_bytes_max {
            let max = self.limits.prompt_bytes_max;
            return Err(Failure::new(Code::LimitReached, format!("A prompt may have {max} bytes at most.")));
        }
        if jsonrpc::quoted_len(text) > INPUT_BYTES_MAX {
            return Err(prompt_too_long(INPUT_BYTES_MAX));
        }
        Ok(())
    }

    /// True if the agent had a conversation, its process is gone, and no new process can resume it.
    fn conversation_is_lost(&self) -> bool {
        let alive = self.lease.as_ref().is_some_and(|lease| !lease.closing && lease.ended.is_none());
        self.session.agent_session_id.is_some() && !self.session.resumable && !alive
    }

    /// True while the session is created or a prompt is queued.
    pub(super) fn wants_start(&self) -> bool {
        self.session.state == SessionState::Creating
            || (self.session.state == SessionState::Idle && self.next_prompt().is_some())
    }

    /// Starts the next queued run if the session is idle; starts the agent first if necessary.
    pub(super) fn start_next(&mut self, out: &mut StepOutput) {
        if !self.wants_start() {
            return;
        }
        if self.lease.is_none() {
            if self.session.state == SessionState::Idle && self.conversation_is_lost() {
                self.fail_queue(&Failure::of(Code::ResumeUnavailable).origin("agent"), out);
                return;
            }
            if let Some(failure) = self.profile.refused.clone() {
                self.fail_session(&failure, out);
                return;
            }
            if !self.profile.is_looked_up {
                return;
            }
            self.start_lease(out);
        }
        // Wait while the supervisor is away: delivery to a lease that gets lost would be unknown.
        let attached = self.lease.as_ref().is_some_and(|lease| lease.attached);
        if self.session.state != SessionState::Idle || !self.is_ready() || !attached {
            return;
        }
        let Some(at) = self.next_prompt() else { return };
        let Some(mut run) = self.runs.remove(at) else { return };
        // The session's settings may have changed since the prompt was accepted.
        if let Err(failure) = self.check_run_permissions(run.permissions) {
            let run_id = run.run_id;
            self.runs.insert(at, run);
            self.end_run(run_id, RunEvent::Failed, RunOutcome::Failed(failure), out);
            return self.start_next(out);
        }
        let Some(from) = out.run_event(&mut run, RunEvent::Started) else {
            self.runs.insert(at, run);
            return;
        };
        run.started_at_ms = Some(out.now_ms);
        out.transitions.push(Transition::run(Some(from), Some(RunEvent::Started), &run));
        out.run(&run);
        let submit = SubmitParams {
            run_id: run.run_id,
            text: run.text.clone(),
            files: run.files.clone(),
            steer: false,
        };
        self.runs.push_front(run);
        self.session_event(SessionEvent::TurnStarted, out);
        self.session.last_error = None;
        self.timers.silent_ms = Some(out.now_ms + self.limits.silent_ms);
        self.arm_turn_timer();
        let steps = self.backend.submit(&submit);
        self.mark_backend_dirty();
        self.on_backend_steps(steps, out);
    }

    pub(super) fn next_prompt(&self) -> Option<usize> {
        self.runs.iter().position(|run| run.state == RunState::Queued && run.mode == RunMode::Prompt)
    }

    /// Ends a run and appends its final event. If it was the running one, the session becomes idle.
    pub(super) fn end_run(&mut self, run_id: RunId, how: RunEvent, end: RunOutcome, out: &mut StepOutput) {
        let Some(at) = self.runs.iter().position(|run| run.run_id == run_id) else { return };
        let was_running = self.current_id() == Some(run_id);
        if was_running {
            self.resolve_all_requests(Some(run_id), AutoResolution::TurnEnded, out);
        }
        let Some(mut run) = self.runs.remove(at) else { return };
        let Some(from) = out.run_event(&mut run, how) else {
            self.runs.insert(at, run);
            return;
        };
        self.session.options.grants.end_run(run_id);
        run.ended_at_ms = Some(out.now_ms);
        let (kind, payload) = match end {
            RunOutcome::Stopped { stop_reason, usage, result } => {
                run.usage = usage.as_ref().map(ToString::to_string);
                let payload = done_payload(&stop_reason, usage, result);
                run.stop_reason = Some(stop_reason);
                (EventKind::Done, payload)
            }
            RunOutcome::Failed(failure) => {
                let payload = serde_json::to_string(&failure).unwrap_or_default();
                run.error = Some(failure);
                (EventKind::Error, payload)
            }
        };
        out.event(&mut self.session, Some(&mut run), kind, payload);
        out.run(&run);
        out.transitions.push(Transition::run(Some(from), Some(how), &run));
        self.session.last_activity_at_ms = out.now_ms;
        out.run_ended = true;
        if was_running {
            out.writes.push(Write::TouchBindings { at_ms: out.now_ms });
            self.timers.cancel_ms = None;
            self.timers.silent_ms = None;
            self.timers.turn_ms = None;
            self.timers.reconcile_ms = None;
            self.requeues = 0;
            if matches!(self.session.state, SessionState::Running | SessionState::Cancelling) {
                self.session_event(SessionEvent::TurnEnded, out);
            }
        }
    }

    /// Ends a cancelled run with state cancelled, or failed if its permission request failed.
    pub(super) fn finish_cancelled(&mut self, run_id: RunId, out: &mut StepOutput) {
        match self.pending_failure() {
            Some(failure) => self.end_run(run_id, RunEvent::Failed, RunOutcome::Failed(failure), out),
            None => self.end_run(run_id, RunEvent::Cancelled, RunOutcome::cancelled(), out),
        }
    }

    /// Failure recorded for the running run, to be applied once its agent has stopped.
    pub(super) fn pending_failure(&self) -> Option<Failure> {
        self.current().and_then(|run| run.error.clone())
    }

    /// Fails all queued runs.
    pub(super) fn fail_queue(&mut self, failure: &Failure, out: &mut StepOutput) {
        let waiting: Vec<RunId> =
            self.runs.iter().filter(|run| run.state == RunState::Queued).map(|run| run.run_id).collect();
        for run_id in waiting {
            self.end_run(run_id, RunEvent::Failed, RunOutcome::Failed(failure.clone()), out);
        }
    }

    fn on_cancel(
        &mut self,
        wanted: Option<RunId>,
        keyed: Option<IdempotencyRecord>,
        out: &mut StepOutput,
    ) -> CommandReply {
        let first = self.runs.front().map(|run| run.run_id);
        let run_id = wanted.or(first).filter(|id| self.runs.iter().any(|run| run.run_id == *id));
        let state = run_id.map(|run_id| {
            if self.current_id() == Some(run_id) {
                self.cancel_current(run_id, out);
            } else {
                self.end_run(run_id, RunEvent::Cancelled, RunOutcome::cancelled(), out);
            }
            let still = self.runs.iter().find(|run| run.run_id == run_id).map(|run| run.state);
            still.unwrap_or(RunState::Cancelled)
        });
        let cancelled = CancelResult { run_id, state };
        out.remember(keyed, &cancelled);
        CommandReply::Cancel(cancelled)
    }

    /// Asks the agent once to stop the running turn; its open requests are resolved as cancelled.
    pub(super) fn cancel_current(&mut self, run_id: RunId, out: &mut StepOutput) {
        if self.session.state != SessionState::Running {
            return;
        }
        self.session_event(SessionEvent::CancelAsked, out);
        self.timers.cancel_ms = Some(out.now_ms + self.limits.cancel_ms);
        // ACP: the cancel first, then `cancelled` for open permission requests.
        let steps = self.backend.cancel(run_id);
        self.mark_backend_dirty();
        self.on_backend_steps(steps, out);
        self.resolve_all_requests(Some(run_id), AutoResolution::Cancel, out);
    }

    /// Arms the time limit of the running turn (handled in `agent`).
    pub(super) fn arm_turn_timer(&mut self) {
        let seconds = self.session.options.timeout_s;
        let limit_ms = seconds.map_or(self.limits.turn_ms, |seconds| seconds.saturating_mul(1_000));
        let started = self.current().and_then(|run| run.started_at_ms);
        self.timers.turn_ms = started.filter(|_| limit_ms > 0).map(|at| at.saturating_add(limit_ms));
    }

    /// Applies an event to the session's state. Callers check the state first: a pair that the transition
    /// table lacks changes nothing and is logged as an error.
    pub(super) fn session_event(&mut self, event: SessionEvent, out: &mut StepOutput) {
        let from = self.session.state;
        let Some(to) = from.on(event) else {
            out.transitions.push(Transition::Refused {
                run_id: None,
                from: from.as_str(),
                event: event.as_str(),
            });
            return;
        };
        self.session.state = to;
        let code = self.session.last_error.as_ref().map(|failure| failure.code);
        let code = code.filter(|_| event == SessionEvent::Faulted);
        out.transitions.push(Transition::Session { from, event, to, code });
    }
}

/// Outcome of a run.
#[derive(Debug, Clone)]
pub(super) enum RunOutcome {
    /// With a stop reason.
    Stopped {
        /// Stop reason of ACP, or one of the gateway's own.
        stop_reason: String,
        /// Token counts as reported by the agent.
        usage: Option<serde_json::Value>,
        /// Result as received, JSON text.
        result: Option<String>,
    },
    /// With a failure.
    Failed(Failure),
}

impl RunOutcome {
    pub(super) fn cancelled() -> Self {
        Self::Stopped { stop_reason: "cancelled".to_owned(), usage: None, result: None }
    }
}

fn done_payload(stop_reason: &str, usage: Option<serde_json::Value>, result: Option<String>) -> String {
    let mut payload = json!({ "stop_reason": stop_reason });
    if let Some(usage) = usage {
        payload["usage"] = usage;
    }
    if let Some(result) = result.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok()) {
        payload["result"] = result;
    }
    payload.to_string()
}
