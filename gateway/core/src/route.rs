//! Routing of messages from a conversation to a session, and from a session to a conversation.
//!
//! There are exactly three outcomes: bound, unbound with the channel's normal destination, or refused. There
//! is no implicit fallback, and routing ignores content. Every outcome carries a reason.

use crate::binding::{BoundSession, StaleReason};
use crate::failure::Failure;
use crate::rows::{BindingRow, BindingStatus, ConversationRef};
use crate::session::SessionState;
use acp_shared::codes::Code;
use acp_shared::ids::{BindingId, SessionKey};

/// Route of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Through a binding.
    Bound {
        /// The binding.
        binding_id: BindingId,
        /// Session of the binding.
        session_key: SessionKey,
        /// Reason, for logs and counters.
        reason: &'static str,
    },
    /// No binding applies: the channel's normal destination, named by the caller.
    Unbound {
        /// Normal destination.
        destination: UnboundDestination,
        /// Reason, for logs and counters.
        reason: &'static str,
    },
    /// No destination. The person gets an error message.
    Refused {
        /// Error message for the person.
        failure: Failure,
        /// Reason, for logs and counters.
        reason: &'static str,
    },
}

impl Route {
    /// Returns the reason for the outcome, for logs and counters.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Bound { reason, .. } | Self::Unbound { reason, .. } | Self::Refused { reason, .. } => {
                reason
            }
        }
    }

    /// Returns the outcome in one word, for logs and counters.
    pub const fn outcome(&self) -> &'static str {
        match self {
            Self::Bound { .. } => "bound",
            Self::Unbound { .. } => "unbound",
            Self::Refused { .. } => "refused",
        }
    }
}

/// Normal destination of a message without a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnboundDestination {
    /// Inbound: ignore the message, without a reply.
    Ignore,
    /// Inbound: reply with instructions to bind the conversation.
    Hint,
    /// Outbound: this conversation.
    Conversation(ConversationRef),
    /// Outbound: the journal only, where every client can read the message.
    Journal,
}

/// Returns the name of a binding's expired timeout, if any. A running turn keeps the binding alive.
pub fn expired(binding: &BindingRow, session: BoundSession, now_ms: u64) -> Option<&'static str> {
    if matches!(session, BoundSession::Known(SessionState::Running | SessionState::Cancelling)) {
        return None;
    }
    let over = |since_ms: u64, window_ms: Option<u64>| {
        window_ms.is_some_and(|window_ms| window_ms > 0 && now_ms.saturating_sub(since_ms) >= window_ms)
    };
    if over(binding.bound_at_ms, binding.max_age_ms) {
        Some("max-age")
    } else if over(binding.last_activity_at_ms, binding.idle_ms) {
        Some("idle")
    } else {
        None
    }
}

/// Returns the route of a person's message. `binding` is the newest binding of the conversation that has not
/// ended; `normal` is the channel's destination for messages without a binding.
pub fn route_inbound(
    binding: Option<(&BindingRow, BoundSession)>,
    normal: UnboundDestination,
    now_ms: u64,
) -> Route {
    let Some((binding, session)) = binding else {
        return Route::Unbound { destination: normal, reason: "no-binding" };
    };
    match (binding.status, StaleReason::of(session)) {
        (BindingStatus::Ended, _) => Route::Unbound { destination: normal, reason: "binding-ended" },
        (_, Some(stale)) => stale_route(stale, binding),
        (BindingStatus::Pending, None) => pending(),
        (BindingStatus::Ending, None) => refused(Code::NotBound, "binding-ending"),
        (BindingStatus::Active | BindingStatus::Parked, None) => match expired(binding, session, now_ms) {
            Some(why) => {
                let text = format!(
                    "The binding of this conversation has expired ({why}). Bind it again with /focus {}, or \
                     start a new session with /acp spawn.",
                    binding.session_key
                );
                let failure = Failure::new(Code::NotBound, text).detail("BINDING_EXPIRED");
                Route::Refused { failure, reason: "binding-expired" }
            }
            None => bound(binding, "active-binding"),
        },
    }
}

/// Facts for the route of an outbound message. The content is excluded, since it must not decide the
/// destination.
#[derive(Debug, Clone, Copy)]
pub struct OutboundContext<'a> {
    /// Sending session, if named.
    pub session_key: Option<&'a SessionKey>,
    /// State of the session.
    pub session: BoundSession,
    /// Bindings of the session.
    pub bindings: &'a [BindingRow],
    /// Conversation of the request; `None` for a caller without one.
    pub requester: Option<&'a ConversationRef>,
}

/// Returns the route of an outbound message of a session to one conversation. `served`: an adapter exists for
/// the channel and account of a conversation.
///
/// Only the session's own bindings decide, not the owner or spawner: a bound child answers in the bound
/// conversation. The active binding that fits the requester is chosen. If several fit, or the only ones are
/// elsewhere, the route is refused. Source: seed 000 "Duplicate delivery arbitration", seed 003 "Routing
/// invariants".
pub fn route_outbound(question: OutboundContext<'_>, served: impl Fn(&ConversationRef) -> bool) -> Route {
    let OutboundContext { session_key: Some(session_key), session, bindings, requester } = question else {
        return refused(Code::NoSession, "missing-target-session");
    };
    let is_valid = |it: &ConversationRef| !it.channel.is_empty() && !it.conversation_id.is_empty();
    if requester.is_some_and(|requester| !is_valid(requester)) {
        return refused(Code::Usage, "invalid-requester");
    }
    let own: Vec<&BindingRow> = bindings
        .iter()
        .filter(|it| it.session_key == *session_key && it.status != BindingStatus::Ended)
        .collect();
    match (StaleReason::of(session), own.first()) {
        (Some(stale), Some(binding)) => return stale_route(stale, binding),
        (Some(StaleReason::SessionMissing), None) => return refused(Code::NoSession, "session-missing"),
        (Some(StaleReason::SessionClosed), None) | (None, _) => {}
    }
    let (active, others): (Vec<&BindingRow>, Vec<&BindingRow>) =
        own.into_iter().partition(|it| it.status.is_live());
    let chosen = match (active.as_slice(), requester) {
        ([], _) if others.iter().any(|it| it.status == BindingStatus::Pending) => return pending(),
        ([], None) => {
            return Route::Unbound { destination: UnboundDestination::Journal, reason: "no-active-binding" };
        }
        ([], Some(requester)) if !served(requester) => return unserved(requester),
        ([], Some(requester)) => {
            return Route::Unbound {
                destination: UnboundDestination::Conversation(requester.clone()),
                reason: "no-active-binding",
            };
        }
        ([only], None) => Ok((*only, "single-active-binding")),
        (_, None) => Err("ambiguous-without-requester"),
        (active, Some(requester)) => matching_binding(active, requester),
    };
    match chosen {
        Ok((binding, _)) if !served(&binding.conversation) => unserved(&binding.conversation),
        Ok((binding, reason)) => bound(binding, reason),
        Err(reason) => ambiguous(session_key, reason),
    }
}

/// Returns the binding that fits the conversation of a request: the binding of that conversation, or else the
/// only binding of a child conversation.
fn matching_binding<'a>(
    active: &[&'a BindingRow],
    requester: &ConversationRef,
) -> Result<(&'a BindingRow, &'static str), &'static str> {
    let same_account = active.iter().copied().filter(|it| is_same_account(&it.conversation, requester));
    let (mut exact, mut below) = (None, Vec::new());
    for binding in same_account {
        if binding.conversation.conversation_id == requester.conversation_id {
            exact = exact.or(Some(binding));
        } else if binding.conversation.parent_conversation_id.as_deref() == Some(&requester.conversation_id) {
            below.push(binding);
        }
    }
    match (exact, below.as_slice()) {
        (Some(exact), _) => Ok((exact, "requester-match")),
        (None, [only]) => Ok((*only, "requester-parent-match")),
        (None, []) => Err("no-requester-match"),
        (None, _) => Err("ambiguous-below-requester"),
    }
}

fn is_same_account(one: &ConversationRef, other: &ConversationRef) -> bool {
    one.channel == other.channel && one.account_id == other.account_id
}

fn bound(binding: &BindingRow, reason: &'static str) -> Route {
    Route::Bound { binding_id: binding.binding_id, session_key: binding.session_key.clone(), reason }
}

fn refused(code: Code, reason: &'static str) -> Route {
    Route::Refused { failure: Failure::of(code), reason }
}

fn stale_route(stale: StaleReason, binding: &BindingRow) -> Route {
    Route::Refused { failure: stale.failure(binding, false), reason: stale.as_str() }
}

fn pending() -> Route {
    let text = "This conversation is still being bound to its session. Send the message again in a moment.";
    let failure = Failure::new(Code::NotBound, text).detail("BINDING_PENDING").retryable();
    Route::Refused { failure, reason: "binding-pending" }
}

fn ambiguous(session_key: &SessionKey, reason: &'static str) -> Route {
    let text = format!(
        "The conversation in which {session_key} should answer is ambiguous: the session is bound to another \
         conversation, or to several. Nothing was sent. Send the message in a conversation that is bound to \
         it; `acp-gateway sessions show` lists them."
    );
    Route::Refused { failure: Failure::new(Code::NotBound, text).detail("AMBIGUOUS_DESTINATION"), reason }
}

fn unserved(at: &ConversationRef) -> Route {
    Route::Refused { failure: no_adapter_error(&at.channel, &at.account_id), reason: "adapter-unavailable" }
}

/// Returns the error for an account without an adapter.
pub fn no_adapter_error(channel: &str, account_id: &str) -> Failure {
    let text = format!(
        "No adapter serves account {account_id:?} of channel {channel:?}, so no message can be sent there. \
         Enable the account in the configuration and restart the gateway, or unbind its conversations; \
         pending messages wait until then."
    );
    Failure::new(Code::ChannelUnavailable, text).origin("gateway").retryable()
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
