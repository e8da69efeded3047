//! Evaluation: total, bounded by the budget, borrowing from the scope.

use super::functions::{self, Function};
use super::program::{Arithmetic, Comparison, Comprehension, Node};
use super::value::{Value, equal, type_name};
use super::{Budget, EvalError, Scope};
use crate::kernel::json::Json;

/// Takes steps off a budget.
pub(super) struct Spender<'b> {
    budget: &'b mut Budget,
    max: u64,
}

impl<'b> Spender<'b> {
    pub fn new(budget: &'b mut Budget) -> Self {
        let max = budget.steps;
        Self { budget, max }
    }

    pub fn spend(&mut self, steps: usize) -> Result<(), EvalError> {
        match self.budget.steps.checked_sub(steps as u64) {
            Some(left) => {
                self.budget.steps = left;
                Ok(())
            }
            None => {
                self.budget.steps = 0;
                Err(EvalError::Budget { max: self.max })
            }
        }
    }

    /// Work on text costs a step for every 16 bytes.
    pub fn spend_text(&mut self, bytes: usize) -> Result<(), EvalError> {
        self.spend(bytes / 16)
    }
}

/// One evaluation.
pub(super) struct Evaluation<'s, 'a, 'b> {
    pub scope: &'s Scope<'a>,
    pub budget: Spender<'b>,
    /// Variables of the comprehensions around, by slot.
    pub locals: Vec<Value<'a>>,
}

impl<'a> Evaluation<'_, 'a, '_> {
    pub fn eval(&mut self, node: &'a Node) -> Result<Value<'a>, EvalError> {
        self.budget.spend(1)?;
        match node {
            Node::Constant(json) => Ok(Value::Ref(json)),
            Node::Root(root) => self
                .scope
                .get(*root)
                .map(Value::Ref)
                .ok_or_else(|| EvalError::Other(format!("`{}` has no value here", root.name()))),
            Node::Local(slot) => Ok(self.locals[*slot].clone()),
            Node::Field(operand, field) => {
                let value = self.eval(operand)?;
                member(value, field, operand)
            }
            Node::Has(operand, field) => {
                let value = self.eval(operand)?;
                match value.json() {
                    Json::Map(_) => Ok(Value::bool(value.json().get(field).is_some())),
                    _ => Err(value.mistyped("has()")),
                }
            }
            Node::Index(operand, index) => {
                let (value, index) = (self.eval(operand)?, self.eval(index)?);
                indexed(value, &index, operand)
            }
            Node::List(nodes) => {
                let items: Result<_, _> = nodes
                    .iter()
                    .map(|node| Ok(self.eval(node)?.into_json()))
                    .collect();
                Ok(Value::Own(Json::List(items?)))
            }
            Node::Map(entries) => self.map(entries),
            Node::And(left, right) => self.logic(left, right, false),
            Node::Or(left, right) => self.logic(left, right, true),
            Node::Not(operand) => Ok(Value::bool(!self.eval(operand)?.as_bool("`!`")?)),
            Node::Negate(operand) => negate(&self.eval(operand)?),
            Node::Condition(test, yes, no) => {
                let branch = if self.eval(test)?.as_bool("`?:`")? {
                    yes
                } else {
                    no
                };
                self.eval(branch)
            }
            Node::Compare(comparison, left, right) => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                self.budget.spend(weight(left.json()).min(weight(right.json())))?;
                compare(*comparison, &left, &right)
            }
            Node::Arithmetic(operator, left, right) => self.arithmetic(*operator, left, right),
            Node::In(needle, haystack) => {
                let (needle, haystack) = (self.eval(needle)?, self.eval(haystack)?);
                self.contains(&needle, &haystack)
            }
            Node::Matches(operand, regex) => {
                let text = self.eval(operand)?.into_text("matches()")?;
                self.budget.spend_text(text.len())?;
                Ok(Value::bool(regex.is_match(&text)))
            }
            Node::Call(function, nodes) => self.call(*function, nodes),
            Node::Comprehension(each) => self.comprehension(each),
        }
    }

    fn call(&mut self, function: Function, nodes: &'a [Node]) -> Result<Value<'a>, EvalError> {
        let arguments: Result<Vec<_>, _> = nodes.iter().map(|node| self.eval(node)).collect();
        functions::call(function, arguments?, &mut self.budget)
    }

    fn map(&mut self, entries: &'a [(Node, Node)]) -> Result<Value<'a>, EvalError> {
        let mut members = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key = self.eval(key)?.into_text("a map key")?;
            if members.iter().any(|(other, _)| *other == key) {
                return Err(EvalError::Other(format!("map has the key {key:?} twice")));
            }
            let value = self.eval(value)?.into_json();
            members.push((key, value));
        }
        Ok(Value::Own(Json::Map(members)))
    }

    /// `&&` (`decisive` false) and `||` (`decisive` true). As in CEL an error on one side does not matter where
    /// the other side decides.
    fn logic(&mut self, left: &'a Node, right: &'a Node, decisive: bool) -> Result<Value<'a>, EvalError> {
        let name = if decisive { "`||`" } else { "`&&`" };
        let left = self.eval(left).and_then(|value| value.as_bool(name));
        match left {
            Ok(answer) if answer == decisive => Ok(Value::bool(decisive)),
            Err(error @ EvalError::Budget { .. }) => Err(error),
            left => match self.eval(right).and_then(|value| value.as_bool(name)) {
                Ok(answer) if answer == decisive => Ok(Value::bool(decisive)),
                Err(error @ EvalError::Budget { .. }) => Err(error),
                right => Ok(Value::bool(left? & right?)),
            },
        }
    }

    fn arithmetic(
        &mut self,
        operator: Arithmetic,
        left: &'a Node,
        right: &'a Node,
    ) -> Result<Value<'a>, EvalError> {
        // Gathering a list takes it out of its slot instead of copying it for every element.
        let left = match left {
            Node::Local(slot) if operator == Arithmetic::Add && matches!(right, Node::List(_)) => {
                self.budget.spend(1)?;
                let taken = std::mem::replace(&mut self.locals[*slot], Value::Own(Json::Null));
                if let Value::Own(Json::List(mut items)) = taken {
                    let Value::Own(Json::List(more)) = self.eval(right)? else {
                        return Err(EvalError::Other("a list literal is a list".to_owned()));
                    };
                    items.extend(more);
                    return Ok(Value::Own(Json::List(items)));
                }
                self.locals[*slot] = taken.clone();
                taken
            }
            _ => self.eval(left)?,
        };
        let right = self.eval(right)?;
        match (left.json(), right.json()) {
            (Json::Int(a), Json::Int(b)) => integer(operator, *a, *b).map(Value::int),
            (Json::Double(a), Json::Double(b)) => double(operator, *a, *b, &left),
            (Json::Str(_), Json::Str(_)) if operator == Arithmetic::Add => {
                let mut text = left.into_text("`+`")?.into_owned();
                text.push_str(&right.into_text("`+`")?);
                self.budget.spend_text(text.len())?;
                Ok(Value::text(text))
            }
            (Json::List(a), Json::List(b)) if operator == Arithmetic::Add => {
                self.budget.spend(a.len() + b.len())?;
                let mut items = left.into_items("`+`")?;
                items.extend(right.into_items("`+`")?);
                Ok(Value::Own(Json::List(items)))
            }
            (a, b) => Err(EvalError::Type {
                operation: format!("`{}`", operator.symbol()),
                found: format!("{} and {}", type_name(a), type_name(b)),
            }),
        }
    }

    fn contains(&mut self, needle: &Value<'a>, haystack: &Value<'a>) -> Result<Value<'a>, EvalError> {
        match haystack.json() {
            Json::List(items) => {
                self.budget.spend(items.len())?;
                Ok(Value::bool(items.iter().any(|item| equal(needle.json(), item))))
            }
            Json::Map(members) => {
                self.budget.spend(members.len())?;
                match needle.json() {
                    Json::Str(key) => Ok(Value::bool(haystack.json().get(key).is_some())),
                    _ => Ok(Value::bool(false)),
                }
            }
            _ => Err(haystack.mistyped("`in`")),
        }
    }

    fn comprehension(&mut self, each: &'a Comprehension) -> Result<Value<'a>, EvalError> {
        let elements: Vec<Value<'a>> = match self.eval(&each.range)? {
            Value::Ref(Json::List(items)) => items.iter().map(Value::Ref).collect(),
            Value::Own(Json::List(items)) => items.into_iter().map(Value::Own).collect(),
            Value::Ref(Json::Map(members)) => {
                members.iter().map(|(key, _)| Value::text(key.as_ref())).collect()
            }
            Value::Own(Json::Map(members)) => members.into_iter().map(|(key, _)| Value::text(key)).collect(),
            other => return Err(other.mistyped("a loop")),
        };
        let initial = self.eval(&each.initial)?;
        debug_assert_eq!(self.locals.len(), each.element, "slots are nested");
        self.locals.push(Value::Own(Json::Null));
        self.locals.push(initial);
        let outcome = self.iterate(each, elements);
        self.locals.truncate(each.element);
        outcome
    }

    fn iterate(&mut self, each: &'a Comprehension, elements: Vec<Value<'a>>) -> Result<Value<'a>, EvalError> {
        // `exists` and `all` absorb an error that a later element makes irrelevant, as `||` and `&&` do.
        let mut pending: Option<EvalError> = None;
        for element in elements {
            self.locals[each.element] = element;
            if matches!(self.eval(&each.go_on)?.json(), Json::Bool(false)) {
                break;
            }
            let absorbs = matches!(each.step, Node::And(..) | Node::Or(..));
            let before = absorbs.then(|| self.locals[each.gathered].clone());
            match self.eval(&each.step) {
                Ok(value) => self.locals[each.gathered] = value,
                Err(error @ EvalError::Budget { .. }) => return Err(error),
                Err(error) => match before {
                    Some(before) => {
                        self.locals[each.gathered] = before;
                        pending.get_or_insert(error);
                    }
                    None => return Err(error),
                },
            }
        }
        let result = self.eval(&each.result)?;
        match pending {
            Some(error) => match (&each.step, result.json()) {
                (Node::Or(..), Json::Bool(true)) | (Node::And(..), Json::Bool(false)) => Ok(result),
                _ => Err(error),
            },
            None => Ok(result),
        }
    }
}

/// What comparing a value may cost.
fn weight(json: &Json<'_>) -> usize {
    match json {
        Json::Str(text) => text.len() / 16,
        Json::List(items) => items.len(),
        Json::Map(members) => members.len(),
        Json::Null | Json::Bool(_) | Json::Int(_) | Json::Double(_) => 0,
    }
}

fn member<'a>(value: Value<'a>, field: &str, operand: &Node) -> Result<Value<'a>, EvalError> {
    let missing = || EvalError::NoField {
        name: field.to_owned(),
        place: place(operand),
    };
    match value {
        Value::Ref(json @ Json::Map(_)) => json.get(field).map(Value::Ref).ok_or_else(missing),
        Value::Own(Json::Map(members)) => members
            .into_iter()
            .find(|(key, _)| key == field)
            .map(|(_, value)| Value::Own(value))
            .ok_or_else(missing),
        other => Err(EvalError::Type {
            operation: format!("`.{field}` of {}", place(operand)),
            found: type_name(other.json()).to_owned(),
        }),
    }
}

fn indexed<'a>(value: Value<'a>, index: &Value<'a>, operand: &Node) -> Result<Value<'a>, EvalError> {
    match (value.json(), index.json()) {
        (Json::Map(_), Json::Str(key)) => {
            let key = key.clone().into_owned();
            member(value, &key, operand)
        }
        (Json::List(items), Json::Int(at)) => {
            let length = items.len();
            let at = usize::try_from(*at)
                .ok()
                .filter(|at| *at < length)
                .ok_or_else(|| {
                    EvalError::Other(format!(
                        "index {at} is outside {}, which has {length} item(s)",
                        place(operand)
                    ))
                })?;
            Ok(match value {
                Value::Ref(Json::List(items)) => Value::Ref(&items[at]),
                other => Value::Own(other.into_items("an index")?.swap_remove(at)),
            })
        }
        (json, index) => Err(EvalError::Type {
            operation: format!("an index of {}", type_name(json)),
            found: type_name(index).to_owned(),
        }),
    }
}

/// What a node is called in messages.
fn place(node: &Node) -> String {
    match node {
        Node::Root(root) => root.name().to_owned(),
        Node::Field(operand, field) => format!("{}.{field}", place(operand)),
        Node::Index(operand, _) => format!("{}[...]", place(operand)),
        _ => "a value".to_owned(),
    }
}

fn negate<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
    match value.json() {
        Json::Int(number) => number
            .checked_neg()
            .map(Value::int)
            .ok_or_else(|| EvalError::Overflow {
                operation: "`-`".to_owned(),
            }),
        Json::Double(number) => Ok(Value::Own(Json::Double(-number))),
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
    .ok_or_else(|| EvalError::Overflow {
        operation: format!("`{}`", operator.symbol()),
    })
}

fn double<'a>(operator: Arithmetic, a: f64, b: f64, left: &Value<'a>) -> Result<Value<'a>, EvalError> {
    let number = match operator {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::Divide => a / b,
        Arithmetic::Modulo => return Err(left.mistyped("`%`")),
    };
    if number.is_finite() {
        return Ok(Value::Own(Json::Double(number)));
    }
    Err(EvalError::Overflow {
        operation: format!("`{}`", operator.symbol()),
    })
}

fn compare<'a>(comparison: Comparison, left: &Value<'a>, right: &Value<'a>) -> Result<Value<'a>, EvalError> {
    use std::cmp::Ordering;
    let mixed = || EvalError::Type {
        operation: format!("`{}`", comparison.symbol()),
        found: format!("{} and {}", type_name(left.json()), type_name(right.json())),
    };
    match comparison {
        Comparison::Equal | Comparison::NotEqual => {
            if let (Json::Int(_), Json::Double(_)) | (Json::Double(_), Json::Int(_)) =
                (left.json(), right.json())
            {
                return Err(mixed());
            }
            let same = equal(left.json(), right.json());
            Ok(Value::bool(same == (comparison == Comparison::Equal)))
        }
        Comparison::Less | Comparison::LessOrEqual | Comparison::Greater | Comparison::GreaterOrEqual => {
            let order = match (left.json(), right.json()) {
                (Json::Int(a), Json::Int(b)) => Some(a.cmp(b)),
                (Json::Double(a), Json::Double(b)) => a.partial_cmp(b),
                // Code points and UTF-8 bytes have the same order.
                (Json::Str(a), Json::Str(b)) => Some(a.cmp(b)),
                (Json::Bool(a), Json::Bool(b)) => Some(a.cmp(b)),
                _ => None,
            };
            let order = order.ok_or_else(mixed)?;
            Ok(Value::bool(match comparison {
                Comparison::Less => order == Ordering::Less,
                Comparison::LessOrEqual => order != Ordering::Greater,
                Comparison::Greater => order == Ordering::Greater,
                _ => order != Ordering::Less,
            }))
        }
    }
}
