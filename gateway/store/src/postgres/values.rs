//! Values of PostgreSQL and of the store. A text cannot hold U+0000 there: it is escaped on the way in and out.

use crate::value::Value;
use std::borrow::Cow;
use std::error::Error;
use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// First character of an escape: U+10FFFE is a noncharacter, which texts rarely contain.
const ESCAPE: char = '\u{10FFFE}';

/// Replaces U+0000, and the escape itself.
fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', ESCAPE]) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match letter {
            '\0' => out.extend([ESCAPE, '0']),
            ESCAPE => out.extend([ESCAPE, '1']),
            other => out.push(other),
        }
    }
    Cow::Owned(out)
}

/// Reverses [`escape`].
fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains(ESCAPE) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        out.push(match letter {
            ESCAPE if letters.next() == Some('0') => '\0',
            other => other,
        });
    }
    Cow::Owned(out)
}

impl ToSql for Value<'_> {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Integer(number) if *of == Type::INT8 => number.to_sql(of, out),
            Self::Integer(number) if *of == Type::INT4 => i32::try_from(*number)?.to_sql(of, out),
            Self::Integer(number) if *of == Type::BOOL => (*number != 0).to_sql(of, out),
            Self::Text(text) if <&str as ToSql>::accepts(of) => escape(text).as_ref().to_sql(of, out),
            Self::Blob(bytes) if *of == Type::BYTEA => bytes.to_sql(of, out),
            other => Err(format!("a parameter of the type {of} cannot be {other:?}").into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Stored value with its type.
struct Stored<'a>(Value<'a>);

impl<'a> FromSql<'a> for Stored<'a> {
    fn from_sql(of: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(match *of {
            Type::INT8 => Value::Integer(i64::from_sql(of, raw)?),
            Type::INT4 => Value::Integer(i32::from_sql(of, raw)?.into()),
            Type::BOOL => Value::Integer(bool::from_sql(of, raw)?.into()),
            Type::BYTEA => Value::Blob(raw),
            _ if <&str as FromSql<'_>>::accepts(of) => Value::Text(unescape(<&str>::from_sql(of, raw)?)),
            _ => return Err(format!("not a type of this database: {of}").into()),
        }))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(Value::Null))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// Row of a query.
pub(crate) struct PgRow(pub(super) Row);

impl PgRow {
    /// Reads a column.
    ///
    /// # Errors
    /// Reason why there is no such value.
    pub(crate) fn value(&self, column: &str) -> Result<Value<'_>, String> {
        let found = self.0.columns().iter().position(|known| known.name() == column);
        self.value_at(found.ok_or("no such column")?)
    }

    /// Reads the column at an index.
    ///
    /// # Errors
    /// As [`PgRow::value`].
    pub(crate) fn value_at(&self, index: usize) -> Result<Value<'_>, String> {
        self.0.try_get::<_, Stored<'_>>(index).map(|stored| stored.0).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_text_is_kept(text in "[\\x00\\x01a0-1\u{10FFFE}✓]{0,12}") {
            let stored = escape(&text).into_owned();
            prop_assert!(!stored.contains('\0'));
            prop_assert_eq!(unescape(&stored), text);
        }
    }
}
