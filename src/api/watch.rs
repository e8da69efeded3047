//! Waiting for an instance, and watching what happens to it as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::Value;

use super::ApiState;
use super::extract::{self, Names, Parameters};
use super::problem::Problem;
use super::requests;
use crate::ports::control::{Awaited, Happened};

/// How often a quiet stream says that it lives. A client that does not take that is cut off after `http.answer_timeout`.
pub const HEARTBEAT: Duration = Duration::from_secs(15);
/// Names the last event that a client has.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Entries of before that a watch begins with, where the request does not say.
const NEWEST_DEFAULT: usize = 100;
/// Most of them.
const NEWEST_MAX: usize = 1_000;

/// `?for=...&wait=...&generation=...`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReachParameters {
    #[serde(rename = "for")]
    awaited: Option<String>,
    wait: Option<String>,
    generation: Option<String>,
}

/// Waits until an instance has ended, or is in a phase, or a step has a status.
pub async fn reach(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<ReachParameters>,
) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    let awaited = awaited(query.awaited.as_deref().unwrap_or("end"))?;
    let time = requests::wait_time(&state, query.wait.as_deref().unwrap_or("30s"))?;
    let generation = query.generation.map(|text| text.parse::<u32>()).transpose();
    let generation = generation
        .map_err(|_| Problem::invalid("generation must be a whole number").of("query", "generation"))?;
    let _place = requests::place(&state)?;
    let reached = state.control.reach(&id, generation, awaited, time).await?;
    Ok(Json(reached).into_response())
}

/// `end`, `phase=NAME`, `step=NAME` (done) or `step=NAME:STATUS`.
fn awaited(text: &str) -> Result<Awaited, Problem> {
    let wrong = || {
        let detail = "for must be end, phase=PHASE, step=STEP (done) or step=STEP:STATUS";
        Problem::invalid(detail).of("query", "for")
    };
    match text.split_once('=') {
        None if text == "end" => Ok(Awaited::End),
        Some(("phase", phase)) if !phase.is_empty() => Ok(Awaited::Phase(phase.to_owned())),
        Some(("step", step)) if !step.is_empty() => {
            let (name, status) = step.rsplit_once(':').unwrap_or((step, "done"));
            Ok(Awaited::Step(name.to_owned(), status.to_owned()))
        }
        _ => Err(wrong()),
    }
}

/// `?newest=...`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventsParameters {
    newest: Option<String>,
}

/// What happens to an instance, an event for each entry of its history, with the number of the entry as its id. A client that comes
/// back with `Last-Event-ID` hears what came since.
pub async fn events(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    headers: HeaderMap,
    Parameters(query): Parameters<EventsParameters>,
) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    let newest = match query.newest {
        None => NEWEST_DEFAULT,
        Some(text) => text
            .parse::<usize>()
            .map_err(|_| Problem::invalid("newest must be a whole number").of("query", "newest"))?
            .min(NEWEST_MAX),
    };
    let after = match headers.get(LAST_EVENT_ID) {
        None => None,
        Some(value) => {
            let number = value.to_str().ok().and_then(|text| text.parse::<u64>().ok());
            let wrong = || Problem::invalid("Last-Event-ID is the id of an event of this stream");
            Some(number.ok_or_else(|| wrong().of("header", "last-event-id"))?)
        }
    };
    let place = Arc::clone(&state.streams).try_acquire_owned();
    let place = place.map_err(|_| {
        Problem::unavailable("as many instances are watched as http.streams_max says; retry later")
    })?;
    let happenings = state.control.happenings(&id, after, newest).await?;
    let events = happenings.map(move |happened| {
        // It is held as long as the stream is.
        let _place = &place;
        Ok::<_, Infallible>(event(happened))
    });
    let alive = KeepAlive::new().interval(HEARTBEAT);
    Ok(Sse::new(events).keep_alive(alive).into_response())
}

fn event(happened: Happened) -> Event {
    match happened {
        Happened::Entry { id, entry } => {
            let mut data = serde_json::to_value(entry).expect("plain data");
            data["id"] = Value::from(id);
            Event::default()
                .id(id.to_string())
                .event("entry")
                .data(data.to_string())
        }
        Happened::End(instance) => {
            let data = serde_json::to_string(&instance).expect("plain data");
            Event::default().event("end").data(data)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_for_an_end_a_phase_or_a_step() {
        let step = |name: &str, status: &str| Awaited::Step(name.to_owned(), status.to_owned());
        assert_eq!(awaited("end"), Ok(Awaited::End));
        assert_eq!(awaited("phase=failed"), Ok(Awaited::Phase("failed".to_owned())));
        assert_eq!(awaited("step=pay"), Ok(step("pay", "done")));
        assert_eq!(awaited("step=pay:waiting"), Ok(step("pay", "waiting")));
        for wrong in ["", "over", "phase", "phase=", "step=", "state=x"] {
            assert_eq!(
                awaited(wrong).map_err(|problem| problem.status),
                Err(400),
                "{wrong:?}"
            );
        }
    }
}
