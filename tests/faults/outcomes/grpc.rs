//! gRPC, on a server of HTTP/2 that may break any rule of what is above it.

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use hyper::{HeaderMap, Request, Response};
use prost::Message as _;
use saga_runner::effects::certainty::{Ending, Said};
use tokio::net::TcpStream;

use super::row::{Row, Via};
use super::rows::{self, said};
use super::table::{self as t, YES};
use super::tls::{self, Certificates};
use super::{ANSWER_BYTES_MAX, Calls, Mark, Provider};

pub static GRPC: Provider = Provider {
    name: "grpc",
    column: "gRPC",
    rows: &[
        rows::OF_ALL,
        rows::OF_MESSAGES,
        rows::OF_ANSWERS,
        rows::OF_TLS,
        rows::OF_STREAMS,
        OWN,
    ],
    section,
    answer: "response.body.reservationId",
};

const OWN: &[Row] = &[
    Row::told(t::DONE, "`OK`", "does-it", "succeeded"),
    said(t::REFUSED, "other statuses", "3", Said::Refused),
    said(t::REFUSED, "other statuses", "5", Said::Refused),
    said(t::REFUSED, "other statuses", "6", Said::Refused),
    said(t::REFUSED, "other statuses", "9", Said::Refused),
    said(t::REFUSED, "other statuses", "11", Said::Refused),
    said(t::REFUSED, "other statuses", "12", Said::Refused),
    said(t::TURNED_AWAY, "`PERMISSION_DENIED`", "7", Said::TurnedAway),
    said(t::TURNED_AWAY, "`UNAUTHENTICATED`", "16", Said::TurnedAway),
    said(t::NOT_NOW, "`UNAVAILABLE`", "14", Said::NotNow),
    said(t::NOT_NOW, "`ABORTED`", "10", Said::Conflict),
    said(t::THROTTLED, "`RESOURCE_EXHAUSTED`", "8", Said::Throttled),
    rows::illegal("metadata"),
    said(t::BROKE, "`INTERNAL`", "13", Said::Broke),
    said(t::BROKE, "`UNKNOWN`", "2", Said::Broke),
    said(t::BROKE, "`DATA_LOSS`", "15", Said::Broke),
    said(t::GAVE_UP, "`DEADLINE_EXCEEDED`", "4", Said::GaveUp),
    said(t::CANCELLED, "`CANCELLED`", "1", Said::Cancelled),
    Row::of(t::LOST, YES, "hangs-up", Ending::Lost).via(Via::Fragile),
];

/// The descriptors of the service.
pub fn descriptors() -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/proto");
    let files = protox::compile(["stock.proto"], [folder]);
    files.expect("the file compiles").encode_to_vec()
}

fn section(via: Via, policy: &str) -> String {
    let note = if via == Via::Large {
        ""
    } else {
        ", x-note: \"${input.note}\""
    };
    format!(
        "grpc:\n  url: \"${{upstreams.grpc_{}}}\"\n  method: stock.v1.Inventory/Reserve\n  descriptors: stock.binpb\n  \
         metadata: {{x-mark: \"${{input.row}}/{policy}/${{string(command.attempt)}}\"{note}}}\n  message: {{orderId: \"o-1\"}}",
        via.name()
    )
}

/// The peers, by the names of their upstreams.
pub async fn start(calls: &Calls, certificates: &Certificates) -> Vec<(String, String)> {
    let calls = calls.clone();
    let peer = tls::listen(move |stream| serve(stream, calls.clone())).await;
    let untrusted = certificates.serve(|stream| async move { drop(stream) }).await;
    let refusing = tls::listen(tls::refuse).await;
    let leaving = tls::listen(tls::leave).await;
    let plain = [
        Via::Peer,
        Via::Fragile,
        Via::Slow,
        Via::Large,
        Via::Interrupted,
        Via::Killed,
    ];
    let others = [
        (Via::Gone, format!("http://127.0.0.1:{}", tls::gone())),
        (Via::Mute, format!("https://localhost:{}", tls::mute().await)),
        (Via::Untrusted, format!("https://localhost:{untrusted}")),
        (Via::Refusing, format!("http://127.0.0.1:{refusing}")),
        (Via::Leaving, format!("http://127.0.0.1:{leaving}")),
    ];
    let plain = plain.map(|via| (via, format!("http://127.0.0.1:{peer}")));
    let named = |(via, address): (Via, String)| (format!("grpc_{}", via.name()), address);
    plain.into_iter().chain(others).map(named).collect()
}

async fn serve(stream: TcpStream, calls: Calls) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    let mut held = Vec::new();
    while let Some(Ok((request, mut answer))) = connection.accept().await {
        let text = |name: &str| request.headers()[name].to_str().expect("text").to_owned();
        let (mark, key) = (text("x-mark"), text("idempotency-key"));
        let before = calls.enter(&format!("grpc/{mark}"), &key);
        let mark = Mark::read(&mark);
        match mark.conduct {
            // With it goes the connection. Before the message has left, the caller knows that nothing was done.
            "hangs-up" => {
                let mut body = request.into_body();
                tokio::select! {
                    _ = body.data() => {}
                    _ = connection.accept() => {}
                }
                return;
            }
            _ if mark.is_held(before) => held.push((request, answer)),
            // A caller may be gone by then.
            conduct => drop(reply(conduct, request, &mut answer)),
        }
    }
}

/// Answers with a status, or with a message and `OK`.
fn reply(
    conduct: &str,
    request: Request<RecvStream>,
    answer: &mut SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    drop(request);
    let head = Response::builder().header("content-type", "application/grpc");
    if conduct.parse::<u8>().is_ok() {
        let head = head.header("grpc-status", conduct).body(()).expect("a head");
        return answer.send_response(head, true).map(drop);
    }
    let mut body = answer.send_response(head.body(()).expect("a head"), false)?;
    body.send_data(message(conduct).into(), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    body.send_trailers(trailers)
}

/// A message with its head of a flag and a length; the first field is the id.
fn message(conduct: &str) -> Vec<u8> {
    let id = match conduct {
        "says-something-else" => "something else".to_owned(),
        "says-nothing-useful" => "nothing".to_owned(),
        "rambles" => "x".repeat(2 * ANSWER_BYTES_MAX),
        _ => "r-1".to_owned(),
    };
    let mut message = vec![10];
    prost::encode_length_delimiter(id.len(), &mut message).expect("room");
    message.extend_from_slice(id.as_bytes());
    if conduct == "stammers" {
        // It ends in the middle of the text.
        message.truncate(3);
    }
    let length = u32::try_from(message.len()).expect("a short message");
    let mut framed = vec![0];
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(&message);
    framed
}
