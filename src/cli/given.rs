//! What a command is given beside its words: files, standard input, and JSON.

use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use crate::app::exit::{self, Failure};

/// Reads a file; `-` is standard input.
///
/// # Errors
/// [`exit::NO_INPUT`] where it cannot be read, or is not UTF-8.
pub fn read(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(path).map(|found| text = found)
    };
    read.map_err(|error| Failure::unread(path, error))?;
    Ok(text)
}

/// The JSON of an option, or of the file that it names by `@FILE`.
///
/// # Errors
/// [`exit::USAGE`] where it is not JSON, and as [`read`].
pub fn json(option: &str, text: &str) -> Result<Value, Failure> {
    match text.strip_prefix('@') {
        Some(path) => parsed(path, &read(Path::new(path))?),
        None => parsed(option, text),
    }
}

/// The same, for what has to be an object.
///
/// # Errors
/// [`exit::USAGE`] where it is something else, and as [`json`].
pub fn object(option: &str, text: &str) -> Result<Value, Failure> {
    let value = json(option, text)?;
    if value.is_object() {
        return Ok(value);
    }
    Err(Failure::new(
        exit::USAGE,
        format!("{option} must be a JSON object"),
    ))
}

/// The JSON of a text that comes from `whence`.
///
/// # Errors
/// [`exit::USAGE`] where it is none.
pub fn parsed(whence: &str, text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text)
        .map_err(|error| Failure::new(exit::USAGE, format!("{whence} is not JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_given_in_the_option_or_in_a_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("data.json");
        std::fs::write(&path, "{\"n\": 7}\n").expect("written");
        let named = format!("@{}", path.display());
        assert_eq!(object("--data", "{\"n\": 7}").expect("JSON"), json!({"n": 7}));
        assert_eq!(object("--data", &named).expect("JSON"), json!({"n": 7}));
        assert_eq!(json("--data", "[1]").expect("JSON"), json!([1]));
        let failed = |text: &str| object("--data", text).expect_err("refused");
        assert_eq!(failed("[1]").message, "--data must be a JSON object");
        assert_eq!(failed("{").code, exit::USAGE);
        assert_eq!(failed("@/no/such/file").code, exit::NO_INPUT);
        std::fs::write(&path, [0xff, 0xfe]).expect("written");
        assert_eq!(failed(&named).code, exit::NO_INPUT);
    }
}
