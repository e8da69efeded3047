//! One connection to a database, whichever it is.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::kernel::definition::effect::Returned;
use crate::kernel::definition::sql_database::DatabaseKind;
use crate::kernel::definition::sql_text::SqlText;
use crate::kernel::json::Json;

/// A connection. After an error other than [`SqlError::Refused`] nothing is known about it, and it is thrown away.
#[async_trait]
pub trait Session: Send {
    /// Begins a transaction whose statements may take as long as `limit` says.
    async fn begin(&mut self, access: Access, limit: Duration) -> Result<(), SqlError>;

    /// Tells the server how long the statements that follow in this transaction may take, so that it holds no locks for
    /// a caller that has given up.
    async fn bound(&mut self, limit: Duration) -> Result<(), SqlError>;

    /// Ends the transaction.
    async fn end(&mut self, end: End) -> Result<(), SqlError> {
        self.control(match end {
            End::Commit => "COMMIT",
            End::RollBack => "ROLLBACK",
        })
        .await
    }

    /// Carries out a text of the runner's own that takes no values.
    async fn control(&mut self, text: &str) -> Result<(), SqlError>;

    /// Carries out one statement with its values, `$1` first.
    async fn run(
        &mut self,
        statement: &Statement,
        values: &[Json<'_>],
        bounds: Bounds,
    ) -> Result<Answer, SqlError>;
}

/// What a transaction may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Commit,
    RollBack,
}

/// Whole milliseconds, at least one: 0 means "without a limit" to databases.
pub fn millis(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis())
        .unwrap_or(u64::MAX)
        .clamp(1, MILLIS_MAX)
}

/// What fits the timeouts of all databases, more than any call may take.
const MILLIS_MAX: u64 = 86_400_000;

/// A statement as its database reads it.
#[derive(Debug, Clone)]
pub struct Statement {
    pub source: SqlText,
    pub text: SqlStr,
    pub returned: Returned,
    /// Which value each parameter takes, from 0.
    pub order: Vec<usize>,
}

impl Statement {
    pub fn of(text: &SqlText, returned: Returned, kind: DatabaseKind) -> Self {
        let in_order = || (0..text.placeholders().len()).collect();
        let source = text.clone();
        let (text, order) = match kind {
            DatabaseKind::Postgres => (text.numbered('$'), in_order()),
            DatabaseKind::Sqlite => (text.numbered('?'), in_order()),
            DatabaseKind::MySql => {
                let (text, numbers) = text.positional();
                (text, numbers.into_iter().map(|number| number - 1).collect())
            }
        };
        Self {
            source,
            // No value is ever part of it: the loader refuses expressions in it.
            text: AssertSqlSafe(text).into_sql_str(),
            returned,
            order,
        }
    }
}

/// How much an answer may hold.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub rows: usize,
    pub bytes: usize,
}

/// What a statement gave.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Objects, one for each row; empty if rows were not asked for.
    pub rows: Vec<Json<'static>>,
    /// Rows that it touched.
    pub affected: u64,
    /// Size of the rows as the database sent them.
    pub bytes: usize,
}

impl Answer {
    /// Takes one more row of `bytes` bytes.
    pub fn add(&mut self, row: Row, bytes: usize, bounds: Bounds) -> Result<(), SqlError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.rows.len() >= bounds.rows {
            return Err(SqlError::TooLarge(format!("more than {} rows", bounds.rows)));
        }
        if self.bytes > bounds.bytes {
            return Err(SqlError::TooLarge(format!("more than {} bytes", bounds.bytes)));
        }
        self.rows.push(Json::Map(row.members));
        Ok(())
    }
}

/// A row that is being read.
#[derive(Debug, Default)]
pub struct Row {
    members: Vec<(std::borrow::Cow<'static, str>, Json<'static>)>,
}

impl Row {
    /// Takes the value of one column.
    pub fn add(&mut self, column: &str, value: Json<'static>) -> Result<(), SqlError> {
        if self.members.iter().any(|(name, _)| name == column) {
            return Err(SqlError::Column(format!(
                "two columns are called {column:?}; rename one with AS"
            )));
        }
        self.members.push((column.to_owned().into(), value));
        Ok(())
    }
}

/// A column whose type the runner does not read.
pub fn unreadable(column: &str, type_name: &str) -> SqlError {
    SqlError::Column(format!(
        "column {column:?} is of type {type_name}, which cannot be read; cast it to text"
    ))
}

/// A column whose value is not what its type says, or is out of range.
pub fn unclear(column: &str, type_name: &str) -> SqlError {
    SqlError::Column(format!(
        "column {column:?} of type {type_name} holds a value that cannot be read; cast it to text"
    ))
}

/// Why a statement gave nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SqlError {
    /// The database's own answer.
    Refused(Refusal),
    /// There is no connection, or it is gone, with the reason.
    Lost(String),
    /// The server's certificate is not trusted, with the reason.
    Untrusted(String),
    /// The address may not be called.
    Denied(String),
    /// A value does not fit its parameter.
    Bind(String),
    /// A column cannot be read.
    Column(String),
    /// The answer is larger than it may be.
    TooLarge(String),
}

/// An error that the database reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub fault: Fault,
    pub sqlstate: Option<String>,
    /// The number of MySQL, MariaDB and SQLite.
    pub code: Option<i64>,
    pub constraint: Option<String>,
    pub message: String,
}

/// What a refusal means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Unique,
    ForeignKey,
    Check,
    NotNull,
    Exclusion,
    /// Another transaction was in the way: deadlock, serialization, a lock.
    Conflict,
    /// It took longer than it may.
    TimedOut,
    /// It took longer than it may, and the database has undone the whole transaction.
    Ended,
    /// The database has no room or is going down.
    Unavailable,
    /// The connection knows the statement as it was before the schema changed.
    Stale,
    NoTable,
    /// A column that a statement names is not there.
    NoColumn,
    /// It takes no changes, as a replica does.
    ReadOnly,
    Other,
}
