//! Steps of the backend and expired deadlines.

use super::input::LeaseEvent;
use super::turn::RunOutcome;
use super::{Actor, ActorEffect, StepOutput};
use crate::backend::BackendStep;
use crate::config::McpServer;
use crate::event::{EventKind, NewEvent};
use crate::failure::Failure;
use crate::mcp;
use crate::request::CloseRequest;
use crate::rows::{LeaseStatus, RunMode};
use crate::run::RunEvent;
use crate::secrets::Secrets;
use crate::session::{Ending, SessionEvent, SessionState};
use crate::timeouts::format_duration;
use crate::writes::Write;
use acp_shared::codes::Code;
use acp_shared::ids::RunId;
use serde_json::json;

impl Actor {
    pub(super) fn on_backend_steps(&mut self, steps: Vec<BackendStep>, out: &mut StepOutput) {
        for mut step in steps {
            self.redact(&mut step);
            if self.session.state == SessionState::Closed {
                self.on_backend_step_when_closed(step, out);
            } else {
                self.on_backend_step(step, out);
            }
        }
    }

    /// Returns the MCP servers of the agent: the profile's and the session's own.
    pub(super) fn mcp_servers(&self) -> Vec<McpServer> {
        mcp::merge_servers([&self.profile.mcp_servers[..], &self.session.options.mcp_servers[..]])
    }

    /// Returns the secrets in the configured environment, the process environment and the MCP servers.
    fn secrets(&self) -> Secrets {
        let of_process = self.lease.iter().flat_map(|lease| &lease.row.spawn.env);
        Secrets::new(self.profile.env.iter().chain(of_process), &self.mcp_servers())
    }

    /// Replaces secrets in reports and errors of the agent. Its answers, tool calls and requests stay as received.
    fn redact(&self, step: &mut BackendStep) {
        match step {
            BackendStep::Failed(failure) | BackendStep::TurnFailed { failure, .. } => {
                self.secrets().redact_failure(failure);
            }
            BackendStep::Log(text) | BackendStep::OptionAnswered { text, .. } => {
                self.secrets().redact_text(text);
            }
            BackendStep::TurnDone { stop_reason, result, .. } => {
                let secrets = self.secrets();
                secrets.redact_text(stop_reason);
                secrets.redact_json(result);
            }
            BackendStep::Event(event) if event.kind == EventKind::Status => {
                self.secrets().redact_json(&mut event.payload);
            }
            _ => {}
        }
    }

    fn on_backend_step(&mut self, step: BackendStep, out: &mut StepOutput) {
        match step {
            BackendStep::Event(event) => self.append(event, out),
            BackendStep::Send { bytes, kind } => self.send(bytes, kind, out),
            BackendStep::Ready { agent_session_id, resumable, agent_info } => {
                self.on_ready(agent_session_id, resumable, agent_info, out);
            }
            BackendStep::OptionAnswered { option, is_own, is_taken, text } => {
                self.on_option_answered(&option, is_own, is_taken, text, out);
            }
            BackendStep::Listed => {
                let request = CloseRequest::new("its agent has listed the stored sessions");
                self.close(&CloseRequest { ending: Ending::Deleted, ..request }, out);
            }
            BackendStep::SettingsReported(report) => self.session.options.agent.apply(report),
            BackendStep::Failed(failure) => {
                self.fail_session(&failure, out);
                self.close_lease("the agent cannot be used", out);
            }
            BackendStep::TurnDone { run_id, stop_reason, result } => {
                self.on_turn_done(run_id, stop_reason, result, out);
            }
            BackendStep::TurnFailed { run_id, failure } => {
                self.session.last_error = Some(failure.clone());
                let cancelled = self.session.state == SessionState::Cancelling;
                if cancelled && self.current_id() == Some(run_id) {
                    self.finish_cancelled(run_id, out);
                } else {
                    self.end_run(run_id, RunEvent::Failed, RunOutcome::Failed(failure), out);
                }
            }
            BackendStep::Steered { run_id, taken } => self.on_steered(run_id, taken, out),
            BackendStep::Request(request) => self.on_agent_request(request, out),
            BackendStep::RequestWithdrawn { at } => self.on_request_withdrawn(at, out),
            BackendStep::AskGuarantee(asking) => self.on_ask_guarantee(asking, out),
            BackendStep::EndProcess { reason } => self.close_lease(&reason, out),
            BackendStep::ProbeAnswered => self.timers.alive_ms = None,
            BackendStep::CloseAnswered => {}
            BackendStep::Log(text) => out.effects.push(ActorEffect::Log(text)),
            BackendStep::LineFault(what) => out.effects.push(ActorEffect::LineFault(what)),
        }
    }

    /// Handles a step of a closed session: nothing is journaled, but messages are still sent to the agent and
    /// its end is awaited.
    fn on_backend_step_when_closed(&mut self, step: BackendStep, out: &mut StepOutput) {
        match step {
            BackendStep::Send { bytes, kind } => self.send(bytes, kind, out),
            BackendStep::CloseAnswered => self.on_backend_closed(out),
            BackendStep::Log(text) => out.effects.push(ActorEffect::Log(text)),
            BackendStep::LineFault(what) => out.effects.push(ActorEffect::LineFault(what)),
            _ => {}
        }
    }

    /// Appends an event to the journal; an event of an ended run is recorded for the session only.
    fn append(&mut self, event: NewEvent, out: &mut StepOutput) {
        let run = event.run_id.and_then(|id| self.runs.iter_mut().find(|run| run.run_id == id));
        out.new_event(&mut self.session, run, event);
    }

    fn on_ready(
        &mut self,
        agent_session_id: String,
        resumable: bool,
        agent_info: String,
        out: &mut StepOutput,
    ) {
        // A lease that is being ended is never marked ready.
        let Some(lease) = self.lease.as_mut().filter(|lease| !lease.closing) else { return };
        lease.row.usage = LeaseStatus::Ready;
        out.writes.push(Write::LeaseStatus { lease_id: lease.row.lease_id, usage: LeaseStatus::Ready });
        self.timers.init_ms = None;
        self.session.agent_session_id = Some(agent_session_id);
        self.session.resumable = resumable;
        self.session.agent_info = Some(agent_info);
        self.session.last_error = None;
        // An agent restarted after a loss opens its session while the state is already idle.
        if self.session.state == SessionState::Creating {
            self.session_event(SessionEvent::Opened, out);
        }
        self.report(
            json!({ "status": "agent_ready", "text": "The agent is ready.", "resumable": resumable }),
            out,
        );
    }

    fn on_turn_done(&mut self, run_id: RunId, stop_reason: String, result: String, out: &mut StepOutput) {
        let given: Option<serde_json::Value> = serde_json::from_str(&result).ok();
        let usage = given.and_then(|value| value.get("usage").filter(|usage| !usage.is_null()).cloned());
        // The run may be marked to fail while the agent was still being stopped (see `ask`).
        let pending_failure = self.pending_failure();
        let cancelled = stop_reason == "cancelled" && self.session.state == SessionState::Cancelling;
        match pending_failure {
            Some(failure) => self.end_run(run_id, RunEvent::Failed, RunOutcome::Failed(failure), out),
            None => {
                let how = if cancelled { RunEvent::Cancelled } else { RunEvent::Completed };
                let end = RunOutcome::Stopped { stop_reason, usage, result: Some(result) };
                self.end_run(run_id, how, end, out);
            }
        }
    }

    pub(super) fn on_steered(&mut self, run_id: RunId, taken: bool, out: &mut StepOutput) {
        if taken {
            let end = RunOutcome::Stopped { stop_reason: "steered".to_owned(), usage: None, result: None };
            self.end_run(run_id, RunEvent::Completed, end, out);
            return;
        }
        // H11: a steer that the agent cannot take becomes a turn.
        if let Some(run) = self.runs.iter_mut().find(|run| run.run_id == run_id) {
            run.mode = RunMode::Prompt;
            out.writes.push(Write::Run(Box::new(run.clone())));
        }
    }

    pub(super) fn on_tick(&mut self, out: &mut StepOutput) {
        let now_ms = out.now_ms;
        let due = |timer: &mut Option<u64>| timer.is_some_and(|at| at <= now_ms) && timer.take().is_some();
        if due(&mut self.timers.retry_ms) {
            self.retry_spawn_or_attach(out);
        }
        if due(&mut self.timers.fetch_ms) {
            self.report_fetch(out);
        }
        if due(&mut self.timers.init_ms) {
            self.fail_session(&self.init_failure(), out);
            self.close_lease("the agent did not open a session in time", out);
        }
        if due(&mut self.timers.cancel_ms) {
            let text = "The agent did not stop after the cancel request; its process is being ended.";
            self.report(json!({ "status": "cancel_stuck", "text": text }), out);
            self.close_lease("the agent did not complete a cancel in time", out);
        }
        if due(&mut self.timers.close_ms) {
            self.close_lease("session closed", out);
        }
        if due(&mut self.timers.silent_ms) && self.current().is_some() {
            let text = format!("No output from the agent for {} s.", self.limits.silent_ms / 1000);
            let payload = json!({ "status": "silent", "text": text }).to_string();
            let run = self.runs.front_mut();
            out.event(&mut self.session, run, EventKind::Status, payload);
            self.timers.silent_ms = Some(now_ms + self.limits.silent_ms);
        }
        if due(&mut self.timers.turn_ms) {
            self.on_turn_timeout(out);
        }
        if due(&mut self.timers.reconcile_ms) {
            self.fail_lost_turn(out);
        }
        if due(&mut self.timers.idle_ms) {
            self.stop_idle_agent(out);
        }
        if due(&mut self.timers.unreachable_ms) {
            self.notify_unreachable(out);
        }
        self.probe(out);
        self.expire_options(out);
        self.expire_permissions(out);
    }

    /// Failure for an agent that has not opened a session in time; it may not even have been started.
    fn init_failure(&self) -> Failure {
        let within = format_duration(self.opening_ms());
        if self.lease.as_ref().is_none_or(|lease| lease.row.usage == LeaseStatus::Intended) {
            let text = format!(
                "The agent was not started within {within}: the supervisor does not respond or has no \
                 capacity. Run `acp-gateway doctor` for details; send the prompt again once the supervisor \
                 is available."
            );
            let failure = Failure::new(Code::BackendUnavailable, text).detail("NOT_STARTED");
            return failure.origin("supervisor").retryable();
        }
        let text = format!("The agent did not open a session within {within}.");
        Failure::new(Code::SessionInitFailed, text).detail("INIT_TIMEOUT").origin("agent")
    }

    /// Cancels a running turn after the time limit; the run fails once the agent has stopped.
    fn on_turn_timeout(&mut self, out: &mut StepOutput) {
        // A turn being cancelled has a separate deadline.
        let running = self.session.state == SessionState::Running;
        let Some(run_id) = self.current_id().filter(|_| running) else { return };
        let (limit_ms, of) = match self.session.options.timeout_s {
            Some(seconds) => (seconds.saturating_mul(1_000), "time limit of this session's turns"),
            None => (self.limits.turn_ms, "gateway's time limit of turns (limits.turn_ms)"),
        };
        let text = format!(
            "The turn was stopped: it took longer than {}, the {of}. The session continues with the next prompt.",
            format_duration(limit_ms)
        );
        self.fail_after_cancel(
            run_id,
            Failure::new(Code::Timeout, text).detail("TURN_TIMEOUT").origin("gateway"),
            out,
        );
    }

    /// Fails a turn whose agent could not be reached again in time, as uncertain (H6).
    fn fail_lost_turn(&mut self, out: &mut StepOutput) {
        let Some(run_id) = self.current_id() else { return };
        let text = format!(
            "The agent could not be reached again within {} after a restart or a lost connection, so the \
             result of this turn is unknown. Check what it did before you send the prompt again.",
            format_duration(self.limits.reconcile_ms)
        );
        let failure = Failure::new(Code::Uncertain, text).detail("AGENT_NOT_FOUND").origin("gateway");
        self.session.last_error = Some(failure.clone());
        self.end_run(run_id, RunEvent::Failed, RunOutcome::Failed(failure), out);
        // End the process in case the agent still runs: the turn has been failed.
        self.close_lease("the agent was not reached again in time", out);
    }

    /// Arms the deadline for informing users that the agent is out of reach while a prompt is queued and no
    /// turn runs. An agent that was never started and a running turn have deadlines of their own.
    pub(super) fn arm_unreachable_timer(&mut self, out: &StepOutput) {
        let waits = self.current().is_none() && self.next_prompt().is_some();
        let away = self.lease.as_ref().is_some_and(|lease| !lease.attached && lease.ended.is_none());
        if !waits || !away || self.timers.init_ms.is_some() {
            self.timers.unreachable_ms = None;
            self.unreachable_notified &= away;
        } else if !self.unreachable_notified && self.timers.unreachable_ms.is_none() {
            self.timers.unreachable_ms = Some(out.now_ms + self.limits.reconcile_ms);
        }
    }

    /// Informs waiting users once per outage that the agent is out of reach. Queued prompts continue when it
    /// returns.
    fn notify_unreachable(&mut self, out: &mut StepOutput) {
        self.unreachable_notified = true;
        let text = "The agent cannot be reached: the supervisor does not respond. Queued prompts wait until \
                    it does; run `acp-gateway doctor` for details, or cancel a prompt to withdraw it.";
        self.report(json!({ "status": "agent_away", "text": text }), out);
    }

    /// Arms the liveness probe of an idle agent.
    pub(super) fn arm_probe_timer(&mut self, out: &StepOutput) {
        self.arm_idle_timer();
        let idle = self.is_ready() && self.session.state == SessionState::Idle;
        if !idle {
            self.timers.probe_ms = None;
            self.timers.alive_ms = None;
        } else if self.limits.probe_ms > 0 && self.timers.probe_ms.is_none() {
            self.timers.probe_ms = Some(out.now_ms + self.limits.probe_ms);
        }
    }

    fn probe(&mut self, out: &mut StepOutput) {
        if self.timers.probe_ms.is_some_and(|at| at <= out.now_ms) {
            self.timers.probe_ms = None;
            self.timers.alive_ms.get_or_insert(out.now_ms + self.limits.alive_ms);
            let steps = self.backend.probe();
            self.mark_backend_dirty();
            self.on_backend_steps(steps, out);
        }
        if self.timers.alive_ms.is_some_and(|at| at <= out.now_ms) {
            self.timers.alive_ms = None;
            let text =
                "The agent no longer responds; its process is being ended. The next prompt starts it again.";
            self.report(json!({ "status": "unresponsive", "text": text }), out);
            self.close_lease("the idle agent does not answer", out);
        }
    }

    /// Retries a spawn or an attach that the supervisor deferred.
    fn retry_spawn_or_attach(&mut self, out: &mut StepOutput) {
        if self.lease.as_ref().is_some_and(|lease| !lease.attached) {
            self.on_lease_event(LeaseEvent::Connected, out);
        }
    }
}
