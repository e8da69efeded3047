//! Findings as frames with an excerpt, for people at a terminal.
//!
//! For programs a finding is serialized as it is; the fields are the same.

use std::io::IsTerminal;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use crate::kernel::definition::{Diagnostic, Severity};

/// Lines shown before the one that a finding is about.
const LINES_BEFORE: usize = 2;
/// Widest excerpt, in columns; longer lines are cut around the finding.
const WIDTH: usize = 120;

/// Whether frames have colours that go to `stream`.
pub fn coloured(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Renders findings in their order, each with the lines around its place where `text_of` its file is known.
pub fn render(diagnostics: &[Diagnostic], text_of: &dyn Fn(&str) -> Option<Arc<str>>, color: bool) -> String {
    let renderer = if color {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let renderer = renderer.decor_style(DecorStyle::Ascii).term_width(WIDTH);
    let mut out = String::new();
    for diagnostic in diagnostics {
        let text = text_of(&diagnostic.file);
        out.push_str(&renderer.render(&[frame(diagnostic, text.as_deref())]));
        out.push_str("\n\n");
    }
    out
}

/// A line without anything that a terminal would obey: names in it come from files.
pub fn plain(line: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    line.chars().map(visible).collect()
}

fn frame<'d>(diagnostic: &'d Diagnostic, text: Option<&'d str>) -> Group<'d> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(&diagnostic.message).id(diagnostic.code);
    let group = match text.and_then(|text| excerpt(text, diagnostic)) {
        Some(excerpt) => title.element(
            Snippet::source(excerpt.text)
                .line_start(excerpt.first_line)
                .path(&diagnostic.file)
                .fold(false)
                .annotation(AnnotationKind::Primary.span(excerpt.span)),
        ),
        None if diagnostic.line == 0 => title.element(Origin::path(&diagnostic.file)),
        None => title.element(
            Origin::path(&diagnostic.file)
                .line(diagnostic.line)
                .char_column(diagnostic.column),
        ),
    };
    match &diagnostic.help {
        Some(help) => group.element(Level::HELP.message(help)),
        None => group,
    }
}

struct Excerpt<'t> {
    text: &'t str,
    first_line: usize,
    /// Of the finding, within `text`.
    span: Range<usize>,
}

/// Cuts out the lines of a finding and a few before, so that a large file is not scanned for each.
fn excerpt<'t>(text: &'t str, diagnostic: &Diagnostic) -> Option<Excerpt<'t>> {
    let Range { start, end } = diagnostic.span;
    if diagnostic.line == 0
        || text.is_empty()
        || !text.is_char_boundary(start)
        || !text.is_char_boundary(end)
        || end < start
    {
        return None;
    }
    let mut begin = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let mut first_line = diagnostic.line;
    for _ in 0..LINES_BEFORE {
        if begin == 0 {
            break;
        }
        begin = text[..begin - 1].rfind('\n').map_or(0, |at| at + 1);
        first_line -= 1;
    }
    let stop = text[end..].find('\n').map_or(text.len(), |at| end + at);
    Some(Excerpt {
        text: &text[begin..stop],
        first_line: first_line.max(1),
        span: start - begin..end - begin,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(span: Range<usize>, message: &str) -> Diagnostic {
        Diagnostic {
            code: "SR0105",
            severity: Severity::Error,
            file: "sagas/a.yaml".to_owned(),
            line: 2,
            column: 1,
            span,
            message: message.to_owned(),
            help: Some("did you mean \"b\"?".to_owned()),
        }
    }

    fn shown(finding: Diagnostic, text: Option<&str>, color: bool) -> String {
        render(&[finding], &|_| text.map(Arc::from), color)
    }

    #[test]
    fn a_finding_is_framed_with_the_lines_before_it() {
        let shown = shown(finding(5..6, "unknown key"), Some("a: 1\nc: 2\nd: 3\n"), false);
        insta::assert_snapshot!(shown, @r#"
        error[SR0105]: unknown key
         --> sagas/a.yaml:2:1
          |
        1 | a: 1
        2 | c: 2
          | ^
          |
          = help: did you mean "b"?
        "#);
    }

    #[test]
    fn a_finding_without_its_text_still_tells_the_place() {
        let shown = shown(finding(5..6, "unknown key"), None, false);
        insta::assert_snapshot!(shown, @r#"
        error[SR0105]: unknown key
        --> sagas/a.yaml:2:1
         = help: did you mean "b"?
        "#);
    }

    #[test]
    fn a_file_that_became_shorter_since_does_no_harm() {
        for text in ["", "a", "a: é"] {
            assert!(shown(finding(5..6, "unknown key"), Some(text), false).contains("sagas/a.yaml:2:1"));
        }
    }

    #[test]
    fn nothing_from_a_file_reaches_the_terminal_as_a_control_sequence() {
        let text = "a: 1\nc: \u{1b}[31mred\u{7}\n";
        let shown = shown(finding(5..6, "unknown key \u{1b}[2J"), Some(text), false);
        assert!(!shown.contains('\u{1b}') && !shown.contains('\u{7}'), "{shown:?}");
    }

    #[test]
    fn colour_is_only_used_when_asked_for() {
        let text = Some("a: 1\nc: 2\n");
        assert!(shown(finding(5..6, "unknown key"), text, true).contains('\u{1b}'));
        assert!(!shown(finding(5..6, "unknown key"), text, false).contains('\u{1b}'));
    }
}
