//! The gRPC provider: one unary call per attempt, its messages known from descriptors.
//!
//! Messages are written and read in the JSON mapping of Protocol Buffers. Descriptors come from a file that the
//! definition names, or from the server by reflection, once, before the first call.

mod codec;
mod reflection;
mod status;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use prost_reflect::prost_types::method_options::IdempotencyLevel;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor, SerializeOptions};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};
use tonic::client::Grpc as Client;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, KeyRef, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::certainty::{Ending, SideEffects};
use super::environment::Environment;
use super::network::Network;
use super::origin::Origin;
use super::provider::{CallContext, CallFailure, CallOutcome, Certainty, Provider};
use super::refusal::{GrpcMethodError, ProviderError};
use super::rendering::{Rendering, Verdict};
use super::settings::Settings;
use crate::clients::{UpstreamTls, grpc as clients};
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::{GrpcCall, Provider as ProviderDefinition};
use crate::kernel::json::Json;
use codec::DynamicCodec;
use status::Sent;

pub struct Grpc {
    channel: Channel,
    definition: Arc<EffectDefinition>,
    origin: Origin,
    path: PathAndQuery,
    metadata_names: Vec<AsciiMetadataKey>,
    /// Known at once from a file, else after the server has been asked.
    method: OnceCell<MethodDescriptor>,
    environment: Arc<Environment>,
    settings: Settings,
}

impl Grpc {
    /// Builds the channel of one effect, which connects when it is needed. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ProviderError`] where the definition or the environment makes no channel.
    pub fn new(
        definition: &Arc<EffectDefinition>,
        call: &GrpcCall,
        environment: &Arc<Environment>,
        settings: &Settings,
    ) -> Result<Self, ProviderError> {
        let origin = Origin::of(&call.url, environment.upstreams(), settings.expression_steps)?;
        let path = format!("/{}/{}", call.service, call.method);
        let method = match &call.descriptors {
            Some(bytes) => {
                let pool = DescriptorPool::decode(&**bytes);
                let pool = pool.map_err(|error| ProviderError::Descriptors(error.to_string()))?;
                OnceCell::from(method(&pool, call)?)
            }
            None => OnceCell::new(),
        };
        let metadata_name = |(name, _): &(String, _)| {
            AsciiMetadataKey::from_bytes(name.as_bytes())
                .map_err(|_| ProviderError::MetadataName(name.clone()))
        };
        Ok(Self {
            channel: channel(
                &origin,
                definition.connect_timeout_ms,
                environment.network(&settings.egress),
                environment.tls(&call.url),
            )?,
            definition: Arc::clone(definition),
            origin,
            path: PathAndQuery::try_from(path).map_err(|error| ProviderError::Host(error.to_string()))?,
            metadata_names: call
                .metadata
                .iter()
                .map(metadata_name)
                .collect::<Result<_, _>>()?,
            method,
            environment: Arc::clone(environment),
            settings: settings.clone(),
        })
    }
}

#[async_trait]
impl Provider for Grpc {
    async fn call(&self, call: &CallContext<'_>) -> CallOutcome {
        let command = self.environment.command(call.command);
        match self.attempt(call, &command).await {
            Ok(outcome) => outcome,
            Err(failure) => CallOutcome::Failed(failure),
        }
    }

    /// As the descriptors say.
    fn side_effects(&self) -> SideEffects {
        let options = |method: &MethodDescriptor| method.method_descriptor_proto().options.clone();
        let level = self.method.get().and_then(options);
        SideEffects::unless(
            level.is_some_and(|options| options.idempotency_level() == IdempotencyLevel::NoSideEffects),
        )
    }

    fn upstream(&self) -> Option<String> {
        Some(self.origin.to_string())
    }
}

impl Grpc {
    async fn attempt(&self, call: &CallContext<'_>, command: &Json<'_>) -> Result<CallOutcome, CallFailure> {
        let ProviderDefinition::Grpc(template) = &self.definition.provider else {
            return Err(CallFailure::not_done(
                "permanent",
                "the effect is not a gRPC call",
            ));
        };
        let steps = self.settings.expression_steps;
        let (metadata, message) = {
            let mut rendering = Rendering::of(call, command, &self.environment, steps);
            let message = rendering.json("message", &template.message)?;
            (self.metadata(call, template, &mut rendering)?, message)
        };
        let by = Instant::now() + call.limit;
        let late = || format!("no answer within {} ms", call.limit.as_millis());
        let method = timeout_at(by, self.method(template, &metadata)).await;
        let method = method.unwrap_or_else(|_| {
            let message = format!("reflection: {}", late());
            Err(CallFailure::of(
                Ending::LateUnsent,
                SideEffects::Possible,
                message,
            ))
        })?;
        let message = message_of(&method, &message)?;
        let mut request = Request::new(message);
        *request.metadata_mut() = metadata;
        request.set_timeout(by.duration_since(Instant::now()));
        let codec = DynamicCodec::new(method.output());
        let sent = codec.sent();
        // The channel applies the request's own timeout only once there is a connection.
        let answer = timeout_at(by, self.send(codec, request)).await;
        let sent = if sent.load(Ordering::Relaxed) {
            Sent::Maybe
        } else {
            Sent::No
        };
        let (ending, message) = match answer {
            Ok(Ok(answer)) => return Ok(self.succeeded(&answer, call, command)),
            Ok(Err(status)) => match status::ending(&status, sent) {
                Some(ending) => ending,
                None => return Ok(self.judged(&status, call, command)),
            },
            Err(_) if sent == Sent::No => (Ending::LateUnsent, late()),
            Err(_) => (Ending::Late, late()),
        };
        Err(CallFailure::of(ending, self.side_effects(), message))
    }

    /// The values of the definition, and what every call carries.
    fn metadata(
        &self,
        call: &CallContext<'_>,
        template: &GrpcCall,
        rendering: &mut Rendering<'_>,
    ) -> Result<MetadataMap, CallFailure> {
        let mut metadata = MetadataMap::with_capacity(template.metadata.len() + 3);
        for (name, (label, value_of)) in self.metadata_names.iter().zip(&template.metadata) {
            let text = rendering.text(label, value_of)?;
            metadata.insert(name.clone(), value(label, &text)?);
        }
        let given = [
            (
                "idempotency-key",
                Cow::Borrowed(&*call.command.metadata.idempotency_key),
            ),
            ("traceparent", Cow::Borrowed(&*call.traceparent)),
        ];
        for (name, text) in given {
            if !metadata.contains_key(name) {
                metadata.insert(name, value(name, &text)?);
            }
        }
        Ok(metadata)
    }

    /// The method's descriptor. A server that cannot be asked is one that was not called.
    async fn method(
        &self,
        template: &GrpcCall,
        metadata: &MetadataMap,
    ) -> Result<MethodDescriptor, CallFailure> {
        let asked = self.method.get_or_try_init(|| async {
            let pool = reflection::descriptors(&self.channel, metadata, &template.service)
                .await
                .map_err(|status| undescribed(&status))?;
            method(&pool, template).map_err(|error| CallFailure::not_done("permanent", error.to_string()))
        });
        Ok(asked.await?.clone())
    }

    async fn send(
        &self,
        codec: DynamicCodec,
        request: Request<DynamicMessage>,
    ) -> Result<Response<DynamicMessage>, Status> {
        let mut client =
            Client::new(self.channel.clone()).max_decoding_message_size(self.settings.response_bytes);
        client
            .ready()
            .await
            .map_err(|error| Status::from_error(Box::new(error)))?;
        client.unary(request, self.path.clone(), codec).await
    }

    fn succeeded(
        &self,
        answer: &Response<DynamicMessage>,
        call: &CallContext<'_>,
        command: &Json<'_>,
    ) -> CallOutcome {
        let unreadable = |reason: String| {
            CallOutcome::Failed(CallFailure::of(Ending::Malformed, self.side_effects(), reason))
        };
        let mut bytes = Vec::with_capacity(256);
        // Fields that were not sent have their defaults, so that a saga may read them without a guard.
        let options = SerializeOptions::new().skip_default_fields(false);
        let mut serializer = serde_json::Serializer::new(&mut bytes);
        if let Err(error) = answer.get_ref().serialize_with_options(&mut serializer, &options) {
            return unreadable(format!("the answer has no JSON form: {error}"));
        }
        let body = match Json::parse(&bytes, self.settings.json_depth) {
            Ok(body) => body,
            Err(error) => return unreadable(format!("the answer cannot be read: {error}")),
        };
        let response = response_value(Code::Ok, "", answer.metadata(), body);
        let steps = self.settings.expression_steps;
        let mut verdict = Verdict::on(&response, &self.definition, call, command, steps);
        verdict.outcome(self.side_effects(), None)
    }

    fn judged(&self, status: &Status, call: &CallContext<'_>, command: &Json<'_>) -> CallOutcome {
        let response = response_value(status.code(), status.message(), status.metadata(), Json::Null);
        let steps = self.settings.expression_steps;
        let mut verdict = Verdict::on(&response, &self.definition, call, command, steps);
        verdict.outcome(
            self.side_effects(),
            Some(status::failure(status, self.side_effects())),
        )
    }
}

fn channel(
    origin: &Origin,
    connect_timeout_ms: u64,
    network: Network,
    tls: Option<&UpstreamTls>,
) -> Result<Channel, ProviderError> {
    let refused = |error: &dyn std::error::Error| ProviderError::Host(error.to_string());
    let address = format!("{}://{origin}", origin.scheme);
    let url = reqwest::Url::parse(&address).map_err(|error| refused(&error))?;
    network.check_literal(&url).map_err(|denied| refused(&denied))?;
    let endpoint = Endpoint::from_shared(address).map_err(|error| refused(&error))?;
    let lookup = move |host: String| {
        let network = network.clone();
        async move { network.lookup(&host, 0).await }
    };
    let connect_timeout = Duration::from_millis(connect_timeout_ms);
    clients::channel(endpoint, connect_timeout, tls, lookup).map_err(ProviderError::Tls)
}

fn method(pool: &DescriptorPool, call: &GrpcCall) -> Result<MethodDescriptor, GrpcMethodError> {
    let name = || format!("{}/{}", call.service, call.method);
    let found = pool
        .get_service_by_name(&call.service)
        .and_then(|service| service.methods().find(|method| method.name() == call.method));
    match found {
        None => Err(GrpcMethodError::Absent(name())),
        Some(method) if method.is_client_streaming() || method.is_server_streaming() => {
            Err(GrpcMethodError::Streams(name()))
        }
        Some(method) => Ok(method),
    }
}

/// Nothing was called yet, whatever came of asking. Asking changes nothing.
fn undescribed(status: &Status) -> CallFailure {
    let failure = match status::ending(status, Sent::Maybe) {
        Some((ending, message)) => CallFailure::of(ending, SideEffects::None, message),
        None => status::failure(status, SideEffects::None),
    };
    CallFailure {
        certainty: Certainty::NotDone,
        message: format!("reflection: {}", failure.message),
        ..failure
    }
}

fn message_of(method: &MethodDescriptor, json: &[u8]) -> Result<DynamicMessage, CallFailure> {
    let misfit = |error: serde_json::Error| {
        let message = format!("message: it is not a {}: {error}", method.input().full_name());
        CallFailure::not_done("message.misfit", message)
    };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let message = DynamicMessage::deserialize(method.input(), &mut deserializer).map_err(misfit)?;
    deserializer.end().map_err(misfit)?;
    Ok(message)
}

/// A value of metadata. Line breaks would let a value add entries of its own.
fn value(name: &str, text: &str) -> Result<AsciiMetadataValue, CallFailure> {
    AsciiMetadataValue::try_from(text).map_err(|_| {
        CallFailure::not_done(
            "header.illegal",
            format!("the value of metadata {name} holds characters that no metadata may hold"),
        )
    })
}

fn response_value<'a>(code: Code, message: &'a str, metadata: &MetadataMap, body: Json<'a>) -> Json<'a> {
    // Values of a repeated name are joined; binary ones are left out.
    let text = |name: KeyRef<'_>| match name {
        KeyRef::Ascii(name) => {
            let values = metadata.get_all(name).iter();
            let values: Vec<&str> = values.map(|value| value.to_str().unwrap_or_default()).collect();
            let name = name.as_str().to_owned();
            Some((Cow::Owned(name), Json::Str(Cow::Owned(values.join(", ")))))
        }
        KeyRef::Binary(_) => None,
    };
    Json::Map(vec![
        ("body".into(), body),
        ("code".into(), Json::Int(i64::from(i32::from(code)))),
        ("message".into(), Json::Str(message.into())),
        (
            "metadata".into(),
            Json::Map(metadata.keys().filter_map(text).collect()),
        ),
        ("status".into(), Json::Str(clients::name(code).into())),
    ])
}
