//! Equality and order.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::EvalError;
use super::budget::Spender;
use super::program::Comparison;
use super::value::{List, Map, Value};

/// Members up to which maps are compared by looking each key up.
const LOOKUP_MAX: usize = 16;

pub(super) fn compare<'a>(
    comparison: Comparison,
    left: &Value<'a>,
    right: &Value<'a>,
    budget: &mut Spender<'_>,
) -> Result<bool, EvalError> {
    let by_order = |holds: fn(Ordering) -> bool| order(comparison.symbol(), left, right).map(holds);
    match comparison {
        Comparison::Equal => equal(left, right, comparison.symbol(), budget),
        Comparison::NotEqual => equal(left, right, comparison.symbol(), budget).map(|same| !same),
        Comparison::Less | Comparison::LessOrEqual | Comparison::Greater | Comparison::GreaterOrEqual => {
            if let (Value::Str(left), Value::Str(right)) = (left, right) {
                budget.text(left.len().min(right.len()))?;
            }
            match comparison {
                Comparison::Less => by_order(Ordering::is_lt),
                Comparison::LessOrEqual => by_order(Ordering::is_le),
                Comparison::Greater => by_order(Ordering::is_gt),
                _ => by_order(Ordering::is_ge),
            }
        }
    }
}

/// Which of two values of one type comes first.
pub(super) fn order(operation: &str, left: &Value<'_>, right: &Value<'_>) -> Result<Ordering, EvalError> {
    let order = match (left, right) {
        (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
        (Value::Double(left), Value::Double(right)) => left.partial_cmp(right),
        // UTF-8 bytes have the order of the code points.
        (Value::Str(left), Value::Str(right)) => Some(left.as_bytes().cmp(right.as_bytes())),
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        (Value::Timestamp(left), Value::Timestamp(right)) => Some(left.cmp(right)),
        (Value::Duration(left), Value::Duration(right)) => Some(left.cmp(right)),
        _ => None,
    };
    order.ok_or_else(|| mixed(operation, left, right))
}

fn mixed(operation: &str, left: &Value<'_>, right: &Value<'_>) -> EvalError {
    EvalError::Type {
        operation: operation.to_owned(),
        found: format!("{} and {}", left.type_name(), right.type_name()),
    }
}

/// Whether two values are the same at every level. Values of different types differ and maps do not care for the
/// order of their keys, as in CEL; but an integer against a double is an error wherever it would decide, since
/// one of the two was meant to be the other.
pub(super) fn equal<'a>(
    left: &Value<'a>,
    right: &Value<'a>,
    operation: &str,
    budget: &mut Spender<'_>,
) -> Result<bool, EvalError> {
    match judge(left, right, budget)? {
        Verdict::Same => Ok(true),
        Verdict::Different => Ok(false),
        Verdict::Mixed => Err(EvalError::Type {
            operation: operation.to_owned(),
            found: "an integer and a double".to_owned(),
        }),
    }
}

/// Whether a list holds a value.
pub(super) fn holds<'a>(
    items: &List<'a>,
    needle: &Value<'a>,
    budget: &mut Spender<'_>,
) -> Result<bool, EvalError> {
    let mut found = Verdict::Different;
    for item in items.iter() {
        match judge(needle, &item, budget)? {
            Verdict::Same => return Ok(true),
            Verdict::Mixed => found = Verdict::Mixed,
            Verdict::Different => {}
        }
    }
    if found == Verdict::Mixed {
        return Err(EvalError::Type {
            operation: "`in`".to_owned(),
            found: "an integer and a double".to_owned(),
        });
    }
    Ok(false)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Same,
    Different,
    /// Nothing differs, but somewhere an integer stands against a double.
    Mixed,
}

fn judge<'a>(left: &Value<'a>, right: &Value<'a>, budget: &mut Spender<'_>) -> Result<Verdict, EvalError> {
    let same = match (left, right) {
        (Value::Null, Value::Null) | (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Int(left), Value::Int(right)) => left == right,
        #[allow(clippy::float_cmp, reason = "equality of doubles is what was asked for")]
        (Value::Double(left), Value::Double(right)) => left == right,
        (Value::Int(_), Value::Double(_)) | (Value::Double(_), Value::Int(_)) => return Ok(Verdict::Mixed),
        (Value::Str(left), Value::Str(right)) => {
            budget.text(left.len().min(right.len()))?;
            **left == **right
        }
        (Value::Timestamp(left), Value::Timestamp(right)) => left == right,
        (Value::Duration(left), Value::Duration(right)) => left == right,
        (Value::List(left), Value::List(right)) => return judge_lists(left, right, budget),
        (Value::Map(left), Value::Map(right)) => return judge_maps(left, right, budget),
        (Value::Optional(Some(left)), Value::Optional(Some(right))) => return judge(left, right, budget),
        _ => false,
    };
    Ok(if same { Verdict::Same } else { Verdict::Different })
}

fn judge_lists<'a>(
    left: &List<'a>,
    right: &List<'a>,
    budget: &mut Spender<'_>,
) -> Result<Verdict, EvalError> {
    if left.len() != right.len() {
        return Ok(Verdict::Different);
    }
    let mut verdict = Verdict::Same;
    for (left, right) in left.iter().zip(right.iter()) {
        budget.spend(1)?;
        match judge(&left, &right, budget)? {
            Verdict::Same => {}
            Verdict::Different => return Ok(Verdict::Different),
            Verdict::Mixed => verdict = Verdict::Mixed,
        }
    }
    Ok(verdict)
}

fn judge_maps<'a>(left: &Map<'a>, right: &Map<'a>, budget: &mut Spender<'_>) -> Result<Verdict, EvalError> {
    if left.len() != right.len() {
        return Ok(Verdict::Different);
    }
    budget.spend(left.len())?;
    let sorted: Option<BTreeMap<String, Value<'a>>> = (left.len() > LOOKUP_MAX).then(|| {
        right
            .iter()
            .map(|(key, value)| (key.to_string(), value))
            .collect()
    });
    let mut verdict = Verdict::Same;
    for (key, value) in left.iter() {
        budget.spend(1)?;
        let other = match &sorted {
            Some(sorted) => sorted.get(&*key).cloned(),
            None => right.get(&key),
        };
        match other.map(|other| judge(&value, &other, budget)).transpose()? {
            Some(Verdict::Same) => {}
            None | Some(Verdict::Different) => return Ok(Verdict::Different),
            Some(Verdict::Mixed) => verdict = Verdict::Mixed,
        }
    }
    Ok(verdict)
}
