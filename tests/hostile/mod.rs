//! Definitions nobody wrote: mutants of the shipped files, of the documentation's examples and of files that are
//! wrong already. The loader refuses or takes each one without a panic or a hang; what it takes runs any history
//! with the same bytes each time.
//!
//! `make fuzz MINUTES=10` looks further than the checks do, from another seed each time, which it prints.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]
#![allow(clippy::disallowed_methods, reason = "it looks for as long as it is told to")]

mod history;
mod mutants;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use saga_runner::kernel::definition::{Loaded, SourceFile, load};

use mutants::Corpus;

/// Longest time that one mutant may take to load and run. A hang takes for ever; a slow machine does not take this
/// long.
const PATIENCE: Duration = Duration::from_mins(1);
/// Mutants that are tried where nothing else is asked for.
const CASES: u64 = 800;

/// Which mutants are tried: number `first` and those that follow, until there were `most` of them or the time is up.
#[derive(Clone, Copy)]
struct Plan {
    first: u64,
    most: u64,
    until: Option<Instant>,
}

impl Plan {
    /// `HOSTILE_SEED`, `HOSTILE_CASES` and `HOSTILE_MINUTES`.
    fn asked_for() -> Self {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            Some(text.parse::<u64>().expect("a number"))
        };
        let minutes = number("HOSTILE_MINUTES");
        let plan = Self {
            first: number("HOSTILE_SEED").unwrap_or(0),
            most: number("HOSTILE_CASES").unwrap_or(if minutes.is_some() { u64::MAX } else { CASES }),
            until: minutes.map(|minutes| Instant::now() + Duration::from_mins(minutes)),
        };
        println!("mutants from HOSTILE_SEED={}", plan.first);
        plan
    }

    /// The numbers of every second mutant.
    fn cases(self, worker: u64) -> impl Iterator<Item = u64> {
        let in_time = move || self.until.is_none_or(|until| Instant::now() < until);
        (worker..self.most)
            .step_by(2)
            .take_while(move |_| in_time())
            .map(move |case| self.first.wrapping_add(case))
    }
}

fn rng(case: u64) -> TestRng {
    let mut seed = [0_u8; 32];
    seed[..8].copy_from_slice(&case.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &seed)
}

fn loaded(text: &str, effects: &[SourceFile]) -> Loaded {
    let saga = SourceFile {
        path: "mutant.yaml".to_owned(),
        text: text.into(),
    };
    load(&[saga], effects)
}

/// Loads one mutant and runs what came of it; whether anything did.
fn survives(corpus: &Corpus, case: u64) -> bool {
    let mut rng = rng(case);
    let text = corpus.mutant(&mut rng);
    let again = loaded(&text, &corpus.effects);
    let first = loaded(&text, &corpus.effects);
    assert_eq!(
        first.diagnostics, again.diagnostics,
        "the findings differ from run to run"
    );
    for finding in &first.diagnostics {
        assert!(
            finding.line >= 1 && finding.column >= 1,
            "{finding:?} has no place"
        );
    }
    let as_effect = SourceFile {
        path: "mutant.yaml".to_owned(),
        text: text.as_str().into(),
    };
    drop(load(&[], &[as_effect]));
    let Some(definition) = first.sagas.first() else {
        assert!(!first.diagnostics.is_empty(), "refused without a word");
        return false;
    };
    assert_eq!(definition.hash, again.sagas[0].hash);
    for _ in 0..3 {
        history::run(definition, rng.next_u64());
    }
    true
}

#[test]
fn no_mutant_breaks_the_loader_or_the_kernel() {
    let plan = Plan::asked_for();
    let corpus = Corpus::read();
    let (report, reports) = mpsc::channel();
    // Two, so that a hang of one is seen by this thread.
    for worker in 0..2 {
        let (report, corpus) = (report.clone(), corpus.clone());
        std::thread::Builder::new()
            .stack_size(2 << 20)
            .spawn(move || {
                for case in plan.cases(worker) {
                    let outcome = catch_unwind(AssertUnwindSafe(|| survives(&corpus, case)));
                    if report.send((case, outcome.map_err(drop))).is_err() {
                        return;
                    }
                }
            })
            .unwrap();
    }
    drop(report);
    let (mut tried, mut ran) = (0_u64, 0_u64);
    loop {
        let (case, outcome) = match reports.recv_timeout(PATIENCE) {
            Ok(report) => report,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!(
                "a mutant hangs, close to HOSTILE_SEED={}",
                plan.first.wrapping_add(tried)
            ),
        };
        tried += 1;
        let text = || corpus.mutant(&mut rng(case));
        match outcome {
            Ok(lives) => ran += u64::from(lives),
            Err(()) => panic!("HOSTILE_SEED={case} HOSTILE_CASES=1 panics:\n{}", text()),
        }
    }
    // Most mutants are refused; with too few that run this would test the loader alone.
    println!("{tried} mutants, {ran} of them ran");
    assert!(
        tried < 100 || ran * 20 > tried,
        "only {ran} of {tried} mutants ran"
    );
}
