//! Instances that a request starts, not an event: they are given an input.

use saga_runner_language::definition::Definition;
use saga_runner_language::json::Json;
use saga_runner_language::limits::Limits;

use super::run::{Ground, Opening, Run};
use super::{Rejection, children, events, program, seen};
use crate::children::ParentRef;
use crate::patch::{Outcome, Patch};

/// Reason of a request whose input the saga does not take.
const REFUSED: &str = "input.schema";

/// Opens an instance with its input. A parent is told why that cannot be.
pub(super) fn start(
    ground: Ground<'_>,
    input: &[u8],
    parent: Option<&ParentRef>,
) -> Result<Patch, Rejection> {
    let checked = check(ground.definition, input, ground.context.limits);
    let too_deep = parent.and_then(|parent| children::too_deep(parent, ground.context));
    match (checked.err().or(too_deep), parent) {
        (Some(message), Some(parent)) => return Ok(children::refuse(ground, parent, &message)),
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
        traceparent: parent.and_then(|parent| parent.traceparent.as_deref()),
        correlation_id: None,
    };
    let mut run = Run::open(ground, origin);
    run.record.parent = parent.map(|parent| Box::new(children::parent(parent)));
    events::begin(&mut run, events::Entrance::Plain)?;
    if ground.definition.program.is_some() {
        program::request(&mut run, input)?;
    }
    seen::remember_event(&mut run.record, seen::control(&ground.input.id));
    run.conclude(Outcome::Applied)
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
