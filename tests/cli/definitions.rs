//! `validate`, and a reload of definitions that are wrong.

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
fn warnings_are_denied_where_asked_and_never_bury_errors() {
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
