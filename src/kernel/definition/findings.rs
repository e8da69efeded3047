//! Collecting what is wrong with one file, all of it, with places.

use std::ops::Range;

use super::diagnostic::{Diagnostic, Severity};

/// The findings of one file.
#[derive(Debug)]
pub struct Findings<'c> {
    path: &'c str,
    text: &'c str,
    /// Byte offsets at which lines begin; filled with the first finding.
    lines: Vec<usize>,
    list: Vec<Diagnostic>,
}

/// A finding that was just reported.
#[derive(Debug)]
pub struct Reported<'r>(&'r mut Diagnostic);

impl Reported<'_> {
    pub fn help(self, help: Option<String>) {
        self.0.help = help;
    }
}

impl<'c> Findings<'c> {
    pub fn new(path: &'c str, text: &'c str) -> Self {
        Self {
            path,
            text,
            lines: Vec::new(),
            list: Vec::new(),
        }
    }

    pub fn text(&self) -> &'c str {
        self.text
    }

    pub fn error(
        &mut self,
        code: &'static str,
        span: Range<usize>,
        message: impl Into<String>,
    ) -> Reported<'_> {
        self.report(Severity::Error, code, span, message.into())
    }

    pub fn warning(
        &mut self,
        code: &'static str,
        span: Range<usize>,
        message: impl Into<String>,
    ) -> Reported<'_> {
        self.report(Severity::Warning, code, span, message.into())
    }

    pub fn has_errors(&self) -> bool {
        self.list
            .iter()
            .any(|finding| finding.severity == Severity::Error)
    }

    pub fn has(&self, code: &str) -> bool {
        self.list.iter().any(|finding| finding.code == code)
    }

    /// The findings by place. One that an alias repeats is told once.
    pub fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.list.sort_by(|left, right| {
            (left.span.start, left.code, &left.message).cmp(&(right.span.start, right.code, &right.message))
        });
        self.list.dedup();
        self.list
    }

    /// The 1-based line of a byte offset.
    pub fn line(&mut self, offset: usize) -> usize {
        if self.lines.is_empty() {
            self.lines.push(0);
            let ends = self.text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
            self.lines.extend(ends.map(|(at, _)| at + 1));
        }
        self.lines.partition_point(|begin| *begin <= offset)
    }

    fn report(
        &mut self,
        severity: Severity,
        code: &'static str,
        span: Range<usize>,
        message: String,
    ) -> Reported<'_> {
        let line = self.line(span.start);
        let before = self
            .text
            .get(self.lines[line - 1]..span.start)
            .unwrap_or_default();
        self.list.push(Diagnostic {
            code,
            severity,
            file: self.path.to_owned(),
            line,
            column: before.chars().count() + 1,
            span,
            message,
            help: None,
        });
        let last = self.list.len() - 1;
        Reported(&mut self.list[last])
    }
}
