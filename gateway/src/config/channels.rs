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
    pub(crate) discord: Channel,
}

impl Channels {
    /// The channels that have a section.
    pub(crate) const NAMES: [&'static str; 2] = ["console", "discord"];

    /// The section of a channel.
    pub(crate) fn get(&self, name: &str) -> Option<&Channel> {
        match name {
            "console" => Some(&self.console),
            "discord" => Some(&self.discord),
            _ => None,
        }
    }
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
