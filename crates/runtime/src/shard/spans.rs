//! The spans of a commit: one for each input that was applied to an instance.

use std::time::Duration;

use saga_runner_partition::machine::story::{Decided, Story};

use crate::kernel::ids::TimeMs;
use crate::kernel::trace;
use crate::telemetry::{Span, SpanKind, Spans};

/// When a commit began, and how long it took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub began: TimeMs,
    pub took: Duration,
}

/// Hands over the spans of a commit of `shard`.
pub(super) fn record(spans: &Spans, story: &Story, shard: u16, taken: Taken) {
    if !spans.is_on() {
        return;
    }
    let of_inputs = story
        .decided()
        .filter_map(|decided| span(spans, decided, shard, taken));
    of_inputs.for_each(|span| spans.push(span));
}

fn span(spans: &Spans, decided: &Decided, shard: u16, taken: Taken) -> Option<Span> {
    let after = decided.after.as_ref()?;
    let of_instance = after.traceparent().filter(|known| spans.takes(known))?;
    // Where nobody traces, the span that begins the instance is the one that all others have as their parent.
    let is_first = decided.from.is_none() && decided.caused_by.is_none();
    let traceparent = if is_first {
        of_instance.to_owned()
    } else {
        trace::with_span(of_instance, spans.draw())?
    };
    let caused_by = decided.caused_by.as_deref();
    let is_another = caused_by.is_some_and(|other| trace::trace_id(other) != trace::trace_id(of_instance));
    let mut attributes = vec![
        ("saga_runner.tenant", decided.instance.tenant.as_str().to_owned()),
        ("saga_runner.saga", decided.instance.saga.as_str().to_owned()),
        ("saga_runner.key", decided.instance.key.as_str().to_owned()),
        ("saga_runner.shard", shard.to_string()),
        ("saga_runner.input", decided.input.clone()),
        ("saga_runner.input_id", decided.input_id.clone()),
        ("saga_runner.outcome", decided.outcome.to_owned()),
        ("saga_runner.to", after.to.clone()),
    ];
    attributes.extend(decided.from.clone().map(|from| ("saga_runner.from", from)));
    Some(Span {
        name: "apply",
        kind: SpanKind::Consumer,
        parent: (!is_first)
            .then(|| trace::span_id(of_instance).map(str::to_owned))
            .flatten(),
        link: caused_by.filter(|_| is_another).map(str::to_owned),
        traceparent,
        began_ms: taken.began.0,
        took: taken.took,
        attributes,
        error: None,
    })
}
