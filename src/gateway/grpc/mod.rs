//! The gateway over gRPC: one unary call per command, its status sorted into definite and indefinite.

pub mod messages;
#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;
use reqwest::Url;
use tonic::client::Grpc as Client;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use self::messages::{SubmitCommandRequest, SubmitCommandResponse};
use super::settings::{GatewaySetupError, Settings};
use super::{presentable, unfit};
use crate::clients::UpstreamTlsFiles;
use crate::clients::grpc as clients;
use crate::kernel::envelope::AggregateCommand;
use crate::kernel::trace::is_traceparent;
use crate::ports::gateway::{Gateway, GatewayError};

/// Where the one method is.
const PATH: &str = "/saga_runner.gateway.v1.Gateway/SubmitCommand";
/// Largest answer. It has no members today.
const ANSWER_BYTES_MAX: usize = 64 * 1_024;
/// Largest request, which is what servers take by default. The limits of payloads keep commands well below it.
const REQUEST_BYTES_MAX: usize = 4 * 1_024 * 1_024;
/// A connection on which a call waits in silence for this long is asked for a heartbeat. Not more often: servers
/// close connections that are asked every few seconds.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// How long the heartbeat may take before the connection is given up.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

pub struct GrpcGateway {
    channel: Channel,
    tenant_name: AsciiMetadataKey,
    timeout: Duration,
}

impl GrpcGateway {
    /// Builds the channel, which connects when it is needed. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`GatewaySetupError`] names the setting that is wrong.
    pub fn new(url: &Url, settings: &Settings) -> Result<Self, GatewaySetupError> {
        let name = settings.tenant_name()?;
        let tenant_name = AsciiMetadataKey::from_bytes(name.as_str().as_bytes()).map_err(|_| {
            GatewaySetupError::TenantHeader {
                name: settings.tenant_header.clone(),
            }
        })?;
        let tls = settings.tls.as_ref().map(UpstreamTlsFiles::read).transpose();
        let tls = tls.map_err(GatewaySetupError::Tls)?;
        let endpoint = Endpoint::from_shared(url.as_str().trim_end_matches('/').to_owned())
            .map_err(|error| GatewaySetupError::Client(error.to_string()))?
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        let lookup = |host: String| async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.collect())
        };
        let connect_timeout = settings.connect_timeout().duration();
        Ok(Self {
            channel: clients::channel(endpoint, connect_timeout, tls.as_ref(), lookup)
                .map_err(GatewaySetupError::Tls)?,
            tenant_name,
            timeout: settings.timeout.duration(),
        })
    }

    fn metadata(&self, command: &AggregateCommand<'_>) -> Result<MetadataMap, GatewayError> {
        let value = |text: &str| AsciiMetadataValue::try_from(text).map_err(|_| unfit("idempotency key"));
        let mut metadata = MetadataMap::with_capacity(4);
        metadata.insert("idempotency-key", value(&command.metadata.idempotency_key)?);
        if !command.tenant_id.is_none() {
            metadata.insert(self.tenant_name.clone(), value(command.tenant_id.as_str())?);
        }
        if let Some(traceparent) = &command.metadata.traceparent
            && is_traceparent(traceparent)
        {
            metadata.insert("traceparent", value(traceparent)?);
        }
        Ok(metadata)
    }

    async fn send(&self, request: Request<SubmitCommandRequest>) -> Result<(), Status> {
        let mut client = Client::new(self.channel.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
            .max_encoding_message_size(REQUEST_BYTES_MAX);
        client
            .ready()
            .await
            .map_err(|error| Status::from_error(Box::new(error)))?;
        let codec: ProstCodec<_, SubmitCommandResponse> = ProstCodec::default();
        client
            .unary(request, PathAndQuery::from_static(PATH), codec)
            .await?;
        Ok(())
    }
}

#[async_trait]
impl Gateway for GrpcGateway {
    async fn submit(&self, command: &AggregateCommand<'_>, within: Duration) -> Result<(), GatewayError> {
        let timeout = self.timeout.min(within);
        let mut request = Request::new(SubmitCommandRequest::from(command));
        *request.metadata_mut() = self.metadata(command)?;
        request.set_timeout(timeout);
        // The channel keeps the timeout of a request only once there is a connection.
        match tokio::time::timeout(timeout, self.send(request)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => judge(&status),
            Err(_) => Err(GatewayError::Unknown {
                message: "timed out".to_owned(),
            }),
        }
    }
}

/// What a status other than a whole answer says about the command.
fn judge(status: &Status) -> Result<(), GatewayError> {
    let causes = clients::causes(status);
    if clients::is_too_long(status) {
        let message = presentable(status.message());
        return Err(GatewayError::Unknown { message });
    }
    if !causes.is_empty() {
        let told = causes.iter().fold("request failed".to_owned(), |text, cause| {
            format!("{text}: {cause}")
        });
        let message = presentable(&told);
        return Err(if clients::is_unsent(&causes) {
            GatewayError::Unavailable { message }
        } else {
            GatewayError::Unknown { message }
        });
    }
    let name = clients::name(status.code());
    let message = match presentable(status.message()).as_str() {
        "" => name.to_owned(),
        said => format!("{name}: {said}"),
    };
    match status.code() {
        // With the same idempotency key: the command was there before, and its answer got lost.
        Code::Ok | Code::AlreadyExists => Ok(()),
        Code::Unavailable | Code::ResourceExhausted | Code::Aborted => {
            Err(GatewayError::Unavailable { message })
        }
        Code::Cancelled | Code::Unknown | Code::DeadlineExceeded | Code::Internal | Code::DataLoss => {
            Err(GatewayError::Unknown { message })
        }
        Code::InvalidArgument
        | Code::NotFound
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Err(GatewayError::Rejected { message }),
    }
}
