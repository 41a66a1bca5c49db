//! What channels bring in besides new messages: edits, deletes, clicks, files, and what happens to conversations.

use super::fake::{Party, at_party};
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

pub(super) const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn by_caller(id: &str, text: &str) -> Inbound {
    Inbound { answer: inbox::ReplyRoute::ByCaller, ..message(id, text) }
}

async fn status(store: &Store) -> String {
    column(store, "SELECT status FROM acp_bindings").await.remove(0)
}

/// Messages whose buttons mean nothing any more, with their new text.
async fn settled(store: &Store) -> Vec<(String, String)> {
    let read = |db: &_| interactive_messages::settled_messages(db, &conversation("c"), &key(), false);
    let over = store.read("over", read).await.unwrap();
    over.into_iter().map(|message| (message.message_id, message.text)).collect()
}

async fn amended(inlet: &InboundService, id: &str, text: Option<&str>) -> MessageChangeOutcome {
    match text {
        Some(text) => inlet.on_message_edited(conversation("c"), id.to_owned(), text.to_owned()).await,
        None => inlet.on_message_deleted(conversation("c"), id.to_owned()).await,
    }
}

/// What a person changes about their own message changes what waits, as long as it waits.
#[tokio::test]
async fn edit_or_delete_changes_queued_run_of_message() {
    let (_dir, _store, fake, inlet) = bound_ground().await;
    inlet.accept(message("m1", "hello")).await.unwrap();
    let second = inlet.accept(message("m2", "more")).await.unwrap();
    let Outcome::Prompted { run_id, .. } = &second else { panic!("{second:?}") };
    inlet.accept(message("m3", "/acp cancel")).await.unwrap();
    assert_eq!(amended(&inlet, "m2", Some("less")).await, MessageChangeOutcome::Done);
    assert_eq!(amended(&inlet, "m2", None).await, MessageChangeOutcome::Done);
    let queued = format!("queued {} {run_id}", key());
    assert_eq!(
        fake.effects()[1..],
        [format!("{queued} Reword(\"less\") Done"), format!("{queued} Drop Done")]
    );
    *fake.queued_now.lock().unwrap() = QueueEditResult::TooLate;
    assert_eq!(amended(&inlet, "m1", Some("less")).await, MessageChangeOutcome::TooLate);
    *fake.fails.lock().unwrap() = Some(Failure::of(Code::NoSession));
    let late = amended(&inlet, "m1", Some("less")).await;
    assert_eq!(late, MessageChangeOutcome::TooLate, "a session that does not exist stays too late");
    let busy = Failure::of(Code::StoreUnavailable);
    *fake.fails.lock().unwrap() = Some(busy.clone());
    let later = MessageChangeOutcome::Later { why: busy.to_string() };
    assert_eq!(amended(&inlet, "m1", Some("less")).await, later);
    *fake.fails.lock().unwrap() = None;
    let command = amended(&inlet, "m3", Some("/acp close")).await;
    assert_eq!(command, MessageChangeOutcome::NotOurs, "a command has been executed");
    assert_eq!(amended(&inlet, "never", None).await, MessageChangeOutcome::NotOurs);
    *fake.queued_now.lock().unwrap() = QueueEditResult::Done;
    inlet.accept(message("m4", "/acp steer look")).await.unwrap();
    let words = amended(&inlet, "m4", Some("/acp steer look here")).await;
    assert_eq!(words, MessageChangeOutcome::NotOurs, "the prompt does not contain the command itself");
    assert_eq!(amended(&inlet, "m4", None).await, MessageChangeOutcome::Done);
}

/// What was kept before a kill and could not be done yet is no stranger: what is changed about it waits until it is done.
#[tokio::test]
async fn change_of_unprocessed_message_is_deferred() {
    let (_dir, _store, fake, inlet) = bound_ground().await;
    let later = || MessageChangeOutcome::Later { why: NOT_YET_PROCESSED.to_owned() };
    for said in [message("m1", "hello"), message("m2", "/acp steer look"), by_caller("i1", "/acp steer look")]
    {
        inlet.inner.commit(&said).await.unwrap();
    }
    for (id, text, want) in [
        ("m1", None, later()),
        ("m1", Some("less"), later()),
        ("m2", None, later()),
        ("m2", Some("/acp steer here"), MessageChangeOutcome::NotOurs),
        // It has no message that could be changed.
        ("i1", None, MessageChangeOutcome::NotOurs),
    ] {
        assert_eq!(amended(&inlet, id, text).await, want, "{id} {text:?}");
    }
    assert_eq!(fake.effects(), Vec::<String>::new());
    inlet.resume().await.unwrap();
    for id in ["m1", "m2"] {
        assert_eq!(amended(&inlet, id, None).await, MessageChangeOutcome::Done, "{id}");
    }
    let dropped = fake.effects().iter().filter(|it| it.ends_with("Drop Done")).count();
    assert_eq!(dropped, 2);
}

/// Told in the conversation a message that waits has buttons, which are kept until they mean nothing.
#[tokio::test]
async fn queued_message_has_buttons_for_its_run() {
    let (_dir, store, _fake, inlet) = bound_ground().await;
    assert_eq!(inlet.accept(message("m1", "hello")).await.unwrap().asks(), None);
    let second = inlet.accept(message("m2", "more")).await.unwrap();
    let Outcome::Prompted { run_id, asks, .. } = &second else { panic!("{second:?}") };
    assert_eq!(*asks, Some(queued_buttons(*run_id, true)));
    // The fake keeps no rows of runs: what is not there is over.
    let texts: Vec<String> = settled(&store).await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["The agent is busy: queued behind 1.\nIt no longer exists."]);
    let steer = inlet.accept(message("m3", "/acp steer now")).await.unwrap();
    let Outcome::Prompted { run_id, asks, .. } = &steer else { panic!("{steer:?}") };
    assert_eq!(*asks, Some(queued_buttons(*run_id, false)), "a steer that was queued");
}

/// A click or a slash command is done once, and answered by who brought it: the gateway says nothing of its own.
#[tokio::test]
async fn interaction_is_answered_only_by_its_caller() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let said = |text: &str, private: bool| {
        IntakeOutcome::Accepted(CallerReply { text: text.to_owned(), private, ..CallerReply::default() })
    };
    let brought = async |message: Inbound| {
        let _claim = inlet.reserve(message.clone(), PATIENCE).await;
        inlet.offer(message).await
    };
    let nothing = format!("{} has no running turn and no queued message.", key());
    for _ in 0..2 {
        assert_eq!(brought(by_caller("i1", "/acp cancel")).await, said(&nothing, true));
    }
    assert_eq!(fake.effects().len(), 1, "once");
    let IntakeOutcome::Accepted(public) = brought(by_caller("i2", "/acp model big")).await else { panic!() };
    assert!(!public.private && public.text.starts_with("The model is big"), "{public:?}");
    let IntakeOutcome::Accepted(misused) = brought(by_caller("i3", "/acp drop x")).await else { panic!() };
    assert!(misused.private && misused.text.contains("is not a run id"), "{misused:?}");
    assert_eq!(brought(by_caller("i4", "hello")).await, said("", false));
    let IntakeOutcome::Accepted(queued) = brought(by_caller("i5", "more")).await else { panic!() };
    assert_eq!((queued.text.as_str(), queued.actions.len()), ("The agent is busy: queued behind 1.", 2));
    // The message that says it to them is known from then on: its buttons go once they mean nothing.
    for id in ["i5", "i4", "i1", "never"] {
        let shown = PostedReply { message_id: format!("answer to {id}"), text: queued.text.clone() };
        assert!(inlet.mark_replied(by_caller(id, "more"), Some(shown)).await);
    }
    let over = line("answer to i5", "The agent is busy: queued behind 1.\nIt no longer exists.");
    assert_eq!(settled(&store).await, [over]);
    let nowhere = Inbound { conversation: conversation("nowhere"), ..by_caller("i6", "hello") };
    let IntakeOutcome::Accepted(refused) = brought(nowhere).await else { panic!() };
    assert!(refused.private && !refused.text.is_empty(), "{refused:?}");
    assert!(shown(&store).await.iter().all(|(kind, _)| kind == "person"));
}

/// Things belong to who somebody is, and not to what they are called now.
#[tokio::test]
async fn ownership_follows_user_id_not_name() {
    let (_dir, store) = open();
    let own = acp_core::rows::BindingRow { bound_by: "17".to_owned(), ..binding_row(&key(), &at_party("c")) };
    spawn(&store, session_row(&key()), Some(own)).await;
    let fake = Fake::new(&store);
    let inlet = inlet_of(&store, &fake, [Arc::new(Party::default()) as _]);
    let says = |id: &str, who: &str, text: &str| {
        let (conversation, author_id) = (at_party("c"), who.to_owned());
        Inbound { conversation, author_id, ..by_caller(id, text) }
    };
    let text = async |said: Inbound| match inlet.offer(said).await {
        IntakeOutcome::Accepted(said) => said.text,
        other => panic!("{other:?}"),
    };
    assert!(text(says("1", "17", "/acp cancel")).await.contains("has no running turn"));
    assert!(!text(says("2", "18", "/acp cancel")).await.contains("has no running turn"));
    // Who may answer what agents ask is the channel's to say, where it says anything.
    let none = "The agent waits for no permission.";
    for (id, who, approves, may) in [
        ("3", "17", ApprovalScope::Own, true),
        ("4", "18", ApprovalScope::Own, false),
        ("5", "18", ApprovalScope::All, true),
        ("6", "17", ApprovalScope::Nothing, false),
    ] {
        let said = text(Inbound { approves, ..says(id, who, "/acp allow") }).await;
        assert_eq!(said.contains(none), may, "{who} {approves:?}: {said}");
    }
    assert_eq!(fake.effects().len(), 1);
}

#[tokio::test]
async fn attachments_are_passed_with_prompt_once() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let file =
        |name: &str, content| Attachment { name: name.to_owned(), mime: "image/png".to_owned(), content };
    let attachments = vec![
        file("a.png", AttachmentContent::Bytes(vec![0x89, 0])),
        file("b.png", AttachmentContent::LeftOut { bytes: 9, why: "it is not there any more".to_owned() }),
    ];
    let said = Inbound { attachments: attachments.clone(), ..message("m1", "") };
    // What was committed before a crash has its files.
    inlet.inner.commit(&said).await.unwrap();
    assert_eq!(super::inlet(&store, &fake).resume().await.unwrap(), 1);
    inlet.accept(said).await.unwrap();
    let kept: Vec<_> =
        fake.prompts.lock().unwrap().values().map(|(request, _)| request.files.clone()).collect();
    assert_eq!(kept, [files::from_attachments(&attachments)]);
    let left = column::<u64>(&store, "SELECT count(files_json) FROM acp_inbox").await;
    assert_eq!(left, [0], "the files belong to the run now");
    assert_eq!(inlet.accept(message("m2", " ")).await.unwrap_err().code, Code::Usage);
}

/// Putting a conversation away parks its binding, speaking there or taking it out ends that; gone is gone.
#[tokio::test]
async fn archived_conversation_is_parked_and_deleted_one_ends() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let event = async |event| inlet.on_conversation_event(conversation("c"), event).await;
    let away = || ConversationEvent::Archived { by_person: true };
    for (what, outcome, now) in [
        (ConversationEvent::Archived { by_person: false }, ConversationEventOutcome::Nothing, "active"),
        (ConversationEvent::Unarchived, ConversationEventOutcome::Nothing, "active"),
        (ConversationEvent::Renamed, ConversationEventOutcome::Nothing, "active"),
        (away(), ConversationEventOutcome::Parked, "parked"),
        (away(), ConversationEventOutcome::Nothing, "parked"),
        (ConversationEvent::Unarchived, ConversationEventOutcome::Resumed, "active"),
        (away(), ConversationEventOutcome::Parked, "parked"),
    ] {
        assert_eq!((event(what.clone()).await, &*status(&store).await), (outcome, now), "{what:?}");
    }
    inlet.accept(message("m1", "hello")).await.unwrap();
    assert_eq!((status(&store).await.as_str(), fake.said()), ("active", vec!["hello".to_owned()]));
    event(away()).await;
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
    let never = inlet.on_conversation_event(conversation("never"), gone()).await;
    assert_eq!(never, ConversationEventOutcome::Nothing);
}

/// What was still to be told when a binding ends: told if it was active, settled if its conversation was put away.
#[tokio::test]
async fn pending_parts_of_parked_binding_are_settled_at_its_end() {
    let states = async |is_away: bool| {
        let (_dir, store, _fake, inlet) = bound_ground().await;
        let part = |part_no, state: &str| {
            format!(
                "INSERT INTO acp_delivery_part (binding_key, session_key, session_seq, part_no, kind, text, print, nonce, \
                 state, created_at, updated_at) SELECT binding_key, session_key, 1, {part_no}, 'final', 'text', '', \
                 'nonce-{part_no}', '{state}', 1, 1 FROM acp_bindings"
            )
        };
        let rows = ["sent", "sending", "planned"].iter().zip(0..).map(|(state, no)| part(no, state));
        execute(&store, rows.collect::<Vec<_>>().join(";")).await;
        if is_away {
            let away = ConversationEvent::Archived { by_person: true };
            inlet.on_conversation_event(conversation("c"), away).await;
        }
        store.write("end", |tx| bindings::end_all(tx, &key(), "over")).await.unwrap();
        column::<String>(&store, "SELECT state FROM acp_delivery_part ORDER BY part_no").await
    };
    assert_eq!(states(false).await, ["sent", "sending", "planned"]);
    assert_eq!(states(true).await, ["sent", "uncertain", "rejected"]);
}

/// A session that is bound elsewhere too goes on there.
#[tokio::test]
async fn session_survives_deletion_of_one_of_two_conversations() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let second = binding_row(&key(), &conversation("d"));
    store.write("bind", move |tx| bindings::bind(tx, &second)).await.unwrap();
    let gone = ConversationEvent::Gone { why: "nobody may see it".to_owned() };
    assert_eq!(inlet.on_conversation_event(conversation("c"), gone).await, ConversationEventOutcome::Ended);
    assert_eq!(fake.effects(), Vec::<String>::new());
    let left = store.read("left", |db| bindings::of_session(db, &key())).await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].conversation.conversation_id, "d");
}

/// H8: the mark is where everything before was read, and messages alone do not move it.
#[tokio::test]
async fn backfill_mark_only_moves_forward() {
    let (_dir, store, _fake, inlet) = bound_ground().await;
    let places =
        async || inlet.bound_conversations("console".to_owned(), "default".to_owned()).await.unwrap();
    let place = |through: Option<&str>| BoundConversation {
        conversation: conversation("c"),
        bound_at_ms: 1,
        backfilled_through: through.map(str::to_owned),
    };
    assert_eq!(places().await, [place(None)]);
    inlet.accept(message("99", "hello")).await.unwrap();
    inlet.accept(message("100", "more")).await.unwrap();
    assert_eq!(places().await, [place(None)]);
    for (through, want) in [("98", "98"), ("100", "100"), ("99", "100"), ("101", "101")] {
        assert!(inlet.set_backfill_mark(conversation("c"), through.to_owned()).await);
        assert_eq!(places().await, [place(Some(want))]);
    }
    inlet.on_conversation_event(conversation("c"), ConversationEvent::Archived { by_person: true }).await;
    assert_eq!(places().await.len(), 1, "an archived conversation still receives messages");
    assert_eq!(inlet.bound_conversations("console".to_owned(), "other".to_owned()).await, Some(Vec::new()));
    store.write("end", |tx| bindings::end_all(tx, &key(), "enough")).await.unwrap();
    assert_eq!(places().await, []);
}

/// Whoever remembers what is bound is told of each change before whoever made it goes on, and of nothing else.
#[tokio::test]
async fn binding_change_is_announced_before_write_returns() {
    let (_dir, store, _fake, inlet) = bound_ground().await;
    let mut changes = inlet.binding_change_counter();
    let mut told = || {
        let is_told = changes.has_changed().unwrap();
        changes.mark_unchanged();
        is_told
    };
    assert!(!told(), "nothing changed");
    inlet.accept(message("99", "hello")).await.unwrap();
    inlet.on_conversation_event(conversation("c"), ConversationEvent::Archived { by_person: true }).await;
    assert!(inlet.set_backfill_mark(conversation("c"), "99".to_owned()).await);
    assert!(!told(), "archiving, messages and marks do not change the binding");
    let other = binding_row(&key(), &conversation("d"));
    let again = other.clone();
    store.write("bind", move |tx| bindings::bind(tx, &other)).await.unwrap();
    assert!(told() && matches!(inlet.lookup_binding(conversation("d")).await, BindingLookup::Bound(_)));
    store.write("bind", move |tx| bindings::bind(tx, &again)).await.unwrap_err();
    assert!(!told(), "it was not bound again");
    let mut pending = binding_row(&key(), &conversation("e"));
    pending.status = BindingStatus::Pending;
    let id = pending.binding_id;
    store.write("bind", move |tx| bindings::bind(tx, &pending)).await.unwrap();
    assert!(told() && inlet.lookup_binding(conversation("e")).await == BindingLookup::Unbound);
    store.write("activate", move |tx| bindings::activate(tx, id, "f", 5)).await.unwrap();
    assert!(told() && matches!(inlet.lookup_binding(conversation("f")).await, BindingLookup::Bound(_)));
    store.write("end", |tx| bindings::end_all(tx, &key(), "enough")).await.unwrap();
    assert!(told() && inlet.lookup_binding(conversation("f")).await == BindingLookup::Unbound);
}

#[tokio::test]
async fn best_match_is_suggested_first() {
    let (_dir, store, _fake, inlet) = bound_ground().await;
    let mut other = session_row(&SessionKey::parse("agent:demo:acp:2").unwrap());
    other.label = Some("my own".to_owned());
    spawn(&store, other, None).await;
    let suggested = async |what, prefix: &str| {
        let found = inlet.suggest(what, conversation("c"), "ann".to_owned(), prefix.to_owned()).await;
        found.into_iter().map(|it| it.value).collect::<Vec<_>>()
    };
    assert_eq!(suggested(SuggestionKind::Sessions, "").await.len(), 2);
    assert_eq!(suggested(SuggestionKind::Sessions, "OWN").await, ["agent:demo:acp:2"]);
    assert_eq!(suggested(SuggestionKind::Sessions, "acp:1").await, ["agent:demo:acp:1"]);
    assert_eq!(suggested(SuggestionKind::Options, "").await, ["model", "cwd"]);
    assert_eq!(suggested(SuggestionKind::Agents, "dem").await, ["demo"]);
    let mut scribe = Scribe::claim(&store, &key()).await;
    scribe.start().await;
    let options = serde_json::json!({"sessionUpdate": "config_option_update",
        "configOptions": [{"id": "effort", "name": "Effort"}, {"id": "model", "name": "Model"}]});
    scribe.event(acp_core::event::EventKind::Update, options).await;
    assert_eq!(
        suggested(SuggestionKind::Options, "e").await,
        ["effort", "model", "cwd"],
        "the id first, then names that contain it"
    );
}
