//! Commands that need neither a server nor a process that runs already, each in a case of its own. tests/operations/ has the others,
//! and compares both tables with what the program takes.

use super::*;

/// A command as it is typed.
#[derive(Clone, Copy)]
pub struct Typed(&'static str);

/// The words of a command, and its test.
type Case = (&'static str, fn(Typed));

pub const CASES: &[Case] = &[
    ("init", init),
    ("validate", validate),
    ("test", test),
    ("graph", graph),
    ("schema", schema),
    ("token new", token),
    ("completions", completions),
    ("man", man),
    ("dev", dev),
    ("demo", demo),
    ("demo-upstream", demo_upstream),
    ("bench", bench),
];

impl Typed {
    fn command(self) -> Command {
        let mut command = binary();
        command.args(self.0.split(' '));
        command
    }

    /// Runs it with further words: its output, and what it says beside that.
    fn exits(self, code: i32, more: &[&str]) -> (String, String) {
        let output = self.command().args(more).output().expect("the binary starts");
        let (shown, told) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(
            output.status.code(),
            Some(code),
            "{} {more:?}: {shown}{told}",
            self.0
        );
        (shown, told)
    }

    /// Runs it: it succeeds, and gives its output.
    fn shows(self, more: &[&str]) -> String {
        self.exits(0, more).0
    }

    fn json(self, more: &[&str]) -> Value {
        let shown = self.shows(more);
        serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{error}: {shown}"))
    }

    /// Starts what goes on until it is ended, in a folder, and waits until it answers with this status.
    fn starts(self, folder: &Path, more: &[&str], address: &str, path: &str, status: &str) -> Runner {
        let child = self
            .command()
            .args(more)
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let runner = Runner(child);
        until(address, path, status);
        runner
    }
}

/// Waits for an answer with this in it.
fn until(address: &str, path: &str, part: &str) {
    let begin = Instant::now();
    loop {
        let answer = get(address, path);
        if answer.contains(part) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{path}: {answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn free_address() -> String {
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    format!("127.0.0.1:{port}")
}

/// A folder with the project that `init` writes.
fn project() -> (TempDir, String) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let folder = dir.path().join("shop").to_str().expect("UTF-8").to_owned();
    Typed("init").shows(&[folder.as_str()]);
    (dir, folder)
}

#[test]
fn each_command_that_needs_no_server_does_what_its_description_says() {
    for &(name, test) in CASES {
        println!("{name}");
        test(Typed(name));
    }
}

fn init(typed: Typed) {
    let (_dir, folder) = project();
    for file in ["saga-runner.yaml", "sagas/order.yaml", "event.json"] {
        assert!(Path::new(&folder).join(file).exists(), "{file}");
    }
    let (_, told) = typed.exits(73, &[folder.as_str()]);
    assert!(told.contains("exists already"), "{told}");
}

fn validate(typed: Typed) {
    let (_dir, folder) = project();
    let strict = [folder.as_str(), "--deny-warnings", "-o", "json"];
    assert_eq!(typed.json(&strict), json!([]));
    let saga = Path::new(&folder).join("sagas/order.yaml");
    let broken = std::fs::read_to_string(&saga).expect("readable");
    std::fs::write(&saga, broken.replace("steps:", "stepps:")).expect("written");
    let (shown, _) = typed.exits(1, &strict);
    let findings: Value = serde_json::from_str(&shown).expect("JSON");
    let mut findings = findings.as_array().expect("a list").iter();
    assert!(findings.any(|finding| finding["code"] == "SR0105"), "{shown}");
}

fn test(typed: Typed) {
    let cases = format!("{}/sagas/order.test.yaml", env!("CARGO_MANIFEST_DIR"));
    let told = typed.json(&[cases.as_str(), "--filter", "shipped", "--format", "json"]);
    assert!(
        told["passed"].as_u64() >= Some(1) && told["failed"] == 0,
        "{told}"
    );
    let (_dir, folder) = project();
    let tests = Path::new(&folder).join("sagas/order.test.yaml");
    let wrong = "saga: order\ncases:\n  - name: it is over at once\n    steps:\n      - event: Order.Placed\n        \
                 data: {order_id: o-1}\n        expect: {phase: completed}\n";
    std::fs::write(tests, wrong).expect("written");
    let (shown, told) = typed.exits(1, &[folder.as_str()]);
    assert!(
        format!("{shown}{told}").contains("it is over at once"),
        "{shown}{told}"
    );
}

fn graph(typed: Typed) {
    let (_dir, folder) = project();
    let saga = format!("{folder}/sagas/order.yaml");
    let shown = typed.shows(&[saga.as_str()]);
    assert!(
        shown.contains("flowchart TD") && shown.contains("reserve<br/>inventory-reserve"),
        "{shown}"
    );
    let shown = typed.shows(&[saga.as_str(), "--format", "svg"]);
    assert!(shown.starts_with("<svg"), "{shown}");
}

fn schema(typed: Typed) {
    for (kind, title) in [("saga", "Saga"), ("effect", "Effect"), ("manifest", "Manifest")] {
        assert_eq!(typed.json(&[kind])["title"], title);
    }
    typed.exits(64, &["nothing"]);
}

/// Two tokens are never the same.
fn token(typed: Typed) {
    let draw = || typed.json(&["ann", "--roles", "viewer@acme", "-o", "json"]);
    let (first, second) = (draw(), draw());
    let line = first["line"].as_str().expect("a line");
    assert!(line.starts_with("ann viewer@acme sha256:"), "{line}");
    assert_ne!(first["token"], second["token"]);
    typed.exits(64, &["ann", "--roles", "king@acme"]);
}

fn completions(typed: Typed) {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let shown = typed.shows(&[shell]);
        assert!(shown.contains("accept-gap"), "{shell}");
    }
}

fn man(typed: Typed) {
    assert!(typed.shows(&[]).contains(".TH saga-runner"));
    let dir = tempfile::tempdir().expect("a temporary directory");
    typed.shows(&["--dir", dir.path().to_str().expect("UTF-8")]);
    assert!(dir.path().join("saga-runner-shard-restore.1").exists());
}

fn dev(typed: Typed) {
    let (_dir, folder) = project();
    let address = free_address();
    let more = ["--listen", &address, "--admin-listen", &address];
    let runner = typed.starts(Path::new(&folder), &more, &address, "/ready", "HTTP/1.1 200");
    let event = std::fs::read_to_string(Path::new(&folder).join("event.json")).expect("readable");
    let sent = post(&address, "/v1/tenants/acme/events", &event);
    assert!(sent.starts_with("HTTP/1.1 202"), "{sent}");
    let path = "/v1/tenants/acme/sagas/order/instances/o-1";
    until(&address, path, "\"phase\":\"completed\"");
    assert_eq!(runner.stop(), Some(0));
}

fn demo(typed: Typed) {
    let root = env!("CARGO_MANIFEST_DIR");
    let more = ["--orders", "3", "--kills", "1", "--unpaid-after", "1s"];
    let shown = typed.shows(&[&more[..], &["--definitions", root]].concat());
    assert!(shown.contains("books are even"), "{shown}");
}

fn demo_upstream(typed: Typed) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let address = free_address();
    let more = ["--listen", &address, "--runner", "http://127.0.0.1:1"];
    let _upstream = typed.starts(dir.path(), &more, &address, "/ledger", "HTTP/1.1 200");
    // It answers each key once, so a call without one is none.
    let refused = post(&address, "/fraud/scores", r#"{"order": "o-1"}"#);
    assert!(
        refused.starts_with("HTTP/1.1 400") && refused.contains("Idempotency-Key is missing"),
        "{refused}"
    );
}

fn bench(typed: Typed) {
    let told = typed.json(&["--sagas", "20", "--latency-for", "0s", "--json"]);
    assert_eq!(
        (&told["broker"], &told["throughput"]["sagas"]),
        (&json!("embedded"), &json!(20)),
        "{told}"
    );
}
