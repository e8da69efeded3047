//! Streams and consumers on a nats-server.

use super::*;

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
            "WORKFLOW_AUDIT",
            "bucket WORKFLOW_CLUSTER",
        ] {
            let line = shown.lines().find(|line| line.starts_with(&format!("{name}  ")));
            assert!(
                line.is_some_and(|line| line.contains("does not exist")),
                "{shown}"
            );
            assert!(errors.contains(&format!("{name}: the ")), "{errors}");
        }
    }
    let (exit, shown, errors) = streams("apply");
    assert_eq!(exit, Some(0), "{shown}{errors}");
    let (exit, shown, errors) = streams("check");
    assert_eq!(exit, Some(0), "{shown}{errors}");
    assert!(!shown.contains("does not exist"), "{shown}");
}

#[test]
fn a_process_that_is_ready_has_made_every_stream() {
    let server = NatsServer::start();
    let mut home = Home::new();
    home.manifest["broker"] = json!({"kind": "nats", "nats": {"urls": [server.url()]}});
    home.write("manifest.yaml", &home.manifest);
    let runner = home.start();
    let output = binary()
        .args(["streams", "check", "--config"])
        .arg(home.path("manifest.yaml"))
        .output()
        .expect("the binary starts");
    let (shown, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{shown}{errors}");
    assert!(shown.contains("WORKFLOW_AUDIT"), "{shown}");
    drop(runner);
}

#[test]
fn a_consumer_that_is_not_used_is_told_from_those_of_other_groups_and_removed() {
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
        let shown: Value = serde_json::from_str(&shown).expect("a list");
        let lines = shown["items"].as_array().expect("its items");
        let short = |line: &Value| {
            let name = line["name"].as_str().expect("a name").to_owned();
            (name, line["exists"] == true, line["unused"] == true)
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
    let line = shown.lines().find(|line| line.starts_with("effect-shop-charge "));
    assert!(line.is_some_and(|line| line.contains("orphaned")), "{shown}");

    let (exit, _, errors) = consumers(&["delete", &charge]);
    assert_eq!(exit, Some(64), "nobody has agreed: {errors}");
    assert!(errors.contains("--yes"), "{errors}");
    let (exit, _, errors) = consumers(&["delete", "effect-shop-eu-charge", "--yes"]);
    assert_ne!(exit, Some(0));
    assert!(
        errors.contains("is not an orphaned consumer; orphaned: effect-shop-charge"),
        "{errors}"
    );
    let (exit, _, errors) = consumers(&["delete", &charge, "--yes"]);
    assert_ne!(exit, Some(0));
    assert!(errors.contains("is in use"), "{errors}");
    assert_eq!(ours.stop(), Some(0));
    let (exit, shown, errors) = consumers(&["delete", &charge, "--yes", "-o", "json"]);
    assert_eq!(exit, Some(0), "{errors}");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown, json!({"name": charge, "deleted": true}));
    assert_eq!(listed(), [(refund, false, false)]);
}

/// A manifest of a broker that nobody runs, and its address.
fn away(home: &Home) -> (PathBuf, String) {
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    let url = format!("nats://127.0.0.1:{port}");
    let nats = json!({"urls": [url], "connect_timeout": "1s"});
    let manifest = home.with(json!({"broker": {"kind": "nats", "nats": nats}}));
    (manifest, url)
}

#[test]
fn commands_that_need_the_broker_give_up_with_its_address_while_it_is_away() {
    let home = Home::new();
    let (manifest, url) = away(&home);
    for command in [
        &["streams", "check"][..],
        &["streams", "apply"],
        &["consumers", "list"],
        &["consumers", "delete", "effect-shop-charge", "--yes"],
    ] {
        let output = binary()
            .args(command)
            .arg("--config")
            .arg(&manifest)
            .output()
            .expect("the binary starts");
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{command:?}: {told}");
        let expected = format!("no connection to the broker at {url} within 1s: connection refused");
        assert!(told.contains(&expected), "{command:?}: {told}");
    }
}

#[test]
fn a_start_without_the_broker_says_what_it_waits_for_and_why() {
    let home = Home::new();
    let (manifest, url) = away(&home);
    let log = home.path("runner.log");
    let child = binary()
        .args(["run", "--config"])
        .arg(&manifest)
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).expect("a log"))
        .spawn()
        .expect("the binary starts");
    let runner = Runner(child);
    let address = home.manifest["http"]["listen"].as_str().expect("an address");
    let expected = format!("waits for the broker at {url}: connection refused");
    for path in ["/ready", "/health"] {
        let begin = Instant::now();
        loop {
            let answer = get(address, path);
            if answer.contains(&expected) {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "{path}: {answer}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(runner.stop(), Some(0));
    let log = std::fs::read_to_string(&log).expect("readable");
    let warned: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("WARN") && line.contains(&url))
        .collect();
    assert_eq!(warned.len(), 1, "{log}");
    assert!(warned[0].contains("connection refused"), "{log}");
}
