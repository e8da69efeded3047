//! The real binary from the outside: exit codes, one line for each refusal, and what goes to which stream.

#![allow(clippy::disallowed_methods, reason = "waits for processes in real time")]

pub mod alone;
mod backups;
mod clusters;
mod commands;
mod configs;
mod contexts;
mod definitions;
mod dev;
mod doctor;
mod manifests;
mod streams;
mod unusable;

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
            "http": {"listen": format!("127.0.0.1:{port}"), "admin_listen": format!("127.0.0.1:{port}")},
        });
        let home = Self { dir, manifest };
        home.write("manifest.yaml", &home.manifest);
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where its runner listens.
    fn url(&self) -> String {
        let listen = self.manifest["http"]["listen"].as_str().expect("an address");
        format!("http://{listen}")
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
        // What comes back decides; a connection that breaks is not an answer.
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

#[test]
fn a_command_that_goes_on_until_it_is_interrupted_ends_with_its_reader() {
    let mut child = binary()
        .args(["validate", env!("CARGO_MANIFEST_DIR"), "--watch", "-o", "json"])
        .stdout(nobody_reads())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let begin = Instant::now();
    let ended = loop {
        if let Some(ended) = child.try_wait().expect("a child") {
            break ended;
        }
        if begin.elapsed() > PATIENCE {
            child.kill().expect("killed");
            panic!("it watches for nobody");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(ended.code(), Some(0));
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
    assert!(exit == Some(4) && told.contains("runs without tenants"), "{told}");
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
    assert!(get(address, "/v1/schedules").contains("begin the path with /v1/tenants/<tenant>"));
    assert_eq!(runner.stop(), Some(0));
}

#[test]
fn files_written_by_init_validate_run_and_are_never_overwritten() {
    for (template, saga, key) in [("order", "order", "o-1"), ("batch", "batch", "b-1")] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let project = dir.path().join("shop");
        let folder = project.to_str().expect("UTF-8");
        let made = call(&["init", folder, "--template", template]);
        assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
        let checked = call(&["validate", folder, "-o", "json"]);
        assert_eq!(text(&checked.stdout).trim(), "[]", "{template}");

        std::fs::remove_file(project.join("event.json")).expect("removed");
        let again = call(&["init", folder, "--template", template]);
        assert_eq!(again.status.code(), Some(73), "{}", text(&again.stderr));
        assert!(text(&again.stderr).contains("exists already"));
        assert!(!project.join("event.json").exists(), "nothing was written");

        let other = dir.path().join("again");
        let made = call(&["init", other.to_str().expect("UTF-8"), "--template", template]);
        assert_eq!(made.status.code(), Some(0));
        let address = format!(
            "127.0.0.1:{}",
            saga_runner::app::nats_server::free_port().expect("a free port")
        );
        let child = binary()
            .args([
                "run",
                "--listen",
                &address,
                "--admin-listen",
                &address,
                "--config",
            ])
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
