//! Console conversations over a real socket, with the real store, inbox and viewers.

use super::*;
use crate::api::console::router as console_router;
use crate::api::console::{
    ConsoleApi, ConsoleMessageBody, ConsoleMessageResponse, ConversationView, MessagesPage,
};
use crate::channel::console::Console;
use crate::channel::{ChannelAdapter, Channels, EditOutcome, Outgoing, SendOutcome};
use crate::conversation::inbound::InboundService;
use crate::tests::{binding_row, conversation, open, session_row, spawn};
use acp_core::render::PartKind;
use acp_store::Store;
use acp_store::console::{NewConsoleMessage, insert};
use acp_store::inbox::Outcome;
use tempfile::TempDir;

/// Server with a console whose conversation `bound` belongs to the fake service's session.
struct ConsoleFixture {
    dir: TempDir,
    store: Store,
    fake: Arc<Fake>,
    server: Server,
}

impl ConsoleFixture {
    async fn new() -> Self {
        let (dir, store) = open();
        let fake = Fake::new();
        let binding = binding_row(&fake.key, &conversation("bound"));
        spawn(&store, session_row(&fake.key), Some(binding)).await;
        let server = Self::serve(dir.path(), &fake, &store);
        Self { dir, store, fake, server }
    }

    fn serve(dir: &Path, fake: &Arc<Fake>, store: &Store) -> Server {
        let ending = CancellationToken::new();
        let service = Arc::clone(fake) as Arc<dyn Service>;
        let api = Api::new(Arc::clone(&service), LIMITS, ending.clone());
        let channels = Channels::new([Arc::new(Console::new(store.clone())) as Arc<dyn ChannelAdapter>]);
        let console = ConsoleApi {
            inlet: InboundService::new(store.clone(), channels, service, crate::metrics::Metrics::default()),
            store: store.clone(),
        };
        let routes = router(api.clone()).merge(console_router(api, console));
        let bound = ApiListener::bind(&dir.join(SOCKET)).unwrap();
        let serving = tokio::spawn(bound.serve(routes, LIMITS, ending.clone()));
        Server { ending, serving }
    }

    fn client(&self) -> GatewayClient {
        GatewayClient::new(self.dir.path())
    }

    async fn send(&self, to: &str, text: &str, id: &str) -> Result<ConsoleMessageResponse, Failure> {
        let body =
            ConsoleMessageBody { text: text.to_owned(), message_id: Some(id.to_owned()), author: None };
        self.client().post(&messages_of(to), &body, &IdempotencyKey::mint()).await
    }

    async fn page(&self, of: &str, query: &str) -> MessagesPage {
        self.client().get(&format!("{}{query}", messages_of(of))).await.unwrap()
    }

    async fn texts_of(&self, of: &str) -> Vec<(String, String)> {
        self.page(of, "").await.messages.into_iter().map(|message| (message.kind, message.text)).collect()
    }

    /// Adds a message to a conversation, as delivery does.
    async fn insert_message(&self, into: &str, text: &str) {
        let row = NewConsoleMessage {
            conversation_id: into.to_owned(),
            author: String::new(),
            text: text.to_owned(),
            nonce: format!("{into} {text}"),
            kind: "notice",
            session_key: None,
            run_id: None,
        };
        self.store.write("put", move |tx| insert(tx, &row)).await.unwrap();
    }

    async fn end(self) {
        self.server.end().await;
        self.store.close().await;
    }
}

fn messages_of(conversation: &str) -> String {
    format!("/v1/console/conversations/{conversation}/messages")
}

struct Viewer {
    stream: UnixStream,
    seen: String,
}

impl Viewer {
    async fn open(dir: &Path, of: &str, query: &str, headers: &str) -> Self {
        let path = format!("{}{query}", messages_of(of));
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{STREAM}{headers}\r\n");
        Self { stream: send_request(dir, request.as_bytes()).await, seen: String::new() }
    }

    async fn read_more(&mut self) -> bool {
        let mut piece = [0; 4_096];
        let read = tokio::time::timeout(DEADLINE, self.stream.read(&mut piece)).await.unwrap().unwrap();
        self.seen.push_str(&String::from_utf8_lossy(&piece[..read]));
        read > 0
    }

    /// Returns the texts of all complete events, each with its id.
    fn events(&self) -> Vec<(u64, String)> {
        let whole = self.seen.rfind("\n\n").map_or("", |end| &self.seen[..end]);
        let mut id = 0;
        let mut found = Vec::new();
        for line in whole.lines() {
            if let Some(number) = line.strip_prefix("id: ") {
                id = number.parse().unwrap();
            } else if let Some(data) = line.strip_prefix("data: ") {
                let message: Value = serde_json::from_str(data).unwrap();
                assert_eq!(message["revision"], id, "the cursor is the message's own revision");
                found.push((id, message["text"].as_str().unwrap().to_owned()));
            }
        }
        found
    }

    async fn read_until(&mut self, count: usize) -> Vec<(u64, String)> {
        while self.events().len() < count {
            assert!(self.read_more().await, "ended early: {}", self.seen);
        }
        self.events()
    }
}

fn texts(events: &[(u64, String)]) -> Vec<&str> {
    events.iter().map(|(_, text)| text.as_str()).collect()
}

#[tokio::test]
async fn repeated_message_id_is_delivered_once() {
    let fixture = ConsoleFixture::new().await;
    let response = fixture.send("bound", "hello", "m1").await.unwrap();
    assert_eq!(response.message_id, "m1");
    let Outcome::Prompted { session_key, run_id, .. } = &response.outcome else { panic!("{response:?}") };
    assert_eq!((session_key, run_id), (&fixture.fake.key, &fixture.fake.run));
    assert_eq!(fixture.send("bound", "hello", "m1").await.unwrap(), response);
    let other = fixture.send("bound", "something else", "m1").await.unwrap_err();
    assert_eq!(other.code, Code::IdempotencyConflict);
    assert_eq!(fixture.fake.calls.lock().unwrap().len(), 1, "{:?}", fixture.fake.calls);
    assert_eq!(fixture.texts_of("bound").await, [("person".to_owned(), "hello".to_owned())]);
    // Without a message id, the idempotency key is used.
    let key = IdempotencyKey::parse("k1").unwrap();
    let body = json!({"text": "again", "author": "ann"});
    let post = async || -> ConsoleMessageResponse {
        fixture.client().post(&messages_of("bound"), &body, &key).await.unwrap()
    };
    let (first, second) = (post().await, post().await);
    assert_eq!((first.message_id.as_str(), &first), ("k1", &second));
    assert_eq!(fixture.fake.calls.lock().unwrap().len(), 2);
    // The same id in another conversation is another message.
    fixture.send("elsewhere", "hello", "m1").await.unwrap();
    let messages = fixture.page("bound", "").await.messages;
    let me = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().map(|user| user.name);
    assert_eq!(messages.len(), 2);
    assert!(me.is_none_or(|me| me == messages[0].author), "the peer user from the kernel: {messages:?}");
    assert_eq!(messages[1].author, "ann");
    fixture.end().await;
}

#[tokio::test]
async fn concurrent_duplicates_are_delivered_once() {
    let fixture = ConsoleFixture::new().await;
    let response = futures_util::future::join_all((0..4).map(|_| fixture.send("bound", "hello", "m"))).await;
    // All accepted requests got the same response.
    let answers: Vec<ConsoleMessageResponse> = response.into_iter().filter_map(Result::ok).collect();
    assert!(!answers.is_empty() && answers.iter().all(|response| *response == answers[0]), "{answers:?}");
    assert_eq!(fixture.fake.calls.lock().unwrap().len(), 1);
    assert_eq!(fixture.texts_of("bound").await.len(), 1);
    fixture.end().await;
}

#[tokio::test]
async fn conversation_view_has_session_or_reason() {
    let fixture = ConsoleFixture::new().await;
    let viewer = async |name: &str| {
        let path = format!("/v1/console/conversations/{name}");
        fixture.client().get::<ConversationView>(&path).await.unwrap()
    };
    let bound = viewer("bound").await;
    assert_eq!(bound.session_key.as_ref(), Some(&fixture.fake.key), "{bound:?}");
    let unbound = viewer("never%20seen").await;
    assert_eq!(unbound.session_key, None);
    assert!(!unbound.reason.is_empty() && unbound.reason != bound.reason, "{unbound:?} {bound:?}");
    // A message to it is refused visibly and reaches no session.
    let response = fixture.send("nowhere", "hello", "m1").await.unwrap();
    let Outcome::Refused { failure, reason } = &response.outcome else { panic!("{response:?}") };
    assert_eq!((failure.code, reason), (Code::NotBound, &unbound.reason));
    let texts = fixture.texts_of("nowhere").await;
    assert_eq!(texts[0], ("person".to_owned(), "hello".to_owned()));
    assert_eq!((texts[1].0.as_str(), texts.len()), ("error", 2), "{texts:?}");
    assert_eq!(fixture.send("nowhere", "hello", "m1").await.unwrap(), response);
    assert_eq!(fixture.texts_of("nowhere").await, texts, "no message is repeated");
    // Commands work in an unbound conversation.
    let help = fixture.send("nowhere", "/acp help", "m2").await.unwrap();
    assert!(help.outcome.text().contains("/acp spawn"), "{help:?}");
    assert_eq!(*fixture.fake.calls.lock().unwrap(), [] as [String; 0]);
    fixture.end().await;
}

#[tokio::test]
async fn pages_continue_at_cursor() {
    let fixture = ConsoleFixture::new().await;
    for n in 0..7 {
        fixture.insert_message("c", &n.to_string()).await;
        fixture.insert_message("other", &n.to_string()).await;
    }
    for (limit, size) in [("limit=3", 3), ("limit=0", 1), ("limit=1000000", 7), ("limit=7", 7)] {
        let (mut after, mut seen) = (0, Vec::new());
        loop {
            let page = fixture.page("c", &format!("?{limit}&after={after}")).await;
            assert!(page.messages.len() <= size, "{limit}");
            assert!(page.messages.iter().all(|message| message.conversation_id == "c"));
            if page.messages.is_empty() {
                assert_eq!(page.next_after, after, "an empty page does not move the cursor");
                break;
            }
            after = page.next_after;
            seen.extend(page.messages.into_iter().map(|message| message.text));
        }
        assert_eq!(seen, ["0", "1", "2", "3", "4", "5", "6"], "{limit}");
    }
    assert_eq!(fixture.page("none", "").await, MessagesPage { messages: Vec::new(), next_after: 0 });
    fixture.end().await;
}

#[tokio::test]
async fn viewer_resumes_after_last_event_id() {
    let fixture = ConsoleFixture::new().await;
    fixture.insert_message("c", "one").await;
    fixture.insert_message("c", "two").await;
    let mut viewer = Viewer::open(fixture.dir.path(), "c", "", "").await;
    assert_eq!(texts(&viewer.read_until(2).await), ["one", "two"]);
    fixture.insert_message("other", "unrelated").await;
    fixture.insert_message("c", "three").await;
    let seen = viewer.read_until(3).await;
    assert_eq!(texts(&seen), ["one", "two", "three"]);
    let head = &viewer.seen;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/event-stream"), "{head}");
    // The viewer disconnects, misses a message, and returns with the last number received.
    let last = seen[1].0;
    drop(viewer);
    fixture.insert_message("c", "four").await;
    let mut viewer = Viewer::open(fixture.dir.path(), "c", "", &format!("last-event-id: {last}\r\n")).await;
    assert_eq!(texts(&viewer.read_until(2).await), ["three", "four"]);
    // The header takes precedence, since a reconnecting client repeats its original query.
    let header = format!("last-event-id: {}\r\n", seen[2].0);
    let mut both = Viewer::open(fixture.dir.path(), "c", "?after=0", &header).await;
    assert_eq!(texts(&both.read_until(1).await), ["four"]);
    let mut after = Viewer::open(fixture.dir.path(), "c", &format!("?after={}", seen[0].0), "").await;
    assert_eq!(texts(&after.read_until(3).await), ["two", "three", "four"]);
    // Keep-alive comments fill the silence, and new messages still follow.
    while viewer.seen.matches(":\n\n").count() < 2 {
        assert!(viewer.read_more().await);
    }
    fixture.insert_message("c", "five").await;
    assert_eq!(texts(&viewer.read_until(3).await), ["three", "four", "five"]);
    // All viewers end when the gateway stops, before the time limit for open requests.
    let ConsoleFixture { server, store, .. } = fixture;
    let start = Instant::now();
    server.end().await;
    assert!(start.elapsed() < Duration::from_millis(1_500), "{:?}", start.elapsed());
    for mut viewer in [viewer, both, after] {
        while viewer.read_more().await {}
        assert!(viewer.seen.ends_with("0\r\n\r\n"), "ended normally: {}", viewer.seen);
    }
    store.close().await;
}

/// An edited card is sent to open viewers again under its number; new viewers get the last text.
#[tokio::test]
async fn viewer_receives_edited_card() {
    let fixture = ConsoleFixture::new().await;
    let console = Console::new(fixture.store.clone());
    let at = conversation("c");
    assert!(console.properties().can_edit);
    let card = |text: &str| Outgoing {
        kind: PartKind::Card,
        text: text.to_owned(),
        nonce: "card".to_owned(),
        ..Outgoing::default()
    };
    let SendOutcome::Sent { message_id } = console.send(&at, &card("Working")).await else { panic!() };
    fixture.insert_message("c", "a question").await;
    let mut viewer = Viewer::open(fixture.dir.path(), "c", "", "").await;
    assert_eq!(texts(&viewer.read_until(2).await), ["Working", "a question"]);
    let edited = console.edit(&at, &message_id, &card("Working: 1 tool call")).await;
    assert_eq!(edited, EditOutcome::Edited);
    assert_eq!(texts(&viewer.read_until(3).await), ["Working", "a question", "Working: 1 tool call"]);
    let page = fixture.page("c", "").await.messages;
    let seen: Vec<(String, String)> = page.iter().map(|it| (it.id.to_string(), it.text.clone())).collect();
    assert_eq!(seen[1], (message_id.clone(), "Working: 1 tool call".to_owned()));
    assert_eq!((page[1].kind.as_str(), seen.len()), ("card", 2), "one message, not two");
    assert!(page[0].id > page[1].id && page[0].revision < page[1].revision, "{page:?}");
    // Missing, malformed, or an id of another conversation.
    for (at, id) in [(&at, "999"), (&at, "x"), (&conversation("other"), message_id.as_str())] {
        assert!(matches!(console.edit(at, id, &card("y")).await, EditOutcome::Gone { .. }), "{id}");
    }
    fixture.end().await;
}

#[tokio::test]
async fn long_conversation_is_streamed_in_order() {
    let fixture = ConsoleFixture::new().await;
    let filler = "x".repeat(2_000);
    for n in 0..1_200 {
        fixture.insert_message("c", &format!("{n} {filler}")).await;
    }
    let mut viewer = Viewer::open(fixture.dir.path(), "c", "", "").await;
    let seen = viewer.read_until(1_200).await;
    assert!(seen.iter().enumerate().all(|(n, (_, text))| text.starts_with(&format!("{n} "))));
    assert!(seen.windows(2).all(|pair| pair[0].0 < pair[1].0));
    fixture.end().await;
}

#[tokio::test]
async fn malformed_console_requests_have_no_effect() {
    let fixture = ConsoleFixture::new().await;
    let dir = fixture.dir.path();
    let to = messages_of("bound");
    let say = |body: &str| post(&to, "content-type: application/json\r\n", body);
    let long_id = format!("{{\"text\":\"a\",\"message_id\":\"{}\"}}", "m".repeat(201));
    let long_name = messages_of(&"c".repeat(201));
    for (request, status, code) in [
        (say("{broken"), "400", "USAGE"),
        (say("{}"), "400", "USAGE"),
        (say("{\"text\":1}"), "400", "USAGE"),
        (say("{\"text\":\"\"}"), "400", "USAGE"),
        (say("{\"text\":\" \\n\"}"), "400", "USAGE"),
        (say("{\"text\":\"a\",\"txet\":1}"), "400", "USAGE"),
        (say("{\"text\":\"a\",\"message_id\":\"\"}"), "400", "USAGE"),
        (say(&long_id), "400", "USAGE"),
        (say(&format!("{{\"text\":\"{}\"}}", "x".repeat(5_000))), "413", "ACP_LIMIT_REACHED"),
        (post(&to, "content-type: text/plain\r\n", "{\"text\":\"a\"}"), "415", "USAGE"),
        (post(&to, "idempotency-key: a b\r\n", "{\"text\":\"a\"}"), "400", "USAGE"),
        (post(&long_name, "", "{\"text\":\"a\"}"), "400", "USAGE"),
        (post(&messages_of("a%0Ab"), "", "{\"text\":\"a\"}"), "400", "USAGE"),
        (post(&messages_of("a%FFb"), "", "{\"text\":\"a\"}"), "400", "USAGE"),
        (get(&long_name, ""), "400", "USAGE"),
        (get(&format!("/v1/console/conversations/{}", "c".repeat(201)), ""), "400", "USAGE"),
        (get(&format!("{to}?after=x"), ""), "400", "USAGE"),
        (get(&format!("{to}?after=-1"), ""), "400", "USAGE"),
        (get(&format!("{to}?after={}", 1_u64 << 63), ""), "400", "USAGE"),
        (get(&format!("{to}?aftr=1"), ""), "400", "USAGE"),
        (get(&to, &format!("{STREAM}last-event-id: x\r\n")), "400", "USAGE"),
        (get(&to, &format!("{STREAM}last-event-id: \u{e9}\r\n")), "400", "USAGE"),
        (get(&to, &format!("{STREAM}last-event-id: {}\r\n", 1_u64 << 63)), "400", "USAGE"),
        (post("/v1/console/conversations/bound", "", "{}"), "405", "USAGE"),
        (get("/v1/console", ""), "404", "USAGE"),
    ] {
        assert_response(dir, (request, status, code)).await;
    }
    assert_eq!(fixture.texts_of("bound").await, []);
    assert_eq!(*fixture.fake.calls.lock().unwrap(), [] as [String; 0]);
    fixture.end().await;
}
