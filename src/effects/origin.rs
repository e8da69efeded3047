//! Where the calls of an effect go, fixed before there is any command.

use reqwest::Url;

use crate::kernel::expr::{Budget, Root, Scope, Template, TextPart};
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

impl Origin {
    /// The origin that a URL template begins with, from its literal text or a base URL of the manifest.
    ///
    /// # Errors
    /// A sentence, where the host would depend on a command.
    pub fn of(template: &Template, upstreams: &Json<'static>, steps: u64) -> Result<Self, String> {
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
        let head =
            head.map_err(|error| format!("url must begin with a fixed host or an upstream: {error}"))?;
        Url::parse(&head)
            .ok()
            .and_then(|url| Self::of_url(&url))
            .ok_or_else(|| format!("url begins with {head:?}, which is not http://host or https://host"))
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
