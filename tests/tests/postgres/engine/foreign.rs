//! Cells that are taken, and servers that are lost, below a store that writes. Each test needs a server.

use acp_core::event::EventKind;
use acp_core::writes::{ActorFence, Write};
use acp_shared::clock::Clock;
use acp_shared::ids::SessionKey;
use acp_store::{GroupBounds, PgAddress, Store, StoreError, StoreHealth, params, sessions};
use acp_testkit::postgres::Postgres;
use acp_tests::wait::{SOON, until};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CELL: &str = "main";
const WRITERS: usize = 8;
/// Longest time until an owner notices the loss of its lock, on a busy machine.
const GIVES_UP: Duration = Duration::from_secs(30);
const SESSION: &str = "INSERT INTO acp_sessions (session_key, backend, agent, mode, cwd, state, owner_session_key, \
    gateway_instance_id, resumable, options_json, last_session_seq, created_at, updated_at, last_activity_at) \
    VALUES (?1, 'direct', 'demo', 'persistent', '/', 'running', ?1, '', 0, '{}', 0, 0, 0, 0)";
/// Losses of the primary in one run.
const LOSSES_ENV: &str = "ACP_POSTGRES_LOSSES";

/// Opens the cell at an address with a state directory, as a gateway does.
pub(crate) async fn open(address: &str, dir: &Path, allow_loss: bool) -> Result<Store, StoreError> {
    let address = PgAddress::parse(address, CELL)?;
    let dir = dir.to_owned();
    #[expect(clippy::disallowed_methods, reason = "a test is a process of its own")]
    let clock = Clock::start();
    let open = move || Store::open_cell(&dir, &address, allow_loss, GroupBounds::default(), clock);
    tokio::task::spawn_blocking(open).await.unwrap()
}

pub(super) fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub(super) async fn insert_session(store: &Store, name: &str) -> SessionKey {
    let key = SessionKey::parse(name).unwrap();
    let inserted = key.clone();
    store.write("insert", move |tx| tx.run(SESSION, params![inserted])).await.unwrap();
    key
}

pub(super) async fn fence(store: &Store, key: &SessionKey) -> Result<ActorFence, StoreError> {
    let session_key = key.clone();
    let epoch = store.write("epoch", move |tx| sessions::next_epoch(tx, &session_key)).await?;
    Ok(ActorFence { session_key: key.clone(), epoch })
}

async fn append(store: &Store, fence: &ActorFence, session_seq: u64) -> Result<(), StoreError> {
    append_as(store, fence, session_seq, store.identity().epoch).await
}

/// Appends a row that names the epoch of the gateway that writes it.
pub(super) async fn append_as(
    store: &Store,
    fence: &ActorFence,
    session_seq: u64,
    epoch: u64,
) -> Result<(), StoreError> {
    let (kind, payload) = (EventKind::AgentMessage, format!("{{\"epoch\":{epoch}}}"));
    store
        .commit(fence.clone(), vec![Write::Event { session_seq, run: None, kind, payload, extra: None }])
        .await
}

async fn numbers(store: &Store, key: &SessionKey) -> Vec<u64> {
    let rows = store.events_after(key.clone(), None, 1_000_000, usize::MAX).await.unwrap().rows;
    rows.iter().map(|row| row.session_seq).collect()
}

#[tokio::test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
async fn cell_has_one_owner_until_its_store_is_closed() {
    let Some(server) = Postgres::start() else { return };
    let (address, first_dir, second_dir) = (server.create_database("plane"), dir(), dir());
    let first = open(&address, first_dir.path(), true).await.unwrap();
    let key = insert_session(&first, "s").await;
    append(&first, &fence(&first, &key).await.unwrap(), 1).await.unwrap();
    match open(&address, second_dir.path(), true).await {
        Err(StoreError::CellTaken { cell, holder, .. }) => {
            assert_eq!(cell, CELL);
            assert!(holder.starts_with("process "), "{holder}");
        }
        other => panic!("{other:?}"),
    }
    let identity = first.identity().clone();
    first.close().await;
    let began = Instant::now();
    let second = open(&address, second_dir.path(), true).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "an orderly hand-over takes {:?}", began.elapsed());
    assert_eq!(second.identity().instance_id, identity.instance_id);
    assert_eq!(second.identity().epoch, identity.epoch + 1);
    assert_eq!(second.identity().cursor_epoch, identity.cursor_epoch, "the same server on the same timeline");
    assert_eq!(numbers(&second, &key).await, [1]);
    second.close().await;
}

#[tokio::test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
async fn owner_without_renewal_is_replaced_and_commits_nothing_more() {
    let Some(server) = Postgres::start() else { return };
    let (address, first_dir, second_dir) = (server.create_database("plane"), dir(), dir());
    let first = open(&address, first_dir.path(), true).await.unwrap();
    let key = insert_session(&first, "s").await;
    let of_first = fence(&first, &key).await.unwrap();
    append(&first, &of_first, 1).await.unwrap();
    // As if the owner had been frozen: it renews every other second, so that some attempts come too late.
    let second = loop {
        let past = format!("UPDATE acp_{CELL}.acp_cell SET until = now() - interval '1 second'");
        server.query(&address, &past).unwrap();
        match open(&address, second_dir.path(), true).await {
            Ok(second) => break second,
            Err(StoreError::CellTaken { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    };
    let of_second = fence(&second, &key).await.unwrap();
    append(&second, &of_second, 2).await.unwrap();
    let late = append(&first, &of_first, 2).await;
    assert!(matches!(late, Err(StoreError::ConnectionLost | StoreError::OutcomeUnknown)), "{late:?}");
    assert_eq!(*first.health().borrow(), StoreHealth::Lost);
    let later = append(&first, &of_first, 2).await;
    assert!(matches!(later, Err(StoreError::ConnectionLost)), "nothing is tried again: {later:?}");
    append(&second, &of_second, 3).await.unwrap();
    assert_eq!(numbers(&second, &key).await, [1, 2, 3]);
    first.close().await;
    second.close().await;
}

#[tokio::test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
async fn idle_owner_that_lost_its_lock_gives_up_without_a_write() {
    let Some(server) = Postgres::start() else { return };
    let (address, state) = (server.create_database("plane"), dir());
    let store = open(&address, state.path(), true).await.unwrap();
    let end = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'acp-host {CELL}'"
    );
    assert_eq!(server.query(&address, &end).unwrap(), "1");
    let mut health = store.health();
    let lost = health.wait_for(|health| *health == StoreHealth::Lost);
    tokio::time::timeout(GIVES_UP, lost).await.expect("the owner notices it").unwrap();
    let past = format!("UPDATE acp_{CELL}.acp_cell SET until = now() - interval '1 second'");
    server.query(&address, &past).unwrap();
    store.close().await;
    let is_past = format!("SELECT until < now() FROM acp_{CELL}.acp_cell");
    assert_eq!(server.query(&address, &is_past).unwrap(), "t", "a former owner renews nothing");
}

#[tokio::test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
async fn reader_whose_connection_was_ended_is_replaced() {
    const READERS: &str = "FROM pg_stat_activity WHERE application_name = 'acp-host main reader'";
    let Some(server) = Postgres::start() else { return };
    let (address, state) = (server.create_database("plane"), dir());
    let store = open(&address, state.path(), true).await.unwrap();
    let key = insert_session(&store, "s").await;
    assert_eq!(numbers(&store, &key).await, [0; 0]);
    let ended = server.query(&address, &format!("SELECT count(pg_terminate_backend(pid)) {READERS}"));
    assert_ne!(ended.unwrap(), "0");
    let left = format!("SELECT count(*) {READERS}");
    until(SOON, "the readers are gone", || server.query(&address, &left).unwrap() == "0");
    assert_eq!(numbers(&store, &key).await, [0; 0]);
    assert_eq!(*store.health().borrow(), StoreHealth::Well);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
async fn commit_that_the_server_ends_while_it_waits_for_a_standby_is_unknown() {
    const WAITING: &str =
        "FROM pg_stat_activity WHERE application_name = 'acp-host main' AND wait_event = 'SyncRep'";
    let Some(server) = Postgres::start() else { return };
    let (address, state) = (server.create_database("plane"), dir());
    let standby = server.standby();
    let store = open(&address, state.path(), false).await.unwrap();
    let key = insert_session(&store, "s").await;
    let of_key = fence(&store, &key).await.unwrap();
    append(&store, &of_key, 1).await.unwrap();
    let frozen = standby.freeze();
    let (writing, fence) = (store.clone(), of_key.clone());
    let commit = tokio::spawn(async move { append(&writing, &fence, 2).await });
    let waits = format!("SELECT count(*) {WAITING}");
    until(SOON, "the commit waits", || server.query(&address, &waits).unwrap() == "1");
    let ended = format!("SELECT count(pg_terminate_backend(pid)) {WAITING}");
    assert_eq!(server.query(&address, &ended).unwrap(), "1");
    let commit = commit.await.unwrap();
    assert!(matches!(commit, Err(StoreError::OutcomeUnknown)), "{commit:?}");
    assert_eq!(*store.health().borrow(), StoreHealth::Lost);
    let later = append(&store, &of_key, 2).await;
    assert!(matches!(later, Err(StoreError::ConnectionLost)), "nothing is tried again: {later:?}");
    drop(frozen);
    store.close().await;
    let next = open(&address, state.path(), false).await.unwrap();
    let found = numbers(&next, &key).await;
    assert!(found == [1] || found == [1, 2], "{found:?}");
    next.close().await;
}

#[tokio::test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
async fn cells_of_one_name_in_two_databases_have_two_owners() {
    let Some(server) = Postgres::start() else { return };
    let (one, two) = (server.create_database("one"), server.create_database("two"));
    let dirs = [dir(), dir(), dir()];
    let former = open(&one, dirs[0].path(), true).await.unwrap();
    let other = open(&two, dirs[1].path(), true).await.unwrap();
    let past = format!("UPDATE acp_{CELL}.acp_cell SET until = now() - interval '1 second'");
    let second = loop {
        server.query(&one, &past).unwrap();
        match open(&one, dirs[2].path(), true).await {
            Ok(second) => break second,
            Err(StoreError::CellTaken { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    };
    insert_session(&other, "s").await;
    assert_eq!(*other.health().borrow(), StoreHealth::Well);
    for store in [former, other, second] {
        store.close().await;
    }
}

#[tokio::test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
async fn server_that_may_lose_rows_is_refused_unless_that_is_allowed() {
    let Some(server) = Postgres::start() else { return };
    let address = server.create_database("plane");
    let refused = open(&address, dir().path(), false).await.unwrap_err().to_string();
    assert!(refused.contains("synchronous_standby_names") && refused.contains("allow_loss"), "{refused}");
    let standby = server.standby();
    let (first_dir, address) = (dir(), server.address_of("plane"));
    let store = open(&address, first_dir.path(), false).await.unwrap();
    store.close().await;
    server.query(&address, &format!("DROP SCHEMA acp_{CELL} CASCADE")).unwrap();
    let missing = open(&address, first_dir.path(), false).await.unwrap_err().to_string();
    assert!(missing.contains("missing"), "a state directory that used the cell: {missing}");
    drop(standby);
}

/// Sessions whose writers commit until the server is gone, and how far each was acknowledged.
struct Load {
    store: Store,
    sessions: Vec<SessionKey>,
    acknowledged: Vec<u64>,
}

impl Load {
    /// Writes with all sessions at once until a commit fails. `lose` runs meanwhile, once some were acknowledged.
    async fn until_lost(address: &str, dir: &Path, allow_loss: bool, lose: impl AsyncFnOnce()) -> Self {
        let store = open(address, dir, allow_loss).await.unwrap();
        let mut sessions = Vec::new();
        let mut writers = Vec::new();
        for number in 0..WRITERS {
            let key = insert_session(&store, &format!("s{number}")).await;
            let (store, fence) = (store.clone(), fence(&store, &key).await.unwrap());
            writers.push(tokio::spawn(async move {
                let mut acknowledged = 0;
                loop {
                    match append(&store, &fence, acknowledged + 1).await {
                        Ok(()) => acknowledged += 1,
                        Err(
                            StoreError::ConnectionLost | StoreError::OutcomeUnknown | StoreError::GroupLost,
                        ) => {
                            return acknowledged;
                        }
                        Err(other) => panic!("{other:?}"),
                    }
                }
            }));
            sessions.push(key);
        }
        lose().await;
        let mut acknowledged = Vec::new();
        for writer in writers {
            acknowledged.push(writer.await.unwrap());
        }
        assert_eq!(*store.health().borrow(), StoreHealth::Lost);
        Self { store, sessions, acknowledged }
    }

    /// Number of acknowledged rows that another server lacks. Panics at a gap or a repetition.
    async fn lost_at(self, address: &str) -> u64 {
        self.store.close().await;
        let after = open(address, dir().path(), true).await.unwrap();
        assert_ne!(
            after.identity().cursor_epoch,
            self.store.identity().cursor_epoch,
            "another timeline, another epoch of the row numbers"
        );
        let mut lost = 0;
        for (key, acknowledged) in self.sessions.iter().zip(self.acknowledged) {
            let found = numbers(&after, key).await;
            assert!(found.iter().copied().eq(1..=found.len() as u64), "{key}: {found:?}");
            lost += acknowledged.saturating_sub(found.len() as u64);
            let fence = fence(&after, key).await.unwrap();
            append(&after, &fence, found.len() as u64 + 1).await.unwrap();
        }
        after.close().await;
        lost
    }
}

/// Time of load before a loss: another one in each round, so that it hits other moments.
fn load_time(round: u64) -> Duration {
    Duration::from_millis(300 + round * 37)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
async fn loss_of_the_primary_loses_no_acknowledged_row() {
    let losses = std::env::var(LOSSES_ENV).map_or(2, |text| text.parse().unwrap());
    for round in 0..losses {
        let Some(mut first) = Postgres::start() else { return };
        drop(first.create_database("plane"));
        let mut second = first.standby();
        let (state, address) = (dir(), first.address_of("plane"));
        let load = Load::until_lost(&address, state.path(), false, async || {
            tokio::time::sleep(load_time(round)).await;
            first.kill();
        });
        let load = load.await;
        second.promote();
        let acknowledged: u64 = load.acknowledged.iter().sum();
        assert!(acknowledged > 0, "rows were written");
        assert_eq!(
            load.lost_at(&second.address_of("plane")).await,
            0,
            "round {round}, {acknowledged} acknowledged"
        );
    }
}

/// The judge of the test above: without a synchronous standby, it finds losses.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
async fn loss_of_a_primary_with_an_asynchronous_standby_is_found() {
    let Some(mut first) = Postgres::start() else { return };
    drop(first.create_database("plane"));
    let mut second = first.standby();
    first.set("synchronous_standby_names", "");
    let (state, address) = (dir(), first.address_of("plane"));
    let load = Load::until_lost(&address, state.path(), true, async || {
        tokio::time::sleep(load_time(0)).await;
        second.kill();
        tokio::time::sleep(load_time(0)).await;
        first.kill();
    });
    let load = load.await;
    second.restart();
    second.promote();
    assert!(load.lost_at(&second.address_of("plane")).await > 0, "the judge finds nothing");
}
