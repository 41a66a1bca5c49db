//! Errors of the contract: one stable code for each cause, with the agent's own error. Readers of both shapes.

use crate::failure::Failure;
use crate::jsonrpc::{AUTH_REQUIRED, INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND, put};
use acp_shared::codes::Code;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Version of the envelope.
const CONTRACT_VERSION: u32 = 1;
/// Number of a missing resource before ACP assigned [`NOT_FOUND`].
const NOT_FOUND_LEGACY: i64 = -32001;
/// Texts of agents that answer a missing session with another number.
const NOT_FOUND_TEXTS: [&str; 5] = [
    "resource_not_found",
    "resource not found",
    "session not found",
    "unknown session",
    "invalid session identifier",
];
/// Maximum depth at which a text is looked for in the data of an error.
const DATA_DEPTH_MAX: usize = 4;

acp_shared::named! {
    /// Stable code of an error.
    #[derive(Hash)]
    pub enum AcpxCode {
        /// No open session has this name or key.
        NoSession = "NO_SESSION",
        /// The time limit has passed.
        Timeout = "TIMEOUT",
        /// Permissions were refused, and none was granted.
        PermissionDenied = "PERMISSION_DENIED",
        /// A permission is needed, and no person can be asked.
        PermissionPromptUnavailable = "PERMISSION_PROMPT_UNAVAILABLE",
        /// The command line is invalid.
        Usage = "USAGE",
        /// Any other failure; the detail code tells more.
        Runtime = "RUNTIME",
    }
}

impl AcpxCode {
    /// Returns the number of the JSON-RPC error.
    pub const fn number(self) -> i64 {
        match self {
            Self::NoSession => NOT_FOUND,
            Self::Timeout => -32070,
            Self::PermissionDenied => -32071,
            Self::PermissionPromptUnavailable => -32072,
            Self::Usage => INVALID_PARAMS,
            Self::Runtime => INTERNAL_ERROR,
        }
    }

    /// Returns the exit code of a command.
    pub const fn exit(self) -> u8 {
        match self {
            Self::Runtime => 1,
            Self::Usage => 2,
            Self::Timeout => 3,
            Self::NoSession => 4,
            Self::PermissionDenied | Self::PermissionPromptUnavailable => 5,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == text)
    }
}

/// Members of a line that correlate it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope<'a> {
    /// Version of the envelope.
    event_version: u32,
    /// Session key; `unknown` before a session is known.
    session_id: &'a str,
    /// Run id.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    /// Number of the line in its request, from 1.
    seq: u64,
    /// `prompt` for a line of a turn, `control` for any other.
    stream: &'static str,
}

impl<'a> Envelope<'a> {
    /// Envelope of a line of a turn.
    pub fn of_turn(session_id: &'a str, request_id: &'a str, seq: u64) -> Self {
        let request_id = Some(request_id);
        Self { event_version: CONTRACT_VERSION, session_id, request_id, seq, stream: "prompt" }
    }

    /// Envelope of the only line of a command.
    pub fn of_control(session_id: Option<&'a str>) -> Self {
        let session_id = session_id.unwrap_or("unknown");
        Self { event_version: CONTRACT_VERSION, session_id, request_id: None, seq: 1, stream: "control" }
    }

    /// Appends the members, with a comma before each.
    pub(super) fn write(&self, out: &mut String) {
        // A value of these members always has a text, which begins and ends with a brace.
        let text = serde_json::to_string(self).unwrap_or_default();
        out.push(',');
        out.push_str(text.trim_start_matches('{').trim_end_matches('}'));
    }
}

/// Error of the contract.
#[derive(Debug, Clone, PartialEq)]
pub struct ContractError {
    /// Stable code.
    pub code: AcpxCode,
    /// Finer than the code.
    pub detail: Option<String>,
    /// Origin: `cli`, `runtime`, `queue` or `acp`.
    pub origin: &'static str,
    /// Message.
    pub message: String,
    /// True if sending the same request again may succeed.
    pub retryable: bool,
    /// The agent's JSON-RPC error object as received.
    pub acp: Option<Value>,
}

/// Returns code and detail code for one of our codes.
const fn of_code(code: Code) -> (AcpxCode, Option<&'static str>) {
    match code {
        Code::NoSession | Code::SessionClosed => (AcpxCode::NoSession, None),
        Code::Timeout => (AcpxCode::Timeout, None),
        Code::PermissionDenied => (AcpxCode::PermissionDenied, None),
        Code::PermissionPromptUnavailable => (AcpxCode::PermissionPromptUnavailable, None),
        Code::Usage | Code::ConfigInvalid => (AcpxCode::Usage, None),
        Code::AuthRequired => (AcpxCode::Runtime, Some("AUTH_REQUIRED")),
        Code::Uncertain => (AcpxCode::Runtime, Some("QUEUE_DISCONNECTED_BEFORE_COMPLETION")),
        Code::LimitReached => (AcpxCode::Runtime, Some("QUEUE_OWNER_OVERLOADED")),
        Code::Runtime => (AcpxCode::Runtime, None),
        other => (AcpxCode::Runtime, Some(other.as_str())),
    }
}

fn of_origin(origin: &str) -> &'static str {
    match origin {
        "agent" | "acp" => "acp",
        "client" | "cli" => "cli",
        "queue" => "queue",
        _ => "runtime",
    }
}

/// True if an agent's error says that a session or resource does not exist, in the form of ACP or in one of the older ones.
fn is_not_found(acp: &Value) -> bool {
    let code = acp["code"].as_i64();
    code == Some(NOT_FOUND) || code == Some(NOT_FOUND_LEGACY) || tells_not_found(acp, 0)
}

fn tells_not_found(value: &Value, depth: usize) -> bool {
    match value {
        Value::String(text) => {
            let text = text.to_lowercase();
            // `session "abc" not found`
            let named = text.split_once("session ").is_some_and(|(_, rest)| {
                let mut words = rest.split_whitespace();
                words.next().is_some() && words.next() == Some("not") && words.next() == Some("found")
            });
            named || NOT_FOUND_TEXTS.iter().any(|known| text.contains(known))
        }
        Value::Array(list) if depth < DATA_DEPTH_MAX => {
            list.iter().any(|one| tells_not_found(one, depth + 1))
        }
        Value::Object(members) if depth < DATA_DEPTH_MAX => {
            members.values().any(|one| tells_not_found(one, depth + 1))
        }
        _ => false,
    }
}

impl ContractError {
    /// Error of the command itself.
    pub fn new(code: AcpxCode, message: impl Into<String>) -> Self {
        Self { code, detail: None, origin: "cli", message: message.into(), retryable: false, acp: None }
    }

    /// Sets the detail code.
    pub fn detail(mut self, detail: &str) -> Self {
        self.detail = Some(detail.to_owned());
        self
    }

    /// Sets the origin.
    pub const fn origin(mut self, origin: &'static str) -> Self {
        self.origin = origin;
        self
    }

    /// Reads an error in any of its shapes: a JSON-RPC error object (`{"error": {…}}`) with or without codes of acpx, our own
    /// or acpx's typed payload (`{"code", "message", …}`), or the old payload that has only a message.
    pub fn read(value: &Value) -> Self {
        if value["error"].is_object() {
            return Self::read_rpc(&value["error"]);
        }
        let text = |names: [&str; 2]| names.iter().find_map(|name| value[*name].as_str()).map(str::to_owned);
        let acp = value.get("acp").filter(|acp| acp.is_object()).cloned();
        let word = value["code"].as_str().unwrap_or_default();
        let (code, detail) = match (AcpxCode::parse(word), Code::parse(word)) {
            (Some(code), _) => (code, None),
            (None, Some(code)) => of_code(code),
            (None, None) => (AcpxCode::Runtime, Some(word).filter(|word| !word.is_empty())),
        };
        let own_detail = text(["detailCode", "detail_code"]);
        let detail = match (code, detail) {
            (AcpxCode::Runtime, Some(detail)) if own_detail.as_deref() != Some("AUTH_REQUIRED") => {
                Some(detail.to_owned())
            }
            _ => own_detail,
        };
        let message = value["message"].as_str().unwrap_or(Code::Runtime.text()).to_owned();
        let overloaded = word == Code::LimitReached.as_str();
        let error = Self {
            code,
            detail,
            origin: of_origin(value["origin"].as_str().unwrap_or("runtime")),
            message,
            retryable: overloaded || value["retryable"].as_bool().unwrap_or(false),
            acp,
        };
        error.with_cause()
    }

    fn read_rpc(error: &Value) -> Self {
        let data = &error["data"];
        let known = data["acpxCode"].as_str().and_then(AcpxCode::parse);
        let text = |name: &str| data[name].as_str().map(str::to_owned);
        let acp =
            known.is_none_or(|code| error["code"].as_i64() != Some(code.number())).then(|| error.clone());
        let read = Self {
            code: known.unwrap_or(AcpxCode::Runtime),
            detail: text("detailCode"),
            origin: of_origin(data["origin"].as_str().unwrap_or("acp")),
            message: error["message"].as_str().unwrap_or_default().to_owned(),
            retryable: data["retryable"].as_bool().unwrap_or(false),
            acp,
        };
        if known.is_some() { read } else { read.with_cause() }
    }

    /// Derives code and detail from the agent's own error, where the code tells less.
    fn with_cause(mut self) -> Self {
        let Some(acp) = &self.acp else { return self };
        if self.code != AcpxCode::Runtime {
            return self;
        }
        let needs_sign_in = acp["code"].as_i64() == Some(AUTH_REQUIRED)
            || acp.pointer("/data/authRequired") == Some(&json!(true));
        if needs_sign_in {
            self.detail = Some("AUTH_REQUIRED".to_owned());
        } else if is_not_found(acp) {
            self.code = AcpxCode::NoSession;
        }
        self
    }

    /// Returns the JSON-RPC error object: code, message and data of the agent's answer if present, with the codes of this
    /// contract among the data.
    fn rpc_error(&self, session: &str) -> Value {
        let mut data = Map::new();
        data.insert("acpxCode".to_owned(), json!(self.code.as_str()));
        if let Some(detail) = &self.detail {
            data.insert("detailCode".to_owned(), json!(detail));
        }
        data.insert("origin".to_owned(), json!(self.origin));
        data.insert("retryable".to_owned(), json!(self.retryable));
        data.insert("sessionId".to_owned(), json!(session));
        let agents = self
            .acp
            .as_ref()
            .and_then(|acp| Some((acp["code"].as_i64()?, acp["message"].as_str()?, &acp["data"])));
        let Some((code, message, agents_data)) = agents else {
            return json!({ "code": self.code.number(), "message": self.message, "data": data });
        };
        let data = match agents_data {
            Value::Object(members) => {
                data.extend(members.clone());
                Value::Object(data)
            }
            Value::Null => Value::Object(data),
            other => other.clone(),
        };
        json!({ "code": code, "message": message, "data": data })
    }

    /// Returns the line of the error, without a line break. `timestamp` is in RFC 3339.
    pub fn line(&self, envelope: &Envelope<'_>, timestamp: &str) -> String {
        let mut line =
            format!(r#"{{"jsonrpc":"2.0","id":null,"error":{}"#, self.rpc_error(envelope.session_id));
        envelope.write(&mut line);
        let mut members = json!({
            "type": "error", "code": self.code.as_str(), "origin": self.origin, "message": self.message,
            "retryable": self.retryable, "timestamp": timestamp,
        });
        if let Some(detail) = &self.detail {
            put(&mut members, "detailCode", json!(detail));
        }
        if let Some(acp) = &self.acp {
            put(&mut members, "acp", acp.clone());
        }
        line.push(',');
        line.push_str(members.to_string().trim_start_matches('{'));
        line
    }

    /// Returns the result of `sessions watch` for a turn that ended with this error.
    pub(super) fn watch_result(&self) -> Value {
        let mut error = json!({ "message": self.message, "code": self.code.as_str() });
        if let Some(detail) = &self.detail {
            put(&mut error, "detailCode", json!(detail));
        }
        if let Some(acp) = &self.acp {
            put(&mut error, "acp", acp.clone());
        }
        json!({ "status": "failed", "error": error })
    }
}

impl From<&Failure> for ContractError {
    fn from(failure: &Failure) -> Self {
        // A failure is made of texts and values.
        Self::read(&serde_json::to_value(failure).unwrap_or_default())
    }
}
