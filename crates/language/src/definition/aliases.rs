//! Reading aliases: what registers them, and the events that are matched by them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::actions::Reading;
use super::codes;
use super::fields::{self, Fields, NameRule};
use super::model::ByRule;
use super::saga::member;
use super::texts::{self, EventParts, Readable};
use super::typing;
use super::yaml::{Entry, Node, Value};
use crate::expr::types::Type;
use crate::expr::{Expr, Root, Template, nearest};

/// The aliases that a saga names, with their places.
#[derive(Debug, Default)]
pub struct Aliases<'r> {
    /// Registered by a step, a handler, a state or a timer.
    pub registered: BTreeMap<&'r str, Range<usize>>,
    /// By which events are matched.
    pub matched: Vec<(&'r str, Range<usize>)>,
}

impl<'r> Reading<'r, '_> {
    /// `alias: {tracking: "${result.tracking_no}"}`, in code-point order of the names.
    pub fn aliases(
        &mut self,
        fields: &Fields<'r, '_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> Vec<(String, Template)> {
        let Some(entry) = fields.get("alias") else {
            return Vec::new();
        };
        let entries = fields::entries(&entry.value, &entry.key_span, "alias", self.findings);
        let mut aliases = Vec::new();
        for alias in entries.unwrap_or_default() {
            let (name, span) = (&*alias.key, &alias.key_span);
            let legal = fields::is_name(name, span, "alias", NameRule::Identifier, self.findings);
            if legal {
                self.aliases.registered.entry(name).or_insert(span.clone());
            }
            let readable = Readable {
                roots,
                event,
                steps: &self.steps,
                item: self.item,
                input: self.takes_input,
                types: self.types.as_ref().map(|types| &types.env),
            };
            let template = texts::template(&alias.value, readable, self.findings);
            if let Some(types) = &self.types {
                typing::value(alias, &template, &value_type(), &types.env, self.findings);
            }
            aliases.extend(legal.then(|| (name.to_owned(), template)));
        }
        aliases.sort_by(|left, right| left.0.cmp(&right.0));
        aliases
    }

    /// The events that are matched by an alias: `by` of those that `events` describes.
    pub fn by_rules(&mut self, root: &'r Node<'_>, start: &[String]) -> BTreeMap<String, ByRule> {
        let mut rules = BTreeMap::new();
        let described = member(root, "events").map(|events| &events.value.value);
        let Some(Value::Map(entries)) = described else {
            return rules;
        };
        for event in entries {
            let Some(by) = member(&event.value, "by") else {
                continue;
            };
            self.alone(root, event, by, start);
            let known = self.types.clone();
            if let Some(types) = &mut self.types {
                types.enter_event(&event.key);
            }
            let rule = self.by_rule(by);
            self.types = known;
            // That there is one is known, even if it is wrong.
            let rule = rule.unwrap_or_else(|| ByRule {
                alias: String::new(),
                value: Expr::unknown(),
            });
            rules.insert(event.key.clone().into_owned(), rule);
        }
        rules
    }

    /// `{tracking: event.data.tracking_no}`
    fn by_rule(&mut self, entry: &'r Entry<'_>) -> Option<ByRule> {
        let entries = fields::entries(&entry.value, &entry.key_span, "by", self.findings)?;
        let [alias] = entries else {
            let message = format!(
                "\"by\" names one alias and where the event has its value, found {}",
                entries.len()
            );
            self.findings
                .error(codes::WRONG_VALUE, entry.key_span.clone(), message);
            return None;
        };
        self.aliases.matched.push((&*alias.key, alias.key_span.clone()));
        let readable = Readable {
            types: self.types.as_ref().map(|types| &types.env),
            ..Readable::roots(&[Root::Event])
        };
        let value = texts::expr(alias, readable, self.findings);
        if let Some(types) = &self.types {
            let template = Template::Value(value.clone());
            typing::value(alias, &template, &value_type(), &types.env, self.findings);
        }
        Some(ByRule {
            alias: alias.key.clone().into_owned(),
            value,
        })
    }

    /// An event that is matched by an alias has no other way to an instance, and finds only one that is there.
    fn alone(&mut self, root: &Node<'_>, event: &Entry<'_>, by: &Entry<'_>, start: &[String]) {
        let name = event.key.escape_debug();
        let keyed = member(root, "key").and_then(|keys| member(&keys.value, &event.key));
        let message = if keyed.is_some() {
            format!("\"{name}\" is matched by a key as well: \"key\" and \"by\" exclude each other")
        } else if start.iter().any(|start| *start == event.key) {
            format!("\"{name}\" starts instances, and one that is not there has no alias")
        } else {
            return;
        };
        self.findings
            .error(codes::CONTRADICTION, by.key_span.clone(), message);
    }

    /// What matches an event must be registered somewhere, and what is registered must be of use.
    pub fn check_aliases(&mut self) {
        for (name, span) in &self.aliases.matched {
            if self.aliases.registered.contains_key(name) {
                continue;
            }
            let help = nearest(name, self.aliases.registered.keys().copied()).map_or_else(
                || "an alias is registered by \"alias\" in a step or a handler".to_owned(),
                |near| format!("did you mean \"{near}\"?"),
            );
            let message = format!("nothing registers the alias \"{}\"", name.escape_debug());
            self.findings
                .error(codes::UNKNOWN_ALIAS, span.clone(), message)
                .help(Some(help));
        }
        // One that was misspelt is of use.
        let known = !self.findings.has(codes::UNKNOWN_ALIAS);
        for (name, span) in self.aliases.registered.iter().filter(|_| known) {
            if self.aliases.matched.iter().any(|(matched, _)| matched == name) {
                continue;
            }
            let message = format!("no event is matched by the alias \"{}\"", name.escape_debug());
            self.findings
                .warning(codes::UNUSED_ALIAS, span.clone(), message)
                .help(Some(format!(
                    "say which one is: events: {{<AggregateType>.<Event>: {{by: {{{}: event.data.<field>}}}}}}",
                    name.escape_debug()
                )));
        }
    }
}

/// What an alias may be: a text or an integer; null where there is none.
fn value_type() -> Type {
    Type::string().or(&Type::integer()).or(&Type::null())
}
