//! Files, folders and addresses that a manifest names and that cannot be used: `config check` tells each at its place, and `run`
//! refuses the same.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::support::certificates::Authority;

/// A manifest with `changes` in place of the keys that each has.
fn manifest(changes: &str) -> String {
    let mut text = "apiVersion: saga-runner/v1\nkind: Manifest\ncluster: shop\nshards: 1\n".to_owned();
    for (key, value) in [
        ("data_dir", "data"),
        ("sagas", "sagas"),
        ("effects", "effects"),
        ("http", "{listen: \"127.0.0.1:0\"}"),
    ] {
        if !changes.lines().any(|line| line.starts_with(&format!("{key}:"))) {
            text.extend([key, ": ", value, "\n"]);
        }
    }
    text + changes
}

/// Writes `m.yaml` and checks it: the exit code and the findings.
fn check(home: &Home, text_of_file: &str, flags: &[&str]) -> (Option<i32>, Vec<Value>) {
    std::fs::write(home.path("m.yaml"), text_of_file).expect("written");
    let output = binary()
        .args(["config", "check", "-o", "json"])
        .args(flags)
        .arg(home.path("m.yaml"))
        .output()
        .expect("the binary starts");
    let findings: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    let findings = findings.as_array().expect("a list").clone();
    (output.status.code(), findings)
}

/// The line and the column of the last place where `part` stands.
fn place(text: &str, part: &str) -> (u64, u64) {
    let at = text
        .rfind(part)
        .unwrap_or_else(|| panic!("{part} is not in {text}"));
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = at - before.rfind('\n').map_or(0, |end| end + 1) + 1;
    (line as u64, column as u64)
}

fn write(home: &Home, name: &str, text: &str, mode: u32) {
    let path = home.path(name);
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
}

/// What the cases name.
fn files(home: &Home) {
    let authority = Authority::new("authority");
    let (ours, other) = (
        authority.certify(&["localhost"]),
        authority.certify(&["localhost"]),
    );
    write(home, "ca.pem", &authority.pem(), 0o644);
    write(home, "cert.pem", &ours.certificate, 0o644);
    write(home, "key.pem", &ours.key, 0o600);
    write(home, "open.pem", &ours.key, 0o644);
    write(home, "other.pem", &other.key, 0o600);
    write(home, "empty", "", 0o600);
    write(home, "tokens", "ann viewer@* dns:ann.internal\n", 0o600);
    write(home, "open", "ann viewer@* dns:ann.internal\n", 0o644);
    write(home, "short", "guess me\n", 0o600);
    write(home, "headers", "Bearer s3cr3t\n", 0o600);
}

/// One mistake each: what is written, the code, what the place begins with, and a part of the message.
const CASES: [(&str, &str, &str, &str); 39] = [
    ("sagas: nowhere\n", "SR0401", "nowhere", "nowhere: No such file"),
    ("effects: nowhere\n", "SR0401", "nowhere", "nowhere: No such file"),
    ("data_dir: empty\n", "SR0421", "empty", "empty is not a folder"),
    (
        "data_dir: empty/data\n",
        "SR0421",
        "empty/data",
        "`run` cannot create it: Not a directory",
    ),
    (
        "upstreams: {bank: \"bank:8080\"}\n",
        "SR0419",
        "\"bank:8080",
        "upstreams.bank has a scheme",
    ),
    (
        "upstreams: {bank: bank}\n",
        "SR0419",
        "bank}",
        "upstreams.bank is no URL",
    ),
    (
        "upstreams: {bank: \"http://\"}\n",
        "SR0419",
        "\"http",
        "no URL with a host",
    ),
    (
        "upstreams: {bank: \"postgres://bank\"}\n",
        "SR0419",
        "\"postgres",
        "the name of the database",
    ),
    (
        "http: {listen: nowhere}\n",
        "SR0402",
        "nowhere",
        "invalid socket address",
    ),
    (
        "http: {listen: \"127.0.0.1:0\", admin_listen: here}\n",
        "SR0402",
        "here",
        "invalid socket address",
    ),
    (
        "log: {level: \"saga_runner=loud\"}\n",
        "SR0403",
        "\"saga_runner",
        "log.level: ",
    ),
    (
        "telemetry: {otlp: {endpoint: \"http://otlp:port\"}}\n",
        "SR0403",
        "\"http",
        "telemetry.otlp.endpoint must be",
    ),
    (
        "telemetry: {otlp: {endpoint: \"http://otlp\", headers_file: absent}}\n",
        "SR0420",
        "absent",
        "telemetry.otlp.headers_file",
    ),
    (
        "telemetry: {otlp: {endpoint: \"http://otlp\", headers_file: headers}}\n",
        "SR0420",
        "headers}",
        "line 1 is not `name: value`",
    ),
    (
        "telemetry: {otlp: {endpoint: \"http://otlp\", headers_file: open}}\n",
        "SR0416",
        "open}",
        "telemetry.otlp.headers_file",
    ),
    (
        "http: {listen: \"127.0.0.1:0\", authentication: tokens, tokens_file: absent}\n",
        "SR0413",
        "absent",
        "cannot be read: No such file",
    ),
    (
        "http: {listen: \"127.0.0.1:0\", authentication: tokens, tokens_file: empty}\n",
        "SR0413",
        "empty",
        "expected 1 to",
    ),
    (
        "http: {listen: \"127.0.0.1:0\", authentication: tokens, tokens_file: open}\n",
        "SR0416",
        "open}",
        "http.tokens_file",
    ),
    (
        "http: {listen: \"127.0.0.1:0\", authentication: jwt, jwt: {issuer: a, audience: b, jwks_file: absent}}\n",
        "SR0417",
        "absent",
        "http.jwt.jwks_file",
    ),
    (
        "http: {listen: \"127.0.0.1:0\", tls: {certificate_file: absent, key_file: key.pem}}\n",
        "SR0415",
        "absent",
        "http.tls.certificate_file",
    ),
    (
        "http: {listen: \"127.0.0.1:0\", tls: {certificate_file: cert.pem, key_file: empty}}\n",
        "SR0415",
        "empty",
        "there is no private key in PEM",
    ),
    (
        "http: {listen: \"127.0.0.1:0\", tls: {certificate_file: cert.pem, key_file: other.pem}}\n",
        "SR0415",
        "cert.pem",
        "KeyMismatch",
    ),
    (
        "http: {listen: \"127.0.0.1:0\", tls: {certificate_file: cert.pem, key_file: open.pem}}\n",
        "SR0416",
        "open.pem",
        "http.tls.key_file",
    ),
    (
        "http: {listen: \"127.0.0.1:0\", authentication: tokens, tokens_file: tokens, tls: {certificate_file: cert.pem, key_file: key.pem, client_ca_file: empty}}\n",
        "SR0415",
        "empty",
        "the authorities hold no certificate",
    ),
    (
        "secrets: {pay: {file: absent}}\n",
        "SR0404",
        "{file: absent",
        "secret pay: file ",
    ),
    (
        "secrets: {pay: {file: empty}}\n",
        "SR0404",
        "{file: empty",
        "secret pay: is empty",
    ),
    (
        "secrets: {pay: {file: open}}\n",
        "SR0416",
        "{file: open",
        "mode 644",
    ),
    (
        "callbacks: {key: {file: short}}\n",
        "SR0404",
        "{file: short",
        "fewer than 16 characters",
    ),
    (
        "callbacks: {key: {file: open}}\n",
        "SR0416",
        "{file: open",
        "callbacks.key",
    ),
    (
        "upstreams: {bank: \"https://bank\"}\nupstream_tls: {bank: {ca_file: absent}}\n",
        "SR0418",
        "absent",
        "upstream_tls.bank.ca_file",
    ),
    (
        "upstreams: {bank: \"https://bank\"}\nupstream_tls: {bank: {cert_file: cert.pem, key_file: other.pem}}\n",
        "SR0418",
        "cert.pem",
        "KeyMismatch",
    ),
    (
        "upstreams: {bank: \"https://bank\"}\nupstream_tls: {bank: {cert_file: cert.pem, key_file: open.pem}}\n",
        "SR0416",
        "open.pem",
        "upstream_tls.bank.key_file",
    ),
    (
        "gateway: {url: \"https://orders\", tls: {ca_file: empty}}\n",
        "SR0418",
        "empty",
        "gateway.tls.ca_file",
    ),
    (
        "broker: {kind: nats, nats: {urls: [\"nats://broker:port\"]}}\n",
        "SR0302",
        "[\"nats",
        "invalid port number",
    ),
    (
        "broker: {kind: nats, nats: {token_file: absent}}\n",
        "SR0302",
        "absent",
        "token_file: ",
    ),
    (
        "broker: {kind: nats, nats: {user: u, password_file: open}}\n",
        "SR0302",
        "open}",
        "mode 644",
    ),
    (
        "broker: {kind: nats, nats: {tls_ca_file: empty}}\n",
        "SR0302",
        "empty",
        "the authorities hold no certificate",
    ),
    (
        "broker: {kind: nats, nats: {tls_cert_file: cert.pem, tls_key_file: other.pem}}\n",
        "SR0302",
        "cert.pem",
        "KeyMismatch",
    ),
    (
        "broker: {kind: nats, nats: {context: absent}}\n",
        "SR0302",
        "absent",
        "context: ",
    ),
];

#[test]
fn each_file_folder_and_address_that_cannot_be_used_is_told_at_its_place_and_a_run_refuses_the_same() {
    let home = Home::new();
    files(&home);
    for (changes, code, at, part) in CASES {
        let text = manifest(changes);
        let (exit, findings) = check(&home, &text, &[]);
        let [finding] = &findings[..] else {
            panic!("{changes}: {findings:?}");
        };
        assert_eq!(
            (exit, &finding["code"]),
            (Some(1), &json!(code)),
            "{changes}: {finding}"
        );
        let message = finding["message"].as_str().expect("a message");
        assert!(message.contains(part), "{changes}: {message}");
        assert!(
            !message.contains(code),
            "{changes}: the code is told once: {message}"
        );
        let (line, column) = place(&text, at);
        let path = home.path("m.yaml");
        assert_eq!(
            (&finding["file"], &finding["line"], &finding["column"]),
            (&json!(path), &json!(line), &json!(column)),
            "{changes}: {finding}"
        );
        let (exit, told) = home.refusal(&path);
        assert_eq!(exit, Some(78), "{changes}: {told}");
        assert!(
            told.contains(message) && told.contains(code),
            "{changes}: {message}\n{told}"
        );
        assert!(!told.contains("s3cret") && !told.contains("s3cr3t"), "{told}");
    }
}

#[test]
fn all_that_cannot_be_used_is_told_at_once_with_its_excerpts() {
    let home = Home::new();
    let text_of_file = manifest(
        "sagas: nowhere\ndata_dir: m.yaml\nupstreams:\n  bank: bank\nsecrets:\n  pay: {file: absent}\nhttp:\n  listen: \"0.0.0.0:0\"\n  tls:\n    certificate_file: none.pem\n    key_file: none.pem\nlog: {level: \"a=loud\"}\n",
    );
    let (exit, findings) = check(&home, &text_of_file, &[]);
    let codes: Vec<&str> = findings
        .iter()
        .filter_map(|finding| finding["code"].as_str())
        .collect();
    // In the order of their places.
    let expected = [
        "SR0401", "SR0421", "SR0419", "SR0404", "SR0412", "SR0415", "SR0415", "SR0403",
    ];
    assert_eq!((exit, &codes[..]), (Some(1), &expected[..]), "{findings:?}");
    let output = binary()
        .args(["config", "check", "m.yaml"])
        .current_dir(home.dir.path())
        .output()
        .expect("the binary starts");
    let shown = text(&output.stdout);
    for part in [
        "error[SR0415]: http.tls.certificate_file ",
        "certificate_file: none.pem",
        "error[SR0419]: upstreams.bank is no URL",
        "  bank: bank",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(
        text(&output.stderr).contains("8 error(s) in m.yaml"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_manifest_of_another_machine_is_checked_without_its_files() {
    let home = Home::new();
    let text = manifest(
        "data_dir: /etc/hostname/data\nsagas: /nowhere\nsecrets: {pay: {file: /nowhere}}\nbroker: {kind: nats, nats: {token_file: /nowhere, tls_ca_file: /nowhere}}\nupstreams: {bank: \"https://bank\"}\nupstream_tls: {bank: {ca_file: /nowhere}}\n",
    );
    let (exit, findings) = check(&home, &text, &["--no-files"]);
    assert_eq!((exit, findings.len()), (Some(0), 0), "{findings:?}");
    let (_, findings) = check(&home, &text, &[]);
    assert!(findings.len() >= 5, "{findings:?}");
    for (wrong, code) in [
        ("upstreams: {bank: bank}\n", "SR0419"),
        (
            "broker: {kind: nats, nats: {urls: [\"nats://broker:port\"]}}\n",
            "SR0302",
        ),
        ("broker: {kind: nats, nats: {user: u}}\n", "SR0302"),
        ("broker: {kind: nats, nats: {tls_key_file: /nowhere}}\n", "SR0302"),
        ("broker: {kind: nats, nats: {heartbeat: 0ms}}\n", "SR0302"),
    ] {
        let (exit, findings) = check(&home, &manifest(wrong), &["--no-files"]);
        assert_eq!((exit, findings.len()), (Some(1), 1), "{wrong}: {findings:?}");
        assert_eq!(findings[0]["code"], code, "{wrong}");
    }
}

#[test]
fn a_process_that_runs_effects_alone_needs_no_folder_for_state_and_one_of_sagas_no_certificates_of_upstreams()
{
    let home = Home::new();
    let of_mode = |mode: &str| {
        manifest(&format!(
            "mode: {mode}\nbroker: {{kind: nats}}\ndata_dir: m.yaml\nupstreams: {{bank: \"https://bank\"}}\nupstream_tls: {{bank: {{ca_file: absent}}}}\n"
        ))
    };
    for (mode, expected) in [
        ("effect", &["SR0418"][..]),
        ("saga", &["SR0421"]),
        ("combined", &["SR0421", "SR0418"]),
    ] {
        let (_, findings) = check(&home, &of_mode(mode), &[]);
        let codes: Vec<&str> = findings
            .iter()
            .filter_map(|finding| finding["code"].as_str())
            .collect();
        assert_eq!(codes, expected, "{mode}: {findings:?}");
    }
}
