#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::api::{AgentView, StatusView};
use crate::channel::Channel;
use crate::channel::console::Console;
use crate::config::load::{Inputs, load};
use crate::core::event::EventRow;
use crate::core::options::Setting;
use crate::core::policy::{BindingWindows, Policy, Scope, effective};
use crate::core::request::CloseRequest;
use crate::core::rows::{ConversationRef, PermissionRow, RunRow, SessionRow};
use crate::core::session::SessionState;
use crate::core::told::told;
use crate::core::ttl::Expiry;
use crate::http::service::Reply;
use crate::manager::{Cancelled, PromptAccepted, SessionNow, SpawnRequest, Spawned};
use crate::store::levels::Circumstances;
use crate::store::sessions::SessionFilter;
use crate::tests::{Scribe, binding_row, conversation, open, session_row, spawn};
use acp_shared::ids::RunId;
use std::collections::BTreeMap;
use std::sync::Mutex as StdMutex;
use tokio::sync::watch;

mod commands;

/// Acts as the manager does towards its callers: durable spawns, and one answer per key.
struct Fake {
    store: Store,
    /// What was done besides prompts, each once per key.
    done: StdMutex<Vec<(String, String)>>,
    /// What the agent waits for.
    pending: StdMutex<Vec<PermissionRow>>,
    status: StdMutex<Option<StatusView>>,
    agents: Vec<AgentView>,
    prompts: StdMutex<BTreeMap<String, (PromptRequest, PromptAccepted)>>,
    cancels: StdMutex<Vec<SessionKey>>,
    unbinds_stale: std::sync::atomic::AtomicBool,
    fails: StdMutex<Option<Failure>>,
}

impl Fake {
    fn new(store: &Store) -> Arc<Self> {
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
        })
    }

    /// Notes something that is done once per key; whether it is the first time.
    fn once(&self, what: &str, key: &IdempotencyKey) -> bool {
        let mut done = self.done.lock().unwrap();
        if let Some((_, before)) = done.iter().find(|(before, _)| before == key.as_str()) {
            assert_eq!(before, what, "a key is used for one thing");
            return false;
        }
        done.push((key.as_str().to_owned(), what.to_owned()));
        true
    }

    /// What was done besides prompts.
    fn effects(&self) -> Vec<String> {
        self.done.lock().unwrap().iter().map(|(_, what)| what.clone()).collect()
    }

    fn said(&self) -> Vec<String> {
        self.prompts.lock().unwrap().values().map(|(request, _)| request.text.clone()).collect()
    }
}

fn unused<'a, T: 'a>() -> Reply<'a, T> {
    Box::pin(async { Err(Failure::new(Code::Runtime, "not asked for in these tests")) })
}

fn now<'a>(session: &SessionKey) -> Reply<'a, SessionNow> {
    let now = SessionNow { session_key: session.clone(), state: SessionState::Idle, discarded: None };
    Box::pin(async { Ok(now) })
}

impl Service for Fake {
    fn spawn(&self, request: SpawnRequest, key: IdempotencyKey) -> Reply<'_, Spawned> {
        Box::pin(async move {
            let session_key = SessionKey::parse(&format!("agent:demo:acp:{}", key.as_str())).unwrap();
            if self.store.session(session_key.clone()).await?.is_none() {
                let bound_by = request.author.clone();
                let bind = |at| crate::core::rows::BindingRow { bound_by, ..binding_row(&session_key, at) };
                let binding = request.bind.as_ref().map(bind);
                let spawn = crate::store::SpawnTx {
                    session: session_row(&session_key),
                    binding,
                    run: None,
                    events: Vec::new(),
                    idempotency: None,
                    sessions_max: 100,
                    account_cap: None,
                };
                self.store.spawn_session(spawn).await?;
            }
            Ok(Spawned { session_key, run_id: None })
        })
    }

    fn prompt<'a>(
        &'a self,
        _session: &'a SessionKey,
        request: PromptRequest,
        key: IdempotencyKey,
    ) -> Reply<'a, PromptAccepted> {
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
    ) -> Reply<'a, Cancelled> {
        Box::pin(async move {
            self.once(&format!("cancel {session}"), &key);
            self.cancels.lock().unwrap().push(session.clone());
            Ok(Cancelled { run_id: None, state: None })
        })
    }

    fn close<'a>(
        &'a self,
        session: &'a SessionKey,
        request: CloseRequest,
        key: IdempotencyKey,
    ) -> Reply<'a, SessionNow> {
        Box::pin(async move {
            if self.once(&format!("{} {session} {}", request.ending.as_str(), request.discard), &key) {
                Scribe::claim(&self.store, session).await.close().await;
            }
            let discarded = request.discard.then_some(false);
            Ok(SessionNow { session_key: session.clone(), state: SessionState::Closed, discarded })
        })
    }

    fn new_conversation<'a>(&'a self, session: &'a SessionKey, key: IdempotencyKey) -> Reply<'a, SessionNow> {
        self.once(&format!("new {session}"), &key);
        now(session)
    }

    fn set<'a>(
        &'a self,
        session: &'a SessionKey,
        setting: Setting,
        key: IdempotencyKey,
    ) -> Reply<'a, SessionNow> {
        self.once(&format!("set {session} {setting:?}"), &key);
        now(session)
    }

    fn answer_permission<'a>(
        &'a self,
        session: &'a SessionKey,
        permission: &'a str,
        option: &'a str,
        by: &'a str,
        key: IdempotencyKey,
    ) -> Reply<'a, ()> {
        self.once(&format!("answer {session} {permission} {option} {by}"), &key);
        self.pending.lock().unwrap().retain(|row| row.permission_id() != permission);
        Box::pin(async { Ok(()) })
    }

    fn expiry<'a>(&'a self, _: &'a SessionKey) -> Reply<'a, Option<Expiry>> {
        Box::pin(async { Ok(None) })
    }

    fn session<'a>(&'a self, session: &'a SessionKey) -> Reply<'a, SessionRow> {
        Box::pin(async move {
            self.store.session(session.clone()).await?.ok_or_else(|| Failure::of(Code::NoSession))
        })
    }

    fn circumstances(&self) -> Reply<'_, Circumstances> {
        Box::pin(async { Ok(self.store.read("circumstances", crate::store::levels::circumstances).await?) })
    }

    fn sessions(&self, closed_too: bool, limit: u32) -> Reply<'_, Vec<SessionRow>> {
        let filter = SessionFilter { agent: None, closed_too, spawned_by: None, rows_max: limit.into() };
        Box::pin(async move { Ok(self.store.sessions(filter).await?) })
    }

    fn run<'a>(&'a self, _: &'a SessionKey, _: RunId) -> Reply<'a, Option<RunRow>> {
        unused()
    }

    fn runs<'a>(&'a self, session: &'a SessionKey, limit: u32) -> Reply<'a, Vec<RunRow>> {
        Box::pin(async move { Ok(self.store.runs(session.clone(), limit.into()).await?) })
    }

    fn pending_permissions<'a>(&'a self, session: &'a SessionKey) -> Reply<'a, Vec<PermissionRow>> {
        let pending = self.pending.lock().unwrap().clone();
        Box::pin(async move { Ok(pending.into_iter().filter(|row| row.session_key == *session).collect()) })
    }

    fn events_after<'a>(&'a self, _: &'a SessionKey, _: u64, _: u32, _: usize) -> Reply<'a, Vec<EventRow>> {
        unused()
    }

    fn watch(&self, session: &SessionKey) -> watch::Receiver<u64> {
        self.store.watch(session)
    }

    fn may_focus(&self, _: &ConversationRef) -> Result<BindingWindows, Failure> {
        Ok(BindingWindows::default())
    }

    fn policy(&self, at: &ConversationRef) -> Policy {
        effective(&load(Inputs::default()).unwrap(), &Scope::of(Some(at)))
    }

    fn may_unbind_stale(&self, _: &ConversationRef) -> bool {
        self.unbinds_stale.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn status(&self) -> Reply<'_, StatusView> {
        match self.status.lock().unwrap().clone() {
            Some(status) => Box::pin(async { Ok(status) }),
            None => unused(),
        }
    }

    fn agents(&self) -> Reply<'_, Vec<AgentView>> {
        let agents = self.agents.clone();
        Box::pin(async { Ok(agents) })
    }
}

/// A channel where people talk about other things too, and that hears what it says itself.
#[derive(Default)]
struct Party {
    said: StdMutex<Vec<String>>,
}

impl Channel for Party {
    fn id(&self) -> &'static str {
        "party"
    }

    fn limit(&self) -> crate::core::split::Limit {
        crate::core::split::Limit::new(crate::core::split::Unit::Bytes, 4_096)
    }

    fn normal(&self) -> Destination {
        Destination::Ignore
    }

    fn send<'a>(
        &'a self,
        _: &'a ConversationRef,
        message: &'a Outgoing,
    ) -> crate::channel::Reply<'a, SendOutcome> {
        Box::pin(async {
            let mut said = self.said.lock().unwrap();
            said.push(message.text.clone());
            SendOutcome::Sent { message_id: format!("party-{}", said.len()) }
        })
    }

    fn lookup<'a>(&'a self, _: &'a ConversationRef, _: &'a Outgoing) -> crate::channel::Reply<'a, Lookup> {
        Box::pin(async { Lookup::Absent })
    }
}

fn party(id: &str, text: &str) -> Inbound {
    let conversation = ConversationRef { channel: "party".to_owned(), ..conversation("c") };
    Inbound { conversation, ..message(id, text) }
}

fn inlet_of(store: &Store, fake: &Arc<Fake>, channel: Arc<dyn Channel>) -> Inlet {
    let channels = Channels::new([channel]);
    Inlet::new(store.clone(), channels, Arc::clone(fake) as Arc<dyn Service>, Metrics::default())
}

fn inlet(store: &Store, fake: &Arc<Fake>) -> Inlet {
    let channels = Channels::new([Arc::new(Console::new(store.clone())) as Arc<dyn Channel>]);
    Inlet::new(store.clone(), channels, Arc::clone(fake) as Arc<dyn Service>, Metrics::default())
}

fn message(id: &str, text: &str) -> Inbound {
    Inbound {
        conversation: conversation("c"),
        message_id: id.to_owned(),
        author: "ann".to_owned(),
        text: text.to_owned(),
    }
}

async fn shown(store: &Store) -> Vec<(String, String)> {
    let rows = store.read("shown", |db| console::after(db, "c", 0, 100)).await.unwrap();
    rows.into_iter().map(|row| (row.kind, row.text)).collect()
}

fn line(kind: &str, text: &str) -> (String, String) {
    (kind.to_owned(), text.to_owned())
}

fn key() -> SessionKey {
    SessionKey::parse("agent:demo:acp:1").unwrap()
}

async fn bound_ground() -> (tempfile::TempDir, Store, Arc<Fake>, Inlet) {
    let (dir, store) = open();
    spawn(&store, session_row(&key()), Some(binding_row(&key(), &conversation("c")))).await;
    let fake = Fake::new(&store);
    let inlet = inlet(&store, &fake);
    (dir, store, fake, inlet)
}

#[tokio::test]
async fn c14_a_message_is_one_prompt_however_often_it_comes() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let first = inlet.accept(message("m1", "hello")).await.unwrap();
    let Outcome::Prompted { session_key, queued_behind: 0, text, .. } = &first else { panic!("{first:?}") };
    assert_eq!((session_key, text.as_str()), (&key(), ""));
    let (one, two) = tokio::join!(inlet.accept(message("m1", "hello")), inlet.accept(message("m1", "hello")));
    assert_eq!((one.unwrap(), two.unwrap()), (first.clone(), first));
    let other = inlet.accept(message("m1", "something else")).await.unwrap_err();
    assert_eq!(other.code, Code::IdempotencyConflict);
    let second = inlet.accept(message("m2", "more")).await.unwrap();
    assert_eq!(second.text(), "The agent is busy: queued behind 1.");
    assert_eq!(fake.said().len(), 2);
    let want = [line("person", "hello"), line("person", "more"), line("notice", &second.text())];
    assert_eq!(shown(&store).await, want);
}

#[tokio::test]
async fn c14_a_restart_between_any_two_steps_gives_the_same_outcome() {
    let whole = [
        line("person", "hello"),
        line("person", "queued"),
        line("notice", "The agent is busy: queued behind 1."),
    ];
    for crash in ["committed", "prompted", "recorded", "told"] {
        let (_dir, store, fake, inlet) = bound_ground().await;
        inlet.accept(message("m1", "hello")).await.unwrap();
        // What the process before did of the second message, up to its crash.
        let inner = &inlet.inner;
        let said = message("m2", "queued");
        inner.commit(&said).await.unwrap();
        if crash != "committed" {
            let outcome = inner.act(&said).await.unwrap();
            if crash != "prompted" {
                let (kept, recorded) = (said.clone(), outcome.clone());
                store.write("record", move |tx| inbox::record(tx, &kept, &recorded)).await.unwrap();
            }
            if crash == "told" {
                inner.tell(&said, &outcome).await.unwrap();
            }
        }
        let again = super::tests::inlet(&store, &fake);
        assert_eq!(again.resume().await.unwrap(), 1, "{crash}");
        assert_eq!(again.resume().await.unwrap(), 0, "{crash}");
        assert_eq!(shown(&store).await, whole, "{crash}");
        assert_eq!(fake.said().len(), 2, "{crash}");
    }
}

#[tokio::test]
async fn b01_what_goes_nowhere_is_said() {
    let (_dir, store) = open();
    let fake = Fake::new(&store);
    let inlet = inlet(&store, &fake);
    let refused = inlet.accept(message("m1", "hello")).await.unwrap();
    assert_eq!(
        refused,
        Outcome::Refused { failure: Failure::of(Code::NotBound), reason: "no-binding".to_owned() }
    );
    // A binding whose session is closed cannot be written; one whose session cannot be read as it should, can.
    spawn(&store, session_row(&key()), Some(binding_row(&key(), &conversation("c")))).await;
    store
        .write("break", |tx| {
            crate::store::codec::run(tx, "UPDATE acp_sessions SET state = 'closed'", []).map(drop)
        })
        .await
        .unwrap();
    let refused = inlet.accept(message("m2", "hello")).await.unwrap();
    let Outcome::Refused { failure, reason } = &refused else { panic!("{refused:?}") };
    assert_eq!((failure.code, reason.as_str()), (Code::StaleBinding, "session-closed"));
    assert!(failure.message.contains("ACP_STALE_BINDING"), "{failure}");
    assert_eq!(fake.said(), Vec::<String>::new());
    let errors: Vec<_> = shown(&store).await.into_iter().filter(|(kind, _)| kind == "error").collect();
    assert_eq!(errors, [line("error", &told(&Failure::of(Code::NotBound))), line("error", &refused.text())]);
}

#[tokio::test]
async fn c14_a_claim_that_failed_is_released_and_taken_up_again() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    *fake.fails.lock().unwrap() = Some(Failure::of(Code::StoreUnavailable));
    let failure = inlet.accept(message("m1", "hello")).await.unwrap_err();
    assert_eq!(failure.code, Code::StoreUnavailable);
    assert_eq!(inlet.resume().await.unwrap(), 1);
    assert_eq!(fake.said(), vec!["hello".to_owned()]);
    // Any other refusal is an outcome, and stays one.
    *fake.fails.lock().unwrap() = Some(Failure::of(Code::LimitReached));
    let refused = inlet.accept(message("m2", "more")).await.unwrap();
    assert_eq!(inlet.accept(message("m2", "more")).await.unwrap(), refused);
    assert_eq!(fake.said().len(), 1);
    assert_eq!(shown(&store).await.last().unwrap(), &line("error", &told(&Failure::of(Code::LimitReached))));
}

#[tokio::test]
async fn odd_messages_are_not_taken() {
    let (_dir, store, _fake, inlet) = bound_ground().await;
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    for (inbound, code) in [
        (message("", "x"), Code::Usage),
        (message(&"m".repeat(201), "x"), Code::Usage),
        (message("m", " \n"), Code::Usage),
        (message("m", &long), Code::LimitReached),
    ] {
        assert_eq!(inlet.accept(inbound).await.unwrap_err().code, code);
    }
    assert_eq!(shown(&store).await, []);
}

/// A full disk lets a message into the inbox and no further: it is taken up again by itself when there is room.
#[tokio::test]
async fn a_message_that_could_not_be_acted_on_is_taken_up_again_without_a_restart() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    let stop = CancellationToken::new();
    let keeping = tokio::spawn(inlet.clone().keep(stop.clone()));
    *fake.fails.lock().unwrap() = Some(Failure::of(Code::StoreUnavailable));
    let refused = inlet.accept(message("m1", "hello")).await.unwrap_err();
    assert_eq!(refused.code, Code::StoreUnavailable);
    assert_eq!(fake.said().len(), 0);
    crate::tests::eventually("the message arrives", || async { (fake.said() == ["hello"]).then_some(()) })
        .await;
    crate::tests::eventually("nothing is left in the inbox", || async {
        let left = store.read("left", |db| inbox::unsettled(db, 9)).await.unwrap();
        left.is_empty().then_some(())
    })
    .await;
    stop.cancel();
    keeping.await.unwrap();
    assert_eq!(fake.said(), ["hello"], "once");
}

#[tokio::test]
async fn stale_bindings_and_full_queues_are_counted() {
    let (_dir, store, _fake, inlet) = bound_ground().await;
    // What no transaction of ours would leave behind.
    let close = "UPDATE acp_sessions SET state = 'closed'";
    store.write("close", move |tx| Ok(tx.execute_batch(close)?)).await.unwrap();
    for id in ["1", "2"] {
        let outcome = inlet.accept(message(id, "hello")).await.unwrap();
        assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
    }
    let places = inlet.inner.places.acquire_many(u32::try_from(WAITING_MAX).unwrap()).await.unwrap();
    assert_eq!(inlet.accept(message("3", "hello")).await.unwrap_err().code, Code::LimitReached);
    drop(places);
    let text = inlet.inner.metrics.render();
    for series in [
        "acp_stale_binding_detections_total{channel=\"console\"} 2",
        "acp_mailbox_rejections_total{lane=\"inbox\"} 1",
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
    let levels = store.read("levels", crate::store::levels::look).await.unwrap();
    assert_eq!(levels.stale_bindings, 1, "acp_stale_bindings");
}

/// What no transaction of ours would leave behind.
async fn close_behind_the_back(store: &Store) {
    let close = "UPDATE acp_sessions SET state = 'closed'";
    store.write("close", move |tx| Ok(tx.execute_batch(close)?)).await.unwrap();
}

async fn ended(store: &Store) -> Option<String> {
    let key = key();
    let read = store.read("ended", move |db| {
        crate::store::codec::first(
            db,
            "SELECT end_reason FROM acp_bindings WHERE session_key = ?1",
            [key.as_str()],
            |row| Ok(row.get::<_, Option<String>>("end_reason")?),
        )
    });
    read.await.unwrap().flatten()
}

/// A stale binding stays where nobody allowed more, and goes where it may: together with what is told, once.
#[tokio::test]
async fn b01_a_stale_binding_is_removed_only_where_that_is_allowed() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    close_behind_the_back(&store).await;
    let stays = inlet.accept(message("m1", "hello")).await.unwrap();
    assert!(stays.text().contains("Say /unfocus"), "{stays:?}");
    assert_eq!(ended(&store).await, None);
    fake.unbinds_stale.store(true, std::sync::atomic::Ordering::Relaxed);
    // A command says the same and removes nothing: a person is at it.
    let command = inlet.accept(message("m2", "/acp status")).await.unwrap();
    assert!(command.text().contains("Say /unfocus"), "{command:?}");
    let goes = inlet.accept(message("m3", "hello")).await.unwrap();
    assert!(goes.text().contains("the binding was removed"), "{goes:?}");
    assert_eq!(ended(&store).await.as_deref(), Some("stale: session-closed"));
    assert_eq!(inlet.accept(message("m3", "hello")).await.unwrap(), goes, "told again, it is the same");
    assert_eq!(
        inlet.accept(message("m4", "hello")).await.unwrap().text(),
        told(&Failure::of(Code::NotBound))
    );
    assert_eq!(fake.said(), Vec::<String>::new());
    let text = inlet.inner.metrics.render();
    for series in [
        "acp_stale_binding_detections_total{channel=\"console\"} 2",
        "acp_stale_binding_removals_total{channel=\"console\",when=\"inbound\"} 1",
        "acp_routes_total{direction=\"inbound\",outcome=\"refused\",reason=\"session-closed\"} 3",
        "acp_routes_total{direction=\"inbound\",outcome=\"unbound\",reason=\"no-binding\"} 1",
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
}

/// A run that has not ended is looked at by a person first.
#[tokio::test]
async fn b01_a_stale_binding_with_a_run_that_is_due_stays() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    Scribe::claim(&store, &key()).await.start(RunMode::Prompt).await;
    close_behind_the_back(&store).await;
    fake.unbinds_stale.store(true, std::sync::atomic::Ordering::Relaxed);
    let stays = inlet.accept(message("m1", "hello")).await.unwrap();
    assert!(stays.text().contains("Say /unfocus"), "{stays:?}");
    assert_eq!(ended(&store).await, None);
}

/// A crash after the removal and before the reply: the person is told what was done, and not what is then.
#[tokio::test]
async fn b01_a_crash_after_the_removal_is_told_all_the_same() {
    let (_dir, store, fake, inlet) = bound_ground().await;
    close_behind_the_back(&store).await;
    fake.unbinds_stale.store(true, std::sync::atomic::Ordering::Relaxed);
    let said = message("m1", "hello");
    inlet.inner.commit(&said).await.unwrap();
    let removed = inlet.inner.act(&said).await.unwrap();
    let again = super::tests::inlet(&store, &fake);
    assert_eq!(again.resume().await.unwrap(), 1);
    assert_eq!(again.accept(said).await.unwrap(), removed);
    let told: Vec<_> = shown(&store).await.into_iter().filter(|(kind, _)| kind == "error").collect();
    assert_eq!(told, [line("error", &removed.text())]);
}

/// What the gateway said comes back in: it is dropped before anything is routed, also once the conversation is unbound
/// and after a restart.
#[tokio::test]
async fn c13_an_echo_is_dropped_after_an_unbind_and_a_restart_too() {
    let (dir, store) = open();
    spawn(&store, session_row(&key()), Some(binding_row(&key(), &party("", "").conversation))).await;
    let fake = Fake::new(&store);
    let channel = Arc::new(Party::default());
    let inlet = inlet_of(&store, &fake, Arc::clone(&channel) as Arc<dyn Channel>);
    let echo = Outcome::Ignored { reason: "own-echo".to_owned() };
    inlet.accept(party("m1", "/acp permissions")).await.unwrap();
    assert_eq!(channel.said.lock().unwrap().as_slice(), ["The agent waits for nothing."]);
    assert_eq!(inlet.accept(party("party-1", "The agent waits for nothing.")).await.unwrap(), echo);
    inlet.accept(party("m2", "/unfocus")).await.unwrap();
    assert_eq!(inlet.accept(party("party-2", "/acp sessions")).await.unwrap(), echo);
    store.close().await;
    let store = Store::open(dir.path(), crate::store::Durability::Normal).unwrap();
    let fake = Fake::new(&store);
    let inlet = inlet_of(&store, &fake, Arc::clone(&channel) as Arc<dyn Channel>);
    assert_eq!(inlet.accept(party("party-2", "/acp sessions")).await.unwrap(), echo);
    // The same id elsewhere is a person's, and what is none of ours is left alone.
    let mut elsewhere = party("party-1", "hello");
    elsewhere.conversation.conversation_id = "d".to_owned();
    let ignored = inlet.accept(elsewhere).await.unwrap();
    assert_eq!(ignored, Outcome::Ignored { reason: "no-binding".to_owned() });
    assert_eq!(channel.said.lock().unwrap().len(), 2);
}

/// An account that nobody serves: no turn is begun whose answer would have nowhere to go.
#[tokio::test]
async fn d06_an_account_without_an_adapter_gets_no_turn() {
    let (_dir, store) = open();
    let mut elsewhere = message("m1", "hello");
    elsewhere.conversation.account_id = "second".to_owned();
    spawn(&store, session_row(&key()), Some(binding_row(&key(), &elsewhere.conversation))).await;
    let fake = Fake::new(&store);
    let inlet = inlet(&store, &fake);
    let refused = inlet.accept(elsewhere).await.unwrap();
    let Outcome::Refused { failure, reason } = &refused else { panic!("{refused:?}") };
    assert_eq!((failure.code, reason.as_str()), (Code::ChannelUnavailable, "adapter-unavailable"));
    assert_eq!(fake.said(), Vec::<String>::new());
    // The other account's conversation of that name is bound to nothing.
    assert_eq!(
        inlet.accept(message("m2", "hello")).await.unwrap().text(),
        told(&Failure::of(Code::NotBound))
    );
}

/// D1: a session that is begun or brought into a conversation says who it is, where, and how long it stays bound.
#[tokio::test]
async fn d01_a_conversation_is_told_what_was_bound() {
    let (_dir, store) = open();
    let fake = Fake::new(&store);
    let inlet = inlet(&store, &fake);
    let spawned = inlet.accept(message("m1", "/acp spawn demo")).await.unwrap();
    let Outcome::Command { session_key: Some(key), .. } = &spawned else { panic!("{spawned:?}") };
    let want = format!("demo works here now, in /tmp: session {key}, agent's id with its first answer.");
    assert!(spawned.text().starts_with(&want), "{spawned:?}");
    assert_eq!(
        shown(&store).await.last().unwrap(),
        &line("notice", &spawned.text()),
        "once, in the conversation"
    );
}
