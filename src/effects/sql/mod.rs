//! The SQL provider: the statements of one command in one transaction, with the row that says that it was carried
//! out.
//!
//! A connection whose transaction did not end in an answer of the database is closed, never used again.
//!
//! `transaction` is the way of one command, `session` what is done with a connection, whatever the database; `mysql`,
//! `postgres` and `sqlite` are the databases. `database` has what outlives a call, `journal` the table of commands.

mod connect;
mod database;
mod journal;
mod mysql;
mod outcome;
mod pg_read;
mod pg_write;
mod postgres;
mod relay;
mod session;
mod sqlite;
#[cfg(test)]
mod tests;
mod transaction;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::certainty::{Ending, SideEffects};
use super::environment::Environment;
use super::provider::{CallContext, CallFailure, CallOutcome, Provider};
use super::rendering::Rendering;
use super::settings::Settings;
use crate::effects::ProviderError;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::{SqlCall, SqlExpectation};
use crate::kernel::definition::sql_database::{DatabaseKind, DatabaseUrl};
use crate::kernel::expr::{Budget, Root, Scope, Template};
use crate::kernel::json::Json;

use connect::{Peer, Pool};
use database::Database;
use journal::Journal;
use session::Statement;
use transaction::Done;

/// What is left of an attempt for the commit, at most and as a share of the whole.
const COMMIT_MAX: Duration = Duration::from_secs(1);
const COMMIT_SHARE: u32 = 10;

pub struct Sql {
    definition: Arc<EffectDefinition>,
    environment: Arc<Environment>,
    settings: Settings,
    database: Arc<Database>,
    statements: Vec<Prepared>,
}

struct Prepared {
    statement: Statement,
    expect: Option<SqlExpectation>,
}

impl Sql {
    /// Prepares the statements and reads the address; connects to nothing.
    ///
    /// # Errors
    /// [`ProviderError`] where something in the definition or the environment cannot be used.
    pub fn new(
        definition: &Arc<EffectDefinition>,
        call: &SqlCall,
        environment: &Arc<Environment>,
        settings: &Settings,
    ) -> Result<Self, ProviderError> {
        let known = environment.secrets();
        let scope = Scope::default()
            .bind(Root::Upstreams, environment.upstreams())
            .bind(Root::Secrets, known.object());
        let rendered = |key: &'static str, template: &Template| {
            let mut budget = Budget {
                steps: settings.expression_steps,
            };
            let text = template.render_text(&scope, &mut budget);
            text.map_err(|error| ProviderError::Expression { key, error })
        };
        let url = DatabaseUrl::parse(&rendered("database", &call.database)?)?;
        let password = match &call.password {
            None => String::new(),
            Some(template) => rendered("password", template)?,
        };
        connect::check_files(&url).map_err(ProviderError::DatabaseFile)?;
        let kind = url.kind;
        if let Some(journal) = &call.journal
            && kind == DatabaseKind::Sqlite
            && journal.table.contains('.')
        {
            return Err(ProviderError::TableSchema(journal.table.clone()));
        }
        let question = call
            .statements
            .iter()
            .position(|one| one.text.has_question_mark());
        if let (Some(at), DatabaseKind::MySql | DatabaseKind::Sqlite) = (question, kind) {
            return Err(ProviderError::Placeholder(at + 1));
        }
        let peer = Peer {
            url,
            password,
            read_only: call.read_only,
            network: environment.network(&settings.egress),
            connect_timeout: Duration::from_millis(definition.connect_timeout_ms),
        };
        let wanted = usize::try_from(definition.limits.concurrency).unwrap_or(usize::MAX);
        let pool = Pool::new(peer, wanted.min(settings.sql_connections).max(1));
        let journal = call.journal.as_ref().map(|journal| Journal::new(journal, kind));
        let prepared = call.statements.iter().map(|one| Prepared {
            statement: Statement::of(&one.text, one.returned, kind),
            expect: one.expect.clone(),
        });
        Ok(Self {
            definition: Arc::clone(definition),
            environment: Arc::clone(environment),
            settings: settings.clone(),
            statements: prepared.collect(),
            database: Arc::new(Database {
                pool,
                journal,
                tidied: Mutex::default(),
            }),
        })
    }

    fn call(&self) -> Option<&SqlCall> {
        match &self.definition.provider {
            crate::kernel::definition::effect::Provider::Sql(call) => Some(call),
            _ => None,
        }
    }

    /// The values of all statements.
    fn values(
        &self,
        call: &CallContext<'_>,
        command: &Json<'_>,
    ) -> Result<Vec<Vec<Json<'static>>>, CallFailure> {
        let steps = self.settings.expression_steps;
        let mut rendering = Rendering::of(call, command, &self.environment, steps);
        let mut all = Vec::new();
        for (at, statement) in self.call().iter().flat_map(|call| &call.statements).enumerate() {
            let mut values = Vec::with_capacity(statement.bind.len());
            for (number, template) in statement.bind.iter().enumerate() {
                let place = format!("statement {}, ${}", at + 1, number + 1);
                let bytes = rendering.json(&place, template)?;
                let value = Json::parse(&bytes, self.settings.json_depth)
                    .map_err(|error| CallFailure::not_done("expression", format!("{place}: {error}")))?;
                values.push(value.into_static());
            }
            all.push(values);
        }
        Ok(all)
    }
}

#[async_trait]
impl Provider for Sql {
    async fn call(&self, call: &CallContext<'_>) -> CallOutcome {
        let command = self.environment.command(call.command);
        let values = match self.values(call, &command) {
            Ok(values) => values,
            Err(failure) => return CallOutcome::Failed(failure),
        };
        let begun = Instant::now();
        let patience = call
            .limit
            .saturating_sub((call.limit / COMMIT_SHARE).min(COMMIT_MAX));
        let work = self.prepare(call, &command, &values, begun + patience);
        let done = tokio::time::timeout_at(begun + patience, work).await;
        match done {
            // Whatever was begun is undone: its connection is closed, and the server was told the same time.
            Err(_) => {
                let message = format!("not done within {} ms", patience.as_millis());
                CallOutcome::Failed(CallFailure::of(Ending::LateUnsent, self.side_effects(), message))
            }
            Ok(Done::Ended(outcome)) => outcome,
            Ok(Done::Ready(held, payload)) => {
                let outcome = self.commit(held, payload, begun + call.limit).await;
                self.database.tidy_at_times();
                outcome
            }
        }
    }

    fn side_effects(&self) -> SideEffects {
        SideEffects::unless(self.database.pool.peer().read_only)
    }

    fn upstream(&self) -> Option<String> {
        Some(self.database.pool.peer().url.to_string())
    }
}

/// JSON has no numbers for these.
fn json_of_double(number: f64) -> Json<'static> {
    if number.is_finite() {
        return Json::Double(number);
    }
    let name = match number {
        number if number.is_nan() => "NaN",
        number if number > 0.0 => "Infinity",
        _ => "-Infinity",
    };
    Json::Str(name.into())
}
