//! What the local API and its clients exchange: requests, answers and the shape of an error. Event lines are
//! made by [`crate::core::view`].
#![deny(clippy::indexing_slicing)]

mod bodies;
mod gateway;
mod session;

pub(crate) use bodies::{
    AnswerBody, CancelBody, CloseBody, ConfigChoice, NewBody, OptionBody, PromptBody, SpawnBody, UnbindBody,
};
pub(crate) use gateway::{
    AccountView, AgentView, BackendView, ConfigView, HealthView, StatusView, StoreView, SupervisorView,
};
pub(crate) use session::{BoundView, Opening, OptionView, PermissionView, RunView, SessionView, SpawnedView};

use crate::error::Failure;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Name of the local API's socket in the state directory.
pub(crate) const SOCKET: &str = "gateway.sock";
/// Header that carries the idempotency key of an acting request.
pub(crate) const IDEMPOTENCY_HEADER: &str = "idempotency-key";
/// Name of the SSE event after which nothing follows: the stream ended, rather than the connection.
pub(crate) const STREAM_END: &str = "end";

/// The answer where there is nothing to tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Always true: a refusal is an error.
    pub(crate) ok: bool,
}

/// `GET /v1/sessions/{key}/events`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EventsPage {
    /// Event lines, oldest first.
    pub(crate) events: Vec<Box<RawValue>>,
    /// Ask with `after` set to this for what follows.
    pub(crate) next_after: u64,
    /// Whether something follows already.
    pub(crate) more: bool,
}

/// `GET /v1/sessions/{key}/log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogPage {
    /// Lines of the log, whole ones.
    pub(crate) text: String,
    /// Offset of the first byte of `text` in the log. It is not the one asked for where the log begins later.
    pub(crate) offset: u64,
    /// Ask with `offset` set to this for what follows.
    pub(crate) next_offset: u64,
    /// True if more lines follow already.
    pub(crate) more: bool,
}

/// An error, as API answers and the command line's `--json` print it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ErrorBody {
    /// Always `error`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// What went wrong.
    #[serde(flatten)]
    pub(crate) failure: Failure,
}

impl From<Failure> for ErrorBody {
    fn from(failure: Failure) -> Self {
        Self { kind: "error".to_owned(), failure }
    }
}
