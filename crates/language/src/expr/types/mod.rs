//! Types of expressions: what a value may be, told before any value is there.
//!
//! A type says for each kind of value whether it is possible and what it then looks like; alternatives of one kind
//! are merged into one. What nothing is known about is dynamic and fits everywhere. Types never change what an
//! expression gives: they only find what would fail.

mod calls;
mod check;
mod env;
mod fit;
mod lattice;
mod narrow;
mod operations;
mod schema;
mod shown;
mod template;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use check::{Fault, FaultKind};
pub use env::Env;
pub use fit::Misfit;

/// Kinds of values, as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Kinds(u16);

impl Kinds {
    pub const NONE: Self = Self(0);
    pub const NULL: Self = Self(1);
    pub const BOOL: Self = Self(1 << 1);
    pub const INT: Self = Self(1 << 2);
    pub const DOUBLE: Self = Self(1 << 3);
    pub const STRING: Self = Self(1 << 4);
    pub const TIMESTAMP: Self = Self(1 << 5);
    pub const DURATION: Self = Self(1 << 6);
    pub const LIST: Self = Self(1 << 7);
    pub const MAP: Self = Self(1 << 8);
    pub const OPTIONAL: Self = Self(1 << 9);
    pub const EACH: [Self; 10] = [
        Self::NULL,
        Self::BOOL,
        Self::INT,
        Self::DOUBLE,
        Self::STRING,
        Self::TIMESTAMP,
        Self::DURATION,
        Self::LIST,
        Self::MAP,
        Self::OPTIONAL,
    ];

    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub const fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of `other` are among these.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn each(self) -> impl Iterator<Item = Self> {
        Self::EACH.into_iter().filter(move |kind| self.has(*kind))
    }
}

/// What a value may be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Type {
    /// Nothing is known: every operation may work, and what it gives is not known either.
    dynamic: bool,
    kinds: Kinds,
    /// The texts that a string is among.
    words: Option<Arc<BTreeSet<String>>>,
    /// What the items of a list are; `None` for a list without any.
    item: Option<Arc<Type>>,
    /// What a map holds.
    object: Option<Arc<Object>>,
    /// What an optional holds; `None` for one that is always absent.
    held: Option<Arc<Type>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Object {
    members: BTreeMap<String, Member>,
    /// What members that are not listed are; `None` where there are no others.
    rest: Option<Type>,
}

impl Object {
    fn any_member(&self) -> Type {
        let members = self.members.values().map(|member| &member.value);
        members
            .chain(&self.rest)
            .fold(Type::default(), |all, member| all.or(member))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    value: Type,
    required: bool,
}

impl Type {
    /// What nothing is known about.
    #[must_use]
    pub fn dynamic() -> Self {
        Self {
            dynamic: true,
            ..Self::default()
        }
    }

    #[must_use]
    pub fn boolean() -> Self {
        Self::of(Kinds::BOOL)
    }

    #[must_use]
    pub fn integer() -> Self {
        Self::of(Kinds::INT)
    }

    #[must_use]
    pub fn string() -> Self {
        Self::of(Kinds::STRING)
    }

    #[must_use]
    pub fn null() -> Self {
        Self::of(Kinds::NULL)
    }

    #[must_use]
    pub fn list(item: Self) -> Self {
        Self {
            item: Some(Arc::new(item)),
            ..Self::of(Kinds::LIST)
        }
    }

    /// A value that may be absent.
    fn optional(held: Self) -> Self {
        Self {
            held: Some(Arc::new(held)),
            ..Self::of(Kinds::OPTIONAL)
        }
    }

    /// A string that is one of `words`.
    #[must_use]
    pub fn one_of<'w>(words: impl IntoIterator<Item = &'w str>) -> Self {
        Self {
            words: Some(Arc::new(words.into_iter().map(str::to_owned).collect())),
            ..Self::of(Kinds::STRING)
        }
    }

    /// A map with exactly these members.
    #[must_use]
    pub fn object<N: Into<String>>(members: impl IntoIterator<Item = (N, Self)>) -> Self {
        let members = members.into_iter().map(|(name, value)| {
            let required = true;
            (name.into(), Member { value, required })
        });
        Self::of_object(members.collect(), None)
    }

    #[must_use]
    pub const fn is_dynamic(&self) -> bool {
        self.dynamic
    }

    fn of(kinds: Kinds) -> Self {
        Self {
            kinds,
            ..Self::default()
        }
    }

    fn of_object(members: BTreeMap<String, Member>, rest: Option<Self>) -> Self {
        Self {
            object: Some(Arc::new(Object { members, rest })),
            ..Self::of(Kinds::MAP)
        }
    }

    /// Whether no value is of this type, as for the items of an empty list.
    fn is_never(&self) -> bool {
        !self.dynamic && self.kinds.is_empty()
    }

    /// What the items of a list of this type are.
    fn items(&self) -> Self {
        match &self.item {
            Some(item) => (**item).clone(),
            None if self.dynamic => Self::dynamic(),
            None => Self::default(),
        }
    }

    /// What any member of a map of this type is.
    fn any_member(&self) -> Self {
        match &self.object {
            Some(object) if !self.dynamic => object.any_member(),
            _ => Self::dynamic(),
        }
    }

    /// What an optional of this type holds.
    fn held(&self) -> Self {
        match &self.held {
            Some(held) => (**held).clone(),
            None if self.dynamic => Self::dynamic(),
            None => Self::default(),
        }
    }

    /// Whether a value of this type may have an optional in it, which cannot be written.
    fn has_optional(&self) -> bool {
        let members = self.object.iter().flat_map(|object| {
            let listed = object.members.values().map(|member| &member.value);
            listed.chain(&object.rest)
        });
        self.kinds.has(Kinds::OPTIONAL)
            || self.item.iter().any(|item| item.has_optional())
            || members.into_iter().any(Self::has_optional)
    }

    /// The type without a kind.
    fn minus(&self, kinds: Kinds) -> Self {
        Self {
            kinds: self.kinds.without(kinds),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests;
