//! `session.*` and `channels.*`: how long bindings last and who may make them, from the widest level to the
//! narrowest: session, channel, account. A narrower level that sets a key wins.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `session.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Session {
    /// A session that was idle this long is closed. 0: never. Default: 0. Source: "global/session TTL".
    pub(crate) ttl_minutes: u64,
    /// `session.thread_bindings.*`.
    pub(crate) thread_bindings: SessionBindings,
}

/// `session.thread_bindings.*`: what holds on every channel that does not say otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SessionBindings {
    /// Whether conversations can be bound to sessions. Default: true. Source: `session.threadBindings.enabled`.
    pub(crate) enabled: bool,
    /// A binding ends after this long without a word. 0: never. Default: 24.
    /// Source: `session.threadBindings.idleHours`.
    pub(crate) idle_hours: u64,
    /// A binding ends this long after it was made. 0: never. Default: 0.
    /// Source: `session.threadBindings.maxAgeHours`.
    pub(crate) max_age_hours: u64,
    /// Whether a binding whose session is gone or closed is removed when somebody speaks there; they are told either
    /// way. Default: false. Source: "optionally auto-unbind stale binding after operator-safe validation".
    pub(crate) auto_unbind_stale: bool,
}

impl Default for SessionBindings {
    fn default() -> Self {
        Self { enabled: true, idle_hours: 24, max_age_hours: 0, auto_unbind_stale: false }
    }
}

/// `channels.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Channels {
    /// `channels.console.*`.
    pub(crate) console: Channel,
    /// `channels.discord.*`.
    pub(crate) discord: Discord,
}

impl Channels {
    /// The channels that have a section.
    pub(crate) const NAMES: [&'static str; 2] = ["console", "discord"];

    /// What an account of a channel and the channel say about files, the account first; nothing where a channel has
    /// none.
    pub(crate) fn files(&self, name: &str, account: &str) -> [Option<&Files>; 2] {
        match name {
            "discord" => {
                let own = self.discord.accounts.get(account).map(|account| &account.files);
                [own, Some(&self.discord.files)]
            }
            _ => [None, None],
        }
    }

    /// What every channel's section has.
    pub(crate) fn get(&self, name: &str) -> Option<Section<'_>> {
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

/// What every channel's section has.
#[derive(Debug, Clone)]
pub(crate) struct Section<'a> {
    /// Of the channel.
    pub(crate) thread_bindings: &'a ThreadBindings,
    /// Of each account: its id, its cap, its bindings.
    pub(crate) accounts: Vec<(&'a str, Option<u64>, &'a ThreadBindings)>,
}

impl<'a> Section<'a> {
    /// An account of that name: its id, its cap, its bindings.
    pub(crate) fn account(&self, id: &str) -> Option<(&'a str, Option<u64>, &'a ThreadBindings)> {
        self.accounts.iter().copied().find(|(known, ..)| *known == id)
    }
}

/// `channels.discord.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Discord {
    /// `channels.discord.thread_bindings.*`.
    pub(crate) thread_bindings: ThreadBindings,
    /// `channels.discord.files.*`.
    pub(crate) files: Files,
    /// Whether what agents say goes through webhooks, under their own names. Default: false. Ours.
    pub(crate) personas: bool,
    /// `channels.discord.accounts.ID.*`: the bots. Default: none.
    pub(crate) accounts: BTreeMap<String, DiscordAccount>,
}

#[cfg(any(feature = "discord", test))]
impl Discord {
    /// Whether what agents say on an account goes under their own names: what the account says, else what the channel does.
    pub(crate) fn personas_of(&self, account: &str) -> bool {
        self.accounts.get(account).and_then(|account| account.personas).unwrap_or(self.personas)
    }
}

/// `channels.discord.accounts.ID.*`. Ids of Discord are texts of digits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DiscordAccount {
    /// Sessions of this account in use. 0: no cap of its own. Default: none,
    /// `acp.max_concurrent_sessions_per_account`. Ours.
    pub(crate) max_concurrent_sessions: Option<u64>,
    /// `channels.discord.accounts.ID.thread_bindings.*`.
    pub(crate) thread_bindings: ThreadBindings,
    /// `channels.discord.accounts.ID.files.*`.
    pub(crate) files: Files,
    /// Whether what agents say goes through webhooks, under their own names. Default: none, `channels.discord.personas`.
    /// Ours.
    pub(crate) personas: Option<bool>,
    /// The file with the bot's token. Default: none. Ours.
    pub(crate) token_file: Option<String>,
    /// The environment variable with it, where there is no file. Default: none. Ours.
    pub(crate) token_env: Option<String>,
    /// Another service than Discord's own: of a proxy, or of a test. Default: none. Ours.
    pub(crate) base_url: Option<String>,
    /// Servers that are served. Default: all that the bot is in. Ours.
    pub(crate) guilds: Vec<String>,
    /// Users who may speak to agents. Default: none. Ours.
    pub(crate) allowed_users: Vec<String>,
    /// Roles that may. Default: none. Ours.
    pub(crate) allowed_roles: Vec<String>,
    /// Users who may answer what any agent asks; then nobody else may. Default: none: everybody what their own agents
    /// ask. Ours.
    pub(crate) approver_users: Vec<String>,
    /// Roles that may. Default: none. Ours.
    pub(crate) approver_roles: Vec<String>,
}

/// `….files.*` of Discord or of one account of it: what is told as files; what is absent comes from the level above.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Files {
    /// An answer that would take more messages than this comes as its beginning and a file with all of it. 0: none
    /// does. Default: none, 5. Ours.
    pub(crate) long_final_parts: Option<u64>,
    /// Most bytes of one file. Default: none, 10485760. Ours.
    pub(crate) bytes_max: Option<u64>,
    /// Whether what a turn changed in files goes with its answer, as `turn.diff`. Default: none, true. Ours.
    pub(crate) turn_diff: Option<bool>,
}

/// `channels.NAME.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Channel {
    /// `channels.NAME.thread_bindings.*`.
    pub(crate) thread_bindings: ThreadBindings,
    /// `channels.NAME.accounts.ID.*`. Default: none.
    pub(crate) accounts: BTreeMap<String, Account>,
}

/// `channels.NAME.accounts.ID.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Account {
    /// Sessions of this account in use. 0: no cap of its own. Default: none,
    /// `acp.max_concurrent_sessions_per_account`. Ours.
    pub(crate) max_concurrent_sessions: Option<u64>,
    /// `channels.NAME.accounts.ID.thread_bindings.*`.
    pub(crate) thread_bindings: ThreadBindings,
}

/// `….thread_bindings.*` of a channel or of one account of it; what is absent comes from the level above.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ThreadBindings {
    /// Whether conversations can be bound to sessions. Default: none.
    /// Source: `channels.discord.threadBindings.enabled`.
    pub(crate) enabled: Option<bool>,
    /// A binding ends after this long without a word. 0: never. Default: none.
    /// Source: `channels.discord.threadBindings.idleHours`.
    pub(crate) idle_hours: Option<u64>,
    /// A binding ends this long after it was made. 0: never. Default: none.
    /// Source: `channels.discord.threadBindings.maxAgeHours`.
    pub(crate) max_age_hours: Option<u64>,
    /// Whether a binding whose session is gone or closed is removed when somebody speaks there. Default: none.
    /// Source: "optionally auto-unbind stale binding after operator-safe validation".
    pub(crate) auto_unbind_stale: Option<bool>,
    /// Whether `/acp spawn` may bind a session to a conversation. Default: none, false on Discord and true elsewhere.
    /// Source: `channels.discord.threadBindings.spawnAcpSessions`.
    pub(crate) spawn_acp_sessions: Option<bool>,
    /// Whether an agent's own spawn may bind to a conversation. Default: none, false on Discord and true elsewhere.
    /// Source: `channels.discord.threadBindings.spawnSubagentSessions`.
    pub(crate) spawn_subagent_sessions: Option<bool>,
}
