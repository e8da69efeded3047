//! The functions that expressions may call. All are pure and total.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::EvalError;
use super::budget::Spender;
use super::output::scalar_text;
use super::time::{Part, duration_text, overflow, parse_duration, parse_timestamp, shown};
use super::value::{Map, Text, Value};

macro_rules! functions {
    ($($variant:ident $name:literal $arguments:literal;)*) => {
        /// A function by name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Function { $($variant),* }

        impl Function {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Number of arguments, the receiver of a method call included.
            pub const fn arguments(self) -> usize {
                match self { $(Self::$variant => $arguments),* }
            }
        }
    };
}

functions! {
    Size "size" 1;
    Contains "contains" 2;
    StartsWith "startsWith" 2;
    EndsWith "endsWith" 2;
    String "string" 1;
    Int "int" 1;
    Double "double" 1;
    Bool "bool" 1;
    Timestamp "timestamp" 1;
    Duration "duration" 1;
    GetFullYear "getFullYear" 1;
    GetMonth "getMonth" 1;
    GetDate "getDate" 1;
    GetDayOfMonth "getDayOfMonth" 1;
    GetDayOfWeek "getDayOfWeek" 1;
    GetDayOfYear "getDayOfYear" 1;
    GetHours "getHours" 1;
    GetMinutes "getMinutes" 1;
    GetSeconds "getSeconds" 1;
    GetMilliseconds "getMilliseconds" 1;
    LowerAscii "lowerAscii" 1;
    UpperAscii "upperAscii" 1;
    Trim "trim" 1;
    Merge "merge" 2;
    Put "put" 3;
    Range "range" 1;
    Chunk "chunk" 2;
    Slice "slice" 3;
    Sum "sum" 1;
    Url "url" 1;
    Hash "hash" 1;
    Uid "uid" 1;
}

/// Member of `record` from which `uid` makes its ids; no expression can write it.
pub const UID_SEED: &str = "(seed)";

/// Most arguments that a function takes.
pub(super) const ARGUMENTS_MAX: usize = 3;
/// Longest list that `range` makes.
const RANGE_MAX: i64 = 10_000;
/// Hexadecimal digits of `hash`: the first 16 bytes of BLAKE3.
const HASH_DIGITS: usize = 32;

/// Calls `function` with as many of the arguments as it takes.
pub(super) fn call<'a>(
    function: Function,
    [a, b, c]: [Value<'a>; ARGUMENTS_MAX],
    budget: &mut Spender<'_>,
) -> Result<Value<'a>, EvalError> {
    let name = function.name();
    match function {
        Function::Size => size(&a, budget),
        Function::Contains => searched(&a, &b, name, budget, |text, part| text.contains(part)),
        Function::StartsWith => searched(&a, &b, name, budget, |text, part| text.starts_with(part)),
        Function::EndsWith => searched(&a, &b, name, budget, |text, part| text.ends_with(part)),
        Function::String => string(a),
        Function::Int => int(&a),
        Function::Double => double(&a),
        Function::Bool => boolean(&a),
        Function::Timestamp => match &a {
            Value::Timestamp(_) => Ok(a),
            Value::Str(text) => parse_timestamp(text).map(Value::Timestamp),
            _ => Err(a.mistyped(name)),
        },
        Function::Duration => match &a {
            Value::Duration(_) => Ok(a),
            Value::Str(text) => parse_duration(text).map(Value::Duration),
            _ => Err(a.mistyped(name)),
        },
        Function::GetFullYear => part(Part::FullYear, &a, name),
        Function::GetMonth => part(Part::Month, &a, name),
        Function::GetDate => part(Part::Date, &a, name),
        Function::GetDayOfMonth => part(Part::DayOfMonth, &a, name),
        Function::GetDayOfWeek => part(Part::DayOfWeek, &a, name),
        Function::GetDayOfYear => part(Part::DayOfYear, &a, name),
        Function::GetHours => part(Part::Hours, &a, name),
        Function::GetMinutes => part(Part::Minutes, &a, name),
        Function::GetSeconds => part(Part::Seconds, &a, name),
        Function::GetMilliseconds => part(Part::Milliseconds, &a, name),
        Function::LowerAscii => built(&a, name, budget, str::to_ascii_lowercase),
        Function::UpperAscii => built(&a, name, budget, str::to_ascii_uppercase),
        Function::Trim => built(&a, name, budget, |text| text.trim().to_owned()),
        Function::Url => built(&a, name, budget, percent_encode),
        Function::Hash => built(&a, name, budget, |text| {
            blake3::hash(text.as_bytes()).to_hex()[..HASH_DIGITS].to_owned()
        }),
        Function::Uid => uid(&a, &b, budget),
        Function::Merge => merge(a, b, budget),
        Function::Put => put(a, &b, c, budget),
        Function::Range => range(&a, budget),
        Function::Chunk => chunk(&a, &b, budget),
        Function::Slice => slice(&a, &b, &c, budget),
        Function::Sum => sum(&a, budget),
    }
}

fn searched<'a>(
    text: &Value<'a>,
    part: &Value<'a>,
    name: &str,
    budget: &mut Spender<'_>,
    search: fn(&str, &str) -> bool,
) -> Result<Value<'a>, EvalError> {
    let (text, part) = (text.as_text(name)?, part.as_text(name)?);
    budget.text(text.len())?;
    Ok(Value::Bool(search(text, part)))
}

fn built<'a>(
    text: &Value<'a>,
    name: &str,
    budget: &mut Spender<'_>,
    build: fn(&str) -> String,
) -> Result<Value<'a>, EvalError> {
    let text = text.as_text(name)?;
    budget.text(text.len())?;
    Ok(Value::text(build(text)))
}

fn part<'a>(part: Part, value: &Value<'a>, name: &str) -> Result<Value<'a>, EvalError> {
    match value {
        Value::Timestamp(timestamp) => Some(part.of_timestamp(*timestamp)),
        Value::Duration(duration) => part.of_duration(*duration),
        _ => None,
    }
    .map(Value::Int)
    .ok_or_else(|| value.mistyped(name))
}

fn size<'a>(value: &Value<'a>, budget: &mut Spender<'_>) -> Result<Value<'a>, EvalError> {
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

fn string(value: Value<'_>) -> Result<Value<'_>, EvalError> {
    match &value {
        Value::Str(_) => Ok(value),
        Value::Duration(duration) => Ok(Value::text(duration_text(*duration))),
        Value::Timestamp(timestamp) => Ok(Value::text(timestamp.to_string())),
        Value::Int(_) | Value::Double(_) | Value::Bool(_) => Ok(Value::text(scalar_text(&value))),
        Value::Null | Value::List(_) | Value::Map(_) => Err(value.mistyped("string()")),
    }
}

fn int<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
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

fn double<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
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

fn boolean<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
    match value {
        Value::Bool(answer) => Ok(Value::Bool(*answer)),
        Value::Str(text) if **text == *"true" => Ok(Value::Bool(true)),
        Value::Str(text) if **text == *"false" => Ok(Value::Bool(false)),
        Value::Str(text) => Err(EvalError::Other(format!("bool() cannot read {}", shown(text)))),
        _ => Err(value.mistyped("bool()")),
    }
}

fn members<'a>(map: Value<'a>, name: &str) -> Result<Map<'a>, EvalError> {
    match map {
        Value::Map(members) => Ok(members),
        other => Err(other.mistyped(name)),
    }
}

fn merge<'a>(left: Value<'a>, right: Value<'a>, budget: &mut Spender<'_>) -> Result<Value<'a>, EvalError> {
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

fn put<'a>(
    map: Value<'a>,
    key: &Value<'a>,
    value: Value<'a>,
    budget: &mut Spender<'_>,
) -> Result<Value<'a>, EvalError> {
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

fn range<'a>(count: &Value<'a>, budget: &mut Spender<'_>) -> Result<Value<'a>, EvalError> {
    let count = count.as_int("range()")?;
    if !(0..=RANGE_MAX).contains(&count) {
        return Err(EvalError::Other(format!(
            "range() takes 0 to {RANGE_MAX}, found {count}"
        )));
    }
    budget.spend(usize::try_from(count).unwrap_or(usize::MAX))?;
    Ok(Value::list((0..count).map(Value::Int).collect()))
}

fn chunk<'a>(list: &Value<'a>, size: &Value<'a>, budget: &mut Spender<'_>) -> Result<Value<'a>, EvalError> {
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

fn slice<'a>(
    list: &Value<'a>,
    from: &Value<'a>,
    to: &Value<'a>,
    budget: &mut Spender<'_>,
) -> Result<Value<'a>, EvalError> {
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

fn sum<'a>(list: &Value<'a>, budget: &mut Spender<'_>) -> Result<Value<'a>, EvalError> {
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

/// A UUID of version 8 that only this input of this instance has; another number, another id.
fn uid<'a>(number: &Value<'a>, seed: &Value<'a>, budget: &mut Spender<'_>) -> Result<Value<'a>, EvalError> {
    let number = number.as_int("uid()")?;
    let seed = seed.as_text("uid()")?;
    budget.text(seed.len())?;
    let mut hasher = blake3::Hasher::new_derive_key("saga-runner uid v1");
    hasher.update(&number.to_le_bytes());
    hasher.update(seed.as_bytes());
    let mut bytes = [0_u8; 16];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    let id = uuid::Builder::from_custom_bytes(bytes).into_uuid();
    Ok(Value::text(id.hyphenated().to_string()))
}

/// Everything but RFC 3986's unreserved characters as `%XX`.
#[must_use]
pub fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02X}").expect("writing to a string"),
        }
    }
    out
}
