//! Damage, loss, backup and restore.

use super::fixtures::{binding, open, run, session, spawn_tx};
use crate::backup::backup;
use crate::db::Db;
use crate::inbox::{self, Inbound};
use crate::restore::{finish, restore};
use crate::schema::DB_FILE;
use crate::{Durability, SpawnTx, Store, StoreError, StoreHealth, check, runs, salvage};
use acp_core::rows::{BindingStatus, ConversationRef, SessionRow};
use acp_core::run::RunState;
use acp_shared::codes::Code;
use rusqlite::Connection;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn reopen(dir: &Path) -> Result<Store, StoreError> {
    Store::open(dir, Durability::Full)
}

async fn closed_store() -> (tempfile::TempDir, SessionRow) {
    let (dir, store) = open();
    let row = session("s");
    let waiting = run(&row.session_key, RunState::Queued);
    store.spawn_session(SpawnTx { run: Some(waiting), ..spawn_tx(row.clone()) }).await.unwrap();
    store.close().await;
    (dir, row)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[expect(clippy::disallowed_methods, reason = "acts as another program")]
fn raw(path: &Path) -> Connection {
    Connection::open(path).unwrap()
}

fn no_progress(_: crate::backup::Progress) {}

#[tokio::test]
async fn damaged_file_is_refused_with_next_step_and_unchanged() {
    let garbage: fn(&Path) = |path| std::fs::write(path, vec![7; 8192]).unwrap();
    let page: fn(&Path) = |path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let pages = file.metadata().unwrap().len() / 4096;
        for page in 1..pages {
            file.write_all_at(&[0xee; 512], page * 4096).unwrap();
        }
    };
    let cut: fn(&Path) = |path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(4096 * 5).unwrap();
    };
    let empty: fn(&Path) = |path| std::fs::write(path, b"").unwrap();
    for (name, damage) in [("garbage", garbage), ("pages", page), ("cut", cut), ("empty", empty)] {
        let (dir, _) = closed_store().await;
        let path = dir.path().join(DB_FILE);
        damage(&path);
        let before = std::fs::read(&path).unwrap();
        match reopen(dir.path()) {
            Err(error @ StoreError::Damaged { .. }) => {
                let text = error.to_string();
                assert!(text.contains("store check") && text.contains("store restore"), "{name}: {text}");
                let failure = acp_core::failure::Failure::from(error);
                assert_eq!(failure.detail_code.as_deref(), Some("STORE_DAMAGED"), "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(std::fs::read(&path).unwrap(), before, "{name}: the file is unchanged");
        let report = check::check_database(dir.path(), true);
        assert!(!report.is_ok_and(|report| report.ok), "{name}: the check reports the damage");
        let to = dir.path().join("copy");
        assert!(
            backup(dir.path(), &to, false, &mut no_progress).is_err(),
            "{name}: a damaged file is not a backup"
        );
        assert!(!to.exists());
    }
}

#[tokio::test]
async fn salvage_lists_readable_sessions_of_damaged_file() {
    let (dir, store) = open();
    for n in 0..400 {
        let row = SessionRow { cwd: format!("/{}", "w".repeat(300)), ..session(&format!("s{n:03}")) };
        store.spawn_session(spawn_tx(row)).await.unwrap();
    }
    store.close().await;
    let whole = salvage::salvage(dir.path()).unwrap();
    assert_eq!((whole.sessions.len(), whole.unread.len()), (400, 0));
    let keys: Vec<&str> = whole.sessions.iter().map(|saved| saved.session_key.as_str()).collect();
    assert!(keys.is_sorted(), "sessions are in order of creation");
    // Damages one page in the middle of the table.
    let path = dir.path().join(DB_FILE);
    let bytes = std::fs::read(&path).unwrap();
    let of_s200 = |page: &&[u8]| {
        page.windows(4).any(|word| word == b"s200") && page.windows(9).any(|w| w == b"/wwwwwwww")
    };
    let at = bytes.chunks(4096).position(|page| of_s200(&page)).unwrap() as u64;
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xee; 4096], at * 4096).unwrap();
    assert!(matches!(reopen(dir.path()), Err(StoreError::Damaged { .. })));
    let before = std::fs::read(&path).unwrap();
    let left = salvage::salvage(dir.path()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), before, "salvage does not write");
    assert_eq!(left.unread.len(), 1, "{:?}", left.unread);
    assert!(left.unread[0].contains("acp_sessions"), "{:?}", left.unread);
    assert!(left.sessions.len() > 350 && left.sessions.len() < 400, "{}", left.sessions.len());
    let has = |key: &str| {
        left.sessions.iter().any(|saved| whole.sessions.contains(saved) && saved.session_key.contains(key))
    };
    assert!(has("s000") && has("s399") && !has("s200"), "both sides of the damaged page");
    // An unreadable file has no sessions.
    std::fs::write(&path, vec![7; 8192]).unwrap();
    let nothing = salvage::salvage(dir.path()).unwrap();
    assert_eq!((nothing.sessions.len(), nothing.unread.len()), (0, 1), "{nothing:?}");
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(salvage::salvage(dir.path()), Err(StoreError::File { .. })));
}

#[tokio::test]
async fn damage_found_by_write_stops_writes_but_not_reads() {
    let (dir, store) = open();
    let row = SessionRow { cwd: "/wwwwwwww".to_owned(), ..session("s") };
    store.spawn_session(spawn_tx(row)).await.unwrap();
    store.close().await;
    let store = reopen(dir.path()).unwrap();
    let path = dir.path().join(DB_FILE);
    let bytes = std::fs::read(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for (at, page) in bytes.chunks(4096).enumerate() {
        if page.windows(9).any(|word| word == b"/wwwwwwww") {
            file.write_all_at(&[0xee; 4096], at as u64 * 4096).unwrap();
        }
    }
    let touch = |sql: &'static str| {
        store.write("touch", move |tx| {
            // Pages read at the start are cached.
            tx.sqlite().unwrap().execute_batch("PRAGMA shrink_memory")?;
            Ok(tx.sqlite().unwrap().execute(sql, [])?)
        })
    };
    let elsewhere = "INSERT INTO acp_meta (key, value) VALUES (hex(randomblob(8)), 'x')";
    assert_eq!(touch(elsewhere).await.unwrap(), 1);
    let failed = touch("UPDATE acp_sessions SET updated_at = 0").await;
    assert!(matches!(failed, Err(StoreError::Damaged { .. })), "{failed:?}");
    let mut health = store.health();
    assert_eq!(*health.borrow_and_update(), StoreHealth::Damaged);
    let recovered = health.wait_for(|health| *health == StoreHealth::Well);
    let recovered = tokio::time::timeout(Duration::from_secs(1), recovered).await;
    assert!(recovered.is_err(), "damage is permanent");
    let refused = touch(elsewhere).await;
    assert!(
        matches!(refused, Err(StoreError::Damaged { .. })),
        "writes that may spread the damage are refused: {refused:?}"
    );
    let rows = store.read("count", |db| {
        Ok(db.sqlite().unwrap().query_row("SELECT count(*) FROM acp_meta", [], |row| row.get::<_, i64>(0))?)
    });
    assert!(rows.await.unwrap() > 0, "readable rows are read");
    store.close().await;
    assert!(matches!(reopen(dir.path()), Err(StoreError::Damaged { .. })), "the next start reports it");
}

#[tokio::test]
async fn salvage_refuses_newer_database_and_names_conversations() {
    let (dir, store) = open();
    let row = session("s");
    let binding = binding(&row.session_key, "thread", BindingStatus::Active);
    store.spawn_session(SpawnTx { binding: Some(binding), ..spawn_tx(row) }).await.unwrap();
    store.close().await;
    let found = salvage::salvage(dir.path()).unwrap();
    assert!(found.sessions[0].bound[0].ends_with(" thread"), "{found:?}");
    let path = dir.path().join(DB_FILE);
    raw(&path).pragma_update(None, "user_version", 99).unwrap();
    assert!(matches!(salvage::salvage(dir.path()), Err(StoreError::Newer { found: 99, .. })));
}

#[tokio::test]
async fn missing_database_is_not_replaced_by_new_one() {
    let (dir, _) = closed_store().await;
    let path = dir.path().join(DB_FILE);
    let moved = dir.path().join("elsewhere");
    std::fs::rename(&path, &moved).unwrap();
    match reopen(dir.path()) {
        Err(StoreError::Missing { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(!path.exists(), "no database was created");
    std::fs::rename(&moved, &path).unwrap();
    reopen(dir.path()).unwrap().close().await;
}

#[tokio::test]
async fn database_without_wal_and_tables_is_not_treated_as_new() {
    let (dir, _) = closed_store().await;
    let path = dir.path().join(DB_FILE);
    std::fs::remove_file(&path).unwrap();
    raw(&path).execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (a); DROP TABLE t").unwrap();
    match reopen(dir.path()) {
        Err(StoreError::Damaged { why }) => assert!(why.contains("tables"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn database_of_another_program_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    raw(&dir.path().join(DB_FILE)).execute_batch("CREATE TABLE notes (text)").unwrap();
    assert!(matches!(reopen(dir.path()), Err(StoreError::Foreign { .. })));
    let marked = tempfile::tempdir().unwrap();
    raw(&marked.path().join(DB_FILE)).execute_batch("PRAGMA application_id = 7; CREATE TABLE t (a)").unwrap();
    assert!(matches!(reopen(marked.path()), Err(StoreError::Foreign { .. })));
}

#[tokio::test]
async fn writes_to_removed_file_are_not_acknowledged() {
    for name in [DB_FILE, "gateway.db-wal"] {
        let (dir, store) = open();
        store.write("before", |tx| crate::meta::set(tx, "a", "1")).await.unwrap();
        let (path, moved) = (dir.path().join(name), dir.path().join("moved"));
        std::fs::rename(&path, &moved).unwrap();
        let lost = store.write("lost", |tx| crate::meta::set(tx, "a", "2")).await;
        assert!(matches!(lost, Err(StoreError::Gone { .. })), "{name}: {lost:?}");
        let mut health = store.health();
        assert_eq!(*health.borrow_and_update(), StoreHealth::Gone);
        std::fs::rename(&moved, &path).unwrap();
        // Recovery needs no writes.
        health.wait_for(|health| *health == StoreHealth::Well).await.unwrap();
        let kept = store.read("kept", |db| crate::meta::get(db, "a")).await.unwrap();
        assert_eq!(kept.as_deref(), Some("1"), "{name}");
        store.write("after", |tx| crate::meta::set(tx, "a", "3")).await.unwrap();
        store.close().await;
    }
}

#[tokio::test]
async fn full_database_refuses_writes_until_there_is_room() {
    let (_dir, store) = open();
    let pages = |count: i64| {
        let store = store.clone();
        async move {
            store
                .write("pages", move |tx| {
                    Ok(tx.sqlite().unwrap().pragma_update(None, "max_page_count", count)?)
                })
                .await
                .unwrap();
        }
    };
    pages(1).await;
    let big = "x".repeat(1 << 20);
    let lost = store.write("big", move |tx| crate::meta::set(tx, "big", &big)).await;
    assert!(matches!(lost, Err(StoreError::Full)), "{lost:?}");
    let mut health = store.health();
    assert_eq!(*health.borrow_and_update(), StoreHealth::Full);
    let counts = store.counts();
    assert_eq!((counts.groups_lost, counts.rolled_back), (1, 1), "store_groups_lost and store_rollbacks");
    assert_eq!(store.read("big", |db| crate::meta::get(db, "big")).await.unwrap(), None);
    pages(1 << 30).await;
    health.wait_for(|health| *health == StoreHealth::Well).await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn backup_under_load_is_consistent_and_private() {
    let (dir, store) = open();
    let row = session("s");
    store.spawn_session(spawn_tx(row.clone())).await.unwrap();
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    let last = store.session(row.session_key.clone()).await.unwrap().unwrap().last_session_seq;
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for number in 1..=400 {
                let event = super::fixtures::event(last + number, None);
                store.commit(fence.clone(), vec![event]).await.unwrap();
            }
        })
    };
    let (from, to) = (dir.path().to_owned(), dir.path().join("backup"));
    let target = to.clone();
    let made =
        tokio::task::spawn_blocking(move || backup(&from, &target, false, &mut no_progress)).await.unwrap();
    let made = made.unwrap();
    assert_eq!(made.broken, Vec::<String>::new());
    assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    writer.await.unwrap();
    assert!(names(dir.path()).iter().all(|name| !name.contains("part")), "{:?}", names(dir.path()));
    assert!(matches!(backup(dir.path(), &to, false, &mut no_progress), Err(StoreError::Exists { .. })));
    // A device given as target is not replaced by a file.
    let device = dir.path().join("device");
    rustix::fs::mknodat(rustix::fs::CWD, &device, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(matches!(backup(dir.path(), &device, true, &mut no_progress), Err(StoreError::File { .. })));
    assert!(!std::fs::symlink_metadata(&device).unwrap().is_file());
    let own = dir.path().join(DB_FILE);
    assert!(matches!(backup(dir.path(), &own, true, &mut no_progress), Err(StoreError::File { .. })));
    backup(dir.path(), &to, true, &mut no_progress).unwrap();
    store.close().await;
    let copied = Db::new(raw(&to));
    assert_eq!(check::pages(&copied, false).unwrap(), Vec::<String>::new());
    assert!(check::rules(&copied).unwrap().iter().all(|rule| rule.broken.is_empty()));
    let rows: i64 =
        copied.sqlite().unwrap().query_row("SELECT count(*) FROM acp_events", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, i64::try_from(last).unwrap() + 400, "the second backup has all events");
}

#[tokio::test]
async fn restored_database_repeats_no_effect() {
    let (dir, row) = closed_store().await;
    let store = reopen(dir.path()).unwrap();
    let at = ConversationRef::new("console", "default", "c");
    let message = Inbound::new(at, "m".into(), "ann".into(), "do it".into());
    let kept = message.clone();
    store.write("message", move |tx| inbox::insert(tx, &kept)).await.unwrap();
    let file = dir.path().join("backup");
    backup(dir.path(), &file, false, &mut no_progress).unwrap();
    store.write("later", |tx| crate::meta::set(tx, "later", "1")).await.unwrap();
    let epoch = store.identity().epoch;
    assert!(matches!(restore(dir.path(), &file, 1, &mut no_progress), Err(StoreError::Locked { .. })));
    store.close().await;

    let done = restore(dir.path(), &file, 1, &mut no_progress).unwrap();
    assert_eq!((done.uncertain, done.moved), (2, None), "a run and a message");
    let moved = raw(&done.kept.unwrap());
    let later = "SELECT value FROM acp_meta WHERE key = 'later'";
    assert_eq!(moved.query_row(later, [], |row| row.get::<_, String>(0)).unwrap(), "1");

    let store = reopen(dir.path()).unwrap();
    assert_eq!(store.identity().epoch, epoch + 1, "no epoch is used twice");
    assert_eq!(store.read("later", |db| crate::meta::get(db, "later")).await.unwrap(), None);
    let list = store.runs(row.session_key.clone(), 9).await.unwrap();
    let (state, code) = (list[0].state, list[0].error.as_ref().unwrap().code);
    assert_eq!((list.len(), state, code), (1, RunState::Failed, Code::Uncertain));
    let waiting = row.session_key.clone();
    assert_eq!(store.read("waiting", move |db| runs::unfinished(db, &waiting)).await.unwrap(), []);
    let inbox = store.read("inbox", |db| inbox::unsettled_messages(db, 9)).await.unwrap();
    assert!(inbox[0].outcome.is_some(), "the message has an outcome");
    store.close().await;
    assert!(check::check_database(dir.path(), false).unwrap().ok);
}

#[tokio::test]
async fn invalid_backup_is_not_restored() {
    let (dir, _) = closed_store().await;
    let before = std::fs::read(dir.path().join(DB_FILE)).unwrap();
    let other = tempfile::tempdir().unwrap();
    let file = |name: &str| other.path().join(name);
    std::fs::write(file("garbage"), vec![1; 9000]).unwrap();
    std::fs::write(file("empty"), b"").unwrap();
    raw(&file("foreign")).execute_batch("CREATE TABLE t (a)").unwrap();
    backup(dir.path(), &file("newer"), false, &mut no_progress).unwrap();
    raw(&file("newer")).pragma_update(None, "user_version", 99).unwrap();
    backup(dir.path(), &file("torn"), false, &mut no_progress).unwrap();
    raw(&file("torn")).execute_batch("UPDATE acp_sessions SET last_session_seq = 77").unwrap();
    type Expected = fn(&StoreError) -> bool;
    let cases: [(PathBuf, Expected); 7] = [
        (file("garbage"), |error| matches!(error, StoreError::NotABackup { .. })),
        (file("empty"), |error| matches!(error, StoreError::NotABackup { .. })),
        (file("foreign"), |error| matches!(error, StoreError::Foreign { .. })),
        (file("newer"), |error| matches!(error, StoreError::Newer { .. })),
        (file("torn"), |error| matches!(error, StoreError::NotABackup { .. })),
        (file("missing"), |error| matches!(error, StoreError::File { .. })),
        (dir.path().join(DB_FILE), |error| matches!(error, StoreError::NotABackup { .. })),
    ];
    for (path, is_expected) in cases {
        match restore(dir.path(), &path, 1, &mut no_progress) {
            Err(error) => assert!(is_expected(&error), "{}: {error:?}", path.display()),
            Ok(done) => panic!("{}: {done:?}", path.display()),
        }
        assert_eq!(std::fs::read(dir.path().join(DB_FILE)).unwrap(), before, "{}", path.display());
    }
    let left = |name: &String| name.contains("part") || name.contains("restor") || name.contains("replaced");
    assert!(!names(dir.path()).iter().any(left), "{:?}", names(dir.path()));
}

#[tokio::test]
async fn interrupted_restore_is_finished_at_next_start() {
    // Crash after each step of the swap: none, hard links made, log removed.
    for steps in 0..3 {
        let (dir, row) = closed_store().await;
        let path = |name: &str| dir.path().join(name);
        backup(dir.path(), &path("gateway.db.restoring-5"), false, &mut no_progress).unwrap();
        std::fs::write(path("gateway.db-wal"), b"log of the old database").unwrap();
        if steps > 0 {
            std::fs::hard_link(path(DB_FILE), path("gateway.db.replaced-5")).unwrap();
            std::fs::hard_link(path("gateway.db-wal"), path("gateway.db.replaced-5-wal")).unwrap();
        }
        if steps > 1 {
            std::fs::remove_file(path("gateway.db-wal")).unwrap();
        }
        let store = reopen(dir.path()).unwrap();
        assert!(store.session(row.session_key.clone()).await.unwrap().is_some(), "{steps}");
        store.close().await;
        assert!(
            path("gateway.db.replaced-5").exists() && !path("gateway.db.restoring-5").exists(),
            "{steps}"
        );
        assert_eq!(
            std::fs::read(path("gateway.db.replaced-5-wal")).unwrap(),
            b"log of the old database",
            "{steps}"
        );
        assert_eq!(finish(dir.path()).unwrap(), None);
    }
}
