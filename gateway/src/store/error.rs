//! What can go wrong with the control plane's database.

use crate::core::policy::{ACCOUNT_SESSIONS_MAX, SESSIONS_MAX};
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
    /// The file is a database, and none of ours.
    #[error("{} is no database of acp-gateway ({why})", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What tells.
        why: String,
    },
    /// The database's file is damaged.
    #[error(
        "the database is damaged ({why}). Nothing was changed. `acp-gateway store check` says where, and \
         `acp-gateway store sessions` lists what can still be read; with the gateway stopped, `acp-gateway store restore FILE` brings a backup back and keeps the \
         damaged file aside"
    )]
    Damaged {
        /// What SQLite, or the check, says.
        why: String,
    },
    /// A gateway worked on this state directory before, and its database is not there.
    #[error(
        "{} is gone, and a gateway has worked here before. Nothing was made in its place. Put it back, or bring a \
         backup back with `acp-gateway store restore FILE`; to begin with nothing, remove {} too",
        .path.display(), .lock.display()
    )]
    Missing {
        /// The database.
        path: PathBuf,
        /// The file that remembers it.
        lock: PathBuf,
    },
    /// The file was taken away or replaced while it was open.
    #[error(
        "{} was taken away or replaced while the gateway used it: nothing more is committed. Put it back as it \
         was, or stop the gateway and bring a backup back with `acp-gateway store restore FILE`",
        .path.display()
    )]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// The file system does not let us write.
    #[error(
        "the database is on a file system, or has a mode, that cannot be written: mount it writable, or give it \
         back to this user"
    )]
    ReadOnly,
    /// A backup would replace a file.
    #[error("{} is there already: choose another name, or say --replace", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file that cannot be restored.
    #[error("{} cannot be restored: {why}. Nothing was changed", .path.display())]
    NotABackup {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
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
    #[error(
        "the disk is full: nothing is taken on until there is room again. Make room; it goes on by itself"
    )]
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
        use rusqlite::ErrorCode;
        let extended = error.sqlite_error().map(|error| error.extended_code);
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            // No room for the index of the log.
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
    /// Wraps an error of the file system.
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => return Self::Full,
            std::io::ErrorKind::ReadOnlyFilesystem => return Self::ReadOnly,
            _ => {}
        }
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

impl StoreError {
    /// The finer code of a state of the store that a person must do something about.
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
            Self::Locked { .. } => Some("STORE_LOCKED"),
            _ => None,
        }
    }

    /// Whether trying again changes nothing until somebody repairs the database.
    pub(crate) const fn is_for_repair(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Unreadable { .. })
    }

    /// The same as one line with its causes, for the person at the command line.
    pub(crate) fn whole(&self) -> String {
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
    /// What people and clients are told; the detail belongs into the log.
    fn from(error: StoreError) -> Self {
        if let Some(detail) = error.detail() {
            let failure = Failure::new(Code::StoreUnavailable, error.to_string());
            return failure.detail(detail).origin("gateway");
        }
        match &error {
            StoreError::NoSession { .. } => Failure::of(Code::NoSession).origin("gateway"),
            StoreError::KeyTaken { .. } => Failure::of(Code::IdempotencyConflict).origin("gateway"),
            StoreError::LimitReached { account, .. } => {
                let detail = if *account { ACCOUNT_SESSIONS_MAX } else { SESSIONS_MAX };
                Failure::new(Code::LimitReached, error.to_string())
                    .detail(detail)
                    .origin("gateway")
                    .retryable()
            }
            StoreError::LabelTaken { label } => {
                let text = format!(
                    "An open session is called {label:?} already. Choose another label, or close that session."
                );
                Failure::new(Code::Usage, text).detail("LABEL_TAKEN").origin("gateway")
            }
            StoreError::ConversationBound => {
                Failure::new(Code::Usage, error.to_string()).detail("CONVERSATION_BOUND").origin("gateway")
            }
            StoreError::Exists { .. } => Failure::new(Code::Usage, error.to_string()).origin("client"),
            StoreError::UsedMeanwhile
            | StoreError::Superseded { .. }
            | StoreError::GroupLost
            | StoreError::Closed => Failure::of(Code::StoreUnavailable).origin("gateway").retryable(),
            _ => Failure::of(Code::StoreUnavailable).origin("gateway"),
        }
    }
}
