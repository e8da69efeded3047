//! Expressions: CEL text, parsed by the crate `cel`, lowered to our own program, evaluated over borrowed
//! JSON under a step budget.
//!
//! Total: an expression has no host functions, no clock and no unbounded loop; every failure is a value.

use super::json::Json;

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
    /// `command.id`, `command.idempotency_key`, `command.attempt`, `command.tenant`, `command.trace_id`:
    /// effects only.
    Command,
    /// `response.status`, `response.headers`, `response.body`: effects only.
    Response,
    /// Named secrets: effects only.
    Secrets,
    /// Base URLs of the manifest, `upstreams.<name>`: effects only.
    Upstreams,
}

impl Root {
    pub const ALL: [Self; 11] = [
        Self::Event,
        Self::State,
        Self::Key,
        Self::Steps,
        Self::Result,
        Self::Input,
        Self::Failure,
        Self::Command,
        Self::Response,
        Self::Secrets,
        Self::Upstreams,
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
            Self::Command => "command",
            Self::Response => "response",
            Self::Secrets => "secrets",
            Self::Upstreams => "upstreams",
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
}

/// Why an evaluation failed. Deterministic: the same inputs fail the same way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    #[error("expression budget of {max} steps is used up")]
    Budget { max: u64 },
    #[error("no such field {name:?} in {place}")]
    NoField { name: String, place: String },
    #[error("{operation} does not take {found}")]
    Type { operation: String, found: String },
    #[error("integer overflow in {operation}")]
    Overflow { operation: String },
    #[error("{0}")]
    Other(String),
}

/// A compiled expression.
#[derive(Debug, Clone)]
pub struct Expr {
    text: std::sync::Arc<str>,
}

impl Expr {
    /// Parses and lowers `text`, which may begin only with `roots`.
    ///
    /// # Errors
    /// [`CompileError`] with the place within `text`.
    pub fn compile(_text: &str, _roots: &[Root]) -> Result<Self, CompileError> {
        todo!()
    }

    /// The text that it was compiled from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the expression reads `root`.
    #[must_use]
    pub fn reads(&self, _root: Root) -> bool {
        todo!()
    }

    /// Evaluates to a JSON value that borrows from the scope where it can.
    ///
    /// # Errors
    /// [`EvalError`]; the budget keeps what was spent.
    pub fn eval<'a>(&self, _scope: &Scope<'a>, _budget: &mut Budget) -> Result<Json<'a>, EvalError> {
        todo!()
    }

    /// Evaluates to a boolean.
    ///
    /// # Errors
    /// As [`Expr::eval`], and where the value is not a boolean.
    pub fn test(&self, scope: &Scope<'_>, budget: &mut Budget) -> Result<bool, EvalError> {
        match self.eval(scope, budget)? {
            Json::Bool(answer) => Ok(answer),
            other => Err(EvalError::Type {
                operation: "a condition".to_owned(),
                found: format!("{other:?}"),
            }),
        }
    }
}

/// JSON with expressions in it: what `with:`, `set:`, `payload:`, `body:` and `result:` hold.
#[derive(Debug, Clone)]
pub enum Template {
    /// Constant JSON, compact.
    Constant(Vec<u8>),
    /// A whole string that is `${expr}`: the value of the expression, whatever its type.
    Value(Expr),
    /// Text with `${expr}` in it: a string, numbers and booleans printed as in JSON.
    Text(Vec<TextPart>),
    List(Vec<Template>),
    /// Members in the order of the text; rendered in code-point order of their keys.
    Map(Vec<(String, Template)>),
}

#[derive(Debug, Clone)]
pub enum TextPart {
    Literal(String),
    Expr(Expr),
}

impl Template {
    /// Compiles a string of a definition: constant text, one `${expr}`, or text with `${expr}` in it.
    /// `$${` stands for a literal `${`.
    ///
    /// # Errors
    /// [`CompileError`] with the place within `text`.
    pub fn compile_text(_text: &str, _roots: &[Root]) -> Result<Self, CompileError> {
        todo!()
    }

    #[must_use]
    pub fn reads(&self, _root: Root) -> bool {
        todo!()
    }

    /// Appends the rendered JSON to `out`, maps with sorted keys.
    ///
    /// # Errors
    /// [`EvalError`]; `out` then holds a part that is to be thrown away.
    pub fn render(
        &self,
        _scope: &Scope<'_>,
        _budget: &mut Budget,
        _out: &mut Vec<u8>,
    ) -> Result<(), EvalError> {
        todo!()
    }

    /// Renders to a string: the text itself for strings, JSON for numbers and booleans.
    ///
    /// # Errors
    /// [`EvalError`], also where the value is null, a list or a map.
    pub fn render_text(&self, _scope: &Scope<'_>, _budget: &mut Budget) -> Result<String, EvalError> {
        todo!()
    }
}
