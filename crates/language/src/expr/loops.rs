//! Macros: what is evaluated once for each element.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::EvalError;
use super::eval::Evaluation;
use super::functions::sorted;
use super::program::{Loop, LoopKind};
use super::value::{List, Map, Text, Value};

/// What a macro goes through: one element at a time, or the two of a pair.
struct Elements<'a> {
    of: Listed<'a>,
    pairs: bool,
    at: usize,
}

enum Listed<'a> {
    Items(List<'a>),
    Members(Map<'a>),
}

impl<'a> Iterator for Elements<'a> {
    type Item = (Value<'a>, Option<Value<'a>>);

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at;
        self.at += 1;
        match &self.of {
            Listed::Items(items) if self.pairs => {
                let place = Value::Int(i64::try_from(at).unwrap_or(i64::MAX));
                items.get(at).map(|item| (place, Some(item)))
            }
            Listed::Items(items) => items.get(at).map(|item| (item, None)),
            Listed::Members(members) => {
                let (key, value) = members.entry(at)?;
                Some((Value::Str(key), self.pairs.then_some(value)))
            }
        }
    }
}

impl<'a> Evaluation<'_, 'a, '_> {
    pub fn run_loop(&mut self, each: &'a Loop) -> Result<Value<'a>, EvalError> {
        let range = self.eval(&each.range)?;
        debug_assert_eq!(self.locals.len(), each.slot, "slots are nested");
        self.locals.push(Value::Null);
        if each.pairs {
            self.locals.push(Value::Null);
        }
        let outcome = self.gone_through(each, range);
        self.locals.truncate(each.slot);
        outcome
    }

    fn gone_through(&mut self, each: &'a Loop, range: Value<'a>) -> Result<Value<'a>, EvalError> {
        match each.kind {
            LoopKind::Bind => {
                self.locals[each.slot] = range;
                self.eval(&each.body)
            }
            LoopKind::OptMap | LoopKind::OptFlatMap => self.opened(each, range),
            LoopKind::TransformMap => self.transform_map(each, range),
            LoopKind::All => self.quantify(each, range, false),
            LoopKind::Exists => self.quantify(each, range, true),
            LoopKind::ExistsOne => self.exists_one(each, range),
            LoopKind::Map => self.gather(each, range),
            LoopKind::TransformMapEntry => self.gather_entries(each, range),
            LoopKind::SortBy => self.sort_by(each, &range),
        }
    }

    fn elements(&mut self, each: &Loop, range: Value<'a>) -> Result<Elements<'a>, EvalError> {
        let of = match range {
            Value::List(items) => Listed::Items(items),
            Value::Map(members) => {
                self.budget.spend(members.len())?;
                Listed::Members(members)
            }
            other => return Err(other.mistyped("a loop")),
        };
        let (pairs, at) = (each.pairs, 0);
        Ok(Elements { of, pairs, at })
    }

    /// Puts an element in its place; whether it is one of those that are taken.
    fn enter(
        &mut self,
        each: &'a Loop,
        (first, second): (Value<'a>, Option<Value<'a>>),
    ) -> Result<bool, EvalError> {
        self.budget.spend(1)?;
        self.locals[each.slot] = first;
        if let Some(second) = second {
            self.locals[each.slot + 1] = second;
        }
        match &each.condition {
            Some(condition) => self.eval(condition)?.as_bool("a filter"),
            None => Ok(true),
        }
    }

    /// `all` (`decisive` false) and `exists` (`decisive` true): `&&` and `||` over the elements, errors included.
    fn quantify(&mut self, each: &'a Loop, range: Value<'a>, decisive: bool) -> Result<Value<'a>, EvalError> {
        let name = if decisive { "exists()" } else { "all()" };
        let mut failed = None;
        for element in self.elements(each, range)? {
            self.enter(each, element)?;
            match self.eval(&each.body).and_then(|value| value.as_bool(name)) {
                Ok(answer) if answer == decisive => return Ok(Value::Bool(decisive)),
                Ok(_) => {}
                Err(error @ EvalError::Budget { .. }) => return Err(error),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    fn exists_one(&mut self, each: &'a Loop, range: Value<'a>) -> Result<Value<'a>, EvalError> {
        let mut count = 0_usize;
        for element in self.elements(each, range)? {
            self.enter(each, element)?;
            count += usize::from(self.eval(&each.body)?.as_bool("exists_one()")?);
        }
        Ok(Value::Bool(count == 1))
    }

    fn gather(&mut self, each: &'a Loop, range: Value<'a>) -> Result<Value<'a>, EvalError> {
        let mut items = Vec::new();
        for element in self.elements(each, range)? {
            if self.enter(each, element)? {
                items.push(self.eval(&each.body)?);
            }
        }
        Ok(Value::list(items))
    }

    fn transform_map(&mut self, each: &'a Loop, range: Value<'a>) -> Result<Value<'a>, EvalError> {
        let mut members = Vec::new();
        for (key, value) in self.elements(each, range)? {
            // A list has numbers for keys, and maps have texts only.
            let Value::Str(name) = key.clone() else {
                return Err(EvalError::Other("transformMap() takes a map".to_owned()));
            };
            if self.enter(each, (key, value))? {
                members.push((name, self.eval(&each.body)?));
            }
        }
        Ok(Value::map(members))
    }

    fn gather_entries(&mut self, each: &'a Loop, range: Value<'a>) -> Result<Value<'a>, EvalError> {
        let mut keys = BTreeSet::new();
        let mut members: Vec<(Text<'a>, Value<'a>)> = Vec::new();
        for element in self.elements(each, range)? {
            if !self.enter(each, element)? {
                continue;
            }
            let entries: Map<'a> = self.eval(&each.body)?.as_map("transformMapEntry()")?.clone();
            self.budget.spend(entries.len())?;
            for (key, value) in entries.into_members() {
                if !keys.insert(key.to_string()) {
                    return Err(EvalError::Other(format!("map has the key {:?} twice", &*key)));
                }
                members.push((key, value));
            }
        }
        Ok(Value::map(members))
    }

    fn sort_by(&mut self, each: &'a Loop, range: &Value<'a>) -> Result<Value<'a>, EvalError> {
        let items = range.as_list("sortBy()")?.clone();
        let mut keyed = Vec::with_capacity(items.len());
        for item in items.iter() {
            self.enter(each, (item.clone(), None))?;
            keyed.push((self.eval(&each.body)?, item));
        }
        sorted(keyed, "sortBy()", &mut self.budget)
    }

    fn opened(&mut self, each: &'a Loop, range: Value<'a>) -> Result<Value<'a>, EvalError> {
        let flat = each.kind == LoopKind::OptFlatMap;
        let name = if flat { "optFlatMap()" } else { "optMap()" };
        let Value::Optional(present) = range else {
            return Err(range.mistyped(name));
        };
        let Some(present) = present else {
            return Ok(Value::Optional(None));
        };
        self.locals[each.slot] = Rc::unwrap_or_clone(present);
        match self.eval(&each.body)? {
            value if !flat => Ok(Value::Optional(Some(Rc::new(value)))),
            value @ Value::Optional(_) => Ok(value),
            other => Err(other.mistyped(name)),
        }
    }
}
