//! Pause of a lease task, and the state that it exports for a handover (H14).

use crate::core::escalation::Escalation;
use crate::core::lease::Lease;
use crate::sys::inherited_fd::HandoverFd;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// Request to a lease task to pause until the outcome of the upgrade is decided.
#[derive(Debug)]
pub struct PauseRequest {
    paused: oneshot::Sender<()>,
    verdict: oneshot::Receiver<oneshot::Sender<(Lease, TaskState)>>,
}

/// Decision about a paused task. Sending a channel makes the task export its state; dropping the decision
/// resumes the task.
pub type PauseDecision = oneshot::Sender<oneshot::Sender<(Lease, TaskState)>>;

impl PauseRequest {
    /// Creates a request, a receiver that signals that the task has paused or ended, and the decision.
    #[must_use]
    pub fn new() -> (Self, oneshot::Receiver<()>, PauseDecision) {
        let ((paused, is_paused), (decide, verdict)) = (oneshot::channel(), oneshot::channel());
        (Self { paused, verdict }, is_paused, decide)
    }

    /// Waits for the decision. Returns the channel for the exported state; `None` resumes the task.
    pub(crate) async fn wait(self) -> Option<oneshot::Sender<(Lease, TaskState)>> {
        // If the requester is gone, the decision was dropped too.
        let _ = self.paused.send(());
        self.verdict.await.ok()
    }
}

/// Exported state of a running lease task.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskState {
    /// State of the shutdown.
    pub(crate) stop: Escalation,
    /// Control socket of the wrapper, while open.
    pub(crate) control: Option<HandoverFd>,
    /// True if the wrapper has exited and was reaped.
    pub(crate) wrapper_gone: bool,
    /// True if the wrapper reported completion before it exited.
    pub(crate) done: bool,
    /// True if the wrapper exited without a report and without a requested end.
    pub(crate) vanished: bool,
    /// Reason of an end request that the task had received and not started.
    pub(crate) asked: Option<String>,
    /// True if such a request skips the graces.
    pub(crate) hurried: bool,
}
