//! Callback tokens: whoever has one may say how a piece of work went.
//!
//! A token names the work of an instance and proves that a runner made it: `<body>.<proof>`, both base64url without
//! padding. The body is compact JSON, the proof a keyed BLAKE3 hash of it, 32 bytes. Workers make tokens, the API reads
//! them; both derive the key from the same secret of the manifest.

use data_encoding::BASE64URL_NOPAD;
use saga_runner_language::ids::{InstanceId, Key, SagaName, TenantId};
use serde::{Deserialize, Serialize};

/// Separates this use of the secret from any other.
const CONTEXT: &str = "saga-runner callback token v1";
/// Longest token, in bytes: three names of their greatest lengths fit.
const TOKEN_BYTES_MAX: usize = 4_096;

/// Makes and reads tokens.
#[derive(Clone)]
pub struct TokenKey([u8; 32]);

/// Whom a callback is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callback {
    pub instance: InstanceId,
    /// Idempotency key of the work, which all its attempts share.
    pub work: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    t: TenantId,
    s: SagaName,
    k: Key,
    w: String,
}

impl TokenKey {
    /// Derives the key from a secret of any length.
    #[must_use]
    pub fn of_secret(secret: &str) -> Self {
        Self(blake3::derive_key(CONTEXT, secret.as_bytes()))
    }

    /// The token of a piece of work, which `work` is the idempotency key of: the same each time.
    #[must_use]
    pub fn token(&self, tenant: &TenantId, saga: &SagaName, key: &Key, work: &str) -> String {
        let body = Body {
            t: tenant.clone(),
            s: saga.clone(),
            k: key.clone(),
            w: work.to_owned(),
        };
        let body = serde_json::to_vec(&body).expect("names are plain data");
        let proof = blake3::keyed_hash(&self.0, &body);
        format!(
            "{}.{}",
            BASE64URL_NOPAD.encode(&body),
            BASE64URL_NOPAD.encode(proof.as_bytes())
        )
    }

    /// What a token is for; `None` where this key did not make it.
    #[must_use]
    pub fn read(&self, token: &str) -> Option<Callback> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (body, proof) = token.split_once('.')?;
        let body = BASE64URL_NOPAD.decode(body.as_bytes()).ok()?;
        let proof: [u8; 32] = BASE64URL_NOPAD.decode(proof.as_bytes()).ok()?.try_into().ok()?;
        // Hashes compare in constant time.
        if blake3::keyed_hash(&self.0, &body) != blake3::Hash::from_bytes(proof) {
            return None;
        }
        let body: Body = serde_json::from_slice(&body).ok()?;
        Some(Callback {
            instance: InstanceId {
                tenant: body.t,
                saga: body.s,
                key: body.k,
            },
            work: body.w,
        })
    }
}

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callback() -> Callback {
        Callback {
            instance: InstanceId {
                tenant: TenantId::parse("acme").expect("legal"),
                saga: SagaName::parse("order").expect("legal"),
                key: Key::parse("o 1/ü").expect("legal"),
            },
            work: "0af7651916cd43dd8448eb211c80319c".to_owned(),
        }
    }

    fn token(key: &TokenKey) -> String {
        let Callback { instance, work } = callback();
        key.token(&instance.tenant, &instance.saga, &instance.key, &work)
    }

    #[test]
    fn a_token_says_what_it_is_for_and_fits_a_path() {
        let key = TokenKey::of_secret("a secret of the manifest");
        let token = token(&key);
        assert_eq!(key.read(&token), Some(callback()));
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        assert!(token.chars().all(plain), "{token}");
    }

    #[test]
    fn a_token_of_another_key_or_with_any_other_character_is_none() {
        let key = TokenKey::of_secret("a secret of the manifest");
        let token = token(&key);
        assert_eq!(TokenKey::of_secret("another").read(&token), None);
        for at in 0..token.len() {
            let mut other = token.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).expect("ASCII");
            assert_eq!(key.read(&other), None, "{other}");
        }
        for rubbish in ["", ".", "a.b", &token[1..], &"x".repeat(1 << 20)] {
            assert_eq!(key.read(rubbish), None);
        }
    }

    #[test]
    fn a_key_does_not_show_itself() {
        assert_eq!(format!("{:?}", TokenKey::of_secret("s")), "TokenKey(..)");
    }
}
