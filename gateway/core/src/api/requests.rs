//! Bodies of modifying requests.

use crate::acpx_contract::AcpxNaming;
use crate::actor::QuestionAnswer;
use crate::backend::SessionListing;
use crate::elicitation::ElicitationAnswer;
use crate::failure::Failure;
use crate::mcp::McpServers;
use crate::options::Setting;
use crate::permission::Voting;
use crate::rows::{NonInteractive, PermissionMode, RunMode, SessionMode};
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, BindingId, RunId, SessionKey};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// `POST /v1/sessions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SpawnBody {
    /// Agent; absent takes the configured default.
    #[schema(value_type = Option<String>)]
    pub agent: Option<AgentName>,
    /// Absolute working directory; absent takes the configured default.
    pub cwd: Option<String>,
    /// Label for the session.
    pub label: Option<String>,
    /// Lifetime of the session; absent means persistent.
    pub mode: Option<SessionMode>,
    /// Overrides the agent's permission mode.
    pub permission: Option<PermissionMode>,
    /// Overrides the outcome of unattended permission requests.
    pub non_interactive_permissions: Option<NonInteractive>,
    /// Who may answer the agent's questions; absent means `first`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voting: Option<Voting>,
    /// First prompt.
    pub prompt: Option<String>,
    /// Model, set before the first prompt. If the agent refuses it, the prompt fails with `USAGE`, detail `OPTION_REFUSED`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Display name of the requester; absent takes the name of the connecting user.
    pub author: Option<String>,
    /// True if a person can answer permission requests in the first run.
    pub interactive: bool,
    /// Name in the contract of acpx, unique among the open sessions of agent and directory: an open session with it is
    /// returned, or replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acpx: Option<AcpxNaming>,
    /// Session that spawns and owns this one; absent if a person does.
    #[schema(value_type = Option<String>)]
    pub spawned_by: Option<SessionKey>,
    /// Maximum time to wait for the agent to open its session before responding, in seconds, at most 120;
    /// absent responds at once.
    pub wait_s: Option<u64>,
    /// MCP servers by name, as in `mcpServers` of `--mcp-config`.
    #[serde(skip_serializing_if = "McpServers::is_empty")]
    #[schema(value_type = std::collections::BTreeMap<String, crate::config::McpServer>)]
    pub mcp_servers: McpServers,
    /// Additional absolute directories.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_directories: Vec<String>,
    /// Sign-in method of the agent (`authenticate`), used each time its process opens the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_method: Option<String>,
    /// Program and arguments of the agent instead of `agent`; needs `acpx.allow_commands`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Runtime backend; absent takes the configured one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Host that runs the agent, `local` for the gateway's machine; absent chooses one by the agent's labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Conversation of the agent to continue, by the agent's own session id; absent begins a new one. Needs scope `admin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    /// Lists the agent's stored sessions instead of opening one: status events `agent_sessions`, then the session is closed
    /// and hidden. Needs scope `admin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listing: Option<SessionListing>,
}

/// `POST /v1/sessions/{key}/prompt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptBody {
    /// Text of the prompt.
    pub text: String,
    /// Turn or steer; absent means a turn.
    pub mode: Option<RunMode>,
    /// Display name of the author; absent takes the name of the connecting user.
    pub author: Option<String>,
    /// True if a person can answer permission requests in this run.
    #[serde(default)]
    pub interactive: bool,
    /// Permission mode of this run alone; absent takes the session's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission: Option<PermissionMode>,
    /// Outcome of unattended permission requests in this run alone; absent takes the session's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub non_interactive_permissions: Option<NonInteractive>,
    /// Starts a new conversation with the agent if the old one cannot be resumed.
    #[serde(default)]
    pub new_conversation: bool,
    /// Files for the agent: at most 10, with 8 MiB together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileBody>,
}

impl PromptBody {
    /// Body of an unattended turn.
    pub fn of_text(text: String) -> Self {
        Self {
            text,
            mode: None,
            author: None,
            interactive: false,
            permission: None,
            non_interactive_permissions: None,
            new_conversation: false,
            files: Vec::new(),
        }
    }
}

/// `POST /v1/acpx/prompt`: a prompt for the open session with a name in the contract of acpx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedPromptBody {
    /// Agent of the session; absent takes the configured default.
    #[schema(value_type = Option<String>)]
    pub agent: Option<AgentName>,
    /// Name of the session, and the directories in which it is looked for.
    pub acpx: AcpxNaming,
    /// The prompt.
    pub prompt: PromptBody,
}

/// File of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileBody {
    /// Name of the file.
    pub name: String,
    /// Media type, such as `image/png`; empty if unknown.
    #[serde(default)]
    pub mime: String,
    /// Content, in base64.
    pub base64: String,
}

/// `POST /v1/sessions/{key}/cancel`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CancelBody {
    /// Run to cancel; absent means the running one, otherwise the next in the queue.
    #[schema(value_type = Option<String>)]
    pub run_id: Option<RunId>,
}

/// `POST /v1/sessions/{key}/close`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CloseBody {
    /// Reason for the record.
    pub reason: Option<String>,
    /// True to delete the conversation at the agent, if supported (`session/delete`).
    pub discard: bool,
    /// Closes only a session that is idle, unbound and without activity after this time, in milliseconds since the Unix
    /// epoch; otherwise `USAGE` with `SESSION_IN_USE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_idle_since_ms: Option<u64>,
}

/// `POST /v1/sessions/{key}/unbind`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UnbindBody {
    /// Binding to end; absent means all of the session's.
    #[schema(value_type = Option<String>)]
    pub binding_id: Option<BindingId>,
    /// Reason for the record.
    pub reason: Option<String>,
}

/// `PATCH /v1/sessions/{key}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionPatch {
    /// New label; `null` removes it. Required.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(value_type = Option<String>, required = true)]
    pub label: Option<Option<String>>,
}

/// Distinguishes `null` from a missing member.
fn present<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(input).map(Some)
}

/// `POST /v1/sessions/{key}/release`: no members yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReleaseBody {}

/// `POST /v1/sessions/{key}/new`: no members yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewBody {}

/// `POST /v1/sessions/{key}/options`: exactly one of these members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OptionBody {
    /// ACP session mode to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Model to set, through the agent's config option `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Absolute working directory to continue in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Permission mode to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission: Option<PermissionMode>,
    /// Outcome of unattended permission requests to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub non_interactive_permissions: Option<NonInteractive>,
    /// Who may answer later questions of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voting: Option<Voting>,
    /// The session's own time limit of a turn, in seconds; with 0 only the gateway's (`limits.turn_ms`) holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// Resets all options to the configured values; only `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defaults: Option<bool>,
    /// ACP config option to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigChoice>,
    /// Host to continue on, `local` for the gateway's machine. The agent's process is ended first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl OptionBody {
    /// Returns the only setting; `None` for none or several.
    pub fn setting(self) -> Option<Setting> {
        let mut all = [
            self.mode.map(Setting::Mode),
            self.model.map(Setting::Model),
            self.cwd.map(Setting::Cwd),
            self.permission.map(Setting::Permission),
            self.non_interactive_permissions.map(Setting::NonInteractive),
            self.voting.map(Setting::Voting),
            self.timeout_s.map(Setting::TimeoutS),
            self.config.map(|choice| Setting::Config { id: choice.id, value: choice.value }),
            self.defaults.filter(|wanted| *wanted).map(|_| Setting::Defaults),
            self.host.map(Setting::Host),
        ]
        .into_iter()
        .flatten();
        all.next().filter(|_| all.next().is_none())
    }
}

/// A value for an ACP config option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigChoice {
    /// Option id.
    pub id: String,
    /// New value.
    pub value: String,
}

/// `POST /v1/sessions/{key}/permissions/{id}`. Either an option, or for an elicitation an action.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerBody {
    /// Id of one of the options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option_id: Option<String>,
    /// Action for an elicitation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<AnswerAction>,
    /// Values of a form by field name, for the action `accept`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub content: Option<serde_json::Map<String, serde_json::Value>>,
    /// Display name of the person who answers; absent takes the name of the connecting user.
    pub by: Option<String>,
}

acp_shared::named! {
    /// Action that answers an elicitation.
    #[derive(Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum AnswerAction {
        /// Submit the values, or consent to open the page.
        Accept = "accept",
        /// Refuse.
        Decline = "decline",
        /// Dismiss without a choice.
        Cancel = "cancel",
    }
}

impl AnswerBody {
    /// Body that chooses an option.
    pub fn of_option(option_id: String) -> Self {
        Self { option_id: Some(option_id), ..Self::default() }
    }

    /// Body that submits the values of a form.
    pub fn of_content(content: serde_json::Map<String, serde_json::Value>) -> Self {
        Self { action: Some(AnswerAction::Accept), content: Some(content), ..Self::default() }
    }

    /// Returns the answer.
    ///
    /// # Errors
    /// `USAGE` unless the body has either an option or an action; values need the action `accept`.
    pub fn answer(&mut self) -> Result<QuestionAnswer, Failure> {
        let content = self.content.take();
        match (self.option_id.take(), self.action, content) {
            (Some(option_id), None, None) => Ok(QuestionAnswer::Option(option_id)),
            (None, Some(AnswerAction::Accept), content) => {
                let content = content.unwrap_or_default();
                Ok(QuestionAnswer::Elicitation(ElicitationAnswer::Accept { content }))
            }
            (None, Some(AnswerAction::Decline), None) => {
                Ok(QuestionAnswer::Elicitation(ElicitationAnswer::Decline))
            }
            (None, Some(AnswerAction::Cancel), None) => {
                Ok(QuestionAnswer::Elicitation(ElicitationAnswer::Cancel))
            }
            _ => {
                let text = "give either `option_id`, or `action` (`accept`, `decline` or `cancel`); `content` \
                            needs the action `accept`";
                Err(Failure::new(Code::Usage, text).origin("client"))
            }
        }
    }
}
