//! Reading what bounds the life of an instance and of its steps: timers, deadlines, the condition that cancels.

use super::actions::{Reading, Site};
use super::certain;
use super::codes;
use super::fields::{self, Fields, NameRule};
use super::grammar;
use super::groups::Outlined;
use super::loops;
use super::model::{Actions, DEADLINE, Delay, EVERY_MS_MIN, Fail, TimerDefinition};
use super::saga::COMPLETED_ROOTS;
use super::steps::START_ROOTS;
use super::texts::EventParts;
use super::yaml::{Entry, Value};
use crate::duration::Millis;
use crate::expr::{Expr, Root};

impl<'r> Reading<'r, '_> {
    /// `timers` and `deadline`, in code-point order of their names, in which they are set.
    pub fn saga_timers(
        &mut self,
        fields: &Fields<'r, '_>,
        outline: &[Outlined<'r, '_>],
    ) -> Vec<TimerDefinition> {
        let entries = fields
            .get("timers")
            .and_then(|entry| fields::entries(&entry.value, &entry.key_span, "timers", self.findings));
        let mut timers: Vec<TimerDefinition> = entries
            .unwrap_or_default()
            .iter()
            .filter_map(|timer| self.timer_definition(timer, outline))
            .collect();
        if let Some(entry) = fields.get("deadline") {
            if timers.iter().any(|timer| timer.name == DEADLINE) {
                self.findings.error(
                    codes::CONTRADICTION,
                    entry.key_span.clone(),
                    "the deadline of a saga is the timer \"deadline\", and \"timers\" has one of this name",
                );
            }
            self.timers.declared.insert(DEADLINE);
            timers.extend(self.saga_deadline(entry));
        }
        timers.sort_by(|left, right| left.name.cmp(&right.name));
        timers
    }

    fn timer_definition(
        &mut self,
        entry: &'r Entry<'_>,
        outline: &[Outlined<'r, '_>],
    ) -> Option<TimerDefinition> {
        fields::is_name(
            &entry.key,
            &entry.key_span,
            "timer",
            NameRule::Dashed,
            self.findings,
        );
        let fields = self.timer_fields(entry)?;
        let during = fields.get("during");
        // Any input may start a step. With the instance, a timer is set before the handlers of the event run.
        let event = if during.is_some() {
            EventParts::Moment
        } else {
            EventParts::Whole
        };
        let during = during.and_then(|step| self.during(step, outline));
        let every = fields.get("every").and_then(|every| self.every(every));
        let after = match (fields.get("after"), &every) {
            (None, Some(every)) => Some(every.clone()),
            (None, None) if fields.get("every").is_some() => None,
            _ => fields
                .require("after", self.findings)
                .and_then(|after| self.delay(after, COMPLETED_ROOTS, event)),
        };
        let cancel_when = fields
            .get("cancel_when")
            .map(|condition| self.cancel_when(condition));
        let deeds = [
            "set",
            "clear_timer",
            "timer",
            "alias",
            "emit",
            "interrupt",
            "complete",
            "cancel",
            "fail",
            "to",
        ];
        if deeds.iter().all(|deed| fields.get(deed).is_none()) {
            self.timers.idle.push((&entry.key, entry.key_span.clone()));
        }
        let max = fields.get("max").and_then(|max| {
            if fields.get("every").is_none() && !fields.is_meant("every") {
                let message = "a timer without \"every\" fires once";
                self.findings
                    .error(codes::CONTRADICTION, max.key_span.clone(), message);
            }
            fields::integer(max, 1..=u32::MAX, codes::WRONG_VALUE, self.findings)
        });
        self.timer = Some(&entry.key);
        let actions = self.actions(&fields, Site::Timer);
        self.timer = None;
        Some(TimerDefinition {
            name: entry.key.clone().into_owned(),
            after: after.unwrap_or(Delay::Fixed(0)),
            every,
            max,
            during,
            cancel_when,
            actions,
        })
    }

    /// How long a timer rests between two times that it fires. It is looked at each time.
    fn every(&mut self, entry: &'r Entry<'_>) -> Option<Delay> {
        let every = self.delay(entry, COMPLETED_ROOTS, EventParts::Moment)?;
        if let Delay::Fixed(ms) = every
            && ms < EVERY_MS_MIN
        {
            let least = Millis(EVERY_MS_MIN.unsigned_abs());
            let message = format!("a timer fires at most every {least}");
            self.findings
                .error(codes::WRONG_VALUE, entry.value.span.clone(), message);
            return None;
        }
        Some(every)
    }

    /// The step that a timer begins and ends with.
    fn during(&mut self, entry: &'r Entry<'_>, outline: &[Outlined<'r, '_>]) -> Option<u16> {
        let step = self.step_name(&entry.value, entry)?;
        if loops::item_name(usize::from(step), outline).is_some() {
            self.findings
                .error(
                    codes::OUT_OF_REACH,
                    entry.value.span.clone(),
                    "the step runs for many items at the same time, and a timer is one",
                )
                .help(Some("name the loop itself".to_owned()));
            return None;
        }
        Some(step)
    }

    /// `deadline: 2h`, or `deadline: {after, complete, drain, fail}`
    fn saga_deadline(&mut self, entry: &'r Entry<'_>) -> Option<TimerDefinition> {
        let (after, complete, cancel, drain, fail) = if let Value::Map(_) = &entry.value.value {
            let fields = Fields::read(
                &entry.value,
                &entry.key_span,
                &grammar::saga::DEADLINE,
                self.findings,
            )?;
            let after = fields.require("after", self.findings);
            let complete = fields
                .get("complete")
                .and_then(|complete| self.complete(complete, COMPLETED_ROOTS, EventParts::Moment));
            self.ends_here(&fields, &["cancel", "fail"]);
            let cancel = fields
                .get("cancel")
                .and_then(|cancel| self.cancel(cancel, COMPLETED_ROOTS, EventParts::Moment));
            self.cancelled_here(&fields, &["drain", "fail"]);
            let drain = fields.get("drain");
            if let (Some(drain), Some(_)) = (drain, fields.get("fail")) {
                let message = "how the instance fails stands under \"fail\", \"drain\" with it";
                self.findings
                    .error(codes::CONTRADICTION, drain.key_span.clone(), message);
            }
            let drain = drain.and_then(|drain| fields::boolean(drain, self.findings));
            let fail = fields
                .get("fail")
                .and_then(|fail| self.fail(fail, COMPLETED_ROOTS, EventParts::Moment));
            let after = after.and_then(|after| self.delay(after, COMPLETED_ROOTS, EventParts::Whole));
            (after?, complete, cancel, drain.unwrap_or_default(), fail)
        } else {
            (
                self.delay(entry, COMPLETED_ROOTS, EventParts::Whole)?,
                None,
                None,
                false,
                None,
            )
        };
        let fail = fail.unwrap_or_else(|| Fail {
            code: DEADLINE.to_owned(),
            message: None,
            keep: Vec::new(),
            drain,
        });
        Some(TimerDefinition {
            name: DEADLINE.to_owned(),
            after,
            every: None,
            max: None,
            during: None,
            cancel_when: None,
            actions: Actions {
                complete,
                cancel,
                fail: Some(fail),
                ..Actions::default()
            },
        })
    }

    /// `deadline` of a step that no loop is around.
    pub fn deadline_of_step(&mut self, fields: &Fields<'r, '_>) -> Option<Delay> {
        let entry = fields.get("deadline")?;
        let (message, help) = if fields.get("saga").is_some() {
            (
                "a step that starts a saga has one attempt, and no \"deadline\" over several",
                "say with \"timeout\" how long the saga may take",
            )
        } else if ["effect", "command", "wait"]
            .iter()
            .any(|key| fields.get(key).is_some())
        {
            return self.deadline(fields, START_ROOTS);
        } else {
            (
                "a \"deadline\" bounds what takes time, and the step is done as soon as it starts",
                "how long it waits before it starts is its \"delay\"",
            )
        };
        self.findings
            .error(codes::CONTRADICTION, entry.key_span.clone(), message)
            .help(Some(help.to_owned()));
        None
    }

    /// `deadline` of a loop, or of work that may be tried again.
    pub fn deadline(&mut self, fields: &Fields<'r, '_>, roots: &'static [Root]) -> Option<Delay> {
        let entry = fields.get("deadline")?;
        let deadline = self.delay(entry, roots, EventParts::Moment)?;
        if let Delay::Fixed(0) = deadline {
            let message = "a deadline of 0 passes before anything begins";
            self.findings
                .error(codes::WRONG_VALUE, entry.value.span.clone(), message);
            return None;
        }
        Some(deadline)
    }

    /// What is tested with every input.
    pub fn cancel_when(&mut self, entry: &'r Entry<'_>) -> Expr {
        let condition = self.expr(entry, COMPLETED_ROOTS, EventParts::Moment);
        self.certain(entry, &condition, certain::CANCEL);
        condition
    }
}
