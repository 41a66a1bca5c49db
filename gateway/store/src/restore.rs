//! Restores a backup in place of the database. The replaced database is kept under another name.
//!
//! The restored database lacks everything that happened after the backup. So nothing in it is repeated
//! automatically: a queued prompt fails as uncertain, for a person to decide (H6); a part being sent is first
//! searched for in its conversation; and an agent that is ahead of the database is detected when the gateway
//! attaches (H7).
//!
//! The commit point is one rename of a complete file. A crash before the rename undoes the restore; after it
//! the next start finishes the restore.

use crate::backup::{BackupProgress, TempFile, copy, remove_unfinished, sync, sync_dir};
use crate::db::Db;
use crate::error::StoreError;
use crate::inbox::{self, Outcome};
use crate::lock::StateLock;
use crate::schema::{self, DB_FILE};
use crate::tx::commit::apply;
use crate::{Tx, check, identity, rollback, runs, sessions};
use acp_core::event::EventKind;
use acp_core::failure::Failure;
use acp_core::run::{RunEvent, RunState};
use acp_core::writes::Write;
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Name prefix of a complete restored file that only has to be renamed; followed by the time of the restore.
const READY: &str = "gateway.db.restoring-";
/// Name prefix of the replaced database's files; followed by the same time.
const ASIDE: &str = "gateway.db.replaced-";
/// Suffixes of the files that SQLite keeps next to a database.
const COMPANIONS: [&str; 2] = ["-wal", "-shm"];

/// Result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Path of the replaced database.
    pub kept: Option<PathBuf>,
    /// Number of prompts and messages pending in the backup, which are ended as uncertain.
    pub uncertain: u64,
    /// Reason why the gateway refuses to start until `adopt`: the backup comes from another location.
    pub moved: Option<String>,
}

/// Restores the backup `from` as the database in `dir`.
///
/// # Errors
/// [`StoreError::Locked`] while a gateway runs; [`StoreError::NotABackup`], [`StoreError::Foreign`],
/// [`StoreError::Newer`] for an unsuitable file; [`StoreError::Full`]. After an error nothing was changed.
pub fn restore(
    dir: &Path,
    from: &Path,
    now_ms: u64,
    progress: BackupProgress<'_>,
) -> Result<Restored, StoreError> {
    let mut lock = StateLock::take(dir)?;
    remove_unfinished(dir, &lock);
    finish(dir)?;
    let db = dir.join(DB_FILE);
    check_restorable(from, &db)?;
    let part = TempFile::create_next_to(&db)?;
    copy(from, &part.path, progress)?;
    let copied = schema::open_copy(&part.path)?;
    let uncertain = settle_unknown(&copied, now_ms)?;
    identity::raise_epoch(&copied, dir, now_ms)?;
    let moved = identity::location_mismatch(&copied, dir)?;
    copied.close()?;
    sync(&part.path)?;
    let ready = dir.join(format!("{READY}{now_ms}"));
    part.rename_to(&ready, false)?;
    let kept = finish(dir)?;
    rollback::remove_record(dir)?;
    lock.record_database()?;
    Ok(Restored { kept, uncertain, moved })
}

/// Checks that a file can be restored.
fn check_restorable(from: &Path, db: &Path) -> Result<(), StoreError> {
    let meta = std::fs::metadata(from).map_err(|error| StoreError::file("inspect", from, error))?;
    let refuse = |why: String| Err(StoreError::NotABackup { path: from.to_owned(), why });
    if std::fs::metadata(db).is_ok_and(|own| (own.dev(), own.ino()) == (meta.dev(), meta.ino())) {
        return refuse("it is the database itself".to_owned());
    }
    if !meta.is_file() || meta.len() == 0 {
        return refuse("it is empty or not a regular file".to_owned());
    }
    let looked = schema::open_to_read(from).and_then(|db| {
        schema::refuse_foreign(&db, from)?;
        schema::refuse_newer(&db)?;
        let mut found = check::pages(&db, false)?;
        if found.is_empty() && schema::is_current(schema::version(&db)?) {
            found.extend(check::rules(&db)?.iter().filter_map(check::CheckFinding::violation));
        }
        Ok((schema::version(&db)?, found))
    });
    match looked {
        Ok((0, _)) => refuse("it has no tables".to_owned()),
        Ok((_, found)) => found.into_iter().next().map_or(Ok(()), refuse),
        Err(StoreError::Damaged { why }) => refuse(why),
        Err(error) => Err(error),
    }
}

/// Finishes a prepared restore: hard-links the old files under their new names, removes the WAL and shared
/// memory, renames the new file. Each step may have been done already. Returns the path of the replaced
/// database, if there was one.
///
/// # Errors
/// [`StoreError::File`].
pub fn finish(dir: &Path) -> Result<Option<PathBuf>, StoreError> {
    let Some((ready, time)) = ready(dir)? else { return Ok(None) };
    let db = dir.join(DB_FILE);
    let aside = dir.join(format!("{ASIDE}{time}"));
    for suffix in ["", COMPANIONS[0]] {
        let (old, kept) = (with_suffix(&db, suffix), with_suffix(&aside, suffix));
        match std::fs::hard_link(&old, &kept) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(StoreError::file("keep a copy of", old, error)),
        }
    }
    sync_dir(&db)?;
    for suffix in COMPANIONS {
        let old = with_suffix(&db, suffix);
        match std::fs::remove_file(&old) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::file("remove", old, error));
            }
            _ => {}
        }
    }
    sync_dir(&db)?;
    std::fs::rename(&ready, &db).map_err(|error| StoreError::file("rename the new file to", &db, error))?;
    sync_dir(&db)?;
    tracing::warn!(kept = %aside.display(), "database replaced by backup");
    Ok(aside.exists().then_some(aside))
}

/// True if a restore was prepared and is not finished.
///
/// # Errors
/// [`StoreError::File`].
pub fn is_prepared(dir: &Path) -> Result<bool, StoreError> {
    Ok(ready(dir)?.is_some())
}

/// Prepared file and the time from its name.
fn ready(dir: &Path) -> Result<Option<(PathBuf, String)>, StoreError> {
    let entries = std::fs::read_dir(dir).map_err(|error| StoreError::file("read", dir, error))?;
    let times = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix(READY).map(str::to_owned)
    });
    Ok(times.max().map(|time| (dir.join(format!("{READY}{time}")), time)))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Ends work that may have continued after the backup, so that nothing happens twice. Returns the number of
/// ended prompts and messages.
pub(super) fn settle_unknown(db: &Db, now_ms: u64) -> Result<u64, StoreError> {
    db.transaction(|| {
        let uncertain = end_waiting(&Tx::unpublished(db, now_ms))?;
        // As after a crash: search before sending. The search includes messages under agents' names, since it
        // is unknown if those were used.
        db.run(
            "UPDATE acp_delivery_part SET state = 'sending', persona_at = coalesce(persona_at, created_at) \
             WHERE state IN ('planned','sending')",
            &[],
        )?;
        Ok(uncertain)
    })
}

fn uncertain() -> Failure {
    let text = "The database was restored from a backup that was made while this was queued. It is unknown \
                whether it was executed since: check the history and the working directory before you \
                send it again.";
    Failure::new(Code::Uncertain, text).detail("RESTORED").origin("gateway")
}

/// Fails queued runs and refuses unprocessed messages, both as uncertain.
fn end_waiting(tx: &Tx<'_>) -> Result<u64, StoreError> {
    let mut count = 0;
    let payload = serde_json::to_string(&uncertain())?;
    for key in waiting_sessions(tx)? {
        let (_, mut last) = sessions::marks(tx, &key)?;
        for mut run in runs::unfinished(tx, &key)? {
            let Some(state) = run.state.on(RunEvent::Failed) else { continue };
            if run.state != RunState::Queued {
                continue;
            }
            run.state = state;
            run.ended_at_ms = Some(tx.now_ms());
            run.error = Some(uncertain());
            let event = Write::Event {
                session_seq: last + 1,
                run: Some((run.run_id, run.last_seq + 1)),
                kind: EventKind::Error,
                payload: payload.clone(),
                extra: None,
            };
            run.last_seq += 1;
            apply(tx, &key, last, &[event, Write::Run(Box::new(run))])?;
            (last, count) = (last + 1, count + 1);
        }
    }
    let said = inbox::unsettled_messages(tx, u64::from(u32::MAX))?;
    for row in said.into_iter().filter(|row| row.outcome.is_none()) {
        let outcome = Outcome::Refused { failure: uncertain(), reason: "restored".to_owned() };
        inbox::record(tx, &row.inbound, &outcome, false)?;
        count += 1;
    }
    Ok(count)
}

fn waiting_sessions(db: &Db) -> Result<Vec<SessionKey>, StoreError> {
    let sql = "SELECT DISTINCT session_key FROM acp_runs WHERE state = 'queued' ORDER BY session_key";
    db.all(sql, &[], |row| row.get("session_key"))
}
