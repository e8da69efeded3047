//! The table of the commands that a database has carried out, written in the transaction of each.
//!
//! A command's row is put in before its statements, so that another attempt waits for it, and holds the result
//! when the transaction is committed. So whatever became of an attempt, the next one finds out.

use data_encoding::HEXLOWER;

use super::connect::Held;
use super::session::{Bounds, Fault, SqlError, Statement};
use crate::effects::provider::CallContext;
use crate::kernel::definition::effect::{Returned, SqlJournal};
use crate::kernel::definition::sql_database::DatabaseKind;
use crate::kernel::definition::sql_text::SqlText;
use crate::kernel::envelope::EffectCommand;
use crate::kernel::json::Json;

/// Rows that one statement deletes.
const BATCH: i64 = 500;
/// A result was bounded when it was written; refusing it now would call undone what was done.
const BOUNDS: Bounds = Bounds {
    rows: 1,
    bytes: usize::MAX,
};

/// The statements about the table, in the words of one database.
#[derive(Debug)]
pub struct Journal {
    pub table: String,
    kind: DatabaseKind,
    claim: Statement,
    find: Statement,
    complete: Statement,
    tidy: Statement,
    keep_s: i64,
}

/// Whose turn a command is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// This attempt's.
    Ours,
    /// It was carried out before, with this result.
    Done(Vec<u8>),
    /// The key belongs to another command, of this id.
    Taken(String),
    NoTable,
}

impl Journal {
    pub fn new(journal: &SqlJournal, kind: DatabaseKind) -> Self {
        let table = quoted(&journal.table, kind);
        let statement = |text: String, returned: Returned| {
            let text = SqlText::read(&text).expect("the runner's own statements are single ones");
            Statement::of(&text, returned, kind)
        };
        let key = "tenant = $1 AND idempotency_key = $2";
        let columns =
            "(tenant, idempotency_key, effect, command_id, fingerprint) VALUES ($1, $2, $3, $4, $5)";
        // MySQL says in an error that the row is there, the others are asked not to.
        let or_nothing = match kind {
            DatabaseKind::Postgres | DatabaseKind::Sqlite => {
                " ON CONFLICT (tenant, idempotency_key) DO NOTHING"
            }
            DatabaseKind::MySql => "",
        };
        let tidy = match kind {
            DatabaseKind::Postgres => format!(
                "DELETE FROM {table} WHERE ctid IN (SELECT ctid FROM {table} WHERE created_at < \
                 now() - make_interval(secs => $1) LIMIT $2 FOR UPDATE SKIP LOCKED)"
            ),
            DatabaseKind::MySql => format!(
                "DELETE FROM {table} WHERE created_at < UTC_TIMESTAMP(3) - INTERVAL $1 SECOND LIMIT $2"
            ),
            DatabaseKind::Sqlite => format!(
                "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE created_at < \
                 strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || $1 || ' seconds') LIMIT $2)"
            ),
        };
        Self {
            claim: statement(
                format!("INSERT INTO {table} {columns}{or_nothing}"),
                Returned::Count,
            ),
            find: statement(
                format!("SELECT command_id, fingerprint, result FROM {table} WHERE {key}"),
                Returned::Rows,
            ),
            complete: statement(
                format!("UPDATE {table} SET result = $3 WHERE {key}"),
                Returned::Count,
            ),
            tidy: statement(tidy, Returned::Count),
            table: journal.table.clone(),
            kind,
            keep_s: i64::try_from(journal.keep_ms / 1_000).unwrap_or(i64::MAX),
        }
    }

    /// Takes the command for this attempt, behind whoever has it now.
    pub async fn claim(&self, held: &mut Held<'_>, call: &CallContext<'_>) -> Result<Claim, SqlError> {
        let command = call.command;
        let fingerprint = fingerprint(command.effect_name.as_str(), call.input);
        let mut values = key(command).to_vec();
        values.push(Json::Str(command.effect_name.to_string().into()));
        values.push(Json::Str(command.command_id.to_string().into()));
        values.push(Json::Str((&*fingerprint).into()));
        match held.run(&self.claim, &values, BOUNDS).await {
            Ok(answer) if answer.affected == 1 => return Ok(Claim::Ours),
            Ok(_) => {}
            Err(SqlError::Refused(refusal)) if refusal.fault == Fault::NoTable => return Ok(Claim::NoTable),
            Err(SqlError::Refused(refusal))
                if refusal.fault == Fault::Unique && self.kind == DatabaseKind::MySql => {}
            Err(error) => return Err(error),
        }
        let found = held.run(&self.find, &key(command), BOUNDS).await?;
        let column = |name: &str| match found.rows.first().and_then(|row| row.get(name)) {
            Some(Json::Str(text)) => Some(&**text),
            _ => None,
        };
        match (column("fingerprint"), column("result")) {
            (Some(known), _) if known != fingerprint => {
                Ok(Claim::Taken(column("command_id").unwrap_or_default().to_owned()))
            }
            (Some(_), Some(result)) => Ok(Claim::Done(result.as_bytes().to_vec())),
            // It was deleted in between, or is not the runner's.
            _ => Err(SqlError::Lost(format!(
                "the row of the command in {} is gone",
                self.table
            ))),
        }
    }

    /// Adds the result to the row of the command.
    pub async fn complete(
        &self,
        held: &mut Held<'_>,
        command: &EffectCommand<'_>,
        result: &[u8],
    ) -> Result<(), SqlError> {
        let [tenant, key] = key(command);
        let result = Json::Str(String::from_utf8_lossy(result).into_owned().into());
        let answer = held.run(&self.complete, &[tenant, key, result], BOUNDS).await?;
        if answer.affected == 1 {
            return Ok(());
        }
        let reason = format!("a statement has deleted the row of the command in {}", self.table);
        Err(SqlError::Column(reason))
    }

    /// Deletes some rows that are older than they are kept. `true`: there may be more.
    pub async fn tidy(&self, held: &mut Held<'_>) -> Result<bool, SqlError> {
        let values = [Json::Int(self.keep_s), Json::Int(BATCH)];
        let answer = held.run(&self.tidy, &values, BOUNDS).await?;
        Ok(answer.affected >= BATCH.unsigned_abs())
    }

    /// What makes the table; docs/effects.md has the same.
    pub fn definition(&self) -> Vec<String> {
        let table = quoted(&self.table, self.kind);
        let index = self.table.replace('.', "_");
        match self.kind {
            DatabaseKind::Postgres => vec![
                format!(
                    "CREATE TABLE IF NOT EXISTS {table} (tenant text NOT NULL, idempotency_key text NOT NULL, \
                     effect text NOT NULL, command_id text NOT NULL, fingerprint text NOT NULL, result text, \
                     created_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (tenant, idempotency_key))"
                ),
                format!("CREATE INDEX IF NOT EXISTS {index}_created_at ON {table} (created_at)"),
            ],
            DatabaseKind::MySql => vec![format!(
                "CREATE TABLE IF NOT EXISTS {table} (tenant varchar(63) NOT NULL, \
                 idempotency_key varchar(191) NOT NULL, effect varchar(63) NOT NULL, \
                 command_id varchar(63) NOT NULL, fingerprint varchar(63) NOT NULL, result longtext, \
                 created_at datetime(3) NOT NULL DEFAULT (UTC_TIMESTAMP(3)), \
                 PRIMARY KEY (tenant, idempotency_key), KEY created_at (created_at)) \
                 ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
            )],
            DatabaseKind::Sqlite => vec![
                format!(
                    "CREATE TABLE IF NOT EXISTS {table} (tenant TEXT NOT NULL, idempotency_key TEXT NOT NULL, \
                     effect TEXT NOT NULL, command_id TEXT NOT NULL, fingerprint TEXT NOT NULL, result TEXT, \
                     created_at TEXT NOT NULL \
                     DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), PRIMARY KEY (tenant, idempotency_key))"
                ),
                format!("CREATE INDEX IF NOT EXISTS {index}_created_at ON {table} (created_at)"),
            ],
        }
    }
}

/// What a command asks for, which is the same in all attempts: the effect and the payload, not the secrets, the attempt or
/// the deadline.
fn fingerprint(effect: &str, payload: &Json<'_>) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("saga-runner sql journal v1");
    hasher.update(&(effect.len() as u64).to_be_bytes());
    hasher.update(effect.as_bytes());
    let mut bytes = Vec::new();
    payload.write(&mut bytes);
    hasher.update(&bytes);
    let digest = hasher.finalize();
    HEXLOWER.encode(&digest.as_bytes()[..16])
}

fn key(command: &EffectCommand<'_>) -> [Json<'static>; 2] {
    let text = |text: &str| Json::Str(text.to_owned().into());
    [
        text(command.tenant_id.as_str()),
        text(&command.metadata.idempotency_key),
    ]
}

/// A name of small letters, in the quotes of the database.
fn quoted(table: &str, kind: DatabaseKind) -> String {
    let quote = match kind {
        DatabaseKind::MySql => '`',
        DatabaseKind::Postgres | DatabaseKind::Sqlite => '"',
    };
    let parts: Vec<String> = table
        .split('.')
        .map(|part| format!("{quote}{part}{quote}"))
        .collect();
    parts.join(".")
}
