//! Integration tests wait for conditions: a fixed time is too short on a busy machine, and wasted on an idle one.

use std::collections::BTreeSet;
use std::fs;

use crate::architecture::{root, rust_files};

/// A pause between two looks at a condition, at most.
const PAUSE_MS_MAX: u64 = 249;

/// Files that wait longer for a fixed time, and why nothing can be observed in its place. The simulator's time is virtual.
const FIXED: [(&str, &str); 5] = [
    (
        "tests/cases/jobs.rs",
        "a job that is paused, stopped or another process's sends nothing; the time is longer than a look for jobs",
    ),
    (
        "tests/crash/owners.rs",
        "a suspended process, or one that is fenced off, shows nothing; the time is longer than its hold",
    ),
    (
        "tests/crash/shards.rs",
        "rounds of trimming that remove nothing leave no trace",
    ),
    (
        "tests/work/load.rs",
        "an upstream that keeps silent for longer than its callers wait",
    ),
    (
        "tests/workers/orders.rs",
        "workers that hold a result are not given its command again; the time is longer than the ack wait",
    ),
];

/// The fixed time of a line that sleeps, in milliseconds.
fn fixed_ms(line: &str) -> Option<u64> {
    let (_, time) = line.split_once("sleep(Duration::from_")?;
    let (unit, number) = time.split_once('(')?;
    let digits: String = number.chars().filter(|c| *c != '_').collect();
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    let number: u64 = digits.parse().ok()?;
    let factor = match unit {
        "millis" => 1,
        "secs" => 1_000,
        "mins" => 60_000,
        other => panic!("a unit that no test used before: {other}"),
    };
    Some(number * factor)
}

#[test]
fn integration_tests_wait_for_conditions_and_not_for_fixed_times() {
    let (mut sleeps, mut found) = (0, BTreeSet::new());
    for path in rust_files(&root().join("tests")) {
        let name = path
            .strip_prefix(root())
            .expect("below the root")
            .display()
            .to_string();
        if name.starts_with("tests/simulator/") || name.starts_with("tests/house/") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("readable");
        for time in text.lines().filter_map(fixed_ms) {
            sleeps += 1;
            if time > PAUSE_MS_MAX {
                found.insert(name.clone());
            }
        }
    }
    assert!(sleeps > 50, "{sleeps} sleeps were found");
    let listed: BTreeSet<String> = FIXED.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(
        found, listed,
        "wait for a condition, or delete the row that is not needed"
    );
}

#[test]
fn the_time_of_a_sleep_is_read_in_milliseconds() {
    for (line, expected) in [
        (
            "    tokio::time::sleep(Duration::from_millis(2_500)).await;",
            Some(2_500),
        ),
        ("std::thread::sleep(Duration::from_secs(3));", Some(3_000)),
        ("tokio::time::sleep(delay).await;", None),
        ("tokio::time::sleep(Duration::from_millis(pause)).await;", None),
    ] {
        assert_eq!(fixed_ms(line), expected, "{line}");
    }
}
