//! Who may ask what: tokens, roles, listeners, and what the audit says.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::caller::{Answer, get, instance, letters};
use crate::support::certificates::Authority;
use crate::support::rig::Rig;

/// Token and line of a principal, as the command prints them.
pub fn drawn(name: &str, roles: &str) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args(["token", "new", name, "--roles", roles])
        .output()
        .expect("the binary starts");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let (token, line) = text.trim_end().split_once('\n').expect("two lines");
    (token.to_owned(), line.to_owned())
}

pub async fn ask(rig: &Rig, token: &str, method: &str, path: &str, body: &str) -> Answer {
    let method = method.parse().expect("a method");
    let mut request = rig.client.request(method, rig.url(path));
    if !token.is_empty() {
        request = request.bearer_auth(token);
    }
    if !body.is_empty() {
        request = request
            .header("content-type", "application/json")
            .body(body.to_owned());
    }
    Answer::of(request).await
}

const WAITING: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: waiting
start: Waiting.Opened
key: {"Waiting.*": event.data.id}
state: {init: {by: ""}}
steps:
  wait: {wait: {signal: go, timeout: 1h}}
"#;

struct Tokens {
    admin: String,
    operator: String,
    viewer: String,
    all: Vec<String>,
}

async fn guarded(extra: Value) -> (Rig, Tokens) {
    let mut http = json!({"authentication": "tokens", "tokens_file": "tokens"});
    for (key, value) in extra.as_object().expect("an object") {
        http[key] = value.clone();
    }
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({"http": http})).await;
    rig.add_saga("waiting", WAITING);
    let (admin, operator, viewer) = (
        drawn("root", "admin@*"),
        drawn("ann", "operator@acme"),
        drawn("vic", "viewer@acme"),
    );
    let all = vec![admin.1, operator.1, viewer.1];
    rig.add_file("tokens", all.join("\n").as_bytes());
    rig.start().await;
    let tokens = Tokens {
        admin: admin.0,
        operator: operator.0,
        viewer: viewer.0,
        all,
    };
    (rig, tokens)
}

const EVENTS: &str = "/v1/tenants/acme/events";

fn opened() -> String {
    crate::api::caller::event("acme", "e-1", "Waiting.Opened", &json!({"id": "w-1"}))
}

/// The path of an instance that waits for a signal.
async fn waiting(rig: &Rig, operator: &str) -> String {
    assert_eq!(ask(rig, operator, "POST", EVENTS, &opened()).await.status, 202);
    let shown = instance("acme", "waiting", "w-1");
    let begin = std::time::Instant::now();
    while ask(rig, operator, "GET", &shown, "").await.status != 200 {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shown
}

#[allow(clippy::too_many_lines, reason = "one table of requests and answers")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_holds_for_its_tenant_and_no_answer_tells_of_others() {
    let (rig, tokens) = guarded(json!({})).await;
    let (admin, operator, viewer) = (&tokens.admin, &tokens.operator, &tokens.viewer);
    for path in ["/live", "/ready", "/errors/SR0512"] {
        assert_eq!(get(&rig, path).await.status, 200, "{path} is open");
    }
    for endpoint in saga_runner::api::endpoints::all(saga_runner::kernel::subject::Tenancy::Multi) {
        if endpoint.access == saga_runner::api::endpoints::Access::Open {
            continue;
        }
        let path = endpoint
            .path
            .replace("{tenant}", "acme")
            .replace("{saga}", "waiting");
        let path = path.replace(['{', '}'], "");
        for token in ["", "x", "sagarunner_00"] {
            let refused = ask(&rig, token, endpoint.method.as_str(), &path, "").await;
            refused.is_problem(401, "SR0512");
        }
    }
    ask(&rig, viewer, "POST", EVENTS, &opened())
        .await
        .is_problem(403, "SR0513");
    let shown = waiting(&rig, operator).await;
    // A viewer decides nothing; nobody sees what is another tenant's, whether it is there or not.
    for verb in ["cancel", "retry", "skip", "resolve", "signals/go"] {
        let path = format!("{shown}/{verb}");
        ask(&rig, viewer, "POST", &path, "{}")
            .await
            .is_problem(403, "SR0513");
    }
    let untraced = |answer: &Answer| {
        let mut told = answer.is_problem(404, "SR0502");
        told["trace_id"] = Value::Null;
        told
    };
    let absent = untraced(&ask(&rig, admin, "GET", &letters("initech"), "").await);
    for path in [
        letters("globex"),
        letters("initech"),
        instance("globex", "waiting", "w-1"),
    ] {
        for token in [operator, viewer] {
            assert_eq!(
                untraced(&ask(&rig, token, "GET", &path, "").await),
                absent,
                "{path}"
            );
        }
    }
    for path in ["/info", "/metrics", "/admin/shards", "/v1/definitions"] {
        ask(&rig, operator, "GET", path, "")
            .await
            .is_problem(403, "SR0513");
        assert_eq!(ask(&rig, admin, "GET", path, "").await.status, 200, "{path}");
    }
    ask(&rig, operator, "POST", "/admin/drain", "")
        .await
        .is_problem(403, "SR0513");
    assert_eq!(
        ask(&rig, admin, "GET", "/ready", "").await.status,
        200,
        "it does not drain"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_and_the_history_name_the_principal_and_no_token() {
    let (rig, tokens) = guarded(json!({})).await;
    let (admin, operator, viewer) = (&tokens.admin, &tokens.operator, &tokens.viewer);
    let shown = waiting(&rig, operator).await;
    let cancel = format!("{shown}/cancel");
    ask(&rig, viewer, "POST", &cancel, "{}")
        .await
        .is_problem(403, "SR0513");
    ask(&rig, operator, "POST", "/admin/drain", "")
        .await
        .is_problem(403, "SR0513");
    // The principal's name is stored, whatever the body says.
    let signal = format!("{shown}/signals/go");
    let sent = ask(&rig, operator, "POST", &signal, "{\"by\": \"mallory\"}").await;
    assert_eq!(sent.status, 202, "{sent:?}");
    let log = std::fs::read_to_string(rig.log()).expect("a log");
    let audited: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|line: &Value| line["target"] == "audit" && line["endpoint"].is_string())
        .collect();
    let of = |principal: &str, status: u16, what: &str| {
        audited.iter().any(|line| {
            line["principal"] == principal
                && line["status"] == status
                && line["endpoint"]
                    .as_str()
                    .is_some_and(|endpoint| endpoint.ends_with(what))
                && line["peer"]
                    .as_str()
                    .is_some_and(|peer| peer.starts_with("127.0.0.1:"))
                && line["trace_id"].as_str().is_some_and(|trace| trace.len() == 32)
        })
    };
    assert!(of("ann", 202, "/signals/{name}"), "{audited:#?}");
    assert!(of("vic", 403, "/cancel"), "{audited:#?}");
    assert!(of("ann", 403, "/admin/drain"), "{audited:#?}");
    for secret in [admin, operator, viewer] {
        assert!(!log.contains(secret.as_str()), "a token is in the log");
    }
    let inputs = format!("{shown}/inputs");
    let begin = std::time::Instant::now();
    loop {
        let inputs = ask(&rig, operator, "GET", &inputs, "").await.text;
        assert!(!inputs.contains("mallory"), "{inputs}");
        if inputs.contains("\"ann\"") {
            break;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "{inputs}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_revoked_without_a_restart() {
    let (rig, tokens) = guarded(json!({})).await;
    let path = letters("acme");
    assert_eq!(ask(&rig, &tokens.viewer, "GET", &path, "").await.status, 200);
    rig.add_file("tokens", tokens.all[..2].join("\n").as_bytes());
    let begin = std::time::Instant::now();
    while ask(&rig, &tokens.viewer, "GET", &path, "").await.status != 401 {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is still valid");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(ask(&rig, &tokens.operator, "GET", &path, "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_have_a_listener_of_their_own() {
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    let own = format!("127.0.0.1:{port}");
    let mut rig = Rig::new(
        None,
        "30m",
        Duration::ZERO,
        json!({"http": {"admin_listen": own}}),
    )
    .await;
    rig.start().await;
    let there = |path: &str| Answer::of(rig.client.get(format!("http://{own}{path}")));
    for path in ["/info", "/metrics", "/health", "/admin/shards"] {
        let told = get(&rig, path).await.is_problem(404, "SR0525");
        assert_eq!(
            told["admin_port"], port,
            "clients of this machine are told where: {told}"
        );
        assert_eq!(there(path).await.status, 200, "{path}");
    }
    let path = letters("acme");
    assert_eq!(get(&rig, &path).await.status, 200);
    there(&path).await.is_problem(404, "SR0525");
    for path in ["/live", "/ready"] {
        assert_eq!(
            (get(&rig, path).await.status, there(path).await.status),
            (200, 200)
        );
    }
}

#[test]
fn a_runner_with_wrong_tokens_or_an_open_address_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = folder.path().join("manifest.yaml");
    for kind in ["sagas", "effects"] {
        std::fs::create_dir(folder.path().join(kind)).expect("created");
    }
    std::fs::write(folder.path().join("sagas/waiting.yaml"), WAITING).expect("written");
    let refusal = |http: &str| {
        let text = format!(
            "apiVersion: saga-runner/v1\nkind: Manifest\ncluster: x\ndata_dir: data\nsagas: sagas\neffects: effects\nhttp: {http}\n"
        );
        std::fs::write(&manifest, text).expect("written");
        let output = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
            .args(["run", "--config"])
            .arg(&manifest)
            .output()
            .expect("the binary starts");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{told}");
        told
    };
    let write = |name: &str, text: &str, mode: u32| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its permissions");
    };
    write("tokens", "ann viewer@acme dns:ann.internal\n", 0o600);
    assert!(refusal("{admin_listen: \"0.0.0.0:0\"}").contains("SR0412"));
    assert!(
        refusal("{listen: \"0.0.0.0:0\", authentication: tokens, tokens_file: tokens}")
            .contains("unencrypted")
    );
    assert!(refusal("{authentication: tokens}").contains("belong together"));
    let by_tokens = "{listen: \"127.0.0.1:0\", authentication: tokens, tokens_file: tokens}";
    write("tokens", "ann viewer@acme dns:ann.internal\n", 0o644);
    let told = refusal(by_tokens);
    assert!(told.contains("SR0416") && told.contains("mode 644"), "{told}");
    write("tokens", "ann viewer@acme secret\n", 0o600);
    assert!(refusal(by_tokens).contains("SR0413"));
    let by_tls = "{listen: \"127.0.0.1:0\", tls: {certificate_file: cert.pem, key_file: key.pem}}";
    let certified = Authority::new("authority").certify(&["localhost"]);
    write("cert.pem", &certified.certificate, 0o644);
    write("key.pem", &certified.key, 0o644);
    let told = refusal(by_tls);
    assert!(
        told.contains("SR0416") && told.contains("http.tls.key_file"),
        "{told}"
    );
    write(
        "key.pem",
        &Authority::new("other").certify(&["localhost"]).key,
        0o600,
    );
    let told = refusal(by_tls);
    assert!(told.contains("SR0415") && told.contains("KeyMismatch"), "{told}");
    write("cert.pem", "no certificate", 0o644);
    let told = refusal(by_tls);
    assert!(
        told.contains("SR0415") && told.contains("no certificate"),
        "{told}"
    );
}
