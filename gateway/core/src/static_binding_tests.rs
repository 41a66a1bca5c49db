use super::*;
use crate::tests;
use proptest::prelude::*;

fn entry(account: &str, conversation: &str, agent: &str) -> Binding {
    Binding {
        channel: "chat".to_owned(),
        account: account.to_owned(),
        conversation: conversation.to_owned(),
        agent: AgentName::parse(agent).ok(),
        ..Binding::default()
    }
}

fn at(account: &str, conversation: &str, parent: Option<&str>) -> ConversationRef {
    let (channel, account_id) = ("chat".to_owned(), account.to_owned());
    ConversationRef { channel, account_id, ..tests::conversation(conversation, parent) }
}

fn key(text: &str) -> SessionKey {
    SessionKey::parse(text).unwrap()
}

fn row(session: &str, metadata: String) -> BindingRow {
    let conversation = at("a", "c", None);
    let (session_key, bound_by) = (key(session), "system".to_owned());
    BindingRow { conversation, session_key, bound_by, metadata, ..tests::binding() }
}

fn spec_of(entry: &Binding) -> StaticSessionSpec {
    StaticSessionSpec::of(entry).unwrap()
}

#[test]
fn direct_entry_precedes_parent_and_account_precedes_any() {
    let all = [
        entry("*", "up", "parent-any"),
        entry("a", "up", "parent-a"),
        entry("*", "c", "direct-any"),
        entry("a", "c", "direct-a"),
    ];
    let other = Binding { channel: "other".to_owned(), ..entry("a", "c", "elsewhere") };
    // Entries, also tested in reverse order; conversation; expected agent.
    let table: &[(&[usize], ConversationRef, Option<&str>)] = &[
        (&[0, 1, 2, 3], at("a", "c", Some("up")), Some("direct-a")),
        (&[0, 1, 2], at("a", "c", Some("up")), Some("direct-any")),
        (&[0, 1], at("a", "c", Some("up")), Some("parent-a")),
        (&[0], at("a", "c", Some("up")), Some("parent-any")),
        (&[], at("a", "c", Some("up")), None),
        (&[0, 1, 2, 3], at("b", "c", Some("up")), Some("direct-any")),
        (&[0, 1, 3], at("b", "c", Some("up")), Some("parent-any")),
        (&[1, 3], at("b", "c", Some("up")), None),
        (&[0, 1, 2, 3], at("a", "up", None), Some("parent-a")),
        (&[0, 1], at("a", "c", None), None),
        (&[0, 1], at("a", "c", Some("elsewhere")), None),
        // Only one level is inherited: a thread of a thread names its own parent.
        (&[0, 1], at("a", "deep", Some("c")), None),
    ];
    for (indexes, at, want) in table {
        for reversed in [false, true] {
            let mut entries: Vec<Binding> = indexes.iter().map(|&number| all[number].clone()).collect();
            entries.insert(0, other.clone());
            if reversed {
                entries.reverse();
            }
            let found = find_entry(&entries, at);
            let agent = found.and_then(|found| found.entry.agent.as_ref()).map(AgentName::as_str);
            assert_eq!(agent, *want, "{indexes:?} {at:?}");
            assert!(found.is_none_or(|found| entries[found.number] == *found.entry));
        }
    }
}

#[test]
fn key_is_derived_from_conversation() {
    let agent = AgentName::parse("codex").unwrap();
    let first = first_key(&agent, "discord", "default", "123").unwrap();
    // Prefix of sha256("discord:default:123"), as in the source document.
    assert_eq!(first.as_str(), "agent:codex:acp:binding:discord:default:8ce770bf502abcdf");
    assert_eq!(next_key(&first, 0).unwrap(), first);
    assert_eq!(next_key(&first, 1).unwrap().as_str(), format!("{first}:2"));
    let others = [("discord", "default", "124"), ("discord", "second", "123"), ("chat", "default", "123")];
    for (channel, account_id, home) in others {
        let other = first_key(&agent, channel, account_id, home).unwrap();
        assert_ne!(other, first, "{channel} {account_id} {home}");
    }
    let long = "\u{00fc} \n".repeat(200);
    let agent = AgentName::parse(&"x".repeat(200)).unwrap();
    let key = first_key(&agent, &long, &long, &long).unwrap();
    assert!(next_key(&key, u64::MAX).is_ok(), "{key}");
}

#[test]
fn spec_round_trips_through_metadata() {
    let spec = spec_of(&Binding {
        cwd: Some("/srv".into()),
        backend: Some("direct".to_owned()),
        ..entry("a", "c", "codex")
    });
    assert_eq!(StaticSessionSpec::from_metadata(&spec.metadata(Some("17"))), Some(spec.clone()));
    assert_eq!(StaticSessionSpec::from_metadata(&spec.metadata(None)), Some(spec));
    for other in ["{}", "", "{\"configured\": 1}", "{\"configured\": {\"home\": \"c\"}}"] {
        assert_eq!(StaticSessionSpec::from_metadata(other), None, "{other}");
    }
}

/// Every combination of configuration, binding and session.
#[test]
fn action_before_routing_covers_every_state() {
    use SessionState::{Closed, Error, Idle, Running};
    use StaticBindingAction::Leave;
    let now = entry("a", "c", "codex");
    let old = Binding { cwd: Some("/old".into()), ..now.clone() };
    let parent = entry("a", "up", "codex");
    let old_parent = Binding { agent: AgentName::parse("gemini").ok(), ..parent.clone() };
    let (own, thread, plain) = ([now.clone()], [parent.clone()], []);
    let both = [now.clone(), parent.clone()];
    let known = |state| BoundSession::Known(state);
    let of = |entry: &Binding, state| Some((spec_of(entry).metadata(None), known(state)));
    let person = |state| Some(("{}".to_owned(), known(state)));
    let missing = Some(("{}".to_owned(), BoundSession::Missing));
    let under = |state, from: &Binding, busy| {
        Some(StaticSession { session_key: key("k:old"), state, made: Some(spec_of(from)), busy })
    };
    let bind = |from: &Binding, to: Option<&str>, after: Option<(&str, &[&str])>| {
        let after = after.map(|(closed, changed)| RetiredSession::new(&key(closed), changed));
        StaticBindingAction::Bind(BindParams { made: spec_of(from), to: to.map(key), after })
    };
    let first = |from: &Binding| bind(from, None, None);
    let again = |from: &Binding| bind(from, Some("k:old"), None);
    let replace = |closed: &str| bind(&now, None, Some((closed, &["cwd"])));
    let back = |changed: &str| bind(&parent, Some("k:old"), Some(("k", &[changed])));
    let gone = StaticBindingAction::Withdraw(RetiredSession::new(&key("k"), &[]));
    type Bound = Option<(String, BoundSession)>;
    type Row<'a> = (&'a str, &'a [Binding], Bound, bool, Option<StaticSession>, StaticBindingAction);
    let cases: Vec<Row<'_>> = vec![
        ("no binding and no entry", &plain, None, false, None, Leave),
        ("a person's binding", &plain, person(Idle), false, None, Leave),
        ("a person's binding takes precedence", &own, person(Idle), false, None, Leave),
        ("also in error", &own, person(Error), false, None, Leave),
        ("a person's binding to a closed session", &own, person(Closed), false, None, first(&now)),
        ("a person's binding to a missing session", &own, missing, false, None, first(&now)),
        ("a closed session without an entry", &plain, of(&now, Closed), false, None, Leave),
        ("as configured", &own, of(&now, Running), true, None, Leave),
        ("the first message", &own, None, false, None, first(&now)),
        ("after a close", &own, None, false, under(Closed, &now, false), first(&now)),
        ("after an unbind", &own, None, false, under(Idle, &now, false), again(&now)),
        ("a thread joins", &thread, None, false, under(Running, &parent, true), again(&parent)),
        ("unbound, and changed since", &own, None, false, under(Idle, &old, false), replace("k:old")),
        ("changed, and at work", &own, None, false, under(Running, &old, true), again(&old)),
        ("another directory", &own, of(&old, Idle), false, None, replace("k")),
        ("another directory, at work", &own, of(&old, Running), true, None, Leave),
        ("another agent", &thread, of(&old_parent, Idle), false, under(Idle, &parent, false), back("agent")),
        ("the entry is gone", &plain, of(&now, Idle), false, None, gone),
        ("gone, at work", &plain, of(&now, Idle), true, None, Leave),
        ("an entry of its own: the parent's stays", &both, of(&parent, Running), true, None, first(&now)),
        (
            "the parent's returns",
            &thread,
            of(&now, Idle),
            false,
            under(Idle, &parent, false),
            back("conversation"),
        ),
    ];
    for (case, table, binding, busy, under, want) in cases {
        let row = binding.map(|(metadata, target)| (row("k", metadata), target));
        let binding = row.as_ref().map(|(row, target)| (row, *target));
        let seen = ConversationState { binding, busy, under: under.as_ref() };
        assert_eq!(static_binding_action(table, &at("a", "c", Some("up")), seen), want, "{case}");
    }
    // Without a reported parent, an inherited binding stays.
    let inherited = row("k", spec_of(&parent).metadata(None));
    let seen = ConversationState { binding: Some((&inherited, known(Idle))), busy: false, under: None };
    assert_eq!(static_binding_action(&thread, &at("a", "c", None), seen), Leave);
}

#[test]
fn close_reason_names_the_changes() {
    let reason = |changed: &[&str]| RetiredSession::new(&key("k"), changed).reason();
    assert_eq!(reason(&[]), "the configuration no longer binds this conversation");
    assert_eq!(reason(&["agent", "cwd"]), "the configuration of this conversation changed: agent, cwd");
}

prop_compose! {
    fn some_entry()(
        account in prop_oneof!["\\*", "a", "b"],
        conversation in "[cd]|up",
        agent in "x|y",
        cwd in prop::option::of("/[pq]"),
    ) -> Binding {
        Binding { cwd: cwd.map(Into::into), ..entry(&account, &conversation, &agent) }
    }
}

proptest! {
    /// Applying the decision twice changes nothing.
    #[test]
    fn applied_decision_is_stable(
        table in prop::collection::vec(some_entry(), 0..5),
        before in prop::option::of(some_entry()),
        parent in prop::option::of(Just("up")),
    ) {
        let at = at("a", "c", parent);
        let row_before = before.as_ref().map(|before| row("k", spec_of(before).metadata(None)));
        let binding = row_before.as_ref().map(|row| (row, BoundSession::Known(SessionState::Idle)));
        let after = match static_binding_action(&table, &at, ConversationState { binding, busy: false, under: None }) {
            StaticBindingAction::Leave => return Ok(()),
            StaticBindingAction::Withdraw(done) => {
                prop_assert_eq!(done.session_key, key("k"));
                None
            }
            StaticBindingAction::Bind(bind) => {
                // The bound session is never the closed one.
                prop_assert!(bind.after.is_none_or(|done| Some(done.session_key) != bind.to));
                Some(row("k2", bind.made.metadata(None)))
            }
        };
        let binding = after.as_ref().map(|row| (row, BoundSession::Known(SessionState::Idle)));
        prop_assert_eq!(static_binding_action(&table, &at, ConversationState { binding, busy: false, under: None }), StaticBindingAction::Leave);
    }
}
