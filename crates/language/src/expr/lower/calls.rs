//! Calls of functions, namespaces and macros.

use std::sync::Arc;

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr as Tree, IdedExpr, LiteralValue, operators};

use super::super::functions::{Function, NAMESPACES, UID_SEED};
use super::super::macros::{Written, macro_of};
use super::super::nearest::nearest;
use super::super::program::{Loop, LoopKind, Node};
use super::super::{CompileError, Root};
use super::{Lowering, binary, compiled, pattern_error};
use crate::json::Json;

/// Macros, and the one function that is not in the table.
const OTHER_FUNCTIONS: [&str; 16] = [
    "matches",
    "has",
    "all",
    "exists",
    "exists_one",
    "existsOne",
    "map",
    "filter",
    "transformList",
    "transformMap",
    "transformMapEntry",
    "sortBy",
    "optMap",
    "optFlatMap",
    "bind",
    "cel.bind",
];

impl Lowering<'_> {
    pub(super) fn call(&mut self, id: u64, call: &CallExpr) -> Result<Node, CompileError> {
        if let Some(made) = self.written_macro(id, call) {
            return made;
        }
        if let Some(namespace) = self.namespace(call) {
            return self.namespaced(id, &namespace, call);
        }
        let name = call.func_name.as_str();
        if let (operators::OPT_SELECT, [operand, field]) = (name, call.args.as_slice())
            && let Tree::Literal(LiteralValue::String(field)) = &field.expr
        {
            let operand = self.lower(operand);
            return Ok(Node::OptionalField(Box::new(operand), Arc::from(field.inner())));
        }
        let written = call.target.iter().map(AsRef::as_ref).chain(&call.args);
        let mut arguments = self.all(written);
        // Operators cannot be written as calls, so their number of operands is right.
        match (name, arguments.len()) {
            (operators::LOGICAL_NOT, 1) => Ok(Node::Not(Box::new(arguments.remove(0)))),
            (operators::NEGATE, 1) => Ok(Node::Negate(Box::new(arguments.remove(0)))),
            (operators::CONDITIONAL, 3) => {
                let mut next = || Box::new(arguments.remove(0));
                Ok(Node::Condition(next(), next(), next()))
            }
            ("matches", 2) => {
                let pattern = arguments.remove(1);
                self.matches(id, arguments.remove(0), &pattern)
            }
            (_, 2) => {
                let right = arguments.remove(1);
                let left = arguments.remove(0);
                match binary(name, left, right) {
                    Ok(node) => Ok(node),
                    Err((left, right)) => self.function(id, name, vec![left, right]),
                }
            }
            _ => self.function(id, name, arguments),
        }
    }

    /// The namespace that a function is called in, unless a loop has an element of this name.
    fn namespace(&self, call: &CallExpr) -> Option<String> {
        match &call.target.as_ref()?.expr {
            Tree::Ident(name)
                if NAMESPACES.contains(&name.as_str())
                    && self.item != Some(name.as_str())
                    && self.locals.iter().all(|local| **local != *name.as_str()) =>
            {
                Some(name.clone())
            }
            _ => None,
        }
    }

    fn namespaced(&mut self, id: u64, namespace: &str, call: &CallExpr) -> Result<Node, CompileError> {
        let name = format!("{namespace}.{}", call.func_name);
        let is_extreme = [Function::Greatest, Function::Least]
            .iter()
            .any(|function| function.name() == name);
        if !is_extreme || call.args.len() < 2 {
            let arguments = self.all(&call.args);
            return self.function(id, &name, arguments);
        }
        // Several numbers are a list of numbers.
        let at = self.places.open();
        let list = Node::List(self.all(&call.args));
        self.place(at, id, &list);
        self.function(id, &name, vec![list])
    }

    fn function(&mut self, id: u64, name: &str, arguments: Vec<Node>) -> Result<Node, CompileError> {
        let Some(function) = Function::ALL.iter().find(|function| function.name() == name) else {
            let names = Function::ALL.iter().map(|function| function.name());
            let longer = names.clone().find(|other| {
                let namespace = other.strip_suffix(name);
                namespace.is_some_and(|namespace| namespace.ends_with('.'))
            });
            let near = longer.or_else(|| nearest(name, names.chain(OTHER_FUNCTIONS)));
            let help = near.map(|near| format!("did you mean `{near}`?"));
            let error = self.fault(id, &format!("unknown function `{name}`"), help);
            return Err(self.at_name(name, error));
        };
        let (least, most) = function.arguments();
        if !(least..=most).contains(&arguments.len()) {
            let takes = if least == most {
                least.to_string()
            } else {
                format!("{least} to {most}")
            };
            let message = format!("`{name}` takes {takes} argument(s), found {}", arguments.len());
            return Err(self.at_name(name, self.fault(id, &message, None)));
        }
        let mut arguments = arguments;
        if *function == Function::Uid {
            if !self.roots.contains(&Root::Record) {
                let message = format!("`{name}` cannot be called here: nothing is decided here");
                let fault = self.at_name(name, self.fault(id, &message, None));
                return Err(CompileError {
                    is_elsewhere: true,
                    ..fault
                });
            }
            arguments.push(Node::Path(Root::Record, vec![Arc::from(UID_SEED)]));
            self.places.open();
        }
        Ok(Node::Call(*function, arguments))
    }

    pub(super) fn matches(&self, id: u64, text: Node, pattern: &Node) -> Result<Node, CompileError> {
        let Node::Constant(Json::Str(pattern)) = pattern else {
            return Err(self.fault(id, "the pattern of `matches` must be a literal string", None));
        };
        let pattern = compiled(pattern).map_err(|error| self.fault(id, &pattern_error(&error), None))?;
        Ok(Node::Matches(Box::new(text), Box::new(pattern)))
    }

    pub(super) fn comprehension(&mut self, id: u64, each: &ComprehensionExpr) -> Result<Node, CompileError> {
        let Some((kind, condition, body)) = macro_of(each) else {
            return Err(self.fault(id, "this macro does not exist here", None));
        };
        Ok(self.repeated(kind, &each.iter_range, &[&each.iter_var], condition, body))
    }

    /// A macro that the parser leaves as the call it was written as.
    fn written_macro(&mut self, id: u64, call: &CallExpr) -> Option<Result<Node, CompileError>> {
        let written = Written::of(call)?;
        let mut names = Vec::with_capacity(written.names.len());
        for tree in written.names {
            let Tree::Ident(name) = &tree.expr else {
                let message = format!("`{}` takes a name here", call.func_name);
                return Some(Err(self.fault(tree.id, &message, None)));
            };
            names.push(name.as_str());
        }
        if let [first, second] = names[..]
            && first == second
        {
            let message = format!("`{}` takes two different names", call.func_name);
            return Some(Err(self.fault(id, &message, None)));
        }
        Some(Ok(self.repeated(
            written.kind,
            written.range,
            &names,
            written.condition,
            written.body,
        )))
    }

    fn repeated(
        &mut self,
        kind: LoopKind,
        range: &IdedExpr,
        names: &[&str],
        condition: Option<&IdedExpr>,
        body: &IdedExpr,
    ) -> Node {
        let range = self.lower(range);
        let slot = self.locals.len();
        self.locals.extend(names.iter().map(|name| Arc::from(*name)));
        let condition = condition.map(|condition| self.lower(condition));
        let body = self.lower(body);
        self.locals.truncate(slot);
        Node::Loop(Box::new(Loop {
            kind,
            range,
            slot,
            pairs: names.len() == 2,
            condition,
            body,
        }))
    }
}
