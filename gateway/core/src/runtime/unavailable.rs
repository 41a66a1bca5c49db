//! Machine of a session whose backend is not registered: it ignores all input and sends nothing, so that the
//! session can still be cancelled, closed and inspected. Output of its agent cannot be read.

use crate::agent_settings::OptionChange;
use crate::backend::{
    BackendMachine, BackendStep, CloseMode, RequestReply, StartSessionParams, SubmitParams,
};
use acp_shared::ids::RunId;

/// Replacement machine. Keeps the saved state for the time when the backend is available again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnavailableMachine {
    saved: String,
}

impl UnavailableMachine {
    /// Replaces the machine with this saved state.
    pub fn new(saved: Option<&str>) -> Self {
        Self { saved: saved.unwrap_or_default().to_owned() }
    }
}

impl BackendMachine for UnavailableMachine {
    fn start_session(&mut self, _: &StartSessionParams) -> Vec<BackendStep> {
        Vec::new()
    }
    fn submit(&mut self, _: &SubmitParams) -> Vec<BackendStep> {
        Vec::new()
    }
    fn stream(&mut self, _: u64, _: &[u8]) -> Vec<BackendStep> {
        Vec::new()
    }
    fn answer(&mut self, _: &RequestReply) -> Vec<BackendStep> {
        Vec::new()
    }
    fn cancel(&mut self, _: RunId) -> Vec<BackendStep> {
        Vec::new()
    }
    fn set_option(&mut self, option: &OptionChange) -> Vec<BackendStep> {
        let text = "The backend of this session does not exist.".to_owned();
        vec![BackendStep::OptionAnswered { option: option.clone(), is_own: true, is_taken: false, text }]
    }
    fn close(&mut self, _: CloseMode) -> Vec<BackendStep> {
        vec![BackendStep::CloseAnswered]
    }
    fn can_discard(&self) -> bool {
        false
    }
    fn probe(&mut self) -> Vec<BackendStep> {
        Vec::new()
    }
    fn can_steer(&self) -> bool {
        false
    }
    fn save(&self) -> String {
        self.saved.clone()
    }
}
