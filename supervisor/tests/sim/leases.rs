//! Processes of a damaged, replaced or newer store.

use crate::simulation::Sim;
use acp_shared::protocol::LeaseState::{self, Closed, Open};
use acp_shared::protocol::{ReapLine, RefusalCode};
use acp_supervisor::store::{Loaded, STORE_FILE, Store, StoreError};
use std::path::Path;
use tempfile::TempDir;

fn file(dir: &Path, suffix: &str) -> std::path::PathBuf {
    dir.join(format!("{STORE_FILE}{suffix}"))
}

/// Loads a damaged copy of the store, as a supervisor does after a crash.
fn loaded(s: &Sim, damage: impl FnOnce(&Path)) -> (TempDir, Result<Loaded, StoreError>) {
    let copy = s.copy();
    // The shared memory of a dead process is gone.
    drop(std::fs::remove_file(file(copy.path(), "-shm")));
    damage(copy.path());
    let loaded = Store::open(copy.path()).map(|(_, _, loaded)| loaded);
    (copy, loaded)
}

#[tokio::test(start_paused = true)]
async fn rows_before_torn_tail_are_reaped() {
    for tail in ["torn", "cut", "zeroes"] {
        let mut s = Sim::new().await;
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
        s.kernel().owned.remove(&last.lease);
        s.leases.retain(|l| ids.contains(&l.lease_id));
        assert_eq!(s.leases, found.leases);
        for tree in [first, second] {
            let signals = |line: &ReapLine| line.lease_id == tree.lease && line.action == "signal";
            assert_eq!(s.dry_run().into_iter().filter(signals).count(), 1);
        }
        assert!(s.is_untouched(&last));
    }
}

#[tokio::test(start_paused = true)]
async fn removed_store_is_rewritten_and_trees_survive() {
    for replaced in [false, true] {
        let mut s = Sim::new().await;
        let (one, two) = (s.spawn().await, s.spawn().await);
        let (first, second) = (s.with_tool(one), s.with_tool(two));
        for suffix in ["", "-wal", "-shm"] {
            std::fs::remove_file(file(s.state_dir(), suffix)).unwrap();
        }
        if replaced {
            std::fs::write(file(s.state_dir(), ""), b"foreign").unwrap();
        }
        s.advance(500).await;
        assert!(s.is_untouched(&first) && s.is_untouched(&second));
        s.close_and_wait(one).await;
        assert!(s.is_untouched(&second));
        let rows = s.stored_rows().await;
        let state = |id| rows.iter().find(|l| l.lease_id == id).map(|l| l.state);
        assert_eq!((state(one), state(two)), (Some(Closed), Some(Open)), "replaced: {replaced}");
        s.close_and_wait(two).await;
    }
}

#[tokio::test(start_paused = true)]
async fn crash_during_checkpoint_leaves_one_version() {
    const PAGE: usize = 4_096;
    let mut s = Sim::new().await;
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

/// Returns the database file after a checkpoint.
#[expect(clippy::disallowed_methods, reason = "the test simulates a crash within an SQLite operation")]
fn checkpointed(dir: &Path) -> Vec<u8> {
    let connection = rusqlite::Connection::open(file(dir, "")).unwrap();
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(connection);
    std::fs::read(file(dir, "")).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "the test acts as a make_newer program")]
fn make_newer(dir: &Path) {
    let connection = rusqlite::Connection::open(file(dir, "")).unwrap();
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    connection.pragma_update(None, "user_version", version + 1).unwrap();
}

#[tokio::test(start_paused = true)]
async fn leases_of_newer_store_are_shown_and_not_signalled() {
    for (state, ended) in [(Open, None), (LeaseState::Closing, None), (LeaseState::Lost, Some(1))] {
        // A newer supervisor dies and leaves its tree; then an older one starts on the same machine.
        let mut before = Sim::new().await;
        let tree = before.orphan(Open).await;
        before.rewrite(&tree, |l| (l.state, l.ended_at_ms) = (state, ended)).await;
        let dir = before.copy();
        make_newer(dir.path());
        let (old, rows) = (before.sys.kernel_of(), before.leases.clone());
        let mut s = Sim::with_kernel_and_state(
            |kernel| *kernel = old,
            |state_dir| {
                // The last close checkpointed the log.
                std::fs::copy(file(dir.path(), ""), file(state_dir, "")).unwrap();
            },
        );
        assert!(s.context.store.read_only().is_some());
        assert_eq!(s.leases, rows, "rows of the store");
        let lines: Vec<_> = s.dry_run().into_iter().map(|line| line.action).collect();
        assert_eq!(lines, ["signal"], "planned actions");
        let found = std::fs::read(file(s.state_dir(), "")).unwrap();
        s.sweep(|_| true).await.unwrap();
        s.advance(2_000).await;
        assert_eq!(s.leases, rows);
        let processes = s.kernel().tasks().count();
        let id = s.spawn().await;
        assert_eq!(s.refusals[&id].code, RefusalCode::StoreUnavailable);
        assert_eq!(s.kernel().tasks().count(), processes, "no process was created");
        assert!(s.is_untouched(&tree) && s.sent().is_empty(), "{state}");
        assert!(std::fs::read(file(s.state_dir(), "")).unwrap() == found, "nothing was written");
    }
}
