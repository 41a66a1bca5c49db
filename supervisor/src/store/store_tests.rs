//! The store on a real file.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::core::lease::{BoundProcesses, ProcessRecord, fixture};
use crate::core::marks::Progress;
use acp_shared::ids::{GatewayInstanceId, StartId};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Home, LeaseKind, LeaseState};

fn full() -> Lease {
    let record = |pid, inode| ProcessRecord { pid, start_ticks: u64::MAX - 3, inode };
    let (wrapper, adapter) = (record(7, Some(u64::MAX)), record(8, None));
    Lease {
        kind: LeaseKind::Terminal { parent_lease_id: LeaseId::mint(), output_bytes_max: 5 },
        bound: Some(BoundProcesses { wrapper, adapter, pgid: 8, sid: 7 }),
        state: LeaseState::Closed,
        ended_at_ms: Some(9),
        exit: Some(ExitStatus::Signaled(9)),
        stdout_base: 3,
        stdout_end: 4,
        released: true,
        last_evidence_json: Some("{}".into()),
        ..fixture::lease()
    }
}

/// New store in a new directory.
fn created() -> (tempfile::TempDir, Store, Writer) {
    let dir = tempfile::tempdir().unwrap();
    let (store, writer, _) = Store::open(dir.path()).unwrap();
    (dir, store, writer)
}

/// Drops a store and waits for its thread.
fn close(store: Store, writer: Writer) {
    drop(store);
    writer.finish();
}

/// Leases on disk.
fn stored(dir: &tempfile::TempDir) -> Vec<Lease> {
    Store::open(dir.path()).unwrap().2.leases
}

/// Installation of a user.
fn installation(uid: u32) -> Installation {
    Installation {
        gateway: GatewayInstanceId::mint(),
        uid,
        home: Home { machine_id: String::new(), dev: u64::MAX, ino: 1 },
        epoch_max: 3,
        progress: Progress { start_id: Some(StartId::mint()), event_id: u64::MAX, loss_accepted_ms: Some(7) },
        damaged: None,
    }
}

/// Connection without the checks of the schema.
fn unchecked(dir: &tempfile::TempDir) -> rusqlite::Connection {
    let connection = open::connect(dir.path()).unwrap();
    connection.pragma_update(None, "ignore_check_constraints", true).unwrap();
    connection
}

#[tokio::test]
async fn saved_rows_are_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let (mut plain, full) = (fixture::lease(), full());
    let known = installation(5);
    let (store, writer, loaded) = Store::open(dir.path()).unwrap();
    assert!(loaded.leases.is_empty() && loaded.installations.is_empty());
    for file in std::fs::read_dir(dir.path()).unwrap() {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "readable by other users");
    }
    store.save_lease(&plain).await.unwrap();
    store.save_lease(&full).await.unwrap();
    plain.state_reason = "changed".into();
    plain.exit = Some(ExitStatus::Unknown);
    store.save_lease(&plain).await.unwrap();
    store.record_installation(&known).await.unwrap();
    close(store, writer);

    let (store, writer, loaded) = Store::open(dir.path()).unwrap();
    assert_eq!(loaded.leases, [plain.clone(), full.clone()]);
    assert_eq!(loaded.installations, [known]);
    store.delete_leases(vec![plain.lease_id]).await.unwrap();
    close(store, writer);
    assert_eq!(stored(&dir), [full]);
}

#[tokio::test]
async fn refused_row_does_not_affect_others() {
    let (dir, store, writer) = created();
    let (good, mut bad) = (fixture::lease(), fixture::lease());
    // The schema refuses a bound lease without processes.
    bad.state = LeaseState::Bound;
    let saved = tokio::join!(store.save_lease(&bad), store.save_lease(&good), store.save_lease(&bad));
    assert!(matches!(saved, (Err(StoreError::Sqlite(_)), Ok(()), Err(StoreError::Sqlite(_)))));
    close(store, writer);
    assert_eq!(stored(&dir), [good]);
}

#[tokio::test]
async fn newer_store_is_read_and_unchanged() {
    let (dir, store, writer) = created();
    let lease = fixture::lease();
    store.save_lease(&lease).await.unwrap();
    close(store, writer);
    let connection = open::connect(dir.path()).unwrap();
    connection.pragma_update(None, "user_version", 77).unwrap();
    let (store, writer, loaded) = Store::open(dir.path()).unwrap();
    assert!(store.read_only().unwrap().contains("newer version"));
    assert_eq!(loaded.leases, std::slice::from_ref(&lease));
    assert!(matches!(store.save_lease(&lease).await, Err(StoreError::ReadOnly(_))));
    assert!(store.flush().await.is_ok());
    close(store, writer);
    // A store with other tables is shown as empty and not changed.
    connection.execute_batch("ALTER TABLE leases RENAME TO agreements").unwrap();
    let (store, _, loaded) = Store::open(dir.path()).unwrap();
    assert!(store.read_only().is_some() && loaded.leases.is_empty());
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, 77);
}

#[tokio::test]
async fn invalid_rows_are_lost_and_name_no_process() {
    let (dir, store, writer) = created();
    let (good, state, incomplete, id) = (fixture::lease(), full(), full(), full());
    for lease in [&good, &state, &incomplete, &id] {
        store.save_lease(lease).await.unwrap();
    }
    close(store, writer);
    let connection = unchecked(&dir);
    for (change, lease) in
        [("state = 'frozen'", &state), ("pgid = NULL", &incomplete), ("lease_id = 'x'", &id)]
    {
        let change = format!("UPDATE leases SET {change} WHERE lease_id = ?1");
        assert_eq!(connection.execute(&change, [lease.lease_id.to_string()]).unwrap(), 1);
    }
    drop(connection);
    let (_store, _, loaded) = Store::open(dir.path()).unwrap();
    assert_eq!(loaded.leases.len(), 3, "{:?}", loaded.warnings);
    assert_eq!(loaded.warnings.len(), 1, "warning about the row without an id");
    assert!(loaded.leases.contains(&good));
    for (lease, why) in [(&state, "frozen"), (&incomplete, "incomplete process tree")] {
        let got = loaded.leases.iter().find(|l| l.lease_id == lease.lease_id).unwrap();
        assert_eq!((got.state, got.bound), (LeaseState::Lost, None));
        assert!(got.state_reason.starts_with("quarantined") && got.state_reason.contains(why), "{got:?}");
    }
}

#[tokio::test]
async fn removed_store_file_is_recreated() {
    let (dir, store, writer) = created();
    let all: Vec<Lease> = (0..4).map(|_| fixture::lease()).collect();
    let path = |suffix: &str| open::file(dir.path(), suffix);
    store.save_lease(&all[0]).await.unwrap();
    assert!(store.warnings().is_empty());
    std::fs::remove_file(path("")).unwrap();
    store.save_lease(&all[1]).await.unwrap();
    assert_eq!(store.warnings().len(), 1);
    std::fs::remove_file(path("-wal")).unwrap();
    store.save_lease(&all[2]).await.unwrap();
    // Another file with its own log replaces the store.
    let other = tempfile::tempdir().unwrap();
    drop(Store::open(other.path()).unwrap());
    std::fs::write(path("-wal.other"), b"another log").unwrap();
    std::fs::rename(path("-wal.other"), path("-wal")).unwrap();
    std::fs::copy(open::file(other.path(), ""), path(".other")).unwrap();
    std::fs::rename(path(".other"), path("")).unwrap();
    store.save_lease(&all[3]).await.unwrap();
    assert_eq!(std::fs::read(path(".replaced-wal")).unwrap(), b"another log");
    assert!(path(".replaced").exists() && !path(".new").exists() && !path(".part").exists());
    close(store, writer);
    assert_eq!(stored(&dir).len(), all.len());
}

#[tokio::test]
async fn failed_recreation_acknowledges_nothing() {
    let (dir, store, _) = created();
    // A directory blocks the new file and is not removed.
    std::fs::create_dir(open::file(dir.path(), ".part")).unwrap();
    std::fs::remove_file(open::file(dir.path(), "")).unwrap();
    assert!(matches!(store.save_lease(&fixture::lease()).await, Err(StoreError::File(_))));
    assert!(store.warnings()[0].contains("cannot be written"));
    std::fs::remove_dir(open::file(dir.path(), ".part")).unwrap();
    store.save_lease(&fixture::lease()).await.unwrap();
    assert_eq!(store.warnings().len(), 1);
}

#[test]
fn schema_checks_name_every_state() {
    assert!(rusqlite_migration::Migrations::from_slice(open::MIGRATIONS).validate().is_ok());
    let sql = include_str!("migrations/0001_leases.sql");
    let list = LeaseState::ALL.map(|s| format!("'{}'", s.as_str())).join(", ");
    assert!(sql.contains(&format!("state IN ({list})")), "{list}");
}

#[tokio::test]
async fn concurrent_writers_share_commits() {
    let (dir, store, writer) = created();
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.save_lease(&fixture::lease()).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    // The first write is committed alone, later ones in groups; the machine may be slow.
    assert!(store.commits() < 100, "{} commits for 200 rows", store.commits());
    close(store, writer);
    assert_eq!(stored(&dir).len(), 200);
}

#[tokio::test]
async fn finished_store_is_one_file() {
    let (dir, store, writer) = created();
    let lease = fixture::lease();
    store.post_lease(&lease);
    // Other holders of the store get an error.
    let other = store.clone();
    store.finish().await.unwrap();
    writer.finish();
    assert!(!open::file(dir.path(), "-wal").exists() && !open::file(dir.path(), "-shm").exists());
    assert!(matches!(other.save_lease(&lease).await, Err(StoreError::Closed)));
    assert_eq!(stored(&dir), [lease]);
}

#[tokio::test]
async fn damaged_installation_is_reported_and_others_load() {
    let (dir, store, writer) = created();
    let (sound, damaged) = (installation(5), installation(6));
    for known in [&sound, &damaged] {
        store.record_installation(known).await.unwrap();
    }
    store.finish().await.unwrap();
    writer.finish();
    let connection = unchecked(&dir);
    let change = "UPDATE homes SET uid = -1 WHERE gateway_instance_id = ?1";
    assert_eq!(connection.execute(change, [damaged.gateway.to_string()]).unwrap(), 1);
    connection.execute("INSERT INTO homes VALUES ('no id', 1, '', 1, 1, 1, NULL, 0, NULL)", []).unwrap();
    drop(connection);
    let (_store, _, loaded) = Store::open(dir.path()).unwrap();
    assert!(!loaded.unreadable, "leases are unreadable");
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    let find = |gateway| loaded.installations.iter().find(|known| known.gateway == gateway);
    assert_eq!((loaded.installations.len(), find(sound.gateway)), (2, Some(&sound)));
    assert!(
        find(damaged.gateway)
            .is_some_and(|known| known.damage_message().is_some() && known.uid != damaged.uid)
    );
}
