//! Logs on standard error as JSON lines or for people. Payloads and secrets are never logged.

mod escape;

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
    let filter = filter(level)?;
    let is_coloured = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    let _started = match format {
        LogFormat::Json => builder
            .with_writer(std::io::stderr)
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .try_init(),
        LogFormat::Pretty => builder
            .with_writer(move || escape::Escaping {
                out: std::io::stderr(),
                is_coloured,
            })
            .compact()
            .with_ansi(is_coloured)
            .try_init(),
    };
    Ok(())
}

/// Whether `level` is a filter.
///
/// # Errors
/// A sentence where it is not.
pub fn check(level: &str) -> Result<(), String> {
    filter(level).map(drop)
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    // The storage engine tells of every file that it opens; who wants to know says so. At their lowest levels the clients of
    // NATS and of HTTP tell the bytes that they send and get, secrets among them: nobody may ask for those.
    let audit = if names_only_targets(level) {
        "audit=info,"
    } else {
        ""
    };
    EnvFilter::try_new(format!(
        "libmdbx=warn,{audit}{level},async_nats=info,ureq_proto=warn"
    ))
    .map_err(|error| format!("log.level: {error}"))
}

/// Whether a filter such as `saga_runner=debug` says nothing of other targets. The audit is then logged nevertheless: who asks for more
/// of the runner does not ask for less of that.
fn names_only_targets(level: &str) -> bool {
    let mut directives = level.split(',').map(str::trim).filter(|text| !text.is_empty());
    directives.all(|directive| directive.contains('=') && !directive.starts_with("audit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_filter_is_refused_with_its_key() {
        assert_eq!(check("info,saga_runner=debug"), Ok(()));
        let told = check("saga_runner=loud").expect_err("no level");
        assert!(told.starts_with("log.level: "), "{told}");
    }

    #[test]
    fn a_filter_of_targets_alone_keeps_the_audit() {
        for (level, kept) in [
            ("saga_runner=debug", true),
            ("saga_runner=debug,hyper=warn", true),
            ("info,saga_runner=debug", false),
            ("error", false),
            ("saga_runner=debug,audit=off", false),
        ] {
            assert_eq!(names_only_targets(level), kept, "{level}");
        }
    }
}
