//! `validate`: prints every error of every file, with its location.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::json;

use super::manifest::alone;
use super::output::{Format, OutputArguments};
use crate::app::SystemClock;
use crate::app::definitions::{self, Files, Folders};
use crate::app::exit::{self, Failure};
use crate::app::watched::{LOOK_EVERY, Watched};
use crate::app::{diagnostics, out};
use crate::config::{ConfigError, Manifest, Overrides};
use crate::kernel::definition::{Diagnostic, Loaded, Severity, SourceFile, codes};
use crate::ports::clock::Clock as _;

#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 1 if there is an error. For programs, findings are a list without anything around it."
)]
pub struct ValidateArguments {
    /// File or folder; a folder may have `sagas/` and `effects/`, or definitions of either kind.
    #[arg(default_value = ".")]
    path: PathBuf,
    #[command(flatten)]
    output: OutputArguments,
    /// Treat warnings as errors, except for files without schemas (SR0179).
    #[arg(long)]
    deny_warnings: bool,
    /// Check again whenever a file changes; with `-o json`, print an array in one line each time.
    #[arg(long)]
    watch: bool,
}

/// Most warnings that are shown beside errors, a line each.
const WARNINGS_SHOWN: usize = 10;
/// Most files without schemas that are named.
const UNTYPED_NAMED: usize = 5;
/// Next planned times that are shown of a schedule.
const TIMES_SHOWN: usize = 3;

pub fn validate(arguments: &ValidateArguments) -> Result<(), Failure> {
    if arguments.watch {
        return watch(arguments);
    }
    let files = definitions::read(&Folders::Mixed(arguments.path.clone()));
    check(arguments, &readable(files)?)
}

fn readable(files: Result<Files, String>) -> Result<Files, Failure> {
    files.map_err(|error| Failure::new(exit::NO_INPUT, error))
}

/// Checks the files again whenever they have changed, until it is interrupted.
fn watch(arguments: &ValidateArguments) -> Result<(), Failure> {
    let mut watched = Watched::default();
    let mut is_first = true;
    loop {
        let files = definitions::read(&Folders::Mixed(arguments.path.clone()));
        if watched.have_changed(&files) {
            if !std::mem::take(&mut is_first) {
                out::note("");
            }
            let checked = readable(files).and_then(|files| check(arguments, &files));
            if let Err(failure) = checked {
                if failure.code == exit::IO {
                    return Err(failure);
                }
                out::note(&failure);
            }
            if out::is_unread() {
                return Ok(());
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Tells what is wrong with the files.
fn check(arguments: &ValidateArguments, files: &Files) -> Result<(), Failure> {
    let count = files.sagas.len() + files.effects.len() + files.manifests.len();
    if count == 0 {
        return Err(Failure::unread(&arguments.path, "no sagas or effects found"));
    }
    let loaded = files.load();
    let mut texts = files.texts();
    let mut findings = loaded.findings();
    for file in &files.manifests {
        findings.extend(wrong_manifest(file, &mut texts));
    }
    let (errors, others): (Vec<Diagnostic>, Vec<Diagnostic>) = findings
        .iter()
        .cloned()
        .partition(|finding| finding.severity == Severity::Error);
    let (untyped, warnings): (Vec<Diagnostic>, Vec<Diagnostic>) = others
        .into_iter()
        .partition(|finding| finding.code == codes::UNTYPED);
    match arguments.output.format() {
        // For programs one array at a time, regardless of what follows.
        Format::Json if arguments.watch => out::line(json!(findings))?,
        Format::Jsonl => findings
            .iter()
            .try_for_each(|finding| out::line(json!(finding)))?,
        Format::Json | Format::Yaml => arguments.output.document(&json!(findings))?,
        Format::Table | Format::Wide => {
            let color = diagnostics::coloured(&std::io::stdout());
            let framed = |findings: &[Diagnostic]| {
                diagnostics::render(findings, &|path| texts.get(path).cloned(), color)
            };
            let in_lines = !errors.is_empty() && !arguments.deny_warnings;
            out::text(tell_untyped(&untyped))?;
            out::text(if in_lines {
                in_short(&warnings)
            } else {
                framed(&warnings)
            })?;
            out::text(framed(&errors))?;
        }
    }
    let denied = if arguments.deny_warnings {
        warnings.len()
    } else {
        0
    };
    if errors.len() + denied > 0 {
        let warnings = match denied {
            0 => String::new(),
            denied => format!(" and {denied} warning(s)"),
        };
        let message = format!("{} error(s){warnings} in {count} file(s)", errors.len());
        return Err(Failure::new(exit::FINDINGS, message));
    }
    tell_schedules(&loaded);
    out::note(format_args!(
        "{} and {} are valid, {}",
        counted(loaded.sagas.len(), "saga"),
        counted(loaded.effects.len(), "effect"),
        counted(findings.len(), "warning")
    ));
    Ok(())
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// All files without schemas in one line: each is complete, and other findings are to be seen.
fn tell_untyped(untyped: &[Diagnostic]) -> String {
    let [first, ..] = untyped else {
        return String::new();
    };
    let named = untyped.iter().take(UNTYPED_NAMED).map(|finding| &*finding.file);
    let mut files: Vec<&str> = named.collect();
    let others = format!("{} other(s)", untyped.len() - files.len());
    if untyped.len() > files.len() {
        files.push(&others);
    }
    format!(
        "warning[{}]: expressions of {} file(s) without schemas are not type-checked: {}\n\n",
        first.code,
        untyped.len(),
        files.join(", ")
    )
}

/// Warnings in a line each, so that the errors behind them are seen.
fn in_short(warnings: &[Diagnostic]) -> String {
    let mut out = String::new();
    for warning in warnings.iter().take(WARNINGS_SHOWN) {
        let Diagnostic {
            code,
            file,
            line,
            column,
            message,
            ..
        } = warning;
        out.push_str(&diagnostics::plain(&format!(
            "warning[{code}]: {file}:{line}:{column}: {message}"
        )));
        out.push('\n');
    }
    if warnings.len() > WARNINGS_SHOWN {
        let more = warnings.len() - WARNINGS_SHOWN;
        let told = format_args!("and {more} more warning(s), shown once there are no errors\n");
        let _infallible = out.write_fmt(told);
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

/// What is wrong with a manifest; excerpts of it are from `texts` then, which have no secrets.
fn wrong_manifest(file: &SourceFile, texts: &mut BTreeMap<String, Arc<str>>) -> Vec<Diagnostic> {
    match Manifest::parse(&file.text, Path::new(&file.path), &Overrides::default()) {
        Ok(_) => Vec::new(),
        Err(ConfigError::Wrong {
            findings,
            texts: masked,
        }) => {
            texts.remove(&file.path);
            texts.extend(masked);
            findings
        }
        Err(error) => vec![alone(Path::new(&file.path), &error)],
    }
}

/// Shows the next planned times: a valid cron expression need not be the intended one.
fn tell_schedules(loaded: &Loaded) {
    let now = SystemClock::new().now();
    for saga in &loaded.sagas {
        let Some(schedule) = &saga.schedule else {
            continue;
        };
        let times = std::iter::successors(schedule.next(now), |time| schedule.next(*time));
        let shown: Vec<String> = times
            .take(TIMES_SHOWN)
            .map(|time| schedule.zone.shown(time))
            .collect();
        out::note(format_args!(
            "{} is scheduled, next at {}",
            saga.name,
            shown.join(", ")
        ));
    }
}
