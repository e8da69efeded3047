//! Instances, answered from the partitions that have them.

use async_trait::async_trait;

use super::control::blocking;
use super::node::Node;
use super::{answers, inputs, pages, schedules, streams};
use crate::intake::decode::Decoded;
use crate::kernel::definition::model::Reuse;
use crate::kernel::envelope::{ControlMessage, ControlVerb};
use crate::kernel::ids::{InstanceId, SagaName, TenantId, shard_of};
use crate::kernel::input::{Control as ControlInput, SourceStream};
use crate::kernel::record::Phase;
use crate::kernel::subject::Subject;
use crate::kernel::transition::check_input;
use crate::kernel::view::{BlockedView, InstanceView, Kept};
use crate::ports::broker::{Expect, Publication};
use crate::ports::control::{
    ControlError, HistoryView, InstanceDetail, Instances, Page, PageRequest, Published, RecordedInputs,
    rfc3339,
};
use crate::storage::read::Found;
use crate::storage::rows::HistoryRow;

#[async_trait]
impl Instances for Node {
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
        blocked: Option<bool>,
        page: PageRequest,
    ) -> Result<Page<InstanceView>, ControlError> {
        pages::instances(self, tenant, saga, blocked, page).await
    }

    async fn instance(&self, id: &InstanceId, history: usize) -> Result<InstanceDetail, ControlError> {
        let reader = self.shard(id).await?.reader;
        let owned = id.clone();
        let seen = blocking(&self.tasks, move || reader.seen(&owned, history)).await?;
        let Some(found) = seen.found else {
            return Err(ControlError::NotFound(no_instance(id, &seen.kept)));
        };
        let history = seen.history.into_iter();
        Ok(InstanceDetail {
            instance: self.view(id, &found, seen.kept),
            history: history.map(|(_, row)| self.history_view(row)).collect(),
        })
    }

    async fn inputs(&self, id: &InstanceId, page: PageRequest) -> Result<RecordedInputs, ControlError> {
        inputs::recorded(self, id, &page).await
    }
}

impl Node {
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

/// What there is in place of an instance.
fn no_instance(id: &InstanceId, kept: &Kept) -> String {
    let missing = answers::missing(id);
    match kept.early_since {
        Some(since) => format!(
            "{missing}; {} event(s) wait for it to begin, the first of them since {}",
            kept.early,
            rfc3339(since)
        ),
        None => missing,
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
