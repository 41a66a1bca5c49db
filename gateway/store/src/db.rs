//! Interface to the database's engine: row types and named transactions use [`Db`], [`Row`] and [`Value`] only. Files
//! that name rusqlite belong to the engine: see decision 0080.
#![deny(clippy::indexing_slicing)]

use crate::error::StoreError;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{BindIndex, CachedStatement, Connection, Statement, ToSql};
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::ops::ControlFlow;

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
    ($($value:expr),* $(,)?) => { &[$(&$value as &dyn $crate::db::ToValue),*] as $crate::db::Params<'_> };
}

/// Parameters of a statement by name: `":key": value`.
macro_rules! named_params {
    ($($name:literal: $value:expr),* $(,)?) => { &[$(($name, &$value as &dyn $crate::db::ToValue)),*] };
}

pub use crate::params;
pub(crate) use named_params;

/// Connection to the database. Statements are prepared once and cached.
#[derive(Debug)]
pub struct Db {
    sqlite: Connection,
}

impl Db {
    /// Wraps an open connection.
    pub(crate) const fn new(sqlite: Connection) -> Self {
        Self { sqlite }
    }

    /// Connection of the engine, for its own files and for tests.
    pub const fn sqlite(&self) -> &Connection {
        &self.sqlite
    }

    /// Exclusive connection of the engine, for migrations and copies.
    pub(crate) const fn sqlite_mut(&mut self) -> &mut Connection {
        &mut self.sqlite
    }

    /// Closes the connection.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn close(self) -> Result<(), StoreError> {
        self.sqlite.close().map_err(|(_, error)| error.into())
    }

    fn prepare(&self, sql: &str, params: Params<'_>) -> Result<CachedStatement<'_>, StoreError> {
        let mut statement = self.sqlite.prepare_cached(sql)?;
        let expected = statement.parameter_count();
        if params.len() != expected {
            return Err(rusqlite::Error::InvalidParameterCount(params.len(), expected).into());
        }
        for (index, value) in (1_usize..).zip(params) {
            bind(&mut statement, index, *value)?;
        }
        Ok(statement)
    }

    /// Runs a statement. Returns the number of changed rows.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn run(&self, sql: &str, params: Params<'_>) -> Result<usize, StoreError> {
        Ok(self.prepare(sql, params)?.raw_execute()?)
    }

    /// Runs a statement with named parameters. Returns the number of changed rows.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn run_named(&self, sql: &str, params: &[(&str, &dyn ToValue)]) -> Result<usize, StoreError> {
        let mut statement = self.sqlite.prepare_cached(sql)?;
        for (name, value) in params {
            bind(&mut statement, *name, *value)?;
        }
        Ok(statement.raw_execute()?)
    }

    /// Calls `visit` for each row of a query, until it breaks.
    ///
    /// # Errors
    /// The first error of SQLite or `visit`.
    pub fn visit(
        &self,
        sql: &str,
        params: Params<'_>,
        mut visit: impl FnMut(&Row<'_>) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        let mut statement = self.prepare(sql, params)?;
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next()? {
            if visit(&Row(row))?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns all rows of a query.
    ///
    /// # Errors
    /// The first error of SQLite or `read`.
    pub fn all<T>(
        &self,
        sql: &str,
        params: Params<'_>,
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut found = Vec::new();
        self.visit(sql, params, |row| {
            found.push(read(row)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Returns the first row of a query, if any.
    ///
    /// # Errors
    /// Errors of SQLite or `read`.
    pub fn first<T>(
        &self,
        sql: &str,
        params: Params<'_>,
        read: impl FnOnce(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let mut statement = self.prepare(sql, params)?;
        let mut rows = statement.raw_query();
        rows.next()?.map(|row| read(&Row(row))).transpose()
    }

    /// Prepares an INSERT that runs for many rows.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn append(&self, sql: &str) -> Result<RowAppender<'_>, StoreError> {
        Ok(RowAppender { statement: self.sqlite.prepare_cached(sql)? })
    }

    /// Runs several statements without parameters.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn run_all(&self, sql: &str) -> Result<(), StoreError> {
        Ok(self.sqlite.execute_batch(sql)?)
    }

    /// Runs `work` as one transaction.
    ///
    /// # Errors
    /// Errors of `work`, after a rollback; SQLite errors.
    pub fn transaction<T>(&self, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.run("BEGIN IMMEDIATE", &[])?;
        let done = work();
        self.run(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }, &[])?;
        done
    }

    /// True between the beginning and the end of a transaction. An error may have ended it.
    pub fn is_in_transaction(&self) -> bool {
        !self.sqlite.is_autocommit()
    }
}

fn bind(statement: &mut Statement<'_>, at: impl BindIndex, value: &dyn ToValue) -> Result<(), StoreError> {
    Ok(statement.raw_bind_parameter(at, value.to_value()?)?)
}

/// INSERT for many rows. Parameters keep their values between rows.
pub struct RowAppender<'a> {
    statement: CachedStatement<'a>,
}

impl RowAppender<'_> {
    /// Sets the parameter `?index`.
    ///
    /// # Errors
    /// As [`ToValue::to_value`]; SQLite errors.
    pub fn set(&mut self, index: usize, value: &dyn ToValue) -> Result<(), StoreError> {
        bind(&mut self.statement, index, value)
    }

    /// Inserts a row.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn append(&mut self) -> Result<(), StoreError> {
        self.statement.raw_execute()?;
        Ok(())
    }
}

/// Row of a query.
pub struct Row<'a>(&'a rusqlite::Row<'a>);

impl Row<'_> {
    fn value(&self, column: &'static str) -> Result<Value<'_>, StoreError> {
        value(self.0.get_ref(column)?).map_err(|why| unreadable(column, why))
    }

    /// Reads a column.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`]; SQLite errors.
    pub fn get<T: FromValue>(&self, column: &'static str) -> Result<T, StoreError> {
        T::from_value(self.value(column)?).map_err(|why| unreadable(column, why))
    }

    /// Reads the only column.
    ///
    /// # Errors
    /// As [`Row::get`].
    pub fn only<T: FromValue>(&self) -> Result<T, StoreError> {
        value(self.0.get_ref(0)?).and_then(T::from_value).map_err(|why| unreadable("the only column", why))
    }

    /// Reads a text column without a copy.
    ///
    /// # Errors
    /// As [`Row::get`].
    pub fn text(&self, column: &'static str) -> Result<Cow<'_, str>, StoreError> {
        self.value(column)?.into_text().map_err(|why| unreadable(column, why))
    }

    /// Reads a JSON column.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] if the JSON does not match the type; SQLite errors.
    pub fn json<T: DeserializeOwned>(&self, column: &'static str) -> Result<T, StoreError> {
        serde_json::from_str(&self.text(column)?).map_err(|error| unreadable(column, error))
    }

    /// Reads a nullable JSON column.
    ///
    /// # Errors
    /// As [`Row::json`].
    pub fn json_opt<T: DeserializeOwned>(&self, column: &'static str) -> Result<Option<T>, StoreError> {
        if self.value(column)? == Value::Null { Ok(None) } else { self.json(column).map(Some) }
    }
}

fn unreadable(column: &'static str, why: impl ToString) -> StoreError {
    StoreError::Unreadable { column, why: why.to_string() }
}

fn value(stored: ValueRef<'_>) -> Result<Value<'_>, String> {
    Ok(match stored {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Text(bytes) => {
            Value::Text(Cow::Borrowed(std::str::from_utf8(bytes).map_err(|error| error.to_string())?))
        }
        ValueRef::Blob(bytes) => Value::Blob(bytes),
        ValueRef::Real(number) => return Err(format!("not a type of this database: {number}")),
    })
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn memory() -> Db {
        Db::new(Connection::open_in_memory().unwrap())
    }

    #[test]
    fn values_are_read_as_they_were_bound() {
        let text = "a\0b ✓".to_owned();
        let bytes: &[u8] = &[0, 255];
        let with = params![text, bytes, u64::from(u32::MAX), true, None::<u32>, "[1,2]"];
        let read =
            memory().first("SELECT ?1 AS a, ?2 AS b, ?3 AS c, ?4 AS d, ?5 AS e, ?6 AS f", with, |row| {
                assert_eq!(row.json::<Vec<u8>>("f")?, [1, 2]);
                assert_eq!(row.json_opt::<Vec<u8>>("e")?, None);
                Ok((row.get("a")?, row.get("b")?, row.get("c")?, row.get("d")?, row.get("e")?))
            });
        assert_eq!(read.unwrap(), Some((text, bytes.to_owned(), u64::from(u32::MAX), true, None::<u32>)));
    }

    #[test]
    fn value_of_another_type_is_unreadable_and_names_its_column() {
        fn why<T: FromValue>(value: &str) -> String {
            let read = memory().first(&format!("SELECT {value} AS it"), &[], |row| row.get::<T>("it"));
            read.err().unwrap().to_string()
        }
        for (got, want) in [
            (why::<u64>("'1'"), "not a number"),
            (why::<u64>("-1"), "out of range: -1"),
            (why::<u32>("1 << 40"), "out of range: 1099511627776"),
            (why::<String>("NULL"), "not a text"),
            (why::<String>("1.5"), "not a type of this database: 1.5"),
            (why::<Vec<u8>>("'x'"), "not a blob"),
        ] {
            assert_eq!(got, format!("it in the database cannot be read: {want}"));
        }
    }

    #[test]
    fn statement_with_unsuitable_parameters_is_refused() {
        let db = memory();
        assert!(matches!(db.run("SELECT ?1", &[]), Err(StoreError::Sqlite(_))));
        assert!(matches!(db.run("SELECT ?1", params![1_u32, 2_u32]), Err(StoreError::Sqlite(_))));
        assert!(matches!(db.run("SELECT ?1", params![u64::MAX]), Err(StoreError::Refused(_))));
        let unknown = db.run_named("SELECT :a", named_params! { ":b": 1_u32 });
        assert!(matches!(unknown, Err(StoreError::Sqlite(_))));
    }

    #[test]
    fn failed_transaction_leaves_no_rows() {
        let db = memory();
        db.run("CREATE TABLE t (a INTEGER) STRICT", &[]).unwrap();
        let insert = |end| db.transaction(|| db.run("INSERT INTO t VALUES (1)", &[]).and(end));
        insert(Err(StoreError::Closed)).unwrap_err();
        assert!(!db.is_in_transaction());
        insert(Ok(0)).unwrap();
        assert_eq!(db.first("SELECT count(*) FROM t", &[], |row| row.only::<u64>()).unwrap(), Some(1));
    }
}
