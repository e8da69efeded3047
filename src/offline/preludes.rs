//! Cases of many steps: one stands on another, and steps are repeated.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::file::{Case, Given, Placed, Reader};
use super::keys;
use crate::kernel::definition::codes;
use crate::kernel::definition::fields::{self, Fields};
use crate::kernel::definition::yaml::{Entry, Value};
use crate::kernel::expr::nearest;

/// Most steps of one case, with those before it and each as often as it is repeated.
const STEPS_MAX: usize = 100_000;
/// Most rounds of one `repeat`.
const ROUNDS_MAX: u32 = 100_000;

impl Reader<'_, '_> {
    /// The case before this one. The instance is the same, so it has the same key and begins at the same time.
    pub(super) fn given(&mut self, fields: &Fields<'_, '_>, entry: &Entry<'_>) -> Option<Given> {
        for key in ["start", "key", "sagas"] {
            if let Some(own) = fields.get(key) {
                let message = format!("\"{key}\" is that of the case that is given");
                self.findings
                    .error(codes::CONTRADICTION, own.key_span.clone(), message);
            }
        }
        Some(Given {
            name: self.text(entry, "the name of a case of this file")?,
            span: entry.value.span.clone(),
            steps: 0,
        })
    }

    /// The sagas whose instances are there as well.
    pub(super) fn sagas(&mut self, fields: &Fields<'_, '_>) -> Option<Vec<(String, Range<usize>)>> {
        let Some(entry) = fields.get("sagas") else {
            return Some(Vec::new());
        };
        let mut sagas = Vec::new();
        for node in fields::one_or_many(&entry.value) {
            let name = fields::text(node, &entry.key_span, "the name of a saga", self.findings)?;
            sagas.push((name.to_owned(), node.span.clone()));
        }
        Some(sagas)
    }

    /// Reads steps, those of a `repeat` as often as it says.
    pub(super) fn steps(
        &mut self,
        listed: &Entry<'_>,
        round: Option<(u32, u32)>,
        into: &mut Vec<Placed>,
    ) -> Option<()> {
        let mut whole = Some(());
        for node in self.list(listed, "steps")? {
            let repeats = match &node.value {
                Value::Map(entries) => entries.iter().any(|entry| entry.key == "repeat"),
                Value::Scalar(_) | Value::List(_) => false,
            };
            if repeats {
                let fields = Fields::item(node, &listed.key_span, &keys::REPEAT, self.findings)?;
                let times = fields.require("repeat", self.findings)?;
                let rounds = fields::integer(times, 1..=ROUNDS_MAX, codes::WRONG_VALUE, self.findings)?;
                let steps = fields.require("steps", self.findings)?;
                let mut once = Vec::new();
                self.steps(steps, Some((1, rounds)), &mut once)?;
                if self.is_too_long(into.len() + once.len() * rounds as usize, &times.value.span) {
                    return None;
                }
                for number in 1..=rounds {
                    into.extend(once.iter().map(|placed| Placed {
                        round: Some((number, rounds)),
                        ..placed.clone()
                    }));
                }
            } else if let Some(step) = self.step(node, &listed.key_span) {
                let step = Arc::new(step);
                into.push(Placed { step, round });
            } else {
                whole = None;
            }
        }
        whole
    }

    /// Puts the steps of the cases that are given before those of the others.
    pub(super) fn join(&mut self, cases: &mut [Case]) {
        let index: BTreeMap<String, usize> = (0..)
            .zip(&*cases)
            .map(|(at, case)| (case.name.clone(), at))
            .collect();
        let mut joined = vec![false; cases.len()];
        for at in 0..cases.len() {
            // The cases on which it stands, the nearest first.
            let mut chain = vec![at];
            while let Some(&last) = chain.last() {
                let Some(given) = cases[last].given.as_ref().filter(|_| !joined[last]) else {
                    break;
                };
                let Some(&before) = index.get(&given.name) else {
                    let message = format!("no case is called \"{}\"", given.name.escape_debug());
                    let help = nearest(&given.name, index.keys().map(String::as_str))
                        .map(|near| format!("did you mean \"{near}\"?"));
                    self.findings
                        .error(codes::WRONG_VALUE, given.span.clone(), message)
                        .help(help);
                    return;
                };
                if chain.contains(&before) {
                    let message = format!("\"{}\" stands on this case itself", given.name.escape_debug());
                    self.findings
                        .error(codes::CONTRADICTION, given.span.clone(), message);
                    return;
                }
                chain.push(before);
            }
            while let Some(before) = chain.pop() {
                let Some(&at) = chain.last() else {
                    break;
                };
                if self.is_too_long(cases[before].steps.len() + cases[at].steps.len(), &cases[at].span) {
                    return;
                }
                let given = &cases[before];
                let (start, key, chaos) = (given.start, given.key.clone(), given.chaos);
                let sagas = given.sagas.clone();
                let steps = given.steps.clone();
                let case = &mut cases[at];
                (case.start, case.key, case.sagas) = (start, key, sagas);
                case.chaos &= chaos;
                if let Some(given) = &mut case.given {
                    given.steps = steps.len();
                }
                case.steps.splice(0..0, steps);
                joined[at] = true;
            }
        }
    }

    fn is_too_long(&mut self, steps: usize, span: &Range<usize>) -> bool {
        let is = steps > STEPS_MAX;
        if is {
            let message = format!("{steps} steps, at most {STEPS_MAX} are allowed");
            self.findings.error(codes::LIMIT, span.clone(), message);
        }
        is
    }
}
