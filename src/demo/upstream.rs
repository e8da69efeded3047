//! Inventory, fraud, payments, shipping and a gateway for aggregates, in one small HTTP server.
//!
//! It remembers what it did by idempotency key, as a good upstream does, and behaves as the order's id asks:
//! `declined-*` cards are declined, `slow-*` payments take longer than anyone wants to wait, `flaky-*` payments
//! answer 503 at first, `nostock-*` cannot be reserved, `noship-*` cannot be shipped.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;

/// How the upstream behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Base URL of the runner's API, to which the gateway posts events; `None` until it is known.
    pub runner: Option<String>,
    /// How long a `slow-` payment takes.
    pub slow: Duration,
}

/// A running upstream; it stops when this is dropped.
#[derive(Debug)]
pub struct Upstream {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    server: tokio::task::JoinHandle<()>,
}

/// Something that the upstream did, once for each idempotency key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Deed {
    /// `reservations`, `charges`, `refunds`, ... the last segment of the path.
    pub kind: String,
    pub order: String,
    pub idempotency_key: String,
    /// Calls that carried this key.
    pub calls: u32,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    runner: Mutex<Option<String>>,
    /// By kind and idempotency key: the answer, given once.
    answers: Mutex<BTreeMap<(String, String), Arc<Answer>>>,
    commands: Mutex<Vec<Value>>,
    client: reqwest::Client,
}

#[derive(Debug, Default)]
struct Answer {
    order: Mutex<String>,
    calls: Mutex<u32>,
    given: OnceCell<(StatusCode, Value)>,
}

impl Upstream {
    /// Starts the upstream.
    ///
    /// # Errors
    /// Where `listen` is taken.
    pub async fn start(listen: SocketAddr, settings: Settings) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            runner: Mutex::new(settings.runner.clone()),
            settings,
            answers: Mutex::default(),
            commands: Mutex::default(),
            client: reqwest::Client::builder()
                .no_proxy()
                .build()
                .map_err(std::io::Error::other)?,
        });
        let router = Router::new()
            .route("/inventory/{kind}", post(serve))
            .route("/fraud/{kind}", post(serve))
            .route("/payments/{kind}", post(serve))
            .route("/shipping/{kind}", post(serve))
            .route("/gateway/commands", post(gateway))
            .route("/ledger", get(ledger))
            .with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "demo upstream stopped");
            }
        });
        Ok(Self {
            address,
            shared,
            server,
        })
    }

    /// Tells the gateway where events go.
    pub fn set_runner(&self, url: String) {
        *lock(&self.shared.runner) = Some(url);
    }

    /// Everything that succeeded, in order of kind and key.
    pub fn deeds(&self) -> Vec<Deed> {
        self.shared.deeds()
    }

    /// Every command that the gateway accepted.
    pub fn commands(&self) -> Vec<Value> {
        lock(&self.shared.commands).clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Shared {
    fn deeds(&self) -> Vec<Deed> {
        lock(&self.answers)
            .iter()
            .filter(|(_, answer)| answer.given.get().is_some_and(|(status, _)| status.is_success()))
            .map(|((kind, key), answer)| Deed {
                kind: kind.clone(),
                order: lock(&answer.order).clone(),
                idempotency_key: key.clone(),
                calls: *lock(&answer.calls),
            })
            .collect()
    }
}

/// One call: the first with a key does the deed, later ones get the same answer.
async fn serve(
    State(shared): State<Arc<Shared>>,
    Path(kind): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let Some(key) = header(&headers, "idempotency-key") else {
        return (
            StatusCode::BAD_REQUEST,
            Json(json!({"error": "Idempotency-Key is missing"})),
        )
            .into_response();
    };
    let order = body["order"].as_str().unwrap_or_default().to_owned();
    let answer = Arc::clone(
        lock(&shared.answers)
            .entry((kind.clone(), key.clone()))
            .or_default(),
    );
    let calls = {
        let mut calls = lock(&answer.calls);
        *calls += 1;
        *calls
    };
    lock(&answer.order).clone_from(&order);
    if kind == "charges" && order.starts_with("flaky-") && calls <= 2 {
        let busy = json!({"error": "busy, come back"});
        return (StatusCode::SERVICE_UNAVAILABLE, Json(busy)).into_response();
    }
    let slow = shared.settings.slow;
    // The deed goes on although its caller may have hung up: that is what a late success is.
    let deed = tokio::spawn(async move {
        answer
            .given
            .get_or_init(|| async {
                if kind == "charges" && order.starts_with("slow-") {
                    tokio::time::sleep(slow).await;
                }
                outcome(&kind, &order, &key)
            })
            .await
            .clone()
    });
    match deed.await {
        Ok((status, body)) => (status, Json(body)).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn outcome(kind: &str, order: &str, key: &str) -> (StatusCode, Value) {
    let short = key.get(..8).unwrap_or(key);
    match kind {
        "reservations" if order.starts_with("nostock-") => {
            (StatusCode::UNPROCESSABLE_ENTITY, json!({"error": "out of stock"}))
        }
        "charges" if order.starts_with("declined-") => {
            (StatusCode::PAYMENT_REQUIRED, json!({"error": "card declined"}))
        }
        "shipments" if order.starts_with("noship-") => (
            StatusCode::UNPROCESSABLE_ENTITY,
            json!({"error": "no carrier goes there"}),
        ),
        "scores" => (StatusCode::OK, json!({"score": 12})),
        _ => (StatusCode::OK, json!({"id": format!("{kind}-{short}")})),
    }
}

/// The gateway: takes commands for aggregates, and plays the aggregate where the demo needs its answer.
async fn gateway(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Json(command): Json<Value>,
) -> Response {
    let key = header(&headers, "idempotency-key").unwrap_or_default();
    let answer = Arc::clone(
        lock(&shared.answers)
            .entry(("commands".to_owned(), key))
            .or_default(),
    );
    *lock(&answer.calls) += 1;
    let accepted = answer.given.get().is_none();
    if answer
        .given
        .set((StatusCode::ACCEPTED, json!({"accepted": true})))
        .is_ok()
        && accepted
    {
        lock(&shared.commands).push(command.clone());
    }
    if command["command_type"] == "Shipment.Plan"
        && let Err(error) = accept_shipment(&shared, &command).await
    {
        // The runner repeats the command, so the event is tried again.
        return (StatusCode::SERVICE_UNAVAILABLE, error).into_response();
    }
    (StatusCode::ACCEPTED, Json(json!({"accepted": true}))).into_response()
}

/// A planned shipment is accepted at the dock: the warehouse's saga waits for that event.
async fn accept_shipment(shared: &Shared, command: &Value) -> Result<(), String> {
    let Some(runner) = lock(&shared.runner).clone() else {
        return Ok(());
    };
    let tenant = command["tenant_id"].as_str().unwrap_or_default();
    let warehouse = command["metadata"]["correlation_id"].as_str().unwrap_or_default();
    let event = json!({
        "tenant_id": tenant,
        "event_id": format!("dock-{}", command["command_id"].as_str().unwrap_or_default()),
        "event_type": "Accepted",
        "aggregate_type": "Dock",
        "aggregate_id": warehouse,
        "sequence": 1,
        "schema_version": 1,
        "payload": {"warehouse": warehouse},
        "metadata": {"correlation_id": warehouse},
    });
    let response = shared
        .client
        .post(format!("{runner}/v1/tenants/{tenant}/events"))
        .header("content-type", "application/json")
        .body(event.to_string())
        .send()
        .await
        .map_err(|error| error.to_string())?;
    if response.status().is_success() {
        Ok(())
    } else {
        Err(format!("the runner answered {}", response.status()))
    }
}

async fn ledger(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let commands = lock(&shared.commands).clone();
    Json(json!({"deeds": shared.deeds(), "commands": commands}))
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// No code panics while it holds one of these locks, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
