//! Variables and flags over a file.

use std::collections::BTreeSet;
use std::path::Path;

use super::effective::Line;
use super::{ConfigError, Effective, Overrides, keys, layers};

const HEAD: &str = "apiVersion: saga-runner/v1\nkind: Manifest\ncluster: test\n";

fn environment(variables: &[(&str, &str)]) -> Overrides {
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()));
    Overrides::of_environment(variables, &BTreeSet::new())
}

fn read(body: &str, overrides: &Overrides) -> Result<Effective, ConfigError> {
    layers::read(&format!("{HEAD}{body}"), Path::new("config/m.yaml"), overrides)
}

fn refusals(body: &str, overrides: &Overrides) -> Vec<String> {
    let error = read(body, overrides).expect_err("must be refused");
    error.to_string().lines().map(str::to_owned).collect()
}

fn line(effective: &Effective, key: &str) -> Line {
    let lines = effective.lines();
    let found = lines.into_iter().find(|line| line.key == key);
    found.unwrap_or_else(|| panic!("{key} is not shown"))
}

#[test]
fn variables_lie_over_the_file_and_flags_over_them_and_each_value_says_where_it_is_from() {
    let overrides = environment(&[
        ("SAGA_RUNNER_RELAY_RETRY_MAX", "20s"),
        ("SAGA_RUNNER_SHARD_ATTEMPTS", "4"),
        ("SAGA_RUNNER_LOG", "warn"),
    ])
    .flag("--log", "log.level", Some("debug".to_owned()))
    .set(("shard.attempts", "5"));
    let body = "relay: {retry_max: 10s, retry_initial: 20ms}\nlog:\n  level: error\n";
    let effective = read(body, &overrides).expect("valid");
    for (key, value, origin) in [
        ("relay.retry_max", "20s", "SAGA_RUNNER_RELAY_RETRY_MAX"),
        ("relay.retry_initial", "20ms", "config/m.yaml:4"),
        ("shard.attempts", "5", "--set shard.attempts"),
        ("log.level", "debug", "--log"),
        ("cluster", "test", "config/m.yaml:3"),
        ("shards", "8", "default"),
    ] {
        let line = line(&effective, key);
        let shown = line
            .value
            .as_str()
            .map_or_else(|| line.value.to_string(), str::to_owned);
        assert_eq!((&*shown, &*line.origin), (value, origin), "{key}");
    }
    assert_eq!(effective.manifest.log.level, "debug");
    assert_eq!(effective.manifest.relay.retry_max.to_string(), "20s");
}

#[test]
fn every_key_is_set_by_its_variable_and_shown_with_it() {
    let defaults = read("", &Overrides::default()).expect("valid").lines();
    for key in keys::all() {
        let Some(variable) = keys::variable(&key.path) else {
            continue;
        };
        let value = match defaults.iter().find(|line| line.key == key.path) {
            Some(line) if !line.value.is_null() && !line.value.is_object() => match &line.value {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            },
            // Without a default: of those only their names are tried.
            Some(_) | None => continue,
        };
        if value.is_empty() {
            continue;
        }
        let effective = read("", &environment(&[(&variable, &value)]))
            .unwrap_or_else(|error| panic!("{variable}={value}: {error}"));
        let line = line(&effective, &key.path);
        assert_eq!(line.origin, variable, "{value}");
        assert_eq!(line.variable.as_deref(), Some(&*variable));
    }
}

#[test]
fn lists_are_replaced_and_maps_are_filled_up() {
    let overrides = environment(&[
        ("SAGA_RUNNER_TENANTS", "a, b"),
        (
            "SAGA_RUNNER_UPSTREAMS",
            "{bank: \"https://other\", mail: \"smtp://m\"}",
        ),
        ("SAGA_RUNNER_HTTP_HOSTS", "[a.example.com]"),
        ("SAGA_RUNNER_CALLBACKS_KEY_ENV", "KEY"),
    ])
    .set(("upstreams.shop", "https://shop"));
    let body = "tenants: [c]\nupstreams: {bank: \"https://b\", old: \"https://o\"}\n";
    let manifest = read(body, &overrides).expect("valid").manifest;
    let tenants = manifest.tenant_list().expect("a list");
    assert_eq!(
        tenants
            .iter()
            .map(crate::kernel::ids::TenantId::as_str)
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
    let upstreams: Vec<_> = manifest
        .upstreams
        .iter()
        .map(|(name, url)| format!("{name} {url}"))
        .collect();
    assert_eq!(
        upstreams,
        [
            "bank https://other",
            "mail smtp://m",
            "old https://o",
            "shop https://shop"
        ]
    );
    assert_eq!(manifest.http.hosts, ["a.example.com"]);
    let any = read("", &environment(&[("SAGA_RUNNER_TENANTS", "any")])).expect("valid");
    assert_eq!(any.manifest.tenant_list(), None);
}

#[test]
fn every_mistake_is_told_where_it_was_written() {
    let overrides = environment(&[
        ("SAGA_RUNNER_MODE", "sideways"),
        ("SAGA_RUNNER_SHARDS", "many"),
        ("SAGA_RUNNER_UPSTREAMS", "{bank: "),
        ("SAGA_RUNNER_HTTP_LISTEN", "nowhere"),
        ("SAGA_RUNNER_SHRADS", "4"),
    ])
    .set(("relay.retri_max", "5s"));
    let lines = refusals("drain_timeot: 5s\n", &overrides);
    for expected in [
        "SAGA_RUNNER_SHRADS: no key of the manifest is set by this variable; did you mean SAGA_RUNNER_SHARDS? [SR0402]",
        "config/m.yaml:4:1: unknown key \"drain_timeot\"; did you mean \"drain_timeout\"? [SR0402]",
        "SAGA_RUNNER_SHARDS:1:20: expected a whole number, found text [SR0402]",
        "SAGA_RUNNER_MODE:1:18: SAGA_RUNNER_MODE is \"sideways\", expected saga or effect or combined [SR0402]",
        "--set relay.retri_max:1:1: unknown key \"retri_max\"; did you mean \"retry_max\"? [SR0402]",
    ] {
        assert!(
            lines.iter().any(|line| line == expected),
            "{expected}: {lines:#?}"
        );
    }
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("SAGA_RUNNER_UPSTREAMS:1:")),
        "{lines:#?}"
    );
    let lines = refusals("", &environment(&[("SAGA_RUNNER_SHARDS", "0")]));
    assert_eq!(
        lines,
        ["SAGA_RUNNER_SHARDS:1:20: shards must be between 1 and 1024, found 0 [SR0403]"]
    );
    let lines = refusals("", &environment(&[("SAGA_RUNNER_MODE", "saga")]));
    assert!(
        lines[0].starts_with("SAGA_RUNNER_MODE:1:18: mode saga needs a broker"),
        "{lines:?}"
    );
    let both = environment(&[("SAGA_RUNNER_LOG", "info"), ("SAGA_RUNNER_LOG_LEVEL", "warn")]);
    let lines = refusals("", &both);
    assert_eq!(
        lines,
        ["SAGA_RUNNER_LOG: log.level is set by SAGA_RUNNER_LOG_LEVEL, too; keep one [SR0402]"]
    );
}

#[test]
fn a_secret_is_taken_from_the_environment_only_and_never_shown() {
    let body = "broker:\n  kind: nats\n  nats: {user: u, password: hunter2}\n";
    for (body, overrides) in [
        (body, Overrides::default()),
        (
            "broker: {kind: nats, nats: {user: u}}\n",
            Overrides::default().set(("broker.nats.password", "hunter2")),
        ),
        ("secrets: {pay: hunter2}\n", Overrides::default()),
        ("callbacks: {key: hunter2}\n", Overrides::default()),
    ] {
        let Err(ConfigError::Wrong { findings, texts }) = read(body, &overrides) else {
            panic!("{body} is not refused");
        };
        let codes: Vec<&str> = findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, ["SR0414"], "{findings:?}");
        let told = format!("{findings:?} {texts:?}");
        assert!(!told.contains("hunter2") && told.contains("*******"), "{told}");
    }
    let variable = environment(&[("SAGA_RUNNER_BROKER_NATS_PASSWORD", "hunter2")]);
    let effective = read("broker: {kind: nats, nats: {user: u}}\n", &variable).expect("valid");
    let shown = format!("{:?} {}", effective.lines(), effective.document());
    assert!(
        !shown.contains("hunter2") && shown.contains("[redacted]"),
        "{shown}"
    );
    // Not even in the excerpt of another mistake in the same line, or of a text that cannot be read.
    for body in [
        "broker: {kind: nats, nats: {urls: [\"nats://u:hunter2@h\"]}}\n",
        "broker: {kind: nats, nats: {password: hunter2, usr: u}}\n",
        "broker: {nats: {password: hunter2}\n",
    ] {
        let Err(ConfigError::Wrong { findings, texts }) = read(body, &Overrides::default()) else {
            panic!("{body} is not refused");
        };
        let told = format!("{findings:?} {texts:?}");
        assert!(!told.contains("hunter2"), "{told}");
    }
}

#[test]
fn paths_are_relative_to_the_manifest_and_those_of_variables_and_flags_to_the_working_folder() {
    let here = std::env::current_dir().expect("a folder");
    let body = "effects: e\nbroker: {kind: nats, nats: {credentials_file: c}}\nsecrets: {pay: {file: p}}\n";
    let overrides = environment(&[
        ("SAGA_RUNNER_SAGAS", "s"),
        ("SAGA_RUNNER_SECRETS", "{tax: {file: t}}"),
    ])
    .flag("--data-dir", "data_dir", Some("d".to_owned()));
    let effective = read(body, &overrides).expect("valid");
    let shown = |key: &str| line(&effective, key).value.as_str().expect("a path").to_owned();
    assert_eq!(shown("effects"), "config/e");
    assert_eq!(shown("broker.nats.credentials_file"), "config/c");
    assert_eq!(shown("secrets.pay.file"), "config/p");
    for (key, name) in [("sagas", "s"), ("data_dir", "d"), ("secrets.tax.file", "t")] {
        assert_eq!(Path::new(&shown(key)), here.join(name), "{key}");
    }
}

#[test]
fn a_manifest_that_is_shown_reads_back_as_the_same_one() {
    let body = "tenants: [a]\nbroker: {kind: nats}\nupstreams: {b: \"https://b\"}\nsecrets: {p: {env: P}}\nworker: {consumers: {by: category, categories: {c: [d]}}}\n";
    let effective = read(body, &Overrides::default()).expect("valid");
    let document = effective.document();
    let again = layers::read(&document.to_string(), Path::new("m.yaml"), &Overrides::default());
    assert_eq!(again.expect("valid").document(), document);
}
