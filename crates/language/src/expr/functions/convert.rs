//! From one type to another.

use super::super::EvalError;
use super::super::budget::Spender;
use super::super::output::scalar_text;
use super::super::time::{Part, duration_text, overflow, shown};
use super::super::value::Value;
use super::Given;

pub(super) fn part<'a>(part: Part, value: &Value<'a>, name: &str) -> Given<'a> {
    match value {
        Value::Timestamp(timestamp) => Some(part.of_timestamp(*timestamp)),
        Value::Duration(duration) => part.of_duration(*duration),
        _ => None,
    }
    .map(Value::Int)
    .ok_or_else(|| value.mistyped(name))
}

pub(super) fn size<'a>(value: &Value<'a>, budget: &mut Spender<'_>) -> Given<'a> {
    let size = match value {
        Value::Str(text) => {
            budget.text(text.len())?;
            text.chars().count()
        }
        Value::List(items) => items.len(),
        Value::Map(members) => members.len(),
        _ => return Err(value.mistyped("size()")),
    };
    Ok(Value::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}

pub(super) fn string(value: Value<'_>) -> Given<'_> {
    match &value {
        Value::Str(_) => Ok(value),
        Value::Duration(duration) => Ok(Value::text(duration_text(*duration))),
        Value::Timestamp(timestamp) => Ok(Value::text(timestamp.to_string())),
        Value::Int(_) | Value::Double(_) | Value::Bool(_) => Ok(Value::text(scalar_text(&value))),
        Value::Null | Value::List(_) | Value::Map(_) | Value::Optional(_) => Err(value.mistyped("string()")),
    }
}

pub(super) fn int<'a>(value: &Value<'a>) -> Given<'a> {
    match value {
        Value::Int(number) => Ok(Value::Int(*number)),
        Value::Double(number) => {
            // The doubles between the ends of an i64; of the ends themselves CEL has none.
            if *number > -9_223_372_036_854_775_808.0 && *number < 9_223_372_036_854_775_808.0 {
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "checked above; the fraction is cut off"
                )]
                let whole = *number as i64;
                Ok(Value::Int(whole))
            } else {
                Err(overflow("int()"))
            }
        }
        Value::Str(text) => text
            .parse()
            .map(Value::Int)
            .map_err(|_| EvalError::Other(format!("int() cannot read {}", shown(text)))),
        Value::Timestamp(timestamp) => Ok(Value::Int(timestamp.as_second())),
        _ => Err(value.mistyped("int()")),
    }
}

pub(super) fn double<'a>(value: &Value<'a>) -> Given<'a> {
    let number = match value {
        Value::Double(number) => *number,
        #[allow(clippy::cast_precision_loss, reason = "what double() of an integer means")]
        Value::Int(number) => *number as f64,
        Value::Str(text) => text
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite())
            .ok_or_else(|| EvalError::Other(format!("double() cannot read {}", shown(text))))?,
        _ => return Err(value.mistyped("double()")),
    };
    Ok(Value::Double(number))
}

pub(super) fn boolean<'a>(value: &Value<'a>) -> Given<'a> {
    match value {
        Value::Bool(answer) => Ok(Value::Bool(*answer)),
        Value::Str(text) if **text == *"true" => Ok(Value::Bool(true)),
        Value::Str(text) if **text == *"false" => Ok(Value::Bool(false)),
        Value::Str(text) => Err(EvalError::Other(format!("bool() cannot read {}", shown(text)))),
        _ => Err(value.mistyped("bool()")),
    }
}
