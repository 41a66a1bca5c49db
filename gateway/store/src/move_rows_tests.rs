#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::tests::fixtures::{binding, event, lease, outbox, permission, request, run, session, spawn_tx};
use crate::{GroupBounds, SpawnTx, Store};
use acp_core::rows::{BindingStatus, PermissionState, RequestState, RunRow, SessionRow};
use acp_core::run::RunState;
use acp_core::writes::Write;
use acp_shared::clock::Clock;
use std::collections::BTreeMap;

#[test]
fn every_table_is_moved() {
    let dir = tempfile::tempdir().unwrap();
    let db = open::open_writer(dir.path(), Durability::Full).unwrap();
    let sql =
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT IN ('acp_ord', 'sqlite_sequence')";
    let mut found = db.all(sql, &[], |row| row.only::<String>()).unwrap();
    let mut listed = TABLES.map(str::to_owned).to_vec();
    found.sort();
    listed.sort();
    assert_eq!(listed, found);
    for (table, column) in ORDERED {
        db.first(&format!("SELECT max({column}) FROM {table}"), &[], |_| Ok(())).unwrap();
    }
}

/// All rows of a database file, by table, in an order of their own; without the keys of `acp_meta` that each start changes.
fn rows(db: &Db) -> BTreeMap<&'static str, Vec<String>> {
    let of = |table: &'static str| {
        let rowid = if BY_ROWID.contains(&table) { ", rowid" } else { "" };
        let keys = if table == "acp_meta" {
            format!(" WHERE key NOT IN ('{MOVED}', 'home')")
        } else {
            String::new()
        };
        let columns: Vec<String> =
            db.all("SELECT name FROM pragma_table_info(?1)", params![table], |row| row.only()).unwrap();
        let sql = format!("SELECT *{rowid} FROM {table}{keys}");
        let width = columns.len() + usize::from(!rowid.is_empty());
        let mut found = db
            .all(&sql, &[], |row| {
                let values: Result<Vec<String>, StoreError> =
                    (0..width).map(|index| Ok(format!("{:?}", row.at(index)?))).collect();
                Ok(values?.join(" "))
            })
            .unwrap();
        found.sort();
        (table, found)
    };
    TABLES.into_iter().map(of).collect()
}

/// Address of an empty cell on the server of the tests; `None` without one.
fn address(name: &str) -> Option<PgAddress> {
    let server = std::env::var("ACP_TEST_POSTGRES").ok()?;
    Some(PgAddress::parse(&server, &format!("{name}_{}", std::process::id())).unwrap())
}

/// Fills a state directory with rows of several tables, some of them with texts that PostgreSQL cannot hold as they are.
async fn fill(dir: &Path) {
    let store = Store::open_with(dir, Durability::Full, GroupBounds::default(), clock()).unwrap();
    for name in ["one", "two", "three"] {
        let row = session(name);
        let key = row.session_key.clone();
        let bound = binding(&key, name, BindingStatus::Active);
        store.spawn_session(SpawnTx { binding: Some(bound), ..spawn_tx(row.clone()) }).await.unwrap();
        let (_, fence) = store.claim(key.clone()).await.unwrap();
        let held = lease(&key);
        let text = format!("text with \0 and \u{10FFFE} of {name}");
        let waiting = RunRow { text, last_seq: 0, ..run(&key, RunState::Queued) };
        let writes = vec![
            event(1, None),
            event(2, None),
            Write::Session(Box::new(SessionRow { last_session_seq: 2, ..row })),
            Write::Run(Box::new(waiting.clone())),
            Write::NewLease(Box::new(held.clone())),
            Write::Tail { lease_id: held.lease_id, offset: 70, bytes: vec![0, 255, 10] },
            Write::Permission(Box::new(permission(&held, 100, PermissionState::Pending))),
            Write::Request(Box::new(request(&held, 300, RequestState::Started))),
            Write::Outbox(Box::new(outbox(&held, 1, waiting.run_id))),
        ];
        store.commit(fence, writes).await.unwrap();
        let sql =
            "INSERT INTO acp_acpx_names (session_key, agent, cwd, name) VALUES (?1, 'demo', '/tmp', ?2)";
        store.write("name", move |tx| tx.run(sql, params![key, name]).map(drop)).await.unwrap();
    }
    store.close().await;
}

#[tokio::test]
async fn rows_are_the_same_there_and_back_and_one_place_is_used() {
    let Some(address) = address("moved") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).await;
    let path = dir.path().to_owned();
    let moving = move || {
        let with = MoveCell { address: &address, allow_loss: true };
        let want = rows(&schema::open_reader(&path).unwrap());
        assert!(want["acp_runs"].len() == 3 && want["acp_acpx_names"].len() == 3, "{want:#?}");
        let planned = preview(&path, with, true).unwrap();
        assert!(planned.dry_run && path.join(DB_FILE).exists());
        let moved = to_cell(&path, with, &mut |_| {}).unwrap();
        assert_eq!(moved.tables, planned.tables);
        assert!(moved.kept.is_some_and(|kept| kept.exists()) && !path.join(DB_FILE).exists());
        let refused = Store::open(&path, Durability::Full).unwrap_err();
        assert!(matches!(refused, StoreError::InCell { .. }), "{refused:?}");
        let cell = cell::open_reader(&address).unwrap();
        assert_eq!(counts(&cell).unwrap(), planned.tables);
        drop(cell);
        let taken = to_cell(&path, with, &mut |_| {}).unwrap_err();
        assert!(matches!(taken, StoreError::InCell { .. }), "nothing is left to move: {taken:?}");

        let back = to_file(&path, with, &mut |_| {}).unwrap();
        assert_eq!(back.tables, planned.tables);
        let refused = Store::open_cell(&path, &address, true, GroupBounds::default(), clock()).unwrap_err();
        assert!(matches!(refused, StoreError::InFile { .. }), "{refused:?}");
        let other = tempfile::tempdir().unwrap();
        let refused =
            Store::open_cell(other.path(), &address, true, GroupBounds::default(), clock()).unwrap_err();
        assert!(matches!(refused, StoreError::Moved { .. }), "{refused:?}");
        let file = open::open_writer(&path, Durability::Full).unwrap();
        assert_eq!(rows(&file), want);
        assert_eq!(schema::differences(&file).unwrap(), Vec::<String>::new());
        drop(file);
        let refused = to_cell(&path, with, &mut |_| {}).unwrap_err();
        assert!(matches!(refused, StoreError::CellNotEmpty { .. }), "{refused:?}");
    };
    tokio::task::spawn_blocking(moving).await.unwrap();
}

#[tokio::test]
async fn move_that_was_cut_off_is_finished_by_the_next_start_or_begun_again() {
    let Some(address) = address("cut") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).await;
    let path = dir.path().to_owned();
    let moving = move || {
        let with = MoveCell { address: &address, allow_loss: true };
        let moved = to_cell(&path, with, &mut |_| {}).unwrap();
        let aside = moved.kept.unwrap();
        let id = aside.display().to_string().split_once(".moved-").unwrap().1.to_owned();
        let mark = |key: &str, value: Option<&str>| {
            let cell = cell::open_writer(&address, true, true).unwrap().db;
            let set = || value.map_or_else(|| meta::remove(&cell, key), |value| meta::set(&cell, key, value));
            cell.transaction(set).unwrap();
        };
        // Killed before the original was renamed: the next start serves the cell.
        mark(INCOMING, Some(&id));
        std::fs::rename(&aside, path.join(DB_FILE)).unwrap();
        let refused = Store::open(&path, Durability::Full).unwrap_err();
        assert!(matches!(refused, StoreError::Moved { .. }), "{refused:?}");
        let other = tempfile::tempdir().unwrap();
        let refused =
            Store::open_cell(other.path(), &address, true, GroupBounds::default(), clock()).unwrap_err();
        assert!(matches!(refused, StoreError::MoveUnfinished), "{refused:?}");
        let store = Store::open_cell(&path, &address, true, GroupBounds::default(), clock()).unwrap();
        assert!(aside.exists() && !path.join(DB_FILE).exists());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(store.close());
        // Killed before the original was marked: it counts, and a repetition copies it again.
        mark(INCOMING, Some(&id));
        std::fs::rename(&aside, path.join(DB_FILE)).unwrap();
        let file =
            schema::open_to_write(&path.join(DB_FILE), Durability::Full, schema::MIGRATIONS.len()).unwrap();
        file.transaction(|| meta::remove(&file, MOVED)).unwrap();
        drop(file);
        let refused = Store::open_cell(&path, &address, true, GroupBounds::default(), clock()).unwrap_err();
        assert!(matches!(refused, StoreError::InFile { .. }), "{refused:?}");
        // Another control plane does not take the place of these rows.
        let stranger = tempfile::tempdir().unwrap();
        let made = Store::open(stranger.path(), Durability::Full).unwrap();
        runtime.block_on(made.close());
        let refused = to_cell(stranger.path(), with, &mut |_| {}).unwrap_err();
        assert!(matches!(refused, StoreError::CellNotEmpty { .. }), "{refused:?}");
        let again = to_cell(&path, with, &mut |_| {}).unwrap();
        assert!(!again.finished_earlier && again.kept.unwrap() != aside);
    };
    tokio::task::spawn_blocking(moving).await.unwrap();
}

fn clock() -> Clock {
    #[expect(clippy::disallowed_methods, reason = "a test is a process of its own")]
    Clock::start()
}
