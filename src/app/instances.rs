//! Instances, answered from the partitions that have them.

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::control::traced;
use super::node::Node;
use super::requests::{self, Asked, Lookout};
use super::{
    actions, answers, counts, decisions, graph, groups, inputs, pages, restart, schedules, search, streams,
    why,
};
use crate::intake::decode::Decoded;
use crate::kernel::envelope::{ConflictPolicy, ControlMessage, ControlVerb, Sender};
use crate::kernel::ids::{InstanceId, SagaName, TenantId, shard_of};
use crate::kernel::input::SourceStream;
use crate::kernel::subject::Subject;
use crate::kernel::transition::check_input;
use crate::kernel::view::graph::InstanceGraph;
use crate::kernel::view::why::Why;
use crate::kernel::view::{BlockedView, InstanceView, Kept};
use crate::ports::broker::{Expect, Publication};
use crate::ports::control::{
    Actions, ArchivedInstance, Awaited, ControlError, Happened, HistoryView, InstanceCount, InstanceDetail,
    InstanceFilter, InstanceGroups, InstanceSummary, InstanceTrait, Instances, Page, PageRequest, Patience,
    Published, Reached, RecordedInputs, RequestOutcome, RequestState, Requested, StartRequest,
};
use crate::storage::read::Found;
use crate::storage::rows::HistoryRow;

/// Message ids under which a request is published at most, where others have stored something else under those before.
const MESSAGE_IDS_MAX: u32 = 3;

#[async_trait]
impl Instances for Node {
    async fn start(
        &self,
        instance: &InstanceId,
        request: StartRequest,
        patience: Patience,
    ) -> Result<Requested, ControlError> {
        let sagas = &self.catalog.now().sagas;
        let Some(definition) = sagas.active(&instance.saga) else {
            return Err(ControlError::NotFound(format!("no saga {}", instance.saga)));
        };
        let text = serde_json::Value::Object(request.input.clone()).to_string();
        schedules::check_key(&instance.key)?;
        check_input(definition, text.as_bytes(), &self.manifest.limits).map_err(ControlError::Invalid)?;
        let mut lookout = self.lookout(instance, Some(patience)).await?;
        let verb = ControlVerb::Start {
            input: request.input,
            parent: None,
            on_conflict: request.on_conflict,
        };
        let is_of_operator = verb.sender() == Sender::Operator;
        let message = ControlMessage {
            request_id: request.request_id,
            principal: is_of_operator.then_some(request.principal),
            verb,
        };
        let mut requested = self.send_traced(instance, &message, request.traceparent).await?;
        requested.checked = lookout.is_some();
        if let Some(lookout) = &mut lookout {
            let asked = Asked {
                instance,
                request_id: &message.request_id,
                sequence: requested.published.sequence,
                start: Some((&text, request.on_conflict == ConflictPolicy::UseExisting)),
            };
            let found = self.started(lookout, &asked, patience).await?;
            requested.outcome = Some(found);
        }
        Ok(requested)
    }

    async fn control(
        &self,
        instance: &InstanceId,
        message: ControlMessage,
        patience: Option<Patience>,
    ) -> Result<Requested, ControlError> {
        let mut lookout = self.lookout(instance, patience).await?;
        let message = self.with_parent(instance, message).await?;
        let checked = self.is_here(instance)?;
        let message = if checked {
            restart::with_event(self, instance, message).await?
        } else {
            message
        };
        if checked {
            self.check_request(instance, &message).await?;
        }
        let mut requested = self.send(instance, &message).await?;
        requested.checked = checked;
        if let (Some(lookout), Some(patience)) = (&mut lookout, patience) {
            let asked = Asked {
                instance,
                request_id: &message.request_id,
                sequence: requested.published.sequence,
                start: None,
            };
            requested.outcome = Some(self.outcome(lookout, &asked, patience.time).await?);
        }
        Ok(requested)
    }

    async fn reach(
        &self,
        instance: &InstanceId,
        generation: Option<u32>,
        awaited: Awaited,
        time: Duration,
    ) -> Result<Reached, ControlError> {
        self.until_reached(instance, generation, &awaited, time).await
    }

    async fn happenings(
        &self,
        instance: &InstanceId,
        after: Option<u64>,
        newest: usize,
    ) -> Result<BoxStream<'static, Happened>, ControlError> {
        let stopping = || ControlError::Unavailable("this process stops".to_owned());
        let node = self.myself().ok_or_else(stopping)?;
        node.what_happens(instance, after, newest).await
    }

    async fn instances(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        blocked: Option<bool>,
        page: PageRequest,
    ) -> Result<Page<InstanceView>, ControlError> {
        pages::instances(self, tenant, saga, blocked, page).await
    }

    async fn search(
        &self,
        tenant: &TenantId,
        filter: InstanceFilter,
        page: PageRequest,
    ) -> Result<Page<InstanceSummary>, ControlError> {
        search::search(self, tenant, filter, page).await
    }

    async fn count(
        &self,
        tenant: &TenantId,
        filter: InstanceFilter,
        after: Option<String>,
    ) -> Result<InstanceCount, ControlError> {
        counts::count(self, tenant, filter, after.as_deref()).await
    }

    async fn group(
        &self,
        tenant: &TenantId,
        filter: InstanceFilter,
        by: InstanceTrait,
        after: Option<String>,
    ) -> Result<InstanceGroups, ControlError> {
        groups::group(self, tenant, filter, by, after.as_deref()).await
    }

    async fn instance(&self, id: &InstanceId, history: usize) -> Result<InstanceDetail, ControlError> {
        let reader = self.shard(id).await?.reader;
        let owned = id.clone();
        let seen = self.read(move || reader.seen(&owned, history)).await?;
        let Some(found) = seen.found else {
            return Err(ControlError::NotFound(no_instance(id, &seen.kept)));
        };
        let history = seen.history.into_iter();
        Ok(InstanceDetail {
            pending: why::pending(self, &found, &seen.work),
            instance: self.view(id, &found, seen.kept),
            history: history.map(|(_, row)| self.history_view(row)).collect(),
        })
    }

    async fn actions(&self, id: &InstanceId) -> Result<Actions, ControlError> {
        actions::actions(self, id).await
    }

    async fn why(&self, id: &InstanceId) -> Result<Why, ControlError> {
        why::why(self, id).await
    }

    async fn graph(&self, id: &InstanceId) -> Result<InstanceGraph, ControlError> {
        graph::graph(self, id).await
    }

    async fn history(&self, id: &InstanceId, page: PageRequest) -> Result<Page<HistoryView>, ControlError> {
        pages::history(self, id, page).await
    }

    async fn archived(&self, id: &InstanceId) -> Result<Option<ArchivedInstance>, ControlError> {
        self.in_archive(id).await
    }

    async fn inputs(&self, id: &InstanceId, page: PageRequest) -> Result<RecordedInputs, ControlError> {
        inputs::recorded(self, id, &page).await
    }
}

impl Node {
    /// Whether this process works on the shard of an instance. Where it does not, a request goes to the instance unchecked.
    fn is_here(&self, instance: &InstanceId) -> Result<bool, ControlError> {
        let Some(running) = self.running() else {
            return Err(ControlError::Unavailable(self.waiting_for()));
        };
        let shard = shard_of(&instance.tenant, &instance.key, self.manifest.shards);
        Ok(running.shards.get(shard).is_some())
    }

    /// Where the outcome of a request will be seen; `None` where nobody waits, or this process does not work on the shard.
    ///
    /// # Errors
    /// [`ControlError::Unavailable`] where waiting is asked for and cannot be.
    async fn lookout(
        &self,
        instance: &InstanceId,
        patience: Option<Patience>,
    ) -> Result<Option<Lookout>, ControlError> {
        let Some(patience) = patience else {
            return Ok(None);
        };
        if !patience.is_asked_for && !self.is_here(instance)? {
            return Ok(None);
        }
        let shard = self.shard(instance).await?;
        Ok(Some(Lookout::new(shard, instance)))
    }

    /// Refuses what would change nothing as things are. A repetition is sent like the first: the outcome of that is its answer.
    async fn check_request(
        &self,
        instance: &InstanceId,
        message: &ControlMessage,
    ) -> Result<(), ControlError> {
        let publication = self.publication(instance, message);
        let read = self.read_as_intake(SourceStream::WorkflowCommands, &publication)?;
        let Decoded::Control { control, .. } = read else {
            return Ok(());
        };
        let request_id = message.request_id.as_str();
        if answers::is_repeated(self, instance, request_id, &control).await? {
            return Ok(());
        }
        decisions::check(self, instance, message).await?;
        answers::check_use(self, instance, request_id, control).await
    }

    /// Stores a request without a look at the instance, which has the only word.
    pub(super) async fn send(
        &self,
        instance: &InstanceId,
        message: &ControlMessage,
    ) -> Result<Requested, ControlError> {
        self.send_traced(instance, message, None).await
    }

    async fn send_traced(
        &self,
        instance: &InstanceId,
        message: &ControlMessage,
        traceparent: Option<String>,
    ) -> Result<Requested, ControlError> {
        let publication = Publication {
            headers: traced(traceparent),
            ..self.publication(instance, message)
        };
        // A process that does not work on the shard refuses what cannot be read as well.
        self.read_as_intake(SourceStream::WorkflowCommands, &publication)?;
        let published = self.publish_request(instance, message, publication).await?;
        Ok(Requested {
            published,
            checked: false,
            outcome: None,
        })
    }

    fn publication(&self, instance: &InstanceId, message: &ControlMessage) -> Publication {
        let payload = serde_json::to_vec(message).expect("a control message is plain data");
        Publication {
            stream: streams::name(&self.manifest, SourceStream::WorkflowCommands).to_owned(),
            subject: self.subject_of(instance, &message.verb).render(),
            headers: Vec::new(),
            payload: payload.into(),
            expect: Expect::Nothing,
        }
    }

    /// The outcome of a start, and of the instance that it began where its end is waited for.
    async fn started(
        &self,
        lookout: &mut Lookout,
        asked: &Asked<'_>,
        patience: Patience,
    ) -> Result<RequestOutcome, ControlError> {
        let begun = self.clock.monotonic();
        let mut outcome = self.outcome(lookout, asked, patience.time).await?;
        let is_there = outcome.state == RequestState::Applied
            || (outcome.state == RequestState::Ignored && asked.start.is_some_and(|(_, any)| any));
        let generation = outcome.instance.as_ref().map(|found| found.generation);
        if patience.until_end && is_there && generation.is_some() {
            let left = patience
                .time
                .saturating_sub(self.clock.monotonic().saturating_sub(begun));
            let reached = self.until_reached(asked.instance, generation, &Awaited::End, left);
            outcome.instance = Some(reached.await?.instance);
        }
        Ok(outcome)
    }

    /// Publishes a request under an id by which its repetition is recognised. Whoever may publish for the tenant can store a message
    /// under the same id before, so what stands in its place is looked at.
    async fn publish_request(
        &self,
        instance: &InstanceId,
        message: &ControlMessage,
        mut publication: Publication,
    ) -> Result<Published, ControlError> {
        let request_id = message.request_id.as_str();
        let is_answer = matches!(message.verb, ControlVerb::Callback { .. });
        for attempt in 0..MESSAGE_IDS_MAX {
            let id = format!("{instance}/{request_id}/{attempt}");
            publication.expect = Expect::MessageId(blake3::hash(id.as_bytes()).to_hex().to_string());
            let published = self.publish(publication.clone()).await?;
            let Some(broker) = self.broker().filter(|_| published.duplicate) else {
                return Ok(published);
            };
            let there = broker.message_at(&published.stream, published.sequence).await;
            let there = there.map_err(|error| ControlError::Unavailable(error.to_string()))?;
            match there {
                Some(there) if there.subject != publication.subject => {
                    tracing::warn!(
                        target: "audit",
                        %instance,
                        request_id,
                        subject = there.subject,
                        sequence = there.sequence,
                        "another message has the id of a request"
                    );
                }
                Some(there) if there.payload != publication.payload => {
                    return Err(requests::mismatch(request_id, is_answer));
                }
                // What is trimmed was read.
                Some(_) | None => return Ok(published),
            }
        }
        let message = format!("request_id {request_id} is taken by other messages: choose another one");
        Err(ControlError::Conflict(message))
    }

    /// Where a message to an instance is published: by the tenant's subject what the tenant may say, by the runners' all else.
    fn subject_of(&self, instance: &InstanceId, verb: &ControlVerb) -> Subject {
        let InstanceId { tenant, saga, key } = instance.clone();
        match verb.sender() {
            Sender::Tenant => Subject::Workflow { tenant, saga, key },
            Sender::Operator | Sender::Runner => Subject::Control {
                cluster: self.manifest.cluster.clone(),
                tenant,
                saga,
                key,
            },
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

    pub(super) fn history_view(&self, row: HistoryRow) -> HistoryView {
        HistoryView {
            input: row.input_id,
            kind: row.kind,
            time: row.time.rfc3339(),
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

/// What there is in place of an instance.
pub(super) fn no_instance(id: &InstanceId, kept: &Kept) -> String {
    let missing = answers::missing(id);
    match kept.early_since {
        Some(since) => format!(
            "{missing}; {} event(s) wait for it to begin, the first of them since {}",
            kept.early,
            since.rfc3339()
        ),
        None => missing,
    }
}
