//! What is known about the names that an expression reads.

use std::sync::Arc;

use super::{Member, Object, Type};
use crate::expr::Root;

/// The types of roots and of the elements of loops around. A root that nothing is said about is dynamic.
#[derive(Debug, Clone)]
pub struct Env {
    roots: [Type; Root::ALL.len()],
    pub(super) locals: Vec<Type>,
}

impl Default for Env {
    fn default() -> Self {
        Self {
            roots: std::array::from_fn(|_| Type::dynamic()),
            locals: Vec::new(),
        }
    }
}

/// What a path begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Root(Root),
    Local(usize),
}

impl Env {
    pub fn bind(&mut self, root: Root, known: Type) {
        self.roots[root as usize] = known;
    }

    #[must_use]
    pub fn root(&self, root: Root) -> &Type {
        &self.roots[root as usize]
    }

    /// Makes a member of a root one that is there.
    pub fn assure(&mut self, root: Root, member: &str) {
        self.refine(Base::Root(root), &[Arc::from(member)], &Type::clone);
    }

    /// Makes a path of a root one whose value is of `among`, too.
    pub fn narrow(&mut self, root: Root, path: &[&str], among: &Type) {
        let path: Vec<Arc<str>> = path.iter().map(|field| Arc::from(*field)).collect();
        self.refine(Base::Root(root), &path, &|known| known.and(among));
    }

    pub(super) fn base(&self, base: Base) -> Type {
        match base {
            Base::Root(root) => self.root(root).clone(),
            Base::Local(slot) => self.locals.get(slot).cloned().unwrap_or_else(Type::dynamic),
        }
    }

    /// Changes what is known about a path that was read with success: everything on the way is there.
    pub(super) fn refine(&mut self, base: Base, fields: &[Arc<str>], change: &dyn Fn(&Type) -> Type) {
        let refined = refined(&self.base(base), fields, change);
        match base {
            Base::Root(root) => self.bind(root, refined),
            Base::Local(slot) => {
                if let Some(local) = self.locals.get_mut(slot) {
                    *local = refined;
                }
            }
        }
    }
}

fn refined(known: &Type, fields: &[Arc<str>], change: &dyn Fn(&Type) -> Type) -> Type {
    let Some((first, rest)) = fields.split_first() else {
        return change(known);
    };
    let Some(object) = known.object.as_ref().filter(|_| !known.dynamic) else {
        return known.clone();
    };
    let value = match (object.members.get(&**first), &object.rest) {
        (Some(member), _) => refined(&member.value, rest, change),
        (None, Some(others)) => refined(others, rest, change),
        (None, None) => return known.clone(),
    };
    let mut members = object.members.clone();
    let required = true;
    members.insert(first.to_string(), Member { value, required });
    Type {
        kinds: super::Kinds::MAP,
        object: Some(Arc::new(Object {
            members,
            rest: object.rest.clone(),
        })),
        ..known.clone()
    }
}
