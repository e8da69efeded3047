//! Collecting what is wrong with one file, all of it, with places.

use std::ops::Range;

use super::codes;
use super::diagnostic::{Diagnostic, Severity};

/// Most findings of one severity in one file. Nobody reads more, and each costs time and memory.
const FINDINGS_MAX: usize = 100;

/// The findings of one file.
#[derive(Debug)]
pub struct Findings<'c> {
    path: &'c str,
    text: &'c str,
    /// Byte offsets at which lines begin; filled with the first finding.
    lines: Vec<usize>,
    list: Vec<Diagnostic>,
}

/// A finding that was just reported; `None` beyond the bound.
#[derive(Debug)]
pub struct Reported<'r>(Option<&'r mut Diagnostic>);

impl Reported<'_> {
    pub fn help(self, help: Option<String>) {
        if let Some(finding) = self.0 {
            finding.help = help;
        }
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

    pub fn path(&self) -> &'c str {
        self.path
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

    /// A byte offset as `file:line:column`, both 1-based.
    pub fn place(&self, offset: usize) -> String {
        let before = self.text.get(..offset).unwrap_or_default();
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let begin = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before[begin..].chars().count() + 1;
        format!("{}:{line}:{column}", self.path)
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
        let same = self.list.iter().filter(|finding| finding.severity == severity);
        match same.count() {
            told if told < FINDINGS_MAX => {
                self.push(severity, code, span, message);
                Reported(self.list.last_mut())
            }
            FINDINGS_MAX => {
                let message = format!("more than {FINDINGS_MAX} findings; the rest is not shown");
                self.push(severity, codes::LIMIT, span, message);
                Reported(None)
            }
            _ => Reported(None),
        }
    }

    fn push(&mut self, severity: Severity, code: &'static str, span: Range<usize>, message: String) {
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
    }
}
