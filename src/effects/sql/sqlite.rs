//! A connection to a file of SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use data_encoding::BASE64;
use futures::TryStreamExt as _;
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteError, SqliteRow};
use sqlx::{
    Arguments as _, AssertSqlSafe, Column as _, ConnectOptions as _, Either, Executor as _, Row as _,
    SqliteConnection, TypeInfo as _, ValueRef as _,
};

use super::connect::{Peer, lost};
use super::json_of_double;
use super::session::{
    Access, Answer, Bounds, Fault, Refusal, Row, Session, SqlError, Statement, millis, unclear, unreadable,
};
use crate::kernel::definition::effect::Returned;
use crate::kernel::json::Json;

/// Steps of the database's machine between two looks at whether anybody still waits.
const STEPS_BETWEEN_LOOKS: i32 = 10_000;

pub struct Sqlite {
    connection: SqliteConnection,
    /// A statement runs on a thread of its own, which nothing else would stop.
    abandoned: Arc<AtomicBool>,
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Release);
    }
}

impl Sqlite {
    pub async fn open(peer: &Peer, read_only: bool) -> Result<Self, SqlError> {
        let options = SqliteConnectOptions::new()
            .filename(&peer.url.database)
            .create_if_missing(false)
            .read_only(read_only)
            .foreign_keys(true)
            .disable_statement_logging();
        let mut connection = options.connect().await.map_err(failed)?;
        let abandoned = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&abandoned);
        let mut handle = connection.lock_handle().await.map_err(failed)?;
        handle.set_progress_handler(STEPS_BETWEEN_LOOKS, move || !watched.load(Ordering::Acquire));
        drop(handle);
        Ok(Self {
            connection,
            abandoned,
        })
    }
}

#[async_trait]
impl Session for Sqlite {
    async fn begin(&mut self, access: Access, limit: Duration) -> Result<(), SqlError> {
        self.bound(limit).await?;
        self.control(match access {
            Access::ReadOnly => "BEGIN",
            // A reader that turns into a writer can find itself locked out half-way.
            Access::ReadWrite => "BEGIN IMMEDIATE",
        })
        .await
    }

    /// How long it waits for others. What takes long by itself is ended by the look at `abandoned`.
    async fn bound(&mut self, limit: Duration) -> Result<(), SqlError> {
        self.control(&format!("PRAGMA busy_timeout = {}", millis(limit)))
            .await
    }

    async fn control(&mut self, text: &str) -> Result<(), SqlError> {
        let text = sqlx::raw_sql(AssertSqlSafe(text.to_owned()));
        self.connection.execute(text).await.map(drop).map_err(failed)
    }

    async fn run(
        &mut self,
        statement: &Statement,
        values: &[Json<'_>],
        bounds: Bounds,
    ) -> Result<Answer, SqlError> {
        let mut arguments = SqliteArguments::default();
        for at in &statement.order {
            bind(&mut arguments, values.get(*at).unwrap_or(&Json::Null))
                .map_err(|error| SqlError::Bind(format!("${}: {error}", at + 1)))?;
        }
        let mut answer = Answer::default();
        let query = sqlx::query_with(statement.text.clone(), arguments);
        let mut stream = self.connection.fetch_many(query);
        while let Some(part) = stream.try_next().await.map_err(failed)? {
            match part {
                Either::Left(done) => answer.affected += done.rows_affected(),
                Either::Right(row) if statement.returned == Returned::Rows => {
                    let (row, bytes) = read(&row)?;
                    answer.add(row, bytes, bounds)?;
                }
                Either::Right(_) => {}
            }
        }
        Ok(answer)
    }
}

fn bind(arguments: &mut SqliteArguments, value: &Json<'_>) -> Result<(), sqlx::error::BoxDynError> {
    match value {
        Json::Null => arguments.add(None::<String>),
        Json::Bool(answer) => arguments.add(*answer),
        Json::Int(number) => arguments.add(*number),
        Json::Double(number) => arguments.add(*number),
        Json::Str(text) => arguments.add(text.clone().into_owned()),
        Json::List(_) | Json::Map(_) => {
            let mut bytes = Vec::new();
            value.write(&mut bytes);
            arguments.add(String::from_utf8_lossy(&bytes).into_owned())
        }
    }
}

/// A value has a type of its own, whatever its column was declared as; only booleans are told by the column.
fn read(row: &SqliteRow) -> Result<(Row, usize), SqlError> {
    let mut members = Row::default();
    let mut size = 0;
    for column in row.columns() {
        let name = column.name();
        let at = column.ordinal();
        let raw = row.try_get_raw(at).map_err(|_| unclear(name, "unknown"))?;
        let type_name = raw.type_info().name().to_owned();
        let is_null = raw.is_null();
        drop(raw);
        let wrong = |_| unclear(name, &type_name);
        let value = match &*type_name {
            _ if is_null => Json::Null,
            "INTEGER" | "BOOLEAN" => {
                let number: i64 = row.try_get_unchecked(at).map_err(wrong)?;
                size += 8;
                match column.type_info().name() {
                    "BOOLEAN" => Json::Bool(number != 0),
                    _ => Json::Int(number),
                }
            }
            "REAL" => {
                size += 8;
                json_of_double(row.try_get_unchecked(at).map_err(wrong)?)
            }
            "TEXT" => {
                let text: String = row.try_get_unchecked(at).map_err(wrong)?;
                size += text.len();
                Json::Str(text.into())
            }
            "BLOB" => {
                let bytes: Vec<u8> = row.try_get_unchecked(at).map_err(wrong)?;
                size += bytes.len();
                Json::Str(BASE64.encode(&bytes).into())
            }
            _ => return Err(unreadable(name, &type_name)),
        };
        size += name.len();
        members.add(name, value)?;
    }
    Ok((members, size))
}

fn failed(error: sqlx::Error) -> SqlError {
    let sqlx::Error::Database(error) = error else {
        return lost(&error);
    };
    let code: i64 = error
        .try_downcast_ref::<SqliteError>()
        .and_then(|_| error.code())
        .and_then(|code| code.parse().ok())
        .unwrap_or(0);
    SqlError::Refused(Refusal {
        fault: fault(code, error.message()),
        sqlstate: None,
        code: Some(code),
        constraint: None,
        message: error.message().to_owned(),
    })
}

/// What an extended result code means; its low byte is the primary one.
fn fault(code: i64, message: &str) -> Fault {
    match (code, code & 0xff) {
        (1_555 | 2_067 | 2_579, _) => Fault::Unique,
        (787, _) => Fault::ForeignKey,
        (275, _) => Fault::Check,
        (1_299, _) => Fault::NotNull,
        // Busy, locked, schema.
        (_, 5 | 6 | 17) => Fault::Conflict,
        (_, 9) => Fault::TimedOut,
        // Memory, disk, full, cannot open.
        (_, 7 | 10 | 13 | 14) => Fault::Unavailable,
        (_, 1) if message.starts_with("no such table") => Fault::NoTable,
        (_, 1) if message.starts_with("no such column") || message.contains("has no column named") => {
            Fault::NoColumn
        }
        _ => Fault::Other,
    }
}
