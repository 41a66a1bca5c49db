//! Retention of the journal: needed rows stay, cursors below pruned rows are refused, and the invariants hold at each
//! step.

use super::fixtures::{binding, event, insert_session, key, lease, open, permission, run};
use crate::compact::{compact, preview};
use crate::events::EventBounds;
use crate::retention::{PruneRule, ROWS_AT_ONCE, age_time_ms, mark_pruned};
use crate::{
    Durability, GroupBounds, Store, StoreError, check, checkpoints, events, open as opening, schema,
};
use acp_core::event::EventKind;
use acp_core::retention::RetentionPolicy;
use acp_core::rows::{BindingStatus, PermissionState, RunRow};
use acp_core::run::RunState;
use acp_core::writes::{ActorFence, Write};
use acp_shared::clock::Clock;
use acp_shared::ids::SessionKey;
use std::path::Path;

const NEVER_MS: u64 = i64::MAX as u64;

fn rule(keep_turns: u64) -> PruneRule {
    PruneRule { policy: RetentionPolicy { before_ms: NEVER_MS, keep_turns }, webhooks: Vec::new() }
}

/// Journal of a session, written turn by turn.
struct Journal {
    store: Store,
    key: SessionKey,
    fence: ActorFence,
    last: u64,
}

impl Journal {
    async fn new(store: &Store, name: &str) -> Self {
        insert_session(store, name).await;
        let (_, fence) = store.claim(key(name)).await.unwrap();
        Self { store: store.clone(), key: key(name), fence, last: 0 }
    }

    fn rows(&mut self, row: &RunRow, count: u64) -> Vec<Write> {
        let mut writes = vec![Write::Run(Box::new(row.clone()))];
        for seq in 1..=count {
            self.last += 1;
            writes.push(event(self.last, Some((row.run_id, seq))));
        }
        writes
    }

    /// Writes a turn of this many rows, the last of which ends it.
    async fn turn(&mut self, rows: u64) {
        let running = run(&self.key, RunState::Running);
        let mut writes = self.rows(&running, rows - 1);
        self.last += 1;
        writes.push(Write::Event {
            session_seq: self.last,
            run: Some((running.run_id, rows)),
            kind: EventKind::Done,
            payload: "{}".to_owned(),
            extra: None,
        });
        writes.push(Write::Run(Box::new(RunRow { state: RunState::Completed, last_seq: rows, ..running })));
        self.store.commit(self.fence.clone(), writes).await.unwrap();
    }

    /// Writes rows of a turn that does not end.
    async fn begin(&mut self, rows: u64) {
        let running = run(&self.key, RunState::Running);
        let writes = self.rows(&running, rows);
        self.store.commit(self.fence.clone(), writes).await.unwrap();
    }

    async fn pruned(&self) -> u64 {
        self.store.session(self.key.clone()).await.unwrap().unwrap().pruned_seq
    }

    async fn after(&self, seq: u64) -> Result<Vec<u64>, StoreError> {
        let rows =
            self.store.events_after(self.key.clone(), events::position(seq), 1_000, usize::MAX).await?.rows;
        Ok(rows.into_iter().map(|row| row.session_seq).collect())
    }
}

async fn prune(store: &Store, rule: &PruneRule) -> u64 {
    let deleted = store.prune_journals(rule.clone(), || true).await.unwrap();
    assert_rules(store).await;
    deleted
}

async fn assert_rules(store: &Store) {
    let found = store.read("rules", check::rules).await.unwrap();
    let broken: Vec<_> = found.iter().filter_map(check::CheckFinding::violation).collect();
    assert!(broken.is_empty(), "{broken:?}");
}

async fn execute(store: &Store, sql: &'static str) -> Result<(), StoreError> {
    store.write("test", move |tx| tx.run_all(sql)).await
}

#[test]
fn wall_clock_that_is_ahead_makes_no_row_old() {
    const DAY_MS: u64 = 86_400_000;
    let now = 20_000 * DAY_MS;
    for (case, wall, last_at, uptime, want) in [
        ("just started", now, now - 5, 5, now),
        ("running for a month", now + 30 * DAY_MS, now, 30 * DAY_MS, now + 30 * DAY_MS),
        ("started a year ahead", now + 365 * DAY_MS, now, 5, now + 5),
        (
            "a year ahead since the start, an hour later",
            now + 365 * DAY_MS,
            now,
            DAY_MS / 24,
            now + DAY_MS / 24,
        ),
        ("set forward while running", now + 900 * DAY_MS, now, 2 * DAY_MS, now + 2 * DAY_MS),
        ("set back while running", now - 900 * DAY_MS, now, 2 * DAY_MS, now - 900 * DAY_MS),
        ("stopped for a year", now, now - 365 * DAY_MS, 5, now - 365 * DAY_MS + 5),
        ("the time of the last row cannot be read", now, 0, DAY_MS, DAY_MS),
        ("a damaged time", now, u64::MAX, DAY_MS, now),
    ] {
        assert_eq!(age_time_ms(wall, last_at, uptime), want, "{case}");
    }
}

/// A gateway that was never restarted since its first start prunes, too.
#[tokio::test]
async fn age_without_rows_is_measured_by_the_wall_clock() {
    let (dir, store) = open();
    store.close().await;
    for now_ms in [1_000, 2_000_000_000_000] {
        let clock = Clock::at(now_ms);
        let store = Store::open_with(dir.path(), Durability::Normal, GroupBounds::default(), clock).unwrap();
        assert!((now_ms..now_ms + 60_000).contains(&store.age_time_ms()), "{}", store.age_time_ms());
        store.close().await;
    }
}

#[tokio::test]
async fn cursor_at_the_floor_reads_on_and_one_below_is_refused() {
    let (_dir, store) = open();
    let mut journal = Journal::new(&store, "s").await;
    for _ in 0..5 {
        journal.turn(4).await;
    }
    let last_id = store.event_bounds().await.unwrap().last;
    assert_eq!(prune(&store, &rule(2)).await, 12);
    assert_eq!(journal.pruned().await, 12);
    assert_eq!(journal.after(0).await.unwrap(), (13..=20).collect::<Vec<_>>(), "without a cursor");
    assert_eq!(journal.after(12).await.unwrap().first(), Some(&13));
    assert_eq!(journal.after(15).await.unwrap().first(), Some(&16));
    for below in [1, 11] {
        let refused = journal.after(below).await;
        assert!(matches!(refused, Err(StoreError::CursorPruned { pruned: 12, .. })), "{below}: {refused:?}");
    }
    assert_eq!(store.event_bounds().await.unwrap(), EventBounds { pruned: 12, last: last_id });
    let all = async |after, known| store.all_events_after(after, known, 1_000, usize::MAX).await;
    assert!(matches!(all(11, 0).await, Err(StoreError::CursorPruned { after: 11, pruned: 12 })));
    assert_eq!(all(12, 0).await.unwrap().len(), 8);
    assert_eq!(all(11, 12).await.unwrap().len(), 8, "pruned before the reader began");
    assert_eq!(prune(&store, &rule(2)).await, 0, "idempotent");
    journal.turn(3).await;
    assert_eq!(prune(&store, &rule(2)).await, 4);
    assert_eq!(journal.pruned().await, 16);
}

/// Rows are pruned between two reads of one reader: between the floor and the first rows too.
#[tokio::test]
async fn reader_from_the_start_never_misses_rows_silently() {
    let (_dir, store) = open();
    let mut journal = Journal::new(&store, "s").await;
    for _ in 0..3 {
        journal.turn(3).await;
    }
    let floor = journal.pruned().await;
    let known = store.event_bounds().await.unwrap().pruned;
    assert_eq!((floor, known), (0, 0));
    prune(&store, &rule(1)).await;
    let read = async |position| store.events_after(journal.key.clone(), position, 9, usize::MAX).await;
    let missed = read(Some(floor)).await;
    assert!(matches!(missed, Err(StoreError::CursorPruned { after: 0, pruned: 6 })), "{missed:?}");
    let missed = store.all_events_after(0, known, 9, usize::MAX).await;
    assert!(matches!(missed, Err(StoreError::CursorPruned { after: 0, pruned: 6 })), "{missed:?}");
    let from_start = read(None).await.unwrap();
    assert_eq!((from_start.pruned_seq, from_start.rows.first().map(|row| row.session_seq)), (6, Some(7)));
    assert_eq!(store.all_events_after(0, 6, 9, usize::MAX).await.unwrap().len(), 3);
}

#[tokio::test]
async fn rows_that_are_needed_stay() {
    let (_dir, store) = open();
    let rule = rule(1);
    let young = PruneRule { policy: RetentionPolicy { before_ms: 1, keep_turns: 1 }, ..rule.clone() };
    let mut journal = Journal::new(&store, "s").await;
    journal.turn(3).await;
    journal.turn(3).await;
    assert_eq!(prune(&store, &young).await, 0, "young rows");

    let open_binding = binding(&journal.key, "c", BindingStatus::Active);
    let bound = open_binding.clone();
    store.write("bind", move |tx| crate::bindings::insert(tx, &bound)).await.unwrap();
    assert_eq!(prune(&store, &rule).await, 0, "nothing is delivered");
    let id = open_binding.binding_id;
    store.write("deliver", move |tx| checkpoints::advance(tx, id, 2, None)).await.unwrap();
    assert_eq!(prune(&store, &rule).await, 0, "the end of the turn is not delivered");
    store.write("deliver", move |tx| checkpoints::advance(tx, id, 6, None)).await.unwrap();

    assert_eq!(store.webhook_cursor("hook".to_owned()).await.unwrap(), 6);
    execute(&store, "UPDATE acp_webhook SET last_event_id = 1, updated_at = 0").await.unwrap();
    let named = PruneRule { webhooks: vec!["hook".to_owned()], ..rule.clone() };
    assert_eq!(prune(&store, &named).await, 0, "a configured webhook has not got it");

    let lease = lease(&journal.key);
    let row = permission(&lease, 1, PermissionState::Pending);
    let writes = vec![Write::NewLease(Box::new(lease)), Write::Permission(Box::new(row))];
    store.commit(journal.fence.clone(), writes).await.unwrap();
    let forgotten =
        PruneRule { policy: RetentionPolicy { before_ms: NEVER_MS, keep_turns: 1 }, ..rule.clone() };
    assert_eq!(prune(&store, &forgotten).await, 0, "a permission request is open");
    execute(&store, "UPDATE acp_permission SET state = 'expired', settled_without = 'policy'").await.unwrap();
    assert_eq!(prune(&store, &forgotten).await, 3);

    journal.begin(5).await;
    journal.begin_more_turns().await;
}

impl Journal {
    /// Checks that the rows of a running turn stay.
    async fn begin_more_turns(&mut self) {
        store_delivered(&self.store, self.last).await;
        assert_eq!(prune(&self.store, &rule(1)).await, 3, "the turn before the running one");
        assert_eq!(prune(&self.store, &rule(0)).await, 0, "the running turn stays");
    }
}

async fn store_delivered(store: &Store, through: u64) {
    let sql = format!("UPDATE acp_binding_checkpoint SET last_session_seq = {through}");
    store.write("test", move |tx| tx.run_all(&sql)).await.unwrap();
}

/// The state that a crash between the transactions of a pass leaves.
#[tokio::test]
async fn marked_rows_are_gone_for_readers_and_deleted_by_the_next_pass() {
    let (_dir, store) = open();
    let mut journal = Journal::new(&store, "s").await;
    for _ in 0..3 {
        journal.turn(3).await;
    }
    let (session, limits) = (journal.key.clone(), rule(1));
    assert!(store.write("mark", move |tx| mark_pruned(tx, &session, &limits)).await.unwrap());
    assert_rules(&store).await;
    assert_eq!(journal.after(0).await.unwrap(), [7, 8, 9]);
    assert!(journal.after(3).await.is_err());
    let young = PruneRule { policy: RetentionPolicy { before_ms: 1, keep_turns: 1 }, ..rule(1) };
    assert_eq!(prune(&store, &young).await, 6, "whatever the age now");
}

#[tokio::test]
async fn many_rows_and_runs_are_pruned_in_bounded_steps() {
    let (_dir, store) = open();
    let mut journal = Journal::new(&store, "s").await;
    let rows = ROWS_AT_ONCE * 2 + 7;
    journal.turn(rows).await;
    for _ in 0..300 {
        journal.turn(2).await;
    }
    let before = store.counts().transactions;
    assert_eq!(prune(&store, &rule(1)).await, rows + 299 * 2);
    let transactions = store.counts().transactions - before;
    assert!((5..12).contains(&transactions), "{transactions}");
    assert_eq!(journal.after(0).await.unwrap().len(), 2);
}

#[tokio::test]
async fn only_pruned_rows_can_be_deleted_and_the_floor_only_rises() {
    let (_dir, store) = open();
    let mut journal = Journal::new(&store, "s").await;
    for _ in 0..3 {
        journal.turn(3).await;
    }
    prune(&store, &rule(1)).await;
    for sql in [
        "DELETE FROM acp_events",
        "DELETE FROM acp_events WHERE session_seq = 7",
        "UPDATE acp_sessions SET pruned_seq = 5",
        "UPDATE acp_sessions SET pruned_seq = 9",
    ] {
        assert!(execute(&store, sql).await.is_err(), "{sql}");
    }
    assert_eq!(journal.after(0).await.unwrap(), [7, 8, 9]);
}

#[tokio::test]
async fn database_of_an_older_version_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let before = &schema::MIGRATIONS[..6];
    let db = opening::open_with(dir.path(), Durability::Full, before).unwrap();
    let sql = "INSERT INTO acp_sessions (session_key, backend, agent, mode, cwd, state, owner_session_key, \
        gateway_instance_id, resumable, options_json, last_session_seq, created_at, updated_at, last_activity_at) \
        VALUES ('s', 'direct', 'demo', 'persistent', '/', 'idle', 's', '', 0, '{}', 1, 0, 0, 0); \
        INSERT INTO acp_events (session_key, session_seq, kind, payload_json, created_at) \
        VALUES ('s', 1, 'agent_message', '{}', 0)";
    db.sqlite().unwrap().execute_batch(sql).unwrap();
    db.close().unwrap();
    let db = opening::open_writer(dir.path(), Durability::Full).unwrap();
    assert!(dir.path().join("gateway.db.schema-6").exists(), "a copy for the older version");
    assert_eq!(events::after(&db, &key("s"), None, 9, 99).unwrap().rows.len(), 1);
    assert!(check::rules(&db).unwrap().iter().all(|rule| rule.broken.is_empty()));
    assert!(db.sqlite().unwrap().execute_batch("DELETE FROM acp_events").is_err());
}

fn files(dir: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[tokio::test]
async fn compacted_database_is_smaller_and_has_the_same_marks() {
    let (dir, store) = open();
    let mut journal = Journal::new(&store, "s").await;
    for _ in 0..400 {
        journal.turn(100).await;
    }
    let last_id = store.event_bounds().await.unwrap().last;
    let locked = compact(dir.path(), Some(&rule(1)), 1, &mut |_| {});
    assert!(matches!(locked, Err(StoreError::Locked { .. })), "{locked:?}");
    let shown = preview(dir.path(), Some(&rule(1))).unwrap();
    assert_eq!((shown.rows, shown.sessions, shown.dry_run), (399 * 100, 1, true));
    store.close().await;
    let before = files(dir.path());
    let done = compact(dir.path(), Some(&rule(1)), 1, &mut |_| {}).unwrap();
    assert_eq!((done.rows, done.row_bytes, done.compacted), (shown.rows, shown.row_bytes, true));
    assert!(done.bytes_after < done.bytes_before / 4, "{done:?}");
    assert_eq!(files(dir.path()), before);
    let report = check::check_database(dir.path(), false).unwrap();
    assert!(report.ok, "{report:?}");
    let store = Store::open(dir.path(), Durability::Full).unwrap();
    assert_eq!(store.event_bounds().await.unwrap().last, last_id, "the supervisor sees no rollback");
    assert!(journal.after(1).await.is_err(), "the former handle is closed");
    let rows = store.events_after(key("s"), None, 1_000, usize::MAX).await.unwrap().rows;
    assert_eq!(rows.len(), 100);
    store.close().await;
}

#[tokio::test]
async fn compaction_waits_for_no_reader_and_loses_nothing() {
    let (dir, store) = open();
    let mut journal = Journal::new(&store, "s").await;
    journal.turn(3).await;
    journal.turn(3).await;
    store.close().await;
    let reader = schema::open_reader(dir.path()).unwrap();
    reader.run("BEGIN", &[]).unwrap();
    assert_eq!(events::last_id(&reader).unwrap(), 6);
    let refused = compact(dir.path(), Some(&rule(1)), 1, &mut |_| {});
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    drop(reader);
    let report = compact(dir.path(), None, 1, &mut |_| {}).unwrap();
    assert!(report.compacted && report.rows == 0, "{report:?}");
    assert!(check::check_database(dir.path(), false).unwrap().ok);
}
