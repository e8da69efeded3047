//! How an event finds its instance: the key rules of one version.
//!
//! The intake evaluates the rules of every version that may want the event; the version that an instance runs
//! under has the last word.

use super::model::{Definition, KeyRule};
use crate::alias::{self, Alias};
use crate::event::DomainEvent;
use crate::expr::{Budget, Root, Scope};
use crate::ids::{Key, SagaName, TimeMs};
use crate::json::Json;
use crate::limits::Limits;

/// Why an event has no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No rule is for it, or its rule gives nothing.
    #[error("{0}")]
    Missing(String),
    /// The rule gives something that is not a key.
    #[error("{0}")]
    Invalid(String),
}

impl Definition {
    /// The rule for an event type: the first that matches.
    #[must_use]
    pub fn key_rule(&self, event_type: &str) -> Option<&KeyRule> {
        self.keys.iter().find(|rule| rule.matches(event_type))
    }

    /// The sagas whose fact this type is; none where it is an event of aggregates.
    #[must_use]
    pub fn publishers(&self, event_type: &str) -> &[SagaName] {
        self.events.get(event_type).map_or(&[], |event| &event.from)
    }

    /// Whether the event comes from where this version expects events of its type.
    #[must_use]
    pub fn hears(&self, event: &DomainEvent) -> bool {
        let publishers = self.publishers(&event.event_type);
        if !event.fact {
            return publishers.is_empty();
        }
        publishers
            .iter()
            .any(|saga| saga.as_str() == event.aggregate_type)
    }

    /// What two versions share that find the same instances for events of this type.
    #[must_use]
    pub fn rule_text(&self, event_type: &str) -> Option<String> {
        let rule = match self.by.get(event_type) {
            Some(by) => Some(format!("by {}: {}", by.alias, by.value.text())),
            None => self.key_rule(event_type).map(|rule| rule.key.text().to_owned()),
        };
        let publishers = self.publishers(event_type);
        if publishers.is_empty() {
            return rule;
        }
        let publishers: Vec<&str> = publishers.iter().map(SagaName::as_str).collect();
        Some(format!(
            "from {}: {}",
            publishers.join(" "),
            rule.unwrap_or_default()
        ))
    }

    /// The key that this version gives to an event of `event_type`, which is the address of an alias where that
    /// matches it; `scope` holds the event, `steps` is the budget of the expression.
    ///
    /// # Errors
    /// [`KeyError`] where there is none.
    pub fn key_in(&self, scope: &Scope<'_>, event_type: &str, steps: u64) -> Result<Key, KeyError> {
        let saga = &self.name;
        let missing = |why: String| KeyError::Missing(format!("saga {saga}: {why}"));
        let invalid = |why: String| KeyError::Invalid(format!("saga {saga}: {why}"));
        let mut budget = Budget { steps };
        if let Some(by) = self.by.get(event_type) {
            let rule = format!("by {}: {}", by.alias, by.value.text());
            let value = by
                .value
                .eval(scope, &mut budget)
                .map_err(|error| missing(format!("{rule}: {error}")))?;
            let alias = Alias::new(&by.alias, &value).map_err(|error| invalid(error.to_string()))?;
            return Ok(alias.ok_or_else(|| missing(format!("{rule} is null")))?.key());
        }
        let rule = self
            .key_rule(event_type)
            .map(|rule| &rule.key)
            .ok_or_else(|| missing(format!("no key rule for {event_type}")))?;
        let value = rule
            .eval(scope, &mut budget)
            .map_err(|error| missing(format!("key {}: {error}", rule.text())))?;
        let text = match value {
            Json::Str(text) => text,
            Json::Int(number) => number.to_string().into(),
            Json::Null => return Err(missing(format!("key {} is null", rule.text()))),
            Json::Bool(_) | Json::Double(_) | Json::List(_) | Json::Map(_) => {
                let why = format!("key {} is neither a string nor an integer", rule.text());
                return Err(invalid(why));
            }
        };
        let key = Key::parse(&text).map_err(|error| invalid(error.to_string()))?;
        if alias::is_address(&key) {
            return Err(invalid(format!("the key {key} is that of an alias")));
        }
        Ok(key)
    }

    /// Whether this version hears the event and finds the instance `key` for it, by its key or by the alias by which it came.
    #[must_use]
    pub fn addresses(&self, key: &Key, event: &DomainEvent, time: TimeMs, limits: &Limits) -> bool {
        if !self.hears(event) {
            return false;
        }
        let via = event.via.as_ref().map(|via| via.alias.key());
        let key = via.as_ref().unwrap_or(key);
        let Ok(data) = Json::parse(&event.payload, limits.json_depth) else {
            return false;
        };
        let root = event.root(time, data);
        let scope = Scope::default().bind(Root::Event, &root);
        self.key_in(&scope, &event.event_type, limits.expression_steps)
            .is_ok_and(|found| found == *key)
    }
}
