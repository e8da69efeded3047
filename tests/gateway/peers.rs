//! Gateways that keep books, and do as they are told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

#[cfg(feature = "gateway-grpc")]
use crate::support::grpc_gateway;

/// One submission.
#[derive(Debug, Clone)]
pub struct Seen {
    /// As the JSON envelope has it.
    pub command: Value,
    /// What the headers say beside it.
    pub tenant: Option<String>,
    pub key: String,
    pub at_ms: i64,
}

pub enum Reply {
    Accepted,
    /// It was accepted before.
    Repeated,
    Refused(String),
    /// Not now.
    Busy,
    Silence,
}

#[derive(Default)]
struct Told {
    seen: Vec<Seen>,
    accepted: BTreeSet<String>,
    mute: BTreeSet<String>,
    refused: BTreeMap<String, String>,
    /// How often each is still to be sent away.
    busy: BTreeMap<String, u32>,
}

/// What the gateway has seen, and how it is to answer.
#[derive(Clone, Default)]
pub struct Books(Arc<Mutex<Told>>);

impl Books {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().expect("not poisoned")
    }

    pub fn be_mute_about(&self, command: &str) {
        self.told().mute.insert(command.to_owned());
    }

    pub fn speak(&self) {
        self.told().mute.clear();
    }

    pub fn refuse(&self, command: &str, reason: &str) {
        self.told().refused.insert(command.to_owned(), reason.to_owned());
    }

    pub fn be_busy(&self, command: &str, times: u32) {
        self.told().busy.insert(command.to_owned(), times);
    }

    pub fn all(&self) -> Vec<Seen> {
        self.told().seen.clone()
    }

    /// Submissions of this command by the saga of this key.
    pub fn of(&self, command: &str, key: &str) -> Vec<Seen> {
        let mut seen = self.all();
        seen.retain(|seen| seen.command["command_type"] == command && seen.command["metadata"]["key"] == key);
        seen
    }

    fn take(&self, command: Value, header: impl Fn(&str) -> Option<String>) -> Reply {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let at_ms =
            i64::try_from(since.expect("after 1970").as_millis()).expect("before the year 292 million");
        let kind = command["command_type"].as_str().expect("text").to_owned();
        let key = header("idempotency-key").expect("each submission has one");
        let mut told = self.told();
        told.seen.push(Seen {
            command,
            tenant: header("x-tenant-id"),
            key: key.clone(),
            at_ms,
        });
        if let Some(times) = told.busy.get_mut(&kind).filter(|times| **times > 0) {
            *times -= 1;
            return Reply::Busy;
        }
        if told.mute.contains(&kind) {
            // It was carried out; only the answer never comes.
            told.accepted.insert(key);
            return Reply::Silence;
        }
        if let Some(reason) = told.refused.get(&kind) {
            return Reply::Refused(reason.clone());
        }
        if told.accepted.insert(key) {
            Reply::Accepted
        } else {
            Reply::Repeated
        }
    }
}

/// Takes commands over HTTP; the answer is what the manifest says of it.
pub async fn http(books: &Books) -> Value {
    async fn taken(State(books): State<Books>, headers: HeaderMap, body: Bytes) -> (StatusCode, String) {
        let command = serde_json::from_slice(&body).expect("JSON");
        let header = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
        match books.take(command, header) {
            Reply::Accepted => (StatusCode::ACCEPTED, String::new()),
            Reply::Repeated => (StatusCode::OK, String::new()),
            Reply::Refused(reason) => (StatusCode::UNPROCESSABLE_ENTITY, reason),
            Reply::Busy => (StatusCode::SERVICE_UNAVAILABLE, String::new()),
            Reply::Silence => std::future::pending().await,
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let router = Router::new()
        .route("/commands", post(taken))
        .with_state(books.clone());
    tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    json!({"url": format!("http://{address}/commands")})
}

/// Takes commands over NATS, until the task is aborted.
pub async fn nats(books: &Books, url: &str) -> (Value, JoinHandle<()>) {
    let client = async_nats::connect(url).await.expect("a connection");
    // As many as would share the work.
    let mut requests = client
        .queue_subscribe("gateway.*.*", "gateways".to_owned())
        .await
        .expect("a subscription");
    client.flush().await.expect("the server has it");
    let books = books.clone();
    let serving = tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let command: Value = serde_json::from_slice(&request.payload).expect("JSON");
            let subject = format!(
                "gateway.{}.{}",
                command["tenant_id"].as_str().expect("text"),
                command["aggregate_type"].as_str().expect("text")
            );
            assert_eq!(*request.subject, subject);
            let headers = request.headers.unwrap_or_default();
            let header = |name: &str| {
                let values = headers
                    .iter()
                    .filter(|(known, _)| known.to_string().eq_ignore_ascii_case(name));
                let mut values = values.flat_map(|(_, values)| values.clone());
                values.next().map(|value| value.to_string())
            };
            let reply = match books.take(command, header) {
                Reply::Accepted | Reply::Repeated => json!({"status": "accepted"}),
                Reply::Refused(reason) => json!({"status": "rejected", "message": reason}),
                Reply::Busy => json!({"status": "unavailable"}),
                Reply::Silence => continue,
            };
            let to = request.reply.expect("a request");
            client
                .publish(to, reply.to_string().into())
                .await
                .expect("published");
        }
    });
    (json!({"nats": "gateway.{tenant}.{aggregate_type}"}), serving)
}

/// Takes commands over gRPC.
#[cfg(feature = "gateway-grpc")]
pub async fn grpc(books: &Books) -> Value {
    use futures::FutureExt as _;
    use tonic::Status;

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let books = books.clone();
    grpc_gateway::serve(listener, None, move |call| {
        let mut command = call.command;
        let payload = command["payload_json"].as_str().expect("text");
        command["payload_json"] = serde_json::from_str(payload).expect("JSON");
        let reply = books.take(command, |name| call.metadata.get(name).cloned());
        async move {
            match reply {
                Reply::Accepted => Ok(Vec::new()),
                Reply::Repeated => Err(Status::already_exists("it came before")),
                Reply::Refused(reason) => Err(Status::failed_precondition(reason)),
                Reply::Busy => Err(Status::unavailable("later")),
                Reply::Silence => std::future::pending().await,
            }
        }
        .boxed()
    });
    json!({"grpc": format!("http://{address}")})
}
