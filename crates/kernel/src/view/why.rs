//! Why an instance does not go on: one sentence, and the evidence for it.
//!
//! It is computed from what is stored and nothing else, so whoever asks gets the same answer.

use std::fmt::Write as _;

use serde::Serialize;

use super::pending::{AwaitedView, CallsView, WaitsFor};
use super::{BlockedView, CommandView, FailureView, InstanceView, StuckIn, StuckView, TimerView};

/// What an answer is computed from.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub instance: &'a InstanceView,
    pub pending: &'a [AwaitedView],
    /// Events and signals that it has handlers for now.
    pub hears: &'a [String],
    /// Why the instance does not go on that it waits for, where that is known.
    pub child: Option<&'a Why>,
}

/// Why an instance does not go on.
#[derive(Debug, Clone, Serialize)]
pub struct Why {
    pub saga: String,
    pub key: String,
    pub phase: &'static str,
    /// One sentence for people.
    pub why: String,
    pub cause: Cause,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<BlockedView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stuck: Vec<StuckView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<AwaitedView>,
    /// Events and signals that it has handlers for now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hears: Vec<String>,
    /// The timer that is due next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timer: Option<TimerView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child: Option<Box<Why>>,
}

/// What kind of reason it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    Ended,
    DeadLetter,
    Definition,
    /// An operator has paused it.
    Paused,
    Operator,
    /// A breaker keeps calls back.
    Breaker,
    /// A limit keeps calls back.
    Limit,
    /// Calls fail, and more follow.
    Failing,
    /// The result of an effect is to come.
    Effect,
    /// The command of an effect waits in the queue of its workers.
    Queued,
    /// The same, and no worker is there.
    NoWorker,
    /// No file declares the effect any more.
    NoEffect,
    Command,
    Child,
    Retry,
    Message,
    Delay,
    /// Events and signals, for which it has handlers.
    Handlers,
    /// A timer is due and has not fired.
    Overdue,
    Timer,
    Nothing,
}

/// The answer.
#[must_use]
pub fn why(evidence: Evidence<'_>) -> Why {
    let instance = evidence.instance;
    let (cause, why) = sentence(evidence);
    Why {
        saga: instance.saga.clone(),
        key: instance.key.clone(),
        phase: instance.phase,
        why,
        cause,
        blocked_by: instance.blocked_by.clone(),
        stuck: instance.stuck.clone(),
        pending: evidence.pending.to_vec(),
        hears: evidence.hears.to_vec(),
        timer: next_timer(instance).cloned(),
        failure: instance.failure.clone(),
        child: evidence.child.cloned().map(Box::new),
    }
}

/// What one thing that is awaited waits for, in a sentence.
#[must_use]
pub fn told(pending: &AwaitedView) -> String {
    let (_, told) = awaits(pending, None);
    told
}

/// What comes first keeps what comes later from helping.
fn sentence(evidence: Evidence<'_>) -> (Cause, String) {
    let Evidence {
        instance, pending, ..
    } = evidence;
    if let Some(ended) = &instance.ended {
        return (Cause::Ended, has_ended(instance, ended));
    }
    if let Some(found) = instance.blocked_by.as_ref().and_then(blocked) {
        return found;
    }
    if let Some(stuck) = instance.stuck.first() {
        return (Cause::Operator, asks(stuck, instance.stuck.len(), pending));
    }
    let work = pending.iter().filter(|pending| !pending.abandoned);
    let first = work.min_by_key(|pending| rank(pending));
    let first = first.or_else(|| pending.first());
    if let Some(first) = first {
        let (cause, mut told) = awaits(first, evidence.child);
        if pending.len() > 1 {
            let _infallible = write!(told, "; {} more are pending", pending.len() - 1);
        }
        return (cause, told);
    }
    let overdue = instance
        .blocked_by
        .as_ref()
        .and_then(|blocked| blocked.overdue.first());
    if let Some(timer) = overdue {
        let told = format!(
            "timer {} was due at {} and has not fired: a stream is not read up to that time yet",
            timer.name, timer.due
        );
        return (Cause::Overdue, told);
    }
    idle(evidence)
}

/// Nothing is under way: it hears events, or a timer comes.
fn idle(Evidence { instance, hears, .. }: Evidence<'_>) -> (Cause, String) {
    let timer = next_timer(instance);
    let then = timer.map_or_else(String::new, |timer| {
        format!("timer {} is due at {}", timer.name, timer.due)
    });
    if !hears.is_empty() {
        let state = instance.machine.as_ref();
        let place = state.map_or_else(|| "it".to_owned(), |state| format!("state {state}"));
        let mut told = format!("{place} waits for {}", hears.join(" or "));
        if !then.is_empty() {
            let _infallible = write!(told, "; {then}");
        }
        return (Cause::Handlers, told);
    }
    match timer {
        Some(_) => (Cause::Timer, then),
        None => (
            Cause::Nothing,
            "nothing is pending: it is about to proceed".to_owned(),
        ),
    }
}

fn has_ended(instance: &InstanceView, ended: &str) -> String {
    let mut told = format!("it is over: {} at {ended}", instance.phase);
    if let Some(failure) = &instance.failure {
        let _infallible = write!(told, ", with {}: {}", failure.code, failure.message);
        if let Some(step) = &failure.step {
            let _infallible = write!(told, " (step {step})");
        }
    }
    told
}

fn blocked(blocked: &BlockedView) -> Option<(Cause, String)> {
    let behind = blocked.inputs;
    if let Some(paused) = &blocked.paused {
        let mut told = format!("it is paused since {}", paused.since);
        if !paused.by.is_empty() {
            let _infallible = write!(told, ", by {}", paused.by);
        }
        if !paused.reason.is_empty() {
            let _infallible = write!(told, " ({})", paused.reason);
        }
        let _infallible = write!(told, "; {behind} input(s) wait until it is resumed");
        return Some((Cause::Paused, told));
    }
    if let Some(letter) = &blocked.dead_letter {
        let id = letter.id.as_deref().unwrap_or("(no longer kept)");
        let told = format!(
            "an input could not be applied and is dead letter {id} ({}: {}); {behind} input(s) wait behind it since {}: fix \
             the cause and retry it, or discard it",
            letter.reason, letter.message, blocked.since
        );
        return Some((Cause::DeadLetter, told));
    }
    let definition = blocked.definition.as_ref()?;
    let told = format!(
        "its definition {definition} is not loaded; {behind} input(s) wait for it since {}",
        blocked.since
    );
    Some((Cause::Definition, told))
}

fn asks(stuck: &StuckView, count: usize, pending: &[AwaitedView]) -> String {
    let item = stuck
        .item
        .map(|item| format!(" (item {item})"))
        .unwrap_or_default();
    let step = &stuck.step;
    let mut told = match stuck.what {
        StuckIn::Step => format!("the outcome of step {step}{item} is unknown"),
        StuckIn::Compensation if stuck.outcome_unknown => format!(
            "an operator is asked whether step {step}{item}, whose outcome is unknown, is to be compensated"
        ),
        StuckIn::Compensation => format!("the compensation of step {step}{item} did not succeed"),
    };
    let class = pending
        .iter()
        .find(|pending| pending.step == *step && pending.item == stuck.item);
    let class = class.and_then(|pending| pending.error.as_ref());
    match (&stuck.message, class) {
        (Some(why), _) | (None, Some(why)) => {
            let _infallible = write!(told, ": {why}");
        }
        (None, None) => {}
    }
    if let Some(since) = &stuck.since {
        let _infallible = write!(told, ", since {since}");
    }
    if let Some(key) = &stuck.idempotency_key {
        let _infallible = write!(told, " (idempotency key {key})");
    }
    told.push_str(if stuck.outcome_unknown {
        "; retry compensates it, skip leaves it as it is, resolve says that it is compensated by other means"
    } else {
        "; an operator must retry, skip or resolve it"
    });
    if count > 1 {
        let _infallible = write!(told, "; {} more are stuck", count - 1);
    }
    told
}

/// What is told first: the lowest.
#[must_use]
pub fn rank(pending: &AwaitedView) -> u8 {
    let is_troubled = |calls: &CallsView| calls.held_by.is_some() || calls.error.is_some();
    let is_troubled = pending.calls.as_ref().is_some_and(is_troubled)
        || pending.undeclared
        || pending
            .command
            .as_ref()
            .is_some_and(CommandView::is_without_worker);
    match pending.waits_for {
        // Right behind what an operator must decide.
        WaitsFor::Effect if is_troubled => WaitsFor::Operator.rank() + 1,
        waits => waits.rank(),
    }
}

fn awaits(pending: &AwaitedView, child: Option<&Why>) -> (Cause, String) {
    let item = pending
        .item
        .map(|item| format!(" (item {item})"))
        .unwrap_or_default();
    let what = if pending.compensates {
        "the compensation of step "
    } else {
        "step "
    };
    let who = format!("{what}{}{item}", pending.step);
    let due = |before: &str| {
        pending
            .due
            .as_ref()
            .map_or_else(String::new, |due| format!("{before}{due}"))
    };
    let effect = pending
        .effect
        .as_deref()
        .map(|effect| format!(" of effect {effect}"));
    let effect = effect.unwrap_or_default();
    match pending.waits_for {
        WaitsFor::Effect => calls(pending, &who),
        WaitsFor::Command => (Cause::Command, format!("{who} waits for {}", pending.object())),
        WaitsFor::Child => {
            let mut told = format!("{who} waits for {}", pending.object());
            if let Some(child) = child {
                let _infallible = write!(told, ", which is {}: {}", child.phase, child.why);
            }
            (Cause::Child, told)
        }
        WaitsFor::Message => {
            let told = format!("{who} waits for {}{}", pending.object(), due(", at most until "));
            (Cause::Message, told)
        }
        WaitsFor::Retry => {
            let class = pending.error.as_deref().unwrap_or("an error");
            let told = format!(
                "attempt {} of {who}{effect} failed with {class}{}",
                pending.attempt,
                due("; the next one begins at ")
            );
            (Cause::Retry, told)
        }
        WaitsFor::Delay => (Cause::Delay, format!("{who} begins at{}", due(" "))),
        WaitsFor::Operator => (Cause::Operator, format!("{who} waits for {}", pending.object())),
    }
}

/// The outcome of the calls of an effect so far.
fn calls(pending: &AwaitedView, who: &str) -> (Cause, String) {
    let since = pending.since.as_deref().map(|since| format!(" since {since}"));
    let mut told = format!(
        "{who} waits for {}{}",
        pending.object(),
        since.unwrap_or_default()
    );
    let mut cause = Cause::Effect;
    let place = pending.command.as_ref().map(CommandView::told);
    let Some(calls) = &pending.calls else {
        match place {
            Some((of_place, place)) => {
                cause = of_place;
                let _infallible = write!(told, "; {place}");
            }
            None if pending.undeclared => {
                cause = Cause::NoEffect;
                told.push_str(
                    "; no file declares this effect any more, so that no worker takes its command: restore the file and reload",
                );
            }
            None => told.push_str("; no worker has told of a call that ended"),
        }
        return (cause, told);
    };
    if let Some(error) = &calls.error {
        cause = Cause::Failing;
        let _infallible = write!(
            told,
            "; {} call(s) were made, the last one failed with {}: {}",
            calls.made, error.class, error.message
        );
    }
    let (upstream, mut next) = (calls.upstream.as_deref(), calls.next.as_deref());
    match calls.held_by.as_deref() {
        None => {}
        Some("breaker") => {
            cause = Cause::Breaker;
            let upstream = upstream.unwrap_or("its upstream");
            let _infallible = write!(told, "; the breaker of {upstream} lets no call through");
        }
        Some("breaker_forced") => {
            cause = Cause::Breaker;
            next = None;
            let upstream = upstream.unwrap_or("its upstream");
            let _infallible = write!(
                told,
                "; an operator holds the breaker of {upstream} open; `saga-runner breaker auto {upstream}` lets calls \
                 through again"
            );
        }
        Some("under_way") => {
            told.push_str("; a worker stopped during a call, which may still reach the upstream");
            if let Some(next) = next {
                let _infallible = write!(told, ": its outcome counts as unknown from {next}");
            }
            return (cause, told);
        }
        Some(limit) => {
            cause = Cause::Limit;
            let _infallible = write!(told, "; {}", limited(limit));
        }
    }
    if let Some(begun) = &calls.begun {
        let _infallible = write!(told, "; a call was begun at {begun} or before and has not ended");
    }
    if let Some(next) = next {
        let _infallible = write!(told, "; the next one is made at {next} or later");
    }
    // Where its command is with a worker, nothing is missing.
    if let Some((of_place, place)) = place.filter(|(of_place, _)| *of_place != Cause::Effect) {
        cause = of_place;
        let _infallible = write!(told, "; {place}");
    }
    if let Some(deadline) = &pending.deadline {
        let _infallible = write!(told, "; it is given up at {deadline}");
    }
    (cause, told)
}

/// What the limit says that keeps calls back.
fn limited(limit: &str) -> &'static str {
    match limit {
        "tenant_busy" => "the tenant has as many calls in progress as it may",
        "tenant_rate" => "the tenant calls as fast as it may",
        _ => "the workers have no room",
    }
}

fn next_timer(instance: &InstanceView) -> Option<&TimerView> {
    instance.timers.iter().min_by_key(|timer| timer.at)
}

#[cfg(test)]
mod tests;
