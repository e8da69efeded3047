//! What an input would come to if it were applied now. Nothing changes by it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use saga_runner_language::definition::DefinitionSet;

use super::{Context, Last, Rejection, apply, apply_ended, reaches_ended, replaces};
use crate::input::{Input, InputBody};
use crate::patch::{IgnoreReason, Patch};
use crate::record::Record;

/// What an input meets under its key.
#[derive(Debug, Clone, Copy)]
pub enum Meets<'r> {
    Nobody,
    Live(&'r Record),
    Ended(Last<'r>),
}

/// What the transition would make of the input; `None`: only the partition can tell, because it would replace an instance that runs.
///
/// # Errors
/// [`Rejection`]: it would be a dead letter.
#[must_use]
pub fn rehearse(
    definitions: &DefinitionSet,
    meets: Meets<'_>,
    input: &Input,
    context: &Context<'_>,
) -> Option<Result<Patch, Rejection>> {
    let id = &input.instance;
    let active = definitions.active(&id.saga);
    let own = match meets {
        Meets::Nobody => None,
        Meets::Live(record) => Some(record),
        Meets::Ended(last) => last.record,
    };
    let own = own.and_then(|record| definitions.by_hash(&record.definition));
    let definition = match meets {
        Meets::Live(_) => own,
        Meets::Nobody => active,
        Meets::Ended(_) => active.or(own),
    };
    let Some(definition) = definition else {
        return Some(Err(Rejection {
            reason: "definition.missing",
            message: format!("no definition of saga {} is loaded that it could meet", id.saga),
        }));
    };
    if let InputBody::Event(event) = &input.body
        && definitions.is_contested(&id.saga, &event.event_type)
        && !definition.addresses(&id.key, event, input.time, context.limits)
    {
        return Some(Ok(Patch::ignored(IgnoreReason::OtherKey)));
    }
    let applied = catch_unwind(AssertUnwindSafe(|| match meets {
        Meets::Live(_) if replaces(input) => None,
        Meets::Live(record) => Some(apply(definition, id, Some(record), input, context)),
        Meets::Ended(last) if reaches_ended(input) => {
            let (active, own) = (active.map(AsRef::as_ref), own.map(AsRef::as_ref));
            Some(apply_ended(active, own, id, last, input, context, None))
        }
        Meets::Nobody | Meets::Ended(_) => Some(apply(definition, id, None, input, context)),
    }));
    applied.unwrap_or_else(|_| {
        Some(Err(Rejection {
            reason: "poison.panic",
            message: "the transition panics; please report it".to_owned(),
        }))
    })
}
