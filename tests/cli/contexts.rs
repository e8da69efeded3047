//! Contexts of the `nats` command, in a folder as it keeps them.

use std::os::unix::fs::PermissionsExt as _;

use nkeys::KeyPair;

use super::*;
use crate::broker::secure::{Authority, OfJwts, guarded, secret};

/// What `streams apply` says with the context, which creates streams on the server that it leads to.
fn apply(home: &Home, context: &Value, variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let folder = home.path("settings/nats/context");
    std::fs::create_dir_all(&folder).expect("created");
    secret(&folder, "shop.json", &context.to_string());
    let mut child = binary()
        .args([
            "streams",
            "apply",
            "--config",
            "manifest.yaml",
            "--nats-context",
            "shop",
        ])
        .current_dir(home.dir.path())
        .env("XDG_CONFIG_HOME", home.path("settings"))
        .envs(variables.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // One that is kept out tries for ever.
    let begin = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if begin.elapsed() > Duration::from_secs(20) {
            child.kill().expect("killed");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().expect("its output");
    (output.status.code(), text(&output.stderr))
}

fn is_let_in(home: &Home, context: &Value) {
    let (code, told) = apply(home, context, &[]);
    assert_eq!(code, Some(0), "{context}: {told}");
}

#[test]
fn passwords_tokens_nkeys_and_credentials_of_a_context_open_the_door() {
    let home = Home::new();
    let user = KeyPair::new_user();
    let server = guarded(format!(
        "authorization {{ users: [{{ user: u, password: right }}, {{ nkey: {} }}] }}",
        user.public_key()
    ));
    let url = server.url();
    is_let_in(&home, &json!({"url": url, "user": "u", "password": "right"}));
    is_let_in(&home, &json!({"url": url.replace("nats://", "nats://u:right@")}));
    let seed = secret(home.dir.path(), "user.nk", &user.seed().expect("a seed"));
    is_let_in(&home, &json!({"url": url, "nkey": seed}));
    let server = guarded("authorization { token: \"t0ken\" }".to_owned());
    is_let_in(&home, &json!({"url": server.url(), "token": "t0ken"}));
    let jwts = OfJwts::start();
    let credentials = secret(home.dir.path(), "user.creds", &jwts.credentials(&user, &user));
    is_let_in(&home, &json!({"url": jwts.server.url(), "creds": credentials}));
}

#[test]
fn certificates_of_a_context_are_used_also_with_tls_before_the_greeting() {
    let home = Home::new();
    let ours = Authority::new(home.dir.path(), "ours");
    let (certificate, key) = ours.certify("server", "127.0.0.1");
    let server = guarded(format!(
        "tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {:?}, verify: true, handshake_first: auto }}",
        ours.path()
    ));
    let (certificate, key) = ours.certify("client", "runner");
    let mut context = json!({"url": server.url(), "ca": ours.path(), "cert": certificate, "key": key});
    is_let_in(&home, &context);
    context["tls_first"] = json!(true);
    is_let_in(&home, &context);
}

#[test]
fn a_context_that_leads_nowhere_or_says_what_is_not_done_is_refused_by_name() {
    let home = Home::new();
    let (code, told) = apply(
        &home,
        &json!({"url": "nats://127.0.0.1:1", "nsc": "nsc://a/b"}),
        &[],
    );
    assert!(
        code == Some(78) && told.contains("it has nsc") && told.contains("SR0302"),
        "{told}"
    );
    let password = [("SAGA_RUNNER_BROKER_NATS_TOKEN", "hunter2")];
    let (code, told) = apply(
        &home,
        &json!({"url": "nats://127.0.0.1:1", "creds": "/c"}),
        &password,
    );
    assert!(code == Some(78) && told.contains("keep one"), "{told}");
    let absent = binary()
        .args([
            "streams",
            "check",
            "--config",
            "manifest.yaml",
            "--nats-context",
            "nobody",
        ])
        .current_dir(home.dir.path())
        .env("XDG_CONFIG_HOME", home.path("settings"))
        .output()
        .expect("the binary starts");
    let told = text(&absent.stderr);
    assert!(
        absent.status.code() == Some(78) && told.contains("nobody.json"),
        "{told}"
    );
    let open = home.path("settings/nats/context/shop.json");
    std::fs::write(&open, json!({"token": "hunter2"}).to_string()).expect("written");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("set");
    let output = binary()
        .args(["streams", "check", "--config", "manifest.yaml"])
        .current_dir(home.dir.path())
        .env("HOME", home.dir.path())
        .env("XDG_CONFIG_HOME", home.path("settings"))
        .env("SAGA_RUNNER_NATS_CONTEXT", "shop")
        .output()
        .expect("the binary starts");
    let told = text(&output.stderr);
    assert!(
        output.status.code() == Some(78) && told.contains("mode 644"),
        "{told}"
    );
    assert!(!told.contains("hunter2"), "{told}");
}
