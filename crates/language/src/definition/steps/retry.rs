//! The retry of a step or a compensation: attempts, backoff, and the classes of errors.

use std::ops::{Range, RangeInclusive};

use super::super::codes;
use super::super::fields::{self, Fields};
use super::super::findings::Findings;
use super::super::grammar;
use super::super::yaml::{Entry, Plain, Scalar, Value};
use super::RETRY_PAUSE_MS_MIN;
use crate::limits::Limits;
use crate::retry::RetryPolicy;

/// What a retry may be, and is where it says nothing.
#[derive(Debug)]
pub struct RetryBounds {
    pub attempts: RangeInclusive<u32>,
    pub default: RetryPolicy,
}

/// Reads `attempts` and `backoff: {initial, factor, max}`.
pub fn retry(fields: &Fields<'_, '_>, bounds: &RetryBounds, findings: &mut Findings<'_>) -> RetryPolicy {
    let mut policy = bounds.default;
    if let Some(attempts) = fields.get("attempts") {
        policy.attempts = fields::integer(attempts, bounds.attempts.clone(), codes::RETRY, findings)
            .unwrap_or(policy.attempts);
    }
    let Some(backoff) = fields.get("backoff") else {
        return policy;
    };
    let Some(fields) = Fields::read(&backoff.value, &backoff.key_span, &grammar::BACKOFF, findings) else {
        return policy;
    };
    let longest = Limits::default().timer_ms.unsigned_abs();
    let pause = |key: &str, findings: &mut Findings<'_>| {
        let entry = fields.get(key)?;
        fields::duration(entry, RETRY_PAUSE_MS_MIN..=longest, codes::RETRY, findings)
    };
    if let Some(initial) = pause("initial", findings) {
        policy.initial_ms = initial;
        policy.max_ms = policy.max_ms.max(initial);
    }
    if let Some(max) = pause("max", findings) {
        policy.max_ms = max;
        if max < policy.initial_ms {
            let span = fields.get("max").map_or(0..0, |entry| entry.value.span.clone());
            let message = "the longest pause is shorter than the first";
            findings.error(codes::RETRY, span, message);
        }
    }
    if let Some(entry) = fields.get("factor") {
        policy.factor = factor(entry, findings).unwrap_or(policy.factor);
    }
    policy
}

pub fn factor(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<f64> {
    let span: Range<usize> = entry.value.span.clone();
    let number = match &entry.value.value {
        Value::Scalar(scalar) => as_double(scalar),
        Value::List(_) | Value::Map(_) => None,
    };
    let Some(number) = number else {
        fields::expected(&entry.value, &entry.key_span, "a number", findings);
        return None;
    };
    if !(1.0..=100.0).contains(&number) {
        let message = format!("factor is {number}, allowed are 1 to 100");
        findings.error(codes::RETRY, span, message);
        return None;
    }
    Some(number)
}

/// A number, whole or not.
pub fn as_double(scalar: &Scalar<'_>) -> Option<f64> {
    match scalar.plain() {
        Plain::Int(number) => i32::try_from(number).ok().map(f64::from),
        Plain::Double(number) => Some(number),
        Plain::Null | Plain::Bool(_) | Plain::Text(_) | Plain::Refused(_) => None,
    }
}
