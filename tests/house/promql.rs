//! Expressions of PromQL as dashboards and alerts have them: which series and labels they name, and whether the runner has these.

use std::collections::{BTreeMap, BTreeSet};

use saga_runner::telemetry::Metrics;

use crate::metrics::registering;

/// Labels that a scrape adds to every series; `cluster` as the shipped configurations do.
const OF_SCRAPES: [&str; 3] = ["job", "instance", "cluster"];

/// Labels of a series of the runner, and whether it is a histogram.
pub struct Series {
    labels: BTreeSet<String>,
    is_histogram: bool,
}

/// What the runner registers, as its code says it, and the series of the process.
pub fn exported() -> BTreeMap<String, Series> {
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
pub struct Named {
    pub series: Vec<(String, BTreeSet<String>)>,
    grouping: BTreeSet<String>,
}

pub fn named(expr: &str) -> Named {
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
pub fn mistakes(expr: &str, exported: &BTreeMap<String, Series>, of_others: &[&str]) -> Vec<String> {
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
