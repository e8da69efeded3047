//! What each function takes, and what it gives.

use super::operations::{Given, NUMBER, Refusal, demand, mixed, overload};
use super::{Kinds, Type};
use crate::expr::functions::Function;

/// What can be put in order.
const ORDERED: Kinds = NUMBER
    .with(Kinds::STRING)
    .with(Kinds::BOOL)
    .with(Kinds::TIMESTAMP)
    .with(Kinds::DURATION);

/// The type that a call gives. `texts` are the arguments that are literal strings.
pub(super) fn call(function: Function, arguments: &[Type], texts: &[Option<&str>]) -> Given {
    let name = format!("`{}()`", function.name());
    if let Some((wanted, given)) = signature(function) {
        for (argument, kinds) in arguments.iter().zip(wanted) {
            demand(argument, *kinds, &name)?;
        }
        return Ok(given);
    }
    let argument = |at: usize| arguments.get(at).cloned().unwrap_or_else(Type::dynamic);
    let needs = |at: usize, kinds: Kinds| demand(&argument(at), kinds, &name);
    match function {
        Function::Merge => {
            needs(0, Kinds::MAP)?;
            needs(1, Kinds::MAP)?;
            Ok(merged(&argument(0), &argument(1)))
        }
        Function::Put => {
            needs(0, Kinds::MAP)?;
            needs(1, Kinds::STRING)?;
            let added = texts.get(1).copied().flatten();
            Ok(match added {
                Some(key) => merged(&argument(0), &Type::object([(key, argument(2))])),
                None => Type::dynamic(),
            })
        }
        Function::Ceil
        | Function::Floor
        | Function::Round
        | Function::Trunc
        | Function::IsFinite
        | Function::IsInf
        | Function::IsNan => double(function, &argument(0), &name),
        Function::Abs | Function::Sign => needs(0, NUMBER).map(|()| argument(0)),
        Function::Greatest | Function::Least => extreme(&argument(0), &name),
        Function::Sum => sum(&argument(0), &name),
        Function::Reverse => {
            needs(0, Kinds::LIST.with(Kinds::STRING))?;
            let words = None;
            Ok(Type { words, ..argument(0) })
        }
        Function::OptionalOf | Function::OptionalOfNonZero => Ok(Type::optional(argument(0))),
        Function::OptionalValue => needs(0, Kinds::OPTIONAL).map(|()| argument(0).held()),
        Function::OrValue => {
            needs(0, Kinds::OPTIONAL)?;
            Ok(argument(0).held().or(&argument(1)))
        }
        Function::OrOptional => {
            needs(0, Kinds::OPTIONAL)?;
            needs(1, Kinds::OPTIONAL)?;
            Ok(argument(0).or(&argument(1)))
        }
        _ => of_list(function, arguments, &name),
    }
}

/// The kinds of arguments, and what is given, of functions that give the same for all arguments.
fn signature(function: Function) -> Option<(&'static [Kinds], Type)> {
    const ANY_TEXT: Kinds = Kinds::STRING;
    const TIMES: Kinds = Kinds::TIMESTAMP.with(Kinds::DURATION);
    const SIZED: Kinds = Kinds::STRING.with(Kinds::LIST).with(Kinds::MAP);
    const TEXT_OF: Kinds = NUMBER.with(Kinds::STRING).with(Kinds::BOOL).with(TIMES);
    const INT_OF: Kinds = NUMBER.with(Kinds::STRING).with(Kinds::TIMESTAMP);
    const DOUBLE_OF: Kinds = NUMBER.with(Kinds::STRING);
    const BOOL_OF: Kinds = Kinds::STRING.with(Kinds::BOOL);
    const TIMESTAMP_OF: Kinds = Kinds::STRING.with(Kinds::TIMESTAMP);
    const DURATION_OF: Kinds = Kinds::STRING.with(Kinds::DURATION);
    let double = || Type::of(Kinds::DOUBLE);
    let (wanted, given): (&'static [Kinds], Type) = match function {
        Function::Size => (&[SIZED], Type::integer()),
        Function::String => (&[TEXT_OF], Type::string()),
        Function::Int => (&[INT_OF], Type::integer()),
        Function::Double => (&[DOUBLE_OF], double()),
        Function::Bool => (&[BOOL_OF], Type::boolean()),
        Function::Timestamp => (&[TIMESTAMP_OF], Type::of(Kinds::TIMESTAMP)),
        Function::Duration => (&[DURATION_OF], Type::of(Kinds::DURATION)),
        Function::GetFullYear
        | Function::GetMonth
        | Function::GetDate
        | Function::GetDayOfMonth
        | Function::GetDayOfWeek
        | Function::GetDayOfYear => (&[Kinds::TIMESTAMP], Type::integer()),
        Function::GetHours | Function::GetMinutes | Function::GetSeconds | Function::GetMilliseconds => {
            (&[TIMES], Type::integer())
        }
        Function::Contains | Function::StartsWith | Function::EndsWith => {
            (&[ANY_TEXT, ANY_TEXT], Type::boolean())
        }
        Function::LowerAscii
        | Function::UpperAscii
        | Function::Trim
        | Function::Url
        | Function::Hash
        | Function::Quote => (&[ANY_TEXT], Type::string()),
        Function::CharAt | Function::Substring => (&[ANY_TEXT, Kinds::INT, Kinds::INT], Type::string()),
        Function::IndexOf | Function::LastIndexOf => (&[ANY_TEXT, ANY_TEXT, Kinds::INT], Type::integer()),
        Function::Replace => (&[ANY_TEXT, ANY_TEXT, ANY_TEXT, Kinds::INT], Type::string()),
        Function::Split => (&[ANY_TEXT, ANY_TEXT, Kinds::INT], Type::list(Type::string())),
        Function::Format => (&[ANY_TEXT, Kinds::LIST], Type::string()),
        Function::Range | Function::ListsRange => (&[Kinds::INT], Type::list(Type::integer())),
        Function::Uid => (&[Kinds::INT], Type::string()),
        Function::Sqrt => (&[NUMBER], double()),
        Function::BitNot => (&[Kinds::INT], Type::integer()),
        Function::BitAnd
        | Function::BitOr
        | Function::BitXor
        | Function::BitShiftLeft
        | Function::BitShiftRight => (&[Kinds::INT, Kinds::INT], Type::integer()),
        Function::OptionalNone => (&[], Type::optional(Type::default())),
        Function::HasValue => (&[Kinds::OPTIONAL], Type::boolean()),
        _ => return None,
    };
    Some((wanted, given))
}

/// What functions of a list give, which depends on its items.
fn of_list(function: Function, arguments: &[Type], name: &str) -> Given {
    let list = arguments.first().cloned().unwrap_or_else(Type::dynamic);
    let behind = arguments.get(1..).unwrap_or_default();
    let of_items = format!("{name} of items");
    demand(&list, Kinds::LIST, name)?;
    let by = if function == Function::Join {
        Kinds::STRING
    } else {
        Kinds::INT
    };
    for argument in behind {
        demand(argument, by, name)?;
    }
    let item = list.items();
    Ok(match function {
        Function::Chunk => Type::list(list),
        Function::Join => {
            demand(&item, Kinds::STRING, &of_items)?;
            Type::string()
        }
        Function::Sort => {
            sortable(&item, name)?;
            list
        }
        Function::Flatten if behind.is_empty() => flat(&list),
        Function::Flatten => Type::dynamic(),
        Function::First | Function::Last => Type::optional(item),
        Function::OptionalUnwrap | Function::UnwrapOpt => {
            demand(&item, Kinds::OPTIONAL, &of_items)?;
            Type::list(item.held())
        }
        // `slice` and `distinct`: some of the items.
        _ => list,
    })
}

/// What is asked about doubles, and how they are rounded; an integer needs it not.
fn double(function: Function, found: &Type, name: &str) -> Given {
    if !found.dynamic && found.kinds == Kinds::INT {
        let message = format!("{name} does not take an integer");
        let help = "leave it out, or write double(...) around the integer";
        return Err(overload(message, Some(help)));
    }
    demand(found, Kinds::DOUBLE, name)?;
    Ok(match function {
        Function::IsFinite | Function::IsInf | Function::IsNan => Type::boolean(),
        _ => Type::of(Kinds::DOUBLE),
    })
}

/// What items are sorted by is of one type.
pub(super) fn sortable(key: &Type, name: &str) -> Result<(), Refusal> {
    if key.dynamic || key.is_never() {
        return Ok(());
    }
    demand(key, ORDERED, &format!("{name} of items"))?;
    if key.kinds.each().count() > 1 {
        let message = format!("{name} takes items of one type, found {key}");
        return Err(overload(message, None));
    }
    Ok(())
}

/// One level of lists within the list is gone.
fn flat(list: &Type) -> Type {
    let item = list.items();
    if item.dynamic {
        return Type::dynamic();
    }
    let inner = if item.kinds.has(Kinds::LIST) {
        item.items()
    } else {
        Type::default()
    };
    Type::list(item.minus(Kinds::LIST).or(&inner))
}

fn extreme(value: &Type, name: &str) -> Given {
    demand(value, NUMBER.with(Kinds::LIST), name)?;
    if value.dynamic || !value.kinds.has(Kinds::LIST) {
        return Ok(value.clone());
    }
    let item = value.items();
    demand(&item, NUMBER, &format!("{name} of items"))?;
    if item.kinds == NUMBER {
        return Err(mixed(name, &item, &item));
    }
    Ok(item.or(&value.minus(Kinds::LIST)))
}

fn sum(list: &Type, name: &str) -> Given {
    demand(list, Kinds::LIST, name)?;
    let item = list.items();
    if item.dynamic {
        return Ok(Type::dynamic());
    }
    demand(&item, NUMBER, &format!("{name} of items"))?;
    if item.kinds == NUMBER {
        return Err(mixed(name, &item, &item));
    }
    // Of no items it is the integer 0.
    Ok(item.or(&Type::integer()))
}

/// Members of the second take the place of those of the first; one that may be missing may leave them.
fn merged(first: &Type, second: &Type) -> Type {
    let (Some(one), Some(other)) = (&first.object, &second.object) else {
        return Type::dynamic();
    };
    // What is not listed in the second may take the place of any member.
    if first.dynamic || second.dynamic || other.rest.is_some() {
        return Type::dynamic();
    }
    let mut members = one.members.clone();
    for (name, added) in &other.members {
        let member = match members.get(name) {
            Some(present) if !added.required => super::Member {
                value: present.value.or(&added.value),
                required: present.required,
            },
            _ => added.clone(),
        };
        members.insert(name.clone(), member);
    }
    Type::of_object(members, one.rest.clone())
}
