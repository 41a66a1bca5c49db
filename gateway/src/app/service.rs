//! Implementation of the local API: commands go to the manager, queries to the store.

use crate::api::listeners::ListenerStates;
use crate::channel::{ChannelHealth, Channels};
use crate::config::LiveConfig;
use crate::conversation::bindings::static_bindings::may_unbind;
use crate::conversation::bindings::{SessionBindingService, UnbindTarget};
use crate::metrics::{Metrics, STUCK};
use crate::runtime::acpx::names_acpx;
use crate::runtime::agents::Agents;
use crate::runtime::hosts::{Host, Hosts};
use crate::runtime::lookup::look_up_with_timeout;
use crate::session::manager::{
    CancelResult, CloseRequest, Manager, PromptAccepted, PromptRequest, QueueEdit, QueueEditResult,
    SessionStatus, SpawnRequest, SpawnResult,
};
use crate::session::service::{Service, ServiceFuture};
use crate::supervisor::{CallError, SupervisorStatus};
use acp_core::acpx_contract::NameQuery;
use acp_core::actor::QuestionAnswer;
use acp_core::api::{
    AccountView, AgentView, BackendView, ConfigView, HostView, OwnerView, StatusView, StoreView,
    SupervisorView,
};
use acp_core::bearer::TokenDigest;
use acp_core::config::load::LoadedConfig;
use acp_core::config::remote::LOCAL;
use acp_core::event::EventRow;
use acp_core::failure::Failure;
use acp_core::mcp;
use acp_core::options::Setting;
use acp_core::permission::Voter;
use acp_core::placement::HostCandidate;
use acp_core::policy::{BindingTimeouts, EffectivePolicy, PolicyScope};
use acp_core::rows::SessionActivity;
use acp_core::rows::{BindingRow, ConversationRef, PermissionRow, RunRow, SessionQuery, SessionRow};
use acp_core::runtime::acpx;
use acp_core::secrets::Secrets;
use acp_core::timeouts::Expiry;
use acp_shared::codes::Code;
use acp_shared::files::{FilesError, FilesOp, FilesReply, FilesRequest, FilesScope, LIST_FEATURE};
use acp_shared::ids::{BindingId, GatewayInstanceId, IdempotencyKey, LeaseId, RunId, SessionKey};
use acp_shared::protocol::{
    self, EvidenceReport, LeaseInfo, LogFrom, LogPiece, OUTPUT_BYTES_MAX, RefusalCode, Request,
};
use acp_store::acpx_names::NamedSession;
use acp_store::events::{EventBounds, JournalRows};
use acp_store::gauges;
use acp_store::{Store, StoreHealth};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// Maximum number of clients' reads of files at the same time.
pub(crate) const FILE_READS_MAX: usize = 8;

/// Dependencies of the local API.
pub(crate) struct GatewayService {
    /// Executes commands.
    pub(crate) manager: Arc<Manager>,
    /// Counters and gauges.
    pub(crate) metrics: Metrics,
    /// Answers queries.
    pub(crate) store: Store,
    /// Known agents.
    pub(crate) agents: Arc<Agents>,
    /// Machines that run agents.
    pub(crate) hosts: Arc<Hosts>,
    /// Served channels.
    pub(crate) channels: Channels,
    /// Durability of commits: `full` or `normal`.
    pub(crate) durability: &'static str,
    /// Live configuration.
    pub(crate) live: LiveConfig,
    /// Listeners of the API besides the local socket.
    pub(crate) listeners: ListenerStates,
    /// Places of clients' reads of files.
    pub(crate) file_reads: Semaphore,
    /// Start time of the gateway, in milliseconds since the Unix epoch.
    pub(crate) started_at_ms: u64,
}

/// Failure of a refused or unanswered request to the supervisor.
fn no_answer(what: &str, answer: Result<protocol::Reply, CallError>) -> Failure {
    let unavailable =
        |why: String| Failure::new(Code::BackendUnavailable, why).origin("supervisor").retryable();
    match answer {
        Ok(_) => Failure::of(Code::ProtocolError).origin("supervisor"),
        Err(CallError::Refused(refusal)) => unavailable(refusal.message),
        Err(CallError::Disconnected) => {
            unavailable(format!("{what} cannot be read: the supervisor does not answer."))
        }
    }
}

impl Service for GatewayService {
    fn spawn(&self, request: SpawnRequest, key: IdempotencyKey) -> ServiceFuture<'_, SpawnResult> {
        let manager = Arc::clone(&self.manager);
        // The caller may be dropped at any time: a client that disconnects. A committed session gets its actor nevertheless.
        let spawning = tokio::spawn(async move { manager.spawn(request, key).await });
        Box::pin(async move {
            spawning.await.unwrap_or_else(|error| Err(Failure::new(Code::Runtime, error.to_string())))
        })
    }

    fn prompt<'a>(
        &'a self,
        session: &'a SessionKey,
        request: PromptRequest,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, PromptAccepted> {
        Box::pin(self.manager.prompt(session, request, key))
    }

    fn cancel<'a>(
        &'a self,
        session: &'a SessionKey,
        run: Option<RunId>,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, CancelResult> {
        Box::pin(self.manager.cancel(session, run, key))
    }

    fn queued<'a>(
        &'a self,
        session: &'a SessionKey,
        run: RunId,
        change: QueueEdit,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, QueueEditResult> {
        Box::pin(self.manager.queued(session, run, change, key))
    }

    fn close<'a>(
        &'a self,
        session: &'a SessionKey,
        request: CloseRequest,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        Box::pin(self.manager.close(session, request, key))
    }

    fn new_conversation<'a>(
        &'a self,
        session: &'a SessionKey,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        Box::pin(self.manager.new_conversation(session, key))
    }

    fn set<'a>(
        &'a self,
        session: &'a SessionKey,
        setting: Setting,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        Box::pin(self.manager.set(session, setting, key))
    }

    fn answer_question<'a>(
        &'a self,
        session: &'a SessionKey,
        permission_id: &'a str,
        answer: QuestionAnswer,
        by: Voter,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, ()> {
        Box::pin(self.manager.answer_question(session, permission_id, answer, by, key))
    }

    fn unbind<'a>(
        &'a self,
        session: &'a SessionKey,
        binding: Option<BindingId>,
        reason: String,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, Vec<BindingRow>> {
        Box::pin(async move {
            self.session(session).await?;
            let bindings =
                SessionBindingService::new(self.store.clone(), self.channels.clone(), self.metrics.clone());
            let loaded = self.live.now();
            let found = bindings.list_by_session(session).await?;
            for row in found.iter().filter(|row| binding.is_none_or(|id| id == row.binding_id)) {
                may_unbind(&loaded, &row.conversation, &row.metadata)?;
            }
            let which = match binding {
                Some(id) => UnbindTarget::Binding(session.clone(), id),
                None => UnbindTarget::Session(session.clone()),
            };
            let ended = bindings.unbind(which, &reason, key).await?;
            if ended.is_empty() {
                let text = match binding {
                    Some(id) => format!("{session} has no binding {id}. `sessions show` lists its bindings."),
                    None => format!("{session} is not bound to a conversation."),
                };
                return Err(Failure::new(Code::NotBound, text).origin("gateway"));
            }
            Ok(ended)
        })
    }

    fn session<'a>(&'a self, session: &'a SessionKey) -> ServiceFuture<'a, SessionRow> {
        Box::pin(async move {
            let found = self.store.session(session.clone()).await?;
            found.ok_or_else(|| Failure::of(Code::NoSession))
        })
    }

    fn expiry<'a>(&'a self, session: &'a SessionKey) -> ServiceFuture<'a, Option<Expiry>> {
        Box::pin(async move {
            let subject = self.store.expiry_subject(session.clone()).await?;
            Ok(subject.and_then(|subject| self.live.windows().effective(&subject)))
        })
    }

    fn sessions(&self, closed_too: bool, limit: u32) -> ServiceFuture<'_, Vec<SessionRow>> {
        Box::pin(async move { Ok(self.store.sessions(closed_too, u64::from(limit)).await?) })
    }

    fn session_activity(&self, sessions: Vec<SessionKey>) -> ServiceFuture<'_, SessionActivity> {
        let read = move |db: &_| gauges::session_activity(db, &sessions);
        Box::pin(async move { Ok(self.store.read("circumstances", read).await?) })
    }

    fn run<'a>(&'a self, session: &'a SessionKey, run: RunId) -> ServiceFuture<'a, Option<RunRow>> {
        Box::pin(async move {
            let found = self.store.run(run).await?;
            Ok(found.filter(|row| row.session_key == *session))
        })
    }

    fn runs<'a>(&'a self, session: &'a SessionKey, limit: u32) -> ServiceFuture<'a, Vec<RunRow>> {
        Box::pin(async move {
            let mut rows = self.store.runs(session.clone(), u64::from(limit)).await?;
            rows.reverse();
            Ok(rows)
        })
    }

    fn pending_permissions<'a>(&'a self, session: &'a SessionKey) -> ServiceFuture<'a, Vec<PermissionRow>> {
        Box::pin(async move { Ok(self.store.pending_permissions(session.clone()).await?) })
    }

    fn events_after<'a>(
        &'a self,
        session: &'a SessionKey,
        position: Option<u64>,
        limit: u32,
        bytes_max: usize,
    ) -> ServiceFuture<'a, JournalRows> {
        Box::pin(async move {
            Ok(self.store.events_after(session.clone(), position, u64::from(limit), bytes_max).await?)
        })
    }

    fn session_log<'a>(&'a self, session: &'a SessionKey, from: LogFrom) -> ServiceFuture<'a, LogPiece> {
        let (session_key, bytes_max) = (session.clone(), OUTPUT_BYTES_MAX as u64);
        Box::pin(async move {
            let row = self.session(session).await?;
            let supervisor = self.hosts.get(row.options.host_name()).supervisor;
            match supervisor.call(Request::SessionLog { session_key, from, bytes_max }).await {
                Ok(protocol::Reply::SessionLog(piece)) => Ok(piece),
                other => Err(no_answer("The log", other)),
            }
        })
    }

    fn leases(&self) -> ServiceFuture<'_, Vec<(String, LeaseInfo)>> {
        Box::pin(async move {
            let (mut all, mut unanswered) = (Vec::new(), None);
            for host in self.connected() {
                match host.supervisor.call(Request::ListLeases { detail: true }).await {
                    Ok(protocol::Reply::Leases(leases)) => {
                        all.extend(leases.into_iter().map(|lease| (host.name.to_string(), lease)));
                    }
                    other => unanswered = Some(no_answer("The list of leases", other)),
                }
            }
            // Hosts without an answer are left out, but not all of them.
            if let Some(failure) = unanswered.filter(|_| all.is_empty()) {
                return Err(failure);
            }
            Ok(all)
        })
    }

    fn lease_evidence(&self, lease_id: LeaseId) -> ServiceFuture<'_, Option<(String, EvidenceReport)>> {
        Box::pin(async move {
            for host in self.connected() {
                match host.supervisor.call(Request::Verify { lease_id }).await {
                    Ok(protocol::Reply::Evidence(report)) => {
                        return Ok(Some((host.name.to_string(), report)));
                    }
                    Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::LeaseUnknown => {}
                    other => return Err(no_answer("The evidence of a lease", other)),
                }
            }
            if let Some(away) = self.hosts.iter().find(|host| host.supervisor.outage().is_some()) {
                let text = format!("The lease may be on the host {}, which does not answer.", away.name);
                let failure = Failure::new(Code::BackendUnavailable, text).detail("HOST_AWAY");
                return Err(failure.origin("gateway").retryable());
            }
            Ok(None)
        })
    }

    fn hosts(&self) -> Vec<HostView> {
        let view = |(host, candidate): (&Host, HostCandidate)| HostView {
            name: candidate.name,
            address: host.address.to_string(),
            connected: candidate.outage.is_none(),
            detail: candidate.outage.unwrap_or_else(|| "connected".to_owned()),
            labels: candidate.labels,
            agents: candidate.agents,
            memory_bytes: candidate.memory_bytes,
        };
        self.hosts.iter().zip(self.hosts.candidates()).map(view).collect()
    }

    fn settled_permissions(&self, limit: u64, bytes_max: usize) -> ServiceFuture<'_, Vec<PermissionRow>> {
        Box::pin(async move { Ok(self.store.settled_permissions(limit, bytes_max).await?) })
    }

    fn state_dir(&self) -> Option<&Path> {
        Some(self.store.dir())
    }

    fn all_events_after(
        &self,
        after: u64,
        known: u64,
        limit: u32,
        bytes_max: usize,
    ) -> ServiceFuture<'_, Vec<(u64, EventRow)>> {
        Box::pin(
            async move { Ok(self.store.all_events_after(after, known, u64::from(limit), bytes_max).await?) },
        )
    }

    fn event_bounds(&self) -> ServiceFuture<'_, EventBounds> {
        Box::pin(async move { Ok(self.store.event_bounds().await?) })
    }

    fn watch_all(&self) -> watch::Receiver<u64> {
        self.store.committed()
    }

    fn find_sessions(&self, query: SessionQuery) -> ServiceFuture<'_, Vec<(u64, SessionRow)>> {
        Box::pin(async move { Ok(self.store.find_sessions(query).await?) })
    }

    fn acpx_sessions(&self, query: NameQuery) -> ServiceFuture<'_, Vec<NamedSession>> {
        Box::pin(async move { Ok(self.store.acpx_sessions(query).await?) })
    }

    fn all_pending_permissions(&self, limit: u64) -> ServiceFuture<'_, Vec<PermissionRow>> {
        Box::pin(async move { Ok(self.store.all_pending_permissions(limit).await?) })
    }

    fn set_label<'a>(
        &'a self,
        session: &'a SessionKey,
        label: Option<String>,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        Box::pin(self.manager.set_label(session, label, key))
    }

    fn release<'a>(
        &'a self,
        session: &'a SessionKey,
        by: String,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        Box::pin(self.manager.release(session, by, key))
    }

    fn file_roots(&self, session: &SessionRow) -> Vec<String> {
        let configured = self.agents.directories(&session.agent);
        let own = session.options.additional_directories.as_slice();
        let more = mcp::merge_directories(&session.cwd, [configured.as_slice(), own]);
        std::iter::once(session.cwd.clone()).chain(more).collect()
    }

    fn read_files<'a>(
        &'a self,
        host: &'a str,
        roots: Vec<String>,
        op: FilesOp,
    ) -> ServiceFuture<'a, Result<FilesReply, FilesError>> {
        Box::pin(async move {
            let supervisor = self.hosts.get(host).supervisor;
            if matches!(op, FilesOp::List { .. }) && !supervisor.has_feature(LIST_FEATURE) {
                let why =
                    "This supervisor lists no directories: it does not answer, or is older than the gateway.";
                return Err(Failure::new(Code::BackendUnavailable, why).origin("supervisor").retryable());
            }
            // A helper without a lease works for sessions without a process too, and cannot write.
            let request = FilesRequest { scope: FilesScope::Tenant, roots, op };
            // Starts of agents need helpers too. The semaphore is never closed.
            let _place = self.file_reads.acquire().await;
            match supervisor.call(Request::Files(request)).await {
                Ok(protocol::Reply::Files(result)) => Ok(result),
                other => Err(no_answer("A file", other)),
            }
        })
    }

    fn watch(&self, session: &SessionKey) -> watch::Receiver<u64> {
        self.store.watch(session)
    }

    fn may_focus(&self, at: &ConversationRef) -> Result<BindingTimeouts, Failure> {
        self.manager.may_focus(at)
    }

    fn policy(&self, at: &ConversationRef) -> Arc<EffectivePolicy> {
        self.live.policy(&PolicyScope::of(Some(at)))
    }

    fn may_unbind_stale(&self, at: &ConversationRef) -> bool {
        self.live.policy(&PolicyScope::of(Some(at))).may_unbind_stale()
    }

    fn instance_id(&self) -> GatewayInstanceId {
        self.store.identity().instance_id
    }

    fn lease_of_token(&self, token: TokenDigest) -> ServiceFuture<'_, Option<(SessionKey, LeaseId)>> {
        Box::pin(async move { Ok(self.store.lease_of_token(token).await?) })
    }

    fn root_process(&self, lease: LeaseId) -> ServiceFuture<'_, Option<i32>> {
        Box::pin(async move {
            // Agents on other machines cannot connect to the socket of the session tools.
            let supervisor = &self.hosts.default_host().supervisor;
            let leases = match supervisor.call(Request::ListLeases { detail: false }).await {
                Ok(protocol::Reply::Leases(leases)) => leases,
                Ok(_) => return Err(Failure::of(Code::ProtocolError).origin("supervisor")),
                Err(CallError::Refused(_) | CallError::Disconnected) => {
                    let text =
                        "The process of the request cannot be checked: the supervisor does not answer.";
                    return Err(Failure::new(Code::BackendUnavailable, text)
                        .origin("supervisor")
                        .retryable());
                }
            };
            Ok(leases.iter().find(|found| found.lease_id == lease).and_then(|found| found.wrapper_pid))
        })
    }

    fn secrets(&self, session: &SessionRow) -> Secrets {
        self.manager.secrets(session)
    }

    fn take_completion(&self, run: RunId, turn: RunId) -> ServiceFuture<'_, bool> {
        Box::pin(async move { Ok(self.store.take_completion(run, turn).await?) })
    }

    fn config(&self) -> Arc<LoadedConfig> {
        self.live.now()
    }

    fn cursor_epoch(&self) -> String {
        self.store.identity().cursor_epoch.to_string()
    }

    fn is_ready(&self) -> bool {
        let backends = self.backends();
        !backends.is_empty() && backends.iter().all(|backend| backend.ok)
    }

    fn owner(&self) -> OwnerView {
        let serves = *self.store.health().borrow() != StoreHealth::Lost;
        OwnerView { serves, ..self.store.owner() }
    }

    fn status(&self) -> ServiceFuture<'_, StatusView> {
        Box::pin(async move {
            let mut status = self.status_now();
            if let Some(backend) = status.backends.iter_mut().find(|backend| backend.id == acpx::ID)
                && let Ok(Some(info)) = self.store.last_agent_info(acpx::ID).await
                && let Some(versions) = acpx::versions_text(&info)
            {
                backend.details.push_str(&format!("; {versions} when the newest session was last opened"));
            }
            match self.store_now().await {
                Ok(store) => status.store = Some(store),
                Err(failure) => {
                    tracing::error!(%failure, "status without database figures: control plane read failed")
                }
            }
            Ok(status)
        })
    }

    fn agents(&self) -> ServiceFuture<'_, Vec<AgentView>> {
        Box::pin(async move {
            let Host { name, supervisor, .. } = self.hosts.default_host();
            let agents =
                if **name == *LOCAL { Arc::clone(&self.agents) } else { Arc::new(self.agents.on_host(name)) };
            let found = look_up_with_timeout(supervisor, &agents.lookup_all()).await?;
            Ok(agents.list(&found))
        })
    }
}

impl GatewayService {
    /// Returns the hosts whose supervisors answer; the default one in any case.
    fn connected(&self) -> Vec<&Host> {
        let default = self.hosts.default_host();
        let is_asked = |host: &&Host| host.name == default.name || host.supervisor.outage().is_none();
        self.hosts.iter().filter(is_asked).collect()
    }

    fn backends(&self) -> Vec<BackendView> {
        let registry = &self.hosts.default_host().registry;
        let view = |id: &str| {
            let health = registry.get(id)?.health();
            Some(BackendView { id: id.to_owned(), ok: health.ok, details: health.details })
        };
        let config = &self.live.now().config;
        let is_used = |id: &&str| *id != acpx::ID || names_acpx(config);
        registry.ids().into_iter().filter(is_used).filter_map(view).collect()
    }

    fn config_view(&self) -> ConfigView {
        let loaded = self.live.now();
        let file = loaded.file.as_ref();
        ConfigView {
            file: file.map(|file| file.path.display().to_string()),
            sha256: file.map(|file| file.sha256.clone()),
        }
    }

    fn accounts(&self) -> Vec<AccountView> {
        let view = |((channel, account), ChannelHealth { ok, details, .. })| AccountView {
            channel,
            account,
            ok,
            details,
        };
        self.channels.health().into_iter().map(view).collect()
    }

    async fn store_now(&self) -> Result<StoreView, Failure> {
        let read = self.store.read("status", |db| {
            let levels = gauges::read_gauges(db)?;
            let stale = if levels.stale_bindings > 0 { gauges::stale(db)? } else { Vec::new() };
            Ok((levels, stale))
        });
        let (levels, stale) = read.await?;
        let (bytes, log_bytes) = self.store.sizes().await?;
        Ok(StoreView {
            health: self.store.health().borrow().as_str().to_owned(),
            bytes,
            log_bytes,
            sessions_open: levels.sessions.iter().map(|(_, count)| count).sum(),
            runs_queued: levels.runs_queued,
            inbox_waiting: levels.inbox_waiting,
            stale_bindings: levels.stale_bindings,
            stale,
            actors_stuck: self.metrics.actors().stuck(STUCK) as u64,
            still: self.metrics.blocked_items().listed(),
        })
    }

    fn status_now(&self) -> StatusView {
        let host = self.hosts.default_host();
        let (connected, pid, detail) = match &*host.supervisor.status().borrow() {
            SupervisorStatus::Up { welcome, .. } => (true, Some(welcome.pid), "connected".to_owned()),
            SupervisorStatus::Connecting => (false, None, "not connected yet".to_owned()),
            down => (false, None, down.reason().to_owned()),
        };
        StatusView {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            gateway_instance_id: self.store.identity().instance_id.to_string(),
            state_dir: self.store.dir().display().to_string(),
            started_at_ms: self.started_at_ms,
            supervisor: SupervisorView { socket: host.address.to_string(), connected, pid, detail },
            dispatch_enabled: self.manager.dispatch_enabled(),
            durability: self.durability.to_owned(),
            config: Some(self.config_view()),
            backends: self.backends(),
            accounts: self.accounts(),
            hosts: if self.live.at_start().remote.hosts.is_empty() { Vec::new() } else { self.hosts() },
            listeners: self.listeners.views(),
            store: None,
        }
    }
}
