//! `replay`: runs recorded histories again, against the same or another version of a definition.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};

use super::client::{Client, escaped};
use super::given;
use super::test;
use crate::app::exit::{self, Failure};
use crate::app::out;
use crate::kernel::definition::{self, Definition};
use crate::offline::history::{self, History};

#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 1 if a history diverges. Example: does the changed saga treat a live instance as before?\n  \
    saga-runner definition show 3f9a1c -o json > recorded.json\n  \
    saga-runner replay . --recorded recorded.json \\\n    \
    --from http://127.0.0.1:8080/v1/tenants/acme/sagas/order/instances/o-1/inputs"
)]
pub struct ReplayArguments {
    /// Definitions to replay against: a file or folder of a project.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// Recorded history: an answer of the API, or one input per line; `-` for standard input.
    #[arg(long, value_name = "FILE", required_unless_present = "from")]
    history: Option<PathBuf>,
    /// Fetch the history from a runner: http://HOST/v1/tenants/T/sagas/S/instances/K/inputs
    #[arg(long, value_name = "URL", conflicts_with = "history")]
    from: Option<String>,
    /// Version under which the history was recorded, as printed by `definition show -o json`: both versions are run, and their
    /// work is compared.
    #[arg(long, value_name = "FILE")]
    recorded: Option<PathBuf>,
}

pub fn replay(arguments: &ReplayArguments) -> Result<(), Failure> {
    let histories = match (&arguments.from, &arguments.history) {
        (Some(url), _) => parse(url, &fetch(url)?)?,
        (None, Some(file)) => read(file)?,
        (None, None) => Vec::new(),
    };
    let sagas = test::load(&arguments.path, None)?;
    let recorded = arguments.recorded.as_deref().map(archived).transpose()?;
    let mut diverged = 0;
    for history in &histories {
        let first = &history[0];
        let name = format!("{}/{}", first.saga, first.key);
        let failed = |why: String| Failure::new(exit::FINDINGS, format!("{name}: {why}"));
        let (definition, _) = sagas
            .get(&first.saga)
            .ok_or_else(|| failed(format!("no such saga: {}", first.saga)))?;
        match history::replay(history, recorded.as_ref(), definition).map_err(failed)? {
            None => out::line(format_args!("ok       {name}: {} input(s)", history.len()))?,
            Some(found) => {
                diverged += 1;
                out::line(format_args!(
                    "DIVERGES {name}: at input {} ({})",
                    found.input, found.what
                ))?;
                out::line(found.difference)?;
            }
        }
    }
    if diverged > 0 {
        let message = format!("{diverged} of {} instance(s) diverge", histories.len());
        return Err(Failure::new(exit::FINDINGS, message));
    }
    out::note(format_args!("{} instance(s) replayed", histories.len()));
    Ok(())
}

/// Histories of a file, or of a URL that begins with http.
pub fn source(text: &str) -> Result<Vec<History>, Failure> {
    if text.starts_with("http://") || text.starts_with("https://") {
        parse(text, &fetch(text)?)
    } else {
        read(Path::new(text))
    }
}

fn read(file: &Path) -> Result<Vec<History>, Failure> {
    parse(&file.display().to_string(), &given::read(file)?)
}

fn parse(name: &str, text: &str) -> Result<Vec<History>, Failure> {
    history::read(text).map_err(|error| Failure::new(exit::NO_INPUT, format!("{name}: {error}")))
}

/// All pages of what the API answers.
fn fetch(url: &str) -> Result<String, Failure> {
    let client = Client::at(url)?;
    let mut inputs = Vec::new();
    let mut after = String::new();
    loop {
        let mut page = client.get(&format!("?limit=500{after}"))?;
        inputs.extend(
            page["inputs"]
                .as_array_mut()
                .map(std::mem::take)
                .unwrap_or_default(),
        );
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", escaped(next)),
            None => return Ok(json!({"inputs": inputs}).to_string()),
        }
    }
}

/// The text that the cluster keeps: of an answer about a version, else all that the file has.
fn kept(text: String) -> String {
    match serde_json::from_str(&text) {
        Ok(Value::Object(mut answer)) if answer.contains_key("hash") => match answer.remove("source") {
            Some(Value::String(source)) => source,
            _ => text,
        },
        _ => text,
    }
}

fn archived(file: &Path) -> Result<Arc<Definition>, Failure> {
    let name = file.display();
    let text = given::read(file)?;
    definition::compile_archived(&kept(text))
        .map(Arc::new)
        .map_err(|findings| {
            let first = findings.first().map(ToString::to_string).unwrap_or_default();
            Failure::new(exit::FINDINGS, format!("{name}: {first}"))
        })
}
