//! Bindings of conversations to sessions, decided: where one may be made, when it leads nowhere, what a start does
//! about it, what a rebind keeps, and what a conversation is told when it begins.
//!
//! Source: seed 003 "Core service contract", `openclaw.md` §3 and D1, D4, D5, D10; design rule H13.

use crate::core::route::Target;
use crate::core::rows::{BindingRow, BindingStatus, ConversationRef, SessionRow};
use crate::core::sanitize;
use crate::core::session::SessionState;
use crate::core::ttl::span;
use crate::error::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::BindingId;
use serde::{Deserialize, Serialize};

/// Where a session is to be bound, seen from the conversation in which somebody asks for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Placement {
    /// In that conversation itself.
    #[default]
    Here,
    /// In a new conversation below it, e.g. a thread of a channel.
    Child,
}

/// What a channel can do about bindings in one of its conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The conversation itself can be bound.
    pub here: bool,
    /// A conversation can be made below it, and bound.
    pub child: bool,
    /// That is where a binding goes when nobody says where.
    pub child_first: bool,
}

impl Capabilities {
    /// Whether a binding may be placed so.
    pub(crate) const fn allow(self, placement: Placement) -> bool {
        match placement {
            Placement::Here => self.here,
            Placement::Child => self.child,
        }
    }

    /// Where a binding goes when nobody says where: here if that can be, else below. `None` when neither can.
    pub(crate) const fn usual(self) -> Option<Placement> {
        match self {
            Self { child: true, child_first: true, .. } => Some(Placement::Child),
            Self { here: true, .. } => Some(Placement::Here),
            Self { here: false, child: true, .. } => Some(Placement::Child),
            Self { here: false, child: false, .. } => None,
        }
    }
}

/// The conversation of a binding whose own is still to be made below `parent` (H13).
pub(crate) fn unmade(parent: &ConversationRef, binding_id: BindingId) -> ConversationRef {
    ConversationRef {
        channel: parent.channel.clone(),
        account_id: parent.account_id.clone(),
        conversation_id: format!("pending:{binding_id}"),
        parent_conversation_id: Some(parent.conversation_id.clone()),
    }
}

/// Why a binding leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stale {
    /// Its session is not there any more.
    SessionMissing,
    /// Its session is closed.
    SessionClosed,
}

impl Stale {
    /// Whether a binding to such a session leads nowhere. A session in error is one that can be gone on with.
    pub(crate) const fn of(target: Target) -> Option<Self> {
        match target {
            Target::Missing => Some(Self::SessionMissing),
            Target::Known(SessionState::Closed) => Some(Self::SessionClosed),
            Target::Known(_) => None,
        }
    }

    /// The reason, for logs, counters and programs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::SessionMissing => "session-missing",
            Self::SessionClosed => "session-closed",
        }
    }

    /// What the conversation is told, before and after the binding was removed.
    pub(crate) fn failure(self, binding: &BindingRow, removed: bool) -> Failure {
        let (key, code) = (&binding.session_key, Code::StaleBinding);
        let what = match self {
            Self::SessionMissing => "does not exist any more",
            Self::SessionClosed => "is closed",
        };
        let text = if removed {
            format!(
                "This conversation was bound to {key}, which {what} ({code}). Your message went nowhere, and the \
                 binding was removed. Start a session with /acp spawn, or bind one with /focus KEY."
            )
        } else {
            format!(
                "This conversation is bound to {key}, which {what} ({code}). Your message went nowhere. Say /unfocus, \
                 then start a session with /acp spawn or bind one with /focus KEY."
            )
        };
        let detail = match self {
            Self::SessionMissing => "SESSION_MISSING",
            Self::SessionClosed => "SESSION_CLOSED",
        };
        Failure::new(code, text).detail(detail).origin("gateway")
    }
}

/// What a start does about a binding that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtStart {
    /// It stays.
    Keep,
    /// It leads nowhere and goes.
    End(Stale),
    /// Its conversation is still to be made (H13).
    Finish,
}

/// Decides it (D10). A session that could not be read (`None`) is no reason to end anything, and neither is one with
/// runs that have not ended: somebody must look at those first.
pub(crate) fn at_start(status: BindingStatus, target: Option<Target>, runs_due: u64) -> AtStart {
    let Some(target) = target else { return AtStart::Keep };
    match (Stale::of(target), status) {
        (_, BindingStatus::Ended) => AtStart::Keep,
        (Some(stale), _) if runs_due == 0 => AtStart::End(stale),
        (Some(_), _) => AtStart::Keep,
        (None, BindingStatus::Pending) => AtStart::Finish,
        (None, BindingStatus::Active | BindingStatus::Parked | BindingStatus::Ending) => AtStart::Keep,
    }
}

/// A binding that takes the place of another one in its conversation: the windows that hold there stay (D5), and how
/// much is told there.
pub(crate) fn renewed(new: BindingRow, before: &BindingRow) -> BindingRow {
    let BindingRow { idle_ms, max_age_ms, verbosity, .. } = *before;
    BindingRow { idle_ms, max_age_ms, verbosity, ..new }
}

/// A window of a binding that a person can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// It ends after this long without a word.
    Idle,
    /// It ends this long after it began.
    MaxAge,
}

impl Window {
    /// Its name in commands.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::MaxAge => "max-age",
        }
    }
}

/// The binding with another window; `None` is off. The window begins now (D4).
pub(crate) fn with_window(
    binding: BindingRow,
    window: Window,
    window_ms: Option<u64>,
    now_ms: u64,
) -> BindingRow {
    let window_ms = window_ms.filter(|ms| *ms > 0);
    match window {
        Window::Idle => BindingRow {
            idle_ms: window_ms,
            last_activity_at_ms: binding.last_activity_at_ms.max(now_ms),
            ..binding
        },
        Window::MaxAge => {
            BindingRow { max_age_ms: window_ms, bound_at_ms: binding.bound_at_ms.max(now_ms), ..binding }
        }
    }
}

/// Notice of a new binding (D1): agent, directory, session ids and lifetime. It says nothing of the agent's process, which
/// may still be starting.
pub(crate) fn intro(session: &SessionRow, binding: &BindingRow) -> String {
    let name = sanitize::line(session.label.as_deref().unwrap_or(session.agent.as_str()), usize::MAX);
    let own = match &session.agent_session_id {
        Some(id) => format!("agent's id {}", sanitize::line(id, usize::MAX)),
        None => "agent's id with its first answer".to_owned(),
    };
    format!(
        "{name} is bound here, in {}: session {}, {own}. What you type goes to it. {}",
        sanitize::line(&session.cwd, usize::MAX),
        session.session_key,
        lifetime(binding)
    )
}

/// How long a binding lasts, in words for people.
pub(crate) fn lifetime(binding: &BindingRow) -> String {
    let on = |window: Option<u64>| window.filter(|ms| *ms > 0).map(span);
    match (on(binding.idle_ms), on(binding.max_age_ms)) {
        (None, None) => "The binding does not end by itself.".to_owned(),
        (Some(idle), None) => format!("The binding ends after {idle} without a word."),
        (None, Some(age)) => format!("The binding ends {age} after it began."),
        (Some(idle), Some(age)) => {
            format!("The binding ends after {idle} without a word, and {age} after it began at the latest.")
        }
    }
}

#[cfg(test)]
#[path = "binding_tests.rs"]
mod tests;
