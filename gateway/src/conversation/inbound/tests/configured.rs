//! Conversations that the configuration binds: made with the first message, mended when the configuration changes, and
//! once whatever is repeated.

use super::fake::{Party, party};
use super::*;
use crate::channel::{BindingLookup, InboundPort};
use crate::tests::loaded;
use acp_core::static_binding::StaticSessionSpec;

const ROOM: &str = "[[bindings]]\nchannel = \"console\"\nconversation = \"c\"\nagent = \"demo\"\n";
const HALL: &str = "[[bindings]]\nchannel = \"party\"\nconversation = \"hall\"\nagent = \"demo\"\n";

impl Fake {
    fn configure(&self, text: &str) {
        *self.config.lock().unwrap() = Arc::new(loaded(text));
    }
}

/// A store without sessions, and a gateway with this configuration.
fn configured_ground(text: &str) -> (tempfile::TempDir, Store, Arc<Fake>, InboundService) {
    let ground = bare_ground();
    ground.2.configure(text);
    ground
}

/// The session whose agent gets the message.
async fn prompted(inlet: &InboundService, message: Inbound) -> String {
    session_of(&inlet.accept(message).await.unwrap()).to_owned()
}

fn session_of(outcome: &Outcome) -> &str {
    let Outcome::Prompted { session_key, .. } = outcome else { panic!("{outcome:?}") };
    session_key.as_str()
}

/// Every binding: its conversation, its session, how it stands, and whether the configuration made it.
async fn bound(store: &Store) -> Vec<(String, String, String, bool)> {
    let rows = store.read("bound", |db| {
        let sql = "SELECT thread_id, session_key, status, metadata_json FROM acp_bindings ORDER BY rowid";
        acp_store::codec::all(db, sql, [], |row| {
            let made = StaticSessionSpec::from_metadata(&row.get::<_, String>("metadata_json")?);
            Ok((row.get("thread_id")?, row.get("session_key")?, row.get("status")?, made.is_some()))
        })
    });
    rows.await.unwrap()
}

/// The first message makes the session, says who works there, and is its first prompt; later ones find it.
#[tokio::test]
async fn first_message_starts_static_session_and_restart_finds_it() {
    let (_dir, store, fake, inlet) = configured_ground(ROOM);
    let elsewhere = Inbound { conversation: conversation("d"), ..message("m0", "hello") };
    assert_eq!(outcome_text(&inlet, elsewhere).await, not_bound());
    let first = inlet.accept(message("m1", "hello")).await.unwrap();
    let key = session_of(&first).to_owned();
    assert!(key.starts_with("agent:demo:acp:binding:console:default:"), "{key}");
    let want = format!("demo is bound here, in /tmp: session {key}");
    assert!(first.text().starts_with(&want), "{first:?}");
    assert!(first.text().ends_with("The binding has no timeout."), "{first:?}");
    let again = inlet.accept(message("m1", "hello")).await.unwrap();
    assert_eq!(again, first, "a repeated message has the same outcome");
    let after = super::inlet(&store, &fake);
    let second = after.accept(message("m2", "more")).await.unwrap();
    assert_eq!((session_of(&second), &*second.text()), (&*key, "The agent is busy: queued behind 1."));
    assert_eq!(bound(&store).await, [("c".to_owned(), key, "active".to_owned(), true)]);
    assert_eq!(fake.said(), ["hello", "more"]);
}

/// A crash after what was decided is committed, or after it was done: done once, and said in the same words.
#[tokio::test]
async fn crash_during_static_binding_binds_once() {
    let (_dir, store, fake, inlet) = configured_ground(ROOM);
    let said = message("m1", "hello");
    inlet.inner.commit(&said).await.unwrap();
    let acted = inlet.inner.execute(&said, Vec::new()).await.unwrap();
    // What was done is not recorded, as after a crash; and the configuration is another one by then.
    fake.configure("");
    let again = super::inlet(&store, &fake);
    assert_eq!(again.resume().await.unwrap(), 1);
    assert_eq!(again.accept(said).await.unwrap(), acted);
    assert!(acted.text().starts_with("demo is bound here"), "{acted:?}");
    assert_eq!(bound(&store).await.len(), 1);
    assert_eq!(fake.said(), ["hello"]);
}

/// What was said right behind the first message is read from that one on, if the gateway is killed before it has it: that
/// is in the transaction that binds. What a person binds begins when they do.
#[tokio::test]
async fn static_binding_starts_backfill_at_its_first_message() {
    let (_dir, store, fake, inlet) = configured_ground(ROOM);
    spawn(&store, session_row(&key()), None).await;
    let mark = async || match inlet.lookup_binding(conversation("c")).await {
        BindingLookup::Bound(place) => place.backfilled_through,
        other => panic!("{other:?}"),
    };
    // A kill between the transaction that makes the session and what follows.
    let loaded = fake.config();
    let entry = loaded.config.bindings[0].clone();
    let made = StaticSessionSpec::of(&entry).unwrap();
    let session = SessionKey::parse("agent:demo:acp:early").unwrap();
    let early = (session.clone(), made.metadata(Some("1")));
    let request = crate::conversation::bindings::static_bindings::request(&conversation("c"), entry, early);
    fake.spawn(request, IdempotencyKey::mint()).await.unwrap();
    assert_eq!(mark().await.as_deref(), Some("1"));
    Scribe::claim(&store, &session).await.close().await;
    inlet.accept(message("5", "hello")).await.unwrap();
    assert_eq!(mark().await.as_deref(), Some("5"), "with a new session");
    inlet.accept(message("6", &format!("/focus {}", key()))).await.unwrap();
    assert_eq!(mark().await, None, "earlier messages do not belong to the binding");
    inlet.accept(message("7", "/unfocus")).await.unwrap();
    inlet.accept(message("8", "hello")).await.unwrap();
    assert_eq!(mark().await.as_deref(), Some("8"), "with an existing session");
    inlet.accept(message("9", "more")).await.unwrap();
    assert_eq!(mark().await.as_deref(), Some("8"), "messages alone do not move the mark");
}

/// Another directory in the configuration: the old session is closed, the next takes its place, and both are said.
#[tokio::test]
async fn changed_static_binding_applies_to_next_message() {
    let (_dir, _store, fake, inlet) = configured_ground(ROOM);
    let first = prompted(&inlet, message("m1", "hello")).await;
    // Labels and permissions are for new sessions.
    fake.configure(&format!("{ROOM}account = \"default\"\nlabel = \"front\"\npermission = \"ask\"\n"));
    assert_eq!(prompted(&inlet, message("m2", "hello")).await, first);
    fake.configure(&format!("{ROOM}cwd = \"/srv\"\nmode = \"oneshot\"\n"));
    let next = inlet.accept(message("m3", "hello")).await.unwrap();
    assert_eq!(session_of(&next), format!("{first}:2"));
    let want = format!(
        "{first} has ended: the configuration of this conversation changed: mode, cwd. demo is bound here"
    );
    assert!(next.text().starts_with(&want), "{next:?}");
    assert_eq!(fake.effects(), [format!("closed {first} false")]);
    // The entry goes: so does the session, and the person hears that nothing is bound.
    fake.configure("");
    assert_eq!(outcome_text(&inlet, message("m4", "hello")).await, not_bound());
    assert_eq!(fake.effects().last().unwrap(), &format!("closed {first}:2 false"));
    fake.configure(ROOM);
    assert_eq!(prompted(&inlet, message("m5", "hello")).await, format!("{first}:3"));
}

/// A turn is not lost to a reload: the change waits for its end.
#[tokio::test]
async fn static_binding_change_waits_for_running_turn() {
    let (_dir, store, fake, inlet) = configured_ground(ROOM);
    let first = prompted(&inlet, message("m1", "hello")).await;
    Scribe::claim(&store, &SessionKey::parse(&first).unwrap()).await.start().await;
    for text in [format!("{ROOM}cwd = \"/srv\"\n"), String::new()] {
        fake.configure(&text);
        assert_eq!(prompted(&inlet, message(&format!("m {text}"), "hello")).await, first, "{text}");
    }
    execute(&store, "UPDATE acp_runs SET state = 'completed'").await;
    fake.configure(&format!("{ROOM}cwd = \"/srv\"\n"));
    assert_eq!(prompted(&inlet, message("m9", "hello")).await, format!("{first}:2"));
}

/// What a person binds goes before the configuration, until it is unbound or leads nowhere.
#[tokio::test]
async fn user_binding_precedes_static_one_which_cannot_be_unbound() {
    let (_dir, store, _fake, inlet) = configured_ground(&format!("\n{ROOM}"));
    spawn(&store, session_row(&key()), None).await;
    let first = prompted(&inlet, message("m1", "hello")).await;
    let refused = inlet.accept(message("m2", "/unfocus")).await.unwrap();
    assert!(refused.text().contains("The configuration binds this conversation (g.toml:2)"), "{refused:?}");
    inlet.accept(message("m3", &format!("/focus {}", key()))).await.unwrap();
    assert_eq!(prompted(&inlet, message("m4", "hello")).await, key().as_str());
    let unbound = inlet.accept(message("m5", "/unfocus")).await.unwrap();
    assert!(unbound.text().starts_with("Unbound."), "{unbound:?}");
    let back = inlet.accept(message("m6", "hello")).await.unwrap();
    assert_eq!(session_of(&back), first, "the configured session still exists");
    assert!(back.text().starts_with("demo is bound here"), "{back:?}");
    let closed = inlet.accept(message("m7", "/acp close")).await.unwrap();
    assert!(closed.text().contains("the next message starts a new session"), "{closed:?}");
    assert_eq!(prompted(&inlet, message("m8", "hello")).await, format!("{first}:2"));
}

/// A thread joins the session of its channel, each account has its own, and an entry of the thread's own goes first.
#[tokio::test]
async fn thread_joins_channel_session_and_accounts_stay_separate() {
    let (_dir, store) = open();
    let fake = Fake::new(&store);
    fake.configure(HALL);
    let inlet = inlet_of(&store, &fake, [Arc::new(Party::default()) as _]);
    let said = |id: &str, conversation: &str, parent: Option<&str>| {
        let message = party(id, "hello");
        let conversation = ConversationRef {
            conversation_id: conversation.to_owned(),
            parent_conversation_id: parent.map(str::to_owned),
            ..message.conversation
        };
        Inbound { conversation, ..message }
    };
    let (one, two) = tokio::join!(
        inlet.accept(said("m1", "hall", None)),
        inlet.accept(said("m2", "thread", Some("hall")))
    );
    let (one, two) = (one.unwrap(), two.unwrap());
    let key = session_of(&one).to_owned();
    assert_eq!(session_of(&two), key, "both share one session");
    assert!(two.text().contains("demo is bound here"), "each gets a notice: {two:?}");
    assert_eq!(bound(&store).await.len(), 2);
    let elsewhere = prompted(&inlet, said("m3", "thread", Some("lobby"))).await;
    assert_eq!(elsewhere, key, "the binding remains although the parent differs");
    let own = HALL.replace("hall", "thread");
    fake.configure(&format!("{HALL}{own}"));
    let apart = prompted(&inlet, said("m4", "thread", Some("hall"))).await;
    assert_ne!(apart, key);
    let channel = prompted(&inlet, said("m5", "hall", None)).await;
    assert_eq!(channel, key, "the session of the channel remains");
    assert_eq!(fake.effects(), Vec::<String>::new(), "nothing was closed");
    fake.configure(HALL);
    assert_eq!(prompted(&inlet, said("m6", "thread", Some("hall"))).await, key);
    assert_eq!(fake.effects(), [format!("closed {apart} false")]);
}
