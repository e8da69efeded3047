//! Collecting what is wrong with one file, all of it, with places.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::codes;
use super::diagnostic::{Diagnostic, Severity};

/// Most findings of one severity in one file. Nobody reads more, and each costs time and memory.
const FINDINGS_MAX: usize = 100;

/// Most findings about expressions that an alias may repeat.
const EVERYWHERE_MAX: usize = 1_000;

/// The findings of one file.
#[derive(Debug)]
pub struct Findings<'c> {
    path: &'c str,
    text: &'c str,
    /// Byte offsets at which lines begin; filled with the first finding.
    lines: Vec<usize>,
    list: Vec<Diagnostic>,
    /// How often the expressions at a place were checked: an alias repeats them in other places of the definition.
    checked: BTreeMap<usize, usize>,
    /// What is true of an expression only if it is in all places where an alias repeats it, by the place of the
    /// expression.
    everywhere: Vec<(usize, Diagnostic)>,
    /// Steps whose results expressions may read later; none for any step.
    results_read: BTreeSet<Option<String>>,
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
            checked: BTreeMap::new(),
            everywhere: Vec::new(),
            results_read: BTreeSet::new(),
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

    /// Notes of which steps an expression may read the result; none where it may be any step.
    pub fn read_results(&mut self, steps: impl IntoIterator<Item = Option<String>>) {
        self.results_read.extend(steps);
    }

    /// Whether an expression of the file may read the result of this step.
    pub fn reads_result_of(&self, step: &str) -> bool {
        self.results_read.contains(&None) || self.results_read.contains(&Some(step.to_owned()))
    }

    /// Notes that the expressions of the scalar at `offset` are checked.
    pub fn checking(&mut self, offset: usize) {
        *self.checked.entry(offset).or_default() += 1;
    }

    /// Takes the finding that was reported last for one about the scalar at `offset` that has to be made everywhere.
    pub fn everywhere(&mut self, offset: usize) {
        let is_room = self.everywhere.len() < EVERYWHERE_MAX;
        // Beyond the bound on findings the last one is another.
        let finding = self.list.pop_if(|finding| finding.code == codes::CERTAIN);
        self.everywhere
            .extend(finding.filter(|_| is_room).map(|finding| (offset, finding)));
    }

    fn settled(&self) -> impl Iterator<Item = &Diagnostic> {
        // What is compared may have other types in other places, so that the sentences differ.
        let is_same = |one: &(usize, Diagnostic), other: &(usize, Diagnostic)| {
            (one.0, &one.1.span) == (other.0, &other.1.span)
        };
        let first_of_all = move |(index, made): &(usize, &(usize, Diagnostic))| {
            let mut before = self.everywhere[..*index].iter();
            let times = self
                .everywhere
                .iter()
                .filter(|other| is_same(other, made))
                .count();
            !before.any(|other| is_same(other, made)) && Some(&times) == self.checked.get(&made.0)
        };
        let everywhere = self.everywhere.iter().enumerate().filter(first_of_all);
        self.list
            .iter()
            .chain(everywhere.map(|(_, (_, finding))| finding))
    }

    pub fn has_errors(&self) -> bool {
        self.settled().any(|finding| finding.severity == Severity::Error)
    }

    /// How many were told so far.
    #[allow(clippy::len_without_is_empty, reason = "a count, not a container")]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn has(&self, code: &str) -> bool {
        self.list.iter().any(|finding| finding.code == code)
    }

    /// The findings by place. One that an alias repeats is told once.
    pub fn into_sorted(self) -> Vec<Diagnostic> {
        let mut list: Vec<Diagnostic> = self.settled().cloned().collect();
        list.sort_by(|left, right| {
            (left.span.start, left.code, &left.message).cmp(&(right.span.start, right.code, &right.message))
        });
        list.dedup();
        list
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
