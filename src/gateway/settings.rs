//! Where aggregate commands go, and how long an answer may take.

use reqwest::Url;
use reqwest::header::HeaderName;
use serde::{Deserialize, Serialize};

use super::nats::SubjectPattern;
use crate::clients::{UpstreamTlsFiles, http_url};
use crate::kernel::duration::Millis;
use crate::kernel::subject::Tenancy;

/// The gateway: exactly one of `url`, `grpc` and `nats` says where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// HTTP: the URL that takes a SubmitCommand request as JSON.
    pub url: Option<String>,
    /// gRPC: `http://host:port` or `https://host:port` of a server of `saga_runner.gateway.v1.Gateway`.
    pub grpc: Option<String>,
    /// NATS: subject of requests over the runner's own connection. `{tenant}`, `{aggregate_type}`, `{aggregate_id}` and
    /// `{command}` in it are those of the command.
    pub nats: Option<String>,
    /// Longest wait for the answer to one submission. Default 10s.
    pub timeout: Millis,
    /// Longest wait for a connection of its own, so not with `nats`. Default 2s.
    pub connect_timeout: Option<Millis>,
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
            nats: None,
            timeout: Millis::seconds(10),
            connect_timeout: None,
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
    Nats(SubjectPattern),
}

/// Why the settings do not make a gateway.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatewaySetupError {
    #[error("gateway has no destination: set url (HTTP), grpc or nats")]
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
    #[error("gateway.nats {subject:?}: {reason}")]
    Nats { subject: String, reason: String },
    #[error("gateway.nats {subject:?} has {{tenant}}, and the manifest has no tenants")]
    NoTenants { subject: String },
    #[error("gateway.nats needs broker.kind nats, found embedded")]
    Embedded,
    #[error("gateway.{name} is for a connection of its own; gateway.nats uses that of broker.nats")]
    NoConnection { name: &'static str },
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
        let destination = self.destination()?;
        self.tenant_name()?;
        for (name, time) in [
            ("timeout", self.timeout),
            ("connect_timeout", self.connect_timeout()),
        ] {
            if time.duration().is_zero() {
                return Err(GatewaySetupError::NoTime { name });
            }
        }
        match (&destination, &self.tls) {
            (Destination::Nats(_), Some(_)) => return Err(GatewaySetupError::NoConnection { name: "tls" }),
            (Destination::Nats(_), None) if self.connect_timeout.is_some() => {
                return Err(GatewaySetupError::NoConnection {
                    name: "connect_timeout",
                });
            }
            (Destination::Http(url) | Destination::Grpc(url), Some(files)) => {
                files.check().map_err(GatewaySetupError::Tls)?;
                if url.scheme() != "https" {
                    return Err(GatewaySetupError::Unprotected { url: url.to_string() });
                }
            }
            (Destination::Http(_) | Destination::Grpc(_) | Destination::Nats(_), None) => {}
        }
        Ok(())
    }

    /// Whether the settings go with the rest of the manifest.
    ///
    /// # Errors
    /// [`GatewaySetupError`] names the setting that does not.
    pub fn check_beside(&self, has_nats: bool, tenancy: Tenancy) -> Result<(), GatewaySetupError> {
        let Destination::Nats(pattern) = self.destination()? else {
            return Ok(());
        };
        if !has_nats {
            return Err(GatewaySetupError::Embedded);
        }
        if tenancy == Tenancy::Single && pattern.has_tenant() {
            let subject = self.nats.clone().unwrap_or_default();
            return Err(GatewaySetupError::NoTenants { subject });
        }
        Ok(())
    }

    pub(super) fn connect_timeout(&self) -> Millis {
        self.connect_timeout.unwrap_or(Millis::seconds(2))
    }

    pub(super) fn destination(&self) -> Result<Destination, GatewaySetupError> {
        let mut given = [("url", &self.url), ("grpc", &self.grpc), ("nats", &self.nats)]
            .into_iter()
            .filter_map(|(name, text)| Some((name, text.as_deref()?)));
        let (name, text) = given.next().ok_or(GatewaySetupError::Nowhere)?;
        if let Some((second, _)) = given.next() {
            return Err(GatewaySetupError::Ambiguous { first: name, second });
        }
        let told = || text.to_owned();
        match name {
            "url" => http_url(text)
                .map(Destination::Http)
                .ok_or_else(|| GatewaySetupError::Url { url: told() }),
            "grpc" => http_url(text)
                .filter(is_bare)
                .map(Destination::Grpc)
                .ok_or_else(|| GatewaySetupError::Grpc { url: told() }),
            _ => SubjectPattern::parse(text)
                .map(Destination::Nats)
                .map_err(|reason| GatewaySetupError::Nats {
                    subject: told(),
                    reason,
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
        let both = refusal(serde_json::json!({"grpc": "http://a", "nats": "g.x"}));
        assert!(both.contains("grpc and nats"), "{both}");
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
            (serde_json::json!({"nats": "gateway"}), "gateway.nats"),
            (serde_json::json!({"nats": "g.x", "tls": {}}), "gateway.tls"),
            (
                serde_json::json!({"nats": "g.x", "connect_timeout": "2s"}),
                "gateway.connect_timeout",
            ),
            (
                serde_json::json!({"url": "https://a", "tls": {"key_file": "k.pem"}}),
                "cert_file",
            ),
        ] {
            let said = refusal(settings);
            assert!(said.contains(name), "{name}: {said}");
        }
    }

    #[test]
    fn requests_need_a_connection_and_a_tenant_needs_tenants() {
        let nats = |subject: &str| Settings {
            nats: Some(subject.to_owned()),
            ..Settings::default()
        };
        let with = nats("gateway.{tenant}.{aggregate_type}");
        let without = nats("gateway.{aggregate_type}");
        assert_eq!(with.check(), Ok(()));
        assert_eq!(with.check_beside(true, Tenancy::Multi), Ok(()));
        assert_eq!(without.check_beside(true, Tenancy::Single), Ok(()));
        assert_eq!(
            without.check_beside(false, Tenancy::Multi),
            Err(GatewaySetupError::Embedded)
        );
        assert!(matches!(
            with.check_beside(true, Tenancy::Single),
            Err(GatewaySetupError::NoTenants { .. })
        ));
        let http = Settings::at("http://a".to_owned());
        assert_eq!(http.check_beside(false, Tenancy::Single), Ok(()));
    }
}
