//! Suites of cases against the definitions that they are about.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::chaos::{self, Chaos};
use super::checks;
use super::codes;
use super::compare::Fault;
use super::coverage::Covered;
use super::file::{Case, Suite};
use super::play::{Cast, play};
use super::world::Manner;
use crate::kernel::definition::{Definition, Diagnostic, Severity};
use crate::kernel::expr::nearest;
use crate::kernel::ids::SagaName;

/// What is to be done besides playing.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only cases with this in their name, or in that of their saga.
    pub filter: Option<String>,
    /// Let every piece of work fail in turn.
    pub chaos: bool,
}

/// A case and all that is wrong with it.
#[derive(Debug)]
pub struct CaseReport {
    pub file: String,
    pub saga: String,
    pub name: String,
    pub line: usize,
    pub findings: Vec<Diagnostic>,
    /// How many findings later steps of the case have, which may follow from these.
    pub further: usize,
    /// What would make its expectations true, in its file.
    pub cures: Vec<(Range<usize>, String)>,
    /// Runs with a failure, and whether the case has none because it does not come to an end by itself.
    pub chaos_runs: usize,
    pub is_open: bool,
    /// Branches that the case itself runs; failures of `chaos` do not count.
    pub covered: BTreeMap<SagaName, Covered>,
}

impl CaseReport {
    #[must_use]
    pub fn passed(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Plays the cases of `suite` that the options take.
#[must_use]
pub fn run(
    suite: &Suite,
    definitions: &BTreeMap<String, Arc<Definition>>,
    options: &Options,
) -> Vec<CaseReport> {
    let mut cases = suite.cases.iter().filter(|case| taken(suite, case, options));
    let Some(definition) = definitions.get(&suite.saga) else {
        let fault = unknown(&suite.saga, &suite.saga_span, definitions);
        return cases
            .next()
            .map(|case| report(suite, case, vec![fault]))
            .into_iter()
            .collect();
    };
    cases
        .map(|case| {
            let players = match cast(case, definition, definitions) {
                Ok(players) => players,
                Err(fault) => return report(suite, case, vec![fault]),
            };
            let played = play(suite, case, &players, Manner::Plain);
            let (mut faults, later) = (played.faults, played.later);
            let covered = played.world.as_ref().map(|world| world.covered.clone());
            let covered = covered.unwrap_or_default();
            if let (true, Some(world)) = (faults.is_empty(), &played.world) {
                faults = checks::steadiness(suite, case, &players, world);
            }
            let mut chaos = Chaos::default();
            if options.chaos && faults.is_empty() {
                chaos = chaos::run(suite, case, &players);
                faults.append(&mut chaos.faults);
            }
            let mut report = report(suite, case, faults);
            report.further = later.len();
            report
                .cures
                .extend(later.into_iter().filter_map(|fault| fault.cure));
            CaseReport {
                chaos_runs: chaos.runs,
                is_open: chaos.is_open,
                covered,
                ..report
            }
        })
        .collect()
}

fn taken(suite: &Suite, case: &Case, options: &Options) -> bool {
    let filter = options.filter.as_deref();
    filter.is_none_or(|filter| case.name.contains(filter) || suite.saga.contains(filter))
}

/// The sagas of a case.
fn cast(
    case: &Case,
    definition: &Arc<Definition>,
    definitions: &BTreeMap<String, Arc<Definition>>,
) -> Result<Cast, Fault> {
    let mut others = Vec::new();
    for (name, span) in &case.sagas {
        let Some(other) = definitions.get(name) else {
            return Err(unknown(name, span, definitions));
        };
        others.push(Arc::clone(other));
    }
    Ok(Cast {
        definition: Arc::clone(definition),
        others,
    })
}

fn unknown(name: &str, span: &Range<usize>, definitions: &BTreeMap<String, Arc<Definition>>) -> Fault {
    let message = format!("unknown saga \"{}\"", name.escape_debug());
    let help =
        nearest(name, definitions.keys().map(String::as_str)).map(|near| format!("did you mean \"{near}\"?"));
    Fault::new(codes::UNPLAYABLE, span.clone(), message, help)
}

fn report(suite: &Suite, case: &Case, faults: Vec<Fault>) -> CaseReport {
    let mut cures = Vec::new();
    let mut findings = Vec::new();
    for fault in faults {
        cures.extend(fault.cure);
        findings.push(diagnostic(
            suite,
            fault.code,
            &fault.span,
            fault.message,
            fault.help,
        ));
    }
    CaseReport {
        file: suite.path.clone(),
        saga: suite.saga.clone(),
        name: case.name.clone(),
        line: position(&suite.text, case.span.start).0,
        findings,
        further: 0,
        cures,
        chaos_runs: 0,
        is_open: false,
        covered: BTreeMap::new(),
    }
}

/// A finding at the first line of `span`.
#[must_use]
pub fn diagnostic(
    suite: &Suite,
    code: &'static str,
    span: &Range<usize>,
    message: String,
    help: Option<String>,
) -> Diagnostic {
    let inside = suite.text.get(span.clone()).unwrap_or_default();
    let length = inside.find('\n').unwrap_or(inside.len());
    let (line, column) = position(&suite.text, span.start);
    Diagnostic {
        code,
        severity: Severity::Error,
        file: suite.path.clone(),
        line,
        column,
        span: span.start..span.start + length,
        message,
        help,
    }
}

/// The 1-based line and column (in characters) of a byte offset.
#[must_use]
pub fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let begin = before.rfind('\n').map_or(0, |at| at + 1);
    (line, before[begin..].chars().count() + 1)
}
