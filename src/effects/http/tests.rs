use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use wiremock::matchers::{any, body_json, header, header_exists, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::clients::testing::Authority;
use crate::clients::{Identity, UpstreamTls};
use crate::effects::egress::Egress;
use crate::effects::provider::Certainty;
use crate::effects::testing::{KEY, NOW, attempt, attempt_within, failure, payload, secrets};
use crate::kernel::breaker::CallEnd;
use crate::kernel::definition::effect::{
    Classify, EffectLimits, OnAmbiguous, OnCancel, Provider as ProviderDefinition,
};
use crate::kernel::definition::redaction::Redaction;
use crate::kernel::expr::{Expr, Root, Template};
use crate::kernel::ids::EffectName;
use crate::kernel::retry::RetryPolicy;

const REQUEST: [Root; 4] = [Root::Input, Root::Command, Root::Secrets, Root::Upstreams];
const ANSWER: [Root; 3] = [Root::Input, Root::Command, Root::Response];

struct Charge {
    method: &'static str,
    url: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    body: Option<&'static str>,
    classify: Vec<(&'static str, &'static str)>,
    result: Option<&'static str>,
    settings: Settings,
    tls: UpstreamTls,
}

impl Default for Charge {
    fn default() -> Self {
        Self {
            method: "POST",
            url: "${upstreams.pay}/v1/orders/${url(input.order)}/charges",
            headers: vec![("Authorization", "Bearer ${secrets.token}")],
            body: Some("${input.amount}"),
            classify: Vec::new(),
            result: None,
            settings: Settings::default(),
            tls: UpstreamTls::default(),
        }
    }
}

impl Charge {
    fn provider(&self, upstream: &str) -> Result<Http, ProviderError> {
        let text = |text: &str, roots: &[Root]| Template::compile_text(text, roots).expect("a template");
        let call = HttpCall {
            method: self.method.to_owned(),
            url: text(self.url, &REQUEST),
            headers: self
                .headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), text(value, &REQUEST)))
                .collect(),
            body: self.body.map(|body| text(body, &REQUEST)),
            oauth2: None,
            sign: None,
        };
        let definition = EffectDefinition {
            schemas: crate::kernel::definition::effect::EffectSchemas::default(),
            name: EffectName::parse("payments-charge").expect("legal"),
            provider: ProviderDefinition::Http(call),
            timeout_ms: 5_000,
            connect_timeout_ms: 1_000,
            retry: RetryPolicy {
                attempts: 1,
                initial_ms: 100,
                factor: 2.0,
                max_ms: 1_000,
            },
            retry_classes: Vec::new(),
            on_ambiguous: OnAmbiguous::default(),
            on_cancel: OnCancel::default(),
            limits: EffectLimits {
                concurrency: 1,
                ..EffectLimits::default()
            },
            breaker: None,
            redaction: Redaction::default(),
            classify: self
                .classify
                .iter()
                .map(|(when, outcome)| Classify {
                    when: Expr::compile(when, &ANSWER).expect("an expression"),
                    class: (*outcome).to_owned(),
                    outcome: None,
                })
                .collect(),
            result: self.result.map(|result| text(result, &ANSWER)),
        };
        let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let environment = Environment::new(secrets(&map("token", "t0p")), &map("pay", upstream), None)
            .with_tls(BTreeMap::from([("pay".to_owned(), self.tls.clone())]));
        let definition = Arc::new(definition);
        let ProviderDefinition::Http(call) = &definition.provider else {
            unreachable!("built above");
        };
        Http::new(&definition, call, &Arc::new(environment), &self.settings)
    }

    async fn call(&self, upstream: &str, input: &str) -> CallOutcome {
        let provider = self.provider(upstream).expect("a legal effect");
        attempt(&provider, &provider.environment, "payments-charge", input).await
    }

    async fn answered(&self, answer: ResponseTemplate) -> CallOutcome {
        let server = MockServer::start().await;
        Mock::given(any()).respond_with(answer).mount(&server).await;
        self.call(&server.uri(), INPUT).await
    }
}

const INPUT: &str = r#"{"order":"o-1","amount":12}"#;

#[tokio::test]
async fn a_call_carries_secret_idempotency_key_trace_and_body() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/v1/orders/o%2F1/charges"))
        .and(header("authorization", "Bearer t0p"))
        .and(header("idempotency-key", KEY))
        .and(header_exists("traceparent"))
        .and(header("content-type", "application/json"))
        .and(body_json(12))
        .respond_with(ResponseTemplate::new(201).set_body_string(r#"{"id":"c-1"}"#))
        .expect(1)
        .mount(&server)
        .await;
    let outcome = Charge::default()
        .call(&server.uri(), r#"{"order":"o/1","amount":12}"#)
        .await;
    assert_eq!(payload(outcome), r#"{"id":"c-1"}"#);
}

#[tokio::test]
async fn headers_of_framing_are_those_of_the_client() {
    let server = MockServer::start().await;
    Mock::given(header("content-length", "2"))
        .and(body_json(12))
        .respond_with(ResponseTemplate::new(200))
        .mount(&server)
        .await;
    let charge = Charge {
        headers: vec![
            ("Content-Length", "7"),
            ("Transfer-Encoding", "chunked"),
            ("Expect", "100-continue"),
        ],
        ..Charge::default()
    };
    assert_eq!(payload(charge.call(&server.uri(), INPUT).await), "{}");
    let [request] = &server.received_requests().await.expect("recorded")[..] else {
        panic!("one request");
    };
    assert!(!request.headers.contains_key("expect") && !request.headers.contains_key("transfer-encoding"));
}

#[tokio::test]
async fn a_request_that_cannot_be_written_is_not_tried_again() {
    let charge = Charge {
        headers: vec![("Authorization", "Bearer ${input.order}")],
        ..Charge::default()
    };
    let server = MockServer::start().await;
    let refused = failure(
        charge
            .call(&server.uri(), r#"{"order":"\u00fc","amount":12}"#)
            .await,
    );
    assert_eq!(
        (&*refused.class, refused.certainty),
        ("permanent", Certainty::NotDone)
    );
    assert!(refused.message.contains("authorization"), "{refused:?}");
}

#[tokio::test]
async fn a_result_is_rendered_from_the_answer() {
    let charge = Charge {
        result: Some("${response.body.id}@${response.headers[\"x-zone\"]}"),
        ..Charge::default()
    };
    let answer = ResponseTemplate::new(200)
        .insert_header("X-Zone", "eu")
        .set_body_string(r#"{"id":"c-1"}"#);
    assert_eq!(payload(charge.answered(answer).await), r#""c-1@eu""#);
    let empty = Charge::default().answered(ResponseTemplate::new(204)).await;
    assert_eq!(payload(empty), "{}");
    let text = ResponseTemplate::new(200).set_body_string("done");
    assert_eq!(payload(Charge::default().answered(text).await), r#""done""#);
}

#[tokio::test]
async fn statuses_have_classes_and_say_how_certain_they_are() {
    use CallEnd::{Answered, Failed};
    use Certainty::{NotDone, Refused, Unknown};
    for (status, class, certainty, end) in [
        (301, "egress.denied", NotDone, Answered),
        (302, "egress.denied", Unknown, Answered),
        (303, "egress.denied", Unknown, Answered),
        (304, "permanent", Refused, Answered),
        (307, "egress.denied", NotDone, Answered),
        (400, "permanent", Refused, Answered),
        (401, "permanent", NotDone, Answered),
        (402, "permanent", Refused, Answered),
        (403, "permanent", NotDone, Answered),
        (408, "timeout", Unknown, Failed),
        (409, "permanent", NotDone, Answered),
        (425, "transient", NotDone, Answered),
        (429, "throttled", NotDone, Failed),
        (500, "transient", Unknown, Failed),
        (501, "transient", NotDone, Failed),
        (502, "transient", Unknown, Failed),
        (503, "transient", NotDone, Failed),
        (504, "timeout", Unknown, Failed),
        (505, "transient", NotDone, Failed),
        (507, "transient", Unknown, Failed),
        (599, "transient", Unknown, Failed),
    ] {
        let told = |failure: CallFailure| (failure.class.into_owned(), failure.certainty, failure.end);
        let acting = failure(Charge::default().answered(ResponseTemplate::new(status)).await);
        assert_eq!(told(acting), (class.to_owned(), certainty, end), "{status}");
        let reading = Charge {
            method: "GET",
            body: None,
            ..Charge::default()
        };
        let reading = failure(reading.answered(ResponseTemplate::new(status)).await);
        let certainty = match certainty {
            Unknown => NotDone,
            known => known,
        };
        assert_eq!(told(reading), (class.to_owned(), certainty, end), "GET {status}");
    }
}

/// An answer as bytes of a content type.
fn answer(content_type: &str, body: impl AsRef<[u8]>) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_raw(body.as_ref(), content_type)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).expect("written");
    encoder.finish().expect("compressed")
}

#[tokio::test]
async fn a_success_that_cannot_be_read_leaves_the_outcome_open() {
    let json = "application/json";
    let brotli = answer(json, b"\x0b\x02\x80{}\x03").insert_header("content-encoding", "br");
    let broken = answer(json, b"\x1f\x8bno gzip").insert_header("content-encoding", "gzip");
    let cut = gzip(br#"{"id":"c-1"}"#);
    let cut = answer(json, &cut[..cut.len() - 9]).insert_header("content-encoding", "gzip");
    for unreadable in [
        answer(json, "{\"a\":NaN}"),
        answer("application/problem+json; charset=utf-8", "{\"a\":1,\"a\":2}"),
        answer(json, "{\"a\":1e400}"),
        answer(json, b"\"\xff\""),
        answer(json, "<html>"),
        brotli,
        broken,
        cut,
    ] {
        let unread = failure(Charge::default().answered(unreadable.clone()).await);
        assert_eq!(
            (&*unread.class, unread.certainty, unread.end),
            ("response.malformed", Certainty::Unknown, CallEnd::Answered),
            "{unread:?}"
        );
        let reading = Charge {
            method: "GET",
            body: None,
            ..Charge::default()
        };
        let unread = failure(reading.answered(unreadable).await);
        assert_eq!(unread.certainty, Certainty::NotDone, "{unread:?}");
    }
    // Of a refusal the status is enough.
    let refusal = ResponseTemplate::new(402).set_body_raw("<html>", json);
    let refused = failure(Charge::default().answered(refusal).await);
    assert_eq!(
        (&*refused.class, refused.certainty),
        ("permanent", Certainty::Refused)
    );
}

#[tokio::test]
async fn an_answer_is_kept_byte_for_byte() {
    let json = "application/json";
    let large = "\u{feff}{\"id\":18446744073709551615,\"n\":[-9223372036854775808]}";
    assert_eq!(
        payload(Charge::default().answered(answer(json, large)).await),
        r#"{"id":"18446744073709551615","n":[-9223372036854775808]}"#
    );
    assert_eq!(
        payload(Charge::default().answered(answer("text/plain", "NaN")).await),
        r#""NaN""#
    );
    let packed = answer(json, gzip(br#"{"id":"c-1"}"#)).insert_header("content-encoding", "gzip");
    assert_eq!(
        payload(Charge::default().answered(packed).await),
        r#"{"id":"c-1"}"#
    );
}

#[tokio::test]
async fn nothing_asks_for_a_coding_and_a_bomb_is_cut_off() {
    let server = MockServer::start().await;
    Mock::given(header("accept-encoding", "identity"))
        .respond_with(ResponseTemplate::new(200))
        .expect(1)
        .mount(&server)
        .await;
    assert_eq!(payload(Charge::default().call(&server.uri(), INPUT).await), "{}");
    let bomb = gzip(&vec![b' '; 64 * 1024 * 1024]);
    let bomb = answer("application/json", bomb).insert_header("content-encoding", "gzip");
    let cut = failure(Charge::default().answered(bomb).await);
    assert_eq!(
        (&*cut.class, cut.certainty),
        ("response.size", Certainty::Unknown)
    );
}

#[tokio::test]
async fn a_result_that_cannot_be_rendered_is_told_beside_the_answer() {
    let charge = Charge {
        result: Some("${response.body.id}"),
        ..Charge::default()
    };
    let outcome = charge
        .answered(answer("application/json", r#"{"charge":"c-1"}"#))
        .await;
    let CallOutcome::Unusable {
        payload,
        class,
        message,
    } = outcome
    else {
        panic!("{outcome:?}");
    };
    assert_eq!(payload, br#"{"charge":"c-1"}"#);
    assert_eq!(class, "result.expression");
    assert!(message.starts_with("result: "), "{message}");
}

#[tokio::test]
async fn a_call_ends_by_itself_and_says_what_it_knows() {
    let limit = Duration::from_millis(200);
    // Nothing is read and nothing is said; then half an answer.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let halting = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address =
        |listener: &tokio::net::TcpListener| format!("http://{}", listener.local_addr().expect("bound"));
    let (mute, half) = (address(&silent), address(&halting));
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt as _;
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = halting.accept().await {
            let part = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{";
            stream.write_all(part).await.expect("sent");
            held.push(stream);
        }
    });
    for upstream in [&mute, &half] {
        for (method, class, certainty) in [
            ("POST", "ambiguous", Certainty::Unknown),
            ("GET", "timeout", Certainty::NotDone),
        ] {
            let charge = Charge {
                method,
                body: None,
                ..Charge::default()
            };
            let provider = charge.provider(upstream).expect("a legal effect");
            let begin = tokio::time::Instant::now();
            let call = attempt_within(limit, &provider, &provider.environment, "payments-charge", INPUT);
            let late = failure(call.await);
            assert_eq!((&*late.class, late.certainty), (class, certainty), "{late:?}");
            assert!(begin.elapsed() < Duration::from_secs(3), "by itself: {late:?}");
        }
    }
}

#[tokio::test]
async fn rules_of_the_definition_come_first_and_the_first_match_wins() {
    let charge = Charge {
        classify: vec![
            ("response.body.code == \"duplicate\"", "succeeded"),
            ("response.status == 402", "declined"),
            ("response.status >= 400", "other"),
        ],
        ..Charge::default()
    };
    let declined = failure(charge.answered(ResponseTemplate::new(402)).await);
    assert_eq!(
        (&*declined.class, declined.certainty),
        ("declined", Certainty::Refused)
    );
    let duplicate = ResponseTemplate::new(409).set_body_string(r#"{"code":"duplicate"}"#);
    assert_eq!(
        payload(charge.answered(duplicate).await),
        r#"{"code":"duplicate"}"#
    );
}

#[tokio::test]
async fn a_class_for_an_unknown_outcome_makes_it_one() {
    for (status, class, certainty) in [
        (503, "ambiguous", Certainty::Unknown),
        (409, "timeout", Certainty::Unknown),
        (404, "transient", Certainty::NotDone),
        (502, "declined", Certainty::Unknown),
        (200, "declined", Certainty::Refused),
        (200, "transient", Certainty::NotDone),
    ] {
        let charge = Charge {
            classify: vec![("response.status > 0", class)],
            ..Charge::default()
        };
        let ruled = failure(charge.answered(ResponseTemplate::new(status)).await);
        assert_eq!((&*ruled.class, ruled.certainty), (class, certainty), "{status}");
    }
}

#[tokio::test]
async fn an_upstream_that_asks_for_patience_is_heard_up_to_an_hour() {
    for (asked, seconds) in [
        ("7", 7),
        ("1000000000", 3_600),
        ("99999999999999999999999", 3_600),
    ] {
        let answer = ResponseTemplate::new(429).insert_header("Retry-After", asked);
        let failure = failure(Charge::default().answered(answer).await);
        assert_eq!(failure.retry_after, Some(Duration::from_secs(seconds)), "{asked}");
    }
}

/// `NOW` is 22:13:20 on that day.
#[tokio::test]
async fn patience_until_a_date_counts_from_the_date_of_the_answer() {
    let until = "Tue, 14 Nov 2023 22:14:20 GMT";
    for (date, asked, wait) in [
        (None, until, Some(59_500)),
        (Some("Tue, 14 Nov 2023 22:14:13 GMT"), until, Some(7_000)),
        (Some("garbage"), until, Some(59_500)),
        (None, "Wed, 15 Nov 2023 22:14:20 GMT", Some(3_600_000)),
        (None, "Tue, 14 Nov 2023 22:13:10 GMT", None),
        (None, "-5", None),
        (None, "soon", None),
        (None, "", None),
    ] {
        let mut headers = hyper::HeaderMap::new();
        headers.insert("retry-after", asked.parse().expect("a value"));
        if let Some(date) = date {
            headers.insert("date", date.parse().expect("a value"));
        }
        let told = answer::retry_after(&headers, NOW);
        assert_eq!(told, wait.map(Duration::from_millis), "{asked:?} at {date:?}");
    }
}

#[tokio::test]
async fn line_breaks_never_reach_a_header() {
    let server = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200))
        .expect(0)
        .mount(&server)
        .await;
    let charge = Charge {
        headers: vec![("X-Order", "${input.order}")],
        ..Charge::default()
    };
    for order in ["a\\r\\nX-Admin: 1", "a\\nb", "a\\u0000b"] {
        let input = format!(r#"{{"order":"{order}","amount":1}}"#);
        let failure = failure(charge.call(&server.uri(), &input).await);
        assert_eq!(
            (&*failure.class, failure.certainty),
            ("header.illegal", Certainty::NotDone),
            "{order}"
        );
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let bomb = || ResponseTemplate::new(200).set_body_bytes(vec![b'x'; 1024 * 1024 + 1]);
    let failure_of = failure(Charge::default().answered(bomb()).await);
    // The upstream said that it did it, so the saga must not take it for undone.
    assert_eq!(
        (&*failure_of.class, failure_of.certainty),
        ("response.size", Certainty::Unknown)
    );
    let chunked = bomb().insert_header("transfer-encoding", "chunked");
    let small = Charge {
        settings: Settings {
            response_bytes: 1_000,
            ..Settings::default()
        },
        ..Charge::default()
    };
    assert_eq!(failure(small.answered(chunked).await).class, "response.size");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200))
        .expect(0)
        .mount(&elsewhere)
        .await;
    let answer = ResponseTemplate::new(307).insert_header("Location", elsewhere.uri().as_str());
    let failure = failure(Charge::default().answered(answer).await);
    assert_eq!(
        (&*failure.class, failure.certainty),
        ("egress.denied", Certainty::NotDone)
    );
}

#[tokio::test]
async fn no_value_leads_a_call_to_another_host_or_up_the_path() {
    let charge = Charge {
        url: "${upstreams.pay}${input.order}",
        ..Charge::default()
    };
    for order in [
        "@evil.example/",
        ".evil.example/",
        ":81/",
        "/a/../../admin",
        "/%2e%2E/admin",
        "\\\\..\\\\x",
    ] {
        let input = format!(r#"{{"order":"{order}","amount":1}}"#);
        let failure = failure(charge.call("http://pay.example", &input).await);
        assert_eq!(failure.class, "egress.denied", "{order}: {}", failure.message);
    }
}

#[tokio::test]
async fn metadata_and_forbidden_private_addresses_are_not_called() {
    let literal = failure(Charge::default().call("http://169.254.169.254", INPUT).await);
    assert_eq!(literal.class, "egress.denied");
    let public_only = Charge {
        settings: Settings {
            egress: Egress {
                allow_private: false,
                ..Egress::default()
            },
            ..Settings::default()
        },
        ..Charge::default()
    };
    let named = failure(public_only.call("http://localhost:9", INPUT).await);
    assert_eq!(
        (&*named.class, named.certainty),
        ("egress.denied", Certainty::NotDone)
    );
}

#[tokio::test]
async fn a_closed_port_is_transient_and_certain() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let failure = failure(Charge::default().call(&format!("http://{address}"), INPUT).await);
    assert_eq!(
        (&*failure.class, failure.certainty),
        ("transient", Certainty::NotDone)
    );
}

#[tokio::test]
async fn a_connection_that_breaks_after_sending_leaves_the_outcome_open() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("bound");
    let upstream = tokio::spawn(async move {
        use tokio::io::AsyncReadExt as _;
        let (mut stream, _) = listener.accept().await.expect("a caller");
        let mut request = [0; 64];
        stream.read_exact(&mut request).await.expect("a request");
    });
    let failure = failure(Charge::default().call(&format!("http://{address}"), INPUT).await);
    upstream.await.expect("the upstream saw the request");
    assert_eq!(
        (&*failure.class, failure.certainty),
        ("ambiguous", Certainty::Unknown)
    );
}

#[tokio::test]
async fn a_missing_secret_is_named_and_nothing_is_sent() {
    let charge = Charge {
        headers: vec![("Authorization", "Bearer ${secrets.nope}")],
        ..Charge::default()
    };
    let failure = failure(charge.call("http://pay.example", INPUT).await);
    assert_eq!(failure.class, "secret.missing");
    assert!(failure.message.contains("nope"), "{}", failure.message);
}

#[test]
fn an_effect_whose_host_depends_on_a_command_does_not_start() {
    for url in [
        "${url(input.order)}/x",
        "http://${url(input.order)}/x",
        "ftp://pay.example/x",
        "/x",
    ] {
        let charge = Charge {
            url,
            ..Charge::default()
        };
        assert!(charge.provider("http://pay.example").is_err(), "{url}");
    }
}

/// A server that wants to see a certificate of its callers, with its address. It ends with its standard input.
pub fn https_upstream(authority: &Authority, own: &Identity) -> (String, Child) {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str, pem: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, pem).expect("written");
        path
    };
    let mut upstream = Command::new("python3")
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/support/https_upstream.py"
        ))
        .args([
            place("cert.pem", &own.certificate),
            place("key.pem", &own.key),
            place("ca.pem", &authority.pem()),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut port = String::new();
    let output = upstream.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut port).expect("the port");
    (format!("https://localhost:{}", port.trim()), upstream)
}

#[tokio::test]
async fn an_upstream_and_its_caller_prove_who_they_are() {
    let authority = Authority::new();
    let own = authority.certify("localhost");
    let (address, mut upstream) = https_upstream(&authority, &own);
    let known = UpstreamTls {
        ca: Some(authority.pem()),
        identity: Some(authority.certify("runner")),
    };
    let charge = |tls: &UpstreamTls| Charge {
        tls: tls.clone(),
        ..Charge::default()
    };
    let friend = charge(&known).call(&address, INPUT).await;
    assert_eq!(payload(friend), r#"{"caller":"runner"}"#);
    for tls in [
        UpstreamTls {
            ca: None,
            ..known.clone()
        },
        UpstreamTls {
            identity: None,
            ..known.clone()
        },
    ] {
        let refused = failure(charge(&tls).call(&address, INPUT).await);
        assert_eq!(
            (&*refused.class, refused.certainty),
            ("tls.untrusted", Certainty::NotDone),
            "{refused:?}"
        );
    }
    // Its standard input is closed, so it ends by itself.
    drop(upstream.stdin.take());
    upstream.wait().expect("it ends");
}
