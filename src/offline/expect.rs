//! What a step of a case expects.

use std::ops::Range;

use serde_json::Value;

use super::file::Reader;
use super::keys;
use super::tree::{Shape, Tree};
use crate::kernel::definition::codes;
use crate::kernel::definition::fields::{self, Fields};
use crate::kernel::definition::yaml::Entry;
use crate::kernel::patch::IgnoreReason;
use crate::kernel::record::Phase;
use crate::kernel::schedule::Skip;

/// Outcome of an event that the key rules give to another instance than that of the case.
pub const OTHER_INSTANCE: &str = "other_instance";

/// What is expected after a step; what is not named may be anything.
#[derive(Debug, Default)]
pub struct Expect {
    pub span: Range<usize>,
    /// There is nothing in it: `--update` fills it.
    pub is_empty: bool,
    pub phase: Option<Tree>,
    pub state: Option<Tree>,
    pub failure: Option<Tree>,
    pub outcome: Option<Tree>,
    pub steps: Option<Tree>,
    pub machine: Option<Tree>,
    pub timers: Option<Tree>,
    pub ledger: Option<Tree>,
    pub aliases: Option<Tree>,
    pub work: Option<Tree>,
    pub no_other_work: bool,
    /// The work is listed in the order in which it is sent.
    pub in_order: bool,
    pub ignored: Option<Tree>,
    pub rejected: Option<Tree>,
    pub deferred: Option<Tree>,
    pub blocked: Option<Tree>,
}

impl Reader<'_, '_> {
    pub(super) fn expect(&mut self, entry: &Entry<'_>) -> Option<Expect> {
        let whole = self.tree(entry)?;
        if let Shape::Scalar(Value::Null) = whole.shape {
            return Some(Expect {
                span: entry.key_span.clone(),
                is_empty: true,
                ..Expect::default()
            });
        }
        let fields = Fields::read(&entry.value, &entry.key_span, &keys::EXPECT, self.findings)?;
        let mut expect = Expect {
            span: whole.span.clone(),
            is_empty: whole.members().is_some_and(<[_]>::is_empty),
            ..Expect::default()
        };
        let mut is = |key: &str| {
            let entry = fields.get(key);
            entry.is_some_and(|entry| fields::boolean(entry, self.findings) == Some(true))
        };
        (expect.no_other_work, expect.in_order) = (is("no_other_work"), is("in_order"));
        if let (Some(order), None) = (fields.get("in_order"), fields.get("work")) {
            let message = "\"in_order\" is about \"work\", which is missing here";
            self.findings
                .error(codes::CONTRADICTION, order.key_span.clone(), message);
        }
        let part = |key: &str| whole.get(key).cloned();
        expect.phase = part("phase");
        expect.state = part("state");
        expect.failure = part("failure");
        expect.outcome = part("outcome");
        expect.steps = part("steps");
        expect.machine = part("machine");
        expect.timers = part("timers");
        expect.ledger = part("ledger");
        expect.aliases = part("aliases");
        expect.ignored = part("ignored");
        expect.rejected = part("rejected");
        expect.deferred = part("deferred");
        expect.blocked = part("blocked");
        expect.work = part("work");
        self.check_words(&expect);
        if let Some(work) = fields.get("work") {
            for item in self.list(work, "work")? {
                let fields = Fields::item(item, &work.key_span, &keys::WORK, self.findings)?;
                let kinds = ["effect", "command", "fact", "signal", "saga", "of"];
                if kinds.iter().all(|kind| fields.get(kind).is_none()) {
                    fields.one_of(&kinds, self.findings)?;
                }
            }
        }
        Some(expect)
    }

    /// A word outside of its closed set can never come out, so it is a mistake of the file.
    fn check_words(&mut self, expect: &Expect) {
        let phases: Vec<&str> = Phase::ALL.iter().map(|phase| phase.as_str()).collect();
        // What comes under an id that was used, with other content, is a dead letter.
        let ignored = IgnoreReason::ALL
            .iter()
            .filter(|reason| **reason != IgnoreReason::Conflict);
        let mut reasons: Vec<&str> = ignored.map(|reason| reason.as_str()).collect();
        reasons.push(OTHER_INSTANCE);
        reasons.extend([Skip::Missed, Skip::Overlap, Skip::QueueFull].map(Skip::as_str));
        for (tree, what, words) in [
            (&expect.phase, "phase", phases),
            (&expect.ignored, "reason", reasons),
        ] {
            if let Some(tree) = tree
                && let Some(text) = tree.text()
                && !words.contains(&text)
            {
                let message = format!("\"{}\" is not a valid {what}", text.escape_debug());
                self.findings
                    .error(codes::WRONG_VALUE, tree.span.clone(), message)
                    .help(Some(format!("it is one of {}", words.join(", "))));
            }
        }
    }
}
