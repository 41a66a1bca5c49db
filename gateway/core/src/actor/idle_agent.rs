//! End of an idle agent's process. The session stays open, and its next prompt starts the agent again.

use super::input::{CommandReply, IdempotencyRecord};
use super::{Actor, StepOutput};
use crate::failure::Failure;
use crate::session::SessionState;
use crate::timeouts::format_duration;
use acp_shared::codes::Code;
use serde_json::json;

impl Actor {
    /// Ends the process of an idle agent; the session stays open.
    pub(super) fn stop_idle_agent(&mut self, out: &mut StepOutput) {
        if !self.can_stop_when_idle() {
            return;
        }
        let text = format!(
            "The agent was stopped after {} without work. The next prompt starts it again.",
            format_duration(self.limits.runtime_idle_ms)
        );
        self.report(json!({ "status": "agent_rests", "text": text }), out);
        self.close_lease("the agent was idle", out);
    }

    /// Ends the process of the agent on request, as after an idle time; the session stays open. Without a process there is
    /// nothing to do.
    ///
    /// # Errors
    /// `ACP_SESSION_CLOSED`; `USAGE` while a turn runs or waits; `ACP_RESUME_UNAVAILABLE` if the conversation would be lost.
    pub(super) fn on_release(
        &mut self,
        by: &str,
        keyed: Option<IdempotencyRecord>,
        out: &mut StepOutput,
    ) -> Result<CommandReply, Failure> {
        if self.session.state == SessionState::Closed {
            return Err(Failure::of(Code::SessionClosed));
        }
        let has_process = self.lease.as_ref().is_some_and(|lease| !lease.closing && lease.ended.is_none());
        if has_process && self.session.state != SessionState::Error {
            if self.session.state != SessionState::Idle || !self.runs.is_empty() {
                let text =
                    "The session is busy. Cancel its prompts or wait for their end, then release the agent.";
                return Err(Failure::new(Code::Usage, text)
                    .detail("TURN_RUNS")
                    .origin("gateway")
                    .retryable());
            }
            if !self.session.resumable {
                let text = "The agent cannot resume its conversation, which would be lost. Close the session instead.";
                return Err(Failure::new(Code::ResumeUnavailable, text).origin("gateway"));
            }
        }
        if has_process {
            let by = if by.is_empty() { "a person" } else { by };
            let text = format!("The agent was stopped by {by}. The next prompt starts it again.");
            self.report(json!({ "status": "agent_rests", "text": text }), out);
            self.close_lease("released", out);
        }
        let now = self.status();
        out.remember(keyed, &now);
        Ok(CommandReply::Session(now))
    }

    /// True if the agent can be stopped without loss: it is ready, idle, and its conversation can be resumed.
    fn can_stop_when_idle(&self) -> bool {
        self.is_ready()
            && self.session.state == SessionState::Idle
            && self.runs.is_empty()
            && self.session.resumable
    }

    /// Arms the deadline at which an idle agent is stopped.
    pub(super) fn arm_idle_timer(&mut self) {
        let runtime_ms = self.limits.runtime_idle_ms;
        let rests = runtime_ms > 0 && self.can_stop_when_idle();
        self.timers.idle_ms = rests.then(|| self.session.last_activity_at_ms.saturating_add(runtime_ms));
    }
}
