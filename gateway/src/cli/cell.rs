//! Commands where the store is PostgreSQL: what works on database files is refused, with what to do instead.

use crate::app::store::{Cell, read_cell};
use crate::cli::config::{self, ConfigArgs};
use crate::cli::usage;
use acp_core::config::{PostgresStore, StoreKind};
use acp_core::failure::Failure;
use acp_store::lock;
use std::path::Path;

/// Returns the settings of the cell that the configuration names as store; `None` with SQLite, and for a configuration that
/// cannot be read.
pub(crate) fn configured(dir: &Path, args: &ConfigArgs) -> Option<PostgresStore> {
    let (loaded, _) = config::read(dir, args, None).ok()?;
    let plane = loaded.config.acp.control_plane;
    (plane.store == StoreKind::Postgres).then_some(plane.postgres)
}

/// Refuses a command on the database file of a state directory whose control plane is in PostgreSQL.
///
/// # Errors
/// `USAGE` with what to do instead, in which `SCHEMA` stands for the cell's.
pub(crate) fn refuse(dir: &Path, args: &ConfigArgs, instead: &str) -> Result<(), Failure> {
    let settings = configured(dir, args);
    if settings.is_none() && !lock::is_in_cell(dir) {
        return Ok(());
    }
    let schema = settings.map_or("acp_CELL".to_owned(), |settings| format!("acp_{}", settings.cell));
    let text = format!(
        "the control plane of {} is in PostgreSQL. {}",
        dir.display(),
        instead.replace("SCHEMA", &schema)
    );
    Err(usage(text))
}

/// Reads the configured cell; `None` with SQLite.
///
/// # Errors
/// `CONFIG_INVALID`.
pub(crate) fn read_configured(dir: &Path, args: &ConfigArgs) -> Result<Option<Cell>, Failure> {
    configured(dir, args).map(|settings| read_cell(&settings)).transpose()
}
