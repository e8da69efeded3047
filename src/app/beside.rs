//! What `dev` does beside the runner: it reloads definitions when a file changes, and tells in a line what happens to each order.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::control::blocking;
use super::definitions::{self, Files, Folders};
use super::diagnostics;
use super::node::Node;
use super::out;
use super::watched::{LOOK_EVERY, Watched};
use crate::kernel::alias;
use crate::kernel::ids::TimeMs;
use crate::kernel::patch::Note;
use crate::kernel::schedule;
use crate::ports::control::{ReloadError, Reloaded};
use crate::storage::Reader;
use crate::storage::rows::{HistoryOutcome, HistoryRow};

/// Rows of the history of one shard that are told at a time.
const ROWS: usize = 500;

/// Runs until the process ends.
pub(super) async fn watch(node: Arc<Node>) {
    let in_force = Arc::clone(&node.catalog.now().files);
    let mut watched = Watched::since(&in_force);
    let Some(running) = node.running() else {
        return std::future::pending().await;
    };
    let mut told_up_to = BTreeMap::new();
    for shard in running.shards.all() {
        told_up_to.insert(shard.index, newest(&node, shard.reader).await);
    }
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let folders = Folders::Separate {
            sagas: node.manifest.sagas.clone(),
            effects: node.manifest.effects.clone(),
        };
        let files = node.tasks.blocking(move || definitions::read(&folders)).await;
        if let Ok(files) = files
            && watched.have_changed(&files)
        {
            let outcome = node.reload().await;
            tell_reload(&outcome, &files);
        }
        // Asked for again by each look: a reader that is kept holds the folder of a shard open that was closed.
        for shard in running.shards.all() {
            let from = match told_up_to.get(&shard.index) {
                Some(from) => *from,
                None => newest(&node, shard.reader.clone()).await,
            };
            let (index, reader) = (shard.index, shard.reader);
            let rows = blocking(&node.tasks, move || reader.history_since(from, ROWS)).await;
            let mut after = from;
            for (sequence, row) in rows.unwrap_or_default() {
                after = sequence;
                lines(&row).into_iter().for_each(out::note);
            }
            told_up_to.insert(index, after);
        }
    }
}

/// Up to where the history of a shard has been written.
async fn newest(node: &Node, reader: Reader) -> u64 {
    let progress = blocking(&node.tasks, move || reader.progress()).await;
    progress.map_or(0, |progress| progress.log_sequence)
}

/// Tells the outcome of a changed file: what is in force now, or every finding with its excerpt.
fn tell_reload(outcome: &Result<Reloaded, ReloadError>, files: &Result<Files, String>) {
    match outcome {
        Ok(done) => {
            let named = done.sagas.iter().map(|change| {
                let what = match (&change.from, &change.to) {
                    (None, _) => "is new",
                    (_, None) => "was removed",
                    (Some(_), Some(_)) => "changed",
                };
                format!("{} {what}", change.saga)
            });
            let effects = done.effects_changed.then(|| "effects changed".to_owned());
            let mut told: Vec<String> = named.chain(effects).collect();
            if told.is_empty() {
                told.push("nothing changed".to_owned());
            }
            told.extend(done.problems.iter().chain(&done.warnings).cloned());
            out::note(format_args!("reloaded: {}", told.join(", ")));
        }
        Err(error) => {
            let texts = files.as_ref().map(Files::texts).unwrap_or_default();
            let color = diagnostics::coloured(&std::io::stderr());
            let frames = diagnostics::render(error.findings(), &|path| texts.get(path).cloned(), color);
            out::note(frames.trim_end());
            out::note("not reloaded: the definitions of before stay in force");
            if error.findings().is_empty() {
                out::note(error);
            }
        }
    }
}

/// What one input did to an order, a line for each thing that somebody who tries out a saga looks for.
fn lines(row: &HistoryRow) -> Vec<String> {
    let id = &row.instance;
    if alias::is_address(&id.key) || schedule::is_address(&id.key) {
        return Vec::new();
    }
    let tenant = id.tenant.as_str();
    let whose = if tenant.is_empty() {
        format!("{} {}", id.saga, id.key)
    } else {
        format!("{tenant} {} {}", id.saga, id.key)
    };
    let line = |what: String| diagnostics::plain(&format!("{} {whose}: {what}", clock(row.time)));
    let own = match &row.outcome {
        HistoryOutcome::Applied => None,
        HistoryOutcome::Dead { number, reason } => Some(format!(
            "{} {} is dead letter {number}: {reason}",
            row.kind, row.input_id
        )),
        other => Some(format!("{} {} is {}", row.kind, row.input_id, other.as_str())),
    };
    let notes = row.notes.iter().filter_map(told);
    own.into_iter().chain(notes).map(line).collect()
}

/// What a note says to people; none for what only the whole history needs.
fn told(note: &Note) -> Option<String> {
    Some(match note {
        Note::Started => "started".to_owned(),
        Note::StepDone { step } => format!("{step} done"),
        Note::StepFailed { step, class } => format!("{step} failed: {class}"),
        Note::AttemptFailed { step, attempt, class } => {
            format!("{step} failed: {class} (attempt {attempt}); it is tried again")
        }
        Note::StepContinued { step, class } => format!("{step} failed: {class}; it goes on"),
        Note::StepSkipped { step } => format!("{step} skipped"),
        Note::StepWaits { step } => format!("{step} waits"),
        Note::StepAsked { step } => format!("{step} has an unknown outcome; `instance resolve` decides"),
        Note::StateEntered { state } => format!("is {state}"),
        Note::TimerFired { timer } => format!("timer {timer} fired"),
        Note::Failing { code } => format!("fails: {code}"),
        Note::CompensationDone { step } => format!("{step} undone"),
        Note::CompensationFailed { step, class } => format!("{step} could not be undone: {class}"),
        Note::CompensationSkipped { step } => format!("{step} stays done"),
        Note::CompensationAsked { step } => {
            format!("it is not known whether {step} has to be undone; `instance resolve` decides")
        }
        Note::LateResult { step, outcome } => format!("a late result of {step}: {outcome}"),
        Note::Signalled { signal, .. } => format!("signal {signal}"),
        Note::Ended { phase } => format!("ended: {phase}"),
        _ => return None,
    })
}

/// The time of day, in UTC.
fn clock(TimeMs(time): TimeMs) -> String {
    let stamp = jiff::Timestamp::from_millisecond(time).unwrap_or_default();
    stamp.strftime("%H:%M:%S").to_string()
}
