//! What is shipped for operators fits the runner: commands, variables and keys exist. Dashboards and alerts: `monitoring.rs`; the
//! chart: `chart`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use saga_runner::config::{Manifest, Overrides, keys};
use serde_json::Value;

use crate::docs::{files, read, root};

const CHART: &str = "deploy/helm/saga-runner";
const COMPOSE: &str = "docker-compose.yml";
pub const RUNBOOKS: &str = "docs/runbooks.md";

pub fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("{value} has no text {key}"))
}

/// Every file that operators are given, and the pages about them.
fn shipped() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for extension in ["yaml", "json", "tpl", "txt", "service", "env", "conf", "alloy"] {
        found.extend(files(&root().join("deploy"), extension));
    }
    found.extend([COMPOSE, "Dockerfile", RUNBOOKS, "docs/deploying.md"].map(|path| root().join(path)));
    found
}

/// What stands behind each `before` in a text, as long as `wanted` holds.
pub fn behind<'t>(text: &'t str, before: &str, wanted: impl Fn(char) -> bool) -> BTreeSet<&'t str> {
    let parts = text.split(before).skip(1);
    parts
        .map(|part| part.split(|c| !wanted(c)).next().unwrap_or_default())
        .collect()
}

#[test]
fn variables_exist() {
    let of_keys = keys::all();
    let of_keys = of_keys.iter().filter_map(|key| keys::variable(&key.path));
    let mut known: BTreeSet<String> = of_keys
        .filter_map(|name| Some(name.strip_prefix(keys::PREFIX)?.to_owned()))
        .collect();
    // The other names of keys.
    known.extend(["LISTEN", "ADMIN_LISTEN", "LOG", "NATS_URL", "NATS_CONTEXT"].map(str::to_owned));
    for file in files(&root().join("src"), "rs") {
        let code = read(&file);
        let found = behind(&code, "env = \"SAGA_RUNNER_", |c| {
            c.is_ascii_uppercase() || c == '_'
        });
        known.extend(found.into_iter().map(str::to_owned));
    }
    for file in shipped() {
        let text = read(&file);
        for name in behind(&text, "SAGA_RUNNER_", |c| c.is_ascii_uppercase() || c == '_') {
            // What Kubernetes would set.
            let is_known = known.contains(name) || name == "PORT";
            assert!(is_known, "{}: SAGA_RUNNER_{name} is not read", file.display());
        }
    }
}

/// The help of a command, and whether it has commands of its own.
fn help(words: &[&str]) -> Option<(String, bool)> {
    let output = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args(words)
        .arg("--help")
        .output()
        .expect("the runner starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let has_commands = text.contains("\nCommands:\n");
    output.status.success().then_some((text, has_commands))
}

/// What is wrong with a command line that begins with the name of the runner.
fn command_mistake(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    words.next();
    let words: Vec<&str> = words.collect();
    let is_verb = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let first = words
        .first()
        .copied()
        .filter(|word| is_verb(word) && !word.starts_with('-'))?;
    let Some((mut told, has_commands)) = help(&[first]) else {
        return Some(format!("{first} is not a command"));
    };
    if let Some(second) = words.get(1).copied().filter(|_| has_commands) {
        let Some((of_second, _)) = help(&[first, second]) else {
            return Some(format!("{first} {second} is not a command"));
        };
        told = of_second;
    }
    let flags = words.iter().filter_map(|word| word.strip_prefix("--"));
    let unknown = flags.filter(|flag| !told.contains(&format!("--{flag}")));
    let unknown: Vec<&str> = unknown.collect();
    (!unknown.is_empty()).then(|| format!("unknown flags {unknown:?}"))
}

#[test]
fn commands_of_the_pages_exist() {
    let mut looked_at = BTreeSet::new();
    for page in [RUNBOOKS, "docs/deploying.md"] {
        let text = read(page);
        for (at, part) in text.split("```").enumerate() {
            let snippets: Vec<&str> = match (at % 2, part.strip_prefix("sh\n")) {
                (0, _) => part.split('`').skip(1).step_by(2).collect(),
                (_, Some(block)) => block.lines().collect(),
                _ => Vec::new(),
            };
            for snippet in snippets {
                let snippet = snippet.split(" #").next().unwrap_or_default();
                let Some((before, _)) = snippet.split_once("saga-runner ") else {
                    continue;
                };
                if !before.is_empty() && !before.ends_with([' ', '/']) {
                    continue;
                }
                let line = &snippet[before.len()..];
                if looked_at.insert(line.to_owned()) {
                    assert_eq!(command_mistake(line), None, "{page}: {line}");
                }
            }
        }
    }
    assert!(looked_at.len() > 20, "{looked_at:?}");
    assert!(command_mistake("saga-runner shard mend 3").is_some());
    assert!(command_mistake("saga-runner shard list --no-such-flag").is_some());
}

#[test]
fn every_file_parses() {
    for path in files(&root().join("deploy"), "yaml") {
        if !path.starts_with(root().join(CHART).join("templates")) {
            yaml(path.to_str().expect("a UTF-8 path"));
        }
    }
}

#[test]
fn compose_names_what_is_there() {
    let compose = yaml(COMPOSE);
    let services = compose["services"].as_object().expect("services");
    let volumes = compose["volumes"].as_object().expect("volumes");
    for (name, service) in services {
        let image = text(service, "image");
        let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
        let is_pinned = tag.chars().filter(|c| *c == '.').count() >= 2;
        assert!(
            is_pinned || service["build"].is_string(),
            "{name}: {image} is not pinned"
        );
        for volume in list(&service["volumes"]) {
            let source = volume.as_str().and_then(|volume| volume.split(':').next());
            let source = source.expect("a source");
            let is_there = match source.strip_prefix("./") {
                Some(path) => root().join(path).exists(),
                None => source.starts_with('/') || volumes.contains_key(source),
            };
            assert!(is_there, "{name}: {source}");
        }
        let needs = match &service["depends_on"] {
            Value::Object(needs) => needs.keys().map(String::as_str).collect(),
            needs => list(needs).iter().filter_map(Value::as_str).collect::<Vec<_>>(),
        };
        for need in needs {
            assert!(services.contains_key(need), "{name} depends on {need}");
        }
        if service["build"].is_string() {
            let words = list(&service["command"]).iter().filter_map(Value::as_str);
            let line = ["saga-runner"]
                .into_iter()
                .chain(words)
                .collect::<Vec<_>>()
                .join(" ");
            assert_eq!(command_mistake(&line), None, "{name}: {line}");
        }
    }
    for line in behind(&read(COMPOSE), "\"/saga-runner\", ", |c| c != ']') {
        let line = format!("saga-runner {}", line.replace(['"', ','], ""));
        assert_eq!(command_mistake(&line), None, "{line}");
    }
    let path = root().join("config/compose.yaml");
    let manifest = Manifest::load(&path, &Overrides::default()).expect("the manifest is valid");
    let urls = format!("{:?}", manifest.broker.nats.urls);
    let mut called = manifest.upstreams.into_values().chain([urls]);
    assert!(called.all(|url| services.keys().any(|name| url.contains(&format!("//{name}:")))));
    assert!(services.keys().any(|name| manifest.http.hosts.contains(name)));
}

#[test]
fn the_image_stores_its_state_on_its_volume_regardless_of_the_manifest() {
    let dockerfile = read("Dockerfile");
    let volume = dockerfile.lines().find_map(|line| line.strip_prefix("VOLUME "));
    let volume = volume.expect("a volume");
    assert!(dockerfile.contains(&format!("\nENV SAGA_RUNNER_DATA_DIR={volume}\n")));
    let page = read("docs/deploying.md");
    let (_, command) = page.split_once("\ndocker run ").expect("the command");
    let command = command.split("\n```").next().expect("its end");
    assert!(command.contains(&format!("-v data:{volume} ")), "{command}");
    for port in behind(&dockerfile, "EXPOSE ", |c| c != '\n') {
        for port in port.split(' ') {
            assert!(
                command.contains(&format!("=0.0.0.0:{port} ")),
                "{port}: {command}"
            );
            assert!(
                command.contains(&format!("127.0.0.1:{port}:{port} ")),
                "{port}: {command}"
            );
        }
    }
}
