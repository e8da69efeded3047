//! The gateway over HTTP: one POST per command, its answer sorted into definite and indefinite.

use std::fmt::Write as _;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url};
use serde::{Deserialize, Serialize};

use crate::kernel::duration::Millis;
use crate::kernel::envelope::AggregateCommand;
use crate::kernel::trace::is_traceparent;
use crate::ports::gateway::{Gateway, GatewayError};

/// Most bytes of a refusal's body that are kept as its message.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// Where aggregate commands go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The URL that takes a SubmitCommand request as JSON.
    pub url: String,
    /// Longest wait for the answer to one submission. Default 10s.
    #[serde(default = "default_timeout")]
    pub timeout: Millis,
    /// Longest wait for the connection. Default 2s.
    #[serde(default = "default_connect_timeout")]
    pub connect_timeout: Millis,
    /// Name of the header that carries the tenant. Default `x-tenant-id`.
    #[serde(default = "default_tenant_header")]
    pub tenant_header: String,
}

impl Settings {
    /// A gateway at `url`, everything else as it is by default.
    #[must_use]
    pub fn at(url: String) -> Self {
        Self {
            url,
            timeout: default_timeout(),
            connect_timeout: default_connect_timeout(),
            tenant_header: default_tenant_header(),
        }
    }
}

const fn default_timeout() -> Millis {
    Millis::seconds(10)
}

const fn default_connect_timeout() -> Millis {
    Millis::seconds(2)
}

fn default_tenant_header() -> String {
    "x-tenant-id".to_owned()
}

/// Why the settings do not make a gateway.
#[derive(Debug, thiserror::Error)]
pub enum GatewaySetupError {
    #[error("gateway url {url:?} is not an http or https URL")]
    Url { url: String },
    #[error("gateway tenant_header {name:?} is not a header name")]
    TenantHeader { name: String },
    #[error("gateway client cannot be built: {0}")]
    Client(String),
}

pub struct HttpGateway {
    client: Client,
    url: Url,
    tenant_header: HeaderName,
}

impl HttpGateway {
    /// # Errors
    /// [`GatewaySetupError`] names the setting that is wrong.
    pub fn new(settings: &Settings) -> Result<Self, GatewaySetupError> {
        let url = Url::parse(&settings.url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| GatewaySetupError::Url {
                url: settings.url.clone(),
            })?;
        let tenant_header = HeaderName::from_bytes(settings.tenant_header.as_bytes()).map_err(|_| {
            GatewaySetupError::TenantHeader {
                name: settings.tenant_header.clone(),
            }
        })?;
        let client = Client::builder()
            .connect_timeout(settings.connect_timeout.duration())
            .timeout(settings.timeout.duration())
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .pool_idle_timeout(Duration::from_mins(1))
            .build()
            .map_err(|error| GatewaySetupError::Client(reasons(&error)))?;
        Ok(Self {
            client,
            url,
            tenant_header,
        })
    }

    fn headers(&self, command: &AggregateCommand<'_>) -> Result<HeaderMap, GatewayError> {
        let value = |text: &str| {
            HeaderValue::from_str(text).map_err(|_| GatewayError::Rejected {
                message: "the idempotency key holds characters that no header may hold".to_owned(),
            })
        };
        let mut headers = HeaderMap::with_capacity(4);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("idempotency-key", value(&command.metadata.idempotency_key)?);
        if !command.tenant_id.is_none() {
            headers.insert(self.tenant_header.clone(), value(command.tenant_id.as_str())?);
        }
        if let Some(traceparent) = &command.metadata.traceparent
            && is_traceparent(traceparent)
        {
            headers.insert("traceparent", value(traceparent)?);
        }
        Ok(headers)
    }
}

#[async_trait]
impl Gateway for HttpGateway {
    async fn submit(&self, command: &AggregateCommand<'_>) -> Result<(), GatewayError> {
        let body = serde_json::to_vec(command).map_err(|error| GatewayError::Rejected {
            message: format!("the command cannot be encoded: {error}"),
        })?;
        let answer = self
            .client
            .post(self.url.clone())
            .headers(self.headers(command)?)
            .body(body)
            .send()
            .await
            .map_err(|error| unanswered(&error))?;
        judge(answer).await
    }
}

/// Only a failure to connect proves that nothing was sent.
fn unanswered(error: &reqwest::Error) -> GatewayError {
    let message = reasons(error);
    if error.is_connect() {
        GatewayError::Unavailable { message }
    } else {
        GatewayError::Unknown { message }
    }
}

async fn judge(answer: Response) -> Result<(), GatewayError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let message = message(answer).await;
    match status {
        StatusCode::REQUEST_TIMEOUT => Err(GatewayError::Unknown { message }),
        StatusCode::TOO_MANY_REQUESTS => Err(GatewayError::Unavailable { message }),
        status if status.is_client_error() => Err(GatewayError::Rejected { message }),
        _ => Err(GatewayError::Unavailable { message }),
    }
}

/// The status and the beginning of the body, control characters replaced.
async fn message(mut answer: Response) -> String {
    let mut text = answer.status().to_string();
    let mut body = Vec::new();
    while body.len() < MESSAGE_BYTES_MAX {
        match answer.chunk().await {
            Ok(Some(chunk)) => {
                let room = MESSAGE_BYTES_MAX - body.len();
                body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            }
            // The status alone decides; a body that breaks off only shortens the message.
            Ok(None) | Err(_) => break,
        }
    }
    if !body.is_empty() {
        let clean = String::from_utf8_lossy(&body).replace(char::is_control, " ");
        write!(text, ": {}", clean.trim()).expect("writing to a string");
    }
    text
}

/// The error and what caused it, without the URL, which may hold credentials.
fn reasons(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() {
        "timed out".to_owned()
    } else {
        "request failed".to_owned()
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        write!(text, ": {cause}").expect("writing to a string");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
