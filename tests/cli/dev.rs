//! `dev`: what somebody sees who writes a saga.

use std::io::{BufRead as _, BufReader};
use std::sync::mpsc;

use super::*;

const SHOP: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: shop
start: Shop.Placed
key: {"Shop.*": event.data.id}
steps:
  reserve: {effect: echo, compensate: {effect: echo}}
  charge: {needs: [reserve], effect: echo, fail_if: "true"}
"#;
const ECHO: &str = "apiVersion: sagas/v1\nkind: Effect\nname: echo\ntransform: {}\nresult: {}\n";

/// A running `dev`, and the lines that it tells.
struct Dev {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
}

impl Dev {
    fn start(folder: &Path, address: &str) -> Self {
        let mut child = binary()
            .args([
                "dev",
                "--listen",
                address,
                "--admin-listen",
                address,
                "--log",
                "error",
            ])
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let reader = BufReader::new(child.stderr.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let seen = Vec::new();
        Self { child, lines, seen }
    }

    /// Waits until it takes work.
    fn ready(&self, address: &str) {
        let begin = Instant::now();
        while !get(address, "/ready").starts_with("HTTP/1.1 200") {
            assert!(begin.elapsed() < PATIENCE, "not ready: {:?}", self.seen);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for a line that has this in it.
    fn tells(&mut self, part: &str) -> String {
        let begin = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("{part:?} is not told: {:#?}", self.seen);
            };
            self.seen.push(line.clone());
            if line.contains(part) {
                return line;
            }
        }
    }
}

/// Sends the event that starts a saga of the shop.
fn place(address: &str, id: &str) {
    let event = json!({"tenant_id": "acme", "event_id": format!("e-{id}"), "event_type": "Placed",
        "aggregate_type": "Shop", "aggregate_id": id, "sequence": 1, "schema_version": 1,
        "payload": {"id": id}, "metadata": {"correlation_id": id}});
    let answer = post(address, "/v1/tenants/acme/events", &event.to_string());
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
}

impl Drop for Dev {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn each_order_is_told_line_by_line_and_changed_files_are_in_force_or_their_findings_shown() {
    let home = Home::new();
    std::fs::write(home.path("sagas/tally.yaml"), SHOP).expect("written");
    std::fs::write(home.path("effects/echo.yaml"), ECHO).expect("written");
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    let address = format!("127.0.0.1:{port}");
    let mut dev = Dev::start(home.dir.path(), &address);
    dev.tells("a changed file is reloaded");
    dev.ready(&address);
    let place = |id: &str| place(&address, id);
    place("s-1");
    for expected in [
        "acme shop s-1: started",
        "acme shop s-1: reserve done",
        "acme shop s-1: charge failed: ",
        "acme shop s-1: reserve undone",
        "acme shop s-1: ended: failed",
    ] {
        dev.tells(expected);
    }

    std::fs::write(home.path("sagas/tally.yaml"), SHOP.replace("start:", "strat:")).expect("written");
    dev.tells("error[SR0105]");
    dev.tells("strat: Shop.Placed");
    dev.tells("not reloaded");
    std::fs::write(
        home.path("sagas/tally.yaml"),
        SHOP.replace("fail_if: \"true\"", "fail_if: \"false\""),
    )
    .expect("written");
    dev.tells("reloaded: shop changed");
    place("s-2");
    dev.tells("acme shop s-2: charge done");
    dev.tells("acme shop s-2: ended: completed");
    assert!(
        !dev.seen.iter().any(|line| line.contains("s-2: charge failed")),
        "{:?}",
        dev.seen
    );
}

#[test]
fn a_shard_that_was_closed_is_opened_again_and_its_orders_are_told() {
    let home = Home::new();
    std::fs::write(home.path("sagas/tally.yaml"), SHOP).expect("written");
    std::fs::write(home.path("effects/echo.yaml"), ECHO).expect("written");
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    let address = format!("127.0.0.1:{port}");
    let mut dev = Dev::start(home.dir.path(), &address);
    dev.ready(&address);
    place(&address, "s-1");
    dev.tells("acme shop s-1: ended: failed");
    let url = format!("http://{address}");
    for verb in ["close", "open"] {
        let done = call(&["shard", verb, "0", "--url", &url]);
        assert_eq!(done.status.code(), Some(0), "{verb}: {}", text(&done.stderr));
    }
    place(&address, "s-2");
    dev.tells("acme shop s-2: ended: failed");
    let told_again = dev.seen.iter().filter(|line| line.contains("s-1: started"));
    assert_eq!(told_again.count(), 1, "{:?}", dev.seen);
}

#[test]
fn a_new_project_is_tried_with_dev_and_runs_by_its_manifest_afterwards() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let project = dir.path().join("shop");
    let made = call(&["init", project.to_str().expect("UTF-8")]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    let address = format!("127.0.0.1:{port}");
    let mut dev = Dev::start(&project, &address);
    let told = dev.tells("  data      ");
    assert!(told.ends_with("/shop/.saga-runner-dev"), "{told}");
    dev.ready(&address);
    drop(dev);
    assert!(
        !project.join("data").exists(),
        "that is the folder of the project"
    );
    let ignored = std::fs::read_to_string(project.join(".gitignore")).expect("readable");
    assert!(ignored.contains("/.saga-runner-dev/\n"), "{ignored}");

    for command in [&["config", "check"][..], &["config", "show"], &["doctor"]] {
        let output = binary()
            .args(command)
            .current_dir(&project)
            .output()
            .expect("the binary starts");
        assert_eq!(
            output.status.code(),
            Some(0),
            "{command:?}: {}",
            text(&output.stderr)
        );
    }
    let child = binary()
        .args(["run", "--listen", &address, "--admin-listen", &address])
        .current_dir(&project)
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.path().join("log")).expect("a log"))
        .spawn()
        .expect("the binary starts");
    let runner = Runner(child);
    let begin = Instant::now();
    while !get(&address, "/ready").starts_with("HTTP/1.1 200") {
        let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        assert!(begin.elapsed() < PATIENCE, "not ready: {log}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(runner.stop(), Some(0));
}
