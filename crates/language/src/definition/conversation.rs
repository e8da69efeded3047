//! What sagas tell each other: facts that one publishes and others hear, and signals that one sends to an instance of another.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::actions::Reading;
use super::codes;
use super::fields::{self, Fields};
use super::grammar;
use super::model::{SIGNAL_PREFIX, SignalTemplate};
use super::saga::{handled_types, member, parsed};
use super::starts;
use super::texts::EventParts;
use super::yaml::{Entry, Node, Value};
use crate::expr::{Root, Template, nearest};
use crate::ids::SagaName;
use crate::schema::Schema;

/// Facts that every saga publishes, without its file saying so.
pub const OWN_FACTS: [&str; 3] = [
    "saga.compensation_asked",
    "saga.compensation_failed",
    "saga.step_asked",
];

/// All sagas of a set of files by name, with what their files say to the others.
pub type Sagas = BTreeMap<String, Announced>;

/// What the file of a saga says to those of the others, as far as it can be read.
#[derive(Debug, Default)]
pub struct Announced {
    /// What instances are given; `None` where events alone start them.
    pub input: Option<Arc<Schema>>,
    /// Types of the facts that it publishes.
    facts: BTreeSet<String>,
    /// What it says that they carry.
    declared: BTreeMap<String, Arc<Schema>>,
    /// Names of the signals that it listens to.
    signals: BTreeSet<String>,
    /// A program decides, so it may publish anything, and hears every signal.
    decides: bool,
    /// Facts of others that it takes as often as they come: by its start and by handlers. A step that waits takes one.
    hears: Vec<Heard>,
}

#[derive(Debug)]
struct Heard {
    fact: String,
    from: String,
}

impl Announced {
    pub fn of(root: &Node<'_>, input: Option<Arc<Schema>>, declared: BTreeMap<String, Arc<Schema>>) -> Self {
        let mut announced = Self {
            input,
            declared,
            decides: member(root, "program").is_some(),
            ..Self::default()
        };
        announced.collect(root);
        let handled = handled_types(root);
        let signals = handled.keys().filter_map(|key| key.strip_prefix(SIGNAL_PREFIX));
        announced.signals.extend(signals.map(str::to_owned));
        let start = member(root, "start").map(|start| starts::written(&start.value));
        let start = start.unwrap_or_default();
        if let Some(Value::Map(events)) = member(root, "events").map(|events| &events.value.value) {
            for event in events {
                let is_taken = handled.contains_key(&*event.key) || start.contains(&&*event.key);
                for from in publishers(event).filter(|_| is_taken) {
                    announced.hears.push(Heard {
                        fact: event.key.clone().into_owned(),
                        from: from.to_owned(),
                    });
                }
            }
        }
        announced
    }

    /// Notes all publications and all waits for signals, wherever they stand.
    fn collect(&mut self, node: &Node<'_>) {
        match &node.value {
            Value::Scalar(_) => {}
            Value::List(items) => items.iter().for_each(|item| self.collect(item)),
            Value::Map(entries) => {
                for entry in entries {
                    let (names, key) = match &*entry.key {
                        "publish" => (Some(&mut self.facts), "type"),
                        "signal" => (Some(&mut self.signals), ""),
                        _ => (None, ""),
                    };
                    // Waits name a signal by a text; what is sent is a map.
                    let name = member(&entry.value, key).map_or(&entry.value, |entry| &entry.value);
                    if let (Some(names), Value::Scalar(name)) = (names, &name.value) {
                        names.insert(name.text.clone().into_owned());
                    }
                    self.collect(&entry.value);
                }
            }
        }
    }

    /// What its file says that a fact carries.
    pub fn declared(&self, fact: &str) -> Option<&Schema> {
        self.declared.get(fact).map(|schema| &**schema)
    }

    fn publishes(&self, fact: &str) -> bool {
        self.decides || self.facts.contains(fact) || OWN_FACTS.contains(&fact)
    }
}

/// Types of the facts that a file publishes, wherever that stands.
pub fn published(root: &Node<'_>) -> BTreeSet<String> {
    let mut announced = Announced::default();
    announced.collect(root);
    announced.facts
}

/// The names under `from` of an event.
fn publishers<'n>(event: &'n Entry<'_>) -> impl Iterator<Item = &'n str> {
    let from = member(&event.value, "from");
    let names = from.into_iter().flat_map(|from| fields::one_or_many(&from.value));
    names.filter_map(|name| match &name.value {
        Value::Scalar(scalar) => Some(&*scalar.text),
        Value::List(_) | Value::Map(_) => None,
    })
}

impl<'r> Reading<'r, '_> {
    /// `signal: {saga, key, name, data}`
    pub fn signal(
        &mut self,
        entry: &Entry<'_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> Option<SignalTemplate> {
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::emissions::SIGNAL,
            self.findings,
        )?;
        let saga = fields.require("saga", self.findings).and_then(|entry| {
            let text = fields::text(&entry.value, &entry.key_span, "the name of a saga", self.findings)?;
            parsed(SagaName::parse(text), &entry.value.span, self.findings)
        });
        let key = fields
            .require("key", self.findings)
            .map(|key| self.text(key, "the key of a saga", roots, event));
        let name = self.word(&fields, "name");
        let data = match fields.get("data") {
            None => Some(Template::Constant(b"{}".to_vec())),
            Some(data) => self.object(data, roots, event),
        };
        if let (Some(saga), Some(name)) = (&saga, &name) {
            self.listens(&fields, saga, name);
        }
        Some(SignalTemplate {
            saga: saga?,
            key: key?,
            name: name?,
            data: data?,
        })
    }

    /// Checks that there is such a saga, and that it listens to the signal.
    fn listens(&mut self, fields: &Fields<'_, '_>, saga: &SagaName, signal: &str) {
        let place = |key: &str| fields.get(key).map_or(0..0, |entry| entry.value.span.clone());
        let Some(announced) = self.known_saga(saga, place("saga")) else {
            return;
        };
        if announced.decides || announced.signals.contains(signal) {
            return;
        }
        let message = format!(
            "saga \"{saga}\" listens to no signal \"{}\"",
            signal.escape_debug()
        );
        let near = nearest(signal, announced.signals.iter().map(String::as_str));
        let help = near.map_or_else(
            || format!("let a step of it wait for the signal, or a handler take it: signal.{signal}"),
            |near| format!("did you mean \"{near}\"?"),
        );
        self.findings
            .warning(codes::UNTOLD, place("name"), message)
            .help(Some(help));
    }

    /// What the file of a saga announces; a name that no file has is a mistake.
    fn known_saga(&mut self, saga: &SagaName, span: Range<usize>) -> Option<&'r Announced> {
        let sagas = self.sagas?;
        let announced = sagas.get(saga.as_str());
        if announced.is_none() && self.all_sagas {
            let near = nearest(saga.as_str(), sagas.keys().map(String::as_str));
            self.findings
                .error(codes::UNKNOWN_SAGA, span, format!("unknown saga \"{saga}\""))
                .help(near.map(|near| format!("did you mean \"{near}\"?")));
        }
        announced
    }

    /// `from: booking`, or a list, of the event `fact`.
    pub fn from(&mut self, entry: &'r Entry<'_>, fact: &str) -> Vec<SagaName> {
        let mut from = BTreeSet::new();
        for item in fields::one_or_many(&entry.value) {
            let text = fields::text(item, &entry.key_span, "the name of a saga", self.findings);
            let name = text.and_then(|text| parsed(SagaName::parse(text), &item.span, self.findings));
            if let Some(name) = name {
                self.publishes(item, fact, &name);
                from.insert(name);
            }
        }
        if fields::one_or_many(&entry.value).is_empty() {
            fields::expected(&entry.value, &entry.key_span, "the name of a saga", self.findings);
        }
        from.into_iter().collect()
    }

    /// Checks that there is such a saga, and that it publishes the fact.
    fn publishes(&mut self, item: &Node<'_>, fact: &str, from: &SagaName) {
        let Some(announced) = self.known_saga(from, item.span.clone()) else {
            return;
        };
        if announced.publishes(fact) {
            return;
        }
        let message = format!("saga \"{from}\" publishes no fact \"{}\"", fact.escape_debug());
        let near = nearest(fact, announced.facts.iter().map(String::as_str));
        self.findings
            .warning(codes::UNTOLD, item.span.clone(), message)
            .help(near.map(|near| format!("did you mean \"{near}\"?")));
    }

    /// Sagas that hear each other in a circle may go on for ever. The first of them by name tells.
    pub fn circle(&mut self, root: &Node<'_>, name: &SagaName) {
        let Some(path) = self.sagas.and_then(|sagas| circle(sagas, name.as_str())) else {
            return;
        };
        let first = path.first().map_or("", |(_, heard)| heard.fact.as_str());
        let event = member(root, "events").and_then(|events| member(&events.value, first));
        let Some(from) = event.and_then(|event| member(&event.value, "from")) else {
            return;
        };
        let hears = path
            .iter()
            .map(|(saga, heard)| format!("{saga} hears {} of {}", heard.fact.escape_debug(), heard.from));
        let hears: Vec<String> = hears.collect();
        let message = format!("sagas hear each other in a circle: {}", hears.join(", "));
        self.findings
            .warning(codes::CIRCLE, from.key_span.clone(), message)
            .help(Some(
                "messages that cause each other end as a dead letter after 32 hops; let a step wait for one of these facts, which takes it once"
                    .to_owned(),
            ));
    }
}

/// The shortest way from a saga over those that it hears back to itself, where no saga before it by name is on it.
fn circle<'s>(sagas: &'s Sagas, name: &'s str) -> Option<Vec<(&'s str, &'s Heard)>> {
    // By saga: who hears it, and what.
    let mut came: BTreeMap<&str, (&str, &Heard)> = BTreeMap::new();
    let mut next = VecDeque::from([name]);
    while let Some(saga) = next.pop_front() {
        let hears = sagas.get(saga).map_or(&[][..], |announced| &announced.hears);
        for heard in hears {
            let from = heard.from.as_str();
            let is_told = sagas.get(from).is_some_and(|other| other.publishes(&heard.fact));
            if from < name || !is_told || came.contains_key(from) {
                continue;
            }
            came.insert(from, (saga, heard));
            if from == name {
                let mut path = Vec::new();
                let mut at = name;
                while path.is_empty() || at != name {
                    let step = *came.get(at)?;
                    path.push(step);
                    at = step.0;
                }
                path.reverse();
                return Some(path);
            }
            next.push_back(from);
        }
    }
    None
}
