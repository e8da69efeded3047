//! The event that has started an instance: the record has no data of it, so a restart brings them along, from the history or, where that
//! did not keep them, from the message.

use super::inputs::message;
use super::node::Node;
use super::streams;
use crate::intake::decode::Decoded;
use crate::kernel::envelope::{ControlMessage, ControlVerb, StartedBy};
use crate::kernel::ids::InstanceId;
use crate::kernel::input::{Control, DomainEvent, InputBody, Operation, OperationVerb};
use crate::ports::control::ControlError;
use crate::storage::read::Found;
use crate::storage::rows::HistoryOutcome;

/// A request to restart an instance, with the event that has started it, as far as that is kept. Every other request as it is.
///
/// # Errors
/// [`ControlError::Unavailable`] where storage or broker do not answer.
pub(super) async fn with_event(
    node: &Node,
    id: &InstanceId,
    request: ControlMessage,
) -> Result<ControlMessage, ControlError> {
    if !matches!(request.verb, ControlVerb::Restart { event: None }) {
        return Ok(request);
    }
    let event = started_by(node, id).await?.map(Box::new);
    Ok(ControlMessage {
        verb: ControlVerb::Restart { event },
        ..request
    })
}

/// # Errors
/// As [`with_event`].
pub(super) async fn started_by(node: &Node, id: &InstanceId) -> Result<Option<StartedBy>, ControlError> {
    let reader = node.shard(id).await?.reader;
    let owned = id.clone();
    let first = node.read(move || {
        let Some(Found::Ended(summary)) = reader.instance(&owned)? else {
            return Ok(None);
        };
        let record = summary.record;
        if record.input.is_some() {
            return Ok(None);
        }
        let (rows, _) = reader.history_behind(record.last_history, None, 1)?;
        let Some((number, first)) = rows.into_iter().next() else {
            return Ok(None);
        };
        let kept = reader.kept_with_history([number], usize::MAX)?;
        let kept = kept.into_iter().next().and_then(|kept| kept.input);
        Ok(Some((first, kept)))
    });
    let Some((first, kept)) = first.await? else {
        return Ok(None);
    };
    if let Some(event) = kept.and_then(event) {
        return Ok(StartedBy::of(&event));
    }
    let Some((stream, sequence)) = first.source else {
        return Ok(None);
    };
    let name = streams::name(&node.manifest, stream);
    let broker = &node.running_or_unavailable()?.broker;
    let stored = broker.message_at(name, sequence).await;
    let Some(stored) = stored.map_err(|error| ControlError::Unavailable(error.to_string()))? else {
        return Ok(None);
    };
    let mut decoder = node.decoder();
    decoder.event_id_from = Some(name.to_owned());
    let came = match decoder.decode(stream, &message(stored)) {
        Ok(Decoded::Event { event, .. }) => InputBody::Event(event),
        Ok(Decoded::Control { control, .. }) => InputBody::Control(control),
        Ok(_) | Err(_) => return Ok(None),
    };
    let Some(mut event) = event(came) else {
        return Ok(None);
    };
    if let HistoryOutcome::Edited { edited, .. } = first.outcome {
        event.payload = edited;
    }
    Ok(StartedBy::of(&event))
}

/// The event of an input that begins an instance with one.
fn event(came: InputBody) -> Option<DomainEvent> {
    match came {
        InputBody::Event(event) => Some(event),
        // It was restarted before.
        InputBody::Control(Control::Operate(Operation {
            verb: OperationVerb::RestartWith { event },
            ..
        })) => Some(*event),
        _ => None,
    }
}
