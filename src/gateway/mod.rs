//! Submission of aggregate commands to the outside: one adapter per transport behind [`crate::ports::gateway`].
//!
//! It does not retry, keep order or know about the outbox; the relay does.

#[cfg(feature = "gateway-grpc")]
pub mod grpc;
mod http;
pub mod nats;
mod settings;
#[cfg(test)]
mod testing;

pub use settings::{GatewaySetupError, Settings};

use std::sync::Arc;

use settings::Destination;

use crate::ports::gateway::{Gateway, GatewayError};
use crate::ports::messenger::Messenger;

/// Most bytes of what a gateway says that are kept as its message.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// The gateway that the settings ask for, which connects when it is needed. Must be called within a tokio runtime.
/// `messenger` is the runner's own connection to NATS, if its broker is one.
///
/// # Errors
/// [`GatewaySetupError`] names the setting that is wrong.
pub fn open(
    settings: &Settings,
    messenger: Option<Arc<dyn Messenger>>,
) -> Result<Arc<dyn Gateway>, GatewaySetupError> {
    match settings.destination()? {
        Destination::Http(url) => Ok(Arc::new(http::HttpGateway::new(url, settings)?)),
        #[cfg(feature = "gateway-grpc")]
        Destination::Grpc(url) => Ok(Arc::new(grpc::GrpcGateway::new(&url, settings)?)),
        #[cfg(not(feature = "gateway-grpc"))]
        Destination::Grpc(_) => Err(GatewaySetupError::NotBuiltIn {
            feature: "gateway-grpc",
        }),
        Destination::Nats(subject) => {
            let messenger = messenger.ok_or(GatewaySetupError::Embedded)?;
            Ok(Arc::new(nats::NatsGateway::new(subject, settings, messenger)))
        }
    }
}

/// What a gateway says, fit for a record: in bounded length, without control characters.
fn presentable(text: &str) -> String {
    let end = text.floor_char_boundary(MESSAGE_BYTES_MAX);
    text[..end].replace(char::is_control, " ").trim().to_owned()
}

/// A value that no header may hold, and that therefore never arrives.
fn unfit(what: &str) -> GatewayError {
    GatewayError::Unsendable {
        message: format!("the {what} holds characters that no header may hold"),
    }
}
