//! The baseline of every pair with the store: SQLite alone, in a loop. It inserts the same rows into the same
//! tables with their indexes, checks and references, next to the gateway's file and with the gateway's
//! settings, and does nothing else.

use acp_tests::house::GATEWAY;
use acp_tests::world::World;
use rusqlite::types::Value;
use rusqlite::{Connection, params};
use std::time::Instant;

use crate::stats::{Sample, ms};

/// Columns of the journal, without `event_id`.
const EVENT: &str = "session_key, session_seq, run_id, seq, kind, payload_json, created_at";

/// A row of the journal.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    session: String,
    session_seq: i64,
    run: Option<String>,
    seq: Option<i64>,
    kind: String,
    payload: String,
    created_at: i64,
}

/// A database that copies the rows of the gateway's database.
#[derive(Debug)]
pub(crate) struct Plain {
    db: Connection,
    live: Connection,
    last: i64,
}

impl Plain {
    /// Creates a database next to the gateway's, with its settings and the current rows of its journal.
    pub(crate) fn beside(world: &World) -> Self {
        let live = world.journal(GATEWAY);
        let db = open(&world.path(GATEWAY).join("plain.db"));
        same_schema(&live, &db).unwrap_or_else(|e| panic!("the schema: {e}"));
        let mut plain = Self { db, live, last: 0 };
        let before = plain.fresh();
        let _ = plain.replay(&before, 1_000);
        plain
    }

    /// Returns the rows that the gateway's journal gained since the last call. Copies the rows that they
    /// refer to, since that is not part of the measurement.
    pub(crate) fn fresh(&mut self) -> Vec<Event> {
        for table in ["acp_sessions", "acp_runs"] {
            self.copy(table).unwrap_or_else(|e| panic!("{table}: {e}"));
        }
        let sql = format!("SELECT {EVENT}, event_id FROM acp_events WHERE event_id > ?1 ORDER BY event_id");
        let mut statement = self.live.prepare_cached(&sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let mut last = self.last;
        let rows = statement.query_map([self.last], |row| {
            last = row.get(7)?;
            Ok(Event {
                session: row.get(0)?,
                session_seq: row.get(1)?,
                run: row.get(2)?,
                seq: row.get(3)?,
                kind: row.get(4)?,
                payload: row.get(5)?,
                created_at: row.get(6)?,
            })
        });
        let rows = rows.and_then(Iterator::collect).unwrap_or_else(|e| panic!("the journal: {e}"));
        self.last = last;
        rows
    }

    fn copy(&self, table: &str) -> rusqlite::Result<()> {
        // Without the columns that are computed.
        let mut names = self.live.prepare(&format!("PRAGMA table_info({table})"))?;
        let names = names.query_map([], |row| row.get::<_, String>("name"))?;
        let names = names.collect::<rusqlite::Result<Vec<_>>>()?;
        let columns = names.join(", ");
        let places: Vec<String> = (1..=names.len()).map(|n| format!("?{n}")).collect();
        let sql = format!("INSERT OR IGNORE INTO {table} ({columns}) VALUES ({})", places.join(", "));
        let mut rows = self.live.prepare(&format!("SELECT {columns} FROM {table}"))?;
        let mut rows = rows.query([])?;
        self.run("BEGIN");
        let mut insert = self.db.prepare_cached(&sql)?;
        while let Some(row) = rows.next()? {
            let values: Vec<Value> = (0..names.len()).map(|n| row.get(n)).collect::<rusqlite::Result<_>>()?;
            insert.execute(rusqlite::params_from_iter(values))?;
        }
        self.run("COMMIT");
        Ok(())
    }

    /// Inserts events, `batch` per commit. Returns the time of each commit with its rows, in ms.
    pub(crate) fn replay(&self, events: &[Event], batch: usize) -> Sample {
        let sql = format!("INSERT INTO acp_events ({EVENT}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)");
        let mut times = Sample::default();
        for some in events.chunks(batch.max(1)) {
            let began = Instant::now();
            self.run("BEGIN IMMEDIATE");
            let mut insert = self.db.prepare_cached(&sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
            for one in some {
                let done = insert.execute(params![
                    one.session,
                    one.session_seq,
                    one.run,
                    one.seq,
                    one.kind,
                    one.payload,
                    one.created_at
                ]);
                done.unwrap_or_else(|e| panic!("{one:?}: {e}"));
            }
            self.run("COMMIT");
            times.push(ms(began.elapsed()));
        }
        self.db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap_or_else(|e| panic!("{e}"));
        times
    }

    fn run(&self, sql: &str) {
        let done = self.db.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        done.unwrap_or_else(|e| panic!("{sql}: {e}"));
    }
}

/// Creates the tables, indexes and triggers of one database in another.
fn same_schema(from: &Connection, to: &Connection) -> rusqlite::Result<()> {
    let sql =
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid";
    let mut all = from.prepare(sql)?;
    let mut all = all.query([])?;
    while let Some(one) = all.next()? {
        to.execute_batch(&one.get::<_, String>(0)?)?;
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the baseline of the store's figures")]
fn open(path: &std::path::Path) -> Connection {
    let db = Connection::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let set = db
        .pragma_update(None, "journal_mode", "WAL")
        .and_then(|()| db.pragma_update(None, "synchronous", "FULL"))
        .and_then(|()| db.pragma_update(None, "wal_autocheckpoint", 0))
        .and_then(|()| db.pragma_update(None, "temp_store", "MEMORY"))
        .and_then(|()| db.pragma_update(None, "cache_size", -8 * 1024))
        .and_then(|()| db.pragma_update(None, "foreign_keys", true));
    set.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    db
}
