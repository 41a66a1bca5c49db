//! A fake with a guild, a channel, a person and a bot.

use acp_tests::fake_discord::FakeDiscord;
use acp_tests::fake_discord::client::BotHandle;
use acp_tests::fake_discord::core::model::{Id, Interaction};
use acp_tests::fake_discord::core::settings::Rule;
use acp_tests::fake_discord::http::{HttpAnswer, http};
use serde_json::{Value, json};
use tempfile::TempDir;

/// User agent as documented by Discord.
const AGENT: &str = "DiscordBot (https://example.invalid, 0)";

pub(crate) struct Ground {
    pub(crate) fake: FakeDiscord,
    pub(crate) guild: Id,
    pub(crate) channel: Id,
    pub(crate) user: Id,
    pub(crate) bot: BotHandle,
    _dir: TempDir,
}

impl Ground {
    /// Ground with Discord's rate limit buckets.
    pub(crate) fn strict() -> Self {
        let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let fake = FakeDiscord::start(dir.path());
        let guild = fake.add_guild("guild");
        let channel = fake.add_channel(guild, "channel");
        let user = fake.add_user(guild, "ann");
        let bot = fake.add_bot(guild, "bot", "TOKEN");
        Self { fake, guild, channel, user, bot, _dir: dir }
    }

    /// Ground without rate limit buckets.
    pub(crate) fn new() -> Self {
        Self::strict().without(&[Rule::RouteBuckets])
    }

    pub(crate) fn without(self, rules: &[Rule]) -> Self {
        self.fake.disable_rules(rules);
        self
    }

    pub(crate) fn api(&self, method: &str, path: &str, body: &Value) -> HttpAnswer {
        let body = (!body.is_null()).then_some(body);
        let answer = self.fake.rest(&self.bot.token, method, path, body);
        answer.unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    pub(crate) fn get(&self, path: &str) -> HttpAnswer {
        self.api("GET", path, &Value::Null)
    }

    /// Sends a request that must succeed.
    pub(crate) fn done(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.api(method, path, body);
        let (status, json) = (answer.status, answer.json());
        assert!((200..300).contains(&status), "{method} {path} {body}: {status} {json}");
        json
    }

    /// The JSON error code; 0 with a success.
    pub(crate) fn code(&self, method: &str, path: &str, body: &Value) -> (u16, u64) {
        code(&self.api(method, path, body))
    }

    /// Path of the channel's messages.
    pub(crate) fn posts(&self) -> String {
        format!("/channels/{}/messages", self.channel)
    }

    /// A message of the bot.
    pub(crate) fn say(&self, channel: Id, content: &str) -> Id {
        id(&self.done("POST", &format!("/channels/{channel}/messages"), &json!({"content": content})))
    }

    /// A thread of the bot, from a message of the bot.
    pub(crate) fn thread(&self) -> Id {
        let message = self.say(self.channel, "start");
        let path = format!("/channels/{}/messages/{message}/threads", self.channel);
        id(&self.done("POST", &path, &json!({"name": "thread"})))
    }

    /// A message with files.
    pub(crate) fn upload(
        &self,
        method: &str,
        path: &str,
        form: &Value,
        files: &[(&str, &[u8])],
    ) -> HttpAnswer {
        const BOUNDARY: &str = "next-part-1f0e";
        let mut body = Vec::new();
        let head = "Content-Disposition: form-data; name=\"payload_json\"\r\nContent-Type: application/json";
        body.extend_from_slice(format!("--{BOUNDARY}\r\n{head}\r\n\r\n{form}\r\n").as_bytes());
        for (n, (name, bytes)) in files.iter().enumerate() {
            let head = format!("Content-Disposition: form-data; name=\"files[{n}]\"; filename=\"{name}\"");
            body.extend_from_slice(
                format!("--{BOUNDARY}\r\n{head}\r\nContent-Type: text/plain\r\n\r\n").as_bytes(),
            );
            body.extend_from_slice(bytes);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        let authorization = format!("Bot {}", self.bot.token);
        let headers = [
            ("authorization", authorization.as_str()),
            ("content-type", kind.as_str()),
            ("user-agent", AGENT),
        ];
        let answer = http(self.fake.address(), method, &format!("/api/v10{path}"), &headers, &body);
        answer.unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    /// Registers `/acp spawn agent:` with autocompletion, and `/ping`.
    pub(crate) fn register(&self) {
        let agent = json!({"type": 3, "name": "agent", "description": "which", "required": true, "autocomplete": true});
        let spawn = json!({"type": 1, "name": "spawn", "description": "a session", "options": [agent]});
        let commands = json!([
            {"name": "acp", "description": "agents", "options": [spawn]},
            {"name": "ping", "description": "ping"},
        ]);
        self.done("PUT", &format!("/applications/{}/commands", self.bot.application), &commands);
    }

    /// `/ping` by a person.
    pub(crate) fn ping(&self) -> Interaction {
        let used = self.fake.command(self.user, self.channel, &self.bot, "ping", &[]);
        used.unwrap_or_else(|e| panic!("ping: {e}"))
    }

    /// The first response to an interaction.
    pub(crate) fn respond(&self, interaction: &Interaction, response: &Value) -> (u16, u64) {
        let path = format!("/interactions/{}/{}/callback", interaction.id, interaction.token);
        self.code("POST", &path, response)
    }

    /// A message of the bot with one button.
    pub(crate) fn button(&self, channel: Id, custom_id: &str) -> Id {
        let button = json!({"type": 2, "style": 1, "label": "go", "custom_id": custom_id});
        let body = json!({"content": "choose", "components": [{"type": 1, "components": [button]}]});
        id(&self.done("POST", &format!("/channels/{channel}/messages"), &body))
    }
}

/// Id of an object.
pub(crate) fn id(value: &Value) -> Id {
    value["id"].as_str().and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("no id: {value}"))
}

/// Status and JSON error code; 0 with a success.
pub(crate) fn code(answer: &HttpAnswer) -> (u16, u64) {
    (answer.status, answer.json()["code"].as_u64().unwrap_or(0))
}
