//! Changes to a queued message: cancellation, use as a steer of the running turn, or a new text.

use super::input::{CommandReply, IdempotencyRecord};
use super::turn::RunOutcome;
use super::{Actor, StepOutput};
use crate::backend::SubmitParams;
use crate::event::EventKind;
use crate::failure::Failure;
use crate::request::{QueueEdit, QueueEditResult};
use crate::rows::RunMode;
use crate::run::{RunEvent, RunState};
use crate::writes::Write;
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
        change: QueueEdit,
        keyed: Option<IdempotencyRecord>,
        out: &mut StepOutput,
    ) -> Result<CommandReply, Failure> {
        let waits = |run: &&mut crate::rows::RunRow| {
            run.run_id == run_id && run.state == RunState::Queued && run.mode == RunMode::Prompt
        };
        let now = match self.runs.iter_mut().find(waits) {
            None => QueueEditResult::TooLate,
            Some(run) => match change {
                QueueEdit::Drop => {
                    self.end_run(run_id, RunEvent::Cancelled, RunOutcome::cancelled(), out);
                    QueueEditResult::Done
                }
                QueueEdit::Steer => self.steer_queued(run_id, out),
                QueueEdit::Reword(text) if text == run.text => QueueEditResult::Done,
                QueueEdit::Reword(text) => {
                    self.check_size(&text)?;
                    self.reword(run_id, text, out);
                    QueueEditResult::Done
                }
            },
        };
        out.remember(keyed, &now);
        Ok(CommandReply::Queued(now))
    }

    fn steer_queued(&mut self, run_id: RunId, out: &mut StepOutput) -> QueueEditResult {
        if self.current().is_none() || !self.backend.can_steer() {
            return QueueEditResult::Unsteerable;
        }
        let Some(run) = self.runs.iter_mut().find(|run| run.run_id == run_id) else {
            return QueueEditResult::TooLate;
        };
        run.mode = RunMode::Steer;
        out.run(run);
        let submit = SubmitParams { run_id, text: run.text.clone(), files: run.files.clone(), steer: true };
        let payload =
            json!({ "status": "prompt_steered", "text": "A queued prompt was sent into the running turn." });
        out.event(&mut self.session, Some(run), EventKind::Status, payload.to_string());
        let steps = self.backend.submit(&submit);
        self.mark_backend_dirty();
        self.on_backend_steps(steps, out);
        QueueEditResult::Done
    }

    fn reword(&mut self, run_id: RunId, text: String, out: &mut StepOutput) {
        let Some(run) = self.runs.iter_mut().find(|run| run.run_id == run_id) else { return };
        let payload = json!({
            "status": "prompt_reworded", "text": "The text of a queued prompt was changed.", "prompt": text,
        });
        run.text.clone_from(&text);
        out.writes.push(Write::Reword { run_id, text });
        out.event(&mut self.session, Some(run), EventKind::Status, payload.to_string());
    }
}
