//! Values of JSON, in the binary form of the type that PostgreSQL expects.

use data_encoding::BASE64;
use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgTypeKind};
use sqlx::{Postgres, Type, TypeInfo as _};

use crate::kernel::json::Json;

/// The server's time begins on 2000-01-01, in microseconds after 1970.
const EPOCH_US: i64 = 946_684_800_000_000;
const DAY_US: i64 = 86_400_000_000;
/// The types that [`written`] knows.
const BINARY: [&str; 22] = [
    "BOOL",
    "INT2",
    "INT4",
    "INT8",
    "OID",
    "FLOAT4",
    "FLOAT8",
    "NUMERIC",
    "TEXT",
    "VARCHAR",
    "CHAR",
    "NAME",
    "CITEXT",
    "UNKNOWN",
    "BYTEA",
    "UUID",
    "TIMESTAMPTZ",
    "TIMESTAMP",
    "DATE",
    "TIME",
    "JSON",
    "JSONB",
];
/// Most decimal digits of a number.
const DIGITS_MAX: usize = 1_000;

/// A value that is encoded already.
#[derive(Debug)]
pub struct Parameter {
    /// `None` for null.
    pub bytes: Option<Vec<u8>>,
    pub type_info: PgTypeInfo,
}

impl Parameter {
    /// The value as the statement takes it: a type without a binary form here takes a text.
    ///
    /// # Errors
    /// A sentence that names the type, and not the value.
    pub fn of(value: &Json<'_>, type_info: &PgTypeInfo) -> Result<Self, String> {
        if is_binary(type_info) {
            return Ok(Self {
                bytes: written(value, type_info)?,
                type_info: type_info.clone(),
            });
        }
        let type_info = if is_list(type_info) {
            <Vec<String> as Type<Postgres>>::type_info()
        } else {
            <str as Type<Postgres>>::type_info()
        };
        Ok(Self {
            bytes: written(value, &type_info)?,
            type_info,
        })
    }
}

impl Encode<'_, Postgres> for Parameter {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        match &self.bytes {
            None => Ok(IsNull::Yes),
            Some(bytes) => {
                buffer.extend_from_slice(bytes);
                Ok(IsNull::No)
            }
        }
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(self.type_info.clone())
    }
}

impl Type<Postgres> for Parameter {
    /// Never asked for: every value brings its own.
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("text")
    }

    fn compatible(_: &PgTypeInfo) -> bool {
        true
    }
}

/// Whether values of the type are written in its binary form. Others are texts that the database casts.
pub fn is_binary(type_info: &PgTypeInfo) -> bool {
    match type_info.kind() {
        PgTypeKind::Array(element) => is_binary(element),
        PgTypeKind::Domain(base) => is_binary(base),
        PgTypeKind::Enum(_) => true,
        PgTypeKind::Composite(_) | PgTypeKind::Range(_) => false,
        PgTypeKind::Simple | PgTypeKind::Pseudo => BINARY.contains(&&*type_info.name().to_ascii_uppercase()),
    }
}

/// Whether values of the type are lists.
pub fn is_list(type_info: &PgTypeInfo) -> bool {
    match type_info.kind() {
        PgTypeKind::Array(_) => true,
        PgTypeKind::Domain(base) => is_list(base),
        PgTypeKind::Simple
        | PgTypeKind::Pseudo
        | PgTypeKind::Enum(_)
        | PgTypeKind::Composite(_)
        | PgTypeKind::Range(_) => false,
    }
}

/// The value as a parameter of the type; `None` for null.
///
/// # Errors
/// A sentence that names the type, and not the value.
pub fn written(value: &Json<'_>, type_info: &PgTypeInfo) -> Result<Option<Vec<u8>>, String> {
    if *value == Json::Null {
        return Ok(None);
    }
    match type_info.kind() {
        PgTypeKind::Array(element) => return array(value, element).map(Some),
        PgTypeKind::Domain(base) => return written(value, base),
        PgTypeKind::Enum(_) => return Ok(Some(text(value).into_bytes())),
        PgTypeKind::Simple | PgTypeKind::Pseudo => {}
        PgTypeKind::Composite(_) | PgTypeKind::Range(_) => return Err(unknown(type_info)),
    }
    let name = type_info.name().to_ascii_uppercase();
    let bytes = match &*name {
        "BOOL" => boolean(value).map(|answer| vec![u8::from(answer)]),
        "INT2" => integer(value).map(|number: i16| number.to_be_bytes().to_vec()),
        "INT4" => integer(value).map(|number: i32| number.to_be_bytes().to_vec()),
        "INT8" => integer(value).map(|number: i64| number.to_be_bytes().to_vec()),
        "OID" => integer(value).map(|number: u32| number.to_be_bytes().to_vec()),
        "FLOAT4" => {
            let number: Option<f32> = parsed(value);
            number
                .filter(|number| keeps(value, f64::from(*number)))
                .map(|number| number.to_be_bytes().to_vec())
        }
        "FLOAT8" => {
            let number: Option<f64> = parsed(value);
            number
                .filter(|number| keeps(value, *number))
                .map(|number| number.to_be_bytes().to_vec())
        }
        "NUMERIC" => is_scalar(value).then(|| numeric(&text(value))).flatten(),
        "TEXT" | "VARCHAR" | "CHAR" | "NAME" | "CITEXT" | "UNKNOWN" => Some(text(value).into_bytes()),
        "BYTEA" => string(value).and_then(|text| BASE64.decode(text.as_bytes()).ok()),
        "UUID" => parsed(value).map(|id: uuid::Uuid| id.into_bytes().to_vec()),
        "TIMESTAMPTZ" => string(value).and_then(|text| {
            if let Some(end) = endless(text) {
                return Some(end.to_be_bytes().to_vec());
            }
            let at: Timestamp = text.parse().ok()?;
            Some((at.as_microsecond() - EPOCH_US).to_be_bytes().to_vec())
        }),
        "TIMESTAMP" => string(value).and_then(|text| {
            if let Some(end) = endless(text) {
                return Some(end.to_be_bytes().to_vec());
            }
            let us = text.parse::<DateTime>().ok()?.duration_since(epoch()).as_micros();
            Some(i64::try_from(us).ok()?.to_be_bytes().to_vec())
        }),
        "DATE" => string(value).and_then(|text| {
            if let Some(end) = endless(text) {
                let end = if end > 0 { i32::MAX } else { i32::MIN };
                return Some(end.to_be_bytes().to_vec());
            }
            let date: Date = text.parse().ok()?;
            let days = date.duration_since(epoch().date()).as_secs() / 86_400;
            Some(i32::try_from(days).ok()?.to_be_bytes().to_vec())
        }),
        // The end of a day, which no clock of the runner's shows.
        "TIME" if string(value) == Some("24:00:00") => Some(DAY_US.to_be_bytes().to_vec()),
        "TIME" => string(value).and_then(|text| {
            let us = text
                .parse::<Time>()
                .ok()?
                .duration_since(Time::midnight())
                .as_micros();
            Some(i64::try_from(us).ok()?.to_be_bytes().to_vec())
        }),
        "JSON" => Some(json(value)),
        "JSONB" => Some([vec![1], json(value)].concat()),
        _ => return Err(unknown(type_info)),
    };
    bytes.map(Some).ok_or_else(|| {
        format!(
            "the value is not of type {}, or beyond its range",
            type_info.name()
        )
    })
}

fn unknown(type_info: &PgTypeInfo) -> String {
    format!("no value can be given as {}", type_info.name())
}

/// `infinity` and `-infinity`, as they stand behind and before all moments.
fn endless(text: &str) -> Option<i64> {
    match text {
        "infinity" => Some(i64::MAX),
        "-infinity" => Some(i64::MIN),
        _ => None,
    }
}

/// Whether a number that was read from the value is neither infinite nor zero where the value is not.
fn keeps(value: &Json<'_>, number: f64) -> bool {
    let text = text(value);
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let has_digits = mantissa.bytes().any(|byte| byte.is_ascii_digit());
    if number.is_infinite() {
        return !has_digits;
    }
    number != 0.0 || !mantissa.bytes().any(|byte| (b'1'..=b'9').contains(&byte))
}

fn epoch() -> DateTime {
    Date::constant(2000, 1, 1).to_datetime(Time::midnight())
}

fn json(value: &Json<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.write(&mut bytes);
    bytes
}

/// A string as it is, everything else as JSON.
fn text(value: &Json<'_>) -> String {
    match value {
        Json::Str(text) => text.clone().into_owned(),
        other => String::from_utf8_lossy(&json(other)).into_owned(),
    }
}

fn string<'v>(value: &'v Json<'_>) -> Option<&'v str> {
    match value {
        Json::Str(text) => Some(text),
        _ => None,
    }
}

const fn is_scalar(value: &Json<'_>) -> bool {
    matches!(value, Json::Int(_) | Json::Double(_) | Json::Str(_))
}

/// What the text of a number or string stands for.
fn parsed<T: std::str::FromStr>(value: &Json<'_>) -> Option<T> {
    is_scalar(value).then(|| text(value).parse().ok()).flatten()
}

fn boolean(value: &Json<'_>) -> Option<bool> {
    match value {
        Json::Bool(answer) => Some(*answer),
        Json::Str(text) => text.parse().ok(),
        _ => None,
    }
}

/// A whole number, also one that is written as `12.0`.
fn integer<T: TryFrom<i64>>(value: &Json<'_>) -> Option<T> {
    let number: i64 = match value {
        Json::Double(_) => text(value).strip_suffix(".0")?.parse().ok()?,
        other => parsed(other)?,
    };
    T::try_from(number).ok()
}

/// Decimal digits in groups of four.
fn numeric(text: &str) -> Option<Vec<u8>> {
    let special: Option<u16> = match text {
        "NaN" => Some(0xc000),
        "Infinity" => Some(0xd000),
        "-Infinity" => Some(0xf000),
        _ => None,
    };
    if let Some(sign) = special {
        let words = [0, 0, sign, 0];
        return Some(words.into_iter().flat_map(u16::to_be_bytes).collect());
    }
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = format!("{whole}{fraction}");
    let legal = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !legal || digits.len() > DIGITS_MAX || exponent.unsigned_abs() > 1_000 {
        return None;
    }
    // How many digits stand before the point, which the exponent moves.
    let mut point = i32::try_from(whole.len()).ok()? + exponent;
    if point < 0 {
        digits.insert_str(0, &"0".repeat(usize::try_from(-point).ok()?));
        point = 0;
    }
    let scale = (i32::try_from(digits.len()).ok()? - point).max(0);
    // Whole groups on both sides of the point.
    let lead = (4 - point.rem_euclid(4)) % 4;
    digits.insert_str(0, &"0".repeat(usize::try_from(lead).ok()?));
    point += lead;
    let wanted = usize::try_from(point).ok()?.max(digits.len()).next_multiple_of(4);
    digits.push_str(&"0".repeat(wanted - digits.len()));
    let mut groups = Vec::new();
    for group in digits.as_bytes().chunks_exact(4) {
        groups.push(std::str::from_utf8(group).ok()?.parse::<u16>().ok()?);
    }
    let mut weight = point / 4 - 1;
    let leading = groups.iter().take_while(|group| **group == 0).count();
    groups.drain(..leading);
    weight -= i32::try_from(leading).ok()?;
    while groups.last() == Some(&0) {
        groups.pop();
    }
    if groups.is_empty() {
        weight = 0;
    }
    let sign: u16 = if negative && !groups.is_empty() { 0x4000 } else { 0 };
    let mut bytes = Vec::with_capacity(8 + groups.len() * 2);
    bytes.extend(u16::try_from(groups.len()).ok()?.to_be_bytes());
    bytes.extend(i16::try_from(weight).ok()?.to_be_bytes());
    bytes.extend(sign.to_be_bytes());
    bytes.extend(u16::try_from(scale).ok()?.to_be_bytes());
    bytes.extend(groups.iter().flat_map(|group| group.to_be_bytes()));
    Some(bytes)
}

/// A list, or lists within lists of the same length.
fn array(value: &Json<'_>, element: &PgTypeInfo) -> Result<Vec<u8>, String> {
    let no_list = || format!("the value is not a list of {}", element.name());
    let oid = element.oid().ok_or_else(|| unknown(element))?.0;
    let mut lengths = Vec::new();
    let mut level = value;
    while let Json::List(items) = level {
        lengths.push(items.len());
        match items.first() {
            Some(first) => level = first,
            None => break,
        }
    }
    if lengths.is_empty() {
        return Err(no_list());
    }
    let mut elements = Vec::new();
    flatten(value, &lengths, element, &mut elements)?
        .then_some(())
        .ok_or_else(no_list)?;
    let dimensions = if lengths.contains(&0) {
        &[]
    } else {
        lengths.as_slice()
    };
    let mut bytes = Vec::new();
    let word = |number: usize| i32::try_from(number).map_err(|_| no_list());
    bytes.extend(word(dimensions.len())?.to_be_bytes());
    bytes.extend(1_i32.to_be_bytes());
    bytes.extend(oid.to_be_bytes());
    for length in dimensions {
        bytes.extend(word(*length)?.to_be_bytes());
        bytes.extend(1_i32.to_be_bytes());
    }
    bytes.extend(elements);
    Ok(bytes)
}

/// Appends the elements. `false`: the lists are not of the same lengths.
fn flatten(
    value: &Json<'_>,
    lengths: &[usize],
    element: &PgTypeInfo,
    out: &mut Vec<u8>,
) -> Result<bool, String> {
    match (value, lengths) {
        (Json::List(items), [length, inner @ ..]) if items.len() == *length => {
            for item in items {
                if !flatten(item, inner, element, out)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Json::List(_), _) | (_, [_, ..]) => Ok(false),
        (item, []) => {
            match written(item, element)? {
                None => out.extend((-1_i32).to_be_bytes()),
                Some(bytes) => {
                    let length =
                        i32::try_from(bytes.len()).map_err(|_| "an element is too long".to_owned())?;
                    out.extend(length.to_be_bytes());
                    out.extend(bytes);
                }
            }
            Ok(true)
        }
    }
}
