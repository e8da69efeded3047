//! The reference of the series is made from where they are registered.

use std::fmt::Write as _;

use crate::docs::{read, root};

/// What registers a series, and the type that it has then.
const CALLS: [(&str, &str); 7] = [
    ("counters(", "counter"),
    ("counter(", "counter"),
    ("gauges(", "gauge"),
    ("gauge(", "gauge"),
    ("fraction(", "gauge"),
    ("histogram(", "histogram"),
    ("histograms(", "histogram"),
];

/// One series: name, type, labels, help.
type Series = (String, &'static str, Vec<String>, String);

/// The texts in quotes of a call, up to its end, and how many of them stand before its labels.
fn texts(arguments: &str) -> (Vec<String>, usize) {
    let (mut texts, mut text, mut depth, mut named) = (Vec::new(), None::<String>, 1, usize::MAX);
    for c in arguments.chars() {
        match (&mut text, c) {
            (Some(_), '"') => texts.extend(text.take()),
            (Some(text), c) => text.push(c),
            (None, '"') => text = Some(String::new()),
            (None, '[') => named = named.min(texts.len()),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, _) => {}
        }
        if depth == 0 {
            break;
        }
    }
    (texts, named)
}

/// The code by which all series are registered.
pub fn registering() -> String {
    let code = read("crates/runtime/src/telemetry/metrics.rs");
    let (_, code) = code
        .split_once("pub fn new() -> Self {")
        .expect("where they are registered");
    let (code, _) = code.split_once("\nimpl Default for").expect("and by default");
    ["answers", "archive", "audit", "jobs", "storage", "tenants"]
        .map(|part| read(format!("crates/runtime/src/telemetry/{part}.rs")))
        .concat()
        + code
}

fn series() -> Vec<Series> {
    let code = registering();
    let mut found = Vec::new();
    for field in code.split(": ").skip(1) {
        let call = CALLS
            .iter()
            .find_map(|(call, kind)| Some((field.strip_prefix(call)?, *kind)));
        let Some((arguments, kind)) = call else { continue };
        let (texts, named) = texts(arguments);
        let [name, help, labels @ ..] = &texts[..] else {
            panic!("a series has a name and a help: {texts:?}");
        };
        assert!(named >= 2, "{name}: its labels are at the end");
        found.push((format!("saga_runner_{name}"), kind, labels.to_vec(), help.clone()));
    }
    found.sort();
    found
}

/// `UPDATE_METRICS=1` writes it.
#[test]
fn the_reference_of_the_series_is_that_of_the_code() {
    let mut page = String::from(
        "# Metrics\n\nGenerated: `UPDATE_METRICS=1 cargo test --test house metrics`. A test compares it with the code.\n\n\
         `GET /metrics` prints these series, and the usual `process_*` series. Counters end in `_total`. \
         [operations.md](operations.md#what-to-watch)\nsays what their labels mean and what to do about them; alerts and dashboards for them are in \
         `deploy/` ([deploying.md](deploying.md)).\n\n\
         The header `Accept` of the request chooses the format. A client that names `application/openmetrics-text` (version 1.0.0, or none) with a \
         higher weight\nthan `text/plain` gets OpenMetrics 1.0, whose buckets of `saga_runner_effect_call_seconds` have the traces of calls as \
         [exemplars](operations.md#from-a-series-to-a-trace);\nPrometheus does. All others, VictoriaMetrics among them, get the text format of Prometheus \
         (0.0.4). Both have the same series. They differ in the\nlabel `le` of whole numbers, which is `1.0` in OpenMetrics and `1` in the other.\n\n\
         | Series | Type | Labels | Help |\n|---|---|---|---|\n",
    );
    let series = series();
    assert!(series.len() > 45, "{}", series.len());
    for (name, kind, labels, help) in &series {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() {
            "—".to_owned()
        } else {
            labels.join(", ")
        };
        writeln!(page, "| `{name}` | {kind} | {labels} | {help} |").expect("to a text");
    }
    let path = root().join("docs/metrics.md");
    if std::env::var_os("UPDATE_METRICS").is_some() {
        std::fs::write(&path, &page).expect("written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page,
        "run UPDATE_METRICS=1 cargo test --test house metrics"
    );
}

#[test]
fn type_and_labels_of_a_series_are_the_same_in_the_manual() {
    let page = read("docs/operations.md");
    let (_, table) = page.split_once("| Series | Type |").expect("the table of series");
    let table = table.split("\n\n").next().expect("a table");
    for (name, kind, labels, _) in series() {
        let begin = format!("| `{name}` | ");
        let row = table.lines().find_map(|line| line.strip_prefix(&begin));
        let cells: Vec<&str> = row
            .unwrap_or_else(|| panic!("no row {name}"))
            .split(" | ")
            .collect();
        let told: Vec<&str> = cells[1].split('`').skip(1).step_by(2).collect();
        assert_eq!(
            (cells[0], told),
            (kind, labels.iter().map(String::as_str).collect()),
            "{name}"
        );
    }
}
