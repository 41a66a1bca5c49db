//! JSON-RPC messages without interpretation: the envelope is read as ordered members with raw JSON values, so
//! that forwarded content stays byte for byte as received, known to this build or not.
//!
//! No number is interpreted, no key sorted, no duplicate dropped. The last of several members with one name
//! counts, as in common JSON readers. Ids are raw too: `0`, `"0"` and `null` are three ids.
#![deny(clippy::indexing_slicing)]

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer as _, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// "Method not found".
pub const METHOD_NOT_FOUND: i64 = -32601;
/// "Invalid params".
pub const INVALID_PARAMS: i64 = -32602;
/// "Internal error".
pub const INTERNAL_ERROR: i64 = -32603;
/// ACP: the request was cancelled.
pub const CANCELLED: i64 = -32800;
/// ACP: authentication required.
pub const AUTH_REQUIRED: i64 = -32000;
/// ACP: no such session or resource.
pub const NOT_FOUND: i64 = -32002;
/// Refusal of an effect by the client: in JSON-RPC's range for implementations, not assigned by ACP.
pub const REFUSED: i64 = -32003;

/// "Limit exceeded", as numbered by EIP-1474.
pub const LIMIT_REACHED: i64 = -32005;

/// JSON-RPC error for the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcError {
    /// Error code, e.g. -32602.
    pub code: i64,
    /// Error message.
    pub message: String,
}

/// Members of a JSON object in order, with raw values, borrowed from its text.
#[derive(Debug, Default)]
pub struct ObjectMembers<'a> {
    list: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'a> ObjectMembers<'a> {
    /// Parses one object. White space around the object is allowed.
    ///
    /// # Errors
    /// The text is not one JSON object.
    pub fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let list = reader.deserialize_map(ListVisitor)?;
        reader.end()?;
        Ok(Self { list })
    }

    /// Returns the raw value of the last member with this name.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.list.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.get())
    }

    /// Returns the text of the last member with this name, if a string.
    pub fn string(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name).and_then(string)
    }

    /// Returns names and raw values in order, duplicates included.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.list.iter().map(|(key, value)| (key.as_ref(), value.get()))
    }
}

/// Returns the text of a raw value, if a string.
pub fn string(raw: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str(raw).ok().map(|Text(text)| text)
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::with_capacity(4);
        while let Some((Text(key), value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
            list.push((key, value));
        }
        Ok(list)
    }
}

/// String of JSON, borrowed from its text unless it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// JSON-RPC message. Ids, params, results and errors are raw JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RpcMessage<'a> {
    /// Request, which expects a response.
    Request {
        /// Id, returned unchanged in the response.
        id: &'a str,
        /// The method.
        method: Cow<'a, str>,
        /// Params, if any.
        params: Option<&'a str>,
    },
    /// Notification, which expects no response.
    Notification {
        /// The method.
        method: Cow<'a, str>,
        /// Params, if any.
        params: Option<&'a str>,
    },
    /// Response to a request.
    Response {
        /// Id of the request; `None` if the peer omitted it.
        id: Option<&'a str>,
        /// Result, or error object.
        outcome: Result<&'a str, &'a str>,
    },
}

/// Reason why a line is not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RpcParseError {
    /// Not JSON.
    #[error("not JSON")]
    NotJson,
    /// Array: ACP has no batches.
    #[error("a JSON-RPC batch")]
    Batch,
    /// JSON, but not an object.
    #[error("not a JSON object")]
    NotObject,
    /// Object without method, result and error, or with a method that is not a string.
    #[error("neither a request nor an answer")]
    NoMessage,
}

impl<'a> RpcMessage<'a> {
    /// Parses one line.
    ///
    /// # Errors
    /// [`RpcParseError`]. Invalid input is not repaired here (see [`crate::intake`]).
    pub fn parse(text: &'a str) -> Result<Self, RpcParseError> {
        let members = ObjectMembers::parse(text).map_err(|_| classify_invalid(text))?;
        let id = members.get("id");
        let params = members.get("params");
        if let Some(method) = members.get("method") {
            let method = string(method).ok_or(RpcParseError::NoMessage)?;
            return Ok(match id {
                Some(id) => Self::Request { id, method, params },
                None => Self::Notification { method, params },
            });
        }
        // Some peers send `"error": null` together with a result.
        let error = members.get("error").filter(|raw| *raw != "null");
        match (error, members.get("result")) {
            (Some(error), _) => Ok(Self::Response { id, outcome: Err(error) }),
            (None, Some(result)) => Ok(Self::Response { id, outcome: Ok(result) }),
            (None, None) => Err(RpcParseError::NoMessage),
        }
    }
}

fn classify_invalid(text: &str) -> RpcParseError {
    if serde_json::from_str::<IgnoredAny>(text).is_err() {
        RpcParseError::NotJson
    } else if text.trim_start().starts_with('[') {
        RpcParseError::Batch
    } else {
        RpcParseError::NotObject
    }
}

/// Encodes text as a JSON string.
pub fn quoted(text: &str) -> String {
    // Writing a string to memory cannot fail.
    serde_json::to_string(text).unwrap_or_else(|_| "\"\"".to_owned())
}

/// Length of [`quoted`] text, in bytes, without building it.
pub fn quoted_len(text: &str) -> usize {
    let extra = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        0..=0x1f => 5,
        _ => 0,
    };
    2 + text.len() + text.bytes().map(extra).sum::<usize>()
}

/// Builds a request with an id of the gateway, newline included.
pub fn request(id: &str, method: &str, params: &str) -> Vec<u8> {
    let (id, method) = (quoted(id), quoted(method));
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{method},\"params\":{params}}}\n").into_bytes()
}

/// Builds a notification, newline included.
pub fn notification(method: &str, params: &str) -> Vec<u8> {
    let method = quoted(method);
    format!("{{\"jsonrpc\":\"2.0\",\"method\":{method},\"params\":{params}}}\n").into_bytes()
}

/// Builds the response to the request with this raw id, newline included. A result that is not JSON becomes
/// an internal error, so that the output never breaks the peer's reader.
pub fn reply(id: &str, outcome: &Result<String, RpcError>) -> Vec<u8> {
    match outcome {
        Ok(result) if serde_json::from_str::<IgnoredAny>(result).is_ok() => {
            let result = one_line(result);
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n").into_bytes()
        }
        Ok(_) => reply_error(id, INTERNAL_ERROR, "the answer could not be written as JSON"),
        Err(error) => reply_error(id, error.code, &error.message),
    }
}

/// Builds the error response to the request with this raw id, newline included.
pub fn reply_error(id: &str, code: i64, message: &str) -> Vec<u8> {
    let message = quoted(message);
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":{code},\"message\":{message}}}}}\n")
        .into_bytes()
}

/// Replaces line breaks by spaces: valid JSON has raw line breaks only between tokens.
fn one_line(json: &str) -> Cow<'_, str> {
    if json.contains(['\n', '\r']) {
        Cow::Owned(json.replace(['\n', '\r'], " "))
    } else {
        Cow::Borrowed(json)
    }
}

/// Adds a member to an object, or replaces it. Other values stay as they are.
pub fn put(object: &mut serde_json::Value, name: &str, member: serde_json::Value) {
    if let serde_json::Value::Object(members) = object {
        members.insert(name.to_owned(), member);
    }
}

#[cfg(test)]
#[path = "jsonrpc_tests.rs"]
mod tests;
