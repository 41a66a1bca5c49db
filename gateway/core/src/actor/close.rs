//! Closing of a session, its timeouts, and the start of a new conversation.

use super::input::{CommandReply, IdempotencyRecord};
use super::turn::RunOutcome;
use super::{Actor, StepOutput};
use crate::backend::CloseMode;
use crate::event::EventKind;
use crate::failure::Failure;
use crate::request::{CloseRequest, SessionStatus};
use crate::rows::{AutoResolution, RunMode, SessionMode};
use crate::run::RunEvent;
use crate::session::{Ending, SessionEvent, SessionState};
use crate::timeouts::{Expiry, TimeoutKind};
use crate::writes::Write;
use acp_shared::codes::Code;
use acp_shared::ids::RunId;
use serde_json::json;

impl Actor {
    pub(super) fn on_close(
        &mut self,
        request: &CloseRequest,
        keyed: Option<IdempotencyRecord>,
        out: &mut StepOutput,
    ) -> Result<CommandReply, Failure> {
        let mut asked_to_forget = false;
        if self.session.state != SessionState::Closed {
            if let Some(since_ms) = request.if_idle_since_ms {
                self.require_idle_since(since_ms)?;
                out.writes.push(Write::RequireUnbound);
            }
            asked_to_forget = self.close(request, out);
        } else if request.ending == Ending::Deleted {
            // Lists omit deleted sessions, including those closed earlier.
            self.session.ending = Some(Ending::Deleted);
        }
        let discarded = request.discard.then_some(asked_to_forget);
        let now = SessionStatus { discarded, ..self.status() };
        out.remember(keyed, &now);
        Ok(CommandReply::Session(now))
    }

    /// Fails if the session is in use or was used after this time. The commit checks the bindings.
    fn require_idle_since(&self, since_ms: u64) -> Result<(), Failure> {
        if self.is_busy() {
            return Err(CloseRequest::refused("a turn runs or waits, or its agent is starting"));
        }
        if !self.permissions.is_empty() {
            return Err(CloseRequest::refused("its agent waits for an answer"));
        }
        if self.session.last_activity_at_ms > since_ms {
            return Err(CloseRequest::refused("it was used in the meantime"));
        }
        Ok(())
    }

    /// Writes the close transaction: cancels the turn and the queue, resolves open requests, ends bindings
    /// and requests the end of the process, without waiting. Returns true if the agent was asked to delete
    /// its conversation.
    pub(super) fn close(&mut self, request: &CloseRequest, out: &mut StepOutput) -> bool {
        let turn_was_running = self.current_id().is_some();
        if let Some(run_id) = self.current_id() {
            self.cancel_current(run_id, out);
        }
        let all: Vec<RunId> = self.runs.iter().map(|run| run.run_id).collect();
        for run_id in all {
            self.end_run(run_id, RunEvent::Cancelled, RunOutcome::cancelled(), out);
        }
        self.resolve_all_requests(None, AutoResolution::SessionClosed, out);
        let payload = json!({ "reason": request.reason, "ending": request.ending });
        out.event(&mut self.session, None, EventKind::Closed, payload.to_string());
        out.writes.push(Write::EndBindings { reason: request.reason.clone() });
        self.session.ending = Some(request.ending);
        self.session_event(SessionEvent::Closed, out);
        if !self.is_ready() {
            self.close_lease(&request.reason, out);
            return false;
        }
        let discarded = request.discard && self.backend.can_discard();
        if turn_was_running || discarded {
            // The process ends after the agent's last answer, or at the latest after this time.
            self.timers.close_ms = Some(out.now_ms + self.limits.close_wait_ms);
        }
        let steps = self.backend.close(if discarded { CloseMode::Discard } else { CloseMode::Close });
        self.mark_backend_dirty();
        self.on_backend_steps(steps, out);
        if self.timers.close_ms.is_none() {
            self.close_lease(&request.reason, out);
        }
        discarded
    }

    /// Ends the process at once when the agent of a closed session has answered the last request.
    pub(super) fn on_backend_closed(&mut self, out: &mut StepOutput) {
        if self.session.state == SessionState::Closed && self.timers.close_ms.take().is_some() {
            self.close_lease("session closed", out);
        }
    }

    /// Closes a one-shot session after the run, regardless of the outcome.
    pub(super) fn close_oneshot(&mut self, out: &mut StepOutput) {
        let oneshot = self.session.mode == SessionMode::Oneshot;
        if oneshot && out.run_ended && self.runs.is_empty() && self.session.state != SessionState::Closed {
            self.close(&CloseRequest::new("the run of the one-shot session has ended"), out);
        }
    }

    /// Applies a timeout, unless the session was used since the check or a run is active or queued.
    pub(super) fn on_expire(
        &mut self,
        expiry: &Expiry,
        seen_ms: u64,
        closes: bool,
        out: &mut StepOutput,
    ) -> CommandReply {
        let used_since = expiry.source == TimeoutKind::Session && self.session.last_activity_at_ms > seen_ms;
        let open = self.session.state != SessionState::Closed;
        if open && !self.is_busy() && !used_since {
            let reason = expiry.reason();
            if let Some(binding_id) = expiry.binding_id {
                let (reason, last_activity_at_ms) = (reason.clone(), seen_ms);
                out.writes.push(Write::ExpireBinding { binding_id, last_activity_at_ms, reason });
            }
            if closes {
                self.close(&CloseRequest { ending: Ending::Expired, ..CloseRequest::new(reason) }, out);
            } else if let Some(binding_id) = expiry.binding_id {
                let text = format!(
                    "This conversation was unbound ({reason}). The session stays open; /focus {} binds it \
                     again.",
                    self.session.session_key
                );
                self.report(json!({ "status": "unbound", "text": text, "binding_id": binding_id }), out);
            }
        }
        CommandReply::Session(self.status())
    }

    /// True if a run is active or queued, so that no timeout applies.
    pub(super) fn is_busy(&self) -> bool {
        !self.runs.is_empty()
            || !matches!(self.session.state, SessionState::Idle | SessionState::Error | SessionState::Closed)
    }

    pub(super) fn on_new_conversation(
        &mut self,
        keyed: Option<IdempotencyRecord>,
        out: &mut StepOutput,
    ) -> Result<CommandReply, Failure> {
        if self.session.state == SessionState::Closed {
            return Err(Failure::of(Code::SessionClosed));
        }
        self.reset_conversation(out);
        let now = self.status();
        out.remember(keyed, &now);
        Ok(CommandReply::Session(now))
    }

    /// Cancels the turn and ends the process; the next process starts a new conversation.
    pub(super) fn reset_conversation(&mut self, out: &mut StepOutput) {
        if let Some(run_id) = self.current_id() {
            self.end_run(run_id, RunEvent::Cancelled, RunOutcome::cancelled(), out);
        }
        let steers: Vec<RunId> =
            self.runs.iter().filter(|run| run.mode == RunMode::Steer).map(|run| run.run_id).collect();
        for run_id in steers {
            self.end_run(run_id, RunEvent::Cancelled, RunOutcome::cancelled(), out);
        }
        self.session.agent_session_id = None;
        self.session.resumable = false;
        self.close_lease("new conversation", out);
        if self.session.state == SessionState::Error {
            self.session.last_error = None;
            self.session_event(SessionEvent::Renewed, out);
        }
        self.report(
            json!({ "status": "new_conversation", "text": "The next prompt starts a new conversation." }),
            out,
        );
    }

    pub(super) fn status(&self) -> SessionStatus {
        SessionStatus {
            session_key: self.session.session_key.clone(),
            state: self.session.state,
            discarded: None,
            setting: None,
        }
    }
}
