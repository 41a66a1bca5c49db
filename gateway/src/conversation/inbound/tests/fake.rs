//! Fake service behind the inbound service.
use super::*;

/// Fake session manager: durable spawns, and one effect per idempotency key.
pub(super) struct FakeService {
    pub(super) store: Store,
    /// Effects other than prompts, each once per key.
    pub(super) done: StdMutex<Vec<(String, String)>>,
    pub(super) pending: StdMutex<Vec<PermissionRow>>,
    pub(super) status: StdMutex<Option<StatusView>>,
    pub(super) agents: Vec<AgentView>,
    pub(super) prompts: StdMutex<BTreeMap<String, (PromptRequest, PromptAccepted)>>,
    pub(super) cancels: StdMutex<Vec<SessionKey>>,
    pub(super) unbinds_stale: std::sync::atomic::AtomicBool,
    pub(super) fails: StdMutex<Option<Failure>>,
    pub(super) queued_now: StdMutex<QueueEditResult>,
    pub(super) config: StdMutex<Arc<LoadedConfig>>,
    pub(super) expiry: StdMutex<Option<Expiry>>,
}

impl FakeService {
    pub(super) fn new(store: &Store) -> Arc<Self> {
        Arc::new(Self {
            store: store.clone(),
            done: StdMutex::default(),
            pending: StdMutex::default(),
            status: StdMutex::default(),
            agents: Vec::new(),
            prompts: StdMutex::default(),
            cancels: StdMutex::default(),
            unbinds_stale: std::sync::atomic::AtomicBool::default(),
            fails: StdMutex::default(),
            queued_now: StdMutex::new(QueueEditResult::Done),
            config: StdMutex::default(),
            expiry: StdMutex::default(),
        })
    }

    pub(super) fn once(&self, effect: &str, key: &IdempotencyKey) -> bool {
        let mut done = self.done.lock().unwrap();
        if let Some((_, before)) = done.iter().find(|(before, _)| before == key.as_str()) {
            assert_eq!(before, effect, "an idempotency key has one use");
            return false;
        }
        done.push((key.as_str().to_owned(), effect.to_owned()));
        true
    }

    pub(super) fn effects(&self) -> Vec<String> {
        self.done.lock().unwrap().iter().map(|(_, effect)| effect.clone()).collect()
    }

    pub(super) fn prompt_texts(&self) -> Vec<String> {
        self.prompts.lock().unwrap().values().map(|(request, _)| request.text.clone()).collect()
    }
}

fn unused<'a, T: 'a>() -> ServiceFuture<'a, T> {
    Box::pin(async { Err(Failure::new(Code::Runtime, "not used in these tests")) })
}

fn session_status<'a>(session: &SessionKey) -> ServiceFuture<'a, SessionStatus> {
    let (session_key, state) = (session.clone(), SessionState::Idle);
    Box::pin(async move { Ok(SessionStatus { session_key, state, discarded: None, setting: None }) })
}

impl Service for FakeService {
    fn instance_id(&self) -> acp_shared::ids::GatewayInstanceId {
        self.store.identity().instance_id
    }

    fn spawn(&self, request: SpawnRequest, key: IdempotencyKey) -> ServiceFuture<'_, SpawnResult> {
        Box::pin(async move {
            let session_key = match &request.configured {
                Some(configured) => configured.session_key.clone(),
                None => SessionKey::parse(&format!("agent:demo:acp:{}", key.as_str())).unwrap(),
            };
            let metadata = request.configured.as_ref().map_or("{}".to_owned(), |it| it.metadata.clone());
            if self.store.session(session_key.clone()).await?.is_none() {
                let bound_by = request.author.clone();
                let bind =
                    |at| acp_core::rows::BindingRow { bound_by, metadata, ..binding_row(&session_key, at) };
                let binding = request.bind.as_ref().map(bind);
                let session = SessionRow { mode: request.mode, ..session_row(&session_key) };
                self.store.spawn_session(crate::tests::spawn_tx(session, binding)).await?;
            }
            Ok(SpawnResult::created(session_key, None))
        })
    }

    fn prompt<'a>(
        &'a self,
        _session: &'a SessionKey,
        request: PromptRequest,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, PromptAccepted> {
        Box::pin(async move {
            if let Some(failure) = self.fails.lock().unwrap().take() {
                return Err(failure);
            }
            let mut prompts = self.prompts.lock().unwrap();
            let queued_behind = u64::try_from(prompts.len()).unwrap();
            let fresh = PromptAccepted { run_id: RunId::mint(), after_seq: 0, queued_behind, steered: false };
            Ok(prompts.entry(key.as_str().to_owned()).or_insert((request, fresh)).1.clone())
        })
    }

    fn cancel<'a>(
        &'a self,
        session: &'a SessionKey,
        _: Option<RunId>,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, CancelResult> {
        Box::pin(async move {
            self.once(&format!("cancel {session}"), &key);
            self.cancels.lock().unwrap().push(session.clone());
            Ok(CancelResult { run_id: None, state: None })
        })
    }

    fn queued<'a>(
        &'a self,
        session: &'a SessionKey,
        run: RunId,
        change: QueueEdit,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, QueueEditResult> {
        let session_status = *self.queued_now.lock().unwrap();
        let done = self.fails.lock().unwrap().clone().map_or(Ok(session_status), Err);
        if done.is_ok() {
            self.once(&format!("queued {session} {run} {change:?} {session_status:?}"), &key);
        }
        Box::pin(async move { done })
    }

    fn close<'a>(
        &'a self,
        session: &'a SessionKey,
        request: CloseRequest,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        Box::pin(async move {
            if let Some(failure) = self.fails.lock().unwrap().clone() {
                return Err(failure);
            }
            if self.once(&format!("{} {session} {}", request.ending.as_str(), request.discard), &key) {
                JournalWriter::claim(&self.store, session).await.close().await;
            }
            let discarded = request.discard.then_some(false);
            let (session_key, state) = (session.clone(), SessionState::Closed);
            Ok(SessionStatus { session_key, state, discarded, setting: None })
        })
    }

    fn new_conversation<'a>(
        &'a self,
        session: &'a SessionKey,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        self.once(&format!("new {session}"), &key);
        session_status(session)
    }

    fn set<'a>(
        &'a self,
        session: &'a SessionKey,
        setting: Setting,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        self.once(&format!("set {session} {setting:?}"), &key);
        session_status(session)
    }

    fn answer_question<'a>(
        &'a self,
        session: &'a SessionKey,
        permission: &'a str,
        answer: QuestionAnswer,
        by: acp_core::permission::Voter,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, ()> {
        let answer = match answer {
            QuestionAnswer::Option(option) => option,
            QuestionAnswer::Dismissed => "dismissed".to_owned(),
            QuestionAnswer::Elicitation(answer) => serde_json::to_string(&answer).unwrap(),
        };
        self.once(&format!("answer {session} {permission} {answer} {}", by.name), &key);
        self.pending.lock().unwrap().retain(|row| row.permission_id() != permission);
        Box::pin(async { Ok(()) })
    }

    fn expiry<'a>(&'a self, _: &'a SessionKey) -> ServiceFuture<'a, Option<Expiry>> {
        let expiry = *self.expiry.lock().unwrap();
        Box::pin(async move { Ok(expiry) })
    }

    fn unbind<'a>(
        &'a self,
        _: &'a SessionKey,
        _: Option<acp_shared::ids::BindingId>,
        _: String,
        _: IdempotencyKey,
    ) -> ServiceFuture<'a, Vec<acp_core::rows::BindingRow>> {
        unused()
    }
    fn session<'a>(&'a self, session: &'a SessionKey) -> ServiceFuture<'a, SessionRow> {
        Box::pin(async move {
            self.store.session(session.clone()).await?.ok_or_else(|| Failure::of(Code::NoSession))
        })
    }

    fn session_activity(&self, sessions: Vec<SessionKey>) -> ServiceFuture<'_, SessionActivity> {
        let read = move |db: &_| acp_store::gauges::session_activity(db, &sessions);
        Box::pin(async move { Ok(self.store.read("activity", read).await?) })
    }

    fn sessions(&self, closed_too: bool, limit: u32) -> ServiceFuture<'_, Vec<SessionRow>> {
        Box::pin(async move { Ok(self.store.sessions(closed_too, limit.into()).await?) })
    }

    fn run<'a>(&'a self, _: &'a SessionKey, _: RunId) -> ServiceFuture<'a, Option<RunRow>> {
        unused()
    }

    fn runs<'a>(&'a self, session: &'a SessionKey, limit: u32) -> ServiceFuture<'a, Vec<RunRow>> {
        Box::pin(async move { Ok(self.store.runs(session.clone(), limit.into()).await?) })
    }

    fn pending_permissions<'a>(&'a self, session: &'a SessionKey) -> ServiceFuture<'a, Vec<PermissionRow>> {
        let pending = self.pending.lock().unwrap().clone();
        Box::pin(async move { Ok(pending.into_iter().filter(|row| row.session_key == *session).collect()) })
    }

    fn events_after<'a>(
        &'a self,
        _: &'a SessionKey,
        _: Option<u64>,
        _: u32,
        _: usize,
    ) -> ServiceFuture<'a, acp_store::events::JournalRows> {
        unused()
    }

    fn session_log<'a>(
        &'a self,
        _: &'a SessionKey,
        _: acp_shared::protocol::LogFrom,
    ) -> ServiceFuture<'a, acp_shared::protocol::LogPiece> {
        unused()
    }

    fn all_events_after(&self, _: u64, _: u64, _: u32, _: usize) -> ServiceFuture<'_, Vec<(u64, EventRow)>> {
        unused()
    }

    fn event_bounds(&self) -> ServiceFuture<'_, acp_store::events::EventBounds> {
        unused()
    }

    fn watch_all(&self) -> watch::Receiver<u64> {
        self.store.committed()
    }

    fn find_sessions(&self, _: acp_core::rows::SessionQuery) -> ServiceFuture<'_, Vec<(u64, SessionRow)>> {
        unused()
    }

    fn acpx_sessions(
        &self,
        _: acp_core::acpx_contract::NameQuery,
    ) -> ServiceFuture<'_, Vec<acp_store::acpx_names::NamedSession>> {
        unused()
    }

    fn all_pending_permissions(&self, _: u64) -> ServiceFuture<'_, Vec<PermissionRow>> {
        unused()
    }

    fn set_label<'a>(
        &'a self,
        _: &'a SessionKey,
        _: Option<String>,
        _: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        unused()
    }

    fn release<'a>(
        &'a self,
        _: &'a SessionKey,
        _: String,
        _: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        unused()
    }

    fn file_roots(&self, session: &SessionRow) -> Vec<String> {
        vec![session.cwd.clone()]
    }

    fn read_files<'a>(
        &'a self,
        _: &'a str,
        _: Vec<String>,
        _: acp_shared::files::FilesOp,
    ) -> ServiceFuture<'a, Result<acp_shared::files::FilesReply, acp_shared::files::FilesError>> {
        unused()
    }

    fn watch(&self, session: &SessionKey) -> watch::Receiver<u64> {
        self.store.watch(session)
    }

    fn may_focus(&self, _: &ConversationRef) -> Result<BindingTimeouts, Failure> {
        Ok(BindingTimeouts::default())
    }

    fn policy(&self, at: &ConversationRef) -> Arc<EffectivePolicy> {
        Arc::new(effective_policy(&self.config(), &PolicyScope::of(Some(at))))
    }

    fn may_unbind_stale(&self, _: &ConversationRef) -> bool {
        self.unbinds_stale.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn config(&self) -> Arc<LoadedConfig> {
        Arc::clone(&self.config.lock().unwrap())
    }

    fn status(&self) -> ServiceFuture<'_, StatusView> {
        match self.status.lock().unwrap().clone() {
            Some(status) => Box::pin(async { Ok(status) }),
            None => unused(),
        }
    }

    fn agents(&self) -> ServiceFuture<'_, Vec<AgentView>> {
        let agents = self.agents.clone();
        Box::pin(async { Ok(agents) })
    }
}

/// Channel that also carries unrelated messages and receives its own.
#[derive(Default)]
pub(super) struct GroupChannel {
    pub(super) sent: StdMutex<Vec<String>>,
}

impl ChannelAdapter for GroupChannel {
    fn id(&self) -> &'static str {
        "party"
    }

    fn properties(&self) -> ChannelProperties {
        ChannelProperties::new(MessageLimit::new(Unit::Bytes, 4_096), UnboundDestination::Ignore)
    }

    fn send<'a>(&'a self, _: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        Box::pin(async {
            let mut sent = self.sent.lock().unwrap();
            sent.push(message.text.clone());
            SendOutcome::Sent { message_id: format!("party-{}", sent.len()) }
        })
    }

    fn lookup<'a>(&'a self, _: &'a ConversationRef, _: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        Box::pin(async { LookupOutcome::Absent })
    }
}

pub(super) fn group_conversation(id: &str) -> ConversationRef {
    ConversationRef { channel: "party".to_owned(), ..conversation(id) }
}

pub(super) fn group_message(id: &str, text: &str) -> Inbound {
    Inbound { conversation: group_conversation("c"), ..message(id, text) }
}
