//! `consumers list` and `consumers delete`.

use clap::{Args, Subcommand};
use serde_json::json;

use super::ManifestArguments;
use crate::app;
use crate::app::consumers::Line;
use crate::app::exit::{self, Failure};
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum ConsumersCommand {
    /// List worker consumers and orphans; exits with 1 if any is misconfigured.
    List(ListArguments),
    /// Delete an orphaned consumer that no worker reads from.
    Delete(DeleteArguments),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    manifest: ManifestArguments,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct DeleteArguments {
    /// Name of the consumer.
    name: String,
    #[command(flatten)]
    manifest: ManifestArguments,
}

pub fn consumers(command: ConsumersCommand) -> Result<(), Failure> {
    match command {
        ConsumersCommand::List(arguments) => list(arguments),
        ConsumersCommand::Delete(arguments) => {
            let name = arguments.name;
            app::consumers::delete(&arguments.manifest.load(None)?, &name)?;
            out::line(format_args!("{name} deleted"))?;
            Ok(())
        }
    }
}

fn list(arguments: ListArguments) -> Result<(), Failure> {
    let lines = app::consumers::report(&arguments.manifest.load(None)?)?;
    if arguments.json {
        let all: Vec<_> = lines.iter().map(as_json).collect();
        let text = serde_json::to_string_pretty(&all).expect("lines are plain data");
        out::line(text)?;
    } else {
        for line in &lines {
            tell(line)?;
        }
    }
    let differences: usize = lines.iter().map(|line| line.differences.len()).sum();
    if differences > 0 {
        return Err(Failure::new(
            exit::FINDINGS,
            format!("{differences} difference(s) that prevent workers from receiving commands"),
        ));
    }
    Ok(())
}

fn tell(line: &Line) -> Result<(), Failure> {
    let mut said = vec![match &line.delivers {
        Some(brings) => format!("delivers {brings}"),
        None => "orphaned".to_owned(),
    }];
    if line.bound {
        said.push("bound".to_owned());
    }
    if line.external {
        said.push("external workers".to_owned());
    }
    said.push(match line.state {
        Some(state) => format!(
            "{} pending, {} unacknowledged",
            state.pending, state.unacknowledged
        ),
        None => "does not exist".to_owned(),
    });
    out::line(format_args!("{}: {}", line.name, said.join(", ")))?;
    for difference in &line.differences {
        out::line(format_args!("  {difference}"))?;
    }
    Ok(())
}

fn as_json(line: &Line) -> serde_json::Value {
    json!({
        "name": line.name,
        "delivers": line.delivers,
        "unused": line.delivers.is_none(),
        "filters": line.filters,
        "bound": line.bound,
        "external": line.external,
        "exists": line.state.is_some(),
        "pending": line.state.map(|state| state.pending),
        "unacknowledged": line.state.map(|state| state.unacknowledged),
        "differences": line.differences,
    })
}
