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

/// The same every ten minutes in UTC, with more keys.
fn every_ten_minutes(more: &str, steps: &str) -> Vec<String> {
    let project = Project::new(&format!(
        "saga: trip\ncases:\n  - name: a morning\n    start: 2026-03-01T00:00:00Z\n    steps:\n{steps}"
    ));
    let cron = format!("schedule: {{cron: \"*/10 * * * *\"{more}}}");
    let saga = NIGHTLY.replace("schedule: {cron: \"30 2 * * *\", zone: Europe/Berlin}", &cron);
    project.write("sagas/trip.yaml", &saga);
    project.findings(&["--chaos"])
}

#[test]
fn a_planned_time_is_skipped_while_a_run_is_under_way_and_the_next_one_runs_after_its_end() {
    let found = every_ten_minutes(
        "",
        "
      - {schedule: 2026-03-01T01:00:00Z, expect: {phase: running, work: [{effect: book}], no_other_work: true}}
      - {schedule: 2026-03-01T01:10:00Z, hold: pay, expect: {ignored: overlap, phase: null, work: []}}
      - {result: {of: pay, ok: {}}, expect: {phase: completed, work: [], no_other_work: true}}
      - {schedule: 2026-03-01T01:20:00Z, expect: {phase: running, work: [{effect: book, with: {run: \"2026-03-01T01:20:00Z\"}}]}}
      - {at: trip/2026-03-01T01:20:00Z, result: {of: pay, ok: {}}, expect: {phase: completed}}
",
    );
    assert_eq!(found, [""; 0]);
}

#[test]
fn a_planned_time_that_is_skipped_is_a_finding_unless_that_is_expected() {
    let found = every_ten_minutes(
        "",
        "      - {schedule: 2026-03-01T01:00:00Z}\n      - {schedule: 2026-03-01T01:10:00Z, hold: all}\n",
    );
    assert_eq!(found, ["7:10 SR0601 the input is ignored (overlap)"]);
}

#[test]
fn a_planned_time_waits_for_the_end_of_the_run_before_where_the_schedule_queues() {
    let found = every_ten_minutes(
        ", overlap: queue",
        "
      - {schedule: 2026-03-01T01:00:00Z}
      - {schedule: 2026-03-01T01:10:00Z, hold: all, expect: {deferred: true, phase: null, work: []}}
      - {result: {of: pay, error: lost}, expect: {phase: failed, work: [{effect: book, from: trip/2026-03-01T01:10:00Z}]}}
      - {at: trip/2026-03-01T01:10:00Z, result: {of: pay, ok: {}}, expect: {phase: completed}}
",
    );
    assert_eq!(found, [""; 0]);
}

#[test]
fn runs_are_under_way_beside_each_other_where_the_schedule_allows_that() {
    let found = every_ten_minutes(
        ", overlap: allow",
        "
      - {schedule: 2026-03-01T01:00:00Z}
      - {schedule: 2026-03-01T01:10:00Z, hold: all, expect: {phase: running, work: [{effect: book}]}}
      - {succeed: all, expect: {phase: completed}}
      - {at: trip/2026-03-01T01:10:00Z, advance: 0s, expect: {phase: completed}}
",
    );
    assert_eq!(found, [""; 0]);
}

/// Timers and deadlines come on the way to a planned time.
#[test]
fn time_passes_until_a_planned_time() {
    let found = every_ten_minutes(
        "",
        "
      - {schedule: 2026-03-01T01:00:00Z}
      - {schedule: 2026-03-01T03:00:00Z, expect: {phase: running, work: [{effect: book}], no_other_work: true}}
      - {advance: 0s, hold: all, expect: {phase: failed, failure: timeout}}
",
    );
    assert_eq!(found, [""; 0]);
}

/// What is missed is up to `catch_up`, which by default runs the last one.
#[test]
fn a_planned_time_that_comes_late_is_caught_up_as_the_schedule_says() {
    for (catch_up, expected) in [
        (
            "",
            "{ignored: missed, work: [{effect: book, with: {run: \"2026-03-01T01:20:00Z\"}}]}",
        ),
        (", catch_up: none", "{ignored: missed, work: []}"),
        (
            ", catch_up: all, overlap: allow",
            "{phase: running, work: [{effect: book}, {effect: book}, {effect: book}], no_other_work: true}",
        ),
    ] {
        let steps = format!(
            "      - {{advance: 85m}}\n      - {{schedule: 2026-03-01T01:00:00Z, expect: {expected}}}\n      - {{succeed: all}}\n"
        );
        let steps = if catch_up.contains("none") {
            steps.replace("      - {succeed: all}\n", "")
        } else {
            steps
        };
        let found = every_ten_minutes(catch_up, &steps);
        assert_eq!(found, [""; 0], "{catch_up}");
    }
}

#[test]
fn planned_times_come_in_their_order_and_are_the_keys_of_their_runs() {
    let found = every_ten_minutes(
        "",
        "      - {schedule: 2026-03-01T01:10:00Z}\n      - {schedule: 2026-03-01T01:00:00Z}\n",
    );
    assert_eq!(
        found,
        ["7:10 SR0602 the schedule has handled 2026-03-01T01:00:00Z: planned times come in their order"]
    );
    let found = findings(
        "saga: trip\ncases:\n  - name: a\n    key: k-1\n    steps:\n      - {schedule: 2026-03-29T01:00:00Z}\n",
    );
    assert_eq!(
        found,
        ["6:10 SR0602 the key of the case is another one than that of the run, 2026-03-29T01:00:00Z"]
    );
}

/// The runs of a schedule are not those of the case's own saga.
#[test]
fn a_saga_that_plays_along_starts_by_the_clock() {
    let project = Project::new(
        "
saga: hearer
cases:
  - name: it hears the night
    sagas: [trip]
    key: h-1
    steps:
      - {at: trip, schedule: 2026-03-29T01:00:00Z, expect: {phase: running, work: [{effect: book, from: \"trip/2026-03-29T01:00:00Z\"}]}}
      - {at: trip, result: {of: pay, ok: {}}, expect: {phase: completed}}
      - {at: hearer/2026-03-29T01:00:00Z, advance: 0s, expect: {phase: running}}
",
    );
    let told = "finally: {completed: {publish: {type: trip.over, payload: {run: \"${key}\"}}}}\n";
    project.write("sagas/trip.yaml", &format!("{NIGHTLY}{told}"));
    project.write(
        "sagas/hearer.yaml",
        r#"
apiVersion: sagas/v1
kind: Saga
name: hearer
start: trip.over
key: {"trip.*": event.data.run}
events: {trip.over: {from: trip}}
steps: {rest: {delay: 1h}}
"#,
    );
    assert_eq!(project.findings(&[]), [""; 0]);
}
