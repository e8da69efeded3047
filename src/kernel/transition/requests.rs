//! Instances that a request starts, not an event: they are given an input.

use super::run::{Ground, Opening, Run};
use super::{Rejection, events, seen};
use crate::kernel::definition::Definition;
use crate::kernel::json::Json;
use crate::kernel::limits::Limits;
use crate::kernel::patch::{Outcome, Patch};

/// Reason of a request whose input the saga does not take.
const REFUSED: &str = "input.schema";

/// Opens an instance with its input.
pub(super) fn start(ground: Ground<'_>, input: &[u8]) -> Result<Patch, Rejection> {
    check(ground.definition, input, ground.context.limits).map_err(|message| Rejection {
        reason: REFUSED,
        message,
    })?;
    let origin = Opening {
        id: &ground.input.id,
        input: Some(input),
        ..Opening::default()
    };
    let mut run = Run::open(ground, origin);
    events::begin(&mut run)?;
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
