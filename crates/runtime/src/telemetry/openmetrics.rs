//! Series as OpenMetrics 1.0 text. `prometheus` writes the classic text format only, which has no exemplars (ADR 219).
//!
//! <https://prometheus.io/docs/specs/om/open_metrics_spec/>

use prometheus::proto::{Histogram, MetricFamily, MetricType};

use super::exemplars::{Exemplar, ExemplarStore};

/// Longest names and values of the labels of an exemplar, together, in characters.
const EXEMPLAR_CHARS_MAX: usize = 128;

/// Name and value.
type Label<'l> = (&'l str, &'l str);

/// The text of all families, with the exemplars of their series; it ends with `# EOF`.
pub(super) fn encode(families: &[MetricFamily], exemplars: &ExemplarStore) -> String {
    let mut text = Text(String::new());
    for family in families {
        text.family(family, exemplars);
    }
    text.line(&["# EOF"]);
    text.0
}

struct Text(String);

impl Text {
    fn line(&mut self, parts: &[&str]) {
        for part in parts {
            self.0.push_str(part);
        }
        self.0.push('\n');
    }

    fn family(&mut self, family: &MetricFamily, exemplars: &ExemplarStore) {
        let name = family.name();
        let (told, kind) = described(name, family.get_field_type());
        self.line(&["# TYPE ", told, " ", kind]);
        self.line(&["# HELP ", told, " ", &escaped(family.help())]);
        for metric in family.get_metric() {
            let labels: Vec<Label<'_>> = metric
                .get_label()
                .iter()
                .map(|label| (label.name(), label.value()))
                .collect();
            match family.get_field_type() {
                MetricType::COUNTER => self.sample(name, &labels, metric.get_counter().get_value()),
                MetricType::GAUGE => self.sample(name, &labels, metric.get_gauge().get_value()),
                MetricType::HISTOGRAM => {
                    let found = exemplars.find(name, &labels);
                    let newest = found.map(|found| found.newest()).unwrap_or_default();
                    self.histogram(name, &labels, metric.get_histogram(), &newest);
                }
                // Nothing registers one.
                MetricType::SUMMARY | MetricType::UNTYPED => {}
            }
        }
    }

    fn sample(&mut self, name: &str, labels: &[Label<'_>], value: f64) {
        self.line(&[name, &in_braces(labels), " ", &number(value)]);
    }

    /// `newest` are its exemplars by bucket, or empty.
    fn histogram(
        &mut self,
        name: &str,
        labels: &[Label<'_>],
        histogram: &Histogram,
        newest: &[Option<Exemplar>],
    ) {
        let bounded = histogram
            .get_bucket()
            .iter()
            .map(|bucket| (canonical(bucket.upper_bound()), bucket.cumulative_count()));
        let all = ("+Inf".to_owned(), histogram.get_sample_count());
        for (at, (bound, count)) in bounded.chain([all]).enumerate() {
            let mut of_bucket = labels.to_vec();
            of_bucket.push(("le", bound.as_str()));
            let exemplar = newest.get(at).copied().flatten().and_then(|found| {
                let trace_id = format!("{:032x}", found.trace_id);
                marked(&[("trace_id", trace_id.as_str())], found.value, found.at_ms)
            });
            self.line(&[
                name,
                "_bucket",
                &in_braces(&of_bucket),
                " ",
                &count.to_string(),
                &exemplar.unwrap_or_default(),
            ]);
        }
        let labels = in_braces(labels);
        let (sum, count) = (histogram.get_sample_sum(), histogram.get_sample_count());
        self.line(&[name, "_sum", &labels, " ", &number(sum)]);
        self.line(&[name, "_count", &labels, " ", &count.to_string()]);
    }
}

/// What the lines about a family call it, and its type.
///
/// A counter is called without the suffix that all its samples have. One whose samples have none would need another name than it has
/// in the classic format, so it is of unknown type.
fn described(name: &str, kind: MetricType) -> (&str, &'static str) {
    match kind {
        MetricType::COUNTER => match name.strip_suffix("_total") {
            Some(base) => (base, "counter"),
            None => (name, "unknown"),
        },
        MetricType::GAUGE => (name, "gauge"),
        MetricType::HISTOGRAM => (name, "histogram"),
        MetricType::SUMMARY => (name, "summary"),
        MetricType::UNTYPED => (name, "unknown"),
    }
}

/// An exemplar as it stands behind the sample of its bucket, none where its labels are too long for one.
fn marked(labels: &[Label<'_>], value: f64, at_ms: u64) -> Option<String> {
    let chars = |text: &str| text.chars().count();
    let length: usize = labels
        .iter()
        .map(|&(name, value)| chars(name) + chars(value))
        .sum();
    (length <= EXEMPLAR_CHARS_MAX).then(|| {
        let (seconds, ms) = (at_ms / 1_000, at_ms % 1_000);
        format!(" # {} {} {seconds}.{ms:03}", in_braces(labels), number(value))
    })
}

/// The labels as they stand behind a name: nothing where there are none.
fn in_braces(labels: &[Label<'_>]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let pairs: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    format!("{{{}}}", pairs.join(","))
}

/// A text in which the format allows quotation marks, backslashes and ends of lines only in this form.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            c => escaped.push(c),
        }
    }
    escaped
}

fn number(value: f64) -> String {
    if value == f64::INFINITY {
        "+Inf".to_owned()
    } else if value == f64::NEG_INFINITY {
        "-Inf".to_owned()
    } else {
        value.to_string()
    }
}

/// A bound in the canonical form, which has a point: `1.0`. It holds for bounds from 0.0001 to 999,999, as all are.
fn canonical(bound: f64) -> String {
    format!("{bound:?}")
}

#[cfg(test)]
mod tests {
    use prometheus::proto::{Counter, LabelPair, Metric};

    use super::*;
    use crate::telemetry::Metrics;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    /// A counter with one sample, 3, and one label.
    fn counter(name: &str, help: &str, value: &str) -> MetricFamily {
        let mut label = LabelPair::default();
        label.set_name("kind".to_owned());
        label.set_value(value.to_owned());
        let mut counter = Counter::default();
        counter.set_value(3.0);
        let mut metric = Metric::from_label(vec![label]);
        metric.set_counter(counter);
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(MetricType::COUNTER);
        family.set_metric(vec![metric]);
        family
    }

    fn encoded(family: MetricFamily) -> String {
        encode(&[family], &ExemplarStore::default())
    }

    #[test]
    fn a_counter_is_told_without_the_suffix_of_its_sample_and_the_text_ends_with_eof() {
        assert_eq!(
            encoded(counter("calls_total", "Calls.", "a")),
            "# TYPE calls counter\n# HELP calls Calls.\ncalls_total{kind=\"a\"} 3\n# EOF\n"
        );
    }

    #[test]
    fn a_counter_without_the_suffix_keeps_its_name_as_a_series_of_unknown_type() {
        assert_eq!(
            encoded(counter("calls", "Calls.", "a")),
            "# TYPE calls unknown\n# HELP calls Calls.\ncalls{kind=\"a\"} 3\n# EOF\n"
        );
    }

    #[test]
    fn quotation_marks_backslashes_and_ends_of_lines_are_escaped_in_helps_and_labels() {
        let text = encoded(counter("calls_total", "a \"b\" \\ c\nd", "x\"y\\z\nw"));
        assert!(
            text.contains("# HELP calls a \\\"b\\\" \\\\ c\\nd\n")
                && text.contains("calls_total{kind=\"x\\\"y\\\\z\\nw\"} 3\n"),
            "{text}"
        );
    }

    #[test]
    fn the_bucket_of_a_call_of_a_trace_has_its_exemplar_and_no_other_sample_has_one() {
        let metrics = Metrics::new();
        let series = metrics.effect_call_seconds.with_label_values(&["charge"]);
        for seconds in [0.003, 0.7, 60.0] {
            series.observe(seconds);
        }
        let exemplars = metrics.call_exemplars("charge");
        exemplars.note(0.7, TRACE, 1_767_225_600_042);
        exemplars.note(60.0, TRACE, 1_767_225_660_000);
        let text = metrics.render_open_metrics();
        let name = "saga_runner_effect_call_seconds";
        for line in [
            format!("# TYPE {name} histogram"),
            format!("# HELP {name} Duration of one call of an upstream."),
            format!("{name}_bucket{{effect=\"charge\",le=\"0.0005\"}} 0"),
            format!("{name}_bucket{{effect=\"charge\",le=\"0.005\"}} 1"),
            format!(
                "{name}_bucket{{effect=\"charge\",le=\"1.0\"}} 2 # {{trace_id=\"{TRACE}\"}} 0.7 1767225600.042"
            ),
            format!("{name}_bucket{{effect=\"charge\",le=\"30.0\"}} 2"),
            format!(
                "{name}_bucket{{effect=\"charge\",le=\"+Inf\"}} 3 # {{trace_id=\"{TRACE}\"}} 60 1767225660.000"
            ),
            format!("{name}_count{{effect=\"charge\"}} 3"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert_eq!(text.matches(" # {").count(), 2, "{text}");
    }

    #[test]
    fn both_formats_have_the_same_samples() {
        let metrics = Metrics::new();
        metrics.saga_activated("order");
        metrics.storage.commit_sync_seconds.observe(0.002);
        metrics.clock_ahead_seconds.set(-0.25);
        let (classic, open) = (metrics.render(), metrics.render_open_metrics());
        assert!(open.ends_with("\n# EOF\n"), "{open}");
        assert!(!classic.contains("# EOF"), "{classic}");
        let names = |text: &str| -> Vec<String> {
            let samples = text.lines().filter(|line| !line.starts_with('#'));
            let mut names: Vec<String> = samples
                .filter_map(|line| line.split(['{', ' ']).next())
                .filter(|name| name.starts_with("saga_runner_"))
                .map(str::to_owned)
                .collect();
            names.sort();
            names
        };
        assert!(names(&open).len() > 150, "{open}");
        assert_eq!(names(&open), names(&classic));
        assert!(
            open.contains("\nsaga_runner_clock_ahead_seconds -0.25\n"),
            "{open}"
        );
        assert!(
            !open.contains(" unknown\n"),
            "each counter has the suffix\n{open}"
        );
    }

    #[test]
    fn an_exemplar_whose_labels_are_longer_than_the_format_allows_is_left_out() {
        let longest = "ü".repeat(EXEMPLAR_CHARS_MAX - "trace_id".len());
        let expected = format!(" # {{trace_id=\"{longest}\"}} 0.5 1.007");
        assert_eq!(
            marked(&[("trace_id", longest.as_str())], 0.5, 1_007),
            Some(expected)
        );
        let longer = format!("{longest}x");
        assert_eq!(marked(&[("trace_id", longer.as_str())], 0.5, 1_007), None);
    }

    #[test]
    fn numbers_and_bounds_are_written_as_the_format_wants_them() {
        for (value, expected) in [
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
            (0.0, "0"),
            (17.0, "17"),
            (0.000_25, "0.00025"),
        ] {
            assert_eq!(number(value), expected);
        }
        for (value, expected) in [(0.0005, "0.0005"), (1.0, "1.0"), (86_400.0, "86400.0")] {
            assert_eq!(canonical(value), expected);
        }
    }
}
