//! A connection to MySQL or MariaDB.

use std::time::Duration;

use async_trait::async_trait;
use data_encoding::BASE64;
use futures::TryStreamExt as _;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use sqlx::mysql::{
    MySqlArguments, MySqlConnectOptions, MySqlDatabaseError, MySqlRow, MySqlSslMode, MySqlValueRef,
};
use sqlx::{
    Arguments as _, AssertSqlSafe, Column as _, ConnectOptions as _, Decode, Either, Executor as _,
    MySqlConnection, Row as _, Type, TypeInfo as _, ValueRef as _,
};

use super::connect::{Peer, Route, lost};
use super::json_of_double;
use super::session::{
    Access, Answer, Bounds, Fault, Refusal, Row, Session, SqlError, Statement, millis, unclear, unreadable,
};
use crate::kernel::definition::effect::Returned;
use crate::kernel::definition::sql_database::TlsMode;
use crate::kernel::json::Json;

/// Deepest JSON that a column may hold, in levels.
const JSON_DEPTH: usize = 64;

/// A number or text that a column cannot hold is refused, whatever the server does by itself.
const STRICT: &str = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')";

pub struct MySql {
    connection: MySqlConnection,
    make: Make,
    /// What the server was told last that a statement may take, in milliseconds.
    told_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Make {
    /// Counts every statement, in seconds.
    MariaDb,
    /// Counts statements that read, in milliseconds.
    MySql,
}

impl MySql {
    pub async fn open(peer: &Peer, route: &Route) -> Result<Self, SqlError> {
        let url = &peer.url;
        let mut options = MySqlConnectOptions::new()
            .host(&route.host)
            .port(url.port)
            .username(url.user.as_deref().unwrap_or("root"))
            .database(&url.database)
            .pipes_as_concat(false)
            .ssl_mode(match url.tls {
                TlsMode::Disable => MySqlSslMode::Disabled,
                TlsMode::Prefer => MySqlSslMode::Preferred,
                TlsMode::Require => MySqlSslMode::Required,
                TlsMode::VerifyCa => MySqlSslMode::VerifyCa,
                TlsMode::VerifyFull => MySqlSslMode::VerifyIdentity,
            });
        if !peer.password.is_empty() {
            options = options.password(&peer.password);
        }
        if let Some(file) = &url.root_certificate {
            options = options.ssl_ca(file);
        }
        if let (Some(certificate), Some(key)) = (&url.client_certificate, &url.client_key) {
            options = options.ssl_client_cert(certificate).ssl_client_key(key);
        }
        if let Some(relay) = &route.relay {
            options = options.socket(relay.socket());
        }
        let connection = options.disable_statement_logging().connect().await;
        let mut session = Self {
            connection: connection.map_err(failed)?,
            make: Make::MariaDb,
            told_ms: None,
        };
        match session.control("SET SESSION max_statement_time = 0").await {
            Err(SqlError::Refused(_)) => session.make = Make::MySql,
            other => other?,
        }
        session.control(STRICT).await?;
        Ok(session)
    }
}

/// Each counts in a unit of its own; waiting for a row is counted in whole seconds by both.
fn limits(make: Make, ms: u64) -> String {
    let locks = format!("innodb_lock_wait_timeout = {}", ms.div_ceil(1_000));
    match make {
        Make::MariaDb => format!(
            "SET SESSION max_statement_time = {}.{:03}, {locks}",
            ms / 1_000,
            ms % 1_000
        ),
        Make::MySql => format!("SET SESSION max_execution_time = {ms}, {locks}"),
    }
}

#[async_trait]
impl Session for MySql {
    async fn begin(&mut self, access: Access, limit: Duration) -> Result<(), SqlError> {
        self.bound(limit).await?;
        self.control(match access {
            Access::ReadOnly => "START TRANSACTION READ ONLY",
            Access::ReadWrite => "START TRANSACTION READ WRITE",
        })
        .await
    }

    async fn bound(&mut self, limit: Duration) -> Result<(), SqlError> {
        let ms = millis(limit);
        if self.told_ms != Some(ms) {
            self.control(&limits(self.make, ms)).await?;
            self.told_ms = Some(ms);
        }
        Ok(())
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
        let mut arguments = MySqlArguments::default();
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

fn bind(arguments: &mut MySqlArguments, value: &Json<'_>) -> Result<(), sqlx::error::BoxDynError> {
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

fn read(row: &MySqlRow) -> Result<(Row, usize), SqlError> {
    let mut members = Row::default();
    let mut size = 0;
    for column in row.columns() {
        let (name, type_name) = (column.name(), column.type_info().name());
        let raw = row
            .try_get_raw(column.ordinal())
            .map_err(|_| unclear(name, type_name))?;
        let value = if raw.is_null() {
            Json::Null
        } else {
            let bytes = decoded::<&[u8]>(raw.clone()).ok_or_else(|| unclear(name, type_name))?;
            size += bytes.len();
            let value = match type_name {
                "BOOLEAN" => decoded::<i64>(raw).map(|number| Json::Bool(number != 0)),
                "TINYINT" | "SMALLINT" | "MEDIUMINT" | "INT" | "BIGINT" => decoded::<i64>(raw).map(Json::Int),
                "TINYINT UNSIGNED" | "SMALLINT UNSIGNED" | "MEDIUMINT UNSIGNED" | "INT UNSIGNED"
                | "BIGINT UNSIGNED" | "YEAR" | "BIT" => decoded::<u64>(raw).map(whole),
                // The shortest decimal of the narrow number, not its neighbour among the wide ones.
                "FLOAT" => decoded::<f32>(raw).and_then(|number| {
                    let number: f64 = number.to_string().parse().ok()?;
                    Some(json_of_double(number))
                }),
                "DOUBLE" => decoded::<f64>(raw).map(json_of_double),
                "DECIMAL" | "CHAR" | "VARCHAR" | "TINYTEXT" | "TEXT" | "MEDIUMTEXT" | "LONGTEXT" | "ENUM"
                | "SET" => text(bytes),
                "JSON" => Json::parse(bytes, JSON_DEPTH).ok().map(Json::into_static),
                // The driver gives texts with a `_bin` collation these names as well.
                "BINARY" | "VARBINARY" | "TINYBLOB" | "BLOB" | "MEDIUMBLOB" | "LONGBLOB" => {
                    if <str as Type<sqlx::MySql>>::compatible(column.type_info()) {
                        text(bytes)
                    } else {
                        Some(Json::Str(BASE64.encode(bytes).into()))
                    }
                }
                "DATE" => moment(bytes).map(|at| Json::Str(at.date().to_string().into())),
                "DATETIME" => moment(bytes).map(|at| Json::Str(at.to_string().into())),
                // The session's time zone is UTC.
                "TIMESTAMP" => moment(bytes)
                    .and_then(|at| at.to_zoned(TimeZone::UTC).ok())
                    .map(|at| Json::Str(at.timestamp().to_string().into())),
                "TIME" => duration(bytes).map(|text| Json::Str(text.into())),
                _ => return Err(unreadable(name, type_name)),
            };
            value.ok_or_else(|| unclear(name, type_name))?
        };
        size += name.len();
        members.add(name, value)?;
    }
    Ok((members, size))
}

fn decoded<'r, T: Decode<'r, sqlx::MySql>>(value: MySqlValueRef<'r>) -> Option<T> {
    T::decode(value).ok()
}

fn text(bytes: &[u8]) -> Option<Json<'static>> {
    let text = std::str::from_utf8(bytes).ok()?;
    Some(Json::Str(text.to_owned().into()))
}

/// As a string where it does not fit 64 signed bits.
fn whole(number: u64) -> Json<'static> {
    i64::try_from(number).map_or_else(|_| Json::Str(number.to_string().into()), Json::Int)
}

/// Length, year, month, day, hour, minute, second, microseconds; zeros at the end are not sent.
fn moment(bytes: &[u8]) -> Option<DateTime> {
    let (_, bytes) = bytes.split_first()?;
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let part = |at: usize| i8::try_from(byte(at)).ok();
    let year = i16::from_le_bytes([byte(0), byte(1)]);
    let us = u32::from_le_bytes([byte(7), byte(8), byte(9), byte(10)]);
    let ns = i32::try_from(us).ok()?.checked_mul(1_000)?;
    DateTime::new(year, part(2)?, part(3)?, part(4)?, part(5)?, part(6)?, ns).ok()
}

/// Length, sign, days, hours, minutes, seconds, microseconds. Up to 838 hours, of either sign.
fn duration(bytes: &[u8]) -> Option<String> {
    let (_, bytes) = bytes.split_first()?;
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let word = |at: usize| u32::from_le_bytes([byte(at), byte(at + 1), byte(at + 2), byte(at + 3)]);
    let hours = word(1).checked_mul(24)?.checked_add(byte(5).into())?;
    let sign = if byte(0) == 1 { "-" } else { "" };
    let mut text = format!("{sign}{hours:02}:{:02}:{:02}", byte(6), byte(7));
    if word(8) > 0 {
        let fraction = format!(".{:06}", word(8));
        text.push_str(fraction.trim_end_matches('0'));
    }
    Some(text)
}

fn failed(error: sqlx::Error) -> SqlError {
    let sqlx::Error::Database(error) = error else {
        return lost(&error);
    };
    let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() else {
        return SqlError::Lost(error.message().to_owned());
    };
    SqlError::Refused(Refusal {
        fault: fault(error.number(), error.code()),
        sqlstate: error.code().map(str::to_owned),
        code: Some(error.number().into()),
        constraint: None,
        message: error.message().to_owned(),
    })
}

/// What a number means, of MySQL or MariaDB.
fn fault(number: u16, sqlstate: Option<&str>) -> Fault {
    match number {
        1022 | 1062 | 1169 | 1586 => Fault::Unique,
        1216 | 1217 | 1451 | 1452 => Fault::ForeignKey,
        3819 => Fault::Check,
        4025 if sqlstate == Some("23000") => Fault::Check,
        1048 | 1364 => Fault::NotNull,
        // Deadlock, lock wait, record changed since the snapshot.
        1205 | 1213 | 1020 => Fault::Conflict,
        1317 | 1969 | 3024 => Fault::TimedOut,
        1040 | 1041 | 1053 | 1077 | 1105 | 1158..=1161 | 1180 | 1203 | 1226 | 1927 => Fault::Unavailable,
        1290 | 1792 | 1836 => Fault::ReadOnly,
        1146 => Fault::NoTable,
        1054 => Fault::NoColumn,
        1615 => Fault::Stale,
        _ => Fault::Other,
    }
}
