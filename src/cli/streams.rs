//! `streams apply` and `streams check`.

use clap::Subcommand;

use super::ManifestArguments;
use super::exit::{self, Failure};
use crate::app;

#[derive(Debug, Subcommand)]
pub enum StreamsCommand {
    /// Create what is missing, update what belongs to the runner, and read back what the broker keeps.
    Apply(ManifestArguments),
    /// Compare and change nothing; exits with 1 where something differs.
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
        println!("{}: {}", line.stream, line.state);
        for difference in &line.differences {
            println!("  {difference}");
            differences += 1;
        }
    }
    if differences > 0 {
        return Err(Failure::new(
            exit::FINDINGS,
            format!(
                "{differences} difference(s); `saga-runner streams apply` cures those of the runner's own streams"
            ),
        ));
    }
    Ok(())
}
