//! Errors of the control plane's database.

use acp_core::api::CellOwnerView;
use acp_core::failure::Failure;
use acp_core::policy::{ACCOUNT_SESSIONS_MAX, SESSIONS_MAX};
use acp_core::request::CloseRequest;
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, SessionKey};
use std::path::PathBuf;
use std::sync::Arc;

/// Error of a store operation. After an error from a write, nothing of that write is durable, except for
/// [`StoreError::OutcomeUnknown`].
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process uses this state directory (H15).
    #[error(
        "another gateway{} uses {}: stop it, or give this one another --state-dir",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(), .path.display()
    )]
    Locked {
        /// Lock file.
        path: PathBuf,
        /// Process id in the lock file, written by the holder.
        pid: Option<i32>,
    },
    /// A file operation in the state directory failed.
    #[error("cannot {what} {}", .path.display())]
    File {
        /// Failed operation.
        what: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The database was written by a later version of this program.
    #[error(
        "the database has schema version {found}, this program supports at most {known}: install the newer \
         version"
    )]
    Newer {
        /// Schema version of the database.
        found: i64,
        /// Highest schema version that this program supports.
        known: i64,
    },
    /// The file is a database of another program.
    #[error("{} is not a database of acp-gateway ({why})", .path.display())]
    Foreign {
        /// Database file.
        path: PathBuf,
        /// Evidence that it is foreign.
        why: String,
    },
    /// The database file is damaged.
    #[error(
        "the database is damaged ({why}). Nothing was changed. `acp-gateway store check` shows where, and \
         `acp-gateway store sessions` lists what can still be read; with the gateway stopped, `acp-gateway \
         store restore FILE` restores a backup and keeps the damaged file"
    )]
    Damaged {
        /// Message of SQLite or of the check.
        why: String,
    },
    /// The database file does not exist, although the lock file or a WAL shows an earlier one.
    #[error(
        "{} is missing, but a gateway has used this directory before. No new database was created. Put the \
         file back, or restore a backup with `acp-gateway store restore FILE`; to start with an empty \
         database, remove {} too",
        .path.display(), .lock.display()
    )]
    Missing {
        /// Database file.
        path: PathBuf,
        /// Lock file that records the database.
        lock: PathBuf,
    },
    /// The database file was removed or replaced while it was open.
    #[error(
        "{} was removed or replaced while the gateway used it: nothing more is committed. Put the original \
         file back, or stop the gateway and restore a backup with `acp-gateway store restore FILE`",
        .path.display()
    )]
    Gone {
        /// Database file.
        path: PathBuf,
    },
    /// The file system is read-only or denies writing.
    #[error(
        "the database is not writable because of its file system or its mode: mount the file system \
         writable, or give this user write access"
    )]
    ReadOnly,
    /// The target file of a backup exists already.
    #[error("{} already exists: choose another name, or add --replace", .path.display())]
    Exists {
        /// Existing file.
        path: PathBuf,
    },
    /// The file cannot be restored.
    #[error("{} cannot be restored: {why}. Nothing was changed", .path.display())]
    NotABackup {
        /// Backup file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// A schema migration failed.
    #[error("the database cannot be migrated to this program's schema")]
    Migration(#[source] Arc<rusqlite_migration::Error>),
    /// The state directory is a copy of another gateway's (H15).
    #[error(
        "{} is a copy of another gateway's state ({why}). If the other one is gone for good, run `acp-gateway \
         adopt --state-dir {}`: it takes the sessions over under a new identity. If not, use another directory",
        .dir.display(), .dir.display()
    )]
    Cloned {
        /// State directory.
        dir: PathBuf,
        /// Evidence that it is a copy.
        why: String,
    },
    /// Another actor has claimed the session; this one may no longer write.
    #[error("the actor of {session_key} was superseded")]
    Superseded {
        /// Session key.
        session_key: SessionKey,
    },
    /// The session does not exist.
    #[error("there is no session {session_key}")]
    NoSession {
        /// Requested session key.
        session_key: SessionKey,
    },
    /// Rows after a cursor were pruned.
    #[error(
        "the rows after {after} were pruned up to {pruned} by the retention of the journal: read again without a cursor, or \
         from {pruned}"
    )]
    CursorPruned {
        /// Cursor of the reader.
        after: u64,
        /// Number of the last pruned row.
        pruned: u64,
    },
    /// A sequence number or offset does not follow the last one.
    #[error("{what} is {got}, but {want} is expected")]
    Numbering {
        /// Name of the number.
        what: &'static str,
        /// Expected value.
        want: u64,
        /// Actual value.
        got: u64,
    },
    /// The rows violate a rule, together or in the current state.
    #[error("refused: {0}")]
    Refused(&'static str),
    /// The idempotency key is in use; look up its stored result.
    #[error("the idempotency key {key} was used before")]
    KeyTaken {
        /// Scope of the key.
        scope: String,
        /// Idempotency key.
        key: IdempotencyKey,
    },
    /// The maximum number of sessions in use is reached.
    #[error("the limit of {sessions_max} open sessions is reached")]
    LimitReached {
        /// Maximum number of sessions.
        sessions_max: u64,
        /// True if it is the limit of the account.
        account: bool,
    },
    /// The maximum number of open sessions that one session spawned is reached.
    #[error("the limit of {children_max} open sessions spawned by one session is reached")]
    TooManyChildren {
        /// Maximum number of sessions.
        children_max: u64,
    },
    /// Another open session has this label.
    #[error("an open session already has the label {label:?}")]
    LabelTaken {
        /// Requested label.
        label: String,
    },
    /// An open session has this name in the contract of acpx.
    #[error("{session_key} has the name already")]
    NameTaken {
        /// That session.
        session_key: SessionKey,
    },
    /// An open session continues the conversation of the agent.
    #[error("{session_key} continues this conversation already")]
    Continued {
        /// That session.
        session_key: SessionKey,
    },
    /// A row is no longer in the expected state, e.g. a binding was used since it was found to be expired.
    #[error("the binding was used meanwhile")]
    UsedMeanwhile,
    /// A conversation is bound to a session that must have no binding.
    #[error("a conversation is bound to the session")]
    SessionBound,
    /// The conversation has an active binding already.
    #[error("the conversation is already bound")]
    ConversationBound,
    /// The disk, the quota or the database's maximum size is exhausted.
    #[error(
        "the disk is full: no new work is accepted until there is space again. Free some space; the gateway \
         then resumes automatically"
    )]
    Full,
    /// The database holds a value that this program cannot read.
    #[error("{column} in the database cannot be read: {why}")]
    Unreadable {
        /// Column name.
        column: &'static str,
        /// Reason.
        why: String,
    },
    /// The value cannot be serialized.
    #[error("a value cannot be written as JSON")]
    Unwritable(#[source] Arc<serde_json::Error>),
    /// The transaction's closure panicked; the transaction was rolled back.
    #[error("the transaction {name} panicked")]
    Panicked {
        /// Name of the transaction.
        name: &'static str,
    },
    /// The group was rolled back because of another transaction in it. A retry may succeed.
    #[error("the group of transactions was rolled back")]
    GroupLost,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The operation is one of SQLite alone.
    #[error("this needs the embedded database, but the gateway's store is PostgreSQL")]
    OtherEngine,
    /// The connection to the database server was lost. What was not committed is rolled back there.
    #[error("the connection to the database server was lost")]
    ConnectionLost,
    /// The connection to the database server was lost after a commit was sent: it may have been made.
    #[error("the connection to the database server was lost during a commit: it may have been made")]
    OutcomeUnknown,
    /// Another gateway serves the cell.
    #[error(
        "another gateway serves the cell {cell} ({holder} of the database server): stop it, or configure another cell"
    )]
    CellTaken {
        /// Name of the cell.
        cell: String,
        /// Server process with the lock, and the client's address.
        holder: String,
        /// Record of the owner; `None` before the first record, and for a command in the cell.
        owner: Option<Box<CellOwnerView>>,
    },
    /// The state directory has a database file, but the configured store is PostgreSQL.
    #[error(
        "{} holds a control plane, but the configured store is PostgreSQL: move it with `acp-gateway store move --to postgres`, \
         or rename the file",
        .path.display()
    )]
    InFile {
        /// Database file.
        path: PathBuf,
    },
    /// The control plane of the state directory is in PostgreSQL, but the configured store is SQLite.
    #[error(
        "the control plane of {} is in PostgreSQL: set acp.control_plane.store = \"postgres\", or move it back with \
         `acp-gateway store move --to sqlite`",
        .dir.display()
    )]
    InCell {
        /// State directory.
        dir: PathBuf,
    },
    /// The control plane was moved by `store move`.
    #[error("{from} was moved to {to}, and would go on with old rows: {next}")]
    Moved {
        /// Place that it was moved from.
        from: String,
        /// Place that it was moved to.
        to: String,
        /// Next step.
        next: &'static str,
    },
    /// A move by `store move` was interrupted.
    #[error("a move of the control plane has not finished: repeat `acp-gateway store move --to postgres`")]
    MoveUnfinished,
    /// The target of a move has rows.
    #[error(
        "the schema {schema} of the database has rows: choose another acp.control_plane.postgres.cell, or remove them with \
         DROP SCHEMA {schema} CASCADE if nobody needs them"
    )]
    CellNotEmpty {
        /// Schema of the cell.
        schema: String,
    },
    /// A copy differs from the original, or breaks a rule.
    #[error(
        "the copy cannot be used, and nothing was moved: {why}. `acp-gateway store check` or `doctor` shows the original"
    )]
    BadCopy {
        /// Difference or broken rules.
        why: String,
    },
    /// The database server cannot be used.
    #[error("PostgreSQL at {address}: {why}")]
    Server {
        /// Address without a password.
        address: String,
        /// Reason and next step.
        why: String,
        /// True if a later attempt may succeed without a change: the server cannot be reached, starts or ends.
        is_passing: bool,
    },
    /// Any other error of SQLite.
    #[error("the database reported an error")]
    Sqlite(#[source] Arc<rusqlite::Error>),
    /// Any other error of PostgreSQL.
    #[error("the database reported an error")]
    Postgres(#[source] Arc<tokio_postgres::Error>),
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        use tokio_postgres::error::SqlState;
        match error.code() {
            Some(code) if *code == SqlState::DISK_FULL => Self::Full,
            Some(code) if *code == SqlState::READ_ONLY_SQL_TRANSACTION => Self::ReadOnly,
            Some(code) if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED => {
                Self::Damaged { why: error.to_string() }
            }
            Some(code)
                if *code == SqlState::ADMIN_SHUTDOWN
                    || *code == SqlState::CRASH_SHUTDOWN
                    || *code == SqlState::IDLE_SESSION_TIMEOUT =>
            {
                Self::ConnectionLost
            }
            None if error.is_closed()
                || std::error::Error::source(&error).is_some_and(|cause| cause.is::<std::io::Error>()) =>
            {
                Self::ConnectionLost
            }
            _ => Self::Postgres(Arc::new(error)),
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode;
        let extended = error.sqlite_error().map(|error| error.extended_code);
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            // No disk space for the WAL index (shared memory).
            _ if extended == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) => Self::Full,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Damaged { why: error.to_string() }
            }
            Some(ErrorCode::ReadOnly) => Self::ReadOnly,
            _ => Self::Sqlite(Arc::new(error)),
        }
    }
}

impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        Self::Unwritable(Arc::new(error))
    }
}

impl StoreError {
    /// Wraps an I/O error; a full disk and a read-only file system get variants of their own.
    pub fn file(what: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => return Self::Full,
            std::io::ErrorKind::ReadOnlyFilesystem => return Self::ReadOnly,
            _ => {}
        }
        Self::File { what, path: path.into(), source: Arc::new(source) }
    }

    /// True for a violated UNIQUE or PRIMARY KEY constraint.
    pub fn is_unique_violation(&self) -> bool {
        if let Self::Postgres(error) = self {
            return error.code() == Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION);
        }
        let Self::Sqlite(error) = self else { return false };
        matches!(
            error.sqlite_error().map(|e| e.extended_code),
            Some(rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE | rusqlite::ffi::SQLITE_CONSTRAINT_PRIMARYKEY)
        )
    }
}

impl StoreError {
    /// Detail code for errors that an operator must fix.
    const fn detail(&self) -> Option<&'static str> {
        match self {
            Self::Full => Some("DISK_FULL"),
            Self::Damaged { .. } => Some("STORE_DAMAGED"),
            Self::Unreadable { .. } => Some("STORE_UNREADABLE"),
            Self::Missing { .. } => Some("STORE_MISSING"),
            Self::Gone { .. } => Some("STORE_GONE"),
            Self::ReadOnly => Some("STORE_READ_ONLY"),
            Self::Newer { .. } => Some("STORE_NEWER"),
            Self::Foreign { .. } => Some("STORE_FOREIGN"),
            Self::NotABackup { .. } => Some("NOT_A_BACKUP"),
            Self::Cloned { .. } => Some("STORE_CLONED"),
            Self::Locked { .. } | Self::CellTaken { .. } => Some("STORE_LOCKED"),
            Self::Server { .. } => Some("STORE_SERVER"),
            Self::InFile { .. } | Self::InCell { .. } | Self::Moved { .. } | Self::MoveUnfinished => {
                Some("STORE_ELSEWHERE")
            }
            _ => None,
        }
    }

    /// True if opening the database may succeed later without a change of it or of the configuration: the disk is full, the
    /// server is out of reach, or another gateway serves the cell.
    pub const fn is_passing_at_start(&self) -> bool {
        matches!(
            self,
            Self::Full
                | Self::CellTaken { .. }
                | Self::Server { is_passing: true, .. }
                | Self::ConnectionLost
                | Self::OutcomeUnknown
        )
    }

    /// True if a retry is useless until an operator repairs the database.
    pub const fn needs_repair(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Unreadable { .. })
    }

    /// True if the text contains a path of the server.
    const fn names_path(&self) -> bool {
        matches!(
            self,
            Self::Locked { .. }
                | Self::Foreign { .. }
                | Self::Missing { .. }
                | Self::Gone { .. }
                | Self::NotABackup { .. }
                | Self::Cloned { .. }
                | Self::InFile { .. }
                | Self::InCell { .. }
                | Self::Moved { .. }
        )
    }

    /// The error and its causes on one line, for the command line.
    pub fn whole(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    }
}

impl From<StoreError> for Failure {
    /// Error message for users and API clients. The technical detail is logged instead.
    fn from(error: StoreError) -> Self {
        if let Some(detail) = error.detail() {
            let code = Code::StoreUnavailable;
            let failure = Failure::new(code, error.to_string());
            let failure = if error.names_path() { failure.for_conversations(code.text()) } else { failure };
            return failure.detail(detail).origin("gateway");
        }
        let failure = match &error {
            StoreError::NoSession { .. } => Failure::of(Code::NoSession),
            StoreError::CursorPruned { .. } => Failure::new(Code::CursorPruned, error.to_string()),
            StoreError::KeyTaken { .. } => Failure::of(Code::IdempotencyConflict),
            StoreError::LimitReached { account, .. } => {
                let detail = if *account { ACCOUNT_SESSIONS_MAX } else { SESSIONS_MAX };
                Failure::new(Code::LimitReached, error.to_string()).detail(detail).retryable()
            }
            StoreError::TooManyChildren { .. } => {
                Failure::new(Code::LimitReached, error.to_string()).detail("CHILDREN_MAX").retryable()
            }
            StoreError::LabelTaken { label } => {
                let text = format!(
                    "An open session already has the label {label:?}. Choose another label, or close that \
                     session."
                );
                Failure::new(Code::Usage, text).detail("LABEL_TAKEN")
            }
            StoreError::Continued { session_key } => {
                let text = format!(
                    "The session {session_key} continues this conversation of the agent already. Use it, or close it \
                     first."
                );
                Failure::new(Code::Usage, text).detail("CONVERSATION_CONTINUED")
            }
            StoreError::SessionBound => CloseRequest::refused("a conversation is bound to it"),
            StoreError::ConversationBound => {
                Failure::new(Code::Usage, error.to_string()).detail("CONVERSATION_BOUND")
            }
            StoreError::Exists { .. } => {
                return Failure::new(Code::Usage, error.to_string()).origin("client");
            }
            StoreError::UsedMeanwhile
            | StoreError::Superseded { .. }
            | StoreError::GroupLost
            | StoreError::Closed => Failure::of(Code::StoreUnavailable).retryable(),
            StoreError::OutcomeUnknown => {
                let text = "The connection to the database server was lost during a commit. The request may have been \
                    accepted: look before you repeat it under another idempotency key.";
                Failure::new(Code::StoreUnavailable, text).detail("OUTCOME_UNKNOWN").retryable()
            }
            _ => Failure::of(Code::StoreUnavailable),
        };
        failure.origin("gateway")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_outcome_is_not_told_as_a_refusal() {
        let failure = Failure::from(StoreError::OutcomeUnknown);
        assert_eq!(failure.detail_code.as_deref(), Some("OUTCOME_UNKNOWN"));
        assert!(failure.message.contains("may have been accepted"), "{}", failure.message);
        assert!(Failure::from(StoreError::ConnectionLost).message.contains("Nothing was accepted"));
    }

    #[test]
    fn errors_that_name_a_file_show_conversations_no_path() {
        let path = || PathBuf::from("/srv");
        let why = || "empty".to_owned();
        for error in [
            StoreError::Locked { path: path(), pid: None },
            StoreError::Foreign { path: path(), why: why() },
            StoreError::Missing { path: path(), lock: path() },
            StoreError::Gone { path: path() },
            StoreError::NotABackup { path: path(), why: why() },
            StoreError::Cloned { dir: path(), why: why() },
            StoreError::InFile { path: path() },
            StoreError::InCell { dir: path() },
            StoreError::Moved { from: "/srv".to_owned(), to: why(), next: "" },
        ] {
            let failure = Failure::from(error);
            assert!(failure.message.contains("/srv"), "{failure:?}");
            assert_eq!(failure.text_for_conversations(), Code::StoreUnavailable.text());
        }
    }
}
