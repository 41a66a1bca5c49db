//! Request and response bodies of the local API, and its error format. Event lines are rendered by
//! [`crate::event_json`].
#![deny(clippy::indexing_slicing)]

mod gateway;
mod requests;
mod session;
mod tokens;

pub use gateway::{
    AccountView, AgentView, BackendView, ConfigView, HealthView, ListenerView, StatusView, StoreView,
    SupervisorView,
};
pub use requests::{
    AnswerBody, CancelBody, CloseBody, ConfigChoice, NewBody, OptionBody, PromptBody, SpawnBody, UnbindBody,
};
pub use session::{BoundView, Opening, OptionView, PermissionView, RunView, SessionView, SpawnedView};
pub use tokens::{TokenBody, TokenCreatedView, TokenView};

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Name of the local API's socket in the state directory.
pub const SOCKET: &str = "gateway.sock";
/// Header with the idempotency key of a modifying request.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";
/// Name of the last SSE event: marks the end of the stream, as opposed to a lost connection.
pub const STREAM_END: &str = "end";

/// Response without data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Always true; a refusal is an error response.
    pub ok: bool,
}

/// `GET /v1/sessions/{key}/events`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EventsPage {
    /// Event lines, oldest first.
    pub events: Vec<Box<RawValue>>,
    /// Value of `after` for the next page.
    pub next_after: u64,
    /// True if more events exist already.
    pub more: bool,
}

/// `GET /v1/sessions/{key}/log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPage {
    /// Complete lines of the log.
    pub text: String,
    /// Offset of the first byte of `text` in the log. Greater than the requested offset if the log begins
    /// later.
    pub offset: u64,
    /// Value of `offset` for the next page.
    pub next_offset: u64,
    /// True if more lines exist already.
    pub more: bool,
}

/// Error, as in API responses and in the `--json` output of the command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Always `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Error code, message and details.
    #[serde(flatten)]
    pub failure: Failure,
}

impl From<Failure> for ErrorBody {
    fn from(failure: Failure) -> Self {
        Self { kind: "error".to_owned(), failure }
    }
}
