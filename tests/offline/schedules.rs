//! Cases of sagas that start by the clock.

use super::Project;

const NIGHTLY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: trip
schedule: {cron: "30 2 * * *", zone: Europe/Berlin}
state: {init: {at: "${input.time}"}}
steps:
  pay: {effect: book, with: {at: "${input.time}", run: "${key}"}}
timers:
  late: {after: 1h, fail: {code: late}}
"#;

fn findings(cases: &str) -> Vec<String> {
    let project = Project::new(cases);
    project.write("sagas/trip.yaml", NIGHTLY);
    project.findings(&["--chaos"])
}

#[test]
fn a_case_starts_at_a_planned_time_which_is_its_key_and_its_clock() {
    let found = findings(
        "saga: trip\ncases:\n  - name: the night on which the clock is set forward\n    start: 2026-03-01T00:00:00Z\n    steps:\n      \
         - schedule: 2026-03-29T01:00:00Z\n        expect:\n          state: {at: \"2026-03-29T01:00:00Z\"}\n          \
         work: [{effect: book, with: {run: \"2026-03-29T01:00:00Z\"}}]\n          timers: {late: 2026-03-29T02:00:00Z}\n      \
         - {result: {of: pay, ok: {}}, expect: {phase: completed}}\n",
    );
    assert_eq!(found, [""; 0]);
}

#[test]
fn a_time_that_is_not_planned_is_a_finding_with_the_next_one() {
    let found = findings(
        "saga: trip\ncases:\n  - name: that time does not exist\n    steps:\n      - schedule: 2026-03-29T01:30:00Z\n",
    );
    assert_eq!(found.len(), 1, "{found:?}");
    let wanted = "2026-03-29T01:30:00Z is not a planned time of the schedule";
    assert!(found[0].contains(wanted), "{found:?}");
    let project =
        Project::new("saga: trip\ncases:\n  - {name: no clock, steps: [{schedule: 2026-03-29T01:30:00Z}]}\n");
    let found = project.findings(&[]);
    assert!(found[0].contains("the saga has no schedule"), "{found:?}");
}

#[test]
fn validate_tells_the_next_times() {
    let project = Project::new("saga: trip\ncases: []\n");
    project.write("sagas/trip.yaml", &NIGHTLY.replace("30 2 * * *", "15 8 29 2 *"));
    let output = super::run(&["validate", &project.path("").display().to_string()]);
    let told = super::text(&output.stderr);
    let line = told
        .lines()
        .find(|line| line.starts_with("trip is scheduled, next at "));
    let line = line.unwrap_or_else(|| panic!("{told}"));
    let times: Vec<&str> = line["trip is scheduled, next at ".len()..].split(", ").collect();
    assert_eq!(times.len(), 3, "{line}");
    assert!(
        times.iter().all(|time| time.ends_with("-02-29T08:15:00+01:00")),
        "{line}"
    );
}
