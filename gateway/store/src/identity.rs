//! Identity of this gateway: an instance id created once, an epoch that counts starts, and the location of
//! the state directory, which distinguishes the original from a copy (H15).

use crate::db::{Db, params};
use crate::error::StoreError;
use crate::schema::open_reader;
use crate::{events, host_reports, meta, rollback};
use acp_shared::ids::{GatewayInstanceId, StartId};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const INSTANCE_ID: &str = "gateway_instance_id";
const EPOCH: &str = "gateway_epoch";
const HOME: &str = "home";
/// [`CursorEpoch`]; absent after a restore.
const CURSOR_EPOCH: &str = "cursor_epoch";
/// Present from an accepted loss to the next start, see [`begin_admissions`].
const ACCEPTED_LOSS: &str = "accepted_loss";
/// [`PendingAdmission`], with the name of a host.
const PENDING_ADMISSION: &str = "pending_admission";
/// [`UnadmittedStart`]; absent once a supervisor has admitted the start.
const UNADMITTED: &str = "unadmitted_start";

/// Identity of this gateway, fixed while the store is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayIdentity {
    /// Created with the database; replaced only by `adopt`.
    pub instance_id: GatewayInstanceId,
    /// Start counter, incremented at each start except after a refusal by the supervisor.
    pub epoch: u64,
    /// Random id of this start. The start after a refusal by the supervisor has the id of the refused one.
    pub start_id: StartId,
    /// Location that the supervisor knows this gateway by.
    pub home: StateDirLocation,
    /// Epoch of the journal's row numbers: another one after each boot of the machine, a restore, or an accepted loss.
    pub cursor_epoch: StartId,
}

/// Epoch of the journal's row numbers. Within one boot a committed row is never lost.
#[derive(Serialize, Deserialize)]
struct CursorEpoch {
    boot_id: String,
    id: StartId,
}

/// Returns the epoch of the row numbers, a new one if this is another boot or the database was restored.
fn cursor_epoch(db: &Db, boot_id: &str) -> Result<StartId, StoreError> {
    let known: Option<CursorEpoch> = match meta::get(db, CURSOR_EPOCH)? {
        Some(text) => Some(parse(CURSOR_EPOCH, &text, |text| serde_json::from_str(text))?),
        None => None,
    };
    if let Some(known) = known.filter(|known| !known.boot_id.is_empty() && known.boot_id == boot_id) {
        return Ok(known.id);
    }
    let new = CursorEpoch { boot_id: boot_id.to_owned(), id: StartId::mint() };
    meta::set(db, CURSOR_EPOCH, &serde_json::to_string(&new)?)?;
    Ok(new.id)
}

/// Last start, while no supervisor has admitted it.
#[derive(Serialize, Deserialize)]
struct UnadmittedStart {
    epoch: u64,
    start_id: StartId,
    /// Event id of the database at the first start that no supervisor has admitted.
    event_id: u64,
}

/// Returns the last start if no supervisor has admitted it, and no older version has started since.
fn unadmitted_start(db: &Db) -> Result<Option<UnadmittedStart>, StoreError> {
    let Some(text) = meta::get(db, UNADMITTED)? else { return Ok(None) };
    let start: UnadmittedStart = parse(UNADMITTED, &text, |text| serde_json::from_str(text))?;
    Ok((start.epoch == epoch(db)?).then_some(start))
}

/// Location of a state directory: machine, device and inode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDirLocation {
    /// Content of `/etc/machine-id`; empty if the file is missing.
    pub machine_id: String,
    /// Boot id of the kernel. Device numbers may change between boots.
    pub boot_id: String,
    /// Device of the state directory.
    pub dev: u64,
    /// Inode of the state directory.
    pub ino: u64,
}

impl StateDirLocation {
    /// Returns the current location of `dir`.
    ///
    /// # Errors
    /// [`StoreError::File`] if the directory's metadata cannot be read.
    pub fn of(dir: &Path) -> Result<Self, StoreError> {
        let meta = std::fs::metadata(dir).map_err(|error| StoreError::file("inspect", dir, error))?;
        let line =
            |path| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        Ok(Self {
            machine_id: line("/etc/machine-id"),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            dev: meta.dev(),
            ino: meta.ino(),
        })
    }

    /// Returns the reason why `now` is a different location; `None` if both are the same.
    pub fn moved(&self, now: &Self) -> Option<String> {
        if self.machine_id != now.machine_id {
            return Some("it was created on another machine".to_owned());
        }
        if self.ino != now.ino {
            return Some(format!("its inode is {}, but it was created with {}", now.ino, self.ino));
        }
        if self.boot_id == now.boot_id && self.dev != now.dev {
            return Some("it was created on another file system".to_owned());
        }
        None
    }
}

/// Name of this machine; empty if it is unknown.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Reads this gateway's identity, or creates it on the first start, and increments the epoch.
///
/// # Errors
/// [`StoreError::Cloned`] if the directory is a copy; nothing changes then.
pub fn establish(db: &Db, dir: &Path) -> Result<GatewayIdentity, StoreError> {
    let here = StateDirLocation::of(dir)?;
    if let Some(why) = location_mismatch(db, dir)? {
        return Err(StoreError::Cloned { dir: dir.to_owned(), why });
    }
    db.transaction(|| settle(db, &here, &here.boot_id, rollback::read(dir).and_then(|note| note.start_id)))
}

/// Reads the identity of the gateway that serves a cell, or creates it, and increments the epoch. A cell has no place, its lock
/// tells owners apart: it keeps the location of the first gateway, so that a supervisor sees the same gateway in each that takes
/// the cell. `timeline` is the server's.
///
/// # Errors
/// [`StoreError::Unreadable`]; errors of the server.
pub fn establish_in_cell(db: &Db, dir: &Path, timeline: &str) -> Result<GatewayIdentity, StoreError> {
    let here = StateDirLocation::of(dir)?;
    db.transaction(|| {
        let home = home(db)?.unwrap_or(here);
        settle(db, &home, timeline, rollback::read(dir).and_then(|note| note.start_id))
    })
}

/// Returns the instance id of this gateway; `None` before its first start.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn instance_id(db: &Db) -> Result<Option<GatewayInstanceId>, StoreError> {
    meta::get(db, INSTANCE_ID)?.map(|text| parse(INSTANCE_ID, &text, GatewayInstanceId::parse)).transpose()
}

/// Returns the reason why the database was created in another location than `dir`; `None` if it was created
/// here, or has no recorded location yet.
///
/// # Errors
/// [`StoreError::Unreadable`]; [`StoreError::File`]; SQLite errors.
pub fn location_mismatch(db: &Db, dir: &Path) -> Result<Option<String>, StoreError> {
    let Some(home) = home(db)? else { return Ok(None) };
    Ok(home.moved(&StateDirLocation::of(dir)?))
}

/// Sets the location of a database that was moved into `dir`, unless it was created there.
///
/// # Errors
/// As [`location_mismatch`].
pub(crate) fn settle_home(db: &Db, dir: &Path) -> Result<(), StoreError> {
    if location_mismatch(db, dir)?.is_some() {
        meta::set(db, HOME, &serde_json::to_string(&StateDirLocation::of(dir)?)?)?;
    }
    Ok(())
}

fn home(db: &Db) -> Result<Option<StateDirLocation>, StoreError> {
    meta::get(db, HOME)?.map(|text| parse(HOME, &text, |text| serde_json::from_str(text))).transpose()
}

/// Raises the epoch of a restored database to the maximum of its own, that of the replaced database and that
/// on record at a supervisor which refused the replaced database. If neither of these can be read, the time in
/// seconds takes their place: it is above any number of starts. No supervisor sees an epoch twice.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors of the restored database.
pub fn raise_epoch(db: &Db, dir: &Path, now_ms: u64) -> Result<(), StoreError> {
    let replaced = open_reader(dir).and_then(|old| epoch(&old)).ok().filter(|epoch| *epoch > 0);
    let known = rollback::read(dir).map(|note| note.known_epoch);
    accept_loss(db, replaced.max(known).unwrap_or(now_ms / 1_000))
}

/// Raises the epoch of the next start above `known_epoch` and marks the loss of newer data as accepted.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn accept_loss(db: &Db, known_epoch: u64) -> Result<(), StoreError> {
    let next = epoch(db)?.max(known_epoch);
    db.transaction(|| {
        meta::set(db, EPOCH, &next.to_string())?;
        meta::remove(db, UNADMITTED)?;
        meta::remove(db, CURSOR_EPOCH)?;
        host_reports::clear(db)?;
        meta::set(db, ACCEPTED_LOSS, "1")
    })
}

/// Values in a Hello to a host until the next admission by the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingAdmission {
    /// Event id of the database when a start opened it first after the last admission by the host. A database that went
    /// back in time may be served without the host for some starts, and its new rows must not hide the loss.
    pub(crate) event_id: u64,
    /// True for an accepted loss of which the host does not know.
    pub(crate) accepts_loss: bool,
}

fn admission_key(host: &str) -> String {
    format!("{PENDING_ADMISSION}:{host}")
}

/// Returns the event id of the database when the first start opened it that no supervisor has admitted, or the present one.
fn first_unadmitted_event(db: &Db) -> Result<u64, StoreError> {
    unadmitted_start(db)?.map_or_else(|| events::last_id(db), |start| Ok(start.event_id))
}

/// Begins the admissions of a start by these hosts.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn begin_admissions(db: &Db, hosts: &[String]) -> Result<(), StoreError> {
    let shown = first_unadmitted_event(db)?;
    let accepts_loss = meta::get(db, ACCEPTED_LOSS)?.is_some();
    for host in hosts {
        let pending = match pending_admission(db, host)? {
            Some(pending) if !accepts_loss => pending,
            _ => PendingAdmission { event_id: shown, accepts_loss },
        };
        meta::set(db, &admission_key(host), &serde_json::to_string(&pending)?)?;
    }
    meta::remove(db, ACCEPTED_LOSS)
}

/// Returns what a Hello to a host shows; `None` once the host has admitted this start.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub(crate) fn pending_admission(db: &Db, host: &str) -> Result<Option<PendingAdmission>, StoreError> {
    let Some(text) = meta::get(db, &admission_key(host))? else { return Ok(None) };
    parse(PENDING_ADMISSION, &text, |text| serde_json::from_str(text)).map(Some)
}

/// Records that a host has admitted this start, and knows an accepted loss.
///
/// # Errors
/// SQLite errors.
pub fn settle_admission(db: &Db, host: &str) -> Result<(), StoreError> {
    meta::remove(db, UNADMITTED)?;
    meta::remove(db, &admission_key(host))
}

fn epoch(db: &Db) -> Result<u64, StoreError> {
    meta::get(db, EPOCH)?.map_or(Ok(0), |text| parse(EPOCH, &text, str::parse::<u64>))
}

/// Begins a new start, unless the supervisor refused the last start of this database: repeated starts would
/// reach the recorded epoch. `boot_id` is the boot or the timeline in which row numbers hold.
fn settle(
    db: &Db,
    home: &StateDirLocation,
    boot_id: &str,
    refused: Option<StartId>,
) -> Result<GatewayIdentity, StoreError> {
    let instance_id = match meta::get(db, INSTANCE_ID)? {
        Some(text) => parse(INSTANCE_ID, &text, GatewayInstanceId::parse)?,
        None => GatewayInstanceId::mint(),
    };
    let start = match unadmitted_start(db)?.filter(|start| Some(start.start_id) == refused) {
        Some(start) => start,
        None => UnadmittedStart {
            epoch: epoch(db)? + 1,
            start_id: StartId::mint(),
            event_id: first_unadmitted_event(db)?,
        },
    };
    meta::set(db, INSTANCE_ID, &instance_id.to_string())?;
    meta::set(db, EPOCH, &start.epoch.to_string())?;
    meta::set(db, HOME, &serde_json::to_string(home)?)?;
    meta::set(db, UNADMITTED, &serde_json::to_string(&start)?)?;
    let cursor_epoch = cursor_epoch(db, boot_id)?;
    let UnadmittedStart { epoch, start_id, .. } = start;
    Ok(GatewayIdentity { instance_id, epoch, start_id, home: home.clone(), cursor_epoch })
}

fn parse<T, E: ToString>(
    column: &'static str,
    text: &str,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, StoreError> {
    read(text).map_err(|error| StoreError::Unreadable { column, why: error.to_string() })
}

/// Sets a new instance id and the location, and forgets the leases, which belong to the original gateway.
///
/// # Errors
/// [`StoreError::Unwritable`]; SQLite errors.
pub(super) fn take_over(db: &Db, here: &StateDirLocation) -> Result<GatewayInstanceId, StoreError> {
    let id = GatewayInstanceId::mint();
    meta::set(db, INSTANCE_ID, &id.to_string())?;
    meta::set(db, HOME, &serde_json::to_string(here)?)?;
    meta::remove(db, CURSOR_EPOCH)?;
    db.run(
        "UPDATE acp_permission SET state = 'expired', settled_without = 'adopted' WHERE state = 'pending'",
        &[],
    )?;
    db.run("UPDATE acp_agent_request SET state = 'answered' WHERE state <> 'answered'", &[])?;
    db.run("UPDATE acp_leases SET usage = 'ended' WHERE usage <> 'ended'", &[])?;
    db.run("UPDATE acp_sessions SET lease_id = NULL WHERE lease_id IS NOT NULL", &[])?;
    db.run("UPDATE acp_sessions SET gateway_instance_id = ?1 WHERE state <> 'closed'", params![id])?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copied_state_directory_is_detected() {
        let home = StateDirLocation { machine_id: "m".into(), boot_id: "b".into(), dev: 1, ino: 2 };
        let rebooted = StateDirLocation { boot_id: "c".into(), dev: 9, ..home.clone() };
        let table = [
            ("itself", home.clone(), false),
            ("after a reboot, other device number", rebooted, false),
            ("other machine", StateDirLocation { machine_id: "n".into(), ..home.clone() }, true),
            ("other directory", StateDirLocation { ino: 3, ..home.clone() }, true),
            ("other device, same boot", StateDirLocation { dev: 9, ..home.clone() }, true),
        ];
        for (name, now, moved) in table {
            assert_eq!(home.moved(&now).is_some(), moved, "{name}");
        }
    }

    #[test]
    #[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    fn cursor_epoch_changes_with_boot_restore_and_accepted_loss() {
        let dir = tempfile::tempdir().unwrap();
        let db = crate::open::open_writer(dir.path(), crate::Durability::Full).unwrap();
        let first = cursor_epoch(&db, "a").unwrap();
        assert_eq!(cursor_epoch(&db, "a").unwrap(), first, "a restart of the gateway");
        let second = cursor_epoch(&db, "b").unwrap();
        assert_ne!(second, first, "a boot");
        meta::set(&db, "host_report:one", "{}").unwrap();
        accept_loss(&db, 7).unwrap();
        assert_eq!(meta::get(&db, "host_report:one").unwrap(), None, "newer reports may be lost");
        let third = cursor_epoch(&db, "b").unwrap();
        assert_ne!(third, second, "a restore or an accepted loss");
        let unknown = cursor_epoch(&db, "").unwrap();
        assert_ne!(cursor_epoch(&db, "").unwrap(), unknown, "an unknown boot is another one");
    }
}
