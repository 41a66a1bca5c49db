//! Effective settings of a conversation, account and agent: each value with the deciding key and the place
//! where that key was set. Pure, and the only code that knows the precedence: account over channel, over
//! agent and backend, over general settings, over the default.
//!
//! Range checks are in `config/check`. A value that is adjusted here has a note about it.

mod denials;
mod resolve;
#[cfg(test)]
mod tests;

pub use denials::{ACCOUNT_SESSIONS_MAX, BindOrigin, BindingTimeouts, SESSIONS_MAX, SPAWN_NOT_ALLOWED};
pub use resolve::{LIVE_COALESCE_MS_MIN, effective_policy, stream_policy};

use crate::config::source::Source;
use crate::config::{DeliveryMode, NonInteractive, PermissionMode, Separator};
use crate::rows::ConversationRef;
use acp_shared::ids::AgentName;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Channel, account and agent for which a policy is resolved. Fields with `None` are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PolicyScope {
    /// Name of the channel, e.g. `console`.
    pub channel: Option<String>,
    /// Id of the account within the channel.
    pub account: Option<String>,
    /// Name of the agent.
    pub agent: Option<AgentName>,
}

impl PolicyScope {
    /// Returns the scope of a conversation: its channel and account.
    pub fn of(at: Option<&ConversationRef>) -> Self {
        Self {
            channel: at.map(|at| at.channel.clone()),
            account: at.map(|at| at.account_id.clone()),
            agent: None,
        }
    }

    /// Returns the same scope with an agent.
    pub fn with_agent(self, agent: &AgentName) -> Self {
        Self { agent: Some(agent.clone()), ..self }
    }
}

/// Effective value of a setting, with the origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Effective<T> {
    /// Value in effect.
    pub value: T,
    /// Configuration key that decided.
    pub key: String,
    /// Place where that key was set.
    pub source: Source,
    /// Difference from the configured value, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl<T> Effective<T> {
    fn map<U>(self, with: impl FnOnce(T) -> U) -> Effective<U> {
        Effective { value: with(self.value), key: self.key, source: self.source, note: self.note }
    }

    /// Formats the key, the value and the source: `acp.enabled = false (/etc/gateway.toml:3)`.
    fn describe(&self, source: &str) -> String
    where
        T: std::fmt::Display,
    {
        format!("{} = {} ({source})", self.key, self.value)
    }
}

/// All settings in effect in a [`PolicyScope`]. Times are in milliseconds; a timeout of `None` never expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EffectivePolicy {
    /// Main switch: false disables spawning, binding and prompting.
    pub enabled: Effective<bool>,
    /// True if prompts reach agents.
    pub dispatch_enabled: Effective<bool>,
    /// Runtime backend of new sessions.
    pub backend: Effective<String>,
    /// Command that installs this backend.
    pub install_command: Effective<Option<String>>,
    /// Default agent of a spawn.
    pub default_agent: Effective<Option<AgentName>>,
    /// Agents allowed to be spawned; empty allows all.
    pub allowed_agents: Effective<Vec<AgentName>>,
    /// Default working directory of a spawn.
    pub default_cwd: Effective<Option<PathBuf>>,
    /// Directories that contain every session's working directory; empty allows all.
    pub workspace_roots: Effective<Vec<PathBuf>>,
    /// Same for the agent, within `workspace_roots`.
    pub cwd_roots: Effective<Vec<PathBuf>>,
    /// Environment variables passed to the agent in addition to the usual ones, merged from all levels.
    pub env_allow: Effective<Vec<String>>,
    /// Maximum number of sessions in use.
    pub sessions_max: Effective<u64>,
    /// Maximum number of sessions in use of the account; `None` for no separate limit.
    pub account_sessions_max: Effective<Option<u64>>,
    /// Maximum number of runs of a session that have not ended.
    pub queue_runs_max: Effective<u64>,
    /// Settings of bindings.
    pub bindings: BindingPolicy,
    /// Idle timeouts.
    pub ttl: TimeoutPolicy,
    /// Permission settings.
    pub permission: PermissionPolicy,
    /// Time limits of the agent's process.
    pub agent: AgentTimeouts,
    /// Grouping and filtering of the agent's output in a channel.
    pub stream: StreamPolicy,
    /// Recovery at the gateway's start.
    pub recovery: RecoveryPolicy,
    /// Retention of idempotency records.
    pub idempotency_ttl_ms: Effective<u64>,
}

/// See [`EffectivePolicy::bindings`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BindingPolicy {
    /// True if conversations may be bound.
    pub enabled: Effective<bool>,
    /// Idle timeout of a binding.
    pub idle_ms: Effective<Option<u64>>,
    /// Maximum age of a binding.
    pub max_age_ms: Effective<Option<u64>>,
    /// True if a stale binding is removed when a message arrives in its conversation.
    pub auto_unbind_stale: Effective<bool>,
    /// True if `/acp spawn` may bind.
    pub spawn_acp_sessions: Effective<bool>,
    /// True if a session spawned by an agent may be bound.
    pub spawn_subagent_sessions: Effective<bool>,
}

/// See [`EffectivePolicy::ttl`]. Source: `min(session ttl, discord thread binding ttl, acp runtime ttl)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimeoutPolicy {
    /// Idle time after which a session is closed.
    pub session_ms: Effective<Option<u64>>,
    /// Idle time after which an agent's process is ended.
    pub runtime_ms: Effective<Option<u64>>,
    /// Minimum of both and of the binding's idle timeout.
    pub effective_ms: Effective<Option<u64>>,
}

/// See [`EffectivePolicy::permission`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PermissionPolicy {
    /// Handling of permission requests.
    pub mode: Effective<PermissionMode>,
    /// Handling of permission requests without a person to ask.
    pub non_interactive: Effective<NonInteractive>,
    /// Time limit for an answer; `None` for no limit.
    pub timeout_ms: Effective<Option<u64>>,
}

/// See [`EffectivePolicy::agent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgentTimeouts {
    /// Time limit for opening a session.
    pub init_ms: Effective<u64>,
    /// Time from end of file to SIGTERM.
    pub eof_ms: Effective<u64>,
    /// Time from SIGTERM to SIGKILL.
    pub term_ms: Effective<u64>,
    /// Time from SIGKILL to the report of surviving processes.
    pub kill_ms: Effective<u64>,
}

/// See [`EffectivePolicy::stream`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamPolicy {
    /// Delivery of text during the turn or at its end.
    pub delivery_mode: Effective<DeliveryMode>,
    /// Pause in the text after which it is shown.
    pub coalesce_idle_ms: Effective<u64>,
    /// Minimum time between two edits of a live message.
    pub min_interval_ms: Effective<u64>,
    /// Maximum length of a part, in characters.
    pub max_chunk_chars: Effective<u64>,
    /// Maximum length of a turn's output, in characters.
    pub max_output_chars: Effective<u64>,
    /// Maximum length of a line about a session update, in characters.
    pub max_session_update_chars: Effective<u64>,
    /// True if identical lines are shown once.
    pub repeat_suppression: Effective<bool>,
    /// Separator in place of a hidden tool call.
    pub hidden_boundary_separator: Effective<Separator>,
    /// Visibility by kind of update; a kind without an entry is shown.
    pub tag_visibility: Effective<BTreeMap<String, bool>>,
    /// Delivery as files, in channels with support for files.
    pub files: FilePolicy,
}

/// See [`StreamPolicy::files`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FilePolicy {
    /// Number of messages above which an answer is sent as its beginning and a file; 0 disables it.
    pub long_final_parts: Effective<u64>,
    /// Maximum size of a file, in bytes.
    pub bytes_max: Effective<u64>,
    /// True if an answer includes the changes of its turn.
    pub turn_diff: Effective<bool>,
}

/// See [`EffectivePolicy::recovery`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecoveryPolicy {
    /// Number of idle sessions restored at start.
    pub eager_actors: Effective<u64>,
    /// Time after which a run whose agent stays out of reach is failed.
    pub reconcile_running_after_ms: Effective<u64>,
}

/// Returns the shortest timeout that is set, the earlier one of two equal ones. Returns the last element if none is set.
pub fn shortest_timeout(windows: [&Effective<Option<u64>>; 3]) -> Effective<Option<u64>> {
    let set = windows.into_iter().filter(|window| window.value.is_some());
    let [_, _, last] = windows;
    set.min_by_key(|window| window.value).unwrap_or(last).clone()
}

/// One effective setting, for display.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectiveSetting {
    /// Name of the setting, e.g. `bindings.idle_ms`.
    pub setting: String,
    /// Value in effect, as JSON.
    pub value: serde_json::Value,
    /// Configuration key that decided.
    pub key: String,
    /// Place where that key was set.
    pub source: String,
    /// Additional remark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Lists all effective settings, sorted by name.
///
/// # Errors
/// A value cannot be serialised as JSON, which is a bug.
pub fn list_settings(policy: &EffectivePolicy) -> Result<Vec<EffectiveSetting>, serde_json::Error> {
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let mut rows = Vec::new();
    let mut open = vec![(String::new(), serde_json::to_value(policy)?)];
    while let Some((name, value)) = open.pop() {
        let serde_json::Value::Object(map) = value else { continue };
        if let (Some(value), Some(key), Some(source)) = (map.get("value"), map.get("key"), map.get("source"))
        {
            let source: Source = serde_json::from_value(source.clone())?;
            let key = text(key).unwrap_or_default();
            let note = map.get("note").and_then(text);
            rows.push(EffectiveSetting {
                setting: name,
                value: value.clone(),
                key,
                source: source.to_string(),
                note,
            });
            continue;
        }
        let at = |key: String| if name.is_empty() { key } else { format!("{name}.{key}") };
        open.extend(map.into_iter().map(|(key, value)| (at(key), value)));
    }
    rows.sort_by(|one, other| one.setting.cmp(&other.setting));
    Ok(rows)
}
