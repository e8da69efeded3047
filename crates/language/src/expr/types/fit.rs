//! Whether a value of one type may stand where another is expected.

use std::collections::BTreeSet;

use super::{Kinds, Object, Type};
use crate::expr::nearest;

/// Most names that a message lists.
const NAMES_SHOWN: usize = 12;

/// Why it may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Names of members, from the outside in; the place where the types part.
    pub path: Vec<String>,
    /// The name of the last member is at fault, not its value.
    pub about_name: bool,
    pub message: String,
    pub help: Option<String>,
}

impl Misfit {
    fn here(message: String, help: Option<String>) -> Self {
        Self {
            path: Vec::new(),
            about_name: false,
            message,
            help,
        }
    }

    fn below(mut self, name: &str) -> Self {
        self.path.insert(0, name.to_owned());
        self
    }
}

impl Type {
    /// Compares with what is expected. Strings are let through where some of them are expected: whether a text
    /// is among them is told when it is there.
    ///
    /// # Errors
    /// Every [`Misfit`], by place.
    pub fn fits(&self, expected: &Self) -> Result<(), Vec<Misfit>> {
        let mut misfits = Vec::new();
        fit(&self.stored(), expected, &mut misfits);
        if misfits.is_empty() { Ok(()) } else { Err(misfits) }
    }

    /// Members that this type has and that none of `given` can have, by place. Those that must be there are told by
    /// [`Self::fits`] of each.
    #[must_use]
    pub fn lacking(&self, given: &[Self]) -> Vec<Misfit> {
        let mut misfits = Vec::new();
        lack(self, given, &mut misfits);
        misfits
    }

    /// The type as it is when written: instants and durations are text.
    #[must_use]
    pub fn stored(&self) -> Self {
        let times = Kinds::TIMESTAMP.with(Kinds::DURATION);
        let mut stored = self.clone();
        if !stored.kinds.both(times).is_empty() {
            stored.kinds = stored.kinds.without(times).with(Kinds::STRING);
            stored.words = None;
        }
        stored
    }
}

fn fit(found: &Type, expected: &Type, misfits: &mut Vec<Misfit>) {
    if found.dynamic || expected.dynamic || found.is_never() {
        return;
    }
    let found = &found.stored();
    let excess = found.kinds.without(expected.kinds);
    if !excess.is_empty() {
        let message = if excess == Kinds::NULL && found.kinds != Kinds::NULL {
            format!("expected {expected}, and this may be null")
        } else {
            format!("expected {expected}, found {found}")
        };
        let number = excess == Kinds::DOUBLE && expected.kinds.has(Kinds::INT);
        let help = number.then(|| "write int(...), which cuts the fraction off".to_owned());
        misfits.push(Misfit::here(message, help));
        return;
    }
    if let (Some(found), Some(expected)) = (&found.words, &expected.words)
        && let Some(word) = found.iter().find(|word| !expected.contains(*word))
    {
        let allowed: Vec<String> = expected.iter().take(8).map(|word| format!("{word:?}")).collect();
        let help =
            nearest(word, expected.iter().map(String::as_str)).map(|near| format!("did you mean {near:?}?"));
        misfits.push(Misfit::here(
            format!("expected {}, found {word:?}", allowed.join(" or ")),
            help,
        ));
    }
    if let (Some(found), Some(expected)) = (&found.item, &expected.item) {
        let before = misfits.len();
        fit(found, expected, misfits);
        for misfit in &mut misfits[before..] {
            misfit.message.insert_str(0, "in an item: ");
        }
    }
    if let (Some(found), Some(expected)) = (&found.object, &expected.object) {
        members(found, expected, misfits);
    }
}

fn lack(wanted: &Type, given: &[Type], misfits: &mut Vec<Misfit>) {
    if wanted.dynamic || given.iter().any(|given| given.dynamic) {
        return;
    }
    if let Some(item) = &wanted.item {
        let items: Vec<Type> = given
            .iter()
            .filter_map(|given| given.item.as_deref().cloned())
            .collect();
        let mut inner = Vec::new();
        lack(item, &items, &mut inner);
        misfits.extend(inner.into_iter().map(|misfit| {
            let message = format!("in an item: {}", misfit.message);
            Misfit::here(message, misfit.help)
        }));
    }
    let given: Vec<&Object> = given.iter().filter_map(|given| given.object.as_deref()).collect();
    let Some(object) = wanted.object.as_deref().filter(|_| !given.is_empty()) else {
        return;
    };
    for (name, member) in &object.members {
        let values = given.iter().filter_map(|given| {
            let listed = given.members.get(name).map(|member| &member.value);
            listed.or(given.rest.as_ref())
        });
        let values: Vec<Type> = values.cloned().collect();
        let mut inner = Vec::new();
        if values.is_empty() && !member.required {
            let names = given
                .iter()
                .flat_map(|given| given.members.keys().map(String::as_str));
            let names: BTreeSet<&str> = names.collect();
            let near = nearest(name, names.iter().copied());
            let help = near.map_or_else(
                || {
                    let shown: Vec<&str> = names.into_iter().take(NAMES_SHOWN).collect();
                    format!("members are {}", shown.join(", "))
                },
                |near| format!("did you mean {near:?}?"),
            );
            inner.push(Misfit::here(format!("there is no member {name:?}"), Some(help)));
        } else {
            lack(&member.value, &values, &mut inner);
        }
        misfits.extend(inner.into_iter().map(|misfit| misfit.below(name)));
    }
}

fn members(found: &Object, expected: &Object, misfits: &mut Vec<Misfit>) {
    for (name, wanted) in &expected.members {
        match found.members.get(name) {
            Some(member) => {
                if wanted.required && !member.required {
                    let message = format!("{name:?} may be missing here, and must be there");
                    misfits.push(Misfit::here(message, None));
                }
                let before = misfits.len();
                fit(&member.value, &wanted.value, misfits);
                let inner: Vec<Misfit> = misfits.drain(before..).collect();
                misfits.extend(inner.into_iter().map(|misfit| misfit.below(name)));
            }
            None if wanted.required && found.rest.is_none() => {
                misfits.push(Misfit::here(format!("the member {name:?} is missing"), None));
            }
            None => {}
        }
    }
    for (name, member) in &found.members {
        if expected.members.contains_key(name) {
            continue;
        }
        if let Some(rest) = &expected.rest {
            let before = misfits.len();
            fit(&member.value, rest, misfits);
            let inner: Vec<Misfit> = misfits.drain(before..).collect();
            misfits.extend(inner.into_iter().map(|misfit| misfit.below(name)));
            continue;
        }
        let names = expected.members.keys().map(String::as_str);
        let help = nearest(name, names.clone()).map_or_else(
            || {
                let names: Vec<&str> = names.take(NAMES_SHOWN).collect();
                format!("members are {}", names.join(", "))
            },
            |near| format!("did you mean {near:?}?"),
        );
        let message = format!("{name:?} is not a member of what is expected");
        let mut misfit = Misfit::here(message, Some(help)).below(name);
        misfit.about_name = true;
        misfits.push(misfit);
    }
}
