//! Messages of MCP in both eras: without a handshake (2026-07-28), and with `initialize` (2025-11-25). Each message is
//! answered from itself alone: no state is kept between two.

use super::call::{ToolCall, descriptions};
use super::{SERVER_NAME, results};
use crate::failure::Failure;
use crate::jsonrpc::RpcMessage;
use crate::northbound::message::{ReplyError, error_frame, parse, result_frame};
use acp_shared::codes::Code;
use serde_json::{Map, Value, json};

/// Version without a handshake.
const STATELESS: &str = "2026-07-28";
/// Version with a handshake.
const HANDSHAKE: &str = "2025-11-25";
/// Member of a request's `_meta` with its version.
const VERSION_MEMBER: &str = "io.modelcontextprotocol/protocolVersion";
/// Member of a result's `_meta` that describes the server.
const SERVER_MEMBER: &str = "io.modelcontextprotocol/serverInfo";
/// MCP: the version of the request is not served.
const UNSUPPORTED_VERSION: i64 = -32022;
/// Time for which a client may keep the answer to `server/discover` and `tools/list`, in milliseconds.
const TTL_MS: u64 = 60_000;

/// Description of the server.
#[derive(Debug, Clone, Copy)]
pub struct ServerFacts<'a> {
    /// Version of this program.
    pub version: &'a str,
    /// Agents that the requester may spawn.
    pub spawn_agents: &'a [String],
}

/// Outcome of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageResult {
    /// No reply.
    Nothing,
    /// The reply, one line of JSON.
    Reply(String),
    /// A call to execute.
    Call(PendingCall),
}

/// Era of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    Stateless,
    Handshake,
}

/// Call that waits for its result.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingCall {
    id: String,
    era: Era,
    /// Tool and arguments.
    pub call: ToolCall,
}

impl PendingCall {
    /// Returns the reply: the result of the call, an object, or its failure.
    #[must_use]
    pub fn reply(&self, outcome: Result<Value, Failure>) -> String {
        tool_reply(&self.id, self.era, outcome)
    }
}

fn tool_reply(id: &str, era: Era, outcome: Result<Value, Failure>) -> String {
    let is_error = outcome.is_err();
    let content = outcome.unwrap_or_else(|failure| results::failure(&failure));
    let text = content.to_string();
    let mut result = Map::new();
    result.insert("content".to_owned(), json!([{ "type": "text", "text": text }]));
    result.insert("structuredContent".to_owned(), content);
    result.insert("isError".to_owned(), is_error.into());
    reply(id, era, result)
}

fn reply(id: &str, era: Era, mut result: Map<String, Value>) -> String {
    if era == Era::Stateless {
        result.insert("resultType".to_owned(), "complete".into());
    }
    result_frame(id, &Value::Object(result).to_string())
}

/// Handles one message of a client.
#[must_use]
pub fn receive(body: &[u8], server: &ServerFacts<'_>) -> MessageResult {
    let (id, method, params) = match parse(body) {
        Err(error) => return MessageResult::Reply(error_frame("null", &error)),
        Ok(RpcMessage::Notification { .. } | RpcMessage::Response { .. }) => return MessageResult::Nothing,
        Ok(RpcMessage::Request { id, method, params }) => (id, method, params),
    };
    let params = params.and_then(|raw| serde_json::from_str::<Value>(raw).ok()).unwrap_or_default();
    match request(id, &method, &params, server) {
        Ok(received) => received,
        Err(error) => MessageResult::Reply(error_frame(id, &error)),
    }
}

fn request(
    id: &str,
    method: &str,
    params: &Value,
    server: &ServerFacts<'_>,
) -> Result<MessageResult, ReplyError> {
    if !params.is_object() && !params.is_null() {
        return Err(ReplyError::invalid_params("params must be an object"));
    }
    let era = era_of(params)?;
    let info = || json!({ "name": SERVER_NAME, "version": server.version });
    let kept = |mut result: Map<String, Value>| {
        if era == Era::Stateless {
            result.insert("ttlMs".to_owned(), TTL_MS.into());
            result.insert("cacheScope".to_owned(), "private".into());
        }
        result
    };
    let result = match method {
        "server/discover" => {
            let facts = members([
                ("supportedVersions", json!([STATELESS, HANDSHAKE])),
                ("capabilities", json!({ "tools": {} })),
                ("ttlMs", TTL_MS.into()),
                ("cacheScope", "private".into()),
                ("_meta", json!({ SERVER_MEMBER: info() })),
            ]);
            return Ok(MessageResult::Reply(reply(id, Era::Stateless, facts)));
        }
        "initialize" => members([
            ("protocolVersion", HANDSHAKE.into()),
            ("capabilities", json!({ "tools": {} })),
            ("serverInfo", info()),
        ]),
        "ping" => Map::new(),
        "tools/list" => kept(members([("tools", descriptions(server.spawn_agents))])),
        "tools/call" => return call(id, era, params),
        _ => return Err(ReplyError::method_not_found(method)),
    };
    Ok(MessageResult::Reply(reply(id, era, result)))
}

fn members<const N: usize>(list: [(&str, Value); N]) -> Map<String, Value> {
    list.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the era of a request by the version in its `_meta`.
fn era_of(params: &Value) -> Result<Era, ReplyError> {
    match params.get("_meta").and_then(|meta| meta.get(VERSION_MEMBER)) {
        None => Ok(Era::Handshake),
        Some(version) if version == STATELESS => Ok(Era::Stateless),
        Some(version) if version == HANDSHAKE => Ok(Era::Handshake),
        Some(version) => {
            let shown = version.as_str().map(|text| text.chars().take(100).collect::<String>());
            let data = json!({ "supported": [STATELESS, HANDSHAKE], "requested": shown });
            let error = ReplyError::new(UNSUPPORTED_VERSION, "this version of MCP is not supported");
            Err(ReplyError { data: Some(data), ..error })
        }
    }
}

fn call(id: &str, era: Era, params: &Value) -> Result<MessageResult, ReplyError> {
    let tool = params.get("name").and_then(Value::as_str);
    let tool = tool.ok_or_else(|| ReplyError::invalid_params("name must be the name of a tool"))?;
    let none = Value::Object(Map::new());
    let arguments = params.get("arguments").filter(|value| !value.is_null()).unwrap_or(&none);
    let Some(parsed) = ToolCall::parse(tool, arguments) else {
        let shown: String = tool.chars().take(100).collect();
        return Err(ReplyError::invalid_params(format!("there is no tool {shown:?}; tools/list lists them")));
    };
    Ok(match parsed {
        Ok(call) => MessageResult::Call(PendingCall { id: id.to_owned(), era, call }),
        // The agent sees this failure, and can call again.
        Err(why) => {
            let shown: String = why.chars().take(500).collect();
            let failure = Failure::new(Code::Usage, format!("Invalid arguments of {tool}: {shown}."));
            MessageResult::Reply(tool_reply(id, era, Err(failure.origin("client"))))
        }
    })
}
