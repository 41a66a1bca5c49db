//! `acp_idempotency`: answers to commands, so that a repeated one has no second effect (I5).

use crate::store::Store;
use crate::store::codec::{Int, first, run};
use crate::store::error::StoreError;
use acp_shared::ids::IdempotencyKey;
use rusqlite::{Connection, params};

/// A digest of what was asked, and the answer as JSON text.
pub(crate) type Remembered = (String, String);

/// The answer under a key.
///
/// # Errors
/// What SQLite says.
pub(crate) fn get(
    db: &Connection,
    scope: &str,
    key: &IdempotencyKey,
) -> Result<Option<Remembered>, StoreError> {
    const SQL: &str =
        "SELECT fingerprint, result_json FROM acp_idempotency WHERE scope = ?1 AND idempotency_key = ?2";
    first(db, SQL, params![scope, key.as_str()], |row| Ok((row.get("fingerprint")?, row.get("result_json")?)))
}

/// Remembers an answer.
///
/// # Errors
/// [`StoreError::KeyTaken`] when the key has one.
pub(crate) fn insert(
    db: &Connection,
    scope: &str,
    key: &IdempotencyKey,
    (fingerprint, result): (&str, &str),
    now_ms: u64,
) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_idempotency (scope, idempotency_key, fingerprint, result_json, created_at) \
                       VALUES (?1, ?2, ?3, ?4, ?5)";
    let inserted = run(db, SQL, params![scope, key.as_str(), fingerprint, result, Int(now_ms)]);
    match inserted {
        Err(error) if error.is_unique_violation() => {
            Err(StoreError::KeyTaken { scope: scope.to_owned(), key: key.clone() })
        }
        other => other.map(drop),
    }
}

impl Store {
    /// The answer under a key, after everything that was queued for writing before this call.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub(crate) async fn remembered(
        &self,
        scope: String,
        key: IdempotencyKey,
    ) -> Result<Option<Remembered>, StoreError> {
        self.write("remembered", move |tx| get(tx, &scope, &key)).await
    }

    /// Forgets at most `rows_max` answers older than `before_ms`, and says how many.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub(crate) async fn expire_answers(&self, before_ms: u64, rows_max: u64) -> Result<usize, StoreError> {
        const SQL: &str = "DELETE FROM acp_idempotency WHERE (scope, idempotency_key) IN \
            (SELECT scope, idempotency_key FROM acp_idempotency WHERE created_at < ?1 ORDER BY created_at LIMIT ?2)";
        self.write("expire_answers", move |tx| run(tx, SQL, params![Int(before_ms), Int(rows_max)])).await
    }
}
