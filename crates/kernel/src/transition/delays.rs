//! Durations and instants of a definition, as milliseconds from the time of the input.

use saga_runner_language::definition::model::Delay;
use saga_runner_language::duration::Millis;

use super::Rejection;
use super::run::Run;
use super::scope::Locals;

impl<'a> Run<'a> {
    /// How long something takes that cannot be an instant, in milliseconds.
    pub(super) fn span_ms(
        &mut self,
        span: &Delay,
        locals: Locals<'a>,
        place: impl Fn() -> String,
    ) -> Result<i64, Rejection> {
        let template = match span {
            Delay::Fixed(ms) => return Ok(*ms),
            Delay::Rendered(template) => template,
        };
        let text = self.render_text(template, locals, &place)?;
        match Millis::parse(&text) {
            Ok(span) => Ok(span.as_i64()),
            Err(message) => Err(Rejection {
                reason: "timer.value",
                message: format!("{}: {message}", place()),
            }),
        }
    }

    /// How long a delay is from now, in milliseconds: never negative.
    pub(super) fn delay_ms(
        &mut self,
        delay: &Delay,
        locals: Locals<'a>,
        place: impl Fn() -> String,
    ) -> Result<i64, Rejection> {
        let template = match delay {
            Delay::Fixed(ms) => return Ok(*ms),
            Delay::Rendered(template) => template,
        };
        let text = self.render_text(template, locals, &place)?;
        if let Ok(span) = Millis::parse(&text) {
            return Ok(span.as_i64());
        }
        match text.parse::<jiff::Timestamp>() {
            Ok(instant) => Ok(instant
                .as_millisecond()
                .saturating_sub(self.record.updated.0)
                .max(0)),
            Err(_) => Err(Rejection {
                reason: "timer.value",
                message: format!(
                    "{}: {text:?} is neither a duration such as 30s or 1h 30m nor an instant such as 2026-01-31T15:00:00Z",
                    place()
                ),
            }),
        }
    }
}
