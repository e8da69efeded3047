//! Failures of a step: its retry, its error answers and its compensation.

use super::super::super::compensations::COMPENSATION_ATTEMPTS_MAX;
use super::super::super::step_errors::STEP_ATTEMPTS_MAX;
use super::super::emissions::PUBLICATION;
use super::super::saga::{CANCEL, COMPLETE, FAILURE};
use super::super::{BACKOFF, EXPRESSION, Kind, Shape, key, shape};
use super::{COMMANDED, TIMEOUT, WITH};

pub static STEP_RETRY: Shape = shape(
    "stepRetry",
    "a retry",
    &[
        &key(
            "attempts",
            Kind::Integer(1, STEP_ATTEMPTS_MAX),
            "Attempts in all, for each error class.",
        ),
        &key(
            "errors",
            Kind::OneOrMany(&Kind::Text),
            "Error classes that are tried again, * for all.",
        ),
        &key("backoff", Kind::Map(&BACKOFF), ""),
    ],
);

/// What follows a failure.
pub static ANSWER: Shape = shape(
    "onError",
    "an answer to an error",
    &[
        &key(
            "when",
            Kind::Named(&EXPRESSION),
            "Without it the answer always holds; sees error.",
        ),
        &key("set", Kind::Fields, "State fields; sees error."),
        &key(
            "undo",
            Kind::OneOrMany(&Kind::Text),
            "Steps to undo while the instance goes on.",
        ),
        &COMPLETE,
        &CANCEL,
        &key("continue", Kind::Bool, "The step counts as done."),
        &key("fail", Kind::Map(&FAILURE), "The instance fails with this code."),
        &key(
            "goto",
            Kind::Text,
            "The step that begins again, with all that need it.",
        ),
    ],
);

pub static COMPENSATION: Shape = shape(
    "compensation",
    "a compensation",
    &[
        &key("effect", Kind::Text, "An effect, carried out by a worker."),
        &COMMANDED,
        &key(
            "saga",
            Kind::Word(&["undo"]),
            "Undo the instance that the step has started.",
        ),
        &WITH,
        &key(
            "publish",
            Kind::Map(&PUBLICATION),
            "A fact, which is published with the decision.",
        ),
        &key(
            "when",
            Kind::Named(&EXPRESSION),
            "False leaves done what the step did.",
        ),
        &key(
            "on_unknown",
            Kind::Word(&["compensate", "ask", "ignore"]),
            "What happens to a step of unknown outcome; compensate if not given.",
        ),
        &key(
            "on_failed",
            Kind::Word(&["ignore", "compensate"]),
            "What happens to a step that has failed, which may have left something behind; ignore if not given.",
        ),
        &key(
            "on_late",
            Kind::Word(&["compensate", "accept", "ignore"]),
            "What happens to a success that came too late; compensate if not given.",
        ),
        &key(
            "on_exhausted",
            Kind::Word(&["stop", "continue"]),
            "What follows when all attempts have failed; stop if not given.",
        ),
        &key(
            "retry",
            Kind::OneOrMany(&Kind::Map(&UNDO_RETRY)),
            "Durable retry; the first that names the error class counts.",
        ),
        &TIMEOUT,
    ],
);

pub static UNDO_RETRY: Shape = shape(
    "retry",
    "a retry",
    &[
        &key(
            "attempts",
            Kind::Integer(1, COMPENSATION_ATTEMPTS_MAX),
            "Attempts in all.",
        ),
        &key(
            "errors",
            Kind::OneOrMany(&Kind::Text),
            "Error classes that are tried again; * for all, if not given.",
        ),
        &key("backoff", Kind::Map(&BACKOFF), ""),
    ],
);
