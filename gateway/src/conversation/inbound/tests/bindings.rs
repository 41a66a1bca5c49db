//! What comes in where a binding leads nowhere, where nobody serves, or from the gateway itself.

use super::fake::{Party, party};
use super::*;

/// A binding whose session is closed.
async fn stale_ground() -> (tempfile::TempDir, Store, Arc<Fake>, InboundService) {
    let ground = bound_ground().await;
    execute(&ground.1, "UPDATE acp_sessions SET state = 'closed'").await;
    ground
}

async fn ended(store: &Store) -> Option<String> {
    column::<Option<String>>(store, "SELECT end_reason FROM acp_bindings").await.remove(0)
}

/// A stale binding stays where nobody allowed more, and goes where it may: together with what is told, once.
#[tokio::test]
async fn stale_binding_is_removed_only_if_allowed() {
    let (_dir, store, fake, inlet) = stale_ground().await;
    let stays = inlet.accept(message("m1", "hello")).await.unwrap();
    assert!(stays.text().contains("Use /unfocus"), "{stays:?}");
    assert_eq!(ended(&store).await, None);
    fake.unbinds_stale.store(true, std::sync::atomic::Ordering::Relaxed);
    // A command says the same and removes nothing: a person is at it.
    let command = inlet.accept(message("m2", "/acp status")).await.unwrap();
    assert!(command.text().contains("Use /unfocus"), "{command:?}");
    let goes = inlet.accept(message("m3", "hello")).await.unwrap();
    assert!(goes.text().contains("the binding was removed"), "{goes:?}");
    assert_eq!(ended(&store).await.as_deref(), Some("stale: session-closed"));
    let again = inlet.accept(message("m3", "hello")).await.unwrap();
    assert_eq!(again, goes, "a repeated message has the same outcome");
    assert_eq!(outcome_text(&inlet, message("m4", "hello")).await, not_bound());
    assert_eq!(fake.said(), Vec::<String>::new());
    let text = inlet.inner.metrics.render();
    for series in [
        "acp_stale_binding_detections_total{channel=\"console\"} 2",
        "acp_stale_binding_removals_total{channel=\"console\",when=\"inbound\"} 1",
        "acp_routes_total{direction=\"inbound\",outcome=\"refused\",reason=\"session-closed\"} 3",
        "acp_routes_total{direction=\"inbound\",outcome=\"unbound\",reason=\"no-binding\"} 1",
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
}

/// A run that has not ended is looked at by a person first.
#[tokio::test]
async fn stale_binding_with_unfinished_run_stays() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    Scribe::claim(&store, &key()).await.start().await;
    execute(&store, "UPDATE acp_sessions SET state = 'closed'").await;
    fake.unbinds_stale.store(true, std::sync::atomic::Ordering::Relaxed);
    let stays = inlet.accept(message("m1", "hello")).await.unwrap();
    assert!(stays.text().contains("Use /unfocus"), "{stays:?}");
    assert_eq!(ended(&store).await, None);
}

/// A crash after the removal and before the reply: the person is told what was done, and not what is then.
#[tokio::test]
async fn removal_of_stale_binding_is_reported_after_crash() {
    let (_dir, store, fake, inlet) = stale_ground().await;
    fake.unbinds_stale.store(true, std::sync::atomic::Ordering::Relaxed);
    let said = message("m1", "hello");
    inlet.inner.commit(&said).await.unwrap();
    let removed = inlet.inner.execute(&said, Vec::new()).await.unwrap();
    let again = super::inlet(&store, &fake);
    assert_eq!(again.resume().await.unwrap(), 1);
    assert_eq!(again.accept(said).await.unwrap(), removed);
    assert_eq!(shown_as(&store, "error").await, [removed.text()]);
}

/// What the gateway said comes back in: it is dropped before anything is routed, also once the conversation is unbound
/// and after a restart.
#[tokio::test]
async fn own_messages_are_ignored_after_unbind_and_restart() {
    let (dir, store) = open();
    spawn(&store, session_row(&key()), Some(binding_row(&key(), &party("", "").conversation))).await;
    let fake = Fake::new(&store);
    let channel = Arc::new(Party::default());
    let inlet = inlet_of(&store, &fake, [Arc::clone(&channel) as _]);
    let echo = Outcome::Ignored { reason: "own-echo".to_owned() };
    inlet.accept(party("m1", "/acp permissions")).await.unwrap();
    assert_eq!(channel.said.lock().unwrap().as_slice(), ["The agent waits for no permission."]);
    assert_eq!(inlet.accept(party("party-1", "The agent waits for no permission.")).await.unwrap(), echo);
    inlet.accept(party("m2", "/unfocus")).await.unwrap();
    assert_eq!(inlet.accept(party("party-2", "/acp sessions")).await.unwrap(), echo);
    store.close().await;
    let store = Store::open(dir.path(), acp_store::Durability::Normal).unwrap();
    let inlet = inlet_of(&store, &Fake::new(&store), [Arc::clone(&channel) as _]);
    assert_eq!(inlet.accept(party("party-2", "/acp sessions")).await.unwrap(), echo);
    // The same id elsewhere is a person's, and what is none of ours is left alone.
    let mut elsewhere = party("party-1", "hello");
    elsewhere.conversation.conversation_id = "d".to_owned();
    let ignored = inlet.accept(elsewhere).await.unwrap();
    assert_eq!(ignored, Outcome::Ignored { reason: "no-binding".to_owned() });
    assert_eq!(channel.said.lock().unwrap().len(), 2);
}

/// An account that nobody serves: no turn is begun whose answer would have nowhere to go, until somebody does.
#[tokio::test]
async fn account_without_adapter_gets_no_turn() {
    let (_dir, store, fake, inlet) = bare_ground();
    let mut elsewhere = message("m1", "hello");
    elsewhere.conversation.account_id = "second".to_owned();
    spawn(&store, session_row(&key()), Some(binding_row(&key(), &elsewhere.conversation))).await;
    assert_eq!(inlet.accept(elsewhere).await.unwrap_err().code, Code::ChannelUnavailable);
    assert_eq!((inlet.resume().await.unwrap(), fake.said()), (0, Vec::<String>::new()));
    // The other account's conversation of that name is bound to nothing.
    assert_eq!(outcome_text(&inlet, message("m2", "hello")).await, not_bound());
}

/// D1: a session that is begun or brought into a conversation says who it is, where, and how long it stays bound.
#[tokio::test]
async fn spawn_reply_names_session_and_directory() {
    let (_dir, store, _fake, inlet) = bare_ground();
    let spawned = inlet.accept(message("m1", "/acp spawn demo")).await.unwrap();
    let Outcome::Command { session_key: Some(key), .. } = &spawned else { panic!("{spawned:?}") };
    let want = format!("demo is bound here, in /tmp: session {key}, agent's session id not yet known.");
    assert!(spawned.text().starts_with(&want), "{spawned:?}");
    assert_eq!(shown_as(&store, "notice").await, [spawned.text()], "once, in the conversation");
}
