//! Timers that actions set and clear, and the delays after which something happens.

use super::super::codes;
use super::super::fields::{self, Fields, NameRule};
use super::super::grammar;
use super::super::model::{Delay, TimerSet};
use super::super::texts::EventParts;
use super::super::typing;
use super::super::yaml::{Entry, Value};
use super::{ROOTS, Reading, Site};
use crate::expr::types::Type;
use crate::expr::{Root, Template};
use crate::limits::Limits;

impl<'r> Reading<'r, '_> {
    /// The fields of a timer of the whole instance.
    pub fn timer_fields<'n, 't>(&mut self, entry: &'n Entry<'t>) -> Option<Fields<'n, 't>> {
        let site = Site::Timer;
        Fields::read(&entry.value, &entry.key_span, site.shape(), self.findings)
    }

    pub(super) fn clear_timers(&mut self, entry: &'r Entry<'_>) -> Vec<String> {
        let mut names = Vec::new();
        for item in fields::one_or_many(&entry.value) {
            if let Some(name) = fields::text(item, &entry.key_span, "the name of a timer", self.findings) {
                self.timers.named.push((name, item.span.clone()));
                names.push(name.to_owned());
            }
        }
        names
    }

    pub(super) fn set_timers(&mut self, entry: &'r Entry<'_>, event: EventParts) -> Vec<TimerSet> {
        let Some(entries) = fields::entries(&entry.value, &entry.key_span, "timer", self.findings) else {
            return Vec::new();
        };
        let mut timers = Vec::new();
        for timer in entries {
            fields::is_name(
                &timer.key,
                &timer.key_span,
                "timer",
                NameRule::Dashed,
                self.findings,
            );
            let Some(fields) = Fields::read(
                &timer.value,
                &timer.key_span,
                &grammar::saga::TIMER_SET,
                self.findings,
            ) else {
                continue;
            };
            let span = fields.chosen(self.findings);
            let extend = span.is_some_and(|span| span.key == "extend");
            if extend {
                self.timers.named.push((&*timer.key, timer.key_span.clone()));
            } else {
                let place = timer.key_span.clone();
                self.timers.set.entry(&timer.key).or_insert(place);
            }
            let if_absent = fields.get("if_absent");
            if let (true, Some(entry)) = (extend, if_absent) {
                let message = "\"extend\" moves a timer that is set, \"if_absent\" sets one that is not";
                self.findings
                    .error(codes::CONTRADICTION, entry.key_span.clone(), message);
            }
            let after = span.and_then(|span| self.delay(span, ROOTS, event));
            timers.push(TimerSet {
                name: timer.key.clone().into_owned(),
                after: after.unwrap_or(Delay::Fixed(0)),
                if_absent: if_absent
                    .and_then(|answer| fields::boolean(answer, self.findings))
                    .unwrap_or(false),
                extend,
            });
        }
        timers.sort_by(|left, right| left.name.cmp(&right.name));
        timers
    }

    /// How long something takes: a duration, or an expression that gives one or an instant.
    pub fn delay(&mut self, entry: &Entry<'_>, roots: &'static [Root], event: EventParts) -> Option<Delay> {
        if let Value::Scalar(scalar) = &entry.value.value
            && scalar.text.contains("${")
        {
            let template = self.text(entry, "a duration", roots, event);
            if let (Some(types), Template::Value(_)) = (&self.types, &template) {
                // A number has no unit.
                typing::value(entry, &template, &Type::string(), &types.env, self.findings);
            }
            return Some(Delay::Rendered(template));
        }
        self.fixed(entry)
    }

    fn fixed(&mut self, entry: &Entry<'_>) -> Option<Delay> {
        let max = Limits::default().timer_ms.unsigned_abs();
        let ms = fields::duration(entry, 0..=max, codes::WRONG_VALUE, self.findings)?;
        Some(Delay::Fixed(i64::try_from(ms).unwrap_or(i64::MAX)))
    }
}
