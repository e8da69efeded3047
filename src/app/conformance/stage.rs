//! The streams as the checks see them: commands go in, results and acknowledgements are looked for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::{StartError, SystemClock, streams};
use super::Spec;
use super::process::Process;
use crate::kernel::envelope::{EffectResult, ErrorPayload, ResultType};
use crate::kernel::ids::{CommandId, Key, SagaName};
use crate::kernel::limits::Limits;
use crate::kernel::outcome::{self, Expected, WorkOutcome};
use crate::kernel::subject::{self, Subject};
use crate::nats::{ConsumerView, NatsBroker};
use crate::ports::broker::{
    Broker, BrokerError, Expect, Manner, Publication, PublishError, QueueSpec, ReaderSpec, StoredMessage,
    StreamSpec,
};
use crate::ports::clock::Clock;

/// How often the broker is asked.
const POLL: Duration = Duration::from_millis(100);
/// How long a command is wanted: an hour, in milliseconds.
const WANTED_MS: i64 = 3_600_000;
const RESULTS_AHEAD: usize = 256;

pub struct Stage {
    pub spec: Spec,
    pub broker: Arc<NatsBroker>,
    pub process: Option<Process>,
    pub durable: String,
    commands: String,
    events: String,
    /// Sequence of the first result that can be one of ours.
    from: u64,
    clock: SystemClock,
    trace: u64,
}

/// A command that was published.
#[derive(Debug, Clone)]
pub struct Sent {
    pub id: CommandId,
    pub key: String,
    pub traceparent: String,
    pub body: Bytes,
}

impl Stage {
    pub async fn open(spec: Spec) -> Result<Self, StartError> {
        let failed = |error: &dyn std::fmt::Display| StartError::Broker(error.to_string());
        let broker = NatsBroker::connect(spec.manifest.broker.nats.clone())
            .await
            .map_err(|error| failed(&error))?;
        tokio::time::timeout(spec.timeout, broker.connected())
            .await
            .map_err(|_| failed(&"no connection to nats in time"))?
            .map_err(|error| failed(&error))?;
        let [_, events, commands] = streams::specs(&spec.manifest);
        for stream in [&events, &commands] {
            prepare(&broker, stream).await.map_err(|error| failed(&error))?;
        }
        let state = broker
            .stream_state(&events.name)
            .await
            .map_err(|error| failed(&error))?;
        let process = spec.worker.clone().map(Process::start).transpose()?;
        Ok(Self {
            durable: spec
                .manifest
                .worker
                .consumers
                .of_external(spec.manifest.group(), &spec.effect),
            commands: commands.name,
            events: events.name,
            from: state.last_sequence + 1,
            clock: SystemClock::new(),
            trace: 0,
            process,
            broker,
            spec,
        })
    }

    /// A command that nobody has seen yet, wanted for so long.
    pub fn command(&mut self, wanted_ms: Option<i64>) -> Sent {
        let id = CommandId(Uuid::new_v4());
        self.trace += 1;
        let key = format!("conformance-{}", self.trace);
        let traceparent = format!("00-{}-{:016x}-01", id.0.simple(), self.trace);
        let input = self.spec.input.replace("{id}", &id.to_string());
        let payload: Value = serde_json::from_str(&input).expect("the command line has read it");
        let body = json!({
            "tenant_id": self.spec.tenant,
            "command_id": id,
            "effect_name": self.spec.effect,
            "payload": payload,
            "metadata": {
                "saga": "conformance",
                "key": key,
                "correlation_id": key,
                "causation_id": "conformance",
                "idempotency_key": id.0.simple().to_string(),
                "path": "steps.check",
                "attempt": 1,
                "deadline_ms": self.clock.now().plus_ms(wanted_ms.unwrap_or(WANTED_MS)).0,
                "traceparent": traceparent,
            },
        });
        Sent {
            id,
            key,
            traceparent,
            body: body.to_string().into(),
        }
    }

    pub fn command_subject(&self, id: CommandId) -> String {
        Subject::Effect {
            tenant: self.spec.tenant.clone(),
            effect: self.spec.effect.clone(),
            command: id,
        }
        .render()
    }

    pub fn result_subject(&self, id: CommandId) -> String {
        Subject::EffectResult {
            tenant: self.spec.tenant.clone(),
            effect: self.spec.effect.clone(),
            command: id,
        }
        .render()
    }

    /// Publishes a command as it is.
    pub async fn send(&self, sent: &Sent) -> Result<(), String> {
        self.publish(
            &self.commands,
            self.command_subject(sent.id),
            sent.body.clone(),
            Expect::Nothing,
        )
        .await
    }

    /// Publishes any message for the worker.
    pub async fn send_raw(&self, subject: String, body: Bytes) -> Result<(), String> {
        self.publish(&self.commands, subject, body, Expect::Nothing).await
    }

    /// So many new commands.
    pub async fn send_many(&mut self, count: usize) -> Result<Vec<Sent>, String> {
        let mut sent = Vec::with_capacity(count);
        for _ in 0..count {
            let command = self.command(None);
            self.send(&command).await?;
            sent.push(command);
        }
        Ok(sent)
    }

    /// Records a result as another worker would have.
    pub async fn answer(&self, sent: &Sent) -> Result<(), String> {
        let body = json!({
            "tenant_id": self.spec.tenant,
            "command_id": sent.id,
            "effect_name": self.spec.effect,
            "result_type": "Failed",
            "payload": {"class": "conformance", "message": "recorded before the command"},
            "timestamp": "1970-01-01T00:00:00Z",
            "metadata": {"saga": "conformance", "key": sent.key, "correlation_id": sent.key},
        });
        let body = body.to_string().into();
        self.publish(
            &self.events,
            self.result_subject(sent.id),
            body,
            Expect::FirstOnSubject,
        )
        .await
    }

    async fn publish(
        &self,
        stream: &str,
        subject: String,
        payload: Bytes,
        expect: Expect,
    ) -> Result<(), String> {
        let publication = Publication {
            stream: stream.to_owned(),
            subject,
            headers: Vec::new(),
            payload,
            expect,
        };
        match self.broker.publish(publication).await {
            Ok(_) | Err(PublishError::AlreadyThere) => Ok(()),
            Err(error) => Err(format!("a message cannot be published: {error}")),
        }
    }

    /// Asks until there is an answer, for as long as a check may take.
    pub async fn until<T>(
        &self,
        patience: Duration,
        what: &str,
        mut ask: impl AsyncFnMut() -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        let begin = self.clock.monotonic();
        loop {
            if let Some(found) = ask().await? {
                return Ok(found);
            }
            if self.clock.monotonic().saturating_sub(begin) > patience {
                return Err(format!("{what} within {} s", patience.as_secs()));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The recorded result of a command, held against its envelope.
    pub async fn result(&self, sent: &Sent, patience: Duration) -> Result<ResultType, String> {
        let subject = self.result_subject(sent.id);
        let what = format!("no result on {subject}");
        let stored = self
            .until(patience, &what, async || {
                let last = self.broker.last_by_subject(&self.events, &subject).await;
                last.map_err(|error| error.to_string())
            })
            .await?;
        self.fits(sent, &stored)
            .map_err(|reason| format!("the result on {subject}: {reason}"))
    }

    fn fits(&self, sent: &Sent, stored: &StoredMessage) -> Result<ResultType, String> {
        let result: EffectResult<'_> = serde_json::from_slice(&stored.payload)
            .map_err(|error| format!("is not a valid effect-result.json: {error}"))?;
        let expected = Expected {
            tenant: None,
            effect: &result.effect_name,
            command: result.command_id,
        };
        let read = outcome::read(expected, &stored.payload, &Limits::default());
        if let (WorkOutcome::TimedOut { message, .. }, true) =
            (&read.outcome, result.result_type != ResultType::TimedOut)
        {
            return Err(message.clone());
        }
        let same = |what: &str, found: &str, wanted: &str| {
            let wrong = || format!("{what} is {found:?}, expected {wanted:?}");
            (found == wanted).then_some(()).ok_or_else(wrong)
        };
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        same("tenant_id", result.tenant_id.as_str(), self.spec.tenant.as_str())?;
        same("command_id", &result.command_id.to_string(), &sent.id.to_string())?;
        same(
            "effect_name",
            result.effect_name.as_str(),
            self.spec.effect.as_str(),
        )?;
        let metadata = &result.metadata;
        same(
            "metadata.saga",
            &text(metadata.saga.as_ref().map(SagaName::as_str)),
            "conformance",
        )?;
        same(
            "metadata.key",
            &text(metadata.key.as_ref().map(Key::as_str)),
            &sent.key,
        )?;
        same(
            "metadata.correlation_id",
            &text(metadata.correlation_id.as_deref()),
            &sent.key,
        )?;
        same(
            "metadata.traceparent",
            &text(metadata.traceparent.as_deref()),
            &sent.traceparent,
        )?;
        let header = stored.headers.iter().find(|(name, _)| name == "traceparent");
        same(
            "header traceparent",
            &text(header.map(|(_, value)| value.as_str())),
            &sent.traceparent,
        )?;
        if !result.timestamp.is_empty() && result.timestamp.parse::<jiff::Timestamp>().is_err() {
            return Err(format!("timestamp {:?} is not RFC 3339", result.timestamp));
        }
        if result.result_type != ResultType::Succeeded {
            let payload: ErrorPayload = serde_json::from_str(result.payload.get())
                .map_err(|error| format!("the payload of a failure is {{class, message}}: {error}"))?;
            let unfit = |c: char| c.is_control() || c.is_whitespace();
            if payload.class.is_empty() || payload.class.len() > 128 || payload.class.contains(unfit) {
                return Err(format!(
                    "class {:?} is not a word of 1 to 128 bytes",
                    payload.class
                ));
            }
        }
        Ok(result.result_type)
    }

    /// The consumer that the workers share.
    pub async fn consumer(&self) -> Result<Option<ConsumerView>, String> {
        let found = self.broker.consumer(&self.commands, &self.durable).await;
        found.map_err(|error| error.to_string())
    }

    /// Waits until all commands are acknowledged.
    pub async fn idle(&self, patience: Duration) -> Result<(), String> {
        self.until(patience, "not every command was acknowledged", async || {
            let consumer = self.consumer().await?;
            Ok(consumer.filter(|consumer| consumer.pending + consumer.unacknowledged == 0))
        })
        .await
        .map(drop)
    }

    /// How many results stand on each subject of the tenant's effect, since the beginning of the checks.
    pub async fn results(&self) -> Result<BTreeMap<String, usize>, String> {
        let failed = |error: &dyn std::fmt::Display| format!("the results cannot be read: {error}");
        let (tenancy, effect) = (self.spec.manifest.tenancy(), self.spec.effect.as_str());
        let spec = ReaderSpec {
            stream: self.events.clone(),
            filters: vec![subject::filter(tenancy, None, "effect_result", Some(effect))],
            start_sequence: self.from,
            name: format!("conformance-{}", Uuid::new_v4().simple()),
            buffer: RESULTS_AHEAD,
        };
        let state = self
            .broker
            .stream_state(&self.events)
            .await
            .map_err(|error| failed(&error))?;
        let mut reader = self.broker.reader(spec).await.map_err(|error| failed(&error))?;
        let mut found = BTreeMap::new();
        let (mut taken, mut covered) = (0, 0);
        while covered < state.last_sequence {
            if let Some(message) = reader.ready() {
                let message = message.map_err(|error| failed(&error))?;
                taken = message.stream_sequence;
                *found.entry(message.subject).or_default() += 1;
                continue;
            }
            match reader.horizon().await.map_err(|error| failed(&error))? {
                Some(horizon) if horizon.after <= taken => covered = horizon.covered,
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        Ok(found)
    }

    /// Takes one command out of the queue as a member of it, and gives it back at once.
    pub async fn deliver_once(&self, consumer: &ConsumerView, patience: Duration) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| format!("the queue cannot be joined: {error}");
        let spec = QueueSpec {
            stream: self.commands.clone(),
            filters: vec![self.filter()],
            durable: self.durable.clone(),
            group: None,
            // As they are: nothing is changed for the workers.
            ack_wait: consumer.ack_wait,
            max_unacknowledged: consumer.max_unacknowledged,
            buffer: 1,
            manner: Manner::default(),
        };
        let mut queue = self.broker.queue(spec).await.map_err(|error| failed(&error))?;
        let next = tokio::time::timeout(patience, queue.next()).await;
        let delivery = next
            .map_err(|_| "the queue gives no command".to_owned())?
            .map_err(|error| failed(&error))?;
        queue.close().await;
        delivery
            .receipt
            .nak(Duration::ZERO)
            .await
            .map_err(|error| failed(&error))?;
        self.broker.flush().await.map_err(|error| failed(&error))
    }

    /// What the consumer has to match.
    pub fn filter(&self) -> String {
        let effect = Some(self.spec.effect.as_str());
        subject::filter(self.spec.manifest.tenancy(), None, "effect", effect)
    }
}

/// Creates what is missing, and changes nothing that is there.
async fn prepare(broker: &NatsBroker, spec: &StreamSpec) -> Result<(), BrokerError> {
    match broker.stream_state(&spec.name).await {
        Err(BrokerError::NoStream(_)) => broker.ensure_stream(spec).await.map(drop),
        other => other.map(drop),
    }
}
