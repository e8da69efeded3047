//! Mail, to a server that may break any rule.

use saga_runner::effects::certainty::{Ending, Said};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::row::{Row, Via};
use super::rows::{self, said};
use super::table as t;
use super::tls::{self, Certificates};
use super::{Calls, Mark, Provider};

pub static SMTP: Provider = Provider {
    name: "smtp",
    column: "Mail",
    rows: &[rows::OF_ALL, rows::OF_MESSAGES, rows::OF_TLS, OWN],
    section,
    answer: "response.message",
};

const OWN: &[Row] = &[
    Row::told(t::DONE, "250 after the message", "does-it", "succeeded"),
    said(t::REFUSED, "5xx", "refuses-the-message", Said::Refused),
    said(t::REFUSED, "5xx", "refuses-the-recipient", Said::Refused).class("recipient.refused"),
    Row::of(t::UNREACHED, "no connection", "is-gone", Ending::LostUnsent)
        .via(Via::Gone)
        .unseen(),
    Row::of(
        t::LOST_UNSENT,
        "before its end",
        "hangs-up-early",
        Ending::LostUnsent,
    ),
    said(t::NOT_NOW, "4xx", "closes", Said::NotNow),
    said(t::NOT_NOW, "4xx", "is-in-the-way", Said::Conflict),
    Row::of(
        t::LATE_UNSENT,
        "before its end",
        "says-no-hello",
        Ending::LateUnsent,
    )
    .via(Via::Mute)
    .unseen(),
    Row::of(
        t::LATE_UNSENT,
        "before its end",
        "takes-no-recipient",
        Ending::LateUnsent,
    )
    .via(Via::Slow),
    rows::illegal("a header"),
    Row::of(t::LOST, "after its end", "hangs-up", Ending::Lost),
    Row::of(t::LATE, "after its end", "says-nothing", Ending::Late).via(Via::Slow),
];

/// The sender carries the key, so that it is known before the message is.
fn section(via: Via, policy: &str) -> String {
    let security = if via == Via::Untrusted { "tls" } else { "none" };
    let headers = if via == Via::Large {
        ""
    } else {
        "  headers: {X-Note: \"${input.note}\"}\n"
    };
    format!(
        "smtp:\n  server: \"${{upstreams.smtp_{}}}\"\n  security: {security}\n  \
         from: \"${{command.idempotency_key}}@example.com\"\n  \
         to: \"${{input.row}}.{policy}.${{string(command.attempt)}}@example.com\"\n{headers}  \
         subject: \"It is on its way\"\n  text: \"It is.\"",
        via.name()
    )
}

/// The peers, by the names of their upstreams.
pub async fn start(calls: &Calls, certificates: &Certificates) -> Vec<(String, String)> {
    let calls = calls.clone();
    let peer = tls::listen(move |stream| {
        let calls = calls.clone();
        // A caller that has waited long enough, or is killed, leaves in the middle.
        async move { drop(serve(stream, &calls).await) }
    })
    .await;
    let untrusted = certificates.serve(|stream| async move { drop(stream) }).await;
    let plain = [Via::Peer, Via::Slow, Via::Large, Via::Interrupted, Via::Killed].map(|via| (via, peer));
    let others = [
        (Via::Gone, tls::gone()),
        (Via::Mute, tls::mute().await),
        (Via::Untrusted, untrusted),
    ];
    let address = |(via, port): (Via, u16)| {
        let host = if via == Via::Untrusted {
            "localhost"
        } else {
            "127.0.0.1"
        };
        (format!("smtp_{}", via.name()), format!("smtp://{host}:{port}"))
    };
    plain.into_iter().chain(others).map(address).collect()
}

/// What stands before the `@` of an address in a command.
fn local_part(line: &str) -> &str {
    let address = line.split(['<', '>']).nth(1).unwrap_or_default();
    address.split('@').next().unwrap_or_default()
}

async fn serve(stream: TcpStream, calls: &Calls) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    stream.write_all(b"220 peer\r\n").await?;
    let (mut key, mut asked, mut before) = (String::new(), String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let mark = Mark::read(&asked);
        let answer: &[u8] = match line.get(..4) {
            Some("MAIL") => {
                local_part(&line).clone_into(&mut key);
                b"250 fine\r\n"
            }
            Some("RCPT") => {
                asked = local_part(&line).replace('.', "/");
                before = calls.enter(&format!("smtp/{asked}"), &key);
                match Mark::read(&asked).conduct {
                    "refuses-the-recipient" => b"550 5.1.1 nobody of that name\r\n",
                    "closes" => b"421 4.3.2 closing\r\n",
                    "hangs-up-early" => return Ok(()),
                    "takes-no-recipient" => return std::future::pending().await,
                    _ => b"250 fine\r\n",
                }
            }
            Some("DATA") => {
                stream.write_all(b"354 go on\r\n").await?;
                while line != ".\r\n" {
                    line.clear();
                    if stream.read_line(&mut line).await? == 0 {
                        return Ok(());
                    }
                }
                match mark.conduct {
                    "hangs-up" => return Ok(()),
                    "refuses-the-message" => b"554 5.7.1 not wanted\r\n",
                    "is-in-the-way" => b"451 4.7.1 come back later\r\n",
                    "says-something-else" => b"250 something else\r\n",
                    "says-nothing-useful" => b"250 nothing\r\n",
                    _ if mark.is_held(before) => return std::future::pending().await,
                    _ => b"250 r-1\r\n",
                }
            }
            Some("QUIT") => b"221 bye\r\n",
            _ => b"250 fine\r\n",
        };
        stream.write_all(answer).await?;
    }
}
