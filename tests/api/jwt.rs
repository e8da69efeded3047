//! JSON Web Tokens of an issuer: those that are accepted, forged ones, and an issuer that changes its keys or is down.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256};
use serde_json::{Value, json};
use wiremock::matchers::path;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::api::auth::{ask, drawn};
use crate::api::caller::letters;
use crate::support::rig::Rig;

const ISSUER: &str = "https://id.example.com";

/// A key of the issuer.
struct Signer {
    id: &'static str,
    algorithm: Algorithm,
    key: EncodingKey,
    /// As the issuer publishes it.
    public: Value,
    /// What anybody could take for a shared secret.
    public_bytes: Vec<u8>,
}

impl Signer {
    fn new(id: &'static str, algorithm: Algorithm) -> Self {
        let of = match algorithm {
            Algorithm::RS256 => &PKCS_RSA_SHA256,
            Algorithm::ES256 => &PKCS_ECDSA_P256_SHA256,
            _ => &PKCS_ED25519,
        };
        let pair = KeyPair::generate_for(of).expect("a key");
        let (private, raw) = (pair.serialize_der(), pair.public_key_raw().to_vec());
        let coded = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        let (key, mut public) = match algorithm {
            Algorithm::RS256 => {
                // Within PKCS #8 the key begins behind 26 bytes, if it has 2048 bits.
                let key = EncodingKey::from_rsa_der(&private[26..]);
                let public = jsonwebtoken::jwk::Jwk::from_encoding_key(&key, algorithm).expect("a key");
                (key, serde_json::to_value(public).expect("JSON"))
            }
            Algorithm::ES256 => (
                EncodingKey::from_ec_der(&private),
                json!({"kty": "EC", "crv": "P-256", "x": coded(&raw[1..33]), "y": coded(&raw[33..])}),
            ),
            _ => (
                EncodingKey::from_ed_der(&private),
                json!({"kty": "OKP", "crv": "Ed25519", "x": coded(&raw)}),
            ),
        };
        public["kid"] = id.into();
        public["use"] = "sig".into();
        Self {
            id,
            algorithm,
            key,
            public,
            public_bytes: raw,
        }
    }

    /// A token with the claims, as the issuer would sign it.
    fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.id.to_owned());
        encode(&header, claims, &self.key).expect("signed")
    }
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    since.as_secs()
}

/// What a valid token says of `ann`.
fn claims() -> Value {
    json!({
        "iss": ISSUER,
        "aud": ["saga-runner", "others"],
        "sub": "ann",
        "exp": now_s() + 600,
        "saga_runner_roles": ["viewer@acme"],
    })
}

fn with(more: &Value) -> Value {
    let mut claims = claims();
    for (name, value) in more.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    claims
}

fn key_set(signers: &[&Signer]) -> Value {
    json!({"keys": signers.iter().map(|signer| &signer.public).collect::<Vec<_>>()})
}

/// Publishes the keys in place of those of before.
async fn publish(issuer: &MockServer, answer: ResponseTemplate) {
    issuer.reset().await;
    Mock::given(path("/keys"))
        .respond_with(answer)
        .mount(issuer)
        .await;
}

async fn runner(jwt: Value) -> (Rig, String) {
    let mut all = json!({"issuer": ISSUER, "audience": "saga-runner"});
    for (key, value) in jwt.as_object().expect("an object") {
        all[key] = value.clone();
    }
    let http = json!({"http": {"authentication": "jwt", "tokens_file": "tokens", "jwt": all}});
    let rig = Rig::new(None, "30m", Duration::ZERO, http).await;
    let (token, line) = drawn("root", "admin@*");
    rig.add_file("tokens", line.as_bytes());
    (rig, token)
}

async fn status(rig: &Rig, token: &str) -> u16 {
    ask(rig, token, "GET", &letters("acme"), "").await.status
}

async fn until_status(rig: &Rig, token: &str, wanted: u16) {
    let begin = Instant::now();
    loop {
        let found = status(rig, token).await;
        if found == wanted {
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "{found}\n{}",
            rig.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A token that is put together by hand.
fn forged(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let coded = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
    let (header, claims) = (header.to_string(), claims.to_string());
    format!(
        "{}.{}.{}",
        coded(header.as_bytes()),
        coded(claims.as_bytes()),
        coded(signature)
    )
}

#[allow(clippy::too_many_lines, reason = "one table of tokens and answers")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_the_issuer_have_the_roles_of_their_claim_and_forged_ones_have_none() {
    let signers = [
        Signer::new("rsa", Algorithm::RS256),
        Signer::new("ec", Algorithm::ES256),
        Signer::new("ed", Algorithm::EdDSA),
    ];
    let [rsa, ec, ed] = &signers;
    let issuer = MockServer::start().await;
    let keys = key_set(&[rsa, ec, ed]);
    publish(&issuer, ResponseTemplate::new(200).set_body_json(&keys)).await;
    let (mut rig, own) = runner(json!({"jwks_url": format!("{}/keys", issuer.uri())})).await;
    rig.start().await;
    for signer in &signers {
        until_status(&rig, &signer.sign(&claims()), 200).await;
    }
    assert_eq!(
        status(&rig, &own).await,
        200,
        "the runner's own tokens are valid beside them"
    );

    let globex = ask(&rig, &ec.sign(&claims()), "GET", &letters("globex"), "").await;
    globex.is_problem(404, "SR0502");
    let cancel = "/v1/tenants/acme/sagas/order/instances/none/cancel";
    ask(&rig, &ec.sign(&claims()), "POST", cancel, "{}")
        .await
        .is_problem(403, "SR0513");
    let nothing = with(&json!({"saga_runner_roles": ["offline_access"]}));
    assert_eq!(status(&rig, &ec.sign(&nothing)).await, 404, "no role, no tenant");
    let late = with(&json!({"exp": now_s() - 5}));
    assert_eq!(
        status(&rig, &ec.sign(&late)).await,
        200,
        "clocks may differ a little"
    );

    let (stranger, header) = (
        Signer::new("ec", Algorithm::ES256),
        |algorithm: &str, id: &str| json!({"alg": algorithm, "typ": "JWT", "kid": id}),
    );
    let admin = with(&json!({"saga_runner_roles": ["admin@*"]}));
    let mut refused = vec![
        ("of another key under the same id", stranger.sign(&admin)),
        ("without a signature", forged(&header("none", "ec"), &admin, b"")),
        (
            "of no algorithm, in capitals",
            forged(&header("NONE", "ec"), &admin, b""),
        ),
        (
            "with an empty signature",
            forged(&header("ES256", "ec"), &admin, b""),
        ),
        ("with zeros", forged(&header("ES256", "ec"), &admin, &[0; 64])),
        ("without a key", {
            encode(&Header::new(Algorithm::ES256), &claims(), &ec.key).expect("signed")
        }),
        ("of the key of another type", {
            let mut header = Header::new(Algorithm::ES256);
            header.kid = Some("rsa".to_owned());
            encode(&header, &claims(), &ec.key).expect("signed")
        }),
        ("of another algorithm of the key", {
            let mut header = Header::new(Algorithm::PS256);
            header.kid = Some("rsa".to_owned());
            encode(&header, &claims(), &rsa.key).expect("signed")
        }),
    ];
    for signer in &signers {
        for secret in [
            signer.public_bytes.clone(),
            signer.public.to_string().into_bytes(),
        ] {
            let mut header = Header::new(Algorithm::HS256);
            header.kid = Some(signer.id.to_owned());
            let key = EncodingKey::from_secret(&secret);
            let token = encode(&header, &admin, &key).expect("signed");
            refused.push(("with a public key as a shared secret", token));
        }
    }
    for (what, more) in [
        ("that has expired", json!({"exp": now_s() - 600})),
        ("that never expires", json!({"exp": null})),
        ("that is not valid yet", json!({"nbf": now_s() + 600})),
        ("for another audience", json!({"aud": "others"})),
        ("for no audience", json!({"aud": null})),
        (
            "of another issuer",
            json!({"iss": "https://id.example.com.evil.example"}),
        ),
        ("of no issuer", json!({"iss": null})),
        ("of nobody", json!({"sub": null})),
        ("of a name with a line end", json!({"sub": "ann\nroot"})),
    ] {
        refused.push((what, ec.sign(&with(&more))));
    }
    let unknown = Signer::new("unknown", Algorithm::EdDSA);
    refused.push(("of a key that the issuer does not have", unknown.sign(&claims())));
    let changed = ed.sign(&claims()).replacen('.', ".e30", 1);
    refused.push(("whose claims were changed", changed));
    for (what, token) in &refused {
        assert_eq!(status(&rig, token).await, 401, "a token {what}");
    }
    let log = std::fs::read_to_string(rig.log()).expect("a log");
    assert!(log.contains("\"principal\":\"ann\""), "the audit names her");
    for (_, token) in &refused {
        assert!(!log.contains(token.as_str()), "a token is in the log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_fetched_for_an_unknown_one_now_and_then_and_stay_while_the_issuer_is_down() {
    let (old, new) = (
        Signer::new("old", Algorithm::ES256),
        Signer::new("new", Algorithm::EdDSA),
    );
    let issuer = MockServer::start().await;
    publish(
        &issuer,
        ResponseTemplate::new(200).set_body_json(key_set(&[&old])),
    )
    .await;
    let (mut rig, _own) = runner(json!({
        "jwks_url": format!("{}/keys", issuer.uri()),
        "refresh": "1h",
        "refetch_after": "2s",
        "keys_age_max": "2h",
    }))
    .await;
    rig.start().await;
    until_status(&rig, &old.sign(&claims()), 200).await;

    let unknown = Signer::new("unknown", Algorithm::EdDSA).sign(&claims());
    let begin = Instant::now();
    for _ in 0..30 {
        assert_eq!(status(&rig, &unknown).await, 401);
    }
    let fetches = issuer.received_requests().await.expect("recorded").len();
    let most = 2 + usize::try_from(begin.elapsed().as_secs()).expect("short") / 2;
    assert!(
        fetches <= most,
        "{fetches} fetches for 30 tokens in {:?}",
        begin.elapsed()
    );

    // The issuer signs by another key: the first token of it brings the key.
    publish(
        &issuer,
        ResponseTemplate::new(200).set_body_json(key_set(&[&new])),
    )
    .await;
    until_status(&rig, &new.sign(&claims()), 200).await;
    assert_eq!(
        status(&rig, &old.sign(&claims())).await,
        401,
        "it has withdrawn the old one"
    );

    for broken in [
        ResponseTemplate::new(500),
        ResponseTemplate::new(200).set_body_string("<html>"),
        ResponseTemplate::new(302).insert_header("location", "/keys"),
    ] {
        publish(&issuer, broken).await;
        let begin = Instant::now();
        while issuer.received_requests().await.expect("recorded").is_empty() {
            assert_eq!(status(&rig, &unknown).await, 401);
            assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(
            status(&rig, &new.sign(&claims())).await,
            200,
            "its keys stay in force"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_too_old_let_nobody_in_but_the_tokens_of_the_file() {
    let key = Signer::new("key", Algorithm::ES256);
    let issuer = MockServer::start().await;
    publish(&issuer, ResponseTemplate::new(500)).await;
    let (mut rig, own) = runner(json!({
        "jwks_url": format!("{}/keys", issuer.uri()),
        "refresh": "1s",
        "refetch_after": "1s",
        "keys_age_max": "2s",
    }))
    .await;
    rig.start().await;
    let refused = ask(&rig, &key.sign(&claims()), "GET", &letters("acme"), "").await;
    refused.is_problem(503, "SR0504");
    publish(
        &issuer,
        ResponseTemplate::new(200).set_body_json(key_set(&[&key])),
    )
    .await;
    until_status(&rig, &key.sign(&claims()), 200).await;
    publish(&issuer, ResponseTemplate::new(500)).await;
    until_status(&rig, &key.sign(&claims()), 503).await;
    assert_eq!(status(&rig, &own).await, 200, "there is a way in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_file_are_read_again_when_it_changes() {
    let (old, new) = (
        Signer::new("old", Algorithm::ES256),
        Signer::new("new", Algorithm::EdDSA),
    );
    let (mut rig, _own) = runner(json!({"jwks_file": "keys.json", "roles_claim": "/realm/roles"})).await;
    rig.add_file("keys.json", key_set(&[&old]).to_string().as_bytes());
    rig.start().await;
    let claims = with(&json!({"realm": {"roles": ["operator@acme"]}, "saga_runner_roles": []}));
    assert_eq!(status(&rig, &old.sign(&claims)).await, 200);
    assert_eq!(status(&rig, &new.sign(&claims)).await, 401);
    rig.add_file("keys.json", key_set(&[&new]).to_string().as_bytes());
    until_status(&rig, &new.sign(&claims), 200).await;
    assert_eq!(status(&rig, &old.sign(&claims)).await, 401);
}
