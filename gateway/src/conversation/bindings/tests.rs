#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::channel::{
    BoxFuture, ChannelAdapter, ChannelProperties, LookupOutcome, OpenChildOutcome, Outgoing, SendOutcome,
};
use crate::conversation::bindings::reconcile::ReconcileCounts;
use crate::tests::{
    JournalWriter, binding_row, column, conversation, eventually, execute, open, session_row, spawn,
};
use acp_core::binding::{BindingTimeout, Capabilities, agent_spawn_metadata};
use acp_core::message_split::{MessageLimit, Unit};
use acp_core::route::{Route, UnboundDestination};
use acp_store::db::Db;
use acp_store::{checkpoints, params};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, Copy)]
enum ChildResult {
    Made,
    /// Made, with a lost response.
    Lost,
    Refused,
    NotNow,
}

/// Channel with child conversations and a record of requests.
struct ParentChannel {
    account: &'static str,
    can: Capabilities,
    results: Mutex<VecDeque<ChildResult>>,
    /// Child conversations by the nonce of their starter: parent, child, text.
    made: Mutex<BTreeMap<String, (String, String, String)>>,
    /// Calls in progress, and their maximum.
    busy: Mutex<(usize, usize)>,
    /// Blocks all requests while false.
    open: watch::Sender<bool>,
}

impl ParentChannel {
    fn new(account: &'static str, can: Capabilities) -> Arc<Self> {
        Arc::new(Self {
            account,
            can,
            results: Mutex::default(),
            made: Mutex::default(),
            busy: Mutex::default(),
            open: watch::Sender::new(true),
        })
    }

    fn then(&self, results: impl IntoIterator<Item = ChildResult>) {
        self.results.lock().unwrap().extend(results);
    }

    fn children(&self) -> Vec<(String, String, String)> {
        self.made.lock().unwrap().values().cloned().collect()
    }
}

impl ChannelAdapter for ParentChannel {
    fn id(&self) -> &'static str {
        "hall"
    }

    fn account_id(&self) -> &str {
        self.account
    }

    fn capabilities(&self, _: &ConversationRef) -> Capabilities {
        self.can
    }

    fn properties(&self) -> ChannelProperties {
        ChannelProperties::new(MessageLimit::new(Unit::Bytes, 4_096), UnboundDestination::Ignore)
    }

    fn send<'a>(&'a self, _: &'a ConversationRef, _: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        Box::pin(async { SendOutcome::Sent { message_id: "1".to_owned() } })
    }

    fn lookup<'a>(&'a self, _: &'a ConversationRef, _: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        Box::pin(async { LookupOutcome::Absent })
    }

    fn open_child<'a>(
        &'a self,
        parent: &'a ConversationRef,
        starter: &'a Outgoing,
    ) -> BoxFuture<'a, OpenChildOutcome> {
        Box::pin(async move {
            {
                let mut busy = self.busy.lock().unwrap();
                busy.0 += 1;
                busy.1 = busy.1.max(busy.0);
            }
            self.open.subscribe().wait_for(|is_open| *is_open).await.unwrap();
            self.busy.lock().unwrap().0 -= 1;
            let result = self.results.lock().unwrap().pop_front().unwrap_or(ChildResult::Made);
            let why = "as scripted".to_owned();
            match result {
                ChildResult::Refused => return OpenChildOutcome::Rejected { why, again: false },
                ChildResult::NotNow => return OpenChildOutcome::Rejected { why, again: true },
                ChildResult::Made | ChildResult::Lost => {}
            }
            let mut made = self.made.lock().unwrap();
            let name = format!("{}/{}", parent.conversation_id, made.len() + 1);
            let entry = made.entry(starter.nonce.clone());
            let (_, child, _) = entry.or_insert((parent.conversation_id.clone(), name, starter.text.clone()));
            match result {
                ChildResult::Lost => OpenChildOutcome::Uncertain { why },
                _ => OpenChildOutcome::Made { conversation_id: child.clone() },
            }
        })
    }
}

const HERE_AND_CHILD: Capabilities = Capabilities { here: true, child: true, child_first: false };
const CHILD_ONLY: Capabilities = Capabilities { here: false, child: true, child_first: false };
const NO_BINDING: Capabilities = Capabilities { here: false, child: false, child_first: false };

fn key(name: &str) -> SessionKey {
    SessionKey::parse(&format!("agent:demo:acp:{name}")).unwrap()
}

fn at(account: &str, id: &str) -> ConversationRef {
    ConversationRef { channel: "hall".to_owned(), account_id: account.to_owned(), ..conversation(id) }
}

fn service(store: &Store, channels: &[&Arc<ParentChannel>]) -> SessionBindingService {
    let adapters = channels.iter().map(|channel| Arc::clone(channel) as Arc<dyn ChannelAdapter>);
    SessionBindingService::new(store.clone(), Channels::new(adapters), Metrics::default())
}

fn bind_request(session: &str, at: ConversationRef, by: &str) -> BindRequest {
    BindRequest {
        session_key: key(session),
        at,
        placement: None,
        by: by.to_owned(),
        windows: BindingTimeouts { idle_ms: Some(1_000), max_age_ms: None },
        made: None,
        key: IdempotencyKey::mint(),
    }
}

async fn set_window(
    store: &Store,
    (session, at): (&str, &ConversationRef),
    window: BindingTimeout,
    ms: Option<u64>,
) -> Vec<BindingRow> {
    let (key, at) = (key(session), at.clone());
    let set = move |tx: &Tx<'_>| command_queries::set_window(tx, &key, &at, window, ms);
    store.write("binding_window", set).await.unwrap()
}

async fn spawn_sessions(store: &Store, names: &[&str]) {
    for name in names {
        spawn(store, session_row(&key(name)), None).await;
    }
}

async fn rows(store: &Store, session: &str) -> Vec<BindingRow> {
    let sql = format!("SELECT {} FROM acp_bindings WHERE session_key = ?1 ORDER BY rowid", bindings::COLUMNS);
    let key = key(session);
    let read = move |db: &Db| db.all(&sql, params![key], bindings::from_row);
    store.read("rows", read).await.unwrap()
}

async fn unbind(service: &SessionBindingService, target: UnbindTarget, why: &str) -> Vec<BindingRow> {
    service.unbind(target, why, IdempotencyKey::mint()).await.unwrap()
}

async fn channel_with(
    can: Capabilities,
    names: &[&str],
) -> (tempfile::TempDir, Store, Arc<ParentChannel>, SessionBindingService) {
    let (dir, store) = open();
    spawn_sessions(&store, names).await;
    let channel = ParentChannel::new("a", can);
    let service = service(&store, &[&channel]);
    (dir, store, channel, service)
}

#[tokio::test]
async fn rebind_keeps_the_timeouts() {
    let (_dir, store, _channel, service) = channel_with(HERE_AND_CHILD, &["1", "2"]).await;
    let first = service.bind(bind_request("1", at("a", "room"), "ann")).await.unwrap();
    assert!(first.is_new);
    set_window(&store, ("1", &at("a", "room")), BindingTimeout::Idle, Some(7_000)).await;
    set_window(&store, ("1", &at("a", "room")), BindingTimeout::MaxAge, Some(90_000)).await;
    // A repeated bind is the same binding; another session replaces it and keeps its timeouts.
    let again = service.bind(bind_request("1", at("a", "room"), "bob")).await.unwrap();
    assert_eq!((again.binding.binding_id, again.is_new), (first.binding.binding_id, false));
    let second = service.bind(bind_request("2", at("a", "room"), "bob")).await.unwrap();
    let windows = (second.binding.idle_ms, second.binding.max_age_ms);
    assert_eq!((windows, second.is_new), ((Some(7_000), Some(90_000)), true));
    let before = rows(&store, "1").await;
    assert_eq!(before[0].status, BindingStatus::Ended);
    assert_eq!(before[0].end_reason.as_deref(), Some("bound to another session"));
    // After an unbind, a new binding has the configured timeouts.
    let ended = unbind(&service, UnbindTarget::Conversation(at("a", "room")), "enough").await;
    assert_eq!(ended.len(), 1);
    let third = service.bind(bind_request("2", at("a", "room"), "bob")).await.unwrap();
    assert_eq!((third.binding.idle_ms, third.binding.max_age_ms), (Some(1_000), None));
}

#[tokio::test]
async fn late_binding_delivers_later_rows_only() {
    let (_dir, store, _channel, service) = channel_with(HERE_AND_CHILD, &["1"]).await;
    let mut journal = JournalWriter::claim(&store, &key("1")).await;
    journal.start().await;
    journal.append_text("old").await;
    journal.complete().await;
    let bound = service.bind(bind_request("1", at("a", "room"), "ann")).await.unwrap();
    let id = bound.binding.binding_id;
    let saved = store.read("checkpoint", move |db| checkpoints::checkpoint(db, id)).await.unwrap();
    assert_eq!(saved, 3);
}

#[tokio::test]
async fn impossible_binding_is_refused_with_reason() {
    let (_dir, store) = open();
    spawn_sessions(&store, &["1", "2"]).await;
    execute(&store, "UPDATE acp_sessions SET state = 'closed' WHERE session_key LIKE '%2'").await;
    let (both, below, none) = (
        ParentChannel::new("both", HERE_AND_CHILD),
        ParentChannel::new("below", CHILD_ONLY),
        ParentChannel::new("none", NO_BINDING),
    );
    let service = service(&store, &[&both, &below, &none]);
    let here = |account: &str, session| BindRequest {
        placement: Some(Placement::Here),
        ..bind_request(session, at(account, "room"), "ann")
    };
    for (request, code, detail) in [
        (bind_request("1", at("elsewhere", "room"), "ann"), "ACP_CHANNEL_UNAVAILABLE", None),
        (bind_request("1", at("none", "room"), "ann"), "USAGE", Some("PLACEMENT_NOT_POSSIBLE")),
        (here("below", "1"), "USAGE", Some("PLACEMENT_NOT_POSSIBLE")),
        (here("both", "3"), "NO_SESSION", None),
        (here("both", "2"), "ACP_SESSION_CLOSED", None),
    ] {
        let case = format!("{request:?}");
        let failure = acp_core::failure::Failure::from(service.bind(request).await.unwrap_err());
        assert_eq!((failure.code.as_str(), failure.detail_code.as_deref()), (code, detail), "{case}");
        assert!(!failure.message.is_empty());
    }
    assert_eq!(rows(&store, "1").await, []);
    // Where only a child is possible, one is created.
    let made = service.bind(bind_request("1", at("below", "room"), "ann")).await.unwrap();
    assert_eq!(made.binding.conversation.parent_conversation_id.as_deref(), Some("room"));
    assert_eq!(made.binding.conversation.conversation_id, "room/1");
}

#[tokio::test]
async fn accounts_are_isolated() {
    let (_dir, store) = open();
    spawn_sessions(&store, &["1", "2"]).await;
    let (a, b) = (ParentChannel::new("a", HERE_AND_CHILD), ParentChannel::new("b", HERE_AND_CHILD));
    let service = service(&store, &[&a, &b]);
    for (account, session) in [("a", "1"), ("b", "2")] {
        service.bind(bind_request(session, at(account, "room"), "ann")).await.unwrap();
    }
    for (account, session) in [("a", "1"), ("b", "2")] {
        let (found, target) = service.resolve_by_conversation(&at(account, "room")).await.unwrap().unwrap();
        assert_eq!((found.session_key, target), (key(session), BoundSession::Known(SessionState::Idle)));
    }
    // A timeout applies to one account of the session.
    service.bind(bind_request("1", at("b", "other"), "ann")).await.unwrap();
    let set = set_window(&store, ("1", &at("a", "room")), BindingTimeout::Idle, None).await;
    assert_eq!(set.len(), 1);
    let idle: Vec<_> =
        service.list_by_session(&key("1")).await.unwrap().into_iter().map(|row| row.idle_ms).collect();
    assert_eq!(idle, [None, Some(1_000)]);
    unbind(&service, UnbindTarget::Conversation(at("a", "room")), "enough").await;
    assert_eq!(service.resolve_by_conversation(&at("a", "room")).await.unwrap(), None);
    assert!(service.resolve_by_conversation(&at("b", "room")).await.unwrap().is_some());
    // Unbinding a session ends its bindings in all accounts.
    service.bind(bind_request("1", at("a", "room"), "ann")).await.unwrap();
    let ended = unbind(&service, UnbindTarget::Session(key("1")), "done").await;
    let accounts: Vec<_> = ended.iter().map(|row| row.conversation.account_id.as_str()).collect();
    assert_eq!(accounts, ["b", "a"]);
    // A binding is ended by its id only for its own session, and once per key.
    let bound = service.bind(bind_request("1", at("a", "room"), "ann")).await.unwrap().binding.binding_id;
    service.bind(bind_request("1", at("b", "room"), "ann")).await.unwrap();
    let foreign = UnbindTarget::Binding(key("2"), bound);
    assert!(unbind(&service, foreign, "done").await.is_empty());
    let once = IdempotencyKey::mint();
    for _ in 0..2 {
        let own = UnbindTarget::Binding(key("1"), bound);
        let ended = service.unbind(own, "done", once.clone()).await.unwrap();
        assert_eq!(ended.iter().map(|row| row.binding_id).collect::<Vec<_>>(), [bound]);
        assert_eq!(service.list_by_session(&key("1")).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn timeout_applies_to_all_bindings_of_session_in_account() {
    let (_dir, store, _channel, service) = channel_with(HERE_AND_CHILD, &["1"]).await;
    let room = at("a", "room");
    assert_eq!(set_window(&store, ("1", &room), BindingTimeout::Idle, Some(5)).await, []);
    service.bind(bind_request("1", room.clone(), "ann")).await.unwrap();
    service.bind(bind_request("1", at("a", "second"), "ann")).await.unwrap();
    execute(&store, "UPDATE acp_bindings SET bound_at = 1, last_activity_at = 1").await;
    let set = set_window(&store, ("1", &room), BindingTimeout::Idle, Some(5_000)).await;
    assert_eq!(set, rows(&store, "1").await, "the reply equals the stored rows");
    assert!(set.iter().all(|row| row.idle_ms == Some(5_000) && row.last_activity_at_ms > 1));
    assert!(set.iter().all(|row| row.bound_at_ms == 1), "the age continues");
    let set = set_window(&store, ("1", &room), BindingTimeout::MaxAge, Some(9_000)).await;
    assert!(set.iter().all(|row| row.max_age_ms == Some(9_000) && row.bound_at_ms > 1));
    let off = set_window(&store, ("1", &room), BindingTimeout::Idle, None).await;
    assert!(off.iter().all(|row| row.idle_ms.is_none() && row.max_age_ms == Some(9_000)));
}

#[tokio::test]
async fn bind_and_unbind_run_once_per_key() {
    let (_dir, _store, _channel, service) = channel_with(HERE_AND_CHILD, &["1", "2"]).await;
    let request = bind_request("1", at("a", "room"), "ann");
    let first = service.bind(request.clone()).await.unwrap();
    service.bind(bind_request("2", at("a", "room"), "ann")).await.unwrap();
    let again = service.bind(request).await.unwrap();
    assert_eq!((again.binding.binding_id, again.is_new), (first.binding.binding_id, true));
    let bound = service.resolve_by_conversation(&at("a", "room")).await.unwrap().unwrap();
    assert_eq!(bound.0.session_key, key("2"), "the later binding remains");
    let once = IdempotencyKey::mint();
    let unbind = || service.unbind(UnbindTarget::Conversation(at("a", "room")), "enough", once.clone());
    let ended = unbind().await.unwrap();
    service.bind(bind_request("1", at("a", "room"), "ann")).await.unwrap();
    assert_eq!(unbind().await.unwrap(), ended);
    assert!(service.resolve_by_conversation(&at("a", "room")).await.unwrap().is_some());
}

/// A touch is durable when it returns, and never moves time backward.
#[tokio::test]
async fn touch_survives_restart() {
    let (dir, store) = open();
    let row = binding_row(&key("1"), &at("a", "room"));
    spawn(&store, session_row(&key("1")), Some(row.clone())).await;
    let service = service(&store, &[]);
    for at_ms in [5_000, 9_000, 7_000] {
        service.touch(row.binding_id, at_ms, |_| Ok(())).await.unwrap();
    }
    store.close().await;
    let store = Store::open(dir.path(), acp_store::Durability::Normal).unwrap();
    assert_eq!(rows(&store, "1").await[0].last_activity_at_ms, 9_000);
}

/// Makes states that no transaction leaves, such as bindings without a session.
#[expect(clippy::disallowed_methods, reason = "the store refuses such rows")]
fn damage(dir: &std::path::Path, sql: &str) {
    let db = rusqlite::Connection::open(dir.join("gateway.db")).unwrap();
    db.pragma_update(None, "foreign_keys", false).unwrap();
    db.execute_batch(sql).unwrap();
}

#[tokio::test]
async fn start_removes_stale_bindings_and_keeps_uncertain_ones() {
    let (dir, store) = open();
    let names = ["gone", "closed", "due", "odd", "error", "idle"];
    for name in names {
        spawn(&store, session_row(&key(name)), Some(binding_row(&key(name), &at("a", name)))).await;
    }
    let mut journal = JournalWriter::claim(&store, &key("due")).await;
    journal.start().await;
    store.close().await;
    damage(
        dir.path(),
        "UPDATE acp_sessions SET state = 'closed' WHERE session_key IN ('agent:demo:acp:closed','agent:demo:acp:due');
         UPDATE acp_sessions SET state = 'error' WHERE session_key = 'agent:demo:acp:error';
         UPDATE acp_bindings SET bound_at = -1 WHERE session_key = 'agent:demo:acp:odd';
         UPDATE acp_bindings SET session_key = 'agent:demo:acp:nowhere' WHERE session_key = 'agent:demo:acp:gone';",
    );
    let store = Store::open(dir.path(), acp_store::Durability::Normal).unwrap();
    let channel = ParentChannel::new("a", HERE_AND_CHILD);
    let service = service(&store, &[&channel]);
    let found = service.reconcile().await.unwrap();
    assert_eq!(found, ReconcileCounts { kept: 4, removed: 2, ..ReconcileCounts::default() });
    for (name, session, reason) in [
        ("gone", "nowhere", Some("stale: session-missing")),
        ("closed", "closed", Some("stale: session-closed")),
        ("due", "due", None),
        ("error", "error", None),
        ("idle", "idle", None),
    ] {
        let row = &rows(&store, session).await[0];
        let want = if reason.is_some() { BindingStatus::Ended } else { BindingStatus::Active };
        assert_eq!((row.status, row.end_reason.as_deref()), (want, reason), "{name}");
    }
    let odd: Vec<String> = column(&store, "SELECT status FROM acp_bindings WHERE bound_at = -1").await;
    assert_eq!(odd, ["active"], "an unreadable row remains");
    let text = service.metrics.render();
    let series = "acp_stale_binding_removals_total{channel=\"hall\",when=\"start\"} 2";
    assert!(text.contains(series), "{text}");
    // A second run finds nothing; an unreadable store ends nothing.
    assert_eq!(service.reconcile().await.unwrap(), ReconcileCounts { kept: 4, ..ReconcileCounts::default() });
    store.close().await;
    assert!(matches!(service.reconcile().await, Err(BindingError::Store(_))));
}

/// H13: after a crash at any step, exactly one conversation is created and bound.
#[tokio::test]
async fn conversation_is_created_once_despite_faults() {
    for results in [
        vec![],
        vec![ChildResult::NotNow],
        vec![ChildResult::Lost],
        vec![ChildResult::Lost, ChildResult::Lost, ChildResult::NotNow],
    ] {
        let (_dir, store) = open();
        spawn_sessions(&store, &["1"]).await;
        let channel = ParentChannel::new("a", CHILD_ONLY);
        let count = results.len();
        channel.then(results);
        let first = service(&store, &[&channel]).bind(bind_request("1", at("a", "room"), "ann")).await;
        for _ in 1..count {
            // Each attempt is made by a new process that knows only stored rows.
            let found = service(&store, &[&channel]).reconcile().await.unwrap();
            assert_eq!(found.unfinished, 1);
        }
        if count > 0 {
            let failure = acp_core::failure::Failure::from(first.unwrap_err());
            assert_eq!(failure.detail_code.as_deref(), Some("CONVERSATION_PENDING"));
            assert_eq!(rows(&store, "1").await[0].status, BindingStatus::Pending);
            let again =
                service(&store, &[&channel]).bind(bind_request("1", at("a", "room"), "ann")).await.unwrap();
            assert_eq!(again.binding.status, BindingStatus::Active);
        }
        let bound = &rows(&store, "1").await;
        assert_eq!(bound.len(), 1);
        assert_eq!(bound[0].status, BindingStatus::Active);
        let children = channel.children();
        let [(parent, child, starter)] = children.as_slice() else { panic!("{children:?}") };
        assert_eq!((parent.as_str(), child), ("room", &bound[0].conversation.conversation_id));
        assert!(starter.contains("agent:demo:acp:1"), "{starter}");
        assert_eq!(service(&store, &[&channel]).reconcile().await.unwrap().kept, 1);
    }
}

#[tokio::test]
async fn crash_before_activation_is_recovered() {
    let (_dir, store, channel, service) = channel_with(CHILD_ONLY, &[]).await;
    let pending = bindings::into_pending(binding_row(&key("1"), &at("a", "room")));
    spawn(&store, session_row(&key("1")), Some(pending.clone())).await;
    let made = service.create_conversation(pending.binding_id).await.unwrap();
    execute(&store, "UPDATE acp_bindings SET status = 'pending', thread_id = 'pending:x'").await;
    assert_eq!(service.reconcile().await.unwrap().finished, 1);
    let rows = rows(&store, "1").await;
    assert_eq!(rows[0].conversation, made.binding.conversation);
    assert_eq!(channel.children().len(), 1);
}

#[tokio::test]
async fn refused_conversation_ends_the_binding_with_reason() {
    let (_dir, store, channel, service) = channel_with(CHILD_ONLY, &["1", "2"]).await;
    channel.then([ChildResult::Refused]);
    let refused = service.bind(bind_request("1", at("a", "room"), "ann")).await.unwrap_err();
    assert!(matches!(refused, BindingError::NotMade { .. }), "{refused:?}");
    let row = &rows(&store, "1").await[0];
    assert_eq!(row.end_reason.as_deref(), Some("spawn-failed: as scripted"));
    // Closing the session ends the pending binding.
    channel.then([ChildResult::NotNow]);
    service.bind(bind_request("2", at("a", "room"), "ann")).await.unwrap_err();
    JournalWriter::claim(&store, &key("2")).await.close().await;
    assert_eq!(service.reconcile().await.unwrap(), ReconcileCounts::default());
    assert_eq!(channel.children(), []);
}

/// The conversation of a session that an agent spawns is created without a command and at once; a refused one is tried again
/// at the interval.
#[tokio::test]
async fn conversation_of_an_agents_spawn_is_created_at_once() {
    let (_dir, store, channel, service) = channel_with(CHILD_ONLY, &[]).await;
    let add = async |name: &str, metadata: String| {
        let pending = bindings::into_pending(binding_row(&key(name), &at("a", name)));
        spawn(&store, session_row(&key(name)), Some(BindingRow { metadata, ..pending })).await;
    };
    add("early", agent_spawn_metadata()).await;
    channel.then([ChildResult::Made, ChildResult::NotNow]);
    let stop = CancellationToken::new();
    let retries = tokio::spawn(service.run_retries(stop.clone()));
    let made = async |count: usize| {
        eventually("children created", || async { (channel.children().len() == count).then_some(()) }).await;
    };
    made(1).await;
    add("late", agent_spawn_metadata()).await;
    eventually("refused", || async { channel.results.lock().unwrap().is_empty().then_some(()) }).await;
    // Neither a person's spawn, whose command creates its conversation, nor the refused one.
    add("person", "{}".to_owned()).await;
    add("next", agent_spawn_metadata()).await;
    made(2).await;
    let mut parents: Vec<String> = channel.children().into_iter().map(|(parent, ..)| parent).collect();
    parents.sort();
    assert_eq!(parents, ["early", "next"]);
    eventually("bound", || async {
        let row = rows(&store, "next").await.pop().unwrap();
        (row.status == BindingStatus::Active).then_some(())
    })
    .await;
    stop.cancel();
    retries.await.unwrap();
}

/// The console creates child conversations, named in the starter, which both conversations show once.
#[tokio::test]
async fn console_creates_child_conversations() {
    let (_dir, store) = open();
    spawn_sessions(&store, &["1"]).await;
    let console = Arc::new(crate::channel::console::Console::new(store.clone())) as Arc<dyn ChannelAdapter>;
    let service = SessionBindingService::new(store.clone(), Channels::new([console]), Metrics::default());
    let request =
        BindRequest { placement: Some(Placement::Child), ..bind_request("1", conversation("room"), "ann") };
    let bound = service.bind(request.clone()).await.unwrap();
    assert_eq!(service.bind(request).await.unwrap().binding.binding_id, bound.binding.binding_id);
    execute(&store, "UPDATE acp_bindings SET status = 'pending', thread_id = 'pending:x'").await;
    assert_eq!(service.reconcile().await.unwrap().finished, 1);
    let child = &rows(&store, "1").await[0].conversation;
    assert_eq!(*child, bound.binding.conversation);
    assert_eq!(child.parent_conversation_id.as_deref(), Some("room"));
    let name = child.conversation_id.clone();
    assert!(name.starts_with("room/") && name.len() == "room/".len() + 8, "{name}");
    let shown = async |id: &str| {
        let id = id.to_owned();
        let read = move |db: &Db| acp_store::console::after(db, &id, 0, 10);
        let rows = store.read("shown", read).await.unwrap();
        rows.into_iter().map(|row| row.text).collect::<Vec<_>>()
    };
    assert_eq!(shown("room").await, [format!("agent:demo:acp:1 is bound to the conversation {name}.")]);
    let saved = shown(&name).await;
    assert!(saved.len() == 1 && saved[0].starts_with("demo is bound here"), "{saved:?}");
}

#[tokio::test]
async fn channel_requests_are_limited_to_eight_at_once() {
    let (_dir, store, channel, service) = channel_with(CHILD_ONLY, &[]).await;
    for n in 0..20 {
        let name = format!("s{n}");
        let pending = bindings::into_pending(binding_row(&key(&name), &at("a", &name)));
        spawn(&store, session_row(&key(&name)), Some(pending)).await;
    }
    channel.open.send_replace(false);
    let release = async {
        eventually("eight calls", || async { (channel.busy.lock().unwrap().0 == 8).then_some(()) }).await;
        channel.open.send_replace(true);
    };
    let (found, ()) = tokio::join!(service.reconcile(), release);
    assert_eq!(found.unwrap().finished, 20);
    let busy = *channel.busy.lock().unwrap();
    assert_eq!(busy, (0, 8), "no call is in progress, and there were never more than 8");
}

#[tokio::test]
async fn routes_are_counted_and_follow_the_adapters() {
    let (_dir, store) = open();
    let room = at("a", "room");
    spawn(&store, session_row(&key("1")), Some(binding_row(&key("1"), &room))).await;
    let channel = ParentChannel::new("a", HERE_AND_CHILD);
    let adapter = Arc::clone(&channel) as Arc<dyn ChannelAdapter>;
    let channels = Channels::default();
    let metrics = Metrics::default();
    let router = BoundDeliveryRouter::new(store.clone(), channels.clone(), metrics.clone());
    let both = async || {
        let arrival = router.route_inbound(&room).await.unwrap().route;
        let answer = router.resolve(&key("1"), Some(&room)).await.unwrap();
        [arrival, answer].map(|route| (route.outcome(), route.reason()))
    };
    assert_eq!(both().await, [("refused", "adapter-unavailable"); 2]);
    channels.register(Arc::clone(&adapter)).unwrap();
    assert_eq!(both().await, [("bound", "active-binding"), ("bound", "requester-match")]);
    // A prompt from an unbound conversation is answered neither there nor in the bound one.
    let elsewhere = router.resolve(&key("1"), Some(&at("a", "lobby"))).await.unwrap();
    assert!(matches!(elsewhere, Route::Refused { .. }), "{elsewhere:?}");
    assert!(channels.unregister(&adapter));
    assert_eq!(both().await, [("refused", "adapter-unavailable"); 2]);
    let text = metrics.render();
    for series in [
        "acp_routes_total{direction=\"inbound\",outcome=\"bound\",reason=\"active-binding\"} 1",
        "acp_routes_total{direction=\"inbound\",outcome=\"refused\",reason=\"adapter-unavailable\"} 2",
        "acp_routes_total{direction=\"outbound\",outcome=\"bound\",reason=\"requester-match\"} 1",
        "acp_routes_total{direction=\"outbound\",outcome=\"refused\",reason=\"no-requester-match\"} 1",
        "acp_routes_total{direction=\"outbound\",outcome=\"refused\",reason=\"adapter-unavailable\"} 2",
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
}
