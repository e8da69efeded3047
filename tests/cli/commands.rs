//! What commands print, where they go, and what they ask before something is lost.

use super::*;

/// A home whose runner has the tenants acme and globex.
fn running() -> (Home, Runner, String) {
    let mut home = Home::new();
    home.manifest["tenants"] = json!(["acme", "globex"]);
    home.write("manifest.yaml", &home.manifest);
    let runner = home.start();
    let address = home.manifest["http"]["listen"].as_str().expect("an address");
    let url = format!("http://{address}");
    (home, runner, url)
}

fn told(output: &Output) -> (Option<i32>, String, String) {
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_list_has_the_same_data_in_every_format() {
    let (_home, runner, url) = running();
    let shards = |more: &[&str]| {
        let output = call(&[&["shard", "list", "--url", &url], more].concat());
        let (code, shown, errors) = told(&output);
        assert_eq!(code, Some(0), "{errors}");
        shown
    };
    let json: Value = serde_json::from_str(&shards(&["-o", "json"])).expect("JSON");
    let items = json["items"].as_array().expect("items");
    assert_eq!(items.len(), 2, "{json}");
    let alias: Value = serde_json::from_str(&shards(&["--json"])).expect("JSON");
    assert_eq!(alias["items"].as_array().map(Vec::len), Some(2));
    let lines = shards(&["-o", "jsonl"]);
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let numbers =
        |items: &[Value]| -> Vec<Value> { items.iter().map(|item| item["shard"].clone()).collect() };
    assert_eq!(numbers(&lines), numbers(items));
    let yaml = shards(&["-o", "yaml"]);
    assert!(
        yaml.starts_with("items:") && yaml.contains("state: running"),
        "{yaml}"
    );
    for format in ["table", "wide"] {
        let table = shards(&["-o", format]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("SHARD"), "{table}");
        assert_eq!(lines.len(), 3, "{table}");
        assert!(
            !table.contains('\u{1b}'),
            "no colours where nobody looks: {table}"
        );
    }
    let both = call(&["shard", "list", "--json", "-o", "yaml"]);
    assert_eq!(both.status.code(), Some(64));

    for command in [
        &["effect", "list"][..],
        &["breaker", "list"],
        &["definition", "list"],
        &["schedule", "list", "--tenant", "acme"],
        &["instance", "list", "tally", "--tenant", "acme"],
    ] {
        let output = call(&[command, &["--json", "--url", &url]].concat());
        let (code, shown, errors) = told(&output);
        assert_eq!(code, Some(0), "{command:?}: {errors}");
        let shown: Value =
            serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(shown["items"].is_array(), "{command:?}: {shown}");
    }
    assert_eq!(runner.stop(), Some(0));
}

#[test]
fn an_answer_that_lacks_a_closed_shard_says_so_once_in_every_format() {
    let (_home, runner, url) = running();
    let (code, shown, errors) = told(&call(&["definition", "list", "-o", "json", "--url", &url]));
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(!shown.contains("absent_shards"), "{shown}");
    let (code, _, errors) = told(&call(&["shard", "close", "1", "--url", &url]));
    assert_eq!(code, Some(0), "{errors}");
    for command in [
        &["instance", "list", "--tenant", "acme"][..],
        &["instance", "count", "--tenant", "acme"],
        &["instance", "count", "--by", "phase", "--tenant", "acme"],
        &["timer", "list", "--tenant", "acme"],
        &["outbox", "list", "--tenant", "acme"],
        &["dead-letter", "list", "--tenant", "acme"],
        &["dead-letter", "count", "--tenant", "acme"],
        &[
            "job",
            "start",
            "pause",
            "--saga",
            "tally",
            "--reason",
            "x",
            "--dry-run",
            "--tenant",
            "acme",
        ],
        &["definition", "list"],
    ] {
        for format in ["table", "wide", "json", "jsonl", "yaml"] {
            let (code, shown, errors) = told(&call(&[command, &["-o", format, "--url", &url]].concat()));
            assert_eq!(code, Some(0), "{command:?} {format}: {errors}");
            let warnings = errors
                .lines()
                .filter(|line| line.starts_with("warning: shard 1 is absent"));
            assert_eq!(warnings.count(), 1, "{command:?} {format}: {errors}");
            if format == "json" {
                let shown: Value = serde_json::from_str(&shown).expect("JSON");
                assert_eq!(shown["absent_shards"], json!([1]), "{command:?}: {shown}");
            }
        }
    }
    assert_eq!(runner.stop(), Some(0));
}

#[test]
fn a_drain_is_waited_for_until_the_process_has_ended() {
    let (_home, mut runner, url) = running();
    let (code, shown, errors) = told(&call(&["drain", "--wait", "-o", "json", "--url", &url]));
    assert_eq!(code, Some(0), "{errors}");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown, json!({"draining": true, "began_now": true, "ended": true}));
    assert!(errors.contains("the process has ended"), "{errors}");
    let begin = Instant::now();
    while runner.0.try_wait().expect("a child").is_none() {
        assert!(begin.elapsed() < PATIENCE, "it has not ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (code, ..) = told(&call(&["drain", "--url", &url]));
    assert_eq!(code, Some(69), "nobody answers");
}

#[test]
fn a_reload_prints_what_changed_and_every_finding() {
    let (home, runner, url) = running();
    let (code, _, errors) = told(&call(&["reload", "--url", &url]));
    assert!(code == Some(0) && errors.contains("nothing changed"), "{errors}");
    std::fs::write(
        home.path("sagas/tally.yaml"),
        TALLY.replace("{sum: 0}", "{sum: 1}"),
    )
    .expect("written");
    let (code, shown, errors) = told(&call(&["reload", "--url", &url]));
    assert!(
        code == Some(0) && shown.starts_with("tally changed from "),
        "{shown}{errors}"
    );
    let hash = |index: usize| shown.split_whitespace().nth(index).expect("a hash").to_owned();
    let (from, to) = (hash(3), hash(5));
    let (code, shown, errors) = told(&call(&["definition", "diff", &to, &to, "--url", &url]));
    assert_eq!((code, shown.as_str()), (Some(0), ""), "{errors}");
    let file = home.path("sagas/tally.yaml");
    std::fs::write(&file, TALLY).expect("written");
    let path = file.to_str().expect("UTF-8");
    let (code, shown, errors) = told(&call(&["definition", "diff", &to, "--file", path, "--url", &url]));
    assert_eq!(code, Some(1), "{errors}");
    assert!(
        shown.contains("-state: {init: {sum: 1}}") && shown.contains("+state: {init: {sum: 0}}"),
        "{from}: {shown}"
    );
    std::fs::write(&file, "kind: Saga\n").expect("written");
    let (code, _, errors) = told(&call(&["reload", "--url", &url]));
    assert!(code == Some(65) && errors.contains("tally.yaml:"), "{errors}");
    assert_eq!(runner.stop(), Some(0));
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_profile() {
    let (home, runner, url) = running();
    let folder = home.path("profiles");
    std::fs::create_dir(&folder).expect("created");
    let wrong = "http://127.0.0.1:1";
    let profiles = format!(
        "default: here\nprofiles:\n  here: {{url: \"{url}\", tenant: acme}}\n  gone: {{url: \"{wrong}\"}}\n  far: {{url: \"http://far.example:1\", token_file: token}}\n"
    );
    std::fs::write(folder.join("config.yaml"), profiles).expect("written");
    std::fs::write(folder.join("token"), "t0ken\n").expect("written");
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = binary();
        command.env("SAGA_RUNNER_HOME", &folder);
        command.envs(variables.iter().copied()).args(arguments);
        told(&command.output().expect("the binary starts"))
    };
    let list = ["schedule", "list"];
    let (code, _, errors) = run(&list, &[]);
    assert_eq!(code, Some(0), "address and tenant of the default: {errors}");
    let by_environment = [("SAGA_RUNNER_URL", wrong)];
    assert_eq!(run(&list, &by_environment).0, Some(69));
    let flags = ["schedule", "list", "--url", &url, "--tenant", "globex"];
    assert_eq!(run(&flags, &by_environment).0, Some(0));
    assert_eq!(run(&["schedule", "list", "--profile", "gone"], &[]).0, Some(69));
    let (code, _, errors) = run(&["schedule", "list", "--profile", "far"], &[]);
    assert!(code == Some(64) && errors.contains("by https only"), "{errors}");
    assert_eq!(run(&["schedule", "list", "--profile", "nobody"], &[]).0, Some(64));

    assert_eq!(run(&["profile", "use", "nobody"], &[]).0, Some(64));
    let (code, shown, errors) = run(&["profile", "use", "gone", "-o", "json"], &[]);
    assert_eq!(code, Some(0), "{errors}");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown, json!({"name": "gone", "chosen": true}));
    assert_eq!(run(&list, &[]).0, Some(69));
    let (code, shown, _) = run(&["profile", "list", "-o", "json"], &[]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(code, Some(0));
    assert_eq!(shown["items"][2]["chosen"], false, "{shown}");
    assert!(!shown.to_string().contains("t0ken"), "{shown}");
    assert_eq!(runner.stop(), Some(0));
}

#[test]
fn an_empty_list_of_a_saga_that_is_not_there_says_so_and_a_refusal_has_its_code() {
    let (_home, runner, url) = running();
    let list = |kind: &str, saga: &[&str]| {
        let command = [&[kind, "list"], saga, &["--tenant", "acme", "--url", &url]].concat();
        let (code, _, errors) = told(&call(&command));
        assert_eq!(code, Some(0), "{command:?}: {errors}");
        errors
    };
    for (kind, saga) in [
        ("instance", &["talli"][..]),
        ("dead-letter", &["--saga", "talli"]),
    ] {
        let errors = list(kind, saga);
        assert!(errors.contains("no saga has the name talli"), "{kind}: {errors}");
    }
    let errors = list("instance", &["tally"]);
    assert!(!errors.contains("no saga has"), "{errors}");
    let show = [
        "instance", "show", "tally", "t-1", "--tenant", "acme", "--url", &url,
    ];
    let (code, _, errors) = told(&call(&show));
    assert!(code == Some(4) && errors.contains("[SR0502]"), "{errors}");
    assert!(
        errors.contains("of tenant acme") && !errors.contains("no saga has"),
        "{errors}"
    );
    for verb in ["show", "why", "history", "wait", "watch", "cancel"] {
        let (code, _, errors) = told(&call(&[
            "instance", verb, "talli", "t-1", "--tenant", "acme", "--url", &url,
        ]));
        assert_eq!(code, Some(4), "{verb}: {errors}");
        assert!(errors.contains("no saga has the name talli"), "{verb}: {errors}");
    }
    let (code, _, errors) = told(&call(&[
        "shard",
        "rebind",
        "--stream",
        "AGGREGATE_EVENTS",
        "--dry-run",
        "--url",
        &url,
    ]));
    assert!(
        code == Some(5) && errors.contains("no shard that is open in this process needs it"),
        "{errors}"
    );
    assert_eq!(runner.stop(), Some(0));
}

/// The address of a server that gives every request this answer, and is no runner.
fn answering(answer: &'static str) -> String {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut head = [0; 4_096];
            let read = stream.read(&mut head).expect("a request");
            assert!(read > 0, "a request");
            stream.write_all(answer.as_bytes()).expect("answered");
        }
    });
    format!("http://{address}")
}

#[test]
fn another_server_than_a_runner_is_told_from_a_runner_without_the_instance() {
    for (answer, code) in [
        (
            "HTTP/1.1 404 Not Found\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>",
            69,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>",
            69,
        ),
        (
            "HTTP/1.1 301 Moved Permanently\r\nlocation: https://far/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            64,
        ),
    ] {
        let url = answering(answer);
        let show = [
            "instance", "show", "order", "o-1", "--tenant", "acme", "--url", &url,
        ];
        let (found, shown, errors) = told(&call(&show));
        assert_eq!((found, shown.as_str()), (Some(code), ""), "{errors}");
        assert!(errors.contains(&url), "{errors}");
    }
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let mut command = binary();
    for name in ["ADMIN_URL", "PROFILE", "TENANT", "TOKEN", "TOKEN_FILE"] {
        command.env(format!("SAGA_RUNNER_{name}"), "");
    }
    command.args(["shard", "list", "--url", "http://127.0.0.1:1"]);
    let (code, _, errors) = told(&command.output().expect("the binary starts"));
    assert_eq!(code, Some(69), "{errors}");
}

#[test]
fn a_token_is_never_a_flag() {
    let output = call(&["shard", "list", "--token", "secret"]);
    assert_eq!(output.status.code(), Some(64));
    let mut command = binary();
    command
        .env("SAGA_RUNNER_TOKEN", "two words")
        .args(["shard", "list"]);
    let (code, _, errors) = told(&command.output().expect("the binary starts"));
    assert!(code == Some(78) && !errors.contains("two words"), "{errors}");
}

#[test]
fn a_token_is_drawn_for_people_and_for_programs() {
    let new = ["token", "new", "ann", "--roles", "viewer@acme"];
    let (code, shown, errors) = told(&call(&new));
    assert!(code == Some(0) && shown.lines().count() == 2, "{shown}{errors}");
    let (code, shown, errors) = told(&call(&[&new[..], &["--json"]].concat()));
    assert_eq!(code, Some(0), "{errors}");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown["name"], "ann");
    let texts = ["token", "line"].map(|key| shown[key].as_str().unwrap_or_default());
    assert!(texts.iter().all(|text| !text.is_empty()), "only the keys differ");
}

#[test]
fn destructive_commands_ask_for_confirmation() {
    let nobody = "http://127.0.0.1:1";
    for arguments in [
        &[
            "instance", "cancel", "tally", "t-1", "--mode", "abandon", "--tenant", "acme",
        ][..],
        &[
            "instance", "kill", "tally", "t-1", "--reason", "x", "--tenant", "acme",
        ],
        &["instance", "restart", "tally", "t-1", "--tenant", "acme"],
        &["instance", "retry", "tally", "t-1", "--ended", "--tenant", "acme"],
        &["shard", "discard", "0", "--all", "--reason", "x"],
        &["shard", "accept-gap", "--stream", "S", "--reason", "x"],
        &["shard", "rebind", "--stream", "S", "--reason", "x"],
    ] {
        let (code, _, errors) = told(&call(&[arguments, &["--url", nobody]].concat()));
        assert!(
            code == Some(64) && errors.contains("--yes"),
            "{arguments:?}: {errors}"
        );
        let (code, _, errors) = told(&call(&[arguments, &["--yes", "--url", nobody]].concat()));
        assert_eq!(code, Some(69), "it goes to the runner: {errors}");
    }
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, shown, errors) = told(&call(&["completions", shell]));
        assert!(
            code == Some(0) && shown.contains("accept-gap"),
            "{shell}: {errors}"
        );
    }
    let (code, page, _) = told(&call(&["man"]));
    assert!(code == Some(0) && page.contains(".TH saga-runner"), "{page}");
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("man");
    let (code, ..) = told(&call(&["man", "--dir", folder.to_str().expect("UTF-8")]));
    assert_eq!(code, Some(0));
    assert!(folder.join("saga-runner-instance-list.1").exists());
}

/// Commands that print no data, or whose output is a text.
const NO_FORMATS: &[&str] = &[
    "bench",
    "completions",
    "demo",
    "demo-upstream",
    "dev",
    "graph",
    "init",
    "instance start",
    "man",
    "replay",
    "run",
    "schema",
    "test",
];

/// Commands that ask a runner for a change.
const CHANGES: &[&str] = &[
    "breaker auto",
    "breaker close",
    "breaker open",
    "dead-letter discard",
    "dead-letter edit",
    "dead-letter retry",
    "definition migrate",
    "definition reload",
    "drain",
    "instance cancel",
    "instance cancel-timer",
    "instance delete",
    "instance fire-timer",
    "instance kill",
    "instance migrate",
    "instance pause",
    "instance resolve",
    "instance restart",
    "instance resume",
    "instance retry",
    "instance signal",
    "instance skip",
    "instance start",
    "instance try-now",
    "job pause",
    "job resume",
    "job start",
    "job stop",
    "reload",
    "schedule pause",
    "schedule resume",
    "shard accept-gap",
    "shard backup",
    "shard close",
    "shard discard",
    "shard open",
    "shard rebind",
    "shard release",
];

/// The commands without commands below them, by their words.
fn leaves(command: &clap::Command, path: &str) -> Vec<(String, clap::Command)> {
    let mut found = Vec::new();
    for inner in command.get_subcommands() {
        let path = format!("{path} {}", inner.get_name()).trim().to_owned();
        if inner.has_subcommands() {
            found.extend(leaves(inner, &path));
        } else {
            found.push((path, inner.clone()));
        }
    }
    found
}

fn argument<'c>(command: &'c clap::Command, id: &str) -> Option<&'c clap::Arg> {
    command.get_arguments().find(|argument| argument.get_id() == id)
}

#[test]
fn every_command_that_prints_data_prints_it_in_every_format() {
    for (path, command) in leaves(&saga_runner::cli::description(), "") {
        let has = argument(&command, "output").is_some();
        assert_ne!(has, NO_FORMATS.contains(&path.as_str()), "{path}");
    }
}

#[test]
fn every_command_that_asks_for_a_change_says_who_asks_and_why() {
    for (path, command) in leaves(&saga_runner::cli::description(), "") {
        let names_who = argument(&command, "by").is_some_and(|by| by.get_env().is_some());
        let changes = CHANGES.contains(&path.as_str());
        assert_eq!(names_who, changes, "{path}");
        assert!(!changes || argument(&command, "reason").is_some(), "{path}");
    }
}

const PAID: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: paid
start: Paid.Opened
key: {"Paid.*": event.data.id}
steps:
  charge: {effect: charge, with: {id: "${key}"}}
"#;

/// An effect with schemas, and one of its fields of this type.
fn charge(of: &str) -> String {
    format!(
        "apiVersion: sagas/v1\nkind: Effect\nname: charge\ninput: {{type: object, required: [id], properties: {{id: {{type: string}}}}}}\n\
         output: {{type: object, required: [id], properties: {{id: {{type: string}}, more: {{type: {of}}}}}}}\n\
         transform: {{}}\nresult: {{id: \"${{input.id}}\"}}\n"
    )
}

#[test]
fn a_version_whose_effects_have_schemas_is_shown_and_compared_by_its_file() {
    let mut home = Home::new();
    home.manifest["http"]["accept_events"] = json!(true);
    home.write("manifest.yaml", &home.manifest);
    let file = home.path("sagas/paid.yaml");
    std::fs::write(&file, PAID).expect("written");
    std::fs::write(home.path("effects/charge.yaml"), charge("string")).expect("written");
    let runner = home.start();
    let url = home.url();
    // An instance keeps the version after the reload.
    let address = home.manifest["http"]["listen"].as_str().expect("an address");
    let event = json!({"event_id": "e-1", "event_type": "Opened", "aggregate_type": "Paid", "aggregate_id": "p-1",
        "sequence": 1, "schema_version": 1, "payload": {"id": "p-1"}, "metadata": {"correlation_id": "p-1"}});
    let answer = post(address, "/v1/events", &event.to_string());
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    let begin = Instant::now();
    while !get(address, "/v1/sagas/paid/instances/p-1").contains("\"completed\"") {
        assert!(begin.elapsed() < PATIENCE, "the order does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let definition = |words: &[&str]| {
        told(&call(
            &[&["definition"][..], words, &["--url", url.as_str()]].concat(),
        ))
    };
    let (_, listed, errors) = definition(&["list", "--saga", "paid", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap_or_else(|error| panic!("{error}: {errors}"));
    let from = listed["items"][0]["hash"].as_str().expect("a hash").to_owned();

    let (code, shown, errors) = definition(&["show", &from]);
    assert_eq!((code, shown.as_str()), (Some(0), PAID), "{errors}");
    assert!(errors.contains("effect charge: --schemas"), "{errors}");
    let (_, shown, _) = definition(&["show", &from, "--schemas"]);
    let comments = shown.strip_prefix(PAID).expect("the file first");
    assert!(comments.contains("# effect charge\n"), "{shown}");
    let (_, shown, _) = definition(&["show", &from, "-o", "json"]);
    let whole: Value = serde_json::from_str(&shown).expect("JSON");
    let kept = whole["source"].as_str().expect("a text");
    assert!(kept.starts_with("{\"archive\":1,"), "{kept}");

    let path = file.to_str().expect("UTF-8");
    let (code, shown, errors) = definition(&["diff", &from, "--file", path]);
    assert_eq!((code, shown.as_str()), (Some(0), ""), "{errors}");
    std::fs::write(home.path("effects/charge.yaml"), charge("integer")).expect("written");
    let (code, shown, errors) = told(&call(&["reload", "--url", &url]));
    assert_eq!(code, Some(0), "{shown}{errors}");
    let paid = shown.lines().find(|line| line.starts_with("paid changed from "));
    let paid = paid.unwrap_or_else(|| panic!("{shown}"));
    let to = paid.split_whitespace().nth(5).expect("a hash");
    let (code, shown, errors) = definition(&["diff", &from, to]);
    assert_eq!(
        (code, shown.as_str()),
        (Some(1), "effect charge differs in output\n"),
        "{errors}"
    );
    let (code, shown, errors) = definition(&["diff", &from, &from]);
    assert_eq!((code, shown.as_str()), (Some(0), ""), "{errors}");
    assert_eq!(runner.stop(), Some(0));
}
