//! Reading a saga file as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::actions::{Reading, Timers, names_under};
use super::aliases::Aliases;
use super::archive;
use super::canonical;
use super::check;
use super::codes;
use super::conversation::Sagas;
use super::effect::Effects;
use super::endings;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::groups::{self, Outlined};
use super::model::{BUFFER, Definition, EffectContract, KeyRule, Step};
use super::results;
use super::schema_files::Schemas;
use super::state_effects;
use super::texts::{self, Readable};
use super::typing::{self, Types};
use super::uncompensated::Acting;
use super::yaml::{Entry, Node, Value};
use crate::expr::{Root, Template};
use crate::ids::{DefinitionHash, EffectName, SagaName};

/// The version of the language.
pub const API_VERSION: &str = "sagas/v1";

/// Most events and signals that an instance may keep for steps that will wait for them.
pub const BUFFER_MAX: u32 = 256;

/// Roots at the end of an instance that did not fail.
pub const COMPLETED_ROOTS: &[Root] = &[Root::State, Root::Key, Root::Steps, Root::Event, Root::Record];
/// Compiles a saga; `None` where there are errors among the findings.
pub fn compile<'c>(
    root: &Node<'_>,
    source: &Arc<str>,
    known: Option<Known<'_>>,
    schemas: &mut Schemas<'c>,
    findings: &mut Findings<'c>,
) -> Option<Definition> {
    let (mut definition, contracts) = read(root, source, known, schemas, findings)?;
    definition.effects = contracts;
    Some(finished(definition, schemas))
}

/// Compiles an archived saga, whose effects were pinned when it was loaded.
pub fn compile_pinned<'c>(
    root: &Node<'_>,
    source: &Arc<str>,
    effects: BTreeMap<EffectName, EffectContract>,
    schemas: &mut Schemas<'c>,
    findings: &mut Findings<'c>,
) -> Option<Definition> {
    let (mut definition, _) = read(root, source, None, schemas, findings)?;
    definition.effects = effects;
    Some(finished(definition, schemas))
}

fn finished(mut definition: Definition, schemas: &mut Schemas<'_>) -> Definition {
    definition.source = archive::text(
        &definition.source,
        &schemas.take_named(),
        &definition.effects,
        definition.program.as_ref(),
    );
    definition.hash = canonical::hash(&definition);
    definition
}

/// What a saga is read beside.
#[derive(Debug, Clone, Copy)]
pub struct Known<'k> {
    pub effects: &'k Effects,
    pub acting: &'k Acting,
    pub sagas: &'k Sagas,
    /// Whether there are no other effects.
    pub all_effects: bool,
    pub all_sagas: bool,
}

type Contracts = BTreeMap<EffectName, EffectContract>;

/// Reads everything but the hash and the contracts, which come beside it.
fn read<'c>(
    root: &Node<'_>,
    source: &Arc<str>,
    known: Option<Known<'_>>,
    schemas: &mut Schemas<'c>,
    findings: &mut Findings<'c>,
) -> Option<(Definition, Contracts)> {
    let fields = Fields::read(root, &(0..0), &grammar::saga::SAGA, findings)?;
    let name = header(&fields, "Saga", findings).and_then(|entry| {
        let text = fields::text(&entry.value, &entry.key_span, "the name of the saga", findings)?;
        parsed(SagaName::parse(text), &entry.value.span, findings)
    });
    let outline = groups::outline(root);
    let mut reading = reading(root, &outline, known, schemas, findings);
    // Thrown away with the whole where there is no name.
    let parsed_name = name
        .clone()
        .unwrap_or_else(|| SagaName::parse("unnamed").expect("a legal name"));
    let definition = definition(
        &mut reading,
        &fields,
        (root, &outline),
        (parsed_name, source),
        known.is_some(),
    );
    check::timers(&mut reading);
    if let Some(name) = &name {
        reading.circle(root, name);
    }
    reading.check_aliases();
    let contracts = std::mem::take(&mut reading.contracts);
    let unknowns = check::Unknowns {
        needs: std::mem::take(&mut reading.uncertain),
        handlers: std::mem::take(&mut reading.strays),
        ways: reading.lost_way,
        completes: reading.completes,
    };
    check::saga(
        &definition,
        root,
        &outline,
        known.map(|known| known.acting),
        &unknowns,
        findings,
    );
    if findings.has_errors() {
        return None;
    }
    Some((definition, contracts))
}

/// The reader of a saga before it has read anything.
fn reading<'r, 'c>(
    root: &'r Node<'_>,
    outline: &[Outlined<'r, '_>],
    known: Option<Known<'r>>,
    schemas: &'r mut Schemas<'c>,
    findings: &'r mut Findings<'c>,
) -> Reading<'r, 'c> {
    Reading {
        findings,
        effects: known.map(|known| known.effects),
        sagas: known.map(|known| known.sagas),
        all_effects: known.is_some_and(|known| known.all_effects),
        all_sagas: known.is_some_and(|known| known.all_sagas),
        schemas,
        types: None,
        contracts: BTreeMap::new(),
        starts: Vec::new(),
        steps: outline.iter().map(Outlined::name).collect(),
        item: None,
        in_loop: false,
        takes_input: ["input", "schedule"]
            .iter()
            .any(|key| member(root, key).is_some()),
        states: names_under(root, &["machine", "states"]),
        entered: None,
        timer: None,
        handled: None,
        emitted_effects: state_effects::by_name(root),
        of_effects: Vec::new(),
        emitted: Vec::new(),
        timers: Timers {
            declared: names_under(root, &["timers"]).into_iter().collect(),
            ..Timers::default()
        },
        aliases: Aliases::default(),
        completes: false,
        kept: Vec::new(),
        lost_need: false,
        nameless: false,
        uncertain: BTreeSet::new(),
        strays: Vec::new(),
        lost_way: false,
    }
}

/// Reads each key of the file.
fn definition<'r>(
    reading: &mut Reading<'r, '_>,
    fields: &Fields<'r, '_>,
    (root, outline): (&'r Node<'_>, &[Outlined<'r, '_>]),
    (name, source): (SagaName, &Arc<str>),
    is_checked: bool,
) -> Definition {
    let input = reading.input(fields);
    let schedule = reading.schedule(fields);
    let start = reading.start(fields);
    reading.starts.clone_from(&start);
    let keys = reading.keys(fields);
    let events = fields
        .get("events")
        .map(|entry| reading.events(entry))
        .unwrap_or_default();
    let facts = reading.facts(fields, root);
    let heard = reading.heard_facts(&events);
    let state = reading.stored(fields);
    let state_schema = state.as_ref().and_then(|state| {
        let schema = state.get("schema")?;
        reading.schemas.read(schema, reading.findings)
    });
    // What was archived has been checked, and is not to be refused by what a later checker finds.
    reading.types = is_checked.then(|| {
        let state = state_schema.as_deref();
        Types::of_saga(root, outline, state, &events, &start, reading.effects)
            .with_input(input.as_deref(), &start)
            .with_facts(facts, heard)
    });
    let by = reading.by_rules(root, &start);
    let init = initial_state(reading, fields, state);
    let lifecycle = reading.lifecycle(fields);
    let handlers = fields
        .get("handlers")
        .map(|entry| reading.saga_handlers(entry))
        .unwrap_or_default();
    let machine = fields.get("machine").and_then(|entry| reading.machine(entry));
    let program = reading.program(fields);
    let mut steps = fields
        .get("steps")
        .map(|entry| reading.steps(entry, outline))
        .unwrap_or_default();
    let timers = reading.saga_timers(fields, outline);
    let cancel_when = fields.get("cancel_when").map(|entry| reading.cancel_when(entry));
    let finally = fields
        .get("finally")
        .map(|entry| reading.finally(entry))
        .unwrap_or_default();
    let [result_handlers, error_handlers] = reading.by_effect();
    complete(&mut steps, reading);
    Definition {
        name,
        hash: DefinitionHash([0; 32]),
        source: Arc::clone(source),
        input,
        schedule,
        start,
        lifecycle,
        keys,
        by,
        events,
        state_schema,
        effects: BTreeMap::new(),
        init,
        handlers,
        result_handlers,
        error_handlers,
        machine,
        program,
        steps,
        timers,
        cancel_when,
        finally,
        undo_order: reading.undo_order(fields),
        buffer: buffer(reading, fields),
        migration: reading.migration(fields),
    }
}

/// Adds the emitted effects to the steps, and finds which results they keep.
fn complete(steps: &mut Vec<Step>, reading: &mut Reading<'_, '_>) {
    steps.append(&mut reading.emitted);
    endings::kept(&reading.kept, steps, reading.findings);
    results::keep(steps, reading.findings);
}

fn initial_state<'r>(
    reading: &mut Reading<'r, '_>,
    fields: &Fields<'r, '_>,
    state: Option<Fields<'r, '_>>,
) -> Template {
    let init = state.and_then(|state| reading.init(&state));
    let init = init.unwrap_or_else(|| Template::Constant(b"{}".to_vec()));
    if let (Some(types), Some(state)) = (&reading.types, fields.get("state"))
        && let Some(entry) = member(&state.value, "init")
    {
        typing::initial(entry, &init, types, reading.findings);
    }
    init
}

/// How many events and signals an instance keeps.
fn buffer(reading: &mut Reading<'_, '_>, fields: &Fields<'_, '_>) -> usize {
    let buffer = fields
        .get("buffer")
        .and_then(|entry| fields::integer(entry, 1..=BUFFER_MAX, codes::WRONG_VALUE, reading.findings));
    buffer.map_or(BUFFER, |buffer| buffer as usize)
}

/// Checks `apiVersion` and `kind`, and returns the entry of the name.
pub fn header<'n, 't>(
    fields: &Fields<'n, 't>,
    kind: &str,
    findings: &mut Findings<'_>,
) -> Option<&'n Entry<'t>> {
    for (key, wanted) in [("apiVersion", API_VERSION), ("kind", kind)] {
        let Some(entry) = fields.require(key, findings) else {
            continue;
        };
        let Some(found) = fields::text(&entry.value, &entry.key_span, "text", findings) else {
            continue;
        };
        if found != wanted {
            let message = format!("{key} is \"{}\", expected \"{wanted}\"", found.escape_debug());
            findings.error(codes::HEADER, entry.value.span.clone(), message);
        }
    }
    fields.require("name", findings)
}

/// Reports why a text is not an identifier.
pub fn parsed<T, E: ToString>(
    result: Result<T, E>,
    span: &Range<usize>,
    findings: &mut Findings<'_>,
) -> Option<T> {
    result
        .map_err(|error| {
            findings.error(codes::NAME, span.clone(), error.to_string());
        })
        .ok()
}

impl<'r> Reading<'r, '_> {
    fn keys(&mut self, fields: &Fields<'r, '_>) -> Vec<KeyRule> {
        // Whether a saga that takes an input has events to route is known when all of it is read.
        let entry = if self.takes_input {
            fields.get("key")
        } else {
            fields.require("key", self.findings)
        };
        let Some(entry) = entry else {
            return Vec::new();
        };
        let mut rules = Vec::new();
        let entries = fields::entries(&entry.value, &entry.key_span, "key rules", self.findings);
        for rule in entries.unwrap_or_default() {
            let exact = rule.key.strip_suffix(".*").unwrap_or(&rule.key);
            if exact.is_empty() || (exact.contains('*') && exact != "*") {
                let message = format!(
                    "\"{}\" is not a pattern: write an event type, <AggregateType>.*, or *",
                    rule.key.escape_debug()
                );
                self.findings.error(codes::NAME, rule.key_span.clone(), message);
            } else {
                fields::is_word(exact, &rule.key_span, "pattern", self.findings);
            }
            let key = texts::expr(rule, Readable::roots(&[Root::Event]), self.findings);
            let pattern = rule.key.clone().into_owned();
            rules.push(KeyRule { pattern, key });
        }
        rules
    }

    /// The first state, and the schema of every later one.
    fn stored<'n, 't>(&mut self, fields: &Fields<'n, 't>) -> Option<Fields<'n, 't>> {
        let state = fields.get("state")?;
        Fields::read(
            &state.value,
            &state.key_span,
            &grammar::saga::STATE,
            self.findings,
        )
    }

    fn init(&mut self, fields: &Fields<'r, '_>) -> Option<Template> {
        let init = fields.require("init", self.findings)?;
        fields::entries(&init.value, &init.key_span, "init", self.findings)?;
        let readable = Readable {
            input: self.takes_input,
            types: self.types.as_ref().map(|types| &types.env),
            ..Readable::roots(&[])
        };
        Some(texts::template(&init.value, readable, self.findings))
    }
}

/// The handlers of a file by event type, with the places of their keys.
pub fn handled_types<'n>(root: &'n Node<'_>) -> BTreeMap<&'n str, Range<usize>> {
    let mut places = BTreeMap::new();
    let mut collect = |entry: Option<&'n Entry<'_>>| {
        if let Some(Value::Map(entries)) = entry.map(|entry| &entry.value.value) {
            for entry in entries {
                places.entry(&*entry.key).or_insert(entry.key_span.clone());
            }
        }
    };
    collect(member(root, "handlers"));
    collect(member(root, "after_end"));
    let states = member(root, "machine").and_then(|machine| member(&machine.value, "states"));
    if let Some(Value::Map(states)) = states.map(|states| &states.value.value) {
        for state in states {
            collect(member(&state.value, "handlers"));
        }
    }
    let events = member(root, "program").and_then(|program| member(&program.value, "events"));
    for item in events
        .iter()
        .flat_map(|events| fields::one_or_many(&events.value))
    {
        if let Value::Scalar(scalar) = &item.value {
            places.entry(&*scalar.text).or_insert(item.span.clone());
        }
    }
    places
}

/// A member of a map, without any finding.
pub fn member<'n, 't>(node: &'n Node<'t>, key: &str) -> Option<&'n Entry<'t>> {
    match &node.value {
        Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
        Value::Scalar(_) | Value::List(_) => None,
    }
}
