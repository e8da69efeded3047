//! The lowered form of an expression: names resolved, constants computed, patterns compiled.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use regex::Regex;

use super::Root;
use super::functions::Function;
use crate::json::Json;

/// One operation. Every operation that is evaluated costs a step of the budget.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Constant(Json<'static>),
    Timestamp(Timestamp),
    Duration(SignedDuration),
    /// `root.field.field`: most of what expressions do, in one operation.
    Path(Root, Vec<Arc<str>>),
    /// The element of the loop at this slot, and what the text calls it.
    Local(usize, Arc<str>),
    Field(Box<Node>, Arc<str>),
    /// `has(x.field)`.
    Has(Box<Node>, Arc<str>),
    Index(Box<Node>, Box<Node>),
    /// `x.?field`: an optional.
    OptionalField(Box<Node>, Arc<str>),
    /// `x[?index]`: an optional.
    OptionalIndex(Box<Node>, Box<Node>),
    /// `?x`, an item of a list or a value of a map that is left out where it is absent.
    IfPresent(Box<Node>),
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
    Matches(Box<Node>, Box<Pattern>),
    Call(Function, Vec<Node>),
    Loop(Box<Loop>),
}

/// A compiled regular expression. Searching is linear in the text, with a factor that grows with the pattern.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    pub regex: Regex,
    /// Steps for each unit of text.
    pub weight: usize,
}

/// A macro over the items of a list or the keys of a map, or over what an optional holds.
#[derive(Debug, Clone)]
pub(super) struct Loop {
    pub kind: LoopKind,
    pub range: Node,
    /// Where the element is found.
    pub slot: usize,
    /// There are two elements: the index or key is found at `slot`, the item or value behind it.
    pub pairs: bool,
    /// What `map` and `filter` take only some elements by.
    pub condition: Option<Node>,
    pub body: Node,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoopKind {
    All,
    Exists,
    ExistsOne,
    /// `map`, and `filter` as a map of the element to itself; `transformList`.
    Map,
    /// `transformMap`: the body is the value under the same key.
    TransformMap,
    /// `transformMapEntry`: the body is a map whose entries are taken.
    TransformMapEntry,
    /// `sortBy`: the body is what an item is sorted by.
    SortBy,
    /// `optMap` over an optional.
    OptMap,
    /// `optFlatMap`, whose body is an optional itself.
    OptFlatMap,
    /// `cel.bind`: the element is all of `range`.
    Bind,
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
            Self::Equal => "`==`",
            Self::NotEqual => "`!=`",
            Self::Less => "`<`",
            Self::LessOrEqual => "`<=`",
            Self::Greater => "`>`",
            Self::GreaterOrEqual => "`>=`",
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
            Self::Add => "`+`",
            Self::Subtract => "`-`",
            Self::Multiply => "`*`",
            Self::Divide => "`/`",
            Self::Modulo => "`%`",
        }
    }
}

impl Node {
    pub const fn is_constant(&self) -> bool {
        matches!(self, Self::Constant(_) | Self::Timestamp(_) | Self::Duration(_))
    }

    /// Calls `visit` for the operations right below this one.
    pub fn for_each_child<'n>(&'n self, visit: &mut dyn FnMut(&'n Self)) {
        match self {
            Self::Constant(_) | Self::Timestamp(_) | Self::Duration(_) | Self::Path(..) | Self::Local(..) => {
            }
            Self::Field(operand, _)
            | Self::OptionalField(operand, _)
            | Self::IfPresent(operand)
            | Self::Has(operand, _)
            | Self::Not(operand)
            | Self::Negate(operand)
            | Self::Matches(operand, _) => visit(operand),
            Self::Index(a, b)
            | Self::OptionalIndex(a, b)
            | Self::And(a, b)
            | Self::Or(a, b)
            | Self::Compare(_, a, b)
            | Self::Arithmetic(_, a, b)
            | Self::In(a, b) => {
                visit(a);
                visit(b);
            }
            Self::Condition(a, b, c) => {
                visit(a);
                visit(b);
                visit(c);
            }
            Self::List(items) | Self::Call(_, items) => items.iter().for_each(visit),
            Self::Map(entries) => {
                for (key, value) in entries {
                    visit(key);
                    visit(value);
                }
            }
            Self::Loop(each) => {
                visit(&each.range);
                each.condition.iter().for_each(&mut *visit);
                visit(&each.body);
            }
        }
    }

    /// Calls `visit` for this operation and everything below it.
    pub fn walk(&self, visit: &mut dyn FnMut(&Self)) {
        visit(self);
        self.for_each_child(&mut |child| child.walk(visit));
    }
}
