//! Where a message goes: from a conversation to a session, and from a session to a conversation.
//!
//! Three outcomes and no fourth: bound, unbound with the channel's normal destination named, or refused. Nothing
//! falls back by itself, and no content is looked at. Every outcome carries its reason.

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
}

/// The normal destination of a message that no binding speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
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
    match (binding.status, session) {
        (BindingStatus::Ended, _) => Route::Unbound { destination: normal, reason: "binding-ended" },
        (_, Target::Missing) => refused(Code::StaleBinding, "session-missing"),
        (_, Target::Known(SessionState::Closed)) => refused(Code::StaleBinding, "session-closed"),
        (BindingStatus::Pending, _) => {
            let text =
                "This conversation is still being bound to its session. Send the message again in a moment.";
            let failure = Failure::new(Code::NotBound, text).detail("BINDING_PENDING").retryable();
            Route::Refused { failure, reason: "binding-pending" }
        }
        (BindingStatus::Ending, _) => refused(Code::NotBound, "binding-ending"),
        (BindingStatus::Active, Target::Known(_)) => match expired(binding, session, now_ms) {
            Some(why) => {
                let text = format!(
                    "This conversation's binding is over ({why}). Bind it again with /focus {}, or start a new session with /acp spawn.",
                    binding.session_key
                );
                let failure = Failure::new(Code::NotBound, text).detail("BINDING_EXPIRED");
                Route::Refused { failure, reason: "binding-expired" }
            }
            None => Route::Bound {
                binding_id: binding.binding_id,
                session_key: binding.session_key.clone(),
                reason: "active-binding",
            },
        },
    }
}

/// Where something that a session has to say goes, when it may go to one conversation only. `bindings` are those
/// of the session; `requester` is where it was asked for.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "channels with parent conversations resolve completions here")
)]
pub(crate) fn outbound(
    session_key: Option<&SessionKey>,
    bindings: &[BindingRow],
    requester: Option<&ConversationRef>,
) -> Route {
    let Some(session_key) = session_key else {
        return refused(Code::NoSession, "missing-target-session");
    };
    let is_valid = |it: &ConversationRef| !it.channel.is_empty() && !it.conversation_id.is_empty();
    if requester.is_some_and(|requester| !is_valid(requester)) {
        return refused(Code::Usage, "invalid-requester");
    }
    let active: Vec<&BindingRow> = bindings
        .iter()
        .filter(|binding| binding.status == BindingStatus::Active && binding.session_key == *session_key)
        .collect();
    let bound = |binding: &BindingRow, reason| Route::Bound {
        binding_id: binding.binding_id,
        session_key: session_key.clone(),
        reason,
    };
    match (requester, active.as_slice()) {
        (None, []) => Route::Unbound { destination: Destination::Journal, reason: "no-active-binding" },
        (Some(requester), []) => Route::Unbound {
            destination: Destination::Conversation(requester.clone()),
            reason: "no-active-binding",
        },
        (None, [only]) => bound(only, "single-active-binding"),
        (None, _) => refused(Code::StaleBinding, "ambiguous-without-requester"),
        (Some(requester), _) => {
            let same_account = |it: &&&BindingRow| is_same_account(&it.conversation, requester);
            if let Some(exact) = active
                .iter()
                .filter(same_account)
                .find(|it| it.conversation.conversation_id == requester.conversation_id)
            {
                return bound(exact, "requester-match");
            }
            let mut children = active.iter().filter(same_account).filter(|it| {
                it.conversation.parent_conversation_id.as_deref() == Some(&requester.conversation_id)
            });
            match (children.next(), children.next()) {
                (Some(only), None) => bound(only, "requester-parent-match"),
                (Some(_), Some(_)) => refused(Code::StaleBinding, "ambiguous-below-requester"),
                (None, _) => refused(Code::StaleBinding, "no-requester-match"),
            }
        }
    }
}

fn is_same_account(one: &ConversationRef, other: &ConversationRef) -> bool {
    one.channel == other.channel && one.account_id == other.account_id
}

fn refused(code: Code, reason: &'static str) -> Route {
    Route::Refused { failure: Failure::of(code), reason }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::core::rows::TargetKind;

    fn conversation(id: &str, parent: Option<&str>) -> ConversationRef {
        ConversationRef {
            channel: "console".to_owned(),
            account_id: "default".to_owned(),
            conversation_id: id.to_owned(),
            parent_conversation_id: parent.map(str::to_owned),
        }
    }

    fn binding(id: &str, parent: Option<&str>, status: BindingStatus) -> BindingRow {
        BindingRow {
            binding_id: BindingId::mint(),
            conversation: conversation(id, parent),
            session_key: SessionKey::parse("agent:demo:acp:1").unwrap(),
            target_kind: TargetKind::Session,
            status,
            bound_by: "tester".to_owned(),
            bound_at_ms: 1_000,
            last_activity_at_ms: 2_000,
            idle_ms: Some(500),
            max_age_ms: Some(2_000),
            metadata: "{}".to_owned(),
            end_reason: None,
        }
    }

    const STATUSES: [BindingStatus; 4] =
        [BindingStatus::Pending, BindingStatus::Active, BindingStatus::Ending, BindingStatus::Ended];

    #[test]
    fn inbound_over_the_whole_space() {
        let mut table = String::new();
        let mut targets = vec![Target::Missing];
        targets.extend(SessionState::ALL.map(Target::Known));
        for status in STATUSES {
            for target in &targets {
                // Within both windows, past the idle one, past both.
                let reasons = [2_400, 2_500, 3_000].map(|now_ms| {
                    inbound(Some((&binding("c", None, status), *target)), Destination::Hint, now_ms).reason()
                });
                table.push_str(&format!("{status:?} {target:?}: {}\n", reasons.join(" | ")));
            }
        }
        let none = inbound(None, Destination::Ignore, 0);
        assert_eq!(none, Route::Unbound { destination: Destination::Ignore, reason: "no-binding" });
        insta::assert_snapshot!(table, @r#"
        Pending Missing: session-missing | session-missing | session-missing
        Pending Known(Creating): binding-pending | binding-pending | binding-pending
        Pending Known(Idle): binding-pending | binding-pending | binding-pending
        Pending Known(Running): binding-pending | binding-pending | binding-pending
        Pending Known(Cancelling): binding-pending | binding-pending | binding-pending
        Pending Known(Error): binding-pending | binding-pending | binding-pending
        Pending Known(Closed): session-closed | session-closed | session-closed
        Active Missing: session-missing | session-missing | session-missing
        Active Known(Creating): active-binding | binding-expired | binding-expired
        Active Known(Idle): active-binding | binding-expired | binding-expired
        Active Known(Running): active-binding | active-binding | active-binding
        Active Known(Cancelling): active-binding | active-binding | active-binding
        Active Known(Error): active-binding | binding-expired | binding-expired
        Active Known(Closed): session-closed | session-closed | session-closed
        Ending Missing: session-missing | session-missing | session-missing
        Ending Known(Creating): binding-ending | binding-ending | binding-ending
        Ending Known(Idle): binding-ending | binding-ending | binding-ending
        Ending Known(Running): binding-ending | binding-ending | binding-ending
        Ending Known(Cancelling): binding-ending | binding-ending | binding-ending
        Ending Known(Error): binding-ending | binding-ending | binding-ending
        Ending Known(Closed): session-closed | session-closed | session-closed
        Ended Missing: binding-ended | binding-ended | binding-ended
        Ended Known(Creating): binding-ended | binding-ended | binding-ended
        Ended Known(Idle): binding-ended | binding-ended | binding-ended
        Ended Known(Running): binding-ended | binding-ended | binding-ended
        Ended Known(Cancelling): binding-ended | binding-ended | binding-ended
        Ended Known(Error): binding-ended | binding-ended | binding-ended
        Ended Known(Closed): binding-ended | binding-ended | binding-ended
        "#);
    }

    #[test]
    fn b01_refusals_say_what_to_do() {
        let stale = binding("c", None, BindingStatus::Active);
        for target in [Target::Missing, Target::Known(SessionState::Closed)] {
            let Route::Refused { failure, .. } = inbound(Some((&stale, target)), Destination::Hint, 0) else {
                panic!("{target:?} must be refused");
            };
            assert_eq!(failure, Failure::of(Code::StaleBinding));
        }
    }

    #[test]
    fn d11_windows_are_off_without_a_value_and_a_turn_keeps_the_binding() {
        let mut row = binding("c", None, BindingStatus::Active);
        let idle = Target::Known(SessionState::Idle);
        assert_eq!(expired(&row, idle, 2_499), None);
        assert_eq!(expired(&row, idle, 2_500), Some("idle"));
        assert_eq!(expired(&row, idle, 3_000), Some("max-age"));
        assert_eq!(expired(&row, Target::Known(SessionState::Running), u64::MAX), None);
        (row.idle_ms, row.max_age_ms) = (None, None);
        assert_eq!(expired(&row, idle, u64::MAX), None);
    }

    #[test]
    fn outbound_over_the_whole_space() {
        let active = |id: &str, parent| binding(id, parent, BindingStatus::Active);
        let mut elsewhere = active("c", None);
        elsewhere.conversation.account_id = "second".to_owned();
        let sets = [
            ("none", vec![]),
            (
                "ended",
                vec![binding("c", None, BindingStatus::Ended), binding("d", None, BindingStatus::Pending)],
            ),
            ("one", vec![active("c", None)]),
            ("one, other account", vec![elsewhere.clone()]),
            ("child", vec![active("t", Some("c"))]),
            ("two children", vec![active("t", Some("c")), active("u", Some("c"))]),
            ("two", vec![active("c", None), active("d", None)]),
            ("two accounts", vec![active("c", None), elsewhere]),
        ];
        let key = SessionKey::parse("agent:demo:acp:1").unwrap();
        let requesters = [
            None,
            Some(conversation("", None)),
            Some(conversation("c", None)),
            Some(conversation("x", None)),
        ];
        let mut table = String::new();
        for (what, bindings) in &sets {
            for requester in &requesters {
                let route = outbound(Some(&key), bindings, requester.as_ref());
                let to = match &route {
                    Route::Bound { binding_id, .. } => {
                        let it = bindings.iter().find(|it| it.binding_id == *binding_id).unwrap();
                        format!("bound {}/{}", it.conversation.account_id, it.conversation.conversation_id)
                    }
                    Route::Unbound { destination: Destination::Conversation(it), .. } => {
                        format!("unbound {}", it.conversation_id)
                    }
                    Route::Unbound { destination, .. } => format!("unbound {destination:?}"),
                    Route::Refused { failure, .. } => format!("refused {}", failure.code),
                };
                let from = requester.as_ref().map_or("-", |it| it.conversation_id.as_str());
                table.push_str(&format!("{what}, asked from {from:?}: {to} ({})\n", route.reason()));
            }
        }
        assert_eq!(outbound(None, &[], None).reason(), "missing-target-session");
        insta::assert_snapshot!(table, @r#"
        none, asked from "-": unbound Journal (no-active-binding)
        none, asked from "": refused USAGE (invalid-requester)
        none, asked from "c": unbound c (no-active-binding)
        none, asked from "x": unbound x (no-active-binding)
        ended, asked from "-": unbound Journal (no-active-binding)
        ended, asked from "": refused USAGE (invalid-requester)
        ended, asked from "c": unbound c (no-active-binding)
        ended, asked from "x": unbound x (no-active-binding)
        one, asked from "-": bound default/c (single-active-binding)
        one, asked from "": refused USAGE (invalid-requester)
        one, asked from "c": bound default/c (requester-match)
        one, asked from "x": refused ACP_STALE_BINDING (no-requester-match)
        one, other account, asked from "-": bound second/c (single-active-binding)
        one, other account, asked from "": refused USAGE (invalid-requester)
        one, other account, asked from "c": refused ACP_STALE_BINDING (no-requester-match)
        one, other account, asked from "x": refused ACP_STALE_BINDING (no-requester-match)
        child, asked from "-": bound default/t (single-active-binding)
        child, asked from "": refused USAGE (invalid-requester)
        child, asked from "c": bound default/t (requester-parent-match)
        child, asked from "x": refused ACP_STALE_BINDING (no-requester-match)
        two children, asked from "-": refused ACP_STALE_BINDING (ambiguous-without-requester)
        two children, asked from "": refused USAGE (invalid-requester)
        two children, asked from "c": refused ACP_STALE_BINDING (ambiguous-below-requester)
        two children, asked from "x": refused ACP_STALE_BINDING (no-requester-match)
        two, asked from "-": refused ACP_STALE_BINDING (ambiguous-without-requester)
        two, asked from "": refused USAGE (invalid-requester)
        two, asked from "c": bound default/c (requester-match)
        two, asked from "x": refused ACP_STALE_BINDING (no-requester-match)
        two accounts, asked from "-": refused ACP_STALE_BINDING (ambiguous-without-requester)
        two accounts, asked from "": refused USAGE (invalid-requester)
        two accounts, asked from "c": bound default/c (requester-match)
        two accounts, asked from "x": refused ACP_STALE_BINDING (no-requester-match)
        "#);
    }
}
