//! How a call over HTTP proves who makes it: a token of OAuth 2, a signature, or both.

use crate::expr::Template;

/// Client credentials (RFC 6749, 4.4) for which a token is fetched that goes with each call.
#[derive(Debug)]
pub struct OAuth2 {
    /// Under the same rules as the `url` of a call.
    pub token_url: Template,
    pub client_id: Template,
    /// Reads a secret.
    pub client_secret: Template,
    /// How the endpoint is told both.
    pub send: SendCredentials,
    pub scopes: Vec<String>,
    pub audience: Option<Template>,
    /// What else goes into the form, none of the names that the runner writes.
    pub parameters: Vec<(String, Template)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SendCredentials {
    /// In the header `Authorization`.
    #[default]
    Basic,
    /// In the form.
    Body,
}

impl OAuth2 {
    pub(super) fn templates(&self) -> Vec<&Template> {
        let mut all = vec![&self.token_url, &self.client_id, &self.client_secret];
        all.extend(&self.audience);
        all.extend(self.parameters.iter().map(|(_, template)| template));
        all
    }
}

/// A keyed hash (HMAC, RFC 2104) of what is sent.
#[derive(Debug)]
pub struct Signature {
    /// Reads a secret; its bytes are the key.
    pub key: Template,
    pub hash: SignatureHash,
    pub encoding: SignatureEncoding,
    /// The header that carries it.
    pub header: String,
    /// The header's text.
    pub value: Vec<SignaturePart>,
    /// What is signed.
    pub content: Vec<SignaturePart>,
    /// The header that tells when it was signed.
    pub timestamp_header: Option<String>,
    pub timestamp_unit: TimestampUnit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SignatureHash {
    #[default]
    Sha256,
    Sha512,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SignatureEncoding {
    /// Small letters.
    #[default]
    Hex,
    /// Standard alphabet, with padding.
    Base64,
}

/// Since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimestampUnit {
    #[default]
    Seconds,
    Milliseconds,
}

/// A piece of what is signed, or of the header that carries the signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignaturePart {
    Literal(String),
    /// The method, in capitals.
    Method,
    /// Path and query, as they are sent.
    Path,
    Timestamp,
    /// The bytes of the body; nothing where there is none.
    Body,
    /// The encoded signature.
    Signature,
}
