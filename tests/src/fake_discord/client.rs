//! The fake as a test holds it: a process that can be killed and comes back at the same address, and its orders.
//!
//! Everything blocks, and panics when the fake does not answer as it must: a test that goes on without it proves
//! nothing.

use super::core::gateway::intent;
use super::core::model::{Channel, Command, Id, Interaction, Message, Ms, Webhook};
use super::core::settings::{Rule, Settings};
use super::core::stage::{Order, PersonFile};
use super::core::tally::Tally;
use super::core::underway::Underway;
use super::http::{HttpAnswer, http};
use crate::wait::{SOON, eventually};
use crate::world::bin;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};

/// Environment variable: the longest time that a request, an answer or an event takes on its way, in milliseconds. What
/// holds beside a Discord at once holds beside one that is far away, or a test does not wait for what it is about.
const ENV_LAG: &str = "ACP_TEST_LAG_MS";

/// A bot as a test knows it.
#[derive(Debug, Clone)]
pub struct BotHandle {
    /// The id of its account.
    pub user: Id,
    /// The id of its application.
    pub application: Id,
    /// Its token.
    pub token: String,
}

/// The fake, in a process.
#[derive(Debug)]
pub struct FakeDiscord {
    child: Option<Child>,
    store: PathBuf,
    address: String,
}

impl FakeDiscord {
    /// Starts one that keeps what it accepts in a directory.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        let mut fake =
            Self { child: None, store: dir.join("fake-discord.db"), address: "127.0.0.1:0".to_owned() };
        fake.restart();
        fake
    }

    /// Kills it with SIGKILL. Connections are gone at once.
    ///
    /// # Panics
    /// When the process cannot be killed.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let killed = child.kill().and_then(|()| child.wait());
            killed.unwrap_or_else(|e| panic!("kill the fake: {e}"));
        }
    }

    /// Starts it anew, at the same address and with what it had kept. One that lives is killed first.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let store = self.store.clone();
        let address = self.address.clone();
        // The port may be held for a moment by what is left of the one before.
        let (child, address) = eventually(SOON, "the fake listens", || Self::launch(&store, &address));
        self.child = Some(child);
        self.address = address;
    }

    fn launch(store: &Path, address: &str) -> Option<(Child, String)> {
        let mut child = Program::new(bin("fake-discord"))
            .args(["--listen", address, "--store"])
            .arg(store)
            .args(["--lag-ms", &std::env::var(ENV_LAG).unwrap_or_else(|_| "0".to_owned())])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("fake-discord: {e}"));
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap_or_else(|| panic!("fake-discord has no output"));
        BufReader::new(stdout).read_line(&mut line).unwrap_or_else(|e| panic!("fake-discord: {e}"));
        let said: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
        if let Some(listening) = said["listening"].as_str() {
            return Some((child, listening.to_owned()));
        }
        child.wait().unwrap_or_else(|e| panic!("fake-discord: {e}"));
        None
    }

    /// The file in which it keeps what it accepts.
    #[must_use]
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// `127.0.0.1:PORT`, the same for all its lives.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What stands in place of `https://discord.com`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its process, while it lives.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Orders something; the error is what the service would say.
    ///
    /// # Errors
    /// What the fake refuses.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn try_order(&self, order: &Order) -> Result<Value, Value> {
        let body = serde_json::to_vec(order).unwrap_or_else(|e| panic!("{order:?}: {e}"));
        let headers = [("content-type", "application/json")];
        let answer = http(&self.address, "POST", "/fake/order", &headers, &body);
        let answer = answer.unwrap_or_else(|e| panic!("{order:?}: {e}"));
        if answer.status == 200 { Ok(answer.json()) } else { Err(answer.json()) }
    }

    /// Orders something.
    ///
    /// # Panics
    /// When it is refused.
    pub fn order<T: DeserializeOwned>(&self, order: &Order) -> T {
        let given = self.try_order(order).unwrap_or_else(|e| panic!("{order:?}: {e}"));
        serde_json::from_value(given).unwrap_or_else(|e| panic!("{order:?}: {e}"))
    }

    pub(super) fn tell(&self, order: &Order) {
        let _: Value = self.order(order);
    }

    /// Asks as a bot does; the path begins after `/api/v10`.
    ///
    /// # Errors
    /// When the connection ends without an answer.
    pub fn rest(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> std::io::Result<HttpAnswer> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let authorization = format!("Bot {token}");
        let headers = [
            ("authorization", authorization.as_str()),
            ("content-type", "application/json"),
            ("user-agent", "DiscordBot (https://example.invalid, 0)"),
        ];
        http(&self.address, method, &format!("/api/v10{path}"), &headers, body.as_bytes())
    }
}

/// The ground.
impl FakeDiscord {
    /// A guild.
    #[must_use]
    pub fn add_guild(&self, name: &str) -> Id {
        self.order(&Order::AddGuild { name: name.to_owned() })
    }

    /// A text channel.
    #[must_use]
    pub fn add_channel(&self, guild: Id, name: &str) -> Id {
        self.order(&Order::AddChannel { guild, name: name.to_owned() })
    }

    /// A person.
    #[must_use]
    pub fn add_user(&self, guild: Id, name: &str) -> Id {
        self.order(&Order::AddUser { guild, name: name.to_owned() })
    }

    /// A role, and who has it.
    #[must_use]
    pub fn add_role(&self, guild: Id, name: &str, mentionable: bool, members: &[Id]) -> Id {
        self.order(&Order::AddRole { guild, name: name.to_owned(), mentionable, members: members.to_vec() })
    }

    /// A bot that is a member and may read what people write.
    #[must_use]
    pub fn add_bot(&self, guild: Id, name: &str, token: &str) -> BotHandle {
        let order = Order::AddBot {
            name: name.to_owned(),
            token: token.to_owned(),
            guilds: vec![guild],
            privileged_intents: intent::MESSAGE_CONTENT,
        };
        let made: Value = self.order(&order);
        let id = |key: &str| made[key].as_u64().unwrap_or_else(|| panic!("no {key}: {made}"));
        BotHandle { user: id("user"), application: id("application"), token: token.to_owned() }
    }

    /// An account becomes a member of another guild.
    pub fn add_member(&self, guild: Id, user: Id) {
        self.tell(&Order::AddMember { guild, user });
    }

    /// A member is gone.
    pub fn remove_member(&self, guild: Id, user: Id) {
        self.tell(&Order::RemoveMember { guild, user });
    }

    /// A member gets a role, or loses it.
    pub fn give_role(&self, guild: Id, user: Id, role: Id, has: bool) {
        self.tell(&Order::GiveRole { guild, user, role, has });
    }

    /// The token of a bot is another one.
    pub fn set_token(&self, bot: Id, token: &str) {
        self.tell(&Order::SetToken { bot, token: token.to_owned() });
    }

    /// What the portal allows a bot.
    pub fn set_privileged_intents(&self, bot: Id, privileged_intents: u64) {
        self.tell(&Order::SetIntents { bot, privileged_intents });
    }

    /// Takes permissions away, in a guild, channel or thread.
    pub fn deny(&self, bot: Id, scope: Id, permissions: &[&str]) {
        let permissions = permissions.iter().map(|&name| name.to_owned()).collect();
        self.tell(&Order::Deny { bot, scope, permissions });
    }

    /// Gives permissions back.
    pub fn allow(&self, bot: Id, scope: Id, permissions: &[&str]) {
        let permissions = permissions.iter().map(|&name| name.to_owned()).collect();
        self.tell(&Order::Allow { bot, scope, permissions });
    }

    /// Changes settings, as `json!({"nonce_window_ms": 1000})`.
    pub fn configure(&self, settings: Value) {
        self.tell(&Order::Configure { settings });
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.order(&Order::Settings)
    }

    /// Switches rules off; those that were off before hold again.
    pub fn without_rules(&self, rules: &[Rule]) {
        self.configure(json!({"rules_off": rules}));
    }

    /// Sets the fake's clock ahead.
    pub fn advance(&self, ms: Ms) {
        self.tell(&Order::Advance { ms });
    }

    /// The fake's time.
    #[must_use]
    pub fn now(&self) -> Ms {
        self.order(&Order::Now)
    }
}

/// What people do.
impl FakeDiscord {
    /// Somebody writes.
    pub fn post(&self, user: Id, channel: Id, content: &str) -> Id {
        self.post_with(user, channel, content, Vec::new(), None)
    }

    /// Somebody writes, with files or in answer to a message.
    pub fn post_with(
        &self,
        user: Id,
        channel: Id,
        content: &str,
        files: Vec<PersonFile>,
        reply_to: Option<Id>,
    ) -> Id {
        self.order(&Order::Post { user, channel, content: content.to_owned(), files, reply_to })
    }

    /// Somebody changes a message.
    pub fn edit(&self, message: Id, content: &str) {
        self.tell(&Order::Edit { message, content: content.to_owned() });
    }

    /// Somebody deletes a message.
    pub fn delete(&self, message: Id) {
        self.tell(&Order::Delete { message });
    }

    /// Somebody reacts.
    pub fn react(&self, user: Id, message: Id, emoji: &str) {
        self.tell(&Order::React { user, message, emoji: emoji.to_owned(), add: true });
    }

    /// Somebody presses a button. An error when there is none, or it is disabled.
    ///
    /// # Errors
    /// What the client would say.
    pub fn click(&self, user: Id, message: Id, custom_id: &str) -> Result<Interaction, Value> {
        self.act(&Order::Click {
            user,
            message,
            custom_id: custom_id.to_owned(),
            values: Vec::new(),
            without_channel: false,
        })
    }

    /// Somebody chooses in a select.
    ///
    /// # Errors
    /// What the client would say.
    pub fn choose(
        &self,
        user: Id,
        message: Id,
        custom_id: &str,
        values: &[&str],
    ) -> Result<Interaction, Value> {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        self.act(&Order::Click {
            user,
            message,
            custom_id: custom_id.to_owned(),
            values,
            without_channel: false,
        })
    }

    /// Somebody uses a slash command, as `acp session close`, with options by name.
    ///
    /// # Errors
    /// What the client would say: no such command or option, a required one missing.
    pub fn command(
        &self,
        user: Id,
        channel: Id,
        bot: &BotHandle,
        command: &str,
        options: &[(&str, Value)],
    ) -> Result<Interaction, Value> {
        self.use_command(user, channel, bot, command, options, None)
    }

    /// Somebody types into an option: an autocompletion.
    ///
    /// # Errors
    /// What the client would say: no such command or option, or no autocompletion there.
    pub fn autocomplete(
        &self,
        user: Id,
        channel: Id,
        bot: &BotHandle,
        command: &str,
        (option, typed): (&str, &str),
    ) -> Result<Interaction, Value> {
        self.use_command(user, channel, bot, command, &[(option, json!(typed))], Some(option.to_owned()))
    }

    fn use_command(
        &self,
        user: Id,
        channel: Id,
        bot: &BotHandle,
        command: &str,
        options: &[(&str, Value)],
        focused: Option<String>,
    ) -> Result<Interaction, Value> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let command = command.to_owned();
        self.act(&Order::Use { user, channel, bot: bot.user, command, options, focused })
    }

    /// Somebody sends off the modal that an interaction was answered with.
    ///
    /// # Errors
    /// When there is no modal.
    pub fn submit(&self, interaction: Id, values: &[(&str, &str)]) -> Result<Interaction, Value> {
        let values = values.iter().map(|(id, text)| ((*id).to_owned(), (*text).to_owned())).collect();
        self.act(&Order::Submit { interaction, values })
    }

    fn act(&self, order: &Order) -> Result<Interaction, Value> {
        let given = self.try_order(order)?;
        Ok(serde_json::from_value(given).unwrap_or_else(|e| panic!("{order:?}: {e}")))
    }

    /// Somebody makes a thread.
    #[must_use]
    pub fn make_thread(&self, user: Id, channel: Id, name: &str, message: Option<Id>) -> Id {
        self.order(&Order::MakeThread { user, channel, name: name.to_owned(), message })
    }

    /// Somebody archives a thread, or wakes it.
    pub fn archive(&self, thread: Id, archived: bool) {
        self.change(thread, json!({"archived": archived}));
    }

    /// Somebody archives and locks a thread, or unlocks it.
    pub fn lock(&self, thread: Id, locked: bool) {
        self.change(thread, json!({"archived": locked, "locked": locked}));
    }

    /// Somebody renames a channel or thread.
    pub fn rename(&self, channel: Id, name: &str) {
        self.change(channel, json!({"name": name}));
    }

    /// Somebody changes a channel or thread.
    pub fn change(&self, channel: Id, form: Value) {
        self.tell(&Order::Change { channel, form });
    }

    /// Somebody deletes a channel or thread.
    pub fn delete_channel(&self, channel: Id) {
        self.tell(&Order::DeleteChannel { channel });
    }

    /// Somebody deletes a webhook.
    pub fn delete_webhook(&self, webhook: Id) {
        self.tell(&Order::DeleteWebhook { webhook });
    }

    /// A webhook has another token from now on.
    pub fn rotate_webhook(&self, webhook: Id) {
        self.tell(&Order::RotateWebhook { webhook });
    }
}

/// What there is to see.
impl FakeDiscord {
    /// Messages of a channel in the order in which they were made, the deleted ones too.
    #[must_use]
    pub fn transcript(&self, channel: Id) -> Vec<Message> {
        self.order(&Order::Transcript { channel: Some(channel) })
    }

    /// All messages.
    #[must_use]
    pub fn whole_transcript(&self) -> Vec<Message> {
        self.order(&Order::Transcript { channel: None })
    }

    /// What is in a file of a message.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn file(&self, id: Id) -> Vec<u8> {
        let answer = http(&self.address, "GET", &format!("/fake/file/{id}"), &[], &[]);
        let answer = answer.unwrap_or_else(|e| panic!("file {id}: {e}"));
        assert_eq!(answer.status, 200, "file {id}");
        answer.body
    }

    /// Channels and threads, the deleted ones too.
    #[must_use]
    pub fn channels(&self) -> Vec<Channel> {
        self.order(&Order::Channels)
    }

    /// A channel or thread.
    ///
    /// # Panics
    /// When there was never one.
    #[must_use]
    pub fn channel(&self, id: Id) -> Channel {
        let found = self.channels().into_iter().find(|channel| channel.id == id);
        found.unwrap_or_else(|| panic!("no channel {id}"))
    }

    /// Threads of a channel.
    #[must_use]
    pub fn threads_of(&self, parent: Id) -> Vec<Channel> {
        self.channels().into_iter().filter(|channel| channel.parent_id == Some(parent)).collect()
    }

    /// Interactions with their answers.
    #[must_use]
    pub fn interactions(&self) -> Vec<Interaction> {
        self.order(&Order::Interactions)
    }

    /// An interaction as it stands now.
    ///
    /// # Panics
    /// When there was never one.
    #[must_use]
    pub fn interaction(&self, id: Id) -> Interaction {
        let found = self.interactions().into_iter().find(|interaction| interaction.id == id);
        found.unwrap_or_else(|| panic!("no interaction {id}"))
    }

    /// Commands.
    #[must_use]
    pub fn commands(&self) -> Vec<Command> {
        self.order(&Order::Commands)
    }

    /// Webhooks.
    #[must_use]
    pub fn webhooks(&self) -> Vec<Webhook> {
        self.order(&Order::Webhooks)
    }

    /// Whether a bot has a connection to the gateway, with a session.
    #[must_use]
    pub fn connected(&self, bot: Id) -> bool {
        let bots: Vec<Value> = self.order(&Order::Bots);
        bots.iter().any(|found| found["bot"]["user_id"] == json!(bot) && found["connected"] == json!(true))
    }

    /// What is on its way.
    #[must_use]
    pub fn underway(&self) -> Underway {
        self.order(&Order::Underway)
    }

    /// Counts since the process began.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.order(&Order::Tally)
    }
}

impl Drop for FakeDiscord {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The test is over, one way or the other.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
