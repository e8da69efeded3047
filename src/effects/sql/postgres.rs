//! A connection to PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use futures::TryStreamExt as _;
use sqlx::postgres::{PgArguments, PgDatabaseError, PgRow, PgSslMode, PgTypeInfo};
use sqlx::{
    Arguments as _, AssertSqlSafe, Column as _, ConnectOptions as _, Either, Executor as _, PgConnection,
    Row as _, SqlSafeStr as _, SqlStr, Statement as _, TypeInfo as _, ValueRef as _,
};

use super::connect::{Peer, Route, lost};
use super::pg_read;
use super::pg_write::{self, Parameter};
use super::session::{
    Access, Answer, Bounds, End, Fault, Refusal, Row, Session, SqlError, Statement, millis, unclear,
    unreadable,
};
use crate::kernel::definition::effect::Returned;
use crate::kernel::definition::sql_database::{PoolMode, TlsMode};
use crate::kernel::json::Json;

pub struct Postgres {
    connection: PgConnection,
    pool_mode: PoolMode,
}

impl Postgres {
    pub async fn open(peer: &Peer, route: &Route) -> Result<Self, SqlError> {
        let url = &peer.url;
        let mut options = sqlx::postgres::PgConnectOptions::new_without_pgpass()
            .host(&route.host)
            .port(url.port)
            // Values go in their binary form; a pooler would have to know the setting.
            .extra_float_digits(None)
            .username(url.user.as_deref().unwrap_or("postgres"))
            .password(&peer.password)
            .database(&url.database)
            .application_name(url.application.as_deref().unwrap_or("saga-runner"))
            .ssl_mode(match url.tls {
                TlsMode::Disable => PgSslMode::Disable,
                TlsMode::Prefer => PgSslMode::Prefer,
                TlsMode::Require => PgSslMode::Require,
                TlsMode::VerifyCa => PgSslMode::VerifyCa,
                TlsMode::VerifyFull => PgSslMode::VerifyFull,
            });
        if let Some(file) = &url.root_certificate {
            options = options.ssl_root_cert(file);
        }
        if let (Some(certificate), Some(key)) = (&url.client_certificate, &url.client_key) {
            options = options.ssl_client_cert(certificate).ssl_client_key(key);
        }
        if let Some(relay) = &route.relay {
            options = options.socket(relay.folder());
        }
        if url.pool_mode == PoolMode::Transaction {
            options = options.statement_cache_capacity(0);
        }
        let connection = options.disable_statement_logging().connect().await;
        Ok(Self {
            connection: connection.map_err(failed)?,
            pool_mode: url.pool_mode,
        })
    }

    /// The types that the database gives the values of a statement, and the statement itself, in which values that have
    /// no binary form here are texts that the database reads.
    async fn prepared(&mut self, statement: &Statement) -> Result<(SqlStr, Vec<PgTypeInfo>), SqlError> {
        let prepared = self
            .connection
            .prepare(statement.text.clone())
            .await
            .map_err(failed)?;
        let types = match prepared.parameters() {
            Some(Either::Left(types)) => types.to_vec(),
            Some(Either::Right(_)) | None => Vec::new(),
        };
        if types.iter().all(pg_write::is_binary) {
            return Ok((statement.text.clone(), types));
        }
        let text = statement.source.written(|number| match types.get(number - 1) {
            Some(type_info) if !pg_write::is_binary(type_info) => {
                let text = if pg_write::is_list(type_info) {
                    "text[]"
                } else {
                    "text"
                };
                // The name is the database's own, quoted by it where that is needed; the driver writes one of them large.
                let name = match type_info.name() {
                    "\"CHAR\"" => "\"char\"",
                    // Without a length it would be that of one bit.
                    "BIT" => "varbit",
                    "BIT[]" => "varbit[]",
                    name => name,
                };
                format!("CAST(CAST(${number} AS {text}) AS {name})")
            }
            Some(_) | None => format!("${number}"),
        });
        Ok((AssertSqlSafe(text).into_sql_str(), types))
    }
}

/// Limits of one transaction: whatever pools connections between here and the server keeps no setting of it.
fn limits(limit: Duration) -> String {
    let ms = millis(limit);
    format!(
        "SET LOCAL statement_timeout = {ms}; SET LOCAL lock_timeout = {ms}; \
         SET LOCAL idle_in_transaction_session_timeout = {ms}"
    )
}

#[async_trait]
impl Session for Postgres {
    async fn begin(&mut self, access: Access, limit: Duration) -> Result<(), SqlError> {
        let begin = match access {
            Access::ReadOnly => "BEGIN READ ONLY",
            Access::ReadWrite => "BEGIN",
        };
        self.control(&format!("{begin}; {}", limits(limit))).await
    }

    async fn bound(&mut self, limit: Duration) -> Result<(), SqlError> {
        self.control(&limits(limit)).await
    }

    async fn end(&mut self, end: End) -> Result<(), SqlError> {
        // The next transaction may be on another connection, and this connection with another client, so no statement
        // stays prepared. It is one message, so that a pooler hands the connection on behind both.
        self.control(match (end, self.pool_mode) {
            (End::Commit, PoolMode::Session) => "COMMIT",
            (End::Commit, PoolMode::Transaction) => "DEALLOCATE ALL; COMMIT",
            (End::RollBack, PoolMode::Session) => "ROLLBACK",
            (End::RollBack, PoolMode::Transaction) => "ROLLBACK; DEALLOCATE ALL",
        })
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
        let (text, types) = self.prepared(statement).await?;
        let mut arguments = PgArguments::default();
        for (parameter, type_info) in types.iter().enumerate() {
            let value = statement.order.get(parameter).and_then(|at| values.get(*at));
            let value = value.unwrap_or(&Json::Null);
            let parameter = Parameter::of(value, type_info)
                .map_err(|why| SqlError::Bind(format!("${}: {why}", parameter + 1)))?;
            arguments
                .add(parameter)
                .map_err(|error| SqlError::Bind(error.to_string()))?;
        }
        let mut answer = Answer::default();
        let query = sqlx::query_with(text, arguments).persistent(self.pool_mode == PoolMode::Session);
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

fn read(row: &PgRow) -> Result<(Row, usize), SqlError> {
    let mut members = Row::default();
    let mut size = 0;
    for column in row.columns() {
        let name = column.name();
        let type_name = || column.type_info().name().to_owned();
        let value = row
            .try_get_raw(column.ordinal())
            .map_err(|_| unclear(name, &type_name()))?;
        let value = if value.is_null() {
            Json::Null
        } else {
            let bytes = value.as_bytes().map_err(|_| unclear(name, &type_name()))?;
            size += bytes.len();
            match pg_read::value(bytes, column.type_info()) {
                Ok(value) => value,
                Err(pg_read::Fault::Type) => return Err(unreadable(name, &type_name())),
                Err(pg_read::Fault::Value) => return Err(unclear(name, &type_name())),
            }
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
    let Some(error) = error.try_downcast_ref::<PgDatabaseError>() else {
        return SqlError::Lost(error.message().to_owned());
    };
    SqlError::Refused(Refusal {
        fault: fault(error.code(), error.message()),
        sqlstate: Some(error.code().to_owned()),
        code: None,
        constraint: error.constraint().map(str::to_owned),
        message: error.message().to_owned(),
    })
}

/// What a SQLSTATE means.
fn fault(sqlstate: &str, message: &str) -> Fault {
    match sqlstate {
        "23505" => Fault::Unique,
        "23503" => Fault::ForeignKey,
        "23514" => Fault::Check,
        "23502" => Fault::NotNull,
        "23P01" => Fault::Exclusion,
        "40001" | "40P01" | "55P03" => Fault::Conflict,
        // Each of them ends the transaction, a commit that is under way too.
        "57014" | "25P03" | "25P04" => Fault::Ended,
        "0A000" if message.contains("cached plan") => Fault::Stale,
        "26000" => Fault::Stale,
        "42P01" => Fault::NoTable,
        "42703" => Fault::NoColumn,
        "25006" => Fault::ReadOnly,
        code => match code.get(..2) {
            // Connection, resources, operator, system, inside.
            Some("08" | "53" | "57" | "58" | "XX") => Fault::Unavailable,
            _ => Fault::Other,
        },
    }
}
