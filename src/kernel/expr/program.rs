//! The lowered form of an expression: names resolved, literals ready, patterns compiled.

use std::sync::Arc;

use regex::Regex;

use super::Root;
use super::functions::Function;
use crate::kernel::json::Json;

/// One operation. Every operation that is evaluated costs a step of the budget.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Constant(Json<'static>),
    Root(Root),
    /// A variable of a comprehension, by slot.
    Local(usize),
    Field(Box<Node>, Arc<str>),
    /// `has(x.field)`.
    Has(Box<Node>, Arc<str>),
    Index(Box<Node>, Box<Node>),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Not(Box<Node>),
    Negate(Box<Node>),
    Condition(Box<Node>, Box<Node>, Box<Node>),
    Compare(Comparison, Box<Node>, Box<Node>),
    Arithmetic(Arithmetic, Box<Node>, Box<Node>),
    In(Box<Node>, Box<Node>),
    Matches(Box<Node>, Regex),
    Call(Function, Vec<Node>),
    Comprehension(Box<Comprehension>),
}

/// A loop over a list, or over the keys of a map, as the macros expand to it.
#[derive(Debug, Clone)]
pub(super) struct Comprehension {
    pub range: Node,
    /// Slots of the element and of what is gathered.
    pub element: usize,
    pub gathered: usize,
    pub initial: Node,
    /// The loop ends where this is definitely false.
    pub go_on: Node,
    pub step: Node,
    pub result: Node,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

impl Arithmetic {
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Modulo => "%",
        }
    }
}

/// Calls `visit` for the node and everything below it.
pub(super) fn walk(node: &Node, visit: &mut dyn FnMut(&Node)) {
    visit(node);
    match node {
        Node::Constant(_) | Node::Root(_) | Node::Local(_) => {}
        Node::Field(operand, _)
        | Node::Has(operand, _)
        | Node::Not(operand)
        | Node::Negate(operand)
        | Node::Matches(operand, _) => walk(operand, visit),
        Node::Index(a, b)
        | Node::And(a, b)
        | Node::Or(a, b)
        | Node::Compare(_, a, b)
        | Node::Arithmetic(_, a, b)
        | Node::In(a, b) => {
            walk(a, visit);
            walk(b, visit);
        }
        Node::Condition(a, b, c) => {
            walk(a, visit);
            walk(b, visit);
            walk(c, visit);
        }
        Node::List(items) | Node::Call(_, items) => items.iter().for_each(|item| walk(item, visit)),
        Node::Map(entries) => {
            for (key, value) in entries {
                walk(key, visit);
                walk(value, visit);
            }
        }
        Node::Comprehension(each) => {
            for part in [&each.range, &each.initial, &each.go_on, &each.step, &each.result] {
                walk(part, visit);
            }
        }
    }
}
