//! Saga files, but for their steps.

use super::super::saga::{API_VERSION, BUFFER_MAX};
use super::emissions::EMISSION;
use super::steps::{HANDLER_EMISSION, LAST, STATE_EMISSION, STEP, TIMER_EMISSION};
use super::{
    DURATION, EVENT_TYPE, EXPRESSION, Key, Kind, SCHEMA, Shape, TEMPLATE, TOKEN, key, needed, shape,
};
use crate::schedule::CATCH_UP_MAX;

const END: Kind = Kind::Word(&["completed", "failed", "cancelled"]);

pub static SAGA: Shape = shape(
    "",
    "a saga",
    &[
        &needed("apiVersion", Kind::Word(&[API_VERSION]), ""),
        &needed("kind", Kind::Word(&["Saga"]), ""),
        &needed("name", TOKEN, "One subject token."),
        &key(
            "input",
            Kind::Named(&SCHEMA),
            "Of what an instance is given that a request starts.",
        ),
        &key("schedule", Kind::Map(&SCHEDULE), ""),
        &key(
            "start",
            Kind::OneOrMany(&Kind::Either(&[Kind::Named(&EVENT_TYPE), Kind::Map(&START)])),
            "Event types that create an instance. Needed unless there is an input or a schedule.",
        ),
        &key(
            "on_running",
            Kind::Word(&["handle", "ignore", "fail"]),
            "What becomes of a start event whose instance runs.",
        ),
        &key(
            "reuse",
            Kind::Either(&[Kind::Word(&["never", "always"]), Kind::Map(&REUSE)]),
            "Whether the key of an instance that has ended may be used again.",
        ),
        &key(
            "no_instance",
            Kind::Either(&[Kind::Word(&["ignore", "dead_letter"]), Kind::Map(&NO_INSTANCE)]),
            "What becomes of an event whose instance does not exist and that starts none.",
        ),
        &key(
            "after_end",
            Kind::MapOf(&Kind::OneOrMany(&Kind::Map(&AFTER_END)), 0, None),
            "Handlers for events that come after the end, by event type.",
        ),
        &key(
            "keep_ended",
            Kind::Either(&[Kind::Named(&DURATION), Kind::Map(&KEEP_ENDED)]),
            "How long instances are kept that have ended; then their keys are free again.",
        ),
        &key(
            "key",
            Kind::MapOf(&Kind::Named(&EXPRESSION), 0, None),
            "Which instance an event belongs to: event type, prefix with *, or *; the first that matches wins.",
        ),
        &key(
            "events",
            Kind::MapOf(&Kind::Map(&EVENT), 0, None),
            "What is known about event types.",
        ),
        &key(
            "facts",
            Kind::MapOf(&Kind::Map(&FACT), 0, None),
            "What the facts carry that the saga publishes, by type.",
        ),
        &key("state", Kind::Map(&STATE), ""),
        &key(
            "handlers",
            Kind::MapOf(&Kind::OneOrMany(&Kind::Map(&HANDLER)), 0, None),
            "What events do at any time.",
        ),
        &key("machine", Kind::Map(&MACHINE), ""),
        &key(
            "program",
            Kind::Either(&[MODULE, Kind::Map(&PROGRAM)]),
            "A WebAssembly module that decides in place of handlers, machine and steps; docs/programs.md.",
        ),
        &key(
            "steps",
            Kind::MapOf(&Kind::Map(&STEP), 0, None),
            "Units of work with a result.",
        ),
        &key(
            "timers",
            Kind::MapOf(&Kind::Map(&TIMER), 0, None),
            "Timers set when the instance starts.",
        ),
        &key(
            "deadline",
            Kind::Either(&[Kind::Named(&DURATION), Kind::Map(&DEADLINE)]),
            "How long an instance may take; then it fails.",
        ),
        &key(
            "cancel_when",
            Kind::Named(&EXPRESSION),
            "Tested with every input; true cancels the instance.",
        ),
        &key(
            "buffer",
            Kind::Integer(1, BUFFER_MAX),
            "Most events and signals kept for steps that will wait for them.",
        ),
        &key(
            "compensation",
            Kind::Word(&["sequential", "parallel"]),
            "In which order the instance undoes what it did: the last first, or all together.",
        ),
        &key("finally", Kind::Map(&FINALLY), ""),
        &key(
            "on_change",
            Kind::Word(&["pin", "migrate"]),
            "Whether running instances of earlier versions keep their version or come over by themselves.",
        ),
        &key(
            "migrate",
            Kind::Map(&MIGRATION),
            "How instances of earlier versions come over to this one.",
        ),
    ],
)
.about("A saga of saga-runner; docs/language.md tells what the keys mean.");

pub static SCHEDULE: Shape = shape(
    "schedule",
    "a schedule",
    &[
        &needed(
            "cron",
            Kind::Pattern("^[ \\t]*([^ \\t]+[ \\t]+){4}[^ \\t]+[ \\t]*$"),
            "Minute, hour, day of the month, month, day of the week, such as 0 6 * * MON-FRI.",
        ),
        &key(
            "zone",
            Kind::Text,
            "Name of the time zone in the IANA database, UTC if not given.",
        ),
        &key(
            "catch_up",
            Kind::Either(&[Kind::Word(&["none", "last", "all"]), Kind::Map(&CATCH_UP)]),
            "What becomes of planned times that were missed.",
        ),
        &key(
            "overlap",
            Kind::Word(&["skip", "queue", "allow"]),
            "What becomes of a planned time while an earlier run is under way.",
        ),
    ],
)
.about("When instances start by themselves.");

pub static CATCH_UP: Shape = shape(
    "",
    "catch_up",
    &[
        &key(
            "within",
            Kind::Named(&DURATION),
            "How long ago a time may have been planned that is made up.",
        ),
        &key(
            "max",
            Kind::Integer(1, CATCH_UP_MAX),
            "Most times that are made up, 100 if not given; the latest ones.",
        ),
    ],
);

pub static START: Shape = shape(
    "startRule",
    "a start",
    &[
        &needed("event", Kind::Named(&EVENT_TYPE), ""),
        &key(
            "when",
            Kind::Named(&EXPRESSION),
            "Whether such an event creates an instance.",
        ),
        &key(
            "set",
            Kind::Fields,
            "Fields of the state, set when the instance is created.",
        ),
    ],
);

pub static REUSE: Shape = shape(
    "",
    "reuse",
    &[&needed(
        "after",
        Kind::OneOrMany(&END),
        "The ends after which it may.",
    )],
);

pub static NO_INSTANCE: Shape = shape(
    "",
    "no_instance",
    &[&needed(
        "park",
        Kind::Named(&DURATION),
        "How long it waits for its instance.",
    )],
);

pub static KEEP_ENDED: Shape = shape(
    "",
    "keep_ended",
    &[
        &key("completed", Kind::Named(&DURATION), ""),
        &key("failed", Kind::Named(&DURATION), ""),
        &key("cancelled", Kind::Named(&DURATION), ""),
    ],
);

pub static EVENT: Shape = shape(
    "event",
    "an event",
    &[
        &key(
            "from",
            Kind::OneOrMany(&Kind::Text),
            "The saga that publishes it, or several; without it aggregates do.",
        ),
        &key(
            "schema",
            Kind::Named(&SCHEMA),
            "Of event.data, as it is after the upcast.",
        ),
        &key(
            "versions",
            Kind::OneOrMany(&Kind::Integer(0, u32::MAX)),
            "Versions taken as they are; others go to the dead letters.",
        ),
        &key(
            "upcast",
            Kind::MapOf(&Kind::Any, 0, None),
            "How the data of other versions becomes that of the present one, by version.",
        ),
        &key(
            "by",
            Kind::MapOf(&Kind::Named(&EXPRESSION), 1, Some(1)),
            "The alias that finds the instances of the event, in place of a key rule: {tracking: event.data.tracking_no}.",
        ),
    ],
);

pub static FACT: Shape = shape(
    "fact",
    "a fact",
    &[&needed(
        "schema",
        Kind::Named(&SCHEMA),
        "Of its payload; event.data of the sagas that hear it.",
    )],
);

pub static STATE: Shape = shape(
    "state",
    "state",
    &[
        &needed("init", Kind::Fields, "The first state."),
        &key("schema", Kind::Named(&SCHEMA), "Of the state after every input."),
    ],
);

const MODULE: Kind = Kind::Pattern("\\.wasm$");

pub static PROGRAM: Shape = shape(
    "program",
    "a program",
    &[
        &needed("file", MODULE, "Path of a module, relative to this file."),
        &key(
            "events",
            Kind::OneOrMany(&Kind::Named(&EVENT_TYPE)),
            "Event types that a running instance is given.",
        ),
        &key(
            "effects",
            Kind::OneOrMany(&Kind::Text),
            "Effects that the program may ask for.",
        ),
        &key(
            "commands",
            Kind::OneOrMany(&Kind::Text),
            "Types of aggregate commands that the program may ask for.",
        ),
    ],
);

static WHEN: Key = key(
    "when",
    Kind::Named(&EXPRESSION),
    "Without it the alternative always holds.",
);
pub static EMIT_WHEN: Key = key("when", Kind::Named(&EXPRESSION), "False: nothing is emitted.");
static SET: Key = key(
    "set",
    Kind::Fields,
    "New values of top-level state fields; all of them see the state before.",
);
static CLEAR_TIMER: Key = key(
    "clear_timer",
    Kind::OneOrMany(&Kind::Text),
    "Timers to clear, by name.",
);
static SET_TIMER: Key = key(
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
    "Work nobody waits for; it sees the state after.",
);
static EMIT_EFFECTS: Key = key(
    "emit",
    Kind::OneOrMany(&Kind::Map(&HANDLER_EMISSION)),
    "Work that handlers handle, or that nobody waits for; it sees the state after.",
);
static INTERRUPT: Key = key(
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
static TO: Key = key("to", Kind::Text, "The state of the machine to go to.");

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
            "Work that the state handles, or that nobody waits for; it sees the state after.",
        ),
        &COMPLETE,
        &CANCEL,
        &FAIL,
        &TO,
    ],
);

/// A timer of the whole instance.
pub static TIMER: Shape = shape(
    "timer",
    "a timer",
    &[
        &key(
            "after",
            Kind::Named(&DURATION),
            "From the start of the instance, or of the step that it is set during.",
        ),
        &key(
            "every",
            Kind::Named(&DURATION),
            "It fires again and again, so far apart; at least 10 s.",
        ),
        &key(
            "max",
            Kind::Integer(1, u32::MAX),
            "How often it fires, beside every.",
        ),
        &key(
            "during",
            Kind::Text,
            "The step with which the timer is set and cleared.",
        ),
        &key(
            "cancel_when",
            Kind::Named(&EXPRESSION),
            "Tested after every input; true clears the timer.",
        ),
        &SET,
        &CLEAR_TIMER,
        &SET_TIMER,
        &ALIAS,
        &key(
            "emit",
            Kind::OneOrMany(&Kind::Map(&TIMER_EMISSION)),
            "Work that handlers handle, or that nobody waits for; it sees the state after.",
        ),
        &INTERRUPT,
        &COMPLETE,
        &CANCEL,
        &FAIL,
        &TO,
    ],
);

/// A timer that a handler sets or moves.
pub static TIMER_SET: Shape = shape(
    "timerSet",
    "a timer",
    &[
        &key("after", Kind::Named(&DURATION), "How long from now."),
        &key(
            "extend",
            Kind::Named(&DURATION),
            "How much later a timer fires that is set.",
        ),
        &key("if_absent", Kind::Bool, "Keep the timer if it is already set."),
    ],
)
.one_of(&["after", "extend"]);

static DRAIN: Key = key(
    "drain",
    Kind::Bool,
    "What is in flight comes to its own end before anything is undone.",
);

pub static DEADLINE: Shape = shape(
    "",
    "a deadline",
    &[
        &needed("after", Kind::Named(&DURATION), "From the start of the instance."),
        &COMPLETE,
        &CANCEL,
        &DRAIN,
        &key("fail", Kind::Map(&FAILURE), "Without it the code is deadline."),
    ],
);

pub static EARLY_END: Shape = shape(
    "earlyEnd",
    "an early end",
    &[
        &needed(
            "outcome",
            Kind::Text,
            "The word for how the instance has completed.",
        ),
        &key(
            "when",
            Kind::Named(&EXPRESSION),
            "Where it is false the instance goes on.",
        ),
    ],
);

pub static INTERRUPTION: Shape = shape(
    "interruption",
    "an interrupt",
    &[
        &needed("step", Kind::Text, "The step that fails, if it is under way."),
        &needed("class", Kind::Text, "The error class with which it fails."),
    ],
);

pub static CANCELLATION: Shape = shape(
    "cancellation",
    "a cancel",
    &[
        &key(
            "mode",
            Kind::Word(&["compensate", "drain", "abandon"]),
            "What becomes of what the instance has begun; compensate if not given.",
        ),
        &key("reason", Kind::Named(&TEMPLATE), ""),
    ],
);

pub static FAILURE: Shape = shape(
    "failure",
    "a failure",
    &[
        &needed("code", Kind::Text, ""),
        &key("message", Kind::Named(&TEMPLATE), ""),
        &key(
            "keep",
            Kind::OneOrMany(&Kind::Text),
            "Steps that this failure does not undo.",
        ),
        &DRAIN,
    ],
);

pub static MACHINE: Shape = shape(
    "machine",
    "a machine",
    &[
        &needed("initial", Kind::Text, "The state in which it begins."),
        &needed("states", Kind::MapOf(&Kind::Map(&MACHINE_STATE), 1, None), ""),
    ],
);

pub static MACHINE_STATE: Shape = shape(
    "machineState",
    "a state",
    &[
        &key("entry", Kind::Map(&ENTRY), "Done whenever the state is entered."),
        &key(
            "handlers",
            Kind::ByPrefix(
                &["timer", "signal", "result", "error"],
                &Kind::OneOrMany(&Kind::Map(&RESULT_HANDLER)),
                &Kind::OneOrMany(&Kind::Map(&STATE_HANDLER)),
            ),
            "By event type, timer.<name>, signal.<name>, or result.<name> and error.<name> of an effect that the entry emits.",
        ),
        &key("final", Kind::Bool, "Entering it completes the instance."),
    ],
);

const AT_END: Kind = Kind::OneOrMany(&Kind::Map(&LAST));
const ONCE: &str = "Once, after all compensations.";

pub static FINALLY: Shape = shape(
    "finally",
    "finally",
    &[
        &key("completed", AT_END, ONCE),
        &key("failed", AT_END, ONCE),
        &key("cancelled", AT_END, ONCE),
    ],
);

static OLD_STATE: Key = key("set", Kind::Fields, "State fields from the state before.");
static DROP: Key = key("drop", Kind::Map(&DROPPED), "");
const RENAMES: Kind = Kind::MapOf(&Kind::Text, 0, None);
const NEW_BY_OLD: &str = "New name by old name.";

pub static MIGRATION: Shape = shape(
    "",
    "migrate",
    &[
        &key(
            "from",
            Kind::OneOrMany(&Kind::Text),
            "Hashes of the versions that may come over; without it every version may.",
        ),
        &OLD_STATE,
        &key("rename_steps", RENAMES, NEW_BY_OLD),
        &key("rename_timers", RENAMES, NEW_BY_OLD),
        &key("fsm", RENAMES, NEW_BY_OLD),
        &DROP,
        &key(
            "undo",
            Kind::Map(&WAY_BACK),
            "How those that came over go back; names go back by themselves.",
        ),
    ],
);

pub static WAY_BACK: Shape = shape("", "undo", &[&OLD_STATE, &DROP]);

const SOME: Kind = Kind::OneOrMany(&Kind::Text);

pub static DROPPED: Shape = shape(
    "dropped",
    "drop",
    &[
        &key("steps", SOME, ""),
        &key("timers", SOME, ""),
        &key("state", SOME, ""),
        &key("events", SOME, ""),
        &key("signals", SOME, ""),
        &key("ledger", SOME, ""),
    ],
)
.about("What instances may have that this version has not.");
