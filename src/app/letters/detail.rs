//! One dead letter with its whole input, what its definition expects, and what a retry would come to.

use std::sync::Arc;

use super::{schema, unknown, view};
use crate::app::node::Node;
use crate::app::redacted::redacted;
use crate::app::{pages, streams};
use crate::kernel::alias;
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::ids::{ClusterId, TenantId};
use crate::kernel::input::{Control, Input, InputBody, Origin};
use crate::kernel::json::Json;
use crate::kernel::letters;
use crate::kernel::limits::Limits;
use crate::kernel::patch::Outcome;
use crate::kernel::recorded::RecordedBody;
use crate::kernel::schedule;
use crate::kernel::schema::Schema;
use crate::kernel::transition::{Context, Last, Meets, awaits, rehearse};
use crate::ports::control::{ControlError, DeadLetterDetail, LetterRetry, LetterVersions, LetterViolation};
use crate::storage::StorageError;
use crate::storage::read::{Found, Reader};
use crate::storage::rows::DeadLetter;

/// Places that are named where data break their schema.
const VIOLATIONS_MAX: usize = 20;

/// What stands around an input.
struct Around {
    found: Option<Found>,
    /// The dead letter behind which its instance waits.
    behind: Option<u64>,
    inputs: usize,
}

pub(super) async fn show(node: &Node, tenant: &TenantId, id: &str) -> Result<DeadLetterDetail, ControlError> {
    let (shard, number) = node.named_letter(id)?;
    let running = node.running_or_unavailable()?;
    let (reader, cluster) = (running.shard(shard).await?.reader, running.cluster);
    let (in_force, limits) = (node.catalog.now(), node.manifest.limits.clone());
    let (owned, sagas) = (tenant.clone(), Arc::clone(&in_force.sagas));
    let found = node.read(move || {
        let Some(letter) = reader
            .dead_letter(number)?
            .filter(|letter| letter.tenant == owned)
        else {
            return Ok(None);
        };
        let around = around(&reader, letter.input.as_ref())?;
        let cluster = cluster.unwrap_or(ClusterId::OFFLINE);
        let told = told(number, &letter, &around, &sagas, (&limits, cluster));
        Ok(Some((letter, told)))
    });
    let (letter, told) = found.await?.ok_or_else(|| unknown(id))?;
    let instance = letter.instance();
    let active = instance.and_then(|id| in_force.sagas.active(&id.saga));
    let definition = told.definition.as_deref();
    let input = letter.input.as_ref();
    let shown = input.map(|input| redacted(RecordedBody::of(&input.body), &in_force.effects, definition));
    let bytes = shown.as_ref().map_or(0, pages::json_bytes);
    let is_too_large = bytes > node.manifest.http.page_bytes_max;
    Ok(DeadLetterDetail {
        input_id: input.map(|input| input.id.clone()),
        stream: letter
            .source
            .map(|(stream, _)| streams::name(&node.manifest, stream).to_owned()),
        sequence: letter.source.map(|(_, sequence)| sequence),
        edited: input.is_some_and(|input| matches!(input.origin, Origin::Edited { .. })),
        input: shown.filter(|_| !is_too_large),
        input_bytes: is_too_large.then_some(bytes),
        blocks: told.blocks,
        definition: LetterVersions {
            met: letter.met.map(|hash| hash.to_string()),
            instance: told.instance,
            active: active.map(|active| active.hash.to_string()),
        },
        expected: told.expected,
        violations: told.violations,
        retry: told.retry,
        letter: view(shard, number, letter, &in_force.effects),
    })
}

/// The dead letter that the input of a letter has become once more, and why: `number` is its earlier one.
pub(super) fn again(
    reader: &Reader,
    number: u64,
    came: &Input,
) -> Result<Option<(u64, DeadLetter)>, StorageError> {
    let (behind, _) = reader.inbox(&came.instance, 1)?;
    let Some(behind) = behind.filter(|behind| *behind > number) else {
        return Ok(None);
    };
    let letter = reader.dead_letter(behind)?;
    let is_same = |letter: &DeadLetter| letter.input.as_ref().is_some_and(|input| input.id == came.id);
    Ok(letter.filter(is_same).map(|letter| (behind, letter)))
}

fn around(reader: &Reader, input: Option<&Input>) -> Result<Around, StorageError> {
    let Some(input) = input else {
        return Ok(Around {
            found: None,
            behind: None,
            inputs: 0,
        });
    };
    let (behind, rows) = reader.inbox(&input.instance, usize::MAX)?;
    let waits = rows.iter().filter(|(_, row)| row.reason.is_in_order());
    Ok(Around {
        found: reader.instance(&input.instance)?,
        behind,
        inputs: waits.count(),
    })
}

/// What the version that a retry meets says of the letter.
#[derive(Default)]
struct Told {
    definition: Option<Arc<Definition>>,
    /// The version that the instance runs under.
    instance: Option<String>,
    blocks: Option<usize>,
    expected: Option<serde_json::Value>,
    violations: Vec<LetterViolation>,
    retry: LetterRetry,
}

fn told(
    number: u64,
    letter: &DeadLetter,
    around: &Around,
    sagas: &DefinitionSet,
    (limits, cluster): (&Limits, ClusterId),
) -> Told {
    let Some(input) = &letter.input else {
        return Told {
            retry: refused("the message could not be read: publish it again, corrected"),
            ..Told::default()
        };
    };
    let record = around.found.as_ref().map(Found::record);
    let own = record.and_then(|record| sagas.by_hash(&record.definition));
    let active = sagas.active(&input.instance.saga);
    let definition = match &around.found {
        Some(Found::Live(_)) => own,
        Some(Found::Ended(_)) | None => active.or(own),
    };
    let expected = definition.and_then(|definition| schema_of(definition, input));
    let data = letters::data(input).and_then(|data| Json::parse(data, limits.json_depth).ok());
    let violations = expected.zip(data.as_ref()).map(|(schema, data)| {
        let found = schema.violations(data, VIOLATIONS_MAX).into_iter();
        let found = found.map(|violation| LetterViolation {
            at: violation.path.join("."),
            message: violation.message,
        });
        found.collect()
    });
    let is_live = matches!(around.found, Some(Found::Live(_)));
    Told {
        definition: definition.cloned(),
        instance: record
            .filter(|_| is_live)
            .map(|record| record.definition.to_string()),
        blocks: (around.behind == Some(number)).then_some(around.inputs),
        expected: expected.map(schema::shown),
        violations: violations.unwrap_or_default(),
        retry: retry(number, letter, input, around, sagas, (limits, cluster)),
    }
}

/// What the data of an input have to be. Data that an upcast changes first are not compared.
fn schema_of<'d>(definition: &'d Definition, input: &Input) -> Option<&'d Schema> {
    match &input.body {
        InputBody::Event(event) => {
            let known = definition.events.get(&event.event_type)?;
            let is_old = known.upcast.contains_key(&event.schema_version);
            known.schema.as_deref().filter(|_| !is_old)
        }
        InputBody::Result(result) => {
            let contract = definition.effects.get(result.effect.as_ref()?)?;
            contract.output.as_ref().map(|output| &*output.schema)
        }
        InputBody::Control(Control::Start { .. }) => definition.input.as_deref(),
        InputBody::Timer { .. } | InputBody::Control(_) => None,
    }
}

fn retry(
    number: u64,
    letter: &DeadLetter,
    input: &Input,
    around: &Around,
    sagas: &DefinitionSet,
    (limits, cluster): (&Limits, ClusterId),
) -> LetterRetry {
    let id = &input.instance;
    if letter.reason == "poison.crash" {
        return not_tried("the process died of it: it is not tried to show it");
    }
    if alias::is_address(&id.key) || schedule::is_address(&id.key) {
        return not_tried("it is not for an instance itself");
    }
    if around.behind.is_some_and(|behind| behind != number) {
        return not_tried("its instance waits behind another dead letter");
    }
    let meets = match &around.found {
        None => Meets::Nobody,
        Some(Found::Live(record)) => Meets::Live(record),
        Some(Found::Ended(summary)) => Meets::Ended(Last::of(summary)),
    };
    let awaited = matches!(meets, Meets::Live(record) if awaits(record, input));
    if matches!(input.body, InputBody::Result(_)) && !awaited {
        return refused("nothing waits for it any more: it can be discarded only");
    }
    let generation = match meets {
        Meets::Nobody => 1,
        Meets::Live(record) => record.generation,
        Meets::Ended(last) => last.generation,
    };
    let context = Context {
        limits,
        cluster,
        // It names rows, and none is written.
        log_sequence: 0,
        generation,
        again: true,
    };
    match rehearse(sagas, meets, input, &context) {
        None => not_tried("it would replace the instance that runs"),
        Some(Err(rejection)) => LetterRetry {
            outcome: "dead_letter",
            reason: rejection.reason.to_owned(),
            message: rejection.message,
            notes: Vec::new(),
        },
        Some(Ok(patch)) => {
            let (outcome, reason) = match patch.outcome {
                Outcome::Applied => ("applied", ""),
                Outcome::Deferred => ("deferred", ""),
                Outcome::Ignored(reason) => ("ignored", reason.as_str()),
            };
            LetterRetry {
                outcome,
                reason: reason.to_owned(),
                message: String::new(),
                notes: patch.notes,
            }
        }
    }
}

fn refused(message: &str) -> LetterRetry {
    LetterRetry {
        outcome: "refused",
        message: message.to_owned(),
        ..LetterRetry::default()
    }
}

fn not_tried(message: &str) -> LetterRetry {
    LetterRetry {
        outcome: "unknown",
        message: message.to_owned(),
        ..LetterRetry::default()
    }
}
