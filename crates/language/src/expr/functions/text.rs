//! Text: CEL's own functions, and the extension `strings` of cel-go. Places are counted in characters.

use super::super::EvalError;
use super::super::budget::Spender;
use super::super::value::{Text, Value};
use super::Given;

pub(super) fn searched<'a>(
    text: &Value<'a>,
    part: &Value<'a>,
    name: &str,
    budget: &mut Spender<'_>,
    search: fn(&str, &str) -> bool,
) -> Given<'a> {
    let (text, part) = (text.as_text(name)?, part.as_text(name)?);
    budget.text(text.len())?;
    Ok(Value::Bool(search(text, part)))
}

pub(super) fn built<'a>(
    text: &Value<'a>,
    name: &str,
    budget: &mut Spender<'_>,
    build: fn(&str) -> String,
) -> Given<'a> {
    let text = text.as_text(name)?;
    budget.text(text.len())?;
    Ok(Value::text(build(text)))
}

/// `"tea".charAt(1)`; at the end of the text it is empty.
pub(super) fn char_at<'a>(text: &Value<'a>, at: &Value<'a>, budget: &mut Spender<'_>) -> Given<'a> {
    let name = "charAt()";
    let (text, at) = (scanned(text, name, budget)?, at.as_int(name)?);
    let wanted = place(at, name)?;
    match text.chars().nth(wanted) {
        Some(found) => Ok(Value::text(found.to_string())),
        None if text.chars().count() == wanted => Ok(Value::text(String::new())),
        None => Err(outside(name, at)),
    }
}

/// Where `part` begins, at `from` or behind it; -1 where it does not.
pub(super) fn index_of<'a>(
    text: &Value<'a>,
    part: &Value<'a>,
    from: Option<&Value<'a>>,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    let name = "indexOf()";
    let (text, part) = (scanned(text, name, budget)?, part.as_text(name)?);
    let from = from.map_or(Ok(0), |from| place(from.as_int(name)?, name))?;
    let Some(begin) = byte_of(&text, from) else {
        return Ok(counted(part.is_empty().then(|| text.chars().count())));
    };
    let found = text[begin..].find(&**part);
    Ok(counted(
        found.map(|at| from + text[begin..begin + at].chars().count()),
    ))
}

/// Where the last `part` begins, at `upto` or before it; -1 where none does.
pub(super) fn last_index_of<'a>(
    text: &Value<'a>,
    part: &Value<'a>,
    upto: Option<&Value<'a>>,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    let name = "lastIndexOf()";
    let (text, part) = (scanned(text, name, budget)?, part.as_text(name)?);
    let length = text.chars().count();
    let upto = upto.map(|upto| place(upto.as_int(name)?, name)).transpose()?;
    let upto = match upto {
        // As in cel-go: behind the end there is nothing to begin from, but for what is empty.
        Some(upto) if upto >= length && !part.is_empty() => return Ok(counted(None)),
        Some(upto) => upto.min(length),
        None => length,
    };
    let searched = byte_of(&text, upto).map_or(text.len(), |begin| (begin + part.len()).min(text.len()));
    let searched = text.floor_char_boundary(searched);
    let found = text[..searched].rfind(&**part);
    Ok(counted(found.map(|at| text[..at].chars().count())))
}

/// The text from one place to before another, or to its end.
pub(super) fn substring<'a>(
    text: &Value<'a>,
    from: &Value<'a>,
    to: Option<&Value<'a>>,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    let name = "substring()";
    let text = scanned(text, name, budget)?;
    let end = |at: &Value<'a>| {
        let at = at.as_int(name)?;
        byte_of(&text, place(at, name)?).ok_or_else(|| outside(name, at))
    };
    let begin = end(from)?;
    let behind = to.map_or(Ok(text.len()), end)?;
    match text.get(begin..behind) {
        Some(part) => Ok(Value::text(part.to_owned())),
        None => Err(EvalError::Other(format!("{name} ends before it begins"))),
    }
}

/// All of `part`, or the first `most` of them, by `by`. Less than none is all.
pub(super) fn replace<'a>(
    text: &Value<'a>,
    [part, by]: [&Value<'a>; 2],
    most: Option<&Value<'a>>,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    let name = "replace()";
    let text = scanned(text, name, budget)?;
    let (part, by) = (part.as_text(name)?, by.as_text(name)?);
    let most = most.map_or(Ok(None), |most| {
        most.as_int(name).map(|most| usize::try_from(most).ok())
    })?;
    let count = text.matches(&**part).count().min(most.unwrap_or(usize::MAX));
    // Paid for before it is built: what is put in may be much longer than what it is put into.
    budget.text(text.len().saturating_add(count.saturating_mul(by.len())))?;
    Ok(Value::text(text.replacen(&**part, by, count)))
}

/// The parts between separators, the last of at most `most` with all that is left. An empty separator parts characters.
pub(super) fn split<'a>(
    text: &Value<'a>,
    separator: &Value<'a>,
    most: Option<&Value<'a>>,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    let name = "split()";
    let (text, separator) = (scanned(text, name, budget)?, separator.as_text(name)?);
    let most = most.map_or(Ok(None), |most| {
        most.as_int(name).map(|most| usize::try_from(most).ok())
    })?;
    let most = most.unwrap_or(usize::MAX);
    let parts: Vec<&str> = if separator.is_empty() {
        characters(&text, most)
    } else {
        text.splitn(most, &**separator).collect()
    };
    budget.spend(parts.len())?;
    Ok(Value::list(
        parts
            .into_iter()
            .map(|part| Value::text(part.to_owned()))
            .collect(),
    ))
}

fn characters(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if parts.len() >= most {
            break;
        }
        let length = if parts.len() + 1 == most {
            rest.len()
        } else {
            first.len_utf8()
        };
        let (part, behind) = rest.split_at(length);
        parts.push(part);
        rest = behind;
    }
    parts
}

/// The texts of a list, one behind the other.
pub(super) fn join<'a>(
    list: &Value<'a>,
    separator: Option<&Value<'a>>,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    let name = "join()";
    let items = list.as_list(name)?;
    let separator = separator.map_or(Ok(None), |separator| separator.as_text(name).map(Some))?;
    let separator = separator.map_or("", |separator| separator);
    budget.spend(items.len())?;
    let mut joined = String::new();
    for (at, item) in items.iter().enumerate() {
        let item = item.as_text(name)?;
        budget.text(item.len() + separator.len())?;
        if at > 0 {
            joined.push_str(separator);
        }
        joined.push_str(item);
    }
    Ok(Value::text(joined))
}

/// The text as a literal of CEL, in quotation marks.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// A text that is read from one end to the other.
fn scanned<'a>(text: &Value<'a>, name: &str, budget: &mut Spender<'_>) -> Result<Text<'a>, EvalError> {
    let text = text.as_text(name)?;
    budget.text(text.len())?;
    Ok(text.clone())
}

/// The byte at which the character number `at` begins; the one behind the last is the end.
fn byte_of(text: &str, at: usize) -> Option<usize> {
    text.char_indices()
        .map(|(byte, _)| byte)
        .chain([text.len()])
        .nth(at)
}

fn place(at: i64, name: &str) -> Result<usize, EvalError> {
    usize::try_from(at).map_err(|_| outside(name, at))
}

fn outside(name: &str, at: i64) -> EvalError {
    EvalError::Other(format!("{name} finds no character {at}"))
}

fn counted<'a>(found: Option<usize>) -> Value<'a> {
    Value::Int(found.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1))
}
