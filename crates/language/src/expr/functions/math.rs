//! Numbers: the extension `math` of cel-go. Integers and doubles do not mix, and there is no double that is not finite.

use std::cmp::Ordering;

use super::super::EvalError;
use super::super::budget::Spender;
use super::super::compare;
use super::super::time::overflow;
use super::super::value::Value;
use super::{Function, Given};

/// Bits of an integer: what is shifted further is gone.
const BITS: i64 = 64;

/// The largest (`wanted` greater) or smallest of a list, or the number itself.
pub(super) fn extreme<'a>(
    value: &Value<'a>,
    function: Function,
    wanted: Ordering,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    let name = function.name();
    let Value::List(items) = value else {
        return number(value, name);
    };
    budget.spend(items.len())?;
    let mut found: Option<Value<'a>> = None;
    for item in items.iter() {
        let item = number(&item, name)?;
        found = Some(match found {
            Some(best) if compare::order(name, &item, &best)? != wanted => best,
            _ => item,
        });
    }
    found.ok_or_else(|| EvalError::Other(format!("{name}() of no numbers")))
}

fn number<'a>(value: &Value<'a>, name: &str) -> Given<'a> {
    match value {
        Value::Int(_) | Value::Double(_) => Ok(value.clone()),
        _ => Err(value.mistyped(name)),
    }
}

/// `math.ceil` and its like: a double from a double.
pub(super) fn rounded<'a>(value: &Value<'a>, function: Function, round: fn(f64) -> f64) -> Given<'a> {
    match value {
        Value::Double(number) => Ok(Value::Double(round(*number))),
        _ => Err(value.mistyped(function.name())),
    }
}

/// What a double is not here, and what it always is.
pub(super) fn about_double<'a>(value: &Value<'a>, function: Function) -> Given<'a> {
    match value {
        Value::Double(number) => Ok(Value::Bool(match function {
            Function::IsNan => number.is_nan(),
            Function::IsInf => number.is_infinite(),
            _ => number.is_finite(),
        })),
        _ => Err(value.mistyped(function.name())),
    }
}

pub(super) fn abs<'a>(value: &Value<'a>) -> Given<'a> {
    match value {
        Value::Int(number) => {
            let size = number.checked_abs().ok_or_else(|| overflow("math.abs()"))?;
            Ok(Value::Int(size))
        }
        Value::Double(number) => Ok(Value::Double(number.abs())),
        _ => Err(value.mistyped("math.abs()")),
    }
}

/// -1, 0 or 1, of the type of the number.
pub(super) fn sign<'a>(value: &Value<'a>) -> Given<'a> {
    match value {
        Value::Int(number) => Ok(Value::Int(number.signum())),
        Value::Double(number) if *number == 0.0 => Ok(Value::Double(0.0)),
        Value::Double(number) => Ok(Value::Double(number.signum())),
        _ => Err(value.mistyped("math.sign()")),
    }
}

pub(super) fn sqrt<'a>(value: &Value<'a>) -> Given<'a> {
    let number = match value {
        Value::Double(number) => *number,
        #[allow(clippy::cast_precision_loss, reason = "the root of an integer is a double")]
        Value::Int(number) => *number as f64,
        _ => return Err(value.mistyped("math.sqrt()")),
    };
    if number < 0.0 {
        return Err(EvalError::Other("math.sqrt() of a negative number".to_owned()));
    }
    Ok(Value::Double(number.sqrt()))
}

/// `math.bitAnd`, `math.bitOr`, `math.bitXor` and the two shifts. To the right is without the sign, as in cel-go.
pub(super) fn bits<'a>(one: &Value<'a>, other: &Value<'a>, function: Function) -> Given<'a> {
    let name = function.name();
    let (one, other) = (one.as_int(name)?, other.as_int(name)?);
    let shifted = |by: fn(u64, u32) -> u64| match u32::try_from(other) {
        Ok(places) if other < BITS => Ok(by(one.cast_unsigned(), places).cast_signed()),
        Ok(_) => Ok(0),
        Err(_) if other >= BITS => Ok(0),
        Err(_) => Err(EvalError::Other(format!(
            "{name}() shifts by 0 or more, found {other}"
        ))),
    };
    Ok(Value::Int(match function {
        Function::BitAnd => one & other,
        Function::BitOr => one | other,
        Function::BitXor => one ^ other,
        Function::BitShiftLeft => shifted(|number, places| number << places)?,
        _ => shifted(|number, places| number >> places)?,
    }))
}

pub(super) fn bit_not<'a>(value: &Value<'a>) -> Given<'a> {
    Ok(Value::Int(!value.as_int("math.bitNot()")?))
}
