//! Handlers and entries of states: what events, results, signals and timers do.

use super::super::emissions::EMISSION;
use super::super::steps::{HANDLER_EMISSION, STATE_EMISSION};
use super::super::{EXPRESSION, Key, Kind, Shape, key, shape};
use super::{CANCELLATION, EARLY_END, FAILURE, INTERRUPTION, TIMER_SET};

static WHEN: Key = key(
    "when",
    Kind::Named(&EXPRESSION),
    "Without it the alternative always holds.",
);

pub static EMIT_WHEN: Key = key("when", Kind::Named(&EXPRESSION), "False: nothing is emitted.");

pub(super) static SET: Key = key(
    "set",
    Kind::Fields,
    "New values of top-level state fields; all of them see the state before.",
);

pub(super) static CLEAR_TIMER: Key = key(
    "clear_timer",
    Kind::OneOrMany(&Kind::Text),
    "Timers to clear, by name.",
);

pub(super) static SET_TIMER: Key = key(
    "timer",
    Kind::MapOf(&Kind::Map(&TIMER_SET), 0, None),
    "Timers to set, by name.",
);

pub static ALIAS: Key = key(
    "alias",
    Kind::Fields,
    "Values by which events find the instance beside its key, by alias; null is none.",
);

static EMIT: Key = key(
    "emit",
    Kind::OneOrMany(&Kind::Map(&EMISSION)),
    "Work without a result; it sees the state after.",
);

static EMIT_EFFECTS: Key = key(
    "emit",
    Kind::OneOrMany(&Kind::Map(&HANDLER_EMISSION)),
    "Work that handlers handle, or without a result; it sees the state after.",
);

pub(super) static INTERRUPT: Key = key(
    "interrupt",
    Kind::Map(&INTERRUPTION),
    "Fails a step that is under way; what follows is said under its on_error.",
);

pub static COMPLETE: Key = key(
    "complete",
    Kind::Map(&EARLY_END),
    "The instance completes early; with \"when\" only where that holds.",
);

pub static CANCEL: Key = key("cancel", Kind::Map(&CANCELLATION), "The instance is cancelled.");

pub static FAIL: Key = key(
    "fail",
    Kind::Map(&FAILURE),
    "The instance fails and undoes what it did.",
);

pub(super) static TO: Key = key("to", Kind::Text, "The state of the machine to go to.");

const HANDLER_KEYS: &[&Key] = &[
    &WHEN,
    &SET,
    &CLEAR_TIMER,
    &SET_TIMER,
    &ALIAS,
    &EMIT,
    &INTERRUPT,
    &COMPLETE,
    &CANCEL,
    &FAIL,
    &TO,
];

/// Those of the saga itself, which may emit effects.
const SAGA_HANDLER_KEYS: &[&Key] = &[
    &WHEN,
    &SET,
    &CLEAR_TIMER,
    &SET_TIMER,
    &ALIAS,
    &EMIT_EFFECTS,
    &INTERRUPT,
    &COMPLETE,
    &CANCEL,
    &FAIL,
    &TO,
];

pub static HANDLER: Shape = shape("sagaHandler", "a handler", SAGA_HANDLER_KEYS);

pub static TIMER_HANDLER: Shape = shape("handler", "a timer handler of a state", HANDLER_KEYS);

pub static RESULT_HANDLER: Shape = shape("handler", "a handler of a result", HANDLER_KEYS);

pub static SIGNAL_HANDLER: Shape = shape("sagaHandler", "a handler of a signal", SAGA_HANDLER_KEYS);

pub static STATE_SIGNAL_HANDLER: Shape = shape("handler", "a handler of a signal", HANDLER_KEYS);

pub static ERROR_HANDLER: Shape = shape("handler", "a handler of an error", HANDLER_KEYS);

pub static STATE_HANDLER: Shape = shape(
    "stateHandler",
    "a handler of a state",
    &[
        &WHEN,
        &SET,
        &CLEAR_TIMER,
        &SET_TIMER,
        &ALIAS,
        &EMIT,
        &INTERRUPT,
        &COMPLETE,
        &CANCEL,
        &FAIL,
        &TO,
        &key("defer", Kind::Bool, "Keep the event until the state is left."),
    ],
);

pub static AFTER_END: Shape = shape(
    "afterEndHandler",
    "a handler after the end",
    &[&WHEN, &SET, &EMIT],
);

pub static ENTRY: Shape = shape(
    "entry",
    "an entry",
    &[
        &SET,
        &CLEAR_TIMER,
        &SET_TIMER,
        &ALIAS,
        &key(
            "emit",
            Kind::OneOrMany(&Kind::Map(&STATE_EMISSION)),
            "Work that the state handles, or without a result; it sees the state after.",
        ),
        &COMPLETE,
        &CANCEL,
        &FAIL,
        &TO,
    ],
);
