//! Group commit, and isolation of failing transactions (H19).

use super::fixtures::{count, event, insert_session, is_sqlite, key, open, open_with};
use crate::{GroupBounds, Store, StoreError, Tx, meta, params};
use acp_core::event::EventKind;
use acp_core::writes::{ActorFence, Write};
use futures_util::future::join_all;
use std::sync::mpsc::sync_channel;

/// Blocks the writer in a first transaction until everything in `work` is queued, then ends it with `end`.
/// Returns the results of the first transaction and of the work.
async fn run_behind_first<T>(
    store: &Store,
    end: fn(&Tx<'_>) -> Result<(), StoreError>,
    work: impl Future<Output = T>,
) -> (Result<(), StoreError>, T) {
    let (go, wait) = sync_channel::<()>(1);
    let mut first = Box::pin(store.write("first", move |tx| {
        wait.recv().unwrap_or_default();
        end(tx)
    }));
    let mut work = Box::pin(work);
    // Polling each once queues them in this order.
    tokio::select! {
        biased;
        _ = &mut first => panic!("the first transaction was not blocked"),
        _ = &mut work => panic!("the work ended before the first transaction"),
        () = std::future::ready(()) => {}
    }
    go.send(()).unwrap();
    tokio::join!(first, work)
}

/// Queues work behind a successful first transaction.
async fn run_queued<T>(store: &Store, work: impl Future<Output = T>) -> T {
    let (first, done) = run_behind_first(store, |_| Ok(()), work).await;
    first.unwrap();
    done
}

fn refuse(tx: &Tx<'_>, name: &str) -> Result<(), StoreError> {
    meta::set(tx, name, "x")?;
    Err(StoreError::Refused("intended"))
}

async fn put(store: &Store, name: String) -> Result<(), StoreError> {
    store.write("put", move |tx| meta::set(tx, &name, "x")).await
}

#[tokio::test]
async fn concurrent_writes_share_a_commit() {
    let (_dir, store) = open();
    let before = store.counts();
    let writes = join_all((0..50).map(|n| put(&store, format!("k{n}"))));
    for result in run_queued(&store, writes).await {
        result.unwrap();
    }
    let after = store.counts();
    assert_eq!(after.transactions - before.transactions, 51);
    assert_eq!(after.groups - before.groups, 1);
}

#[tokio::test]
async fn groups_are_bounded_by_count_and_size() {
    let (_dir, store) = open();
    let before = store.counts();
    let writes = join_all((0..600).map(|n| put(&store, format!("k{n}"))));
    run_queued(&store, writes).await;
    let after = store.counts();
    assert_eq!(after.groups - before.groups, 3, "601 transactions, at most 256 in a group");
    let big = join_all((0..4).map(|_| store.write_sized("big", 5 << 20, |_| Ok(()))));
    run_queued(&store, big).await;
    assert_eq!(store.counts().groups - after.groups, 2, "every second transaction reaches 8 MiB");
}

#[tokio::test]
async fn lone_write_is_committed_at_once() {
    let (_dir, store) = open_with(GroupBounds { events_max: 10_000, open_ms: 600_000 });
    let row = insert_session(&store, "alone").await;
    let (_, fence) = store.claim(row.session_key).await.unwrap();
    let before = store.counts();
    let commit = store.commit(fence, vec![event(1, None)]);
    tokio::time::timeout(std::time::Duration::from_secs(60), commit).await.unwrap().unwrap();
    assert_eq!(store.counts().groups - before.groups, 1);
}

#[tokio::test]
async fn journal_events_count_towards_group_limit() {
    // Two events for each of four sessions.
    for (events_max, want) in [(4, 2), (3, 2), (2, 4), (1, 4), (1_000, 1)] {
        let (_dir, store) = open_with(GroupBounds { events_max, open_ms: 600_000 });
        let mut fences = Vec::new();
        for name in ["a", "b", "c", "d"] {
            let row = insert_session(&store, name).await;
            fences.push(store.claim(row.session_key).await.unwrap().1);
        }
        let before = store.counts();
        let commits =
            fences.into_iter().map(|fence| store.commit(fence, vec![event(1, None), event(2, None)]));
        for done in run_queued(&store, join_all(commits)).await {
            done.unwrap();
        }
        // The first transaction appends no events.
        assert_eq!(store.counts().groups - before.groups, want, "{events_max} events in a commit");
    }
}

#[tokio::test]
async fn commit_group_closes_at_time_limit() {
    for (open_ms, want) in [(1, 6), (600_000, 1)] {
        let (_dir, store) = open_with(GroupBounds { events_max: 1_000, open_ms });
        let before = store.counts();
        let slow = |_| {
            store.write("slow", |_| {
                std::thread::sleep(std::time::Duration::from_millis(3));
                Ok(())
            })
        };
        let first = store.write("first", |_| {
            std::thread::sleep(std::time::Duration::from_millis(30));
            Ok(())
        });
        let (first, rest) = tokio::join!(first, join_all((0..5).map(slow)));
        first.unwrap();
        assert!(rest.into_iter().all(|done| done.is_ok()));
        assert_eq!(store.counts().groups - before.groups, want, "{open_ms} ms");
    }
}

/// The first transaction of a group has no savepoint. Its failure is rolled back, and the rest is committed.
#[tokio::test]
async fn failure_of_first_write_keeps_others_committed() {
    let (_dir, store) = open();
    let before = store.counts();
    let rest = async {
        let third = store.write("third", |tx| refuse(tx, "third"));
        tokio::join!(put(&store, "second".into()), third, put(&store, "last".into()))
    };
    let (first, (second, third, last)) = run_behind_first(&store, |tx| refuse(tx, "first"), rest).await;
    assert!(matches!(first, Err(StoreError::Refused(_))), "{first:?}");
    assert!(matches!(third, Err(StoreError::Refused(_))), "{third:?}");
    second.unwrap();
    last.unwrap();
    let after = store.counts();
    assert_eq!((after.groups - before.groups, after.rolled_back - before.rolled_back), (1, 2));
    for (name, is_committed) in [("first", false), ("second", true), ("third", false), ("last", true)] {
        let kept = store.read("kept", move |db| meta::get(db, name)).await.unwrap();
        assert_eq!(kept.is_some(), is_committed, "{name}");
    }
}

#[tokio::test]
async fn failure_of_one_write_keeps_others_committed() {
    let (_dir, store) = open();
    let before = store.counts();
    let writes = async {
        tokio::join!(
            put(&store, "before".into()),
            store.write("bad", |tx| refuse(tx, "bad")),
            store.write("worse", |tx| {
                meta::set(tx, "worse", "x")?;
                tx.run_all("INSERT INTO acp_meta (key, value) VALUES ('worse', 'again')")
            }),
            store.write("panic", |tx| {
                meta::set(tx, "panic", "x")?;
                assert!(!tx.is_in_transaction(), "intended panic");
                Ok(())
            }),
            put(&store, "after".into()),
        )
    };
    let (one, bad, worse, panicked, two) = run_queued(&store, writes).await;
    one.unwrap();
    two.unwrap();
    assert!(matches!(bad, Err(StoreError::Refused(_))), "{bad:?}");
    assert!(matches!(worse, Err(StoreError::Sqlite(_) | StoreError::Postgres(_))), "{worse:?}");
    assert!(matches!(panicked, Err(StoreError::Panicked { name: "panic" })), "{panicked:?}");
    let after = store.counts();
    assert_eq!(after.groups - before.groups, 1);
    assert_eq!(after.rolled_back - before.rolled_back, 3);
    let kept = async |name: &'static str| store.read("kept", move |db| meta::get(db, name)).await.unwrap();
    for (name, is_committed) in
        [("before", true), ("bad", false), ("worse", false), ("panic", false), ("after", true)]
    {
        assert_eq!(kept(name).await.is_some(), is_committed, "{name}");
    }
}

/// A write that nothing waits for is refused by a server once the next transaction has begun: none of the group is
/// acknowledged. SQLite refuses it at once.
#[tokio::test]
async fn write_that_is_refused_later_acknowledges_nothing_of_its_group() {
    let (_dir, store) = open();
    put(&store, "taken".into()).await.unwrap();
    let late = |tx: &Tx<'_>| {
        meta::set(tx, "late", "x")?;
        tx.run_later("INSERT INTO acp_meta (key, value) VALUES (?1, ?2)", params!["taken", "again"])
    };
    let writes = async {
        tokio::join!(put(&store, "before".into()), store.write("late", late), put(&store, "after".into()))
    };
    let (_, (before, refused, after)) = run_behind_first(&store, |_| Ok(()), writes).await;
    refused.unwrap_err();
    assert_eq!((before.is_ok(), after.is_ok()), (is_sqlite(), is_sqlite()), "{before:?} {after:?}");
    for (name, is_there) in [("before", is_sqlite()), ("late", false), ("after", is_sqlite())] {
        let found = store.read("kept", move |db| meta::get(db, name)).await.unwrap();
        assert_eq!(found.is_some(), is_there, "{name}");
    }
    put(&store, "later".into()).await.unwrap();
}

#[tokio::test]
async fn failed_group_commit_acknowledges_nothing() {
    let (_dir, store) = open();
    let break_commit = store.write("break commit", |tx| {
        // Only deferred constraints fail at COMMIT.
        tx.sqlite().unwrap().pragma_update(None, "defer_foreign_keys", true)?;
        let row =
            "INSERT INTO acp_delivery_checkpoint (run_id, last_event_seq, updated_at) VALUES ('none', 0, 0)";
        Ok(tx.sqlite().unwrap().execute_batch(row)?)
    });
    let writes = async { tokio::join!(put(&store, "same group".into()), break_commit) };
    let before = store.counts();
    let (first, (other, broken)) = run_behind_first(&store, |_| Ok(()), writes).await;
    assert!(first.is_err() && other.is_err() && broken.is_err(), "{first:?} {other:?} {broken:?}");
    assert_eq!(store.counts().groups_lost - before.groups_lost, 1);
    assert_eq!(store.read("kept", |db| meta::get(db, "same group")).await.unwrap(), None);
    put(&store, "next".into()).await.unwrap();
}

#[tokio::test]
async fn full_disk_is_reported_and_recovered() {
    let (_dir, store) = open();
    let row = insert_session(&store, "s").await;
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    let limit = async |pages: i64| {
        store
            .write("limit", move |tx| {
                tx.sqlite().unwrap().query_row(
                    &format!("PRAGMA max_page_count = {pages}"),
                    [],
                    |_| Ok(()),
                )?;
                Ok(())
            })
            .await
            .unwrap();
    };
    let pages: i64 = store
        .read("pages", |db| Ok(db.sqlite().unwrap().query_row("PRAGMA page_count", [], |row| row.get(0))?))
        .await
        .unwrap();
    limit(pages + 100).await;
    let large = |session_seq| Write::Event {
        session_seq,
        run: None,
        kind: EventKind::AgentMessage,
        payload: format!("\"{}\"", "x".repeat(100_000)),
        extra: None,
    };
    let mut last = 0;
    let error = loop {
        match store.commit(fence.clone(), vec![large(last + 1)]).await {
            Ok(()) => last += 1,
            Err(error) => break error,
        }
        assert!(last < 100, "the database never became full");
    };
    assert!(matches!(error, StoreError::Full), "{error:?}");
    assert!(last > 0);
    // A small transaction queued with one that does not fit is either committed or reported as lost.
    let (small, large_result) = tokio::join!(
        store.write("small", |tx| meta::set(tx, "small", "x")),
        store.commit(fence.clone(), vec![large(last + 1)])
    );
    assert!(matches!(large_result, Err(StoreError::Full)), "{large_result:?}");
    let kept = store.read("kept", |db| meta::get(db, "small")).await.unwrap();
    assert_eq!(kept.is_some(), small.is_ok(), "{small:?}");
    assert_eq!(count(&store, "acp_events").await, last);
    limit(1_000_000).await;
    store.commit(fence, vec![large(last + 1), event(last + 2, None)]).await.unwrap();
    assert_eq!(count(&store, "acp_events").await, last + 2);
}

#[tokio::test]
async fn watchers_are_notified_of_commits_only() {
    let (_dir, store) = open();
    let row = insert_session(&store, "s").await;
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    let mut seen = store.watch(&row.session_key);
    let mut any = store.committed();
    any.mark_unchanged();
    let stale = ActorFence { epoch: 0, ..fence.clone() };
    assert!(store.commit(stale, vec![event(1, None)]).await.is_err());
    assert!(!seen.has_changed().unwrap());
    store.commit(fence, vec![event(1, None), event(2, None)]).await.unwrap();
    assert!(seen.has_changed().unwrap());
    assert_eq!(*seen.borrow_and_update(), 2);
    assert!(any.has_changed().unwrap());
    assert!(!store.watch(&key("other")).has_changed().unwrap());
}

#[tokio::test]
async fn panicking_read_affects_only_itself() {
    let (_dir, store) = open();
    for _ in 0..20 {
        let result = store.read("panic", |db| -> Result<(), StoreError> {
            assert!(!db.is_in_transaction(), "intended panic");
            Ok(())
        });
        assert!(matches!(result.await, Err(StoreError::Panicked { name: "panic" })));
    }
    assert_eq!(count(&store, "acp_sessions").await, 0);
}

#[tokio::test]
async fn idle_store_makes_a_checkpoint() {
    let (_dir, store) = open();
    put(&store, "k".into()).await.unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while store.counts().checkpoints == 0 {
        assert!(std::time::Instant::now() < deadline, "no checkpoint was made");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// The header of a log is synced before its first transaction: the next caller does not wait for that.
#[tokio::test]
async fn idle_store_makes_a_new_log() {
    let (dir, store) = open();
    // Number of the checkpoints before this log.
    let number = || std::fs::read(dir.path().join("gateway.db-wal")).unwrap()[12..16].to_vec();
    put(&store, "k".into()).await.unwrap();
    let first = number();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while number() == first {
        assert!(std::time::Instant::now() < deadline, "no new log was begun");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let second = number();
    put(&store, "l".into()).await.unwrap();
    assert_eq!(number(), second, "the transaction is in the new log");
    assert_eq!(count(&store, "acp_meta WHERE key = 'new_log'").await, 0);
}
