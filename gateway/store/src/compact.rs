//! `store compact`: prunes the journal of a state directory that no gateway uses, and gives the space of deleted rows back
//! to the disk. A gateway that runs prunes too, but its database keeps the free pages for new rows.
//!
//! The smaller copy is written next to the database, checked and synced, and takes its place by one rename: a crash
//! before the rename leaves the old file, and one after it the new file. The disk needs space for the copy, not more.

use crate::backup::{BackupProgress, Progress, TempFile, sync, sync_dir};
use crate::db::{Db, TxControl, params};
use crate::error::StoreError;
use crate::lock::StateLock;
use crate::retention::{self, PruneRule, ROWS_AT_ONCE};
use crate::schema::{self, DB_FILE};
use crate::{Durability, Tx, check, gauges, open};
use acp_shared::ids::SessionKey;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Space that the copy leaves free, in bytes.
const MARGIN_BYTES: u64 = 4 * 1024 * 1024;
/// Number of transactions after which the log is emptied, since no writer thread does it.
const CHECKPOINT_EVERY: u64 = 100;
/// Interval of looks at the growing copy.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Report of a compaction, or of what it would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CompactReport {
    /// True if nothing was changed.
    pub dry_run: bool,
    /// Number of sessions with pruned rows.
    pub sessions: u64,
    /// Number of pruned rows.
    pub rows: u64,
    /// Size of the payloads of these rows, in bytes.
    pub row_bytes: u64,
    /// Size of the database before, in bytes.
    pub bytes_before: u64,
    /// Size of the database now, in bytes.
    pub bytes_after: u64,
    /// Free space that the copy needs, in bytes.
    pub needed_bytes: u64,
    /// Free space of the disk, in bytes.
    pub free_bytes: u64,
    /// True if the database was replaced by a smaller copy.
    pub compacted: bool,
}

/// Counts what [`compact`] would remove. May run while a gateway runs.
///
/// # Errors
/// Errors of opening the database; [`StoreError::Newer`]; SQLite errors.
pub fn preview(dir: &Path, rule: Option<&PruneRule>) -> Result<CompactReport, StoreError> {
    let db = schema::open_reader(dir)?;
    schema::refuse_foreign(&db, &dir.join(DB_FILE))?;
    if !schema::is_current(schema::version(&db)?) {
        schema::refuse_newer(&db)?;
        return Err(StoreError::Refused(
            "an older version wrote the database; start the gateway once, or compact without --dry-run",
        ));
    }
    db.control(TxControl::BeginRead)?;
    let mut report = CompactReport { dry_run: true, ..CompactReport::default() };
    if let Some(rule) = rule {
        for_candidates(&db, rule, |key| {
            let found = retention::prunable_rows(&db, key, rule)?;
            report.sessions += u64::from(found.rows > 0);
            report.rows += found.rows;
            report.row_bytes += found.bytes;
            Ok(())
        })?;
    }
    measure(&db, dir, &mut report)?;
    report.bytes_before = gauges::sizes(dir).0;
    report.bytes_after = report.bytes_before;
    Ok(report)
}

/// Prunes by the rule, if there is one, and replaces the database by a copy without free pages.
///
/// # Errors
/// [`StoreError::Locked`] while a gateway runs; errors of opening the database; [`StoreError::Damaged`] if the copy is;
/// [`StoreError::Full`]. After an error the database is complete, with some rows pruned.
pub fn compact(
    dir: &Path,
    rule: Option<&PruneRule>,
    now_ms: u64,
    progress: BackupProgress<'_>,
) -> Result<CompactReport, StoreError> {
    let mut lock = StateLock::take(dir)?;
    open::before_open(dir, &lock)?;
    let mut report = CompactReport { bytes_before: gauges::sizes(dir).0, ..CompactReport::default() };
    let db = open::open_writer(dir, Durability::Full)?;
    open::after_open(&db, &mut lock)?;
    if let Some(rule) = rule {
        let mut keys = Vec::new();
        for_candidates(&db, rule, |key| {
            keys.push(key.clone());
            Ok(())
        })?;
        for key in keys {
            prune(&db, &key, rule, now_ms, &mut report, progress)?;
        }
    }
    empty_log(&db)?;
    measure(&db, dir, &mut report)?;
    if report.free_bytes >= report.needed_bytes {
        replace(dir, db, progress)?;
        report.compacted = true;
    } else {
        db.close()?;
    }
    report.bytes_after = gauges::sizes(dir).0;
    drop(lock);
    Ok(report)
}

fn for_candidates(
    db: &Db,
    rule: &PruneRule,
    mut each: impl FnMut(&SessionKey) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut after: Option<SessionKey> = None;
    loop {
        let found = retention::candidates(db, after.as_ref(), rule.policy.before_ms)?;
        found.sessions.iter().try_for_each(&mut each)?;
        after = found.next_after;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Prunes a session, in the transactions of a gateway.
fn prune(
    db: &Db,
    key: &SessionKey,
    rule: &PruneRule,
    now_ms: u64,
    report: &mut CompactReport,
    progress: BackupProgress<'_>,
) -> Result<(), StoreError> {
    let found = retention::prunable_rows(db, key, rule)?;
    let before = report.rows;
    progress(Progress::Pruned { rows: before });
    report.sessions += u64::from(found.rows > 0);
    report.rows += found.rows;
    report.row_bytes += found.bytes;
    if found.rows == 0 {
        return Ok(());
    }
    let tx = Tx::unpublished(db, now_ms);
    while db.transaction(|| retention::mark_pruned(&tx, key, rule))? {}
    let mut steps: u64 = 0;
    while db.transaction(|| retention::delete_pruned(&tx, key))? >= ROWS_AT_ONCE {
        steps += 1;
        progress(Progress::Pruned { rows: before + steps * ROWS_AT_ONCE });
        if steps.is_multiple_of(CHECKPOINT_EVERY) {
            empty_log(db)?;
        }
    }
    Ok(())
}

/// Copies the log into the database. All of it, so that no reader may hold an older state.
fn empty_log(db: &Db) -> Result<(), StoreError> {
    let busy = db.first("PRAGMA wal_checkpoint(TRUNCATE)", &[], |row| row.get::<bool>("busy"))?;
    match busy {
        Some(false) => Ok(()),
        _ => Err(StoreError::Refused(
            "another program reads the database, so that its log cannot be emptied: end that program and repeat this",
        )),
    }
}

/// Pages of the database.
struct PageCounts {
    /// Size of a page, in bytes.
    bytes: u64,
    /// Number of pages in use.
    used: u64,
}

fn page_counts(db: &Db) -> Result<PageCounts, StoreError> {
    const SQL: &str = "SELECT s.page_size AS bytes, c.page_count - f.freelist_count AS used FROM pragma_page_size AS s, \
        pragma_page_count AS c, pragma_freelist_count AS f";
    let found =
        db.first(SQL, &[], |row| Ok(PageCounts { bytes: row.get("bytes")?, used: row.get("used")? }))?;
    found.ok_or(StoreError::Refused("the database tells no size"))
}

/// Reads the free space, and the space that a copy needs.
fn measure(db: &Db, dir: &Path, report: &mut CompactReport) -> Result<(), StoreError> {
    let PageCounts { bytes, used } = page_counts(db)?;
    report.needed_bytes = used * bytes + MARGIN_BYTES;
    report.free_bytes = gauges::disk(dir).map_or(0, |(free, _)| free);
    Ok(())
}

/// Writes the copy and puts it in the place of the database.
fn replace(dir: &Path, db: Db, progress: BackupProgress<'_>) -> Result<(), StoreError> {
    let path = dir.join(DB_FILE);
    let part = TempFile::create_next_to(&path)?;
    let db = vacuum_into(db, &part.path, progress)?;
    db.close()?;
    let copy = schema::open_to_read(&part.path)?;
    if let Some(why) = check::pages(&copy, true)?.into_iter().next() {
        return Err(StoreError::Damaged { why: format!("the compacted copy: {why}") });
    }
    copy.close()?;
    sync(&part.path)?;
    // Empty, since nothing was written after the log was emptied.
    for suffix in ["-wal", "-shm"] {
        let old = dir.join(format!("{DB_FILE}{suffix}"));
        match std::fs::remove_file(&old) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::file("remove", old, error));
            }
            _ => {}
        }
    }
    sync_dir(&path)?;
    part.rename_to(&path, true)
}

/// Writes the copy, and reports its growth.
fn vacuum_into(db: Db, to: &Path, progress: BackupProgress<'_>) -> Result<Db, StoreError> {
    let PageCounts { bytes: page, used: total } = page_counts(&db)?;
    let name = to.to_string_lossy().into_owned();
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || db.run("VACUUM INTO ?1", params![name]).map(|_| db));
        while !writing.is_finished() {
            let bytes = std::fs::metadata(to).map_or(0, |meta| meta.len());
            progress(Progress::Copied { pages: (bytes / page.max(1)).min(total), pages_total: total });
            std::thread::sleep(LOOK_INTERVAL);
        }
        writing.join().unwrap_or(Err(StoreError::Panicked { name: "compact" }))
    })
}
