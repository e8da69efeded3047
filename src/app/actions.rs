//! What can be done to an instance as it is now.
//!
//! Each request that may come into question is tried on the instance by the code that answers it when somebody sends it; nothing of a
//! trial is kept. So the list cannot say something else than the answer. A result that an effect declares only the operator knows: it
//! is tried with a `placeholder`.

mod placeholder;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::answers::{self, missing, not_loaded};
use super::node::Node;
use super::rehearsal::{Rehearsal, misfit};
use super::{decisions, restart};
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::envelope::{FoundAs, Principal, Stuck};
use crate::kernel::ids::{InstanceId, TimeMs, shard_of};
use crate::kernel::input::{
    CancelMode, Control, DomainEvent, Input, InputBody, Operation, OperationVerb, Origin, StuckDecision,
    Verdict,
};
use crate::kernel::limits::Limits;
use crate::kernel::record::Record;
use crate::kernel::view::{InstanceView, LetterView};
use crate::ports::control::{Action, Actions, ControlError, RefusedAction};
use crate::storage::read::Found as Instance;
use crate::storage::rows::EndedRow;

/// Steps, timers and signals that are looked at for one answer, of each kind.
const CANDIDATES_MAX: usize = 64;

/// # Errors
/// [`ControlError::NotFound`] without the instance, [`ControlError::Conflict`] where its definition is not loaded.
pub(super) async fn actions(node: &Node, id: &InstanceId) -> Result<Actions, ControlError> {
    let reader = node.shard(id).await?.reader;
    let shard = shard_of(&id.tenant, &id.key, node.manifest.shards);
    let (owned, in_force) = (id.clone(), node.catalog.now());
    let (limits, now) = (node.manifest.limits.clone(), node.clock.now());
    let parent_over = node.is_parent_over(id).await?;
    let event = restart::started_by(node, id).await?;
    let event = event.and_then(|event| event.event(&limits).ok());
    let answer = node.read(move || {
        let Some(found) = reader.instance(&owned)? else {
            return Ok(Err(ControlError::NotFound(missing(&owned))));
        };
        let Some(definition) = in_force.sagas.by_hash(&found.record().definition) else {
            return Ok(Err(ControlError::Conflict(not_loaded(&owned))));
        };
        let trial = Trial {
            id: &owned,
            found: &found,
            definition,
            versions: &in_force.sagas,
            limits: &limits,
            now,
            parent_over,
            event,
            earlier: &reader.earlier(&owned)?,
        };
        let mut actions = trial.actions();
        if let Some((LetterView { id: Some(number), .. }, _)) = reader.kept(&owned)?.behind {
            actions.dead_letter = Some(format!("{shard}-{number}"));
        }
        Ok(Ok(actions))
    });
    answer.await?
}

/// Which way an instance migrates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// To another version.
    Forth,
    /// To the one that it came from.
    Back,
}

struct Trial<'t> {
    id: &'t InstanceId,
    found: &'t Instance,
    definition: &'t Arc<Definition>,
    versions: &'t DefinitionSet,
    limits: &'t Limits,
    now: TimeMs,
    /// No instance that has started it is there any more.
    parent_over: bool,
    /// The event that has started it, if it has ended and may be begun again with that.
    event: Option<DomainEvent>,
    /// What is kept of earlier generations of its key.
    earlier: &'t [(u64, EndedRow)],
}

impl Trial<'_> {
    fn actions(&self) -> Actions {
        let record = self.found.record();
        let mut actions = Actions {
            saga: self.id.saga.as_str().to_owned(),
            key: self.id.key.as_str().to_owned(),
            phase: record.phase.as_str(),
            possible: Vec::new(),
            refused: Vec::new(),
            dead_letter: None,
            more: false,
        };
        self.of_instance(&mut actions);
        self.of_stuck(record, &mut actions);
        self.of_steps(record, &mut actions);
        self.of_timers(record, &mut actions);
        self.of_signals(&mut actions);
        self.of_versions(&mut actions);
        actions
    }

    /// What is done to the instance as a whole.
    fn of_instance(&self, actions: &mut Actions) {
        let cancel = Control::Cancel {
            reason: String::new(),
            mode: CancelMode::Compensate,
        };
        let action = |action| Action {
            action,
            ..Action::default()
        };
        let kill = Action {
            needs_reason: true,
            ..action("kill")
        };
        let again = Action {
            ended: true,
            ..action("retry")
        };
        let delete = Action {
            needs_reason: true,
            ..action("delete")
        };
        let found = Vec::new();
        let parent_over = self.parent_over;
        let restart = match &self.event {
            Some(event) => OperationVerb::RestartWith {
                event: Box::new(event.clone()),
            },
            None => OperationVerb::Restart,
        };
        for (action, control) in [
            (action("cancel"), cancel),
            (action("pause"), operate(OperationVerb::Pause)),
            (action("resume"), operate(OperationVerb::Resume)),
            (kill, operate(OperationVerb::Kill)),
            (
                action("retry"),
                Control::DecideStuck(decision(Verdict::Retry, None)),
            ),
            (action("try-now"), operate(OperationVerb::TryNow { step: None })),
            (again, operate(OperationVerb::Rerun { found })),
            (action("restart"), operate(restart)),
            (delete, operate(OperationVerb::Delete { parent_over })),
        ] {
            match self.refusal(control) {
                None => actions.possible.push(action),
                Some(reason) => actions.refused.push(RefusedAction {
                    action: action.action,
                    ended: action.ended,
                    reason,
                }),
            }
        }
    }

    /// What an operator may decide about what is stuck.
    fn of_stuck(&self, record: &Record, actions: &mut Actions) {
        let stuck = InstanceView::new(self.id, record, Some(self.definition)).stuck;
        actions.more |= stuck.len() > CANDIDATES_MAX;
        for stuck in stuck.into_iter().take(CANDIDATES_MAX) {
            for (action, verdict) in [
                ("retry", Verdict::Retry),
                ("resolve", Verdict::Resolve),
                ("skip", Verdict::Skip),
            ] {
                let at = (stuck.step.clone(), stuck.item);
                actions.possible.extend(self.decision(action, verdict, &at));
            }
        }
    }

    /// Steps in progress that may be skipped, or whose next attempt may be made now.
    fn of_steps(&self, record: &Record, actions: &mut Actions) {
        let under_way: BTreeSet<(u16, Option<u32>)> = record
            .step_states()
            .filter(|(_, _, state)| state.status.is_under_way())
            .map(|(step, item, _)| (step, item))
            .collect();
        actions.more |= under_way.len() > CANDIDATES_MAX;
        let mut tried = BTreeSet::new();
        for (step, item) in under_way.into_iter().take(CANDIDATES_MAX) {
            let Some(named) = self.definition.steps.get(usize::from(step)) else {
                continue;
            };
            let name = named.title().to_owned();
            let verb = OperationVerb::TryNow {
                step: Some(name.clone()),
            };
            if tried.insert(step) && self.refusal(operate(verb)).is_none() {
                actions.possible.push(Action {
                    action: "try-now",
                    step: Some(name.clone()),
                    ..Action::default()
                });
            }
            let skip = self.decision("skip", Verdict::Skip, &(name, item));
            // What is stuck was tried before.
            let known = |skip: &Action| actions.possible.contains(skip);
            let skip = skip.filter(|skip| !known(skip));
            actions.possible.extend(skip);
        }
    }

    fn of_timers(&self, record: &Record, actions: &mut Actions) {
        actions.more |= record.timers.len() > CANDIDATES_MAX;
        for timer in record.timers.keys().take(CANDIDATES_MAX) {
            let fire = OperationVerb::FireTimer { timer: timer.clone() };
            let cancel = OperationVerb::CancelTimer { timer: timer.clone() };
            for (action, verb) in [("timers/{name}/fire", fire), ("timers/{name}/cancel", cancel)] {
                if self.refusal(operate(verb)).is_none() {
                    actions.possible.push(Action {
                        action,
                        name: Some(timer.clone()),
                        ..Action::default()
                    });
                }
            }
        }
    }

    /// Signals that something takes, whatever they have to carry.
    fn of_signals(&self, actions: &mut Actions) {
        let names = answers::signals(self.definition);
        actions.more |= names.len() > CANDIDATES_MAX;
        for name in names.into_iter().take(CANDIDATES_MAX) {
            let control = Control::Signal {
                name: name.to_owned(),
                data: Bytes::from_static(b"{}"),
                by: String::new(),
                hops: 0,
            };
            if answers::may_take(
                self.definition,
                self.found.record(),
                &self.input(control),
                self.limits,
            ) {
                actions.possible.push(Action {
                    action: "signals/{name}",
                    name: Some(name.to_owned()),
                    ..Action::default()
                });
            }
        }
    }

    /// Other versions of its saga to which it may migrate.
    fn of_versions(&self, actions: &mut Actions) {
        let Instance::Live(record) = self.found else {
            return;
        };
        if record.phase.is_terminal() {
            return;
        }
        let from = self.definition;
        let others = self.versions.iter();
        let others = others.filter(|other| other.name == from.name && other.hash != from.hash);
        for (count, to) in others.enumerate() {
            if count >= CANDIDATES_MAX {
                actions.more = true;
                return;
            }
            if self.may_migrate(record, to, Direction::Forth) {
                actions.possible.push(Action {
                    action: "migrate",
                    to: Some(to.hash.to_string()),
                    needs_reason: true,
                    ..Action::default()
                });
            }
        }
        let before = record.left.as_ref().map(|left| left.definition);
        let before = before.and_then(|hash| self.versions.by_hash(&hash));
        if before.is_some_and(|to| self.may_migrate(record, to, Direction::Back)) {
            actions.possible.push(Action {
                action: "migrate",
                undo: true,
                needs_reason: true,
                ..Action::default()
            });
        }
    }

    fn may_migrate(&self, record: &Record, to: &Definition, direction: Direction) -> bool {
        let (from, back) = (self.definition, direction == Direction::Back);
        let rehearsal = Rehearsal {
            from,
            to,
            back,
            misfits: &misfit(from, to, back),
            limits: self.limits,
            now: self.now,
        };
        rehearsal.of(self.id, record).is_ok()
    }

    /// A decision about a step, with what it may state as the outcome, if there is one that would be applied.
    fn decision(&self, action: &'static str, verdict: Verdict, at: &(String, Option<u32>)) -> Option<Action> {
        let mut found = Action {
            action,
            step: Some(at.0.clone()),
            item: at.1,
            needs_reason: verdict == Verdict::Skip,
            ..Action::default()
        };
        if self.decides(decision(verdict, Some(at.clone()))) {
            return Some(found);
        }
        if verdict == Verdict::Retry {
            return None;
        }
        let said = |outcome, result| stated(verdict, at, outcome, result);
        let is_good = |decision: Option<StuckDecision>| decision.is_some_and(|one| self.decides(one));
        if is_good(said(FoundAs::Done, None)) {
            found.outcomes.push("done");
        } else {
            let result = placeholder::of_step(self.definition, &at.0);
            let decision = said(FoundAs::Done, Some(result.clone()));
            if decision.is_some_and(|one| self.decides_but_for_the_result(one)) {
                found.outcomes.push("done");
                found.result = Some(result);
            }
        }
        if is_good(said(FoundAs::NotDone, None)) {
            found.outcomes.push("not_done");
        }
        (!found.outcomes.is_empty()).then_some(found)
    }

    fn decides(&self, decision: StuckDecision) -> bool {
        self.fits(&decision).is_ok() && self.refusal(Control::DecideStuck(decision)).is_none()
    }

    /// The same, where a result that is not as its effect declares it may be made good by whoever sends another.
    fn decides_but_for_the_result(&self, decision: StuckDecision) -> bool {
        match self.fits(&decision) {
            Ok(()) => self.refusal(Control::DecideStuck(decision)).is_none(),
            Err(ControlError::Invalid(_)) => true,
            Err(_) => false,
        }
    }

    fn fits(&self, decision: &StuckDecision) -> Result<(), ControlError> {
        if decision.verdict == Verdict::Retry {
            return Ok(());
        }
        let record = self.found.record();
        decisions::unfit(self.id, record, self.definition, decision, self.limits)
    }

    fn refusal(&self, control: Control) -> Option<String> {
        let input = self.input(control);
        let refusal = answers::refusal(self.definition, self.found, &input, self.limits);
        let refusal = refusal.map(|refusal| refusal.to_string());
        refusal.or_else(|| {
            let parent_over = answers::deletion(self.found, &input)?;
            answers::of_earlier(self.versions, self.found.record(), self.earlier, parent_over)
        })
    }

    fn input(&self, control: Control) -> Input {
        Input {
            instance: self.id.clone(),
            // No request has an empty id.
            id: String::new(),
            time: self.now,
            origin: Origin::Local,
            body: InputBody::Control(control),
        }
    }
}

/// A decision about a step or, without one, about all that is stuck, which says nothing of an outcome.
fn decision(verdict: Verdict, at: Option<(String, Option<u32>)>) -> StuckDecision {
    let (step, item) = at.map_or((None, None), |(step, item)| (Some(step), item));
    StuckDecision {
        verdict,
        step,
        item,
        by: String::new(),
        reason: String::new(),
        found: None,
        result: None,
    }
}

/// A decision about a step that states an outcome, as a request says it.
fn stated(
    verdict: Verdict,
    (step, item): &(String, Option<u32>),
    found: FoundAs,
    result: Option<Value>,
) -> Option<StuckDecision> {
    let stuck = Stuck {
        step: Some(step.clone()),
        item: *item,
        found: Some(found),
        result,
    };
    let principal = Principal {
        // A skip needs one.
        reason: "a trial".to_owned(),
        ..Principal::nobody()
    };
    stuck.decide(verdict, principal).ok()
}

const fn operate(verb: OperationVerb) -> Control {
    Control::Operate(Operation {
        verb,
        by: String::new(),
        reason: String::new(),
    })
}
