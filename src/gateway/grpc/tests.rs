use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use prost::Message as _;
use prost_reflect::{DynamicMessage, ReflectMessage as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use self::peer::{Answer, Call};
use super::*;
use crate::clients::testing::Authority;
use crate::gateway::testing::{KEY, TRACEPARENT, command, payload};
use crate::kernel::duration::Millis;
use crate::kernel::ids::TenantId;

#[path = "../../../tests/support/grpc_gateway.rs"]
mod peer;

/// Longer than any answer of these tests takes.
const LONG: Duration = Duration::from_mins(1);

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    (listener, address)
}

/// A gateway in front of a server whose answers are made by `handler`.
async fn answering(handler: impl Fn(Call) -> Answer + Send + Sync + 'static) -> GrpcGateway {
    let (listener, address) = listener().await;
    peer::serve(listener, None, move |call| {
        std::future::ready(handler(call)).boxed()
    });
    gateway(&address)
}

fn gateway(address: &str) -> GrpcGateway {
    with(address, &Settings::default()).expect("a gateway")
}

fn with(address: &str, settings: &Settings) -> Result<GrpcGateway, GatewaySetupError> {
    GrpcGateway::new(&Url::parse(address).expect("a URL"), settings)
}

async fn submit(gateway: &GrpcGateway) -> Result<(), GatewayError> {
    gateway.submit(&command(&payload()), LONG).await
}

/// The command as the JSON envelope has it, the payload as the text that it is in the message.
fn envelope() -> Value {
    let payload = payload();
    let mut envelope = serde_json::to_value(command(&payload)).expect("JSON");
    envelope["payload_json"] = json!(payload.get());
    envelope
}

#[test]
fn the_messages_are_those_of_the_published_file() {
    let payload = payload();
    let ours = SubmitCommandRequest::from(&command(&payload));
    let bytes = ours.encode_to_vec();
    let published = DynamicMessage::decode(peer::message(peer::REQUEST), &*bytes).expect("decoded");
    assert_eq!(
        peer::json(&published),
        envelope(),
        "what is sent has the names and types of the file"
    );
    let metadata = published.get_field_by_name("metadata").expect("a field");
    let metadata = metadata.as_message().expect("a message");
    for message in [&published, metadata] {
        assert_eq!(message.unknown_fields().count(), 0, "{message}");
        for field in message.descriptor().fields() {
            let name = field.full_name();
            assert!(message.has_field(&field), "{name} is never sent");
        }
    }
    let text = envelope().to_string();
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    let theirs = DynamicMessage::deserialize(peer::message(peer::REQUEST), &mut deserializer);
    let theirs = theirs.expect("the envelope is a message").encode_to_vec();
    assert_eq!(SubmitCommandRequest::decode(&*theirs).expect("decoded"), ours);
}

#[test]
fn the_method_and_its_answer_are_those_of_the_published_file() {
    let pool = peer::pool();
    let mut services = pool.services();
    let service = services.next().expect("a service");
    assert!(services.next().is_none(), "one service");
    let methods: Vec<_> = service.methods().collect();
    let [method] = &methods[..] else {
        panic!("one method");
    };
    assert_eq!(format!("/{}/{}", service.full_name(), method.name()), PATH);
    assert!(!method.is_client_streaming() && !method.is_server_streaming());
    assert_eq!(method.input().full_name(), peer::REQUEST);
    assert_eq!(method.output().fields().len(), 0);
    assert!(SubmitCommandResponse {}.encode_to_vec().is_empty());
}

#[tokio::test]
async fn a_command_carries_tenant_idempotency_key_trace_and_patience() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sight = Arc::clone(&seen);
    let gateway = answering(move |call| {
        sight.lock().expect("not poisoned").push(call);
        Ok(Vec::new())
    })
    .await;
    assert_eq!(submit(&gateway).await, Ok(()));
    let soon = Duration::from_secs(5);
    let payload = payload();
    let mut bare = command(&payload);
    bare.tenant_id = TenantId::none();
    bare.metadata.traceparent = Some("garbage".to_owned());
    assert_eq!(gateway.submit(&bare, soon).await, Ok(()));
    let seen = seen.lock().expect("not poisoned");
    assert_eq!(seen[0].command, envelope());
    for (name, value) in [
        ("x-tenant-id", "acme"),
        ("idempotency-key", KEY),
        ("traceparent", TRACEPARENT),
        ("grpc-timeout", "10000000u"),
    ] {
        assert_eq!(
            seen[0].metadata.get(name).map(String::as_str),
            Some(value),
            "{name}"
        );
    }
    assert_eq!(seen[1].command["tenant_id"], "");
    let second = &seen[1].metadata;
    assert!(!second.contains_key("x-tenant-id") && !second.contains_key("traceparent"));
    // The command's own time is shorter than that of the settings.
    assert_eq!(second["grpc-timeout"], "5000000u");
}

#[tokio::test]
async fn each_status_says_whether_the_command_may_come_again() {
    let code = Arc::new(Mutex::new(Code::Ok));
    let answer = Arc::clone(&code);
    let gateway = answering(move |_| {
        let code = *answer.lock().expect("not poisoned");
        Err(Status::new(code, "no\u{7}luck ".to_owned() + &"x".repeat(3_000)))
    })
    .await;
    let told = |given: Code| format!("{}: no luck x", clients::name(given));
    for given in [
        Code::InvalidArgument,
        Code::NotFound,
        Code::PermissionDenied,
        Code::Unauthenticated,
        Code::FailedPrecondition,
        Code::OutOfRange,
        Code::Unimplemented,
    ] {
        *code.lock().expect("not poisoned") = given;
        match submit(&gateway).await {
            Err(GatewayError::Rejected { message }) => {
                assert!(message.starts_with(&told(given)), "{message}");
                assert!(message.len() < 1_100, "{} bytes", message.len());
            }
            other => panic!("{given:?}: {other:?}"),
        }
    }
    for given in [Code::Unavailable, Code::ResourceExhausted, Code::Aborted] {
        *code.lock().expect("not poisoned") = given;
        let answer = submit(&gateway).await;
        assert!(
            matches!(&answer, Err(GatewayError::Unavailable { message }) if message.starts_with(&told(given))),
            "{given:?}: {answer:?}"
        );
    }
    for given in [
        Code::Cancelled,
        Code::Unknown,
        Code::DeadlineExceeded,
        Code::Internal,
        Code::DataLoss,
    ] {
        *code.lock().expect("not poisoned") = given;
        let answer = submit(&gateway).await;
        assert!(
            matches!(&answer, Err(GatewayError::Unknown { message }) if message.starts_with(&told(given))),
            "{given:?}: {answer:?}"
        );
    }
    *code.lock().expect("not poisoned") = Code::AlreadyExists;
    assert_eq!(submit(&gateway).await, Ok(()), "it was there before");
}

#[tokio::test]
async fn an_answer_that_is_none_leaves_open_what_happened() {
    let garbage = answering(|_| Ok(b"\xff\xff\xff".to_vec())).await;
    let long = answering(|_| Ok(vec![0; ANSWER_BYTES_MAX + 1])).await;
    for gateway in [garbage, long] {
        let answer = submit(&gateway).await;
        assert!(matches!(answer, Err(GatewayError::Unknown { .. })), "{answer:?}");
    }
    // A later version of the file may answer with more than this one knows.
    let later = answering(|_| Ok(vec![0x0a, 1, b'x'])).await;
    assert_eq!(submit(&later).await, Ok(()));
}

#[tokio::test]
async fn a_closed_port_is_unavailable_and_the_next_call_connects_again() {
    // Bound, so that nobody else gets the port, but not listening yet.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket
        .bind("127.0.0.1:0".parse().expect("an address"))
        .expect("a free port");
    let gateway = gateway(&format!("http://{}", socket.local_addr().expect("bound")));
    let answer = submit(&gateway).await;
    assert!(
        matches!(answer, Err(GatewayError::Unavailable { .. })),
        "{answer:?}"
    );
    let open = socket.listen(8).expect("it listens");
    peer::serve(open, None, |_| std::future::ready(Ok(Vec::new())).boxed());
    assert_eq!(submit(&gateway).await, Ok(()));
}

#[tokio::test]
async fn silence_after_sending_is_unknown_on_either_sides_timeout() {
    let (listener, address) = listener().await;
    peer::serve(listener, None, |_| std::future::pending().boxed());
    let impatient = Settings {
        timeout: Millis(300),
        ..Settings::default()
    };
    let impatient = with(&address, &impatient).expect("a gateway");
    let answer = submit(&impatient).await;
    assert!(matches!(answer, Err(GatewayError::Unknown { .. })), "{answer:?}");
    let late = gateway(&address);
    let answer = late
        .submit(&command(&payload()), Duration::from_millis(300))
        .await;
    assert!(matches!(answer, Err(GatewayError::Unknown { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_connection_that_breaks_behind_the_request_is_unknown() {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // Empty SETTINGS, then nothing more; a request is longer than what opens a connection.
            stream
                .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
                .await
                .expect("written");
            let mut seen = 0;
            let mut bytes = [0; 1_024];
            while seen < 400 {
                seen += stream.read(&mut bytes).await.expect("read");
            }
        }
    });
    let answer = submit(&gateway(&address)).await;
    assert!(matches!(answer, Err(GatewayError::Unknown { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_handshake_that_nobody_answers_ends() {
    let (listener, address) = listener().await;
    let mute = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    let settings = Settings {
        connect_timeout: Some(Millis(100)),
        ..Settings::default()
    };
    let address = address.replace("http://127.0.0.1", "https://localhost");
    let gateway = with(&address, &settings).expect("a gateway");
    // The patience of one submission is much longer than that for a connection.
    let answer = tokio::time::timeout(LONG / 2, gateway.submit(&command(&payload()), LONG)).await;
    let answer = answer.expect("it ends");
    assert!(
        matches!(&answer, Err(GatewayError::Unknown { message }) if message != "timed out"),
        "{answer:?}"
    );
    mute.abort();
}

#[tokio::test]
async fn illegal_metadata_is_refused_before_anything_is_sent() {
    let gateway = gateway("http://127.0.0.1:1");
    let payload = payload();
    let mut broken = command(&payload);
    broken.metadata.idempotency_key = "a\nb".to_owned();
    let answer = gateway.submit(&broken, LONG).await;
    assert!(
        matches!(answer, Err(GatewayError::Unsendable { .. })),
        "{answer:?}"
    );
}

#[tokio::test]
async fn gateway_and_runner_prove_who_they_are() {
    let authority = Authority::new();
    let own = authority.certify("localhost");
    let (listener, address) = listener().await;
    let address = address.replace("http://127.0.0.1", "https://localhost");
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&own.certificate, &own.key))
        .client_ca_root(Certificate::from_pem(authority.pem()));
    peer::serve(listener, Some(tls), |_| {
        std::future::ready(Ok(Vec::new())).boxed()
    });
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
        path
    };
    let mine = authority.certify("runner");
    let known = UpstreamTlsFiles {
        ca_file: Some(file("ca.pem", &authority.pem())),
        cert_file: Some(file("cert.pem", &mine.certificate)),
        key_file: Some(file("key.pem", &mine.key)),
    };
    let protected = |tls: &UpstreamTlsFiles| {
        let settings = Settings {
            tls: Some(tls.clone()),
            ..Settings::default()
        };
        with(&address, &settings)
    };
    let friend = protected(&known).expect("a gateway");
    assert_eq!(submit(&friend).await, Ok(()));
    let stranger = UpstreamTlsFiles {
        cert_file: None,
        key_file: None,
        ..known.clone()
    };
    let unsure = UpstreamTlsFiles {
        ca_file: None,
        ..known.clone()
    };
    for tls in [stranger, unsure] {
        let answer = submit(&protected(&tls).expect("a gateway")).await;
        assert!(
            matches!(
                answer,
                Err(GatewayError::Unavailable { .. } | GatewayError::Unknown { .. })
            ),
            "{answer:?}"
        );
    }
    let missing = UpstreamTlsFiles {
        ca_file: Some(folder.path().join("none.pem")),
        ..known
    };
    let refusal = protected(&missing).err().expect("no such file").to_string();
    assert!(refusal.contains("none.pem"), "{refusal}");
}
