use super::*;
use crate::rows::TargetKind;
use crate::tests::{self, conversation};

fn binding(id: &str, parent: Option<&str>, status: BindingStatus) -> BindingRow {
    BindingRow {
        conversation: conversation(id, parent),
        status,
        bound_at_ms: 1_000,
        last_activity_at_ms: 2_000,
        idle_ms: Some(500),
        max_age_ms: Some(2_000),
        ..tests::binding()
    }
}

const STATUSES: [BindingStatus; 4] =
    [BindingStatus::Pending, BindingStatus::Active, BindingStatus::Ending, BindingStatus::Ended];

#[test]
fn inbound_route_covers_every_state() {
    let mut table = String::new();
    for status in STATUSES {
        let of = |target: BoundSession| {
            // Within both timeouts, past the idle timeout, past both.
            let reasons = [2_400, 2_500, 3_000].map(|now_ms| {
                let bound = binding("c", None, status);
                route_inbound(Some((&bound, target)), UnboundDestination::Hint, now_ms).reason()
            });
            reasons.join(" | ")
        };
        let missing = ("missing".to_owned(), of(BoundSession::Missing));
        let known = SessionState::ALL.map(|state| (state.to_string(), of(BoundSession::Known(state))));
        table.push_str(&tests::grouped(&format!("{status:?}"), [missing].into_iter().chain(known)));
    }
    let none = route_inbound(None, UnboundDestination::Ignore, 0);
    assert_eq!(none, Route::Unbound { destination: UnboundDestination::Ignore, reason: "no-binding" });
    insta::assert_snapshot!(table, @r#"
    Pending missing: session-missing | session-missing | session-missing
    Pending creating, idle, running, cancelling, error: binding-pending | binding-pending | binding-pending
    Pending closed: session-closed | session-closed | session-closed
    Active missing: session-missing | session-missing | session-missing
    Active creating, idle, error: active-binding | binding-expired | binding-expired
    Active running, cancelling: active-binding | active-binding | active-binding
    Active closed: session-closed | session-closed | session-closed
    Ending missing: session-missing | session-missing | session-missing
    Ending creating, idle, running, cancelling, error: binding-ending | binding-ending | binding-ending
    Ending closed: session-closed | session-closed | session-closed
    Ended missing, creating, idle, running, cancelling, error, closed: binding-ended | binding-ended | binding-ended
    "#);
}

#[test]
fn stale_binding_refusal_has_next_step() {
    let stale = binding("c", None, BindingStatus::Active);
    for target in [BoundSession::Missing, BoundSession::Known(SessionState::Closed)] {
        let Route::Refused { failure, .. } =
            route_inbound(Some((&stale, target)), UnboundDestination::Hint, 0)
        else {
            panic!("{target:?} must be refused");
        };
        assert_eq!(failure, StaleReason::of(target).unwrap().failure(&stale, false));
    }
}

#[test]
fn timeouts_are_off_without_value_and_during_turns() {
    let mut row = binding("c", None, BindingStatus::Active);
    let idle = BoundSession::Known(SessionState::Idle);
    assert_eq!(expired(&row, idle, 2_499), None);
    assert_eq!(expired(&row, idle, 2_500), Some("idle"));
    assert_eq!(expired(&row, idle, 3_000), Some("max-age"));
    assert_eq!(expired(&row, BoundSession::Known(SessionState::Running), u64::MAX), None);
    (row.idle_ms, row.max_age_ms) = (None, None);
    assert_eq!(expired(&row, idle, u64::MAX), None);
}

/// Route and reason for every combination of bindings, requester, session and adapter.
#[test]
fn outbound_route_covers_every_state() {
    let active = |id: &str, parent| binding(id, parent, BindingStatus::Active);
    let pending = || binding("pending:1", Some("c"), BindingStatus::Pending);
    let mut elsewhere = active("c", None);
    elsewhere.conversation.account_id = "second".to_owned();
    let mut foreign = active("c", None);
    foreign.session_key = SessionKey::parse("agent:demo:acp:2").unwrap();
    let sets = [
        ("none", vec![]),
        ("another session's", vec![foreign]),
        ("ended", vec![binding("c", None, BindingStatus::Ended)]),
        ("ending", vec![binding("c", None, BindingStatus::Ending)]),
        ("pending child", vec![pending()]),
        ("one and a pending child", vec![active("d", None), pending()]),
        ("one", vec![active("c", None)]),
        ("one, other account", vec![elsewhere.clone()]),
        ("child", vec![active("t", Some("c"))]),
        ("two children", vec![active("t", Some("c")), active("u", Some("c"))]),
        ("two", vec![active("c", None), active("d", None)]),
        ("two accounts", vec![active("c", None), elsewhere]),
    ];
    let key = tests::session_key();
    let requesters = [None, Some(conversation("c", None)), Some(conversation("x", None))];
    let nowhere = conversation("", None);
    let mut table = String::new();
    for (name, bindings) in &sets {
        let decide = |requester, session, served: bool| {
            let context = OutboundContext { session_key: Some(&key), session, bindings, requester };
            route_outbound(context, |_| served)
        };
        for state in SessionState::ALL {
            for served in [true, false] {
                let route = decide(Some(&nowhere), BoundSession::Known(state), served);
                assert_eq!(route, refused(Code::Usage, "invalid-requester"), "{name}");
            }
        }
        assert_eq!(decide(Some(&nowhere), BoundSession::Missing, true).reason(), "invalid-requester");
        for requester in &requesters {
            let from = requester.as_ref().map_or("-", |it| it.conversation_id.as_str());
            let decide = |session, served| decide(requester.as_ref(), session, served);
            let at_work = decide(BoundSession::Known(SessionState::Running), true);
            // A session in error can continue.
            assert_eq!(decide(BoundSession::Known(SessionState::Error), true), at_work);
            let others = [
                decide(BoundSession::Known(SessionState::Closed), true),
                decide(BoundSession::Missing, true),
                decide(BoundSession::Known(SessionState::Idle), false),
            ];
            let [closed, missing, unserved] = others.each_ref().map(Route::reason);
            let (to, why) = (describe(&at_work, bindings), at_work.reason());
            table.push_str(&format!(
                "{name}, asked from {from:?}: {to} ({why}) | {closed} | {missing} | {unserved}\n"
            ));
        }
    }
    // Columns: running, closed, missing, without an adapter.
    insta::assert_snapshot!(table, @r#"
    none, asked from "-": unbound Journal (no-active-binding) | no-active-binding | session-missing | no-active-binding
    none, asked from "c": unbound c (no-active-binding) | no-active-binding | session-missing | adapter-unavailable
    none, asked from "x": unbound x (no-active-binding) | no-active-binding | session-missing | adapter-unavailable
    another session's, asked from "-": unbound Journal (no-active-binding) | no-active-binding | session-missing | no-active-binding
    another session's, asked from "c": unbound c (no-active-binding) | no-active-binding | session-missing | adapter-unavailable
    another session's, asked from "x": unbound x (no-active-binding) | no-active-binding | session-missing | adapter-unavailable
    ended, asked from "-": unbound Journal (no-active-binding) | no-active-binding | session-missing | no-active-binding
    ended, asked from "c": unbound c (no-active-binding) | no-active-binding | session-missing | adapter-unavailable
    ended, asked from "x": unbound x (no-active-binding) | no-active-binding | session-missing | adapter-unavailable
    ending, asked from "-": unbound Journal (no-active-binding) | session-closed | session-missing | no-active-binding
    ending, asked from "c": unbound c (no-active-binding) | session-closed | session-missing | adapter-unavailable
    ending, asked from "x": unbound x (no-active-binding) | session-closed | session-missing | adapter-unavailable
    pending child, asked from "-": refused ACP_NOT_BOUND (binding-pending) | session-closed | session-missing | binding-pending
    pending child, asked from "c": refused ACP_NOT_BOUND (binding-pending) | session-closed | session-missing | binding-pending
    pending child, asked from "x": refused ACP_NOT_BOUND (binding-pending) | session-closed | session-missing | binding-pending
    one and a pending child, asked from "-": bound default/d (single-active-binding) | session-closed | session-missing | adapter-unavailable
    one and a pending child, asked from "c": refused ACP_NOT_BOUND (no-requester-match) | session-closed | session-missing | no-requester-match
    one and a pending child, asked from "x": refused ACP_NOT_BOUND (no-requester-match) | session-closed | session-missing | no-requester-match
    one, asked from "-": bound default/c (single-active-binding) | session-closed | session-missing | adapter-unavailable
    one, asked from "c": bound default/c (requester-match) | session-closed | session-missing | adapter-unavailable
    one, asked from "x": refused ACP_NOT_BOUND (no-requester-match) | session-closed | session-missing | no-requester-match
    one, other account, asked from "-": bound second/c (single-active-binding) | session-closed | session-missing | adapter-unavailable
    one, other account, asked from "c": refused ACP_NOT_BOUND (no-requester-match) | session-closed | session-missing | no-requester-match
    one, other account, asked from "x": refused ACP_NOT_BOUND (no-requester-match) | session-closed | session-missing | no-requester-match
    child, asked from "-": bound default/t (single-active-binding) | session-closed | session-missing | adapter-unavailable
    child, asked from "c": bound default/t (requester-parent-match) | session-closed | session-missing | adapter-unavailable
    child, asked from "x": refused ACP_NOT_BOUND (no-requester-match) | session-closed | session-missing | no-requester-match
    two children, asked from "-": refused ACP_NOT_BOUND (ambiguous-without-requester) | session-closed | session-missing | ambiguous-without-requester
    two children, asked from "c": refused ACP_NOT_BOUND (ambiguous-below-requester) | session-closed | session-missing | ambiguous-below-requester
    two children, asked from "x": refused ACP_NOT_BOUND (no-requester-match) | session-closed | session-missing | no-requester-match
    two, asked from "-": refused ACP_NOT_BOUND (ambiguous-without-requester) | session-closed | session-missing | ambiguous-without-requester
    two, asked from "c": bound default/c (requester-match) | session-closed | session-missing | adapter-unavailable
    two, asked from "x": refused ACP_NOT_BOUND (no-requester-match) | session-closed | session-missing | no-requester-match
    two accounts, asked from "-": refused ACP_NOT_BOUND (ambiguous-without-requester) | session-closed | session-missing | ambiguous-without-requester
    two accounts, asked from "c": bound default/c (requester-match) | session-closed | session-missing | adapter-unavailable
    two accounts, asked from "x": refused ACP_NOT_BOUND (no-requester-match) | session-closed | session-missing | no-requester-match
    "#);
}

fn describe(route: &Route, bindings: &[BindingRow]) -> String {
    match route {
        Route::Bound { binding_id, .. } => {
            let it = bindings.iter().find(|it| it.binding_id == *binding_id).unwrap();
            format!("bound {}/{}", it.conversation.account_id, it.conversation.conversation_id)
        }
        Route::Unbound { destination: UnboundDestination::Conversation(it), .. } => {
            format!("unbound {}", it.conversation_id)
        }
        Route::Unbound { destination, .. } => format!("unbound {destination:?}"),
        Route::Refused { failure, .. } => format!("refused {}", failure.code),
    }
}

fn outbound_context<'a>(
    key: &'a SessionKey,
    bindings: &'a [BindingRow],
    requester: Option<&'a ConversationRef>,
) -> OutboundContext<'a> {
    OutboundContext {
        session_key: Some(key),
        session: BoundSession::Known(SessionState::Idle),
        bindings,
        requester,
    }
}

#[test]
fn missing_target_session_is_refused() {
    let context =
        OutboundContext { session_key: None, session: BoundSession::Missing, bindings: &[], requester: None };
    let route = route_outbound(context, |_| true);
    assert_eq!((route.outcome(), route.reason()), ("refused", "missing-target-session"));
}

/// A session spawned by another session answers in its own bound conversation, not in the owner's.
#[test]
fn bound_child_answers_in_its_own_conversation() {
    let key = tests::session_key();
    let child = BindingRow {
        target_kind: TargetKind::Subagent,
        ..binding("thread", Some("c"), BindingStatus::Active)
    };
    let mut of_parent = binding("c", None, BindingStatus::Active);
    of_parent.session_key = SessionKey::parse("agent:demo:acp:parent").unwrap();
    let both = [of_parent, child.clone()];
    for requester in [None, Some(conversation("c", None)), Some(conversation("thread", Some("c")))] {
        let Route::Bound { binding_id, .. } =
            route_outbound(outbound_context(&key, &both, requester.as_ref()), |_| true)
        else {
            panic!("{requester:?}");
        };
        assert_eq!(binding_id, child.binding_id, "{requester:?}");
    }
}

#[test]
fn accounts_are_separate() {
    let key = tests::session_key();
    let mut second = binding("c", None, BindingStatus::Active);
    second.conversation.account_id = "second".to_owned();
    let both = [binding("c", None, BindingStatus::Active), second];
    for row in &both {
        let route = route_outbound(outbound_context(&key, &both, Some(&row.conversation)), |_| true);
        assert_eq!(route, bound(row, "requester-match"));
        let other = route_outbound(outbound_context(&key, &both[..1], Some(&both[1].conversation)), |_| true);
        assert_eq!(other.reason(), "no-requester-match");
        // An adapter may serve one account only.
        let only = |at: &ConversationRef| at.account_id == "second";
        let served = route_outbound(outbound_context(&key, &both, Some(&row.conversation)), only).reason();
        let want =
            if row.conversation.account_id == "second" { "requester-match" } else { "adapter-unavailable" };
        assert_eq!(served, want);
    }
}

#[test]
fn outbound_refusals_have_next_step() {
    let key = tests::session_key();
    let two = [binding("c", None, BindingStatus::Active), binding("d", None, BindingStatus::Active)];
    let ambiguous = route_outbound(outbound_context(&key, &two, None), |_| true);
    let unserved = route_outbound(outbound_context(&key, &two[..1], None), |_| false);
    for (route, parts) in [
        (ambiguous, ["agent:demo:acp:1", "Send the message in a conversation"]),
        (unserved, ["\"default\" of channel \"console\"", "configuration"]),
    ] {
        let Route::Refused { failure, .. } = route else { panic!("{route:?}") };
        for part in parts {
            assert!(failure.message.contains(part), "{part:?} in {:?}", failure.message);
        }
    }
}
