//! Import of sessions and bindings from OpenClaw: parsers of its files, and the mapping to rows of this database. Source:
//! `docs/design/decisions/0200-openclaw-import.md`.
//!
//! Parsers take JSON values, also for rows of SQLite. A record that cannot be read becomes a line of the report and
//! leaves the other records alone.

pub mod acpx_record;
pub mod config_review;
mod fields;
pub mod leases;
pub mod plan;
pub mod source_bindings;
pub mod source_sessions;
#[cfg(test)]
mod tests;

use crate::failure::Failure;
use crate::sanitize;
use acp_shared::codes::Code;
use serde::Serialize;

/// Maximum length of a name in a line of the report, in characters.
const NAME_CHARS_MAX: usize = 240;

acp_shared::named! {
    /// Kind of a record, named as in the report.
    #[derive(Serialize, PartialOrd, Ord)]
    #[serde(rename_all = "snake_case")]
    pub enum RecordKind {
        /// A file as a whole.
        File = "file",
        /// A session.
        Session = "session",
        /// A binding of a conversation.
        Binding = "binding",
        /// A lease of a process.
        Lease = "lease",
    }

    /// Action for a record, named as in the report.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum MigrationAction {
        /// The record is imported.
        Import = "import",
        /// The database has the record.
        Already = "already",
        /// The record is left out by design.
        Skip = "skip",
        /// The record cannot be imported.
        Refuse = "refuse",
        /// The database has another record in its place.
        Conflict = "conflict",
    }
}

impl MigrationAction {
    /// True if the record was wanted and is not in the database.
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::Refuse | Self::Conflict)
    }
}

/// Line of the report about one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MigrationLine {
    /// Kind of the record.
    pub kind: RecordKind,
    /// Key of the record, as in the source.
    pub key: String,
    /// File of the record, below the source directory.
    pub source: String,
    /// Action for the record.
    pub action: MigrationAction,
    /// Reason, or a remark.
    pub why: String,
}

impl MigrationLine {
    /// Creates a line. Names from the source are untrusted and sanitized.
    pub fn new(
        kind: RecordKind,
        key: &str,
        source: &str,
        action: MigrationAction,
        why: impl Into<String>,
    ) -> Self {
        let name = |text| sanitize::line(text, NAME_CHARS_MAX);
        Self { kind, key: name(key), source: name(source), action, why: sanitize::line(&why.into(), 600) }
    }

    /// Creates a line about a refused record.
    pub fn refuse(kind: RecordKind, key: &str, source: &str, why: impl Into<String>) -> Self {
        Self::new(kind, key, source, MigrationAction::Refuse, why)
    }

    /// Formats the line for people.
    pub fn text(&self) -> String {
        let Self { kind, key, source, action, why } = self;
        let head = format!("{:<8} {:<7} {key} [{source}]", action.as_str(), kind.as_str());
        if why.is_empty() { head } else { format!("{head}: {why}") }
    }
}

/// Numbers of records by action.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MigrationTotals {
    /// Imported records.
    pub import: u64,
    /// Records that the database has.
    pub already: u64,
    /// Records left out by design.
    pub skip: u64,
    /// Records that cannot be imported.
    pub refuse: u64,
    /// Records in whose place the database has another.
    pub conflict: u64,
}

impl MigrationTotals {
    /// Counts lines by action.
    pub fn of(lines: &[MigrationLine]) -> Self {
        let mut totals = Self::default();
        for line in lines {
            let count = match line.action {
                MigrationAction::Import => &mut totals.import,
                MigrationAction::Already => &mut totals.already,
                MigrationAction::Skip => &mut totals.skip,
                MigrationAction::Refuse => &mut totals.refuse,
                MigrationAction::Conflict => &mut totals.conflict,
            };
            *count += 1;
        }
        totals
    }

    /// True if all wanted records are in the database.
    pub const fn is_complete(&self) -> bool {
        self.refuse == 0 && self.conflict == 0
    }

    /// Formats the numbers for people.
    pub fn text(&self) -> String {
        let Self { import, already, skip, refuse, conflict } = self;
        format!("{import} import, {already} already, {skip} skip, {refuse} refuse, {conflict} conflict")
    }
}

/// True if a refusal may be about a conversation or a session that was not imported.
pub fn may_need_import(failure: &Failure) -> bool {
    match failure.code {
        Code::NotBound | Code::NoSession => failure.detail_code.is_none(),
        Code::StaleBinding => true,
        _ => false,
    }
}

/// Names the import in a refusal.
pub fn with_import_hint(failure: Failure) -> Failure {
    const HINT: &str =
        "If it was one of OpenClaw, the operator can import it: `acp-gateway migrate openclaw`.";
    let with_hint = |text: &str| format!("{text} {HINT}");
    let conversation_text = failure.conversation_text.as_deref().map(with_hint);
    Failure { message: with_hint(&failure.message), conversation_text, ..failure }
}
