//! Addresses of runners, as the command line is given them.

use crate::app::exit::{self, Failure};

/// Reads the URL of a server.
///
/// # Errors
/// A sentence, where it is not http or https with a host.
pub(super) fn base_url(text: &str) -> Result<String, String> {
    let url = reqwest::Url::parse(text).ok();
    let is_one = |url: &reqwest::Url| ["http", "https"].contains(&url.scheme()) && url.host_str().is_some();
    if !url.as_ref().is_some_and(is_one) {
        return Err("expected http://HOST:PORT or https://HOST:PORT".to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_to_this_machine_or_over_tls() {
        for safe in [
            "http://127.0.0.1:8080",
            "http://[::1]:1",
            "http://localhost",
            "https://far:443",
        ] {
            assert!(safe_for_tokens(safe).is_ok(), "{safe}");
        }
        for unsafe_ in ["http://far:8080", "http://10.0.0.1", "http://127.0.0.1.evil"] {
            assert_eq!(
                safe_for_tokens(unsafe_).expect_err("refused").code,
                exit::USAGE,
                "{unsafe_}"
            );
        }
    }

    #[test]
    fn another_port_is_taken_of_this_machine_only() {
        for (url, at) in [
            ("http://127.0.0.1:8080", Some("http://127.0.0.1:8081")),
            ("https://localhost:8080", Some("https://localhost:8081")),
            ("http://[::1]:8080/below", Some("http://[::1]:8081/below")),
            ("http://far:8080", None),
            ("https://10.0.0.1:8080", None),
        ] {
            assert_eq!(at_port(url, 8081).as_deref(), at, "{url}");
        }
    }

    #[test]
    fn only_the_url_of_a_server_is_taken() {
        assert_eq!(base_url("http://a:1/"), Ok("http://a:1".to_owned()));
        for wrong in ["", "not a url", "localhost:8080", "ftp://a", "/path"] {
            assert!(base_url(wrong).is_err(), "{wrong}");
        }
    }
}
