//! What the answers of a runner mean for a command: its data, or a message and an exit code.

use std::fmt::Write as _;

use reqwest::StatusCode;
use serde_json::Value;

use crate::app::diagnostics::plain;
use crate::app::exit::{self, Failure};

/// The code of an answer that names another address.
pub const ON_THE_OTHER_ADDRESS: &str = "SR0525";

/// What an answer of `base` says, or why there is none.
pub fn read(base: &str, status: StatusCode, body: &str) -> Result<Value, Failure> {
    if status == StatusCode::NO_CONTENT {
        return Ok(Value::Null);
    }
    if status.is_success() {
        return serde_json::from_str(body).map_err(|_| strange(base, "without JSON"));
    }
    Err(refusal(base, status, body))
}

/// Why a request was refused.
pub fn refusal(base: &str, status: StatusCode, body: &str) -> Failure {
    let json = serde_json::from_str::<Value>(body).unwrap_or_default();
    let Some(code) = json["code"].as_str() else {
        return match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Failure::new(exit::NO_PERMISSION, format!("{base} answers {status}"))
            }
            status if status.is_redirection() => {
                let message = format!("{base} answers {status}: name the address that it redirects to");
                Failure::new(exit::USAGE, message)
            }
            status => strange(base, &status.to_string()),
        };
    };
    let told = json["detail"].as_str().unwrap_or_default();
    let mut failure = if code == ON_THE_OTHER_ADDRESS {
        Failure::new(exit::USAGE, format!("{told} [{code}]"))
    } else {
        Failure::new(exit_code(status), format!("{told} [{code}]"))
    };
    let errors = json["errors"].as_array().into_iter().flatten();
    for finding in errors.filter(|error| error["file"].is_string()) {
        failure.frames.push_str(&finding_line(finding));
    }
    failure
}

/// A runner does not answer so: another server listens there, or stands before the runner.
fn strange(base: &str, how: &str) -> Failure {
    let message = format!("{base} answers {how}, which no runner does: is it the address of one?");
    Failure::new(exit::UNAVAILABLE, message)
}

/// A finding about definitions in a line, as logs have it.
fn finding_line(finding: &Value) -> String {
    let text = |key: &str| finding[key].as_str().unwrap_or_default();
    let mut line = text("file").to_owned();
    if finding["line"] != 0 {
        let _infallible = write!(line, ":{}:{}", finding["line"], finding["column"]);
    }
    let _infallible = write!(line, ": {}: {}", text("severity"), text("message"));
    if let Some(help) = finding["help"].as_str() {
        let _infallible = write!(line, "; {help}");
    }
    let _infallible = write!(line, " [{}]", text("code"));
    format!("{}\n", plain(&line))
}

/// What a refusal means for the caller of the command.
fn exit_code(status: StatusCode) -> u8 {
    match status {
        StatusCode::NOT_FOUND => exit::NOT_FOUND,
        StatusCode::CONFLICT => exit::CONFLICT,
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => exit::NO_PERMISSION,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
            exit::UNAVAILABLE
        }
        status if status.is_client_error() => exit::DATA,
        _ => exit::SOFTWARE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "http://a:1";

    fn code(status: u16, body: &str) -> (u8, String) {
        let status = StatusCode::from_u16(status).expect("a status");
        let failure = read(BASE, status, body).expect_err("refused");
        (failure.code, failure.message)
    }

    #[test]
    fn a_refusal_of_a_runner_has_its_exit_code_and_its_words() {
        for (status, code_of, expected) in [
            (404, "SR0502", exit::NOT_FOUND),
            (404, "SR0525", exit::USAGE),
            (409, "SR0503", exit::CONFLICT),
            (400, "SR0501", exit::DATA),
            (403, "SR0511", exit::NO_PERMISSION),
            (503, "SR0504", exit::UNAVAILABLE),
            (500, "SR0507", exit::SOFTWARE),
        ] {
            let body = format!(r#"{{"detail": "no", "code": "{code_of}"}}"#);
            assert_eq!(code(status, &body), (expected, format!("no [{code_of}]")));
        }
    }

    #[test]
    fn another_server_than_a_runner_is_told_from_one_that_does_not_have_something() {
        for (status, body) in [
            (404, "<html>"),
            (404, "{}"),
            (500, "oops"),
            (502, ""),
            (200, "<html>"),
        ] {
            let (code, message) = code(status, body);
            assert_eq!(code, exit::UNAVAILABLE, "{status}");
            assert!(
                message.starts_with(BASE) && message.contains("no runner"),
                "{message}"
            );
        }
        assert_eq!(code(401, "").0, exit::NO_PERMISSION);
        assert_eq!(code(301, "").0, exit::USAGE);
    }

    #[test]
    fn an_answer_without_content_is_nothing() {
        let read = read(BASE, StatusCode::NO_CONTENT, "").expect("an answer");
        assert_eq!(read, Value::Null);
    }
}
