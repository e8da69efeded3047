//! A gateway that speaks gRPC, made from the published .proto file and nothing of the runner's.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use futures::future::BoxFuture;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Service, http};
use tonic::metadata::KeyAndValueRef;
use tonic::server::{NamedService, UnaryService};
use tonic::transport::ServerTlsConfig;
use tonic::{Request, Response, Status};

pub const REQUEST: &str = "saga_runner.gateway.v1.SubmitCommandRequest";

/// What the published file says.
pub fn pool() -> DescriptorPool {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let files = protox::compile(["saga_runner/gateway/v1/gateway.proto"], [folder]);
    let files = files.expect("the published file compiles");
    DescriptorPool::decode(&*files.encode_to_vec()).expect("descriptors")
}

pub fn message(name: &str) -> MessageDescriptor {
    pool().get_message_by_name(name).expect("a published message")
}

/// A message as JSON with the names of the file, and nothing left out.
pub fn json(message: &DynamicMessage) -> Value {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
        .skip_default_fields(false);
    let json = message.serialize_with_options(serde_json::value::Serializer, &options);
    json.expect("a JSON form")
}

/// One call as the gateway sees it.
#[derive(Debug, Clone)]
pub struct Call {
    pub command: Value,
    pub metadata: BTreeMap<String, String>,
}

/// The bytes of the answer.
pub type Answer = Result<Vec<u8>, Status>;
type Handler = Arc<dyn Fn(Call) -> BoxFuture<'static, Answer> + Send + Sync>;

#[derive(Clone)]
struct Peer {
    handler: Handler,
    request: MessageDescriptor,
}

/// Serves until the handle is aborted or the runtime ends.
pub fn serve(
    listener: TcpListener,
    tls: Option<ServerTlsConfig>,
    handler: impl Fn(Call) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
) -> JoinHandle<()> {
    let peer = Peer {
        handler: Arc::new(handler),
        request: message(REQUEST),
    };
    let mut server = tonic::transport::Server::builder();
    if let Some(tls) = tls {
        server = server.tls_config(tls).expect("certificates");
    }
    let serving = server
        .add_service(peer)
        .serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener));
    tokio::spawn(async move { serving.await.expect("it serves") })
}

impl NamedService for Peer {
    const NAME: &'static str = "saga_runner.gateway.v1.Gateway";
}

impl UnaryService<Vec<u8>> for Peer {
    type Response = Vec<u8>;
    type Future = BoxFuture<'static, Result<Response<Vec<u8>>, Status>>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let metadata = request.metadata().iter().filter_map(|entry| match entry {
            KeyAndValueRef::Ascii(name, value) => Some((name.to_string(), value.to_str().ok()?.to_owned())),
            KeyAndValueRef::Binary(..) => None,
        });
        let metadata = metadata.collect();
        let command = DynamicMessage::decode(self.request.clone(), &**request.get_ref());
        let command = json(&command.expect("a message of the published type"));
        let answer = (self.handler)(Call { command, metadata });
        Box::pin(async move { answer.await.map(Response::new) })
    }
}

impl Service<http::Request<tonic::body::Body>> for Peer {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let peer = self.clone();
        Box::pin(async move {
            if request.uri().path() != "/saga_runner.gateway.v1.Gateway/SubmitCommand" {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            Ok(tonic::server::Grpc::new(Bytes).unary(peer, request).await)
        })
    }
}

/// Bytes of messages as they are.
#[derive(Debug, Clone, Copy)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put_slice(into, &item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; prost::bytes::Buf::remaining(from)];
        prost::bytes::Buf::copy_to_slice(from, &mut bytes);
        Ok(Some(bytes))
    }
}
