//! A client of the HTTP API, for commands that ask a running process.

use std::cell::OnceCell;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;

use super::addresses::{at_port, base_url, safe_for_tokens};
use super::answers::{self, ON_THE_OTHER_ADDRESS};
use super::profile::Profiles;
use super::server;
pub use super::server::{CommonArguments, ServerArguments, TenantArguments, quoted};
use super::server_events::{Reading, ServerEvent};
use crate::app::exit::{self, Failure};
use crate::app::out;
use crate::clients::tls::client_config;
use crate::clients::told;

/// Longest wait for a connection.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_mins(1);
/// How much longer than asked for an answer may take that changes nothing.
const GRACE: Duration = Duration::from_secs(10);
/// The same for what takes as long as a drain may.
const PATIENCE_LONG: Duration = Duration::from_hours(24);
/// How long a stream of events may be silent: a runner says every 15 s that it lives.
const SILENCE_MAX: Duration = Duration::from_mins(1);
/// How often a waiting command says that it waits.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Where no URL is given.
const URL: &str = "http://127.0.0.1:8080";

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

/// What a process that may have ended is heard of.
#[derive(Debug)]
pub enum Heard {
    Answer(Value),
    /// No process listens any more, or what stands before it says so.
    Nobody,
    /// It is there, and says nothing of use.
    Silence,
}

/// A request with JSON.
fn with_json(request: reqwest::RequestBuilder, body: &Value) -> reqwest::RequestBuilder {
    let request = request.header("content-type", "application/json");
    request.body(body.to_string())
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
            let wrong = |url: &str, error: &str| format!("the profile has the URL {url:?}: {error}");
            let checked = url.map(|url| base_url(url).map_err(|error| wrong(url, &error)));
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
        let token = server::token(server, &profile)?;
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
                // A request that changes something would become another one.
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECTS_WITHIN)
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
        if let Some(tenant) = named.named().or(self.tenant.as_deref()) {
            return Ok(format!("/v1/tenants/{}", escaped(tenant)));
        }
        let info = self.get("/info").map_err(|failure| {
            if failure.code == exit::UNAVAILABLE {
                return failure;
            }
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
        self.send(self.http.get(self.address(path)?))
    }

    /// Asks for a page that says what is wrong also where it answers 503.
    pub fn get_any(&self, path: &str) -> Result<Value, Failure> {
        let (status, body) = self.exchange(self.http.get(self.address(path)?), &mut |_| {})?;
        match serde_json::from_str(&body) {
            Ok(json) if status == StatusCode::SERVICE_UNAVAILABLE => Ok(json),
            _ => answers::read(&self.base, status, &body),
        }
    }

    /// Asks a process that may have ended for a page.
    pub fn hear(&self, path: &str) -> Result<Heard, Failure> {
        let request = self.authorized(self.http.get(self.address(path)?).timeout(GRACE));
        let asked = async {
            let response = request.send().await?;
            Ok::<_, reqwest::Error>((response.status(), response.text().await?))
        };
        Ok(match self.runtime.block_on(asked) {
            Ok((status, body)) => match answers::read(&self.base, status, &body) {
                Ok(answer) => Heard::Answer(answer),
                Err(failure) if failure.code == exit::UNAVAILABLE => Heard::Nobody,
                Err(_) => Heard::Silence,
            },
            Err(error) if error.is_connect() && !error.is_timeout() => Heard::Nobody,
            Err(_) => Heard::Silence,
        })
    }

    /// Sends JSON to a page.
    pub fn post_json(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(with_json(self.http.post(self.address(path)?), body))
    }

    /// Sends JSON to a page that answers after `wait` at the latest, and a little.
    pub fn post_patiently(&self, path: &str, body: &Value, wait: Duration) -> Result<Value, Failure> {
        let request = self.http.post(self.address(path)?).timeout(wait + PATIENCE);
        self.send(with_json(request, body))
    }

    /// Asks for a thing to be deleted, with JSON that says why; the answer comes after `wait` at the latest, and a little.
    pub fn delete_json(&self, path: &str, body: &Value, wait: Duration) -> Result<Value, Failure> {
        let request = self.http.delete(self.address(path)?).timeout(wait + PATIENCE);
        self.send(with_json(request, body))
    }

    /// Asks for a page that answers after `wait` at the latest, and a little.
    pub fn get_patiently(&self, path: &str, wait: Duration) -> Result<Value, Failure> {
        self.send(self.http.get(self.address(path)?).timeout(wait + GRACE))
    }

    /// Gives each server-sent event of a page to `take`, until the page or `take` ends. `last` is the id of the last one that was taken.
    pub fn events(
        &self,
        path: &str,
        last: Option<&str>,
        mut take: impl FnMut(&ServerEvent) -> Result<ControlFlow<()>, Failure>,
    ) -> Result<(), Failure> {
        let mut request = self.http.get(self.address(path)?).timeout(PATIENCE_LONG);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let request = self.authorized(request);
        let broken = |error: reqwest::Error| self.no_answer(&error);
        self.runtime.block_on(async {
            let mut response = request.send().await.map_err(broken)?;
            let status = response.status();
            if !status.is_success() {
                let body = response.text().await.map_err(broken)?;
                return Err(answers::refusal(&self.base, status, &body));
            }
            let mut reading = Reading::default();
            loop {
                let chunk = tokio::time::timeout(SILENCE_MAX, response.chunk()).await;
                let silent = |_| Failure::new(exit::UNAVAILABLE, format!("{} is silent", self.base));
                match chunk.map_err(silent)?.map_err(broken)? {
                    Some(chunk) => {
                        for event in reading.take(&chunk) {
                            if take(&event)?.is_break() {
                                return Ok(());
                            }
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
        let request = self.http.post(self.address(path)?).timeout(PATIENCE_LONG);
        let request = self.authorized(with_json(request, body));
        let broken = |error: reqwest::Error| self.no_answer(&error);
        self.runtime.block_on(async {
            let mut response = request.send().await.map_err(broken)?;
            let status = response.status();
            if !status.is_success() {
                let body = response.text().await.map_err(broken)?;
                return Err(answers::refusal(&self.base, status, &body));
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
        let mut message = told(&format!("no answer from {asked}"), error);
        if error.is_connect() {
            message.push_str("; --url, SAGA_RUNNER_URL or a profile names another runner");
        }
        Failure::new(exit::UNAVAILABLE, message)
    }

    /// Sends JSON to a page that may take long, and calls `waits` now and then until it has answered.
    pub fn post_and_wait(
        &self,
        path: &str,
        body: &Value,
        mut waits: impl FnMut(Duration),
    ) -> Result<Value, Failure> {
        let request = self.http.post(self.address(path)?).timeout(PATIENCE_LONG);
        self.send_telling(with_json(request, body), &mut waits)
    }

    /// Where a path is.
    fn address(&self, path: &str) -> Result<String, Failure> {
        if !is_of_operators(path) {
            return Ok(format!("{}{path}", self.base));
        }
        if let Some(admin) = self.admin.get() {
            return Ok(format!("{admin}{path}"));
        }
        let found = self.find_admin()?;
        Ok(format!("{}{path}", self.admin.get_or_init(|| found)))
    }

    /// Where the endpoints of operators are. The runner at `base` has them too, or names the port of its machine where they are.
    fn find_admin(&self) -> Result<String, Failure> {
        let asked = self.http.get(format!("{}/info", self.base));
        let (_, told) = self.exchange(asked, &mut |_| {})?;
        // What else may be wrong is told by the request that follows.
        let told: Value = serde_json::from_str(&told).unwrap_or_default();
        let port = told["admin_port"]
            .as_u64()
            .and_then(|port| u16::try_from(port).ok());
        let found = port
            .filter(|_| told["code"] == ON_THE_OTHER_ADDRESS)
            .and_then(|port| at_port(&self.base, port));
        Ok(found.unwrap_or_else(|| self.base.clone()))
    }

    /// Sends a request, and shows that it waits where the answer takes long.
    fn send(&self, request: reqwest::RequestBuilder) -> Result<Value, Failure> {
        let mut progress = out::Progress::new();
        self.send_telling(request, &mut |waited: Duration| {
            let seconds = waited.as_secs();
            progress.tell(format_args!("no answer from {} for {seconds} s", self.base));
        })
    }

    fn send_telling(
        &self,
        request: reqwest::RequestBuilder,
        waits: &mut dyn FnMut(Duration),
    ) -> Result<Value, Failure> {
        let (status, body) = self.exchange(request, waits)?;
        answers::read(&self.base, status, &body)
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
    fn endpoints_of_operators_are_told_by_their_paths() {
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
}
