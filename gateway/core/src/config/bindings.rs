//! `[[bindings]]`: static bindings of conversations to sessions. `core/configured.rs` selects the entry for a
//! conversation and decides the consequences.

use super::check::{KeyProblems, absolute, owned};
use super::{Config, NonInteractive, PermissionMode};
use acp_shared::ids::AgentName;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// Wildcard for all accounts of a channel.
pub const ANY_ACCOUNT: &str = "*";

/// Lifetime of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionMode {
    /// Until the session is closed.
    #[default]
    Persistent,
    /// For one run.
    Oneshot,
}

/// Entry of `[[bindings]]`: a conversation, and the session for it and for its threads. Source: `bindings[]`
/// of type `acp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Binding {
    /// Channel, e.g. `console`. Required. Source: `match.channel`.
    pub channel: String,
    /// Account of the channel, or `*` for the accounts without an entry of their own. Default: `*`. Source:
    /// `match.accountId`.
    pub account: String,
    /// The channel's id of the conversation. Required. Source: `match.peer.id`.
    pub conversation: String,
    /// Agent. Required. Source: `agentId`.
    pub agent: Option<AgentName>,
    /// Label of the session. Requires an account by name, since a label belongs to one session. Default:
    /// none. Source: `acp.label`.
    pub label: Option<String>,
    /// Lifetime of a session: `persistent`, or `oneshot`, a new one for each message. Default: `persistent`.
    /// Source: `acp.mode`.
    pub mode: SessionMode,
    /// Working directory of the session. Default: none, as for a spawn without one. Source: `acp.cwd`.
    pub cwd: Option<PathBuf>,
    /// Runtime backend. Default: none, `acp.backend`. Source: `acp.backend` of the entry.
    pub backend: Option<String>,
    /// Permission mode. Default: none, the agent's.
    pub permission: Option<PermissionMode>,
    /// Outcome of unattended permission requests. Default: none, the agent's.
    pub non_interactive_permissions: Option<NonInteractive>,
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

/// Checks the entries and adds their mistakes to `found`.
pub(super) fn check(found: &mut KeyProblems, config: &Config) {
    for (number, entry) in config.bindings.iter().enumerate() {
        let index = number.to_string();
        let at = |key: &str| owned(&["bindings", &index], &[key]);
        for (key, value) in
            [("channel", &entry.channel), ("account", &entry.account), ("conversation", &entry.conversation)]
        {
            if value.trim() != value || value.is_empty() {
                found.push((at(key), "is required, without leading or trailing whitespace".to_owned()));
            }
        }
        if entry.agent.is_none() {
            found.push((at("agent"), "is required: the agent of the conversation".to_owned()));
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
        let place = |it: &Binding| (it.channel.clone(), it.account.clone(), it.conversation.clone());
        let earlier = || config.bindings.iter().take(number);
        if let Some(other) = earlier().position(|it| place(it) == place(entry)) {
            let text = format!("bindings.{other} is for the same conversation: remove one of them");
            found.push((at("conversation"), text));
        }
        let Some(label) = &entry.label else { continue };
        if label.is_empty() {
            found.push((at("label"), "must not be empty".to_owned()));
        }
        if entry.account == ANY_ACCOUNT {
            let text = "requires an account by name: a label belongs to one session, and each account gets \
                        its own session";
            found.push((at("label"), text.to_owned()));
        }
        if let Some(other) = earlier().position(|it| it.label.as_ref() == Some(label)) {
            found.push((at("label"), format!("bindings.{other} already has this label")));
        }
    }
}
