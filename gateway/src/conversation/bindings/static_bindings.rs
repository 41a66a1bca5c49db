//! Static bindings: conversations that the configuration binds (`[[bindings]]`). Applied before a message is
//! routed. Each decision is committed under the message's key before it is carried out, so that after a crash
//! between closing one session and creating the next, the same decision and the same message text are
//! continued.

use super::{BindRequest, SessionBindingService};
use crate::session::service::Service;
use acp_core::binding::Placement;
use acp_core::command::authorization::SYSTEM;
use acp_core::config::Binding;
use acp_core::config::load::{LoadedConfig, nearest_source};
use acp_core::failure::Failure;
use acp_core::policy::BindingTimeouts;
use acp_core::request::{CloseRequest, SpawnRequest, StaticSessionParams};
use acp_core::rows::ConversationRef;
use acp_core::static_binding::{
    BindParams, RetiredSession, StaticBindingAction, StaticSessionSpec, find_entry, static_binding_action,
};
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, SessionKey};
use acp_store::command_queries;
use acp_store::inbox::{Inbound, ReplyRoute};
use acp_store::static_bindings;
use acp_store::{Store, bindings};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::Mutex;

/// Scope under which decisions are stored.
const DECISION_SCOPE: &str = "configured";

/// Decision for one message, with everything needed to repeat it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StaticBindingDecision {
    /// See [`StaticBindingAction::Withdraw`].
    Withdraw(RetiredSession),
    /// See [`StaticBindingAction::Bind`]; with the entry, and the key of the session to create.
    Bind { bind: BindParams, entry: Box<Binding>, next: SessionKey },
}

/// Binds conversations according to the configuration. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StaticBindings {
    store: Store,
    bindings: SessionBindingService,
    service: Arc<dyn Service>,
    /// Serializes all changes: a channel and its threads share a session.
    turn: Arc<Mutex<()>>,
}

impl StaticBindings {
    /// Creates the service.
    pub(crate) fn new(store: Store, bindings: SessionBindingService, service: Arc<dyn Service>) -> Self {
        Self { store, bindings, service, turn: Arc::default() }
    }

    /// Binds the conversation of a message according to the configuration. Returns the text for the user if a
    /// binding was made. With `is_routed` the destination of the message is already decided, and only an
    /// earlier decision for it is repeated.
    ///
    /// # Errors
    /// As [`Service::close`], [`Service::spawn`] and [`SessionBindingService::bind`].
    pub(crate) async fn ensure(
        &self,
        inbound: &Inbound,
        key: &IdempotencyKey,
        is_routed: bool,
    ) -> Result<Option<String>, Failure> {
        let loaded = self.service.config();
        let (at, of, table) = (inbound.conversation.clone(), key.clone(), Arc::clone(&loaded));
        let before = self.store.read("configured", move |db| {
            let before = command_queries::before::<StaticBindingDecision>(db, DECISION_SCOPE, &of)?;
            let table = &table.config.bindings;
            let due = before.is_none() && !is_routed && {
                static_binding_action(table, &at, static_bindings::read_conversation(db, table, &at)?.seen())
                    != StaticBindingAction::Leave
            };
            Ok((before, due))
        });
        let (before, is_due) = before.await?;
        if before.is_none() && !is_due {
            return Ok(None);
        }
        let _turn = self.turn.lock().await;
        let plan = match before {
            Some(plan) => Some(plan),
            None => self.decide(inbound, key, loaded).await?,
        };
        match plan {
            None => Ok(None),
            Some(StaticBindingDecision::Withdraw(done)) => {
                self.close(&done, key).await?;
                Ok(None)
            }
            Some(StaticBindingDecision::Bind { bind, entry, next }) => {
                self.bind(inbound, key, bind, *entry, next).await.map(Some)
            }
        }
    }

    /// Decides and commits in one transaction.
    async fn decide(
        &self,
        inbound: &Inbound,
        key: &IdempotencyKey,
        loaded: Arc<LoadedConfig>,
    ) -> Result<Option<StaticBindingDecision>, Failure> {
        let (at, key) = (inbound.conversation.clone(), key.clone());
        let decided = self.store.write("configured_decide", move |tx| {
            let table = &loaded.config.bindings;
            let look = static_bindings::read_conversation(tx, table, &at)?;
            let plan = match static_binding_action(table, &at, look.seen()) {
                StaticBindingAction::Leave => return Ok(None),
                StaticBindingAction::Withdraw(done) => StaticBindingDecision::Withdraw(done),
                StaticBindingAction::Bind(bind) => {
                    let entry = find_entry(table, &at).map(|found| found.entry.clone());
                    let Some((entry, next)) = entry.zip(look.next.clone()) else { return Ok(None) };
                    if let Some(row) = look.before(bind.after.as_ref()) {
                        bindings::end(tx, row.binding_id, "bound as configured")?;
                    }
                    StaticBindingDecision::Bind { bind, entry: Box::new(entry), next }
                }
            };
            command_queries::run_once(tx, DECISION_SCOPE, &key, || Ok(plan)).map(Some)
        });
        Ok(decided.await?)
    }

    async fn close(&self, done: &RetiredSession, key: &IdempotencyKey) -> Result<(), Failure> {
        tracing::info!(session_key = %done.session_key, changed = ?done.changed, "static binding ended");
        self.service.close(&done.session_key, CloseRequest::new(done.reason()), key.clone()).await.map(drop)
    }

    /// Binds the conversation to an existing session or to a new one.
    async fn bind(
        &self,
        inbound: &Inbound,
        key: &IdempotencyKey,
        params: BindParams,
        entry: Binding,
        next: SessionKey,
    ) -> Result<String, Failure> {
        let BindParams { made, to, after } = params;
        let at = inbound.conversation.clone();
        self.service.may_focus(&at)?;
        if let Some(done) = &after {
            self.close(done, key).await?;
        }
        let since = (inbound.answer == ReplyRoute::ByMessage).then_some(inbound.message_id.as_str());
        let metadata = made.metadata(since);
        let session_key = match to {
            Some(session_key) => session_key,
            None => {
                let spawn = request(&at, entry, next, metadata.clone());
                self.service.spawn(spawn, key.clone()).await?.session_key
            }
        };
        let request = BindRequest {
            session_key,
            at,
            placement: Some(Placement::Here),
            by: SYSTEM.to_owned(),
            windows: BindingTimeouts::default(),
            made: Some(metadata),
            key: key.clone(),
        };
        let bound = self.bindings.bind(request).await?;
        let over = after.map(|done| format!("{} has ended: {}. ", done.session_key, done.reason()));
        Ok(over.unwrap_or_default() + &self.bindings.notice(&bound.session, &bound.binding))
    }
}

/// Builds the spawn request for a session of an entry.
pub(crate) fn request(
    at: &ConversationRef,
    entry: Binding,
    next: SessionKey,
    metadata: String,
) -> SpawnRequest {
    SpawnRequest {
        agent: entry.agent,
        cwd: entry.cwd.map(|cwd| cwd.display().to_string()),
        label: entry.label,
        mode: entry.mode,
        permission: entry.permission,
        non_interactive: entry.non_interactive_permissions,
        bind: Some(at.clone()),
        author: SYSTEM.to_owned(),
        interactive: true,
        configured: Some(StaticSessionParams { session_key: next, metadata, backend: entry.backend }),
        ..SpawnRequest::default()
    }
}

/// Refuses to unbind a static binding, since the next message would bind it again; `metadata` is the row's.
///
/// # Errors
/// `USAGE` with the detail `BOUND_BY_CONFIGURATION`.
pub(crate) fn may_unbind(loaded: &LoadedConfig, at: &ConversationRef, metadata: &str) -> Result<(), Failure> {
    let Some(found) = find_entry(&loaded.config.bindings, at)
        .filter(|_| StaticSessionSpec::from_metadata(metadata).is_some())
    else {
        return Ok(());
    };
    let path = ["bindings".to_owned(), found.number.to_string()];
    let failure = nearest_source(&path, &loaded.sources).failure(Code::Usage, |source| {
        format!(
            "The configuration binds this conversation ({source}), and the next message would bind it again. /acp \
             new starts a new conversation in its session, and /focus KEY binds another session instead; only the \
             operator of this gateway can remove the entry."
        )
    });
    Err(failure.detail("BOUND_BY_CONFIGURATION"))
}
