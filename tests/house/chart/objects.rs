//! The objects that helm makes of the chart.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

/// Longest name of an object that becomes a part of a host name, or the value of a label.
const NAME_MAX: usize = 63;
/// What follows the drain of calls, besides the audit: commands are given back and results published (5 s), spans (2 s) and
/// connections (1 s) end. docs/operations.md, Stopping.
const AFTER_DRAIN: Duration = Duration::from_secs(8);
/// The kinds of objects that the chart makes.
const KINDS: [(&str, &str); 8] = [
    ("ConfigMap", "v1"),
    ("Deployment", "apps/v1"),
    ("NetworkPolicy", "networking.k8s.io/v1"),
    ("PodDisruptionBudget", "policy/v1"),
    ("Service", "v1"),
    ("ServiceAccount", "v1"),
    ("ServiceMonitor", "monitoring.coreos.com/v1"),
    ("StatefulSet", "apps/v1"),
];

#[test]
fn objects_are_of_known_kinds_with_names_and_labels_that_kubernetes_takes() {
    let is_plain = |name: &str| {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let ends = |c: Option<char>| c.is_some_and(|c| c != '-');
        name.len() <= NAME_MAX
            && name.chars().all(legal)
            && ends(name.chars().next())
            && ends(name.chars().next_back())
    };
    let long = "a-release-whose-name-is-about-as-long-as-helm-takes";
    let chart = root().join(CHART);
    let of_long = made(long, &chart, &all_options()).expect("a long name is cut");
    let all = variants()
        .into_iter()
        .map(|(name, values)| (name, rendered(&values).0));
    let of_dots = made("shop.eu-1.prod", &chart, &all_options()).expect("dots are replaced");
    assert!(
        of_dots
            .iter()
            .any(|object| object["metadata"]["name"] == "shop-eu-1-prod-saga-runner"),
    );
    for (variant, objects) in all.chain([("long name", of_long), ("name with dots", of_dots)]) {
        let mut seen = BTreeSet::new();
        for object in &objects {
            let (kind, name) = (text(object, "kind"), text(&object["metadata"], "name"));
            let known = KINDS.iter().find(|(known, _)| *known == kind);
            let (_, version) = known.unwrap_or_else(|| panic!("{variant}: {kind}"));
            assert_eq!(text(object, "apiVersion"), *version, "{variant}: {kind}");
            assert!(is_plain(name), "{variant}: {kind} {name}");
            assert!(
                seen.insert((kind, name)),
                "{variant}: {kind} {name} is there twice"
            );
            let labels = object["metadata"]["labels"].as_object().expect("labels");
            for (label, value) in labels {
                let value = value
                    .as_str()
                    .unwrap_or_else(|| panic!("{variant}: {label}: {value}"));
                assert!(value.len() <= NAME_MAX, "{variant}: {label}: {value}");
            }
            let version = env!("CARGO_PKG_VERSION");
            assert_eq!(
                labels["app.kubernetes.io/version"], version,
                "{variant}: {kind} {name}"
            );
        }
    }
}

/// The objects that the values of a variant ask for, by kind.
#[test]
fn each_variant_has_the_objects_that_it_asks_for_and_no_others() {
    let count = |objects: &Objects, kind: &str| objects.of(kind).count();
    for (name, [maps, policies, budgets, services, accounts, monitors, deployments]) in [
        ("default", [4, 1, 1, 3, 1, 0, 0]),
        ("page", [2, 1, 2, 3, 1, 1, 1]),
        ("tenants", [4, 1, 1, 3, 1, 0, 0]),
        ("split", [4, 1, 2, 3, 1, 0, 1]),
        ("all options", [3, 1, 2, 3, 1, 1, 1]),
        ("no options", [2, 0, 0, 3, 0, 0, 0]),
    ] {
        let objects = rendered(&variant(name));
        let found = KINDS.map(|(kind, _)| (kind, count(&objects, kind)));
        let expected = [
            ("ConfigMap", maps),
            ("Deployment", deployments),
            ("NetworkPolicy", policies),
            ("PodDisruptionBudget", budgets),
            ("Service", services),
            ("ServiceAccount", accounts),
            ("ServiceMonitor", monitors),
            ("StatefulSet", 1),
        ];
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn selectors_select_the_pods_that_they_are_for() {
    for (variant, values) in variants() {
        let objects = rendered(&values);
        let workloads = objects.workloads();
        let selected = |selector: &Value| -> Vec<&str> {
            let found = workloads
                .iter()
                .filter(|workload| selects(selector, labels_of_pods(workload)));
            found.map(|workload| text(workload, "kind")).collect()
        };
        let all: Vec<&str> = workloads.iter().map(|workload| text(workload, "kind")).collect();
        for workload in &workloads {
            let own = selected(&workload["spec"]["selector"]["matchLabels"]);
            assert_eq!(own, [text(workload, "kind")], "{variant}");
        }
        for service in objects.of("Service") {
            let name = text(&service["metadata"], "name");
            let expected: &[&str] = if name.ends_with("-metrics") {
                &all[..]
            } else {
                &["StatefulSet"]
            };
            assert_eq!(
                selected(&service["spec"]["selector"]),
                expected,
                "{variant}: {name}"
            );
        }
        for budget in objects.of("PodDisruptionBudget") {
            let is_of_workers = text(&budget["metadata"], "name").ends_with("-worker");
            let expected = if is_of_workers {
                "Deployment"
            } else {
                "StatefulSet"
            };
            assert_eq!(
                selected(&budget["spec"]["selector"]["matchLabels"]),
                [expected],
                "{variant}"
            );
            assert!(!budget["spec"]["maxUnavailable"].is_null(), "{variant}: {budget}");
        }
        for policy in objects.of("NetworkPolicy") {
            assert_eq!(
                selected(&policy["spec"]["podSelector"]["matchLabels"]),
                all,
                "{variant}"
            );
        }
    }
    let budget = rendered(&all_options());
    let budgets: Vec<&Value> = budget
        .of("PodDisruptionBudget")
        .map(|one| &one["spec"]["maxUnavailable"])
        .collect();
    assert_eq!(budgets, [&json!(0), &json!("50%")]);
}

#[test]
fn ports_are_those_that_the_manifest_listens_on_and_operators_have_one_of_their_own() {
    for (variant, values) in variants() {
        let objects = rendered(&values);
        let http = objects.manifest().http;
        let admin = http.own_admin_listen().expect("an address for operators").port();
        let expected = json!([{"name": "http", "containerPort": http.listen.port()}, {"name": "admin", "containerPort": admin}]);
        for workload in objects.workloads() {
            assert_eq!(container(workload)["ports"], expected, "{variant}");
        }
        let targets = |name: &str| -> Vec<&str> {
            let ports = list(&objects.named("Service", name)["spec"]["ports"]);
            ports.iter().map(|port| text(port, "targetPort")).collect()
        };
        assert_eq!(
            targets("prod-saga-runner"),
            ["http"],
            "{variant}: the one that tenants reach"
        );
        assert_eq!(
            targets("prod-saga-runner-headless"),
            ["http", "admin"],
            "{variant}"
        );
        assert_eq!(targets("prod-saga-runner-metrics"), ["admin"], "{variant}");
        let headless = objects.named(
            "Service",
            text(&objects.only("StatefulSet")["spec"], "serviceName"),
        );
        assert_eq!(headless["spec"]["clusterIP"], "None", "{variant}");
        // By these names others reach it.
        for service in objects.of("Service") {
            let host = format!("{}.{NAMESPACE}.svc", text(&service["metadata"], "name"));
            assert!(http.hosts.contains(&host), "{variant}: {host}");
        }
        for policy in objects.of("NetworkPolicy") {
            let rules = list(&policy["spec"]["ingress"]).iter();
            let ports: Vec<Value> = rules.map(|rule| rule["ports"].clone()).collect();
            let port = |name: &str| json!([{"protocol": "TCP", "port": name}]);
            let is_open = !list(&values["networkPolicy"]["from"]).is_empty();
            let expected = if is_open {
                vec![port("http"), port("admin")]
            } else {
                Vec::new()
            };
            assert_eq!(ports, expected, "{variant}: without a peer nobody is let in");
        }
    }
    let policy = rendered(&all_options());
    assert_eq!(
        policy.only("NetworkPolicy")["spec"]["policyTypes"],
        json!(["Ingress", "Egress"])
    );
    assert_eq!(
        policy.named("Service", "prod-saga-runner")["spec"]["ports"][0]["port"],
        80
    );
}

#[test]
fn probes_ask_what_needs_no_credentials_by_the_scheme_of_the_listener() {
    let pages = saga_runner::api::paths(saga_runner::kernel::subject::Tenancy::Multi);
    for (variant, values) in variants() {
        let objects = rendered(&values);
        let scheme = if objects.manifest().http.tls.is_some() {
            "HTTPS"
        } else {
            "HTTP"
        };
        for workload in objects.workloads() {
            for (probe, page) in [
                ("startupProbe", "/live"),
                ("livenessProbe", "/live"),
                ("readinessProbe", "/ready"),
            ] {
                let probe = &container(workload)[probe];
                let expected = json!({"path": page, "port": "http", "scheme": scheme});
                assert_eq!(probe["httpGet"], expected, "{variant}: {probe}");
                assert!(probe["failureThreshold"].as_u64() > Some(1), "{variant}: {probe}");
                assert!(pages.contains(page), "{page}");
            }
        }
    }
}

/// Why there is no hook: ADR 220.
#[test]
fn a_pod_has_the_time_that_its_drain_may_take_and_no_hook_before_it() {
    for (variant, values) in variants() {
        let objects = rendered(&values);
        let manifest = objects.manifest();
        let (drain, audit) = (
            manifest.drain_timeout.duration(),
            manifest.streams.audit.flush_timeout.duration(),
        );
        for workload in objects.workloads() {
            let seconds = pod(workload)["terminationGracePeriodSeconds"]
                .as_u64()
                .expect("seconds");
            let needed = drain + audit + AFTER_DRAIN;
            assert!(
                Duration::from_secs(seconds) >= needed,
                "{variant}: {seconds} s, and {needed:?} are needed"
            );
            assert!(container(workload)["lifecycle"].is_null(), "{variant}");
        }
    }
    let grace = |flush: &str| {
        let objects = rendered(&json!({"manifest": {"streams": {"audit": {"flush_timeout": flush}}}}));
        pod(objects.only("StatefulSet"))["terminationGracePeriodSeconds"].as_u64()
    };
    for (flush, seconds) in [("3s", 40), ("0ms", 37), ("1500ms", 39), ("2m", 157)] {
        assert_eq!(grace(flush), Some(seconds), "{flush}");
    }
    let dockerfile = read("Dockerfile");
    assert!(
        dockerfile.contains("\nSTOPSIGNAL SIGTERM\n"),
        "the signal that begins the drain"
    );
}

#[test]
fn containers_are_closed_and_run_as_the_user_of_the_image() {
    let dockerfile = read("Dockerfile");
    let (_, user) = dockerfile.split_once("\nUSER ").expect("a user");
    let user: u64 = user
        .split(':')
        .next()
        .expect("a number")
        .parse()
        .expect("a number");
    assert_eq!(chart_file("Chart.yaml")["appVersion"], env!("CARGO_PKG_VERSION"));
    for (variant, values) in variants() {
        for workload in rendered(&values).workloads() {
            let of_pod = &pod(workload)["securityContext"];
            for key in ["runAsUser", "runAsGroup", "fsGroup"] {
                assert_eq!(of_pod[key], user, "{variant}: {key}");
            }
            assert_eq!(of_pod["runAsNonRoot"], true, "{variant}");
            assert_eq!(of_pod["seccompProfile"]["type"], "RuntimeDefault", "{variant}");
            let closed = json!({
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
            });
            assert_eq!(container(workload)["securityContext"], closed, "{variant}");
            assert_eq!(pod(workload)["automountServiceAccountToken"], false, "{variant}");
            assert_eq!(
                pod(workload)["enableServiceLinks"],
                false,
                "{variant}: its variables would name no keys"
            );
            assert!(
                !container(workload)["resources"]["limits"]["memory"].is_null(),
                "{variant}"
            );
        }
    }
}

#[test]
fn the_process_with_the_shards_has_a_volume_of_its_own_and_workers_have_none() {
    let objects = rendered(&all_options());
    let stateful = objects.only("StatefulSet");
    assert_eq!(stateful["spec"]["replicas"], 1);
    let claims = list(&stateful["spec"]["volumeClaimTemplates"]);
    let [claim] = claims else {
        panic!("{claims:?}");
    };
    assert_eq!(
        claim["metadata"],
        json!({"name": "data", "annotations": {"a": "b"}})
    );
    let expected = json!({
        "accessModes": ["ReadWriteOncePod"], "storageClassName": "fast", "resources": {"requests": {"storage": "100Gi"}},
    });
    assert_eq!(claim["spec"], expected);
    let is_data = |workload: &Value| {
        let mounts = list(&container(workload)["volumeMounts"]);
        mounts.contains(&json!({"name": "data", "mountPath": objects.manifest().data_dir}))
    };
    assert!(is_data(stateful), "the folder of the manifest is on the volume");
    assert!(!is_data(objects.only("Deployment")));
    let usual = rendered(&json!({}));
    let claim = &usual.only("StatefulSet")["spec"]["volumeClaimTemplates"][0]["spec"];
    let expected = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}});
    assert_eq!(*claim, expected, "without a class that of the cluster counts");
}

#[test]
fn prometheus_is_told_where_and_by_which_names() {
    for name in ["page", "all options"] {
        let objects = rendered(&variant(name));
        let monitor = &objects.only("ServiceMonitor")["spec"];
        let is_meant = |service: &&Value| {
            selects(
                &monitor["selector"]["matchLabels"],
                &service["metadata"]["labels"],
            )
        };
        let services: Vec<&Value> = objects.of("Service").filter(is_meant).collect();
        let [service] = services[..] else {
            panic!("{name}: {services:?}");
        };
        let endpoint = &monitor["endpoints"][0];
        assert_eq!(endpoint["port"], service["spec"]["ports"][0]["name"], "{name}");
        assert_eq!(endpoint["path"], "/metrics", "{name}");
        let manifest = objects.manifest();
        let scheme = if manifest.http.tls.is_some() {
            "https"
        } else {
            "http"
        };
        assert_eq!(endpoint["scheme"], scheme, "{name}");
        let named = json!([
            {"targetLabel": "job", "replacement": "saga-runner"},
            {"targetLabel": "cluster", "replacement": manifest.cluster},
        ]);
        assert_eq!(
            endpoint["relabelings"], named,
            "{name}: by these the alerts tell clusters apart"
        );
    }
}

#[test]
fn definitions_restart_pods_where_the_values_say_so() {
    let annotations = |values: &Value| labels_and_annotations(rendered(values).only("StatefulSet"));
    let with = |text: &str, restarts: bool| json!({"definitions": {"sagas": {"a.yaml": text}, "restartOnChange": restarts}});
    assert_eq!(annotations(&with("a", false)), annotations(&with("b", false)));
    assert_ne!(annotations(&with("a", true)), annotations(&with("b", true)));
    let of_shards = |shards: u16| annotations(&json!({"manifest": {"shards": shards}}));
    assert_ne!(
        of_shards(1),
        of_shards(2),
        "a changed manifest restarts them anyway"
    );
}

fn labels_and_annotations(workload: &Value) -> Value {
    workload["spec"]["template"]["metadata"].clone()
}
