//! `doctor`: each check, made to fail by what it looks for.

use std::os::unix::fs::PermissionsExt as _;

use saga_runner::mdbx::environment::Environment;
use saga_runner::storage::{StorageError, tables};
use saga_runner_partition::storage::{ReadRows as _, WriteRows as _};

use super::*;
use crate::support::nats_server::Options;

/// The exit code, and the checks by name.
fn doctor(home: &Home, manifest: &Path, more: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = binary()
        .args(["doctor", "-o", "json", "--config"])
        .arg(manifest)
        .args(more)
        .current_dir(home.dir.path())
        .output()
        .expect("the binary starts");
    let told = text(&output.stderr);
    let shown: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
    (
        output.status.code(),
        shown["items"].as_array().expect("a list").clone(),
    )
}

/// The status of a check, and what it says.
fn of(checks: &[Value], name: &str) -> (String, String) {
    let found = checks.iter().find(|check| check["check"] == name);
    let found = found.unwrap_or_else(|| panic!("no check {name}: {checks:#?}"));
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    if found["status"] != "ok" {
        assert_ne!(text("fix"), "", "{name} says how to get rid of it: {found}");
    }
    (text("status"), text("detail"))
}

/// Asserts that the check fails and says this, and that the command says so by its exit code.
fn fails(home: &Home, manifest: &Path, name: &str, says: &str) {
    let (code, checks) = doctor(home, manifest, &[]);
    let (status, detail) = of(&checks, name);
    assert!(
        status == "fail" && detail.contains(says),
        "{name}: {status}: {detail}"
    );
    assert_eq!(code, Some(1), "{checks:#?}");
}

#[test]
fn a_fresh_home_is_well_and_stays_as_it_is() {
    let home = Home::new();
    let (code, checks) = doctor(&home, &home.path("manifest.yaml"), &[]);
    assert_eq!(code, Some(0), "{checks:#?}");
    for name in ["definitions", "secrets", "data folder", "disk", "fsync", "broker"] {
        assert_ne!(of(&checks, name).0, "fail", "{checks:#?}");
    }
    assert!(!home.path("data").exists(), "it creates nothing");
    let left: Vec<_> = std::fs::read_dir(home.dir.path()).expect("a folder").collect();
    assert_eq!(left.len(), 3, "{left:?}");
    let table = binary()
        .args(["doctor", "--config", "manifest.yaml"])
        .current_dir(home.dir.path())
        .output()
        .expect("the binary starts");
    let shown = text(&table.stdout);
    assert!(
        shown.contains("ok    definitions: 1 saga(s) and 0 effect(s) load\n"),
        "{shown}"
    );
}

#[test]
fn a_given_manifest_is_checked_whichever_process_the_environment_names() {
    let home = Home::new();
    let nobody = "http://127.0.0.1:1";
    let run = |more: &[&str]| {
        let mut command = binary();
        command.env("SAGA_RUNNER_URL", nobody).args(["doctor"]).args(more);
        let output = command
            .current_dir(home.dir.path())
            .output()
            .expect("the binary starts");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let manifest = ["--config", "manifest.yaml"];
    let (code, shown, errors) = run(&manifest);
    assert_eq!(code, Some(0), "{errors}");
    assert!(shown.contains("definitions: 1 saga(s)"), "{shown}");
    let (code, _, errors) = run(&[&manifest[..], &["--nats-monitor", nobody]].concat());
    assert_ne!(code, Some(64), "{errors}");
    let (code, _, errors) = run(&[&manifest[..], &["--url", nobody]].concat());
    assert_eq!(code, Some(69), "a flag counts: {errors}");
    let (code, _, errors) = run(&[]);
    assert_eq!(code, Some(69), "without a manifest the variable counts: {errors}");
    let (code, _, errors) = run(&["--nats-monitor", nobody]);
    assert!(code == Some(64) && errors.contains("--nats-monitor"), "{errors}");
}

#[test]
fn secrets_definitions_and_folders_that_cannot_be_used_are_told() {
    let home = Home::new();
    let secret = home.with(json!({"secrets": {"pay": {"env": "SR_TEST_NOT_SET"}}}));
    fails(&home, &secret, "secrets", "SR_TEST_NOT_SET is not set");
    let manifest = home.path("manifest.yaml");
    std::fs::write(home.path("sagas/bad.yaml"), "apiVersion: sagas/v1\nkind: Saga\n").expect("written");
    fails(&home, &manifest, "definitions", "bad.yaml");
    std::fs::remove_file(home.path("sagas/bad.yaml")).expect("removed");

    std::fs::write(home.path("data"), "a file").expect("written");
    fails(&home, &manifest, "data folder", "is not a folder");
    std::fs::remove_file(home.path("data")).expect("removed");
    std::fs::create_dir(home.path("data")).expect("created");
    std::fs::set_permissions(home.path("data"), std::fs::Permissions::from_mode(0o777)).expect("set");
    fails(&home, &manifest, "data folder", "mode 777");
    // The kernel's own files take no files of others.
    let nowhere = home.with(json!({"data_dir": "/proc/saga-runner"}));
    fails(&home, &nowhere, "fsync", "/proc");
}

#[test]
fn a_disk_without_room_is_told() {
    let home = Home::new();
    // In a namespace of its own a file system of 8 MiB can be mounted.
    let script = "mount -t tmpfs -o size=8m tmpfs small && exec \"$0\" doctor -o json --config manifest.yaml --data-dir small";
    std::fs::create_dir(home.path("small")).expect("created");
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_saga-runner"))
        .current_dir(home.dir.path())
        .env_remove("SAGA_RUNNER_CONFIG")
        .output()
        .expect("util-linux is there");
    let told = text(&output.stderr);
    if told.contains("unshare failed") || told.contains("permission denied") {
        // Machines may forbid it; the figures are those of a unit test, too.
        assert!(output.stdout.is_empty(), "{told}");
        return;
    }
    let shown: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
    let (status, detail) = of(shown["items"].as_array().expect("a list"), "disk");
    assert!(
        status == "fail" && detail.contains("MiB free"),
        "{status}: {detail}"
    );
    assert_eq!(output.status.code(), Some(1));
}

/// A saga whose effect nobody answers, so that its command stays.
const PAY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: pay
start: Pay.Go
key: {"Pay.*": event.data.id}
steps:
  charge:
    effect: charge
    with: {id: "${key}"}
    timeout: 1h
"#;
const CHARGE: &str = "apiVersion: sagas/v1\nkind: Effect\nname: charge\nretry: {attempts: 20, backoff: {initial: 10s}}\nhttp: {method: POST, url: \"http://127.0.0.1:1/charge\", body: \"${input}\"}\n";

#[test]
fn the_stored_state_is_checked_and_what_nothing_moves_on_is_named() {
    let mut home = Home::new();
    std::fs::write(home.path("sagas/pay.yaml"), PAY).expect("written");
    std::fs::write(home.path("effects/charge.yaml"), CHARGE).expect("written");
    let keys = home.manifest.as_object_mut().expect("an object");
    keys.insert("shards".to_owned(), json!(1));
    keys["http"]["accept_events"] = json!(true);
    home.write("manifest.yaml", &home.manifest);
    let runner = home.start();
    let address = home.manifest["http"]["listen"]
        .as_str()
        .expect("an address")
        .to_owned();
    let event = json!({"event_id": "e-1", "event_type": "Go", "aggregate_type": "Pay", "aggregate_id": "p-1",
        "sequence": 1, "schema_version": 1, "payload": {"id": "p-1"}, "metadata": {"correlation_id": "p-1"}});
    let answer = post(&address, "/v1/events", &event.to_string());
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    let begin = Instant::now();
    while !get(&address, "/v1/sagas/pay/instances/p-1").starts_with("HTTP/1.1 200") {
        assert!(begin.elapsed() < PATIENCE, "the order does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    let manifest = home.path("manifest.yaml");

    // While it runs its state is its own, and it is asked.
    let (code, checks) = doctor(&home, &manifest, &[]);
    let (status, detail) = of(&checks, "shard 0");
    assert!(
        status == "warn" && detail.contains("SR0201") && code == Some(0),
        "{checks:#?}"
    );
    assert_eq!(doctor(&home, &manifest, &["--deny-warnings"]).0, Some(1));
    let url = format!("http://{address}");
    let (code, checks) = doctor(&home, &manifest, &["--url", &url]);
    assert!(code == Some(0) && of(&checks, "ready").0 == "ok", "{checks:#?}");
    std::fs::write(home.path("sagas/bad.yaml"), "apiVersion: sagas/v1\nkind: Saga\n").expect("written");
    let _refused = post(&address, "/admin/reload", "");
    let (code, checks) = doctor(&home, &manifest, &["--url", &url]);
    assert!(
        code == Some(1) && of(&checks, "definitions").0 == "fail",
        "{checks:#?}"
    );
    std::fs::remove_file(home.path("sagas/bad.yaml")).expect("removed");
    assert_eq!(runner.stop(), Some(0));

    let (code, checks) = doctor(&home, &manifest, &[]);
    let (status, detail) = of(&checks, "shard 0");
    assert!(
        status == "ok" && detail.starts_with("1 live") && code == Some(0),
        "{checks:#?}"
    );
    // The command that the order waits for is gone.
    let folder = home.path("data/shard-0000");
    let environment = Environment::open(&folder, tables::NAMES, 64 << 30).expect("it opens");
    let removed = environment.write(|rows| {
        let mut keys = Vec::new();
        rows.scan(tables::OUTBOX, &[], &mut |key, _| {
            keys.push(key.to_vec());
            Ok(true)
        })?;
        for key in &keys {
            rows.delete(tables::OUTBOX, key)?;
        }
        Ok::<_, StorageError>(keys.len())
    });
    assert_eq!(removed.expect("written"), 1);
    drop(environment);
    fails(&home, &manifest, "shard 0", "has no row");
    // A start elsewhere finds no data where there was some.
    std::fs::rename(&folder, home.path("away")).expect("moved");
    fails(&home, &manifest, "shard 0", "its data is lost");
    std::fs::rename(home.path("away"), &folder).expect("moved");
    // Somebody else's data.
    let other = home.with(json!({"cluster": "other"}));
    fails(&home, &other, "cluster of the data", "shop");
}

/// The checks against a server.
fn at(home: &Home, url: &str, more: &Value) -> (Option<i32>, Vec<Value>) {
    let mut changes = json!({"broker": {"kind": "nats", "nats": {"urls": [url]}}});
    let keys = changes.as_object_mut().expect("an object");
    keys.extend(more.as_object().expect("an object").clone());
    doctor(home, &home.with(changes), &[])
}

#[test]
fn a_broker_that_is_away_too_old_or_without_jetstream_is_told() {
    let home = Home::new();
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    let away = json!({"kind": "nats", "nats": {"urls": [format!("nats://127.0.0.1:{port}")],
        "connect_timeout": "1s", "request_timeout": "1s"}});
    let (code, checks) = doctor(&home, &home.with(json!({"broker": away})), &[]);
    let (status, detail) = of(&checks, "broker");
    assert!(
        status == "fail"
            && detail.contains(&format!(
                "no connection to the broker at nats://127.0.0.1:{port} within"
            ))
            && code == Some(1),
        "{detail}"
    );

    let server = NatsServer::start_with(&Options {
        config: "accounts { without { users: [{user: u, password: p}] } }".to_owned(),
        ..Options::default()
    });
    let password = home.path("password");
    std::fs::write(&password, "p").expect("written");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).expect("set");
    let broker = json!({"broker": {"kind": "nats", "nats": {"urls": [server.url()], "user": "u", "password_file": password}}});
    let (code, checks) = doctor(&home, &home.with(broker), &[]);
    assert_eq!(of(&checks, "broker").0, "ok", "{checks:#?}");
    assert!(
        of(&checks, "jetstream").0 == "fail" && code == Some(1),
        "{checks:#?}"
    );

    let old = old_server();
    let (code, checks) = at(&home, &old, &json!({}));
    let (status, detail) = of(&checks, "broker");
    assert!(
        status == "fail" && detail.contains("SR0301") && code == Some(1),
        "{detail}"
    );
}

/// The address of what greets like a server of another time.
fn old_server() -> String {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let info = json!({"server_id": "OLD", "version": "2.9.10", "proto": 1, "host": "127.0.0.1",
                    "port": 4222, "headers": true, "max_payload": 1_048_576, "jetstream": true});
                let lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
                // It may be gone.
                let _told = stream.write_all(format!("INFO {info}\r\n").as_bytes());
                for line in lines.map_while(Result::ok) {
                    if line.starts_with("PING") && stream.write_all(b"PONG\r\n").is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

/// Asks the server's API for something, as the owner of the streams would.
fn of_server(server: &NatsServer, operation: &str, config: &Value) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = async_nats::connect(server.url()).await.expect("connected");
        let answer = client
            .request(format!("$JS.API.STREAM.{operation}"), config.to_string().into())
            .await
            .expect("an answer");
        let answer: Value = serde_json::from_slice(&answer.payload).expect("JSON");
        assert!(answer["error"].is_null(), "{answer}");
    });
}

#[test]
fn streams_that_differ_are_away_or_could_drop_events_are_told() {
    let home = Home::new();
    let server = NatsServer::start_with(&Options {
        monitored: true,
        sync_interval: Some("10s"),
        ..Options::default()
    });
    let (code, checks) = at(&home, &server.url(), &json!({}));
    assert_eq!(code, Some(0), "the first start creates them: {checks:#?}");
    let by_hand = json!({"streams": {"manage": false}});
    let (code, checks) = at(&home, &server.url(), &by_hand);
    for name in [
        "stream AGGREGATE_EVENTS",
        "stream WORKFLOW_COMMANDS",
        "bucket WORKFLOW_CLUSTER",
    ] {
        assert_eq!(of(&checks, name).0, "fail", "{checks:#?}");
    }
    assert_eq!(code, Some(1));

    let broker = json!({"broker": {"kind": "nats", "nats": {"urls": [server.url()]}}});
    let manifest = home.with(broker);
    let apply = binary()
        .args(["streams", "apply", "--config"])
        .arg(&manifest)
        .output();
    assert_eq!(apply.expect("the binary starts").status.code(), Some(0));
    let (code, checks) = doctor(&home, &manifest, &[]);
    assert_eq!(code, Some(0), "{checks:#?}");
    assert_eq!(
        of(&checks, "stream AGGREGATE_EVENTS"),
        ("ok".to_owned(), "has aggregate.>".to_owned())
    );
    assert_eq!(of(&checks, "clock").0, "ok");
    let (status, detail) = of(&checks, "sync");
    assert!(status == "warn" && detail.contains("not known"), "{detail}");
    let (_, checks) = doctor(&home, &manifest, &["--nats-monitor", &server.monitor()]);
    let (status, detail) = of(&checks, "sync");
    assert!(status == "warn" && detail.contains("every 10 s"), "{detail}");

    of_server(
        &server,
        "UPDATE.AGGREGATE_EVENTS",
        &json!({"name": "AGGREGATE_EVENTS", "subjects": ["aggregate.>"],
        "max_msgs": 100, "max_age": 60_000_000_000_u64}),
    );
    fails(&home, &manifest, "unread events", "max_msgs is 100");
    of_server(
        &server,
        "UPDATE.AGGREGATE_EVENTS",
        &json!({"name": "AGGREGATE_EVENTS", "subjects": ["other.>"]}),
    );
    fails(&home, &manifest, "stream AGGREGATE_EVENTS", "aggregate.>");
    of_server(
        &server,
        "UPDATE.AGGREGATE_EVENTS",
        &json!({"name": "AGGREGATE_EVENTS", "subjects": ["aggregate.>"]}),
    );

    // No clock is that exact.
    let exact = home.with(json!({"clock_difference_max": "0ms",
        "broker": {"kind": "nats", "nats": {"urls": [server.url()]}}}));
    let (_, checks) = doctor(&home, &exact, &[]);
    assert!(of(&checks, "clock").1.contains("s "), "{checks:#?}");

    let synced = NatsServer::start_with(&Options {
        monitored: true,
        sync_interval: Some("always"),
        ..Options::default()
    });
    let always = home.with(json!({"broker": {"kind": "nats", "nats": {"urls": [synced.url()]}}}));
    let (_, checks) = doctor(&home, &always, &["--nats-monitor", &synced.monitor()]);
    assert_eq!(of(&checks, "sync").0, "ok", "{checks:#?}");
}

#[test]
fn an_archive_that_is_full_or_whose_stream_could_drop_entries_is_told() {
    let home = Home::new();
    let server = NatsServer::start();
    let archive = json!({"storage": {"archive": {"max_age": "1h", "max_bytes": 2_000}}});
    let (code, checks) = at(&home, &server.url(), &archive);
    let (status, detail) = of(&checks, "stream WORKFLOW_ARCHIVE");
    assert!(
        status == "ok" && detail.contains("the first start creates it") && code == Some(0),
        "{detail}"
    );
    let manifest = home.with(json!({"storage": archive["storage"],
        "broker": {"kind": "nats", "nats": {"urls": [server.url()]}}}));
    let streams = |verb: &str| {
        let output = binary()
            .args(["streams", verb, "--config"])
            .arg(&manifest)
            .output();
        output.expect("the binary starts").status.code()
    };
    assert_eq!(streams("apply"), Some(0));
    let (_, checks) = doctor(&home, &manifest, &[]);
    let told = "0 entries, 0 of 2000 bytes; they are kept for 3600 s (storage.archive.max_age)";
    assert_eq!(of(&checks, "archive"), ("ok".to_owned(), told.to_owned()));
    assert_eq!(of(&checks, "stream WORKFLOW_ARCHIVE").0, "ok");
    assert_eq!(
        of(&checks, "instances for the archive"),
        (
            "ok".to_owned(),
            "no ended instance waits for the archive".to_owned()
        )
    );

    // Whoever changes the stream lets entries go earlier than the manifest says.
    of_server(
        &server,
        "UPDATE.WORKFLOW_ARCHIVE",
        &json!({"name": "WORKFLOW_ARCHIVE", "subjects": ["runner.shop.archive.>"],
        "max_age": 600_000_000_000_u64, "discard": "old", "max_bytes": 100_000}),
    );
    fails(
        &home,
        &manifest,
        "stream WORKFLOW_ARCHIVE",
        "max_age is 600000000000, expected 0",
    );
    fails(
        &home,
        &manifest,
        "stream WORKFLOW_ARCHIVE",
        "discard is \"old\", expected \"new\"",
    );
    assert_eq!((streams("check"), streams("apply")), (Some(1), Some(0)));
    let (_, checks) = doctor(&home, &manifest, &[]);
    assert_eq!(of(&checks, "stream WORKFLOW_ARCHIVE").0, "ok", "{checks:#?}");

    let entry = |bytes: usize| {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let client = async_nats::connect(server.url()).await.expect("connected");
            let stored = client.request("runner.shop.archive.acme.tally.t-1", vec![b'x'; bytes].into());
            let stored = stored.await.expect("an answer");
            assert!(text(&stored.payload).contains("WORKFLOW_ARCHIVE"), "{stored:?}");
        });
    };
    entry(1_800);
    let (_, checks) = doctor(&home, &manifest, &[]);
    let (status, detail) = of(&checks, "archive");
    assert!(
        status == "warn" && detail.starts_with("1 entries, 1"),
        "{status}: {detail}"
    );
    entry(200);
    fails(&home, &manifest, "archive", "of 2000 bytes");
}

#[test]
fn events_that_were_dropped_before_a_shard_read_them_are_told() {
    let mut home = Home::new();
    let server = NatsServer::start();
    home.manifest["broker"] = json!({"kind": "nats", "nats": {"urls": [server.url()]}});
    home.manifest["shards"] = json!(1);
    home.write("manifest.yaml", &home.manifest);
    assert_eq!(home.start().stop(), Some(0));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = async_nats::connect(server.url()).await.expect("connected");
        for _ in 0..3 {
            let stored = client
                .request("aggregate.Other.x", "{}".into())
                .await
                .expect("an answer");
            assert!(text(&stored.payload).contains("AGGREGATE_EVENTS"), "{stored:?}");
        }
    });
    of_server(&server, "PURGE.AGGREGATE_EVENTS", &json!({"seq": 3}));
    fails(
        &home,
        &home.path("manifest.yaml"),
        "positions of shard 0",
        "AGGREGATE_EVENTS begins at 3",
    );
}

/// The address of a server whose clock, as it tells it, is a hundred years ahead: the year is changed on its way.
fn in_another_century(server: &NatsServer) -> String {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    const YEAR: &[u8] = b"\"ts\":\"2";
    let target = server.url().trim_start_matches("nats://").to_owned();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&target) else {
                return;
            };
            let halves = |stream: &TcpStream| {
                (
                    stream.try_clone().expect("a socket"),
                    stream.try_clone().expect("a socket"),
                )
            };
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (halves(&client), halves(&server));
            std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
            std::thread::spawn(move || {
                let (mut bytes, mut seen) = (vec![0; 4096], 0);
                while let Ok(count @ 1..) = from_server.read(&mut bytes) {
                    for byte in &mut bytes[..count] {
                        // Behind the first digit of the year comes the one of the century.
                        if seen == YEAR.len() {
                            *byte += 1;
                            seen = 0;
                        } else if *byte == YEAR[seen] {
                            seen += 1;
                        } else {
                            seen = usize::from(*byte == YEAR[0]);
                        }
                    }
                    if to_client.write_all(&bytes[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

#[test]
fn a_clock_that_differs_from_the_brokers_is_told() {
    let home = Home::new();
    let server = NatsServer::start();
    let (_, made) = at(&home, &server.url(), &json!({"streams": {"manage": true}}));
    assert!(
        !made.iter().any(|check| check["check"] == "clock"),
        "no stream tells the time yet"
    );
    let broker = json!({"broker": {"kind": "nats", "nats": {"urls": [server.url()]}}});
    let manifest = home.with(broker);
    let applied = binary()
        .args(["streams", "apply", "--config"])
        .arg(&manifest)
        .output()
        .expect("the binary starts");
    assert_eq!(applied.status.code(), Some(0), "{}", text(&applied.stderr));
    let (_, checks) = at(&home, &server.url(), &json!({}));
    assert_eq!(of(&checks, "clock").0, "ok", "{checks:#?}");
    let (code, checks) = at(&home, &in_another_century(&server), &json!({}));
    let (status, detail) = of(&checks, "clock");
    assert!(
        status == "fail" && detail.contains("behind the broker's") && code == Some(1),
        "{detail}"
    );
}
