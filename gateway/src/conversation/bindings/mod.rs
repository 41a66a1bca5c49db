//! Bindings between conversations and sessions: one service over the store and the channels' adapters. All
//! binding, unbinding and lookup goes through it, except that a spawn writes its binding in its own
//! transaction, with the same functions.
//!
//! Source: seed 003 "Core service contract", design §6 "Bindings and delivery", H13.

mod error;
pub(crate) mod projects;
mod reconcile;
pub(crate) mod router;
pub(crate) mod static_bindings;

pub(crate) use error::BindingError;
pub(crate) use projects::ProjectSessions;
pub(crate) use router::BoundDeliveryRouter;
pub(crate) use static_bindings::StaticBindings;

use crate::channel::Channels;
use crate::metrics::Metrics;
use acp_core::binding::BoundSession;
use acp_core::binding::{Placement, StaleReason, binding_notice, carry_over_settings};
use acp_core::policy::BindingTimeouts;
use acp_core::rows::{BindingRow, BindingStatus, ConversationRef, SessionRow, TargetKind};
use acp_core::session::SessionState;
use acp_shared::ids::{BindingId, IdempotencyKey, SessionKey};
use acp_store::command_queries;
use acp_store::{Store, StoreError, Tx, bindings, sessions};

/// Scope under which results of bind and unbind requests are stored.
pub(crate) const BINDING_SCOPE: &str = "binding";

/// Request to bind a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BindRequest {
    /// Session to bind; it must exist and be open.
    pub(crate) session_key: SessionKey,
    /// Conversation in which the request was made.
    pub(crate) at: ConversationRef,
    /// Placement of the binding; `None` selects the channel's usual one.
    pub(crate) placement: Option<Placement>,
    /// Author of the request.
    pub(crate) by: String,
    /// Timeouts of the binding; overridden by those of a replaced binding, if any (D5).
    pub(crate) windows: BindingTimeouts,
    /// Metadata of a static binding
    /// ([`StaticSessionSpec::metadata`](acp_core::static_binding::StaticSessionSpec::metadata)), `None` for a
    /// user's request. If set, the channel's capabilities are not checked and no timeouts are inherited.
    pub(crate) made: Option<String>,
    /// Idempotency key of the request.
    pub(crate) key: IdempotencyKey,
}

/// An existing binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionBinding {
    /// The binding.
    pub(crate) binding: BindingRow,
    /// Its session.
    pub(crate) session: SessionRow,
    /// True if the binding was created by this request, false if it was found.
    pub(crate) is_new: bool,
}

/// Selection of bindings to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UnbindTarget {
    /// The binding of this conversation.
    Conversation(ConversationRef),
    /// All bindings of this session.
    Session(SessionKey),
    /// The binding with this id, if it belongs to this session.
    Binding(SessionKey, BindingId),
}

/// Binds conversations to sessions. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SessionBindingService {
    store: Store,
    channels: Channels,
    metrics: Metrics,
}

impl SessionBindingService {
    /// Creates the service over this store and these adapters.
    pub(crate) const fn new(store: Store, channels: Channels, metrics: Metrics) -> Self {
        Self { store, channels, metrics }
    }

    /// Returns the placement for a binding that is requested in a conversation.
    ///
    /// # Errors
    /// [`BindingError::NoAdapter`]; [`BindingError::NotHere`] if the channel does not support it.
    pub(crate) fn placement(
        &self,
        at: &ConversationRef,
        asked: Option<Placement>,
    ) -> Result<Placement, BindingError> {
        let can = self.channels.get(at)?.capabilities(at);
        let placement = asked.or_else(|| can.default_placement()).filter(|placement| can.allow(*placement));
        placement.ok_or_else(|| BindingError::NotHere { channel: at.channel.clone(), can })
    }

    /// Returns the text that mentions a conversation in a message.
    pub(crate) fn mention(&self, at: &ConversationRef) -> String {
        self.channels.get(at).map_or_else(|_| at.conversation_id.clone(), |channel| channel.mention(at))
    }

    /// Returns the notice of a new binding, for its conversation.
    pub(crate) fn notice(&self, session: &SessionRow, binding: &BindingRow) -> String {
        let channel = self.channels.get(&binding.conversation);
        binding_notice(session, binding, channel.is_ok_and(|it| it.properties().renders_markdown))
    }

    /// Binds a session. Idempotent: a conversation has one binding, and a session has at most one child
    /// conversation below another conversation; an existing binding is returned.
    ///
    /// # Errors
    /// [`BindingError::NoAdapter`], [`BindingError::NotHere`], [`BindingError::NoSession`],
    /// [`BindingError::SessionClosed`], [`BindingError::Store`]: nothing was created.
    /// [`BindingError::NotMade`]: the conversation could not be created. [`BindingError::NotMadeYet`]:
    /// creation is retried in the background.
    pub(crate) async fn bind(&self, request: BindRequest) -> Result<SessionBinding, BindingError> {
        let placement = match request.made {
            Some(_) => Placement::Here,
            None => self.placement(&request.at, request.placement)?,
        };
        let bind = move |tx: &Tx<'_>| bind_idempotent(tx, request, placement, tx.now_ms());
        let bound = self.store.write("bind", bind).await??;
        tracing::info!(
            session_key = %bound.binding.session_key,
            thread_id = bound.binding.conversation.conversation_id,
            status = ?bound.binding.status,
            is_new = bound.is_new,
            "conversation bound"
        );
        if bound.binding.status == BindingStatus::Pending {
            return self.create_conversation(bound.binding.binding_id).await;
        }
        Ok(bound)
    }

    /// Returns the bindings of a session that have not ended, oldest first.
    ///
    /// # Errors
    /// [`BindingError::Store`].
    pub(crate) async fn list_by_session(&self, key: &SessionKey) -> Result<Vec<BindingRow>, BindingError> {
        let key = key.clone();
        Ok(self.store.read("bindings_of_session", move |db| bindings::of_session(db, &key)).await?)
    }

    /// Returns the binding that a spawn made, once its conversation exists; `None` if the spawn made none.
    ///
    /// # Errors
    /// As [`SessionBindingService::bind`].
    pub(crate) async fn binding_of_spawn(
        &self,
        key: &SessionKey,
    ) -> Result<Option<SessionBinding>, BindingError> {
        match self.list_by_session(key).await?.into_iter().next() {
            Some(binding) => self.create_conversation(binding.binding_id).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the conversation's binding and the state of its session; `None` if all its bindings have
    /// ended.
    ///
    /// # Errors
    /// [`BindingError::Store`].
    pub(crate) async fn resolve_by_conversation(
        &self,
        at: &ConversationRef,
    ) -> Result<Option<(BindingRow, BoundSession)>, BindingError> {
        Ok(resolve_by_conversation(&self.store, at).await?)
    }

    /// Records activity on a binding; a parked binding becomes active again. Durable on return, so that a
    /// stop does not lose it (D8), in one transaction with the writes of `also`.
    ///
    /// # Errors
    /// [`BindingError::Store`].
    pub(crate) async fn touch(
        &self,
        binding_id: BindingId,
        at_ms: u64,
        also: impl FnOnce(&Tx<'_>) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), BindingError> {
        let touch = move |tx: &Tx<'_>| {
            bindings::resume(tx, binding_id, at_ms)?;
            also(tx)
        };
        Ok(self.store.write("binding_touch", touch).await?)
    }

    /// Ends bindings, once per key. Returns the ended ones.
    ///
    /// # Errors
    /// [`BindingError::Store`].
    pub(crate) async fn unbind(
        &self,
        which: UnbindTarget,
        reason: &str,
        key: IdempotencyKey,
    ) -> Result<Vec<BindingRow>, BindingError> {
        let why = reason.to_owned();
        let ended = self.store.write("unbind", move |tx| {
            let end = || {
                let found = match &which {
                    UnbindTarget::Conversation(at) => {
                        bindings::of_conversation(tx, at)?.into_iter().collect()
                    }
                    UnbindTarget::Session(key) => bindings::of_session(tx, key)?,
                    UnbindTarget::Binding(key, id) => {
                        let all = bindings::of_session(tx, key)?;
                        all.into_iter().filter(|binding| binding.binding_id == *id).collect()
                    }
                };
                let ids: Vec<BindingId> = found.iter().map(|binding| binding.binding_id).collect();
                ids.iter().try_for_each(|id| bindings::end(tx, *id, &why))?;
                Ok(ids)
            };
            let ids = command_queries::run_once(tx, BINDING_SCOPE, &key, end)?;
            let found = ids.into_iter().filter_map(|id| bindings::get(tx, id).transpose());
            found.collect::<Result<Vec<BindingRow>, StoreError>>()
        });
        let ended = ended.await?;
        for binding in &ended {
            tracing::info!(
                session_key = %binding.session_key,
                thread_id = binding.conversation.conversation_id,
                reason,
                "conversation unbound"
            );
        }
        Ok(ended)
    }

    /// Removes a binding whose session is gone or closed, if it is still stale and has nothing pending, in
    /// one transaction with the writes of `also`. Returns the reason, or `None` if the binding was kept.
    ///
    /// # Errors
    /// [`BindingError::Store`]: nothing was written.
    pub(crate) async fn remove_stale(
        &self,
        binding: &BindingRow,
        also: impl FnOnce(&Tx<'_>, StaleReason) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<Option<StaleReason>, BindingError> {
        let id = binding.binding_id;
        let remove = move |tx: &Tx<'_>| {
            let removed = bindings::end_stale(tx, id)?;
            removed.map_or(Ok(()), |stale| also(tx, stale))?;
            Ok(removed)
        };
        let removed = self.store.write("binding_stale", remove).await?;
        if let Some(stale) = removed {
            tracing::warn!(
                session_key = %binding.session_key,
                channel = binding.conversation.channel,
                thread_id = binding.conversation.conversation_id,
                reason = stale.as_str(),
                "stale binding removed"
            );
        }
        Ok(removed)
    }
}

/// See [`SessionBindingService::resolve_by_conversation`].
///
/// # Errors
/// As [`Store::read`].
pub(crate) async fn resolve_by_conversation(
    store: &Store,
    at: &ConversationRef,
) -> Result<Option<(BindingRow, BoundSession)>, StoreError> {
    let at = at.clone();
    let read = store.read("binding_of_conversation", move |db| {
        let Some(binding) = bindings::of_conversation(db, &at)? else { return Ok(None) };
        let target = bindings::target(db, &binding.session_key)?;
        Ok(Some((binding, target)))
    });
    read.await
}

/// Like [`bind`], once per key: a repetition returns the result of the first call.
fn bind_idempotent(
    tx: &Tx<'_>,
    request: BindRequest,
    placement: Placement,
    now: u64,
) -> Result<Result<SessionBinding, BindingError>, StoreError> {
    let key = request.key.clone();
    if let Some((id, is_new)) = command_queries::before::<(BindingId, bool)>(tx, BINDING_SCOPE, &key)?
        && let Some(binding) = bindings::get(tx, id)?
        && let Some(session) = sessions::get(tx, &binding.session_key)?
    {
        return Ok(Ok(SessionBinding { binding, session, is_new }));
    }
    let bound = bind(tx, request, placement, now)?;
    if let Ok(SessionBinding { binding, is_new, .. }) = &bound {
        command_queries::run_once(tx, BINDING_SCOPE, &key, || Ok((binding.binding_id, *is_new)))?;
    }
    Ok(bound)
}

fn bind(
    tx: &Tx<'_>,
    request: BindRequest,
    placement: Placement,
    now: u64,
) -> Result<Result<SessionBinding, BindingError>, StoreError> {
    let BindRequest { session_key, at, by, windows, made, .. } = request;
    let Some(session) = sessions::get(tx, &session_key)? else {
        return Ok(Err(BindingError::NoSession { session_key }));
    };
    if session.state == SessionState::Closed {
        return Ok(Err(BindingError::SessionClosed { session_key }));
    }
    let target_kind = match session.spawned_by {
        Some(_) => TargetKind::Subagent,
        None => TargetKind::Session,
    };
    let new = BindingRow { target_kind, ..bindings::new_row(at.clone(), &session_key, &by, windows, now) };
    let new = match &made {
        Some(metadata) => BindingRow { metadata: metadata.clone(), ..new },
        None => new,
    };
    let found = match placement {
        Placement::Here => bindings::of_conversation(tx, &at)?,
        Placement::Child => child_of(&at, bindings::of_session(tx, &session_key)?),
    };
    let same = |it: &BindingRow| it.session_key == session_key && it.status != BindingStatus::Ending;
    let binding = match (placement, found) {
        (Placement::Child, Some(before)) => {
            return Ok(Ok(SessionBinding { binding: before, session, is_new: false }));
        }
        (Placement::Here, Some(before)) if same(&before) => {
            bindings::resume(tx, before.binding_id, now)?;
            return Ok(Ok(SessionBinding { binding: before, session, is_new: false }));
        }
        (Placement::Here, Some(before)) => {
            bindings::end(tx, before.binding_id, "bound to another session")?;
            if made.is_some() { new } else { carry_over_settings(new, &before) }
        }
        (Placement::Here, None) => new,
        (Placement::Child, None) => bindings::into_pending(new),
    };
    bindings::bind(tx, &binding)?;
    Ok(Ok(SessionBinding { binding, session, is_new: true }))
}

/// Returns the binding of a conversation below `at`, pending ones included.
fn child_of(at: &ConversationRef, all: Vec<BindingRow>) -> Option<BindingRow> {
    all.into_iter().find(|it| {
        it.status != BindingStatus::Ending
            && it.conversation.channel == at.channel
            && it.conversation.account_id == at.account_id
            && it.conversation.parent_conversation_id.as_deref() == Some(&at.conversation_id)
    })
}

#[cfg(test)]
mod spawned_tests;
#[cfg(test)]
mod tests;
