//! Maps from maps.

use std::collections::BTreeSet;

use super::super::EvalError;
use super::super::budget::Spender;
use super::super::value::{Map, Text, Value};
use super::Given;

pub(super) fn members<'a>(map: Value<'a>, name: &str) -> Result<Map<'a>, EvalError> {
    match map {
        Value::Map(members) => Ok(members),
        other => Err(other.mistyped(name)),
    }
}

pub(super) fn merge<'a>(left: Value<'a>, right: Value<'a>, budget: &mut Spender<'_>) -> Given<'a> {
    let (left, right) = (members(left, "merge()")?, members(right, "merge()")?);
    budget.spend(left.len() + right.len())?;
    let others = right.into_members();
    let mut merged = left.into_members();
    let replaced: BTreeSet<&str> = others.iter().map(|(key, _)| &**key).collect();
    merged.retain(|(key, _)| !replaced.contains(&**key));
    drop(replaced);
    merged.extend(others);
    Ok(Value::map(merged))
}

pub(super) fn put<'a>(
    map: Value<'a>,
    key: &Value<'a>,
    value: Value<'a>,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    let map = members(map, "put()")?;
    let key: &Text<'a> = key.as_text("put()")?;
    budget.spend(map.len())?;
    let mut members = map.into_members();
    match members.iter_mut().find(|(other, _)| **other == **key) {
        Some((_, present)) => *present = value,
        None => members.push((key.clone(), value)),
    }
    Ok(Value::map(members))
}
