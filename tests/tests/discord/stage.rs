//! Test setup: services whose gateway serves one bot of a fake Discord, and its users.

use acp_tests::fake_discord::FakeDiscord;
use acp_tests::fake_discord::client::BotHandle;
use acp_tests::fake_discord::core::model::message_flag::EPHEMERAL;
use acp_tests::fake_discord::core::model::message_kind::THREAD_STARTER;
use acp_tests::fake_discord::core::model::{Command, Id, Interaction, Message};
use acp_tests::house::{AGENT, GATEWAY, House, Plan};
use acp_tests::locked::DatabaseLock;
use acp_tests::wait::{SOON, eventually, until};
use acp_tests::world::GATEWAY_DB;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Live cards with the shortest permitted interval.
pub const LIVE: &str =
    "[acp.stream]\ndelivery_mode = \"live\"\nmin_interval_ms = 500\ncoalesce_idle_ms = 750\n";
/// Route of new messages.
pub const CREATE: &str = "POST /channels/{}/messages";

const TOKEN: &str = "discord-token";
/// Refusals that only invalid requests cause: bad form, empty, a foreign message, edits of old messages.
const NEVER: [u32; 6] = [50035, 50006, 50109, 50005, 50024, 30046];

/// Setup before the services start: values for their settings.
pub struct Ground<'a> {
    pub fake: &'a FakeDiscord,
    pub guild: Id,
    pub channel: Id,
    pub ann: Id,
    pub eve: Id,
    /// Directory for files.
    pub dir: &'a Path,
}

/// Running services with one bot and three users: `ann` may prompt, `boss` may prompt and approve, `eve` may do nothing.
pub struct Stage {
    // In drop order.
    pub house: House,
    pub fake: FakeDiscord,
    pub guild: Id,
    pub channel: Id,
    pub ann: Id,
    pub boss: Id,
    pub eve: Id,
    pub bot: BotHandle,
    pub agent: &'static str,
    dir: TempDir,
}

impl Stage {
    /// Starts a stage with flags of the agent and additional settings of the gateway.
    pub fn new(flags: &[&str], more: &str) -> Self {
        Self::on(flags, |_| more.to_owned())
    }

    /// Starts a stage with settings that depend on the ground.
    pub fn on(flags: &[&str], more: impl FnOnce(&Ground<'_>) -> String) -> Self {
        Self::of(AGENT, more, |toml| Plan::flags(flags).gateway(toml).build())
    }

    /// Starts a stage with this plan and additional settings of the gateway.
    pub fn built(plan: Plan, more: &str) -> Self {
        Self::of(AGENT, |_| more.to_owned(), |toml| plan.gateway(toml).build())
    }

    /// Starts a stage of this agent; `build` starts the services with the gateway's TOML.
    pub fn of(
        agent: &'static str,
        more: impl FnOnce(&Ground<'_>) -> String,
        build: impl FnOnce(&str) -> House,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let fake = FakeDiscord::start(dir.path());
        let guild = fake.add_guild("guild");
        let channel = fake.add_channel(guild, "general");
        let [ann, boss, eve] = ["ann", "boss", "eve"].map(|name| fake.add_user(guild, name));
        let bot = fake.add_bot(guild, "acp-host", TOKEN);
        let token = write_token(dir.path(), "token", TOKEN);
        let more = more(&Ground { fake: &fake, guild, channel, ann, eve, dir: dir.path() });
        let toml = format!(
            "[log]\nlevel = \"info\"\n\
             [channels.discord.thread_bindings]\nspawn_acp_sessions = true\n\
             [channels.discord.accounts.main]\ntoken_file = \"{}\"\nbase_url = \"{}\"\n\
             allowed_users = [\"{ann}\"]\napprover_users = [\"{boss}\"]\n{more}\n",
            token.display(),
            fake.url()
        );
        let house = build(&toml);
        let stage = Self { house, fake, guild, channel, ann, boss, eve, bot, agent, dir };
        stage.is_there();
        stage
    }

    /// Writes another token into the bot's file.
    pub fn write_token(&self, token: &str) {
        write_token(self.dir.path(), "token", token);
    }

    /// Reloads the gateway's configuration.
    pub fn reload(&self) {
        assert!(self.house.gateway().signal(Signal::HUP), "the gateway is gone");
    }

    /// Makes the gateway read its configuration again, and waits until the accounts have their settings.
    pub fn reload_accounts(&self) {
        let applied = || self.house.gateway_log().matches("Discord account settings applied").count();
        let before = applied();
        self.reload();
        until(SOON, "settings applied", || applied() > before);
    }

    /// Replaces `from` in the gateway's configuration file.
    pub fn replace_in_config(&self, from: &str, to: &str) {
        let file = self.house.world.path("gateway.toml");
        let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{e}"));
        assert!(text.contains(from), "{text}");
        self.house.world.write("gateway.toml", &text.replace(from, to));
    }

    /// Binds the channel in the configuration file, and reloads it.
    pub fn bind_channel(&self) {
        let cwd = self.house.world.dir("work/project").display().to_string();
        let entry = format!(
            "[[bindings]]\nchannel = \"discord\"\naccount = \"main\"\nconversation = \"{}\"\n\
             agent = \"{AGENT}\"\ncwd = \"{cwd}\"\n",
            self.channel
        );
        self.replace_in_config("[log]", &format!("{entry}[log]"));
        self.reload_accounts();
    }

    /// Line of `doctor` about an account.
    pub fn doctor(&self, account: &str) -> String {
        let (output, start) = (self.house.cli(&["doctor"]).stdout, format!("{account}: "));
        output.lines().find(|line| line.contains(&start)).unwrap_or_default().to_owned()
    }

    /// Waits until a thread's binding has this status in the journal: Discord does not show a parked binding.
    pub fn binding_becomes(&self, deadline: Duration, thread: Id, want: &str) {
        let sql = "SELECT status FROM acp_bindings WHERE thread_id = ?1";
        until(deadline, want, || {
            let db = self.house.world.journal(GATEWAY);
            db.query_row(sql, [thread.to_string()], |row| row.get::<_, String>(0)).is_ok_and(|is| is == want)
        });
    }

    /// True if a thread is archived.
    pub fn is_archived(&self, thread: Id) -> bool {
        self.fake.channel(thread).thread.is_some_and(|thread| thread.archived)
    }

    /// State of the session with this key.
    pub fn session_state(&self, key: &str) -> Value {
        self.house.verb(&["sessions", "show", key])["state"].clone()
    }

    /// Locks the database: the gateway cannot commit until the lock is dropped.
    pub fn locked(&self) -> DatabaseLock {
        let file = self.house.world.path(GATEWAY).join(GATEWAY_DB);
        DatabaseLock::acquire(&file).unwrap_or_else(|| panic!("the database is never free"))
    }

    /// Waits until the bot is connected and its commands are registered.
    pub fn is_there(&self) {
        let is_own = |command: &Command| command.application_id == self.bot.application;
        until(SOON, "bot connected with commands", || {
            self.fake.is_connected(self.bot.user) && self.fake.commands().iter().any(is_own)
        });
    }

    /// Kills the gateway and starts another one, and waits until the bot is connected again.
    pub fn restart_gateway(&mut self) {
        self.house.restart_gateway();
        self.is_there();
    }

    /// Posts a message of `ann` and waits until the answers in the thread are these; returns the message.
    pub fn exchange(&self, thread: Id, text: &str, want: &[&str]) -> Id {
        let message = self.fake.post(self.ann, thread, text);
        self.answers(thread, want);
        message
    }

    /// Posts a message of `ann` and waits until the agent has received it.
    pub fn begin_turn(&self, thread: Id, text: &str) {
        self.fake.post(self.ann, thread, text);
        until(SOON, "prompt received", || self.house.prompts_received(text) == 1);
    }

    /// Uses a command and returns the interaction with its acknowledgement, which must be in time.
    pub fn command(&self, user: Id, channel: Id, command: &str, options: &[(&str, Value)]) -> Interaction {
        let used = self.fake.command(user, channel, &self.bot, command, options);
        self.acknowledged(used.unwrap_or_else(|e| panic!("/{command}: {e}")).id)
    }

    /// Autocomplete suggestions for an option: names and values.
    pub fn suggestions(
        &self,
        user: Id,
        channel: Id,
        command: &str,
        typed: (&str, &str),
    ) -> Vec<(String, String)> {
        let used = self.fake.autocomplete(user, channel, &self.bot, command, typed);
        let used = self.acknowledged(used.unwrap_or_else(|e| panic!("/{command}: {e}")).id);
        let data = used.answered.map(|answered| answered.data).unwrap_or_default();
        let choices = data["choices"].as_array().cloned().unwrap_or_else(|| panic!("no choices: {data}"));
        let text = |choice: &Value, key: &str| choice[key].as_str().unwrap_or_default().to_owned();
        choices.iter().map(|choice| (text(choice, "name"), text(choice, "value"))).collect()
    }

    /// Presses a button by its label.
    pub fn press(&self, user: Id, message: &Message, label: &str) -> Interaction {
        let id = button(message, label);
        let used = self.fake.click(user, message.id, &id);
        self.acknowledged(used.unwrap_or_else(|e| panic!("{label}: {e}")).id)
    }

    /// Submits the modal that a click opened.
    pub fn submit(&self, user: Id, opened: &Interaction, values: &[(&str, &str)]) -> Interaction {
        let used = self.fake.submit(user, opened.id, values);
        self.acknowledged(used.unwrap_or_else(|e| panic!("{values:?}: {e}")).id)
    }

    fn acknowledged(&self, id: Id) -> Interaction {
        let acknowledged = eventually(SOON, "the interaction is acknowledged", || {
            Some(self.fake.interaction(id)).filter(|interaction| interaction.answered.is_some())
        });
        let after = acknowledged.answered.as_ref().map_or(0, |it| it.at_ms - acknowledged.created_ms);
        assert!(after < 3_000, "acknowledged after {after} ms");
        acknowledged
    }

    /// Final reply of a command.
    pub fn answer(&self, interaction: &Interaction) -> String {
        eventually(SOON, "command answered", || {
            let original = self.fake.interaction(interaction.id).original_id?;
            let all = self.fake.whole_transcript();
            let message = all.into_iter().find(|message| message.id == original)?;
            (!message.content.is_empty()).then_some(message.content)
        })
    }

    /// Ephemeral reply of an interaction.
    pub fn private_answer(&self, interaction: &Interaction) -> String {
        eventually(SOON, "the interaction is answered", || {
            let of = |message: &&Message| {
                message.origin.as_ref().is_some_and(|origin| origin.interaction_id == interaction.id)
                    && message.flags & EPHEMERAL != 0
                    && !message.content.is_empty()
            };
            self.fake.whole_transcript().iter().rfind(of).map(|message| message.content.clone())
        })
    }

    /// Starts a session in a new thread, which is returned.
    pub fn spawn(&self) -> Id {
        self.spawn_of(self.agent, &[])
    }

    /// Starts a session in a new thread, and returns the stage with that thread.
    pub fn with_thread(self) -> (Self, Id) {
        let thread = self.spawn();
        (self, thread)
    }

    /// Starts a session of another agent with additional options in a new thread.
    pub fn spawn_of(&self, agent: &str, more: &[(&str, Value)]) -> Id {
        self.spawned("work/project", agent, more)
    }

    /// Starts a session that works in a directory of the world, in a new thread, which is returned.
    pub fn spawn_in(&self, dir: &str) -> Id {
        self.spawned(dir, self.agent, &[])
    }

    fn spawned(&self, dir: &str, agent: &str, more: &[(&str, Value)]) -> Id {
        let before = self.fake.threads_of(self.channel).len();
        let cwd = self.house.world.dir(dir).display().to_string();
        let own = [("agent", json!(agent)), ("cwd", json!(cwd)), ("thread", json!("auto"))];
        let options = [&own[..], more].concat();
        let used = self.command(self.ann, self.channel, "acp spawn", &options);
        let said = self.answer(&used);
        assert!(said.contains(agent), "{said}");
        let threads = self.fake.threads_of(self.channel);
        assert_eq!(threads.len(), before + 1, "{said}");
        let thread = threads.iter().map(|thread| thread.id).max().unwrap_or_default();
        until(SOON, "first message in thread", || !self.told(thread).is_empty());
        thread
    }

    /// The key of the session that works in a thread, as its first message names it.
    pub fn key(&self, thread: Id) -> String {
        let starter = self.message(thread, self.channel).content;
        let key = starter.split("session ").nth(1).and_then(|rest| rest.split([',', ' ']).next());
        key.unwrap_or_else(|| panic!("no session: {starter}")).trim_end_matches('.').to_owned()
    }

    /// Undeleted messages of the bot and of its application's webhooks in a channel, in order.
    pub fn told(&self, channel: Id) -> Vec<Message> {
        let all = self.fake.transcript(channel);
        let is_its = |it: &Message| it.author_id == self.bot.user || self.is_through_webhook(it);
        all.into_iter().filter(|it| is_its(it) && it.deleted_ms.is_none()).collect()
    }

    /// True for messages of a webhook of the bot's application.
    pub fn is_through_webhook(&self, message: &Message) -> bool {
        message.webhook_id == Some(message.author_id) && message.application_id == Some(self.bot.application)
    }

    /// Answers of turns in a thread: messages with a turn's footer, without it.
    pub fn finals(&self, thread: Id) -> Vec<String> {
        let of = |message: Message| Some(without_footer(&message.content, self.agent)?.to_owned());
        self.told(thread).into_iter().filter_map(of).collect()
    }

    /// Waits until the answers in a thread are these, each once and in this order.
    pub fn answers(&self, thread: Id, want: &[&str]) {
        let deadline = std::time::Instant::now() + 2 * SOON;
        until(3 * SOON, "expected answers shown", || {
            self.finals(thread).len() >= want.len() || std::time::Instant::now() > deadline
        });
        assert_eq!(self.finals(thread), want, "{:#?}", texts(&self.told(thread)));
    }

    /// Waits for a message of the bot whose text contains `part`.
    pub fn said(&self, channel: Id, part: &str) -> Message {
        let mut seen = Vec::new();
        let end = std::time::Instant::now() + SOON;
        let found = eventually(2 * SOON, "message shown", || {
            let told = self.told(channel);
            seen = texts(&told);
            let found = told.into_iter().rfind(|message| message.content.contains(part));
            (found.is_some() || std::time::Instant::now() > end).then_some(found)
        });
        found.unwrap_or_else(|| panic!("{part:?} was not said: {seen:#?}"))
    }

    /// Waits until a message contains `part`.
    pub fn shows(&self, message: &Message, part: &str) -> Message {
        eventually(SOON, part, || {
            let now = self.message(message.id, message.channel_id);
            now.content.contains(part).then_some(now)
        })
    }

    /// Current state of a message.
    pub fn message(&self, id: Id, channel: Id) -> Message {
        let all = self.fake.transcript(channel);
        all.into_iter().find(|message| message.id == id).unwrap_or_else(|| panic!("no message {id}"))
    }

    /// Waits until the gateway has read a thread up to this message.
    pub fn was_read(&self, thread: Id, message: Id) {
        let sql = "SELECT backfilled_through FROM acp_bindings WHERE thread_id = ?1 AND status <> 'ended'";
        until(SOON, "message read", || {
            let db = self.house.world.journal(GATEWAY);
            let mark = db.query_row(sql, [thread.to_string()], |row| row.get::<_, Option<String>>(0));
            mark.ok().flatten().and_then(|mark| mark.parse::<Id>().ok()).is_some_and(|mark| mark >= message)
        });
    }

    /// Waits until a message has a reaction of the bot's.
    pub fn reacted(&self, message: Id, channel: Id, emoji: &str) {
        until(SOON, emoji, || {
            let now = self.message(message, channel);
            now.reactions.get(emoji).is_some_and(|who| who.contains(&self.bot.user))
        });
    }

    /// Checks every message of the bot and shuts the services down.
    pub fn end(self) {
        assert_eq!(self.fake.tally().late_responses, 0);
        self.end_and_look(|_| {});
    }

    /// Same as [`Stage::end`], and calls `look` after everything else has ended.
    pub fn end_and_look(mut self, look: impl FnOnce(&mut FakeDiscord)) {
        for message in self.fake.whole_transcript() {
            // Discord itself adds the starter to a thread.
            let is_sent = message.origin.is_none() && message.kind != THREAD_STARTER;
            if message.author_id == self.bot.user && is_sent {
                assert!(message.nonce.is_some() && message.enforce_nonce, "{message:?}");
            }
            let is_its = message.author_id == self.bot.user || self.is_through_webhook(&message);
            assert!(!is_its || message.pinged.is_empty(), "{message:?}");
        }
        let tally = self.fake.tally();
        assert_eq!(tally.refused_with(&NEVER), 0, "a request that Discord never takes: {tally:?}");
        // Codes for a revoked token or intent.
        let theirs = |code: &u16| [4004, 4014].contains(code);
        assert!(tally.closes.keys().all(theirs), "closed for a mistake of ours: {tally:?}");
        self.house.end();
        look(&mut self.fake);
    }
}

/// Message without its footer and tag; `None` without a footer. The footer names the agent, so that [`untagged`] does
/// not remove it.
pub fn without_footer<'a>(content: &'a str, agent: &str) -> Option<&'a str> {
    let (text, line) = untagged(content).rsplit_once("\n-# ")?;
    (line.strip_prefix(agent)?.starts_with(" · ")).then_some(text)
}

/// Message without the tag that tells it from another message with the same text.
pub fn untagged(content: &str) -> &str {
    let tagged = content.rsplit_once("\n-# ");
    let is_tag = |tag: &str| tag.len() == 6 && tag.chars().all(|c| c.is_ascii_alphanumeric());
    tagged.filter(|(_, tag)| is_tag(tag)).map_or(content, |(text, _)| text)
}

/// Writes a token into a file, which is returned.
pub fn write_token(dir: &Path, name: &str, token: &str) -> PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, format!("{token}\n")).unwrap_or_else(|e| panic!("{e}"));
    file
}

/// The texts of messages.
pub fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.content.clone()).collect()
}

/// The labels of a message's buttons, in order.
pub fn labels(message: &Message) -> Vec<String> {
    buttons(message).iter().filter_map(|button| Some(button["label"].as_str()?.to_owned())).collect()
}

/// The style of a message's button, as Discord counts them: 1 to 4.
pub fn style(message: &Message, label: &str) -> u64 {
    let found = buttons(message).into_iter().find(|button| button["label"] == label);
    let style = found.and_then(|button| button["style"].as_u64());
    style.unwrap_or_else(|| panic!("no button {label}: {message:?}"))
}

/// Custom id of a button.
pub fn button(message: &Message, label: &str) -> String {
    let buttons = buttons(message);
    let found = buttons.iter().find(|button| button["label"] == label);
    let id = found.and_then(|button| button["custom_id"].as_str());
    id.unwrap_or_else(|| panic!("no button {label}: {message:?}")).to_owned()
}

fn buttons(message: &Message) -> Vec<Value> {
    let rows = message.components.iter().filter_map(|row| row["components"].as_array());
    rows.flatten().cloned().collect()
}
