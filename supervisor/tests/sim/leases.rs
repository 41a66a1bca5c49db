//! What a damaged, replaced or newer store means for processes. Cases 58, 60, 61 and 64.
//! What becomes of leases that are over, with case 63, stands in `lost.rs`.

use crate::stage::Stage;
use acp_shared::protocol::LeaseState::{self, Closed, Open};
use acp_shared::protocol::{ReapLine, RefusalCode};
use acp_supervisor::store::{Loaded, STORE_FILE, Store, StoreError};
use std::path::Path;
use tempfile::TempDir;

fn file(dir: &Path, suffix: &str) -> std::path::PathBuf {
    dir.join(format!("{STORE_FILE}{suffix}"))
}

/// What a supervisor would load that starts after a crash and this damage.
fn loaded(s: &Stage, damage: impl FnOnce(&Path)) -> (TempDir, Result<Loaded, StoreError>) {
    let copy = s.copy();
    // What the memory of a dead process held is gone with it.
    drop(std::fs::remove_file(file(copy.path(), "-shm")));
    damage(copy.path());
    let loaded = Store::open(copy.path()).map(|(_, _, loaded)| loaded);
    (copy, loaded)
}

#[tokio::test(start_paused = true)]
async fn what_stands_before_a_torn_tail_is_reaped_and_what_is_lost_is_not_touched() {
    for tail in ["torn", "cut", "zeroes"] {
        let mut s = Stage::new().await;
        let (first, second, last) = (s.orphan(Open).await, s.orphan(Open).await, s.orphan(Open).await);
        let (_dir, loaded) = loaded(&s, |dir| {
            let wal = std::fs::read(file(dir, "-wal")).unwrap();
            let torn = match tail {
                "torn" => wal[..wal.len() - 1].to_vec(),
                "cut" => wal[..wal.len() - 4_000].to_vec(),
                _ => [&wal[..wal.len() - 100], &[0; 100]].concat(),
            };
            std::fs::write(file(dir, "-wal"), torn).unwrap();
        });
        let found = loaded.unwrap();
        let ids: Vec<_> = found.leases.iter().map(|l| l.lease_id).collect();
        assert_eq!(ids, [first.lease, second.lease], "{tail}");
        s.kernel().ours.remove(&last.lease);
        s.leases.retain(|l| ids.contains(&l.lease_id));
        assert_eq!(s.leases, found.leases);
        for tree in [first, second] {
            let signals = |line: &ReapLine| line.lease_id == tree.lease && line.action == "signal";
            assert_eq!(s.dry_run().into_iter().filter(signals).count(), 1);
        }
        assert!(s.untouched(&last));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_taken_away_is_written_anew_and_living_trees_stay() {
    for replaced in [false, true] {
        let mut s = Stage::new().await;
        let (one, two) = (s.spawn().await, s.spawn().await);
        let (first, second) = (s.grow(one), s.grow(two));
        for suffix in ["", "-wal", "-shm"] {
            std::fs::remove_file(file(s.state_dir(), suffix)).unwrap();
        }
        if replaced {
            std::fs::write(file(s.state_dir(), ""), b"somebody else's").unwrap();
        }
        s.pass(500).await;
        assert!(s.untouched(&first) && s.untouched(&second));
        s.close_to_end(one).await;
        assert!(s.untouched(&second));
        let rows = s.stored().await;
        let state = |id| rows.iter().find(|l| l.lease_id == id).map(|l| l.state);
        assert_eq!((state(one), state(two)), (Some(Closed), Some(Open)), "replaced: {replaced}");
        s.close_to_end(two).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_page_of_a_checkpoint_leaves_one_version() {
    const PAGE: usize = 4_096;
    let mut s = Stage::new().await;
    let trees = [s.orphan(Open).await, s.orphan(Open).await];
    let (done, _) = loaded(&s, |_| {});
    let (before, after) = (std::fs::read(file(s.state_dir(), "")).unwrap(), checkpointed(done.path()));
    for pages in 0..=after.len() / PAGE {
        let (_dir, loaded) = loaded(&s, |dir| {
            let part = [&after[..pages * PAGE], before.get(pages * PAGE..).unwrap_or_default()].concat();
            std::fs::write(file(dir, ""), part).unwrap();
        });
        assert_eq!(loaded.unwrap().leases, s.leases, "after {pages} pages");
    }
    let (_dir, loaded) = loaded(&s, |dir| {
        std::fs::write(file(dir, ""), &after).unwrap();
        std::fs::remove_file(file(dir, "-wal")).unwrap();
    });
    s.leases = loaded.unwrap().leases;
    s.reap().await;
    for tree in trees {
        assert_eq!(s.state(&tree), Closed);
    }
}

/// The file once its log is in it.
#[expect(clippy::disallowed_methods, reason = "the test simulates a crash within an SQLite operation")]
fn checkpointed(dir: &Path) -> Vec<u8> {
    let connection = rusqlite::Connection::open(file(dir, "")).unwrap();
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(connection);
    std::fs::read(file(dir, "")).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "the test acts as a newer program")]
fn newer(dir: &Path) {
    let connection = rusqlite::Connection::open(file(dir, "")).unwrap();
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    connection.pragma_update(None, "user_version", version + 1).unwrap();
}

#[tokio::test(start_paused = true)]
async fn with_a_newer_store_what_an_earlier_supervisor_left_is_seen_and_not_touched() {
    for (state, ended) in [(Open, None), (LeaseState::Closing, None), (LeaseState::Lost, Some(1))] {
        // A supervisor of that version dies beside its trees; then an older program starts on the same machine.
        let mut before = Stage::new().await;
        let tree = before.orphan(Open).await;
        before.rewrite(&tree, |l| (l.state, l.ended_at_ms) = (state, ended)).await;
        let dir = before.copy();
        newer(dir.path());
        let (old, rows) = (before.sys.kernel_of(), before.leases.clone());
        let mut s = Stage::prepared(
            |kernel| *kernel = old,
            |state_dir| {
                // Its log went into it when the last one closed it.
                std::fs::copy(file(dir.path(), ""), file(state_dir, "")).unwrap();
            },
        );
        assert!(s.context.store.read_only().is_some());
        assert_eq!(s.leases, rows, "it reads the store");
        let lines: Vec<_> = s.dry_run().into_iter().map(|line| line.action).collect();
        assert_eq!(lines, ["signal"], "it reports the planned actions");
        let found = std::fs::read(file(s.state_dir(), "")).unwrap();
        s.look(|_| true).await.unwrap();
        s.pass(2_000).await;
        assert_eq!(s.leases, rows);
        let processes = s.kernel().tasks().count();
        let id = s.spawn().await;
        assert_eq!(s.refusals[&id].code, RefusalCode::StoreUnavailable);
        assert_eq!(s.kernel().tasks().count(), processes, "no process was created");
        assert!(s.untouched(&tree) && s.sent().is_empty(), "{state}");
        assert!(std::fs::read(file(s.state_dir(), "")).unwrap() == found, "nothing was written");
    }
}
