//! Which branches of a definition the cases run, told by the kernel while it decides.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::Serialize;

use super::branches;
use crate::kernel::definition::{Definition, SourceFile};
use crate::kernel::patch::Note;
use crate::kernel::transition::Trace;

/// Names of branches that were run.
pub type Covered = BTreeSet<String>;

/// How much of one saga the cases run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Coverage {
    pub saga: String,
    pub file: String,
    pub branches: usize,
    pub covered: usize,
    pub uncovered: Vec<Uncovered>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Uncovered {
    pub line: usize,
    pub branch: String,
}

impl Coverage {
    /// What of `definition`, which stands in `file`, is in `covered`.
    #[must_use]
    pub fn of(definition: &Definition, file: &SourceFile, covered: &Covered) -> Self {
        let all = branches::all(definition, file);
        let branches = all.len();
        let uncovered: Vec<Uncovered> = all
            .into_iter()
            .filter(|branch| !covered.contains(&branch.name))
            .map(|branch| Uncovered {
                line: branch.line,
                branch: branch.name,
            })
            .collect();
        Self {
            saga: definition.name.to_string(),
            file: file.path.clone(),
            branches,
            covered: branches - uncovered.len(),
            uncovered,
        }
    }

    /// Whether at least `percent` of the branches are run.
    #[must_use]
    pub fn reaches(&self, percent: u8) -> bool {
        self.covered * 100 >= self.branches * usize::from(percent)
    }

    /// The share of branches that are run, in whole percent, rounded down.
    #[must_use]
    pub fn percent(&self) -> usize {
        (self.covered * 100).checked_div(self.branches).unwrap_or(100)
    }
}

/// Listens to one transition.
#[derive(Debug, Default)]
pub struct Listener(RefCell<Covered>);

impl Trace for Listener {
    fn tested(&self, place: String, held: bool) {
        self.0.borrow_mut().insert(format!("{place} is {held}"));
    }

    fn taken(&self, place: String) {
        self.0.borrow_mut().insert(format!("{place} is taken"));
    }
}

impl Listener {
    /// Hears that somebody has the instance undone.
    pub fn cancelled(&self) {
        self.0.borrow_mut().insert(branches::CANCELLED.to_owned());
    }

    /// What it heard, and what the notes of the transition tell besides.
    #[must_use]
    pub fn heard(self, notes: &[Note]) -> Covered {
        let mut covered = self.0.into_inner();
        covered.extend(notes.iter().filter_map(told));
        covered
    }
}

fn told(note: &Note) -> Option<String> {
    Some(match note {
        Note::StepDone { step } => format!("steps.{step} is done"),
        Note::StepFailed { step, .. } => format!("steps.{step} fails"),
        Note::StepSkipped { step } => format!("steps.{step} is skipped"),
        Note::AttemptFailed { step, .. } => format!("steps.{step}.retry is used"),
        Note::BranchTaken { step, branch } => format!("steps.{step}.choice[{branch}] is taken"),
        Note::StepWaits { step } => format!("steps.{step} waits"),
        Note::ItemDone { step, .. } => format!("steps.{step}.foreach item is done"),
        Note::ItemFailed { step, .. } => format!("steps.{step}.foreach item fails"),
        Note::CompensationStarted { step, .. } => format!("steps.{step}.compensate is run"),
        Note::StateEntered { state } => format!("machine.{state} is entered"),
        Note::TimerFired { timer } => format!("timers.{timer} fires"),
        Note::Ended { phase } => format!("finally.{phase} is reached"),
        _ => return None,
    })
}
