//! Where aggregate commands go, and how long an answer may take.

use reqwest::Url;
use reqwest::header::HeaderName;
use serde::Deserialize;

use crate::clients::UpstreamTlsFiles;
use crate::kernel::duration::Millis;

/// The gateway: exactly one of `url` and `grpc` says where it is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// HTTP: the URL that takes a SubmitCommand request as JSON.
    pub url: Option<String>,
    /// gRPC: `http://host:port` or `https://host:port` of a server of `saga_runner.gateway.v1.Gateway`.
    pub grpc: Option<String>,
    /// Longest wait for the answer to one submission. Default 10s.
    pub timeout: Millis,
    /// Longest wait for the connection. Default 2s.
    pub connect_timeout: Millis,
    /// Name of the header, or of the metadata, that carries the tenant. Default `x-tenant-id`.
    pub tenant_header: String,
    /// What protects the connection where the URL begins with `https`. Default: the authorities of the system.
    pub tls: Option<UpstreamTlsFiles>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: None,
            grpc: None,
            timeout: Millis::seconds(10),
            connect_timeout: Millis::seconds(2),
            tenant_header: "x-tenant-id".to_owned(),
            tls: None,
        }
    }
}

/// Which kind of gateway, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Destination {
    Http(Url),
    Grpc(Url),
}

/// Why the settings do not make a gateway.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatewaySetupError {
    #[error("gateway does not say where commands go: give it url (HTTP) or grpc")]
    Nowhere,
    #[error("gateway has {first} and {second}: keep one of them")]
    Ambiguous {
        first: &'static str,
        second: &'static str,
    },
    #[error("gateway.url {url:?} is not an http or https URL")]
    Url { url: String },
    #[error("gateway.grpc {url:?} is not http://host:port or https://host:port")]
    Grpc { url: String },
    #[error("gateway.tenant_header {name:?} is not a header name")]
    TenantHeader { name: String },
    #[error("gateway.{name} must be longer than 0")]
    NoTime { name: &'static str },
    #[error("gateway.tls: {0}")]
    Tls(String),
    #[error("gateway.tls is for https, and {url:?} is not")]
    Unprotected { url: String },
    #[error("the runner is built without the feature {feature:?}, which this gateway needs")]
    NotBuiltIn { feature: &'static str },
    #[error("gateway client cannot be built: {0}")]
    Client(String),
}

impl Settings {
    /// A gateway over HTTP at `url`, everything else as it is by default.
    #[must_use]
    pub fn at(url: String) -> Self {
        Self {
            url: Some(url),
            ..Self::default()
        }
    }

    /// Whether the settings make sense; files are not read.
    ///
    /// # Errors
    /// [`GatewaySetupError`] names the setting that is wrong.
    pub fn check(&self) -> Result<(), GatewaySetupError> {
        let (Destination::Http(url) | Destination::Grpc(url)) = self.destination()?;
        self.tenant_name()?;
        for (name, time) in [
            ("timeout", self.timeout),
            ("connect_timeout", self.connect_timeout),
        ] {
            if time.duration().is_zero() {
                return Err(GatewaySetupError::NoTime { name });
            }
        }
        if let Some(files) = &self.tls {
            files.check().map_err(GatewaySetupError::Tls)?;
            if url.scheme() != "https" {
                return Err(GatewaySetupError::Unprotected { url: url.to_string() });
            }
        }
        Ok(())
    }

    pub(super) fn destination(&self) -> Result<Destination, GatewaySetupError> {
        match (&self.url, &self.grpc) {
            (Some(url), None) => {
                let address = address(url).ok_or_else(|| GatewaySetupError::Url { url: url.clone() })?;
                Ok(Destination::Http(address))
            }
            (None, Some(url)) => {
                let address = address(url).filter(is_bare);
                let address = address.ok_or_else(|| GatewaySetupError::Grpc { url: url.clone() })?;
                Ok(Destination::Grpc(address))
            }
            (None, None) => Err(GatewaySetupError::Nowhere),
            (Some(_), Some(_)) => Err(GatewaySetupError::Ambiguous {
                first: "url",
                second: "grpc",
            }),
        }
    }

    /// Header names are names of metadata, too, in lower case.
    pub(super) fn tenant_name(&self) -> Result<HeaderName, GatewaySetupError> {
        HeaderName::from_bytes(self.tenant_header.as_bytes()).map_err(|_| GatewaySetupError::TenantHeader {
            name: self.tenant_header.clone(),
        })
    }
}

fn address(text: &str) -> Option<Url> {
    let fit = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    Url::parse(text).ok().filter(fit)
}

/// Nothing but scheme, host and port: the rest of the path is the method's.
fn is_bare(url: &Url) -> bool {
    let plain = url.username().is_empty() && url.password().is_none();
    plain && url.path() == "/" && url.query().is_none() && url.fragment().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: serde_json::Value) -> String {
        let settings: Settings = serde_json::from_value(json).expect("the shape is right");
        settings.check().expect_err("no gateway").to_string()
    }

    #[test]
    fn a_gateway_is_in_one_place() {
        assert!(Settings::at("http://orders/commands".to_owned()).check().is_ok());
        let grpc = serde_json::json!({"grpc": "https://orders:8443"});
        let grpc: Settings = serde_json::from_value(grpc).expect("the shape is right");
        assert_eq!(grpc.check(), Ok(()));
        let nowhere = refusal(serde_json::json!({"timeout": "1s"}));
        assert!(nowhere.contains("url") && nowhere.contains("grpc"), "{nowhere}");
        let twice = refusal(serde_json::json!({"url": "http://a", "grpc": "http://b"}));
        assert!(twice.contains("url and grpc"), "{twice}");
    }

    #[test]
    fn settings_that_make_no_gateway_are_named() {
        for url in ["", "nats://x", "http://", "/commands"] {
            let said = refusal(serde_json::json!({"url": url}));
            assert!(said.contains("gateway.url"), "{url:?}: {said}");
        }
        for url in [
            "",
            "orders:50051",
            "http://orders/path",
            "http://me:pass@orders",
            "http://orders?x=1",
        ] {
            let said = refusal(serde_json::json!({"grpc": url}));
            assert!(said.contains("gateway.grpc"), "{url:?}: {said}");
        }
        for (settings, name) in [
            (
                serde_json::json!({"url": "http://a", "tenant_header": "x y"}),
                "tenant_header",
            ),
            (serde_json::json!({"url": "http://a", "timeout": "0s"}), "timeout"),
            (
                serde_json::json!({"grpc": "http://a", "connect_timeout": "0ms"}),
                "connect_timeout",
            ),
            (serde_json::json!({"grpc": "http://a", "tls": {}}), "https"),
            (
                serde_json::json!({"url": "https://a", "tls": {"key_file": "k.pem"}}),
                "cert_file",
            ),
        ] {
            let said = refusal(settings);
            assert!(said.contains(name), "{name}: {said}");
        }
    }
}
