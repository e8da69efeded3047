//! `"%s of %d".format([a, b])`, by the rules of cel-go.

use std::fmt::Write as _;

use super::super::EvalError;
use super::super::budget::Spender;
use super::super::output::scalar_text;
use super::super::time::duration_text;
use super::super::value::Value;
use super::Given;

/// Digits behind the point where a clause does not say.
const PRECISION: usize = 6;
/// Most digits that a clause may ask for.
const PRECISION_MAX: usize = 100;
/// Deepest value that `%s` writes.
const DEPTH_MAX: usize = 32;
const NAME: &str = "format()";

/// The text with a value of `list` for each clause, in order; values that are left over are not used.
pub(super) fn format<'a>(text: &Value<'a>, list: &Value<'a>, budget: &mut Spender<'_>) -> Given<'a> {
    let (text, values) = (text.as_text(NAME)?, list.as_list(NAME)?);
    budget.text(text.len())?;
    let mut out = String::new();
    let mut rest = &**text;
    let mut next = 0;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('%') {
            out.push('%');
            rest = behind;
            continue;
        }
        let value = values.get(next).ok_or_else(|| {
            let count = values.len();
            EvalError::Other(format!(
                "{NAME} has more clauses than its list has values, {count}"
            ))
        })?;
        let (clause, precision, behind) = clause(rest)?;
        let before = out.len();
        budget.spend(1)?;
        write(clause, precision, &value, &mut out, budget)?;
        budget.text(out.len() - before)?;
        rest = behind;
        next += 1;
    }
    out.push_str(rest);
    Ok(Value::text(out))
}

/// The letter of a clause, its precision, and what follows it.
fn clause(text: &str) -> Result<(char, usize, &str), EvalError> {
    let refused = |what: String| EvalError::Other(format!("{NAME} cannot read a clause: {what}"));
    let (precision, rest) = match text.strip_prefix('.') {
        None => (PRECISION, text),
        Some(digits) => {
            let end = digits
                .find(|digit: char| !digit.is_ascii_digit())
                .ok_or_else(|| refused("the text ends in its precision".to_owned()))?;
            let precision = digits[..end]
                .parse()
                .ok()
                .filter(|precision| *precision <= PRECISION_MAX)
                .ok_or_else(|| refused(format!("a precision is 0 to {PRECISION_MAX}")))?;
            (precision, &digits[end..])
        }
    };
    let mut letters = rest.chars();
    match letters.next() {
        Some(letter @ ('s' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o')) => {
            Ok((letter, precision, letters.as_str()))
        }
        Some(letter) => Err(refused(format!("there is no %{letter}"))),
        None => Err(refused("the text ends in it".to_owned())),
    }
}

fn write(
    clause: char,
    precision: usize,
    value: &Value<'_>,
    out: &mut String,
    budget: &mut Spender<'_>,
) -> Result<(), EvalError> {
    match (clause, value) {
        ('s', value) => write_any(value, DEPTH_MAX, out, budget),
        ('d', Value::Int(number)) => written(write!(out, "{number}")),
        ('d', Value::Double(number)) => written(write!(out, "{number}")),
        #[allow(
            clippy::cast_precision_loss,
            reason = "what these clauses say about an integer"
        )]
        ('f' | 'e', Value::Int(number)) => {
            write(clause, precision, &Value::Double(*number as f64), out, budget)
        }
        ('f', Value::Double(number)) => written(write!(out, "{number:.precision$}")),
        ('e', Value::Double(number)) => scientific(*number, precision, out),
        ('b', Value::Bool(answer)) => written(write!(out, "{}", u8::from(*answer))),
        ('b' | 'o' | 'x' | 'X', Value::Int(number)) => {
            let (sign, size) = (if *number < 0 { "-" } else { "" }, number.unsigned_abs());
            written(match clause {
                'b' => write!(out, "{sign}{size:b}"),
                'o' => write!(out, "{sign}{size:o}"),
                'x' => write!(out, "{sign}{size:x}"),
                _ => write!(out, "{sign}{size:X}"),
            })
        }
        ('x' | 'X', Value::Str(text)) => {
            for byte in text.bytes() {
                written(match clause {
                    'x' => write!(out, "{byte:02x}"),
                    _ => write!(out, "{byte:02X}"),
                })?;
            }
            Ok(())
        }
        (clause, value) => Err(value.mistyped(&format!("%{clause} of {NAME}"))),
    }
}

/// Writing into memory cannot fail.
fn written(result: std::fmt::Result) -> Result<(), EvalError> {
    result.map_err(|error| EvalError::Other(error.to_string()))
}

/// As C and Go write it: an exponent has a sign and at least two digits.
fn scientific(number: f64, precision: usize, out: &mut String) -> Result<(), EvalError> {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    written(write!(out, "{digits}e{sign}{exponent:0>2}"))
}

/// Any value as `%s` shows it: text without quotation marks at every level, maps with sorted keys.
fn write_any(
    value: &Value<'_>,
    depth: usize,
    out: &mut String,
    budget: &mut Spender<'_>,
) -> Result<(), EvalError> {
    let deeper = depth
        .checked_sub(1)
        .ok_or_else(|| EvalError::Other(format!("{NAME} writes values of at most {DEPTH_MAX} levels")))?;
    budget.spend(1)?;
    match value {
        Value::Null => out.push_str("null"),
        Value::Double(number) => written(write!(out, "{number}"))?,
        Value::Bool(_) | Value::Int(_) => out.push_str(&scalar_text(value)),
        Value::Str(text) => {
            budget.text(text.len())?;
            out.push_str(text);
        }
        Value::Timestamp(timestamp) => written(write!(out, "{timestamp}"))?,
        Value::Duration(duration) => out.push_str(&duration_text(*duration)),
        Value::List(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                write_any(&item, deeper, out, budget)?;
            }
            out.push(']');
        }
        Value::Map(members) => {
            budget.spend(members.len())?;
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by(|(one, _), (other, _)| str::cmp(one, other));
            out.push('{');
            for (at, (key, member)) in sorted.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                out.push_str(key);
                out.push_str(": ");
                write_any(member, deeper, out, budget)?;
            }
            out.push('}');
        }
        Value::Optional(_) => return Err(value.mistyped(&format!("%s of {NAME}"))),
    }
    Ok(())
}
