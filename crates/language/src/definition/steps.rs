//! Reading the steps of a saga and how they are undone.

mod retry;

use std::ops::Range;
use std::sync::Arc;

pub use self::retry::{RetryBounds, as_double, factor, retry};
use super::actions::Reading;
use super::certain;
use super::children::Child;
use super::codes;
use super::compensations;
use super::fields::{self, Fields, NameRule};
use super::grammar;
use super::groups::{self, Outlined};
use super::loops;
use super::model::{Action, CHILD_TIMEOUT_MS, COMMAND_TIMEOUT_MS, EFFECT_TIMEOUT_MS, Join, Step, Wait};
use super::saga::member;
use super::texts::{self, EventParts, Readable};
use super::typing::{self, Types};
use super::waits;
use super::yaml::{Entry, Node};
use crate::expr::types::Type;
use crate::expr::{Expr, Root, Template, nearest};
use crate::ids::EffectName;
use crate::limits::Limits;
use crate::schema::Schema;
use crate::status::StepStatus;

/// Most steps of a saga.
pub const STEPS_MAX: usize = 256;
/// Shortest pause between two attempts of anything, in milliseconds.
pub const RETRY_PAUSE_MS_MIN: u64 = 100;

/// Roots when a step starts: it may be started by any input.
pub const START_ROOTS: &[Root] = &[Root::State, Root::Key, Root::Steps, Root::Event, Root::Record];
/// The same, with what is known of the command: only where it is handed over.
pub const TOKEN_ROOTS: &[Root] = &[
    Root::Command,
    Root::State,
    Root::Key,
    Root::Steps,
    Root::Event,
    Root::Record,
];
/// Roots when a step is done.
pub const RESULT_ROOTS: &[Root] = &[
    Root::Result,
    Root::State,
    Root::Key,
    Root::Steps,
    Root::Event,
    Root::Record,
];
impl<'r> Reading<'r, '_> {
    /// The steps of `outline`, which is that of `entry`.
    pub fn steps(&mut self, entry: &'r Entry<'_>, outline: &[Outlined<'r, '_>]) -> Vec<Step> {
        if fields::entries(&entry.value, &entry.key_span, "steps", self.findings).is_none() {
            return Vec::new();
        }
        if outline.len() > STEPS_MAX {
            let message = format!("{} steps, at most {STEPS_MAX} are allowed", outline.len());
            self.findings
                .error(codes::TOO_MANY, entry.key_span.clone(), message);
            return Vec::new();
        }
        groups::unique_names(outline, self.findings);
        let mut steps = Vec::with_capacity(outline.len());
        for (at, outlined) in outline.iter().enumerate() {
            let entry = outlined.entry;
            self.item = loops::item_name(at, outline);
            self.in_loop = loops::is_inside(at, outline);
            let outside = self.types.clone();
            if let Some(types) = &mut self.types {
                types.enter_step(at);
            }
            let step = if member(&entry.value, "choice").is_some() {
                self.choice(at, outline)
            } else if outlined.is_body {
                self.body(entry)
            } else if loops::kind(entry).is_some() {
                self.looped(at, outline)
            } else {
                self.step(entry)
            };
            self.types = outside;
            if std::mem::take(&mut self.lost_need) {
                self.uncertain.insert(at);
            }
            // What it does is wrong, and told; it stays a step that others need.
            let name = || entry.key.clone().into_owned();
            steps.push(Step {
                within: outlined.within,
                ..step.unwrap_or_else(|| Step::doing(name(), Action::Nothing))
            });
        }
        self.item = None;
        self.in_loop = false;
        steps
    }

    pub fn step(&mut self, entry: &'r Entry<'_>) -> Option<Step> {
        self.name_of_step(entry);
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::steps::STEP,
            self.findings,
        )?;
        let needs = fields
            .get("needs")
            .map(|needs| self.needs(needs))
            .unwrap_or_default();
        let join = self.join(&fields, &needs);
        let known = self.types.clone();
        self.assume_needs(&needs, &join);
        let condition = fields.get("if").map(|condition| self.start_condition(condition));
        self.assume(condition.as_ref(), true);
        let delay = fields
            .get("delay")
            .and_then(|delay| self.delay(delay, START_ROOTS, EventParts::Moment));
        // What stands beside a loop bounds the loop.
        let deadline = match loops::kind(entry) {
            Some(_) => None,
            None => self.deadline_of_step(&fields),
        };
        let action = self.step_action(&fields);
        let sending = std::mem::replace(&mut self.types, known);
        self.know_outcome(action.as_ref(), sending.as_ref());
        if let Some(Action::Saga(child)) = &action {
            self.know_child(child);
        }
        let (wait, (end_roots, end_event)) = self.awaited_by_step(&fields, action.as_ref());
        let retry = fields
            .get("retry")
            .map(|retry| self.step_retry(retry, wait.as_ref()))
            .unwrap_or_default();
        let on_error = self.on_error(&fields);
        self.no_members(&fields);
        let set = self.set_of_step(entry, &fields, (end_roots, end_event));
        let fail_if = self.fail_if(&fields, end_roots, end_event);
        let aliases = self.aliases(&fields, end_roots, end_event);
        let child = Child::of(fields.get("saga"), action.as_ref());
        let undoing = fields.get("compensate");
        let stays_done = undoing.is_some_and(compensations::is_none);
        let compensate = undoing
            .filter(|_| !stays_done)
            .map(|compensate| self.compensation(compensate, child));
        let timeout_ms = self.timeout(&fields);
        Some(Step {
            name: entry.key.clone().into_owned(),
            within: None,
            state: None,
            emitted: false,
            at_end: false,
            needs,
            join,
            condition,
            delay,
            action: action.unwrap_or(Action::Nothing),
            wait,
            retry,
            on_error,
            set,
            keeps_result: false,
            fail_if,
            aliases,
            compensate,
            stays_done,
            timeout_ms,
            deadline,
        })
    }

    /// What a step waits for, and what expressions at its end may read.
    fn awaited_by_step(
        &mut self,
        fields: &Fields<'r, '_>,
        action: Option<&Action>,
    ) -> (Option<Wait>, (&'static [Root], EventParts)) {
        // What it waits for is read with the saga.
        let waiting = fields.get("wait").filter(|_| fields.get("saga").is_none());
        let wait = waiting.and_then(|wait| self.wait(wait, action));
        let is_lost = wait.is_none() && (waiting.is_some() || fields.is_meant("wait"));
        let end = if is_lost {
            waits::ANY_END_ROOTS
        } else {
            waits::end_roots(action, wait.as_ref())
        };
        (wait, end)
    }

    /// Refuses members beside a step that is no group.
    fn no_members(&mut self, fields: &Fields<'r, '_>) {
        if let Some(steps) = fields.get("steps") {
            self.findings.error(
                codes::CONTRADICTION,
                steps.key_span.clone(),
                "\"steps\" stand in a loop or in an alternative of a choice",
            );
        }
    }

    /// The state fields that a step sets at its end.
    fn set_of_step(
        &mut self,
        entry: &Entry<'_>,
        fields: &Fields<'r, '_>,
        (roots, event): (&'static [Root], EventParts),
    ) -> Vec<(String, Template)> {
        let outcome = self.types.clone();
        if let (Some("foreach"), Some(types)) = (loops::kind(entry), &mut self.types) {
            // What its `set` sees is the list of all results.
            types.env.bind(Root::Result, Type::dynamic());
        }
        let set = fields
            .get("set")
            .map(|set| self.set(set, roots, event))
            .unwrap_or_default();
        self.types = outcome;
        set
    }

    /// What makes a step fail that has come to its end.
    fn fail_if(
        &mut self,
        fields: &Fields<'r, '_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> Option<Expr> {
        let condition = fields.get("fail_if")?;
        let readable = Readable {
            roots,
            event,
            steps: &self.steps,
            item: self.item,
            input: self.takes_input,
            types: self.types.as_ref().map(|types| &types.env),
        };
        let expr = texts::expr(condition, readable, self.findings);
        self.certain(condition, &expr, certain::FAIL_IF);
        Some(expr)
    }

    /// Adds what is known of the steps that one needs, when it begins.
    pub fn assume_needs(&mut self, needs: &[u16], join: &Join) {
        let (Some(types), Join::All) = (&mut self.types, join) else {
            return;
        };
        let over = Type::one_of([StepStatus::Done.as_str(), StepStatus::Skipped.as_str()]);
        for need in needs {
            let name = self.steps[usize::from(*need)];
            types.env.narrow(Root::Steps, &[name, "status"], &over);
        }
    }

    /// Says what is wrong with the name of a step.
    pub fn name_of_step(&mut self, entry: &Entry<'_>) {
        let (name, span) = (&entry.key, &entry.key_span);
        fields::is_name(name, span, "step", NameRule::Identifier, self.findings);
    }

    /// Indices of the steps that the `needs` of a step name, in order.
    pub fn needs(&mut self, entry: &Entry<'_>) -> Vec<u16> {
        let items = fields::one_or_many(&entry.value);
        let indices: Vec<Option<u16>> = items.iter().map(|item| self.step_name(item, entry)).collect();
        self.lost_need |= indices.iter().any(Option::is_none);
        ordered(indices.into_iter().flatten())
    }

    /// Indices of the steps that `entry` names, in order.
    pub fn steps_named(&mut self, entry: &Entry<'_>) -> Vec<u16> {
        let items = fields::one_or_many(&entry.value).iter();
        ordered(items.filter_map(|item| self.step_name(item, entry)))
    }

    /// The index of the step that `item` of `entry` names.
    pub fn step_name(&mut self, item: &Node<'_>, entry: &Entry<'_>) -> Option<u16> {
        let name = fields::text(item, &entry.key_span, "the name of a step", self.findings)?;
        if let Some(index) = self.steps.iter().position(|step| *step == name) {
            return u16::try_from(index).ok();
        }
        let help = nearest(name, self.steps.iter().copied()).map(|near| format!("did you mean \"{near}\"?"));
        let message = format!("unknown step \"{}\"", name.escape_debug());
        self.findings
            .error(codes::UNKNOWN_STEP, item.span.clone(), message)
            .help(help);
        None
    }

    pub fn action(&mut self, fields: &Fields<'_, '_>, roots: &'static [Root]) -> Option<Action> {
        self.action_with(fields, roots, roots, EventParts::Moment)
    }

    /// The same of what is begun where the event is at hand.
    pub fn action_of_event(
        &mut self,
        fields: &Fields<'_, '_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> Option<Action> {
        self.action_with(fields, roots, roots, event)
    }

    /// The same of a step, whose command may hand out the token of its work.
    pub fn own_action(&mut self, fields: &Fields<'_, '_>) -> Option<Action> {
        self.action_with(fields, START_ROOTS, TOKEN_ROOTS, EventParts::Moment)
    }

    /// `payload`: what the payload of a command reads.
    fn action_with(
        &mut self,
        fields: &Fields<'_, '_>,
        roots: &'static [Root],
        payload: &'static [Root],
        event: EventParts,
    ) -> Option<Action> {
        let with = fields.get("with");
        let entry = fields.one_of(&["effect", "command"], self.findings);
        let sent = with.and_then(|with| self.object(with, roots, event));
        let entry = entry?;
        if entry.key == "command" {
            if let Some(with) = with {
                self.findings.error(
                    codes::CONTRADICTION,
                    with.key_span.clone(),
                    "\"with\" belongs to an effect; a command has its \"payload\"",
                );
            }
            return self
                .command_with(entry, roots, payload, event)
                .map(Action::Command);
        }
        let effect = self.effect(entry)?;
        let template = match with {
            Some(_) => sent?,
            None => Template::Constant(b"{}".to_vec()),
        };
        let schemas = self.effects.and_then(|effects| effects.get(effect.as_str()));
        if let (Some(types), Some(input)) = (&self.types, schemas.and_then(|schemas| schemas.input.as_ref()))
        {
            let (entry, expected) = (with.unwrap_or(entry), Type::of_schema(input));
            typing::value(entry, &template, &expected, &types.env, self.findings);
        }
        Some(Action::Effect {
            effect,
            with: template,
        })
    }

    /// Binds `result`, and `input` in the compensation, to what the effect of a step says about them; of a command only
    /// what it sends is known.
    pub fn know_outcome(&mut self, action: Option<&Action>, sending: Option<&Types>) {
        let (Some(types), Some(sending), Some(action)) = (&mut self.types, sending, action) else {
            return;
        };
        let (effect, with) = match action {
            Action::Effect { effect, with } => (effect, with),
            Action::Command(command) => {
                types.sent = Some(command.payload.type_in(&sending.env).stored());
                return;
            }
            Action::Publish(_)
            | Action::Saga(_)
            | Action::UndoSaga(_)
            | Action::Nothing
            | Action::Decide(_)
            | Action::Group(_) => return,
        };
        let schemas = self.effects.and_then(|effects| effects.get(effect.as_str()));
        let read = |schema: Option<&Arc<Schema>>| {
            schema.map_or_else(Type::dynamic, |schema| Type::of_schema(schema))
        };
        let input = read(schemas.and_then(|schemas| schemas.input.as_ref()));
        let result = read(schemas.and_then(|schemas| schemas.output.as_ref()));
        // What was sent is known better than what may be sent.
        let sent = with.type_in(&sending.env).stored();
        types.sent = Some(sent.and(&input));
        types.env.bind(Root::Result, result);
    }

    fn effect(&mut self, entry: &Entry<'_>) -> Option<EffectName> {
        self.effect_name(&entry.value, &entry.key_span)
    }

    /// The name of an effect that there is, whose contract is pinned.
    pub fn effect_name(&mut self, node: &Node<'_>, at: &Range<usize>) -> Option<EffectName> {
        let text = fields::text(node, at, "the name of an effect", self.findings)?;
        let name = match EffectName::parse(text) {
            Ok(name) => name,
            Err(error) => {
                self.findings
                    .error(codes::NAME, node.span.clone(), error.to_string());
                return None;
            }
        };
        if let Some(effects) = self.effects
            && self.all_effects
            && !effects.contains_key(text)
        {
            let help = match nearest(text, effects.keys().map(String::as_str)) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => "an effect is defined by a file with `kind: Effect` and its name".to_owned(),
            };
            self.findings
                .error(
                    codes::UNKNOWN_EFFECT,
                    node.span.clone(),
                    format!("unknown effect \"{text}\""),
                )
                .help(Some(help));
        }
        let schemas = self.effects.and_then(|effects| effects.get(text));
        let contract = schemas.and_then(super::effect::EffectSchemas::contract);
        self.contracts
            .extend(contract.map(|contract| (name.clone(), contract)));
        Some(name)
    }

    /// How long an attempt may take, in milliseconds.
    pub fn timeout(&mut self, fields: &Fields<'_, '_>) -> i64 {
        let max = Limits::default().timer_ms.unsigned_abs();
        let written = fields
            .get("timeout")
            .and_then(|entry| fields::duration(entry, 1..=max, codes::WRONG_VALUE, self.findings));
        match written {
            Some(ms) => i64::try_from(ms).unwrap_or(i64::MAX),
            None if fields.get("command").is_some() => COMMAND_TIMEOUT_MS,
            None if fields.get("saga").is_some() => CHILD_TIMEOUT_MS,
            None => EFFECT_TIMEOUT_MS,
        }
    }
}

fn ordered(indices: impl Iterator<Item = u16>) -> Vec<u16> {
    let mut indices: Vec<u16> = indices.collect();
    indices.sort_unstable();
    indices.dedup();
    indices
}
