//! Protocol between the gateway's side and the service: one JSON object per line, in both directions.

use serde::{Deserialize, Serialize};

/// From the gateway to the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum ToService {
    /// The first line of a connection.
    Hello {
        /// Pid of the gateway's process.
        life: u32,
    },
    /// Put a message into a conversation.
    Send {
        /// Call number, repeated in the answer.
        call: u64,
        /// The message.
        message: Text,
    },
    /// Look for a message by its nonce.
    Lookup {
        /// Call number, repeated in the answer.
        call: u64,
        /// The conversation.
        conversation: String,
        /// The nonce.
        nonce: String,
    },
    /// A person's message was accepted, or refused; stops its delivery.
    Acknowledge {
        /// The conversation.
        conversation: String,
        /// The service's id of the message.
        message_id: String,
        /// Reason of a refusal.
        refused: Option<String>,
    },
}

/// A message of the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// The conversation.
    pub conversation: String,
    /// Deduplication key: the service accepts it once within its window.
    pub nonce: String,
    /// `final`, `notice` …
    pub kind: String,
    /// The text.
    pub text: String,
}

/// From the service to the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub enum ToGateway {
    /// The message is in the conversation under this id.
    Sent {
        /// Number of the call.
        call: u64,
        /// The service's id.
        message_id: String,
    },
    /// Rate limit: retry later (429).
    Limited {
        /// Number of the call.
        call: u64,
        /// Delay, in milliseconds.
        retry_after_ms: u64,
    },
    /// Service unavailable (503).
    Unavailable {
        /// Number of the call.
        call: u64,
    },
    /// Result of a lookup: the id, if the message exists.
    Found {
        /// Number of the call.
        call: u64,
        /// The service's id.
        message_id: Option<String>,
    },
    /// The lookup failed.
    Unknown {
        /// Number of the call.
        call: u64,
    },
    /// A message of a person.
    Said(PersonText),
}

impl ToGateway {
    /// The call that it answers.
    #[must_use]
    pub const fn call(&self) -> Option<u64> {
        match self {
            Self::Sent { call, .. }
            | Self::Limited { call, .. }
            | Self::Unavailable { call }
            | Self::Found { call, .. }
            | Self::Unknown { call } => Some(*call),
            Self::Said(_) => None,
        }
    }
}

/// A message of a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonText {
    /// The conversation.
    pub conversation: String,
    /// The service's id.
    pub message_id: String,
    /// Its author.
    pub author: String,
    /// The text.
    pub text: String,
}

/// Encodes one line.
///
/// # Panics
/// Never: all message types can be encoded as JSON.
#[must_use]
pub fn line<T: Serialize>(value: &T) -> String {
    let mut line = serde_json::to_string(value).unwrap_or_else(|e| panic!("{e}"));
    line.push('\n');
    line
}
