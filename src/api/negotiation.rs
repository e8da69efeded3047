//! Which format a client prefers by its `Accept` header.

use axum::http::{HeaderMap, header};

use crate::ports::control::MetricsFormat;

const OPEN_METRICS: &str = "application/openmetrics-text";
/// The only version that is written; a client that names none takes any.
const VERSION: &str = "1.0.0";

/// What one range of an `Accept` header says.
struct Range<'h> {
    kind: &'h str,
    version: Option<&'h str>,
    /// 0 to 1.
    quality: f32,
}

impl<'h> Range<'h> {
    /// A weight that cannot be read is none: the range is not accepted.
    fn of(text: &'h str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let mut range = Self {
            kind: parts.next().unwrap_or_default(),
            version: None,
            quality: 1.0,
        };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            if name.eq_ignore_ascii_case("q") {
                range.quality = value.parse().unwrap_or(0.0);
            } else if name.eq_ignore_ascii_case("version") {
                range.version = Some(value.trim_matches('"'));
            }
        }
        range
    }

    fn is(&self, kind: &str) -> bool {
        self.kind.eq_ignore_ascii_case(kind)
    }
}

/// The format of the series for this client: OpenMetrics where it names that, with a higher weight than it gives the classic text. A
/// client that says nothing, or takes anything, gets the classic text, which all can read.
pub(super) fn metrics_format(headers: &HeaderMap) -> MetricsFormat {
    let values = headers.get_all(header::ACCEPT).iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    let ranges: Vec<Range<'_>> = texts.flat_map(|text| text.split(',')).map(Range::of).collect();
    // The highest weight; none where no range is meant.
    let weight = |is_meant: &dyn Fn(&Range<'_>) -> bool| {
        let meant = ranges.iter().filter(|&range| is_meant(range));
        meant.map(|range| range.quality).reduce(f32::max)
    };
    let is_written = |version: &str| version == VERSION;
    let open = weight(&|range| range.is(OPEN_METRICS) && range.version.is_none_or(is_written));
    let open = open.unwrap_or(0.0);
    let is_preferred = match weight(&|range| range.is("text/plain")) {
        Some(classic) => open > classic,
        // What is named comes before what a wildcard allows with the same weight.
        None => open > 0.0 && open >= weight(&|range| range.is("text/*") || range.is("*/*")).unwrap_or(0.0),
    };
    if is_preferred {
        MetricsFormat::OpenMetrics
    } else {
        MetricsFormat::Classic
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    /// What Prometheus 3 sends by default, whether it stores exemplars or not.
    const PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
        application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
        text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    const VICTORIA_METRICS: &str = "text/plain;version=0.0.4;q=1,*/*;q=0.1";

    #[test]
    fn a_client_gets_open_metrics_only_where_it_prefers_that() {
        let (open, classic) = (MetricsFormat::OpenMetrics, MetricsFormat::Classic);
        for (accept, expected) in [
            (&["*/*"][..], classic),
            (&[], classic),
            (&[PROMETHEUS], open),
            (&[VICTORIA_METRICS], classic),
            (&["application/openmetrics-text"], open),
            (
                &["Application/OpenMetrics-Text; Version=\"1.0.0\"; Q=0.9, text/plain; q=0.8"],
                open,
            ),
            (&["application/openmetrics-text; version=0.0.1"], classic),
            (&["application/openmetrics-text;q=0.2,text/plain;q=0.5"], classic),
            (&["application/openmetrics-text,text/plain"], classic),
            (&["application/openmetrics-text;q=0.5,*/*;q=0.5"], open),
            (&["application/openmetrics-text;q=0.2,text/*"], classic),
            (&["application/openmetrics-text;q=0"], classic),
            (&["application/openmetrics-text;q=much"], classic),
            (&["text/plain;q=0.2", "application/openmetrics-text"], open),
        ] {
            let mut headers = HeaderMap::new();
            for text in accept {
                headers.append(header::ACCEPT, HeaderValue::from_str(text).expect("legal"));
            }
            assert_eq!(metrics_format(&headers), expected, "{accept:?}");
        }
    }
}
