//! Sagas that a program decides: what it is told of an input, and doing what it answers.
//!
//! The instance ends when the program has said so, or failed or was cancelled, and nothing is under way any more:
//! no work whose outcome is awaited, and no timer. Until then the program hears of every outcome and can undo what
//! it has to. There is no ledger: what must be undone is the program's to know.

use std::borrow::Cow;

use bytes::Bytes;
use saga_runner_language::definition::model::{COMMAND_TIMEOUT_MS, EFFECT_TIMEOUT_MS, ProgramDefinition};
use saga_runner_language::json::Json;
use saga_runner_language::program::Failure;
use saga_runner_language::program::answer::{self, End, Work};

use super::attempts::Ending;
use super::emission::Repetition;
use super::results::Told;
use super::run::Run;
use super::{Rejection, failure, messages};
use crate::input::{CancelMode, WorkOutcome};
use crate::patch::Note;
use crate::record::{PROGRAM_TRIES_MAX, Pending, Phase, ProgramState, ProgramTries, Record, Tries};
use crate::work::WorkKind;

/// Most work of one instance whose outcome is to come.
const PENDING_MAX: usize = 256;
/// Most timers of one instance.
const TIMERS_MAX: usize = 256;
/// Reason of an answer that cannot be done as it stands.
const ANSWER: &str = "program.answer";

type Members<'j> = Vec<(Cow<'static, str>, Json<'j>)>;

/// Whether events of this type go to the program of the definition.
pub(super) fn listens(program: Option<&ProgramDefinition>, event_type: &str) -> bool {
    program.is_some_and(|program| program.events.iter().any(|listened| listened == event_type))
}

/// Whether a program decides, and has not come to its end: it undoes by itself what it did.
pub(super) fn is_asked(run: &Run<'_>) -> bool {
    let goes_on = matches!(run.record.phase, Phase::Running | Phase::Compensating);
    goes_on && run.ground.definition.program.is_some()
}

/// The event that is the input.
pub(super) fn event(run: &mut Run<'_>) -> Result<(), Rejection> {
    let event = run.event_root()?.clone();
    decide(run, "event", vec![(Cow::Borrowed("event"), event)])
}

/// A request has started the instance with `input`.
pub(super) fn request(run: &mut Run<'_>, input: &[u8]) -> Result<(), Rejection> {
    let input = run.parse_owned(input.to_vec(), "input")?.clone();
    decide(run, "start", vec![(Cow::Borrowed("input"), input)])
}

pub(super) fn signal<'a>(run: &mut Run<'a>, message: messages::Message<'a>) -> Result<(), Rejection> {
    let signal = message.value().clone();
    decide(run, "signal", vec![(Cow::Borrowed("signal"), signal)])
}

/// A timer of the program has fired.
pub(super) fn timer(run: &mut Run<'_>, name: &str) -> Result<(), Rejection> {
    decide(run, "timer", vec![(Cow::Borrowed("timer"), text(name))])
}

/// The instance is cancelled; what has to be undone, the program asks for now.
pub(super) fn cancel(run: &mut Run<'_>, reason: &str, mode: CancelMode) -> Result<(), Rejection> {
    let mode = match mode {
        CancelMode::Compensate => "compensate",
        CancelMode::Drain => "drain",
        CancelMode::Abandon => "abandon",
    };
    let members = vec![
        (Cow::Borrowed("reason"), text(reason)),
        (Cow::Borrowed("mode"), text(mode)),
    ];
    decide(run, "cancel", members)
}

/// Which of the pending work waits for the result of a command.
pub(super) fn waiting(record: &Record, is: impl Fn(&Pending) -> bool) -> Option<usize> {
    record.program.as_ref()?.pending.iter().position(is)
}

/// Work that the program has asked for has ended.
pub(super) fn ended(run: &mut Run<'_>, at: usize, told: Told<'_, '_>) -> Result<(), Rejection> {
    let program = run.record.program.get_or_insert_default();
    let Pending { name, outstanding } = program.pending.remove(at);
    run.completed.push(outstanding.row);
    remember(run.record.program.get_or_insert_default(), &name, told.outcome);
    if run.is_failing() {
        // The program cannot be asked about this one; about what else is under way it will be.
        note_end(run, &name, told.flaw.map_or("failed", |flaw| flaw.class));
        let (class, message) = told.flaw.map_or(("", ""), |flaw| (flaw.class, flaw.message));
        return failure::fail(run, failure::Cause::declared(class, message.to_owned(), None));
    }
    let (class, message, unknown) = match (told.outcome, told.flaw) {
        (WorkOutcome::Succeeded { payload } | WorkOutcome::Unusable { payload, .. }, flaw) => {
            note_end(run, &name, flaw.map_or("succeeded", |flaw| flaw.class));
            let what = format!("the result of {name}");
            let result = run.parse_owned(payload.to_vec(), &what)?.clone();
            let mut members = vec![
                (Cow::Borrowed("name"), text(&name)),
                (Cow::Borrowed("result"), result),
            ];
            let Some(flaw) = flaw else {
                return decide(run, "result", members);
            };
            // It has happened, so the program may have to undo it.
            let error = vec![
                (Cow::Borrowed("class"), text(flaw.class)),
                (Cow::Borrowed("message"), text(flaw.message)),
                (Cow::Borrowed("unknown"), Json::Bool(false)),
                (Cow::Borrowed("done"), Json::Bool(true)),
            ];
            members.push((Cow::Borrowed("error"), Json::Map(error)));
            return decide(run, "error", members);
        }
        (WorkOutcome::Failed { class, message, .. }, _) => (class.as_str(), message, false),
        (WorkOutcome::TimedOut { class, message }, _) => (class.as_str(), message, true),
    };
    note_end(run, &name, class);
    let error = vec![
        (Cow::Borrowed("class"), text(class)),
        (Cow::Borrowed("message"), text(message)),
        (Cow::Borrowed("unknown"), Json::Bool(unknown)),
    ];
    let members = vec![
        (Cow::Borrowed("name"), text(&name)),
        (Cow::Borrowed("error"), Json::Map(error)),
    ];
    decide(run, "error", members)
}

/// Remembers the outcome of the work of a name, as a step does of its attempts: asked for again, it has the same key
/// unless it was refused. A name for which there is no room keeps its key.
fn remember(program: &mut ProgramState, name: &str, outcome: &WorkOutcome) {
    let known = program.tries.iter().position(|tries| tries.name == name);
    let before = known.map(|at| program.tries.remove(at));
    let mut tries = before.unwrap_or_else(|| ProgramTries {
        name: name.to_owned(),
        ..ProgramTries::default()
    });
    if outcome.has_happened() {
        // What is unknown of earlier attempts is known now: all of them are the same work.
        tries.unknown = false;
    } else {
        let mut ended = Tries {
            round: tries.round,
            unknown: tries.unknown,
            ..Tries::default()
        };
        ended.end(Ending::of(outcome));
        (tries.round, tries.unknown) = (ended.round, ended.unknown);
    }
    if tries.round == 0 && !tries.unknown {
        return;
    }
    if program.tries.len() >= PROGRAM_TRIES_MAX {
        // An old refusal would come once more; an attempt whose outcome is unknown must not get a second key.
        let Some(oldest) = program.tries.iter().position(|tries| !tries.unknown) else {
            return;
        };
        program.tries.remove(oldest);
    }
    program.tries.push(tries);
}

fn note_end(run: &mut Run<'_>, name: &str, outcome: &str) {
    run.note(Note::WorkEnded {
        work: path_of(name),
        outcome: outcome.to_owned(),
    });
}

/// Whether a program has nothing under way. A saga without one has other things to look at.
pub(super) fn is_idle(record: &Record) -> bool {
    let Some(program) = &record.program else {
        return true;
    };
    program.pending.is_empty() && record.timers.is_empty()
}

/// Whether a program has said that the instance is complete, and it is.
pub(super) fn is_complete(program: &ProgramState, record: &Record) -> bool {
    program.completing && is_idle(record)
}

/// Asks the program, and does what it answers.
fn decide(run: &mut Run<'_>, kind: &'static str, mut input: Members<'_>) -> Result<(), Rejection> {
    let Some(program) = &run.ground.definition.program else {
        return Err(Rejection {
            reason: "definition.mismatch",
            message: "the definition has no program".to_owned(),
        });
    };
    let count = |number: u64| Json::Int(i64::try_from(number).unwrap_or(i64::MAX));
    input.extend([
        (Cow::Borrowed("kind"), text(kind)),
        (Cow::Borrowed("key"), text(run.ground.instance.key.as_str())),
        (Cow::Borrowed("seq"), count(run.record.version)),
        (Cow::Borrowed("time"), Json::Int(run.record.updated.0)),
        (Cow::Borrowed("phase"), text(run.record.phase.as_str())),
    ]);
    let mut bytes = Vec::with_capacity(512);
    Json::Map(input).write(&mut bytes);
    let refused = |message: String| Rejection {
        reason: ANSWER,
        message: format!("{} at input \"{kind}\": {message}", program.file),
    };
    let answer = program
        .module
        .call(run.data, &bytes)
        .map_err(|failure| Rejection {
            reason: match failure {
                Failure::Fuel => "fuel",
                Failure::Trap(_) => "program.trap",
                Failure::Answer(_) => ANSWER,
            },
            ..refused(failure.to_string())
        })?;
    let depth_max = run.ground.context.limits.json_depth;
    let answer = answer::read(&answer, depth_max).map_err(|error| refused(error.to_string()))?;
    if answer.state != run.data {
        run.replace_data(answer.state);
    }
    let running = run.is_running();
    match answer.end {
        Some(End::Complete) if running => {
            run.record.program.get_or_insert_default().completing = true;
            run.clear_instance_timers();
        }
        Some(End::Fail { code, message }) => {
            failure::fail(run, failure::Cause::declared(&code, message, None))?;
        }
        Some(End::Complete) | None => {}
    }
    for (index, work) in answer.work.into_iter().enumerate() {
        let at = format!("work[{index}]");
        do_work(run, program, work, &at).map_err(|rejection| Rejection {
            message: refused(rejection.message).message,
            ..rejection
        })?;
    }
    Ok(())
}

fn do_work(run: &mut Run<'_>, program: &ProgramDefinition, work: Work, at: &str) -> Result<(), Rejection> {
    match work {
        Work::Effect {
            name,
            effect,
            with,
            timeout_ms,
        } => {
            let known = program.effects.iter().find(|known| known.as_str() == effect);
            let effect = known.ok_or_else(|| undeclared(at, "effect", &effect, "effects"))?;
            let kind = WorkKind::Effect {
                effect: effect.clone(),
                payload: Bytes::from(with),
            };
            await_work(run, at, name, timeout_ms.unwrap_or(EFFECT_TIMEOUT_MS), kind)
        }
        Work::Command {
            name,
            aggregate_type,
            aggregate_id,
            command_type,
            payload,
            timeout_ms,
        } => {
            if !program.commands.contains(&command_type) {
                return Err(undeclared(at, "command", &command_type, "commands"));
            }
            let kind = WorkKind::Command {
                aggregate_type,
                aggregate_id,
                command_type,
                payload: Bytes::from(payload),
                token: None,
                awaited: name.is_some(),
            };
            match name {
                Some(name) => await_work(run, at, name, timeout_ms.unwrap_or(COMMAND_TIMEOUT_MS), kind),
                None => send(run, at, kind),
            }
        }
        Work::Publish { fact_type, payload } => {
            let payload = Bytes::from(payload);
            send(run, at, WorkKind::Fact { fact_type, payload })
        }
        Work::SetTimer { name, after_ms } => {
            if run.record.timers.len() >= TIMERS_MAX && !run.record.timers.contains_key(&name) {
                return Err(Rejection {
                    reason: "timer.count",
                    message: format!("{at}: at most {TIMERS_MAX} timers of one instance"),
                });
            }
            run.set_timer(&name, after_ms, || format!("{at}.after_ms"))
        }
        Work::ClearTimer { name } => {
            run.clear_timer(&name);
            Ok(())
        }
    }
}

fn undeclared(at: &str, what: &str, name: &str, key: &str) -> Rejection {
    Rejection {
        reason: ANSWER,
        message: format!(
            "{at}.{what}: \"{}\" is not among program.{key} of the definition",
            name.escape_debug()
        ),
    }
}

/// Sends work whose outcome comes back under `name`. Its idempotency key is that of the name: asked for again
/// under the same name, it is the same piece of work, with another key only after a refusal.
fn await_work(
    run: &mut Run<'_>,
    at: &str,
    name: String,
    timeout_ms: i64,
    kind: WorkKind,
) -> Result<(), Rejection> {
    let max = run.ground.context.limits.timer_ms;
    if timeout_ms > max {
        return Err(Rejection {
            reason: "timer.range",
            message: format!("{at}.timeout_ms: {timeout_ms} ms is more than {max} ms"),
        });
    }
    let pending = &run.record.program.get_or_insert_default().pending;
    if pending.iter().any(|pending| pending.name == name) {
        return Err(Rejection {
            reason: ANSWER,
            message: format!("{at}.name: \"{name}\" is under way already"),
        });
    }
    if pending.len() >= PENDING_MAX {
        return Err(Rejection {
            reason: "work.count",
            message: format!("{at}: the outcome of {PENDING_MAX} others is still to come, which is the most"),
        });
    }
    let path = path_of(&name);
    run.note(Note::Emitted { work: path.clone() });
    let tries = &run.record.program.get_or_insert_default().tries;
    let tries = tries.iter().find(|tries| tries.name == name);
    let repetition = Repetition {
        round: tries.map_or(0, |tries| tries.round),
        ..Repetition::once(0)
    };
    let outstanding = run.push_work(path, repetition, timeout_ms, kind)?;
    let program = run.record.program.get_or_insert_default();
    program.pending.push(Pending { name, outstanding });
    Ok(())
}

/// Sends work that nobody waits for.
fn send(run: &mut Run<'_>, at: &str, kind: WorkKind) -> Result<(), Rejection> {
    let path = format!("program.{at}");
    run.note(Note::Emitted { work: path.clone() });
    let iteration = run.record.version;
    run.push_work(path, Repetition::once(iteration), COMMAND_TIMEOUT_MS, kind)?;
    Ok(())
}

fn path_of(name: &str) -> String {
    format!("program.{name}")
}

fn text(text: &str) -> Json<'static> {
    Json::Str(Cow::Owned(text.to_owned()))
}

/// What an instance begins with.
pub(super) fn first(program: Option<&ProgramDefinition>) -> Option<Box<ProgramState>> {
    program.map(|_| Box::default())
}

/// Whether a record belongs to a definition with such a program, or with none.
pub(super) const fn fits(program: Option<&ProgramDefinition>, record: &Record) -> bool {
    program.is_some() == record.program.is_some()
}
