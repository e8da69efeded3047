//! The public keys of an issuer (JWKS, RFC 7517).

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

/// Most keys of an issuer.
const KEYS_MAX: usize = 100;

/// Keys by their ids.
pub struct Keys(Vec<Key>);

pub struct Key {
    id: String,
    pub algorithm: Algorithm,
    pub decoding: DecodingKey,
}

#[derive(Deserialize)]
struct Written {
    keys: Vec<Value>,
}

impl Keys {
    /// Reads a set of keys. Those that cannot sign a token that is accepted are left out: of other types, for encryption, without
    /// an id.
    ///
    /// # Errors
    /// A sentence where there is no key that can.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let written: Written =
            serde_json::from_slice(text).map_err(|error| format!("is no JSON Web Key Set: {error}"))?;
        if written.keys.len() > KEYS_MAX {
            let found = written.keys.len();
            return Err(format!("has {found} keys, at most {KEYS_MAX} are allowed"));
        }
        let keys: Vec<Key> = written.keys.into_iter().filter_map(key).collect();
        if keys.is_empty() {
            return Err("has no key with an id (kid) for RS256, ES256 or EdDSA".to_owned());
        }
        Ok(Self(keys))
    }

    /// The keys of this id; a set may have several of different types.
    pub fn named<'k>(&'k self, id: &'k str) -> impl Iterator<Item = &'k Key> {
        self.0.iter().filter(move |key| key.id == id)
    }

    pub fn has(&self, id: &str) -> bool {
        self.named(id).next().is_some()
    }
}

fn key(written: Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(written).ok()?;
    let id = jwk.common.key_id.clone()?;
    if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    let (algorithm, named) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(of) if of.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(of) if of.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        _ => return None,
    };
    if jwk.common.key_algorithm.is_some_and(|of| of != named) {
        return None;
    }
    let decoding = DecodingKey::from_jwk(&jwk).ok()?;
    Some(Key {
        id,
        algorithm,
        decoding,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_that_sign_no_accepted_token_are_left_out() {
        let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        let good = json!({"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "good"});
        let with = |more: Value| {
            let mut key = good.clone();
            for (name, value) in more.as_object().expect("an object") {
                key[name] = value.clone();
            }
            key
        };
        let parse = |keys: &[Value]| Keys::parse(json!({"keys": keys}).to_string().as_bytes());
        for left_out in [
            with(json!({"kid": null})),
            with(json!({"use": "enc"})),
            with(json!({"alg": "HS256"})),
            with(json!({"alg": "RSA-OAEP"})),
            with(json!({"crv": "X25519"})),
            json!({"kty": "oct", "k": "c2VjcmV0", "kid": "a", "alg": "HS256"}),
            json!({"kty": "EC", "crv": "P-384", "x": x, "y": x, "kid": "a"}),
            json!({"kty": "unheard of", "kid": "a"}),
        ] {
            assert!(parse(std::slice::from_ref(&left_out)).is_err(), "{left_out}");
            let keys = parse(&[left_out.clone(), good.clone()]).expect("one is good");
            assert!(keys.has("good") && !keys.has("a"), "{left_out}");
        }
        let fits = with(json!({"use": "sig", "alg": "EdDSA"}));
        assert!(parse(&[fits]).is_ok());
        assert!(Keys::parse(b"<html>").is_err());
        assert!(parse(&vec![good.clone(); KEYS_MAX + 1]).is_err());
    }
}
