//! Expressions: CEL text, parsed by the crate `cel`, lowered to our own program, evaluated over borrowed
//! JSON under a step budget.
//!
//! Total: an expression has no host functions, no clock and no unbounded loop; every failure is a value.

mod budget;
mod compare;
mod eval;
mod fold;
mod functions;
mod loops;
mod lower;
mod macros;
mod nearest;
mod output;
mod parse;
mod places;
mod program;
mod scan;
mod template;
mod time;
pub mod types;
mod value;

use std::sync::Arc;

pub use functions::{UID_SEED, percent_encode};
pub use nearest::{nearest, nearest_by};
pub use output::write_sorted;
pub use template::{Template, TextPart};

use super::json::Json;
use budget::Spender;
use eval::Evaluation;
use places::Place;
use program::Node;
use value::Value;

/// The names an expression may begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Root {
    /// `event.data`, `event.type`, `event.id`, `event.time`, ...
    Event,
    /// The user's state.
    State,
    /// The instance key, a string.
    Key,
    /// `steps.<name>.status`, `.error`, `.attempt`.
    Steps,
    /// The JSON result of the step at hand.
    Result,
    /// What was sent for the step at hand.
    Input,
    /// `failure.code`, `failure.message`, `failure.step`.
    Failure,
    /// `error.class`, `error.message` of the step that failed.
    Error,
    /// What the signal says, and `signal.name`, `signal.by`, `signal.time`.
    Signal,
    /// `command.id`, `command.idempotency_key`, `command.attempt`, `command.tenant`, `command.trace_id`:
    /// effects only.
    Command,
    /// `response.status`, `response.headers`, `response.body`: effects only.
    Response,
    /// Named secrets: effects only.
    Secrets,
    /// Base URLs of the manifest, `upstreams.<name>`: effects only.
    Upstreams,
    /// The item of the loop around, under the name that the loop gives it.
    Item,
    /// Its place in the list, from 0.
    Index,
    /// `record.seq`: number of inputs applied, the present one included.
    Record,
    /// How the instance ends, in one word: in `finally` only.
    Outcome,
    /// `late.reason` of a success for which nobody waited any more, else null: compensations only.
    Late,
    /// `wait.index`: which of several that a step waited for has come.
    Wait,
}

impl Root {
    pub const ALL: [Self; 19] = [
        Self::Event,
        Self::State,
        Self::Key,
        Self::Steps,
        Self::Result,
        Self::Input,
        Self::Failure,
        Self::Error,
        Self::Signal,
        Self::Command,
        Self::Response,
        Self::Secrets,
        Self::Upstreams,
        Self::Item,
        Self::Index,
        Self::Record,
        Self::Outcome,
        Self::Late,
        Self::Wait,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::State => "state",
            Self::Key => "key",
            Self::Steps => "steps",
            Self::Result => "result",
            Self::Input => "input",
            Self::Failure => "failure",
            Self::Error => "error",
            Self::Signal => "signal",
            Self::Command => "command",
            Self::Response => "response",
            Self::Secrets => "secrets",
            Self::Upstreams => "upstreams",
            Self::Item => "item",
            Self::Index => "index",
            Self::Record => "record",
            Self::Outcome => "outcome",
            Self::Late => "late",
            Self::Wait => "wait",
        }
    }
}

/// What the roots are bound to during one evaluation. An unbound root reads as an error.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'a> {
    bindings: [Option<&'a Json<'a>>; Root::ALL.len()],
}

impl<'a> Scope<'a> {
    #[must_use]
    pub fn bind(mut self, root: Root, value: &'a Json<'a>) -> Self {
        self.bindings[root as usize] = Some(value);
        self
    }

    #[must_use]
    pub fn get(&self, root: Root) -> Option<&'a Json<'a>> {
        self.bindings[root as usize]
    }
}

/// Steps that an evaluation may still take. Shared by all expressions of one transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub steps: u64,
}

/// Why a text is not an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CompileError {
    pub message: String,
    /// Byte offset and length within the expression text.
    pub offset: usize,
    pub length: usize,
    /// What to write instead, if that can be guessed.
    pub help: Option<String>,
    /// It makes sense in other places.
    pub is_elsewhere: bool,
}

impl CompileError {
    fn whole(text: &str, message: String) -> Self {
        Self {
            message,
            offset: 0,
            length: text.len(),
            help: None,
            is_elsewhere: false,
        }
    }
}

/// Why an evaluation failed. Deterministic: the same inputs fail the same way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The steps that were left when the expression began did not suffice.
    #[error("expression needs more than the {max} steps that are left")]
    Budget { max: u64 },
    #[error("no such field {name:?} in {place}")]
    NoField { name: String, place: String },
    #[error("{operation} does not take {found}")]
    Type { operation: String, found: String },
    #[error("overflow in {operation}")]
    Overflow { operation: String },
    #[error("{0}")]
    Other(String),
}

/// A set of roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roots(u32);

impl Roots {
    #[must_use]
    pub const fn contains(self, root: Root) -> bool {
        self.0 & (1 << root as u32) != 0
    }

    #[must_use]
    pub const fn with(self, root: Root) -> Self {
        Self(self.0 | 1 << root as u32)
    }

    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A compiled expression.
#[derive(Debug, Clone)]
pub struct Expr {
    text: Arc<str>,
    program: Arc<Node>,
    /// Where each operation of the program stands in the text.
    places: Arc<[Place]>,
    /// What it reads, asked before every evaluation.
    roots: Roots,
}

impl Expr {
    /// Parses and lowers `text`, which may begin only with `roots`.
    ///
    /// # Errors
    /// [`CompileError`] with the place within `text`.
    pub fn compile(text: &str, roots: &[Root]) -> Result<Self, CompileError> {
        Self::compile_in(text, roots, None)
    }

    /// The same within a loop over a list, whose item is called `item`; `index` is then readable, too.
    ///
    /// # Errors
    /// As [`Expr::compile`].
    pub fn compile_in(text: &str, roots: &[Root], item: Option<&str>) -> Result<Self, CompileError> {
        let (expr, faults) = Self::read_in(text, roots, item);
        match faults.into_iter().next() {
            Some(first) => Err(first),
            None => Ok(expr),
        }
    }

    /// The same with all that is wrong with the text. Nothing is known of its invalid parts, so that the rest
    /// can be checked; it is not to be evaluated.
    #[must_use]
    pub fn read_in(text: &str, roots: &[Root], item: Option<&str>) -> (Self, Vec<CompileError>) {
        match lower::compile(text, roots, item) {
            Ok((program, places, faults)) => (Self::of(text, program, places), faults),
            Err(fault) => (Self::unknown(), vec![fault]),
        }
    }

    /// Stands for an expression that cannot be read: nothing is known about what it gives.
    #[must_use]
    pub fn unknown() -> Self {
        let mut places = places::Places::default();
        places.open();
        Self::of("", Node::Path(lower::UNKNOWN, Vec::new()), places)
    }

    fn of(text: &str, program: Node, places: places::Places) -> Self {
        let mut read = Roots::default();
        program.walk(&mut |node| {
            if let Node::Path(root, _) = node {
                read = read.with(*root);
            }
        });
        Self {
            roots: read,
            program: Arc::new(program),
            places: Arc::from(places.0),
            text: Arc::from(text),
        }
    }

    /// The text that it was compiled from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    fn places(&self) -> &[Place] {
        &self.places
    }

    /// Whether the expression reads `root`.
    #[must_use]
    pub const fn reads(&self, root: Root) -> bool {
        self.roots.contains(root)
    }

    /// All that the expression reads.
    #[must_use]
    pub const fn roots(&self) -> Roots {
        self.roots
    }

    /// The fields that the expression reads or asks for directly below `root`: `x` of `root.x`, `root["x"]` and
    /// `has(root.x)`.
    #[must_use]
    pub fn fields_of(&self, root: Root) -> Vec<String> {
        let mut fields = Vec::new();
        self.program.walk(&mut |node| match node {
            Node::Path(read, path) if *read == root => fields.extend(path.first().map(ToString::to_string)),
            Node::Has(operand, field)
                if matches!(&**operand, Node::Path(read, path) if *read == root && path.is_empty()) =>
            {
                fields.push(field.to_string());
            }
            _ => {}
        });
        fields
    }

    /// For which members of `root` it may read `member`: `x` of `root.x.member`, of `root.x` as a whole, and none where all
    /// of the root is read.
    #[must_use]
    pub fn members_read(&self, root: Root, member: &str) -> Vec<Option<String>> {
        let mut names = Vec::new();
        self.program.walk(&mut |node| match node {
            Node::Path(read, path) if *read == root => match path.as_slice() {
                [] => names.push(None),
                [name] => names.push(Some(name.to_string())),
                [name, below, ..] if **below == *member => names.push(Some(name.to_string())),
                _ => {}
            },
            _ => {}
        });
        names
    }

    /// Whether the whole expression is a call of `function`, or a constant.
    #[must_use]
    pub fn is_call_of(&self, function: &str) -> bool {
        match &*self.program {
            Node::Call(called, _) => called.name() == function,
            Node::Constant(_) => true,
            _ => false,
        }
    }

    /// What a condition always gives, for all that it reads.
    #[must_use]
    pub fn certain(&self) -> Option<bool> {
        certain(&self.program)
    }

    /// Evaluates to a JSON value that borrows from the scope where it can.
    ///
    /// # Errors
    /// [`EvalError`]; the budget keeps what was spent.
    pub fn eval<'a>(&'a self, scope: &Scope<'a>, budget: &mut Budget) -> Result<Json<'a>, EvalError> {
        let value = self.value(scope, budget)?;
        output::to_json(&value, &mut Spender::new(budget))
    }

    /// Evaluates to a boolean.
    ///
    /// # Errors
    /// As [`Expr::eval`], and where the value is not a boolean.
    pub fn test(&self, scope: &Scope<'_>, budget: &mut Budget) -> Result<bool, EvalError> {
        self.value(scope, budget)?.as_bool("a condition")
    }

    fn value<'a>(&'a self, scope: &Scope<'a>, budget: &mut Budget) -> Result<Value<'a>, EvalError> {
        let mut evaluation = Evaluation {
            scope,
            budget: Spender::new(budget),
            locals: Vec::new(),
        };
        evaluation.eval(&self.program)
    }
}

/// One side of `&&` and `||` may decide alone.
fn certain(node: &Node) -> Option<bool> {
    match node {
        Node::Constant(Json::Bool(answer)) => Some(*answer),
        Node::Not(operand) => certain(operand).map(|answer| !answer),
        Node::And(left, right) => match (certain(left), certain(right)) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), right) => right,
            (left, Some(true)) => left,
            (None, None) => None,
        },
        Node::Or(left, right) => match (certain(left), certain(right)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), right) => right,
            (left, Some(false)) => left,
            (None, None) => None,
        },
        Node::Condition(test, yes, no) => match certain(test) {
            Some(true) => certain(yes),
            Some(false) => certain(no),
            None => certain(yes).filter(|yes| certain(no) == Some(*yes)),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests;
