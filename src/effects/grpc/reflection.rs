//! Asking a server for the descriptors of a service.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt as _;
use futures::stream;
use prost::Message as _;
use prost_reflect::DescriptorPool;
use prost_reflect::prost_types::FileDescriptorProto;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_reflection::pb::{v1, v1alpha};

/// Most files that the descriptors of one service may be spread over.
const FILES_MAX: usize = 256;

/// What is asked for.
#[derive(Debug, Clone)]
enum Wanted {
    Symbol(String),
    File(String),
}

/// The descriptors of `service` and of all that they import, by the reflection protocol in version 1, or in its
/// older form where the server knows no other.
///
/// # Errors
/// The server's status; `NOT_FOUND` where it has no such service.
pub async fn descriptors(
    channel: &Channel,
    metadata: &MetadataMap,
    service: &str,
) -> Result<DescriptorPool, Status> {
    let mut files: BTreeMap<String, FileDescriptorProto> = BTreeMap::new();
    let mut asked = BTreeSet::new();
    let mut wanted = vec![Wanted::Symbol(service.to_owned())];
    let mut is_old = false;
    while let Some(next) = wanted.pop() {
        let answer = if is_old {
            ask_old(channel, metadata, next.clone()).await
        } else {
            ask(channel, metadata, next.clone()).await
        };
        let found = match answer {
            Err(status) if status.code() == Code::Unimplemented && !is_old => {
                is_old = true;
                wanted.push(next);
                continue;
            }
            answer => answer?,
        };
        for bytes in found {
            let file = FileDescriptorProto::decode(&*bytes)
                .map_err(|error| Status::internal(format!("reflection gave no descriptor: {error}")))?;
            for import in &file.dependency {
                if !files.contains_key(import) && asked.insert(import.clone()) {
                    wanted.push(Wanted::File(import.clone()));
                }
            }
            files.insert(file.name().to_owned(), file);
        }
        wanted.retain(|wanted| !matches!(wanted, Wanted::File(name) if files.contains_key(name)));
        if files.len() + wanted.len() > FILES_MAX {
            let message = format!("the descriptors of {service} are spread over more than {FILES_MAX} files");
            return Err(Status::resource_exhausted(message));
        }
    }
    let mut pool = DescriptorPool::new();
    pool.add_file_descriptor_protos(files.into_values())
        .map_err(|error| Status::internal(format!("reflection gave no whole descriptors: {error}")))?;
    Ok(pool)
}

fn request<T>(message: T, metadata: &MetadataMap) -> Request<T> {
    let mut request = Request::new(message);
    *request.metadata_mut() = metadata.clone();
    request
}

fn refused(code: i32, message: String) -> Status {
    Status::new(Code::from_i32(code), message)
}

fn silent() -> Status {
    Status::internal("reflection gave another answer than asked for")
}

/// The two versions of the protocol differ in nothing but the package of their messages.
macro_rules! ask {
    ($name:ident, $version:ident) => {
        async fn $name(
            channel: &Channel,
            metadata: &MetadataMap,
            wanted: Wanted,
        ) -> Result<Vec<Vec<u8>>, Status> {
            use $version::server_reflection_client::ServerReflectionClient;
            use $version::server_reflection_request::MessageRequest;
            use $version::server_reflection_response::MessageResponse;
            let question = $version::ServerReflectionRequest {
                host: String::new(),
                message_request: Some(match wanted {
                    Wanted::Symbol(symbol) => MessageRequest::FileContainingSymbol(symbol),
                    Wanted::File(name) => MessageRequest::FileByFilename(name),
                }),
            };
            let answers = ServerReflectionClient::new(channel.clone())
                .server_reflection_info(request(stream::iter([question]), metadata))
                .await?;
            let answer = answers.into_inner().next().await.ok_or_else(silent)??;
            match answer.message_response {
                Some(MessageResponse::FileDescriptorResponse(files)) => Ok(files.file_descriptor_proto),
                Some(MessageResponse::ErrorResponse(error)) => {
                    Err(refused(error.error_code, error.error_message))
                }
                _ => Err(silent()),
            }
        }
    };
}

ask!(ask, v1);
ask!(ask_old, v1alpha);
