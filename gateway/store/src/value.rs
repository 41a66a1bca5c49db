//! Values of columns and parameters, and the control statements of transactions: what both engines share.

use crate::error::StoreError;
use std::borrow::Cow;

/// Value of a column or a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'a> {
    /// NULL.
    Null,
    /// INTEGER.
    Integer(i64),
    /// TEXT.
    Text(Cow<'a, str>),
    /// BLOB.
    Blob(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Returns the text.
    ///
    /// # Errors
    /// The value is none.
    pub fn into_text(self) -> Result<Cow<'a, str>, String> {
        if let Self::Text(text) = self { Ok(text) } else { Err("not a text".to_owned()) }
    }
}

/// Type that can be a parameter.
pub trait ToValue {
    /// Converts to the value that is stored.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if no column can hold it.
    fn to_value(&self) -> Result<Value<'_>, StoreError>;
}

impl ToValue for Value<'_> {
    fn to_value(&self) -> Result<Value<'_>, StoreError> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Integer(number) => Value::Integer(*number),
            Self::Text(text) => Value::Text(Cow::Borrowed(text)),
            Self::Blob(bytes) => Value::Blob(bytes),
        })
    }
}

/// Type that can be read from a column.
pub trait FromValue: Sized {
    /// Converts a stored value.
    ///
    /// # Errors
    /// Reason why the value is not one of this type.
    fn from_value(value: Value<'_>) -> Result<Self, String>;
}

/// Parameters of a statement: `?1`, `?2` and so on.
pub type Params<'a> = &'a [&'a dyn ToValue];

/// Parameters of a statement in the order of their numbers.
#[macro_export]
macro_rules! params {
    ($($value:expr),* $(,)?) => { &[$(&$value as &dyn $crate::value::ToValue),*] as $crate::value::Params<'_> };
}

/// Parameters of a statement by name: `":key": value`.
macro_rules! named_params {
    ($($name:literal: $value:expr),* $(,)?) => { &[$(($name, &$value as &dyn $crate::value::ToValue)),*] };
}

pub use crate::params;
pub(crate) use named_params;

/// Statement that begins, divides or ends a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxControl {
    /// Begins a transaction that may write.
    BeginWrite,
    /// Begins a transaction that reads one snapshot.
    BeginRead,
    /// Commits.
    Commit,
    /// Rolls everything back.
    Rollback,
    /// Begins a part that can be rolled back alone.
    Savepoint,
    /// Ends that part and keeps its writes.
    Release,
    /// Ends that part without its writes.
    Undo,
}

impl TxControl {
    /// Statements of SQLite.
    pub(crate) const fn sqlite(self) -> &'static [&'static str] {
        match self {
            Self::BeginWrite => &["BEGIN IMMEDIATE"],
            Self::BeginRead => &["BEGIN"],
            Self::Commit => &["COMMIT"],
            Self::Rollback => &["ROLLBACK"],
            Self::Savepoint => &["SAVEPOINT job"],
            Self::Release => &["RELEASE job"],
            Self::Undo => &["ROLLBACK TO job", "RELEASE job"],
        }
    }
}
