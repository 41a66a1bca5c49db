//! File requests of protocol 2: requests of a gateway for files of a session, and the replies.
//!
//! The supervisor passes a request on to a helper process that runs as the user of the lease, with the
//! confinement of the lease. The gateway itself opens no file of a project.

use crate::ids::LeaseId;
use serde::{Deserialize, Serialize};

/// Maximum size of a file that is read, in bytes.
pub const READ_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// Maximum size of content that is written or hashed, in bytes.
pub const WRITE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Maximum number of roots of one request.
pub const ROOTS_MAX: usize = 64;
/// Maximum number of directories or program names of one look-up.
pub const NAMES_MAX: usize = 256;
/// Maximum length of a path, root or program name, in bytes: as in Linux.
pub const NAME_BYTES_MAX: usize = 4096;
/// Maximum number of entries in a list of a directory.
pub const ENTRIES_MAX: u64 = 2_000;
/// Feature of a supervisor that lists directories: see [`FilesOp::List`].
pub const LIST_FEATURE: &str = "files_list";
/// Maximum length of a search path, in bytes.
pub const SEARCH_BYTES_MAX: usize = 64 * 1024;

/// One request for files, directories or programs. Answered by [`crate::protocol::Reply::Files`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesRequest {
    /// Helper that serves the request.
    pub scope: FilesScope,
    /// Absolute directories that the path of `op` must lie beneath. The first one must exist; others that
    /// cannot be opened are left out. Empty for [`FilesOp::Directories`] and [`FilesOp::Programs`].
    pub roots: Vec<String>,
    /// The operation.
    pub op: FilesOp,
}

/// Helper that serves a [`FilesRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FilesScope {
    /// The helper of a living lease; kept for some time after the request.
    Lease(LeaseId),
    /// A helper of the gateway's tenant without a lease: look-ups before a spawn. Ends after the request, and
    /// writes nothing.
    Tenant,
}

/// Operation of a [`FilesRequest`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilesOp {
    /// Reads a text file. Answered by [`FilesReply::Text`].
    Read {
        /// Absolute path.
        path: String,
        /// First line to return, from 1.
        line: Option<u64>,
        /// Number of lines to return.
        limit: Option<u64>,
        /// Maximum size of the file, at most [`READ_BYTES_MAX`].
        bytes_max: u64,
    },
    /// Replaces the content of a file atomically; missing directories are created. Answered by
    /// [`FilesReply::Written`].
    Write {
        /// Absolute path.
        path: String,
        /// The new content, at most [`WRITE_BYTES_MAX`] bytes.
        #[serde(with = "serde_bytes")]
        content: Vec<u8>,
    },
    /// Inspects a file without changing it. Answered by [`FilesReply::Inspected`].
    Inspect {
        /// Absolute path.
        path: String,
        /// The text is returned if the file has no more bytes than this.
        text_bytes_max: u64,
    },
    /// Resolves a directory beneath the roots, and the roots. Answered by [`FilesReply::Directory`].
    Directory {
        /// Absolute path.
        path: String,
    },
    /// Resolves directories anywhere. Answered by [`FilesReply::Directories`].
    Directories {
        /// Absolute paths.
        paths: Vec<String>,
    },
    /// Looks up executable programs. Answered by [`FilesReply::Programs`].
    Programs {
        /// Names without a slash, or absolute paths.
        names: Vec<String>,
        /// Search path in the form of `PATH`; relative entries are ignored.
        search: String,
    },
    /// Lists a directory beneath the roots. Answered by [`FilesReply::List`]. Only for a supervisor with the feature
    /// [`LIST_FEATURE`].
    List {
        /// Absolute path.
        path: String,
        /// Maximum number of entries, at most [`ENTRIES_MAX`].
        entries_max: u64,
    },
}

impl FilesRequest {
    /// Bytes that the request holds in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let op = &self.op;
        let names = self.roots.iter().chain(op.names());
        let names: usize = names.map(|name| name.len() + size_of::<String>()).sum();
        size_of::<Self>() + names + op.search().len() + op.content().len()
    }
}

impl FilesOp {
    /// File content inside of the request.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        match self {
            Self::Write { content, .. } => content,
            Self::Read { .. }
            | Self::Inspect { .. }
            | Self::Directory { .. }
            | Self::Directories { .. }
            | Self::Programs { .. }
            | Self::List { .. } => &[],
        }
    }

    /// Paths and program names.
    #[must_use]
    pub const fn names(&self) -> &[String] {
        match self {
            Self::Read { path, .. }
            | Self::Write { path, .. }
            | Self::Inspect { path, .. }
            | Self::List { path, .. }
            | Self::Directory { path } => std::slice::from_ref(path),
            Self::Directories { paths: names } | Self::Programs { names, .. } => names.as_slice(),
        }
    }

    /// Search path for programs.
    #[must_use]
    pub const fn search(&self) -> &str {
        match self {
            Self::Programs { search, .. } => search.as_str(),
            Self::Read { .. }
            | Self::Write { .. }
            | Self::Inspect { .. }
            | Self::Directory { .. }
            | Self::List { .. }
            | Self::Directories { .. } => "",
        }
    }
}

impl std::fmt::Debug for FilesOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read { path, line, limit, .. } => write!(f, "Read({path:?}, {line:?}, {limit:?})"),
            Self::Write { path, content } => write!(f, "Write({path:?}, {} bytes)", content.len()),
            Self::Inspect { path, .. } => write!(f, "Inspect({path:?})"),
            Self::Directory { path } => write!(f, "Directory({path:?})"),
            Self::Directories { paths } => write!(f, "Directories({paths:?})"),
            Self::Programs { names, .. } => write!(f, "Programs({names:?})"),
            Self::List { path, .. } => write!(f, "List({path:?})"),
        }
    }
}

/// Answer to a [`FilesRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilesReply {
    /// Content of a file, or the requested lines.
    Text(String),
    /// The file has the new content; the content is synced to disk.
    Written,
    /// State of a file.
    Inspected(Inspection),
    /// A directory beneath the roots.
    Directory {
        /// Canonical path of the directory.
        path: String,
        /// Canonical paths of the roots that can be opened, in the order of the request.
        roots: Vec<String>,
    },
    /// Canonical path of each directory, in the order of the request.
    Directories(Vec<Result<String, FilesError>>),
    /// Absolute path of each program in the order of the request; `None` if there is no executable file.
    Programs(Vec<Option<String>>),
    /// Entries of a directory, by name.
    List {
        /// The first entries. Names that are not UTF-8 are left out.
        entries: Vec<FilesEntry>,
        /// True if there are others.
        more: bool,
    },
}

/// Entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesEntry {
    /// Name without the directory.
    pub name: String,
    /// True for a directory beneath the roots, also by a link.
    pub is_directory: bool,
    /// Size in bytes; for a link the size of the link itself.
    pub size: u64,
}

impl FilesReply {
    /// True if this reply is of the kind that answers `op`.
    #[must_use]
    pub const fn fits(&self, op: &FilesOp) -> bool {
        matches!(
            (self, op),
            (Self::Text(_), FilesOp::Read { .. })
                | (Self::Written, FilesOp::Write { .. })
                | (Self::Inspected(_), FilesOp::Inspect { .. })
                | (Self::Directory { .. }, FilesOp::Directory { .. })
                | (Self::Directories(_), FilesOp::Directories { .. })
                | (Self::Programs(_), FilesOp::Programs { .. })
                | (Self::List { .. }, FilesOp::List { .. })
        )
    }

    /// Bytes of text and paths in the answer.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        match self {
            Self::Text(text) => text.len(),
            Self::Written => 0,
            Self::Inspected(seen) => len(&seen.text) + len(&seen.canonical),
            Self::Directory { path, roots } => path.len() + roots.iter().map(String::len).sum::<usize>(),
            Self::Directories(all) => all.iter().flatten().map(String::len).sum(),
            Self::Programs(all) => all.iter().flatten().map(String::len).sum(),
            Self::List { entries, .. } => {
                entries.iter().map(|entry| entry.name.len() + size_of::<FilesEntry>()).sum()
            }
        }
    }
}

/// State of a file at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// Path without links, beneath a root. For a missing file: path of the nearest existing directory above
    /// it, with the missing names added.
    pub canonical: Option<String>,
    /// True if a file, a directory or anything else exists at the path.
    pub exists: bool,
    /// True if the path names a regular file.
    pub is_regular: bool,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the content in hex; `None` over [`WRITE_BYTES_MAX`], and for a file that cannot be read.
    pub sha256: Option<String>,
    /// Content, if it is UTF-8 and within the requested size.
    pub text: Option<String>,
}

/// Error of a [`FilesRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum FilesError {
    /// The path is not absolute, has no file name, or holds a NUL byte.
    #[error("not a usable absolute path")]
    BadPath,
    /// The path lies beneath no root, or a link or `..` leads out of it.
    #[error("outside of the session's directories")]
    Outside,
    /// There is no such file.
    #[error("no such file")]
    NotFound,
    /// The path names a directory, pipe, device or socket.
    #[error("not a regular file")]
    NotRegular,
    /// The file or content is too large.
    #[error("larger than {bytes_max} bytes")]
    TooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// The content is not UTF-8.
    #[error("not UTF-8 text")]
    NotUtf8,
    /// Permissions or the confinement of the tenant forbid it.
    #[error("permission denied")]
    Denied,
    /// The kernel has no `openat2`, without which paths cannot be confined.
    #[error("this system cannot confine paths (openat2 is missing or forbidden)")]
    Unsupported,
    /// Another failure of the system.
    #[error("input or output failed: {message}")]
    Io {
        /// The system's text.
        message: String,
    },
    /// The helper could not be started; nothing was done.
    #[error("the file helper cannot be started: {message}")]
    NoHelper {
        /// Reason and remedy.
        message: String,
    },
    /// The helper did not answer in time and was ended. The fate of a write is unknown.
    #[error("the file system did not answer within {within_ms} ms")]
    TimedOut {
        /// The limit.
        within_ms: u64,
    },
    /// The helper ended before it answered. The fate of a write is unknown.
    #[error("the file helper ended before it answered")]
    Interrupted,
    /// The path names something else than a directory.
    #[error("not a directory")]
    NotDirectory,
}

impl FilesError {
    /// True if a write that got this error may have been done.
    #[must_use]
    pub const fn is_uncertain(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::Interrupted)
    }
}
