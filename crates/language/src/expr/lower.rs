//! From the syntax tree of CEL to our program.

mod calls;

use std::sync::Arc;

use cel::common::ast::{EntryExpr, Expr as Tree, IdedExpr, LiteralValue, SelectExpr, SourceInfo, operators};
use regex::{Regex, RegexBuilder};

use super::fold::fold;
use super::nearest::nearest;
use super::parse::{parse, with_stack};
use super::places::{Place, Places};
use super::program::{Arithmetic, Comparison, Node, Pattern};
use super::{CompileError, Root};
use crate::json::Json;

/// What stands where an expression is invalid: a root that nothing is known about anywhere.
pub(super) const UNKNOWN: Root = Root::Signal;
/// Most operations inside each other: evaluation recurses on them on any thread's stack.
const DEPTH_MAX: usize = 128;
/// Largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// Patterns up to this size cost what other text operations cost.
const PATTERN_BYTES_UNIT: usize = 16 * 1024;

/// Most mistakes of one expression that are told.
const FAULTS_MAX: usize = 8;

/// Parses and lowers `text`, which may begin only with `roots`, and within a loop with the name of its item. What
/// is invalid in it is told beside it; nothing is known about what stands there.
pub(super) fn compile(
    text: &str,
    roots: &[Root],
    item: Option<&str>,
) -> Result<(Node, Places, Vec<CompileError>), CompileError> {
    with_stack(text, || {
        let (tree, source) = parse(text)?;
        let mut lowering = Lowering {
            text,
            roots,
            item,
            source: &source,
            locals: Vec::new(),
            depth: 0,
            places: Places::default(),
            faults: Vec::new(),
        };
        let program = lowering.lower(&tree);
        Ok((program, lowering.places, lowering.faults))
    })
}

struct Lowering<'t> {
    text: &'t str,
    roots: &'t [Root],
    item: Option<&'t str>,
    source: &'t SourceInfo,
    /// Names of the elements of the loops around, by slot.
    locals: Vec<Arc<str>>,
    depth: usize,
    places: Places,
    faults: Vec<CompileError>,
}

impl Lowering<'_> {
    fn lower(&mut self, tree: &IdedExpr) -> Node {
        let at = self.places.open();
        let node = if self.depth == DEPTH_MAX {
            let message = format!("more than {DEPTH_MAX} operations inside each other");
            Err(self.fault(tree.id, &message, None))
        } else {
            self.depth += 1;
            let node = self.node(tree);
            self.depth -= 1;
            node
        };
        let node = node.unwrap_or_else(|fault| {
            // The same mistake is made again wherever the same is meant.
            if self.faults.len() < FAULTS_MAX && self.faults.iter().all(|told| told.message != fault.message)
            {
                self.faults.push(fault);
            }
            Node::Path(UNKNOWN, Vec::new())
        });
        self.place(at, tree.id, &node);
        node
    }

    fn node(&mut self, tree: &IdedExpr) -> Result<Node, CompileError> {
        let node = match &tree.expr {
            Tree::Literal(literal) => Node::Constant(self.literal(tree.id, literal)?),
            Tree::Ident(name) => self.name(tree.id, name)?,
            Tree::Select(select) => self.select(select),
            Tree::List(list) => {
                let items = list.elements.iter().enumerate();
                Node::List(
                    items
                        .map(|(at, item)| self.item(item, list.optional_indices.contains(&at)))
                        .collect(),
                )
            }
            Tree::Map(map) => {
                let entries = map.entries.iter().map(|entry| match &entry.expr {
                    EntryExpr::MapEntry(entry) => {
                        Ok((self.lower(&entry.key), self.item(&entry.value, entry.optional)))
                    }
                    EntryExpr::StructField(_) => Err(self.fault(entry.id, "messages cannot be built", None)),
                });
                Node::Map(entries.collect::<Result<_, _>>()?)
            }
            Tree::Call(call) => self.call(tree.id, call)?,
            Tree::Comprehension(each) => self.comprehension(tree.id, each)?,
            Tree::Struct(_) => {
                return Err(self.fault(tree.id, "messages cannot be built; write a map", None));
            }
            Tree::Unspecified => return Err(self.fault(tree.id, "not an expression", None)),
        };
        fold(node).map_err(|error| self.fault(tree.id, &error.to_string(), None))
    }

    /// Notes where `node` stands, for findings about its type.
    fn place(&mut self, at: usize, id: u64, node: &Node) {
        let (first, last) = self.source.offset_for(id).unwrap_or((0, 0));
        let mut place = Place {
            start: self.text.floor_char_boundary(first as usize),
            end: self.text.ceil_char_boundary(last as usize + 1),
        };
        match node {
            Node::Path(_, fields) if !fields.is_empty() => {
                // The token is the last dot or bracket; the path begins with its root.
                let root = self.places.0.get(at + 1).copied().unwrap_or(place);
                let field = fields.last().map_or(0, |field| field.len());
                let rest = &self.text[place.end..];
                let end = fields.last().and_then(|field| rest.find(&**field));
                place = Place {
                    start: root.start.min(place.start),
                    end: place.end + end.unwrap_or(0) + field,
                };
                place.end = self.text.ceil_char_boundary(place.end);
            }
            // The pattern is compiled and is no part any more.
            Node::Matches(..) => {
                self.places.0.pop();
            }
            _ => {}
        }
        let has_parts = !node.is_constant() && !matches!(node, Node::Path(..) | Node::Local(..));
        self.places.close(at, place, has_parts);
    }

    /// An item of a list or a value of a map, which may be one that is left out.
    fn item(&mut self, tree: &IdedExpr, optional: bool) -> Node {
        if !optional {
            return self.lower(tree);
        }
        let at = self.places.open();
        let node = Node::IfPresent(Box::new(self.lower(tree)));
        self.place(at, tree.id, &node);
        node
    }

    fn all<'e>(&mut self, trees: impl IntoIterator<Item = &'e IdedExpr>) -> Vec<Node> {
        trees.into_iter().map(|tree| self.lower(tree)).collect()
    }

    fn literal(&self, id: u64, literal: &LiteralValue) -> Result<Json<'static>, CompileError> {
        Ok(match literal {
            LiteralValue::Null => Json::Null,
            LiteralValue::Boolean(answer) => Json::Bool(*answer.inner()),
            LiteralValue::Int(number) => Json::Int(*number.inner()),
            LiteralValue::Double(number) if number.inner().is_finite() => Json::Double(*number.inner()),
            LiteralValue::Double(_) => return Err(self.fault(id, "number is out of range", None)),
            LiteralValue::String(text) => Json::Str(text.inner().to_owned().into()),
            LiteralValue::UInt(_) => {
                let help = Some("leave out the u".to_owned());
                return Err(self.fault(id, "unsigned integers do not exist here", help));
            }
            LiteralValue::Bytes(_) => return Err(self.fault(id, "bytes do not exist here", None)),
        })
    }

    fn name(&self, id: u64, name: &str) -> Result<Node, CompileError> {
        if let Some(slot) = self.locals.iter().rposition(|local| **local == *name) {
            return Ok(Node::Local(slot, Arc::clone(&self.locals[slot])));
        }
        if self.item == Some(name) {
            return Ok(Node::Path(Root::Item, Vec::new()));
        }
        if self.item.is_some() && name == Root::Index.name() {
            return Ok(Node::Path(Root::Index, Vec::new()));
        }
        if let Some(root) = self.roots.iter().find(|root| root.name() == name) {
            return Ok(Node::Path(*root, Vec::new()));
        }
        let readable = format!("here you can read {}", self.root_names());
        if Root::ALL.iter().any(|root| root.name() == name) {
            let fault = self.fault(id, &format!("`{name}` cannot be read here"), Some(readable));
            return Err(CompileError {
                is_elsewhere: true,
                ..fault
            });
        }
        let locals = self.locals.iter().map(|local| &**local);
        let names = self.roots.iter().map(|root| root.name());
        let candidates = names.chain(self.item).chain(locals);
        let help = nearest(name, candidates).map_or(readable, |near| format!("did you mean `{near}`?"));
        Err(self.fault(id, &format!("unknown name `{name}`"), Some(help)))
    }

    fn root_names(&self) -> String {
        let names = self.roots.iter().map(|root| root.name());
        let names: Vec<&str> = names.chain(self.item).collect();
        if names.is_empty() {
            "no names".to_owned()
        } else {
            names.join(", ")
        }
    }

    fn select(&mut self, select: &SelectExpr) -> Node {
        let operand = self.lower(&select.operand);
        if select.test {
            return Node::Has(Box::new(operand), Arc::from(select.field.as_str()));
        }
        member(operand, &select.field)
    }

    /// The error at the name of the function instead of the bracket behind it, by which the parser knows a call.
    fn at_name(&self, name: &str, error: CompileError) -> CompileError {
        let name = name.rsplit('.').next().unwrap_or(name);
        match self.text[..error.offset].trim_end().strip_suffix(name) {
            Some(before) => CompileError {
                offset: before.len(),
                length: name.len(),
                ..error
            },
            None => error,
        }
    }

    fn fault(&self, id: u64, message: &str, help: Option<String>) -> CompileError {
        // The parser names the last byte, not the one behind it.
        let (first, last) = self.source.offset_for(id).unwrap_or((0, 0));
        let offset = self.text.floor_char_boundary(first as usize);
        let end = self.text.ceil_char_boundary(last as usize + 1);
        CompileError {
            message: message.to_owned(),
            offset,
            length: end.saturating_sub(offset),
            help,
            is_elsewhere: false,
        }
    }
}

/// `operand.field`, as part of a path where it is one.
fn member(operand: Node, field: &str) -> Node {
    match operand {
        Node::Path(root, mut fields) => {
            fields.push(Arc::from(field));
            Node::Path(root, fields)
        }
        operand => Node::Field(Box::new(operand), Arc::from(field)),
    }
}

/// The operation of two operands called `name`, or the operands back.
fn binary(name: &str, left: Node, right: Node) -> Result<Node, (Node, Node)> {
    if let (operators::INDEX, Node::Path(..), Node::Constant(Json::Str(field))) = (name, &left, &right) {
        return Ok(member(left, &field.clone()));
    }
    let (left, right) = (Box::new(left), Box::new(right));
    Ok(match name {
        operators::LOGICAL_AND => Node::And(left, right),
        operators::LOGICAL_OR => Node::Or(left, right),
        operators::INDEX => Node::Index(left, right),
        operators::OPT_INDEX => Node::OptionalIndex(left, right),
        operators::IN => Node::In(left, right),
        operators::EQUALS => Node::Compare(Comparison::Equal, left, right),
        operators::NOT_EQUALS => Node::Compare(Comparison::NotEqual, left, right),
        operators::LESS => Node::Compare(Comparison::Less, left, right),
        operators::LESS_EQUALS => Node::Compare(Comparison::LessOrEqual, left, right),
        operators::GREATER => Node::Compare(Comparison::Greater, left, right),
        operators::GREATER_EQUALS => Node::Compare(Comparison::GreaterOrEqual, left, right),
        operators::ADD => Node::Arithmetic(Arithmetic::Add, left, right),
        operators::SUBSTRACT => Node::Arithmetic(Arithmetic::Subtract, left, right),
        operators::MULTIPLY => Node::Arithmetic(Arithmetic::Multiply, left, right),
        operators::DIVIDE => Node::Arithmetic(Arithmetic::Divide, left, right),
        operators::MODULO => Node::Arithmetic(Arithmetic::Modulo, left, right),
        _ => return Err((*left, *right)),
    })
}

/// Compiles a pattern into as little space as it needs, which tells what a search costs at worst.
fn compiled(pattern: &str) -> Result<Pattern, regex::Error> {
    let build = |bytes: usize| -> Result<Regex, regex::Error> {
        RegexBuilder::new(pattern).size_limit(bytes).build()
    };
    let mut weight = 1;
    loop {
        match build(weight * PATTERN_BYTES_UNIT) {
            Ok(regex) => return Ok(Pattern { regex, weight }),
            Err(regex::Error::CompiledTooBig(_)) if weight * PATTERN_BYTES_UNIT < PATTERN_BYTES_MAX => {
                weight *= 2;
            }
            Err(error) => return Err(error),
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
