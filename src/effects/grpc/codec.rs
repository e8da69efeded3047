//! Messages whose types are known from descriptors only.

use prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Encodes any message, decodes messages of one type.
#[derive(Debug, Clone)]
pub struct DynamicCodec(pub MessageDescriptor);

/// Bytes that are no message of the type.
#[derive(Debug, thiserror::Error)]
#[error("the answer is no {message}: {reason}")]
pub struct Malformed {
    message: String,
    reason: String,
}

impl Codec for DynamicCodec {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        self.clone()
    }

    fn decoder(&mut self) -> Self {
        self.clone()
    }
}

impl Encoder for DynamicCodec {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, item: DynamicMessage, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(dst)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for DynamicCodec {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        match DynamicMessage::decode(self.0.clone(), src) {
            Ok(message) => Ok(Some(message)),
            Err(error) => {
                let malformed = Malformed {
                    message: self.0.full_name().to_owned(),
                    reason: error.to_string(),
                };
                let mut status = Status::internal(malformed.to_string());
                status.set_source(std::sync::Arc::new(malformed));
                Err(status)
            }
        }
    }
}
