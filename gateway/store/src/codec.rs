//! Conversion between values of the database and the types of `core/rows.rs`.
#![deny(clippy::indexing_slicing)]

use crate::db::{FromValue, Row, ToValue, Value};
use crate::error::StoreError;
use acp_core::bearer::TokenDigest;
use acp_core::principal::Scope;
use acp_core::render::PartKind;
use acp_core::rows::{
    AutoResolution, BindingStatus, CompletionState, ConversationRef, LeaseStatus, NonInteractive,
    PermissionMode, PermissionState, RequestState, RunMode, SessionMode, TargetKind, Verbosity,
};
use acp_core::run::RunState;
use acp_core::session::{Ending, SessionState};
use acp_shared::ids::{
    AgentName, BindingId, GatewayInstanceId, IdempotencyKey, LeaseId, RunId, SessionKey, TokenId,
};
use serde::Serialize;
use std::borrow::Cow;

/// Enum stored as a word in a column with a CHECK constraint.
pub trait SqlEnum: Copy + Sized + 'static {
    /// All values.
    const ALL: &'static [Self];

    /// Word of the value.
    fn word(self) -> &'static str;

    /// Value of a word.
    ///
    /// # Errors
    /// Names an unknown word.
    fn of_word(value: Value<'_>) -> Result<Self, String> {
        let text = value.into_text()?;
        let known = Self::ALL.iter().copied().find(|known| known.word() == text);
        known.ok_or_else(|| format!("unknown value {text:?}"))
    }
}

/// Columns that hold the words of enums.
macro_rules! word_columns {
    ($($name:ident),+) => {$(
        impl $crate::db::ToValue for $name {
            fn to_value(&self) -> Result<$crate::db::Value<'_>, $crate::StoreError> {
                $crate::db::ToValue::to_value($crate::codec::SqlEnum::word(*self))
            }
        }

        impl $crate::db::FromValue for $name {
            fn from_value(value: $crate::db::Value<'_>) -> Result<Self, String> {
                $crate::codec::SqlEnum::of_word(value)
            }
        }
    )+};
}

/// Enums with the word of each value.
macro_rules! words {
    ($($name:ident { $($variant:ident = $text:literal),+ $(,)? })+) => {
        $(impl $crate::codec::SqlEnum for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];
            fn word(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        })+
        $crate::codec::word_columns! { $($name),+ }
    };
}

pub(crate) use {word_columns, words};

words! {
    SessionMode { Persistent = "persistent", Oneshot = "oneshot" }
    PermissionMode { ApproveAll = "approve-all", ApproveReads = "approve-reads", DenyAll = "deny-all", Ask = "ask" }
    NonInteractive { Deny = "deny", Fail = "fail" }
    RunMode { Prompt = "prompt", Steer = "steer" }
    LeaseStatus { Intended = "intended", Open = "open", Ready = "ready", Closing = "closing", Ended = "ended" }
    RequestState { Received = "received", Started = "started", Answered = "answered" }
    PermissionState { Pending = "pending", Answered = "answered", Expired = "expired" }
    TargetKind { Session = "session", Subagent = "subagent" }
    BindingStatus { Pending = "pending", Active = "active", Parked = "parked", Ending = "ending", Ended = "ended" }
}

/// Enums whose words are their names.
macro_rules! named {
    ($($name:ident),+) => {
        $(impl SqlEnum for $name {
            const ALL: &'static [Self] = &$name::ALL;
            fn word(self) -> &'static str {
                self.as_str()
            }
        })+
        word_columns! { $($name),+ }
    };
}

named! { AutoResolution, CompletionState, Ending, PartKind, RunState, Scope, SessionState, Verbosity }

/// Ids in text columns.
macro_rules! ids {
    ($($name:ident = $text:expr),+ $(,)?) => {$(
        impl ToValue for $name {
            fn to_value(&self) -> Result<Value<'_>, StoreError> {
                let text: fn(&Self) -> Cow<'_, str> = $text;
                Ok(Value::Text(text(self)))
            }
        }

        impl FromValue for $name {
            fn from_value(value: Value<'_>) -> Result<Self, String> {
                Self::parse(&value.into_text()?).map_err(|error| error.to_string())
            }
        }
    )+};
}

ids! {
    AgentName = |id| id.as_str().into(),
    IdempotencyKey = |id| id.as_str().into(),
    SessionKey = |id| id.as_str().into(),
    BindingId = |id| id.to_string().into(),
    GatewayInstanceId = |id| id.to_string().into(),
    LeaseId = |id| id.to_string().into(),
    RunId = |id| id.to_string().into(),
    TokenDigest = |digest| digest.to_string().into(),
    TokenId = |id| id.to_string().into(),
}

/// Numbers in INTEGER columns.
macro_rules! numbers {
    ($($name:ident),+) => {$(
        impl ToValue for $name {
            fn to_value(&self) -> Result<Value<'_>, StoreError> {
                let number = i64::try_from(*self);
                number.map(Value::Integer).map_err(|_| StoreError::Refused("a number exceeds 63 bits"))
            }
        }

        impl FromValue for $name {
            fn from_value(value: Value<'_>) -> Result<Self, String> {
                let Value::Integer(number) = value else { return Err("not a number".to_owned()) };
                Self::try_from(number).map_err(|_| format!("out of range: {number}"))
            }
        }
    )+};
}

numbers! { u32, u64 }

impl ToValue for bool {
    fn to_value(&self) -> Result<Value<'_>, StoreError> {
        Ok(Value::Integer(i64::from(*self)))
    }
}

impl FromValue for bool {
    fn from_value(value: Value<'_>) -> Result<Self, String> {
        u32::from_value(value).map(|number| number != 0)
    }
}

impl ToValue for str {
    fn to_value(&self) -> Result<Value<'_>, StoreError> {
        Ok(Value::Text(self.into()))
    }
}

impl ToValue for String {
    fn to_value(&self) -> Result<Value<'_>, StoreError> {
        self.as_str().to_value()
    }
}

impl FromValue for String {
    fn from_value(value: Value<'_>) -> Result<Self, String> {
        value.into_text().map(Cow::into_owned)
    }
}

impl ToValue for [u8] {
    fn to_value(&self) -> Result<Value<'_>, StoreError> {
        Ok(Value::Blob(self))
    }
}

impl FromValue for Vec<u8> {
    fn from_value(value: Value<'_>) -> Result<Self, String> {
        if let Value::Blob(bytes) = value { Ok(bytes.to_owned()) } else { Err("not a blob".to_owned()) }
    }
}

impl<T: ToValue + ?Sized> ToValue for &T {
    fn to_value(&self) -> Result<Value<'_>, StoreError> {
        (**self).to_value()
    }
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> Result<Value<'_>, StoreError> {
        self.as_ref().map_or(Ok(Value::Null), T::to_value)
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: Value<'_>) -> Result<Self, String> {
        if value == Value::Null { Ok(None) } else { T::from_value(value).map(Some) }
    }
}

/// Serializes a value for a JSON column.
///
/// # Errors
/// [`StoreError::Unwritable`].
pub fn to_json(value: &impl Serialize) -> Result<String, StoreError> {
    Ok(serde_json::to_string(value)?)
}

/// Serializes an optional value for a nullable JSON column.
///
/// # Errors
/// [`StoreError::Unwritable`].
pub fn to_json_opt(value: Option<&impl Serialize>) -> Result<Option<String>, StoreError> {
    value.map(to_json).transpose()
}

/// Reads the columns of a conversation: channel, account, and the named ones for its id and its parent's.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn conversation(
    row: &Row<'_>,
    id: &'static str,
    parent: &'static str,
) -> Result<ConversationRef, StoreError> {
    Ok(ConversationRef {
        channel: row.get("channel")?,
        account_id: row.get("account_id")?,
        conversation_id: row.get(id)?,
        parent_conversation_id: row.get(parent)?,
    })
}
