//! `acp_acpx_names`: names of sessions in the contract of acpx, unique among the open sessions of an agent and a directory.

use crate::Store;
use crate::db::{Db, Row, params};
use crate::error::StoreError;
use crate::sessions;
use acp_core::acpx_contract::{AcpxNaming, NameQuery};
use acp_core::rows::SessionRow;
use acp_shared::ids::{AgentName, SessionKey};

/// Session with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSession {
    /// Name; empty for the session without one.
    pub name: String,
    /// Directory in which the name holds.
    pub cwd: String,
    /// The session.
    pub session: SessionRow,
}

/// Returns the open session with the name, in the nearest directory.
///
/// # Errors
/// SQLite errors.
pub fn find_open(db: &Db, agent: &AgentName, naming: &AcpxNaming) -> Result<Option<SessionKey>, StoreError> {
    const SQL: &str = "SELECT session_key FROM acp_acpx_names \
                       WHERE agent = ?1 AND cwd = ?2 AND name = ?3 AND is_open = 1";
    for directory in naming.directories() {
        let found = db.first(SQL, params![agent, directory, naming.name], |row| row.get("session_key"))?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Names a new session.
///
/// # Errors
/// [`StoreError::NameTaken`]; SQLite errors.
pub fn insert(db: &Db, session: &SessionRow, naming: &AcpxNaming) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_acpx_names (session_key, agent, cwd, name) VALUES (?1, ?2, ?3, ?4)";
    db.run(SQL, params![session.session_key, session.agent, naming.cwd, naming.name]).map(drop)
}

/// Fails if an open session has the name.
///
/// # Errors
/// [`StoreError::NameTaken`]; SQLite errors.
pub fn check_free(db: &Db, agent: &AgentName, naming: &AcpxNaming) -> Result<(), StoreError> {
    // A replacement takes the name of its own directory only.
    let here = AcpxNaming { root: None, ..naming.clone() };
    match find_open(db, agent, if naming.replace { &here } else { naming })? {
        Some(session_key) => Err(StoreError::NameTaken { session_key }),
        None => Ok(()),
    }
}

/// Sessions with names, the newest first.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
fn find(db: &Db, query: &NameQuery) -> Result<Vec<NamedSession>, StoreError> {
    const SQL: &str = "SELECT session_key, cwd, name FROM acp_acpx_names \
        WHERE (?1 IS NULL OR agent = ?1) AND (?2 OR is_open = 1) ORDER BY rowid DESC LIMIT ?3";
    let from_row = |row: &Row<'_>| {
        Ok((row.get::<SessionKey>("session_key")?, row.get::<String>("name")?, row.get::<String>("cwd")?))
    };
    let rows = db.all(SQL, params![query.agent, query.closed_too, query.limit], from_row)?;
    let mut found = Vec::with_capacity(rows.len());
    for (key, name, cwd) in rows {
        if let Some(session) = sessions::get(db, &key)? {
            found.push(NamedSession { name, cwd, session });
        }
    }
    Ok(found)
}

impl Store {
    /// Returns the open session with the name, in the nearest directory.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn acpx_session(
        &self,
        agent: AgentName,
        naming: AcpxNaming,
    ) -> Result<Option<SessionKey>, StoreError> {
        self.read("acpx_session", move |db| find_open(db, &agent, &naming)).await
    }

    /// Returns sessions with names, the newest first; with a naming, only the session that has it.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn acpx_sessions(&self, query: NameQuery) -> Result<Vec<NamedSession>, StoreError> {
        self.read("acpx_sessions", move |db| {
            let (Some(naming), Some(agent)) = (&query.naming, &query.agent) else { return find(db, &query) };
            let Some(key) = find_open(db, agent, naming)? else { return Ok(Vec::new()) };
            const SQL: &str = "SELECT cwd FROM acp_acpx_names WHERE session_key = ?1";
            let cwd = db.first(SQL, params![key], |row| row.get("cwd"))?.unwrap_or_default();
            let session = sessions::get(db, &key)?;
            let named = |session| NamedSession { name: naming.name.clone(), cwd, session };
            Ok(session.map(named).into_iter().collect())
        })
        .await
    }
}
