//! Params of the methods that clients call: one definition and one check for each.

use super::message::ReplyError;
use crate::actor::QuestionAnswer;
use crate::api::AnswerBody;
use crate::config::{McpServer, PermissionMode, Secret};
use crate::files::{FILES_BYTES_MAX, PromptFile};
use crate::jsonrpc::ObjectMembers;
use crate::mcp;
use crate::permission::Voting;
use crate::principal::Scope;
use crate::visibility::Action;
use acp_shared::ids::{IdempotencyKey, RunId, SessionKey};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Maximum length of a working directory, in bytes.
const CWD_BYTES_MAX: usize = 4_096;
/// Maximum number of MCP servers of one request.
const MCP_SERVERS_MAX: usize = 32;

/// Call of a client.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientCall {
    /// `authenticate` and `logout`: the token is the login.
    Login,
    /// `session/new`.
    New(Box<NewSession>),
    /// `session/load`.
    Load(OpenSession),
    /// `session/resume`.
    Resume(OpenSession),
    /// `session/list`.
    List(ListSessions),
    /// `session/prompt`.
    Prompt(Box<Prompt>),
    /// `_acphost/session/steer`.
    Steer(Box<Prompt>),
    /// `session/cancel`.
    Cancel(SessionKey),
    /// `session/close`.
    Close(SessionKey),
    /// `session/delete`.
    Delete(SessionKey),
    /// `session/set_mode`.
    SetMode {
        /// The session.
        session: SessionKey,
        /// New mode.
        mode: String,
    },
    /// `session/set_config_option`.
    SetOption {
        /// The session.
        session: SessionKey,
        /// Id of the option.
        id: String,
        /// New value; booleans as `true` and `false`.
        value: String,
    },
    /// `$/cancel_request`, with the raw id of the request.
    CancelRequest(String),
    /// `_acphost/session/show`.
    Show(SessionKey),
    /// `_acphost/session/history`.
    History {
        /// The session.
        session: SessionKey,
        /// Only rows after this number.
        after: u64,
        /// Maximum number of rows.
        limit: u32,
    },
    /// `_acphost/session/update`.
    Update {
        /// The session.
        session: SessionKey,
        /// New label; `None` removes it.
        label: Option<String>,
    },
    /// `_acphost/session/diff`.
    Diff {
        /// The session.
        session: SessionKey,
        /// Run whose changes are wanted; `None` for all.
        run: Option<RunId>,
    },
    /// `_acphost/fs/stat`, without a path the directories alone.
    Stat {
        /// The session.
        session: SessionKey,
        /// File to inspect.
        path: Option<String>,
    },
    /// `_acphost/fs/read`.
    ReadFile {
        /// The session.
        session: SessionKey,
        /// File to read.
        path: String,
        /// First line, from 1.
        line: Option<u64>,
        /// Number of lines.
        limit: Option<u64>,
    },
    /// `_acphost/permissions/list`; without a session those of all sessions that the client may see.
    Permissions(Option<SessionKey>),
    /// `_acphost/permissions/answer`.
    AnswerPermission {
        /// The session.
        session: SessionKey,
        /// Id of the permission request.
        permission_id: String,
        /// The answer.
        answer: QuestionAnswer,
    },
    /// `_acphost/agents/list`.
    Agents,
    /// `_acphost/host/status`.
    HostStatus,
    /// `_acphost/ping`.
    Ping,
}

/// Params of `session/new`.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSession {
    /// Working directory.
    pub cwd: String,
    /// MCP servers.
    pub mcp_servers: Vec<McpServer>,
    /// Additional directories.
    pub additional_directories: Vec<String>,
    /// Label.
    pub label: Option<String>,
    /// Permission mode.
    pub permission: Option<PermissionMode>,
    /// Rule about who may answer the agent's questions.
    pub voting: Option<Voting>,
    /// Idempotency key of the client.
    pub idempotency_key: Option<IdempotencyKey>,
}

impl ClientCall {
    /// Smallest scope of a principal that may make the call. `session/new` and `session/set_config_option` may need more:
    /// see [`crate::widening`].
    pub fn scope(&self) -> Scope {
        match self {
            // Nobody but the agent knows which of its modes asks less.
            Self::SetMode { .. } | Self::AnswerPermission { .. } => Scope::Approve,
            Self::New(_)
            | Self::Prompt(_)
            | Self::Steer(_)
            | Self::Cancel(_)
            | Self::CancelRequest(_)
            | Self::Close(_)
            | Self::Delete(_)
            | Self::Update { .. }
            | Self::SetOption { .. } => Scope::Prompt,
            Self::Login
            | Self::Load(_)
            | Self::Resume(_)
            | Self::List(_)
            | Self::Show(_)
            | Self::History { .. }
            | Self::Diff { .. }
            | Self::Stat { .. }
            | Self::ReadFile { .. }
            | Self::Permissions(_)
            | Self::Agents
            | Self::HostStatus
            | Self::Ping => Scope::Read,
        }
    }

    /// Session that the call names.
    pub fn named_session(&self) -> Option<&SessionKey> {
        match self {
            Self::Load(open) | Self::Resume(open) => Some(&open.session),
            Self::Permissions(session) => session.as_ref(),
            _ => self.session(),
        }
    }

    /// Returns the action of the call on its session.
    pub const fn action(&self) -> Action {
        match self {
            Self::Prompt(_) | Self::Steer(_) => Action::Send,
            Self::Show(_) => Action::Status,
            _ => Action::History,
        }
    }

    /// Session whose stream gets the reply; `None` for the connection's.
    pub const fn session(&self) -> Option<&SessionKey> {
        match self {
            Self::Prompt(prompt) | Self::Steer(prompt) => Some(&prompt.session),
            Self::Cancel(session)
            | Self::Close(session)
            | Self::Delete(session)
            | Self::SetMode { session, .. }
            | Self::SetOption { session, .. }
            | Self::Show(session)
            | Self::History { session, .. }
            | Self::Update { session, .. }
            | Self::Diff { session, .. }
            | Self::Stat { session, .. }
            | Self::ReadFile { session, .. }
            | Self::AnswerPermission { session, .. } => Some(session),
            _ => None,
        }
    }
}

/// Params of `session/load` and `session/resume`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// The session.
    pub session: SessionKey,
    /// Row after which the client wants the journal; `None` for all of it.
    pub after: Option<u64>,
    /// Epoch of that cursor.
    pub epoch: Option<String>,
}

/// Params of `session/list`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListSessions {
    /// Only sessions with this working directory.
    pub cwd: Option<String>,
    /// Cursor of the page.
    pub cursor: Option<String>,
}

/// Params of `session/prompt`.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// The session.
    pub session: SessionKey,
    /// Text of a leading text block; empty without one.
    pub text: String,
    /// All other blocks, as received.
    pub blocks: Vec<PromptFile>,
    /// Idempotency key of the client.
    pub idempotency_key: Option<IdempotencyKey>,
}

/// Params of a call: members as received, and the parsed `_meta.acphost`.
struct Params<'a> {
    members: ObjectMembers<'a>,
    ours: Value,
}

type Parsed<T> = Result<T, ReplyError>;

impl<'a> Params<'a> {
    fn read(params: Option<&'a str>) -> Parsed<Self> {
        let members = ObjectMembers::parse(params.unwrap_or("{}"))
            .map_err(|_| ReplyError::invalid_params("params must be an object"))?;
        let meta: Option<Value> = members.get("_meta").and_then(|raw| serde_json::from_str(raw).ok());
        let ours = meta.and_then(|mut meta| Some(meta.get_mut("acphost")?.take())).unwrap_or_default();
        Ok(Self { members, ours })
    }

    fn string(&self, name: &str) -> Parsed<String> {
        let found = self.members.string(name).filter(|text| !text.is_empty());
        found.map(std::borrow::Cow::into_owned).ok_or_else(|| wrong(name, "a string that is not empty"))
    }

    fn optional_string(&self, name: &str) -> Parsed<Option<String>> {
        match self.members.get(name) {
            None | Some("null") => Ok(None),
            Some(_) => self.string(name).map(Some),
        }
    }

    /// Reads `optionId`, or for an elicitation `action` and `content`.
    fn question_answer(&self) -> Parsed<QuestionAnswer> {
        let action = match self.members.get("action").filter(|raw| *raw != "null") {
            None => None,
            Some(raw) => Some(
                serde_json::from_str(raw).map_err(|_| wrong("action", "`accept`, `decline` or `cancel`"))?,
            ),
        };
        let content = match self.members.get("content").filter(|raw| *raw != "null") {
            None => None,
            Some(raw) => Some(serde_json::from_str(raw).map_err(|_| wrong("content", "an object"))?),
        };
        let option_id = self.optional_string("optionId")?;
        let answer = AnswerBody { option_id, action, content, by: None }.answer();
        answer.map_err(|_| {
            ReplyError::invalid_params(
                "give either `optionId`, or `action` (`accept`, `decline` or `cancel`); `content` needs the action `accept`",
            )
        })
    }

    fn number(&self, name: &str, default: u64) -> Parsed<u64> {
        match self.members.get(name) {
            None | Some("null") => Ok(default),
            Some(raw) => cursor(raw.parse().ok(), name),
        }
    }

    fn optional_number(&self, name: &str) -> Parsed<Option<u64>> {
        match self.members.get(name) {
            None | Some("null") => Ok(None),
            Some(raw) => cursor(raw.parse().ok(), name).map(Some),
        }
    }

    fn session(&self) -> Parsed<SessionKey> {
        SessionKey::parse(&self.string("sessionId")?).map_err(|_| ReplyError::no_session())
    }

    fn cwd(&self, name: &str) -> Parsed<String> {
        let cwd = self.string(name)?;
        check_directory(name, &cwd)?;
        Ok(cwd)
    }

    fn key(&self) -> Parsed<Option<IdempotencyKey>> {
        match self.ours.get("idempotencyKey") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => IdempotencyKey::parse(text).map(Some).map_err(|error| {
                ReplyError::invalid_params(format!("_meta.acphost.idempotencyKey: {error}"))
            }),
            Some(_) => Err(wrong("_meta.acphost.idempotencyKey", "a string")),
        }
    }

    fn directories(&self) -> Parsed<Vec<String>> {
        let raw = match self.members.get("additionalDirectories") {
            None | Some("null") => return Ok(Vec::new()),
            Some(raw) => raw,
        };
        let list: Vec<String> =
            serde_json::from_str(raw).map_err(|_| wrong("additionalDirectories", "an array of strings"))?;
        for directory in &list {
            check_directory("additionalDirectories", directory)?;
        }
        Ok(list)
    }

    fn mcp_servers(&self) -> Parsed<Vec<McpServer>> {
        let raw = match self.members.get("mcpServers") {
            None | Some("null") => return Ok(Vec::new()),
            Some(raw) => raw,
        };
        let list: Vec<Value> =
            serde_json::from_str(raw).map_err(|_| wrong("mcpServers", "an array of objects"))?;
        if list.len() > MCP_SERVERS_MAX {
            return Err(wrong("mcpServers", &format!("at most {MCP_SERVERS_MAX} servers")));
        }
        let mut servers = BTreeMap::new();
        for value in &list {
            let server =
                mcp_server(value).ok_or_else(|| wrong("mcpServers", "an array of servers as in ACP"))?;
            servers.insert(server.name.clone(), server);
        }
        mcp::servers_from_map(servers).map_err(|failure| ReplyError::invalid_params(failure.message))
    }
}

fn wrong(name: &str, want: &str) -> ReplyError {
    ReplyError::invalid_params(format!("{name} must be {want}"))
}

fn cursor(number: Option<u64>, name: &str) -> Parsed<u64> {
    number.filter(|number| i64::try_from(*number).is_ok()).ok_or_else(|| wrong(name, "a number below 2^63"))
}

fn check_directory(name: &str, path: &str) -> Parsed<()> {
    if path.starts_with('/') && path.len() <= CWD_BYTES_MAX && !path.contains('\0') {
        return Ok(());
    }
    Err(wrong(name, &format!("an absolute path of at most {CWD_BYTES_MAX} bytes")))
}

fn mcp_server(value: &Value) -> Option<McpServer> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let pairs = |name: &str| -> Option<BTreeMap<String, Secret>> {
        let Some(list) = value.get(name).filter(|list| !list.is_null()) else { return Some(BTreeMap::new()) };
        let pair = |pair: &Value| {
            Some((pair.get("name")?.as_str()?.to_owned(), Secret(pair.get("value")?.as_str()?.to_owned())))
        };
        list.as_array()?.iter().map(pair).collect()
    };
    let args = match value.get("args").filter(|list| !list.is_null()) {
        None => Vec::new(),
        Some(list) => {
            let args = list.as_array()?.iter().map(|arg| arg.as_str().map(|arg| Secret(arg.to_owned())));
            args.collect::<Option<_>>()?
        }
    };
    let transport = match value.get("type") {
        None | Some(Value::Null) => None,
        Some(kind) => Some(serde_json::from_value(kind.clone()).ok()?),
    };
    Some(McpServer {
        name: text("name").filter(|name| !name.is_empty())?,
        transport,
        command: text("command"),
        args,
        env: pairs("env")?,
        url: text("url").map(Secret),
        headers: pairs("headers")?,
    })
}

/// Parses the params of a request or notification.
///
/// # Errors
/// Method not found, invalid params, or no such session.
pub fn parse_call(method: &str, params: Option<&str>) -> Result<ClientCall, ReplyError> {
    let read = || Params::read(params);
    Ok(match method {
        "authenticate" | "logout" => ClientCall::Login,
        "session/new" => ClientCall::New(Box::new(new_session(&read()?)?)),
        "session/load" => ClientCall::Load(open_session(&read()?)?),
        "session/resume" => ClientCall::Resume(open_session(&read()?)?),
        "session/list" => {
            let params = read()?;
            let cwd = params.members.get("cwd").filter(|raw| *raw != "null").map(|_| params.cwd("cwd"));
            ClientCall::List(ListSessions {
                cwd: cwd.transpose()?,
                cursor: params.optional_string("cursor")?,
            })
        }
        "session/prompt" => ClientCall::Prompt(Box::new(prompt(&read()?)?)),
        "_acphost/session/steer" => ClientCall::Steer(Box::new(prompt(&read()?)?)),
        "session/cancel" => ClientCall::Cancel(read()?.session()?),
        "session/close" => ClientCall::Close(read()?.session()?),
        "session/delete" => ClientCall::Delete(read()?.session()?),
        "session/set_mode" => {
            let params = read()?;
            ClientCall::SetMode { session: params.session()?, mode: params.string("modeId")? }
        }
        "session/set_config_option" => {
            let params = read()?;
            let value = match params.members.get("value") {
                Some(raw @ ("true" | "false")) => raw.to_owned(),
                _ => params.string("value")?,
            };
            ClientCall::SetOption { session: params.session()?, id: params.string("configId")?, value }
        }
        "$/cancel_request" => {
            let params = read()?;
            let id =
                params.members.get("requestId").ok_or_else(|| wrong("requestId", "the id of a request"))?;
            ClientCall::CancelRequest(id.to_owned())
        }
        _ => return own_call(method, params),
    })
}

/// Parses the params of the gateway's own methods.
fn own_call(method: &str, params: Option<&str>) -> Parsed<ClientCall> {
    let read = || Params::read(params);
    Ok(match method {
        "_acphost/session/show" => ClientCall::Show(read()?.session()?),
        "_acphost/session/history" => {
            let params = read()?;
            let limit = params.number("limit", 200)?.clamp(1, 1_000);
            let limit = u32::try_from(limit).unwrap_or(1_000);
            ClientCall::History { session: params.session()?, after: params.number("after", 0)?, limit }
        }
        "_acphost/session/update" => {
            let params = read()?;
            // A label is a change of it, null its removal.
            if params.members.get("label").is_none() {
                return Err(wrong("label", "a string, or null to remove it"));
            }
            ClientCall::Update { session: params.session()?, label: params.optional_string("label")? }
        }
        "_acphost/session/diff" => {
            let params = read()?;
            let run = params.optional_string("runId")?;
            let run = run.map(|run| RunId::parse(&run).map_err(|_| wrong("runId", "the id of a run")));
            ClientCall::Diff { session: params.session()?, run: run.transpose()? }
        }
        "_acphost/fs/stat" => {
            let params = read()?;
            ClientCall::Stat { session: params.session()?, path: params.optional_string("path")? }
        }
        "_acphost/fs/read" => {
            let params = read()?;
            ClientCall::ReadFile {
                session: params.session()?,
                path: params.string("path")?,
                line: params.optional_number("line")?,
                limit: params.optional_number("limit")?,
            }
        }
        "_acphost/permissions/list" => {
            let params = read()?;
            let is_given = params.members.get("sessionId").is_some_and(|raw| raw != "null");
            ClientCall::Permissions(if is_given { Some(params.session()?) } else { None })
        }
        "_acphost/permissions/answer" => {
            let params = read()?;
            ClientCall::AnswerPermission {
                session: params.session()?,
                permission_id: params.string("permissionId")?,
                answer: params.question_answer()?,
            }
        }
        "_acphost/agents/list" => ClientCall::Agents,
        "_acphost/host/status" => ClientCall::HostStatus,
        "_acphost/ping" => ClientCall::Ping,
        _ => return Err(ReplyError::method_not_found(method)),
    })
}

fn new_session(params: &Params<'_>) -> Parsed<NewSession> {
    let optional = |name: &str| params.ours.get(name).filter(|value| !value.is_null());
    let label = match optional("label") {
        None => None,
        Some(label) => {
            Some(label.as_str().ok_or_else(|| wrong("_meta.acphost.label", "a string"))?.to_owned())
        }
    };
    let permission =
        match optional("permission") {
            None => None,
            Some(mode) => Some(serde_json::from_value(mode.clone()).map_err(|_| {
                wrong("_meta.acphost.permission", "approve-all, approve-reads, deny-all or ask")
            })?),
        };
    let voting = match optional("voting") {
        None => None,
        Some(rule) => Some(
            serde_json::from_value(rule.clone())
                .map_err(|_| wrong("_meta.acphost.voting", "first, local or owner"))?,
        ),
    };
    Ok(NewSession {
        cwd: params.cwd("cwd")?,
        mcp_servers: params.mcp_servers()?,
        additional_directories: params.directories()?,
        label,
        permission,
        voting,
        idempotency_key: params.key()?,
    })
}

fn open_session(params: &Params<'_>) -> Parsed<OpenSession> {
    let session = params.session()?;
    // The session keeps its own directory; an invalid one is refused as in `session/new`.
    params.cwd("cwd")?;
    params.directories()?;
    params.mcp_servers()?;
    let after = match params.ours.get("after") {
        None | Some(Value::Null) => None,
        Some(after) => Some(cursor(after.as_u64(), "_meta.acphost.after")?),
    };
    let epoch = match params.ours.get("epoch") {
        None | Some(Value::Null) => None,
        Some(epoch) => {
            Some(epoch.as_str().ok_or_else(|| wrong("_meta.acphost.epoch", "a string"))?.to_owned())
        }
    };
    Ok(OpenSession { session, after, epoch })
}

fn prompt(params: &Params<'_>) -> Parsed<Prompt> {
    let session = params.session()?;
    let what = || wrong("prompt", "an array of objects that is not empty");
    let raw = params.members.get("prompt").ok_or_else(what)?;
    let blocks: Vec<&RawValue> = serde_json::from_str(raw).map_err(|_| what())?;
    if blocks.is_empty() || raw.len() > FILES_BYTES_MAX {
        return Err(if blocks.is_empty() { what() } else { wrong("prompt", "at most 8 MiB long") });
    }
    let mut text = String::new();
    let mut rest = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        let members = ObjectMembers::parse(block.get()).map_err(|_| what())?;
        match plain_text(&members).filter(|_| at == 0) {
            Some(found) => text = found,
            None => rest.push(PromptFile::block(block.get())),
        }
    }
    Ok(Prompt { session, text, blocks: rest, idempotency_key: params.key()? })
}

/// Returns the text of a text block without other members.
fn plain_text(block: &ObjectMembers<'_>) -> Option<String> {
    let is_plain = block.iter().all(|(name, _)| matches!(name, "type" | "text"));
    let is_text = block.string("type")? == "text";
    block.string("text").filter(|_| is_plain && is_text).map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
