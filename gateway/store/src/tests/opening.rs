//! Opening a state directory: locks, copies and versions.

use super::fixtures::{event, insert_session, lease, open, run, session, spawn_tx};
use crate::offline::adopt;
use crate::schema::DB_FILE;
use crate::{Durability, Store, StoreError};
use acp_core::rows::{LeaseStatus, SessionRow};
use acp_core::run::RunState;
use acp_core::writes::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[tokio::test]
async fn second_open_is_refused_while_first_is_open() {
    let (dir, store) = open();
    match Store::open(dir.path(), Durability::Full) {
        Err(error @ StoreError::Locked { .. }) => {
            assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(adopt(dir.path()), Err(StoreError::Locked { .. })));
    store.close().await;
    let again = Store::open(dir.path(), Durability::Full).unwrap();
    again.close().await;
}

#[tokio::test]
async fn files_are_private() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(DB_FILE), b"").unwrap();
    std::fs::set_permissions(dir.path().join(DB_FILE), std::fs::Permissions::from_mode(0o644)).unwrap();
    let store = Store::open(dir.path(), Durability::Full).unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
        seen += 1;
    }
    assert!(seen >= 3, "expected lock, database and log, found {seen} files");
    store.close().await;
}

#[tokio::test]
async fn identity_is_stable_and_epoch_counts_starts() {
    let (dir, store) = open();
    let first = store.identity().clone();
    assert_eq!(first.epoch, 1);
    store.close().await;
    let store = Store::open(dir.path(), Durability::Normal).unwrap();
    assert_eq!(store.identity().instance_id, first.instance_id);
    assert_eq!(store.identity().epoch, 2);
    store.close().await;
}

#[tokio::test]
async fn copy_is_refused_until_adopted() {
    let (dir, store) = open();
    let row = session("s");
    store.spawn_session(spawn_tx(row.clone())).await.unwrap();
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    let held = lease(&row.session_key);
    let running = run(&row.session_key, RunState::Running);
    let owner = SessionRow { lease_id: Some(held.lease_id), ..row.clone() };
    let writes = vec![
        Write::NewLease(Box::new(held)),
        Write::Session(Box::new(owner)),
        Write::Run(Box::new(running.clone())),
        event(1, Some((running.run_id, 1))),
    ];
    store.commit(fence, writes).await.unwrap();
    let original = store.identity().clone();
    store.close().await;

    let copied = tempfile::tempdir().unwrap();
    copy(dir.path(), copied.path());
    match Store::open(copied.path(), Durability::Full) {
        Err(error @ StoreError::Cloned { .. }) => assert!(error.to_string().contains("adopt"), "{error}"),
        other => panic!("{other:?}"),
    }
    let fresh = adopt(copied.path()).unwrap();
    let store = Store::open(copied.path(), Durability::Full).unwrap();
    assert_eq!(store.identity().instance_id, fresh);
    assert_ne!(fresh, original.instance_id);
    assert_eq!(store.leases_in_use().await.unwrap(), []);
    let (snapshot, _) = store.claim(row.session_key.clone()).await.unwrap();
    assert_eq!(snapshot.session.lease_id, None);
    assert_eq!(snapshot.session.gateway_instance_id, fresh);
    assert_eq!(snapshot.runs.len(), 1, "the run is left for its actor to end");
    store.close().await;

    let store = Store::open(dir.path(), Durability::Full).unwrap();
    assert_eq!(store.identity().instance_id, original.instance_id);
    assert_eq!(store.leases_in_use().await.unwrap()[0].usage, LeaseStatus::Intended);
    store.close().await;
}

#[tokio::test]
async fn open_refuses_newer_database() {
    let (dir, store) = open();
    store.write("age", |tx| Ok(tx.sqlite().unwrap().pragma_update(None, "user_version", 99)?)).await.unwrap();
    store.close().await;
    match Store::open(dir.path(), Durability::Full) {
        Err(error @ StoreError::Newer { found: 99, known }) => {
            assert_eq!(usize::try_from(known).unwrap(), crate::schema::MIGRATIONS.len());
            let text = error.to_string();
            assert!(text.contains("99") && text.contains(&known.to_string()), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn closed_store_refuses_calls_on_every_clone() {
    let (_dir, store) = open();
    let copied = store.clone();
    store.close().await;
    assert!(matches!(copied.write("late", |_| Ok(())).await, Err(StoreError::Closed)));
    assert!(matches!(copied.read("late", |_| Ok(())).await, Err(StoreError::Closed)));
    copied.close().await;
}

#[tokio::test]
async fn durability_sets_synchronous_pragma() {
    for (durability, want) in [(Durability::Full, 2_i64), (Durability::Normal, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), durability).unwrap();
        let read_pragma = |tx: &crate::Tx<'_>| -> Result<i64, StoreError> {
            Ok(tx.sqlite().unwrap().pragma_query_value(None, "synchronous", |row| row.get(0))?)
        };
        assert_eq!(store.write("look", read_pragma).await.unwrap(), want, "{durability:?}");
    }
}

/// Each host learns of an accepted loss, and sees the event id from before the starts that it did not admit.
#[tokio::test]
async fn hosts_admit_a_start_one_by_one() {
    let (dir, store) = open();
    insert_session(&store, "s").await;
    store.close().await;
    let db = crate::open::open_writer(dir.path(), Durability::Full).unwrap();
    crate::identity::accept_loss(&db, 1).unwrap();
    db.close().unwrap();
    let hosts = ["local", "big1"].map(str::to_owned).to_vec();
    let mut shown = Vec::new();
    for (seq, admitted) in [(1, "local"), (2, "local"), (3, "big1"), (4, "")] {
        let store = Store::open(dir.path(), Durability::Full).unwrap();
        store.begin_admissions(hosts.clone()).await.unwrap();
        let (_, fence) = store.claim(session("s").session_key).await.unwrap();
        store.commit(fence, vec![event(seq, None)]).await.unwrap();
        if !admitted.is_empty() {
            store.settle_admission(admitted).await.unwrap();
        }
        for host in &hosts {
            let marks = store.marks(host).await.unwrap();
            shown.push((marks.event_id, marks.accepts_loss));
        }
        store.close().await;
    }
    let want = [(1, false), (0, true), (2, false), (0, true), (2, false), (3, false), (2, false), (3, false)];
    assert_eq!(shown, want);
}

/// A database that is served without a supervisor shows the event of the first such start, whatever is written since.
#[tokio::test]
async fn shown_event_id_is_from_before_unadmitted_starts() {
    let (dir, mut store) = open();
    insert_session(&store, "s").await;
    let (mut last, mut shown) = (0, Vec::new());
    for is_admitted in [true, false, false, true, false] {
        if is_admitted {
            store.settle_admission("local").await.unwrap();
        }
        let (_, fence) = store.claim(session("s").session_key).await.unwrap();
        last += 1;
        store.commit(fence, vec![event(last, None)]).await.unwrap();
        shown.push(store.marks("local").await.unwrap().event_id);
        store.close().await;
        store = Store::open(dir.path(), Durability::Full).unwrap();
        store.begin_admissions(vec!["local".to_owned()]).await.unwrap();
    }
    assert_eq!(shown, [1, 1, 1, 4, 4]);
    store.close().await;
}
