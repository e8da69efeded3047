//! Entries with compare-and-set: the streams that NATS itself calls key-value buckets, so that its tools read them.
//!
//! Reads go to the stream's leader: what a replica answers may be older than the write before.

use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::ports::broker::{
    BrokerError, BucketSpec, Entry, PublishError, PutError, check_bucket_name, check_entry_key,
    check_entry_value,
};

use super::api::StreamInfo;
use super::error::ApiError;
use super::link::Link;
use super::publish::Publisher;
use super::streams::{Config, compare};

/// How often one write is sent, where its outcome is unknown or a removed entry is in its way.
const WRITES_MAX: usize = 4;

/// How long a read waits before it asks again.
const READ_AGAIN: Duration = Duration::from_millis(50);

/// What the newest message of a key says.
struct Newest {
    sequence: u64,
    /// Absent where the message says that the entry was removed.
    value: Option<Bytes>,
}

pub(super) async fn ensure(link: &Link, spec: &BucketSpec) -> Result<(), BrokerError> {
    let stream = stream_of(&spec.name)?;
    let failed = |error: ApiError| error.into_broker_error(&stream);
    let (verb, config) = match link.stream_info(&stream).await {
        Ok(info) if compare(required(spec), &info.config).is_empty() => return Ok(()),
        Ok(mut info) => {
            info.config.extend(required(spec));
            ("UPDATE", info.config)
        }
        Err(ApiError::Failed(failure)) if failure.no_stream() => ("CREATE", required(spec)),
        Err(error) => return Err(failed(error)),
    };
    let _: Value = link
        .api(&format!("STREAM.{verb}.{stream}"), &Value::Object(config))
        .await
        .map_err(failed)?;
    let info = link.stream_info(&stream).await.map_err(failed)?;
    let differences = compare(required(spec), &info.config);
    if differences.is_empty() {
        return Ok(());
    }
    Err(BrokerError::Mismatch { stream, differences })
}

pub(super) async fn check(link: &Link, spec: &BucketSpec) -> Result<Vec<String>, BrokerError> {
    let stream = stream_of(&spec.name)?;
    let info: StreamInfo = link
        .stream_info(&stream)
        .await
        .map_err(|error| error.into_broker_error(&stream))?;
    Ok(compare(required(spec), &info.config))
}

pub(super) async fn entry(link: &Link, bucket: &str, key: &str) -> Result<Option<Entry>, BrokerError> {
    let newest = newest(link, bucket, key).await?;
    Ok(newest.and_then(|Newest { sequence, value }| {
        value.map(|value| Entry {
            revision: sequence,
            value,
        })
    }))
}

pub(super) async fn put(
    link: &Link,
    publisher: &Publisher,
    bucket: &str,
    key: &str,
    value: Bytes,
    expected: Option<u64>,
) -> Result<u64, PutError> {
    let refused = |error: BrokerError| PutError::Refused(error.to_string());
    let (stream, subject) = (
        stream_of(bucket).map_err(refused)?,
        subject_of(bucket, key).map_err(refused)?,
    );
    check_entry_value(&value).map_err(PutError::Refused)?;
    let mut last = expected.unwrap_or(0);
    let mut unknown = None;
    for _ in 0..WRITES_MAX {
        let written = publisher
            .replace(link, &stream, subject.clone(), value.clone(), last)
            .await;
        match written {
            Ok(revision) => return Ok(revision),
            Err(PublishError::Refused(why)) => {
                return Err(unknown.map_or(PutError::Refused(why), PutError::Unknown));
            }
            Err(PublishError::Unavailable(why)) => {
                return Err(unknown.map_or(PutError::Unavailable(why), PutError::Unknown));
            }
            Err(PublishError::Unknown(why)) => unknown = Some(why),
            Err(PublishError::AlreadyThere) => {}
        }
        let found = match (&unknown, read_back(link, bucket, key).await) {
            (_, Ok(found)) => found,
            (Some(why), Err(error)) => {
                return Err(PutError::Unknown(format!(
                    "{why}; reading it back failed: {error}"
                )));
            }
            (None, Err(_)) => return Err(PutError::Conflict),
        };
        match found {
            Some(found)
                if unknown.is_some() && found.sequence > last && found.value.as_ref() == Some(&value) =>
            {
                return Ok(found.sequence);
            }
            // Not stored yet. It may still arrive, and then the next one meets it.
            found if found.as_ref().map_or(0, |found| found.sequence) == last => {}
            // To create what was removed is to write behind the word of that.
            Some(Newest {
                sequence,
                value: None,
            }) if expected.is_none() => last = sequence,
            _ => return Err(PutError::Conflict),
        }
    }
    Err(unknown.map_or(PutError::Conflict, PutError::Unknown))
}

/// Reads what a write has left, also behind a connection that is made again meanwhile.
async fn read_back(link: &Link, bucket: &str, key: &str) -> Result<Option<Newest>, BrokerError> {
    let deadline = Instant::now() + link.request_timeout;
    loop {
        match newest(link, bucket, key).await {
            Err(BrokerError::Unavailable(_)) if Instant::now() < deadline => {
                tokio::time::sleep(READ_AGAIN).await;
            }
            outcome => return outcome,
        }
    }
}

async fn newest(link: &Link, bucket: &str, key: &str) -> Result<Option<Newest>, BrokerError> {
    #[derive(Deserialize)]
    struct Found {
        message: Stored,
    }
    #[derive(Deserialize)]
    struct Stored {
        seq: u64,
        /// Base64, as are the headers.
        #[serde(default)]
        data: String,
        #[serde(default)]
        hdrs: String,
    }
    let (stream, subject) = (stream_of(bucket)?, subject_of(bucket, key)?);
    let body = json!({ "last_by_subj": subject });
    let found: Found = match link.api(&format!("STREAM.MSG.GET.{stream}"), &body).await {
        Ok(found) => found,
        Err(ApiError::Failed(failure)) if failure.no_message() => return Ok(None),
        Err(error) => return Err(error.into_broker_error(&stream)),
    };
    let decode = |text: &str| {
        BASE64
            .decode(text.as_bytes())
            .map_err(|error| BrokerError::Refused(format!("{stream}: an entry that cannot be read: {error}")))
    };
    let headers = decode(&found.message.hdrs)?;
    // `KV-Operation: DEL` or `PURGE`.
    let is_removed = String::from_utf8_lossy(&headers)
        .lines()
        .any(|line| line.to_ascii_lowercase().starts_with("kv-operation:"));
    Ok(Some(Newest {
        sequence: found.message.seq,
        value: if is_removed {
            None
        } else {
            Some(Bytes::from(decode(&found.message.data)?))
        },
    }))
}

fn stream_of(bucket: &str) -> Result<String, BrokerError> {
    check_bucket_name(bucket).map_err(BrokerError::Refused)?;
    Ok(format!("KV_{bucket}"))
}

fn subject_of(bucket: &str, key: &str) -> Result<String, BrokerError> {
    check_entry_key(key).map_err(BrokerError::Refused)?;
    Ok(format!("$KV.{bucket}.{key}"))
}

/// The settings that make a stream a bucket whose entries neither age nor give way.
fn required(spec: &BucketSpec) -> Config {
    let value = json!({
        "name": format!("KV_{}", spec.name),
        "subjects": [format!("$KV.{}.>", spec.name)],
        "retention": "limits",
        "discard": "new",
        "discard_new_per_subject": false,
        "storage": "file",
        "num_replicas": spec.replicas,
        "max_age": 0,
        "max_msgs_per_subject": 1,
        "allow_direct": true,
        "allow_rollup_hdrs": true,
        "deny_delete": true,
        "no_ack": false,
        "sealed": false,
    });
    match value {
        Value::Object(config) => config,
        _ => Config::new(),
    }
}
