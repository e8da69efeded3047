//! Reading how many of the steps that a step needs must be done.

use std::ops::RangeInclusive;

use super::actions::Reading;
use super::codes;
use super::fields::{self, Fields};
use super::grammar::Shape;
use super::grammar::steps::STEP_JOIN;
use super::model::{Count, ItemJoin, Join, Step, Stragglers};
use super::steps::{START_ROOTS, STEPS_MAX};
use super::texts::EventParts;
use super::typing;
use super::yaml::{Entry, Value};
use crate::expr::Template;
use crate::expr::types::Type;

impl Step {
    /// Whether there are steps that need this one, and for all of them some of their needs suffice: they go on
    /// without it when it fails.
    #[must_use]
    pub fn is_spare(steps: &[Self], index: usize) -> bool {
        let is_index = |need: &u16| usize::from(*need) == index;
        let mut needed = steps
            .iter()
            .filter(|other| other.needs.iter().any(is_index))
            .peekable();
        needed.peek().is_some() && needed.all(|other| matches!(other.join, Join::AtLeast { .. }))
    }
}

impl Reading<'_, '_> {
    /// `join: all | any | {at_least: N}` and `stragglers: let_run | cancel` of a step with these needs.
    pub fn join(&mut self, fields: &Fields<'_, '_>, needs: &[u16]) -> Join {
        let all_known = !self.lost_need && !fields.is_meant("needs");
        let entry = fields.get("join");
        if let Some(entry) = entry
            && needs.is_empty()
            && all_known
        {
            let message = "\"join\" says how many of its \"needs\" a step waits for, and there are none";
            self.findings
                .error(codes::MISSING_KEY, entry.key_span.clone(), message);
        }
        let most = if all_known && !needs.is_empty() {
            needs.len()
        } else {
            STEPS_MAX
        };
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let count = entry.and_then(|entry| self.join_count(entry, &STEP_JOIN, most));
        let written = fields.get("stragglers");
        let cancels =
            written.and_then(|entry| self.one_word(entry, &["let_run", "cancel"])) == Some("cancel");
        if let (Some(written), None | Some(ItemJoin::All)) = (written, &count) {
            self.findings
                .error(
                    codes::CONTRADICTION,
                    written.key_span.clone(),
                    "\"stragglers\" are what a join that has enough leaves behind",
                )
                .help(Some("write join: any, or join: {at_least: N}".to_owned()));
        }
        match count {
            None | Some(ItemJoin::All) => Join::All,
            Some(ItemJoin::AtLeast(count)) => Join::AtLeast {
                count,
                stragglers: if cancels {
                    Stragglers::Cancel
                } else {
                    Stragglers::LetRun
                },
            },
        }
    }

    /// `all`, `any`, or `{at_least: N}` with N from 1 to `most`.
    pub fn join_count(&mut self, entry: &Entry<'_>, shape: &'static Shape, most: u32) -> Option<ItemJoin> {
        if let Value::Map(_) = &entry.value.value {
            let fields = Fields::read(&entry.value, &entry.key_span, shape, self.findings)?;
            let count = fields.require("at_least", self.findings)?;
            return self.count(count, 1..=most).map(ItemJoin::AtLeast);
        }
        match self.one_word(entry, &["all", "any"])? {
            "all" => Some(ItemJoin::All),
            _ => Some(ItemJoin::AtLeast(Count::Fixed(1))),
        }
    }

    /// A whole number, or an expression that gives one.
    pub fn count(&mut self, entry: &Entry<'_>, range: RangeInclusive<u32>) -> Option<Count> {
        if let Value::Scalar(scalar) = &entry.value.value
            && scalar.text.contains("${")
        {
            let template = self.text(entry, "a whole number", START_ROOTS, EventParts::Moment);
            if let Some(types) = &self.types {
                typing::value(entry, &template, &Type::integer(), &types.env, self.findings);
            }
            if let Template::Value(expr) = template {
                return Some(Count::Computed(expr));
            }
            fields::expected(&entry.value, &entry.key_span, "a whole number", self.findings);
            return None;
        }
        fields::integer(entry, range, codes::WRONG_VALUE, self.findings).map(Count::Fixed)
    }
}
