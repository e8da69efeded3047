//! Rows that several providers have in common.

use saga_runner::effects::certainty::{Ending, Said};

use super::row::{Note, Row, Via};
use super::table::{self as t, YES};

/// Of all of them.
pub const OF_ALL: &[Row] = &[
    Row::told(t::MISFIT, YES, "says-something-else", "result.schema"),
    Row::of(t::INTERRUPTED, YES, "is-broken-off", Ending::Interrupted).via(Via::Interrupted),
    Row::of(t::DIED, YES, "is-held", Ending::Lost).via(Via::Killed),
];

/// Of those that do what they are asked before the result is made.
pub const OF_MESSAGES: &[Row] = &[
    Row::told(t::UNRENDERED, YES, "says-nothing-useful", "result.expression"),
    Row::of(t::UNRECORDED, "too large", "does-too-much", Ending::TooLong)
        .class("result.refused")
        .via(Via::Large)
        .note(Note::Large),
];

/// Of those whose answers have to be read.
pub const OF_ANSWERS: &[Row] = &[
    Row::of(t::LATE, YES, "says-nothing", Ending::Late).via(Via::Slow),
    Row::of(t::MALFORMED, YES, "stammers", Ending::Malformed),
    Row::of(t::TOO_LONG, YES, "rambles", Ending::TooLong),
];

/// Of those behind TLS. Nobody gets as far as the call.
pub const OF_TLS: &[Row] = &[Row::of(t::UNTRUSTED, YES, "is-untrusted", Ending::Untrusted)
    .via(Via::Untrusted)
    .unseen()];

/// Of those that speak HTTP/2.
pub const OF_STREAMS: &[Row] = &[
    Row::of(t::UNREACHED, "no connection", "is-gone", Ending::Unconnected)
        .via(Via::Gone)
        .unseen(),
    Row::of(
        t::NOT_BEGUN,
        "`REFUSED_STREAM`",
        "refuses-the-stream",
        Ending::NotBegun,
    )
    .via(Via::Refusing)
    .unseen(),
    Row::of(t::NOT_BEGUN, "`GOAWAY`", "goes-away", Ending::NotBegun)
        .via(Via::Leaving)
        .unseen(),
    Row::of(t::LATE_UNSENT, YES, "says-no-hello", Ending::LateUnsent)
        .via(Via::Mute)
        .unseen(),
];

/// A peer that answers with what is not a success.
pub const fn said(happened: &'static str, shows: &'static str, status: &'static str, said: Said) -> Row {
    Row::of(happened, shows, status, Ending::Said(said))
}

/// Of those that answer with statuses of HTTP.
pub const OF_STATUSES: &[Row] = &[
    said(t::REFUSED, "other 4xx", "400", Said::Refused),
    said(t::REFUSED, "other 4xx", "402", Said::Refused),
    said(t::REFUSED, "other 4xx", "404", Said::Refused),
    said(t::REFUSED, "other 4xx", "422", Said::Refused),
    said(t::TURNED_AWAY, "401", "401", Said::TurnedAway),
    said(t::TURNED_AWAY, "403", "403", Said::TurnedAway),
    said(t::TURNED_AWAY, "407", "407", Said::TurnedAway),
    said(t::TURNED_AWAY, "409", "409", Said::TurnedAway),
    said(t::NOT_NOW, "425", "425", Said::Conflict),
    said(t::NOT_NOW, "501", "501", Said::NotNow),
    said(t::NOT_NOW, "503", "503", Said::NotNow),
    said(t::NOT_NOW, "505", "505", Said::NotNow),
    said(t::THROTTLED, "429", "429", Said::Throttled),
    said(t::BROKE, "other 5xx", "500", Said::Broke),
    said(t::BROKE, "other 5xx", "502", Said::Broke),
    said(t::GAVE_UP, "408", "408", Said::GaveUp),
    said(t::GAVE_UP, "504", "504", Said::GaveUp),
];

/// A value that may stand in no header, which the saga sends.
pub const fn illegal(shows: &'static str) -> Row {
    Row::of(
        t::UNSENDABLE,
        shows,
        "is-not-asked",
        Ending::Unsendable("header.illegal"),
    )
    .note(Note::TwoLines)
    .unseen()
}
