//! How an event finds its instance: the key rules of one version.
//!
//! The intake evaluates the rules of every version that may want the event; the version that an instance runs
//! under has the last word.

use super::model::{Definition, KeyRule};
use crate::kernel::expr::{Budget, Root, Scope};
use crate::kernel::ids::{Key, TimeMs};
use crate::kernel::input::DomainEvent;
use crate::kernel::json::Json;
use crate::kernel::limits::Limits;

/// Why an event has no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No rule is for it, or its rule gives nothing.
    #[error("{0}")]
    Missing(String),
    /// The rule gives something that is no key.
    #[error("{0}")]
    Invalid(String),
}

impl Definition {
    /// The rule for an event type: the first that matches.
    #[must_use]
    pub fn key_rule(&self, event_type: &str) -> Option<&KeyRule> {
        self.keys.iter().find(|rule| rule.matches(event_type))
    }

    /// The key that this version gives to an event of `event_type`; `scope` holds the event, `steps` is the
    /// budget of the expression.
    ///
    /// # Errors
    /// [`KeyError`] where there is none.
    pub fn key_in(&self, scope: &Scope<'_>, event_type: &str, steps: u64) -> Result<Key, KeyError> {
        let saga = &self.name;
        let missing = |why: String| KeyError::Missing(format!("saga {saga}: {why}"));
        let invalid = |why: String| KeyError::Invalid(format!("saga {saga}: {why}"));
        let rule = self
            .key_rule(event_type)
            .map(|rule| &rule.key)
            .ok_or_else(|| missing(format!("no key rule for {event_type}")))?;
        let mut budget = Budget { steps };
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
        Key::parse(&text).map_err(|error| invalid(error.to_string()))
    }

    /// Whether this version finds the instance `key` for an event.
    #[must_use]
    pub fn addresses(&self, key: &Key, event: &DomainEvent, time: TimeMs, limits: &Limits) -> bool {
        let Ok(data) = Json::parse(&event.payload, limits.json_depth) else {
            return false;
        };
        let root = event.root(time, data);
        let scope = Scope::default().bind(Root::Event, &root);
        self.key_in(&scope, &event.event_type, limits.expression_steps)
            .is_ok_and(|found| found == *key)
    }
}
