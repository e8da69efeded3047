//! Whether a value is what a schema demands.
//!
//! Total: the work is bounded by [`STEPS_MAX`], the recursion by the depth of the value and by the references
//! that a schema may follow without going down in the value.

use std::fmt;

use super::{Additional, Kinds, Rules, Schema, SchemaId};
use crate::json::Json;

/// Most rules that one check may try; a schema of alternatives inside alternatives could try them without end.
const STEPS_MAX: usize = 200_000;
/// Deepest recursion: a value of 64 levels, each with a few schemas around it.
const DEPTH_MAX: usize = 512;
/// Most characters of a value that a message repeats.
const SHOWN_CHARS_MAX: usize = 60;

/// The first rule that a value breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", At(.path))]
pub struct Violation {
    /// Names of members and numbers of items, from the outside in.
    pub path: Vec<String>,
    /// What is wrong there: `expected a string, found 3`.
    pub message: String,
}

struct At<'p>(&'p [String]);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
            if index > 0 && !part.starts_with('[') {
                f.write_str(".")?;
            }
            f.write_str(part)?;
        }
        if self.0.is_empty() {
            Ok(())
        } else {
            f.write_str(": ")
        }
    }
}

pub(super) fn check(schema: &Schema, value: &Json<'_>) -> Result<(), Violation> {
    let mut check = Check {
        schema,
        steps: 0,
        depth: 0,
        exhausted: false,
    };
    let checked = check.part(0, value).map_err(|mut violation| {
        violation.path.reverse();
        violation
    });
    // Within alternatives a check that was given up looks like one that failed, and `not` would turn it round.
    if check.exhausted {
        return broken("takes too many steps to check");
    }
    checked
}

/// All rules that a value breaks, as far as members and items are looked at one by one; at most `max`.
pub(super) fn violations(schema: &Schema, value: &Json<'_>, max: usize) -> Vec<Violation> {
    let mut found = Vec::new();
    collect(schema, 0, value, &mut Vec::new(), max, &mut found);
    found
}

fn collect(
    schema: &Schema,
    id: SchemaId,
    value: &Json<'_>,
    path: &mut Vec<String>,
    max: usize,
    found: &mut Vec<Violation>,
) {
    let mut check = Check {
        schema,
        steps: 0,
        depth: 0,
        exhausted: false,
    };
    if found.len() >= max || path.len() >= DEPTH_MAX {
        return;
    }
    let Err(first) = check.part(id, value) else {
        return;
    };
    let (before, rules) = (found.len(), &schema.parts[id]);
    match value {
        Json::Map(members) => {
            for name in &rules.objects.required {
                if found.len() < max && !members.iter().any(|(key, _)| key == name) {
                    found.push(Violation {
                        path: path.clone(),
                        message: format!("lacks the member {name:?}"),
                    });
                }
            }
            for (name, member) in members {
                if let Some(part) = rules.objects.properties.get(name.as_ref()) {
                    path.push(name.clone().into_owned());
                    collect(schema, *part, member, path, max, found);
                    path.pop();
                }
            }
        }
        Json::List(items) => {
            for (index, item) in items.iter().enumerate() {
                if let Some(part) = rules.arrays.first.get(index).copied().or(rules.arrays.items) {
                    path.push(format!("[{index}]"));
                    collect(schema, part, item, path, max, found);
                    path.pop();
                }
            }
        }
        Json::Null | Json::Bool(_) | Json::Int(_) | Json::Double(_) | Json::Str(_) => {}
    }
    if found.len() == before {
        let mut whole = path.clone();
        whole.extend(first.path.into_iter().rev());
        found.push(Violation {
            path: whole,
            message: first.message,
        });
    }
}

struct Check<'s> {
    schema: &'s Schema,
    steps: usize,
    depth: usize,
    exhausted: bool,
}

/// A violation whose path is still inside out.
type Checked = Result<(), Violation>;

fn broken(message: impl Into<String>) -> Checked {
    Err(Violation {
        path: Vec::new(),
        message: message.into(),
    })
}

fn below(name: &str, checked: Checked) -> Checked {
    checked.map_err(|mut violation| {
        violation.path.push(name.to_owned());
        violation
    })
}

impl Check<'_> {
    fn spend(&mut self, steps: usize) -> Checked {
        self.steps = self.steps.saturating_add(steps);
        self.exhausted |= self.steps > STEPS_MAX;
        if self.exhausted {
            return broken("takes too many steps to check");
        }
        Ok(())
    }

    fn part(&mut self, id: SchemaId, value: &Json<'_>) -> Checked {
        self.spend(1)?;
        if self.depth == DEPTH_MAX {
            self.exhausted = true;
            return broken("takes too many steps to check");
        }
        self.depth += 1;
        let schema = self.schema;
        let rules = &schema.parts[id];
        let checked = of_kind(rules, value)
            .and_then(|()| match value {
                Json::Null | Json::Bool(_) => Ok(()),
                #[allow(
                    clippy::cast_precision_loss,
                    reason = "bounds are written as JSON numbers, too"
                )]
                Json::Int(number) => {
                    multiple(rules, *number)?;
                    in_range(rules, *number as f64)
                }
                Json::Double(number) => in_range(rules, *number),
                Json::Str(text) => is_text(rules, text),
                Json::List(items) => self.list(rules, items),
                Json::Map(members) => self.map(rules, members),
            })
            .and_then(|()| self.combined(rules, value));
        self.depth -= 1;
        checked
    }

    fn list(&mut self, rules: &Rules, items: &[Json<'_>]) -> Checked {
        let rules = &rules.arrays;
        if let Some(min) = rules.min_items.filter(|min| items.len() < *min) {
            return broken(format!("has {} item(s), expected at least {min}", items.len()));
        }
        if let Some(max) = rules.max_items.filter(|max| items.len() > *max) {
            return broken(format!("has {} items, expected at most {max}", items.len()));
        }
        for (index, item) in items.iter().enumerate() {
            if let Some(part) = rules.first.get(index).copied().or(rules.items) {
                below(&format!("[{index}]"), self.part(part, item))?;
            }
        }
        if let Some(part) = rules.contains
            && !items.iter().any(|item| self.part(part, item).is_ok())
        {
            return broken("has no item of the kind that it must contain");
        }
        if rules.unique {
            for (index, item) in items.iter().enumerate() {
                self.spend(index)?;
                if items[..index].iter().any(|other| same(other, item)) {
                    return below(&format!("[{index}]"), broken("is there twice"));
                }
            }
        }
        Ok(())
    }

    fn map(&mut self, rules: &Rules, members: &[(std::borrow::Cow<'_, str>, Json<'_>)]) -> Checked {
        let rules = &rules.objects;
        for name in &rules.required {
            if !members.iter().any(|(key, _)| key == name) {
                return broken(format!("lacks the member {name:?}"));
            }
        }
        if let Some(min) = rules.min_properties.filter(|min| members.len() < *min) {
            return broken(format!(
                "has {} member(s), expected at least {min}",
                members.len()
            ));
        }
        if let Some(max) = rules.max_properties.filter(|max| members.len() > *max) {
            return broken(format!("has {} members, expected at most {max}", members.len()));
        }
        for (name, value) in members {
            if let Some(part) = rules.names {
                below(name, self.part(part, &Json::Str(name.as_ref().into())))?;
            }
            let mut named = false;
            if let Some(part) = rules.properties.get(name.as_ref()) {
                named = true;
                below(name, self.part(*part, value))?;
            }
            for (pattern, part) in &rules.patterns {
                if pattern.is_match(name) {
                    named = true;
                    below(name, self.part(*part, value))?;
                }
            }
            if named {
                continue;
            }
            match rules.additional {
                Additional::Unsaid | Additional::Any => {}
                Additional::None => return below(name, broken("is not a member that is allowed")),
                Additional::Schema(part) => below(name, self.part(part, value))?,
            }
        }
        Ok(())
    }

    fn combined(&mut self, rules: &Rules, value: &Json<'_>) -> Checked {
        for part in &rules.all_of {
            self.part(*part, value)?;
        }
        if !rules.any_of.is_empty() {
            self.any_of(&rules.any_of, value)?;
        }
        if !rules.one_of.is_empty() {
            let holds = |part: &&SchemaId| self.part(**part, value).is_ok();
            match rules.one_of.iter().filter(holds).count() {
                0 => self.any_of(&rules.one_of, value)?,
                1 => {}
                _ => return broken("is what more than one of the alternatives describe"),
            }
        }
        if let Some(part) = rules.not
            && self.part(part, value).is_ok()
        {
            return broken("is what is not allowed");
        }
        if let Some((test, then, otherwise)) = rules.condition {
            let branch = if self.part(test, value).is_ok() {
                then
            } else {
                otherwise
            };
            if let Some(branch) = branch {
                self.part(branch, value)?;
            }
        }
        Ok(())
    }

    /// What the alternative that went furthest into the value says is most likely what was meant.
    fn any_of(&mut self, parts: &[SchemaId], value: &Json<'_>) -> Checked {
        let mut nearest: Option<Violation> = None;
        for part in parts {
            match self.part(*part, value) {
                Ok(()) => return Ok(()),
                Err(violation) => {
                    let further = nearest
                        .as_ref()
                        .is_none_or(|nearest| violation.path.len() > nearest.path.len());
                    if further {
                        nearest = Some(violation);
                    }
                }
            }
        }
        nearest.map_or(Ok(()), Err)
    }
}

fn of_kind(rules: &Rules, value: &Json<'_>) -> Checked {
    if rules.never {
        return broken("nothing is allowed here");
    }
    if let Some(kinds) = rules.kinds
        && !kinds.has(Kinds::of(value))
    {
        return broken(format!(
            "expected {}, found {}",
            kinds.names().join(" or "),
            shown(value)
        ));
    }
    if let Some(allowed) = &rules.one_among
        && !allowed.iter().any(|allowed| same(allowed, value))
    {
        let allowed: Vec<String> = allowed.iter().take(8).map(shown).collect();
        return broken(format!(
            "expected {}, found {}",
            allowed.join(" or "),
            shown(value)
        ));
    }
    Ok(())
}

fn is_text(rules: &Rules, text: &str) -> Checked {
    let rules = &rules.texts;
    if rules.min_length.is_some() || rules.max_length.is_some() {
        let length = text.chars().count();
        if let Some(min) = rules.min_length.filter(|min| length < *min) {
            return broken(format!("has {length} character(s), expected at least {min}"));
        }
        if let Some(max) = rules.max_length.filter(|max| length > *max) {
            return broken(format!("has {length} characters, expected at most {max}"));
        }
    }
    match &rules.pattern {
        Some(pattern) if !pattern.is_match(text) => broken(format!(
            "expected text that matches {pattern}, found {}",
            shown(&Json::Str(text.into()))
        )),
        _ => Ok(()),
    }
}

fn multiple(rules: &Rules, number: i64) -> Checked {
    match rules.numbers.multiple_of {
        Some(of) if number.checked_rem(of) != Some(0) => {
            broken(format!("expected a multiple of {of}, found {number}"))
        }
        _ => Ok(()),
    }
}

fn in_range(rules: &Rules, number: f64) -> Checked {
    let rules = &rules.numbers;
    let fault = if let Some(min) = rules.minimum.filter(|min| number < *min) {
        Some(format!("at least {min}"))
    } else if let Some(max) = rules.maximum.filter(|max| number > *max) {
        Some(format!("at most {max}"))
    } else if let Some(min) = rules.exclusive_minimum.filter(|min| number <= *min) {
        Some(format!("more than {min}"))
    } else {
        let max = rules.exclusive_maximum.filter(|max| number >= *max);
        max.map(|max| format!("less than {max}"))
    };
    fault.map_or(Ok(()), |fault| {
        broken(format!("expected {fault}, found {number}"))
    })
}

/// Equality of JSON: maps do not care for the order of their members, numbers are what they are worth.
fn same(left: &Json<'_>, right: &Json<'_>) -> bool {
    match (left, right) {
        #[allow(
            clippy::cast_precision_loss,
            clippy::float_cmp,
            reason = "JSON numbers are compared by worth"
        )]
        (Json::Int(int), Json::Double(double)) | (Json::Double(double), Json::Int(int)) => {
            *int as f64 == *double
        }
        (Json::List(left), Json::List(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Json::Map(left), Json::Map(_)) => {
            let Json::Map(members) = right else { return false };
            left.len() == members.len()
                && left
                    .iter()
                    .all(|(name, value)| right.get(name).is_some_and(|other| same(value, other)))
        }
        (left, right) => left == right,
    }
}

/// A value as messages show it, cut where it is long.
pub(super) fn shown(value: &Json<'_>) -> String {
    let mut bytes = Vec::new();
    match value {
        Json::List(items) => return format!("an array of {}", items.len()),
        Json::Map(_) => return "an object".to_owned(),
        value => value.write(&mut bytes),
    }
    let text = String::from_utf8_lossy(&bytes);
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into_owned(),
    }
}
