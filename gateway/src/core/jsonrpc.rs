//! JSON-RPC messages as they are: the envelope is read as ordered members whose values stay raw text, so what
//! goes on is byte for byte what came, whatever this build knows of it.
//!
//! Nothing here interprets a number, sorts a key or drops a duplicate. Where one name occurs twice, the last one
//! counts, as in every common JSON reader. Ids are raw too: `0`, `"0"` and `null` are three ids.
#![deny(clippy::indexing_slicing)]

use crate::core::link::RpcError;
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// "Method not found".
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
/// "Invalid params".
pub(crate) const INVALID_PARAMS: i64 = -32602;
/// "Internal error".
pub(crate) const INTERNAL_ERROR: i64 = -32603;
/// ACP: the request was cancelled.
pub(crate) const CANCELLED: i64 = -32800;
/// ACP: credentials are needed first.
pub(crate) const AUTH_REQUIRED: i64 = -32000;
/// ACP: no such session or resource.
pub(crate) const NOT_FOUND: i64 = -32002;
/// The client refuses to carry out an effect: in JSON-RPC's range for implementations, and not one of ACP's.
pub(crate) const REFUSED: i64 = -32003;

/// "Limit exceeded", as EIP-1474 numbers server errors.
pub(crate) const LIMIT_REACHED: i64 = -32005;

/// The members of one JSON object in their order, values as raw text, borrowed from the object's own text.
#[derive(Debug, Clone)]
pub(crate) struct Members<'a> {
    text: &'a str,
    list: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'a> Members<'a> {
    /// Reads one object. The text may have space around it and nothing else.
    ///
    /// # Errors
    /// The text is not one JSON object.
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let list = reader.deserialize_map(ListVisitor)?;
        reader.end()?;
        Ok(Self { text, list })
    }

    /// The raw value of the last member of that name.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        self.list.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.get())
    }

    /// The same, when it is a string: its text.
    pub(crate) fn string(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name).and_then(string)
    }

    /// Names and raw values, in order, duplicates included.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for the surfaces that pass messages on under other ids")
    )]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.list.iter().map(|(key, value)| (key.as_ref(), value.get()))
    }

    /// The object's text with the values of these members replaced by other raw values; every other byte stays.
    /// Names that do not occur are not added.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for the surfaces that pass messages on under other ids")
    )]
    pub(crate) fn rewritten(&self, changes: &[(&str, &str)]) -> String {
        let mut out = String::with_capacity(self.text.len());
        let mut copied = 0;
        for (key, value) in &self.list {
            let Some((_, new)) = changes.iter().find(|(name, _)| name == key) else { continue };
            // The value is a slice of `text`, so the difference of their addresses is its place in it.
            let start = value.get().as_ptr() as usize - self.text.as_ptr() as usize;
            out.push_str(self.text.get(copied..start).unwrap_or_default());
            out.push_str(new);
            copied = start + value.get().len();
        }
        out.push_str(self.text.get(copied..).unwrap_or_default());
        out
    }
}

/// The text of a raw value that is a string.
pub(crate) fn string(raw: &str) -> Option<Cow<'_, str>> {
    let mut reader = serde_json::Deserializer::from_str(raw);
    reader.deserialize_str(KeyVisitor).ok()
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::with_capacity(4);
        while let Some(key) = map.next_key_seed(KeySeed)? {
            list.push((key, map.next_value::<&'de RawValue>()?));
        }
        Ok(list)
    }
}

struct KeySeed;

impl<'de> serde::de::DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(KeyVisitor)
    }
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// One message. Ids, params, results and errors are raw JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// Wants an answer.
    Request {
        /// To be given back exactly as it is here.
        id: &'a str,
        /// The method.
        method: Cow<'a, str>,
        /// Its params, when there are any.
        params: Option<&'a str>,
    },
    /// Wants none.
    Notification {
        /// The method.
        method: Cow<'a, str>,
        /// Its params, when there are any.
        params: Option<&'a str>,
    },
    /// Answers a request.
    Response {
        /// Of the request; `None` when the peer left it out.
        id: Option<&'a str>,
        /// The result, or the error object.
        outcome: Result<&'a str, &'a str>,
    },
}

/// Why a line is no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// Text that is no JSON.
    #[error("not JSON")]
    NotJson,
    /// An array: ACP has no batches.
    #[error("a JSON-RPC batch")]
    Batch,
    /// JSON, and not an object.
    #[error("not a JSON object")]
    NotObject,
    /// An object with neither a method nor a result nor an error, or with a method that is no string.
    #[error("neither a request nor an answer")]
    NoMessage,
}

impl<'a> Message<'a> {
    /// Reads one line.
    ///
    /// # Errors
    /// [`Malformed`]; nothing is repaired here (see [`crate::core::intake`]).
    pub(crate) fn read(text: &'a str) -> Result<Self, Malformed> {
        let members = Members::parse(text).map_err(|_| what_else(text))?;
        Self::of(&members)
    }

    /// Classifies an object that is already taken apart.
    ///
    /// # Errors
    /// [`Malformed::NoMessage`].
    pub(crate) fn of(members: &Members<'a>) -> Result<Self, Malformed> {
        let id = members.get("id");
        let params = members.get("params");
        if let Some(method) = members.get("method") {
            let method = string(method).ok_or(Malformed::NoMessage)?;
            return Ok(match id {
                Some(id) => Self::Request { id, method, params },
                None => Self::Notification { method, params },
            });
        }
        // Some peers send `"error": null` beside a result.
        let error = members.get("error").filter(|raw| *raw != "null");
        match (error, members.get("result")) {
            (Some(error), _) => Ok(Self::Response { id, outcome: Err(error) }),
            (None, Some(result)) => Ok(Self::Response { id, outcome: Ok(result) }),
            (None, None) => Err(Malformed::NoMessage),
        }
    }
}

fn what_else(text: &str) -> Malformed {
    if serde_json::from_str::<IgnoredAny>(text).is_err() {
        Malformed::NotJson
    } else if text.trim_start().starts_with('[') {
        Malformed::Batch
    } else {
        Malformed::NotObject
    }
}

/// Text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A request with an id of ours, newline included.
pub(crate) fn request(id: &str, method: &str, params: &str) -> Vec<u8> {
    let (id, method) = (quoted(id), quoted(method));
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{method},\"params\":{params}}}\n").into_bytes()
}

/// A notification, newline included.
pub(crate) fn notification(method: &str, params: &str) -> Vec<u8> {
    let method = quoted(method);
    format!("{{\"jsonrpc\":\"2.0\",\"method\":{method},\"params\":{params}}}\n").into_bytes()
}

/// An answer to the request with that raw id, newline included. A result that is not one line of JSON becomes
/// an internal error: nothing that we send may break the peer's reader.
pub(crate) fn reply(id: &str, outcome: &Result<String, RpcError>) -> Vec<u8> {
    match outcome {
        Ok(result) if serde_json::from_str::<IgnoredAny>(result).is_ok() => {
            let result = one_line(result);
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n").into_bytes()
        }
        Ok(_) => reply_error(id, INTERNAL_ERROR, "the answer could not be written as JSON"),
        Err(error) => reply_error(id, error.code, &error.message),
    }
}

/// An error as answer to the request with that raw id, newline included.
pub(crate) fn reply_error(id: &str, code: i64, message: &str) -> Vec<u8> {
    let message = quoted(message);
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":{code},\"message\":{message}}}}}\n")
        .into_bytes()
}

/// Valid JSON has raw line breaks only between its tokens, where a space does as well.
fn one_line(json: &str) -> Cow<'_, str> {
    if json.contains(['\n', '\r']) {
        Cow::Owned(json.replace(['\n', '\r'], " "))
    } else {
        Cow::Borrowed(json)
    }
}

#[cfg(test)]
#[path = "jsonrpc_tests.rs"]
mod tests;
