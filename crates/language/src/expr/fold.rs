//! What is constant is computed once, when the expression is compiled.

use super::budget::Spender;
use super::eval::Evaluation;
use super::functions::Function;
use super::output::to_json;
use super::program::Node;
use super::value::Value;
use super::{Budget, EvalError, Scope};

/// What a constant may cost; what costs more is computed when it is needed.
const STEPS_MAX: u64 = 256;

/// The node, or the constant that it always gives. Something that always fails is left as it is, because it may
/// stand where nobody comes by; only what cannot be read as an instant or a duration is an error at once.
pub(super) fn fold(node: Node) -> Result<Node, EvalError> {
    let mut constant = !matches!(node, Node::Path(..) | Node::Local(..) | Node::Loop(_));
    node.for_each_child(&mut |child| constant &= child.is_constant());
    if !constant || node.is_constant() {
        return Ok(node);
    }
    match evaluated(&node) {
        Ok(folded) => Ok(folded),
        Err(EvalError::Budget { .. }) => Ok(node),
        Err(error) => match node {
            Node::Call(Function::Timestamp | Function::Duration, _) => Err(error),
            node => Ok(node),
        },
    }
}

fn evaluated(node: &Node) -> Result<Node, EvalError> {
    let mut budget = Budget { steps: STEPS_MAX };
    let scope = Scope::default();
    let mut evaluation = Evaluation {
        scope: &scope,
        budget: Spender::new(&mut budget),
        locals: Vec::new(),
    };
    Ok(match evaluation.eval(node)? {
        Value::Timestamp(timestamp) => Node::Timestamp(timestamp),
        Value::Duration(duration) => Node::Duration(duration),
        // An instant inside a list or map has to stay one.
        Value::List(_) | Value::Map(_) if holds_time(node) => node.clone(),
        value => Node::Constant(to_json(&value, &mut evaluation.budget)?.into_static()),
    })
}

fn holds_time(node: &Node) -> bool {
    let mut found = false;
    node.walk(&mut |node| found |= matches!(node, Node::Timestamp(_) | Node::Duration(_)));
    found
}
