//! The loader takes what the tables of its keys say, and refuses what they do not.
//!
//! Every value that a table bounds is put where it stands, alone in a file; what the loader says about just that place is held
//! against the table.

use std::collections::BTreeSet;

use super::super::grammar::{self, Kind, Shape};
use super::super::{Diagnostic, codes, load};
use super::file;

/// What the loader says about a value that is none of those it takes.
const REFUSALS: [&str; 4] = [codes::WRONG_TYPE, codes::WRONG_VALUE, codes::HEADER, codes::RETRY];

/// A place in a file: what stands before it and behind it.
#[derive(Clone)]
struct Place {
    before: String,
    behind: String,
}

impl Place {
    fn key(&self, key: &str) -> Self {
        self.within(&format!("{{\"{key}\": "), "}")
    }

    fn item(&self) -> Self {
        self.within("[", "]")
    }

    fn within(&self, before: &str, behind: &str) -> Self {
        Self {
            before: format!("{}{before}", self.before),
            behind: format!("{behind}{}", self.behind),
        }
    }
}

struct Probe {
    load: fn(&str) -> Vec<Diagnostic>,
    faults: Vec<String>,
    probed: usize,
    inside: Vec<*const Shape>,
}

impl Probe {
    /// All findings of a file with `value` at the place, and those about the value.
    fn told(&mut self, place: &Place, value: &str) -> (Vec<Diagnostic>, bool) {
        self.probed += 1;
        let findings = (self.load)(&format!("{}{value}{}", place.before, place.behind));
        let here = place.before.len()..=place.before.len() + value.len();
        let refused = findings
            .iter()
            .any(|finding| REFUSALS.contains(&finding.code) && here.contains(&finding.span.start));
        (findings, refused)
    }

    fn good(&mut self, place: &Place, value: &str) {
        if self.told(place, value).1 {
            self.faults.push(format!("refused: {}{value}", place.before));
        }
    }

    fn bad(&mut self, place: &Place, value: &str) {
        if !self.told(place, value).1 {
            self.faults.push(format!("taken: {}{value}", place.before));
        }
    }

    fn shape(&mut self, place: &Place, shape: &'static Shape) {
        // Groups of steps hold steps.
        if self.inside.contains(&std::ptr::from_ref(shape)) {
            return;
        }
        self.inside.push(shape);
        self.needs(place, shape);
        for key in shape.keys {
            self.kind(&place.key(key.name), &key.kind, true);
        }
        self.inside.pop();
    }

    /// An empty map lacks just the keys that are needed.
    fn needs(&mut self, place: &Place, shape: &Shape) {
        let (findings, _) = self.told(place, "{}");
        let lacks = format!("{} needs the key \"", shape.what);
        let told: BTreeSet<&str> = findings
            .iter()
            .filter_map(|finding| finding.message.strip_prefix(&lacks)?.strip_suffix('"'))
            .collect();
        let needed = shape
            .keys
            .iter()
            .filter(|key| key.needed)
            .map(|key| key.name)
            .collect();
        // What a saga needs besides depends on the rest of it; and a timer may have "every" in place of "after".
        let depends = place.before.is_empty() || shape.what == "a timer";
        if told != needed && !(depends && told.is_superset(&needed)) {
            self.faults.push(format!(
                "{}{{}}: {told:?} are missing, not {needed:?}",
                place.before
            ));
        }
        if shape.one_of.is_empty() {
            return;
        }
        let message = format!(
            "{} needs one of the keys {}",
            shape.what,
            shape.one_of.join(" or ")
        );
        if !findings.iter().any(|finding| finding.message == message) {
            self.faults
                .push(format!("{}{{}}: not told: {message}", place.before));
        }
    }

    /// `alone`: no other kind is taken there.
    fn kind(&mut self, place: &Place, kind: &Kind, alone: bool) {
        match kind {
            // Words of a step that starts a saga, and steps of one that is a loop: nothing is read of them without.
            Kind::Word(_) if place.before.ends_with("\"x\": {\"wait\": ") => {}
            Kind::MapOf(kind, ..) if place.before.ends_with("{\"steps\": ") && place.before.len() > 12 => {
                self.kind(&place.key("x"), kind, true);
            }
            Kind::Word(words) => {
                words
                    .iter()
                    .for_each(|word| self.good(place, &format!("\"{word}\"")));
                if alone {
                    self.bad(place, "\"zzzz\"");
                }
            }
            Kind::Integer(least, most) => {
                self.good(place, &least.to_string());
                self.good(place, &most.to_string());
                if alone && *most < u32::MAX {
                    self.bad(place, &(u64::from(*most) + 1).to_string());
                }
                if alone && *least > 0 {
                    self.bad(place, &(least - 1).to_string());
                }
            }
            Kind::Number(least, most) => {
                self.good(place, &least.to_string());
                self.good(place, &most.to_string());
                self.bad(place, &(most + 1.0).to_string());
            }
            Kind::Bool => {
                self.good(place, "true");
                self.good(place, "false");
                self.bad(place, "\"yes\"");
            }
            Kind::True => self.good(place, "true"),
            Kind::Map(shape) => {
                if alone {
                    self.bad(place, "1");
                }
                self.shape(place, shape);
            }
            Kind::MapOf(kind, ..) => {
                self.bad(place, "1");
                self.kind(&place.key(Self::sample(place)), kind, true);
            }
            Kind::List(kind, ..) => {
                self.bad(place, "1");
                self.kind(&place.item(), kind, true);
            }
            Kind::OneOrMany(kind) => {
                self.kind(place, kind, alone);
                self.kind(&place.item(), kind, alone);
            }
            Kind::Either(kinds) => kinds.iter().for_each(|kind| self.kind(place, kind, false)),
            Kind::ByPrefix(prefixes, own, events) => {
                for prefix in *prefixes {
                    self.kind(&place.key(&format!("{prefix}.x")), own, true);
                }
                self.kind(&place.key("A.B"), events, true);
            }
            // Texts and expressions: what they must be like besides is no matter of the tables.
            Kind::Any | Kind::Fields | Kind::Text | Kind::Named(_) | Kind::Pattern(_) => {}
        }
    }

    /// A key that may stand in a map with free keys.
    fn sample(place: &Place) -> &'static str {
        let of_events = ["\"handlers\": ", "\"events\": ", "\"after_end\": "];
        if of_events.iter().any(|key| place.before.ends_with(key)) {
            "A.B"
        } else if place.before.ends_with("\"upcast\": ") {
            "1"
        } else {
            "x"
        }
    }
}

fn assert_probed(shape: &'static Shape, load: fn(&str) -> Vec<Diagnostic>, least: usize) {
    let mut probe = Probe {
        load,
        faults: Vec::new(),
        probed: 0,
        inside: Vec::new(),
    };
    let whole = Place {
        before: String::new(),
        behind: String::new(),
    };
    probe.shape(&whole, shape);
    assert!(probe.faults.is_empty(), "{}", probe.faults.join("\n"));
    assert!(probe.probed >= least, "only {} values were probed", probe.probed);
}

#[test]
fn sagas_are_read_as_the_tables_say() {
    assert_probed(
        &grammar::saga::SAGA,
        |text| load(&[file("probe.yaml", text)], &[]).diagnostics,
        200,
    );
}

#[test]
fn effects_are_read_as_the_tables_say() {
    assert_probed(
        &grammar::effect::EFFECT,
        |text| load(&[], &[file("probe.yaml", text)]).diagnostics,
        100,
    );
}
