//! A client of the HTTP API, for commands that ask a running process.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use reqwest::StatusCode;
use serde_json::Value;

use crate::app::diagnostics::plain;
use crate::app::exit::{self, Failure};
use crate::clients::told;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_mins(1);
/// The same for what takes as long as a drain may.
const PATIENCE_LONG: Duration = Duration::from_hours(24);
/// How often somebody who waits is told so.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The process that receives the request.
#[derive(Debug, Clone, Args)]
pub struct ServerArguments {
    /// URL of the HTTP API of a runner.
    #[arg(
        long,
        env = "SAGA_RUNNER_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:8080",
        value_parser = base_url
    )]
    url: String,
}

/// The tenant of instances and schedules.
#[derive(Debug, Clone, Args)]
pub struct TenantArguments {
    /// Tenant; not needed if the runner serves one tenant, or runs without tenants.
    #[arg(long, env = "SAGA_RUNNER_TENANT", value_name = "NAME")]
    tenant: Option<String>,
}

/// Reads the URL of a runner.
pub fn base_url(text: &str) -> Result<String, String> {
    let url = reqwest::Url::parse(text).map_err(|error| error.to_string())?;
    if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none() {
        return Err("expected http://HOST:PORT or https://HOST:PORT".to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// One segment of a path: names and keys may hold anything that a path may not.
pub fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _infallible = write!(text, "%{byte:02X}");
        }
    }
    text
}

pub struct Client {
    base: String,
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// A client whose paths follow `url`.
    pub fn at(url: &str) -> Result<Self, Failure> {
        let url = base_url(url).map_err(|error| Failure::new(exit::USAGE, format!("{url}: {error}")))?;
        Self::new(&ServerArguments { url })
    }

    pub fn new(server: &ServerArguments) -> Result<Self, Failure> {
        Ok(Self {
            base: server.url.clone(),
            http: reqwest::Client::builder()
                .timeout(PATIENCE)
                .build()
                .map_err(Failure::software)?,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(Failure::software)?,
        })
    }

    /// What the paths of the tenant begin with. Where none is named, the runner tells whether it serves just one.
    pub fn tenant_path(&self, named: &TenantArguments) -> Result<String, Failure> {
        if let Some(tenant) = &named.tenant {
            return Ok(format!("/v1/tenants/{}", escaped(tenant)));
        }
        let info = self.get("/info")?;
        let several = |which: &str| {
            let message =
                format!("this runner serves {which}; choose one with --tenant or SAGA_RUNNER_TENANT");
            Err(Failure::new(exit::USAGE, message))
        };
        match &info["tenants"] {
            Value::Array(tenants) => match &tenants[..] {
                [Value::String(only)] => Ok(format!("/v1/tenants/{}", escaped(only))),
                tenants => {
                    let all: Vec<&str> = tenants.iter().filter_map(Value::as_str).collect();
                    several(&format!("the tenants {}", all.join(", ")))
                }
            },
            Value::String(_) => several("any tenant"),
            _ => Ok("/v1".to_owned()),
        }
    }

    /// Asks for a page.
    pub fn get(&self, path: &str) -> Result<Value, Failure> {
        self.send(self.http.get(format!("{}{path}", self.base)))
    }

    /// Asks for something to be done.
    pub fn post(&self, path: &str) -> Result<Value, Failure> {
        self.send(self.http.post(format!("{}{path}", self.base)))
    }

    /// Sends JSON to a page.
    pub fn post_json(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.http.post(format!("{}{path}", self.base));
        self.send(
            request
                .header("content-type", "application/json")
                .body(body.to_string()),
        )
    }

    /// Asks for something that may take long, and calls `waits` now and then until it is done.
    pub fn post_and_wait(&self, path: &str, mut waits: impl FnMut(Duration)) -> Result<Value, Failure> {
        let request = self.http.post(format!("{}{path}", self.base));
        let request = request.timeout(PATIENCE_LONG);
        self.send_telling(request, &mut waits)
    }

    fn send(&self, request: reqwest::RequestBuilder) -> Result<Value, Failure> {
        self.send_telling(request, &mut |_| {})
    }

    fn send_telling(
        &self,
        request: reqwest::RequestBuilder,
        waits: &mut dyn FnMut(Duration),
    ) -> Result<Value, Failure> {
        let asked = async {
            let response = request.send().await?;
            Ok::<_, reqwest::Error>((response.status(), response.text().await?))
        };
        let (status, body) = self
            .runtime
            .block_on(async {
                let mut asked = std::pin::pin!(asked);
                let mut waited = Duration::ZERO;
                loop {
                    if let Ok(answer) = tokio::time::timeout(TELL_EVERY, &mut asked).await {
                        return answer;
                    }
                    waited += TELL_EVERY;
                    waits(waited);
                }
            })
            .map_err(|error| {
                Failure::new(
                    exit::UNAVAILABLE,
                    told(&format!("no answer from {}", self.base), &error),
                )
            })?;
        let json = serde_json::from_str::<Value>(&body).ok();
        if status.is_success() {
            return json.ok_or_else(|| Failure::software(format!("answer from {} is not JSON", self.base)));
        }
        let told = json.as_ref().and_then(|json| json["detail"].as_str());
        let mut failure = Failure::new(
            exit_code(status),
            told.map_or_else(|| format!("{} answers {status}", self.base), str::to_owned),
        );
        let findings = json.as_ref().and_then(|json| json["findings"].as_array());
        for finding in findings.into_iter().flatten() {
            failure.frames.push_str(&finding_line(finding));
        }
        Err(failure)
    }
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

/// What a refusal means for whoever called the command.
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

    #[test]
    fn a_key_is_one_segment_of_the_path() {
        assert_eq!(escaped("o-1_a.b~"), "o-1_a.b~");
        assert_eq!(escaped("a/b c\u{e9}?"), "a%2Fb%20c%C3%A9%3F");
    }

    #[test]
    fn only_the_url_of_a_server_is_taken() {
        assert_eq!(base_url("http://a:1/"), Ok("http://a:1".to_owned()));
        for wrong in ["", "not a url", "localhost:8080", "ftp://a", "/path"] {
            assert!(base_url(wrong).is_err(), "{wrong}");
        }
    }
}
