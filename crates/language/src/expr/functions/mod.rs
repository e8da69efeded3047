//! The functions that expressions may call. All are pure and total.

mod convert;
mod format;
mod ids;
mod lists;
mod maps;
mod math;
mod optional;
mod text;

use std::cmp::Ordering;

use super::EvalError;
use super::budget::Spender;
use super::time::{Part, parse_duration, parse_timestamp};
use super::value::Value;

pub use ids::percent_encode;
pub(super) use lists::sorted;

/// What an operation gives.
type Given<'a> = Result<Value<'a>, EvalError>;

macro_rules! functions {
    ($($variant:ident $name:literal $least:literal $most:literal;)*) => {
        /// A function by name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Function { $($variant),* }

        impl Function {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Least and most arguments, the receiver of a method call included.
            pub const fn arguments(self) -> (usize, usize) {
                match self { $(Self::$variant => ($least, $most)),* }
            }
        }
    };
}

functions! {
    Size "size" 1 1;
    Contains "contains" 2 2;
    StartsWith "startsWith" 2 2;
    EndsWith "endsWith" 2 2;
    String "string" 1 1;
    Int "int" 1 1;
    Double "double" 1 1;
    Bool "bool" 1 1;
    Timestamp "timestamp" 1 1;
    Duration "duration" 1 1;
    GetFullYear "getFullYear" 1 1;
    GetMonth "getMonth" 1 1;
    GetDate "getDate" 1 1;
    GetDayOfMonth "getDayOfMonth" 1 1;
    GetDayOfWeek "getDayOfWeek" 1 1;
    GetDayOfYear "getDayOfYear" 1 1;
    GetHours "getHours" 1 1;
    GetMinutes "getMinutes" 1 1;
    GetSeconds "getSeconds" 1 1;
    GetMilliseconds "getMilliseconds" 1 1;
    LowerAscii "lowerAscii" 1 1;
    UpperAscii "upperAscii" 1 1;
    Trim "trim" 1 1;
    Merge "merge" 2 2;
    Put "put" 3 3;
    Range "range" 1 1;
    Chunk "chunk" 2 2;
    Slice "slice" 3 3;
    Sum "sum" 1 1;
    Url "url" 1 1;
    Hash "hash" 1 1;
    Uid "uid" 1 1;
    CharAt "charAt" 2 2;
    Format "format" 2 2;
    IndexOf "indexOf" 2 3;
    Join "join" 1 2;
    LastIndexOf "lastIndexOf" 2 3;
    Quote "strings.quote" 1 1;
    Replace "replace" 3 4;
    Split "split" 2 3;
    Substring "substring" 2 3;
    Distinct "distinct" 1 1;
    First "first" 1 1;
    Flatten "flatten" 1 2;
    Last "last" 1 1;
    ListsRange "lists.range" 1 1;
    Reverse "reverse" 1 1;
    Sort "sort" 1 1;
    Abs "math.abs" 1 1;
    BitAnd "math.bitAnd" 2 2;
    BitNot "math.bitNot" 1 1;
    BitOr "math.bitOr" 2 2;
    BitShiftLeft "math.bitShiftLeft" 2 2;
    BitShiftRight "math.bitShiftRight" 2 2;
    BitXor "math.bitXor" 2 2;
    Ceil "math.ceil" 1 1;
    Floor "math.floor" 1 1;
    Greatest "math.greatest" 1 1;
    IsFinite "math.isFinite" 1 1;
    IsInf "math.isInf" 1 1;
    IsNan "math.isNaN" 1 1;
    Least "math.least" 1 1;
    Round "math.round" 1 1;
    Sign "math.sign" 1 1;
    Sqrt "math.sqrt" 1 1;
    Trunc "math.trunc" 1 1;
    OptionalNone "optional.none" 0 0;
    OptionalOf "optional.of" 1 1;
    OptionalOfNonZero "optional.ofNonZeroValue" 1 1;
    OptionalUnwrap "optional.unwrap" 1 1;
    HasValue "hasValue" 1 1;
    OptionalValue "value" 1 1;
    OrOptional "or" 2 2;
    OrValue "orValue" 2 2;
    UnwrapOpt "unwrapOpt" 1 1;
}

/// Member of `record` from which `uid` makes its ids; no expression can write it.
pub const UID_SEED: &str = "(seed)";

/// Most arguments that a function takes.
pub(super) const ARGUMENTS_MAX: usize = 4;
/// Names before the dot of functions that are called by a longer one. They are no values.
pub(super) const NAMESPACES: [&str; 5] = ["cel", "lists", "math", "optional", "strings"];
/// Hexadecimal digits of `hash`: the first 16 bytes of BLAKE3.
const HASH_DIGITS: usize = 32;

/// Calls `function` with the first `given` of the arguments.
pub(super) fn call<'a>(
    function: Function,
    [a, b, c, d]: [Value<'a>; ARGUMENTS_MAX],
    given: usize,
    budget: &mut Spender<'_>,
) -> Given<'a> {
    let name = function.name();
    match function {
        Function::Size => convert::size(&a, budget),
        Function::String => convert::string(a),
        Function::Int => convert::int(&a),
        Function::Double => convert::double(&a),
        Function::Bool => convert::boolean(&a),
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
        Function::GetFullYear => convert::part(Part::FullYear, &a, name),
        Function::GetMonth => convert::part(Part::Month, &a, name),
        Function::GetDate => convert::part(Part::Date, &a, name),
        Function::GetDayOfMonth => convert::part(Part::DayOfMonth, &a, name),
        Function::GetDayOfWeek => convert::part(Part::DayOfWeek, &a, name),
        Function::GetDayOfYear => convert::part(Part::DayOfYear, &a, name),
        Function::GetHours => convert::part(Part::Hours, &a, name),
        Function::GetMinutes => convert::part(Part::Minutes, &a, name),
        Function::GetSeconds => convert::part(Part::Seconds, &a, name),
        Function::GetMilliseconds => convert::part(Part::Milliseconds, &a, name),
        Function::Contains => text::searched(&a, &b, name, budget, |text, part| text.contains(part)),
        Function::StartsWith => text::searched(&a, &b, name, budget, |text, part| text.starts_with(part)),
        Function::EndsWith => text::searched(&a, &b, name, budget, |text, part| text.ends_with(part)),
        Function::LowerAscii => text::built(&a, name, budget, str::to_ascii_lowercase),
        Function::UpperAscii => text::built(&a, name, budget, str::to_ascii_uppercase),
        Function::Trim => text::built(&a, name, budget, |text| text.trim().to_owned()),
        Function::Quote => text::built(&a, name, budget, text::quoted),
        Function::Url => text::built(&a, name, budget, percent_encode),
        Function::Hash => text::built(&a, name, budget, |text| {
            blake3::hash(text.as_bytes()).to_hex()[..HASH_DIGITS].to_owned()
        }),
        Function::CharAt => text::char_at(&a, &b, budget),
        Function::Format => format::format(&a, &b, budget),
        Function::IndexOf => text::index_of(&a, &b, (given > 2).then_some(&c), budget),
        Function::LastIndexOf => text::last_index_of(&a, &b, (given > 2).then_some(&c), budget),
        Function::Join => text::join(&a, (given > 1).then_some(&b), budget),
        Function::Replace => text::replace(&a, [&b, &c], (given > 3).then_some(&d), budget),
        Function::Split => text::split(&a, &b, (given > 2).then_some(&c), budget),
        Function::Substring => text::substring(&a, &b, (given > 2).then_some(&c), budget),
        Function::Uid => ids::uid(&a, &b, budget),
        Function::Merge => maps::merge(a, b, budget),
        Function::Put => maps::put(a, &b, c, budget),
        Function::Range | Function::ListsRange => lists::range(&a, budget),
        Function::Chunk => lists::chunk(&a, &b, budget),
        Function::Slice => lists::slice(&a, &b, &c, budget),
        Function::Sum => lists::sum(&a, budget),
        Function::Distinct => lists::distinct(&a, budget),
        Function::Flatten => lists::flatten(&a, (given > 1).then_some(&b), budget),
        Function::Reverse => lists::reverse(&a, budget),
        Function::Sort => lists::sort(&a, budget),
        Function::First | Function::Last => optional::end(&a, function),
        Function::Abs => math::abs(&a),
        Function::Sign => math::sign(&a),
        Function::Sqrt => math::sqrt(&a),
        Function::Ceil => math::rounded(&a, function, f64::ceil),
        Function::Floor => math::rounded(&a, function, f64::floor),
        // Halves go away from zero.
        Function::Round => math::rounded(&a, function, f64::round),
        Function::Trunc => math::rounded(&a, function, f64::trunc),
        Function::IsFinite | Function::IsInf | Function::IsNan => math::about_double(&a, function),
        Function::Greatest => math::extreme(&a, function, Ordering::Greater, budget),
        Function::Least => math::extreme(&a, function, Ordering::Less, budget),
        Function::BitNot => math::bit_not(&a),
        Function::BitAnd
        | Function::BitOr
        | Function::BitXor
        | Function::BitShiftLeft
        | Function::BitShiftRight => math::bits(&a, &b, function),
        Function::OptionalNone => Ok(Value::Optional(None)),
        Function::OptionalOf => Ok(optional::of(a)),
        Function::OptionalOfNonZero => Ok(optional::of_non_zero(a)),
        Function::OptionalValue => optional::value(&a),
        Function::HasValue => optional::content(&a, function).map(|present| Value::Bool(present.is_some())),
        Function::OrValue | Function::OrOptional => optional::or(a, b, function),
        Function::OptionalUnwrap | Function::UnwrapOpt => optional::unwrapped(&a, function, budget),
    }
}
