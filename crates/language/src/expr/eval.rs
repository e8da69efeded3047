//! Evaluation: total, bounded by the budget, borrowing from scope and program.

use std::rc::Rc;
use std::sync::Arc;

use super::budget::Spender;
use super::compare::{compare, holds};
use super::functions::{self, ARGUMENTS_MAX, Function};
use super::program::{Arithmetic, Node};
use super::time::{overflow, shifted};
use super::value::{Text, Value};
use super::{EvalError, Root, Scope};
use crate::json::Json;

/// One evaluation.
pub(super) struct Evaluation<'s, 'a, 'b> {
    pub scope: &'s Scope<'a>,
    pub budget: Spender<'b>,
    /// Elements of the loops around, by slot.
    pub locals: Vec<Value<'a>>,
}

impl<'a> Evaluation<'_, 'a, '_> {
    pub fn eval(&mut self, node: &'a Node) -> Result<Value<'a>, EvalError> {
        self.budget.spend(1)?;
        match node {
            Node::Constant(json) => Ok(Value::of(json)),
            Node::Timestamp(timestamp) => Ok(Value::Timestamp(*timestamp)),
            Node::Duration(duration) => Ok(Value::Duration(*duration)),
            Node::Path(root, fields) => self.path(*root, fields),
            Node::Local(slot, _) => Ok(self.locals[*slot].clone()),
            Node::Field(operand, field) => {
                let value = self.eval(operand)?;
                self.member(&value, field, operand)
            }
            Node::Has(operand, field) => self.has(operand, field),
            Node::Index(operand, index) => self.index(operand, index),
            Node::OptionalField(operand, field) => {
                let value = self.eval(operand)?;
                self.optional_member(&value, field)
            }
            Node::OptionalIndex(operand, index) => {
                let (value, index) = (self.eval(operand)?, self.eval(index)?);
                self.optional_index(&value, &index)
            }
            // Its list or map leaves it out; elsewhere there is none.
            Node::IfPresent(operand) => self.eval(operand),
            Node::List(nodes) => self.list(nodes),
            Node::Map(entries) => self.map(entries),
            Node::And(left, right) => self.logic(left, right, false),
            Node::Or(left, right) => self.logic(left, right, true),
            Node::Not(operand) => Ok(Value::Bool(!self.eval(operand)?.as_bool("`!`")?)),
            Node::Negate(operand) => negate(&self.eval(operand)?),
            Node::Condition(test, yes, no) => {
                let holds = self.eval(test)?.as_bool("`?:`")?;
                self.eval(if holds { yes } else { no })
            }
            Node::Compare(comparison, left, right) => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                compare(*comparison, &left, &right, &mut self.budget).map(Value::Bool)
            }
            Node::Arithmetic(operator, left, right) => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                self.arithmetic(*operator, left, right)
            }
            Node::In(needle, haystack) => self.contained(needle, haystack),
            Node::Matches(operand, pattern) => {
                let value = self.eval(operand)?;
                let text = value.as_text("matches()")?;
                self.budget.text(text.len().saturating_mul(pattern.weight))?;
                Ok(Value::Bool(pattern.regex.is_match(text)))
            }
            Node::Call(function, nodes) => self.call(*function, nodes),
            Node::Loop(each) => self.run_loop(each),
        }
    }

    fn path(&mut self, root: Root, fields: &'a [Arc<str>]) -> Result<Value<'a>, EvalError> {
        let bound = self.scope.get(root);
        let mut json: &'a Json<'a> =
            bound.ok_or_else(|| EvalError::Other(format!("`{}` has no value here", root.name())))?;
        for (depth, field) in fields.iter().enumerate() {
            self.budget.spend(1)?;
            let Json::Map(members) = json else {
                return Err(EvalError::Type {
                    operation: format!("`.{field}` of {}", path_text(root, &fields[..depth])),
                    found: Value::of(json).type_name().to_owned(),
                });
            };
            self.budget.lookup(members.len())?;
            json = json.get(field).ok_or_else(|| EvalError::NoField {
                name: field.to_string(),
                place: path_text(root, &fields[..depth]),
            })?;
        }
        Ok(Value::of(json))
    }

    fn member(&mut self, value: &Value<'a>, field: &str, operand: &Node) -> Result<Value<'a>, EvalError> {
        if let Value::Optional(_) = value {
            return self.optional_member(value, field);
        }
        let Value::Map(members) = value else {
            return Err(value.mistyped(&format!("`.{field}` of {}", place(operand))));
        };
        self.budget.lookup(members.len())?;
        members.get(field).ok_or_else(|| EvalError::NoField {
            name: field.to_owned(),
            place: place(operand),
        })
    }

    /// A member of a map, or of what an optional holds, if it is there.
    fn optional_member(&mut self, value: &Value<'a>, field: &str) -> Result<Value<'a>, EvalError> {
        let held = match value {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(present)) => present,
            value => value,
        };
        match held {
            Value::Map(members) => {
                self.budget.lookup(members.len())?;
                Ok(Value::Optional(members.get(field).map(Rc::new)))
            }
            Value::List(_) => Err(held.mistyped(&format!("`.?{field}`"))),
            // As in cel-go: what has no members does not have this one.
            _ => Ok(Value::Optional(None)),
        }
    }

    /// An item or member, if it is there.
    fn optional_index(&mut self, value: &Value<'a>, index: &Value<'a>) -> Result<Value<'a>, EvalError> {
        let held = match value {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(present)) => present,
            value => value,
        };
        match (held, index) {
            (Value::Map(_), Value::Str(key)) => self.optional_member(held, key),
            (Value::List(items), Value::Int(at)) => {
                let found = usize::try_from(*at).ok().and_then(|at| items.get(at));
                Ok(Value::Optional(found.map(Rc::new)))
            }
            (Value::List(_), _) => Err(index.mistyped("an index of a list")),
            _ => Ok(Value::Optional(None)),
        }
    }

    fn has(&mut self, operand: &'a Node, field: &str) -> Result<Value<'a>, EvalError> {
        let value = self.eval(operand)?;
        if let Value::Optional(_) = value {
            let found = self.optional_member(&value, field)?;
            return Ok(Value::Bool(matches!(found, Value::Optional(Some(_)))));
        }
        let members = value.as_map("has()")?;
        self.budget.lookup(members.len())?;
        Ok(Value::Bool(members.get(field).is_some()))
    }

    fn index(&mut self, operand: &'a Node, index: &'a Node) -> Result<Value<'a>, EvalError> {
        let (value, index) = (self.eval(operand)?, self.eval(index)?);
        match (&value, &index) {
            (Value::Optional(_), _) => self.optional_index(&value, &index),
            (Value::Map(_), Value::Str(key)) => self.member(&value, key, operand),
            (Value::List(items), Value::Int(at)) => usize::try_from(*at)
                .ok()
                .and_then(|at| items.get(at))
                .ok_or_else(|| {
                    EvalError::Other(format!(
                        "index {at} is outside {}, which has {} item(s)",
                        place(operand),
                        items.len()
                    ))
                }),
            _ => Err(index.mistyped(&format!("an index of {}", value.type_name()))),
        }
    }

    fn list(&mut self, nodes: &'a [Node]) -> Result<Value<'a>, EvalError> {
        let mut items = Vec::with_capacity(nodes.len());
        for node in nodes {
            items.extend(self.present(node)?);
        }
        Ok(Value::list(items))
    }

    fn map(&mut self, entries: &'a [(Node, Node)]) -> Result<Value<'a>, EvalError> {
        let mut members: Vec<(Text<'a>, Value<'a>)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key = self.eval(key)?.as_text("a map key")?.clone();
            self.budget.lookup(members.len())?;
            if members.iter().any(|(other, _)| *key == **other) {
                return Err(EvalError::Other(format!("map has the key {:?} twice", &*key)));
            }
            members.extend(self.present(value)?.map(|value| (key, value)));
        }
        Ok(Value::map(members))
    }

    /// The value of an item or member, unless it is left out.
    fn present(&mut self, node: &'a Node) -> Result<Option<Value<'a>>, EvalError> {
        match (node, self.eval(node)?) {
            (Node::IfPresent(_), Value::Optional(present)) => Ok(present.map(Rc::unwrap_or_clone)),
            (Node::IfPresent(_), other) => Err(other.mistyped("`?`")),
            (_, value) => Ok(Some(value)),
        }
    }

    fn call(&mut self, function: Function, nodes: &'a [Node]) -> Result<Value<'a>, EvalError> {
        let mut arguments = [const { Value::Null }; ARGUMENTS_MAX];
        for (argument, node) in arguments.iter_mut().zip(nodes) {
            *argument = self.eval(node)?;
            // What stands in for something absent is not looked at where it is there.
            if matches!(function, Function::OrValue | Function::OrOptional)
                && matches!(argument, Value::Optional(Some(_)))
            {
                break;
            }
        }
        functions::call(function, arguments, nodes.len(), &mut self.budget)
    }

    /// `&&` (`decisive` false) and `||` (`decisive` true). As in CEL the order of the sides does not matter: an
    /// error on one side is forgotten where the other side decides. A used-up budget is never forgotten.
    fn logic(&mut self, left: &'a Node, right: &'a Node, decisive: bool) -> Result<Value<'a>, EvalError> {
        let name = if decisive { "`||`" } else { "`&&`" };
        let left = match self.eval(left).and_then(|value| value.as_bool(name)) {
            Err(error @ EvalError::Budget { .. }) => return Err(error),
            Ok(answer) if answer == decisive => return Ok(Value::Bool(decisive)),
            left => left,
        };
        match self.eval(right).and_then(|value| value.as_bool(name)) {
            Err(error @ EvalError::Budget { .. }) => Err(error),
            Ok(answer) if answer == decisive => Ok(Value::Bool(decisive)),
            right => {
                left?;
                right.map(Value::Bool)
            }
        }
    }

    fn contained(&mut self, needle: &'a Node, haystack: &'a Node) -> Result<Value<'a>, EvalError> {
        let (needle, haystack) = (self.eval(needle)?, self.eval(haystack)?);
        match &haystack {
            Value::List(items) => {
                self.budget.spend(items.len())?;
                holds(items, &needle, &mut self.budget).map(Value::Bool)
            }
            Value::Map(members) => {
                self.budget.lookup(members.len())?;
                match &needle {
                    Value::Str(key) => Ok(Value::Bool(members.get(key).is_some())),
                    // Keys elsewhere in CEL, so it is not a mistake to ask for them.
                    Value::Int(_) | Value::Double(_) | Value::Bool(_) => Ok(Value::Bool(false)),
                    _ => Err(needle.mistyped("`in` a map")),
                }
            }
            _ => Err(haystack.mistyped("`in`")),
        }
    }

    fn arithmetic(
        &mut self,
        operator: Arithmetic,
        left: Value<'a>,
        right: Value<'a>,
    ) -> Result<Value<'a>, EvalError> {
        use Arithmetic::{Add, Subtract};
        let symbol = operator.symbol();
        match (operator, left, right) {
            (_, Value::Int(a), Value::Int(b)) => integer(operator, a, b).map(Value::Int),
            (_, Value::Double(a), Value::Double(b)) if operator != Arithmetic::Modulo => {
                double(operator, a, b)
            }
            (Add, Value::Str(a), Value::Str(b)) => {
                self.budget.text(a.len() + b.len())?;
                Ok(Value::text([&*a, &*b].concat()))
            }
            (Add, Value::List(a), Value::List(b)) => {
                self.budget.spend(a.len() + b.len())?;
                let mut items = a.into_items();
                items.extend(b.iter());
                Ok(Value::list(items))
            }
            (Add, Value::Timestamp(at), Value::Duration(by))
            | (Add, Value::Duration(by), Value::Timestamp(at)) => {
                shifted(at, by, symbol).map(Value::Timestamp)
            }
            (Subtract, Value::Timestamp(at), Value::Duration(by)) => by
                .checked_neg()
                .ok_or_else(|| overflow(symbol))
                .and_then(|by| shifted(at, by, symbol))
                .map(Value::Timestamp),
            (Subtract, Value::Timestamp(to), Value::Timestamp(from)) => {
                Ok(Value::Duration(to.duration_since(from)))
            }
            (Add, Value::Duration(a), Value::Duration(b)) => a
                .checked_add(b)
                .map(Value::Duration)
                .ok_or_else(|| overflow(symbol)),
            (Subtract, Value::Duration(a), Value::Duration(b)) => a
                .checked_sub(b)
                .map(Value::Duration)
                .ok_or_else(|| overflow(symbol)),
            (_, left, right) => Err(EvalError::Type {
                operation: symbol.to_owned(),
                found: format!("{} and {}", left.type_name(), right.type_name()),
            }),
        }
    }
}

fn path_text(root: Root, fields: &[Arc<str>]) -> String {
    let mut text = root.name().to_owned();
    for field in fields {
        text.push('.');
        text.push_str(field);
    }
    text
}

/// What an operation is called in messages.
fn place(node: &Node) -> String {
    match node {
        Node::Path(root, fields) => path_text(*root, fields),
        Node::Field(operand, field) => format!("{}.{field}", place(operand)),
        Node::Index(operand, _) => format!("{}[...]", place(operand)),
        Node::Local(_, name) => name.to_string(),
        _ => "a value".to_owned(),
    }
}

fn negate<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
    match value {
        Value::Int(number) => number
            .checked_neg()
            .map(Value::Int)
            .ok_or_else(|| overflow("`-`")),
        Value::Double(number) => Ok(Value::Double(-number)),
        _ => Err(value.mistyped("`-`")),
    }
}

fn integer(operator: Arithmetic, a: i64, b: i64) -> Result<i64, EvalError> {
    if b == 0 && matches!(operator, Arithmetic::Divide | Arithmetic::Modulo) {
        return Err(EvalError::Other("division by zero".to_owned()));
    }
    match operator {
        Arithmetic::Add => a.checked_add(b),
        Arithmetic::Subtract => a.checked_sub(b),
        Arithmetic::Multiply => a.checked_mul(b),
        Arithmetic::Divide => a.checked_div(b),
        Arithmetic::Modulo => a.checked_rem(b),
    }
    .ok_or_else(|| overflow(operator.symbol()))
}

fn double<'a>(operator: Arithmetic, a: f64, b: f64) -> Result<Value<'a>, EvalError> {
    let number = match operator {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::Divide => a / b,
        Arithmetic::Modulo => a % b,
    };
    // JSON has no other doubles than finite ones.
    if number.is_finite() {
        Ok(Value::Double(number))
    } else {
        Err(overflow(operator.symbol()))
    }
}
