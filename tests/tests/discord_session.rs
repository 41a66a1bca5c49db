//! Gateway session of the Discord package against the strict fake: broken connections, and typed events.

use acp_discord::core::base_url::BaseUrl;
use acp_discord::core::close_codes::FatalGatewayError;
use acp_discord::core::event::{Event, GapCause, Value as Given};
use acp_discord::core::ids::Snowflake;
use acp_discord::websocket::{EventReceiver, SessionCounters, SessionSettings, event_channel, run};
use acp_shared::redact::Secret;
use acp_tests::fake_discord::FakeDiscord;
use acp_tests::fake_discord::client::BotHandle;
use acp_tests::fake_discord::core::faults::{EventFate, When};
use acp_tests::fake_discord::core::model::Id;
use acp_tests::fake_discord::core::stage::SocketAct;
use acp_tests::wait::{SOON, until};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "discord-token";
/// Seconds to READY or RESUMED here.
const ANSWER_SECONDS: u64 = 5;
/// Maximum wait for an event.
const PATIENCE: Duration = Duration::from_secs(25);

/// Fake with a guild, a channel, a person and a bot, and a session of that bot.
struct Stage {
    fake: FakeDiscord,
    guild: Id,
    channel: Id,
    ann: Id,
    bot: BotHandle,
    runtime: Runtime,
    events: EventReceiver,
    counts: Arc<SessionCounters>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), FatalGatewayError>>,
    _dir: tempfile::TempDir,
}

/// Skips events of a stage until one matches the pattern, and returns the value of the expression.
macro_rules! await_event {
    ($stage:expr, $pattern:pat $(if $guard:expr)? => $value:expr) => {
        $stage.until(|event| match event {
            $pattern $(if $guard)? => Some($value),
            _ => None,
        })
    };
}

fn stage(prepare: impl FnOnce(&FakeDiscord, &BotHandle)) -> Stage {
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let fake = FakeDiscord::start(dir.path());
    let guild = fake.add_guild("guild");
    let channel = fake.add_channel(guild, "general");
    let ann = fake.add_user(guild, "ann");
    let bot = fake.add_bot(guild, "bot", TOKEN);
    prepare(&fake, &bot);
    let counts = Arc::new(SessionCounters::default());
    let settings = SessionSettings {
        token: Secret::new(TOKEN.to_owned()),
        base: BaseUrl::parse(&fake.url()).unwrap_or_else(|e| panic!("{e}")),
        ready_timeout: Duration::from_secs(ANSWER_SECONDS),
        counts: Arc::clone(&counts),
        shards: None,
        slots: None,
    };
    let runtime = Runtime::new().unwrap_or_else(|e| panic!("{e}"));
    let (sink, events) = event_channel(1000);
    let stop = CancellationToken::new();
    let task = runtime.spawn(run(settings, stop.clone(), sink));
    Stage { fake, guild, channel, ann, bot, runtime, events, counts, stop, task, _dir: dir }
}

impl Stage {
    fn next(&mut self) -> Event {
        let next = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, self.events.next()).await });
        next.ok().flatten().unwrap_or_else(|| panic!("no event"))
    }

    /// Skips events until `wanted` returns a value.
    fn until<T>(&mut self, mut wanted: impl FnMut(Event) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.next()) {
                return found;
            }
        }
    }

    fn ready(&mut self) {
        await_event!(self, Event::Ready(_) => ());
        await_event!(self, Event::GuildBack(_) => ());
    }

    fn post(&self, text: &str) -> Id {
        self.fake.post(self.ann, self.channel, text)
    }

    fn text(&mut self) -> String {
        await_event!(self, Event::Message(message) => message.text)
    }

    fn end(self) {
        self.stop.cancel();
        let ended = self.runtime.block_on(async { tokio::time::timeout(SOON, self.task).await });
        assert!(matches!(ended, Ok(Ok(Ok(())))), "{ended:?}");
    }
}

#[test]
fn reset_connection_is_resumed_without_missed_events() {
    let mut stage = stage(|_, _| {});
    stage.ready();
    stage.post("one");
    assert_eq!(stage.text(), "one");
    stage.fake.sockets(None, SocketAct::Reset);
    let sent: Vec<String> = (0..20).map(|number| format!("after {number}")).collect();
    for text in &sent {
        stage.post(text);
    }
    let (mut seen, mut resumed) = (Vec::new(), false);
    while seen.len() < sent.len() || !resumed {
        match stage.next() {
            Event::Message(message) => seen.push(message.text),
            Event::Resumed => resumed = true,
            Event::Disconnected { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, sent);
    let counts = stage.counts.snapshot();
    assert_eq!((counts.identifies, counts.resumes), (1, 1));
    stage.end();
}

#[test]
fn invalid_session_reports_disconnect_and_identifies_again() {
    let mut stage = stage(|_, _| {});
    stage.ready();
    stage.fake.sockets(None, SocketAct::InvalidSession { resumable: false });
    await_event!(stage, Event::Disconnected { .. } => ());
    // Posted in the gap: a new session does not replay it.
    stage.post("lost");
    stage.ready();
    stage.post("kept");
    assert_eq!(stage.text(), "kept");
    assert_eq!(stage.counts.snapshot().readies, 2);
    stage.end();
}

#[test]
fn unanswered_resume_leads_to_new_session() {
    let mut stage = stage(|fake, _| fake.configure(json!({ "heartbeat_interval_ms": 1000 })));
    stage.ready();
    stage.fake.withhold_answers(1);
    stage.fake.sockets(None, SocketAct::InvalidSession { resumable: true });
    await_event!(stage, Event::Disconnected { why } if why.contains("neither READY nor RESUMED") => ());
    stage.ready();
    stage.post("heard");
    assert_eq!(stage.text(), "heard");
    let tally = stage.fake.tally();
    assert_eq!((tally.resumes, tally.identifies, tally.silent_clients), (1, 2, 0), "{tally:?}");
    stage.end();
}

#[test]
fn unacknowledged_heartbeat_reconnects_and_resumes() {
    let mut stage = stage(|fake, _| fake.configure(json!({ "heartbeat_interval_ms": 1500 })));
    stage.ready();
    stage.fake.withhold_acks(true);
    await_event!(stage, Event::Disconnected { why } if why.contains("heartbeat") => ());
    stage.fake.withhold_acks(false);
    stage.post("missed");
    await_event!(stage, Event::Resumed => ());
    stage.post("again");
    let counts = stage.counts.snapshot();
    assert_eq!((counts.identifies, counts.readies, counts.resumes), (1, 1, 1));
    stage.end();
}

#[test]
fn missing_hello_times_out() {
    let mut stage = stage(|fake, _| fake.withhold_hellos(1));
    let why = await_event!(stage, Event::Disconnected { why } => why);
    assert_eq!(why, "shard 0 got no HELLO within 5 s of connecting");
    stage.ready();
    let tally = stage.fake.tally();
    assert_eq!((tally.sockets, tally.identifies, tally.closes.len()), (2, 1, 0), "{tally:?}");
    stage.end();
}

/// After every kind of disconnect no event is missed or duplicated, and the client sends nothing invalid.
#[test]
fn each_broken_connection_is_resumed_after_hello() {
    // Detects a client that does not wait for HELLO.
    let mut stage = stage(|fake, _| fake.configure(json!({ "hello_after_ms": 500 })));
    stage.ready();
    let acts = [
        SocketAct::Cut,
        SocketAct::Reconnect,
        SocketAct::Close(4000),
        SocketAct::Close(1001),
        SocketAct::InvalidSession { resumable: true },
    ];
    for (number, act) in acts.into_iter().enumerate() {
        stage.fake.sockets(None, act);
        stage.post(&format!("after {number}"));
        assert_eq!(stage.text(), format!("after {number}"), "{act:?}");
        await_event!(stage, Event::Resumed => ());
    }
    let tally = stage.fake.tally();
    assert_eq!((tally.identifies, tally.resumes, tally.sockets), (1, 5, 6), "{tally:?}");
    assert!(tally.closes.is_empty(), "{tally:?}");
    stage.end();
}

/// Heartbeats are sent at the requested interval, and nothing that the service would close for.
#[test]
fn short_heartbeat_interval_is_kept() {
    let mut stage = stage(|fake, _| fake.configure(json!({ "heartbeat_interval_ms": 1000 })));
    stage.ready();
    let end = stage.fake.now() + 6_000;
    until(SOON, "six seconds passed", || stage.fake.now() >= end);
    let tally = stage.fake.tally();
    assert_eq!((tally.silent_clients, tally.sockets, tally.closes.len()), (0, 1, 0), "{tally:?}");
    stage.end();
}

#[test]
fn client_reconnects_after_service_restart() {
    let mut stage = stage(|_, _| {});
    stage.ready();
    stage.fake.restart();
    stage.ready();
    stage.post("again");
    assert_eq!(stage.text(), "again");
    stage.end();
}

#[test]
fn missing_intent_is_fatal_and_names_the_setting() {
    let mut stage = stage(|fake, bot| fake.set_privileged_intents(bot.user, 0));
    let failure = await_event!(stage, Event::Failed(failure) => failure);
    assert_eq!(failure.code, Some(4014));
    assert!(failure.to_string().contains("Message Content Intent"), "{failure}");
    assert_eq!(stage.fake.tally().identifies, 1);
}

#[test]
fn unreadable_event_is_a_gap_and_duplicate_event_is_passed_on() {
    let mut stage = stage(|_, _| {});
    stage.ready();
    stage.fake.event_fault("MESSAGE_CREATE", When::Next(1), EventFate::Odd);
    stage.post("odd");
    assert_eq!(stage.next(), Event::Gap { why: GapCause::Unreadable, lost: 1 });
    stage.fake.event_fault("MESSAGE_CREATE", When::Next(1), EventFate::Duplicate);
    stage.post("twice");
    assert_eq!((stage.text(), stage.text()), ("twice".to_owned(), "twice".to_owned()));
    stage.end();
}

#[test]
fn user_actions_arrive_as_typed_events() {
    let mut stage = stage(|_, _| {});
    stage.ready();
    let commands = json!([{ "name": "acp", "description": "agents", "type": 1, "options": [
        { "name": "spawn", "description": "start one", "type": 1, "options": [
            { "name": "agent", "description": "which", "type": 3, "autocomplete": true },
        ] },
    ] }]);
    let path = format!("/applications/{}/commands", stage.bot.application);
    let answer = stage.fake.rest(TOKEN, "PUT", &path, Some(&commands)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(answer.status, 200, "{}", answer.json());
    let used =
        stage.fake.command(stage.ann, stage.channel, &stage.bot, "acp spawn", &[("agent", json!("claude"))]);
    used.unwrap_or_else(|e| panic!("{e}"));
    let command = await_event!(stage, Event::Command(command) => command);
    let place = &command.interaction;
    assert_eq!((place.member.user.id, place.channel), (Snowflake(stage.ann), Snowflake(stage.channel)));
    assert_eq!(place.guild, Some(Snowflake(stage.guild)));
    let Given::Sub(options) = &command.options[0].value else { panic!("{command:?}") };
    assert_eq!(command.options[0].name, "spawn");
    assert_eq!(options[0].value, Given::Text("claude".to_owned()));

    let message = stage.post("text");
    assert_eq!(stage.text(), "text");
    stage.fake.edit(message, "other text");
    let edit = await_event!(stage, Event::MessageEdited(edit) => edit);
    let (id, text) = (Snowflake(message), edit.text.as_deref());
    assert_eq!((edit.id, text, edit.by_author), (id, Some("other text"), true));
    stage.fake.delete(message);
    let gone = Event::MessagesDeleted { channel: Snowflake(stage.channel), ids: vec![Snowflake(message)] };
    assert_eq!(stage.next(), gone);

    let thread = stage.fake.make_thread(stage.ann, stage.channel, "a thread", None);
    let made = await_event!(stage, Event::ThreadCreated(thread) => thread);
    let (id, parent) = (Snowflake(thread), Some(Snowflake(stage.channel)));
    assert_eq!((made.id, made.parent, made.archived), (id, parent, false));
    stage.fake.archive(thread, true);
    let changed = await_event!(stage, Event::ThreadChanged(thread) => thread);
    assert_eq!((changed.id, changed.archived), (id, true));
    stage.fake.delete_channel(thread);
    await_event!(stage, Event::ThreadDeleted(id) if id == Snowflake(thread) => ());
    let bot = stage.bot.user;
    stage.stop.cancel();
    until(SOON, "bot disconnected", || !stage.fake.is_connected(bot));
    stage.end();
}
