//! Which piece of work a step of a case is about.

use std::fmt::{Display, Formatter};
use std::ops::Range;

use super::file::Reader;
use super::keys;
use super::work::{own_name, without_index};
use crate::kernel::definition::codes;
use crate::kernel::definition::fields::{self, Fields};
use crate::kernel::definition::yaml::{Entry, Value};
use crate::kernel::ledger::LedgerStatus;
use crate::kernel::record::Record;
use crate::kernel::work::WorkItem;

/// A name, and where that does not suffice the numbers that tell works of that name apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Of {
    /// `charge`, `charge.compensate`, or any path of a work item.
    pub step: String,
    /// 1 is the first.
    pub attempt: Option<u32>,
    /// How often the step had begun again, by loops or `goto`: 0 is the first time.
    pub turn: Option<u32>,
    /// Index of the item of a loop over a list: 0 is the first.
    pub item: Option<u32>,
    /// Which life of the key: 1 is the first.
    pub generation: Option<u32>,
}

/// What tells a piece of work apart from others, as it was when it was sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Address {
    /// What tests call it.
    pub name: String,
    pub turn: Option<u32>,
    pub item: Option<u32>,
    pub generation: u32,
    /// Work before had its idempotency key.
    pub repeats: bool,
}

impl Of {
    #[must_use]
    pub fn named(step: &str) -> Self {
        Self {
            step: step.to_owned(),
            ..Self::default()
        }
    }

    /// Whether it means the piece of work that stands at `address`.
    #[must_use]
    pub fn means(&self, item: &WorkItem, address: &Address) -> bool {
        let name = &address.name;
        let own = own_name(&item.path, address.item);
        let is_own = own.is_some_and(|own| own == self.step || without_index(&own) == self.step);
        let named =
            is_own || *name == self.step || item.path == self.step || without_index(name) == self.step;
        let is = |wanted: Option<u32>, found: Option<u32>| wanted.is_none() || wanted == found;
        named
            && is(self.attempt, Some(item.attempt))
            && is(self.turn, address.turn)
            && is(self.item, address.item)
            && is(self.generation, Some(address.generation))
    }
}

impl Display for Of {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.step)?;
        for (what, number) in [
            ("attempt", self.attempt),
            ("turn", self.turn),
            ("item", self.item),
            ("generation", self.generation),
        ] {
            if let Some(number) = number {
                write!(f, ", {what} {number}")?;
            }
        }
        Ok(())
    }
}

impl Address {
    /// Where `item` stands; `record` is that of after the input that made it.
    #[must_use]
    pub fn of(name: String, item: &WorkItem, record: Option<&Record>, repeats: bool) -> Self {
        let mut address = Self {
            name,
            repeats,
            ..Self::default()
        };
        let Some(record) = record else {
            return address;
        };
        address.generation = record.generation;
        let is = |command| command == item.command_id;
        let mut steps = record.step_states();
        let step = steps.find(|(_, _, state)| state.outstanding.is_some_and(|sent| is(sent.command)));
        if let Some((_, index, state)) = step {
            (address.item, address.turn) = (index, Some(state.iteration));
            return address;
        }
        // The instance has failed in the same transaction.
        let mut strays = record.strays.iter();
        if let Some(stray) = strays.find(|stray| is(stray.outstanding.command)) {
            (address.item, address.turn) = (stray.item, Some(stray.iteration));
            return address;
        }
        let mut undoing = record.ledger.having(|status| status == LedgerStatus::Undoing);
        let undone = undoing.find(|(_, entry)| entry.outstanding.is_some_and(|sent| is(sent.command)));
        if let Some((_, entry)) = undone {
            (address.item, address.turn) = (entry.item, Some(entry.iteration));
        }
        address
    }
}

impl Reader<'_, '_> {
    /// The name of work, or a map that says which work of that name.
    pub(super) fn of(&mut self, entry: &Entry<'_>) -> Option<(Of, Range<usize>)> {
        let span = entry.value.span.clone();
        if !matches!(entry.value.value, Value::Map(_)) {
            let step = self.text(entry, "the step whose work it is")?;
            return Some((Of::named(&step), span));
        }
        let fields = Fields::read(&entry.value, &entry.key_span, &keys::OF, self.findings)?;
        let step = fields.require("step", self.findings)?;
        let step = self.text(step, "the step whose work it is")?;
        let mut number = |key: &str, least: u32| match fields.get(key) {
            None => Some(None),
            Some(entry) => {
                let range = least..=u32::MAX;
                fields::integer(entry, range, codes::WRONG_VALUE, self.findings).map(Some)
            }
        };
        let of = Of {
            step,
            attempt: number("attempt", 1)?,
            turn: number("turn", 0)?,
            item: number("item", 0)?,
            generation: number("generation", 1)?,
        };
        Some((of, span))
    }
}
