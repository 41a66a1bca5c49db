//! Rows of the plane: identify slots of a bucket, the number of the day, and shards of cells, by cells of one database.

use acp_core::shards::ShardRange;
use acp_shared::clock::Clock;
use acp_store::cell::plane::{DiscordConnection, IdentifySlotAnswer, IdentifySlotRequest, Plane};
use acp_store::{GroupBounds, PgAddress, Store, StoreError};
use acp_testkit::postgres::Postgres;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time between two slots of a bucket, including the duration of a request.
const SLOT: Duration = Duration::from_secs(6);
const DAY_MS: u64 = 86_400_000;
/// Cells that want a slot at once.
const CELLS: u32 = 4;

/// Cell that this process owns.
struct Cell {
    store: Store,
    connection: Arc<DiscordConnection>,
    _dir: TempDir,
}

impl Cell {
    fn open(address: &str, name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = PgAddress::parse(address, name).unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test is a process of its own")]
        let clock = Clock::start();
        let store = Store::open_cell(dir.path(), &address, true, GroupBounds::default(), clock).unwrap();
        let connection = store.plane().unwrap().connect("main");
        Self { store, connection, _dir: dir }
    }

    fn plane(&self) -> Plane {
        self.store.plane().unwrap()
    }

    fn ask(&self, request: &IdentifySlotRequest) -> IdentifySlotAnswer {
        self.try_ask(request).unwrap()
    }

    fn try_ask(&self, request: &IdentifySlotRequest) -> Result<IdentifySlotAnswer, StoreError> {
        self.plane().take_slot(&self.connection, request)
    }

    fn close(self) {
        tokio::runtime::Runtime::new().unwrap().block_on(self.store.close());
    }
}

fn range(from: u32, to: u32, of: u32) -> ShardRange {
    ShardRange { from, to, of }
}

fn request(range: ShardRange) -> IdentifySlotRequest {
    let application = "100".to_owned();
    IdentifySlotRequest { application, range, bucket: 0, remaining: 1_000, reset_after_ms: DAY_MS }
}

fn is_taken(answer: &IdentifySlotAnswer) -> bool {
    matches!(answer, IdentifySlotAnswer::Taken { .. })
}

/// Number of sessions that may be identified after a slot that was taken.
fn remaining(answer: &IdentifySlotAnswer) -> Option<u64> {
    if let IdentifySlotAnswer::Taken { remaining, .. } = answer { Some(*remaining) } else { None }
}

/// Cells that begin at once create the plane once, and get their slots one after the other: no two within a slot's time.
#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn cells_take_slots_one_after_the_other() {
    let Some(server) = Postgres::start() else { return };
    let address = server.create_database("slots");
    let cells: Vec<Cell> = (0..CELLS).map(|cell| Cell::open(&address, &format!("c{cell}"))).collect();
    let mut taken: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let asking = cells.iter().zip(0..).map(|(cell, number)| {
            scope.spawn(move || {
                loop {
                    let asked = Instant::now();
                    match cell.ask(&request(range(number, number + 1, CELLS))) {
                        IdentifySlotAnswer::Taken { .. } => return (asked, Instant::now()),
                        IdentifySlotAnswer::Later { wait_ms } => {
                            std::thread::sleep(Duration::from_millis(wait_ms))
                        }
                        other => panic!("{other:?}"),
                    }
                }
            })
        });
        let asking: Vec<_> = asking.collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    taken.sort();
    for pair in taken.windows(2) {
        // Each slot is taken between question and answer.
        assert!(pair[1].1 - pair[0].0 >= SLOT, "{taken:?}");
    }
    // Another bucket is free, and another application as well.
    let other = IdentifySlotRequest { bucket: 1, ..request(range(0, 1, CELLS)) };
    assert!(is_taken(&cells[0].ask(&other)));
    assert!(matches!(cells[0].ask(&other), IdentifySlotAnswer::Later { wait_ms } if wait_ms <= 6_000));
    assert!(is_taken(&cells[1].ask(&IdentifySlotRequest { application: "200".to_owned(), ..other })));
}

/// The number of the day is counted over all cells, whatever each of them was told.
#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn sessions_of_the_day_are_counted_over_all_cells() {
    let Some(server) = Postgres::start() else { return };
    let address = server.create_database("limits");
    let (a, b) = (Cell::open(&address, "a"), Cell::open(&address, "b"));
    let of = |from: u32, bucket, remaining| IdentifySlotRequest {
        bucket,
        remaining,
        ..request(range(from, from + 1, 2))
    };
    assert_eq!(remaining(&a.ask(&of(0, 0, 3))), Some(2));
    // A report of before the first one, then one of after a session that no cell identified.
    assert_eq!(remaining(&b.ask(&of(1, 1, 3))), Some(1));
    assert_eq!(remaining(&a.ask(&of(0, 2, 2))), Some(0));
    for cell in [(&a, 0), (&b, 1)] {
        let IdentifySlotAnswer::Spent { wait_ms } = cell.0.ask(&of(cell.1, 3, 2)) else {
            panic!("not spent")
        };
        assert!((DAY_MS - 600_000..=DAY_MS).contains(&wait_ms), "{wait_ms}");
    }
    let sql = "UPDATE plane.discord_limits SET resets = now() - interval '1 second'";
    server.query(&address, sql).unwrap();
    assert_eq!(remaining(&b.ask(&of(1, 4, 900))), Some(899));
    assert_eq!(remaining(&a.ask(&of(0, 5, 100))), Some(99), "a lower report counts");
}

/// Rows of a server whose clock ran ahead delay one slot, and do not count the sessions of the day.
#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn rows_of_a_clock_that_ran_ahead_delay_one_slot() {
    let Some(server) = Postgres::start() else { return };
    let address = server.create_database("ahead");
    let cell = Cell::open(&address, "a");
    let question = IdentifySlotRequest { remaining: 5, ..request(range(0, 1, 1)) };
    assert_eq!(remaining(&cell.ask(&question)), Some(4));
    let ahead = "UPDATE plane.discord_identify_slots SET next = now() + interval '1 hour'; \
        UPDATE plane.discord_limits SET remaining = 0, resets = now() + interval '25 hours'";
    server.query(&address, ahead).unwrap();
    assert_eq!(cell.ask(&question), IdentifySlotAnswer::Later { wait_ms: 6_000 });
    let IdentifySlotAnswer::Later { wait_ms } = cell.ask(&question) else { panic!("not later") };
    std::thread::sleep(Duration::from_millis(wait_ms));
    assert_eq!(remaining(&cell.ask(&question)), Some(4));
}

/// Two cells that are served never have a shard in common. What a cell had is free when it ends, and what it left by another
/// range at once, so that the number of shards can be changed cell by cell.
#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn overlapping_shards_are_refused_while_their_cell_is_served() {
    let Some(server) = Postgres::start() else { return };
    let address = server.create_database("ranges");
    let (a, b) = (Cell::open(&address, "a"), Cell::open(&address, "b"));
    let buckets = std::cell::Cell::new(0);
    let ask = |cell: &Cell, range| {
        // A bucket of its own for each question, so that no slot is waited for.
        buckets.set(buckets.get() + 1);
        cell.ask(&IdentifySlotRequest { bucket: buckets.get(), ..request(range) })
    };
    let overlap = |cell: &str, range| IdentifySlotAnswer::Overlaps { cell: cell.to_owned(), range };
    assert!(is_taken(&ask(&a, range(0, 2, 4))));
    assert_eq!(ask(&b, range(1, 4, 4)), overlap("a", range(0, 2, 4)));
    assert_eq!(ask(&b, range(0, 1, 2)), overlap("a", range(0, 2, 4)), "another number of shards");
    assert!(is_taken(&ask(&b, range(2, 4, 4))));
    // Twice as many shards: the first cell is refused and has none until the second one has changed, too.
    assert_eq!(ask(&a, range(0, 4, 8)), overlap("b", range(2, 4, 4)));
    assert!(is_taken(&ask(&b, range(4, 8, 8))));
    assert!(is_taken(&ask(&a, range(0, 4, 8))));
    assert!(is_taken(&ask(&b, range(4, 8, 8))));
    // A cell that has ended leaves its row, which counts no longer.
    a.close();
    assert!(is_taken(&ask(&b, range(0, 8, 8))));
    let rows = "SELECT string_agg(cell || ' ' || shard_from || ' ' || shard_to, ', ' ORDER BY cell) FROM plane.discord_ranges";
    assert_eq!(server.query(&address, rows).unwrap(), "a 0 4, b 0 8");
    let again = Cell::open(&address, "a");
    assert_eq!(ask(&again, range(0, 4, 8)), overlap("b", range(0, 8, 8)));
}

/// A request of before a reload does not bring the former range back, and a second account of the application gets no slot.
#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn replaced_connection_and_second_account_get_no_slot() {
    let Some(server) = Postgres::start() else { return };
    let address = server.create_database("replaced");
    let mut cell = Cell::open(&address, "a");
    assert!(is_taken(&cell.ask(&request(range(0, 2, 4)))));
    let later = cell.plane().connect("main");
    let former = std::mem::replace(&mut cell.connection, later);
    let of_bucket = |bucket, range| IdentifySlotRequest { bucket, ..request(range) };
    assert!(is_taken(&cell.ask(&of_bucket(1, range(0, 1, 4)))));
    let refused = cell.plane().take_slot(&former, &of_bucket(2, range(0, 2, 4))).unwrap_err();
    assert!(matches!(refused, StoreError::Refused(_)), "{refused:?}");
    let second = cell.plane().connect("second");
    let answer = cell.plane().take_slot(&second, &of_bucket(2, range(2, 3, 4))).unwrap();
    assert_eq!(answer, IdentifySlotAnswer::SecondAccount { account: "main".to_owned() });
    let rows =
        "SELECT string_agg(cell || ' ' || shard_from || ' ' || shard_to, ', ') FROM plane.discord_ranges";
    assert_eq!(server.query(&address, rows).unwrap(), "a 0 1");
}

/// An owner whose cell was taken gets no slot, and a holder that stands still keeps the plane from others for seconds only.
#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn former_owner_gets_no_slot_and_a_frozen_one_blocks_for_seconds() {
    let Some(server) = Postgres::start() else { return };
    let address = server.create_database("former");
    let (former, other) = (Cell::open(&address, "a"), Cell::open(&address, "b"));
    assert!(is_taken(&former.ask(&request(range(0, 1, 2)))));
    let end =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'acp-host a'";
    assert_eq!(server.query(&address, end).unwrap(), "1");
    let refused = former.try_ask(&request(range(0, 1, 2))).unwrap_err();
    assert!(matches!(refused, StoreError::Refused(_)), "{refused:?}");
    // A row lock stands for the transaction of a process that is frozen: the answer is an error, not a wait.
    let answers: BTreeMap<bool, Duration> = std::thread::scope(|scope| {
        let hold = "BEGIN; LOCK TABLE plane.discord_ranges; SELECT pg_sleep(8); COMMIT";
        let holder = scope.spawn(|| server.query(&address, hold));
        let locked = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted \
            AND relation = 'plane.discord_ranges'::regclass";
        while server.query(&address, locked).unwrap() == "0" {
            std::thread::sleep(Duration::from_millis(20));
        }
        let begun = Instant::now();
        let answer = other.try_ask(&request(range(1, 2, 2)));
        let took = begun.elapsed();
        holder.join().unwrap().unwrap();
        BTreeMap::from([(answer.is_err(), took)])
    });
    assert!(answers.get(&true).is_some_and(|took| *took < SLOT), "{answers:?}");
    assert!(is_taken(&other.ask(&IdentifySlotRequest { bucket: 1, ..request(range(1, 2, 2)) })));
}
