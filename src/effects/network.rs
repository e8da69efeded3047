//! How the name of a host becomes the addresses that a call connects to, each of them checked.
//!
//! Whoever connects asks here once for each connection and connects to the addresses of that answer and to no other:
//! a name that means something else a moment later (DNS rebinding) gains nothing by it. A client that looks names up
//! itself must be given an address in place of the name.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::Url;

use super::egress::{Egress, EgressDenied};

/// Most addresses of one name that are kept; the rest of a longer answer is ignored.
const ADDRESSES_MAX: usize = 64;

/// What turns names into addresses.
#[async_trait]
pub trait Resolve: Send + Sync + 'static {
    /// The addresses of `host`, with `port`. Called again for each connection.
    ///
    /// # Errors
    /// Why there is no answer.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The operating system's.
#[derive(Debug, Clone, Copy)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}

/// The network as calls may use it.
#[derive(Clone)]
pub struct Network {
    egress: Arc<Egress>,
    resolver: Arc<dyn Resolve>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("egress", &self.egress)
            .finish_non_exhaustive()
    }
}

impl Default for Network {
    fn default() -> Self {
        Self::new(Egress::default(), Arc::new(SystemResolver))
    }
}

impl Network {
    #[must_use]
    pub fn new(egress: Egress, resolver: Arc<dyn Resolve>) -> Self {
        Self {
            egress: Arc::new(egress),
            resolver,
        }
    }

    /// Checks a URL whose host is an IP literal. A client that is given one asks no resolver.
    ///
    /// # Errors
    /// [`EgressDenied`] for a literal that may not be called.
    pub fn check_literal(&self, url: &Url) -> Result<(), EgressDenied> {
        match literal(url.host_str().unwrap_or_default()) {
            Some(address) => self.check(url.host_str().unwrap_or_default(), address),
            None => Ok(()),
        }
    }

    /// The addresses of a host, be it a name or an address. One forbidden address refuses the whole name, so that an
    /// answer which mixes addresses cannot be used to slip one in.
    ///
    /// # Errors
    /// [`EgressDenied`], or the resolver's own.
    pub async fn lookup(
        &self,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, Box<dyn Error + Send + Sync>> {
        let mut found = match literal(host) {
            Some(address) => vec![SocketAddr::new(address, port)],
            None => self.resolver.resolve(host, port).await?,
        };
        found.truncate(ADDRESSES_MAX);
        for address in &found {
            self.check(host, address.ip())?;
        }
        if found.is_empty() {
            let message = format!("{host} has no address");
            return Err(io::Error::new(io::ErrorKind::NotFound, message).into());
        }
        Ok(found)
    }

    fn check(&self, host: &str, address: IpAddr) -> Result<(), EgressDenied> {
        if self.egress.permits(address) {
            return Ok(());
        }
        Err(EgressDenied {
            host: host.to_owned(),
            address,
        })
    }
}

/// The address that `host` is, with or without the brackets of a URL.
fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

#[cfg(all(
    test,
    feature = "effect-grpc",
    feature = "effect-http",
    feature = "effect-smtp",
    feature = "effect-sql"
))]
mod rebinding_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::testing::Answers;

    fn public_only(resolver: Arc<dyn Resolve>) -> Network {
        let egress = Egress {
            allow_private: false,
            ..Egress::default()
        };
        Network::new(egress, resolver)
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
            assert!(Network::default().check_literal(&url).is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn one_forbidden_address_refuses_the_whole_answer() {
        let answers = Answers::of(&[&["8.8.8.8", "1.1.1.1"], &["8.8.8.8", "10.0.0.1"], &[]]);
        let network = public_only(answers.clone());
        let found = network.lookup("pay.test", 443).await.expect("both are public");
        assert_eq!(found.len(), 2);
        let mixed = network.lookup("pay.test", 443).await.expect_err("one is private");
        let denied = EgressDenied::among(&*mixed).expect("a denial");
        assert_eq!(
            denied.to_string(),
            "pay.test is at 10.0.0.1, which effects may not call"
        );
        let none = network.lookup("pay.test", 443).await.expect_err("no address");
        assert!(EgressDenied::among(&*none).is_none(), "{none}");
        assert_eq!(answers.asked(), 3);
    }

    #[tokio::test]
    async fn a_literal_is_checked_without_a_resolver() {
        let answers = Answers::of(&[]);
        let network = public_only(answers.clone());
        assert!(network.lookup("[::1]", 443).await.is_err());
        assert!(network.lookup("127.0.0.1", 443).await.is_err());
        assert!(network.lookup("8.8.8.8", 443).await.is_ok());
        assert_eq!(answers.asked(), 0);
    }
}
