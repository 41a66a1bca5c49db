//! `[[bindings]]`: conversations that the configuration binds to sessions. Which entry speaks for a conversation, and
//! what follows, is decided in `core/configured.rs`.

use super::check::{Found, absolute, owned};
use super::{Config, NonInteractive, PermissionMode};
use acp_shared::ids::AgentName;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What stands for every account of a channel.
pub(crate) const ANY_ACCOUNT: &str = "*";

/// How long a session is meant to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SessionMode {
    /// Until it is closed.
    Persistent,
    /// For one run.
    Oneshot,
}

/// One entry of `[[bindings]]`: a conversation, and the session that works in it and in the threads below it.
/// Source: `bindings[]` of type `acp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Binding {
    /// The channel, e.g. `console`. Required. Source: `match.channel`.
    pub(crate) channel: String,
    /// The account of the channel, or `*` for each of them that no other entry names. Default: `*`.
    /// Source: `match.accountId`.
    pub(crate) account: String,
    /// The channel's id of the conversation. Required. Source: `match.peer.id`.
    pub(crate) conversation: String,
    /// The agent. Required. Source: `agentId`.
    pub(crate) agent: Option<AgentName>,
    /// What the session is called. It needs an account by name, since a label is one session's.
    /// Default: none. Source: `acp.label`.
    pub(crate) label: Option<String>,
    /// How long a session lives: `persistent`, or `oneshot`, a new one for each message.
    /// Default: `persistent`. Source: `acp.mode`.
    pub(crate) mode: SessionMode,
    /// Where the session works. Default: none, as for a spawn that names none. Source: `acp.cwd`.
    pub(crate) cwd: Option<PathBuf>,
    /// The runtime backend. Default: none, `acp.backend`. Source: `acp.backend` of the entry.
    pub(crate) backend: Option<String>,
    /// What happens when the agent asks. Default: none, the agent's.
    pub(crate) permission: Option<PermissionMode>,
    /// What happens when nobody can be asked. Default: none, the agent's.
    pub(crate) non_interactive_permissions: Option<NonInteractive>,
}

impl Default for Binding {
    fn default() -> Self {
        Self {
            channel: String::new(),
            account: ANY_ACCOUNT.to_owned(),
            conversation: String::new(),
            agent: None,
            label: None,
            mode: SessionMode::Persistent,
            cwd: None,
            backend: None,
            permission: None,
            non_interactive_permissions: None,
        }
    }
}

/// What is wrong with the entries.
pub(super) fn check(found: &mut Found, config: &Config) {
    for (number, entry) in config.bindings.iter().enumerate() {
        let index = number.to_string();
        let at = |key: &str| owned(&["bindings", &index], &[key]);
        for (key, value) in
            [("channel", &entry.channel), ("account", &entry.account), ("conversation", &entry.conversation)]
        {
            if value.trim() != value || value.is_empty() {
                found.push((at(key), "is needed, without blanks around it".to_owned()));
            }
        }
        if entry.agent.is_none() {
            found.push((at("agent"), "is needed: who works in the conversation".to_owned()));
        }
        if let Some(agent) = &entry.agent
            && !config.acp.allowed_agents.is_empty()
            && !config.acp.allowed_agents.contains(agent)
        {
            found.push((at("agent"), format!("{agent} is not in acp.allowed_agents")));
        }
        if entry.backend.as_ref().is_some_and(String::is_empty) {
            found.push((at("backend"), "must not be empty".to_owned()));
        }
        absolute(found, at("cwd"), entry.cwd.as_deref());
        let before = &config.bindings[..number];
        let place = |it: &Binding| (it.channel.clone(), it.account.clone(), it.conversation.clone());
        if let Some(other) = before.iter().position(|it| place(it) == place(entry)) {
            let text = format!("bindings.{other} speaks for the same conversation: keep one of them");
            found.push((at("conversation"), text));
        }
        let Some(label) = &entry.label else { continue };
        if label.is_empty() {
            found.push((at("label"), "must not be empty".to_owned()));
        }
        if entry.account == ANY_ACCOUNT {
            let text = "needs an account by name: a label is one session's, and each account gets a session";
            found.push((at("label"), text.to_owned()));
        }
        if let Some(other) = before.iter().position(|it| it.label.as_ref() == Some(label)) {
            found.push((at("label"), format!("bindings.{other} has that label already")));
        }
    }
}
