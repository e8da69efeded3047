//! What a handler, a state entry or a timer does, in its fixed order.

use saga_runner_language::definition::model::{Actions, Cancel, Fail};
use saga_runner_language::expr::Template;

use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::{Rejection, deadlines, failure, members};

impl<'a> Run<'a> {
    /// Does everything but `to`, which belongs to the machine; `defer` is decided before.
    pub(super) fn act(
        &mut self,
        actions: &Actions,
        place: Place<'_>,
        iteration: u64,
    ) -> Result<(), Rejection> {
        self.set(&actions.set, Locals::default(), place)?;
        for name in &actions.clear_timers {
            self.clear_timer(name);
        }
        for timer in &actions.timers {
            if timer.if_absent && self.record.timers.contains_key(&timer.name) {
                continue;
            }
            let place = || format!("{place}.timer.{}", timer.name);
            if !timer.extend {
                let after_ms = self.delay_ms(&timer.after, Locals::default(), place)?;
                self.set_timer(&timer.name, after_ms, place)?;
                continue;
            }
            let later_ms = self.span_ms(&timer.after, Locals::default(), place)?;
            let Some(row) = self.record.timers.get(&timer.name) else {
                continue;
            };
            let left_ms = row.due.0.saturating_sub(self.record.updated.0);
            let fired = row.fired;
            self.set_timer(&timer.name, later_ms.saturating_add(left_ms.max(0)), place)?;
            // It is the same timer, which has fired as often as before.
            if let Some(row) = self.record.timers.get_mut(&timer.name) {
                row.fired = fired;
            }
        }
        self.register(&actions.aliases, Locals::default(), place)?;
        self.emit(&actions.emit, place, iteration)?;
        if let Some(interrupt) = &actions.interrupt {
            deadlines::interrupt(self, interrupt, place)?;
        }
        if let Some(complete) = &actions.complete
            && self.complete(complete, Locals::default(), place)?
        {
            return Ok(());
        }
        if let Some(cancel) = &actions.cancel {
            return self.cancel(cancel, Locals::default(), place, None);
        }
        match &actions.fail {
            Some(fail) => self.fail(fail, Locals::default(), place, None),
            None => Ok(()),
        }
    }

    /// Sets fields of the state, all from the state before.
    pub(super) fn set(
        &mut self,
        sets: &[(String, Template)],
        locals: Locals<'a>,
        place: Place<'_>,
    ) -> Result<(), Rejection> {
        if sets.is_empty() {
            return Ok(());
        }
        let mut rendered = Vec::with_capacity(sets.len());
        for (name, template) in sets {
            let value = self.render(template, locals, || format!("{place}.set.{name}"))?;
            let max = self.ground.context.limits.json_depth;
            if members::depth(&value) >= max {
                return Err(Rejection {
                    reason: "state.depth",
                    message: format!(
                        "{place}.set.{name}: the state would be nested deeper than {max} levels"
                    ),
                });
            }
            rendered.push((name.as_str(), value));
        }
        let data = members::merge(self.data, &rendered).ok_or_else(|| Rejection {
            reason: "state.shape",
            message: format!("{place}.set: the stored state is not a JSON object"),
        })?;
        self.replace_data(data);
        Ok(())
    }

    /// Cancels as a definition says, because of `step` if one is to blame.
    pub(super) fn cancel(
        &mut self,
        cancel: &Cancel,
        locals: Locals<'a>,
        place: Place<'_>,
        step: Option<&str>,
    ) -> Result<(), Rejection> {
        let reason = match &cancel.reason {
            Some(reason) => self.render_text(reason, locals, || format!("{place}.cancel.reason"))?,
            None => String::new(),
        };
        let cause = failure::Cause::cancel(&reason, cancel.mode);
        failure::fail(self, cause.by(step))
    }

    /// Fails as a definition says, because of `step` if one is to blame.
    pub(super) fn fail(
        &mut self,
        fail: &Fail,
        locals: Locals<'a>,
        place: Place<'_>,
        step: Option<&str>,
    ) -> Result<(), Rejection> {
        let message = match &fail.message {
            Some(message) => self.render_text(message, locals, || format!("{place}.fail.message"))?,
            None => String::new(),
        };
        let cause = failure::Cause::declared(&fail.code, message, step);
        failure::fail(self, cause.of(fail))
    }
}
