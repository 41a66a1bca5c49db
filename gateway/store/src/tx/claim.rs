//! Claim of a session by an actor.

use crate::error::StoreError;
use crate::stdin_outbox;
use crate::{Store, Tx, leases, permissions, requests, runs, sessions};
use acp_core::writes::{ActorFence, ActorSnapshot};
use acp_shared::ids::SessionKey;

impl Store {
    /// Starts a new epoch of the session, so that earlier actors cannot commit, and loads all unfinished work
    /// in the same transaction.
    ///
    /// # Errors
    /// [`StoreError::NoSession`]; as [`Store::write`].
    pub async fn claim(&self, key: SessionKey) -> Result<(ActorSnapshot, ActorFence), StoreError> {
        self.claim_after(key, None).await
    }

    /// Claims a session for a recreated actor, only if no other actor has claimed it since.
    ///
    /// # Errors
    /// [`StoreError::Superseded`]; as [`Store::claim`].
    pub async fn reclaim(&self, fence: ActorFence) -> Result<(ActorSnapshot, ActorFence), StoreError> {
        self.claim_after(fence.session_key, Some(fence.epoch)).await
    }

    async fn claim_after(
        &self,
        key: SessionKey,
        before: Option<u64>,
    ) -> Result<(ActorSnapshot, ActorFence), StoreError> {
        self.write("claim", move |tx| {
            if let Some(before) = before
                && sessions::marks(tx, &key)?.0 != before
            {
                return Err(StoreError::Superseded { session_key: key });
            }
            claim(tx, key)
        })
        .await
    }
}

/// Starts a new epoch of a session, and reads its unfinished work.
///
/// # Errors
/// [`StoreError::NoSession`]; SQLite errors.
pub(super) fn claim(tx: &Tx<'_>, key: SessionKey) -> Result<(ActorSnapshot, ActorFence), StoreError> {
    let epoch = sessions::next_epoch(tx, &key)?;
    let session =
        sessions::get(tx, &key)?.ok_or_else(|| StoreError::NoSession { session_key: key.clone() })?;
    let mut snapshot = ActorSnapshot {
        lease: None,
        tail: Vec::new(),
        runs: runs::unfinished(tx, &key)?,
        outbox: Vec::new(),
        requests: Vec::new(),
        permissions: Vec::new(),
        session,
    };
    if let Some(lease_id) = snapshot.session.lease_id {
        snapshot.lease = leases::get(tx, lease_id, &key)?;
        snapshot.tail = leases::tail(tx, lease_id)?;
        snapshot.outbox = stdin_outbox::unwritten(tx, lease_id)?;
        snapshot.requests = requests::unanswered(tx, lease_id)?;
        snapshot.permissions = permissions::pending_of_lease(tx, lease_id)?;
    }
    Ok((snapshot, ActorFence { session_key: key, epoch }))
}
