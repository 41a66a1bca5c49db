//! What went wrong, in the one shape that journals, answers and command lines share.

use acp_shared::codes::Code;
use serde::{Deserialize, Serialize};

/// Something went wrong, for people and for programs. Internal detail belongs into the log, not in here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub(crate) struct Failure {
    /// The stable code.
    pub(crate) code: Code,
    /// What happened and what to do next; for auth-required, the agent's own instructions.
    pub(crate) message: String,
    /// Finer than the code, for programs: `AUTH_REQUIRED`, `AGENT_EXITED`, `AGENT_ERROR` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) detail_code: Option<String>,
    /// Where it arose: `agent`, `supervisor`, `gateway` or `client`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
    /// Whether sending the same again may work.
    #[serde(default)]
    pub(crate) retryable: bool,
    /// The agent's JSON-RPC error object as received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) acp: Option<serde_json::Value>,
}

impl Failure {
    /// A failure with the code's own text.
    pub(crate) fn of(code: Code) -> Self {
        Self::new(code, code.text())
    }

    /// A failure with a text of its own.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail_code: None, origin: None, retryable: false, acp: None }
    }

    /// The same, with a finer code.
    pub(crate) fn detail(mut self, detail_code: &str) -> Self {
        self.detail_code = Some(detail_code.to_owned());
        self
    }

    /// The same, saying where it arose.
    pub(crate) fn origin(mut self, origin: &str) -> Self {
        self.origin = Some(origin.to_owned());
        self
    }

    /// Whether trying again changes nothing until somebody repairs the database.
    pub(crate) fn is_for_repair(&self) -> bool {
        matches!(self.detail_code.as_deref(), Some("STORE_DAMAGED" | "STORE_UNREADABLE"))
    }

    /// The same, worth another try.
    pub(crate) fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }
}
