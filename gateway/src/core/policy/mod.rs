//! What holds for one conversation, account and agent: every effective value with the key that decided it and where
//! that key was set. Pure, and the only place that knows which level wins: account over channel, over agent and
//! backend, over what holds in general, over the default.
//!
//! Bounds are not applied here: a number out of its bounds never gets through `config/check`. What is bent here says
//! so in its note.

mod gates;
mod resolve;
#[cfg(test)]
mod tests;

pub(crate) use gates::{ACCOUNT_SESSIONS_MAX, Bind, BindingWindows, SESSIONS_MAX, SPAWN_NOT_ALLOWED};
pub(crate) use resolve::LIVE_COALESCE_MS_MIN;

use crate::config::load::Loaded;
use crate::config::source::Source;
use crate::config::{DeliveryMode, NonInteractive, PermissionMode, Separator};
use crate::core::rows::ConversationRef;
use acp_shared::ids::AgentName;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Whom a question is about. What is `None` is not asked about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The channel, e.g. `console`.
    pub(crate) channel: Option<String>,
    /// The account of that channel.
    pub(crate) account: Option<String>,
    /// The agent.
    pub(crate) agent: Option<AgentName>,
}

impl Scope {
    /// A conversation's channel and account.
    pub(crate) fn of(at: Option<&ConversationRef>) -> Self {
        Self {
            channel: at.map(|at| at.channel.clone()),
            account: at.map(|at| at.account_id.clone()),
            agent: None,
        }
    }

    /// The same, for an agent.
    pub(crate) fn with_agent(self, agent: &AgentName) -> Self {
        Self { agent: Some(agent.clone()), ..self }
    }
}

/// A value, and why it is that one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Effective<T> {
    /// The value.
    pub(crate) value: T,
    /// The key that decided.
    pub(crate) key: String,
    /// Where that key was set.
    pub(crate) source: Source,
    /// What was made of the key's own value, if it is not as it was set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

impl<T> Effective<T> {
    fn map<U>(self, with: impl FnOnce(T) -> U) -> Effective<U> {
        Effective { value: with(self.value), key: self.key, source: self.source, note: self.note }
    }

    /// `acp.enabled = false (/etc/gateway.toml:3)`.
    fn said(&self) -> String
    where
        T: std::fmt::Display,
    {
        format!("{} = {} ({})", self.key, self.value, self.source)
    }
}

/// Everything that is effective in a [`Scope`]. Times are in milliseconds; a window that is `None` never ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Policy {
    /// Whether anything is spawned, bound or said at all.
    pub(crate) enabled: Effective<bool>,
    /// Whether prompts reach agents.
    pub(crate) dispatch_enabled: Effective<bool>,
    /// Runtime backend of new sessions.
    pub(crate) backend: Effective<String>,
    /// How that backend is installed.
    pub(crate) install_command: Effective<Option<String>>,
    /// Agent of a spawn that names none.
    pub(crate) default_agent: Effective<Option<AgentName>>,
    /// Agents that may be spawned; empty is all.
    pub(crate) allowed_agents: Effective<Vec<AgentName>>,
    /// Working directory of a spawn that names none.
    pub(crate) default_cwd: Effective<Option<PathBuf>>,
    /// Directories beneath which every session works; empty is all.
    pub(crate) workspace_roots: Effective<Vec<PathBuf>>,
    /// The same for the agent, within the former.
    pub(crate) cwd_roots: Effective<Vec<PathBuf>>,
    /// Variables of the gateway that the agent may see beside the usual ones: of all levels together.
    pub(crate) env_allow: Effective<Vec<String>>,
    /// Sessions in use in all.
    pub(crate) sessions_max: Effective<u64>,
    /// Sessions in use of the account; `None` is no cap of its own.
    pub(crate) account_sessions_max: Effective<Option<u64>>,
    /// Runs of one session that have not ended.
    pub(crate) queue_runs_max: Effective<u64>,
    /// Bindings of conversations.
    pub(crate) bindings: Bindings,
    /// How long what is idle lives.
    pub(crate) ttl: Ttl,
    /// Permissions.
    pub(crate) permission: Permission,
    /// Deadlines of the agent's process.
    pub(crate) agent: AgentTimes,
    /// How a channel groups what the agent says.
    pub(crate) stream: Stream,
    /// What happens at the gateway's start.
    pub(crate) recovery: Recovery,
    /// How long answers are kept for a repetition.
    pub(crate) idempotency_ttl_ms: Effective<u64>,
}

/// See [`Policy::bindings`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Bindings {
    /// Whether there are any.
    pub(crate) enabled: Effective<bool>,
    /// A binding ends after this long without a word.
    pub(crate) idle_ms: Effective<Option<u64>>,
    /// A binding ends this long after it was made.
    pub(crate) max_age_ms: Effective<Option<u64>>,
    /// Whether a binding that leads nowhere is removed when somebody speaks there.
    pub(crate) auto_unbind_stale: Effective<bool>,
    /// Whether `/acp spawn` may bind.
    pub(crate) spawn_acp_sessions: Effective<bool>,
    /// Whether an agent's own spawn may bind.
    pub(crate) spawn_subagent_sessions: Effective<bool>,
}

/// See [`Policy::ttl`]. Source: `min(session ttl, discord thread binding ttl, acp runtime ttl)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Ttl {
    /// An idle session is closed.
    pub(crate) session_ms: Effective<Option<u64>>,
    /// An idle agent's process is ended.
    pub(crate) runtime_ms: Effective<Option<u64>>,
    /// The least of the two and of the binding's idle window.
    pub(crate) effective_ms: Effective<Option<u64>>,
}

/// See [`Policy::permission`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Permission {
    /// What happens when the agent asks.
    pub(crate) mode: Effective<PermissionMode>,
    /// What happens when nobody can be asked.
    pub(crate) non_interactive: Effective<NonInteractive>,
    /// How long a question waits.
    pub(crate) timeout_ms: Effective<Option<u64>>,
}

/// See [`Policy::agent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct AgentTimes {
    /// How long it may take to open a session.
    pub(crate) init_ms: Effective<u64>,
    /// From end of file to SIGTERM.
    pub(crate) eof_ms: Effective<u64>,
    /// From SIGTERM to SIGKILL.
    pub(crate) term_ms: Effective<u64>,
    /// From SIGKILL to naming the survivors.
    pub(crate) kill_ms: Effective<u64>,
}

/// See [`Policy::stream`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Stream {
    /// When a conversation sees text.
    pub(crate) delivery_mode: Effective<DeliveryMode>,
    /// Text is shown after this long without more of it.
    pub(crate) coalesce_idle_ms: Effective<u64>,
    /// Between two changes of a live message.
    pub(crate) min_interval_ms: Effective<u64>,
    /// Longest part, in characters.
    pub(crate) max_chunk_chars: Effective<u64>,
    /// Most characters of a turn.
    pub(crate) max_output_chars: Effective<u64>,
    /// Longest line about an update, in characters.
    pub(crate) max_session_update_chars: Effective<u64>,
    /// Whether the same line is shown once only.
    pub(crate) repeat_suppression: Effective<bool>,
    /// What stands where a hidden tool call was.
    pub(crate) hidden_boundary_separator: Effective<Separator>,
    /// Which kinds of update are shown; a kind that is not in here is.
    pub(crate) tag_visibility: Effective<BTreeMap<String, bool>>,
    /// What is told as files, where the channel carries files.
    pub(crate) files: Files,
}

/// See [`Stream::files`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Files {
    /// An answer of more messages than this is its beginning and a file; 0: none is.
    pub(crate) long_final_parts: Effective<u64>,
    /// Most bytes of one file.
    pub(crate) bytes_max: Effective<u64>,
    /// Whether what a turn changed goes with its answer.
    pub(crate) turn_diff: Effective<bool>,
}

/// See [`Policy::recovery`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Recovery {
    /// Idle sessions that are taken up at start.
    pub(crate) eager_actors: Effective<u64>,
    /// When a run that was running is given up.
    pub(crate) reconcile_running_after_ms: Effective<u64>,
}

/// Works out everything that is effective in a scope.
pub(crate) fn effective(loaded: &Loaded, scope: &Scope) -> Policy {
    resolve::policy(loaded, scope)
}

/// Works out how a channel groups what the agent says, and nothing else.
pub(crate) fn stream(loaded: &Loaded, scope: &Scope) -> Stream {
    resolve::stream(loaded, scope)
}

/// The least of several windows, the first one of those that are equal; of none, the last one named.
pub(crate) fn least(windows: [&Effective<Option<u64>>; 3]) -> Effective<Option<u64>> {
    let set = windows.into_iter().filter(|window| window.value.is_some());
    let [_, _, last] = windows;
    set.min_by_key(|window| window.value).unwrap_or(last).clone()
}

/// One line of what is effective, for people and programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Shown {
    /// What it is, e.g. `bindings.idle_ms`.
    pub(crate) setting: String,
    /// Its value.
    pub(crate) value: serde_json::Value,
    /// The key that decided.
    pub(crate) key: String,
    /// Where that key was set.
    pub(crate) source: String,
    /// What else must be known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// Every effective value, in the order of its name.
///
/// # Errors
/// A value cannot be written as JSON: a fault of this program.
pub(crate) fn shown(policy: &Policy) -> Result<Vec<Shown>, serde_json::Error> {
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
            let note = note.or_else(|| crate::config::unused::note(&key));
            rows.push(Shown { setting: name, value: value.clone(), key, source: source.to_string(), note });
            continue;
        }
        let at = |key: String| if name.is_empty() { key } else { format!("{name}.{key}") };
        open.extend(map.into_iter().map(|(key, value)| (at(key), value)));
    }
    rows.sort_by(|one, other| one.setting.cmp(&other.setting));
    Ok(rows)
}
