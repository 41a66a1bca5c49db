//! Channel events other than messages: edits, deletions, interactions, files, conversation events.

use super::fake::{GroupChannel, group_conversation};
use super::*;
use crate::channel::{
    ApprovalScope, Attachment, AttachmentContent, BindingLookup, BoundConversation, CallerReply,
    ConversationEvent, ConversationEventOutcome, InboundPort, IntakeOutcome, MessageChangeOutcome,
    PostedReply, SuggestionKind,
};
use crate::conversation::inbound::port::NOT_YET_PROCESSED;
use acp_core::files;
use acp_core::render::buttons::queued_buttons;
use acp_core::rows::BindingStatus;
use acp_store::{bindings, interactive_messages};
use std::time::Duration;

pub(super) const RESERVE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn interaction(id: &str, text: &str) -> Inbound {
    Inbound { answer: inbox::ReplyRoute::ByCaller, ..message(id, text) }
}

async fn status(store: &Store) -> String {
    column(store, "SELECT status FROM acp_bindings").await.remove(0)
}

/// Returns messages with obsolete buttons, with their new text.
async fn settled(store: &Store) -> Vec<(String, String)> {
    let read = |db: &_| interactive_messages::settled_messages(db, &conversation("c"), &key(), false);
    let settled_messages = store.read("settled", read).await.unwrap();
    settled_messages.into_iter().map(|message| (message.message_id, message.text)).collect()
}

async fn apply_edit(service: &InboundService, id: &str, text: Option<&str>) -> MessageChangeOutcome {
    match text {
        Some(text) => service.on_message_edited(conversation("c"), id.to_owned(), text.to_owned()).await,
        None => service.on_message_deleted(conversation("c"), id.to_owned()).await,
    }
}

#[tokio::test]
async fn edit_or_delete_changes_queued_run_of_message() {
    let (_dir, _store, fake, service) = bound_service().await;
    service.accept(message("m1", "hello")).await.unwrap();
    let second = service.accept(message("m2", "more")).await.unwrap();
    let Outcome::Prompted { run_id, .. } = &second else { panic!("{second:?}") };
    service.accept(message("m3", "/acp cancel")).await.unwrap();
    assert_eq!(apply_edit(&service, "m2", Some("less")).await, MessageChangeOutcome::Done);
    assert_eq!(apply_edit(&service, "m2", None).await, MessageChangeOutcome::Done);
    let queued = format!("queued {} {run_id}", key());
    assert_eq!(
        fake.effects()[1..],
        [format!("{queued} Reword(\"less\") Done"), format!("{queued} Drop Done")]
    );
    *fake.queued_now.lock().unwrap() = QueueEditResult::TooLate;
    assert_eq!(apply_edit(&service, "m1", Some("less")).await, MessageChangeOutcome::TooLate);
    *fake.fails.lock().unwrap() = Some(Failure::of(Code::NoSession));
    let late = apply_edit(&service, "m1", Some("less")).await;
    assert_eq!(late, MessageChangeOutcome::TooLate, "a session that does not exist stays too late");
    let busy = Failure::of(Code::StoreUnavailable);
    *fake.fails.lock().unwrap() = Some(busy.clone());
    let later = MessageChangeOutcome::Later { why: busy.to_string() };
    assert_eq!(apply_edit(&service, "m1", Some("less")).await, later);
    *fake.fails.lock().unwrap() = None;
    let command = apply_edit(&service, "m3", Some("/acp close")).await;
    assert_eq!(command, MessageChangeOutcome::NotOurs, "a command has been executed");
    assert_eq!(apply_edit(&service, "never", None).await, MessageChangeOutcome::NotOurs);
    *fake.queued_now.lock().unwrap() = QueueEditResult::Done;
    service.accept(message("m4", "/acp steer look")).await.unwrap();
    let words = apply_edit(&service, "m4", Some("/acp steer look here")).await;
    assert_eq!(words, MessageChangeOutcome::NotOurs, "the prompt does not contain the command itself");
    assert_eq!(apply_edit(&service, "m4", None).await, MessageChangeOutcome::Done);
}

/// A committed message that is not processed yet is known: changes of it are deferred.
#[tokio::test]
async fn change_of_unprocessed_message_is_deferred() {
    let (_dir, _store, fake, service) = bound_service().await;
    let later = || MessageChangeOutcome::Later { why: NOT_YET_PROCESSED.to_owned() };
    for inbound in
        [message("m1", "hello"), message("m2", "/acp steer look"), interaction("i1", "/acp steer look")]
    {
        service.inner.commit(&inbound).await.unwrap();
    }
    for (id, text, want) in [
        ("m1", None, later()),
        ("m1", Some("less"), later()),
        ("m2", None, later()),
        ("m2", Some("/acp steer here"), MessageChangeOutcome::NotOurs),
        // An interaction has no message that could change.
        ("i1", None, MessageChangeOutcome::NotOurs),
    ] {
        assert_eq!(apply_edit(&service, id, text).await, want, "{id} {text:?}");
    }
    assert_eq!(fake.effects(), Vec::<String>::new());
    service.resume().await.unwrap();
    for id in ["m1", "m2"] {
        assert_eq!(apply_edit(&service, id, None).await, MessageChangeOutcome::Done, "{id}");
    }
    let dropped = fake.effects().iter().filter(|it| it.ends_with("Drop Done")).count();
    assert_eq!(dropped, 2);
}

/// A queue notice has buttons, recorded until they are obsolete.
#[tokio::test]
async fn queued_message_has_buttons_for_its_run() {
    let (_dir, store, _fake, service) = bound_service().await;
    assert_eq!(service.accept(message("m1", "hello")).await.unwrap().asks(), None);
    let second = service.accept(message("m2", "more")).await.unwrap();
    let Outcome::Prompted { run_id, asks, .. } = &second else { panic!("{second:?}") };
    assert_eq!(*asks, Some(queued_buttons(*run_id, true)));
    // The fake stores no runs; an absent run counts as ended.
    let texts: Vec<String> = settled(&store).await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["The agent is busy: queued behind 1.\nIt no longer exists."]);
    let steer = service.accept(message("m3", "/acp steer now")).await.unwrap();
    let Outcome::Prompted { run_id, asks, .. } = &steer else { panic!("{steer:?}") };
    assert_eq!(*asks, Some(queued_buttons(*run_id, false)), "a steer that was queued");
}

#[tokio::test]
async fn interaction_is_answered_only_by_its_caller() {
    let (_dir, store, fake, service) = bound_service().await;
    let inbound = |text: &str, private: bool| {
        IntakeOutcome::Accepted(CallerReply { text: text.to_owned(), private, ..CallerReply::default() })
    };
    let deliver = async |message: Inbound| {
        let _claim = service.reserve(message.clone(), RESERVE_TIMEOUT).await;
        service.offer(message).await
    };
    let nothing = format!("{} has no running turn and no queued message.", key());
    for _ in 0..2 {
        assert_eq!(deliver(interaction("i1", "/acp cancel")).await, inbound(&nothing, true));
    }
    assert_eq!(fake.effects().len(), 1, "once");
    let IntakeOutcome::Accepted(public) = deliver(interaction("i2", "/acp model big")).await else {
        panic!()
    };
    assert!(!public.private && public.text.starts_with("The model is big"), "{public:?}");
    let IntakeOutcome::Accepted(misused) = deliver(interaction("i3", "/acp drop x")).await else { panic!() };
    assert!(misused.private && misused.text.contains("is not a run id"), "{misused:?}");
    assert_eq!(deliver(interaction("i4", "hello")).await, inbound("", false));
    let IntakeOutcome::Accepted(queued) = deliver(interaction("i5", "more")).await else { panic!() };
    assert_eq!((queued.text.as_str(), queued.actions.len()), ("The agent is busy: queued behind 1.", 2));
    // The reply message is recorded; its buttons are removed once obsolete.
    for id in ["i5", "i4", "i1", "never"] {
        let shown = PostedReply { message_id: format!("answer to {id}"), text: queued.text.clone() };
        assert!(service.mark_replied(interaction(id, "more"), Some(shown)).await);
    }
    let settled_messages = line("answer to i5", "The agent is busy: queued behind 1.\nIt no longer exists.");
    assert_eq!(settled(&store).await, [settled_messages]);
    let nowhere = Inbound { conversation: conversation("nowhere"), ..interaction("i6", "hello") };
    let IntakeOutcome::Accepted(refused) = deliver(nowhere).await else { panic!() };
    assert!(refused.private && !refused.text.is_empty(), "{refused:?}");
    assert!(shown(&store).await.iter().all(|(kind, _)| kind == "person"));
}

#[tokio::test]
async fn ownership_follows_user_id_not_name() {
    let (_dir, store) = open();
    let own = acp_core::rows::BindingRow {
        bound_by: "17".to_owned(),
        ..binding_row(&key(), &group_conversation("c"))
    };
    spawn(&store, session_row(&key()), Some(own)).await;
    let fake = FakeService::new(&store);
    let service = service_with(&store, &fake, [Arc::new(GroupChannel::default()) as _]);
    let inbound_from = |id: &str, author: &str, text: &str| {
        let (conversation, author_id) = (group_conversation("c"), author.to_owned());
        Inbound { conversation, author_id, ..interaction(id, text) }
    };
    let text = async |inbound: Inbound| match service.offer(inbound).await {
        IntakeOutcome::Accepted(inbound) => inbound.text,
        other => panic!("{other:?}"),
    };
    assert!(text(inbound_from("1", "17", "/acp cancel")).await.contains("has no running turn"));
    assert!(!text(inbound_from("2", "18", "/acp cancel")).await.contains("has no running turn"));
    // Channels with approvers decide who may answer permission requests.
    let none = "The agent waits for no permission.";
    for (id, author, approves, may) in [
        ("3", "17", ApprovalScope::Own, true),
        ("4", "18", ApprovalScope::Own, false),
        ("5", "18", ApprovalScope::All, true),
        ("6", "17", ApprovalScope::Nothing, false),
    ] {
        let inbound = text(Inbound { approves, ..inbound_from(id, author, "/acp allow") }).await;
        assert_eq!(inbound.contains(none), may, "{author} {approves:?}: {inbound}");
    }
    assert_eq!(fake.effects().len(), 1);
}

#[tokio::test]
async fn attachments_are_passed_with_prompt_once() {
    let (_dir, store, fake, service) = bound_service().await;
    let file =
        |name: &str, content| Attachment { name: name.to_owned(), mime: "image/png".to_owned(), content };
    let attachments = vec![
        file("a.png", AttachmentContent::Bytes(vec![0x89, 0])),
        file("b.png", AttachmentContent::LeftOut { bytes: 9, why: "it was deleted".to_owned() }),
    ];
    let inbound = Inbound { attachments: attachments.clone(), ..message("m1", "") };
    // A message committed before a crash keeps its files.
    service.inner.commit(&inbound).await.unwrap();
    assert_eq!(super::service(&store, &fake).resume().await.unwrap(), 1);
    service.accept(inbound).await.unwrap();
    let kept: Vec<_> =
        fake.prompts.lock().unwrap().values().map(|(request, _)| request.files.clone()).collect();
    assert_eq!(kept, [files::from_attachments(&attachments)]);
    let unsettled = column::<u64>(&store, "SELECT count(files_json) FROM acp_inbox").await;
    assert_eq!(unsettled, [0], "the files belong to the run now");
    assert_eq!(service.accept(message("m2", " ")).await.unwrap_err().code, Code::Usage);
}

/// Archiving parks the binding; a message or unarchiving resumes it; deletion ends it.
#[tokio::test]
async fn archived_conversation_is_parked_and_deleted_one_ends() {
    let (_dir, store, fake, service) = bound_service().await;
    let event = async |event| service.on_conversation_event(conversation("c"), event).await;
    let archived = || ConversationEvent::Archived { by_person: true };
    for (change, outcome, now) in [
        (ConversationEvent::Archived { by_person: false }, ConversationEventOutcome::Nothing, "active"),
        (ConversationEvent::Unarchived, ConversationEventOutcome::Nothing, "active"),
        (ConversationEvent::Renamed, ConversationEventOutcome::Nothing, "active"),
        (archived(), ConversationEventOutcome::Parked, "parked"),
        (archived(), ConversationEventOutcome::Nothing, "parked"),
        (ConversationEvent::Unarchived, ConversationEventOutcome::Resumed, "active"),
        (archived(), ConversationEventOutcome::Parked, "parked"),
    ] {
        assert_eq!((event(change.clone()).await, &*status(&store).await), (outcome, now), "{change:?}");
    }
    service.accept(message("m1", "hello")).await.unwrap();
    assert_eq!((status(&store).await.as_str(), fake.prompt_texts()), ("active", vec!["hello".to_owned()]));
    event(archived()).await;
    let busy = Failure::of(Code::StoreUnavailable);
    for (failure, want) in [
        (busy.clone(), ConversationEventOutcome::Later { why: busy.to_string() }),
        (Failure::of(Code::NoSession), ConversationEventOutcome::Nothing),
    ] {
        *fake.fails.lock().unwrap() = Some(failure);
        assert_eq!(event(ConversationEvent::Gone { why: "away".to_owned() }).await, want);
        assert_eq!(status(&store).await, "parked");
    }
    *fake.fails.lock().unwrap() = None;
    let gone = || ConversationEvent::Gone { why: "the thread was deleted".to_owned() };
    assert_eq!(event(gone()).await, ConversationEventOutcome::Ended);
    assert_eq!(status(&store).await, "ended");
    assert_eq!(fake.effects(), [format!("closed {} false", key())]);
    assert_eq!(event(gone()).await, ConversationEventOutcome::Nothing);
    let never = service.on_conversation_event(conversation("never"), gone()).await;
    assert_eq!(never, ConversationEventOutcome::Nothing);
}

/// Pending parts at the end of a binding: sent if it was active, settled if it was parked.
#[tokio::test]
async fn pending_parts_of_parked_binding_are_settled_at_its_end() {
    let states = async |is_parked: bool| {
        let (_dir, store, _fake, service) = bound_service().await;
        let part = |part_no, state: &str| {
            format!(
                "INSERT INTO acp_delivery_part (binding_key, session_key, session_seq, part_no, kind, text, print, nonce, \
                 state, created_at, updated_at) SELECT binding_key, session_key, 1, {part_no}, 'final', 'text', '', \
                 'nonce-{part_no}', '{state}', 1, 1 FROM acp_bindings"
            )
        };
        let rows = ["sent", "sending", "planned"].iter().zip(0..).map(|(state, no)| part(no, state));
        execute(&store, rows.collect::<Vec<_>>().join(";")).await;
        if is_parked {
            let archived = ConversationEvent::Archived { by_person: true };
            service.on_conversation_event(conversation("c"), archived).await;
        }
        store.write("end", |tx| bindings::end_all(tx, &key(), "settled")).await.unwrap();
        column::<String>(&store, "SELECT state FROM acp_delivery_part ORDER BY part_no").await
    };
    assert_eq!(states(false).await, ["sent", "sending", "planned"]);
    assert_eq!(states(true).await, ["sent", "uncertain", "rejected"]);
}

#[tokio::test]
async fn session_survives_deletion_of_one_of_two_conversations() {
    let (_dir, store, fake, service) = bound_service().await;
    let second = binding_row(&key(), &conversation("d"));
    store.write("bind", move |tx| bindings::bind(tx, &second)).await.unwrap();
    let gone = ConversationEvent::Gone { why: "access was removed".to_owned() };
    assert_eq!(service.on_conversation_event(conversation("c"), gone).await, ConversationEventOutcome::Ended);
    assert_eq!(fake.effects(), Vec::<String>::new());
    let unsettled = store.read("left", |db| bindings::of_session(db, &key())).await.unwrap();
    assert_eq!(unsettled.len(), 1);
    assert_eq!(unsettled[0].conversation.conversation_id, "d");
}

/// H8: all messages up to the mark were read; messages alone do not move it.
#[tokio::test]
async fn backfill_mark_only_moves_forward() {
    let (_dir, store, _fake, service) = bound_service().await;
    let bound_conversations =
        async || service.bound_conversations("console".to_owned(), "default".to_owned()).await.unwrap();
    let bound_conversation = |through: Option<&str>| BoundConversation {
        conversation: conversation("c"),
        bound_at_ms: 1,
        backfilled_through: through.map(str::to_owned),
    };
    assert_eq!(bound_conversations().await, [bound_conversation(None)]);
    service.accept(message("99", "hello")).await.unwrap();
    service.accept(message("100", "more")).await.unwrap();
    assert_eq!(bound_conversations().await, [bound_conversation(None)]);
    for (through, want) in [("98", "98"), ("100", "100"), ("99", "100"), ("101", "101")] {
        assert!(service.set_backfill_mark(conversation("c"), through.to_owned()).await);
        assert_eq!(bound_conversations().await, [bound_conversation(Some(want))]);
    }
    service.on_conversation_event(conversation("c"), ConversationEvent::Archived { by_person: true }).await;
    assert_eq!(bound_conversations().await.len(), 1, "an archived conversation still receives messages");
    assert_eq!(service.bound_conversations("console".to_owned(), "other".to_owned()).await, Some(Vec::new()));
    store.write("end", |tx| bindings::end_all(tx, &key(), "enough")).await.unwrap();
    assert_eq!(bound_conversations().await, []);
}

/// Caches of bindings are notified of each binding change before its write returns, and of nothing else.
#[tokio::test]
async fn binding_change_is_announced_before_write_returns() {
    let (_dir, store, _fake, service) = bound_service().await;
    let mut changes = service.binding_change_counter();
    let mut notified = || {
        let has_changed = changes.has_changed().unwrap();
        changes.mark_unchanged();
        has_changed
    };
    assert!(!notified(), "nothing changed");
    service.accept(message("99", "hello")).await.unwrap();
    service.on_conversation_event(conversation("c"), ConversationEvent::Archived { by_person: true }).await;
    assert!(service.set_backfill_mark(conversation("c"), "99".to_owned()).await);
    assert!(!notified(), "archiving, messages and marks do not change the binding");
    let other = binding_row(&key(), &conversation("d"));
    let again = other.clone();
    store.write("bind", move |tx| bindings::bind(tx, &other)).await.unwrap();
    assert!(notified() && matches!(service.lookup_binding(conversation("d")).await, BindingLookup::Bound(_)));
    store.write("bind", move |tx| bindings::bind(tx, &again)).await.unwrap_err();
    assert!(!notified(), "a failed bind changes nothing");
    let mut pending = binding_row(&key(), &conversation("e"));
    pending.status = BindingStatus::Pending;
    let id = pending.binding_id;
    store.write("bind", move |tx| bindings::bind(tx, &pending)).await.unwrap();
    assert!(notified() && service.lookup_binding(conversation("e")).await == BindingLookup::Unbound);
    store.write("activate", move |tx| bindings::activate(tx, id, "f", 5)).await.unwrap();
    assert!(notified() && matches!(service.lookup_binding(conversation("f")).await, BindingLookup::Bound(_)));
    store.write("end", |tx| bindings::end_all(tx, &key(), "enough")).await.unwrap();
    assert!(notified() && service.lookup_binding(conversation("f")).await == BindingLookup::Unbound);
}

#[tokio::test]
async fn best_match_is_suggested_first() {
    let (_dir, store, _fake, service) = bound_service().await;
    let mut other = session_row(&SessionKey::parse("agent:demo:acp:2").unwrap());
    other.label = Some("my own".to_owned());
    spawn(&store, other, None).await;
    let suggest = async |change, prefix: &str| {
        let found = service.suggest(change, conversation("c"), "ann".to_owned(), prefix.to_owned()).await;
        found.into_iter().map(|it| it.value).collect::<Vec<_>>()
    };
    assert_eq!(suggest(SuggestionKind::Sessions, "").await.len(), 2);
    assert_eq!(suggest(SuggestionKind::Sessions, "OWN").await, ["agent:demo:acp:2"]);
    assert_eq!(suggest(SuggestionKind::Sessions, "acp:1").await, ["agent:demo:acp:1"]);
    assert_eq!(suggest(SuggestionKind::Options, "").await, ["model", "cwd"]);
    assert_eq!(suggest(SuggestionKind::Agents, "dem").await, ["demo"]);
    let mut journal = JournalWriter::claim(&store, &key()).await;
    journal.start().await;
    let options = serde_json::json!({"sessionUpdate": "config_option_update",
        "configOptions": [{"id": "effort", "name": "Effort"}, {"id": "model", "name": "Model"}]});
    journal.event(acp_core::event::EventKind::Update, options).await;
    assert_eq!(
        suggest(SuggestionKind::Options, "e").await,
        ["effort", "model", "cwd"],
        "the id first, then names that contain the text"
    );
}
