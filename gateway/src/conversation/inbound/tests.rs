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
    Scribe, binding_row, column, conversation, eventually, execute, open, session_row, spawn,
};
use acp_core::api::{AgentView, StatusView};
use acp_core::config::load::{Inputs, LoadedConfig, load};
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
mod configured;
mod diagnostics;
mod fake;
mod keep;
mod several;
mod untold;

use fake::Fake;

fn inlet(store: &Store, fake: &Arc<Fake>) -> InboundService {
    inlet_of(store, fake, [Arc::new(Console::new(store.clone())) as _])
}

fn inlet_of<const N: usize>(
    store: &Store,
    fake: &Arc<Fake>,
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

/// Nothing is bound and nothing configured.
fn bare_ground() -> (tempfile::TempDir, Store, Arc<Fake>, InboundService) {
    let (dir, store) = open();
    let fake = Fake::new(&store);
    let inlet = inlet(&store, &fake);
    (dir, store, fake, inlet)
}

async fn bound_ground() -> (tempfile::TempDir, Store, Arc<Fake>, InboundService) {
    let ground = bare_ground();
    spawn(&ground.1, session_row(&key()), Some(binding_row(&key(), &conversation("c")))).await;
    ground
}

/// What the gateway said in the conversation, of this kind.
async fn shown_as(store: &Store, kind: &str) -> Vec<String> {
    shown(store).await.into_iter().filter(|line| line.0 == kind).map(|line| line.1).collect()
}

/// What a message is answered, or why it is refused.
async fn outcome_text(inlet: &InboundService, message: Inbound) -> String {
    inlet.accept(message).await.unwrap().text().into_owned()
}

fn not_bound() -> String {
    error_message(&Failure::of(Code::NotBound))
}

async fn nothing_is_left(store: &Store) {
    eventually("all replies are sent", || async {
        let left = store.read("left", |db| inbox::unsettled_messages(db, 9)).await.unwrap();
        left.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn repeated_message_is_one_prompt() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let first = inlet.accept(message("m1", "hello")).await.unwrap();
    let Outcome::Prompted { session_key, queued_behind: 0, text, .. } = &first else { panic!("{first:?}") };
    assert_eq!((session_key, text.as_str()), (&key(), ""));
    let (one, two) = tokio::join!(inlet.accept(message("m1", "hello")), inlet.accept(message("m1", "hello")));
    assert_eq!((one.unwrap(), two.unwrap()), (first.clone(), first));
    let other = inlet.accept(message("m1", "something else")).await.unwrap_err();
    assert_eq!(other.code, Code::IdempotencyConflict);
    let second = inlet.accept(message("m2", "more")).await.unwrap();
    assert_eq!(second.text(), "The agent is busy: queued behind 1.");
    assert_eq!(fake.said().len(), 2);
    let want = [line("person", "hello"), line("person", "more"), line("notice", &second.text())];
    assert_eq!(shown(&store).await, want);
}

#[tokio::test]
async fn restart_between_any_steps_gives_same_outcome() {
    let whole = [
        line("person", "hello"),
        line("person", "queued"),
        line("notice", "The agent is busy: queued behind 1."),
    ];
    for crash in ["committed", "prompted", "recorded", "told"] {
        let (_dir, store, fake, inlet) = bound_ground().await;
        inlet.accept(message("m1", "hello")).await.unwrap();
        // What the process before did of the second message, up to its crash.
        let inner = &inlet.inner;
        let said = message("m2", "queued");
        inner.commit(&said).await.unwrap();
        if crash != "committed" {
            let outcome = inner.execute(&said, Vec::new()).await.unwrap();
            if crash != "prompted" {
                let (kept, recorded) = (said.clone(), outcome.clone());
                store.write("record", move |tx| inbox::record(tx, &kept, &recorded, false)).await.unwrap();
            }
            if crash == "told" {
                inner.send_reply(&said, &outcome, 0, PriorReply::NotSent).await.unwrap();
            }
        }
        let again = super::tests::inlet(&store, &fake);
        assert_eq!(again.resume().await.unwrap(), 1, "{crash}");
        assert_eq!(again.resume().await.unwrap(), 0, "{crash}");
        assert_eq!(shown(&store).await, whole, "{crash}");
        assert_eq!(fake.said().len(), 2, "{crash}");
    }
}

#[tokio::test]
async fn unroutable_message_is_answered_with_error() {
    let (_dir, store, fake, inlet) = bare_ground();
    let refused = inlet.accept(message("m1", "hello")).await.unwrap();
    let want = Outcome::Refused { failure: Failure::of(Code::NotBound), reason: "no-binding".to_owned() };
    assert_eq!(refused, want);
    // A binding whose session is closed cannot be written; one whose session cannot be read as it should, can.
    spawn(&store, session_row(&key()), Some(binding_row(&key(), &conversation("c")))).await;
    execute(&store, "UPDATE acp_sessions SET state = 'closed'").await;
    let refused = inlet.accept(message("m2", "hello")).await.unwrap();
    let Outcome::Refused { failure, reason } = &refused else { panic!("{refused:?}") };
    assert_eq!((failure.code, reason.as_str()), (Code::StaleBinding, "session-closed"));
    assert!(failure.message.contains("ACP_STALE_BINDING"), "{failure}");
    assert_eq!(fake.said(), Vec::<String>::new());
    assert_eq!(shown_as(&store, "error").await, [not_bound(), refused.text().into_owned()]);
}

#[tokio::test]
async fn failed_claim_is_released_and_retried() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    *fake.fails.lock().unwrap() = Some(Failure::of(Code::StoreUnavailable));
    let failure = inlet.accept(message("m1", "hello")).await.unwrap_err();
    assert_eq!(failure.code, Code::StoreUnavailable);
    assert_eq!(inlet.resume().await.unwrap(), 1);
    assert_eq!(fake.said(), vec!["hello".to_owned()]);
    // Any other refusal is an outcome, and stays one.
    *fake.fails.lock().unwrap() = Some(Failure::of(Code::LimitReached));
    let refused = inlet.accept(message("m2", "more")).await.unwrap();
    assert_eq!(inlet.accept(message("m2", "more")).await.unwrap(), refused);
    assert_eq!(fake.said().len(), 1);
    assert_eq!(shown_as(&store, "error").await, [error_message(&Failure::of(Code::LimitReached))]);
}

#[tokio::test]
async fn invalid_messages_are_refused() {
    let (_dir, store, _fake, inlet) = bound_ground().await;
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    for (inbound, code) in [
        (message("", "x"), Code::Usage),
        (message(&"m".repeat(201), "x"), Code::Usage),
        (message("m", " \n"), Code::Usage),
        (message("m", &long), Code::LimitReached),
    ] {
        assert_eq!(inlet.accept(inbound).await.unwrap_err().code, code);
    }
    assert_eq!(shown(&store).await, []);
}

/// A full disk lets a message into the inbox and no further: it is taken up again by itself when there is room.
#[tokio::test]
async fn message_blocked_by_store_is_retried_without_restart() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let stop = CancellationToken::new();
    let keeping = tokio::spawn(inlet.clone().run_retries(stop.clone()));
    *fake.fails.lock().unwrap() = Some(Failure::of(Code::StoreUnavailable));
    let refused = inlet.accept(message("m1", "hello")).await.unwrap_err();
    assert_eq!(refused.code, Code::StoreUnavailable);
    assert_eq!(fake.said().len(), 0);
    eventually("the message arrives", || async { (fake.said() == ["hello"]).then_some(()) }).await;
    nothing_is_left(&store).await;
    stop.cancel();
    keeping.await.unwrap();
    assert_eq!(fake.said(), ["hello"], "once");
}

#[tokio::test]
async fn stale_bindings_and_full_queues_are_counted() {
    let (_dir, store, _fake, inlet) = bound_ground().await;
    execute(&store, "UPDATE acp_sessions SET state = 'closed'").await;
    for id in ["1", "2"] {
        let outcome = inlet.accept(message(id, "hello")).await.unwrap();
        assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
    }
    let places = inlet.inner.permits.acquire_many(u32::try_from(IN_PROGRESS_MAX).unwrap()).await.unwrap();
    assert_eq!(inlet.accept(message("3", "hello")).await.unwrap_err().code, Code::LimitReached);
    drop(places);
    let text = inlet.inner.metrics.render();
    for series in [
        "acp_stale_binding_detections_total{channel=\"console\"} 2",
        "acp_mailbox_rejections_total{queue=\"inbox\"} 1",
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
    let levels = store.read("levels", acp_store::gauges::read_gauges).await.unwrap();
    assert_eq!(levels.stale_bindings, 1, "acp_stale_bindings");
}
