//! The ground: a house whose gateway serves one bot of a fake Discord, and the people there.

use acp_tests::fake_discord::FakeDiscord;
use acp_tests::fake_discord::client::BotHandle;
use acp_tests::fake_discord::core::model::message_flag::EPHEMERAL;
use acp_tests::fake_discord::core::model::message_kind::THREAD_STARTER;
use acp_tests::fake_discord::core::model::{Id, Interaction, Message};
use acp_tests::house::{AGENT, House, Plan};
use acp_tests::wait::{SOON, eventually, until};
use serde_json::{Value, json};
use tempfile::TempDir;

const TOKEN: &str = "discord-token";

/// Two people who may speak to agents, of whom one may answer what they ask; one who may do nothing; and one bot.
pub struct Stage {
    // In the order of their ends.
    pub house: House,
    pub fake: FakeDiscord,
    pub channel: Id,
    pub ann: Id,
    pub boss: Id,
    pub eve: Id,
    pub bot: BotHandle,
    _dir: TempDir,
}

impl Stage {
    /// A stage of which the agent has these flags and the gateway these settings more.
    pub fn new(flags: &[&str], more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let fake = FakeDiscord::start(dir.path());
        let guild = fake.add_guild("guild");
        let channel = fake.add_channel(guild, "general");
        let [ann, boss, eve] = ["ann", "boss", "eve"].map(|name| fake.add_user(guild, name));
        let bot = fake.add_bot(guild, "bot", TOKEN);
        let token = dir.path().join("token");
        std::fs::write(&token, format!("{TOKEN}\n")).unwrap_or_else(|e| panic!("{e}"));
        let toml = format!(
            "[log]\nlevel = \"info\"\n\
             [channels.discord.thread_bindings]\nspawn_acp_sessions = true\n\
             [channels.discord.accounts.main]\ntoken_file = \"{}\"\nbase_url = \"{}\"\n\
             allowed_users = [\"{ann}\"]\napprover_users = [\"{boss}\"]\n{more}\n",
            token.display(),
            fake.url()
        );
        let house = Plan::flags(flags).gateway(&toml).build();
        let stage = Self { house, fake, channel, ann, boss, eve, bot, _dir: dir };
        stage.is_there();
        stage
    }

    /// Waits until the bot is connected and its commands are registered.
    pub fn is_there(&self) {
        until(SOON, "the bot is there", || {
            self.fake.connected(self.bot.user) && !self.fake.commands().is_empty()
        });
    }

    /// Somebody uses a command; the interaction with its first answer, which must have come in time.
    pub fn command(&self, user: Id, channel: Id, command: &str, options: &[(&str, Value)]) -> Interaction {
        let used = self.fake.command(user, channel, &self.bot, command, options);
        self.acknowledged(used.unwrap_or_else(|e| panic!("/{command}: {e}")).id)
    }

    /// Somebody presses a button by its label.
    pub fn press(&self, user: Id, message: &Message, label: &str) -> Interaction {
        let id = button(message, label);
        let used = self.fake.click(user, message.id, &id);
        self.acknowledged(used.unwrap_or_else(|e| panic!("{label}: {e}")).id)
    }

    fn acknowledged(&self, id: Id) -> Interaction {
        let acknowledged = eventually(SOON, "the interaction is acknowledged", || {
            Some(self.fake.interaction(id)).filter(|interaction| interaction.answered.is_some())
        });
        let after = acknowledged.answered.as_ref().map_or(0, |it| it.at_ms - acknowledged.created_ms);
        assert!(after < 3_000, "acknowledged after {after} ms");
        acknowledged
    }

    /// What a command was answered with in the end.
    pub fn answer(&self, interaction: &Interaction) -> String {
        eventually(SOON, "the command is answered", || {
            let original = self.fake.interaction(interaction.id).original_id?;
            let all = self.fake.whole_transcript();
            let message = all.into_iter().find(|message| message.id == original)?;
            (!message.content.is_empty()).then_some(message.content)
        })
    }

    /// What was said to somebody alone about an interaction.
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
        self.spawn_of(AGENT, &[])
    }

    /// The same of another agent, with these options more.
    pub fn spawn_of(&self, agent: &str, more: &[(&str, Value)]) -> Id {
        let before = self.fake.threads_of(self.channel).len();
        let cwd = self.house.world.dir("work/project").display().to_string();
        let own = [("agent", json!(agent)), ("cwd", json!(cwd)), ("thread", json!("auto"))];
        let options = [&own[..], more].concat();
        let used = self.command(self.ann, self.channel, "acp spawn", &options);
        let said = self.answer(&used);
        assert!(said.contains(agent), "{said}");
        let threads = self.fake.threads_of(self.channel);
        assert_eq!(threads.len(), before + 1, "{said}");
        let thread = threads.iter().map(|thread| thread.id).max().unwrap_or_default();
        until(SOON, "the thread is begun", || !self.told(thread).is_empty());
        thread
    }

    /// The key of the session that works in a thread, as its first message names it.
    pub fn key(&self, thread: Id) -> String {
        let starter = self.message(thread, self.channel).content;
        let key = starter.split("session ").nth(1).and_then(|rest| rest.split([',', ' ']).next());
        key.unwrap_or_else(|| panic!("no session: {starter}")).trim_end_matches('.').to_owned()
    }

    /// What the bot said in a channel and did not delete, in order.
    pub fn told(&self, channel: Id) -> Vec<Message> {
        let all = self.fake.transcript(channel);
        all.into_iter().filter(|it| it.author_id == self.bot.user && it.deleted_ms.is_none()).collect()
    }

    /// The answers of turns in a thread: what ends with a footer, without it.
    pub fn finals(&self, thread: Id) -> Vec<String> {
        let footer = format!("\n\n{AGENT} · ");
        let of = |message: Message| Some(message.content.rsplit_once(&footer)?.0.to_owned());
        self.told(thread).into_iter().filter_map(of).collect()
    }

    /// Waits until the answers in a thread are these, each once and in this order.
    pub fn answers(&self, thread: Id, want: &[&str]) {
        let deadline = std::time::Instant::now() + 2 * SOON;
        until(3 * SOON, "the answers", || {
            self.finals(thread).len() >= want.len() || std::time::Instant::now() > deadline
        });
        assert_eq!(self.finals(thread), want, "{:#?}", texts(&self.told(thread)));
    }

    /// A message of the bot's in a channel of which the text contains something.
    pub fn said(&self, channel: Id, part: &str) -> Message {
        let mut seen = Vec::new();
        let end = std::time::Instant::now() + SOON;
        let found = eventually(2 * SOON, "it is said", || {
            let told = self.told(channel);
            seen = texts(&told);
            let found = told.into_iter().rfind(|message| message.content.contains(part));
            (found.is_some() || std::time::Instant::now() > end).then_some(found)
        });
        found.unwrap_or_else(|| panic!("{part:?} was not said: {seen:#?}"))
    }

    /// Waits until a message says something.
    pub fn shows(&self, message: &Message, part: &str) -> Message {
        eventually(SOON, part, || {
            let now = self.message(message.id, message.channel_id);
            now.content.contains(part).then_some(now)
        })
    }

    /// A message as it is now.
    pub fn message(&self, id: Id, channel: Id) -> Message {
        let all = self.fake.transcript(channel);
        all.into_iter().find(|message| message.id == id).unwrap_or_else(|| panic!("no message {id}"))
    }

    /// Waits until a message has a reaction of the bot's.
    pub fn reacted(&self, message: Id, channel: Id, emoji: &str) {
        until(SOON, emoji, || {
            let now = self.message(message, channel);
            now.reactions.get(emoji).is_some_and(|who| who.contains(&self.bot.user))
        });
    }

    /// Checks what holds of everything that the bot ever sent, and ends the house in order.
    pub fn end(self) {
        for message in self.fake.whole_transcript() {
            // The service itself puts the starter into a thread.
            let is_sent = message.origin.is_none() && message.kind != THREAD_STARTER;
            if message.author_id == self.bot.user && is_sent {
                assert!(message.nonce.is_some() && message.enforce_nonce, "{message:?}");
            }
            assert!(message.author_id != self.bot.user || message.pinged.is_empty(), "{message:?}");
        }
        assert_eq!(self.fake.tally().late_responses, 0);
        self.house.end();
    }
}

/// The texts of messages.
pub fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.content.clone()).collect()
}

/// The labels of a message's buttons, in order.
pub fn labels(message: &Message) -> Vec<String> {
    buttons(message).iter().filter_map(|button| Some(button["label"].as_str()?.to_owned())).collect()
}

/// What a button of a message carries.
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
