//! Interface between the local API and the gateway: commands go to the manager, queries to the store. A
//! trait, so that the API can be tested over a real socket without both.

use acp_core::acpx_contract::NameQuery;
use acp_core::actor::QuestionAnswer;
use acp_core::api::{AgentView, HostView, OwnerView, StatusView};
use acp_core::bearer::TokenDigest;
use acp_core::config::load::LoadedConfig;
use acp_core::event::EventRow;
use acp_core::failure::Failure;
use acp_core::options::Setting;
use acp_core::permission::Voter;
use acp_core::policy::{BindingTimeouts, EffectivePolicy};
use acp_core::request::{
    CancelResult, CloseRequest, PromptAccepted, PromptRequest, QueueEdit, QueueEditResult, SessionStatus,
    SpawnRequest, SpawnResult,
};
use acp_core::rows::SessionActivity;
use acp_core::rows::{BindingRow, ConversationRef, PermissionRow, RunRow, SessionQuery, SessionRow};
use acp_core::secrets::Secrets;
use acp_core::timeouts::Expiry;
use acp_shared::codes::Code;
use acp_shared::files::{FilesError, FilesOp, FilesReply};
use acp_shared::ids::{BindingId, GatewayInstanceId, IdempotencyKey, LeaseId, RunId, SessionKey};
use acp_shared::protocol::{EvidenceReport, LeaseInfo, LogFrom, LogPiece};
use acp_store::acpx_names::NamedSession;
use acp_store::events::{EventBounds, JournalRows};
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;

/// Future of an operation's result.
pub(crate) type ServiceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// Operations of the gateway that the API uses. The modifying methods are the manager's own.
pub(crate) trait Service: Send + Sync + 'static {
    /// See [`crate::session::manager::Manager::spawn`].
    fn spawn(&self, request: SpawnRequest, key: IdempotencyKey) -> ServiceFuture<'_, SpawnResult>;
    /// See [`crate::session::manager::Manager::prompt`].
    fn prompt<'a>(
        &'a self,
        session: &'a SessionKey,
        request: PromptRequest,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, PromptAccepted>;
    /// See [`crate::session::manager::Manager::cancel`].
    fn cancel<'a>(
        &'a self,
        session: &'a SessionKey,
        run: Option<RunId>,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, CancelResult>;
    /// See [`crate::session::manager::Manager::queued`].
    fn queued<'a>(
        &'a self,
        session: &'a SessionKey,
        run: RunId,
        change: QueueEdit,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, QueueEditResult>;
    /// See [`crate::session::manager::Manager::close`].
    fn close<'a>(
        &'a self,
        session: &'a SessionKey,
        request: CloseRequest,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus>;
    /// See [`crate::session::manager::Manager::new_conversation`].
    fn new_conversation<'a>(
        &'a self,
        session: &'a SessionKey,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus>;
    /// See [`crate::session::manager::Manager::set`].
    fn set<'a>(
        &'a self,
        session: &'a SessionKey,
        setting: Setting,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus>;
    /// See [`crate::session::manager::Manager::answer_question`].
    fn answer_question<'a>(
        &'a self,
        session: &'a SessionKey,
        permission_id: &'a str,
        answer: QuestionAnswer,
        by: Voter,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, ()>;

    /// Ends one binding or all bindings of a session, and returns the ended ones.
    ///
    /// # Errors
    /// `NO_SESSION`; `ACP_NOT_BOUND` without a binding; `USAGE` for a static binding.
    fn unbind<'a>(
        &'a self,
        session: &'a SessionKey,
        binding: Option<BindingId>,
        reason: String,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, Vec<BindingRow>>;

    /// Returns the session, or `NO_SESSION`.
    fn session<'a>(&'a self, session: &'a SessionKey) -> ServiceFuture<'a, SessionRow>;
    /// Returns the next timeout of the session, if any applies.
    fn expiry<'a>(&'a self, session: &'a SessionKey) -> ServiceFuture<'a, Option<Expiry>>;
    /// Returns all sessions or only the open ones, newest first, at most `limit`.
    fn sessions(&self, closed_too: bool, limit: u32) -> ServiceFuture<'_, Vec<SessionRow>>;
    /// Returns runs and bindings of these sessions.
    fn session_activity(&self, sessions: Vec<SessionKey>) -> ServiceFuture<'_, SessionActivity>;
    /// Returns a run of the session, if it exists.
    fn run<'a>(&'a self, session: &'a SessionKey, run: RunId) -> ServiceFuture<'a, Option<RunRow>>;
    /// Returns the newest runs of the session, oldest first, at most `limit`.
    fn runs<'a>(&'a self, session: &'a SessionKey, limit: u32) -> ServiceFuture<'a, Vec<RunRow>>;
    /// Returns pending permission requests of the session, oldest first.
    fn pending_permissions<'a>(&'a self, session: &'a SessionKey) -> ServiceFuture<'a, Vec<PermissionRow>>;
    /// Returns journal rows after a position, in order: at most `limit` rows and about `bytes_max` bytes of payload, but at
    /// least one row if there is one. Without a position these are the first rows that are there. `CURSOR_PRUNED` if the next
    /// row after the position is pruned.
    fn events_after<'a>(
        &'a self,
        session: &'a SessionKey,
        position: Option<u64>,
        limit: u32,
        bytes_max: usize,
    ) -> ServiceFuture<'a, JournalRows>;
    /// Returns a piece of the standard error of the session's agents.
    fn session_log<'a>(&'a self, session: &'a SessionKey, from: LogFrom) -> ServiceFuture<'a, LogPiece>;
    /// Returns journal rows of all sessions after event id `after`, in order, each with its event id. Bounds as of
    /// [`Service::events_after`]. `known` is the highest event id of a pruned row when the reader began.
    fn all_events_after(
        &self,
        after: u64,
        known: u64,
        limit: u32,
        bytes_max: usize,
    ) -> ServiceFuture<'_, Vec<(u64, EventRow)>>;
    /// Returns the highest event ids.
    fn event_bounds(&self) -> ServiceFuture<'_, EventBounds>;
    /// Notifies about committed rows of all sessions. A hint; closed when the gateway stops.
    fn watch_all(&self) -> watch::Receiver<u64>;
    /// Returns the sessions that match, each with its number in the order of creation.
    fn find_sessions(&self, query: SessionQuery) -> ServiceFuture<'_, Vec<(u64, SessionRow)>>;
    /// Returns sessions with names in the contract of acpx, the newest first.
    fn acpx_sessions(&self, query: NameQuery) -> ServiceFuture<'_, Vec<NamedSession>>;
    /// Returns at most `limit` pending permission requests of all sessions, oldest first.
    fn all_pending_permissions(&self, limit: u64) -> ServiceFuture<'_, Vec<PermissionRow>>;
    /// See [`crate::session::manager::Manager::set_label`].
    fn set_label<'a>(
        &'a self,
        session: &'a SessionKey,
        label: Option<String>,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus>;
    /// See [`crate::session::manager::Manager::release`].
    fn release<'a>(
        &'a self,
        session: &'a SessionKey,
        by: String,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus>;
    /// Returns the directories whose files may be read for a session, the working directory first.
    fn file_roots(&self, session: &SessionRow) -> Vec<String>;
    /// Reads files of a host beneath these directories, in a helper of its supervisor.
    ///
    /// # Errors
    /// `ACP_BACKEND_UNAVAILABLE` without the supervisor. Inside: the error of the file.
    fn read_files<'a>(
        &'a self,
        host: &'a str,
        roots: Vec<String>,
        op: FilesOp,
    ) -> ServiceFuture<'a, Result<FilesReply, FilesError>>;
    /// Notifies about committed rows of the session. A hint; closed when the gateway stops.
    fn watch(&self, session: &SessionKey) -> watch::Receiver<u64>;

    /// Checks that a person may bind a conversation to an existing session, and returns the timeouts of the
    /// binding.
    ///
    /// # Errors
    /// `ACP_DISABLED` if this is disabled.
    fn may_focus(&self, at: &ConversationRef) -> Result<BindingTimeouts, Failure>;

    /// Returns the settings in effect for a conversation.
    fn policy(&self, at: &ConversationRef) -> Arc<EffectivePolicy>;

    /// True if a stale binding of the conversation may be removed automatically.
    fn may_unbind_stale(&self, at: &ConversationRef) -> bool {
        let _ = at;
        false
    }

    /// Returns the id of this gateway instance.
    fn instance_id(&self) -> GatewayInstanceId;

    /// Returns session and lease of the agent that has this token, unless its lease is being closed.
    fn lease_of_token(&self, token: TokenDigest) -> ServiceFuture<'_, Option<(SessionKey, LeaseId)>> {
        let _ = token;
        Box::pin(async { Ok(None) })
    }

    /// Returns the process at the root of a lease's tree.
    ///
    /// # Errors
    /// `ACP_BACKEND_UNAVAILABLE` without the supervisor.
    fn root_process(&self, lease: LeaseId) -> ServiceFuture<'_, Option<i32>> {
        let _ = lease;
        Box::pin(async { Ok(None) })
    }

    /// Takes the completion of a spawned session's first run for its requester, which waits for it in a turn. Returns
    /// false if it is or will be a prompt of the requester.
    fn take_completion(&self, run: RunId, turn: RunId) -> ServiceFuture<'_, bool> {
        let _ = (run, turn);
        Box::pin(async { Ok(true) })
    }

    /// Returns the secrets of a session's agent.
    fn secrets(&self, session: &SessionRow) -> Secrets {
        let _ = session;
        Secrets::default()
    }

    /// Returns the live configuration.
    fn config(&self) -> Arc<LoadedConfig> {
        Arc::default()
    }

    /// Returns the epoch of the journal's row numbers. It changes when a number may mean another row than before.
    fn cursor_epoch(&self) -> String {
        String::new()
    }

    /// True if every backend is healthy. Does not contact other services.
    fn is_ready(&self) -> bool {
        true
    }
    /// Returns the leases that the connected supervisors hold for the gateway, each with its host.
    ///
    /// # Errors
    /// `ACP_BACKEND_UNAVAILABLE` without the supervisor.
    fn leases(&self) -> ServiceFuture<'_, Vec<(String, LeaseInfo)>> {
        Box::pin(async { Err(Failure::of(Code::BackendUnavailable)) })
    }
    /// Returns the hosts: this machine and those of `remote.hosts`.
    fn hosts(&self) -> Vec<HostView> {
        Vec::new()
    }
    /// Returns the evidence of a lease of the gateway, with its host; `None` if there is no such lease.
    ///
    /// # Errors
    /// As [`Service::leases`].
    fn lease_evidence(&self, id: LeaseId) -> ServiceFuture<'_, Option<(String, EvidenceReport)>> {
        let _ = id;
        Box::pin(async { Err(Failure::of(Code::BackendUnavailable)) })
    }
    /// Returns settled permission requests of all sessions, the newest first: at most `limit`, and about `bytes_max` bytes of
    /// requests.
    fn settled_permissions(&self, limit: u64, bytes_max: usize) -> ServiceFuture<'_, Vec<PermissionRow>> {
        let _ = (limit, bytes_max);
        Box::pin(async { Ok(Vec::new()) })
    }
    /// Returns the state directory; `None` without one.
    fn state_dir(&self) -> Option<&Path> {
        None
    }
    /// Returns the owner of the control plane: this gateway, until the loss of the database server.
    fn owner(&self) -> OwnerView {
        OwnerView { serves: true, ..OwnerView::default() }
    }
    /// Returns the status of the gateway.
    fn status(&self) -> ServiceFuture<'_, StatusView>;
    /// Returns all agents, built-in and configured.
    fn agents(&self) -> ServiceFuture<'_, Vec<AgentView>>;
}
