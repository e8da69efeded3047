//! Why this runner cannot call an effect.

use super::origin::OriginError;
use crate::kernel::definition::sql_database::AddressError;
use crate::kernel::expr::EvalError;

/// Why an effect has no provider here: something in its definition, or around the runner. The worker does not start then.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    #[error("workers that are not saga-runner carry it out")]
    External,
    /// The name of the Cargo feature.
    #[error("the runner is built without the feature {0:?}")]
    Feature(&'static str),
    #[error("provider {name:?} is not known; this runner has {}", listed(.known))]
    Unknown { name: String, known: Vec<String> },
    /// The words of a provider that a team has compiled in.
    #[error("{0}")]
    Custom(String),
    #[error("{key}: {error}")]
    Expression { key: &'static str, error: EvalError },
    #[error(transparent)]
    Origin(#[from] OriginError),
    #[error("token_url: {0}")]
    TokenUrl(OriginError),
    /// The origin cannot be written into a request, or must not be called.
    #[error("{0}")]
    Host(String),
    #[error("{0:?} is not a method")]
    Method(String),
    #[error("{0:?} is not a header name")]
    HeaderName(String),
    #[error("{0:?} is not a name of metadata")]
    MetadataName(String),
    /// Certificates or keys of the upstream cannot be used.
    #[error("{0}")]
    Tls(String),
    #[error("{0}")]
    Descriptors(String),
    #[error(transparent)]
    GrpcMethod(#[from] GrpcMethodError),
    #[error("server is {0:?}, which is not smtp://host:port or smtps://host:port")]
    MailServer(String),
    #[error("smtps:// is protected from the first byte; leave out \"security\"")]
    MailSecurity,
    #[error("database: {0}")]
    Database(#[from] AddressError),
    /// A certificate or key that the address names cannot be read.
    #[error("database: {0}")]
    DatabaseFile(String),
    #[error("table {0}: a file has no schemas")]
    TableSchema(String),
    /// Counted from 1.
    #[error("statement {0}: \"?\" is a placeholder there; write $1")]
    Placeholder(usize),
    #[error("it sends over NATS, and the broker of this runner is embedded; use `broker: {{kind: nats}}`")]
    NoNats,
}

/// Why descriptors have no method that an effect can call.
#[derive(Debug, thiserror::Error)]
pub enum GrpcMethodError {
    #[error("the server has no method {0}")]
    Absent(String),
    #[error("{0} streams; an effect is one request and one answer")]
    Streams(String),
}

fn listed(known: &[String]) -> String {
    match known {
        [] => "no providers of its own".to_owned(),
        known => known.join(", "),
    }
}
