//! Where the API listens, to whom it answers, and how much of it one client can take.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::auth::jwt::JwtSettings;
use super::tls::{ClientCertificates, TlsSettings};
use crate::kernel::duration::Millis;

/// Everything that a manifest says about the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Address of the HTTP API. Default `127.0.0.1:8080`. Beyond loopback it needs `authentication`.
    pub listen: SocketAddr,
    /// Address of `/admin`, `/health`, `/info` and `/metrics`. Default: 127.0.0.1 with the port behind that of `listen`, so
    /// `127.0.0.1:8081`. The address of `listen` itself: one listener serves both. Beyond loopback it needs `authentication`.
    pub admin_listen: Option<SocketAddr>,
    /// Who authenticates requests: `none` (default), `tokens` or `jwt`, which the runner checks, or `in_front`, something between
    /// the clients and this address that lets only authenticated requests through.
    pub authentication: Authentication,
    /// File of the principals, by the hashes of their tokens or the names in their certificates, for
    /// `authentication: tokens`, and beside JSON Web Tokens for `jwt`.
    pub tokens_file: Option<PathBuf>,
    /// The issuer of JSON Web Tokens, for `authentication: jwt`.
    pub jwt: Option<JwtSettings>,
    /// The certificate of both addresses. Default: they do not speak TLS.
    pub tls: Option<TlsSettings>,
    /// Something in front encrypts, so that tokens may be accepted beyond loopback without `tls`. Default false.
    pub encrypted_in_front: bool,
    /// Names by which clients reach the API, besides `localhost` and IP addresses, which are always allowed.
    pub hosts: Vec<String>,
    /// Accept events by `POST /v1/tenants/{tenant}/events`. Default false; `dev` turns it on.
    pub accept_events: bool,
    /// Connections at the same time. Further ones have their probes answered, and everything else refused. Default 512.
    pub connections_max: usize,
    /// Longest TLS handshake, and longest time until the headers of a request are complete; connections that idle for longer are closed. Default 10s.
    pub header_timeout: Millis,
    /// Longest time until a request is answered; opening and closing a shard may take longer. Default 10s.
    pub request_timeout: Millis,
    /// Longest time in which a client may take an answer. Default 60s.
    pub answer_timeout: Millis,
    /// Longest wait for the outcome of a request or for an instance (`?wait=`); longer ones are cut to it. Default 60s.
    pub wait_max: Millis,
    /// Requests that wait at the same time; further ones are answered 503. Default 256.
    pub waits_max: usize,
    /// Instances that are watched at the same time (`.../events`); further requests are answered 503. Default 64.
    pub streams_max: usize,
    /// Longest time in which a backup of a shard is read; meanwhile the file of the shard grows. Default 15m.
    pub backup_max: Millis,
    /// Bytes of one page of a list. Items that do not fit are on the next one. Default 1 MiB.
    pub page_bytes_max: usize,
    /// Reads of shards for requests at the same time; further ones wait. Each takes a thread, which keeps some MB. Default 4.
    pub reads_max: usize,
    /// Bytes of long answers that clients have not taken yet, of all clients together; further requests for long answers are answered
    /// 503, and lists that are being sent go on once there is room. Default 32 MiB.
    pub answer_bytes_max: usize,
    /// Longest time until the process that has the shards answers a request that this one forwards to it; a wait comes on top.
    /// Default 5s.
    pub forward_timeout: Millis,
    /// Requests that this process forwards at the same time, and as many that it answers for others; further ones are answered
    /// 503. Those that wait or watch have places of `waits_max` and `streams_max` instead. Default 64.
    pub forwards_max: usize,
    /// Bytes of an answer to a forwarded request; a longer one is an error. Default 16 MiB.
    pub forward_bytes_max: usize,
}

/// Who authenticates requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Authentication {
    /// Nobody: only this machine may reach the API.
    #[default]
    None,
    /// The runner, by bearer tokens.
    Tokens,
    /// The runner, by JSON Web Tokens of an issuer.
    Jwt,
    /// Whatever stands between the clients and the API.
    InFront,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            admin_listen: None,
            authentication: Authentication::None,
            tokens_file: None,
            jwt: None,
            tls: None,
            encrypted_in_front: false,
            hosts: Vec::new(),
            accept_events: false,
            connections_max: 512,
            header_timeout: Millis::seconds(10),
            request_timeout: Millis::seconds(10),
            answer_timeout: Millis::seconds(60),
            wait_max: Millis::seconds(60),
            waits_max: 256,
            streams_max: 64,
            backup_max: Millis::seconds(15 * 60),
            page_bytes_max: 1024 * 1024,
            reads_max: 4,
            answer_bytes_max: 32 * 1024 * 1024,
            forward_timeout: Millis::seconds(5),
            forwards_max: 64,
            forward_bytes_max: 16 * 1024 * 1024,
        }
    }
}

impl Settings {
    /// The address that other machines could reach although nobody authenticates them.
    #[must_use]
    pub fn exposed(&self) -> Option<(&'static str, SocketAddr)> {
        self.beyond_loopback()
            .filter(|_| self.authentication == Authentication::None)
    }

    /// An address that other machines can reach.
    fn beyond_loopback(&self) -> Option<(&'static str, SocketAddr)> {
        let listen = [
            ("http.listen", Some(self.listen)),
            ("http.admin_listen", self.admin_listen),
        ];
        listen
            .into_iter()
            .filter_map(|(key, address)| Some((key, address?)))
            .find(|(_, address)| !is_loopback(address.ip()))
    }

    /// The address of the listener for operators; `None` where the manifest gives it that of `listen`, which then serves both.
    #[must_use]
    pub fn own_admin_listen(&self) -> Option<SocketAddr> {
        match self.admin_listen {
            Some(address) => Some(address).filter(|address| *address != self.listen),
            None => Some((Ipv4Addr::LOCALHOST, behind(self.listen.port())).into()),
        }
    }

    /// Finds files beside the manifest.
    pub fn resolve(&mut self, base: &Path) {
        if let Some(path) = self.tokens_file.as_mut().filter(|path| path.is_relative()) {
            *path = base.join(&*path);
        }
        if let Some(tls) = &mut self.tls {
            tls.resolve(base);
        }
        if let Some(jwt) = &mut self.jwt {
            jwt.resolve(base);
        }
    }

    /// Checks what a type does not.
    ///
    /// # Errors
    /// A sentence with the key and what is wrong.
    pub fn check(&self) -> Result<(), String> {
        for host in &self.hosts {
            let legal = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            if host.is_empty() || !host.chars().all(legal) {
                return Err(format!(
                    "http.hosts has {host:?}: expected a name without scheme and port"
                ));
            }
        }
        self.check_credentials()?;
        for (name, count) in [
            ("connections_max", self.connections_max),
            ("page_bytes_max", self.page_bytes_max),
            ("reads_max", self.reads_max),
            ("answer_bytes_max", self.answer_bytes_max),
        ] {
            if count == 0 {
                return Err(format!("http.{name} must be at least 1"));
            }
        }
        for (name, time) in [
            ("header_timeout", self.header_timeout),
            ("request_timeout", self.request_timeout),
            ("answer_timeout", self.answer_timeout),
            ("wait_max", self.wait_max),
            ("backup_max", self.backup_max),
            ("forward_timeout", self.forward_timeout),
        ] {
            if time.duration().is_zero() {
                return Err(format!("http.{name} must be longer than 0s"));
            }
        }
        Ok(())
    }

    /// Checks what clients prove themselves by.
    fn check_credentials(&self) -> Result<(), String> {
        let (by_tokens, by_jwt) = (
            self.authentication == Authentication::Tokens,
            self.authentication == Authentication::Jwt,
        );
        let has_file = self.tokens_file.is_some();
        if by_tokens != has_file && !(by_jwt && has_file) {
            return Err("http.authentication: tokens and http.tokens_file belong together".to_owned());
        }
        if by_jwt != self.jwt.is_some() {
            return Err("http.authentication: jwt and http.jwt belong together".to_owned());
        }
        if let Some(jwt) = &self.jwt {
            jwt.check()?;
        }
        if (by_tokens || by_jwt)
            && !self.encrypted_in_front
            && self.tls.is_none()
            && let Some((key, address)) = self.beyond_loopback()
        {
            return Err(format!(
                "{key} {address} can be reached from other machines, and tokens would be sent there unencrypted: listen on 127.0.0.1, set http.tls, or say http.encrypted_in_front: true where something in front encrypts"
            ));
        }
        let Some(tls) = &self.tls else {
            return Ok(());
        };
        match (&tls.client_ca_file, tls.client_certificates) {
            (None, ClientCertificates::Optional) => {
                Err("http.tls.client_certificates needs http.tls.client_ca_file".to_owned())
            }
            (Some(_), _) if !has_file => Err(
                "http.tls.client_ca_file needs http.tokens_file, which says what the owner of a certificate may do"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }
}

/// The port that operators use where none is said. The system chooses both, or none.
const fn behind(port: u16) -> u16 {
    match port {
        0 => 0,
        u16::MAX => u16::MAX - 1,
        port => port + 1,
    }
}

/// Whether only this machine can send to the address.
pub(super) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_needs_nobody_who_authenticates() {
        for (listen, exposed) in [
            ("127.0.0.1:8080", false),
            ("127.1.2.3:1", false),
            ("[::1]:8080", false),
            ("[::ffff:127.0.0.1]:8080", false),
            ("0.0.0.0:8080", true),
            ("[::]:8080", true),
            ("10.0.0.1:8080", true),
            ("[::ffff:10.0.0.1]:8080", true),
        ] {
            let listen = listen.parse().expect("an address");
            let alone = Settings {
                listen,
                ..Settings::default()
            };
            assert_eq!(alone.exposed().is_some(), exposed, "{listen}");
            let guarded = Settings {
                authentication: Authentication::InFront,
                ..alone
            };
            assert_eq!(guarded.exposed(), None, "{listen}");
            let admin = Settings {
                admin_listen: Some(listen),
                ..Settings::default()
            };
            assert_eq!(admin.exposed().is_some(), exposed, "{listen}");
            let mut tokens = Settings {
                listen,
                authentication: Authentication::Tokens,
                tokens_file: Some("tokens".into()),
                ..Settings::default()
            };
            assert_eq!(tokens.exposed(), None, "{listen}");
            assert_eq!(tokens.check().is_err(), exposed, "{listen}: unencrypted");
            tokens.encrypted_in_front = true;
            assert_eq!(tokens.check(), Ok(()), "{listen}");
            tokens.encrypted_in_front = false;
            tokens.tls = Some(tls(None));
            assert_eq!(tokens.check(), Ok(()), "{listen}: its own TLS");
            tokens.tokens_file = None;
            assert!(tokens.check().is_err(), "{listen}");
        }
    }

    #[test]
    fn operators_have_a_loopback_address_of_their_own_unless_the_manifest_says_otherwise() {
        let own = |listen: &str, admin: Option<&str>| {
            let settings = Settings {
                listen: listen.parse().expect("an address"),
                admin_listen: admin.map(|admin| admin.parse().expect("an address")),
                ..Settings::default()
            };
            settings.own_admin_listen().map(|address| address.to_string())
        };
        for (listen, admin) in [
            ("127.0.0.1:8080", "127.0.0.1:8081"),
            ("0.0.0.0:9000", "127.0.0.1:9001"),
            ("[::]:9000", "127.0.0.1:9001"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1:65535", "127.0.0.1:65534"),
        ] {
            assert_eq!(own(listen, None).as_deref(), Some(admin), "{listen}");
        }
        let (a, b) = ("10.0.0.1:80", "10.0.0.1:81");
        assert_eq!(own(a, Some(b)).as_deref(), Some(b));
        assert_eq!(own(a, Some(a)), None, "one listener for both");
    }

    fn tls(client_ca_file: Option<&str>) -> TlsSettings {
        TlsSettings {
            certificate_file: "cert.pem".into(),
            key_file: "key.pem".into(),
            client_ca_file: client_ca_file.map(Into::into),
            client_certificates: ClientCertificates::Required,
        }
    }

    #[test]
    fn certificates_of_clients_need_a_file_that_says_what_their_owners_may_do() {
        let mut settings = Settings {
            tls: Some(tls(Some("ca.pem"))),
            ..Settings::default()
        };
        assert!(settings.check().is_err(), "any owner of one would be an admin");
        settings.authentication = Authentication::Tokens;
        settings.tokens_file = Some("tokens".into());
        assert_eq!(settings.check(), Ok(()));
        let mut optional = tls(None);
        optional.client_certificates = ClientCertificates::Optional;
        settings.tls = Some(optional);
        assert!(settings.check().is_err(), "nobody would be asked for one");
        settings.resolve(Path::new("/etc"));
        let resolved = settings.tls.expect("set");
        assert_eq!(resolved.key_file, Path::new("/etc/key.pem"));
    }

    #[test]
    fn json_web_tokens_need_their_issuer_and_are_sent_encrypted() {
        let issuer = serde_json::json!({"issuer": "a", "audience": "b", "jwks_file": "keys.json"});
        let mut settings = Settings {
            authentication: Authentication::Jwt,
            ..Settings::default()
        };
        assert!(settings.check().is_err(), "nobody would issue them");
        settings.jwt = Some(serde_json::from_value(issuer).expect("settings"));
        assert_eq!(settings.check(), Ok(()));
        settings.tokens_file = Some("tokens".into());
        assert_eq!(settings.check(), Ok(()), "tokens beside them");
        settings.listen = "0.0.0.0:1".parse().expect("an address");
        assert!(settings.check().is_err(), "unencrypted");
        settings.tls = Some(tls(None));
        assert_eq!((settings.check(), settings.exposed()), (Ok(()), None));
        settings.authentication = Authentication::Tokens;
        assert!(settings.check().is_err(), "the issuer would not be asked");
    }

    #[test]
    fn a_host_is_a_name_alone() {
        let with = |host: &str| Settings {
            hosts: vec![host.to_owned()],
            ..Settings::default()
        };
        assert_eq!(with("sagas.example.com").check(), Ok(()));
        for wrong in ["", "http://a", "a:8080", "a/b", "*.example.com"] {
            assert!(with(wrong).check().is_err(), "{wrong:?}");
        }
    }
}
