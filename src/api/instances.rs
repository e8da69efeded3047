//! Events and instances of one tenant.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::ApiState;
use super::account;
use super::auth;
use super::extract::{self, Names, PageParameters, Parameters};
use super::pages::{self, Source};
use super::problem::Problem;
use super::requests::{self, Started, WaitParameters};
use super::trace;
use crate::kernel::envelope::{
    ConflictPolicy, ControlMessage, ControlVerb, ErrorPayload, FoundAs, Principal, StepFound, Stuck,
    callback_request, callback_verb,
};
use crate::kernel::ids::{InstanceId, Key};
use crate::kernel::input::CancelMode;
use crate::kernel::json;
use crate::kernel::limits::Limits;
use crate::ports::control::{ControlError, Patience, StartRequest};

/// History entries of an instance where the request does not say.
const HISTORY_DEFAULT: usize = 100;
/// Most history entries of one answer.
const HISTORY_MAX: usize = 1_000;

/// Publishes a domain event: the body is the aggregate event envelope.
pub async fn publish_event(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    if !state.accept_events {
        return Err(Problem::not_found(
            "events over HTTP are disabled; set http.accept_events",
        ));
    }
    let tenant = extract::tenant(state.tenancy, &names)?;
    let published = state
        .control
        .publish_event(&tenant, sized(body)?, trace::traceparent())
        .await?;
    Ok((StatusCode::ACCEPTED, Json(published)).into_response())
}

/// `?blocked=...&after=...&limit=...`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListParameters {
    blocked: Option<String>,
    after: Option<String>,
    limit: Option<String>,
}

/// Instances of one saga: `?blocked=<true|false>&after=<cursor>&limit=<1..500>`.
pub async fn list(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<ListParameters>,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let saga = extract::saga(&names)?;
    let blocked = match query.blocked.as_deref() {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) => return Err(Problem::invalid("blocked must be true or false")),
    };
    let page = PageParameters::new(query.after, query.limit).page()?;
    let control = Arc::clone(&state.control);
    let ask = move |page| {
        let (control, tenant, saga) = (Arc::clone(&control), tenant.clone(), saga.clone());
        async move { control.instances(&tenant, &saga, blocked, page).await }
    };
    pages::listed(&state, (pages::ITEMS, Source::Shards), page, ask).await
}

/// `?history=...`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShowParameters {
    history: Option<String>,
}

/// One instance with state, steps, timers and history: `?history=<0..1000>`.
pub async fn show(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<ShowParameters>,
) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    let history = match query.history {
        None => HISTORY_DEFAULT,
        Some(text) => text
            .parse::<usize>()
            .map_err(|_| Problem::invalid("history must be a whole number"))?
            .min(HISTORY_MAX),
    };
    match state.control.instance(&id, history).await {
        Err(missing @ ControlError::NotFound(_)) => {
            let archived = state.control.archived(&id).await?;
            let found = archived.ok_or(missing)?;
            let mut shown = found.instance;
            let newest = found.history.into_iter().take(history).collect();
            shown.insert("history".to_owned(), newest);
            Ok(Json(shown).into_response())
        }
        found => Ok(Json(found?).into_response()),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct StartBody {
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    input: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    on_conflict: ConflictPolicy,
    #[serde(default)]
    by: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    request_id: Option<String>,
}

/// Starts an instance of a saga that takes an input.
pub async fn start(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let body: StartBody = control_request(&sized(body)?)?;
    let policy = body.on_conflict;
    account::check(&body.by, &body.reason)?;
    let request_id = requests::request_id(body.request_id)?;
    // A repeated request must mean the same instance.
    let key = body.key.unwrap_or_else(|| request_id.clone());
    let id = InstanceId {
        tenant: extract::tenant(state.tenancy, &names)?,
        saga: extract::saga(&names)?,
        key: Key::parse(&key).map_err(|error| Problem::invalid(error.to_string()))?,
    };
    let waiting = wait.of_start(&state)?;
    let request = StartRequest {
        request_id: request_id.clone(),
        input: body.input,
        on_conflict: policy,
        principal: auth::operator(body.by, body.reason),
        traceparent: trace::traceparent(),
    };
    let patience = waiting.patience.unwrap_or(Patience::NONE);
    let requested = state.control.start(&id, request, patience).await?;
    let key = id.key.as_str().to_owned();
    let started = Started {
        key,
        request_id,
        requested,
    };
    requests::started(started, policy, waiting.patience)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelRequest {
    /// For the audit alone.
    #[serde(default)]
    by: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    mode: CancelMode,
    #[serde(default)]
    request_id: Option<String>,
}

/// Cancels an instance: it compensates what it did, at once or when what runs has ended, or leaves it done.
pub async fn cancel(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let request: CancelRequest = control_request(&sized(body)?)?;
    account::check(&request.by, &request.reason)?;
    let verb = ControlVerb::Cancel {
        reason: request.reason,
        mode: request.mode,
    };
    control(&state, &names, wait, request.request_id, verb).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignalRequest {
    #[serde(default)]
    data: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    by: String,
    /// For the audit alone.
    #[serde(default)]
    reason: String,
    #[serde(default)]
    request_id: Option<String>,
}

/// Signals an instance: its handlers hear that, and a step that waits for the signal goes on.
pub async fn signal(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let request: SignalRequest = control_request(&sized(body)?)?;
    account::check(&request.by, &request.reason)?;
    let verb = ControlVerb::Signal {
        name: names.get("name").cloned().unwrap_or_default(),
        data: request.data,
        by: auth::decider(request.by),
        hops: 0,
    };
    control(&state, &names, wait, request.request_id, verb).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallbackRequest {
    #[serde(default)]
    ok: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(default)]
    error: Option<ErrorPayload>,
    /// `true`: nothing is over yet.
    #[serde(default)]
    heartbeat: Option<bool>,
}

/// Says how the work of a step went that waits for whoever has this token. The token is all that is needed to be believed.
pub async fn callback(
    State(state): State<ApiState>,
    Path(token): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let request: CallbackRequest = control_request(&sized(body)?)?;
    let callback = state.control.callback(&token);
    let work = callback.as_ref().map_or("", |callback| callback.work.as_str());
    let CallbackRequest { ok, error, heartbeat } = request;
    let verb = callback_verb(work.to_owned(), ok, error, heartbeat).map_err(Problem::invalid)?;
    let request_id = match &verb {
        ControlVerb::Callback { work, .. } => callback_request(work),
        _ => requests::fresh(),
    };
    let Some(callback) = callback else {
        return Err(Problem::not_found("not a token of this cluster"));
    };
    ask(
        &state,
        &callback.instance,
        WaitParameters::default(),
        request_id,
        None,
        verb,
    )
    .await
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct StuckRequest {
    #[serde(default)]
    step: Option<String>,
    #[serde(default)]
    item: Option<u32>,
    #[serde(default)]
    by: String,
    #[serde(default)]
    reason: String,
    #[serde(default, rename = "as")]
    found: Option<FoundAs>,
    #[serde(default)]
    result: Option<serde_json::Value>,
    /// Of `retry`: the instance has ended, and is begun again from where it failed.
    #[serde(default)]
    ended: bool,
    /// With `ended`: what operators found out about steps of unknown outcome.
    #[serde(default)]
    resolved: Vec<StepFound>,
    #[serde(default)]
    request_id: Option<String>,
}

/// Undoes what is stuck, with all attempts again; sends the work of a stuck step once more.
pub async fn retry(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let body = sized(body)?;
    let request: StuckRequest = control_request(&body)?;
    if !request.ended {
        return decide_stuck(&state, &names, wait, Ok(body), ControlVerb::Retry).await;
    }
    if request.step.is_some() || request.item.is_some() || request.found.is_some() || request.result.is_some()
    {
        return Err(Problem::invalid(
            "with `ended` there is neither `step` nor `item`, `as` or `result`: say `resolved`",
        ));
    }
    let principal = auth::operator(request.by, request.reason);
    let verb = ControlVerb::Rerun {
        found: request.resolved,
    };
    decide(&state, &names, wait, request.request_id, principal, verb).await
}

/// Leaves done what is stuck; leaves out a step in progress.
pub async fn skip(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    decide_stuck(&state, &names, wait, body, ControlVerb::Skip).await
}

/// Notes that what is stuck has been undone by other means, or the outcome of a stuck step.
pub async fn resolve(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    decide_stuck(&state, &names, wait, body, ControlVerb::Resolve).await
}

async fn decide_stuck(
    state: &ApiState,
    names: &Names,
    wait: WaitParameters,
    body: Result<Bytes, BytesRejection>,
    verb: fn(Stuck) -> ControlVerb,
) -> Result<Response, Problem> {
    let request: StuckRequest = control_request(&sized(body)?)?;
    if request.ended || !request.resolved.is_empty() {
        return Err(Problem::invalid(
            "only a retry has `ended`, and with it `resolved`",
        ));
    }
    let stuck = Stuck {
        step: request.step,
        item: request.item,
        found: request.found,
        result: request.result,
    };
    let principal = auth::operator(request.by, request.reason);
    decide(state, names, wait, request.request_id, principal, verb(stuck)).await
}

/// Sends what whoever may publish for the tenant may say.
async fn control(
    state: &ApiState,
    names: &Names,
    wait: WaitParameters,
    request_id: Option<String>,
    verb: ControlVerb,
) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, names)?;
    let request_id = requests::request_id(request_id)?;
    ask(state, &id, wait, request_id, None, verb).await
}

/// Sends what an operator decides.
pub(super) async fn decide(
    state: &ApiState,
    names: &Names,
    wait: WaitParameters,
    request_id: Option<String>,
    principal: Principal,
    verb: ControlVerb,
) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, names)?;
    let request_id = requests::request_id(request_id)?;
    ask(state, &id, wait, request_id, Some(principal), verb).await
}

async fn ask(
    state: &ApiState,
    id: &InstanceId,
    wait: WaitParameters,
    request_id: String,
    principal: Option<Principal>,
    verb: ControlVerb,
) -> Result<Response, Problem> {
    let message = ControlMessage {
        request_id,
        principal,
        verb,
    };
    let waiting = wait.of_command(state)?;
    let requested = state.control.control(id, message, waiting.patience).await?;
    requests::commanded(requested)
}

/// The body, or why there is none.
pub(super) fn sized(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Problem> {
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large("body is larger than 1 MiB"),
        _ => Problem::invalid(rejection.body_text()),
    })
}

pub(super) fn control_request<T: Default + DeserializeOwned>(body: &Bytes) -> Result<T, Problem> {
    if body.is_empty() {
        return Ok(T::default());
    }
    body_of(body)
}

/// Reads a body that must be there.
pub(super) fn body_of<T: DeserializeOwned>(body: &Bytes) -> Result<T, Problem> {
    // A repeated key would be read as whichever comes last, and what is nested too deep would be a dead letter.
    let invalid = |message: String| Problem::invalid(format!("invalid body: {message}"));
    if body.is_empty() {
        return Err(invalid("it is empty".to_owned()));
    }
    let parsed = json::Json::parse(body, Limits::default().json_depth);
    let parsed = parsed.map_err(|error| invalid(error.to_string()))?;
    // A list would be read as the members in their order.
    if !matches!(parsed, json::Json::Map(_)) {
        return Err(invalid("it is not an object".to_owned()));
    }
    serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))
}
