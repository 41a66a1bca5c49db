//! Import of sessions and bindings of OpenClaw, in one transaction on a database that no gateway uses.

use crate::db::{Db, TxControl, params};
use crate::error::StoreError;
use crate::lock::StateLock;
use crate::schema::{self, DB_FILE};
use crate::tx::commit::apply;
use crate::{Durability, Tx, backup, bindings, identity, meta, open, restore, sessions};
use acp_core::binding::BoundSession;
use acp_core::migrate::plan::{ImportPlan, PlannedBinding, PlannedSession};
use acp_core::migrate::{MigrationAction, MigrationLine, MigrationTotals, RecordKind};
use acp_core::session::SessionState;
use acp_core::writes::Write;
use acp_shared::ids::GatewayInstanceId;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// [`OpenclawSource`]; absent if nothing was imported.
const SOURCE: &str = "openclaw_source";

/// Source of the last import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenclawSource {
    /// State directory of OpenClaw.
    pub dir: PathBuf,
    /// SHA-256 of the files that were read, in hex.
    pub sha256: String,
    /// Time of the import, milliseconds since the Unix epoch.
    pub imported_at_ms: u64,
}

/// Completed import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletedImport {
    /// Lines about all records.
    pub lines: Vec<MigrationLine>,
    /// Backup of the database before the import; `None` if there was nothing to import.
    pub backup: Option<PathBuf>,
}

/// Database opened for an import, with its lock.
#[derive(Debug)]
pub struct OpenclawImport {
    // In drop order.
    db: Db,
    dir: PathBuf,
    instance_id: GatewayInstanceId,
    _lock: StateLock,
}

impl OpenclawImport {
    /// Opens the database of a state directory. A dry run without a database uses an empty one in memory; with one, its
    /// transaction includes the migrations that the database lacks.
    ///
    /// # Errors
    /// [`StoreError::Locked`] while a gateway runs; errors of opening the database.
    pub fn open(dir: &Path, is_dry_run: bool) -> Result<Self, StoreError> {
        let mut lock = StateLock::take(dir)?;
        if is_dry_run && restore::is_prepared(dir)? {
            return Err(StoreError::Refused(
                "a restore was interrupted, and a dry run does not finish it; start the gateway, or leave out --dry-run",
            ));
        }
        open::before_open(dir, &lock)?;
        let dir = dir.to_owned();
        if is_dry_run && !dir.join(DB_FILE).exists() {
            let mut db = schema::open_in_memory("openclaw-dry-run")?;
            schema::migrate(&mut db)?;
            return Ok(Self { db, dir, instance_id: GatewayInstanceId::mint(), _lock: lock });
        }
        let db = match is_dry_run {
            true => open::open_uncommitted(&dir)?,
            false => open::open_writer(&dir, Durability::Full)?,
        };
        if let Some(why) = identity::location_mismatch(&db, &dir)? {
            return Err(StoreError::Cloned { dir, why });
        }
        let instance_id = match identity::instance_id(&db)? {
            Some(id) => id,
            None if is_dry_run => GatewayInstanceId::mint(),
            None => identity::establish(&db, &dir)?.instance_id,
        };
        if !is_dry_run {
            open::after_open(&db, &mut lock)?;
        }
        Ok(Self { db, dir, instance_id, _lock: lock })
    }

    /// Identity of the gateway.
    pub const fn instance_id(&self) -> GatewayInstanceId {
        self.instance_id
    }

    /// Runs the transaction of the import and rolls it back; once for a dry run.
    ///
    /// # Errors
    /// Errors of the transaction.
    pub fn rehearse(&self, plan: &ImportPlan, now_ms: u64) -> Result<Vec<MigrationLine>, StoreError> {
        if !self.db.is_in_transaction() {
            self.db.control(TxControl::BeginWrite)?;
        }
        let lines = insert_all(&Tx::unpublished(&self.db, now_ms), plan);
        if self.db.is_in_transaction() {
            self.db.control(TxControl::Rollback)?;
        }
        lines
    }

    /// Imports the records: a rehearsal, a backup, and the transaction. Changes nothing if there is nothing to import.
    ///
    /// # Errors
    /// Errors of the backup and of the transaction; nothing is imported then.
    pub fn run(
        &self,
        plan: &ImportPlan,
        source: &OpenclawSource,
        progress: backup::BackupProgress<'_>,
    ) -> Result<CompletedImport, StoreError> {
        let now_ms = source.imported_at_ms;
        let rehearsed = self.rehearse(plan, now_ms)?;
        if MigrationTotals::of(&rehearsed).import == 0 {
            return Ok(CompletedImport { lines: rehearsed, backup: None });
        }
        let to = self.dir.join(format!("{DB_FILE}.before-openclaw-{now_ms}"));
        let made = backup::backup(&self.dir, &to, true, progress)?;
        let lines = self.db.transaction(|| {
            let lines = insert_all(&Tx::unpublished(&self.db, now_ms), plan)?;
            if lines != rehearsed {
                return Err(StoreError::Refused("the import differs from its rehearsal"));
            }
            meta::set(&self.db, SOURCE, &serde_json::to_string(source)?)?;
            Ok(lines)
        })?;
        Ok(CompletedImport { lines, backup: Some(made.path) })
    }

    /// Closes the database.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn close(self) -> Result<(), StoreError> {
        self.db.close()
    }
}

/// Source of the last import; `None` if nothing was imported.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn imported_source(db: &Db) -> Result<Option<OpenclawSource>, StoreError> {
    let Some(text) = meta::get(db, SOURCE)? else { return Ok(None) };
    let unreadable =
        |error: serde_json::Error| StoreError::Unreadable { column: SOURCE, why: error.to_string() };
    serde_json::from_str(&text).map(Some).map_err(unreadable)
}

/// Inserts the rows of a plan. Returns the lines about all records, by kind and key.
fn insert_all(tx: &Tx<'_>, plan: &ImportPlan) -> Result<Vec<MigrationLine>, StoreError> {
    let mut lines = plan.lines.clone();
    for planned in &plan.sessions {
        let (action, why) = insert_session(tx, planned)?;
        let key = planned.row.session_key.as_str();
        lines.push(MigrationLine::new(RecordKind::Session, key, &planned.source, action, why));
    }
    sessions::find_owners(tx)?;
    for planned in &plan.bindings {
        let (action, why) = insert_binding(tx, planned)?;
        lines.push(MigrationLine::new(RecordKind::Binding, &planned.key, &planned.source, action, why));
    }
    lines.sort_by(|one, other| {
        (one.kind, &one.key, &one.source).cmp(&(other.kind, &other.key, &other.source))
    });
    Ok(lines)
}

type Inserted = (MigrationAction, String);

fn insert_session(tx: &Tx<'_>, planned: &PlannedSession) -> Result<Inserted, StoreError> {
    const NEAR: &str = "SELECT session_key FROM acp_sessions WHERE lower(session_key) = ?1 LIMIT 1";
    const LABELLED: &str = "SELECT session_key FROM acp_sessions WHERE label = ?1 AND state <> 'closed'";
    let mut row = planned.row.clone();
    if let Some(found) = sessions::get(tx, &row.session_key)? {
        if (&found.agent, &found.cwd) == (&row.agent, &row.cwd) {
            return Ok((MigrationAction::Already, String::new()));
        }
        let why = "the database has a session of that key with another agent or directory";
        return Ok((MigrationAction::Conflict, why.to_owned()));
    }
    if let Some(near) = tx.first(NEAR, params![row.session_key.as_str().to_ascii_lowercase()], |row| {
        row.get::<String>("session_key")
    })? {
        return Ok((
            MigrationAction::Conflict,
            format!("the database has {near}, which differs in case only"),
        ));
    }
    let mut why = planned.why.clone();
    if let Some(label) = row.label.clone().filter(|_| row.state != SessionState::Closed)
        && let Some(other) = tx.first(LABELLED, params![label], |row| row.get::<String>("session_key"))?
    {
        row.label = None;
        let note = format!("without its label, which {other} has");
        why = if why.is_empty() { note } else { format!("{why}; {note}") };
    }
    sessions::insert(tx, &row)?;
    // The columns of an ending are set by updates only.
    sessions::update(tx, &row)?;
    let events: Vec<Write> = (1..)
        .zip(&planned.events)
        .map(|(session_seq, (kind, payload))| Write::Event {
            session_seq,
            run: None,
            kind: *kind,
            payload: payload.clone(),
            extra: None,
        })
        .collect();
    apply(tx, &row.session_key, 0, &events)?;
    Ok((MigrationAction::Import, why))
}

fn insert_binding(tx: &Tx<'_>, planned: &PlannedBinding) -> Result<Inserted, StoreError> {
    const KNOWN: &str = "SELECT count(*) AS found FROM acp_bindings WHERE channel = ?1 AND account_id = ?2 \
        AND thread_id = ?3 AND session_key = ?4";
    let row = &planned.row;
    let at = &row.conversation;
    let refuse = |why: String| Ok((MigrationAction::Refuse, why));
    match bindings::target(tx, &row.session_key)? {
        BoundSession::Missing => {
            return refuse(format!("its session {} is not in the database", row.session_key));
        }
        BoundSession::Known(SessionState::Closed) => {
            return Ok((MigrationAction::Skip, format!("its session {} is closed", row.session_key)));
        }
        BoundSession::Known(_) => {}
    }
    let keys = params![at.channel, at.account_id, at.conversation_id, row.session_key];
    // A binding that was imported and has ended since is not imported again.
    if tx.first(KNOWN, keys, |row| row.get::<u64>("found"))?.unwrap_or(0) > 0 {
        return Ok((MigrationAction::Already, String::new()));
    }
    if let Some(other) = bindings::of_conversation(tx, at)? {
        let why = format!("the conversation is bound to {}", other.session_key);
        return Ok((MigrationAction::Conflict, why));
    }
    bindings::bind(tx, row)?;
    Ok((MigrationAction::Import, planned.why.clone()))
}
