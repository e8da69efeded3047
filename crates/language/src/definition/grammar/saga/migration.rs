//! Migrations from an earlier version of a saga.

use super::super::{Key, Kind, Shape, key, shape};

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
