//! Steps, groups of steps, and what they have in common with states and ends.

mod failures;

pub use self::failures::{ANSWER, COMPENSATION, STEP_RETRY, UNDO_RETRY};
use super::super::loops::{ITEMS_MAX, PARALLEL_MAX, REPEAT_MAX};
use super::super::steps::STEPS_MAX;
use super::super::waits::AWAITED_MAX;
use super::emissions::{COMMAND, PUBLICATION, TELL};
use super::saga::{ALIAS, CANCEL, COMPLETE, EMIT_WHEN, FAIL};
use super::{
    COMPUTED, DURATION, EVENT_TYPE, EXPRESSION, FACTOR, Key, Kind, OBJECT, Shape, TEMPLATE, TOKEN, key,
    needed, shape,
};

static NEEDS: Key = key("needs", Kind::OneOrMany(&Kind::Text), "Steps that come before.");
static JOIN: Key = key(
    "join",
    Kind::Either(&[Kind::Word(&["all", "any"]), Kind::Map(&STEP_JOIN)]),
    "How many of the needs must be done.",
);
static STRAGGLERS: Key = key(
    "stragglers",
    Kind::Word(&["let_run", "cancel"]),
    "What happens to needs that are not over when enough are done.",
);
static IF: Key = key("if", Kind::Named(&EXPRESSION), "False skips the step.");
static EFFECT: Key = key("effect", Kind::Text, "An effect, carried out by a worker.");
static COMMANDED: Key = key(
    "command",
    Kind::Map(&COMMAND),
    "A command, submitted to an aggregate.",
);
static PUBLISH: Key = key(
    "publish",
    Kind::Map(&PUBLICATION),
    "A fact; the step is done at once.",
);
static WITH: Key = key("with", Kind::Named(&OBJECT), "Input of the effect.");
static RETRY: Key = key(
    "retry",
    Kind::OneOrMany(&Kind::Map(&STEP_RETRY)),
    "Durable retry; the first that names the error class counts.",
);
static ON_ERROR: Key = key(
    "on_error",
    Kind::MapOf(&Kind::OneOrMany(&Kind::Map(&ANSWER)), 0, None),
    "What follows a failure, by error class; * is any other. Of a list the first whose `when` holds.",
);
static ON_TIMEOUT: Key = key(
    "on_timeout",
    Kind::OneOrMany(&Kind::Map(&ANSWER)),
    "The same as on_error with the class timeout.",
);
static SET: Key = key(
    "set",
    Kind::Fields,
    "State fields from the result; a step may do nothing else.",
);
static TIMEOUT: Key = key("timeout", Kind::Named(&DURATION), "How long an attempt may take.");
static DEADLINE: Key = key(
    "deadline",
    Kind::Named(&DURATION),
    "How long all of it may take, from the first attempt on; or until when.",
);
static REPEATED: Key = key(
    "repeat",
    Kind::Map(&REPEAT),
    "The step, or the group under `steps`, runs again until a condition ends it.",
);
static FOR_EACH: Key = key(
    "foreach",
    Kind::Map(&FOREACH),
    "The step, or the group under `steps`, runs once for each item of a list.",
);
static CHOOSE: Key = key(
    "choice",
    Kind::List(&Kind::Map(&ALTERNATIVE), 1, None),
    "Alternatives of steps, instead of work of its own; the first whose `when` holds is taken.",
);
static STEPS: Key = key("steps", Kind::MapOf(&Kind::Map(&STEP), 1, None), MEMBERS_ABOUT);
const MEMBERS_ABOUT: &str = "Steps that belong to the group; names are unique in the whole saga.";

/// All that a step may have. What holds other steps has some of it.
pub static STEP: Shape = shape(
    "step",
    "a step",
    &[
        &NEEDS,
        &JOIN,
        &STRAGGLERS,
        &IF,
        &key(
            "delay",
            Kind::Named(&DURATION),
            "What passes before the step does something.",
        ),
        &EFFECT,
        &COMMANDED,
        &PUBLISH,
        &TELL,
        &key(
            "saga",
            Kind::Map(&CHILD),
            "Starts an instance of another saga, whose outcome is the result of the step.",
        ),
        &COMPLETE,
        &CANCEL,
        &FAIL,
        &WITH,
        &key(
            "wait",
            Kind::Either(&[Kind::Map(&WAIT), Kind::Word(&["outcome", "none"])]),
            "What the step waits for when its action has succeeded; of a saga that it starts outcome or none.",
        ),
        &RETRY,
        &ON_ERROR,
        &ON_TIMEOUT,
        &SET,
        &key(
            "fail_if",
            Kind::Named(&EXPRESSION),
            "Tested after set; true makes the step fail.",
        ),
        &ALIAS,
        &key(
            "compensate",
            Kind::Either(&[Kind::Word(&["none"]), Kind::Map(&COMPENSATION)]),
            "How the step is undone; none where what it did is meant to stay done.",
        ),
        &TIMEOUT,
        &DEADLINE,
        &CHOOSE,
        &REPEATED,
        &FOR_EACH,
        &STEPS,
    ],
);

/// A step that holds alternatives of steps.
pub static CHOICE: Shape = shape("choice", "a choice", &[&NEEDS, &JOIN, &STRAGGLERS, &IF, &CHOOSE]);

/// A step that holds steps which run again and again.
pub static LOOP: Shape = shape(
    "loop",
    "a loop",
    &[
        &NEEDS,
        &JOIN,
        &STRAGGLERS,
        &IF,
        &REPEATED,
        &FOR_EACH,
        &STEPS,
        &SET,
        &ON_ERROR,
        &ON_TIMEOUT,
        &DEADLINE,
    ],
);

pub static ALTERNATIVE: Shape = shape(
    "alternative",
    "an alternative",
    &[
        &key(
            "when",
            Kind::Named(&EXPRESSION),
            "Tested when the choice is made.",
        ),
        &STEPS,
        &key("else", Kind::Map(&ELSE), "Taken where no other is."),
    ],
)
.one_of(&["when", "else"]);

pub static ELSE: Shape = shape(
    "",
    "an \"else\"",
    &[&needed(
        "steps",
        Kind::MapOf(&Kind::Map(&STEP), 1, None),
        MEMBERS_ABOUT,
    )],
);

pub static STEP_JOIN: Shape = shape(
    "",
    "a join",
    &[&needed(
        "at_least",
        #[allow(clippy::cast_possible_truncation, reason = "some hundreds")]
        Kind::Either(&[Kind::Integer(1, STEPS_MAX as u32), Kind::Named(&COMPUTED)]),
        "At least so many.",
    )],
);

pub static ITEM_JOIN: Shape = shape(
    "",
    "a join",
    &[&needed(
        "at_least",
        Kind::Either(&[Kind::Integer(1, ITEMS_MAX), Kind::Named(&COMPUTED)]),
        "At least so many.",
    )],
);

pub static REPEAT: Shape = shape(
    "repeat",
    "a repeat",
    &[
        &key(
            "until",
            Kind::Named(&EXPRESSION),
            "Tested after each turn: true ends the loop.",
        ),
        &key(
            "while",
            Kind::Named(&EXPRESSION),
            "Tested before each turn: false ends the loop.",
        ),
        &needed("max", Kind::Integer(1, REPEAT_MAX), "Most turns."),
        &key("delay", Kind::Named(&DURATION), "Between two turns."),
        &key("backoff", Kind::Map(&REPEAT_BACKOFF), "How the delay grows."),
    ],
)
.one_of(&["until", "while"]);

pub static REPEAT_BACKOFF: Shape = shape(
    "",
    "a backoff of a repeat",
    &[
        &key("factor", FACTOR, "What each delay is longer by."),
        &key("max", Kind::Named(&DURATION), "Longest delay."),
    ],
);

pub static FOREACH: Shape = shape(
    "foreach",
    "a foreach",
    &[
        &needed("over", Kind::Named(&EXPRESSION), "The list."),
        &key("as", Kind::Text, "What expressions call the item."),
        &key(
            "parallel",
            Kind::Either(&[Kind::Integer(1, PARALLEL_MAX), Kind::Named(&COMPUTED)]),
            "Most items that run at the same time.",
        ),
        &key(
            "max",
            Kind::Either(&[Kind::Integer(1, ITEMS_MAX), Kind::Named(&COMPUTED)]),
            "Most items.",
        ),
        &key(
            "chunk",
            Kind::Integer(1, ITEMS_MAX),
            "Elements of the list that make one item.",
        ),
        &key(
            "join",
            Kind::Either(&[Kind::Word(&["all", "any"]), Kind::Map(&ITEM_JOIN)]),
            "How many items must succeed.",
        ),
        &key(
            "tolerate",
            Kind::Either(&[
                Kind::Integer(0, ITEMS_MAX),
                Kind::Pattern("^[0-9]{1,3}%$"),
                Kind::Named(&COMPUTED),
            ]),
            "How many items may fail; with more the loop fails with the class too_many_failed.",
        ),
        &key(
            "stragglers",
            Kind::Word(&["let_run", "cancel"]),
            "What happens to items that run when a join has enough; cancel if not given.",
        ),
        &key(
            "on_item_error",
            Kind::Word(&["fail", "continue", "collect"]),
            "What an item that failed means.",
        ),
    ],
);

pub static WAIT: Shape = shape(
    "wait",
    "a wait",
    &[
        &AWAITED_EVENT,
        &AWAITED_SIGNAL,
        &AWAITED_CALLBACK,
        &AWAITED_WHEN,
        &key(
            "any",
            Kind::List(&Kind::Map(&AWAITED), 1, Some(AWAITED_MAX)),
            "Several: the first that comes and fits ends the wait; wait.index tells which.",
        ),
        &key(
            "early",
            Kind::Word(&["keep", "turn", "ignore"]),
            "What happens to events that come before the step waits; turn in a loop and keep elsewhere if not given.",
        ),
        &key(
            "timeout",
            Kind::Named(&DURATION),
            "When it passes, the step fails with the class timeout.",
        ),
        &key(
            "heartbeat",
            Kind::Named(&DURATION),
            "Longest silence of the holder of the token; then the step fails with the class heartbeat.",
        ),
    ],
)
.one_of(&["event", "signal", "callback", "any"]);

static AWAITED_EVENT: Key = key("event", Kind::Named(&EVENT_TYPE), "Type of the event.");
static AWAITED_SIGNAL: Key = key("signal", Kind::Text, "Name of the signal.");
static AWAITED_CALLBACK: Key = key(
    "callback",
    Kind::True,
    "The holder of the token of the step's effect.",
);
static AWAITED_WHEN: Key = key("when", Kind::Named(&EXPRESSION), "What it must be like.");

/// One of several that a step waits for.
pub static AWAITED: Shape = shape(
    "awaited",
    "an alternative of a wait",
    &[
        &AWAITED_EVENT,
        &AWAITED_SIGNAL,
        &AWAITED_CALLBACK,
        &AWAITED_WHEN,
        &key("set", Kind::Fields, "State fields, set where this one has come."),
    ],
)
.one_of(&["event", "signal", "callback"]);

pub static CHILD: Shape = shape(
    "child",
    "a saga to start",
    &[
        &needed("name", TOKEN, "The saga, which has an input."),
        &needed("key", Kind::Named(&TEMPLATE), "Key of its instance."),
        &key("input", Kind::Named(&OBJECT), "What it is given."),
    ],
);

const WITH_EFFECTS: &[&Key] = &[
    &EMIT_WHEN,
    &COMMANDED,
    &key("publish", Kind::Map(&PUBLICATION), "A fact."),
    &TELL,
    &key(
        "effect",
        Kind::Text,
        "An effect, carried out by a worker; handlers say what follows its end.",
    ),
    &key(
        "name",
        Kind::Text,
        "What result.<name> and error.<name> call the effect.",
    ),
    &WITH,
    &RETRY,
    &key(
        "compensate",
        Kind::Map(&COMPENSATION),
        "How the effect is undone.",
    ),
    &TIMEOUT,
    &DEADLINE,
];

/// What the entry of a state emits.
pub static STATE_EMISSION: Shape = shape("stateEmission", "an emission of a state", WITH_EFFECTS)
    .one_of(&["command", "publish", "signal", "effect"]);

/// What a handler of the saga emits.
pub static HANDLER_EMISSION: Shape = shape("handlerEmission", "an emission of a handler", WITH_EFFECTS)
    .one_of(&["command", "publish", "signal", "effect"]);

/// What a timer emits.
pub static TIMER_EMISSION: Shape = shape("timerEmission", "an emission of a timer", WITH_EFFECTS)
    .one_of(&["command", "publish", "signal", "effect"]);

/// What happens at the end of an instance.
pub static LAST: Shape = shape(
    "last",
    "an entry of finally",
    &[
        &EMIT_WHEN,
        &COMMANDED,
        &key("publish", Kind::Map(&PUBLICATION), "A fact."),
        &TELL,
        &key(
            "effect",
            Kind::Text,
            "An effect, carried out by a worker; the instance ends when it has.",
        ),
        &key(
            "name",
            Kind::Text,
            "What the effect is called; no two of an outcome have the same.",
        ),
        &WITH,
        &RETRY,
        &TIMEOUT,
        &DEADLINE,
    ],
)
.one_of(&["command", "publish", "signal", "effect"]);
