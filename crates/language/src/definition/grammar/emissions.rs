//! Work for which nobody waits: commands, facts and signals.

use super::saga::EMIT_WHEN;
use super::{Key, Kind, OBJECT, Shape, TEMPLATE, key, needed, shape};

pub static EMISSION: Shape = shape(
    "emission",
    "an emission",
    &[
        &EMIT_WHEN,
        &key("command", Kind::Map(&COMMAND), ""),
        &key("publish", Kind::Map(&PUBLICATION), ""),
        &TELL,
    ],
)
.one_of(&["command", "publish", "signal"]);

pub static TELL: Key = key(
    "signal",
    Kind::Map(&SIGNAL),
    "A signal to one instance of a saga of the same tenant.",
);

pub static SIGNAL: Shape = shape(
    "signal",
    "a signal",
    &[
        &needed("saga", Kind::Text, "The saga of the instance."),
        &needed("key", Kind::Named(&TEMPLATE), "The key of the instance."),
        &needed(
            "name",
            Kind::Text,
            "What the instance waits for, or handles as signal.<name>.",
        ),
        &key("data", Kind::Named(&OBJECT), "What it reads as signal."),
    ],
);

pub static COMMAND: Shape = shape(
    "command",
    "a command",
    &[
        &needed("aggregate", Kind::Text, "Type of the aggregate."),
        &needed("id", Kind::Named(&TEMPLATE), "Id of the aggregate."),
        &needed("type", Kind::Text, "Type of the command."),
        &key("payload", Kind::Named(&OBJECT), ""),
    ],
);

pub static PUBLICATION: Shape = shape(
    "publication",
    "a publication",
    &[
        &needed("type", Kind::Text, "Type of the fact."),
        &key("payload", Kind::Named(&OBJECT), ""),
    ],
);
