//! The coding of an answer's body. None is asked for; some servers compress all the same.

use std::io::{self, Read};

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use hyper::header::{CONTENT_ENCODING, HeaderMap};

/// Why the body of an answer cannot be decoded.
#[derive(Debug, PartialEq, Eq)]
pub enum Undecoded {
    TooLong,
    /// A sentence that says why.
    Unreadable(String),
}

/// The body without its coding, at most `bytes_max`.
pub fn decoded(headers: &HeaderMap, body: Vec<u8>, bytes_max: usize) -> Result<Vec<u8>, Undecoded> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let names: Vec<String> = names
        .map(|name| String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase())
        .filter(|name| !name.is_empty() && name != "identity")
        .collect();
    if body.is_empty() {
        // As the answer to a HEAD.
        return Ok(body);
    }
    match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(body),
        ["gzip" | "x-gzip"] => inflated(MultiGzDecoder::new(&*body), bytes_max),
        ["deflate"] => inflated(ZlibDecoder::new(&*body), bytes_max),
        _ => Err(Undecoded::Unreadable(format!(
            "the answer has the content encoding {:?}, which was not asked for",
            names.join(", ")
        ))),
    }
}

/// Reads one byte more than allowed at most, so that a small answer cannot become a large one.
fn inflated(decoder: impl Read, bytes_max: usize) -> Result<Vec<u8>, Undecoded> {
    let broken = |error: io::Error| Undecoded::Unreadable(format!("the answer cannot be decoded: {error}"));
    let bound = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    decoder.take(bound).read_to_end(&mut bytes).map_err(broken)?;
    if bytes.len() > bytes_max {
        return Err(Undecoded::TooLong);
    }
    Ok(bytes)
}
