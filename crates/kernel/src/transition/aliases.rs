//! Values by which events find an instance beside its key: registered on its way, released at its end.
//!
//! ```text
//! step done ──register──▶ alias        alias ──event──▶ every instance that has it
//!                                      alias ──answer─▶ an instance that it refuses, or accepts on a retry
//! end       ──release───▶ alias, which still forwards what `after_end` hears as long as the instance is kept
//! ```

use saga_runner_language::alias::{Alias, Via};
use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::COMMAND_TIMEOUT_MS;
use saga_runner_language::expr::Template;
use saga_runner_language::json::Json;

use super::Rejection;
use super::emission::Repetition;
use super::place::Place;
use super::run::{Ground, Run};
use super::scope::Locals;
use crate::children::SagaMessage;
use crate::patch::{IgnoreReason, Note, Outcome, Patch};
use crate::record::{Record, Registered};
use crate::work::WorkKind;

/// Path of what an instance tells the aliases that it has no more.
const RELEASE: &str = "aliases.release";
/// Path of what another generation tells the aliases of the one before.
const AGAIN: &str = "aliases.register";

impl<'a> Run<'a> {
    /// Registers values; one that is null is none, and one that is registered already stays so.
    pub(super) fn register(
        &mut self,
        aliases: &[(String, Template)],
        locals: Locals<'a>,
        place: Place<'_>,
    ) -> Result<(), Rejection> {
        for (name, template) in aliases {
            let path = format!("{place}.alias.{name}");
            let rendered = self.render(template, locals, || path.clone())?;
            let Some(alias) = value(name, &rendered, &path)? else {
                continue;
            };
            if self.record.has_alias(&alias) {
                continue;
            }
            let max = self.ground.context.limits.aliases;
            if self.record.aliases.len() >= max {
                return Err(Rejection {
                    reason: "alias.count",
                    message: format!("{path}: an instance has at most {max} aliases"),
                });
            }
            let message = SagaMessage::RegisterAlias {
                generation: self.record.generation,
            };
            let nth = self.record.aliases.len();
            self.tell(path, nth, &alias, message)?;
            self.note(Note::AliasRegistered {
                alias: alias.name.clone(),
                value: alias.value.clone(),
            });
            self.record.aliases.push(Registered {
                alias,
                refused: false,
            });
        }
        Ok(())
    }

    /// Gives up all aliases but those by which events come that are heard after the end.
    pub(super) fn release_aliases(&mut self) -> Result<(), Rejection> {
        for (nth, registered) in std::mem::take(&mut self.record.aliases).into_iter().enumerate() {
            let alias = &registered.alias;
            let hears = is_heard_after_end(self.ground.definition, alias);
            let message = SagaMessage::ReleaseAlias {
                generation: self.record.generation,
                hears,
            };
            self.tell(RELEASE.to_owned(), nth, alias, message)?;
            if hears {
                self.record.aliases.push(registered);
                continue;
            }
            self.note(Note::AliasReleased {
                alias: registered.alias.name.clone(),
                value: registered.alias.value.clone(),
            });
            self.record.released.push(registered.alias);
        }
        Ok(())
    }

    /// Registers what the generation before had.
    pub(super) fn register_again(&mut self, last: &Record) -> Result<(), Rejection> {
        let kept = last.aliases.iter().map(|registered| &registered.alias);
        for (nth, alias) in last.released.iter().chain(kept).enumerate() {
            if self.record.has_alias(alias) {
                continue;
            }
            let message = SagaMessage::RegisterAlias {
                generation: self.record.generation,
            };
            self.tell(AGAIN.to_owned(), nth, alias, message)?;
            self.note(Note::AliasRegistered {
                alias: alias.name.clone(),
                value: alias.value.clone(),
            });
            self.record.aliases.push(Registered {
                alias: alias.clone(),
                refused: false,
            });
        }
        Ok(())
    }

    /// `nth` tells the messages of one input apart.
    fn tell(
        &mut self,
        path: String,
        nth: usize,
        alias: &Alias,
        message: SagaMessage,
    ) -> Result<(), Rejection> {
        let kind = WorkKind::Saga {
            saga: self.ground.instance.saga.clone(),
            key: alias.key(),
            message,
            awaited: false,
        };
        let repetition = Repetition {
            item: u32::try_from(nth).unwrap_or(u32::MAX),
            ..Repetition::once(self.record.version)
        };
        self.push_work(path, repetition, COMMAND_TIMEOUT_MS, kind)
            .map(drop)
    }
}

fn is_heard_after_end(definition: &Definition, alias: &Alias) -> bool {
    let mut matched = definition.by.iter();
    matched.any(|(event_type, rule)| {
        rule.alias == alias.name && definition.lifecycle.after_end.contains_key(event_type)
    })
}

fn value(name: &str, rendered: &[u8], path: &str) -> Result<Option<Alias>, Rejection> {
    let unfit = |message: String| Rejection {
        reason: "alias.value",
        message: format!("{path}: {message}"),
    };
    let value = Json::parse(rendered, 1).map_err(|error| unfit(error.to_string()))?;
    Alias::new(name, &value).map_err(|error| unfit(error.to_string()))
}

/// Why what an alias tells a generation of the instance does not concern it, if it does not: it was on its way while
/// the instance has given the alias up, or ended and begun again.
pub(super) fn refusal(record: &Record, via: &Via) -> Option<IgnoreReason> {
    let is_same = record.generation == via.generation;
    match is_same && record.has_alias(&via.alias) {
        true => None,
        false if is_same && record.phase.is_terminal() => Some(IgnoreReason::Ended),
        false => Some(IgnoreReason::NoInstance),
    }
}

/// An alias has refused the instance, or has accepted it on a retry. Its messages come in order, so the last one counts.
pub(super) fn answered<'a>(
    ground: Ground<'a>,
    record: &'a Record,
    via: &Via,
    refused: bool,
) -> Result<Patch, Rejection> {
    if let Some(reason) = refusal(record, via) {
        return Ok(Patch::ignored(reason));
    }
    if record.phase.is_terminal() {
        return Ok(Patch::ignored(IgnoreReason::Ended));
    }
    let mut run = Run::of(ground, record);
    let mut registered = run.record.aliases.iter_mut();
    let Some(registered) = registered.find(|known| known.alias == via.alias && known.refused != refused)
    else {
        return Ok(Patch::ignored(IgnoreReason::Duplicate));
    };
    registered.refused = refused;
    let (alias, value) = (via.alias.name.clone(), via.alias.value.clone());
    run.note(if refused {
        Note::AliasRefused { alias, value }
    } else {
        Note::AliasAccepted { alias, value }
    });
    run.finish(Outcome::Applied)
}
