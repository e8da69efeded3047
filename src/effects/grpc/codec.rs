//! Messages whose types are known from descriptors only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Encodes any message, decodes messages of one type.
#[derive(Debug, Clone)]
pub struct DynamicCodec {
    decoded: MessageDescriptor,
    sent: Arc<AtomicBool>,
}

impl DynamicCodec {
    pub fn new(decoded: MessageDescriptor) -> Self {
        Self {
            decoded,
            sent: Arc::default(),
        }
    }

    /// Whether a message has been encoded, which is done when there is a connection that takes it. Before, no peer can have
    /// the call.
    pub fn sent(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.sent)
    }
}

/// Bytes that are no message of the type.
#[derive(Debug, thiserror::Error)]
#[error("the answer is not a {message}: {reason}")]
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
        self.sent.store(true, Ordering::Relaxed);
        item.encode(dst)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for DynamicCodec {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        match DynamicMessage::decode(self.decoded.clone(), src) {
            Ok(message) => Ok(Some(message)),
            Err(error) => {
                let malformed = Malformed {
                    message: self.decoded.full_name().to_owned(),
                    reason: error.to_string(),
                };
                let mut status = Status::internal(malformed.to_string());
                status.set_source(Arc::new(malformed));
                Err(status)
            }
        }
    }
}
