//! End of an idle agent's process. The session stays open, and its next prompt starts the agent again.

use super::{Actor, StepOutput};
use crate::session::SessionState;
use crate::timeouts::format_duration;
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
