//! Timers of the whole instance, and its deadline.

use super::super::steps::TIMER_EMISSION;
use super::super::{DURATION, EXPRESSION, Key, Kind, Shape, key, needed, shape};
use super::FAILURE;
use super::handlers::{ALIAS, CANCEL, CLEAR_TIMER, COMPLETE, FAIL, INTERRUPT, SET, SET_TIMER, TO};

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
            "Work that handlers handle, or without a result; it sees the state after.",
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

pub(super) static DRAIN: Key = key(
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
