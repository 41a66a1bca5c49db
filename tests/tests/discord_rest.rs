//! REST client of the Discord package against the strict fake: refusals, losses and limits, and the reported outcomes.

mod discord_rest {
    pub(crate) mod rules;
}

use acp_discord::core::base_url::BaseUrl;
use acp_discord::core::endpoint::Page;
use acp_discord::core::errors::{RejectionKind, ResourceKind};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message::{FileUpload, MessageBody, NewMessage};
use acp_discord::core::message_match::SentMessageQuery;
use acp_discord::core::request_scheduler::Priority;
use acp_discord::rest::{
    QueueOptions, RestClient, RestError, RestSettings, SentMessage, SentMessageLookup, SentMessageSearch,
    Webhook,
};
use acp_shared::clock::Clock;
use acp_shared::redact::Secret;
use acp_tests::fake_discord::FakeDiscord;
use acp_tests::fake_discord::client::BotHandle;
use acp_tests::fake_discord::core::faults::{RestFate, Scope, When};
use acp_tests::fake_discord::core::model::{Id, Message};
use serde_json::json;
use std::collections::HashSet;
use std::time::Duration;
use tokio::runtime::Runtime;

const TOKEN: &str = "discord-token";
const CREATE: &str = "POST /channels/{}/messages";
const PATIENT: Duration = Duration::from_secs(60);
const FINAL: QueueOptions = QueueOptions::new(Priority::Final, PATIENT);
const CARD: QueueOptions = QueueOptions::new(Priority::Card, PATIENT);

/// Fake with a guild, a channel and a bot, and the bot's REST client.
struct Stage {
    fake: FakeDiscord,
    channel: Id,
    bot: BotHandle,
    ann: Id,
    rest: RestClient,
    runtime: Runtime,
    _dir: tempfile::TempDir,
}

fn stage(change: impl FnOnce(&mut RestSettings)) -> Stage {
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let fake = FakeDiscord::start(dir.path());
    let guild = fake.add_guild("guild");
    let channel = fake.add_channel(guild, "general");
    let ann = fake.add_user(guild, "ann");
    let bot = fake.add_bot(guild, "bot", TOKEN);
    let base = BaseUrl::parse(&fake.url()).unwrap_or_else(|e| panic!("{e}"));
    #[expect(clippy::disallowed_methods, reason = "a test is a process of its own")]
    let clock = Clock::start();
    let mut settings = RestSettings::new(base, Secret::new(TOKEN.to_owned()), clock);
    change(&mut settings);
    let runtime = Runtime::new().unwrap_or_else(|e| panic!("{e}"));
    let rest = {
        let _inside = runtime.enter();
        RestClient::new(settings).unwrap_or_else(|e| panic!("{e}"))
    };
    Stage { fake, channel, bot, ann, rest, runtime, _dir: dir }
}

fn new(nonce: &str, text: &str) -> NewMessage {
    NewMessage { nonce: nonce.to_owned(), body: MessageBody::text(text) }
}

impl Stage {
    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    fn here(&self) -> Snowflake {
        Snowflake(self.channel)
    }

    fn create(&self, nonce: &str, text: &str) -> Result<SentMessage, RestError> {
        self.say(self.here(), nonce, text)
    }

    fn say(&self, channel: Snowflake, nonce: &str, text: &str) -> Result<SentMessage, RestError> {
        self.run(self.rest.create_message(channel, &new(nonce, text), FINAL))
    }

    /// Creates a message and a thread from it.
    fn thread(&self, nonce: &str) -> Result<Snowflake, RestError> {
        let starter = sent(self.create(nonce, "starter"));
        let start = self.rest.thread_from_message(self.here(), starter, "work", 10_080, FINAL);
        self.run(start).map(|started| started.id)
    }

    fn edit(&self, id: Snowflake, text: &str) -> Result<(), RestError> {
        self.run(self.rest.edit_message(self.here(), id, &MessageBody::text(text), CARD))
    }

    /// Texts of the bot's messages in the channel.
    fn texts(&self) -> Vec<String> {
        let alive = |message: &Message| message.deleted_ms.is_none() && message.author_id == self.bot.user;
        let messages = self.fake.transcript(self.channel);
        messages.into_iter().filter(alive).map(|message| message.content).collect()
    }
}

fn sent(result: Result<SentMessage, RestError>) -> Snowflake {
    result.unwrap_or_else(|fault| panic!("{fault}")).id
}

fn meaning<T: std::fmt::Debug>(result: Result<T, RestError>) -> Option<RejectionKind> {
    result.err().and_then(|fault| fault.rejection_kind())
}

#[test]
fn retry_with_same_nonce_sends_message_once() {
    for fate in [RestFate::LostAfter, RestFate::ErrorAfter { status: 502 }, RestFate::LostBefore] {
        let stage = stage(|_| ());
        stage.fake.rest_fault(CREATE, When::Next(1), fate);
        let first = stage.create("n1", "the answer");
        assert!(matches!(first, Err(RestError::Uncertain { .. })), "{fate:?}: {first:?}");
        let id = sent(stage.create("n1", "the answer"));
        assert_eq!(sent(stage.create("n1", "the answer")), id, "{fate:?}");
        assert_eq!(stage.texts(), ["the answer"], "{fate:?}");
    }
}

#[test]
fn lost_message_is_found_in_channel_history() {
    let stage = stage(|_| ());
    let other = sent(stage.create("n0", "the answer"));
    stage.fake.rest_fault(CREATE, When::Next(1), RestFate::LostAfter);
    assert!(stage.create("n1", "  the answer\n").is_err());
    let query = |text: &str| SentMessageQuery {
        me: Snowflake(stage.bot.user),
        nonce: "n1".to_owned(),
        content: text.to_owned(),
        attachments: Vec::new(),
        button: None,
        known: HashSet::from([other]),
        application: None,
    };
    let first_attempt_ms = other.created_at_ms();
    let lookup = |text: &str| {
        let (channel, query) = (stage.here(), query(text));
        let search = SentMessageSearch { channel, first_attempt_ms, skew_ms: 60_000, query };
        stage.run(stage.rest.lookup(&search))
    };
    let ids: Vec<Id> = stage.fake.transcript(stage.channel).iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(lookup("  the answer\n"), SentMessageLookup::Found(Snowflake(ids[1])));
    assert_eq!(lookup("never sent"), SentMessageLookup::Absent);
    stage.fake.deny(stage.bot.user, stage.channel, &["READ_MESSAGE_HISTORY"]);
    let unknown = lookup("never sent");
    assert!(matches!(&unknown, SentMessageLookup::Unknown { .. }), "{unknown:?}");
}

#[test]
fn retry_of_deleted_message_reports_sent_and_deleted() {
    let stage = stage(|_| ());
    let id = sent(stage.create("n1", "the answer"));
    stage.fake.delete(id.0);
    assert_eq!(meaning(stage.create("n1", "the answer")), Some(RejectionKind::SentAndDeleted));
    assert_eq!(meaning(stage.edit(id, "x")), Some(RejectionKind::Gone(ResourceKind::Message)));
    assert!(stage.texts().is_empty());
}

#[test]
fn creates_edits_and_webhooks_ping_nobody() {
    let stage = stage(|_| ());
    let text = format!("@everyone <@{}>", stage.ann);
    let id = sent(stage.create("n1", &text));
    assert_eq!(stage.edit(id, &format!("{text} again")), Ok(()));
    let hook = stage.run(stage.rest.create_webhook(stage.here(), "Agent", FINAL));
    let hook = hook.unwrap_or_else(|fault| panic!("{fault}"));
    let token = hook.token.unwrap_or_else(|| panic!("no token"));
    let hook = Webhook { id: hook.id, token };
    let body = MessageBody::text(text);
    let execute =
        || stage.run(stage.rest.execute_webhook(&hook, None, stage.here(), &body, Some("Codex"), FINAL));
    sent(execute());
    assert_eq!(stage.fake.tally().pings, 0);
    // A deleted webhook is tried once more, and then never.
    stage.fake.delete_webhook(hook.id.0);
    for _ in 0..3 {
        assert_eq!(meaning(execute()), Some(RejectionKind::Gone(ResourceKind::Webhook)));
    }
    assert_eq!(stage.fake.tally().requests.get("POST /webhooks/{}/{} 404"), Some(&1));
}

#[test]
fn route_rate_limits_are_kept_without_429() {
    let stage = stage(|_| ());
    stage.fake.configure(json!({"buckets": {
        CREATE: {"limit": 3, "window_ms": 500},
        "PATCH /channels/{}/messages/{}": {"limit": 2, "window_ms": 400},
    }}));
    let id = sent(stage.create("first", "0"));
    for n in 0..8 {
        sent(stage.create(&format!("n{n}"), &n.to_string()));
        assert_eq!(stage.edit(id, &format!("edit {n}")), Ok(()));
    }
    let tally = stage.fake.tally();
    assert_eq!((tally.rate_limited, tally.invalid), (0, 0), "{tally:?}");
    assert_eq!(stage.texts().len(), 9);
}

#[test]
fn rate_limited_request_is_retried_after_delay() {
    for scope in [Scope::User, Scope::Global, Scope::Shared] {
        let stage = stage(|_| ());
        stage.fake.rest_fault(CREATE, When::Next(1), RestFate::RateLimited { retry_after_ms: 200, scope });
        sent(stage.create("n1", "x"));
        assert_eq!(stage.texts(), ["x"]);
        assert_eq!(stage.rest.counts().limited.values().sum::<u64>(), 1, "{scope:?}");
    }
}

#[test]
fn thread_is_created_once_and_archived_edit_is_reported() {
    let stage = stage(|_| ());
    let id = sent(stage.create("n1", "starter"));
    let start = || {
        let start = stage.rest.thread_from_message(stage.here(), id, "work", 1440, FINAL);
        stage.run(start).unwrap_or_else(|fault| panic!("{fault}"))
    };
    assert_eq!((start().id, start().id), (id, id));
    assert_eq!(stage.fake.threads_of(stage.channel).len(), 1);
    let said = sent(stage.say(id, "n2", "in the thread"));
    stage.fake.archive(id.0, true);
    let edit = || stage.run(stage.rest.edit_message(id, said, &MessageBody::text("x"), CARD));
    assert_eq!(meaning(edit()), Some(RejectionKind::Archived));
    stage.fake.archive(id.0, false);
    assert_eq!(edit(), Ok(()));
    stage.fake.delete_channel(id.0);
    let gone = stage.say(id, "n3", "in the thread");
    assert_eq!(meaning(gone), Some(RejectionKind::Gone(ResourceKind::Channel)));
}

#[test]
fn lost_access_and_missing_permission_are_temporary() {
    let stage = stage(|_| ());
    stage.fake.deny(stage.bot.user, stage.channel, &["SEND_MESSAGES"]);
    assert_eq!(meaning(stage.create("n1", "x")), Some(RejectionKind::Forbidden));
    stage.fake.deny(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    assert_eq!(meaning(stage.create("n1", "x")), Some(RejectionKind::LostAccess));
    stage.fake.allow(stage.bot.user, stage.channel, &["SEND_MESSAGES", "VIEW_CHANNEL"]);
    sent(stage.create("n1", "x"));
}

#[test]
fn edits_of_old_messages_have_their_own_budget() {
    let stage = stage(|_| ());
    stage
        .fake
        .configure(json!({"buckets": {"PATCH /channels/{}/messages/{}": {"limit": 100, "window_ms": 1000}}}));
    let old = sent(stage.create("n1", "old"));
    stage.fake.advance(3_700_000);
    let young = sent(stage.create("n2", "young"));
    let results: Vec<_> = (0..4).map(|n| stage.edit(old, &n.to_string())).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3, "{results:?}");
    assert!(matches!(results.last(), Some(Err(RestError::Limited { .. }))), "{results:?}");
    assert_eq!(stage.edit(young, "still goes"), Ok(()));
}

#[test]
fn a_wrong_token_is_used_once() {
    let stage = stage(|settings| settings.token = Secret::new("wrong".to_owned()));
    for _ in 0..3 {
        assert_eq!(meaning(stage.create("n1", "x")), Some(RejectionKind::Unauthorized));
    }
    assert_eq!(stage.fake.tally().invalid, 1);
    let token = Secret::new(TOKEN.to_owned());
    assert_eq!(stage.rest.set_token(&token), Ok(()));
    sent(stage.create("n1", "x"));
}

#[test]
fn files_pages_reactions_and_typing_requests_succeed() {
    let stage = stage(|_| ());
    let mut message = new("n1", "with a file");
    message.body.files.push(FileUpload {
        name: "turn.md".to_owned(),
        content_type: "text/markdown".to_owned(),
        description: "what was done".to_owned(),
        bytes: b"# done".as_slice().into(),
    });
    let id = sent(stage.run(stage.rest.create_message(stage.here(), &message, FINAL)));
    // The nonce also works for a message with a file.
    let again = stage.run(stage.rest.create_message(stage.here(), &message, FINAL));
    assert_eq!(sent(again), id);
    let page = stage.run(stage.rest.messages(stage.here(), Page::Newest, 10));
    let page = page.unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(page.iter().map(|m| (m.id, m.attachments.len())).collect::<Vec<_>>(), [(id, 1)]);
    let reacted = stage.run(async {
        stage.rest.typing(stage.here()).await?;
        stage.rest.add_reaction(stage.here(), id, "👀", PATIENT).await?;
        stage.rest.remove_reaction(stage.here(), id, "👀", PATIENT).await?;
        let me = stage.rest.me().await?;
        let application = stage.rest.application().await?;
        Ok::<_, RestError>((me, application))
    });
    let expected = (Snowflake(stage.bot.user), Snowflake(stage.bot.application));
    assert_eq!(reacted, Ok(expected));
}
