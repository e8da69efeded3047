//! HTTP, on a peer that may break any rule.

use saga_runner::effects::certainty::{Ending, Said};
use tokio::io::BufReader;
use tokio::net::TcpStream;

use super::row::{Row, Via};
use super::rows::{self, said};
use super::table::{self as t, YES};
use super::tls::{self, Certificates};
use super::{ANSWER_BYTES_MAX, Calls, Mark, Provider};
use crate::faults::http;

pub static HTTP: Provider = Provider {
    name: "http",
    column: "HTTP",
    rows: &[
        rows::OF_ALL,
        rows::OF_MESSAGES,
        rows::OF_ANSWERS,
        rows::OF_TLS,
        rows::OF_STREAMS,
        rows::OF_STATUSES,
        OWN,
    ],
    section,
    answer: "response.body.id",
};

const OWN: &[Row] = &[
    Row::told(t::DONE, "2xx", "does-it", "succeeded"),
    said(t::REFUSED, "304", "304", Said::Refused),
    said(t::REFUSED, "101", "101", Said::Refused),
    rows::illegal("a header"),
    said(t::MOVED, "other 3xx", "301", Said::Moved),
    said(t::MOVED, "other 3xx", "307", Said::Moved),
    said(t::MOVED, "other 3xx", "308", Said::Moved),
    said(t::ELSEWHERE, "302", "302", Said::Elsewhere),
    said(t::ELSEWHERE, "303", "303", Said::Elsewhere),
    Row::of(t::LOST, YES, "hangs-up", Ending::Lost),
];

fn section(via: Via, policy: &str) -> String {
    let headers = if via == Via::Large {
        // No header takes as much.
        ""
    } else {
        "headers: {X-Note: \"${input.note}\"}, "
    };
    format!(
        "http: {{method: POST, url: \"${{upstreams.http_{}}}/${{url(input.row)}}/{policy}/${{url(string(command.attempt))}}\", \
         {headers}body: {{}}}}",
        via.name()
    )
}

/// The peers, by the names of their upstreams.
pub async fn start(calls: &Calls, certificates: &Certificates) -> Vec<(String, String)> {
    let calls = calls.clone();
    let peer = tls::listen(move |stream| {
        let calls = calls.clone();
        async move {
            // A caller that has waited long enough, or is killed, leaves in the middle.
            drop(serve(stream, &calls).await);
        }
    })
    .await;
    let untrusted = certificates.serve(|stream| async move { drop(stream) }).await;
    let refusing = certificates.serve(tls::refuse).await;
    let leaving = certificates.serve(tls::leave).await;
    let plain =
        [Via::Peer, Via::Slow, Via::Large, Via::Interrupted, Via::Killed].map(|via| (via, "http", peer));
    let others = [
        (Via::Gone, "http", tls::gone()),
        (Via::Mute, "https", tls::mute().await),
        (Via::Untrusted, "https", untrusted),
        (Via::Refusing, "https", refusing),
        (Via::Leaving, "https", leaving),
    ];
    let address = |(via, scheme, port): (Via, &str, u16)| {
        let host = if scheme == "https" {
            "localhost"
        } else {
            "127.0.0.1"
        };
        (
            format!("http_{}", via.name()),
            format!("{scheme}://{host}:{port}"),
        )
    };
    plain.into_iter().chain(others).map(address).collect()
}

async fn serve(stream: TcpStream, calls: &Calls) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = http::read(&mut stream).await? {
        let path = request.path.trim_start_matches('/');
        let before = calls.enter(&format!("http/{path}"), request.key());
        let mark = Mark::read(path);
        if mark.is_held(before) {
            return std::future::pending().await;
        }
        let long = format!("{{\"id\": \"{}\"}}", "x".repeat(2 * ANSWER_BYTES_MAX));
        let (status, body) = match mark.conduct {
            "hangs-up" => return Ok(()),
            // It has no body.
            "304" => ("304 Not Modified", ""),
            "101" => ("101 Switching Protocols", ""),
            "stammers" => ("200 OK", "{\"id\": 1e400, \"id\": "),
            "rambles" => ("200 OK", &*long),
            "says-something-else" => ("200 OK", "{\"id\": \"something else\"}"),
            "says-nothing-useful" => ("200 OK", "{\"id\": \"nothing\"}"),
            status if status.parse::<u16>().is_ok() => (status, "{}"),
            _ => ("200 OK", "{\"id\": \"r-1\"}"),
        };
        http::answer(&mut stream, status, body).await?;
    }
    Ok(())
}
