//! The Helm chart, rendered by helm: its objects fit each other and the runner, and values that cannot work are refused.
//!
//! `objects` looks at what helm makes, `pods` lays the files of pods out and lets the runner check them, `values` tries values.

mod objects;
mod pods;
mod values;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use saga_runner::config::{Manifest, Overrides};
use serde_json::{Value, json};

use crate::docs::{read, root};

const CHART: &str = "deploy/helm/saga-runner";
const PAGE: &str = "docs/deploying.md";
/// As the page installs it.
const RELEASE: &str = "prod";
const NAMESPACE: &str = "shop";

fn helm() -> &'static Path {
    static HELM: OnceLock<PathBuf> = OnceLock::new();
    HELM.get_or_init(|| {
        let output = Command::new(root().join("scripts/helm.sh")).output();
        let output = output.expect("scripts/helm.sh starts");
        assert!(output.status.success(), "{}", told(&output));
        String::from_utf8(output.stdout).expect("a path").trim().into()
    })
}

/// Calls helm on a chart with values, which are laid over its own. Nothing of the home of its user counts.
fn call(words: &[&str], chart: &Path, values: &Value) -> Output {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("values.json");
    std::fs::write(&file, values.to_string()).expect("written");
    let mut command = Command::new(helm());
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.path());
    }
    command.args(words).arg(chart);
    command.args(["--namespace", NAMESPACE, "--values"]).arg(file);
    command.output().expect("helm starts")
}

fn told(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    texts.concat()
}

/// What helm makes of a chart, or why it refuses the values.
fn made(release: &str, chart: &Path, values: &Value) -> Result<Vec<Value>, String> {
    let output = call(&["template", release], chart, values);
    if !output.status.success() {
        return Err(told(&output));
    }
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let mut documents = vec![String::new()];
    for line in text.lines() {
        if line == "---" {
            documents.push(String::new());
        } else if let Some(document) = documents.last_mut() {
            document.extend([line, "\n"]);
        }
    }
    let is_full = |document: &&String| {
        let mut lines = document.lines();
        lines.any(|line| !line.is_empty() && !line.starts_with('#'))
    };
    let parsed = documents.iter().filter(is_full).map(|document| {
        serde_saphyr::from_str::<Value>(document).unwrap_or_else(|error| panic!("{error}: {document}"))
    });
    Ok(parsed.collect())
}

fn rendered(values: &Value) -> Objects {
    let made = made(RELEASE, &root().join(CHART), values);
    Objects(made.unwrap_or_else(|wrong| panic!("{values}: {wrong}")))
}

/// What the chart makes of some values.
struct Objects(Vec<Value>);

impl Objects {
    fn of<'o>(&'o self, kind: &str) -> impl Iterator<Item = &'o Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    fn named(&self, kind: &str, name: &str) -> &Value {
        let mut all = self.of(kind);
        let found = all.find(|object| object["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}"))
    }

    fn only(&self, kind: &str) -> &Value {
        let all: Vec<&Value> = self.of(kind).collect();
        let [one] = all[..] else {
            panic!("{} of {kind}", all.len());
        };
        one
    }

    /// What has pods: that of the shards, and that of the workers, if there are any.
    fn workloads(&self) -> Vec<&Value> {
        self.of("StatefulSet").chain(self.of("Deployment")).collect()
    }

    /// The manifest as it is in the pods.
    fn manifest_text(&self) -> &str {
        let map = self.named("ConfigMap", "prod-saga-runner");
        text(&map["data"], "saga-runner.yaml")
    }

    fn manifest(&self) -> Manifest {
        let path = Path::new("/etc/saga-runner/config/saga-runner.yaml");
        let manifest = Manifest::parse(self.manifest_text(), path, &Overrides::default());
        manifest.unwrap_or_else(|error| panic!("{error}: {}", self.manifest_text()))
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("{value} has no text {key}"))
}

fn pod(workload: &Value) -> &Value {
    &workload["spec"]["template"]["spec"]
}

fn container(workload: &Value) -> &Value {
    let containers = list(&pod(workload)["containers"]);
    assert_eq!(containers.len(), 1, "{workload}");
    &containers[0]
}

/// Whether labels have all of a selector, which has at least one.
fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().expect("labels");
    !wanted.is_empty() && wanted.iter().all(|(label, value)| labels[label] == *value)
}

fn labels_of_pods(workload: &Value) -> &Value {
    &workload["spec"]["template"]["metadata"]["labels"]
}

fn chart_file(name: &str) -> Value {
    let path = format!("{CHART}/{name}");
    serde_saphyr::from_str(&read(&path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The values that the page shows.
fn example() -> Value {
    let page = read(PAGE);
    let shown = page
        .split("```yaml\n# values.yaml\n")
        .nth(1)
        .expect("the example");
    serde_saphyr::from_str(shown.split("```").next().expect("its end")).expect("YAML")
}

fn with_tls(authentication: &str, client_certificates: bool) -> Value {
    json!({
        "authentication": authentication,
        "tokens": {"secretName": "principals"},
        "tls": {"secretName": "certificate", "clientCertificates": client_certificates},
    })
}

/// Values of everything that may be left out.
fn all_options() -> Value {
    json!({
        "image": {"repository": "registry.example.com/saga-runner", "tag": "1.2.3", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "mode": "saga",
        "workers": {
            "replicas": 2,
            "podDisruptionBudget": {"maxUnavailable": "50%"},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        },
        "manifest": {
            "secrets": {"shop_key": {"env": "SHOP_KEY"}, "other": {"file": "/etc/saga-runner/secrets/shop/key"}},
            "limits": {"record_bytes": 200_000},
            "streams": {"audit": {"max_bytes": 268_435_456, "flush_timeout": "45s"}},
        },
        "drainTimeoutSeconds": 120,
        "definitions": {
            "sagas": {"order.yaml": read("sagas/order.yaml")},
            "schemas": {"order.json": "{}"},
            "existing": {"effects": "shop-effects"},
            "restartOnChange": true,
        },
        "secretFiles": [{"name": "shop", "secretName": "shop-key"}],
        "env": [{"name": "SHOP_KEY", "valueFrom": {"secretKeyRef": {"name": "shop", "key": "key"}}}],
        "persistence": {"accessModes": ["ReadWriteOncePod"], "size": "100Gi", "storageClassName": "fast", "annotations": {"a": "b"}},
        "podDisruptionBudget": {"maxUnavailable": 0},
        "networkPolicy": {"from": [{"podSelector": {}}], "adminFrom": [{"podSelector": {}}], "egress": [{}]},
        "service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}},
        "serviceMonitor": {"enabled": true, "labels": {"release": "prometheus"}},
        "podAnnotations": {"a": "b"}, "podLabels": {"team": "shop"}, "priorityClassName": "high",
        "nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "a", "operator": "Exists"}], "affinity": {"nodeAffinity": {}},
        "extraVolumes": [{"name": "programs", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "programs", "mountPath": "/programs"}],
    })
}

/// Values by what is special about them.
fn variants() -> Vec<(&'static str, Value)> {
    let jwt = json!({"jwt": {"issuer": "https://login.example.com", "audience": "sagas", "jwks_url": "https://login.example.com/keys"}, "hosts": ["sagas.example.com"]});
    vec![
        ("default", json!({})),
        ("page", example()),
        ("tokens", json!({"http": with_tls("tokens", false)})),
        ("client certificates", json!({"http": with_tls("tokens", true)})),
        (
            "jwt",
            json!({"manifest": {"http": jwt}, "http": {"authentication": "jwt", "encryptedInFront": true}}),
        ),
        (
            "tenants",
            json!({"manifest": {"broker": {"kind": "embedded"}, "tenants": ["acme", "globex"], "scheduled_tenants": ["acme"]}}),
        ),
        ("split", json!({"mode": "saga", "workers": {"replicas": 3}})),
        ("all options", all_options()),
        (
            "no options",
            json!({
                "networkPolicy": {"enabled": false}, "podDisruptionBudget": {"enabled": false},
                "serviceAccount": {"create": false}, "definitions": {"existing": {"sagas": "shop-sagas", "effects": "shop-effects"}},
            }),
        ),
    ]
}

/// The values of one of them.
fn variant(name: &str) -> Value {
    let found = variants().into_iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no {name}")).1
}

#[test]
fn helm_has_nothing_against_the_chart_with_any_values() {
    for (name, values) in variants() {
        let output = call(&["lint", "--strict"], &root().join(CHART), &values);
        let told = told(&output);
        assert!(output.status.success(), "{name}: {told}");
        assert!(
            !told.contains("[WARNING]") && !told.contains("[ERROR]"),
            "{name}: {told}"
        );
    }
}
