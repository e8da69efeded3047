//! The gateway over HTTP: one POST per command, its answer sorted into definite and indefinite.

use std::fmt::Write as _;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url};

use super::settings::{GatewaySetupError, Settings};
use super::{MESSAGE_BYTES_MAX, presentable, unfit};
use crate::clients::tls::client_config;
use crate::clients::{UpstreamTlsFiles, told};
use crate::kernel::envelope::AggregateCommand;
use crate::kernel::trace::is_traceparent;
use crate::ports::gateway::{Gateway, GatewayError};

pub struct HttpGateway {
    client: Client,
    url: Url,
    tenant_header: HeaderName,
    timeout: Duration,
}

impl HttpGateway {
    /// # Errors
    /// [`GatewaySetupError`] names the setting that is wrong.
    pub fn new(url: Url, settings: &Settings) -> Result<Self, GatewaySetupError> {
        let tls = settings.tls.as_ref().map(UpstreamTlsFiles::read).transpose();
        let tls = tls.map_err(GatewaySetupError::Tls)?;
        let client = Client::builder()
            .tls_backend_preconfigured(client_config(tls.as_ref()).map_err(GatewaySetupError::Tls)?)
            .connect_timeout(settings.connect_timeout().duration())
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .pool_idle_timeout(Duration::from_mins(1))
            .build()
            .map_err(|error| GatewaySetupError::Client(told("request failed", &error)))?;
        Ok(Self {
            client,
            url,
            tenant_header: settings.tenant_name()?,
            timeout: settings.timeout.duration(),
        })
    }

    fn headers(&self, command: &AggregateCommand<'_>) -> Result<HeaderMap, GatewayError> {
        let value = |text: &str| HeaderValue::from_str(text).map_err(|_| unfit("idempotency key"));
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
    async fn submit(&self, command: &AggregateCommand<'_>, within: Duration) -> Result<(), GatewayError> {
        let body = serde_json::to_vec(command).map_err(|error| GatewayError::Unsendable {
            message: error.to_string(),
        })?;
        let answer = self
            .client
            .post(self.url.clone())
            .timeout(self.timeout.min(within))
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
    let what = if error.is_timeout() {
        "timed out"
    } else {
        "request failed"
    };
    let message = told(what, error);
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
        StatusCode::TOO_EARLY
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::NOT_IMPLEMENTED
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::HTTP_VERSION_NOT_SUPPORTED => Err(GatewayError::Unavailable { message }),
        StatusCode::REQUEST_TIMEOUT => Err(GatewayError::Unknown { message }),
        status if status.is_redirection() => Err(GatewayError::Unavailable { message }),
        status if status.is_client_error() => Err(GatewayError::Rejected { message }),
        // Whoever fails may have failed after the work, and so may what stands between.
        _ => Err(GatewayError::Unknown { message }),
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
        let said = presentable(&String::from_utf8_lossy(&body));
        write!(text, ": {said}").expect("writing to a string");
    }
    text
}

#[cfg(test)]
mod tests;
