//! Definitions nobody wrote: mutants of the shipped files, of the documentation's examples and of files that are
//! wrong already. The loader refuses or takes each one without a panic or a hang; what it takes runs any history
//! with the same bytes each time.
//!
//! `HOSTILE_CASES=100000 cargo test --test hostile` looks further than the checks do.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod history;
mod mutants;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use saga_runner::kernel::definition::{Loaded, SourceFile, load};

use mutants::Corpus;

/// Longest time that one mutant may take to load and run. A hang takes for ever; a slow machine does not take this
/// long.
const PATIENCE: Duration = Duration::from_mins(1);
/// Mutants that are tried where `HOSTILE_CASES` does not say.
const CASES: u64 = 800;

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
    let cases = std::env::var("HOSTILE_CASES").map_or(CASES, |text| text.parse().expect("a number"));
    let corpus = Corpus::read();
    let (report, reports) = mpsc::channel();
    // Two, so that a hang of one is seen by this thread.
    for worker in 0..2 {
        let (report, corpus) = (report.clone(), corpus.clone());
        std::thread::Builder::new()
            .stack_size(2 << 20)
            .spawn(move || {
                for case in (worker..cases).step_by(2) {
                    let outcome = catch_unwind(AssertUnwindSafe(|| survives(&corpus, case)));
                    if report.send((case, outcome.map_err(drop))).is_err() {
                        return;
                    }
                }
            })
            .unwrap();
    }
    drop(report);
    let mut ran = 0;
    for _ in 0..cases {
        let (case, outcome) = reports.recv_timeout(PATIENCE).expect("a mutant hangs");
        let text = || corpus.mutant(&mut rng(case));
        match outcome {
            Ok(lives) => ran += u64::from(lives),
            Err(()) => panic!("mutant {case} panics:\n{}", text()),
        }
    }
    // Most mutants are refused; with too few that run this would test the loader alone.
    assert!(ran * 20 > cases, "only {ran} of {cases} mutants ran");
}
