//! The requests of a stage: those of command lines of curl, and those with which a scene is prepared.

use std::fs;

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::stage::{Fills, Stage, told};

impl Stage {
    /// A request with a body of JSON.
    pub fn request(
        &self,
        method: &str,
        url: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, String), String> {
        let body = body.map(Value::to_string);
        let header = ("content-type".to_owned(), "application/json".to_owned());
        let headers: Fills = body.as_ref().map(|_| header).into_iter().collect();
        self.send(method, url, &headers, body)
    }

    fn send(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        body: Option<String>,
    ) -> Result<(StatusCode, String), String> {
        let method = reqwest::Method::from_bytes(method.as_bytes()).map_err(|error| told(&error))?;
        let mut request = self.client.request(method, url);
        for (name, value) in headers {
            request = request.header(name.as_str(), value.as_str());
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let answer = self.runtime.block_on(async {
            let answer = request.send().await?;
            let status = answer.status();
            Ok::<_, reqwest::Error>((status, answer.text().await?))
        });
        answer.map_err(|error| told(&error))
    }

    /// Makes the request of a command line of curl, which not every machine has. An answer other than 2xx is a fault.
    pub(super) fn curl(&self, words: &[String]) -> Result<String, String> {
        let (mut method, mut url, mut headers, mut body) = (None, None, Fills::new(), None);
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if word == "-s" {
                continue;
            }
            if word.starts_with("http://") {
                url = Some(word.clone());
                continue;
            }
            let value = rest.next().ok_or_else(|| format!("{word} has no value"))?;
            match word.as_str() {
                "-X" => method = Some(value.clone()),
                "-H" => {
                    let (name, value) = value.split_once(':').ok_or("a header has a name")?;
                    headers.push((name.to_lowercase(), value.trim().to_owned()));
                }
                "-d" => body = Some(self.data(value)?),
                other => {
                    return Err(format!(
                        "tests/documents/requests.rs does not know {other} of curl"
                    ));
                }
            }
        }
        let usual = if body.is_some() { "POST" } else { "GET" };
        if body.is_some() && !headers.iter().any(|(name, _)| name == "content-type") {
            headers.push((
                "content-type".to_owned(),
                "application/x-www-form-urlencoded".to_owned(),
            ));
        }
        let url = url.ok_or("there is no address")?;
        let (status, text) = self.send(method.as_deref().unwrap_or(usual), &url, &headers, body)?;
        if status.is_success() {
            Ok(text)
        } else {
            Err(format!("{status}: {text}"))
        }
    }

    /// What follows `-d` of curl: a text, or `@` and a file.
    fn data(&self, value: &str) -> Result<String, String> {
        let Some(file) = value.strip_prefix('@') else {
            return Ok(value.to_owned());
        };
        fs::read_to_string(self.folder.join(file)).map_err(|error| format!("{file}: {error}"))
    }

    /// `nats kv get BUCKET KEY`, for which no machine needs the program.
    pub(super) fn entry(&self, bucket: &str, key: &str) -> Result<String, String> {
        let url = self.nats_url();
        self.runtime.block_on(async {
            let client = async_nats::connect(url).await.map_err(|error| told(&error))?;
            let bucket = async_nats::jetstream::new(client).get_key_value(bucket).await;
            let bucket = bucket.map_err(|error| told(&error))?;
            let value = bucket.get(key).await.map_err(|error| told(&error))?;
            let value = value.ok_or_else(|| format!("there is no entry {key}"))?;
            Ok::<_, String>(String::from_utf8_lossy(&value).into_owned())
        })
    }

    /// Runs what uses the streams of the server, as an administrator would.
    pub fn with_streams<T, F: Future<Output = T>>(
        &self,
        work: impl FnOnce(async_nats::jetstream::Context) -> F,
    ) -> T {
        let url = self.nats_url();
        self.runtime.block_on(async {
            let client = async_nats::connect(url).await.expect("connected");
            work(async_nats::jetstream::new(client)).await
        })
    }

    /// Publishes an event of an order of the tenant acme, and gives its place in the stream.
    pub fn publish(&self, kind: &str, key: &str, payload: &Value) -> u64 {
        let url = format!("http://{}/v1/tenants/acme/events", self.api);
        let answer = self.request("POST", &url, Some(&event(kind, key, payload)));
        let (status, text) = answer.expect("an answer");
        assert!(status.is_success(), "{kind} of {key}: {status} {text}");
        let stored: Value = serde_json::from_str(&text).expect("JSON");
        stored["sequence"].as_u64().expect("a sequence")
    }

    /// What the API says below the tenant acme, or `null` where it has no such thing.
    pub fn tenant(&self, path: &str) -> Value {
        self.json(&format!("http://{}/v1/tenants/acme/{path}", self.api))
    }

    /// What operators are told, or `null`.
    pub fn operator(&self, path: &str) -> Value {
        self.json(&format!("http://{}/{path}", self.admin))
    }

    fn json(&self, url: &str) -> Value {
        let (status, text) = self.request("GET", url, None).expect("an answer");
        let is_told = status.is_success() || status.as_u16() == 503;
        if is_told {
            serde_json::from_str(&text).expect("JSON")
        } else {
            Value::Null
        }
    }
}

/// The envelope of an event of an order. An order that is amended has been placed before.
pub fn event(kind: &str, key: &str, payload: &Value) -> Value {
    json!({
        "tenant_id": "acme",
        "event_id": format!("{kind}-{key}"),
        "event_type": kind,
        "aggregate_type": "Order",
        "aggregate_id": key,
        "sequence": if kind == "Placed" { 1 } else { 2 },
        "schema_version": 1,
        "payload": payload,
        "metadata": {"correlation_id": key},
    })
}
