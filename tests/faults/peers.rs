//! Upstreams of each kind. All of them ask the book what to do about a call.

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use prost::Message as _;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tonic::Status;

use crate::faults::book::{Book, Conduct, Place};
use crate::faults::http;
use crate::support::grpc_gateway;
use crate::support::proxy::Proxy;

/// A kind of upstream, and the lines of an effect file that calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Http,
    Grpc,
    Nats,
    Smtp,
    /// Of aggregate commands, over HTTP: no effect calls it.
    Gateway,
}

impl Kind {
    /// The effect's call and what it makes of answers.
    pub const fn section(self) -> Option<&'static str> {
        let section = match self {
            Self::Gateway => return None,
            Self::Http => {
                r#"
http: {method: POST, url: "${upstreams.peer}/work", body: {number: "${input.number}"}}
classify: [{when: response.status == 402, as: declined}]
result: {}
"#
            }
            Self::Grpc => {
                r#"
grpc:
  url: "${upstreams.peer}"
  method: saga_runner.gateway.v1.Gateway/SubmitCommand
  descriptors: gateway.binpb
  message: {aggregateId: "${string(input.number)}"}
classify: [{when: response.status == "FAILED_PRECONDITION", as: declined}]
result: {}
"#
            }
            Self::Nats => {
                r#"
nats: {request: peer.work, body: {number: "${input.number}"}}
classify: [{when: response.code == 402, as: declined}]
result: {}
"#
            }
            Self::Smtp => {
                r#"
smtp:
  server: "${upstreams.peer}"
  security: none
  from: shop@example.com
  to: customer@example.com
  subject: "${string(input.number)}"
  text: "It is on its way."
classify: [{when: response.code == 554, as: declined}]
on_ambiguous: retry
result: {}
"#
            }
        };
        Some(section)
    }
}

/// A running upstream. Ends with the value.
pub struct Peer {
    /// What the effect calls `upstreams.peer`, where it calls an address.
    pub address: Option<String>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What all kinds share.
#[derive(Clone)]
struct Desk {
    book: Arc<Book>,
    /// When a late answer goes out.
    late: Duration,
}

impl Desk {
    /// Enters a call, and waits where its answer is to be late.
    async fn take(&self, number: u64, key: &str) -> (Place, Conduct) {
        let (place, conduct) = self.book.enter(number, key);
        if conduct == Conduct::Late {
            tokio::time::sleep(self.late).await;
        }
        (place, conduct)
    }
}

impl Peer {
    /// Starts an upstream; `nats` is the server that carries requests of NATS.
    pub async fn start(kind: Kind, book: &Arc<Book>, late: Duration, nats: &str) -> Self {
        let desk = Desk {
            book: Arc::clone(book),
            late,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("bound");
        let (address, task) = match kind {
            Kind::Gateway => (
                Some(format!("http://{at}/commands")),
                tokio::spawn(accept(listener, desk, commands)),
            ),
            Kind::Http => (
                Some(format!("http://{at}")),
                tokio::spawn(accept(listener, desk, work)),
            ),
            Kind::Smtp => (
                Some(format!("smtp://{at}")),
                tokio::spawn(accept(listener, desk, smtp)),
            ),
            Kind::Grpc => {
                // A server of tonic's cannot break a connection by itself.
                let proxy = Arc::new(Proxy::start(at.to_string()).await);
                let through = proxy.url().replace("nats://", "http://");
                (Some(through), grpc(listener, desk, proxy))
            }
            Kind::Nats => (None, requests(desk, nats).await),
        };
        Self { address, task }
    }
}

/// The descriptors of the service that the gRPC peer has.
pub fn descriptors() -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let files = protox::compile(["saga_runner/gateway/v1/gateway.proto"], [folder]);
    files.expect("the published file compiles").encode_to_vec()
}

async fn accept<F: Future<Output = std::io::Result<()>> + Send + 'static>(
    listener: TcpListener,
    desk: Desk,
    serve: fn(TcpStream, Desk) -> F,
) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        // A caller that is killed or has waited long enough leaves in the middle.
        connections.spawn(serve(stream, desk.clone()).map(drop));
    }
}

async fn work(stream: TcpStream, desk: Desk) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = http::read(&mut stream).await? {
        let body: serde_json::Value = serde_json::from_slice(&request.body).expect("JSON");
        let number = body["number"].as_u64().expect("a number");
        let (place, conduct) = desk.take(number, request.key()).await;
        let status = match conduct {
            Conduct::Done | Conduct::Late => "200 OK",
            Conduct::Refused => "402 Payment Required",
            Conduct::Broken => "502 Bad Gateway",
            Conduct::Busy => "503 Service Unavailable",
            Conduct::Reset => return Ok(()),
        };
        http::answer(&mut stream, status, "{}").await?;
        desk.book.answered(place);
    }
    Ok(())
}

async fn commands(stream: TcpStream, desk: Desk) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = http::read(&mut stream).await? {
        let command: serde_json::Value = serde_json::from_slice(&request.body).expect("JSON");
        let number = command["payload_json"]["number"].as_u64().expect("a number");
        let (place, conduct) = desk.take(number, request.key()).await;
        let status = match conduct {
            Conduct::Done | Conduct::Late => "202 Accepted",
            Conduct::Refused => "422 Unprocessable Content",
            Conduct::Broken => "500 Internal Server Error",
            Conduct::Busy => "503 Service Unavailable",
            Conduct::Reset => return Ok(()),
        };
        http::answer(&mut stream, status, "{}").await?;
        desk.book.answered(place);
    }
    Ok(())
}

async fn smtp(stream: TcpStream, desk: Desk) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    stream.write_all(b"220 peer\r\n").await?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let verb = line
            .split_whitespace()
            .next()
            .unwrap_or_default()
            .to_ascii_uppercase();
        let answer: &[u8] = match verb.as_str() {
            "QUIT" => b"221 bye\r\n",
            "DATA" => {
                stream.write_all(b"354 go on\r\n").await?;
                let (number, key) = letter(&mut stream).await?;
                let (place, conduct) = desk.take(number, &key).await;
                let answer: &[u8] = match conduct {
                    Conduct::Done | Conduct::Late => b"250 taken\r\n",
                    Conduct::Refused => b"554 5.7.1 not wanted\r\n",
                    Conduct::Busy => b"451 4.7.1 come back later\r\n",
                    Conduct::Reset | Conduct::Broken => return Ok(()),
                };
                stream.write_all(answer).await?;
                desk.book.answered(place);
                continue;
            }
            _ => b"250 fine\r\n",
        };
        stream.write_all(answer).await?;
    }
}

/// The number and the key of a mail: its subject, and what its Message-ID begins with.
async fn letter(stream: &mut BufReader<TcpStream>) -> std::io::Result<(u64, String)> {
    let (mut number, mut key) = (None, None);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(subject) = line.strip_prefix("Subject: ") {
            number = subject.trim().parse().ok();
        }
        if let Some(id) = line.strip_prefix("Message-ID: <") {
            key = id.split('@').next().map(str::to_owned);
        }
        if line == ".\r\n" {
            return Ok((number.expect("a subject"), key.expect("a Message-ID")));
        }
    }
}

fn grpc(listener: TcpListener, desk: Desk, proxy: Arc<Proxy>) -> tokio::task::JoinHandle<()> {
    grpc_gateway::serve(listener, None, move |call| {
        let (desk, proxy) = (desk.clone(), Arc::clone(&proxy));
        async move {
            let number = call.command["aggregate_id"].as_str().expect("a text");
            let number = number.parse().expect("a number");
            let (place, conduct) = desk.take(number, &call.metadata["idempotency-key"]).await;
            let answer = match conduct {
                Conduct::Done | Conduct::Late => Ok(Vec::new()),
                Conduct::Refused => Err(Status::failed_precondition("declined")),
                Conduct::Broken => Err(Status::internal("broken")),
                Conduct::Busy => Err(Status::unavailable("busy")),
                Conduct::Reset => {
                    proxy.cut();
                    desk.book.fault();
                    // Nothing of it gets through.
                    return Err(Status::internal("cut"));
                }
            };
            desk.book.answered(place);
            answer
        }
        .boxed()
    })
}

async fn requests(desk: Desk, nats: &str) -> tokio::task::JoinHandle<()> {
    let client = async_nats::connect(nats).await.expect("connects");
    let mut requests = client.subscribe("peer.work").await.expect("subscribes");
    client.flush().await.expect("the server knows it");
    tokio::spawn(async move {
        let mut calls = tokio::task::JoinSet::new();
        while let Some(request) = requests.next().await {
            let (client, desk) = (client.clone(), desk.clone());
            calls.spawn(async move {
                let body: serde_json::Value = serde_json::from_slice(&request.payload).expect("JSON");
                let number = body["number"].as_u64().expect("a number");
                let headers = request.headers.expect("headers");
                let key = headers.get("Idempotency-Key").expect("a key").as_str();
                let (place, conduct) = desk.take(number, key).await;
                let mut said = async_nats::HeaderMap::new();
                let error = match conduct {
                    Conduct::Done | Conduct::Late => None,
                    Conduct::Refused => Some("402"),
                    Conduct::Broken => Some("500"),
                    Conduct::Busy => Some("503"),
                    Conduct::Reset => return,
                };
                if let Some(code) = error {
                    said.insert("Nats-Service-Error-Code", code);
                    said.insert("Nats-Service-Error", "not now");
                }
                let to = request.reply.expect("a request");
                let sent = client.publish_with_headers(to, said, "{}".into()).await;
                sent.expect("sent");
                client.flush().await.expect("flushed");
                desk.book.answered(place);
            });
        }
    })
}
