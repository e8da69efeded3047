//! A worker with one effect, and a database of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use saga_runner::effects::consumers::Scope;
use saga_runner::effects::{self, BuiltIn, Consumer, Consumers, Worker, WorkerError, WorkerSpec};
use saga_runner::inproc::{self, InprocBroker};
use saga_runner::kernel::definition::{EffectDefinition, SourceFile, load};
use saga_runner::kernel::duration::Millis;
use saga_runner::kernel::envelope::{ANNOUNCED_HEADER, CommandMetadata, EffectCommand};
use saga_runner::kernel::ids::{CommandId, Key, SagaName, TenantId, TimeMs};
use saga_runner::kernel::subject::{Subject, Tenancy};
use saga_runner::ports::broker::{Broker, Expect, Publication, StreamSpec, WorkflowStreams};
use saga_runner::ports::clock::Clock;
use saga_runner::tasks::Tasks;
use saga_runner::telemetry::Metrics;
use serde_json::Value;
use serde_json::value::RawValue;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use uuid::Uuid;

use crate::support::databases::{Kind, shared};

pub const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> TimeMs {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        TimeMs(i64::try_from(since.as_millis()).unwrap())
    }

    fn monotonic(&self) -> Duration {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }
}

/// A broker in this process, its streams, and the address that effects find as `upstreams.ledger`.
pub struct Rig {
    _dir: tempfile::TempDir,
    pub broker: Arc<dyn Broker>,
    pub streams: WorkflowStreams,
    pub metrics: Arc<Metrics>,
    pub database: String,
    pub settings: effects::Settings,
    pub secrets: BTreeMap<String, String>,
}

pub fn streams() -> WorkflowStreams {
    WorkflowStreams {
        cluster: "test".to_owned(),
        commands: "WORKFLOW_COMMANDS".to_owned(),
        events: "WORKFLOW_EVENTS".to_owned(),
    }
}

pub async fn ensure_streams(broker: &dyn Broker) {
    let streams = streams();
    for (name, kinds) in [
        (
            &streams.commands,
            ["effect", "effect_progress", "effect_cancel", "workflow"].as_slice(),
        ),
        (&streams.events, ["effect_result", "workflow_event"].as_slice()),
    ] {
        let spec = StreamSpec {
            name: name.clone(),
            subjects: kinds.iter().map(|kind| format!("tenant.*.{kind}.>")).collect(),
            replicas: 1,
            message_bytes_max: 1024 * 1024,
            foreign: false,
        };
        broker.ensure_stream(&spec).await.unwrap();
    }
}

impl Rig {
    pub async fn new(database: String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let broker =
            InprocBroker::open(dir.path(), inproc::Settings::default(), Arc::new(RealClock)).unwrap();
        ensure_streams(&*broker).await;
        Self {
            _dir: dir,
            broker,
            streams: streams(),
            metrics: Arc::new(Metrics::new()),
            database,
            settings: effects::Settings {
                ack_wait: Millis(2_000),
                ..effects::Settings::default()
            },
            secrets: BTreeMap::new(),
        }
    }

    pub fn try_worker(&self, effect: Arc<EffectDefinition>) -> Result<Worker, WorkerError> {
        let effects = vec![effect];
        Worker::start(&WorkerSpec {
            broker: Arc::clone(&self.broker),
            consumers: consumers(&effects),
            effects,
            tenancy: Tenancy::Multi,
            streams: self.streams.clone(),
            settings: self.settings.clone(),
            secrets: Arc::new(saga_runner::effects::Secrets::new(&self.secrets)),
            providers: Arc::new(BuiltIn::calling(BTreeMap::from([(
                "ledger".to_owned(),
                self.database.clone(),
            )]))),
            clock: Arc::new(RealClock),
            tasks: Tasks::new(&self.metrics, &(Arc::new(RealClock) as Arc<dyn Clock>)),
            metrics: Arc::clone(&self.metrics),
            name: Uuid::new_v4().simple().to_string().into(),
            group: "test".to_owned(),
            local: None,
        })
    }

    pub fn worker(&self, effect: &str) -> Worker {
        self.try_worker(definition(effect)).unwrap()
    }

    /// Carries out one command of a new effect.
    pub async fn once(&self, sql: &str, input: Value) -> Value {
        let text = effect(sql);
        let _worker = self.worker(&text);
        let id = send(&*self.broker, input, None).await;
        self.result(id).await
    }

    pub async fn result(&self, id: Uuid) -> Value {
        result(&*self.broker, id).await
    }
}

/// The text of an effect, from its `sql` section and what follows it.
pub fn effect(sql: &str) -> String {
    format!("apiVersion: sagas/v1\nkind: Effect\nname: ledger-book\n{sql}")
}

pub fn definition(text: &str) -> Arc<EffectDefinition> {
    let file = SourceFile {
        path: "ledger-book.yaml".to_owned(),
        text: Arc::from(text),
    };
    let mut loaded = load(&[], &[file]);
    let errors: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
    loaded
        .effects
        .pop()
        .unwrap_or_else(|| panic!("{text}\n{errors:?}"))
}

/// Publishes a command; the key makes it the repetition of another.
pub async fn send(broker: &dyn Broker, input: Value, key: Option<&str>) -> Uuid {
    send_due(broker, input, key, 600_000).await
}

/// Publishes a command whose deadline is so many milliseconds away.
pub async fn send_due(broker: &dyn Broker, input: Value, key: Option<&str>, due_ms: i64) -> Uuid {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let id = Uuid::from_u128(
        0x0199_0000_0000_7000_8000_0000_0000_0000 + u128::from(COUNT.fetch_add(1, Ordering::Relaxed)),
    );
    let payload = RawValue::from_string(input.to_string()).unwrap();
    let tenant = TenantId::parse("acme").unwrap();
    let command = EffectCommand {
        progress: None,
        tenant_id: tenant.clone(),
        command_id: CommandId(id),
        effect_name: "ledger-book".parse_name(),
        payload: &payload,
        metadata: CommandMetadata {
            saga: SagaName::parse("order").unwrap(),
            key: Key::parse("o-1").unwrap(),
            correlation_id: "o-1".to_owned(),
            root_correlation_id: None,
            causation_id: "e-1".to_owned(),
            idempotency_key: key.map_or_else(|| id.simple().to_string(), str::to_owned),
            path: "steps.book".to_owned(),
            attempt: 1,
            deadline_ms: RealClock.now().plus_ms(due_ms).0,
            traceparent: None,
            hops: 0,
        },
    };
    let subject = Subject::Effect {
        tenant,
        effect: "ledger-book".parse_name(),
        command: CommandId(id),
    };
    let publication = Publication {
        stream: streams().commands,
        subject: subject.render(),
        // As the runner marks commands of effects that are not called twice.
        headers: vec![(ANNOUNCED_HEADER.to_owned(), "true".to_owned())],
        payload: Bytes::from(serde_json::to_vec(&command).unwrap()),
        expect: Expect::Nothing,
    };
    let begin = Instant::now();
    while let Err(error) = broker.publish(publication.clone()).await {
        assert!(begin.elapsed() < PATIENCE, "{error:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    id
}

trait ParseName {
    fn parse_name(&self) -> saga_runner::kernel::ids::EffectName;
}

impl ParseName for str {
    fn parse_name(&self) -> saga_runner::kernel::ids::EffectName {
        saga_runner::kernel::ids::EffectName::parse(self).unwrap()
    }
}

/// The recorded result of a command, once there is one.
pub async fn result(broker: &dyn Broker, id: Uuid) -> Value {
    let subject = Subject::EffectResult {
        tenant: TenantId::parse("acme").unwrap(),
        effect: "ledger-book".parse_name(),
        command: CommandId(id),
    }
    .render();
    let stored = until(async || {
        let found = broker.last_by_subject(&streams().events, &subject).await;
        found.ok().flatten()
    })
    .await;
    serde_json::from_slice(&stored.payload).unwrap()
}

/// Asks until there is an answer.
pub async fn until<T>(mut question: impl AsyncFnMut() -> Option<T>) -> T {
    tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(answer) = question().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("an answer in time")
}

/// A payload of a result that must be a success.
pub fn payload(result: &Value) -> &Value {
    assert_eq!(result["result_type"], "Succeeded", "{result}");
    &result["payload"]
}

/// The type and class of a result.
pub fn class(result: &Value) -> (&str, &str) {
    (
        result["result_type"].as_str().unwrap(),
        result["payload"]["class"].as_str().unwrap_or_default(),
    )
}

fn fresh_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    format!("books{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A new database of PostgreSQL, with a connection of the test's own.
pub async fn postgres(tables: &str) -> (String, sqlx::PgConnection) {
    let server = tokio::task::spawn_blocking(|| shared(Kind::Postgres))
        .await
        .unwrap();
    let name = fresh_name();
    let mut admin = sqlx::PgConnection::connect(&server.url("postgres"))
        .await
        .unwrap();
    admin
        .execute(AssertSqlSafe(format!("CREATE DATABASE {name}")))
        .await
        .unwrap();
    let url = server.url(&name);
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(tables.to_owned()))
        .execute(&mut connection)
        .await
        .unwrap();
    (url, connection)
}

/// A new file of SQLite.
pub async fn sqlite(tables: &str) -> (String, sqlx::SqliteConnection, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("books.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(&path)
        .create_if_missing(true)
        .busy_timeout(PATIENCE);
    let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(tables.to_owned()))
        .execute(&mut connection)
        .await
        .unwrap();
    (format!("sqlite:{}", path.display()), connection, dir)
}

/// A new database of MariaDB, with a connection of the test's own.
pub async fn mariadb(tables: &str) -> (String, sqlx::MySqlConnection) {
    let server = tokio::task::spawn_blocking(|| shared(Kind::MariaDb))
        .await
        .unwrap();
    let name = fresh_name();
    let mut admin = sqlx::MySqlConnection::connect(&server.url("mysql"))
        .await
        .unwrap();
    admin
        .execute(AssertSqlSafe(format!(
            "CREATE DATABASE {name} CHARACTER SET utf8mb4"
        )))
        .await
        .unwrap();
    let url = server.url(&name);
    let mut connection = sqlx::MySqlConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(tables.to_owned()))
        .execute(&mut connection)
        .await
        .unwrap();
    (url, connection)
}

/// One consumer for each effect.
fn consumers(effects: &[Arc<EffectDefinition>]) -> Vec<Consumer> {
    let scope = Scope {
        group: "test",
        tenancy: Tenancy::Multi,
        tenants: None,
    };
    Consumers::default().plan(scope, effects).expect("it fits")
}
