//! Where the API listens, to whom it answers, and how much of it one client can take.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use crate::kernel::duration::Millis;

/// Everything that a manifest says about the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Address of the HTTP API. Default `127.0.0.1:8080`. Beyond loopback it needs `authentication: in_front`.
    pub listen: SocketAddr,
    /// Who authenticates requests: `none` (default), or `in_front`, something between the clients and this address that
    /// lets only authenticated requests through.
    pub authentication: Authentication,
    /// Names by which clients reach the API, besides `localhost` and IP addresses, which are always allowed.
    pub hosts: Vec<String>,
    /// Accept events by `POST /v1/tenants/{tenant}/events`. Default false; `dev` turns it on.
    pub accept_events: bool,
    /// Connections at the same time. Further ones have their probes answered, and everything else refused. Default 512.
    pub connections_max: usize,
    /// Longest time until the headers of a request are complete; connections that idle for longer are closed. Default 10s.
    pub header_timeout: Millis,
    /// Longest time until a request is answered; opening and closing a shard may take longer. Default 10s.
    pub request_timeout: Millis,
    /// Longest time in which a client may take an answer. Default 60s.
    pub answer_timeout: Millis,
    /// Bytes of one page of a list. Items that do not fit are on the next one. Default 1 MiB.
    pub page_bytes_max: usize,
}

/// Who authenticates requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Authentication {
    /// Nobody: only this machine may reach the API.
    #[default]
    None,
    /// Whatever stands between the clients and the API.
    InFront,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            authentication: Authentication::None,
            hosts: Vec::new(),
            accept_events: false,
            connections_max: 512,
            header_timeout: Millis::seconds(10),
            request_timeout: Millis::seconds(10),
            answer_timeout: Millis::seconds(60),
            page_bytes_max: 1024 * 1024,
        }
    }
}

impl Settings {
    /// Whether other machines could reach the API, and nobody authenticates them.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.authentication == Authentication::None && !is_loopback(self.listen.ip())
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
        if self.connections_max == 0 || self.page_bytes_max == 0 {
            return Err("http.connections_max and http.page_bytes_max must be at least 1".to_owned());
        }
        for (name, time) in [
            ("header_timeout", self.header_timeout),
            ("request_timeout", self.request_timeout),
            ("answer_timeout", self.answer_timeout),
        ] {
            if time.duration().is_zero() {
                return Err(format!("http.{name} must be longer than 0s"));
            }
        }
        Ok(())
    }
}

/// Whether only this machine can send to the address.
fn is_loopback(address: IpAddr) -> bool {
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
            assert_eq!(alone.is_exposed(), exposed, "{listen}");
            let guarded = Settings {
                authentication: Authentication::InFront,
                ..alone
            };
            assert!(!guarded.is_exposed(), "{listen}");
        }
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
