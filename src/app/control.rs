//! What operators can ask of a node.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;

use super::node::Node;
use super::pages::{self, read_letter_id};
use super::running::Running;
use super::{
    accept, aliases, answers, consumers, held, inputs, migration, readiness, schedules, shard_verbs, shards,
    streams, versions,
};
use crate::config::{BrokerKind, TenantList};
use crate::intake::decode::{Decoded, Decoder};
use crate::kernel::alias::Alias;
use crate::kernel::breaker::BreakerState;
use crate::kernel::definition::model::Reuse;
use crate::kernel::definition::{Definition, EffectDefinition};
use crate::kernel::envelope::{AggregateEvent, ControlMessage, ControlVerb};
use crate::kernel::ids::{InstanceId, SagaName, TenantId, shard_of};
use crate::kernel::input::{Control as ControlInput, SourceStream};
use crate::kernel::record::Phase;
use crate::kernel::subject::Subject;
use crate::kernel::token::Callback;
use crate::kernel::transition::check_input;
use crate::kernel::view::{BlockedView, InstanceView, Kept};
use crate::ports::broker::{Expect, Message, Publication, PublishError};
use crate::ports::control::{
    AcceptReport, AcceptRequest, AcceptVerb, AliasView, BreakerForce, BreakerView, Control, ControlError,
    DeadLetterView, Decision, DefinitionDetail, DefinitionInfo, DefinitionView, DrainStarted, Health,
    HistoryView, Info, InstanceDetail, MigrationReport, MigrationRequest, Page, PageRequest, Published,
    Readiness, RecordedInputs, ReloadError, Reloaded, ScheduleOrder, ScheduleView, ShardView, Tenants,
    rfc3339,
};
use crate::ports::held::{HeldReport, HeldRequest, HeldVerb, PendingReport};
use crate::shard::mailbox::{DeadLetterDecision, Mail, Refused};
use crate::storage::StorageError;
use crate::storage::read::Found;
use crate::storage::rows::HistoryRow;
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
impl Control for Node {
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
            started: rfc3339(self.started),
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

    fn metrics(&self) -> String {
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
        self.metrics.render()
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

    async fn publish_event(&self, tenant: &TenantId, event: Bytes) -> Result<Published, ControlError> {
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
            headers: Vec::new(),
            payload: event.clone(),
            expect: Expect::MessageId(message_id),
        };
        self.check_event(&publication)?;
        self.publish(publication).await
    }

    async fn start(
        &self,
        instance: &InstanceId,
        request_id: &str,
        input: serde_json::Map<String, serde_json::Value>,
    ) -> Result<Published, ControlError> {
        let sagas = &self.catalog.now().sagas;
        let Some(definition) = sagas.active(&instance.saga) else {
            return Err(ControlError::NotFound(format!("no saga {}", instance.saga)));
        };
        let text = serde_json::Value::Object(input.clone()).to_string();
        schedules::check_key(&instance.key)?;
        check_input(definition, text.as_bytes(), &self.manifest.limits).map_err(ControlError::Invalid)?;
        match self.instance(instance, 0).await {
            // The same request again: its message is recognised.
            Ok(found) if found.instance.start_event == request_id => {}
            Ok(found) if may_follow(definition.lifecycle.reuse, found.instance.phase) => {}
            Ok(_) => {
                let message = format!("instance {} of saga {} is there", instance.key, instance.saga);
                return Err(ControlError::Conflict(message));
            }
            Err(ControlError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        self.control(instance, request_id, ControlVerb::Start { input, parent: None })
            .await
    }

    fn callback(&self, token: &str) -> Option<Callback> {
        self.tokens.as_ref()?.read(token)
    }

    async fn control(
        &self,
        instance: &InstanceId,
        request_id: &str,
        verb: ControlVerb,
    ) -> Result<Published, ControlError> {
        answers::check(self, instance, &verb).await?;
        let subject = Subject::Workflow {
            tenant: instance.tenant.clone(),
            saga: instance.saga.clone(),
            key: instance.key.clone(),
        };
        let message = ControlMessage {
            request_id: request_id.to_owned(),
            verb,
        };
        let payload = serde_json::to_vec(&message).expect("a control message is plain data");
        let id = format!("{instance}/{request_id}");
        let publication = Publication {
            stream: streams::name(&self.manifest, SourceStream::WorkflowCommands).to_owned(),
            subject: subject.render(),
            headers: Vec::new(),
            payload: payload.into(),
            expect: Expect::MessageId(blake3::hash(id.as_bytes()).to_hex().to_string()),
        };
        let read = self.read_as_intake(SourceStream::WorkflowCommands, &publication)?;
        // What starts an instance was checked before.
        if let Decoded::Control { control, .. } = read
            && !matches!(control, ControlInput::Start { .. })
        {
            answers::check_use(self, instance, request_id, control).await?;
        }
        self.publish(publication).await
    }

    async fn instances(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        page: PageRequest,
    ) -> Result<Page<InstanceView>, ControlError> {
        pages::instances(self, tenant, saga, page).await
    }

    async fn instance(&self, id: &InstanceId, history: usize) -> Result<InstanceDetail, ControlError> {
        let reader = self.shard(id).await?.reader;
        let owned = id.clone();
        let found = blocking(&self.tasks, move || {
            let Some(found) = reader.instance(&owned)? else {
                return Ok(None);
            };
            let last = match &found {
                Found::Live(record) => record.last_history,
                Found::Ended(summary) => summary.record.last_history,
            };
            let rows = reader.history(last, history)?;
            let kept = reader.kept(&owned)?;
            Ok(Some((found, rows, kept)))
        })
        .await?;
        let Some((found, rows, kept)) = found else {
            return Err(ControlError::NotFound(answers::missing(id)));
        };
        Ok(InstanceDetail {
            instance: self.view(id, &found, kept),
            history: rows.into_iter().map(|(_, row)| self.history_view(row)).collect(),
        })
    }

    async fn inputs(&self, id: &InstanceId) -> Result<RecordedInputs, ControlError> {
        inputs::recorded(self, id).await
    }

    async fn dead_letters(
        &self,
        tenant: &TenantId,
        page: PageRequest,
    ) -> Result<Page<DeadLetterView>, ControlError> {
        pages::dead_letters(self, tenant, page).await
    }

    async fn definitions(&self) -> Result<Vec<DefinitionView>, ControlError> {
        versions::list(self).await
    }

    async fn definition(&self, hash: &str) -> Result<DefinitionDetail, ControlError> {
        versions::show(self, hash).await
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
        if all.any(|breakers| breakers.force(upstream, tenant, force)) {
            Ok(())
        } else {
            Err(ControlError::NotFound(format!(
                "nothing of this process calls {upstream:?}; GET /admin/breakers lists what is called"
            )))
        }
    }

    async fn migrate(&self, hash: &str, request: MigrationRequest) -> Result<MigrationReport, ControlError> {
        let version = versions::named(self, hash).await?;
        migration::run(self, version, request).await
    }

    async fn migration(&self, id: &str) -> Result<MigrationReport, ControlError> {
        migration::report(self, id).await
    }

    async fn alias(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        alias: &Alias,
    ) -> Result<AliasView, ControlError> {
        aliases::show(self, tenant, saga, alias).await
    }

    async fn schedules(&self, tenant: &TenantId) -> Result<Vec<ScheduleView>, ControlError> {
        schedules::list(self, tenant).await
    }

    async fn order_schedule(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        order: ScheduleOrder,
    ) -> Result<(), ControlError> {
        schedules::order(self, tenant, saga, order).await
    }

    async fn shards(&self) -> Result<Vec<ShardView>, ControlError> {
        shard_verbs::list(self).await
    }

    async fn open_shard(&self, shard: u16) -> Result<(), ControlError> {
        Self::open_shard(self, shard).await
    }

    async fn close_shard(&self, shard: u16) -> Result<(), ControlError> {
        let timeout = self.manifest.drain_timeout.duration();
        Self::close_shard(self, shard, timeout).await
    }

    async fn accept(
        &self,
        shard: u16,
        verb: AcceptVerb,
        request: AcceptRequest,
    ) -> Result<AcceptReport, ControlError> {
        accept::accept(self, shard, verb, request).await
    }

    async fn pending(&self, shard: u16, page: PageRequest) -> Result<PendingReport, ControlError> {
        held::pending(self, shard, page).await
    }

    async fn decide_held(
        &self,
        shard: u16,
        verb: HeldVerb,
        request: HeldRequest,
    ) -> Result<HeldReport, ControlError> {
        held::decide(self, shard, verb, request).await
    }

    async fn decide(&self, tenant: &TenantId, id: &str, decision: Decision) -> Result<(), ControlError> {
        let running = self.running_or_unavailable()?;
        let unknown = || ControlError::NotFound(format!("no dead letter {id:?}"));
        let (shard, number) = read_letter_id(id).ok_or_else(unknown)?;
        if shard >= self.manifest.shards {
            return Err(unknown());
        }
        let shown = running.shard(shard).await?;
        let (reply, answer) = oneshot::channel();
        let mail = Mail::DeadLetter {
            tenant: tenant.clone(),
            number,
            decision: match decision {
                Decision::Retry => DeadLetterDecision::Retry,
                Decision::Discard => DeadLetterDecision::Discard,
            },
            reply,
        };
        let stopped = |_| ControlError::Unavailable(format!("shard {shard} has stopped"));
        shown
            .mail
            .send(mail)
            .await
            .map_err(|error| stopped(error.to_string()))?;
        match answer.await.map_err(|error| stopped(error.to_string()))? {
            Ok(()) => Ok(()),
            Err(Refused::NotFound(_)) => Err(unknown()),
            Err(refused @ Refused::Conflict(_)) => Err(ControlError::Conflict(refused.to_string())),
            Err(refused @ Refused::Unavailable { .. }) => Err(ControlError::Unavailable(refused.to_string())),
        }
    }
}

impl Node {
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
            tenancy: self.manifest.tenancy(),
            tenants: self.manifest.tenant_list().map(|list| list.into_iter().collect()),
            limits: self.manifest.limits.clone(),
            takes_applied: Arc::default(),
            event_id_from: None,
        }
    }

    /// Reads an event as the intake is going to, so that its sender learns of what would be a dead letter.
    fn check_event(&self, publication: &Publication) -> Result<(), ControlError> {
        match self.read_as_intake(SourceStream::AggregateEvents, publication)? {
            Decoded::Event { event, .. } => {
                let defect = self.decoder().check(&event.payload).err();
                defect.map_or(Ok(()), |defect| Err(ControlError::Invalid(defect.to_string())))
            }
            _ => Ok(()),
        }
    }

    fn read_as_intake(
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
        self.decoder().decode(stream, &message).map_err(|(_, defect)| {
            if defect.reason == "tenant.unknown" {
                ControlError::NotFound(defect.to_string())
            } else {
                ControlError::Invalid(defect.to_string())
            }
        })
    }

    async fn publish(&self, publication: Publication) -> Result<Published, ControlError> {
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

    pub(super) fn view(&self, id: &InstanceId, found: &Found, mut kept: Kept) -> InstanceView {
        let record = match found {
            Found::Live(record) => record,
            Found::Ended(summary) => &summary.record,
        };
        let in_force = self.catalog.now();
        let definition = in_force.sagas.by_hash(&record.definition).map(AsRef::as_ref);
        match found {
            Found::Live(record) => {
                if let Some((letter, _)) = &mut kept.behind {
                    let shard = shard_of(&id.tenant, &id.key, self.manifest.shards);
                    letter.id = letter.id.take().map(|number| format!("{shard}-{number}"));
                }
                InstanceView {
                    blocked_by: BlockedView::of(record, kept, self.clock.now()),
                    ..InstanceView::new(id, record, definition)
                }
            }
            Found::Ended(summary) => InstanceView::ended(id, summary, definition),
        }
    }

    fn history_view(&self, row: HistoryRow) -> HistoryView {
        HistoryView {
            input: row.input_id,
            kind: row.kind,
            time: rfc3339(row.time),
            stream: row
                .source
                .map(|(stream, _)| streams::name(&self.manifest, stream).to_owned()),
            sequence: row.source.map(|(_, sequence)| sequence),
            outcome: row.outcome.as_str().to_owned(),
            notes: row.notes,
            late_source: row.late_source,
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
            "the read was broken off: {error}"
        ))),
    }
}

/// Whether another generation may follow an instance in this phase, now or when it has ended.
fn may_follow(reuse: Reuse, phase: &str) -> bool {
    let phase = Phase::ALL.into_iter().find(|known| known.as_str() == phase);
    match phase {
        None | Some(Phase::Running) => false,
        Some(phase) if phase.is_terminal() => reuse.allows(phase),
        // The instance knows its end; should that not allow it, the request is ignored.
        Some(_) => reuse != Reuse::default(),
    }
}
