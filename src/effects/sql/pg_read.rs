//! Values of PostgreSQL, from its binary form to JSON.

use std::net::IpAddr;

use data_encoding::BASE64;
use jiff::civil::{Date, DateTime, Time};
use jiff::{SignedDuration, Timestamp};
use sqlx::TypeInfo as _;
use sqlx::postgres::{PgTypeInfo, PgTypeKind};

use super::json_of_double;
use crate::kernel::json::Json;

/// Deepest JSON that a column may hold, in levels.
const JSON_DEPTH: usize = 64;
/// The server's time begins on 2000-01-01, in microseconds after 1970.
const EPOCH_US: i64 = 946_684_800_000_000;
const DAY_US: i64 = 86_400_000_000;

/// Why a value cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Its type is unknown.
    Type,
    /// It is not what its type says, or out of range.
    Value,
}

/// The value of a column.
///
/// # Errors
/// [`Fault`] says whether the type or the value cannot be read.
pub fn value(bytes: &[u8], type_info: &PgTypeInfo) -> Result<Json<'static>, Fault> {
    match type_info.kind() {
        PgTypeKind::Array(element) => return array(bytes, element),
        PgTypeKind::Domain(base) => return value(bytes, base),
        PgTypeKind::Enum(_) => return text(bytes),
        PgTypeKind::Simple | PgTypeKind::Pseudo => {}
        PgTypeKind::Composite(_) | PgTypeKind::Range(_) => return Err(Fault::Type),
    }
    match &*type_info.name().to_ascii_uppercase() {
        "BOOL" => Ok(Json::Bool(fixed::<1>(bytes)? != [0])),
        "INT2" => Ok(Json::Int(i16::from_be_bytes(fixed(bytes)?).into())),
        "INT4" => Ok(Json::Int(i32::from_be_bytes(fixed(bytes)?).into())),
        "INT8" => Ok(Json::Int(i64::from_be_bytes(fixed(bytes)?))),
        "OID" => Ok(Json::Int(u32::from_be_bytes(fixed(bytes)?).into())),
        // The shortest decimal of the narrow number, not its neighbour among the wide ones.
        "FLOAT4" => {
            let number = f32::from_be_bytes(fixed(bytes)?);
            Ok(json_of_double(
                number.to_string().parse().map_err(|_| Fault::Value)?,
            ))
        }
        "FLOAT8" => Ok(json_of_double(f64::from_be_bytes(fixed(bytes)?))),
        "NUMERIC" => numeric(bytes).map(string).ok_or(Fault::Value),
        "TEXT" | "VARCHAR" | "CHAR" | "\"CHAR\"" | "NAME" | "CITEXT" | "UNKNOWN" | "XML" => text(bytes),
        "BYTEA" => Ok(string(BASE64.encode(bytes))),
        "UUID" => Ok(string(uuid::Uuid::from_bytes(fixed(bytes)?).to_string())),
        "TIMESTAMPTZ" => moment(bytes, |us| Some(at(us)?.to_string())),
        "TIMESTAMP" => moment(bytes, |us| Some(civil(us)?.to_string())),
        "DATE" => match i32::from_be_bytes(fixed(bytes)?) {
            i32::MAX => Ok(string("infinity".to_owned())),
            i32::MIN => Ok(string("-infinity".to_owned())),
            days => {
                let date = civil(i64::from(days) * DAY_US).ok_or(Fault::Value)?;
                Ok(string(date.date().to_string()))
            }
        },
        "TIME" => time(i64::from_be_bytes(fixed(bytes)?)).map(string),
        "TIMETZ" => zoned_time(bytes),
        "INTERVAL" => interval(bytes).map(string).ok_or(Fault::Value),
        "INET" | "CIDR" => network(bytes).map(string).ok_or(Fault::Value),
        "JSON" => json(bytes),
        "JSONB" => match bytes.split_first() {
            Some((1, bytes)) => json(bytes),
            _ => Err(Fault::Value),
        },
        _ => Err(Fault::Type),
    }
}

fn string(text: String) -> Json<'static> {
    Json::Str(text.into())
}

fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Fault> {
    bytes.try_into().map_err(|_| Fault::Value)
}

fn text(bytes: &[u8]) -> Result<Json<'static>, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|_| Fault::Value)?;
    Ok(string(text.to_owned()))
}

fn json(bytes: &[u8]) -> Result<Json<'static>, Fault> {
    let value = Json::parse(bytes, JSON_DEPTH).map_err(|_| Fault::Value)?;
    Ok(value.into_static())
}

fn moment(bytes: &[u8], written: impl Fn(i64) -> Option<String>) -> Result<Json<'static>, Fault> {
    match i64::from_be_bytes(fixed(bytes)?) {
        i64::MAX => Ok(string("infinity".to_owned())),
        i64::MIN => Ok(string("-infinity".to_owned())),
        us => written(us).map(string).ok_or(Fault::Value),
    }
}

fn at(us: i64) -> Option<Timestamp> {
    Timestamp::from_microsecond(us.checked_add(EPOCH_US)?).ok()
}

fn civil(us: i64) -> Option<DateTime> {
    let epoch = Date::constant(2000, 1, 1).to_datetime(Time::midnight());
    epoch.checked_add(SignedDuration::from_micros(us)).ok()
}

fn time(us: i64) -> Result<String, Fault> {
    if us == DAY_US {
        return Ok("24:00:00".to_owned());
    }
    let time = Time::midnight().checked_add(SignedDuration::from_micros(us));
    time.map(|time| time.to_string()).map_err(|_| Fault::Value)
}

/// The time, then how many seconds west of Greenwich it is told.
fn zoned_time(bytes: &[u8]) -> Result<Json<'static>, Fault> {
    let (us, zone) = bytes.split_at_checked(8).ok_or(Fault::Value)?;
    let time = time(i64::from_be_bytes(fixed(us)?))?;
    let west = i32::from_be_bytes(fixed(zone)?);
    let sign = if west > 0 { '-' } else { '+' };
    let (minutes, seconds) = (west.unsigned_abs() / 60, west.unsigned_abs() % 60);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    Ok(string(if seconds == 0 {
        format!("{time}{sign}{hours:02}:{minutes:02}")
    } else {
        format!("{time}{sign}{hours:02}:{minutes:02}:{seconds:02}")
    }))
}

/// Microseconds, days and months, each with a sign of its own, in the notation of ISO 8601.
fn interval(bytes: &[u8]) -> Option<String> {
    use std::fmt::Write as _;

    let us = i64::from_be_bytes(fixed(bytes.get(..8)?).ok()?);
    let days = i32::from_be_bytes(fixed(bytes.get(8..12)?).ok()?);
    let months = i32::from_be_bytes(fixed(bytes.get(12..)?).ok()?);
    let mut text = "P".to_owned();
    for (number, unit) in [(months / 12, 'Y'), (months % 12, 'M'), (days, 'D')] {
        if number != 0 {
            write!(text, "{number}{unit}").ok()?;
        }
    }
    let (minutes, rest) = (us / 60_000_000, us % 60_000_000);
    if us != 0 || text.len() == 1 {
        text.push('T');
    }
    for (number, unit) in [(minutes / 60, 'H'), (minutes % 60, 'M')] {
        if number != 0 {
            write!(text, "{number}{unit}").ok()?;
        }
    }
    if rest != 0 || text.ends_with('T') {
        let sign = if rest < 0 { "-" } else { "" };
        let rest = rest.unsigned_abs();
        let fraction = format!("{:06}", rest % 1_000_000);
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        write!(text, "{sign}{}{point}{fraction}S", rest / 1_000_000).ok()?;
    }
    Some(text)
}

/// Family, length of the prefix, whether it is a network, length of the address, and the address.
fn network(bytes: &[u8]) -> Option<String> {
    let ([_, prefix, is_network, _], address) = bytes.split_first_chunk::<4>()?;
    let (address, whole) = match address.len() {
        4 => (IpAddr::from(fixed::<4>(address).ok()?), 32),
        16 => (IpAddr::from(fixed::<16>(address).ok()?), 128),
        _ => return None,
    };
    Some(if *prefix == whole && *is_network == 0 {
        address.to_string()
    } else {
        format!("{address}/{prefix}")
    })
}

/// Decimal digits in groups of four, as many of them behind the point as the column has.
fn numeric(bytes: &[u8]) -> Option<String> {
    use std::fmt::Write as _;

    let mut words = bytes
        .chunks_exact(2)
        .map(|word| u16::from_be_bytes([word[0], word[1]]));
    let groups = words.next()?;
    let weight = i32::from(words.next()?.cast_signed());
    let sign = words.next()?;
    let scale = usize::from(words.next()?);
    let digits: Vec<u16> = words.collect();
    if digits.len() != usize::from(groups) || digits.iter().any(|group| *group > 9_999) {
        return None;
    }
    let mut text = match sign {
        0x0000 => String::new(),
        0x4000 => "-".to_owned(),
        0xc000 => return Some("NaN".to_owned()),
        0xd000 => return Some("Infinity".to_owned()),
        0xf000 => return Some("-Infinity".to_owned()),
        _ => return None,
    };
    let group = |place: i32| {
        let at = usize::try_from(weight - place).ok();
        at.and_then(|at| digits.get(at)).copied().unwrap_or(0)
    };
    if weight < 0 {
        text.push('0');
    }
    for place in (0..=weight).rev() {
        let leads = place == weight;
        let width = if leads { 1 } else { 4 };
        write!(text, "{:0width$}", group(place)).ok()?;
    }
    if scale > 0 {
        let mut fraction = String::new();
        let mut place = -1;
        while fraction.len() < scale {
            write!(fraction, "{:04}", group(place)).ok()?;
            place -= 1;
        }
        text.push('.');
        text.push_str(&fraction[..scale]);
    }
    Some(text)
}

/// Lists within lists, one level for each dimension.
fn array(bytes: &[u8], element: &PgTypeInfo) -> Result<Json<'static>, Fault> {
    let mut reader = Elements { bytes };
    let dimensions = usize::try_from(reader.word()?).map_err(|_| Fault::Value)?;
    let (_has_nulls, _element) = (reader.word()?, reader.word()?);
    let mut lengths = Vec::new();
    for _ in 0..dimensions {
        lengths.push(usize::try_from(reader.word()?).map_err(|_| Fault::Value)?);
        let _first_index = reader.word()?;
    }
    if lengths.is_empty() {
        return Ok(Json::List(Vec::new()));
    }
    reader.list(&lengths, element)
}

struct Elements<'a> {
    bytes: &'a [u8],
}

impl<'a> Elements<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(Fault::Value)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn word(&mut self) -> Result<i32, Fault> {
        Ok(i32::from_be_bytes(fixed(self.take(4)?)?))
    }

    fn list(&mut self, lengths: &[usize], element: &PgTypeInfo) -> Result<Json<'static>, Fault> {
        let [length, inner @ ..] = lengths else {
            return match usize::try_from(self.word()?) {
                Err(_) => Ok(Json::Null),
                Ok(length) => value(self.take(length)?, element),
            };
        };
        // Every element has at least its length, so a length that lies ends at the end of the bytes.
        let mut items = Vec::new();
        for _ in 0..*length {
            items.push(self.list(inner, element)?);
        }
        Ok(Json::List(items))
    }
}
