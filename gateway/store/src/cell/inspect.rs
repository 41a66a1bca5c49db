//! State of a server and of a cell, for `doctor`. Read-only, also while a gateway serves the cell.

use super::{open, ownership};
use crate::db::params;
use crate::error::StoreError;
use crate::postgres::PgAddress;
use crate::{check, gauges};

/// Largest cell whose rows are checked, in bytes: the checks read all of them.
const CHECKED_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// State of a server and of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerReport {
    /// Version of the server.
    pub version: String,
    /// Synchronous standbys that the server waits for; empty without one.
    pub standbys: String,
    /// Version of the cell's schema; `None` before the first start of a gateway.
    pub schema_version: Option<u64>,
    /// Version of this program's schema.
    pub known_version: u64,
    /// Size of the cell, in bytes.
    pub bytes: u64,
    /// Process of the server that belongs to the cell's owner.
    pub owner: Option<String>,
    /// Broken rules of the rows; `None` if they were not checked because there are many.
    pub broken: Option<Vec<String>>,
}

/// Looks at a server and a cell.
///
/// # Errors
/// [`StoreError::Server`] if the server cannot be reached or used; errors of the server.
pub fn inspect(address: &PgAddress, allow_loss: bool) -> Result<ServerReport, StoreError> {
    let db = open::connect(address, "doctor")?;
    open::check_server(&db, address, allow_loss)?;
    db.run_all(&format!("SET search_path TO {}; SET default_transaction_read_only = on", address.schema()))?;
    let setting = |name: &str| {
        let found = db.first("SELECT current_setting(?1)", params![name], |row| row.only::<String>());
        found.map(Option::unwrap_or_default)
    };
    let has_tables = db.first("SELECT to_regclass('acp_cell') IS NOT NULL", &[], |row| row.only())?;
    let (mut schema_version, mut bytes, mut broken) = (None, 0, None);
    if has_tables == Some(true) {
        schema_version = db.first("SELECT version FROM acp_cell", &[], |row| row.only())?;
        bytes = gauges::cell_size(&db)?;
    }
    if schema_version == Some(open::schema_version()) && bytes <= CHECKED_BYTES_MAX {
        broken = Some(check::rules(&db)?.iter().filter_map(check::CheckFinding::violation).collect());
    }
    Ok(ServerReport {
        version: setting("server_version")?,
        standbys: setting("synchronous_standby_names")?,
        schema_version,
        known_version: open::schema_version(),
        bytes,
        owner: ownership::holder(&db, address)?,
        broken,
    })
}
