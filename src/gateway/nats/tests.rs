use std::sync::Mutex;

use serde_json::{Value, json};

use super::*;
use crate::gateway::testing::{KEY, TRACEPARENT, command, payload};
use crate::kernel::duration::Millis;
use crate::kernel::ids::TenantId;
use crate::ports::messenger::{Reply, Stored};

/// Keeps what it is given and answers what it is told to.
struct Answering {
    answer: Result<Vec<u8>, MessengerError>,
    asked: Mutex<Vec<(Outgoing, Duration)>>,
}

#[async_trait]
impl Messenger for Answering {
    async fn request(&self, message: Outgoing, timeout: Duration) -> Result<Reply, MessengerError> {
        self.asked.lock().expect("not poisoned").push((message, timeout));
        self.answer.clone().map(|payload| Reply {
            headers: Vec::new(),
            payload: Bytes::from(payload),
        })
    }

    async fn send(&self, _: Outgoing) -> Result<(), MessengerError> {
        panic!("a command is a request")
    }

    async fn store(&self, _: Outgoing, _: &str) -> Result<Stored, MessengerError> {
        panic!("a command is a request")
    }

    async fn value(&self, _: &str, _: &str) -> Result<Option<Bytes>, MessengerError> {
        panic!("a command is a request")
    }
}

fn gateway(answer: Result<Vec<u8>, MessengerError>) -> (NatsGateway, Arc<Answering>) {
    let messenger = Arc::new(Answering {
        answer,
        asked: Mutex::default(),
    });
    let settings = Settings {
        timeout: Millis::seconds(7),
        tenant_header: "X-Owner".to_owned(),
        ..Settings::default()
    };
    let subject = SubjectPattern::parse("gateway.{tenant}.{aggregate_type}").expect("a pattern");
    let gateway = NatsGateway::new(subject, &settings, Arc::clone(&messenger) as _);
    (gateway, messenger)
}

async fn submit(answer: Result<Vec<u8>, MessengerError>) -> Result<(), GatewayError> {
    let (gateway, _) = gateway(answer);
    gateway.submit(&command(&payload()), Duration::from_mins(1)).await
}

async fn replied(reply: impl Into<Vec<u8>>) -> Result<(), GatewayError> {
    submit(Ok(reply.into())).await
}

#[tokio::test]
async fn a_request_carries_tenant_idempotency_key_and_trace() {
    let (gateway, messenger) = gateway(Ok(br#"{"status":"accepted"}"#.to_vec()));
    let payload = payload();
    assert_eq!(
        gateway.submit(&command(&payload), Duration::from_mins(1)).await,
        Ok(())
    );
    let mut bare = command(&payload);
    bare.tenant_id = TenantId::none();
    bare.metadata.traceparent = Some("garbage".to_owned());
    assert_eq!(gateway.submit(&bare, Duration::from_secs(3)).await, Ok(()));
    let asked = messenger.asked.lock().expect("not poisoned");
    let (message, timeout) = &asked[0];
    assert_eq!(message.subject, "gateway.acme.Shipment");
    let headers: Vec<(&str, &str)> = message
        .headers
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    let expected = [
        ("Content-Type", "application/json"),
        ("Idempotency-Key", KEY),
        ("X-Owner", "acme"),
        ("traceparent", TRACEPARENT),
    ];
    assert_eq!(headers, expected);
    let body: Value = serde_json::from_slice(&message.payload).expect("JSON");
    assert_eq!(body, serde_json::to_value(command(&payload)).expect("JSON"));
    assert_eq!(*timeout, Duration::from_secs(7));
    // Neither a tenant nor a trace, and less time than the settings give.
    let (message, timeout) = &asked[1];
    assert_eq!(message.headers.len(), 2);
    assert_eq!(*timeout, Duration::from_secs(3));
}

#[tokio::test]
async fn the_reply_gives_the_outcome_of_the_command() {
    assert_eq!(replied(r#"{"status":"accepted","event":"e-7"}"#).await, Ok(()));
    let long = json!({"status": "rejected", "message": "no\u{7}such order ".to_owned() + &"x".repeat(3_000)});
    let Err(GatewayError::Rejected { message }) = replied(long.to_string()).await else {
        panic!("not rejected");
    };
    assert!(
        message.starts_with("no such order x") && message.len() <= 1_024,
        "{message}"
    );
    let busy = replied(r#"{"status":"unavailable","message":"later"}"#).await;
    let message = "later".to_owned();
    assert_eq!(busy, Err(GatewayError::Unavailable { message }));
}

#[tokio::test]
async fn a_reply_that_is_none_leaves_open_what_happened() {
    let long = json!({"status": "accepted", "message": "x".repeat(REPLY_BYTES_MAX)});
    for reply in [
        "",
        "yes",
        "{}",
        r#"{"status":"done"}"#,
        // What a stream says that takes the subject.
        r#"{"stream":"COMMANDS","seq":7}"#,
        &long.to_string(),
    ] {
        let answer = replied(reply).await;
        assert!(
            matches!(answer, Err(GatewayError::Unknown { .. })),
            "{reply:.40}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn only_silence_leaves_open_what_happened() {
    let said = || "why".to_owned();
    let unheard = submit(Err(MessengerError::Unheard(said()))).await;
    let away = submit(Err(MessengerError::Unavailable(said()))).await;
    for answer in [unheard, away] {
        assert!(
            matches!(answer, Err(GatewayError::Unavailable { .. })),
            "{answer:?}"
        );
    }
    let silent = submit(Err(MessengerError::Unknown(said()))).await;
    assert!(matches!(silent, Err(GatewayError::Unknown { .. })), "{silent:?}");
    let large = submit(Err(MessengerError::Refused(said()))).await;
    assert!(matches!(large, Err(GatewayError::Unsendable { .. })), "{large:?}");
    let (gateway, messenger) = gateway(Ok(Vec::new()));
    let payload = payload();
    let mut endless = command(&payload);
    endless.aggregate_type = "x".repeat(2_000);
    let answer = gateway.submit(&endless, Duration::from_mins(1)).await;
    assert!(
        matches!(answer, Err(GatewayError::Unsendable { .. })),
        "{answer:?}"
    );
    assert!(messenger.asked.lock().expect("not poisoned").is_empty());
}
