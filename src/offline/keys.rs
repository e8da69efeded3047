//! The keys of test files.

use super::file::{ACCEPT_ALIAS, REFUSE_ALIAS};
use crate::kernel::definition::grammar::{Kind, Shape, key, shape};

pub static SUITE: Shape = shape(
    "",
    "a test file",
    &[
        &key("saga", Kind::Any, ""),
        &key("results", Kind::Any, ""),
        &key("cases", Kind::Any, ""),
    ],
);
pub static CASE: Shape = shape(
    "",
    "a case",
    &[
        &key("name", Kind::Any, ""),
        &key("start", Kind::Any, ""),
        &key("key", Kind::Any, ""),
        &key("chaos", Kind::Any, ""),
        &key("given", Kind::Any, ""),
        &key("sagas", Kind::Any, ""),
        &key("steps", Kind::Any, ""),
    ],
);
pub static STEP: Shape = shape(
    "",
    "a step of a case",
    &[
        &key("event", Kind::Any, ""),
        &key("from", Kind::Any, ""),
        &key("start", Kind::Any, ""),
        &key("schedule", Kind::Any, ""),
        &key("data", Kind::Any, ""),
        &key("data_file", Kind::Any, ""),
        &key("version", Kind::Any, ""),
        &key("id", Kind::Any, ""),
        &key("correlation_id", Kind::Any, ""),
        &key("aggregate_id", Kind::Any, ""),
        &key("result", Kind::Any, ""),
        &key("succeed", Kind::Any, ""),
        &key("signal", Kind::Any, ""),
        &key("callback", Kind::Any, ""),
        &key("heartbeat", Kind::Any, ""),
        &key("by", Kind::Any, ""),
        &key("advance", Kind::Any, ""),
        &key("cancel", Kind::Any, ""),
        &key("mode", Kind::Any, ""),
        &key("retry", Kind::Any, ""),
        &key("skip", Kind::Any, ""),
        &key("resolve", Kind::Any, ""),
        &key("pause", Kind::Any, ""),
        &key("resume", Kind::Any, ""),
        &key("kill", Kind::Any, ""),
        &key("fire_timer", Kind::Any, ""),
        &key("cancel_timer", Kind::Any, ""),
        &key("try_now", Kind::Any, ""),
        &key("retry_ended", Kind::Any, ""),
        &key("restart", Kind::Any, ""),
        &key("dead_letter", Kind::Any, ""),
        &key(REFUSE_ALIAS, Kind::Any, ""),
        &key(ACCEPT_ALIAS, Kind::Any, ""),
        &key("as", Kind::Any, ""),
        &key("ok", Kind::Any, ""),
        &key("at", Kind::Any, ""),
        &key("before", Kind::Any, ""),
        &key("hold", Kind::Any, ""),
        &key("expect", Kind::Any, ""),
    ],
);
pub static REPEAT: Shape = shape(
    "",
    "a repetition",
    &[&key("repeat", Kind::Any, ""), &key("steps", Kind::Any, "")],
);
pub static OF: Shape = shape(
    "",
    "a piece of work",
    &[
        &key("step", Kind::Any, ""),
        &key("attempt", Kind::Any, ""),
        &key("turn", Kind::Any, ""),
        &key("item", Kind::Any, ""),
        &key("generation", Kind::Any, ""),
    ],
);
pub static BEFORE: Shape = shape(
    "",
    "a timer",
    &[&key("timer", Kind::Any, ""), &key("at", Kind::Any, "")],
);
pub static CALLBACK: Shape = shape(
    "",
    "a callback",
    &[
        &key("of", Kind::Any, ""),
        &key("ok", Kind::Any, ""),
        &key("error", Kind::Any, ""),
        &key("message", Kind::Any, ""),
    ],
);
pub static RESULT: Shape = shape(
    "",
    "a result",
    &[
        &key("of", Kind::Any, ""),
        &key("ok", Kind::Any, ""),
        &key("unusable", Kind::Any, ""),
        &key("error", Kind::Any, ""),
        &key("refused", Kind::Any, ""),
        &key("message", Kind::Any, ""),
        &key("timeout", Kind::Any, ""),
    ],
);
pub static EXPECT: Shape = shape(
    "",
    "an expectation",
    &[
        &key("phase", Kind::Any, ""),
        &key("state", Kind::Any, ""),
        &key("failure", Kind::Any, ""),
        &key("outcome", Kind::Any, ""),
        &key("steps", Kind::Any, ""),
        &key("machine", Kind::Any, ""),
        &key("timers", Kind::Any, ""),
        &key("ledger", Kind::Any, ""),
        &key("aliases", Kind::Any, ""),
        &key("work", Kind::Any, ""),
        &key("no_other_work", Kind::Any, ""),
        &key("in_order", Kind::Any, ""),
        &key("ignored", Kind::Any, ""),
        &key("rejected", Kind::Any, ""),
        &key("deferred", Kind::Any, ""),
        &key("blocked", Kind::Any, ""),
    ],
);
pub static WORK: Shape = shape(
    "",
    "an expected piece of work",
    &[
        &key("effect", Kind::Any, ""),
        &key("with", Kind::Any, ""),
        &key("command", Kind::Any, ""),
        &key("aggregate", Kind::Any, ""),
        &key("id", Kind::Any, ""),
        &key("payload", Kind::Any, ""),
        &key("fact", Kind::Any, ""),
        &key("signal", Kind::Any, ""),
        &key("data", Kind::Any, ""),
        &key("saga", Kind::Any, ""),
        &key("key", Kind::Any, ""),
        &key("input", Kind::Any, ""),
        &key("request", Kind::Any, ""),
        &key("of", Kind::Any, ""),
        &key("attempt", Kind::Any, ""),
        &key("idempotency_key", Kind::Any, ""),
        &key("from", Kind::Any, ""),
    ],
);
