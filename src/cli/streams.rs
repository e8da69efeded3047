//! `streams apply` and `streams check`.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use serde_json::json;

use super::manifest::ManifestArguments;
use super::output::{Column, Mood, OutputArguments, listed};
use crate::app;
use crate::app::exit::{self, Failure};

#[derive(Debug, Subcommand)]
pub enum StreamsCommand {
    /// Create missing streams, update the runner's own, and compare all with the manifest; exits with 1 on differences.
    Apply(StreamsArguments),
    /// Compare streams with the manifest without changes; exits with 1 on differences.
    Check(StreamsArguments),
}

#[derive(Debug, Args)]
pub struct StreamsArguments {
    #[command(flatten)]
    manifest: ManifestArguments,
    #[command(flatten)]
    output: OutputArguments,
}

const COLUMNS: &[Column] = &[
    Column::value("NAME", "/name"),
    Column::value("STATE", "/state").judged(|state| match state {
        "does not exist" => Mood::Bad,
        _ => Mood::Plain,
    }),
    Column::number("MESSAGES", "/messages"),
    Column::number("BYTES", "/bytes"),
    Column::number("FIRST", "/first_sequence"),
    Column::number("LAST", "/last_sequence"),
    Column::length("DIFFERENCES", "/differences"),
];

pub fn streams(command: StreamsCommand) -> Result<(), Failure> {
    let (arguments, change) = match command {
        StreamsCommand::Apply(arguments) => (arguments, true),
        StreamsCommand::Check(arguments) => (arguments, false),
    };
    let report = app::streams::report(&arguments.manifest.load()?, change)?;
    let items: Vec<_> = report.iter().map(|line| json!(line)).collect();
    arguments.output.list(COLUMNS, &listed(items))?;
    let mut frames = String::new();
    for line in &report {
        for difference in &line.differences {
            let _infallible = writeln!(frames, "{}: {difference}", line.name);
        }
    }
    let differences: usize = report.iter().map(|line| line.differences.len()).sum();
    if differences > 0 {
        let message = format!(
            "{differences} difference(s); `saga-runner streams apply` fixes those of the runner's own streams"
        );
        return Err(Failure {
            frames,
            ..Failure::new(exit::FINDINGS, message)
        });
    }
    Ok(())
}
