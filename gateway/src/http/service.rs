//! What the local API stands on: commands go to the manager, questions to the store. A trait, so that the API
//! is tested over a real socket without either.

use crate::api::{AgentView, StatusView};
use crate::config::load::Loaded;
use crate::core::event::EventRow;
use crate::core::options::Setting;
use crate::core::policy::{BindingWindows, Policy};
use crate::core::request::{
    Cancelled, CloseRequest, PromptAccepted, PromptRequest, QueuedChange, QueuedNow, SessionNow,
    SpawnRequest, Spawned,
};
use crate::core::rows::{BindingRow, ConversationRef, PermissionRow, RunRow, SessionRow};
use crate::core::ttl::Expiry;
use crate::error::Failure;
use crate::store::levels::Circumstances;
use acp_shared::ids::{BindingId, IdempotencyKey, RunId, SessionKey};
use acp_shared::protocol::{LogFrom, LogPiece};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;

/// An answer on its way.
pub(crate) type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// What the API needs of the gateway behind it. The acting methods are the manager's own.
pub(crate) trait Service: Send + Sync + 'static {
    /// As [`crate::manager::Manager::spawn`].
    fn spawn(&self, request: SpawnRequest, key: IdempotencyKey) -> Reply<'_, Spawned>;
    /// As [`crate::manager::Manager::prompt`].
    fn prompt<'a>(
        &'a self,
        session: &'a SessionKey,
        request: PromptRequest,
        key: IdempotencyKey,
    ) -> Reply<'a, PromptAccepted>;
    /// As [`crate::manager::Manager::cancel`].
    fn cancel<'a>(
        &'a self,
        session: &'a SessionKey,
        run: Option<RunId>,
        key: IdempotencyKey,
    ) -> Reply<'a, Cancelled>;
    /// As [`crate::manager::Manager::queued`].
    fn queued<'a>(
        &'a self,
        session: &'a SessionKey,
        run: RunId,
        change: QueuedChange,
        key: IdempotencyKey,
    ) -> Reply<'a, QueuedNow>;
    /// As [`crate::manager::Manager::close`].
    fn close<'a>(
        &'a self,
        session: &'a SessionKey,
        request: CloseRequest,
        key: IdempotencyKey,
    ) -> Reply<'a, SessionNow>;
    /// As [`crate::manager::Manager::new_conversation`].
    fn new_conversation<'a>(&'a self, session: &'a SessionKey, key: IdempotencyKey) -> Reply<'a, SessionNow>;
    /// As [`crate::manager::Manager::set`].
    fn set<'a>(
        &'a self,
        session: &'a SessionKey,
        setting: Setting,
        key: IdempotencyKey,
    ) -> Reply<'a, SessionNow>;
    /// As [`crate::manager::Manager::answer_permission`].
    fn answer_permission<'a>(
        &'a self,
        session: &'a SessionKey,
        permission_id: &'a str,
        option_id: &'a str,
        by: &'a str,
        key: IdempotencyKey,
    ) -> Reply<'a, ()>;

    /// Ends one binding or all bindings of a session, and returns the ended ones.
    ///
    /// # Errors
    /// `NO_SESSION`; `ACP_NOT_BOUND` when there is none; `USAGE` for one that the configuration makes.
    fn unbind<'a>(
        &'a self,
        session: &'a SessionKey,
        binding: Option<BindingId>,
        reason: String,
        key: IdempotencyKey,
    ) -> Reply<'a, Vec<BindingRow>>;

    /// The session; `NO_SESSION` when there is none.
    fn session<'a>(&'a self, session: &'a SessionKey) -> Reply<'a, SessionRow>;
    /// The window of the session that ends first, if any is on.
    fn expiry<'a>(&'a self, session: &'a SessionKey) -> Reply<'a, Option<Expiry>>;
    /// All sessions, or those that are not closed, newest first, at most `limit`.
    fn sessions(&self, closed_too: bool, limit: u32) -> Reply<'_, Vec<SessionRow>>;
    /// What goes on around the sessions that are not closed: runs and bindings.
    fn circumstances(&self) -> Reply<'_, Circumstances>;
    /// A run of the session, if there is one of that id.
    fn run<'a>(&'a self, session: &'a SessionKey, run: RunId) -> Reply<'a, Option<RunRow>>;
    /// The newest runs of the session, oldest first, at most `limit`.
    fn runs<'a>(&'a self, session: &'a SessionKey, limit: u32) -> Reply<'a, Vec<RunRow>>;
    /// Questions of the session that wait for an answer, oldest first.
    fn pending_permissions<'a>(&'a self, session: &'a SessionKey) -> Reply<'a, Vec<PermissionRow>>;
    /// Journal rows after number `after`, in order: at most `limit`, and about `bytes_max` bytes of payload,
    /// but at least one when there is one.
    fn events_after<'a>(
        &'a self,
        session: &'a SessionKey,
        after: u64,
        limit: u32,
        bytes_max: usize,
    ) -> Reply<'a, Vec<EventRow>>;
    /// A piece of what the session's agents wrote to standard error.
    fn session_log<'a>(&'a self, session: &'a SessionKey, from: LogFrom) -> Reply<'a, LogPiece>;
    /// Changes when rows of the session were committed. A hint; its sender goes when the gateway ends.
    fn watch(&self, session: &SessionKey) -> watch::Receiver<u64>;

    /// Whether a person may bind a conversation to a session that is there, and for how long.
    ///
    /// # Errors
    /// `ACP_DISABLED`.
    fn may_focus(&self, at: &ConversationRef) -> Result<BindingWindows, Failure>;

    /// What is effective for a conversation.
    fn policy(&self, at: &ConversationRef) -> Policy;

    /// Whether a binding of a conversation that leads nowhere may be removed without a person.
    fn may_unbind_stale(&self, at: &ConversationRef) -> bool {
        let _ = at;
        false
    }

    /// The configuration that holds now.
    fn config(&self) -> Arc<Loaded> {
        Arc::default()
    }

    /// True when every backend is well. Asks nothing of other services.
    fn is_ready(&self) -> bool {
        true
    }
    /// How the gateway is.
    fn status(&self) -> Reply<'_, StatusView>;
    /// Every agent, built-in and configured.
    fn agents(&self) -> Reply<'_, Vec<AgentView>>;
}
