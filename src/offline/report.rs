//! Reports for programs: JSON, and the JUnit XML that build servers read.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::coverage::Coverage;
use super::suite::CaseReport;

/// All cases, and where it was measured their coverage, as one JSON object.
#[must_use]
pub fn json(cases: &[CaseReport], coverage: Option<&[Coverage]>) -> Value {
    let shown: Vec<Value> = cases
        .iter()
        .map(|case| {
            json!({
                "file": case.file,
                "line": case.line,
                "saga": case.saga,
                "name": case.name,
                "passed": case.passed(),
                "findings": case.findings,
                "further": case.further,
            })
        })
        .collect();
    let mut report = json!({
        "cases": shown,
        "passed": cases.iter().filter(|case| case.passed()).count(),
        "failed": cases.iter().filter(|case| !case.passed()).count(),
    });
    if let Some(coverage) = coverage {
        report["coverage"] = json!(coverage);
    }
    report
}

/// All cases as JUnit XML, one suite for each file.
#[must_use]
pub fn junit(cases: &[CaseReport]) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let failed = |cases: &[&CaseReport]| cases.iter().filter(|case| !case.passed()).count();
    let all: Vec<&CaseReport> = cases.iter().collect();
    let _ = writeln!(
        out,
        "<testsuites tests=\"{}\" failures=\"{}\">",
        all.len(),
        failed(&all)
    );
    for suite in cases.chunk_by(|left, right| left.file == right.file) {
        let suite: Vec<&CaseReport> = suite.iter().collect();
        let _ = writeln!(
            out,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\">",
            escaped(&suite[0].file),
            suite.len(),
            failed(&suite)
        );
        for case in suite {
            let _ = write!(
                out,
                "    <testcase name=\"{}\" classname=\"{}\" file=\"{}\" line=\"{}\"",
                escaped(&case.name),
                escaped(&case.saga),
                escaped(&case.file),
                case.line
            );
            if case.passed() {
                out.push_str("/>\n");
                continue;
            }
            out.push_str(">\n");
            for finding in &case.findings {
                let _ = writeln!(
                    out,
                    "      <failure type=\"{}\" message=\"{}\">{}</failure>",
                    finding.code,
                    escaped(&finding.message),
                    escaped(&finding.to_string())
                );
            }
            out.push_str("    </testcase>\n");
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

/// Text as it may stand in XML; what XML 1.0 cannot hold becomes a question mark.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}
