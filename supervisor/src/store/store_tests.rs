//! The store against a real file.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::core::lease::{Bound, ProcessRecord, fixture};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Home, LeaseKind, LeaseState};

fn full() -> Lease {
    let record = |pid, inode| ProcessRecord { pid, start_ticks: u64::MAX - 3, inode };
    let mut lease = fixture::lease();
    lease.kind = LeaseKind::Terminal { parent_lease_id: LeaseId::mint(), output_bytes_max: 5 };
    lease.bound =
        Some(Bound { wrapper: record(7, Some(u64::MAX)), adapter: record(8, None), pgid: 8, sid: 7 });
    lease.state = LeaseState::Closed;
    lease.ended_at_ms = Some(9);
    lease.exit = Some(ExitStatus::Signaled(9));
    lease.stdout_base = 3;
    lease.stdout_end = 4;
    lease.released = true;
    lease.last_evidence_json = Some("{}".into());
    lease
}

#[tokio::test]
async fn what_is_saved_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let (mut plain, full) = (fixture::lease(), full());
    let known = Installation {
        gateway: GatewayInstanceId::mint(),
        uid: 5,
        home: Home { machine_id: String::new(), dev: u64::MAX, ino: 1 },
        epoch_max: 3,
    };
    let (store, writer, loaded) = Store::open(dir.path()).unwrap();
    assert!(loaded.leases.is_empty() && loaded.installations.is_empty());
    for file in std::fs::read_dir(dir.path()).unwrap() {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "nobody else reads what agents were started with");
    }
    store.save_lease(&plain).await.unwrap();
    store.save_lease(&full).await.unwrap();
    plain.state_reason = "changed".into();
    plain.exit = Some(ExitStatus::Unknown);
    store.save_lease(&plain).await.unwrap();
    store.save_installation(&known).await.unwrap();
    drop(store);
    writer.finish();

    let (store, writer, loaded) = Store::open(dir.path()).unwrap();
    assert_eq!(loaded.leases, [plain.clone(), full.clone()]);
    assert_eq!(loaded.installations, [known]);
    store.delete_leases(vec![plain.lease_id]).await.unwrap();
    drop(store);
    writer.finish();
    assert_eq!(Store::open(dir.path()).unwrap().2.leases, [full]);
}

#[tokio::test]
async fn a_row_that_is_refused_takes_no_other_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, writer, _) = Store::open(dir.path()).unwrap();
    let (good, mut bad) = (fixture::lease(), fixture::lease());
    // Bound without a tree: the schema refuses it.
    bad.state = LeaseState::Bound;
    let (first, second, third) =
        tokio::join!(store.save_lease(&bad), store.save_lease(&good), store.save_lease(&bad));
    assert!(matches!(
        (first, second, third),
        (Err(StoreError::Sqlite(_)), Ok(()), Err(StoreError::Sqlite(_)))
    ));
    drop(store);
    writer.finish();
    assert_eq!(Store::open(dir.path()).unwrap().2.leases, [good]);
}

#[test]
fn a_newer_store_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    let path = dir.path().join(STORE_FILE);
    let connection = connect(&path).unwrap();
    connection.pragma_update(None, "user_version", i64::try_from(MIGRATIONS.len()).unwrap() + 1).unwrap();
    assert!(matches!(Store::open(dir.path()), Err(StoreError::Newer { .. })));
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(usize::try_from(version).unwrap(), MIGRATIONS.len() + 1);
}

#[test]
fn the_checks_name_every_state() {
    assert!(Migrations::from_slice(MIGRATIONS).validate().is_ok());
    let sql = include_str!("migrations/0001_leases.sql");
    let list = LeaseState::ALL.map(|s| format!("'{}'", s.as_str())).join(", ");
    assert!(sql.contains(&format!("state IN ({list})")), "{list}");
}

#[tokio::test]
async fn concurrent_writers_share_commits() {
    let dir = tempfile::tempdir().unwrap();
    let (store, writer, _) = Store::open(dir.path()).unwrap();
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.save_lease(&fixture::lease()).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    drop(store);
    writer.finish();
    assert_eq!(Store::open(dir.path()).unwrap().2.leases.len(), 200);
}
