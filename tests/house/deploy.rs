//! What is shipped for operators fits the runner: series, labels, commands, variables and keys exist, and links lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use saga_runner::config::{Manifest, Overrides, keys};
use saga_runner::telemetry::Metrics;
use serde_json::Value;

use crate::docs::{anchors, files, read, root};
use crate::metrics::registering;

const ALERTS: &str = "deploy/alerts/saga-runner.yaml";
const CHART: &str = "deploy/helm/saga-runner";
const COMPOSE: &str = "docker-compose.yml";
const RUNBOOKS: &str = "docs/runbooks.md";

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
/// Labels that a scrape adds to every series; `cluster` as the shipped configurations do.
const OF_SCRAPES: [&str; 3] = ["job", "instance", "cluster"];

/// Labels of a series of the runner, and whether it is a histogram.
struct Series {
    labels: BTreeSet<String>,
    is_histogram: bool,
}

/// What the runner registers, as its code says it, and the series of the process.
fn exported() -> BTreeMap<String, Series> {
    let code: String = registering().split_whitespace().collect::<Vec<_>>().join(" ");
    let code = code.replace("( r, ", "(r, ");
    let parts: Vec<&str> = code.split("(r, \"").collect();
    let mut found = BTreeMap::new();
    for pair in parts.windows(2) {
        let (name, rest) = pair[1].split_once('"').expect("the end of a name");
        let labels = rest.split_once("&[\"").map_or("", |(_, labels)| labels);
        let labels = labels.split(']').next().unwrap_or_default();
        let series = Series {
            labels: labels
                .split(',')
                .map(|label| label.trim_matches([' ', '"']).to_owned())
                .filter(|label| !label.is_empty())
                .collect(),
            is_histogram: pair[0].ends_with("histogram") || pair[0].ends_with("histograms"),
        };
        found.insert(format!("saga_runner_{name}"), series);
    }
    assert!(found.len() > 20, "{:?}", found.keys());
    let text = Metrics::new().render();
    for line in text.lines().filter(|line| line.starts_with("process_")) {
        let series = Series {
            labels: BTreeSet::new(),
            is_histogram: false,
        };
        let name = line.split([' ', '{']).next().expect("a name");
        found.insert(name.to_owned(), series);
    }
    found
}

/// What an expression of PromQL names: series with the labels of their matchers, and the labels by which it groups.
#[derive(Debug, Default, PartialEq)]
struct Named {
    series: Vec<(String, BTreeSet<String>)>,
    grouping: BTreeSet<String>,
}

fn named(expr: &str) -> Named {
    const KEYWORDS: [&str; 6] = ["and", "or", "unless", "bool", "offset", "inf"];
    const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
    let bare = without_texts(expr);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = |text: &str| -> BTreeSet<String> {
        text.split(|c: char| !is_word(c))
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let mut found = Named::default();
    let mut rest = bare.as_str();
    while let Some(first) = rest.chars().next() {
        if first == '[' {
            rest = rest.split_once(']').expect("the end of a range").1;
        } else if first == '{' {
            let (matchers, behind) = rest.split_once('}').expect("the end of matchers");
            let series = found.series.last_mut().expect("matchers behind a name");
            series.1.extend(words(matchers));
            rest = behind;
        } else if is_word(first) || first == '$' {
            let end = rest[1..].find(|c| !is_word(c)).map_or(rest.len(), |end| end + 1);
            let (word, behind) = rest.split_at(end);
            rest = behind.trim_start();
            let is_name = !first.is_ascii_digit() && first != '$';
            if GROUPING.contains(&word) {
                let (labels, behind) = rest.split_once(')').expect("the end of labels");
                found.grouping.extend(words(labels));
                rest = behind;
                continue;
            }
            let is_function = ["(", "by ", "by(", "without"]
                .iter()
                .any(|next| rest.starts_with(next));
            if is_name && !is_function && !KEYWORDS.contains(&word) {
                found.series.push((word.to_owned(), BTreeSet::new()));
            }
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    found
}

/// The expression without what stands between quotation marks.
fn without_texts(expr: &str) -> String {
    let (mut bare, mut quote) = (String::new(), None);
    let mut chars = expr.chars();
    while let Some(c) = chars.next() {
        match quote {
            None if c == '"' || c == '\'' => quote = Some(c),
            None => bare.push(c),
            Some(_) if c == '\\' => drop(chars.next()),
            Some(end) if c == end => quote = None,
            Some(_) => {}
        }
    }
    bare
}

#[test]
fn expressions_are_taken_apart() {
    let found = named(
        "histogram_quantile(0.99, sum by (le, effect) (rate(a_bucket{x=~\"b{c\", y=\"d\"}[$__rate_interval]))) > 3 \
         or b unless b offset 15m",
    );
    let labels = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let expected = Named {
        series: vec![
            ("a_bucket".to_owned(), labels(&["x", "y"])),
            ("b".to_owned(), labels(&[])),
            ("b".to_owned(), labels(&[])),
        ],
        grouping: labels(&["le", "effect"]),
    };
    assert_eq!(found, expected);
}

/// What is wrong with an expression: series that nobody exports, labels that they do not have.
fn mistakes(expr: &str, exported: &BTreeMap<String, Series>, of_others: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    let named = named(expr);
    let mut all: BTreeSet<&str> = OF_SCRAPES.into();
    let mut is_ours = true;
    for (name, labels) in &named.series {
        if of_others.contains(&name.as_str()) {
            is_ours = false;
            continue;
        }
        let suffixes = ["_bucket", "_sum", "_count"];
        let family = suffixes.iter().find_map(|suffix| {
            let family = exported.get(name.strip_suffix(suffix)?)?;
            family.is_histogram.then_some(family)
        });
        let plain = exported.get(name).filter(|series| !series.is_histogram);
        let Some(series) = plain.or(family) else {
            wrong.push(format!("{name} is not exported"));
            continue;
        };
        let mut known: BTreeSet<&str> = series.labels.iter().map(String::as_str).collect();
        known.extend(OF_SCRAPES);
        if name.ends_with("_bucket") {
            known.insert("le");
        }
        let unknown = labels.iter().filter(|label| !known.contains(label.as_str()));
        wrong.extend(unknown.map(|label| format!("{name} has no label {label}")));
        all.extend(known);
    }
    if is_ours {
        let unknown = named
            .grouping
            .iter()
            .filter(|label| !all.contains(label.as_str()));
        wrong.extend(unknown.map(|label| format!("no series of the expression has the label {label}")));
    }
    if named.series.is_empty() {
        wrong.push("no series is named".to_owned());
    }
    wrong
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("{value} has no text {key}"))
}

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
fn behind<'t>(text: &'t str, before: &str, wanted: impl Fn(char) -> bool) -> BTreeSet<&'t str> {
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
