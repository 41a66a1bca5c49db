//! Reconciles bindings after a start: removes stale ones, and finishes those whose conversation was not
//! created yet (D10, H13). A binding that cannot be read is kept, and only a few channel requests run at
//! once.

use super::{BindingError, SessionBinding, SessionBindingService};
use crate::channel::{OpenChildOutcome, Outgoing};
use acp_core::binding::{ConversationOrigin, StartupAction, is_of_agent_spawn, startup_action};
use acp_core::nonce::nonce_of;
use acp_core::render::PartKind;
use acp_core::rows::{BindingRow, BindingStatus, ConversationRef, SessionRow};
use acp_shared::ids::BindingId;
use acp_store::{StoreError, Tx, bindings, sessions};
use futures_util::StreamExt as _;
use std::collections::HashSet;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Maximum number of conversations processed concurrently.
const CONCURRENT_MAX: usize = 8;
/// Retry interval for conversations that are not created yet, in milliseconds.
const RETRY_MS: u64 = 30_000;

/// Counts of one reconciliation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReconcileCounts {
    /// Bindings kept.
    pub(crate) kept: usize,
    /// Stale bindings removed.
    pub(crate) removed: usize,
    /// Bindings whose conversation exists now.
    pub(crate) finished: usize,
    /// Bindings whose conversation is not created yet, or cannot be.
    pub(crate) unfinished: usize,
}

impl SessionBindingService {
    /// Ends and finishes bindings, as `core/binding.rs` decides.
    ///
    /// # Errors
    /// [`BindingError::Store`] if the bindings cannot be listed; all of them are kept.
    pub(crate) async fn reconcile(&self) -> Result<ReconcileCounts, BindingError> {
        let read = |db: &_| Ok((bindings::unsettled(db)?, bindings::count_open(db)?));
        let (unsettled, open) = self.store.read("bindings_live", read).await?;
        let done = futures_util::stream::iter(unsettled).map(|one| self.reconcile_one(one));
        let done: Vec<ReconcileOutcome> = done.buffer_unordered(CONCURRENT_MAX).collect().await;
        let count = |what| done.iter().filter(|one| **one == what).count();
        let [removed, finished, unfinished] =
            [ReconcileOutcome::Removed, ReconcileOutcome::Finished, ReconcileOutcome::Unfinished].map(count);
        let kept =
            usize::try_from(open).unwrap_or(usize::MAX).saturating_sub(removed + finished + unfinished);
        Ok(ReconcileCounts { kept, removed, finished, unfinished })
    }

    async fn reconcile_one(&self, live: bindings::OpenBinding) -> ReconcileOutcome {
        let (binding, target, runs_due) = match live.found {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(binding_id = live.key, %error, "binding unreadable; kept unchanged");
                return ReconcileOutcome::Kept;
            }
        };
        match startup_action(binding.status, Some(target), runs_due) {
            StartupAction::Keep => ReconcileOutcome::Kept,
            StartupAction::End(_) => match self.remove_stale(&binding, |_, _| Ok(())).await {
                Ok(Some(_)) => {
                    self.metrics.stale_removed(&binding.conversation.channel, "start");
                    ReconcileOutcome::Removed
                }
                Ok(None) => ReconcileOutcome::Kept,
                Err(error) => {
                    tracing::warn!(
                        session_key = %binding.session_key,
                        %error,
                        "removing stale binding failed"
                    );
                    ReconcileOutcome::Kept
                }
            },
            StartupAction::Finish => match self.create_conversation(binding.binding_id).await {
                Ok(_) => ReconcileOutcome::Finished,
                Err(error) => {
                    tracing::warn!(
                        session_key = %binding.session_key,
                        %error,
                        "pending conversation not created"
                    );
                    ReconcileOutcome::Unfinished
                }
            },
        }
    }

    /// Finishes pending bindings until `stop`: periodically, and those of sessions that agents spawn at once, because no
    /// command of a person does it.
    pub(crate) async fn run_retries(self, stop: CancellationToken) {
        let mut changed = self.store.bindings_changed();
        // One may have been committed before.
        changed.mark_changed();
        let mut attempted: HashSet<BindingId> = HashSet::new();
        let mut every = tokio::time::interval(Duration::from_millis(RETRY_MS));
        every.tick().await;
        loop {
            let is_new = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = every.tick() => false,
                // The sender lives as long as the store.
                Ok(()) = changed.changed() => true,
            };
            let pending = self.store.read("bindings_pending", bindings::pending).await;
            let mut pending = pending.unwrap_or_else(|error| {
                tracing::warn!(%error, "reading pending bindings failed");
                Vec::new()
            });
            if is_new {
                // A failed attempt is repeated at the interval.
                pending.retain(|row| is_of_agent_spawn(&row.metadata) && attempted.insert(row.binding_id));
            } else {
                attempted = pending.iter().map(|row| row.binding_id).collect();
            }
            let tried =
                futures_util::stream::iter(pending).map(|row| self.create_conversation(row.binding_id));
            tried.for_each_concurrent(CONCURRENT_MAX, |done| async { drop(done.await) }).await;
        }
    }

    /// Creates the conversation of a pending binding and activates the binding; an active one is returned
    /// unchanged. Every step can be repeated: the nonce of the first message is derived from the binding
    /// (H13).
    ///
    /// # Errors
    /// As [`SessionBindingService::bind`].
    pub(crate) async fn create_conversation(
        &self,
        binding_id: BindingId,
    ) -> Result<SessionBinding, BindingError> {
        let (binding, session) = self.pending_binding(binding_id).await?;
        if binding.status.is_live() {
            return Ok(SessionBinding { binding, session, is_new: false });
        }
        let at = binding.conversation.parent().ok_or(BindingError::NotBound)?;
        let starter = Outgoing {
            kind: PartKind::Notice,
            text: self.notice(&session, &binding),
            nonce: nonce_of(&["starter", &binding_id.to_string()]),
            session_key: Some(session.session_key.clone()),
            not_before_ms: Some(binding.bound_at_ms),
            origin: ConversationOrigin::from_metadata(&binding.metadata),
            ..Outgoing::default()
        };
        let conversation_id = match self.channels.get(&at)?.open_child(&at, &starter).await {
            OpenChildOutcome::Made { conversation_id } => conversation_id,
            OpenChildOutcome::Rejected { why, again: false } => {
                self.abandon(&binding, &why).await?;
                return Err(BindingError::NotMade { why });
            }
            OpenChildOutcome::Rejected { why, again: true } | OpenChildOutcome::Uncertain { why } => {
                return Err(BindingError::NotMadeYet { why });
            }
        };
        let made = conversation_id.clone();
        let activate = move |tx: &Tx<'_>| bindings::activate(tx, binding_id, &made, tx.now_ms());
        match self.store.write("binding_activate", activate).await {
            Ok(()) => {
                let conversation = ConversationRef { conversation_id, ..binding.conversation };
                let binding = BindingRow { conversation, status: BindingStatus::Active, ..binding };
                Ok(SessionBinding { binding, session, is_new: true })
            }
            Err(StoreError::ConversationBound) => {
                let why = "the conversation is bound to another session already".to_owned();
                self.abandon(&binding, &why).await?;
                Err(BindingError::NotMade { why })
            }
            Err(StoreError::UsedMeanwhile) => {
                Err(BindingError::NotMade { why: "it was unbound meanwhile".to_owned() })
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn pending_binding(&self, binding_id: BindingId) -> Result<(BindingRow, SessionRow), BindingError> {
        let read = self.store.read("binding_pending", move |db| {
            let Some(binding) = bindings::get(db, binding_id)? else { return Ok(None) };
            let session = sessions::get(db, &binding.session_key)?;
            Ok(session.map(|session| (binding, session)))
        });
        let found = read
            .await?
            .filter(|(binding, _)| binding.status == BindingStatus::Pending || binding.status.is_live());
        found.ok_or(BindingError::NotBound)
    }

    async fn abandon(&self, binding: &BindingRow, why: &str) -> Result<(), BindingError> {
        let (id, reason) = (binding.binding_id, format!("spawn-failed: {why}"));
        tracing::warn!(
            session_key = %binding.session_key,
            why,
            "conversation creation failed; binding ended"
        );
        Ok(self.store.write("binding_failed", move |tx| bindings::end(tx, id, &reason)).await?)
    }
}

/// Result for one binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReconcileOutcome {
    Kept,
    Removed,
    Finished,
    Unfinished,
}
