//! The test's handle of the fake: a process that can be killed and restarted at the same address, and its
//! orders.
//!
//! All calls block, and panic if the fake does not answer correctly: a test cannot continue without it.

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

/// Environment variable: maximum network delay of a request, an answer or an event, in milliseconds. Tests
/// must pass with any delay; a failure shows a test that does not wait for the state that it checks.
const ENV_LAG: &str = "ACP_TEST_LAG_MS";

/// Ids and token of a bot.
#[derive(Debug, Clone)]
pub struct BotHandle {
    /// The id of its account.
    pub user: Id,
    /// The id of its application.
    pub application: Id,
    /// Its token.
    pub token: String,
}

/// The fake in its own process.
#[derive(Debug)]
pub struct FakeDiscord {
    child: Option<Child>,
    store: PathBuf,
    address: String,
}

impl FakeDiscord {
    /// Starts a fake whose store is in a directory.
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

    /// Kills it with SIGKILL. Its connections are closed at once.
    ///
    /// # Panics
    /// When the process cannot be killed.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let killed = child.kill().and_then(|()| child.wait());
            killed.unwrap_or_else(|e| panic!("kill the fake: {e}"));
        }
    }

    /// Restarts it at the same address with the same store; kills it first if it is running.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let store = self.store.clone();
        let address = self.address.clone();
        // Connections of the previous process may occupy the port for a moment.
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

    /// The database file of its store.
    #[must_use]
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// `127.0.0.1:PORT`, the same after a restart.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Base URL, in place of `https://discord.com`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its pid, while it is running.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Sends an order; the error is the one that Discord would return.
    ///
    /// # Errors
    /// If the fake refuses the order.
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

    /// Sends an order.
    ///
    /// # Panics
    /// When it is refused.
    pub fn order<T: DeserializeOwned>(&self, order: &Order) -> T {
        let given = self.try_order(order).unwrap_or_else(|e| panic!("{order:?}: {e}"));
        serde_json::from_value(given).unwrap_or_else(|e| panic!("{order:?}: {e}"))
    }

    pub(super) fn send(&self, order: &Order) {
        let _: Value = self.order(order);
    }

    /// Sends a REST request as a bot; the path begins after `/api/v10`.
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

/// Set-up: guilds, channels, members and settings.
impl FakeDiscord {
    /// Adds a guild.
    #[must_use]
    pub fn add_guild(&self, name: &str) -> Id {
        self.order(&Order::AddGuild { name: name.to_owned() })
    }

    /// Adds a text channel.
    #[must_use]
    pub fn add_channel(&self, guild: Id, name: &str) -> Id {
        self.order(&Order::AddChannel { guild, name: name.to_owned() })
    }

    /// Adds the channel of direct messages of a person with a bot.
    #[must_use]
    pub fn add_direct(&self, user: Id, bot: Id) -> Id {
        self.order(&Order::AddDirect { user, bot })
    }

    /// Adds a person to a guild.
    #[must_use]
    pub fn add_user(&self, guild: Id, name: &str) -> Id {
        self.order(&Order::AddUser { guild, name: name.to_owned() })
    }

    /// Adds a role with its members.
    #[must_use]
    pub fn add_role(&self, guild: Id, name: &str, mentionable: bool, members: &[Id]) -> Id {
        self.order(&Order::AddRole { guild, name: name.to_owned(), mentionable, members: members.to_vec() })
    }

    /// Adds a bot that is a member and has the message content intent.
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

    /// Adds an account to another guild.
    pub fn add_member(&self, guild: Id, user: Id) {
        self.send(&Order::AddMember { guild, user });
    }

    /// Removes a member.
    pub fn remove_member(&self, guild: Id, user: Id) {
        self.send(&Order::RemoveMember { guild, user });
    }

    /// Adds a role to a member, or removes it.
    pub fn give_role(&self, guild: Id, user: Id, role: Id, has: bool) {
        self.send(&Order::GiveRole { guild, user, role, has });
    }

    /// Changes the token of a bot.
    pub fn set_token(&self, bot: Id, token: &str) {
        self.send(&Order::SetToken { bot, token: token.to_owned() });
    }

    /// Sets the privileged intents that the developer portal allows a bot.
    pub fn set_privileged_intents(&self, bot: Id, privileged_intents: u64) {
        self.send(&Order::SetIntents { bot, privileged_intents });
    }

    /// Denies permissions in a guild, channel or thread.
    pub fn deny(&self, bot: Id, scope: Id, permissions: &[&str]) {
        let permissions = permissions.iter().map(|&name| name.to_owned()).collect();
        self.send(&Order::Deny { bot, scope, permissions });
    }

    /// Allows permissions again.
    pub fn allow(&self, bot: Id, scope: Id, permissions: &[&str]) {
        let permissions = permissions.iter().map(|&name| name.to_owned()).collect();
        self.send(&Order::Allow { bot, scope, permissions });
    }

    /// Changes settings, for example `json!({"nonce_window_ms": 1000})`.
    pub fn configure(&self, settings: Value) {
        self.send(&Order::Configure { settings });
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.order(&Order::Settings)
    }

    /// Switches these rules off and all others on.
    pub fn disable_rules(&self, rules: &[Rule]) {
        self.configure(json!({"rules_off": rules}));
    }

    /// Advances the fake's clock.
    pub fn advance(&self, ms: Ms) {
        self.send(&Order::Advance { ms });
    }

    /// The fake's time.
    #[must_use]
    pub fn now(&self) -> Ms {
        self.order(&Order::Now)
    }
}

/// Actions of people.
impl FakeDiscord {
    /// A person posts a message.
    pub fn post(&self, user: Id, channel: Id, content: &str) -> Id {
        self.post_with(user, channel, content, Vec::new())
    }

    /// A person posts a message with files.
    pub fn post_with(&self, user: Id, channel: Id, content: &str, files: Vec<PersonFile>) -> Id {
        self.order(&Order::Post { user, channel, content: content.to_owned(), files })
    }

    /// A person edits a message.
    pub fn edit(&self, message: Id, content: &str) {
        self.send(&Order::Edit { message, content: content.to_owned() });
    }

    /// A person deletes a message.
    pub fn delete(&self, message: Id) {
        self.send(&Order::Delete { message });
    }

    /// A person clicks a button. An error if it does not exist or is disabled.
    ///
    /// # Errors
    /// The error that the Discord client would show.
    pub fn click(&self, user: Id, message: Id, custom_id: &str) -> Result<Interaction, Value> {
        self.act(&Order::Click { user, message, custom_id: custom_id.to_owned() })
    }

    /// A person submits the modal that opened after a click; inputs without a value keep theirs.
    ///
    /// # Errors
    /// The error that the Discord client would show: no modal, or a required input without a value.
    pub fn submit(&self, user: Id, interaction: Id, values: &[(&str, &str)]) -> Result<Interaction, Value> {
        let values = values.iter().map(|(id, value)| ((*id).to_owned(), (*value).to_owned())).collect();
        self.act(&Order::Submit { user, interaction, values })
    }

    /// A person uses a slash command, for example `acp session close`, with options by name.
    ///
    /// # Errors
    /// The error that the Discord client would show: no such command or option, or a required one missing.
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

    /// A person types into an option with autocompletion.
    ///
    /// # Errors
    /// The error that the Discord client would show: no such command or option, or no autocompletion there.
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

    fn act(&self, order: &Order) -> Result<Interaction, Value> {
        let given = self.try_order(order)?;
        Ok(serde_json::from_value(given).unwrap_or_else(|e| panic!("{order:?}: {e}")))
    }

    /// A person creates a thread.
    #[must_use]
    pub fn make_thread(&self, user: Id, channel: Id, name: &str, message: Option<Id>) -> Id {
        self.order(&Order::MakeThread { user, channel, name: name.to_owned(), message })
    }

    /// A person archives or unarchives a thread.
    pub fn archive(&self, thread: Id, archived: bool) {
        self.change(thread, json!({"archived": archived}));
    }

    /// A person archives and locks a thread, or reverts both.
    pub fn lock(&self, thread: Id, locked: bool) {
        self.change(thread, json!({"archived": locked, "locked": locked}));
    }

    /// A person renames a thread.
    pub fn rename(&self, thread: Id, name: &str) {
        self.change(thread, json!({"name": name}));
    }

    /// A person changes a thread.
    pub fn change(&self, thread: Id, form: Value) {
        self.send(&Order::Change { channel: thread, form });
    }

    /// A person deletes a channel or thread.
    pub fn delete_channel(&self, channel: Id) {
        self.send(&Order::DeleteChannel { channel });
    }

    /// A person deletes a webhook.
    pub fn delete_webhook(&self, webhook: Id) {
        self.send(&Order::DeleteWebhook { webhook });
    }

    /// Changes the token of a webhook.
    pub fn rotate_webhook(&self, webhook: Id) {
        self.send(&Order::RotateWebhook { webhook });
    }
}

/// Queries.
impl FakeDiscord {
    /// Messages of a channel in order of creation, including deleted ones.
    #[must_use]
    pub fn transcript(&self, channel: Id) -> Vec<Message> {
        self.order(&Order::Transcript { channel: Some(channel) })
    }

    /// All messages.
    #[must_use]
    pub fn whole_transcript(&self) -> Vec<Message> {
        self.order(&Order::Transcript { channel: None })
    }

    /// Content of a file of a message.
    ///
    /// # Panics
    /// When it does not exist.
    #[must_use]
    pub fn file(&self, id: Id) -> Vec<u8> {
        let answer = http(&self.address, "GET", &format!("/fake/file/{id}"), &[], &[]);
        let answer = answer.unwrap_or_else(|e| panic!("file {id}: {e}"));
        assert_eq!(answer.status, 200, "file {id}");
        answer.body
    }

    /// Channels and threads, including deleted ones.
    #[must_use]
    pub fn channels(&self) -> Vec<Channel> {
        self.order(&Order::Channels)
    }

    /// A channel or thread.
    ///
    /// # Panics
    /// When it never existed.
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

    /// All interactions with their responses.
    #[must_use]
    pub fn interactions(&self) -> Vec<Interaction> {
        self.order(&Order::Interactions)
    }

    /// The current state of an interaction.
    ///
    /// # Panics
    /// When it never existed.
    #[must_use]
    pub fn interaction(&self, id: Id) -> Interaction {
        let found = self.interactions().into_iter().find(|interaction| interaction.id == id);
        found.unwrap_or_else(|| panic!("no interaction {id}"))
    }

    /// All registered commands.
    #[must_use]
    pub fn commands(&self) -> Vec<Command> {
        self.order(&Order::Commands)
    }

    /// All webhooks.
    #[must_use]
    pub fn webhooks(&self) -> Vec<Webhook> {
        self.order(&Order::Webhooks)
    }

    /// Whether a bot has a gateway connection with a session.
    #[must_use]
    pub fn is_connected(&self, bot: Id) -> bool {
        let bots: Vec<Value> = self.order(&Order::Bots);
        bots.iter().any(|found| found["bot"]["user_id"] == json!(bot) && found["connected"] == json!(true))
    }

    /// Operations in progress.
    #[must_use]
    pub fn underway(&self) -> Underway {
        self.order(&Order::Underway)
    }

    /// Violations of the description since the process began; none if the fake does not answer any more.
    fn violations(&self) -> Vec<String> {
        let body = serde_json::to_vec(&Order::Tally).unwrap_or_default();
        let answer =
            http(&self.address, "POST", "/fake/order", &[("content-type", "application/json")], &body);
        let tally: Option<Tally> = answer.ok().and_then(|answer| serde_json::from_value(answer.json()).ok());
        tally.unwrap_or_default().violations
    }

    /// Counts since the process began.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.order(&Order::Tally)
    }
}

impl Drop for FakeDiscord {
    /// Ends the process. Fails the test if a request of the product violated Discord's OpenAPI description.
    fn drop(&mut self) {
        let is_running = self.child.is_some() && !std::thread::panicking();
        let violations = if is_running { self.violations() } else { Vec::new() };
        if let Some(mut child) = self.child.take() {
            // The test has ended; errors no longer matter.
            let _ = child.kill();
            let _ = child.wait();
        }
        assert!(
            violations.is_empty(),
            "requests that Discord's OpenAPI description does not have: {violations:#?}"
        );
    }
}
