//! Ownership of a cell. The server keeps a lock for as long as the writer's connection stands, and each commit is made on that
//! connection: so none is made by a process that does not own the cell. The owner renews its time every other second on
//! another connection, and gives up before a second gateway may end its connection and take the cell.

use crate::db::{Db, ToValue, Value, params};
use crate::error::StoreError;
use crate::health::{HealthSender, StoreHealth};
use crate::postgres::{PgAddress, PgConnection};
use acp_core::api::CellOwnerView;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval of renewals.
const RENEW: Duration = Duration::from_secs(2);
/// Longest wait for the answer to a renewal, a new connection included. A pause, this and a pause again take no longer than
/// [`GIVE_UP`].
const PATIENCE: Duration = Duration::from_secs(4);
/// Time without an answered renewal after which the owner gives up, from before the last answered one on. Less than the ten
/// seconds of [`renew`].
const GIVE_UP: Duration = Duration::from_secs(8);
/// Attempts to take the lock of an owner whose connection was ended, and the pause between two.
const TAKE_ATTEMPTS: u32 = 20;
const TAKE_PAUSE: Duration = Duration::from_millis(100);
/// Condition for a row of `pg_locks` to be the lock with the number `?1`.
macro_rules! is_lock {
    () => {
        "locktype = 'advisory' AND granted AND objsubid = 1 \
         AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) \
         AND ((classid::bigint << 32) | objid::bigint) = CAST(?1 AS BIGINT)"
    };
}

/// Server of a cell, as [`take_lock`] uses it: PostgreSQL, or that of a simulation.
pub trait CellServer {
    /// Takes the lock of the cell if it is free.
    ///
    /// # Errors
    /// Errors of the server, as of the other methods.
    fn try_lock(&self) -> Result<bool, StoreError>;

    /// Takes the lock of the cell, and waits for it for a while if it is held.
    ///
    /// # Errors
    /// As [`CellServer::try_lock`].
    fn wait_for_lock(&self) -> Result<bool, StoreError> {
        self.try_lock()
    }

    /// True if the owner has not renewed its time. False for a cell without a table.
    ///
    /// # Errors
    /// As [`CellServer::try_lock`].
    fn has_run_out(&self) -> Result<bool, StoreError>;

    /// Ends the connection that holds the lock.
    ///
    /// # Errors
    /// As [`CellServer::try_lock`].
    fn end_holder(&self) -> Result<(), StoreError>;

    /// Renews the time of a cell that exists, so that no third gateway finds the time of the former owner.
    ///
    /// # Errors
    /// As [`CellServer::try_lock`].
    fn renew_at_once(&self) -> Result<(), StoreError>;

    /// Returns [`StoreError::CellTaken`] with the holder of the lock.
    ///
    /// # Errors
    /// As [`CellServer::try_lock`].
    fn taken(&self) -> Result<StoreError, StoreError>;
}

/// Takes the lock of the cell. The connection of an owner whose time has run out is ended before.
///
/// # Errors
/// [`StoreError::CellTaken`]; errors of the server.
pub fn take_lock(server: &impl CellServer) -> Result<(), StoreError> {
    if server.wait_for_lock()? {
        return server.renew_at_once();
    }
    if server.has_run_out()? {
        server.end_holder()?;
        for _ in 0..TAKE_ATTEMPTS {
            if server.try_lock()? {
                return server.renew_at_once();
            }
            std::thread::sleep(TAKE_PAUSE);
        }
    }
    Err(server.taken()?)
}

/// PostgreSQL as the server of a cell.
pub(super) struct PostgresCell<'a> {
    pub(super) db: &'a Db,
    pub(super) address: &'a PgAddress,
}

impl CellServer for PostgresCell<'_> {
    fn try_lock(&self) -> Result<bool, StoreError> {
        let number = LockNumber::of(&self.address.schema());
        let sql = "SELECT pg_try_advisory_lock(CAST(?1 AS BIGINT))";
        Ok(self.db.first(sql, params![number], |row| row.only())?.unwrap_or(false))
    }

    fn wait_for_lock(&self) -> Result<bool, StoreError> {
        const HELD_HERE: &str =
            concat!("SELECT count(*) FROM pg_catalog.pg_locks WHERE pid = pg_backend_pid() AND ", is_lock!());
        let wait = self.address.lock_wait;
        if wait.is_zero() {
            return self.try_lock();
        }
        // An error that is caught on the server is not in its log. The lock is that of the session, not of the block.
        let number = LockNumber::of(&self.address.schema());
        self.db.run_all(&format!(
            "DO $$ BEGIN PERFORM set_config('lock_timeout', '{}', true); PERFORM pg_advisory_lock({}); \
             EXCEPTION WHEN lock_not_available OR query_canceled THEN NULL; END $$",
            wait.as_millis(),
            number.0
        ))?;
        let held: Option<u64> = self.db.first(HELD_HERE, params![number], |row| row.only())?;
        Ok(held.is_some_and(|held| held > 0))
    }

    fn has_run_out(&self) -> Result<bool, StoreError> {
        if !is_used(self.db, self.address)? {
            return Ok(false);
        }
        let sql = format!("SELECT until < clock_timestamp() FROM {}.acp_cell", self.address.schema());
        Ok(self.db.first(&sql, &[], |row| row.only())?.unwrap_or(false))
    }

    fn end_holder(&self) -> Result<(), StoreError> {
        // Another gateway may have taken the cell since the look at its time.
        let sql = format!(
            concat!(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_catalog.pg_locks WHERE ",
                is_lock!(),
                " AND (SELECT until < clock_timestamp() FROM {}.acp_cell)"
            ),
            self.address.schema()
        );
        let number = LockNumber::of(&self.address.schema());
        let ended: Option<u64> = self.db.first(&sql, params![number], |row| row.only())?;
        if ended.is_some_and(|ended| ended > 0) {
            tracing::warn!(cell = self.address.cell(), "connection of an owner without renewal ended");
        }
        Ok(())
    }

    fn renew_at_once(&self) -> Result<(), StoreError> {
        if is_used(self.db, self.address)? {
            let sql = format!(
                "UPDATE {}.acp_cell SET until = clock_timestamp() + interval '10 seconds'",
                self.address.schema()
            );
            self.db.run_all(&sql)?;
        }
        Ok(())
    }

    fn taken(&self) -> Result<StoreError, StoreError> {
        let holder = holder(self.db, self.address)?.unwrap_or_else(|| "another process".to_owned());
        let owner = known_owner(self.db, self.address)?.map(Box::new);
        Ok(StoreError::CellTaken { cell: self.address.cell().to_owned(), holder, owner })
    }
}

/// Owner in the row of the cell.
#[derive(Debug, Serialize, Deserialize)]
struct OwnerRecord {
    /// Server process of the writer's connection. Another process with the lock means another owner.
    server_pid: u32,
    #[serde(flatten)]
    view: CellOwnerView,
}

/// Records the owner for gateways that stand by.
///
/// # Errors
/// [`StoreError::Unwritable`]; errors of the server.
pub(crate) fn record(db: &Db, owner: OwnerId, view: CellOwnerView) -> Result<(), StoreError> {
    let record = serde_json::to_string(&OwnerRecord { server_pid: owner.pid, view })?;
    db.run("UPDATE acp_cell SET owner = ?1", params![record]).map(drop)
}

/// Returns the owner if the present holder of the lock has recorded itself.
fn known_owner(db: &Db, address: &PgAddress) -> Result<Option<CellOwnerView>, StoreError> {
    const HOLDER: &str = concat!("SELECT pid FROM pg_catalog.pg_locks WHERE ", is_lock!(), " LIMIT 1");
    if !is_used(db, address)? {
        return Ok(None);
    }
    // The table of an older version has no such column.
    let sql =
        format!("SELECT coalesce(to_jsonb(cell) ->> 'owner', '') FROM {}.acp_cell AS cell", address.schema());
    let record: Option<String> = db.first(&sql, &[], |row| row.only())?;
    let record: Option<OwnerRecord> = record.and_then(|text| serde_json::from_str(&text).ok());
    // Read after the record: a new owner takes the lock first.
    let holder: Option<u32> =
        db.first(HOLDER, params![LockNumber::of(&address.schema())], |row| row.only())?;
    Ok(record.filter(|record| Some(record.server_pid) == holder).map(|record| record.view))
}

/// Process of the server that holds the lock of the cell.
///
/// # Errors
/// Errors of the server.
pub(crate) fn holder(db: &Db, address: &PgAddress) -> Result<Option<String>, StoreError> {
    const HOLDER: &str = concat!(
        "SELECT 'process ' || pid || coalesce(' from ' || host(client_addr), '') || ' since ' || \
         to_char(backend_start, 'YYYY-MM-DD HH24:MI:SS TZ') FROM pg_catalog.pg_stat_activity \
         WHERE pid IN (SELECT pid FROM pg_catalog.pg_locks WHERE ",
        is_lock!(),
        ") LIMIT 1"
    );
    db.first(HOLDER, params![LockNumber::of(&address.schema())], |row| row.only())
}

/// True if a gateway has used the cell.
///
/// # Errors
/// Errors of the server.
pub(super) fn is_used(db: &Db, address: &PgAddress) -> Result<bool, StoreError> {
    let table = format!("{}.acp_cell", address.schema());
    let exists = db.first("SELECT to_regclass(?1) IS NOT NULL", params![table], |row| row.only())?;
    Ok(exists.unwrap_or(false))
}

/// Number of an advisory lock.
#[derive(Debug, Clone, Copy)]
struct LockNumber(i64);

impl LockNumber {
    /// Number of the lock of a schema, the same in each version of this program.
    fn of(schema: &str) -> Self {
        let digest = Sha256::digest(format!("acp-host cell {schema}"));
        Self(digest.iter().take(8).fold(0, |number, byte| (number << 8) | i64::from(*byte)))
    }
}

impl ToValue for LockNumber {
    fn to_value(&self) -> Result<Value<'_>, StoreError> {
        Ok(Value::Integer(self.0))
    }
}

/// Sets the time until which the owner serves the cell, by the server's clock.
///
/// # Errors
/// Errors of the server.
pub(super) fn renew(db: &Db) -> Result<(), StoreError> {
    db.run("UPDATE acp_cell SET until = clock_timestamp() + interval '10 seconds'", &[]).map(drop)
}

/// Renews the time of the owner whose writer has this process of the server. False if that process holds the lock no longer, or
/// the server has no synchronous standby any longer although one is required.
fn renew_as(db: &Db, owner: &OwnerId) -> Result<bool, StoreError> {
    const RENEW: &str = concat!(
        "UPDATE acp_cell SET until = clock_timestamp() + interval '10 seconds' WHERE EXISTS (SELECT 1 FROM \
         pg_catalog.pg_locks WHERE pid = ?2 AND ",
        is_lock!(),
        ") AND (?3 = 1 OR current_setting('synchronous_standby_names') <> '')"
    );
    Ok(db.run(RENEW, params![owner.number, owner.pid, owner.allow_loss])? > 0)
}

/// Takes a lock that all processes with this purpose share, until the end of the transaction.
///
/// # Errors
/// Errors of the server.
pub(super) fn lock_for_transaction(db: &Db, purpose: &str) -> Result<(), StoreError> {
    // No schema of a cell has this name.
    let number = LockNumber::of(&format!("of {purpose}"));
    db.run("SELECT pg_advisory_xact_lock(CAST(?1 AS BIGINT))", params![number]).map(drop)
}

/// True while the owner's writer holds the lock of the cell.
///
/// # Errors
/// Errors of the server.
pub(super) fn is_held(db: &Db, owner: &OwnerId) -> Result<bool, StoreError> {
    is_held_by(db, owner.number, owner.pid)
}

/// True while this process of the server holds the lock of a cell.
///
/// # Errors
/// Errors of the server.
pub(super) fn is_served_by(db: &Db, cell: &str, server_pid: u32) -> Result<bool, StoreError> {
    is_held_by(db, LockNumber::of(&PgAddress::schema_of(cell)), server_pid)
}

fn is_held_by(db: &Db, number: LockNumber, server_pid: u32) -> Result<bool, StoreError> {
    const HELD: &str = concat!("SELECT count(*) FROM pg_catalog.pg_locks WHERE pid = ?2 AND ", is_lock!());
    let held: Option<u64> = db.first(HELD, params![number, server_pid], |row| row.only())?;
    Ok(held.is_some_and(|held| held > 0))
}

/// Owner of a cell, as the server knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnerId {
    number: LockNumber,
    /// Process of the server that serves the writer's connection.
    pid: u32,
    allow_loss: bool,
}

impl OwnerId {
    /// Owner whose writer is this connection.
    ///
    /// # Errors
    /// Errors of the server.
    pub(crate) fn of(db: &Db, address: &PgAddress, allow_loss: bool) -> Result<Self, StoreError> {
        let pid = db.first("SELECT pg_backend_pid()", &[], |row| row.only())?;
        let pid = pid.ok_or(StoreError::Refused("the server names no process"))?;
        Ok(Self { number: LockNumber::of(&address.schema()), pid, allow_loss })
    }

    /// Process of the server that serves the writer's connection.
    pub(super) const fn server_pid(&self) -> u32 {
        self.pid
    }
}

/// Time of an owner, by a clock that counts suspension of the machine.
#[derive(Debug, Clone, Copy)]
pub struct Tenure {
    /// Beginning of the last renewal that was answered.
    renewed: Duration,
}

impl Tenure {
    /// Time of an owner that has the cell since `now`.
    pub const fn from(now: Duration) -> Self {
        Self { renewed: now }
    }

    /// Returns the time in which a renewal that begins now has to be answered; `None` if the owner gives up instead.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        let left = GIVE_UP.saturating_sub(now.saturating_sub(self.renewed));
        (!left.is_zero()).then_some(left)
    }

    /// Notes the answer to a renewal that began at `asked`.
    pub const fn renew(&mut self, asked: Duration) {
        self.renewed = asked;
    }
}

/// Thread that renews the ownership.
#[derive(Debug)]
pub(crate) struct Owner {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Owner {
    /// Starts the thread. When it gives up, it sets the health of the store to [`StoreHealth::Lost`].
    ///
    /// # Errors
    /// [`StoreError::Server`]; [`StoreError::File`] if no thread can be started.
    pub(crate) fn start(
        address: &PgAddress,
        owner: OwnerId,
        health: HealthSender,
    ) -> Result<Self, StoreError> {
        let db = connect(address, Instant::now() + PATIENCE)?;
        let renewal = Renewal { db: Some(db), address: address.clone(), owner, health };
        #[expect(clippy::disallowed_methods, reason = "nothing is sent: its end is the message")]
        let (stop, stopped) = channel();
        let thread =
            std::thread::Builder::new().name("store-owner".to_owned()).spawn(move || renewal.run(&stopped));
        let thread = thread
            .map_err(|error| StoreError::file("start the thread that renews", address.schema(), error))?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread. Blocks for as long as a renewal takes.
    pub(crate) fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("thread that renews the ownership panicked");
        }
    }
}

/// State of the thread.
struct Renewal {
    db: Option<Db>,
    address: PgAddress,
    owner: OwnerId,
    health: HealthSender,
}

impl Renewal {
    fn run(mut self, stopped: &Receiver<()>) {
        let mut tenure = Tenure::from(now());
        while stopped.recv_timeout(RENEW) == Err(RecvTimeoutError::Timeout) {
            let asked = now();
            let Some(left) = tenure.left(asked) else {
                tracing::error!(cell = self.address.cell(), "ownership of the cell given up");
                return self.health.set(StoreHealth::Lost);
            };
            match self.renew(Instant::now() + left.min(PATIENCE)) {
                Ok(true) => tenure.renew(asked),
                Ok(false) => {
                    tracing::error!(cell = self.address.cell(), "ownership of the cell lost, or its standby");
                    return self.health.set(StoreHealth::Lost);
                }
                Err(error) => {
                    tracing::warn!(%error, cell = self.address.cell(), "ownership of the cell not renewed");
                }
            }
        }
    }

    fn renew(&mut self, deadline: Instant) -> Result<bool, StoreError> {
        let db = match self.db.take() {
            Some(db) => db,
            None => connect(&self.address, deadline)?,
        };
        if let Some(postgres) = db.postgres() {
            postgres.set_deadline(deadline);
        }
        let is_owner = renew_as(&db, &self.owner)?;
        self.db = Some(db);
        Ok(is_owner)
    }
}

/// Opens the connection that renews. The time is nothing to keep, so that no renewal waits for a standby.
fn connect(address: &PgAddress, deadline: Instant) -> Result<Db, StoreError> {
    let name = format!("acp-host {} owner", address.cell());
    let db = Db::of_postgres(PgConnection::open(address, &name, Some(deadline))?);
    db.run_all(&format!(
        "SET search_path TO {}; SET synchronous_commit = local; SET statement_timeout = {}",
        address.schema(),
        RENEW.as_millis()
    ))?;
    Ok(db)
}

/// Time of a clock that counts suspension of the machine.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
