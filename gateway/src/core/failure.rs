//! The error type shared by the journal, API responses and command lines.

use acp_shared::codes::Code;
use serde::{Deserialize, Serialize};

/// A failure, for people and for programs. Internal detail belongs in the log, not here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub(crate) struct Failure {
    /// Stable error code.
    pub(crate) code: Code,
    /// What happened and what to do next; for auth-required, the agent's own instructions.
    pub(crate) message: String,
    /// Finer than the code, for programs: `AUTH_REQUIRED`, `AGENT_EXITED`, `AGENT_ERROR` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) detail_code: Option<String>,
    /// Origin of the failure: `agent`, `supervisor`, `gateway` or `client`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
    /// True if sending the same request again may succeed.
    #[serde(default)]
    pub(crate) retryable: bool,
    /// The agent's JSON-RPC error object as received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) acp: Option<serde_json::Value>,
}

impl Failure {
    /// Creates a failure with the code's own text.
    pub(crate) fn of(code: Code) -> Self {
        Self::new(code, code.text())
    }

    /// Creates a failure with the given text.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail_code: None, origin: None, retryable: false, acp: None }
    }

    /// Sets the detail code.
    pub(crate) fn detail(mut self, detail_code: &str) -> Self {
        self.detail_code = Some(detail_code.to_owned());
        self
    }

    /// Sets the origin.
    pub(crate) fn origin(mut self, origin: &str) -> Self {
        self.origin = Some(origin.to_owned());
        self
    }

    /// True if retrying is useless until the database is repaired.
    pub(crate) fn needs_repair(&self) -> bool {
        matches!(self.detail_code.as_deref(), Some("STORE_DAMAGED" | "STORE_UNREADABLE"))
    }

    /// Marks the failure as retryable.
    pub(crate) fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }
}
