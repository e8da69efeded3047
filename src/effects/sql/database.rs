//! What outlives one call: the connections, and the table of commands, which is made once and tidied now and then.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::connect::Pool;
use super::journal::Journal;
use super::outcome::{Stage, failure};
use super::session::{End, SqlError};
use super::transaction::leave;
use crate::effects::certainty::{Ending, Said, SideEffects};
use crate::effects::provider::{CallContext, CallFailure};

/// How often old rows are looked for, and most batches of them at a time.
const TIDY_EVERY: Duration = Duration::from_hours(1);
const TIDY_BATCHES: usize = 100;
/// What one batch may take.
const TIDY_MAX: Duration = Duration::from_secs(30);

/// What outlives one call: an hourly look at old rows may run behind it.
pub(super) struct Database {
    pub pool: Pool,
    pub journal: Option<Journal>,
    pub tidied: Mutex<Option<Instant>>,
}

impl Database {
    /// The key of the command belongs to another one, so nothing is done, neither now nor with the same key.
    pub(super) fn taken(&self, call: &CallContext<'_>, by: &str) -> CallFailure {
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
            ..CallFailure::of(Ending::Said(Said::Conflict), SideEffects::Possible, message)
        }
    }

    /// The table of commands was made for a runner that kept less of them.
    pub(super) fn outdated(&self, message: &str) -> CallFailure {
        let table = self.journal.as_ref().map_or("", |journal| &journal.table);
        let message = format!(
            "the table {table} has other columns than this runner needs ({message}): when no command of the runner that \
             made it is under way, drop or rename it, and a new one is made (docs/effects.md)"
        );
        CallFailure {
            class: "permanent".into(),
            ..CallFailure::of(Ending::Said(Said::Conflict), SideEffects::Possible, message)
        }
    }

    /// Makes the table of commands, if the user of the database may.
    pub(super) async fn make_table(&self, until: Instant) -> Result<(), CallFailure> {
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
                let mut failure = failure(&error, Stage::Before, SideEffects::Possible);
                let (table, message) = (&journal.table, &failure.message);
                failure.message = format!(
                    "table {table} does not exist and cannot be created (docs/effects.md): {message}"
                );
                Err(failure)
            }
        }
    }

    /// Deletes rows that are older than they are kept, if that was not done within the hour.
    pub(super) fn tidy_at_times(self: &Arc<Self>) {
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
