//! Where spans are sent.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::clients::http_url;
use crate::kernel::duration::Millis;

/// Most spans that may wait: a span takes about a kilobyte.
const QUEUE_MAX: usize = 1_000_000;

/// What is told to systems that collect traces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetrySettings {
    /// Where spans are sent by OTLP over HTTP. Default: nowhere.
    pub otlp: Option<OtlpSettings>,
}

/// A collector of spans that speaks OTLP over HTTP, with protobuf.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtlpSettings {
    /// Its URL, to which `/v1/traces` is added if that is not its end.
    pub endpoint: String,
    /// File with a header in each line, `name: value`, which is sent with each request. Default: none.
    #[serde(default)]
    pub headers_file: Option<PathBuf>,
    /// Share of the traces whose spans are sent, 0 to 1. Default 1.
    #[serde(default = "all")]
    pub sample_ratio: f64,
    /// Spans that may wait to be sent; further ones are dropped and counted. Default 4,096.
    #[serde(default = "default_queue_max")]
    pub queue_max: usize,
    /// How long one request may take; its spans are dropped then. Default 10 s.
    #[serde(default = "default_timeout")]
    pub timeout: Millis,
}

const fn all() -> f64 {
    1.0
}

const fn default_queue_max() -> usize {
    4_096
}

const fn default_timeout() -> Millis {
    Millis::seconds(10)
}

impl TelemetrySettings {
    /// Whether there is a collector that can be sent to.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        let Some(otlp) = &self.otlp else {
            return Ok(());
        };
        if http_url(&otlp.endpoint).is_none() {
            return Err(format!(
                "telemetry.otlp.endpoint must be an http or https URL, found {:?}",
                otlp.endpoint
            ));
        }
        if !(0.0..=1.0).contains(&otlp.sample_ratio) {
            return Err("telemetry.otlp.sample_ratio must be 0 to 1".to_owned());
        }
        if !(1..=QUEUE_MAX).contains(&otlp.queue_max) {
            return Err(format!("telemetry.otlp.queue_max must be 1 to {QUEUE_MAX}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_without_a_url_and_numbers_out_of_range_are_refused() {
        let good = OtlpSettings {
            endpoint: "http://collector:4318".to_owned(),
            headers_file: None,
            sample_ratio: 0.1,
            queue_max: 1,
            timeout: default_timeout(),
        };
        let check = |otlp: OtlpSettings| TelemetrySettings { otlp: Some(otlp) }.check();
        assert_eq!(check(good.clone()), Ok(()));
        assert_eq!(TelemetrySettings::default().check(), Ok(()));
        for endpoint in [
            "collector:4318",
            "http://",
            "https:///v1/traces",
            "unix:///x",
            "http://collector:port",
            "http://a collector",
        ] {
            let endpoint = endpoint.to_owned();
            assert!(
                check(OtlpSettings {
                    endpoint,
                    ..good.clone()
                })
                .is_err()
            );
        }
        for bad in [
            OtlpSettings {
                sample_ratio: 1.1,
                ..good.clone()
            },
            OtlpSettings {
                sample_ratio: f64::NAN,
                ..good.clone()
            },
            OtlpSettings { queue_max: 0, ..good },
        ] {
            assert!(check(bad).is_err());
        }
    }
}
