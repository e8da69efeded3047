//! Reading what bounds an effect: its limits and its breaker.

use super::codes;
use super::effect::{BreakerRule, BreakerScope, EffectLimits};
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::steps::as_double;
use super::yaml::{Entry, Value};
use crate::breaker::BreakerPolicy;
use crate::rate::Rate;

pub const CONCURRENCY_MAX: u32 = 4_096;
pub const CALLS_MAX: u32 = 1_000_000;
/// Longest time between two calls of a limited rate, in microseconds. A command that waits for longer would
/// have to be held by a worker that does nothing with it.
const INTERVAL_US_MAX: u64 = 10_000_000;
/// Bounds of the time over which calls are counted, in milliseconds.
const WINDOW_MS: std::ops::RangeInclusive<u64> = 1_000..=600_000;
/// Bounds of the time for which an upstream is left alone, in milliseconds.
const OPEN_MS: std::ops::RangeInclusive<u64> = 100..=600_000;
pub const PROBES_MAX: u32 = 100;

pub fn limits(fields: &Fields<'_, '_>, findings: &mut Findings<'_>) -> EffectLimits {
    let mut limits = EffectLimits::default();
    let Some(fields) = fields
        .get("limits")
        .and_then(|entry| Fields::read(&entry.value, &entry.key_span, &grammar::effect::LIMITS, findings))
    else {
        return limits;
    };
    let mut number = |key: &str| {
        let entry = fields.get(key)?;
        fields::integer(entry, 1..=CONCURRENCY_MAX, codes::WRONG_VALUE, findings)
    };
    limits.concurrency = number("concurrency").unwrap_or(limits.concurrency);
    limits.per_tenant = number("per_tenant");
    if let (Some(per_tenant), Some(entry)) = (limits.per_tenant, fields.get("per_tenant"))
        && per_tenant > limits.concurrency
    {
        let message = format!(
            "one tenant may have more in progress than all tenants together ({})",
            limits.concurrency
        );
        findings.error(codes::CONTRADICTION, entry.value.span.clone(), message);
    }
    limits.rate = fields.get("rate").and_then(|entry| rate(entry, findings));
    limits.tenant_rate = fields.get("tenant_rate").and_then(|entry| rate(entry, findings));
    limits
}

fn rate(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<Rate> {
    let what = "a rate such as 200/s, 90/m or 5000/h";
    let text = fields::text(&entry.value, &entry.key_span, what, findings)?;
    let span = entry.value.span.clone();
    let Some(rate) = Rate::parse(text).filter(|rate| rate.calls <= CALLS_MAX) else {
        let message = format!("\"{}\" is not {what}", text.escape_debug());
        findings.error(codes::WRONG_VALUE, span, message);
        return None;
    };
    if rate.interval_us() > INTERVAL_US_MAX {
        let message = format!("{} is {text}, allowed are 6/m and more", entry.key);
        findings.error(codes::WRONG_VALUE, span, message);
        return None;
    }
    Some(rate)
}

pub fn breaker(fields: &Fields<'_, '_>, findings: &mut Findings<'_>) -> Option<BreakerRule> {
    let entry = fields.get("breaker")?;
    let fields = Fields::read(&entry.value, &entry.key_span, &grammar::effect::BREAKER, findings)?;
    let default = BreakerPolicy::default();
    let scope = fields.get("scope").and_then(|entry| scope(entry, findings));
    let window = fields
        .get("window")
        .and_then(|entry| fields::duration(entry, WINDOW_MS, codes::WRONG_VALUE, findings));
    let open = fields
        .get("open")
        .and_then(|entry| fields::duration(entry, OPEN_MS, codes::WRONG_VALUE, findings));
    let calls_min = fields
        .get("min_calls")
        .and_then(|entry| fields::integer(entry, 1..=CALLS_MAX, codes::WRONG_VALUE, findings));
    let probes = fields
        .get("probes")
        .and_then(|entry| fields::integer(entry, 1..=PROBES_MAX, codes::WRONG_VALUE, findings));
    let failure_rate = fields
        .get("failure_rate")
        .and_then(|entry| share(entry, findings));
    Some(BreakerRule {
        scope: scope.unwrap_or_default(),
        policy: BreakerPolicy {
            window_ms: window.unwrap_or(default.window_ms),
            calls_min: calls_min.unwrap_or(default.calls_min),
            failure_rate: failure_rate.unwrap_or(default.failure_rate),
            open_ms: open.unwrap_or(default.open_ms),
            probes: probes.unwrap_or(default.probes),
        },
    })
}

fn scope(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<BreakerScope> {
    match fields::text(&entry.value, &entry.key_span, "a scope", findings)? {
        "host" => Some(BreakerScope::Host),
        "effect" => Some(BreakerScope::Effect),
        other => {
            let message = format!("unknown scope \"{}\"", other.escape_debug());
            findings
                .error(codes::WRONG_VALUE, entry.value.span.clone(), message)
                .help(Some("scopes are host and effect".to_owned()));
            None
        }
    }
}

fn share(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<f64> {
    let number = match &entry.value.value {
        Value::Scalar(scalar) => as_double(scalar),
        Value::List(_) | Value::Map(_) => None,
    };
    let Some(number) = number else {
        fields::expected(&entry.value, &entry.key_span, "a number", findings);
        return None;
    };
    if (0.01..=1.0).contains(&number) {
        return Some(number);
    }
    let message = format!("{} is {number}, allowed are 0.01 to 1", entry.key);
    findings.error(codes::WRONG_VALUE, entry.value.span.clone(), message);
    None
}
