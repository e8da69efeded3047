//! Macros: which one was written, and with what.

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr as Tree, IdedExpr, LiteralValue, operators};

use super::program::LoopKind;

/// A macro that the parser does not know, in the shape of the call that it left.
pub(super) struct Written<'t> {
    pub kind: LoopKind,
    pub range: &'t IdedExpr,
    /// What the elements are called.
    pub names: &'t [IdedExpr],
    pub condition: Option<&'t IdedExpr>,
    pub body: &'t IdedExpr,
}

impl<'t> Written<'t> {
    pub fn of(call: &'t CallExpr) -> Option<Self> {
        let target = call.target.as_deref()?;
        let in_cel = matches!(&target.expr, Tree::Ident(name) if name == "cel");
        let (kind, count) = match (call.func_name.as_str(), call.args.len()) {
            (operators::ALL, 3) => (LoopKind::All, 2),
            (operators::EXISTS, 3) => (LoopKind::Exists, 2),
            (operators::EXISTS_ONE | "existsOne", 3) => (LoopKind::ExistsOne, 2),
            ("transformList", 3 | 4) => (LoopKind::Map, 2),
            ("transformMap", 3 | 4) => (LoopKind::TransformMap, 2),
            ("transformMapEntry", 3 | 4) => (LoopKind::TransformMapEntry, 2),
            ("sortBy", 2) => (LoopKind::SortBy, 1),
            ("optMap", 2) => (LoopKind::OptMap, 1),
            ("optFlatMap", 2) => (LoopKind::OptFlatMap, 1),
            ("bind", 3) if in_cel => (LoopKind::Bind, 1),
            _ => return None,
        };
        let (names, rest) = call.args.split_at(count);
        let (range, condition, body) = match rest {
            [range, body] if kind == LoopKind::Bind => (range, None, body),
            [condition, body] => (target, Some(condition), body),
            [body] => (target, None, body),
            _ => return None,
        };
        Some(Self {
            kind,
            range,
            names,
            condition,
            body,
        })
    }
}

/// Which macro a comprehension came from, by the shape that the parser gives it: what it gathers, and how.
pub(super) fn macro_of(each: &ComprehensionExpr) -> Option<(LoopKind, Option<&IdedExpr>, &IdedExpr)> {
    let Tree::Call(step) = &each.loop_step.expr else {
        return None;
    };
    match (
        &each.accu_init.expr,
        step.func_name.as_str(),
        step.args.as_slice(),
    ) {
        (Tree::Literal(LiteralValue::Boolean(_)), operators::LOGICAL_AND, [_, body]) => {
            Some((LoopKind::All, None, body))
        }
        (Tree::Literal(LiteralValue::Boolean(_)), operators::LOGICAL_OR, [_, body]) => {
            Some((LoopKind::Exists, None, body))
        }
        (Tree::Literal(LiteralValue::Int(_)), operators::CONDITIONAL, [body, _, _]) => {
            Some((LoopKind::ExistsOne, None, body))
        }
        (Tree::List(_), operators::ADD, [_, added]) => Some((LoopKind::Map, None, only(added)?)),
        (Tree::List(_), operators::CONDITIONAL, [condition, step, _]) => match &step.expr {
            Tree::Call(step) => Some((LoopKind::Map, Some(condition), only(step.args.get(1)?)?)),
            _ => None,
        },
        _ => None,
    }
}

/// The item of a list of one.
fn only(list: &IdedExpr) -> Option<&IdedExpr> {
    match &list.expr {
        Tree::List(list) => list.elements.first(),
        _ => None,
    }
}
