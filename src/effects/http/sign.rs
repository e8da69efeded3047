//! The signature of a request: an HMAC (RFC 2104) of what is sent.

use bytes::Bytes;
use data_encoding::{BASE64, HEXLOWER};
use hmac::{Hmac, KeyInit, Mac};
use hyper::Request;
use hyper::header::{HeaderName, HeaderValue};
use sha2::{Sha256, Sha512};

use super::request::value;
use crate::effects::provider::CallFailure;
use crate::kernel::definition::http_proof::{
    Signature, SignatureEncoding, SignatureHash, SignaturePart, TimestampUnit,
};
use crate::kernel::ids::TimeMs;

/// Signs the request as it is, body and all, and puts the signature into its headers.
pub fn sign(
    request: &mut Request<Bytes>,
    signature: &Signature,
    key: &str,
    now: TimeMs,
) -> Result<(), CallFailure> {
    let timestamp = match signature.timestamp_unit {
        TimestampUnit::Seconds => now.0.div_euclid(1_000),
        TimestampUnit::Milliseconds => now.0,
    }
    .to_string();
    let content = content(request, signature, &timestamp);
    let code = code(signature.hash, key.as_bytes(), &content);
    let code = match signature.encoding {
        SignatureEncoding::Hex => HEXLOWER.encode(&code),
        SignatureEncoding::Base64 => BASE64.encode(&code),
    };
    let text: String = signature
        .value
        .iter()
        .map(|part| match part {
            SignaturePart::Literal(text) => text.as_str(),
            SignaturePart::Timestamp => &timestamp,
            SignaturePart::Signature => &code,
            SignaturePart::Method | SignaturePart::Path | SignaturePart::Body => "",
        })
        .collect();
    put(request, &signature.header, &text)?;
    match &signature.timestamp_header {
        Some(header) => put(request, header, &timestamp),
        None => Ok(()),
    }
}

fn content(request: &Request<Bytes>, signature: &Signature, timestamp: &str) -> Vec<u8> {
    let mut content = Vec::new();
    for part in &signature.content {
        match part {
            SignaturePart::Literal(text) => content.extend_from_slice(text.as_bytes()),
            SignaturePart::Method => content.extend_from_slice(request.method().as_str().as_bytes()),
            SignaturePart::Path => {
                content.extend_from_slice(request.uri().path().as_bytes());
                if let Some(query) = request.uri().query() {
                    content.push(b'?');
                    content.extend_from_slice(query.as_bytes());
                }
            }
            SignaturePart::Timestamp => content.extend_from_slice(timestamp.as_bytes()),
            SignaturePart::Body => {
                content.extend_from_slice(request.body());
            }
            SignaturePart::Signature => {}
        }
    }
    content
}

fn put(request: &mut Request<Bytes>, header: &str, text: &str) -> Result<(), CallFailure> {
    let name = HeaderName::from_bytes(header.as_bytes())
        .map_err(|_| CallFailure::not_done("header.illegal", format!("{header:?} is not a header name")))?;
    let value: HeaderValue = value(header, text)?;
    request.headers_mut().insert(name, value);
    Ok(())
}

pub(super) fn code(hash: SignatureHash, key: &[u8], content: &[u8]) -> Vec<u8> {
    match hash {
        SignatureHash::Sha256 => hmac::<Hmac<Sha256>>(key, content),
        SignatureHash::Sha512 => hmac::<Hmac<Sha512>>(key, content),
    }
}

fn hmac<M: Mac + KeyInit>(key: &[u8], content: &[u8]) -> Vec<u8> {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of every length");
    mac.update(content);
    mac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key, data, and both codes, in hexadecimal: cases 1 to 4, 6 and 7 of RFC 4231.
    const RFC_4231: [(&str, &str, &str, &str); 6] = [
        (
            "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b",
            "4869205468657265",
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            "87aa7cdea5ef619d4ff0b4241a1d6cb02379f4e2ce4ec2787ad0b30545e17cdedaa833b7d6b8a702038b274eaea3f4e4be9d914eeb61f1702e696c203a126854",
        ),
        (
            "4a656665",
            "7768617420646f2079612077616e7420666f72206e6f7468696e673f",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
        ),
        (
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
            "fa73b0089d56a284efb0f0756c890be9b1b5dbdd8ee81a3655f83e33b2279d39bf3e848279a722c806b485a47e67c807b946a337bee8942674278859e13292fb",
        ),
        (
            "0102030405060708090a0b0c0d0e0f10111213141516171819",
            "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b",
            "b0ba465637458c6990e5a8c5f61d4af7e576d97ff94b872de76f8050361ee3dba91ca5c11aa25eb4d679275cc5788063a5f19741120c4f2de2adebeb10a298dd",
        ),
        (
            "AA131",
            "54657374205573696e67204c6172676572205468616e20426c6f636b2d53697a65204b6579202d2048617368204b6579204669727374",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            "80b24263c7c1a3ebb71493c1dd7be8b49b46d1f41b4aeec1121b013783f8f3526b56d037e05f2598bd0fd2215d6a1e5295e64f73f63f0aec8b915a985d786598",
        ),
        (
            "AA131",
            "5468697320697320612074657374207573696e672061206c6172676572207468616e20626c6f636b2d73697a65206b657920616e642061206c6172676572207468616e20626c6f636b2d73697a6520646174612e20546865206b6579206e6565647320746f20626520686173686564206265666f7265206265696e6720757365642062792074686520484d414320616c676f726974686d2e",
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
            "e37b6a775dc87dbaa4dfa9f96e5e3ffddebd71f8867289865df5a32d20cdc944b6022cac3c4982b10d5eeb55c3e4de15134676fb6de0446065c97440fa8c6a58",
        ),
    ];

    /// The example of GitHub's documentation of webhooks.
    #[test]
    fn a_signature_is_what_github_says_it_is() {
        let code = code(
            SignatureHash::Sha256,
            b"It's a Secret to Everybody",
            b"Hello, World!",
        );
        assert_eq!(
            HEXLOWER.encode(&code),
            "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        );
    }

    #[test]
    fn codes_are_those_of_rfc_4231() {
        for (key, data, sha256, sha512) in RFC_4231 {
            let key = match key {
                "AA131" => vec![0xaa; 131],
                key => HEXLOWER.decode(key.as_bytes()).expect("hexadecimal"),
            };
            let data = HEXLOWER.decode(data.as_bytes()).expect("hexadecimal");
            let code = |hash| HEXLOWER.encode(&code(hash, &key, &data));
            assert_eq!(code(SignatureHash::Sha256), sha256);
            assert_eq!(code(SignatureHash::Sha512), sha512);
        }
    }
}
