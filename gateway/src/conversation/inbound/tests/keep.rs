//! Slash commands and clicks: kept before they are called taken, done once, and told by who brought them or in the
//! conversation.

use super::changes::{PATIENCE, by_caller};
use super::*;
use crate::channel::{InboundPort, IntakeOutcome, ReplyReservation, ReserveOutcome};
use acp_store::codec;
use std::sync::mpsc;
use std::time::Duration;

async fn claimed(inlet: &InboundService, said: &Inbound) -> ReplyReservation {
    match inlet.reserve(said.clone(), PATIENCE).await {
        ReserveOutcome::Reserved(claim) => claim,
        other => panic!("{other:?}"),
    }
}

async fn is_duplicate(inlet: &InboundService, said: &Inbound) -> bool {
    matches!(inlet.reserve(said.clone(), PATIENCE).await, ReserveOutcome::Duplicate)
}

/// What nobody could reply is said in the conversation: once, however often it is tried or repeated, by the next process
/// or by this one. It was done before, or is done then.
async fn is_told_there_once(is_done: bool, (text, effects, want): (&str, usize, &str)) {
    for is_killed in [true, false] {
        let (_dir, store, fake, inlet) = bound_ground().await;
        let said = by_caller("i1", text);
        let claim = claimed(&inlet, &said).await;
        if is_done {
            assert!(matches!(inlet.offer(said.clone()).await, IntakeOutcome::Accepted(_)));
            assert_eq!((fake.effects().len(), heard(&store).await), (effects, vec![]), "{text}");
        }
        let next = if is_killed { super::inlet(&store, &fake) } else { inlet };
        drop(claim);
        assert_eq!(next.resume().await.unwrap(), 1, "{text}");
        assert_eq!(next.resume().await.unwrap(), 0, "{text}");
        let said_there = heard(&store).await;
        assert_eq!((said_there.len(), fake.effects().len()), (1, effects), "{text}: {said_there:?}");
        assert!(said_there[0].1.starts_with(want), "{text}: {said_there:?}");
        // What Discord repeats after that is neither done nor said again.
        assert!(is_duplicate(&next, &said).await);
        assert_eq!(heard(&store).await, said_there);
    }
}

/// What the gateway said in the conversation.
async fn heard(store: &Store) -> Vec<(String, String)> {
    shown(store).await.into_iter().filter(|(kind, _)| kind != "person").collect()
}

async fn rows(store: &Store) -> Vec<(String, String)> {
    let of =
        |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>("message_id")?, row.get::<_, String>("state")?));
    let sql = "SELECT message_id, state FROM acp_inbox ORDER BY rowid";
    store.read("rows", move |db| codec::all(db, sql, [], of)).await.unwrap()
}

fn row(id: &str, state: &str) -> (String, String) {
    (id.to_owned(), state.to_owned())
}

#[tokio::test]
async fn reserved_interaction_runs_once_by_its_caller() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let said = by_caller("i1", "/acp cancel");
    let claim = claimed(&inlet, &said).await;
    assert!(claim.is_new());
    let kept = (rows(&store).await, fake.effects());
    assert_eq!(kept, (vec![row("i1", "received")], vec![]), "stored, not executed");
    assert!(is_duplicate(&inlet, &said).await, "it is reserved");
    assert_eq!(inlet.resume().await.unwrap(), 0, "nothing else executes it");
    let IntakeOutcome::Accepted(told) = inlet.offer(said.clone()).await else { panic!() };
    assert!(told.text.contains("has no running turn"), "{told:?}");
    assert_eq!(rows(&store).await, vec![row("i1", "received")], "executed, without a reply");
    assert_eq!(inlet.resume().await.unwrap(), 0, "the caller still holds it");
    assert!(inlet.mark_replied(said.clone(), None).await);
    drop(claim);
    assert!(is_duplicate(&inlet, &said).await, "it is settled");
    assert_eq!(inlet.resume().await.unwrap(), 0, "no second reply");
    assert_eq!((rows(&store).await, fake.effects().len()), (vec![row("i1", "routed")], 1));
    assert_eq!(heard(&store).await, []);
    let ReserveOutcome::NotReserved { why } = inlet.reserve(by_caller("i2", " "), PATIENCE).await else {
        panic!()
    };
    assert!(why.contains("empty"), "{why}");
}

/// A kill between what was kept and what its caller would have said: it is done once by the next process, or by this one
/// when its caller gave up, and the conversation is told. What is for one person alone is not said there.
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
        is_told_there_once(false, row).await;
    }
}

/// A kill between what was done and the answer of who brought it, or an answer that cannot be given: it is not done again,
/// and the conversation is told once. What is for one person alone is not said there.
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
        is_told_there_once(true, (text, effects, &want)).await;
    }
}

/// What the gateway begins to say by itself after a kill is the same after another one, whoever was at it meanwhile.
#[tokio::test]
async fn late_result_notice_is_unchanged_after_second_kill() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let said = by_caller("i1", "/acp cancel");
    drop(claimed(&inlet, &said).await);
    // Done without whoever brought it, and killed before it was said.
    let text = "Nothing runs.".to_owned();
    let outcome = Outcome::Command { session_key: None, run_id: None, text, is_shown: false };
    let kept = said.clone();
    store.write("record", move |tx| inbox::record(tx, &kept, &outcome, false)).await.unwrap();
    let next = super::inlet(&store, &fake);
    assert_eq!(next.resume().await.unwrap(), 1);
    assert_eq!(heard(&store).await, [line("notice", "`/acp cancel` of “ann” was executed late.")]);
    assert_eq!(fake.effects().len(), 0, "it was executed before");
}

/// One that is repeated before it was done is taken up where it was.
#[tokio::test]
async fn repeated_interaction_after_kill_is_not_new() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let said = by_caller("i1", "/acp cancel");
    drop(claimed(&inlet, &said).await);
    let next = super::inlet(&store, &fake);
    let claim = claimed(&next, &said).await;
    assert!(!claim.is_new());
    let IntakeOutcome::Accepted(told) = next.offer(said).await else { panic!() };
    assert!(told.text.contains("has no running turn"), "{told:?}");
    assert_eq!((heard(&store).await, fake.effects().len()), (vec![], 1));
}

#[tokio::test]
async fn withdrawn_interaction_does_not_run() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let said = by_caller("i1", "/acp cancel");
    let claim = claimed(&inlet, &said).await;
    assert!(inlet.withdraw(said.clone()).await);
    drop(claim);
    assert_eq!(inlet.resume().await.unwrap(), 0);
    assert!(is_duplicate(&inlet, &said).await);
    let left = (rows(&store).await, fake.effects(), heard(&store).await);
    assert_eq!(left, (vec![row("i1", "refused")], vec![], vec![]));
    // What is done cannot be taken back.
    let done = by_caller("i2", "/acp cancel");
    let _claim = claimed(&inlet, &done).await;
    inlet.offer(done.clone()).await;
    assert!(!inlet.withdraw(done.clone()).await);
    assert!(inlet.mark_replied(done, None).await);
    assert_eq!(rows(&store).await[1], row("i2", "routed"));
}

/// A writer that is held up until it is let go.
async fn held_up(store: &Store) -> (mpsc::SyncSender<()>, tokio::task::JoinHandle<()>) {
    let ((go, wait), (begun, begins)) = (mpsc::sync_channel(1), tokio::sync::oneshot::channel());
    let store = store.clone();
    let task = tokio::spawn(async move {
        let hold = move |_: &acp_store::Tx<'_>| {
            begun.send(()).unwrap();
            wait.recv().unwrap();
            Ok(())
        };
        store.write("hold", hold).await.unwrap();
    });
    begins.await.unwrap();
    (go, task)
}

/// Who was told that nothing was done can rely on it.
#[tokio::test]
async fn reservation_after_deadline_is_discarded() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let (go, task) = held_up(&store).await;
    let said = by_caller("i1", "/acp cancel");
    let ReserveOutcome::NotReserved { why } = inlet.reserve(said.clone(), Duration::from_millis(50)).await
    else {
        panic!()
    };
    assert!(why.contains("busy"), "{why}");
    go.send(()).unwrap();
    task.await.unwrap();
    store.write("after", |_| Ok(())).await.unwrap();
    assert_eq!((rows(&store).await, fake.effects()), (vec![], vec![]));
    assert!(claimed(&inlet, &said).await.is_new(), "it can be repeated");
}

/// A commit that is under way when patience ends: nobody knows, and if it is kept it is done and told.
#[tokio::test]
async fn uncertain_reservation_runs_if_committed() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let (first, begun) = held_up(&store).await;
    let (go, wait) = mpsc::sync_channel(1);
    let rest = async {
        // Into the same commit, behind what is kept.
        let hold = store.write("hold", move |_| {
            wait.recv().unwrap();
            Ok(())
        });
        let release = async { first.send(()).unwrap() };
        tokio::join!(hold, release).0.unwrap();
    };
    let keep = async {
        let kept = inlet.reserve(by_caller("i1", "/acp cancel"), Duration::from_secs(3)).await;
        // Whoever does what is left is told when there is something to be found, not before.
        let early =
            tokio::time::timeout(Duration::from_millis(50), inlet.inner.retry_needed.notified()).await;
        assert!(early.is_err(), "nothing is committed yet");
        go.send(()).unwrap();
        kept
    };
    let (kept, ()) = tokio::join!(keep, rest);
    assert!(matches!(kept, ReserveOutcome::Unknown { .. }), "{kept:?}");
    begun.await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), inlet.inner.retry_needed.notified()).await.unwrap();
    assert_eq!(inlet.resume().await.unwrap(), 1);
    assert_eq!(heard(&store).await, [line("notice", "`/acp cancel` of “ann” was executed late.")]);
    assert_eq!(fake.effects().len(), 1);
}
