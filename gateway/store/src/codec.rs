//! Conversion between SQL values and the types of `core/rows.rs`.
#![deny(clippy::indexing_slicing)]

use crate::error::StoreError;
use acp_core::render::PartKind;
use acp_core::rows::{
    AutoResolution, BindingStatus, ConversationRef, LeaseStatus, PermissionState, RequestState, RunMode,
    SessionMode, TargetKind, Verbosity,
};
use acp_core::run::RunState;
use acp_core::session::{Ending, SessionState};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, Params, Row};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::str::FromStr;

/// A `u64` in an INTEGER column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Int(pub u64);

impl ToSql for Int {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        i64::try_from(self.0)
            .map(ToSqlOutput::from)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
    }
}

impl FromSql for Int {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let number = value.as_i64()?;
        u64::try_from(number).map(Self).map_err(|_| FromSqlError::OutOfRange(number))
    }
}

/// Enum stored as a word in a column with a CHECK constraint.
pub trait SqlEnum: Copy + Sized + 'static {
    /// All values.
    const ALL: &'static [Self];

    /// Word of the value.
    fn word(self) -> &'static str;
}

/// Enums with the word of each value.
macro_rules! words {
    ($($name:ident { $($variant:ident = $text:literal),+ $(,)? })+) => {$(
        impl SqlEnum for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];
            fn word(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    )+};
}

words! {
    SessionMode { Persistent = "persistent", Oneshot = "oneshot" }
    RunMode { Prompt = "prompt", Steer = "steer" }
    LeaseStatus { Intended = "intended", Open = "open", Ready = "ready", Closing = "closing", Ended = "ended" }
    RequestState { Received = "received", Started = "started", Answered = "answered" }
    PermissionState { Pending = "pending", Answered = "answered", Expired = "expired" }
    TargetKind { Session = "session", Subagent = "subagent" }
    BindingStatus { Pending = "pending", Active = "active", Parked = "parked", Ending = "ending", Ended = "ended" }
}

pub(crate) use words;

/// Enums whose words are their names.
macro_rules! named {
    ($($name:ident),+) => {$(
        impl SqlEnum for $name {
            const ALL: &'static [Self] = &$name::ALL;
            fn word(self) -> &'static str {
                self.as_str()
            }
        }
    )+};
}

named! { AutoResolution, Ending, PartKind, RunState, SessionState, Verbosity }

fn unreadable(column: &'static str, why: impl ToString) -> StoreError {
    StoreError::Unreadable { column, why: why.to_string() }
}

fn text<'a>(row: &'a Row<'_>, column: &'static str) -> Result<&'a str, StoreError> {
    row.get_ref(column)?.as_str().map_err(|error| unreadable(column, error))
}

/// Reads a word column.
///
/// # Errors
/// [`StoreError::Unreadable`] for an unknown word.
pub fn word<T: SqlEnum>(row: &Row<'_>, column: &'static str) -> Result<T, StoreError> {
    let text = text(row, column)?;
    T::ALL
        .iter()
        .copied()
        .find(|known| known.word() == text)
        .ok_or_else(|| unreadable(column, format!("unknown value {text:?}")))
}

/// Reads a nullable word column.
///
/// # Errors
/// As [`word`].
pub fn word_opt<T: SqlEnum>(row: &Row<'_>, column: &'static str) -> Result<Option<T>, StoreError> {
    let is_set = !matches!(row.get_ref(column)?, ValueRef::Null);
    is_set.then(|| word(row, column)).transpose()
}

/// Reads a text column that holds an id.
///
/// # Errors
/// [`StoreError::Unreadable`] if the id does not parse.
pub fn id<T>(row: &Row<'_>, column: &'static str) -> Result<T, StoreError>
where
    T: FromStr,
    T::Err: ToString,
{
    text(row, column)?.parse().map_err(|error: T::Err| unreadable(column, error))
}

/// Reads a nullable text column that holds an id.
///
/// # Errors
/// [`StoreError::Unreadable`] if the id does not parse.
pub fn id_opt<T>(row: &Row<'_>, column: &'static str) -> Result<Option<T>, StoreError>
where
    T: FromStr,
    T::Err: ToString,
{
    if row.get_ref(column)? == ValueRef::Null { Ok(None) } else { id(row, column).map(Some) }
}

/// Reads an unsigned integer column.
///
/// # Errors
/// [`StoreError::Sqlite`] if the value is negative or not an integer.
pub fn int(row: &Row<'_>, column: &'static str) -> Result<u64, StoreError> {
    Ok(row.get::<_, Int>(column)?.0)
}

/// Reads a nullable unsigned integer column.
///
/// # Errors
/// [`StoreError::Sqlite`] if the value is negative or not an integer.
pub fn int_opt(row: &Row<'_>, column: &'static str) -> Result<Option<u64>, StoreError> {
    Ok(row.get::<_, Option<Int>>(column)?.map(|number| number.0))
}

/// Reads a JSON column.
///
/// # Errors
/// [`StoreError::Unreadable`] if the JSON does not match the type.
pub fn json<T: DeserializeOwned>(row: &Row<'_>, column: &'static str) -> Result<T, StoreError> {
    serde_json::from_str(text(row, column)?).map_err(|error| unreadable(column, error))
}

/// Reads a nullable JSON column.
///
/// # Errors
/// [`StoreError::Unreadable`] if the JSON does not match the type.
pub fn json_opt<T: DeserializeOwned>(row: &Row<'_>, column: &'static str) -> Result<Option<T>, StoreError> {
    if row.get_ref(column)? == ValueRef::Null { Ok(None) } else { json(row, column).map(Some) }
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

/// Returns all rows of a query.
///
/// # Errors
/// The first error of SQLite or `read`.
pub fn all<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut statement: CachedStatement<'_> = db.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// Returns the first row of a query, if any.
///
/// # Errors
/// Errors of SQLite or `read`.
pub fn first<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    rows.next()?.map(read).transpose()
}

/// Runs a statement and returns the number of changed rows.
///
/// # Errors
/// SQLite errors.
pub fn run(db: &Connection, sql: &str, params: impl Params) -> Result<usize, StoreError> {
    Ok(db.prepare_cached(sql)?.execute(params)?)
}

/// Runs a statement.
///
/// # Errors
/// SQLite errors.
pub fn execute(db: &Connection, sql: &str, params: impl Params) -> Result<(), StoreError> {
    run(db, sql, params).map(drop)
}

/// Runs `work` as one transaction.
///
/// # Errors
/// Errors of `work`, after a rollback; SQLite errors.
pub fn atomically<T>(db: &Connection, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    db.execute_batch("BEGIN IMMEDIATE")?;
    let done = work();
    db.execute_batch(if done.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    done
}

/// Reads the columns of a conversation: channel, account, and the named ones for its id and its parent's.
///
/// # Errors
/// SQLite errors.
pub fn conversation(row: &Row<'_>, id: &str, parent: &str) -> Result<ConversationRef, StoreError> {
    Ok(ConversationRef {
        channel: row.get("channel")?,
        account_id: row.get("account_id")?,
        conversation_id: row.get(id)?,
        parent_conversation_id: row.get(parent)?,
    })
}
