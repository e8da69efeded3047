//! Loops: steps that run again until a condition holds, or once for each item of a list.
//!
//! A loop is a group. Around one step, that step becomes the only member, under a name that no file can give it.

use super::actions::Reading;
use super::certain;
use super::codes;
use super::fields::{self, Fields, NameRule};
use super::grammar;
use super::grammar::steps::{ITEM_JOIN, LOOP, STEP};
use super::groups::{GROUP_DEPTH_MAX, Outlined};
use super::model::{
    BODY_OF_FOREACH, BODY_OF_REPEAT, Count, DEADLINE, Foreach, Group, ItemJoin, Join, OnItemError, Pause,
    Repeat, RepeatCondition, Step, Tolerance,
};
use super::saga::member;
use super::steps::{RESULT_ROOTS, RETRY_PAUSE_MS_MIN, START_ROOTS, factor};
use super::texts::EventParts;
use super::yaml::{Entry, Plain, Value};
use crate::expr::{Expr, Root};
use crate::limits::Limits;

/// Most times that a `repeat` runs its steps.
pub const REPEAT_MAX: u32 = 10_000;
/// Most items of a `foreach`.
pub const ITEMS_MAX: u32 = 10_000;
/// Items of a `foreach` that says nothing.
const ITEMS_DEFAULT: u32 = 1_000;
/// Most items of a `foreach` that run at the same time: their first work fits one transition.
pub const PARALLEL_MAX: u32 = 64;
/// Items that run at the same time where a `foreach` says nothing.
const PARALLEL_DEFAULT: u32 = 10;
/// What expressions call an item where a `foreach` says nothing.
const ITEM: &str = "item";

/// Error classes of loops themselves. Around one step, that step answers all others.
const LOOP_CLASSES: [&str; 6] = [
    EXHAUSTED,
    TOO_MANY_ITEMS,
    TOO_MANY_FAILED,
    VALUE_RANGE,
    JOIN_UNREACHABLE,
    DEADLINE,
];
/// Error class of a `repeat` whose turns are used up.
pub const EXHAUSTED: &str = "exhausted";
/// Error class of a `foreach` over a list that is too long.
pub const TOO_MANY_ITEMS: &str = "too_many_items";
/// Error class of a `foreach` in which more items have failed than it tolerates.
pub const TOO_MANY_FAILED: &str = "too_many_failed";
/// Error class of a step one of whose numbers is computed, and out of range.
pub const VALUE_RANGE: &str = "value.range";
/// Error class of a join that cannot be met any more.
pub const JOIN_UNREACHABLE: &str = "join_unreachable";

/// The loop that an entry of `steps` is: its key.
pub fn kind(entry: &Entry<'_>) -> Option<&'static str> {
    ["foreach", "repeat"]
        .into_iter()
        .find(|key| member(&entry.value, key).is_some())
}

/// What expressions of the step `at` call the item of the `foreach` around it.
pub fn item_name<'n>(at: usize, outline: &[Outlined<'n, '_>]) -> Option<&'n str> {
    let mut around = outline.get(at)?.within;
    while let Some(group) = around {
        let group = &outline[usize::from(group)];
        if kind(group.entry) == Some("foreach") {
            let foreach = member(&group.entry.value, "foreach")?;
            let Some(name) = member(&foreach.value, "as") else {
                return Some(ITEM);
            };
            return match &name.value.value {
                Value::Scalar(name) => Some(&name.text),
                Value::List(_) | Value::Map(_) => Some(ITEM),
            };
        }
        around = group.within;
    }
    None
}

/// Whether a loop is around the step `at`.
pub fn is_inside(at: usize, outline: &[Outlined<'_, '_>]) -> bool {
    let around = |at: usize| outline.get(at)?.within.map(usize::from);
    let mut groups = std::iter::successors(around(at), |group| around(*group));
    groups.any(|group| kind(outline[group].entry).is_some())
}

impl Foreach {
    /// A loop without a list, whose items come one by one.
    pub fn of_pieces(steps: std::ops::Range<u16>) -> Self {
        Self {
            steps,
            over: Expr::unknown(),
            item: ITEM.to_owned(),
            parallel: Count::Fixed(PARALLEL_DEFAULT),
            max: Count::Fixed(ITEMS_DEFAULT),
            chunk: None,
            join: ItemJoin::All,
            tolerate: None,
            let_run: false,
            on_item_error: OnItemError::Fail,
        }
    }
}

impl<'r> Reading<'r, '_> {
    /// Reads the loop at `at` of `outline`; its members are read as steps.
    pub fn looped(&mut self, at: usize, outline: &[Outlined<'r, '_>]) -> Option<Step> {
        let Outlined { entry, depth, .. } = outline[at];
        self.name_of_step(entry);
        let around_one = member(&entry.value, "steps").is_none();
        let shape = if around_one { &STEP } else { &LOOP };
        let fields = Fields::read(&entry.value, &entry.key_span, shape, self.findings)?;
        let looped = fields.one_of(&["foreach", "repeat"], self.findings)?;
        if depth == GROUP_DEPTH_MAX {
            let message = format!("groups of steps are nested deeper than {GROUP_DEPTH_MAX} levels");
            self.findings
                .error(codes::LIMIT, looped.key_span.clone(), message);
        }
        let needs = fields
            .get("needs")
            .map(|needs| self.needs(needs))
            .unwrap_or_default();
        let join = self.join(&fields, &needs);
        self.assume_needs(&needs, &join);
        let condition = fields.get("if").map(|condition| self.start_condition(condition));
        let deadline = self.deadline(&fields, START_ROOTS);
        if let Some(steps) = fields.get("steps") {
            self.member_steps(Some(steps), "a loop");
        }
        let members = super::groups::members(at, 0, outline);
        let group = if looped.key == "foreach" {
            if self.item.is_some() {
                self.findings
                    .error(
                        codes::CONTRADICTION,
                        looped.key_span.clone(),
                        "a \"foreach\" within a \"foreach\"",
                    )
                    .help(Some(
                        "make one list of all items, or start a saga for each of the outer ones".to_owned(),
                    ));
            }
            self.foreach(looped, members)
        } else {
            self.repeat(looped, members, around_one)
        };
        let outside = self.item;
        self.item = outside.or(item_name(at + 1, outline));
        let mut on_error = self.on_error(&fields);
        self.item = outside;
        if around_one {
            on_error.retain(|class, _| LOOP_CLASSES.contains(&class.as_str()));
        }
        // The result of a `foreach` is a list; each turn of a `repeat` has a result of its own.
        let set = match (&group, fields.get("set")) {
            (Group::Foreach(_), Some(set)) => self.set(set, RESULT_ROOTS, EventParts::Moment),
            (Group::Repeat(_), Some(set)) if !around_one => {
                self.findings
                    .error(
                        codes::UNKNOWN_KEY,
                        set.key_span.clone(),
                        "a \"repeat\" around several steps has no result",
                    )
                    .help(Some("write \"set\" in its steps".to_owned()));
                Vec::new()
            }
            _ => Vec::new(),
        };
        Some(Step {
            join,
            on_error,
            set,
            deadline,
            ..Step::group(entry.key.clone().into_owned(), needs, condition, group)
        })
    }

    /// Reads the one step that a loop is around.
    pub fn body(&mut self, entry: &'r Entry<'_>) -> Option<Step> {
        let mut step = self.step(entry)?;
        step.on_error
            .retain(|class, _| !LOOP_CLASSES.contains(&class.as_str()));
        let (suffix, set) = match kind(entry) {
            Some("foreach") => (BODY_OF_FOREACH, Vec::new()),
            _ => (BODY_OF_REPEAT, step.set),
        };
        Some(Step {
            name: format!("{}{suffix}", step.name),
            needs: Vec::new(),
            join: Join::All,
            condition: None,
            set,
            ..step
        })
    }

    fn repeat(&mut self, entry: &'r Entry<'_>, steps: std::ops::Range<u16>, around_one: bool) -> Group {
        // What is wrong with a loop is told; that its steps run again is known.
        let mut repeat = Repeat {
            steps,
            condition: RepeatCondition::While(Expr::unknown()),
            max: 1,
            pause: None,
        };
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::steps::REPEAT,
            self.findings,
        );
        let Some(fields) = fields else {
            return Group::Repeat(repeat);
        };
        let condition = fields.chosen(self.findings);
        let condition = condition.map(|condition| {
            let until = condition.key == "until";
            let roots = if until && around_one {
                RESULT_ROOTS
            } else {
                START_ROOTS
            };
            let expr = self.expr(condition, roots, EventParts::Moment);
            let certainty = if until { certain::UNTIL } else { certain::WHILE };
            self.certain(condition, &expr, certainty);
            if until {
                RepeatCondition::Until(expr)
            } else {
                RepeatCondition::While(expr)
            }
        });
        let max = fields
            .require("max", self.findings)
            .and_then(|max| fields::integer(max, 1..=REPEAT_MAX, codes::WRONG_VALUE, self.findings));
        repeat.pause = self.pause(&fields);
        repeat.max = max.unwrap_or(repeat.max);
        repeat.condition = condition.unwrap_or(repeat.condition);
        Group::Repeat(repeat)
    }

    /// `delay`, and how it grows.
    fn pause(&mut self, fields: &Fields<'r, '_>) -> Option<Pause> {
        let longest = Limits::default().timer_ms.unsigned_abs();
        let delay = fields.get("delay").and_then(|delay| {
            fields::duration(
                delay,
                RETRY_PAUSE_MS_MIN..=longest,
                codes::WRONG_VALUE,
                self.findings,
            )
        });
        let Some(backoff) = fields.get("backoff") else {
            return delay.map(|first_ms| Pause {
                first_ms,
                factor: 1.0,
                max_ms: first_ms,
            });
        };
        if fields.get("delay").is_none() {
            let message = "a \"backoff\" makes the \"delay\" longer, and there is none";
            self.findings
                .error(codes::MISSING_KEY, backoff.key_span.clone(), message);
        }
        let fields = Fields::read(
            &backoff.value,
            &backoff.key_span,
            &grammar::steps::REPEAT_BACKOFF,
            self.findings,
        )?;
        let growth = fields
            .get("factor")
            .and_then(|entry| factor(entry, self.findings))
            .unwrap_or(2.0);
        let max = fields
            .get("max")
            .and_then(|max| fields::duration(max, delay.unwrap_or(0)..=longest, codes::RETRY, self.findings));
        delay.map(|first_ms| Pause {
            first_ms,
            factor: growth,
            max_ms: max.unwrap_or(longest),
        })
    }

    fn foreach(&mut self, entry: &'r Entry<'_>, steps: std::ops::Range<u16>) -> Group {
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::steps::FOREACH,
            self.findings,
        );
        let Some(fields) = fields else {
            return Group::Foreach(Foreach::of_pieces(steps));
        };
        let over = fields
            .require("over", self.findings)
            .map(|over| self.expr(over, START_ROOTS, EventParts::Moment));
        let name = fields.get("as").map_or(Some(ITEM), |name| self.item_word(name));
        let mut number = |key: &str, max: u32, default: u32| {
            let written = fields.get(key).and_then(|entry| self.count(entry, 1..=max));
            written.unwrap_or(Count::Fixed(default))
        };
        let parallel = number("parallel", PARALLEL_MAX, PARALLEL_DEFAULT);
        let max = number("max", ITEMS_MAX, ITEMS_DEFAULT);
        let chunk = fields
            .get("chunk")
            .and_then(|entry| fields::integer(entry, 1..=ITEMS_MAX, codes::WRONG_VALUE, self.findings));
        let join = fields.get("join").map_or(Some(ItemJoin::All), |join| {
            self.join_count(join, &ITEM_JOIN, ITEMS_MAX)
        });
        let tolerate = fields.get("tolerate").and_then(|entry| self.tolerance(entry));
        // Where some items suffice, others may fail.
        let default = match (&join, &tolerate) {
            (Some(ItemJoin::AtLeast(_)), _) | (_, Some(_)) => OnItemError::Continue,
            (Some(ItemJoin::All) | None, None) => OnItemError::Fail,
        };
        let on_item_error = fields
            .get("on_item_error")
            .map_or(Some(default), |entry| self.on_item_error(entry));
        if let (Some(OnItemError::Fail), Some(_), Some(entry)) =
            (on_item_error, &tolerate, fields.get("on_item_error"))
        {
            let message = "an item that fails is tolerated, and fails the loop at once";
            self.findings
                .error(codes::CONTRADICTION, entry.value.span.clone(), message)
                .help(Some(
                    "write continue or collect, or leave \"tolerate\" out".to_owned(),
                ));
        }
        let let_run = self.lets_items_run(&fields, join.as_ref());
        if let (Some(ItemJoin::AtLeast(count)), Some(entry)) = (&join, fields.get("join"))
            && let (Some(count), Some(max)) = (count.fixed(), max.fixed())
            && count > max
        {
            let message = format!("{count} items are to succeed, and there are at most {max}");
            self.findings
                .error(codes::CONTRADICTION, entry.value.span.clone(), message)
                .help(Some("raise \"max\", or wait for fewer".to_owned()));
        }
        if let Some(entry) = fields.get("parallel")
            && let (Some(parallel), Some(max)) = (parallel.fixed(), max.fixed())
            && parallel > max
            && self.types.is_some()
        {
            let message = format!("{parallel} items never run at the same time: there are at most {max}");
            self.findings
                .warning(codes::USELESS_BOUND, entry.value.span.clone(), message)
                .help(Some("make it smaller, or \"max\" larger".to_owned()));
        }
        // What is wrong with a loop is told; that its steps run for each item is known.
        Group::Foreach(Foreach {
            steps,
            over: over.unwrap_or_else(Expr::unknown),
            item: name.unwrap_or(ITEM).to_owned(),
            parallel,
            max,
            chunk,
            join: join.unwrap_or(ItemJoin::All),
            tolerate,
            let_run,
            on_item_error: on_item_error.unwrap_or(default),
        })
    }

    /// What expressions call an item.
    fn item_word(&mut self, entry: &'r Entry<'_>) -> Option<&'r str> {
        let name = fields::text(
            &entry.value,
            &entry.key_span,
            "the name of an item",
            self.findings,
        )?;
        let span = &entry.value.span;
        if !fields::is_name(name, span, "item", NameRule::Identifier, self.findings) {
            return None;
        }
        let taken = Root::ALL.iter().any(|root| root.name() == name) && name != ITEM;
        if taken {
            let message = format!("`{name}` means something else already; an item needs another name");
            self.findings.error(codes::NAME, span.clone(), message);
        }
        (!taken).then_some(name)
    }

    /// `tolerate: 3`, `"10%"`, or an expression that gives a number.
    fn tolerance(&mut self, entry: &Entry<'_>) -> Option<Tolerance> {
        if let Value::Scalar(scalar) = &entry.value.value
            && let Some(percent) = scalar.text.strip_suffix('%')
            && !percent.contains("${")
        {
            let percent = percent.trim().parse().ok().filter(|percent| *percent <= 100);
            if percent.is_none() {
                let message = format!("{} is {}, allowed are 0% to 100%", entry.key, scalar.text);
                self.findings
                    .error(codes::WRONG_VALUE, entry.value.span.clone(), message);
            }
            return percent.map(Tolerance::Percent);
        }
        self.count(entry, 0..=ITEMS_MAX).map(Tolerance::Items)
    }

    fn lets_items_run(&mut self, fields: &Fields<'_, '_>, join: Option<&ItemJoin>) -> bool {
        let Some(written) = fields.get("stragglers") else {
            return false;
        };
        if !matches!(join, Some(ItemJoin::AtLeast(_))) {
            self.findings
                .error(
                    codes::CONTRADICTION,
                    written.key_span.clone(),
                    "\"stragglers\" are what a join that has enough leaves behind",
                )
                .help(Some("write join: any, or join: {at_least: N}".to_owned()));
        }
        self.one_word(written, &["let_run", "cancel"]) == Some("let_run")
    }

    fn on_item_error(&mut self, entry: &Entry<'_>) -> Option<OnItemError> {
        Some(match self.one_word(entry, &["fail", "continue", "collect"])? {
            "fail" => OnItemError::Fail,
            "continue" => OnItemError::Continue,
            _ => OnItemError::Collect,
        })
    }

    pub fn one_word(&mut self, entry: &Entry<'_>, words: &[&'static str]) -> Option<&'static str> {
        let found = match &entry.value.value {
            Value::Scalar(scalar) => match scalar.plain() {
                Plain::Text(text) => words.iter().find(|word| **word == text),
                _ => None,
            },
            Value::List(_) | Value::Map(_) => None,
        };
        if found.is_none() {
            let message = format!("{} is one of {}", entry.key, words.join(", "));
            let span = fields::visible(&entry.value, &entry.key_span, self.findings.text());
            self.findings.error(codes::WRONG_VALUE, span, message);
        }
        found.copied()
    }
}
