//! Where a message goes: from a conversation to a session, and from a session to a conversation.
//!
//! Three outcomes and no fourth: bound, unbound with the channel's normal destination named, or refused. Nothing
//! falls back by itself, and no content is looked at. Every outcome carries its reason.

use crate::core::binding::Stale;
use crate::core::rows::{BindingRow, BindingStatus, ConversationRef};
use crate::core::session::SessionState;
use crate::error::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::{BindingId, SessionKey};

/// Where a message goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// Through a binding.
    Bound {
        /// The binding.
        binding_id: BindingId,
        /// Its session.
        session_key: SessionKey,
        /// Why, for logs and counters.
        reason: &'static str,
    },
    /// No binding speaks for it: the channel's normal destination, named by the caller.
    Unbound {
        /// Where that is.
        destination: Destination,
        /// Why, for logs and counters.
        reason: &'static str,
    },
    /// It goes nowhere, and that is said.
    Refused {
        /// What the person is told.
        failure: Failure,
        /// Why, for logs and counters.
        reason: &'static str,
    },
}

impl Route {
    /// Why this outcome was chosen, for logs and counters.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::Bound { reason, .. } | Self::Unbound { reason, .. } | Self::Refused { reason, .. } => {
                reason
            }
        }
    }

    /// The outcome in one word, for logs and counters.
    pub(crate) const fn outcome(&self) -> &'static str {
        match self {
            Self::Bound { .. } => "bound",
            Self::Unbound { .. } => "unbound",
            Self::Refused { .. } => "refused",
        }
    }
}

/// The normal destination of a message that no binding speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Inbound: the message is none of ours, and nothing is said.
    Ignore,
    /// Inbound: the person is told how to bind the conversation.
    Hint,
    /// Outbound: this conversation.
    Conversation(ConversationRef),
    /// Outbound: the journal alone, where every client can read it.
    Journal,
}

/// What is known of a binding's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// There is no such session.
    Missing,
    /// It is in this state.
    Known(SessionState),
}

/// Why a binding has outlived its windows, if it has. A running turn keeps it alive.
pub(crate) fn expired(binding: &BindingRow, session: Target, now_ms: u64) -> Option<&'static str> {
    if matches!(session, Target::Known(SessionState::Running | SessionState::Cancelling)) {
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

/// Where a person's message in a conversation goes. `binding` is the newest one of the conversation that has not
/// ended; `normal` is what the channel does with messages that no binding speaks for.
pub(crate) fn inbound(binding: Option<(&BindingRow, Target)>, normal: Destination, now_ms: u64) -> Route {
    let Some((binding, session)) = binding else {
        return Route::Unbound { destination: normal, reason: "no-binding" };
    };
    match (binding.status, Stale::of(session)) {
        (BindingStatus::Ended, _) => Route::Unbound { destination: normal, reason: "binding-ended" },
        (_, Some(stale)) => stale_at(stale, binding),
        (BindingStatus::Pending, None) => pending(),
        (BindingStatus::Ending, None) => refused(Code::NotBound, "binding-ending"),
        (BindingStatus::Active | BindingStatus::Parked, None) => match expired(binding, session, now_ms) {
            Some(why) => {
                let text = format!(
                    "This conversation's binding is over ({why}). Bind it again with /focus {}, or start a new session with /acp spawn.",
                    binding.session_key
                );
                let failure = Failure::new(Code::NotBound, text).detail("BINDING_EXPIRED");
                Route::Refused { failure, reason: "binding-expired" }
            }
            None => bound(binding, "active-binding"),
        },
    }
}

/// What is known when one destination is looked for. No content is among it: what is said never decides where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    /// The session that has something to say, if it is named at all.
    pub(crate) session_key: Option<&'a SessionKey>,
    /// What is known of it.
    pub(crate) session: Target,
    /// Its bindings.
    pub(crate) bindings: &'a [BindingRow],
    /// The conversation in which it was asked for; `None` for a caller without one.
    pub(crate) requester: Option<&'a ConversationRef>,
}

/// Where something that a session has to say goes, when it goes to one conversation. `served` tells whether there is
/// an adapter for a conversation's channel and account.
///
/// The session's own bindings decide, and never who owns or spawned it: a child that is bound answers where it is
/// bound. An active binding that fits the requester gets it and nobody else does; where several fit, or the only ones
/// lie elsewhere, it is refused. Source: seed 000 "Duplicate delivery arbitration", seed 003 "Routing invariants".
pub(crate) fn resolve(question: Question<'_>, served: impl Fn(&ConversationRef) -> bool) -> Route {
    let Question { session_key: Some(session_key), session, bindings, requester } = question else {
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
    match (Stale::of(session), own.first()) {
        (Some(stale), Some(binding)) => return stale_at(stale, binding),
        (Some(Stale::SessionMissing), None) => return refused(Code::NoSession, "session-missing"),
        (Some(Stale::SessionClosed), None) | (None, _) => {}
    }
    let (active, others): (Vec<&BindingRow>, Vec<&BindingRow>) =
        own.into_iter().partition(|it| it.status.is_live());
    let chosen = match (active.as_slice(), requester) {
        ([], _) if others.iter().any(|it| it.status == BindingStatus::Pending) => return pending(),
        ([], None) => {
            return Route::Unbound { destination: Destination::Journal, reason: "no-active-binding" };
        }
        ([], Some(requester)) if !served(requester) => return unserved(requester),
        ([], Some(requester)) => {
            return Route::Unbound {
                destination: Destination::Conversation(requester.clone()),
                reason: "no-active-binding",
            };
        }
        ([only], None) => Ok((*only, "single-active-binding")),
        (_, None) => Err("ambiguous-without-requester"),
        (active, Some(requester)) => fitting(active, requester),
    };
    match chosen {
        Ok((binding, _)) if !served(&binding.conversation) => unserved(&binding.conversation),
        Ok((binding, reason)) => bound(binding, reason),
        Err(reason) => ambiguous(session_key, reason),
    }
}

/// The binding that fits the conversation in which something was asked for: that conversation's own, or else the only
/// one of a conversation below it.
fn fitting<'a>(
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

fn stale_at(stale: Stale, binding: &BindingRow) -> Route {
    Route::Refused { failure: stale.failure(binding, false), reason: stale.as_str() }
}

fn pending() -> Route {
    let text = "This conversation is still being bound to its session. Send the message again in a moment.";
    let failure = Failure::new(Code::NotBound, text).detail("BINDING_PENDING").retryable();
    Route::Refused { failure, reason: "binding-pending" }
}

fn ambiguous(session_key: &SessionKey, reason: &'static str) -> Route {
    let text = format!(
        "It is not clear in which conversation {session_key} should answer: it is bound elsewhere, or to several.          Nothing was sent. Ask in a conversation that is bound to it; `acp-gateway sessions show` lists them."
    );
    Route::Refused { failure: Failure::new(Code::NotBound, text).detail("AMBIGUOUS_DESTINATION"), reason }
}

fn unserved(at: &ConversationRef) -> Route {
    Route::Refused { failure: no_adapter(&at.channel, &at.account_id), reason: "adapter-unavailable" }
}

/// What is said when nothing serves a channel's account.
pub(crate) fn no_adapter(channel: &str, account_id: &str) -> Failure {
    let text = format!(
        "No adapter serves account {account_id:?} of channel {channel:?}, so nothing can be said there. Turn that          account on in the configuration and restart the gateway, or unbind what is bound there; what was to be said          waits until then."
    );
    Failure::new(Code::ChannelUnavailable, text).origin("gateway").retryable()
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
