//! Request and response bodies of the local API, and its error format. Event lines are rendered by
//! [`crate::event_json`].
#![deny(clippy::indexing_slicing)]

mod gateway;
mod host;
mod requests;
mod session;
mod tokens;

pub use gateway::{
    AccountView, AgentView, BackendView, CapabilitiesView, CellOwnerView, ConfigView, HealthView, LimitsView,
    ListenerView, OwnerView, StatusView, StoreView, SupervisorView,
};
pub use host::{AuditView, CheckView, EvidenceView, FactView, LeaseView, ProcessView};
pub use requests::{
    AnswerBody, CancelBody, CloseBody, ConfigChoice, FileBody, NewBody, OptionBody, PromptBody, ReleaseBody,
    SessionPatch, SpawnBody, UnbindBody,
};
pub use session::{
    AcpxSessionView, BoundView, DiffView, DirectoriesView, EntriesView, EntryView, FileView, FilesView,
    Opening, OptionView, PendingPermissionView, PermissionView, RunView, SessionView, SpawnedView,
};
pub use tokens::{
    ConsoleBody, ConsoleOpenedView, IdentityView, LoginBody, LoginView, TokenBody, TokenCreatedView,
    TokenView,
};

use crate::failure::Failure;
use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// Name of the local API's socket in the state directory.
pub const SOCKET: &str = "gateway.sock";
/// Detail code of the answers of a gateway that stands by: another one serves its cell, or its database server is out of reach.
pub const STANDING_BY: &str = "STANDING_BY";
/// Header with the session or agent for which a client asks: the response is what that agent may see and do.
pub const ACTS_FOR_HEADER: &str = "acp-as";
/// Header with the idempotency key of a modifying request.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";
/// Header of an export or a stream of a session: the number of the last row that retention has pruned. Absent if all rows are
/// there.
pub const PRUNED_SEQ_HEADER: &str = "pruned-seq";
/// Header with the cursor of the next page of sessions; absent after the last page.
pub const NEXT_CURSOR_HEADER: &str = "next-cursor";
/// Name of the first SSE event of `GET /v1/stream`: its id is the position at which the stream begins.
pub const STREAM_START: &str = "start";
/// Name of the last SSE event: marks the end of the stream, as opposed to a lost connection.
pub const STREAM_END: &str = "end";

/// Position in the list of sessions in the order of creation, as an opaque text for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCursor(pub u64);

impl PageCursor {
    /// Returns the text for clients.
    pub fn encode(self) -> String {
        BASE64URL_NOPAD.encode(format!("s1:{}", self.0).as_bytes())
    }

    /// Parses a text of [`PageCursor::encode`]; the empty text is the beginning.
    pub fn decode(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self(i64::MAX.unsigned_abs()));
        }
        let text = String::from_utf8(BASE64URL_NOPAD.decode(text.as_bytes()).ok()?).ok()?;
        let number: u64 = text.strip_prefix("s1:")?.parse().ok()?;
        i64::try_from(number).ok().map(|_| Self(number))
    }
}

/// Response without data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Done {
    /// Always true; a refusal is an error response.
    pub ok: bool,
}

/// `GET /v1/sessions/{key}/events`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventsPage {
    /// Event lines, oldest first.
    #[schema(value_type = Vec<Object>)]
    pub events: Vec<Box<RawValue>>,
    /// Value of `after` for the next page.
    pub next_after: u64,
    /// True if more events exist already.
    pub more: bool,
    /// Number of the last row that retention has pruned: earlier rows are gone. Absent if all rows are there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pruned_seq: u64,
}

/// True if a number is left out of a response.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// `GET /v1/sessions/{key}/log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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

/// Body of a webhook of `[[notify]]`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WebhookBody {
    /// Type of the event: `permission`, `done` or `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Time of the event, as in RFC 3339.
    pub timestamp: String,
    /// Number of the event in the journal of the gateway, as in `GET /v1/stream`.
    pub event_id: u64,
    /// Event line.
    #[schema(value_type = Object)]
    pub data: Box<RawValue>,
}

/// Error, as in API responses and in the `--json` output of the command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
