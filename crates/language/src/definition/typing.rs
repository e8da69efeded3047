//! The types of a definition: what is known about each name at each place, and findings about what does not fit.
//!
//! Types come from schemas. Where there is none, nothing is known and nothing is found; the check then moves to
//! run time.

mod fields_set;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use self::fields_set::{always_set, is_condition, reached, set_by, set_by_starts};
use super::codes;
use super::conversation::Sagas;
use super::effect::{EffectSchemas, Effects};
use super::facts;
use super::fields;
use super::findings::Findings;
use super::groups::Outlined;
use super::model::{Definition, EventDefinition};
use super::results;
use super::saga::member;
use super::texts;
use super::yaml::{Entry, Node, Value};
use crate::expr::types::{Env, Fault, FaultKind, Misfit, Type};
use crate::expr::{Expr, Root, Template};
use crate::schema::Schema;

/// What is known at the place that is read, changed as the reader goes along.
#[derive(Debug, Clone, Default)]
pub struct Types {
    pub env: Env,
    /// What the step sent whose compensation is to be read.
    pub sent: Option<Type>,
    plan: Arc<Plan>,
}

/// What is known about the saga as a whole.
#[derive(Debug, Clone, Default)]
struct Plan {
    /// The state as its schema has it, for what is written into it.
    state: Option<Type>,
    /// Data of events, by type.
    events: BTreeMap<String, Type>,
    /// Payloads of the facts that the saga publishes, by type.
    facts: BTreeMap<String, Type>,
    /// Event types that begin an instance.
    start: Vec<String>,
    /// Fields that the starts by an event of this type set, whichever is taken.
    opened: BTreeMap<String, BTreeSet<String>>,
    /// Fields of the state that are there from the first handler on.
    settled: BTreeSet<String>,
    /// Fields that are there in the very beginning.
    initial: BTreeSet<String>,
    /// Fields that are there once a step is reached, in the order of steps.
    reached: Vec<BTreeSet<String>>,
    /// Fields that steps set at all.
    by_steps: BTreeSet<String>,
    /// What is known of all steps.
    steps: Type,
    /// Results that are there once a step is reached, by the steps that gave them, in the order of steps.
    given: Vec<Vec<(String, Type)>>,
}

impl Types {
    /// What is known about a saga from its file as a whole.
    pub fn of_saga(
        root: &Node<'_>,
        outline: &[Outlined<'_, '_>],
        state: Option<&Schema>,
        events: &BTreeMap<String, EventDefinition>,
        start: &[String],
        effects: Option<&Effects>,
    ) -> Self {
        let names = |entry: Option<&Entry<'_>>| -> BTreeSet<String> {
            match entry.map(|entry| &entry.value.value) {
                Some(Value::Map(entries)) => entries
                    .iter()
                    .map(|entry| entry.key.clone().into_owned())
                    .collect(),
                _ => BTreeSet::new(),
            }
        };
        let initial = names(member(root, "state").and_then(|state| member(&state.value, "init")));
        let mut settled = initial.clone();
        let opened = set_by_starts(root, start);
        settled.extend(always_set(root, start, &opened));
        let plan = Plan {
            state: state.map(Type::of_schema),
            events: events
                .iter()
                .filter_map(|(name, event)| {
                    let schema = event.schema.as_ref()?;
                    Some((name.clone(), Type::of_schema(schema)))
                })
                .collect(),
            facts: BTreeMap::new(),
            start: start.to_vec(),
            opened,
            settled,
            initial,
            reached: reached(outline),
            by_steps: outline
                .iter()
                .flat_map(|step| set_by(&step.entry.value))
                .collect(),
            steps: results::of_steps(root, outline, effects),
            given: results::given(root, outline, effects),
        };
        let mut types = Self {
            env: Env::default(),
            sent: None,
            plan: Arc::new(plan),
        };
        types.env.bind(Root::Key, Type::string());
        types.env.bind(Root::Index, Type::integer());
        types.env.bind(Root::Outcome, Type::string());
        types.env.bind(
            Root::Failure,
            Type::object([
                ("code", Type::string()),
                ("message", Type::string()),
                ("step", Type::string().or(&Type::null())),
            ]),
        );
        types.enter_state(&types.plan.settled.clone(), true);
        types
    }

    /// The same for a saga that takes an input. One that an event has started has none.
    pub fn with_input(mut self, input: Option<&Schema>, start: &[String]) -> Self {
        if let Some(input) = input {
            let given = Type::of_schema(input);
            let known = if start.is_empty() {
                given
            } else {
                given.or(&Type::null())
            };
            self.env.bind(Root::Input, known);
        }
        self
    }

    /// The same with the facts that it publishes, and with those that it hears and says nothing about.
    pub fn with_facts(mut self, facts: BTreeMap<String, Type>, heard: BTreeMap<String, Type>) -> Self {
        let plan = Arc::make_mut(&mut self.plan);
        plan.facts = facts;
        plan.events.extend(heard);
        self
    }

    /// What a fact carries that the saga publishes, if it says so.
    pub fn fact(&self, fact: &str) -> Option<&Type> {
        self.plan.facts.get(fact)
    }

    /// What an effect may read; `response` is what its provider answers.
    pub fn of_effect(schemas: &EffectSchemas, response: Type) -> Self {
        let mut env = Env::default();
        if let Some(input) = &schemas.input {
            env.bind(Root::Input, Type::of_schema(input));
        }
        env.bind(
            Root::Command,
            Type::object([
                ("id", Type::string()),
                ("idempotency_key", Type::string()),
                ("key", Type::string()),
                ("saga", Type::string()),
                ("token", Type::string()),
                ("attempt", Type::integer()),
                ("tenant", Type::string()),
                ("trace_id", Type::string().or(&Type::null())),
            ]),
        );
        env.bind(Root::Response, response);
        Self {
            env,
            ..Self::default()
        }
    }

    /// What is known on the way from one state to another: `old` is read, `new` is written.
    pub fn between(old: Option<Type>, new: Option<Type>) -> Self {
        let plan = Plan {
            state: new,
            ..Plan::default()
        };
        let mut types = Self {
            env: Env::default(),
            sent: None,
            plan: Arc::new(plan),
        };
        types.env.bind(Root::State, old.unwrap_or_else(Type::dynamic));
        types
    }

    fn enter_state(&mut self, fields: &BTreeSet<String>, after_input: bool) {
        self.env.bind(Root::Steps, self.plan.steps.clone());
        let Some(state) = &self.plan.state else { return };
        // What the schema requires is there after an input, and not yet while the first one is handled.
        let known = if after_input {
            state.clone()
        } else {
            state.with_optional_members()
        };
        self.env.bind(Root::State, known);
        for field in fields {
            self.env.assure(Root::State, field);
        }
    }

    /// What handlers of an event type know.
    pub fn enter_event(&mut self, event_type: &str) {
        let data = self.plan.events.get(event_type).cloned();
        self.env.bind(
            Root::Event,
            envelope(data.unwrap_or_else(Type::dynamic), event_type),
        );
        if self.plan.start.iter().any(|start| start == event_type) {
            let mut fields = self.plan.initial.clone();
            fields.extend(self.plan.opened.get(event_type).cloned().unwrap_or_default());
            self.enter_state(&fields, false);
        }
    }

    /// What a start by an event of this type knows: the state is as it is in the very beginning.
    pub fn enter_start(&mut self, event_type: &str) {
        self.enter_event(event_type);
        let initial = self.plan.initial.clone();
        self.enter_state(&initial, false);
    }

    /// What a step knows when it starts: the fields that the steps before it have set are there.
    pub fn enter_step(&mut self, at: usize) {
        let mut fields = self.plan.settled.clone();
        fields.extend(self.plan.reached.get(at).cloned().unwrap_or_default());
        self.enter_state(&fields, true);
        for (step, result) in self.plan.given.get(at).into_iter().flatten() {
            self.env.narrow(Root::Steps, &[step, "result"], result);
        }
    }

    /// What is known when all steps are done or skipped, unless the instance may have ended before.
    pub fn enter_end(&mut self, may_be_early: bool) {
        let mut fields = self.plan.settled.clone();
        if !may_be_early {
            fields.extend(self.plan.by_steps.iter().cloned());
        }
        self.enter_state(&fields, true);
    }
}

fn envelope(data: Type, event_type: &str) -> Type {
    let optional = || Type::string().or(&Type::null());
    Type::object([
        ("time", Type::string()),
        ("id", Type::string()),
        ("type", Type::one_of([event_type])),
        ("version", Type::integer()),
        ("sequence", Type::integer()),
        ("aggregate_id", Type::string()),
        ("aggregate_type", Type::string()),
        ("correlation_id", optional()),
        ("causation_id", optional()),
        ("data", data),
    ])
}

/// Checks an expression that stands alone under `entry`.
pub fn expression(entry: &Entry<'_>, expr: &Expr, env: &Env, findings: &mut Findings<'_>) {
    findings.checking(entry.value.span.start);
    let mut faults = Vec::new();
    if is_condition(&entry.key) {
        expr.check_condition(env, &mut faults);
    } else {
        expr.type_in(env, &mut faults);
    }
    report(faults, &entry.value, 0, findings);
}

/// Checks the expressions of a text with `${...}` in it.
pub fn text(node: &Node<'_>, template: &Template, as_text: bool, env: &Env, findings: &mut Findings<'_>) {
    let Value::Scalar(scalar) = &node.value else {
        return;
    };
    findings.checking(node.span.start);
    let as_text = as_text || matches!(template, Template::Text(_));
    let mut at = 0;
    template.for_each_expr(&mut |expr| {
        let begin = scalar.text[at..].find(expr.text()).map_or(at, |found| at + found);
        at = begin + expr.text().len();
        let mut faults = Vec::new();
        if as_text {
            expr.check_text(env, &mut faults);
        } else {
            expr.type_in(env, &mut faults);
        }
        report(faults, node, begin, findings);
    });
}

fn report(faults: Vec<Fault>, node: &Node<'_>, base: usize, findings: &mut Findings<'_>) {
    for fault in faults {
        let span = texts::within(node, base + fault.offset, fault.length, findings.text());
        let (code, is_error) = match fault.kind {
            FaultKind::UnknownField => (codes::UNKNOWN_FIELD, true),
            FaultKind::Overload => (codes::OVERLOAD, true),
            FaultKind::Unguarded => (codes::UNGUARDED, true),
            FaultKind::UnguardedState => (codes::UNGUARDED, false),
            FaultKind::Certain => (codes::CERTAIN, true),
            FaultKind::CertainGuard => (codes::CERTAIN, false),
            FaultKind::NotBool => (codes::NOT_BOOL, true),
        };
        let reported = if is_error {
            findings.error(code, span, fault.message)
        } else {
            findings.warning(code, span, fault.message)
        };
        reported.help(fault.help);
        if code == codes::CERTAIN {
            findings.everywhere(node.span.start);
        }
    }
}

/// Holds the value of `entry`, compiled to `template`, against what is expected there.
pub fn value(
    entry: &Entry<'_>,
    template: &Template,
    expected: &Type,
    env: &Env,
    findings: &mut Findings<'_>,
) {
    if let Err(misfits) = template.type_in(env).fits(expected) {
        for misfit in misfits {
            misfitting(entry, misfit, findings);
        }
    }
}

/// Reports a misfit at the innermost part of the value that the file shows.
pub fn misfitting(entry: &Entry<'_>, misfit: Misfit, findings: &mut Findings<'_>) {
    let mut at: Range<usize> = entry.key_span.clone();
    let mut node = &entry.value;
    for name in &misfit.path {
        match member(node, name) {
            Some(inner) => {
                at = inner.key_span.clone();
                node = &inner.value;
            }
            None => break,
        }
    }
    // What is missing in a map is told at its key, what is wrong with a value at the value.
    let span = match &node.value {
        _ if misfit.about_name => at,
        Value::Map(_) => at,
        Value::Scalar(_) | Value::List(_) => fields::visible(node, &at, findings.text()),
    };
    findings
        .error(codes::MISFIT, span, misfit.message)
        .help(misfit.help);
}

/// Holds fields that are written into the state against its schema. `entry` holds them all.
pub fn state_fields(
    entry: &Entry<'_>,
    set: &[(String, Template)],
    types: &Types,
    findings: &mut Findings<'_>,
) {
    let Some(state) = types.plan.state.as_ref() else {
        return;
    };
    for (name, template) in set {
        let Some(field) = member(&entry.value, name) else {
            continue;
        };
        match state.field(name) {
            Ok(expected) => value(field, template, &expected, &types.env, findings),
            Err(help) => {
                let message = format!("the schema of the state has no field \"{}\"", name.escape_debug());
                findings
                    .error(codes::MISFIT, field.key_span.clone(), message)
                    .help(Some(help));
            }
        }
    }
}

/// Holds the first state against the schema; what it lacks may be set by the handler of the start event.
pub fn initial(entry: &Entry<'_>, init: &Template, types: &Types, findings: &mut Findings<'_>) {
    let Some(state) = types.plan.state.as_ref() else {
        return;
    };
    value(entry, init, &state.with_optional_members(), &types.env, findings);
}

/// What a saga has no schema for, in words.
pub fn untyped_saga(saga: &Definition, sagas: &Sagas) -> Option<String> {
    let has_schema = |event_type: &&str| {
        let event = saga.events.get(*event_type);
        event.is_some_and(|event| {
            event.schema.is_some() || facts::given(sagas, event_type, &event.from).is_some()
        })
    };
    let types = saga.event_types();
    let events: Vec<&str> = types.into_iter().filter(|name| !has_schema(name)).collect();
    let state = saga.state_schema.is_none();
    match (state, events.as_slice()) {
        (false, []) => None,
        (true, []) => Some("no schema says what the state holds".to_owned()),
        (true, _) => Some("no schema says what the state holds and what events carry".to_owned()),
        (false, events) => Some(format!("no schema says what {} carry", events.join(", "))),
    }
}

/// The same for an effect.
pub fn untyped_effect(schemas: &EffectSchemas) -> Option<&'static str> {
    match (&schemas.input, &schemas.output) {
        (Some(_), Some(_)) => None,
        (None, Some(_)) => Some("no schema says what the effect takes"),
        (Some(_), None) => Some("no schema says what the effect gives"),
        (None, None) => Some("no schema says what the effect takes and gives"),
    }
}
