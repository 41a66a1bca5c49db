//! Opening of a cell: what the server must offer, and the schema of the cell.

use super::ownership::{self, PostgresCell};
use crate::db::{Db, params};
use crate::error::StoreError;
use crate::postgres::{PgAddress, PgConnection};

/// Lowest version of the server.
const SERVER_VERSION_MIN: u64 = 150_000;
/// Statements that make the present schema.
const SCHEMA: &str = include_str!("control_plane.sql");
/// Version of [`SCHEMA`]: the number of the last migration of SQLite that it contains.
const SCHEMA_VERSION: u64 = 11;
/// Statements that lead from [`SCHEMA_VERSION`] on, one for each version.
const MIGRATIONS: &[&str] = &[];
/// Table with one row about the cell: schema version, end of the owner's time, record of the owner.
const CELL_TABLE: &str = "CREATE TABLE IF NOT EXISTS acp_cell (version BIGINT NOT NULL, until TIMESTAMPTZ NOT NULL DEFAULT now()); \
    ALTER TABLE acp_cell ADD COLUMN IF NOT EXISTS owner TEXT";

/// Connection of the cell's only writer, and the timeline of its server.
#[derive(Debug)]
pub struct OpenedCell {
    /// The connection.
    pub db: Db,
    /// Server and its timeline: another one after a failover or a restore.
    pub timeline: String,
}

fn refuse(address: &PgAddress, why: impl Into<String>) -> StoreError {
    StoreError::Server { address: address.to_string(), why: why.into(), is_passing: false }
}

/// Takes the cell: checks the server, takes the lock, and brings the schema up to date. `is_known` says that this state
/// directory has used the cell before, so that a missing one is a loss.
///
/// # Errors
/// [`StoreError::Server`]; [`StoreError::CellTaken`] while another gateway holds the lock; [`StoreError::Newer`]; errors of the
/// server. After an error nothing was changed.
pub fn open_writer(address: &PgAddress, allow_loss: bool, is_known: bool) -> Result<OpenedCell, StoreError> {
    let db = open_owner(address, allow_loss)?;
    if is_known && !ownership::is_used(&db, address)? {
        return Err(refuse(
            address,
            "the cell is missing, but this state directory has used it before: restore it with pg_restore, or use another \
             state directory to start an empty one",
        ));
    }
    db.transaction(|| create(&db, address))?;
    Ok(OpenedCell { timeline: timeline(&db)?, db })
}

/// Opens the connection of an owner: checks the server, and takes the lock of the cell.
///
/// # Errors
/// [`StoreError::Server`]; [`StoreError::CellTaken`]; errors of the server.
pub(crate) fn open_owner(address: &PgAddress, allow_loss: bool) -> Result<Db, StoreError> {
    let db = Db::of_postgres(PgConnection::open(address, &format!("acp-host {}", address.cell()), None)?);
    check_server(&db, address, allow_loss)?;
    // So that the server notices within some seconds that this machine is gone, and frees the lock.
    db.run_all("SET tcp_keepalives_idle = 3; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3")?;
    ownership::take_lock(&PostgresCell { db: &db, address })?;
    Ok(db)
}

/// Opens a connection for a look at the server. `purpose` is shown in the server's list of connections.
///
/// # Errors
/// [`StoreError::Server`].
pub(crate) fn connect(address: &PgAddress, purpose: &str) -> Result<Db, StoreError> {
    Ok(Db::of_postgres(PgConnection::open(address, &format!("acp-host {} {purpose}", address.cell()), None)?))
}

/// True if the schema of the cell exists.
///
/// # Errors
/// Errors of the server.
pub(crate) fn has_schema(db: &Db, address: &PgAddress) -> Result<bool, StoreError> {
    let sql = "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = ?1";
    let found: Option<u64> = db.first(sql, params![address.schema()], |row| row.only())?;
    Ok(found != Some(0))
}

/// Creates the cell if it is missing, and brings its schema up to date, in the open transaction.
///
/// # Errors
/// [`StoreError::Newer`]; errors of the server.
pub(crate) fn create(db: &Db, address: &PgAddress) -> Result<(), StoreError> {
    if !has_schema(db, address)? {
        db.run_all(&format!("CREATE SCHEMA {}", address.schema()))?;
    }
    db.run_all(&format!("SET search_path TO {}", address.schema()))?;
    migrate(db)
}

/// Opens a connection that reads.
///
/// # Errors
/// [`StoreError::Server`]; errors of the server.
pub fn open_reader(address: &PgAddress) -> Result<Db, StoreError> {
    let name = format!("acp-host {} reader", address.cell());
    let db = Db::of_postgres(PgConnection::open(address, &name, None)?);
    let settings = format!("SET search_path TO {}; SET default_transaction_read_only = on", address.schema());
    db.run_all(&settings)?;
    Ok(db)
}

/// Refuses a server of an older version, of another encoding, or one that may lose commits.
pub(crate) fn check_server(db: &Db, address: &PgAddress, allow_loss: bool) -> Result<(), StoreError> {
    let setting = |name: &str| -> Result<String, StoreError> {
        let found = db.first("SELECT current_setting(?1)", params![name], |row| row.only())?;
        found.ok_or(StoreError::Refused("the server has no such setting"))
    };
    let version: u64 = setting("server_version_num")?.parse().unwrap_or(0);
    if version < SERVER_VERSION_MIN {
        return Err(refuse(address, format!("the server has version {}: use 15 or later", version / 10_000)));
    }
    if setting("in_hot_standby")? == "on" {
        let why = "it is a standby, which takes no writes: name its primary, or both with target_session_attrs=read-write";
        return Err(StoreError::Server {
            address: address.to_string(),
            why: why.to_owned(),
            is_passing: true,
        });
    }
    let encoding = setting("server_encoding")?;
    if encoding != "UTF8" {
        return Err(refuse(address, format!("the database is encoded as {encoding}: create one with UTF8")));
    }
    if setting("synchronous_standby_names")?.is_empty() && !allow_loss {
        return Err(refuse(
            address,
            "it has no synchronous standby, so that its loss would lose what was answered. Set synchronous_standby_names on the \
             server, or accept the loss with allow_loss = true in [acp.control_plane.postgres]",
        ));
    }
    if setting("fsync")? != "on" && !allow_loss {
        return Err(refuse(address, "it does not sync its files (fsync is off): set fsync = on"));
    }
    db.run_all("SET synchronous_commit = on")
}

/// Brings the schema to this program's version, in the open transaction.
fn migrate(db: &Db) -> Result<(), StoreError> {
    db.run_all(CELL_TABLE)?;
    let found: Option<u64> = db.first("SELECT version FROM acp_cell", &[], |row| row.only())?;
    let known = schema_version();
    let applied = match found {
        Some(version) if version > known => {
            let number = |version| i64::try_from(version).unwrap_or(i64::MAX);
            return Err(StoreError::Newer { found: number(version), known: number(known) });
        }
        Some(version) => version,
        None => {
            db.run_all(SCHEMA)?;
            db.run("INSERT INTO acp_cell (version) VALUES (?1)", params![SCHEMA_VERSION])?;
            SCHEMA_VERSION
        }
    };
    let done = usize::try_from(applied.saturating_sub(SCHEMA_VERSION)).unwrap_or(usize::MAX);
    for sql in MIGRATIONS.iter().skip(done) {
        db.run_all(sql)?;
    }
    db.run("UPDATE acp_cell SET version = ?1", params![known])?;
    ownership::renew(db)
}

/// Version of the schema that this program makes.
pub(crate) const fn schema_version() -> u64 {
    SCHEMA_VERSION + MIGRATIONS.len() as u64
}

/// Identity of the server and its timeline. Row numbers that were shown hold on one timeline only.
fn timeline(db: &Db) -> Result<String, StoreError> {
    const SQL: &str = "SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || \
        substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
    db.first(SQL, &[], |row| row.only())?.ok_or(StoreError::Refused("the server has no timeline"))
}
