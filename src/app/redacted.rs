//! Inputs and work without what effects redact.

use std::sync::Arc;

use serde_json::Value;

use crate::kernel::definition::model::Action;
use crate::kernel::definition::{Definition, EffectDefinition};
use crate::kernel::ids::EffectName;
use crate::kernel::input::{Found, StuckDecision};
use crate::kernel::recorded::{RecordedBody, RecordedOutcome, RecordedWork};
use crate::kernel::work::EFFECT;
use crate::storage::kept::KeptWork;
use crate::storage::rows::HistoryRow;

/// The input without what its effect redacts of results, whoever told them.
pub(super) fn redacted(
    body: RecordedBody,
    effects: &[Arc<EffectDefinition>],
    definition: Option<&Definition>,
) -> RecordedBody {
    let hide = |name: &EffectName, result: &mut Value| {
        let effect = effects.iter().find(|effect| effect.name == *name);
        for path in effect.iter().flat_map(|effect| &effect.redaction.result) {
            path.hide_value(result);
        }
    };
    let mut body = body;
    match &mut body {
        RecordedBody::Result {
            effect: Some(name),
            outcome: RecordedOutcome::Ok(result) | RecordedOutcome::Unusable { result, .. },
            ..
        } => hide(name, result),
        RecordedBody::DecideStuck(StuckDecision {
            step: Some(step),
            found,
            result,
            ..
        }) => {
            let done = found.as_mut().and_then(|found| match found {
                Found::Done { result } => Some(result),
                Found::NotDone => None,
            });
            for result in done.into_iter().chain(result) {
                let mut told = serde_json::from_str(result).unwrap_or(Value::Null);
                for meant in definition.iter().flat_map(|definition| &definition.steps) {
                    if let (Action::Effect { effect, .. }, true) = (&meant.action, meant.is_named(step)) {
                        hide(effect, &mut told);
                    }
                }
                *result = told.to_string();
            }
        }
        _ => {}
    }
    body
}

/// Kept work, without what its effect redacts of inputs.
pub(super) fn recorded_work(kept: &KeptWork, effects: &[Arc<EffectDefinition>]) -> RecordedWork {
    let (kind, name, to) = kept.to.named();
    let mut payload = kept.payload.as_deref().map(json);
    if let (EFFECT, Some(payload)) = (kind, &mut payload) {
        let effect = effects.iter().find(|effect| effect.name.as_str() == name);
        for path in effect.iter().flat_map(|effect| &effect.redaction.input) {
            path.hide_value(payload);
        }
    }
    RecordedWork {
        id: kept.id,
        kind: kind.to_owned(),
        name: name.to_owned(),
        to: to.map(str::to_owned),
        path: kept.path.clone(),
        attempt: kept.attempt,
        idempotency_key: kept.idempotency_key(),
        payload,
    }
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or(Value::Null)
}

/// An edit without what its effect redacts of results.
pub(super) fn of_edit(
    body: RecordedBody,
    row: &HistoryRow,
    effects: &[Arc<EffectDefinition>],
) -> RecordedBody {
    let RecordedBody::EditedLetter {
        mut original,
        mut edited,
    } = body
    else {
        return body;
    };
    let name = row.kind.strip_prefix("result of ");
    let effect = effects.iter().find(|effect| Some(effect.name.as_str()) == name);
    for path in effect.iter().flat_map(|effect| &effect.redaction.result) {
        path.hide_value(&mut original);
        path.hide_value(&mut edited);
    }
    RecordedBody::EditedLetter { original, edited }
}
