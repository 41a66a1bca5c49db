//! Note about a database that the supervisor refused as rolled back.
//!
//! The note is a separate file in the state directory, so that it survives a replacement of the database.

use crate::backup::{TempFile, sync, sync_dir};
use crate::error::StoreError;
use acp_shared::ids::StartId;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// File name of the note in the state directory.
const NOTE_FILE: &str = "gateway.rollback";

/// Record of a refusal by the supervisor: the database is older than the supervisor's record of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackRecord {
    /// Epoch of the start that was refused.
    pub epoch: u64,
    /// Id of the start that was refused: several databases may be at one epoch. `None` in notes of older versions.
    #[serde(default)]
    pub start_id: Option<StartId>,
    /// Last event id of the database that was refused.
    pub event_id: u64,
    /// Highest epoch on record at the supervisor.
    pub known_epoch: u64,
    /// Highest event id on record at the supervisor.
    pub known_event_id: u64,
    /// Number of live agents of this gateway.
    pub agents: u64,
    /// Time until which the supervisor keeps the agents, milliseconds since the Unix epoch.
    pub kept_until_ms: u64,
    /// Host whose supervisor refused the database. `None` in notes of older versions.
    #[serde(default)]
    pub host: Option<String>,
}

fn path(dir: &Path) -> PathBuf {
    dir.join(NOTE_FILE)
}

/// Reads the note in `dir`. An unreadable note counts as missing: the supervisor refuses again, and the note
/// is rewritten.
pub fn read(dir: &Path) -> Option<RollbackRecord> {
    serde_json::from_slice(&std::fs::read(path(dir)).ok()?).ok()
}

/// Writes the note durably.
///
/// # Errors
/// [`StoreError::File`]; [`StoreError::Full`].
pub fn write(dir: &Path, note: &RollbackRecord) -> Result<(), StoreError> {
    let part = TempFile::create_next_to(&path(dir))?;
    let written = std::fs::write(&part.path, serde_json::to_vec(note)?);
    written.map_err(|error| StoreError::file("write", &part.path, error))?;
    sync(&part.path)?;
    part.rename_to(&path(dir), true)
}

/// Removes the note.
///
/// # Errors
/// [`StoreError::File`].
pub fn remove_record(dir: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path(dir)) {
        Ok(()) => sync_dir(&path(dir)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StoreError::file("remove", path(dir), error)),
    }
}

/// Removes the note about a refusal by the supervisor of this host.
///
/// # Errors
/// As [`remove_record`].
pub(crate) fn remove_record_of(dir: &Path, host: &str) -> Result<(), StoreError> {
    let is_of_other = read(dir).and_then(|note| note.host).is_some_and(|other| other != host);
    if is_of_other { Ok(()) } else { remove_record(dir) }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::identity::GatewayIdentity;
    use crate::offline::accept_loss;
    use crate::{Durability, Store};

    const HOST: &str = "local";

    fn refused(start: &GatewayIdentity) -> RollbackRecord {
        let (epoch, start_id) = (start.epoch, Some(start.start_id));
        RollbackRecord {
            epoch,
            start_id,
            event_id: 1,
            known_epoch: 9,
            known_event_id: 40,
            agents: 1,
            kept_until_ms: 5,
            host: Some(HOST.to_owned()),
        }
    }

    async fn start(dir: &Path) -> (GatewayIdentity, bool) {
        let store = Store::open(dir, Durability::Full).unwrap();
        store.begin_admissions(vec![HOST.to_owned()]).await.unwrap();
        let (identity, marks) = (store.identity().clone(), store.marks(HOST).await.unwrap());
        store.close().await;
        (identity, marks.accepts_loss)
    }

    async fn epoch(dir: &Path) -> (u64, bool) {
        let (identity, accepts_loss) = start(dir).await;
        (identity.epoch, accepts_loss)
    }

    #[tokio::test]
    async fn refused_database_does_not_raise_epoch_until_replaced() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(epoch(dir.path()).await, (1, false));
        let (second, _) = start(dir.path()).await;
        write(dir.path(), &refused(&second)).unwrap();
        assert_eq!(start(dir.path()).await, (second.clone(), false));
        assert_eq!(start(dir.path()).await, (second.clone(), false));
        // A refusal of another copy has no effect, whatever its epoch.
        write(dir.path(), &refused(&GatewayIdentity { start_id: StartId::mint(), ..second })).unwrap();
        assert_eq!(epoch(dir.path()).await, (3, false));
        write(dir.path(), &RollbackRecord { start_id: None, ..refused(&start(dir.path()).await.0) }).unwrap();
        assert_eq!(epoch(dir.path()).await, (5, false));
        remove_record(dir.path()).unwrap();
        assert_eq!((epoch(dir.path()).await, read(dir.path())), ((6, false), None));
    }

    /// The gateway may be killed after it has recorded the admission and before it removes the note.
    #[tokio::test]
    async fn note_about_an_admitted_start_has_no_effect() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Full).unwrap();
        let note = refused(store.identity());
        store.settle_admission(HOST).await.unwrap();
        store.close().await;
        write(dir.path(), &note).unwrap();
        assert_eq!(epoch(dir.path()).await, (2, false));
    }

    /// The same for an accepted loss; the refused epoch is the one on record.
    #[tokio::test]
    async fn note_about_an_accepted_loss_has_no_effect() {
        let dir = tempfile::tempdir().unwrap();
        let (first, _) = start(dir.path()).await;
        let note = RollbackRecord { known_epoch: first.epoch, ..refused(&first) };
        write(dir.path(), &note).unwrap();
        accept_loss(dir.path(), 1).unwrap();
        write(dir.path(), &note).unwrap();
        assert_eq!(epoch(dir.path()).await, (2, true));
    }

    #[tokio::test]
    async fn accepted_loss_raises_epoch_until_supervisor_has_accepted_it() {
        let dir = tempfile::tempdir().unwrap();
        let (first, _) = start(dir.path()).await;
        assert!(matches!(accept_loss(dir.path(), 1), Err(StoreError::Refused(_))), "no refusal is recorded");
        write(dir.path(), &refused(&first)).unwrap();
        let running = Store::open(dir.path(), Durability::Full).unwrap();
        assert!(matches!(accept_loss(dir.path(), 1), Err(StoreError::Locked { .. })));
        running.close().await;
        assert_eq!(accept_loss(dir.path(), 1).unwrap().note, refused(&first));
        assert_eq!((epoch(dir.path()).await, read(dir.path())), ((10, true), None));
        assert_eq!(epoch(dir.path()).await, (11, true));
        let store = Store::open(dir.path(), Durability::Full).unwrap();
        write(dir.path(), &RollbackRecord { host: Some("other".to_owned()), ..refused(&first) }).unwrap();
        store.settle_admission(HOST).await.unwrap();
        assert!(!store.marks(HOST).await.unwrap().accepts_loss);
        assert!(read(dir.path()).is_some(), "the note is about another host");
        store.close().await;
    }
}
