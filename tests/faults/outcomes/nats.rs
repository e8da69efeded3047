//! Requests over NATS, to services that report errors as the protocol of NATS services does.

use futures::StreamExt as _;
use saga_runner::effects::certainty::{Ending, Said};

use super::row::{Row, Via};
use super::rows::{self, said};
use super::table as t;
use super::{ANSWER_BYTES_MAX, Calls, Mark, Provider};

pub static NATS: Provider = Provider {
    name: "nats",
    column: "NATS",
    rows: &[
        rows::OF_ALL,
        rows::OF_MESSAGES,
        rows::OF_ANSWERS,
        rows::OF_STATUSES,
        OWN,
    ],
    section,
    answer: "response.body.id",
};

const OWN: &[Row] = &[
    Row::told(t::DONE, "no error code", "does-it", "succeeded"),
    Row::of(t::UNREACHED, "no subscriber", "is-gone", Ending::NotBegun)
        .via(Via::Gone)
        .unseen(),
    Row::of(t::UNREACHED, "no stream", "is-not-kept", Ending::Unconnected)
        .via(Via::Stranger)
        .unseen(),
    rows::illegal("a header"),
    said(t::BROKE, "other codes", "302", Said::Broke),
    said(t::BROKE, "other codes", "1000", Said::Broke),
    said(t::BROKE, "other codes", "no-number", Said::Broke),
];

fn section(via: Via, policy: &str) -> String {
    let act = if via == Via::Stranger { "store" } else { "request" };
    let subject = if matches!(via, Via::Gone | Via::Stranger) {
        "nowhere.work"
    } else {
        "peer.work"
    };
    let headers = if via == Via::Large {
        ""
    } else {
        "headers: {X-Note: \"${input.note}\"}, "
    };
    format!(
        "nats: {{{act}: \"{subject}.${{input.row}}.{policy}.${{string(command.attempt)}}\", {headers}body: {{}}}}"
    )
}

pub async fn start(calls: &Calls, url: &str) {
    let client = async_nats::connect(url).await.expect("connects");
    let mut requests = client.subscribe("peer.work.>").await.expect("subscribes");
    client.flush().await.expect("the server knows it");
    let calls = calls.clone();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let mark = request.subject.trim_start_matches("peer.work.").replace('.', "/");
            let headers = request.headers.expect("headers");
            let key = headers.get("Idempotency-Key").expect("a key").as_str();
            let before = calls.enter(&format!("nats/{mark}"), key);
            let mark = Mark::read(&mark);
            if mark.is_held(before) {
                continue;
            }
            let mut said = async_nats::HeaderMap::new();
            let body = match mark.conduct {
                "stammers" => {
                    said.insert("Content-Type", "application/json");
                    "{\"id\": 1e400, \"id\": ".to_owned()
                }
                "rambles" => format!("{{\"id\": \"{}\"}}", "x".repeat(2 * ANSWER_BYTES_MAX)),
                "says-something-else" => "{\"id\": \"something else\"}".to_owned(),
                "says-nothing-useful" => "{\"id\": \"nothing\"}".to_owned(),
                "does-it" | "does-too-much" | "is-held" => "{\"id\": \"r-1\"}".to_owned(),
                code => {
                    said.insert("Nats-Service-Error-Code", code);
                    said.insert("Nats-Service-Error", "as it was told");
                    "{}".to_owned()
                }
            };
            let to = request.reply.expect("a request");
            let sent = client.publish_with_headers(to, said, body.into()).await;
            sent.expect("sent");
        }
    });
}
