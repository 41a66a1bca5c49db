//! Sessions, in memory and, optionally, in a directory.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};

/// The modes of a session; the first one asks for permission.
pub(crate) const MODES: [&str; 2] = ["ask", "auto"];

/// The models of a session; the first one is the default.
pub(crate) const MODELS: [&str; 2] = ["small", "big"];

/// One session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) cwd: PathBuf,
    pub(crate) mode: String,
    /// The config option of that name.
    #[serde(default)]
    pub(crate) model: String,
    /// The config option of that name.
    #[serde(default)]
    pub(crate) web: bool,
    /// Messages, oldest first.
    pub(crate) history: Vec<HistoryEntry>,
}

/// One message of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HistoryEntry {
    pub(crate) by_user: bool,
    pub(crate) text: String,
}

/// The open sessions of this process, and the stored ones.
#[derive(Debug)]
pub(crate) struct Sessions {
    directory: Option<PathBuf>,
    open: BTreeMap<String, Session>,
}

impl Sessions {
    /// Opens the directory, and creates it if missing.
    pub(crate) fn open(directory: Option<PathBuf>) -> Result<Self> {
        if let Some(directory) = &directory {
            std::fs::create_dir_all(directory)?;
        }
        Ok(Self { directory, open: BTreeMap::new() })
    }

    /// Creates a session; with `modes`, in the mode that does not ask.
    pub(crate) fn create(&mut self, cwd: PathBuf, modes: bool) -> Result<&Session> {
        let [ask, auto] = MODES;
        let id = format!("fake-{}", uuid::Uuid::now_v7());
        let mode = if modes { auto } else { ask }.to_owned();
        let model = MODELS[0].to_owned();
        let session = Session { id: id.clone(), cwd, mode, model, web: true, history: Vec::new() };
        self.store(&session)?;
        Ok(self.open.entry(id).or_insert(session))
    }

    /// An open session.
    pub(crate) fn get(&self, id: &str) -> Option<&Session> {
        self.open.get(id)
    }

    /// Opens a session of this process or of an earlier one; `None` if it is unknown.
    pub(crate) fn reopen(&mut self, id: &str) -> Result<Option<&Session>> {
        if !self.open.contains_key(id)
            && let Some(path) = self.path(id)
            && path.exists()
        {
            let session = serde_json::from_slice(&std::fs::read(path)?).map_err(Error::other)?;
            self.open.insert(id.to_owned(), session);
        }
        Ok(self.open.get(id))
    }

    /// Changes an open session and stores it.
    pub(crate) fn change(&mut self, id: &str, change: impl FnOnce(&mut Session)) -> Result<()> {
        let Some(session) = self.open.get_mut(id) else { return Ok(()) };
        change(session);
        let session = session.clone();
        self.store(&session)
    }

    /// Closes an open session; with a directory it can be reopened.
    pub(crate) fn close(&mut self, id: &str) -> bool {
        self.open.remove(id).is_some()
    }

    /// Deletes a session, open or stored.
    pub(crate) fn delete(&mut self, id: &str) -> Result<bool> {
        let was_open = self.open.remove(id).is_some();
        match self.path(id).filter(|path| path.exists()) {
            Some(path) => std::fs::remove_file(path).map(|()| true),
            None => Ok(was_open),
        }
    }

    /// All sessions, stored or open.
    pub(crate) fn list(&self) -> Result<Vec<Session>> {
        let mut all = self.open.clone();
        if let Some(directory) = &self.directory {
            for entry in std::fs::read_dir(directory)? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "json") {
                    let session: Session =
                        serde_json::from_slice(&std::fs::read(path)?).map_err(Error::other)?;
                    all.entry(session.id.clone()).or_insert(session);
                }
            }
        }
        Ok(all.into_values().collect())
    }

    /// File of a session. Only ids in this agent's own format have a file.
    fn path(&self, id: &str) -> Option<PathBuf> {
        let own = id.strip_prefix("fake-").is_some_and(|rest| uuid::Uuid::try_parse(rest).is_ok());
        Some(self.directory.as_deref().filter(|_| own)?.join(format!("{id}.json")))
    }

    /// Replaces the file in one step, so that a killed agent leaves the old or the new one.
    fn store(&self, session: &Session) -> Result<()> {
        let Some(path) = self.path(&session.id) else { return Ok(()) };
        let part = with_suffix(&path, "part");
        std::fs::write(&part, serde_json::to_vec(session).map_err(Error::other)?)?;
        std::fs::rename(part, path)
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    path.with_extension(format!("{}-{suffix}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_outlive_the_process() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let open = || Sessions::open(Some(directory.path().to_owned()));
        let mut first = open()?;
        let id = first.create("/w".into(), true)?.id.clone();
        first.change(&id, |session| {
            session.history.push(HistoryEntry { by_user: true, text: "hi".to_owned() });
            "ask".clone_into(&mut session.mode);
        })?;
        let want = first.get(&id).cloned();
        let mut second = open()?;
        assert_eq!(second.get(&id), None);
        assert_eq!(second.reopen(&id)?.cloned(), want);
        assert_eq!(second.list()?.len(), 1);
        assert!(second.close(&id));
        assert_eq!(second.get(&id), None);
        assert!(second.delete(&id)?);
        assert_eq!((second.delete(&id)?, second.list()?.len()), (false, 0));
        assert_eq!(second.reopen("../../etc/passwd")?, None);
        assert_eq!(Sessions::open(None)?.reopen(&id)?, None);
        Ok(())
    }
}
