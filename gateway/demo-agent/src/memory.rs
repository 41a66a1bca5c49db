//! Conversations of the demo agent on disk, one file each, appended before a response is sent, so that the
//! file is also a log of received prompts.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum size of a stored answer, in bytes.
pub const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// One line of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum TranscriptLine {
    /// First line of the file.
    Session {
        /// Working directory.
        cwd: String,
    },
    /// Message of the user.
    User {
        /// Text of the prompt.
        text: String,
    },
    /// Message of the agent.
    Agent {
        /// Text of the answer, possibly truncated.
        text: String,
    },
}

/// Storage of conversations.
#[derive(Debug)]
pub struct TranscriptStore {
    dir: PathBuf,
}

impl TranscriptStore {
    /// Uses `dir`, which is created with the first conversation.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Returns the file of a conversation; `None` for an invalid id.
    fn file(&self, id: &str) -> Option<PathBuf> {
        let fits =
            !id.is_empty() && id.len() <= 64 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        fits.then(|| self.dir.join(format!("{id}.jsonl")))
    }

    /// Appends a line to a conversation.
    ///
    /// # Errors
    /// I/O errors of the file system.
    pub fn append(&self, id: &str, line: &TranscriptLine) -> io::Result<()> {
        let path = self.file(id).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let mut file: File = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        file.write_all(&text)
    }

    /// Reads a conversation; `None` if it does not exist. A line truncated by a crash is skipped.
    pub fn read(&self, id: &str) -> Option<Vec<TranscriptLine>> {
        let text = std::fs::read_to_string(self.file(id)?).ok()?;
        Some(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Returns ids and working directories of all conversations, sorted by id.
    pub fn list(&self) -> Vec<(String, String)> {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return Vec::new() };
        let id =
            |entry: std::fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".jsonl")?.to_owned());
        let mut ids: Vec<String> = entries.flatten().filter_map(id).collect();
        ids.sort();
        ids.into_iter()
            .filter_map(|id| match self.read(&id)?.into_iter().next()? {
                TranscriptLine::Session { cwd } => Some((id, cwd)),
                TranscriptLine::User { .. } | TranscriptLine::Agent { .. } => None,
            })
            .collect()
    }
}
