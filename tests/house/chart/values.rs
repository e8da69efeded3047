//! The values of the chart: their schema, those that are refused, and what is shown after an installation.

use std::collections::BTreeSet;

use saga_runner::api::Authentication;
use saga_runner::cli::description;

use super::*;
use crate::docs::files;

fn refusal(values: &Value) -> Option<String> {
    made(RELEASE, &root().join(CHART), values).err()
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn values_that_cannot_work_are_refused_with_their_key() {
    for (values, parts) in [
        (json!({"replcas": 1}), &["replcas"][..]),
        (json!({"networkPolicy": {"form": []}}), &["networkPolicy", "form"]),
        (json!({"workers": {"replicas": "two"}}), &["workers", "replicas"]),
        (json!({"workers": {"replicas": -1}}), &["workers", "replicas"]),
        (json!({"drainTimeoutSeconds": 0}), &["drainTimeoutSeconds"]),
        (json!({"drainTimeoutSeconds": "30s"}), &["drainTimeoutSeconds"]),
        (
            json!({"http": {"authentication": "none"}}),
            &["http", "authentication", "in_front"],
        ),
        (
            json!({"image": {"pullPolicy": "Sometimes"}}),
            &["image", "pullPolicy", "IfNotPresent"],
        ),
        (json!({"persistence": {"size": "20GB"}}), &["persistence", "size"]),
        (
            json!({"persistence": {"accessModes": ["ReadWriteMany"]}}),
            &["accessModes", "ReadWriteOnce"],
        ),
        (
            json!({"podDisruptionBudget": {"maxUnavailable": "half"}}),
            &["podDisruptionBudget", "maxUnavailable"],
        ),
        (json!({"service": {"port": 0}}), &["service", "port"]),
        (
            json!({"serviceMonitor": {"interval": "often"}}),
            &["serviceMonitor", "interval"],
        ),
        (
            json!({"secretFiles": [{"name": "a"}]}),
            &["secretFiles", "secretName"],
        ),
        (json!({"env": [{"value": "a"}]}), &["env", "name"]),
        (json!({"podLabels": {"a": 1}}), &["podLabels"]),
        (
            json!({"replicas": 2}),
            &["replicas is 2: one process owns all shards"],
        ),
        (
            json!({"mode": "effect"}),
            &["mode is \"effect\"", "workers.replicas"],
        ),
        (
            json!({"http": {"authentication": "tokens"}}),
            &["needs http.tokens.secretName"],
        ),
        (
            json!({"http": {"authentication": "tokens", "tokens": {"secretName": "principals"}}}),
            &["unencrypted", "http.tls.secretName"],
        ),
        (
            json!({"http": {"tokens": {"secretName": "principals"}}}),
            &["http.tokens.secretName is for"],
        ),
        (
            json!({"http": {"tls": {"secretName": "certificate", "clientCertificates": true}}}),
            &["http.tls.clientCertificates needs"],
        ),
        (
            json!({"manifest": {"broker": {"kind": "embedded"}}, "workers": {"replicas": 1}}),
            &["manifest.broker.kind has to be nats"],
        ),
        (
            json!({"mode": "saga", "manifest": {"dispatch": "local"}}),
            &["manifest.dispatch local"],
        ),
        (
            json!({"manifest": {"mode": "saga"}}),
            &["manifest.mode is decided by the chart: set mode"],
        ),
        (
            json!({"manifest": {"data_dir": "/x"}}),
            &["manifest.data_dir is decided by the chart"],
        ),
        (
            json!({"manifest": {"http": {"tls": {"key_file": "/x"}}}}),
            &["manifest.http.tls is decided by the chart: set http.tls"],
        ),
        (
            json!({"manifest": {"streams": {"audit": {"flush_timeout": "1h 30m"}}}}),
            &["manifest.streams.audit.flush_timeout is \"1h 30m\""],
        ),
    ] {
        let told = refusal(&values).unwrap_or_else(|| panic!("{values} is let pass"));
        for part in parts {
            assert!(told.contains(part), "{values}: {part}: {told}");
        }
    }
}

/// The keys of values and of their schema, level by level.
fn compare(values: &Value, schema: &Value, path: &str) {
    let (Some(values), Some(properties)) = (values.as_object(), schema["properties"].as_object()) else {
        return;
    };
    let keys: BTreeSet<&String> = values.keys().collect();
    // Of Helm itself.
    let known: BTreeSet<&String> = properties.keys().filter(|key| *key != "global").collect();
    assert_eq!(keys, known, "{path}");
    assert_eq!(schema["additionalProperties"], false, "{path}");
    for (key, value) in values {
        compare(value, &properties[key], &format!("{path}.{key}"));
    }
}

#[test]
fn values_their_schema_and_the_templates_name_the_same_keys() {
    let values = chart_file("values.yaml");
    let schema: Value = serde_json::from_str(&read(format!("{CHART}/values.schema.json"))).expect("JSON");
    compare(&values, &schema, "values");
    let mut looked_at = 0;
    let templates = root().join(CHART).join("templates");
    for file in ["yaml", "tpl", "txt"]
        .iter()
        .flat_map(|extension| files(&templates, extension))
    {
        let template = read(&file);
        for part in template.split(".Values.").skip(1) {
            let path = part
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '.')
                .next()
                .unwrap_or_default();
            let mut keys = path.split('.').filter(|key| !key.is_empty());
            let found = keys.try_fold(&values, |value, key| value.get(key));
            assert!(
                found.is_some(),
                "{}: .Values.{path} is not in values.yaml",
                file.display()
            );
            looked_at += 1;
        }
    }
    assert!(looked_at > 30, "{looked_at}");
}

/// What helm shows after an installation: it renders that for a cluster only, so a copy of the chart has it in an object.
fn notes(values: &Value) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = (root().join(CHART), folder.path().join("saga-runner"));
    std::fs::create_dir_all(to.join("templates")).expect("a folder");
    for file in [
        "Chart.yaml",
        "values.yaml",
        "values.schema.json",
        "templates/_helpers.tpl",
    ] {
        std::fs::copy(from.join(file), to.join(file)).expect("copied");
    }
    let shown = read(format!("{CHART}/templates/NOTES.txt"));
    let object = format!(
        "{{{{- define \"notes\" }}}}{shown}{{{{ end }}}}\nkind: ConfigMap\ndata: {{notes: {{{{ include \"notes\" . | toJson }}}}}}\n"
    );
    std::fs::write(to.join("templates/notes.yaml"), object).expect("written");
    let made = made(RELEASE, &to, values).unwrap_or_else(|wrong| panic!("{wrong}"));
    text(&made[0]["data"], "notes").to_owned()
}

#[test]
fn notes_name_what_there_is_and_commands_that_the_runner_takes() {
    for (variant, values) in variants() {
        let shown = notes(&values);
        let objects = rendered(&values);
        let manifest = objects.manifest();
        assert!(
            shown.contains(&format!("The name of the cluster is {}.", manifest.cluster)),
            "{variant}: {shown}"
        );
        let stateful = text(&objects.only("StatefulSet")["metadata"], "name");
        assert!(
            shown.contains(&format!("rollout status statefulset/{stateful}")),
            "{variant}: {shown}"
        );
        for line in shown
            .lines()
            .filter(|line| line.trim_start().starts_with("kubectl "))
        {
            let Some((_, command)) = line.split_once(" -- /") else {
                continue;
            };
            let taken = description().try_get_matches_from(command.split_whitespace());
            assert!(taken.is_ok(), "{variant}: {command}: {taken:?}");
        }
        let is_open = manifest.http.tls.is_none() && manifest.http.authentication == Authentication::InFront;
        assert_eq!(
            shown.contains("-- /saga-runner shard list"),
            is_open,
            "{variant}: {shown}"
        );
    }
    assert!(notes(&json!({"mode": "saga"})).contains("No process runs effects"));
    assert!(notes(&json!({"networkPolicy": {"enabled": false}})).contains("networkPolicy is turned off"));
}
