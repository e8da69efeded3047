//! What is told of a call and of its command: series with exemplars, lines of the log, spans.

use std::time::Duration;

use super::executor::Executor;
use super::provider::{CallContext, CallFailure};
use crate::kernel::envelope::{EffectCommand, EffectProgress};
use crate::kernel::trace;
use crate::telemetry::{Span, SpanKind};

/// The target of all lines about one instance, as those of its transitions have it.
const TARGET: &str = "saga_runner::instance";

/// The class of a call that has succeeded.
const SUCCEEDED: &str = "succeeded";

impl Executor {
    /// Tells of a call that took so long and has ended in this class.
    pub(super) fn tell_call(&self, call: &CallContext<'_>, class: &str, took: Duration) {
        self.count_call(call, class, took);
        let (command, meta) = (call.command, &call.command.metadata);
        tracing::debug!(
            target: TARGET,
            tenant = command.tenant_id.as_str(),
            saga = meta.saga.as_str(),
            key = meta.key.as_str(),
            effect = %self.definition.name,
            command = %command.command_id,
            path = meta.path,
            upstream = self.upstream.as_deref(),
            class,
            took_seconds = took.as_secs_f64(),
            trace_id = trace_id(command),
            "upstream was called"
        );
        self.record_span(call, class, took);
    }

    /// Counts a call. Its trace becomes the exemplar of its duration; where spans are sent, only a trace whose spans are.
    fn count_call(&self, call: &CallContext<'_>, class: &str, took: Duration) {
        let seconds = took.as_secs_f64();
        self.series.call_seconds.observe(seconds);
        let spans = &self.metrics.spans;
        let leads_on = !spans.is_on() || spans.takes(&call.traceparent);
        if let Some(trace_id) = trace_id(call.command).filter(|_| leads_on) {
            let now = self.clock.now();
            self.series.call_exemplars.note(seconds, trace_id, now.0);
        }
        self.metrics
            .effect_calls
            .with_label_values(&[self.definition.name.as_str(), class])
            .inc();
        let tenant = call.command.tenant_id.as_str();
        self.metrics.tenants.called(tenant, class == SUCCEEDED);
    }

    /// Hands over the span of a call.
    fn record_span(&self, call: &CallContext<'_>, class: &str, took: Duration) {
        let spans = &self.metrics.spans;
        if !spans.takes(&call.traceparent) {
            return;
        }
        let (command, meta) = (call.command, &call.command.metadata);
        let parent = meta.traceparent.as_deref().and_then(trace::span_id);
        let mut attributes = vec![
            ("saga_runner.tenant", command.tenant_id.as_str().to_owned()),
            ("saga_runner.saga", meta.saga.as_str().to_owned()),
            ("saga_runner.key", meta.key.as_str().to_owned()),
            ("saga_runner.effect", self.definition.name.to_string()),
            ("saga_runner.command", command.command_id.to_string()),
            ("saga_runner.path", meta.path.clone()),
            ("saga_runner.attempt", meta.attempt.to_string()),
        ];
        let upstream = self.upstream.as_deref();
        attributes.extend(upstream.map(|upstream| ("server.address", upstream.to_owned())));
        spans.push(Span {
            name: if meta.path.contains(".compensate") {
                "compensate"
            } else {
                "call"
            },
            kind: SpanKind::Client,
            traceparent: call.traceparent.to_string(),
            parent: parent.map(str::to_owned),
            link: None,
            began_ms: call.now.0,
            took,
            attributes,
            error: (class != SUCCEEDED).then(|| class.to_owned()),
        });
    }

    /// Records that a command has failed for good.
    pub(super) fn audit(
        &self,
        command: &EffectCommand<'_>,
        progress: &EffectProgress,
        failure: &CallFailure,
    ) {
        let exhausted = self.is_retried(failure);
        if exhausted {
            self.metrics
                .effect_commands_exhausted
                .with_label_values(&[self.definition.name.as_str(), &*failure.class])
                .inc();
        }
        tracing::warn!(
            target: "audit",
            tenant = %command.tenant_id,
            saga = %command.metadata.saga,
            key = %command.metadata.key,
            effect = %self.definition.name,
            command = %command.command_id,
            path = command.metadata.path,
            class = &*failure.class,
            error = failure.message,
            calls = progress.calls,
            outcome_known = !progress.outcome_unknown,
            exhausted,
            trace_id = trace_id(command),
            "effect has failed"
        );
    }

    /// Logs that a call has failed and another one follows `pause` later.
    pub(super) fn log_retry(
        &self,
        command: &EffectCommand<'_>,
        progress: &EffectProgress,
        pause: Duration,
        failure: &CallFailure,
    ) {
        tracing::info!(
            target: TARGET,
            tenant = command.tenant_id.as_str(),
            saga = command.metadata.saga.as_str(),
            key = command.metadata.key.as_str(),
            effect = %self.definition.name,
            command = %command.command_id,
            path = command.metadata.path,
            class = &*failure.class,
            error = failure.message,
            calls = progress.calls,
            outcome_known = !progress.outcome_unknown,
            retry_in_seconds = pause.as_secs_f64(),
            trace_id = trace_id(command),
            "call of an effect has failed, another one follows"
        );
    }

    /// Logs that a command gets an answer without a call.
    pub(super) fn log_uncalled(&self, command: &EffectCommand<'_>, reason: &str) {
        tracing::warn!(
            target: TARGET,
            tenant = command.tenant_id.as_str(),
            saga = command.metadata.saga.as_str(),
            key = command.metadata.key.as_str(),
            effect = %self.definition.name,
            command = %command.command_id,
            path = command.metadata.path,
            reason,
            trace_id = trace_id(command),
            "effect is not called"
        );
    }
}

/// The trace of a command, where it has one.
fn trace_id<'c>(command: &'c EffectCommand<'_>) -> Option<&'c str> {
    command.metadata.traceparent.as_deref().and_then(trace::trace_id)
}
