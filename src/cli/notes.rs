//! Entries of the history of an instance in words: what came, and what it did.

use serde_json::Value;

use super::output::{Column, Mood, plain};

/// What each note says. `{attempt}` is told from the second one on, `{account}` is who has decided and why.
const TEXTS: &[(&str, &str)] = &[
    ("started", "started"),
    ("step_started", "step {step} started{attempt}"),
    ("step_done", "step {step} done"),
    ("step_failed", "step {step} failed: {class}"),
    ("step_skipped", "step {step} skipped"),
    ("step_abandoned", "step {step} abandoned"),
    ("late_result", "late result of step {step}: {outcome}"),
    ("state_entered", "state {state} entered"),
    ("timer_set", "timer {timer} set for {due}"),
    ("timer_fired", "timer {timer} fired"),
    ("timer_cleared", "timer {timer} cleared"),
    ("emitted", "{work} emitted"),
    ("failing", "fails with {code}"),
    ("compensation_started", "compensation of {step} started{attempt}"),
    ("compensation_done", "compensation of {step} done"),
    ("compensation_failed", "compensation of {step} failed: {class}"),
    ("ended", "ended: {phase}"),
    ("command_refused", "command {command} rejected: {class}"),
    ("branch_taken", "step {step} takes branch {branch}"),
    (
        "attempt_failed",
        "step {step} failed{attempt}: {class}, another attempt follows",
    ),
    (
        "step_continued",
        "step {step} failed: {class}, it continues as if done",
    ),
    ("went_back", "went back to step {step}"),
    ("turn_started", "turn {turn} of step {step} started"),
    ("items_started", "step {step} started with {items} item(s)"),
    ("item_done", "item {item} of step {step} done"),
    ("item_failed", "item {item} of step {step} failed: {class}"),
    ("step_delayed", "step {step} starts later"),
    ("step_waits", "step {step} waits"),
    ("buffered", "{name} came early and is kept"),
    ("signalled", "signal {signal}{account}"),
    ("migrated", "migrated from {from} to {to}"),
    ("compensation_skipped", "compensation of {step} skipped"),
    (
        "compensation_asked",
        "an operator is asked whether to compensate {step}",
    ),
    ("stuck_decided", "step {step}: {verdict}{account}"),
    ("finally_failed", "{step} of finally failed: {class}"),
    ("called_back", "callback for {work}"),
    ("work_ended", "work {work} ended: {outcome}"),
    ("completed_early", "completed early: {outcome}"),
    ("heartbeat", "heartbeat of step {step}"),
    ("alias_registered", "alias {alias} {value} registered"),
    ("alias_released", "alias {alias} {value} released"),
    (
        "step_asked",
        "an operator is asked for the outcome of step {step}",
    ),
    (
        "sequence_known",
        "its sequence is {sequence}, {highest} was applied already",
    ),
    ("too_early", "{name} came too early and is not kept"),
    ("still_running", "step {step} still runs"),
    ("alias_refused", "alias {alias} {value} rejected"),
    ("alias_accepted", "alias {alias} {value} accepted"),
    ("operated", "{verb}{account}"),
    ("refused", "rejected: {message}"),
    ("edited", "with edited data"),
    ("letter_decided", "decided{account}"),
];

/// What is told last: a cell of a table may be cut.
const LAST: &[&str] = &["timer_set", "timer_cleared", "emitted"];

/// The columns of a history. The first has the title of the table.
pub const fn columns(title: &'static str) -> [Column; 7] {
    [
        Column::time(title, "/time"),
        Column::number("SEQUENCE", "/sequence"),
        Column::value("OUTCOME", "/outcome").judged(judged),
        Column::value("INPUT", "/kind"),
        Column::told("NOTES", told),
        Column::value("STREAM", "/stream").wide(),
        Column::value("ID", "/input").wide(),
    ]
}

fn judged(outcome: &str) -> Mood {
    match outcome {
        "dead" => Mood::Bad,
        "deferred" => Mood::Waiting,
        _ => Mood::Plain,
    }
}

/// What an entry of a history did, in words. Of a dead letter it has `letter`, once it is [named](name_letters).
pub fn told(entry: &Value) -> String {
    let (mut parts, mut last) = (Vec::new(), Vec::new());
    if entry["outcome"] == "cut" {
        return "deleted: longer than storage.keep_history_count".to_owned();
    }
    if entry["outcome"] == "dead" {
        parts.push(letter(&entry["letter"]));
    }
    for note in entry["notes"].as_array().into_iter().flatten() {
        let named = note.as_str().map(|name| (name, &Value::Null));
        let tagged = note.as_object().into_iter().flatten();
        let tagged = tagged.map(|(name, fields)| (name.as_str(), fields));
        for (name, fields) in named.into_iter().chain(tagged) {
            if LAST.contains(&name) {
                last.push(of_note(name, fields));
            } else {
                parts.push(of_note(name, fields));
            }
        }
    }
    if entry["late_source"] == true {
        parts.push("taken while a stream could not be read that may have earlier inputs".to_owned());
    }
    parts.append(&mut last);
    parts.join("; ")
}

/// Gives entries that are dead letters the letter, of those that are still there. Entries are newest first: an input may have been
/// a dead letter before, which an operator has decided about.
pub fn name_letters(entries: &mut [Value], letters: &[Value]) {
    for letter in letters {
        let is_its = |entry: &&mut Value| {
            entry["outcome"] == "dead"
                && entry["time"] == letter["time"]
                && entry["kind"] == letter["subject"]
        };
        if let Some(entry) = entries.iter_mut().find(is_its) {
            entry["letter"] = letter.clone();
        }
    }
}

fn letter(letter: &Value) -> String {
    let text = |key: &str| letter[key].as_str().unwrap_or_default();
    if letter.is_object() {
        format!(
            "dead letter {} {}: {}",
            text("id"),
            text("reason"),
            text("message")
        )
    } else {
        "dead letter".to_owned()
    }
}

fn of_note(name: &str, fields: &Value) -> String {
    match TEXTS.iter().find(|(of, _)| *of == name) {
        Some((_, text)) => filled(text, fields),
        None => of_unknown(name, fields),
    }
}

/// Of a runner that knows more notes: `step_moved step=pay`.
fn of_unknown(name: &str, fields: &Value) -> String {
    let fields = fields.as_object().into_iter().flatten();
    let fields = fields.map(|(key, value)| format!(" {key}={}", plain(value)));
    format!("{name}{}", fields.collect::<String>())
}

/// The text with its fields.
fn filled(text: &str, fields: &Value) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        let (name, behind) = behind.split_once('}').unwrap_or((behind, ""));
        filled.push_str(before);
        filled.push_str(&field(name, fields));
        rest = behind;
    }
    filled.push_str(rest);
    filled
}

fn field(name: &str, fields: &Value) -> String {
    match name {
        "attempt" => match fields["attempt"].as_u64() {
            Some(attempt) if attempt > 1 => format!(" (attempt {attempt})"),
            _ => String::new(),
        },
        "account" => account(fields),
        name => plain(&fields[name]),
    }
}

/// ` by ann (job job-1): a reason`, as far as it is known.
fn account(fields: &Value) -> String {
    let known = |key: &str| fields[key].as_str().filter(|text| !text.is_empty());
    let by = known("by").map(|by| format!(" by {by}"));
    let job = known("job").map(|job| format!(" (job {job})"));
    let reason = known("reason").map(|reason| format!(": {reason}"));
    [by, job, reason].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kernel::ids::TimeMs;
    use crate::kernel::patch::Note;

    fn of(notes: &[Note]) -> String {
        told(&json!({"outcome": "applied", "notes": notes}))
    }

    #[test]
    fn notes_are_told_in_words_and_those_about_timers_last() {
        let step = || "charge".to_owned();
        let notes = [
            Note::TimerSet {
                timer: "unpaid".to_owned(),
                due: TimeMs(1_764_000_000_000),
            },
            Note::StepFailed {
                step: step(),
                class: "declined".to_owned(),
            },
            Note::StepStarted {
                step: step(),
                attempt: 2,
            },
            Note::StepStarted {
                step: "ship".to_owned(),
                attempt: 1,
            },
            Note::Started,
        ];
        assert_eq!(
            of(&notes),
            "step charge failed: declined; step charge started (attempt 2); step ship started; started; \
             timer unpaid set for 2025-11-24T16:00:00.000Z"
        );
        assert_eq!(of(&[]), "");
    }

    #[test]
    fn decisions_are_told_with_who_and_why() {
        let operated = |by: &str, reason: &str| {
            of(&[Note::Operated {
                verb: "pause".to_owned(),
                by: by.to_owned(),
                reason: reason.to_owned(),
            }])
        };
        assert_eq!(operated("ann", "ticket 4"), "pause by ann: ticket 4");
        assert_eq!(operated("ann", ""), "pause by ann");
        assert_eq!(operated("", "ticket 4"), "pause: ticket 4");
        assert_eq!(operated("", ""), "pause");
        let decided = Note::LetterDecided {
            by: "ann".to_owned(),
            reason: "ticket 5".to_owned(),
            job: "job-1".to_owned(),
        };
        assert_eq!(of(&[decided]), "decided by ann (job job-1): ticket 5");
        let stuck = Note::StuckDecided {
            step: "charge".to_owned(),
            verdict: "skip".to_owned(),
            by: "ann".to_owned(),
            reason: "refunded by hand".to_owned(),
        };
        assert_eq!(of(&[stuck]), "step charge: skip by ann: refunded by hand");
    }

    #[test]
    fn a_dead_entry_has_the_id_and_the_reason_of_its_letter() {
        let mut entries = [
            json!({"outcome": "dead", "kind": "event a", "time": "t1", "notes": []}),
            json!({"outcome": "dead", "kind": "event a", "time": "t1", "notes": []}),
            json!({"outcome": "applied", "kind": "event a", "time": "t1", "notes": []}),
        ];
        let letter = json!({"id": "0-12", "subject": "event a", "time": "t1", "reason": "event.schema", "message": "no"});
        name_letters(&mut entries, &[letter]);
        assert_eq!(told(&entries[0]), "dead letter 0-12 event.schema: no");
        assert_eq!(
            told(&entries[1]),
            "dead letter",
            "an operator has decided about it"
        );
        assert_eq!(told(&entries[2]), "");
    }

    #[test]
    fn a_note_of_a_later_version_is_told_with_its_fields() {
        let entry =
            json!({"outcome": "applied", "notes": ["rested", {"step_moved": {"step": "pay", "to": 3}}]});
        assert_eq!(told(&entry), "rested; step_moved step=pay to=3");
    }

    /// Read from the source: an enum has no list of its variants.
    #[test]
    fn every_note_of_the_kernel_has_a_text() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/kernel/src/patch.rs");
        let source = std::fs::read_to_string(path).expect("the source of the kernel");
        let (_, notes) = source.split_once("pub enum Note {\n").expect("the notes");
        let (notes, _) = notes.split_once("\n}\n").expect("their end");
        let mut found = 0;
        for line in notes.lines() {
            let variant = line.strip_prefix("    ").unwrap_or_default();
            if !variant.starts_with(|c: char| c.is_ascii_uppercase()) {
                continue;
            }
            let mut name = String::new();
            for c in variant.chars().take_while(char::is_ascii_alphanumeric) {
                if c.is_ascii_uppercase() && !name.is_empty() {
                    name.push('_');
                }
                name.push(c.to_ascii_lowercase());
            }
            assert!(TEXTS.iter().any(|(of, _)| *of == name), "{name}");
            found += 1;
        }
        assert_eq!(found, TEXTS.len());
    }
}
