//! Going through an expression as the evaluator would, with types instead of values.

mod members;

use std::collections::BTreeMap;

use super::calls::{call, sortable};
use super::narrow::path_of;
use super::operations::{Refusal, arithmetic, compare, contained, negate};
use super::{Env, Kinds, Member, Type};
use crate::expr::functions::Function;
use crate::expr::program::{Loop, LoopKind, Node};
use crate::expr::{Expr, Root, places::Place};
use crate::json::Json;

/// Something that would fail, or not do what it seems to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// Byte offset and length within the text of the expression.
    pub offset: usize,
    pub length: usize,
    pub message: String,
    pub help: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A member that the value does not have.
    UnknownField,
    /// An operation that does not take such values.
    Overload,
    /// A member that may be missing, or a value that may be null.
    Unguarded,
    /// The same about the state, whose members come and go with the saga.
    UnguardedState,
    /// A comparison whose outcome is certain.
    Certain,
    /// The same, as a guard that is not needed.
    CertainGuard,
    /// A condition that is not a boolean.
    NotBool,
}

impl Expr {
    /// The type of what the expression gives in `env`. What is wrong with it is added to `faults`.
    pub fn type_in(&self, env: &Env, faults: &mut Vec<Fault>) -> Type {
        let mut check = Check {
            text: self.text(),
            places: self.places(),
            next: 0,
            env: env.clone(),
            faults,
        };
        let found = check.visit(&self.program);
        if found.has_optional() {
            faults.push(Fault {
                kind: FaultKind::Overload,
                offset: 0,
                length: self.text().len(),
                message: "this may be absent, and what is absent cannot be stored".to_owned(),
                help: Some("end with .orValue(...), which says what stands in for it".to_owned()),
            });
            return Type::dynamic();
        }
        found
    }

    /// The same for a condition, which has to be a boolean.
    pub fn check_condition(&self, env: &Env, faults: &mut Vec<Fault>) {
        let found = self.type_in(env, faults);
        if found.dynamic || found.is_never() || found.kinds == Kinds::BOOL {
            return;
        }
        faults.push(Fault {
            kind: FaultKind::NotBool,
            offset: 0,
            length: self.text().len(),
            message: format!("expected a boolean, found {found}"),
            help: Some("compare it with something, as in x != null".to_owned()),
        });
    }

    /// What is known where the expression, a condition, came out as `truth`.
    #[must_use]
    pub fn narrowed(&self, env: &Env, truth: bool) -> Env {
        let mut env = env.clone();
        env.assume(&self.program, truth);
        env
    }
}

struct Check<'e, 'f> {
    text: &'e str,
    places: &'e [Place],
    /// The place of the operation that is visited next.
    next: usize,
    env: Env,
    faults: &'f mut Vec<Fault>,
}

impl Check<'_, '_> {
    fn visit(&mut self, node: &Node) -> Type {
        let at = self.next;
        self.next += 1;
        match node {
            Node::Constant(json) => Type::of_json(json),
            Node::Timestamp(_) => Type::of(Kinds::TIMESTAMP),
            Node::Duration(_) => Type::of(Kinds::DURATION),
            Node::Path(root, fields) => self.path(at, *root, fields),
            Node::Local(slot, _) => self.env.base(super::env::Base::Local(*slot)),
            Node::Field(operand, field) => {
                let found = self.visit(operand);
                let (offset, length) = self.behind(at, field);
                self.member(node, &found, field, offset, length)
            }
            Node::Has(operand, field) => self.has(at, operand, field),
            Node::Index(operand, index) => self.index(at, node, operand, index),
            Node::OptionalField(operand, field) => {
                let found = self.visit(operand);
                let (offset, length) = self.behind(at, field);
                self.optional_member(&found, field, offset, length)
            }
            Node::OptionalIndex(operand, index) => {
                let (found, by) = (self.visit(operand), self.visit(index));
                self.optional_index(at, &found, &by, index)
            }
            Node::IfPresent(operand) => {
                let found = self.visit(operand);
                let result = super::operations::demand(&found, Kinds::OPTIONAL, "`?`");
                self.told(at, result.map(|()| found.held()))
            }
            Node::List(items) => self.list(items),
            Node::Map(entries) => self.map(entries),
            Node::And(left, right) => self.logic(left, right, true),
            Node::Or(left, right) => self.logic(left, right, false),
            Node::Not(operand) => {
                self.boolean(operand, "`!`");
                Type::boolean()
            }
            Node::Negate(operand) => {
                let found = self.visit(operand);
                let result = negate(&found);
                self.told(at, result)
            }
            Node::Condition(test, yes, no) => self.condition(test, yes, no),
            Node::Compare(comparison, left, right) => {
                let (left, right) = (self.visit(left), self.visit(right));
                let result = compare(*comparison, &left, &right);
                self.told(at, result)
            }
            Node::Arithmetic(operator, left, right) => {
                let (left, right) = (self.visit(left), self.visit(right));
                let result = arithmetic(*operator, &left, &right);
                self.told(at, result)
            }
            Node::In(needle, haystack) => {
                let (needle, haystack) = (self.visit(needle), self.visit(haystack));
                let result = contained(&needle, &haystack);
                self.told(at, result)
            }
            Node::Matches(operand, _) => {
                let found = self.visit(operand);
                let result = super::operations::demand(&found, Kinds::STRING, "`matches`");
                self.told(at, result.map(|()| Type::boolean()))
            }
            Node::Call(function, arguments) => self.call(at, *function, arguments),
            Node::Loop(each) => self.each(at, each),
        }
    }

    /// A list, whose items may be of several types.
    fn list(&mut self, items: &[Node]) -> Type {
        let items: Vec<Type> = items.iter().map(|item| self.visit(item)).collect();
        match items.into_iter().reduce(|left, right| left.or(&right)) {
            Some(item) => Type::list(item),
            None => Type::of(Kinds::LIST),
        }
    }

    /// Either branch, each with what the test says about it.
    fn condition(&mut self, test: &Node, yes: &Node, no: &Node) -> Type {
        self.boolean(test, "`?:`");
        let before = self.env.clone();
        self.env.assume(test, true);
        let yes = self.visit(yes);
        self.env = before.clone();
        self.env.assume(test, false);
        let no = self.visit(no);
        self.env = before;
        yes.or(&no)
    }

    /// A call of a function, whose constant texts may decide its type.
    fn call(&mut self, at: usize, function: Function, arguments: &[Node]) -> Type {
        let texts: Vec<Option<&str>> = arguments
            .iter()
            .map(|node| match node {
                Node::Constant(Json::Str(text)) => Some(text.as_ref()),
                _ => None,
            })
            .collect();
        let arguments: Vec<Type> = arguments.iter().map(|node| self.visit(node)).collect();
        let result = call(function, &arguments, &texts);
        self.told(at, result)
    }

    fn map(&mut self, entries: &[(Node, Node)]) -> Type {
        let mut members = BTreeMap::new();
        let mut rest = None;
        for (key, value) in entries {
            let at = self.next;
            let by = self.visit(key);
            if let Err(refusal) = super::operations::demand(&by, Kinds::STRING, "a map key") {
                self.refuse(at, refusal);
            }
            let required = !matches!(value, Node::IfPresent(_));
            let value = self.visit(value);
            match key {
                Node::Constant(Json::Str(name)) => {
                    members.insert(name.clone().into_owned(), Member { value, required });
                }
                _ => rest = Some(rest.map_or_else(|| value.clone(), |rest: Type| rest.or(&value))),
            }
        }
        Type::of_object(members, rest)
    }

    fn logic(&mut self, left: &Node, right: &Node, and: bool) -> Type {
        let name = if and { "`&&`" } else { "`||`" };
        self.boolean(left, name);
        let before = self.env.clone();
        self.env.assume(left, and);
        self.boolean(right, name);
        self.env = before;
        Type::boolean()
    }

    fn boolean(&mut self, node: &Node, operation: &str) {
        let at = self.next;
        let found = self.visit(node);
        if let Err(refusal) = super::operations::demand(&found, Kinds::BOOL, operation) {
            self.refuse(at, refusal);
        }
    }

    fn each(&mut self, at: usize, each: &Loop) -> Type {
        let ranged = self.next;
        let range = self.visit(&each.range);
        let elements = match elements(each, &range) {
            Ok(elements) => elements,
            Err(refusal) => {
                self.refuse(ranged, refusal);
                vec![Type::dynamic(); if each.pairs { 2 } else { 1 }]
            }
        };
        let before = self.env.clone();
        self.env.locals.truncate(each.slot);
        self.env.locals.extend(elements);
        if let Some(condition) = &each.condition {
            self.boolean(condition, "a filter");
            self.env.assume(condition, true);
        }
        let given = self.repeated(each, &range);
        debug_assert!(self.next > at, "the body was visited");
        self.env = before;
        given
    }

    /// What a macro gives, its elements being known.
    fn repeated(&mut self, each: &Loop, range: &Type) -> Type {
        let body = self.next;
        match each.kind {
            LoopKind::All | LoopKind::Exists | LoopKind::ExistsOne => {
                self.boolean(&each.body, "a macro");
                Type::boolean()
            }
            LoopKind::Map => Type::list(self.visit(&each.body)),
            LoopKind::TransformMap => {
                let value = self.visit(&each.body);
                Type::of_object(BTreeMap::new(), Some(value))
            }
            LoopKind::TransformMapEntry => {
                let entry = self.visit(&each.body);
                if let Err(refusal) = super::operations::demand(&entry, Kinds::MAP, "`transformMapEntry`") {
                    return self.refuse(body, refusal);
                }
                Type::of_object(BTreeMap::new(), Some(entry.any_member()))
            }
            LoopKind::SortBy => {
                let key = self.visit(&each.body);
                if let Err(refusal) = sortable(&key, "`sortBy`") {
                    return self.refuse(body, refusal);
                }
                range.clone()
            }
            LoopKind::Bind => self.visit(&each.body),
            LoopKind::OptMap => Type::optional(self.visit(&each.body)),
            LoopKind::OptFlatMap => {
                let found = self.visit(&each.body);
                let result = super::operations::demand(&found, Kinds::OPTIONAL, "`optFlatMap`");
                self.told(body, result.map(|()| found))
            }
        }
    }

    /// The type that an operation gives, or dynamic where it is at fault.
    fn told(&mut self, at: usize, result: Result<Type, Refusal>) -> Type {
        result.unwrap_or_else(|refusal| {
            let gives_boolean = matches!(refusal.kind, FaultKind::Certain | FaultKind::CertainGuard);
            let dynamic = self.refuse(at, refusal);
            if gives_boolean { Type::boolean() } else { dynamic }
        })
    }

    fn refuse(&mut self, at: usize, refusal: Refusal) -> Type {
        let (offset, length) = self.span(at);
        let state = self.text[offset..offset + length].contains("state.");
        self.fault_at(refusal, offset, length, state);
        Type::dynamic()
    }

    fn fault_at(&mut self, refusal: Refusal, offset: usize, length: usize, state: bool) {
        let kind = match refusal.kind {
            FaultKind::Unguarded if state => FaultKind::UnguardedState,
            kind => kind,
        };
        self.faults.push(Fault {
            kind,
            offset,
            length,
            message: refusal.message,
            help: refusal.help,
        });
    }

    fn place(&self, at: usize) -> Place {
        self.places.get(at).copied().unwrap_or(Place {
            start: 0,
            end: self.text.len(),
        })
    }

    /// The text of the operation at `at` and everything below it, as far as it was visited.
    fn span(&self, at: usize) -> (usize, usize) {
        let whole = Place {
            start: 0,
            end: self.text.len(),
        };
        let places = self.places.get(at..self.next).unwrap_or_default();
        let joined = places.iter().copied().reduce(Place::joined).unwrap_or(whole);
        let closed = joined.closed(self.text);
        (closed.start, closed.end - closed.start)
    }

    /// The field that follows the dot at `at`.
    fn behind(&self, at: usize, field: &str) -> (usize, usize) {
        let place = self.place(at);
        let found = self.text[place.start..].find(field);
        found.map_or((place.start, place.end - place.start), |found| {
            (place.start + found, field.len())
        })
    }
}

/// What the elements of a macro are.
fn elements(each: &Loop, range: &Type) -> Result<Vec<Type>, Refusal> {
    let demand = super::operations::demand;
    match each.kind {
        LoopKind::Bind => return Ok(vec![range.clone()]),
        LoopKind::OptMap | LoopKind::OptFlatMap => {
            demand(range, Kinds::OPTIONAL, "a macro over an optional")?;
            return Ok(vec![range.held()]);
        }
        LoopKind::SortBy => demand(range, Kinds::LIST, "`sortBy`")?,
        LoopKind::TransformMap => demand(range, Kinds::MAP, "`transformMap`")?,
        _ => demand(range, Kinds::LIST.with(Kinds::MAP), "a macro over items")?,
    }
    let key = match range.kinds {
        Kinds::MAP => Type::string(),
        Kinds::LIST => Type::integer(),
        _ => Type::dynamic(),
    };
    let value = match range.kinds {
        _ if range.dynamic => Type::dynamic(),
        Kinds::LIST => range.items(),
        Kinds::MAP if !each.pairs => Type::string(),
        Kinds::MAP => range.any_member(),
        _ => Type::dynamic(),
    };
    Ok(if each.pairs { vec![key, value] } else { vec![value] })
}

fn always_absent(found: &Type) -> Refusal {
    Refusal {
        kind: FaultKind::Certain,
        message: format!("this is always absent: {found} does not have it"),
        help: None,
    }
}

fn is_state(node: &Node) -> bool {
    matches!(path_of(node), Some((super::env::Base::Root(Root::State), _)))
}

/// What is read, as the text has it.
fn written(node: &Node) -> String {
    match node {
        Node::Path(root, fields) => {
            let fields: Vec<&str> = fields.iter().map(|field| &**field).collect();
            format!("{}.{}", root.name(), fields.join("."))
        }
        Node::Local(_, name) => name.to_string(),
        Node::Field(operand, field) => format!("{}.{field}", written(operand)),
        Node::Index(operand, index) => match &**index {
            Node::Constant(Json::Str(field)) => format!("{}.{field}", written(operand)),
            _ => format!("{}[...]", written(operand)),
        },
        _ => "...".to_owned(),
    }
}
