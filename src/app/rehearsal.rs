//! Migrations are tried before an instance is asked: by the transition itself, on the record as it is, and nothing of it is kept.

use crate::kernel::definition::{Definition, Diagnostic, misfits};
use crate::kernel::ids::{ClusterId, InstanceId, TimeMs};
use crate::kernel::input::{Control, Input, InputBody, Origin};
use crate::kernel::limits::Limits;
use crate::kernel::record::Record;
use crate::kernel::transition::{Context, migrate, obstacles};
use crate::kernel::work::{WorkItem, WorkKind};
use crate::ports::control::Problem;

/// What begins as soon as an instance is migrated from one version to another, or everything for which it cannot.
pub(super) struct Rehearsal<'r> {
    pub from: &'r Definition,
    pub to: &'r Definition,
    /// It goes back to where it came from.
    pub back: bool,
    /// What does not fit between the schemas of the two.
    pub misfits: &'r [Problem],
    pub limits: &'r Limits,
    pub now: TimeMs,
}

impl Rehearsal<'_> {
    pub fn of(&self, id: &InstanceId, record: &Record) -> Result<Vec<String>, Vec<Problem>> {
        let (from, target, back) = (self.from, self.to, self.back);
        let mut problems = self.misfits.to_vec();
        problems.extend(
            obstacles(from, target, record, back)
                .into_iter()
                .map(|found| Problem {
                    at: found.at,
                    message: found.message,
                }),
        );
        if !problems.is_empty() {
            return Err(problems);
        }
        let input = Input {
            instance: id.clone(),
            // No request has an empty id.
            id: String::new(),
            time: self.now,
            origin: Origin::Local,
            body: InputBody::Control(Control::Migrate {
                to: target.hash,
                back,
            }),
        };
        let context = Context {
            limits: self.limits,
            // A rehearsal sends nothing.
            cluster: ClusterId::OFFLINE,
            log_sequence: 0,
            generation: record.generation,
            again: false,
        };
        let rehearsed = migrate(from, target, id, record, &input, &context);
        let host = if back { from } else { target };
        let patch = rehearsed.map_err(|rejection| {
            vec![Problem {
                at: host.migration.places.of("set").to_owned(),
                message: rejection.message,
            }]
        })?;
        Ok(patch.work.iter().map(started).collect())
    }
}

/// What does not fit between the schemas of two versions.
pub(super) fn misfit(from: &Definition, to: &Definition, back: bool) -> Vec<Problem> {
    misfits(from, to, back).into_iter().map(problem).collect()
}

/// Work in a few words: the part of the definition that asks for it, and what it is.
fn started(item: &WorkItem) -> String {
    let what = match &item.kind {
        WorkKind::Effect { effect, .. } => format!("effect {effect}"),
        WorkKind::Command { command_type, .. } => format!("command {command_type}"),
        WorkKind::Fact { fact_type, .. } => format!("fact {fact_type}"),
        WorkKind::Saga { saga, .. } => format!("saga {saga}"),
        WorkKind::Result { effect, .. } | WorkKind::Cancel { effect, .. } => {
            format!("message about {effect}")
        }
    };
    format!("{}: {what}", item.path)
}

fn problem(finding: Diagnostic) -> Problem {
    let code = finding.code;
    Problem {
        at: format!("{}:{}:{}", finding.file, finding.line, finding.column),
        message: match finding.help {
            None => format!("{} [{code}]", finding.message),
            Some(help) => format!("{}; {help} [{code}]", finding.message),
        },
    }
}
