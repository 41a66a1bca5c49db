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
use acp_discord::core::event::{GapCause, Member, ShardId, Thread, User, Value};
use acp_discord::websocket::{self, EventSender};
use acp_shared::redact::Secret;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const ANN: Snowflake = Snowflake(5);
const BOT: Snowflake = Snowflake(2);

type DuringRead = Box<dyn FnOnce(&FakeControlPlane) + Send>;

#[derive(Default)]
struct FakeControlPlane {
    bound: Mutex<Vec<BoundConversation>>,
    is_unavailable: Mutex<bool>,
    changes: watch::Sender<u64>,
    /// Runs once during the next read of the bindings, after the snapshot was taken.
    during_read: Mutex<Option<DuringRead>>,
    calls: Mutex<Vec<String>>,
    /// Messages whose turn has not begun, with their text.
    waiting: Mutex<Vec<QueuedMessage>>,
    offered: Mutex<Vec<String>>,
    /// Backfill mark of projects.
    project_mark: Mutex<Option<u64>>,
}

fn conversation(id: &str) -> ConversationRef {
    ConversationRef::new("discord", "main", id)
}

impl FakeControlPlane {
    fn set_unavailable(&self, is_unavailable: bool) {
        *self.is_unavailable.lock().unwrap() = is_unavailable;
    }

    /// Binds a conversation like the store: first the row, then the counter.
    fn bind(&self, id: &str) {
        let binding =
            BoundConversation { conversation: conversation(id), bound_at_ms: 1, backfilled_through: None };
        self.bound.lock().unwrap().push(binding);
        self.changes.send_modify(|count| *count += 1);
    }

    fn record_call(&self, description: &str) -> bool {
        self.calls.lock().unwrap().push(description.to_owned());
        !*self.is_unavailable.lock().unwrap()
    }

    fn count(&self, description: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| call.starts_with(description)).count()
    }

    fn offered(&self) -> Vec<String> {
        self.offered.lock().unwrap().clone()
    }
}

impl InboundPort for Arc<FakeControlPlane> {
    fn offer(&self, message: Inbound) -> BoxFuture<'_, IntakeOutcome> {
        self.offered.lock().unwrap().push(message.text);
        Box::pin(async { IntakeOutcome::Accepted(CallerReply::default()) })
    }
    fn reserve(&self, _: Inbound, _: Duration) -> BoxFuture<'_, ReserveOutcome> {
        Box::pin(async { ReserveOutcome::NotReserved { why: "commands are not tested here".to_owned() } })
    }
    fn pending_form(&self, _: String) -> BoxFuture<'_, Option<acp_core::elicitation::Elicitation>> {
        Box::pin(std::future::ready(None))
    }
    fn withdraw(&self, _: Inbound) -> BoxFuture<'_, bool> {
        Box::pin(async { false })
    }
    fn mark_replied(&self, _: Inbound, _: Option<PostedReply>) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
    fn on_message_edited(
        &self,
        conversation: ConversationRef,
        id: String,
        text: String,
    ) -> BoxFuture<'_, MessageChangeOutcome> {
        self.record_call(&format!("edited {} {id} {text}", conversation.conversation_id));
        Box::pin(async { MessageChangeOutcome::Done })
    }
    fn on_message_deleted(
        &self,
        conversation: ConversationRef,
        id: String,
    ) -> BoxFuture<'_, MessageChangeOutcome> {
        self.record_call(&format!("deleted {} {id}", conversation.conversation_id));
        Box::pin(async { MessageChangeOutcome::Done })
    }
    fn queued_messages(&self, conversation: ConversationRef) -> BoxFuture<'_, Option<Vec<QueuedMessage>>> {
        let is_available = self.record_call(&format!("queued {}", conversation.conversation_id));
        let waiting = self.waiting.lock().unwrap().clone();
        Box::pin(async move { is_available.then_some(waiting) })
    }
    fn on_conversation_event(
        &self,
        conversation: ConversationRef,
        change: ConversationEvent,
    ) -> BoxFuture<'_, ConversationEventOutcome> {
        self.record_call(&format!("changed {} {change:?}", conversation.conversation_id));
        Box::pin(async { ConversationEventOutcome::Nothing })
    }
    fn bound_conversations(&self, _: String, _: String) -> BoxFuture<'_, Option<Vec<BoundConversation>>> {
        let answer = self.record_call("bound").then(|| self.bound.lock().unwrap().clone());
        if let Some(during_read) = self.during_read.lock().unwrap().take() {
            during_read(self);
        }
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            answer
        })
    }
    fn lookup_binding(&self, conversation: ConversationRef) -> BoxFuture<'_, BindingLookup> {
        let is_available = self.record_call(&format!("lookup {}", conversation.conversation_id));
        let found =
            self.bound.lock().unwrap().iter().find(|binding| binding.conversation == conversation).cloned();
        let lookup = if is_available {
            found.map_or(BindingLookup::Unbound, BindingLookup::Bound)
        } else {
            BindingLookup::Unknown
        };
        Box::pin(async { lookup })
    }
    fn project_mark(
        &self,
        _: ConversationRef,
        first: Option<String>,
    ) -> BoxFuture<'_, Result<Option<String>, String>> {
        let mut mark = self.project_mark.lock().unwrap();
        *mark = mark.or_else(|| first?.parse().ok());
        let mark = mark.map(|mark| mark.to_string());
        Box::pin(async { Ok(mark) })
    }
    fn binding_change_counter(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
    fn set_backfill_mark(&self, conversation: ConversationRef, through: String) -> BoxFuture<'_, bool> {
        self.record_call(&format!("read {} {through}", conversation.conversation_id));
        Box::pin(async { true })
    }
    fn suggest(
        &self,
        _: SuggestionKind,
        _: ConversationRef,
        _: String,
        _: String,
    ) -> BoxFuture<'_, Vec<Suggestion>> {
        self.record_call("suggest");
        Box::pin(async { Vec::new() })
    }
}

struct FakeDiscord {
    /// Response to a request for any conversation; `None`: 503.
    channel_response: watch::Receiver<Option<Json>>,
    /// Ids of the messages in conversation 7; the text of each is "7: " and the id.
    message_ids: std::ops::Range<u64>,
    /// True if the bot may not read messages; pages are then empty.
    is_unreadable: bool,
    message_requests: Arc<AtomicUsize>,
    behaviour: Arc<Behaviour>,
}

/// Changeable behaviour of the fake, and a log of further requests.
#[derive(Default)]
struct Behaviour {
    /// Roles by member; other users are not members.
    roles: Mutex<BTreeMap<u64, Vec<u64>>>,
    /// First message id from which on pages are refused, and the HTTP status.
    page_refusal: Mutex<Option<(u64, u16)>>,
    channel_requests: AtomicUsize,
}

impl FakeDiscord {
    /// Creates a fake without messages that always gives this response for conversations.
    fn with_channel(channel_response: Option<Json>) -> Self {
        Self::without_messages(watch::channel(channel_response).1)
    }

    fn without_messages(channel_response: watch::Receiver<Option<Json>>) -> Self {
        Self {
            channel_response,
            message_ids: 0..0,
            is_unreadable: false,
            message_requests: Arc::default(),
            behaviour: Arc::default(),
        }
    }

    fn answer(&self, uri: &axum::http::Uri) -> (axum::http::StatusCode, axum::Json<Json>) {
        use axum::http::StatusCode;
        let refuse = |status, code: u32| (status, axum::Json(json!({"code": code, "message": "no"})));
        let id = uri.path().split("/messages/").nth(1).and_then(|id| id.parse().ok());
        self.message_requests.fetch_add(usize::from(id.is_some()), Ordering::Relaxed);
        if let Some(user) = uri.path().split("/members/").nth(1).and_then(|id| id.parse().ok()) {
            return match self.behaviour.roles.lock().unwrap().get(&user) {
                Some(roles) => {
                    let roles: Vec<String> = roles.iter().map(u64::to_string).collect();
                    let user = json!({"id": user.to_string(), "username": "member"});
                    (StatusCode::OK, axum::Json(json!({"user": user, "roles": roles})))
                }
                None => refuse(StatusCode::NOT_FOUND, 10_007),
            };
        }
        let is_page = uri.path().ends_with("/messages");
        let after = after(uri);
        if is_page
            && uri.path().contains("/channels/7/")
            && let Some((_, status)) =
                self.behaviour.page_refusal.lock().unwrap().filter(|(from, _)| after >= *from)
        {
            return refuse(StatusCode::from_u16(status).unwrap(), if status == 403 { 50_001 } else { 0 });
        }
        self.behaviour.channel_requests.fetch_add(usize::from(id.is_none() && !is_page), Ordering::Relaxed);
        match (id, self.channel_response.borrow().clone()) {
            (Some(_), _) if self.is_unreadable => refuse(StatusCode::FORBIDDEN, 50_013),
            (Some(id), _) if self.message_ids.contains(&id) => (StatusCode::OK, axum::Json(message_json(id))),
            (Some(_), _) => refuse(StatusCode::NOT_FOUND, 10_008),
            (None, _) if is_page => (StatusCode::OK, axum::Json(self.page(uri))),
            (None, Some(mut channel)) => {
                channel["last_message_id"] = json!(self.message_ids.clone().last().map(|id| id.to_string()));
                (StatusCode::OK, axum::Json(channel))
            }
            (None, None) => refuse(StatusCode::SERVICE_UNAVAILABLE, 0),
        }
    }

    /// Returns a page of messages after an id; newest first, like Discord.
    fn page(&self, uri: &axum::http::Uri) -> Json {
        let after = after(uri);
        let is_readable_channel = uri.path().contains("/channels/7/") && !self.is_unreadable;
        let page = self.message_ids.clone().filter(|id| is_readable_channel && *id > after).take(100);
        let mut page: Vec<Json> = page.map(message_json).collect();
        page.reverse();
        Json::Array(page)
    }
}

fn after(uri: &axum::http::Uri) -> u64 {
    let after = uri.query().and_then(|query| query.split("after=").nth(1)?.split('&').next());
    after.and_then(|after| after.parse().ok()).unwrap_or(0)
}

fn message_json(id: u64) -> Json {
    let author = json!({"id": ANN.to_string(), "username": "ann"});
    json!({"id": id.to_string(), "channel_id": "7", "content": format!("7: {id}"), "author": author})
}

async fn serve(fake: FakeDiscord) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let fake = Arc::new(fake);
    let answer = move |uri: axum::http::Uri| std::future::ready(fake.answer(&uri));
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    format!("http://{address}")
}

fn channel() -> Json {
    json!({"id": "7", "type": 0, "guild_id": "9"})
}

/// Thread without messages, archived by a person or not archived.
fn thread(archived: bool) -> Json {
    let id = Snowflake::from_ms(clock().wall_ms()).to_string();
    let state = json!({"archived": archived, "auto_archive_duration": 60, "locked": false});
    json!({"id": id, "type": 11, "guild_id": "9", "parent_id": "3", "thread_metadata": state})
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
        projects: BTreeMap::new(),
        require_mention: false,
        personas: false,
    }
}

async fn start(is_unavailable: bool) -> (Arc<FakeControlPlane>, EventSender, tokio::task::JoinHandle<()>) {
    let (control_plane, inbound, event_loop, _) =
        start_with(is_unavailable, FakeDiscord::with_channel(Some(channel())), &[]).await;
    (control_plane, inbound, event_loop)
}

/// The same with this fake Discord and these statically bound conversations.
async fn start_with(
    is_unavailable: bool,
    fake: FakeDiscord,
    static_bindings: &[u64],
) -> (Arc<FakeControlPlane>, EventSender, tokio::task::JoinHandle<()>, Arc<Inner>) {
    let static_bindings = static_bindings.iter().copied().map(Snowflake).collect();
    let settings = AccountSettings { static_bindings, ..settings("token", &serve(fake).await) };
    start_as(is_unavailable, settings)
}

/// The same with these settings.
fn start_as(
    is_unavailable: bool,
    settings: AccountSettings,
) -> (Arc<FakeControlPlane>, EventSender, tokio::task::JoinHandle<()>, Arc<Inner>) {
    // Advances with the clock of the workers.
    let clock = acp_shared::clock::Clock::at(clock().wall_ms());
    let discord = Discord::new("main".to_owned(), settings, clock, None).unwrap();
    let inner = Arc::clone(&discord.inner);
    let (inbound, events) = websocket::event_channel(4_096);
    let connection = EventConnection::of(&discord.inner.settings(), events);
    let control_plane = Arc::new(FakeControlPlane::default());
    control_plane.set_unavailable(is_unavailable);
    let inbox: Arc<dyn InboundPort> = Arc::new(Arc::clone(&control_plane));
    let event_loop = EventLoop::new(discord.inner, inbox);
    inbound.put(ready());
    (control_plane, inbound, tokio::spawn(event_loop.run(connection)), inner)
}

fn user(id: Snowflake) -> User {
    User { id, name: "ann".to_owned(), display_name: None, bot: false }
}

fn ready() -> Event {
    let session = "s".to_owned();
    Event::Ready(ReadyEvent {
        me: user(BOT),
        application: BOT,
        session,
        shard: ShardId::ONLY,
        guilds: vec![],
    })
}

fn message_event(id: u64, channel: u64, text: &str) -> Event {
    message_event_by(ANN, id, channel, text)
}

fn message_event_by(who: Snowflake, id: u64, channel: u64, text: &str) -> Event {
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

fn autocomplete_event() -> Event {
    let session = given("session", Value::Text(String::new()), true);
    let status = given("status", Value::Sub(vec![session]), false);
    Event::Autocomplete(Box::new(command("acp", vec![status])))
}

async fn until(description: &str, condition: impl Fn() -> bool) {
    for _ in 0..1_500 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("timed out: {description}");
}

#[tokio::test]
async fn unbound_messages_cause_no_binding_reads() {
    let (control_plane, inbound, _task) = start(false).await;
    inbound.put(message_event(1_000, 99, "/acp sessions"));
    until("bindings read", || control_plane.count("bound") > 0 && !control_plane.offered().is_empty()).await;
    let last = 3_000;
    for id in 1_001..last {
        inbound.put(message_event(id, 100 + id % 7, "chatter"));
    }
    inbound.put(message_event(last, 99, "/acp status"));
    until("all messages offered", || control_plane.offered().len() == 2).await;
    assert_eq!(control_plane.offered(), ["/acp sessions", "/acp status"]);
    // Before the first snapshot some of the conversations may have been queried in their workers.
    assert!(
        control_plane.count("bound") == 1 && control_plane.count("lookup 10") <= 7,
        "{:?}",
        control_plane.calls.lock()
    );
}

/// A binding made at any moment takes effect: before, during and after a read of the bindings.
#[tokio::test]
async fn concurrent_binding_is_not_missed() {
    let (control_plane, inbound, _task) = start(false).await;
    until("bindings read", || control_plane.count("bound") > 0).await;
    control_plane.bind("7");
    inbound.put(message_event(1_001, 7, "one"));
    until("message offered", || control_plane.offered() == ["one"]).await;
    // Conversation 9 is bound during the read, after the snapshot.
    *control_plane.during_read.lock().unwrap() =
        Some(Box::new(|control_plane: &FakeControlPlane| control_plane.bind("9")));
    control_plane.bind("8");
    // Earlier messages are found: a new binding is read from its beginning.
    until("looked up", || control_plane.count("lookup 8") > 0 && control_plane.count("lookup 9") > 0).await;
    inbound.put(message_event(1_002, 9, "two"));
    until("message offered", || control_plane.offered() == ["one", "two"]).await;
}

/// While the control plane is unreadable, independent work proceeds, other work waits, and nothing is lost.
#[tokio::test]
async fn unreadable_control_plane_delays_no_event() {
    let (control_plane, inbound, _task) = start(true).await;
    control_plane.bind("7");
    inbound.put(message_event(1_001, 7, "one"));
    inbound.put(message_event(1_002, 7, "two"));
    inbound.put(message_event(1_003, 8, "chatter"));
    inbound.put(Event::Gap { why: GapCause::Overflow, lost: 1 });
    inbound.put(Event::ChannelDeleted(Snowflake(7)));
    // Events are handled in order: this one after all others above.
    inbound.put(autocomplete_event());
    until("suggestion served", || control_plane.count("suggest") > 0).await;
    until("message waits in its queue", || control_plane.count("lookup 7") > 1).await;
    assert_eq!((control_plane.offered().len(), control_plane.count("changed")), (0, 0));
    control_plane.set_unavailable(false);
    until("queued messages offered", || control_plane.offered() == ["one", "two"]).await;
    until("deletion handled", || control_plane.count("changed 7 Gone") > 0).await;
}

/// Events in the queue of an old connection are handled in order before the next connection begins: Discord
/// does not repeat messages in unbound conversations.
#[tokio::test]
async fn events_of_old_connection_are_handled_before_next_one() {
    for has_failed in [false, true] {
        // No server listens at this address.
        let unreachable = "http://127.0.0.1:1";
        let discord = Discord::new("main".to_owned(), settings("old", unreachable), clock(), None).unwrap();
        let inner = Arc::clone(&discord.inner);
        inner.cache.set_identity(Snowflake(1), BOT);
        inner.cache.set_location(Snowflake(3), None, Some(Snowflake(9)));
        let (inbound, events) = websocket::event_channel(8);
        let connection = EventConnection::of(&inner.settings(), events);
        let texts = ["/acp status", "/acp help", "/agents"];
        for (id, text) in (10..).zip(texts) {
            inbound.put(message_event(id, 3, text));
        }
        if has_failed {
            inbound.put(Event::Failed(close_codes::fatal_error(4004).unwrap()));
        }
        drop(inbound);
        discord.apply_settings(settings("new", unreachable)).unwrap();
        let control_plane = Arc::new(FakeControlPlane::default());
        let inbox: Arc<dyn InboundPort> = Arc::new(Arc::clone(&control_plane));
        let running = tokio::spawn(EventLoop::new(Arc::clone(&inner), inbox).run(connection));
        until("all messages offered", || control_plane.offered().len() >= texts.len()).await;
        assert_eq!(control_plane.offered(), texts, "{has_failed}");
        until("next connection begins", || !inner.connection_health.has_failed()).await;
        running.abort();
    }
}

/// A session start with failing archive checks does not delay messages either.
#[tokio::test]
async fn session_start_with_failing_checks_delays_no_message() {
    let (control_plane, inbound, _task, inner) =
        start_with(false, FakeDiscord::with_channel(None), &[]).await;
    inner.cache.set_location(Snowflake(7), Some(Snowflake(3)), Some(Snowflake(9)));
    control_plane.bind("7");
    inbound.put(ready());
    inbound.put(message_event(1_001, 7, "one"));
    until("message offered", || control_plane.offered() == ["one"]).await;
    assert!(!inner.cache.has_archive_state(Snowflake(7)));
}

/// Messages that did not fit into the queue while the control plane was unreadable are backfilled in order,
/// also without a mark in statically bound conversations and in threads of statically bound channels.
#[tokio::test]
async fn overflowed_messages_of_static_bindings_are_backfilled() {
    let ids = 1_001..1_301_u64;
    for (static_bindings, channel_response, chatter) in
        [(7, channel(), 0), (3, thread(false), 0), (3, thread(false), 4_500)]
    {
        let fake =
            FakeDiscord { message_ids: ids.clone(), ..FakeDiscord::with_channel(Some(channel_response)) };
        let (control_plane, inbound, _task, _) = start_with(true, fake, &[static_bindings]).await;
        let crowd = (0..chatter).map(|number| message_event(2_000 + number, 100 + number % 20, "chatter"));
        let events: Vec<Event> =
            crowd.chain(ids.clone().map(|id| message_event(id, 7, &format!("7: {id}")))).collect();
        for (number, events) in (1..).zip(events.chunks(1_000)) {
            for event in events {
                inbound.put(event.clone());
            }
            inbound.put(autocomplete_event());
            until("all events received", || control_plane.count("suggest") == number).await;
        }
        control_plane.set_unavailable(false);
        let want: Vec<String> = ids.clone().map(|id| format!("7: {id}")).collect();
        let offered = || {
            let mut seen = BTreeSet::new();
            // The fake puts all conversations below one channel, the unrelated ones too.
            let is_first_of_seven = |text: &String| text.starts_with("7: ") && seen.insert(text.clone());
            control_plane.offered().into_iter().filter(is_first_of_seven).collect::<Vec<_>>()
        };
        until("all messages offered", || offered().len() >= want.len()).await;
        assert_eq!(offered(), want, "{static_bindings} {chatter}");
    }
}

/// Messages whose turn has not begun are fetched once after a gap. Without permission to read none of them
/// counts as deleted.
#[tokio::test]
async fn missed_edits_and_deletions_are_found() {
    for (is_unreadable, edited, deleted) in
        [(false, &["1002 7: 1002", "1299 7: 1299"][..], &["1400", "900"][..]), (true, &[], &[])]
    {
        let fake = FakeDiscord {
            message_ids: 1_001..1_301,
            is_unreadable,
            ..FakeDiscord::with_channel(Some(channel()))
        };
        let message_requests = Arc::clone(&fake.message_requests);
        let (control_plane, inbound, _task, _) = start_with(false, fake, &[]).await;
        let queued = |(id, text): (u64, Option<&str>)| {
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
        *control_plane.waiting.lock().unwrap() = waiting.map(queued).into();
        control_plane.bind("7");
        inbound.put(Event::Gap { why: GapCause::Overflow, lost: 1 });
        until("each message requested", || message_requests.load(Ordering::Relaxed) >= 6).await;
        let of = |description: &str| -> BTreeSet<String> {
            let all = control_plane.calls.lock().unwrap().clone();
            all.iter().filter_map(|it| it.strip_prefix(description)).map(str::to_owned).collect()
        };
        let want = |of: &[&str]| -> BTreeSet<String> { of.iter().map(|it| (*it).to_owned()).collect() };
        let want = (want(edited), want(deleted));
        until("changes found", || (of("edited 7 "), of("deleted 7 ")) == want).await;
    }
}

#[path = "workers_tests.rs"]
mod workers;
