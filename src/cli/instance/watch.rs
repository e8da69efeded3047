//! `instance watch`: a line for each thing that happens to an instance, as it happens.

use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::NameArguments;
use crate::app::diagnostics::plain;
use crate::app::exit::{self, Failure};
use crate::app::out;
use crate::cli::client::Client;
use crate::cli::notes;
use crate::cli::server_events::ServerEvent;

/// How often a broken watch is begun again without anything new.
const RESUMES_MAX: u32 = 20;
/// Pause before a broken watch is begun again.
const RESUME_AFTER: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub struct WatchArguments {
    /// Begin with this many earlier entries, at most 1000.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u16).range(..=1_000))]
    newest: u16,
    #[command(flatten)]
    name: NameArguments,
}

/// Watches until the instance has ended, or nobody reads; also over a restart of the runner.
pub fn watch(arguments: &WatchArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.name.common.server)?;
    let path = format!(
        "{}/events?newest={}",
        arguments.name.path(&client)?,
        arguments.newest
    );
    let mut last = None;
    let mut broken = 0;
    loop {
        let before = last.clone();
        let mut is_over = false;
        let streamed = client.events(&path, before.as_deref(), |event| {
            if let Some(id) = event.id.clone() {
                last = Some(id);
            }
            show(arguments, event)?;
            is_over = event.name == "end" || out::is_unread();
            Ok(if is_over {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        });
        match streamed {
            Ok(()) if is_over => return Ok(()),
            // It begins again behind the last entry.
            Ok(()) => {}
            Err(failure) if failure.code == exit::UNAVAILABLE && (last.is_some() || broken > 0) => {}
            Err(failure) => {
                arguments.name.explain(&client, &failure);
                return Err(failure);
            }
        }
        broken = if last == before { broken + 1 } else { 1 };
        if broken > RESUMES_MAX {
            return Err(Failure::new(
                exit::UNAVAILABLE,
                "the watch ends again and again: no runner answers",
            ));
        }
        std::thread::sleep(RESUME_AFTER);
    }
}

fn show(arguments: &WatchArguments, event: &ServerEvent) -> Result<(), Failure> {
    let data: Value = serde_json::from_str(&event.data).map_err(Failure::software)?;
    if !arguments.name.common.output.is_for_people() {
        return out::line(&data);
    }
    let text = |key: &str| data[key].as_str().unwrap_or_default();
    if event.name == "end" {
        return out::line(format_args!("{}  ended: {}", text("ended"), text("phase")));
    }
    let (time, kind, outcome) = (text("time"), text("kind"), text("outcome"));
    let line = format!("{time}  {outcome:<10} {kind}  {}", notes::told(&data));
    out::line(plain(line.trim_end()))
}
