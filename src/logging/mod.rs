//! Logs on standard error as JSON lines or for people. Payloads and secrets are never logged.

use std::io::IsTerminal as _;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// How a line of the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Pretty,
}

/// Starts logging for the process. A second call has no effect.
///
/// # Errors
/// A sentence where `level` is not a filter.
pub fn start(format: LogFormat, level: &str) -> Result<(), String> {
    // The storage engine tells of every file that it opens; who wants to know says so. At their lowest levels the clients of
    // NATS and of HTTP tell the bytes that they send and get, secrets among them: nobody may ask for those.
    let filter = EnvFilter::try_new(format!("libmdbx=warn,{level},async_nats=info,ureq_proto=warn"))
        .map_err(|error| format!("log.level: {error}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let _started = match format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .try_init(),
        LogFormat::Pretty => builder
            .compact()
            .with_ansi(std::io::stderr().is_terminal())
            .try_init(),
    };
    Ok(())
}
