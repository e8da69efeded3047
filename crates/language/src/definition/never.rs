//! Steps that no input can reach, and bounds of which one makes another useless.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::codes;
use super::fields;
use super::findings::Findings;
use super::groups::Outlined;
use super::loops::{EXHAUSTED, JOIN_UNREACHABLE, TOO_MANY_FAILED, TOO_MANY_ITEMS};
use super::model::{Action, Definition, Delay, FAIL_IF_CLASS, Group, Join, State, Step, Then};
use super::saga::member;
use super::yaml::{Entry, Node};
use crate::duration::Millis;
use crate::limits::Limits;

/// Reports joins that cannot be met, and steps behind one that never ends well. There may be cycles.
pub fn check(steps: &[Step], outline: &[Outlined<'_, '_>], findings: &mut Findings<'_>) {
    for (step, outlined) in steps.iter().zip(outline) {
        let span =
            |key: &str| member(&outlined.entry.value, key).map_or(0..0, |entry| entry.key_span.clone());
        let failing: Vec<u16> = step
            .needs
            .iter()
            .copied()
            .filter(|need| never_ends_well(steps, *need))
            .collect();
        match &step.join {
            Join::All => {
                let Some(need) = failing.first() else { continue };
                let need = &steps[usize::from(*need)];
                let (what, help) = if ends(need) {
                    (
                        "ends the instance",
                        "say under its \"if\" when it is to, or take it out of the needs",
                    )
                } else {
                    (
                        "always fails",
                        "its \"fail_if\" always holds; \"on_error\" may say with \"continue\" that this is not a failure",
                    )
                };
                let message = format!(
                    "\"{}\" never starts: \"{}\", which it needs, {what}",
                    step.title(),
                    need.title()
                );
                findings
                    .error(codes::NEVER_STARTS, span("needs"), message)
                    .help(Some(help.to_owned()));
            }
            Join::AtLeast { count, .. } => {
                let Some(count) = count.fixed() else { continue };
                let able: Vec<u16> = step
                    .needs
                    .iter()
                    .copied()
                    .filter(|need| !failing.contains(need) && !ends(&steps[usize::from(*need)]))
                    .collect();
                let most = most_done(steps, &able, None);
                // That there are fewer needs than that is told where the number stands.
                if most >= count as usize || step.needs.len() < count as usize {
                    continue;
                }
                let message = format!(
                    "\"{}\" never starts: at most {most} of the steps that it needs can be done, and it waits for {count}",
                    step.title()
                );
                findings
                    .error(codes::NEVER_STARTS, span("join"), message)
                    .help(Some("only one alternative of a choice is ever taken".to_owned()));
            }
        }
    }
}

/// Reports answers to classes with which the step never fails, by the definition alone.
pub fn answers(steps: &[Step], outline: &[Outlined<'_, '_>], findings: &mut Findings<'_>) {
    for (index, (step, outlined)) in steps.iter().zip(outline).enumerate() {
        // Of a loop around one step that one answers what the loop does not; both stand in one entry.
        if outlined.is_body {
            continue;
        }
        let body = steps
            .get(index + 1)
            .filter(|_| outline.get(index + 1).is_some_and(|next| next.is_body));
        let has = |key: &str| member(&outlined.entry.value, key).is_some();
        let lacks = |class: &str| match class {
            FAIL_IF_CLASS if !has("fail_if") => Some("it has no \"fail_if\""),
            JOIN_UNREACHABLE if matches!(step.join, Join::All) && !is_foreach(step) => {
                Some("it waits for all that it needs")
            }
            EXHAUSTED if !has("repeat") => Some("it is not a \"repeat\""),
            TOO_MANY_ITEMS | TOO_MANY_FAILED if !is_foreach(step) => Some("it is not a \"foreach\""),
            _ => None,
        };
        let classes = step
            .on_error
            .keys()
            .chain(body.into_iter().flat_map(|body| body.on_error.keys()));
        for class in classes {
            let Some(why) = lacks(class) else { continue };
            let entry =
                member(&outlined.entry.value, "on_error").and_then(|answers| member(&answers.value, class));
            let span = entry.map_or(0..0, |entry| entry.key_span.clone());
            let message = format!("\"{}\" never fails with \"{class}\": {why}", step.title());
            findings.warning(codes::UNREACHABLE_HANDLER, span, message);
        }
    }
}

fn is_foreach(step: &Step) -> bool {
    matches!(step.action, Action::Group(Group::Foreach(_)))
}

/// Reports what begins at once and is more than one transition may make: with the instance, or with a state that a handler
/// goes to.
pub fn work(definition: &Definition, root: &Node<'_>, findings: &mut Findings<'_>) {
    let most = Limits::default().work_items;
    let machine = definition.machine.as_ref();
    let of_entry = |state: u16| {
        let Some(machine) = machine else { return 0 };
        let mut seen = BTreeSet::new();
        let states = std::iter::successors(Some(state), |at| machine.states.get(usize::from(*at))?.entry.to);
        let states = states.take_while(|at| seen.insert(*at));
        states
            .filter_map(|at| machine.states.get(usize::from(at)))
            .map(|state| state.entry.emit.len())
            .sum::<usize>()
    };
    let first = definition
        .steps
        .iter()
        .filter(|step| begins_with_the_instance(step))
        .count();
    let of_start = machine.map_or(0, |machine| of_entry(machine.initial));
    if first + of_start > most
        && let Some(steps) = member(root, "steps")
    {
        let message = format!(
            "{} pieces of work begin with the instance, at most {most} are allowed at once",
            first + of_start
        );
        findings
            .error(codes::TOO_MANY, steps.key_span.clone(), message)
            .help(Some(
                "let some steps need others, or let a \"foreach\" start them as room frees".to_owned(),
            ));
    }
    let Some(machine) = machine else { return };
    let states = member(root, "machine").and_then(|machine| member(&machine.value, "states"));
    let of_states = machine.states.iter().flat_map(State::all_handlers);
    let mut told = BTreeSet::new();
    for handler in definition.own_handlers().chain(of_states).flatten() {
        let Some(to) = handler.actions.to else { continue };
        let (own, entered) = (handler.actions.emit.len(), of_entry(to));
        let Some(state) = machine.states.get(usize::from(to)) else {
            continue;
        };
        // What one of them has too much by itself is told where it stands.
        if own + entered > most && own <= most && entered <= most && told.insert(to) {
            let entry = states.and_then(|states| member(&states.value, &state.name));
            let span = entry.map_or(0..0, |entry| entry.key_span.clone());
            let message = format!(
                "a handler that goes to \"{}\" emits {own}, and the entry {entered}: at most {most} are allowed at once",
                state.name
            );
            findings.error(codes::TOO_MANY, span, message);
        }
    }
}

/// Whether the step asks for work as soon as there is an instance, with any state.
fn begins_with_the_instance(step: &Step) -> bool {
    let is_first = step.needs.is_empty() && step.within.is_none() && step.is_own();
    let is_free = step.condition.is_none() && step.delay.is_none();
    let asks = matches!(
        step.action,
        Action::Effect { .. } | Action::Command(_) | Action::Publish(_) | Action::Saga(_)
    );
    is_first && is_free && asks
}

/// Whether the instance ends when the step starts.
fn ends(step: &Step) -> bool {
    matches!(&step.action, Action::Decide(decision) if decision.always_ends())
}

/// Whether the step ends the instance, or fails whenever it has succeeded, and nobody goes on after that.
fn never_ends_well(steps: &[Step], index: u16) -> bool {
    let step = &steps[usize::from(index)];
    let fails = step.fail_if.as_ref().and_then(crate::expr::Expr::certain) == Some(true);
    let goes_on = |then: &Then| matches!(then, Then::Continue);
    // One that may be skipped is as good as done.
    let may_be_skipped = step.condition.is_some() || step.within.is_some();
    if may_be_skipped {
        return false;
    }
    ends(step)
        || fails
            && step
                .on_error
                .values()
                .flatten()
                .all(|answer| !goes_on(&answer.then))
}

/// How many of these steps can be done in one instance. All of them stand in the group `around`.
fn most_done(steps: &[Step], needs: &[u16], around: Option<u16>) -> usize {
    let mut free = 0;
    let mut choices: BTreeMap<u16, BTreeMap<usize, Vec<u16>>> = BTreeMap::new();
    for need in needs {
        let groups = std::iter::successors(steps[usize::from(*need)].within, |group| {
            steps[usize::from(*group)].within
        });
        let inner = groups.take_while(|group| Some(*group) != around);
        let outermost = inner
            .filter(|group| branch_of(steps, *group, *need).is_some())
            .last();
        match outermost.and_then(|group| Some((group, branch_of(steps, group, *need)?))) {
            Some((group, branch)) => choices
                .entry(group)
                .or_default()
                .entry(branch)
                .or_default()
                .push(*need),
            None => free += 1,
        }
    }
    let taken = choices.iter().map(|(group, branches)| {
        let each = branches
            .values()
            .map(|needs| most_done(steps, needs, Some(*group)));
        each.max().unwrap_or(0)
    });
    free + taken.sum::<usize>()
}

/// The alternative of the choice `group` that `step` stands in.
fn branch_of(steps: &[Step], group: u16, step: u16) -> Option<usize> {
    match &steps[usize::from(group)].action {
        Action::Group(Group::Choice(branches)) => {
            branches.iter().position(|branch| branch.steps.contains(&step))
        }
        Action::Group(Group::Repeat(_) | Group::Foreach(_))
        | Action::Effect { .. }
        | Action::Command(_)
        | Action::Publish(_)
        | Action::Saga(_)
        | Action::UndoSaga(_)
        | Action::Nothing
        | Action::Decide(_) => None,
    }
}

/// Reports bounds that are written and can never pass, because a shorter one passes first.
pub fn bounds(
    definition: &Definition,
    deadline: Option<&Entry<'_>>,
    timers: Option<&Entry<'_>>,
    outline: &[Outlined<'_, '_>],
    findings: &mut Findings<'_>,
) {
    let whole = definition
        .timers
        .iter()
        .find(|timer| timer.name == super::model::DEADLINE);
    let whole = whole
        .filter(|_| deadline.is_some())
        .and_then(|timer| fixed(Some(&timer.after)));
    for (step, outlined) in definition.steps.iter().zip(outline) {
        // The step that a loop is around is read twice; its times belong to one turn or item.
        let written = |path: &[&str]| {
            let mut node = &outlined.entry.value;
            let mut found = None;
            for key in path {
                let entry = member(node, key)?;
                node = &entry.value;
                found = Some(entry.value.span.clone());
            }
            found
        };
        let own = if outlined.is_body {
            None
        } else {
            fixed(step.deadline.as_ref())
        };
        let waits = step.wait.as_ref();
        let wait = waits.and_then(|wait| fixed(wait.timeout.as_ref()));
        let silence = waits.and_then(|wait| wait.heartbeat_ms);
        let attempt = written(&["timeout"]).map(|_| step.timeout_ms);
        let mut told = |name: &str, bound: Option<i64>, path: &[&str], longer_than: (&str, Option<i64>)| {
            let (Some(bound), (other, Some(limit)), Some(span)) = (bound, longer_than, written(path)) else {
                return;
            };
            if bound > limit {
                useless((name, bound), (other, limit), span, findings);
            }
        };
        let own_deadline = ("the \"deadline\" of the step", own);
        told("timeout", attempt, &["timeout"], own_deadline);
        told("timeout", wait, &["wait", "timeout"], own_deadline);
        let of_wait = ("the \"timeout\" of the wait", wait);
        told("heartbeat", silence, &["wait", "heartbeat"], of_wait);
        let of_saga = ("the \"deadline\" of the saga", whole);
        told("timeout", attempt, &["timeout"], of_saga);
        told("timeout", wait, &["wait", "timeout"], of_saga);
        if !outlined.is_body {
            told("deadline", own, &["deadline"], of_saga);
        }
        told("delay", fixed(step.delay.as_ref()), &["delay"], of_saga);
        if !outlined.is_body {
            pauses(step, outlined, [own_deadline, of_saga], findings);
        }
    }
    if let Some(whole) = whole {
        timers_within(whole, definition, timers, findings);
    }
}

fn fixed(delay: Option<&Delay>) -> Option<i64> {
    match delay? {
        Delay::Fixed(ms) => Some(*ms),
        Delay::Rendered(_) => None,
    }
}

/// The pauses of a step's retry beside the limits around it.
fn pauses(
    step: &Step,
    outlined: &Outlined<'_, '_>,
    limits: [(&str, Option<i64>); 2],
    findings: &mut Findings<'_>,
) {
    // The first pause of each table; later ones are as long or longer.
    if let Some(retry) = member(&outlined.entry.value, "retry") {
        let items = fields::one_or_many(&retry.value);
        for (table, item) in step.retry.iter().zip(items) {
            let initial = member(item, "backoff").and_then(|backoff| member(&backoff.value, "initial"));
            let pause = i64::try_from(table.policy.initial_ms).unwrap_or(i64::MAX);
            let shorter = limits
                .into_iter()
                .find_map(|(name, limit)| Some((name, limit.filter(|limit| pause > *limit)?)));
            if let (Some(initial), Some(limit)) = (initial, shorter) {
                useless(("initial", pause), limit, initial.value.span.clone(), findings);
            }
        }
    }
}

/// The timers of the instance beside its deadline, in milliseconds.
fn timers_within(
    whole: i64,
    definition: &Definition,
    timers: Option<&Entry<'_>>,
    findings: &mut Findings<'_>,
) {
    for timer in &definition.timers {
        let span = timers
            .and_then(|timers| member(&timers.value, &timer.name))
            .and_then(|timer| member(&timer.value, "after"))
            .map(|after| after.value.span.clone());
        // One of a step begins with it.
        if let (Some(after), Some(span), None) = (fixed(Some(&timer.after)), span, timer.during)
            && after > whole
        {
            useless(
                ("after", after),
                ("the \"deadline\" of the saga", whole),
                span,
                findings,
            );
        }
    }
}

fn useless(bound: (&str, i64), limit: (&str, i64), span: Range<usize>, findings: &mut Findings<'_>) {
    let shown = |ms: i64| Millis(ms.unsigned_abs());
    let message = format!(
        "\"{}\" is {} and never passes: {} is {}",
        bound.0,
        shown(bound.1),
        limit.0,
        shown(limit.1)
    );
    findings
        .warning(codes::USELESS_BOUND, span, message)
        .help(Some("make the one shorter, or the other longer".to_owned()));
}
