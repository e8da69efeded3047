//! Types of templates, and of members for who writes them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::check::{Fault, FaultKind};
use super::{Env, Kinds, Type};
use crate::expr::{Expr, Template, nearest};
use crate::json::Json;

/// Nesting of constants, in levels.
const DEPTH_MAX: usize = 256;

impl Template {
    /// The type of what is rendered; faults inside are told elsewhere.
    #[must_use]
    pub fn type_in(&self, env: &Env) -> Type {
        match self {
            Self::Constant(json) => {
                Json::parse(json, DEPTH_MAX).map_or_else(|_| Type::dynamic(), |json| Type::of_json(&json))
            }
            Self::Value(expr) => expr.type_in(env, &mut Vec::new()),
            Self::Text(_) => Type::string(),
            Self::List(items) => items
                .iter()
                .map(|item| item.type_in(env))
                .reduce(|left, right| left.or(&right))
                .map_or_else(|| Type::of(Kinds::LIST), Type::list),
            Self::Map(members) => Type::object(
                members
                    .iter()
                    .map(|(name, member)| (name.as_str(), member.type_in(env))),
            ),
        }
    }
}

impl Expr {
    /// Checks an expression that becomes text: null, lists and maps have none.
    pub fn check_text(&self, env: &Env, faults: &mut Vec<Fault>) {
        let found = self.type_in(env, faults);
        let no_text = Kinds::NULL.with(Kinds::LIST).with(Kinds::MAP);
        let wrong = found.kinds.both(no_text);
        if found.dynamic || wrong.is_empty() {
            return;
        }
        let may_be_null = wrong == Kinds::NULL && found.kinds != Kinds::NULL;
        faults.push(Fault {
            kind: match may_be_null {
                true if self.text().contains("state.") => FaultKind::UnguardedState,
                true => FaultKind::Unguarded,
                false => FaultKind::Overload,
            },
            offset: 0,
            length: self.text().len(),
            message: format!("text cannot be made of {found}"),
            help: may_be_null.then(|| "ask first: x == null ? \"\" : x".to_owned()),
        });
    }
}

impl Type {
    /// The map with all its members optional.
    #[must_use]
    pub fn with_optional_members(&self) -> Self {
        let mut optional = self.clone();
        if let Some(object) = &mut optional.object {
            for member in Arc::make_mut(object).members.values_mut() {
                member.required = false;
            }
        }
        optional
    }

    /// What may be written into the member `name` of the map.
    ///
    /// # Errors
    /// What may have been meant, where there is no such member.
    pub fn field(&self, name: &str) -> Result<Self, String> {
        let Some(object) = self.object.as_ref().filter(|_| !self.dynamic) else {
            return Ok(Self::dynamic());
        };
        if let Some(member) = object.members.get(name) {
            return Ok(member.value.clone());
        }
        if let Some(rest) = &object.rest {
            return Ok(rest.clone());
        }
        let names = object.members.keys().map(String::as_str);
        Err(nearest(name, names).map_or_else(
            || "add it to the schema, or take it out".to_owned(),
            |near| format!("did you mean \"{near}\"?"),
        ))
    }

    /// What stands under `name` in the map, or in the maps of the list.
    ///
    /// # Errors
    /// What may have been meant, where nothing can stand there.
    pub fn below(&self, name: &str) -> Result<Self, Option<String>> {
        if self.dynamic || self.object.is_some() {
            return self.field(name).map_err(Some);
        }
        match &self.item {
            Some(item) => item.below(name),
            None if self.kinds.has(Kinds::LIST) || self.kinds.has(Kinds::MAP) => Ok(Self::dynamic()),
            None => Err(Some("neither a map nor a list stands there".to_owned())),
        }
    }

    /// What does not fit when a map of this type becomes one of type `new`: members that are `changed` are others
    /// then, or gone, and those in `set` are there; all others stay.
    pub fn keeps(&self, new: &Self, changed: impl Fn(&str) -> bool, set: &BTreeSet<String>) -> Vec<String> {
        let mut problems = Vec::new();
        let (Some(old), Some(into)) = (&self.object, &new.object) else {
            return problems;
        };
        if self.dynamic || new.dynamic {
            return problems;
        }
        for (name, member) in old.members.iter().filter(|(name, _)| !changed(name)) {
            match new.field(name) {
                Err(_) => problems.push(format!(
                    "the field \"{name}\" of the old state has no place in the new one: set another from it and drop it"
                )),
                Ok(wanted) => {
                    for misfit in member.value.fits(&wanted).err().unwrap_or_default() {
                        let path: Vec<&str> = std::iter::once(name.as_str())
                            .chain(misfit.path.iter().map(String::as_str))
                            .collect();
                        let path = path.join(".");
                        problems.push(format!("the field \"{path}\" of the old state: {}", misfit.message));
                    }
                }
            }
        }
        for (name, _) in into.members.iter().filter(|(_, member)| member.required) {
            let stays = old.members.get(name).is_some_and(|member| member.required) && !changed(name);
            let is_known = changed(name) || old.members.contains_key(name) || old.rest.is_none();
            if !stays && !set.contains(name) && is_known {
                problems.push(format!("the new state must have \"{name}\", which nothing sets"));
            }
        }
        problems
    }
}
