//! The loop over events while the control plane is slow, cannot be read, or changes at that moment.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::super::Discord;
use super::super::door::{Door, People};
use super::super::settings::Settings;
use super::*;
use crate::channel::{
    Amended, AnswerShown, Change, Changed, ConversationRef, Inbound, Kept, Offered, Place, Placed, Reply,
    Said, Suggest, Suggestion,
};
use acp_discord::core::base::Base;
use acp_discord::core::closes;
use acp_discord::core::event::{Gap, Given, Interaction, Member, User, Value};
use acp_discord::session::{self, Sink};
use acp_shared::redact::Secret;
use std::sync::Mutex;

const ANN: Snowflake = Snowflake(5);
const BOT: Snowflake = Snowflake(2);

type Meanwhile = Box<dyn FnOnce(&Plane) + Send>;

/// A control plane that says what it is told to say, and remembers what it was asked.
#[derive(Default)]
struct Plane {
    bound: Mutex<Vec<Place>>,
    /// Whether it can be read.
    is_away: Mutex<bool>,
    changes: watch::Sender<u64>,
    /// What happens while the next list is read, after what is bound was looked at.
    meanwhile: Mutex<Option<Meanwhile>>,
    asked: Mutex<Vec<String>>,
    offered: Mutex<Vec<String>>,
}

fn at(id: &str) -> ConversationRef {
    ConversationRef {
        channel: "discord".to_owned(),
        account_id: "main".to_owned(),
        conversation_id: id.to_owned(),
        parent_conversation_id: None,
    }
}

impl Plane {
    fn away(&self, is_away: bool) {
        *self.is_away.lock().unwrap() = is_away;
    }

    /// Binds a conversation, as the store does: first it is so, then it is told.
    fn bind(&self, id: &str) {
        let place = Place { conversation: at(id), bound_at_ms: 1, backfilled_through: None };
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

impl Inbox for Arc<Plane> {
    fn offer(&self, message: Inbound) -> Reply<'_, Offered> {
        self.offered.lock().unwrap().push(message.text);
        Box::pin(async { Offered::Taken(Said::default()) })
    }
    fn keep_first(&self, _: Inbound, _: Duration) -> Reply<'_, Kept> {
        Box::pin(async { Kept::Not { why: "no command is brought here".to_owned() } })
    }
    fn withdraw(&self, _: Inbound) -> Reply<'_, bool> {
        Box::pin(async { false })
    }
    fn answered(&self, _: ConversationRef, _: String, _: AnswerShown) -> Reply<'_, ()> {
        Box::pin(std::future::ready(()))
    }
    fn edited(&self, _: ConversationRef, _: String, _: String) -> Reply<'_, Amended> {
        Box::pin(async { Amended::NotOurs })
    }
    fn deleted(&self, _: ConversationRef, _: String) -> Reply<'_, Amended> {
        Box::pin(async { Amended::NotOurs })
    }
    fn changed(&self, at: ConversationRef, change: Change) -> Reply<'_, Changed> {
        self.ask(&format!("changed {} {change:?}", at.conversation_id));
        Box::pin(async { Changed::Nothing })
    }
    fn bound(&self, _: String, _: String) -> Reply<'_, Option<Vec<Place>>> {
        let answer = self.ask("bound").then(|| self.bound.lock().unwrap().clone());
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().take() {
            meanwhile(self);
        }
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            answer
        })
    }
    fn place(&self, at: ConversationRef) -> Reply<'_, Placed> {
        let is_there = self.ask(&format!("place {}", at.conversation_id));
        let found = self.bound.lock().unwrap().iter().find(|place| place.conversation == at).cloned();
        let placed = if is_there { found.map_or(Placed::Nowhere, Placed::At) } else { Placed::Unknown };
        Box::pin(async { placed })
    }
    fn bindings_changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
    fn caught_up(&self, _: ConversationRef, _: String) -> Reply<'_, bool> {
        Box::pin(async { true })
    }
    fn suggest(&self, _: Suggest, _: ConversationRef, _: String, _: String) -> Reply<'_, Vec<Suggestion>> {
        self.ask("suggest");
        Box::pin(async { Vec::new() })
    }
}

/// A Discord on which nothing was ever said.
async fn quiet() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = |uri: axum::http::Uri| async move {
        let is_page = uri.path().ends_with("/messages");
        let channel = serde_json::json!({"id": "7", "type": 0, "guild_id": "9"});
        axum::Json(if is_page { serde_json::json!([]) } else { channel })
    };
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    format!("http://{address}")
}

fn settings(token: &str, base: &str) -> Settings {
    Settings {
        token: Secret::new(token.to_owned()),
        base: Base::parse(base).unwrap(),
        door: Door { allowed: People { users: [ANN].into(), roles: BTreeSet::new() }, ..Door::default() },
        configured: BTreeSet::new(),
        personas: false,
    }
}

/// Somebody who listens to events that a test puts in, from the first of a session on.
async fn ground(is_away: bool) -> (Arc<Plane>, Sink, tokio::task::JoinHandle<()>) {
    let discord = Discord::new("main".to_owned(), settings("token", &quiet().await)).unwrap();
    let (sink, events) = session::pipe(4_096);
    let line = Line::of(discord.inner.settings().token.clone(), events);
    let plane = Arc::new(Plane::default());
    plane.away(is_away);
    let inbox: Arc<dyn Inbox> = Arc::new(Arc::clone(&plane));
    let ear = Ear::new(discord.inner, inbox);
    sink.put(ready());
    (plane, sink, tokio::spawn(ear.hear(line)))
}

fn user(id: Snowflake) -> User {
    User { id, name: "ann".to_owned(), shown: None, bot: false }
}

fn ready() -> Event {
    let session = "s".to_owned();
    Event::Ready(Ready { me: user(BOT), application: BOT, session, shard: (0, 1), guilds: vec![] })
}

fn said(id: u64, channel: u64, text: &str) -> Event {
    Event::Message(Box::new(Message {
        id: Snowflake(id),
        channel: Snowflake(channel),
        guild: Some(Snowflake(9)),
        author: Member { user: user(ANN), roles: vec![], permissions: None },
        webhook: None,
        application: None,
        kind: 0,
        text: text.to_owned(),
        attachments: vec![],
        mentions: vec![],
        mention_roles: vec![],
        reference: None,
        nonce: None,
        buttons: vec![],
        flags: 0,
    }))
}

/// Somebody types `/acp status` and wants suggestions of sessions.
fn typing() -> Event {
    let session = Given { name: "session".to_owned(), value: Value::Text(String::new()), focused: true };
    let status = Given { name: "status".to_owned(), value: Value::Sub(vec![session]), focused: false };
    let at = Interaction {
        id: Snowflake(50),
        application: BOT,
        token: Secret::new("once".to_owned()),
        guild: Some(Snowflake(9)),
        channel: Snowflake(99),
        parent: None,
        is_thread: None,
        who: Member { user: user(ANN), roles: vec![], permissions: None },
        app_permissions: None,
        locale: None,
        attachment_limit: None,
    };
    Event::Autocomplete(Box::new(Command { at, name: "acp".to_owned(), options: vec![status] }))
}

async fn until(what: &str, is: impl Fn() -> bool) {
    for _ in 0..1_500 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not in time: {what}");
}

/// What is said where nothing is bound costs no look at what is bound, however much it is.
#[tokio::test]
async fn what_is_said_where_nothing_is_bound_asks_nobody() {
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
    // Until it was known what is bound, some of it may have been asked for in its lane.
    assert!(plane.asked("bound") == 1 && plane.asked("place 10") <= 7, "{:?}", plane.asked.lock());
}

/// A binding that is made at any moment is heard: before, while and after it is looked what is bound.
#[tokio::test]
async fn a_binding_that_is_made_at_that_moment_is_not_missed() {
    let (plane, sink, _ear) = ground(false).await;
    until("it is known what is bound", || plane.asked("bound") > 0).await;
    plane.bind("7");
    sink.put(said(1_001, 7, "one"));
    until("it is heard", || plane.offered() == ["one"]).await;
    // Another one is bound while it is being looked, after what is bound was read.
    *plane.meanwhile.lock().unwrap() = Some(Box::new(|plane: &Plane| plane.bind("9")));
    plane.bind("8");
    // What was said there before anybody knew is found: what is new is read from its beginning on.
    until("both are read", || plane.asked("place 8") > 0 && plane.asked("place 9") > 0).await;
    sink.put(said(1_002, 9, "two"));
    until("it is heard", || plane.offered() == ["one", "two"]).await;
}

/// While the control plane cannot be read, what can be done without it is done, what cannot waits, and nothing is lost.
#[tokio::test]
async fn a_control_plane_that_cannot_be_read_holds_up_no_event() {
    let (plane, sink, _ear) = ground(true).await;
    plane.bind("7");
    sink.put(said(1_001, 7, "one"));
    sink.put(said(1_002, 7, "two"));
    sink.put(said(1_003, 8, "chatter"));
    sink.put(Event::Gap { why: Gap::Overflow, lost: 1 });
    sink.put(Event::ChannelDeleted(Snowflake(7)));
    // Events are taken in their order: this one behind all of these.
    sink.put(typing());
    until("somebody is served who needs nothing of it", || plane.asked("suggest") > 0).await;
    until("what may be ours waits in its lane", || plane.asked("place 7") > 1).await;
    assert_eq!((plane.offered().len(), plane.asked("changed")), (0, 0));
    plane.away(false);
    until("what waited is heard", || plane.offered() == ["one", "two"]).await;
    until("what ended is done", || plane.asked("changed 7 Gone") > 0).await;
}

/// What waits in the queue of a connection is told by nobody again, where the conversation is bound to nothing: it is
/// taken before another connection takes its place, in its order.
#[tokio::test]
async fn d07_what_an_old_connection_brought_is_taken_before_the_next_one_begins() {
    for has_failed in [false, true] {
        // Nobody is there.
        let nobody = "http://127.0.0.1:1";
        let discord = Discord::new("main".to_owned(), settings("old", nobody)).unwrap();
        let inner = Arc::clone(&discord.inner);
        inner.known.is_me(Snowflake(1), BOT);
        inner.known.is_at(Snowflake(3), None, Some(Snowflake(9)));
        let (sink, events) = session::pipe(8);
        let line = Line::of(Secret::new("old".to_owned()), events);
        let texts = ["/acp status", "/acp help", "/agents"];
        for (id, text) in (10..).zip(texts) {
            sink.put(said(id, 3, text));
        }
        if has_failed {
            sink.put(Event::Failed(closes::failure(4004).unwrap()));
        }
        drop(sink);
        discord.renew(settings("new", nobody)).unwrap();
        let plane = Arc::new(Plane::default());
        let inbox: Arc<dyn Inbox> = Arc::new(Arc::clone(&plane));
        let hearing = tokio::spawn(Ear::new(Arc::clone(&inner), inbox).hear(line));
        until("everything is taken", || plane.offered().len() >= texts.len()).await;
        assert_eq!(plane.offered(), texts, "{has_failed}");
        until("the next one begins", || !inner.pulse.has_failed()).await;
        hearing.abort();
    }
}
