//! Members of objects and items of lists, by name and by index.

use std::sync::Arc;

use super::super::narrow::path_of;
use super::super::operations::Refusal;
use super::super::{Kinds, Type};
use super::{Check, Fault, FaultKind, always_absent, is_state, written};
use crate::expr::program::Node;
use crate::expr::{Root, nearest};
use crate::json::Json;

impl Check<'_, '_> {
    pub(super) fn path(&mut self, at: usize, root: Root, fields: &[Arc<str>]) -> Type {
        let mut found = self.env.root(root).clone();
        for (depth, field) in fields.iter().enumerate() {
            if found.dynamic {
                return found;
            }
            let (offset, length) = self.place(at).field(self.text, fields, depth);
            let node = Node::Path(root, fields[..=depth].to_vec());
            found = self.member(&node, &found, field, offset, length);
        }
        found
    }

    /// Reads `field` of `found`; `node` is the whole operation.
    pub(super) fn member(
        &mut self,
        node: &Node,
        found: &Type,
        field: &str,
        offset: usize,
        length: usize,
    ) -> Type {
        if !found.dynamic && found.kinds == Kinds::OPTIONAL {
            return self.optional_member(found, field, offset, length);
        }
        if let Err(refusal) = super::super::operations::demand(found, Kinds::MAP, &format!("`.{field}`")) {
            self.fault_at(refusal, offset, length, is_state(node));
            return Type::dynamic();
        }
        let Some(object) = found.object.as_ref().filter(|_| !found.dynamic) else {
            return Type::dynamic();
        };
        match (object.members.get(field), &object.rest) {
            (Some(member), _) => {
                if !member.required {
                    let place = written(node);
                    let refusal = Refusal {
                        kind: FaultKind::Unguarded,
                        message: format!("`{place}` may be missing"),
                        help: Some(format!("ask first: has({place}) ? {place} : ...")),
                    };
                    self.fault_at(refusal, offset, length, is_state(node));
                    // Told once in an expression.
                    if let Some((base, path)) = path_of(node) {
                        self.env.refine(base, &path, &Type::clone);
                    }
                }
                member.value.clone()
            }
            (None, Some(rest)) => rest.clone(),
            (None, None) => {
                self.unknown(object.members.keys().map(String::as_str), field, offset, length);
                Type::dynamic()
            }
        }
    }

    /// Reads `field` of a map, or of what an optional holds, if it is there.
    pub(super) fn optional_member(
        &mut self,
        found: &Type,
        field: &str,
        offset: usize,
        length: usize,
    ) -> Type {
        let whole = if found.kinds == Kinds::OPTIONAL {
            found.held()
        } else {
            found.clone()
        };
        // Null has no members, and asking is what it is for.
        let asked = Kinds::MAP.with(Kinds::NULL).with(Kinds::OPTIONAL);
        if !whole.dynamic && whole.kinds.both(asked).is_empty() && !whole.is_never() {
            self.fault_at(always_absent(&whole), offset, length, false);
            return Type::optional(Type::dynamic());
        }
        let Some(object) = whole.object.as_ref().filter(|_| !whole.dynamic) else {
            return Type::optional(Type::dynamic());
        };
        match (object.members.get(field), &object.rest) {
            (Some(member), _) => Type::optional(member.value.clone()),
            (None, Some(rest)) => Type::optional(rest.clone()),
            (None, None) => {
                self.unknown(object.members.keys().map(String::as_str), field, offset, length);
                Type::optional(Type::dynamic())
            }
        }
    }

    pub(super) fn optional_index(&mut self, at: usize, found: &Type, by: &Type, index: &Node) -> Type {
        let whole = if found.kinds == Kinds::OPTIONAL {
            found.held()
        } else {
            found.clone()
        };
        let (offset, length) = self.span(at);
        if let (true, Node::Constant(Json::Str(field))) = (whole.kinds == Kinds::MAP, index) {
            return self.optional_member(&whole, field, offset, length);
        }
        let by_kind = |kind| match kind {
            Kinds::MAP => by.kinds.has(Kinds::STRING),
            Kinds::LIST => by.kinds.has(Kinds::INT),
            _ => kind == Kinds::NULL,
        };
        if whole.dynamic || by.dynamic || whole.is_never() || whole.kinds.each().count() > 1 {
            return Type::optional(Type::dynamic());
        }
        if !whole.kinds.each().any(by_kind) {
            self.fault_at(always_absent(&whole), offset, length, false);
            return Type::optional(Type::dynamic());
        }
        let held = self.indexed(at, &whole, by);
        Type::optional(held)
    }

    fn unknown<'m>(
        &mut self,
        members: impl Iterator<Item = &'m str> + Clone,
        field: &str,
        offset: usize,
        length: usize,
    ) {
        let help = nearest(field, members.clone()).map_or_else(
            || {
                let names: Vec<&str> = members.take(12).collect();
                match names[..] {
                    [] => "there are no fields here".to_owned(),
                    _ => format!("fields are {}", names.join(", ")),
                }
            },
            |near| format!("did you mean `{near}`?"),
        );
        self.faults.push(Fault {
            kind: FaultKind::UnknownField,
            offset,
            length,
            message: format!("unknown field `{field}`"),
            help: Some(help),
        });
    }

    pub(super) fn has(&mut self, at: usize, operand: &Node, field: &Arc<str>) -> Type {
        let mut found = self.visit(operand);
        if !found.dynamic && found.kinds == Kinds::OPTIONAL {
            found = found.held();
        }
        let (offset, length) = self.behind(at, field);
        if let Err(refusal) = super::super::operations::demand(&found, Kinds::MAP, "`has()`") {
            self.fault_at(refusal, offset, length, is_state(operand));
        } else if let Some(object) = found.object.as_ref().filter(|_| !found.dynamic)
            && object.rest.is_none()
            && !object.members.contains_key(&**field)
        {
            self.unknown(object.members.keys().map(String::as_str), field, offset, length);
        }
        Type::boolean()
    }

    pub(super) fn index(&mut self, at: usize, node: &Node, operand: &Node, index: &Node) -> Type {
        let (found, by) = (self.visit(operand), self.visit(index));
        if !found.dynamic && found.kinds == Kinds::OPTIONAL {
            return self.optional_index(at, &found, &by, index);
        }
        let (offset, length) = self.span(at);
        if let (true, Node::Constant(Json::Str(field))) = (found.kinds == Kinds::MAP, index) {
            return self.member(node, &found, field, offset, length);
        }
        self.indexed(at, &found, &by)
    }

    /// What an index that is computed finds.
    fn indexed(&mut self, at: usize, found: &Type, by: &Type) -> Type {
        if found.dynamic || by.dynamic {
            return Type::dynamic();
        }
        if let Err(refusal) = super::super::operations::demand(found, Kinds::MAP.with(Kinds::LIST), "`[...]`")
        {
            return self.refuse(at, refusal);
        }
        let wanted = match (found.kinds.has(Kinds::LIST), found.kinds.has(Kinds::MAP)) {
            (true, false) => Kinds::INT,
            (false, true) => Kinds::STRING,
            _ => Kinds::INT.with(Kinds::STRING),
        };
        if let Err(refusal) = super::super::operations::demand(by, wanted, "`[...]` as an index") {
            return self.refuse(at, refusal);
        }
        if found.kinds == Kinds::LIST {
            return found.items();
        }
        let Some(object) = found.object.as_ref().filter(|_| found.kinds == Kinds::MAP) else {
            return Type::dynamic();
        };
        object.any_member()
    }
}
