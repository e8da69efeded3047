//! Connections that a server guards: TLS on one or both sides, tokens, passwords, nkeys and credentials files.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair as TlsKey};
use saga_runner::nats::{NatsBroker, Settings, Status};
use saga_runner::ports::broker::{Broker as _, BucketSpec, PutError, StreamSpec};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::broker::suite::{self, within};
use crate::support::nats_server::{NatsServer, Options};

pub fn guarded(config: String) -> NatsServer {
    NatsServer::start_with(&Options {
        config,
        ..Options::default()
    })
}

fn settings(server: &NatsServer, more: &Value) -> Settings {
    let mut all = json!({"urls": [server.url()], "request_timeout": "2s", "heartbeat": "500ms"});
    let more = more.as_object().expect("an object").clone();
    all.as_object_mut().expect("an object").extend(more);
    serde_json::from_value(all).expect("settings")
}

/// Connects and uses the stream API, which an unauthenticated client could not.
async fn is_let_in(server: &NatsServer, more: Value) {
    let broker = NatsBroker::connect(settings(server, &more))
        .await
        .expect("settings");
    within("connect", broker.connected()).await.expect("let in");
    let spec = StreamSpec {
        name: "S".to_owned(),
        subjects: vec!["s.>".to_owned()],
        replicas: 1,
        message_bytes_max: suite::MESSAGE_BYTES_MAX,
        foreign: false,
    };
    broker.ensure_stream(&spec).await.expect("a stream");
}

async fn is_kept_out(server: &NatsServer, more: Value) {
    let broker = NatsBroker::connect(settings(server, &more))
        .await
        .expect("settings");
    let mut status = broker.status();
    let told = within(
        "a refusal",
        status.wait_for(|status| match status {
            Status::Connecting { last_error } => last_error.is_some(),
            Status::Ready { .. } | Status::Unsupported { .. } => true,
        }),
    )
    .await
    .expect("the connection lives");
    assert!(matches!(&*told, Status::Connecting { .. }), "{more}: {told:?}");
}

/// Writes a secret so that nobody else can read it.
pub fn secret(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
    path
}

#[tokio::test]
async fn tokens_passwords_and_nkeys_open_the_door_and_others_do_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = guarded("authorization { token: \"t0ken\" }".to_owned());
    is_let_in(&server, json!({"token": "t0ken"})).await;
    let file = secret(dir.path(), "token", "t0ken\n");
    is_let_in(&server, json!({"token_file": file})).await;
    is_kept_out(&server, json!({"token": "other"})).await;
    is_kept_out(&server, json!({})).await;

    let user = KeyPair::new_user();
    let config = format!(
        "authorization {{ users: [{{ user: u, password: right }}, {{ nkey: {} }}] }}",
        user.public_key()
    );
    let server = guarded(config);
    is_let_in(&server, json!({"user": "u", "password": "right"})).await;
    let seed = user.seed().expect("a seed");
    is_let_in(&server, json!({"nkey_seed": seed})).await;
    let file = secret(dir.path(), "seed", &seed);
    is_let_in(&server, json!({"nkey_seed_file": file})).await;
    let other = KeyPair::new_user().seed().expect("a seed");
    is_kept_out(&server, json!({"nkey_seed": other})).await;
}

/// What docs/operations.md asks for, and nothing else.
#[tokio::test]
async fn the_documented_rights_are_enough_for_the_record_of_a_cluster() {
    let stream = "KV_WORKFLOW_CLUSTER";
    let mut rights = vec!["$KV.WORKFLOW_CLUSTER.>".to_owned()];
    for operation in ["INFO", "CREATE", "UPDATE", "MSG.GET"] {
        rights.push(format!("$JS.API.STREAM.{operation}.{stream}"));
    }
    let config = format!(
        "authorization {{ users: [{{ user: u, password: p, permissions: {{ publish: {rights:?}, subscribe: [\"_INBOX.>\"] }} }}] }}"
    );
    let server = guarded(config);
    let broker = NatsBroker::connect(settings(&server, &json!({"user": "u", "password": "p"})))
        .await
        .expect("settings");
    within("connect", broker.connected()).await.expect("let in");
    let bucket = BucketSpec {
        name: "WORKFLOW_CLUSTER".to_owned(),
        replicas: 1,
    };
    broker.ensure_bucket(&bucket).await.expect("a bucket");
    assert_eq!(broker.check_bucket(&bucket).await, Ok(Vec::new()));
    let value = Bytes::from_static(b"{}");
    let write = broker.put_entry(&bucket.name, "shop.cluster", value.clone(), None);
    within("write", write).await.expect("written");
    let again = broker.put_entry(&bucket.name, "shop.cluster", value, None).await;
    assert_eq!(again, Err(PutError::Conflict));
    let found = broker
        .entry(&bucket.name, "shop.cluster")
        .await
        .expect("readable");
    assert!(found.is_some());
}

/// A token as NATS signs them, valid for ever.
fn token(issuer: &KeyPair, subject: &KeyPair, claims: &Value) -> String {
    let mut body = json!({
        "iat": 1_700_000_000, "iss": issuer.public_key(), "name": "test",
        "sub": subject.public_key(), "nats": claims,
    });
    let id = Sha256::digest(body.to_string());
    body["jti"] = json!(data_encoding::BASE32_NOPAD.encode(&id));
    let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
    let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let signed = format!("{}.{}", part(&header), part(&body));
    let signature = issuer.sign(signed.as_bytes()).expect("signed");
    format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature))
}

/// A server with an account of JWTs, and what makes credentials files for a user of it.
pub struct OfJwts {
    pub server: NatsServer,
    account: KeyPair,
}

impl OfJwts {
    pub fn start() -> Self {
        let (operator, system) = (KeyPair::new_operator(), KeyPair::new_account());
        let account = KeyPair::new_account();
        let limits = json!({"subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1,
            "payload": -1, "wildcards": true, "mem_storage": -1, "disk_storage": -1, "streams": -1,
            "consumer": -1});
        let of_account = json!({"type": "account", "version": 2, "limits": limits});
        let config = format!(
            "operator: {}\nsystem_account: {}\nresolver: MEMORY\n\
             resolver_preload: {{ {}: {}\n {}: {} }}",
            token(&operator, &operator, &json!({"type": "operator", "version": 2})),
            system.public_key(),
            system.public_key(),
            token(
                &operator,
                &system,
                &json!({"type": "account", "version": 2, "limits": {"subs": -1, "conn": -1,
                "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1, "wildcards": true}})
            ),
            account.public_key(),
            token(&operator, &account, &of_account),
        );
        let server = guarded(config);
        Self { server, account }
    }

    /// The text of a credentials file with the JWT of the one user, and the seed of the other.
    pub fn credentials(&self, user: &KeyPair, seed_of: &KeyPair) -> String {
        let of_user = json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}});
        format!(
            "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            token(&self.account, user, &of_user),
            seed_of.seed().expect("a seed"),
        )
    }
}

#[tokio::test]
async fn a_credentials_file_with_a_jwt_opens_the_door() {
    let dir = tempfile::tempdir().expect("a folder");
    let jwts = OfJwts::start();
    let (user, other) = (KeyPair::new_user(), KeyPair::new_user());
    let right = secret(dir.path(), "right.creds", &jwts.credentials(&user, &user));
    is_let_in(&jwts.server, json!({"credentials_file": right})).await;
    let wrong = secret(dir.path(), "wrong.creds", &jwts.credentials(&user, &other));
    is_kept_out(&jwts.server, json!({"credentials_file": wrong})).await;
}

#[tokio::test]
async fn a_token_that_was_renewed_in_its_file_is_used_by_the_next_connection() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = guarded("authorization { token: \"first\" }".to_owned());
    let file = secret(dir.path(), "token", "first\n");
    let broker = NatsBroker::connect(settings(&server, &json!({"token_file": file})))
        .await
        .expect("settings");
    within("connect", broker.connected()).await.expect("let in");
    server.kill();
    let config = server.folder().join("server.conf");
    let text = fs::read_to_string(&config).expect("readable");
    fs::write(&config, text.replace("first", "second")).expect("written");
    secret(dir.path(), "token", "second\n");
    let mut status = broker.status();
    server.launch();
    let lost_first = within(
        "a break",
        status.wait_for(|status| !matches!(status, Status::Ready { .. })),
    )
    .await;
    drop(lost_first.expect("the connection lives"));
    let again = within(
        "another connection",
        status.wait_for(|status| matches!(status, Status::Ready { .. })),
    );
    drop(again.await.expect("the connection lives"));
    assert!(
        broker
            .stream_state("S")
            .await
            .is_err_and(|error| error.to_string().contains('S'))
    );
}

/// An authority, and certificates that it signed.
pub struct Authority {
    issuer: CertifiedIssuer<'static, TlsKey>,
    dir: PathBuf,
}

impl Authority {
    pub fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = TlsKey::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("signed");
        let dir = dir.join(name);
        fs::create_dir(&dir).expect("created");
        fs::write(dir.join("ca.pem"), issuer.pem()).expect("written");
        Self { issuer, dir }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Paths of a certificate and its key.
    pub fn certify(&self, name: &str, host: &str) -> (PathBuf, PathBuf) {
        let key = TlsKey::generate().expect("a key");
        let params = CertificateParams::new(vec![host.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let path = self.dir.join(format!("{name}.pem"));
        fs::write(&path, certificate.pem()).expect("written");
        let key = secret(&self.dir, &format!("{name}.key"), &key.serialize_pem());
        (path, key)
    }
}

#[tokio::test]
async fn certificates_are_checked_on_both_sides() {
    let dir = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = (
        Authority::new(dir.path(), "ours"),
        Authority::new(dir.path(), "theirs"),
    );
    let (certificate, key) = ours.certify("server", "127.0.0.1");
    let server = guarded(format!(
        "tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {:?}, verify: true }}",
        ours.path()
    ));
    let (certificate, key) = ours.certify("client", "runner");
    let right = json!({"tls_ca_file": ours.path(), "tls_cert_file": certificate, "tls_key_file": key,
        "tls_required": true});
    is_let_in(&server, right.clone()).await;

    let mut distrusted = right.clone();
    distrusted["tls_ca_file"] = json!(theirs.path());
    is_kept_out(&server, distrusted).await;
    is_kept_out(&server, json!({"tls_ca_file": ours.path()})).await;
    let (certificate, key) = theirs.certify("client", "runner");
    let mut forged = right.clone();
    forged["tls_cert_file"] = json!(certificate);
    forged["tls_key_file"] = json!(key);
    is_kept_out(&server, forged).await;

    // A server without TLS is not spoken to where TLS is required.
    let open = guarded(String::new());
    is_kept_out(&open, right).await;
}
