use std::time::Duration;

use serde_json::value::RawValue;
use uuid::Uuid;
use wiremock::matchers::{body_partial_json, header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::kernel::envelope::CommandMetadata;
use crate::kernel::ids::{CommandId, Key, SagaName, TenantId};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn settings(url: &str) -> Settings {
    Settings {
        url: url.to_owned(),
        timeout: Millis(400),
        connect_timeout: Millis(200),
        tenant_header: default_tenant_header(),
    }
}

fn command(payload: &RawValue) -> AggregateCommand<'_> {
    AggregateCommand {
        tenant_id: TenantId::parse("acme").expect("legal"),
        command_id: CommandId(Uuid::from_u128(7)),
        aggregate_id: "shp-1".to_owned(),
        aggregate_type: "Shipment".to_owned(),
        command_type: "Shipment.Create".to_owned(),
        payload_json: payload,
        metadata: CommandMetadata {
            saga: SagaName::parse("order").expect("legal"),
            key: Key::parse("o-1").expect("legal"),
            correlation_id: "o-1".to_owned(),
            root_correlation_id: None,
            causation_id: "e-1".to_owned(),
            idempotency_key: "00112233445566778899aabbccddeeff".to_owned(),
            path: "steps.ship".to_owned(),
            attempt: 1,
            deadline_ms: 1_000,
            traceparent: Some(TRACEPARENT.to_owned()),
            hops: 0,
        },
    }
}

async fn submit(server: &MockServer) -> Result<(), GatewayError> {
    let payload = RawValue::from_string(r#"{"order":"o-1"}"#.to_owned()).expect("json");
    HttpGateway::new(&settings(&format!("{}/commands", server.uri())))
        .expect("legal settings")
        .submit(&command(&payload))
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
        .and(header("idempotency-key", "00112233445566778899aabbccddeeff"))
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
    for status in [429, 500, 503, 302] {
        let answer = answering(ResponseTemplate::new(status)).await;
        assert!(
            matches!(answer, Err(GatewayError::Unavailable { .. })),
            "{status}: {answer:?}"
        );
    }
    let answer = answering(ResponseTemplate::new(408)).await;
    assert!(matches!(answer, Err(GatewayError::Unknown { .. })), "{answer:?}");
}

#[tokio::test]
async fn silence_after_sending_is_unknown() {
    let slow = ResponseTemplate::new(200).set_delay(Duration::from_secs(5));
    let answer = answering(slow).await;
    assert!(matches!(answer, Err(GatewayError::Unknown { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_closed_port_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let payload = RawValue::from_string("{}".to_owned()).expect("json");
    let gateway = HttpGateway::new(&settings(&format!("http://{address}/"))).expect("legal settings");
    let answer = gateway.submit(&command(&payload)).await;
    assert!(
        matches!(answer, Err(GatewayError::Unavailable { .. })),
        "{answer:?}"
    );
}

#[test]
fn settings_that_make_no_gateway_are_named() {
    for url in ["", "nats://x", "http://", "/commands"] {
        assert!(
            matches!(
                HttpGateway::new(&settings(url)),
                Err(GatewaySetupError::Url { .. })
            ),
            "{url:?}"
        );
    }
}
