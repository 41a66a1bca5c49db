//! `session.*` and `channels.*`: timeouts and authorization of bindings. Levels from widest to narrowest:
//! session, channel, account; a narrower level overrides a wider one.

use super::PermissionMode;
use crate::rows::ConversationRef;
use crate::shards::ShardRange;
use acp_shared::ids::AgentName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// `session.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Session")]
pub struct SessionConfig {
    /// Idle time after which a session is closed. 0: never. Default: 0. Source: "global/session TTL".
    pub ttl_minutes: u64,
    /// `session.thread_bindings.*`.
    pub thread_bindings: SessionBindings,
}

/// `session.thread_bindings.*`: defaults for all channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionBindings {
    /// Allows bindings of conversations to sessions. Default: true. Source: `session.threadBindings.enabled`.
    pub enabled: bool,
    /// Idle time after which a binding ends. 0: never. Default: 24. Source:
    /// `session.threadBindings.idleHours`.
    pub idle_hours: u64,
    /// Age at which a binding ends. 0: never. Default: 0. Source: `session.threadBindings.maxAgeHours`.
    pub max_age_hours: u64,
    /// Removes a binding whose session is missing or closed when a message arrives there; the author is
    /// notified in any case. Default: false. Source: "optionally auto-unbind stale binding after
    /// operator-safe validation".
    pub auto_unbind_stale: bool,
}

impl Default for SessionBindings {
    fn default() -> Self {
        Self { enabled: true, idle_hours: 24, max_age_hours: 0, auto_unbind_stale: false }
    }
}

/// `channels.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Channels {
    /// `channels.console.*`.
    pub console: ChannelConfig,
    /// `channels.discord.*`.
    pub discord: Discord,
}

impl Channels {
    /// Names of the channels with a section.
    pub const NAMES: [&'static str; 2] = ["console", "discord"];

    /// File settings of an account and of its channel, in this order; `None` for a channel without them.
    pub fn files(&self, name: &str, account: &str) -> [Option<&FilesConfig>; 2] {
        match name {
            "discord" => {
                let own = self.discord.accounts.get(account).map(|account| &account.files);
                [own, Some(&self.discord.files)]
            }
            _ => [None, None],
        }
    }

    /// Returns the common settings of a channel.
    pub fn get(&self, name: &str) -> Option<Section<'_>> {
        match name {
            "console" => {
                let accounts = &self.console.accounts;
                let all = accounts
                    .iter()
                    .map(|(id, it)| (id.as_str(), it.max_concurrent_sessions, &it.thread_bindings));
                Some(Section { thread_bindings: &self.console.thread_bindings, accounts: all.collect() })
            }
            "discord" => {
                let accounts = &self.discord.accounts;
                let all = accounts
                    .iter()
                    .map(|(id, it)| (id.as_str(), it.max_concurrent_sessions, &it.thread_bindings));
                Some(Section { thread_bindings: &self.discord.thread_bindings, accounts: all.collect() })
            }
            _ => None,
        }
    }
}

/// Settings common to all channels.
#[derive(Debug, Clone)]
pub struct Section<'a> {
    /// Binding settings of the channel.
    pub thread_bindings: &'a ThreadBindings,
    /// Accounts: id, session cap, binding settings.
    pub accounts: Vec<(&'a str, Option<u64>, &'a ThreadBindings)>,
}

impl<'a> Section<'a> {
    /// Returns an account by name: id, session cap, binding settings.
    pub fn account(&self, id: &str) -> Option<(&'a str, Option<u64>, &'a ThreadBindings)> {
        self.accounts.iter().copied().find(|(known, ..)| *known == id)
    }
}

/// `channels.discord.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Discord {
    /// `channels.discord.thread_bindings.*`.
    pub thread_bindings: ThreadBindings,
    /// `channels.discord.files.*`.
    pub files: FilesConfig,
    /// Sends agent output through webhooks, under the names of agents. Default: false. Ours.
    pub personas: bool,
    /// `[[channels.discord.projects]]`: channels in which a message opens a thread with a session of its own.
    /// Default: none. Ours.
    pub projects: Vec<Project>,
    /// `channels.discord.accounts.ID.*`: the bots. Default: none.
    pub accounts: BTreeMap<String, DiscordAccount>,
}

impl Discord {
    /// True if an account sends agent output under the names of agents. The account's setting overrides the
    /// channel's.
    pub fn personas_of(&self, account: &str) -> bool {
        self.accounts.get(account).and_then(|account| account.personas).unwrap_or(self.personas)
    }

    /// Returns the project of a conversation: of the channel itself, or of the channel above a thread.
    pub fn project_of(&self, at: &ConversationRef) -> Option<&Project> {
        if at.channel != "discord" {
            return None;
        }
        let is_of = |id: &str| {
            self.projects.iter().find(|it| it.channel == id && self.is_served_by(it, &at.account_id))
        };
        is_of(&at.conversation_id).or_else(|| at.parent_conversation_id.as_deref().and_then(is_of))
    }

    /// True if an account serves a project: the named one, or the only one.
    pub fn is_served_by(&self, project: &Project, account: &str) -> bool {
        match &project.account {
            Some(named) => named == account,
            None => self.accounts.len() == 1 && self.accounts.contains_key(account),
        }
    }
}

/// Entry of `[[channels.discord.projects]]`: a channel, and the sessions in the threads that its messages open.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Project {
    /// Discord's id of the channel. Required. Ours.
    pub channel: String,
    /// Account whose bot serves the channel. Default: none, the only account. Ours.
    pub account: Option<String>,
    /// Agent of the sessions. Default: none, `acp.default_agent`. Ours.
    pub agent: Option<AgentName>,
    /// Working directory of the sessions. Default: none, as for a spawn without one. Ours.
    pub cwd: Option<PathBuf>,
    /// Permission mode of the sessions. Default: none, the agent's. Ours.
    pub permission: Option<PermissionMode>,
    /// Opens a thread only for messages that mention the bot. Default: false. Ours.
    pub require_mention: bool,
}

/// `channels.discord.accounts.ID.*`. Discord ids are strings of digits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiscordAccount {
    /// Maximum number of sessions of this account in use. 0: no limit per account. Default: none,
    /// `acp.max_concurrent_sessions_per_account`. Ours.
    pub max_concurrent_sessions: Option<u64>,
    /// `channels.discord.accounts.ID.thread_bindings.*`.
    pub thread_bindings: ThreadBindings,
    /// `channels.discord.accounts.ID.files.*`.
    pub files: FilesConfig,
    /// Sends agent output through webhooks, under the names of agents. Default: none,
    /// `channels.discord.personas`. Ours.
    pub personas: Option<bool>,
    /// File with the bot's token. Default: none. Ours.
    pub token_file: Option<String>,
    /// Environment variable with the bot's token, if no file is set. Default: none. Ours.
    pub token_env: Option<String>,
    /// Base URL of another service than Discord's own, e.g. a proxy or a test server. Default: none. Ours.
    pub base_url: Option<String>,
    /// Shards that this gateway serves, if several gateways serve the application, such as
    /// `{ from = 0, to = 16, of = 64 }`: from `from` up to, but not including, `to`. Default: none, all shards. Ours.
    pub shards: Option<ShardRange>,
    /// Guilds in which the bot responds. Default: all guilds of the bot. Ours.
    pub guilds: Vec<String>,
    /// Channels in which the bot responds, with their threads. Default: all channels that it can read. Ours.
    pub allowed_channels: Vec<String>,
    /// Passes only messages that mention the bot to agents, in servers. Commands and buttons work without.
    /// Default: false. Ours.
    pub require_mention: bool,
    /// Users who may talk to agents. Default: none. Ours.
    pub allowed_users: Vec<String>,
    /// Roles that may talk to agents. Default: none. Ours.
    pub allowed_roles: Vec<String>,
    /// Users who may answer permission requests of all agents; others then may not answer any. Default: none,
    /// everyone answers those of their own agents. Ours.
    pub approver_users: Vec<String>,
    /// Roles that may answer permission requests of all agents. Default: none. Ours.
    pub approver_roles: Vec<String>,
}

/// `….files.*` of Discord or one of its accounts: output sent as file attachments. Absent settings come from
/// the level above.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Files")]
pub struct FilesConfig {
    /// Maximum number of messages of an answer. A longer one is sent as its beginning with the whole text
    /// attached as a file. 0: no attachment. Default: none, 5. Ours.
    pub long_final_parts: Option<u64>,
    /// Maximum size of a file, in bytes. Default: none, 10485760. Ours.
    pub bytes_max: Option<u64>,
    /// Attaches the file changes of a turn to its answer, as `turn.diff`. Default: none, true. Ours.
    pub turn_diff: Option<bool>,
}

/// `channels.NAME.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Channel")]
pub struct ChannelConfig {
    /// `channels.NAME.thread_bindings.*`.
    pub thread_bindings: ThreadBindings,
    /// `channels.NAME.accounts.ID.*`. Default: none.
    pub accounts: BTreeMap<String, Account>,
}

/// `channels.NAME.accounts.ID.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Account {
    /// Maximum number of sessions of this account in use. 0: no limit per account. Default: none,
    /// `acp.max_concurrent_sessions_per_account`. Ours.
    pub max_concurrent_sessions: Option<u64>,
    /// `channels.NAME.accounts.ID.thread_bindings.*`.
    pub thread_bindings: ThreadBindings,
}

/// `….thread_bindings.*` of a channel or one of its accounts. Absent settings come from the level above.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThreadBindings {
    /// Allows bindings of conversations to sessions. Default: none. Source:
    /// `channels.discord.threadBindings.enabled`.
    pub enabled: Option<bool>,
    /// Idle time after which a binding ends. 0: never. Default: none. Source:
    /// `channels.discord.threadBindings.idleHours`.
    pub idle_hours: Option<u64>,
    /// Age at which a binding ends. 0: never. Default: none. Source:
    /// `channels.discord.threadBindings.maxAgeHours`.
    pub max_age_hours: Option<u64>,
    /// Removes a binding whose session is missing or closed when a message arrives there. Default: none.
    /// Source: "optionally auto-unbind stale binding after operator-safe validation".
    pub auto_unbind_stale: Option<bool>,
    /// Allows `/acp spawn` to bind a session to a conversation. Default: none, false on Discord and true
    /// elsewhere. Source: `channels.discord.threadBindings.spawnAcpSessions`.
    pub spawn_acp_sessions: Option<bool>,
    /// Gives a session that an agent spawns a conversation next to that of its parent. Default: none, false on
    /// Discord and true elsewhere. Source: `channels.discord.threadBindings.spawnSubagentSessions`.
    pub spawn_subagent_sessions: Option<bool>,
}
