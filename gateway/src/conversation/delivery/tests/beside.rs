//! What stands beside the messages that are owed: buttons, signals, and conversations that were put away.

use super::live::{Board, LIVE, begun, card, last, with_card};
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
    store.write("sql", move |tx| Ok(tx.sqlite().execute(&text, values).map(drop)?)).await.unwrap();
}

fn person(name: &str) -> Option<ResolvedBy> {
    Some(ResolvedBy::Person(name.to_owned()))
}

/// What an agent asks, as its row says it now.
fn asked(state: PermissionState, option_id: Option<&str>, resolved_by: Option<ResolvedBy>) -> PermissionRow {
    let option_id = option_id.map(str::to_owned);
    PermissionRow { state, option_id, resolved_by, ..permission_row(&key(), 7) }
}

async fn put(store: &Store, row: PermissionRow) {
    store.write("permission", move |tx| acp_store::permissions::put(tx, &row)).await.unwrap();
}

async fn lease(store: &Store) {
    const SQL: &str = "INSERT INTO acp_leases (lease_id, session_key, kind, spawn_json, usage, stdout_offset, \
        next_stdin_seq, link_state) VALUES (?1, ?2, 'agent', '{}', 'ready', 0, 1, '')";
    sql(store, SQL, (LEASE, key().to_string())).await;
}

fn queued() -> ButtonMessage {
    ButtonMessage { message_id: "0".into(), kind: PartKind::Notice, text: "Queued.".into() }
}

/// Keeps the first message of the conversation as one with buttons.
async fn keep_queued(store: &Store, about: ButtonSubject) {
    let keep = move |tx: &acp_store::Tx<'_>| {
        interactive_messages::insert_message(tx, &conversation("c"), &key(), &queued(), &about)
    };
    store.write("keep", keep).await.unwrap();
}

/// A turn beside which a notice is shown, on a channel that can edit it.
async fn with_notice() -> (tempfile::TempDir, Store, Scribe, Arc<Board>, Driver) {
    let (dir, store, mut scribe) = begun().await;
    let board = Board::new(true);
    let driver = drive(&store, &board, "");
    scribe.event(EventKind::Status, json!({"status": "x", "text": "Queued."})).await;
    board.until("the notice", |shown| shown.len() == 1).await;
    (dir, store, scribe, board, driver)
}

/// The buttons are the agent's own options; once it is settled, by whomever, they are gone and the message says so.
/// Also when the process that sent it is not there any more.
#[tokio::test]
async fn settled_permission_request_loses_its_buttons() {
    let rows = [
        (asked(PermissionState::Answered, Some("y"), person("ann")), "Answered: “Option y” (by “ann”)."),
        (
            asked(PermissionState::Expired, None, Some(ResolvedBy::Auto(AutoResolution::Deadline))),
            "Nobody answered in time: refused.",
        ),
    ];
    for (settled, want) in rows {
        for is_restarted in [false, true] {
            let (_dir, store, mut scribe) = begun().await;
            lease(&store).await;
            let board = Board::new(true);
            let mut driver = drive(&store, &board, "");
            put(&store, asked(PermissionState::Pending, None, None)).await;
            let id = format!("{LEASE}:7");
            let params = json!({"toolCall": {"title": "Write"},
                "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]});
            scribe.event(EventKind::Permission, json!({"permission_id": id, "params": params})).await;
            board.until("the question", |shown| shown.len() == 1).await;
            assert_eq!(board.buttons(), [[format!("/acp answer {id} 1")]]);
            if is_restarted {
                driver.stop().await;
                driver = drive(&store, &board, "");
            }
            put(&store, settled.clone()).await;
            let payload = json!({"permission_id": id, "option_id": settled.option_id});
            scribe.event(EventKind::PermissionSettled, payload).await;
            let text = format!("The agent asks for a permission: Write\n{want}");
            board
                .until("the question to say it", |shown| shown[0] == (PartKind::Permission, text.clone()))
                .await;
            assert_eq!(board.buttons()[0], Vec::<String>::new(), "{want} {is_restarted}");
            eventually("no row to remain", || async {
                let (at, key) = (conversation("c"), key());
                let read = store.read("over", move |db| {
                    acp_store::interactive_messages::settled_messages(db, &at, &key, false)
                });
                read.await.unwrap().is_empty().then_some(())
            })
            .await;
            driver.stop().await;
        }
    }
}

/// What is said to a message that waits loses its buttons soon after its turn began, though nothing is said then, and
/// though the change of it fails at first.
#[tokio::test]
async fn queued_notice_loses_its_buttons_when_turn_begins() {
    let (_dir, store, mut scribe) = begun().await;
    let run_id = running(&store).await;
    let board = Arc::new(Board { can_edit: true, signals: Some(Mutex::default()), ..Board::default() });
    let driver = drive(&store, &board, "");
    scribe.event(EventKind::Status, json!({"status": "x", "text": "Queued."})).await;
    board.until("the notice", |shown| shown.len() == 1).await;
    board.failures.store(1, Ordering::SeqCst);
    keep_queued(&store, ButtonSubject::Queued(run_id)).await;
    board.until("the end of it", |shown| shown[0].1 == "Queued.\nIt has started.").await;
    assert_eq!(board.edits.load(Ordering::SeqCst), 2);
    driver.stop().await;
}

/// Where nothing is journaled any more, messages with buttons are found by their conversations: also when the binding
/// ended, and not while it is parked.
#[tokio::test]
async fn messages_with_buttons_are_found_by_their_conversations() {
    let (_dir, store, _scribe) = begun().await;
    let found = || async { store.read("found", interactive_messages::bindings).await.unwrap().len() };
    assert_eq!(found().await, 0);
    keep_queued(&store, ButtonSubject::Permission("p".to_owned())).await;
    for (status, want) in [("active", 1), ("parked", 0), ("ended", 1)] {
        sql(&store, "UPDATE acp_bindings SET status = ?1", [status]).await;
        assert_eq!(found().await, want, "{status}");
    }
}

/// A message that cannot be amended is given up after three attempts, and at once where the channel refuses the change
/// for good; what waits behind it is sent.
#[tokio::test]
async fn a_message_that_cannot_be_amended_is_given_up_after_three_attempts() {
    for (is_refused, attempts) in [(false, 3), (true, 1)] {
        let (_dir, store, mut scribe, board, driver) = with_notice().await;
        if is_refused {
            board.is_fixed.store(true, Ordering::SeqCst);
        } else {
            board.failures.store(9, Ordering::SeqCst);
        }
        keep_queued(&store, ButtonSubject::Permission("gone".to_owned())).await;
        scribe.say("One.").await;
        scribe.done().await;
        board.until("the answer", |shown| shown.last() == Some(&last("One."))).await;
        eventually("it is given up", || async {
            store.read("found", interactive_messages::bindings).await.unwrap().is_empty().then_some(())
        })
        .await;
        assert_eq!((board.edits.load(Ordering::SeqCst), board.shown().len()), (attempts, 2));
        driver.stop().await;
    }
}

/// Obsolete buttons are a side effect: a rate limit on their message delays no output, and is no attempt.
#[tokio::test]
async fn rate_limit_on_obsolete_buttons_delays_no_output() {
    let (_dir, store, mut scribe, board, driver) = with_notice().await;
    board.limits.store(u32::MAX, Ordering::SeqCst);
    keep_queued(&store, ButtonSubject::Permission("gone".to_owned())).await;
    for text in ["One.", "Two.", "Three.", "Four."] {
        scribe.say(text).await;
        scribe.done().await;
        scribe.start().await;
        board.until("the answer", |shown| shown.last() == Some(&last(text))).await;
    }
    assert_eq!(store.read("found", interactive_messages::bindings).await.unwrap().len(), 1, "not given up");
    driver.stop().await;
}

/// However many wait that are not over: one that is, is found among them.
#[tokio::test]
async fn settled_message_is_found_among_many_pending_ones() {
    let (_dir, store, _scribe) = begun().await;
    lease(&store).await;
    put(&store, asked(PermissionState::Pending, None, None)).await;
    let keep = |tx: &acp_store::Tx<'_>| {
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
    store.write("keep", keep).await.unwrap();
    let over = |db: &_| interactive_messages::settled_messages(db, &conversation("c"), &key(), false);
    let over = store.read("over", over).await.unwrap();
    assert_eq!(over.iter().map(|it| it.message_id.as_str()).collect::<Vec<_>>(), ["200"]);
}

/// A long question has little room left: what became of it is said all the same, and its buttons go.
#[tokio::test]
async fn long_permission_request_shows_its_outcome() {
    let (_dir, store, mut scribe) = begun().await;
    lease(&store).await;
    let board = Arc::new(Board { can_edit: true, buttons: 10, ..Board::default() });
    let driver = drive(&store, &board, LONG);
    put(&store, asked(PermissionState::Pending, None, None)).await;
    let id = format!("{LEASE}:7");
    let options: Vec<_> =
        (0..13).map(|_| json!({"optionId": "y", "name": "n".repeat(272), "kind": "allow_once"})).collect();
    let params = json!({"toolCall": {"title": "t".repeat(40)}, "options": options});
    scribe.event(EventKind::Permission, json!({"permission_id": id, "params": params})).await;
    board.until("the question", |shown| shown.len() == 1).await;
    assert!(
        !board.properties().limit.fits(&format!("{}{}", board.shown()[0].1, "x".repeat(250))),
        "it is long"
    );
    let by = "a".repeat(300);
    put(&store, asked(PermissionState::Answered, Some("y"), person(&by))).await;
    let payload = json!({"permission_id": id, "option_id": "y", "by": by});
    scribe.event(EventKind::PermissionSettled, payload).await;
    let says_so = |shown: &[(PartKind, String)]| shown[0].1.contains("Answered: “Option y” (by “aaa");
    board.until("the question to say it", says_so).await;
    assert_eq!(board.buttons()[0], Vec::<String>::new());
    driver.stop().await;
}

/// A card stops its own turn and no other one, and only while that runs.
#[tokio::test]
async fn card_button_stops_its_own_turn() {
    let (_dir, store, mut scribe) = begun().await;
    let run_id = running(&store).await;
    let board = Board::new(true);
    let driver = drive(&store, &board, LIVE);
    scribe.say("One. ").await;
    board.until("the card", |shown| shown == [card("Working\n\nOne.")]).await;
    assert_eq!(board.buttons(), [[format!("/acp cancel --run {run_id}")]]);
    scribe.done().await;
    board.until("the answer", |shown| shown == [card("Done"), last("One.")]).await;
    assert_eq!(board.buttons(), [Vec::<String>::new(), Vec::new()]);
    driver.stop().await;
}

async fn running(store: &Store) -> RunId {
    store.runs(key(), 1).await.unwrap().remove(0).run_id
}

/// Where messages can be changed for some time only, the card of a longer turn goes on in another one; the old one
/// says that.
#[tokio::test]
async fn card_continues_in_new_message_after_edit_window() {
    let (_dir, store, mut scribe) = begun().await;
    let board = Arc::new(Board { can_edit: true, edit_window_ms: Some(3_000_000), ..Board::default() });
    let driver = drive(&store, &board, LIVE);
    scribe.say("One. ").await;
    board.until("the card", |shown| shown == [card("Working\n\nOne.")]).await;
    driver.stop().await;
    sql(&store, "UPDATE acp_delivery_card SET posted_at = posted_at - 3000001", []).await;
    let driver = drive(&store, &board, LIVE);
    scribe.say("Two. ").await;
    let want = [card("Continued below"), card("Working\n\nOne. Two.")];
    board.until("the next one", |shown| shown == want).await;
    assert_eq!(board.buttons()[0], Vec::<String>::new());
    scribe.done().await;
    let want = [card("Continued below"), card("Done"), last("One. Two.")];
    board.until("the answer", |shown| shown == want).await;
    driver.stop().await;
}

/// The person's own message shows what became of it; the agent works, and that is seen while it waits for nobody.
#[tokio::test]
async fn reactions_show_state_of_message() {
    for (text, fails) in [("", false), (LIVE, false), ("", true)] {
        let (_dir, store, mut scribe) = begun().await;
        let said = Inbound::new(conversation("c"), "m1".into(), "ann".into(), "hi".into());
        store.write("inbox", move |tx| inbox::insert(tx, &said).map(drop)).await.unwrap();
        let message = "UPDATE acp_runs SET requester_message_id = 'm1'";
        sql(&store, message, []).await;
        let board = Arc::new(Board { can_edit: true, signals: Some(Mutex::default()), ..Board::default() });
        let given = || board.signals.as_ref().unwrap().lock().unwrap().clone();
        let driver = drive(&store, &board, text);
        eventually("the working signal", || async { (given() == [Signal::Working]).then_some(()) }).await;
        scribe.say("One.").await;
        let message_id = "m1".to_owned();
        let end = if fails { Signal::Failed { message_id } } else { Signal::Done { message_id } };
        if fails {
            scribe.fail().await;
        } else {
            scribe.done().await;
        }
        eventually("the end signal", || async { (given().last() == Some(&end)).then_some(()) }).await;
        driver.stop().await;
    }
}

/// Nothing is said in a conversation that a person put away, also not after a restart; what waited comes once it is
/// taken out again. One that ends while it is put away is told nothing any more.
#[tokio::test]
async fn parked_conversation_gets_no_message() {
    for ends in [false, true] {
        let (_dir, store, mut scribe, board, driver) = with_card().await;
        let at = conversation("c");
        let park = move |parked| {
            let at = at.clone();
            move |tx: &acp_store::Tx<'_>| bindings::park(tx, &at, parked)
        };
        assert!(store.write("park", park(true)).await.unwrap());
        assert!(!store.write("park", park(true)).await.unwrap(), "it is already");
        scribe.say("Two. ").await;
        scribe.done().await;
        // Somebody else is told meanwhile: the driver has looked at everything.
        let other = SessionKey::parse("agent:demo:acp:2").unwrap();
        spawn(&store, session_row(&other), Some(binding_row(&other, &conversation("other")))).await;
        Scribe::claim(&store, &other).await.turn("Elsewhere.").await;
        board.until("the other one", |shown| shown.contains(&last("Elsewhere."))).await;
        driver.stop().await;
        let driver = drive(&store, &board, LIVE);
        Scribe::claim(&store, &other).await.turn("Again.").await;
        board.until("the other one again", |shown| shown.contains(&last("Again."))).await;
        assert!(!board.shown().contains(&last("One. Two.")), "{:?}", board.shown());
        if ends {
            scribe.close().await;
            assert!(!store.write("park", park(false)).await.unwrap(), "it has ended");
            nothing_is_owed(&store).await;
            assert!(!board.shown().contains(&last("One. Two.")), "{:?}", board.shown());
        } else {
            assert!(store.write("park", park(false)).await.unwrap());
            board.until("what waited", |shown| shown.contains(&last("One. Two."))).await;
        }
        driver.stop().await;
    }
}

/// What is tried again and again is not tried any more once a person puts its conversation away: that would bring it
/// back. It comes when the conversation is taken out.
#[tokio::test]
async fn retries_stop_while_conversation_is_parked() {
    tried_again(false).await;
}

/// And never again when the binding ends meanwhile: what was settled with it stays so.
#[tokio::test]
async fn retries_end_with_their_binding() {
    tried_again(true).await;
}

async fn tried_again(ends: bool) {
    let (_dir, store, due) = answered("x").await;
    let channel = faulty(&[Fault::Limit; 2_000]);
    let pass = worker(&store, &channel);
    let park = |is_parked| {
        let at = conversation("c");
        store.write("park", move |tx| bindings::park(tx, &at, is_parked))
    };
    let put_away = async {
        eventually("a first attempt", || async {
            (channel.faults.lock().unwrap().len() < 2_000).then_some(())
        })
        .await;
        assert!(park(true).await.unwrap());
        if ends {
            store.write("end", |tx| bindings::end_all(tx, &key(), "over")).await.unwrap();
        }
    };
    let (left, ()) = tokio::join!(pass.run(due.clone(), None), put_away);
    channel.faults.lock().unwrap().clear();
    if ends {
        assert!(["rejected", "uncertain"].contains(&states(&store).await[0].as_str()));
        let id = due.binding.binding_id;
        let binding = store.read("ended", move |db| bindings::get(db, id)).await.unwrap().unwrap();
        pass.run(DueBinding { binding, end: 3 }, None).await;
        assert_eq!(channel.texts(), Vec::<String>::new());
        return;
    }
    assert_eq!((left, channel.texts()), (WorkerExit::Unknown, vec![]));
    assert_eq!((pass.run(due.clone(), None).await, channel.texts()), (WorkerExit::Unknown, vec![]));
    assert!(park(false).await.unwrap());
    assert_eq!(pass.run(due, None).await, WorkerExit::At(3));
    assert_eq!((channel.texts(), states(&store).await), (vec!["x".to_owned()], vec!["sent".to_owned()]));
}
