//! The real binary from the outside: exit codes, one line for each refusal, and what goes to which stream.

#![allow(clippy::disallowed_methods, reason = "waits for processes in real time")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::nats_server::NatsServer;
use serde_json::{Value, json};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_mins(1);

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    // Nothing of the environment lies over the manifests of these tests.
    command.env_clear().stdin(Stdio::null());
    command
}

fn call(arguments: &[&str]) -> Output {
    binary().args(arguments).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder with a manifest on the embedded broker and a saga without effects.
struct Home {
    dir: TempDir,
    manifest: Value,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for folder in ["sagas", "effects"] {
            std::fs::create_dir(dir.path().join(folder)).expect("created");
        }
        std::fs::write(dir.path().join("sagas/tally.yaml"), TALLY).expect("written");
        let port = saga_runner::app::nats_server::free_port().expect("a free port");
        let manifest = json!({
            "apiVersion": "saga-runner/v1",
            "kind": "Manifest",
            "cluster": "shop",
            "data_dir": "data",
            "shards": 2,
            "sagas": "sagas",
            "effects": "effects",
            "http": {"listen": format!("127.0.0.1:{port}")},
        });
        let home = Self { dir, manifest };
        home.write("manifest.yaml", &home.manifest);
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, manifest: &Value) {
        std::fs::write(self.path(name), manifest.to_string()).expect("written");
    }

    /// The manifest with some keys changed.
    fn with(&self, changes: Value) -> PathBuf {
        let mut manifest = self.manifest.clone();
        let (Some(keys), Value::Object(changes)) = (manifest.as_object_mut(), changes) else {
            panic!("manifests are objects");
        };
        keys.extend(changes);
        self.write("changed.yaml", &manifest);
        self.path("changed.yaml")
    }

    /// The exit code and the one line that says why the runner does not start.
    #[allow(clippy::unused_self, reason = "reads as the others of this folder")]
    fn refusal(&self, manifest: &Path) -> (Option<i32>, String) {
        let mut child = binary()
            .args(["run", "--config"])
            .arg(manifest)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let begin = Instant::now();
        while child.try_wait().expect("a child").is_none() {
            if begin.elapsed() > PATIENCE {
                child.kill().expect("killed");
                panic!("{} was not refused", manifest.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().expect("its output");
        assert_eq!(text(&output.stdout), "", "nothing goes to standard output");
        let errors = text(&output.stderr);
        let (logs, lines): (Vec<&str>, Vec<&str>) = errors.lines().partition(|line| line.starts_with('{'));
        assert_eq!(lines.len(), 1, "one line besides the log: {errors}");
        assert!(
            logs.iter()
                .all(|line| serde_json::from_str::<Value>(line).is_ok())
        );
        (output.status.code(), lines[0].to_owned())
    }

    /// Starts the runner and waits until it takes work.
    fn start(&self) -> Runner {
        let log = std::fs::File::create(self.path("runner.log")).expect("a log");
        let mut child = binary()
            .args(["run", "--config"])
            .arg(self.path("manifest.yaml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        let address = self.manifest["http"]["listen"].as_str().expect("an address");
        let begin = Instant::now();
        while !get(address, "/ready").starts_with("HTTP/1.1 200") {
            let ended = child.try_wait().expect("a child");
            let waits = ended.is_none() && begin.elapsed() < PATIENCE;
            let log = std::fs::read_to_string(self.path("runner.log")).unwrap_or_default();
            assert!(waits, "not ready ({ended:?}): {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Runner(child)
    }
}

/// Ends with the value.
struct Runner(Child);

impl Runner {
    /// SIGTERM, and the exit code.
    fn stop(mut self) -> Option<i32> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("signalled");
        self.0.wait().expect("reaped").code()
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// The answer to a GET, or nothing where nobody listens.
fn get(address: &str, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut answer = String::new();
    if let Ok(mut stream) = std::net::TcpStream::connect(address) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        // What comes back decides; a connection that breaks is no answer.
        let _sent = stream.write_all(request.as_bytes());
        let _read = stream.read_to_string(&mut answer);
    }
    answer
}

const TALLY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: tally
start: Tally.Opened
key: {"Tally.*": event.data.tally}
state: {init: {sum: 0}}
handlers:
  Tally.Added:
    set: {sum: "${state.sum + event.data.amount}"}
machine:
  initial: open
  states:
    open:
      handlers:
        Tally.Closed: {to: closed}
    closed: {final: true}
"#;

#[test]
fn a_wrong_command_line_exits_with_64() {
    for arguments in [
        &["run", "--no-such-flag"][..],
        &["no-such-command"],
        &["run", "--mode", "sideways"],
        &["run", "--listen", "nowhere"],
        &[],
        &["bench", "--publish-batch", "400"],
        &["bench", "--sync-always"],
        &["bench", "--nats-server", "x", "--nats-url", "nats://y"],
        &["instance", "show", "order", "o-1", "--url", "not a url"],
        &["schedule", "list", "--url", "ftp://a"],
    ] {
        let output = call(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn every_command_explains_itself() {
    for command in [
        &[][..],
        &["run"],
        &["dev"],
        &["validate"],
        &["streams"],
        &["streams", "apply"],
        &["streams", "check"],
        &["bench"],
        &["demo"],
        &["demo-upstream"],
    ] {
        let output = call(&[command, &["--help"]].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert!(text(&output.stdout).contains("Usage: saga-runner"), "{command:?}");
    }
    let output = call(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    let version = format!("saga-runner {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(text(&output.stdout), version);
}

#[test]
fn a_runner_that_does_not_listen_is_told_with_the_reason() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port();
    let url = format!("http://127.0.0.1:{port}");
    let output = call(&["instance", "show", "order", "o-1", "--url", &url]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{told}");
    assert!(
        told.contains(&format!("no answer from {url}: ")) && told.contains("refused"),
        "{told}"
    );
}

#[test]
fn a_manifest_that_cannot_be_read_exits_with_66() {
    let home = Home::new();
    let (code, line) = home.refusal(&home.path("absent.yaml"));
    assert_eq!(code, Some(66));
    assert!(line.contains("SR0401") && line.contains("absent.yaml"), "{line}");
}

#[test]
fn a_manifest_that_says_nonsense_exits_with_78_and_one_line() {
    let home = Home::new();
    for (changes, code, named) in [
        (json!({"shardz": 2}), "SR0402", "shardz"),
        (json!({"shard": {"mailboxes": 2}}), "SR0402", "mailboxes"),
        (json!({"drain_timeout": "soon"}), "SR0402", "soon"),
        (json!({"shards": 0}), "SR0403", "shards"),
        (json!({"shards": 1025}), "SR0403", "shards"),
        (json!({"mode": "saga"}), "SR0403", "broker.kind"),
        (
            json!({"mode": "saga", "dispatch": "local", "broker": {"kind": "nats"}}),
            "SR0403",
            "dispatch local",
        ),
        (json!({"dispatch": "direct"}), "SR0402", "direct"),
        (json!({"cluster": "Not A Name"}), "SR0403", "cluster"),
        (json!({"tenants": []}), "SR0403", "tenants"),
        (
            json!({"limits": {"record_bytes": 1_000_000_000}}),
            "SR0403",
            "record_bytes",
        ),
        (
            json!({"limits": {"expression_steps": 20_001}}),
            "SR0403",
            "expression_steps",
        ),
        (json!({"limits": {"hops": 33}}), "SR0403", "hops"),
        (
            json!({"secrets": {"token": {"env": "SR_TEST_NOT_SET"}}}),
            "SR0404",
            "SR_TEST_NOT_SET",
        ),
        (
            json!({"callbacks": {"key": {"env": "SR_TEST_NOT_SET"}}}),
            "SR0404",
            "callbacks.key",
        ),
    ] {
        let (exit, line) = home.refusal(&home.with(changes.clone()));
        assert_eq!(exit, Some(78), "{changes}: {line}");
        assert!(line.contains(code) && line.contains(named), "{changes}: {line}");
    }
}

#[test]
fn an_effect_that_hands_out_tokens_needs_their_key() {
    let home = Home::new();
    let effects = home.path("token-effects");
    std::fs::create_dir(&effects).expect("created");
    let effect = "apiVersion: sagas/v1\nkind: Effect\nname: ask\nhttp: {method: POST, \
        url: \"http://127.0.0.1:9/ask\", body: {answer: \"${command.token}\"}}\n";
    std::fs::write(effects.join("ask.yaml"), effect).expect("written");
    let sagas = home.path("no-sagas");
    std::fs::create_dir(&sagas).expect("created");
    let (exit, line) = home.refusal(&home.with(json!({"effects": effects, "sagas": sagas})));
    assert_eq!(exit, Some(78), "{line}");
    assert!(
        line.contains("SR0406") && line.contains("effect ask") && line.contains("callbacks.key"),
        "{line}"
    );
}

#[test]
fn a_secret_in_the_manifest_is_refused_and_not_repeated() {
    let home = Home::new();
    for changes in [
        json!({"secrets": {"token": "hunter2"}}),
        json!({"broker": {"kind": "nats", "nats": {"urls": ["nats://me:hunter2@127.0.0.1:4222"]}}}),
    ] {
        let (exit, line) = home.refusal(&home.with(changes));
        assert_eq!(exit, Some(78), "{line}");
        assert!(line.contains("SR04") || line.contains("SR0302"), "{line}");
        assert!(!line.contains("hunter2"), "{line}");
    }
}

#[test]
fn data_of_others_is_refused_with_78() {
    let home = Home::new();
    assert_eq!(home.start().stop(), Some(0));

    let (exit, line) = home.refusal(&home.with(json!({"cluster": "other"})));
    assert_eq!(exit, Some(78), "{line}");
    assert!(line.contains("SR0407") && line.contains("other"), "{line}");

    let (exit, line) = home.refusal(&home.with(json!({"shards": 3})));
    assert_eq!(exit, Some(78), "{line}");
    assert!(line.contains("SR0407"), "{line}");

    let runner = home.start();
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    let elsewhere = json!({"http": {"listen": format!("127.0.0.1:{port}")}});
    let (exit, line) = home.refusal(&home.with(elsewhere));
    assert_eq!(exit, Some(78), "{line}");
    assert!(line.contains("SR0201"), "{line}");
    assert_eq!(runner.stop(), Some(0));

    let shard = home.path("data/shard-0001");
    std::fs::remove_dir_all(&shard).expect("removed");
    std::fs::create_dir(&shard).expect("created");
    let (exit, line) = home.refusal(&home.path("manifest.yaml"));
    assert_eq!(exit, Some(78), "{line}");
    assert!(line.contains("SR0205") && line.contains("shard-0001"), "{line}");
}

/// What the folder says of its cluster.
fn cluster_id(home: &Home) -> String {
    let text = std::fs::read_to_string(home.path("data/cluster.json")).expect("written");
    let marker: Value = serde_json::from_str(&text).expect("JSON");
    marker["id"].as_str().expect("an id").to_owned()
}

/// Takes the record of the cluster away, and stores a message of a cluster that has worked.
fn disturb(server: &NatsServer, lose_record: bool, leave_work: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let context = async_nats::jetstream::new(async_nats::connect(server.url()).await.expect("connected"));
        if lose_record {
            context
                .delete_key_value("WORKFLOW_CLUSTER")
                .await
                .expect("removed");
        }
        if leave_work {
            let sent = context
                .publish("effect_result.charge.x", "{}".into())
                .await
                .expect("sent");
            sent.await.expect("stored");
        }
    });
}

#[test]
fn the_id_of_a_cluster_outlives_restarts_and_the_loss_of_either_copy() {
    let server = NatsServer::start();
    let mut home = Home::new();
    home.manifest["broker"] = json!({"kind": "nats", "nats": {"urls": [server.url()]}});
    home.write("manifest.yaml", &home.manifest);
    let once = || {
        assert_eq!(home.start().stop(), Some(0));
        cluster_id(&home)
    };
    let id = once();
    assert_eq!(once(), id, "a restart");

    disturb(&server, true, true);
    assert_eq!(once(), id, "the broker lost its record");
    std::fs::remove_dir_all(home.path("data")).expect("removed");
    let (exit, line) = home.refusal(&home.path("manifest.yaml"));
    assert_eq!(exit, Some(78), "{line}");
    assert!(
        line.contains("SR0205") && line.contains("--adopt-loss 0@3,1@3"),
        "a fresh folder beside the record: {line}"
    );

    disturb(&server, true, false);
    let (exit, line) = home.refusal(&home.path("manifest.yaml"));
    assert_eq!(exit, Some(78), "{line}");
    assert!(
        line.contains("SR0411") && line.contains("WORKFLOW_EVENTS"),
        "{line}"
    );
}

#[test]
fn a_folder_of_another_cluster_of_the_same_name_is_refused_with_78() {
    let (home, other) = (Home::new(), Home::new());
    assert_eq!(home.start().stop(), Some(0));
    assert_eq!(other.start().stop(), Some(0));
    let (id, foreign) = (cluster_id(&home), cluster_id(&other));
    assert_ne!(id, foreign);

    let text = std::fs::read_to_string(home.path("data/cluster.json")).expect("written");
    std::fs::write(home.path("data/cluster.json"), text.replace(&id, &foreign)).expect("written");
    let (exit, line) = home.refusal(&home.path("manifest.yaml"));
    assert_eq!(exit, Some(78), "{line}");
    assert!(
        line.contains("SR0410") && line.contains(&id) && line.contains(&foreign),
        "{line}"
    );

    // A shard of another cluster under a marker that was corrected by hand.
    std::fs::write(home.path("data/cluster.json"), &text).expect("written");
    std::fs::remove_dir_all(home.path("data/shard-0001")).expect("removed");
    std::fs::rename(other.path("data/shard-0001"), home.path("data/shard-0001")).expect("moved");
    let (exit, line) = home.refusal(&home.path("manifest.yaml"));
    assert_eq!(exit, Some(78), "{line}");
    assert!(line.contains("SR0202") && line.contains(&foreign), "{line}");
}

#[test]
fn validate_tells_good_from_bad() {
    let root = env!("CARGO_MANIFEST_DIR");
    let good = call(&["validate", root]);
    assert_eq!(good.status.code(), Some(0), "{}", text(&good.stderr));
    let machine = call(&["validate", root, "-o", "json"]);
    let findings: Value = serde_json::from_slice(&machine.stdout).expect("JSON");
    assert_eq!(
        findings,
        json!([]),
        "the shipped definitions have no findings at all"
    );

    let home = Home::new();
    let broken = TALLY.replace("start:", "strat:");
    std::fs::write(home.path("sagas/broken.yaml"), broken).expect("written");
    let folder = home.dir.path().to_str().expect("UTF-8");
    let bad = call(&["validate", folder]);
    assert_eq!(bad.status.code(), Some(1), "{}", text(&bad.stderr));
    let shown = text(&bad.stdout);
    assert!(shown.contains("broken.yaml") && shown.contains("SR01"), "{shown}");

    let machine = call(&["validate", folder, "-o", "json"]);
    assert_eq!(machine.status.code(), Some(1));
    let findings: Value = serde_json::from_slice(&machine.stdout).expect("JSON");
    let findings = findings.as_array().expect("an array");
    let code = |finding: &Value| finding["code"].as_str().unwrap_or("").starts_with("SR01");
    assert!(!findings.is_empty() && findings.iter().all(code), "{findings:?}");

    let absent = call(&["validate", "/no/such/folder"]);
    assert_eq!(absent.status.code(), Some(66), "{}", text(&absent.stderr));

    let (exit, shown) = home.refusal_of_definitions();
    assert_eq!(exit, Some(78), "{shown}");
    assert!(shown.contains("SR0405"), "{shown}");
    for finding in findings {
        let text = |key: &str| finding[key].as_str().expect("text");
        let place = format!("{}:{}:{}", text("file"), finding["line"], finding["column"]);
        // A manifest names its folders as it likes.
        let place = place.rsplit('/').next().expect("a file");
        assert!(
            shown.contains(text("code")) && shown.contains(place),
            "{finding}: {shown}"
        );
    }
}

#[test]
fn validate_finds_wrong_manifests_and_does_not_call_nothing_well() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let folder = dir.path().to_str().expect("UTF-8");
    let empty = call(&["validate", folder]);
    assert_eq!(empty.status.code(), Some(66), "{}", text(&empty.stderr));
    let head = "apiVersion: saga-runner/v1\nkind: Manifest\ncluster: a\n";
    let manifest = dir.path().join("manifest.yaml");
    for (body, code) in [
        ("shrads: 2\n", "SR0402"),
        ("shards: 0\n", "SR0403"),
        ("http: {listen: \"0.0.0.0:8080\"}\n", "SR0412"),
    ] {
        std::fs::write(&manifest, format!("{head}{body}")).expect("written");
        for path in [folder, manifest.to_str().expect("UTF-8")] {
            let checked = call(&["validate", path, "-o", "json"]);
            assert_eq!(checked.status.code(), Some(1), "{}", text(&checked.stderr));
            let findings: Value = serde_json::from_slice(&checked.stdout).expect("JSON");
            assert_eq!(findings[0]["code"], code, "{findings}");
        }
    }
    std::fs::write(&manifest, head).expect("written");
    assert_eq!(call(&["validate", folder]).status.code(), Some(0));
}

#[test]
fn a_refused_reload_tells_every_finding() {
    let home = Home::new();
    let runner = home.start();
    let broken = TALLY
        .replace("start:", "strat:")
        .replace("name: tally", "name: broken");
    std::fs::write(home.path("sagas/broken.yaml"), broken).expect("written");
    let folder = home.dir.path().to_str().expect("UTF-8");
    let checked = call(&["validate", folder, "-o", "json"]);
    let findings: Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    let errors = findings.as_array().expect("an array").iter();
    let errors: Vec<&Value> = errors.filter(|finding| finding["severity"] == "error").collect();
    assert!(!errors.is_empty());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(runner.0.id()).expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP).expect("signalled");
    let address = home.manifest["http"]["listen"].as_str().expect("an address");
    let begin = Instant::now();
    let kept = loop {
        let answer = get(address, "/info");
        let body = answer.split("\r\n\r\n").nth(1).unwrap_or("null");
        let info: Value = serde_json::from_str(body).unwrap_or_default();
        if let Some(findings) = info["reload"]["findings"].as_array() {
            break findings.clone();
        }
        assert!(begin.elapsed() < PATIENCE, "{answer}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let log = std::fs::read_to_string(home.path("runner.log")).expect("a log");
    let lines: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    for error in errors {
        let same = |told: &Value| {
            let keys = ["code", "line", "column", "message"];
            keys.iter().all(|key| told[*key] == error[*key])
        };
        assert!(lines.iter().any(same), "{error}: {log}");
        assert!(kept.iter().any(same), "{error}: {kept:?}");
    }
    assert_eq!(runner.stop(), Some(0));
}

#[test]
fn an_api_that_others_could_reach_is_refused_with_78() {
    let home = Home::new();
    let (exit, line) = home.refusal(&home.with(json!({"http": {"listen": "0.0.0.0:1"}})));
    assert_eq!(exit, Some(78), "{line}");
    assert!(
        line.contains("SR0412") && line.contains("http.authentication"),
        "{line}"
    );
    for verb in [
        &["run", "--config", "manifest.yaml"][..],
        &["dev", "--data-dir", "d"],
    ] {
        let output = binary()
            .args(verb)
            .args(["--listen", "0.0.0.0:1"])
            .current_dir(home.dir.path())
            .output()
            .expect("the binary starts");
        assert_eq!(
            output.status.code(),
            Some(78),
            "{verb:?}: {}",
            text(&output.stderr)
        );
        assert!(text(&output.stderr).contains("SR0412"), "{verb:?}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_no_command() {
    let root = env!("CARGO_MANIFEST_DIR");
    let order = format!("{root}/sagas/order.yaml");
    for (arguments, code) in [
        (&["schema", "saga"][..], 0),
        (&["validate", root, "-o", "json"], 0),
        (&["graph", &order], 0),
        (&["--help"], 0),
        (&["validate", "/no/such/folder"], 66),
    ] {
        let output = binary()
            .args(arguments)
            .stdout(nobody_reads())
            .output()
            .expect("the binary starts");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        assert!(!text(&output.stderr).contains("panicked"), "{output:?}");
        let silent = binary()
            .args(arguments)
            .stderr(nobody_reads())
            .output()
            .expect("the binary starts");
        assert_eq!(silent.status.code(), Some(code), "{arguments:?}");
    }
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("a device");
    let output = binary()
        .args(["schema", "saga"])
        .stdout(full)
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(74), "{output:?}");
    assert!(text(&output.stderr).contains("standard output"), "{output:?}");
}

/// A pipe whose reading end is closed.
fn nobody_reads() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    Stdio::from(writer)
}

#[test]
fn the_tenant_need_not_be_named_where_there_is_one() {
    let with = |tenants: Option<Value>| {
        let mut home = Home::new();
        let keys = home.manifest.as_object_mut().expect("an object");
        keys.extend(tenants.map(|list| ("tenants".to_owned(), list)));
        home.write("manifest.yaml", &home.manifest);
        let runner = home.start();
        (home, runner)
    };
    let list = |home: &Home, more: &[&str], tenant: Option<&str>| {
        let address = home.manifest["http"]["listen"].as_str().expect("an address");
        let url = format!("http://{address}");
        let mut command = binary();
        command
            .args(["schedule", "list", "--json", "--url", &url])
            .args(more);
        if let Some(tenant) = tenant {
            command.env("SAGA_RUNNER_TENANT", tenant);
        }
        let output = command.output().expect("the binary starts");
        (output.status.code(), text(&output.stderr))
    };
    let (home, runner) = with(None);
    assert_eq!(list(&home, &[], None).0, Some(0), "without tenants");
    let (exit, told) = list(&home, &["--tenant", "acme"], None);
    assert!(
        exit == Some(4) && told.contains("works without tenants"),
        "{told}"
    );
    assert_eq!(runner.stop(), Some(0));

    let (home, runner) = with(Some(json!(["acme"])));
    assert_eq!(list(&home, &[], None).0, Some(0), "with one");
    assert_eq!(runner.stop(), Some(0));

    let (home, runner) = with(Some(json!(["acme", "globex"])));
    let (exit, told) = list(&home, &[], None);
    assert!(exit == Some(64) && told.contains("acme, globex"), "{told}");
    assert_eq!(list(&home, &[], Some("globex")).0, Some(0));
    assert_eq!(list(&home, &["--tenant", "acme"], Some("No Name")).0, Some(0));
    assert_eq!(list(&home, &[], Some("No Name")).0, Some(65));
    let address = home.manifest["http"]["listen"].as_str().expect("an address");
    assert!(get(address, "/v1/schedules").contains("begin with /v1/tenants/<tenant>"));
    assert_eq!(runner.stop(), Some(0));
}

impl Home {
    /// As [`Home::refusal`], where frames with the findings may stand before the line.
    fn refusal_of_definitions(&self) -> (Option<i32>, String) {
        let output = binary()
            .args(["run", "--config"])
            .arg(self.path("manifest.yaml"))
            .output()
            .expect("the binary starts");
        let errors = text(&output.stderr);
        (output.status.code(), errors)
    }
}

#[test]
fn streams_are_checked_without_a_change_and_applied_on_demand() {
    let server = NatsServer::start();
    let home = Home::new();
    let broker = json!({"broker": {"kind": "nats", "nats": {"urls": [server.url()]}}});
    let manifest = home.with(broker);
    let streams = |verb: &str| {
        let output = binary()
            .args(["streams", verb, "--config"])
            .arg(&manifest)
            .output()
            .expect("the binary starts");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    for _ in 0..2 {
        let (exit, shown, errors) = streams("check");
        assert_eq!(exit, Some(1), "a check creates nothing: {shown}{errors}");
        for name in [
            "AGGREGATE_EVENTS",
            "WORKFLOW_COMMANDS",
            "WORKFLOW_EVENTS",
            "bucket WORKFLOW_CLUSTER",
        ] {
            assert!(shown.contains(&format!("{name}: does not exist")), "{shown}");
        }
    }
    let (exit, shown, errors) = streams("apply");
    assert_eq!(exit, Some(0), "{shown}{errors}");
    let (exit, shown, errors) = streams("check");
    assert_eq!(exit, Some(0), "{shown}{errors}");
    assert!(!shown.contains("does not exist"), "{shown}");
}

#[test]
fn a_consumer_that_was_left_behind_is_told_from_those_of_other_groups_and_removed() {
    let server = NatsServer::start();
    let mut home = Home::new();
    home.manifest["broker"] = json!({"kind": "nats", "nats": {"urls": [server.url()]}});
    let effect = |home: &Home, name: &str| {
        let text =
            format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\ntransform: {{}}\nresult: {{}}\n");
        std::fs::write(home.path("effects/effect.yaml"), text).expect("written");
    };
    effect(&home, "charge");
    home.write("manifest.yaml", &home.manifest);
    let ours = home.start();
    let mut theirs = Home::new();
    theirs.manifest["broker"] = home.manifest["broker"].clone();
    theirs.manifest["group"] = json!("shop-eu");
    theirs.manifest["mode"] = json!("effect");
    effect(&theirs, "charge");
    theirs.write("manifest.yaml", &theirs.manifest);
    // Nobody takes from their consumer at the moment.
    assert_eq!(theirs.start().stop(), Some(0));

    let consumers = |words: &[&str]| {
        let output = binary()
            .arg("consumers")
            .args(words)
            .arg("--config")
            .arg(home.path("manifest.yaml"))
            .output()
            .expect("the binary starts");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let listed = || {
        let (exit, shown, errors) = consumers(&["list", "--json"]);
        assert_eq!(exit, Some(0), "{shown}{errors}");
        let lines: Vec<Value> = serde_json::from_str(&shown).expect("an array");
        let short = |line: &Value| {
            let name = line["name"].as_str().expect("a name").to_owned();
            (name, line["exists"] == true, line["left_behind"] == true)
        };
        lines.iter().map(short).collect::<Vec<_>>()
    };
    let (charge, refund) = ("effect-shop-charge".to_owned(), "effect-shop-refund".to_owned());
    assert_eq!(listed(), [(charge.clone(), true, false)]);
    effect(&home, "refund");
    assert_eq!(
        listed(),
        [(refund.clone(), false, false), (charge.clone(), true, true)]
    );
    let (_, shown, _) = consumers(&["list"]);
    assert!(
        shown.contains("effect-shop-charge: left behind, 0 pending, 0 unacknowledged"),
        "{shown}"
    );

    let (exit, _, errors) = consumers(&["delete", "effect-shop-eu-charge"]);
    assert_ne!(exit, Some(0));
    assert!(
        errors.contains("is no consumer that was left behind; there are effect-shop-charge"),
        "{errors}"
    );
    let (exit, _, errors) = consumers(&["delete", &charge]);
    assert_ne!(exit, Some(0));
    assert!(errors.contains("is in use"), "{errors}");
    assert_eq!(ours.stop(), Some(0));
    let (exit, shown, errors) = consumers(&["delete", &charge]);
    assert_eq!(
        (exit, shown.trim()),
        (Some(0), "effect-shop-charge is removed"),
        "{errors}"
    );
    assert_eq!(listed(), [(refund, false, false)]);
}

/// Sends a request with a JSON body and returns the answer.
fn post(address: &str, path: &str, body: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).expect("somebody listens");
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn what_init_writes_validates_runs_and_is_never_overwritten() {
    for (template, saga, key) in [("order", "order", "o-1"), ("batch", "batch", "b-1")] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let project = dir.path().join("shop");
        let folder = project.to_str().expect("UTF-8");
        let made = call(&["init", folder, "--template", template]);
        assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
        let checked = call(&["validate", folder, "--format", "json"]);
        assert_eq!(text(&checked.stdout).trim(), "[]", "{template}");

        std::fs::remove_file(project.join("event.json")).expect("removed");
        let again = call(&["init", folder, "--template", template]);
        assert_eq!(again.status.code(), Some(73), "{}", text(&again.stderr));
        assert!(text(&again.stderr).contains("is there already"));
        assert!(!project.join("event.json").exists(), "nothing was written");

        let other = dir.path().join("again");
        let made = call(&["init", other.to_str().expect("UTF-8"), "--template", template]);
        assert_eq!(made.status.code(), Some(0));
        let address = format!(
            "127.0.0.1:{}",
            saga_runner::app::nats_server::free_port().expect("a free port")
        );
        let child = binary()
            .args(["run", "--listen", &address, "--config"])
            .arg(other.join("saga-runner.yaml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let runner = Runner(child);
        let wait = |wanted: &str, path: &str| {
            let begin = Instant::now();
            loop {
                let answer = get(&address, path);
                if answer.contains(wanted) {
                    return answer;
                }
                assert!(begin.elapsed() < PATIENCE, "{template}: {answer}");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        wait("HTTP/1.1 200", "/ready");
        let event = std::fs::read_to_string(other.join("event.json")).expect("readable");
        let sent = post(&address, "/v1/tenants/acme/events", &event);
        assert!(sent.starts_with("HTTP/1.1 2"), "{sent}");
        let phase = if template == "order" {
            "completed"
        } else {
            "running"
        };
        wait(
            &format!("\"{phase}\""),
            &format!("/v1/tenants/acme/sagas/{saga}/instances/{key}"),
        );
        assert_eq!(runner.stop(), Some(0));
    }
}

#[test]
fn schemas_of_all_files_are_printed_as_draft_07() {
    for (kind, title) in [("saga", "Saga"), ("effect", "Effect"), ("manifest", "Manifest")] {
        let output = call(&["schema", kind]);
        assert_eq!(output.status.code(), Some(0), "{kind}");
        let schema: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(schema["title"], title);
        assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    }
    assert_eq!(call(&["schema", "nothing"]).status.code(), Some(64));
}
