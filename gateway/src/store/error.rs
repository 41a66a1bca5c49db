//! What can go wrong with the control plane's database.

use crate::error::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, SessionKey};
use std::path::PathBuf;
use std::sync::Arc;

/// Why the store did not do what was asked. After any of these from a write, nothing of that write is durable.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum StoreError {
    /// Another process serves this state directory (H15).
    #[error(
        "another gateway{} uses {}: stop it, or give this one another --state-dir",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(), .path.display()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// Who holds it, as it wrote itself there.
        pid: Option<i32>,
    },
    /// A file of the state directory could not be used.
    #[error("cannot {what} {}", .path.display())]
    File {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The database was written by a later version of this program.
    #[error(
        "the database has schema version {found}, this program knows up to {known}: install the newer one"
    )]
    Newer {
        /// What the database has.
        found: i64,
        /// What this program has.
        known: i64,
    },
    /// The migrations did not go through.
    #[error("the database cannot be brought to this program's schema")]
    Migration(#[source] Arc<rusqlite_migration::Error>),
    /// The state directory is a copy (H15).
    #[error(
        "{} is a copy of another gateway's state ({why}). If the other one is gone for good, run `acp-gateway \
         adopt --state-dir {}`: it takes the sessions over under a new identity. If not, use another directory",
        .dir.display(), .dir.display()
    )]
    Cloned {
        /// The state directory.
        dir: PathBuf,
        /// What tells.
        why: String,
    },
    /// Another task took the session over; this one may no longer write.
    #[error("the actor of {session_key} was superseded")]
    Superseded {
        /// The session.
        session_key: SessionKey,
    },
    /// There is no such session.
    #[error("there is no session {session_key}")]
    NoSession {
        /// What was asked for.
        session_key: SessionKey,
    },
    /// Numbers or offsets that do not follow the last ones.
    #[error("{what} is {got}, but {want} comes next")]
    Numbering {
        /// Which number.
        what: &'static str,
        /// What would have been right.
        want: u64,
        /// What was given.
        got: u64,
    },
    /// Rows that must not be written together, or not in this state of affairs.
    #[error("refused: {0}")]
    Refused(&'static str),
    /// The idempotency key has an answer already; look it up.
    #[error("the idempotency key {key} was used before")]
    KeyTaken {
        /// What it was for.
        scope: String,
        /// The key.
        key: IdempotencyKey,
    },
    /// As many sessions are open as may be.
    #[error("{sessions_max} sessions are open, the limit")]
    LimitReached {
        /// The limit.
        sessions_max: u64,
        /// Whether it is the account's own.
        account: bool,
    },
    /// An open session is called that already.
    #[error("an open session is called {label:?} already")]
    LabelTaken {
        /// What it is called.
        label: String,
    },
    /// Somebody used what was about to run out.
    #[error("the binding was used meanwhile")]
    UsedMeanwhile,
    /// The conversation has an active binding already.
    #[error("the conversation is bound already")]
    ConversationBound,
    /// The disk, or what the database may take of it, is full.
    #[error("the disk is full")]
    Full,
    /// A value in the database that this program cannot read.
    #[error("{column} in the database cannot be read: {why}")]
    Unreadable {
        /// The column.
        column: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A value that cannot be written.
    #[error("a value cannot be written as JSON")]
    Unwritable(#[source] Arc<serde_json::Error>),
    /// The transaction's code panicked; it was rolled back.
    #[error("the transaction {name} panicked")]
    Panicked {
        /// Its name.
        name: &'static str,
    },
    /// The group was not committed because of another transaction in it; trying again may work.
    #[error("the group of transactions was rolled back")]
    GroupLost,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// SQLite says no.
    #[error("the database refused")]
    Sqlite(#[source] Arc<rusqlite::Error>),
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) {
            return Self::Full;
        }
        Self::Sqlite(Arc::new(error))
    }
}

impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        Self::Unwritable(Arc::new(error))
    }
}

impl StoreError {
    /// Wraps an error of the file system.
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::File { what, path: path.into(), source: Arc::new(source) }
    }

    /// Whether SQLite refused because of a UNIQUE constraint (or primary key).
    pub(crate) fn is_unique_violation(&self) -> bool {
        let Self::Sqlite(error) = self else { return false };
        matches!(
            error.sqlite_error().map(|e| e.extended_code),
            Some(rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE | rusqlite::ffi::SQLITE_CONSTRAINT_PRIMARYKEY)
        )
    }
}

impl From<StoreError> for Failure {
    /// What people and clients are told; the detail belongs into the log.
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::NoSession { .. } => Failure::of(Code::NoSession).origin("gateway"),
            StoreError::KeyTaken { .. } => Failure::of(Code::IdempotencyConflict).origin("gateway"),
            StoreError::LimitReached { .. } => {
                Failure::new(Code::LimitReached, error.to_string()).origin("gateway").retryable()
            }
            StoreError::LabelTaken { label } => {
                let text = format!(
                    "An open session is called {label:?} already. Choose another label, or close that session."
                );
                Failure::new(Code::Usage, text).detail("LABEL_TAKEN").origin("gateway")
            }
            StoreError::ConversationBound => Failure::new(Code::Usage, error.to_string()).origin("gateway"),
            StoreError::Full => {
                Failure::new(Code::StoreUnavailable, error.to_string()).detail("DISK_FULL").origin("gateway")
            }
            StoreError::Locked { .. } | StoreError::Newer { .. } | StoreError::Cloned { .. } => {
                Failure::new(Code::StoreUnavailable, error.to_string()).origin("gateway")
            }
            StoreError::UsedMeanwhile
            | StoreError::Superseded { .. }
            | StoreError::GroupLost
            | StoreError::Closed => Failure::of(Code::StoreUnavailable).origin("gateway").retryable(),
            StoreError::File { .. }
            | StoreError::Migration(_)
            | StoreError::Numbering { .. }
            | StoreError::Refused(_)
            | StoreError::Unreadable { .. }
            | StoreError::Unwritable(_)
            | StoreError::Panicked { .. }
            | StoreError::Sqlite(_) => Failure::of(Code::StoreUnavailable).origin("gateway"),
        }
    }
}
