//! Which operation takes what, and what it gives: the evaluator's own rules, told about types.

use super::{FaultKind, Kinds, Type};
use crate::expr::nearest;
use crate::expr::program::{Arithmetic, Comparison};

/// Why an operation would fail, or what is wrong with it.
#[derive(Debug)]
pub(super) struct Refusal {
    pub kind: FaultKind,
    pub message: String,
    pub help: Option<String>,
}

pub(super) type Given = Result<Type, Refusal>;

pub(super) const NUMBER: Kinds = Kinds::INT.with(Kinds::DOUBLE);

pub(super) fn overload(message: String, help: Option<&str>) -> Refusal {
    Refusal {
        kind: FaultKind::Overload,
        message,
        help: help.map(str::to_owned),
    }
}

/// Whether every value of the type is of one of these kinds.
pub(super) fn demand(found: &Type, kinds: Kinds, operation: &str) -> Result<(), Refusal> {
    if found.dynamic || kinds.has(found.kinds) {
        return Ok(());
    }
    if kinds.has(found.kinds.without(Kinds::NULL)) && found.kinds != Kinds::NULL {
        return Err(may_be_null(operation));
    }
    Err(overload(format!("{operation} does not take {found}"), None))
}

fn may_be_null(operation: &str) -> Refusal {
    Refusal {
        kind: FaultKind::Unguarded,
        message: format!("{operation} does not take null, and this may be null"),
        help: Some("ask first: x != null ? ... : ...".to_owned()),
    }
}

pub(super) fn negate(found: &Type) -> Given {
    demand(found, NUMBER, "`-`").map(|()| found.clone())
}

pub(super) fn compare(comparison: Comparison, left: &Type, right: &Type) -> Given {
    if left.dynamic || right.dynamic || left.is_never() || right.is_never() {
        return Ok(Type::boolean());
    }
    match comparison {
        Comparison::Equal | Comparison::NotEqual => equal(comparison, left, right),
        Comparison::Less | Comparison::LessOrEqual | Comparison::Greater | Comparison::GreaterOrEqual => {
            order(comparison, left, right)
        }
    }
}

fn equal(comparison: Comparison, left: &Type, right: &Type) -> Given {
    let symbol = comparison.symbol();
    if mixes(left, right) {
        return Err(mixed(symbol, left, right));
    }
    let outcome = if comparison == Comparison::Equal {
        "never holds"
    } else {
        "always holds"
    };
    if left.kinds.both(right.kinds).is_empty() {
        let null = left.kinds == Kinds::NULL || right.kinds == Kinds::NULL;
        return Err(Refusal {
            kind: if null {
                FaultKind::CertainGuard
            } else {
                FaultKind::Certain
            },
            message: format!("this {outcome}: {left} is compared with {right}"),
            help: null.then(|| "leave it out".to_owned()),
        });
    }
    if let (Kinds::STRING, Some(one), Some(other)) = (left.kinds.both(right.kinds), &left.words, &right.words)
        && one.is_disjoint(other)
    {
        let (word, among) = match (one.len(), other.len()) {
            (1, _) => (one.first(), other),
            _ => (other.first(), one),
        };
        let near = word.and_then(|word| nearest(word, among.iter().map(String::as_str)));
        return Err(Refusal {
            kind: FaultKind::Certain,
            message: format!("this {outcome}: {left} is compared with {right}"),
            help: near.map(|near| format!("did you mean {near:?}?")),
        });
    }
    Ok(Type::boolean())
}

/// Whether an integer may stand against a double, which is an error wherever it would decide.
fn mixes(left: &Type, right: &Type) -> bool {
    let against = |one: &Type, other: &Type| one.kinds.has(Kinds::INT) && other.kinds.has(Kinds::DOUBLE);
    against(left, right) || against(right, left)
}

pub(super) fn mixed(operation: &str, left: &Type, right: &Type) -> Refusal {
    overload(
        format!("{operation} does not take {left} and {right}: integers and doubles do not mix"),
        Some("write double(...) around the integer, or 1.0 for 1"),
    )
}

fn order(comparison: Comparison, left: &Type, right: &Type) -> Given {
    let symbol = comparison.symbol();
    let ordered = Kinds::BOOL
        .with(NUMBER)
        .with(Kinds::STRING)
        .with(Kinds::TIMESTAMP)
        .with(Kinds::DURATION);
    demand(left, ordered, symbol)?;
    demand(right, ordered, symbol)?;
    if mixes(left, right) {
        return Err(mixed(symbol, left, right));
    }
    let single = left.kinds.each().count() == 1;
    if left.kinds != right.kinds || !single {
        return Err(overload(
            format!("{symbol} does not take {left} and {right}"),
            None,
        ));
    }
    Ok(Type::boolean())
}

pub(super) fn arithmetic(operator: Arithmetic, left: &Type, right: &Type) -> Given {
    let symbol = operator.symbol();
    if left.is_never() || right.is_never() {
        return Ok(Type::dynamic());
    }
    for side in [left, right] {
        let known = side.kinds.without(Kinds::NULL);
        if !side.dynamic && side.kinds.has(Kinds::NULL) && !known.is_empty() {
            return Err(may_be_null(symbol));
        }
    }
    if left.dynamic || right.dynamic {
        return one_sided(operator, left, right);
    }
    let mut given = Type::default();
    for one in left.kinds.each() {
        for other in right.kinds.each() {
            match combined(operator, one, other) {
                Some(Kinds::LIST) => given = given.or(&Type::list(left.items().or(&right.items()))),
                Some(kind) => given = given.or(&Type::of(kind)),
                None if mixes(left, right) => return Err(mixed(symbol, left, right)),
                None => {
                    return Err(overload(
                        format!("{symbol} does not take {left} and {right}"),
                        None,
                    ));
                }
            }
        }
    }
    Ok(given)
}

/// One side is not known: the other must be something that the operation takes at all.
fn one_sided(operator: Arithmetic, left: &Type, right: &Type) -> Given {
    let fits = |side: &Type, left_side: bool| {
        side.dynamic
            || side.kinds.each().any(|kind| {
                Kinds::EACH.into_iter().any(|other| {
                    if left_side {
                        combined(operator, kind, other).is_some()
                    } else {
                        combined(operator, other, kind).is_some()
                    }
                })
            })
    };
    for (side, left_side) in [(left, true), (right, false)] {
        if !fits(side, left_side) {
            return Err(overload(
                format!("{} does not take {side}", operator.symbol()),
                None,
            ));
        }
    }
    Ok(Type::dynamic())
}

fn combined(operator: Arithmetic, left: Kinds, right: Kinds) -> Option<Kinds> {
    use Arithmetic::{Add, Modulo, Subtract};
    match (operator, left, right) {
        (_, Kinds::INT, Kinds::INT) => Some(Kinds::INT),
        (_, Kinds::DOUBLE, Kinds::DOUBLE) if operator != Modulo => Some(Kinds::DOUBLE),
        (Add, Kinds::STRING, Kinds::STRING) => Some(Kinds::STRING),
        (Add, Kinds::LIST, Kinds::LIST) => Some(Kinds::LIST),
        (Add | Subtract, Kinds::TIMESTAMP, Kinds::DURATION) | (Add, Kinds::DURATION, Kinds::TIMESTAMP) => {
            Some(Kinds::TIMESTAMP)
        }
        (Subtract, Kinds::TIMESTAMP, Kinds::TIMESTAMP)
        | (Add | Subtract, Kinds::DURATION, Kinds::DURATION) => Some(Kinds::DURATION),
        _ => None,
    }
}

pub(super) fn contained(needle: &Type, haystack: &Type) -> Given {
    demand(haystack, Kinds::LIST.with(Kinds::MAP), "`in`")?;
    if haystack.kinds.has(Kinds::MAP) {
        let keys = NUMBER.with(Kinds::STRING).with(Kinds::BOOL);
        demand(needle, keys, "`in` a map")?;
    }
    if needle.dynamic || haystack.dynamic || haystack.kinds != Kinds::LIST {
        return Ok(Type::boolean());
    }
    let item = haystack.items();
    if item.is_never() || item.dynamic || needle.is_never() {
        return Ok(Type::boolean());
    }
    if mixes(needle, &item) {
        return Err(mixed("`in`", needle, &item));
    }
    let apart = needle.kinds.both(item.kinds).is_empty();
    let words = match (needle.kinds.both(item.kinds), &needle.words, &item.words) {
        (Kinds::STRING, Some(one), Some(other)) => one.is_disjoint(other),
        _ => false,
    };
    if apart || words {
        return Err(Refusal {
            kind: FaultKind::Certain,
            message: format!("this never holds: {needle} is looked for among {item}"),
            help: None,
        });
    }
    Ok(Type::boolean())
}
