//! Event loop while the control plane is slow or unreadable, or changes at the same moment.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::super::Discord;
use super::super::settings::AccountSettings;
use super::*;
use crate::channel::discord::allow_list::{AccessRules, Principals};
use crate::channel::discord::command_definitions::tests::{command, given};
use crate::channel::{
    BindingLookup, BoundConversation, BoxFuture, CallerReply, ConversationEvent, ConversationEventOutcome,
    ConversationRef, Inbound, IntakeOutcome, MessageChangeOutcome, PostedReply, QueuedMessage,
    ReserveOutcome, Suggestion, SuggestionKind,
};
use crate::tests::clock;
use acp_discord::core::base_url::BaseUrl;
use acp_discord::core::close_codes;
use acp_discord::core::event::{GapCause, Member, Thread, User, Value};
use acp_discord::websocket::{self, EventSender};
use acp_shared::redact::Secret;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const ANN: Snowflake = Snowflake(5);
const BOT: Snowflake = Snowflake(2);

type Meanwhile = Box<dyn FnOnce(&Plane) + Send>;

/// Fake control plane with preset answers and a log of requests.
#[derive(Default)]
struct Plane {
    bound: Mutex<Vec<BoundConversation>>,
    /// True if reads fail.
    is_away: Mutex<bool>,
    changes: watch::Sender<u64>,
    /// Runs once during the next read of the bindings, after the snapshot was taken.
    meanwhile: Mutex<Option<Meanwhile>>,
    asked: Mutex<Vec<String>>,
    /// Messages whose turn has not begun, with their text.
    waiting: Mutex<Vec<QueuedMessage>>,
    offered: Mutex<Vec<String>>,
}

fn at(id: &str) -> ConversationRef {
    ConversationRef::new("discord", "main", id)
}

impl Plane {
    fn away(&self, is_away: bool) {
        *self.is_away.lock().unwrap() = is_away;
    }

    /// Binds a conversation like the store: first the row, then the counter.
    fn bind(&self, id: &str) {
        let place = BoundConversation { conversation: at(id), bound_at_ms: 1, backfilled_through: None };
        self.bound.lock().unwrap().push(place);
        self.changes.send_modify(|count| *count += 1);
    }

    fn ask(&self, what: &str) -> bool {
        self.asked.lock().unwrap().push(what.to_owned());
        !*self.is_away.lock().unwrap()
    }

    fn asked(&self, what: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| asked.starts_with(what)).count()
    }

    fn offered(&self) -> Vec<String> {
        self.offered.lock().unwrap().clone()
    }
}

impl InboundPort for Arc<Plane> {
    fn offer(&self, message: Inbound) -> BoxFuture<'_, IntakeOutcome> {
        self.offered.lock().unwrap().push(message.text);
        Box::pin(async { IntakeOutcome::Accepted(CallerReply::default()) })
    }
    fn reserve(&self, _: Inbound, _: Duration) -> BoxFuture<'_, ReserveOutcome> {
        Box::pin(async { ReserveOutcome::NotReserved { why: "no command is brought here".to_owned() } })
    }
    fn withdraw(&self, _: Inbound) -> BoxFuture<'_, bool> {
        Box::pin(async { false })
    }
    fn mark_replied(&self, _: Inbound, _: Option<PostedReply>) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
    fn on_message_edited(
        &self,
        at: ConversationRef,
        id: String,
        text: String,
    ) -> BoxFuture<'_, MessageChangeOutcome> {
        self.ask(&format!("edited {} {id} {text}", at.conversation_id));
        Box::pin(async { MessageChangeOutcome::Done })
    }
    fn on_message_deleted(&self, at: ConversationRef, id: String) -> BoxFuture<'_, MessageChangeOutcome> {
        self.ask(&format!("deleted {} {id}", at.conversation_id));
        Box::pin(async { MessageChangeOutcome::Done })
    }
    fn queued_messages(&self, at: ConversationRef) -> BoxFuture<'_, Option<Vec<QueuedMessage>>> {
        let is_there = self.ask(&format!("waiting {}", at.conversation_id));
        let waiting = self.waiting.lock().unwrap().clone();
        Box::pin(async move { is_there.then_some(waiting) })
    }
    fn on_conversation_event(
        &self,
        at: ConversationRef,
        change: ConversationEvent,
    ) -> BoxFuture<'_, ConversationEventOutcome> {
        self.ask(&format!("changed {} {change:?}", at.conversation_id));
        Box::pin(async { ConversationEventOutcome::Nothing })
    }
    fn bound_conversations(&self, _: String, _: String) -> BoxFuture<'_, Option<Vec<BoundConversation>>> {
        let answer = self.ask("bound").then(|| self.bound.lock().unwrap().clone());
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().take() {
            meanwhile(self);
        }
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            answer
        })
    }
    fn lookup_binding(&self, at: ConversationRef) -> BoxFuture<'_, BindingLookup> {
        let is_there = self.ask(&format!("place {}", at.conversation_id));
        let found = self.bound.lock().unwrap().iter().find(|place| place.conversation == at).cloned();
        let placed = if is_there {
            found.map_or(BindingLookup::Unbound, BindingLookup::Bound)
        } else {
            BindingLookup::Unknown
        };
        Box::pin(async { placed })
    }
    fn binding_change_counter(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
    fn set_backfill_mark(&self, at: ConversationRef, through: String) -> BoxFuture<'_, bool> {
        self.ask(&format!("read {} {through}", at.conversation_id));
        Box::pin(async { true })
    }
    fn suggest(
        &self,
        _: SuggestionKind,
        _: ConversationRef,
        _: String,
        _: String,
    ) -> BoxFuture<'_, Vec<Suggestion>> {
        self.ask("suggest");
        Box::pin(async { Vec::new() })
    }
}

/// Fake Discord.
struct Town {
    /// Response to a request for any conversation; `None`: 503.
    says: watch::Receiver<Option<Json>>,
    /// Ids of the messages in conversation 7; the text of each is "7: " and the id.
    said: std::ops::Range<u64>,
    /// True if the bot may not read messages; pages are then empty.
    is_shut: bool,
    /// Number of requests for a single message.
    asked: Arc<AtomicUsize>,
    ways: Arc<Ways>,
}

/// Changeable behaviour of the fake, and a log of further requests.
#[derive(Default)]
struct Ways {
    /// Roles by member; other users are not members.
    roles: Mutex<BTreeMap<u64, Vec<u64>>>,
    /// First message id from which on pages are refused, and the HTTP status.
    refuses: Mutex<Option<(u64, u16)>>,
    /// Number of requests for a conversation.
    looks: AtomicUsize,
}

impl Town {
    /// Creates a fake without messages that always gives this response for conversations.
    fn saying(says: Option<Json>) -> Self {
        Self::quiet(watch::channel(says).1)
    }

    /// Creates a fake without messages.
    fn quiet(says: watch::Receiver<Option<Json>>) -> Self {
        Self { says, said: 0..0, is_shut: false, asked: Arc::default(), ways: Arc::default() }
    }

    /// Returns the response to a request.
    fn answer(&self, uri: &axum::http::Uri) -> (axum::http::StatusCode, axum::Json<Json>) {
        use axum::http::StatusCode;
        let refuse = |status, code: u32| (status, axum::Json(json!({"code": code, "message": "no"})));
        let id = uri.path().split("/messages/").nth(1).and_then(|id| id.parse().ok());
        self.asked.fetch_add(usize::from(id.is_some()), Ordering::Relaxed);
        if let Some(user) = uri.path().split("/members/").nth(1).and_then(|id| id.parse().ok()) {
            return match self.ways.roles.lock().unwrap().get(&user) {
                Some(roles) => {
                    let roles: Vec<String> = roles.iter().map(u64::to_string).collect();
                    let user = json!({"id": user.to_string(), "username": "somebody"});
                    (StatusCode::OK, axum::Json(json!({"user": user, "roles": roles})))
                }
                None => refuse(StatusCode::NOT_FOUND, 10_007),
            };
        }
        let is_page = uri.path().ends_with("/messages");
        let after = after(uri);
        if is_page
            && uri.path().contains("/channels/7/")
            && let Some((_, status)) = self.ways.refuses.lock().unwrap().filter(|(from, _)| after >= *from)
        {
            return refuse(StatusCode::from_u16(status).unwrap(), if status == 403 { 50_001 } else { 0 });
        }
        self.ways.looks.fetch_add(usize::from(id.is_none() && !is_page), Ordering::Relaxed);
        match (id, self.says.borrow().clone()) {
            (Some(_), _) if self.is_shut => refuse(StatusCode::FORBIDDEN, 50_013),
            (Some(id), _) if self.said.contains(&id) => (StatusCode::OK, axum::Json(one(id))),
            (Some(_), _) => refuse(StatusCode::NOT_FOUND, 10_008),
            (None, _) if is_page => (StatusCode::OK, axum::Json(self.page(uri))),
            (None, Some(channel)) => (StatusCode::OK, axum::Json(channel)),
            (None, None) => refuse(StatusCode::SERVICE_UNAVAILABLE, 0),
        }
    }

    /// Returns a page of messages after an id; newest first, like Discord.
    fn page(&self, uri: &axum::http::Uri) -> Json {
        let after = after(uri);
        let is_it = uri.path().contains("/channels/7/") && !self.is_shut;
        let page = self.said.clone().filter(|id| is_it && *id > after).take(100);
        let mut page: Vec<Json> = page.map(one).collect();
        page.reverse();
        Json::Array(page)
    }
}

/// Returns the `after` parameter of a page request.
fn after(uri: &axum::http::Uri) -> u64 {
    let after = uri.query().and_then(|query| query.split("after=").nth(1)?.split('&').next());
    after.and_then(|after| after.parse().ok()).unwrap_or(0)
}

fn one(id: u64) -> Json {
    let author = json!({"id": ANN.to_string(), "username": "ann"});
    json!({"id": id.to_string(), "channel_id": "7", "content": format!("7: {id}"), "author": author})
}

async fn serve(town: Town) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let town = Arc::new(town);
    let answer = move |uri: axum::http::Uri| std::future::ready(town.answer(&uri));
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    format!("http://{address}")
}

/// Channel of a server.
fn channel() -> Json {
    json!({"id": "7", "type": 0, "guild_id": "9"})
}

/// Thread without messages, archived by a person or not archived.
fn thread(archived: bool) -> Json {
    let id = Snowflake::from_ms(clock().wall_ms()).to_string();
    let state = json!({"archived": archived, "auto_archive_duration": 60, "locked": false});
    json!({"id": id, "type": 11, "guild_id": "9", "parent_id": "3", "thread_metadata": state})
}

/// Thread 7 as in an event.
fn shown_thread(archived: bool) -> Thread {
    Thread {
        id: Snowflake(7),
        guild: Some(Snowflake(9)),
        parent: Some(Snowflake(3)),
        archived,
        auto_archive_minutes: 60,
        archived_at: None,
    }
}

fn settings(token: &str, base: &str) -> AccountSettings {
    AccountSettings {
        token: Secret::new(token.to_owned()),
        base: BaseUrl::parse(base).unwrap(),
        access: AccessRules {
            allowed: Principals { users: [ANN].into(), roles: BTreeSet::new() },
            ..AccessRules::default()
        },
        static_bindings: BTreeSet::new(),
        personas: false,
    }
}

/// Starts an event loop with a session and a sink for events of the test.
async fn ground(is_away: bool) -> (Arc<Plane>, EventSender, tokio::task::JoinHandle<()>) {
    let (plane, sink, ear, _) = ground_of(is_away, Town::saying(Some(channel())), &[]).await;
    (plane, sink, ear)
}

/// The same with this fake Discord and these statically bound conversations.
async fn ground_of(
    is_away: bool,
    town: Town,
    configured: &[u64],
) -> (Arc<Plane>, EventSender, tokio::task::JoinHandle<()>, Arc<Inner>) {
    let configured = configured.iter().copied().map(Snowflake).collect();
    let settings = AccountSettings { static_bindings: configured, ..settings("token", &serve(town).await) };
    let discord = Discord::new("main".to_owned(), settings, clock()).unwrap();
    let inner = Arc::clone(&discord.inner);
    let (sink, events) = websocket::event_channel(4_096);
    let line = EventConnection::of(discord.inner.settings().token.clone(), events);
    let plane = Arc::new(Plane::default());
    plane.away(is_away);
    let inbox: Arc<dyn InboundPort> = Arc::new(Arc::clone(&plane));
    let ear = EventLoop::new(discord.inner, inbox);
    sink.put(ready());
    (plane, sink, tokio::spawn(ear.run(line)), inner)
}

fn user(id: Snowflake) -> User {
    User { id, name: "ann".to_owned(), display_name: None, bot: false }
}

fn ready() -> Event {
    let session = "s".to_owned();
    Event::Ready(ReadyEvent { me: user(BOT), application: BOT, session, shard: (0, 1), guilds: vec![] })
}

fn said(id: u64, channel: u64, text: &str) -> Event {
    said_by(ANN, id, channel, text)
}

fn said_by(who: Snowflake, id: u64, channel: u64, text: &str) -> Event {
    Event::Message(Box::new(Message {
        id: Snowflake(id),
        channel: Snowflake(channel),
        guild: Some(Snowflake(9)),
        author: Member { user: user(who), roles: vec![] },
        webhook: None,
        application: None,
        kind: 0,
        text: text.to_owned(),
        attachments: vec![],
        mentions: vec![],
        nonce: None,
        buttons: vec![],
    }))
}

/// Autocompletion request for the sessions of `/acp status`.
fn typing() -> Event {
    let session = given("session", Value::Text(String::new()), true);
    let status = given("status", Value::Sub(vec![session]), false);
    Event::Autocomplete(Box::new(command("acp", vec![status])))
}

async fn until(what: &str, is: impl Fn() -> bool) {
    for _ in 0..1_500 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("timed out: {what}");
}

/// Messages in unbound conversations cause no reads of the bindings, regardless of their number.
#[tokio::test]
async fn unbound_messages_cause_no_binding_reads() {
    let (plane, sink, _ear) = ground(false).await;
    sink.put(said(1_000, 99, "/acp sessions"));
    until("it is known what is bound", || plane.asked("bound") > 0 && !plane.offered().is_empty()).await;
    let last = 3_000;
    for id in 1_001..last {
        sink.put(said(id, 100 + id % 7, "chatter"));
    }
    sink.put(said(last, 99, "/acp status"));
    until("all of it was heard", || plane.offered().len() == 2).await;
    assert_eq!(plane.offered(), ["/acp sessions", "/acp status"]);
    // Before the first snapshot some of the conversations may have been queried in their workers.
    assert!(plane.asked("bound") == 1 && plane.asked("place 10") <= 7, "{:?}", plane.asked.lock());
}

/// A binding made at any moment takes effect: before, during and after a read of the bindings.
#[tokio::test]
async fn concurrent_binding_is_not_missed() {
    let (plane, sink, _ear) = ground(false).await;
    until("it is known what is bound", || plane.asked("bound") > 0).await;
    plane.bind("7");
    sink.put(said(1_001, 7, "one"));
    until("it is heard", || plane.offered() == ["one"]).await;
    // Conversation 9 is bound during the read, after the snapshot.
    *plane.meanwhile.lock().unwrap() = Some(Box::new(|plane: &Plane| plane.bind("9")));
    plane.bind("8");
    // Earlier messages are found: a new binding is read from its beginning.
    until("both are read", || plane.asked("place 8") > 0 && plane.asked("place 9") > 0).await;
    sink.put(said(1_002, 9, "two"));
    until("it is heard", || plane.offered() == ["one", "two"]).await;
}

/// While the control plane is unreadable, independent work proceeds, other work waits, and nothing is lost.
#[tokio::test]
async fn unreadable_control_plane_delays_no_event() {
    let (plane, sink, _ear) = ground(true).await;
    plane.bind("7");
    sink.put(said(1_001, 7, "one"));
    sink.put(said(1_002, 7, "two"));
    sink.put(said(1_003, 8, "chatter"));
    sink.put(Event::Gap { why: GapCause::Overflow, lost: 1 });
    sink.put(Event::ChannelDeleted(Snowflake(7)));
    // Events are handled in order: this one after all others above.
    sink.put(typing());
    until("somebody is served who needs nothing of it", || plane.asked("suggest") > 0).await;
    until("what may be ours waits in its lane", || plane.asked("place 7") > 1).await;
    assert_eq!((plane.offered().len(), plane.asked("changed")), (0, 0));
    plane.away(false);
    until("what waited is heard", || plane.offered() == ["one", "two"]).await;
    until("what ended is done", || plane.asked("changed 7 Gone") > 0).await;
}

/// Events in the queue of an old connection are handled in order before the next connection begins: Discord
/// does not repeat messages in unbound conversations.
#[tokio::test]
async fn events_of_old_connection_are_handled_before_next_one() {
    for has_failed in [false, true] {
        // No server listens at this address.
        let nobody = "http://127.0.0.1:1";
        let discord = Discord::new("main".to_owned(), settings("old", nobody), clock()).unwrap();
        let inner = Arc::clone(&discord.inner);
        inner.cache.set_identity(Snowflake(1), BOT);
        inner.cache.set_location(Snowflake(3), None, Some(Snowflake(9)));
        let (sink, events) = websocket::event_channel(8);
        let line = EventConnection::of(Secret::new("old".to_owned()), events);
        let texts = ["/acp status", "/acp help", "/agents"];
        for (id, text) in (10..).zip(texts) {
            sink.put(said(id, 3, text));
        }
        if has_failed {
            sink.put(Event::Failed(close_codes::fatal_error(4004).unwrap()));
        }
        drop(sink);
        discord.apply_settings(settings("new", nobody)).unwrap();
        let plane = Arc::new(Plane::default());
        let inbox: Arc<dyn InboundPort> = Arc::new(Arc::clone(&plane));
        let hearing = tokio::spawn(EventLoop::new(Arc::clone(&inner), inbox).run(line));
        until("everything is taken", || plane.offered().len() >= texts.len()).await;
        assert_eq!(plane.offered(), texts, "{has_failed}");
        until("the next one begins", || !inner.connection_health.has_failed()).await;
        hearing.abort();
    }
}

/// While Discord refuses a check of the archive state, messages from the thread are processed in order and
/// none is sent there; the next message to the thread asks again.
#[tokio::test]
async fn messages_are_handled_while_archive_check_fails() {
    let (says, of_it) = watch::channel(Some(thread(false)));
    let (plane, sink, _ear, inner) = ground_of(false, Town::quiet(of_it), &[]).await;
    plane.bind("7");
    let at = Snowflake(7);
    until("it is looked at", || inner.cache.has_archive_state(at)).await;
    says.send_replace(None);
    sink.put(Event::ThreadChanged(shown_thread(true)));
    until("it is lost sight of", || !inner.cache.has_archive_state(at)).await;
    let texts = ["one", "two", "three"];
    for (id, text) in (1_001..).zip(texts) {
        sink.put(said(id, 7, text));
    }
    until("it is heard", || plane.offered().len() == texts.len()).await;
    assert_eq!(plane.offered(), texts);
    assert!(
        !inner.cache.has_archive_state(at) && plane.asked("changed 7 Archived") == 0,
        "the state is unknown"
    );
    assert!(inner.ensure_archive_state(at).await.is_err(), "no message may be sent");
    says.send_replace(Some(thread(true)));
    assert!(inner.ensure_archive_state(at).await.is_ok());
    until("it is parked", || plane.asked("changed 7 Archived { by_person: true }") > 0).await;
}

/// A session start with failing archive checks does not delay messages either.
#[tokio::test]
async fn session_start_with_failing_checks_delays_no_message() {
    let (plane, sink, _ear, inner) = ground_of(false, Town::saying(None), &[]).await;
    inner.cache.set_location(Snowflake(7), Some(Snowflake(3)), Some(Snowflake(9)));
    plane.bind("7");
    sink.put(ready());
    sink.put(said(1_001, 7, "one"));
    until("it is heard", || plane.offered() == ["one"]).await;
    assert!(!inner.cache.has_archive_state(Snowflake(7)));
}

/// Messages that did not fit into the queue while the control plane was unreadable are backfilled in order,
/// also without a mark in statically bound conversations and in threads of statically bound channels.
#[tokio::test]
async fn overflowed_messages_of_static_bindings_are_backfilled() {
    let ids = 1_001..1_301_u64;
    for (configured, says, chatter) in [(7, channel(), 0), (3, thread(false), 0), (3, thread(false), 4_500)] {
        let town = Town { said: ids.clone(), ..Town::saying(Some(says)) };
        let (plane, sink, _ear, _) = ground_of(true, town, &[configured]).await;
        let crowd = (0..chatter).map(|number| said(2_000 + number, 100 + number % 20, "chatter"));
        let events: Vec<Event> =
            crowd.chain(ids.clone().map(|id| said(id, 7, &format!("7: {id}")))).collect();
        for (number, events) in (1..).zip(events.chunks(1_000)) {
            for event in events {
                sink.put(event.clone());
            }
            sink.put(typing());
            until("all of it came", || plane.asked("suggest") == number).await;
        }
        plane.away(false);
        let want: Vec<String> = ids.clone().map(|id| format!("7: {id}")).collect();
        let heard = || {
            let mut seen = BTreeSet::new();
            // The fake puts all conversations below one channel, the unrelated ones too.
            let is_its = |text: &String| text.starts_with("7: ") && seen.insert(text.clone());
            plane.offered().into_iter().filter(is_its).collect::<Vec<_>>()
        };
        until("all of it is heard", || heard().len() >= want.len()).await;
        assert_eq!(heard(), want, "{configured} {chatter}");
    }
}

/// Messages whose turn has not begun are fetched once after a gap. Without permission to read none of them
/// counts as deleted.
#[tokio::test]
async fn missed_edits_and_deletions_are_found() {
    for (is_shut, edited, deleted) in
        [(false, &["1002 7: 1002", "1299 7: 1299"][..], &["1400", "900"][..]), (true, &[], &[])]
    {
        let town = Town { said: 1_001..1_301, is_shut, ..Town::saying(Some(channel())) };
        let alone = Arc::clone(&town.asked);
        let (plane, sink, _ear, _) = ground_of(false, town, &[]).await;
        let waits = |(id, text): (u64, Option<&str>)| {
            let (message_id, text) = (id.to_string(), text.map(str::to_owned));
            QueuedMessage { message_id, text }
        };
        let waiting = [
            (900, Some("gone")),
            (1_001, Some("7: 1001")),
            (1_002, Some("as it was")),
            (1_003, None),
            (1_299, Some("as it was, too")),
            (1_400, None),
        ];
        *plane.waiting.lock().unwrap() = waiting.map(waits).into();
        plane.bind("7");
        sink.put(Event::Gap { why: GapCause::Overflow, lost: 1 });
        until("each is looked at", || alone.load(Ordering::Relaxed) >= 6).await;
        let of = |what: &str| -> BTreeSet<String> {
            let all = plane.asked.lock().unwrap().clone();
            all.iter().filter_map(|it| it.strip_prefix(what)).map(str::to_owned).collect()
        };
        let want = |of: &[&str]| -> BTreeSet<String> { of.iter().map(|it| (*it).to_owned()).collect() };
        let want = (want(edited), want(deleted));
        until("it is found", || (of("edited 7 "), of("deleted 7 ")) == want).await;
    }
}

#[path = "workers_tests.rs"]
mod workers;
