//! The functions that expressions may call. All are pure and total.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::EvalError;
use super::eval::Spender;
use super::value::{Value, type_name};
use crate::kernel::json::Json;

macro_rules! functions {
    ($($variant:ident $name:literal $arguments:expr;)*) => {
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
}

/// Longest list that `range` makes.
const RANGE_MAX: i64 = 10_000;

pub(super) fn call<'a>(
    function: Function,
    arguments: Vec<Value<'a>>,
    budget: &mut Spender<'_>,
) -> Result<Value<'a>, EvalError> {
    let name = function.name();
    let mut arguments = arguments.into_iter();
    let mut next = || {
        arguments
            .next()
            .ok_or_else(|| EvalError::Other(format!("{name}() lacks an argument")))
    };
    match function {
        Function::Size => size(&next()?),
        Function::Contains | Function::StartsWith | Function::EndsWith => {
            let (text, part) = (next()?.into_text(name)?, next()?.into_text(name)?);
            budget.spend_text(text.len())?;
            Ok(Value::bool(match function {
                Function::Contains => text.contains(part.as_ref()),
                Function::StartsWith => text.starts_with(part.as_ref()),
                _ => text.ends_with(part.as_ref()),
            }))
        }
        Function::String => string(next()?),
        Function::Int => int(&next()?),
        Function::Double => double(&next()?),
        Function::Bool => boolean(&next()?),
        Function::LowerAscii => Ok(Value::text(spent(next()?, name, budget)?.to_ascii_lowercase())),
        Function::UpperAscii => Ok(Value::text(spent(next()?, name, budget)?.to_ascii_uppercase())),
        Function::Trim => Ok(Value::text(spent(next()?, name, budget)?.trim().to_owned())),
        Function::Merge => merge(next()?, next()?, budget),
        Function::Put => put(next()?, next()?, next()?, budget),
        Function::Range => range(&next()?, budget),
        Function::Chunk => chunk(next()?, &next()?, budget),
        Function::Slice => slice(next()?, &next()?, &next()?, budget),
        Function::Sum => sum(&next()?, budget),
        Function::Url => Ok(Value::text(percent_encode(&spent(next()?, name, budget)?))),
        Function::Hash => {
            let text = spent(next()?, name, budget)?;
            let hash = blake3::hash(text.as_bytes());
            Ok(Value::text(hash.to_hex()[..32].to_owned()))
        }
    }
}

fn spent<'a>(value: Value<'a>, name: &str, budget: &mut Spender<'_>) -> Result<Cow<'a, str>, EvalError> {
    let text = value.into_text(name)?;
    budget.spend_text(text.len())?;
    Ok(text)
}

fn size<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
    let size = match value.json() {
        Json::Str(text) => text.chars().count(),
        Json::List(items) => items.len(),
        Json::Map(members) => members.len(),
        _ => return Err(value.mistyped("size()")),
    };
    Ok(Value::int(i64::try_from(size).unwrap_or(i64::MAX)))
}

fn string(value: Value<'_>) -> Result<Value<'_>, EvalError> {
    match value.json() {
        Json::Str(_) => Ok(value),
        Json::Int(_) | Json::Double(_) | Json::Bool(_) => Ok(Value::text(scalar_text(value.json()))),
        _ => Err(value.mistyped("string()")),
    }
}

/// The text of a number or boolean, as in JSON.
pub(super) fn scalar_text(json: &Json<'_>) -> String {
    let mut out = Vec::new();
    json.write(&mut out);
    String::from_utf8(out).expect("JSON is UTF-8")
}

fn int<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
    let bad = |text: &str| EvalError::Other(format!("int() cannot read {text:?}"));
    match value.json() {
        Json::Int(number) => Ok(Value::int(*number)),
        Json::Double(number) => {
            // Exactly the doubles whose whole part an i64 holds.
            if *number >= -9_223_372_036_854_775_808.0 && *number < 9_223_372_036_854_775_808.0 {
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "checked above; the fraction is cut off"
                )]
                let whole = *number as i64;
                Ok(Value::int(whole))
            } else {
                Err(EvalError::Overflow {
                    operation: "int()".to_owned(),
                })
            }
        }
        Json::Str(text) => text.parse().map(Value::int).map_err(|_| bad(text)),
        _ => Err(value.mistyped("int()")),
    }
}

fn double<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
    let number = match value.json() {
        Json::Double(number) => *number,
        #[allow(clippy::cast_precision_loss, reason = "what double() of an integer means")]
        Json::Int(number) => *number as f64,
        Json::Str(text) => text
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite())
            .ok_or_else(|| EvalError::Other(format!("double() cannot read {text:?}")))?,
        _ => return Err(value.mistyped("double()")),
    };
    Ok(Value::Own(Json::Double(number)))
}

fn boolean<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
    match value.json() {
        Json::Bool(answer) => Ok(Value::bool(*answer)),
        Json::Str(text) if text == "true" => Ok(Value::bool(true)),
        Json::Str(text) if text == "false" => Ok(Value::bool(false)),
        _ => Err(value.mistyped("bool()")),
    }
}

fn merge<'a>(left: Value<'a>, right: Value<'a>, budget: &mut Spender<'_>) -> Result<Value<'a>, EvalError> {
    let mut members = left.into_members("merge()")?;
    let others = right.into_members("merge()")?;
    budget.spend(members.len() + others.len())?;
    members.retain(|(key, _)| !others.iter().any(|(other, _)| other == key));
    members.extend(others);
    Ok(Value::Own(Json::Map(members)))
}

fn put<'a>(
    map: Value<'a>,
    key: Value<'a>,
    value: Value<'a>,
    budget: &mut Spender<'_>,
) -> Result<Value<'a>, EvalError> {
    let mut members = map.into_members("put()")?;
    let key = key.into_text("put()")?;
    budget.spend(members.len())?;
    let value = value.into_json();
    match members.iter_mut().find(|(other, _)| *other == key) {
        Some((_, present)) => *present = value,
        None => members.push((key, value)),
    }
    Ok(Value::Own(Json::Map(members)))
}

fn range<'a>(count: &Value<'a>, budget: &mut Spender<'_>) -> Result<Value<'a>, EvalError> {
    let count = count.as_int("range()")?;
    if !(0..=RANGE_MAX).contains(&count) {
        return Err(EvalError::Other(format!(
            "range() takes 0 to {RANGE_MAX}, found {count}"
        )));
    }
    budget.spend(usize::try_from(count).unwrap_or(0))?;
    Ok(Value::Own(Json::List((0..count).map(Json::Int).collect())))
}

fn chunk<'a>(list: Value<'a>, size: &Value<'a>, budget: &mut Spender<'_>) -> Result<Value<'a>, EvalError> {
    let items = list.into_items("chunk()")?;
    let size = usize::try_from(size.as_int("chunk()")?).unwrap_or(0);
    if size == 0 {
        return Err(EvalError::Other("chunk() takes a size of at least 1".to_owned()));
    }
    budget.spend(items.len())?;
    let chunks = items.chunks(size).map(|part| Json::List(part.to_vec())).collect();
    Ok(Value::Own(Json::List(chunks)))
}

fn slice<'a>(
    list: Value<'a>,
    from: &Value<'a>,
    to: &Value<'a>,
    budget: &mut Spender<'_>,
) -> Result<Value<'a>, EvalError> {
    let items = list.into_items("slice()")?;
    budget.spend(items.len())?;
    let place = |value: &Value<'a>| {
        let at = value.as_int("slice()")?;
        usize::try_from(at)
            .map(|at| at.min(items.len()))
            .map_err(|_| EvalError::Other(format!("slice() takes no negative place, found {at}")))
    };
    let (from, to) = (place(from)?, place(to)?);
    Ok(Value::Own(Json::List(items[from.min(to)..to].to_vec())))
}

fn sum<'a>(list: &Value<'a>, budget: &mut Spender<'_>) -> Result<Value<'a>, EvalError> {
    let Json::List(items) = list.json() else {
        return Err(list.mistyped("sum()"));
    };
    budget.spend(items.len())?;
    let mut total = 0_i64;
    let mut fraction: Option<f64> = None;
    for item in items {
        match item {
            Json::Int(number) if fraction.is_none() => {
                total = total.checked_add(*number).ok_or_else(|| EvalError::Overflow {
                    operation: "sum()".to_owned(),
                })?;
            }
            Json::Double(number) if fraction.is_some() || total == 0 => {
                fraction = Some(fraction.unwrap_or(0.0) + number);
            }
            other => {
                return Err(EvalError::Type {
                    operation: "sum()".to_owned(),
                    found: format!("a list with {} among other numbers", type_name(other)),
                });
            }
        }
    }
    Ok(fraction.map_or_else(|| Value::int(total), |sum| Value::Own(Json::Double(sum))))
}

/// Everything but RFC 3986's unreserved characters as `%XX`.
fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02X}").expect("writing to a string"),
        }
    }
    out
}
