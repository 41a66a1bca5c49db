//! What the gateway's side and the service say to each other: one JSON object a line, in both directions.

use serde::{Deserialize, Serialize};

/// From the gateway to the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// The first line of a connection.
    Hello {
        /// Which process of the gateway: another one has another number.
        life: u32,
    },
    /// Put a message into a conversation.
    Send {
        /// Names the answer.
        call: u64,
        /// The message.
        message: Text,
    },
    /// Look for a message by its nonce.
    Lookup {
        /// Names the answer.
        call: u64,
        /// The conversation.
        conversation: String,
        /// The nonce.
        nonce: String,
    },
    /// What a person said need not be brought again; or it cannot be taken.
    Acknowledge {
        /// The conversation.
        conversation: String,
        /// The service's id of it.
        message_id: String,
        /// Why it cannot be taken.
        refused: Option<String>,
    },
}

/// A message of the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// Where.
    pub conversation: String,
    /// Names it: within the service's window it is not taken twice.
    pub nonce: String,
    /// `final`, `notice` …
    pub kind: String,
    /// What is shown.
    pub text: String,
}

/// From the service to the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub enum Tell {
    /// It is in the conversation under this id.
    Sent {
        /// Of which call.
        call: u64,
        /// The service's id.
        message_id: String,
    },
    /// Too many: later (429).
    Limited {
        /// Of which call.
        call: u64,
        /// When, in milliseconds from now.
        retry_after_ms: u64,
    },
    /// Not taken, for no fault of the message (503).
    Unavailable {
        /// Of which call.
        call: u64,
    },
    /// What a look came to: the id, if it is there.
    Found {
        /// Of which call.
        call: u64,
        /// The service's id.
        message_id: Option<String>,
    },
    /// The look failed.
    Unknown {
        /// Of which call.
        call: u64,
    },
    /// A person said something.
    Said(Said),
}

impl Tell {
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

/// What a person said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Where.
    pub conversation: String,
    /// The service's id of it.
    pub message_id: String,
    /// Who.
    pub author: String,
    /// What.
    pub text: String,
}

/// One line.
///
/// # Panics
/// Never: all of these can be written as JSON.
#[must_use]
pub fn line<T: Serialize>(value: &T) -> String {
    let mut line = serde_json::to_string(value).unwrap_or_else(|e| panic!("{e}"));
    line.push('\n');
    line
}
