//! Messages of clients, and replies to them, as JSON-RPC text.

use crate::failure::Failure;
use crate::jsonrpc::{
    AUTH_REQUIRED, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, NOT_FOUND, ObjectMembers, RpcMessage,
    RpcParseError, put, quoted,
};
use acp_shared::codes::Code;
use serde_json::{Value, json};

/// "Parse error" of JSON-RPC.
pub const PARSE_ERROR: i64 = -32700;
/// "Invalid request" of JSON-RPC.
pub const INVALID_REQUEST: i64 = -32600;
/// Maximum length of a request's id, in bytes: it is kept until the request is answered, and repeated with each answer.
const ID_BYTES_MAX: usize = 1_024;
/// Refusal of this gateway; `data` has `code`, `message` and `retryable`.
pub const REFUSED: i64 = -32010;

/// Error of a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplyError {
    /// JSON-RPC error code.
    pub code: i64,
    /// Error message.
    pub message: String,
    /// Data for programs, if any.
    pub data: Option<Value>,
}

impl ReplyError {
    /// Creates an error without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Creates the error for invalid params.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    /// Creates the error for a method that is not served.
    pub fn method_not_found(method: &str) -> Self {
        let shown: String = method.chars().take(100).collect();
        Self::new(METHOD_NOT_FOUND, format!("the method {shown:?} is not served here"))
    }

    /// Creates the error for a request whose session was closed on the connection.
    pub fn closed_before_answer() -> Self {
        Self::new(NOT_FOUND, "the session was closed on this connection before the answer")
    }

    /// Creates the error for a session that does not exist, or that the connection has not opened.
    pub fn no_session() -> Self {
        Self::new(NOT_FOUND, "there is no such session on this connection; open it with session/load")
    }
}

impl From<&Failure> for ReplyError {
    fn from(failure: &Failure) -> Self {
        let code = match failure.code {
            Code::NoSession => NOT_FOUND,
            Code::AuthRequired => AUTH_REQUIRED,
            Code::Runtime => INTERNAL_ERROR,
            Code::CursorPruned => INVALID_PARAMS,
            _ => REFUSED,
        };
        let mut data = json!({
            "code": failure.code, "message": failure.message, "retryable": failure.retryable,
        });
        if let Some(detail) = &failure.detail_code {
            put(&mut data, "detailCode", json!(detail));
        }
        Self { code, message: failure.message.clone(), data: Some(data) }
    }
}

impl From<Failure> for ReplyError {
    fn from(failure: Failure) -> Self {
        Self::from(&failure)
    }
}

/// Parses one message of a client.
///
/// # Errors
/// The error of a reply with id null: no JSON, a batch, no message, or an id that is too long or neither number, string nor
/// null.
pub fn parse(body: &[u8]) -> Result<RpcMessage<'_>, ReplyError> {
    let text =
        std::str::from_utf8(body).map_err(|_| ReplyError::new(PARSE_ERROR, "the text is not UTF-8"))?;
    let message = RpcMessage::parse(text).map_err(|error| {
        let code = if error == RpcParseError::NotJson { PARSE_ERROR } else { INVALID_REQUEST };
        ReplyError::new(code, error.to_string())
    })?;
    match &message {
        RpcMessage::Request { id, .. } if id.starts_with(['{', '[', 't', 'f']) => {
            Err(ReplyError::new(INVALID_REQUEST, "an id must be a number, a string or null"))
        }
        RpcMessage::Request { id, .. } if id.len() > ID_BYTES_MAX => {
            Err(ReplyError::new(INVALID_REQUEST, format!("an id may have {ID_BYTES_MAX} bytes at most")))
        }
        _ => Ok(message),
    }
}

/// Returns the reply with a result, JSON text.
pub fn result_frame(id: &str, result: &str) -> String {
    one_line(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

/// Returns the reply with an error.
pub fn error_frame(id: &str, error: &ReplyError) -> String {
    let (code, message) = (error.code, quoted(&error.message));
    let data = error.data.as_ref().map(|data| format!(r#","data":{data}"#)).unwrap_or_default();
    one_line(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}{data}}}}}"#))
}

/// Returns the reply to a request.
pub fn reply_frame(id: &str, outcome: &Result<String, ReplyError>) -> String {
    match outcome {
        Ok(result) => result_frame(id, result),
        Err(error) => error_frame(id, error),
    }
}

/// Returns a notification with params, JSON text.
pub fn notification_frame(method: &str, params: &str) -> String {
    one_line(format!(r#"{{"jsonrpc":"2.0","method":{},"params":{params}}}"#, quoted(method)))
}

/// Returns a request of the gateway with params, JSON text.
pub fn request_frame(id: &str, method: &str, params: &str) -> String {
    one_line(format!(
        r#"{{"jsonrpc":"2.0","id":{},"method":{},"params":{params}}}"#,
        quoted(id),
        quoted(method)
    ))
}

/// Replaces line breaks by spaces: valid JSON has raw line breaks only between tokens.
fn one_line(json: String) -> String {
    if json.contains(['\n', '\r']) { json.replace(['\n', '\r'], " ") } else { json }
}

/// Returns the session that the params name, if they name one as a string.
pub fn session_of(params: Option<&str>) -> Option<String> {
    let members = ObjectMembers::parse(params?).ok()?;
    members.string("sessionId").map(std::borrow::Cow::into_owned)
}

/// Returns the key of a request id: ids of different JSON types never have the same one.
pub fn typed_id(id: &str) -> String {
    match crate::jsonrpc::string(id) {
        Some(text) => format!("s:{text}"),
        None if id == "null" => "null".to_owned(),
        None => format!("n:{id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_classified_or_refused_with_their_code() {
        for (body, want) in [
            (&b"{\"id\":1,\"method\":\"a\"}"[..], Ok(())),
            (b"{\"id\":null,\"method\":\"a\"}", Ok(())),
            (b"{\"method\":\"a\"}", Ok(())),
            (b"{\"id\":\"x\",\"result\":{}}", Ok(())),
            (b"{", Err(PARSE_ERROR)),
            (b"\xff", Err(PARSE_ERROR)),
            (b"[]", Err(INVALID_REQUEST)),
            (b"7", Err(INVALID_REQUEST)),
            (b"{}", Err(INVALID_REQUEST)),
            (b"{\"id\":{},\"method\":\"a\"}", Err(INVALID_REQUEST)),
            (b"{\"id\":[1],\"method\":\"a\"}", Err(INVALID_REQUEST)),
            (b"{\"id\":true,\"method\":\"a\"}", Err(INVALID_REQUEST)),
            (b"{\"id\":1,\"method\":7}", Err(INVALID_REQUEST)),
        ] {
            let got = parse(body).map(|_| ()).map_err(|error| error.code);
            assert_eq!(got, want, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn long_id_is_refused() {
        for (length, is_accepted) in [(ID_BYTES_MAX - 2, true), (ID_BYTES_MAX - 1, false)] {
            let body = format!(r#"{{"id":"{}","method":"a"}}"#, "x".repeat(length));
            assert_eq!(parse(body.as_bytes()).is_ok(), is_accepted, "{length}");
        }
    }

    #[test]
    fn deeply_nested_messages_do_not_exhaust_the_stack() {
        let deep = format!(
            "{{\"id\":1,\"method\":\"a\",\"params\":{}{}}}",
            "[".repeat(200_000),
            "]".repeat(200_000)
        );
        // Accepted as raw text or refused; either ends.
        let _ = parse(deep.as_bytes());
    }

    #[test]
    fn ids_of_different_types_have_different_keys() {
        let keys: std::collections::BTreeSet<String> =
            ["0", "\"0\"", "-1", "null", "\"null\"", "\"n:0\"", "1.0", "1"]
                .into_iter()
                .map(typed_id)
                .collect();
        assert_eq!(keys.len(), 8, "{keys:?}");
    }

    #[test]
    fn failures_have_the_code_that_clients_expect() {
        for (code, want) in [
            (Code::NoSession, NOT_FOUND),
            (Code::AuthRequired, AUTH_REQUIRED),
            (Code::LimitReached, REFUSED),
            (Code::PermissionDenied, REFUSED),
            (Code::Runtime, INTERNAL_ERROR),
        ] {
            let error = ReplyError::from(Failure::of(code).retryable());
            assert_eq!(error.code, want);
            let data = json!({"code": code.as_str(), "message": code.text(), "retryable": true});
            assert_eq!(error.data, Some(data));
        }
    }

    proptest! {
        #[test]
        fn replies_are_one_line_of_json(id in "[a-z\n\"\\\\]{0,8}", text in ".{0,40}", code in any::<i64>()) {
            let raw = quoted(&id);
            for frame in [
                error_frame(&raw, &ReplyError { code, message: text.clone(), data: Some(json!(text)) }),
                result_frame(&raw, "{\n\"a\":\r1e3}"),
                notification_frame(&text, "{}"),
                request_frame(&text, &text, "{}"),
            ] {
                prop_assert!(!frame.contains(['\n', '\r']));
                prop_assert!(serde_json::from_str::<Value>(&frame).is_ok(), "{}", frame);
            }
        }
    }
}
