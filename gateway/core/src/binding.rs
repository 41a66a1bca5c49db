//! Rules for bindings of conversations to sessions: placement, stale bindings, reconciliation at start,
//! rebinding, timeouts, and the notice of a new binding.
//!
//! Source: seed 003 "Core service contract", `openclaw.md` §3 and D1, D4, D5, D10; design rule H13.

use crate::failure::Failure;
use crate::render::escape_name;
use crate::rows::{BindingRow, BindingStatus, ConversationRef, SessionRow};
use crate::sanitize;
use crate::session::SessionState;
use crate::timeouts::format_duration;
use acp_shared::codes::Code;
use acp_shared::ids::BindingId;
use serde::{Deserialize, Serialize};

/// Placement of a new binding, relative to the conversation of the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// The conversation of the request.
    #[default]
    Here,
    /// A new child conversation, e.g. a thread of a channel.
    Child,
}

/// Placements of a binding supported by a channel, for one conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// True if the conversation itself can be bound.
    pub here: bool,
    /// True if a child conversation can be created and bound.
    pub child: bool,
    /// True if a child conversation is the default placement.
    pub child_first: bool,
}

impl Capabilities {
    /// True if the channel supports this placement.
    pub const fn allow(self, placement: Placement) -> bool {
        match placement {
            Placement::Here => self.here,
            Placement::Child => self.child,
        }
    }

    /// Returns the default placement: a child if preferred, else the conversation itself, else a child.
    /// `None` if neither is supported.
    pub const fn default_placement(self) -> Option<Placement> {
        match self {
            Self { child: true, child_first: true, .. } => Some(Placement::Child),
            Self { here: true, .. } => Some(Placement::Here),
            Self { here: false, child: true, .. } => Some(Placement::Child),
            Self { here: false, child: false, .. } => None,
        }
    }
}

/// Returns the placeholder conversation of a binding whose child of `parent` is not created yet (H13).
pub fn placeholder_conversation(parent: &ConversationRef, binding_id: BindingId) -> ConversationRef {
    ConversationRef {
        channel: parent.channel.clone(),
        account_id: parent.account_id.clone(),
        conversation_id: format!("pending:{binding_id}"),
        parent_conversation_id: Some(parent.conversation_id.clone()),
    }
}

/// Key in a binding's metadata for the origin of the conversation.
const ORIGIN: &str = "origin";

/// Message of a person from which the conversation of a binding is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationOrigin {
    /// The channel's id of the message.
    pub message_id: String,
    /// Title of the new conversation.
    pub title: String,
}

impl ConversationOrigin {
    /// Reads the origin from a binding's metadata; `None` if the binding has none.
    pub fn from_metadata(metadata: &str) -> Option<Self> {
        let mut metadata: serde_json::Value = serde_json::from_str(metadata).ok()?;
        serde_json::from_value(metadata.get_mut(ORIGIN)?.take()).ok()
    }

    /// Returns the metadata of a binding with this origin.
    pub fn metadata(&self) -> String {
        serde_json::json!({ ORIGIN: self }).to_string()
    }
}

/// Key in the metadata of a binding that was made for a session which an agent spawned.
const AGENT_SPAWN: &str = "agent_spawn";

/// Returns the metadata of the binding of a session that an agent spawns.
pub fn agent_spawn_metadata() -> String {
    serde_json::json!({ AGENT_SPAWN: true }).to_string()
}

/// True if the metadata of a binding is that of a session which an agent spawned, and no person bound it.
pub fn is_of_agent_spawn(metadata: &str) -> bool {
    let metadata: Option<serde_json::Value> = serde_json::from_str(metadata).ok();
    metadata.is_some_and(|metadata| metadata.get(AGENT_SPAWN) == Some(&true.into()))
}

/// State of a binding's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundSession {
    /// No such session.
    Missing,
    /// Existing session in this state.
    Known(SessionState),
}

acp_shared::named! {
    /// Reason why a binding is stale, as a word for logs, counters and API clients.
    pub enum StaleReason {
        /// The session does not exist.
        SessionMissing = "session-missing",
        /// The session is closed.
        SessionClosed = "session-closed",
    }
}

impl StaleReason {
    /// Returns the reason why a binding to this session is stale. A session in `error` is still usable.
    pub const fn of(target: BoundSession) -> Option<Self> {
        match target {
            BoundSession::Missing => Some(Self::SessionMissing),
            BoundSession::Known(SessionState::Closed) => Some(Self::SessionClosed),
            BoundSession::Known(_) => None,
        }
    }

    /// Returns the error message for the conversation. `removed`: the binding is already removed.
    pub fn failure(self, binding: &BindingRow, removed: bool) -> Failure {
        let (key, code) = (&binding.session_key, Code::StaleBinding);
        let what = match self {
            Self::SessionMissing => "no longer exists",
            Self::SessionClosed => "is closed",
        };
        let text = if removed {
            format!(
                "This conversation was bound to {key}, which {what} ({code}). Your message was not \
                 delivered, and the binding was removed. Start a session with /acp spawn, or bind one with \
                 /focus KEY."
            )
        } else {
            format!(
                "This conversation is bound to {key}, which {what} ({code}). Your message was not delivered. \
                 Use /unfocus, then start a session with /acp spawn or bind one with /focus KEY."
            )
        };
        let detail = match self {
            Self::SessionMissing => "SESSION_MISSING",
            Self::SessionClosed => "SESSION_CLOSED",
        };
        Failure::new(code, text).detail(detail).origin("gateway")
    }
}

/// Action at start for a binding that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartupAction {
    /// Keep the binding.
    Keep,
    /// End the stale binding.
    End(StaleReason),
    /// Create the missing conversation of the binding (H13).
    Finish,
}

/// Returns the action for a binding at start (D10). A binding is kept if the session could not be read
/// (`None`), or if a stale session has unfinished runs, which a person must look at first.
pub fn startup_action(status: BindingStatus, target: Option<BoundSession>, runs_due: u64) -> StartupAction {
    let Some(target) = target else { return StartupAction::Keep };
    match (StaleReason::of(target), status) {
        (_, BindingStatus::Ended) => StartupAction::Keep,
        (Some(stale), _) if runs_due == 0 => StartupAction::End(stale),
        (Some(_), _) => StartupAction::Keep,
        (None, BindingStatus::Pending) => StartupAction::Finish,
        (None, BindingStatus::Active | BindingStatus::Parked | BindingStatus::Ending) => StartupAction::Keep,
    }
}

/// Returns the binding that replaces `before` in the same conversation. Timeouts (D5) and verbosity carry
/// over.
pub fn carry_over_settings(new: BindingRow, before: &BindingRow) -> BindingRow {
    let BindingRow { idle_ms, max_age_ms, verbosity, .. } = *before;
    BindingRow { idle_ms, max_age_ms, verbosity, ..new }
}

acp_shared::named! {
    /// Timeout of a binding that a person can set, named as in commands.
    pub enum BindingTimeout {
        /// Maximum time without activity.
        Idle = "idle",
        /// Maximum age.
        MaxAge = "max-age",
    }
}

/// Returns the binding with a changed timeout, which restarts now (D4). `None` turns the timeout off.
pub fn with_timeout(
    binding: BindingRow,
    window: BindingTimeout,
    window_ms: Option<u64>,
    now_ms: u64,
) -> BindingRow {
    let window_ms = window_ms.filter(|ms| *ms > 0);
    match window {
        BindingTimeout::Idle => BindingRow {
            idle_ms: window_ms,
            last_activity_at_ms: binding.last_activity_at_ms.max(now_ms),
            ..binding
        },
        BindingTimeout::MaxAge => {
            BindingRow { max_age_ms: window_ms, bound_at_ms: binding.bound_at_ms.max(now_ms), ..binding }
        }
    }
}

/// Returns the notice of a new binding (D1): agent, directory, session ids and lifetime. The agent's process
/// is not mentioned, since the process may still be starting.
pub fn binding_notice(session: &SessionRow, binding: &BindingRow, is_markdown: bool) -> String {
    let name = escape_name(session.label.as_deref().unwrap_or(session.agent.as_str()), is_markdown);
    let own = match &session.agent_session_id {
        Some(id) => format!("agent's session id {}", escape_name(id, is_markdown)),
        None => "agent's session id not yet known".to_owned(),
    };
    let spawner = session.spawned_by.as_ref();
    let spawner = spawner.map(|spawner| format!(", started by session {spawner}")).unwrap_or_default();
    format!(
        "{name} is bound here, in {}: session {}, {own}{spawner}. Messages here go to it. {}",
        sanitize::line(&session.cwd, usize::MAX),
        session.session_key,
        lifetime_text(binding)
    )
}

/// Returns the lifetime of a binding as a sentence for people.
pub fn lifetime_text(binding: &BindingRow) -> String {
    let on = |window: Option<u64>| window.filter(|ms| *ms > 0).map(format_duration);
    match (on(binding.idle_ms), on(binding.max_age_ms)) {
        (None, None) => "The binding has no timeout.".to_owned(),
        (Some(idle), None) => format!("The binding ends after {idle} of inactivity."),
        (None, Some(age)) => format!("The binding ends {age} after its start."),
        (Some(idle), Some(age)) => {
            format!("The binding ends after {idle} of inactivity, and {age} after its start at the latest.")
        }
    }
}

#[cfg(test)]
#[path = "binding_tests.rs"]
mod tests;
