//! The error type shared by the journal, API responses and command lines.

use crate::paths::hide_paths;
use acp_shared::codes::Code;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A failure, for people and for programs. Internal detail belongs in the log, not here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, ToSchema)]
#[error("{message} ({code})")]
pub struct Failure {
    /// Stable error code.
    #[schema(value_type = String)]
    pub code: Code,
    /// What happened and what to do next; for auth-required, the agent's own instructions.
    pub message: String,
    /// The message for conversations if it differs: without paths of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_text: Option<String>,
    /// Finer than the code, for programs: `AUTH_REQUIRED`, `AGENT_EXITED`, `AGENT_ERROR` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail_code: Option<String>,
    /// Origin of the failure: `agent`, `supervisor`, `gateway` or `client`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<str>>,
    /// True if sending the same request again may succeed.
    #[serde(default)]
    pub retryable: bool,
    /// The agent's JSON-RPC error object as received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub acp: Option<Box<serde_json::Value>>,
    /// With `ACP_AUTH_REQUIRED`: the agent's sign-in methods that need no terminal and no environment variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sign_in_methods: Option<Box<SignInMethods>>,
}

/// Sign-in methods of an agent, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignInMethods(pub Vec<SignInMethod>);

/// A sign-in method of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignInMethod {
    /// Id, for `auth_method`.
    pub id: String,
    /// Name for people.
    pub name: String,
}

impl Failure {
    /// Creates a failure with the code's own text.
    pub fn of(code: Code) -> Self {
        Self::new(code, code.text())
    }

    /// Creates a failure with the given text.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            conversation_text: None,
            detail_code: None,
            origin: None,
            retryable: false,
            acp: None,
            sign_in_methods: None,
        }
    }

    /// Sets the message for conversations. Required where the message contains a path of the server.
    pub fn for_conversations(mut self, text: impl Into<String>) -> Self {
        self.conversation_text = Some(text.into()).filter(|text| *text != self.message);
        self
    }

    /// Returns the message for conversations.
    pub fn text_for_conversations(&self) -> String {
        hide_paths(self.conversation_text.as_deref().unwrap_or(&self.message))
    }

    /// Sets the detail code.
    pub fn detail(mut self, detail_code: &str) -> Self {
        self.detail_code = Some(detail_code.to_owned());
        self
    }

    /// Sets the origin.
    pub fn origin(mut self, origin: &str) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// True if retrying is useless until the database is repaired.
    pub fn needs_repair(&self) -> bool {
        matches!(self.detail_code.as_deref(), Some("STORE_DAMAGED" | "STORE_UNREADABLE"))
    }

    /// Marks the failure as retryable.
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }
}
