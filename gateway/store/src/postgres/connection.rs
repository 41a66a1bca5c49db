//! Connection to PostgreSQL with the interface of [`crate::db::Db`]. It has a runtime of its own, which runs only while a call
//! waits: callers are the writer's thread and blocking tasks, never an async context.

use super::dialect::{Translated, repeat_row, translate};
use super::values::PgRow;
use super::{PgAddress, tls};
use crate::error::StoreError;
use crate::value::{Params, ToValue, TxControl, Value};
use futures_util::StreamExt as _;
use futures_util::future::{join, join_all};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Statement};

/// Maximum number of prepared statements; at more, all are forgotten.
const STATEMENTS_MAX: usize = 512;
/// Numbers of rows of one INSERT of an appender, the largest first: each is a statement of its own.
const ROWS_AT_ONCE: [usize; 4] = [64, 16, 4, 1];
/// Maximum number of statements that wait to be sent. `join_all` polls up to 30 futures in their order.
const PENDING_MAX: usize = 24;
/// Time to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time after which the kernel asks the other side whether it is there, the interval of further questions, and their number.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(3);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVES: u32 = 3;
/// Number of looks at the socket of an idle connection: for its events, and for the tasks that follow from them.
const LOOKS: u32 = 4;
/// Settings of each session: no timeout of a role ends a statement that is waited for.
const SETTINGS: &str = "SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0; \
    SET idle_session_timeout = 0";
/// Time without an acknowledgement after which the kernel gives a connection up.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// States of a server in which it takes no connections for some time.
const PASSING: [SqlState; 4] = [
    SqlState::CANNOT_CONNECT_NOW,
    SqlState::TOO_MANY_CONNECTIONS,
    SqlState::ADMIN_SHUTDOWN,
    SqlState::CRASH_SHUTDOWN,
];

/// Open connection.
pub(crate) struct PgConnection {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    /// Time after which no call waits for the server; `None` waits for as long as the connection stands.
    deadline: Cell<Option<Instant>>,
    client: Client,
    address: PgAddress,
    statements: RefCell<HashMap<String, Arc<Prepared>>>,
    /// Statements that nothing waits for: they are sent with the next one, in their order.
    pending: RefCell<Vec<Pending>>,
    in_transaction: Cell<bool>,
    /// True from the failure of a statement in a transaction on, until that is rolled back.
    has_failed: Cell<bool>,
    /// True from the failure of a write that nothing waited for on, until the transaction is rolled back as a whole.
    has_lost: Cell<bool>,
}

/// Error of a statement with too few or too many parameters.
const WRONG_NUMBER: StoreError = StoreError::Refused("a statement has another number of parameters");

/// Error of a transaction that continues after the failure of a statement.
const IGNORED: StoreError = StoreError::Refused("a statement of the transaction has failed");

struct Prepared {
    statement: Statement,
    names: Vec<String>,
}

/// Statement that nothing waits for.
enum Pending {
    Control(&'static str),
    Write(Arc<Prepared>, Vec<OwnedValue>),
}

impl fmt::Debug for PgConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PgConnection({})", self.address)
    }
}

impl PgConnection {
    /// Connects. After a deadline, no call waits for the server: the connection counts as lost then.
    ///
    /// # Errors
    /// [`StoreError::Server`].
    pub(crate) fn open(
        address: &PgAddress,
        application_name: &str,
        deadline: Option<Instant>,
    ) -> Result<Self, StoreError> {
        let refused =
            |why: String, is_passing| StoreError::Server { address: address.to_string(), why, is_passing };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| refused(format!("cannot make a runtime: {error}"), false))?;
        let tls = tls::tls(Arc::clone(&address.roots))?;
        let mut config = Config::clone(&address.config);
        config.application_name(application_name);
        config.connect_timeout(CONNECT_TIMEOUT).tcp_user_timeout(SILENCE_MAX);
        config
            .keepalives_idle(KEEPALIVE_IDLE)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVES);
        let connecting = async {
            let (client, connection) = config.connect(tls).await?;
            let driving = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::warn!(%error, "connection to the database server ended");
                }
            });
            drop(driving);
            client.batch_execute(SETTINGS).await?;
            Ok(client)
        };
        let connected = runtime.block_on(async {
            let end = deadline.unwrap_or_else(|| Instant::now() + CONNECT_TIMEOUT * 3);
            tokio::time::timeout_at(end.into(), connecting).await
        });
        let connected = connected
            .map_err(|_| refused("it does not answer. Is the server overloaded?".to_owned(), true))?;
        let client = connected.map_err(|error: tokio_postgres::Error| {
            if let Some(fault) = tls::certificate_fault(&error) {
                return refused(format!("the certificate of the server is refused: {fault}"), false);
            }
            let cause =
                std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            let why =
                format!("cannot connect: {error}{cause}. Is the server running, and is the address right?");
            refused(why, is_passing(&error))
        })?;
        Ok(Self {
            runtime: Some(runtime),
            deadline: Cell::new(deadline),
            client,
            address: address.clone(),
            statements: RefCell::default(),
            pending: RefCell::default(),
            in_transaction: Cell::new(false),
            has_failed: Cell::new(false),
            has_lost: Cell::new(false),
        })
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let runtime = self.runtime.as_ref().ok_or(StoreError::Closed)?;
        let result = runtime.block_on(async {
            match self.deadline.get() {
                None => work.await,
                Some(end) => {
                    let done = tokio::time::timeout_at(end.into(), work).await;
                    done.unwrap_or(Err(StoreError::ConnectionLost))
                }
            }
        });
        self.has_failed.set(self.in_transaction.get() && (self.has_failed.get() || result.is_err()));
        result
    }

    /// Sets another deadline.
    pub(crate) fn set_deadline(&self, deadline: Instant) {
        self.deadline.set(Some(deadline));
    }

    /// True after the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// True if the connection stands after all that the server has sent was read: its runtime runs only while a call waits.
    pub(crate) fn is_alive(&self) -> bool {
        if let Some(runtime) = &self.runtime {
            runtime.block_on(async {
                for _ in 0..LOOKS {
                    tokio::task::yield_now().await;
                }
            });
        }
        !self.client.is_closed()
    }

    /// True between the begin and the end of a transaction, while the connection stands.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.in_transaction.get() && !self.client.is_closed()
    }

    /// Begins, divides or ends a transaction. Only a commit and a rollback wait for the server.
    ///
    /// # Errors
    /// [`StoreError::OutcomeUnknown`] if the connection was lost after COMMIT was sent; errors of the server.
    pub(crate) fn control(&self, control: TxControl) -> Result<(), StoreError> {
        let sql = match control {
            TxControl::BeginWrite => "BEGIN",
            TxControl::BeginRead => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            TxControl::Commit => "COMMIT",
            TxControl::Rollback => "ROLLBACK",
            TxControl::Savepoint => "SAVEPOINT job",
            TxControl::Release => "RELEASE job",
            TxControl::Undo => "ROLLBACK TO job; RELEASE job",
        };
        match control {
            TxControl::BeginWrite | TxControl::BeginRead => {
                if self.client.is_closed() {
                    return Err(StoreError::ConnectionLost);
                }
                self.in_transaction.set(true);
                self.pending.borrow_mut().push(Pending::Control(sql));
                Ok(())
            }
            TxControl::Release if self.has_failed.get() => Err(IGNORED),
            TxControl::Undo if self.has_lost.get() => Err(StoreError::GroupLost),
            TxControl::Savepoint | TxControl::Release | TxControl::Undo => {
                if control == TxControl::Undo {
                    self.has_failed.set(false);
                }
                self.pending.borrow_mut().push(Pending::Control(sql));
                Ok(())
            }
            TxControl::Commit => self.commit(),
            TxControl::Rollback => {
                self.in_transaction.set(false);
                self.has_failed.set(false);
                self.has_lost.set(false);
                self.pending.borrow_mut().push(Pending::Control(sql));
                self.flush()
            }
        }
    }

    /// Commits. To the server a COMMIT of a failed transaction is a rollback without an error, so it is not sent.
    fn commit(&self) -> Result<(), StoreError> {
        if self.has_failed.get() {
            return Err(IGNORED);
        }
        self.pending.borrow_mut().push(Pending::Control("COMMIT"));
        match self.flush() {
            Ok(()) => {
                self.in_transaction.set(false);
                Ok(())
            }
            // A server that crashes in the commit may report a full disk or an I/O error.
            Err(error) if self.client.is_closed() || is_fatal(&error) => Err(StoreError::OutcomeUnknown),
            Err(StoreError::ConnectionLost) => Err(StoreError::OutcomeUnknown),
            Err(error) => Err(error),
        }
    }

    /// Sends the pending statements and waits for their answers.
    ///
    /// # Errors
    /// As [`PgConnection::settle`].
    fn flush(&self) -> Result<(), StoreError> {
        let pending = self.pending.take();
        if pending.is_empty() {
            return Ok(());
        }
        self.wait(async { self.settle(&pending, send_all(&self.client, &pending).await) })
    }

    /// Returns the result of what was pending. If it failed in a transaction, released parts are lost with it.
    ///
    /// # Errors
    /// [`StoreError::GroupLost`] for a failure in a transaction; [`StoreError::ConnectionLost`]; the error of anything else.
    fn settle(&self, pending: &[Pending], result: Result<(), StoreError>) -> Result<(), StoreError> {
        let Err(error) = result else { return Ok(()) };
        let in_transaction = self.in_transaction.get();
        self.has_lost.set(in_transaction);
        let is_commit = matches!(pending.last(), Some(Pending::Control("COMMIT")));
        if !in_transaction || is_commit || matches!(error, StoreError::ConnectionLost) {
            return Err(error);
        }
        tracing::error!(error = error.whole(), "server refused a statement that was sent later");
        Err(StoreError::GroupLost)
    }

    fn prepared(&self, sql: &str) -> Result<Arc<Prepared>, StoreError> {
        if let Some(known) = self.statements.borrow().get(sql) {
            return Ok(Arc::clone(known));
        }
        // A statement that cannot be prepared must fail the transaction, not something before it.
        self.flush()?;
        let Translated { sql: text, names } = translate(sql);
        let statement = self.wait(async { Ok(self.client.prepare(&text).await?) })?;
        let prepared = Arc::new(Prepared { statement, names });
        let mut statements = self.statements.borrow_mut();
        if statements.len() >= STATEMENTS_MAX {
            statements.clear();
        }
        statements.insert(sql.to_owned(), Arc::clone(&prepared));
        Ok(prepared)
    }

    /// Runs a statement and returns its result, after what is pending, in one round trip.
    fn send<T>(
        &self,
        prepared: &Prepared,
        values: &[Value<'_>],
        work: impl AsyncFnOnce(&Client, &Statement, &[&(dyn ToSql + Sync)]) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, StoreError> {
        if prepared.statement.params().len() != values.len() {
            return Err(WRONG_NUMBER);
        }
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
        let pending = self.pending.take();
        self.wait(async {
            if pending.is_empty() {
                return Ok(work(&self.client, &prepared.statement, &values).await?);
            }
            // All are sent before the first is answered.
            let result = work(&self.client, &prepared.statement, &values);
            let (before, result) = join(send_all(&self.client, &pending), result).await;
            self.settle(&pending, before)?;
            Ok(result?)
        })
    }

    /// Runs a statement. Returns the number of changed rows.
    ///
    /// # Errors
    /// Errors of the server.
    pub(crate) fn run(&self, sql: &str, params: Params<'_>) -> Result<usize, StoreError> {
        let prepared = self.prepared(sql)?;
        let values = params.iter().map(|value| value.to_value()).collect::<Result<Vec<_>, _>>()?;
        self.execute(&prepared, &values)
    }

    fn execute(&self, prepared: &Prepared, values: &[Value<'_>]) -> Result<usize, StoreError> {
        let changed = self.send(prepared, values, async |client, statement, values| {
            client.execute(statement, values).await
        })?;
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    /// Runs a statement whose result nobody waits for. The transaction fails as a whole if it fails.
    ///
    /// # Errors
    /// As [`ToValue::to_value`]; errors of the server about the statement.
    pub(crate) fn run_later(&self, sql: &str, params: Params<'_>) -> Result<(), StoreError> {
        let values = params
            .iter()
            .map(|value| Ok(OwnedValue::of(value.to_value()?)))
            .collect::<Result<Vec<_>, StoreError>>()?;
        self.execute_later(sql, values)
    }

    fn execute_later(&self, sql: &str, values: Vec<OwnedValue>) -> Result<(), StoreError> {
        let prepared = self.prepared(sql)?;
        if prepared.statement.params().len() != values.len() {
            return Err(WRONG_NUMBER);
        }
        self.pending.borrow_mut().push(Pending::Write(prepared, values));
        if self.pending.borrow().len() < PENDING_MAX { Ok(()) } else { self.flush() }
    }

    /// Runs a statement with named parameters. Returns the number of changed rows.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if a parameter has no value; errors of the server.
    pub(crate) fn run_named(&self, sql: &str, params: &[(&str, &dyn ToValue)]) -> Result<usize, StoreError> {
        let prepared = self.prepared(sql)?;
        if let Some((name, _)) =
            params.iter().find(|(name, _)| !prepared.names.iter().any(|known| known == name))
        {
            tracing::error!(name, "statement has no such parameter");
            return Err(StoreError::Refused("a statement lacks a named parameter"));
        }
        let value = |name: &String| match params.iter().find(|(known, _)| known == name) {
            Some((_, value)) => value.to_value(),
            None => Ok(Value::Null),
        };
        let values = prepared.names.iter().map(value).collect::<Result<Vec<_>, _>>()?;
        self.execute(&prepared, &values)
    }

    /// Calls `visit` for each row of a query as it arrives, until it breaks.
    ///
    /// # Errors
    /// The first error of the server or `visit`.
    pub(crate) fn visit(
        &self,
        sql: &str,
        params: Params<'_>,
        mut visit: impl FnMut(&PgRow) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        let prepared = self.prepared(sql)?;
        let values = params.iter().map(|value| value.to_value()).collect::<Result<Vec<_>, _>>()?;
        let rows = self.send(&prepared, &values, async |client, statement, values| {
            client.query_raw(statement, values.iter().copied()).await
        })?;
        let mut rows = Box::pin(rows);
        while let Some(row) = self.wait(async { Ok(rows.next().await.transpose()?) })? {
            if visit(&PgRow(row))?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns all rows of a query.
    ///
    /// # Errors
    /// Errors of the server.
    pub(crate) fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<PgRow>, StoreError> {
        let prepared = self.prepared(sql)?;
        let values = params.iter().map(|value| value.to_value()).collect::<Result<Vec<_>, _>>()?;
        let rows = self.send(&prepared, &values, async |client, statement, values| {
            client.query(statement, values).await
        })?;
        Ok(rows.into_iter().map(PgRow).collect())
    }

    /// Runs several statements without parameters.
    ///
    /// # Errors
    /// Errors of the server.
    pub(crate) fn run_all(&self, sql: &str) -> Result<(), StoreError> {
        self.flush()?;
        self.wait(async { Ok(self.client.batch_execute(sql).await?) })
    }

    /// Prepares an INSERT that runs for many rows.
    pub(crate) fn append(&self, sql: &str) -> PgAppender<'_> {
        PgAppender { connection: self, sql: sql.to_owned(), row: Vec::new(), rows: Vec::new(), count: 0 }
    }
}

/// True for an error with which the server ends the connection.
fn is_fatal(error: &StoreError) -> bool {
    let StoreError::Postgres(error) = error else { return matches!(error, StoreError::Full) };
    let severity = error.as_db_error().and_then(tokio_postgres::error::DbError::parsed_severity);
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

/// Sends statements one after the other without waiting for answers between them. Returns the first error.
async fn send_all(client: &Client, pending: &[Pending]) -> Result<(), StoreError> {
    let sent =
        pending.chunk_by(|one, other| matches!((one, other), (Pending::Control(_), Pending::Control(_))));
    let answers = sent.map(|chunk| async move {
        let controls: Vec<&str> = chunk
            .iter()
            .filter_map(|one| if let Pending::Control(sql) = one { Some(*sql) } else { None })
            .collect();
        match chunk {
            [Pending::Write(prepared, values)] => {
                let values: Vec<Value<'_>> = values.iter().map(OwnedValue::value).collect();
                let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
                client.execute(&prepared.statement, &values).await.map(drop)
            }
            _ => client.batch_execute(&controls.join("; ")).await,
        }
    });
    for answer in join_all(answers).await {
        answer?;
    }
    Ok(())
}

/// True for the failure of a connection that a later attempt may not have: the server cannot be reached, starts or ends.
fn is_passing(error: &tokio_postgres::Error) -> bool {
    match error.code() {
        Some(code) => PASSING.contains(code),
        None => {
            let cause =
                std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
            // A certificate that is refused is invalid data.
            error.is_closed() || cause.is_some_and(|cause| cause.kind() != std::io::ErrorKind::InvalidData)
        }
    }
}

impl Drop for PgConnection {
    fn drop(&mut self) {
        // Not a plain drop, which an async context must not do.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Value of a row that waits in an appender.
#[derive(Debug, Clone)]
enum OwnedValue {
    Null,
    Integer(i64),
    Text(Arc<str>),
    Blob(Arc<[u8]>),
}

impl OwnedValue {
    fn of(value: Value<'_>) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Integer(number) => Self::Integer(number),
            Value::Text(text) => Self::Text(text.as_ref().into()),
            Value::Blob(bytes) => Self::Blob(bytes.into()),
        }
    }

    fn value(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Integer(number) => Value::Integer(*number),
            Self::Text(text) => Value::Text(text.as_ref().into()),
            Self::Blob(bytes) => Value::Blob(bytes),
        }
    }
}

/// INSERT for many rows, which are sent together.
pub(crate) struct PgAppender<'a> {
    connection: &'a PgConnection,
    sql: String,
    row: Vec<OwnedValue>,
    rows: Vec<OwnedValue>,
    count: usize,
}

impl PgAppender<'_> {
    /// Sets the parameter at `index`, from 1 on.
    ///
    /// # Errors
    /// As [`ToValue::to_value`].
    pub(crate) fn set(&mut self, index: usize, value: &dyn ToValue) -> Result<(), StoreError> {
        let value = OwnedValue::of(value.to_value()?);
        if self.row.len() < index {
            self.row.resize(index, OwnedValue::Null);
        }
        if let Some(place) = self.row.get_mut(index.saturating_sub(1)) {
            *place = value;
        }
        Ok(())
    }

    /// Adds the row; gives the connection rows once they are many.
    ///
    /// # Errors
    /// Errors of the server.
    pub(crate) fn append(&mut self) -> Result<(), StoreError> {
        self.rows.extend_from_slice(&self.row);
        self.count += 1;
        if self.count >= ROWS_AT_ONCE[0] { self.flush() } else { Ok(()) }
    }

    /// Gives the connection the remaining rows.
    ///
    /// # Errors
    /// Errors of the server.
    pub(crate) fn finish(mut self) -> Result<(), StoreError> {
        self.flush()
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let columns = self.row.len();
        let rows = std::mem::take(&mut self.rows);
        let mut left = std::mem::take(&mut self.count);
        let mut values = rows.into_iter();
        for at_once in ROWS_AT_ONCE {
            while left >= at_once {
                let sql = repeat_row(&self.sql, columns, at_once);
                let values: Vec<OwnedValue> = values.by_ref().take(columns * at_once).collect();
                self.connection.execute_later(&sql, values)?;
                left -= at_once;
            }
        }
        Ok(())
    }
}
