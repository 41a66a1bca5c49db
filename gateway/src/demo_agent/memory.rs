//! Conversations of the demo agent on disk: one file each, appended to before anything is answered, so that the
//! file is also a log of which prompts arrived.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Longest answer that is remembered.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// One line of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(crate) enum Line {
    /// The first one.
    Session {
        /// Its working directory.
        cwd: String,
    },
    /// What was asked.
    User {
        /// The prompt.
        text: String,
    },
    /// What was answered.
    Agent {
        /// The answer, or its beginning.
        text: String,
    },
}

/// Where conversations are.
#[derive(Debug)]
pub(crate) struct Memory {
    dir: PathBuf,
}

impl Memory {
    /// Conversations in `dir`; made when the first one is.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The file of a conversation; `None` for what cannot be an id.
    fn file(&self, id: &str) -> Option<PathBuf> {
        let fits =
            !id.is_empty() && id.len() <= 64 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        fits.then(|| self.dir.join(format!("{id}.jsonl")))
    }

    /// Appends a line.
    ///
    /// # Errors
    /// As the file system has them.
    pub(crate) fn append(&self, id: &str, line: &Line) -> io::Result<()> {
        let path = self.file(id).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let mut file: File = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        file.write_all(&text)
    }

    /// A conversation; `None` when there is none of that id. A line that was cut off by a crash is left out.
    pub(crate) fn read(&self, id: &str) -> Option<Vec<Line>> {
        let text = std::fs::read_to_string(self.file(id)?).ok()?;
        Some(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Ids and working directories of all conversations, by id.
    pub(crate) fn list(&self) -> Vec<(String, String)> {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return Vec::new() };
        let id =
            |entry: std::fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".jsonl")?.to_owned());
        let mut ids: Vec<String> = entries.flatten().filter_map(id).collect();
        ids.sort();
        ids.into_iter()
            .filter_map(|id| match self.read(&id)?.into_iter().next()? {
                Line::Session { cwd } => Some((id, cwd)),
                Line::User { .. } | Line::Agent { .. } => None,
            })
            .collect()
    }
}
