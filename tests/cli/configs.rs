//! `config show` and `config check`: what holds, where it comes from, and what is wrong with it.

use super::*;

fn config(home: &Home, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    binary()
        .arg("config")
        .args(arguments)
        .current_dir(home.dir.path())
        .envs(variables.iter().copied())
        .output()
        .expect("the binary starts")
}

#[test]
fn every_value_is_shown_with_the_place_that_it_comes_from() {
    let home = Home::new();
    std::fs::write(
        home.path("m.yaml"),
        "apiVersion: saga-runner/v1\nkind: Manifest\ncluster: shop\nbroker: {kind: nats, nats: {user: u}}\n",
    )
    .expect("written");
    let variables = [
        ("SAGA_RUNNER_BROKER_NATS_PASSWORD", "hunter2"),
        ("SAGA_RUNNER_SHARDS", "2"),
        // The benchmark reads it, too.
        ("SAGA_RUNNER_LOG", "warn"),
        // Of other commands.
        ("SAGA_RUNNER_TENANT", "acme"),
        ("SAGA_RUNNER_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
    ];
    let flags = [
        "show",
        "--config",
        "m.yaml",
        "--set",
        "relay.retry_max=5s",
        "--listen",
        "127.0.0.1:9",
        "--admin-listen",
        "127.0.0.1:10",
    ];
    let output = config(
        &home,
        &[&flags[..], &["--origin", "-o", "json"]].concat(),
        &variables,
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of = |key: &str| {
        let items = shown["items"].as_array().expect("a list");
        let item = items.iter().find(|item| item["key"] == key);
        item.map(|item| (item["value"].clone(), item["origin"].clone()))
    };
    for (key, value, origin) in [
        ("cluster", json!("shop"), "m.yaml:3"),
        ("broker.nats.user", json!("u"), "m.yaml:4"),
        (
            "broker.nats.password",
            json!("[redacted]"),
            "SAGA_RUNNER_BROKER_NATS_PASSWORD",
        ),
        ("shards", json!(2), "SAGA_RUNNER_SHARDS"),
        ("log.level", json!("warn"), "SAGA_RUNNER_LOG"),
        ("relay.retry_max", json!("5s"), "--set relay.retry_max"),
        ("http.listen", json!("127.0.0.1:9"), "--listen"),
        ("http.admin_listen", json!("127.0.0.1:10"), "--admin-listen"),
        ("relay.retry_initial", json!("50ms"), "default"),
    ] {
        assert_eq!(of(key), Some((value, json!(origin))), "{key}");
    }
    assert!(!text(&output.stdout).contains("hunter2"));
    let table = config(&home, &[&flags[..], &["--origin"]].concat(), &variables);
    let table = text(&table.stdout);
    assert!(
        table
            .lines()
            .any(|line| line.split_whitespace().collect::<Vec<_>>() == ["shards", "2", "SAGA_RUNNER_SHARDS"]),
        "{table}"
    );
    let yaml = config(&home, &[&flags[..], &["-o", "yaml"]].concat(), &variables);
    let yaml: Value = serde_saphyr::from_slice(&yaml.stdout).expect("YAML");
    assert_eq!(
        (&yaml["shards"], &yaml["relay"]["retry_max"]),
        (&json!(2), &json!("5s"))
    );
}

#[test]
fn a_check_tells_every_mistake_with_its_excerpt_and_a_run_refuses_the_same() {
    let home = Home::new();
    let body = "apiVersion: saga-runner/v1\nkind: Manifest\ncluster: shop\ndrain_timeot: 5s\nlog: {level: 5, formt: json}\nbroker: {nats: {token: hunter2}}\n";
    std::fs::write(home.path("m.yaml"), body).expect("written");
    let variables = [("SAGA_RUNNER_SHADRS", "2")];
    let output = config(&home, &["check", "m.yaml"], &variables);
    let (shown, told) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{shown}{told}");
    for part in [
        "error[SR0402]: unknown key \"drain_timeot\"",
        "--> m.yaml:4:1",
        "4 | drain_timeot: 5s",
        "help: did you mean \"drain_timeout\"?",
        "did you mean \"format\"?",
        "did you mean SAGA_RUNNER_SHARDS?",
        "error[SR0414]: broker.nats.token is in the manifest",
        "broker: {nats: {token: *******}}",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(told.contains("4 error(s) in m.yaml"), "{told}");
    assert!(!shown.contains("hunter2"), "{shown}");
    let output = config(&home, &["check", "m.yaml", "-o", "json"], &variables);
    let findings: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(findings.as_array().map(Vec::len), Some(4), "{findings}");
    assert!(
        findings[1]["line"] == 4 && findings[1]["column"] == 1,
        "{findings}"
    );

    let run = binary()
        .args(["run", "--config", "m.yaml"])
        .current_dir(home.dir.path())
        .envs(variables)
        .output()
        .expect("the binary starts");
    let told = text(&run.stderr);
    assert_eq!(run.status.code(), Some(78), "{told}");
    assert!(
        told.contains("m.yaml:4:1: unknown key") && told.contains("SAGA_RUNNER_SHADRS"),
        "{told}"
    );
    assert!(!told.contains("hunter2"), "{told}");

    let output = config(&home, &["check", "absent.yaml"], &[]);
    assert_eq!(output.status.code(), Some(66), "{}", text(&output.stderr));
    let output = config(
        &home,
        &["check", "manifest.yaml"],
        &[("SAGA_RUNNER_LISTEN", "0.0.0.0:1")],
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("error[SR0412]"),
        "{}",
        text(&output.stdout)
    );
    let output = config(&home, &["check", "manifest.yaml"], &[]);
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(0), "manifest.yaml is valid\n".to_owned())
    );
}

#[test]
fn a_connection_that_cannot_be_made_is_told_before_it_is_tried() {
    let home = Home::new();
    let head = "apiVersion: saga-runner/v1\nkind: Manifest\ncluster: shop\ndata_dir: data\nsagas: sagas\neffects: effects\n";
    for (nats, told) in [
        ("user: u", "user and password belong together"),
        ("tls_cert_file: c.pem", "belong together"),
        ("tls_ca_file: absent.pem", "absent.pem"),
        ("heartbeat: 0ms", "heartbeat must be positive"),
    ] {
        let text = format!("{head}broker: {{kind: nats, nats: {{{nats}}}}}\n");
        std::fs::write(home.path("m.yaml"), text).expect("written");
        let output = config(&home, &["check", "m.yaml"], &[]);
        let shown = text_of(&output);
        assert_eq!(output.status.code(), Some(1), "{nats}: {shown}");
        assert!(
            shown.contains("error[SR0302]") && shown.contains(told) && shown.contains("--> m.yaml:7:"),
            "{nats}: {shown}"
        );
        // Where the broker is embedded, nothing connects.
        let text = format!("{head}broker: {{kind: embedded, nats: {{{nats}}}}}\n");
        std::fs::write(home.path("m.yaml"), text).expect("written");
        let output = config(&home, &["check", "m.yaml"], &[]);
        assert_eq!(output.status.code(), Some(0), "{nats}: {}", text_of(&output));
    }
}

/// What a command says, wherever.
fn text_of(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn the_manifest_of_a_working_directory_need_not_be_named() {
    let home = Home::new();
    let check = || config(&home, &["check"], &[]);
    let none = check();
    let told = text(&none.stderr);
    assert_eq!(none.status.code(), Some(66), "{told}");
    assert!(
        told.contains("neither config/saga-runner.yaml nor saga-runner.yaml") && told.contains("SR0401"),
        "{told}"
    );
    home.write("saga-runner.yaml", &home.manifest);
    let told = text(&check().stderr);
    assert!(told.starts_with("saga-runner.yaml is valid"), "{told}");
    // Its paths begin at its own folder.
    for folder in ["sagas", "effects"] {
        std::fs::create_dir_all(home.path("config").join(folder)).expect("created");
    }
    home.write("config/saga-runner.yaml", &home.manifest);
    let told = text(&check().stderr);
    assert!(told.starts_with("config/saga-runner.yaml is valid"), "{told}");
}
