//! `store move`, killed at random moments and at each of its steps, in both directions. Afterwards at most one side can be used,
//! and a repetition of the command completes the move.
//!
//! `ACP_TEST_SEED` repeats the moments. `ACP_MOVE_KILLS` says how many moves are killed in each direction.

use super::super::{configuration, configure, house, verb};
use crate::engine::open;
use acp_store::{Durability, Store, StoreError};
use acp_testkit::postgres::Postgres;
use acp_tests::cli::{RunningCommand, run};
use acp_tests::house::{GATEWAY, House};
use acp_tests::seed::Seed;
use acp_tests::wait::{LONG, SOON, eventually, spin_until};
use acp_tests::world::GATEWAY_DB;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Killed moves of one run in each direction.
const KILLS: u64 = 3;
const KILLS_ENV: &str = "ACP_MOVE_KILLS";
/// Tables whose rows are counted in both.
const TABLES: [&str; 4] = ["acp_sessions", "acp_runs", "acp_events", "acp_idempotency"];

/// Moment of a kill.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// So long after the start.
    After(Duration),
    /// When the copy has its name beside the original, or the original's log grows by its mark.
    Marked,
    /// When the file of the original is put aside, or the copy is in its place.
    Renamed,
}

/// Target of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Postgres,
    Sqlite,
}

impl To {
    const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }
}

/// A stopped gateway with rows, whose control plane is moved.
struct Moved {
    house: House,
    address: String,
    dir: PathBuf,
    /// Rows of each table.
    rows: Vec<u64>,
}

impl Moved {
    fn start(&self, to: To) -> RunningCommand {
        RunningCommand::start(&mut verb(&self.house, GATEWAY, &["store", "move", "--to", to.name()]))
    }

    /// Runs a move and kills it at a moment, or lets it end before.
    fn kill(&self, to: To, moment: Moment) {
        let (file, log) = (self.dir.join(GATEWAY_DB), self.dir.join(format!("{GATEWAY_DB}-wal")));
        let length = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
        let ready = || {
            let names = fs::read_dir(&self.dir).unwrap().flatten().map(|entry| entry.file_name());
            names.into_iter().any(|name| name.to_string_lossy().contains(".moving-"))
        };
        let began = Instant::now();
        let mut command = self.start(to);
        spin_until(LONG, "the moment of the kill", || {
            let is_now = match (moment, to) {
                (Moment::After(time), _) => began.elapsed() >= time,
                (Moment::Marked, To::Postgres) => length(&log) > 0,
                (Moment::Marked, To::Sqlite) => ready(),
                (Moment::Renamed, To::Postgres) => !file.exists(),
                (Moment::Renamed, To::Sqlite) => file.exists(),
            };
            // One that has ended is killed no more.
            (is_now || !acp_testkit::processes::is_alive(command.pid())).then_some(())
        });
        command.kill9();
    }

    /// Sides that a gateway can use now: the file, and the cell, from another state directory.
    async fn usable(&self, server: &Postgres) -> (bool, bool) {
        let dir = self.dir.clone();
        let opened = tokio::task::spawn_blocking(move || Store::open(&dir, Durability::Full)).await.unwrap();
        let file = match opened {
            Ok(store) => {
                store.close().await;
                true
            }
            Err(StoreError::InCell { .. } | StoreError::Moved { .. }) => false,
            Err(other) => panic!("{other:?}"),
        };
        let exists = "SELECT to_regclass('acp_main.acp_meta') IS NOT NULL";
        if server.query(&self.address, exists).unwrap() != "t" {
            return (file, false);
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let end = Instant::now() + SOON;
        loop {
            match open(&self.address, elsewhere.path(), true).await {
                Ok(store) => {
                    store.close().await;
                    return (file, true);
                }
                Err(StoreError::MoveUnfinished | StoreError::Moved { .. }) => return (file, false),
                // The server still works on a statement of the killed command.
                Err(StoreError::CellTaken { .. }) if Instant::now() < end => {}
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    /// Number of rows of each table on a side.
    fn count(&self, side: To, server: &Postgres) -> Vec<u64> {
        let of_file = |table: &str| -> u64 {
            let db = self.house.world.journal(GATEWAY);
            let count =
                db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0));
            u64::try_from(count.unwrap()).unwrap()
        };
        let of_cell = |table: &str| -> u64 {
            let sql = format!("SELECT count(*) FROM acp_main.{table}");
            server.query(&self.address, &sql).unwrap().parse().unwrap()
        };
        TABLES.iter().map(|table| if side == To::Sqlite { of_file(table) } else { of_cell(table) }).collect()
    }

    /// Moves with a kill and a repetition, and judges both.
    async fn survive(&self, server: &Postgres, to: To, moment: Moment) {
        self.kill(to, moment);
        let (file, cell) = self.usable(server).await;
        assert!(!(file && cell), "{to:?} {moment:?}: both sides can be used");
        let is_done = if to == To::Postgres { cell } else { file };
        let again = eventually(SOON, "the server has noticed the kill", || {
            let again = run(&mut verb(&self.house, GATEWAY, &["store", "move", "--to", to.name()]), LONG);
            let is_locked = again.code != Some(0) && again.error()["detail_code"] == "STORE_LOCKED";
            (!is_locked).then_some(again)
        });
        assert!(again.code == Some(0) || is_done, "{to:?} {moment:?}, file {file}, cell {cell}: {again:#?}");
        let want = if to == To::Postgres { (false, true) } else { (true, false) };
        assert_eq!(self.usable(server).await, want, "{to:?} {moment:?}");
        assert_eq!(self.count(to, server), self.rows, "{to:?} {moment:?}");
        println!("{to:?} {moment:?}: killed with file {file}, cell {cell}");
    }
}

/// Gateway with rows in a cell, stopped.
fn filled(server: &Postgres) -> Moved {
    let (mut house, key) = house(server, "moves").with_session();
    for _ in 0..3 {
        let _ = house.prompt(&key, "chunks 300 size=16");
    }
    house.stop_gateway();
    let dir = house.world.path(GATEWAY);
    let moved = Moved { house, address: server.address_of("moves"), dir, rows: Vec::new() };
    let rows = moved.count(To::Postgres, server);
    assert!(rows[2] > 100, "{rows:?}");
    Moved { rows, ..moved }
}

#[tokio::test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
async fn killed_move_leaves_one_side_and_is_completed_by_a_repetition() {
    let Some(server) = Postgres::start() else { return };
    let kills = std::env::var(KILLS_ENV).map_or(KILLS, |text| text.parse().unwrap());
    let mut seed = Seed::new();
    let mut moved = filled(&server);
    let mut took = [Duration::from_millis(500); 2];
    for number in 0..kills {
        for (to, took) in [To::Sqlite, To::Postgres].into_iter().zip(&mut took) {
            if to == To::Postgres {
                // The former cell has rows that were moved.
                let name = format!("moves{number}");
                moved.address = server.create_database(&name);
                configure(
                    &moved.house.world,
                    GATEWAY,
                    &configuration(&moved.house.world, &moved.address, true),
                );
            }
            let moment = match number % 4 {
                1 => Moment::Marked,
                2 => Moment::Renamed,
                _ => Moment::After(seed.time_below(*took)),
            };
            let began = Instant::now();
            moved.survive(&server, to, moment).await;
            // A whole move is a part of it.
            *took = (began.elapsed() / 3).min(*took);
        }
    }
}
