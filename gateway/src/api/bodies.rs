//! What acting requests carry.

use crate::core::mcp::McpServers;
use crate::core::options::Setting;
use crate::core::rows::{NonInteractive, PermissionMode, RunMode, SessionMode};
use acp_shared::ids::{AgentName, BindingId, RunId, SessionKey};
use serde::{Deserialize, Serialize};

/// `POST /v1/sessions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SpawnBody {
    /// Which agent; absent takes the configured default.
    pub(crate) agent: Option<AgentName>,
    /// Absolute working directory; absent takes the configured default.
    pub(crate) cwd: Option<String>,
    /// What a person calls it.
    pub(crate) label: Option<String>,
    /// How long it is meant to live; absent means persistent.
    pub(crate) mode: Option<SessionMode>,
    /// Overrides the agent's permission mode.
    pub(crate) permission: Option<PermissionMode>,
    /// Overrides what happens when nobody can be asked.
    pub(crate) non_interactive_permissions: Option<NonInteractive>,
    /// First prompt.
    pub(crate) prompt: Option<String>,
    /// Who asks, for people; absent takes the name of the connecting user.
    pub(crate) author: Option<String>,
    /// Whether somebody can be asked for permissions in the first run.
    pub(crate) interactive: bool,
    /// The session that spawns this one, and owns it then; absent when a person does.
    pub(crate) spawned_by: Option<SessionKey>,
    /// Answer once the agent has opened its session, or after so many seconds, 120 at most; absent answers at once.
    pub(crate) wait_s: Option<u64>,
    /// MCP servers by name, as in `mcpServers` of `--mcp-config`.
    #[serde(skip_serializing_if = "McpServers::is_empty")]
    pub(crate) mcp_servers: McpServers,
    /// Additional absolute directories.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) additional_directories: Vec<String>,
}

/// `POST /v1/sessions/{key}/prompt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PromptBody {
    /// What the person says.
    pub(crate) text: String,
    /// Turn or steer; absent means a turn.
    #[serde(default)]
    pub(crate) mode: Option<RunMode>,
    /// Who says it, for people; absent takes the name of the connecting user.
    #[serde(default)]
    pub(crate) author: Option<String>,
    /// Whether somebody can be asked for permissions in this run.
    #[serde(default)]
    pub(crate) interactive: bool,
    /// Start a new conversation with the agent when the old one cannot be gone on with.
    #[serde(default)]
    pub(crate) new_conversation: bool,
}

/// `POST /v1/sessions/{key}/cancel`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CancelBody {
    /// Which run; absent means the running one, or else the next in the queue.
    pub(crate) run_id: Option<RunId>,
}

/// `POST /v1/sessions/{key}/close`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CloseBody {
    /// Why, for the record.
    pub(crate) reason: Option<String>,
    /// Whether the agent shall forget the conversation, where it can (`session/delete`).
    pub(crate) discard: bool,
}

/// `POST /v1/sessions/{key}/unbind`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct UnbindBody {
    /// One binding; absent means all of the session's.
    pub(crate) binding_id: Option<BindingId>,
    /// Reason for the record.
    pub(crate) reason: Option<String>,
}

/// `POST /v1/sessions/{key}/new`: no members yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NewBody {}

/// `POST /v1/sessions/{key}/options`: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OptionBody {
    /// ACP session mode to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
    /// Model to set, through the agent's config option `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// Absolute working directory to go on in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
    /// What happens when the agent asks for a permission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) permission: Option<PermissionMode>,
    /// What happens when nobody can be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) non_interactive_permissions: Option<NonInteractive>,
    /// How long a turn may take, in seconds; 0 takes the limit away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_s: Option<u64>,
    /// Everything back to what configuration says; only `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) defaults: Option<bool>,
    /// ACP config option to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<ConfigChoice>,
}

impl OptionBody {
    /// The one setting that it is; `None` for none, or for several.
    pub(crate) fn setting(self) -> Option<Setting> {
        let mut all = [
            self.mode.map(Setting::Mode),
            self.model.map(Setting::Model),
            self.cwd.map(Setting::Cwd),
            self.permission.map(Setting::Permission),
            self.non_interactive_permissions.map(Setting::NonInteractive),
            self.timeout_s.map(Setting::TimeoutS),
            self.config.map(|choice| Setting::Config { id: choice.id, value: choice.value }),
            self.defaults.filter(|wanted| *wanted).map(|_| Setting::Defaults),
        ]
        .into_iter()
        .flatten();
        all.next().filter(|_| all.next().is_none())
    }
}

/// A value for an ACP config option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigChoice {
    /// The option's id.
    pub(crate) id: String,
    /// Its new value.
    pub(crate) value: String,
}

/// `POST /v1/sessions/{key}/permissions/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerBody {
    /// One of the agent's options.
    pub(crate) option_id: String,
    /// Who answers, for people; absent takes the name of the connecting user.
    #[serde(default)]
    pub(crate) by: Option<String>,
}
