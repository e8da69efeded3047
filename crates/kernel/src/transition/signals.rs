//! Signals: what people and systems tell one instance. Handlers of the present state and of the saga hear them first, then the
//! steps that wait; once the outcome is decided, `after_end`.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::SIGNAL_PREFIX;

use super::run::{Ground, Run};
use super::waits::Offered;
use super::{Rejection, events, flight, generations, messages, program, seen, waits};
use crate::input::Control;
use crate::patch::{IgnoreReason, Note, Outcome, Patch};
use crate::record::{Phase, Record};

/// A signal as it came.
#[derive(Clone, Copy)]
pub(super) struct Signal<'a> {
    pub name: &'a str,
    /// A JSON object.
    pub data: &'a [u8],
    pub by: &'a str,
    pub hops: u32,
}

impl<'a> Signal<'a> {
    pub(super) fn of(control: &'a Control) -> Option<Self> {
        match control {
            Control::Signal { name, data, by, hops } => Some(Self {
                name,
                data,
                by,
                hops: *hops,
            }),
            _ => None,
        }
    }
}

/// What the handlers of a signal stand under.
fn key(name: &str) -> String {
    format!("{SIGNAL_PREFIX}{name}")
}

/// Whether a signal may concern an instance that is not running.
pub(super) fn is_heard_late(definition: &Definition, record: &Record, name: &str) -> bool {
    flight::is_open(record)
        || (record.phase == Phase::Compensating && definition.program.is_some())
        || generations::listens_after_end(definition, &key(name))
}

/// Gives the signal that a control is, if it is one, to whoever listens.
pub(super) fn told<'a>(run: &mut Run<'a>, control: &'a Control) -> Result<Offered, Rejection> {
    Signal::of(control).map_or(Ok(Offered::Unknown), |signal| take(run, signal))
}

/// Gives a signal to whoever listens.
pub(super) fn take<'a>(run: &mut Run<'a>, signal: Signal<'a>) -> Result<Offered, Rejection> {
    let message = messages::Message::signal(run, signal.name, signal.data, signal.by)?;
    let chain = events::check_chain(run, signal.hops, || format!("signal {}", signal.name));
    run.note(Note::Signalled {
        signal: signal.name.to_owned(),
        by: signal.by.to_owned(),
    });
    if run.ground.definition.program.is_some() {
        program::signal(run, message)?;
        return chain.map(|()| Offered::Used);
    }
    let key = key(signal.name);
    let is_late = !run.is_running();
    run.ambient.signal = Some(message.value());
    let mut is_heard = events::is_handled(run, &key)?;
    if is_late {
        is_heard |= generations::handle_after_end(run, &key)?;
    }
    run.ambient.signal = None;
    let offered = if flight::hears(&run.record) {
        waits::offer(run, message)?
    } else {
        Offered::Unknown
    };
    let offered = if is_heard { Offered::Used } else { offered };
    // What nobody hears goes no further.
    if offered == Offered::Used {
        chain?;
    }
    Ok(offered)
}

/// A signal that comes after the end.
pub(super) fn after_end<'a>(
    ground: Ground<'a>,
    record: &'a Record,
    signal: Signal<'a>,
) -> Result<Patch, Rejection> {
    if let Some(reason) = seen::find_control(record, ground.input) {
        return Ok(Patch::ignored(reason));
    }
    if !generations::listens_after_end(ground.definition, &key(signal.name)) {
        return Ok(Patch::ignored(IgnoreReason::Ended));
    }
    let mut run = Run::of(ground, record);
    if take(&mut run, signal)? != Offered::Used {
        return Ok(Patch::ignored(IgnoreReason::Ended));
    }
    seen::remember_event(&mut run.record, seen::control(ground.input));
    run.finish(Outcome::Applied)
}
