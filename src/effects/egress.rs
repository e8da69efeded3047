//! Where calls may go: a check of addresses at the moment of connecting, for names and for IP literals.
//!
//! A name is checked by what it resolves to, so a name that points inward is refused like the address itself.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use serde::{Deserialize, Serialize};

/// Which addresses a call may connect to. Link-local addresses, where clouds keep their metadata, are never
/// among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// Whether private and loopback addresses may be called. Default true.
    pub allow_private: bool,
}

impl Default for Egress {
    fn default() -> Self {
        Self { allow_private: true }
    }
}

/// A call to where calls may not go.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{host} is at {address}, which effects may not call")]
pub struct EgressDenied {
    pub host: String,
    pub address: IpAddr,
}

impl EgressDenied {
    /// The denial among the causes of an error.
    #[must_use]
    pub fn among<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(denied) = error.downcast_ref() {
                return Some(denied);
            }
            cause = error.source();
        }
        None
    }
}

impl Egress {
    #[must_use]
    pub fn permits(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.permits_v4(address),
            IpAddr::V6(address) => match embedded_v4(address) {
                Some(inner) => self.permits_v4(inner),
                None => self.permits_v6(address),
            },
        }
    }

    /// Checks a host that is an IP literal; the client's resolver never sees those.
    ///
    /// # Errors
    /// [`EgressDenied`] for a literal that may not be called.
    pub fn check_literal(self, url: &Url) -> Result<(), EgressDenied> {
        let host = url.host_str().unwrap_or_default();
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        match literal.parse::<IpAddr>() {
            Ok(address) if !self.permits(address) => Err(EgressDenied {
                host: host.to_owned(),
                address,
            }),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The addresses of a host. One forbidden address refuses the whole name, so that an answer which mixes
    /// addresses cannot be used to slip one in.
    ///
    /// # Errors
    /// [`EgressDenied`], or the resolver's own.
    pub async fn lookup(
        self,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, Box<dyn Error + Send + Sync>> {
        let found: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
        if let Some(denied) = found.iter().find(|found| !self.permits(found.ip())) {
            let denied = EgressDenied {
                host: host.to_owned(),
                address: denied.ip(),
            };
            return Err(denied.into());
        }
        Ok(found)
    }

    fn permits_v4(self, address: Ipv4Addr) -> bool {
        let [first, second, ..] = address.octets();
        let forbidden = address.is_link_local() || address.is_broadcast() || address.is_multicast();
        let private = address.is_private()
            || address.is_loopback()
            || first == 0
            || (first == 100 && second & 0xc0 == 64)
            || (first == 198 && second & 0xfe == 18);
        !forbidden && (self.allow_private || !private)
    }

    fn permits_v6(self, address: Ipv6Addr) -> bool {
        /// Address of the metadata service of EC2, inside the unique-local range.
        const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
        let forbidden = address.is_unicast_link_local() || address.is_multicast() || address == METADATA;
        let private = address.is_loopback() || address.is_unspecified() || address.is_unique_local();
        !forbidden && (self.allow_private || !private)
    }
}

/// The IPv4 address that a mapped, compatible, NAT64 or 6to4 address leads to.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = address.segments();
    let join = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match s {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => Some(join(high, low)),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(join(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(allow_private: bool, address: &str) -> bool {
        Egress { allow_private }.permits(address.parse().expect("an address"))
    }

    #[test]
    fn metadata_addresses_are_never_called_however_they_are_written() {
        for address in [
            "169.254.169.254",
            "fe80::1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "fd00:ec2::254",
            "255.255.255.255",
            "224.0.0.1",
        ] {
            assert!(!permits(true, address), "{address}");
        }
    }

    #[test]
    fn private_addresses_are_a_matter_of_configuration() {
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "0.0.0.0",
            "::1",
            "::",
            "fc00::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(permits(true, address), "{address}");
            assert!(!permits(false, address), "{address}");
        }
        assert!(permits(false, "93.184.216.34") && permits(false, "2606:2800:220:1::1"));
    }

    #[test]
    fn literals_in_urls_are_checked_in_every_notation() {
        for url in [
            "http://169.254.169.254/x",
            "http://0xA9FEA9FE/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://2852039166/",
        ] {
            let url = Url::parse(url).expect("a URL");
            assert!(Egress::default().check_literal(&url).is_err(), "{url}");
        }
    }
}
