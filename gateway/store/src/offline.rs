//! Operations on a state directory that no gateway uses: a new identity, and acceptance of a loss. A restore is in
//! `restore.rs`.

use crate::cell;
use crate::db::Db;
use crate::error::StoreError;
use crate::identity::StateDirLocation;
use crate::lock::StateLock;
use crate::postgres::PgAddress;
use crate::rollback::RollbackRecord;
use crate::{Durability, identity, open, restore, rollback};
use acp_shared::ids::GatewayInstanceId;
use std::path::Path;

/// Gives a copied or restored state directory a new identity: sets a new instance id and forgets the leases,
/// which belong to the original gateway. Unfinished runs end as uncertain at the next start.
///
/// # Errors
/// [`StoreError::Locked`] while a gateway uses the directory; errors of opening the database.
pub fn adopt(dir: &Path) -> Result<GatewayInstanceId, StoreError> {
    let mut lock = StateLock::take(dir)?;
    open::before_open(dir, &lock)?;
    let db = open::open_writer(dir, Durability::Full)?;
    open::after_open(&db, &mut lock)?;
    let here = StateDirLocation::of(dir)?;
    let id = db.transaction(|| identity::take_over(&db, &here));
    drop(db);
    // The refusal on record concerns the original gateway.
    rollback::remove_record(dir)?;
    drop(lock);
    id
}

/// An accepted loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedLoss {
    /// The refusal.
    pub note: RollbackRecord,
    /// Number of pending prompts and messages ended as uncertain.
    pub uncertain: u64,
}

/// Accepts the loss of the missing data: the database continues as it is, treated like a restored backup. Can
/// be repeated after a crash.
///
/// # Errors
/// [`StoreError::Locked`] while a gateway runs; [`StoreError::Refused`] if nothing was refused; errors of
/// opening the database.
pub fn accept_loss(dir: &Path, now_ms: u64) -> Result<AcceptedLoss, StoreError> {
    let lock = StateLock::take(dir)?;
    open::before_open(dir, &lock)?;
    accept(dir, now_ms, || open::open_writer(dir, Durability::Full))
}

/// Accepts a loss of a cell like [`accept_loss`], e.g. of a server that failed over to an asynchronous standby.
///
/// # Errors
/// As [`accept_loss`]; [`StoreError::CellTaken`]; [`StoreError::Server`].
pub fn accept_loss_in_cell(
    dir: &Path,
    address: &PgAddress,
    allow_loss: bool,
    now_ms: u64,
) -> Result<AcceptedLoss, StoreError> {
    let lock = StateLock::take(dir)?;
    open::refuse_file(dir)?;
    accept(dir, now_ms, || Ok(cell::open::open_writer(address, allow_loss, lock.is_in_cell())?.db))
}

fn accept(
    dir: &Path,
    now_ms: u64,
    open: impl FnOnce() -> Result<Db, StoreError>,
) -> Result<AcceptedLoss, StoreError> {
    let none = "no supervisor has refused this database, so there is no loss to accept";
    let note = rollback::read(dir).ok_or(StoreError::Refused(none))?;
    let db = open()?;
    let uncertain = restore::settle_unknown(&db, now_ms)?;
    identity::accept_loss(&db, note.known_epoch)?;
    db.close()?;
    rollback::remove_record(dir)?;
    Ok(AcceptedLoss { note, uncertain })
}
