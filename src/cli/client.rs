//! A client of the HTTP API, for commands that ask a running process.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::exit::{self, Failure};
use crate::clients::told;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_mins(1);

/// Which process is asked.
#[derive(Debug, Clone, Args)]
pub struct ServerArguments {
    /// Where the HTTP API of a runner listens.
    #[arg(
        long,
        env = "SAGA_RUNNER_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    url: String,
}

pub struct Client {
    base: String,
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// A client whose paths follow `url`.
    pub fn at(url: &str) -> Result<Self, Failure> {
        Self::new(&ServerArguments { url: url.to_owned() })
    }

    pub fn new(server: &ServerArguments) -> Result<Self, Failure> {
        Ok(Self {
            base: server.url.trim_end_matches('/').to_owned(),
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

    fn send(&self, request: reqwest::RequestBuilder) -> Result<Value, Failure> {
        let (status, body) = self
            .runtime
            .block_on(async {
                let response = request.send().await?;
                Ok::<_, reqwest::Error>((response.status(), response.text().await?))
            })
            .map_err(|error| Failure::software(told(&format!("no answer from {}", self.base), &error)))?;
        let json = serde_json::from_str::<Value>(&body).ok();
        if status.is_success() {
            return json.ok_or_else(|| Failure::software(format!("{} does not answer with JSON", self.base)));
        }
        let told = json.as_ref().and_then(|json| json["detail"].as_str());
        Err(Failure::new(
            exit::FINDINGS,
            told.map_or_else(|| format!("{} answers {status}", self.base), str::to_owned),
        ))
    }
}
