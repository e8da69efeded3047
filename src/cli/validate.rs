//! `validate`: every mistake of every file, with its place.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::app::SystemClock;
use crate::app::definitions::{self, Folders};
use crate::app::exit::{self, Failure};
use crate::app::{diagnostics, out};
use crate::config::{ConfigError, Manifest, Overrides};
use crate::kernel::definition::{Diagnostic, Loaded, Severity, SourceFile};
use crate::ports::clock::Clock as _;

#[derive(Debug, Args)]
pub struct ValidateArguments {
    /// A file or folder; a folder may hold `sagas/` and `effects/`, or definitions of either kind.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// How findings are printed.
    #[arg(short, long, visible_alias = "format", default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    /// Frames with excerpts, for people.
    Text,
    /// One JSON array on standard output.
    Json,
}

/// Next planned times that are shown of a schedule.
const TIMES_SHOWN: usize = 3;

pub fn validate(arguments: &ValidateArguments) -> Result<(), Failure> {
    let files = definitions::read(&Folders::Mixed(arguments.path.clone()))
        .map_err(|error| Failure::new(exit::NO_INPUT, error))?;
    let count = files.sagas.len() + files.effects.len() + files.manifests.len();
    if count == 0 {
        let path = arguments.path.display();
        return Err(Failure::new(
            exit::NO_INPUT,
            format!("{path}: there is no saga and no effect"),
        ));
    }
    let loaded = files.load();
    let texts = files.texts();
    let mut findings = loaded.findings();
    findings.extend(files.manifests.iter().filter_map(wrong_manifest));
    match arguments.output {
        Output::Json => {
            let json = serde_json::to_string_pretty(&findings).expect("findings are plain data");
            out::line(json)?;
        }
        Output::Text => {
            let color = diagnostics::coloured(&std::io::stdout());
            let frames = diagnostics::render(&findings, &|path| texts.get(path).cloned(), color);
            out::text(frames)?;
        }
    }
    let errors = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .count();
    if errors > 0 {
        return Err(Failure::new(
            exit::FINDINGS,
            format!("{errors} error(s) in {count} file(s)"),
        ));
    }
    tell_schedules(&loaded);
    out::note(format_args!(
        "{} saga(s) and {} effect(s) are well, {} warning(s)",
        loaded.sagas.len(),
        loaded.effects.len(),
        findings.len()
    ));
    Ok(())
}

/// What is wrong with a manifest first.
fn wrong_manifest(file: &SourceFile) -> Option<Diagnostic> {
    let error = Manifest::parse(&file.text, Path::new(&file.path), &Overrides::default()).err()?;
    let (line, column, message) = match &error {
        ConfigError::Syntax {
            line,
            column,
            message,
            ..
        } => (*line, *column, message.clone()),
        ConfigError::Invalid { place, message, .. } => {
            let (line, column) = place.unwrap_or_default();
            (line, column, message.clone())
        }
        other => (0, 0, other.to_string()),
    };
    let place = |number| usize::try_from(number).unwrap_or(0);
    Some(Diagnostic {
        code: error.code(),
        severity: Severity::Error,
        file: file.path.clone(),
        line: place(line),
        column: place(column),
        span: 0..0,
        message,
        help: None,
    })
}

/// An expression that is well need not be the one that was meant.
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
            "{} starts by the clock, next at {}",
            saga.name,
            shown.join(", ")
        ));
    }
}
