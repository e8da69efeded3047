//! The instant at which a step comes: right before a timer fires, of its own instance or of another one.

use std::ops::Range;

use super::codes;
use super::compare::Fault;
use super::file::Reader;
use super::keys;
use super::world::World;
use super::world::time::Timer;
use crate::kernel::definition::fields::Fields;
use crate::kernel::definition::yaml::{Entry, Value};

/// The timer before which a step comes.
#[derive(Debug)]
pub struct Before {
    pub timer: String,
    pub span: Range<usize>,
    /// Whose it is, where that is not the instance that the step is about: `SAGA`, or `SAGA/KEY`.
    pub at: Option<(String, Range<usize>)>,
}

impl Before {
    /// The timer as it is set.
    ///
    /// # Errors
    /// The fault, where it is not, or where there is no such instance.
    pub fn find(&self, world: &World) -> Result<Timer, Fault> {
        let instance = match &self.at {
            None => world.instance.clone(),
            Some((at, span)) => world
                .named(at)
                .map_err(|message| Fault::new(codes::UNPLAYABLE, span.clone(), message, None))?,
        };
        world.timer_named(&instance, &self.timer).ok_or_else(|| {
            let message = format!("no timer \"{}\" is set", self.timer.escape_debug());
            let record = world.read(&instance);
            let timers = record.iter().flat_map(|record| record.timers.values());
            let names: Vec<&str> = timers.map(|timer| timer.name.as_str()).collect();
            let help = if names.is_empty() {
                "no timer is set at this point".to_owned()
            } else {
                format!("set are {}", names.join(", "))
            };
            Fault::new(codes::UNPLAYABLE, self.span.clone(), message, Some(help))
        })
    }

    /// That what comes before the timer clears it.
    #[must_use]
    pub fn cleared(&self) -> Fault {
        let message = format!(
            "what comes before the timer \"{}\" clears it",
            self.timer.escape_debug()
        );
        Fault::new(codes::UNPLAYABLE, self.span.clone(), message, None)
    }
}

impl Reader<'_, '_> {
    /// The name of a timer, or a map that says whose timer of that name.
    pub(super) fn before(&mut self, entry: &Entry<'_>) -> Option<Before> {
        const TIMER: &str = "the name of a timer";
        let span = entry.value.span.clone();
        if !matches!(entry.value.value, Value::Map(_)) {
            let timer = self.text(entry, TIMER)?;
            let at = None;
            return Some(Before { timer, span, at });
        }
        let fields = Fields::read(&entry.value, &entry.key_span, &keys::BEFORE, self.findings)?;
        let timer = fields.require("timer", self.findings)?;
        let timer = self.text(timer, TIMER)?;
        let at = self.at(&fields)?;
        Some(Before { timer, span, at })
    }
}
