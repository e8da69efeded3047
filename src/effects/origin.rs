//! Where the calls of an effect go, fixed before there is any command.

use reqwest::Url;

use crate::kernel::expr::{Budget, EvalError, Root, Scope, Template, TextPart};
use crate::kernel::json::Json;

/// Scheme, host and port that all calls of an effect go to, known before any command is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub scheme: String,
    pub host: String,
    pub port: Option<u16>,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.host)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// Why a URL template has no fixed origin.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    #[error("url must begin with a fixed host or an upstream: {0}")]
    NotFixed(#[from] EvalError),
    #[error("url begins with {0:?}, which is not http://host or https://host")]
    NotHttp(String),
}

impl Origin {
    /// The origin that a URL template begins with, from its literal text or a base URL of the manifest.
    ///
    /// # Errors
    /// [`OriginError`] where the host would depend on a command, or is not one of HTTP.
    pub fn of(template: &Template, upstreams: &Json<'static>, steps: u64) -> Result<Self, OriginError> {
        let scope = Scope::default().bind(Root::Upstreams, upstreams);
        let head = match template {
            Template::Text(parts) => match parts.first() {
                Some(TextPart::Literal(text)) => Ok(text.clone()),
                Some(TextPart::Expr(base)) => {
                    Template::Value(base.clone()).render_text(&scope, &mut Budget { steps })
                }
                None => Ok(String::new()),
            },
            whole => whole.render_text(&scope, &mut Budget { steps }),
        };
        let head = head?;
        Url::parse(&head)
            .ok()
            .and_then(|url| Self::of_url(&url))
            .ok_or(OriginError::NotHttp(head))
    }

    /// `None` for what is not http or https.
    pub fn of_url(url: &Url) -> Option<Self> {
        let http = matches!(url.scheme(), "http" | "https");
        let host = url.host_str().filter(|host| http && !host.is_empty())?;
        Some(Self {
            scheme: url.scheme().to_owned(),
            host: host.to_owned(),
            port: url.port_or_known_default(),
        })
    }
}
