//! Effective settings of a conversation, account and agent: each value with the deciding key and the place
//! where that key was set. Pure, and the only code that knows the precedence: account over channel, over
//! agent and backend, over general settings, over the default.
//!
//! Range checks are in `config/check`. A value that is adjusted here has a note about it.

mod denials;
mod resolve;
#[cfg(test)]
mod tests;

pub(crate) use denials::{
    ACCOUNT_SESSIONS_MAX, BindOrigin, BindingTimeouts, SESSIONS_MAX, SPAWN_NOT_ALLOWED,
};
pub(crate) use resolve::LIVE_COALESCE_MS_MIN;

use crate::core::config::load::LoadedConfig;
use crate::core::config::source::Source;
use crate::core::config::{DeliveryMode, NonInteractive, PermissionMode, Separator};
use crate::core::rows::ConversationRef;
use acp_shared::ids::AgentName;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Channel, account and agent for which a policy is resolved. Fields with `None` are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PolicyScope {
    /// Name of the channel, e.g. `console`.
    pub(crate) channel: Option<String>,
    /// Id of the account within the channel.
    pub(crate) account: Option<String>,
    /// Name of the agent.
    pub(crate) agent: Option<AgentName>,
}

impl PolicyScope {
    /// Returns the scope of a conversation: its channel and account.
    pub(crate) fn of(at: Option<&ConversationRef>) -> Self {
        Self {
            channel: at.map(|at| at.channel.clone()),
            account: at.map(|at| at.account_id.clone()),
            agent: None,
        }
    }

    /// Returns the same scope with an agent.
    pub(crate) fn with_agent(self, agent: &AgentName) -> Self {
        Self { agent: Some(agent.clone()), ..self }
    }
}

/// Effective value of a setting, with the origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Effective<T> {
    /// Value in effect.
    pub(crate) value: T,
    /// Configuration key that decided.
    pub(crate) key: String,
    /// Place where that key was set.
    pub(crate) source: Source,
    /// Difference from the configured value, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

impl<T> Effective<T> {
    fn map<U>(self, with: impl FnOnce(T) -> U) -> Effective<U> {
        Effective { value: with(self.value), key: self.key, source: self.source, note: self.note }
    }

    /// Formats the key, the value and the source: `acp.enabled = false (/etc/gateway.toml:3)`.
    fn describe(&self) -> String
    where
        T: std::fmt::Display,
    {
        format!("{} = {} ({})", self.key, self.value, self.source)
    }
}

/// All settings in effect in a [`PolicyScope`]. Times are in milliseconds; a timeout of `None` never expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct EffectivePolicy {
    /// Main switch: false disables spawning, binding and prompting.
    pub(crate) enabled: Effective<bool>,
    /// True if prompts reach agents.
    pub(crate) dispatch_enabled: Effective<bool>,
    /// Runtime backend of new sessions.
    pub(crate) backend: Effective<String>,
    /// Command that installs this backend.
    pub(crate) install_command: Effective<Option<String>>,
    /// Default agent of a spawn.
    pub(crate) default_agent: Effective<Option<AgentName>>,
    /// Agents allowed to be spawned; empty allows all.
    pub(crate) allowed_agents: Effective<Vec<AgentName>>,
    /// Default working directory of a spawn.
    pub(crate) default_cwd: Effective<Option<PathBuf>>,
    /// Directories that contain every session's working directory; empty allows all.
    pub(crate) workspace_roots: Effective<Vec<PathBuf>>,
    /// Same for the agent, within `workspace_roots`.
    pub(crate) cwd_roots: Effective<Vec<PathBuf>>,
    /// Environment variables passed to the agent in addition to the usual ones, merged from all levels.
    pub(crate) env_allow: Effective<Vec<String>>,
    /// Maximum number of sessions in use.
    pub(crate) sessions_max: Effective<u64>,
    /// Maximum number of sessions in use of the account; `None` for no separate limit.
    pub(crate) account_sessions_max: Effective<Option<u64>>,
    /// Maximum number of runs of a session that have not ended.
    pub(crate) queue_runs_max: Effective<u64>,
    /// Settings of bindings.
    pub(crate) bindings: BindingPolicy,
    /// Idle timeouts.
    pub(crate) ttl: TimeoutPolicy,
    /// Permission settings.
    pub(crate) permission: PermissionPolicy,
    /// Time limits of the agent's process.
    pub(crate) agent: AgentTimeouts,
    /// Grouping and filtering of the agent's output in a channel.
    pub(crate) stream: StreamPolicy,
    /// Recovery at the gateway's start.
    pub(crate) recovery: RecoveryPolicy,
    /// Retention of idempotency records.
    pub(crate) idempotency_ttl_ms: Effective<u64>,
}

/// See [`EffectivePolicy::bindings`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct BindingPolicy {
    /// True if conversations may be bound.
    pub(crate) enabled: Effective<bool>,
    /// Idle timeout of a binding.
    pub(crate) idle_ms: Effective<Option<u64>>,
    /// Maximum age of a binding.
    pub(crate) max_age_ms: Effective<Option<u64>>,
    /// True if a stale binding is removed when a message arrives in its conversation.
    pub(crate) auto_unbind_stale: Effective<bool>,
    /// True if `/acp spawn` may bind.
    pub(crate) spawn_acp_sessions: Effective<bool>,
    /// True if a session spawned by an agent may be bound.
    pub(crate) spawn_subagent_sessions: Effective<bool>,
}

/// See [`EffectivePolicy::ttl`]. Source: `min(session ttl, discord thread binding ttl, acp runtime ttl)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct TimeoutPolicy {
    /// Idle time after which a session is closed.
    pub(crate) session_ms: Effective<Option<u64>>,
    /// Idle time after which an agent's process is ended.
    pub(crate) runtime_ms: Effective<Option<u64>>,
    /// Minimum of both and of the binding's idle timeout.
    pub(crate) effective_ms: Effective<Option<u64>>,
}

/// See [`EffectivePolicy::permission`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct PermissionPolicy {
    /// Handling of permission requests.
    pub(crate) mode: Effective<PermissionMode>,
    /// Handling of permission requests without a person to ask.
    pub(crate) non_interactive: Effective<NonInteractive>,
    /// Time limit for an answer; `None` for no limit.
    pub(crate) timeout_ms: Effective<Option<u64>>,
}

/// See [`EffectivePolicy::agent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct AgentTimeouts {
    /// Time limit for opening a session.
    pub(crate) init_ms: Effective<u64>,
    /// Time from end of file to SIGTERM.
    pub(crate) eof_ms: Effective<u64>,
    /// Time from SIGTERM to SIGKILL.
    pub(crate) term_ms: Effective<u64>,
    /// Time from SIGKILL to the report of surviving processes.
    pub(crate) kill_ms: Effective<u64>,
}

/// See [`EffectivePolicy::stream`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct StreamPolicy {
    /// Delivery of text during the turn or at its end.
    pub(crate) delivery_mode: Effective<DeliveryMode>,
    /// Pause in the text after which it is shown.
    pub(crate) coalesce_idle_ms: Effective<u64>,
    /// Minimum time between two edits of a live message.
    pub(crate) min_interval_ms: Effective<u64>,
    /// Maximum length of a part, in characters.
    pub(crate) max_chunk_chars: Effective<u64>,
    /// Maximum length of a turn's output, in characters.
    pub(crate) max_output_chars: Effective<u64>,
    /// Maximum length of a line about a session update, in characters.
    pub(crate) max_session_update_chars: Effective<u64>,
    /// True if identical lines are shown once.
    pub(crate) repeat_suppression: Effective<bool>,
    /// Separator in place of a hidden tool call.
    pub(crate) hidden_boundary_separator: Effective<Separator>,
    /// Visibility by kind of update; a kind without an entry is shown.
    pub(crate) tag_visibility: Effective<BTreeMap<String, bool>>,
    /// Delivery as files, in channels with support for files.
    pub(crate) files: FilePolicy,
}

/// See [`StreamPolicy::files`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FilePolicy {
    /// Number of messages above which an answer is sent as its beginning and a file; 0 disables it.
    pub(crate) long_final_parts: Effective<u64>,
    /// Maximum size of a file, in bytes.
    pub(crate) bytes_max: Effective<u64>,
    /// True if an answer includes the changes of its turn.
    pub(crate) turn_diff: Effective<bool>,
}

/// See [`EffectivePolicy::recovery`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct RecoveryPolicy {
    /// Number of idle sessions restored at start.
    pub(crate) eager_actors: Effective<u64>,
    /// Time after which a run whose agent stays out of reach is failed.
    pub(crate) reconcile_running_after_ms: Effective<u64>,
}

/// Resolves all settings in effect in a scope.
pub(crate) fn effective_policy(loaded: &LoadedConfig, scope: &PolicyScope) -> EffectivePolicy {
    resolve::effective_policy(loaded, scope)
}

/// Resolves only the settings for an agent's output in a channel.
pub(crate) fn stream_policy(loaded: &LoadedConfig, scope: &PolicyScope) -> StreamPolicy {
    resolve::stream_policy(loaded, scope)
}

/// Returns the smallest timeout, the first of equal ones; the last argument if none is set.
pub(crate) fn shortest_timeout(windows: [&Effective<Option<u64>>; 3]) -> Effective<Option<u64>> {
    let set = windows.into_iter().filter(|window| window.value.is_some());
    let [_, _, last] = windows;
    set.min_by_key(|window| window.value).unwrap_or(last).clone()
}

/// One effective setting, for display.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct EffectiveSetting {
    /// Name of the setting, e.g. `bindings.idle_ms`.
    pub(crate) setting: String,
    /// Value in effect, as JSON.
    pub(crate) value: serde_json::Value,
    /// Configuration key that decided.
    pub(crate) key: String,
    /// Place where that key was set.
    pub(crate) source: String,
    /// Additional remark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// Lists all effective settings, sorted by name.
///
/// # Errors
/// A value cannot be serialised as JSON, which is a bug.
pub(crate) fn list_settings(policy: &EffectivePolicy) -> Result<Vec<EffectiveSetting>, serde_json::Error> {
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
            let note = note.or_else(|| crate::core::config::ignored_keys::note(&key));
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
