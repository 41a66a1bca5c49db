use super::*;
use crate::tests::{self, session};

fn row(idle_ms: Option<u64>, max_age_ms: Option<u64>) -> BindingRow {
    BindingRow { idle_ms, max_age_ms, ..tests::binding() }
}

#[test]
fn placement_follows_channel_capabilities() {
    use Placement::{Child, Here};
    for (here, child, usual) in [
        (true, true, Some(Here)),
        (true, false, Some(Here)),
        (false, true, Some(Child)),
        (false, false, None),
    ] {
        let can = Capabilities { here, child, child_first: false };
        assert_eq!((can.allow(Here), can.allow(Child), can.default_placement()), (here, child, usual));
        let first = Capabilities { here, child, child_first: true };
        assert_eq!(first.default_placement(), if child { Some(Child) } else { usual });
    }
}

#[test]
fn startup_action_covers_every_state() {
    let mut table = String::new();
    for status in [BindingStatus::Pending, BindingStatus::Active, BindingStatus::Ending, BindingStatus::Ended]
    {
        let of =
            |target| [0, 1].map(|runs| format!("{:?}", startup_action(status, target, runs))).join(" | ");
        let missing = of(Some(BoundSession::Missing));
        let others = [("unreadable".to_owned(), of(None)), ("missing".to_owned(), missing)];
        let known = SessionState::ALL.map(|state| (state.to_string(), of(Some(BoundSession::Known(state)))));
        table.push_str(&tests::grouped(&format!("{status:?}"), others.into_iter().chain(known)));
    }
    insta::assert_snapshot!(table, @r"
    Pending unreadable: Keep | Keep
    Pending missing: End(SessionMissing) | Keep
    Pending creating, idle, running, cancelling, error: Finish | Finish
    Pending closed: End(SessionClosed) | Keep
    Active unreadable, creating, idle, running, cancelling, error: Keep | Keep
    Active missing: End(SessionMissing) | Keep
    Active closed: End(SessionClosed) | Keep
    Ending unreadable, creating, idle, running, cancelling, error: Keep | Keep
    Ending missing: End(SessionMissing) | Keep
    Ending closed: End(SessionClosed) | Keep
    Ended unreadable, missing, creating, idle, running, cancelling, error, closed: Keep | Keep
    ");
}

#[test]
fn binding_notice_has_agent_session_and_timeouts() {
    let mut session = session();
    let notice = binding_notice(&session, &row(Some(86_400_000), None), true);
    assert_eq!(
        notice,
        "demo is bound here, in /tmp: session agent:demo:acp:1, agent's session id not yet known. Messages \
         here go to it. The binding ends after 1d of inactivity."
    );
    session.label = Some("docs".to_owned());
    session.agent_session_id = Some("sess-7".to_owned());
    let notice = binding_notice(&session, &row(Some(5_400_000), Some(172_800_000)), true);
    assert_eq!(
        notice,
        "docs is bound here, in /tmp: session agent:demo:acp:1, agent's session id sess-7. Messages here go \
         to it. The binding ends after 1h30m of inactivity, and 2d after its start at the latest."
    );
    session.label = Some("**docs**".to_owned());
    session.agent_session_id = Some("x\n[a](https://b.c) @everyone \u{202e}".to_owned());
    for (is_markdown, name, id) in [
        (true, r"\*\*docs\*\*", r"x \[a\](https\://b.c) \@everyone \\u{202e}"),
        (false, "**docs**", r"x [a](https://b.c) @everyone \u{202e}"),
    ] {
        let told = binding_notice(&session, &row(None, None), is_markdown);
        assert!(told.starts_with(&format!("{name} is bound here, in /tmp: ")), "{told}");
        assert!(told.contains(&format!("agent's session id {id}. Messages")), "{told}");
    }
    session.spawned_by = Some(session.session_key.clone());
    let told = binding_notice(&session, &row(None, None), false);
    assert!(told.contains(", started by session agent:demo:acp:1. Messages"), "{told}");
    for (idle, age, want) in [
        (None, None, "The binding has no timeout."),
        (Some(0), Some(0), "The binding has no timeout."),
        (None, Some(60_000), "The binding ends 1m after its start."),
    ] {
        assert_eq!(lifetime_text(&row(idle, age)), want);
    }
}

#[test]
fn metadata_tells_the_bindings_of_agents_spawns() {
    assert!(is_of_agent_spawn(&agent_spawn_metadata()));
    assert!(is_of_agent_spawn(r#"{"agent_spawn":true,"end_session_seq":7}"#), "an ended one");
    for other in ["{}", "", "no JSON", r#"{"agent_spawn":false}"#, r#"{"origin":"agent_spawn"}"#] {
        assert!(!is_of_agent_spawn(other), "{other}");
    }
}

#[test]
fn changed_timeout_starts_now() {
    let before = BindingRow { bound_at_ms: 10, last_activity_at_ms: 20, ..row(Some(1), Some(2)) };
    let idle = with_timeout(before.clone(), BindingTimeout::Idle, Some(500), 100);
    assert_eq!(idle, BindingRow { idle_ms: Some(500), last_activity_at_ms: 100, ..before.clone() });
    let age = with_timeout(before.clone(), BindingTimeout::MaxAge, Some(500), 100);
    assert_eq!(age, BindingRow { max_age_ms: Some(500), bound_at_ms: 100, ..before.clone() });
    for off in [None, Some(0)] {
        assert_eq!(with_timeout(before.clone(), BindingTimeout::Idle, off, 100).idle_ms, None);
        assert_eq!(with_timeout(before.clone(), BindingTimeout::MaxAge, off, 100).max_age_ms, None);
    }
    // A clock that was set back shortens no timeout.
    assert_eq!(with_timeout(before.clone(), BindingTimeout::Idle, Some(1), 5).last_activity_at_ms, 20);
}

#[test]
fn rebind_keeps_timeouts() {
    let before = row(Some(7), None);
    let new = BindingRow { bound_by: "bob".to_owned(), bound_at_ms: 9, ..row(Some(1), Some(1)) };
    let got = carry_over_settings(new.clone(), &before);
    assert_eq!(got, BindingRow { idle_ms: Some(7), max_age_ms: None, ..new });
}

#[test]
fn stale_binding_error_has_code_and_next_step() {
    let row = row(None, None);
    for (stale, state) in [
        (StaleReason::SessionMissing, "which no longer exists"),
        (StaleReason::SessionClosed, "which is closed"),
    ] {
        for (removed, next) in [(false, "Use /unfocus"), (true, "the binding was removed")] {
            let failure = stale.failure(&row, removed);
            assert_eq!(failure.code, Code::StaleBinding);
            for part in ["ACP_STALE_BINDING", "agent:demo:acp:1", state, next, "/acp spawn", "/focus KEY"] {
                assert!(failure.message.contains(part), "{part:?} in {:?}", failure.message);
            }
        }
    }
}
