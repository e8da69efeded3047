//! What operators can ask of a node itself, and what all answers from partitions have in common.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::node::Node;
use super::running::Running;
use super::{consumers, readiness, shards, streams};
use crate::config::{BrokerKind, TenantList};
use crate::intake::decode::{Decoded, Decoder};
use crate::kernel::breaker::BreakerState;
use crate::kernel::definition::{Definition, EffectDefinition};
use crate::kernel::envelope::AggregateEvent;
use crate::kernel::ids::{InstanceId, TenantId, shard_of};
use crate::kernel::input::SourceStream;
use crate::kernel::subject::Subject;
use crate::kernel::token::Callback;
use crate::kernel::trace;
use crate::mdbx;
use crate::ports::broker::{Expect, Message, Publication, PublishError};
use crate::ports::control::{
    BreakerForce, BreakerView, ControlError, DefinitionInfo, DrainStarted, Forced, Health, Info,
    MetricsFormat, NodeControl, Published, RatesView, Readiness, ReloadError, Reloaded, Tenants,
};
use crate::ports::forwarding::Forwarding;
use crate::storage::StorageError;
use crate::tasks::Tasks;

/// Most breakers in one answer.
const BREAKERS_SHOWN_MAX: usize = 1_000;
/// Most breakers in `/info`.
const INFO_BREAKERS_MAX: usize = 100;

fn names(effects: &[Arc<EffectDefinition>], wanted: fn(&EffectDefinition) -> bool) -> Vec<String> {
    let found = effects.iter().filter(|effect| wanted(effect));
    found.map(|effect| effect.name.to_string()).collect()
}

#[async_trait]
impl NodeControl for Node {
    fn info(&self) -> Info {
        let described = |definition: &Arc<Definition>| DefinitionInfo {
            name: definition.name.to_string(),
            hash: definition.hash.to_string(),
        };
        let in_force = self.catalog.now();
        Info {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            cluster: self.manifest.cluster.clone(),
            mode: self.manifest.mode.as_str(),
            broker: match self.manifest.broker.kind {
                BrokerKind::Embedded => "embedded",
                BrokerKind::Nats => "nats",
            },
            shards: self.manifest.shards,
            tenants: self.manifest.tenants.as_ref().map(|tenants| match tenants {
                TenantList::Listed(list) => Tenants::Listed(list.clone()),
                TenantList::Any => Tenants::Any("any"),
            }),
            started: self.started.rfc3339(),
            revision: in_force.revision,
            reload: self.last_reload(),
            sagas: in_force.sagas.iter_active().map(described).collect(),
            effects: names(&in_force.effects, |effect| !effect.is_external()),
            external_effects: names(&in_force.effects, EffectDefinition::is_external),
            consumers: consumers::infos(&self.consumers_seen, &in_force.consumers),
            breakers: self
                .breakers()
                .into_iter()
                .filter(|breaker| breaker.state != BreakerState::Closed || breaker.forced.is_some())
                .take(INFO_BREAKERS_MAX)
                .collect(),
            gateway_breaker: self.gateway_breaker().map(BreakerState::as_str),
        }
    }

    fn alive(&self) -> bool {
        // The handler that asks runs on the same threads as everything else.
        true
    }

    async fn ready(&self) -> Readiness {
        readiness::ready(self).await
    }

    async fn health(&self) -> Health {
        readiness::health(self).await
    }

    fn rates(&self) -> RatesView {
        let hosts = self.running().and_then(Running::hosts).unwrap_or_default();
        self.rates.view(&self.metrics, self.clock.now(), &hosts)
    }

    fn metrics(&self, format: MetricsFormat) -> String {
        // Upstreams of effects that a reload has taken away are not told of any more.
        self.metrics.breakers.reset();
        for breakers in self.running().into_iter().flat_map(Running::breakers) {
            breakers.gauge();
        }
        if let Some(now) = self.gateway_breaker() {
            for state in BreakerState::ALL {
                let gauge = self.metrics.gateway_breaker.with_label_values(&[state.as_str()]);
                gauge.set(i64::from(state == now));
            }
        }
        if let Some(ahead_ms) = self.broker_clock.ahead_ms() {
            #[allow(clippy::cast_precision_loss, reason = "far from 2^52")]
            self.metrics.clock_ahead_seconds.set(ahead_ms as f64 / 1_000.0);
        }
        self.show_storage();
        match format {
            MetricsFormat::Classic => self.metrics.render(),
            MetricsFormat::OpenMetrics => self.metrics.render_open_metrics(),
        }
    }

    fn drain(&self) -> DrainStarted {
        if self.request_drain() {
            DrainStarted::Now
        } else {
            DrainStarted::Before
        }
    }

    async fn reload(&self) -> Result<Reloaded, ReloadError> {
        Self::reload(self).await
    }

    async fn publish_event(
        &self,
        tenant: &TenantId,
        event: Bytes,
        traceparent: Option<String>,
    ) -> Result<Published, ControlError> {
        let envelope: AggregateEvent<'_> = serde_json::from_slice(&event)
            .map_err(|error| ControlError::Invalid(format!("the body is not an event: {error}")))?;
        if envelope.tenant_id != tenant.as_str() {
            return Err(ControlError::Invalid(
                "tenant_id is not the tenant of the path".to_owned(),
            ));
        }
        let Some(event_id) = envelope.event_id.as_deref() else {
            return Err(ControlError::Invalid("event_id is missing".to_owned()));
        };
        let subject = Subject::Aggregate {
            tenant: tenant.clone(),
            aggregate_type: envelope.aggregate_type.clone(),
            aggregate_id: envelope.aggregate_id.clone(),
        };
        // Keyed by the tenant, so that no tenant can take another's id away.
        let id = format!("{}/{event_id}", tenant.as_str());
        let message_id = blake3::hash(id.as_bytes()).to_hex().to_string();
        let publication = Publication {
            stream: streams::name(&self.manifest, SourceStream::AggregateEvents).to_owned(),
            subject: subject.render(),
            headers: traced(traceparent),
            payload: event.clone(),
            expect: Expect::MessageId(message_id),
        };
        self.check_event(&publication)?;
        let published = self.publish(publication.clone()).await?;
        if published.duplicate && self.is_another_event(&publication, &published).await? {
            return Err(ControlError::Mismatch(format!(
                "event_id {event_id} was used before, for another event"
            )));
        }
        Ok(published)
    }

    fn callback(&self, token: &str) -> Option<Callback> {
        self.tokens.as_ref()?.read(token)
    }

    fn forwarding(&self) -> Option<Arc<dyn Forwarding>> {
        // Before everything runs it is not known, and whoever asks is told so.
        let running = self.running().filter(|running| running.common.is_none())?;
        Arc::clone(&running.broker).forwarding()
    }

    fn breakers(&self) -> Vec<BreakerView> {
        let all = self.running().into_iter().flat_map(Running::breakers);
        all.flat_map(|breakers| breakers.view(BREAKERS_SHOWN_MAX))
            .take(BREAKERS_SHOWN_MAX)
            .collect()
    }

    fn force_breaker(
        &self,
        upstream: &str,
        tenant: Option<&TenantId>,
        force: BreakerForce,
    ) -> Result<(), ControlError> {
        let running = self
            .running()
            .ok_or_else(|| ControlError::Unavailable(self.waiting_for()))?;
        let mut all = running.breakers().peekable();
        if all.peek().is_none() {
            let message = "this process runs no effects and submits to no gateway: ask another one";
            return Err(ControlError::Unavailable(message.to_owned()));
        }
        let mut said = all.map(|breakers| breakers.force(upstream, tenant, force));
        match said.find(|said| *said != Forced::Unknown) {
            Some(Forced::Now) => Ok(()),
            Some(Forced::Before) => Err(ControlError::Conflict(format!(
                "the breaker of {upstream:?} is already in this state"
            ))),
            Some(Forced::Unknown) | None => Err(ControlError::NotFound(format!(
                "this process does not call {upstream:?}; `breaker list`, or GET /admin/breakers, has what it calls"
            ))),
        }
    }
}

impl Node {
    /// The way on which other processes send requests here, if this one runs sagas and has others.
    pub(super) fn forwarded(&self) -> Option<Arc<dyn Forwarding>> {
        let running = self.running().filter(|running| running.common.is_some())?;
        Arc::clone(&running.broker).forwarding()
    }

    /// Where the breaker of the gateway stands, if this process submits to one.
    fn gateway_breaker(&self) -> Option<BreakerState> {
        let submitter = self.running()?.submitter()?;
        Some(submitter.breakers().worst())
    }

    pub(super) fn running_or_unavailable(&self) -> Result<&Running, ControlError> {
        let running = self
            .running()
            .ok_or_else(|| ControlError::Unavailable(self.waiting_for()))?;
        if running.common.is_none() {
            return Err(ControlError::Unavailable(
                "this process runs no sagas: ask one in mode saga or combined".to_owned(),
            ));
        }
        Ok(running)
    }

    /// The shard of an instance.
    pub(super) async fn shard(&self, id: &InstanceId) -> Result<shards::Shown, ControlError> {
        let running = self.running_or_unavailable()?;
        let index = shard_of(&id.tenant, &id.key, self.manifest.shards);
        running.shard(index).await
    }

    pub(super) fn decoder(&self) -> Decoder {
        Decoder {
            cluster: self.manifest.cluster.clone(),
            tenancy: self.manifest.tenancy(),
            tenants: self.manifest.tenant_list().map(|list| list.into_iter().collect()),
            limits: self.manifest.limits.clone(),
            tokens: self.tokens.clone(),
            takes_applied: Arc::default(),
            event_id_from: None,
        }
    }

    /// Reads an event as the intake is going to, so that its sender learns of what would be a dead letter.
    fn check_event(&self, publication: &Publication) -> Result<(), ControlError> {
        match self.read_as_intake(SourceStream::AggregateEvents, publication)? {
            Decoded::Event { event, .. } => {
                let defect = self.decoder().check(&event.payload).err();
                defect.map_or(Ok(()), |defect| Err(ControlError::Invalid(defect.message)))
            }
            _ => Ok(()),
        }
    }

    /// Whether the broker took an event for a repetition that is none: the message that it has stored under this id has another
    /// aggregate, type or payload. Metadata may differ, as for the instances.
    async fn is_another_event(
        &self,
        publication: &Publication,
        published: &Published,
    ) -> Result<bool, ControlError> {
        let Some(broker) = self.broker() else {
            return Ok(false);
        };
        let there = broker.message_at(&published.stream, published.sequence).await;
        let there = there.map_err(|error| ControlError::Unavailable(error.to_string()))?;
        // What is trimmed was read.
        let Some(there) = there else {
            return Ok(false);
        };
        if there.subject != publication.subject {
            return Ok(true);
        }
        let stored = Publication {
            payload: there.payload,
            ..publication.clone()
        };
        let stream = SourceStream::AggregateEvents;
        let read = |publication: &Publication| match self.read_as_intake(stream, publication) {
            Ok(Decoded::Event { event, .. }) => Some((event.event_type, event.payload)),
            Ok(_) | Err(_) => None,
        };
        Ok(read(&stored) != read(publication))
    }

    /// Tells how large the files of the open shards are.
    fn show_storage(&self) {
        let bytes = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
        let metrics = &self.metrics;
        let limit = bytes(self.manifest.storage.max_bytes);
        metrics.storage.limit_bytes.set(limit);
        let open = self.running().map(|running| running.shards.all());
        for shard in open.into_iter().flatten() {
            if let Some(size) = mdbx::size(&shards::dir(&self.manifest, shard.index)) {
                let gauge = metrics
                    .storage
                    .bytes
                    .with_label_values(&[&shard.index.to_string()]);
                gauge.set(bytes(size));
            }
        }
    }

    /// Reads what is about to be published as the intake is going to.
    pub(super) fn read_as_intake(
        &self,
        stream: SourceStream,
        publication: &Publication,
    ) -> Result<Decoded, ControlError> {
        let message = Message {
            subject: publication.subject.clone(),
            headers: Vec::new(),
            payload: publication.payload.clone(),
            stream_sequence: 0,
            consumer_sequence: 0,
            delivered: 1,
            pending: 0,
            time: self.clock.now(),
        };
        // Its reason is one of dead letters, and whoever asks hears of the sentence alone.
        self.decoder().decode(stream, &message).map_err(|(_, defect)| {
            if defect.reason == "tenant.unknown" {
                ControlError::NotFound(defect.message)
            } else {
                ControlError::Invalid(defect.message)
            }
        })
    }

    pub(super) async fn publish(&self, publication: Publication) -> Result<Published, ControlError> {
        let stream = publication.stream.clone();
        let broker = self
            .broker()
            .ok_or_else(|| ControlError::Unavailable(self.waiting_for()))?;
        match broker.publish(publication).await {
            Ok(ack) => Ok(Published {
                stream,
                sequence: ack.sequence,
                duplicate: ack.duplicate,
            }),
            Err(PublishError::Refused(message)) => Err(ControlError::Invalid(message)),
            Err(error) => Err(ControlError::Unavailable(error.to_string())),
        }
    }
}

/// Runs a read of the storage where blocking is allowed.
pub(super) async fn blocking<T: Send + 'static>(
    tasks: &Tasks,
    read: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> Result<T, ControlError> {
    match tasks.blocking(read).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(ControlError::Unavailable(error.to_string())),
        Err(error) => Err(ControlError::Unavailable(format!(
            "the read was aborted: {error}"
        ))),
    }
}

/// The headers of a message that belongs to a trace.
pub(super) fn traced(traceparent: Option<String>) -> Vec<(String, String)> {
    let header = traceparent.map(|text| (trace::HEADER.to_owned(), text));
    header.into_iter().collect()
}
