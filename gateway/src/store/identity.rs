//! Who this gateway is: an instance id made once, an epoch that counts starts, and the home it lives in, by
//! which a copied state directory is told from the original (H15).

use crate::store::codec::run;
use crate::store::error::StoreError;
use crate::store::guard;
use crate::store::lock::StateLock;
use crate::store::meta;
use crate::store::schema::{Durability, open_reader, open_writer};
use acp_shared::ids::GatewayInstanceId;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const INSTANCE_ID: &str = "gateway_instance_id";
const EPOCH: &str = "gateway_epoch";
const HOME: &str = "home";

/// Who this gateway is, for as long as the store is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Made once, kept for ever.
    pub(crate) instance_id: GatewayInstanceId,
    /// One more than at the last start.
    pub(crate) epoch: u64,
}

/// Where a state directory is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Home {
    /// `/etc/machine-id`; empty where there is none.
    pub(crate) machine_id: String,
    /// The kernel's boot id: device numbers may change with it.
    pub(crate) boot_id: String,
    /// Device of the state directory.
    pub(crate) dev: u64,
    /// Inode of the state directory.
    pub(crate) ino: u64,
}

impl Home {
    /// The home of `dir` here and now.
    ///
    /// # Errors
    /// [`StoreError::File`] when the directory cannot be looked at.
    pub(crate) fn of(dir: &Path) -> Result<Self, StoreError> {
        let meta = std::fs::metadata(dir).map_err(|error| StoreError::file("look at", dir, error))?;
        let line =
            |path| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        Ok(Self {
            machine_id: line("/etc/machine-id"),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            dev: meta.dev(),
            ino: meta.ino(),
        })
    }

    /// Why `now` is another place than this one; `None` when it is the same.
    pub(crate) fn moved(&self, now: &Self) -> Option<String> {
        if self.machine_id != now.machine_id {
            return Some("it was made on another machine".to_owned());
        }
        if self.ino != now.ino {
            return Some(format!("its inode is {}, it was made at {}", now.ino, self.ino));
        }
        if self.boot_id == now.boot_id && self.dev != now.dev {
            return Some("it was made on another file system".to_owned());
        }
        None
    }
}

/// Reads who this gateway is, or makes it somebody on the first start; counts the start.
///
/// # Errors
/// [`StoreError::Cloned`] when the directory is a copy; nothing changes then.
pub(crate) fn establish(db: &Connection, dir: &Path) -> Result<Identity, StoreError> {
    let here = Home::of(dir)?;
    if let Some(why) = is_elsewhere(db, dir)? {
        return Err(StoreError::Cloned { dir: dir.to_owned(), why });
    }
    db.execute_batch("BEGIN IMMEDIATE")?;
    let identity = settle(db, &here);
    db.execute_batch(if identity.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    identity
}

/// Why a database was made somewhere else than in `dir`; `None` when it was made here, or nowhere yet.
///
/// # Errors
/// [`StoreError::Unreadable`]; [`StoreError::File`]; what SQLite says.
pub(crate) fn is_elsewhere(db: &Connection, dir: &Path) -> Result<Option<String>, StoreError> {
    let Some(home) = meta::get(db, HOME)? else { return Ok(None) };
    let home: Home = parse(HOME, &home, |text| serde_json::from_str(text))?;
    Ok(home.moved(&Home::of(dir)?))
}

/// Lets a restored database count its starts on from the one that it replaces, if that can still be read: a
/// supervisor never hears the same epoch twice.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says of the restored one.
pub(crate) fn raise_epoch(db: &Connection, dir: &Path) -> Result<(), StoreError> {
    let epoch = |db: &Connection| -> Result<u64, StoreError> {
        meta::get(db, EPOCH)?.map_or(Ok(0), |text| parse(EPOCH, &text, str::parse::<u64>))
    };
    let replaced = open_reader(dir).and_then(|old| epoch(&old)).unwrap_or(0);
    let restored = epoch(db)?;
    if replaced > restored { meta::set(db, EPOCH, &replaced.to_string()) } else { Ok(()) }
}

fn settle(db: &Connection, here: &Home) -> Result<Identity, StoreError> {
    let instance_id = match meta::get(db, INSTANCE_ID)? {
        Some(text) => parse(INSTANCE_ID, &text, GatewayInstanceId::parse)?,
        None => GatewayInstanceId::mint(),
    };
    let last = match meta::get(db, EPOCH)? {
        Some(text) => parse(EPOCH, &text, str::parse::<u64>)?,
        None => 0,
    };
    let epoch = last + 1;
    meta::set(db, INSTANCE_ID, &instance_id.to_string())?;
    meta::set(db, EPOCH, &epoch.to_string())?;
    meta::set(db, HOME, &serde_json::to_string(here)?)?;
    Ok(Identity { instance_id, epoch })
}

fn parse<T, E: ToString>(
    column: &'static str,
    text: &str,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, StoreError> {
    read(text).map_err(|error| StoreError::Unreadable { column, why: error.to_string() })
}

/// Makes a restored copy of a state directory a gateway of its own: it gets a new instance id, and forgets the
/// leases, which are the other one's. Runs that were under way then end as uncertain when the gateway starts.
///
/// # Errors
/// [`StoreError::Locked`] while a gateway runs on it; what opening says.
pub(crate) fn adopt(dir: &Path) -> Result<GatewayInstanceId, StoreError> {
    let mut lock = StateLock::take(dir)?;
    guard::before_open(dir, &lock)?;
    let db = open_writer(dir, Durability::Full)?;
    guard::after_open(&db, &mut lock)?;
    let here = Home::of(dir)?;
    db.execute_batch("BEGIN IMMEDIATE")?;
    let id = take_over(&db, &here);
    db.execute_batch(if id.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    drop(db);
    drop(lock);
    id
}

fn take_over(db: &Connection, here: &Home) -> Result<GatewayInstanceId, StoreError> {
    let id = GatewayInstanceId::mint();
    meta::set(db, INSTANCE_ID, &id.to_string())?;
    meta::set(db, HOME, &serde_json::to_string(here)?)?;
    run(
        db,
        "UPDATE acp_permission SET state = 'expired', settled_without = 'adopted' WHERE state = 'pending'",
        [],
    )?;
    run(db, "UPDATE acp_agent_request SET state = 'answered' WHERE state <> 'answered'", [])?;
    run(db, "UPDATE acp_leases SET usage = 'ended' WHERE usage <> 'ended'", [])?;
    run(db, "UPDATE acp_sessions SET lease_id = NULL WHERE lease_id IS NOT NULL", [])?;
    run(db, "UPDATE acp_sessions SET gateway_instance_id = ?1 WHERE state <> 'closed'", [id.to_string()])?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_told_from_its_copies() {
        let home = Home { machine_id: "m".into(), boot_id: "b".into(), dev: 1, ino: 2 };
        let rebooted = Home { boot_id: "c".into(), dev: 9, ..home.clone() };
        let table = [
            ("itself", home.clone(), false),
            ("after a reboot, other device number", rebooted, false),
            ("other machine", Home { machine_id: "n".into(), ..home.clone() }, true),
            ("other directory", Home { ino: 3, ..home.clone() }, true),
            ("other device, same boot", Home { dev: 9, ..home.clone() }, true),
        ];
        for (name, now, moved) in table {
            assert_eq!(home.moved(&now).is_some(), moved, "{name}");
        }
    }
}
