//! Calls that prove who makes them: with tokens of OAuth 2, and with signatures.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use data_encoding::BASE64;
use wiremock::matchers::{any, body_string, header, method, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate, Times};

use super::tests::https_upstream;
use super::*;
use crate::clients::UpstreamTls;
use crate::clients::testing::Authority;
use crate::effects::egress::Egress;
use crate::effects::provider::Certainty;
use crate::effects::secrets::Secrets;
use crate::effects::testing::{NOW, attempt, attempt_at, failure, payload};
use crate::kernel::definition::{SourceFile, load};
use crate::kernel::ids::TimeMs;

const CLIENT_SECRET: &str = "cl1ent/s3cret";
/// base64 of `shop:cl1ent%2Fs3cret`.
const BASIC: &str = "Basic c2hvcDpjbDFlbnQlMkZzM2NyZXQ=";

const OAUTH2: &str = r#"
  auth:
    oauth2:
      token_url: "${upstreams.idp}/token"
      client_id: shop
      client_secret: "${secrets.client}"
"#;

/// An effect with its provider.
struct Caller {
    provider: Http,
    environment: Arc<Environment>,
    secrets: Arc<Secrets>,
}

fn values(values: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    values.iter().map(owned).collect()
}

impl Caller {
    /// A call of POST with `more` keys of `http`, and keys of the file behind them.
    fn with(more: &str, upstreams: &[(&str, &str)], settings: &Settings, tls: &UpstreamTls) -> Self {
        let text = format!(
            "apiVersion: sagas/v1\nkind: Effect\nname: charge\nhttp:\n  method: POST\n  url: \"${{upstreams.pay}}/charges?by=${{url(input.by)}}\"\n  body: {{amount: \"${{input.amount}}\"}}\n{}",
            more.trim_start_matches('\n')
        );
        let file = SourceFile {
            path: "charge.yaml".to_owned(),
            text: Arc::from(text),
        };
        let loaded = load(&[], &[file]);
        let faults: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        assert!(faults.is_empty(), "{faults:?}");
        let definition = Arc::clone(&loaded.effects[0]);
        let secrets = Arc::new(Secrets::new(&values(&[
            ("client", CLIENT_SECRET),
            ("key", "s1gning-key"),
        ])));
        let environment = Environment::new(Arc::clone(&secrets), &values(upstreams), None)
            .with_tls(BTreeMap::from([("idp".to_owned(), tls.clone())]));
        let environment = Arc::new(environment);
        let ProviderDefinition::Http(call) = &definition.provider else {
            panic!("an effect over HTTP");
        };
        Self {
            provider: Http::new(&definition, call, &environment, settings).expect("a legal effect"),
            environment,
            secrets,
        }
    }

    fn new(more: &str, pay: &MockServer, idp: &MockServer) -> Self {
        let upstreams = [("pay", &*pay.uri()), ("idp", &*idp.uri())];
        Self::with(more, &upstreams, &Settings::default(), &UpstreamTls::default())
    }

    async fn call(&self) -> CallOutcome {
        let outcome = attempt(&self.provider, &self.environment, "charge", INPUT).await;
        self.environment.secrets().scrub(outcome)
    }
}

const INPUT: &str = r#"{"by":"a b","amount":12}"#;

/// Gives the tokens `t0ken-1`, `t0ken-2` and so on, with `more` members.
fn counting(more: &'static str) -> impl Fn(&Request) -> ResponseTemplate + Send + Sync {
    let count = AtomicUsize::new(0);
    move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        let body = format!(r#"{{"access_token":"t0ken-{number}","token_type":"bearer"{more}}}"#);
        ResponseTemplate::new(200).set_body_string(body)
    }
}

/// An endpoint with numbered tokens that is asked `times`.
async fn endpoint(more: &'static str, times: impl Into<Times>) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/token"))
        .respond_with(counting(more))
        .expect(times)
        .mount(&server)
        .await;
    server
}

/// An upstream that takes calls with one of `tokens` and refuses all others.
async fn taking(tokens: &[&str]) -> MockServer {
    let server = MockServer::start().await;
    for token in tokens {
        Mock::given(header("authorization", format!("Bearer {token}").as_str()))
            .respond_with(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#))
            .mount(&server)
            .await;
    }
    Mock::given(any())
        .respond_with(|request: &Request| {
            let sent = request.headers["authorization"].to_str().expect("text");
            ResponseTemplate::new(401).set_body_string(format!("{sent} is refused"))
        })
        .with_priority(10)
        .mount(&server)
        .await;
    server
}

async fn received(server: &MockServer) -> Vec<Request> {
    server.received_requests().await.expect("they are recorded")
}

#[tokio::test]
async fn a_token_is_asked_for_as_the_standard_says_and_kept() {
    let idp = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/token"))
        .and(header("authorization", BASIC))
        .and(header("content-type", "application/x-www-form-urlencoded"))
        .and(body_string(
            "grant_type=client_credentials&scope=pay%20read%3Aall&audience=https%3A%2F%2Fpay.example&tenant=acme",
        ))
        .respond_with(counting(r#","expires_in":3600"#))
        .expect(1)
        .mount(&idp)
        .await;
    let pay = taking(&["t0ken-1"]).await;
    let more = format!(
        "{OAUTH2}      scopes: [pay, \"read:all\"]\n      audience: https://pay.example\n      parameters: {{tenant: \"${{command.tenant}}\"}}\n"
    );
    let caller = Caller::new(&more, &pay, &idp);
    for _ in 0..3 {
        assert_eq!(payload(caller.call().await), r#"{"id":"c-1"}"#);
    }
}

#[tokio::test]
async fn credentials_can_go_into_the_form() {
    let idp = MockServer::start().await;
    Mock::given(body_string(
        "grant_type=client_credentials&client_id=shop&client_secret=cl1ent%2Fs3cret",
    ))
    .respond_with(counting(""))
    .expect(1)
    .mount(&idp)
    .await;
    let pay = taking(&["t0ken-1"]).await;
    let caller = Caller::new(&format!("{OAUTH2}      send: body\n"), &pay, &idp);
    assert_eq!(payload(caller.call().await), r#"{"id":"c-1"}"#);
    assert!(!received(&idp).await[0].headers.contains_key("authorization"));
}

#[tokio::test]
async fn of_many_calls_one_fetches_the_token() {
    let idp = MockServer::start().await;
    let answer = ResponseTemplate::new(200)
        .set_body_string(r#"{"access_token":"t0ken-1"}"#)
        .set_delay(Duration::from_millis(200));
    Mock::given(any())
        .respond_with(answer)
        .expect(1)
        .mount(&idp)
        .await;
    let pay = taking(&["t0ken-1"]).await;
    let caller = Caller::new(OAUTH2, &pay, &idp);
    let outcomes = futures::future::join_all((0..20).map(|_| caller.call())).await;
    assert!(
        outcomes
            .into_iter()
            .all(|outcome| payload(outcome) == r#"{"id":"c-1"}"#)
    );
}

#[tokio::test]
async fn a_token_that_has_ended_is_replaced_before_the_call() {
    let idp = endpoint(r#","expires_in":0"#, 3).await;
    let pay = taking(&["t0ken-1", "t0ken-2", "t0ken-3"]).await;
    let caller = Caller::new(OAUTH2, &pay, &idp);
    for _ in 0..3 {
        payload(caller.call().await);
    }
    assert_eq!(received(&pay).await.len(), 3, "no call was refused");
}

#[tokio::test]
async fn a_refused_token_is_replaced_and_the_call_made_again() {
    let idp = endpoint(r#","expires_in":3600"#, 2).await;
    let pay = taking(&["t0ken-2"]).await;
    let caller = Caller::new(OAUTH2, &pay, &idp);
    assert_eq!(payload(caller.call().await), r#"{"id":"c-1"}"#);
    assert_eq!(payload(caller.call().await), r#"{"id":"c-1"}"#);
    let calls = received(&pay).await;
    assert_eq!(calls.len(), 3, "one was refused");
    assert_eq!(calls[0].body, calls[1].body);
}

#[tokio::test]
async fn a_client_that_the_upstream_refuses_does_not_ask_for_tokens_without_end() {
    let idp = endpoint(r#","expires_in":3600"#, 1..=30).await;
    let pay = taking(&[]).await;
    let caller = Caller::new(OAUTH2, &pay, &idp);
    for _ in 0..20 {
        let failure = failure(caller.call().await);
        assert_eq!(
            (&*failure.class, failure.certainty),
            ("permanent", Certainty::NotDone)
        );
        // What the upstream repeats of the token is masked.
        assert_eq!(failure.message, "401 Unauthorized: Bearer *** is refused");
    }
}

#[tokio::test]
async fn a_token_that_an_answer_repeats_is_masked() {
    let idp = endpoint("", 1).await;
    let pay = MockServer::start().await;
    let body = r#"{"us":"cl1ent/s3cret","you":"Bearer t0ken-1"}"#;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200).set_body_string(body))
        .mount(&pay)
        .await;
    let outcome = Caller::new(OAUTH2, &pay, &idp).call().await;
    assert_eq!(payload(outcome), r#"{"us":"***","you":"Bearer ***"}"#);
}

#[tokio::test]
async fn without_a_token_nothing_is_sent_and_the_failure_is_certain() {
    for (status, body, class, message) in [
        (
            400,
            r#"{"error":"invalid_scope"}"#,
            "permanent",
            "no token: 400 Bad Request: invalid_scope",
        ),
        (
            401,
            r#"{"error":"invalid_client"}"#,
            "permanent",
            "no token: 401 Unauthorized: invalid_client",
        ),
        (
            401,
            r#"{"error":"shop:cl1ent/s3cret"}"#,
            "permanent",
            "no token: 401 Unauthorized: shop:***",
        ),
        (
            401,
            r#"{"error":"c2hvcDpjbDFlbnQlMkZzM2NyZXQ="}"#,
            "permanent",
            "no token: 401 Unauthorized: ***",
        ),
        (403, "cl1ent/s3cret", "permanent", "no token: 403 Forbidden"),
        (429, "", "throttled", "no token: 429 Too Many Requests"),
        (503, "", "transient", "no token: 503 Service Unavailable"),
        (504, "", "timeout", "no token: 504 Gateway Timeout"),
        (307, "", "egress.denied", "no token: 307 Temporary Redirect"),
        (200, "<html>", "permanent", "no token: the answer is not JSON"),
        (200, "{}", "permanent", "no token: the answer has no access_token"),
        (
            200,
            r#"{"access_token":"t0ken-1","token_type":"mac"}"#,
            "permanent",
            "no token: the token is of another type than Bearer",
        ),
        (
            200,
            r#"{"access_token":"a\nb"}"#,
            "permanent",
            "no token: the token holds characters that no header may hold",
        ),
    ] {
        let idp = MockServer::start().await;
        let answer = ResponseTemplate::new(status)
            .set_body_string(body)
            .insert_header("location", "http://elsewhere.example");
        Mock::given(any()).respond_with(answer).mount(&idp).await;
        let pay = MockServer::start().await;
        Mock::given(any())
            .respond_with(ResponseTemplate::new(200))
            .expect(0)
            .mount(&pay)
            .await;
        let caller = Caller::new(OAUTH2, &pay, &idp);
        let first = failure(caller.call().await);
        assert_eq!(
            (&*first.class, &*first.message, first.certainty),
            (class, message, Certainty::NotDone)
        );
        assert_eq!(first.end, crate::kernel::breaker::CallEnd::Abandoned, "{status}");
        // For a moment the endpoint is left alone, and whoever comes is told until when.
        let second = failure(caller.call().await);
        assert_eq!(second.message, first.message);
        assert!(
            second.retry_after <= first.retry_after && second.retry_after.is_some(),
            "{second:?}"
        );
    }
}

#[tokio::test]
async fn an_endpoint_that_asks_for_patience_is_heard() {
    let idp = MockServer::start().await;
    let answer = ResponseTemplate::new(429).insert_header("retry-after", "300");
    Mock::given(any())
        .respond_with(answer)
        .expect(1)
        .mount(&idp)
        .await;
    let pay = MockServer::start().await;
    let caller = Caller::new(OAUTH2, &pay, &idp);
    for _ in 0..2 {
        let asked = failure(caller.call().await).retry_after.expect("a pause");
        assert!(
            (Duration::from_secs(1)..=Duration::from_mins(5)).contains(&asked),
            "{asked:?}"
        );
    }
}

#[tokio::test]
async fn a_failing_token_endpoint_is_a_known_outcome() {
    let pay = MockServer::start().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = format!("http://{}", listener.local_addr().expect("bound"));
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", listener.local_addr().expect("bound"))
    };
    let endless = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200).set_body_bytes(vec![b' '; 64 * 1024 + 1]))
        .mount(&endless)
        .await;
    for (idp, class) in [
        (silent, "timeout"),
        (gone, "transient"),
        (endless.uri(), "response.size"),
        ("http://169.254.169.254".to_owned(), "egress.denied"),
    ] {
        let upstreams = [("pay", &*pay.uri()), ("idp", &*idp)];
        let more = format!("{OAUTH2}timeout: {{connect: 2s, total: 4s}}\n");
        let caller = Caller::with(&more, &upstreams, &Settings::default(), &UpstreamTls::default());
        let failure = failure(caller.call().await);
        assert_eq!(
            (&*failure.class, failure.certainty),
            (class, Certainty::NotDone),
            "{idp}"
        );
    }
    let public_only = Settings {
        egress: Egress {
            allow_private: false,
            ..Egress::default()
        },
        ..Settings::default()
    };
    let upstreams = [("pay", "http://pay.example"), ("idp", "http://localhost:9")];
    let caller = Caller::with(OAUTH2, &upstreams, &public_only, &UpstreamTls::default());
    assert_eq!(failure(caller.call().await).class, "egress.denied");
    assert!(received(&pay).await.is_empty());
}

#[tokio::test]
async fn a_changed_secret_gets_a_token_of_its_own() {
    let idp = MockServer::start().await;
    let other = BASE64.encode(b"shop:an0ther-secret");
    for (basic, token) in [(BASIC, "t0ken-1"), (&format!("Basic {other}"), "t0ken-2")] {
        let body = format!(r#"{{"access_token":"{token}","expires_in":3600}}"#);
        Mock::given(header("authorization", basic))
            .respond_with(ResponseTemplate::new(200).set_body_string(body))
            .expect(1)
            .mount(&idp)
            .await;
    }
    let pay = taking(&["t0ken-1", "t0ken-2"]).await;
    let caller = Caller::new(OAUTH2, &pay, &idp);
    payload(caller.call().await);
    caller
        .secrets
        .replace(&values(&[("client", "an0ther-secret"), ("key", "k")]));
    payload(caller.call().await);
    let sent: Vec<String> = received(&pay)
        .await
        .iter()
        .map(|call| call.headers["authorization"].to_str().expect("text").to_owned())
        .collect();
    assert_eq!(sent, ["Bearer t0ken-1", "Bearer t0ken-2"]);
}

#[tokio::test]
async fn an_endpoint_and_its_caller_prove_who_they_are() {
    let authority = Authority::new();
    let (address, mut idp) = https_upstream(&authority, &authority.certify("localhost"));
    let pay = taking(&["runner-of-acme"]).await;
    let upstreams = [("pay", &*pay.uri()), ("idp", &*address)];
    let known = UpstreamTls {
        ca: Some(authority.pem()),
        identity: Some(authority.certify("runner-of-acme")),
    };
    let caller = |tls: &UpstreamTls| Caller::with(OAUTH2, &upstreams, &Settings::default(), tls);
    assert_eq!(payload(caller(&known).call().await), r#"{"id":"c-1"}"#);
    let stranger = failure(caller(&UpstreamTls::default()).call().await);
    assert_eq!(
        (&*stranger.class, stranger.certainty),
        ("tls.untrusted", Certainty::NotDone)
    );
    drop(idp.stdin.take());
    idp.wait().expect("it ends");
}

/// The one call that an upstream got from an effect with `more`, made at `now`.
async fn signed(more: &str, now: TimeMs) -> Request {
    let pay = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200))
        .mount(&pay)
        .await;
    let caller = Caller::new(more, &pay, &pay);
    payload(attempt_at(now, &caller.provider, &caller.environment, "charge", INPUT).await);
    received(&pay).await.remove(0)
}

fn text<'r>(request: &'r Request, name: &str) -> &'r str {
    request.headers[name].to_str().expect("text")
}

const BODY: &str = r#"{"amount":12}"#;

// Computed with Python's `hmac` under the key `s1gning-key`: of the body, and of the body behind `TIME.`.
const SHA256_OF_BODY: &str = "f27a2273ceabe2dba7db4e560ffff858fb4368a5ce907bdefeb794fc27adc795";
const SHA256_AT_1700000000: &str = "ac8b6326aae4cd7e35c2e4b74e0870fecd81c27722c1f8877e09c13c0e5c8a4c";
const SHA256_AT_1700000061: &str = "5e225607f8102b60b6e6aa27cd42a00a5fd83251e4b404edcd460ef058f6f269";
// Of `POST\n/charges?by=a%20b\n1700000000500\n` and the body, in Base64.
const SHA512_OF_REQUEST: &str =
    "Pn7TGEdBYo7swC7xVP8kG/tcjPZ1Pfz6UvSDA/5Pgok2ya0zMousoltKHXZYsUZ5Q8vbg6QheLVsqE2FLXQUdQ==";

#[tokio::test]
async fn a_body_is_signed_as_github_does_it() {
    let more =
        "  sign: {key: \"${secrets.key}\", header: X-Hub-Signature-256, value: \"sha256=${signature}\"}\n";
    let request = signed(more, NOW).await;
    assert_eq!(request.body, BODY.as_bytes());
    let expected = format!("sha256={SHA256_OF_BODY}");
    assert_eq!(text(&request, "x-hub-signature-256"), expected);
}

#[tokio::test]
async fn time_and_body_are_signed_as_stripe_does_it() {
    let more = "  sign:\n    key: \"${secrets.key}\"\n    header: Stripe-Signature\n    content: \"${timestamp}.${body}\"\n    value: \"t=${timestamp},v1=${signature}\"\n";
    let request = signed(more, NOW).await;
    assert_eq!(
        text(&request, "stripe-signature"),
        format!("t=1700000000,v1={SHA256_AT_1700000000}")
    );
    // Another attempt is signed at its own time.
    let later = signed(more, NOW.plus_ms(61_000)).await;
    assert_eq!(
        text(&later, "stripe-signature"),
        format!("t=1700000061,v1={SHA256_AT_1700000061}")
    );
}

#[tokio::test]
async fn method_path_and_query_are_signed_as_they_are_sent() {
    let more = r#"
  sign:
    key: "${secrets.key}"
    algorithm: sha512
    encoding: base64
    header: X-Signature
    timestamp: {header: X-Time, unit: ms}
    content: "${method}\n${path}\n${timestamp}\n${body}"
"#;
    let request = signed(more, NOW).await;
    assert_eq!(text(&request, "x-time"), "1700000000500");
    assert_eq!(text(&request, "x-signature"), SHA512_OF_REQUEST);
}

#[tokio::test]
async fn a_call_that_is_repeated_with_a_new_token_is_signed_too() {
    let idp = endpoint("", 2).await;
    let pay = taking(&["t0ken-2"]).await;
    let more = format!("{OAUTH2}  sign: {{key: \"${{secrets.key}}\", header: X-Signature}}\n");
    payload(Caller::new(&more, &pay, &idp).call().await);
    let calls = received(&pay).await;
    assert_eq!(calls.len(), 2);
    for call in &calls {
        assert_eq!(text(call, "x-signature"), SHA256_OF_BODY);
    }
}
