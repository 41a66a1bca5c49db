#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::channel::{
    BoxFuture, ChannelAdapter, ChannelProperties, LookupOutcome, OpenChildOutcome, Outgoing, SendOutcome,
};
use crate::conversation::bindings::reconcile::ReconcileCounts;
use crate::tests::{
    Scribe, binding_row, column, conversation, eventually, execute, open, session_row, spawn,
};
use acp_core::binding::{BindingTimeout, Capabilities};
use acp_core::message_split::{MessageLimit, Unit};
use acp_core::route::{Route, UnboundDestination};
use acp_store::db::Db;
use acp_store::{checkpoints, params};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// What the channel does when a conversation is asked for.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Made,
    /// It is made, and the answer is lost.
    Lost,
    Refused,
    NotNow,
}

/// A channel with conversations below others, which remembers what it was asked.
struct Hall {
    account: &'static str,
    can: Capabilities,
    fates: Mutex<VecDeque<Fate>>,
    /// Conversations by their starter's nonce: parent, child, text.
    made: Mutex<BTreeMap<String, (String, String, String)>>,
    /// Calls under way, and the most there were at once.
    busy: Mutex<(usize, usize)>,
    /// While it is false, nothing that is asked for is done.
    open: watch::Sender<bool>,
}

impl Hall {
    fn new(account: &'static str, can: Capabilities) -> Arc<Self> {
        Arc::new(Self {
            account,
            can,
            fates: Mutex::default(),
            made: Mutex::default(),
            busy: Mutex::default(),
            open: watch::Sender::new(true),
        })
    }

    fn then(&self, fates: impl IntoIterator<Item = Fate>) {
        self.fates.lock().unwrap().extend(fates);
    }

    fn children(&self) -> Vec<(String, String, String)> {
        self.made.lock().unwrap().values().cloned().collect()
    }
}

impl ChannelAdapter for Hall {
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
            let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Made);
            let why = "as the test wants it".to_owned();
            match fate {
                Fate::Refused => return OpenChildOutcome::Rejected { why, again: false },
                Fate::NotNow => return OpenChildOutcome::Rejected { why, again: true },
                Fate::Made | Fate::Lost => {}
            }
            let mut made = self.made.lock().unwrap();
            let name = format!("{}/{}", parent.conversation_id, made.len() + 1);
            let entry = made.entry(starter.nonce.clone());
            let (_, child, _) = entry.or_insert((parent.conversation_id.clone(), name, starter.text.clone()));
            match fate {
                Fate::Lost => OpenChildOutcome::Uncertain { why },
                _ => OpenChildOutcome::Made { conversation_id: child.clone() },
            }
        })
    }
}

const BOTH: Capabilities = Capabilities { here: true, child: true, child_first: false };
const BELOW: Capabilities = Capabilities { here: false, child: true, child_first: false };
const NONE: Capabilities = Capabilities { here: false, child: false, child_first: false };

fn key(name: &str) -> SessionKey {
    SessionKey::parse(&format!("agent:demo:acp:{name}")).unwrap()
}

fn at(account: &str, id: &str) -> ConversationRef {
    ConversationRef { channel: "hall".to_owned(), account_id: account.to_owned(), ..conversation(id) }
}

fn service(store: &Store, halls: &[&Arc<Hall>]) -> SessionBindingService {
    let adapters = halls.iter().map(|hall| Arc::clone(hall) as Arc<dyn ChannelAdapter>);
    SessionBindingService::new(store.clone(), Channels::new(adapters), Metrics::default())
}

fn asked(session: &str, at: ConversationRef, by: &str) -> BindRequest {
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

/// What `/session idle` and `/session max-age` do.
async fn set_window(
    store: &Store,
    (session, at): (&str, &ConversationRef),
    window: BindingTimeout,
    ms: Option<u64>,
) -> Vec<BindingRow> {
    let (key, at) = (key(session), at.clone());
    let set = move |tx: &Tx<'_>| command_queries::set_window(tx, &key, &at, (window, ms));
    store.write("binding_window", set).await.unwrap()
}

async fn sessions_of(store: &Store, names: &[&str]) {
    for name in names {
        spawn(store, session_row(&key(name)), None).await;
    }
}

/// All bindings of a session with their end, the ended ones too.
async fn rows(store: &Store, session: &str) -> Vec<BindingRow> {
    let sql = format!("SELECT {} FROM acp_bindings WHERE session_key = ?1 ORDER BY rowid", bindings::COLUMNS);
    let key = key(session);
    let read = move |db: &Db| db.all(&sql, params![key], bindings::from_row);
    store.read("rows", read).await.unwrap()
}

/// Unbinds under a key of its own.
async fn unbind(service: &SessionBindingService, target: UnbindTarget, why: &str) -> Vec<BindingRow> {
    service.unbind(target, why, IdempotencyKey::mint()).await.unwrap()
}

/// A hall with this account and these abilities, and a store with these sessions.
async fn hall_of(
    can: Capabilities,
    names: &[&str],
) -> (tempfile::TempDir, Store, Arc<Hall>, SessionBindingService) {
    let (dir, store) = open();
    sessions_of(&store, names).await;
    let hall = Hall::new("a", can);
    let service = service(&store, &[&hall]);
    (dir, store, hall, service)
}

#[tokio::test]
async fn a_rebind_keeps_the_windows_and_shows_nothing_old() {
    let (_dir, store, _hall, service) = hall_of(BOTH, &["1", "2"]).await;
    let first = service.bind(asked("1", at("a", "room"), "ann")).await.unwrap();
    assert!(first.is_new);
    set_window(&store, ("1", &at("a", "room")), BindingTimeout::Idle, Some(7_000)).await;
    set_window(&store, ("1", &at("a", "room")), BindingTimeout::MaxAge, Some(90_000)).await;
    // The same again is the same binding; another session takes its place, with its windows.
    let again = service.bind(asked("1", at("a", "room"), "bob")).await.unwrap();
    assert_eq!((again.binding.binding_id, again.is_new), (first.binding.binding_id, false));
    let second = service.bind(asked("2", at("a", "room"), "bob")).await.unwrap();
    let windows = (second.binding.idle_ms, second.binding.max_age_ms);
    assert_eq!((windows, second.is_new), ((Some(7_000), Some(90_000)), true));
    let before = rows(&store, "1").await;
    assert_eq!(before[0].status, BindingStatus::Ended);
    assert_eq!(before[0].end_reason.as_deref(), Some("bound to another session"));
    // After an unbind a new binding gets what is configured.
    let ended = unbind(&service, UnbindTarget::Conversation(at("a", "room")), "enough").await;
    assert_eq!(ended.len(), 1);
    let third = service.bind(asked("2", at("a", "room"), "bob")).await.unwrap();
    assert_eq!((third.binding.idle_ms, third.binding.max_age_ms), (Some(1_000), None));
}

#[tokio::test]
async fn a_session_that_is_bound_late_shows_what_comes_then() {
    let (_dir, store, _hall, service) = hall_of(BOTH, &["1"]).await;
    let mut scribe = Scribe::claim(&store, &key("1")).await;
    scribe.start().await;
    scribe.say("old").await;
    scribe.done().await;
    let bound = service.bind(asked("1", at("a", "room"), "ann")).await.unwrap();
    let id = bound.binding.binding_id;
    let told = store.read("checkpoint", move |db| checkpoints::checkpoint(db, id)).await.unwrap();
    assert_eq!(told, 3);
}

#[tokio::test]
async fn what_cannot_be_bound_is_said() {
    let (_dir, store) = open();
    sessions_of(&store, &["1", "2"]).await;
    execute(&store, "UPDATE acp_sessions SET state = 'closed' WHERE session_key LIKE '%2'").await;
    let (both, below, none) = (Hall::new("both", BOTH), Hall::new("below", BELOW), Hall::new("none", NONE));
    let service = service(&store, &[&both, &below, &none]);
    let here = |account: &str, session| BindRequest {
        placement: Some(Placement::Here),
        ..asked(session, at(account, "room"), "ann")
    };
    for (request, code, detail) in [
        (asked("1", at("elsewhere", "room"), "ann"), "ACP_CHANNEL_UNAVAILABLE", None),
        (asked("1", at("none", "room"), "ann"), "USAGE", Some("PLACEMENT_NOT_POSSIBLE")),
        (here("below", "1"), "USAGE", Some("PLACEMENT_NOT_POSSIBLE")),
        (here("both", "3"), "NO_SESSION", None),
        (here("both", "2"), "ACP_SESSION_CLOSED", None),
    ] {
        let what = format!("{request:?}");
        let failure = acp_core::failure::Failure::from(service.bind(request).await.unwrap_err());
        assert_eq!((failure.code.as_str(), failure.detail_code.as_deref()), (code, detail), "{what}");
        assert!(!failure.message.is_empty());
    }
    assert_eq!(rows(&store, "1").await, []);
    // Where only a child is possible, it is made without being asked for.
    let made = service.bind(asked("1", at("below", "room"), "ann")).await.unwrap();
    assert_eq!(made.binding.conversation.parent_conversation_id.as_deref(), Some("room"));
    assert_eq!(made.binding.conversation.conversation_id, "room/1");
}

/// The same conversation id under two accounts: two conversations, and no call for one touches the other.
#[tokio::test]
async fn accounts_are_isolated() {
    let (_dir, store) = open();
    sessions_of(&store, &["1", "2"]).await;
    let (a, b) = (Hall::new("a", BOTH), Hall::new("b", BOTH));
    let service = service(&store, &[&a, &b]);
    for (account, session) in [("a", "1"), ("b", "2")] {
        service.bind(asked(session, at(account, "room"), "ann")).await.unwrap();
    }
    for (account, session) in [("a", "1"), ("b", "2")] {
        let (found, target) = service.resolve_by_conversation(&at(account, "room")).await.unwrap().unwrap();
        assert_eq!((found.session_key, target), (key(session), BoundSession::Known(SessionState::Idle)));
    }
    // A session that is bound in both accounts: a window is one account's.
    service.bind(asked("1", at("b", "other"), "ann")).await.unwrap();
    let set = set_window(&store, ("1", &at("a", "room")), BindingTimeout::Idle, None).await;
    assert_eq!(set.len(), 1);
    let idle: Vec<_> =
        service.list_by_session(&key("1")).await.unwrap().into_iter().map(|row| row.idle_ms).collect();
    assert_eq!(idle, [None, Some(1_000)]);
    unbind(&service, UnbindTarget::Conversation(at("a", "room")), "enough").await;
    assert_eq!(service.resolve_by_conversation(&at("a", "room")).await.unwrap(), None);
    assert!(service.resolve_by_conversation(&at("b", "room")).await.unwrap().is_some());
    // All of a session at once, in every account.
    service.bind(asked("1", at("a", "room"), "ann")).await.unwrap();
    let ended = unbind(&service, UnbindTarget::Session(key("1")), "done").await;
    let accounts: Vec<_> = ended.iter().map(|row| row.conversation.account_id.as_str()).collect();
    assert_eq!(accounts, ["b", "a"]);
    // One by its id, and only as the session's own; the same again under its key ends nothing more.
    let bound = service.bind(asked("1", at("a", "room"), "ann")).await.unwrap().binding.binding_id;
    service.bind(asked("1", at("b", "room"), "ann")).await.unwrap();
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
async fn all_bindings_of_a_session_in_the_account_get_a_window() {
    let (_dir, store, _hall, service) = hall_of(BOTH, &["1"]).await;
    let room = at("a", "room");
    assert_eq!(set_window(&store, ("1", &room), BindingTimeout::Idle, Some(5)).await, []);
    service.bind(asked("1", room.clone(), "ann")).await.unwrap();
    service.bind(asked("1", at("a", "second"), "ann")).await.unwrap();
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

/// The same key has one effect, and its first answer.
#[tokio::test]
async fn a_bind_and_an_unbind_are_done_once_under_their_key() {
    let (_dir, _store, _hall, service) = hall_of(BOTH, &["1", "2"]).await;
    let request = asked("1", at("a", "room"), "ann");
    let first = service.bind(request.clone()).await.unwrap();
    service.bind(asked("2", at("a", "room"), "ann")).await.unwrap();
    let again = service.bind(request).await.unwrap();
    assert_eq!((again.binding.binding_id, again.is_new), (first.binding.binding_id, true));
    let bound = service.resolve_by_conversation(&at("a", "room")).await.unwrap().unwrap();
    assert_eq!(bound.0.session_key, key("2"), "the later binding remains");
    let once = IdempotencyKey::mint();
    let unbind = || service.unbind(UnbindTarget::Conversation(at("a", "room")), "enough", once.clone());
    let ended = unbind().await.unwrap();
    service.bind(asked("1", at("a", "room"), "ann")).await.unwrap();
    assert_eq!(unbind().await.unwrap(), ended);
    assert!(service.resolve_by_conversation(&at("a", "room")).await.unwrap().is_some());
}

/// A touch is on the disk when it returns, so that a stop right after it loses nothing; and time never runs back.
#[tokio::test]
async fn a_touch_survives_a_stop() {
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

/// Makes what no transaction leaves behind: bindings whose session is not there.
#[expect(clippy::disallowed_methods, reason = "the store would not let it be written")]
fn damage(dir: &std::path::Path, sql: &str) {
    let db = rusqlite::Connection::open(dir.join("gateway.db")).unwrap();
    db.pragma_update(None, "foreign_keys", false).unwrap();
    db.execute_batch(sql).unwrap();
}

#[tokio::test]
async fn a_start_removes_what_leads_nowhere_and_keeps_what_is_uncertain() {
    let (dir, store) = open();
    let names = ["gone", "closed", "due", "odd", "error", "idle"];
    for name in names {
        spawn(&store, session_row(&key(name)), Some(binding_row(&key(name), &at("a", name)))).await;
    }
    let mut scribe = Scribe::claim(&store, &key("due")).await;
    scribe.start().await;
    store.close().await;
    damage(
        dir.path(),
        "UPDATE acp_sessions SET state = 'closed' WHERE session_key IN ('agent:demo:acp:closed','agent:demo:acp:due');
         UPDATE acp_sessions SET state = 'error' WHERE session_key = 'agent:demo:acp:error';
         UPDATE acp_bindings SET bound_at = -1 WHERE session_key = 'agent:demo:acp:odd';
         UPDATE acp_bindings SET session_key = 'agent:demo:acp:nowhere' WHERE session_key = 'agent:demo:acp:gone';",
    );
    let store = Store::open(dir.path(), acp_store::Durability::Normal).unwrap();
    let hall = Hall::new("a", BOTH);
    let service = service(&store, &[&hall]);
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
    // Nothing more is found, and a store that cannot be read ends nothing.
    assert_eq!(service.reconcile().await.unwrap(), ReconcileCounts { kept: 4, ..ReconcileCounts::default() });
    store.close().await;
    assert!(matches!(service.reconcile().await, Err(BindingError::Store(_))));
}

/// H13: whatever the crash came between, there is one conversation in the end, and it is the bound one.
#[tokio::test]
async fn a_conversation_is_made_once_whatever_happens_meanwhile() {
    for fates in [vec![], vec![Fate::NotNow], vec![Fate::Lost], vec![Fate::Lost, Fate::Lost, Fate::NotNow]] {
        let (_dir, store) = open();
        sessions_of(&store, &["1"]).await;
        let hall = Hall::new("a", BELOW);
        let count = fates.len();
        hall.then(fates);
        let first = service(&store, &[&hall]).bind(asked("1", at("a", "room"), "ann")).await;
        for _ in 1..count {
            // Each time another process, which knows only what is stored.
            let found = service(&store, &[&hall]).reconcile().await.unwrap();
            assert_eq!(found.unfinished, 1);
        }
        if count > 0 {
            let failure = acp_core::failure::Failure::from(first.unwrap_err());
            assert_eq!(failure.detail_code.as_deref(), Some("CONVERSATION_PENDING"));
            assert_eq!(rows(&store, "1").await[0].status, BindingStatus::Pending);
            // Asked for again, it is the same one.
            let again = service(&store, &[&hall]).bind(asked("1", at("a", "room"), "ann")).await.unwrap();
            assert_eq!(again.binding.status, BindingStatus::Active);
        }
        let bound = &rows(&store, "1").await;
        assert_eq!(bound.len(), 1);
        assert_eq!(bound[0].status, BindingStatus::Active);
        let children = hall.children();
        let [(parent, child, starter)] = children.as_slice() else { panic!("{children:?}") };
        assert_eq!((parent.as_str(), child), ("room", &bound[0].conversation.conversation_id));
        assert!(starter.contains("agent:demo:acp:1"), "{starter}");
        assert_eq!(service(&store, &[&hall]).reconcile().await.unwrap().kept, 1);
    }
}

/// A crash after the channel's answer and before the binding is active: the conversation is found again.
#[tokio::test]
async fn a_crash_before_the_activation_is_gone_on_from() {
    let (_dir, store, hall, service) = hall_of(BELOW, &[]).await;
    let pending = bindings::into_pending(binding_row(&key("1"), &at("a", "room")));
    spawn(&store, session_row(&key("1")), Some(pending.clone())).await;
    let made = service.create_conversation(pending.binding_id).await.unwrap();
    execute(&store, "UPDATE acp_bindings SET status = 'pending', thread_id = 'pending:x'").await;
    assert_eq!(service.reconcile().await.unwrap().finished, 1);
    let rows = rows(&store, "1").await;
    assert_eq!(rows[0].conversation, made.binding.conversation);
    assert_eq!(hall.children().len(), 1);
}

#[tokio::test]
async fn what_cannot_be_made_is_over_and_said() {
    let (_dir, store, hall, service) = hall_of(BELOW, &["1", "2"]).await;
    hall.then([Fate::Refused]);
    let refused = service.bind(asked("1", at("a", "room"), "ann")).await.unwrap_err();
    assert!(matches!(refused, BindingError::NotMade { .. }), "{refused:?}");
    let row = &rows(&store, "1").await[0];
    assert_eq!(row.end_reason.as_deref(), Some("spawn-failed: as the test wants it"));
    // A session that is closed before its conversation is there takes the binding along.
    hall.then([Fate::NotNow]);
    service.bind(asked("2", at("a", "room"), "ann")).await.unwrap_err();
    Scribe::claim(&store, &key("2")).await.close().await;
    assert_eq!(service.reconcile().await.unwrap(), ReconcileCounts::default());
    assert_eq!(hall.children(), []);
}

/// The built-in channel makes conversations too: named after the starter, which both of them show, once.
#[tokio::test]
async fn the_console_makes_conversations_below_others() {
    let (_dir, store) = open();
    sessions_of(&store, &["1"]).await;
    let console = Arc::new(crate::channel::console::Console::new(store.clone())) as Arc<dyn ChannelAdapter>;
    let service = SessionBindingService::new(store.clone(), Channels::new([console]), Metrics::default());
    let request =
        BindRequest { placement: Some(Placement::Child), ..asked("1", conversation("room"), "ann") };
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
    let told = shown(&name).await;
    assert!(told.len() == 1 && told[0].starts_with("demo is bound here"), "{told:?}");
}

#[tokio::test]
async fn channels_are_asked_eight_things_at_once_at_most() {
    let (_dir, store, hall, service) = hall_of(BELOW, &[]).await;
    for n in 0..20 {
        let name = format!("s{n}");
        let pending = bindings::into_pending(binding_row(&key(&name), &at("a", &name)));
        spawn(&store, session_row(&key(&name)), Some(pending)).await;
    }
    hall.open.send_replace(false);
    let opens = async {
        eventually("eight", || async { (hall.busy.lock().unwrap().0 == 8).then_some(()) }).await;
        hall.open.send_replace(true);
    };
    let (found, ()) = tokio::join!(service.reconcile(), opens);
    assert_eq!(found.unwrap().finished, 20);
    let busy = *hall.busy.lock().unwrap();
    assert_eq!(busy, (0, 8), "no call is in progress, and there were never more than 8");
}

/// What the router decides is counted with its reason, and follows the adapters that are there.
#[tokio::test]
async fn a_route_is_counted_and_follows_the_adapters() {
    let (_dir, store) = open();
    let room = at("a", "room");
    spawn(&store, session_row(&key("1")), Some(binding_row(&key("1"), &room))).await;
    let hall = Hall::new("a", BOTH);
    let adapter = Arc::clone(&hall) as Arc<dyn ChannelAdapter>;
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
    // Asked from elsewhere it is not sent there, and not to the bound one by way of a guess either.
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
