//! Changes to a queued message: cancellation, use as a steer of the running turn, or a new text.

use super::input::{Answered, Keyed};
use super::turn::RunEnd;
use super::{Actor, Batch};
use crate::core::effect::Write;
use crate::core::event::EventKind;
use crate::core::link::Submit;
use crate::core::request::{QueuedChange, QueuedNow};
use crate::core::rows::RunMode;
use crate::core::run::{RunEvent, RunState};
use crate::error::Failure;
use acp_shared::ids::RunId;
use serde_json::json;

impl Actor {
    /// Changes a queued run and reports if it could; a run that has started is never changed.
    ///
    /// # Errors
    /// Same as for a prompt of that text.
    pub(super) fn on_queued(
        &mut self,
        run_id: RunId,
        change: QueuedChange,
        keyed: Option<Keyed>,
        out: &mut Batch,
    ) -> Result<Answered, Failure> {
        let waits = |run: &&mut crate::core::rows::RunRow| {
            run.run_id == run_id && run.state == RunState::Queued && run.mode == RunMode::Prompt
        };
        let now = match self.runs.iter_mut().find(waits) {
            None => QueuedNow::TooLate,
            Some(run) => match change {
                QueuedChange::Drop => {
                    self.end_run(run_id, RunEvent::Cancelled, RunEnd::cancelled(), out);
                    QueuedNow::Done
                }
                QueuedChange::Steer => self.steer_queued(run_id, out),
                QueuedChange::Reword(text) if text == run.text => QueuedNow::Done,
                QueuedChange::Reword(text) => {
                    self.check_size(&text)?;
                    self.reword(run_id, text, out);
                    QueuedNow::Done
                }
            },
        };
        out.remember(keyed, &now);
        Ok(Answered::Queued(now))
    }

    fn steer_queued(&mut self, run_id: RunId, out: &mut Batch) -> QueuedNow {
        if self.current().is_none() || !self.link.can_steer() {
            return QueuedNow::Unsteerable;
        }
        let Some(run) = self.runs.iter_mut().find(|run| run.run_id == run_id) else {
            return QueuedNow::TooLate;
        };
        run.mode = RunMode::Steer;
        out.run(run);
        let submit = Submit { run_id, text: run.text.clone(), files: run.files.clone(), steer: true };
        let payload = json!({ "status": "prompt_steered", "text": "A prompt that waited is said into the running turn." });
        out.event(&mut self.session, Some(run), EventKind::Status, payload.to_string());
        let steps = self.link.submit(&submit);
        self.mark_link();
        self.on_steps(steps, out);
        QueuedNow::Done
    }

    fn reword(&mut self, run_id: RunId, text: String, out: &mut Batch) {
        let Some(run) = self.runs.iter_mut().find(|run| run.run_id == run_id) else { return };
        let payload = json!({
            "status": "prompt_reworded", "text": "A prompt that waited says something else now.", "prompt": text,
        });
        run.text.clone_from(&text);
        out.writes.push(Write::Reword { run_id, text });
        out.event(&mut self.session, Some(run), EventKind::Status, payload.to_string());
    }
}
