//! `effect`: the effects of a running cluster, and the check of a worker.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::{Client, ServerArguments};
#[cfg(feature = "conformance")]
use super::conformance;
use super::output::{Column, OutputArguments, listed};
use crate::app::exit::Failure;

#[derive(Debug, Subcommand)]
pub enum EffectCommand {
    /// List the effects of a running process, and the consumers that deliver their commands.
    List(ListArguments),
    /// Check an effect worker, in any language, against the worker protocol; exits with 1 if a check fails.
    ///
    /// Publishes commands for the effect and checks results and acknowledgements. Use a dedicated nats-server: a runner on
    /// the same streams would treat the results as results of unknown commands.
    #[cfg(feature = "conformance")]
    #[command(after_help = "Example:\n  \
        saga-runner effect conformance --effect label-print --worker 'python worker.py' --input '{\"order\": \"{id}\"}'")]
    Conformance(conformance::ConformanceArguments),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

pub fn effect(command: EffectCommand) -> Result<(), Failure> {
    match command {
        EffectCommand::List(arguments) => list(&arguments),
        #[cfg(feature = "conformance")]
        EffectCommand::Conformance(arguments) => conformance::conformance(arguments),
    }
}

const COLUMNS: &[Column] = &[
    Column::value("EFFECT", "/name"),
    Column::value("EXTERNAL", "/external"),
    Column::value("CONSUMERS", "/consumers"),
    Column::number("PENDING", "/pending"),
    Column::number("UNACKNOWLEDGED", "/unacknowledged"),
];

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let info = Client::new(&arguments.server)?.get("/info")?;
    let consumers = info["consumers"].as_array().map_or(&[][..], Vec::as_slice);
    let mut items = Vec::new();
    for (list, external) in [("effects", false), ("external_effects", true)] {
        let names = info[list].as_array().into_iter().flatten();
        items.extend(names.filter_map(Value::as_str).map(|name| {
            // An effect has a consumer of its own, one for each tenant, or shares one that is not its own.
            let own = |consumer: &&Value| {
                let delivers = consumer["delivers"].as_str().unwrap_or_default();
                delivers == name
                    || delivers
                        .rsplit_once('/')
                        .is_some_and(|(_, effect)| effect == name)
            };
            let own: Vec<&Value> = consumers.iter().filter(own).collect();
            let sum = |count: &str| {
                let counts = own.iter().filter_map(|consumer| consumer[count].as_u64());
                (!own.is_empty()).then(|| counts.sum::<u64>())
            };
            json!({
                "name": name,
                "external": external,
                "consumers": own.iter().map(|consumer| &consumer["name"]).collect::<Vec<_>>(),
                "pending": sum("pending"),
                "unacknowledged": sum("unacknowledged"),
            })
        }));
    }
    arguments.output.list(COLUMNS, &listed(items))
}
