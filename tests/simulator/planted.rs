//! Bugs that are planted in production code, each with a seed that is known to find it: so the judges are known to see.

use saga_runner::kernel::planted::{Bug, plant};

use super::run::simulate;

/// Seeds that may be needed to find a bug.
const SEEDS_MAX: u64 = 2_000;

/// Seeds from which on few are needed to find one of them. The others take more than a test has time for.
const KNOWN: [(Bug, u64); 8] = [
    (Bug::ReleaseBeforeCommit, 2),
    (Bug::PositionPastHeld, 4),
    (Bug::RandomId, 1),
    (Bug::FactsAgain, 47),
    (Bug::SecondCall, 32),
    (Bug::DiscardForgets, 1),
    (Bug::TwiceInHand, 28),
    (Bug::NoFence, 17),
];

/// So few.
const FEW: u64 = 400;

/// What a seed says with a bug in the program.
fn with(bug: Bug, seed: u64) -> Vec<String> {
    plant(Some(bug));
    let verdict = simulate(seed, false);
    let mut faults = verdict.faults;
    if faults.is_empty() && bug == Bug::RandomId && simulate(seed, false).hash != verdict.hash {
        faults.push("it does not run in the same way twice".to_owned());
    }
    plant(None);
    faults
}

#[test]
fn each_planted_bug_is_found_soon_and_only_while_it_is_planted() {
    if std::env::var_os("PLANTED").is_some() {
        return;
    }
    for (bug, from) in KNOWN {
        let holds = |seed: &u64| simulate(*seed, false).faults.is_empty();
        let found = (from..from + FEW).find(|seed| !with(bug, *seed).is_empty() && holds(seed));
        assert!(found.is_some(), "{bug:?} is found by seeds from {from} on");
    }
}

/// `PLANTED=all`, or the name of one, with `FROM=n`: the first seed that finds it.
#[test]
fn planted_bugs_are_found_by_fresh_seeds() {
    let Ok(wanted) = std::env::var("PLANTED") else {
        return;
    };
    let from = std::env::var("FROM").map_or(1, |text| text.parse().expect("a number"));
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        if wanted != "all" && wanted != format!("{bug:?}") {
            continue;
        }
        let found = (from..from + SEEDS_MAX).find_map(|seed| {
            let faults = with(bug, seed);
            (!faults.is_empty()).then_some((seed, faults))
        });
        match found {
            Some((seed, faults)) => println!("{bug:?}: seed {seed}: {}", faults[0]),
            None => missed.push(bug),
        }
    }
    assert_eq!(missed, [], "not found within {SEEDS_MAX} seeds from {from}");
}
