//! Bugs that are planted in production code, each with a seed that is known to find it: so the judges are known to see.

use std::sync::atomic::{AtomicUsize, Ordering};

use saga_runner::kernel::planted::{Bug, is_planted, plant};

use super::plan::Plan;
use super::run::simulate;
use super::situations::Situation;

/// Seeds that may be needed to find a bug.
const SEEDS_MAX: u64 = 2_000;
/// Simulations that a test looks for a bug once its known seed finds it no more.
const FEW: usize = 300;

/// A seed that finds it, and holds without it.
pub const fn known(bug: Bug) -> u64 {
    match bug {
        Bug::RandomId | Bug::CallsCutOff => 1,
        Bug::RemovedUnread => 2,
        Bug::DiscardForgets => 4,
        Bug::ReusedSequence => 7,
        Bug::ReleaseBeforeCommit => 10,
        Bug::TimersPassHeld => 26,
        Bug::PositionPastHeld => 34,
        Bug::SecondCall => 52,
        Bug::TwiceInHand => 93,
        Bug::NoFence => 231,
        Bug::FactsAgain => 559,
        Bug::ArchivedUnacknowledged => 468,
        Bug::HastyUnknown => 476,
    }
}

/// Whether a plan has what shows a bug, so that others need not be tried.
fn suits(bug: Bug, plan: &Plan) -> bool {
    match bug {
        Bug::TimersPassHeld => plan.situation == Some(Situation::EventsHeld),
        Bug::RemovedUnread => plan.situation == Some(Situation::RemovedUnread),
        Bug::CallsCutOff => plan.situation == Some(Situation::StopsInCalls),
        Bug::ReusedSequence => plan.situation == Some(Situation::GrownAgain),
        Bug::ArchivedUnacknowledged => plan.situation == Some(Situation::Archived),
        Bug::HastyUnknown => plan.situation == Some(Situation::DiesInCalls),
        Bug::NoFence => plan.actions.iter().any(|(_, action)| action.is_of_owners()),
        Bug::ReleaseBeforeCommit
        | Bug::PositionPastHeld
        | Bug::RandomId
        | Bug::FactsAgain
        | Bug::SecondCall
        | Bug::DiscardForgets
        | Bug::TwiceInHand => true,
    }
}

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

/// Whether a seed holds without any bug, or what does not.
fn holds(seed: u64) -> Result<(), String> {
    let faults = simulate(seed, false).faults;
    faults.into_iter().next().map_or(Ok(()), Err)
}

/// Goes through bugs on all processors; what comes of each, in their order.
fn for_each<T: Send>(bugs: &[Bug], look: impl Fn(Bug) -> T + Sync) -> Vec<(Bug, T)> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
            found.push((*bug, look(*bug)));
        }
        found
    };
    let mut found: Vec<(Bug, T)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    found.sort_by_key(|(bug, _)| Bug::ALL.iter().position(|other| other == bug));
    found
}

#[test]
fn nothing_is_planted_but_on_a_thread_that_has_planted_it() {
    let planted = || {
        Bug::ALL
            .into_iter()
            .filter(|bug| is_planted(*bug))
            .collect::<Vec<_>>()
    };
    assert_eq!(planted(), []);
    for bug in Bug::ALL {
        plant(Some(bug));
        assert_eq!(planted(), [bug]);
        let elsewhere = std::thread::spawn(planted).join().expect("no panic");
        assert_eq!(elsewhere, [], "{bug:?} is planted on every thread");
    }
    plant(None);
    assert_eq!(planted(), []);
}

#[test]
fn each_planted_bug_is_found_soon_and_only_while_it_is_planted() {
    if std::env::var_os("PLANTED").is_some() {
        return;
    }
    let looked = for_each(&Bug::ALL, |bug| {
        let suits = |seed: &u64| suits(bug, &Plan::of(*seed));
        let mut seeds = (known(bug)..).filter(suits).take(FEW);
        seeds.find(|seed| !with(bug, *seed).is_empty() && holds(*seed).is_ok())
    });
    let late = looked.iter().filter(|(bug, found)| *found != Some(known(*bug)));
    late.for_each(|(bug, found)| println!("{bug:?} is found by {found:?} only, not by {}", known(*bug)));
    let missed = looked.iter().filter(|(_, found)| found.is_none());
    assert_eq!(missed.map(|(bug, _)| *bug).collect::<Vec<_>>(), [], "not found");
}

/// `PLANTED=all`, or the name of one, with `FROM=n`: the first seed that finds it.
#[test]
fn planted_bugs_are_found_by_fresh_seeds() {
    let Ok(wanted) = std::env::var("PLANTED") else {
        return;
    };
    let from: u64 = std::env::var("FROM").map_or(1, |text| text.parse().expect("a number"));
    println!("looking in {SEEDS_MAX} seeds from {from}");
    let mut bugs = Bug::ALL.to_vec();
    bugs.retain(|bug| wanted == "all" || wanted == format!("{bug:?}"));
    assert_ne!(bugs, [], "PLANTED={wanted} names no bug");
    let looked = for_each(&bugs, |bug| {
        let found = (from..from + SEEDS_MAX).find_map(|seed| {
            let faults = with(bug, seed);
            let fault = faults.first()?;
            // A seed that fails anyway says nothing of the bug.
            match holds(seed) {
                Ok(()) => Some((seed, fault.clone())),
                Err(other) => {
                    println!("seed {seed} does not hold without any bug: {other}");
                    None
                }
            }
        });
        match &found {
            Some((seed, fault)) => println!("{bug:?}: seed {seed}, number {}: {fault}", seed - from + 1),
            None => println!("{bug:?}: not found"),
        }
        found.is_some()
    });
    let missed = looked.iter().filter(|(_, is_found)| !is_found);
    let missed: Vec<_> = missed.map(|(bug, _)| *bug).collect();
    assert_eq!(missed, [], "not found within {SEEDS_MAX} seeds from {from}");
}
