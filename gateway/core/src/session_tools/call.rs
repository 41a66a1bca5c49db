//! Tools and their arguments: published schemas, and checks of received arguments.

use crate::config::SessionMode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Name of the requester's own session in `session_status`.
pub const CURRENT: &str = "current";
/// Maximum wait for the end of a turn, in seconds.
pub const WAIT_S_MAX: u64 = 600;
/// Names of the tools.
pub const TOOLS: [&str; 5] =
    ["sessions_list", "sessions_history", "sessions_send", "sessions_spawn", "session_status"];
const KEY_CHARS_MAX: usize = 256;
const TEXT_CHARS_MAX: usize = 100_000;
const CWD_CHARS_MAX: usize = 4_096;
const LIMIT_MAX: u64 = 200;
const LIMIT_DEFAULT: u64 = 50;

/// State of a session as agents see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListedState {
    /// Ready for a turn.
    Idle,
    /// Starting, in a turn, or ending one.
    Running,
    /// Failed to start.
    Error,
    /// Closed.
    Closed,
}

/// Arguments of `sessions_list`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListArguments {
    /// Only sessions in these states; `None` for all that are not closed.
    pub states: Option<Vec<ListedState>>,
    /// Only sessions of this agent.
    pub agent: Option<String>,
    /// Only sessions with activity within these minutes.
    pub active_minutes: Option<u64>,
    /// Maximum number of sessions.
    #[serde(default = "limit_default")]
    pub limit: u64,
    /// Place at which a page before ended.
    pub cursor: Option<String>,
}

/// Arguments of `sessions_history`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryArguments {
    /// The session.
    pub session: String,
    /// Only messages after this row; `None` for the newest ones.
    pub after: Option<u64>,
    /// Maximum number of messages.
    #[serde(default = "limit_default")]
    pub limit: u64,
    /// True to include tool calls.
    #[serde(default)]
    pub include_tools: bool,
}

/// Arguments of `sessions_send`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendArguments {
    /// The session.
    pub session: String,
    /// The message.
    pub text: String,
    /// Time to wait for the end of the turn, in seconds.
    #[serde(default)]
    pub wait_s: u64,
}

/// Arguments of `sessions_spawn`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpawnArguments {
    /// Agent of the new session; `None` for the requester's.
    pub agent: Option<String>,
    /// First prompt.
    pub task: String,
    /// Label of the new session.
    pub label: Option<String>,
    /// Working directory; `None` for the requester's.
    pub cwd: Option<String>,
    /// Lifetime of the new session.
    #[serde(default = "oneshot")]
    pub mode: SessionMode,
    /// Time to wait for the end of the turn, in seconds.
    #[serde(default)]
    pub wait_s: u64,
}

/// Arguments of `session_status`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatusArguments {
    /// The session; [`CURRENT`] for the requester's own.
    #[serde(default = "current")]
    pub session: String,
}

/// A call with valid arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolCall {
    /// `sessions_list`
    List(ListArguments),
    /// `sessions_history`
    History(HistoryArguments),
    /// `sessions_send`
    Send(SendArguments),
    /// `sessions_spawn`
    Spawn(SpawnArguments),
    /// `session_status`
    Status(StatusArguments),
}

const fn limit_default() -> u64 {
    LIMIT_DEFAULT
}

const fn oneshot() -> SessionMode {
    SessionMode::Oneshot
}

fn current() -> String {
    CURRENT.to_owned()
}

impl ToolCall {
    /// Parses the arguments of a tool. `None` for an unknown tool.
    ///
    /// # Errors
    /// The argument that is not valid, and why.
    pub fn parse(tool: &str, arguments: &Value) -> Option<Result<Self, String>> {
        Some(match tool {
            "sessions_list" => read(arguments, ListArguments::check).map(Self::List),
            "sessions_history" => read(arguments, HistoryArguments::check).map(Self::History),
            "sessions_send" => read(arguments, SendArguments::check).map(Self::Send),
            "sessions_spawn" => read(arguments, SpawnArguments::check).map(Self::Spawn),
            "session_status" => {
                read(arguments, |it: &StatusArguments| key("session", &it.session)).map(Self::Status)
            }
            _ => return None,
        })
    }
}

fn read<T: DeserializeOwned>(
    arguments: &Value,
    check: impl FnOnce(&T) -> Result<(), String>,
) -> Result<T, String> {
    if !arguments.is_object() {
        return Err("they must be an object".to_owned());
    }
    let read: T = T::deserialize(arguments).map_err(|error| error.to_string())?;
    check(&read)?;
    Ok(read)
}

impl ListArguments {
    fn check(&self) -> Result<(), String> {
        limit(self.limit)?;
        optional_key("agent", self.agent.as_deref())?;
        optional_key("cursor", self.cursor.as_deref())?;
        if self.active_minutes == Some(0) {
            Err("active_minutes must be 1 or more".to_owned())
        } else {
            Ok(())
        }
    }
}

impl HistoryArguments {
    fn check(&self) -> Result<(), String> {
        key("session", &self.session)?;
        limit(self.limit)
    }
}

impl SendArguments {
    fn check(&self) -> Result<(), String> {
        key("session", &self.session)?;
        text("text", &self.text)?;
        wait(self.wait_s)
    }
}

impl SpawnArguments {
    fn check(&self) -> Result<(), String> {
        optional_key("agent", self.agent.as_deref())?;
        optional_key("label", self.label.as_deref())?;
        text("task", &self.task)?;
        if self.cwd.as_ref().is_some_and(|cwd| cwd.chars().count() > CWD_CHARS_MAX) {
            return Err(format!("cwd may have {CWD_CHARS_MAX} characters at most"));
        }
        wait(self.wait_s)
    }
}

fn key(name: &str, value: &str) -> Result<(), String> {
    match value.chars().count() {
        1..=KEY_CHARS_MAX => Ok(()),
        _ => Err(format!("{name} must have 1 to {KEY_CHARS_MAX} characters")),
    }
}

fn optional_key(name: &str, value: Option<&str>) -> Result<(), String> {
    value.map_or(Ok(()), |value| key(name, value))
}

fn text(name: &str, value: &str) -> Result<(), String> {
    match value.chars().count() {
        1..=TEXT_CHARS_MAX => Ok(()),
        _ => Err(format!("{name} must have 1 to {TEXT_CHARS_MAX} characters")),
    }
}

fn limit(value: u64) -> Result<(), String> {
    if (1..=LIMIT_MAX).contains(&value) { Ok(()) } else { Err(format!("limit must be 1 to {LIMIT_MAX}")) }
}

fn wait(value: u64) -> Result<(), String> {
    if value <= WAIT_S_MAX { Ok(()) } else { Err(format!("wait_s must be 0 to {WAIT_S_MAX}")) }
}

/// Returns the tools as in `tools/list`. `agents` are those that the requester may spawn.
pub(super) fn descriptions(agents: &[String]) -> Value {
    let may_spawn = if agents.is_empty() { "none".to_owned() } else { agents.join(", ") };
    let texts = [
        "List the sessions of this gateway that you may see, the newest first, closed ones only on request. Sessions are \
         conversations of people or agents with an agent. A result with next_cursor has another page."
            .to_owned(),
        "Read the messages of a session, oldest first: the newest ones, or with `after` those that follow a row number. \
         Tool calls are left out unless include_tools is true."
            .to_owned(),
        "Send a message to another session as its next prompt. Returns at once, or with wait_s waits for the end of the \
         turn and returns the reply as text. An early end of the wait leaves the turn running: session_status tells its \
         state."
            .to_owned(),
        format!(
            "Start a session of your own with an agent and give it a task. Its working directory must lie in your \
             session's directories, and it may do no more than your session. With wait_s, waits for the end of the task \
             and returns the reply as text. A oneshot session is closed after the task. Agents that you may start: \
             {may_spawn}."
        ),
        "Read the state of a session, without `session` your own: what runs, what waits, and open permission requests."
            .to_owned(),
    ];
    let tool = |((name, text), (properties, required)): ((&str, String), (Value, Value))| {
        let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
        if let (Some(schema), false) = (schema.as_object_mut(), required.is_null()) {
            schema.insert("required".to_owned(), required);
        }
        let reads = !matches!(name, "sessions_send" | "sessions_spawn");
        json!({
            "name": name, "description": text, "inputSchema": schema,
            "annotations": { "readOnlyHint": reads, "openWorldHint": false },
        })
    };
    TOOLS.into_iter().zip(texts).zip(schemas()).map(tool).collect()
}

/// Properties and required arguments of each tool, in the order of [`TOOLS`].
fn schemas() -> [(Value, Value); 5] {
    let key = || json!({ "type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX });
    let text = || json!({ "type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX });
    let limit = || json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT });
    let wait = || json!({ "type": "integer", "minimum": 0, "maximum": WAIT_S_MAX, "default": 0 });
    [
        (
            json!({
                "states": { "type": "array", "items": { "enum": ["idle", "running", "error", "closed"] } },
                "agent": key(),
                "active_minutes": { "type": "integer", "minimum": 1 },
                "limit": limit(),
                "cursor": key(),
            }),
            Value::Null,
        ),
        (
            json!({
                "session": key(),
                "after": { "type": "integer", "minimum": 0 },
                "limit": limit(),
                "include_tools": { "type": "boolean", "default": false },
            }),
            json!(["session"]),
        ),
        (json!({ "session": key(), "text": text(), "wait_s": wait() }), json!(["session", "text"])),
        (
            json!({
                "agent": key(),
                "task": text(),
                "label": key(),
                "cwd": { "type": "string", "maxLength": CWD_CHARS_MAX },
                "mode": { "enum": ["oneshot", "persistent"], "default": "oneshot" },
                "wait_s": wait(),
            }),
            json!(["task"]),
        ),
        (json!({ "session": { "default": CURRENT } }), Value::Null),
    ]
}
