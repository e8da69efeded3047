//! TLS of the API: whose certificate it shows, what it asks of its clients, and clients that do not finish.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use reqwest::Identity;
use serde_json::{Value, json};

use crate::api::auth::{ask, drawn};
use crate::api::caller::{Answer, letters};
use crate::support::certificates::{Authority, Certified};
use crate::support::rig::Rig;

/// A client that trusts the authority alone and keeps no connection.
fn client(trusted: &Authority, identity: Option<Identity>) -> reqwest::Client {
    let root = reqwest::Certificate::from_pem(trusted.pem().as_bytes()).expect("a certificate");
    let builder = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([root])
        .pool_max_idle_per_host(0);
    let builder = match identity {
        Some(identity) => builder.identity(identity),
        None => builder,
    };
    builder.build().expect("a client")
}

/// For the address by which tests call a runner.
fn certificate(authority: &Authority) -> Certified {
    authority.certify(&["localhost", "127.0.0.1"])
}

/// A runner with a certificate of the authority; `http` lies over its settings.
async fn encrypted(authority: &Authority, http: Value, tls: Value) -> Rig {
    let mut settings = json!({"tls": {"certificate_file": "tls/cert.pem", "key_file": "tls/key.pem"}});
    for (of, more) in [(None, http), (Some("tls"), tls)] {
        for (key, value) in more.as_object().expect("an object") {
            match of {
                None => settings[key] = value.clone(),
                Some(of) => settings[of][key] = value.clone(),
            }
        }
    }
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({"http": settings})).await;
    rig.client = client(authority, None);
    place(&rig, &certificate(authority));
    rig
}

fn place(rig: &Rig, certified: &Certified) {
    rig.add_file("tls/cert.pem", certified.certificate.as_bytes());
    rig.add_file("tls/key.pem", certified.key.as_bytes());
}

/// Waits until a request of the client is answered, or is not.
async fn until_answered(rig: &Rig, client: &reqwest::Client, wanted: bool) {
    let begin = Instant::now();
    while client.get(rig.url("/live")).send().await.is_ok() != wanted {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until_logged(rig: &Rig, text: &str) {
    let begin = Instant::now();
    while !std::fs::read_to_string(rig.log()).expect("a log").contains(text) {
        // The files are looked at for a new connection.
        let _answer = rig.client.get(rig.url("/live")).send().await;
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_certificate_is_served_to_new_connections_and_a_broken_one_is_not() {
    let (authority, next) = (Authority::new("authority"), Authority::new("next"));
    let mut rig = encrypted(&authority, json!({}), json!({})).await;
    rig.start().await;
    let mut plain = TcpStream::connect(rig.address()).expect("connected");
    plain
        .write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .expect("sent");
    let mut told = Vec::new();
    let _ended = plain.read_to_end(&mut told);
    assert!(
        !told.starts_with(b"HTTP/"),
        "what is not encrypted is not answered"
    );

    rig.add_file("tls/cert.pem", b"no certificate");
    until_logged(&rig, "what was read before stays in force").await;
    until_answered(&rig, &client(&authority, None), true).await;

    // First the certificate, then the key: in between they do not fit, which changes nothing.
    let renewed = certificate(&next);
    rig.add_file("tls/cert.pem", renewed.certificate.as_bytes());
    until_logged(&rig, "KeyMismatch").await;
    until_answered(&rig, &client(&authority, None), true).await;
    rig.add_file("tls/key.pem", renewed.key.as_bytes());
    until_answered(&rig, &client(&next, None), true).await;
    until_answered(&rig, &client(&authority, None), false).await;
    assert_eq!(rig.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_of_a_certificate_has_the_roles_that_the_file_gives_to_its_name() {
    let (authority, stranger) = (Authority::new("authority"), Authority::new("stranger"));
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    let http = json!({
        "authentication": "tokens",
        "tokens_file": "tokens",
        "admin_listen": format!("127.0.0.1:{port}"),
    });
    let tls = json!({"client_ca_file": "tls/ca.pem", "client_certificates": "optional"});
    let mut rig = encrypted(&authority, http, tls).await;
    let (token, line) = drawn("ann", "viewer@acme");
    let names = "stock operator@acme dns:stock.internal\nops admin@* uri:spiffe://example.com/ops\n";
    rig.add_file("tokens", format!("{line}\n{names}").as_bytes());
    rig.add_file("tls/ca.pem", authority.pem().as_bytes());
    rig.start().await;

    let (stock, ops) = (
        authority.certify(&["other.internal", "stock.internal"]),
        authority.certify(&["spiffe://example.com/ops"]),
    );
    let with = |identity: &Certified| client(&authority, Some(identity.identity()));
    let (of_acme, of_globex) = (letters("acme"), letters("globex"));
    let status =
        async |client: &reqwest::Client, path: &str| Answer::of(client.get(rig.url(path))).await.status;
    assert_eq!(ask(&rig, "", "GET", "/live", "").await.status, 200);
    ask(&rig, "", "GET", &of_acme, "").await.is_problem(401, "SR0512");
    assert_eq!(ask(&rig, &token, "GET", &of_acme, "").await.status, 200);
    assert_eq!(status(&with(&stock), &of_acme).await, 200);
    assert_eq!(status(&with(&stock), &of_globex).await, 404);
    for unknown in [
        authority.certify(&["someone.internal"]),
        authority.certify(&["*.internal"]),
        authority.certify(&[]),
    ] {
        assert_eq!(status(&with(&unknown), &of_acme).await, 401);
    }
    let forged = stranger.certify(&["stock.internal"]);
    let refused = with(&forged).get(rig.url(&of_acme)).send().await;
    assert!(refused.is_err(), "another authority has signed it");
    let with_token = with(&stock).get(rig.url(&of_acme)).bearer_auth("sagarunner_00");
    Answer::of(with_token).await.is_problem(401, "SR0512");

    // The listener of operators asks the same.
    let there = format!("https://127.0.0.1:{port}/info");
    assert_eq!(Answer::of(rig.client.get(&there)).await.status, 401);
    assert_eq!(Answer::of(with(&stock).get(&there)).await.status, 403);
    assert_eq!(Answer::of(with(&ops).get(&there)).await.status, 200);

    let cancel = "/v1/tenants/acme/sagas/order/instances/none/cancel";
    let _answer = Answer::of(with(&stock).post(rig.url(cancel))).await;
    let log = std::fs::read_to_string(rig.log()).expect("a log");
    assert!(log.contains("\"principal\":\"stock\""), "the audit names it");

    // The command line proves itself by the certificate of a profile.
    for (name, text) in [
        ("cert.pem", &stock.certificate),
        ("key.pem", &stock.key),
        ("ca.pem", &authority.pem()),
    ] {
        rig.add_file(&format!("home/{name}"), text.as_bytes());
    }
    let profiles = format!(
        "default: acme\nprofiles:\n  acme:\n    url: {}\n    tenant: acme\n    tls: {{ca_file: ca.pem, cert_file: cert.pem, key_file: key.pem}}\n",
        rig.url("")
    );
    rig.add_file("home/config.yaml", profiles.as_bytes());
    let listed = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args(["dead-letter", "list"])
        .env("SAGA_RUNNER_HOME", rig.folder().join("home"))
        .output()
        .expect("the binary starts");
    assert!(listed.status.success(), "{listed:?}");

    // Whoever is taken out of the file is out, also over a connection that is there.
    rig.add_file("tokens", line.as_bytes());
    let begin = Instant::now();
    while status(&with(&stock), &of_acme).await != 401 {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is still valid");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_certificates_are_required_there_is_no_connection_without_one() {
    let authority = Authority::new("authority");
    let http = json!({"authentication": "tokens", "tokens_file": "tokens"});
    let mut rig = encrypted(&authority, http, json!({"client_ca_file": "tls/ca.pem"})).await;
    let (token, line) = drawn("ann", "viewer@acme");
    rig.add_file("tokens", line.as_bytes());
    rig.add_file("tls/ca.pem", authority.pem().as_bytes());
    let own = authority.certify(&["ann.internal"]);
    rig.client = client(&authority, Some(own.identity()));
    rig.start().await;
    let without = client(&authority, None);
    for path in ["/live", "/ready"] {
        let refused = without.get(rig.url(path)).bearer_auth(&token).send().await;
        assert!(refused.is_err(), "{path}");
    }
    // A certificate that no line names opens the connection; the token says who asks.
    ask(&rig, "", "GET", &letters("acme"), "")
        .await
        .is_problem(401, "SR0512");
    assert_eq!(ask(&rig, &token, "GET", &letters("acme"), "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_does_not_end_is_cut_off_and_counts_as_a_connection() {
    let authority = Authority::new("authority");
    let mut rig = encrypted(&authority, json!({"header_timeout": "300ms"}), json!({})).await;
    rig.start().await;
    let mut silent = TcpStream::connect(rig.address()).expect("connected");
    let mut begun = TcpStream::connect(rig.address()).expect("connected");
    // The head of a handshake record whose rest never comes.
    begun.write_all(&[22, 3, 1, 2, 0, 1]).expect("sent");
    for stream in [&mut silent, &mut begun] {
        stream
            .set_read_timeout(Some(Duration::from_mins(1)))
            .expect("a timeout");
        let mut told = Vec::new();
        let ended = stream.read_to_end(&mut told);
        assert!(ended.is_ok() && told.is_empty(), "{ended:?} {told:?}");
    }
    assert_eq!(rig.terminate().await, Some(0));

    let mut rig = encrypted(
        &authority,
        json!({"connections_max": 2, "header_timeout": "1m"}),
        json!({}),
    )
    .await;
    rig.start().await;
    let _held: Vec<TcpStream> = (0..2)
        .map(|_| TcpStream::connect(rig.address()).expect("connected"))
        .collect();
    let started = Instant::now();
    while ask(&rig, "", "GET", "/info", "").await.status != 503 {
        assert!(started.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(
        ask(&rig, "", "GET", "/live", "").await.status,
        200,
        "probes are answered"
    );
}
