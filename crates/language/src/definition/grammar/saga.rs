//! Saga files, but for their steps.

mod handlers;
mod migration;
mod timers;

pub use self::handlers::{
    AFTER_END, ALIAS, CANCEL, COMPLETE, EMIT_WHEN, ENTRY, ERROR_HANDLER, FAIL, HANDLER, RESULT_HANDLER,
    SIGNAL_HANDLER, STATE_HANDLER, STATE_SIGNAL_HANDLER, TIMER_HANDLER,
};
pub use self::migration::{DROPPED, MIGRATION, WAY_BACK};
use self::timers::DRAIN;
pub use self::timers::{DEADLINE, TIMER, TIMER_SET};
use super::super::saga::{API_VERSION, BUFFER_MAX};
use super::steps::{LAST, STEP};
use super::{DURATION, EVENT_TYPE, EXPRESSION, Kind, SCHEMA, Shape, TEMPLATE, TOKEN, key, needed, shape};
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
            "What happens to a start event whose instance runs.",
        ),
        &key(
            "reuse",
            Kind::Either(&[Kind::Word(&["never", "always"]), Kind::Map(&REUSE)]),
            "Whether the key of an instance that has ended may be used again.",
        ),
        &key(
            "no_instance",
            Kind::Either(&[Kind::Word(&["ignore", "dead_letter"]), Kind::Map(&NO_INSTANCE)]),
            "What happens to an event whose instance does not exist and that starts none.",
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
            "What happens to planned times that were missed.",
        ),
        &key(
            "overlap",
            Kind::Word(&["skip", "queue", "allow"]),
            "What happens to a planned time while an earlier run is under way.",
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
            "What happens to work that the instance has begun; compensate if not given.",
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
