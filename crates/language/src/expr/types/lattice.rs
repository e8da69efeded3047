//! Joining what comes from several ways, and meeting what is known from several sides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Kinds, Member, Object, Type};
use crate::json::Json;

/// Most words that a type lists; a string among more of them is any string.
const WORDS_MAX: usize = 256;
/// Deepest constant whose type is told; what is deeper is dynamic.
const DEPTH_MAX: usize = 32;

impl Type {
    /// The type of a value.
    #[must_use]
    pub fn of_json(value: &Json<'_>) -> Self {
        of_json(value, 0)
    }

    /// What is either of the two.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        if self.dynamic || other.dynamic {
            return Self::dynamic();
        }
        if self == other || other.is_never() {
            return self.clone();
        }
        if self.is_never() {
            return other.clone();
        }
        let mine = |kind| self.kinds.has(kind);
        let theirs = |kind| other.kinds.has(kind);
        let words = match (mine(Kinds::STRING), theirs(Kinds::STRING)) {
            (true, true) => match (&self.words, &other.words) {
                (Some(left), Some(right)) if left.len() + right.len() <= WORDS_MAX => {
                    Some(Arc::new(left.union(right).cloned().collect::<BTreeSet<_>>()))
                }
                _ => None,
            },
            (true, false) => self.words.clone(),
            (false, _) => other.words.clone(),
        };
        let item = match (&self.item, &other.item) {
            (Some(left), Some(right)) => Some(Arc::new(left.or(right))),
            (one, another) => one.clone().or_else(|| another.clone()),
        };
        let object = match (&self.object, &other.object) {
            (Some(left), Some(right)) => Some(Arc::new(left.or(right))),
            // A map of which nothing is known and one of which something is: nothing is known.
            (left, right) => match (mine(Kinds::MAP), theirs(Kinds::MAP)) {
                (true, true) => None,
                _ => left.clone().or_else(|| right.clone()),
            },
        };
        let held = match (&self.held, &other.held) {
            (Some(left), Some(right)) => Some(Arc::new(left.or(right))),
            (one, another) => one.clone().or_else(|| another.clone()),
        };
        Self {
            dynamic: false,
            kinds: self.kinds.with(other.kinds),
            words,
            item,
            object,
            held,
        }
    }

    /// What is both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        if self.dynamic {
            return other.clone();
        }
        if other.dynamic {
            return self.clone();
        }
        let words = match (&self.words, &other.words) {
            (Some(left), Some(right)) => Some(Arc::new(
                left.intersection(right).cloned().collect::<BTreeSet<_>>(),
            )),
            (one, another) => one.clone().or_else(|| another.clone()),
        };
        let item = match (&self.item, &other.item) {
            (Some(left), Some(right)) => Some(Arc::new(left.and(right))),
            (one, another) => one.clone().or_else(|| another.clone()),
        };
        let object = match (&self.object, &other.object) {
            (Some(left), Some(right)) => Some(Arc::new(left.and(right))),
            (one, another) => one.clone().or_else(|| another.clone()),
        };
        Self {
            dynamic: false,
            kinds: self.kinds.both(other.kinds),
            words,
            item,
            object,
            held: self.held.clone().or_else(|| other.held.clone()),
        }
    }

    /// The string without one of its words.
    pub(super) fn minus_word(&self, word: &str) -> Self {
        let Some(words) = &self.words else {
            return self.clone();
        };
        let words: BTreeSet<String> = words.iter().filter(|other| *other != word).cloned().collect();
        if words.is_empty() {
            return self.minus(Kinds::STRING);
        }
        Self {
            words: Some(Arc::new(words)),
            ..self.clone()
        }
    }
}

impl Object {
    /// A member that only one of the two has may be missing.
    fn or(&self, other: &Self) -> Self {
        let mut members = BTreeMap::new();
        for (name, left) in &self.members {
            let member = match other.members.get(name) {
                Some(right) => Member {
                    value: left.value.or(&right.value),
                    required: left.required && right.required,
                },
                None => Member {
                    value: other
                        .rest
                        .as_ref()
                        .map_or_else(|| left.value.clone(), |rest| left.value.or(rest)),
                    required: false,
                },
            };
            members.insert(name.clone(), member);
        }
        for (name, right) in &other.members {
            if !self.members.contains_key(name) {
                let value = self
                    .rest
                    .as_ref()
                    .map_or_else(|| right.value.clone(), |rest| right.value.or(rest));
                let required = false;
                members.insert(name.clone(), Member { value, required });
            }
        }
        let rest = match (&self.rest, &other.rest) {
            (Some(left), Some(right)) => Some(left.or(right)),
            (one, another) => one.clone().or_else(|| another.clone()),
        };
        Self { members, rest }
    }

    fn and(&self, other: &Self) -> Self {
        let mut members = self.members.clone();
        for (name, right) in &other.members {
            let member = match members.get(name) {
                Some(left) => Member {
                    value: left.value.and(&right.value),
                    required: left.required || right.required,
                },
                None => right.clone(),
            };
            members.insert(name.clone(), member);
        }
        let rest = match (&self.rest, &other.rest) {
            (Some(left), Some(right)) => Some(left.and(right)),
            _ => None,
        };
        Self { members, rest }
    }
}

fn of_json(value: &Json<'_>, depth: usize) -> Type {
    if depth == DEPTH_MAX {
        return Type::dynamic();
    }
    match value {
        Json::Null => Type::null(),
        Json::Bool(_) => Type::boolean(),
        Json::Int(_) => Type::integer(),
        Json::Double(_) => Type::of(Kinds::DOUBLE),
        Json::Str(text) => Type::one_of([text.as_ref()]),
        Json::List(items) => {
            let item = items
                .iter()
                .map(|item| of_json(item, depth + 1))
                .reduce(|left, right| left.or(&right));
            Type {
                item: item.map(Arc::new),
                ..Type::of(Kinds::LIST)
            }
        }
        Json::Map(members) => Type::object(
            members
                .iter()
                .map(|(name, value)| (name.as_ref(), of_json(value, depth + 1))),
        ),
    }
}
