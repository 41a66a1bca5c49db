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

/// Returns the newest closed session with this name in this directory, except deleted ones.
fn last_closed(db: &Db, agent: &AgentName, naming: &AcpxNaming) -> Result<Option<SessionKey>, StoreError> {
    const SQL: &str = "SELECT session_key FROM acp_acpx_names AS named JOIN acp_sessions AS session USING (session_key) \
        WHERE named.agent = ?1 AND named.cwd = ?2 AND name = ?3 AND is_open = 0 AND ending IS DISTINCT FROM 'deleted' \
        ORDER BY session.ord DESC LIMIT 1";
    db.first(SQL, params![agent, naming.cwd, naming.name], |row| row.get("session_key"))
}

/// Keys of the sessions of a query, in its order.
fn keys(db: &Db, query: &NameQuery) -> Result<Vec<SessionKey>, StoreError> {
    // An open session has no ending.
    const ALL: &str = "SELECT session_key FROM acp_acpx_names AS named JOIN acp_sessions AS session USING (session_key) \
        WHERE (CAST(?1 AS TEXT) IS NULL OR named.agent = ?1) AND (?2 = 1 OR is_open = 1) AND ending IS DISTINCT FROM 'deleted' \
        ORDER BY is_open DESC, session.ord DESC LIMIT ?3";
    match query {
        NameQuery::All { agent, closed_too, limit } => {
            db.all(ALL, params![agent, closed_too, limit], |row| row.get("session_key"))
        }
        NameQuery::Named { agent, naming, closed_too } => {
            let found = match find_open(db, agent, naming)? {
                None if *closed_too => last_closed(db, agent, naming)?,
                found => found,
            };
            Ok(found.into_iter().collect())
        }
    }
}

fn named(db: &Db, key: &SessionKey) -> Result<Option<NamedSession>, StoreError> {
    const SQL: &str = "SELECT cwd, name FROM acp_acpx_names WHERE session_key = ?1";
    let from_row = |row: &Row<'_>| Ok((row.get::<String>("cwd")?, row.get::<String>("name")?));
    let Some((cwd, name)) = db.first(SQL, params![key], from_row)? else { return Ok(None) };
    Ok(sessions::get(db, key)?.map(|session| NamedSession { name, cwd, session }))
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

    /// Returns sessions with names.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn acpx_sessions(&self, query: NameQuery) -> Result<Vec<NamedSession>, StoreError> {
        self.read("acpx_sessions", move |db| {
            let found: Result<Vec<_>, _> = keys(db, &query)?.iter().map(|key| named(db, key)).collect();
            Ok(found?.into_iter().flatten().collect())
        })
        .await
    }
}
