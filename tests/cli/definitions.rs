//! `validate`, and a reload of definitions that are wrong.

use std::io::{BufRead as _, BufReader};

use super::*;

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
fn shipped_definitions_have_no_warnings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["", "examples/webhooks", "examples/programs"] {
        let folder = root.join(folder);
        let checked = call(&["validate", folder.to_str().expect("UTF-8"), "--deny-warnings"]);
        assert_eq!(
            checked.status.code(),
            Some(0),
            "{folder:?}: {}",
            text(&checked.stdout)
        );
    }
}

#[test]
fn warnings_are_denied_where_asked_and_never_hide_errors() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let folder = dir.path().to_str().expect("UTF-8");
    let saga = |name: &str, steps: &str| {
        let head =
            "apiVersion: sagas/v1\nkind: Saga\nstart: Order.Placed\nkey: {\"Order.*\": event.data.id}\n";
        let text = format!("{head}name: {name}\nsteps: {steps}\n");
        std::fs::write(dir.path().join(format!("{name}.yaml")), text).expect("written");
    };
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        saga(name, "{wait: {delay: 1s}}");
    }
    // Without schemas a file is complete.
    let quiet = call(&["validate", folder, "--deny-warnings"]);
    assert_eq!(quiet.status.code(), Some(0), "{}", text(&quiet.stdout));
    let shown = text(&quiet.stdout);
    assert_eq!(shown.matches("SR0179").count(), 1, "{shown}");
    assert!(
        shown.contains("7 file(s)") && shown.contains("2 other(s)"),
        "{shown}"
    );

    saga("warned", "{wait: {if: \"true\", delay: 1s}}");
    assert_eq!(call(&["validate", folder]).status.code(), Some(0));
    let denied = call(&["validate", folder, "--deny-warnings"]);
    assert_eq!(denied.status.code(), Some(1), "{}", text(&denied.stdout));
    assert!(
        text(&denied.stderr).contains("0 error(s) and 1 warning(s)"),
        "{}",
        text(&denied.stderr)
    );

    saga("wrong", "{wait: {dleay: 1s}}");
    let failed = call(&["validate", folder]);
    let shown = text(&failed.stdout);
    let warning = shown.find("warning[SR0176]: ").expect("in a line");
    assert!(
        shown.lines().filter(|line| line.contains("SR0176")).count() == 1,
        "{shown}"
    );
    assert!(shown.find("error[SR0105]").expect("framed") > warning, "{shown}");
    assert!(
        !shown[warning..].lines().nth(1).expect("a line").contains("-->"),
        "{shown}"
    );
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

/// What `saga-runner definition reload` answers.
fn reload(home: &Home) -> (Option<i32>, String, String) {
    let address = home.manifest["http"]["listen"].as_str().expect("an address");
    let output = call(&["definition", "reload", "--url", &format!("http://{address}")]);
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The check of `/health` about definitions.
fn definitions_health(home: &Home) -> Value {
    let address = home.manifest["http"]["listen"].as_str().expect("an address");
    let answer = get(address, "/health");
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or("null");
    let health: Value = serde_json::from_str(body).unwrap_or_default();
    let checks = health["checks"].as_array().cloned().unwrap_or_default();
    let found = checks.into_iter().find(|check| check["name"] == "definitions");
    found.unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn a_refused_reload_is_told_by_command_and_health_until_one_is_taken() {
    let home = Home::new();
    let runner = home.start();
    assert_eq!(definitions_health(&home)["ok"], true);
    let (exit, _, told) = reload(&home);
    assert!(exit == Some(0) && told.contains("nothing changed"), "{told}");

    let file = home.path("sagas/tally.yaml");
    std::fs::write(
        &file,
        TALLY
            .replace("start:", "strat:")
            .replace("initial: open", "initial: opne"),
    )
    .expect("written");
    let (exit, _, told) = reload(&home);
    assert_eq!(exit, Some(65), "{told}");
    for part in [
        "tally.yaml:5:1: error: unknown key \"strat\"",
        "[SR0105]",
        "[SR0117]",
        "did you mean",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let health = definitions_health(&home);
    let detail = health["detail"].as_str().expect("a detail");
    assert!(health["ok"] == false && detail.contains("[SR0105]"), "{detail}");
    let address = home.manifest["http"]["listen"].as_str().expect("an address");
    assert!(get(address, "/ready").starts_with("HTTP/1.1 200"), "it works on");

    std::fs::write(&file, TALLY.replace("sum: 0", "sum: 1")).expect("written");
    let (exit, changes, told) = reload(&home);
    assert!(
        exit == Some(0) && changes.contains("tally changed from sha256:"),
        "{changes}{told}"
    );
    assert_eq!(definitions_health(&home)["ok"], true);
    assert_eq!(runner.stop(), Some(0));
}

#[test]
fn one_bad_file_does_not_keep_a_process_from_starting_that_ran_before() {
    let home = Home::new();
    // Its first start has nothing that could stand in.
    std::fs::write(home.path("sagas/bad.yaml"), "apiVersion: sagas/v1\nkind: Saga\n").expect("written");
    assert_eq!(home.refusal_of_definitions().0, Some(78));
    std::fs::remove_file(home.path("sagas/bad.yaml")).expect("removed");
    assert_eq!(home.start().stop(), Some(0));

    std::fs::write(home.path("sagas/bad.yaml"), "apiVersion: sagas/v1\nkind: Saga\n").expect("written");
    std::fs::remove_file(home.path("sagas/tally.yaml")).expect("removed");
    let runner = home.start();
    let health = definitions_health(&home);
    let detail = health["detail"].as_str().expect("a detail");
    assert!(
        health["ok"] == false && detail.contains("bad.yaml:1:1"),
        "{detail}"
    );
    let address = home.manifest["http"]["listen"].as_str().expect("an address");
    let active = get(address, "/v1/definitions");
    assert!(
        active.contains("\"tally\"") && active.contains("\"active\":true"),
        "{active}"
    );
    let log = std::fs::read_to_string(home.path("runner.log")).expect("a log");
    assert!(
        log.contains("bad.yaml") && log.contains("the previous ones stay in use"),
        "{log}"
    );

    // With the files in order again a reload takes them, and the next start, too.
    std::fs::write(home.path("sagas/tally.yaml"), TALLY).expect("written");
    std::fs::remove_file(home.path("sagas/bad.yaml")).expect("removed");
    assert_eq!(reload(&home).0, Some(0));
    assert_eq!(definitions_health(&home)["ok"], true);
    assert_eq!(runner.stop(), Some(0));
    let runner = home.start();
    assert_eq!(definitions_health(&home)["ok"], true);
    assert_eq!(runner.stop(), Some(0));
}

/// A process that watches a folder, and the lines that it prints.
struct Watch {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Watch {
    fn of(folder: &Path) -> Self {
        let mut child = binary()
            .args(["validate", "--watch", "-o", "json"])
            .arg(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    /// Codes of the errors that are told next.
    fn errors(&mut self) -> Vec<String> {
        let line = self.lines.next().expect("it goes on").expect("readable");
        let findings: Vec<Value> = serde_json::from_str(&line).expect("an array in a line");
        let errors = findings.iter().filter(|finding| finding["severity"] == "error");
        errors
            .map(|finding| finding["code"].as_str().expect("a code").to_owned())
            .collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.child.kill().expect("it runs until it is interrupted");
        self.child.wait().expect("ended");
    }
}

#[test]
fn files_that_are_watched_are_checked_again_whenever_one_has_changed() {
    let home = Home::new();
    let schema = "schemas/tally.json";
    std::fs::create_dir(home.path("schemas")).expect("created");
    std::fs::write(home.path(schema), "{\"type\": \"object\"}").expect("written");
    let saga = format!("{TALLY}\nevents: {{Tally.Added: {{schema: ../{schema}}}}}\n");
    std::fs::write(home.path("sagas/tally.yaml"), TALLY).expect("written");

    let mut watch = Watch::of(home.dir.path());
    assert_eq!(watch.errors(), Vec::<String>::new());
    std::fs::write(home.path("sagas/tally.yaml"), TALLY.replace("start:", "strat:")).expect("written");
    assert_eq!(watch.errors().first().map(String::as_str), Some("SR0105"));
    std::fs::write(home.path("sagas/tally.yaml"), saga).expect("written");
    let mended = watch.errors();
    assert!(!mended.contains(&"SR0105".to_owned()), "{mended:?}");
    // What a file names belongs to it.
    std::fs::write(home.path(schema), "{\"type\": \"obejct\"}").expect("written");
    assert_eq!(
        watch.errors(),
        ["SR0170", "SR0170"],
        "where it is named, and in it"
    );
    // Nothing can be read for a moment.
    std::fs::remove_file(home.path("sagas/tally.yaml")).expect("removed");
    std::fs::write(home.path("sagas/tally.yaml"), TALLY).expect("written");
    assert_eq!(watch.errors(), Vec::<String>::new());
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
