//! Interactions: reserved before their acknowledgement, run once, answered by the caller or in the
//! conversation.

use super::changes::{RESERVE_TIMEOUT, interaction};
use super::*;
use crate::channel::{InboundPort, IntakeOutcome, ReplyReservation, ReserveOutcome};
use std::sync::mpsc;
use std::time::Duration;

async fn reserve(service: &InboundService, inbound: &Inbound) -> ReplyReservation {
    match service.reserve(inbound.clone(), RESERVE_TIMEOUT).await {
        ReserveOutcome::Reserved(reservation) => reservation,
        other => panic!("{other:?}"),
    }
}

async fn is_duplicate(service: &InboundService, inbound: &Inbound) -> bool {
    matches!(service.reserve(inbound.clone(), RESERVE_TIMEOUT).await, ReserveOutcome::Duplicate)
}

/// Asserts that a reply its caller could not give is posted in the conversation once, despite repeats and
/// restarts. The command ran before, or runs then.
async fn assert_posted_once(has_run: bool, (text, effects, want): (&str, usize, &str)) {
    for is_killed in [true, false] {
        let (_dir, store, fake, service) = bound_service().await;
        let inbound = interaction("i1", text);
        let reservation = reserve(&service, &inbound).await;
        if has_run {
            assert!(matches!(service.offer(inbound.clone()).await, IntakeOutcome::Accepted(_)));
            assert_eq!((fake.effects().len(), gateway_messages(&store).await), (effects, vec![]), "{text}");
        }
        let next = if is_killed { super::service(&store, &fake) } else { service };
        drop(reservation);
        assert_eq!(next.resume().await.unwrap(), 1, "{text}");
        assert_eq!(next.resume().await.unwrap(), 0, "{text}");
        let posted = gateway_messages(&store).await;
        assert_eq!((posted.len(), fake.effects().len()), (1, effects), "{text}: {posted:?}");
        assert!(posted[0].1.starts_with(want), "{text}: {posted:?}");
        // A repetition by Discord has no further effect.
        assert!(is_duplicate(&next, &inbound).await);
        assert_eq!(gateway_messages(&store).await, posted);
    }
}

async fn gateway_messages(store: &Store) -> Vec<(String, String)> {
    shown(store).await.into_iter().filter(|(kind, _)| kind != "person").collect()
}

async fn rows(store: &Store) -> Vec<(String, String)> {
    let sql = "SELECT message_id, state FROM acp_inbox ORDER BY rowid";
    let rows =
        store.read("rows", move |db| db.all(sql, &[], |row| Ok((row.get("message_id")?, row.get("state")?))));
    rows.await.unwrap()
}

fn row(id: &str, state: &str) -> (String, String) {
    (id.to_owned(), state.to_owned())
}

#[tokio::test]
async fn reserved_interaction_runs_once_by_its_caller() {
    let (_dir, store, fake, service) = bound_service().await;
    let inbound = interaction("i1", "/acp cancel");
    let reservation = reserve(&service, &inbound).await;
    assert!(reservation.is_new());
    let state = (rows(&store).await, fake.effects());
    assert_eq!(state, (vec![row("i1", "received")], vec![]), "stored, not executed");
    assert!(is_duplicate(&service, &inbound).await, "the id is reserved");
    assert_eq!(service.resume().await.unwrap(), 0, "nothing else executes it");
    let IntakeOutcome::Accepted(reply) = service.offer(inbound.clone()).await else { panic!() };
    assert!(reply.text.contains("has no running turn"), "{reply:?}");
    assert_eq!(rows(&store).await, vec![row("i1", "received")], "executed, without a reply");
    assert_eq!(service.resume().await.unwrap(), 0, "the caller holds the reservation");
    assert!(service.mark_replied(inbound.clone(), None).await);
    drop(reservation);
    assert!(is_duplicate(&service, &inbound).await, "the id is settled");
    assert_eq!(service.resume().await.unwrap(), 0, "no second reply");
    assert_eq!((rows(&store).await, fake.effects().len()), (vec![row("i1", "routed")], 1));
    assert_eq!(gateway_messages(&store).await, []);
    let ReserveOutcome::NotReserved { why } = service.reserve(interaction("i2", " "), RESERVE_TIMEOUT).await
    else {
        panic!()
    };
    assert!(why.contains("empty"), "{why}");
}

/// After a kill between reservation and execution, or an abandoned reservation, the command runs once, and
/// the conversation gets a notice without private content.
#[tokio::test]
async fn abandoned_reservation_runs_once_with_notice() {
    for row in [
        ("/acp cancel", 1, "`/acp cancel` of “ann” was executed late."),
        ("/acp model big", 1, "`/acp model` of “ann” was executed late: The model is big"),
        (
            "/acp help",
            0,
            "`/acp help` of “ann” was executed late. Its reply is private: use the command again.",
        ),
        ("/acp close agent:demo:acp:9", 0, "`/acp close` of “ann” could not be executed: "),
        (
            "/acp answer 01890a5d-ac96-774b-bcce-b302099a8057:99 1",
            0,
            "`/acp answer` of “ann” could not be executed: its permission request is settled. Next: /acp \
             permissions lists the pending requests.",
        ),
        (
            "/acp answer nothing 1",
            0,
            "`/acp answer` of “ann” could not be executed: it matched no single pending permission request. \
             Next: /acp permissions",
        ),
    ] {
        assert_posted_once(false, row).await;
    }
}

/// After a kill between execution and reply, or a failed reply, the command does not run again, and the
/// conversation gets one notice without private content.
#[tokio::test]
async fn unreported_result_is_posted_in_conversation_once() {
    let lost = "reply may not have been delivered";
    for (text, effects, want) in [
        ("/acp cancel", 1, format!("`/acp cancel` of “ann” was executed, but its {lost}.")),
        (
            "/acp model big",
            1,
            format!("`/acp model` of “ann” was executed, but its {lost}: The model is big"),
        ),
        (
            "/acp help",
            0,
            format!(
                "`/acp help` of “ann” was executed, but its {lost}. Its reply is private: use the command again."
            ),
        ),
        (
            "/acp close agent:demo:acp:9",
            0,
            format!("`/acp close` of “ann” could not be executed, and its {lost}: "),
        ),
    ] {
        assert_posted_once(true, (text, effects, &want)).await;
    }
}

#[tokio::test]
async fn late_result_notice_is_unchanged_after_second_kill() {
    let (_dir, store, fake, service) = bound_service().await;
    let inbound = interaction("i1", "/acp cancel");
    drop(reserve(&service, &inbound).await);
    // Executed without its caller, and killed before the notice.
    let text = "Nothing runs.".to_owned();
    let outcome = Outcome::Command { session_key: None, run_id: None, text, is_shown: false };
    let recorded = inbound.clone();
    store.write("record", move |tx| inbox::record(tx, &recorded, &outcome, false)).await.unwrap();
    let next = super::service(&store, &fake);
    assert_eq!(next.resume().await.unwrap(), 1);
    assert_eq!(gateway_messages(&store).await, [line("notice", "`/acp cancel` of “ann” was executed late.")]);
    assert_eq!(fake.effects().len(), 0, "it was executed before");
}

/// A repetition before execution continues the reservation.
#[tokio::test]
async fn repeated_interaction_after_kill_is_not_new() {
    let (_dir, store, fake, service) = bound_service().await;
    let inbound = interaction("i1", "/acp cancel");
    drop(reserve(&service, &inbound).await);
    let next = super::service(&store, &fake);
    let reservation = reserve(&next, &inbound).await;
    assert!(!reservation.is_new());
    let IntakeOutcome::Accepted(reply) = next.offer(inbound).await else { panic!() };
    assert!(reply.text.contains("has no running turn"), "{reply:?}");
    assert_eq!((gateway_messages(&store).await, fake.effects().len()), (vec![], 1));
}

#[tokio::test]
async fn withdrawn_interaction_does_not_run() {
    let (_dir, store, fake, service) = bound_service().await;
    let inbound = interaction("i1", "/acp cancel");
    let reservation = reserve(&service, &inbound).await;
    assert!(service.withdraw(inbound.clone()).await);
    drop(reservation);
    assert_eq!(service.resume().await.unwrap(), 0);
    assert!(is_duplicate(&service, &inbound).await);
    let state = (rows(&store).await, fake.effects(), gateway_messages(&store).await);
    assert_eq!(state, (vec![row("i1", "refused")], vec![], vec![]));
    // An executed command cannot be withdrawn.
    let done = interaction("i2", "/acp cancel");
    let _claim = reserve(&service, &done).await;
    service.offer(done.clone()).await;
    assert!(!service.withdraw(done.clone()).await);
    assert!(service.mark_replied(done, None).await);
    assert_eq!(rows(&store).await[1], row("i2", "routed"));
}

async fn block_writer(store: &Store) -> (mpsc::SyncSender<()>, tokio::task::JoinHandle<()>) {
    let ((release, wait), (started_turn, begins)) = (mpsc::sync_channel(1), tokio::sync::oneshot::channel());
    let store = store.clone();
    let task = tokio::spawn(async move {
        let hold = move |_: &acp_store::Tx<'_>| {
            started_turn.send(()).unwrap();
            wait.recv().unwrap();
            Ok(())
        };
        store.write("hold", hold).await.unwrap();
    });
    begins.await.unwrap();
    (release, task)
}

/// A reservation reported as refused is never executed.
#[tokio::test]
async fn reservation_after_deadline_is_discarded() {
    let (_dir, store, fake, service) = bound_service().await;
    let (release, task) = block_writer(&store).await;
    let inbound = interaction("i1", "/acp cancel");
    let ReserveOutcome::NotReserved { why } =
        service.reserve(inbound.clone(), Duration::from_millis(50)).await
    else {
        panic!()
    };
    assert!(why.contains("busy"), "{why}");
    release.send(()).unwrap();
    task.await.unwrap();
    store.write("after", |_| Ok(())).await.unwrap();
    assert_eq!((rows(&store).await, fake.effects()), (vec![], vec![]));
    assert!(reserve(&service, &inbound).await.is_new(), "it can be repeated");
}

/// A commit still running at the timeout is uncertain; if it succeeds, the command runs and is answered.
#[tokio::test]
async fn uncertain_reservation_runs_if_committed() {
    let (_dir, store, fake, service) = bound_service().await;
    let (first, started_turn) = block_writer(&store).await;
    let (release, wait) = mpsc::sync_channel(1);
    let rest = async {
        // Joins the same commit, behind the reservation.
        let hold = store.write("hold", move |_| {
            wait.recv().unwrap();
            Ok(())
        });
        let unblock = async { first.send(()).unwrap() };
        tokio::join!(hold, unblock).0.unwrap();
    };
    let reserving = async {
        let outcome = service.reserve(interaction("i1", "/acp cancel"), Duration::from_secs(3)).await;
        // The retry worker is notified after the commit, not before.
        let early =
            tokio::time::timeout(Duration::from_millis(50), service.inner.retry_needed.notified()).await;
        assert!(early.is_err(), "nothing is committed yet");
        release.send(()).unwrap();
        outcome
    };
    let (outcome, ()) = tokio::join!(reserving, rest);
    assert!(matches!(outcome, ReserveOutcome::Unknown { .. }), "{outcome:?}");
    started_turn.await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), service.inner.retry_needed.notified()).await.unwrap();
    assert_eq!(service.resume().await.unwrap(), 1);
    assert_eq!(gateway_messages(&store).await, [line("notice", "`/acp cancel` of “ann” was executed late.")]);
    assert_eq!(fake.effects().len(), 1);
}
