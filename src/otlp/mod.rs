//! SENDS spans to a collector of traces, by OTLP over HTTP with protobuf.
//!
//! What is sent, and from when on it is dropped, is decided by [`crate::telemetry::Spans`]; here a batch is encoded and sent once.
//! A batch that the collector does not take is dropped: nothing waits for it.

mod encode;

use std::path::PathBuf;
use std::time::Duration;

use prost::Message as _;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url};

pub use encode::Origin;

use crate::clients::tls::client_config;
use crate::telemetry::Span;

/// Where spans are sent by the protocol.
const TRACES: &str = "/v1/traces";

/// A collector of spans.
pub struct Collector {
    client: Client,
    url: Url,
    headers_file: Option<PathBuf>,
    headers: HeaderMap,
    origin: Origin,
}

impl Collector {
    /// A collector at `endpoint`, to which `/v1/traces` is added if that is not its end.
    ///
    /// # Errors
    /// A sentence: the URL or the system's certificates cannot be used.
    pub fn new(
        endpoint: &str,
        headers_file: Option<PathBuf>,
        timeout: Duration,
        origin: Origin,
    ) -> Result<Self, String> {
        let mut url = endpoint.trim_end_matches('/').to_owned();
        if !url.ends_with(TRACES) {
            url.push_str(TRACES);
        }
        let url = Url::parse(&url).map_err(|error| format!("telemetry.otlp.endpoint: {error}"))?;
        let tls = client_config(None).map_err(|error| format!("telemetry.otlp: {error}"))?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| format!("telemetry.otlp: {error}"))?;
        let mut collector = Self {
            client,
            url,
            headers_file,
            headers: HeaderMap::new(),
            origin,
        };
        collector.read_headers()?;
        Ok(collector)
    }

    /// Reads the file of headers again.
    ///
    /// # Errors
    /// A sentence without the values.
    pub fn read_headers(&mut self) -> Result<(), String> {
        if let Some(path) = &self.headers_file {
            let wrong = |reason: &str| format!("telemetry.otlp.headers_file {}: {reason}", path.display());
            let text = std::fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
            self.headers = headers(&text).map_err(|reason| wrong(&reason))?;
        }
        Ok(())
    }

    /// Sends a batch, once.
    ///
    /// # Errors
    /// A sentence: it was not taken, as far as is known.
    pub async fn send(&self, spans: &[Span]) -> Result<(), String> {
        let body = encode::request(&self.origin, spans).encode_to_vec();
        let request = self
            .client
            .post(self.url.clone())
            .headers(self.headers.clone())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(body);
        let answer = request
            .send()
            .await
            .map_err(|error| error.without_url().to_string())?;
        if answer.status().is_success() {
            Ok(())
        } else {
            Err(format!("the collector answers with {}", answer.status()))
        }
    }
}

/// The headers of a file: a name and a value in each line.
fn headers(text: &str) -> Result<HeaderMap, String> {
    let mut found = HeaderMap::new();
    let lines = text.lines().map(str::trim).zip(1..);
    for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
        let header = line.split_once(':').and_then(|(name, value)| {
            let name = HeaderName::try_from(name.trim()).ok()?;
            let mut value = HeaderValue::try_from(value.trim()).ok()?;
            value.set_sensitive(true);
            Some((name, value))
        });
        let (name, value) = header.ok_or_else(|| format!("line {number} is not `name: value`"))?;
        found.insert(name, value);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_headers_has_a_name_and_a_value_in_each_line_and_wrong_lines_are_told_without_their_text() {
        let read =
            headers("# of the collector\n\nAuthorization: Bearer s3cr3t\nx-scope: a:b\n").expect("headers");
        assert_eq!(read.len(), 2);
        assert_eq!(read["x-scope"], "a:b");
        let wrong = headers("x: 1\nBearer s3cr3t\n").expect_err("no header");
        assert_eq!(wrong, "line 2 is not `name: value`");
    }
}
