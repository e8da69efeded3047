//! Submission of aggregate commands.

use std::time::Duration;

use async_trait::async_trait;

use crate::kernel::envelope::AggregateCommand;

#[async_trait]
pub trait Gateway: Send + Sync + 'static {
    /// Submits one command once, and waits for the answer as long as the gateway's settings say, but no longer than
    /// `within`.
    ///
    /// # Errors
    /// [`GatewayError::Rejected`] and [`GatewayError::Unsendable`] are definite; after the others the same command, with
    /// the same id, may be submitted again.
    async fn submit(&self, command: &AggregateCommand<'_>, within: Duration) -> Result<(), GatewayError>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// The command fits into no request: nothing was sent, and nothing ever will be.
    #[error("the command cannot be sent: {message}")]
    Unsendable { message: String },
    /// The gateway understood the command and will not carry it out.
    #[error("rejected: {message}")]
    Rejected { message: String },
    /// It did not reach the gateway, or the gateway asks for patience: it was not carried out.
    #[error("unavailable: {message}")]
    Unavailable { message: String },
    /// It was sent, and no answer came that says whether it was carried out.
    #[error("no answer: {message}")]
    Unknown { message: String },
}
