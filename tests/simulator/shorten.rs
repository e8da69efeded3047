//! What is left of a seed that fails when everything is left out that it does not need to fail.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::plan::Plan;
use super::run::{Verdict, carry_out};

/// The plan of a seed with these of its actions alone, by their places.
pub fn with(seed: u64, kept: &BTreeSet<usize>) -> Plan {
    let mut plan = Plan::of(seed);
    let mut at = 0;
    plan.actions.retain(|_| {
        at += 1;
        kept.contains(&(at - 1))
    });
    plan
}

/// Places as `KEEP` has them.
pub fn places(text: &str) -> BTreeSet<usize> {
    let places = text.split(',').filter(|part| !part.is_empty());
    places
        .map(|part| {
            part.parse()
                .unwrap_or_else(|_| panic!("KEEP: {part} is not a place"))
        })
        .collect()
}

/// What a fault is about, without names and numbers: so that another fault is not taken for it.
fn kind(verdict: &Verdict) -> String {
    let first = verdict.faults.first().map_or("", String::as_str);
    let words = first.split(|other: char| !other.is_alphabetic());
    words
        .filter(|word| word.len() > 2)
        .take(8)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Leaves actions out, halves first and single ones at last, for as long as the seed fails in the same way without them. `None`: it holds.
pub fn shorten(seed: u64) -> Option<(BTreeSet<usize>, Verdict)> {
    let run = |kept: &BTreeSet<usize>| carry_out(with(seed, kept), false);
    let mut kept: BTreeSet<usize> = (0..Plan::of(seed).actions.len()).collect();
    let mut verdict = run(&kept);
    if verdict.faults.is_empty() {
        return None;
    }
    let wanted = kind(&verdict);
    let mut size = kept.len();
    while size > 0 {
        let mut has_shrunk = false;
        let parts: Vec<Vec<usize>> = {
            let all: Vec<usize> = kept.iter().copied().collect();
            all.chunks(size).map(<[usize]>::to_vec).collect()
        };
        for part in parts {
            let mut without = kept.clone();
            without.retain(|place| !part.contains(place));
            let other = run(&without);
            if !other.faults.is_empty() && kind(&other) == wanted {
                (kept, verdict, has_shrunk) = (without, other, true);
            }
        }
        // Single ones may go once another one has gone.
        if size > 1 || !has_shrunk {
            size /= 2;
        }
    }
    Some((kept, verdict))
}

/// The list for people.
pub fn told(seed: u64, kept: &BTreeSet<usize>) -> String {
    let plan = Plan::of(seed);
    let mut text = format!("{} of {} actions are left:\n", kept.len(), plan.actions.len());
    for place in kept {
        let (at, action) = &plan.actions[*place];
        let _infallible = writeln!(text, "{place:>5} {:>9.3} {action:?}", at.as_secs_f64());
    }
    let places: Vec<String> = kept.iter().map(ToString::to_string).collect();
    text + &format!("replay: make simulate SEED={seed} KEEP={}\n", places.join(","))
}

#[cfg(feature = "planted")]
mod tests {
    use saga_runner::kernel::planted::{Bug, plant};

    use super::*;
    use crate::planted::known;

    /// Seeds that are tried where the known one finds it no more.
    const FEW: u64 = 30;

    #[test]
    fn a_seed_that_fails_is_shortened_to_what_it_needs_and_fails_the_same_again() {
        let from = known(Bug::ReleaseBeforeCommit);
        plant(Some(Bug::ReleaseBeforeCommit));
        let mut seeds = from..from + FEW;
        let found = seeds.find_map(|seed| Some((seed, shorten(seed)?)));
        let (seed, (kept, verdict)) = found.expect("one of them finds it");
        let again = carry_out(with(seed, &kept), false);
        assert_eq!((again.hash, &again.faults), (verdict.hash, &verdict.faults));
        for place in &kept {
            let mut without = kept.clone();
            without.remove(place);
            let other = carry_out(with(seed, &without), false);
            let fails = !other.faults.is_empty() && kind(&other) == kind(&verdict);
            assert!(!fails, "{place} is not needed of {}", told(seed, &kept));
        }
        plant(None);
    }
}
