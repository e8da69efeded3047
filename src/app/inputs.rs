//! The inputs of an instance, read back from the streams: its history names their places.

use serde_json::Value;

use super::control::blocking;
use super::node::Node;
use super::streams;
use crate::intake::decode::Decoded;
use crate::kernel::ids::{CommandId, InstanceId};
use crate::kernel::input::InputBody;
use crate::kernel::patch::Note;
use crate::kernel::recorded::{Recorded, RecordedBody, RecordedOutcome};
use crate::kernel::transition::TIMEOUT_CLASS;
use crate::ports::broker::{Message, StoredMessage};
use crate::ports::control::{ControlError, RecordedInputs};
use crate::storage::read::Found;
use crate::storage::rows::HistoryRow;

/// Most inputs of one answer: a longer history is not shown, since a part of it cannot be replayed.
const INPUTS_MAX: usize = 5_000;

/// Collects what the instance has taken, oldest first.
///
/// # Errors
/// [`ControlError::NotFound`] without the instance, [`ControlError::Conflict`] where its history is too long,
/// [`ControlError::Unavailable`] where storage or broker do not answer.
pub(super) async fn recorded(node: &Node, id: &InstanceId) -> Result<RecordedInputs, ControlError> {
    let reader = node.shard(id)?.reader.clone();
    let owned = id.clone();
    let found = blocking(move || {
        let Some(found) = reader.instance(&owned)? else {
            return Ok(None);
        };
        let record = match found {
            Found::Live(record) => record,
            Found::Ended(summary) => summary.record,
        };
        let rows = reader.history(record.last_history, INPUTS_MAX + 1)?;
        Ok(Some((record, rows)))
    })
    .await?;
    let Some((record, rows)) = found else {
        let message = format!("no instance {} of saga {}", id.key, id.saga);
        return Err(ControlError::NotFound(message));
    };
    if rows.len() > INPUTS_MAX {
        let message = format!("the instance has taken more than {INPUTS_MAX} inputs");
        return Err(ControlError::Conflict(message));
    }
    let mut inputs = Vec::with_capacity(rows.len());
    for (_, row) in rows.into_iter().rev() {
        let input = body(node, &row).await?;
        inputs.push(Recorded {
            tenant: id.tenant.as_str().to_owned(),
            saga: id.saga.as_str().to_owned(),
            key: id.key.as_str().to_owned(),
            generation: record.generation,
            definition: record.definition.to_string(),
            id: row.input_id,
            time_ms: row.time.0,
            input,
            outcome: row.outcome.as_str().to_owned(),
            notes: row.notes,
        });
    }
    Ok(RecordedInputs { inputs })
}

async fn body(node: &Node, row: &HistoryRow) -> Result<RecordedBody, ControlError> {
    let Some((stream, sequence)) = row.source else {
        return Ok(without_message(row));
    };
    let missing = RecordedBody::Missing {
        kind: row.kind.clone(),
    };
    let broker = &node.running_or_unavailable()?.broker;
    let name = streams::name(&node.manifest, stream);
    let stored = broker
        .message_at(name, sequence)
        .await
        .map_err(|error| ControlError::Unavailable(error.to_string()))?;
    let Some(stored) = stored else {
        return Ok(missing);
    };
    let mut decoder = node.decoder();
    decoder.event_id_from = Some(name.to_owned());
    let body = match decoder.decode(stream, &message(stored)) {
        Ok(Decoded::Event { event, .. }) => InputBody::Event(event),
        Ok(Decoded::Result { result, .. } | Decoded::Unaddressed { result, .. }) => InputBody::Result(result),
        Ok(Decoded::Control { control, .. }) => InputBody::Control(control),
        Err(_) => return Ok(missing),
    };
    Ok(RecordedBody::of(&body))
}

fn message(stored: StoredMessage) -> Message {
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
        Note::LateResult { outcome, .. } if outcome != "succeeded" => Some(outcome.clone()),
        _ => None,
    });
    let outcome = match class {
        None => RecordedOutcome::Ok(Value::Object(serde_json::Map::new())),
        Some(class) if class == TIMEOUT_CLASS => RecordedOutcome::Timeout {
            message: String::new(),
        },
        Some(class) => RecordedOutcome::Error {
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
