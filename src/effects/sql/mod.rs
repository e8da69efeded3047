//! The SQL provider: the statements of one command in one transaction, with the row that says that it was carried
//! out.
//!
//! A connection whose transaction did not end in an answer of the database is closed, never used again.

mod connect;
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

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::certainty::{Ending, Said};
use super::environment::Environment;
use super::provider::{CallContext, CallFailure, CallOutcome, Provider};
use super::rendering::{Rendering, Verdict};
use super::settings::Settings;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::{SqlCall, SqlExpectation};
use crate::kernel::definition::sql_database::{DatabaseKind, DatabaseUrl};
use crate::kernel::expr::{Budget, Root, Scope, Template};
use crate::kernel::json::Json;

use connect::{Held, Peer, Pool};
use journal::{Claim, Journal};
use outcome::{Stage, Statements, committed_unknown, failure, is_unknown};
use session::{Bounds, End, SqlError, Statement};

/// Most rows that one statement may give.
const ROWS_MAX: usize = 1_000;
/// What is left of an attempt for the commit, at most and as a share of the whole.
const COMMIT_MAX: Duration = Duration::from_secs(1);
const COMMIT_SHARE: u32 = 10;
/// How long a server may go by what it was told last about the time that is left.
const TOLD_FOR: Duration = Duration::from_millis(100);
/// What an orderly end of a failed transaction may take. Beyond that the connection is closed.
const ROLLBACK: Duration = Duration::from_secs(1);
/// How often old rows are looked for, and most batches of them at a time.
const TIDY_EVERY: Duration = Duration::from_hours(1);
const TIDY_BATCHES: usize = 100;
/// What one batch may take.
const TIDY_MAX: Duration = Duration::from_secs(30);

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

/// What outlives one call: an hourly look at old rows may run behind it.
struct Database {
    pool: Pool,
    journal: Option<Journal>,
    tidied: Mutex<Option<Instant>>,
}

impl Sql {
    /// Prepares the statements and reads the address; connects to nothing.
    ///
    /// # Errors
    /// A sentence that says what in the definition or the environment cannot be used.
    pub fn new(
        definition: &Arc<EffectDefinition>,
        call: &SqlCall,
        environment: &Arc<Environment>,
        settings: &Settings,
    ) -> Result<Self, String> {
        let known = environment.secrets();
        let scope = Scope::default()
            .bind(Root::Upstreams, environment.upstreams())
            .bind(Root::Secrets, known.object());
        let rendered = |template: &Template| {
            let mut budget = Budget {
                steps: settings.expression_steps,
            };
            template.render_text(&scope, &mut budget)
        };
        let address = rendered(&call.database).map_err(|error| format!("database: {error}"))?;
        let url = DatabaseUrl::parse(&address).map_err(|error| format!("database: {error}"))?;
        let password = match &call.password {
            None => String::new(),
            Some(template) => rendered(template).map_err(|error| format!("password: {error}"))?,
        };
        connect::check_files(&url).map_err(|error| format!("database: {error}"))?;
        let kind = url.kind;
        if let Some(journal) = &call.journal
            && kind == DatabaseKind::Sqlite
            && journal.table.contains('.')
        {
            return Err(format!("table {}: a file has no schemas", journal.table));
        }
        let question = call
            .statements
            .iter()
            .position(|one| one.text.has_question_mark());
        if let (Some(at), DatabaseKind::MySql | DatabaseKind::Sqlite) = (question, kind) {
            return Err(format!(
                "statement {}: \"?\" is a placeholder there; write $1",
                at + 1
            ));
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

/// How far an attempt got before its commit.
enum Done<'p> {
    /// Everything but the commit.
    Ready(Held<'p>, Vec<u8>),
    /// There is nothing to commit.
    Ended(CallOutcome),
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
                CallOutcome::Failed(CallFailure::of(Ending::LateUnsent, self.is_safe(), message))
            }
            Ok(Done::Ended(outcome)) => outcome,
            Ok(Done::Ready(held, payload)) => {
                let outcome = self.commit(held, payload, begun + call.limit).await;
                self.database.tidy_at_times();
                outcome
            }
        }
    }

    fn is_safe(&self) -> bool {
        self.database.pool.peer().read_only
    }

    fn upstream(&self) -> Option<String> {
        Some(self.database.pool.peer().url.to_string())
    }
}

impl Sql {
    /// Everything up to the commit; nothing has happened before that.
    async fn prepare(
        &self,
        call: &CallContext<'_>,
        command: &Json<'_>,
        values: &[Vec<Json<'static>>],
        until: Instant,
    ) -> Done<'_> {
        let mut made: Option<Result<(), CallFailure>> = None;
        loop {
            let mut held = match self.database.pool.begin(until).await {
                Ok(held) => held,
                Err(error) => return self.refused(&error, Stage::Before, call, command),
            };
            let claim = match &self.database.journal {
                None => Ok(Claim::Ours),
                Some(journal) => journal.claim(&mut held, call).await,
            };
            match claim {
                Ok(Claim::Ours) => return self.carry_out(held, call, command, values, until).await,
                Ok(Claim::Done(payload)) => {
                    roll_back(held).await;
                    return Done::Ended(CallOutcome::Succeeded { payload });
                }
                Ok(Claim::Taken(by)) => {
                    roll_back(held).await;
                    return Done::Ended(CallOutcome::Failed(self.database.taken(call, &by)));
                }
                // Somebody else may make it at the same time, so a failure to do so counts only if it is not there.
                Ok(Claim::NoTable) => {
                    roll_back(held).await;
                    match made {
                        None => made = Some(self.database.make_table(until).await),
                        Some(Err(failure)) => return Done::Ended(CallOutcome::Failed(failure)),
                        Some(Ok(())) => {
                            let message = "the table of commands is gone again";
                            let failure = CallFailure::not_done("permanent", message);
                            return Done::Ended(CallOutcome::Failed(failure));
                        }
                    }
                }
                Err(SqlError::Refused(refusal)) if refusal.fault == session::Fault::NoColumn => {
                    roll_back(held).await;
                    return Done::Ended(CallOutcome::Failed(self.database.outdated(&refusal.message)));
                }
                Err(error) => {
                    let refused = self.refused(&error, Stage::Before, call, command);
                    leave(held, &error).await;
                    return refused;
                }
            }
        }
    }

    /// The statements, the judgement about them, and the result in the row of the command.
    async fn carry_out<'p>(
        &'p self,
        mut held: Held<'p>,
        call: &CallContext<'_>,
        command: &Json<'_>,
        values: &[Vec<Json<'static>>],
        until: Instant,
    ) -> Done<'p> {
        let mut answers = Statements::default();
        let mut told = Instant::now();
        let mut bytes_left = self.settings.response_bytes;
        for (at, (prepared, values)) in self.statements.iter().zip(values).enumerate() {
            let bounds = Bounds {
                rows: ROWS_MAX,
                bytes: bytes_left,
            };
            // The server counts each statement by itself; what is left for all of them is told again only where it
            // has become less.
            let now = Instant::now();
            let bounded = if now.duration_since(told) < TOLD_FOR {
                Ok(())
            } else {
                told = now;
                held.bound(until.saturating_duration_since(now)).await
            };
            let answer = match bounded {
                Ok(()) => held.run(&prepared.statement, values, bounds).await,
                Err(error) => Err(error),
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    let refused = self.refused(&error, Stage::Statement(at + 1), call, command);
                    leave(held, &error).await;
                    return refused;
                }
            };
            bytes_left = bytes_left.saturating_sub(answer.bytes);
            let count = answers.add(answer, prepared.statement.returned);
            if let Some(expect) = &prepared.expect
                && !(expect.rows_min..=expect.rows_max).contains(&count)
            {
                roll_back(held).await;
                let message = format!("statement {}: {count} rows", at + 1);
                return Done::Ended(CallOutcome::Failed(outcome::rejected(&expect.class, message)));
            }
        }
        let response = answers.response();
        let mut verdict = Verdict::on(
            &response,
            &self.definition,
            call,
            command,
            self.settings.expression_steps,
        );
        if let Some(rule) = verdict.rule().filter(|rule| rule.class != "succeeded") {
            roll_back(held).await;
            let message = "a rule of `classify` rejects the answer".to_owned();
            let failure = outcome::rejected("", message).ruled(rule, self.is_safe());
            return Done::Ended(CallOutcome::Failed(failure));
        }
        let payload = match self.result(&mut verdict, &response) {
            Ok(payload) => payload,
            Err(failure) => {
                roll_back(held).await;
                return Done::Ended(CallOutcome::Failed(failure));
            }
        };
        if let Some(journal) = &self.database.journal
            && let Err(error) = journal.complete(&mut held, call.command, &payload).await
        {
            let refused = self.refused(&error, Stage::Completing, call, command);
            leave(held, &error).await;
            return refused;
        }
        Done::Ready(held, payload)
    }

    /// The result, which is rendered before the commit: one that cannot be rendered undoes the statements.
    fn result(&self, verdict: &mut Verdict<'_>, response: &Json<'_>) -> Result<Vec<u8>, CallFailure> {
        if self.definition.result.is_none() {
            return Ok(outcome::plain_result(response));
        }
        let bytes_max = self.settings.response_bytes;
        match verdict.result() {
            CallOutcome::Succeeded { payload } if payload.len() > bytes_max => {
                let message = format!("the result is longer than {bytes_max} bytes");
                Err(outcome::rejected("response.size", message))
            }
            CallOutcome::Succeeded { payload } => Ok(payload),
            CallOutcome::Unusable { class, message, .. } => Err(outcome::rejected(class, message)),
            CallOutcome::Failed(failure) => Err(outcome::rejected(&failure.class, failure.message)),
        }
    }

    /// What an error means: the definition's own rules first, then the built-in ones.
    fn refused<'p>(
        &self,
        error: &SqlError,
        stage: Stage,
        call: &CallContext<'_>,
        command: &Json<'_>,
    ) -> Done<'p> {
        let failure = failure(error, stage, self.is_safe());
        let (SqlError::Refused(refusal), Stage::Statement(_)) = (error, stage) else {
            return Done::Ended(CallOutcome::Failed(failure));
        };
        let response = outcome::refused_response(refusal);
        let steps = self.settings.expression_steps;
        let mut verdict = Verdict::on(&response, &self.definition, call, command, steps);
        Done::Ended(match verdict.rule() {
            None => CallOutcome::Failed(verdict.redacted(failure)),
            Some(rule) if rule.class == "succeeded" => match self.result(&mut verdict, &response) {
                Ok(payload) => CallOutcome::Succeeded { payload },
                Err(failure) => CallOutcome::Failed(failure),
            },
            Some(rule) => CallOutcome::Failed(verdict.redacted(failure.ruled(rule, self.is_safe()))),
        })
    }

    async fn commit(&self, held: Held<'_>, payload: Vec<u8>, until: Instant) -> CallOutcome {
        let ended = tokio::time::timeout_at(until, held.end(End::Commit)).await;
        let ended = ended.unwrap_or_else(|_| Err(SqlError::Lost("no answer in time".to_owned())));
        match ended {
            Ok(()) => CallOutcome::Succeeded { payload },
            // Nothing was changed, so nothing is unknown.
            Err(_) if self.is_safe() => CallOutcome::Succeeded { payload },
            Err(error) if is_unknown(&error) => CallOutcome::Failed(committed_unknown(&error)),
            Err(error) => CallOutcome::Failed(failure(&error, Stage::Commit, false)),
        }
    }
}

/// Ends a transaction that is not to happen.
async fn roll_back(held: Held<'_>) {
    let ended = tokio::time::timeout(ROLLBACK, held.end(End::RollBack)).await;
    if !matches!(ended, Ok(Ok(()))) {
        tracing::debug!(
            ?ended,
            "a transaction was not rolled back; its connection is closed"
        );
    }
}

/// Ends a transaction after an error: in an orderly way where the connection is known to be well.
async fn leave(held: Held<'_>, error: &SqlError) {
    match error {
        SqlError::Refused(refusal) if refusal.fault != session::Fault::Stale => roll_back(held).await,
        _ => drop(held),
    }
}

impl Database {
    /// The key of the command belongs to another one, so nothing is done, neither now nor with the same key.
    fn taken(&self, call: &CallContext<'_>, by: &str) -> CallFailure {
        let table = self.journal.as_ref().map_or("", |journal| &journal.table);
        let metadata = &call.command.metadata;
        tracing::error!(
            tenant = %call.command.tenant_id,
            effect = %call.command.effect_name,
            command = %call.command.command_id,
            key = metadata.idempotency_key,
            by,
            table,
            "idempotency key belongs to another command"
        );
        let message = format!(
            "the idempotency key {} stands in {table} for another command ({by}), of another effect or with another payload",
            metadata.idempotency_key
        );
        CallFailure {
            class: "journal.conflict".into(),
            ..CallFailure::of(Ending::Said(Said::Conflict), false, message)
        }
    }

    /// The table of commands was made for a runner that kept less of them.
    fn outdated(&self, message: &str) -> CallFailure {
        let table = self.journal.as_ref().map_or("", |journal| &journal.table);
        let message = format!(
            "the table {table} has other columns than this runner needs ({message}): when no command of the runner that \
             made it is under way, drop or rename it, and a new one is made (docs/effects.md)"
        );
        CallFailure {
            class: "permanent".into(),
            ..CallFailure::of(Ending::Said(Said::Conflict), false, message)
        }
    }

    /// Makes the table of commands, if the user of the database may.
    async fn make_table(&self, until: Instant) -> Result<(), CallFailure> {
        let Some(journal) = &self.journal else {
            return Ok(());
        };
        let made = async {
            let mut held = self.pool.begin(until).await?;
            for text in journal.definition() {
                if let Err(error) = held.control(&text).await {
                    leave(held, &error).await;
                    return Err(error);
                }
            }
            held.end(End::Commit).await
        };
        match made.await {
            Ok(()) => {
                tracing::info!(table = journal.table, database = %self.pool.peer().url, "command table created");
                Ok(())
            }
            Err(error) => {
                let mut failure = failure(&error, Stage::Before, false);
                let (table, message) = (&journal.table, &failure.message);
                failure.message = format!(
                    "table {table} does not exist and cannot be created (docs/effects.md): {message}"
                );
                Err(failure)
            }
        }
    }

    /// Deletes rows that are older than they are kept, if that was not done within the hour.
    fn tidy_at_times(self: &Arc<Self>) {
        if self.journal.is_none() {
            return;
        }
        let now = Instant::now();
        {
            let mut tidied = self.tidied.lock().expect("nothing panics with the lock held");
            if tidied.is_some_and(|at| now.duration_since(at) < TIDY_EVERY) {
                return;
            }
            *tidied = Some(now);
        }
        let database = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = database.tidy().await {
                tracing::warn!(database = %database.pool.peer().url, ?error, "cannot delete old rows of the command table; will retry");
            }
        });
    }

    async fn tidy(&self) -> Result<(), SqlError> {
        let Some(journal) = &self.journal else {
            return Ok(());
        };
        for _ in 0..TIDY_BATCHES {
            let mut held = self.pool.begin(Instant::now() + TIDY_MAX).await?;
            let more = match journal.tidy(&mut held).await {
                Ok(more) => more,
                Err(error) => {
                    leave(held, &error).await;
                    return Err(error);
                }
            };
            held.end(End::Commit).await?;
            if !more {
                break;
            }
        }
        Ok(())
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
