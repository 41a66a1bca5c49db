//! `acp_tokens`: tokens of the API. A revoked token keeps its row, so that names in the journal stay explained.

use crate::codec::to_json;
use crate::db::{Db, Row, params};
use crate::error::StoreError;
use crate::{Store, Tx};
use acp_core::bearer::TokenDigest;
use acp_core::principal::Scope;
use acp_shared::ids::{IdempotencyKey, TokenId};

const COLUMNS: &str = "token_id, name, digest, scope, agents_json, created_at, expires_at, revoked_at";

/// Row of `acp_tokens`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// Primary key.
    pub token_id: TokenId,
    /// Name, unique among the tokens that are not revoked.
    pub name: String,
    /// SHA-256 of the token's random bytes.
    pub digest: TokenDigest,
    /// What the holder may do.
    pub scope: Scope,
    /// Patterns of the agents that the holder may use; empty: all agents.
    pub agents: Vec<String>,
    /// Time of creation, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Time from which the token is refused; `None` for never.
    pub expires_at_ms: Option<u64>,
    /// Time of the revocation.
    pub revoked_at_ms: Option<u64>,
}

fn from_row(row: &Row<'_>) -> Result<TokenRow, StoreError> {
    Ok(TokenRow {
        token_id: row.get("token_id")?,
        name: row.get("name")?,
        digest: row.get("digest")?,
        scope: row.get("scope")?,
        agents: row.json("agents_json")?,
        created_at_ms: row.get("created_at")?,
        expires_at_ms: row.get("expires_at")?,
        revoked_at_ms: row.get("revoked_at")?,
    })
}

/// Result of [`add`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddedToken {
    /// The token is valid.
    Added(TokenRow),
    /// A valid token has this name.
    NameTaken,
}

/// Adds a token. A repetition with the same key replaces the digest of the token that it added before, because nobody
/// has received that token.
///
/// # Errors
/// [`StoreError::KeyTaken`] if the key belongs to another token; [`StoreError::Unreadable`]; SQLite errors.
pub fn add(tx: &Tx<'_>, new: &TokenRow, key: &IdempotencyKey) -> Result<AddedToken, StoreError> {
    const INSERT: &str = "INSERT INTO acp_tokens (token_id, name, digest, scope, agents_json, idempotency_key, \
        created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING";
    const REPLACE: &str = "UPDATE acp_tokens SET digest = ?2 WHERE token_id = ?1";
    // An expired token does not keep its name.
    const FREE: &str =
        "UPDATE acp_tokens SET revoked_at = ?2 WHERE name = ?1 AND revoked_at IS NULL AND expires_at <= ?2";
    let of_key = format!("SELECT {COLUMNS} FROM acp_tokens WHERE idempotency_key = ?1");
    if let Some(before) = tx.first(&of_key, params![key], from_row)? {
        let is_same = before.revoked_at_ms.is_none()
            && (&before.name, before.scope, &before.agents) == (&new.name, new.scope, &new.agents);
        if !is_same {
            return Err(StoreError::KeyTaken { scope: "token".to_owned(), key: key.clone() });
        }
        tx.run(REPLACE, params![before.token_id, new.digest])?;
        return Ok(AddedToken::Added(TokenRow { digest: new.digest, ..before }));
    }
    tx.run(FREE, params![new.name, tx.now_ms()])?;
    let agents = to_json(&new.agents)?;
    let values = params![
        new.token_id,
        new.name,
        new.digest,
        new.scope,
        agents,
        key,
        new.created_at_ms,
        new.expires_at_ms
    ];
    let is_added = tx.run(INSERT, values)? > 0;
    Ok(if is_added { AddedToken::Added(new.clone()) } else { AddedToken::NameTaken })
}

/// Revokes a token, by its name or id. `None` if no valid token has it.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn revoke(tx: &Tx<'_>, which: &str) -> Result<Option<TokenRow>, StoreError> {
    const REVOKE: &str = "UPDATE acp_tokens SET revoked_at = ?2 WHERE token_id = ?1";
    let found =
        format!("SELECT {COLUMNS} FROM acp_tokens WHERE revoked_at IS NULL AND (name = ?1 OR token_id = ?1)");
    let Some(row) = tx.first(&found, params![which], from_row)? else { return Ok(None) };
    let now_ms = tx.now_ms();
    tx.run(REVOKE, params![row.token_id, now_ms])?;
    Ok(Some(TokenRow { revoked_at_ms: Some(now_ms), ..row }))
}

/// All tokens, the newest first.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn all(db: &Db) -> Result<Vec<TokenRow>, StoreError> {
    db.all(
        &format!("SELECT {COLUMNS} FROM acp_tokens ORDER BY created_at DESC, token_id DESC"),
        &[],
        from_row,
    )
}

impl Store {
    /// All tokens, the newest first.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.read("tokens", all).await
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::tests::fixtures::reopen;
    use acp_core::bearer::BearerToken;

    fn row(name: &str, secret: u8) -> TokenRow {
        TokenRow {
            token_id: TokenId::mint(),
            name: name.to_owned(),
            digest: BearerToken::new([secret; 32]).digest(),
            scope: Scope::Prompt,
            agents: vec!["demo".to_owned()],
            created_at_ms: 5,
            expires_at_ms: None,
            revoked_at_ms: None,
        }
    }

    async fn add_row(store: &Store, row: TokenRow, key: &str) -> Result<AddedToken, StoreError> {
        let key = IdempotencyKey::parse(key).unwrap();
        store.write("add", move |tx| add(tx, &row, &key)).await
    }

    async fn revoked(store: &Store, which: &str) -> Option<TokenRow> {
        let which = which.to_owned();
        store.write("revoke", move |tx| revoke(tx, &which)).await.unwrap()
    }

    #[tokio::test]
    async fn name_belongs_to_one_valid_token() {
        let dir = tempfile::tempdir().unwrap();
        let store = reopen(dir.path());
        let first = row("phone", 1);
        assert_eq!(add_row(&store, first.clone(), "a").await.unwrap(), AddedToken::Added(first.clone()));
        assert_eq!(add_row(&store, row("phone", 2), "b").await.unwrap(), AddedToken::NameTaken);
        assert_eq!(revoked(&store, "phone").await.unwrap().token_id, first.token_id);
        assert_eq!(revoked(&store, "phone").await, None);
        let expiring = TokenRow { expires_at_ms: Some(1), ..row("phone", 3) };
        assert_eq!(add_row(&store, expiring.clone(), "c").await.unwrap(), AddedToken::Added(expiring));
        let third = row("phone", 4);
        assert_eq!(add_row(&store, third.clone(), "d").await.unwrap(), AddedToken::Added(third.clone()));
        assert_eq!(revoked(&store, &third.token_id.to_string()).await.unwrap().name, "phone");
        let all = store.tokens().await.unwrap();
        assert!(all.len() == 3 && all.iter().all(|row| row.revoked_at_ms.is_some()), "{all:?}");
        store.close().await;
    }

    #[tokio::test]
    async fn repeated_addition_replaces_the_token_that_nobody_received() {
        let dir = tempfile::tempdir().unwrap();
        let store = reopen(dir.path());
        let first = row("phone", 1);
        add_row(&store, first.clone(), "a").await.unwrap();
        let again = row("phone", 2);
        let want = TokenRow { token_id: first.token_id, ..again.clone() };
        assert_eq!(add_row(&store, again, "a").await.unwrap(), AddedToken::Added(want.clone()));
        assert_eq!(store.tokens().await.unwrap(), [want]);
        let other = add_row(&store, row("laptop", 3), "a").await;
        assert!(matches!(other, Err(StoreError::KeyTaken { .. })), "{other:?}");
        revoked(&store, "phone").await.unwrap();
        let late = add_row(&store, row("phone", 4), "a").await;
        assert!(matches!(late, Err(StoreError::KeyTaken { .. })), "a revoked token stays revoked: {late:?}");
        store.close().await;
    }
}
