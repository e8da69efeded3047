//! A runner with a provider of its own: `custom: {provider: line-printer, with: {text: ...}}` in an effect file writes a
//! line to a file, once for each idempotency key.
//!
//!     LINES=/tmp/lines cargo run --example custom_provider -- run --config config/saga-runner.yaml

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use saga_runner::app::Registry;
use saga_runner::effects::certainty::SideEffects;
use saga_runner::effects::provider::{CallContext, CallFailure, CallOutcome, Provider};
use saga_runner::kernel::json::Json;

/// Appends lines to one file.
struct LinePrinter {
    path: PathBuf,
    /// One line at a time: reading and appending belong together.
    turn: tokio::sync::Mutex<()>,
}

impl LinePrinter {
    /// The number of the line, which is the same however often one key comes.
    fn print(&self, key: &str, text: &str) -> std::io::Result<usize> {
        let mut lines = match std::fs::read_to_string(&self.path) {
            Ok(lines) => lines,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let (prefix, line) = (format!("{key} "), format!("{key} {text}\n"));
        if let Some(at) = lines.lines().position(|line| line.starts_with(&prefix)) {
            return Ok(at + 1);
        }
        lines.push_str(&line);
        std::fs::write(&self.path, &lines)?;
        Ok(lines.lines().count())
    }
}

#[async_trait]
impl Provider for LinePrinter {
    async fn call(&self, call: &CallContext<'_>) -> CallOutcome {
        let Some(Json::Str(text)) = call.input.get("text") else {
            // Nothing was written, and nothing will be.
            return CallOutcome::Failed(CallFailure::not_done("text.missing", "`with` has no text"));
        };
        let _turn = self.turn.lock().await;
        match self.print(&call.command.metadata.idempotency_key, text) {
            Ok(line) => CallOutcome::Succeeded {
                payload: format!("{{\"line\": {line}}}").into_bytes(),
            },
            // It may be in the file. `transient` is tried again, with the same key.
            Err(error) => CallOutcome::Failed(CallFailure::unanswered("transient", error.to_string())),
        }
    }

    fn side_effects(&self) -> SideEffects {
        SideEffects::Possible
    }

    /// No other process is called, so there is no breaker.
    fn upstream(&self) -> Option<String> {
        None
    }
}

/// The providers of this runner.
pub fn registry(path: PathBuf) -> Registry {
    Registry::default().with("line-printer", move |_definition| {
        let turn = tokio::sync::Mutex::new(());
        let path = path.clone();
        Ok(Arc::new(LinePrinter { path, turn }) as Arc<dyn Provider>)
    })
}

#[allow(dead_code, reason = "the test of this example has a main of its own")]
fn main() -> ExitCode {
    let path = std::env::var_os("LINES").unwrap_or_else(|| "lines.txt".into());
    saga_runner::cli::main_with(registry(path.into()))
}
