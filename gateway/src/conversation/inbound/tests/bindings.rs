//! Messages for stale bindings, for accounts without an adapter, and from the gateway itself.

use super::fake::{GroupChannel, group_message};
use super::*;

async fn stale_service() -> (tempfile::TempDir, Store, Arc<FakeService>, InboundService) {
    let fixture = bound_service().await;
    execute(&fixture.1, "UPDATE acp_sessions SET state = 'closed'").await;
    fixture
}

async fn end_reason(store: &Store) -> Option<String> {
    column::<Option<String>>(store, "SELECT end_reason FROM acp_bindings").await.remove(0)
}

#[tokio::test]
async fn stale_binding_is_removed_only_if_allowed() {
    let (_dir, store, fake, service) = stale_service().await;
    let kept = service.accept(message("m1", "hello")).await.unwrap();
    assert!(kept.text().contains("Use /unfocus"), "{kept:?}");
    assert_eq!(end_reason(&store).await, None);
    fake.unbinds_stale.store(true, std::sync::atomic::Ordering::Relaxed);
    // A command reports the same and removes nothing, since a person can act.
    let command = service.accept(message("m2", "/acp status")).await.unwrap();
    assert!(command.text().contains("Use /unfocus"), "{command:?}");
    let removed = service.accept(message("m3", "hello")).await.unwrap();
    assert!(removed.text().contains("the binding was removed"), "{removed:?}");
    assert_eq!(end_reason(&store).await.as_deref(), Some("stale: session-closed"));
    let restarted = service.accept(message("m3", "hello")).await.unwrap();
    assert_eq!(restarted, removed, "a repeated message has the same outcome");
    assert_eq!(outcome_text(&service, message("m4", "hello")).await, not_bound());
    assert_eq!(fake.prompt_texts(), Vec::<String>::new());
    let text = service.inner.metrics.render();
    for series in [
        "acp_stale_binding_detections_total{channel=\"console\"} 2",
        "acp_stale_binding_removals_total{channel=\"console\",when=\"inbound\"} 1",
        "acp_routes_total{direction=\"inbound\",outcome=\"refused\",reason=\"session-closed\"} 3",
        "acp_routes_total{direction=\"inbound\",outcome=\"unbound\",reason=\"no-binding\"} 1",
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
}

#[tokio::test]
async fn stale_binding_with_unfinished_run_stays() {
    let (_dir, store, fake, service) = bound_service().await;
    JournalWriter::claim(&store, &key()).await.start().await;
    execute(&store, "UPDATE acp_sessions SET state = 'closed'").await;
    fake.unbinds_stale.store(true, std::sync::atomic::Ordering::Relaxed);
    let kept = service.accept(message("m1", "hello")).await.unwrap();
    assert!(kept.text().contains("Use /unfocus"), "{kept:?}");
    assert_eq!(end_reason(&store).await, None);
}

/// Crash between removal and reply: the reply reports the removal, not the later state.
#[tokio::test]
async fn removal_of_stale_binding_is_reported_after_crash() {
    let (_dir, store, fake, service) = stale_service().await;
    fake.unbinds_stale.store(true, std::sync::atomic::Ordering::Relaxed);
    let inbound = message("m1", "hello");
    service.inner.commit(&inbound).await.unwrap();
    let removed = service.inner.execute(&inbound, Vec::new()).await.unwrap();
    let restarted = super::service(&store, &fake);
    assert_eq!(restarted.resume().await.unwrap(), 1);
    assert_eq!(restarted.accept(inbound).await.unwrap(), removed);
    assert_eq!(shown_of_kind(&store, "error").await, [removed.text()]);
}

#[tokio::test]
async fn own_messages_are_ignored_after_unbind_and_restart() {
    let (dir, store) = open();
    spawn(&store, session_row(&key()), Some(binding_row(&key(), &group_message("", "").conversation))).await;
    let fake = FakeService::new(&store);
    let channel = Arc::new(GroupChannel::default());
    let service = service_with(&store, &fake, [Arc::clone(&channel) as _]);
    let echo = Outcome::Ignored { reason: "own-echo".to_owned() };
    service.accept(group_message("m1", "/acp permissions")).await.unwrap();
    assert_eq!(channel.sent.lock().unwrap().as_slice(), ["The agent waits for no permission."]);
    assert_eq!(
        service.accept(group_message("party-1", "The agent waits for no permission.")).await.unwrap(),
        echo
    );
    service.accept(group_message("m2", "/unfocus")).await.unwrap();
    assert_eq!(service.accept(group_message("party-2", "/acp sessions")).await.unwrap(), echo);
    store.close().await;
    let store = Store::open(dir.path(), acp_store::Durability::Normal).unwrap();
    let service = service_with(&store, &FakeService::new(&store), [Arc::clone(&channel) as _]);
    assert_eq!(service.accept(group_message("party-2", "/acp sessions")).await.unwrap(), echo);
    // The same id in another conversation is a user's message; unbound conversations ignore messages.
    let mut elsewhere = group_message("party-1", "hello");
    elsewhere.conversation.conversation_id = "d".to_owned();
    let ignored = service.accept(elsewhere).await.unwrap();
    assert_eq!(ignored, Outcome::Ignored { reason: "no-binding".to_owned() });
    assert_eq!(channel.sent.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn account_without_adapter_gets_no_turn() {
    let (_dir, store, fake, service) = unbound_service();
    let mut elsewhere = message("m1", "hello");
    elsewhere.conversation.account_id = "second".to_owned();
    spawn(&store, session_row(&key()), Some(binding_row(&key(), &elsewhere.conversation))).await;
    assert_eq!(service.accept(elsewhere).await.unwrap_err().code, Code::ChannelUnavailable);
    assert_eq!((service.resume().await.unwrap(), fake.prompt_texts()), (0, Vec::<String>::new()));
    // The conversation of that name in the other account is not bound.
    assert_eq!(outcome_text(&service, message("m2", "hello")).await, not_bound());
}

/// D1: the reply of a spawn names session, directory and timeouts.
#[tokio::test]
async fn spawn_reply_names_session_and_directory() {
    let (_dir, store, _fake, service) = unbound_service();
    let spawned = service.accept(message("m1", "/acp spawn demo")).await.unwrap();
    let Outcome::Command { session_key: Some(key), .. } = &spawned else { panic!("{spawned:?}") };
    let want = format!("demo is bound here, in /tmp: session {key}, agent's session id not yet known.");
    assert!(spawned.text().starts_with(&want), "{spawned:?}");
    assert_eq!(shown_of_kind(&store, "notice").await, [spawned.text()], "once, in the conversation");
}
