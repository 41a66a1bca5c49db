//! Commands through the inlet: what they do, what they answer, who may, and that each is done once.
use super::fake::{Party, at_party};
use super::several::{Square, at};
use super::*;
use crate::tests::permission_row;
use acp_core::render::PartKind;
use acp_core::render::buttons::ButtonSubject;
use acp_core::rows::BindingRow;
use acp_store::bindings;
use acp_store::interactive_messages::{self, ButtonMessage};

pub(super) fn keyed(id: u32) -> SessionKey {
    SessionKey::parse(&format!("agent:demo:acp:{id}")).unwrap()
}

pub(super) fn sessions(id: u32, label: &str) -> SessionRow {
    let label = (!label.is_empty()).then(|| label.to_owned());
    SessionRow { label, ..session_row(&keyed(id)) }
}

fn question(id: u32) -> PermissionRow {
    permission_row(&keyed(id), 7)
}

/// Session 1 is bound to the conversation `c`, session 2 is called `other` and bound to nothing.
async fn two_sessions() -> (tempfile::TempDir, Store, Arc<Fake>, InboundService) {
    let ground = bound_ground().await;
    spawn(&ground.1, sessions(2, "other"), None).await;
    ground
}

async fn say(inlet: &InboundService, text: &str) -> Outcome {
    inlet.accept(message(RunId::mint().to_string().as_str(), text)).await.unwrap()
}

pub(super) async fn answer(inlet: &InboundService, text: &str) -> String {
    say(inlet, text).await.text().into_owned()
}

/// A typed answer is told once: by the question where that stands in the same conversation, by a reply elsewhere. Who
/// brought it as a click or a slash command hears it in any case.
#[tokio::test]
async fn typed_permission_answer_is_shown_once() {
    for is_here in [true, false] {
        let (_dir, store, fake, inlet) = two_sessions().await;
        fake.pending.lock().unwrap().push(question(1));
        if is_here {
            let message =
                ButtonMessage { message_id: "9".into(), kind: PartKind::Permission, text: "?".into() };
            let about = ButtonSubject::Permission(question(1).permission_id());
            let at = conversation("c");
            let keep = move |tx: &acp_store::Tx<'_>| {
                interactive_messages::insert_message(tx, &at, &keyed(1), &message, &about)
            };
            store.write("keep", keep).await.unwrap();
        }
        let told = || async {
            shown(&store).await.into_iter().filter(|(kind, _)| kind != "person").collect::<Vec<_>>()
        };
        let outcome = say(&inlet, "/acp allow").await;
        assert_eq!((outcome.text().as_ref(), outcome.is_shown()), ("Answered: “Option y”.", is_here));
        assert_eq!(told().await.len(), usize::from(!is_here));
    }
}

/// Where messages cannot be changed a notice tells what became of a question of this conversation, also of one that has not
/// arrived there when it is answered. A question of another conversation is told here by a reply.
#[tokio::test]
async fn typed_permission_answer_is_shown_once_without_edits() {
    for is_here in [true, false] {
        let (_dir, store) = open();
        let (square, bound) = (Square::new("one"), if is_here { at("one") } else { conversation("c") });
        spawn(&store, sessions(1, "first"), Some(binding_row(&keyed(1), &bound))).await;
        let fake = Fake::new(&store);
        let inlet = inlet_of(&store, &fake, [Arc::clone(&square) as _]);
        fake.pending.lock().unwrap().push(question(1));
        let standing = Some(RequesterRole::Operator);
        let said = Inbound { standing, ..message("m1", "/acp allow --session first") };
        let outcome = inlet.accept(Inbound { conversation: at("one"), ..said }).await.unwrap();
        assert_eq!((outcome.text().as_ref(), outcome.is_shown()), ("Answered: “Option y”.", is_here));
        assert_eq!(square.texts().len(), usize::from(!is_here));
    }
}

/// Every command that is about a session, on the one of the conversation and on one that is named.
#[tokio::test]
async fn commands_have_their_effect_and_reply() {
    let id = "01890a5d-ac96-774b-bcce-b302099a8057:7";
    for (typed, target, effect, want) in [
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
            "From the next turn on, a turn may take 1m30s.\nSET",
        ),
        (
            "timeout 0",
            "",
            "set KEY TimeoutS(0)",
            "From the next turn on, only the gateway's own limit applies.\nSET",
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
        let (_dir, _store, fake, inlet) = two_sessions().await;
        fake.pending.lock().unwrap().push(question(1));
        let key = if target == "2" { keyed(2) } else { keyed(1) };
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
        assert_eq!(answer(&inlet, &format!("/acp {typed}")).await, fill(want), "{typed}");
        let effects: Vec<String> =
            Some(fill(effect)).filter(|effect| !effect.is_empty()).into_iter().collect();
        assert_eq!(fake.effects(), effects, "{typed}");
        assert_eq!(fake.said(), Vec::<String>::new(), "{typed}");
    }
}

#[tokio::test]
async fn spawn_focus_and_unfocus_change_binding() {
    let (_dir, _store, fake, inlet) = bare_ground();
    assert_eq!(answer(&inlet, "/acp sessions").await, "There are no sessions. /acp spawn starts one.");
    assert_eq!(answer(&inlet, "/acp status").await, not_bound());
    let spawned = say(&inlet, "/acp spawn demo").await;
    let Outcome::Command { session_key: Some(first), .. } = spawned.clone() else { panic!("{spawned:?}") };
    let intro = format!(
        "demo is bound here, in /tmp: session {first}, agent's session id not yet known. Messages here go to it. The binding has no timeout."
    );
    assert_eq!(spawned.text(), intro);
    let taken = answer(&inlet, "/acp spawn demo").await;
    let want = format!(
        "This conversation is bound to {first}. (USAGE)\nNext: /acp close closes that session; /unfocus keeps it open and frees the conversation."
    );
    assert_eq!(taken, want);
    // Bound to nothing: what is typed still goes to the first one.
    let off = say(&inlet, "/acp spawn demo --thread off").await;
    let Outcome::Command { session_key: Some(here), text, .. } = off else { panic!("{off:?}") };
    assert_eq!(here, first);
    assert!(text.contains("It is bound to no conversation; /focus agent:demo:acp:"), "{text}");
    let unbound = format!("Unbound. The session stays open; /focus {first} binds it again.");
    assert_eq!(answer(&inlet, "/unfocus").await, unbound);
    let nothing = "This conversation is not bound. /focus binds it to a session, /acp spawn to a new one.";
    assert_eq!(answer(&inlet, "/unfocus").await, nothing);
    assert_eq!(answer(&inlet, "hello").await, not_bound());
    let focus = format!("/focus {first}");
    assert_eq!(answer(&inlet, &focus).await, intro);
    assert_eq!(answer(&inlet, &focus).await, format!("This conversation is already bound to {first}."));
    assert!(matches!(say(&inlet, "hello").await, Outcome::Prompted { .. }));
    let closed = say(&inlet, "/acp close").await;
    assert!(matches!(closed, Outcome::Command { session_key: None, .. }), "{closed:?}");
    assert_eq!(answer(&inlet, "hello").await, not_bound());
    assert_eq!(answer(&inlet, &focus).await, error_message(&Failure::of(Code::SessionClosed)));
    assert_eq!(fake.said(), ["hello"]);
}

#[tokio::test]
async fn unknown_command_is_answered_with_help() {
    let (_dir, store, fake, inlet) = two_sessions().await;
    for text in ["/acp list", "/acp cancle", "/ACP\u{a0}list", "/session list", "/acp \u{2014}x"] {
        let said = answer(&inlet, text).await;
        assert!(said.contains(" has no command ") && said.contains("\n/acp spawn [AGENT]"), "{text}: {said}");
    }
    let used = answer(&inlet, "/acp timeout soon").await;
    assert_eq!(
        used,
        "\"soon\" is not a number of seconds.\nUsage: /acp timeout SECONDS [SESSION]\n/acp help lists all commands."
    );
    assert_eq!((fake.said(), fake.effects()), (Vec::new(), Vec::new()));
    // What is not ours goes to the agent.
    assert!(matches!(say(&inlet, "/acpfoo").await, Outcome::Prompted { .. }));
    assert_eq!(fake.said(), ["/acpfoo"]);
    let kinds: Vec<String> = shown(&store).await.into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "notice").count(), 6, "{kinds:?}");
}

/// What a name means is looked up in the control plane: a key, an id, a label, the beginning of an id.
#[tokio::test]
async fn ambiguous_session_name_is_refused() {
    let (_dir, store, fake, inlet) = bare_ground();
    for (key, label) in [
        ("agent:demo:acp:01a1b2c3-one", "mine"),
        ("agent:demo:acp:01a1b2c3-two", "yours"),
        ("agent:demo:acp:01a1ffff-gone", "closed one"),
    ] {
        let key = SessionKey::parse(key).unwrap();
        spawn(&store, SessionRow { label: Some(label.to_owned()), ..session_row(&key) }, None).await;
    }
    let gone = SessionKey::parse("agent:demo:acp:01a1ffff-gone").unwrap();
    Scribe::claim(&store, &gone).await.close().await;
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
        let said = answer(&inlet, &format!("/acp cancel {name}")).await;
        match want {
            Ok(id) => {
                assert_eq!(fake.effects().last(), Some(&format!("cancel agent:demo:acp:{id}")), "{name}")
            }
            Err(text) => {
                assert_eq!(said, format!("{text} (NO_SESSION)\nNext: /acp sessions lists them."), "{name}");
                assert_eq!(fake.effects().len(), before, "{name}");
            }
        }
    }
    // Without a name it is the binding, and without a binding nothing.
    assert_eq!(answer(&inlet, "/acp cancel").await, not_bound());
}

/// A steer of another session is answered here and goes on there.
#[tokio::test]
async fn other_session_can_be_steered() {
    let (_dir, _store, fake, inlet) = two_sessions().await;
    let steered = say(&inlet, "/acp steer --session other look at it").await;
    let Outcome::Command { session_key, run_id: Some(_), text, .. } = steered else { panic!("{steered:?}") };
    assert_eq!(session_key, Some(keyed(1)));
    let want = "No turn can be steered: the message starts a turn of its own. The answer goes to the \
                conversations of agent:demo:acp:2.";
    assert_eq!((text.as_str(), fake.said()), (want, vec!["look at it".to_owned()]));
    let own = say(&inlet, "/acp steer now").await;
    assert!(matches!(own, Outcome::Prompted { session_key, .. } if session_key == keyed(1)));
}

async fn bindings_of(store: &Store, at: &str) -> Option<BindingRow> {
    let at = conversation(at);
    store.read("binding", move |db| bindings::of_conversation(db, &at)).await.unwrap()
}

#[tokio::test]
async fn timeouts_can_be_shown_set_and_disabled() {
    let (_dir, store, _fake, inlet) = two_sessions().await;
    spawn(&store, sessions(3, "twice"), Some(binding_row(&keyed(3), &conversation("d")))).await;
    let off = "/session idle is off: the binding has no such timeout.";
    assert_eq!(answer(&inlet, "/session idle").await, off);
    let before = now_ms();
    let set = answer(&inlet, "/session idle 1h30m").await;
    let want = "/session idle is 1h30m: the binding ends after that time without activity; currently at 20";
    assert!(set.starts_with(want), "{set}");
    let row = bindings_of(&store, "c").await.unwrap();
    assert_eq!((row.idle_ms, row.max_age_ms, row.bound_at_ms), (Some(5_400_000), None, 1));
    assert!(row.last_activity_at_ms >= before, "the command counts as activity");
    let set = answer(&inlet, "/session max-age 2").await;
    let want = "/session max-age is 2h: the binding ends after that time in any case; currently at 20";
    assert!(set.starts_with(want), "{set}");
    let row = bindings_of(&store, "c").await.unwrap();
    assert_eq!((row.idle_ms, row.max_age_ms), (Some(5_400_000), Some(7_200_000)));
    assert!(row.bound_at_ms >= before, "the age begins now");
    assert_eq!(answer(&inlet, "/session idle off").await, off);
    assert_eq!(bindings_of(&store, "c").await.unwrap().idle_ms, None);
    // Another session's, by its name: all of its conversations of this account.
    let row = binding_row(&keyed(3), &conversation("e"));
    store.write("bind", move |tx| bindings::bind(tx, &row)).await.unwrap();
    let set = answer(&inlet, "/session idle 1d twice").await;
    assert!(set.ends_with(" This applies to its 2 conversations here."), "{set}");
    for at in ["d", "e"] {
        assert_eq!(bindings_of(&store, at).await.unwrap().idle_ms, Some(86_400_000));
    }
    let unbound = answer(&inlet, "/session idle 1d other").await;
    assert!(unbound.starts_with("No conversation here is bound to agent:demo:acp:2"), "{unbound}");
}

/// The gateway dies between any two steps of a command, and before it is started again the world has changed: the
/// conversation is bound elsewhere and the question is answered. The command is not done again, and its answer is the first.
#[tokio::test]
async fn command_runs_once_across_crashes_and_repeats() {
    let verbs = "hello, /acp spawn demo --thread off, /acp cancel, /acp cancel other, /acp steer look, \
                 /acp steer --session other look, /acp close, /acp close other, /acp archive, \
                 /acp delete --discard, /acp reset, /acp new, /acp set-mode plan, /acp set effort high, \
                 /acp cwd /srv, /acp permissions deny-all, /acp timeout 60, /acp model big, \
                 /acp reset-options, /acp allow, /acp deny, /acp answer 1, /focus other, /unfocus, \
                 /session idle 2h, /session max-age 2h, /acp verbosity none";
    for verb in verbs.split(", ") {
        // After the outcome is kept, all commands are one.
        let crashes: &[&str] = if verb == "/acp cancel" { &["done", "recorded", "told"] } else { &["done"] };
        for &crash in crashes {
            let (_dir, store, fake, inlet) = two_sessions().await;
            spawn(&store, sessions(3, "third"), None).await;
            fake.pending.lock().unwrap().push(question(1));
            let said = message("m1", verb);
            inlet.inner.commit(&said).await.unwrap();
            let first = inlet.inner.execute(&said, Vec::new()).await.unwrap();
            assert!(!matches!(first, Outcome::Refused { .. }), "{verb}: {first:?}");
            if crash != "done" {
                let (kept, recorded) = (said.clone(), first.clone());
                store.write("record", move |tx| inbox::record(tx, &kept, &recorded, false)).await.unwrap();
            }
            if crash == "told" {
                inlet.inner.send_reply(&said, &first, 0, PriorReply::NotSent).await.unwrap();
            }
            // In the meantime, by another message.
            let rebind = |tx: &acp_store::Tx<'_>| {
                if let Some(binding) = bindings::of_conversation(tx, &conversation("c"))? {
                    bindings::end(tx, binding.binding_id, "bound to another session")?;
                }
                bindings::bind(tx, &binding_row(&keyed(3), &conversation("c")))
            };
            store.write("rebind", rebind).await.unwrap();
            fake.pending.lock().unwrap().push(permission_row(&keyed(3), 9));
            let state = state_of(&store, &fake).await;
            let again = super::inlet(&store, &fake);
            assert_eq!(again.resume().await.unwrap(), 1, "{verb} {crash}");
            assert_eq!(state_of(&store, &fake).await, state, "{verb} {crash}: executed twice");
            let told = again.accept(said.clone()).await.unwrap();
            assert_eq!(told.text(), first.text(), "{verb} {crash}");
            let is_prompt = matches!(first, Outcome::Prompted { .. });
            assert!(!is_prompt || told == first, "{verb} {crash}: {told:?}");
            assert_eq!(state_of(&store, &fake).await, state, "{verb} {crash}: executed a third time");
        }
    }
}

/// Everything that commands change: what the manager did, what was said, the sessions and all bindings.
async fn state_of(
    store: &Store,
    fake: &Fake,
) -> (Vec<String>, Vec<String>, Vec<SessionRow>, Vec<BindingRow>) {
    let rows = store.sessions(true, 100).await.unwrap();
    let sql = format!("SELECT {} FROM acp_bindings ORDER BY rowid", bindings::COLUMNS);
    let bound = store.read("all", move |db| acp_store::codec::all(db, &sql, [], bindings::from_row));
    (fake.effects(), fake.said(), rows, bound.await.unwrap())
}

#[tokio::test]
async fn other_users_may_neither_see_nor_change_sessions() {
    let (_dir, store) = open();
    let fake = Fake::new(&store);
    let inlet = inlet_of(&store, &fake, [Arc::new(Party::default()) as _]);
    spawn(&store, sessions(1, "anns"), Some(binding_row(&keyed(1), &at_party("c")))).await;
    spawn(&store, sessions(2, "nobodys"), None).await;
    let says = async |author: &str, place: &str, text: &str| {
        let id = RunId::mint().to_string();
        let inbound = Inbound::new(at_party(place), id, author.to_owned(), text.to_owned());
        let outcome = inlet.accept(inbound).await.unwrap();
        match &outcome {
            Outcome::Refused { failure, .. } => {
                failure.detail_code.clone().unwrap_or_else(|| failure.code.to_string())
            }
            other => other.text().lines().next().unwrap_or_default().to_owned(),
        }
    };
    let verbs = "/acp cancel, /acp close anns, /acp status, /acp permissions, /acp steer stop, /acp model x, \
                 /acp allow, /acp new, /focus anns, /focus nobodys";
    for text in verbs.split(", ") {
        assert_eq!(says("bob", "c", text).await, "ACP_NOT_OWNER", "{text}");
        assert_eq!(says("", "c", text).await, "ACP_NOT_OWNER", "{text}");
    }
    for text in ["/unfocus", "/session idle 1h", "/session max-age off anns", "/acp verbosity none"] {
        assert_eq!(says("bob", "c", text).await, "BOUND_BY_OTHER", "{text}");
    }
    assert_eq!((fake.effects(), fake.said()), (Vec::new(), Vec::new()));
    assert_eq!(says("bob", "c", "/acp sessions").await, "There are no sessions. /acp spawn starts one.");
    let off = "/session idle is off: the binding has no such timeout.";
    assert_eq!(says("bob", "c", "/session idle").await, off);
    // The same in the owner's hands.
    let nothing = "agent:demo:acp:1 has no running turn and no queued message.";
    assert_eq!(says("ann", "c", "/acp cancel").await, nothing);
    let list = "Sessions, most recently used first (* is this conversation's):";
    assert_eq!(says("ann", "c", "/acp sessions").await, list);
    assert!(says("ann", "c", "/session idle 1h").await.starts_with("/session idle is 1h"));
    assert_eq!(
        says("ann", "d", "/focus anns").await,
        "anns is bound here, in /tmp: session agent:demo:acp:1, agent's session id not yet known. Messages here go to it. The binding has no timeout."
    );
    assert_eq!(says("ann", "c", "/acp status nobodys").await, "ACP_NOT_OWNER");
    // Bob has one of his own; Ann cannot take his conversation away, nor he hers.
    assert!(says("bob", "e", "/acp spawn demo").await.starts_with("demo is bound here, in /tmp: session "));
    assert_eq!(says("ann", "e", "/focus anns").await, "BOUND_BY_OTHER");
    assert!(says("bob", "e", "/acp close").await.contains(" is being closed"));
}
