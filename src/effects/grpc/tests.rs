use std::collections::BTreeMap;
use std::sync::Mutex;

use prost::Message as _;
use prost_reflect::{ReflectMessage as _, Value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tonic::codegen::{Service, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::{Certificate, Identity};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::*;
use crate::clients::testing::Authority;
use crate::effects::egress::Egress;
use crate::effects::testing::{KEY, attempt, attempt_within, failure, payload, secrets};
use crate::kernel::breaker::CallEnd;
use crate::kernel::definition::{BinaryFiles, SchemaFiles, SourceFile, load_with};

const INPUT: &str = r#"{"order":"o-1","items":[{"sku":"a","quantity":2}],"until":"2026-01-02T03:04:05Z"}"#;

/// The descriptors of the test's service, as `protoc --descriptor_set_out --include_imports` writes them.
fn descriptors() -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/proto");
    let files = protox::compile(["stock.proto"], [folder]).expect("the committed file compiles");
    files.encode_to_vec()
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(&*descriptors()).expect("descriptors")
}

fn reply(id: &str, cents: i64) -> DynamicMessage {
    let message = pool()
        .get_message_by_name("stock.v1.ReserveReply")
        .expect("a message");
    let mut reply = DynamicMessage::new(message);
    reply.set_field_by_name("reservation_id", Value::String(id.to_owned()));
    reply.set_field_by_name("cents", Value::I64(cents));
    reply
}

type Answer = Result<Response<DynamicMessage>, Status>;
type Handler = Arc<dyn Fn(Request<DynamicMessage>) -> Answer + Send + Sync>;

/// A server of the service whose methods all do the same.
#[derive(Clone)]
struct Inventory(Handler);

impl NamedService for Inventory {
    const NAME: &'static str = "stock.v1.Inventory";
}

impl UnaryService<DynamicMessage> for Inventory {
    type Response = DynamicMessage;
    type Future = std::future::Ready<Answer>;

    fn call(&mut self, request: Request<DynamicMessage>) -> Self::Future {
        std::future::ready((self.0)(request))
    }
}

impl Service<http::Request<tonic::body::Body>> for Inventory {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let service = self.clone();
        let message = pool()
            .get_message_by_name("stock.v1.ReserveRequest")
            .expect("a message");
        Box::pin(async move {
            let mut server = tonic::server::Grpc::new(DynamicCodec::new(message));
            Ok(server.unary(service, request).await)
        })
    }
}

/// How a server lets itself be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reflects {
    No,
    Now,
    Formerly,
}

/// Starts a server on loopback, which ends with the test's runtime, and gives its address.
async fn serve(
    reflects: Reflects,
    handler: impl Fn(Request<DynamicMessage>) -> Answer + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let described = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(Box::leak(descriptors().into_boxed_slice()))
    };
    let router = tonic::transport::Server::builder().add_service(Inventory(Arc::new(handler)));
    let router = match reflects {
        Reflects::No => router,
        Reflects::Now => router.add_service(described().build_v1().expect("descriptors")),
        Reflects::Formerly => router.add_service(described().build_v1alpha().expect("descriptors")),
    };
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(router.serve_with_incoming(incoming));
    format!("http://{address}")
}

/// An effect file around the lines of its `grpc` section and what follows it.
fn file(section: &str, rest: &str) -> String {
    format!(
        "apiVersion: sagas/v1\nkind: Effect\nname: stock-reserve\ngrpc:\n  url: ${{upstreams.stock}}\n{section}\n{rest}\n"
    )
}

const MESSAGE: &str =
    "  message: {orderId: '${input.order}', items: '${input.items}', until: '${input.until}'}";

fn described(method: &str) -> String {
    format!("  method: stock.v1.Inventory/{method}\n  descriptors: stock.binpb\n{MESSAGE}")
}

fn definition(text: &str) -> Arc<EffectDefinition> {
    let source = SourceFile {
        path: "effect.yaml".to_owned(),
        text: text.into(),
    };
    let mut binaries = BinaryFiles::default();
    let bytes = Ok(Arc::from(descriptors()));
    binaries.0.insert("stock.binpb".to_owned(), bytes);
    let loaded = load_with(&[], &[source], &SchemaFiles::default(), &binaries);
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    Arc::clone(&loaded.effects[0])
}

fn provider_with(text: &str, address: &str, settings: &Settings) -> Result<Grpc, ProviderError> {
    protected(text, address, settings, UpstreamTls::default())
}

fn protected(
    text: &str,
    address: &str,
    settings: &Settings,
    tls: UpstreamTls,
) -> Result<Grpc, ProviderError> {
    let definition = definition(text);
    let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let environment = Environment::new(secrets(&map("token", "s3cret")), &map("stock", address), None)
        .with_tls(BTreeMap::from([("stock".to_owned(), tls)]));
    let ProviderDefinition::Grpc(call) = &definition.provider else {
        panic!("a gRPC effect");
    };
    Grpc::new(&definition, call, &Arc::new(environment), settings)
}

fn provider(text: &str, address: &str) -> Grpc {
    provider_with(text, address, &Settings::default()).expect("a provider")
}

async fn call(provider: &Grpc, input: &str) -> CallOutcome {
    attempt(provider, &provider.environment, "stock-reserve", input).await
}

#[tokio::test]
async fn a_call_carries_the_rendered_message_and_gives_the_whole_answer() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sight = Arc::clone(&seen);
    let address = serve(Reflects::No, move |request| {
        let text = |name: &str| {
            let value = request.metadata().get(name).map(|value| value.to_str());
            value.and_then(Result::ok).unwrap_or("none").to_owned()
        };
        let json = serde_json::to_string(request.get_ref()).expect("a JSON form");
        let carried = ["authorization", "idempotency-key", "traceparent", "grpc-timeout"].map(text);
        sight.lock().expect("not poisoned").push((json, carried));
        Ok(Response::new(reply("r-7", 1_250)))
    })
    .await;
    let section = described("Reserve") + "\n  metadata: {Authorization: 'Bearer ${secrets.token}'}";
    let provider = provider(&file(&section, "timeout: {total: 5s}"), &address);
    assert_eq!(
        payload(call(&provider, INPUT).await),
        r#"{"reservationId":"r-7","cents":"1250","partial":false}"#
    );
    let seen = seen.lock().expect("not poisoned");
    let (json, carried) = &seen[0];
    assert_eq!(
        json,
        r#"{"orderId":"o-1","items":[{"sku":"a","quantity":2}],"until":"2026-01-02T03:04:05Z"}"#
    );
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_eq!(carried[..3], ["Bearer s3cret", KEY, trace]);
    // What is left of the ten seconds of the call.
    assert!(carried[3].starts_with('9'), "{}", carried[3]);
}

#[tokio::test]
async fn a_server_that_reflects_needs_no_file_in_both_versions_of_the_protocol() {
    for reflects in [Reflects::Now, Reflects::Formerly] {
        let address = serve(reflects, |request| {
            let order = request.get_ref().get_field_by_name("order_id").expect("a field");
            Ok(Response::new(reply(order.as_str().expect("text"), 5)))
        })
        .await;
        let section = format!("  method: stock.v1.Inventory/Look\n  reflection: true\n{MESSAGE}");
        let provider = provider(
            &file(&section, "result: {id: '${response.body.reservationId}'}"),
            &address,
        );
        assert!(!provider.side_effects().are_none(), "nothing is known yet");
        assert_eq!(payload(call(&provider, INPUT).await), r#"{"id":"o-1"}"#);
        assert!(provider.side_effects().are_none(), "the descriptors say so");
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_asked_was_not_called() {
    let address = serve(Reflects::No, |_| Ok(Response::new(reply("r", 1)))).await;
    let section = format!("  method: stock.v1.Inventory/Reserve\n  reflection: true\n{MESSAGE}");
    let mute = failure(call(&provider(&file(&section, ""), &address), INPUT).await);
    assert_eq!(
        (&*mute.class, mute.certainty),
        ("permanent", Certainty::NotDone),
        "{mute:?}"
    );
    assert!(mute.message.starts_with("reflection: UNIMPLEMENTED"), "{mute:?}");

    let address = serve(Reflects::Now, |_| Ok(Response::new(reply("r", 1)))).await;
    let section = format!("  method: stock.v1.Inventory/Reverse\n  reflection: true\n{MESSAGE}");
    let unknown = failure(call(&provider(&file(&section, ""), &address), INPUT).await);
    assert_eq!(
        (&*unknown.class, unknown.certainty),
        ("permanent", Certainty::NotDone)
    );
    assert!(
        unknown.message.contains("no method stock.v1.Inventory/Reverse"),
        "{unknown:?}"
    );
}

#[tokio::test]
async fn each_status_has_its_class_and_its_outcome() {
    use Certainty::{NotDone, Refused, Unknown};
    let code = Arc::new(Mutex::new(Code::Ok));
    let answer = Arc::clone(&code);
    let address = serve(Reflects::No, move |_| {
        Err(Status::new(*answer.lock().expect("not poisoned"), "no luck"))
    })
    .await;
    let provider = provider(&file(&described("Reserve"), ""), &address);
    for (given, class, certainty, end) in [
        (Code::Unavailable, "transient", NotDone, CallEnd::Failed),
        (Code::Aborted, "transient", NotDone, CallEnd::Answered),
        (Code::ResourceExhausted, "throttled", NotDone, CallEnd::Failed),
        (Code::Internal, "transient", Unknown, CallEnd::Failed),
        (Code::Unknown, "transient", Unknown, CallEnd::Failed),
        (Code::DataLoss, "transient", Unknown, CallEnd::Failed),
        (Code::DeadlineExceeded, "timeout", Unknown, CallEnd::Failed),
        (Code::Cancelled, "ambiguous", Unknown, CallEnd::Answered),
        (Code::InvalidArgument, "permanent", Refused, CallEnd::Answered),
        (Code::NotFound, "permanent", Refused, CallEnd::Answered),
        (Code::AlreadyExists, "permanent", Refused, CallEnd::Answered),
        (Code::PermissionDenied, "permanent", NotDone, CallEnd::Answered),
        (Code::FailedPrecondition, "permanent", Refused, CallEnd::Answered),
        (Code::OutOfRange, "permanent", Refused, CallEnd::Answered),
        (Code::Unimplemented, "permanent", Refused, CallEnd::Answered),
        (Code::Unauthenticated, "permanent", NotDone, CallEnd::Answered),
    ] {
        *code.lock().expect("not poisoned") = given;
        let failure = failure(call(&provider, INPUT).await);
        assert_eq!(
            (&*failure.class, failure.certainty, failure.end),
            (class, certainty, end),
            "{given:?}"
        );
        assert_eq!(failure.message, format!("{}: no luck", clients::name(given)));
    }
}

#[tokio::test]
async fn rules_read_the_status_and_a_server_may_ask_for_patience() {
    let address = serve(Reflects::No, |request| {
        let order = request.get_ref().get_field_by_name("order_id").expect("a field");
        match order.as_str() {
            Some("twice") => Err(Status::already_exists("r-1")),
            Some("busy") => {
                let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(7)));
                Err(Status::with_error_details(Code::Unavailable, "later", details))
            }
            _ => {
                let mut answer = Response::new(reply("r-2", 0));
                answer
                    .metadata_mut()
                    .insert("x-region", AsciiMetadataValue::from_static("eu"));
                Ok(answer)
            }
        }
    })
    .await;
    let rules = "classify:\n  - {when: response.status == \"ALREADY_EXISTS\", as: succeeded}\n  - {when: 'response.status == \"OK\" && response.body.cents == \"0\" && response.metadata[\"x-region\"] == \"eu\"', as: sold_out}\nresult: {was: '${response.message}'}";
    let provider = provider(&file(&described("Reserve"), rules), &address);
    let order = |name: &str| INPUT.replace("o-1", name);
    assert_eq!(
        payload(call(&provider, &order("twice")).await),
        r#"{"was":"r-1"}"#
    );
    let busy = failure(call(&provider, &order("busy")).await);
    assert_eq!(
        (&*busy.class, busy.retry_after),
        ("transient", Some(Duration::from_secs(7)))
    );
    let sold_out = failure(call(&provider, &order("other")).await);
    assert_eq!(
        (&*sold_out.class, sold_out.certainty),
        ("sold_out", Certainty::Refused)
    );
}

#[tokio::test]
async fn nothing_listens_and_nothing_may_be_called() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let text = file(&described("Reserve"), "");
    let failed = failure(call(&provider(&text, &address), INPUT).await);
    assert_eq!(
        (&*failed.class, failed.certainty, failed.end),
        ("transient", Certainty::NotDone, CallEnd::Failed),
        "{failed:?}"
    );

    let inward = Settings {
        egress: Egress {
            allow_private: false,
            ..Egress::default()
        },
        ..Settings::default()
    };
    let refusal = provider_with(&text, "http://127.0.0.1:1", &inward).err();
    assert!(
        matches!(&refusal, Some(ProviderError::Host(reason)) if reason.contains("127.0.0.1")),
        "an address is refused at the start"
    );
    let named = provider_with(&text, "http://localhost:1", &inward).expect("a name is not looked up yet");
    let denied = failure(call(&named, INPUT).await);
    assert_eq!(
        (&*denied.class, denied.certainty, denied.end),
        ("egress.denied", Certainty::NotDone, CallEnd::Abandoned),
        "{denied:?}"
    );
}

#[tokio::test]
async fn a_connection_lost_after_the_request_is_an_unknown_outcome_unless_the_method_is_safe() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // Empty SETTINGS, then nothing more; a request is longer than what opens a connection.
            stream
                .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
                .await
                .expect("written");
            let mut seen = 0;
            let mut bytes = [0; 1_024];
            while seen < 250 {
                seen += stream.read(&mut bytes).await.expect("readable").max(1);
            }
        }
    });
    let unknown = failure(call(&provider(&file(&described("Reserve"), ""), &address), INPUT).await);
    assert_eq!(
        (&*unknown.class, unknown.certainty, unknown.end),
        ("ambiguous", Certainty::Unknown, CallEnd::Failed),
        "{unknown:?}"
    );
    for (method, acts) in [("Reserve", true), ("Look", false)] {
        assert_eq!(definition(&file(&described(method), "")).provider.acts(), acts);
    }
    let safe = failure(call(&provider(&file(&described("Look"), ""), &address), INPUT).await);
    assert_eq!(
        (&*safe.class, safe.certainty),
        ("transient", Certainty::NotDone),
        "{safe:?}"
    );
}

#[tokio::test]
async fn a_silent_server_is_an_unknown_outcome_unless_the_method_is_safe() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    for (method, class, certainty) in [
        ("Reserve", "ambiguous", Certainty::Unknown),
        ("Look", "timeout", Certainty::NotDone),
    ] {
        let text = file(&described(method), "timeout: {total: 300ms}");
        let silent = failure(call(&provider(&text, &address), INPUT).await);
        assert_eq!(
            (&*silent.class, silent.certainty),
            (class, certainty),
            "{silent:?}"
        );
    }
    drop(listener);
}

/// A server that speaks HTTP/2 and does `what` with each request.
async fn over_h2(
    what: impl Fn(&mut h2::server::SendResponse<bytes::Bytes>) + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let mut connection = h2::server::handshake(socket).await.expect("a handshake");
            while let Some(Ok((_, mut answer))) = connection.accept().await {
                what(&mut answer);
            }
        }
    });
    address
}

#[tokio::test]
async fn a_request_that_the_server_has_not_begun_was_not_done() {
    for (reason, class, certainty) in [
        (h2::Reason::REFUSED_STREAM, "transient", Certainty::NotDone),
        (h2::Reason::INTERNAL_ERROR, "ambiguous", Certainty::Unknown),
    ] {
        let address = over_h2(move |answer| answer.send_reset(reason)).await;
        let refused = failure(call(&provider(&file(&described("Reserve"), ""), &address), INPUT).await);
        assert_eq!(
            (&*refused.class, refused.certainty),
            (class, certainty),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn a_call_ends_by_itself_and_tells_the_server_when() {
    let (tell, told) = std::sync::mpsc::channel();
    let address = serve(Reflects::No, move |request| {
        let timeout = request.metadata().get("grpc-timeout").expect("a timeout");
        tell.send(timeout.to_str().expect("text").to_owned())
            .expect("heard");
        Ok(Response::new(reply("r", 1)))
    })
    .await;
    let within = |provider: Grpc, limit: Duration| async move {
        attempt_within(limit, &provider, &provider.environment, "stock-reserve", INPUT).await
    };
    let text = file(&described("Reserve"), "timeout: {total: 9s}");
    payload(within(provider(&text, &address), Duration::from_secs(2)).await);
    let timeout = told.try_recv().expect("a timeout");
    let micros: u64 = timeout.trim_end_matches('u').parse().expect("microseconds");
    assert!((1_000_000..=2_000_000).contains(&micros), "{timeout}");

    // It never says hello, so nothing of the call has left.
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("https://localhost:{}", mute.local_addr().expect("bound").port());
    let unsent = failure(within(provider(&text, &address), Duration::from_millis(300)).await);
    assert_eq!(
        (&*unsent.class, unsent.certainty),
        ("timeout", Certainty::NotDone),
        "{unsent:?}"
    );

    let address = over_h2(|_| {}).await;
    let silent = failure(within(provider(&text, &address), Duration::from_millis(300)).await);
    assert_eq!(silent.certainty, Certainty::Unknown, "{silent:?}");
}

#[test]
fn a_connection_that_ends_before_the_message_has_gone_was_not_asked() {
    let mut ended = Status::unavailable("the connection broke");
    ended.set_source(Arc::new(std::io::Error::from(
        std::io::ErrorKind::ConnectionReset,
    )));
    let ending = |sent| status::ending(&ended, sent).expect("it is not the server's").0;
    assert_eq!(ending(Sent::No), Ending::LostUnsent);
    assert_eq!(ending(Sent::Maybe), Ending::Lost);
}

#[test]
fn only_a_failure_to_connect_proves_that_nothing_was_sent() {
    let late = || std::io::Error::from(std::io::ErrorKind::TimedOut);
    let judged = |status: Status| {
        let (ending, _) = status::ending(&status, Sent::Maybe).expect("it is not the server's");
        ending
    };
    let connecting = Status::from_error(Box::new(tonic::ConnectError(late().into())));
    assert_eq!(judged(connecting), Ending::LateUnsent);
    let mut behind = Status::unavailable("the connection broke");
    behind.set_source(Arc::new(late()));
    assert_eq!(judged(behind), Ending::Late);
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_says_that_the_call_happened() {
    let address = serve(Reflects::No, |request| {
        let order = request.get_ref().get_field_by_name("order_id").expect("a field");
        if order.as_str() == Some("long") {
            return Ok(Response::new(reply(&"x".repeat(2_000), 1)));
        }
        let strange = request
            .get_ref()
            .descriptor()
            .parent_pool()
            .get_message_by_name("stock.v1.Strange");
        let mut strange = DynamicMessage::new(strange.expect("a message"));
        strange.set_field_by_name("number", Value::I32(1));
        Ok(Response::new(strange))
    })
    .await;
    let small = Settings {
        response_bytes: 1_000,
        ..Settings::default()
    };
    let provider = provider_with(&file(&described("Reserve"), ""), &address, &small).expect("a provider");
    let long = failure(call(&provider, &INPUT.replace("o-1", "long")).await);
    assert_eq!(
        (&*long.class, long.certainty, long.end),
        ("response.size", Certainty::Unknown, CallEnd::Answered),
        "{long:?}"
    );
    let strange = failure(call(&provider, INPUT).await);
    assert_eq!(
        (&*strange.class, strange.certainty),
        ("response.malformed", Certainty::Unknown),
        "{strange:?}"
    );
}

#[tokio::test]
async fn an_input_that_does_not_fit_the_grpc_method_is_not_sent() {
    let address = serve(Reflects::No, |_| panic!("nothing is sent")).await;
    let provider = provider(&file(&described("Reserve"), ""), &address);
    let misfit = failure(
        call(
            &provider,
            &INPUT.replace("\"quantity\":2", "\"quantity\":\"two\""),
        )
        .await,
    );
    assert_eq!(
        (&*misfit.class, misfit.certainty),
        ("message.misfit", Certainty::NotDone),
        "{misfit:?}"
    );
    let illegal = described("Reserve") + "\n  metadata: {x-note: '${input.order}'}";
    let provider = super::tests::provider(&file(&illegal, ""), &address);
    let broken = failure(call(&provider, &INPUT.replace("o-1", "a\\nb")).await);
    assert_eq!(
        (&*broken.class, broken.certainty),
        ("header.illegal", Certainty::NotDone),
        "{broken:?}"
    );
}

#[tokio::test]
async fn a_server_and_its_caller_prove_who_they_are() {
    let authority = Authority::new();
    let own = authority.certify("localhost");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!(
        "https://localhost:{}",
        listener.local_addr().expect("bound").port()
    );
    let tls = tonic::transport::ServerTlsConfig::new()
        .identity(Identity::from_pem(&own.certificate, &own.key))
        .client_ca_root(Certificate::from_pem(authority.pem()));
    let router = tonic::transport::Server::builder()
        .tls_config(tls)
        .expect("certificates")
        .add_service(Inventory(Arc::new(|_| Ok(Response::new(reply("r-1", 1))))));
    tokio::spawn(router.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)));
    let text = file(&described("Reserve"), "");
    let known = UpstreamTls {
        ca: Some(authority.pem()),
        identity: Some(authority.certify("runner")),
    };
    for (tls, reason) in [
        (
            UpstreamTls {
                ca: None,
                ..known.clone()
            },
            "its authority is not known",
        ),
        (
            UpstreamTls {
                identity: None,
                ..known.clone()
            },
            "the caller has no certificate",
        ),
        (
            UpstreamTls {
                identity: Some(Authority::new().certify("runner")),
                ..known.clone()
            },
            "the caller's authority is not known",
        ),
    ] {
        let stranger = protected(&text, &address, &Settings::default(), tls).expect("a provider");
        let refused = failure(call(&stranger, INPUT).await);
        // In TLS 1.3 the server judges when the request may have been sent, and only the lack of a certificate is told so
        // that it can be told from what comes behind a request.
        let class = if reason == "the caller's authority is not known" {
            ["ambiguous", "transient"].contains(&&*refused.class)
        } else {
            refused.class == "tls.untrusted" && refused.certainty == Certainty::NotDone
        };
        assert!(class, "{reason}: {refused:?}");
    }
    let friend = protected(&text, &address, &Settings::default(), known).expect("a provider");
    assert!(payload(call(&friend, INPUT).await).contains("r-1"));
}
