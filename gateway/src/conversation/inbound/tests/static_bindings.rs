//! Static bindings: created with the first message, updated on configuration changes, and safe under repeats.

use super::fake::{GroupChannel, group_message};
use super::*;
use crate::channel::{BindingLookup, InboundPort};
use crate::tests::loaded;
use acp_core::static_binding::StaticSessionSpec;

const ROOM: &str = "[[bindings]]\nchannel = \"console\"\nconversation = \"c\"\nagent = \"demo\"\n";
const HALL: &str = "[[bindings]]\nchannel = \"party\"\nconversation = \"hall\"\nagent = \"demo\"\n";

impl FakeService {
    fn configure(&self, text: &str) {
        *self.config.lock().unwrap() = Arc::new(loaded(text));
    }
}

fn configured_service(text: &str) -> (tempfile::TempDir, Store, Arc<FakeService>, InboundService) {
    let fixture = unbound_service();
    fixture.2.configure(text);
    fixture
}

async fn prompted(service: &InboundService, message: Inbound) -> String {
    session_of(&service.accept(message).await.unwrap()).to_owned()
}

fn session_of(outcome: &Outcome) -> &str {
    let Outcome::Prompted { session_key, .. } = outcome else { panic!("{outcome:?}") };
    session_key.as_str()
}

/// Returns every binding: conversation, session, status, and if it is static.
async fn binding_rows(store: &Store) -> Vec<(String, String, String, bool)> {
    let rows = store.read("bound", |db| {
        let sql = "SELECT thread_id, session_key, status, metadata_json FROM acp_bindings ORDER BY rowid";
        db.all(sql, &[], |row| {
            let made = StaticSessionSpec::from_metadata(&row.get::<String>("metadata_json")?);
            Ok((row.get("thread_id")?, row.get("session_key")?, row.get("status")?, made.is_some()))
        })
    });
    rows.await.unwrap()
}

/// The first message creates the session, is its first prompt, and gets an introduction.
#[tokio::test]
async fn first_message_starts_static_session_and_restart_finds_it() {
    let (_dir, store, fake, service) = configured_service(ROOM);
    let elsewhere = Inbound { conversation: conversation("d"), ..message("m0", "hello") };
    assert_eq!(outcome_text(&service, elsewhere).await, not_bound());
    let first = service.accept(message("m1", "hello")).await.unwrap();
    let key = session_of(&first).to_owned();
    assert!(key.starts_with("agent:demo:acp:binding:console:default:"), "{key}");
    let want = format!("demo is bound here, in /tmp: session {key}");
    assert!(first.text().starts_with(&want), "{first:?}");
    assert!(first.text().ends_with("The binding has no timeout."), "{first:?}");
    let restarted = service.accept(message("m1", "hello")).await.unwrap();
    assert_eq!(restarted, first, "a repeated message has the same outcome");
    let after = super::service(&store, &fake);
    let second = after.accept(message("m2", "more")).await.unwrap();
    assert_eq!((session_of(&second), &*second.text()), (&*key, "The agent is busy: queued behind 1."));
    assert_eq!(binding_rows(&store).await, [("c".to_owned(), key, "active".to_owned(), true)]);
    assert_eq!(fake.prompt_texts(), ["hello", "more"]);
}

/// After a crash during the first message, the binding is made once and the reply is the same.
#[tokio::test]
async fn crash_during_static_binding_binds_once() {
    let (_dir, store, fake, service) = configured_service(ROOM);
    let inbound = message("m1", "hello");
    service.inner.commit(&inbound).await.unwrap();
    let first = service.inner.execute(&inbound, Vec::new()).await.unwrap();
    // The result is not recorded, as after a crash; the configuration has changed meanwhile.
    fake.configure("");
    let restarted = super::service(&store, &fake);
    assert_eq!(restarted.resume().await.unwrap(), 1);
    assert_eq!(restarted.accept(inbound).await.unwrap(), first);
    assert!(first.text().starts_with("demo is bound here"), "{first:?}");
    assert_eq!(binding_rows(&store).await.len(), 1);
    assert_eq!(fake.prompt_texts(), ["hello"]);
}

/// The transaction that binds also sets the backfill mark, so that messages right after the first one are
/// read after a kill. A user's binding begins at its command.
#[tokio::test]
async fn static_binding_starts_backfill_at_its_first_message() {
    let (_dir, store, fake, service) = configured_service(ROOM);
    spawn(&store, session_row(&key()), None).await;
    let mark = async || match service.lookup_binding(conversation("c")).await {
        BindingLookup::Bound(place) => place.backfilled_through,
        other => panic!("{other:?}"),
    };
    // A kill right after the transaction that makes the session.
    let loaded = fake.config();
    let entry = loaded.config.bindings[0].clone();
    let made = StaticSessionSpec::of(&entry).unwrap();
    let session = SessionKey::parse("agent:demo:acp:early").unwrap();
    let request = crate::conversation::bindings::static_bindings::request(
        &conversation("c"),
        entry,
        session.clone(),
        made.metadata(Some("1")),
    );
    fake.spawn(request, IdempotencyKey::mint()).await.unwrap();
    assert_eq!(mark().await.as_deref(), Some("1"));
    JournalWriter::claim(&store, &session).await.close().await;
    service.accept(message("5", "hello")).await.unwrap();
    assert_eq!(mark().await.as_deref(), Some("5"), "with a new session");
    service.accept(message("6", &format!("/focus {}", key()))).await.unwrap();
    assert_eq!(mark().await, None, "earlier messages do not belong to the binding");
    service.accept(message("7", "/unfocus")).await.unwrap();
    service.accept(message("8", "hello")).await.unwrap();
    assert_eq!(mark().await.as_deref(), Some("8"), "with an existing session");
    service.accept(message("9", "more")).await.unwrap();
    assert_eq!(mark().await.as_deref(), Some("8"), "messages alone do not move the mark");
}

/// After a change of the directory, the next session replaces the old one, and the reply reports both.
#[tokio::test]
async fn changed_static_binding_applies_to_next_message() {
    let (_dir, _store, fake, service) = configured_service(ROOM);
    let first = prompted(&service, message("m1", "hello")).await;
    // Labels and permissions apply to new sessions only.
    fake.configure(&format!("{ROOM}account = \"default\"\nlabel = \"front\"\npermission = \"ask\"\n"));
    assert_eq!(prompted(&service, message("m2", "hello")).await, first);
    fake.configure(&format!("{ROOM}cwd = \"/srv\"\nmode = \"oneshot\"\n"));
    let next = service.accept(message("m3", "hello")).await.unwrap();
    assert_eq!(session_of(&next), format!("{first}:2"));
    let want = format!(
        "{first} has ended: the configuration of this conversation changed: mode, cwd. demo is bound here"
    );
    assert!(next.text().starts_with(&want), "{next:?}");
    assert_eq!(fake.effects(), [format!("closed {first} false")]);
    // Without the entry, the session is closed and the conversation unbound.
    fake.configure("");
    assert_eq!(outcome_text(&service, message("m4", "hello")).await, not_bound());
    assert_eq!(fake.effects().last().unwrap(), &format!("closed {first}:2 false"));
    fake.configure(ROOM);
    assert_eq!(prompted(&service, message("m5", "hello")).await, format!("{first}:3"));
}

#[tokio::test]
async fn static_binding_change_waits_for_running_turn() {
    let (_dir, store, fake, service) = configured_service(ROOM);
    let first = prompted(&service, message("m1", "hello")).await;
    JournalWriter::claim(&store, &SessionKey::parse(&first).unwrap()).await.start().await;
    for text in [format!("{ROOM}cwd = \"/srv\"\n"), String::new()] {
        fake.configure(&text);
        assert_eq!(prompted(&service, message(&format!("m {text}"), "hello")).await, first, "{text}");
    }
    execute(&store, "UPDATE acp_runs SET state = 'completed'").await;
    fake.configure(&format!("{ROOM}cwd = \"/srv\"\n"));
    assert_eq!(prompted(&service, message("m9", "hello")).await, format!("{first}:2"));
}

/// A user's binding takes precedence over a static one until it ends.
#[tokio::test]
async fn user_binding_precedes_static_one_which_cannot_be_unbound() {
    let (_dir, store, _fake, service) = configured_service(&format!("\n{ROOM}"));
    spawn(&store, session_row(&key()), None).await;
    let first = prompted(&service, message("m1", "hello")).await;
    let refused = service.accept(message("m2", "/unfocus")).await.unwrap();
    assert!(refused.text().contains("The configuration binds this conversation (g.toml:2)"), "{refused:?}");
    service.accept(message("m3", &format!("/focus {}", key()))).await.unwrap();
    assert_eq!(prompted(&service, message("m4", "hello")).await, key().as_str());
    let unbound = service.accept(message("m5", "/unfocus")).await.unwrap();
    assert!(unbound.text().starts_with("Unbound."), "{unbound:?}");
    let back = service.accept(message("m6", "hello")).await.unwrap();
    assert_eq!(session_of(&back), first, "the configured session still exists");
    assert!(back.text().starts_with("demo is bound here"), "{back:?}");
    let closed = service.accept(message("m7", "/acp close")).await.unwrap();
    assert!(closed.text().contains("the next message starts a new session"), "{closed:?}");
    assert_eq!(prompted(&service, message("m8", "hello")).await, format!("{first}:2"));
}

/// A thread joins the session of its channel unless it has an entry; accounts are separate.
#[tokio::test]
async fn thread_joins_channel_session_and_accounts_stay_separate() {
    let (_dir, store) = open();
    let fake = FakeService::new(&store);
    fake.configure(HALL);
    let service = service_with(&store, &fake, [Arc::new(GroupChannel::default()) as _]);
    let hello_in = |id: &str, conversation: &str, parent: Option<&str>| {
        let message = group_message(id, "hello");
        let conversation = ConversationRef {
            conversation_id: conversation.to_owned(),
            parent_conversation_id: parent.map(str::to_owned),
            ..message.conversation
        };
        Inbound { conversation, ..message }
    };
    let (one, two) = tokio::join!(
        service.accept(hello_in("m1", "hall", None)),
        service.accept(hello_in("m2", "thread", Some("hall")))
    );
    let (one, two) = (one.unwrap(), two.unwrap());
    let key = session_of(&one).to_owned();
    assert_eq!(session_of(&two), key, "both share one session");
    assert!(two.text().contains("demo is bound here"), "each gets a notice: {two:?}");
    assert_eq!(binding_rows(&store).await.len(), 2);
    let elsewhere = prompted(&service, hello_in("m3", "thread", Some("lobby"))).await;
    assert_eq!(elsewhere, key, "the binding remains although the parent differs");
    let own = HALL.replace("hall", "thread");
    fake.configure(&format!("{HALL}{own}"));
    let apart = prompted(&service, hello_in("m4", "thread", Some("hall"))).await;
    assert_ne!(apart, key);
    let channel = prompted(&service, hello_in("m5", "hall", None)).await;
    assert_eq!(channel, key, "the session of the channel remains");
    assert_eq!(fake.effects(), Vec::<String>::new(), "nothing was closed");
    fake.configure(HALL);
    assert_eq!(prompted(&service, hello_in("m6", "thread", Some("hall"))).await, key);
    assert_eq!(fake.effects(), [format!("closed {apart} false")]);
}
