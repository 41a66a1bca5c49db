//! Commands: effects, replies, authorization, and single execution.
use super::fake::{GroupChannel, group_conversation};
use super::shared_conversations::{SharedChannel, at};
use super::*;
use crate::tests::permission_row;
use acp_core::render::PartKind;
use acp_core::render::buttons::ButtonSubject;
use acp_core::rows::BindingRow;
use acp_store::bindings;
use acp_store::interactive_messages::{self, ButtonMessage};

pub(super) fn key_of(id: u32) -> SessionKey {
    SessionKey::parse(&format!("agent:demo:acp:{id}")).unwrap()
}

pub(super) fn session_of_id(id: u32, label: &str) -> SessionRow {
    let label = (!label.is_empty()).then(|| label.to_owned());
    SessionRow { label, ..session_row(&key_of(id)) }
}

fn permission(id: u32) -> PermissionRow {
    permission_row(&key_of(id), 7)
}

/// Returns session 1, bound to the conversation `c`, and session 2 with the label `other`, unbound.
async fn two_sessions() -> (tempfile::TempDir, Store, Arc<FakeService>, InboundService) {
    let fixture = bound_service().await;
    spawn(&fixture.1, session_of_id(2, "other"), None).await;
    fixture
}

async fn send(service: &InboundService, text: &str) -> Outcome {
    service.accept(message(RunId::mint().to_string().as_str(), text)).await.unwrap()
}

pub(super) async fn reply_to(service: &InboundService, text: &str) -> String {
    send(service, text).await.text().into_owned()
}

/// A typed permission answer is shown once: in the question if that is in the same conversation, else by a
/// reply. An interaction always gets a reply.
#[tokio::test]
async fn typed_permission_answer_is_shown_once() {
    for is_here in [true, false] {
        let (_dir, store, fake, service) = two_sessions().await;
        fake.pending.lock().unwrap().push(permission(1));
        if is_here {
            let message =
                ButtonMessage { message_id: "9".into(), kind: PartKind::Permission, text: "?".into() };
            let about = ButtonSubject::Permission(permission(1).permission_id());
            let at = conversation("c");
            let insert = move |tx: &acp_store::Tx<'_>| {
                interactive_messages::insert_message(tx, &at, &key_of(1), &message, &about)
            };
            store.write("insert", insert).await.unwrap();
        }
        let notices = || async {
            shown(&store).await.into_iter().filter(|(kind, _)| kind != "person").collect::<Vec<_>>()
        };
        let outcome = send(&service, "/acp allow").await;
        assert_eq!((outcome.text().as_ref(), outcome.is_shown()), ("Answered: “Option y”.", is_here));
        assert_eq!(notices().await.len(), usize::from(!is_here));
    }
}

/// Without edits, a notice shows the outcome of a question of this conversation, also of one that arrives
/// later. A question of another conversation is answered by a reply.
#[tokio::test]
async fn typed_permission_answer_is_shown_once_without_edits() {
    for is_here in [true, false] {
        let (_dir, store) = open();
        let (shared_channel, bound) =
            (SharedChannel::new("one"), if is_here { at("one") } else { conversation("c") });
        spawn(&store, session_of_id(1, "first"), Some(binding_row(&key_of(1), &bound))).await;
        let fake = FakeService::new(&store);
        let service = service_with(&store, &fake, [Arc::clone(&shared_channel) as _]);
        fake.pending.lock().unwrap().push(permission(1));
        let standing = Some(RequesterRole::Operator);
        let inbound = Inbound { standing, ..message("m1", "/acp allow --session first") };
        let outcome = service.accept(Inbound { conversation: at("one"), ..inbound }).await.unwrap();
        assert_eq!((outcome.text().as_ref(), outcome.is_shown()), ("Answered: “Option y”.", is_here));
        assert_eq!(shared_channel.texts().len(), usize::from(!is_here));
    }
}

/// Every session command, for the session of the conversation and for a named one.
#[tokio::test]
async fn commands_have_their_effect_and_reply() {
    let id = "01890a5d-ac96-774b-bcce-b302099a8057:7";
    for (command, target, effect, want) in [
        ("cancel", "", "cancel KEY", "NOTHING"),
        ("cancel other", "2", "cancel KEY", "NOTHING"),
        ("new", "", "new KEY", "RENEWED"),
        ("new --session other", "2", "new KEY", "RENEWED"),
        ("close", "", "closed KEY false", "CLOSED"),
        ("archive other", "2", "archived KEY false", "CLOSED"),
        (
            "delete other --discard",
            "2",
            "deleted KEY true",
            "CLOSED Its agent cannot be asked to forget it: it is not running, or does not support that.",
        ),
        ("reset", "", "reset KEY false", "CLOSED"),
        ("set-mode plan", "", "set KEY Mode(\"plan\")", "The mode is plan, RESTARTED\nSET"),
        ("model big other", "2", "set KEY Model(\"big\")", "The model is big, RESTARTED\nSET"),
        (
            "cwd /srv",
            "",
            "set KEY Cwd(\"/srv\")",
            "The agent uses the new directory from the next message on.\nSET",
        ),
        (
            "permissions deny-all",
            "",
            "set KEY Permission(DenyAll)",
            "From now on: every permission request is denied (deny-all).\nSET",
        ),
        (
            "timeout 90 other",
            "2",
            "set KEY TimeoutS(90)",
            "A turn may take 1m30s from now on, a running one included.\nSET",
        ),
        (
            "timeout 0",
            "",
            "set KEY TimeoutS(0)",
            "From now on, only the gateway's own limit applies (limits.turn_ms), also to a running turn.\nSET",
        ),
        (
            "set effort high",
            "",
            "set KEY Config { id: \"effort\", value: \"high\" }",
            "effort is high, RESTARTED\nSET",
        ),
        ("reset-options", "", "set KEY Defaults", "All settings are as configured.\nSET"),
        ("allow", "", "answer KEY ID y ann", "Answered: “Option y”."),
        ("deny 01890a5d", "", "answer KEY ID n ann", "Answered: “Option n”."),
        ("answer 2", "", "answer KEY ID n ann", "Answered: “Option n”."),
        (
            "permissions",
            "",
            "",
            "The agent waits for permission:\n- Write (id qo2l)\n  1. Option y (allow once)\n  2. Option n \
             (reject once)",
        ),
        ("permissions --session other", "2", "", "The agent waits for no permission."),
    ] {
        let (_dir, _store, fake, service) = two_sessions().await;
        fake.pending.lock().unwrap().push(permission(1));
        let key = if target == "2" { key_of(2) } else { key_of(1) };
        let words = [
            ("NOTHING", "KEY has no running turn and no queued message."),
            (
                "RENEWED",
                "The next message starts a new conversation in KEY; the session and its history stay.",
            ),
            ("CLOSED", "KEY is being closed and is no longer bound to a conversation."),
            ("RESTARTED", "also after a restart of the agent."),
            (
                "SET",
                "Settings of KEY: directory /tmp; the agent asks (ask); unattended permission requests \
                 are denied.",
            ),
            ("KEY", key.as_str()),
            ("ID", id),
        ];
        let fill = |text: &str| words.iter().fold(text.to_owned(), |text, (a, b)| text.replace(a, b));
        assert_eq!(reply_to(&service, &format!("/acp {command}")).await, fill(want), "{command}");
        let effects: Vec<String> =
            Some(fill(effect)).filter(|effect| !effect.is_empty()).into_iter().collect();
        assert_eq!(fake.effects(), effects, "{command}");
        assert_eq!(fake.prompt_texts(), Vec::<String>::new(), "{command}");
    }
}

#[tokio::test]
async fn spawn_focus_and_unfocus_change_binding() {
    let (_dir, _store, fake, service) = unbound_service();
    assert_eq!(reply_to(&service, "/acp sessions").await, "There are no sessions. /acp spawn starts one.");
    assert_eq!(reply_to(&service, "/acp status").await, not_bound());
    let spawned = send(&service, "/acp spawn demo").await;
    let Outcome::Command { session_key: Some(first), .. } = spawned.clone() else { panic!("{spawned:?}") };
    let intro = format!(
        "demo is bound here, in /tmp: session {first}, agent's session id not yet known. Messages here go to it. The binding has no timeout."
    );
    assert_eq!(spawned.text(), intro);
    let taken = reply_to(&service, "/acp spawn demo").await;
    let want = format!(
        "This conversation is bound to {first}. (USAGE)\nNext: /acp close closes that session; /unfocus keeps it open and frees the conversation."
    );
    assert_eq!(taken, want);
    // Spawned without a binding: messages still go to the first session.
    let off = send(&service, "/acp spawn demo --thread off").await;
    let Outcome::Command { session_key: Some(here), text, .. } = off else { panic!("{off:?}") };
    assert_eq!(here, first);
    for part in [
        "demo is starting in /tmp: session agent:demo:acp:",
        ", persistent. /acp status agent:demo:acp:",
        "It is bound to no conversation; /focus agent:demo:acp:",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    let unbound = format!("Unbound. The session stays open; /focus {first} binds it again.");
    assert_eq!(reply_to(&service, "/unfocus").await, unbound);
    let nothing = "This conversation is not bound. /focus binds it to a session, /acp spawn to a new one.";
    assert_eq!(reply_to(&service, "/unfocus").await, nothing);
    assert_eq!(reply_to(&service, "hello").await, not_bound());
    let focus = format!("/focus {first}");
    assert_eq!(reply_to(&service, &focus).await, intro);
    assert_eq!(reply_to(&service, &focus).await, format!("This conversation is already bound to {first}."));
    assert!(matches!(send(&service, "hello").await, Outcome::Prompted { .. }));
    let closed = send(&service, "/acp close").await;
    assert!(matches!(closed, Outcome::Command { session_key: None, .. }), "{closed:?}");
    assert_eq!(reply_to(&service, "hello").await, not_bound());
    assert_eq!(reply_to(&service, &focus).await, error_message(&Failure::of(Code::SessionClosed)));
    assert_eq!(fake.prompt_texts(), ["hello"]);
}

#[tokio::test]
async fn unknown_command_is_answered_with_help() {
    let (_dir, store, fake, service) = two_sessions().await;
    let near = reply_to(&service, "/acp cancle").await;
    assert_eq!(
        near,
        "/acp has no command \"cancle\". Did you mean /acp cancel?\nUsage: /acp cancel [SESSION] [--run RUN]\n\
         /acp help lists all commands."
    );
    for text in ["/acp list", "/ACP\u{a0}list", "/session list", "/acp \u{2014}x"] {
        let reply = reply_to(&service, text).await;
        assert!(
            reply.contains(" has no command ") && reply.contains("\n/acp spawn [AGENT]"),
            "{text}: {reply}"
        );
    }
    let used = reply_to(&service, "/acp timeout soon").await;
    assert_eq!(
        used,
        "\"soon\" is not a number of seconds.\nUsage: /acp timeout SECONDS [SESSION]\n/acp help lists all commands."
    );
    assert_eq!((fake.prompt_texts(), fake.effects()), (Vec::new(), Vec::new()));
    // Other text goes to the agent.
    assert!(matches!(send(&service, "/acpfoo").await, Outcome::Prompted { .. }));
    assert_eq!(fake.prompt_texts(), ["/acpfoo"]);
    let kinds: Vec<String> = shown(&store).await.into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "notice").count(), 6, "{kinds:?}");
}

/// Session names are resolved: key, id, label, or prefix of an id.
#[tokio::test]
async fn ambiguous_session_name_is_refused() {
    let (_dir, store, fake, service) = unbound_service();
    for (key, label) in [
        ("agent:demo:acp:01a1b2c3-one", "mine"),
        ("agent:demo:acp:01a1b2c3-two", "yours"),
        ("agent:demo:acp:01a1ffff-gone", "closed one"),
    ] {
        let key = SessionKey::parse(key).unwrap();
        spawn(&store, SessionRow { label: Some(label.to_owned()), ..session_row(&key) }, None).await;
    }
    let gone = SessionKey::parse("agent:demo:acp:01a1ffff-gone").unwrap();
    JournalWriter::claim(&store, &gone).await.close().await;
    for (name, want) in [
        ("agent:demo:acp:01a1b2c3-one", Ok("01a1b2c3-one")),
        ("AGENT:DEMO:ACP:01A1B2C3-ONE", Ok("01a1b2c3-one")),
        ("01a1b2c3-two", Ok("01a1b2c3-two")),
        ("yours", Ok("01a1b2c3-two")),
        ("01a1b2c3-t", Ok("01a1b2c3-two")),
        ("agent:demo:acp:01a1ffff-gone", Ok("01a1ffff-gone")),
        (
            "01a1",
            Err(
                "\"01a1\" matches several sessions: agent:demo:acp:01a1b2c3-one, agent:demo:acp:01a1b2c3-two. Use the key.",
            ),
        ),
        ("closed one", Err("No session has the key, id or label \"closed one\".")),
        ("01a1ffff-gone", Err("No session has the key, id or label \"01a1ffff-gone\".")),
        ("%", Err("No session has the key, id or label \"%\".")),
    ] {
        let before = fake.effects().len();
        let reply = reply_to(&service, &format!("/acp cancel {name}")).await;
        match want {
            Ok(id) => {
                assert_eq!(fake.effects().last(), Some(&format!("cancel agent:demo:acp:{id}")), "{name}")
            }
            Err(text) => {
                assert_eq!(reply, format!("{text} (NO_SESSION)\nNext: /acp sessions lists them."), "{name}");
                assert_eq!(fake.effects().len(), before, "{name}");
            }
        }
    }
    // Without a name, the bound session is used, or none.
    assert_eq!(reply_to(&service, "/acp cancel").await, not_bound());
}

/// A steer of another session is acknowledged here and answered there.
#[tokio::test]
async fn other_session_can_be_steered() {
    let (_dir, _store, fake, service) = two_sessions().await;
    let steered = send(&service, "/acp steer --session other look at it").await;
    let Outcome::Command { session_key, run_id: Some(_), text, .. } = steered else { panic!("{steered:?}") };
    assert_eq!(session_key, Some(key_of(1)));
    let want = "No turn can be steered: the message starts a turn of its own. The answer goes to the \
                conversations of agent:demo:acp:2.";
    assert_eq!((text.as_str(), fake.prompt_texts()), (want, vec!["look at it".to_owned()]));
    let own = send(&service, "/acp steer now").await;
    assert!(matches!(own, Outcome::Prompted { session_key, .. } if session_key == key_of(1)));
}

async fn bindings_of(store: &Store, at: &str) -> Option<BindingRow> {
    let at = conversation(at);
    store.read("binding", move |db| bindings::of_conversation(db, &at)).await.unwrap()
}

#[tokio::test]
async fn timeouts_can_be_shown_set_and_disabled() {
    let (_dir, store, _fake, service) = two_sessions().await;
    spawn(&store, session_of_id(3, "twice"), Some(binding_row(&key_of(3), &conversation("d")))).await;
    let off = "/session idle is off: the binding has no such timeout.";
    assert_eq!(reply_to(&service, "/session idle").await, off);
    let before = store.clock().wall_ms();
    let set = reply_to(&service, "/session idle 1h30m").await;
    let want = "/session idle is 1h30m: the binding ends after that time without activity; currently at 20";
    assert!(set.starts_with(want), "{set}");
    let row = bindings_of(&store, "c").await.unwrap();
    assert_eq!((row.idle_ms, row.max_age_ms, row.bound_at_ms), (Some(5_400_000), None, 1));
    assert!(row.last_activity_at_ms >= before, "the command counts as activity");
    let set = reply_to(&service, "/session max-age 2").await;
    let want = "/session max-age is 2h: the binding ends after that time in any case; currently at 20";
    assert!(set.starts_with(want), "{set}");
    let row = bindings_of(&store, "c").await.unwrap();
    assert_eq!((row.idle_ms, row.max_age_ms), (Some(5_400_000), Some(7_200_000)));
    assert!(row.bound_at_ms >= before, "the age begins now");
    assert_eq!(reply_to(&service, "/session idle off").await, off);
    assert_eq!(bindings_of(&store, "c").await.unwrap().idle_ms, None);
    // For another session, all of its conversations of this account change.
    let row = binding_row(&key_of(3), &conversation("e"));
    store.write("bind", move |tx| bindings::bind(tx, &row)).await.unwrap();
    let set = reply_to(&service, "/session idle 1d twice").await;
    assert!(set.ends_with(" This applies to its 2 conversations here."), "{set}");
    for at in ["d", "e"] {
        assert_eq!(bindings_of(&store, at).await.unwrap().idle_ms, Some(86_400_000));
    }
    let unbound = reply_to(&service, "/session idle 1d other").await;
    assert!(unbound.starts_with("No conversation here is bound to agent:demo:acp:2"), "{unbound}");
}

/// The gateway is killed between any two steps of a command. Meanwhile the conversation is bound elsewhere
/// and the permission settled. The command does not run again, and its reply stays the same.
#[tokio::test]
async fn command_runs_once_across_crashes_and_repeats() {
    let verbs = "hello, /acp spawn demo --thread off, /acp cancel, /acp cancel other, /acp steer look, \
                 /acp steer --session other look, /acp close, /acp close other, /acp archive, \
                 /acp delete --discard, /acp reset, /acp new, /acp set-mode plan, /acp set effort high, \
                 /acp cwd /srv, /acp permissions deny-all, /acp timeout 60, /acp model big, \
                 /acp reset-options, /acp allow, /acp deny, /acp answer 1, /focus other, /unfocus, \
                 /session idle 2h, /session max-age 2h, /acp verbosity none";
    for command in verbs.split(", ") {
        // Once the outcome is recorded, all commands are alike.
        let crashes: &[&str] =
            if command == "/acp cancel" { &["executed", "recorded", "replied"] } else { &["executed"] };
        for &crash in crashes {
            let (_dir, store, fake, service) = two_sessions().await;
            spawn(&store, session_of_id(3, "third"), None).await;
            fake.pending.lock().unwrap().push(permission(1));
            let inbound = message("m1", command);
            service.inner.commit(&inbound).await.unwrap();
            let first = service.inner.execute(&inbound, Vec::new()).await.unwrap();
            assert!(!matches!(first, Outcome::Refused { .. }), "{command}: {first:?}");
            if crash != "executed" {
                let (saved, recorded) = (inbound.clone(), first.clone());
                store.write("record", move |tx| inbox::record(tx, &saved, &recorded, false)).await.unwrap();
            }
            if crash == "replied" {
                service.inner.send_reply(&inbound, &first, 0, PriorReply::NotSent).await.unwrap();
            }
            // Meanwhile, by another message.
            let rebind = |tx: &acp_store::Tx<'_>| {
                if let Some(binding) = bindings::of_conversation(tx, &conversation("c"))? {
                    bindings::end(tx, binding.binding_id, "bound to another session")?;
                }
                bindings::bind(tx, &binding_row(&key_of(3), &conversation("c")))
            };
            store.write("rebind", rebind).await.unwrap();
            fake.pending.lock().unwrap().push(permission_row(&key_of(3), 9));
            let state = state_of(&store, &fake).await;
            let restarted = super::service(&store, &fake);
            assert_eq!(restarted.resume().await.unwrap(), 1, "{command} {crash}");
            assert_eq!(state_of(&store, &fake).await, state, "{command} {crash}: executed twice");
            let repeated = restarted.accept(inbound.clone()).await.unwrap();
            assert_eq!(repeated.text(), first.text(), "{command} {crash}");
            let is_prompt = matches!(first, Outcome::Prompted { .. });
            assert!(!is_prompt || repeated == first, "{command} {crash}: {repeated:?}");
            assert_eq!(state_of(&store, &fake).await, state, "{command} {crash}: executed a third time");
        }
    }
}

async fn state_of(
    store: &Store,
    fake: &FakeService,
) -> (Vec<String>, Vec<String>, Vec<SessionRow>, Vec<BindingRow>) {
    let rows = store.sessions(true, 100).await.unwrap();
    let sql = format!("SELECT {} FROM acp_bindings ORDER BY rowid", bindings::COLUMNS);
    let bound = store.read("all", move |db| db.all(&sql, &[], bindings::from_row));
    (fake.effects(), fake.prompt_texts(), rows, bound.await.unwrap())
}

#[tokio::test]
async fn other_users_may_neither_see_nor_change_sessions() {
    let (_dir, store) = open();
    let fake = FakeService::new(&store);
    let service = service_with(&store, &fake, [Arc::new(GroupChannel::default()) as _]);
    spawn(&store, session_of_id(1, "anns"), Some(binding_row(&key_of(1), &group_conversation("c")))).await;
    spawn(&store, session_of_id(2, "unowned"), None).await;
    let send_as = async |author: &str, place: &str, text: &str| {
        let id = RunId::mint().to_string();
        let inbound = Inbound::new(group_conversation(place), id, author.to_owned(), text.to_owned());
        let outcome = service.accept(inbound).await.unwrap();
        match &outcome {
            Outcome::Refused { failure, .. } => {
                failure.detail_code.clone().unwrap_or_else(|| failure.code.to_string())
            }
            other => other.text().lines().next().unwrap_or_default().to_owned(),
        }
    };
    let verbs = "/acp cancel, /acp close anns, /acp status, /acp permissions, /acp steer stop, /acp model x, \
                 /acp allow, /acp new, /focus anns, /focus unowned";
    for text in verbs.split(", ") {
        assert_eq!(send_as("bob", "c", text).await, "ACP_NOT_OWNER", "{text}");
        assert_eq!(send_as("", "c", text).await, "ACP_NOT_OWNER", "{text}");
    }
    for text in ["/unfocus", "/session idle 1h", "/session max-age off anns", "/acp verbosity none"] {
        assert_eq!(send_as("bob", "c", text).await, "BOUND_BY_OTHER", "{text}");
    }
    assert_eq!((fake.effects(), fake.prompt_texts()), (Vec::new(), Vec::new()));
    assert_eq!(send_as("bob", "c", "/acp sessions").await, "There are no sessions. /acp spawn starts one.");
    let off = "/session idle is off: the binding has no such timeout.";
    assert_eq!(send_as("bob", "c", "/session idle").await, off);
    // The owner may run them.
    let nothing = "agent:demo:acp:1 has no running turn and no queued message.";
    assert_eq!(send_as("ann", "c", "/acp cancel").await, nothing);
    let list = "Sessions, most recently used first (* is this conversation's):";
    assert_eq!(send_as("ann", "c", "/acp sessions").await, list);
    assert!(send_as("ann", "c", "/session idle 1h").await.starts_with("/session idle is 1h"));
    assert_eq!(
        send_as("ann", "d", "/focus anns").await,
        "anns is bound here, in /tmp: session agent:demo:acp:1, agent's session id not yet known. Messages here go to it. The binding has no timeout."
    );
    assert_eq!(send_as("ann", "c", "/acp status unowned").await, "ACP_NOT_OWNER");
    // Bob has a session; neither user may take the other's conversation.
    assert!(
        send_as("bob", "e", "/acp spawn demo").await.starts_with("demo is bound here, in /tmp: session ")
    );
    assert_eq!(send_as("ann", "e", "/focus anns").await, "BOUND_BY_OTHER");
    assert!(send_as("bob", "e", "/acp close").await.contains(" is being closed"));
}
