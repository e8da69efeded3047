//! A client of the HTTP API, for commands that ask a running process.

use std::cell::OnceCell;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use reqwest::StatusCode;
use serde_json::Value;

use super::addresses::{at_port, safe_for_tokens};
use super::output::OutputArguments;
use super::profile::{Profile, Profiles};
use super::server_events::{Reading, ServerEvent};
use crate::app::diagnostics::plain;
use crate::app::exit::{self, Failure};
use crate::clients::tls::client_config;
use crate::clients::told;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_mins(1);
/// The same for what takes as long as a drain may.
const PATIENCE_LONG: Duration = Duration::from_hours(24);
/// How long a stream of events may be silent: a runner says every 15 s that it lives.
const SILENCE_MAX: Duration = Duration::from_mins(1);
/// How often a waiting command says that it waits.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Where no URL is given.
const URL: &str = "http://127.0.0.1:8080";
/// The code of an answer that names another address.
const ON_ADMIN_ADDRESS: &str = "SR0525";
/// The variable with a token; a flag would show it in the list of processes.
const TOKEN: &str = "SAGA_RUNNER_TOKEN";

/// The process that receives the request: flags, then the environment, then the profile.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerArguments {
    /// URL of the HTTP API of a runner; default: that of the profile, else http://127.0.0.1:8080.
    #[arg(long, env = "SAGA_RUNNER_URL", value_name = "URL", value_parser = base_url)]
    url: Option<String>,
    /// URL of its admin API; default: that of the profile, else the port that the runner at --url names, else the same as --url.
    #[arg(long, env = "SAGA_RUNNER_ADMIN_URL", value_name = "URL", value_parser = base_url)]
    admin_url: Option<String>,
    /// File with the bearer token; default: SAGA_RUNNER_TOKEN, else the file of the profile.
    #[arg(long, env = "SAGA_RUNNER_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Profile with URL, tenant and token; default: the one chosen by `profile use`.
    #[arg(long, env = "SAGA_RUNNER_PROFILE", value_name = "NAME")]
    profile: Option<String>,
}

impl ServerArguments {
    /// Whether a flag or a variable names a process.
    pub const fn names_one(&self) -> bool {
        self.url.is_some() || self.profile.is_some()
    }
}

/// The tenant of instances and schedules.
#[derive(Debug, Clone, Args)]
pub struct TenantArguments {
    /// Tenant; default: that of the profile. Not needed if the runner serves one tenant, or runs without tenants.
    #[arg(long, env = "SAGA_RUNNER_TENANT", value_name = "NAME")]
    tenant: Option<String>,
}

impl TenantArguments {
    /// As the command line or its environment names it.
    pub fn named(&self) -> Option<&str> {
        self.tenant.as_deref()
    }
}

/// What commands about the things of a tenant have in common: how they print, whose things they are, and who answers.
#[derive(Debug, Clone, Args)]
pub struct CommonArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    #[command(flatten)]
    pub tenant: TenantArguments,
    #[command(flatten)]
    pub server: ServerArguments,
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
    /// Found out when it is needed first, where nobody names it.
    admin: OnceCell<String>,
    tenant: Option<String>,
    token: Option<String>,
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

/// Whether a path is on the listener of operators.
fn is_of_operators(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    path.starts_with("/admin/") || ["/health", "/info", "/metrics"].contains(&path)
}

impl Client {
    /// A client whose paths follow `url`.
    pub fn at(url: &str) -> Result<Self, Failure> {
        let url = base_url(url).map_err(|error| Failure::new(exit::USAGE, format!("{url}: {error}")))?;
        Self::new(&ServerArguments {
            url: Some(url),
            ..ServerArguments::default()
        })
    }

    pub fn new(server: &ServerArguments) -> Result<Self, Failure> {
        let profile = Profiles::read()?.get(server.profile.as_deref())?;
        let checked = |url: Option<&String>| {
            let checked = url.map(|url| base_url(url).map_err(|error| format!("{url}: {error}")));
            checked
                .transpose()
                .map_err(|error| Failure::new(exit::CONFIG, error))
        };
        // An address by flag is not that of the profile, and neither is its admin API.
        let (base, admin) = match (&server.url, &server.admin_url) {
            (Some(base), admin) => (base.clone(), admin.clone()),
            (None, admin) => {
                let base = checked(profile.url.as_ref())?;
                let admin = admin
                    .clone()
                    .map_or_else(|| checked(profile.admin_url.as_ref()), |url| Ok(Some(url)))?;
                (base.unwrap_or_else(|| URL.to_owned()), admin)
            }
        };
        let token = token(server, &profile)?;
        if token.is_some() {
            safe_for_tokens(&base)?;
            admin.as_deref().map_or(Ok(()), safe_for_tokens)?;
        }
        let unusable = |message: String| Failure::new(exit::CONFIG, message);
        let tls = profile.tls.read().map_err(unusable)?;
        Ok(Self {
            base,
            admin: admin.map_or_else(OnceCell::new, OnceCell::from),
            tenant: profile.tenant,
            token,
            http: reqwest::Client::builder()
                .tls_backend_preconfigured(client_config(Some(&tls)).map_err(unusable)?)
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
        if let Some(tenant) = named.tenant.as_ref().or(self.tenant.as_ref()) {
            return Ok(format!("/v1/tenants/{}", escaped(tenant)));
        }
        let info = self.get("/info").map_err(|failure| {
            let more = "the runner was asked for its tenants: choose one with --tenant or SAGA_RUNNER_TENANT";
            Failure {
                message: format!("{}; {more}", failure.message),
                ..failure
            }
        })?;
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
        self.send(self.http.get(self.address(path)))
    }

    /// Asks for a page that says what is wrong also where it answers 503.
    pub fn get_any(&self, path: &str) -> Result<Value, Failure> {
        let (status, body) = self.exchange(self.http.get(self.address(path)), &mut |_| {})?;
        match serde_json::from_str(&body) {
            Ok(json) if status == StatusCode::SERVICE_UNAVAILABLE => Ok(json),
            _ => self.answer(status, &body),
        }
    }

    /// Sends JSON to a page.
    pub fn post_json(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.http.post(self.address(path));
        self.send(
            request
                .header("content-type", "application/json")
                .body(body.to_string()),
        )
    }

    /// Sends JSON to a page that answers after `wait` at the latest, and a little.
    pub fn post_patiently(&self, path: &str, body: &Value, wait: Duration) -> Result<Value, Failure> {
        let request = self.http.post(self.address(path)).timeout(wait + PATIENCE);
        let request = request.header("content-type", "application/json");
        self.send(request.body(body.to_string()))
    }

    /// Asks for a thing to be deleted, with JSON that says why; the answer comes after `wait` at the latest, and a little.
    pub fn delete_json(&self, path: &str, body: &Value, wait: Duration) -> Result<Value, Failure> {
        let request = self.http.delete(self.address(path)).timeout(wait + PATIENCE);
        let request = request.header("content-type", "application/json");
        self.send(request.body(body.to_string()))
    }

    /// Asks for a page that answers after `wait` at the latest, and a little.
    pub fn get_patiently(&self, path: &str, wait: Duration) -> Result<Value, Failure> {
        self.send(self.http.get(self.address(path)).timeout(wait + PATIENCE))
    }

    /// Gives each server-sent event of a page to `take`, until the page ends. `last` is the id of the last one that was taken.
    pub fn events(
        &self,
        path: &str,
        last: Option<&str>,
        mut take: impl FnMut(&ServerEvent) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut request = self.http.get(self.address(path)).timeout(PATIENCE_LONG);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let request = self.authorized(request);
        let broken = |error: reqwest::Error| self.no_answer(&error);
        self.runtime.block_on(async {
            let mut response = request.send().await.map_err(broken)?;
            let status = response.status();
            if !status.is_success() {
                return Err(self.refusal(status, &response.text().await.map_err(broken)?));
            }
            let mut reading = Reading::default();
            loop {
                let chunk = tokio::time::timeout(SILENCE_MAX, response.chunk()).await;
                let silent = |_| Failure::new(exit::UNAVAILABLE, format!("{} is silent", self.base));
                match chunk.map_err(silent)?.map_err(broken)? {
                    Some(chunk) => {
                        for event in reading.take(&chunk) {
                            take(&event)?;
                        }
                    }
                    None => return Ok(()),
                }
            }
        })
    }

    /// Asks with JSON for a file, and gives its bytes to `take` as they come.
    pub fn download(
        &self,
        path: &str,
        body: &Value,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let request = self.http.post(self.address(path)).timeout(PATIENCE_LONG);
        let request = request.header("content-type", "application/json");
        let request = self.authorized(request.body(body.to_string()));
        let broken = |error: reqwest::Error| self.no_answer(&error);
        self.runtime.block_on(async {
            let mut response = request.send().await.map_err(broken)?;
            let status = response.status();
            if !status.is_success() {
                return Err(self.refusal(status, &response.text().await.map_err(broken)?));
            }
            while let Some(chunk) = response.chunk().await.map_err(broken)? {
                take(&chunk)?;
            }
            Ok(())
        })
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    fn no_answer(&self, error: &reqwest::Error) -> Failure {
        let asked = error
            .url()
            .map_or_else(|| self.base.clone(), |url| url.origin().ascii_serialization());
        let message = told(&format!("no answer from {asked}"), error);
        Failure::new(exit::UNAVAILABLE, message)
    }

    /// Sends JSON to a page that may take long, and calls `waits` now and then until it has answered.
    pub fn post_and_wait(
        &self,
        path: &str,
        body: &Value,
        mut waits: impl FnMut(Duration),
    ) -> Result<Value, Failure> {
        let request = self.http.post(self.address(path)).timeout(PATIENCE_LONG);
        let request = request.header("content-type", "application/json");
        self.send_telling(request.body(body.to_string()), &mut waits)
    }

    /// Where a path is.
    fn address(&self, path: &str) -> String {
        let base = if is_of_operators(path) {
            self.admin.get_or_init(|| self.find_admin())
        } else {
            &self.base
        };
        format!("{base}{path}")
    }

    /// Where the endpoints of operators are. The runner at `base` has them too, or names the port of its machine where they are.
    fn find_admin(&self) -> String {
        let asked = async {
            let response = self.http.get(format!("{}/info", self.base)).send().await?;
            response.text().await
        };
        let told = self.runtime.block_on(asked).unwrap_or_default();
        let told: Value = serde_json::from_str(&told).unwrap_or_default();
        let port = told["admin_port"]
            .as_u64()
            .and_then(|port| u16::try_from(port).ok());
        // What goes wrong is told by the request that follows.
        port.filter(|_| told["code"] == ON_ADMIN_ADDRESS)
            .and_then(|port| at_port(&self.base, port))
            .unwrap_or_else(|| self.base.clone())
    }

    fn send(&self, request: reqwest::RequestBuilder) -> Result<Value, Failure> {
        self.send_telling(request, &mut |_| {})
    }

    fn send_telling(
        &self,
        request: reqwest::RequestBuilder,
        waits: &mut dyn FnMut(Duration),
    ) -> Result<Value, Failure> {
        let (status, body) = self.exchange(request, waits)?;
        self.answer(status, &body)
    }

    /// Sends a request, and calls `waits` now and then until the answer is there.
    fn exchange(
        &self,
        request: reqwest::RequestBuilder,
        waits: &mut dyn FnMut(Duration),
    ) -> Result<(StatusCode, String), Failure> {
        let request = self.authorized(request);
        let asked = async {
            let response = request.send().await?;
            Ok::<_, reqwest::Error>((response.status(), response.text().await?))
        };
        self.runtime
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
            .map_err(|error| self.no_answer(&error))
    }

    /// What an answer says, or why there is none.
    fn answer(&self, status: StatusCode, body: &str) -> Result<Value, Failure> {
        let json = serde_json::from_str::<Value>(body).ok();
        if status == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        if status.is_success() {
            return json.ok_or_else(|| Failure::software(format!("answer from {} is not JSON", self.base)));
        }
        Err(self.refusal(status, body))
    }

    /// Why a request was refused.
    fn refusal(&self, status: StatusCode, body: &str) -> Failure {
        let json = serde_json::from_str::<Value>(body).ok();
        let told = json.as_ref().and_then(|json| json["detail"].as_str());
        let mut failure = Failure::new(
            if json.as_ref().is_some_and(|json| json["code"] == ON_ADMIN_ADDRESS) {
                exit::USAGE
            } else {
                exit_code(status)
            },
            match (told, json.as_ref().and_then(|json| json["code"].as_str())) {
                (Some(told), Some(code)) => format!("{told} [{code}]"),
                (Some(told), None) => told.to_owned(),
                (None, _) => format!("{} answers {status}", self.base),
            },
        );
        let errors = json.as_ref().and_then(|json| json["errors"].as_array());
        for finding in errors
            .into_iter()
            .flatten()
            .filter(|error| error["file"].is_string())
        {
            failure.frames.push_str(&finding_line(finding));
        }
        failure
    }
}

/// The bearer token, by flag, environment or profile.
fn token(server: &ServerArguments, profile: &Profile) -> Result<Option<String>, Failure> {
    let variable = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
    let path = match (&server.token_file, variable) {
        (Some(path), _) => path,
        (None, Some(token)) => return legal(token, TOKEN).map(Some),
        // A profile's token is for its own addresses.
        (None, None) => match (&profile.token_file, &server.url, &server.admin_url) {
            (Some(path), None, None) => path,
            _ => return Ok(None),
        },
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(exit::NO_INPUT, format!("{}: {error}", path.display())))?;
    legal(text.trim_end().to_owned(), &path.display().to_string()).map(Some)
}

/// A token that can stand in a header.
fn legal(token: String, place: &str) -> Result<String, Failure> {
    if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        let message = format!("{place}: a token is one line of visible ASCII characters");
        return Err(Failure::new(exit::CONFIG, message));
    }
    Ok(token)
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

    #[test]
    fn a_key_is_one_segment_of_the_path() {
        assert_eq!(escaped("o-1_a.b~"), "o-1_a.b~");
        assert_eq!(escaped("a/b c\u{e9}?"), "a%2Fb%20c%C3%A9%3F");
    }

    #[test]
    fn a_token_goes_to_this_machine_or_over_tls() {
        for safe in [
            "http://127.0.0.1:8080",
            "http://[::1]:1",
            "http://localhost",
            "https://far:443",
        ] {
            assert!(safe_for_tokens(safe).is_ok(), "{safe}");
        }
        for unsafe_ in ["http://far:8080", "http://10.0.0.1", "http://127.0.0.1.evil"] {
            assert_eq!(
                safe_for_tokens(unsafe_).expect_err("refused").code,
                exit::USAGE,
                "{unsafe_}"
            );
        }
        assert!(legal("two lines\nhere".to_owned(), "x").is_err());
    }

    #[test]
    fn another_port_is_taken_of_this_machine_only() {
        for (url, at) in [
            ("http://127.0.0.1:8080", Some("http://127.0.0.1:8081")),
            ("https://localhost:8080", Some("https://localhost:8081")),
            ("http://[::1]:8080/below", Some("http://[::1]:8081/below")),
            ("http://far:8080", None),
            ("https://10.0.0.1:8080", None),
        ] {
            assert_eq!(at_port(url, 8081).as_deref(), at, "{url}");
        }
        for (path, is_theirs) in [
            ("/admin/shards", true),
            ("/info", true),
            ("/health", true),
            ("/metrics?x", true),
            ("/ready", false),
            ("/v1/instances", false),
            ("/information", false),
        ] {
            assert_eq!(is_of_operators(path), is_theirs, "{path}");
        }
    }

    #[test]
    fn only_the_url_of_a_server_is_taken() {
        assert_eq!(base_url("http://a:1/"), Ok("http://a:1".to_owned()));
        for wrong in ["", "not a url", "localhost:8080", "ftp://a", "/path"] {
            assert!(base_url(wrong).is_err(), "{wrong}");
        }
    }
}
