//! A start in place of an instance that runs: its end and the next generation are written in one transaction, with a row each in
//! the history.

use std::panic::{AssertUnwindSafe, catch_unwind};

use saga_runner_kernel::definition::Definition;
use saga_runner_kernel::input::Input;
use saga_runner_kernel::patch::IgnoreReason;
use saga_runner_kernel::record::Record;
use saga_runner_kernel::transition::{Context, Replacement, replace};

use super::apply::{Fate, Turn};
use super::staging::Run;
use super::watch::Watch;
use crate::storage::StorageError;

impl Run<'_> {
    /// Replaces the instance of this record, or leaves it as it is; `own` is its version.
    pub fn replace(
        &mut self,
        input: &Input,
        record: Record,
        own: &Definition,
        turn: Turn,
    ) -> Result<Fate, StorageError> {
        let id = &input.instance;
        let definitions = self.ground.definitions;
        let Some(active) = definitions.active(&id.saga) else {
            return Ok(self.ignore(input, Some(record), IgnoreReason::NoInstance));
        };
        let context = Context {
            limits: self.ground.limits,
            cluster: self.ground.cluster,
            log_sequence: self.next_sequence(),
            generation: record.generation,
            again: turn.is_again(),
        };
        // Work is named by the log sequence that has asked for it: the next generation has its own.
        let next = Context {
            log_sequence: self.next_sequence(),
            generation: record.generation.saturating_add(1),
            ..context
        };
        let trace = self.ground.watch.and_then(Watch::trace);
        let applied = catch_unwind(AssertUnwindSafe(|| {
            replace(active, own, id, &record, input, [&context, &next], trace)
        }));
        let applied = match applied {
            Ok(Ok(Replacement::Replaced { ended, begun })) => {
                let ends = self.write(input, Some(record), *ended, context.log_sequence, turn)?;
                let begins = self.write(input, None, *begun, next.log_sequence, turn)?;
                return Ok(if ends == Fate::Readmits { ends } else { begins });
            }
            Ok(Ok(Replacement::Stays(patch))) => Ok(Ok(*patch)),
            Ok(Err(rejection)) => Ok(Err(rejection)),
            Err(panic) => Err(panic),
        };
        self.conclude(input, Some(record), applied, context.log_sequence, turn)
    }
}
