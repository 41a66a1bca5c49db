//! Marks of sessions: the epoch of the actor that may write, and the number of the last row. A group of commits reads those of
//! all its sessions with one statement, where a database server is a round trip away.

use crate::db::{Db, ToValue};
use crate::error::StoreError;
use acp_shared::ids::SessionKey;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

/// Maximum number of sessions that are read together.
pub(crate) const SESSIONS_MAX: usize = 64;
/// Numbers of keys of a statement, which is prepared once for each.
const KEYS: [usize; 4] = [1, 4, 16, SESSIONS_MAX];

/// Marks that were read for the transactions of a group, until one of these may change them.
#[derive(Debug, Default)]
pub struct MarksCache {
    marks: RefCell<HashMap<SessionKey, (u64, u64)>>,
}

impl MarksCache {
    /// Reads the marks of sessions.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`]; errors of the engine.
    pub(crate) fn read(&self, db: &Db, keys: &BTreeSet<SessionKey>) -> Result<(), StoreError> {
        let keys: Vec<&SessionKey> = keys.iter().take(SESSIONS_MAX).collect();
        let Some(last) = keys.last() else { return Ok(()) };
        let width = KEYS.into_iter().find(|width| *width >= keys.len()).unwrap_or(SESSIONS_MAX);
        let numbers: Vec<String> = (1..=width).map(|number| format!("?{number}")).collect();
        let sql = format!(
            "SELECT session_key, epoch, last_session_seq FROM acp_sessions WHERE session_key IN ({})",
            numbers.join(", ")
        );
        // The last key fills the places that are left.
        let padded: Vec<&dyn ToValue> =
            keys.iter().chain(std::iter::repeat(last)).take(width).map(|key| key as &dyn ToValue).collect();
        let found = db.all(&sql, &padded, |row| {
            Ok((row.get("session_key")?, (row.get("epoch")?, row.get("last_session_seq")?)))
        })?;
        self.marks.borrow_mut().extend(found);
        Ok(())
    }

    /// True if the marks of a session are there.
    pub(crate) fn has(&self, key: &SessionKey) -> bool {
        self.marks.borrow().contains_key(key)
    }

    /// Removes and returns the marks of a session, which the caller changes.
    pub(crate) fn take(&self, key: &SessionKey) -> Option<(u64, u64)> {
        self.marks.borrow_mut().remove(key)
    }

    /// Forgets all marks.
    pub(crate) fn clear(&self) {
        self.marks.borrow_mut().clear();
    }
}
