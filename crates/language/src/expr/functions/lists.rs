//! Lists: our own functions, and the extension `lists` of cel-go.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::super::EvalError;
use super::super::budget::Spender;
use super::super::compare;
use super::super::time::overflow;
use super::super::value::{List, Value};
use super::Given;

/// Longest list that `range` makes.
const RANGE_MAX: i64 = 10_000;
/// Deepest levels that are flattened; values are not nested deeper.
const FLATTEN_MAX: usize = 128;

pub(super) fn range<'a>(count: &Value<'a>, budget: &mut Spender<'_>) -> Given<'a> {
    let count = count.as_int("range()")?;
    if !(0..=RANGE_MAX).contains(&count) {
        return Err(EvalError::Other(format!(
            "range() takes 0 to {RANGE_MAX}, found {count}"
        )));
    }
    budget.spend(usize::try_from(count).unwrap_or(usize::MAX))?;
    Ok(Value::list((0..count).map(Value::Int).collect()))
}

pub(super) fn chunk<'a>(list: &Value<'a>, size: &Value<'a>, budget: &mut Spender<'_>) -> Given<'a> {
    let items = list.as_list("chunk()")?;
    let size = size.as_int("chunk()")?;
    if size < 1 {
        return Err(EvalError::Other(format!(
            "chunk() takes a size of at least 1, found {size}"
        )));
    }
    budget.spend(items.len())?;
    let items: Vec<Value<'a>> = items.iter().collect();
    let chunks = items.chunks(usize::try_from(size).unwrap_or(usize::MAX));
    Ok(Value::list(
        chunks.map(|part| Value::list(part.to_vec())).collect(),
    ))
}

pub(super) fn slice<'a>(
    list: &Value<'a>,
    from: &Value<'a>,
    to: &Value<'a>,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    let items = list.as_list("slice()")?;
    let place = |value: &Value<'a>| {
        let at = value.as_int("slice()")?;
        usize::try_from(at)
            .map(|at| at.min(items.len()))
            .map_err(|_| EvalError::Other(format!("slice() takes no negative place, found {at}")))
    };
    let (from, to) = (place(from)?, place(to)?);
    budget.spend(to.saturating_sub(from))?;
    Ok(Value::list((from..to).filter_map(|at| items.get(at)).collect()))
}

pub(super) fn sum<'a>(list: &Value<'a>, budget: &mut Spender<'_>) -> Given<'a> {
    let items = list.as_list("sum()")?;
    budget.spend(items.len())?;
    let mut total: Option<Value<'a>> = None;
    for item in items.iter() {
        total = Some(match (total, item) {
            (None, number @ (Value::Int(_) | Value::Double(_))) => number,
            (Some(Value::Int(total)), Value::Int(number)) => {
                Value::Int(total.checked_add(number).ok_or_else(|| overflow("sum()"))?)
            }
            (Some(Value::Double(total)), Value::Double(number)) => {
                let total = total + number;
                if !total.is_finite() {
                    return Err(overflow("sum()"));
                }
                Value::Double(total)
            }
            (total, other) => {
                let before = total.map_or("nothing", |total| total.type_name());
                return Err(EvalError::Type {
                    operation: "sum()".to_owned(),
                    found: format!("{} after {before}", other.type_name()),
                });
            }
        });
    }
    Ok(total.unwrap_or(Value::Int(0)))
}

/// Lists within the list in place of themselves, `depth` levels down.
pub(super) fn flatten<'a>(
    list: &Value<'a>,
    depth: Option<&Value<'a>>,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    let name = "flatten()";
    let items = list.as_list(name)?;
    let depth = depth.map_or(Ok(1), |depth| depth.as_int(name))?;
    let depth = usize::try_from(depth)
        .map_err(|_| EvalError::Other(format!("{name} takes a depth of 0 or more, found {depth}")))?;
    let mut flat = Vec::new();
    flatten_into(items, depth.min(FLATTEN_MAX), &mut flat, budget)?;
    Ok(Value::list(flat))
}

fn flatten_into<'a>(
    items: &List<'a>,
    depth: usize,
    flat: &mut Vec<Value<'a>>,
    budget: &mut Spender<'_>,
) -> Result<(), EvalError> {
    budget.spend(items.len())?;
    for item in items.iter() {
        match (&item, depth.checked_sub(1)) {
            (Value::List(inner), Some(deeper)) => flatten_into(inner, deeper, flat, budget)?,
            _ => flat.push(item),
        }
    }
    Ok(())
}

/// The items without those that were there before.
pub(super) fn distinct<'a>(list: &Value<'a>, budget: &mut Spender<'_>) -> Given<'a> {
    let items = list.as_list("distinct()")?;
    budget.spend(items.len())?;
    // Texts, which most lists hold, are looked up; everything else is compared with each that was kept.
    let mut texts = BTreeSet::new();
    let mut kept: Vec<Value<'a>> = Vec::new();
    let mut others: Vec<Value<'a>> = Vec::new();
    for item in items.iter() {
        let is_new = if let Value::Str(text) = &item {
            budget.text(text.len())?;
            texts.insert(text.to_string())
        } else {
            let mut is_new = true;
            for other in &others {
                budget.spend(1)?;
                if compare::equal(&item, other, "distinct()", budget)? {
                    is_new = false;
                    break;
                }
            }
            if is_new {
                others.push(item.clone());
            }
            is_new
        };
        if is_new {
            kept.push(item);
        }
    }
    Ok(Value::list(kept))
}

/// The items from the last to the first; the characters of a text likewise.
pub(super) fn reverse<'a>(value: &Value<'a>, budget: &mut Spender<'_>) -> Given<'a> {
    match value {
        Value::Str(text) => {
            budget.text(text.len())?;
            Ok(Value::text(text.chars().rev().collect()))
        }
        Value::List(items) => {
            budget.spend(items.len())?;
            let mut items = items.clone().into_items();
            items.reverse();
            Ok(Value::list(items))
        }
        _ => Err(value.mistyped("reverse()")),
    }
}

/// The items in the order of their keys, which are of one type; those with equal keys stay in theirs.
pub(in super::super) fn sorted<'a>(
    mut keyed: Vec<(Value<'a>, Value<'a>)>,
    name: &str,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    // Each item is compared with about as many as the list has binary digits.
    let rounds = usize::BITS - keyed.len().leading_zeros();
    budget.spend(keyed.len().saturating_mul(rounds as usize))?;
    for (key, _) in &keyed {
        if let Value::Str(text) = key {
            budget.text(text.len())?;
        }
    }
    if let Some((first, _)) = keyed.first() {
        compare::order(name, first, first)?;
        for (key, _) in &keyed {
            compare::order(name, first, key)?;
        }
    }
    keyed.sort_by(|(one, _), (other, _)| compare::order(name, one, other).unwrap_or(Ordering::Equal));
    Ok(Value::list(keyed.into_iter().map(|(_, item)| item).collect()))
}

pub(super) fn sort<'a>(list: &Value<'a>, budget: &mut Spender<'_>) -> Given<'a> {
    let name = "sort()";
    let items = list.as_list(name)?;
    sorted(
        items.iter().map(|item| (item.clone(), item)).collect(),
        name,
        budget,
    )
}
