//! The inputs of an instance, as they are kept with its history; those that are not are read back from the streams, where the history
//! names their places.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::answers;
use super::catalog::InForce;
use super::cursors::forged;
use super::node::Node;
use super::pages::Room;
use super::redacted::{of_edit, recorded_work, redacted};
use super::streams;
use crate::intake::decode::Decoded;
use crate::kernel::classes::TIMEOUT_CLASS;
use crate::kernel::envelope::APPLIED_HEADER;
use crate::kernel::ids::{ClusterId, CommandId, DefinitionHash, EffectName, InstanceId};
use crate::kernel::input::{Input, InputBody, Origin, SourceStream};
use crate::kernel::letters;
use crate::kernel::outcome::EFFECT_UNSENDABLE;
use crate::kernel::patch::Note;
use crate::kernel::record::Record;
use crate::kernel::recorded::{LetterDecision, Recorded, RecordedBody, RecordedOutcome};
use crate::kernel::subject::Subject;
use crate::ports::broker::{Message, StoredMessage};
use crate::ports::control::{ControlError, PageRequest, RecordedInputs};
use crate::storage::kept::Kept;
use crate::storage::read::Found as Instance;
use crate::storage::rows::{HistoryOutcome, HistoryRow};

/// Collects what the instance has taken, oldest first, as much as there is room for on a page.
///
/// # Errors
/// [`ControlError::NotFound`] without the instance, [`ControlError::Conflict`] where the key was used again since the page
/// before, [`ControlError::Unavailable`] where storage or broker do not answer.
pub(super) async fn recorded(
    node: &Node,
    id: &InstanceId,
    page: &PageRequest,
) -> Result<RecordedInputs, ControlError> {
    let after = page.after.as_deref().map(read_cursor).transpose()?;
    let mut room = Room::of(node, page);
    let reader = node.shard(id).await?.reader;
    let (owned, bound) = (id.clone(), room.bound());
    let found = node
        .read(move || {
            let Some(found) = reader.instance(&owned)? else {
                return Ok(None);
            };
            let record = match found {
                Instance::Live(record) => record,
                Instance::Ended(summary) => summary.record,
            };
            let behind = after.map(|(_, row)| row);
            let (mut rows, mut more) = reader.history_behind(record.last_history, behind, bound)?;
            let kept = reader.kept_with_history(rows.iter().map(|(number, _)| *number), bound.bytes)?;
            more |= kept.len() < rows.len();
            rows.truncate(kept.len());
            let rows: Vec<_> = rows.into_iter().zip(kept).collect();
            Ok(Some((record, rows, more)))
        })
        .await?;
    let Some((record, rows, mut more)) = found else {
        return Err(ControlError::NotFound(answers::missing(id)));
    };
    let generation = record.generation;
    if after.is_some_and(|(before, _)| before != generation) {
        let message = "the key was used again since the page before: begin again".to_owned();
        return Err(ControlError::Conflict(message));
    }
    let reading = Reading::of(node, id, &record)?;
    let (count, mut last) = (rows.len(), None);
    let mut inputs = Vec::with_capacity(count);
    for (at, ((number, row), kept)) in (1..).zip(rows) {
        let input = reading.recorded(number, row, kept).await?;
        room.take(&input);
        inputs.push(input);
        last = Some(number);
        if room.is_over() {
            more |= at < count;
            break;
        }
    }
    let next = last.filter(|_| more);
    Ok(RecordedInputs {
        inputs,
        next: next.map(|number| format!("{generation}-{number}")),
    })
}

/// Tells what the rows of one instance's history are about.
pub(super) struct Reading<'a> {
    node: &'a Node,
    id: &'a InstanceId,
    generation: u32,
    definition: DefinitionHash,
    cluster: ClusterId,
    in_force: Arc<InForce>,
}

impl<'a> Reading<'a> {
    /// # Errors
    /// [`ControlError::Unavailable`] in a process that runs no sagas.
    pub(super) fn of(node: &'a Node, id: &'a InstanceId, record: &Record) -> Result<Self, ControlError> {
        let no_sagas = || ControlError::Unavailable("this process runs no sagas".to_owned());
        Ok(Self {
            node,
            id,
            generation: record.generation,
            definition: record.definition,
            cluster: node.running_or_unavailable()?.cluster.ok_or_else(no_sagas)?,
            in_force: node.catalog.now(),
        })
    }

    /// Row `number`, with what it is about: as it was `kept`, else the input as its stream has it.
    ///
    /// # Errors
    /// [`ControlError::Unavailable`] where storage or broker do not answer.
    pub(super) async fn recorded(
        &self,
        number: u64,
        row: HistoryRow,
        kept: Kept,
    ) -> Result<Recorded, ControlError> {
        let input = match kept.input.filter(|_| is_input(&row.outcome)) {
            Some(kept) => RecordedBody::of(&kept),
            None => body(self.node, self.id, number, &row).await?,
        };
        let definition = self.in_force.sagas.by_hash(&self.definition).map(AsRef::as_ref);
        let input = redacted(input, &self.in_force.effects, definition);
        let input = of_edit(input, &row, &self.in_force.effects);
        let work = kept.work.iter();
        Ok(Recorded {
            work: work
                .map(|work| recorded_work(work, &self.in_force.effects))
                .collect(),
            ..self.told(row, input)
        })
    }

    /// A row without what it is about.
    pub(super) fn without_body(&self, row: HistoryRow) -> Recorded {
        let kind = row.kind.clone();
        self.told(row, RecordedBody::Missing { kind })
    }

    fn told(&self, row: HistoryRow, input: RecordedBody) -> Recorded {
        Recorded {
            cluster: self.cluster,
            tenant: self.id.tenant.as_str().to_owned(),
            saga: self.id.saga.as_str().to_owned(),
            key: self.id.key.as_str().to_owned(),
            generation: self.generation,
            definition: self.definition.to_string(),
            id: row.input_id,
            time_ms: row.time.0,
            input,
            outcome: row.outcome.as_str().to_owned(),
            reason: dead_for(row.outcome),
            notes: row.notes,
            work: Vec::new(),
        }
    }
}

/// Why an input is a dead letter, if it is one.
fn dead_for(outcome: HistoryOutcome) -> Option<String> {
    match outcome {
        HistoryOutcome::Dead { reason, .. } => Some(reason),
        HistoryOutcome::Applied
        | HistoryOutcome::Deferred
        | HistoryOutcome::Ignored(_)
        | HistoryOutcome::Retried { .. }
        | HistoryOutcome::Discarded { .. }
        | HistoryOutcome::Edited { .. }
        | HistoryOutcome::Cut { .. } => None,
    }
}

/// Generation and row behind which a page begins.
fn read_cursor(text: &str) -> Result<(u32, u64), ControlError> {
    let parse = || {
        let (generation, number) = text.split_once('-')?;
        Some((generation.parse().ok()?, number.parse().ok()?))
    };
    parse().ok_or_else(forged)
}

/// What an operator has made of the data of an input that row `number` is about, and where the message is that was edited.
async fn edited(
    node: &Node,
    id: &InstanceId,
    number: u64,
    row: &HistoryRow,
) -> Result<Option<(Bytes, SourceStream, u64)>, ControlError> {
    let reader = node.shard(id).await?.reader;
    let rows = node.read(move || reader.history(Some(number), EDIT_ROWS)).await?;
    let edits = rows
        .into_iter()
        .filter(|(_, before)| before.input_id == row.input_id);
    let mut data = None;
    for (_, before) in edits {
        if let HistoryOutcome::Edited { edited, .. } = before.outcome {
            let data = data.get_or_insert(edited);
            if let Some((stream, sequence)) = before.source {
                return Ok(Some((data.clone(), stream, sequence)));
            }
        }
    }
    Ok(None)
}

/// Rows of the history among which the edit of an input is looked for.
const EDIT_ROWS: usize = 1_000;

/// Whether a row is about an input, and not about what was decided about one.
const fn is_input(outcome: &HistoryOutcome) -> bool {
    match outcome {
        HistoryOutcome::Retried { .. }
        | HistoryOutcome::Discarded { .. }
        | HistoryOutcome::Edited { .. }
        | HistoryOutcome::Cut { .. } => false,
        HistoryOutcome::Applied
        | HistoryOutcome::Deferred
        | HistoryOutcome::Ignored(_)
        | HistoryOutcome::Dead { .. } => true,
    }
}

/// The input of a row, of which nothing was kept.
async fn body(
    node: &Node,
    id: &InstanceId,
    number: u64,
    row: &HistoryRow,
) -> Result<RecordedBody, ControlError> {
    match &row.outcome {
        HistoryOutcome::Retried { .. } => return Ok(RecordedBody::DeadLetter(LetterDecision::Retry)),
        HistoryOutcome::Discarded { .. } => return Ok(RecordedBody::DeadLetter(LetterDecision::Discard)),
        HistoryOutcome::Cut { .. } => {
            return Ok(RecordedBody::Missing {
                kind: row.kind.clone(),
            });
        }
        HistoryOutcome::Edited { original, edited, .. } => {
            let json = |bytes: &[u8]| serde_json::from_slice(bytes).unwrap_or(Value::Null);
            return Ok(RecordedBody::EditedLetter {
                original: json(original),
                edited: json(edited),
            });
        }
        HistoryOutcome::Applied
        | HistoryOutcome::Deferred
        | HistoryOutcome::Ignored(_)
        | HistoryOutcome::Dead { .. } => {}
    }
    let missing = RecordedBody::Missing {
        kind: row.kind.clone(),
    };
    let edit = if row.notes.contains(&Note::Edited) {
        edited(node, id, number, row).await?
    } else {
        None
    };
    let source = edit.as_ref().map(|(_, stream, sequence)| (*stream, *sequence));
    let broker = &node.running_or_unavailable()?.broker;
    let (stream, found) = if let Some((stream, sequence)) = row.source.or(source) {
        let name = streams::name(&node.manifest, stream);
        (stream, broker.message_at(name, sequence).await)
    } else if let Some(subject) = published(id, row) {
        let stream = SourceStream::WorkflowEvents;
        let name = streams::name(&node.manifest, stream);
        (stream, broker.last_by_subject(name, &subject).await)
    } else {
        return Ok(without_message(row));
    };
    let name = streams::name(&node.manifest, stream);
    let found = found.map_err(|error| ControlError::Unavailable(error.to_string()))?;
    let Some(mut stored) = found else {
        let verdict = row.source.is_none().then(|| without_message(row));
        return Ok(verdict.filter(is_of_the_runner).unwrap_or(missing));
    };
    // It is wanted here because it was applied.
    stored.headers.retain(|(name, _)| name != APPLIED_HEADER);
    let mut decoder = node.decoder();
    decoder.event_id_from = Some(name.to_owned());
    let body = match decoder.decode(stream, &message(stored)) {
        Ok(Decoded::Event { event, .. } | Decoded::Forwarded { event, .. }) => InputBody::Event(event),
        Ok(Decoded::Result { result, .. } | Decoded::Unaddressed { result, .. }) => InputBody::Result(result),
        Ok(Decoded::Control { control, .. }) => InputBody::Control(control),
        Ok(Decoded::Known) | Err(_) => return Ok(missing),
    };
    let Some((data, ..)) = edit else {
        return Ok(RecordedBody::of(&body));
    };
    let came = Input {
        instance: id.clone(),
        id: row.input_id.clone(),
        time: row.time,
        origin: Origin::Local,
        body,
    };
    let edited = letters::edited(&came, &data, &node.manifest.limits);
    Ok(edited.map_or(missing, |edited| RecordedBody::of(&edited.body)))
}

/// Where the result of a call of this process stands that came to the shard without a message.
fn published(id: &InstanceId, row: &HistoryRow) -> Option<String> {
    let effect = EffectName::parse(row.kind.strip_prefix("result of ")?).ok()?;
    let subject = Subject::EffectResult {
        tenant: id.tenant.clone(),
        effect,
        command: CommandId(row.input_id.parse().ok()?),
    };
    Some(subject.render())
}

pub(super) fn message(stored: StoredMessage) -> Message {
    Message {
        subject: stored.subject,
        headers: stored.headers,
        payload: stored.payload,
        stream_sequence: stored.sequence,
        consumer_sequence: 0,
        delivered: 1,
        pending: 0,
        time: stored.time,
    }
}

/// Whether a result of an effect is one that never had a message. What a call has given is not known without its message: the
/// class of a failure does not tell whether the call happened.
fn is_of_the_runner(body: &RecordedBody) -> bool {
    let RecordedBody::Result { outcome, .. } = body else {
        return false;
    };
    match outcome {
        RecordedOutcome::Timeout { .. } => true,
        RecordedOutcome::Error { class, .. } => class == EFFECT_UNSENDABLE,
        RecordedOutcome::Ok(_) | RecordedOutcome::Unusable { .. } => false,
    }
}

/// A timer, or a verdict of the runner itself, whose outcome its notes tell.
fn without_message(row: &HistoryRow) -> RecordedBody {
    if let Some(name) = row.kind.strip_prefix("timer ") {
        return RecordedBody::Timer {
            name: name.to_owned(),
        };
    }
    let Ok(command) = row.input_id.parse() else {
        return RecordedBody::Missing {
            kind: row.kind.clone(),
        };
    };
    let class = row.notes.iter().find_map(|note| match note {
        Note::StepFailed { class, .. }
        | Note::AttemptFailed { class, .. }
        | Note::CompensationFailed { class, .. }
        | Note::CommandRefused { class, .. } => Some(class.clone()),
        Note::StepAsked { .. } => Some(TIMEOUT_CLASS.to_owned()),
        Note::LateResult { outcome, .. } if outcome != "succeeded" => Some(outcome.clone()),
        _ => None,
    });
    let outcome = match class {
        None => RecordedOutcome::Ok(Value::Object(serde_json::Map::new())),
        Some(class) if class == TIMEOUT_CLASS => RecordedOutcome::Timeout {
            message: String::new(),
            class: None,
        },
        // The gateway's own verdict.
        Some(class) => RecordedOutcome::Error {
            refused: class == "rejected",
            class,
            message: String::new(),
        },
    };
    let effect = row.kind.strip_prefix("result of ");
    RecordedBody::Result {
        command_id: CommandId(command),
        effect: effect.and_then(|name| crate::kernel::ids::EffectName::parse(name).ok()),
        outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::ids::{Key, SagaName, TenantId, TimeMs};

    /// Of a result that came without a message, or whose message is gone.
    fn told(class: &str) -> Option<RecordedOutcome> {
        let body = without_message(&HistoryRow {
            instance: InstanceId {
                tenant: TenantId::parse("acme").expect("a tenant"),
                saga: SagaName::parse("pay").expect("a saga"),
                key: Key::parse("p1").expect("a key"),
            },
            input_id: "019b76da-c394-749e-aaa6-4114b84ea15b".to_owned(),
            kind: "result of card-charge".to_owned(),
            time: TimeMs(1),
            source: None,
            outcome: HistoryOutcome::Applied,
            notes: vec![Note::StepFailed {
                step: "charge".to_owned(),
                class: class.to_owned(),
            }],
            late_source: false,
            previous: None,
        });
        match body {
            RecordedBody::Result { ref outcome, .. } if is_of_the_runner(&body) => Some(outcome.clone()),
            _ => None,
        }
    }

    #[test]
    fn without_its_message_only_a_verdict_of_the_runner_itself_is_told() {
        let is_timeout = |told: Option<RecordedOutcome>| {
            matches!(told, Some(RecordedOutcome::Timeout { class: None, .. }))
        };
        assert!(is_timeout(told(TIMEOUT_CLASS)));
        assert!(told(EFFECT_UNSENDABLE).is_some());
        // The card may be charged: what came back was not a result.
        for class in [
            "result.schema",
            "result.expression",
            "response.malformed",
            "declined",
        ] {
            assert_eq!(told(class), None, "{class}");
        }
    }
}
