//! `validate`: every mistake of every file, with its place.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::diagnostics;
use super::exit::{self, Failure};
use crate::app::SystemClock;
use crate::app::definitions::{self, Folders};
use crate::kernel::definition::{Loaded, Severity};
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
    let loaded = files.load();
    let texts = files.texts();
    let findings = loaded.findings();
    match arguments.output {
        Output::Json => {
            let json = serde_json::to_string_pretty(&findings).expect("findings are plain data");
            println!("{json}");
        }
        Output::Text => {
            let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            let frames = diagnostics::render(&findings, &|path| texts.get(path).cloned(), color);
            print!("{frames}");
        }
    }
    let errors = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .count();
    if errors > 0 {
        return Err(Failure::new(
            exit::FINDINGS,
            format!(
                "{errors} error(s) in {} file(s)",
                files.sagas.len() + files.effects.len()
            ),
        ));
    }
    tell_schedules(&loaded);
    eprintln!(
        "{} saga(s) and {} effect(s) are well, {} warning(s)",
        loaded.sagas.len(),
        loaded.effects.len(),
        findings.len()
    );
    Ok(())
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
        eprintln!("{} starts by the clock, next at {}", saga.name, shown.join(", "));
    }
}
