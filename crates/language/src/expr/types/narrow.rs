//! What a condition tells about the values that it read.

use std::sync::Arc;

use super::env::Base;
use super::{Env, Kinds, Type, schema};
use crate::expr::functions::Function;
use crate::expr::program::{Comparison, Node};
use crate::json::Json;

impl Env {
    /// Adds what is known when `node` came out as `truth`.
    pub(super) fn assume(&mut self, node: &Node, truth: bool) {
        match node {
            Node::Not(operand) => self.assume(operand, !truth),
            Node::And(left, right) if truth => {
                self.assume(left, true);
                self.assume(right, true);
            }
            Node::Or(left, right) if !truth => {
                self.assume(left, false);
                self.assume(right, false);
            }
            Node::Has(operand, field) if truth => {
                if let Some((base, mut path)) = path_of(operand) {
                    path.push(Arc::clone(field));
                    self.refine(base, &path, &Type::clone);
                }
            }
            // `x.?field.hasValue()` asks what `has(x.field)` asks.
            Node::Call(Function::HasValue, arguments) if truth => {
                if let [Node::OptionalField(operand, field)] = arguments.as_slice()
                    && let Some((base, mut path)) = path_of(operand)
                {
                    path.push(Arc::clone(field));
                    self.refine(base, &path, &Type::clone);
                }
            }
            Node::Compare(Comparison::Equal, left, right) => self.compared(left, right, truth),
            Node::Compare(Comparison::NotEqual, left, right) => self.compared(left, right, !truth),
            Node::In(needle, haystack) if truth => {
                if let (Some((base, path)), Node::Constant(list)) = (path_of(needle), &**haystack)
                    && let Some(among) = schema::words_of(list)
                {
                    self.refine(base, &path, &|known| known.and(&among));
                }
            }
            _ => {}
        }
    }

    fn compared(&mut self, left: &Node, right: &Node, same: bool) {
        for (one, other) in [(left, right), (right, left)] {
            let Some((base, path)) = path_of(one) else {
                continue;
            };
            let Node::Constant(constant) = other else {
                // It was read, so it is there.
                self.refine(base, &path, &Type::clone);
                continue;
            };
            let is = Type::of_json(constant);
            self.refine(base, &path, &|known| match (same, constant) {
                (true, _) => known.and(&is),
                (false, Json::Null) => known.minus(Kinds::NULL),
                (false, Json::Str(word)) => known.minus_word(word),
                (false, _) => known.clone(),
            });
        }
    }
}

/// The members that lead to what `node` reads, where it only reads.
pub(super) fn path_of(node: &Node) -> Option<(Base, Vec<Arc<str>>)> {
    match node {
        Node::Path(root, fields) => Some((Base::Root(*root), fields.clone())),
        Node::Local(slot, _) => Some((Base::Local(*slot), Vec::new())),
        Node::Field(operand, field) => {
            let (base, mut path) = path_of(operand)?;
            path.push(Arc::clone(field));
            Some((base, path))
        }
        Node::Index(operand, index) => match &**index {
            Node::Constant(Json::Str(field)) => {
                let (base, mut path) = path_of(operand)?;
                path.push(Arc::from(field.as_ref()));
                Some((base, path))
            }
            _ => None,
        },
        _ => None,
    }
}
