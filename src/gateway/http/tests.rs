use wiremock::matchers::{body_partial_json, header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::gateway::testing::{KEY, TRACEPARENT, command, payload};
use crate::kernel::duration::Millis;

/// Longer than any answer of these tests takes.
const LONG: Duration = Duration::from_mins(1);

fn gateway(url: &str, timeout: Duration) -> HttpGateway {
    let settings = Settings {
        timeout: Millis(u64::try_from(timeout.as_millis()).expect("short")),
        ..Settings::default()
    };
    HttpGateway::new(Url::parse(url).expect("a URL"), &settings).expect("legal settings")
}

async fn submit(server: &MockServer) -> Result<(), GatewayError> {
    gateway(&format!("{}/commands", server.uri()), LONG)
        .submit(&command(&payload()), LONG)
        .await
}

async fn answering(answer: ResponseTemplate) -> Result<(), GatewayError> {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .respond_with(answer)
        .mount(&server)
        .await;
    submit(&server).await
}

#[tokio::test]
async fn a_command_carries_tenant_idempotency_key_and_trace() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/commands"))
        .and(header("x-tenant-id", "acme"))
        .and(header("idempotency-key", KEY))
        .and(header("traceparent", TRACEPARENT))
        .and(body_partial_json(serde_json::json!({
            "tenant_id": "acme",
            "aggregate_id": "shp-1",
            "command_type": "Shipment.Create",
            "payload_json": {"order": "o-1"},
        })))
        .respond_with(ResponseTemplate::new(202))
        .expect(1)
        .mount(&server)
        .await;
    assert_eq!(submit(&server).await, Ok(()));
}

#[tokio::test]
async fn a_refusal_is_definite_and_tells_its_reason_in_bounded_length() {
    let long = "no such order\r\n".to_owned() + &"x".repeat(5_000);
    let Err(GatewayError::Rejected { message }) =
        answering(ResponseTemplate::new(422).set_body_string(long)).await
    else {
        panic!("not rejected");
    };
    assert!(
        message.starts_with("422 Unprocessable Entity: no such order  x"),
        "{message}"
    );
    assert!(message.len() < 1_100 && !message.contains('\n'));
}

#[tokio::test]
async fn patience_and_server_errors_are_not_refusals() {
    for status in [302, 425, 429, 501, 503, 505] {
        let answer = answering(ResponseTemplate::new(status)).await;
        assert!(
            matches!(answer, Err(GatewayError::Unavailable { .. })),
            "{status}: {answer:?}"
        );
    }
    for status in [408, 500, 502, 504, 507, 520] {
        let answer = answering(ResponseTemplate::new(status)).await;
        assert!(
            matches!(answer, Err(GatewayError::Unknown { .. })),
            "{status}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn silence_after_sending_is_unknown() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .respond_with(ResponseTemplate::new(200).set_delay(LONG))
        .mount(&server)
        .await;
    let short = Duration::from_millis(400);
    // Whichever ends first: the patience of the settings or the time that the command has left.
    for (timeout, within) in [(short, LONG), (LONG, short)] {
        let answer = gateway(&server.uri(), timeout)
            .submit(&command(&payload()), within)
            .await;
        assert!(matches!(answer, Err(GatewayError::Unknown { .. })), "{answer:?}");
    }
}

#[tokio::test]
async fn a_closed_port_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let gateway = gateway(&format!("http://{address}/"), LONG);
    let answer = gateway.submit(&command(&payload()), LONG).await;
    assert!(
        matches!(answer, Err(GatewayError::Unavailable { .. })),
        "{answer:?}"
    );
}
