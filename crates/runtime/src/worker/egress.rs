//! Which addresses calls may connect to. Providers, which turn names into addresses, ask here about each of them.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

/// Longest list of networks.
const ALLOW_MAX: usize = 256;

/// Which addresses a call may connect to. Link-local and multicast addresses and the metadata services of clouds are
/// never among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// Whether private, loopback and reserved addresses may be called. Default true.
    pub allow_private: bool,
    /// Networks that may be called though `allow_private` is false, as `10.1.0.0/16`. Default none.
    pub allow: Vec<IpNet>,
}

impl Default for Egress {
    fn default() -> Self {
        Self {
            allow_private: true,
            allow: Vec::new(),
        }
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
    /// Whether the settings make sense together.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.allow_private && !self.allow.is_empty() {
            return Err(
                "allow makes exceptions from allow_private: false; set that, or leave allow out".to_owned(),
            );
        }
        if self.allow.len() > ALLOW_MAX {
            let found = self.allow.len();
            return Err(format!(
                "allow has {found} networks, at most {ALLOW_MAX} are possible"
            ));
        }
        match self.allow.iter().find(|net| net.addr() != net.network()) {
            Some(net) => Err(format!(
                "allow: {net} is not a network; did you mean {}?",
                net.trunc()
            )),
            None => Ok(()),
        }
    }

    /// Whether a call may connect to `address`.
    #[must_use]
    pub fn permits(&self, address: IpAddr) -> bool {
        // An address of IPv4 that is written as one of IPv6 is called as what it is.
        let address = address.to_canonical();
        !is_never_called(address)
            && (self.allow_private
                || is_public(address)
                || self.allow.iter().any(|network| network.contains(&address)))
    }
}

/// Link-local, multicast, broadcast, and where clouds keep the credentials of machines, also behind a translation.
fn is_never_called(address: IpAddr) -> bool {
    /// The metadata services that are not link-local: of Alibaba Cloud, Oracle Cloud and Azure.
    const METADATA_V4: [Ipv4Addr; 3] = [
        Ipv4Addr::new(100, 100, 100, 200),
        Ipv4Addr::new(192, 0, 0, 192),
        Ipv4Addr::new(168, 63, 129, 16),
    ];
    /// Those of AWS and of Google Cloud, inside the unique-local range.
    const METADATA_V6: [Ipv6Addr; 2] = [
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
        Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    ];
    let never_v4 = |address: Ipv4Addr| {
        address.is_link_local()
            || address.is_broadcast()
            || address.is_multicast()
            || METADATA_V4.contains(&address)
    };
    match address {
        IpAddr::V4(address) => never_v4(address),
        IpAddr::V6(address) => {
            address.is_unicast_link_local()
                || address.is_multicast()
                || METADATA_V6.contains(&address)
                || embedded_v4(address).is_some_and(never_v4)
        }
    }
}

/// Whether the address is one of the public Internet.
fn is_public(address: IpAddr) -> bool {
    /// What the IANA registry of special-purpose addresses holds, but the anycast services in it that are public.
    const SPECIAL_V4: [Ipv4Net; 15] = [
        Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8),
        Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8),
        Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10),
        Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8),
        Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16),
        Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12),
        Ipv4Net::new_assert(Ipv4Addr::new(192, 0, 0, 0), 24),
        Ipv4Net::new_assert(Ipv4Addr::new(192, 0, 2, 0), 24),
        Ipv4Net::new_assert(Ipv4Addr::new(192, 88, 99, 0), 24),
        Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16),
        Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15),
        Ipv4Net::new_assert(Ipv4Addr::new(198, 51, 100, 0), 24),
        Ipv4Net::new_assert(Ipv4Addr::new(203, 0, 113, 0), 24),
        Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4),
        Ipv4Net::new_assert(Ipv4Addr::new(240, 0, 0, 0), 4),
    ];
    /// All public addresses of IPv6 are in here (RFC 4291, 2.4, and the IANA registry of global unicast addresses), so
    /// whatever is not, such as `5f00::/16`, `fc00::/7` and `fec0::/10`, needs no line of its own.
    const GLOBAL_V6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
    /// What is special within: protocol assignments with Teredo, 6to4, and two networks for documentation.
    const SPECIAL_V6: [Ipv6Net; 4] = [
        Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
        Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
        Ipv6Net::new_assert(Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
        Ipv6Net::new_assert(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
    ];
    /// NAT64 (RFC 6052) leads to the public Internet of IPv4, and nowhere else if it is set up as it should be.
    const NAT64: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);
    let public_v4 = |address: Ipv4Addr| !SPECIAL_V4.iter().any(|network| network.contains(&address));
    match address {
        IpAddr::V4(address) => public_v4(address),
        IpAddr::V6(address) if NAT64.contains(&address) => embedded_v4(address).is_some_and(public_v4),
        IpAddr::V6(address) => {
            GLOBAL_V6.contains(&address) && !SPECIAL_V6.iter().any(|network| network.contains(&address))
        }
    }
}

/// The address of IPv4 that a translated one leads to: compatible (`::/96`), translated (`::ffff:0:0:0/96`), NAT64
/// (`64:ff9b::/96`, and `64:ff9b:1::/48` as it is mostly divided), 6to4 and Teredo.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0 | 0xffff, 0 | 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [0x2002, high, low, ..] => Some(join(high, low)),
        [0x2001, 0, _, _, _, _, high, low] => Some(join(!high, !low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(egress: &Egress, address: &str) -> bool {
        egress.permits(address.parse().expect("an address"))
    }

    fn public_only(allow: &[&str]) -> Egress {
        Egress {
            allow_private: false,
            allow: allow.iter().map(|net| net.parse().expect("a network")).collect(),
        }
    }

    #[test]
    fn metadata_addresses_are_never_called_however_they_are_written() {
        let everything = public_only(&["0.0.0.0/0", "::/0"]);
        for address in [
            "169.254.169.254",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "fe80::1",
            "::ffff:169.254.169.254",
            "::ffff:0:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b:1:ffff::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "2001:0:1:2:3:4:5601:5601",
            "fd00:ec2::254",
            "fd20:ce::254",
            "255.255.255.255",
            "224.0.0.1",
            "ff02::1",
        ] {
            assert!(!permits(&Egress::default(), address), "{address}");
            assert!(!permits(&everything, address), "{address}");
        }
    }

    #[test]
    fn private_addresses_are_allowed_only_by_configuration() {
        for address in [
            "0.0.0.0",
            "0.255.255.255",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "240.0.0.1",
            "255.255.255.254",
            "::",
            "::1",
            "::10.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:0:8.8.8.8",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::8.8.8.8",
            "100::1",
            "100:0:0:1::1",
            "2001::1",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:808:808::1",
            "3fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fdff::1",
            "fec0::1",
        ] {
            assert!(permits(&Egress::default(), address), "{address}");
            assert!(!permits(&public_only(&[]), address), "{address}");
        }
        for address in [
            "1.1.1.1",
            "93.184.216.34",
            "100.63.255.255",
            "100.128.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2606:2800:220:1::1",
        ] {
            assert!(permits(&public_only(&[]), address), "{address}");
        }
    }

    #[test]
    fn networks_that_are_listed_may_be_called() {
        let egress = public_only(&["10.1.0.0/16", "fd12:3456::/32"]);
        for (address, may) in [
            ("10.1.0.0", true),
            ("10.1.255.255", true),
            ("10.2.0.0", false),
            ("10.0.255.255", false),
            ("::ffff:10.1.2.3", true),
            ("64:ff9b::10.1.2.3", false),
            ("fd12:3456:1::1", true),
            ("fd12:3457::1", false),
            ("127.0.0.1", false),
            ("8.8.8.8", true),
        ] {
            assert_eq!(permits(&egress, address), may, "{address}");
        }
    }

    #[test]
    fn a_list_that_has_no_meaning_is_refused() {
        let network = |text: &str| text.parse::<IpNet>().expect("a network");
        let of = |allow_private, allow: Vec<IpNet>| Egress { allow_private, allow }.check();
        assert_eq!(of(true, vec![]), Ok(()));
        assert_eq!(
            of(false, vec![network("10.1.0.0/16"), network("::1/128")]),
            Ok(())
        );
        let idle = of(true, vec![network("10.1.0.0/16")]).expect_err("everything private is allowed");
        assert!(idle.contains("allow_private: false"), "{idle}");
        let host = of(false, vec![network("10.1.2.3/16")]).expect_err("an address in a network");
        assert!(host.contains("10.1.0.0/16"), "{host}");
        let long = of(false, vec![network("10.1.0.0/16"); ALLOW_MAX + 1]).expect_err("too long");
        assert!(long.contains("257"), "{long}");
    }
}
