//! Dashboards and alerts fit the runner: they ask for what it exports, tell clusters apart, and lead to runbooks.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::deploy::{RUNBOOKS, behind, list, text, yaml};
use crate::docs::{anchors, files, read, root};
use crate::promql::{exported, mistakes, named};

const ALERTS: &str = "deploy/alerts/saga-runner.yaml";

/// Series of others that alerts may ask for: Prometheus, the blackbox exporter, kube-state-metrics, the kubelet, node_exporter.
const OF_OTHERS: [&str; 7] = [
    "up",
    "probe_success",
    "kube_pod_status_ready",
    "kubelet_volume_stats_available_bytes",
    "kubelet_volume_stats_capacity_bytes",
    "node_filesystem_avail_bytes",
    "node_filesystem_size_bytes",
];

/// The dashboards, by the names of their files.
fn dashboards() -> Vec<(String, Value)> {
    let paths = files(&root().join("deploy/grafana/dashboards"), "json");
    assert!(!paths.is_empty(), "no dashboards");
    let parsed = paths.iter().map(|path| {
        let dashboard = serde_json::from_str(&read(path));
        let dashboard = dashboard.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.display().to_string(), dashboard)
    });
    parsed.collect()
}

fn rules() -> Vec<Value> {
    let alerts = yaml(ALERTS);
    let groups = list(&alerts["groups"]).iter();
    groups.flat_map(|group| list(&group["rules"]).to_vec()).collect()
}

/// What a dashboard asks Prometheus for: the values of its variables, as a count by their label, and the queries of its panels.
fn queries(dashboard: &Value) -> Vec<String> {
    let variables = list(&dashboard["templating"]["list"]).iter();
    let asked = variables.filter_map(|variable| variable["query"]["query"].as_str());
    // `label_values(SERIES, LABEL)`.
    let values = asked.map(|query| {
        let inner = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')'));
        let (series, label) = inner
            .and_then(|inner| inner.rsplit_once(", "))
            .expect("label_values");
        format!("count by ({label}) ({series})")
    });
    let panels = list(&dashboard["panels"]).iter();
    let targets = panels.flat_map(|panel| list(&panel["targets"]));
    let targets = targets.filter(|target| target["datasource"]["type"] == "prometheus");
    let exprs = targets.map(|target| text(target, "expr").to_owned());
    values.chain(exprs).collect()
}

#[test]
fn each_query_of_a_dashboard_asks_for_the_chosen_clusters_alone() {
    for (file, dashboard) in dashboards() {
        let queries = queries(&dashboard);
        // The one that lists the clusters.
        let (of_clusters, others): (Vec<_>, Vec<_>) = queries
            .iter()
            .partition(|expr| expr.starts_with("count by (cluster) "));
        assert_eq!(of_clusters.len(), 1, "{file}: {of_clusters:?}");
        for expr in others {
            let series = named(expr).series;
            let is_filtered = |(_, labels): &(String, BTreeSet<String>)| labels.contains("cluster");
            assert!(series.iter().all(is_filtered), "{file}: {expr}");
            assert_eq!(
                expr.matches("cluster=~\"$cluster\"").count(),
                series.len(),
                "{file}: {expr}"
            );
        }
    }
}

#[test]
fn dashboards_ask_for_what_the_runner_exports() {
    let exported = exported();
    let mut asked = 0;
    for (file, dashboard) in dashboards() {
        for expr in queries(&dashboard) {
            asked += 1;
            assert_eq!(
                mistakes(&expr, &exported, &[]),
                Vec::<String>::new(),
                "{file}: {expr}"
            );
        }
    }
    assert!(asked > 50, "{asked}");
}

#[test]
fn alerts_ask_for_what_the_runner_or_its_platform_exports() {
    let exported = exported();
    for rule in rules() {
        let expr = text(&rule, "expr");
        let wrong = mistakes(expr, &exported, &OF_OTHERS);
        assert_eq!(wrong, Vec::<String>::new(), "{}: {expr}", text(&rule, "alert"));
    }
}

#[test]
fn no_alert_mixes_the_series_of_two_clusters() {
    for rule in rules() {
        let (alert, expr) = (text(&rule, "alert"), text(&rule, "expr"));
        for labels in behind(expr, "by (", |c| c != ')') {
            let keeps_apart = labels
                .split(", ")
                .any(|label| ["cluster", "instance", "namespace"].contains(&label));
            assert!(keeps_apart, "{alert}: by ({labels})");
        }
    }
    // What sets the label: the scrape of Compose, to the cluster of its manifest; the chart has a test of its own.
    let cluster = text(&yaml("config/compose.yaml"), "cluster").to_owned();
    let scrape = yaml("deploy/victoriametrics/scrape.yaml");
    for job in list(&scrape["scrape_configs"]) {
        let mut rules = list(&job["relabel_configs"]).iter();
        let rule = rules.find(|rule| rule["target_label"] == "cluster");
        let rule = rule.unwrap_or_else(|| panic!("{job}: no cluster"));
        assert_eq!(text(rule, "replacement"), cluster);
    }
}

#[test]
fn an_alert_fires_where_no_process_is_there_to_be_scraped() {
    let rules = rules();
    let rule = rules.iter().find(|rule| rule["alert"] == "SagaRunnerNoShardOpen");
    let rule = rule.expect("the alert");
    let expr = text(rule, "expr");
    assert!(
        expr.contains("absent_over_time(saga_runner_shards_open["),
        "{expr}"
    );
    assert_eq!(text(&rule["labels"], "severity"), "critical");
}

#[test]
fn dashboards_are_whole() {
    let (mut uids, mut titles) = (BTreeSet::new(), BTreeSet::new());
    for (file, dashboard) in dashboards() {
        assert!(uids.insert(text(&dashboard, "uid").to_owned()), "{file}: uid");
        assert!(
            titles.insert(text(&dashboard, "title").to_owned()),
            "{file}: title"
        );
        let variables = list(&dashboard["templating"]["list"]).iter();
        let variables: BTreeSet<&str> = variables.map(|variable| text(variable, "name")).collect();
        let mut ids = BTreeSet::new();
        for panel in list(&dashboard["panels"]) {
            let title = text(panel, "title");
            assert!(ids.insert(panel["id"].as_u64()), "{file}: {title}: id");
            let targets = list(&panel["targets"]);
            assert_eq!(targets.is_empty(), panel["type"] == "row", "{file}: {title}");
            let references: BTreeSet<&str> = targets.iter().map(|target| text(target, "refId")).collect();
            assert_eq!(references.len(), targets.len(), "{file}: {title}: refId");
            for target in targets {
                let source = text(&target["datasource"], "uid");
                let used =
                    [source, text(target, "expr")].map(|text| text.split('$').skip(1).collect::<Vec<_>>());
                for variable in used.concat() {
                    let name = variable.trim_start_matches('{');
                    let name: String = name
                        .chars()
                        .take_while(|c| c.is_alphanumeric() || *c == '_')
                        .collect();
                    let known = variables.contains(name.as_str()) || name == "__rate_interval";
                    assert!(known, "{file}: {title}: ${name} is not a variable");
                }
            }
        }
    }
}

#[test]
fn every_alert_leads_to_a_runbook_that_knows_it() {
    let page = read(RUNBOOKS);
    let anchors = anchors(&page);
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let mut alerts = BTreeSet::new();
    for rule in rules() {
        let alert = text(&rule, "alert").to_owned();
        let severity = text(&rule["labels"], "severity");
        assert!(["critical", "warning"].contains(&severity), "{alert}: {severity}");
        for annotation in ["summary", "description"] {
            assert!(!text(&rule["annotations"], annotation).is_empty(), "{alert}");
        }
        let url = text(&rule["annotations"], "runbook_url");
        let anchor = url
            .strip_prefix("docs/runbooks.md#")
            .unwrap_or_else(|| panic!("{alert}: {url}"));
        assert!(anchors.contains(anchor), "{alert}: {url} is not a heading");
        let section = sections.iter().find(|section| {
            let title = section.lines().next().unwrap_or_default();
            title.to_lowercase().replace(' ', "-") == anchor
        });
        let told = section.is_some_and(|section| section.contains(&format!("`{alert}`")));
        assert!(told, "{url} does not name {alert}");
        assert!(alerts.insert(alert), "an alert is there twice");
    }
    let words = page.split(|c: char| !c.is_ascii_alphanumeric());
    let told: BTreeSet<String> = words
        .filter(|word| word.starts_with("SagaRunner"))
        .map(str::to_owned)
        .collect();
    assert_eq!(told, alerts, "{RUNBOOKS} names alerts that do not exist");
}
