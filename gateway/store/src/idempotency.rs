//! `acp_idempotency`: stored results of commands, so that a repeated command has no second effect (I5).

use crate::Store;
use crate::db::{Db, params};
use crate::error::StoreError;
use acp_shared::ids::IdempotencyKey;

/// Digest of the request, and the result as JSON text.
pub type StoredResult = (String, String);

/// Returns the stored result of a key.
///
/// # Errors
/// SQLite errors.
pub fn get(db: &Db, scope: &str, key: &IdempotencyKey) -> Result<Option<StoredResult>, StoreError> {
    const SQL: &str =
        "SELECT fingerprint, result_json FROM acp_idempotency WHERE scope = ?1 AND idempotency_key = ?2";
    db.first(SQL, params![scope, key], |row| Ok((row.get("fingerprint")?, row.get("result_json")?)))
}

/// Stores the result of a key.
///
/// # Errors
/// [`StoreError::KeyTaken`] if the key has a result already.
pub fn insert(
    db: &Db,
    scope: &str,
    key: &IdempotencyKey,
    fingerprint: &str,
    result: &str,
    now_ms: u64,
) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_idempotency (scope, idempotency_key, fingerprint, result_json, created_at) \
                       VALUES (?1, ?2, ?3, ?4, ?5)";
    let inserted = db.run(SQL, params![scope, key, fingerprint, result, now_ms]);
    match inserted {
        Err(error) if error.is_unique_violation() => {
            Err(StoreError::KeyTaken { scope: scope.to_owned(), key: key.clone() })
        }
        other => other.map(drop),
    }
}

impl Store {
    /// Returns the stored result of a key, after all writes queued before this call.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn remembered(
        &self,
        scope: String,
        key: IdempotencyKey,
    ) -> Result<Option<StoredResult>, StoreError> {
        self.write("remembered", move |tx| get(tx, &scope, &key)).await
    }

    /// Deletes at most `rows_max` results older than `before_ms`. Returns the number of deleted rows.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn expire_answers(&self, before_ms: u64, rows_max: u64) -> Result<usize, StoreError> {
        const SQL: &str = "DELETE FROM acp_idempotency WHERE (scope, idempotency_key) IN \
            (SELECT scope, idempotency_key FROM acp_idempotency WHERE created_at < ?1 ORDER BY created_at LIMIT ?2)";
        self.write("expire_answers", move |tx| tx.run(SQL, params![before_ms, rows_max])).await
    }
}
