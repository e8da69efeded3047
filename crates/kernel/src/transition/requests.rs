//! Instances that a request starts, not an event: they are given an input.

use saga_runner_language::definition::Definition;
use saga_runner_language::json::Json;
use saga_runner_language::limits::Limits;

use super::run::{Ground, Opening, Run};
use super::{Rejection, events, parents, program, seen};
use crate::children::ParentRef;
use crate::input::{Control, Input, InputBody};
use crate::patch::{IgnoreReason, Outcome, Patch};
use crate::record::Record;

/// Reason of a request whose input the saga does not take.
const REFUSED: &str = "input.schema";

/// Opens an instance with its input. A parent is told why that cannot be.
pub(super) fn start(
    ground: Ground<'_>,
    input: &[u8],
    parent: Option<&ParentRef>,
) -> Result<Patch, Rejection> {
    let checked = check(ground.definition, input, ground.context.limits);
    let too_deep = parent.and_then(|parent| parents::too_deep(parent, ground.context));
    match (checked.err().or(too_deep), parent) {
        (Some(message), Some(parent)) => return Ok(parents::refuse(ground, parent, &message)),
        (Some(message), None) => {
            return Err(Rejection {
                reason: REFUSED,
                message,
            });
        }
        (None, _) => {}
    }
    let origin = Opening {
        id: &ground.input.id,
        input: Some(input),
        hops: parent.map_or(0, |parent| parent.hops),
        traceparent: parent.map_or_else(
            || of_request(ground.input),
            |parent| parent.traceparent.as_deref(),
        ),
        correlation_id: None,
    };
    let mut run = Run::open(ground, origin);
    run.record.parent = parent.map(|parent| Box::new(parents::parent(parent)));
    events::begin(&mut run, events::Entrance::Plain)?;
    if ground.definition.program.is_some() {
        program::request(&mut run, input)?;
    }
    seen::remember_event(&mut run.record, seen::control(ground.input));
    run.conclude(Outcome::Applied)
}

/// The trace of whoever asks for a start.
fn of_request(input: &Input) -> Option<&str> {
    match &input.body {
        InputBody::Control(Control::Start { traceparent, .. }) => traceparent.as_deref(),
        InputBody::Event(_) | InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => None,
    }
}

/// Whether the instance has applied this request before (`Duplicate`), or another one under its id (`Mismatch`).
#[must_use]
pub fn repeated(record: &Record, input: &Input) -> Option<IgnoreReason> {
    let known = seen::find_control(record, input);
    known.or_else(|| {
        let InputBody::Control(Control::Start { input: given, .. }) = &input.body else {
            return None;
        };
        let had = record.input.as_ref().map(|input| input.as_slice());
        seen::is_start(record, &input.id).then(|| match had {
            Some(had) if had != given.as_ref() => IgnoreReason::Mismatch,
            Some(_) | None => IgnoreReason::Duplicate,
        })
    })
}

/// Whether an instance of the saga may be started with `input`.
///
/// # Errors
/// A sentence that says why not.
pub fn check(definition: &Definition, input: &[u8], limits: &Limits) -> Result<(), String> {
    let Some(schema) = &definition.input else {
        return Err(format!(
            "saga {} takes no input: events alone start it",
            definition.name
        ));
    };
    let input = Json::parse(input, limits.json_depth).map_err(|error| format!("input: {error}"))?;
    schema
        .check(&input)
        .map_err(|violation| format!("input {violation}"))
}
