//! Values that leave an evaluation: as JSON trees, as canonical bytes, as text.

use std::borrow::Cow;
use std::ops::Deref;

use super::EvalError;
use super::budget::Spender;
use super::time::duration_text;
use super::value::{List, Map, Text, Value};
use crate::json::{Json, write_string};

/// Deepest nesting of a value that may leave. What is stored has to be read again.
const DEPTH_MAX: usize = 128;

/// The value as a tree that borrows every text it can.
pub(super) fn to_json<'a>(value: &Value<'a>, budget: &mut Spender<'_>) -> Result<Json<'a>, EvalError> {
    tree(value, DEPTH_MAX, budget)
}

fn tree<'a>(value: &Value<'a>, depth: usize, budget: &mut Spender<'_>) -> Result<Json<'a>, EvalError> {
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(answer) => Json::Bool(*answer),
        Value::Int(number) => Json::Int(*number),
        Value::Double(number) => Json::Double(*number),
        Value::Str(text) => Json::Str(tree_text(text, budget)?),
        Value::Timestamp(timestamp) => Json::Str(Cow::Owned(timestamp.to_string())),
        Value::Duration(duration) => Json::Str(Cow::Owned(duration_text(*duration))),
        Value::List(items) => {
            let depth = deeper(depth)?;
            budget.spend(items.len())?;
            Json::List(
                items
                    .iter()
                    .map(|item| tree(&item, depth, budget))
                    .collect::<Result<_, _>>()?,
            )
        }
        Value::Map(members) => {
            let depth = deeper(depth)?;
            budget.spend(members.len())?;
            Json::Map(
                members
                    .iter()
                    .map(|(key, value)| Ok((tree_text(&key, budget)?, tree(&value, depth, budget)?)))
                    .collect::<Result<_, _>>()?,
            )
        }
        Value::Optional(_) => return Err(absent_or_not()),
    })
}

fn absent_or_not() -> EvalError {
    EvalError::Other("an optional cannot be stored; end with orValue(...)".to_owned())
}

fn tree_text<'a>(text: &Text<'a>, budget: &mut Spender<'_>) -> Result<Cow<'a, str>, EvalError> {
    match text {
        Text::Borrowed(text) => Ok(Cow::Borrowed(text)),
        Text::Built(text) => {
            budget.text(text.len())?;
            Ok(Cow::Owned(text.to_string()))
        }
    }
}

fn deeper(depth: usize) -> Result<usize, EvalError> {
    depth
        .checked_sub(1)
        .ok_or_else(|| EvalError::Other(format!("value is nested deeper than {DEPTH_MAX} levels")))
}

/// Appends the value as compact JSON with sorted keys at every level.
pub(super) fn write(value: &Value<'_>, out: &mut Vec<u8>, budget: &mut Spender<'_>) -> Result<(), EvalError> {
    let start = out.len();
    let end = start.saturating_add(budget.output_left());
    match write_value(value, DEPTH_MAX, end, out) {
        Ok(()) => budget.output(out.len() - start),
        Err(Refusal::TooLong) => Err(budget.exhaust()),
        Err(Refusal::Unwritable(error)) => Err(error),
    }
}

enum Refusal {
    TooLong,
    Unwritable(EvalError),
}

fn write_value(value: &Value<'_>, depth: usize, end: usize, out: &mut Vec<u8>) -> Result<(), Refusal> {
    match value {
        Value::List(List::Borrowed(items)) => write_items(items.iter(), depth, end, out, write_json)?,
        Value::List(List::Built(items)) => write_items(items.iter(), depth, end, out, write_value)?,
        Value::Map(Map::Borrowed(members)) => write_members(members, depth, end, out, write_json)?,
        Value::Map(Map::Built(members)) => write_members(members, depth, end, out, write_value)?,
        Value::Str(text) => write_string(text, out),
        Value::Null => Json::Null.write(out),
        Value::Bool(answer) => Json::Bool(*answer).write(out),
        Value::Int(number) => Json::Int(*number).write(out),
        Value::Double(number) => Json::Double(*number).write(out),
        Value::Timestamp(timestamp) => write_string(&timestamp.to_string(), out),
        Value::Duration(duration) => write_string(&duration_text(*duration), out),
        Value::Optional(_) => return Err(Refusal::Unwritable(absent_or_not())),
    }
    if out.len() > end {
        return Err(Refusal::TooLong);
    }
    Ok(())
}

fn write_json(json: &Json<'_>, depth: usize, end: usize, out: &mut Vec<u8>) -> Result<(), Refusal> {
    match json {
        Json::List(items) => write_items(items.iter(), depth, end, out, write_json)?,
        Json::Map(members) => write_members(members, depth, end, out, write_json)?,
        scalar => scalar.write(out),
    }
    if out.len() > end {
        return Err(Refusal::TooLong);
    }
    Ok(())
}

type Write<T> = fn(&T, usize, usize, &mut Vec<u8>) -> Result<(), Refusal>;

fn write_items<'i, T: 'i>(
    items: impl Iterator<Item = &'i T>,
    depth: usize,
    end: usize,
    out: &mut Vec<u8>,
    write: Write<T>,
) -> Result<(), Refusal> {
    let depth = deeper(depth).map_err(Refusal::Unwritable)?;
    out.push(b'[');
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(item, depth, end, out)?;
    }
    out.push(b']');
    Ok(())
}

fn write_members<K: Deref<Target = str>, T>(
    members: &[(K, T)],
    depth: usize,
    end: usize,
    out: &mut Vec<u8>,
    write: Write<T>,
) -> Result<(), Refusal> {
    let depth = deeper(depth).map_err(Refusal::Unwritable)?;
    // Stored values are sorted already, so most maps need no second list.
    let unsorted = !members.is_sorted_by(|(left, _), (right, _)| **left < **right);
    let mut sorted: Vec<&(K, T)> = Vec::new();
    if unsorted {
        sorted.extend(members);
        sorted.sort_unstable_by(|(left, _), (right, _)| str::cmp(left, right));
    }
    out.push(b'{');
    for index in 0..members.len() {
        let (key, value) = if unsorted { sorted[index] } else { &members[index] };
        if index > 0 {
            out.push(b',');
        }
        write_string(key, out);
        out.push(b':');
        write(value, depth, end, out)?;
    }
    out.push(b'}');
    Ok(())
}

/// Appends the text that a value has within other text: nothing for null, lists and maps.
pub(super) fn write_text(
    value: &Value<'_>,
    out: &mut String,
    budget: &mut Spender<'_>,
) -> Result<(), EvalError> {
    let start = out.len();
    match value {
        Value::Str(text) => out.push_str(text),
        Value::Int(_) | Value::Double(_) | Value::Bool(_) => out.push_str(&scalar_text(value)),
        Value::Timestamp(timestamp) => out.push_str(&timestamp.to_string()),
        Value::Duration(duration) => out.push_str(&duration_text(*duration)),
        Value::Null | Value::List(_) | Value::Map(_) | Value::Optional(_) => {
            return Err(value.mistyped("text"));
        }
    }
    budget.output(out.len() - start)
}

/// The text of a number or boolean, as in JSON.
pub(super) fn scalar_text(value: &Value<'_>) -> String {
    let mut out = Vec::new();
    match value {
        Value::Int(number) => Json::Int(*number).write(&mut out),
        Value::Double(number) => Json::Double(*number).write(&mut out),
        Value::Bool(answer) => Json::Bool(*answer).write(&mut out),
        Value::Str(_)
        | Value::Null
        | Value::List(_)
        | Value::Map(_)
        | Value::Timestamp(_)
        | Value::Duration(_)
        | Value::Optional(_) => {}
    }
    String::from_utf8(out).expect("JSON is UTF-8")
}

/// Appends compact JSON with sorted keys at every level: the canonical form of what is kept.
pub fn write_sorted(json: &Json<'_>, out: &mut Vec<u8>) {
    let unbounded = write_json(json, usize::MAX, usize::MAX, out);
    debug_assert!(unbounded.is_ok(), "nothing is longer or deeper than memory");
}
