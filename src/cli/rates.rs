//! `rates`: what a process did in the last hour, minute by minute.

use clap::Args;
use serde_json::Value;

use super::client::{Client, ServerArguments};
use super::output::{Column, Format, OutputArguments, listed};
use crate::app::exit::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  saga-runner rates --minutes 10
  saga-runner rates --effects -o json
  saga-runner rates --upstreams

Numbers are those of one process since its start, at most an hour, and not per second: a minute has what happened in it. The last
minute is under way. Durations are estimates by the buckets of saga_runner_effect_call_seconds.")]
pub struct RatesArguments {
    /// Print only so many of the last minutes, at most 60.
    #[arg(long, value_name = "COUNT", default_value_t = 60)]
    minutes: usize,
    /// Print a row for each effect, over all minutes that are kept.
    #[arg(long, conflicts_with = "minutes")]
    effects: bool,
    /// Print a row for each upstream that effects call, over all minutes that are kept.
    #[arg(long, conflicts_with_all = ["minutes", "effects"])]
    upstreams: bool,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

const MINUTES: &[Column] = &[
    Column::value("AT", "/at"),
    Column::number("EVENTS", "/inputs/event"),
    Column::number("RESULTS", "/inputs/result"),
    Column::number("TIMERS", "/inputs/timer"),
    Column::number("CONTROLS", "/inputs/control").wide(),
    Column::number("APPLIED", "/transitions"),
    Column::number("STARTED", "/instances_started"),
    Column::number("ENDED", "/instances_ended"),
    Column::number("DEAD", "/dead_letters"),
    Column::number("CALLS", "/calls/count"),
    Column::number("FAILED", "/calls/failed"),
    Column::told("P50", |minute| duration(&minute["calls"]["p50_seconds"])),
    Column::told("P99", |minute| duration(&minute["calls"]["p99_seconds"])),
    Column::number("SECONDS", "/seconds").wide(),
];

const EFFECTS: &[Column] = &[
    Column::value("EFFECT", "/effect"),
    Column::number("CALLS", "/count"),
    Column::number("FAILED", "/failed"),
    Column::told("P50", |effect| duration(&effect["p50_seconds"])),
    Column::told("P99", |effect| duration(&effect["p99_seconds"])),
];

const UPSTREAMS: &[Column] = &[
    Column::value("UPSTREAM", "/upstream"),
    Column::number("CALLS", "/count"),
    Column::number("FAILED", "/failed"),
    Column::told("P50", |upstream| duration(&upstream["p50_seconds"])),
    Column::told("P99", |upstream| duration(&upstream["p99_seconds"])),
];

/// In the unit that leaves the fewest digits.
fn duration(seconds: &Value) -> String {
    match seconds.as_f64() {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.01 => format!("{:.1}ms", seconds * 1_000.0),
        Some(seconds) if seconds < 1.0 => format!("{:.0}ms", seconds * 1_000.0),
        Some(seconds) => format!("{seconds:.1}s"),
    }
}

pub fn rates(arguments: &RatesArguments) -> Result<(), Failure> {
    let mut answer = Client::new(&arguments.server)?.get("/admin/rates")?;
    let is_document = matches!(arguments.output.format(), Format::Json | Format::Yaml);
    if arguments.effects {
        let effects = answer["total"]["effects"].as_array().cloned().unwrap_or_default();
        return arguments.output.list(EFFECTS, &listed(effects));
    }
    if arguments.upstreams {
        let upstreams = answer["total"]["upstreams"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        return arguments.output.list(UPSTREAMS, &listed(upstreams));
    }
    if let Some(items) = answer["items"].as_array_mut() {
        items.drain(..items.len().saturating_sub(arguments.minutes));
    }
    if is_document {
        return arguments.output.document(&answer);
    }
    arguments.output.list(MINUTES, &answer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_have_the_unit_that_suits_them() {
        for (seconds, shown) in [
            (json!(null), "-"),
            (json!(0.0004), "0.4ms"),
            (json!(0.25), "250ms"),
            (json!(1.25), "1.2s"),
            (json!(30), "30.0s"),
        ] {
            assert_eq!(duration(&seconds), shown);
        }
    }
}
