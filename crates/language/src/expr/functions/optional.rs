//! Values that may be absent, by the rules of cel-go.

use std::rc::Rc;

use super::super::EvalError;
use super::super::budget::Spender;
use super::super::value::Value;
use super::{Function, Given};

/// `optional.of(x)`.
pub(super) fn of(value: Value<'_>) -> Value<'_> {
    Value::Optional(Some(Rc::new(value)))
}

/// `optional.ofNonZeroValue(x)`: absent where the value is null, false, zero or empty.
pub(super) fn of_non_zero(value: Value<'_>) -> Value<'_> {
    let zero = match &value {
        Value::Null | Value::Optional(None) => true,
        Value::Bool(answer) => !answer,
        Value::Int(number) => *number == 0,
        Value::Double(number) => *number == 0.0,
        Value::Str(text) => text.is_empty(),
        Value::List(items) => items.len() == 0,
        Value::Map(members) => members.len() == 0,
        Value::Duration(duration) => duration.is_zero(),
        Value::Timestamp(_) | Value::Optional(Some(_)) => false,
    };
    if zero { Value::Optional(None) } else { of(value) }
}

/// What may be absent.
pub(super) fn content<'v, 'a>(
    value: &'v Value<'a>,
    function: Function,
) -> Result<Option<&'v Value<'a>>, EvalError> {
    match value {
        Value::Optional(present) => Ok(present.as_deref()),
        _ => Err(value.mistyped(function.name())),
    }
}

/// `x.value()`.
pub(super) fn value<'a>(optional: &Value<'a>) -> Given<'a> {
    content(optional, Function::OptionalValue)?
        .cloned()
        .ok_or_else(|| EvalError::Other("value() of what is absent; write orValue(...)".to_owned()))
}

/// `x.or(y)` and `x.orValue(y)`; where `x` is present, `y` has not been looked at.
pub(super) fn or<'a>(optional: Value<'a>, other: Value<'a>, function: Function) -> Given<'a> {
    match (function, content(&optional, function)?) {
        (Function::OrOptional, Some(_)) => Ok(optional),
        (Function::OrOptional, None) if !matches!(other, Value::Optional(_)) => {
            Err(other.mistyped(function.name()))
        }
        (_, Some(present)) => Ok(present.clone()),
        (_, None) => Ok(other),
    }
}

/// The first or last item of a list, if it has one.
pub(super) fn end<'a>(list: &Value<'a>, function: Function) -> Given<'a> {
    let items = list.as_list(function.name())?;
    let at = match function {
        Function::First => Some(0),
        _ => items.len().checked_sub(1),
    };
    Ok(Value::Optional(at.and_then(|at| items.get(at)).map(Rc::new)))
}

/// The values that are present among the items of a list of optionals.
pub(super) fn unwrapped<'a>(list: &Value<'a>, function: Function, budget: &mut Spender<'_>) -> Given<'a> {
    let items = list.as_list(function.name())?;
    budget.spend(items.len())?;
    let mut present = Vec::new();
    for item in items.iter() {
        present.extend(content(&item, function)?.cloned());
    }
    Ok(Value::list(present))
}
