//! A connection to PostgreSQL.

use async_trait::async_trait;
use futures::TryStreamExt as _;
use sqlx::postgres::{PgArguments, PgDatabaseError, PgRow, PgSslMode, PgTypeInfo};
use sqlx::{
    Arguments as _, AssertSqlSafe, Column as _, ConnectOptions as _, Either, Executor as _, PgConnection,
    Row as _, Statement as _, TypeInfo as _, ValueRef as _,
};

use super::connect::{Peer, lost};
use super::pg_read;
use super::pg_write::{self, Parameter};
use super::session::{
    Answer, Bounds, Fault, Refusal, Row, Session, SqlError, Statement, unclear, unreadable,
};
use crate::kernel::definition::effect::Returned;
use crate::kernel::definition::sql_database::TlsMode;
use crate::kernel::json::Json;

pub struct Postgres(PgConnection);

impl Postgres {
    pub async fn open(peer: &Peer, host: &str) -> Result<Self, SqlError> {
        let url = &peer.url;
        let mut options = sqlx::postgres::PgConnectOptions::new_without_pgpass()
            .host(host)
            .port(url.port)
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
        let connection = options.disable_statement_logging().connect().await;
        let mut session = Self(connection.map_err(failed)?);
        let ms = peer.statement_ms;
        // A worker that stands still must not hold locks for longer than its attempt.
        let limits = format!("SET statement_timeout = {ms}; SET idle_in_transaction_session_timeout = {ms}");
        session.control(&limits).await?;
        Ok(session)
    }
}

#[async_trait]
impl Session for Postgres {
    async fn control(&mut self, text: &str) -> Result<(), SqlError> {
        let text = sqlx::raw_sql(AssertSqlSafe(text.to_owned()));
        self.0.execute(text).await.map(drop).map_err(failed)
    }

    async fn run(
        &mut self,
        statement: &Statement,
        values: &[Json<'_>],
        bounds: Bounds,
    ) -> Result<Answer, SqlError> {
        let prepared = self.0.prepare(statement.text.clone()).await.map_err(failed)?;
        let types: &[PgTypeInfo] = match prepared.parameters() {
            Some(Either::Left(types)) => types,
            Some(Either::Right(_)) | None => &[],
        };
        let mut arguments = PgArguments::default();
        for (parameter, type_info) in types.iter().enumerate() {
            let value = statement.order.get(parameter).and_then(|at| values.get(*at));
            let value = value.unwrap_or(&Json::Null);
            let bytes = pg_write::written(value, type_info)
                .map_err(|why| SqlError::Bind(format!("${}: {why}", parameter + 1)))?;
            let parameter = Parameter {
                bytes,
                type_info: type_info.clone(),
            };
            arguments
                .add(parameter)
                .map_err(|error| SqlError::Bind(error.to_string()))?;
        }
        let mut answer = Answer::default();
        let query = sqlx::query_with(statement.text.clone(), arguments);
        let mut stream = self.0.fetch_many(query);
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
        "57014" | "25P03" | "25P04" => Fault::TimedOut,
        "0A000" if message.contains("cached plan") => Fault::Stale,
        "26000" => Fault::Stale,
        "42P01" => Fault::NoTable,
        "25006" => Fault::ReadOnly,
        code => match code.get(..2) {
            // Connection, resources, operator, system, inside.
            Some("08" | "53" | "57" | "58" | "XX") => Fault::Unavailable,
            _ => Fault::Other,
        },
    }
}
