//! Binding roots and evaluating what a definition holds, with failures that name their place.

use std::borrow::Cow;
use std::fmt::Write as _;

use saga_runner_language::expr::{Budget, EvalError, Expr, Root, Roots, Scope, Template, TextPart, UID_SEED};
use saga_runner_language::ids::InstanceId;
use saga_runner_language::json::Json;

use super::Rejection;
use super::place::Place;
use super::run::Run;
use super::slot::Slot;
use crate::record::{StepState, StepStatus};

/// What takes less than this part of the budget is not remembered as the heaviest.
const TELLING_PART: u64 = 16;

/// What the kernel stored is nested at most as deep as a message and a template together.
const STORED_DEPTH_MAX: usize = 256;

/// Roots that one evaluation has besides those of the transition.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Locals<'a> {
    pub result: Option<&'a Json<'a>>,
    pub input: Option<&'a Json<'a>>,
    pub error: Option<&'a Json<'a>>,
    /// In place of the input.
    pub event: Option<&'a Json<'a>>,
    pub signal: Option<&'a Json<'a>>,
    /// Why nobody waited any more for what is undone.
    pub late: Option<&'a Json<'a>>,
    /// What is known of the command that is made.
    pub command: Option<&'a Json<'a>>,
    pub wait: Option<&'a Json<'a>>,
}

impl<'a> Run<'a> {
    /// Evaluates a condition.
    pub(super) fn test(
        &mut self,
        expr: &Expr,
        locals: Locals<'a>,
        place: impl Fn() -> String,
    ) -> Result<bool, Rejection> {
        let scope = self.scope(locals, expr.roots())?;
        let left = self.budget.steps;
        let held = expr
            .test(&scope, &mut self.budget)
            .map_err(|error| self.rejected(&error, left, &format!("{} in `{}`", place(), expr.text())))?;
        self.weigh(left, &place);
        if let Some(trace) = self.ground.trace {
            trace.tested(place(), held);
        }
        Ok(held)
    }

    /// Evaluates an expression to JSON.
    pub(super) fn evaluate(
        &mut self,
        expr: &'a Expr,
        locals: Locals<'a>,
        place: impl Fn() -> String,
    ) -> Result<Json<'a>, Rejection> {
        let scope = self.scope(locals, expr.roots())?;
        let left = self.budget.steps;
        let value = expr
            .eval(&scope, &mut self.budget)
            .map_err(|error| self.rejected(&error, left, &format!("{} in `{}`", place(), expr.text())))?;
        self.weigh(left, &place);
        Ok(value)
    }

    /// Renders a template to JSON.
    pub(super) fn render(
        &mut self,
        template: &Template,
        locals: Locals<'a>,
        place: impl Fn() -> String,
    ) -> Result<Vec<u8>, Rejection> {
        let scope = self.scope(locals, template.roots())?;
        let mut out = Vec::with_capacity(64);
        let left = self.budget.steps;
        template
            .render(&scope, &mut self.budget, &mut out)
            .map_err(|error| self.rejected(&error, left, &self.blame(template, &scope, place())))?;
        self.weigh(left, &place);
        Ok(out)
    }

    /// Renders a template to text.
    pub(super) fn render_text(
        &mut self,
        template: &Template,
        locals: Locals<'a>,
        place: impl Fn() -> String,
    ) -> Result<String, Rejection> {
        let scope = self.scope(locals, template.roots())?;
        let left = self.budget.steps;
        let text = template
            .render_text(&scope, &mut self.budget)
            .map_err(|error| self.rejected(&error, left, &self.blame(template, &scope, place())))?;
        self.weigh(left, &place);
        Ok(text)
    }

    /// Parses JSON that lives as long as the transition.
    pub(super) fn parse(&self, text: &'a [u8], what: &str) -> Result<&'a Json<'a>, Rejection> {
        Ok(self.ground.values.keep(read_json(text, what)?))
    }

    /// The result of `step` that has come with this input, parsed once.
    pub(super) fn result(&mut self, payload: &'a [u8], step: &str) -> Result<&'a Json<'a>, Rejection> {
        if let Some((known, value)) = self.parsed.result
            && std::ptr::eq(known, payload)
        {
            return Ok(value);
        }
        let place = Place::Step { name: step };
        let value = self.parse(payload, &format!("the result of {place}"))?;
        self.parsed.result = Some((payload, value));
        Ok(value)
    }

    /// Keeps bytes and parses them.
    pub(super) fn parse_owned(&self, text: Vec<u8>, what: &str) -> Result<&'a Json<'a>, Rejection> {
        self.parse(self.ground.texts.keep(text), what)
    }

    fn scope(&mut self, locals: Locals<'a>, reads: Roots) -> Result<Scope<'a>, Rejection> {
        let mut scope = Scope::default();
        for root in Root::ALL {
            let value = match root {
                Root::Result => locals.result.or(self.ambient.result),
                Root::Input if locals.input.is_some() => locals.input,
                Root::Input if reads.contains(root) => Some(self.input_root()?),
                Root::Error => locals.error.or(self.ambient.error),
                Root::Key if reads.contains(root) => Some(self.key()),
                Root::Late => locals.late,
                Root::Signal => locals.signal.or(self.ambient.signal),
                Root::Command => locals.command,
                Root::Wait => locals.wait,
                Root::Event if locals.event.is_some() => locals.event,
                Root::Event if reads.contains(root) => Some(self.event_root()?),
                Root::State if reads.contains(root) => Some(self.state_root()?),
                Root::Steps if reads.contains(root) => Some(self.steps_root()?),
                Root::Failure if reads.contains(root) => self.failure_root(),
                Root::Record if reads.contains(root) => Some(self.record_root()),
                Root::Outcome if reads.contains(root) => Some(self.outcome_root()),
                Root::Item if reads.contains(root) => self.item_root()?,
                Root::Index if reads.contains(root) => self.index_root(),
                Root::Input
                | Root::Key
                | Root::Event
                | Root::State
                | Root::Steps
                | Root::Failure
                | Root::Record
                | Root::Outcome
                | Root::Item
                | Root::Index
                // Effects alone have these.
                | Root::Response
                | Root::Secrets
                | Root::Upstreams => None,
            };
            if let Some(value) = value {
                scope = scope.bind(root, value);
            }
        }
        Ok(scope)
    }

    fn key(&mut self) -> &'a Json<'a> {
        let ground = self.ground;
        self.parsed
            .key
            .get_or_insert_with(|| ground.values.keep(text(ground.instance.key.as_str())))
    }

    /// What the instance was given at its start.
    fn input_root(&mut self) -> Result<&'a Json<'a>, Rejection> {
        if let Some(value) = self.parsed.input {
            return Ok(value);
        }
        let value = match &self.record.input {
            Some(input) => self.parse_owned(input.to_vec(), "input")?,
            None => self.ground.values.keep(Json::Null),
        };
        self.parsed.input = Some(value);
        Ok(value)
    }

    pub(super) fn event_root(&mut self) -> Result<&'a Json<'a>, Rejection> {
        if let Some(value) = self.parsed.event {
            return Ok(value);
        }
        let input = self.ground.input;
        let value = match self.event() {
            None => Json::Map(vec![
                (
                    Cow::Borrowed("time"),
                    Json::Str(Cow::Owned(input.time.to_string())),
                ),
                (Cow::Borrowed("id"), text(&input.id)),
            ]),
            Some(event) => {
                let data = Json::parse(&event.payload, self.ground.context.limits.json_depth);
                let data = data.map_err(|error| Rejection {
                    reason: "payload.syntax",
                    message: format!("event {}: {error}", event.event_id),
                })?;
                event.root(input.time, data)
            }
        };
        let value = self.ground.values.keep(value);
        self.parsed.event = Some(value);
        Ok(value)
    }

    pub(super) fn state_root(&mut self) -> Result<&'a Json<'a>, Rejection> {
        if let Some(value) = self.parsed.state {
            return Ok(value);
        }
        let value = self.parse(self.data, "state")?;
        self.parsed.state = Some(value);
        Ok(value)
    }

    fn steps_root(&mut self) -> Result<&'a Json<'a>, Rejection> {
        let ground = self.ground;
        if let Some(value) = self.parsed.steps {
            return Ok(value);
        }
        let focus = self.focus;
        let steps = (0..=u16::MAX).zip(&ground.definition.steps);
        let mut members = Vec::new();
        for (index, step) in steps.filter(|(_, step)| !step.name.contains('.')) {
            let slot = focus.map_or(Slot::of(index), |focus| focus.peer(self, index));
            let state = if self.has_slot(slot) {
                self.slot(slot)
            } else {
                self.slot(Slot::of(index))
            };
            let mut value = step_value(state);
            if step.keeps_result {
                // While it waits, what its action gave is not yet its result.
                let kept = state
                    .result
                    .as_ref()
                    .filter(|_| state.status != StepStatus::Waiting);
                let result = match kept {
                    Some(kept) => read_json(ground.texts.keep(kept.to_vec()), "the result of a step")?,
                    None => Json::Null,
                };
                value.push((Cow::Borrowed("result"), result));
            }
            members.push((Cow::Borrowed(step.name.as_str()), Json::Map(value)));
        }
        let value = ground.values.keep(Json::Map(members));
        self.parsed.steps = Some(value);
        Ok(value)
    }

    fn failure_root(&mut self) -> Option<&'a Json<'a>> {
        let failure = self.record.failure.as_ref()?;
        let ground = self.ground;
        Some(self.parsed.failure.get_or_insert_with(|| {
            let owned = |text: &str| Json::Str(Cow::Owned(text.to_owned()));
            ground.values.keep(Json::Map(vec![
                (Cow::Borrowed("code"), owned(&failure.code)),
                (Cow::Borrowed("message"), owned(&failure.message)),
                (
                    Cow::Borrowed("step"),
                    failure.step.as_deref().map_or(Json::Null, owned),
                ),
            ]))
        }))
    }

    fn item_root(&mut self) -> Result<Option<&'a Json<'a>>, Rejection> {
        if let Some(value) = self.parsed.item {
            return Ok(Some(value));
        }
        let found = self.focus.and_then(|slot| self.item(slot));
        let Some(value) = found.map(|(items, at)| items.running[at].value.to_vec()) else {
            return Ok(None);
        };
        let value = self.parse_owned(value, "an item")?;
        self.parsed.item = Some(value);
        Ok(Some(value))
    }

    fn index_root(&mut self) -> Option<&'a Json<'a>> {
        let index = self.focus?.item?;
        let ground = self.ground;
        Some(
            self.parsed
                .index
                .get_or_insert_with(|| ground.values.keep(Json::Int(i64::from(index)))),
        )
    }

    fn outcome_root(&self) -> &'a Json<'a> {
        let outcome = self.record.outcome().to_owned();
        self.ground.values.keep(Json::Str(Cow::Owned(outcome)))
    }

    fn record_root(&mut self) -> &'a Json<'a> {
        let ground = self.ground;
        let record = &self.record;
        self.parsed.record.get_or_insert_with(|| {
            let InstanceId { tenant, saga, key } = ground.instance;
            // Lengths first, so that no two different lists of parts read the same.
            let parts = [
                tenant.as_str(),
                saga.as_str(),
                key.as_str(),
                &record.start_event,
                &ground.input.id,
            ];
            let mut seed = ground.context.cluster.to_string();
            for part in parts {
                write!(seed, ":{}:{part}", part.len()).expect("writing to a string");
            }
            let seq = i64::try_from(record.version).unwrap_or(i64::MAX);
            ground.values.keep(Json::Map(vec![
                (Cow::Borrowed("seq"), Json::Int(seq)),
                (Cow::Borrowed(UID_SEED), Json::Str(Cow::Owned(seed))),
            ]))
        })
    }

    /// Remembers what has used most of the budget so far, where that is worth telling.
    fn weigh(&mut self, left: u64, place: &impl Fn() -> String) {
        let used = left.saturating_sub(self.budget.steps);
        let least = self.ground.context.limits.expression_steps / TELLING_PART;
        let before = self.heaviest.as_ref().map_or(0, |(used, _)| *used);
        if used > least.max(before) {
            self.heaviest = Some((used, place()));
        }
    }

    /// `left` is what the budget had when the expression began.
    fn rejected(&self, error: &EvalError, left: u64, place: &str) -> Rejection {
        let (reason, mut message) = match error {
            EvalError::Budget { .. } => ("fuel", format!("{place}: {error}")),
            EvalError::NoField { .. }
            | EvalError::Type { .. }
            | EvalError::Overflow { .. }
            | EvalError::Other(_) => ("expression", format!("{place}: {error}")),
        };
        if let (EvalError::Budget { .. }, Some((used, heaviest))) = (error, &self.heaviest)
            && *used > left
        {
            let all = self.ground.context.limits.expression_steps;
            write!(
                message,
                "; {heaviest} took {used} of the {all} of this input before"
            )
            .expect("a string");
        }
        Rejection { reason, message }
    }

    /// Names the expression of `template` that fails, by evaluating its parts one by one. Runs on the way to
    /// a dead letter only, with a budget of its own.
    fn blame(&self, template: &Template, scope: &Scope<'a>, place: String) -> String {
        let mut budget = Budget {
            steps: self.ground.context.limits.expression_steps,
        };
        culprit(template, scope, &mut budget, &place).unwrap_or(place)
    }
}

fn culprit(template: &Template, scope: &Scope<'_>, budget: &mut Budget, place: &str) -> Option<String> {
    let mut failing = |expr: &Expr| {
        let failed = expr.eval(scope, budget).is_err();
        failed.then(|| format!("{place} in `{}`", expr.text()))
    };
    match template {
        Template::Constant(_) => None,
        Template::Value(expr) => failing(expr),
        Template::Text(parts) => parts.iter().find_map(|part| match part {
            TextPart::Literal(_) => None,
            TextPart::Expr(expr) => failing(expr),
        }),
        Template::List(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| culprit(item, scope, budget, &format!("{place}[{index}]"))),
        Template::Map(members) => members
            .iter()
            .find_map(|(name, member)| culprit(member, scope, budget, &format!("{place}.{name}"))),
    }
}

/// Parses what messages and templates have said.
fn read_json<'a>(text: &'a [u8], what: &str) -> Result<Json<'a>, Rejection> {
    Json::parse(text, STORED_DEPTH_MAX).map_err(|error| Rejection {
        reason: "payload.syntax",
        message: format!("{what}: {error}"),
    })
}

fn step_value<'a>(state: &StepState) -> Vec<(Cow<'a, str>, Json<'a>)> {
    let error = state.error.as_ref();
    vec![
        (Cow::Borrowed("status"), text(state.status.as_str())),
        (
            Cow::Borrowed("error"),
            error.map_or(Json::Null, |class| Json::Str(Cow::Owned(class.clone()))),
        ),
        (Cow::Borrowed("attempt"), Json::Int(i64::from(state.attempt))),
        (
            Cow::Borrowed("iteration"),
            Json::Int(i64::from(state.turn.max(state.iteration))),
        ),
    ]
}

const fn text(text: &str) -> Json<'_> {
    Json::Str(Cow::Borrowed(text))
}
