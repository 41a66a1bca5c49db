#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::channel::console::Console;
use crate::channel::{
    BoxFuture, ChannelAdapter, ChannelProperties, LookupOutcome, MessageLimit, Outgoing, SendOutcome, Unit,
};
use crate::conversation::inbound::reply::PriorReply;
use crate::session::manager::{CancelResult, PromptAccepted, SessionStatus, SpawnRequest, SpawnResult};
use crate::session::service::ServiceFuture;
use crate::tests::{
    JournalWriter, binding_row, column, conversation, eventually, execute, open, session_row, spawn,
};
use acp_core::actor::QuestionAnswer;
use acp_core::api::{AgentView, StatusView};
use acp_core::config::load::LoadedConfig;
use acp_core::error_messages::error_message;
use acp_core::event::EventRow;
use acp_core::options::Setting;
use acp_core::policy::{BindingTimeouts, EffectivePolicy, PolicyScope, effective_policy};
use acp_core::request::{CloseRequest, QueueEdit, QueueEditResult};
use acp_core::rows::SessionActivity;
use acp_core::rows::{ConversationRef, PermissionRow, RunRow, SessionRow};
use acp_core::session::SessionState;
use acp_core::timeouts::Expiry;
use acp_shared::ids::RunId;
use std::collections::BTreeMap;
use std::sync::Mutex as StdMutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

mod bindings;
mod changes;
mod commands;
mod diagnostics;
mod fake;
mod pending_replies;
mod reservations;
mod shared_conversations;
mod static_bindings;

use fake::FakeService;

fn service(store: &Store, fake: &Arc<FakeService>) -> InboundService {
    service_with(store, fake, [Arc::new(Console::new(store.clone())) as _])
}

fn service_with<const N: usize>(
    store: &Store,
    fake: &Arc<FakeService>,
    channels: [Arc<dyn ChannelAdapter>; N],
) -> InboundService {
    InboundService::new(store.clone(), Channels::new(channels), Arc::clone(fake) as _, Metrics::default())
}

fn message(id: &str, text: &str) -> Inbound {
    Inbound::new(conversation("c"), id.to_owned(), "ann".to_owned(), text.to_owned())
}

async fn shown(store: &Store) -> Vec<(String, String)> {
    let rows = store.read("shown", |db| console::after(db, "c", 0, 100)).await.unwrap();
    rows.into_iter().map(|row| (row.kind, row.text)).collect()
}

fn line(kind: &str, text: &str) -> (String, String) {
    (kind.to_owned(), text.to_owned())
}

fn key() -> SessionKey {
    SessionKey::parse("agent:demo:acp:1").unwrap()
}

fn unbound_service() -> (tempfile::TempDir, Store, Arc<FakeService>, InboundService) {
    let (dir, store) = open();
    let fake = FakeService::new(&store);
    let service = service(&store, &fake);
    (dir, store, fake, service)
}

async fn bound_service() -> (tempfile::TempDir, Store, Arc<FakeService>, InboundService) {
    let fixture = unbound_service();
    spawn(&fixture.1, session_row(&key()), Some(binding_row(&key(), &conversation("c")))).await;
    fixture
}

/// Returns the texts of this kind that the gateway sent to the conversation.
async fn shown_of_kind(store: &Store, kind: &str) -> Vec<String> {
    shown(store).await.into_iter().filter(|line| line.0 == kind).map(|line| line.1).collect()
}

async fn outcome_text(service: &InboundService, message: Inbound) -> String {
    service.accept(message).await.unwrap().text().into_owned()
}

fn not_bound() -> String {
    error_message(&Failure::of(Code::NotBound))
}

async fn wait_all_settled(store: &Store) {
    eventually("all replies are sent", || async {
        let unsettled = store.read("unsettled", |db| inbox::unsettled_messages(db, 9)).await.unwrap();
        unsettled.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn repeated_message_is_one_prompt() {
    let (_dir, store, fake, service) = bound_service().await;
    let first = service.accept(message("m1", "hello")).await.unwrap();
    let Outcome::Prompted { session_key, queued_behind: 0, text, .. } = &first else { panic!("{first:?}") };
    assert_eq!((session_key, text.as_str()), (&key(), ""));
    let (one, two) =
        tokio::join!(service.accept(message("m1", "hello")), service.accept(message("m1", "hello")));
    assert_eq!((one.unwrap(), two.unwrap()), (first.clone(), first));
    let other = service.accept(message("m1", "other text")).await.unwrap_err();
    assert_eq!(other.code, Code::IdempotencyConflict);
    let second = service.accept(message("m2", "more")).await.unwrap();
    assert_eq!(second.text(), "The agent is busy: queued behind 1.");
    assert_eq!(fake.prompt_texts().len(), 2);
    let want = [line("person", "hello"), line("person", "more"), line("notice", &second.text())];
    assert_eq!(shown(&store).await, want);
}

#[tokio::test]
async fn restart_between_any_steps_gives_same_outcome() {
    let expected = [
        line("person", "hello"),
        line("person", "queued"),
        line("notice", "The agent is busy: queued behind 1."),
    ];
    for crash in ["committed", "prompted", "recorded", "replied"] {
        let (_dir, store, fake, service) = bound_service().await;
        service.accept(message("m1", "hello")).await.unwrap();
        // Steps of the earlier process for the second message, up to its crash.
        let inner = &service.inner;
        let inbound = message("m2", "queued");
        inner.commit(&inbound).await.unwrap();
        if crash != "committed" {
            let outcome = inner.execute(&inbound, Vec::new()).await.unwrap();
            if crash != "prompted" {
                let (saved, recorded) = (inbound.clone(), outcome.clone());
                store.write("record", move |tx| inbox::record(tx, &saved, &recorded, false)).await.unwrap();
            }
            if crash == "replied" {
                inner.send_reply(&inbound, &outcome, 0, PriorReply::NotSent).await.unwrap();
            }
        }
        let restarted = super::tests::service(&store, &fake);
        assert_eq!(restarted.resume().await.unwrap(), 1, "{crash}");
        assert_eq!(restarted.resume().await.unwrap(), 0, "{crash}");
        assert_eq!(shown(&store).await, expected, "{crash}");
        assert_eq!(fake.prompt_texts().len(), 2, "{crash}");
    }
}

#[tokio::test]
async fn unroutable_message_is_answered_with_error() {
    let (_dir, store, fake, service) = unbound_service();
    let refused = service.accept(message("m1", "hello")).await.unwrap();
    let want = Outcome::Refused { failure: Failure::of(Code::NotBound), reason: "no-binding".to_owned() };
    assert_eq!(refused, want);
    // The binding of a session that was closed meanwhile is stale.
    spawn(&store, session_row(&key()), Some(binding_row(&key(), &conversation("c")))).await;
    execute(&store, "UPDATE acp_sessions SET state = 'closed'").await;
    let refused = service.accept(message("m2", "hello")).await.unwrap();
    let Outcome::Refused { failure, reason } = &refused else { panic!("{refused:?}") };
    assert_eq!((failure.code, reason.as_str()), (Code::StaleBinding, "session-closed"));
    assert!(failure.message.contains("ACP_STALE_BINDING"), "{failure}");
    assert_eq!(fake.prompt_texts(), Vec::<String>::new());
    assert_eq!(shown_of_kind(&store, "error").await, [not_bound(), refused.text().into_owned()]);
}

#[tokio::test]
async fn failed_claim_is_released_and_retried() {
    let (_dir, store, fake, service) = bound_service().await;
    *fake.fails.lock().unwrap() = Some(Failure::of(Code::StoreUnavailable));
    let failure = service.accept(message("m1", "hello")).await.unwrap_err();
    assert_eq!(failure.code, Code::StoreUnavailable);
    assert_eq!(service.resume().await.unwrap(), 1);
    assert_eq!(fake.prompt_texts(), vec!["hello".to_owned()]);
    // Any other refusal is a final outcome.
    *fake.fails.lock().unwrap() = Some(Failure::of(Code::LimitReached));
    let refused = service.accept(message("m2", "more")).await.unwrap();
    assert_eq!(service.accept(message("m2", "more")).await.unwrap(), refused);
    assert_eq!(fake.prompt_texts().len(), 1);
    assert_eq!(shown_of_kind(&store, "error").await, [error_message(&Failure::of(Code::LimitReached))]);
}

#[tokio::test]
async fn invalid_messages_are_refused() {
    let (_dir, store, _fake, service) = bound_service().await;
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    for (inbound, code) in [
        (message("", "x"), Code::Usage),
        (message(&"m".repeat(201), "x"), Code::Usage),
        (message("m", " \n"), Code::Usage),
        (message("m", &long), Code::LimitReached),
    ] {
        assert_eq!(service.accept(inbound).await.unwrap_err().code, code);
    }
    assert_eq!(shown(&store).await, []);
}

/// With a full disk, a message is stored in the inbox, and is processed without a restart once there is room.
#[tokio::test]
async fn message_blocked_by_store_is_retried_without_restart() {
    let (_dir, store, fake, service) = bound_service().await;
    let stop = CancellationToken::new();
    let retries = tokio::spawn(service.clone().run_retries(stop.clone()));
    *fake.fails.lock().unwrap() = Some(Failure::of(Code::StoreUnavailable));
    let refused = service.accept(message("m1", "hello")).await.unwrap_err();
    assert_eq!(refused.code, Code::StoreUnavailable);
    assert_eq!(fake.prompt_texts().len(), 0);
    eventually("the message arrives", || async { (fake.prompt_texts() == ["hello"]).then_some(()) }).await;
    wait_all_settled(&store).await;
    stop.cancel();
    retries.await.unwrap();
    assert_eq!(fake.prompt_texts(), ["hello"], "once");
}

#[tokio::test]
async fn stale_bindings_and_full_queues_are_counted() {
    let (_dir, store, _fake, service) = bound_service().await;
    execute(&store, "UPDATE acp_sessions SET state = 'closed'").await;
    for id in ["1", "2"] {
        let outcome = service.accept(message(id, "hello")).await.unwrap();
        assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
    }
    let permits = service.inner.permits.acquire_many(u32::try_from(IN_PROGRESS_MAX).unwrap()).await.unwrap();
    assert_eq!(service.accept(message("3", "hello")).await.unwrap_err().code, Code::LimitReached);
    drop(permits);
    let text = service.inner.metrics.render();
    for series in [
        "acp_stale_binding_detections_total{channel=\"console\"} 2",
        "acp_mailbox_rejections_total{queue=\"inbox\"} 1",
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
    let levels = store.read("levels", acp_store::gauges::read_gauges).await.unwrap();
    assert_eq!(levels.stale_bindings, 1, "acp_stale_bindings");
}
