//! Steps as they are compiled.

use std::collections::BTreeMap;

use super::super::awaited::{Awaited, Awaiting, Wait};
use super::super::lifecycle::{Cancel, Complete, Decision};
use super::super::nested::{Count, Group};
use super::super::undo::Compensation;
use super::{
    ANY_CLASS, BODY_OF_FOREACH, BODY_OF_REPEAT, CommandTemplate, Delay, Fail, HEARTBEAT_CLASS, OF_HANDLERS,
    OF_MACHINE, OF_TIMERS, Telling,
};
use crate::expr::{Expr, Template};
use crate::ids::{EffectName, SagaName};
use crate::retry::RetryPolicy;

/// A unit of work with a result.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each says something of its own")]
pub struct Step {
    pub name: String,
    /// Index of the group that it stands in. A group comes before its members.
    pub within: Option<u16>,
    /// Index of the machine state whose entry starts it; the steps of a saga start by themselves.
    pub state: Option<u16>,
    /// A timer or a handler starts it, each time that it fires or is taken.
    pub emitted: bool,
    /// `finally` starts it; the instance ends when it has.
    pub at_end: bool,
    /// Indices of the steps that come first.
    pub needs: Vec<u16>,
    /// How many of them must be done.
    pub join: Join,
    /// False when the step would start: skipped.
    pub condition: Option<Expr>,
    /// From when the step could start to its first attempt.
    pub delay: Option<Delay>,
    pub action: Action,
    /// What it waits for when its action has succeeded.
    pub wait: Option<Wait>,
    /// Durable retry: the first table that is for the error class counts.
    pub retry: Vec<StepRetry>,
    /// By error class or [`ANY_CLASS`], in code-point order; of the answers to a class the first that holds counts.
    pub on_error: BTreeMap<String, Vec<OnError>>,
    /// State fields from `result`.
    pub set: Vec<(String, Template)>,
    /// Expressions of other steps or handlers read its result, so the record keeps it.
    pub keeps_result: bool,
    /// Tested when the step has succeeded and its fields are set: true makes it fail with
    /// [`super::FAIL_IF_CLASS`].
    pub fail_if: Option<Expr>,
    /// Values that the instance registers when the step is done, by alias.
    pub aliases: Vec<(String, Template)>,
    pub compensate: Option<Compensation>,
    /// `compensate: none`: what it did is meant to stay done.
    pub stays_done: bool,
    /// How long an attempt may take, in milliseconds.
    pub timeout_ms: i64,
    /// How long the step may take from its first attempt on, with all attempts, pauses and waits. Of a loop: all
    /// that happens in it.
    pub deadline: Option<Delay>,
}

/// How many of the steps that a step needs must be done.
#[derive(Debug)]
pub enum Join {
    /// Each is done or skipped.
    All,
    /// So many are done; one that was skipped does not count.
    AtLeast { count: Count, stragglers: Stragglers },
}

/// What happens to needs that are not over when so many are done that the others are not waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stragglers {
    LetRun,
    /// The instance stops waiting for them, and those that have not started never do.
    Cancel,
}

impl Step {
    /// The name under which people know it: a step that a loop is around has that of the loop.
    #[must_use]
    pub fn title(&self) -> &str {
        let body = self.name.strip_suffix(BODY_OF_FOREACH);
        body.or_else(|| self.name.strip_suffix(BODY_OF_REPEAT))
            .unwrap_or(&self.name)
    }

    /// Whether an operator means it by `name`.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.title() == name
    }
}

/// Whether an entry of `retry` that names these error classes is for `class`.
pub(in crate::definition) fn includes(classes: &[String], class: &str) -> bool {
    let mut classes = classes.iter();
    classes.any(|candidate| candidate == class || candidate == ANY_CLASS)
}

/// When a failed attempt of a step is followed by another one.
#[derive(Debug)]
pub struct StepRetry {
    /// Error classes, or [`ANY_CLASS`]. Each class has the attempts of the policy for itself.
    pub classes: Vec<String>,
    /// Whether the file names them. Those that are meant where it names none are about the action, not about what the step
    /// waits for.
    pub named: bool,
    pub policy: RetryPolicy,
}

impl StepRetry {
    #[must_use]
    pub fn is_for(&self, class: &str) -> bool {
        includes(&self.classes, class)
    }

    /// Whether a wait that ends so is followed by another attempt.
    #[must_use]
    pub fn is_for_wait(&self, class: &str) -> bool {
        (self.named || class == HEARTBEAT_CLASS) && self.is_for(class)
    }
}

/// What a step does when it has failed and is not tried again, in this order.
#[derive(Debug)]
pub struct OnError {
    /// Reads `error`. False: the next answer counts.
    pub when: Option<Expr>,
    /// Reads `error`.
    pub set: Vec<(String, Template)>,
    /// Indices of steps that are undone while the instance goes on.
    pub undo: Vec<u16>,
    /// Comes before what follows otherwise.
    pub complete: Option<Complete>,
    pub then: Then,
}

#[derive(Debug)]
pub enum Then {
    /// The instance fails; without a code with the error class.
    Fail(Option<Fail>),
    /// The step counts as done.
    Continue,
    Cancel(Cancel),
    /// The step of this index begins again, and all that need it.
    GoTo(u16),
}

impl Step {
    /// Whether people mean the step of this index, or a group around it, by `name`. Effects of states are known by
    /// what the state calls them.
    #[must_use]
    pub fn is_called(steps: &[Self], index: u16, name: &str) -> bool {
        let of = |index: u16| steps.get(usize::from(index));
        let mut around = std::iter::successors(Some(index), |index| of(*index)?.within);
        around.any(|index| {
            of(index).is_some_and(|step| {
                let of_state = step.name.strip_prefix(OF_MACHINE);
                let emitted = of_state
                    .or_else(|| step.name.strip_prefix(OF_TIMERS))
                    .or_else(|| step.title().strip_prefix(OF_HANDLERS));
                let effect = emitted.and_then(|effect| effect.rsplit_once('.'));
                step.name == name || step.title() == name || effect.is_some_and(|(_, effect)| effect == name)
            })
        })
    }

    /// Whether it starts as soon as it can, and the instance completes when it is done.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        self.state.is_none() && !self.at_end && !self.emitted
    }

    /// What ends its wait.
    pub fn waits_for(&self) -> impl Iterator<Item = &Awaiting> {
        self.wait.iter().flat_map(|wait| &wait.any)
    }

    /// The event types that it waits for.
    pub fn expected_events(&self) -> impl Iterator<Item = &String> {
        self.waits_for().filter_map(|awaiting| match &awaiting.on {
            Awaited::Event(event_type) => Some(event_type),
            Awaited::Signal(_) | Awaited::Callback => None,
        })
    }

    /// Whether it waits, and does nothing else.
    #[must_use]
    pub const fn waits_alone(&self) -> bool {
        self.wait.is_some() && matches!(self.action, Action::Nothing)
    }

    /// Whether it waits for the holder of the token of its attempt.
    #[must_use]
    pub fn is_called_back(&self) -> bool {
        self.waits_for()
            .any(|awaiting| matches!(awaiting.on, Awaited::Callback))
    }

    /// What is said about failures of `class`, in the order in which it is tried: the class under which it stands, the index
    /// there, and the answer.
    pub fn answers<'s>(
        &'s self,
        class: &str,
    ) -> impl Iterator<Item = (&'s str, usize, &'s OnError)> + use<'s> {
        let own = self.on_error.get_key_value(class).filter(|_| class != ANY_CLASS);
        let any = self.on_error.get_key_value(ANY_CLASS);
        own.into_iter().chain(any).flat_map(|(class, answers)| {
            let answers = answers.iter().enumerate();
            answers.map(move |(index, answer)| (class.as_str(), index, answer))
        })
    }
}

/// What a step or a compensation does.
#[derive(Debug)]
pub enum Action {
    Effect {
        effect: EffectName,
        with: Template,
    },
    /// Done when the gateway has accepted it.
    Command(CommandTemplate),
    /// Done at once. Never what a compensation does.
    Publish(Telling),
    /// Starts an instance of another saga; done when that has completed, or at once. Never what a compensation
    /// does.
    Saga(ChildTemplate),
    /// Has the instance undone that the step has started. Only what a compensation does.
    UndoSaga(SagaName),
    /// Of a step that only lets time pass or waits. Never what a compensation does.
    Nothing,
    /// Done at once, and nothing outside. Never what a compensation does.
    Decide(Decision),
    /// Done when its members are. Never what a compensation does.
    Group(Group),
}

/// An instance of another saga, of the same tenant.
#[derive(Debug)]
pub struct ChildTemplate {
    pub saga: SagaName,
    /// Rendered to text.
    pub key: Template,
    /// Gives a map.
    pub input: Template,
    /// Whether the step waits for its outcome.
    pub waits: bool,
}
