//! Interface to the database's engine: row types and named transactions use [`Db`], [`Row`] and [`Value`] only. Files
//! that name rusqlite belong to the engine: see decision 0080.
#![deny(clippy::indexing_slicing)]

use crate::error::StoreError;
use crate::postgres::{PgAppender, PgConnection, PgRow};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{BindIndex, CachedStatement, Connection, Statement, ToSql};
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;

pub use crate::params;
pub(crate) use crate::value::named_params;
pub use crate::value::{FromValue, Params, ToValue, TxControl, Value};

/// Connection to the database. Statements are prepared once and cached.
#[derive(Debug)]
pub struct Db {
    engine: Engine,
    /// Server of a simulation; `None` in the product.
    server: Option<Box<dyn SimulatedServer>>,
}

/// Server of a simulation, in front of a database in memory: it decides what becomes of a transaction.
pub trait SimulatedServer: fmt::Debug + Send {
    /// Begins, divides or ends a transaction with `run`, or fails as a server does.
    ///
    /// # Errors
    /// As [`Db::control`].
    fn control(
        &self,
        control: TxControl,
        run: &dyn Fn(TxControl) -> Result<(), StoreError>,
    ) -> Result<(), StoreError>;
}

#[derive(Debug)]
enum Engine {
    Sqlite(Connection),
    Postgres(Box<PgConnection>),
}

impl Db {
    /// Wraps an open connection to SQLite.
    pub(crate) const fn new(sqlite: Connection) -> Self {
        Self { engine: Engine::Sqlite(sqlite), server: None }
    }

    /// Wraps an open connection to PostgreSQL.
    pub(crate) fn of_postgres(postgres: PgConnection) -> Self {
        Self { engine: Engine::Postgres(Box::new(postgres)), server: None }
    }

    /// Puts the server of a simulation in front of the database.
    #[must_use]
    pub fn behind(self, server: Box<dyn SimulatedServer>) -> Self {
        Self { server: Some(server), ..self }
    }

    /// Connection to SQLite, for the engine's own files and for tests.
    ///
    /// # Errors
    /// [`StoreError::OtherEngine`] with PostgreSQL.
    pub const fn sqlite(&self) -> Result<&Connection, StoreError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => Ok(sqlite),
            Engine::Postgres(_) => Err(StoreError::OtherEngine),
        }
    }

    /// Exclusive connection to SQLite, for migrations and copies.
    ///
    /// # Errors
    /// [`StoreError::OtherEngine`] with PostgreSQL.
    pub(crate) const fn sqlite_mut(&mut self) -> Result<&mut Connection, StoreError> {
        match &mut self.engine {
            Engine::Sqlite(sqlite) => Ok(sqlite),
            Engine::Postgres(_) => Err(StoreError::OtherEngine),
        }
    }

    /// True if the engine is SQLite.
    pub const fn is_sqlite(&self) -> bool {
        matches!(self.engine, Engine::Sqlite(_))
    }

    /// Connection to PostgreSQL, for the engine's own files.
    pub(crate) fn postgres(&self) -> Option<&PgConnection> {
        match &self.engine {
            Engine::Sqlite(_) => None,
            Engine::Postgres(postgres) => Some(postgres),
        }
    }

    /// Closes the connection. A server notices its end.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn close(self) -> Result<(), StoreError> {
        match self.engine {
            Engine::Sqlite(sqlite) => sqlite.close().map_err(|(_, error)| error.into()),
            Engine::Postgres(_) => Ok(()),
        }
    }

    /// Begins, divides or ends a transaction.
    ///
    /// # Errors
    /// Errors of the engine; [`StoreError::OutcomeUnknown`] if the connection was lost during a commit.
    pub fn control(&self, control: TxControl) -> Result<(), StoreError> {
        match &self.server {
            Some(server) => server.control(control, &|control| self.control_engine(control)),
            None => self.control_engine(control),
        }
    }

    fn control_engine(&self, control: TxControl) -> Result<(), StoreError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => control
                .sqlite()
                .iter()
                .try_for_each(|sql| Ok(sqlite.prepare_cached(sql)?.raw_execute().map(drop)?)),
            Engine::Postgres(postgres) => postgres.control(control),
        }
    }

    /// Runs a statement. Returns the number of changed rows.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn run(&self, sql: &str, params: Params<'_>) -> Result<usize, StoreError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => Ok(prepare(sqlite, sql, params)?.raw_execute()?),
            Engine::Postgres(postgres) => postgres.run(sql, params),
        }
    }

    /// Runs a statement that does not fail, and whose number of changed rows is not needed: what it writes was checked before.
    /// With PostgreSQL it is sent with the next statement, and if it fails, the group of transactions fails as a whole.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn run_later(&self, sql: &str, params: Params<'_>) -> Result<(), StoreError> {
        match &self.engine {
            Engine::Sqlite(_) => self.run(sql, params).map(drop),
            Engine::Postgres(postgres) => postgres.run_later(sql, params),
        }
    }

    /// Runs a statement with named parameters. Returns the number of changed rows.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn run_named(&self, sql: &str, params: &[(&str, &dyn ToValue)]) -> Result<usize, StoreError> {
        let sqlite = match &self.engine {
            Engine::Sqlite(sqlite) => sqlite,
            Engine::Postgres(postgres) => return postgres.run_named(sql, params),
        };
        let mut statement = sqlite.prepare_cached(sql)?;
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
        match &self.engine {
            Engine::Sqlite(sqlite) => {
                let mut statement = prepare(sqlite, sql, params)?;
                let mut rows = statement.raw_query();
                while let Some(row) = rows.next()? {
                    if visit(&Row(EngineRow::Sqlite(row)))?.is_break() {
                        break;
                    }
                }
            }
            Engine::Postgres(postgres) => {
                postgres.visit(sql, params, |row| visit(&Row(EngineRow::Postgres(row))))?;
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
        match &self.engine {
            Engine::Sqlite(sqlite) => {
                let mut statement = prepare(sqlite, sql, params)?;
                let mut rows = statement.raw_query();
                rows.next()?.map(|row| read(&Row(EngineRow::Sqlite(row)))).transpose()
            }
            Engine::Postgres(postgres) => {
                let rows = postgres.query(sql, params)?;
                rows.first().map(|row| read(&Row(EngineRow::Postgres(row)))).transpose()
            }
        }
    }

    /// Prepares an INSERT that runs for many rows.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn append(&self, sql: &str) -> Result<RowAppender<'_>, StoreError> {
        Ok(match &self.engine {
            Engine::Sqlite(sqlite) => RowAppender(Appender::Sqlite(sqlite.prepare_cached(sql)?)),
            Engine::Postgres(postgres) => RowAppender(Appender::Postgres(postgres.append(sql))),
        })
    }

    /// Runs several statements without parameters.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn run_all(&self, sql: &str) -> Result<(), StoreError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => Ok(sqlite.execute_batch(sql)?),
            Engine::Postgres(postgres) => postgres.run_all(sql),
        }
    }

    /// Runs `work` as one transaction.
    ///
    /// # Errors
    /// Errors of `work`, after a rollback; SQLite errors.
    pub fn transaction<T>(&self, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.control(TxControl::BeginWrite)?;
        let done = work();
        self.control(if done.is_ok() { TxControl::Commit } else { TxControl::Rollback })?;
        done
    }

    /// True if the connection can run more statements.
    pub fn is_usable(&self) -> bool {
        self.postgres().is_none_or(|postgres| !postgres.is_closed())
    }

    /// True if a connection that was idle can run statements: a server may have ended it meanwhile. Blocks for a moment; not for
    /// an async context.
    pub fn is_alive(&self) -> bool {
        self.postgres().is_none_or(PgConnection::is_alive)
    }

    /// True between the beginning and the end of a transaction. An error may have ended it.
    pub fn is_in_transaction(&self) -> bool {
        match &self.engine {
            Engine::Sqlite(sqlite) => !sqlite.is_autocommit(),
            Engine::Postgres(postgres) => postgres.is_in_transaction(),
        }
    }
}

fn prepare<'a>(
    sqlite: &'a Connection,
    sql: &str,
    params: Params<'_>,
) -> Result<CachedStatement<'a>, StoreError> {
    let mut statement = sqlite.prepare_cached(sql)?;
    let expected = statement.parameter_count();
    if params.len() != expected {
        return Err(rusqlite::Error::InvalidParameterCount(params.len(), expected).into());
    }
    for (index, value) in (1_usize..).zip(params) {
        bind(&mut statement, index, *value)?;
    }
    Ok(statement)
}

fn bind(statement: &mut Statement<'_>, at: impl BindIndex, value: &dyn ToValue) -> Result<(), StoreError> {
    Ok(statement.raw_bind_parameter(at, value.to_value()?)?)
}

/// INSERT for many rows. Parameters keep their values between rows.
pub struct RowAppender<'a>(Appender<'a>);

enum Appender<'a> {
    Sqlite(CachedStatement<'a>),
    Postgres(PgAppender<'a>),
}

impl RowAppender<'_> {
    /// Sets the parameter `?index`.
    ///
    /// # Errors
    /// As [`ToValue::to_value`]; errors of the engine.
    pub fn set(&mut self, index: usize, value: &dyn ToValue) -> Result<(), StoreError> {
        match &mut self.0 {
            Appender::Sqlite(statement) => bind(statement, index, value),
            Appender::Postgres(appender) => appender.set(index, value),
        }
    }

    /// Inserts a row, with PostgreSQL at the latest when the appender is finished.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn append(&mut self) -> Result<(), StoreError> {
        match &mut self.0 {
            Appender::Sqlite(statement) => Ok(statement.raw_execute().map(drop)?),
            Appender::Postgres(appender) => appender.append(),
        }
    }

    /// Inserts the rows that are not yet inserted.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn finish(self) -> Result<(), StoreError> {
        match self.0 {
            Appender::Sqlite(_) => Ok(()),
            Appender::Postgres(appender) => appender.finish(),
        }
    }
}

/// Row of a query.
pub struct Row<'a>(EngineRow<'a>);

enum EngineRow<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a PgRow),
}

impl Row<'_> {
    fn value(&self, column: &'static str) -> Result<Value<'_>, StoreError> {
        match &self.0 {
            EngineRow::Sqlite(row) => value(row.get_ref(column)?),
            EngineRow::Postgres(row) => row.value(column),
        }
        .map_err(|why| unreadable(column, why))
    }

    /// Reads a column.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`]; SQLite errors.
    pub fn get<T: FromValue>(&self, column: &'static str) -> Result<T, StoreError> {
        T::from_value(self.value(column)?).map_err(|why| unreadable(column, why))
    }

    /// Reads the column at an index, from 0 on.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`]; SQLite errors.
    pub(crate) fn at(&self, index: usize) -> Result<Value<'_>, StoreError> {
        match &self.0 {
            EngineRow::Sqlite(row) => value(row.get_ref(index)?),
            EngineRow::Postgres(row) => row.value_at(index),
        }
        .map_err(|why| unreadable("a column", why))
    }

    /// Reads the only column.
    ///
    /// # Errors
    /// As [`Row::get`].
    pub fn only<T: FromValue>(&self) -> Result<T, StoreError> {
        T::from_value(self.at(0)?).map_err(|why| unreadable("the only column", why))
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
