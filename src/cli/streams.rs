//! `streams apply` and `streams check`.

use clap::Subcommand;

use super::ManifestArguments;
use crate::app;
use crate::app::exit::{self, Failure};
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum StreamsCommand {
    /// Create missing streams, update the runner's own, and compare all with the manifest; exits with 1 on differences.
    Apply(ManifestArguments),
    /// Compare streams with the manifest without changes; exits with 1 on differences.
    Check(ManifestArguments),
}

pub fn streams(command: StreamsCommand) -> Result<(), Failure> {
    let (arguments, change) = match command {
        StreamsCommand::Apply(arguments) => (arguments, true),
        StreamsCommand::Check(arguments) => (arguments, false),
    };
    let manifest = arguments.load(None)?;
    let report = app::streams::report(&manifest, change)?;
    let mut differences = 0;
    for line in &report {
        out::line(format_args!("{}: {}", line.stream, line.state))?;
        for difference in &line.differences {
            out::line(format_args!("  {difference}"))?;
            differences += 1;
        }
    }
    if differences > 0 {
        return Err(Failure::new(
            exit::FINDINGS,
            format!(
                "{differences} difference(s); `saga-runner streams apply` fixes those of the runner's own streams"
            ),
        ));
    }
    Ok(())
}
