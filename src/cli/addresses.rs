//! Addresses of runners, as the command line is given them.

use crate::app::exit::{self, Failure};

/// Whether the URL is one of this machine.
fn is_here(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The same URL with another port, where it is one of this machine.
pub(super) fn at_port(url: &str, port: u16) -> Option<String> {
    let mut url = reqwest::Url::parse(url).ok().filter(is_here)?;
    url.set_port(Some(port)).ok()?;
    Some(url.as_str().trim_end_matches('/').to_owned())
}

/// A reader of a connection without TLS could use the token.
pub(super) fn safe_for_tokens(url: &str) -> Result<(), Failure> {
    let parsed = reqwest::Url::parse(url).map_err(Failure::software)?;
    if parsed.scheme() == "https" || is_here(&parsed) {
        return Ok(());
    }
    let message = format!("{url}: a token is sent to another machine by https only");
    Err(Failure::new(exit::USAGE, message))
}
