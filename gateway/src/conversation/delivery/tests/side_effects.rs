//! Side effects of delivery: buttons, reactions, and archived conversations.

use super::live::{FakeChannel, LIVE, card, final_message, started_turn, with_card};
use super::*;
use crate::channel::{Inbound, Signal};
use crate::tests::permission_row;
use acp_core::render::PartKind;
use acp_core::render::buttons::ButtonSubject;
use acp_core::rows::{AutoResolution, PermissionRow, PermissionState, ResolvedBy};
use acp_shared::ids::RunId;
use acp_store::inbox;
use acp_store::interactive_messages::{self, ButtonMessage};
use std::sync::atomic::Ordering;

const LEASE: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

async fn sql(store: &Store, text: &str, values: impl rusqlite::Params + Send + 'static) {
    let text = text.to_owned();
    store.write("sql", move |tx| Ok(tx.sqlite().unwrap().execute(&text, values).map(drop)?)).await.unwrap();
}

fn person(name: &str) -> Option<ResolvedBy> {
    Some(ResolvedBy::Person(name.to_owned()))
}

fn permission(
    state: PermissionState,
    option_id: Option<&str>,
    resolved_by: Option<ResolvedBy>,
) -> PermissionRow {
    let option_id = option_id.map(str::to_owned);
    PermissionRow { state, option_id, resolved_by, ..permission_row(&key(), 7) }
}

async fn put_permission(store: &Store, row: PermissionRow) {
    store.write("permission", move |tx| acp_store::permissions::put(tx, &row)).await.unwrap();
}

async fn insert_lease(store: &Store) {
    const SQL: &str = "INSERT INTO acp_leases (lease_id, session_key, kind, spawn_json, usage, stdout_offset, \
        next_stdin_seq, link_state) VALUES (?1, ?2, 'agent', '{}', 'ready', 0, 1, '')";
    sql(store, SQL, (LEASE, key().to_string())).await;
}

fn queued() -> ButtonMessage {
    ButtonMessage { message_id: "0".into(), kind: PartKind::Notice, text: "Queued.".into() }
}

/// Records the first message of the conversation as a message with buttons.
async fn insert_queued_notice(store: &Store, about: ButtonSubject) {
    let insert = move |tx: &acp_store::Tx<'_>| {
        interactive_messages::insert_message(tx, &conversation("c"), &key(), &queued(), &about)
    };
    store.write("insert", insert).await.unwrap();
}

/// Starts a turn with a shown notice, on a channel that can edit messages.
async fn with_notice() -> (tempfile::TempDir, Store, JournalWriter, Arc<FakeChannel>, Driver) {
    let (dir, store, mut journal) = started_turn().await;
    let channel = FakeChannel::new(true);
    let driver = drive(&store, &channel, "");
    journal.event(EventKind::Status, json!({"status": "x", "text": "Queued."})).await;
    channel.until("the notice", |shown| shown.len() == 1).await;
    (dir, store, journal, channel, driver)
}

/// Buttons are the agent's options. A settled question has no buttons and shows the outcome.
#[tokio::test]
async fn settled_permission_request_loses_its_buttons() {
    let rows = [
        (permission(PermissionState::Answered, Some("y"), person("ann")), "Answered: “Option y” (by “ann”)."),
        (
            permission(PermissionState::Expired, None, Some(ResolvedBy::Auto(AutoResolution::Deadline))),
            "Nobody answered in time: refused.",
        ),
    ];
    for (settled, want) in rows {
        for is_restarted in [false, true] {
            let (_dir, store, mut journal) = started_turn().await;
            insert_lease(&store).await;
            let channel = FakeChannel::new(true);
            let mut driver = drive(&store, &channel, "");
            put_permission(&store, permission(PermissionState::Pending, None, None)).await;
            let id = format!("{LEASE}:7");
            let params = json!({"toolCall": {"title": "Write"},
                "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]});
            journal.event(EventKind::Permission, json!({"permission_id": id, "params": params})).await;
            channel.until("the question", |shown| shown.len() == 1).await;
            assert_eq!(channel.buttons(), [[format!("/acp answer {id} 1")]]);
            if is_restarted {
                driver.stop().await;
                driver = drive(&store, &channel, "");
            }
            put_permission(&store, settled.clone()).await;
            let payload = json!({"permission_id": id, "option_id": settled.option_id});
            journal.event(EventKind::PermissionSettled, payload).await;
            let text = format!("The agent asks for a permission: Write\n{want}");
            channel
                .until("the outcome in the question", |shown| {
                    shown[0] == (PartKind::Permission, text.clone())
                })
                .await;
            assert_eq!(channel.buttons()[0], Vec::<String>::new(), "{want} {is_restarted}");
            eventually("no remaining row", || async {
                let (at, key) = (conversation("c"), key());
                let read = store.read("settled", move |db| {
                    acp_store::interactive_messages::settled_messages(db, &at, &key, false)
                });
                read.await.unwrap().is_empty().then_some(())
            })
            .await;
            driver.stop().await;
        }
    }
}

/// A queue notice loses its buttons soon after its turn begins, although the first edit fails.
#[tokio::test]
async fn queued_notice_loses_its_buttons_when_turn_begins() {
    let (_dir, store, mut journal) = started_turn().await;
    let run_id = running_run_id(&store).await;
    let channel =
        Arc::new(FakeChannel { can_edit: true, signals: Some(Mutex::default()), ..FakeChannel::default() });
    let driver = drive(&store, &channel, "");
    journal.event(EventKind::Status, json!({"status": "x", "text": "Queued."})).await;
    channel.until("the notice", |shown| shown.len() == 1).await;
    channel.failures.store(1, Ordering::SeqCst);
    insert_queued_notice(&store, ButtonSubject::Queued(run_id)).await;
    channel.until("the started notice", |shown| shown[0].1 == "Queued.\nIt has started.").await;
    assert_eq!(channel.edits.load(Ordering::SeqCst), 2);
    driver.stop().await;
}

/// Without journal rows, messages with buttons are found by their conversations: also after the binding
/// ended, and not while it is parked.
#[tokio::test]
async fn messages_with_buttons_are_found_by_their_conversations() {
    let (_dir, store, _journal) = started_turn().await;
    let found = || async { store.read("found", interactive_messages::bindings).await.unwrap().len() };
    assert_eq!(found().await, 0);
    insert_queued_notice(&store, ButtonSubject::Permission("p".to_owned())).await;
    for (status, want) in [("active", 1), ("parked", 0), ("ended", 1)] {
        sql(&store, "UPDATE acp_bindings SET status = ?1", [status]).await;
        assert_eq!(found().await, want, "{status}");
    }
}

/// A message whose edits fail is given up after three attempts, or at once after a permanent refusal.
#[tokio::test]
async fn uneditable_message_is_given_up_after_three_attempts() {
    for (is_refused, attempts) in [(false, 3), (true, 1)] {
        let (_dir, store, mut journal, channel, driver) = with_notice().await;
        if is_refused {
            channel.is_fixed.store(true, Ordering::SeqCst);
        } else {
            channel.failures.store(9, Ordering::SeqCst);
        }
        insert_queued_notice(&store, ButtonSubject::Permission("gone".to_owned())).await;
        journal.append_text("One.").await;
        journal.complete().await;
        channel.until("the answer", |shown| shown.last() == Some(&final_message("One."))).await;
        eventually("message given up", || async {
            store.read("found", interactive_messages::bindings).await.unwrap().is_empty().then_some(())
        })
        .await;
        assert_eq!((channel.edits.load(Ordering::SeqCst), channel.shown().len()), (attempts, 2));
        driver.stop().await;
    }
}

/// Edits of obsolete buttons delay no output, and a rate limit is not an attempt.
#[tokio::test]
async fn rate_limit_on_obsolete_buttons_delays_no_output() {
    let (_dir, store, mut journal, channel, driver) = with_notice().await;
    channel.limits.store(u32::MAX, Ordering::SeqCst);
    insert_queued_notice(&store, ButtonSubject::Permission("gone".to_owned())).await;
    for text in ["One.", "Two.", "Three.", "Four."] {
        journal.append_text(text).await;
        journal.complete().await;
        journal.start().await;
        channel.until("the answer", |shown| shown.last() == Some(&final_message(text))).await;
    }
    assert_eq!(store.read("found", interactive_messages::bindings).await.unwrap().len(), 1, "not given up");
    driver.stop().await;
}

#[tokio::test]
async fn settled_message_is_found_among_many_pending_ones() {
    let (_dir, store, _journal) = started_turn().await;
    insert_lease(&store).await;
    put_permission(&store, permission(PermissionState::Pending, None, None)).await;
    let insert = |tx: &acp_store::Tx<'_>| {
        for number in 0..=200 {
            let message = ButtonMessage { message_id: format!("{number:03}"), ..queued() };
            let id = if number == 200 { "gone".to_owned() } else { format!("{LEASE}:7") };
            interactive_messages::insert_message(
                tx,
                &conversation("c"),
                &key(),
                &message,
                &ButtonSubject::Permission(id),
            )?;
        }
        Ok(())
    };
    store.write("insert", insert).await.unwrap();
    let settled = |db: &_| interactive_messages::settled_messages(db, &conversation("c"), &key(), false);
    let settled = store.read("settled", settled).await.unwrap();
    assert_eq!(settled.iter().map(|it| it.message_id.as_str()).collect::<Vec<_>>(), ["200"]);
}

/// A long question with little room left shows its outcome and loses its buttons.
#[tokio::test]
async fn long_permission_request_shows_its_outcome() {
    let (_dir, store, mut journal) = started_turn().await;
    insert_lease(&store).await;
    let channel = Arc::new(FakeChannel { can_edit: true, buttons: 10, ..FakeChannel::default() });
    let driver = drive(&store, &channel, LONG);
    put_permission(&store, permission(PermissionState::Pending, None, None)).await;
    let id = format!("{LEASE}:7");
    let options: Vec<_> =
        (0..15).map(|_| json!({"optionId": "y", "name": "ä".repeat(272), "kind": "allow_once"})).collect();
    let call = json!({"title": "t".repeat(40), "rawInput": {"command": "c".repeat(5_000)}});
    let params = json!({"toolCall": call, "options": options});
    journal.event(EventKind::Permission, json!({"permission_id": id, "params": params})).await;
    channel.until("the question", |shown| shown.len() == 1).await;
    assert!(
        !channel.properties().limit.fits(&format!("{}{}", channel.shown()[0].1, "x".repeat(250))),
        "the question has little room left: {}",
        channel.shown()[0].1.len()
    );
    let by = "a".repeat(300);
    put_permission(&store, permission(PermissionState::Answered, Some("y"), person(&by))).await;
    let payload = json!({"permission_id": id, "option_id": "y", "by": by});
    journal.event(EventKind::PermissionSettled, payload).await;
    let has_outcome = |shown: &[(PartKind, String)]| shown[0].1.contains("Answered: “Option y” (by “aaa");
    channel.until("the outcome in the question", has_outcome).await;
    assert_eq!(channel.buttons()[0], Vec::<String>::new());
    driver.stop().await;
}

#[tokio::test]
async fn card_button_stops_its_own_turn() {
    let (_dir, store, mut journal) = started_turn().await;
    let run_id = running_run_id(&store).await;
    let channel = FakeChannel::new(true);
    let driver = drive(&store, &channel, LIVE);
    journal.append_text("One. ").await;
    channel.until("the card", |shown| shown == [card("Working\n\nOne.")]).await;
    assert_eq!(channel.buttons(), [[format!("/acp cancel --run {run_id}")]]);
    journal.complete().await;
    channel.until("the answer", |shown| shown == [card("Done"), final_message("One.")]).await;
    assert_eq!(channel.buttons(), [Vec::<String>::new(), Vec::new()]);
    driver.stop().await;
}

async fn running_run_id(store: &Store) -> RunId {
    store.runs(key(), 1).await.unwrap().remove(0).run_id
}

/// After the channel's edit window, the card continues in a new message; the old message points to it.
#[tokio::test]
async fn card_continues_in_new_message_after_edit_window() {
    let (_dir, store, mut journal) = started_turn().await;
    let channel =
        Arc::new(FakeChannel { can_edit: true, edit_window_ms: Some(3_000_000), ..FakeChannel::default() });
    let driver = drive(&store, &channel, LIVE);
    journal.append_text("One. ").await;
    channel.until("the card", |shown| shown == [card("Working\n\nOne.")]).await;
    driver.stop().await;
    sql(&store, "UPDATE acp_delivery_card SET posted_at = posted_at - 3000001", []).await;
    let driver = drive(&store, &channel, LIVE);
    journal.append_text("Two. ").await;
    let want = [card("Continued below"), card("Working\n\nOne. Two.")];
    channel.until("the next one", |shown| shown == want).await;
    assert_eq!(channel.buttons()[0], Vec::<String>::new());
    journal.complete().await;
    let want = [card("Continued below"), card("Done"), final_message("One. Two.")];
    channel.until("the answer", |shown| shown == want).await;
    driver.stop().await;
}

/// Reactions on the user's message show the state of its turn; a signal shows that the agent works.
#[tokio::test]
async fn reactions_show_state_of_message() {
    for (text, fails) in [("", false), (LIVE, false), ("", true)] {
        let (_dir, store, mut journal) = started_turn().await;
        let inbound = Inbound::new(conversation("c"), "m1".into(), "ann".into(), "hi".into());
        store.write("inbox", move |tx| inbox::insert(tx, &inbound).map(drop)).await.unwrap();
        let message = "UPDATE acp_runs SET requester_message_id = 'm1'";
        sql(&store, message, []).await;
        let channel = Arc::new(FakeChannel {
            can_edit: true,
            signals: Some(Mutex::default()),
            ..FakeChannel::default()
        });
        let signals = || channel.signals.as_ref().unwrap().lock().unwrap().clone();
        let driver = drive(&store, &channel, text);
        eventually("the working signal", || async { (signals() == [Signal::Working]).then_some(()) }).await;
        journal.append_text("One.").await;
        let message_id = "m1".to_owned();
        let end = if fails { Signal::Failed { message_id } } else { Signal::Done { message_id } };
        if fails {
            journal.fail().await;
        } else {
            journal.complete().await;
        }
        eventually("the end signal", || async { (signals().last() == Some(&end)).then_some(()) }).await;
        driver.stop().await;
    }
}

/// A parked conversation gets no message. Waiting messages are sent once it is unparked.
#[tokio::test]
async fn parked_conversation_gets_no_message() {
    for ends in [false, true] {
        let (_dir, store, mut journal, channel, driver) = with_card().await;
        let at = conversation("c");
        let park = move |parked| {
            let at = at.clone();
            move |tx: &acp_store::Tx<'_>| bindings::park(tx, &at, parked)
        };
        assert!(store.write("park", park(true)).await.unwrap());
        assert!(!store.write("park", park(true)).await.unwrap(), "already parked");
        journal.append_text("Two. ").await;
        journal.complete().await;
        // Another conversation gets a message: the driver has scanned everything.
        let other = SessionKey::parse("agent:demo:acp:2").unwrap();
        spawn(&store, session_row(&other), Some(binding_row(&other, &conversation("other")))).await;
        JournalWriter::claim(&store, &other).await.turn("Elsewhere.").await;
        channel.until("the other one", |shown| shown.contains(&final_message("Elsewhere."))).await;
        driver.stop().await;
        let driver = drive(&store, &channel, LIVE);
        JournalWriter::claim(&store, &other).await.turn("Again.").await;
        channel.until("the other one again", |shown| shown.contains(&final_message("Again."))).await;
        assert!(!channel.shown().contains(&final_message("One. Two.")), "{:?}", channel.shown());
        if ends {
            journal.close().await;
            assert!(!store.write("park", park(false)).await.unwrap(), "the binding has ended");
            no_pending_parts(&store).await;
            assert!(!channel.shown().contains(&final_message("One. Two.")), "{:?}", channel.shown());
        } else {
            assert!(store.write("park", park(false)).await.unwrap());
            channel.until("the waiting message", |shown| shown.contains(&final_message("One. Two."))).await;
        }
        driver.stop().await;
    }
}

/// Retries stop while a conversation is parked, since a message would unarchive it, and continue afterwards.
#[tokio::test]
async fn retries_stop_while_conversation_is_parked() {
    check_retries_while_parked(false).await;
}

/// Parts that were settled with their binding are never sent.
#[tokio::test]
async fn retries_end_with_their_binding() {
    check_retries_while_parked(true).await;
}

async fn check_retries_while_parked(ends: bool) {
    let (_dir, store, due) = answered("x").await;
    let channel = faulty_channel(&[Fault::Limit; 2_000]);
    let pass = worker(&store, &channel);
    let park = |is_parked| {
        let at = conversation("c");
        store.write("park", move |tx| bindings::park(tx, &at, is_parked))
    };
    let park_after_first_attempt = async {
        eventually("a first attempt", || async {
            (channel.faults.lock().unwrap().len() < 2_000).then_some(())
        })
        .await;
        assert!(park(true).await.unwrap());
        if ends {
            store.write("end", |tx| bindings::end_all(tx, &key(), "settled")).await.unwrap();
        }
    };
    let (exit, ()) = tokio::join!(pass.run(due.clone(), None), park_after_first_attempt);
    channel.faults.lock().unwrap().clear();
    if ends {
        assert!(["rejected", "uncertain"].contains(&states(&store).await[0].as_str()));
        let id = due.binding.binding_id;
        let binding = store.read("ended", move |db| bindings::get(db, id)).await.unwrap().unwrap();
        pass.run(DueBinding { binding, end: 3 }, None).await;
        assert_eq!(channel.texts(), Vec::<String>::new());
        return;
    }
    assert_eq!((exit, channel.texts()), (WorkerExit::Unknown, vec![]));
    assert_eq!((pass.run(due.clone(), None).await, channel.texts()), (WorkerExit::Unknown, vec![]));
    assert!(park(false).await.unwrap());
    assert_eq!(pass.run(due, None).await, WorkerExit::At(3));
    assert_eq!((channel.texts(), states(&store).await), (vec!["x".to_owned()], vec!["sent".to_owned()]));
}
