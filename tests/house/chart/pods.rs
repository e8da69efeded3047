//! The files of pods: laid out in a folder as the kubelet lays them out, and checked by the runner.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use saga_runner::cli::description;

use self::certificates::Authority;
use super::*;
use crate::docs::files;

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../../support/certificates.rs"]
mod certificates;

const RUNNER: &str = env!("CARGO_BIN_EXE_saga-runner");

/// What ConfigMaps of the user hold that the page creates, by their names.
fn existing(name: &str) -> BTreeMap<String, String> {
    let page = read(PAGE);
    let create = format!("kubectl create configmap {name} --from-file=");
    let (_, path) = page
        .split_once(&create)
        .unwrap_or_else(|| panic!("the page does not create {name}"));
    let from = root().join(path.split_whitespace().next().expect("a path"));
    let found = if from.is_dir() {
        files(&from, "yaml")
    } else {
        vec![from]
    };
    let entry = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).expect("readable"))
    };
    found.into_iter().map(entry).collect()
}

/// What Secrets of the user hold, by their names.
fn secret(name: &str) -> BTreeMap<String, String> {
    let entries = match name {
        "principals" | "shop-principals" => vec![("tokens", "ann admin@* dns:ann.internal\n".to_owned())],
        "certificate" | "shop-tls" => {
            let authority = Authority::new("authority");
            let certified = authority.certify(&["prod-saga-runner-metrics"]);
            vec![
                ("tls.crt", certified.certificate),
                ("tls.key", certified.key),
                ("ca.crt", authority.pem()),
            ]
        }
        "nats-credentials" => {
            let seed = nkeys::KeyPair::new_user().seed().expect("a seed");
            let block =
                |kind: &str, text: &str| format!("-----BEGIN {kind}-----\n{text}\n------END {kind}------\n");
            vec![(
                "user.creds",
                block("NATS USER JWT", "jwt") + &block("USER NKEY SEED", &seed),
            )]
        }
        "shop-key" => vec![("key", "s3cret".to_owned())],
        other => panic!("no Secret {other}"),
    };
    entries
        .into_iter()
        .map(|(key, text)| (key.to_owned(), text))
        .collect()
}

/// Lays a pod's files out below a folder, as the kubelet does below the root.
fn lay_out(objects: &Objects, workload: &Value, folder: &Path) {
    let mounts = list(&container(workload)["volumeMounts"]);
    let claims = list(&workload["spec"]["volumeClaimTemplates"])
        .iter()
        .map(|claim| text(&claim["metadata"], "name"));
    let volumes = list(&pod(workload)["volumes"]);
    let known: BTreeSet<&str> = volumes
        .iter()
        .map(|volume| text(volume, "name"))
        .chain(claims)
        .collect();
    let used: BTreeSet<&str> = mounts.iter().map(|mount| text(mount, "name")).collect();
    assert_eq!(known, used, "each volume is mounted, and each mount has a volume");
    for mount in mounts {
        let place = folder.join(text(mount, "mountPath").trim_start_matches('/'));
        std::fs::create_dir_all(&place).expect("a folder");
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
        let (entries, mode) = match volume {
            Some(volume) if volume["configMap"].is_object() => {
                let name = text(&volume["configMap"], "name");
                let own = objects
                    .of("ConfigMap")
                    .find(|map| map["metadata"]["name"] == name);
                (
                    own.map_or_else(|| existing(name), |map| texts(&map["data"])),
                    0o644,
                )
            }
            Some(volume) if volume["secret"].is_object() => {
                let mode = volume["secret"]["defaultMode"].as_u64().expect("a mode");
                (
                    secret(text(&volume["secret"], "secretName")),
                    u32::try_from(mode).expect("a mode"),
                )
            }
            // Empty at first.
            _ => (BTreeMap::new(), 0),
        };
        let is_read_only = mount["readOnly"] == true;
        assert_eq!(is_read_only, !entries.is_empty() || mode != 0, "{mount}");
        for (name, text) in entries {
            let path = place.join(name);
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        }
    }
}

fn texts(data: &Value) -> BTreeMap<String, String> {
    let entries = data.as_object().into_iter().flatten();
    let entry = |(name, text): (&String, &Value)| (name.clone(), text.as_str().expect("text").to_owned());
    entries.map(entry).collect()
}

/// Checks a manifest as a container would have it, but below `folder`.
fn check(workload: &Value, folder: &Path) -> Output {
    let arguments: Vec<&str> = list(&container(workload)["args"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let line = std::iter::once("saga-runner").chain(arguments.iter().copied());
    let taken = description().try_get_matches_from(line);
    assert!(taken.is_ok(), "{arguments:?}: {taken:?}");
    let path = arguments
        .iter()
        .find_map(|word| word.strip_prefix('/'))
        .expect("a manifest");
    let file = folder.join(path);
    let manifest = std::fs::read_to_string(&file).expect("a manifest");
    let moved = |path: &str| format!(" {}{path}", folder.display());
    let manifest = manifest
        .replace(" /etc/saga-runner", &moved("/etc/saga-runner"))
        .replace(" /data\n", &(moved("/data") + "\n"));
    std::fs::write(&file, manifest).expect("written");
    let variables = list(&container(workload)["env"]).iter();
    let variables =
        variables.filter_map(|variable| Some((text(variable, "name"), variable["value"].as_str()?)));
    Command::new(RUNNER)
        .args(["config", "check", "--config"])
        .arg(&file)
        .env_clear()
        .envs(variables)
        .output()
        .expect("the runner starts")
}

#[test]
fn the_runner_takes_the_manifest_and_finds_each_file_that_it_names_where_the_pod_has_it() {
    for (variant, values) in variants() {
        let objects = rendered(&values);
        for workload in objects.workloads() {
            let folder = tempfile::tempdir().expect("a folder");
            lay_out(&objects, workload, folder.path());
            let output = check(workload, folder.path());
            assert!(output.status.success(), "{variant}: {}", told(&output));
        }
    }
    // So it would tell one that is missing.
    let mut values = example();
    values["manifest"]["secrets"]["other"] = json!({"file": "/etc/saga-runner/secrets/other/key"});
    let objects = rendered(&values);
    let folder = tempfile::tempdir().expect("a folder");
    lay_out(&objects, objects.only("StatefulSet"), folder.path());
    let output = check(objects.only("StatefulSet"), folder.path());
    assert!(
        told(&output).contains("error[SR0404]: secret other"),
        "{}",
        told(&output)
    );
}

#[test]
fn the_manifest_says_what_the_values_say() {
    let manifest = rendered(&json!({})).manifest();
    assert_eq!(
        (manifest.cluster.as_str(), manifest.mode.as_str()),
        ("prod-saga-runner", "combined")
    );
    assert_eq!(manifest.data_dir, Path::new("/data"));
    let objects = rendered(&all_options());
    let manifest = objects.manifest();
    assert_eq!(manifest.mode.as_str(), "saga");
    assert_eq!(manifest.drain_timeout.duration(), Duration::from_mins(2));
    // Numbers stay whole.
    assert_eq!(manifest.limits.record_bytes, 200_000);
    assert_eq!(manifest.streams.audit.max_bytes, 268_435_456);
    let worker = container(objects.only("Deployment"));
    assert_eq!(
        worker["env"][0],
        json!({"name": "SAGA_RUNNER_MODE", "value": "effect"})
    );
    let hosts = rendered(&variant("jwt")).manifest().http.hosts;
    assert!(
        hosts.iter().any(|host| host == "sagas.example.com") && hosts.len() > 1,
        "{hosts:?}"
    );
    // A key that the manifest does not have is found by the runner.
    let objects = rendered(&json!({"manifest": {"no_such_key": 1}}));
    let path = Path::new("m.yaml");
    let refused = Manifest::parse(objects.manifest_text(), path, &Overrides::default());
    assert!(
        refused
            .expect_err("it is refused")
            .to_string()
            .contains("no_such_key")
    );
}

#[test]
fn the_page_installs_what_the_chart_makes_with_definitions_that_are_whole() {
    let page = read(PAGE);
    assert!(page.contains(&format!(
        "\nhelm install {RELEASE} {CHART} --values values.yaml\n"
    )));
    let objects = rendered(&example());
    let stateful = text(&objects.only("StatefulSet")["metadata"], "name");
    for named in ["kubectl port-forward ", "kubectl exec "] {
        let (_, rest) = page.split_once(named).unwrap_or_else(|| panic!("no {named}"));
        assert!(rest.starts_with(&format!("{stateful}-0 ")), "{named}");
    }
    let server = text(
        &objects.only("ServiceMonitor")["spec"]["endpoints"][0]["tlsConfig"],
        "serverName",
    );
    let _service = objects.named("Service", server);
    let folder = tempfile::tempdir().expect("a folder");
    lay_out(&objects, objects.only("StatefulSet"), folder.path());
    let mut validate = Command::new(RUNNER);
    let output = validate
        .arg("validate")
        .arg(folder.path().join("etc/saga-runner"))
        .output();
    let output = output.expect("the runner starts");
    assert!(output.status.success(), "{}", told(&output));
}
