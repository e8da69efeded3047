//! From CEL text to our program.

use std::sync::Arc;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr as Tree, IdedExpr, LiteralValue, operators,
};
use cel::parser::Parser;

use super::functions::Function;
use super::program::{Arithmetic, Comparison, Comprehension, Node};
use super::{CompileError, Root};
use crate::kernel::json::Json;

/// Longest expression, in bytes.
const TEXT_BYTES_MAX: usize = 4_096;
/// Deepest nesting of brackets and of operations.
const DEPTH_MAX: usize = 64;
/// Most operators and dots: a long chain is a deep tree, and parser and lowering recurse on it.
const OPERATORS_MAX: usize = 100;
/// Largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 256 * 1024;

/// Parses and lowers `text`.
pub(super) fn compile(text: &str, roots: &[Root]) -> Result<Node, CompileError> {
    check_shape(text)?;
    let (tree, info) = Parser::new()
        .max_recursion_depth(96)
        .parse_with_source_info(text)
        .map_err(|errors| parse_error(text, &errors))?;
    let mut lowering = Lowering {
        text,
        roots,
        offsets: &|id| info.offset_for(id),
        locals: Vec::new(),
        depth: 0,
    };
    lowering.lower(&tree)
}

/// Refuses what could exhaust the parser: the bounds are far above what anyone writes.
fn check_shape(text: &str) -> Result<(), CompileError> {
    let whole = |message: String| CompileError {
        message,
        offset: 0,
        length: text.len(),
        help: None,
    };
    if text.trim().is_empty() {
        return Err(whole("expression is empty".to_owned()));
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err(whole(format!(
            "expression is {} bytes long, at most {TEXT_BYTES_MAX} are allowed",
            text.len()
        )));
    }
    let mut depth = 0_usize;
    let mut prefix_run = 0_usize;
    let operators = text
        .bytes()
        .filter(|byte| b"+-*/%<>=!&|?.".contains(byte))
        .count();
    if operators > OPERATORS_MAX {
        return Err(whole(format!(
            "expression has {operators} operators and dots, at most {OPERATORS_MAX} are allowed"
        )));
    }
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        prefix_run = if matches!(byte, b'!' | b'-' | b'?') {
            prefix_run + 1
        } else {
            0
        };
        if depth > DEPTH_MAX || prefix_run > DEPTH_MAX {
            return Err(whole(format!(
                "expression is nested deeper than {DEPTH_MAX} levels"
            )));
        }
    }
    Ok(())
}

fn parse_error(text: &str, errors: &cel::ParseErrors) -> CompileError {
    let first = errors.errors.first();
    let message = first.map_or_else(|| "not an expression".to_owned(), |error| error.msg.clone());
    let offset = first.map_or(0, |error| {
        let (line, column) = error.pos;
        let skipped: usize = text
            .split_inclusive('\n')
            .take(usize::try_from(line - 1).unwrap_or(0))
            .map(str::len)
            .sum();
        let within = text.get(skipped..).unwrap_or("");
        let column = usize::try_from(column - 1).unwrap_or(0);
        skipped + within.chars().take(column).map(char::len_utf8).sum::<usize>()
    });
    CompileError {
        message: message.lines().next().unwrap_or("not an expression").to_owned(),
        offset: offset.min(text.len()),
        length: 1.min(text.len().saturating_sub(offset)),
        help: None,
    }
}

struct Lowering<'t> {
    text: &'t str,
    roots: &'t [Root],
    offsets: &'t dyn Fn(u64) -> Option<(u32, u32)>,
    /// Names of the variables of the comprehensions around, by slot.
    locals: Vec<String>,
    depth: usize,
}

impl Lowering<'_> {
    fn lower(&mut self, tree: &IdedExpr) -> Result<Node, CompileError> {
        self.depth += 1;
        if self.depth > 4 * DEPTH_MAX {
            return Err(self.fault(tree.id, "expression is nested too deeply", None));
        }
        let node = self.lower_inner(tree)?;
        self.depth -= 1;
        Ok(node)
    }

    fn lower_inner(&mut self, tree: &IdedExpr) -> Result<Node, CompileError> {
        match &tree.expr {
            Tree::Literal(literal) => self.literal(tree.id, literal),
            Tree::Ident(name) => self.name(tree.id, name),
            Tree::Select(select) => {
                let operand = Box::new(self.lower(&select.operand)?);
                let field = Arc::from(select.field.as_str());
                Ok(if select.test {
                    Node::Has(operand, field)
                } else {
                    Node::Field(operand, field)
                })
            }
            Tree::List(list) => list
                .elements
                .iter()
                .map(|element| self.lower(element))
                .collect::<Result<_, _>>()
                .map(Node::List),
            Tree::Map(map) => map
                .entries
                .iter()
                .map(|entry| match &entry.expr {
                    EntryExpr::MapEntry(entry) => Ok((self.lower(&entry.key)?, self.lower(&entry.value)?)),
                    EntryExpr::StructField(_) => Err(self.fault(entry.id, "messages cannot be built", None)),
                })
                .collect::<Result<_, _>>()
                .map(Node::Map),
            Tree::Call(call) => self.call(tree.id, call),
            Tree::Comprehension(each) => self.comprehension(each),
            Tree::Struct(_) => Err(self.fault(tree.id, "messages cannot be built; write a map", None)),
            Tree::Unspecified => Err(self.fault(tree.id, "not an expression", None)),
        }
    }

    fn literal(&self, id: u64, literal: &LiteralValue) -> Result<Node, CompileError> {
        Ok(Node::Constant(match literal {
            LiteralValue::Null => Json::Null,
            LiteralValue::Boolean(answer) => Json::Bool(*answer.inner()),
            LiteralValue::Int(number) => Json::Int(*number.inner()),
            LiteralValue::Double(number) if number.inner().is_finite() => Json::Double(*number.inner()),
            LiteralValue::Double(_) => return Err(self.fault(id, "number is out of range", None)),
            LiteralValue::String(text) => Json::Str(text.inner().to_owned().into()),
            LiteralValue::UInt(_) => {
                return Err(self.fault(
                    id,
                    "unsigned integers do not exist here",
                    Some("leave out the u".to_owned()),
                ));
            }
            LiteralValue::Bytes(_) => return Err(self.fault(id, "bytes do not exist here", None)),
        }))
    }

    fn name(&self, id: u64, name: &str) -> Result<Node, CompileError> {
        if let Some(slot) = self.locals.iter().rposition(|local| local == name) {
            return Ok(Node::Local(slot));
        }
        if let Some(root) = self.roots.iter().find(|root| root.name() == name) {
            return Ok(Node::Root(*root));
        }
        if Root::ALL.iter().any(|root| root.name() == name) {
            return Err(self.fault(
                id,
                &format!("`{name}` cannot be read here"),
                Some(format!("here you can read {}", self.root_names())),
            ));
        }
        let locals = self.locals.iter().map(String::as_str);
        let candidates = self.roots.iter().map(|root| root.name()).chain(locals);
        let help = nearest(name, candidates).map_or_else(
            || format!("here you can read {}", self.root_names()),
            |near| format!("did you mean `{near}`?"),
        );
        Err(self.fault(id, &format!("unknown name `{name}`"), Some(help)))
    }

    fn root_names(&self) -> String {
        let names: Vec<&str> = self.roots.iter().map(|root| root.name()).collect();
        if names.is_empty() {
            "no names".to_owned()
        } else {
            names.join(", ")
        }
    }

    fn call(&mut self, id: u64, call: &CallExpr) -> Result<Node, CompileError> {
        let mut arguments = Vec::with_capacity(call.args.len() + 1);
        for argument in call.target.iter().map(AsRef::as_ref).chain(&call.args) {
            arguments.push(self.lower(argument)?);
        }
        let count = arguments.len();
        let mut arguments = arguments.into_iter().map(Box::new);
        let mut next = || {
            arguments
                .next()
                .unwrap_or_else(|| Box::new(Node::Constant(Json::Null)))
        };
        let operator = match (call.func_name.as_str(), count) {
            (operators::LOGICAL_AND, 2) => Some(Node::And(next(), next())),
            (operators::LOGICAL_OR, 2) => Some(Node::Or(next(), next())),
            (operators::LOGICAL_NOT, 1) => Some(Node::Not(next())),
            (operators::NEGATE, 1) => Some(match *next() {
                Node::Constant(Json::Int(number)) if number != i64::MIN => Node::Constant(Json::Int(-number)),
                Node::Constant(Json::Double(number)) => Node::Constant(Json::Double(-number)),
                operand => Node::Negate(Box::new(operand)),
            }),
            // Only macros write this: it is false exactly where its operand is definitely false.
            (operators::NOT_STRICTLY_FALSE, 1) => Some(*next()),
            (operators::CONDITIONAL, 3) => Some(Node::Condition(next(), next(), next())),
            (operators::INDEX, 2) => Some(Node::Index(next(), next())),
            (operators::IN, 2) => Some(Node::In(next(), next())),
            (name, 2) => comparison(name)
                .map(|comparison| Node::Compare(comparison, next(), next()))
                .or_else(|| arithmetic(name).map(|arithmetic| Node::Arithmetic(arithmetic, next(), next()))),
            _ => None,
        };
        if let Some(node) = operator {
            return Ok(node);
        }
        let rest: Vec<Node> = arguments.map(|node| *node).collect();
        self.function(id, &call.func_name, rest)
    }

    fn function(&self, id: u64, name: &str, arguments: Vec<Node>) -> Result<Node, CompileError> {
        if name == "matches" && arguments.len() == 2 {
            return self.matches(id, arguments);
        }
        let Some(function) = Function::ALL.iter().find(|function| function.name() == name) else {
            let names = Function::ALL.iter().map(|function| function.name());
            let help = nearest(
                name,
                names.chain(["matches", "has", "all", "exists", "exists_one", "map", "filter"]),
            )
            .map(|near| format!("did you mean `{near}`?"));
            return Err(self.fault(id, &format!("unknown function `{name}`"), help));
        };
        if arguments.len() != function.arguments() {
            let message = format!(
                "`{name}` takes {} argument(s), found {}",
                function.arguments(),
                arguments.len()
            );
            return Err(self.fault(id, &message, None));
        }
        Ok(Node::Call(*function, arguments))
    }

    fn matches(&self, id: u64, arguments: Vec<Node>) -> Result<Node, CompileError> {
        let mut arguments = arguments.into_iter();
        match (arguments.next(), arguments.next()) {
            (Some(text), Some(Node::Constant(Json::Str(pattern)))) => {
                let regex = regex::RegexBuilder::new(&pattern)
                    .size_limit(PATTERN_BYTES_MAX)
                    .build()
                    .map_err(|error| self.fault(id, &pattern_error(&error), None))?;
                Ok(Node::Matches(Box::new(text), regex))
            }
            _ => Err(self.fault(id, "the pattern of `matches` must be a literal string", None)),
        }
    }

    fn comprehension(&mut self, each: &ComprehensionExpr) -> Result<Node, CompileError> {
        let range = self.lower(&each.iter_range)?;
        let initial = self.lower(&each.accu_init)?;
        let element = self.locals.len();
        self.locals.push(each.iter_var.clone());
        self.locals.push(each.accu_var.clone());
        let parts = (|| {
            Ok((
                self.lower(&each.loop_cond)?,
                self.lower(&each.loop_step)?,
                self.lower(&each.result)?,
            ))
        })();
        self.locals.truncate(element);
        let (go_on, step, result) = parts?;
        Ok(Node::Comprehension(Box::new(Comprehension {
            range,
            element,
            gathered: element + 1,
            initial,
            go_on,
            step,
            result,
        })))
    }

    fn fault(&self, id: u64, message: &str, help: Option<String>) -> CompileError {
        let (start, stop) = (self.offsets)(id).unwrap_or((0, 0));
        let offset = (start as usize).min(self.text.len());
        // The parser names the last byte, not the one behind it.
        let end = (stop as usize + 1).clamp(offset, self.text.len());
        CompileError {
            message: message.to_owned(),
            offset,
            length: (end - offset).max(1).min(self.text.len() - offset),
            help,
        }
    }
}

fn pattern_error(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "the pattern is too large".to_owned(),
        other => {
            let text = other.to_string();
            let reason = text.lines().last().unwrap_or_default().trim();
            format!(
                "the pattern is not a regular expression: {}",
                reason.trim_start_matches("error: ")
            )
        }
    }
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        operators::EQUALS => Comparison::Equal,
        operators::NOT_EQUALS => Comparison::NotEqual,
        operators::LESS => Comparison::Less,
        operators::LESS_EQUALS => Comparison::LessOrEqual,
        operators::GREATER => Comparison::Greater,
        operators::GREATER_EQUALS => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

fn arithmetic(name: &str) -> Option<Arithmetic> {
    Some(match name {
        operators::ADD => Arithmetic::Add,
        operators::SUBSTRACT => Arithmetic::Subtract,
        operators::MULTIPLY => Arithmetic::Multiply,
        operators::DIVIDE => Arithmetic::Divide,
        operators::MODULO => Arithmetic::Modulo,
        _ => return None,
    })
}

/// The candidate that differs least from `name`, if it is near enough to be meant.
pub fn nearest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(name.len()) / 3 + 1)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, delete, replace, swap neighbours) between two texts.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) =
        (left.chars().take(64).collect(), right.chars().take(64).collect());
    let mut rows = vec![vec![0; right.len() + 1]; left.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for j in 0..=right.len() {
        rows[0][j] = j;
    }
    for i in 1..=left.len() {
        for j in 1..=right.len() {
            let replace = rows[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[left.len()][right.len()]
}
