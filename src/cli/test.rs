//! `test`: runs the test cases of definitions offline.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::output::{Column, OutputArguments};
use super::replay;
use crate::app::definitions::{self, Folders};
use crate::app::exit::{self, Failure};
use crate::app::{diagnostics, out};
use crate::kernel::definition::{Definition, Diagnostic, Severity, SourceFile};
use crate::offline::coverage::{Coverage, Covered};
use crate::offline::file::{self, Suite};
use crate::offline::suite::{self, CaseReport, Options};
use crate::offline::{history, report, update};

#[derive(Debug, Args)]
#[command(after_help = "Exits with 1 if a case fails. Examples:\n  \
    saga-runner test --filter refund\n  \
    saga-runner test --chaos --min-coverage 80 --junit report.xml\n  \
    saga-runner test . --from-history history.json > sagas/o-1.test.yaml")]
pub struct TestArguments {
    /// A `*.test.yaml` file, or a folder of them.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// Folder of the definitions; default: searched in PATH and above it.
    #[arg(long, value_name = "DIR")]
    definitions: Option<PathBuf>,
    /// Only cases whose name, or whose saga's name, contains TEXT.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Output format.
    #[arg(long, default_value = "pretty")]
    format: Format,
    /// Also write the results as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Overwrite failing expectations with the actual values.
    #[arg(long)]
    update: bool,
    /// Also run every case with each piece of its work failing in turn; each instance must end with nothing left to
    /// compensate.
    #[arg(long)]
    chaos: bool,
    /// Print the branches of the sagas that no case covers.
    #[arg(long)]
    coverage: bool,
    /// Fail if cases cover less than PERCENT of the branches of a saga; implies --coverage.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    min_coverage: Option<u8>,
    /// Convert a recorded history to a test file and print it: a file as `replay --history` reads it, or the URL of an
    /// instance's inputs.
    #[arg(long, value_name = "FILE|URL")]
    from_history: Option<String>,
}

/// A saga and the file that it stands in.
pub(super) type Sagas = BTreeMap<String, (Arc<Definition>, SourceFile)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line for each case and a frame for each finding, for people.
    Pretty,
    /// One JSON object on standard output.
    Json,
}

pub fn test(arguments: &TestArguments) -> Result<(), Failure> {
    if let Some(source) = &arguments.from_history {
        return print_case(source, arguments);
    }
    let no_input = |error: String| Failure::new(exit::NO_INPUT, error);
    let mut files = definitions::read_tests(&arguments.path).map_err(no_input)?;
    if files.is_empty() {
        let path = arguments.path.display();
        return Err(no_input(format!("{path}: no *.test.yaml files found")));
    }
    let sagas = load(&arguments.path, arguments.definitions.as_deref())?;
    let definitions = sagas
        .iter()
        .map(|(name, (definition, _))| (name.clone(), Arc::clone(definition)))
        .collect();
    let mut reports = play(&files, &definitions, arguments)?;
    if arguments.update && write_updates(&files, &reports)? {
        files = definitions::read_tests(&arguments.path).map_err(no_input)?;
        reports = play(&files, &definitions, arguments)?;
    }
    if let Some(path) = &arguments.junit {
        std::fs::write(path, report::junit(&reports)).map_err(|error| Failure::unwritten(path, error))?;
    }
    let wanted = arguments.coverage || arguments.min_coverage.is_some();
    let coverage = wanted.then(|| cover(&sagas, &reports, &arguments.path));
    print(&reports, coverage.as_deref(), &files, arguments.format)?;
    verdict(&reports, coverage.as_deref().unwrap_or_default(), arguments)
}

fn print_case(source: &str, arguments: &TestArguments) -> Result<(), Failure> {
    let failed = |why: String| Failure::new(exit::FINDINGS, format!("{source}: {why}"));
    let histories = replay::source(source)?;
    let [history] = &histories[..] else {
        return Err(failed(format!("{} instances, expected one", histories.len())));
    };
    let sagas = load(&arguments.path, arguments.definitions.as_deref())?;
    let saga = &history[0].saga;
    let (definition, _) = sagas
        .get(saga)
        .ok_or_else(|| failed(format!("no such saga: {saga}")))?;
    out::text(history::case(history, definition).map_err(failed)?)
}

fn verdict(reports: &[CaseReport], coverage: &[Coverage], arguments: &TestArguments) -> Result<(), Failure> {
    let failed = reports.iter().filter(|case| !case.passed()).count();
    if failed == 0 {
        out::note(format_args!("{} case(s) passed", reports.len()));
    }
    if arguments.chaos {
        let runs: usize = reports.iter().map(|case| case.chaos_runs).sum();
        let open = reports.iter().filter(|case| case.is_open).count();
        out::note(format_args!(
            "{runs} run(s) with injected failures; {open} case(s) end with the instance still running"
        ));
    }
    if failed > 0 {
        let message = format!("{failed} of {} case(s) failed", reports.len());
        return Err(Failure::new(exit::FINDINGS, message));
    }
    let min = arguments.min_coverage.unwrap_or(0);
    let below: Vec<&str> = coverage
        .iter()
        .filter(|saga| !saga.reaches(min))
        .map(|saga| saga.saga.as_str())
        .collect();
    if below.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        exit::FINDINGS,
        format!(
            "cases cover less than {min} % of the branches of {}",
            below.join(", ")
        ),
    ))
}

/// Measures the sagas that have cases, and those that stand below `path` without any.
fn cover(sagas: &Sagas, reports: &[CaseReport], path: &Path) -> Vec<Coverage> {
    let below = |file: &str| {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        absolute(Path::new(file)).starts_with(absolute(path))
    };
    let mut measured = Vec::new();
    for (name, (definition, file)) in sagas {
        let mut covered = Covered::new();
        let mut any = false;
        for case in reports {
            any |= case.saga == *name;
            let run = case.covered.get(&definition.name);
            covered.extend(run.into_iter().flatten().cloned());
        }
        if any || below(&file.path) {
            measured.push(Coverage::of(definition, file, &covered));
        }
    }
    measured
}

/// Loads the sagas around `path`, by name.
pub(super) fn load(path: &Path, definitions: Option<&Path>) -> Result<Sagas, Failure> {
    let folder = definitions.map_or_else(|| project(path), Path::to_owned);
    let files =
        definitions::read(&Folders::Mixed(folder)).map_err(|error| Failure::new(exit::NO_INPUT, error))?;
    let loaded = files.load();
    let errors = loaded
        .diagnostics
        .into_iter()
        .filter(|finding| finding.severity == Severity::Error)
        .collect::<Vec<_>>();
    if !errors.is_empty() {
        let all: Vec<SourceFile> = files.sagas.into_iter().chain(files.effects).collect();
        show(&errors, &all)?;
        return Err(Failure::new(
            exit::FINDINGS,
            format!("{} error(s) in the definitions", errors.len()),
        ));
    }
    // Every file of a saga that was loaded without an error makes one definition, in the same order.
    Ok(loaded
        .sagas
        .into_iter()
        .zip(files.sagas)
        .map(|(saga, file)| (saga.name.to_string(), (saga, file)))
        .collect())
}

/// The folder with `sagas/` or `effects/` that holds `path`, or its own folder.
fn project(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let own = if absolute.is_dir() {
        absolute.as_path()
    } else {
        absolute.parent().unwrap_or(&absolute)
    };
    let holds = |folder: &&Path| folder.join("sagas").is_dir() || folder.join("effects").is_dir();
    // A folder of both kinds needs no project around it; `sagas/` itself never holds its effects.
    let around = own.ancestors().take(PROJECT_LEVELS_MAX).find(holds);
    let folder = around.unwrap_or(own);
    // Shown as the user would name it.
    match std::env::current_dir().map(|here| folder.strip_prefix(here).map(Path::to_owned)) {
        Ok(Ok(relative)) if relative.as_os_str().is_empty() => PathBuf::from("."),
        Ok(Ok(relative)) => relative,
        Ok(Err(_)) | Err(_) => folder.to_owned(),
    }
}

/// How far above the tests a project is looked for, in folders.
const PROJECT_LEVELS_MAX: usize = 4;

fn play(
    files: &[SourceFile],
    definitions: &BTreeMap<String, Arc<Definition>>,
    arguments: &TestArguments,
) -> Result<Vec<CaseReport>, Failure> {
    let mut suites: Vec<Suite> = Vec::new();
    let mut findings = Vec::new();
    for file in files {
        match file::read(file) {
            Ok(suite) => suites.push(suite),
            Err(mut found) => findings.append(&mut found),
        }
    }
    if !findings.is_empty() {
        show(&findings, files)?;
        return Err(Failure::new(
            exit::FINDINGS,
            format!("{} error(s) in the test files", findings.len()),
        ));
    }
    let options = Options {
        filter: arguments.filter.clone(),
        chaos: arguments.chaos,
    };
    Ok(suites
        .iter()
        .flat_map(|suite| suite::run(suite, definitions, &options))
        .collect())
}

/// Writes the files whose expectations can be made true; whether there was one.
fn write_updates(files: &[SourceFile], reports: &[CaseReport]) -> Result<bool, Failure> {
    let mut any = false;
    for file in files {
        let cures: Vec<_> = reports
            .iter()
            .filter(|case| case.file == file.path)
            .flat_map(|case| case.cures.clone())
            .collect();
        if cures.is_empty() {
            continue;
        }
        any = true;
        std::fs::write(&file.path, update::apply(&file.text, cures))
            .map_err(|error| Failure::unwritten(Path::new(&file.path), error))?;
        out::note(format_args!("{} updated", file.path));
    }
    Ok(any)
}

fn print(
    reports: &[CaseReport],
    coverage: Option<&[Coverage]>,
    files: &[SourceFile],
    format: Format,
) -> Result<(), Failure> {
    if format == Format::Json {
        let json = report::json(reports, coverage);
        let json = serde_json::to_string_pretty(&json).expect("reports are plain data");
        return out::line(json);
    }
    for case in reports {
        let word = if case.passed() { "ok    " } else { "FAILED" };
        out::line(format_args!("{word} {}: {}", case.saga, case.name))?;
        show(&case.findings, files)?;
        if case.further > 0 {
            let further = case.further;
            out::line(format_args!(
                "and {further} finding(s) in later steps of the case, which may follow from these\n"
            ))?;
        }
    }
    if let Some(coverage) = coverage {
        print_coverage(coverage)?;
    }
    Ok(())
}

const COVERAGE: &[Column] = &[
    Column::value("SAGA", "/saga"),
    Column::number("BRANCHES", "/branches"),
    Column::number("RUN", "/run"),
    Column::number("%", "/percent"),
];

fn print_coverage(coverage: &[Coverage]) -> Result<(), Failure> {
    let row = |saga: &Coverage| json!({"saga": saga.saga, "branches": saga.branches, "run": saga.covered, "percent": saga.percent()});
    let rows: Vec<Value> = coverage.iter().map(row).collect();
    let table = OutputArguments::default().table(COVERAGE, &rows);
    out::line(format_args!("\n{table}"))?;
    for saga in coverage {
        for branch in &saga.uncovered {
            out::line(format_args!(
                "not run: {}:{}: {}",
                saga.file, branch.line, branch.branch
            ))?;
        }
    }
    Ok(())
}

fn show(findings: &[Diagnostic], files: &[SourceFile]) -> Result<(), Failure> {
    let color = diagnostics::coloured(&std::io::stdout());
    let text_of = |path: &str| {
        let file = files.iter().find(|file| file.path == path);
        file.map(|file| Arc::clone(&file.text))
    };
    out::text(diagnostics::render(findings, &text_of, color))
}
